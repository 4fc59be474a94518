//! The one executable. Reads settings, opens the store, builds what the services need, and runs one edge.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use clap::Parser;
use fatia::agent::identity::Identity;
use fatia::cli::{
    self, Arguments, Command, DemoArguments, Ending, ServeArguments, Target, WorkerArguments, door,
};
use fatia::config::{HttpSettings, LogFormat, Settings};
use fatia::domain::units::Instant;
use fatia::services::ctx::{BillingSettings, Clock, Platform};
use fatia::services::derive::Worker;
use fatia::services::error::ServiceError;
use fatia::store::{Store, migrate};
use fatia::wire::token;
use fatia::{http, worker};
use tracing_subscriber::EnvFilter;

#[path = "main/demo.rs"]
mod demo;
#[path = "main/node.rs"]
mod node;

fn main() -> ExitCode {
    // Whoever speaks to a service speaks TLS with it: by the one implementation that is built in.
    let _installed_by_nobody_else = rustls::crypto::ring::default_provider().install_default();
    let mut arguments = Arguments::parse();
    if let (Command::Demo(_), true) = (&arguments.command, arguments.data == Path::new("fatia-data")) {
        // What is made up lies beside nothing that is not.
        arguments.data = Path::new("data").join("demo");
    }
    let mut settings = match Settings::load(&arguments.data, arguments.config.as_deref()) {
        Ok(settings) => settings,
        Err(error) => return fail(&error.into(), 1),
    };
    if let Command::Demo(_) = arguments.command {
        // What is made up is kept in its own folder and money, whatever somebody's environment names.
        settings.database.url = None;
        (settings.billing.zone, settings.billing.currency) = (None, None);
        (settings.http.tls_certificate, settings.http.tls_key) = (None, None);
        // Its own agents tell months in seconds.
        (settings.http.token_rate, settings.http.token_burst) = (5_000, 5_000);
    }
    log_as(settings.log.format, matches!(arguments.command, Command::Demo(_)));
    if let Command::Agent(agent) = &arguments.command {
        // No runtime is under it: two threads do it all.
        return match node::Options::of("fatia agent", &agent.rest) {
            Ok(options) => node::ending(node::run(&options, &arguments.data)),
            Err(said) => said,
        };
    }
    if let Command::Doctor(doctor) = &arguments.command
        && (doctor.node || has_agent(&arguments.data))
    {
        let is_all = doctor.node || !has_database(&arguments.data, &settings);
        match node::check(&node::Options::default(), &arguments.data) {
            Ok(true) if !is_all => {}
            checked => return node::ending(checked.map(|is_well| if is_well { 0 } else { 1 })),
        }
    }
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

/// Whether an agent was enrolled in this data directory.
fn has_agent(data: &Path) -> bool {
    Identity::load(&node::folder_in(data)).is_ok_and(|kept| kept.is_some())
}

/// Whether this data directory is of a service, or somewhere else is its database.
fn has_database(data: &Path, settings: &Settings) -> bool {
    settings.database.url.is_some() || Store::is_at(data)
}

/// Logs to standard error. What is logged holds no secret: no token, no URL with a password, no body.
fn log_as(format: LogFormat, is_demo: bool) {
    // Whoever looks at a demo looks for its address, not for each tenant and rule that it makes.
    let by_default = if is_demo {
        "info,sqlx=warn,actix_server=warn,fatia::worker=warn"
    } else {
        "info,sqlx=warn,actix_server=warn"
    };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(by_default));
    let log =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false);
    match format {
        LogFormat::Text => log.init(),
        LogFormat::Json => log.json().flatten_event(true).init(),
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
    if cli::is_for_a_service(&arguments.command)
        && let Some(server) =
            door::find(&arguments.data, settings.database.url.as_deref(), &fatia::config::actor())
    {
        return Ok(cli::run(&Target::Server(server), &arguments.command, node::random).await?);
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
    node::random(&mut seed).map_err(anyhow::Error::msg)?;
    let billing = BillingSettings { zone: settings.billing.zone, currency: settings.billing.currency };
    let mut platform = Platform::open(store, fatia::config::actor(), Arc::new(clock), billing, seed).await?;
    if let Command::Demo(_) = arguments.command {
        platform = platform.as_demo().await?;
    }
    let worker = this_worker(&arguments.command, settings, started);
    match &arguments.command {
        Command::Worker(WorkerArguments { once: true, .. }) => worker::run_once(&platform, &worker).await?,
        Command::Worker(WorkerArguments { once: false, .. }) => {
            tracing::info!(worker = %worker.holder, "working on {}", platform.store.describe());
            worker::run(&platform, &worker, node::stopped()).await?;
        }
        Command::Serve(options) => serve(&platform, &worker, arguments, options, None, settings).await?,
        Command::Demo(demo) => {
            let options = ServeArguments { listen: Some(demo.listen), no_worker: false, print_token: true };
            serve(&platform, &worker, arguments, &options, Some(demo), settings).await?;
        }
        command => return Ok(cli::run(&Target::Here(&platform, &worker), command, node::random).await?),
    }
    Ok(Ending::Done)
}

/// Answers, and derives, until asked to stop: then requests that are under way end, and what is begun is finished.
async fn serve(
    platform: &Platform,
    holder: &Worker,
    arguments: &Arguments,
    options: &ServeArguments,
    demo: Option<&DemoArguments>,
    settings: &Settings,
) -> anyhow::Result<()> {
    let mut bytes = [0; 40];
    node::random(&mut bytes).map_err(anyhow::Error::msg)?;
    let minted = token::mint(&bytes);
    let door_settings = http_settings(&settings.http, options)?;
    let running = http::start(
        platform,
        http::Door { settings: door_settings, token: minted.clone(), random: node::random },
    )?;
    let door = door::open(&arguments.data, settings.database.url.as_deref(), running.local, &minted.text)?;
    let scheme = if running.is_tls { "https" } else { "http" };
    let address = format!("{scheme}://{}", running.address);
    tracing::info!(%address, "answering on {address} from {}", platform.store.describe());
    let say_ready = || {
        use std::io::Write;
        let token = if options.print_token { format!(" token={}", minted.text) } else { String::new() };
        let mut out = std::io::stdout();
        let _closed_by_its_reader = writeln!(out, "ready {address}{token}").and_then(|()| out.flush());
        if demo.is_some() {
            // Beside the log, which holds no token: for whoever sits at this terminal.
            // Everywhere is no place that a browser can go to.
            let address = address.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:");
            let text = format!(
                "\nA made-up company, its fleet and its prices. Open {address}/#token={} in a browser.\n\
                 The data is in {}; Ctrl-C stops it.\n",
                minted.text,
                arguments.data.display()
            );
            let _closed_by_its_reader = writeln!(std::io::stderr(), "{text}");
        }
    };
    let is_over = Arc::new(AtomicBool::new(false));
    let telling = async {
        if let Some(arguments_of_demo) = demo {
            let (data, is_over) = (&arguments.data, Arc::clone(&is_over));
            let told = demo::prepare(platform, arguments_of_demo, data, address.clone(), is_over).await?;
            told.tell(platform).await?;
        }
        say_ready();
        anyhow::Ok(())
    };
    let (stop, mut stopping) = tokio::sync::watch::channel(false);
    let until_told = async move {
        let _ended = stopping.wait_for(|told| *told).await;
    };
    let derives = !options.no_worker || platform.store.is_embedded();
    let work = async {
        if derives {
            worker::run(platform, holder, until_told).await
        } else {
            until_told.await;
            Ok(())
        }
    };
    let ending = async {
        node::stopped().await;
        tracing::info!("stopping: requests that are under way end");
        running.stop().await;
        let _told = stop.send(true);
    };
    // What is told goes on by itself; agents' threads end with the service, and what they keep is on the disk.
    let telling = async {
        match telling.await {
            Ok(()) => std::future::pending().await,
            Err(error) => error,
        }
    };
    tokio::pin!(work);
    tokio::pin!(ending);
    tokio::pin!(telling);
    // A worker that cannot go on ends the service: it would answer with figures that nobody brings up to date.
    let worked = tokio::select! {
        worked = &mut work => {
            running.stop().await;
            worked
        }
        () = &mut ending => work.await,
        error = &mut telling => {
            is_over.store(true, Ordering::Release);
            running.stop().await;
            return Err(error);
        }
    };
    is_over.store(true, Ordering::Release);
    drop(door);
    Ok(worked?)
}

fn http_settings(settings: &HttpSettings, options: &ServeArguments) -> anyhow::Result<http::Settings> {
    let tls = match (&settings.tls_certificate, &settings.tls_key) {
        (None, None) => None,
        (Some(certificate), Some(key)) => Some((certificate.clone(), key.clone())),
        (Some(_), None) | (None, Some(_)) => {
            anyhow::bail!("settings: http.tls_certificate and http.tls_key are given together or not at all")
        }
    };
    Ok(http::Settings {
        listen: options.listen.unwrap_or(settings.listen),
        tls,
        threads: settings.threads,
        connections_max: settings.connections_max,
        head_seconds: settings.head_seconds,
        body_seconds: settings.body_seconds,
        stop_seconds: settings.stop_seconds,
        token_rate: settings.token_rate,
        token_burst: settings.token_burst,
        address_rate: settings.address_rate,
        address_burst: settings.address_burst,
        import_mib_max: settings.import_mib_max,
    })
}

/// This process as a worker: its name is unlike any other's, also after a process number comes again.
fn this_worker(command: &Command, settings: &Settings, started: Instant) -> Worker {
    let named = match command {
        Command::Worker(arguments) => arguments.holder.clone(),
        _ => None,
    };
    let holder = named.unwrap_or_else(|| format!("{}-{}", std::process::id(), started.micros()));
    Worker { holder, lease_seconds: settings.worker.lease_seconds }
}

/// The clock of this machine.
#[derive(Debug, Clone, Copy)]
struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Instant {
        Instant::from_micros(node::wall_micros())
    }
}
