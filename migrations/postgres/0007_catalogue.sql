-- The operator's rows over the embedded catalogue of boards, MIG profiles and vGPU types.

-- The files as they were loaded; the newest holds, and none is edited or removed. content_hash: of what a file says,
-- whatever its layout.
CREATE TABLE catalogue_file (
    revision BIGINT NOT NULL,
    content TEXT NOT NULL,
    content_hash BYTEA NOT NULL,
    loaded_us BIGINT NOT NULL,
    loaded_by TEXT NOT NULL,
    CONSTRAINT catalogue_file_pk PRIMARY KEY (revision),
    CONSTRAINT catalogue_file_revision_is_positive CHECK (revision > 0)
);
ALTER TABLE catalogue_file ENABLE ROW LEVEL SECURITY;
ALTER TABLE catalogue_file FORCE ROW LEVEL SECURITY;
CREATE POLICY catalogue_file_scope ON catalogue_file USING (
        (SELECT current_setting('fatia.platform', true)) = 'on'
    ) WITH CHECK (
        (SELECT current_setting('fatia.platform', true)) = 'on'
    );
GRANT SELECT, INSERT ON catalogue_file TO fatia_app;
GRANT SELECT ON catalogue_file TO fatia_backup;
