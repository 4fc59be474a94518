//! What the wrapper makes of the library's answers, with its traps as they are today: where one of these
//! fails after an update, code that works round the trap can go.

use nvml_wrapper::Nvml;
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enums::device::{SampleValue, UsedGpuMemory};
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::enums::gpm::GpmMetricId;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::gpm::gpm_metrics_get;
use nvml_wrapper::structs::device::FieldId;

use super::{HOUR, MIB, SECOND, START, one_board};
use crate::support::nvml::Sim;

#[test]
fn a_library_that_is_not_there_is_an_error_of_the_loader() {
    let sim = Sim::new(&one_board("type = \"L4\""), START);
    let nowhere = sim.library().with_file_name("nowhere.so");
    let error = Nvml::builder().lib_path(nowhere.as_os_str()).init().unwrap_err();
    assert!(matches!(error, NvmlError::LibloadingError(_)), "{error:?}");
}

#[test]
fn a_function_that_an_old_library_lacks_fails_by_its_name_when_it_is_called() {
    let scenario = one_board("type = \"H100-80GB\"");
    let sim = Sim::without(&scenario, START, &["nvmlGpmQueryDeviceSupport", "nvmlDeviceGetSerial"]);
    let nvml = sim.load().unwrap();
    let device = nvml.device_by_index(0).unwrap();
    let error = device.gpm_support().unwrap_err();
    let NvmlError::FailedToLoadSymbol(text) = error else { panic!("{error:?}") };
    assert!(text.contains("nvmlGpmQueryDeviceSupport"), "{text}");
    assert!(text.contains("libnvidia-ml.so.1"), "the path is in the text, which is for operators only");
    assert!(matches!(device.serial(), Err(NvmlError::FailedToLoadSymbol(_))));
    assert_eq!(device.uuid().unwrap(), "GPU-1");
}

#[test]
fn versions_and_inventory_come_through() {
    let sim = Sim::new(
        &one_board(
            "type = \"H100-80GB\"\nserial = \"165\"\npci = \"00000000:17:00.0\"\n\
             used_mib = 10\nreserved_mib = 2",
        ),
        START,
    );
    let nvml = sim.load().unwrap();
    assert_eq!(nvml.sys_driver_version().unwrap(), "580.95.05");
    assert_eq!(nvml.sys_cuda_driver_version().unwrap(), 13_000);
    let device = nvml.device_by_uuid("GPU-1").unwrap();
    assert_eq!(device.name().unwrap(), "NVIDIA H100 80GB HBM3");
    assert_eq!((device.index().unwrap(), device.serial().unwrap()), (0, "165".to_owned()));
    assert_eq!(device.pci_info().unwrap().bus_id, "00000000:17:00.0");
    let by_pci = nvml.device_by_pci_bus_id("0000:17:00.0").unwrap();
    assert_eq!(by_pci.uuid().unwrap(), "GPU-1");
    let memory = device.memory_info().unwrap();
    assert_eq!((memory.total, memory.used, memory.reserved), (81_920 * MIB, 10 * MIB, 2 * MIB));
    assert_eq!(memory.free, (81_920 - 12) * MIB);
    assert!(matches!(nvml.device_by_uuid("GPU-2"), Err(NvmlError::NotFound)));
}

#[test]
fn a_code_that_the_wrapper_does_not_know_is_an_unexpected_variant() {
    for code in [23, 24, 25, 26, 27, 28, 29, 30] {
        let fault =
            format!("[[fault]]\nsymbol = \"nvmlDeviceGetPowerUsage\"\ndevice = \"GPU-1\"\ncode = {code}");
        let sim = Sim::new(&format!("{}\n{fault}", one_board("type = \"L4\"\npower_mw = 1")), START);
        let nvml = sim.load().unwrap();
        let error = nvml.device_by_index(0).unwrap().power_usage().unwrap_err();
        assert!(matches!(error, NvmlError::UnexpectedVariant(number) if number == code), "{error:?}");
    }
}

