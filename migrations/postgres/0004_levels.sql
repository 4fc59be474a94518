-- The derived levels. Each is recomputed whole and replaced; revision 0 is the open month's.

-- One scope and billing hour: segments and parts in one compressed body.
-- batches_hash: of the batches folded in. covered_ns: how much of it some source vouched for.
CREATE TABLE node_hour (
    scope_id BIGINT NOT NULL,
    hour_us BIGINT NOT NULL,
    revision BIGINT NOT NULL,
    body BYTEA NOT NULL,
    batches_hash BYTEA NOT NULL,
    covered_ns BIGINT NOT NULL,
    CONSTRAINT node_hour_pk PRIMARY KEY (scope_id, hour_us, revision),
    CONSTRAINT node_hour_revision_is_natural CHECK (revision >= 0)
) PARTITION BY RANGE (hour_us);
ALTER TABLE node_hour ENABLE ROW LEVEL SECURITY;
ALTER TABLE node_hour FORCE ROW LEVEL SECURITY;
CREATE POLICY node_hour_scope ON node_hour USING (
        (SELECT current_setting('fatia.platform', true)) = 'on'
    ) WITH CHECK (
        (SELECT current_setting('fatia.platform', true)) = 'on'
    );
GRANT SELECT, INSERT, UPDATE, DELETE ON node_hour TO fatia_app;
GRANT SELECT ON node_hour TO fatia_backup;

-- Sums of one scope and billing day, in millionths of a GPU-hour. day counts from 1970-01-01. Empty words: none.
CREATE TABLE node_day (
    scope_id BIGINT NOT NULL,
    day BIGINT NOT NULL,
    revision BIGINT NOT NULL,
    tenant_id BIGINT NOT NULL,
    project TEXT NOT NULL,
    workload TEXT NOT NULL,
    mode TEXT NOT NULL,
    model TEXT NOT NULL,
    sku TEXT NOT NULL,
    state TEXT NOT NULL,
    cost_item TEXT NOT NULL,
    charge_item TEXT NOT NULL,
    quantity BIGINT NOT NULL,
    CONSTRAINT node_day_pk PRIMARY KEY (scope_id, day, revision, tenant_id, project, workload, mode, model, sku, state, cost_item, charge_item),
    CONSTRAINT node_day_mode_word CHECK (mode IN ('', 'passthrough', 'dedicated', 'mig', 'vgpu', 'mig_vgpu', 'time_slicing', 'mps', 'partition')),
    CONSTRAINT node_day_state_word CHECK (state IN ('used', 'held_unused', 'idle', 'stranded', 'unhealthy', 'maintenance', 'unknown', 'rounding')),
    CONSTRAINT node_day_revision_is_natural CHECK (revision >= 0)
);
CREATE INDEX node_day_by_day ON node_day (day, tenant_id);
ALTER TABLE node_day ENABLE ROW LEVEL SECURITY;
ALTER TABLE node_day FORCE ROW LEVEL SECURITY;
CREATE POLICY node_day_scope ON node_day USING (
        tenant_id = (SELECT nullif(current_setting('fatia.tenant', true), '')::bigint)
        OR (SELECT current_setting('fatia.platform', true)) = 'on'
    ) WITH CHECK (
        tenant_id = (SELECT nullif(current_setting('fatia.tenant', true), '')::bigint)
        OR (SELECT current_setting('fatia.platform', true)) = 'on'
    );
GRANT SELECT, INSERT, UPDATE, DELETE ON node_day TO fatia_app;
GRANT SELECT ON node_day TO fatia_backup;

-- The same without scope and workload.
CREATE TABLE tenant_day (
    day BIGINT NOT NULL,
    tenant_id BIGINT NOT NULL,
    revision BIGINT NOT NULL,
    project TEXT NOT NULL,
    mode TEXT NOT NULL,
    model TEXT NOT NULL,
    sku TEXT NOT NULL,
    state TEXT NOT NULL,
    cost_item TEXT NOT NULL,
    charge_item TEXT NOT NULL,
    quantity BIGINT NOT NULL,
    CONSTRAINT tenant_day_pk PRIMARY KEY (day, tenant_id, revision, project, mode, model, sku, state, cost_item, charge_item),
    CONSTRAINT tenant_day_mode_word CHECK (mode IN ('', 'passthrough', 'dedicated', 'mig', 'vgpu', 'mig_vgpu', 'time_slicing', 'mps', 'partition')),
    CONSTRAINT tenant_day_state_word CHECK (state IN ('used', 'held_unused', 'idle', 'stranded', 'unhealthy', 'maintenance', 'unknown', 'rounding')),
    CONSTRAINT tenant_day_revision_is_natural CHECK (revision >= 0)
);
ALTER TABLE tenant_day ENABLE ROW LEVEL SECURITY;
ALTER TABLE tenant_day FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant_day_scope ON tenant_day USING (
        tenant_id = (SELECT nullif(current_setting('fatia.tenant', true), '')::bigint)
        OR (SELECT current_setting('fatia.platform', true)) = 'on'
    ) WITH CHECK (
        tenant_id = (SELECT nullif(current_setting('fatia.tenant', true), '')::bigint)
        OR (SELECT current_setting('fatia.platform', true)) = 'on'
    );
