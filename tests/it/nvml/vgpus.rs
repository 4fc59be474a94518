//! vGPUs over time: they come, are licensed and not any more, and go.

use fatia::agent::nvml::vgpu::{Expiry, License, LicenseState};

use super::rig::{HOUR, NANOS, Rig, SECOND, holders, one_board, slices};

const HOST: &str = "type = \"L40S\"
virtualization = \"host\"
vgpu_types = [\"L40S-12Q\"]
scheduler = { policy = \"equal_share\", average_factor = 33, timeslice_ns = 1000000 }

[[board.vgpu]]
id = 21
type = \"L40S-12Q\"
uuid = \"vgpu-a\"
vm = { uuid = \"vm-a\" }
from = \"10s\"
until = \"2h\"
guest_driver = [[\"30s\", \"580.95.05\"]]
license = [
    [\"0s\", { state = \"unlicensed_unrestricted\" }],
    [\"40s\", { state = \"licensed\", expires = { at = \"1d\" } }],
    [\"1h\", { state = \"unlicensed_restricted\", expires = \"invalid\" }],
]
percent = { sm = 60 }
";

#[test]
fn a_vgpu_comes_gets_its_license_and_loses_it() {
    let mut rig = Rig::new(&one_board(HOST));
    assert!(slices(&rig.standing(0)).is_empty());
    assert_eq!(rig.on.source.vgpus().count(), 0);
    let told = |rig: &mut Rig, second: i64| {
        assert_eq!(slices(&rig.standing(second * SECOND)), ["vgpu/L40S-12Q vgpu-a"]);
        let record = rig.on.source.vgpus().next().unwrap();
        let text = |name: &Option<fatia::domain::ids::Name>| name.as_ref().map(ToString::to_string);
        (text(&record.vm), text(&record.guest_driver), record.license)
    };
    let vm = || Some("vm-a".to_owned());
    let driver = || Some("580.95.05".to_owned());
    let state = LicenseState::UnlicensedUnrestricted;
    assert_eq!(told(&mut rig, 10), (vm(), None, License::GuestIsDown));
    assert_eq!(told(&mut rig, 30), (vm(), driver(), License::Told(state, Expiry::NotAvailable)));
    let until = Expiry::At(rig.at(24 * HOUR));
    assert_eq!(told(&mut rig, 40), (vm(), driver(), License::Told(LicenseState::Licensed, until)));
    let state = LicenseState::UnlicensedRestricted;
    assert_eq!(told(&mut rig, 3_600), (vm(), driver(), License::Told(state, Expiry::Invalid)));
    assert!(slices(&rig.standing(2 * HOUR)).is_empty());
    assert_eq!(rig.on.source.vgpus().count(), 0);
    let device = rig.sample.devices[0].standing.device.clone();
    assert_eq!(rig.on.source.scheduling(&device).unwrap().average_factor, Some(33));
}

#[test]
fn a_driver_that_is_loaded_anew_gives_a_vgpu_another_number_and_not_another_holder() {
    let mut rig = Rig::new(&format!("reloads = [\"1m\"]\n{}", one_board(HOST)));
    let before = rig.standing(50 * SECOND);
    let mut active = 0;
    for second in 51..=80 {
        rig.look(second * SECOND);
        let look = &rig.sample.devices[0];
        assert_eq!(holders(&look.standing), holders(&before));
        let amounts = look.amounts.iter().chain(look.newcomers.iter().map(|each| &each.amount));
        active += amounts.filter_map(|amount| amount.active_nanos).sum::<i64>();
    }
    // A new driver has no old samples: of the second before it nobody knows.
    assert_eq!(active, 29 * NANOS * 6 / 10);
}

#[test]
fn a_vgpu_whose_vm_the_driver_does_not_tell_is_held_all_the_same_and_named_when_it_does() {
    let fault = "fault = [{ symbol = \"nvmlVgpuInstanceGetVmID\", vgpu = 21, until = \"20s\", code = 999 }]";
    let mut rig = Rig::new(&format!("{fault}\n{}", one_board(HOST)));
    let name = |rig: &mut Rig, second: i64| holders(&rig.standing(second * SECOND))[0].1.clone();
    assert_eq!(name(&mut rig, 15), "vgpu vgpu-a");
    assert_eq!(name(&mut rig, 20), "vm-a");
}
