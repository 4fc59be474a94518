//! The calendar of every zone: hours tile days, days tile months, months tile years, whatever clocks do.

use chrono_tz::TZ_VARIANTS;
use fatia::domain::device::Device;
use fatia::domain::period::{BillingZone, Day, Month, Span};
use fatia::domain::report::Dimension;
use fatia::domain::units::{Instant, Quantity};

use super::world::{FleetDevice, HOUR, MINUTE, Place, World, device_name, name};

fn zone(name: &str) -> BillingZone {
    BillingZone::parse(name).unwrap()
}

fn month(year: i64, month: i64) -> Month {
    Month::parse(&format!("{year}-{month:02}")).unwrap()
}

fn length(span: Span) -> i64 {
    span.end().micros() - span.start().micros()
}

/// The day of a date, by way of its month.
fn day(date: &str) -> Day {
    let (month, number) = date.rsplit_once('-').unwrap();
    let first = Month::parse(month).unwrap().first_day();
    (1..number.parse().unwrap()).fold(first, |day, _| day.next())
}

fn hours_tile(zone: BillingZone, day: Day) {
    let span = zone.day_span(day);
    let mut at = span.start();
    let mut hours = zone.hours_of(day).peekable();
    while let Some(hour) = hours.next() {
        assert_eq!(hour.start(), at, "{zone} {day}");
        let is_last = hours.peek().is_none();
        assert!(length(hour) == HOUR || is_last && 0 < length(hour) && length(hour) < HOUR, "{zone} {day}");
        // Both ends of each hour know where they are.
        let last = Instant::from_micros(hour.end().micros() - 1);
        for instant in [hour.start(), last] {
            assert_eq!((zone.day_of(instant), zone.hour_of(instant)), (day, hour), "{zone} {instant}");
        }
        assert!(zone.is_hour_edge(hour.start()) && !zone.is_hour_edge(last), "{zone} {day}");
        at = hour.end();
    }
    assert_eq!(at, span.end(), "{zone} {day}");
}

fn year_is_tiled(zone: BillingZone, year: i64) {
    let mut at = zone.month_span(month(year, 1)).start();
    for number in 1..=12 {
        let month = month(year, number);
        let span = zone.month_span(month);
        assert_eq!(span.start(), at, "{zone} {month}");
        let mut day = month.first_day();
        while day != month.end_day() {
            let day_span = zone.day_span(day);
            assert_eq!(day_span.start(), at, "{zone} {day}");
            assert!(length(day_span) <= 48 * HOUR, "{zone} {day} is {day_span}");
            // Hours of a usual day follow from its length; one a month stands for them.
            if length(day_span) != 24 * HOUR || day == month.first_day() {
                hours_tile(zone, day);
            }
            at = day_span.end();
            day = day.next();
        }
        assert_eq!(span.end(), at, "{zone} {month}");
        assert!((27 * 24..=32 * 24).contains(&(length(span) / HOUR)), "{zone} {month} is {span}");
    }
    assert_eq!(at, zone.month_span(month(year + 1, 1)).start(), "{zone} {year}");
}

