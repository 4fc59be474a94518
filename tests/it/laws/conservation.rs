//! Parts sum to the in-service time, groups to the total, and whatever goes missing shows by its exact size.

use fatia::domain::allocation::PartState;
use fatia::domain::device::Device;
use fatia::domain::money::{Amount, UnitPrice};
use fatia::domain::period::Span;
use fatia::domain::policy::Policy;
use fatia::domain::price::{Book, Item, PriceBook, PriceVersion};
use fatia::domain::report::{CountedService, Dimension, Figures, in_service};
use fatia::domain::units::{Instant, Quantity};
use proptest::prelude::*;

use super::exact::{in_service_nanos, leaves};
use super::holds;
use super::world::{FleetDevice, MINUTE, Place, World, device_name, name, usd, worlds};

/// ⌊in-service ns ÷ 3.6·10⁶⌋ of a device in an hour.
fn whole(device: &FleetDevice, hour: Span) -> i64 {
    in_service_nanos(device, hour) / 3_600_000
}

#[test]
fn the_parts_of_a_device_hour_sum_to_its_in_service_time_whatever_happens() {
    holds(250, worlds(), |world| {
        for accounted in world.account() {
            let hour = accounted.hour.segments.hour;
            let here = world.devices.iter().filter(|each| each.node == accounted.node);
            let want: Vec<(Device, i64)> = here
                .filter(|each| in_service_nanos(each, hour) > 0)
                .map(|each| (each.device.clone(), whole(each, hour)))
                .collect();
            let got: Vec<(Device, i64)> = accounted
                .hour
                .devices
                .iter()
                .map(|each| {
                    let sum = each.parts.iter().map(|part| part.quantity.micro()).sum();
                    (Device { uuid: each.device.clone(), model: each.model.clone() }, sum)
                })
                .collect();
            prop_assert_eq!(want, got, "in {}", hour);
            for part in accounted.hour.devices.iter().flat_map(|each| &each.parts) {
                prop_assert!(part.quantity > Quantity::ZERO, "{:?}", part);
            }
        }
        Ok(())
    });
}

#[test]
fn rounding_is_less_than_one_micro_hour_a_leaf_and_the_platforms() {
    holds(100, worlds(), |world| {
        for accounted in world.account() {
            for device in &accounted.hour.devices {
                let fleet = world.devices.iter().find(|each| each.device.uuid == device.device).unwrap();
                let count = leaves(&world, fleet, accounted.hour.segments.hour).len();
                let rounding = device.parts.iter().find(|part| part.state == PartState::Rounding);
                let left = rounding.map_or(0, |part| part.quantity.micro());
                prop_assert!(left < i64::try_from(count).unwrap(), "{} of {} leaves", left, count);
                prop_assert!(rounding.is_none_or(|part| part.owner.is_none()), "rounding is the platform's");
            }
        }
        Ok(())
    });
}

// Once a fault of src/domain/report.rs, `in_service`: it rounds each in-service span down on its own, and DESIGN §2 the
// device-hour. See `a_device_that_comes_back_within_an_hour_reconciles` for the smallest example.
#[test]
fn a_month_reconciles_whatever_happens() {
    holds(250, worlds(), |world| {
        let sums = world.sums(&world.account());
        let services = world.counted_services();
        let parts: i64 = sums.values().flat_map(|day| day.iter()).map(|(_, sum)| sum.quantity.micro()).sum();
        let month = world.place.zone.month_span(world.place.month);
        prop_assert_eq!(in_service(world.place.zone, month, &services).unwrap().micro(), parts);
        let reconciliation = world.report(&sums, &[Dimension::Tenant], &services).reconciliation;
        prop_assert_eq!(reconciliation.difference, Quantity::ZERO);
        prop_assert_eq!(reconciliation.parts_gpu_hours.micro(), parts);
        prop_assert_eq!(reconciliation.in_service_gpu_hours.micro(), parts);
        Ok(())
    });
}

/// Groupings from none to all.
const GROUPINGS: [&[Dimension]; 7] = [
    &[],
    &[Dimension::State],
    &[Dimension::Tenant, Dimension::Project],
    &[Dimension::Day],
    &[Dimension::Node, Dimension::Workload],
    &[Dimension::Model, Dimension::Mode],
    &Dimension::ALL,
];

