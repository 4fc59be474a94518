//! Pools: devices of one model of which sources say how many are held, and not which.
//!
//! A pool's claims are of one device that bears the pool's name; its slices are so many whole devices. A device-hour
//! is a **member** of its pool where its node's sources say nothing of who held it, and then all of it is: membership
//! has the granularity of a device-hour, as every identity has, so that its time is floored once and in one place.
//!
//! At each instant the members in service are dealt out to the holders in natural order. What a holder has at an
//! instant follows from that instant alone, so a neighbour that ends moves nobody's sum; it may move a holder to
//! another member, where what flooring leaves is at most one millionth of a GPU-hour a member.
//!
//! Does not own: who is a member (the services know), and how a device-hour is floored ([`super::allocation`]).
//!
//! Always true here: each instant of each member's in-service time is dealt once; the shares of one member at an
//! instant sum to the whole. Source: DESIGN §3.

use std::rc::Rc;

use super::allocation::DeviceFacts;
use super::device::DeclaredKind;
use super::ids::Name;
use super::period::Span;
use super::segment::{DeviceSegments, HourSegments, Segment};
use super::share::Share;
use super::tree::{DoubtKind, Leaf, LeafKind, Shares, Spot};
use super::units::Instant;
use super::usage::{SliceSize, SourceRank};

/// Whether a device-hour is a pooled device's node's own: some source of the node knows who held it, or which slices
/// there were. An agent knows also when it says that nobody did; an import that merely vouches for all that it does
/// not list knows nothing of a device that it does not name.
#[must_use]
pub fn has_holding_source(segments: &HourSegments, device: &Name) -> bool {
    let of_device = segments.devices.iter().find(|each| each.device == *device);
    let is_agent = |source: usize| {
        segments.sources.get(source).is_some_and(|source| source.rank == SourceRank::HostAgent)
    };
    let knows = |segment: &Segment| {
        let names = !segment.holders.is_empty() || !segment.layout.is_empty();
        segment.source.is_some_and(|source| names || is_agent(source))
    };
    of_device.is_some_and(|each| each.segments.iter().any(knows))
}

/// A span of one member, with what was said of the pool then and who has the member.
pub(super) type Dealt<'a> = (Span, Option<&'a Segment>, Rc<Shares>);

/// Deals the members' in-service time out to the pool's holders. Members are in their order, and so is the result.
pub(super) fn deal<'a>(
    members: &[DeviceFacts<'_>],
    hour: &HourSegments,
    segments: Option<&'a DeviceSegments>,
) -> Vec<Vec<Dealt<'a>>> {
    let segments = segments.map(|each| each.segments.as_slice()).unwrap_or_default();
    let mut dealt: Vec<Vec<Dealt<'a>>> = vec![Vec::new(); members.len()];
    let Some(model) = members.first().map(|member| &member.device.model) else { return dealt };
    let hands = Hands::new(model);
    for span in between(&edges(members, segments)) {
        let at = span.start();
        let mut there: Vec<(bool, usize)> = members
            .iter()
            .enumerate()
            .filter(|(_, member)| member.in_service.iter().any(|service| service.contains(at)))
            .map(|(number, member)| (is_out_of_use(member, at), number))
            .collect();
        // Which one is held is not known; that it is one that works is likelier.
        there.sort_unstable();
        let segment = segments.iter().find(|segment| segment.span.contains(at));
        let given = match segment {
            Some(segment) => hands.of(segment, hour, there.len()),
            None => Given { whole: Vec::new(), rest: Rc::clone(&hands.unknown) },
        };
        for (place, (_, number)) in there.into_iter().enumerate() {
            let shares = given.whole.get(place).unwrap_or(&given.rest);
            if let Some(of_member) = dealt.get_mut(number) {
                of_member.push((span, segment, Rc::clone(shares)));
            }
        }
    }
    dealt
}

