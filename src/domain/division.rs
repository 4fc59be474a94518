//! What a device was divided into, span by span: for people who look at a GPU, as the parts of its hours are for bills.
//!
//! Does not own: how shares come about ([`super::tree`], [`super::pool`]), nor which state applies
//! ([`super::allocation`]): both are the ones of the parts.
//!
//! Always true here: each instant of in-service time is in one division, and the shares of a division's pieces sum to
//! the whole. What pieces come to over an hour, floored once, are the hour's parts.

use super::allocation::{DeviceFacts, Divider, PartState, Told, pieces, tiles, told};
use super::device::SharingMode;
use super::ids::Name;
use super::mapping::Owner;
use super::period::Span;
use super::policy::Policy;
use super::pool;
use super::segment::{DeviceSegments, HourSegments, Segment};
use super::share::Share;
use super::tree::{DEPTH_MAX, Doubt, Ground, Shares};

/// A span in which nothing about a device changed, and what it was divided into.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Division {
    /// The span, inside one billing hour.
    pub span: Span,
    /// The pieces; their shares sum to the whole.
    pub pieces: Vec<Piece>,
    /// What someone should know of it.
    pub doubts: Vec<Doubt>,
}

/// A piece of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// What it was.
    pub state: PartState,
    /// Its share of the device, by the policy of the hour.
    pub share: Share,
    /// How the device was shared there; none where that is open.
    pub mode: Option<SharingMode>,
    /// What is sold: the model, and below it the kind of slice.
    pub sku: Name,
    /// Index of the slice in the hour's tables; none where no slice exists.
    pub slice: Option<usize>,
    /// The first memory slot of the GPU instance that it is or lies in; none where that is not known.
    pub start: Option<u16>,
    /// Index of the holder's evidence in the hour's tables; none where nobody held.
    pub evidence: Option<usize>,
    /// Who pays; none where nobody held.
    pub owner: Option<Owner>,
    /// SM activity as a share of the device, where it was measured.
    pub activity: Option<Share>,
    /// The same as a share of the compute that its slice has; more than all of it where it may burst.
    pub utilization: Option<Share>,
    /// Whether the share is the declared one because the measured one is missing.
    pub estimated: bool,
}

impl Divider<'_> {
    /// The divisions of one device in one billing hour, in order of time. Arguments as for [`Divider::divide`].
    pub fn divisions(
        &mut self,
        facts: &DeviceFacts<'_>,
        hour: &HourSegments,
        segments: Option<&DeviceSegments>,
        policy: &Policy,
    ) -> Vec<Division> {
        let device = facts.device;
        let all = segments.map(|each| each.segments.as_slice()).unwrap_or_default();
        let ground = Ground { device: &device.uuid, model: &device.model, memory_mib: facts.memory_mib };
        let mut divisions = Vec::new();
        for service in facts.in_service {
            for (span, segment) in tiles(*service, all) {
                let shares = self.shares(ground, policy, hour, segment);
                self.cut(facts, hour, (span, segment, &shares), &mut divisions);
            }
        }
        divisions
    }

    /// The divisions of a pool's members in one billing hour, in their order; of those that are not wanted none.
    /// Arguments as for [`Divider::divide_pool`].
    #[must_use]
    pub fn pool_divisions(
        &self,
        members: &[DeviceFacts<'_>],
        hour: &HourSegments,
        segments: Option<&DeviceSegments>,
        is_wanted: impl Fn(&Name) -> bool,
    ) -> Vec<Vec<Division>> {
        let dealt = pool::deal(members, hour, segments);
        let of_member = |(facts, dealt): (&DeviceFacts<'_>, Vec<pool::Dealt<'_>>)| {
            let mut divisions = Vec::new();
            if !is_wanted(&facts.device.uuid) {
                return divisions;
            }
            for (span, segment, shares) in &dealt {
                self.cut(facts, hour, (*span, *segment, shares), &mut divisions);
            }
            divisions
        };
        members.iter().zip(dealt).map(of_member).collect()
    }

    /// Cuts a span where a state or a rule begins or ends, and puts what is alike together again.
    fn cut(
        &self,
        facts: &DeviceFacts<'_>,
        hour: &HourSegments,
        (span, segment, shares): (Span, Option<&Segment>, &Shares),
        divisions: &mut Vec<Division>,
    ) {
        for (span, at) in pieces(span, facts.states, self.rules) {
            let seen = shares.leaves.iter().filter(|leaf| !leaf.share.is_none());
            let seen = seen.map(|leaf| {
                let Told { state, slice, evidence, mode, sku } =
                    told(leaf, segment, &facts.device.model, facts.states, at);
                let holder = evidence.and_then(|seen| hour.evidence.get(seen));
                Piece {
                    state,
                    share: leaf.share,
                    mode,
                    sku: sku.clone(),
                    slice,
                    start: segment.zip(slice).and_then(|(segment, slice)| start_of(hour, segment, slice)),
                    evidence,
                    owner: holder.map(|holder| self.rules.owner(holder, at)),
                    activity: leaf.activity,
                    utilization: leaf.utilization,
                    estimated: leaf.estimated,
                }
            });
            let next = Division { span, pieces: seen.collect(), doubts: shares.doubts.clone() };
            match divisions.last_mut() {
                Some(last)
                    if last.span.end() == next.span.start()
                        && last.pieces == next.pieces
                        && last.doubts == next.doubts =>
                {
                    last.span = Span::clamped(last.span.start(), next.span.end());
                }
                Some(_) | None => divisions.push(next),
            }
        }
    }
}

