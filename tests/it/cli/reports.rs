//! Reports as people and programs read them: shape, order and numbers.

use super::program::{Fatia, Report, fixture, micro};
use super::sample::sample;

const INVENTORY: &str = "\
node,gpu_uuid,gpu_model,in_service_from,in_service_to
n1,GPU-a,A10,2026-09-01T00:00:00Z,2026-09-02T00:00:00Z
n2,GPU-b,H100,2026-09-01T00:00:00Z,2026-09-02T00:00:00Z
";
const INTERVALS: &str = "\
workload,tenant,project,node,gpu_uuid,mode,share_ppm,start,end
w1,t,p,n1,GPU-a,mps,333333,2026-09-01T00:00:00Z,2026-09-01T08:00:00Z
w2,t,p,n2,GPU-b,dedicated,,2026-09-01T00:00:00Z,2026-09-01T08:00:00Z
";
const PRICES: &str = "name = \"a\"\ncurrency = \"USD\"\neffective_from = \"2026-09-01T00:00:00Z\"\n\
                      [cost]\nA10 = \"0.62\"\n";

/// Every field in its place, by the byte.
#[test]
fn json_has_these_fields_in_this_order() {
    let fatia = Fatia::new();
    fatia.price(PRICES).good();
    fatia.import_all(INVENTORY, INTERVALS, &[]);
    let report = fatia.report("2026-09", "project,tenant", "json");
    let line = |first: &str, state: &str, hours: &str, unpriced: &str, cost: &str| {
        format!(
            "    {{\n{first}      \"state\": \"{state}\",\n      \"gpu_hours\": \"{hours}\",\n      \
             \"unpriced_gpu_hours\": \"{unpriced}\",\n      \"cost\": {cost},\n      \
             \"metered_gpu_hours\": \"0.000000\",\n      \"energy_joules\": null\n    }}"
        )
    };
    let group = |project: &str, tenant: &str| {
        format!("      \"project\": \"{project}\",\n      \"tenant\": \"{tenant}\",\n")
    };
    let groups = [
        line(&group("none", "platform"), "idle", "37.333336", "16.000000", "\"13.22666832\""),
        line(&group("p", "t"), "used", "10.666664", "8.000000", "\"1.65333168\""),
    ];
    let nothing = |state: &str| line("", state, "0.000000", "0.000000", "\"0\"");
    let totals = [
        nothing("held_unused"),
        line("", "idle", "37.333336", "16.000000", "\"13.22666832\""),
        nothing("maintenance"),
        nothing("rounding"),
        nothing("stranded"),
        nothing("unhealthy"),
        nothing("unknown"),
        line("", "used", "10.666664", "8.000000", "\"1.65333168\""),
    ];
    let wanted = format!(
        "{{\n  \"period\": \"2026-09\",\n  \"from\": \"2026-09-01T00:00:00Z\",\n  \
         \"to\": \"2026-10-01T00:00:00Z\",\n  \"zone\": \"UTC\",\n  \"currency\": \"USD\",\n  \
         \"group_by\": [\n    \"project\",\n    \"tenant\"\n  ],\n  \"groups\": [\n{}\n  \
         ],\n  \"totals\": [\n{}\n  ],\n  \"total\": {{\n    \"gpu_hours\": \"48.000000\",\n    \
         \"unpriced_gpu_hours\": \"24.000000\",\n    \"cost\": \"14.88\",\n    \
         \"metered_gpu_hours\": \"0.000000\",\n    \"energy_joules\": null\n  }},\n  \"reconciliation\": {{\n    \"in_service_gpu_hours\": \"48.000000\",\n    \
         \"parts_gpu_hours\": \"48.000000\",\n    \"difference\": \"0.000000\"\n  }},\n  \
         \"as_of\": \"2026-10-01T00:00:00Z\"\n}}\n",
        groups.join(",\n"),
        totals.join(",\n"),
    );
    assert_eq!(report, wanted);
}

