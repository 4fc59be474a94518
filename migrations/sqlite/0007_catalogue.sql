-- The operator's rows over the embedded catalogue of boards, MIG profiles and vGPU types.

-- The files as they were loaded; the newest holds, and none is edited or removed. content_hash: of what a file says,
-- whatever its layout.
CREATE TABLE catalogue_file (
    revision INTEGER NOT NULL,
    content TEXT NOT NULL,
    content_hash BLOB NOT NULL,
    loaded_us INTEGER NOT NULL,
    loaded_by TEXT NOT NULL,
    CONSTRAINT catalogue_file_pk PRIMARY KEY (revision),
    CONSTRAINT catalogue_file_revision_is_positive CHECK (revision > 0)
) STRICT;
