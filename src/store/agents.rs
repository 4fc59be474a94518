//! Agents, the keys that they sign with, and the tokens by which nodes are enrolled.

use super::fleet::{StoredScope, name_of};
use super::unit::Row;
use super::{PlatformScope, ReadTx, StoreError, WriteTx};
use crate::domain::ids::{Bucket, ScopeId, ScopeKind, ScopeName};
use crate::domain::units::Instant;

/// A token by which a node's agent is enrolled; it serves once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnrolmentToken {
    /// Its public id.
    pub id: String,
    /// SHA-256 of its secret.
    pub secret_hash: [u8; 32],
    /// The nodes that may use it; `*` stands for any letters.
    pub pattern: String,
    /// The earliest instant at which what the agent finds may have come into service.
    pub since: Instant,
    /// Whether it may take the place of an agent that a node has.
    pub replaces: bool,
    /// When it was made.
    pub created: Instant,
    /// By whom.
    pub created_by: String,
    /// From when on it is no longer taken.
    pub expires: Instant,
    /// When it was used, and by which key.
    pub used: Option<(Instant, String)>,
}

/// An agent as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredAgent {
    /// Its id.
    pub id: String,
    /// Its node.
    pub home: StoredScope,
    /// The earliest instant at which what it finds may have come into service.
    pub since: Instant,
    /// The program's version.
    pub version: String,
    /// When it was enrolled.
    pub enrolled: Instant,
    /// By which enrolment token.
    pub enrolled_by: String,
    /// When it was revoked.
    pub revoked: Option<Instant>,
    /// The newest inventory that it sent, as JSON.
    pub inventory: Option<String>,
    /// That one's counter; 0: there is none.
    pub inventory_counter: i64,
    /// When that one came.
    pub inventory_at: Option<Instant>,
}

/// What came by an agent's streams last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LastSeen {
    /// When a batch came.
    pub at: Option<Instant>,
    /// Until when the agent spoke.
    pub edge: Option<Instant>,
    /// By how many microseconds its wall clock is behind the service's.
    pub offset_micros: Option<i64>,
}

const TOKEN_COLUMNS: &str = "token_id, secret_hash, pattern, since_us, replaces, created_us, created_by, expires_us, \
                             used_us, used_key";
const AGENT_COLUMNS: &str = "a.agent_id, a.scope_id, s.name, a.since_us, a.version, a.enrolled_us, a.enrolled_by, \
                             a.revoked_us, a.inventory, a.inventory_counter, a.inventory_us";
const AGENTS: &str = "agent a JOIN scope s ON s.scope_id = a.scope_id";

fn token_of(row: &Row) -> Result<EnrolmentToken, StoreError> {
    let used: (Option<i64>, Option<String>) = (row.get(8)?, row.get(9)?);
    let hash = <[u8; 32]>::try_from(row.get::<Vec<u8>>(1)?);
    Ok(EnrolmentToken {
        id: row.get(0)?,
        secret_hash: hash.map_err(|_| StoreError::corrupt("an enrolment token", "its hash"))?,
        pattern: row.get(2)?,
        since: Instant::from_micros(row.get(3)?),
        replaces: row.get::<i64>(4)? != 0,
        created: Instant::from_micros(row.get(5)?),
        created_by: row.get(6)?,
        expires: Instant::from_micros(row.get(7)?),
        used: match used {
            (Some(at), Some(key)) => Some((Instant::from_micros(at), key)),
            _ => None,
        },
    })
}

fn agent_of(row: &Row) -> Result<StoredAgent, StoreError> {
    let name = name_of(&row.get::<String>(2)?)?;
    let instant = |at: usize| Ok::<_, StoreError>(row.get::<Option<i64>>(at)?.map(Instant::from_micros));
    Ok(StoredAgent {
        id: row.get(0)?,
        home: StoredScope {
            id: ScopeId::from_stored(row.get(1)?),
            bucket: Bucket::of(&name),
            name: ScopeName { kind: ScopeKind::Node, name },
        },
        since: Instant::from_micros(row.get(3)?),
        version: row.get(4)?,
        enrolled: Instant::from_micros(row.get(5)?),
        enrolled_by: row.get(6)?,
        revoked: instant(7)?,
        inventory: row.get(8)?,
        inventory_counter: row.get(9)?,
        inventory_at: instant(10)?,
    })
}

