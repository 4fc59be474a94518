//! Tenants and their projects.

use std::collections::{BTreeMap, BTreeSet};

use super::{PlatformScope, ReadTx, StoreError, WriteTx};
use crate::domain::ids::{Name, TenantId};
use crate::domain::units::Instant;

/// Where a tenant or project came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// Made by an operator.
    Operator,
    /// Made by the built-in import rule.
    Import,
}

impl Origin {
    fn word(self) -> &'static str {
        match self {
            Self::Operator => "operator",
            Self::Import => "import",
        }
    }
}

/// All tenants by name; the platform is not among them.
///
/// # Errors
/// [`StoreError`].
pub async fn numbers(_scope: &PlatformScope, tx: &ReadTx) -> Result<BTreeMap<Name, TenantId>, StoreError> {
    let rows = tx.all("SELECT name, tenant_id FROM tenant WHERE tenant_id > 0", vec![]).await?;
    rows.iter()
        .map(|row| {
            let name = Name::parse(&row.get::<String>(0)?)
                .map_err(|error| StoreError::corrupt("a tenant", error))?;
            Ok((name, TenantId::from_stored(row.get(1)?)))
        })
        .collect()
}

/// Makes the tenants and projects that are missing. A repeat changes nothing.
///
/// # Errors
/// [`StoreError`].
pub async fn ensure(
    scope: &PlatformScope,
    tx: &WriteTx,
    wanted: &BTreeSet<(Name, Name)>,
    origin: Origin,
    now: Instant,
) -> Result<(), StoreError> {
    if wanted.is_empty() {
        return Ok(());
    }
    let known = numbers(scope, tx).await?;
    let missing: BTreeSet<&Name> =
        wanted.iter().map(|(tenant, _)| tenant).filter(|tenant| !known.contains_key(*tenant)).collect();
    if !missing.is_empty() {
        let rows = missing
            .into_iter()
            .map(|tenant| vec![tenant.as_str().into(), origin.word().into(), now.micros().into()])
            .collect();
        tx.insert("tenant", &["name", "origin", "created_us"], rows, "ON CONFLICT (name) DO NOTHING").await?;
    }
    let known = numbers(scope, tx).await?;
    let rows = wanted
        .iter()
        .filter_map(|(tenant, project)| {
            let number = known.get(tenant)?.stored();
            Some(vec![number.into(), project.as_str().into(), origin.word().into(), now.micros().into()])
        })
        .collect();
    let columns = ["tenant_id", "name", "origin", "created_us"];
    tx.insert("project", &columns, rows, "ON CONFLICT (tenant_id, name) DO NOTHING").await.map(|_| ())
}
