//! Slices in slices: what neighbours and children may never change, and the smallest fleets that showed a fault.

use std::collections::BTreeSet;

use fatia::domain::allocation::PartState;
use fatia::domain::catalogue::Catalogue;
use fatia::domain::device::{DeclaredKind, DeclaredState, Device, SharingMode};
use fatia::domain::ids::Name;
use fatia::domain::period::Span;
use fatia::domain::policy::{Basis, Policy, Weighting};
use fatia::domain::segment::{HourSegments, Segment};
use fatia::domain::share::Share;
use fatia::domain::tree::{Forest, Ground};
use fatia::domain::usage::{Coverage, CoverageOf, EnergyRow, Slice, SliceSize, VgpuScheduler};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::Index;

use super::holds;
use super::integrator::every_part_is_exact;
use super::nests::nests;
use super::packing::{Standing, room, starts, weightings};
use super::world::{
    Cover, Energy, Existing, FleetDevice, HOUR, Holding, Measured, Place, Window, World, device_name,
    evidence, name, source,
};

/// One device in one hour, of which an agent states these slices, and who holds them.
fn hour_of(model: &str, slices: &[(Slice, Option<usize>)]) -> World {
    let place = Place::number(0);
    let hour = place.span((0, HOUR));
    let device = FleetDevice {
        device: Device { uuid: device_name(0), model: name(model) },
        memory_mib: None,
        node: 0,
        services: vec![hour],
        counted_to: hour.end(),
        states: vec![],
    };
    let mut world = World::of(place, vec![device]);
    let coverage = Coverage { device: device_name(0), span: hour, of: CoverageOf::Holding };
    world.covers.push(Cover { source: source(1), number: 0, coverage });
    for (slice, seen) in slices {
        let (source, slice) = (source(1), slice.clone());
        if slice.id.is_some() {
            let (source, slice) = (source.clone(), slice.clone());
            world.layouts.push(Existing { source, number: 0, slice, span: hour, uncut: hour });
        }
        if let Some(seen) = seen {
            let evidence = evidence(*seen);
            world.holdings.push(Holding { source, number: 0, slice, evidence, span: hour, uncut: hour });
        }
    }
    world
}

/// A slice with a profile, named and inside another where those are not empty.
fn slice(mode: SharingMode, profile: &str, id: &str, parent: &str) -> Slice {
    let size = SliceSize::Profile(name(profile));
    let some = |text: &str| (!text.is_empty()).then(|| name(text));
    Slice { id: some(id), parent: some(parent), ..Slice::plain(device_name(0), mode, size) }
}

/// State, profile and µh of the hour's parts.
fn shown(world: &World) -> Vec<String> {
    let accounted = world.account();
    let each = accounted.iter().flat_map(|each| &each.hour.devices).flat_map(|device| &device.parts);
    let each = each.filter(|part| part.state != PartState::Rounding);
    each.map(|part| format!("{} {} {}", part.state.word(), part.sku, part.quantity.micro())).collect()
}

#[test]
fn a_compute_instance_may_have_all_of_its_gpu_instance() {
    let instance = Slice { start: Some(0), ..slice(SharingMode::Mig, "3g.40gb", "gi", "") };
    for profile in ["3c.3g.40gb", "3g.40gb"] {
        let inside = slice(SharingMode::Mig, profile, "ci", "gi");
        let world = hour_of("H100-80GB", &[(instance.clone(), None), (inside, Some(0))]);
        let parts = shown(&world);
        // 3g beside it is 13/28 more; 1/14 is stranded.
        assert!(parts.iter().any(|part| part.starts_with("used ") && part.ends_with(" 464285")), "{parts:?}");
    }
}

#[test]
fn implied_gpu_instances_are_as_few_as_hold_all() {
    let of = |profile: &str| slice(SharingMode::Mig, profile, "", "");
    let held = [("1c.3g.40gb", 0), ("1c.3g.40gb", 1), ("2c.3g.40gb", 2), ("2c.3g.40gb", 3)];
    let world = hour_of("H100-80GB", &held.map(|(profile, seen)| (of(profile), Some(seen))));
    // Two of 3g.40gb hold one of each; three cannot be, and then all of the device is unknown.
    let parts = shown(&world);
    assert_eq!(parts.iter().filter(|part| part.starts_with("used ")).count(), 4, "{parts:?}");
    every_part_is_exact(world).unwrap();
}

