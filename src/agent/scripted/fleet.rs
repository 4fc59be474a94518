//! A node of a fleet file, read and checked: what is there at any instant.

use std::collections::BTreeMap;
use std::fmt;

use crate::agent::source::DeviceInfo;
use crate::domain::device::SharingMode;
use crate::domain::ids::Name;
use crate::domain::period::Span;
use crate::domain::units::Instant;
use crate::domain::usage::{Evidence, EvidenceField, Slice, SliceSize, VgpuScheduler};

use super::when::{Hours, Schedule};

/// One node.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) driver: Option<Name>,
    pub(super) devices: Vec<Device>,
    pub(super) habits: Vec<Habit>,
    /// From when on a sample measures the past once more, and how much of it, in microseconds.
    pub(super) replays: Vec<(Instant, i64)>,
}

/// What is measured apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Metering {
    Slices,
    Holders,
    Nothing,
}

#[derive(Debug)]
pub(super) struct Device {
    pub(super) info: DeviceInfo,
    pub(super) mode: SharingMode,
    pub(super) metering: Metering,
    /// The size of a holder's own slice, where slices have no ids.
    pub(super) own_size: SliceSize,
    /// By their first instants; the first is there always.
    pub(super) epochs: Vec<Epoch>,
    pub(super) idle_milliwatts: i64,
    pub(super) busy_milliwatts: i64,
    pub(super) lost: Vec<(Span, Name)>,
    pub(super) hidden: Vec<Span>,
    pub(super) resets: Vec<Instant>,
}

impl Device {
    /// The layout at an instant.
    pub(super) fn epoch(&self, at: Instant) -> Option<&Epoch> {
        self.epochs.iter().rev().find(|epoch| epoch.from <= at)
    }

    /// Why it is lost at an instant, if it is.
    pub(super) fn lost_at(&self, at: Instant) -> Option<&Name> {
        self.lost.iter().find(|(span, _)| span.contains(at)).map(|(_, reason)| reason)
    }

    fn edges(&self) -> impl Iterator<Item = Instant> {
        let lost = self.lost.iter().map(|(span, _)| *span);
        let spans = lost.chain(self.hidden.iter().copied());
        let epochs = self.epochs.iter().map(|epoch| epoch.from);
        spans.flat_map(|span| [span.start(), span.end()]).chain(epochs).chain(self.resets.iter().copied())
    }
}

/// A layout, from an instant on.
#[derive(Debug, Clone)]
pub(super) struct Epoch {
    pub(super) from: Instant,
    pub(super) scheduler: Option<VgpuScheduler>,
    /// The slices that exist: all have ids.
    pub(super) slices: Vec<Slice>,
    /// What of the device's activity a slice's is, in parts of `whole`.
    pub(super) weights: Vec<i64>,
    pub(super) whole: i64,
    /// Part and vGPU, to the place in `slices`.
    pub(super) targets: BTreeMap<(u16, u16), usize>,
}

/// What a habit holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Target {
    pub(super) device: usize,
    /// Part and vGPU; none: the device.
    pub(super) part: Option<(u16, u16)>,
}

#[derive(Debug)]
pub(super) struct Habit {
    pub(super) who: Vec<(EvidenceField, String)>,
    pub(super) on: Vec<Target>,
    pub(super) life: Span,
    pub(super) schedule: Schedule,
    pub(super) busy_hours: Option<Hours>,
    pub(super) busy: i64,
    pub(super) idle: i64,
    pub(super) memory_bytes: i64,
    /// An MPS client's own size.
    pub(super) own_size: Option<SliceSize>,
}

/// Where the number of a stay stands in evidence.
pub(super) const NUMBER: &str = "{n}";
/// Where what is held stands in evidence.
pub(super) const ON: &str = "{on}";

impl fmt::Display for Target {
    /// As it may stand in a pod's name: `0`, `0-3`, `0-3-1`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.part {
            None => write!(f, "{}", self.device),
            Some((part, 0)) => write!(f, "{}-{part}", self.device),
            Some((part, vgpu)) => write!(f, "{}-{part}-{vgpu}", self.device),
        }
    }
}

impl Habit {
    /// The number of its stay at an instant; none: it is not there.
    pub(super) fn stay(&self, at: Instant) -> Option<i64> {
        if self.life.contains(at) { self.schedule.stay(at) } else { None }
    }

    /// SM activity at an instant when it is there, per mille.
    pub(super) fn activity(&self, at: Instant) -> i64 {
        let is_busy = self.busy_hours.as_ref().is_none_or(|hours| hours.contains(at));
        if is_busy { self.busy } else { self.idle }
    }

    /// What is seen of it on what it holds during a stay. Names were checked with the longest values.
    pub(super) fn evidence(&self, stay: i64, on: Target) -> Evidence {
        let fill = |text: &String| {
            Name::parse(&text.replace(NUMBER, &stay.to_string()).replace(ON, &on.to_string())).ok()
        };
        self.who.iter().filter_map(|(field, text)| fill(text).map(|name| (*field, name))).collect()
    }

    fn next_edge(&self, after: Instant) -> Option<Instant> {
        if after >= self.life.end() {
            return None;
        }
        if after < self.life.start() {
            return Some(self.life.start());
        }
        let busy = self.busy_hours.as_ref().and_then(|hours| hours.next_edge(after));
        [Some(self.life.end()), busy, self.schedule.next_edge(after)].into_iter().flatten().min()
    }
}

impl Node {
    /// The first instant after another at which anything may change: no rate changes before it.
    pub(super) fn next_edge(&self, after: Instant) -> Option<Instant> {
        let habits = self.habits.iter().filter_map(|habit| habit.next_edge(after));
        let devices = self.devices.iter().flat_map(Device::edges);
        habits.chain(devices).filter(|edge| *edge > after && *edge < Instant::MAX).min()
    }
}
