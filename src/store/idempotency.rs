//! What requests with an idempotency key did, kept for a day.

use super::{PlatformScope, ReadTx, StoreError, WriteTx};
use crate::domain::units::Instant;

/// The constraint that a second request of one key meets while the first is under way.
pub const KEY_RULE: &str = "idempotency_pk";

/// What a request did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remembered {
    /// SHA-256 of method, path and body.
    pub fingerprint: Vec<u8>,
    /// The service's outcome, as JSON.
    pub outcome: String,
}

/// What the request of this asker and key did, if it was made.
///
/// # Errors
/// [`StoreError`].
pub async fn find(
    _scope: &PlatformScope,
    tx: &ReadTx,
    asker: &str,
    key: &str,
) -> Result<Option<Remembered>, StoreError> {
    let sql = "SELECT fingerprint, outcome FROM idempotency WHERE asker = $1 AND request_key = $2";
    let row = tx.one(sql, vec![asker.into(), key.into()]).await?;
    row.map(|row| Ok(Remembered { fingerprint: row.get(0)?, outcome: row.get(1)? })).transpose()
}

/// Remembers what a request did, in its transaction.
///
/// # Errors
/// [`StoreError::Conflict`] with [`KEY_RULE`] when another request of the same key was first.
pub async fn remember(
    _scope: &PlatformScope,
    tx: &WriteTx,
    (asker, key): (&str, &str),
    remembered: &Remembered,
    now: Instant,
) -> Result<(), StoreError> {
    let sql = "INSERT INTO idempotency (asker, request_key, fingerprint, outcome, created_us) \
               VALUES ($1, $2, $3, $4, $5)";
    let values = vec![
        asker.into(),
        key.into(),
        remembered.fingerprint.clone().into(),
        remembered.outcome.as_str().into(),
        now.micros().into(),
    ];
    tx.run(sql, values).await.map(|_| ())
}

/// Forgets what was done before an instant.
///
/// # Errors
/// [`StoreError`].
pub async fn forget(_scope: &PlatformScope, tx: &WriteTx, before: Instant) -> Result<u64, StoreError> {
    tx.run("DELETE FROM idempotency WHERE created_us < $1", vec![before.micros().into()]).await
}
