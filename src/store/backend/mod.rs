//! Where PostgreSQL and SQLite differ, and nothing else. A caller says *read* or *write*, never which one.
//!
//! The verbs are few: connect, begin a write, begin a read, set the scope, lock a row, make room in a
//! partition, classify an error. A new one is a design decision.

pub(in crate::store) mod postgres;
pub(in crate::store) mod sqlite;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sea_orm::{ConnectionTrait, DatabaseTransaction, DbBackend, DbErr};

use super::error::StoreError;
use super::scope::Scope;
use super::unit::{Job, WriteTx};

/// Times that a unit of work is tried when others are in its way.
const TRIES_MAX: u32 = 8;

/// Which SQL a connection speaks: an opaque value outside this folder.
pub(in crate::store) type Dialect = DbBackend;

/// The open database.
#[derive(Debug)]
pub(in crate::store) enum Backend {
    Postgres(postgres::Postgres),
    Sqlite(sqlite::Sqlite),
}

impl Backend {
    /// Connects to a server.
    pub(in crate::store) async fn connect(url: &str, connections: u32) -> Result<Self, StoreError> {
        postgres::Postgres::connect(url, connections).await.map(Self::Postgres)
    }

    /// Locks, migrates and opens a file.
    pub(in crate::store) async fn open(path: &Path, holder: &str) -> Result<Self, StoreError> {
        let lock = sqlite::FileLock::take(path, holder).await?;
        super::migrate::migrate_file(path).await?;
        sqlite::Sqlite::open(path, lock).await.map(Self::Sqlite)
    }

    /// Hands a unit of work to whoever will own its transaction: the file's one writer, or a task of its own.
    pub(in crate::store) async fn submit(
        self: Arc<Self>,
        scope: Scope,
        job: Box<dyn Job>,
        runtime: &tokio::runtime::Handle,
    ) -> Result<(), StoreError> {
        match &*self {
            Self::Sqlite(sqlite) => sqlite.submit(job).await?,
            Self::Postgres(_) => {
                runtime.spawn(own_transaction(self, scope, job));
            }
        }
        Ok(())
    }

    /// A word for people.
    pub(in crate::store) fn describe(&self) -> String {
        match self {
            Self::Postgres(postgres) => postgres.describe(),
            Self::Sqlite(sqlite) => sqlite.describe(),
        }
    }

    /// Whether derived work is done by this process before a command returns, as nobody else can.
    pub(in crate::store) fn is_embedded(&self) -> bool {
        matches!(self, Self::Sqlite(_))
    }

    /// Begins a transaction that only reads, as this scope.
    pub(in crate::store) async fn begin_read(
        &self,
        scope: &Scope,
    ) -> Result<DatabaseTransaction, StoreError> {
        match self {
            Self::Postgres(postgres) => postgres.begin(scope, postgres::Access::Read).await,
            Self::Sqlite(sqlite) => sqlite.begin_read().await,
        }
    }
}

/// Owns a unit's transaction from begin to commit, whatever becomes of the caller.
async fn own_transaction(backend: Arc<Backend>, scope: Scope, mut job: Box<dyn Job>) {
    let Backend::Postgres(postgres) = &*backend else { return };
    let mut tries = 0;
    let committed = loop {
        tries += 1;
        let ended = attempt(postgres, &scope, &mut job).await;
        let in_the_way = matches!(ended, Err(StoreError::Busy(_))) || job.is_busy();
        if !in_the_way || tries >= TRIES_MAX {
            break ended;
        }
        tokio::time::sleep(pause(tries)).await;
    };
    job.answer(committed.map_err(Arc::new));
}

async fn attempt(
    postgres: &postgres::Postgres,
    scope: &Scope,
    job: &mut Box<dyn Job>,
) -> Result<(), StoreError> {
    let tx = WriteTx::new(postgres.begin(scope, postgres::Access::Write).await?);
    let succeeded = job.run(&tx).await;
    let connection = tx.into_inner();
    if succeeded {
        connection.commit().await.map_err(classify)
    } else {
        // What failed may have failed with the connection; the work's own error says more than this one.
        let _said_already = connection.rollback().await;
        Ok(())
    }
}

/// Growing pauses, different for each process so that two do not meet again and again.
fn pause(tries: u32) -> Duration {
    let spread = u64::from(std::process::id() % 7);
    Duration::from_millis((1_u64 << tries.min(6)) * 3 + spread)
}

/// What the database's errors mean to a caller.
pub(in crate::store) fn classify(error: DbErr) -> StoreError {
    let runtime = match &error {
        DbErr::Exec(runtime) | DbErr::Query(runtime) | DbErr::Conn(runtime) => Some(runtime),
        DbErr::ConnectionAcquire(_) => return StoreError::Unavailable(error),
        _ => None,
    };
    let Some(sea_orm::RuntimeErr::SqlxError(source)) = runtime else {
        return StoreError::Statement(error);
    };
    match source.as_database_error() {
        Some(database) => {
            if postgres::is_busy(database) || sqlite::is_busy(database) {
                return StoreError::Busy(error);
            }
            if postgres::is_gone(database) || sqlite::is_gone(database) {
                return StoreError::Unavailable(error);
            }
            match postgres::violated_rule(database).or_else(|| sqlite::violated_rule(database)) {
                Some(rule) => StoreError::Conflict { rule, source: error },
                None => StoreError::Statement(error),
            }
        }
        None if is_io(source) => StoreError::Unavailable(error),
        None => StoreError::Statement(error),
    }
}

fn is_io(error: &sqlx::Error) -> bool {
    matches!(
        error,
        sqlx::Error::Io(_)
            | sqlx::Error::Tls(_)
            | sqlx::Error::PoolTimedOut
            | sqlx::Error::PoolClosed
            | sqlx::Error::WorkerCrashed
            | sqlx::Error::Protocol(_)
    )
}

/// Locks a row for the rest of the transaction: the clause that a SELECT takes for it.
pub(in crate::store) fn lock_clause(dialect: Dialect) -> &'static str {
    match dialect {
        DbBackend::Postgres => " FOR UPDATE",
        // The one writer already has the whole file.
        _ => "",
    }
}

/// The same for many at a time that keep one out.
pub(in crate::store) fn share_clause(dialect: Dialect) -> &'static str {
    match dialect {
        DbBackend::Postgres => " FOR SHARE",
        _ => "",
    }
}

/// Sees to it that a partitioned table has room for these keys.
pub(in crate::store) async fn make_room(
    connection: &DatabaseTransaction,
    table: Partitioned,
    keys_us: impl IntoIterator<Item = i64>,
) -> Result<(), StoreError> {
    match connection.get_database_backend() {
        DbBackend::Postgres => postgres::make_room(connection, table, keys_us).await,
        _ => Ok(()),
    }
}

/// The tables that are partitioned where the backend can.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(in crate::store) enum Partitioned {
    /// By week of receipt.
    UsageBatch,
    /// By 31 days of the hour.
    NodeHour,
}
