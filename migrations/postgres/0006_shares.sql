-- What the sharing tree adds: policies of a price version, energy in the sums, and findings about layouts.

-- policy: weighting, bases and options in one canonical text; empty: the defaults.
ALTER TABLE price_version ADD COLUMN policy TEXT NOT NULL DEFAULT '';

-- By which rules the levels were derived. A program with other rules marks everything when it opens the database.
ALTER TABLE installation ADD COLUMN derivation BIGINT NOT NULL DEFAULT 1;

-- metered: of the quantity, what was in time whose energy was counted. energy_mj: its energy in millijoules.
ALTER TABLE node_day ADD COLUMN metered BIGINT NOT NULL DEFAULT 0;
ALTER TABLE node_day ADD COLUMN energy_mj BIGINT NOT NULL DEFAULT 0;
ALTER TABLE tenant_day ADD COLUMN metered BIGINT NOT NULL DEFAULT 0;
ALTER TABLE tenant_day ADD COLUMN energy_mj BIGINT NOT NULL DEFAULT 0;

ALTER TABLE finding DROP CONSTRAINT finding_kind_word;
ALTER TABLE finding ADD CONSTRAINT finding_kind_word CHECK (kind IN ('unknown_profile', 'illegal_layout', 'lost_parent', 'layout_assumed', 'pool_overheld', 'hour_too_large', 'source_conflict', 'batch_set_aside', 'coverage_lost'));
