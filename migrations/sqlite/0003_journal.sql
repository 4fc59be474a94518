-- The journal: what senders signed, as they signed it. The truth; everything behind it can be rebuilt.

-- One mark per stream. Kept for ever, so that a repeat is a duplicate for ever. import_number orders the
-- imports of one source; agents have 0. rows_hash: of an import's rows without its coverage.
CREATE TABLE usage_stream (
    stream_id TEXT NOT NULL,
    scope_id INTEGER NOT NULL,
    rank TEXT NOT NULL,
    sender TEXT NOT NULL,
    import_number INTEGER NOT NULL,
    mark INTEGER NOT NULL,
    opened_us INTEGER NOT NULL,
    rows_hash BLOB,
    CONSTRAINT usage_stream_pk PRIMARY KEY (stream_id),
    CONSTRAINT usage_stream_scope_fk FOREIGN KEY (scope_id) REFERENCES scope (scope_id),
    CONSTRAINT usage_stream_rank_word CHECK (rank IN ('host_agent', 'hypervisor', 'scheduler', 'scrape', 'guest_agent', 'import')),
    CONSTRAINT usage_stream_mark_is_natural CHECK (mark >= 0),
    CONSTRAINT usage_stream_number_is_natural CHECK (import_number >= 0)
) STRICT, WITHOUT ROWID;
CREATE INDEX usage_stream_scope ON usage_stream (scope_id, sender, import_number);

-- Imports by source and number: who brought which rows, and when.
CREATE TABLE usage_import (
    source TEXT NOT NULL,
    number INTEGER NOT NULL,
    imported_by TEXT NOT NULL,
    started_us INTEGER NOT NULL,
    finished_us INTEGER,
    rows_taken INTEGER NOT NULL,
    rows_refused INTEGER NOT NULL,
    CONSTRAINT usage_import_pk PRIMARY KEY (source, number),
    CONSTRAINT usage_import_number_is_positive CHECK (number > 0)
) STRICT, WITHOUT ROWID;

-- One row a batch, whatever the number of windows: the compressed bytes that were signed, and the signature.
-- refused: what acceptance did not take (JSON), obeyed by a rebuild. set_aside: why nothing could be read.
CREATE TABLE usage_batch (
    scope_id INTEGER NOT NULL,
    stream_id TEXT NOT NULL,
    sequence INTEGER NOT NULL,
    received_us INTEGER NOT NULL,
    from_us INTEGER NOT NULL,
    to_us INTEGER NOT NULL,
    body BLOB NOT NULL,
    body_hash BLOB NOT NULL,
    signature TEXT NOT NULL,
    row_count INTEGER NOT NULL,
    refused TEXT,
    set_aside TEXT,
    CONSTRAINT usage_batch_pk PRIMARY KEY (scope_id, stream_id, sequence),
    CONSTRAINT usage_batch_sequence_is_positive CHECK (sequence > 0),
    CONSTRAINT usage_batch_ends_after_start CHECK (to_us >= from_us),
    CONSTRAINT usage_batch_hash_is_32_bytes CHECK (length(body_hash) = 32)
) STRICT;
CREATE INDEX usage_batch_span ON usage_batch (scope_id, from_us);
