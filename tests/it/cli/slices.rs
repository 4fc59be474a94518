//! The table of slices and the columns that go with it: repeats, amendments, the order of lines, what is refused, and
//! states that are declared of a slice.

use super::boards::{Boards, check, shares};
use super::program::{Fatia, Ran};

const H100: &str = "H100-80GB";
/// Nested slices, held and not, in several modes.
const LINES: &str = "
    slice gi0 mode=mig profile=3g.40gb placement=4
    slice gi1 mode=mig profile=2g.20gb placement=0 end=06:00
    slice gi2 mode=mig profile=1g.10gb placement=2 start=02:00
    slice r0 mode=time_slicing replicas=2 parent=gi0
    slice r1 mode=time_slicing replicas=2 parent=gi0
    a slice=r0
    b slice=r1 end=04:30
    c slice=gi1 end=06:00
    d mode=mig slice=gi2 profile=1g.10gb placement=2 start=03:00";
fn two_boards() -> Boards {
    let mut boards = Boards::new();
    boards.add("n", H100, LINES).add(
        "m",
        "L40S",
        "slice v0 mode=vgpu profile=L40S-12Q scheduler=best_effort\n e slice=v0 power=on",
    );
    boards
}

fn json(fatia: &Fatia) -> String {
    fatia.report("2026-09", "node,workload,mode,day", "json")
}

#[track_caller]
fn sound(fatia: &Fatia) {
    let doctor = fatia.run(&["doctor"]).good();
    assert!(!doctor.out.contains("WRONG"), "{doctor}");
}

#[test]
fn the_same_three_files_again_are_nothing_new() {
    let boards = two_boards();
    let fatia = boards.imported();
    let before = json(&fatia);
    boards
        .import(&fatia)
        .good()
        .told(&["nothing new: 11 lines read, 0 refused, 0 repeated; 0 batches stored"]);
    assert_eq!(json(&fatia), before);
    fatia.run(&["rebuild"]).good();
    assert_eq!(json(&fatia), before);
    sound(&fatia);
}

#[test]
fn the_order_of_lines_does_not_show() {
    let boards = two_boards();
    let wanted = json(&boards.imported());
    for turn in 1..5 {
        let mut turned = boards.clone();
        turned.slices.rotate_left(turn);
        turned.slices.swap(0, 3);
        turned.intervals.reverse();
        turned.intervals.rotate_left(turn);
        let fatia = turned.imported();
        assert_eq!(json(&fatia), wanted);
        boards.import(&fatia).good().told(&["nothing new"]);
    }
    // Lines twice are lines once.
    let mut doubled = boards.clone();
    doubled.slices.extend(boards.slices.clone());
    doubled.intervals.extend(boards.intervals.clone());
    let fatia = Fatia::new();
    doubled.import(&fatia).good().told(&["22 lines read, 0 refused, 11 repeated"]);
    assert_eq!(json(&fatia), wanted);
}

#[test]
fn what_stands_when_is_decided_by_the_instant() {
    let report = shares(&two_boards().imported());
    // Beside gi0, in 112ths: until 2 slots 2 and 3 are left, for two 1g (30); from 2 to 3 gi2 (15) is unheld; from 2 to
    // 6 slot 3 is left, for 1g (15); from then on slots 0, 1 and 3, for 2g and 1g (45).
    check(
        &report,
        "n",
        "used a time_slicing 13/56; used b time_slicing 13/56@4 13/112@1;
         idle none time_slicing 13/112@1 13/56@5; used c mig 15/56@6; used d mig 15/112@7;
         idle none mig 30/112@2 15/112@1 15/112@4 45/112@4",
    );
    check(&report, "m", "used e vgpu 1/4; idle none vgpu 3/4");
}

/// A slice's end moves when a later import says so, and one whose end is its start never was.
#[test]
fn a_slice_is_amended_and_deleted_by_a_later_import() {
    let lines = |end: &str| {
        Boards::of(
            H100,
            &format!(
                "slice gi mode=mig profile=3g.40gb placement=4 {end}
                 slice other mode=mig profile=1g.10gb placement=0
                 a slice=other"
            ),
        )
    };
    let whole = "used a mig 15/112";
    // Slots 1 to 3 and three compute slices are left: 2g at 2 and 1g.
    let beside = "idle none mig 13/28 45/112";
    // Slots 1 to 7 and six compute slices: 3g at 4, 2g at 2, 1g at 1.
    let without = "idle none mig 97/112";
    let fatia = lines("").imported();
    check(&shares(&fatia), "n", &format!("{whole}; {beside}"));
    lines("end=04:00").import(&fatia).good().told(&["import 2"]);
    let amended = format!("{whole}; idle none mig 13/28@4 45/112@4 97/112@6");
    check(&shares(&fatia), "n", &amended);
    sound(&fatia);
    // The old files again undo nothing.
    lines("").import(&fatia).good().told(&["nothing new"]);
    check(&shares(&fatia), "n", &amended);
    lines("end=00:00").import(&fatia).good().told(&["import 3"]);
    check(&shares(&fatia), "n", &format!("{whole}; {without}"));
    sound(&fatia);
    lines("end=07:00").import(&fatia).good().told(&["import 4"]);
    check(&shares(&fatia), "n", &format!("{whole}; idle none mig 13/28@7 45/112@7 97/112@3"));
    sound(&fatia);
}

