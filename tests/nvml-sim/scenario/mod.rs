//! What is true when: a host with its boards over time, read from TOML. Unknown keys are refused, and so is
//! what cannot be: two instances in one place, samples between the instants they are taken at.
//!
//! ```toml
//! start = "2026-06-01T00:00:00Z"        # all other instants are lengths after it
//! driver = "580.95.05"                  # also: nvml, cuda, sample_every_ms, sample_buffer, dead_vgpu
//! privileged = [["0s", true], ["1h", false]]          # steps: [from, value], or one value for ever
//! init = [{ code = 9, until = "1m" }]                 # the library does not start
//! reloads = ["2h"]                                    # energy from 0, new ids of vGPUs, no old samples
//! fault = [{ symbol = "nvmlDeviceGetUUID", device = "GPU-1", from = "3h", until = "4h", code = 999 }]
//! list_shrinks = [{ symbol = "nvmlDeviceGetActiveVgpus", by = 2 }]        # also: list_grows
//!
//! [[board]]
//! type = "H100-80GB"
//! uuid = "GPU-1"
//! power_mw = [["0s", 70000], ["1h", 650000]]
//! mig = true
//! lost = [{ from = "5h", until = "6h" }]              # also: reset_required, absent
//! index = [["6h", 1]]
//! xid = [{ at = "5h", xid = 79 }]
//! sample_fault = [{ kind = "doubled" }]               # also: out_of_order, replayed, latest_only
//! activity = [{ metric = 2, gi = 9, value = [["0s", 12.5]] }]     # GPM; or a code for a value
//!
//! [[board.instance]]
//! gi = 9
//! profile = "3g.40gb"
//! start = 4
//! from = "10m"
//! compute = [{ uuid = "MIG-1", slot = 3 }]
//!
//! [[board.process]]
//! pid = 4711
//! gi = 9
//! ci = 0
//! memory_mib = 512
//! percent = { sm = [["10m", 40], ["20m", 80]] }       # steps lie on the grid of samples
//!
//! [[board]]
//! type = "L40S"
//! uuid = "GPU-2"
//! virtualization = "host"
//! vgpu_types = ["L40S-12Q"]
//! scheduler = { policy = "equal_share", timeslice_ns = 2000000 }
//!
//! [[board.vgpu]]
//! id = 21
//! type = "L40S-12Q"
//! uuid = "vgpu-1"
//! vm = { uuid = "vm-1" }                              # or { domain = "4" }
//! guest_driver = [["10s", "580.95.05"]]
//! license = [["20s", { state = "licensed", expires = { at = "1d" } }]]    # or "permanent", …
//! percent = { sm = 60 }
//! ```
//!
//! All keys stand in [`Scenario`], [`Board`] and [`Vgpu`].

mod board;
mod check;
mod time;
mod vgpu;

use chrono::DateTime;
use serde::Deserialize;

pub(crate) use board::{
    Accounted, Board, Bounds, ComputeInstance, ComputeMode, Engines, GpuInstance, HostVgpuMode, Percents,
    Process, ProcessKind, SampleFault, SampleFaultKind, Virtualization,
};
pub(crate) use time::{At, Span, Steps};
pub(crate) use vgpu::{Expiry, License, LicenseState, Policy, Scheduler, Vgpu, Vm};

/// What a vGPU's id grows by when the driver is loaded anew: nobody finds the old one.
pub(crate) const IDS_PER_LOAD: u32 = 65_536;

/// A host over time.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Scenario {
    start: String,
    /// `start` in microseconds since the epoch.
    #[serde(skip)]
    pub(crate) origin: i64,
    #[serde(default = "recent_driver")]
    pub(crate) driver: String,
    pub(crate) nvml: Option<String>,
    #[serde(default = "recent_cuda")]
    pub(crate) cuda: i32,
    /// Absent: the caller may do all.
    pub(crate) privileged: Option<Steps<bool>>,
    /// What is answered about a vGPU that is not there.
    #[serde(default = "invalid_argument")]
    pub(crate) dead_vgpu: u32,
    /// When the library cannot be initialised.
    #[serde(default)]
    pub(crate) init: Vec<InitFailure>,
    /// When the driver is loaded anew.
    #[serde(default)]
    pub(crate) reloads: Vec<At>,
    /// How often samples of processes are taken.
    #[serde(default = "a_second")]
    pub(crate) sample_every_ms: u32,
    /// How many samples are kept of a process: the last of that many instants.
    #[serde(default = "two_minutes")]
    pub(crate) sample_buffer: u32,
    /// Numbers of the driver's vGPU capabilities that it has.
    #[serde(default)]
    pub(crate) vgpu_driver_capabilities: Vec<u32>,
    #[serde(default)]
    pub(crate) fault: Vec<Fault>,
    /// Lists that are shorter by the time they are read.
    #[serde(default)]
    pub(crate) list_shrinks: Vec<ListChange>,
    /// Lists that are longer by the time they are read.
    #[serde(default)]
    pub(crate) list_grows: Vec<ListChange>,
    #[serde(default)]
    pub(crate) board: Vec<Board>,
}