GRANT SELECT, INSERT, UPDATE, DELETE ON tenant_day TO fatia_app;
GRANT SELECT ON tenant_day TO fatia_backup;

-- What has to be derived anew, by scope and hour. A worker clears only the version that it read.
-- kind: fold (journal to segments), part (segments to parts), price (parts to sums; hour_us is the day's start).
CREATE TABLE dirty_node (
    bucket BIGINT NOT NULL,
    scope_id BIGINT NOT NULL,
    day BIGINT NOT NULL,
    kind TEXT NOT NULL,
    hour_us BIGINT NOT NULL,
    version BIGINT NOT NULL,
    CONSTRAINT dirty_node_pk PRIMARY KEY (bucket, scope_id, day, kind, hour_us),
    CONSTRAINT dirty_node_kind_word CHECK (kind IN ('fold', 'part', 'price'))
);
ALTER TABLE dirty_node ENABLE ROW LEVEL SECURITY;
ALTER TABLE dirty_node FORCE ROW LEVEL SECURITY;
CREATE POLICY dirty_node_scope ON dirty_node USING (
        (SELECT current_setting('fatia.platform', true)) = 'on'
    ) WITH CHECK (
        (SELECT current_setting('fatia.platform', true)) = 'on'
    );
GRANT SELECT, INSERT, UPDATE, DELETE ON dirty_node TO fatia_app;
GRANT SELECT ON dirty_node TO fatia_backup;

-- Which tenants' days have to be summed anew. bucket is a stable hash of the tenant's number.
CREATE TABLE dirty_tenant_day (
    bucket BIGINT NOT NULL,
    day BIGINT NOT NULL,
    tenant_id BIGINT NOT NULL,
    version BIGINT NOT NULL,
    CONSTRAINT dirty_tenant_day_pk PRIMARY KEY (bucket, day, tenant_id)
);
ALTER TABLE dirty_tenant_day ENABLE ROW LEVEL SECURITY;
ALTER TABLE dirty_tenant_day FORCE ROW LEVEL SECURITY;
CREATE POLICY dirty_tenant_day_scope ON dirty_tenant_day USING (
        (SELECT current_setting('fatia.platform', true)) = 'on'
    ) WITH CHECK (
        (SELECT current_setting('fatia.platform', true)) = 'on'
    );
GRANT SELECT, INSERT, UPDATE, DELETE ON dirty_tenant_day TO fatia_app;
GRANT SELECT ON dirty_tenant_day TO fatia_backup;

-- Who works on a bucket, until when. The epoch grows with each change of hands; each job's transaction
-- checks it again, so a worker that slept past its lease cannot write.
CREATE TABLE bucket_lease (
    bucket BIGINT NOT NULL,
    holder TEXT NOT NULL,
    epoch BIGINT NOT NULL,
    until_us BIGINT NOT NULL,
    CONSTRAINT bucket_lease_pk PRIMARY KEY (bucket),
    CONSTRAINT bucket_lease_range CHECK (bucket BETWEEN 0 AND 255)
);
ALTER TABLE bucket_lease ENABLE ROW LEVEL SECURITY;
ALTER TABLE bucket_lease FORCE ROW LEVEL SECURITY;
CREATE POLICY bucket_lease_scope ON bucket_lease USING (
        (SELECT current_setting('fatia.platform', true)) = 'on'
    ) WITH CHECK (
        (SELECT current_setting('fatia.platform', true)) = 'on'
    );
GRANT SELECT, INSERT, UPDATE, DELETE ON bucket_lease TO fatia_app;
GRANT SELECT ON bucket_lease TO fatia_backup;

SELECT set_config('fatia.platform', 'on', true);
INSERT INTO bucket_lease (bucket, holder, epoch, until_us) SELECT bucket, '', 0, 0 FROM generate_series(0, 255) AS bucket;

-- Makes a partition of one of the two partitioned parents where it is missing. The service may call it and may
-- make nothing else. Rights stay on the parents: a child with a grant of its own would leak every row.
CREATE FUNCTION fatia_ensure_partition(parent text, low bigint, high bigint) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE
    child text := parent || '_' || low;
BEGIN
    IF parent NOT IN ('usage_batch', 'node_hour') OR low >= high THEN
        RAISE EXCEPTION 'no partition of % from % to %', parent, low, high;
    END IF;
    -- Two callers may want the same one: the second waits, then finds it. It looks into pg_class with a fresh
    -- snapshot: a look-up by name would answer from the cache in which the table was missing.
    PERFORM pg_advisory_xact_lock(hashtextextended('fatia_ensure_partition', 0));
    IF EXISTS (SELECT FROM pg_class WHERE relname = child AND relnamespace = 'public'::regnamespace) THEN
        RETURN;
    END IF;
    EXECUTE format('CREATE TABLE public.%I PARTITION OF public.%I FOR VALUES FROM (%s) TO (%s)', child, parent, low, high);
    EXECUTE format('ALTER TABLE public.%I ENABLE ROW LEVEL SECURITY', child);
    EXECUTE format('ALTER TABLE public.%I FORCE ROW LEVEL SECURITY', child);
END
$$;
REVOKE ALL ON FUNCTION fatia_ensure_partition(text, bigint, bigint) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION fatia_ensure_partition(text, bigint, bigint) TO fatia_app;
