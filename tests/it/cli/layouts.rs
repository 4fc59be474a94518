//! From tables to a report: what each layout of a board leaves to its holders, as idle and as stranded.
//!
//! Every expected figure is a fraction that was worked out by hand from the catalogue's numbers and the rules; see
//! [`boards`](super::boards) for how it is written.

use super::boards::{Boards, check, policy, shares};
use super::program::Fatia;
use crate::support::postgres::TestDatabase;

const H100: &str = "H100-80GB";
const RTX: &str = "NVIDIA RTX PRO 6000 Blackwell Server Edition";
const WEIGHTINGS: [&str; 4] = ["compute", "memory", "blended", "dominant"];

/// The layouts of a whole H100 80 GB: under each weighting what the instances have, in their order, and behind the bar
/// what is stranded.
const WHOLE: [(&str, [&str; 4]); 5] = [
    (
        "1g.10gb@0 1g.10gb@1 1g.10gb@2 1g.10gb@3 1g.10gb@4 1g.10gb@5 1g.10gb@6",
        [
            "1/7 1/7 1/7 1/7 1/7 1/7 1/7",
            "1/8 1/8 1/8 1/8 1/8 1/8 1/8 | 1/8",
            "15/112 15/112 15/112 15/112 15/112 15/112 15/112 | 1/16",
            "1/7 1/7 1/7 1/7 1/7 1/7 1/7",
        ],
    ),
    ("3g.40gb@0 3g.40gb@4", ["3/7 3/7 | 1/7", "1/2 1/2", "13/28 13/28 | 1/14", "1/2 1/2"]),
    ("4g.40gb@0 3g.40gb@4", ["4/7 3/7", "1/2 1/2", "15/28 13/28", "8/15 7/15"]),
    (
        "1g.20gb@0 1g.20gb@2 1g.20gb@4 1g.20gb@6",
        ["1/7 1/7 1/7 1/7 | 3/7", "1/4 1/4 1/4 1/4", "11/56 11/56 11/56 11/56 | 3/14", "1/4 1/4 1/4 1/4"],
    ),
    (
        "3g.40gb@4 2g.20gb@0 1g.10gb@2 1g.10gb+me@3",
        ["3/7 2/7 1/7 1/7", "1/2 1/4 1/8 1/8", "13/28 15/56 15/112 15/112", "7/15 4/15 2/15 2/15"],
    ),
];

fn whole_layouts() -> Boards {
    let mut boards = Boards::new();
    for (number, (layout, _)) in WHOLE.iter().enumerate() {
        boards.add_mig(&format!("n{number}"), H100, layout);
    }
    boards
}

#[track_caller]
fn check_whole_layouts(fatia: &Fatia, weighting: usize) {
    let report = shares(fatia);
    for (number, (_, wanted)) in WHOLE.iter().enumerate() {
        let (held, stranded) = wanted[weighting].split_once(" | ").unwrap_or((wanted[weighting], ""));
        let held = held.split(' ').enumerate().map(|(at, share)| format!("used h{at} mig {share}"));
        let stranded = (!stranded.is_empty()).then(|| format!("stranded none mig {stranded}"));
        let parts: Vec<String> = held.chain(stranded).collect();
        check(&report, &format!("n{number}"), &parts.join("; "));
    }
}

/// Loading another weighting under the same name divides the past anew, and back again.
#[test]
fn whole_layouts_come_to_the_contract_s_table_under_each_weighting() {
    let fatia = whole_layouts().imported();
    check_whole_layouts(&fatia, 2);
    for (at, weighting) in WEIGHTINGS.iter().enumerate() {
        fatia.price(&policy(&format!("weighting = \"{weighting}\""))).good();
        check_whole_layouts(&fatia, at);
    }
    fatia.price(&policy("weighting = \"blended\"\nalpha = \"0.5\"")).good();
    check_whole_layouts(&fatia, 2);
    fatia.price(&policy("weighting = \"blended\"\nalpha = \"1\"")).good();
    check_whole_layouts(&fatia, 0);
    fatia.price(&policy("weighting = \"blended\"\nalpha = \"0\"")).good();
    check_whole_layouts(&fatia, 1);
    let doctor = fatia.run(&["doctor"]).good();
    assert!(!doctor.out.contains("WRONG"), "{doctor}");
}

