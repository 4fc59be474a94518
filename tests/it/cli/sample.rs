//! A made-up month: its totals are known by heart.

use super::program::{Fatia, Report, exact, fixture};

/// Its installation.
pub fn sample() -> Fatia {
    let fatia = Fatia::new();
    fatia.price(&fixture("sample/prices.toml")).good().told(&["`demo-2026` revision 1", "published"]);
    let (inventory, intervals) = (fixture("sample/inventory.csv"), fixture("sample/intervals.csv"));
    fatia.import_all(&inventory, &intervals, &[]).told(&["import 1: 332 lines read, 0 refused"]);
    fatia
}

fn check_totals(report: &Report) {
    assert_eq!(report.in_service(), 12_414_416_666);
    let totals: Vec<(&str, i64)> = report
        .totals()
        .iter()
        .map(|line| (line.text("state"), line.gpu_hours()))
        .filter(|(_, hours)| *hours != 0)
        .collect();
    // 15/112 of the MIG trial's GPU was held for six hours, and the rest of it could have been sold.
    let (held, sellable) = (6 * 133_928, 6 * 866_071);
    let wanted = [("idle", 4_369_712_451 + sellable), ("rounding", 562 + 6), ("used", 8_038_703_653 + held)];
    assert_eq!(totals, wanted);
    let unpriced: i64 = report.totals().iter().map(|line| line.unpriced()).sum();
    assert_eq!(unpriced, 2_880_000_000, "all hours of L40S and no others");
    let cost: i128 = report.totals().iter().filter_map(|line| line.cost()).map(exact).sum();
    assert_eq!(cost, exact("18256.06083292"));
    let groups: i128 = report.groups().iter().filter_map(|line| line.cost()).map(exact).sum();
    assert_eq!(groups, cost);
}

#[test]
fn the_sample_month_comes_to_what_the_readme_says() {
    let fatia = sample();
    let report = fatia.json("2026-09", "tenant,project,mode");
    check_totals(&report);
    let course: Vec<_> = report
        .groups()
        .into_iter()
        .filter(|line| (line.text("tenant"), line.text("project")) == ("speech", "course"))
        .map(|line| (line.text("mode"), line.text("gpu_hours"), line.cost()))
        .collect();
    assert_eq!(course, [("time_slicing", "4.999980", Some("3.0999876"))]);
    let mig: Vec<_> = report
        .groups()
        .into_iter()
        .filter(|line| line.text("mode") == "mig")
        .map(|line| (line.text("tenant"), line.text("state"), line.text("gpu_hours"), line.cost()))
        .collect();
    let trial = ("robotics", "used", "0.803568", Some("2.2901688"));
    assert_eq!(mig, [("platform", "idle", "5.196426", Some("14.8098141")), trial]);

    let doctor = fatia.run(&["doctor"]).good();
    assert!(doctor.out.contains("0 differ"), "{doctor}");
    assert!(!doctor.out.contains("WRONG"), "{doctor}");
}

/// Groups neither lose nor move time or money, whatever they are by.
#[test]
fn all_groupings_come_to_the_same_totals() {
    let fatia = sample();
    let fields = ["tenant", "project", "mode", "model", "node", "workload", "day", "state"];
    let mut groupings: Vec<String> = vec![fields.join(","), "workload,model,day".to_owned()];
    for (at, one) in fields.iter().enumerate() {
        groupings.push((*one).to_owned());
        groupings.extend(fields[at + 1..].iter().map(|other| format!("{other},{one}")));
    }
    for group_by in groupings {
        let report = fatia.json("2026-09", &group_by);
        check_totals(&report);
        for total in report.totals() {
            assert_eq!(
                report.sum(&[("state", total.text("state"))]),
                total.gpu_hours(),
                "{group_by}: {total:?}"
            );
        }
    }
}
