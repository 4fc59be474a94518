//! What one look saw of a device, before it is told: slices, holders, and for each meter what it reads from.

use std::collections::HashMap;

use super::gpm::Part;
use crate::agent::source::{Holder, Meter, Presence, Standing};
use crate::domain::ids::Name;
use crate::domain::usage::{Evidence, Slice, VgpuScheduler};

/// From what a meter reads activity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Reads {
    /// Samples of processes.
    Processes,
    /// What the device says of itself.
    Device,
    /// GPM of a GPU instance.
    Gpm(Part),
    /// Samples of vGPUs.
    Vgpu,
    /// Nothing tells.
    Nothing,
}

/// What a meter reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Gauge {
    pub(super) reads: Reads,
    /// Bytes held now; none: nobody says.
    pub(super) memory: Option<u64>,
}

/// See the module.
#[derive(Debug, Clone, Default)]
pub(super) struct Snapshot {
    pub(super) scheduler: Option<VgpuScheduler>,
    /// Whether somebody was there whom nobody knows: then it says nothing of who holds.
    pub(super) is_blind: bool,
    pub(super) slices: Vec<Slice>,
    pub(super) holders: Vec<Holder>,
    pub(super) meters: Vec<Meter>,
    /// For each meter.
    pub(super) gauges: Vec<Gauge>,
    /// The meter of each pid.
    pub(super) pids: HashMap<u32, usize>,
    /// The meter of each vGPU, by the driver's number.
    pub(super) vgpus: HashMap<u32, usize>,
}

impl Snapshot {
    /// A slice, once.
    pub(super) fn slice(&mut self, slice: Slice) -> usize {
        if let Some(at) = self.slices.iter().position(|each| *each == slice) {
            return at;
        }
        self.slices.push(slice);
        self.slices.len().saturating_sub(1)
    }

    /// A holder, once.
    pub(super) fn holder(&mut self, slice: usize, evidence: Evidence) -> usize {
        let holder = Holder { slice, evidence };
        if let Some(at) = self.holders.iter().position(|each| *each == holder) {
            return at;
        }
        self.holders.push(holder);
        self.holders.len().saturating_sub(1)
    }

    /// A meter, once; of one that is there already, the memory grows.
    pub(super) fn meter(&mut self, slice: usize, holder: Option<usize>, gauge: Gauge) -> usize {
        let meter = Meter { slice, holder };
        if let Some(at) = self.meters.iter().position(|each| *each == meter) {
            if let Some(known) = self.gauges.get_mut(at) {
                known.memory = known.memory.zip(gauge.memory).map(|(a, b)| a.saturating_add(b));
            }
            return at;
        }
        self.meters.push(meter);
        self.gauges.push(gauge);
        self.meters.len().saturating_sub(1)
    }

    /// What is true of the device now.
    pub(super) fn standing(&self, device: &Name) -> Standing {
        Standing {
            device: device.clone(),
            presence: Presence::Present,
            scheduler: self.scheduler,
            sees_holders: !self.is_blind,
            slices: self.slices.clone(),
            holders: self.holders.clone(),
            meters: self.meters.clone(),
        }
    }

    /// Leaves what needs no knowledge of holders: slices with ids, and what is measured of them as a whole.
    pub(super) fn blind(self) -> Self {
        let mut left = Self { scheduler: self.scheduler, is_blind: true, ..Self::default() };
        for (meter, gauge) in self.meters.iter().zip(&self.gauges) {
            let slice = self.slices.get(meter.slice).filter(|slice| slice.id.is_some());
            if let (Some(slice), None) = (slice, meter.holder) {
                let slice = left.slice(slice.clone());
                left.meter(slice, None, gauge.clone());
            }
        }
        for slice in self.slices.into_iter().filter(|slice| slice.id.is_some()) {
            left.slice(slice);
        }
        left
    }
}
