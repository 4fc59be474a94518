-- The highest level: what reports of whole months read.

-- The sums of tenant_day over a calendar month of the billing zone, which first_day begins. Replaced in the transaction
-- that replaces one of its days, so it is never behind them.
CREATE TABLE tenant_month (
    first_day BIGINT NOT NULL,
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
    metered BIGINT NOT NULL,
    energy_mj BIGINT NOT NULL,
    CONSTRAINT tenant_month_pk PRIMARY KEY (first_day, tenant_id, revision, project, mode, model, sku, state, cost_item, charge_item),
    CONSTRAINT tenant_month_mode_word CHECK (mode IN ('', 'passthrough', 'dedicated', 'mig', 'vgpu', 'mig_vgpu', 'time_slicing', 'mps', 'partition')),
    CONSTRAINT tenant_month_state_word CHECK (state IN ('used', 'held_unused', 'idle', 'stranded', 'unhealthy', 'maintenance', 'unknown', 'rounding')),
    CONSTRAINT tenant_month_revision_is_natural CHECK (revision >= 0)
);
ALTER TABLE tenant_month ENABLE ROW LEVEL SECURITY;
ALTER TABLE tenant_month FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant_month_scope ON tenant_month USING (
        tenant_id = (SELECT nullif(current_setting('fatia.tenant', true), '')::bigint)
        OR (SELECT current_setting('fatia.platform', true)) = 'on'
    ) WITH CHECK (
        tenant_id = (SELECT nullif(current_setting('fatia.tenant', true), '')::bigint)
        OR (SELECT current_setting('fatia.platform', true)) = 'on'
    );
GRANT SELECT, INSERT, UPDATE, DELETE ON tenant_month TO fatia_app;
GRANT SELECT ON tenant_month TO fatia_backup;

SELECT set_config('fatia.platform', 'on', true);
INSERT INTO tenant_month (first_day, tenant_id, revision, project, mode, model, sku, state, cost_item, charge_item, quantity, metered, energy_mj)
SELECT (date_trunc('month', date '1970-01-01' + day::integer)::date - date '1970-01-01')::bigint, tenant_id, revision, project, mode, model, sku, state, cost_item, charge_item, SUM(quantity)::bigint, SUM(metered)::bigint, SUM(energy_mj)::bigint
FROM tenant_day GROUP BY 1, tenant_id, revision, project, mode, model, sku, state, cost_item, charge_item;