/// The first memory slot of a slice, or of the nearest one around it that has one. Looked for among the slices of the
/// segment: an id may come again within an hour, for another slice.
fn start_of(hour: &HourSegments, segment: &Segment, slice: usize) -> Option<u16> {
    let there = || segment.layout.iter().copied().chain(segment.holders.iter().map(|holder| holder.slice));
    let mut slice = hour.slices.get(slice)?;
    for _ in 0..DEPTH_MAX {
        if slice.start.is_some() {
            return slice.start;
        }
        let parent = slice.parent.as_ref()?;
        slice =
            there().filter_map(|each| hour.slices.get(each)).find(|each| each.id.as_ref() == Some(parent))?;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::catalogue::Catalogue;
    use crate::domain::device::Device;
    use crate::domain::mapping::MappingRules;
    use crate::domain::segment::Claims;
    use crate::domain::units::Instant;
    use crate::domain::usage::{
        Batch, Coverage, CoverageOf, LayoutRow, Slice, SliceSize, Source, SourceRank,
    };

    fn minutes(from: i64, to: i64) -> Span {
        let at = |minute: i64| Instant::from_micros(minute * 60_000_000);
        Span::new(at(from), at(to)).unwrap()
    }

    /// GPU instances and the replicas in them: an instance's id may come again within an hour, at another slot.
    #[test]
    fn a_slice_lies_where_the_one_around_it_lies_at_that_time() {
        let uuid = Name::fixed("GPU-1");
        let instance = |start: u16| Slice {
            id: Some(Name::fixed("gi-1")),
            start: Some(start),
            ..Slice::plain(uuid.clone(), SharingMode::Mig, SliceSize::Profile(Name::fixed("3g.40gb")))
        };
        let replica = Slice {
            id: Some(Name::fixed("r-1")),
            parent: Some(Name::fixed("gi-1")),
            ..Slice::plain(uuid.clone(), SharingMode::TimeSlicing, SliceSize::OneOf(1))
        };
        let (before, after) = (minutes(0, 30), minutes(30, 60));
        let row = |slice, span| LayoutRow { slice, span, uncut: span };
        let batch = Batch {
            slices: vec![instance(0), instance(4), replica],
            layout: vec![row(0, before), row(1, after), row(2, before), row(2, after)],
            coverage: vec![Coverage { device: uuid.clone(), span: minutes(0, 60), of: CoverageOf::Holding }],
            ..Batch::default()
        };
        let mut claims = Claims::new();
        claims.add(&Source { rank: SourceRank::HostAgent, sender: Name::fixed("a") }, 1, &batch);
        let hour = claims.fold(&[minutes(0, 60)]).remove(0);
        let device = Device { uuid, model: Name::fixed("NVIDIA H100 80GB HBM3") };
        let in_service = [minutes(0, 60)];
        let facts = DeviceFacts { device: &device, memory_mib: None, in_service: &in_service, states: &[] };
        let rules = MappingRules::default();
        let mut divider = Divider::new(Catalogue::embedded(), &rules);
        let divisions = divider.divisions(&facts, &hour, hour.devices.first(), &Policy::default());
        let starts: Vec<(Span, Vec<Option<u16>>)> = divisions
            .into_iter()
            .map(|each| {
                let slices = each.pieces.iter().filter(|piece| piece.slice.is_some());
                (each.span, slices.map(|piece| piece.start).collect())
            })
            .collect();
        assert_eq!(starts, [(before, vec![Some(0)]), (after, vec![Some(4)])]);
    }
}