#[test]
fn a_cost_is_null_where_no_hour_has_a_price_and_exact_elsewhere() {
    let fatia = Fatia::new();
    fatia.price(PRICES).good();
    fatia.import_all(INVENTORY, INTERVALS, &[]);
    let report = fatia.json("2026-09", "workload,model");
    let costs: Vec<_> = report
        .groups()
        .into_iter()
        .map(|line| (line.text("workload"), line.text("unpriced_gpu_hours"), line.cost()))
        .collect();
    let wanted = [
        ("none", "0.000000", Some("13.22666832")),
        ("none", "16.000000", None),
        ("w1", "0.000000", Some("1.65333168")),
        ("w2", "8.000000", None),
    ];
    assert_eq!(costs, wanted);
}

#[test]
fn groups_are_in_the_order_of_the_bytes_of_their_fields() {
    let fatia = Fatia::new();
    let mut intervals = "workload,tenant,project,node,gpu_uuid,mode,share_ppm,start,end\n".to_owned();
    let names = ["b", "B", "a b", "a", "ä", "Z", "10", "9", "ab", "a-b", "日本", "a\u{a0}b", "none", "é"];
    for (at, name) in names.iter().enumerate() {
        let other = names[(at + 5) % names.len()];
        intervals.push_str(&format!(
            "{other},{name},{other},n1,GPU-a,mps,50000,2026-09-01T00:00:00Z,2026-09-01T08:00:00Z\n"
        ));
    }
    fatia.import_all(INVENTORY, &intervals, &[]);
    for fields in
        ["tenant", "project,tenant", "workload,project,tenant", "mode,tenant,node", "day,model,tenant"]
    {
        let report = fatia.json("2026-09", fields);
        let keys: Vec<Vec<&str>> = report
            .groups()
            .iter()
            .map(|line| fields.split(',').chain(["state"]).map(|field| line.text(field)).collect())
            .collect();
        assert!(keys.len() > names.len(), "{keys:?}");
        assert!(keys.is_sorted(), "{keys:?}");
        assert!(keys.windows(2).all(|pair| pair[0] != pair[1]), "each group once: {keys:?}");
    }
}

/// A report as it is shipped: `fixtures/cli` has what the sample month looks like.
fn check_against(name: &str, actual: &str) {
    if fixture(&format!("cli/{name}")) == actual {
        return;
    }
    let made = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&made, actual).expect("the build folder takes a file");
    panic!("the report is not tests/fixtures/cli/{name} any more; now it is {}:\n{actual}", made.display());
}

#[test]
fn the_sample_month_looks_like_this() {
    let fatia = sample();
    check_against("sample.txt", &fatia.report("2026-09", "tenant,project,mode", "text"));
    check_against("sample-states.txt", &fatia.report("2026-09", "state", "text"));
    check_against("sample.csv", &fatia.report("2026-09", "tenant,project,mode", "csv"));
    check_against("sample-models.csv", &fatia.report("2026-09", "model,mode", "csv"));
}

#[test]
fn text_and_csv_have_the_numbers_of_json() {
    let fatia = sample();
    let group_by = "tenant,project,mode,model";
    let report = fatia.json("2026-09", group_by);
    let csv = fatia.report("2026-09", group_by, "csv");
    let mut rows = csv::Reader::from_reader(csv.as_bytes());
    let header = rows.headers().expect("a header").clone();
    let wanted =
        "tenant,project,mode,model,state,gpu_hours,unpriced_gpu_hours,cost,metered_gpu_hours,energy_joules";
    assert_eq!(header.iter().collect::<Vec<_>>().join(","), wanted);
    let rows: Vec<csv::StringRecord> = rows.records().collect::<Result<_, _>>().expect("well-formed");
    assert_eq!(rows.len(), report.groups().len());
    let text = fatia.report("2026-09", group_by, "text");
    for (row, line) in rows.iter().zip(report.groups()) {
        for (field, value) in header.iter().zip(row) {
            let same = match field {
                "cost" | "energy_joules" => line.find_text(field).unwrap_or_default(),
                _ => line.text(field),
            };
            assert_eq!(value, same, "{field}");
        }
        let is_this = |shown: &&str| {
            let words: Vec<&str> = shown.split_whitespace().collect();
            row.iter().take(6).all(|value| words.contains(&value))
        };
        assert!(text.lines().any(|shown| is_this(&shown)), "{row:?} is not in:\n{text}");
    }
    for part in ["12414.416666", "2880.000000", "0.000000", "2026-10-01T00:00:00Z", "UTC", "USD", "unpriced"]
    {
        assert!(text.contains(part), "{part} is not in:\n{text}");
    }
}

