//! What stands on a board in each mode: slices, holders, meters.

use fatia::domain::usage::{EvidenceField, SliceSize, VgpuScheduler};

use super::rig::{MIB, NANOS, Rig, SECOND, holders, one_board, slices};

/// A board with processes in two pods, and in the second one two of them.
const SHARED: &str = "type = \"H100-80GB\"\nprocess = [
    { pid = 11, memory_mib = 100, percent = { sm = 30 } },
    { pid = 12, memory_mib = 200, percent = { sm = 20 }, from = \"10s\" },
    { pid = 13, memory_mib = 300, percent = { sm = 5 }, from = \"10s\" },
]";

fn shared() -> Rig {
    let rig = Rig::new(&one_board(SHARED));
    rig.folders.process(11, "/kubepods/pod-a", "python", 100);
    rig.folders.process(12, "/kubepods/pod-b", "server", 200);
    rig.folders.process(13, "/kubepods/pod-b", "worker", 300);
    rig
}

#[test]
fn a_board_with_one_holder_is_dedicated_to_it_and_with_none_to_nobody() {
    let mut rig = Rig::new(&one_board(
        "type = \"L4\"\nprocess = [{ pid = 11, memory_mib = 64, from = \"5s\", until = \"9s\" }]",
    ));
    rig.folders.process(11, "/kubepods/pod-a", "python", 100);
    assert_eq!((slices(&rig.standing(0)), rig.standing(SECOND).holders.len()), (vec![], 0));
    let standing = rig.standing(5 * SECOND);
    assert_eq!(holders(&standing), [("device".to_owned(), "/kubepods/pod-a".to_owned())]);
    let seen = &standing.holders[0].evidence;
    let fields = [EvidenceField::User, EvidenceField::Cgroup, EvidenceField::Process];
    let told = fields.map(|field| seen.get(field).unwrap().to_string());
    assert_eq!(told, ["ana", "/kubepods/pod-a", "python"]);
    assert!(rig.standing(9 * SECOND).holders.is_empty());
}

#[test]
fn holders_that_share_a_board_are_replicas_of_no_declared_number() {
    let mut rig = shared();
    assert_eq!(holders(&rig.standing(0)), [("device".to_owned(), "/kubepods/pod-a".to_owned())]);
    let standing = rig.standing(10 * SECOND);
    assert_eq!(slices(&standing), ["time_slicing/even"]);
    let names: Vec<String> = holders(&standing).into_iter().map(|(_, name)| name).collect();
    assert_eq!(names, ["/kubepods/pod-a", "/kubepods/pod-b"], "processes of one group are one holder");
    assert_eq!(standing.slices[0].size, SliceSize::Even);
}

#[test]
fn what_processes_of_a_holder_use_is_added_up_and_the_board_is_beside_it() {
    let mut rig = shared();
    let sums = rig.sums(10, 20);
    let of = |key: &str| sums[key];
    assert_eq!(of("time_slicing/even /kubepods/pod-a"), (Some(3 * NANOS), Some(1_000 * MIB)));
    assert_eq!(of("time_slicing/even /kubepods/pod-b"), (Some(10 * NANOS / 4), Some(5_000 * MIB)));
    assert_eq!(of("time_slicing/even").0, Some(10 * 55 * NANOS / 100));
}

#[test]
fn a_look_without_a_change_hands_out_the_same_standing() {
    let mut rig = shared();
    let before = rig.standing(11 * SECOND);
    assert!(std::sync::Arc::ptr_eq(&before, &rig.standing(12 * SECOND)));
}

#[test]
fn a_holder_keeps_its_evidence_whichever_of_its_processes_ends() {
    let mut rig = Rig::new(&one_board(
        "type = \"L4\"\nprocess = [{ pid = 11, until = \"5s\" }, { pid = 12 }, { pid = 13, from = \"3s\" }]",
    ));
    for (pid, command) in [(11, "launcher"), (12, "rank-0"), (13, "rank-1")] {
        rig.folders.process(pid, "/kubepods/pod-a", command, u64::from(pid));
    }
    let before = rig.standing(SECOND);
    assert!(std::sync::Arc::ptr_eq(&before, &rig.standing(9 * SECOND)));
}

#[test]
fn clients_of_mps_have_what_their_environment_lets_them() {
    let mut rig = Rig::new(&one_board(
        "type = \"H100-80GB\"\nprocess = [
            { pid = 9 },
            { pid = 11, kinds = [\"mps\"], memory_mib = 100, percent = { sm = 30 } },
            { pid = 12, kinds = [\"mps\", \"compute\"], memory_mib = 200, percent = { sm = 20 } },
            { pid = 13, kinds = [\"mps\"] },
        ]",
    ));
    rig.folders.process(9, "/system.slice/mps.service", "nvidia-cuda-mps-server", 1);
    rig.folders.process(11, "/kubepods/pod-a", "python", 2);
    rig.folders.process(12, "/kubepods/pod-b", "python", 3);
    rig.folders.process(13, "/kubepods/pod-c", "python", 4);
    rig.folders
        .environment(11, "A=1 CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=30 CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=2G");
    rig.folders.environment(12, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=20");
    let standing = rig.standing(0);
    let sizes: Vec<SliceSize> =
        standing.holders.iter().map(|holder| standing.slices[holder.slice].size.clone()).collect();
    let threads = |percent, memory_mib| SliceSize::Threads { percent, memory_mib };
    assert_eq!(sizes, [threads(30, Some(2_048)), threads(20, None), threads(100, None)]);
    assert!(standing.slices.iter().all(|slice| slice.mode.word() == "mps"), "the server holds nothing");
    let sums = rig.sums(1, 10);
    assert_eq!(sums["mps/30percent /kubepods/pod-a"], (Some(3 * NANOS), Some(1_000 * MIB)));
}

#[test]
fn a_board_in_instances_is_its_slices_with_their_places_and_holders() {
    let mut rig = Rig::new(&one_board(super::layouts::MIXED));
    rig.folders.process(21, "/kubepods/pod-a", "python", 1);
    rig.folders.process(22, "/kubepods/pod-b", "python", 2);
    let standing = rig.standing(0);
    assert_eq!(
        slices(&standing),
        [
            "mig/3g.20gb gi-3 @0",
            "mig/1c.3g.20gb MIG-b in gi-3",
            "mig/2c.3g.20gb MIG-c in gi-3",
            "mig/1g.5gb MIG-a @6",
        ]
    );
    let held =
        [("mig/2c.3g.20gb MIG-c in gi-3", "/kubepods/pod-b"), ("mig/1g.5gb MIG-a @6", "/kubepods/pod-a")];
    let mut found = holders(&standing);
    found.sort_by(|a, b| b.0.cmp(&a.0));
    let mut held = held.map(|(slice, name)| (slice.to_owned(), name.to_owned()));
    held.sort_by(|a, b| b.0.cmp(&a.0));
    assert_eq!(found, held);
}

#[test]
fn a_hosts_vgpus_are_slices_of_their_vms_under_each_scheduler() {
    let vgpus = |policy: &str| {
        one_board(&format!(
            "type = \"L40S\"\nvirtualization = \"host\"\nhost_vgpu_mode = \"sriov\"\nvgpu_types = [\"L40S-12Q\"]
             scheduler = {{ policy = \"{policy}\", timeslice_ns = 2000000 }}
             vgpu = [
                {{ id = 21, type = \"L40S-12Q\", uuid = \"vgpu-a\", vm = {{ uuid = \"vm-a\" }}, fb_used_mib = 700, \
                  percent = {{ sm = 60 }} }},
                {{ id = 22, type = \"L40S-12Q\", uuid = \"vgpu-b\", vm = {{ domain = \"4\" }} }},
             ]"
        ))
    };
    for (policy, expected) in [
        ("best_effort", VgpuScheduler::BestEffort),
        ("equal_share", VgpuScheduler::EqualShare),
        ("fixed_share", VgpuScheduler::FixedShare),
    ] {
        let mut rig = Rig::new(&vgpus(policy));
        let standing = rig.standing(0);
        let held = [("vgpu/L40S-12Q vgpu-a", "vm-a"), ("vgpu/L40S-12Q vgpu-b", "4")];
        assert_eq!(holders(&standing), held.map(|(slice, vm)| (slice.to_owned(), vm.to_owned())));
        assert!(standing.scheduler == Some(expected));
        assert!(standing.slices.iter().all(|slice| slice.scheduler == Some(expected)));
        let sums = rig.sums(1, 10);
        assert_eq!(sums["vgpu/L40S-12Q vgpu-a"], (Some(6 * NANOS), Some(7_000 * MIB)));
        assert_eq!(sums["vgpu/L40S-12Q vgpu-b"], (Some(0), Some(0)), "idle was measured");
        let told = rig.on.source.scheduling(&standing.device).unwrap();
        assert_eq!((told.timeslice_nanos, told.average_factor), (2_000_000, None));
    }
}

#[test]
fn vgpus_on_instances_lie_in_them() {
    let mut rig = Rig::new(&one_board(
        "type = \"A100-40GB\"\nmig = true\nvirtualization = \"host\"\nvgpu_types = [\"A100-1-5C\"]
         instance = [
            { gi = 7, profile = \"1g.5gb\", start = 0 },
            { gi = 9, profile = \"1g.5gb\", start = 1 },
         ]
         vgpu = [{ id = 31, type = \"A100-1-5C\", uuid = \"vgpu-a\", vm = { uuid = \"vm-a\" }, gi = 9 }]",
    ));
    let standing = rig.standing(0);
    assert_eq!(
        slices(&standing),
        ["mig/1g.5gb gi-7 @0", "mig/1g.5gb gi-9 @1", "mig_vgpu/A100-1-5C vgpu-a in gi-9"]
    );
    let held = ("mig_vgpu/A100-1-5C vgpu-a in gi-9".to_owned(), "vm-a".to_owned());
    assert_eq!(holders(&standing), [held]);
    // Utilization of vGPUs is not told under MIG: none, and not 0.
    let sums = rig.sums(1, 5);
    assert_eq!(sums["mig_vgpu/A100-1-5C vgpu-a in gi-9"].0, None);
}
