//! Imports that were uploaded: how far they are, how they ended, what they refused.

use super::fleet::name_of;
use super::unit::Row;
use super::{PlatformScope, ReadTx, StoreError, WriteTx};
use crate::domain::ids::Name;
use crate::domain::units::Instant;
use crate::domain::usage::SourceRank;

/// How an import stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunState {
    /// Some process is at it, or died at it: `beat` tells.
    Running,
    /// It came to its end.
    Finished,
    /// It could not be done.
    Failed,
}

impl RunState {
    /// All states.
    pub const ALL: [Self; 3] = [Self::Running, Self::Finished, Self::Failed];

    /// The word.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Finished => "finished",
            Self::Failed => "failed",
        }
    }
}

/// An import as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredRun {
    /// Its id.
    pub id: String,
    /// Whose history.
    pub source: Name,
    /// How far it is trusted.
    pub rank: SourceRank,
    /// How it stands.
    pub state: RunState,
    /// Since when.
    pub started: Instant,
    /// By whom.
    pub started_by: String,
    /// When its process last said that it is at it.
    pub beat: Instant,
    /// When it ended.
    pub finished: Option<Instant>,
    /// Batches to send, as far as known.
    pub batches: i64,
    /// Batches answered.
    pub answered: i64,
    /// What it did, as JSON.
    pub outcome: Option<String>,
    /// Why it failed.
    pub failure: Option<String>,
}

/// A line that was not taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredRefusal {
    /// Its place among the refused, from 1.
    pub ordinal: i64,
    /// The file.
    pub file: String,
    /// Its line, from 1, the header included.
    pub line: i64,
    /// Why.
    pub reason: String,
}

const COLUMNS: &str = "run_id, source, rank, state, started_us, started_by, beat_us, finished_us, batches, answered, \
                       outcome, failure";

fn run_of(row: &Row) -> Result<StoredRun, StoreError> {
    let corrupt = |word: String| StoreError::corrupt("an import", word);
    let (rank, state): (String, String) = (row.get(2)?, row.get(3)?);
    let found = RunState::ALL.into_iter().find(|each| each.word() == state);
    Ok(StoredRun {
        id: row.get(0)?,
        source: name_of(&row.get::<String>(1)?)?,
        rank: SourceRank::parse(&rank).map_err(|error| corrupt(error.to_string()))?,
        state: found.ok_or_else(|| corrupt(state))?,
        started: Instant::from_micros(row.get(4)?),
        started_by: row.get(5)?,
        beat: Instant::from_micros(row.get(6)?),
        finished: row.get::<Option<i64>>(7)?.map(Instant::from_micros),
        batches: row.get(8)?,
        answered: row.get(9)?,
        outcome: row.get(10)?,
        failure: row.get(11)?,
    })
}

/// Stores a new import.
///
/// # Errors
/// [`StoreError`].
pub async fn begin(_scope: &PlatformScope, tx: &WriteTx, run: &StoredRun) -> Result<(), StoreError> {
    let sql = "INSERT INTO import_run (run_id, source, rank, state, started_us, started_by, beat_us, batches, answered) \
               VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)";
    let values = vec![
        run.id.as_str().into(),
        run.source.as_str().into(),
        run.rank.word().into(),
        run.state.word().into(),
        run.started.micros().into(),
        run.started_by.as_str().into(),
        run.beat.micros().into(),
        run.batches.into(),
        run.answered.into(),
    ];
    tx.run(sql, values).await.map(|_| ())
}

/// Notes how far an import is.
///
/// # Errors
/// [`StoreError`].
pub async fn beat(
    _scope: &PlatformScope,
    tx: &WriteTx,
    id: &str,
    (batches, answered): (i64, i64),
    now: Instant,
) -> Result<(), StoreError> {
    let sql = "UPDATE import_run SET beat_us = $2, batches = $3, answered = $4 WHERE run_id = $1 AND state = 'running'";
    tx.run(sql, vec![id.into(), now.micros().into(), batches.into(), answered.into()]).await.map(|_| ())
}

/// Notes how an import ended.
///
/// # Errors
/// [`StoreError`].
pub async fn end(
    _scope: &PlatformScope,
    tx: &WriteTx,
    id: &str,
    ended: Result<&str, &str>,
    now: Instant,
) -> Result<(), StoreError> {
    let state = if ended.is_ok() { RunState::Finished } else { RunState::Failed };
    let sql = "UPDATE import_run SET state = $2, finished_us = $3, beat_us = $3, outcome = $4, failure = $5, \
               answered = CASE WHEN $2 = 'finished' THEN batches ELSE answered END WHERE run_id = $1";
    let values = vec![
        id.into(),
        state.word().into(),
        now.micros().into(),
        ended.ok().map(str::to_owned).into(),
        ended.err().map(str::to_owned).into(),
    ];
    tx.run(sql, values).await.map(|_| ())
}

/// Stores the lines that an import refused.
///
/// # Errors
/// [`StoreError`].
pub async fn refuse(
    _scope: &PlatformScope,
    tx: &WriteTx,
    id: &str,
    refusals: &[StoredRefusal],
) -> Result<(), StoreError> {
    let rows = refusals
        .iter()
        .map(|each| {
            vec![
                id.into(),
                each.ordinal.into(),
                each.file.as_str().into(),
                each.line.into(),
                each.reason.as_str().into(),
            ]
        })
        .collect();
    let columns = ["run_id", "ordinal", "file", "line", "reason"];
    tx.insert("import_refusal", &columns, rows, "").await.map(|_| ())
}

/// One import.
///
/// # Errors
/// [`StoreError`].
pub async fn find(_scope: &PlatformScope, tx: &ReadTx, id: &str) -> Result<Option<StoredRun>, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM import_run WHERE run_id = $1");
    tx.one(&sql, vec![id.into()]).await?.as_ref().map(run_of).transpose()
}

/// Imports before one, newest first, at most so many.
///
/// # Errors
/// [`StoreError`].
pub async fn list(
    _scope: &PlatformScope,
    tx: &ReadTx,
    (before, id): (Instant, &str),
    limit: i64,
) -> Result<Vec<StoredRun>, StoreError> {
    let sql = format!(
        "SELECT {COLUMNS} FROM import_run WHERE started_us < $1 OR (started_us = $1 AND run_id < $2) \
         ORDER BY started_us DESC, run_id DESC LIMIT $3"
    );
    let rows = tx.all(&sql, vec![before.micros().into(), id.into(), limit.into()]).await?;
    rows.iter().map(run_of).collect()
}

/// The refused lines of an import after one, in the order of its files.
///
/// # Errors
/// [`StoreError`].
pub async fn refusals(
    _scope: &PlatformScope,
    tx: &ReadTx,
    id: &str,
    after: i64,
    limit: i64,
) -> Result<Vec<StoredRefusal>, StoreError> {
    let sql = "SELECT ordinal, file, line, reason FROM import_refusal WHERE run_id = $1 AND ordinal > $2 \
               ORDER BY ordinal LIMIT $3";
    let rows = tx.all(sql, vec![id.into(), after.into(), limit.into()]).await?;
    rows.iter()
        .map(|row| {
            Ok(StoredRefusal {
                ordinal: row.get(0)?,
                file: row.get(1)?,
                line: row.get(2)?,
                reason: row.get(3)?,
            })
        })
        .collect()
}
