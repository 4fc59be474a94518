-- Who pays, and what this installation is.

-- The one row that says where days begin, in which currency the books are, and with which key imports are signed.
-- zone and currency may change until fixed_us is set, which the first accepted batch does.
CREATE TABLE installation (
    installation_id INTEGER NOT NULL,
    zone TEXT NOT NULL,
    zone_database TEXT NOT NULL,
    currency TEXT NOT NULL,
    signing_seed BLOB NOT NULL,
    public_key BLOB NOT NULL,
    created_us INTEGER NOT NULL,
    fixed_us INTEGER,
    CONSTRAINT installation_pk PRIMARY KEY (installation_id),
    CONSTRAINT installation_is_one CHECK (installation_id = 1),
    CONSTRAINT installation_seed_is_32_bytes CHECK (length(signing_seed) = 32),
    CONSTRAINT installation_key_is_32_bytes CHECK (length(public_key) = 32)
) STRICT, WITHOUT ROWID;

-- Tenant 0 is the platform: parts without holder, rounding, and what no rule maps.
CREATE TABLE tenant (
    tenant_id INTEGER NOT NULL,
    name TEXT NOT NULL,
    origin TEXT NOT NULL,
    created_us INTEGER NOT NULL,
    CONSTRAINT tenant_pk PRIMARY KEY (tenant_id),
    CONSTRAINT tenant_name_key UNIQUE (name),
    CONSTRAINT tenant_origin_word CHECK (origin IN ('builtin', 'operator', 'import')),
    CONSTRAINT tenant_id_is_natural CHECK (tenant_id >= 0)
) STRICT;

-- A tenant's cost centre.
CREATE TABLE project (
    tenant_id INTEGER NOT NULL,
    name TEXT NOT NULL,
    origin TEXT NOT NULL,
    created_us INTEGER NOT NULL,
    CONSTRAINT project_pk PRIMARY KEY (tenant_id, name),
    CONSTRAINT project_tenant_fk FOREIGN KEY (tenant_id) REFERENCES tenant (tenant_id),
    CONSTRAINT project_origin_word CHECK (origin IN ('builtin', 'operator', 'import'))
) STRICT, WITHOUT ROWID;

-- From evidence to tenant and project; tried from the smallest ordinal up. conditions is JSON, never queried.
CREATE TABLE mapping_rule (
    rule_id INTEGER NOT NULL,
    ordinal INTEGER NOT NULL,
    from_us INTEGER NOT NULL,
    to_us INTEGER,
    conditions TEXT NOT NULL,
    tenant_id INTEGER NOT NULL,
    project TEXT NOT NULL,
    CONSTRAINT mapping_rule_pk PRIMARY KEY (rule_id),
    CONSTRAINT mapping_rule_tenant_fk FOREIGN KEY (tenant_id) REFERENCES tenant (tenant_id),
    CONSTRAINT mapping_rule_ends_after_start CHECK (to_us IS NULL OR to_us > from_us)
) STRICT;

-- What someone should know. Written in the transaction that saw it; the same finding is written once.
-- scope_id: the node or pool that it is about; 0: none.
CREATE TABLE finding (
    kind TEXT NOT NULL,
    scope_id INTEGER NOT NULL,
    subject TEXT NOT NULL,
    since_us INTEGER NOT NULL,
    until_us INTEGER,
    detail TEXT NOT NULL,
    written_us INTEGER NOT NULL,
    CONSTRAINT finding_pk PRIMARY KEY (kind, scope_id, subject, since_us),
    CONSTRAINT finding_kind_word CHECK (kind IN ('unknown_profile', 'source_conflict', 'batch_set_aside', 'coverage_lost'))
) STRICT, WITHOUT ROWID;

INSERT INTO tenant (tenant_id, name, origin, created_us) VALUES (0, 'platform', 'builtin', 0);