/// What nobody held, and was there or not, is unknown where the import does not vouch for it.
#[test]
fn outside_what_an_import_covers_unheld_slices_are_unknown() {
    let boards = Boards::of(
        H100,
        "slice gi mode=mig profile=3g.40gb placement=4
         slice gi1 mode=mig profile=2g.20gb placement=0
         a slice=gi",
    );
    let fatia = Fatia::new();
    boards.write(&fatia);
    let covers = "2026-09-01T00:00:00Z/2026-09-01T05:00:00Z";
    let command = ["import", "intervals", "--inventory", "inventory.csv", "--slices", "slices.csv"];
    fatia.run(&[&command[..], &["--covers", covers, "intervals.csv"]].concat()).good();
    // Beside the unheld 2g two 1g can be added.
    check(&shares(&fatia), "n", "used a mig 13/28; idle none mig 15/56@5 15/56@5; unknown none none 15/28@5");
    sound(&fatia);
}

/// A holding of a slice that a later import brings without the table is a holding of that slice.
#[test]
fn a_later_import_without_the_table_speaks_of_the_same_slice() {
    let fatia =
        Boards::of(H100, "slice gi mode=mig profile=3g.40gb placement=4\n a slice=gi end=05:00").imported();
    let later = Boards::of(H100, "b slice=gi mode=mig profile=3g.40gb start=05:00");
    later.import(&fatia).good();
    check(&shares(&fatia), "n", "used a mig 13/28@5; used b mig 13/28@5; idle none mig 15/28");
}

/// Two holders of one instance, of whom one line alone says where it stands.
#[test]
fn two_lines_of_one_instance_are_one_instance() {
    let boards = Boards::of(
        H100,
        "a slice=gi mode=mig profile=3g.40gb placement=4
         b slice=gi mode=mig profile=3g.40gb",
    );
    check(&shares(&boards.imported()), "n", "used a mig 13/56; used b mig 13/56; idle none mig 15/28");
}

/// The same workload, board and start amend the earlier line as a whole, also where a line now names its slice.
#[test]
fn a_line_that_now_names_its_slice_amends_the_earlier_one() {
    let fatia = Boards::of(H100, "a mode=mig profile=3g.40gb").imported();
    Boards::of(H100, "a mode=mig profile=3g.40gb slice=gi placement=4").import(&fatia).good();
    check(&shares(&fatia), "n", "used a mig 13/28; idle none mig 15/28");
}

/// One instance at one time has one profile.
#[test]
fn lines_of_one_slice_with_different_sizes_are_refused() {
    let boards = Boards::of(
        H100,
        "a slice=gi mode=mig profile=3g.40gb placement=4
         b slice=gi mode=mig profile=1g.10gb placement=0",
    );
    let fatia = Fatia::new();
    boards.import(&fatia).ended(3).told(&["intervals.csv: line 3: "]);
    check(&shares(&fatia), "n", "used a mig 13/28; idle none mig 15/28");
}

fn bad_lines(good: &str, slices: &[(&str, &str)], intervals: &[(&str, &str)]) -> (Fatia, Ran) {
    let mut boards = Boards::of(H100, good);
    let (first_slice, first_interval) = (boards.slices.len() + 2, boards.intervals.len() + 2);
    for (line, _) in slices {
        boards.slices.extend(Boards::of(H100, &format!("slice {line}")).slices);
    }
    for (line, _) in intervals {
        boards.intervals.extend(Boards::of(H100, line).intervals);
    }
    let wanted = |file: &str, first: usize, table: &[(&str, &str)]| -> Vec<String> {
        (first..).zip(table).map(|(at, (_, reason))| format!("{file}: line {at}: {reason}")).collect()
    };
    let fatia = Fatia::new();
    let ran = boards.import(&fatia).ended(3);
    let all = [wanted("slices.csv", first_slice, slices), wanted("intervals.csv", first_interval, intervals)];
    assert_eq!(ran.complaints(), all.concat(), "{ran}");
    assert_eq!(ran.out, "", "what is not a report goes to standard error");
    (fatia, ran)
}

