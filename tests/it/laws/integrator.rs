//! Each part is what the second, naive computation says, rounded down once; so is who was believed.

use std::collections::{BTreeMap, BTreeSet};

use fatia::domain::allocation::{DeviceHour, Part, PartState};
use fatia::domain::segment::HourSegments;
use proptest::prelude::*;

use super::exact::{Leaf, leaves, trust};
use super::holds;
use super::world::{FleetDevice, World, worlds, worlds_of};

#[test]
fn each_part_is_its_exact_share_rounded_down_once() {
    holds(250, worlds(), every_part_is_exact);
}

#[test]
fn each_part_is_exact_where_many_holders_overlap() {
    holds(30, worlds_of(30..60), every_part_is_exact);
}

fn every_part_is_exact(world: World) -> Result<(), TestCaseError> {
    for accounted in world.account() {
        for divided in &accounted.hour.devices {
            let device = world.devices.iter().find(|each| each.device.uuid == divided.device).unwrap();
            device_is_exact(&world, device, divided, &accounted.hour.segments)?;
        }
    }
    Ok(())
}

fn device_is_exact(
    world: &World,
    device: &FleetDevice,
    divided: &DeviceHour,
    segments: &HourSegments,
) -> Result<(), TestCaseError> {
    let mut parts: BTreeMap<Leaf, i64> = BTreeMap::new();
    for part in divided.parts.iter().filter(|part| part.state != PartState::Rounding) {
        prop_assert!(
            parts.insert(leaf_of(part, segments), part.quantity.micro()).is_none(),
            "{part:?} twice"
        );
    }
    for (leaf, exact) in leaves(world, device, segments.hour) {
        let quantity = parts.remove(&leaf).unwrap_or_default();
        prop_assert!(exact.floors_to(quantity), "{leaf:?} is {exact:?}, and its part {quantity}");
    }
    prop_assert_eq!(parts, BTreeMap::new(), "parts without a holder");
    Ok(())
}

#[test]
fn conflicts_name_who_was_set_aside_and_segments_who_was_believed() {
    holds(150, worlds(), |world| {
        for accounted in world.account() {
            let segments = &accounted.hour.segments;
            for device in world.devices.iter().filter(|each| each.node == accounted.node) {
                let said = segments.devices.iter().find(|said| said.device == device.device.uuid);
                for (span, believed, set_aside) in trust(&world, device, segments.hour) {
                    let here = said.and_then(|said| said.segments.iter().find(|each| each.span.meets(span)));
                    prop_assert_eq!(here.map(|each| &segments.sources[each.source]), believed, "{}", span);
                    let conflicts = said.map(|said| said.conflicts.as_slice()).unwrap_or_default().iter();
                    let named = conflicts.filter(|conflict| conflict.span.meets(span)).map(|conflict| {
                        (&segments.sources[conflict.believed], &segments.sources[conflict.set_aside])
                    });
                    let want = set_aside.iter().filter_map(|source| Some((believed?, *source)));
                    prop_assert_eq!(
                        named.collect::<BTreeSet<_>>(),
                        want.collect::<BTreeSet<_>>(),
                        "{}",
                        span
                    );
                }
            }
        }
        Ok(())
    });
}

#[test]
fn segments_and_conflicts_are_maximal_and_lie_apart_in_their_hour() {
    holds(150, worlds(), |world| {
        for HourSegments { hour, devices, .. } in world.account().into_iter().map(|each| each.hour.segments) {
            for said in devices {
                for pair in said.segments.windows(2) {
                    let alike = (pair[0].source, pair[0].covered, &pair[0].holders)
                        == (pair[1].source, pair[1].covered, &pair[1].holders);
                    let (end, start) = (pair[0].span.end(), pair[1].span.start());
                    prop_assert!(end < start || end == start && !alike, "{:?}", pair);
                }
                for pair in said.conflicts.windows(2) {
                    let alike =
                        (pair[0].believed, pair[0].set_aside) == (pair[1].believed, pair[1].set_aside);
                    prop_assert!(!alike || pair[0].span.end() < pair[1].span.start(), "{:?}", pair);
                }
                let conflicts = said.conflicts.iter().map(|each| each.span);
                for span in said.segments.iter().map(|each| each.span).chain(conflicts) {
                    prop_assert!(!span.is_empty() && span.clip(hour) == span, "{}", span);
                }
            }
        }
        Ok(())
    });
}

/// A part's leaf by value.
pub(super) fn leaf_of(part: &Part, segments: &HourSegments) -> Leaf {
    Leaf {
        state: part.state,
        slice: part.slice.map(|at| segments.slices[at].clone()),
        evidence: part.evidence.map(|at| segments.evidence[at].clone()),
        owner: part.owner.clone(),
        mode: part.mode,
    }
}