/// The next of a fixed row of numbers that look random. Source: SplitMix64.
fn scattered(number: u64) -> u64 {
    let mixed = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[test]
fn hours_tile_days_and_days_tile_months_in_every_zone() {
    for (number, tz) in TZ_VARIANTS.iter().enumerate() {
        let zone = zone(tz.name());
        if crate::support::is_long() {
            (1971..=2037).for_each(|year| year_is_tiled(zone, year));
        } else {
            for draw in 0..3 {
                let drawn = scattered(3 * u64::try_from(number).unwrap() + draw) % 67;
                year_is_tiled(zone, 1971 + i64::try_from(drawn).unwrap());
            }
        }
    }
}

#[test]
fn the_years_in_which_clocks_did_what_is_rare_are_tiled() {
    for (name, year) in [
        ("America/Sao_Paulo", 2018),
        ("America/Sao_Paulo", 2019),
        ("Europe/Lisbon", 1992),
        ("Europe/Lisbon", 1996),
        ("Australia/Lord_Howe", 1981),
        ("Australia/Lord_Howe", 1985),
        ("Asia/Kolkata", 2026),
        ("America/St_Johns", 1988),
        ("America/St_Johns", 2010),
        ("Pacific/Apia", 2011),
        ("Pacific/Kwajalein", 1993),
        ("Pacific/Kiritimati", 1994),
        ("Pacific/Enderbury", 1994),
        ("Antarctica/Casey", 2010),
        ("Antarctica/Troll", 2026),
        ("Africa/Monrovia", 1972),
        ("Asia/Pyongyang", 2015),
        ("Asia/Gaza", 2011),
        ("America/Caracas", 2007),
    ] {
        year_is_tiled(zone(name), year);
    }
}

#[test]
fn days_have_as_many_hours_as_their_zone_gives_them() {
    let check = |name: &str, date: &str, start: &str, minutes: i64| {
        let (zone, day) = (zone(name), day(date));
        assert_eq!(zone.day_start(day).to_string(), start, "{name} {date}");
        assert_eq!(length(zone.day_span(day)) / MINUTE, minutes, "{name} {date}");
        hours_tile(zone, day);
    };
    check("America/Sao_Paulo", "2018-11-03", "2018-11-03T03:00:00Z", 24 * 60);
    check("America/Sao_Paulo", "2018-11-04", "2018-11-04T03:00:00Z", 23 * 60);
    check("America/Sao_Paulo", "2019-02-16", "2019-02-16T02:00:00Z", 25 * 60);
    check("America/Sao_Paulo", "2019-02-17", "2019-02-17T03:00:00Z", 24 * 60);
    check("Europe/Lisbon", "2026-03-29", "2026-03-29T00:00:00Z", 23 * 60);
    check("Europe/Lisbon", "2026-10-25", "2026-10-24T23:00:00Z", 25 * 60);
    check("Australia/Lord_Howe", "2026-10-04", "2026-10-03T13:30:00Z", 23 * 60 + 30);
    check("Australia/Lord_Howe", "2026-04-05", "2026-04-04T13:00:00Z", 24 * 60 + 30);
    check("Asia/Kolkata", "2026-06-01", "2026-05-31T18:30:00Z", 24 * 60);
    check("America/St_Johns", "2010-11-07", "2010-11-07T02:30:00Z", 25 * 60);
    check("Pacific/Apia", "2011-12-30", "2011-12-30T10:00:00Z", 0);
}

// Once a fault of src/domain/period.rs, `hours_of`: `plus_micros` stops at 1970 and 2200, so that east of Greenwich the
// first hour of 1970-01-01 is as long as the zone's offset, and west of it the hours of 2199-12-31 never end.
#[test]
fn the_first_and_the_last_accepted_day_have_hours_like_all_others() {
    let last = (1..31).fold(Month::parse("2199-12").unwrap().first_day(), |day, _| day.next());
    for (name, day) in [("Asia/Kolkata", day("1970-01-01")), ("America/Sao_Paulo", last)] {
        let hours: Vec<i64> = zone(name).hours_of(day).take(30).map(length).collect();
        assert_eq!(hours, vec![HOUR; 24], "{name} {day}");
    }
}

#[test]
fn months_have_as_many_hours_as_their_days() {
    let check = |name: &str, text: &str, minutes: i64| {
        let span = zone(name).month_span(Month::parse(text).unwrap());
        assert_eq!(length(span) / MINUTE, minutes, "{name} {text}");
    };
    check("UTC", "2026-02", 672 * 60);
    check("UTC", "2024-02", 696 * 60);
    check("America/Sao_Paulo", "2018-11", 719 * 60);
    check("America/Sao_Paulo", "2019-02", 673 * 60);
    check("Europe/Lisbon", "2026-03", 743 * 60);
    check("Europe/Lisbon", "2026-10", 745 * 60);
    check("Australia/Lord_Howe", "2026-10", 743 * 60 + 30);
    check("Australia/Lord_Howe", "2026-04", 720 * 60 + 30);
    check("Pacific/Apia", "2011-12", 720 * 60);
}

#[test]
fn a_report_by_day_sums_to_the_month_in_every_zone_of_the_stage() {
    for place in (0..9).map(Place::number) {
        let month = place.zone.month_span(place.month);
        let world = World::of(
            place,
            vec![FleetDevice {
                device: Device { uuid: device_name(0), model: name("A10") },
                memory_mib: None,
                node: 0,
                services: vec![Span::clamped(Instant::MIN, Instant::MAX)],
                counted_to: month.end(),
                states: vec![],
            }],
        );
        // In service since for ever, but only the month's hours are divided here.
        let mut divided = world.clone();
        divided.devices[0].services = vec![month];
        let sums = divided.sums(&divided.account());
        let report = world.report(&sums, &[Dimension::Day], &world.counted_services());
        assert_eq!(report.reconciliation.difference, Quantity::ZERO, "{place:?}");
        let whole = |span: Span| length(span) * 1_000_000 / HOUR;
        assert_eq!(report.total.gpu_hours.micro(), whole(month), "{place:?}");
        let mut day = place.month.first_day();
        let mut groups = report.groups.iter();
        while day != place.month.end_day() {
            let span = place.zone.day_span(day);
            if !span.is_empty() {
                let group = groups.next().unwrap();
                assert_eq!(group.values, [day.to_string()]);
                assert_eq!(group.figures.gpu_hours.micro(), whole(span), "{place:?} {day}");
            }
            day = day.next();
        }
        assert_eq!(groups.next(), None);
    }
}
