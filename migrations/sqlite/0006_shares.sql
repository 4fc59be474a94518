-- What the sharing tree adds: policies of a price version, energy in the sums, and findings about layouts.

-- policy: weighting, bases and options in one canonical text; empty: the defaults.
ALTER TABLE price_version ADD COLUMN policy TEXT NOT NULL DEFAULT '';

-- By which rules the levels were derived. A program with other rules marks everything when it opens the database.
ALTER TABLE installation ADD COLUMN derivation INTEGER NOT NULL DEFAULT 1;

-- metered: of the quantity, what was in time whose energy was counted. energy_mj: its energy in millijoules.
ALTER TABLE node_day ADD COLUMN metered INTEGER NOT NULL DEFAULT 0;
ALTER TABLE node_day ADD COLUMN energy_mj INTEGER NOT NULL DEFAULT 0;
ALTER TABLE tenant_day ADD COLUMN metered INTEGER NOT NULL DEFAULT 0;
ALTER TABLE tenant_day ADD COLUMN energy_mj INTEGER NOT NULL DEFAULT 0;

-- The words of a CHECK are changed by building the table anew.
CREATE TABLE finding_next (
    kind TEXT NOT NULL,
    scope_id INTEGER NOT NULL,
    subject TEXT NOT NULL,
    since_us INTEGER NOT NULL,
    until_us INTEGER,
    detail TEXT NOT NULL,
    written_us INTEGER NOT NULL,
    CONSTRAINT finding_pk PRIMARY KEY (kind, scope_id, subject, since_us),
    CONSTRAINT finding_kind_word CHECK (kind IN ('unknown_profile', 'illegal_layout', 'lost_parent', 'layout_assumed', 'pool_overheld', 'hour_too_large', 'source_conflict', 'batch_set_aside', 'coverage_lost'))
) STRICT, WITHOUT ROWID;
INSERT INTO finding_next SELECT kind, scope_id, subject, since_us, until_us, detail, written_us FROM finding;
DROP TABLE finding;
ALTER TABLE finding_next RENAME TO finding;
