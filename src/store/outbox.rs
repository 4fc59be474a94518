//! What is to leave for others: put in the transaction of which it is an effect, sent afterwards, at least once.

use super::backend::lock_clause;
use super::{PlatformScope, ReadTx, StoreError, WriteTx};
use crate::domain::units::Instant;

/// What kind of message it is, by which its receiver is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MessageKind {
    /// Something was changed: what the audit records, for those who want to hear of it.
    Event,
}

impl MessageKind {
    /// All kinds.
    pub const ALL: [Self; 1] = [Self::Event];

    /// The word.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Event => "event",
        }
    }

    fn parse(word: &str) -> Result<Self, StoreError> {
        let found = Self::ALL.into_iter().find(|kind| kind.word() == word);
        found.ok_or_else(|| StoreError::corrupt("an outbox message", word))
    }
}

/// A message to be put.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewMessage {
    /// Its kind.
    pub kind: MessageKind,
    /// By which its receiver tells repeats apart; within a kind there is one message of a key.
    pub key: String,
    /// What it says, as JSON.
    pub payload: String,
}

/// A message that waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// Its number.
    pub id: i64,
    /// What it is.
    pub message: NewMessage,
    /// How often it was tried.
    pub attempts: i64,
}

/// Puts messages. One whose key is there already is the same message.
///
/// # Errors
/// [`StoreError`].
pub async fn put(
    _scope: &PlatformScope,
    tx: &WriteTx,
    messages: &[NewMessage],
    now: Instant,
) -> Result<(), StoreError> {
    let rows = messages
        .iter()
        .map(|each| {
            vec![
                each.kind.word().into(),
                each.key.as_str().into(),
                each.payload.as_str().into(),
                now.micros().into(),
                now.micros().into(),
                0_i64.into(),
            ]
        })
        .collect();
    let columns = ["kind", "message_key", "payload", "created_us", "due_us", "attempts"];
    tx.insert("outbox", &columns, rows, "ON CONFLICT (kind, message_key) DO NOTHING").await.map(|_| ())
}

/// Takes messages that are due, and makes them due again at `again`: so that of two that send at once one has each,
/// and one whose sender dies is sent by another.
///
/// # Errors
/// [`StoreError`].
pub async fn take(
    _scope: &PlatformScope,
    tx: &WriteTx,
    now: Instant,
    again: Instant,
    limit: i64,
) -> Result<Vec<Waiting>, StoreError> {
    let sql = format!(
        "SELECT outbox_id, kind, message_key, payload, attempts FROM outbox \
         WHERE sent_us IS NULL AND due_us <= $1 ORDER BY due_us, outbox_id LIMIT $2{}",
        lock_clause(tx.dialect())
    );
    let mut taken = Vec::new();
    for row in tx.all(&sql, vec![now.micros().into(), limit.into()]).await? {
        let kind = MessageKind::parse(&row.get::<String>(1)?)?;
        let message = NewMessage { kind, key: row.get(2)?, payload: row.get(3)? };
        taken.push(Waiting { id: row.get(0)?, message, attempts: row.get(4)? });
    }
    for each in &taken {
        let sql = "UPDATE outbox SET due_us = $2, attempts = attempts + 1 WHERE outbox_id = $1";
        tx.run(sql, vec![each.id.into(), again.micros().into()]).await?;
    }
    Ok(taken)
}

/// Notes that a message was sent.
///
/// # Errors
/// [`StoreError`].
pub async fn sent(_scope: &PlatformScope, tx: &WriteTx, id: i64, now: Instant) -> Result<(), StoreError> {
    let sql = "UPDATE outbox SET sent_us = $2, failure = NULL WHERE outbox_id = $1";
    tx.run(sql, vec![id.into(), now.micros().into()]).await.map(|_| ())
}

/// Notes that a message could not be sent, and when it is tried again.
///
/// # Errors
/// [`StoreError`].
pub async fn failed(
    _scope: &PlatformScope,
    tx: &WriteTx,
    id: i64,
    again: Instant,
    reason: &str,
) -> Result<(), StoreError> {
    let sql = "UPDATE outbox SET due_us = $2, failure = $3 WHERE outbox_id = $1";
    tx.run(sql, vec![id.into(), again.micros().into(), reason.into()]).await.map(|_| ())
}

/// Forgets messages that were sent before an instant.
///
/// # Errors
/// [`StoreError`].
pub async fn forget(_scope: &PlatformScope, tx: &WriteTx, before: Instant) -> Result<u64, StoreError> {
    tx.run("DELETE FROM outbox WHERE sent_us < $1", vec![before.micros().into()]).await
}

/// How many wait.
///
/// # Errors
/// [`StoreError`].
pub async fn waiting(_scope: &PlatformScope, tx: &ReadTx) -> Result<i64, StoreError> {
    let row = tx.one("SELECT COUNT(*) FROM outbox WHERE sent_us IS NULL", vec![]).await?;
    row.map_or(Ok(0), |row| row.get(0))
}
