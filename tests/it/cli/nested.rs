//! Slices inside slices, and the ways of sharing without a profile, from tables to a report.
//!
//! Expected figures are written as in [`boards`](super::boards); those of the boards themselves are in
//! [`layouts`](super::layouts).

use super::boards::{Boards, check, policy, shares};
use super::program::Fatia;

const H100: &str = "H100-80GB";
const RTX: &str = "NVIDIA RTX PRO 6000 Blackwell Server Edition";
/// A 3g at slot 0 leaves 13/28 to another 3g, and 1/14 to nobody.
const BESIDE_3G: &str = "idle none mig 13/28; stranded none mig 1/14";

#[track_caller]
fn check_board(boards: &Boards, parts: &str) {
    check(&shares(&boards.imported()), "n", parts);
}

#[test]
fn declared_replicas_of_a_slice_are_parts_of_it_held_or_not() {
    let slice = "slice gi mode=mig profile=3g.40gb placement=0\n";
    let replica = |name: &str| format!("slice {name} mode=time_slicing replicas=4 parent=gi\n");
    let stated = format!(
        "{slice}{}a slice=r0 mode=time_slicing\n b slice=r2 mode=time_slicing replicas=4 parent=gi",
        ["r0", "r1", "r2", "r3"].map(replica).concat()
    );
    let held = "used a time_slicing 13/112; used b time_slicing 13/112";
    check_board(&Boards::of(H100, &stated), &format!("{held}; idle none time_slicing 2*13/112; {BESIDE_3G}"));
    // Without a line for each of them, the number says it, and what nobody holds is one part.
    let by_number = "mode=time_slicing replicas=4 parent=gi";
    let counted = format!("{slice}a {by_number}\n b {by_number}");
    check_board(&Boards::of(H100, &counted), &format!("{held}; idle none none 13/56; {BESIDE_3G}"));
}

#[test]
fn replicas_of_no_declared_number_share_a_slice_by_who_is_there() {
    let boards = Boards::of(
        H100,
        "slice gi mode=mig profile=3g.40gb placement=0
         a mode=time_slicing parent=gi
         b mode=time_slicing parent=gi end=05:00",
    );
    let parts = format!("used a time_slicing 13/56@5 13/28@5; used b time_slicing 13/56@5; {BESIDE_3G}");
    check_board(&boards, &parts);
}

/// Several holders of one slice without slices of their own share it evenly.
#[test]
fn holders_of_one_slice_share_it() {
    let boards = Boards::of(
        H100,
        "slice gi mode=mig profile=3g.40gb placement=0
         a slice=gi mode=mig
         b slice=gi
         c slice=gi end=05:00",
    );
    let both = "13/84@5 13/56@5";
    let parts = format!("used a mig {both}; used b mig {both}; used c mig 13/84@5; {BESIDE_3G}");
    check_board(&boards, &parts);
}

/// Each a quarter of 2g.48gb, which is half of the board: four times 12 GiB are more than the 48,517 MiB of the
/// instance, so the four together are the whole of its memory.
#[test]
fn vgpus_inside_a_gpu_instance() {
    let vgpu = |name: &str, more: &str| format!("{name} mode=mig_vgpu profile=DC-2-12Q {more}\n");
    let three = |more: &str| ["a", "b", "c"].map(|name| vgpu(name, more)).concat();
    let instance = "slice gi mode=mig profile=2g.48gb+gfx placement=2\n";
    let parts = "used a mig_vgpu 1/8; used b mig_vgpu 1/8; used c mig_vgpu 1/8; \
                 idle none mig_vgpu 1/8; idle none mig 1/2";
    check_board(&Boards::of(RTX, &format!("{instance}{}", three("parent=gi"))), parts);
    // Without a parent they stand in an instance of their profile.
    check_board(&Boards::of(RTX, &three("")), parts);
    // A fifth of them needs a second instance.
    let five = format!("{}{}{}", three(""), vgpu("d", ""), vgpu("e", ""));
    let parts = format!(
        "{}; idle none mig_vgpu 3/8",
        ["a", "b", "c", "d", "e"].map(|name| format!("used {name} mig_vgpu 1/8")).join("; ")
    );
    check_board(&Boards::of(RTX, &five), &parts);
    // A whole instance to one vGPU.
    check_board(&Boards::of(RTX, "a mode=mig_vgpu profile=DC-4-96Q"), "used a mig_vgpu 1");
}

