//! One board of the driver, from look to look: what is there, and what was measured since the look before.
//!
//! Always true here: amounts are of what was there at the look before; activity that nobody tells is none; a
//! board that fails fails alone.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use nvml_wrapper::{Device, Nvml};

use super::energy::Energy;
use super::fault::{Absent, Fault, Metric};
use super::gpm::{self, Gpm, Part};
use super::health::Health;
use super::host::Host;
use super::mig::Mig;
use super::processes::{self, Seen, retried};
use super::raw::{self, Events};
use super::snapshot::{Gauge, Reads, Snapshot};
use super::state::BoardState;
use super::utilization::{self, Grid};
use super::vgpu::{self, Vgpus};
use crate::agent::source::{Amount, DeviceSample, Newcomer, Standing};
use crate::domain::ids::Name;
use crate::domain::units::{Instant, MICROS_PER_SECOND};

/// Most events that one look takes up: a board that fails can report without end.
const EVENTS_MAX: usize = 64;

/// When a look is, and since when it measures.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moment {
    pub(super) at: Instant,
    /// The look before; none: what was counted since is of no known time, and is passed over.
    pub(super) since: Option<Instant>,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Board {
    /// What tells it from others as long as the library is loaded.
    pub(super) address: usize,
    pub(super) health: Health,
    pub(super) mig: Mig,
    pub(super) vgpus: Vgpus,
    events: Option<Events>,
    /// Whether it was tried to listen: not every board lets the agent.
    has_listened: bool,
    absent: Absent,
    processes: Grid,
    vgpu_use: Grid,
    energy: Energy,
    gpm: Gpm,
    /// What was seen of holders of the board; and of each MIG device.
    seen: Seen,
    seen_of: BTreeMap<Name, Seen>,
    before: Option<(Arc<Standing>, Snapshot)>,
}

/// What was counted since the look before.
#[derive(Default)]
struct Counted {
    /// Nanoseconds by pid; none: the board does not tell.
    processes: Option<HashMap<u32, i64>>,
    /// Nanoseconds by the driver's number.
    vgpus: Option<HashMap<u32, i64>>,
    /// Parts of 10⁹.
    gpm: HashMap<Part, i64>,
    /// Percent of time with anything at work.
    device: Option<u32>,
}

impl Board {
    pub(super) fn restored(state: BoardState) -> Self {
        Self {
            processes: Grid::restored(state.processes),
            vgpu_use: Grid::restored(state.vgpus),
            ..Self::default()
        }
    }

    pub(super) fn state(&self) -> BoardState {
        BoardState { processes: self.processes.state(), vgpus: self.vgpu_use.state() }
    }

    /// Takes note that the driver is another one, or the library was loaded anew: what it can do has to be
    /// found out.
    pub(super) fn forget(&mut self) {
        self.absent.forget();
        self.gpm.forget();
        self.mig.forget();
        self.vgpus.forget();
    }

    /// Takes note that it could not be looked at: the next look begins anew.
    pub(super) fn lose(&mut self) {
        self.before = None;
        self.gpm.forget();
        self.energy = Energy::default();
        self.vgpus.records.clear();
    }

    /// Lets the library go, of which it holds parts.
    pub(super) fn let_go(&mut self) {
        self.lose();
        self.events = None;
        self.has_listened = false;
    }

    /// Whether its events are heard by this handle, if it lets the agent hear them at all.
    pub(super) const fn is_heard_by(&self, address: usize) -> bool {
        self.has_listened && self.address == address
    }

    /// Listens to its events, if it lets the agent.
    pub(super) fn listen(&mut self, nvml: &Arc<Nvml>, device: &Device<'_>) {
        self.address = raw::address(device);
        self.has_listened = true;
        let listened = Events::new(nvml).and_then(|events| events.listen(device).map(|()| events));
        self.events = listened.inspect_err(|error| tracing::debug!("no events of a GPU: {error}")).ok();
    }