/// Instants at which anything changes, sorted, each once.
fn edges(members: &[DeviceFacts<'_>], segments: &[Segment]) -> Vec<Instant> {
    let services = members.iter().flat_map(|member| member.in_service).copied();
    let states = members.iter().flat_map(|member| member.states).map(|state| state.span);
    let spans = services.chain(states).chain(segments.iter().map(|segment| segment.span));
    let mut edges: Vec<Instant> = spans.flat_map(|span| [span.start(), span.end()]).collect();
    edges.sort_unstable();
    edges.dedup();
    edges
}

/// The spans between neighbouring edges.
fn between(edges: &[Instant]) -> impl Iterator<Item = Span> {
    edges.windows(2).filter_map(|pair| match pair {
        [start, end] => Some(Span::clamped(*start, *end)),
        _ => None,
    })
}

/// Whether the whole device is declared to be broken or worked on.
fn is_out_of_use(member: &DeviceFacts<'_>, at: Instant) -> bool {
    member.states.iter().any(|state| {
        let takes = match state.kind {
            DeclaredKind::Maintenance | DeclaredKind::Unhealthy => true,
            DeclaredKind::Migration => false,
        };
        takes && state.slice.is_none() && state.span.contains(at)
    })
}

/// What members have at an instant: the first ones a holder each, the others the rest.
struct Given {
    whole: Vec<Rc<Shares>>,
    rest: Rc<Shares>,
}

/// The shares of a member that nobody has.
struct Hands<'a> {
    model: &'a Name,
    idle: Rc<Shares>,
    unknown: Rc<Shares>,
}

impl<'a> Hands<'a> {
    fn new(model: &'a Name) -> Self {
        let nobody = |kind| {
            let leaf = Leaf {
                kind,
                spot: Spot::Nowhere,
                mode: None,
                sku: model.clone(),
                path: Vec::new(),
                share: Share::WHOLE,
                estimated: false,
                activity: None,
                utilization: None,
            };
            Rc::new(Shares { leaves: vec![leaf], doubts: Vec::new() })
        };
        // That nobody vouches for it makes it unknown, unless a declared state says better.
        Self { model, idle: nobody(LeafKind::Idle), unknown: nobody(LeafKind::Idle) }
    }

    /// What so many members have in a segment.
    fn of(&self, segment: &Segment, hour: &HourSegments, members: usize) -> Given {
        let wanted: Vec<u64> =
            segment.holders.iter().map(|holder| wanted(hour, holder.slice).into()).collect();
        let sum = wanted.iter().fold(0_u64, |sum, each| sum.saturating_add(*each));
        let count = u64::try_from(members).unwrap_or(u64::MAX);
        if sum > count {
            return Given {
                whole: self.scaled(segment, hour, &wanted, (count, sum)),
                rest: Rc::clone(&self.idle),
            };
        }
        let mut whole = Vec::with_capacity(members);
        for (place, count) in wanted.into_iter().enumerate() {
            let leaf = self.used(segment, hour, place, Share::WHOLE);
            let one = Rc::new(Shares { leaves: vec![leaf], doubts: Vec::new() });
            whole.extend((0..count).map(|_| Rc::clone(&one)));
        }
        Given { whole, rest: Rc::clone(&self.idle) }
    }

    /// What members have where more are held than there are: each holder has its part of all of them, laid end to end
    /// along the members, so that nearly all of these are one holder's, and few are shared.
    fn scaled(
        &self,
        segment: &Segment,
        hour: &HourSegments,
        wanted: &[u64],
        (count, sum): (u64, u64),
    ) -> Vec<Rc<Shares>> {
        let (count, sum) = (u128::from(count), u128::from(sum));
        // In units of one member ÷ `sum`: holder by holder `wanted × count` long, member by member `sum`.
        let mut ends: Vec<u128> = Vec::with_capacity(wanted.len());
        let mut at = 0_u128;
        for each in wanted {
            at = at.saturating_add(u128::from(*each).saturating_mul(count));
            ends.push(at);
        }
        let mut first = 0_usize;
        let mut given: Vec<Rc<Shares>> = Vec::new();
        let mut start = 0_u128;
        while start < count.saturating_mul(sum) {
            let end = start.saturating_add(sum);
            let mut leaves = Vec::new();
            while let Some(until) = ends.get(first) {
                let from = first.checked_sub(1).and_then(|before| ends.get(before)).copied().unwrap_or(0);
                let part = (*until).min(end).saturating_sub(from.max(start));
                let part = (i128::try_from(part), i128::try_from(sum));
                if let (Ok(part), Ok(sum)) = part
                    && let Ok(share) = Share::new(part, sum)
                    && !share.is_none()
                {
                    leaves.push(self.used(segment, hour, first, share));
                }
                if *until > end {
                    break;
                }
                first = first.saturating_add(1);
            }
            // Said once, and not of each member.
            let doubts = if given.is_empty() {
                vec![(DoubtKind::PoolOverheld, self.model.clone())]
            } else {
                Vec::new()
            };
            given.push(Rc::new(Shares { leaves, doubts }));
            start = end;
        }
        given
    }

