-- The journal: what senders signed, as they signed it. The truth; everything behind it can be rebuilt.

-- One mark per stream. Kept for ever, so that a repeat is a duplicate for ever. import_number orders the
-- imports of one source; agents have 0. rows_hash: of an import's rows without its coverage.
CREATE TABLE usage_stream (
    stream_id TEXT NOT NULL,
    scope_id BIGINT NOT NULL,
    rank TEXT NOT NULL,
    sender TEXT NOT NULL,
    import_number BIGINT NOT NULL,
    mark BIGINT NOT NULL,
    opened_us BIGINT NOT NULL,
    rows_hash BYTEA,
    CONSTRAINT usage_stream_pk PRIMARY KEY (stream_id),
    CONSTRAINT usage_stream_scope_fk FOREIGN KEY (scope_id) REFERENCES scope (scope_id),
    CONSTRAINT usage_stream_rank_word CHECK (rank IN ('host_agent', 'hypervisor', 'scheduler', 'scrape', 'guest_agent', 'import')),
    CONSTRAINT usage_stream_mark_is_natural CHECK (mark >= 0),
    CONSTRAINT usage_stream_number_is_natural CHECK (import_number >= 0)
);
CREATE INDEX usage_stream_scope ON usage_stream (scope_id, sender, import_number);
ALTER TABLE usage_stream ENABLE ROW LEVEL SECURITY;
ALTER TABLE usage_stream FORCE ROW LEVEL SECURITY;
CREATE POLICY usage_stream_scope ON usage_stream USING (
        (SELECT current_setting('fatia.platform', true)) = 'on'
    ) WITH CHECK (
        (SELECT current_setting('fatia.platform', true)) = 'on'
    );
GRANT SELECT, INSERT, UPDATE, DELETE ON usage_stream TO fatia_app;
GRANT SELECT ON usage_stream TO fatia_backup;

-- Imports by source and number: who brought which rows, and when.
CREATE TABLE usage_import (
    source TEXT NOT NULL,
    number BIGINT NOT NULL,
    imported_by TEXT NOT NULL,
    started_us BIGINT NOT NULL,
    finished_us BIGINT,
    rows_taken BIGINT NOT NULL,
    rows_refused BIGINT NOT NULL,
    CONSTRAINT usage_import_pk PRIMARY KEY (source, number),
    CONSTRAINT usage_import_number_is_positive CHECK (number > 0)
);
ALTER TABLE usage_import ENABLE ROW LEVEL SECURITY;
ALTER TABLE usage_import FORCE ROW LEVEL SECURITY;
CREATE POLICY usage_import_scope ON usage_import USING (
        (SELECT current_setting('fatia.platform', true)) = 'on'
    ) WITH CHECK (
        (SELECT current_setting('fatia.platform', true)) = 'on'
    );
GRANT SELECT, INSERT, UPDATE, DELETE ON usage_import TO fatia_app;
GRANT SELECT ON usage_import TO fatia_backup;

-- One row a batch, whatever the number of windows: the compressed bytes that were signed, and the signature.
-- refused: what acceptance did not take (JSON), obeyed by a rebuild. set_aside: why nothing could be read.
CREATE TABLE usage_batch (
    scope_id BIGINT NOT NULL,
    stream_id TEXT NOT NULL,
    sequence BIGINT NOT NULL,
    received_us BIGINT NOT NULL,
    from_us BIGINT NOT NULL,
    to_us BIGINT NOT NULL,
    body BYTEA NOT NULL,
    body_hash BYTEA NOT NULL,
    signature TEXT NOT NULL,
    row_count BIGINT NOT NULL,
    refused TEXT,
    set_aside TEXT,
    CONSTRAINT usage_batch_pk PRIMARY KEY (scope_id, stream_id, sequence, received_us),
    CONSTRAINT usage_batch_sequence_is_positive CHECK (sequence > 0),
    CONSTRAINT usage_batch_ends_after_start CHECK (to_us >= from_us),
    CONSTRAINT usage_batch_hash_is_32_bytes CHECK (length(body_hash) = 32)
) PARTITION BY RANGE (received_us);
CREATE INDEX usage_batch_span ON usage_batch (scope_id, from_us);
ALTER TABLE usage_batch ENABLE ROW LEVEL SECURITY;
ALTER TABLE usage_batch FORCE ROW LEVEL SECURITY;
CREATE POLICY usage_batch_scope ON usage_batch USING (
        (SELECT current_setting('fatia.platform', true)) = 'on'
    ) WITH CHECK (
        (SELECT current_setting('fatia.platform', true)) = 'on'
    );
GRANT SELECT, INSERT, UPDATE, DELETE ON usage_batch TO fatia_app;
GRANT SELECT ON usage_batch TO fatia_backup;
