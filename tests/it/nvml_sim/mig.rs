//! MIG as the wrapper sees it: slots with holes, handles that die, instances that are made anew.

use nvml_wrapper::Device;
use nvml_wrapper::error::NvmlError;

use super::raw::instance_ids;
use super::{HOUR, MIB, START, from_start, one_board};
use crate::support::nvml::Sim;

/// A board in the layout of a real one: the ids are no slots.
const MIXED: &str = "type = \"A100-40GB\"
mig = true
instance = [
    { gi = 13, profile = \"1g.5gb\", start = 6, compute = [{ uuid = \"MIG-a\", slot = 0, ci = 7 }] },
    { gi = 3, profile = \"3g.20gb\", start = 0, compute = [
        { uuid = \"MIG-b\", slot = 3, slices = 1 },
        { uuid = \"MIG-c\", slot = 4, ci = 1, slices = 2, start = 1 },
    ] },
]
process = [{ pid = 9, gi = 3, ci = 1, memory_mib = 300 }]";

#[test]
fn slots_of_mig_devices_have_holes() {
    let sim = Sim::new(&one_board(MIXED), START);
    let nvml = sim.load().unwrap();
    let board = nvml.device_by_index(0).unwrap();
    let count = board.mig_device_count().unwrap();
    assert_eq!(count, 7, "it is the number of slots");
    let uuid = |slot| match board.mig_device_by_index(slot) {
        Ok(device) => Some(device.uuid().unwrap()),
        Err(NvmlError::NotFound) => None,
        Err(error) => panic!("{error:?}"),
    };
    let slots: Vec<Option<String>> = (0..count).map(uuid).collect();
    let told: Vec<Option<&str>> = slots.iter().map(Option::as_deref).collect();
    assert_eq!(told, [Some("MIG-a"), None, None, Some("MIG-b"), Some("MIG-c"), None, None]);
    assert!(matches!(board.mig_device_by_index(7), Err(NvmlError::InvalidArg)));
}

#[test]
fn a_mig_device_tells_its_name_its_ids_its_share_and_its_parent() {
    let sim = Sim::new(&one_board(MIXED), START);
    let nvml = sim.load().unwrap();
    let board = nvml.device_by_index(0).unwrap();
    assert!(!board.mig_is_mig_device_handle().unwrap());
    let device = nvml.device_by_uuid("MIG-c").unwrap();
    assert!(device.mig_is_mig_device_handle().unwrap());
    assert_eq!(device.name().unwrap(), "NVIDIA A100-SXM4-40GB MIG 2c.3g.20gb");
    assert_eq!(device.mig_parent_device().unwrap().uuid().unwrap(), "GPU-1");
    assert_eq!(instance_ids(&nvml, &device), (3, 1));
    assert_eq!(instance_ids(&nvml, &board.mig_device_by_index(0).unwrap()), (13, 7));
    let share = device.attributes().unwrap();
    assert_eq!((share.gpu_instance_slice_count, share.compute_instance_slice_count), (3, 2));
    assert_eq!((share.multiprocessor_count, share.memory_size_mb), (28, 19_968));
    assert_eq!(device.memory_info().unwrap().used, 300 * MIB);
    assert_eq!(device.running_compute_processes().unwrap()[0].pid, 9);
    assert!(matches!(device.power_usage(), Err(NvmlError::NotSupported)));
}

#[test]
fn the_wrapper_finds_no_possible_placement_whatever_there_is() {
    let sim = Sim::new(&one_board("type = \"H100-80GB\"\nmig = true"), START);
    let nvml = sim.load().unwrap();
    let board = nvml.device_by_index(0).unwrap();
    // Seven were written: it takes them for none.
    assert_eq!(board.possible_placements(19).unwrap().len(), 0);
    assert!(matches!(board.possible_placements(18), Err(NvmlError::InvalidArg)));
}

#[test]
fn profiles_are_enumerated_with_gaps_until_the_index_ends() {
    let sim = Sim::new(&one_board("type = \"A30-24GB\""), START);
    let nvml = sim.load().unwrap();
    let board = nvml.device_by_index(0).unwrap();
    let mut ids = vec![];
    for index in 0.. {
        match board.profile_info(index) {
            Ok(profile) => ids.push(profile.id),
            Err(NvmlError::NotSupported) => {}
            Err(NvmlError::InvalidArg) => break,
            Err(error) => panic!("{error:?}"),
        }
    }
    assert_eq!(ids, [14, 5, 0, 21, 6]);
}

#[test]
fn instances_that_are_made_anew_are_others_in_the_same_place() {
    let instance = |uuid: &str, span: &str| {
        format!(
            "{{ gi = 2, profile = \"3g.40gb\", start = 4, {span}, \
             compute = [{{ uuid = \"{uuid}\", slot = 1 }}] }}"
        )
    };
    let (old, new) = (instance("MIG-old", "until = \"1h\""), instance("MIG-new", "from = \"1h\""));
    let board = format!("type = \"H100-80GB\"\nmig = true\ninstance = [{old}, {new}]");
    let sim = Sim::new(&one_board(&board), START);
    let nvml = sim.load().unwrap();
    let board = nvml.device_by_index(0).unwrap();
    let before = board.mig_device_by_index(1).unwrap();
    assert_eq!(before.uuid().unwrap(), "MIG-old");
    sim.pass(HOUR);
    assert!(matches!(before.uuid(), Err(NvmlError::InvalidArg)), "its handle is dead");
    assert_eq!(board.mig_device_by_index(1).unwrap().uuid().unwrap(), "MIG-new");
    assert!(matches!(nvml.device_by_uuid("MIG-old"), Err(NvmlError::NotFound)));
}

#[test]
fn instances_are_there_while_the_mode_is_on() {
    let board = MIXED.replace("mig = true", "mig = [[\"1h\", true], [\"2h\", false]]\nmig_pending = true");
    let sim = Sim::new(&one_board(&board), START);
    let nvml = sim.load().unwrap();
    let board = nvml.device_by_index(0).unwrap();
    let state = |board: &Device<'_>| {
        let mode = board.mig_mode().unwrap();
        (mode.current, mode.pending, board.mig_device_count().unwrap(), board.mig_device_by_index(0).is_ok())
    };
    assert_eq!(state(&board), (0, 1, 0, false));
    sim.pass(HOUR);
    assert_eq!(state(&board), (1, 1, 7, true));
    sim.pass(HOUR);
    assert_eq!(state(&board), (0, 1, 0, false));
}

#[test]
fn a_board_without_mig_does_not_support_its_mode() {
    let sim = Sim::new(&one_board("type = \"L40S\""), START);
    let nvml = sim.load().unwrap();
    let board = nvml.device_by_index(0).unwrap();
    assert!(matches!(board.mig_mode(), Err(NvmlError::NotSupported)));
    assert_eq!(board.mig_device_count().unwrap(), 0);
}

#[test]
fn who_is_not_privileged_sees_devices_but_not_the_processes_of_their_parent() {
    let sim = Sim::new(&format!("privileged = false\n{}", one_board(MIXED)), START);
    let nvml = sim.load().unwrap();
    let board = nvml.device_by_index(0).unwrap();
    assert!(matches!(board.running_compute_processes(), Err(NvmlError::NoPermission)));
    assert_eq!(board.mig_device_by_index(4).unwrap().running_compute_processes().unwrap().len(), 1);
}

#[test]
fn sixteen_boards_of_seven_instances_are_read_in_little_time() {
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
            format!(
                "[[board]]\nuuid = \"GPU-{board}\"\ntype = \"H100-80GB\"\nmig = true\ninstance = [{}]\n",
                instances.join(", ")
            )
        })
        .collect();
    let sim = Sim::new(&from_start(&boards.concat()), START);
    let nvml = sim.load().unwrap();
    let mut uuids = vec![];
    for board in 0..nvml.device_count().unwrap() {
        let board = nvml.device_by_index(board).unwrap();
        let slots = 0..board.mig_device_count().unwrap();
        uuids.extend(slots.map(|slot| board.mig_device_by_index(slot).unwrap().uuid().unwrap()));
    }
    assert_eq!((uuids.len(), uuids[0].as_str(), uuids[111].as_str()), (112, "MIG-0-0", "MIG-15-6"));
}
