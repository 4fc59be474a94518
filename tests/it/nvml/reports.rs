//! Each mode from the library to the report: looks, windows, the spool, the journal, parts.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fatia::agent::clock::ServerClock;
use fatia::agent::identity::Identity;
use fatia::agent::run::{Agent, Settings};
use fatia::domain::period::Span;
use fatia::domain::units::Instant;
use fatia::services::pricing;

use super::rig::{MIB, NANOS, Rig, SECOND, from_start, one_board};
use crate::agent::rig::{Node, TestMachine, hours, http, journal};
use crate::support::api::Api;
use crate::support::platform::{TestPlatform, on_both_databases};

/// Between two looks in these tests, in seconds: an hour of them in a moment.
const EVERY: i64 = 5;
const HOUR_SECONDS: i64 = 3_600;

/// What a service was told of an hour.
struct Told {
    /// By workload and mode.
    hours: BTreeMap<String, String>,
    /// Seconds of activity, and MiB held in the mean, by slice and holder.
    measured: BTreeMap<String, (i64, i64)>,
}

/// Looks at a host for an hour, and sends what was seen.
async fn told(platform: &TestPlatform, rig: Rig) -> Told {
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
    let mean = |(active, held): (i64, i64)| (active / NANOS, held / MIB / HOUR_SECONDS);
    let measured = stored.measured.into_iter().map(|(key, sums)| (key, mean(sums)));
    Told { hours: hours(platform, "workload mode").await, measured: measured.collect() }
}

/// Checks what some workloads come to, and that nothing else was held.
#[track_caller]
fn check(found: &Told, expected: &[(&str, &str)]) {
    let held: BTreeMap<&str, &str> = found
        .hours
        .iter()
        .filter(|(key, _)| key.contains("pod-") || key.contains("vm-"))
        .map(|(key, hours)| (key.as_str(), hours.as_str()))
        .collect();
    let expected: BTreeMap<&str, &str> = expected.iter().copied().collect();
    assert_eq!(held, expected, "{:?}", found.hours);
}