#[test]
fn csv_cells_are_no_formulas() {
    let fatia = Fatia::new();
    let mut intervals = "workload,tenant,node,gpu_uuid,mode,share_ppm,start,end\n".to_owned();
    let names = ["=cmd()", "+1", "-2", "@here", "＝wide", "a=b", "x, y", "'quoted"];
    for name in names {
        let line = format!("w,\"{name}\",n1,GPU-a,mps,50000,2026-09-01T00:00:00Z,2026-09-01T08:00:00Z\n");
        // Each a workload of its own: the same one with another tenant would contradict itself.
        intervals.push_str(&line.replacen('w', &format!("\"{name}\""), 1));
    }
    fatia.import_all(INVENTORY, &intervals, &[]);
    let csv = fatia.report("2026-09", "tenant,workload", "csv");
    for shown in ["'=cmd(),'=cmd(),", "'+1,", "'-2,", "'@here,", "'＝wide,", "a=b,", "\"x, y\",", "'quoted,"]
    {
        assert!(csv.lines().any(|line| line.starts_with(shown)), "{shown} is not in:\n{csv}");
    }
    // JSON is not for spreadsheets.
    let report = fatia.json("2026-09", "tenant");
    for name in names {
        assert!(report.groups().iter().any(|line| line.text("tenant") == name), "{name}");
    }
}

#[test]
fn a_month_without_anything_in_service_is_empty_and_reconciles() {
    let fatia = Fatia::new();
    for _ in 0..2 {
        for period in ["2026-08", "1999-12", "2026-10"] {
            let report = fatia.json(period, "tenant,project,mode");
            assert_eq!((report.in_service(), report.groups().len()), (0, 0), "{period}");
            assert_eq!(report.totals().len(), 8, "all states, also of nothing");
            let csv = fatia.report(period, "day", "csv");
            assert_eq!(csv, "day,state,gpu_hours,unpriced_gpu_hours,cost,metered_gpu_hours,energy_joules\n");
            let text = fatia.report(period, "day", "text");
            assert!(text.contains("0.000000"), "{text}");
        }
        fatia.import_all(INVENTORY, INTERVALS, &[]);
    }
}

/// Days since 1970, from RFC 3339, and the seconds into the day.
fn seconds(instant: &str) -> i64 {
    chrono::DateTime::parse_from_rfc3339(instant).expect("RFC 3339").timestamp()
}

fn present_month() -> String {
    #[expect(clippy::disallowed_methods, reason = "the open month is the one of the machine's clock")]
    let now = chrono::DateTime::<chrono::Utc>::from(std::time::SystemTime::now());
    now.format("%Y-%m").to_string()
}

#[test]
fn the_open_month_is_counted_until_an_instant_and_reconciles() {
    let (month, report) = loop {
        let month = present_month();
        let first = format!("{month}-01T00:00:00Z");
        let inventory = format!("node,gpu_uuid,gpu_model,in_service_from\nn1,GPU-a,A10,{first}\n");
        let intervals = format!(
            "workload,tenant,node,gpu_uuid,mode,share_ppm,start,end\nw,t,n1,GPU-a,mps,500000,{first},\n"
        );
        let fatia = Fatia::new();
        fatia.import_all(&inventory, &intervals, &[]);
        let report: Report = fatia.json(&month, "tenant");
        // Else a month ended meanwhile.
        if present_month() == month {
            break (month, report);
        }
    };
    let as_of = report.text("as_of");
    assert!(as_of.starts_with(&month) && as_of.ends_with('Z'), "{as_of}");
    let elapsed = seconds(as_of) - seconds(&format!("{month}-01T00:00:00Z"));
    // Whole hours are exact; of the open one the fraction of the second may be missing here.
    let (in_service, counted) = (report.in_service(), elapsed * 1_000_000 / 3_600);
    assert!((counted..=counted + 300).contains(&in_service), "{counted} {in_service}");
    let used = report.sum(&[("tenant", "t")]);
    assert!((in_service / 2 - 2..=in_service / 2).contains(&used), "{in_service} {used}");
    assert_eq!(micro("0.000000"), report.total("unknown"));
}
