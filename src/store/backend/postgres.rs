//! PostgreSQL: pool, roles, row security, partitions.

use std::collections::BTreeSet;
use std::time::Duration;

use sea_orm::{
    AccessMode, ConnectOptions, ConnectionTrait, Database, DatabaseConnection, DatabaseTransaction,
    Statement, TransactionOptions, TransactionTrait,
};
use sqlx::error::DatabaseError;

use super::{Partitioned, classify};
use crate::store::error::StoreError;
use crate::store::scope::Scope;

const WEEK_US: i64 = 7 * 86_400 * 1_000_000;
const MONTH_US: i64 = 31 * 86_400 * 1_000_000;
/// Partitions that are made ahead of need: three months.
const AHEAD_US: i64 = 92 * 86_400 * 1_000_000;

/// Prepared statements that a connection keeps.
const STATEMENTS_KEPT: usize = 512;

/// A pool of connections as the service's role.
#[derive(Debug)]
pub(in crate::store) struct Postgres {
    pool: DatabaseConnection,
    server: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::store) enum Access {
    Read,
    Write,
}

impl Postgres {
    /// Connects, and refuses a role or a schema under which tenants would not be kept apart.
    pub(in crate::store) async fn connect(url: &str, connections: u32) -> Result<Self, StoreError> {
        let pool = Database::connect(options(url, connections)).await.map_err(classify)?;
        let server = self_check(&pool).await?;
        Ok(Self { pool, server })
    }

    pub(in crate::store) fn describe(&self) -> String {
        format!("PostgreSQL {}", self.server)
    }

    /// Begins a transaction that sees what the scope may see, and nothing more.
    pub(in crate::store) async fn begin(
        &self,
        scope: &Scope,
        access: Access,
    ) -> Result<DatabaseTransaction, StoreError> {
        let access_mode = match access {
            Access::Read => AccessMode::ReadOnly,
            Access::Write => AccessMode::ReadWrite,
        };
        // A read sees one snapshot, so that sums, prices and in-service intervals belong together.
        let isolation_level = (access == Access::Read).then_some(sea_orm::IsolationLevel::RepeatableRead);
        let options = TransactionOptions {
            access_mode: Some(access_mode),
            isolation_level,
            ..TransactionOptions::default()
        };
        let transaction = self.pool.begin_with_options(options).await.map_err(classify)?;
        let (tenant, platform) = match scope {
            Scope::Tenant(scope) => (scope.tenant().stored().to_string(), ""),
            Scope::Platform(_) => (String::new(), "on"),
        };
        // Local to the transaction: a session setting would leak to the pool's next borrower.
        // What a read costs depends on its days: after a few runs the server would keep a plan for any days at all, which
        // sorts where the plan for a month hashes. Planning anew takes a fraction of a millisecond.
        let plan = match access {
            Access::Read => "force_custom_plan",
            Access::Write => "auto",
        };
        let sql = "SELECT set_config('fatia.tenant', $1, true), set_config('fatia.platform', $2, true), \
                   set_config('plan_cache_mode', $3, true)";
        let values = [tenant.into(), platform.into(), plan.into()];
        let backend = transaction.get_database_backend();
        transaction
            .execute_raw(Statement::from_sql_and_values(backend, sql, values))
            .await
            .map_err(classify)?;
        Ok(transaction)
    }
}

fn options(url: &str, connections: u32) -> ConnectOptions {
    let mut options = ConnectOptions::new(url.to_owned());
    options
        .max_connections(connections)
        .acquire_timeout(Duration::from_secs(20))
        .sqlx_logging(false)
        .map_sqlx_postgres_opts(|options| {
            // Groups of batches have a statement for each size.
            options.application_name("fatia").statement_cache_capacity(STATEMENTS_KEPT).options([
                ("statement_timeout", "120s"),
                ("lock_timeout", "30s"),
                ("idle_in_transaction_session_timeout", "60s"),
                ("client_min_messages", "error"),
                ("timezone", "UTC"),
            ])
        })
        .map_sqlx_postgres_pool_opts(|pool| {
            // sqlx 0.9.0: a `begin` that was dropped while in flight leaves its connection inside a
            // transaction, and the next borrower's writes vanish with it. So each one is left clean.
            pool.after_release(|connection, _| {
                Box::pin(async move {
                    sqlx::Executor::execute(connection, "ROLLBACK").await?;
                    Ok(true)
                })
            })
        });
    options
}