/// Checks what was measured of a slice and its holder, which a key names in part.
#[track_caller]
fn check_measured(found: &Told, key: &str, expected: (i64, i64)) {
    let all: Vec<_> = found.measured.iter().filter(|(each, _)| each.contains(key)).collect();
    assert!(
        matches!(all.as_slice(), [(_, measured)] if **measured == expected),
        "{key}: {:?}",
        found.measured
    );
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
        let found = told(platform, two("")).await;
        check(&found, &[
            ("/kubepods/pod-a time_slicing", "0.250000"),
            ("/kubepods/pod-b dedicated", "0.500000"),
            ("/kubepods/pod-b time_slicing", "0.250000"),
        ]);
        check_measured(&found, "time_slicing/even  user=ana cgroup=/kubepods/pod-a", (1_800 * 3 / 10, 500));
        check_measured(&found, "device  user=ana cgroup=/kubepods/pod-b", (1_800 * 6 / 10, 1_000));
    }

    async fn clients_of_mps_have_their_threads(platform: &TestPlatform) {
        let rig = two("kinds = [\"mps\"],");
        rig.folders.environment(11, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=20");
        rig.folders.environment(12, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=50");
        let found = told(platform, rig).await;
        check(&found, &[("/kubepods/pod-a mps", "0.100000"), ("/kubepods/pod-b mps", "0.500000")]);
        check_measured(&found, "cgroup=/kubepods/pod-b", (3_600 * 6 / 10, 2_000));
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
        let found = told(platform, rig).await;
        check(&found, &[("/kubepods/pod-a mig", "0.464285"), ("/kubepods/pod-b mig", "0.133928")]);
        check_measured(&found, "mig/3g.40gb MIG-1 ", (3_600 * 8 / 10, 10));
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
        let found = told(platform, rig).await;
        check(&found, &[("vm-a vgpu", "0.250000"), ("vm-b vgpu", "0.125000")]);
        check_measured(&found, "vgpu/L40S-12Q vgpu-a ", (3_600 * 6 / 10, 0));
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

    async fn charged_by_use_each_mode_is_what_its_meters_measured(platform: &TestPlatform) {
        let rig = Rig::new(&from_start(
            "[[board]]\nuuid = \"GPU-1\"\ntype = \"H100-80GB\"\nmig = true
             activity = [{ metric = 2, gi = 1, value = [[\"0s\", 80.0]] }]
             instance = [{ gi = 1, profile = \"3g.40gb\", start = 4, compute = [{ uuid = \"MIG-1\", slot = 0 }] }]
             process = [{ pid = 11, gi = 1, ci = 0, memory_mib = 10 }]
             [[board]]\nuuid = \"GPU-2\"\ntype = \"L4\"\nprocess = [{ pid = 12, percent = { sm = 40 } }]
             [[board]]\nuuid = \"GPU-3\"\ntype = \"L40S\"\nvirtualization = \"host\"\nvgpu_types = [\"L40S-12Q\"]
             vgpu = [{ id = 21, type = \"L40S-12Q\", uuid = \"vgpu-a\", vm = { uuid = \"vm-a\" }, percent = { sm = 10 } }]
             [[board]]\nuuid = \"GPU-4\"\ntype = \"L4\"
             process = [{ pid = 13, percent = { sm = 20 } }, { pid = 14, percent = { sm = 30 } }]",
        ));
        for pid in 11..=14 {
            rig.folders.process(pid, &format!("/kubepods/pod-{pid}"), "python", 1);
        }
        let found = told(platform, rig).await;
        assert!(!found.hours.is_empty());
        let modes = ["mig", "dedicated", "vgpu", "time_slicing"].map(|mode| format!("{mode} = \"usage\"\n"));
        let book = format!(
            "name = \"june\"\ncurrency = \"USD\"\neffective_from = \"2026-06-01T00:00:00Z\"\n[cost]\nL4 = \"1\"\n\
             [policy]\nweighting = \"compute\"\n[policy.basis]\n{}",
            modes.concat()
        );
        pricing::load(platform, "prices.toml", &book).await.expect("a good book");
        platform.derive().await;
        platform.assert_well().await;
        let used = hours(platform, "workload state").await;
        let of = |key: &str| used.get(key).map(String::as_str);
        // Four fifths of three sevenths, and the rest of them.
        assert_eq!((of("/kubepods/pod-11 used"), of("/kubepods/pod-11 held_unused")), (Some("0.342857"), Some("0.085714")));
        assert_eq!((of("/kubepods/pod-12 used"), of("/kubepods/pod-12 held_unused")), (Some("0.400000"), Some("0.600000")));
        assert_eq!((of("vm-a used"), of("vm-a held_unused")), (Some("0.100000"), Some("0.150000")));
        assert_eq!((of("/kubepods/pod-13 used"), of("/kubepods/pod-13 held_unused")), (Some("0.200000"), Some("0.300000")));
        assert_eq!((of("/kubepods/pod-14 used"), of("/kubepods/pod-14 held_unused")), (Some("0.300000"), Some("0.200000")));
    }

    async fn a_whole_agent_waits_for_its_driver_and_tells_of_its_gpus_when_they_come(platform: &TestPlatform) {
        let api = Api::of(platform);
        let machine = TestMachine::at(platform.now(), Some(platform.clock.clone()));
        let node = Node::enrolled(&api, Arc::clone(&machine), "node-1", "").await;
        let scenario = format!(
            "start = \"{}\"\ninit = [{{ code = 9, until = \"150s\" }}]\n[[board]]\nuuid = \"GPU-1\"\ntype = \"L4\"\n\
             process = [{{ pid = 11, until = \"400s\", percent = {{ sm = 50 }} }}]",
            platform.now()
        );
        let rig = Rig::new(&scenario);
        rig.folders.process(11, "/kubepods/pod-a", "python", 1);
        let begun = platform.now();
        let stop = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&stop);
        machine.after(601 * SECOND, move || ended.store(true, Ordering::Release));
        let identity = Identity::load(node.folder()).expect("it reads").expect("it was saved");
        let work = Agent {
            settings: Settings {
                folder: node.folder().to_owned(),
                budget: node.budget,
                keep_acknowledged_micros: node.keep_micros,
                sample_every: Duration::from_secs(1),
                batch_windows: 512,
            },
            clock: ServerClock::restored(&identity.clock),
            source: rig.on,
            identity,
            upstream: http(&api),
            machine: node.machine.clone(),
            stop,
        };
        let counts = tokio::task::spawn_blocking(move || work.run()).await.expect("it ends").expect("its disk is well");
        assert_eq!((counts.failures, counts.set_aside), (0, 0));
        drop(rig.folders);
        let held = journal(platform, &node.scope()).await.held();
        // Tried at 0, 60, 120 and 180 seconds.
        let expected = Span::clamped(begun.plus_micros(180 * SECOND), begun.plus_micros(400 * SECOND));
        let found: Vec<Vec<Span>> = held.into_values().collect();
        assert_eq!(found, [[expected]]);
        platform.tick().await;
        platform.derive().await;
        platform.assert_well().await;
        let findings = platform.findings().await;
        assert!(findings.is_empty(), "{findings:?}");
    }
}
