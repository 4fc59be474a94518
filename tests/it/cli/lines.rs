//! Bad lines are reported with their number and a reason, and the good ones are taken; a bad file changes nothing.

use super::program::{Fatia, Ran};

const INVENTORY: &str = "\
node,gpu_uuid,gpu_index,gpu_model,gpu_memory_gib,in_service_from,in_service_to
n1,GPU-a,0,A10,24,2026-09-01T00:00:00Z,2026-09-02T00:00:00Z
n1,GPU-b,1,A10,24,2026-09-01T00:00:00Z,2026-09-02T00:00:00Z
n2,GPU-c,0,H100,80,2026-09-01T00:00:00Z,2026-09-02T00:00:00Z
";
const HEADER: &str = "workload,tenant,project,node,gpu_uuid,mode,profile,share_ppm,start,end\n";
const GOOD: &str = "w,t,p,n1,GPU-a,mps,,250000,2026-09-01T00:00:00Z,2026-09-01T08:00:00Z\n";

fn import(intervals: impl AsRef<[u8]>) -> (Fatia, Ran) {
    let fatia = Fatia::new();
    fatia.write("inventory.csv", INVENTORY);
    fatia.write("intervals.csv", intervals);
    let ran = fatia.import();
    (fatia, ran)
}

/// The good line with one thing changed.
fn but(from: &str, to: &str) -> String {
    assert!(GOOD.contains(from), "{from}");
    GOOD.replacen(from, to, 1)
}

#[test]
fn each_bad_line_is_reported_with_its_number_and_reason_and_the_good_ones_are_taken() {
    let mps = "mps,,250000";
    let times = "2026-09-01T00:00:00Z,2026-09-01T08:00:00Z";
    let no_instant = |column: &str, text: &str| {
        format!("{column} `{text}` is not an RFC 3339 instant such as 2026-06-01T00:00:00Z")
    };
    let no_mode = |text: &str| {
        let modes = "passthrough, dedicated, mig, vgpu, mig_vgpu, time_slicing, mps, partition";
        format!("mode `{text}` is none of: {modes}")
    };
    let table: Vec<(String, String)> = vec![
        (but("mps", "quantum"), no_mode("quantum")),
        (but("mps", "MPS"), no_mode("MPS")),
        (but("mps", ""), "mode is empty".to_owned()),
        (but("250000", "0"), "share_ppm 0 is not between 1 and 1000000".to_owned()),
        (but("250000", "1000001"), "share_ppm 1000001 is not between 1 and 1000000".to_owned()),
        (but("250000", "-5"), "share_ppm -5 is not between 1 and 1000000".to_owned()),
        (but("250000", "0.25"), "share_ppm `0.25` is not a whole number".to_owned()),
        (but("250000", "1e3"), "share_ppm `1e3` is not a whole number".to_owned()),
        (but(mps, "mig,,"), "mode mig needs a profile or a share_ppm".to_owned()),
        (but("mps", "dedicated"), "share_ppm 250000: mode dedicated holds the whole device".to_owned()),
        (
            but(mps, "passthrough,1g.10gb,"),
            "profile is given, but mode passthrough holds the whole device".to_owned(),
        ),
        (
            but(mps, "mig,1g.10gb,250000"),
            "both share_ppm and profile are given; one of them says the size".to_owned(),
        ),
        (but("GPU-a", "GPU-z"), "gpu_uuid GPU-z is not in the inventory".to_owned()),
        (but("n1", "n2"), "gpu_uuid GPU-a never was in service on node n2".to_owned()),
        (but("n1", ""), "node is empty".to_owned()),
        (
            but(times, "2026-08-01T00:00:00Z,2026-08-02T00:00:00Z"),
            "gpu_uuid GPU-a was not in service on node n1 at any time of \
             2026-08-01T00:00:00Z/2026-08-02T00:00:00Z"
                .to_owned(),
        ),
        (
            but(times, "2026-09-01T08:00:00Z,2026-09-01T00:00:00Z"),
            "end 2026-09-01T00:00:00Z lies before start 2026-09-01T08:00:00Z".to_owned(),
        ),
        (but(times, "yesterday,"), no_instant("start", "yesterday")),
        (but(times, ","), "start is empty".to_owned()),
        (
            but(times, "2026-09-01T00:00:00Z,2199-01-01T00:00:00Z"),
            "end 2199-01-01T00:00:00Z lies in the future; leave it empty for what still runs".to_owned(),
        ),
        (but(times, "2026-09-01T00:00:00,"), no_instant("start", "2026-09-01T00:00:00")),
        (but(times, "2026-02-30T00:00:00Z,"), no_instant("start", "2026-02-30T00:00:00Z")),
        (but(times, "2026-09-01T00:00:00Z,soon"), no_instant("end", "soon")),
        (but("w,", ","), "workload is empty".to_owned()),
        (but("w,", "  ,"), "workload is empty".to_owned()),
        (but("w,", &format!("{},", "x".repeat(300))), "workload is longer than 256 bytes".to_owned()),
        (but("w,", "a\u{7}b,"), "workload holds a control character".to_owned()),
        (but(",t,", ",a\u{7f}b,"), "tenant holds a control character".to_owned()),
        (but(",t,", ",platform,"), "tenant `platform` is reserved".to_owned()),
        (but(",t,", ",,"), "project is given without a tenant".to_owned()),
        ("w,t,p,n1\n".to_owned(), "has 4 fields, not 10".to_owned()),
        (GOOD.replace('\n', ",x\n"), "has 11 fields, not 10".to_owned()),
        (
            but("250000", "500000"),
            "workload w on GPU-a from 2026-09-01T00:00:00Z stands in line 2 with other values".to_owned(),
        ),
    ];
    let lines: String = table.iter().map(|(line, _)| line.as_str()).collect();
    let last = "last,t,p,n1,GPU-b,mps,,250000,2026-09-01T00:00:00Z,2026-09-01T08:00:00Z\n";
    let (fatia, ran) = import(format!("{HEADER}{GOOD}{lines}{GOOD}{last}"));
    let ran = ran.ended(3);
    let wanted: Vec<String> = (3..)
        .zip(&table)
        .map(|(number, (_, reason))| format!("intervals.csv: line {number}: {reason}"))
        .collect();
    assert_eq!(ran.complaints(), wanted);
    let refused = table.len();
    let ran = ran.told(&[&format!("{} lines read, {refused} refused, 1 repeated", refused + 3)]);
    assert_eq!(ran.out, "", "what is not a report goes to standard error");

    let report = fatia.json("2026-09", "workload");
    assert_eq!(report.in_service(), 72_000_000);
    let used = [("w", 2_000_000), ("last", 2_000_000)];
    for (workload, hours) in used {
        assert_eq!(report.sum(&[("workload", workload)]), hours, "{workload}");
    }
    assert_eq!(report.total("used"), 4_000_000);
}