const DAY: &str = "2026-09-01T00:00:00Z/2026-09-01T10:00:00Z";

#[test]
fn each_bad_line_of_the_table_of_slices_is_reported_with_its_reason() {
    let exists = format!("the slice already exists {DAY} by line 2");
    let no_parent =
        |name: &str, span: &str| format!("parent {name} does not exist on GPU-n for all of {span}");
    let late = "2026-09-01T05:00:00Z/2026-09-01T10:00:00Z";
    let (nowhere, lost, ended) = (no_parent("nowhere", DAY), no_parent("lost", DAY), no_parent("gi1", DAY));
    let gi1 = no_parent("gi1", late);
    let table: Vec<(&str, &str)> = vec![
        ("gi mode=mig profile=3g.40gb placement=0", &exists),
        ("gi mode=mig profile=3g.40gb placement=4 start=05:00", &exists),
        ("lost mode=time_slicing replicas=2 parent=nowhere", &nowhere),
        ("x0 mode=time_slicing replicas=2 parent=lost", &lost),
        ("x1 mode=time_slicing replicas=2 parent=gi1", &ended),
        ("x2 mode=time_slicing replicas=2 parent=gi1 start=05:00", &gi1),
        ("x3 mode=mig profile=1g.10gb parent=x3", "parent x3 is the slice itself"),
        (
            "x4 mode=vgpu profile=H100XM-20C placement=0",
            "placement is given, but only a MIG GPU instance has one",
        ),
        (
            "x5 mode=mig profile=1c.3g.40gb parent=gi placement=0",
            "placement is given, but only a MIG GPU instance has one",
        ),
        ("x6 mode=mig profile=1g.10gb placement=64", "placement 64 is not between 0 and 63"),
        ("x7 mode=mig profile=1g.10gb placement=-1", "placement -1 is not between 0 and 63"),
        ("x8 mode=mig profile=1g.10gb placement=two", "placement `two` is not a whole number"),
        ("x9 mode=mig profile=1g.10gb scheduler=best_effort", "scheduler is given, but only a vGPU has one"),
        (
            "y0 mode=vgpu profile=H100XM-20C scheduler=fair",
            "scheduler `fair` is none of: best_effort, equal_share, fixed_share",
        ),
        ("y1 mode=time_slicing replicas=0", "replicas 0 is not between 1 and 1000"),
        ("y2 mode=time_slicing replicas=1001", "replicas 1001 is not between 1 and 1000"),
        ("y3 mode=mps thread_percent=0", "thread_percent 0 is not between 1 and 100"),
        ("y4 mode=mps thread_percent=101", "thread_percent 101 is not between 1 and 100"),
        ("y5 mode=mps memory_limit_mib=0", "memory_limit_mib 0 is not between 1 and 16777216"),
        (
            "y6 mode=mig profile=1g.10gb replicas=2",
            "more than one of share_ppm, profile, replicas and thread_percent is given; one of them says the size",
        ),
        (
            "y7 mode=mig profile=1g.10gb share_ppm=5",
            "both share_ppm and profile are given; one of them says the size",
        ),
        (
            "y8 mode=time_slicing replicas=2 memory_limit_mib=5",
            "memory_limit_mib is given, but only an MPS client has one",
        ),
        (
            "y9 mode=time_slicing thread_percent=5",
            "thread_percent and memory_limit_mib are of mps clients, and mode is time_slicing",
        ),
        ("z0 mode=mps replicas=2", "replicas are of time_slicing and partition, and mode is mps"),
        ("z1 mode=partition", "mode partition needs a share_ppm, or replicas for the number of partitions"),
        ("z2 mode=vgpu", "mode vgpu needs a profile or a share_ppm"),
        ("z3 mode=dedicated", "mode dedicated holds the whole device, and has no slices"),
        (
            "z4 mode=quarter",
            "mode `quarter` is none of: passthrough, dedicated, mig, vgpu, mig_vgpu, time_slicing, mps, partition",
        ),
        ("z5", "mode is empty"),
        ("z6 mode=mps gpu_uuid=GPU-z", "gpu_uuid GPU-z is not in the inventory"),
        (
            "z7 mode=mps start=2026-09-01T08:00:00Z end=07:00",
            "end 2026-09-01T07:00:00Z lies before start 2026-09-01T08:00:00Z",
        ),
        (
            "z8 mode=mps end=2199-01-01T00:00:00Z",
            "end 2199-01-01T00:00:00Z lies in the future; leave it empty for what still runs",
        ),
        ("z9 mode=mps start=2199-01-01T00:00:00Z end=", "start 2199-01-01T00:00:00Z lies in the future"),
        (
            "w0 mode=mig profile=3g.40gb placement=2",
            "H100-80GB cannot be divided so from 2026-09-01T00:00:00Z: 3g.40gb cannot start at slot 2; it may at 0, 4",
        ),
        (
            "w1 mode=mig profile=3g.40gb placement=4",
            "H100-80GB cannot be divided so from 2026-09-01T00:00:00Z: two instances of 1g.10gb@0 + 3g.40gb@4 + \
             3g.40gb@4 stand in the same memory slot",
        ),
    ];
    let good = "slice gi mode=mig profile=3g.40gb placement=4
                slice gi1 mode=mig profile=1g.10gb placement=0 end=08:00";
    let (fatia, _) = bad_lines(good, &table, &[]);
    // Slots 1 to 3 and three compute slices are left: 45; from 8 on 4g.
    check(&shares(&fatia), "n", "idle none mig 13/28 15/112@8 45/112@8 15/28@2");
}

