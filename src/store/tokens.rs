//! Tokens as stored: what a bearer may do, and the hash of the secret; never the secret.

use std::collections::BTreeSet;

use super::fleet::name_of;
use super::unit::Row;
use super::{PlatformScope, ReadTx, StoreError, WriteTx};
use crate::domain::access::{Grants, Permission, Role};
use crate::domain::ids::{Name, TenantId};
use crate::domain::units::Instant;

/// A token as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredToken {
    /// Its public id.
    pub id: String,
    /// SHA-256 of its secret.
    pub secret_hash: [u8; 32],
    /// What it is called.
    pub name: Name,
    /// What it may do.
    pub grants: Grants,
    /// Whose rows it sees, where its role belongs to a tenant: number and name.
    pub tenant: Option<(TenantId, Name)>,
    /// When it was made.
    pub created: Instant,
    /// By whom.
    pub created_by: String,
    /// From when on it is no longer taken.
    pub expires: Option<Instant>,
    /// When it was revoked.
    pub revoked: Option<Instant>,
    /// When it was last used, to within some minutes.
    pub last_used: Option<Instant>,
}

const COLUMNS: &str = "a.token_id, a.secret_hash, a.name, a.role, a.scopes, a.tenant_id, t.name, a.created_us, \
                       a.created_by, a.expires_us, a.revoked_us, a.last_used_us";
const FROM: &str = "FROM api_token a LEFT JOIN tenant t ON t.tenant_id = a.tenant_id";

fn corrupt(error: impl std::fmt::Display) -> StoreError {
    StoreError::corrupt("a token", error)
}

fn token_of(row: &Row) -> Result<StoredToken, StoreError> {
    let role = Role::parse(&row.get::<String>(3)?).map_err(corrupt)?;
    let scopes: String = row.get(4)?;
    let only = scopes.split_whitespace().map(Permission::parse).collect::<Result<BTreeSet<_>, _>>();
    let only = only.map_err(corrupt)?;
    let grants = if only.is_empty() {
        Grants::of(role)
    } else {
        // What a later version no longer grants to the role is not granted by an old token either.
        let only = only.into_iter().filter(|each| role.may(*each)).collect();
        Grants::narrowed(role, only).map_err(|beyond| corrupt(beyond.word()))?
    };
    let tenant = match (row.get::<Option<i64>>(5)?, row.get::<Option<String>>(6)?) {
        (Some(number), Some(name)) => Some((TenantId::from_stored(number), name_of(&name)?)),
        _ => None,
    };
    let instant = |at: usize| Ok::<_, StoreError>(row.get::<Option<i64>>(at)?.map(Instant::from_micros));
    Ok(StoredToken {
        id: row.get(0)?,
        secret_hash: <[u8; 32]>::try_from(row.get::<Vec<u8>>(1)?).map_err(|_| corrupt("its hash"))?,
        name: name_of(&row.get::<String>(2)?)?,
        grants,
        tenant,
        created: Instant::from_micros(row.get(7)?),
        created_by: row.get(8)?,
        expires: instant(9)?,
        revoked: instant(10)?,
        last_used: instant(11)?,
    })
}

/// One token.
///
/// # Errors
/// [`StoreError`].
pub async fn find(_scope: &PlatformScope, tx: &ReadTx, id: &str) -> Result<Option<StoredToken>, StoreError> {
    let sql = format!("SELECT {COLUMNS} {FROM} WHERE a.token_id = $1");
    tx.one(&sql, vec![id.into()]).await?.as_ref().map(token_of).transpose()
}

/// Tokens by their ids, after one, at most so many.
///
/// # Errors
/// [`StoreError`].
pub async fn list(
    _scope: &PlatformScope,
    tx: &ReadTx,
    after: &str,
    limit: i64,
) -> Result<Vec<StoredToken>, StoreError> {
    let sql = format!("SELECT {COLUMNS} {FROM} WHERE a.token_id > $1 ORDER BY a.token_id LIMIT $2");
    tx.all(&sql, vec![after.into(), limit.into()]).await?.iter().map(token_of).collect()
}

/// Stores a new token.
///
/// # Errors
/// [`StoreError::Conflict`] when its id is taken, or its role and tenant do not fit.
pub async fn add(_scope: &PlatformScope, tx: &WriteTx, token: &StoredToken) -> Result<(), StoreError> {
    let sql = "INSERT INTO api_token (token_id, secret_hash, name, role, tenant_id, scopes, created_us, created_by, \
               expires_us) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)";
    let scopes: Vec<&str> = token.grants.only().into_iter().flatten().map(|each| each.word()).collect();
    let values = vec![
        token.id.as_str().into(),
        token.secret_hash.to_vec().into(),
        token.name.as_str().into(),
        token.grants.role().word().into(),
        token.tenant.as_ref().map(|(number, _)| number.stored()).into(),
        scopes.join(" ").into(),
        token.created.micros().into(),
        token.created_by.as_str().into(),
        token.expires.map(Instant::micros).into(),
    ];
    tx.run(sql, values).await.map(|_| ())
}

/// Revokes a token; one that is revoked already stays as it is.
///
/// # Errors
/// [`StoreError`].
pub async fn revoke(
    _scope: &PlatformScope,
    tx: &WriteTx,
    id: &str,
    by: &str,
    now: Instant,
) -> Result<(), StoreError> {
    let sql =
        "UPDATE api_token SET revoked_us = $2, revoked_by = $3 WHERE token_id = $1 AND revoked_us IS NULL";
    tx.run(sql, vec![id.into(), now.micros().into(), by.into()]).await.map(|_| ())
}

/// Notes that a token was used.
///
/// # Errors
/// [`StoreError`].
pub async fn note_use(
    _scope: &PlatformScope,
    tx: &WriteTx,
    id: &str,
    now: Instant,
) -> Result<(), StoreError> {
    let sql = "UPDATE api_token SET last_used_us = $2 WHERE token_id = $1";
    tx.run(sql, vec![id.into(), now.micros().into()]).await.map(|_| ())
}
