//! Policies of a price book that decide shares: the weighting, the basis per mode, and two options.
//!
//! Source: DESIGN §3, rules 1 and 3.

use std::collections::BTreeMap;

use super::device::{SharingMode, UnknownWord};
use super::share::{PPM, Share};

/// How a slice's compute share C and memory share M make one weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Weighting {
    /// α·C + (1 − α)·M, with α in millionths.
    Blended {
        /// α in millionths; at most 1,000,000.
        alpha_ppm: u32,
    },
    /// C alone.
    Compute,
    /// M alone.
    Memory,
    /// The larger of both.
    Dominant,
}

impl Weighting {
    /// Half and half.
    pub const DEFAULT: Self = Self::Blended { alpha_ppm: 500_000 };
    /// The words of all weightings.
    pub const WORDS: [&'static str; 4] = ["blended", "compute", "memory", "dominant"];

    /// The word, without α.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Blended { .. } => "blended",
            Self::Compute => "compute",
            Self::Memory => "memory",
            Self::Dominant => "dominant",
        }
    }

    /// Reads a word; `alpha_ppm` is used by `blended`.
    ///
    /// # Errors
    /// [`UnknownWord`] lists the weightings.
    pub fn parse(word: &str, alpha_ppm: u32) -> Result<Self, UnknownWord> {
        match word {
            "blended" => Ok(Self::Blended { alpha_ppm }),
            "compute" => Ok(Self::Compute),
            "memory" => Ok(Self::Memory),
            "dominant" => Ok(Self::Dominant),
            _ => Err(UnknownWord::new(word, Self::WORDS)),
        }
    }

    /// The weight of a compute share and a memory share.
    #[must_use]
    pub fn weigh(self, compute: &Share, memory: &Share) -> Share {
        match self {
            Self::Compute => *compute,
            Self::Memory => *memory,
            Self::Dominant => compute.at_least(*memory),
            // Where both are one, so is every blend of them: the raw fraction is kept.
            Self::Blended { .. } if compute.raw() == memory.raw() => *compute,
            Self::Blended { alpha_ppm } => {
                let alpha = Share::part_of(alpha_ppm.into(), PPM_U64);
                let rest = Share::WHOLE.minus(&alpha);
                alpha.of(compute).plus(&rest.of(memory))
            }
        }
    }
}

const PPM_U64: u64 = 1_000_000;
const _: () = assert!(PPM == 1_000_000);

/// What a holder is charged for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Basis {
    /// What it may use.
    #[default]
    Allocation,
    /// What it used; what it held beside that is `held_unused`.
    Usage,
    /// The larger of both.
    Larger,
}

impl Basis {
    /// All bases.
    pub const ALL: [Self; 3] = [Self::Allocation, Self::Usage, Self::Larger];

    /// The word.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Allocation => "allocation",
            Self::Usage => "usage",
            Self::Larger => "larger",
        }
    }

    /// Reads a word.
    ///
    /// # Errors
    /// [`UnknownWord`] lists the bases.
    pub fn parse(word: &str) -> Result<Self, UnknownWord> {
        Self::ALL
            .into_iter()
            .find(|basis| basis.word() == word)
            .ok_or_else(|| UnknownWord::new(word, Self::ALL.map(Self::word)))
    }
}

/// What a price book says about shares. Where no version holds, the default does.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Policy {
    /// How compute and memory make one weight.
    pub weighting: Weighting,
    /// The basis by mode; a mode that is not named has [`Basis::Allocation`].
    pub basis: BTreeMap<SharingMode, Basis>,
    /// Whether vGPUs under the equal-share scheduler have 1 ÷ running vGPUs instead of 1 ÷ max(type).
    pub entitled: bool,
    /// Whether a slice whose VM is powered off stays held.
    pub reserves_powered_off: bool,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            weighting: Weighting::DEFAULT,
            basis: BTreeMap::new(),
            entitled: false,
            reserves_powered_off: false,
        }
    }
}

impl Policy {
    /// The basis of a mode.
    #[must_use]
    pub fn basis(&self, mode: SharingMode) -> Basis {
        self.basis.get(&mode).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(numerator: i128, denominator: i128) -> Share {
        Share::new(numerator, denominator).unwrap()
    }

    #[test]
    fn the_four_weightings_of_a_3g_on_seven_and_eight() {
        let (compute, memory) = (share(3, 7), share(4, 8));
        let weigh = |weighting: Weighting| weighting.weigh(&compute, &memory);
        assert_eq!(weigh(Weighting::DEFAULT), share(13, 28));
        assert_eq!(weigh(Weighting::Compute), share(3, 7));
        assert_eq!(weigh(Weighting::Memory), share(1, 2));
        assert_eq!(weigh(Weighting::Dominant), share(1, 2));
        assert_eq!(weigh(Weighting::Blended { alpha_ppm: 1_000_000 }), share(3, 7));
        assert_eq!(weigh(Weighting::Blended { alpha_ppm: 0 }), share(1, 2));
        // A quarter of 3/7 and three quarters of 1/2.
        assert_eq!(weigh(Weighting::Blended { alpha_ppm: 250_000 }), share(27, 56));
    }
}
