//! Each mode from the library to the report: looks, windows, the spool, the journal, parts.

use fatia::domain::units::Instant;
use std::collections::BTreeMap;

use super::rig::{Rig, SECOND, from_start, one_board};
use crate::agent::rig::{Node, TestMachine, hours, http, journal};
use crate::support::api::Api;
use crate::support::platform::{TestPlatform, on_both_databases};

/// Between two looks in these tests, in seconds: an hour of them in a moment.
const EVERY: i64 = 5;
const HOUR_SECONDS: i64 = 3_600;

/// Looks at a host for an hour, sends what was seen, and returns the hours by workload and mode.
async fn told(platform: &TestPlatform, rig: Rig) -> BTreeMap<String, String> {
    let api = Api::of(platform);
    let machine = TestMachine::at(platform.now(), None);
    let node = Node::enrolled(&api, machine, "node-1", "").await;
    let Rig { on, folders, .. } = rig;
    let start = on.sim.now();
    let mut running = node.start_with(node.folder(), on, http(&api));
    running.look(Instant::from_micros(start));
    let mut second = 0;
    while second <= HOUR_SECONDS {
        running.see(Instant::from_micros(start + second * SECOND));
        second += EVERY;
    }
    running.close();
    assert!(running.drain() > 0);
    assert_eq!(running.sender.counts.failures, 0);
    drop(folders);
    let stored = journal(platform, &node.scope()).await;
    assert_eq!((stored.doubled_micros(), stored.gaps.len()), (0, 0));
    platform.tick().await;
    platform.derive().await;
    platform.assert_well().await;
    let all = hours(platform, "workload mode").await;
    all.into_iter().filter(|(key, _)| !key.trim().is_empty()).collect()
}

/// Checks what some workloads come to, and that nothing else was held.
#[track_caller]
fn check(found: &BTreeMap<String, String>, expected: &[(&str, &str)]) {
    let held: BTreeMap<&str, &str> = found
        .iter()
        .filter(|(key, _)| key.contains("pod-") || key.contains("vm-"))
        .map(|(key, hours)| (key.as_str(), hours.as_str()))
        .collect();
    let expected: BTreeMap<&str, &str> = expected.iter().copied().collect();
    assert_eq!(held, expected, "{found:?}");
}

