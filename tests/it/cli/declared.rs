//! Declared states as an operator brings them: what they do to a report, how they are amended, what is refused.

use super::program::{Fatia, Ran, Report};
use crate::support::postgres::TestDatabase;

const HOUR: i64 = 1_000_000;
/// Two days of two devices on one node, and of one on another; one that stays in service.
const INVENTORY: &str = "\
node,gpu_uuid,gpu_model,in_service_from,in_service_to
n1,GPU-a,A10,2026-09-01T00:00:00Z,2026-09-03T00:00:00Z
n1,GPU-b,A10,2026-09-01T00:00:00Z,2026-09-03T00:00:00Z
n2,GPU-c,A10,2026-09-01T00:00:00Z,
";
/// Half of one device and all of another are held on the first day.
const INTERVALS: &str = "\
workload,tenant,node,gpu_uuid,mode,share_ppm,start,end
w1,t,n1,GPU-a,mps,500000,2026-09-01T00:00:00Z,2026-09-02T00:00:00Z
w2,t,n1,GPU-b,dedicated,,2026-09-01T00:00:00Z,2026-09-02T00:00:00Z
";
const HEADER: &str = "node,gpu_uuid,slice,kind,from,to\n";
const GOOD: &str = "n1,GPU-a,,maintenance,2026-09-01T06:00:00Z,2026-09-01T08:00:00Z\n";

fn imported() -> Fatia {
    let fatia = Fatia::new();
    fatia.import_all(INVENTORY, INTERVALS, &[]);
    fatia
}

/// Imports these lines; more options may follow.
fn declare_with(fatia: &Fatia, lines: &str, options: &[&str]) -> Ran {
    fatia.write("states.csv", format!("{HEADER}{lines}"));
    fatia.run(&[&["import", "states", "states.csv"], options].concat())
}

fn declare(fatia: &Fatia, lines: &str) -> Ran {
    declare_with(fatia, lines, &[])
}

/// The month's report, after the doctor found each level to be what the journal says.
fn report(fatia: &Fatia) -> Report {
    let doctor = fatia.run(&["doctor"]).good();
    assert!(!doctor.out.contains("WRONG"), "{doctor}");
    let report = fatia.json("2026-09", "node,tenant,workload");
    assert_eq!(report.in_service(), (96 + 720) * HOUR);
    report
}

#[test]
fn maintenance_of_a_node_takes_what_is_idle_and_leaves_what_is_used() {
    let fatia = imported();
    let used = report(&fatia).total("used");
    assert_eq!(used, 36 * HOUR);
    // An hour that is half used, one that is used, and an hour of two idle devices.
    declare(&fatia, "n1,,,maintenance,2026-09-01T23:00:00Z,2026-09-02T01:00:00Z\n")
        .good()
        .told(&["states: 1 lines read, 0 refused, 0 repeated; 1 states declared, 0 amended, 0 taken back"]);
    let report = report(&fatia);
    assert_eq!(report.total("used"), used);
    assert_eq!(report.total("maintenance"), 2 * HOUR + HOUR / 2);
    assert_eq!(report.sum(&[("state", "maintenance"), ("node", "n1"), ("tenant", "platform")]), 2_500_000);
    assert_eq!(report.total("idle"), (96 + 720 - 36) * HOUR - 2_500_000);
}

#[test]
fn unhealthy_keeps_the_holder() {
    let fatia = imported();
    declare(&fatia, "n1,GPU-a,,unhealthy,2026-09-01T20:00:00Z,2026-09-02T04:00:00Z\n").good();
    let report = report(&fatia);
    assert_eq!(report.sum(&[("state", "unhealthy"), ("workload", "w1"), ("tenant", "t")]), 2 * HOUR);
    assert_eq!(report.sum(&[("state", "unhealthy"), ("tenant", "platform")]), 6 * HOUR);
    assert_eq!(report.sum(&[("state", "used"), ("workload", "w1")]), 10 * HOUR);
    assert_eq!(report.sum(&[("state", "used"), ("workload", "w2")]), 24 * HOUR);
}

