-- The highest level: what reports of whole months read.

-- The sums of tenant_day over a calendar month of the billing zone, which first_day begins. Replaced in the transaction
-- that replaces one of its days, so it is never behind them.
CREATE TABLE tenant_month (
    first_day INTEGER NOT NULL,
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
    metered INTEGER NOT NULL,
    energy_mj INTEGER NOT NULL,
    CONSTRAINT tenant_month_pk PRIMARY KEY (first_day, tenant_id, revision, project, mode, model, sku, state, cost_item, charge_item),
    CONSTRAINT tenant_month_mode_word CHECK (mode IN ('', 'passthrough', 'dedicated', 'mig', 'vgpu', 'mig_vgpu', 'time_slicing', 'mps', 'partition')),
    CONSTRAINT tenant_month_state_word CHECK (state IN ('used', 'held_unused', 'idle', 'stranded', 'unhealthy', 'maintenance', 'unknown', 'rounding')),
    CONSTRAINT tenant_month_revision_is_natural CHECK (revision >= 0)
) STRICT, WITHOUT ROWID;

INSERT INTO tenant_month (first_day, tenant_id, revision, project, mode, model, sku, state, cost_item, charge_item, quantity, metered, energy_mj)
SELECT unixepoch(day * 86400, 'unixepoch', 'start of month') / 86400, tenant_id, revision, project, mode, model, sku, state, cost_item, charge_item, SUM(quantity), SUM(metered), SUM(energy_mj)
FROM tenant_day GROUP BY 1, tenant_id, revision, project, mode, model, sku, state, cost_item, charge_item;