#[test]
fn where_no_further_vgpu_fits_into_a_gpu_instance_its_rest_is_stranded() {
    let instance = Slice { start: Some(0), ..slice(SharingMode::Mig, "2g.48gb+gfx", "gi", "") };
    let of = |profile: &str, id: &str| slice(SharingMode::MigVgpu, profile, id, "gi");
    // 24 and 12 GiB of 47: eleven are left, and the smallest type of this instance has twelve.
    let slices = [(instance, None), (of("DC-2-24Q", "a"), Some(0)), (of("DC-2-12Q", "b"), Some(1))];
    every_part_is_exact(hour_of("RTX-PRO-6000-Blackwell-96GB", &slices)).unwrap();
}

#[test]
fn what_is_left_inside_an_unhealthy_slice_is_unhealthy_too() {
    let instance = Slice { start: Some(0), ..slice(SharingMode::Mig, "7g.80gb", "gi", "") };
    let inside = slice(SharingMode::Mig, "1c.7g.80gb", "ci", "gi");
    let mut world = hour_of("H100-80GB", &[(instance, None), (inside, Some(0))]);
    let span = world.devices[0].services[0];
    let state = DeclaredState { kind: DeclaredKind::Unhealthy, slice: Some(name("gi")), span };
    world.devices[0].states.push(state);
    let parts = shown(&world);
    assert!(parts.iter().all(|part| part.starts_with("unhealthy ")), "{parts:?}");
}

#[test]
fn a_powered_off_vgpu_is_not_among_the_running_ones() {
    let of = |id: &str, is_powered_off| {
        let scheduler = Some(VgpuScheduler::EqualShare);
        Slice { scheduler, is_powered_off, ..slice(SharingMode::Vgpu, "L40S-12Q", id, "") }
    };
    let mut world = hour_of("L40S", &[(of("a", false), Some(0)), (of("b", true), Some(1))]);
    world.policy.entitled = true;
    let parts = shown(&world);
    assert!(parts.iter().any(|part| part == "used L40S:L40S-12Q 1000000"), "{parts:?}");
}

// An import's table of slices knows no power; the holding that names the slice does.
#[test]
fn a_slice_has_one_id_and_is_there_once_whatever_its_power() {
    let of = |id: &str| slice(SharingMode::Vgpu, "L40S-24Q", id, "");
    let mut world = hour_of("L40S", &[(of("a"), None), (of("b"), Some(0))]);
    let (span, off) = (world.devices[0].services[0], Slice { is_powered_off: true, ..of("a") });
    let (source, evidence) = (source(1), evidence(1));
    world.holdings.push(Holding { source, number: 0, slice: off, evidence, span, uncut: span });
    // Half of the board each, whoever else is there.
    assert_eq!(shown(&world), ["used L40S:L40S-24Q 500000", "idle L40S:L40S-24Q 500000"]);
    world.policy.reserves_powered_off = true;
    assert_eq!(shown(&world), ["used L40S:L40S-24Q 500000", "used L40S:L40S-24Q 500000"]);
}

#[test]
fn an_amended_holding_was_used_as_its_last_import_says() {
    let of_import = |number: i64, seconds: i64| {
        let whole = Slice::plain(device_name(0), SharingMode::Dedicated, SliceSize::Whole);
        let mut world = hour_of("L40S", &[(whole.clone(), Some(0))]);
        world.covers[0].source = source(0);
        let span = world.devices[0].services[0];
        (world.holdings[0].source, world.holdings[0].number) = (source(0), number);
        world.uses.push(Measured {
            source: source(0),
            slice: whole,
            evidence: Some(evidence(0)),
            span,
            active_nanos: Some(seconds * 1_000_000_000),
            memory_byte_seconds: Some(0),
        });
        world.policy.weighting = Weighting::Compute;
        world.policy.basis.insert(SharingMode::Dedicated, Basis::Usage);
        world
    };
    let batch = |number: i64, seconds: i64| {
        let all = of_import(number, seconds).windows();
        let batches = all.into_iter().map(move |window| Window { number, ..window });
        batches.collect::<Vec<_>>()
    };
    let windows = [batch(1, 1_800), batch(2, 900)].concat();
    let accounted = of_import(2, 900).account_of(&windows);
    let parts = accounted.iter().flat_map(|each| &each.hour.devices).flat_map(|device| &device.parts);
    let parts: Vec<(PartState, i64)> = parts.map(|part| (part.state, part.quantity.micro())).collect();
    assert_eq!(parts, [(PartState::Used, 250_000), (PartState::HeldUnused, 750_000)]);
}