#[test]
fn the_same_start_amends_an_equal_end_takes_back_and_a_repeat_is_nothing_new() {
    let fatia = imported();
    let before = fatia.report("2026-09", "node,tenant,workload", "json");
    let check = |to: &str, done: &str, hours: i64| {
        let line = format!("n2,GPU-c,,maintenance,2026-09-05T12:00:00Z,{to}\n");
        declare(&fatia, &line).good().told(&["states: 1 lines read", done]);
        assert_eq!(report(&fatia).total("maintenance"), hours * HOUR, "{to}");
        let shown = fatia.report("2026-09", "node,tenant,workload", "json");
        declare(&fatia, &line).good().told(&["nothing new: 1 lines read"]);
        assert_eq!(fatia.report("2026-09", "node,tenant,workload", "json"), shown);
    };
    check("2026-09-06T12:00:00Z", "1 states declared", 24);
    check("2026-09-05T18:00:00Z", "1 amended", 6);
    // Until further notice, and further than any report.
    check("", "1 amended", 612);
    check("2199-01-01T00:00:00Z", "1 amended", 612);
    check("2026-09-05T12:00:00Z", "1 taken back", 0);
    assert_eq!(fatia.report("2026-09", "node,tenant,workload", "json"), before);
}

#[test]
fn another_source_amends_nothing_of_this_one() {
    let fatia = imported();
    declare(&fatia, GOOD).good();
    let deletes = GOOD.replace("08:00", "06:00");
    declare_with(&fatia, &deletes, &["--source", "cmdb"]).good().told(&["nothing new"]);
    assert_eq!(report(&fatia).total("maintenance"), HOUR);
    declare_with(&fatia, &GOOD.replace("08:00", "09:00"), &["--source", "cmdb"]).good();
    assert_eq!(report(&fatia).total("maintenance"), HOUR + HOUR / 2);
    declare_with(&fatia, &deletes, &["--source", "operator"]).good().told(&["1 taken back"]);
    assert_eq!(report(&fatia).total("maintenance"), HOUR + HOUR / 2);
}

/// A window that was planned and is in progress counts up to now, and goes on counting.
#[test]
fn planned_maintenance_lasts_over_the_present() {
    let fatia = imported();
    let planned = "n2,,,maintenance,2026-09-30T00:00:00Z,2199-01-01T00:00:00Z\n\
                   n2,GPU-c,,maintenance,2198-01-01T00:00:00Z,2198-02-01T00:00:00Z\n\
                   n2,,,maintenance,2198-01-01T00:00:00Z,\n";
    declare(&fatia, planned).good().told(&["3 states declared"]);
    assert_eq!(report(&fatia).total("maintenance"), 24 * HOUR);
    fatia.run(&["worker", "--once"]).good();
    let october = fatia.json("2026-10", "node");
    assert_eq!(october.total("maintenance"), october.in_service());
    assert!(october.in_service() > 0);
}

/// The good line with one thing changed.
fn but(from: &str, to: &str) -> String {
    assert!(GOOD.contains(from), "{from}");
    GOOD.replacen(from, to, 1)
}

