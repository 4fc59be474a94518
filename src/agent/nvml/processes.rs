//! Who works on a board without instances, or on a MIG device: processes, put together by holder.
//!
//! Processes of one control group are one holder. One holder has the whole board; several share its time, or
//! its threads where they are clients of MPS. How many replicas were declared, the driver does not know:
//! those who are there share.

use std::collections::BTreeMap;
use std::sync::Arc;

use nvml_wrapper::Device;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::ProcessInfo;

use super::fault::{Absent, Fault, Metric};
use super::host::{Host, Process};
use super::snapshot::{Gauge, Reads, Snapshot};
use crate::domain::device::SharingMode;
use crate::domain::ids::Name;
use crate::domain::usage::{Evidence, EvidenceField, Slice, SliceSize};

/// How often a list that grew while it was read is read anew.
const TRIES: u32 = 4;
/// The MPS server and its control daemon, as the kernel cuts their names.
const MPS_SERVER: &str = "nvidia-cuda-mps";

/// A process on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Running {
    pid: u32,
    /// Bytes that it holds; none: the driver does not say.
    memory: Option<u64>,
    is_mps: bool,
}

/// What makes a holder.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Key {
    cgroup: Option<Name>,
    /// Where there is no group: the user and the command.
    other: Option<(Option<Name>, Option<Name>)>,
}

/// What was seen of each holder when it came. It is kept while it is there, whichever of its processes end.
pub(super) type Seen = BTreeMap<Key, Evidence>;

/// One holder's processes.
#[derive(Debug)]
struct Group {
    evidence: Evidence,
    /// When its oldest process began, and which it was.
    first: (u64, u32),
    members: Vec<(Running, Arc<Process>)>,
}

/// Asks for a list again where it grew meanwhile.
pub(super) fn retried<T>(mut ask: impl FnMut() -> Result<T, NvmlError>) -> Result<T, NvmlError> {
    let mut answer = ask();
    for _ in 1..TRIES {
        if !matches!(answer, Err(NvmlError::InsufficientSize(_))) {
            break;
        }
        answer = ask();
    }
    answer
}

/// The processes on a device, each once; none: not all of them can be seen now.
///
/// # Errors
/// [`Fault::Absent`] where there are no such lists, and what ends a look.
pub(super) fn running(device: &Device<'_>, absent: &mut Absent) -> Result<Option<Vec<Running>>, Fault> {
    // Not remembered as absent: without this list nothing can be said of who holds.
    let compute = match retried(|| device.running_compute_processes()).map_err(Fault::from) {
        Ok(list) => list,
        Err(fault) if fault.ends_the_look() || fault == Fault::Absent => return Err(fault),
        Err(_) => return Ok(None),
    };
    let graphics = absent.ask(Metric::Graphics, || retried(|| device.running_graphics_processes()))?;
    let mps = absent.ask(Metric::Mps, || retried(|| device.mps_running_compute_processes()))?;
    if graphics.is_none() && !absent.has(Metric::Graphics) || mps.is_none() && !absent.has(Metric::Mps) {
        return Ok(None);
    }
    let mut all: BTreeMap<u32, Running> = BTreeMap::new();
    let mut add = |list: Vec<ProcessInfo>, is_mps: bool| {
        for info in list {
            let memory = match info.used_gpu_memory {
                UsedGpuMemory::Used(bytes) => Some(bytes),
                UsedGpuMemory::Unavailable => None,
            };
            let one = all.entry(info.pid).or_insert(Running { pid: info.pid, memory, is_mps });
            one.memory = one.memory.max(memory);
            one.is_mps |= is_mps;
        }
    };
    add(compute, false);
    add(graphics.unwrap_or_default(), false);
    add(mps.unwrap_or_default(), true);
    Ok(Some(all.into_values().collect()))
}

/// Processes by holder; none: the host does not know one of them.
fn grouped(host: &mut Host, running: &[Running], seen: &mut Seen) -> Option<Vec<Group>> {
    let mut groups: BTreeMap<Key, Group> = BTreeMap::new();
    for one in running {
        let process = host.process(one.pid)?;
        let is_server = process.command.as_ref().is_some_and(|name| name.as_str().starts_with(MPS_SERVER));
        if is_server && !one.is_mps {
            continue;
        }
        let other = process.cgroup.is_none().then(|| (process.user.clone(), process.command.clone()));
        let key = Key { cgroup: process.cgroup.clone(), other };
        let age = (process.start, one.pid);
        let group = groups.entry(key).or_insert_with(|| Group {
            evidence: evidence(&process),
            first: age,
            members: Vec::new(),
        });
        if age < group.first {
            (group.first, group.evidence) = (age, evidence(&process));
        }
        group.members.push((*one, process));
    }
    seen.retain(|key, _| groups.contains_key(key));
    let settle = |(key, mut group): (Key, Group)| {
        group.evidence = seen.entry(key).or_insert(group.evidence).clone();
        group
    };
    Some(groups.into_iter().map(settle).collect())
}

