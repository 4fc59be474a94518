//! Days and months of the billing zone: of 23 to 25 hours, and beginning at half past in UTC.

use super::program::{Fatia, exact};

const HOUR: i64 = 1_000_000;
/// Of an amount's 10⁻¹⁴ in one millionth of an hour at a price of 1.
const PER_MICRO: i128 = 100_000_000;

/// A month in which a zone has a day of a length of its own.
struct Case {
    month: &'static str,
    days: u32,
    /// The one day that is not 24 hours long.
    odd: (&'static str, i64),
    /// Where that day begins; a price changes there.
    begins: &'static str,
    /// In service from before the month until after it.
    in_service: (&'static str, &'static str),
}

/// One GPU in service through each month, half of it held. Prices are 1 until the first odd day, then 2, then 4.
fn check(zone: &str, prices_from: &str, cases: &[Case]) {
    let fatia = Fatia::new().with_settings(&format!("[billing]\nzone = \"{zone}\"\n"));
    let mut edges = vec![prices_from];
    edges.extend(cases.iter().map(|case| case.begins));
    for (at, from) in edges.iter().enumerate() {
        let to = edges.get(at + 1).map(|to| format!("effective_to = \"{to}\"\n")).unwrap_or_default();
        let price = 1 << at;
        let text = format!(
            "name = \"book-{price}\"\ncurrency = \"USD\"\neffective_from = \"{from}\"\n{to}[cost]\nA10 = \"{price}\"\n"
        );
        fatia.price(&text).good();
    }
    let mut inventory = "node,gpu_uuid,gpu_model,in_service_from,in_service_to\n".to_owned();
    let mut intervals = "workload,tenant,node,gpu_uuid,mode,share_ppm,start,end\n".to_owned();
    for Case { in_service: (from, to), .. } in cases {
        inventory.push_str(&format!("n1,GPU-a,A10,{from},{to}\n"));
        intervals.push_str(&format!("w,t,n1,GPU-a,mps,500000,{from},{to}\n"));
    }
    fatia.import_all(&inventory, &intervals, &[]);

    for (at, case) in cases.iter().enumerate() {
        let report = fatia.json(case.month, "day");
        assert_eq!(report.text("zone"), zone);
        let mut hours_of_month = 0;
        for day in 1..=case.days {
            let day = format!("{}-{day:02}", case.month);
            let hours = if day == case.odd.0 { case.odd.1 } else { 24 * HOUR };
            hours_of_month += hours;
            assert_eq!(report.sum(&[("day", &day)]), hours, "{zone} {day}");
            assert_eq!(report.sum(&[("day", &day), ("state", "used")]), hours / 2, "{zone} {day}");
            let price = 1 << if day.as_str() < case.odd.0 { at } else { at + 1 };
            let lines = report.groups().into_iter().filter(|line| line.text("day") == day);
            let cost: i128 = lines.filter_map(|line| line.cost()).map(exact).sum();
            assert_eq!(cost, i128::from(hours) * price * PER_MICRO, "{zone} {day}");
        }
        assert_eq!(report.in_service(), hours_of_month, "{zone} {}: days sum to the month", case.month);
        let month = fatia.json(case.month, "tenant");
        assert_eq!((month.in_service(), month.total("unknown")), (hours_of_month, 0), "{zone}");
        assert!(month.groups().iter().all(|line| line.unpriced() == 0), "{zone}");
    }
}

#[test]
fn a_day_that_begins_at_one_o_clock_has_23_hours_and_the_day_before_a_winter_25() {
    let november = Case {
        month: "2018-11",
        days: 30,
        odd: ("2018-11-04", 23 * HOUR),
        begins: "2018-11-04T03:00:00Z",
        in_service: ("2018-10-30T00:00:00Z", "2018-12-03T00:00:00Z"),
    };
    let february = Case {
        month: "2019-02",
        days: 28,
        odd: ("2019-02-16", 25 * HOUR),
        begins: "2019-02-16T02:00:00Z",
        in_service: ("2019-01-30T00:00:00Z", "2019-03-03T00:00:00Z"),
    };
    check("America/Sao_Paulo", "2018-10-01T03:00:00Z", &[november, february]);
}

#[test]
fn summer_time_in_lisbon_takes_an_hour_in_march_and_gives_it_back_in_october() {
    let march = Case {
        month: "2026-03",
        days: 31,
        odd: ("2026-03-29", 23 * HOUR),
        begins: "2026-03-29T00:00:00Z",
        in_service: ("2026-02-27T00:00:00Z", "2026-04-03T00:00:00Z"),
    };
    let october = Case {
        month: "2026-10",
        days: 31,
        odd: ("2026-10-25", 25 * HOUR),
        begins: "2026-10-24T23:00:00Z",
        in_service: ("2026-09-29T00:00:00Z", "2026-11-03T00:00:00Z"),
    };
    check("Europe/Lisbon", "2026-02-01T00:00:00Z", &[march, october]);
}

#[test]
fn summer_time_on_lord_howe_moves_half_an_hour() {
    let april = Case {
        month: "2026-04",
        days: 30,
        odd: ("2026-04-05", 24 * HOUR + HOUR / 2),
        begins: "2026-04-04T13:00:00Z",
        in_service: ("2026-03-30T00:00:00Z", "2026-05-03T00:00:00Z"),
    };
    let october = Case {
        month: "2026-10",
        days: 31,
        odd: ("2026-10-04", 23 * HOUR + HOUR / 2),
        begins: "2026-10-03T13:30:00Z",
        in_service: ("2026-09-28T00:00:00Z", "2026-11-02T00:00:00Z"),
    };
    check("Australia/Lord_Howe", "2026-03-01T13:00:00Z", &[april, october]);
}

#[test]
fn days_and_prices_in_kolkata_begin_at_half_past() {
    let march = Case {
        month: "2026-03",
        days: 31,
        odd: ("2026-03-15", 24 * HOUR),
        begins: "2026-03-14T18:30:00Z",
        in_service: ("2026-02-27T00:00:00Z", "2026-04-03T00:00:00Z"),
    };
    check("Asia/Kolkata", "2026-02-28T18:30:00Z", &[march]);

    let fatia = Fatia::new().with_settings("[billing]\nzone = \"Asia/Kolkata\"\n");
    let text =
        "name = \"a\"\ncurrency = \"USD\"\neffective_from = \"2026-03-01T00:00:00Z\"\n[cost]\nA10 = \"1\"\n";
    let edge = "effective_from 2026-03-01T00:00:00Z is not on an edge of a billing hour in Asia/Kolkata";
    fatia.price(text).ended(1).told(&[edge]);
}

#[test]
fn zone_and_currency_are_settings_until_something_was_imported() {
    let inventory = "node,gpu_uuid,gpu_model,in_service_from,in_service_to\n\
                     n1,GPU-a,A10,2026-03-01T00:00:00Z,2026-03-02T00:00:00Z\n";
    let intervals = "workload,node,gpu_uuid,mode,start,end\n\
                     w,n1,GPU-a,dedicated,2026-03-01T00:00:00Z,2026-03-01T12:00:00Z\n";
    let fatia = Fatia::new();
    let set = |zone: &str, currency: &str| {
        let text = format!("[billing]\nzone = \"{zone}\"\ncurrency = \"{currency}\"\n");
        fatia.write("data/fatia.toml", text);
    };
    set("Asia/Kolkata", "INR");
    fatia.run(&["doctor"]).good();
    set("Europe/Lisbon", "EUR");
    fatia.import_all(inventory, intervals, &[]);
    let report = fatia.report("2026-03", "day", "json");
    assert!(report.contains("\"zone\": \"Europe/Lisbon\",\n  \"currency\": \"EUR\""), "{report}");

    for (zone, currency) in [("Asia/Kolkata", "EUR"), ("Europe/Lisbon", "INR")] {
        set(zone, currency);
        for command in [&["doctor"][..], &["rebuild"], &["report", "costs", "--period", "2026-03"]] {
            let ran = fatia.run(command).ended(1);
            ran.told(&["bills in EUR by Europe/Lisbon", &format!("the settings say {currency} and {zone}")]);
        }
        fatia.import().ended(1).told(&["Europe/Lisbon"]);
    }
    // Not set is not changed.
    fatia.write("data/fatia.toml", "");
    assert_eq!(fatia.report("2026-03", "day", "json"), report);
}
