//! What runs on a GPU host, for both executables: its options, its clocks, and one edge.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use clap::Parser;
use fatia::agent::checkup::{self, Check, State};
use fatia::agent::clock::{Reading, ServerClock};
use fatia::agent::identity::Identity;
use fatia::agent::machine::Machine;
use fatia::agent::nvml::host::Roots;
use fatia::agent::nvml::{NvmlOptions, NvmlSource};
use fatia::agent::run::{Agent, Settings};
use fatia::agent::scripted::ScriptedSource;
use fatia::agent::source::{Sample, Source};
use fatia::agent::upstream::Http;
use fatia::agent::{nvml, sender, show};
use fatia::domain::ids::Name;
use fatia::domain::period::Span;
use fatia::domain::units::{Instant, MICROS_PER_HOUR};

/// Where windows of what is played are cut.
const MINUTE: Duration = Duration::from_secs(60);

/// Watch this node's GPUs and report who holds what, until stopped.
#[derive(Debug, Parser)]
#[command(version, disable_version_flag = true)]
pub(super) struct Options {
    /// Where the agent keeps its key and what is unsent, in a folder `agent` [default: fatia-data]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// The service's address, such as https://fatia.example:8443; needed to enrol, and kept
    #[arg(long, value_name = "URL")]
    server: Option<String>,
    /// An enrolment token, or a file that holds one [default: the node is enrolled already]
    #[arg(long, value_name = "TOKEN|FILE")]
    enrol: Option<String>,
    /// What this node is called [default: the host's name]
    #[arg(long, value_name = "NAME", value_parser = Name::parse)]
    node: Option<Name>,
    /// A PEM file of the certificates by which the service is trusted [default: the machine's]
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// NVIDIA's management library [default: libnvidia-ml.so.1 where the loader finds it]
    #[arg(long, value_name = "PATH", conflicts_with = "fleet")]
    nvml_library: Option<PathBuf>,
    /// Print what would be reported, in words, send nothing and end
    #[arg(long, conflicts_with_all = ["replay", "check"])]
    dry_run: bool,
    /// Check what the agent needs on this node and of its service, and end
    #[arg(long, conflicts_with = "replay")]
    check: bool,
    /// Play a node of this fleet file in place of this host's GPUs
    #[arg(long, value_name = "FILE")]
    fleet: Option<PathBuf>,
    /// Play this span of the fleet file as fast as the service takes it, and end [default: live]
    #[arg(long, value_name = "FROM/TO", value_parser = Span::parse, requires = "fleet")]
    replay: Option<Span>,
    /// Between two looks at the GPUs, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(10..=60_000))]
    every_ms: u64,
    /// Disk that unsent reports may take
    #[arg(long, value_name = "MIB", default_value_t = 256, value_parser = clap::value_parser!(u64).range(1..=1_048_576))]
    spool_mib: u64,
    /// How long sent reports are kept, for a service that is restored, in hours
    #[arg(long, value_name = "HOURS", default_value_t = 48, value_parser = clap::value_parser!(i64).range(0..=100_000))]
    keep_hours: i64,
    /// Windows of one batch, at most
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u64).range(1..=512))]
    batch_windows: u64,
}

impl Options {
    /// Reads them; what is to be said instead, where they cannot be read or help was asked for, is said by this.
    pub(super) fn of(program: &'static str, rest: &[OsString]) -> Result<Self, ExitCode> {
        let mut command = <Self as clap::CommandFactory>::command().name(program).bin_name(program);
        let all = std::iter::once(OsString::from(program)).chain(rest.iter().cloned());
        let read = command.try_get_matches_from_mut(all);
        read.and_then(|read| <Self as clap::FromArgMatches>::from_arg_matches(&read)).map_err(|said| {
            let _closed_by_its_reader = said.print();
            ExitCode::from(u8::try_from(said.exit_code()).unwrap_or(2))
        })
    }
}

impl Default for Options {
    fn default() -> Self {
        Self::parse_from(["fatia-agent"])
    }
}