#[test]
fn text_that_is_not_utf8_is_a_bad_line() {
    let mut file = format!("{HEADER}{GOOD}").into_bytes();
    file.extend_from_slice(b"caf\xe9");
    file.extend_from_slice(GOOD.as_bytes());
    file.extend_from_slice(but("mps", "quantum").as_bytes());
    let (_fatia, ran) = import(file);
    let ran = ran.ended(3);
    let complaints = ran.complaints();
    assert_eq!(complaints.len(), 2, "{ran}");
    assert_eq!(complaints[0], "intervals.csv: line 3: is not UTF-8 text");
    assert!(complaints[1].starts_with("intervals.csv: line 4: mode `quantum`"), "{ran}");
}

#[test]
fn quoted_fields_keep_the_line_numbers_right() {
    let quoted =
        "\"a, b\",\"t \"\"one\"\"\",p,n1,GPU-b,mps,,250000,2026-09-01T00:00:00Z,2026-09-01T08:00:00Z\n";
    let broken = GOOD.replacen("w,", "\"two\nlines\",", 1);
    let bad = but("mps", "quantum");
    let (fatia, ran) = import(format!("{HEADER}{quoted}{broken}{bad}\n\n{bad}{GOOD}"));
    let ran = ran.ended(3);
    let lines: Vec<&str> =
        ran.complaints().iter().map(|line| line.split(": ").nth(1).expect("a number")).collect();
    // A field of two lines counts from its first; empty lines count and are nothing.
    assert_eq!(lines, ["line 3", "line 5", "line 8"], "{ran}");
    let report = fatia.json("2026-09", "tenant,workload");
    assert_eq!(report.sum(&[("tenant", "t \"one\""), ("workload", "a, b")]), 2_000_000);
    assert_eq!(report.sum(&[("tenant", "t"), ("workload", "w")]), 2_000_000);
}