#[test]
fn each_bad_line_is_reported_with_its_number_and_reason_and_the_good_ones_are_taken() {
    let times = "2026-09-01T06:00:00Z,2026-09-01T08:00:00Z";
    let table: Vec<(String, &str)> = vec![
        (but("n1", ""), "node is empty"),
        (but("n1", "n3"), "node n3 is not in the inventory"),
        (but("n1,GPU-a", "n3,"), "node n3 is not in the inventory"),
        (but("GPU-a", "GPU-z"), "gpu_uuid GPU-z is not in the inventory"),
        (but("n1", "n2"), "gpu_uuid GPU-a never was in service on node n2"),
        (
            but(times, "2026-09-03T00:00:00Z,"),
            "gpu_uuid GPU-a was not in service on node n1 at any time of 2026-09-03T00:00:00Z/..",
        ),
        (
            but(times, "2026-08-01T00:00:00Z,2026-09-01T00:00:00Z"),
            "gpu_uuid GPU-a was not in service on node n1 at any time of \
             2026-08-01T00:00:00Z/2026-09-01T00:00:00Z",
        ),
        (but("maintenance", ""), "kind is empty"),
        (but("maintenance", "broken"), "kind `broken` is none of: maintenance, migration, unhealthy"),
        (but("GPU-a,", ",gi-3"), "slice is given without a gpu_uuid"),
        (but("GPU-a,,maintenance", ",,migration"), "kind migration needs a gpu_uuid"),
        (but(times, ","), "from is empty"),
        (but(times, "today,"), "from `today` is not an RFC 3339 instant such as 2026-06-01T00:00:00Z"),
        (
            but("08:00:00Z", "08:00:00"),
            "to `2026-09-01T08:00:00` is not an RFC 3339 instant such as 2026-06-01T00:00:00Z",
        ),
        (but("08:00", "05:59"), "to 2026-09-01T05:59:00Z lies before from 2026-09-01T06:00:00Z"),
        (
            format!("n2,GPU-c,,unhealthy,{times}\n").replace("2026-09-01T08", "2199-01-01T00"),
            "to 2199-01-01T00:00:00Z lies in the future; leave it empty for what still lasts",
        ),
        (
            format!("n2,GPU-c,,migration,{times}\n").replace("2026-09-01T08", "2199-01-01T00"),
            "to 2199-01-01T00:00:00Z lies in the future; leave it empty for what still lasts",
        ),
        (
            "n2,GPU-c,,unhealthy,2199-01-01T00:00:00Z,\n".to_owned(),
            "from 2199-01-01T00:00:00Z lies in the future, and unhealthy cannot be planned",
        ),
        (
            "n2,GPU-c,,migration,2199-01-01T00:00:00Z,\n".to_owned(),
            "from 2199-01-01T00:00:00Z lies in the future, and migration cannot be planned",
        ),
        (but("08:00", "09:00"), "maintenance from 2026-09-01T06:00:00Z stands in line 2 with another end"),
        (but("08:00", "06:00"), "maintenance from 2026-09-01T06:00:00Z stands in line 2 with another end"),
        ("n1,GPU-a\n".to_owned(), "has 2 fields, not 6"),
    ];
    let lines: String = table.iter().map(|(line, _)| line.as_str()).collect();
    // The last lines are good: a slice, a kind and a node are keys of their own, and a repeat is one.
    let good = [
        but("GPU-a,", "GPU-a,gi-3"),
        but("maintenance", "unhealthy"),
        but("GPU-a", "").replace("08:00", "07:00"),
        GOOD.to_owned(),
    ];
    let fatia = imported();
    let ran = declare(&fatia, &format!("{GOOD}{lines}{}", good.concat())).ended(3);
    let wanted: Vec<String> = (3..)
        .zip(&table)
        .map(|(number, (_, reason))| format!("states.csv: line {number}: {reason}"))
        .collect();
    assert_eq!(ran.complaints(), wanted);
    let (refused, read) = (table.len(), table.len() + 5);
    let ran =
        ran.told(&[&format!("states: {read} lines read, {refused} refused, 1 repeated; 4 states declared")]);
    assert_eq!(ran.out, "", "what is not a report goes to standard error");
    let report = report(&fatia);
    assert_eq!(report.total("maintenance"), HOUR);
    assert_eq!(report.total("unhealthy"), HOUR);
}