#[test]
fn groups_sum_to_one_total_however_they_are_made() {
    holds(120, worlds(), |world| {
        let sums = world.sums(&world.account());
        let services = world.counted_services();
        let total = world.report(&sums, &[], &services).total;
        for dimensions in GROUPINGS {
            let report = world.report(&sums, dimensions, &services);
            let add = |sum: Figures, next: &Figures| sum.plus(next).unwrap();
            prop_assert_eq!(report.total, total, "{:?}", dimensions);
            let groups = report.groups.iter().map(|group| &group.figures);
            prop_assert_eq!(groups.fold(Figures::default(), add), total, "{:?}", dimensions);
            let states = report.totals.iter().map(|(_, figures)| figures);
            prop_assert_eq!(states.fold(Figures::default(), add), total, "{:?}", dimensions);
            for (state, figures) in &report.totals {
                let groups = report.groups.iter().filter(|group| group.state == *state);
                let sum = groups.fold(Figures::default(), |sum, group| add(sum, &group.figures));
                prop_assert_eq!(sum, *figures, "{:?} of {:?}", state, dimensions);
            }
            let keys: Vec<_> =
                report.groups.iter().map(|group| (&group.values, group.state.word())).collect();
            prop_assert!(keys.is_sorted(), "{:?}", keys);
        }
        Ok(())
    });
}

#[test]
fn the_cost_is_the_sum_of_exact_products_at_each_hours_own_price() {
    holds(120, worlds(), |world| {
        for (at, version) in world.versions.iter().enumerate() {
            let book = PriceBook::new(world.versions[..at].to_vec());
            prop_assert_eq!(book.admit(version, world.place.zone, usd()), Ok(()));
        }
        let accounted = world.account();
        let days = world.place.month.first_day()..world.place.month.end_day();
        let (mut cost, mut unpriced) = (0_i128, 0_i64);
        for each in accounted.iter().filter(|each| days.contains(&each.day)) {
            let start = each.hour.segments.hour.start();
            let in_force = |version: &&PriceVersion| {
                version.effective.start() <= start && start < version.effective.end()
            };
            for device in &each.hour.devices {
                let quantity: i64 = device.parts.iter().map(|part| part.quantity.micro()).sum();
                let version = world.versions.iter().find(in_force);
                match version.and_then(|version| version.prices.get(&(Book::Cost, device.model.clone()))) {
                    Some(price) => cost += i128::from(quantity) * i128::from(price.scaled()),
                    None => unpriced += quantity,
                }
            }
        }
        let report = world.report(&world.sums(&accounted), &[Dimension::Tenant], &world.counted_services());
        prop_assert_eq!(report.total.priced_cost.scaled(), cost);
        prop_assert_eq!(report.total.unpriced_gpu_hours.micro(), unpriced);
        let groups = report.groups.iter().map(|group| group.figures.priced_cost);
        let sum = groups.fold(Amount::ZERO, |sum, each| sum.plus(each).unwrap());
        prop_assert_eq!(sum, report.total.priced_cost);
        Ok(())
    });
}

#[test]
fn a_lost_part_is_missing_by_exactly_its_quantity() {
    holds(150, (worlds(), any::<prop::sample::Index>()), |(world, which)| {
        let mut accounted = world.account();
        let services = world.counted_services();
        let whole = world.report(&world.sums(&accounted), &[], &services).reconciliation;
        let days = world.place.month.first_day()..world.place.month.end_day();
        let months = accounted.iter_mut().filter(|each| days.contains(&each.day));
        let mut devices: Vec<_> = months.flat_map(|each| &mut each.hour.devices).collect();
        devices.retain(|device| !device.parts.is_empty());
        prop_assume!(!devices.is_empty());
        let at = which.index(devices.len());
        let lost = which.index(devices[at].parts.len());
        let quantity = devices[at].parts.remove(lost).quantity;
        let short = world.report(&world.sums(&accounted), &[], &services).reconciliation;
        prop_assert_eq!(short.difference, whole.difference.minus(quantity).unwrap());
        prop_assert_eq!(short.in_service_gpu_hours, whole.in_service_gpu_hours);
        Ok(())
    });
}

