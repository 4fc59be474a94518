//! A simulated host with a real source on it, and the folders that the host has.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fatia::agent::nvml::host::Roots;
use fatia::agent::nvml::{NvmlOptions, NvmlSource};
use fatia::agent::source::{DeviceSample, Inventory, Presence, Sample, Source, SourceError, Standing};
use fatia::agent::window::{Stamp, Window, Windower};
use fatia::domain::period::Span;
use fatia::domain::units::Instant;
use fatia::domain::usage::{ClockRow, Evidence, Slice};
use tempfile::TempDir;

use crate::support::nvml::Sim;

/// When the scenarios of these tests begin.
pub const START: &str = "2026-06-01T00:00:00Z";
pub const SECOND: i64 = 1_000_000;
pub const MINUTE: i64 = 60 * SECOND;
pub const HOUR: i64 = 60 * MINUTE;
pub const MIB: i64 = 1_048_576;
/// What a second is in nanoseconds.
pub const NANOS: i64 = 1_000_000_000;

/// A scenario that begins at [`START`].
pub fn from_start(rest: &str) -> String {
    format!("start = \"{START}\"\n{rest}")
}

/// A host with one board.
pub fn one_board(rest: &str) -> String {
    from_start(&format!("[[board]]\nuuid = \"GPU-1\"\n{rest}"))
}

/// Folders of a host.
pub struct Folders(TempDir);

impl Folders {
    pub fn new() -> Folders {
        let folders = Folders(TempDir::new().expect("a folder"));
        folders.write("etc/passwd", "root:x:0:0::/root:/bin/sh\nana:x:1001:1001::/home/ana:/bin/sh\n");
        folders.write("proc/uptime", "1.0 1.0\n");
        folders
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    pub fn roots(&self) -> Roots {
        Roots::below(self.path())
    }

    pub fn write(&self, file: &str, text: &str) {
        let path = self.path().join(file);
        fs::create_dir_all(path.parent().expect("it is in a folder")).expect("the folder is ours");
        fs::write(path, text).expect("the folder is ours");
    }

    pub fn link(&self, file: &str, target: &str) {
        let path: PathBuf = self.path().join(file);
        fs::create_dir_all(path.parent().expect("it is in a folder")).expect("the folder is ours");
        drop(fs::remove_file(&path));
        symlink(target, path).expect("the folder is ours");
    }

    /// A process of a control group, of user `ana`, that began so many ticks after the machine.
    pub fn process(&self, pid: u32, cgroup: &str, command: &str, start: u64) {
        let zeros = "0 ".repeat(18);
        self.write(&format!("proc/{pid}/stat"), &format!("{pid} ({command}) S {zeros}{start} 0 0\n"));
        self.write(&format!("proc/{pid}/comm"), &format!("{command}\n"));
        self.write(&format!("proc/{pid}/cgroup"), &format!("0::{cgroup}\n"));
        let status = "Name:\tx\nUid:\t1001\t1001\t1001\t1001\n";
        self.write(&format!("proc/{pid}/status"), status);
    }

    /// What an environment says, pairs apart by a blank.
    pub fn environment(&self, pid: u32, pairs: &str) {
        self.write(&format!("proc/{pid}/environ"), &pairs.replace(' ', "\0"));
    }

    pub fn end(&self, pid: u32) {
        fs::remove_dir_all(self.path().join(format!("proc/{pid}"))).expect("it was there");
    }

    /// A card in a slot, bound to a driver, in an IOMMU group.
    pub fn card(&self, address: &str, driver: &str, group: &str) {
        let folder = format!("sys/bus/pci/devices/{address}");
        self.write(&format!("{folder}/vendor"), "0x10de\n");
        self.write(&format!("{folder}/device"), "0x2330\n");
        self.write(&format!("{folder}/class"), "0x030200\n");
        self.link(&format!("{folder}/driver"), &format!("../../../bus/pci/drivers/{driver}"));
        self.link(&format!("{folder}/iommu_group"), &format!("../../../kernel/iommu_groups/{group}"));
    }

    /// A VM's process that has a VFIO group open.
    pub fn vm(&self, pid: u32, line: &str, group: &str) {
        self.process(pid, "/machine.slice/machine-qemu\\x2d3\\x2dweb.scope", "qemu-kvm", 100);
        self.write(&format!("proc/{pid}/cmdline"), &line.replace(' ', "\0"));
        self.link(&format!("proc/{pid}/fd/0"), "/dev/null");
        self.link(&format!("proc/{pid}/fd/21"), &format!("/dev/vfio/{group}"));
    }
}

/// A source whose looks move the simulator's clock: server time and the driver's are one.
#[derive(Debug)]
pub struct OnTime {
    pub source: NvmlSource,
    pub sim: Arc<Sim>,
}

impl Source for OnTime {
    fn inventory(&mut self) -> Result<Inventory, SourceError> {
        self.source.inventory()
    }

    fn sample(&mut self, at: Instant, sample: &mut Sample) -> Result<(), SourceError> {
        self.sim.pass(at.micros() - self.sim.now());
        self.source.sample(at, sample)
    }

    fn state(&self) -> Vec<u8> {
        self.source.state()
    }

    fn restore(&mut self, state: &[u8]) {
        self.source.restore(state);
    }
}

/// A simulated host that is looked at.
pub struct Rig {
    pub on: OnTime,
    pub folders: Folders,
    pub sample: Sample,
    start: i64,
}

/// What was measured, by slice and holder: nanoseconds and byte-seconds.
pub type Sums = BTreeMap<String, (Option<i64>, Option<i64>)>;

impl Rig {
    #[track_caller]
    pub fn new(scenario: &str) -> Rig {
        Rig::on(Sim::new(scenario, START))
    }