/// Of three compute slices one and two, so a third and two thirds of 3g.40gb.
#[test]
fn compute_instances_share_their_gpu_instance_by_slices() {
    let both = "used a mig 13/84; used b mig 13/42";
    let stated = "slice gi mode=mig profile=3g.40gb placement=4
                  slice ci0 mode=mig profile=1c.3g.40gb parent=gi
                  slice ci1 mode=mig profile=2c.3g.40gb parent=gi
                  a slice=ci0
                  b slice=ci1";
    check_board(&Boards::of(H100, stated), &format!("{both}; idle none mig 15/28"));
    // One that exists and nobody holds.
    let unheld = stated.replace("b slice=ci1", "");
    check_board(&Boards::of(H100, &unheld), "used a mig 13/84; idle none mig 13/42 15/28");
    // One that does not exist: what it would be is idle.
    let absent = unheld.replace("slice ci1 mode=mig profile=2c.3g.40gb parent=gi", "");
    check_board(&Boards::of(H100, &absent), "used a mig 13/84; idle none none 13/42; idle none mig 15/28");
    // By parent, and without a line for the compute instances.
    let by_parent = "slice gi mode=mig profile=3g.40gb placement=4
                     a mode=mig profile=1c.3g.40gb parent=gi
                     b mode=mig profile=2c.3g.40gb parent=gi";
    check_board(&Boards::of(H100, by_parent), &format!("{both}; idle none mig 15/28"));
    // Without a parent they stand in as few instances as hold all; it is put where the most is left.
    let alone = "a mode=mig profile=1c.3g.40gb\n b mode=mig profile=2c.3g.40gb";
    check_board(&Boards::of(H100, alone), &format!("{both}; idle none mig 15/28"));
    // 3c.3g.40gb is all of its instance.
    check_board(
        &Boards::of(H100, "a mode=mig profile=3c.3g.40gb placement=4"),
        "used a mig 13/28; idle none mig 15/28",
    );
}

/// Under `dominant` children can weigh more than their parent together, and are then divided by their sum.
#[test]
fn dominant_children_never_exceed_their_parent() {
    let fatia = Fatia::new();
    fatia.price(&policy("weighting = \"dominant\"")).good();
    let mut boards = Boards::new();
    let clients = "slice gi mode=mig profile=3g.40gb placement=0
                   a mode=mps parent=gi thread_percent=60 memory_limit_mib=10240
                   b mode=mps parent=gi thread_percent=10 memory_limit_mib=30720";
    boards
        .add("over", H100, clients)
        .add("under", H100, &clients.replace("=60", "=20"))
        .add("vgpus", "L40S", "a mode=vgpu profile=L40S-6Q\n b mode=vgpu profile=L40S-6Q")
        .add_mig("mig", H100, "4g.40gb@0 3g.40gb@4");
    boards.import(&fatia).good();
    let report = shares(&fatia);
    // 60 of 100 threads and 30 of 40 GiB: 12/20 and 15/20, so 4/9 and 5/9 of a half.
    check(&report, "over", "used a mps 2/9; used b mps 5/18; idle none mig 1/2");
    // 10 of 40 GiB are more than 20 of 100 threads.
    check(&report, "under", "used a mps 1/8; used b mps 3/8; idle none mig 1/2");
    check(&report, "vgpus", "used a vgpu 1/8; used b vgpu 1/8; idle none vgpu 3/4");
    check(&report, "mig", "used h0 mig 8/15; used h1 mig 7/15");
}