// Once a fault of src/domain/report.rs, `in_service`, as above: where two spans of one device meet the same hour.
#[test]
fn a_lost_in_service_span_is_missing_by_exactly_its_time() {
    holds(150, (worlds(), any::<prop::sample::Index>()), |(world, which)| {
        let sums = world.sums(&world.account());
        let month = world.place.zone.month_span(world.place.month);
        let hours: Vec<Span> = world.run().into_iter().map(|(_, hour)| hour).collect();
        let time = |world: &World| {
            let inside = hours.iter().filter(|hour| hour.meets(month));
            inside.flat_map(|hour| world.devices.iter().map(|device| whole(device, *hour))).sum::<i64>()
        };
        let mut less = world.clone();
        let with_service = less.devices.iter_mut().filter(|device| !device.services.is_empty());
        let mut with_service: Vec<_> = with_service.collect();
        prop_assume!(!with_service.is_empty());
        let at = which.index(with_service.len());
        let lost = which.index(with_service[at].services.len());
        with_service[at].services.remove(lost);
        let reconciliation = world.report(&sums, &[], &less.counted_services()).reconciliation;
        prop_assert_eq!(reconciliation.difference.micro(), time(&world) - time(&less));
        Ok(())
    });
}

// Once a fault of src/domain/report.rs, `in_service`: two minutes in service within one hour are 2/60 h = 33,333 µh as
// parts and 16,666 + 16,666 µh on the right side. The right side has to be summed by node, device and hour first.
#[test]
fn a_device_that_comes_back_within_an_hour_reconciles() {
    let place = Place::number(0);
    let minutes = |from: i64, to: i64| place.span((from * MINUTE, to * MINUTE));
    let world = World::of(
        place,
        vec![FleetDevice {
            device: Device { uuid: device_name(0), model: name("A10") },
            memory_mib: None,
            node: 0,
            services: vec![minutes(0, 1), minutes(2, 3)],
            counted_to: Instant::MAX,
            states: vec![],
        }],
    );
    let sums = world.sums(&world.account());
    let reconciliation = world.report(&sums, &[], &world.counted_services()).reconciliation;
    assert_eq!(reconciliation.parts_gpu_hours.micro(), 33_333);
    assert_eq!(reconciliation.difference, Quantity::ZERO);
}

// Once a fault of src/domain/price.rs: sums and reports know an item by its text, and `a#1/b` revision 2 key `c` reads like
// `a` revision 1 key `b#2/c`: hours of one are then priced by the other. A version's name may not hold `#`.
#[test]
fn items_that_are_admitted_have_texts_of_their_own() {
    let place = Place::number(0);
    let version = |text: &str, revision, model: &str, span| PriceVersion {
        name: name(text),
        revision,
        effective: span,
        currency: usd(),
        prices: [((Book::Cost, name(model)), UnitPrice::from_scaled(revision))].into_iter().collect(),
        policy: Policy::default(),
    };
    let month = place.zone.month_span(place.month);
    let one = version("a", 1, "b#2/c", Span::clamped(Instant::MIN, month.start()));
    let other = version("a#1/b", 2, "c", month);
    let mut book = PriceBook::default();
    let mut texts = Vec::new();
    for version in [one, other] {
        if book.admit(&version, place.zone, usd()).is_ok() {
            for (_, key) in version.prices.keys() {
                let item =
                    Item { version: version.name.clone(), revision: version.revision, key: key.clone() };
                texts.push(item.to_string());
            }
            book = PriceBook::new([book.versions(), &[version]].concat());
        }
    }
    let all = texts.len();
    texts.dedup();
    assert_eq!(texts.len(), all, "{texts:?}");
}

#[test]
fn as_of_is_the_smallest_edge_of_what_is_still_in_service() {
    holds(100, worlds(), |world| {
        let month = world.place.zone.month_span(world.place.month);
        let services = world.counted_services();
        let is_open = |service: &&CountedService| {
            service.counted_to < service.span.end()
                && service.span.start() < month.end()
                && month.start() < service.span.end()
        };
        let edges = services.iter().filter(is_open).map(|each| each.counted_to.max(each.span.start()));
        let want = edges.min().unwrap_or(month.end()).clamp(month.start(), month.end());
        prop_assert_eq!(world.report(&world.sums(&[]), &[], &services).as_of, want);
        Ok(())
    });
}