    pub fn on(sim: Sim) -> Rig {
        let folders = Folders::new();
        let sim = Arc::new(sim);
        let source = open(&sim, &folders);
        let start = sim.now();
        Rig { on: OnTime { source, sim }, folders, sample: Sample::default(), start }
    }

    /// An instant so many microseconds after the start.
    pub fn at(&self, micros: i64) -> Instant {
        Instant::from_micros(self.start + micros)
    }

    /// Looks so many microseconds after the start.
    pub fn look(&mut self, micros: i64) -> &Sample {
        let at = self.at(micros);
        self.on.sample(at, &mut self.sample).expect("it can be seen");
        &self.sample
    }

    /// Looks, and shows one device.
    #[track_caller]
    pub fn device(&mut self, micros: i64, uuid: &str) -> DeviceSample {
        let found = self.look(micros).devices.iter().find(|look| look.standing.device.as_str() == uuid);
        found.unwrap_or_else(|| panic!("no {uuid}")).clone()
    }

    /// What stands on the first device.
    pub fn standing(&mut self, micros: i64) -> Arc<Standing> {
        self.look(micros);
        Arc::clone(&self.sample.devices.first().expect("there is a device").standing)
    }

    /// Looks from one second to another, both among them, and adds up what was measured.
    pub fn sums(&mut self, from: i64, until: i64) -> Sums {
        let mut sums = Sums::new();
        for second in from..=until {
            self.look(second * SECOND);
            add(&mut sums, &self.sample);
        }
        sums
    }

    /// Another process on the same host, that goes on from a state.
    pub fn restart(&mut self, state: &[u8]) {
        self.on.source = open(&self.on.sim, &self.folders);
        self.on.source.restore(state);
    }

    /// The windows of looks from one second to another.
    pub fn windows(&mut self, from: i64, until: i64) -> Vec<Window> {
        let mut windower = Windower::new(Instant::MIN);
        let mut windows = Vec::new();
        for second in from..=until {
            let at = self.at(second * SECOND);
            self.on.sample(at, &mut self.sample).expect("it can be seen");
            windows.extend(windower.add(at, &self.sample, &Silent));
        }
        windows.extend(windower.close(&Silent));
        windows
    }

    /// A span in seconds after the start.
    pub fn seconds(&self, span: Span) -> (i64, i64) {
        let after = |instant: Instant| (instant.micros() - self.start) / SECOND;
        (after(span.start()), after(span.end()))
    }
}

fn open(sim: &Sim, folders: &Folders) -> NvmlSource {
    NvmlSource::new(NvmlOptions { library: Some(sim.library().to_owned()), roots: folders.roots() })
}

/// A stamp that says nothing.
pub struct Silent;

impl Stamp for Silent {
    fn clocks(&self, _: Span) -> Option<ClockRow> {
        None
    }

    fn source_state(&self) -> Vec<u8> {
        Vec::new()
    }
}

/// A slice as these tests write it: path, id, parent.
pub fn shown(slice: &Slice) -> String {
    let id = slice.id.as_ref().map(|id| format!(" {id}")).unwrap_or_default();
    let parent = slice.parent.as_ref().map(|id| format!(" in {id}")).unwrap_or_default();
    let start = slice.start.map(|start| format!(" @{start}")).unwrap_or_default();
    format!("{}{id}{parent}{start}", slice.path())
}

/// The slices of a standing.
pub fn slices(standing: &Standing) -> Vec<String> {
    standing.slices.iter().map(shown).collect()
}

/// Who holds what: the slice, and the name under which reports show the holder.
pub fn holders(standing: &Standing) -> Vec<(String, String)> {
    let of = |holder: &fatia::agent::source::Holder| {
        (shown(&standing.slices[holder.slice]), name_of(&holder.evidence))
    };
    standing.holders.iter().map(of).collect()
}

pub fn name_of(evidence: &Evidence) -> String {
    evidence.workload().map_or_else(|| evidence.to_string(), ToString::to_string)
}

/// Why a device is lost; none: it is there.
pub fn lost(standing: &Standing) -> Option<String> {
    match &standing.presence {
        Presence::Present => None,
        Presence::Lost(reason) => Some(reason.to_string()),
    }
}

/// Adds what a look measured.
pub fn add(sums: &mut Sums, sample: &Sample) {
    let plus = |sum: &mut Option<i64>, more: Option<i64>| {
        if let Some(more) = more {
            *sum = Some(sum.unwrap_or_default() + more);
        }
    };
    for look in &sample.devices {
        let of = &look.measured_of;
        let known = of.meters.iter().zip(&look.amounts).map(|(meter, amount)| {
            let holder = meter.holder.map(|at| &of.holders[at].evidence);
            (shown(&of.slices[meter.slice]), holder, amount)
        });
        let new =
            look.newcomers.iter().map(|each| (shown(&each.slice), each.evidence.as_ref(), &each.amount));
        for (slice, holder, amount) in known.chain(new) {
            let key = format!("{slice} {}", holder.map(name_of).unwrap_or_default());
            let sum = sums.entry(key.trim_end().to_owned()).or_default();
            plus(&mut sum.0, amount.active_nanos);
            plus(&mut sum.1, amount.memory_byte_seconds);
        }
    }
}
