//! Tenants and their projects.

use std::collections::{BTreeMap, BTreeSet};

use super::{PlatformScope, ReadTx, Scope, StoreError, WriteTx};
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
    /// Both origins.
    pub const ALL: [Self; 2] = [Self::Operator, Self::Import];

    /// The word.
    #[must_use]
    pub const fn word(self) -> &'static str {
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

/// Makes a tenant.
///
/// # Errors
/// [`StoreError::Conflict`] when its name is taken.
pub async fn add_tenant(
    _scope: &PlatformScope,
    tx: &WriteTx,
    name: &Name,
    origin: Origin,
    now: Instant,
) -> Result<(), StoreError> {
    let row = vec![name.as_str().into(), origin.word().into(), now.micros().into()];
    tx.insert("tenant", &["name", "origin", "created_us"], vec![row], "").await.map(|_| ())
}

/// Makes a project of a tenant.
///
/// # Errors
/// [`StoreError::Conflict`] when the tenant has one of that name.
pub async fn add_project(
    _scope: &PlatformScope,
    tx: &WriteTx,
    tenant: TenantId,
    name: &Name,
    origin: Origin,
    now: Instant,
) -> Result<(), StoreError> {
    let (name, origin) = (name.as_str().into(), origin.word().into());
    let row = vec![tenant.stored().into(), name, origin, now.micros().into()];
    tx.insert("project", &["tenant_id", "name", "origin", "created_us"], vec![row], "").await.map(|_| ())
}

/// A tenant, or one of its projects, as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named {
    /// Its name.
    pub name: Name,
    /// Where it came from.
    pub origin: Origin,
    /// Since when it is known.
    pub created: Instant,
}

fn named_of(row: &super::unit::Row, at: usize) -> Result<Named, StoreError> {
    let word: String = row.get(at + 1)?;
    let origin = Origin::ALL.into_iter().find(|origin| origin.word() == word);
    Ok(Named {
        name: super::fleet::name_of(&row.get::<String>(at)?)?,
        origin: origin.ok_or_else(|| StoreError::corrupt("a tenant's origin", word))?,
        created: Instant::from_micros(row.get(at + 2)?),
    })
}

/// Tenants whose name comes after one, at most so many: of those that the scope sees. The platform is not among them.
///
/// # Errors
/// [`StoreError`].
pub async fn list(scope: &Scope, tx: &ReadTx, after: &str, limit: i64) -> Result<Vec<Named>, StoreError> {
    let (only, mut values) = only_tenant(scope, 3);
    let sql = format!(
        "SELECT name, origin, created_us FROM tenant WHERE tenant_id > 0 AND name > $1{only} ORDER BY name LIMIT $2"
    );
    let mut all = vec![after.into(), limit.into()];
    all.append(&mut values);
    tx.all(&sql, all).await?.iter().map(|row| named_of(row, 0)).collect()
}

/// A tenant that the scope sees, by name: its number and what is stored of it.
///
/// # Errors
/// [`StoreError`].
pub async fn find(scope: &Scope, tx: &ReadTx, name: &Name) -> Result<Option<(TenantId, Named)>, StoreError> {
    let (only, mut values) = only_tenant(scope, 2);
    let sql = format!(
        "SELECT tenant_id, name, origin, created_us FROM tenant WHERE tenant_id > 0 AND name = $1{only}"
    );
    let mut all = vec![name.as_str().into()];
    all.append(&mut values);
    let row = tx.one(&sql, all).await?;
    row.map(|row| Ok((TenantId::from_stored(row.get(0)?), named_of(&row, 1)?))).transpose()
}

/// Projects of a tenant that the scope sees whose name comes after one, at most so many.
///
/// # Errors
/// [`StoreError`].
pub async fn projects(
    scope: &Scope,
    tx: &ReadTx,
    tenant: TenantId,
    after: &str,
    limit: i64,
) -> Result<Vec<Named>, StoreError> {
    let (only, mut values) = only_tenant(scope, 4);
    let sql = format!(
        "SELECT name, origin, created_us FROM project WHERE tenant_id = $1 AND name > $2{only} ORDER BY name LIMIT $3"
    );
    let mut all = vec![tenant.stored().into(), after.into(), limit.into()];
    all.append(&mut values);
    tx.all(&sql, all).await?.iter().map(|row| named_of(row, 0)).collect()
}

/// A project of a tenant that the scope sees.
///
/// # Errors
/// [`StoreError`].
pub async fn project(
    scope: &Scope,
    tx: &ReadTx,
    tenant: TenantId,
    name: &Name,
) -> Result<Option<Named>, StoreError> {
    let (only, mut values) = only_tenant(scope, 3);
    let sql =
        format!("SELECT name, origin, created_us FROM project WHERE tenant_id = $1 AND name = $2{only}");
    let mut all = vec![tenant.stored().into(), name.as_str().into()];
    all.append(&mut values);
    tx.one(&sql, all).await?.as_ref().map(|row| named_of(row, 0)).transpose()
}

/// The condition that keeps a statement to the scope's tenant, with its value as parameter `number`.
fn only_tenant(scope: &Scope, number: usize) -> (String, Vec<sea_orm::Value>) {
    match scope.only() {
        Some(tenant) => (format!(" AND tenant_id = ${number}"), vec![tenant.into()]),
        None => (String::new(), vec![]),
    }
}
