-- Agents: who they are, the keys that they sign with, the tokens by which they come, and what they lost.

-- A single-use token by which a node's agent is enrolled. pattern: the nodes that may use it, `*` for any letters.
-- since_us: the earliest instant at which what it finds may have come into service. replaces: it may take the place of
-- an agent that a node has. used_key: the key that used it; the same key is answered alike again.
CREATE TABLE enrolment_token (
    token_id TEXT NOT NULL,
    secret_hash BLOB NOT NULL,
    pattern TEXT NOT NULL,
    since_us INTEGER NOT NULL,
    replaces INTEGER NOT NULL,
    created_us INTEGER NOT NULL,
    created_by TEXT NOT NULL,
    expires_us INTEGER NOT NULL,
    used_us INTEGER,
    used_key TEXT,
    CONSTRAINT enrolment_token_pk PRIMARY KEY (token_id),
    CONSTRAINT enrolment_token_hash_is_32_bytes CHECK (length(secret_hash) = 32),
    CONSTRAINT enrolment_token_replaces_is_a_flag CHECK (replaces IN (0, 1)),
    CONSTRAINT enrolment_token_use_has_a_key CHECK (used_us IS NULL OR used_key IS NOT NULL)
) STRICT, WITHOUT ROWID;

-- An agent speaks for one node. inventory: the newest that it sent, as JSON; inventory_counter: its counter.
CREATE TABLE agent (
    agent_id TEXT NOT NULL,
    scope_id INTEGER NOT NULL,
    since_us INTEGER NOT NULL,
    version TEXT NOT NULL,
    enrolled_us INTEGER NOT NULL,
    enrolled_by TEXT NOT NULL,
    revoked_us INTEGER,
    revoked_by TEXT,
    inventory TEXT,
    inventory_counter INTEGER NOT NULL,
    inventory_us INTEGER,
    CONSTRAINT agent_pk PRIMARY KEY (agent_id),
    CONSTRAINT agent_scope_fk FOREIGN KEY (scope_id) REFERENCES scope (scope_id),
    CONSTRAINT agent_counter_is_natural CHECK (inventory_counter >= 0)
) STRICT, WITHOUT ROWID;
CREATE INDEX agent_by_scope ON agent (scope_id);

-- Keys are kept for ever: what they signed is.
CREATE TABLE agent_key (
    key_id TEXT NOT NULL,
    agent_id TEXT NOT NULL,
    public_key BLOB NOT NULL,
    from_us INTEGER NOT NULL,
    to_us INTEGER,
    CONSTRAINT agent_key_pk PRIMARY KEY (key_id),
    CONSTRAINT agent_key_agent_fk FOREIGN KEY (agent_id) REFERENCES agent (agent_id),
    CONSTRAINT agent_key_is_32_bytes CHECK (length(public_key) = 32)
) STRICT, WITHOUT ROWID;
CREATE INDEX agent_key_by_agent ON agent_key (agent_id);

-- Numbers of a stream that will never come: what its sender lost, and said so.
CREATE TABLE usage_gap (
    scope_id INTEGER NOT NULL,
    stream_id TEXT NOT NULL,
    from_sequence INTEGER NOT NULL,
    to_sequence INTEGER NOT NULL,
    received_us INTEGER NOT NULL,
    from_us INTEGER NOT NULL,
    to_us INTEGER NOT NULL,
    reason TEXT NOT NULL,
    signature TEXT NOT NULL,
    CONSTRAINT usage_gap_pk PRIMARY KEY (scope_id, stream_id, from_sequence),
    CONSTRAINT usage_gap_ends_after_start CHECK (to_us >= from_us),
    CONSTRAINT usage_gap_is_not_empty CHECK (to_sequence >= from_sequence AND from_sequence > 0)
) STRICT, WITHOUT ROWID;

-- When something came by a stream last, until when it spoke, and by how much its sender's wall clock was off.
ALTER TABLE usage_stream ADD COLUMN seen_us INTEGER;
ALTER TABLE usage_stream ADD COLUMN edge_us INTEGER;
ALTER TABLE usage_stream ADD COLUMN offset_us INTEGER;
CREATE INDEX usage_stream_sender ON usage_stream (sender);

-- By which a board is known where its UUID does not show: a card that is given to a VM.
ALTER TABLE device ADD COLUMN serial TEXT;

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
    CONSTRAINT finding_kind_word CHECK (kind IN ('unknown_profile', 'illegal_layout', 'lost_parent', 'layout_assumed', 'pool_overheld', 'hour_too_large', 'source_conflict', 'batch_set_aside', 'coverage_lost', 'usage_gap', 'rollback_or_clone', 'clock_skew', 'device_contested'))
) STRICT, WITHOUT ROWID;
INSERT INTO finding_next SELECT kind, scope_id, subject, since_us, until_us, detail, written_us FROM finding;
DROP TABLE finding;
ALTER TABLE finding_next RENAME TO finding;
