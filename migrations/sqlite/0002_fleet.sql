-- What there is to hold.

-- A node or a pool: what a batch speaks for. bucket is a stable hash of the name, by which work is leased.
CREATE TABLE scope (
    scope_id INTEGER NOT NULL,
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    bucket INTEGER NOT NULL,
    created_us INTEGER NOT NULL,
    CONSTRAINT scope_pk PRIMARY KEY (scope_id),
    CONSTRAINT scope_name_key UNIQUE (kind, name),
    CONSTRAINT scope_kind_word CHECK (kind IN ('node', 'pool')),
    CONSTRAINT scope_bucket_range CHECK (bucket BETWEEN 0 AND 255)
) STRICT;

-- One physical board, known by its UUID.
CREATE TABLE device (
    device_id INTEGER NOT NULL,
    uuid TEXT NOT NULL,
    model TEXT NOT NULL,
    memory_mib INTEGER,
    created_us INTEGER NOT NULL,
    CONSTRAINT device_pk PRIMARY KEY (device_id),
    CONSTRAINT device_uuid_key UNIQUE (uuid),
    CONSTRAINT device_memory_is_positive CHECK (memory_mib > 0)
) STRICT;

-- In-service intervals: the right side of every identity. to_us is empty while the device is in service.
-- edge_us: until when the tick has asked for its hours. counted_to_us: until when the sums have counted it.
-- covered_to_us: the latest edge of coverage of holding.
CREATE TABLE device_service (
    device_id INTEGER NOT NULL,
    from_us INTEGER NOT NULL,
    to_us INTEGER,
    scope_id INTEGER NOT NULL,
    node_index INTEGER,
    edge_us INTEGER NOT NULL,
    counted_to_us INTEGER NOT NULL,
    covered_to_us INTEGER NOT NULL,
    CONSTRAINT device_service_pk PRIMARY KEY (device_id, from_us),
    CONSTRAINT device_service_device_fk FOREIGN KEY (device_id) REFERENCES device (device_id),
    CONSTRAINT device_service_scope_fk FOREIGN KEY (scope_id) REFERENCES scope (scope_id),
    CONSTRAINT device_service_ends_after_start CHECK (to_us IS NULL OR to_us > from_us)
) STRICT, WITHOUT ROWID;
CREATE INDEX device_service_scope ON device_service (scope_id, from_us);

-- What a device is declared to be in, over a span.
CREATE TABLE declared_state (
    device_id INTEGER NOT NULL,
    kind TEXT NOT NULL,
    from_us INTEGER NOT NULL,
    to_us INTEGER,
    CONSTRAINT declared_state_pk PRIMARY KEY (device_id, kind, from_us),
    CONSTRAINT declared_state_device_fk FOREIGN KEY (device_id) REFERENCES device (device_id),
    CONSTRAINT declared_state_kind_word CHECK (kind IN ('maintenance', 'unhealthy')),
    CONSTRAINT declared_state_ends_after_start CHECK (to_us IS NULL OR to_us > from_us)
) STRICT, WITHOUT ROWID;
