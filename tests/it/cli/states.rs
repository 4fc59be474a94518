//! What nobody saw is `unknown` and stays in the sum: outside coverage, and where a profile cannot be read.

use super::program::{Fatia, Report};

const HOUR: i64 = 1_000_000;
const INVENTORY: &str = "\
node,gpu_uuid,gpu_model,in_service_from,in_service_to
n1,GPU-a,A10,2026-09-01T00:00:00Z,2026-10-01T00:00:00Z
n2,GPU-b,A10,2026-09-01T00:00:00Z,2026-10-01T00:00:00Z
";
const HEADER: &str = "workload,tenant,node,gpu_uuid,mode,profile,share_ppm,start,end\n";

#[test]
fn beside_a_profile_the_rest_of_the_device_is_unknown() {
    let fatia = Fatia::new();
    let lines = "slice,t,n1,GPU-a,mig,1g.10gb,,2026-09-01T00:00:00Z,2026-09-01T08:00:00Z\n\
                 share,t,n1,GPU-a,mps,,250000,2026-09-01T04:00:00Z,2026-09-01T12:00:00Z\n";
    fatia.import_all(INVENTORY, &format!("{HEADER}{lines}"), &[]);
    let report = fatia.json("2026-09", "node,mode");
    assert_eq!(report.in_service(), 1440 * HOUR);
    // Four hours of the whole device, then four of what the share left.
    assert_eq!(report.total("unknown"), 7 * HOUR);
    assert_eq!(report.sum(&[("state", "unknown"), ("mode", "mig"), ("node", "n1")]), 7 * HOUR);
    assert_eq!(report.sum(&[("state", "used"), ("mode", "mps")]), 2 * HOUR);
    assert_eq!(report.total("used"), 2 * HOUR);
    assert_eq!(report.total("idle"), 1431 * HOUR);

    let doctor = fatia.run(&["doctor"]).good();
    let finding = doctor.out.lines().find(|line| line.starts_with("notice  finding: unknown_profile"));
    let finding = finding.unwrap_or_else(|| panic!("{doctor}"));
    for part in ["n1/GPU-a", "1g.10gb", "A10", "unknown"] {
        assert!(finding.contains(part), "{finding}");
    }
}

#[test]
fn outside_coverage_time_is_unknown_until_a_later_import_covers_it() {
    let fatia = Fatia::new();
    let before = "before,t,n1,GPU-a,dedicated,,,2026-09-02T00:00:00Z,2026-09-03T00:00:00Z\n";
    let within = "within,t,n1,GPU-a,dedicated,,,2026-09-10T12:00:00Z,2026-09-11T12:00:00Z\n";
    let file = format!("{HEADER}{before}{within}");
    let covers = |span: &'static str| -> [&'static str; 2] { ["--covers", span] };
    let check = |used: i64, idle: i64, unknown: i64| {
        let report = fatia.json("2026-09", "day,node");
        assert_eq!(report.in_service(), 1440 * HOUR);
        assert_eq!(report.total("used"), used * HOUR);
        assert_eq!(report.total("idle"), idle * HOUR);
        assert_eq!(report.total("unknown"), unknown * HOUR);
        report
    };
    // Covered are ten days of both devices; a holding is known also where nothing vouches for its neighbours.
    fatia.import_all(INVENTORY, &file, &covers("2026-09-10T00:00:00Z/2026-09-20T00:00:00Z"));
    let report = check(48, 480 - 24, 1440 - 480 - 24);
    let unknown = |day: &str, node: &str| report.sum(&[("day", day), ("node", node), ("state", "unknown")]);
    assert_eq!(unknown("2026-09-09", "n1"), 24 * HOUR);
    assert_eq!(unknown("2026-09-10", "n1"), 0);
    assert_eq!(unknown("2026-09-19", "n2"), 0);
    assert_eq!(unknown("2026-09-20", "n2"), 24 * HOUR);
    assert_eq!((unknown("2026-09-02", "n1"), unknown("2026-09-02", "n2")), (0, 24 * HOUR));

    // An edge of coverage inside a day, and inside an hour.
    fatia.import_all(INVENTORY, &file, &covers("2026-09-20T00:00:00Z/2026-09-25T12:30:00Z"));
    let report = fatia.json("2026-09", "day,node");
    assert_eq!(report.total("unknown"), (1440 - 480 - 24 - 240 - 25) * HOUR);
    assert_eq!(report.sum(&[("day", "2026-09-25"), ("node", "n1"), ("state", "unknown")]), 11_500_000);
    assert_eq!(report.in_service(), 1440 * HOUR);

    // Without a span the whole in-service time is covered. A new holding in the gap replaces what was unknown.
    let late = "late,t,n2,GPU-b,dedicated,,,2026-09-28T00:00:00Z,2026-09-29T00:00:00Z\n";
    fatia.import_all(INVENTORY, &format!("{file}{late}"), &[]);
    check(72, 1440 - 72, 0);
}