#[test]
fn the_wrapper_asks_new_drivers_by_their_numbers_and_leaves_the_answers_in_them() {
    for (driver, clock, smoothing) in [("570.124.06", 251, 256), ("580.95.05", 269, 251)] {
        let board = "type = \"L4\"\npower_mw = 30000\n\
            field = [{ id = 251, value = 11 }, { id = 256, value = 22 }, { id = 300, code = 3 }]";
        let sim = Sim::new(&format!("driver = \"{driver}\"\n{}", one_board(board)), START);
        sim.pass(10 * SECOND);
        let nvml = sim.load().unwrap();
        let asked = [83, 251, 256, 186, 300].map(FieldId);
        let told = nvml.device_by_index(0).unwrap().field_values_for(&asked).unwrap();
        let mut values: Vec<_> =
            told.into_iter().map(|one| one.unwrap()).map(|one| (one.field.0, one.value)).collect();
        let (number, last) = values.pop().unwrap();
        assert!(number == 300 && matches!(last, Err(NvmlError::NotSupported)), "a field fails by itself");
        let values: Vec<_> = values.into_iter().map(|(number, value)| (number, value.unwrap())).collect();
        let long = SampleValue::U64;
        let expected =
            [(83, long(300_000)), (clock, long(11)), (smoothing, long(22)), (186, SampleValue::U32(30_000))];
        assert_eq!(values, expected, "{driver}: answers go by their place, not by their number");
    }
}

#[test]
fn a_driver_that_does_not_tell_its_version_is_taken_for_an_old_one() {
    let scenario = one_board("type = \"L4\"\nfield = [{ id = 251, value = 11 }, { id = 256, value = 22 }]");
    let sim = Sim::without(&scenario, START, &["nvmlSystemGetDriverVersion"]);
    let nvml = sim.load().unwrap();
    let told = nvml.device_by_index(0).unwrap().field_values_for(&[FieldId(251)]).unwrap();
    // The driver is a new one, to which 251 is what old ones call 256.
    let value = told.into_iter().next().unwrap().unwrap().value.unwrap();
    assert_eq!(value, SampleValue::U64(22));
}

#[test]
fn throttle_reasons_without_a_name_are_dropped_or_fail_all() {
    let sim = Sim::new(&one_board("type = \"L4\"\nthrottle = 0x604"), START);
    let nvml = sim.load().unwrap();
    let device = nvml.device_by_index(0).unwrap();
    assert_eq!(device.current_throttle_reasons().unwrap().bits(), 0x4);
    assert!(matches!(device.current_throttle_reasons_strict(), Err(NvmlError::IncorrectBits(_))));
}

#[test]
fn running_processes_tell_their_memory_and_their_instance_or_neither() {
    let sim = Sim::new(
        &one_board(
            "type = \"H100-80GB\"\nmig = true\n\
             process = [{ pid = 7, memory_mib = 512 }, { pid = 8, gi = 3, ci = 0, until = \"1h\" }, \
                        { pid = 9, kinds = [\"mps\"], \
                          memory_mib = [[\"0s\", \"unavailable\"], [\"1h\", 5]] }]",
        ),
        START,
    );
    let nvml = sim.load().unwrap();
    let device = nvml.device_by_index(0).unwrap();
    let running = device.running_compute_processes().unwrap();
    let told: Vec<_> = running
        .into_iter()
        .map(|one| (one.pid, one.used_gpu_memory, one.gpu_instance_id, one.compute_instance_id))
        .collect();
    let used = UsedGpuMemory::Used;
    let expected = [(7, used(512 * MIB), None, None), (8, UsedGpuMemory::Unavailable, Some(3), Some(0))];
    assert_eq!(told, expected);
    assert!(device.running_graphics_processes().unwrap().is_empty());
    sim.pass(HOUR);
    assert_eq!(device.running_compute_processes().unwrap().len(), 1);
    let mps = device.mps_running_compute_processes().unwrap();
    assert_eq!(mps[0].used_gpu_memory, used(5 * MIB));
}

#[test]
fn processes_that_come_between_the_two_calls_fit_or_want_a_retry() {
    let scenario = |by| {
        let pids: Vec<String> =
            (1..=7).map(|pid| format!("{{ pid = {pid}, kinds = [\"compute\", \"mps\"] }}")).collect();
        let grows = ["Compute", "MPSCompute"]
            .map(|kind| format!("{{ symbol = \"nvmlDeviceGet{kind}RunningProcesses_v3\", by = {by} }}"));
        let board = one_board(&format!("type = \"L4\"\nprocess = [{}]", pids.join(", ")));
        format!("list_grows = [{}]\n{board}", grows.join(", "))
    };
    let sim = Sim::new(&scenario(5), START);
    let nvml = sim.load().unwrap();
    let device = nvml.device_by_index(0).unwrap();
    assert_eq!(device.running_compute_processes().unwrap().len(), 7, "it asks for five more than there were");
    assert!(matches!(device.mps_running_compute_processes(), Err(NvmlError::InsufficientSize(_))));
    sim.rewrite(&scenario(6));
    assert!(matches!(device.running_compute_processes(), Err(NvmlError::InsufficientSize(_))));
}

