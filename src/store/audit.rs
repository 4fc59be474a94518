//! Who changed what. Rows are only ever added.

use super::{PlatformScope, ReadTx, StoreError, WriteTx};
use crate::domain::units::Instant;

/// One change, as it is recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// When.
    pub at: Instant,
    /// Who.
    pub actor: String,
    /// By which token; empty: a command beside the database.
    pub token: String,
    /// In which request; empty: none.
    pub request: String,
    /// What was done: a subject's word, a dot, a verb.
    pub action: String,
    /// To what: natural names.
    pub subject: String,
    /// What it was, as JSON.
    pub before: Option<String>,
    /// What it is now, as JSON.
    pub after: Option<String>,
}

/// Records changes.
///
/// # Errors
/// [`StoreError`].
pub async fn add(_scope: &PlatformScope, tx: &WriteTx, entries: &[Entry]) -> Result<(), StoreError> {
    let rows = entries
        .iter()
        .map(|entry| {
            vec![
                entry.at.micros().into(),
                entry.actor.as_str().into(),
                entry.token.as_str().into(),
                entry.request.as_str().into(),
                entry.action.as_str().into(),
                entry.subject.as_str().into(),
                entry.before.clone().into(),
                entry.after.clone().into(),
            ]
        })
        .collect();
    let columns =
        ["at_us", "actor", "token_id", "request_id", "action", "subject", "before_json", "after_json"];
    tx.insert("audit", &columns, rows, "").await.map(|_| ())
}

/// The entries before one, newest first, at most so many, each with its number.
///
/// # Errors
/// [`StoreError`].
pub async fn list(
    _scope: &PlatformScope,
    tx: &ReadTx,
    before: i64,
    limit: i64,
) -> Result<Vec<(i64, Entry)>, StoreError> {
    let sql = "SELECT audit_id, at_us, actor, token_id, request_id, action, subject, before_json, after_json \
               FROM audit WHERE audit_id < $1 ORDER BY audit_id DESC LIMIT $2";
    let rows = tx.all(sql, vec![before.into(), limit.into()]).await?;
    rows.iter()
        .map(|row| {
            let entry = Entry {
                at: Instant::from_micros(row.get(1)?),
                actor: row.get(2)?,
                token: row.get(3)?,
                request: row.get(4)?,
                action: row.get(5)?,
                subject: row.get(6)?,
                before: row.get(7)?,
                after: row.get(8)?,
            };
            Ok((row.get(0)?, entry))
        })
        .collect()
}
