//! MIG: which instances a board has, and what they are as slices.
//!
//! A MIG device of the driver is a compute instance. A GPU instance whose one compute instance has all of it
//! is one slice, under the MIG device's UUID; else the GPU instance is a slice of its own, `gi-` and its
//! number, and its compute instances lie in it.
//!
//! Devices are known by their UUIDs, which are read at each look; the rest is read when one of them is new
//! or gone, when the driver says that instances changed, and each minute. Where instances lie, only the
//! privileged are told.

use std::collections::BTreeMap;

use nvml_wrapper::{Device, Nvml};

use super::fault::{Absent, Fault, Metric};
use super::raw::{self, Profile};
use crate::domain::catalogue::ProfileName;
use crate::domain::device::SharingMode;
use crate::domain::ids::Name;
use crate::domain::units::{Instant, MICROS_PER_SECOND};
use crate::domain::usage::{Slice, SliceSize};

/// Between two full lists, where nothing seems to have changed, in microseconds.
const LIST_EVERY_MICROS: i64 = 60 * MICROS_PER_SECOND;

/// A MIG device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MigDevice {
    pub(super) uuid: Name,
    /// The GPU instance that it is of; none: the library does not tell.
    pub(super) gi: Option<u32>,
    /// As the driver names it, such as `1c.3g.40gb`.
    profile: Name,
}

/// A GPU instance.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Instance {
    profile: Option<Name>,
    start: Option<u16>,
}

/// What is known of one board's instances.
#[derive(Debug, Default)]
pub(super) struct Mig {
    is_on: Option<bool>,
    /// By slot.
    devices: BTreeMap<u32, MigDevice>,
    /// By the driver's number.
    instances: BTreeMap<u32, Instance>,
    profiles: Option<Vec<Profile>>,
    listed: Option<Instant>,
}

/// A MIG device that answers now.
pub(super) struct Answering<'n> {
    pub(super) device: Device<'n>,
    pub(super) is: MigDevice,
}

impl Mig {
    /// Whether MIG is on, and whether that is new since the last look.
    pub(super) fn mode(&mut self, device: &Device<'_>, absent: &mut Absent) -> Result<(bool, bool), Fault> {
        let told = absent.ask(Metric::Mig, || device.mig_mode())?;
        let is_on = match told {
            Some(mode) => mode.current == 1,
            // It has none, or does not say now: then it is as it was.
            None => !absent.has(Metric::Mig) && self.is_on.unwrap_or_default(),
        };
        let is_new = self.is_on.replace(is_on).is_some_and(|before| before != is_on);
        if is_new {
            self.changed();
        }
        Ok((is_on, is_new))
    }

    /// Takes note that instances were made or unmade.
    pub(super) const fn changed(&mut self) {
        self.listed = None;
    }

