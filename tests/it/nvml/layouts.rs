//! MIG over time: instances that are made and unmade, and what is measured of them.

use std::collections::BTreeMap;

use fatia::domain::usage::Batch;

use super::rig::{MIB, NANOS, Rig, SECOND, add, from_start, one_board, shown, slices};

/// A board in the layout of a real one: the ids are no slots.
pub const MIXED: &str = "type = \"A100-40GB\"
mig = true
instance = [
    { gi = 13, profile = \"1g.5gb\", start = 6, compute = [{ uuid = \"MIG-a\", slot = 0, ci = 7 }] },
    { gi = 3, profile = \"3g.20gb\", start = 0, compute = [
        { uuid = \"MIG-b\", slot = 3, slices = 1 },
        { uuid = \"MIG-c\", slot = 4, ci = 1, slices = 2, start = 1 },
    ] },
]
process = [
    { pid = 21, gi = 13, ci = 7, memory_mib = 100 },
    { pid = 22, gi = 3, ci = 1, memory_mib = 300 },
]";

/// When each slice existed, in seconds after the start.
fn existed(rig: &Rig, batches: &[Batch]) -> BTreeMap<String, Vec<(i64, i64)>> {
    let mut all: BTreeMap<String, Vec<_>> = BTreeMap::new();
    for batch in batches {
        for row in &batch.layout {
            all.entry(shown(&batch.slices[row.slice])).or_default().push(row.span);
        }
    }
    let merged = |spans: Vec<_>| {
        fatia::domain::usage::merged(spans).into_iter().map(|span| rig.seconds(span)).collect()
    };
    all.into_iter().map(|(key, spans)| (key, merged(spans))).collect()
}

#[test]
fn instances_that_are_made_anew_inside_a_window_end_and_begin_to_the_second() {
    let instance = |uuid: &str, span: &str| {
        format!(
            "{{ gi = 2, profile = \"3g.40gb\", start = 4, {span}, compute = [{{ uuid = \"{uuid}\", slot = 1 }}] }}"
        )
    };
    let (old, new) = (instance("MIG-old", "until = \"97s\""), instance("MIG-new", "from = \"101s\""));
    let mut rig =
        Rig::new(&one_board(&format!("type = \"H100-80GB\"\nmig = true\ninstance = [{old}, {new}]")));
    let batches: Vec<Batch> = rig.windows(0, 180).into_iter().map(|window| window.batch).collect();
    let expected = [("mig/3g.40gb MIG-new @4", vec![(101, 180)]), ("mig/3g.40gb MIG-old @4", vec![(0, 97)])];
    assert_eq!(existed(&rig, &batches), expected.map(|(key, spans)| (key.to_owned(), spans)).into());
}

#[test]
fn an_instance_without_a_compute_instance_exists_and_its_making_is_seen_at_once() {
    let mut rig = Rig::new(&one_board(
        "type = \"H100-80GB\"\nmig = true\n\
         instance = [{ gi = 5, profile = \"2g.20gb\", start = 2, from = \"10s\", until = \"20s\" }]",
    ));
    assert!(slices(&rig.standing(9 * SECOND)).is_empty());
    assert_eq!(slices(&rig.standing(10 * SECOND)), ["mig/2g.20gb gi-5 @2"], "the driver told of a change");
    assert_eq!(slices(&rig.standing(19 * SECOND)), ["mig/2g.20gb gi-5 @2"]);
    assert!(slices(&rig.standing(20 * SECOND)).is_empty());
}

#[test]
fn who_is_not_privileged_sees_instances_without_their_places() {
    let mut rig = Rig::new(&format!("privileged = false\n{}", one_board(MIXED)));
    rig.folders.process(21, "/kubepods/pod-a", "python", 1);
    rig.folders.process(22, "/kubepods/pod-b", "python", 2);
    let standing = rig.standing(0);
    assert_eq!(
        slices(&standing),
        [
            "mig/3g.20gb gi-3",
            "mig/1c.3g.20gb MIG-b in gi-3",
            "mig/2c.3g.20gb MIG-c in gi-3",
            "mig/1g.5gb MIG-a"
        ]
    );
    assert!(standing.sees_holders && standing.holders.len() == 2);
}

#[test]
fn activity_of_instances_is_gpms_from_hopper_on_and_none_before() {
    let mut rig = Rig::new(&one_board(
        "type = \"H200-141GB\"\nmig = true
         activity = [{ metric = 2, gi = 5, value = [[\"0s\", 12.5], [\"15s\", 37.5]] }]
         instance = [{ gi = 5, profile = \"1g.18gb\", start = 6, compute = [{ uuid = \"MIG-1\", slot = 0 }] }]
         process = [{ pid = 21, gi = 5, ci = 0, memory_mib = 100 }]",
    ));
    rig.folders.process(21, "/kubepods/pod-a", "python", 1);
    let sums = rig.sums(10, 20);
    assert_eq!(sums["mig/1g.18gb MIG-1 @6"], (Some(5 * NANOS / 8 + 15 * NANOS / 8), Some(1_000 * MIB)));
    let mut rig = Rig::new(&one_board(MIXED));
    rig.folders.process(21, "/kubepods/pod-a", "python", 1);
    rig.folders.process(22, "/kubepods/pod-b", "python", 2);
    let sums = rig.sums(10, 20);
    assert_eq!(sums["mig/1g.5gb MIG-a @6"], (None, Some(1_000 * MIB)));
    assert_eq!(sums["mig/2c.3g.20gb MIG-c in gi-3 /kubepods/pod-b"], (None, Some(3_000 * MIB)));
}

#[test]
fn an_instance_that_is_made_anew_is_not_measured_against_the_old_ones_samples() {
    let instance = |uuid: &str, span: &str| {
        format!(
            "{{ gi = 2, profile = \"1g.18gb\", start = 4, {span}, compute = [{{ uuid = \"{uuid}\", slot = 1 }}] }}"
        )
    };
    let (old, new) = (instance("MIG-old", "until = \"5s\""), instance("MIG-new", "from = \"5s\""));
    let mut rig = Rig::new(&one_board(&format!(
        "type = \"H200-141GB\"\nmig = true\ninstance = [{old}, {new}]\n\
         activity = [{{ metric = 2, gi = 2, value = [[\"0s\", 50.0]] }}]"
    )));
    let sums = rig.sums(0, 10);
    // Of the second in which one became the other, nobody measured either.
    assert_eq!(sums["mig/1g.18gb MIG-old @4"].0, Some(4 * NANOS / 2));
    assert_eq!(sums["mig/1g.18gb MIG-new @4"].0, Some(5 * NANOS / 2));
}

#[test]
fn switching_mig_on_and_off_is_followed_with_all_that_depends_on_it() {
    let board = MIXED
        .replace("mig = true", "mig = [[\"0s\", false], [\"10s\", true], [\"20s\", false]]\nused_mib = 1");
    let mut rig = Rig::new(&one_board(&board));
    rig.folders.process(21, "/kubepods/pod-a", "python", 1);
    rig.folders.process(22, "/kubepods/pod-a", "python", 2);
    assert_eq!(slices(&rig.standing(5 * SECOND)), ["device"]);
    assert_eq!(slices(&rig.standing(10 * SECOND)).len(), 4);
    assert_eq!(slices(&rig.standing(20 * SECOND)), ["device"]);
    rig.look(21 * SECOND);
    let mut sums = super::rig::Sums::new();
    add(&mut sums, &rig.sample);
    assert_eq!(sums["device /kubepods/pod-a"].0, Some(0), "samples are asked for again");
}

#[test]
fn sixteen_boards_of_seven_instances_are_looked_at_in_a_part_of_a_second() {
    let boards: Vec<String> = (0..16)
        .map(|board| {
            let instances: Vec<String> = (0..7)
                .map(|slot| {
                    format!(
                        "{{ gi = {}, profile = \"1g.10gb\", start = {slot}, \
                         compute = [{{ uuid = \"MIG-{board}-{slot}\", slot = {slot} }}] }}",
                        slot + 7
                    )
                })
                .collect();
            let list = instances.join(", ");
            format!(
                "[[board]]\nuuid = \"GPU-{board}\"\ntype = \"H100-80GB\"\nmig = true\ninstance = [{list}]\n"
            )
        })
        .collect();
    let mut rig = Rig::new(&from_start(&boards.concat()));
    rig.look(0);
    let began = std::time::Instant::now();
    for second in 1..=10 {
        rig.look(second * SECOND);
    }
    let took = began.elapsed() / 10;
    println!("a look at 112 instances: {took:?}");
    assert_eq!(rig.sample.devices.iter().map(|look| look.standing.slices.len()).sum::<usize>(), 112);
    assert!(took.as_millis() < 500, "{took:?}");
}