#[test]
fn an_empty_end_is_still_running_whatever_is_covered() {
    let fatia = Fatia::new();
    let line = "w,t,n1,GPU-a,dedicated,,,2026-09-05T00:00:00Z,\n";
    let file = format!("{HEADER}{line}");
    let covers = ["--covers", "2026-09-01T00:00:00Z/2026-09-11T00:00:00Z"];
    fatia.import_all(INVENTORY, &file, &covers);
    assert_eq!(fatia.json("2026-09", "workload").sum(&[("workload", "w")]), 624 * HOUR);
    // Bringing it with other coverage, also with one that ends before it began, cuts nothing off.
    fatia.import_all(INVENTORY, &file, &["--covers", "2026-09-01T00:00:00Z/2026-09-02T00:00:00Z"]);
    assert_eq!(fatia.json("2026-09", "workload").sum(&[("workload", "w")]), 624 * HOUR);
    fatia.import_all(INVENTORY, &file, &[]);
    let report = fatia.json("2026-09", "workload");
    assert_eq!(report.sum(&[("workload", "w")]), 624 * HOUR);
    assert_eq!(report.in_service(), 1440 * HOUR);
}

#[test]
fn a_later_import_of_the_same_start_amends_and_an_equal_end_deletes() {
    let fatia = Fatia::new();
    let line = |tenant: &str, end: &str| {
        format!("{HEADER}w,{tenant},n1,GPU-a,dedicated,,,2026-09-05T00:00:00Z,2026-09-{end}T00:00:00Z\n")
    };
    let check = |file: String, tenant: &str, used: i64| {
        fatia.import_all(INVENTORY, &file, &[]);
        let report = fatia.json("2026-09", "tenant");
        assert_eq!(report.total("used"), used * HOUR);
        assert_eq!(report.sum(&[("tenant", tenant), ("state", "used")]), used * HOUR);
        assert_eq!(report.in_service(), 1440 * HOUR);
    };
    check(line("one", "07"), "one", 48);
    check(line("two", "06"), "two", 24);
    check(line("two", "05"), "two", 0);
    // Bringing the oldest file again is no amendment of what came since.
    check(line("one", "07"), "one", 0);
}

/// For both databases.
pub fn check_moved_ends(import: impl Fn(&str, &str), report: impl Fn(&str) -> Report) {
    let inventory = |end: &str| {
        format!(
            "node,gpu_uuid,gpu_model,in_service_from,in_service_to\n\
             n1,GPU-a,A10,2026-09-01T00:00:00Z,{end}\nn2,GPU-b,A10,2026-09-01T00:00:00Z,2026-10-01T00:00:00Z\n"
        )
    };
    let held = format!("{HEADER}w,t,n1,GPU-a,mps,,500000,2026-09-10T00:00:00Z,2026-09-20T00:00:00Z\n");
    let check = |end: &str, in_service: i64, used: i64| {
        import(&inventory(end), &held);
        let report = report("node");
        assert_eq!(report.sum(&[("node", "n1")]), in_service, "in service until {end}");
        assert_eq!(report.sum(&[("node", "n1"), ("state", "used")]), used, "in service until {end}");
        assert_eq!(
            (report.total("unknown"), report.in_service()),
            (0, in_service + 720 * HOUR),
            "until {end}"
        );
    };
    check("2026-10-01T00:00:00Z", 720 * HOUR, 120 * HOUR);
    check("2026-09-15T12:30:00Z", 348 * HOUR + HOUR / 2, 66 * HOUR + HOUR / 4);
    check("2026-09-25T00:00:00Z", 576 * HOUR, 120 * HOUR);
    check("", 720 * HOUR, 120 * HOUR);
}

#[test]
fn an_inventory_that_moves_an_end_moves_the_time_in_service() {
    let fatia = Fatia::new();
    check_moved_ends(
        |inventory, intervals| _ = fatia.import_all(inventory, intervals, &[]),
        |group_by| {
            let doctor = fatia.run(&["doctor"]).good();
            assert!(!doctor.out.contains("WRONG"), "{doctor}");
            fatia.json("2026-09", group_by)
        },
    );
}

#[test]
fn a_device_that_moves_to_another_node_is_in_service_there() {
    let fatia = Fatia::new();
    let inventory = "node,gpu_uuid,gpu_model,in_service_from,in_service_to\n\
                     n1,GPU-a,A10,2026-09-01T00:00:00Z,2026-09-11T06:30:00Z\n\
                     n2,GPU-a,A10,2026-09-11T06:30:00Z,2026-09-21T00:00:00Z\n";
    let lines = "w,t,n1,GPU-a,dedicated,,,2026-09-11T00:00:00Z,2026-09-12T00:00:00Z\n\
                 x,t,n2,GPU-a,dedicated,,,2026-09-11T00:00:00Z,2026-09-12T00:00:00Z\n";
    fatia.import_all(inventory, &format!("{HEADER}{lines}"), &[]);
    let report = fatia.json("2026-09", "node,workload");
    assert_eq!(report.in_service(), 480 * HOUR);
    assert_eq!(report.sum(&[("node", "n1")]), 246 * HOUR + HOUR / 2);
    // Time outside the in-service interval of the line's node is not counted.
    assert_eq!(report.sum(&[("node", "n1"), ("workload", "w")]), 6 * HOUR + HOUR / 2);
    assert_eq!(report.sum(&[("node", "n2"), ("workload", "x")]), 17 * HOUR + HOUR / 2);
    assert_eq!(report.total("used"), 24 * HOUR);
}
