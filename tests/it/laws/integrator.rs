//! Each part is what the second, naive computation says, rounded down once; so is who was believed.

use std::collections::{BTreeMap, BTreeSet};

use fatia::domain::allocation::{DeviceHour, Part, PartState};
use fatia::domain::segment::HourSegments;
use proptest::prelude::*;

use super::exact::{self, Exact, Leaf, in_service_nanos, trust};
use super::holds;
use super::nests::nests;
use super::world::{FleetDevice, World, worlds, worlds_of};

#[test]
fn each_part_is_its_exact_share_rounded_down_once() {
    holds(250, worlds(), every_part_is_exact);
}

#[test]
fn each_part_is_exact_where_many_holders_overlap() {
    holds(30, worlds_of(30..60), every_part_is_exact);
}

pub(super) fn every_part_is_exact(world: World) -> Result<(), TestCaseError> {
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
    // A leaf whose slice hangs elsewhere later, and so is sold as something else, has two parts.
    let mut parts: BTreeMap<Leaf, Vec<&Part>> = BTreeMap::new();
    for part in divided.parts.iter().filter(|part| part.state != PartState::Rounding) {
        parts.entry(leaf_of(part, segments)).or_default().push(part);
    }
    let said = segments.devices.iter().find(|said| said.device == divided.device);
    let baseline = said.and_then(|said| said.idle_milliwatts);
    let want = exact::divided(world, device, segments.hour, baseline);
    for (leaf, has) in &want.leaves {
        let parts = parts.remove(leaf).unwrap_or_default();
        let is_floor = |exact: &Exact, whole: i64| {
            let least = exact.floor() + 1 - i64::try_from(parts.len().max(1)).unwrap();
            (least..=exact.floor()).contains(&whole)
        };
        let quantity = parts.iter().map(|part| part.quantity.micro()).sum();
        prop_assert!(is_floor(&has.micro_hours, quantity), "{leaf:?} is {has:?}, and its part {quantity}");
        let millijoules = parts.iter().map(|part| part.millijoules).sum();
        prop_assert!(
            is_floor(&has.millijoules, millijoules),
            "{leaf:?} has {has:?}, and its part {millijoules}"
        );
    }
    prop_assert!(parts.is_empty(), "parts without a leaf: {:?} beside {:?}", parts, want.leaves.keys());
    let sum = |of: fn(&Part) -> i64| divided.parts.iter().map(of).sum::<i64>();
    prop_assert_eq!(sum(|part| part.quantity.micro()), in_service_nanos(device, segments.hour) / 3_600_000);
    prop_assert_eq!(sum(|part| part.metered.micro()), want.metered_nanos / 3_600_000);
    prop_assert_eq!(sum(|part| part.millijoules), want.millijoules.floor());
    for part in &divided.parts {
        prop_assert!(
            part.quantity.micro() >= 0 && part.metered.micro() >= 0 && part.millijoules >= 0,
            "{:?}",
            part
        );
    }
    Ok(())
}

#[test]
fn each_part_of_nested_slices_is_exact_and_so_is_its_energy() {
    holds(2_000, nests(), every_part_is_exact);
}

#[test]
fn segments_are_where_anything_changes_and_nowhere_else() {
    holds(300, nests(), |world| {
        for accounted in world.account() {
            let segments = &accounted.hour.segments;
            for device in world.devices.iter().filter(|each| each.node == accounted.node) {
                let said = segments.devices.iter().find(|said| said.device == device.device.uuid);
                let spans = said.map(|said| said.segments.iter().map(|each| each.span).collect::<Vec<_>>());
                let want = exact::spans_of_segments(&world, device, segments.hour);
                prop_assert_eq!(spans.unwrap_or_default(), want);
            }
        }
        Ok(())
    });
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
                    prop_assert_eq!(
                        here.and_then(|each| Some(&segments.sources[each.source?])),
                        believed,
                        "{}",
                        span
                    );
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
        estimated: part.estimated,
    }
}
