//! The one executable. Reads settings, opens the store, builds what the services need, and runs one edge.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use clap::Parser;
use fatia::agent::clock::{Reading, ServerClock};
use fatia::agent::identity::Identity;
use fatia::agent::machine::Machine;
use fatia::agent::nvml::host::Roots;
use fatia::agent::nvml::{NvmlOptions, NvmlSource};
use fatia::agent::run::Agent;
use fatia::agent::scripted::ScriptedSource;
use fatia::agent::upstream::Http;
use fatia::agent::{self, sender};
use fatia::cli::{
    self, AgentArguments, Arguments, Command, Ending, ServeArguments, Target, WorkerArguments, door,
};
use fatia::config::{HttpSettings, LogFormat, Settings};
use fatia::domain::ids::Name;
use fatia::domain::units::{Instant, MICROS_PER_HOUR};
use fatia::services::ctx::{BillingSettings, Clock, Platform};
use fatia::services::derive::Worker;
use fatia::services::error::ServiceError;
use fatia::store::{Store, migrate};
use fatia::wire::token;
use fatia::{http, worker};
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    // Whoever speaks to a service speaks TLS with it: by the one implementation that is built in.
    let _installed_by_nobody_else = rustls::crypto::ring::default_provider().install_default();
    let arguments = Arguments::parse();
    let settings = match Settings::load(&arguments.data, arguments.config.as_deref()) {
        Ok(settings) => settings,
        Err(error) => return fail(&error.into(), 1),
    };
    log_as(settings.log.format);
    if let Command::Agent(options) = &arguments.command {
        return match run_agent(&arguments, options) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => fail(&error, 1),
        };
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

/// Logs to standard error. What is logged holds no secret: no token, no URL with a password, no body.
fn log_as(format: LogFormat) {
    let filter = EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| EnvFilter::new("info,sqlx=warn,actix_server=warn"));
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
        return Ok(cli::run(&Target::Server(server), &arguments.command, random).await?);
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
    random(&mut seed).map_err(anyhow::Error::msg)?;
    let billing = BillingSettings { zone: settings.billing.zone, currency: settings.billing.currency };
    let platform = Platform::open(store, fatia::config::actor(), Arc::new(clock), billing, seed).await?;
    let worker = this_worker(&arguments.command, settings, started);
    match &arguments.command {
        Command::Worker(WorkerArguments { once: true, .. }) => worker::run_once(&platform, &worker).await?,
        Command::Worker(WorkerArguments { once: false, .. }) => {
            tracing::info!(worker = %worker.holder, "working on {}", platform.store.describe());
            worker::run(&platform, &worker, stopped()).await?;
        }
        Command::Serve(options) => serve(&platform, &worker, arguments, options, settings).await?,
        command => return Ok(cli::run(&Target::Here(&platform, &worker), command, random).await?),
    }
    Ok(Ending::Done)
}

/// Answers, and derives, until asked to stop: then requests that are under way end, and what is begun is finished.
async fn serve(
    platform: &Platform,
    holder: &Worker,
    arguments: &Arguments,
    options: &ServeArguments,
    settings: &Settings,
) -> anyhow::Result<()> {
    let mut bytes = [0; 40];
    random(&mut bytes).map_err(anyhow::Error::msg)?;
    let minted = token::mint(&bytes);
    let door_settings = http_settings(&settings.http, options)?;
    let running =
        http::start(platform, http::Door { settings: door_settings, token: minted.clone(), random })?;
    let door = door::open(&arguments.data, settings.database.url.as_deref(), running.local, &minted.text)?;
    let scheme = if running.is_tls { "https" } else { "http" };
    let address = format!("{scheme}://{}", running.address);
    tracing::info!(%address, "answering on {address} from {}", platform.store.describe());
    {
        use std::io::Write;
        let token = if options.print_token { format!(" token={}", minted.text) } else { String::new() };
        let mut out = std::io::stdout();
        let _closed_by_its_reader = writeln!(out, "ready {address}{token}").and_then(|()| out.flush());
    }
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
        stopped().await;
        tracing::info!("stopping: requests that are under way end");
        running.stop().await;
        let _told = stop.send(true);
    };
    tokio::pin!(work);
    tokio::pin!(ending);
    // A worker that cannot go on ends the service: it would answer with figures that nobody brings up to date.
    let worked = tokio::select! {
        worked = &mut work => {
            running.stop().await;
            worked
        }
        () = &mut ending => work.await,
    };
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