/// Why the library cannot be initialised.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct InitFailure {
    pub(crate) code: u32,
    from: Option<At>,
    until: Option<At>,
}

/// A function that fails.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Fault {
    /// The exported name, or `*` for all.
    symbol: String,
    /// UUID of the board, or of the MIG device, that it fails for; absent, with `vgpu`: for all.
    device: Option<String>,
    /// Id of the vGPU that it fails for.
    vgpu: Option<u32>,
    from: Option<At>,
    until: Option<At>,
    code: u32,
}

/// Whom a function is asked about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Subject<'a> {
    Library,
    Device(&'a str),
    Vgpu(u32),
}

/// A list that changes between the call that sizes it and the one that reads it.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListChange {
    symbol: String,
    from: Option<At>,
    until: Option<At>,
    by: usize,
}

fn recent_driver() -> String {
    "580.95.05".to_owned()
}

fn recent_cuda() -> i32 {
    13_000
}

fn invalid_argument() -> u32 {
    2
}

fn a_second() -> u32 {
    1_000
}

fn two_minutes() -> u32 {
    120
}

impl Scenario {
    /// Reads a scenario, or says what is wrong with it.
    pub(crate) fn read(text: &str) -> Result<Scenario, String> {
        let mut scenario: Scenario = toml::from_str(text).map_err(|error| error.to_string())?;
        let start = DateTime::parse_from_rfc3339(&scenario.start);
        scenario.origin = start.map_err(|error| format!("start: {error}"))?.timestamp_micros();
        check::check(&scenario)?;
        Ok(scenario)
    }

    pub(crate) fn init_failure(&self, at: i64) -> Option<u32> {
        let holds = |failure: &&InitFailure| Span::new(failure.from, failure.until).holds(at);
        self.init.iter().find(holds).map(|failure| failure.code)
    }

    pub(crate) fn fault(&self, symbol: &str, subject: Subject<'_>, at: i64) -> Option<u32> {
        let holds = |fault: &&Fault| {
            let of_symbol = fault.symbol == "*" || fault.symbol == symbol;
            let of_subject = match subject {
                Subject::Library => fault.device.is_none() && fault.vgpu.is_none(),
                Subject::Device(uuid) => fault.device.as_deref() == Some(uuid),
                Subject::Vgpu(id) => fault.vgpu == Some(id),
            };
            of_symbol && of_subject && Span::new(fault.from, fault.until).holds(at)
        };
        self.fault.iter().find(holds).map(|fault| fault.code)
    }

    /// By how much a list is shorter, and by how much it is longer, when it is read.
    pub(crate) fn list_change(&self, symbol: &str, at: i64) -> (usize, usize) {
        let by = |changes: &[ListChange]| {
            let holds = |change: &&ListChange| {
                change.symbol == symbol && Span::new(change.from, change.until).holds(at)
            };
            changes.iter().find(holds).map_or(0, |change| change.by)
        };
        (by(&self.list_shrinks), by(&self.list_grows))
    }

    /// The functions that something is said of.
    fn symbols(&self) -> impl Iterator<Item = &str> {
        let of_lists = self.list_shrinks.iter().chain(&self.list_grows).map(|change| &change.symbol);
        self.fault.iter().map(|fault| &fault.symbol).chain(of_lists).map(String::as_str)
    }

    pub(crate) fn is_privileged(&self, at: i64) -> bool {
        self.privileged.as_ref().is_none_or(|steps| steps.at(at).copied().unwrap_or(true))
    }

    /// When the driver was loaded last, and how often since `start`.
    pub(crate) fn last_load(&self, at: i64) -> (Option<i64>, u32) {
        let passed = self.reloads.iter().filter(|reload| reload.0 <= at);
        let (mut last, mut count) = (None, 0);
        for reload in passed {
            last = last.max(Some(reload.0));
            count += 1;
        }
        (last, count)
    }

    /// Microseconds between two samples.
    pub(crate) fn sample_period(&self) -> i64 {
        i64::from(self.sample_every_ms) * 1_000
    }

    /// Whether this driver numbers field values as CUDA 13 update 1 does.
    pub(crate) fn numbers_fields_anew(&self) -> bool {
        let mut parts = self.driver.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
        (parts.next().unwrap_or(0), parts.next().unwrap_or(0)) >= (580, 82)
    }

    pub(crate) fn board(&self, uuid: &str) -> Option<(usize, &Board)> {
        self.board.iter().enumerate().find(|(_, board)| board.uuid == uuid)
    }
}