/// The figure by which the rule is known: seven sevenths of an H100 for an hour.
#[test]
fn seven_holders_of_1g_have_133_928_each_and_the_rest_is_told() {
    let mut boards = Boards::new();
    boards.add_mig("n", H100, WHOLE[0].0);
    let report = shares(&boards.imported());
    for holder in 0..7 {
        let held = report.sum(&[("workload", &format!("h{holder}")), ("state", "used"), ("mode", "mig")]);
        assert_eq!(held, 10 * 133_928);
    }
    assert_eq!(report.total("stranded"), 10 * 62_500);
    assert_eq!(report.total("rounding"), 10 * 4);
    assert_eq!((report.total("idle"), report.total("unknown")), (0, 0));
}

/// Where no table says which slices exist, those exist that are held.
#[test]
fn holders_alone_make_the_same_layout() {
    let mut stated = whole_layouts();
    let with_table = stated.imported().report("2026-09", "node,workload,mode", "json");
    stated.slices.clear();
    // Without their table the ids are only names.
    assert_eq!(stated.imported().report("2026-09", "node,workload,mode", "json"), with_table);
}

#[tokio::test]
async fn on_postgres_the_layouts_come_to_the_same_bytes() {
    let database = TestDatabase::fresh().await;
    let server = Fatia::on(&database);
    let worker = server.worker();
    let embedded = Fatia::new();
    for fatia in [&server, &embedded] {
        fatia.price(&policy("weighting = \"dominant\"")).good();
        whole_layouts().import(fatia).good();
    }
    check_whole_layouts(&server, 3);
    for format in ["json", "csv", "text"] {
        let shown = |fatia: &Fatia| fatia.report("2026-09", "node,workload,mode,day", format);
        assert_eq!(shown(&server), shown(&embedded));
    }
    worker.stop().good();
}

/// A set of instances that no board can have: its last line is named, and the others are taken.
#[test]
fn layouts_that_cannot_be_are_refused_with_the_reason_and_the_rest_is_taken() {
    // With 2g at 4 and 1g at 6 slot 7 is left, at which nothing may begin.
    let left_at_0 = "idle none mig 13/28 15/56 15/112; stranded none mig 15/112";
    let left_at_4 = "idle none mig 13/28 15/56 15/112 15/112";
    let left_of_4g = "idle none mig 15/28 13/28";
    let table = [
        (
            "3g.40gb@0 2g.20gb 1g.10gb 1g.10gb",
            "1g.10gb + 1g.10gb + 2g.20gb + 3g.40gb@0 leaves no legal start for all of its instances",
            left_at_0,
        ),
        (
            "3g.40gb@4 2g.20gb 1g.10gb 1g.10gb 1g.10gb",
            "1g.10gb + 1g.10gb + 1g.10gb + 2g.20gb + 3g.40gb@4 takes 8 compute slices, and the board has 7",
            left_at_4,
        ),
        ("4g.40gb 4g.40gb", "2 × 4g.40gb, and the board has room for 1", left_of_4g),
    ];
    let (mut stated, mut held) = (Boards::new(), Boards::new());
    for (number, (layout, ..)) in table.iter().enumerate() {
        let node = format!("n{number}");
        let unheld: Vec<String> = layout.split(' ').map(|word| format!("({word})")).collect();
        stated.add_mig(&node, H100, &unheld.join(" "));
        held.add_mig(&node, H100, layout);
    }
    held.slices.clear();
    // Lines 2 to 5, 6 to 10, 11 and 12: the last of each board is one too many.
    let complaints = |file: &str| -> Vec<String> {
        let reasons = [5, 10, 12].into_iter().zip(&table);
        let from = "cannot be divided so from 2026-09-01T00:00:00Z";
        reasons.map(|(line, (_, why, _))| format!("{file}: line {line}: {H100} {from}: {why}")).collect()
    };
    let fatia = Fatia::new();
    let ran = stated.import(&fatia).ended(3).told(&["11 lines read, 3 refused"]);
    assert_eq!(ran.complaints(), complaints("slices.csv"));
    let report = shares(&fatia);
    for (number, (.., parts)) in table.iter().enumerate() {
        check(&report, &format!("n{number}"), parts);
    }

    let fatia = Fatia::new();
    let ran = held.import(&fatia).ended(3).told(&["11 lines read, 3 refused"]);
    assert_eq!(ran.complaints(), complaints("intervals.csv"));
    let report = shares(&fatia);
    check(
        &report,
        "n0",
        "used h0 mig 13/28; used h1 mig 15/56; used h2 mig 15/112; stranded none mig 15/112",
    );
    check(&report, "n1", "used h0 mig 13/28; used h1 mig 15/56; used h2 mig 15/112; used h3 mig 15/112");
    check(&report, "n2", "used h0 mig 15/28; idle none mig 13/28");
}