/// Where an agent's own files are, in a data directory.
pub(super) fn folder_in(data: &Path) -> PathBuf {
    data.join("agent")
}

/// Says what it ended with.
pub(super) fn ending(ended: anyhow::Result<u8>) -> ExitCode {
    match ended {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            use std::io::Write;
            let _closed_by_its_reader = writeln!(std::io::stderr(), "fatia: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Does what the options say, and returns how it ended.
pub(super) fn run(options: &Options, data: &Path) -> anyhow::Result<u8> {
    let data = options.data.as_deref().unwrap_or(data);
    if options.check {
        return Ok(u8::from(!check(options, data)?));
    }
    if options.dry_run {
        return dry_run(options, data).map(|()| 0);
    }
    watch(options, data).map(|()| 0)
}

/// The node's name: as it is said, as it is enrolled, or as the host is called.
fn node_name(options: &Options, kept: Option<&Identity>) -> anyhow::Result<Name> {
    Ok(match (&options.node, kept) {
        (Some(node), _) => node.clone(),
        (None, Some(kept)) => Name::parse(&kept.node)?,
        (None, None) => Name::parse(&host_name()).context("the host has no name; give one with --node")?,
    })
}

// What stands at the end is all that is shown, so the cause stands in it.
fn in_file(file: &Path, error: &dyn std::error::Error) -> anyhow::Error {
    anyhow::anyhow!("{}: {error}", file.display())
}

/// The script that is played, where one is.
fn script(options: &Options, node: &Name) -> anyhow::Result<Option<ScriptedSource>> {
    let script = options.fleet.as_ref().map(|file| {
        let text = std::fs::read_to_string(file).map_err(|error| in_file(file, &error))?;
        ScriptedSource::open(&text, node).map_err(|error| in_file(file, &error))
    });
    script.transpose()
}

fn nvml_options(options: &Options) -> NvmlOptions {
    NvmlOptions { library: options.nvml_library.clone(), roots: Roots::default() }
}

fn way_to(server: &str, options: &Options) -> anyhow::Result<Http> {
    let authority =
        options.ca.as_ref().map(|file| std::fs::read(file).map_err(|error| in_file(file, &error)));
    Http::new(server, authority.transpose()?.as_deref()).map_err(anyhow::Error::msg)
}

/// Watches this node until it is asked to stop. No runtime is under it: two threads do it all.
fn watch(options: &Options, data: &Path) -> anyhow::Result<()> {
    let machine: Arc<dyn Machine> = Arc::new(Host { boot: boot_id() });
    let folder = folder_in(data);
    let kept = Identity::load(&folder)?;
    let node = node_name(options, kept.as_ref())?;
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
    let script = script(options, &node)?;
    let mut upstream = way_to(&identity.server, options)?;
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
    let settings = Settings {
        folder,
        budget: options.spool_mib.saturating_mul(1 << 20),
        keep_acknowledged_micros: options.keep_hours.saturating_mul(MICROS_PER_HOUR),
        sample_every: Duration::from_millis(options.every_ms),
        batch_windows: usize::try_from(options.batch_windows).unwrap_or(usize::MAX),
    };
    let counts = match (script, options.replay) {
        (Some(source), Some(span)) => {
            Agent { settings, identity, clock, source, upstream, machine, stop }.replay(span, MINUTE)?
        }
        (Some(source), None) => Agent { settings, identity, clock, source, upstream, machine, stop }.run()?,
        (None, _) => {
            let source = NvmlSource::new(nvml_options(options));
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

/// Prints what two looks would report.
fn dry_run(options: &Options, data: &Path) -> anyhow::Result<()> {
    let kept = Identity::load(&folder_in(data))?;
    let node = node_name(options, kept.as_ref())?;
    let every = Duration::from_millis(options.every_ms);
    let text = match script(options, &node)? {
        Some(mut source) => looked(&node, &mut source, every)?,
        None => {
            let mut source = NvmlSource::new(nvml_options(options));
            let text = looked(&node, &mut source, every)?;
            match source.condition() {
                Some(condition) if *condition != nvml::library::Condition::Ready => {
                    format!("{condition}. {}\n\n{text}", condition.remedy())
                }
                _ => text,
            }
        }
    };
    say(&format!("{text}\nNothing was sent."));
    Ok(())
}

/// Looks twice, so that something can have been measured.
fn looked(node: &Name, source: &mut impl Source, every: Duration) -> anyhow::Result<String> {
    let mut sample = Sample::default();
    let now = || Instant::from_micros(wall_micros());
    source.sample(now(), &mut sample)?;
    std::thread::sleep(every);
    let at = now();
    source.sample(at, &mut sample)?;
    let inventory = source.inventory()?;
    Ok(show::describe(node.as_str(), &inventory, &sample, at))
}

/// Checks what an agent needs here, prints it, and returns whether nothing is broken.
pub(super) fn check(options: &Options, data: &Path) -> anyhow::Result<bool> {
    let machine = Host { boot: boot_id() };
    let mut checks = match &options.fleet {
        Some(_) => Vec::new(),
        None => nvml::checkup::of_host(&nvml_options(options)),
    };
    let folder = folder_in(data);
    match (Identity::load(&folder), &options.server) {
        (Ok(Some(identity)), _) => {
            let mut upstream = way_to(&identity.server, options)?;
            checks.extend(checkup::of_service(&mut upstream, &machine, &identity));
        }
        (Ok(None), Some(server)) => {
            let node = node_name(options, None)?;
            let stranger = Identity::make(&machine, server, &node)?;
            checks.extend(checkup::of_service(&mut way_to(server, options)?, &machine, &stranger));
        }
        (Ok(None), None) => {
            let found = format!("{} holds no agent", folder.display());
            let remedy =
                "Make a token with `fatia node token`, and start the agent with --server and --enrol.";
            checks.push(Check::broken("agent", found, remedy));
        }
        (Err(error), _) => {
            let remedy = "Enrol the node anew with a token that replaces its agent.";
            checks.push(Check::broken("agent", error.to_string(), remedy));
        }
    }
    let is_well = checks.iter().all(|check| check.state != State::Broken);
    let lines: Vec<String> = checks.iter().map(ToString::to_string).collect();
    say(&lines.join("\n"));
    Ok(is_well)
}

fn say(text: &str) {
    use std::io::Write;
    let _closed_by_its_reader = writeln!(std::io::stdout(), "{text}");
}

/// The wall clock, in microseconds since 1970 UTC.
pub(super) fn wall_micros() -> i64 {
    #[expect(clippy::disallowed_methods, reason = "main owns the one clock")]
    let now = std::time::SystemTime::now();
    let since = now.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
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
pub(super) fn boot_id() -> Name {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    Name::parse(&text).unwrap_or_else(|_| Name::fixed("unknown"))
}

fn host_name() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default()
}

/// The machine that an agent runs on.
#[derive(Debug)]
pub(super) struct Host {
    pub(super) boot: Name,
}

impl Machine for Host {
    fn reading(&self) -> Reading {
        // It goes on while the machine sleeps, which the standard library's does not.
        let since_boot = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let monotonic_nanos =
            since_boot.tv_sec.saturating_mul(1_000_000_000).saturating_add(since_boot.tv_nsec);
        Reading { boot: self.boot.clone(), monotonic_nanos, wall_micros: wall_micros() }
    }

    fn sleep(&self, time: Duration) {
        std::thread::sleep(time);
    }

    fn random(&self, bytes: &mut [u8]) -> Result<(), String> {
        random(bytes)
    }
}

/// Fills with random bytes.
pub(super) fn random(bytes: &mut [u8]) -> Result<(), String> {
    getrandom::fill(bytes).map_err(|error| format!("no random bytes: {error}"))
}

/// Completes when the process is asked to stop.
pub(super) async fn stopped() {
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