#[test]
fn byte_order_mark_crlf_spaces_and_column_order_do_not_matter() {
    let plain = format!("{HEADER}{GOOD}");
    let spaced = "w , t,  p,n1,GPU-a,mps,, 250000 ,2026-09-01T00:00:00Z,2026-09-01T08:00:00Z\n";
    let turned = "mode,start,end,gpu_uuid,node,share_ppm,workload,tenant,project\n\
                  mps,2026-09-01T02:00:00+02:00,2026-09-01T08:00:00Z,GPU-a,n1,250000,w,t,p";
    let report = |file: String| {
        let (fatia, ran) = import(file);
        ran.good();
        fatia.report("2026-09", "tenant,project,mode,node,workload", "json")
    };
    let wanted = report(plain.clone());
    assert_eq!(report(format!("\u{feff}{}", plain.replace('\n', "\r\n"))), wanted);
    assert_eq!(report(format!("{HEADER}{spaced}")), wanted);
    assert_eq!(report(turned.to_owned()), wanted);
}

/// Whatever is wrong with the file as a whole, the installation stays as it was.
#[test]
fn a_file_that_is_no_table_is_an_error_and_changes_nothing() {
    let check = |name: &str, content: Option<&[u8]>, parts: &[&str]| {
        let fatia = Fatia::new();
        fatia.write("inventory.csv", INVENTORY);
        if let Some(content) = content {
            fatia.write("intervals.csv", content);
        }
        let ran = fatia.import().ended(1).told(&["fatia: intervals.csv: "]).told(parts);
        assert_eq!(ran.err.lines().count(), 1, "{name}: {ran}");
        assert_eq!(fatia.json("2026-09", "state").in_service(), 0, "{name}: nothing is in service");
        // Not even what only shows after the next derivation.
        fatia.run(&["worker", "--once"]).good();
        assert_eq!(fatia.json("2026-09", "state").in_service(), 0, "{name}: nothing is in service");
        let doctor = fatia.run(&["doctor"]).good();
        assert!(doctor.out.contains("journal: 0 batches, 0 rows"), "{name}: {doctor}");
        assert!(doctor.out.contains("not fixed yet"), "{name}: {doctor}");
    };
    let unknown = format!("{}{GOOD}", HEADER.replace("profile", "colour"));
    check(
        "unknown column",
        Some(unknown.as_bytes()),
        &["line 1: unknown column `colour`; known are: ", "mode"],
    );
    let missing = format!("{}{GOOD}", HEADER.replace(",end", ""));
    check("missing column", Some(missing.as_bytes()), &["line 1: column `end` is missing"]);
    let doubled = format!("{}{GOOD}", HEADER.replace("profile", "start"));
    check("doubled column", Some(doubled.as_bytes()), &["line 1: column `start` stands twice"]);
    let semicolons = format!("{HEADER}{GOOD}").replace(',', ";");
    check("semicolons", Some(semicolons.as_bytes()), &["line 1: columns are to be separated by commas"]);
    check("empty file", Some(b""), &["intervals.csv: is empty"]);
    check("not text", Some(b"\xff\xfew\0o\0"), &[]);
    check("no file", None, &["No such file"]);

    let check = |content: Option<&str>, part: &str| {
        let fatia = Fatia::new();
        fatia.write("intervals.csv", format!("{HEADER}{GOOD}"));
        if let Some(content) = content {
            fatia.write("inventory.csv", content);
        }
        fatia.import().ended(1).told(&["fatia: inventory.csv: ", part]);
        fatia.run(&["worker", "--once"]).good();
        assert_eq!(fatia.json("2026-09", "state").in_service(), 0, "nothing is in service");
    };
    check(Some(&INVENTORY.replace("gpu_index", "slot")), "line 1: unknown column `slot`; known are: node");
    check(Some(&INVENTORY.replace("gpu_index", "node")), "line 1: column `node` stands twice");
    check(Some("node,gpu_uuid,gpu_model\n"), "line 1: column `in_service_from` is missing");
    check(Some(""), "inventory.csv: is empty");
    check(None, "No such file");
}

#[test]
fn a_table_without_lines_is_a_history_of_nobody() {
    let (fatia, ran) = import(HEADER);
    ran.good().told(&["0 lines read, 0 refused"]);
    assert_eq!(fatia.json("2026-09", "state").total("idle"), 72_000_000);
}

