//! Imports that somebody uploaded: begun by a request, done beside it, watched by others.

use std::io::Read;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::ctx::{Changed, Platform, Record};
use super::error::ServiceError;
use super::imports::{ImportOutcome, ImportRequest, Progress, Tables, import_intervals};
use super::table::BadLine;
use crate::domain::units::{Instant, MICROS_PER_SECOND};
use crate::store::import_runs::{RunState, StoredRefusal, StoredRun};
use crate::store::{import_runs, unit};

/// How often a process says that it is at an import.
const BEAT: Duration = Duration::from_secs(2);
/// A process that said nothing for so long has died at it.
const SILENT_US_MAX: i64 = 30 * MICROS_PER_SECOND;
/// Refused lines that are kept; all are counted.
const REFUSALS_KEPT: usize = 10_000;

/// What an import did, as kept and shown.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct RunOutcome {
    /// Lines read, headers apart.
    pub lines: u64,
    /// Lines that were refused, of all files.
    pub refused_lines: u64,
    /// Lines that repeat another to the letter.
    pub repeated: u64,
    /// Batches that were stored now.
    pub stored: u64,
    /// Batches that were stored before.
    pub duplicates: u64,
    /// Rows that acceptance refused, after the lines were found good.
    pub refused_rows: u64,
    /// In-service intervals that were opened.
    pub opened: u64,
    /// In-service intervals that were changed.
    pub changed: u64,
    /// The import's number within its source; none where everything had been said before.
    pub number: Option<i64>,
}

impl RunOutcome {
    /// What is kept of an outcome.
    #[must_use]
    pub fn of(outcome: &ImportOutcome) -> Self {
        let count = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
        Self {
            lines: outcome.lines,
            refused_lines: count(outcome.bad.len()),
            repeated: outcome.repeated,
            stored: outcome.stored,
            duplicates: outcome.duplicates,
            refused_rows: outcome.refused_rows,
            opened: count(outcome.inventory.opened),
            changed: count(outcome.inventory.ended).saturating_add(count(outcome.inventory.repooled)),
            number: outcome.number,
        }
    }
}

/// An import, as shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunView {
    /// Its id.
    pub id: String,
    /// Whose history.
    pub source: String,
    /// How far it is trusted.
    pub rank: String,
    /// `running`, `finished`, `failed`, or `interrupted`: its process died, and the same import resumes it.
    pub state: String,
    /// Since when.
    pub started: String,
    /// By whom.
    pub started_by: String,
    /// When it ended.
    pub finished: Option<String>,
    /// Batches to send, as far as known.
    pub batches: i64,
    /// Batches answered.
    pub answered: i64,
    /// What it did; none until it ended well.
    pub outcome: Option<RunOutcome>,
    /// Why it failed.
    pub failure: Option<String>,
}

impl RunView {
    fn of(run: &StoredRun, now: Instant) -> Self {
        let is_silent = now.micros_since(run.beat) > SILENT_US_MAX;
        let state = match run.state {
            RunState::Running if is_silent => "interrupted",
            state @ (RunState::Running | RunState::Finished | RunState::Failed) => state.word(),
        };
        Self {
            id: run.id.clone(),
            source: run.source.to_string(),
            rank: run.rank.word().to_owned(),
            state: state.to_owned(),
            started: run.started.to_string(),
            started_by: run.started_by.clone(),
            finished: run.finished.map(|at| at.to_string()),
            batches: run.batches,
            answered: run.answered,
            outcome: run.outcome.as_deref().and_then(|text| serde_json::from_str(text).ok()),
            failure: run.failure.clone(),
        }
    }
}

/// Begins an import under an id. A repeated request finds the import of the first: its id is then another.
///
/// # Errors
/// [`ServiceError`].
pub async fn begin(
    platform: &Platform,
    request: &ImportRequest,
    id: String,
) -> Result<RunView, ServiceError> {
    let now = platform.now();
    let run = StoredRun {
        id,
        source: request.source.sender.clone(),
        rank: request.source.rank,
        state: RunState::Running,
        started: now,
        started_by: platform.actor.clone(),
        beat: now,
        finished: None,
        batches: 0,
        answered: 0,
        outcome: None,
        failure: None,
    };
    let work = Arc::new(run);
    platform
        .change(move |scope, tx| {
            let run = Arc::clone(&work);
            unit(async move {
                import_runs::begin(scope, tx, &run).await?;
                let after = json!({ "source": run.source.as_str(), "rank": run.rank.word() });
                let record = Record {
                    action: "import.begin",
                    subject: run.id.clone(),
                    before: None,
                    after: Some(after),
                };
                Ok(Changed { outcome: RunView::of(&run, now), records: vec![record] })
            })
        })
        .await
}