#[test]
fn no_new_sample_is_an_error_that_is_none() {
    let sim = Sim::new(&one_board("type = \"L4\"\nprocess = [{ pid = 1, percent = { sm = 50 } }]"), START);
    let nvml = sim.load().unwrap();
    let device = nvml.device_by_index(0).unwrap();
    assert!(matches!(device.process_utilization_stats(None), Err(NvmlError::NotFound)));
    sim.pass(SECOND);
    assert_eq!(device.process_utilization_stats(None).unwrap().len(), 1);
    let seen = u64::try_from(sim.now()).unwrap();
    assert!(matches!(device.process_utilization_stats(seen), Err(NvmlError::NotFound)));
}

#[test]
fn utilization_of_a_board_in_mig_mode_is_not_supported() {
    let sim = Sim::new(&one_board("type = \"H100-80GB\"\nmig = true\nprocess = [{ pid = 1 }]"), START);
    let nvml = sim.load().unwrap();
    let device = nvml.device_by_index(0).unwrap();
    assert!(matches!(device.utilization_rates(), Err(NvmlError::NotSupported)));
    assert!(matches!(device.process_utilization_stats(None), Err(NvmlError::NotSupported)));
}

#[test]
fn gpm_averages_between_two_samples_and_fails_by_metric() {
    let sim = Sim::new(
        &one_board(
            "type = \"H200-141GB\"\nmig = true\n\
             activity = [{ metric = 2, value = [[\"0s\", 20.0], [\"1m\", 80.0]] }, { metric = 3, code = 3 }, \
                         { metric = 2, gi = 5, value = [[\"0s\", 12.5]] }]\n\
             instance = [{ gi = 5, profile = \"1g.18gb\", start = 6, \
                           compute = [{ uuid = \"MIG-1\", slot = 0 }] }]",
        ),
        START,
    );
    let nvml = sim.load().unwrap();
    let device = nvml.device_by_index(0).unwrap();
    assert!(device.gpm_support().unwrap());
    let first = device.gpm_sample().unwrap();
    let of_instance = device.gpm_mig_sample(5).unwrap();
    let of_device = device.mig_device_by_index(0).unwrap().gpm_sample().unwrap();
    sim.pass(80 * SECOND);
    let second = device.gpm_sample().unwrap();
    let asked = [GpmMetricId::SmUtil, GpmMetricId::SmOccupancy];
    let told = gpm_metrics_get(&nvml, &first, &second, &asked).unwrap();
    assert_eq!(told[0].as_ref().unwrap().value, 35.0);
    assert!(matches!(told[1], Err(NvmlError::NotSupported)));
    let later = device.gpm_mig_sample(5).unwrap();
    for earlier in [&of_instance, &of_device] {
        let told = gpm_metrics_get(&nvml, earlier, &later, &asked[..1]).unwrap();
        assert_eq!(told[0].as_ref().unwrap().value, 12.5);
    }
    assert!(matches!(gpm_metrics_get(&nvml, &first, &later, &asked), Err(NvmlError::InvalidArg)));
    assert!(matches!(device.gpm_mig_sample(6), Err(NvmlError::InvalidArg)));
}

#[test]
fn there_is_no_gpm_before_hopper() {
    let sim = Sim::new(&one_board("type = \"A100-40GB\""), START);
    let nvml = sim.load().unwrap();
    let device = nvml.device_by_index(0).unwrap();
    assert!(!device.gpm_support().unwrap());
    assert!(matches!(device.gpm_sample(), Err(NvmlError::NotSupported)));
}