#[test]
fn bad_lines_of_an_inventory_are_reported_and_the_good_ones_are_taken() {
    let line = |uuid: &str, rest: &str| format!("n1,{uuid},{rest}\n");
    let times = "2026-09-01T00:00:00Z,2026-09-02T00:00:00Z";
    let table: Vec<(String, &str)> = vec![
        (
            line("GPU-a", "0,A10,24,2026-09-01T12:00:00Z,"),
            "device GPU-a is already in service 2026-09-01T00:00:00Z/2026-09-02T00:00:00Z by line 2",
        ),
        (line("GPU-d", &format!("one,A10,24,{times}")), "gpu_index `one` is not a whole number"),
        (line("GPU-d", &format!("0,A10,-24,{times}")), "gpu_memory_gib -24 is not between 1 and 1048576"),
        (line("GPU-d", &format!("0,A10,0,{times}")), "gpu_memory_gib 0 is not between 1 and 1048576"),
        (line("GPU-d", &format!("0,A10,24.5,{times}")), "gpu_memory_gib `24.5` is not a whole number"),
        (line("GPU-d", &format!("0,,24,{times}")), "gpu_model is empty"),
        (line("", &format!("0,A10,24,{times}")), "gpu_uuid is empty"),
        (line("GPU-d", "0,A10,24,,"), "in_service_from is empty"),
        (
            line("GPU-d", "0,A10,24,2026-09-02T00:00:00Z,2026-09-01T00:00:00Z"),
            "in_service_to 2026-09-01T00:00:00Z lies before in_service_from 2026-09-02T00:00:00Z",
        ),
        (
            line("GPU-d", "0,A10,24,2026-09-01T00:00:00Z,2026-09-01T00:00:00Z"),
            "in_service_to is in_service_from: the device is never in service",
        ),
        ("n1,GPU-d\n".to_owned(), "has 2 fields, not 7"),
    ];
    let lines: String = table.iter().map(|(line, _)| line.as_str()).collect();
    let fatia = Fatia::new();
    fatia.write("inventory.csv", format!("{INVENTORY}{lines}"));
    let on_refused = but("GPU-a", "GPU-d");
    fatia.write("intervals.csv", format!("{HEADER}{GOOD}{on_refused}"));
    let ran = fatia.import().ended(3);
    let mut wanted: Vec<String> = (5..)
        .zip(&table)
        .map(|(number, (_, reason))| format!("inventory.csv: line {number}: {reason}"))
        .collect();
    wanted.push("intervals.csv: line 3: gpu_uuid GPU-d is not in the inventory".to_owned());
    assert_eq!(ran.complaints(), wanted);
    assert_eq!(fatia.json("2026-09", "state").in_service(), 72_000_000);
}

#[test]
fn numbers_of_an_inventory_that_cannot_be_are_bad_lines() {
    for (number, column) in [("-1,A10,24", "gpu_index"), ("0,A10,9999999999999999", "gpu_memory_gib")] {
        let fatia = Fatia::new();
        let line = format!("n1,GPU-d,{number},2026-09-01T00:00:00Z,2026-09-02T00:00:00Z\n");
        fatia.write("inventory.csv", format!("{INVENTORY}{line}"));
        fatia.write("intervals.csv", HEADER);
        fatia.import().ended(3).told(&[&format!("inventory.csv: line 5: {column}")]);
        assert_eq!(fatia.json("2026-09", "state").in_service(), 72_000_000);
    }
}

/// The line that contradicts is named by its number, whether it contradicts another line or what is known.
#[test]
fn a_line_of_an_inventory_that_contradicts_is_named() {
    let check = |from: &str, to: &str, reason: &str| {
        let (fatia, ran) = import(format!("{HEADER}{GOOD}"));
        ran.good();
        let before = fatia.report("2026-09", "node,model", "json");
        fatia.write("inventory.csv", INVENTORY.replacen(from, to, 1));
        let ran = fatia.import();
        assert_ne!(ran.code, Some(0), "{ran}");
        assert_eq!(fatia.report("2026-09", "node,model", "json"), before);
        ran.told(&["inventory.csv: line 2: ", reason]);
    };
    check("A10", "A100", "device GPU-a is known as `A10`, not `A100`");
    check("2026-09-01T00:00:00Z", "2026-09-01T12:00:00Z", "device GPU-a is already in service");
    check("n1,GPU-a", "n2,GPU-a", "device GPU-a is in service elsewhere from the same instant");

    let fatia = Fatia::new();
    let other = "n1,GPU-a,0,A100,80,2026-09-05T00:00:00Z,2026-09-06T00:00:00Z\n";
    fatia.write("inventory.csv", format!("{INVENTORY}{other}"));
    fatia.write("intervals.csv", HEADER);
    let ran = fatia.import();
    assert_ne!(ran.code, Some(0), "{ran}");
    ran.told(&["inventory.csv: line 5: device GPU-a", "`A10`", "`A100`"]);
}