    /// The MIG devices that are there and answer now, and whether those are all: one that fails for a moment
    /// stays where it was. Lists them anew where that is due.
    pub(super) fn look<'n>(
        &mut self,
        (nvml, device): (&'n Nvml, &Device<'n>),
        absent: &mut Absent,
        of_vgpus: &[u32],
        at: Instant,
    ) -> Result<(Vec<Answering<'n>>, bool), Fault> {
        let slots = match device.mig_device_count().map_err(Fault::from) {
            Ok(slots) => slots,
            Err(fault) if fault.ends_the_look() => return Err(fault),
            Err(_) => return Ok((Vec::new(), false)),
        };
        let (mut there, mut failing) = (Vec::new(), Vec::new());
        for slot in 0..slots {
            let found = device.mig_device_by_index(slot).and_then(|mig| Ok((mig.uuid()?, mig)));
            match found.map_err(Fault::from) {
                Ok((uuid, mig)) => {
                    if let Ok(uuid) = Name::parse(&uuid) {
                        there.push((slot, uuid, mig));
                    }
                }
                Err(fault) if fault.ends_the_look() => return Err(fault),
                // An empty slot; or one that was emptied between the two calls.
                Err(Fault::Nothing | Fault::Dead) => {}
                Err(_) => failing.push(slot),
            }
        }
        let of_slot = |slot: &u32| there.iter().find(|(of, _, _)| of == slot).map(|(_, uuid, _)| uuid);
        let slots = self.devices.keys().chain(there.iter().map(|(slot, _, _)| slot));
        let is_known = slots
            .filter(|slot| !failing.contains(slot))
            .all(|slot| self.devices.get(slot).map(|known| &known.uuid) == of_slot(slot))
            && of_vgpus.iter().all(|gi| self.instances.contains_key(gi));
        let is_due = self.listed.is_none_or(|last| !(0..LIST_EVERY_MICROS).contains(&at.micros_since(last)));
        if !is_known || is_due {
            self.devices.retain(|slot, _| failing.contains(slot));
            for (slot, uuid, mig) in &there {
                let is = describe(nvml, mig, uuid.clone())?;
                self.devices.insert(*slot, is);
            }
            self.list(nvml, device, absent, of_vgpus)?;
            self.listed = Some(at);
        }
        let is_all = failing.is_empty();
        let answering = there
            .into_iter()
            .filter_map(|(slot, _, device)| Some(Answering { device, is: self.devices.get(&slot)?.clone() }));
        Ok((answering.collect(), is_all))
    }

    /// Lists the GPU instances, as far as the agent may see them.
    fn list(
        &mut self,
        nvml: &Nvml,
        device: &Device<'_>,
        absent: &mut Absent,
        of_vgpus: &[u32],
    ) -> Result<(), Fault> {
        if self.profiles.is_none() {
            self.profiles = raw::profiles(nvml, device).ok();
        }
        let profiles = self.profiles.as_deref().unwrap_or_default();
        self.instances.clear();
        for profile in profiles {
            let all = absent.ask(Metric::GpuInstances, || raw::gpu_instances(nvml, device, profile))?;
            for one in all.unwrap_or_default() {
                let start = u16::try_from(one.placement.start).ok();
                let instance = Instance { profile: profile_name(&profile.name), start };
                self.instances.insert(one.id, instance);
            }
        }
        for mig in self.devices.values() {
            let Some(gi) = mig.gi else { continue };
            let instance = self.instances.entry(gi).or_default();
            // The device's own name says its instance's profile, also to those who may not see instances.
            let of_device =
                ProfileName::parse(mig.profile.as_str()).map(|name| name.gpu_instance().to_string());
            if let Some(name) = of_device.filter(|_| instance.profile.is_none()) {
                instance.profile = Name::parse(&name).ok();
            }
        }
        for gi in of_vgpus {
            self.instances.entry(*gi).or_default();
        }
        Ok(())
    }

    /// The slices that the instances are, with for each MIG device the place of its own, and of each GPU
    /// instance.
    pub(super) fn slices(&self, device: &Name) -> (Vec<Slice>, BTreeMap<Name, usize>, BTreeMap<u32, usize>) {
        let (mut slices, mut of_devices, mut of_instances) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
        let slice = |id: Name, profile: Name| Slice {
            id: Some(id),
            ..Slice::plain(device.clone(), SharingMode::Mig, SliceSize::Profile(profile))
        };
        for (gi, instance) in &self.instances {
            let inside: Vec<&MigDevice> = self.devices.values().filter(|mig| mig.gi == Some(*gi)).collect();
            let at = slices.len();
            if let [only] = inside.as_slice()
                && is_whole(&only.profile)
            {
                slices
                    .push(Slice { start: instance.start, ..slice(only.uuid.clone(), only.profile.clone()) });
                of_devices.insert(only.uuid.clone(), at);
                of_instances.insert(*gi, at);
                continue;
            }
            // Nothing is known of it but that something is in it: the profile of what is in it implies it.
            let Some(profile) = instance.profile.clone() else { continue };
            let Ok(id) = Name::parse(&format!("gi-{gi}")) else { continue };
            slices.push(Slice { start: instance.start, ..slice(id.clone(), profile) });
            of_instances.insert(*gi, at);
            for mig in inside {
                of_devices.insert(mig.uuid.clone(), slices.len());
                slices
                    .push(Slice { parent: Some(id.clone()), ..slice(mig.uuid.clone(), mig.profile.clone()) });
            }
        }
        for mig in self.devices.values().filter(|mig| mig.gi.is_none()) {
            of_devices.insert(mig.uuid.clone(), slices.len());
            slices.push(slice(mig.uuid.clone(), mig.profile.clone()));
        }
        (slices, of_devices, of_instances)
    }

    pub(super) fn forget(&mut self) {
        *self = Self { is_on: self.is_on, ..Self::default() };
    }
}

/// Whether a profile is a GPU instance's with all that is in it.
fn is_whole(profile: &Name) -> bool {
    ProfileName::parse(profile.as_str()).is_none_or(|name| name.compute_instance.is_none())
}

fn profile_name(text: &str) -> Option<Name> {
    let shown = ProfileName::parse(text).map_or_else(|| text.to_owned(), |name| name.to_string());
    Name::parse(&shown).ok()
}

fn describe(nvml: &Nvml, mig: &Device<'_>, uuid: Name) -> Result<MigDevice, Fault> {
    let gi = match raw::instance_ids(nvml, mig).map_err(Fault::from) {
        Ok((gi, _)) => Some(gi),
        Err(fault) if fault.ends_the_look() => return Err(fault),
        Err(_) => None,
    };
    // `NVIDIA H100 80GB HBM3 MIG 1g.10gb`
    let text = mig.name().unwrap_or_default();
    let profile = text.rsplit_once("MIG ").map_or(text.as_str(), |(_, profile)| profile);
    let profile = profile_name(profile).unwrap_or_else(|| Name::fixed("unreadable"));
    Ok(MigDevice { uuid, gi, profile })
}