/// A made-up board of 64 GiB: eight times 8 GiB are all of it; ten times 6 GiB leave 4 GiB that nobody can have.
const CATALOGUE: &str = "
[[board]]
key = \"X64\"
memory_mib = 65536

[[vgpu]]
name = \"X64-8Q\"
board_memory_mib = 65536
framebuffer_mib = 8192
max = 8

[[vgpu]]
name = \"X64-6Q\"
board_memory_mib = 65536
framebuffer_mib = 6144
max = 10
";

fn vgpus(profile: &str, count: usize) -> String {
    (0..count).map(|number| format!("v{number} mode=vgpu profile={profile}\n")).collect()
}

fn used(mode: &str, count: usize, share: &str) -> String {
    (0..count).map(|number| format!("used v{number} {mode} {share}; ")).collect()
}

#[test]
fn vgpus_of_one_type_have_a_part_of_as_many_as_fit() {
    let mut boards = Boards::new();
    boards
        .add("l40s", "L40S", &vgpus("L40S-6Q", 4))
        .add("eight", "X64", &vgpus("X64-8Q", 4))
        .add("ten", "X64", &vgpus("X64-6Q", 4))
        .add("other-name", "NVIDIA L40S", &vgpus("nvidia_l40s-24q", 2))
        .add("h200", "H200-141GB", "a mode=vgpu profile=H200X-141C");
    let fatia = boards.imported();
    let report = shares(&fatia);
    check(&report, "l40s", &format!("{}idle none vgpu 1/2", used("vgpu", 4, "1/8")));
    // The type says 144 GiB and its board has 141: it is the whole board, and no more.
    check(&report, "h200", "used a vgpu 1");
    check(&report, "other-name", "used v0 vgpu 1/2; used v1 vgpu 1/2");
    // Until somebody says what it is.
    check(&report, "eight", "unknown none vgpu 1");
    fatia.write("catalogue.toml", CATALOGUE);
    fatia.run(&["catalogue", "load", "catalogue.toml"]).good();
    let report = shares(&fatia);
    check(&report, "eight", &format!("{}idle none vgpu 1/2", used("vgpu", 4, "1/8")));
    // Half of 1/10 and half of 6/64.
    let ten = format!("{}idle none vgpu 186/320; stranded none vgpu 1/32", used("vgpu", 4, "31/320"));
    check(&report, "ten", &ten);
}

/// Beside 40 GiB and 20 GiB fit 20 GiB more. H100XM types have as much of compute as of memory.
#[test]
fn vgpus_of_mixed_sizes_leave_what_the_framebuffer_holds() {
    let mixed = "a mode=vgpu profile=H100XM-40C\n b mode=vgpu profile=H100XM-20C";
    check_board(&Boards::of(H100, mixed), "used a vgpu 1/2; used b vgpu 1/4; idle none vgpu 1/4");
    // Unheld ones exist too.
    let unheld = "slice v0 mode=vgpu profile=H100XM-40C
                  slice v1 mode=vgpu profile=H100XM-20C
                  b slice=v1";
    check_board(&Boards::of(H100, unheld), "used b vgpu 1/4; idle none vgpu 1/2 1/4");
}

/// Of a type of which more run than fit, each has one of those that run.
#[test]
fn more_vgpus_than_fit_are_divided_by_their_sum() {
    let nine = used("vgpu", 9, "1/9");
    check_board(&Boards::of("L40S", &vgpus("L40S-6Q", 9)), nine.trim_end_matches("; "));
}

/// How many of a type fit beside other sizes is not known of an L40S: the framebuffer and the maxima of one size bound it.
#[test]
fn of_types_whose_mixed_maximum_is_not_known_the_framebuffer_decides() {
    let mixed = "a mode=vgpu profile=L40S-24Q\n b mode=vgpu profile=L40S-12Q";
    check_board(&Boards::of("L40S", mixed), "used a vgpu 1/2; used b vgpu 1/4; idle none vgpu 1/4");
}

