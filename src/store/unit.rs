//! Units of work: transactions that finish or leave nothing, whoever stops waiting for them.
//!
//! Always true here: a unit of work runs in a task of its own, so a caller that is dropped drops no
//! transaction; an answer is given after the commit; one error ends the unit.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use sea_orm::{ConnectionTrait, DatabaseTransaction, QueryResult, Statement, TryGetable, Value};
use tokio::sync::oneshot;

use super::backend::{Dialect, classify};
use super::error::{StoreError, UnitError};

/// A transaction that only reads.
#[derive(Debug)]
pub struct ReadTx {
    connection: DatabaseTransaction,
    /// Set by the first statement that fails: one error ends the unit, also where the work goes on.
    failed: AtomicBool,
}

/// A transaction that writes, and reads what it wrote.
#[derive(Debug)]
pub struct WriteTx {
    read: ReadTx,
}

/// What the repository functions need of either transaction.
impl ReadTx {
    pub(in crate::store) fn new(connection: DatabaseTransaction) -> Self {
        Self { connection, failed: AtomicBool::new(false) }
    }

    pub(in crate::store) fn into_inner(self) -> DatabaseTransaction {
        self.connection
    }

    pub(in crate::store) fn dialect(&self) -> Dialect {
        self.connection.get_database_backend()
    }

    /// What a statement's failure means, noted so that the unit cannot be committed.
    fn fail(&self, error: sea_orm::DbErr) -> StoreError {
        self.failed.store(true, Ordering::Relaxed);
        classify(error)
    }

    fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    pub(in crate::store) fn connection(&self) -> &DatabaseTransaction {
        &self.connection
    }

    pub(in crate::store) async fn all(&self, sql: &str, values: Vec<Value>) -> Result<Vec<Row>, StoreError> {
        let statement = Statement::from_sql_and_values(self.dialect(), sql, values);
        let rows = self.connection.query_all_raw(statement).await.map_err(|error| self.fail(error))?;
        Ok(rows.into_iter().map(Row).collect())
    }

    pub(in crate::store) async fn one(
        &self,
        sql: &str,
        values: Vec<Value>,
    ) -> Result<Option<Row>, StoreError> {
        let statement = Statement::from_sql_and_values(self.dialect(), sql, values);
        Ok(self.connection.query_one_raw(statement).await.map_err(|error| self.fail(error))?.map(Row))
    }
}

impl WriteTx {
    pub(in crate::store) fn new(connection: DatabaseTransaction) -> Self {
        Self { read: ReadTx::new(connection) }
    }

    pub(in crate::store) fn into_inner(self) -> DatabaseTransaction {
        self.read.into_inner()
    }

    /// Runs a statement; returns how many rows it touched.
    pub(in crate::store) async fn run(&self, sql: &str, values: Vec<Value>) -> Result<u64, StoreError> {
        let statement = Statement::from_sql_and_values(self.dialect(), sql, values);
        Ok(self.connection.execute_raw(statement).await.map_err(|error| self.fail(error))?.rows_affected())
    }

    /// Inserts many rows of one width in few statements. `after` follows the values (ON CONFLICT …).
    pub(in crate::store) async fn insert(
        &self,
        table: &str,
        columns: &[&str],
        rows: Vec<Vec<Value>>,
        after: &str,
    ) -> Result<u64, StoreError> {
        /// SQLite takes 32,766 parameters a statement, PostgreSQL 65,535.
        const PARAMETERS_MAX: usize = 30_000;
        let width = columns.len().max(1);
        let mut touched = 0;
        let mut rows = rows.into_iter().peekable();
        while rows.peek().is_some() {
            let chunk: Vec<Vec<Value>> = rows.by_ref().take((PARAMETERS_MAX / width).min(500)).collect();
            let mut sql = format!("INSERT INTO {table} ({}) VALUES ", columns.join(", "));
            for at in 0..chunk.len() {
                let first = at * width;
                let marks: Vec<String> = (1..=width).map(|offset| format!("${}", first + offset)).collect();
                sql.push_str(if at == 0 { "(" } else { ", (" });
                sql.push_str(&marks.join(", "));
                sql.push(')');
            }
            sql.push(' ');
            sql.push_str(after);
            touched += self.run(&sql, chunk.into_iter().flatten().collect()).await?;
        }
        Ok(touched)
    }
}

impl std::ops::Deref for WriteTx {
    type Target = ReadTx;

    fn deref(&self) -> &ReadTx {
        &self.read
    }
}

/// A row of a result; columns are read by position.
pub(in crate::store) struct Row(QueryResult);

impl Row {
    pub(in crate::store) fn get<T: TryGetable>(&self, column: usize) -> Result<T, StoreError> {
        self.0.try_get_by_index(column).map_err(|error| StoreError::corrupt("a row", error))
    }
}

/// A unit of work on its way to a transaction, with the caller's address for the answer.
pub(in crate::store) trait Job: Send {
    /// Does the work inside a transaction; whether it should be committed.
    fn run<'t>(&'t mut self, tx: &'t WriteTx) -> BoxFuture<'t, bool>;
    /// Whether the work failed because something was in its way, and may be tried again.
    fn is_busy(&self) -> bool;
    /// Answers the caller, after the commit or the failure of it.
    fn answer(self: Box<Self>, committed: Result<(), Arc<StoreError>>);
}

/// The work as callers give it: it may be run again from its start.
pub(in crate::store) struct TypedJob<F, T, E> {
    work: F,
    result: Option<Result<T, E>>,
    reply: oneshot::Sender<Result<T, E>>,
}

impl<F, T, E> TypedJob<F, T, E> {
    pub(in crate::store) fn new(work: F) -> (Self, oneshot::Receiver<Result<T, E>>) {
        let (reply, answer) = oneshot::channel();
        (Self { work, result: None, reply }, answer)
    }
}

impl<F, T, E> Job for TypedJob<F, T, E>
where
    F: for<'t> Fn(&'t WriteTx) -> BoxFuture<'t, Result<T, E>> + Send + 'static,
    T: Send + 'static,
    E: UnitError,
{
    fn run<'t>(&'t mut self, tx: &'t WriteTx) -> BoxFuture<'t, bool> {
        // The work is called here and not inside the future, which so borrows only the result.
        let work = (self.work)(tx);
        let result = &mut self.result;
        async move {
            // A panic in one unit must not take the writer, and with it everyone else's.
            let done = AssertUnwindSafe(work).catch_unwind().await;
            let done = done.unwrap_or_else(|_| Err(E::from(StoreError::Abandoned)));
            // A server's COMMIT of a transaction with a failed statement is a silent ROLLBACK.
            let done = if done.is_ok() && tx.has_failed() { Err(E::from(StoreError::Ignored)) } else { done };
            let succeeded = done.is_ok();
            *result = Some(done);
            succeeded
        }
        .boxed()
    }

    fn is_busy(&self) -> bool {
        matches!(&self.result, Some(Err(error)) if error.is_busy())
    }

    fn answer(self: Box<Self>, committed: Result<(), Arc<StoreError>>) {
        let result = match (self.result, committed) {
            (Some(result @ Err(_)), _) | (Some(result), Ok(())) => result,
            (_, Err(error)) => Err(E::from(match Arc::try_unwrap(error) {
                Ok(error) => error,
                Err(shared) => StoreError::Unavailable(sea_orm::DbErr::Custom(shared.to_string())),
            })),
            (None, Ok(())) => Err(E::from(StoreError::Abandoned)),
        };
        // A caller that went away wants no answer; the work is done all the same.
        let _gone = self.reply.send(result);
    }
}