// What a counter says is taken as it is; a counter that ran wild must not keep its node's day from being divided.
#[test]
fn a_counter_that_ran_wild_costs_no_more_than_its_energy() {
    let whole = Slice::plain(device_name(0), SharingMode::Dedicated, SliceSize::Whole);
    let mut world = hour_of("L40S", &[(whole, Some(0))]);
    let hour = world.devices[0].services[0];
    let middle = hour.start().plus_micros(HOUR / 2);
    world.holdings[0].span = Span::clamped(hour.start(), middle);
    for span in [Span::clamped(hour.start(), middle), Span::clamped(middle, hour.end())] {
        let row = EnergyRow { device: device_name(0), span, millijoules: i64::MAX };
        world.energies.push(Energy { source: source(1), row });
    }
    // `account` unwraps what the division gives.
    assert!(!shown(&world).is_empty());
}

// Nothing nests so deep, and what says it does must not take the program down.
#[test]
fn a_chain_of_slices_without_an_end_is_unknown_and_harms_nobody() {
    let names: Vec<String> = (0..200).map(|number| format!("s{number}")).collect();
    let slices: Vec<(Slice, Option<usize>)> = names
        .iter()
        .enumerate()
        .map(|(at, id)| {
            let parent = at.checked_sub(1).map(|before| name(&names[before]));
            let size = SliceSize::Declared(900_000);
            let slice = Slice::plain(device_name(0), SharingMode::TimeSlicing, size);
            (Slice { id: Some(name(id)), parent, ..slice }, (at == 199).then_some(0))
        })
        .collect();
    let parts = shown(&hour_of("L40S", &slices));
    assert!(parts.iter().any(|part| part.starts_with("unknown ")), "{parts:?}");
}

/// Slices of a few names that hang in each other in any way, in circles too.
fn tangles() -> impl Strategy<Value = Vec<(Slice, Option<usize>)>> {
    let id = || option::of((0..4_usize).prop_map(|at| name(["a", "b", "c", "d"][at])));
    let profiles = ["1g.10gb", "3g.40gb", "1c.3g.40gb", "2g.12gb", "H100XM-20C", "H100XM-1-10C", "9g.99gb"];
    let size = prop_oneof![
        3 => prop::sample::select(profiles.to_vec()).prop_map(|profile| SliceSize::Profile(name(profile))),
        1 => Just(SliceSize::Whole),
        1 => (1..=1_000_000_u32).prop_map(SliceSize::Declared),
        1 => (1..=u32::MAX).prop_map(SliceSize::OneOf),
        1 => Just(SliceSize::Even),
        1 => (1..=100_u32, option::of(1..=u32::MAX))
            .prop_map(|(percent, memory_mib)| SliceSize::Threads { percent, memory_mib }),
    ];
    let modes = SharingMode::ALL.to_vec();
    let start = option::of(prop_oneof![4 => 0..8_u16, 1 => any::<u16>()]);
    let slice = (prop::sample::select(modes), size, id(), id(), start, prop::bool::weighted(0.1));
    let slice = slice.prop_map(|(mode, size, id, parent, start, is_powered_off)| Slice {
        id,
        parent,
        start,
        is_powered_off,
        ..Slice::plain(device_name(0), mode, size)
    });
    vec((slice, option::weighted(0.7, 0..7_usize)), 0..9)
}

#[test]
fn however_slices_hang_in_each_other_their_shares_sum_to_the_whole() {
    let models = prop::sample::select(vec!["H100-80GB", "A30-24GB", "L40S", "X9-32GB"]);
    holds(1_500, (models, tangles(), weightings(), any::<bool>()), |(model, slices, weighting, entitled)| {
        let mut world = hour_of(model, &slices);
        world.policy = Policy { weighting, entitled, ..Policy::default() };
        let ground = Ground {
            device: &world.devices[0].device.uuid,
            model: &world.devices[0].device.model,
            memory_mib: None,
        };
        for accounted in world.account() {
            let hour = &accounted.hour.segments;
            for segment in hour.devices.iter().flat_map(|said| &said.segments) {
                let shares = Forest::new(Catalogue::embedded())
                    .shares(ground, &world.policy, hour, segment)
                    .leaves
                    .clone();
                prop_assert_eq!(Share::sum(shares.iter().map(|leaf| &leaf.share)), Share::WHOLE);
            }
        }
        Ok(())
    });
}

type Neighbour = (Index, Index, bool, bool);

fn boards() -> Vec<(&'static Name, &'static fatia::domain::catalogue::MigBoard)> {
    Catalogue::embedded().boards().filter_map(|board| Some((&board.key, board.mig.as_ref()?))).collect()
}