/// Stores a new enrolment token.
///
/// # Errors
/// [`StoreError`].
pub async fn add_token(
    _scope: &PlatformScope,
    tx: &WriteTx,
    token: &EnrolmentToken,
) -> Result<(), StoreError> {
    let sql = "INSERT INTO enrolment_token (token_id, secret_hash, pattern, since_us, replaces, created_us, created_by, \
               expires_us) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)";
    let values = vec![
        token.id.as_str().into(),
        token.secret_hash.to_vec().into(),
        token.pattern.as_str().into(),
        token.since.micros().into(),
        i64::from(token.replaces).into(),
        token.created.micros().into(),
        token.created_by.as_str().into(),
        token.expires.micros().into(),
    ];
    tx.run(sql, values).await.map(|_| ())
}

/// An enrolment token, locked until the transaction ends, so that it serves once.
///
/// # Errors
/// [`StoreError`].
pub async fn lock_token(
    _scope: &PlatformScope,
    tx: &WriteTx,
    id: &str,
) -> Result<Option<EnrolmentToken>, StoreError> {
    let lock = super::backend::lock_clause(tx.dialect());
    let sql = format!("SELECT {TOKEN_COLUMNS} FROM enrolment_token WHERE token_id = $1{lock}");
    tx.one(&sql, vec![id.into()]).await?.as_ref().map(token_of).transpose()
}

/// Notes which key used an enrolment token.
///
/// # Errors
/// [`StoreError`].
pub async fn use_token(
    _scope: &PlatformScope,
    tx: &WriteTx,
    id: &str,
    key: &str,
    now: Instant,
) -> Result<(), StoreError> {
    let sql =
        "UPDATE enrolment_token SET used_us = $2, used_key = $3 WHERE token_id = $1 AND used_us IS NULL";
    tx.run(sql, vec![id.into(), now.micros().into(), key.into()]).await.map(|_| ())
}

/// Enrolment tokens by their ids, after one, at most so many.
///
/// # Errors
/// [`StoreError`].
pub async fn tokens(
    _scope: &PlatformScope,
    tx: &ReadTx,
    after: &str,
    limit: i64,
) -> Result<Vec<EnrolmentToken>, StoreError> {
    let sql =
        format!("SELECT {TOKEN_COLUMNS} FROM enrolment_token WHERE token_id > $1 ORDER BY token_id LIMIT $2");
    tx.all(&sql, vec![after.into(), limit.into()]).await?.iter().map(token_of).collect()
}

/// Stores a new agent with its key.
///
/// # Errors
/// [`StoreError::Conflict`] where the key is another agent's.
pub async fn add(
    _scope: &PlatformScope,
    tx: &WriteTx,
    agent: &StoredAgent,
    (key_id, public_key): (&str, &[u8; 32]),
) -> Result<(), StoreError> {
    let sql = "INSERT INTO agent (agent_id, scope_id, since_us, version, enrolled_us, enrolled_by, inventory_counter) \
               VALUES ($1, $2, $3, $4, $5, $6, 0)";
    let values = vec![
        agent.id.as_str().into(),
        agent.home.id.stored().into(),
        agent.since.micros().into(),
        agent.version.as_str().into(),
        agent.enrolled.micros().into(),
        agent.enrolled_by.as_str().into(),
    ];
    tx.run(sql, values).await?;
    let sql = "INSERT INTO agent_key (key_id, agent_id, public_key, from_us) VALUES ($1, $2, $3, $4)";
    let values = vec![
        key_id.into(),
        agent.id.as_str().into(),
        public_key.to_vec().into(),
        agent.enrolled.micros().into(),
    ];
    tx.run(sql, values).await.map(|_| ())
}

/// One agent.
///
/// # Errors
/// [`StoreError`].
pub async fn find(_scope: &PlatformScope, tx: &ReadTx, id: &str) -> Result<Option<StoredAgent>, StoreError> {
    let sql = format!("SELECT {AGENT_COLUMNS} FROM {AGENTS} WHERE a.agent_id = $1");
    tx.one(&sql, vec![id.into()]).await?.as_ref().map(agent_of).transpose()
}

/// One agent, locked until the transaction ends.
///
/// # Errors
/// [`StoreError`].
pub async fn lock(scope: &PlatformScope, tx: &WriteTx, id: &str) -> Result<Option<StoredAgent>, StoreError> {
    let lock = super::backend::lock_clause(tx.dialect());
    tx.one(&format!("SELECT agent_id FROM agent WHERE agent_id = $1{lock}"), vec![id.into()]).await?;
    find(scope, tx, id).await
}

