//! What `/proc` and `/sys` show: whose a process is, and which VM has a card.

use fatia::agent::source::Source as _;
use fatia::domain::usage::EvidenceField;

use super::rig::{Rig, SECOND, from_start, holders, lost, one_board, slices};

const ONE: &str = "type = \"L4\"\npci = \"00000000:3B:00.0\"\nserial = \"165\"\nprocess = [{ pid = 11 }]";

#[test]
fn a_pid_that_comes_again_is_another_process() {
    let mut rig = Rig::new(&one_board(ONE));
    rig.folders.process(11, "/kubepods/pod-a", "python", 100);
    assert_eq!(holders(&rig.standing(0))[0].1, "/kubepods/pod-a");
    rig.folders.process(11, "/kubepods/pod-b", "python", 900);
    assert_eq!(holders(&rig.standing(SECOND))[0].1, "/kubepods/pod-b");
}

#[test]
fn a_process_that_ends_before_its_driver_knows_keeps_its_holder() {
    let mut rig = Rig::new(&one_board(ONE));
    rig.folders.process(11, "/kubepods/pod-a", "python", 100);
    rig.look(0);
    rig.folders.end(11);
    let standing = rig.standing(SECOND);
    assert_eq!((holders(&standing)[0].1.as_str(), standing.sees_holders), ("/kubepods/pod-a", true));
}

#[test]
fn a_process_that_the_host_does_not_know_leaves_the_holder_unknown_and_not_absent() {
    let mut rig = Rig::new(&one_board(ONE));
    let standing = rig.standing(0);
    assert!(standing.is_present() && !standing.sees_holders && standing.slices.is_empty());
    let mut rig = Rig::new(&one_board(super::layouts::MIXED));
    rig.folders.process(21, "/kubepods/pod-a", "python", 1);
    let standing = rig.standing(0);
    assert_eq!((standing.sees_holders, standing.slices.len(), standing.holders.len()), (false, 4, 0));
}

#[test]
fn a_process_outside_of_groups_is_its_user_and_its_command() {
    let mut rig = Rig::new(&one_board("type = \"L4\"\nprocess = [{ pid = 11 }, { pid = 12 }, { pid = 13 }]"));
    rig.folders.process(11, "/", "train", 1);
    rig.folders.process(12, "/", "train", 2);
    rig.folders.process(13, "/", "render (x) 1", 3);
    let standing = rig.standing(0);
    let names: Vec<String> = holders(&standing).into_iter().map(|(_, name)| name).collect();
    assert_eq!(names, ["render (x) 1", "train"]);
    let user = standing.holders[0].evidence.get(EvidenceField::User).unwrap();
    assert_eq!(user.as_str(), "ana");
    rig.folders.write("proc/13/status", "Uid:\t4711\t0\t0\t0\n");
    rig.folders.process(14, "/", "x", 5);
    assert_eq!(holders(&rig.standing(SECOND)).len(), 2, "what was read at first sight stays");
}