#[test]
fn a_critical_error_is_delivered_once_to_each_set() {
    let sim = Sim::new(
        &one_board(
            "type = \"L4\"\nxid = [{ at = \"0s\", xid = 13 }, { at = \"1h\", xid = 79 }, \
                    { at = \"1h\", xid = 48 }]",
        ),
        START,
    );
    let nvml = sim.load().unwrap();
    let device = nvml.device_by_index(0).unwrap();
    let listen = || {
        let set = nvml.create_event_set().unwrap();
        device.register_events(EventTypes::CRITICAL_XID_ERROR, set).unwrap()
    };
    let sets = [listen(), listen()];
    for set in &sets {
        assert!(matches!(set.wait(0), Err(NvmlError::Timeout)), "what came before is not told");
    }
    sim.pass(HOUR);
    for set in &sets {
        let [one, other] = [set.wait(0).unwrap(), set.wait(0).unwrap()];
        let mut told = [one, other].map(|event| match event.event_data {
            Some(XidError::Value(xid)) => (event.device.uuid().unwrap(), xid),
            other => panic!("{other:?}"),
        });
        told.sort();
        assert_eq!(told, [("GPU-1".to_owned(), 48), ("GPU-1".to_owned(), 79)]);
        assert!(matches!(set.wait(1), Err(NvmlError::Timeout)));
    }
}

#[test]
fn a_set_hears_when_instances_are_made_and_unmade() {
    let sim = Sim::new(
        &one_board(
            "type = \"H100-80GB\"\nmig = true\n\
             instance = [{ gi = 1, profile = \"1g.10gb\", start = 0, from = \"1h\", until = \"2h\" }]",
        ),
        START,
    );
    let nvml = sim.load().unwrap();
    let device = nvml.device_by_index(0).unwrap();
    let set = nvml.create_event_set().unwrap();
    let set = device.register_events(EventTypes::MIG_CONFIG_CHANGE, set).unwrap();
    for _ in 0..2 {
        assert!(matches!(set.wait(0), Err(NvmlError::Timeout)));
        sim.pass(HOUR);
        assert_eq!(set.wait(0).unwrap().event_type, EventTypes::MIG_CONFIG_CHANGE);
    }
}

#[test]
fn a_wait_ends_when_the_scenarios_clock_brings_what_it_waits_for() {
    let sim = Sim::new(&one_board("type = \"L4\"\nxid = [{ at = \"5s\", xid = 79 }]"), START);
    let nvml = sim.load().unwrap();
    let set = nvml.create_event_set().unwrap();
    let set = nvml.device_by_index(0).unwrap().register_events(EventTypes::CRITICAL_XID_ERROR, set).unwrap();
    std::thread::scope(|threads| {
        threads.spawn(|| sim.pass(6 * SECOND));
        assert!(set.wait(60_000).is_ok());
    });
}

#[test]
fn two_loads_of_one_library_share_it_and_end_apart() {
    let sim = Sim::new(&one_board("type = \"L4\""), START);
    let [one, other] = [sim.load().unwrap(), sim.load().unwrap()];
    drop(one);
    assert_eq!(other.device_count().unwrap(), 1);
    std::thread::scope(|threads| {
        for _ in 0..4 {
            threads.spawn(|| {
                for _ in 0..1_000 {
                    assert_eq!(other.device_by_index(0).unwrap().index().unwrap(), 0);
                }
            });
        }
    });
}

#[test]
fn accounting_keeps_the_newest_of_a_pid_and_none_under_mig() {
    let board = "type = \"A100-40GB\"\naccounting = true\nmig = [[\"0s\", false], [\"2h\", true]]\n\
        accounted = [{ pid = 5, start = \"1s\", end = \"9s\", gpu = 40, max_memory_mib = 2 }, \
                     { pid = 5, start = \"1h\" }]";
    let sim = Sim::new(&one_board(board), START);
    let nvml = sim.load().unwrap();
    let device = nvml.device_by_index(0).unwrap();
    assert!(device.is_accounting_enabled().unwrap());
    assert!(matches!(device.accounting_stats_for(5), Err(NvmlError::NotFound)));
    sim.pass(60 * SECOND);
    let ended = device.accounting_stats_for(5).unwrap();
    assert_eq!((ended.time, ended.is_running, ended.gpu_utilization), (8_000, false, Some(40)));
    assert_eq!(ended.max_memory_usage, Some(2 * MIB));
    sim.pass(HOUR);
    assert!(device.accounting_stats_for(5).unwrap().is_running);
    assert_eq!(device.accounting_pids().unwrap(), [5, 5]);
    sim.pass(HOUR);
    assert!(!device.is_accounting_enabled().unwrap());
    assert!(matches!(device.accounting_pids(), Err(NvmlError::NotSupported)));
}