#[track_caller]
fn check_partial(model: &str, table: &[(&str, &str)]) {
    let mut boards = Boards::new();
    for (number, (layout, _)) in table.iter().enumerate() {
        boards.add_mig(&format!("n{number}"), model, layout);
    }
    let fatia = boards.imported();
    let report = shares(&fatia);
    for (number, (layout, parts)) in table.iter().enumerate() {
        println!("{layout}");
        check(&report, &format!("n{number}"), parts);
    }
}

/// In 112ths under the default weighting: 1g 15, 1g.20gb 22, 2g 30, 3g 52, 4g 60.
#[test]
fn partial_layouts_of_an_h100() {
    check_partial(
        H100,
        &[
            // Slots 4 to 7 are left: 3g, or 2g and 1g.20gb, 52 either way; 8 of memory and compute find no taker.
            ("3g.40gb@0", "used h0 mig 13/28; idle none mig 13/28; stranded none mig 1/14"),
            ("(3g.40gb@0)", "idle none mig 13/28 13/28; stranded none mig 1/14"),
            // Slots 0 to 3 are left, and four compute slices: 4g.
            ("3g.40gb@4", "used h0 mig 13/28; idle none mig 15/28"),
            // Only slots 6 and 7: 1g.20gb is 22, 1g but 15.
            (
                "1g.20gb@0 (1g.20gb@2) 1g.20gb@4",
                "used h0 mig 11/56; used h2 mig 11/56; idle none mig 11/56 11/56; stranded none mig 3/14",
            ),
            // Slot 7 is left, at which nothing may begin.
            (
                "3g.40gb@0 2g.20gb@4 (1g.10gb@6)",
                "used h0 mig 13/28; used h1 mig 15/56; idle none mig 15/112; stranded none mig 15/112",
            ),
            // Slot 3 is left, and one compute slice: 1g.
            (
                "3g.40gb@4 2g.20gb@0 1g.10gb@2",
                "used h0 mig 13/28; used h1 mig 15/56; used h2 mig 15/112; idle none mig 15/112",
            ),
            ("", "idle none none 1"),
            ("(7g.80gb@0)", "idle none mig 1"),
            ("7g.80gb", "used h0 mig 1"),
            // Where it stands is not said. At 4 it leaves room for 4g, at 0 for 3g only: the most is taken.
            ("3g.40gb", "used h0 mig 13/28; idle none mig 15/28"),
        ],
    );
}

/// An A30 has four compute slices and four slots, and each profile as much of the one as of the other: 1g 1/4, 2g 1/2, 4g
/// all. 1g may begin at any slot, so whatever is free can be filled with it, and nothing is ever stranded.
#[test]
fn partial_layouts_of_an_a30() {
    check_partial(
        "A30",
        &[
            ("", "idle none none 1"),
            // Slots 1 to 3: 1g at 1 and 2g at 2, or three 1g.
            ("1g.6gb@0", "used h0 mig 1/4; idle none mig 3/4"),
            // Slots 0 and 3 do not touch: no 2g, but two 1g.
            ("1g.6gb@1 1g.6gb@2", "used h0 mig 1/4; used h1 mig 1/4; idle none mig 1/2"),
            // Slots 0 and 1: 2g.
            ("(2g.12gb@2)", "idle none mig 1/2 1/2"),
            // Slot 1: 1g, though not one more with media engines.
            ("2g.12gb@2 1g.6gb+me@0", "used h0 mig 1/2; used h1 mig 1/4; idle none mig 1/4"),
            ("2g.12gb+me@0 (2g.12gb@2)", "used h0 mig 1/2; idle none mig 1/2"),
            (
                "1g.6gb@0 1g.6gb@1 1g.6gb@2 1g.6gb+me@3",
                "used h0 mig 1/4; used h1 mig 1/4; used h2 mig 1/4; used h3 mig 1/4",
            ),
            ("4g.24gb@0", "used h0 mig 1"),
        ],
    );
}