fn evidence(process: &Process) -> Evidence {
    let fields = [
        (EvidenceField::User, &process.user),
        (EvidenceField::Cgroup, &process.cgroup),
        (EvidenceField::Process, &process.command),
    ];
    fields.into_iter().filter_map(|(field, value)| Some((field, value.clone()?))).collect()
}

impl Group {
    /// What all hold together; none: of one nobody says.
    fn memory(&self) -> Option<u64> {
        self.members.iter().try_fold(0_u64, |sum, (one, _)| Some(sum.saturating_add(one.memory?)))
    }

    fn is_mps(&self) -> bool {
        self.members.iter().any(|(one, _)| one.is_mps)
    }

    /// What its MPS clients may use together: a client that is not limited may use all.
    fn threads(&self, index: u32) -> SliceSize {
        let clients = || self.members.iter().filter(|(one, _)| one.is_mps);
        let percent =
            clients().fold(0_u32, |sum, (_, process)| sum.saturating_add(process.mps.percent.unwrap_or(100)));
        let memory_mib = clients()
            .try_fold(0_u32, |sum, (_, process)| Some(sum.saturating_add(process.mps.memory_on(index)?)));
        SliceSize::Threads { percent: percent.clamp(1, 100), memory_mib }
    }

    fn add_to(&self, snapshot: &mut Snapshot, slice: usize) {
        let holder = snapshot.holder(slice, self.evidence.clone());
        let gauge = Gauge { reads: Reads::Processes, memory: self.memory() };
        let meter = snapshot.meter(slice, Some(holder), gauge);
        snapshot.pids.extend(self.members.iter().map(|(one, _)| (one.pid, meter)));
    }
}

/// What processes make of a whole board. `used`: bytes in use on it.
pub(super) fn of_board(
    host: &mut Host,
    (device, index): (&Name, u32),
    running: Option<&[Running]>,
    used: Option<u64>,
    seen: &mut Seen,
) -> Snapshot {
    let groups = running.and_then(|running| grouped(host, running, seen));
    let Some(groups) = groups else { return Snapshot { is_blind: true, ..Snapshot::default() } };
    let mut snapshot = Snapshot::default();
    let plain = |mode, size| Slice::plain(device.clone(), mode, size);
    let is_shared = groups.len() > 1;
    for group in &groups {
        let slice = match (group.is_mps(), is_shared) {
            (true, _) => plain(SharingMode::Mps, group.threads(index)),
            (false, true) => plain(SharingMode::TimeSlicing, SliceSize::Even),
            (false, false) => plain(SharingMode::Dedicated, SliceSize::Whole),
        };
        let is_mps = slice.mode == SharingMode::Mps;
        let slice = snapshot.slice(slice);
        group.add_to(&mut snapshot, slice);
        if !is_mps && !snapshot.meters.iter().any(|meter| meter.slice == slice && meter.holder.is_none()) {
            // All that share the board's time share this slice: it is the board.
            snapshot.meter(slice, None, Gauge { reads: Reads::Device, memory: used });
        }
    }
    snapshot
}

/// Adds the holders of a slice that exists by itself, and what each of them holds. Whether all are known.
pub(super) fn of_slice(
    host: &mut Host,
    snapshot: &mut Snapshot,
    slice: usize,
    running: Option<&[Running]>,
    seen: &mut Seen,
) -> bool {
    let Some(groups) = running.and_then(|running| grouped(host, running, seen)) else { return false };
    // What an only holder uses is what the slice does as a whole, which knows its activity too: a figure of
    // the holder's own would stand before it.
    let is_measured = snapshot.meters.iter().any(|meter| meter.slice == slice && meter.holder.is_none());
    let is_alone = groups.len() == 1;
    for group in groups {
        let holder = snapshot.holder(slice, group.evidence.clone());
        if !(is_alone && is_measured) {
            let gauge = Gauge { reads: Reads::Nothing, memory: group.memory() };
            snapshot.meter(slice, Some(holder), gauge);
        }
    }
    true
}
