//! SQLite: one process per file, one writer with group commit, readers beside it.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use sea_orm::{
    ConnectOptions, Database, DatabaseConnection, DatabaseTransaction, SqliteTransactionMode,
    TransactionOptions, TransactionTrait,
};
use sqlx::error::DatabaseError;
use sqlx::sqlite::{SqliteJournalMode, SqliteSynchronous};
use tokio::sync::mpsc;

use super::classify;
use crate::store::error::StoreError;
use crate::store::unit::{Job, WriteTx};

/// Most units of work that share one commit.
const GROUP_MAX: usize = 64;
/// Units of work that may wait for the writer; beyond, callers wait to hand theirs in.
const QUEUE_MAX: usize = 256;
/// Readers beside the writer.
const READERS: u32 = 4;

/// An open database file.
#[derive(Debug)]
pub(in crate::store) struct Sqlite {
    readers: DatabaseConnection,
    queue: mpsc::Sender<Box<dyn Job>>,
    path: PathBuf,
}

impl Sqlite {
    /// Locks and opens the file, and starts its one writer. The schema is there already.
    pub(in crate::store) async fn open(path: &Path, lock: FileLock) -> Result<Self, StoreError> {
        let writer = Database::connect(options(path, 1, false)).await.map_err(classify)?;
        let readers = Database::connect(options(path, READERS, true)).await.map_err(classify)?;
        let (queue, jobs) = mpsc::channel(QUEUE_MAX);
        // The lock goes with the writer, which may still work off what callers that went away handed in.
        tokio::spawn(write_all(writer, jobs, lock));
        Ok(Self { readers, queue, path: path.to_owned() })
    }

    pub(in crate::store) fn describe(&self) -> String {
        format!("SQLite, {}", self.path.display())
    }

    /// Hands a unit of work to the writer.
    pub(in crate::store) async fn submit(&self, job: Box<dyn Job>) -> Result<(), StoreError> {
        self.queue.send(job).await.map_err(|_| StoreError::Abandoned)
    }

    pub(super) async fn begin_read(&self) -> Result<DatabaseTransaction, StoreError> {
        self.readers.begin().await.map_err(classify)
    }
}

fn options(path: &Path, connections: u32, read_only: bool) -> ConnectOptions {
    let mut options = ConnectOptions::new("sqlite:".to_owned());
    let path = path.to_owned();
    options
        .max_connections(connections)
        .min_connections(1)
        .acquire_timeout(Duration::from_secs(60))
        .sqlx_logging(false)
        .map_sqlx_sqlite_opts(move |options| file_options(options.filename(&path)).read_only(read_only));
    options
}

/// WAL, so that readers and the writer do not wait for each other; FULL, so that what was answered survives a
/// power cut. Group commit pays for the latter.
pub(in crate::store) fn file_options(
    options: sqlx::sqlite::SqliteConnectOptions,
) -> sqlx::sqlite::SqliteConnectOptions {
    options
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .foreign_keys(true)
        .busy_timeout(Duration::from_secs(5))
        .pragma("cache_size", "-65536")
        .pragma("temp_store", "memory")
}

/// The writer: takes what waits, runs each unit in a savepoint, commits once, then answers all.
async fn write_all(connection: DatabaseConnection, mut jobs: mpsc::Receiver<Box<dyn Job>>, _lock: FileLock) {
    while let Some(first) = jobs.recv().await {
        let mut group = vec![first];
        while group.len() < GROUP_MAX {
            let Ok(next) = jobs.try_recv() else { break };
            group.push(next);
        }
        let committed = write_group(&connection, &mut group).await;
        match committed {
            Ok(()) => group.into_iter().for_each(|job| job.answer(Ok(()))),
            Err(error) => {
                let reason = std::sync::Arc::new(error);
                group.into_iter().for_each(|job| job.answer(Err(std::sync::Arc::clone(&reason))));
            }
        }
    }
}

async fn write_group(connection: &DatabaseConnection, group: &mut [Box<dyn Job>]) -> Result<(), StoreError> {
    let outer = connection.begin_with_options(immediate()).await.map_err(classify)?;
    for job in group {
        let savepoint = outer.begin().await.map_err(classify)?;
        let unit = WriteTx::new(savepoint);
        let succeeded = job.run(&unit).await;
        let savepoint = unit.into_inner();
        if succeeded {
            savepoint.commit().await.map_err(classify)?;
        } else {
            savepoint.rollback().await.map_err(classify)?;
        }
    }
    outer.commit().await.map_err(classify)
}

/// A deferred transaction that reads and then writes fails at once under load and ignores the busy timeout.
pub(in crate::store) fn immediate() -> TransactionOptions {
    TransactionOptions {
        sqlite_transaction_mode: Some(SqliteTransactionMode::Immediate),
        ..TransactionOptions::default()
    }
}

/// The lock beside the file: one process per database. It goes with the process, however that ends.
#[derive(Debug)]
pub(in crate::store) struct FileLock(#[expect(dead_code, reason = "held for the lock on it")] File);

impl FileLock {
    /// Takes the lock and writes into it who holds it.
    pub(in crate::store) async fn take(database: &Path, holder: &str) -> Result<Self, StoreError> {
        let path = database.with_extension("lock");
        let setup = |error: std::io::Error| StoreError::Setup(format!("{}: {error}", path.display()));
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(setup)?;
        match try_lock_awhile(&file).await {
            Ok(()) => {}
            Err(std::fs::TryLockError::WouldBlock) => {
                let mut holder = String::new();
                file.read_to_string(&mut holder).map_err(setup)?;
                let holder = match holder.trim() {
                    "" => "another process".to_owned(),
                    holder => holder.to_owned(),
                };
                return Err(StoreError::InUse { path: database.display().to_string(), holder });
            }
            Err(std::fs::TryLockError::Error(error)) => return Err(setup(error)),
        }
        file.set_len(0).map_err(setup)?;
        file.rewind().map_err(setup)?;
        file.write_all(holder.as_bytes()).map_err(setup)?;
        Ok(Self(file))
    }
}

/// Tries for half a second: whoever has the file may be about to end.
async fn try_lock_awhile(file: &File) -> Result<(), std::fs::TryLockError> {
    for _ in 0..25 {
        match file.try_lock() {
            Err(std::fs::TryLockError::WouldBlock) => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            ended => return ended,
        }
    }
    file.try_lock()
}

/// BUSY and LOCKED with all their extended codes.
pub(super) fn is_busy(error: &dyn DatabaseError) -> bool {
    primary_code(error).is_some_and(|code| code == 5 || code == 6)
}

/// The disk is full or fails.
pub(super) fn is_gone(error: &dyn DatabaseError) -> bool {
    primary_code(error).is_some_and(|code| matches!(code, 10 | 13 | 14))
}

pub(super) fn violated_rule(error: &dyn DatabaseError) -> Option<String> {
    (primary_code(error)? == 19).then(|| {
        let text = error.message();
        text.split(": ").last().unwrap_or(text).to_owned()
    })
}

fn primary_code(error: &dyn DatabaseError) -> Option<i64> {
    // Every SQLite code is a plain number; PostgreSQL's are five characters, of which few read as one.
    error.try_downcast_ref::<sqlx::sqlite::SqliteError>()?;
    error.code()?.parse::<i64>().ok().map(|code| code & 0xff)
}
