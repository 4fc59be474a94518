-- The derived levels. Each is recomputed whole and replaced; revision 0 is the open month's.

-- One scope and billing hour: segments and parts in one compressed body.
-- batches_hash: of the batches folded in. covered_ns: how much of it some source vouched for.
CREATE TABLE node_hour (
    scope_id INTEGER NOT NULL,
    hour_us INTEGER NOT NULL,
    revision INTEGER NOT NULL,
    body BLOB NOT NULL,
    batches_hash BLOB NOT NULL,
    covered_ns INTEGER NOT NULL,
    CONSTRAINT node_hour_pk PRIMARY KEY (scope_id, hour_us, revision),
    CONSTRAINT node_hour_revision_is_natural CHECK (revision >= 0)
) STRICT;

-- Sums of one scope and billing day, in millionths of a GPU-hour. day counts from 1970-01-01. Empty words: none.
CREATE TABLE node_day (
    scope_id INTEGER NOT NULL,
    day INTEGER NOT NULL,
    revision INTEGER NOT NULL,
    tenant_id INTEGER NOT NULL,
    project TEXT NOT NULL,
    workload TEXT NOT NULL,
    mode TEXT NOT NULL,
    model TEXT NOT NULL,
    sku TEXT NOT NULL,
    state TEXT NOT NULL,
    cost_item TEXT NOT NULL,
    charge_item TEXT NOT NULL,
    quantity INTEGER NOT NULL,
    CONSTRAINT node_day_pk PRIMARY KEY (scope_id, day, revision, tenant_id, project, workload, mode, model, sku, state, cost_item, charge_item),
    CONSTRAINT node_day_mode_word CHECK (mode IN ('', 'passthrough', 'dedicated', 'mig', 'vgpu', 'mig_vgpu', 'time_slicing', 'mps', 'partition')),
    CONSTRAINT node_day_state_word CHECK (state IN ('used', 'held_unused', 'idle', 'stranded', 'unhealthy', 'maintenance', 'unknown', 'rounding')),
    CONSTRAINT node_day_revision_is_natural CHECK (revision >= 0)
) STRICT, WITHOUT ROWID;
CREATE INDEX node_day_by_day ON node_day (day, tenant_id);

-- The same without scope and workload.
CREATE TABLE tenant_day (
    day INTEGER NOT NULL,
    tenant_id INTEGER NOT NULL,
    revision INTEGER NOT NULL,
    project TEXT NOT NULL,
    mode TEXT NOT NULL,
    model TEXT NOT NULL,
    sku TEXT NOT NULL,
    state TEXT NOT NULL,
    cost_item TEXT NOT NULL,
    charge_item TEXT NOT NULL,
    quantity INTEGER NOT NULL,
    CONSTRAINT tenant_day_pk PRIMARY KEY (day, tenant_id, revision, project, mode, model, sku, state, cost_item, charge_item),
    CONSTRAINT tenant_day_mode_word CHECK (mode IN ('', 'passthrough', 'dedicated', 'mig', 'vgpu', 'mig_vgpu', 'time_slicing', 'mps', 'partition')),
    CONSTRAINT tenant_day_state_word CHECK (state IN ('used', 'held_unused', 'idle', 'stranded', 'unhealthy', 'maintenance', 'unknown', 'rounding')),
    CONSTRAINT tenant_day_revision_is_natural CHECK (revision >= 0)
) STRICT, WITHOUT ROWID;

-- What has to be derived anew, by scope and hour. A worker clears only the version that it read.
-- kind: fold (journal to segments), part (segments to parts), price (parts to sums; hour_us is the day's start).
CREATE TABLE dirty_node (
    bucket INTEGER NOT NULL,
    scope_id INTEGER NOT NULL,
    day INTEGER NOT NULL,
    kind TEXT NOT NULL,
    hour_us INTEGER NOT NULL,
    version INTEGER NOT NULL,
    CONSTRAINT dirty_node_pk PRIMARY KEY (bucket, scope_id, day, kind, hour_us),
    CONSTRAINT dirty_node_kind_word CHECK (kind IN ('fold', 'part', 'price'))
) STRICT, WITHOUT ROWID;

-- Which tenants' days have to be summed anew. bucket is a stable hash of the tenant's number.
CREATE TABLE dirty_tenant_day (
    bucket INTEGER NOT NULL,
    day INTEGER NOT NULL,
    tenant_id INTEGER NOT NULL,
    version INTEGER NOT NULL,
    CONSTRAINT dirty_tenant_day_pk PRIMARY KEY (bucket, day, tenant_id)
) STRICT, WITHOUT ROWID;

-- Who works on a bucket, until when. The epoch grows with each change of hands; each job's transaction
-- checks it again, so a worker that slept past its lease cannot write.
CREATE TABLE bucket_lease (
    bucket INTEGER NOT NULL,
    holder TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    until_us INTEGER NOT NULL,
    CONSTRAINT bucket_lease_pk PRIMARY KEY (bucket),
    CONSTRAINT bucket_lease_range CHECK (bucket BETWEEN 0 AND 255)
) STRICT, WITHOUT ROWID;

INSERT INTO bucket_lease (bucket, holder, epoch, until_us)
WITH RECURSIVE every (bucket) AS (SELECT 0 UNION ALL SELECT bucket + 1 FROM every WHERE bucket < 255)
SELECT bucket, '', 0, 0 FROM every;
