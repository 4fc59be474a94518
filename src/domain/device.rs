//! Devices, the ways to share one, and the states it can be declared to be in.

use super::ids::Name;
use super::period::Span;

/// How a device is shared. The word is the one that tables, batches and reports use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SharingMode {
    /// The whole device in a VM: VFIO, DirectPath, DDA.
    Passthrough,
    /// The whole device held on the host by a container, job or process.
    Dedicated,
    /// A MIG GPU instance or compute instance.
    Mig,
    /// A vGPU on the whole device.
    Vgpu,
    /// A vGPU on a MIG instance.
    MigVgpu,
    /// A time-slicing replica.
    TimeSlicing,
    /// An MPS client.
    Mps,
    /// Another vendor's partition: Hyper-V GPU-P, AMD CPX and the like.
    Partition,
}

/// A word is none of a fixed set.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{word}` is none of: {known}")]
pub struct UnknownWord {
    /// The word as given.
    pub word: String,
    /// The words of the set, separated by commas.
    pub known: String,
}

impl UnknownWord {
    /// An error that lists what would have been known.
    pub fn new<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Self {
        Self { word: word.to_owned(), known: known.into_iter().collect::<Vec<_>>().join(", ") }
    }
}

impl SharingMode {
    /// All modes.
    pub const ALL: [Self; 8] = [
        Self::Passthrough,
        Self::Dedicated,
        Self::Mig,
        Self::Vgpu,
        Self::MigVgpu,
        Self::TimeSlicing,
        Self::Mps,
        Self::Partition,
    ];

    /// The mode's word.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Passthrough => "passthrough",
            Self::Dedicated => "dedicated",
            Self::Mig => "mig",
            Self::Vgpu => "vgpu",
            Self::MigVgpu => "mig_vgpu",
            Self::TimeSlicing => "time_slicing",
            Self::Mps => "mps",
            Self::Partition => "partition",
        }
    }

    /// Reads a word.
    ///
    /// # Errors
    /// [`UnknownWord`] lists the modes.
    pub fn parse(word: &str) -> Result<Self, UnknownWord> {
        Self::ALL
            .into_iter()
            .find(|mode| mode.word() == word)
            .ok_or_else(|| UnknownWord::new(word, Self::ALL.map(Self::word)))
    }

    /// Whether a holder in this mode has the whole device by definition.
    #[must_use]
    pub const fn takes_whole_device(self) -> bool {
        match self {
            Self::Passthrough | Self::Dedicated => true,
            Self::Mig | Self::Vgpu | Self::MigVgpu | Self::TimeSlicing | Self::Mps | Self::Partition => false,
        }
    }
}

/// What attribution needs to know of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// The board's UUID, its natural key.
    pub uuid: Name,
    /// The model, by which it is priced.
    pub model: Name,
}

/// What an operator or a check declares a device to be in, over a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DeclaredKind {
    /// Being worked on.
    Maintenance,
    /// Broken or fallen off the bus.
    Unhealthy,
}

impl DeclaredKind {
    /// All kinds, in the order in which they apply.
    pub const ALL: [Self; 2] = [Self::Maintenance, Self::Unhealthy];

    /// The kind's word.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Maintenance => "maintenance",
            Self::Unhealthy => "unhealthy",
        }
    }

    /// Reads a word.
    ///
    /// # Errors
    /// [`UnknownWord`] lists the kinds.
    pub fn parse(word: &str) -> Result<Self, UnknownWord> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.word() == word)
            .ok_or_else(|| UnknownWord::new(word, Self::ALL.map(Self::word)))
    }
}

/// A declared state of one device over a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeclaredState {
    /// What it is declared to be.
    pub kind: DeclaredKind,
    /// When.
    pub span: Span,
}
