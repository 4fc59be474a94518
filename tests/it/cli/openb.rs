//! A real trace of five months: `shared/data/openb-2023`, beside the clone and not part of it.
//!
//! What the program says is held against sums that these tests take from the trace themselves, in integers.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::program::{Fatia, Ran, Report};

const MONTHS: [&str; 6] = ["2026-06", "2026-07", "2026-08", "2026-09", "2026-10", "2026-11"];
const GROUP_BY: &str = "tenant,project,mode";
const OTHERS: &str =
    "P100 = \"0.41\"\nT4 = \"0.35\"\nA10 = \"0.62\"\nV100M16 = \"1.13\"\nV100M32 = \"1.27\"\n";

fn prices(models: &str) -> String {
    format!("name = \"a\"\ncurrency = \"USD\"\neffective_from = \"2026-06-01T00:00:00Z\"\n[cost]\n{models}")
}

/// The trace's files; None where they are not beside the clone.
struct Trace {
    inventory: String,
    intervals: String,
}

impl Trace {
    fn find() -> Option<Trace> {
        let folder: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/data/openb-2023");
        if !folder.is_dir() {
            println!("skipped: ../shared/data/openb-2023 is not there");
            return None;
        }
        let read = |name: &str| std::fs::read_to_string(folder.join(name)).expect("the trace can be read");
        Some(Trace { inventory: read("inventory.csv"), intervals: read("intervals.csv") })
    }

    /// The same lines in another order, by a fixed rule.
    fn shuffled(&self) -> Trace {
        let (header, lines) = self.intervals.split_once('\n').expect("a header");
        let mut lines: Vec<&str> = lines.lines().collect();
        let mut state: u64 = 0x9e37_79b9_7f4a_7c15;
        for at in (1..lines.len()).rev() {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let other = usize::try_from(state >> 33).expect("31 bits") % (at + 1);
            lines.swap(at, other);
        }
        let intervals = format!("{header}\n{}\n", lines.join("\n"));
        assert_ne!(intervals, self.intervals);
        Trace { inventory: self.inventory.clone(), intervals }
    }

    /// Brings it in, with prices for all models but two.
    fn import(&self, fatia: &Fatia) {
        fatia.price(&prices(OTHERS)).good();
        fatia.import_all(&self.inventory, &self.intervals, &[]);
    }

    /// Millionths of a share × seconds of a month, by tenant and mode.
    fn held(&self, month: usize) -> BTreeMap<(&str, &str), i128> {
        let begin = |month: &str| seconds(&format!("{month}-01T00:00:00Z"));
        let (from, to) = (begin(MONTHS[month]), begin(MONTHS[month + 1]));
        let mut held = BTreeMap::new();
        for line in self.intervals.lines().skip(1) {
            let fields: Vec<&str> = line.split(',').collect();
            let [_, tenant, _, _, _, mode, share, start, end] = fields[..] else { panic!("{line}") };
            let length = (seconds(end).min(to) - seconds(start).max(from)).max(0);
            let share: i64 = share.parse().expect("a whole number");
            if length > 0 {
                *held.entry((tenant, mode)).or_default() += i128::from(length) * i128::from(share);
            }
        }
        held
    }
}

fn seconds(instant: &str) -> i64 {
    chrono::DateTime::parse_from_rfc3339(instant).expect("RFC 3339").timestamp()
}

fn reports(fatia: &Fatia) -> Vec<String> {
    MONTHS[..5].iter().map(|month| fatia.report(month, GROUP_BY, "json")).collect()
}

/// One import for all tests on SQLite, and what was seen on the way.
struct Seen {
    trace: Trace,
    first: Vec<String>,
    again: (Ran, Vec<String>),
    rebuilt: Vec<String>,
    /// With a price for all models but two, then with prices for all.
    by_model: [Vec<String>; 2],
    totals: Vec<String>,
}

fn seen() -> Option<&'static Seen> {
    static SEEN: OnceLock<Option<Seen>> = OnceLock::new();
    SEEN.get_or_init(|| {
        let trace = Trace::find()?;
        let fatia = Fatia::new();
        trace.import(&fatia);
        let by_model = || MONTHS[..5].iter().map(|month| fatia.report(month, "model", "json")).collect();
        let (first, before) = (reports(&fatia), by_model());
        let again = (fatia.import(), reports(&fatia));
        fatia.run(&["rebuild"]).good();
        let rebuilt = reports(&fatia);
        fatia.price(&prices(&format!("{OTHERS}G2 = \"3.07\"\nG3 = \"4.1\"\n"))).good();
        let by_model = [before, by_model()];
        let totals = ["day", "node,workload", "tenant", "state"]
            .iter()
            .map(|fields| fatia.report("2026-10", fields, "json"))
            .collect();
        Some(Seen { trace, first, again, rebuilt, by_model, totals })
    })
    .as_ref()
}

