//! The built program as a child process: a folder, a data directory and an environment of its own.
//!
//! Always true here: nothing of the test's own environment reaches the program; a child that a test started is ended
//! with the test; waiting is looking again until something is so, with a limit.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::support::postgres::TestDatabase;

/// No command of these tests takes longer on a busy machine; the whole trace takes a minute.
const LIMIT: Duration = Duration::from_secs(300);
const LOOK: Duration = Duration::from_millis(20);

/// An installation: its files are named relative to its folder, its data are in `data` below it.
pub struct Fatia {
    folder: TempDir,
    variables: Vec<(String, String)>,
}

impl Fatia {
    /// An installation on an embedded database that is not there yet.
    pub fn new() -> Fatia {
        let folder = tempfile::tempdir().expect("a temporary folder");
        fs::create_dir(folder.path().join("data")).expect("a new folder is empty");
        Fatia { folder, variables: vec![] }
    }

    /// An installation on this server's database, as the service's role.
    pub fn on(database: &TestDatabase) -> Fatia {
        Fatia::new().with("DATABASE_URL", &database.app_url)
    }

    /// The same with this line in `fatia.toml`.
    pub fn with_settings(self, text: &str) -> Fatia {
        self.write("data/fatia.toml", text);
        self
    }

    /// The same with this variable.
    pub fn with(mut self, name: &str, value: &str) -> Fatia {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        fs::write(self.path(name), content).expect("the folder takes a file");
    }

    pub fn start(&self, arguments: &[&str]) -> Running {
        let mut child = Command::new(env!("CARGO_BIN_EXE_fatia"))
            .args(["--data", "data"])
            .args(arguments)
            .current_dir(self.folder.path())
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("HOME", self.folder.path())
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let out = Listener::new(child.stdout.take().expect("piped"));
        let err = Listener::new(child.stderr.take().expect("piped"));
        Running { child, out, err, command: arguments.join(" ") }
    }

    pub fn run(&self, arguments: &[&str]) -> Ran {
        self.start(arguments).finish()
    }

    /// Imports `inventory.csv` and `intervals.csv` of the folder.
    pub fn import(&self) -> Ran {
        self.run(&["import", "intervals", "--inventory", "inventory.csv", "intervals.csv"])
    }

    /// Writes both files and imports them; all lines must be good.
    pub fn import_all(&self, inventory: &str, intervals: &str, options: &[&str]) -> Ran {
        self.write("inventory.csv", inventory);
        self.write("intervals.csv", intervals);
        let command = ["import", "intervals", "--inventory", "inventory.csv", "intervals.csv"];
        self.run(&[&command, options].concat()).good()
    }

    /// Writes a price file and loads it.
    pub fn price(&self, text: &str) -> Ran {
        self.write("prices.toml", text);
        self.run(&["price", "load", "prices.toml"])
    }

    /// A month's report as it is printed.
    pub fn report(&self, period: &str, group_by: &str, format: &str) -> String {
        let command = ["report", "costs", "--period", period, "--group-by", group_by, "--format", format];
        let ran = self.run(&command).good();
        // Beside itself a report says at most that it is not the last word.
        assert!(ran.err.is_empty() || ran.err.contains("marks still wait for a worker"), "{ran}");
        ran.out
    }

    pub fn json(&self, period: &str, group_by: &str) -> Report {
        Report::read(&self.report(period, group_by, "json"))
    }

    /// A worker beside the other commands, until the test ends; on a server's database.
    pub fn worker(&self) -> Running {
        let worker = self.start(&["worker"]);
        worker.until_told("working on");
        worker
    }
}

