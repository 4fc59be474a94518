//! While the shares of a device sum to one or less, nobody's hours depend on who else holds some of it.

use fatia::domain::device::SharingMode;
use fatia::domain::usage::{EvidenceField, Slice, SliceSize};
use proptest::collection::vec;
use proptest::prelude::*;

use super::exact::Leaf;
use super::holds;
use super::integrator::leaf_of;
use super::world::{Holding, World, at, device_name, name, source, worlds_of};

/// A neighbour before its share is cut to what the holder leaves: weight, span, mode.
type NeighbourPlan = (u32, (i64, i64), usize, bool);

fn neighbours() -> impl Strategy<Value = Vec<NeighbourPlan>> {
    vec((1..1_000_u32, (at(), at()), 0..SharingMode::ALL.len(), prop::bool::weighted(0.1)), 0..5)
}

/// A fleet that the holder shares with these neighbours, all of them together within what the holder leaves.
fn with_neighbours(
    world: &World,
    (ppm, spans): &(u32, Vec<(i64, i64)>),
    neighbours: &[NeighbourPlan],
) -> World {
    let holding = |workload: &str, mode, size, span| Holding {
        source: source(0),
        number: 1,
        slice: Slice::plain(device_name(0), mode, size),
        evidence: [(EvidenceField::Workload, name(workload)), (EvidenceField::Tenant, name(workload))]
            .into_iter()
            .collect(),
        span: world.place.span(span),
        uncut: world.place.span(span),
    };
    let mut shared = world.clone();
    // One source alone: another's word would be about who is believed, not about neighbours.
    shared.covers.retain(|cover| cover.source == source(0));
    // The holder's own spans may overlap each other, so each has its part of the share.
    let own = (*ppm / u32::try_from(spans.len()).unwrap()).max(1);
    let free = 1_000_000 - own * u32::try_from(spans.len()).unwrap();
    for (number, span) in spans.iter().enumerate() {
        let workload = format!("mine-{number}");
        shared.holdings.push(holding(&workload, SharingMode::TimeSlicing, SliceSize::Declared(own), *span));
    }
    let weights: u32 = neighbours.iter().map(|(weight, ..)| *weight).sum();
    for (number, (weight, span, mode, is_profile)) in neighbours.iter().enumerate() {
        // Rounded down, so that all of them together leave the holder what is its own.
        let share = (u64::from(free) * u64::from(*weight) / u64::from(weights)).try_into().unwrap();
        let size = match (is_profile, share) {
            (true, _) => SliceSize::Profile(name("1g.10gb")),
            (false, 0) => continue,
            (false, share) => SliceSize::Declared(share),
        };
        shared.holdings.push(holding(&format!("next-{number}"), SharingMode::ALL[*mode], size, *span));
    }
    shared
}

fn parts_of_the_holder(world: &World) -> Vec<(usize, Leaf, i64)> {
    let mut parts = Vec::new();
    for (hour, accounted) in world.account().iter().enumerate() {
        let segments = &accounted.hour.segments;
        for part in accounted.hour.devices.iter().flat_map(|each| &each.parts) {
            let leaf = leaf_of(part, segments);
            let workload = leaf.evidence.as_ref().and_then(|seen| seen.workload());
            if workload.is_some_and(|workload| workload.as_str().starts_with("mine")) {
                parts.push((hour, leaf, part.quantity.micro()));
            }
        }
    }
    // The order of parts follows the tables, which neighbours change; the parts must not.
    parts.sort();
    parts
}

#[test]
fn no_neighbour_moves_a_holder_while_shares_sum_to_one_or_less() {
    let holder = (1..=1_000_000_u32, vec((at(), at()), 1..4));
    holds(200, (worlds_of(0..1), holder, neighbours(), neighbours()), |(world, holder, some, others)| {
        let alone = parts_of_the_holder(&with_neighbours(&world, &holder, &[]));
        prop_assert_eq!(&parts_of_the_holder(&with_neighbours(&world, &holder, &some)), &alone);
        prop_assert_eq!(&parts_of_the_holder(&with_neighbours(&world, &holder, &others)), &alone);
        Ok(())
    });
}