#[test]
fn a_file_that_is_no_table_is_an_error_and_changes_nothing() {
    let fatia = imported();
    let before = fatia.report("2026-09", "node,tenant,workload", "json");
    let check = |content: &str, part: &str| {
        fatia.write("states.csv", content);
        fatia.run(&["import", "states", "states.csv"]).ended(1).told(&["fatia: states.csv: ", part]);
        assert_eq!(fatia.report("2026-09", "node,tenant,workload", "json"), before);
    };
    let known = "known are: node, kind, from, gpu_uuid, slice, to";
    check(
        &format!("{}{GOOD}", HEADER.replace("slice", "gi")),
        &format!("line 1: unknown column `gi`; {known}"),
    );
    check(&format!("{}{GOOD}", HEADER.replace("slice", "kind")), "line 1: column `kind` stands twice");
    check("", "is empty");
    for header in ["kind,from,to\n", "node,from,to\n", "node,kind,to\n"] {
        check(header, "is missing");
    }
    fatia.run(&["import", "states", "nowhere.csv"]).ended(1).told(&["nowhere.csv", "No such file"]);
}

#[test]
fn the_order_of_lines_and_of_columns_does_not_show() {
    let lines = [
        "n1,,,maintenance,2026-09-01T23:00:00Z,2026-09-02T01:00:00Z\n",
        "n1,GPU-a,,unhealthy,2026-09-01T20:00:00Z,2026-09-02T04:00:00Z\n",
        "n1,GPU-a,,unhealthy,2026-09-01T21:10:00Z,\n",
        "n2,GPU-c,,maintenance,2026-09-09T00:00:00Z,\n",
        "n1,GPU-b,,maintenance,2026-09-02T10:00:00Z,2026-09-02T11:00:00Z\n",
    ];
    let shown = |fatia: &Fatia| fatia.report("2026-09", "node,tenant,workload,day", "json");
    let first = imported();
    declare(&first, &lines.concat()).good();
    let mut turned = lines;
    turned.rotate_left(2);
    turned.swap(0, 4);
    let second = imported();
    declare(&second, &turned.concat()).good();
    assert_eq!(shown(&second), shown(&first));
    declare(&second, &lines.concat()).good().told(&["nothing new"]);

    // Only what is needed: three columns, and the others in any order.
    let third = imported();
    third.write("node.csv", "from,kind,node\n2026-09-09T02:00:00+02:00, maintenance ,n2\n");
    third.run(&["import", "states", "node.csv"]).good();
    assert_eq!(report(&third).total("maintenance"), 528 * HOUR);
}

#[test]
fn help_names_the_columns() {
    let help = Fatia::new().run(&["import", "states", "--help"]).good().out;
    for part in ["node,gpu_uuid,slice,kind,from,to", "maintenance, migration or unhealthy", "--source <NAME>"]
    {
        assert!(help.contains(part), "`{part}` is missing in: {help}");
    }
}

#[tokio::test]
async fn on_postgres_it_waits_for_the_worker_and_the_report_is_that_of_sqlite() {
    let database = TestDatabase::fresh().await;
    let server = Fatia::on(&database);
    let lines = "n1,,,maintenance,2026-09-01T23:00:00Z,2026-09-02T01:00:00Z\n\
                 n1,GPU-a,,unhealthy,2026-09-01T20:00:00Z,2026-09-02T04:00:00Z\n";
    server.import_all(INVENTORY, INTERVALS, &["--no-wait"]);
    server.run(&["worker", "--once"]).good();
    declare_with(&server, lines, &["--no-wait"]).good().told(&["2 states declared", "wait for a worker"]);
    assert_eq!(server.json("2026-09", "node").total("maintenance"), 0);
    let worker = server.worker();
    declare(&server, "n1,GPU-b,,maintenance,2026-09-02T10:00:00Z,2026-09-02T11:00:00Z\n").good();
    let embedded = imported();
    declare(&embedded, &format!("{lines}n1,GPU-b,,maintenance,2026-09-02T10:00:00Z,2026-09-02T11:00:00Z\n"))
        .good();
    let shown = |fatia: &Fatia| fatia.report("2026-09", "node,tenant,workload,day", "json");
    assert_eq!(shown(&server), shown(&embedded));
    worker.stop().good();
}