/// How a command ended and what it said.
pub struct Ran {
    command: String,
    /// None: a signal ended it.
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Ran {
    #[track_caller]
    pub fn good(self) -> Ran {
        self.ended(0)
    }

    /// It ended with this code, and not by a panic.
    #[track_caller]
    pub fn ended(self, code: i32) -> Ran {
        assert_eq!(self.code, Some(code), "{self}");
        assert!(!self.err.contains("panicked"), "{self}");
        self
    }

    /// It said all of this on standard error.
    #[track_caller]
    pub fn told(self, parts: &[&str]) -> Ran {
        for part in parts {
            assert!(self.err.contains(part), "`{part}` is missing in: {self}");
        }
        self
    }

    /// Standard error, line by line, without the summary of an import.
    pub fn complaints(&self) -> Vec<&str> {
        self.err.lines().filter(|line| line.contains(": line ")).collect()
    }
}

impl std::fmt::Display for Ran {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Ran { command, code, out, err } = self;
        write!(f, "`fatia {command}` ended with {code:?}\nstdout: {out}\nstderr: {err}")
    }
}

/// A command that has not ended, or has not been asked. Its drop ends it.
pub struct Running {
    child: Child,
    out: Listener,
    err: Listener,
    command: String,
}

impl Running {
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it has said this on standard error.
    #[track_caller]
    pub fn until_told(&self, part: &str) {
        self.until_told_one_of(&[part]);
    }

    /// Waits until it has said one of these on standard error.
    #[track_caller]
    pub fn until_told_one_of(&self, parts: &[&str]) {
        if !until(LIMIT, || parts.iter().any(|part| self.err.text().contains(part))) {
            panic!("{} said none of {parts:?}, but: {}", self.command, self.err.text());
        }
    }

    /// Waits for a line on standard output that begins so, and returns it.
    #[track_caller]
    pub fn until_said(&self, beginning: &str) -> String {
        self.until_said_within(beginning, LIMIT)
    }

    /// The same for what takes long.
    #[track_caller]
    pub fn until_said_within(&self, beginning: &str, limit: Duration) -> String {
        let line = || {
            self.out.text().split_inclusive('\n').find_map(|line| {
                (line.starts_with(beginning) && line.ends_with('\n')).then(|| line.trim_end().to_owned())
            })
        };
        if !until(limit, || line().is_some()) {
            panic!("{} did not say `{beginning}`, but: {}{}", self.command, self.out.text(), self.err.text());
        }
        line().unwrap_or_default()
    }

    /// Waits until it ends by itself.
    #[track_caller]
    pub fn finish(mut self) -> Ran {
        let mut status = None;
        let has_ended = until(LIMIT, || {
            status = self.child.try_wait().expect("a child can be asked");
            status.is_some()
        });
        assert!(has_ended, "{} does not end; it said: {}{}", self.command, self.out.text(), self.err.text());
        Ran {
            command: self.command.clone(),
            code: status.and_then(|status| status.code()),
            out: self.out.all(),
            err: self.err.all(),
        }
    }

    /// Whether it still runs.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("a child can be asked").is_none()
    }

    /// Ends it as a power cut would.
    pub fn kill(mut self) -> Ran {
        self.child.kill().expect("our own child");
        self.finish()
    }

    /// Asks it to stop, as a service manager does.
    pub fn stop(self) -> Ran {
        // The shell's own `kill`: a signal from here would be unsafe code.
        let told =
            Command::new("sh").args(["-c", "kill -TERM \"$0\""]).arg(self.child.id().to_string()).status();
        assert!(told.is_ok_and(|told| told.success()), "our own child takes a signal");
        self.finish()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended; both then say so, and nothing is left to do.
        let _ended = self.child.kill();
        let _waited = self.child.wait();
    }
}

/// Reads a stream to its end on a thread, so that a child never waits for us to read.
struct Listener {
    heard: Arc<Mutex<Vec<u8>>>,
    reading: Option<JoinHandle<()>>,
}

impl Listener {
    fn new(mut stream: impl Read + Send + 'static) -> Listener {
        let heard = Arc::new(Mutex::new(vec![]));
        let ours = Arc::clone(&heard);
        let reading = std::thread::spawn(move || {
            let mut chunk = [0; 8_192];
            while let Ok(length @ 1..) = stream.read(&mut chunk) {
                ours.lock().expect("no reader panics").extend_from_slice(&chunk[..length]);
            }
        });
        Listener { heard, reading: Some(reading) }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.heard.lock().expect("no reader panics")).into_owned()
    }

    fn all(&mut self) -> String {
        if let Some(reading) = self.reading.take() {
            reading.join().expect("no reader panics");
        }
        self.text()
    }
}

