//! Mapping rules as stored.

use serde::{Deserialize, Serialize};

use super::fleet::{name_of, span_of, stored_end};
use super::{PlatformScope, ReadTx, StoreError, WriteTx};
use crate::domain::ids::TenantId;
use crate::domain::mapping::{Comparison, Condition, MappingRules, Rule};
use crate::domain::usage::EvidenceField;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredCondition {
    field: String,
    comparison: String,
    value: String,
}

fn corrupt(error: impl std::fmt::Display) -> StoreError {
    StoreError::corrupt("a mapping rule", error)
}

/// All rules.
///
/// # Errors
/// [`StoreError`].
pub async fn rules(_scope: &PlatformScope, tx: &ReadTx) -> Result<MappingRules, StoreError> {
    let sql = "SELECT r.ordinal, r.from_us, r.to_us, r.conditions, t.name, r.project \
               FROM mapping_rule r JOIN tenant t ON t.tenant_id = r.tenant_id";
    let rows = tx.all(sql, vec![]).await?;
    let rules = rows
        .iter()
        .map(|row| {
            let stored: Vec<StoredCondition> =
                serde_json::from_str(&row.get::<String>(3)?).map_err(corrupt)?;
            let conditions = stored
                .iter()
                .map(|each| {
                    Ok(Condition {
                        field: EvidenceField::parse(&each.field).map_err(corrupt)?,
                        comparison: Comparison::parse(&each.comparison).map_err(corrupt)?,
                        value: name_of(&each.value)?,
                    })
                })
                .collect::<Result<_, StoreError>>()?;
            Ok(Rule {
                order: row.get(0)?,
                effective: span_of(row.get(1)?, row.get(2)?),
                conditions,
                tenant: name_of(&row.get::<String>(4)?)?,
                project: name_of(&row.get::<String>(5)?)?,
            })
        })
        .collect::<Result<Vec<_>, StoreError>>()?;
    Ok(MappingRules::new(rules))
}

/// Adds a rule for a tenant that exists. The caller marks what it changes.
///
/// # Errors
/// [`StoreError`].
pub async fn add(
    _scope: &PlatformScope,
    tx: &WriteTx,
    rule: &Rule,
    tenant: TenantId,
) -> Result<(), StoreError> {
    let conditions: Vec<StoredCondition> = rule
        .conditions
        .iter()
        .map(|each| StoredCondition {
            field: each.field.word().to_owned(),
            comparison: each.comparison.word().to_owned(),
            value: each.value.to_string(),
        })
        .collect();
    let sql = "INSERT INTO mapping_rule (ordinal, from_us, to_us, conditions, tenant_id, project) \
               VALUES ($1, $2, $3, $4, $5, $6)";
    let values = vec![
        rule.order.into(),
        rule.effective.start().micros().into(),
        stored_end(rule.effective.end()).into(),
        serde_json::to_string(&conditions).map_err(corrupt)?.into(),
        tenant.stored().into(),
        rule.project.as_str().into(),
    ];
    tx.run(sql, values).await.map(|_| ())
}