/// Refuses to run where row security would not be in force.
async fn self_check(pool: &DatabaseConnection) -> Result<String, StoreError> {
    let backend = pool.get_database_backend();
    let all = async |sql: &str| {
        pool.query_all_raw(Statement::from_string(backend, sql.to_owned())).await.map_err(classify)
    };
    let role = all("SELECT rolname::text, rolsuper, rolbypassrls, current_setting('server_version') \
         FROM pg_roles WHERE rolname = current_user")
    .await?;
    let Some(role) = role.first() else {
        return Err(StoreError::Setup("the current role cannot be read".to_owned()));
    };
    let name: String = role.try_get_by_index(0).map_err(classify)?;
    let is_super: bool = role.try_get_by_index(1).map_err(classify)?;
    let bypasses: bool = role.try_get_by_index(2).map_err(classify)?;
    let version: String = role.try_get_by_index(3).map_err(classify)?;
    if is_super || bypasses {
        return Err(StoreError::Setup(format!(
            "DATABASE_URL connects as `{name}`, which ignores row security; connect as fatia_app (deploy/postgres/roles.sql)"
        )));
    }
    let owned = all("SELECT c.relname::text FROM pg_class c JOIN pg_roles r ON r.oid = c.relowner \
         WHERE r.rolname = current_user AND c.relkind IN ('r', 'p') AND c.relnamespace = 'public'::regnamespace LIMIT 1")
    .await?;
    if let Some(row) = owned.first() {
        let table: String = row.try_get_by_index(0).map_err(classify)?;
        return Err(StoreError::Setup(format!(
            "DATABASE_URL connects as `{name}`, the owner of table `{table}`; connect as fatia_app (deploy/postgres/roles.sql)"
        )));
    }
    let open = all("SELECT c.relname::text FROM pg_class c WHERE c.relkind IN ('r', 'p') \
         AND c.relnamespace = 'public'::regnamespace AND c.relname <> '_sqlx_migrations' \
         AND NOT (c.relrowsecurity AND c.relforcerowsecurity) LIMIT 1")
    .await?;
    if let Some(row) = open.first() {
        let table: String = row.try_get_by_index(0).map_err(classify)?;
        return Err(StoreError::Setup(format!("row security is not forced on table `{table}`")));
    }
    // Exactly one policy a table, and it asks for a scope: a second one would be an "or" beside it.
    let policies = all("SELECT c.relname::text FROM pg_class c LEFT JOIN pg_policy p ON p.polrelid = c.oid \
         WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relnamespace = 'public'::regnamespace \
         AND c.relname <> '_sqlx_migrations' GROUP BY c.relname \
         HAVING COUNT(p.oid) <> 1 OR bool_or(\
         COALESCE(strpos(pg_get_expr(p.polqual, p.polrelid), 'fatia.platform'), 0) = 0 OR \
         COALESCE(strpos(pg_get_expr(p.polwithcheck, p.polrelid), 'fatia.platform'), 0) = 0) LIMIT 1")
    .await?;
    if let Some(row) = policies.first() {
        let table: String = row.try_get_by_index(0).map_err(classify)?;
        return Err(StoreError::Setup(format!(
            "row security on table `{table}` is not the one policy that it came with"
        )));
    }
    let granted = all("SELECT c.relname::text FROM pg_class c JOIN pg_inherits i ON i.inhrelid = c.oid \
         WHERE has_table_privilege(c.oid, 'SELECT') LIMIT 1")
    .await?;
    if let Some(row) = granted.first() {
        let table: String = row.try_get_by_index(0).map_err(classify)?;
        return Err(StoreError::Setup(format!(
            "partition `{table}` has a grant of its own, which would leak its rows"
        )));
    }
    Ok(version)
}

/// Makes missing partitions. The journal's are made three months ahead, so that a week's turn waits for nobody.
pub(super) async fn make_room(
    connection: &DatabaseTransaction,
    table: Partitioned,
    keys_us: impl IntoIterator<Item = i64>,
) -> Result<(), StoreError> {
    let (parent, width, ahead) = match table {
        Partitioned::UsageBatch => ("usage_batch", WEEK_US, AHEAD_US),
        Partitioned::NodeHour => ("node_hour", MONTH_US, 0),
    };
    let backend = connection.get_database_backend();
    let wanted: BTreeSet<i64> = keys_us.into_iter().map(|key| key.div_euclid(width)).collect();
    for number in wanted {
        let low = number.saturating_mul(width);
        let sql = "SELECT to_regclass($1) IS NOT NULL";
        let statement =
            Statement::from_sql_and_values(backend, sql, [format!("public.\"{parent}_{low}\"").into()]);
        let row = connection.query_one_raw(statement).await.map_err(classify)?;
        if row.is_some_and(|row| row.try_get_by_index::<bool>(0).unwrap_or(false)) {
            continue;
        }
        for number in number..=low.saturating_add(ahead).div_euclid(width) {
            let low = number.saturating_mul(width);
            let sql = "SELECT fatia_ensure_partition($1, $2, $3)";
            let values = [parent.into(), low.into(), low.saturating_add(width).into()];
            connection
                .execute_raw(Statement::from_sql_and_values(backend, sql, values))
                .await
                .map_err(classify)?;
        }
    }
    Ok(())
}

/// Serialization failure, deadlock, lock not available.
pub(super) fn is_busy(error: &dyn DatabaseError) -> bool {
    matches!(error.code().as_deref(), Some("40001" | "40P01" | "55P03"))
}

/// The server is going down, or the connection was ended by it.
pub(super) fn is_gone(error: &dyn DatabaseError) -> bool {
    error.code().is_some_and(|code| {
        code.starts_with("08") || code.starts_with("57P") || code == "53300" || code == "25P03"
    })
}

pub(super) fn violated_rule(error: &dyn DatabaseError) -> Option<String> {
    error.code().filter(|code| code.starts_with("23"))?;
    error.constraint().map(str::to_owned)
}
