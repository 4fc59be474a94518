//! Floor 1: what is kept, on a PostgreSQL server or in an embedded SQLite file.
//!
//! Owns the schema's meaning in Rust: one file a subject, each function taking a scope first. Owns the unit of
//! work, roles, row security and the one writer.
//!
//! Does not own: decisions (domain), messages (wire), what a person may do (services).
//!
//! Always true here: a caller says *read* or *write* and never which database; a tenant scope never sees
//! another tenant's rows; sums are taken exactly; no decimal and no floating column exists.
#![deny(clippy::float_arithmetic, clippy::indexing_slicing, missing_docs)]

pub mod agents;
pub mod audit;
mod backend;
pub mod catalogue;
pub mod error;
pub mod findings;
pub mod fleet;
pub mod idempotency;
pub mod import_runs;
pub mod installation;
pub mod journal;
pub mod levels;
pub mod mapping;
pub mod marks;
pub mod migrate;
pub mod node_hour;
pub mod outbox;
pub mod prices;
pub mod scope;
pub mod states;
pub mod tenants;
pub mod tokens;
mod unit;

use std::path::Path;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use backend::Backend;
pub use error::{StoreError, UnitError};
pub use scope::{PlatformScope, Scope, TenantScope};
use unit::TypedJob;
pub use unit::{ReadTx, WriteTx};

/// The embedded database, in its directory.
const FILE: &str = "fatia.db";

/// The open database. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Store {
    backend: Arc<Backend>,
    /// Where units of work run: not the caller's runtime, which may be one of an edge that is being stopped.
    runtime: tokio::runtime::Handle,
}

impl Store {
    /// Connects to a database server as the service's role. The schema must be migrated.
    ///
    /// # Errors
    /// [`StoreError::Setup`] when the role or the schema would not keep tenants apart, or the schema is
    /// another version's; [`StoreError::Unavailable`] when there is no answer.
    pub async fn connect(url: &str, connections: u32) -> Result<Self, StoreError> {
        migrate::check_connected(url).await?;
        let backend = Arc::new(Backend::connect(url, connections).await?);
        Ok(Self { backend, runtime: tokio::runtime::Handle::current() })
    }

    /// Opens the embedded database of a data directory, and makes both where they are missing.
    ///
    /// `holder` is how this process names itself to one that comes later.
    ///
    /// # Errors
    /// [`StoreError::InUse`] names the process that has it; [`StoreError::Setup`] when the directory cannot be
    /// written.
    pub async fn open(directory: &Path, holder: &str) -> Result<Self, StoreError> {
        let setup = |error: std::io::Error| StoreError::Setup(format!("{}: {error}", directory.display()));
        make_private(directory).map_err(setup)?;
        let backend = Arc::new(Backend::open(&directory.join(FILE), holder).await?);
        Ok(Self { backend, runtime: tokio::runtime::Handle::current() })
    }

    /// Whether an embedded database is in a directory.
    #[must_use]
    pub fn is_at(directory: &Path) -> bool {
        directory.join(FILE).exists()
    }

    /// Which database this is, for people.
    #[must_use]
    pub fn describe(&self) -> String {
        self.backend.describe()
    }

    /// Whether this process alone has the database, so that nobody else derives.
    #[must_use]
    pub fn is_embedded(&self) -> bool {
        self.backend.is_embedded()
    }

    /// Runs a unit of work that only reads, on one snapshot.
    ///
    /// # Errors
    /// The work's own, or [`StoreError`] as the work's error type takes it.
    pub async fn read<T, E, F>(&self, scope: impl Into<Scope>, work: F) -> Result<T, E>
    where
        F: for<'t> FnOnce(&'t ReadTx) -> BoxFuture<'t, Result<T, E>> + Send + 'static,
        T: Send + 'static,
        E: UnitError,
    {
        let (backend, scope) = (Arc::clone(&self.backend), scope.into());
        // In a task of its own: a dropped caller must not drop a `begin` in flight.
        let task = self.runtime.spawn(async move {
            let tx = ReadTx::new(backend.begin_read(&scope).await?);
            let result = work(&tx).await;
            let ended = tx.into_inner().rollback().await.map_err(backend::classify);
            let value = result?;
            ended?;
            Ok(value)
        });
        task.await.unwrap_or_else(|_| Err(E::from(StoreError::Abandoned)))
    }

    /// Runs a unit of work that writes: all of it, or nothing. The answer comes after the commit.
    ///
    /// The work may be run again from its start when another transaction was in its way.
    ///
    /// # Errors
    /// The work's own, or [`StoreError`] as the work's error type takes it.
    pub async fn write<T, E, F>(&self, scope: impl Into<Scope>, work: F) -> Result<T, E>
    where
        F: for<'t> Fn(&'t WriteTx) -> BoxFuture<'t, Result<T, E>> + Send + 'static,
        T: Send + 'static,
        E: UnitError,
    {
        let (job, answer) = TypedJob::new(work);
        Arc::clone(&self.backend).submit(scope.into(), Box::new(job), &self.runtime).await?;
        answer.await.unwrap_or_else(|_| Err(E::from(StoreError::Abandoned)))
    }
}

/// Makes a directory that only its owner can enter: the database holds the key that signs imports.
fn make_private(directory: &Path) -> std::io::Result<()> {
    if directory.exists() && !directory.is_dir() {
        return Err(std::io::Error::new(std::io::ErrorKind::NotADirectory, "is not a directory"));
    }
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(directory)
}

/// A boxed future, in one word: what the closures of [`Store::read`] and [`Store::write`] return.
pub fn unit<'t, T, E>(work: impl Future<Output = Result<T, E>> + Send + 't) -> BoxFuture<'t, Result<T, E>> {
    work.boxed()
}