fn two(kind: &str) -> Rig {
    let rig = Rig::new(&one_board(&format!(
        "type = \"H100-80GB\"\npower_mw = 300000\nprocess = [
            {{ pid = 11, {kind} memory_mib = 1000, percent = {{ sm = 30 }}, until = \"30m\" }},
            {{ pid = 12, {kind} memory_mib = 2000, percent = {{ sm = 60 }} }},
        ]"
    )));
    rig.folders.process(11, "/kubepods/pod-a", "python", 1);
    rig.folders.process(12, "/kubepods/pod-b", "python", 2);
    rig
}

on_both_databases! {
    async fn a_dedicated_board_is_its_holders_for_as_long_as_it_is_there(platform: &TestPlatform) {
        let rig = Rig::new(&one_board(
            "type = \"H100-80GB\"\nprocess = [{ pid = 11, memory_mib = 1000, from = \"15m\", until = \"45m\" }]",
        ));
        rig.folders.process(11, "/kubepods/pod-a", "python", 1);
        check(&told(platform, rig).await, &[("/kubepods/pod-a dedicated", "0.500000")]);
    }

    async fn a_board_in_time_slices_is_shared_by_those_who_are_there(platform: &TestPlatform) {
        // Together for half an hour, and then the second one has it alone.
        check(&told(platform, two("")).await, &[
            ("/kubepods/pod-a time_slicing", "0.250000"),
            ("/kubepods/pod-b dedicated", "0.500000"),
            ("/kubepods/pod-b time_slicing", "0.250000"),
        ]);
    }

    async fn clients_of_mps_have_their_threads(platform: &TestPlatform) {
        let rig = two("kinds = [\"mps\"],");
        rig.folders.environment(11, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=20");
        rig.folders.environment(12, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=50");
        check(&told(platform, rig).await, &[
            ("/kubepods/pod-a mps", "0.100000"),
            ("/kubepods/pod-b mps", "0.500000"),
        ]);
    }

    async fn instances_of_mig_are_their_holders_by_their_profiles(platform: &TestPlatform) {
        let rig = Rig::new(&one_board(
            "type = \"H100-80GB\"\nmig = true
             activity = [{ metric = 2, gi = 1, value = [[\"0s\", 80.0]] }]
             instance = [
                { gi = 1, profile = \"3g.40gb\", start = 4, compute = [{ uuid = \"MIG-1\", slot = 0 }] },
                { gi = 2, profile = \"2g.20gb\", start = 0, compute = [
                    { uuid = \"MIG-2\", slot = 1, slices = 1 },
                    { uuid = \"MIG-3\", slot = 2, ci = 1, slices = 1, start = 1 },
                ] },
             ]
             process = [
                { pid = 11, gi = 1, ci = 0, memory_mib = 10 },
                { pid = 12, gi = 2, ci = 1, memory_mib = 10 },
             ]",
        ));
        rig.folders.process(11, "/kubepods/pod-a", "python", 1);
        rig.folders.process(12, "/kubepods/pod-b", "python", 2);
        // Three sevenths and a half: 13/28. Half of two sevenths and a quarter: 15/112.
        check(&told(platform, rig).await, &[("/kubepods/pod-a mig", "0.464285"), ("/kubepods/pod-b mig", "0.133928")]);
    }

    async fn vgpus_are_their_vms(platform: &TestPlatform) {
        let rig = Rig::new(&one_board(
            "type = \"L40S\"\nvirtualization = \"host\"\nvgpu_types = [\"L40S-12Q\"]
             scheduler = { policy = \"fixed_share\" }
             vgpu = [
                { id = 21, type = \"L40S-12Q\", uuid = \"vgpu-a\", vm = { uuid = \"vm-a\" }, percent = { sm = 60 } },
                { id = 22, type = \"L40S-12Q\", uuid = \"vgpu-b\", vm = { uuid = \"vm-b\" }, from = \"30m\" },
             ]",
        ));
        check(&told(platform, rig).await, &[("vm-a vgpu", "0.250000"), ("vm-b vgpu", "0.125000")]);
    }

    async fn vgpus_on_instances_are_their_vms(platform: &TestPlatform) {
        let rig = Rig::new(&one_board(
            "type = \"A100-40GB\"\nmig = true\nvirtualization = \"host\"\nvgpu_types = [\"A100-1-5C\"]
             instance = [{ gi = 7, profile = \"1g.5gb\", start = 0 }, { gi = 9, profile = \"1g.5gb\", start = 1 }]
             vgpu = [{ id = 31, type = \"A100-1-5C\", uuid = \"vgpu-a\", vm = { uuid = \"vm-a\" }, gi = 9 }]",
        ));
        // A seventh of the compute and an eighth of the memory.
        check(&told(platform, rig).await, &[("vm-a mig_vgpu", "0.133928")]);
    }

    async fn a_card_of_a_vm_is_passed_through_to_it(platform: &TestPlatform) {
        let board = "type = \"H100-80GB\"\npci = \"00000000:3B:00.0\"\nabsent = [{ from = \"15m\" }]";
        let rig = Rig::new(&one_board(board));
        rig.folders.card("0000:3b:00.0", "vfio-pci", "42");
        rig.folders.vm(900, "qemu-kvm -uuid vm-7", "42");
        check(&told(platform, rig).await, &[("vm-7 passthrough", "0.750000")]);
    }

    async fn a_lost_board_is_unknown_for_as_long_as_it_is_lost(platform: &TestPlatform) {
        let rig = Rig::new(&from_start(
            "[[board]]\nuuid = \"GPU-1\"\ntype = \"L4\"\nlost = [{ from = \"15m\", until = \"30m\" }]
             index = [[\"30m\", 9]]\nprocess = [{ pid = 11 }]\n[[board]]\nuuid = \"GPU-2\"\ntype = \"L4\"\n",
        ));
        rig.folders.process(11, "/kubepods/pod-a", "python", 1);
        check(&told(platform, rig).await, &[("/kubepods/pod-a dedicated", "0.750000")]);
    }
}
