//! A board as a scenario tells it: what it is, how it is cut, who works on it, and what goes wrong with it.

use serde::Deserialize;

use super::time::{At, Span, Steps, Told};
use super::vgpu::{GuestLicense, Scheduler, Vgpu};

/// A GPU of the host.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Board {
    /// A type of `boards.csv`.
    pub(crate) r#type: String,
    pub(crate) uuid: String,
    /// Another product name than the type's.
    pub(crate) name: Option<String>,
    /// Consumer boards have none.
    pub(crate) serial: Option<String>,
    pub(crate) part_number: Option<String>,
    /// Bus id as `00000000:17:00.0`; by the order in the file where it is absent.
    pub(crate) pci: Option<String>,
    pub(crate) minor: Option<u32>,
    /// Its place among the boards that are there; the order in the file where it is absent.
    pub(crate) index: Option<Steps<u32>>,
    #[serde(default)]
    pub(crate) virtualization: Virtualization,
    #[serde(default)]
    pub(crate) persistence: bool,
    #[serde(default)]
    pub(crate) compute_mode: ComputeMode,
    /// Absent: the board has no ECC.
    pub(crate) ecc: Option<bool>,

    /// When every call answers that it is lost.
    #[serde(default)]
    pub(crate) lost: Vec<Bounds>,
    /// When every call answers that it wants a reset.
    #[serde(default)]
    pub(crate) reset_required: Vec<Bounds>,
    /// When it is not counted either.
    #[serde(default)]
    pub(crate) absent: Vec<Bounds>,
    #[serde(default)]
    pub(crate) xid: Vec<Xid>,

    pub(crate) power_mw: Option<Steps<u32>>,
    pub(crate) power_limit_mw: Option<u32>,
    /// What the energy counter had counted at `start`.
    #[serde(default)]
    pub(crate) energy_mj: u64,
    pub(crate) temperature: Option<Steps<u32>>,
    /// Bits of throttle reasons, also those that no binding knows.
    pub(crate) throttle: Option<Steps<u64>>,
    pub(crate) performance_state: Option<Steps<u32>>,
    pub(crate) recovery_action: Option<Steps<u32>>,
    pub(crate) ecc_corrected: Option<Steps<u64>>,
    pub(crate) ecc_uncorrected: Option<Steps<u64>>,
    pub(crate) remapped: Option<Steps<RemappedRows>>,
    /// Field values that are not made from what is told elsewhere.
    #[serde(default)]
    pub(crate) field: Vec<Field>,

    /// Percent; the sum of its processes, at most 100, where it is absent.
    pub(crate) gpu: Option<Steps<u32>>,
    pub(crate) memory: Option<Steps<u32>>,
    pub(crate) encoder: Option<Steps<u32>>,
    pub(crate) decoder: Option<Steps<u32>>,
    /// What is in use; what processes and vGPUs hold where it is absent.
    pub(crate) used_mib: Option<Steps<u64>>,
    #[serde(default)]
    pub(crate) reserved_mib: u64,
    #[serde(default)]
    pub(crate) process: Vec<Process>,
    #[serde(default)]
    pub(crate) sample_fault: Vec<SampleFault>,
    pub(crate) accounting: Option<Steps<bool>>,
    #[serde(default)]
    pub(crate) accounted: Vec<Accounted>,

    /// Absent: off, if the type has MIG at all.
    pub(crate) mig: Option<Steps<bool>>,
    /// Absent: as it is.
    pub(crate) mig_pending: Option<Steps<bool>>,
    #[serde(default)]
    pub(crate) instance: Vec<GpuInstance>,

    /// Absent: from Hopper on.
    pub(crate) gpm: Option<bool>,
    #[serde(default)]
    pub(crate) activity: Vec<Activity>,

    pub(crate) host_vgpu_mode: Option<HostVgpuMode>,
    /// Names of types that it supports.
    #[serde(default)]
    pub(crate) vgpu_types: Vec<String>,
    /// Numbers of the device capabilities that it has.
    #[serde(default)]
    pub(crate) vgpu_capabilities: Vec<u32>,
    /// Absent: it knows no mixed sizes.
    pub(crate) heterogeneous: Option<Steps<bool>>,
    pub(crate) scheduler: Option<Steps<Scheduler>>,
    #[serde(default)]
    pub(crate) vgpu: Vec<Vgpu>,
    /// Inside a VM.
    pub(crate) guest_license: Option<Steps<GuestLicense>>,
}

/// What the host does with a board.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Virtualization {
    #[default]
    None,
    Passthrough,
    Guest,
    Host,
    HostVsga,
}

/// How many processes may use it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ComputeMode {
    #[default]
    Default,
    Prohibited,
    ExclusiveProcess,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum HostVgpuMode {
    NonSriov,
    Sriov,
}

/// A span with nothing else to say.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Bounds {
    from: Option<At>,
    until: Option<At>,
}

impl Bounds {
    pub(crate) fn hold(bounds: &[Bounds], at: i64) -> bool {
        bounds.iter().any(|one| Span::new(one.from, one.until).holds(at))
    }
}

