-- Agents: who they are, the keys that they sign with, the tokens by which they come, and what they lost.

-- A single-use token by which a node's agent is enrolled. pattern: the nodes that may use it, `*` for any letters.
-- since_us: the earliest instant at which what it finds may have come into service. replaces: it may take the place of
-- an agent that a node has. used_key: the key that used it; the same key is answered alike again.
CREATE TABLE enrolment_token (
    token_id TEXT NOT NULL,
    secret_hash BYTEA NOT NULL,
    pattern TEXT NOT NULL,
    since_us BIGINT NOT NULL,
    replaces BIGINT NOT NULL,
    created_us BIGINT NOT NULL,
    created_by TEXT NOT NULL,
    expires_us BIGINT NOT NULL,
    used_us BIGINT,
    used_key TEXT,
    CONSTRAINT enrolment_token_pk PRIMARY KEY (token_id),
    CONSTRAINT enrolment_token_hash_is_32_bytes CHECK (length(secret_hash) = 32),
    CONSTRAINT enrolment_token_replaces_is_a_flag CHECK (replaces IN (0, 1)),
    CONSTRAINT enrolment_token_use_has_a_key CHECK (used_us IS NULL OR used_key IS NOT NULL)
);
ALTER TABLE enrolment_token ENABLE ROW LEVEL SECURITY;
ALTER TABLE enrolment_token FORCE ROW LEVEL SECURITY;
CREATE POLICY enrolment_token_scope ON enrolment_token USING (
        (SELECT current_setting('fatia.platform', true)) = 'on'
    ) WITH CHECK (
        (SELECT current_setting('fatia.platform', true)) = 'on'
    );
GRANT SELECT, INSERT, UPDATE ON enrolment_token TO fatia_app;
GRANT SELECT ON enrolment_token TO fatia_backup;

-- An agent speaks for one node. inventory: the newest that it sent, as JSON; inventory_counter: its counter.
CREATE TABLE agent (
    agent_id TEXT NOT NULL,
    scope_id BIGINT NOT NULL,
    since_us BIGINT NOT NULL,
    version TEXT NOT NULL,
    enrolled_us BIGINT NOT NULL,
    enrolled_by TEXT NOT NULL,
    revoked_us BIGINT,
    revoked_by TEXT,
    inventory TEXT,
    inventory_counter BIGINT NOT NULL,
    inventory_us BIGINT,
    CONSTRAINT agent_pk PRIMARY KEY (agent_id),
    CONSTRAINT agent_scope_fk FOREIGN KEY (scope_id) REFERENCES scope (scope_id),
    CONSTRAINT agent_counter_is_natural CHECK (inventory_counter >= 0)
);
CREATE INDEX agent_by_scope ON agent (scope_id);
ALTER TABLE agent ENABLE ROW LEVEL SECURITY;
ALTER TABLE agent FORCE ROW LEVEL SECURITY;
CREATE POLICY agent_scope ON agent USING (
        (SELECT current_setting('fatia.platform', true)) = 'on'
    ) WITH CHECK (
        (SELECT current_setting('fatia.platform', true)) = 'on'
    );
GRANT SELECT, INSERT, UPDATE ON agent TO fatia_app;
GRANT SELECT ON agent TO fatia_backup;

-- Keys are kept for ever: what they signed is.
CREATE TABLE agent_key (
    key_id TEXT NOT NULL,
    agent_id TEXT NOT NULL,
    public_key BYTEA NOT NULL,
    from_us BIGINT NOT NULL,
    to_us BIGINT,
    CONSTRAINT agent_key_pk PRIMARY KEY (key_id),
    CONSTRAINT agent_key_agent_fk FOREIGN KEY (agent_id) REFERENCES agent (agent_id),
    CONSTRAINT agent_key_is_32_bytes CHECK (length(public_key) = 32)
);
CREATE INDEX agent_key_by_agent ON agent_key (agent_id);
ALTER TABLE agent_key ENABLE ROW LEVEL SECURITY;
ALTER TABLE agent_key FORCE ROW LEVEL SECURITY;
CREATE POLICY agent_key_scope ON agent_key USING (
        (SELECT current_setting('fatia.platform', true)) = 'on'
    ) WITH CHECK (
        (SELECT current_setting('fatia.platform', true)) = 'on'
    );
GRANT SELECT, INSERT, UPDATE ON agent_key TO fatia_app;
GRANT SELECT ON agent_key TO fatia_backup;

-- Numbers of a stream that will never come: what its sender lost, and said so.
CREATE TABLE usage_gap (
    scope_id BIGINT NOT NULL,
    stream_id TEXT NOT NULL,
    from_sequence BIGINT NOT NULL,
    to_sequence BIGINT NOT NULL,
    received_us BIGINT NOT NULL,
    from_us BIGINT NOT NULL,
    to_us BIGINT NOT NULL,
    reason TEXT NOT NULL,
    signature TEXT NOT NULL,
    CONSTRAINT usage_gap_pk PRIMARY KEY (scope_id, stream_id, from_sequence),
    CONSTRAINT usage_gap_ends_after_start CHECK (to_us >= from_us),
    CONSTRAINT usage_gap_is_not_empty CHECK (to_sequence >= from_sequence AND from_sequence > 0)
);
ALTER TABLE usage_gap ENABLE ROW LEVEL SECURITY;
ALTER TABLE usage_gap FORCE ROW LEVEL SECURITY;
CREATE POLICY usage_gap_scope ON usage_gap USING (
        (SELECT current_setting('fatia.platform', true)) = 'on'
    ) WITH CHECK (
        (SELECT current_setting('fatia.platform', true)) = 'on'
    );
GRANT SELECT, INSERT ON usage_gap TO fatia_app;
GRANT SELECT ON usage_gap TO fatia_backup;

-- When something came by a stream last, until when it spoke, and by how much its sender's wall clock was off.
ALTER TABLE usage_stream ADD COLUMN seen_us BIGINT;
ALTER TABLE usage_stream ADD COLUMN edge_us BIGINT;
ALTER TABLE usage_stream ADD COLUMN offset_us BIGINT;
CREATE INDEX usage_stream_sender ON usage_stream (sender);

-- By which a board is known where its UUID does not show: a card that is given to a VM.
ALTER TABLE device ADD COLUMN serial TEXT;

ALTER TABLE finding DROP CONSTRAINT finding_kind_word;
ALTER TABLE finding ADD CONSTRAINT finding_kind_word CHECK (kind IN ('unknown_profile', 'illegal_layout', 'lost_parent', 'layout_assumed', 'pool_overheld', 'hour_too_large', 'source_conflict', 'batch_set_aside', 'coverage_lost', 'usage_gap', 'rollback_or_clone', 'clock_skew', 'device_contested'));

-- Bodies come compressed: the server need not try again.
ALTER TABLE usage_batch ALTER COLUMN body SET STORAGE EXTERNAL;