#[test]
fn each_bad_line_of_the_new_columns_is_reported_with_its_reason() {
    let no_parent = format!("parent nowhere does not exist on GPU-n for all of {DAY}");
    let ended = format!("slice gi1 of GPU-n does not exist as it is for all of {DAY}");
    let table: Vec<(&str, &str)> = vec![
        ("x0 slice=nowhere", "slice nowhere of GPU-n does not exist at 2026-09-01T00:00:00Z"),
        ("x1 slice=gi1", &ended),
        ("x2 slice=gi1 start=08:00", "slice gi1 of GPU-n does not exist at 2026-09-01T08:00:00Z"),
        ("x3 slice=gi mode=vgpu", "mode vgpu: slice gi is mig"),
        ("x4 slice=gi mode=mig profile=2g.20gb", "slice gi has another size by the table of slices"),
        ("x5 slice=gi mode=mig placement=0", "placement 0: the table of slices says otherwise of slice gi"),
        ("x6 slice=gi parent=gi1", "parent gi1: the table of slices says otherwise of slice gi"),
        ("x7 mode=time_slicing parent=nowhere", &no_parent),
        (
            "x8 mode=vgpu profile=H100XM-20C placement=0",
            "placement is given, but only a MIG GPU instance has one",
        ),
        ("x9 mode=mig profile=1g.10gb scheduler=best_effort", "scheduler is given, but only a vGPU has one"),
        ("y0 mode=time_slicing replicas=0", "replicas 0 is not between 1 and 1000"),
        ("y1 mode=time_slicing replicas=1.5", "replicas `1.5` is not a whole number"),
        ("y2 mode=mps thread_percent=101", "thread_percent 101 is not between 1 and 100"),
        (
            "y3 mode=time_slicing replicas=2 profile=1g.10gb",
            "more than one of share_ppm, profile, replicas and thread_percent is given; one of them says the size",
        ),
        ("y4 mode=dedicated replicas=2", "replicas is given, but mode dedicated holds the whole device"),
        (
            "y5 mode=passthrough thread_percent=50",
            "thread_percent is given, but mode passthrough holds the whole device",
        ),
        ("y6 mode=mig replicas=2", "replicas are of time_slicing and partition, and mode is mig"),
        ("y7 mode=dedicated power=standby", "power `standby` is none of: on, off"),
        ("y8 mode=mps sm_active_seconds=-1", "sm_active_seconds `-1` is not a decimal number such as 12.5"),
        (
            "y9 mode=mps sm_active_seconds=often",
            "sm_active_seconds `often` is not a decimal number such as 12.5",
        ),
        (
            "z0 mode=mps memory_gib_seconds=1e3",
            "memory_gib_seconds `1e3` is not a decimal number such as 12.5",
        ),
        ("z1", "mode is empty"),
        (
            "z2 mode=mig profile=4g.40gb",
            "H100-80GB cannot be divided so from 2026-09-01T00:00:00Z: 1g.10gb@0 + 3g.40gb@4 + 4g.40gb takes 8 compute \
             slices, and the board has 7",
        ),
    ];
    let good = "slice gi mode=mig profile=3g.40gb placement=4
                slice gi1 mode=mig profile=1g.10gb placement=0 end=08:00
                a slice=gi";
    let (fatia, ran) = bad_lines(good, &[], &table);
    ran.told(&[&format!("{} lines read, {} refused", table.len() + 3, table.len())]);
    check(&shares(&fatia), "n", "used a mig 13/28; idle none mig 15/112@8 45/112@8 15/28@2");
}