/// Does an import that was begun, and keeps how it ends. Its progress is kept now and then.
///
/// # Errors
/// [`ServiceError`] where its end cannot be kept; that the import itself fails is kept, and no error here.
pub async fn run(
    platform: &Platform,
    request: &ImportRequest,
    id: &str,
    tables: Tables<impl Read, impl Read, impl Read>,
) -> Result<(), ServiceError> {
    // The key belonged to the request that began it.
    let platform = platform.without_key();
    let progress = Arc::new(Mutex::new(Progress::default()));
    let noted = Arc::clone(&progress);
    let note = move |seen: Progress| *noted.lock().unwrap_or_else(PoisonError::into_inner) = seen;
    // In a task of its own: an import that computes for a while is no dead one.
    let beating = tokio::spawn(beats(platform.clone(), id.to_owned(), Arc::clone(&progress)));
    let ended = import_intervals(&platform, request, tables, Arc::new(note)).await;
    beating.abort();
    let seen = *progress.lock().unwrap_or_else(PoisonError::into_inner);
    let _kept = beat(&platform, id, seen).await;
    match ended {
        Ok(outcome) => {
            let kept = serde_json::to_string(&RunOutcome::of(&outcome)).map_err(ServiceError::Encode)?;
            end(&platform, id, Ok(kept), outcome.bad).await
        }
        Err(error) => end(&platform, id, Err(super::table::for_show(&error.for_people())), vec![]).await,
    }
}

/// Says now and then that somebody is at it.
async fn beats(platform: Platform, id: String, progress: Arc<Mutex<Progress>>) {
    loop {
        tokio::time::sleep(BEAT).await;
        let seen = *progress.lock().unwrap_or_else(PoisonError::into_inner);
        // One that cannot be kept is no reason to stop: the next one may be.
        let _kept = beat(&platform, &id, seen).await;
    }
}

async fn beat(platform: &Platform, id: &str, seen: Progress) -> Result<(), ServiceError> {
    let (id, now) = (id.to_owned(), platform.now());
    let count = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let progress = (count(seen.batches), count(seen.answered));
    platform
        .write(move |scope, tx| {
            let id = id.clone();
            unit(async move { Ok(import_runs::beat(scope, tx, &id, progress, now).await?) })
        })
        .await
}

async fn end(
    platform: &Platform,
    id: &str,
    ended: Result<String, String>,
    bad: Vec<BadLine>,
) -> Result<(), ServiceError> {
    let now = platform.now();
    let refusals = (1_i64..).zip(bad.into_iter().take(REFUSALS_KEPT)).map(|(ordinal, bad)| {
        let line = i64::try_from(bad.line).unwrap_or(i64::MAX);
        StoredRefusal { ordinal, file: bad.file, line, reason: bad.reason }
    });
    let work = Arc::new((id.to_owned(), ended, refusals.collect::<Vec<_>>()));
    platform
        .write(move |scope, tx| {
            let work = Arc::clone(&work);
            unit(async move {
                let (id, ended, refusals) = &*work;
                import_runs::refuse(scope, tx, id, refusals).await?;
                let ended = ended.as_deref().map_err(String::as_str);
                Ok(import_runs::end(scope, tx, id, ended, now).await?)
            })
        })
        .await
}

/// One import.
///
/// # Errors
/// [`ServiceError::NotFound`].
pub async fn find(platform: &Platform, id: &str) -> Result<RunView, ServiceError> {
    let (wanted, now) = (id.to_owned(), platform.now());
    let found = platform
        .read(move |scope, tx| unit(async move { Ok(import_runs::find(scope, tx, &wanted).await?) }))
        .await?;
    found
        .map(|run| RunView::of(&run, now))
        .ok_or_else(|| ServiceError::NotFound { what: "import", name: id.to_owned() })
}

/// Imports before one, newest first, at most so many; each with where it stands in the list.
///
/// # Errors
/// [`ServiceError`].
pub async fn list(
    platform: &Platform,
    before: (Instant, String),
    limit: i64,
) -> Result<Vec<((Instant, String), RunView)>, ServiceError> {
    let now = platform.now();
    let found = platform
        .read(move |scope, tx| {
            unit(async move { Ok(import_runs::list(scope, tx, (before.0, &before.1), limit).await?) })
        })
        .await?;
    Ok(found.into_iter().map(|run| ((run.started, run.id.clone()), RunView::of(&run, now))).collect())
}

/// A line that an import did not take, as shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusalView {
    /// Its place among the refused, from 1.
    pub ordinal: i64,
    /// The file.
    pub file: String,
    /// Its line, from 1, the header included.
    pub line: i64,
    /// Why.
    pub reason: String,
}

/// The refused lines of an import after one, at most so many. The first ten thousand are kept.
///
/// # Errors
/// [`ServiceError::NotFound`] for the import.
pub async fn refusals(
    platform: &Platform,
    id: &str,
    after: i64,
    limit: i64,
) -> Result<Vec<RefusalView>, ServiceError> {
    let wanted = id.to_owned();
    platform
        .read(move |scope, tx| {
            unit(async move {
                if import_runs::find(scope, tx, &wanted).await?.is_none() {
                    return Err(ServiceError::NotFound { what: "import", name: wanted });
                }
                let found = import_runs::refusals(scope, tx, &wanted, after, limit).await?;
                let views = found.into_iter().map(|each| RefusalView {
                    ordinal: each.ordinal,
                    file: each.file,
                    line: each.line,
                    reason: each.reason,
                });
                Ok(views.collect())
            })
        })
        .await
}
