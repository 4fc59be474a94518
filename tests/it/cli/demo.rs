//! `fatia demo`: a made-up company's last month by the real path, marked as made up wherever it shows.

use std::collections::BTreeSet;

use super::program::{Fatia, Report, Running, fixture};
use super::serve::get;
use crate::support::is_long;

const MODES: [&str; 6] = ["dedicated", "mig", "mig_vgpu", "passthrough", "time_slicing", "vgpu"];
const STATES: [&str; 7] = ["idle", "maintenance", "rounding", "stranded", "unhealthy", "unknown", "used"];
const MARK: &str = "Demo data: the company, its fleet and its prices are made up.";

/// A demo on a port of its own; its address and its operator's token.
fn start(fatia: &Fatia, options: &[&str]) -> (Running, String, String) {
    let running = fatia.start(&[&["demo", "--listen", "127.0.0.1:0"], options].concat());
    // Weeks of history, told by a build without optimisations beside all the other tests.
    let line = running.until_said_within("ready ", std::time::Duration::from_secs(600));
    let (address, token) = line.trim_start_matches("ready ").split_once(" token=").expect("both are said");
    let (address, token) = (address.to_owned(), token.to_owned());
    (running, address, token)
}

/// The month that was the last one when the demo was made.
fn last_month(fatia: &Fatia) -> String {
    let made = std::fs::read_to_string(fatia.path("data/demo.json")).expect("it says what it was made with");
    let made: serde_json::Value = serde_json::from_str(&made).expect("JSON");
    made["last_month"].as_str().expect("an instant")[..7].to_owned()
}

/// Its report; JSON and CSV say on standard error that it is made up.
fn report(fatia: &Fatia, format: &str) -> String {
    let by = "tenant,project,mode,workload,day";
    let period = last_month(fatia);
    let command = ["report", "costs", "--period", &period, "--group-by", by, "--format", format];
    let ran = fatia.run(&command).good();
    assert_eq!(ran.err.contains(MARK), format != "text", "{ran:.400}");
    ran.out
}

/// The same bytes; of months that are not, where they part.
fn assert_same(one: &str, other: &str) {
    let parting = one.lines().zip(other.lines()).find(|(one, other)| one != other);
    assert!(one == other, "of {} and {} bytes; they part at {parting:?}", one.len(), other.len());
}

#[test]
fn last_month_shows_all_modes_and_states_adds_up_and_is_marked() {
    let fatia = Fatia::new();
    // A first start that is cut off in the middle loses nothing, and leaves nothing half made.
    let cut = fatia.start(&["demo", "--listen", "127.0.0.1:0"]);
    // A fast machine may be done before it says how far it is.
    cut.until_told_one_of(&["tell their history", "in a browser"]);
    cut.kill();
    let (running, address, token) = start(&fatia, &[]);
    let first = report(&fatia, "json");
    let read = Report::read(&first);
    assert!(read.in_service() > 9_000_000_000, "thirteen GPUs, all month: {}", read.in_service());
    let used: BTreeSet<&str> = read
        .groups()
        .into_iter()
        .filter(|line| line.text("state") == "used")
        .map(|line| line.text("mode"))
        .collect();
    assert_eq!(used.into_iter().collect::<Vec<_>>(), MODES);
    for state in STATES {
        assert!(read.total(state) > 0, "{state}");
    }
    let tenants: BTreeSet<&str> = read.groups().iter().map(|line| line.text("tenant")).collect();
    assert_eq!(
        tenants.into_iter().collect::<Vec<_>>(),
        ["aurora", "boreal", "ci", "forma", "labs", "legacy", "platform"]
    );
    assert!(read.sum(&[("project", "unmapped"), ("state", "used")]) > 0, "somebody is nobody's");

    // It says what it is: to people, to programs, and to the pages.
    let period = last_month(&fatia);
    assert!(report(&fatia, "text").starts_with(&format!("{MARK}\n")));
    let csv = report(&fatia, "csv");
    let (header, lines) = csv.split_once('\n').expect("a header");
    assert!(header.ends_with(",demo") && lines.lines().all(|line| line.ends_with(",true")), "{csv:.400}");
    fatia.run(&["tenant", "list"]).good().told(&[MARK]);
    assert!(
        serde_json::from_str::<serde_json::Value>(&first).expect("JSON")["demo"].as_bool().expect("said")
    );
    let doctor = fatia.run(&["doctor"]).good();
    assert!(doctor.out.contains("all data of this installation is made up"), "{doctor}");
    assert!(doctor.out.contains("0 differ") && !doctor.out.contains("WRONG"), "{doctor}");
    for path in ["/healthz", "/", "/api/v1/self", "/api/v1/none", "/metrics"] {
        let answer = get(&address, &token, path);
        assert!(answer.to_lowercase().contains("\r\nfatia-demo: true\r\n"), "{path}: {answer}");
    }
    assert!(get(&address, &token, "/api/v1/self").contains("\"demo\":true"));
    assert!(get(&address, &token, "/metrics").contains("\nfatia_demo 1\n"));
    let csv = get(&address, &token, &format!("/api/v1/reports/costs?period={period}&format=csv"));
    assert!(csv.contains(&format!("filename=\"demo-costs-{period}.csv\"")), "{csv:.400}");

    // A start on what is there goes on with it, and tells nothing twice.
    running.stop().good();
    let (running, ..) = start(&fatia, &[]);
    assert_same(&report(&fatia, "json"), &first);
    running.stop().good();
    let refused = fatia.run(&["demo", "--listen", "127.0.0.1:0", "--seed", "8"]).ended(1);
    refused.told(&["was made with --seed 7 --months 1", "--data"]);

    if is_long() {
        let again = Fatia::new();
        let (running, ..) = start(&again, &["--seed", "7"]);
        assert_same(&report(&again, "json"), &first);
        running.stop().good();
        let other = Fatia::new();
        let (running, ..) = start(&other, &["--seed", "8"]);
        assert!(report(&other, "json") != first, "another seed makes another month");
        running.stop().good();
    }
}

#[test]
fn nothing_made_up_is_put_beside_what_is_real() {
    let fatia = Fatia::new();
    fatia.price(&fixture("sample/prices.toml")).good();
    let refused = fatia.run(&["demo", "--listen", "127.0.0.1:0"]).ended(1);
    refused.told(&["holds data that is not the demo's", "--data"]);
    let report = fatia.run(&["report", "costs", "--period", "2026-09", "--format", "json"]).good();
    assert!(!report.out.contains("\"demo\""), "{report}");
}