#[test]
fn each_month_of_the_trace_reconciles_and_nothing_is_unknown() {
    let Some(seen) = seen() else { return };
    let in_service = [54_720, 56_544, 56_544, 54_720, 54_720].map(|hours: i64| hours * 1_000_000);
    for (report, in_service) in seen.first.iter().zip(in_service) {
        let report = Report::read(report);
        assert_eq!(report.in_service(), in_service);
        for state in ["unknown", "stranded", "unhealthy", "maintenance", "held_unused"] {
            assert_eq!(report.total(state), 0, "{state}");
        }
    }
}

#[test]
fn gpu_hours_by_tenant_and_mode_are_the_traces_own_sum() {
    let Some(seen) = seen() else { return };
    for (month, report) in seen.first.iter().enumerate() {
        let report = Report::read(report);
        let held = seen.trace.held(month);
        let mut used = 0;
        for ((tenant, mode), held) in &held {
            let sum = report.sum(&[("tenant", tenant), ("mode", mode), ("state", "used")]);
            used += sum;
            // Shares in millionths × seconds, of 3,600 in an hour: both sides in 1/3,600 of a millionth.
            let off = (i128::from(sum) * 3_600 - held).abs();
            assert!(off <= 10_000 * 3_600, "{} {tenant} {mode}: {sum} {held}", MONTHS[month]);
        }
        assert!(!held.is_empty());
        assert_eq!(report.total("used"), used, "nobody else holds anything");
    }
}

#[test]
fn a_second_import_and_a_rebuild_change_no_byte() {
    let Some(seen) = seen() else { return };
    let (ran, again) = &seen.again;
    assert_eq!((ran.code, ran.complaints().len()), (Some(0), 0), "{ran}");
    assert!(ran.err.starts_with("nothing new: 6571 lines read, 0 refused, 0 repeated; 0 batches"), "{ran}");
    assert!(ran.err.contains("0 in-service intervals opened, 0 changed"), "{ran}");
    assert!(again == &seen.first, "after a second import");
    assert!(seen.rebuilt == seen.first, "after a rebuild");
}

#[test]
fn models_without_a_price_are_unpriced_hours_and_no_money_until_one_is_loaded() {
    let Some(seen) = seen() else { return };
    let [others, all] = &seen.by_model;
    for (report, all) in others.iter().zip(all) {
        let (report, all) = (Report::read(report), Report::read(all));
        assert_eq!(report.in_service(), all.in_service());
        for (line, priced) in report.groups().into_iter().zip(all.groups()) {
            let is_known = !["G2", "G3"].contains(&line.text("model"));
            assert_eq!(line.cost().is_some(), is_known, "{line:?}");
            assert_eq!(line.unpriced(), if is_known { 0 } else { line.gpu_hours() }, "{line:?}");
            assert_eq!(priced.unpriced(), 0, "{priced:?}");
            assert_eq!(priced.gpu_hours(), line.gpu_hours(), "a price moves no time");
            assert!(if is_known { priced.cost() == line.cost() } else { priced.cost().is_some() });
        }
    }
}

#[test]
fn other_groupings_of_the_trace_have_the_same_totals() {
    let Some(seen) = seen() else { return };
    let totals = |text: &str| text[text.find("\"totals\"").expect("totals")..].to_owned();
    for report in &seen.totals {
        assert_eq!(totals(report), totals(&seen.totals[0]));
        Report::read(report).in_service();
    }
}

mod postgres {
    use super::{Fatia, Trace, reports};
    use crate::support::postgres::TestDatabase;

    /// One comparison for two rules, since each import takes its time.
    #[tokio::test]
    async fn reports_are_the_same_bytes_on_both_databases_and_for_shuffled_lines() {
        let Some(trace) = Trace::find() else { return };
        let database = TestDatabase::fresh().await;
        let server = Fatia::on(&database);
        let shuffled = trace.shuffled();
        let (on_server, embedded) = std::thread::scope(|scope| {
            let embedded = scope.spawn(|| {
                let embedded = Fatia::new();
                shuffled.import(&embedded);
                reports(&embedded)
            });
            let worker = server.worker();
            trace.import(&server);
            let on_server = reports(&server);
            worker.stop().good();
            (on_server, embedded.join().expect("an import"))
        });
        assert!(on_server == embedded, "{} is not {}", on_server.join("\n"), embedded.join("\n"));
    }
}