/// A critical error that the driver reports.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Xid {
    pub(crate) at: At,
    pub(crate) xid: u64,
    pub(crate) gi: Option<u32>,
    pub(crate) ci: Option<u32>,
}

/// Rows that were replaced.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RemappedRows {
    #[serde(default)]
    pub(crate) correctable: u32,
    #[serde(default)]
    pub(crate) uncorrectable: u32,
    #[serde(default)]
    pub(crate) pending: bool,
    #[serde(default)]
    pub(crate) failed: bool,
}

/// A field value, by the numbers that drivers before 580.82 use.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Field {
    pub(crate) id: u32,
    pub(crate) value: Option<Steps<u64>>,
    /// It answers with this instead.
    pub(crate) code: Option<u32>,
}

/// A process that uses the board.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    pub(crate) name: Option<String>,
    /// The lists that it is in.
    #[serde(default = "only_compute")]
    pub(crate) kinds: Vec<ProcessKind>,
    pub(crate) gi: Option<u32>,
    pub(crate) ci: Option<u32>,
    from: Option<At>,
    until: Option<At>,
    /// Absent or "unavailable": the driver does not say.
    pub(crate) memory_mib: Option<Steps<Told<u64>>>,
    pub(crate) percent: Option<Percents>,
}

impl Process {
    pub(crate) fn span(&self) -> Span {
        Span::new(self.from, self.until)
    }
}

fn only_compute() -> Vec<ProcessKind> {
    vec![ProcessKind::Compute]
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ProcessKind {
    Compute,
    Graphics,
    Mps,
}

/// What percent of the engines is used; absent is none. Steps lie on the grid that samples are taken on.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Percents {
    pub(crate) sm: Option<Steps<u32>>,
    pub(crate) mem: Option<Steps<u32>>,
    pub(crate) enc: Option<Steps<u32>>,
    pub(crate) dec: Option<Steps<u32>>,
    pub(crate) jpg: Option<Steps<u32>>,
    pub(crate) ofa: Option<Steps<u32>>,
}

/// Percents at one instant: of SMs, memory, encoders, decoders, JPEG and optical flow.
pub(crate) type Engines = [u32; 6];

impl Percents {
    pub(crate) fn engines(&self) -> [&Option<Steps<u32>>; 6] {
        [&self.sm, &self.mem, &self.enc, &self.dec, &self.jpg, &self.ofa]
    }

    pub(crate) fn at(&self, at: i64) -> Engines {
        self.engines().map(|steps| steps.as_ref().and_then(|steps| steps.at(at)).copied().unwrap_or(0))
    }
}

/// How the driver gives out samples that it should not have given so.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SampleFault {
    pub(crate) kind: SampleFaultKind,
    from: Option<At>,
    until: Option<At>,
}

impl SampleFault {
    pub(crate) fn hold(faults: &[SampleFault], kind: SampleFaultKind, at: i64) -> bool {
        faults.iter().any(|fault| fault.kind == kind && Span::new(fault.from, fault.until).holds(at))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SampleFaultKind {
    /// The latest come first.
    OutOfOrder,
    /// Each comes twice.
    Doubled,
    /// Only the latest of each process comes, as NVIDIA's header can be read.
    LatestOnly,
    /// All that is kept comes, whatever was asked for.
    Replayed,
}

/// What accounting keeps of a process.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Accounted {
    pub(crate) pid: u32,
    pub(crate) start: At,
    /// Absent: it still runs.
    pub(crate) end: Option<At>,
    pub(crate) gpu: Option<u32>,
    pub(crate) memory: Option<u32>,
    pub(crate) max_memory_mib: Option<u64>,
}

/// A GPU instance of MIG.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct GpuInstance {
    pub(crate) gi: u32,
    /// A profile of the board's type.
    pub(crate) profile: String,
    /// The first memory slot.
    pub(crate) start: u32,
    from: Option<At>,
    until: Option<At>,
    /// Where the table does not know them.
    pub(crate) sms: Option<u32>,
    pub(crate) memory_mib: Option<u64>,
    #[serde(default)]
    pub(crate) compute: Vec<ComputeInstance>,
}

impl GpuInstance {
    pub(crate) fn span(&self) -> Span {
        Span::new(self.from, self.until)
    }
}

/// A compute instance, so a MIG device.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ComputeInstance {
    #[serde(default)]
    pub(crate) ci: u32,
    pub(crate) uuid: String,
    /// Its index among the MIG devices of the board.
    pub(crate) slot: u32,
    /// Compute slices; absent: those of its GPU instance.
    pub(crate) slices: Option<u32>,
    /// Its first slice in its GPU instance.
    #[serde(default)]
    pub(crate) start: u32,
    from: Option<At>,
    until: Option<At>,
}

impl ComputeInstance {
    pub(crate) fn span(&self) -> Span {
        Span::new(self.from, self.until)
    }
}

/// What GPM measures of a board or of a GPU instance.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Activity {
    /// The metric's number.
    pub(crate) metric: u32,
    pub(crate) gi: Option<u32>,
    pub(crate) value: Option<Steps<f64>>,
    /// It answers with this instead.
    pub(crate) code: Option<u32>,
}
