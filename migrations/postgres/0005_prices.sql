-- Price books: effective-dated, published and never edited.

-- A published version. A later revision of one name replaces the earlier (replaced_us).
CREATE TABLE price_version (
    name TEXT NOT NULL,
    revision BIGINT NOT NULL,
    from_us BIGINT NOT NULL,
    to_us BIGINT,
    currency TEXT NOT NULL,
    content_hash BYTEA NOT NULL,
    published_us BIGINT NOT NULL,
    replaced_us BIGINT,
    CONSTRAINT price_version_pk PRIMARY KEY (name, revision),
    CONSTRAINT price_version_revision_is_positive CHECK (revision > 0),
    CONSTRAINT price_version_ends_after_start CHECK (to_us IS NULL OR to_us > from_us)
);
ALTER TABLE price_version ENABLE ROW LEVEL SECURITY;
ALTER TABLE price_version FORCE ROW LEVEL SECURITY;
CREATE POLICY price_version_scope ON price_version USING (
        (SELECT current_setting('fatia.platform', true)) = 'on'
    ) WITH CHECK (
        (SELECT current_setting('fatia.platform', true)) = 'on'
    );
GRANT SELECT, INSERT, UPDATE, DELETE ON price_version TO fatia_app;
GRANT SELECT ON price_version TO fatia_backup;

-- Price of one unit in 10^-8 of the currency unit.
CREATE TABLE price_item (
    name TEXT NOT NULL,
    revision BIGINT NOT NULL,
    book TEXT NOT NULL,
    item_key TEXT NOT NULL,
    unit_price BIGINT NOT NULL,
    CONSTRAINT price_item_pk PRIMARY KEY (name, revision, book, item_key),
    CONSTRAINT price_item_version_fk FOREIGN KEY (name, revision) REFERENCES price_version (name, revision),
    CONSTRAINT price_item_book_word CHECK (book IN ('cost', 'charge')),
    CONSTRAINT price_item_is_not_negative CHECK (unit_price >= 0)
);
ALTER TABLE price_item ENABLE ROW LEVEL SECURITY;
ALTER TABLE price_item FORCE ROW LEVEL SECURITY;
CREATE POLICY price_item_scope ON price_item USING (
        (SELECT current_setting('fatia.platform', true)) = 'on'
    ) WITH CHECK (
        (SELECT current_setting('fatia.platform', true)) = 'on'
    );
GRANT SELECT, INSERT, UPDATE, DELETE ON price_item TO fatia_app;
GRANT SELECT ON price_item TO fatia_backup;