/// What hangs in a slice that does not exist is unknown, and what others leave of the board with it.
#[test]
fn slices_inside_nothing_are_unknown() {
    let mut boards = Boards::new();
    boards.add("lost", "A10", "a mode=time_slicing parent=nowhere\n b mode=mps thread_percent=25").add(
        "circle",
        "A10",
        "a slice=x parent=y mode=time_slicing\n b slice=y parent=x mode=time_slicing",
    );
    let report = shares(&boards.imported());
    check(&report, "lost", "used b mps 1/4; unknown none time_slicing 3/4");
    check(&report, "circle", "unknown none time_slicing 1");
}

/// Whoever holds the whole board beside others is divided by the sum of all.
#[test]
fn a_whole_board_beside_a_slice_of_it_is_divided_by_their_sum() {
    let both = "a mode=dedicated\n b mode=mig profile=3g.40gb placement=4";
    check_board(&Boards::of(H100, both), "used a dedicated 28/41; used b mig 13/41");
}

/// Under `entitled` an equal share is one of those that run, as long as they do; the other schedulers are as ever.
#[test]
fn an_entitled_equal_share_follows_the_number_that_runs() {
    let mut boards = Boards::new();
    let three = "a mode=vgpu profile=L40S-6Q scheduler=equal_share
                 b mode=vgpu profile=L40S-6Q scheduler=equal_share end=06:00
                 c mode=vgpu profile=L40S-6Q scheduler=equal_share end=02:00";
    boards.add("equal", "L40S", three).add("fixed", "L40S", &three.replace("equal_share", "fixed_share"));
    let fatia = boards.imported();
    let eighths = "used a vgpu 1/8; used b vgpu 1/8@6; used c vgpu 1/8@2; idle none vgpu 5/8@2 3/4@4 7/8@4";
    let report = shares(&fatia);
    check(&report, "equal", eighths);
    check(&report, "fixed", eighths);
    fatia.price(&policy("entitled = true")).good();
    let report = shares(&fatia);
    let running = "used a vgpu 1/3@2 1/2@4 1@4; used b vgpu 1/3@2 1/2@4; used c vgpu 1/3@2";
    check(&report, "equal", running);
    check(&report, "fixed", eighths);
}

/// A vGPU that is bound to a VM that is off does not run.
#[test]
fn an_entitled_share_does_not_count_what_is_off() {
    let boards = Boards::of(
        "L40S",
        "a mode=vgpu profile=L40S-6Q scheduler=equal_share
         b mode=vgpu profile=L40S-6Q scheduler=equal_share
         c mode=vgpu profile=L40S-6Q scheduler=equal_share power=off",
    );
    let fatia = Fatia::new();
    fatia.price(&policy("entitled = true")).good();
    boards.import(&fatia).good();
    let report = shares(&fatia);
    for holder in ["a", "b"] {
        assert_eq!(report.sum(&[("workload", holder), ("state", "used")]), 5_000_000, "{holder}");
    }
}

#[test]
fn mps_clients_have_their_threads_and_their_memory() {
    let mut boards = Boards::new();
    boards
        .add("all", "A10", "a mode=mps\n b mode=mps\n c mode=mps thread_percent=100\n d mode=mps")
        .add("limit", "A10", "a mode=mps thread_percent=50 memory_limit_mib=6144")
        .add("memory", "A10", "a mode=mps memory_limit_mib=6144")
        .add("threads", "A10", "a mode=mps thread_percent=50\n b mode=mps thread_percent=25")
        .add("share", "A10", "a mode=mps share_ppm=125000\n b mode=mps thread_percent=100")
        .add("no-memory", "MI300X", "a mode=mps thread_percent=50 memory_limit_mib=6144")
        .add_with_memory("stated", "MI300X", "192", "a mode=mps thread_percent=50 memory_limit_mib=49152");
    let report = shares(&boards.imported());
    // Four times all threads are divided by their sum.
    let quarters = ["a", "b", "c", "d"].map(|name| format!("used {name} mps 1/4")).join("; ");
    check(&report, "all", &quarters);
    // A half of the threads and a quarter of 24 GiB.
    check(&report, "limit", "used a mps 3/8; idle none none 5/8");
    // All threads and a quarter of the memory.
    check(&report, "memory", "used a mps 5/8; idle none none 3/8");
    check(&report, "threads", "used a mps 1/2; used b mps 1/4; idle none none 1/4");
    check(&report, "share", "used a mps 1/9; used b mps 8/9");
    // What the limit is of, nobody knows: the memory share is that of the threads.
    check(&report, "no-memory", "used a mps 1/2; idle none none 1/2");
    check(&report, "stated", "used a mps 3/8; idle none none 5/8");
}

