-- What a node, a device or a slice is declared to be in, over a span.

-- device_id 0: every device of the node while in service there, also one that joins later; no foreign key
-- therefore. slice: its id as its source names it; empty: the whole device. to_us is empty until further notice.
-- Within a source all columns of the key together name a state.
CREATE TABLE state_declared (
    scope_id INTEGER NOT NULL,
    device_id INTEGER NOT NULL,
    slice TEXT NOT NULL,
    kind TEXT NOT NULL,
    from_us INTEGER NOT NULL,
    source TEXT NOT NULL,
    to_us INTEGER,
    declared_us INTEGER NOT NULL,
    declared_by TEXT NOT NULL,
    CONSTRAINT state_declared_pk PRIMARY KEY (scope_id, device_id, slice, kind, from_us, source),
    CONSTRAINT state_declared_scope_fk FOREIGN KEY (scope_id) REFERENCES scope (scope_id),
    CONSTRAINT state_declared_device_is_natural CHECK (device_id >= 0),
    CONSTRAINT state_declared_slice_has_a_device CHECK (slice = '' OR device_id > 0),
    CONSTRAINT state_declared_kind_word CHECK (kind IN ('maintenance', 'migration', 'unhealthy')),
    CONSTRAINT state_declared_migration_has_a_device CHECK (kind <> 'migration' OR device_id > 0),
    CONSTRAINT state_declared_ends_after_start CHECK (to_us IS NULL OR to_us > from_us)
) STRICT, WITHOUT ROWID;

-- The old states held wherever the device was. When and by whom they were declared was not kept.
INSERT INTO state_declared (scope_id, device_id, slice, kind, from_us, source, to_us, declared_us, declared_by)
SELECT DISTINCT s.scope_id, t.device_id, '', t.kind, t.from_us, 'operator', t.to_us, 0, ''
FROM declared_state t JOIN device_service s ON s.device_id = t.device_id;

DROP TABLE declared_state;