/// The agents of a node that are not revoked.
///
/// # Errors
/// [`StoreError`].
pub async fn of_node(
    _scope: &PlatformScope,
    tx: &ReadTx,
    node: ScopeId,
) -> Result<Vec<StoredAgent>, StoreError> {
    let sql = format!(
        "SELECT {AGENT_COLUMNS} FROM {AGENTS} WHERE a.scope_id = $1 AND a.revoked_us IS NULL ORDER BY a.agent_id"
    );
    tx.all(&sql, vec![node.stored().into()]).await?.iter().map(agent_of).collect()
}

/// Agents by their ids, after one, at most so many.
///
/// # Errors
/// [`StoreError`].
pub async fn list(
    _scope: &PlatformScope,
    tx: &ReadTx,
    after: &str,
    limit: i64,
) -> Result<Vec<StoredAgent>, StoreError> {
    let sql =
        format!("SELECT {AGENT_COLUMNS} FROM {AGENTS} WHERE a.agent_id > $1 ORDER BY a.agent_id LIMIT $2");
    tx.all(&sql, vec![after.into(), limit.into()]).await?.iter().map(agent_of).collect()
}

/// What came by an agent's streams last.
///
/// # Errors
/// [`StoreError`].
pub async fn last_seen(_scope: &PlatformScope, tx: &ReadTx, id: &str) -> Result<LastSeen, StoreError> {
    let sql = "SELECT seen_us, edge_us, offset_us FROM usage_stream WHERE sender = $1 AND seen_us IS NOT NULL \
               ORDER BY seen_us";
    let mut last = LastSeen::default();
    for row in tx.all(sql, vec![id.into()]).await? {
        last.at = row.get::<Option<i64>>(0)?.map(Instant::from_micros);
        last.edge = last.edge.max(row.get::<Option<i64>>(1)?.map(Instant::from_micros));
        last.offset_micros = row.get::<Option<i64>>(2)?.or(last.offset_micros);
    }
    Ok(last)
}

/// The agent of a key, with the key; none where the key is not known or no longer holds.
///
/// # Errors
/// [`StoreError`].
pub async fn of_key(
    _scope: &PlatformScope,
    tx: &ReadTx,
    key_id: &str,
) -> Result<Option<(StoredAgent, [u8; 32])>, StoreError> {
    let sql = format!(
        "SELECT {AGENT_COLUMNS}, k.public_key FROM {AGENTS} JOIN agent_key k ON k.agent_id = a.agent_id \
         WHERE k.key_id = $1 AND k.to_us IS NULL AND a.revoked_us IS NULL"
    );
    let Some(row) = tx.one(&sql, vec![key_id.into()]).await? else { return Ok(None) };
    let key = <[u8; 32]>::try_from(row.get::<Vec<u8>>(11)?);
    Ok(Some((agent_of(&row)?, key.map_err(|_| StoreError::corrupt("an agent's key", "its length"))?)))
}

/// Which agent a key is of, also where it holds no longer.
///
/// # Errors
/// [`StoreError`].
pub async fn owner_of_key(
    _scope: &PlatformScope,
    tx: &ReadTx,
    key_id: &str,
) -> Result<Option<String>, StoreError> {
    let sql = "SELECT agent_id FROM agent_key WHERE key_id = $1";
    tx.one(sql, vec![key_id.into()]).await?.map(|row| row.get(0)).transpose()
}

/// Revokes an agent: its keys hold no longer. What they signed stays.
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
    let sql = "UPDATE agent SET revoked_us = $2, revoked_by = $3 WHERE agent_id = $1 AND revoked_us IS NULL";
    tx.run(sql, vec![id.into(), now.micros().into(), by.into()]).await?;
    let sql = "UPDATE agent_key SET to_us = $2 WHERE agent_id = $1 AND to_us IS NULL";
    tx.run(sql, vec![id.into(), now.micros().into()]).await.map(|_| ())
}

/// Keeps an agent's newest inventory. The caller holds the agent's lock.
///
/// # Errors
/// [`StoreError`].
pub async fn keep_inventory(
    _scope: &PlatformScope,
    tx: &WriteTx,
    id: &str,
    (counter, inventory, version): (i64, &str, &str),
    now: Instant,
) -> Result<(), StoreError> {
    let sql = "UPDATE agent SET inventory_counter = $2, inventory = $3, inventory_us = $4, version = $5 \
               WHERE agent_id = $1 AND inventory_counter < $2";
    let values = vec![id.into(), counter.into(), inventory.into(), now.micros().into(), version.into()];
    tx.run(sql, values).await.map(|_| ())
}
