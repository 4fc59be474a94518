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

/// What an operator or a check declares a device or a slice to be in, over a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DeclaredKind {
    /// Being worked on.
    Maintenance,
    /// A VM is stunned, or on two hosts at once, while it moves: what it holds counts as maintenance, its holder
    /// kept.
    Migration,
    /// Broken or fallen off the bus.
    Unhealthy,
}

impl DeclaredKind {
    /// All kinds, in the order in which they apply.
    pub const ALL: [Self; 3] = [Self::Maintenance, Self::Migration, Self::Unhealthy];

    /// The kind's word.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Maintenance => "maintenance",
            Self::Migration => "migration",
            Self::Unhealthy => "unhealthy",
        }
    }

    /// Whether it may be declared before it begins. The others are seen, and nobody sees what is to come.
    #[must_use]
    pub const fn is_planned(self) -> bool {
        match self {
            Self::Maintenance => true,
            Self::Migration | Self::Unhealthy => false,
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

/// A declared state of one device, or of a slice of it, over a span.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeclaredState {
    /// What it is declared to be.
    pub kind: DeclaredKind,
    /// The slice's id as its source names it; none: the whole device.
    pub slice: Option<Name>,
    /// When.
    pub span: Span,
}