/// A legal layout, as large as the picks allow.
fn layout(board: usize, picks: &[Neighbour]) -> Vec<Standing> {
    let (key, board) = boards()[board];
    let mut standing: Vec<Standing> = Vec::new();
    for (profile, start, ..) in picks {
        let profile = profile.index(board.profiles.len());
        let starts = starts(board, profile);
        standing.push((profile, Some(starts[start.index(starts.len())])));
        if room(key, board, &standing, Weighting::Compute).is_none() {
            standing.pop();
        }
    }
    standing
}

#[test]
fn no_neighbour_moves_a_mig_slice_unless_shares_are_dominant() {
    let neighbour = || (any::<Index>(), any::<Index>(), any::<bool>(), any::<bool>());
    let count = boards().len();
    holds(300, (0..count, vec(neighbour(), 1..8), weightings()), |(number, picks, weighting)| {
        prop_assume!(weighting != Weighting::Dominant);
        let (key, board) = boards()[number];
        let slices: Vec<(Slice, Option<usize>)> = layout(number, &picks)
            .into_iter()
            .enumerate()
            .map(|(at, (profile, start))| {
                let profile = board.profiles[profile].name.as_str();
                let of_instance = slice(SharingMode::Mig, profile, &format!("gi-{at}"), "");
                let (_, _, is_held, is_read) = picks[at];
                let start = start.filter(|_| is_read || at == 0);
                (Slice { start, ..of_instance }, (at == 0 || is_held).then_some(at % 7))
            })
            .collect();
        prop_assume!(!slices.is_empty());
        let of_first = |slices: &[(Slice, Option<usize>)]| {
            let mut world = hour_of(key.as_str(), slices);
            world.policy = Policy { weighting, ..Policy::default() };
            let accounted = world.account();
            let hour = &accounted[0].hour;
            let parts = hour.devices[0].parts.iter();
            let is_first = |slice: usize| hour.segments.slices[slice].id == Some(name("gi-0"));
            let of_first = parts.filter(|part| part.slice.is_some_and(is_first));
            of_first.map(|part| (part.state, part.quantity)).collect::<Vec<_>>()
        };
        let alone = of_first(&slices[..1]);
        prop_assert_eq!(alone.len(), 1);
        prop_assert_eq!(of_first(&slices), alone);
        Ok(())
    });
}

/// The share of what has a slice around it or is it.
fn within(world: &World, number: usize, hour: &HourSegments, segment: &Segment, id: &Name) -> Share {
    let device = &world.devices[number];
    let ground =
        Ground { device: &device.device.uuid, model: &device.device.model, memory_mib: device.memory_mib };
    let shares = Forest::new(Catalogue::embedded()).shares(ground, &world.policy, hour, segment);
    Share::sum(shares.leaves.iter().filter(|leaf| leaf.path.contains(id)).map(|leaf| &leaf.share))
}

#[test]
fn all_that_is_inside_a_slice_has_no_more_than_the_slice_alone() {
    holds(400, nests(), |mut world| {
        // A slice under a usage basis has what it uses once nothing is in it.
        world.policy.basis.clear();
        for accounted in world.account() {
            let hour = &accounted.hour.segments;
            for said in &hour.devices {
                let number = world.devices.iter().position(|each| each.device.uuid == said.device).unwrap();
                for segment in &said.segments {
                    children_stay_inside(&world, number, hour, segment)?;
                }
            }
        }
        Ok(())
    });
}

fn children_stay_inside(
    world: &World,
    number: usize,
    hour: &HourSegments,
    segment: &Segment,
) -> Result<(), TestCaseError> {
    let around: BTreeSet<&Name> = hour.slices.iter().filter_map(|slice| slice.parent.as_ref()).collect();
    for id in around {
        let is_inside = |slice: usize| {
            let mut parent = hour.slices[slice].parent.as_ref();
            for _ in 0..hour.slices.len() {
                match parent {
                    Some(each) if each == id => return true,
                    Some(each) => {
                        let next = hour.slices.iter().find(|slice| slice.id.as_ref() == Some(each));
                        parent = next.and_then(|slice| slice.parent.as_ref());
                    }
                    None => return false,
                }
            }
            false
        };
        let mut alone = segment.clone();
        alone.layout.retain(|slice| !is_inside(*slice));
        alone.holders.retain(|holder| !is_inside(holder.slice));
        let (with, without) =
            (within(world, number, hour, segment, id), within(world, number, hour, &alone, id));
        // What hangs in a slice that is not there is the device's.
        if without.is_none() {
            continue;
        }
        prop_assert!(with <= without, "{}: {:?} of {:?} in {:?}", id, with, without, segment);
    }
    Ok(())
}
