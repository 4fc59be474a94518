//! One process at a time has a data directory, and whoever comes second is told who that is.

use super::program::Fatia;

#[test]
fn a_second_process_on_a_data_directory_is_refused_and_told_the_holder() {
    let fatia = Fatia::new();
    let mut holder = fatia.start(&["worker"]);
    holder.until_told("working on");
    let id = holder.id().to_string();
    fatia.write("inventory.csv", "node,gpu_uuid,gpu_model,in_service_from\n");
    fatia.write("intervals.csv", "workload,node,gpu_uuid,mode,start,end\n");
    let commands: [&[&str]; 5] = [
        &["doctor"],
        &["rebuild"],
        &["worker", "--once"],
        &["report", "costs", "--period", "2026-09"],
        &["import", "intervals", "--inventory", "inventory.csv", "intervals.csv"],
    ];
    for command in commands {
        let ran = fatia.run(command).ended(1).told(&["data/fatia.db is in use by", &format!("process {id}")]);
        assert_eq!((ran.out.as_str(), ran.err.lines().count()), ("", 1), "{ran}");
    }
    assert!(holder.is_running(), "the holder does not care");
    holder.stop().good();
    fatia.run(&["doctor"]).good();
}

#[test]
fn a_holder_that_was_killed_leaves_nothing_locked() {
    let fatia = Fatia::new();
    let holder = fatia.start(&["worker"]);
    holder.until_told("working on");
    holder.kill();
    fatia.run(&["doctor"]).good();
}