    /// Takes note of what happened since the last look. Also of one that is lost, since it says why.
    pub(super) fn hear(&mut self, name: &Name, at: Instant) {
        let Some(events) = &self.events else { return };
        for _ in 0..EVENTS_MAX {
            let Ok(Some(event)) = events.next() else { return };
            match event.kind {
                raw::XID => {
                    tracing::warn!(device = %name, xid = event.data, "Xid {}", event.data);
                    self.health.note_xid(at, event.data);
                }
                raw::MIG_CHANGE => self.mig.changed(),
                _ => {}
            }
        }
    }

    /// Looks at it.
    pub(super) fn look(
        &mut self,
        (nvml, device): (&Arc<Nvml>, &Device<'_>),
        (name, index): (&Name, u32),
        host: &mut Host,
        moment: Moment,
    ) -> Result<DeviceSample, Fault> {
        self.health.look(device, &mut self.absent, moment.at)?;
        let snapshot = self.see((nvml, device), (name, index), host, moment.at)?;
        let standing = snapshot.standing(name);
        let standing = match &self.before {
            Some((before, _)) if **before == standing => Arc::clone(before),
            _ => Arc::new(standing),
        };
        // A look at the same instant, or at one that was passed already, shows what is there and measures
        // nothing.
        if moment.since.is_some_and(|since| since >= moment.at) {
            let mut look = DeviceSample::unmeasured(Arc::clone(&standing));
            if let Some((before, _)) = &self.before {
                look.measured_of = Arc::clone(before);
            }
            self.before = Some((standing, snapshot));
            return Ok(look);
        }
        let parts = parts(&snapshot);
        let counted = self.count((nvml, device), &snapshot, &parts, moment)?;
        let millijoules = self.absent.ask(Metric::Energy, || device.total_energy_consumption())?;
        let millijoules = self.energy.taken(millijoules);
        let mut look = DeviceSample::unmeasured(Arc::clone(&standing));
        if let (Some((before, of)), Some(since)) = (self.before.take(), moment.since) {
            look.measured_of = before;
            look.amounts = amounts(&of, &counted, since, moment.at);
            look.newcomers = newcomers(&of, &snapshot, &counted);
            look.millijoules = millijoules;
        }
        self.before = Some((standing, snapshot));
        Ok(look)
    }

    /// What is there now.
    fn see(
        &mut self,
        (nvml, device): (&Nvml, &Device<'_>),
        (name, index): (&Name, u32),
        host: &mut Host,
        at: Instant,
    ) -> Result<Snapshot, Fault> {
        let (is_mig, is_switched) = self.mig.mode(device, &mut self.absent)?;
        if is_switched {
            self.absent.forget();
            self.gpm.forget();
        }
        let running = self.vgpus.look((nvml, device, name), &mut self.absent)?;
        if running.is_none() && !self.absent.has(Metric::Vgpus) {
            // It is a host of vGPUs, and does not tell now which: they are what they were.
            let before = self.before.as_ref().map(|(_, snapshot)| snapshot.clone());
            return Ok(before.unwrap_or_default().blind());
        }
        let vgpus = running.unwrap_or_default();
        if is_mig {
            return self.see_instances((nvml, device, name), host, &vgpus, at);
        }
        if !self.absent.has(Metric::Vgpus) {
            // A host of vGPUs: what runs on it is in VMs.
            let mut snapshot = Snapshot { scheduler: self.vgpus.scheduler(), ..Snapshot::default() };
            vgpu::add(&mut snapshot, name, &vgpus, &BTreeMap::new());
            if !vgpus.is_empty() {
                return Ok(snapshot);
            }
        }
        let running = match processes::running(device, &mut self.absent) {
            Ok(running) => running,
            Err(Fault::Absent) => None,
            Err(fault) => return Err(fault),
        };
        let used = device.memory_info().ok().map(|memory| memory.used);
        let mut snapshot = processes::of_board(host, (name, index), running.as_deref(), used, &mut self.seen);
        snapshot.scheduler = self.vgpus.scheduler();
        Ok(snapshot)
    }

    fn see_instances(
        &mut self,
        (nvml, device, name): (&Nvml, &Device<'_>, &Name),
        host: &mut Host,
        vgpus: &[vgpu::Running],
        at: Instant,
    ) -> Result<Snapshot, Fault> {
        let of_vgpus: Vec<u32> = vgpus.iter().filter_map(vgpu::Running::gi).collect();
        let (devices, is_all) = self.mig.look((nvml, device), &mut self.absent, &of_vgpus, at)?;
        let (slices, of_devices, of_instances) = self.mig.slices(name);
        let mut snapshot = Snapshot { scheduler: self.vgpus.scheduler(), slices, ..Snapshot::default() };
        self.seen_of.retain(|uuid, _| of_devices.contains_key(uuid));
        let mut is_blind = !is_all;
        for mig in devices {
            let Some(slice) = of_devices.get(&mig.is.uuid).copied() else { continue };
            let running = match processes::running(&mig.device, &mut self.absent) {
                Ok(running) => running,
                // On a host of vGPUs there are no such lists: what runs in instances is in VMs.
                Err(Fault::Absent) => (!vgpus.is_empty()).then(Vec::new),
                Err(fault) => return Err(fault),
            };
            let memory = mig.device.memory_info().ok().map(|memory| memory.used);
            // Activity and memory are the GPU instance's; where it has several compute instances, they share
            // both.
            let of_instance = mig.is.gi.and_then(|gi| of_instances.get(&gi)).copied();
            let reads = match (of_instance, mig.is.gi) {
                (Some(at), Some(gi)) => {
                    snapshot.slices.get(at).and_then(|slice| slice.id.clone()).map(|id| (id, gi))
                }
                _ => None,
            };
            let reads = reads.map_or(Reads::Nothing, |(id, gi)| Reads::Gpm(Part::Instance(id, gi)));
            let metered = of_instance.unwrap_or(slice);
            if !snapshot.meters.iter().any(|meter| meter.slice == metered && meter.holder.is_none()) {
                snapshot.meter(metered, None, Gauge { reads, memory });
            }
            let seen = self.seen_of.entry(mig.is.uuid.clone()).or_default();
            is_blind |= !processes::of_slice(host, &mut snapshot, slice, running.as_deref(), seen);
        }
        vgpu::add(&mut snapshot, name, vgpus, &of_instances);
        Ok(if is_blind { snapshot.blind() } else { snapshot })
    }

    /// Reads all counters. Samples that were read do not come again, so they are read at each look.
    fn count(
        &mut self,
        (nvml, device): (&Arc<Nvml>, &Device<'_>),
        snapshot: &Snapshot,
        parts: &[Part],
        moment: Moment,
    ) -> Result<Counted, Fault> {
        let mut counted = Counted::default();
        let is_host = !self.absent.has(Metric::Vgpus);
        let since = self.processes.since();
        let told = self
            .absent
            .ask(Metric::ProcessUse, || found(retried(|| device.process_utilization_stats(since))))?;
        counted.processes =
            told.map(|all| {
                let sample = |one: nvml_wrapper::struct_wrappers::device::ProcessUtilizationSample| {
                    raw::Sample { whose: one.pid, stamp: one.timestamp, percent: one.sm_util }
                };
                self.processes.count(all.into_iter().map(sample).collect())
            });
        if is_host {
            let since = self.vgpu_use.since();
            let told = self
                .absent
                .ask(Metric::VgpuUse, || found(retried(|| raw::vgpu_samples(nvml, device, since))))?;
            counted.vgpus = told.map(|all| self.vgpu_use.count(all));
        }
        counted.gpm = self.gpm.read(nvml, device, &mut self.absent, parts, moment.at)?;
        let wants_device = snapshot.gauges.iter().any(|gauge| gauge.reads == Reads::Device);
        if wants_device && !counted.gpm.contains_key(&Part::Whole) {
            let told = self.absent.ask(Metric::DeviceUse, || device.utilization_rates())?;
            counted.device = told.map(|rates| rates.gpu);
        }
        Ok(counted)
    }
}

/// No new samples are an empty list.
fn found<T>(
    answer: Result<Vec<T>, nvml_wrapper::error::NvmlError>,
) -> Result<Vec<T>, nvml_wrapper::error::NvmlError> {
    match answer {
        Err(nvml_wrapper::error::NvmlError::NotFound) => Ok(Vec::new()),
        other => other,
    }
}

/// What of the board GPM has to measure.
fn parts(snapshot: &Snapshot) -> Vec<Part> {
    let part = |gauge: &Gauge| match &gauge.reads {
        Reads::Gpm(part) => Some(part.clone()),
        Reads::Device => Some(Part::Whole),
        Reads::Processes | Reads::Vgpu | Reads::Nothing => None,
    };
    let mut parts: Vec<Part> = Vec::new();
    for part in snapshot.gauges.iter().filter_map(part) {
        if !parts.contains(&part) {
            parts.push(part);
        }
    }
    parts
}

/// Of each meter of the look before, what it measured until now.
fn amounts(of: &Snapshot, counted: &Counted, since: Instant, at: Instant) -> Vec<Amount> {
    let micros = at.micros_since(since);
    // What nobody was active in was measured too: as nothing.
    let mut sampled = vec![0_i64; of.gauges.len()];
    let by_pid =
        counted.processes.iter().flatten().filter_map(|(pid, nanos)| Some((of.pids.get(pid)?, nanos)));
    let by_vgpu = counted.vgpus.iter().flatten().filter_map(|(id, nanos)| Some((of.vgpus.get(id)?, nanos)));
    for (meter, nanos) in by_pid.chain(by_vgpu) {
        if let Some(sum) = sampled.get_mut(*meter) {
            *sum = sum.saturating_add(*nanos);
        }
    }
    let amount = |(gauge, sampled): (&Gauge, i64)| Amount {
        active_nanos: match &gauge.reads {
            Reads::Processes => counted.processes.as_ref().map(|_| sampled),
            Reads::Vgpu => counted.vgpus.as_ref().map(|_| sampled),
            Reads::Gpm(part) => counted.gpm.get(part).map(|share| gpm::of_billionths(*share, micros)),
            Reads::Device => {
                let of_gpm = counted.gpm.get(&Part::Whole).map(|share| gpm::of_billionths(*share, micros));
                of_gpm.or_else(|| counted.device.map(|percent| utilization::of_percent(percent, micros)))
            }
            Reads::Nothing => None,
        },
        memory_byte_seconds: gauge.memory.map(|bytes| byte_seconds(bytes, since, at)),
    };
    of.gauges.iter().zip(sampled).map(amount).collect()
}

/// What those did who were not there at the look before.
fn newcomers(of: &Snapshot, now: &Snapshot, counted: &Counted) -> Vec<Newcomer> {
    let new_pids = counted.processes.iter().flatten().filter(|(pid, _)| !of.pids.contains_key(pid));
    let new_pids = new_pids.filter_map(|(pid, nanos)| Some((*now.pids.get(pid)?, *nanos)));
    let new_vgpus = counted.vgpus.iter().flatten().filter(|(id, _)| !of.vgpus.contains_key(id));
    let new_vgpus = new_vgpus.filter_map(|(id, nanos)| Some((*now.vgpus.get(id)?, *nanos)));
    let mut sums: BTreeMap<usize, i64> = BTreeMap::new();
    for (meter, nanos) in new_pids.chain(new_vgpus) {
        let sum = sums.entry(meter).or_default();
        *sum = sum.saturating_add(nanos);
    }
    let newcomer = |(meter, nanos): (usize, i64)| {
        let meter = now.meters.get(meter)?;
        let holder = meter.holder.and_then(|at| now.holders.get(at));
        Some(Newcomer {
            slice: now.slices.get(meter.slice)?.clone(),
            evidence: holder.map(|holder| holder.evidence.clone()),
            amount: Amount { active_nanos: Some(nanos), memory_byte_seconds: None },
        })
    };
    sums.into_iter().filter_map(newcomer).collect()
}

/// Bytes over a span. Rounded down at instants and not at lengths: so looks add up while nothing changes.
fn byte_seconds(bytes: u64, since: Instant, at: Instant) -> i64 {
    let until = |instant: Instant| {
        let all = i128::from(bytes).saturating_mul(instant.micros().into());
        all.div_euclid(MICROS_PER_SECOND.into())
    };
    i64::try_from(until(at).saturating_sub(until(since))).unwrap_or(i64::MAX)
}
