-- Data that is made up says so.

-- demo: all that this installation holds is made up, for people to look at. It is set before anything else is written,
-- and never taken back: made-up sums never become real ones.
ALTER TABLE installation ADD COLUMN demo BIGINT NOT NULL DEFAULT 0;
ALTER TABLE installation ADD CONSTRAINT installation_demo_is_a_flag CHECK (demo IN (0, 1));
