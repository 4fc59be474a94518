//! A host with GPUs that are not there: a copy of the simulated NVML in a folder of its own, a scenario and a
//! clock.
//!
//! What a scenario can say stands at the top of `tests/nvml-sim/scenario/mod.rs`. Each rig has a library of
//! its own, so tests run beside each other; within one, all who load the library share its state.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::SystemTime;

use chrono::DateTime;
use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;
use tempfile::TempDir;

/// Where the library's source is, below the root of the repository.
const SOURCE: &str = "tests/nvml-sim";
const LIBRARY: &str = "libnvidia-ml.so.1";
/// What cargo tells a test, and build scripts look at: a cargo that is told it as well builds half of the
/// dependencies anew.
const OF_THIS_RUN: &[&str] = &[
    "CARGO_MANIFEST_DIR",
    "CARGO_MANIFEST_LINKS",
    "CARGO_MANIFEST_PATH",
    "CARGO_PKG_NAME",
    "CARGO_PKG_VERSION",
    "CARGO_PKG_VERSION_MAJOR",
    "CARGO_PKG_VERSION_MINOR",
    "CARGO_PKG_VERSION_PATCH",
    "CARGO_PKG_VERSION_PRE",
];

/// A simulated host.
#[derive(Debug)]
pub struct Sim {
    folder: TempDir,
    library: PathBuf,
    clock: File,
    now: AtomicI64,
}

impl Sim {
    /// A host of a scenario, at an instant such as `2026-06-01T00:00:00Z`.
    #[track_caller]
    pub fn new(scenario: &str, at: &str) -> Sim {
        Sim::without(scenario, at, &[])
    }

    /// As [`Sim::new`], with an older library that does not have these functions.
    #[track_caller]
    pub fn without(scenario: &str, at: &str, symbols: &[&str]) -> Sim {
        let folder = TempDir::new().expect("a folder");
        let library = folder.path().join(LIBRARY);
        if symbols.is_empty() {
            fs::copy(built(), &library).expect("the library can be copied");
        } else {
            let mut bytes = fs::read(built()).expect("the library can be read");
            for symbol in symbols {
                hide(&mut bytes, symbol);
            }
            fs::write(&library, bytes).expect("the library can be written");
        }
        let clock = File::create(folder.path().join("clock")).expect("a clock");
        let sim = Sim { folder, library, clock, now: AtomicI64::new(0) };
        sim.set(at);
        sim.rewrite(scenario);
        sim
    }

    /// The library's file.
    pub fn library(&self) -> &Path {
        &self.library
    }

    /// Loads the library as an agent does.
    pub fn load(&self) -> Result<Nvml, NvmlError> {
        Nvml::builder().lib_path(self.library.as_os_str()).init()
    }

    /// Sets the clock.
    #[track_caller]
    pub fn set(&self, at: &str) {
        let at = DateTime::parse_from_rfc3339(at).expect("an instant such as 2026-06-01T00:00:00Z");
        self.now.store(at.timestamp_micros(), Ordering::SeqCst);
        self.write_clock();
    }

    /// Moves the clock by microseconds, also back.
    pub fn pass(&self, micros: i64) {
        self.now.fetch_add(micros, Ordering::SeqCst);
        self.write_clock();
    }

    /// The clock, in microseconds since the epoch.
    pub fn now(&self) -> i64 {
        self.now.load(Ordering::SeqCst)
    }

    /// Another scenario from now on: the library reads it when it is initialised or devices are counted.
    #[track_caller]
    pub fn rewrite(&self, scenario: &str) {
        let path = self.folder.path().join("scenario.toml");
        let new = self.folder.path().join("scenario.new");
        // A file of another inode: the library sees that it is another one, however soon it comes.
        fs::write(&new, scenario).and_then(|()| fs::rename(&new, &path)).expect("a scenario");
        // Failing may be what the scenario is about; being wrong is not.
        drop(self.load());
        if let Ok(complaint) = fs::read_to_string(self.folder.path().join("complaint")) {
            panic!("{complaint}");
        }
    }

    fn write_clock(&self) {
        // Twice, so that a reader who comes while it is written notices.
        let now = self.now();
        let text = format!("{now:020} {now:020}\n");
        self.clock.write_all_at(text.as_bytes(), 0).expect("the clock can be written");
    }
}

/// The library, as new as its source: `cargo test --test it` does not build examples.
fn built() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let program = std::env::current_exe().expect("a test has a program");
        let profile = program.ancestors().nth(2).expect("it lies in `deps` of a profile");
        let library = profile.join("examples/libnvml_sim.so");
        let changed = |path: &Path| fs::metadata(path).and_then(|file| file.modified()).ok();
        let source = newest(&Path::new(env!("CARGO_MANIFEST_DIR")).join(SOURCE));
        if changed(&library) < Some(source) {
            build(profile);
        }
        library
    })
}

fn build(profile: &Path) {
    let name = match profile.file_name().and_then(|name| name.to_str()) {
        Some("debug") | None => "dev",
        Some(name) => name,
    };
    let target = profile.parent().expect("a profile lies in the target folder");
    let mut cargo = Command::new(env!("CARGO"));
    for name in OF_THIS_RUN {
        cargo.env_remove(name);
    }
    let status = cargo
        .args(["build", "--quiet", "--example", "nvml_sim", "--profile", name, "--target-dir"])
        .arg(target)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .status();
    assert!(status.expect("cargo runs").success(), "the simulated NVML does not build");
}

/// When something in a folder was changed last.
fn newest(folder: &Path) -> SystemTime {
    let entries = fs::read_dir(folder).expect("the source is there").flatten();
    let changed = entries.map(|entry| match entry.metadata() {
        Ok(file) if file.is_dir() => newest(&entry.path()),
        Ok(file) => file.modified().expect("files have times"),
        Err(_) => SystemTime::UNIX_EPOCH,
    });
    changed.max().unwrap_or(SystemTime::UNIX_EPOCH)
}

/// Names a function otherwise, where the loader looks: who asks for it does not find it.
#[track_caller]
fn hide(library: &mut [u8], symbol: &str) {
    let name = [b"\0", symbol.as_bytes(), b"\0"].concat();
    let places: Vec<usize> =
        library.windows(name.len()).enumerate().filter(|(_, at)| **at == name).map(|(at, _)| at).collect();
    assert!(!places.is_empty(), "the library has no {symbol}");
    for place in places {
        library[place + 1] = b'X';
    }
}