#[test]
fn partitions_and_replicas_are_one_of_their_number() {
    let mut boards = Boards::new();
    let partition = |name: &str| format!("{name} mode=partition replicas=4\n");
    boards
        .add("three", "MI300X", &["a", "b", "c"].map(partition).concat())
        .add("five", "MI300X", &["a", "b", "c", "d", "e"].map(partition).concat())
        .add("replicas", "A10", "a mode=time_slicing replicas=3")
        .add("alone", "A10", "a mode=time_slicing")
        .add("mixed", "A10", "a mode=time_slicing replicas=4\n b mode=time_slicing share_ppm=500000");
    let report = shares(&boards.imported());
    let used = |share: &str, names: &[&str]| -> String {
        names.iter().map(|name| format!("used {name} partition {share}; ")).collect()
    };
    check(&report, "three", &format!("{}idle none none 1/4", used("1/4", &["a", "b", "c"])));
    // More than were declared: by their sum.
    check(&report, "five", used("1/5", &["a", "b", "c", "d", "e"]).trim_end_matches("; "));
    check(&report, "replicas", "used a time_slicing 1/3; idle none none 2/3");
    check(&report, "alone", "used a time_slicing 1");
    check(&report, "mixed", "used a time_slicing 1/4; used b time_slicing 1/2; idle none none 1/4");
}

#[test]
fn what_is_off_is_idle_unless_the_book_reserves_it() {
    let mut boards = Boards::new();
    boards
        .add(
            "vgpus",
            "L40S",
            "a mode=vgpu profile=L40S-12Q power=off\n b mode=vgpu profile=L40S-12Q power=on",
        )
        .add("whole", "A10", "a mode=passthrough power=off end=05:00\n b mode=passthrough start=05:00")
        .add("mig", H100, "a mode=mig profile=3g.40gb placement=4 power=off");
    let fatia = boards.imported();
    let report = shares(&fatia);
    check(&report, "vgpus", "used b vgpu 1/4; idle none vgpu 1/4 1/2");
    check(&report, "whole", "idle none passthrough 1@5; used b passthrough 1@5");
    check(&report, "mig", "idle none mig 13/28 15/28");
    fatia.price(&policy("reserve_powered_off = true")).good();
    let report = shares(&fatia);
    check(&report, "vgpus", "used a vgpu 1/4; used b vgpu 1/4; idle none vgpu 1/2");
    check(&report, "whole", "used a passthrough 1@5; used b passthrough 1@5");
    check(&report, "mig", "used a mig 13/28; idle none mig 15/28");
}

/// A slice that the table states is one slice, whether the VM that is bound to it runs or not.
#[test]
fn a_stated_slice_that_is_off_is_there_once() {
    let boards = Boards::of(
        H100,
        "slice gi mode=mig profile=3g.40gb placement=4
         a slice=gi power=off",
    );
    let fatia = boards.imported();
    check(&shares(&fatia), "n", "idle none mig 13/28 15/28");
    fatia.price(&policy("reserve_powered_off = true")).good();
    check(&shares(&fatia), "n", "used a mig 13/28; idle none mig 15/28");
}
