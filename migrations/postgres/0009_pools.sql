-- Pools: devices of one model that sources without device ids speak of together.

-- pool_id: the pool to which a device belongs while this interval lasts; empty: none.
ALTER TABLE device_service ADD COLUMN pool_id BIGINT;
ALTER TABLE device_service ADD CONSTRAINT device_service_pool_fk FOREIGN KEY (pool_id) REFERENCES scope (scope_id);
CREATE INDEX device_service_pool ON device_service (pool_id, from_us);