    fn used(&self, segment: &Segment, hour: &HourSegments, place: usize, share: Share) -> Leaf {
        let slice = segment.holders.get(place).and_then(|holder| hour.slices.get(holder.slice));
        Leaf {
            kind: LeafKind::Used,
            spot: Spot::Holder(place),
            mode: slice.map(|slice| slice.mode),
            sku: self.model.clone(),
            path: Vec::new(),
            share,
            estimated: false,
            activity: None,
            utilization: None,
        }
    }
}

/// How many members a slice is. What is no number of devices is one: acceptance lets none in.
fn wanted(hour: &HourSegments, slice: usize) -> u32 {
    match hour.slices.get(slice).map(|slice| &slice.size) {
        Some(SliceSize::Devices(count)) => *count,
        Some(
            SliceSize::Whole
            | SliceSize::Declared(_)
            | SliceSize::Profile(_)
            | SliceSize::OneOf(_)
            | SliceSize::Even
            | SliceSize::Threads { .. },
        )
        | None => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::allocation::Divider;
    use crate::domain::catalogue::Catalogue;
    use crate::domain::device::{DeclaredState, Device, SharingMode};
    use crate::domain::mapping::MappingRules;
    use crate::domain::segment::Claims;
    use crate::domain::units::Quantity;
    use crate::domain::usage::{Batch, Coverage, CoverageOf, EvidenceField, Row, Slice, Source};

    const MINUTE: i64 = 60_000_000;

    fn span(start: i64, end: i64) -> Span {
        Span::new(Instant::from_micros(start * MINUTE), Instant::from_micros(end * MINUTE)).unwrap()
    }

    /// A pool of one hour: when each member was in service, who held how many, and what was vouched for.
    struct Case {
        members: Vec<(&'static str, Vec<Span>)>,
        rows: Vec<(&'static str, u32, Span)>,
        covered: Vec<Span>,
        states: Vec<(&'static str, DeclaredState)>,
    }

    impl Case {
        fn new(members: &[&'static str], rows: &[(&'static str, u32, Span)]) -> Self {
            Self {
                members: members.iter().map(|uuid| (*uuid, vec![span(0, 60)])).collect(),
                rows: rows.to_vec(),
                covered: vec![span(0, 60)],
                states: vec![],
            }
        }

        fn check(&self, want: &[&str]) {
            let pool = Name::fixed("p");
            let seen = |tenant: &'static str| {
                [EvidenceField::Workload, EvidenceField::Tenant]
                    .map(|field| (field, Name::fixed(tenant)))
                    .into_iter()
                    .collect()
            };
            let batch = Batch {
                slices: self
                    .rows
                    .iter()
                    .map(|(_, count, _)| {
                        Slice::plain(pool.clone(), SharingMode::Dedicated, SliceSize::Devices(*count))
                    })
                    .collect(),
                evidence: self.rows.iter().map(|(tenant, ..)| seen(tenant)).collect(),
                rows: (0..self.rows.len())
                    .map(|at| Row { slice: at, evidence: at, span: self.rows[at].2, uncut: self.rows[at].2 })
                    .collect(),
                coverage: self
                    .covered
                    .iter()
                    .map(|span| Coverage { device: pool.clone(), span: *span, of: CoverageOf::Holding })
                    .collect(),
                ..Batch::default()
            };
            let mut claims = Claims::new();
            claims.add(&Source { rank: SourceRank::Import, sender: Name::fixed("s") }, 1, &batch);
            let hour = claims.fold(&[span(0, 60)]).remove(0);
            let devices: Vec<(Device, Vec<DeclaredState>)> = self
                .members
                .iter()
                .map(|(uuid, _)| {
                    let states = self.states.iter().filter(|(of, _)| of == uuid);
                    let device = Device { uuid: Name::fixed(uuid), model: Name::fixed("A10") };
                    (device, states.map(|(_, state)| state.clone()).collect())
                })
                .collect();
            let facts: Vec<DeviceFacts<'_>> = devices
                .iter()
                .zip(&self.members)
                .map(|((device, states), (_, in_service))| DeviceFacts {
                    device,
                    memory_mib: None,
                    in_service,
                    states,
                })
                .collect();
            let rules = MappingRules::default();
            let mut divider = Divider::new(Catalogue::embedded(), &rules);
            let divided = divider.divide_pool(&facts, &hour, hour.devices.first()).unwrap();
            let mut shown = Vec::new();
            for member in &divided {
                let sum = Quantity::sum(member.parts.iter().map(|part| part.quantity)).unwrap();
                assert_eq!(sum, member.in_service, "parts sum to the whole");
                for part in &member.parts {
                    let tenant = part.owner.as_ref().and_then(|owner| owner.tenant.clone());
                    let tenant = tenant.map_or("-".to_owned(), |name| name.to_string());
                    let (state, quantity) = (part.state.word(), part.quantity.micro());
                    shown.push(format!("{} {state} {tenant} {quantity}", member.device));
                }
            }
            assert_eq!(shown, want);
        }
    }

    #[test]
    fn holders_have_whole_members_in_turn_and_the_rest_is_idle() {
        Case::new(&["g1", "g2", "g3"], &[("a", 1, span(0, 60)), ("b", 1, span(0, 30))]).check(&[
            "g1 used a 1000000",
            "g2 used b 500000",
            "g2 idle - 500000",
            "g3 idle - 1000000",
        ]);
        Case::new(&["g1", "g2", "g3"], &[("a", 2, span(0, 60))]).check(&[
            "g1 used a 1000000",
            "g2 used a 1000000",
            "g3 idle - 1000000",
        ]);
    }

    #[test]
    fn more_than_there_are_have_their_part_of_all() {
        Case::new(&["g1", "g2"], &[("a", 2, span(0, 60)), ("b", 1, span(0, 60))]).check(&[
            "g1 used b 666666",
            "g1 used a 333333",
            "g1 rounding - 1",
            "g2 used a 1000000",
        ]);
    }

    #[test]
    fn a_member_that_leaves_makes_the_others_shared() {
        let mut case = Case::new(&["g1", "g2"], &[("a", 2, span(0, 60))]);
        case.members[1].1 = vec![span(0, 15), span(45, 60)];
        case.check(&["g1 used a 1000000", "g2 used a 500000"]);
        case.rows.push(("b", 1, span(15, 45)));
        case.check(&["g1 used b 166666", "g1 used a 833333", "g1 rounding - 1", "g2 used a 500000"]);
    }

    #[test]
    fn what_nobody_reports_on_is_in_maintenance_where_that_is_declared() {
        let mut case = Case::new(&["g1"], &[]);
        case.covered.clear();
        let state = DeclaredState { kind: DeclaredKind::Maintenance, slice: None, span: span(0, 15) };
        case.states.push(("g1", state));
        case.check(&["g1 maintenance - 250000", "g1 unknown - 750000"]);
    }

    #[test]
    fn outside_coverage_what_nobody_holds_is_unknown() {
        let mut case = Case::new(&["g1", "g2"], &[("a", 1, span(0, 60))]);
        case.covered = vec![span(0, 30)];
        case.check(&["g1 used a 1000000", "g2 idle - 500000", "g2 unknown - 500000"]);
        case.rows.clear();
        case.check(&["g1 idle - 500000", "g1 unknown - 500000", "g2 idle - 500000", "g2 unknown - 500000"]);
    }

    #[test]
    fn a_pool_of_which_nobody_speaks_is_unknown() {
        let mut case = Case::new(&["g1"], &[]);
        case.covered.clear();
        case.check(&["g1 unknown - 1000000"]);
    }

    #[test]
    fn a_member_in_maintenance_is_held_last() {
        let mut case = Case::new(&["g1", "g2"], &[("a", 1, span(0, 60))]);
        let state = DeclaredState { kind: DeclaredKind::Maintenance, slice: None, span: span(0, 30) };
        case.states = vec![("g1", state)];
        case.check(&["g1 used a 500000", "g1 maintenance - 500000", "g2 used a 500000", "g2 idle - 500000"]);
    }

    #[test]
    fn a_pool_without_members_divides_nothing() {
        Case::new(&[], &[("a", 1, span(0, 60))]).check(&[]);
    }
}