/// As an A30: four and four. The suffixes do not change a share; `+me.all` leaves the others only profiles without
/// media engines, of which 1g and 2g exist, so nothing is stranded here either.
#[test]
fn partial_layouts_of_an_rtx_pro_6000() {
    check_partial(
        RTX,
        &[
            ("", "idle none none 1"),
            ("1g.24gb@0", "used h0 mig 1/4; idle none mig 3/4"),
            ("2g.48gb+gfx@2", "used h0 mig 1/2; idle none mig 1/2"),
            // Slots 0 and 2 do not touch: two 1g.
            ("1g.24gb+gfx@1 (1g.24gb+me@3)", "used h0 mig 1/4; idle none mig 1/4 1/2"),
            // 1g-me at 1 and 2g-me at 2.
            ("1g.24gb+me.all@0", "used h0 mig 1/4; idle none mig 3/4"),
            // 1g-me at 1.
            ("2g.48gb+me.all@2 1g.24gb-me@0", "used h0 mig 1/2; used h1 mig 1/4; idle none mig 1/4"),
            ("(2g.48gb-me@0) 2g.48gb-me@2", "used h1 mig 1/2; idle none mig 1/2"),
            ("4g.96gb+gfx@0", "used h0 mig 1"),
        ],
    );
}

#[test]
fn a_board_without_its_media_engines_is_refused_a_second_time() {
    let mut boards = Boards::new();
    boards.add_mig("n", RTX, "1g.24gb+me.all@0 1g.24gb@1");
    boards.slices.clear();
    let fatia = Fatia::new();
    boards.import(&fatia).ended(3).told(&["intervals.csv: line 3: ", "gives the media engines away twice"]);
    check(&shares(&fatia), "n", "used h0 mig 1/4; idle none mig 3/4");
}

/// A driver's name for the model, and a resource's for the profile, mean the same.
#[test]
fn names_of_drivers_and_resources_are_matched() {
    let mut boards = Boards::new();
    boards.add("n", "NVIDIA H100 80GB HBM3", "a mode=mig profile=nvidia.com/mig-1g.10gb.me placement=6");
    // Slots 0 to 5 and six compute slices: 4g and 2g are 90, 3g and 2g, which leaves 1 slice and no slot, 82.
    check(&shares(&boards.imported()), "n", "used a mig 15/112; idle none mig 45/56; stranded none mig 1/16");
}

#[test]
fn a_profile_or_model_that_nobody_knows_is_unknown_and_never_the_whole() {
    let mut boards = Boards::new();
    boards
        .add("profile", H100, "a mode=mig profile=1g.11gb placement=0")
        .add("other-profile", H100, "a mode=mig profile=9g.90gb\n b mode=mig profile=3g.40gb placement=0")
        .add("model", "MI300X", "a mode=mig profile=1g.10gb\n b mode=mig profile=1g.10gb")
        .add("vgpu", "L40S", "a mode=vgpu profile=L40S-7Q")
        .add("declared", "MI300X", "a mode=mig share_ppm=125000")
        .add("whole", "MI300X", "a mode=dedicated");
    let report = shares(&boards.imported());
    // 1g.11gb is 1g.10gb as another driver rounds it.
    check(&report, "profile", "used a mig 15/112; idle none mig 97/112");
    check(&report, "other-profile", "used b mig 13/28; unknown none mig 15/28");
    check(&report, "model", "unknown none mig 1");
    check(&report, "vgpu", "unknown none vgpu 1");
    check(&report, "declared", "used a mig 1/8; idle none none 7/8");
    check(&report, "whole", "used a dedicated 1");
}
