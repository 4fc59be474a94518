-- Price books: effective-dated, published and never edited.

-- A published version. A later revision of one name replaces the earlier (replaced_us).
CREATE TABLE price_version (
    name TEXT NOT NULL,
    revision INTEGER NOT NULL,
    from_us INTEGER NOT NULL,
    to_us INTEGER,
    currency TEXT NOT NULL,
    content_hash BLOB NOT NULL,
    published_us INTEGER NOT NULL,
    replaced_us INTEGER,
    CONSTRAINT price_version_pk PRIMARY KEY (name, revision),
    CONSTRAINT price_version_revision_is_positive CHECK (revision > 0),
    CONSTRAINT price_version_ends_after_start CHECK (to_us IS NULL OR to_us > from_us)
) STRICT, WITHOUT ROWID;

-- Price of one unit in 10^-8 of the currency unit.
CREATE TABLE price_item (
    name TEXT NOT NULL,
    revision INTEGER NOT NULL,
    book TEXT NOT NULL,
    item_key TEXT NOT NULL,
    unit_price INTEGER NOT NULL,
    CONSTRAINT price_item_pk PRIMARY KEY (name, revision, book, item_key),
    CONSTRAINT price_item_version_fk FOREIGN KEY (name, revision) REFERENCES price_version (name, revision),
    CONSTRAINT price_item_book_word CHECK (book IN ('cost', 'charge')),
    CONSTRAINT price_item_is_not_negative CHECK (unit_price >= 0)
) STRICT, WITHOUT ROWID;
