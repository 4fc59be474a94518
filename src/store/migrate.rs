//! Applies the paired migrations and checks that a database is at this program's version.

use std::borrow::Cow;
use std::path::Path;

use sqlx::migrate::{Migrate, Migration, MigrationType, Migrator};
use sqlx::postgres::PgConnection;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{Connection, SqlSafeStr};

use super::backend::sqlite::file_options;
use super::error::StoreError;

macro_rules! migrations {
    ($folder:literal) => {
        [
            (1, "tenancy", include_str!(concat!("../../migrations/", $folder, "/0001_tenancy.sql"))),
            (2, "fleet", include_str!(concat!("../../migrations/", $folder, "/0002_fleet.sql"))),
            (3, "journal", include_str!(concat!("../../migrations/", $folder, "/0003_journal.sql"))),
            (4, "levels", include_str!(concat!("../../migrations/", $folder, "/0004_levels.sql"))),
            (5, "prices", include_str!(concat!("../../migrations/", $folder, "/0005_prices.sql"))),
            (6, "shares", include_str!(concat!("../../migrations/", $folder, "/0006_shares.sql"))),
            (7, "catalogue", include_str!(concat!("../../migrations/", $folder, "/0007_catalogue.sql"))),
            (8, "states", include_str!(concat!("../../migrations/", $folder, "/0008_states.sql"))),
            (9, "pools", include_str!(concat!("../../migrations/", $folder, "/0009_pools.sql"))),
            (10, "service", include_str!(concat!("../../migrations/", $folder, "/0010_service.sql"))),
            (11, "months", include_str!(concat!("../../migrations/", $folder, "/0011_months.sql"))),
            (12, "agents", include_str!(concat!("../../migrations/", $folder, "/0012_agents.sql"))),
            (13, "demo", include_str!(concat!("../../migrations/", $folder, "/0013_demo.sql"))),
        ]
    };
}

const POSTGRES: [(i64, &str, &str); 13] = migrations!("postgres");
const SQLITE: [(i64, &str, &str); 13] = migrations!("sqlite");

fn migrator(files: &'static [(i64, &'static str, &'static str)]) -> Migrator {
    let migrations = files
        .iter()
        .map(|(version, name, sql)| {
            Migration::new(
                *version,
                Cow::Borrowed(*name),
                MigrationType::Simple,
                (*sql).into_sql_str(),
                false,
            )
        })
        .collect();
    Migrator::with_migrations(migrations)
}

fn setup(error: impl std::fmt::Display) -> StoreError {
    StoreError::Setup(format!("the schema cannot be brought up to date: {error}"))
}

/// Brings a PostgreSQL database up to date. Connects as the role that owns the schema.
///
/// # Errors
/// [`StoreError::Setup`] when it cannot be reached or a file was changed after it was applied.
pub async fn migrate_server(url: &str) -> Result<(), StoreError> {
    let mut connection = PgConnection::connect(url).await.map_err(setup)?;
    migrator(&POSTGRES).run(&mut connection).await.map_err(setup)?;
    connection.close().await.map_err(setup)
}

/// Brings an embedded database up to date, and makes the file where it is missing.
///
/// # Errors
/// [`StoreError::Setup`] when it cannot be written or a file was changed after it was applied.
pub async fn migrate_file(path: &Path) -> Result<(), StoreError> {
    let setup =
        |error: sqlx::Error| StoreError::Setup(format!("{} cannot be opened: {error}", path.display()));
    let options = file_options(SqliteConnectOptions::new().filename(path)).create_if_missing(true);
    let mut connection = SqliteConnection::connect_with(&options).await.map_err(setup)?;
    migrator(&SQLITE).run(&mut connection).await.map_err(|error| {
        StoreError::Setup(format!("the schema of {} cannot be brought up to date: {error}", path.display()))
    })?;
    connection.close().await.map_err(setup)
}

/// Refuses a PostgreSQL database whose schema is not this program's.
pub(super) async fn check_connected(url: &str) -> Result<(), StoreError> {
    let mut connection = PgConnection::connect(url).await.map_err(|error| {
        StoreError::Unavailable(sea_orm::DbErr::Conn(sea_orm::RuntimeErr::SqlxError(error.into())))
    })?;
    let applied = connection.list_applied_migrations("_sqlx_migrations").await;
    connection.close().await.map_err(setup)?;
    let hint = "run `fatia migrate` with DATABASE_MIGRATE_URL set to the schema's owner";
    let applied =
        applied.map_err(|error| StoreError::Setup(format!("the schema is not there ({error}); {hint}")))?;
    let mut applied: Vec<i64> = applied.into_iter().map(|each| each.version).collect();
    applied.sort_unstable();
    let known: Vec<i64> = POSTGRES.iter().map(|(version, ..)| *version).collect();
    if applied == known {
        return Ok(());
    }
    Err(StoreError::Setup(format!(
        "the schema has migrations {applied:?}, this program knows {known:?}; {hint}"
    )))
}
