//! The one executable. Reads settings, opens the store, builds what the services need, and runs one edge.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use clap::Parser;
use fatia::cli::{Arguments, Command, Ending, WorkerArguments};
use fatia::config::Settings;
use fatia::domain::units::Instant;
use fatia::services::ctx::{BillingSettings, Clock, Platform};
use fatia::services::derive::Worker;
use fatia::services::error::ServiceError;
use fatia::store::{Store, migrate};
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info,sqlx=warn"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false).init();
    let settings = match Settings::load(&arguments.data, arguments.config.as_deref()) {
        Ok(settings) => settings,
        Err(error) => return fail(&error.into(), 1),
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&error.into(), 1),
    };
    match runtime.block_on(run(&arguments, &settings)) {
        Ok(ending) => ExitCode::from(ending.code()),
        Err(error) => {
            let code = error.downcast_ref::<ServiceError>().map_or(1, Ending::code_of);
            fail(&error, code)
        }
    }
}

fn fail(error: &anyhow::Error, code: u8) -> ExitCode {
    use std::io::Write;
    let _closed_by_its_reader = writeln!(std::io::stderr(), "fatia: {error}");
    ExitCode::from(code)
}

async fn run(arguments: &Arguments, settings: &Settings) -> anyhow::Result<Ending> {
    if matches!(arguments.command, Command::Migrate) {
        let url = settings.database.migrate_url.as_deref();
        let url = url.context("DATABASE_MIGRATE_URL is not set; an embedded database migrates itself")?;
        migrate::migrate_server(url).await.map_err(ServiceError::Store)?;
        tracing::info!("the schema is up to date");
        return Ok(Ending::Done);
    }
    let clock = SystemClock;
    let started = clock.now();
    let store = match &settings.database.url {
        Some(url) => Store::connect(url, settings.database.connections).await,
        None => {
            Store::open(&arguments.data, &format!("process {}, since {started}", std::process::id())).await
        }
    };
    let store = store.map_err(ServiceError::Store)?;
    let mut seed = [0; 32];
    getrandom::fill(&mut seed).map_err(|error| anyhow::anyhow!("no random bytes: {error}"))?;
    let billing = BillingSettings { zone: settings.billing.zone, currency: settings.billing.currency };
    let platform = Platform::open(store, fatia::config::actor(), Arc::new(clock), billing, seed).await?;
    let worker = worker(&arguments.command, settings, started);
    match &arguments.command {
        Command::Worker(WorkerArguments { once: true, .. }) => {
            fatia::worker::run_once(&platform, &worker).await?
        }
        Command::Worker(WorkerArguments { once: false, .. }) => {
            tracing::info!(worker = %worker.holder, "working on {}", platform.store.describe());
            fatia::worker::run(&platform, &worker, stopped()).await?;
        }
        command => return Ok(fatia::cli::run(&platform, &worker, command).await?),
    }
    Ok(Ending::Done)
}

/// This process as a worker: its name is unlike any other's, also after a process number comes again.
fn worker(command: &Command, settings: &Settings, started: Instant) -> Worker {
    let named = match command {
        Command::Worker(arguments) => arguments.holder.clone(),
        _ => None,
    };
    let holder = named.unwrap_or_else(|| format!("{}-{}", std::process::id(), started.micros()));
    Worker { holder, lease_seconds: settings.worker.lease_seconds }
}

/// Completes when the process is asked to stop.
async fn stopped() {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        if let Ok(mut terminate) = signal(SignalKind::terminate()) {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = tokio::signal::ctrl_c() => {}
            }
            return;
        }
    }
    let _no_signals_here = tokio::signal::ctrl_c().await;
}

/// The clock of this machine.
#[derive(Debug, Clone, Copy)]
struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Instant {
        #[expect(clippy::disallowed_methods, reason = "main owns the one clock")]
        let now = std::time::SystemTime::now();
        let since = now.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Instant::from_micros(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
    }
}
