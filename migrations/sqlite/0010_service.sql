-- The service's door: tokens, who changed what, what leaves for others, repeated requests, imports that run.

-- What a bearer token may do. The secret itself is not stored: secret_hash is its SHA-256, and it has 256 random bits.
-- scopes: the permissions to which the role is narrowed, separated by spaces; empty: not narrowed.
CREATE TABLE api_token (
    token_id TEXT NOT NULL,
    secret_hash BLOB NOT NULL,
    name TEXT NOT NULL,
    role TEXT NOT NULL,
    tenant_id INTEGER,
    scopes TEXT NOT NULL,
    created_us INTEGER NOT NULL,
    created_by TEXT NOT NULL,
    expires_us INTEGER,
    revoked_us INTEGER,
    revoked_by TEXT,
    last_used_us INTEGER,
    CONSTRAINT api_token_pk PRIMARY KEY (token_id),
    CONSTRAINT api_token_tenant_fk FOREIGN KEY (tenant_id) REFERENCES tenant (tenant_id),
    CONSTRAINT api_token_role_word CHECK (role IN ('admin', 'finance', 'tenant', 'enforcer', 'agent')),
    CONSTRAINT api_token_tenant_has_a_tenant CHECK (role <> 'tenant' OR tenant_id > 0),
    CONSTRAINT api_token_others_have_none CHECK (role = 'tenant' OR tenant_id IS NULL),
    CONSTRAINT api_token_hash_is_32_bytes CHECK (length(secret_hash) = 32)
) STRICT, WITHOUT ROWID;

-- Who changed what: written in the transaction that changed it, never changed or removed. token_id: the credential, or
-- empty for a command beside the database. before_json and after_json: the subject as the API shows it; empty: none.
CREATE TABLE audit (
    audit_id INTEGER NOT NULL,
    at_us INTEGER NOT NULL,
    actor TEXT NOT NULL,
    token_id TEXT NOT NULL,
    request_id TEXT NOT NULL,
    action TEXT NOT NULL,
    subject TEXT NOT NULL,
    before_json TEXT,
    after_json TEXT,
    CONSTRAINT audit_pk PRIMARY KEY (audit_id)
) STRICT;

CREATE TRIGGER audit_no_update BEFORE UPDATE ON audit BEGIN SELECT RAISE(ABORT, 'audit is only ever added to'); END;
CREATE TRIGGER audit_no_delete BEFORE DELETE ON audit BEGIN SELECT RAISE(ABORT, 'audit is only ever added to'); END;

-- What is to leave for others, written in the transaction of which it is an effect; sent at least once. Who receives
-- it tells repeats apart by its key.
CREATE TABLE outbox (
    outbox_id INTEGER NOT NULL,
    kind TEXT NOT NULL,
    message_key TEXT NOT NULL,
    payload TEXT NOT NULL,
    created_us INTEGER NOT NULL,
    due_us INTEGER NOT NULL,
    attempts INTEGER NOT NULL,
    sent_us INTEGER,
    failure TEXT,
    CONSTRAINT outbox_pk PRIMARY KEY (outbox_id),
    CONSTRAINT outbox_message_once UNIQUE (kind, message_key),
    CONSTRAINT outbox_kind_word CHECK (kind IN ('event')),
    CONSTRAINT outbox_attempts_is_natural CHECK (attempts >= 0)
) STRICT;
CREATE INDEX outbox_due ON outbox (due_us) WHERE sent_us IS NULL;

-- What a request with an idempotency key did, so that its repeat is answered and not done again. asker: the token.
-- fingerprint: SHA-256 of method, path and body.
CREATE TABLE idempotency (
    asker TEXT NOT NULL,
    request_key TEXT NOT NULL,
    fingerprint BLOB NOT NULL,
    outcome TEXT NOT NULL,
    created_us INTEGER NOT NULL,
    CONSTRAINT idempotency_pk PRIMARY KEY (asker, request_key),
    CONSTRAINT idempotency_fingerprint_is_32_bytes CHECK (length(fingerprint) = 32)
) STRICT, WITHOUT ROWID;
CREATE INDEX idempotency_age ON idempotency (created_us);

-- Imports that were uploaded. beat_us: when the process that runs it last said so.
CREATE TABLE import_run (
    run_id TEXT NOT NULL,
    source TEXT NOT NULL,
    rank TEXT NOT NULL,
    state TEXT NOT NULL,
    started_us INTEGER NOT NULL,
    started_by TEXT NOT NULL,
    beat_us INTEGER NOT NULL,
    finished_us INTEGER,
    batches INTEGER NOT NULL,
    answered INTEGER NOT NULL,
    outcome TEXT,
    failure TEXT,
    CONSTRAINT import_run_pk PRIMARY KEY (run_id),
    CONSTRAINT import_run_state_word CHECK (state IN ('running', 'finished', 'failed')),
    CONSTRAINT import_run_rank_word CHECK (rank IN ('hypervisor', 'scheduler', 'scrape', 'import'))
) STRICT, WITHOUT ROWID;
CREATE INDEX import_run_by_start ON import_run (started_us, run_id);

-- Lines that an uploaded import did not take, in the order of its files.
CREATE TABLE import_refusal (
    run_id TEXT NOT NULL,
    ordinal INTEGER NOT NULL,
    file TEXT NOT NULL,
    line INTEGER NOT NULL,
    reason TEXT NOT NULL,
    CONSTRAINT import_refusal_pk PRIMARY KEY (run_id, ordinal),
    CONSTRAINT import_refusal_run_fk FOREIGN KEY (run_id) REFERENCES import_run (run_id)
) STRICT, WITHOUT ROWID;

-- Rules are edited: which edit this is, when and by whom.
ALTER TABLE mapping_rule ADD COLUMN revision INTEGER NOT NULL DEFAULT 1;
ALTER TABLE mapping_rule ADD COLUMN changed_us INTEGER NOT NULL DEFAULT 0;
ALTER TABLE mapping_rule ADD COLUMN changed_by TEXT NOT NULL DEFAULT '';
