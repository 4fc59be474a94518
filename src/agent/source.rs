//! The port to a node's devices: what they are, who holds what of them now, what was measured since the last look.
//!
//! A source is polled. What it shows at a sample stands from that sample on; what it measured is of the time since
//! the sample before. What a device cannot tell is `None`, never 0.

use std::fmt;
use std::sync::Arc;

use crate::domain::ids::Name;
use crate::domain::units::Instant;
use crate::domain::usage::{Evidence, Slice, VgpuScheduler};

/// What watches the devices of one node.
pub trait Source: Send {
    /// The node's devices.
    ///
    /// # Errors
    /// [`SourceError`] when the devices cannot be listed.
    fn inventory(&mut self) -> Result<Inventory, SourceError>;

    /// Looks at every device, at `at` in server time, and writes what it saw into `sample`. All of `sample` is
    /// replaced; its tables are only reused. Samples may be missing, doubled, or go back when the clock does.
    ///
    /// # Errors
    /// [`SourceError`] when nothing can be seen. What is in `sample` then says nothing, and the next sample measures
    /// from the last good one on.
    fn sample(&mut self, at: Instant, sample: &mut Sample) -> Result<(), SourceError>;

    /// What [`Source::restore`] needs to count nothing twice: the instants and counters that were seen last.
    fn state(&self) -> Vec<u8>;

    /// Goes on from a state. One that cannot be read is none: the source begins anew.
    fn restore(&mut self, state: &[u8]);
}

/// Why a source saw nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// What shows the devices does not answer.
    #[error("the devices cannot be seen: {reason}")]
    Unavailable {
        /// Why, for people.
        reason: String,
    },
}

/// What a node has.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Inventory {
    /// The driver's version, where it is known.
    pub driver: Option<Name>,
    /// The devices, by index.
    pub devices: Vec<DeviceInfo>,
}

/// One device of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Its UUID.
    pub uuid: Name,
    /// The product name, as the driver shows it.
    pub model: Name,
    /// Memory in MiB.
    pub memory_mib: u32,
    /// The driver's number for it: 0, 1 and so on, not stable over reboots.
    pub index: u32,
    /// PCI address, such as `00000000:19:00.0`.
    pub pci: Option<Name>,
    /// The board's serial.
    pub serial: Option<Name>,
}

/// One look at all devices.
#[derive(Debug, Clone, Default)]
pub struct Sample {
    /// From where on amounts and energy are measured; they end at the instant of the sample. None: nothing was
    /// measured, as at the first look of all.
    pub since: Option<Instant>,
    /// Each device once, always in the same order. A device that is lost is there, and says so.
    pub devices: Vec<DeviceSample>,
}

/// One look at one device.
#[derive(Debug, Clone)]
pub struct DeviceSample {
    /// What is there now. A source hands out the same `Arc` for as long as nothing changes: that makes "unchanged"
    /// one comparison.
    pub standing: Arc<Standing>,
    /// What was there at the sample before: `amounts` are of its meters.
    pub measured_of: Arc<Standing>,
    /// For each of [`Standing::meters`] of `measured_of`, what it measured. Empty: none of them measured anything.
    pub amounts: Vec<Amount>,
    /// What was measured of slices and holders that were not there at the sample before.
    pub newcomers: Vec<Newcomer>,
    /// Millijoules that the device took; none: no counter, or it began anew.
    pub millijoules: Option<i64>,
}

impl DeviceSample {
    /// A look at a device of which nothing was measured.
    #[must_use]
    pub fn unmeasured(standing: Arc<Standing>) -> Self {
        let measured_of = Arc::clone(&standing);
        Self { standing, measured_of, amounts: Vec::new(), newcomers: Vec::new(), millijoules: None }
    }
}

/// What is true of a device for a while.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    /// The device's UUID.
    pub device: Name,
    /// Whether it can be reached.
    pub presence: Presence,
    /// The scheduling policy of vGPUs, where the driver tells. Slices that are vGPUs carry it too.
    pub scheduler: Option<VgpuScheduler>,
    /// Whether holders could be seen. If not, `holders` is empty and says nothing, and only use is known.
    pub sees_holders: bool,
    /// The slices that exist, and, without an id, those that are there because somebody holds them. Each once.
    pub slices: Vec<Slice>,
    /// Who holds what.
    pub holders: Vec<Holder>,
    /// What is measured here. Each slice and holder once.
    pub meters: Vec<Meter>,
}

impl Standing {
    /// A device that cannot be reached: nothing is known of it.
    #[must_use]
    pub const fn lost(device: Name, reason: Name) -> Self {
        Self {
            device,
            presence: Presence::Lost(reason),
            scheduler: None,
            sees_holders: false,
            slices: Vec::new(),
            holders: Vec::new(),
            meters: Vec::new(),
        }
    }

    /// Whether the device can be reached.
    #[must_use]
    pub const fn is_present(&self) -> bool {
        matches!(self.presence, Presence::Present)
    }
}

/// Whether a device can be reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Presence {
    /// It answers.
    Present,
    /// It does not, for a reason such as an Xid: it fell off the bus, or hangs.
    Lost(Name),
}

impl fmt::Display for Presence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Present => f.write_str("present"),
            Self::Lost(reason) => write!(f, "lost: {reason}"),
        }
    }
}

/// One holder of a slice.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Holder {
    /// Index into [`Standing::slices`].
    pub slice: usize,
    /// What was seen of the holder.
    pub evidence: Evidence,
}

/// One thing that is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Meter {
    /// Index into [`Standing::slices`].
    pub slice: usize,
    /// Index into [`Standing::holders`]; none: of the slice as a whole.
    pub holder: Option<usize>,
}

/// What a meter measured over a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Amount {
    /// Nanoseconds × SM activity: of the slice itself for a whole device and MIG, of its parent for the others.
    pub active_nanos: Option<i64>,
    /// Bytes held × seconds.
    pub memory_byte_seconds: Option<i64>,
}

/// What was measured of somebody who came between two samples, and may be gone again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Newcomer {
    /// The slice.
    pub slice: Slice,
    /// The holder; none: of the slice as a whole.
    pub evidence: Option<Evidence>,
    /// How much.
    pub amount: Amount,
}
