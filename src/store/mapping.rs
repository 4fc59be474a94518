//! Mapping rules as stored.

use serde::{Deserialize, Serialize};

use super::fleet::{name_of, span_of, stored_end};
use super::unit::Row;
use super::{PlatformScope, ReadTx, StoreError, WriteTx};
use crate::domain::ids::TenantId;
use crate::domain::mapping::{Comparison, Condition, MappingRules, Rule};
use crate::domain::units::Instant;
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

/// A rule as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredRule {
    /// Its number.
    pub id: i64,
    /// Which edit of it this is, from 1.
    pub revision: i64,
    /// When it was edited last; 0 for rules from before edits were noted.
    pub changed: Instant,
    /// By whom.
    pub changed_by: String,
    /// What it says.
    pub rule: Rule,
}

const COLUMNS: &str = "r.ordinal, r.from_us, r.to_us, r.conditions, t.name, r.project, r.rule_id, r.revision, \
                       r.changed_us, r.changed_by";
const FROM: &str = "FROM mapping_rule r JOIN tenant t ON t.tenant_id = r.tenant_id";

fn rule_of(row: &Row) -> Result<StoredRule, StoreError> {
    let stored: Vec<StoredCondition> = serde_json::from_str(&row.get::<String>(3)?).map_err(corrupt)?;
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
    let rule = Rule {
        order: row.get(0)?,
        effective: span_of(row.get(1)?, row.get(2)?),
        conditions,
        tenant: name_of(&row.get::<String>(4)?)?,
        project: name_of(&row.get::<String>(5)?)?,
    };
    let (id, revision) = (row.get(6)?, row.get(7)?);
    let changed = Instant::from_micros(row.get(8)?);
    Ok(StoredRule { id, revision, changed, changed_by: row.get(9)?, rule })
}

/// All rules.
///
/// # Errors
/// [`StoreError`].
pub async fn rules(_scope: &PlatformScope, tx: &ReadTx) -> Result<MappingRules, StoreError> {
    let rows = tx.all(&format!("SELECT {COLUMNS} {FROM}"), vec![]).await?;
    let rules = rows.iter().map(|row| Ok(rule_of(row)?.rule)).collect::<Result<_, StoreError>>()?;
    Ok(MappingRules::new(rules))
}

/// Rules in the order in which they are tried, after one, at most so many.
///
/// # Errors
/// [`StoreError`].
pub async fn list(
    _scope: &PlatformScope,
    tx: &ReadTx,
    (order, id): (i64, i64),
    limit: i64,
) -> Result<Vec<StoredRule>, StoreError> {
    let sql = format!(
        "SELECT {COLUMNS} {FROM} WHERE r.ordinal > $1 OR (r.ordinal = $1 AND r.rule_id > $2) \
         ORDER BY r.ordinal, r.rule_id LIMIT $3"
    );
    tx.all(&sql, vec![order.into(), id.into(), limit.into()]).await?.iter().map(rule_of).collect()
}

/// One rule.
///
/// # Errors
/// [`StoreError`].
pub async fn find(_scope: &PlatformScope, tx: &ReadTx, id: i64) -> Result<Option<StoredRule>, StoreError> {
    let sql = format!("SELECT {COLUMNS} {FROM} WHERE r.rule_id = $1");
    tx.one(&sql, vec![id.into()]).await?.as_ref().map(rule_of).transpose()
}

fn conditions_text(rule: &Rule) -> Result<String, StoreError> {
    let conditions: Vec<StoredCondition> = rule
        .conditions
        .iter()
        .map(|each| StoredCondition {
            field: each.field.word().to_owned(),
            comparison: each.comparison.word().to_owned(),
            value: each.value.to_string(),
        })
        .collect();
    serde_json::to_string(&conditions).map_err(corrupt)
}

/// Adds a rule for a tenant that exists; returns its number. The caller marks what it changes.
///
/// # Errors
/// [`StoreError`].
pub async fn add(
    _scope: &PlatformScope,
    tx: &WriteTx,
    rule: &Rule,
    tenant: TenantId,
    (by, now): (&str, Instant),
) -> Result<i64, StoreError> {
    let sql = "INSERT INTO mapping_rule (ordinal, from_us, to_us, conditions, tenant_id, project, changed_by, changed_us) \
               VALUES ($1, $2, $3, $4, $5, $6, $7, $8) RETURNING rule_id";
    let values = vec![
        rule.order.into(),
        rule.effective.start().micros().into(),
        stored_end(rule.effective.end()).into(),
        conditions_text(rule)?.into(),
        tenant.stored().into(),
        rule.project.as_str().into(),
        by.into(),
        now.micros().into(),
    ];
    match tx.one(sql, values).await? {
        Some(row) => row.get(0),
        None => Err(corrupt("its number is not told")),
    }
}

/// Puts a rule in place of what one says; its revision grows. The caller marks what it changes.
///
/// # Errors
/// [`StoreError`].
pub async fn replace(
    _scope: &PlatformScope,
    tx: &WriteTx,
    id: i64,
    rule: &Rule,
    tenant: TenantId,
    (by, now): (&str, Instant),
) -> Result<(), StoreError> {
    let sql = "UPDATE mapping_rule SET ordinal = $2, from_us = $3, to_us = $4, conditions = $5, tenant_id = $6, \
               project = $7, changed_by = $8, changed_us = $9, revision = revision + 1 WHERE rule_id = $1";
    let values = vec![
        id.into(),
        rule.order.into(),
        rule.effective.start().micros().into(),
        stored_end(rule.effective.end()).into(),
        conditions_text(rule)?.into(),
        tenant.stored().into(),
        rule.project.as_str().into(),
        by.into(),
        now.micros().into(),
    ];
    tx.run(sql, values).await.map(|_| ())
}

/// Removes a rule. The caller marks what it changes.
///
/// # Errors
/// [`StoreError`].
pub async fn remove(_scope: &PlatformScope, tx: &WriteTx, id: i64) -> Result<(), StoreError> {
    tx.run("DELETE FROM mapping_rule WHERE rule_id = $1", vec![id.into()]).await.map(|_| ())
}