#[test]
fn a_card_that_is_a_vms_is_passed_through_to_it() {
    let mut rig = Rig::new(&from_start(""));
    rig.folders.card("0000:3b:00.0", "vfio-pci", "42");
    rig.folders.card("0000:3c:00.0", "vfio-pci", "43");
    rig.folders.card("0000:3d:00.0", "nvidia", "44");
    rig.folders.card("0000:3e:00.4", "vfio-pci", "45");
    rig.folders.link("sys/bus/pci/devices/0000:3e:00.4/physfn", "../0000:3d:00.0");
    rig.folders.write("sys/bus/pci/devices/0000:3b:00.1/vendor", "0x10de\n");
    rig.folders.write("sys/bus/pci/devices/0000:3b:00.1/class", "0x040300\n");
    rig.folders.vm(900, "qemu-kvm -name guest=web,debug-threads=on -uuid 7f0c-22 -m 4", "42");
    let found = rig.on.inventory().unwrap().devices;
    let told: Vec<(String, String)> =
        found.iter().map(|device| (device.uuid.to_string(), device.model.to_string())).collect();
    let model = || "NVIDIA PCI 10de:2330".to_owned();
    assert_eq!(
        told,
        [("PCI-00000000:3B:00.0".to_owned(), model()), ("PCI-00000000:3C:00.0".to_owned(), model())]
    );
    let held = rig.device(0, "PCI-00000000:3B:00.0").standing;
    assert_eq!((slices(&held), held.slices[0].mode.word()), (vec!["device".to_owned()], "passthrough"));
    assert_eq!(held.holders[0].evidence.get(EvidenceField::Vm).unwrap().as_str(), "7f0c-22");
    let open = rig.device(SECOND, "PCI-00000000:3C:00.0").standing;
    assert!(open.is_present() && open.sees_holders && open.holders.is_empty());
    // The VM is shut down, and another one started on the other card.
    rig.folders.end(900);
    rig.folders.vm(901, "qemu-kvm -name guest=db -m 4", "43");
    assert!(rig.device(2 * SECOND, "PCI-00000000:3B:00.0").standing.holders.is_empty());
    let other = rig.device(5 * SECOND, "PCI-00000000:3C:00.0").standing;
    assert_eq!(holders(&other)[0].1, "db");
}

#[test]
fn a_card_that_is_given_away_keeps_the_name_that_its_driver_knew() {
    let board = format!("{ONE}\nabsent = [{{ from = \"1m\", until = \"2m\" }}]");
    let mut rig = Rig::new(&one_board(&board));
    rig.folders.process(11, "/kubepods/pod-a", "python", 100);
    assert_eq!(holders(&rig.standing(0))[0].0, "device");
    rig.folders.card("0000:3b:00.0", "vfio-pci", "42");
    rig.folders.vm(900, "qemu-kvm -uuid 7f0c-22", "42");
    let given = rig.device(60 * SECOND, "GPU-1").standing;
    assert_eq!((holders(&given)[0].1.as_str(), given.slices[0].mode.word()), ("7f0c-22", "passthrough"));
    // Another process of the agent, which never saw it with a driver.
    let state = rig.on.state();
    rig.restart(&state);
    let found = rig.on.inventory().unwrap().devices;
    let device =
        (found[0].uuid.as_str(), found[0].model.as_str(), found[0].serial.as_ref().map(ToString::to_string));
    assert_eq!((found.len(), device), (1, ("GPU-1", "NVIDIA L4", Some("165".to_owned()))));
    assert_eq!(holders(&rig.device(61 * SECOND, "GPU-1").standing)[0].1, "7f0c-22");
    // And back to the host.
    rig.folders.link("sys/bus/pci/devices/0000:3b:00.0/driver", "../nvidia");
    let back = rig.device(120 * SECOND, "GPU-1").standing;
    assert_eq!((holders(&back)[0].1.as_str(), lost(&back)), ("/kubepods/pod-a", None));
    assert_eq!(rig.sample.devices.len(), 1);
}

#[test]
fn a_card_that_had_no_name_gets_its_own_when_a_driver_takes_it() {
    let board = format!("{ONE}\nabsent = [{{ until = \"1m\" }}]");
    let mut rig = Rig::new(&one_board(&board));
    rig.folders.process(11, "/kubepods/pod-a", "python", 100);
    rig.folders.card("0000:3b:00.0", "vfio-pci", "42");
    let names = |rig: &mut Rig, second: i64| -> Vec<String> {
        rig.look(second * SECOND).devices.iter().map(|look| look.standing.device.to_string()).collect()
    };
    assert_eq!(names(&mut rig, 0), ["PCI-00000000:3B:00.0"]);
    rig.folders.link("sys/bus/pci/devices/0000:3b:00.0/driver", "../nvidia");
    assert_eq!(names(&mut rig, 60), ["GPU-1"]);
}