/// Watches this node until it is asked to stop. No runtime is under it: two threads do it all.
fn run_agent(arguments: &Arguments, options: &AgentArguments) -> anyhow::Result<()> {
    let machine: Arc<dyn Machine> = Arc::new(Host { boot: boot_id() });
    let folder = arguments.data.join("agent");
    let kept = Identity::load(&folder)?;
    let node = match (&options.node, &kept) {
        (Some(node), _) => node.clone(),
        (None, Some(kept)) => Name::parse(&kept.node)?,
        (None, None) => Name::parse(&host_name()).context("the host has no name; give one with --node")?,
    };
    let mut identity = match kept {
        Some(kept) if kept.node == node.as_str() => kept,
        Some(kept) => anyhow::bail!("{} holds the agent of {}, not of {node}", folder.display(), kept.node),
        None => {
            let server = options.server.as_deref();
            let server = server.context("this node is not enrolled: give --server and --enrol")?;
            Identity::make(&*machine, server, &node)?
        }
    };
    if let Some(server) = &options.server {
        server.trim_end_matches('/').clone_into(&mut identity.server);
    }
    identity.save(&folder)?;
    let script = options.fleet.as_ref().map(|file| {
        let text =
            std::fs::read_to_string(file).with_context(|| format!("{} cannot be read", file.display()))?;
        ScriptedSource::open(&text, &node).with_context(|| file.display().to_string())
    });
    let script = script.transpose()?;
    let authority = options
        .ca
        .as_ref()
        .map(|file| std::fs::read(file).with_context(|| format!("{} cannot be read", file.display())));
    let authority = authority.transpose()?;
    let mut upstream = Http::new(&identity.server, authority.as_deref()).map_err(anyhow::Error::msg)?;
    let mut clock = ServerClock::restored(&identity.clock);
    let stop = Arc::new(AtomicBool::new(false));
    stop_on_signals(Arc::clone(&stop))?;
    if identity.agent.is_none() {
        let token = options.enrol.as_deref().context("this node is not enrolled: give --enrol")?;
        // A token in a file is not seen in the list of processes.
        let token = match std::fs::read_to_string(token) {
            Ok(text) => text,
            Err(_) => token.to_owned(),
        };
        sender::enrol(&mut upstream, &*machine, &mut identity, &mut clock, &token)
            .map_err(anyhow::Error::msg)?;
        identity.save(&folder)?;
        tracing::info!("enrolled as the agent of {node}");
    }
    let settings = agent::run::Settings {
        folder,
        budget: options.spool_mib.saturating_mul(1 << 20),
        keep_acknowledged_micros: options.keep_hours.saturating_mul(MICROS_PER_HOUR),
        sample_every: Duration::from_millis(options.every_ms),
        batch_windows: usize::try_from(options.batch_windows).unwrap_or(usize::MAX),
    };
    let counts = match (script, options.replay) {
        (Some(source), Some(span)) => {
            Agent { settings, identity, clock, source, upstream, machine, stop }.replay(span)?
        }
        (Some(source), None) => Agent { settings, identity, clock, source, upstream, machine, stop }.run()?,
        (None, _) => {
            let found = NvmlOptions { library: options.nvml_library.clone(), roots: Roots::default() };
            let source = NvmlSource::new(found);
            Agent { settings, identity, clock, source, upstream, machine, stop }.run()?
        }
    };
    tracing::info!(
        acknowledged = counts.acknowledged,
        "the service has {} batches more, {} of them twice",
        counts.acknowledged,
        counts.duplicates
    );
    Ok(())
}

/// Sets a flag when the process is asked to stop, from a thread of its own.
fn stop_on_signals(stop: Arc<AtomicBool>) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
        runtime.block_on(stopped());
        stop.store(true, Ordering::Release);
    })?;
    Ok(())
}

/// Which run of the machine this is.
fn boot_id() -> Name {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    Name::parse(&text).unwrap_or_else(|_| Name::fixed("unknown"))
}

fn host_name() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default()
}

/// The machine that an agent runs on.
#[derive(Debug)]
struct Host {
    boot: Name,
}

impl Machine for Host {
    fn reading(&self) -> Reading {
        // It goes on while the machine sleeps, which the standard library's does not.
        let since_boot = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let monotonic_nanos =
            since_boot.tv_sec.saturating_mul(1_000_000_000).saturating_add(since_boot.tv_nsec);
        Reading { boot: self.boot.clone(), monotonic_nanos, wall_micros: SystemClock.now().micros() }
    }

    fn sleep(&self, time: Duration) {
        std::thread::sleep(time);
    }

    fn random(&self, bytes: &mut [u8]) -> Result<(), String> {
        random(bytes)
    }
}

/// Fills with random bytes.
fn random(bytes: &mut [u8]) -> Result<(), String> {
    getrandom::fill(bytes).map_err(|error| format!("no random bytes: {error}"))
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