/// Looks until it is so, and says whether it came to be so in time.
pub fn until(limit: Duration, mut is_so: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + limit;
    loop {
        if is_so() {
            return true;
        }
        if Instant::now() > end {
            return false;
        }
        std::thread::sleep(LOOK);
    }
}

/// A file that the project ships for tests.
pub fn fixture(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A report's JSON, read with no type of the program's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report(serde_json::Value);

impl Report {
    #[track_caller]
    pub fn read(text: &str) -> Report {
        Report(serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}")))
    }

    pub fn text(&self, field: &str) -> &str {
        self.0[field].as_str().unwrap_or_else(|| panic!("{field} is no text"))
    }

    pub fn groups(&self) -> Vec<Line<'_>> {
        Line::all(&self.0["groups"])
    }

    pub fn totals(&self) -> Vec<Line<'_>> {
        Line::all(&self.0["totals"])
    }

    /// The total of a state, in micro-GPU-hours.
    #[track_caller]
    pub fn total(&self, state: &str) -> i64 {
        self.totals().into_iter().find(|line| line.text("state") == state).expect(state).gpu_hours()
    }

    /// The groups with these values, in micro-GPU-hours.
    pub fn sum(&self, wanted: &[(&str, &str)]) -> i64 {
        let is_wanted = |line: &Line<'_>| wanted.iter().all(|(field, value)| line.text(field) == *value);
        self.groups().iter().filter(|line| is_wanted(line)).map(Line::gpu_hours).sum()
    }

    /// In-service micro-GPU-hours of a report that reconciles.
    #[track_caller]
    pub fn in_service(&self) -> i64 {
        let sides = &self.0["reconciliation"];
        let side = |name: &str| sides[name].as_str().expect("a text");
        assert_eq!(side("difference"), "0.000000");
        assert_eq!(side("in_service_gpu_hours"), side("parts_gpu_hours"));
        let groups: i64 = self.groups().iter().map(Line::gpu_hours).sum();
        let totals: i64 = self.totals().iter().map(Line::gpu_hours).sum();
        let in_service = micro(side("in_service_gpu_hours"));
        assert_eq!((groups, totals), (in_service, in_service), "groups and totals add up");
        in_service
    }
}

/// A group, or the total of a state.
#[derive(Debug, Clone, Copy)]
pub struct Line<'a>(&'a serde_json::Value);

impl<'a> Line<'a> {
    fn all(list: &'a serde_json::Value) -> Vec<Line<'a>> {
        list.as_array().expect("a list").iter().map(Line).collect()
    }

    #[track_caller]
    pub fn text(&self, field: &str) -> &'a str {
        self.0[field].as_str().unwrap_or_else(|| panic!("{field} of {} is no text", self.0))
    }

    pub fn gpu_hours(&self) -> i64 {
        micro(self.text("gpu_hours"))
    }

    pub fn unpriced(&self) -> i64 {
        micro(self.text("unpriced_gpu_hours"))
    }

    /// None: null.
    #[track_caller]
    pub fn find_text(&self, field: &str) -> Option<&'a str> {
        if self.0[field].is_null() { None } else { Some(self.text(field)) }
    }

    pub fn cost(&self) -> Option<&'a str> {
        self.find_text("cost")
    }
}

/// Millionths of a number with exactly six decimals.
#[track_caller]
pub fn micro(text: &str) -> i64 {
    let (whole, decimals) = text.split_once('.').unwrap_or_else(|| panic!("`{text}` has no decimals"));
    assert_eq!(decimals.len(), 6, "`{text}`");
    format!("{whole}{decimals}").parse().unwrap_or_else(|error| panic!("`{text}`: {error}"))
}

/// A decimal number without exponent as an exact integer of 10⁻¹⁴, as amounts are.
#[track_caller]
pub fn exact(text: &str) -> i128 {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, ""));
    assert!(decimals.len() <= 14 && !decimals.ends_with('0'), "`{text}` is not in its shortest form");
    format!("{whole}{decimals:0<14}").parse().unwrap_or_else(|error| panic!("`{text}`: {error}"))
}
