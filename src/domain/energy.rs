//! Energy of a device among those who hold it.
//!
//! The baseline, what the board takes when nobody works, goes by share: held shares to their holders, the rest to
//! what nobody holds. What is taken beyond goes by measured activity, or by held share where that was not measured.
//! Energy is kept in whole millijoules through all levels, so nothing is ever left to carry into the next hour.
//!
//! Source: DESIGN §3, "Energy per device".

use super::segment::Segment;
use super::share::Share;
use super::tree::{Leaf, LeafKind};

/// The energy of a segment, and each leaf's share of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SegmentEnergy {
    /// All of it, in millijoules.
    pub millijoules: i64,
    /// One share for each leaf, in their order; they sum to the whole.
    pub shares: Vec<Share>,
}

/// Divides a segment's energy among its leaves; none where no counter was seen.
///
/// `baseline` in milliwatts; where it is not known, there is none, and all goes by activity or held share.
#[must_use]
pub fn of_segment(segment: &Segment, leaves: &[Leaf], baseline: Option<i64>) -> Option<SegmentEnergy> {
    let millijoules = segment.energy.filter(|energy| *energy >= 0)?;
    let held: Vec<bool> = leaves.iter().map(Leaf::is_held).collect();
    let is_held = held.contains(&true);
    let beyond = beyond_baseline(segment, millijoules, baseline.unwrap_or_default());
    let base = Share::WHOLE.minus(&beyond);
    // Of whoever holds, unless nobody does: then the board alone took it.
    let active: Vec<Share> = leaves
        .iter()
        .zip(&held)
        .map(|(leaf, held)| match &leaf.activity {
            Some(activity) if *held => *activity,
            Some(_) | None => Share::NONE,
        })
        .collect();
    // What was held and not used has the activity of nobody; its holder's stands beside it.
    let is_measured = leaves
        .iter()
        .zip(&held)
        .all(|(leaf, held)| !held || leaf.activity.is_some() || leaf.kind == LeafKind::HeldUnused);
    let sum = Share::sum(&active);
    let by_activity = is_measured && !sum.is_none();
    let weights: Vec<Share> = leaves
        .iter()
        .zip(&held)
        .zip(active)
        .map(|((leaf, held), active)| {
            if by_activity {
                active
            } else if *held || !is_held {
                leaf.share
            } else {
                Share::NONE
            }
        })
        .collect();
    let sum = Share::sum(&weights);
    let shares = leaves
        .iter()
        .zip(&weights)
        .map(|(leaf, weight)| leaf.share.of(&base).plus(&weight.over(&sum).of(&beyond)))
        .collect();
    Some(SegmentEnergy { millijoules, shares })
}

/// What of the energy lies beyond the baseline, as a share of it.
fn beyond_baseline(segment: &Segment, millijoules: i64, baseline_milliwatts: i64) -> Share {
    if millijoules == 0 {
        return Share::NONE;
    }
    let micros = i128::from(segment.span.end().micros_since(segment.span.start()));
    // Milliwatts × seconds are millijoules.
    let base = i128::from(baseline_milliwatts).saturating_mul(micros);
    let all = i128::from(millijoules).saturating_mul(1_000_000);
    Share::new(all.saturating_sub(base).max(0), all.max(1)).unwrap_or(Share::NONE)
}
