//! An import's highest number wins whole for each (source, workload, device, uncut start), whenever it arrives.

use fatia::domain::cost::NodeHour;
use fatia::domain::device::SharingMode;
use fatia::domain::ids::Name;
use fatia::domain::period::Span;
use fatia::domain::usage::{Evidence, EvidenceField, Slice, SliceSize, Source};
use proptest::collection::vec;
use proptest::prelude::*;

use super::account::Accounted;
use super::holds;
use super::world::{HOUR, Holding, MINUTE, World, device_name, name, source, worlds_of};

/// Source, number, device, workload, tenant, share, start, length, cuts: few of each, so that keys meet.
type RowPlan = (usize, i64, usize, usize, usize, u32, i64, i64, Vec<i64>);

fn rows() -> impl Strategy<Value = Vec<RowPlan>> {
    let row = (
        0..2_usize,
        1..5_i64,
        0..2_usize,
        0..2_usize,
        0..3_usize,
        1..4_u32,
        0..3_i64,
        // One in nine is a deletion.
        0..9_i64,
        vec(1..540_i64, 0..3),
    );
    vec(row, 0..14)
}

fn seen(workload: usize, tenant: usize) -> Evidence {
    let (workload, tenant) = (name(["w0", "w1"][workload]), name(["acme", "zeta", "team-x"][tenant]));
    [(EvidenceField::Workload, workload), (EvidenceField::Tenant, tenant)].into_iter().collect()
}

/// The fleet, whose imports state these rows, cut into pieces.
fn with_rows(mut world: World, rows: &[RowPlan]) -> World {
    for (from, number, device, workload, tenant, quarters, start, length, cuts) in rows {
        let device = device % world.devices.len();
        let uncut = world.place.span((start * HOUR, start * HOUR + length * 45 * MINUTE));
        let mut edges: Vec<_> =
            cuts.iter().map(|minute| world.place.at(start * HOUR + minute * MINUTE)).collect();
        edges.retain(|edge| uncut.contains(*edge));
        edges.extend([uncut.start(), uncut.end()]);
        edges.sort_unstable();
        for pair in edges.windows(2) {
            world.holdings.push(Holding {
                source: source([0, 2][*from]),
                number: *number,
                slice: Slice::plain(
                    device_name(device),
                    SharingMode::TimeSlicing,
                    SliceSize::Declared(quarters * 250_000),
                ),
                evidence: seen(*workload, *tenant),
                span: Span::new(pair[0], pair[1]).unwrap(),
                uncut,
            });
        }
    }
    world
}

fn key(holding: &Holding) -> (&Source, &Name, Option<&Name>, i64) {
    let workload = holding.evidence.workload();
    (&holding.source, &holding.slice.device, workload, holding.uncut.start().micros())
}

/// What stands: of each key only what its highest number says.
fn resolved(world: &World) -> World {
    let stands = |holding: &&Holding| {
        let same = world.holdings.iter().filter(|other| key(other) == key(holding));
        same.map(|other| other.number).max() == Some(holding.number)
    };
    let mut resolved = world.clone();
    resolved.holdings = world.holdings.iter().filter(stands).cloned().collect();
    for holding in &mut resolved.holdings {
        holding.number = 1;
    }
    resolved
}

fn node_hours(accounted: Vec<Accounted>) -> Vec<NodeHour> {
    accounted.into_iter().map(|each| each.hour).collect()
}

#[test]
fn the_highest_import_number_wins_whole_in_any_order_of_arrival() {
    let shuffled = rows().prop_flat_map(|rows| {
        let order: Vec<usize> = (0..8).collect();
        (Just(rows), Just(order).prop_shuffle())
    });
    holds(200, (worlds_of(0..1), shuffled), |(world, (rows, order))| {
        let world = with_rows(world, &rows);
        let want = node_hours(resolved(&world).account());
        // Eight batches at most come from two sources with four numbers.
        let windows = world.windows();
        let mut arrived: Vec<_> = order.iter().filter_map(|at| windows.get(*at)).cloned().collect();
        arrived.extend(windows.get(order.len()..).unwrap_or_default().iter().cloned());
        prop_assert_eq!(node_hours(world.account_of(&arrived)), want);
        Ok(())
    });
}

#[test]
fn an_end_equal_to_the_start_deletes_what_earlier_numbers_said() {
    holds(100, (worlds_of(0..1), rows()), |(world, rows)| {
        let plain = world.clone();
        let mut world = with_rows(world, &rows);
        let deletions: Vec<Holding> = world
            .holdings
            .iter()
            .map(|holding| {
                let at = Span::clamped(holding.uncut.start(), holding.uncut.start());
                Holding { number: 9, span: at, uncut: at, ..holding.clone() }
            })
            .collect();
        world.holdings.extend(deletions);
        prop_assert_eq!(node_hours(world.account()), node_hours(plain.account()));
        Ok(())
    });
}