#[test]
fn a_table_of_slices_that_is_no_table_is_an_error_and_changes_nothing() {
    let boards = Boards::of(H100, "slice gi mode=mig profile=3g.40gb\n a slice=gi");
    let check = |content: Option<&str>, parts: &[&str]| {
        let fatia = Fatia::new();
        boards.write(&fatia);
        std::fs::remove_file(fatia.path("slices.csv")).expect("it was written");
        if let Some(content) = content {
            fatia.write("slices.csv", content);
        }
        let command = [
            "import",
            "intervals",
            "--inventory",
            "inventory.csv",
            "--slices",
            "slices.csv",
            "intervals.csv",
        ];
        fatia.run(&command).ended(1).told(&["fatia: slices.csv: "]).told(parts);
        assert_eq!(fatia.json("2026-09", "state").in_service(), 0);
    };
    check(None, &["No such file"]);
    check(Some(""), &["is empty"]);
    check(Some("node,gpu_uuid,slice,mode\n"), &["line 1: column `start` is missing"]);
    check(Some("node,gpu_uuid,slice,mode,start,power\n"), &["line 1: unknown column `power`"]);
}

fn declare(fatia: &Fatia, lines: &str) {
    fatia.write("states.csv", format!("node,gpu_uuid,slice,kind,from,to\n{lines}"));
    fatia.run(&["import", "states", "states.csv"]).good();
}

/// Two hours each, one after the other, of one slice and of no other.
#[test]
fn states_of_a_slice_concern_it_alone() {
    let fatia = Boards::of(
        H100,
        "slice held mode=mig profile=3g.40gb placement=4
         slice unheld mode=mig profile=2g.20gb placement=0
         a slice=held
         b mode=mig profile=1g.10gb placement=2",
    )
    .imported();
    let rest = "idle none mig 15/112";
    check(&shares(&fatia), "n", &format!("used a mig 13/28; used b mig 15/112; idle none mig 15/56; {rest}"));
    let state = |slice: &str, kind: &str, from: i64| {
        format!("n,GPU-n,{slice},{kind},2026-09-01T0{from}:00:00Z,2026-09-01T0{}:00:00Z\n", from + 2)
    };
    declare(
        &fatia,
        &[
            state("unheld", "maintenance", 0),
            // What is held is not in maintenance.
            state("held", "maintenance", 2),
            state("held", "unhealthy", 4),
            state("held", "migration", 6),
            state("unheld", "unhealthy", 6),
            state("nobody-s", "unhealthy", 0),
        ]
        .concat(),
    );
    check(
        &shares(&fatia),
        "n",
        &format!(
            "used b mig 15/112; {rest}; maintenance none mig 15/56@2; idle none mig 15/56@6; unhealthy none mig 15/56@2; \
             used a mig 13/28@6; unhealthy a mig 13/28@2; maintenance a mig 13/28@2"
        ),
    );
    sound(&fatia);
}

/// A state of a slice is one of all that is inside it.
#[test]
fn a_state_of_a_slice_concerns_what_is_inside() {
    let lines = "slice gi mode=mig profile=3g.40gb placement=4
                 slice r0 mode=time_slicing replicas=4 parent=gi
                 slice r1 mode=time_slicing replicas=4 parent=gi
                 a slice=r0";
    let fatia = Boards::of(H100, lines).imported();
    let plain = "used a time_slicing 13/112; idle none time_slicing 13/112; idle none none 13/56";
    check(&shares(&fatia), "n", &format!("{plain}; idle none mig 15/28"));
    declare(&fatia, "n,GPU-n,gi,unhealthy,2026-09-01T00:00:00Z,2026-09-01T05:00:00Z\n");
    let report = shares(&fatia);
    assert_eq!(report.sum(&[("workload", "a"), ("state", "unhealthy")]), 5 * 116_071);
    assert_eq!(
        report.sum(&[("mode", "time_slicing"), ("workload", "none"), ("state", "unhealthy")]),
        5 * 116_071
    );
}

/// Also of what nobody holds in it, and for which no slice exists.
#[test]
fn a_state_of_a_slice_concerns_what_is_left_of_it() {
    let lines = "slice gi mode=mig profile=3g.40gb placement=4\n a mode=time_slicing replicas=4 parent=gi";
    let fatia = Boards::of(H100, lines).imported();
    declare(&fatia, "n,GPU-n,gi,unhealthy,2026-09-01T00:00:00Z,\n");
    check(
        &shares(&fatia),
        "n",
        "unhealthy a time_slicing 13/112; unhealthy none none 39/112; idle none mig 15/28",
    );
}
