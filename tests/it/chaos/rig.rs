//! Processes that end with their test, chance from a seed, and patience with a limit.

use std::fs::File;
use std::future::Future;
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fatia::domain::units;
use fatia::services::ctx::{BillingSettings, Clock, Platform};
use fatia::services::derive::{self, Worker};
use fatia::services::doctor::{Verdict, examine};
use fatia::services::error::ServiceError;
use fatia::store::{Store, StoreError};

/// How long anything that has to happen may take on two busy cores.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The count of a test: all of it in a long run, else a tenth.
pub fn counts(long: u32) -> u32 {
    if crate::support::is_long() { long } else { (long / 10).max(1) }
}

/// Chance that comes again: SplitMix64.
pub struct Random(u64);

impl Random {
    /// Prints its seed, since a failure may need it again.
    pub fn seeded(test: &str, seed: u64) -> Self {
        eprintln!("{test}: seed {seed}");
        Self(seed)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit.max(1)
    }

    pub fn of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        let count = u64::try_from(all.len()).expect("a test's list is short");
        &all[usize::try_from(self.below(count)).expect("below a usize")]
    }

    pub fn millis(&mut self, limit: u64) -> Duration {
        Duration::from_micros(self.below(limit * 1_000))
    }
}

/// Asks again until the answer is yes; fails, naming `what`, when that takes too long.
pub async fn until<F: Future<Output = bool>>(what: &str, mut asked: impl FnMut() -> F) {
    let begun = Instant::now();
    while !asked().await {
        assert!(begun.elapsed() < PATIENCE, "{what}: not after {PATIENCE:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A process of the program, killed with this value, also when it was stopped.
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

/// What a process of the program needs: a folder for its data and its log, and where the database is.
pub struct Program {
    folder: tempfile::TempDir,
    database: Option<String>,
}

impl Program {
    /// On a PostgreSQL server, or on a file in a folder of its own.
    pub fn on(database: Option<String>) -> Self {
        Self { folder: tempfile::tempdir().expect("the temporary folder takes one more"), database }
    }

    pub fn data(&self) -> &Path {
        self.folder.path()
    }

    fn command(&self, arguments: &[&str], session: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fatia"));
        command.arg("--data").arg(self.data()).args(arguments).env_clear().stdin(Stdio::null());
        command.env("FATIA_WORKER__LEASE_SECONDS", "1").env("USER", "chaos");
        if let Some(url) = &self.database {
            command.env("DATABASE_URL", named_session(url, session));
        }
        command
    }

    /// Starts a process and leaves it running.
    pub fn start(&self, name: &str, arguments: &[&str]) -> Process {
        self.start_saying(name, arguments, Stdio::null())
    }

    fn start_saying(&self, name: &str, arguments: &[&str], out: Stdio) -> Process {
        let log = self.data().join(format!("{name}.log"));
        let file = File::options().create(true).append(true).open(&log).expect("the folder is ours");
        let child = self.command(arguments, name).stdout(out).stderr(file).spawn();
        let child = child.expect("the program was built with this test");
        Process { name: name.to_owned(), child, log }
    }

    /// Starts a service on a port that the system gives, and waits until it answers; where it does.
    pub fn serve(&self, name: &str) -> (Process, SocketAddr) {
        let mut service = self.start_saying(name, &["serve", "--listen", "127.0.0.1:0"], Stdio::piped());
        let mut line = String::new();
        // It says nothing after this line, so nobody has to read on.
        let out = service.child.stdout.take().expect("it was piped");
        BufReader::new(out).read_line(&mut line).expect("the program writes UTF-8");
        let address = line.trim_end().strip_prefix("ready http://").and_then(|at| at.parse().ok());
        let address = address.unwrap_or_else(|| panic!("the service does not start:\n{}", service.said()));
        (service, address)
    }

    /// Starts a worker whose sessions and leases bear `name`.
    pub fn worker(&self, name: &str) -> Process {
        self.start(name, &["worker", "--holder", name])
    }

    /// Runs a process to its end.
    pub fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments, "").output().expect("the program was built with this test")
    }

    /// The same, and it has to end well; returns its standard output.
    pub fn succeed(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let (said, shown) =
            (String::from_utf8_lossy(&output.stderr), String::from_utf8_lossy(&output.stdout));
        assert!(output.status.success(), "fatia {}: {}\n{said}{shown}", arguments.join(" "), output.status);
        String::from_utf8(output.stdout).expect("the program writes UTF-8")
    }
}

impl Process {
    pub fn is_named(&self, name: &str) -> bool {
        self.name == name
    }

    pub fn signal(&self, signal: &str) {
        let sent = Command::new("kill").args([signal, &self.child.id().to_string()]).status();
        assert!(sent.is_ok_and(|status| status.success()), "kill {signal} {}", self.child.id());
    }

    /// Kills it; whether it was still running.
    pub fn kill(&mut self) -> bool {
        let was_running = self.child.try_wait().expect("it is our child").is_none();
        self.child.kill().expect("it is our child");
        self.child.wait().expect("it is our child");
        was_running
    }

    pub fn wait(&mut self) -> ExitStatus {
        self.child.wait().expect("it is our child")
    }

    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("it is our child").is_some()
    }

    /// What it said so far.
    pub fn said(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            // A stopped process dies of SIGKILL too; continued first, so that nothing stays half stopped.
            let _ = Command::new("kill").args(["-CONT", &self.child.id().to_string()]).status();
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// A URL whose sessions carry a name that triggers can read.
pub fn named_session(url: &str, session: &str) -> String {
    if session.is_empty() { url.to_owned() } else { format!("{url}&options=-c%20fatia.worker%3D{session}") }
}

struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> units::Instant {
        units::Instant::from_micros(now_micros())
    }
}

pub fn now_micros() -> i64 {
    #[expect(clippy::disallowed_methods, reason = "a test is a process like main, with a clock of its own")]
    let now = std::time::SystemTime::now();
    let since = now.duration_since(std::time::UNIX_EPOCH).expect("now is after 1970");
    i64::try_from(since.as_micros()).expect("now is before the year 290000")
}

async fn platform(store: Store) -> Platform {
    let settings = BillingSettings::default();
    // One seed for all, so that one signed batch can be sent to several installations.
    let opened = Platform::open(store, "chaos".to_owned(), Arc::new(SystemClock), settings, [7; 32]).await;
    opened.unwrap_or_else(|error| panic!("the installation opens: {error}"))
}

pub async fn platform_at(url: &str) -> Platform {
    let store = Store::connect(url, 10).await;
    platform(store.unwrap_or_else(|error| panic!("{url}: {error}"))).await
}

pub async fn platform_in(folder: &Path) -> Platform {
    let store = Store::open(folder, "chaos").await;
    platform(store.unwrap_or_else(|error| panic!("{}: {error}", folder.display()))).await
}

pub fn worker(holder: &str) -> Worker {
    Worker { holder: holder.to_owned(), lease_seconds: 60 }
}

/// Derives until no mark is left.
pub async fn derive(platform: &Platform) {
    derive::derive_all(platform, &worker("chaos"), &|_| ()).await.expect("nobody disturbs");
    assert_eq!(derive::pending(platform).await.expect("nobody disturbs"), 0, "marks are left");
}

/// Each level is what the one below says, down to the journal, and nothing waits.
pub async fn assert_healthy(platform: &Platform, when: &str) {
    for check in examine(platform).await.expect("the doctor can look") {
        let waits = check.subject == "worker" && check.verdict != Verdict::Well;
        let is_ill = check.verdict == Verdict::Ill || waits;
        assert!(!is_ill, "{when}: {} {}: {}", check.verdict.word(), check.subject, check.detail);
    }
}

/// Whether a service would answer "not now, come again": what a fault of the database may come to.
pub fn is_passing(error: &ServiceError) -> bool {
    matches!(
        error,
        ServiceError::Store(StoreError::Unavailable(_) | StoreError::Busy(_) | StoreError::Abandoned)
    )
}
