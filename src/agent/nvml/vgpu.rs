//! vGPUs of a host: which run, whose they are, what they hold, and how their license stands.

use std::collections::BTreeMap;

use chrono::NaiveDate;
use nvml_wrapper::enum_wrappers::vgpu::{VgpuLicenseState, VmId};
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::vgpu::VgpuLicenseExpiry;
use nvml_wrapper::vgpu::VgpuInstance;
use nvml_wrapper::{Device, Nvml};

use super::fault::{Absent, Fault, Metric};
use super::raw;
use super::snapshot::{Gauge, Reads, Snapshot};
use crate::domain::catalogue::VgpuTypeName;
use crate::domain::device::SharingMode;
use crate::domain::ids::Name;
use crate::domain::units::Instant;
use crate::domain::usage::{Evidence, EvidenceField, Slice, SliceSize, VgpuScheduler};

/// What a vGPU without a GPU instance has for one.
const NO_INSTANCE: u32 = u32::MAX;

/// A vGPU with its license, as it was at the last look.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VgpuRecord {
    /// The vGPU's UUID, which is its slice's id.
    pub uuid: Name,
    /// The device that it is on.
    pub device: Name,
    /// Its type.
    pub kind: Name,
    /// The VM that it is given to.
    pub vm: Option<Name>,
    /// The guest's driver; none: it is not up.
    pub guest_driver: Option<Name>,
    /// How its license stands.
    pub license: License,
}

/// How a vGPU's license stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum License {
    /// The guest's driver is not up: there is nothing to license yet.
    GuestIsDown,
    /// The driver does not tell.
    Unreadable,
    /// It tells.
    Told(LicenseState, Expiry),
}

/// States of a license. Source: NVML, `nvmlGridLicenseState`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LicenseState {
    /// It is not known.
    Unknown,
    /// The guest has not asked for one yet.
    Uninitialized,
    /// There is none, and nothing is restricted yet.
    UnlicensedUnrestricted,
    /// There is none, and the vGPU is restricted.
    UnlicensedRestricted,
    /// There is none.
    Unlicensed,
    /// There is one.
    Licensed,
}

/// Until when a license is good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expiry {
    /// The driver does not know.
    NotAvailable,
    /// What it says is no instant.
    Invalid,
    /// Until then.
    At(Instant),
    /// There is nothing that could expire.
    NotApplicable,
    /// For ever.
    Permanent,
}

/// What stays as it is for as long as a vGPU runs.
#[derive(Debug, Clone)]
struct Known {
    uuid: Name,
    kind: Name,
    vm: Option<Name>,
    gi: Option<u32>,
}

/// A vGPU that runs.
#[derive(Debug, Clone)]
pub(super) struct Running {
    id: u32,
    known: Known,
    memory: Option<u64>,
}

impl Running {
    pub(super) const fn gi(&self) -> Option<u32> {
        self.known.gi
    }
}

/// The vGPUs of one board.
#[derive(Debug, Default)]
pub(super) struct Vgpus {
    /// By the driver's number, which another one may have after the driver was loaded anew.
    known: BTreeMap<u32, Known>,
    pub(super) records: Vec<VgpuRecord>,
    /// How the board's time is divided; none: it has no such thing.
    scheduling: Option<raw::Scheduling>,
}

impl Vgpus {
    /// The vGPUs that run now; none: this is no host of vGPUs.
    pub(super) fn look(
        &mut self,
        (nvml, device, name): (&Nvml, &Device<'_>, &Name),
        absent: &mut Absent,
    ) -> Result<Option<Vec<Running>>, Fault> {
        self.records.clear();
        let ids = absent.ask(Metric::Vgpus, || raw::active_vgpus(nvml, device))?;
        let Some(ids) = ids else {
            self.known.clear();
            return Ok(None);
        };
        self.known.retain(|id, _| ids.contains(id));
        let told = absent.ask(Metric::Scheduler, || raw::scheduling(nvml, device))?;
        if told.is_some() || absent.has(Metric::Scheduler) {
            self.scheduling = told;
        }
        let mut running = Vec::new();
        for id in ids {
            // It may have ended since it was listed.
            let Some(one) = self.one(VgpuInstance::new(id, device), id, name)? else { continue };
            running.push(one);
        }
        Ok(Some(running))
    }

    fn one(&mut self, vgpu: VgpuInstance<'_>, id: u32, device: &Name) -> Result<Option<Running>, Fault> {
        let before = self.known.get(&id).cloned();
        let uuid = match vgpu.uuid().map_err(Fault::from) {
            Ok(uuid) => Name::parse(&uuid).ok(),
            Err(fault) if fault.ends_the_look() => return Err(fault),
            // It ended.
            Err(Fault::Nothing | Fault::Dead) => return Ok(None),
            // It is listed, so it runs.
            Err(_) => before.as_ref().map(|known| known.uuid.clone()),
        };
        let Some(uuid) = uuid else { return Ok(None) };
        let known = before.filter(|known| known.uuid == uuid && known.vm.is_some());
        let known = known.unwrap_or_else(|| describe(&vgpu, uuid));
        self.known.insert(id, known.clone());
        let text = |text: String| Name::parse(&text).ok().filter(|text| text.as_str() != "Not Available");
        self.records.push(VgpuRecord {
            uuid: known.uuid.clone(),
            device: device.clone(),
            kind: known.kind.clone(),
            vm: known.vm.clone(),
            guest_driver: vgpu.driver_version().ok().and_then(text),
            license: license(&vgpu),
        });
        Ok(Some(Running { id, known, memory: vgpu.fb_usage().ok() }))
    }

    /// The policy by which the board's time is divided.
    pub(super) fn scheduler(&self) -> Option<VgpuScheduler> {
        match self.scheduling?.policy {
            1 => Some(VgpuScheduler::BestEffort),
            2 => Some(VgpuScheduler::EqualShare),
            3 => Some(VgpuScheduler::FixedShare),
            _ => None,
        }
    }

    /// The policy with its parameters.
    pub(super) const fn scheduling(&self) -> Option<raw::Scheduling> {
        self.scheduling
    }

    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }
}

fn describe(vgpu: &VgpuInstance<'_>, uuid: Name) -> Known {
    let kind = vgpu.instance_type().and_then(|kind| kind.name()).unwrap_or_default();
    let kind = VgpuTypeName::parse(&kind).map_or(kind, |name| name.to_string());
    let vm = vgpu.vm_id().ok().map(|vm| match vm {
        VmId::Domain(text) | VmId::Uuid(text) => text,
    });
    Known {
        uuid,
        kind: Name::parse(&kind).unwrap_or_else(|_| Name::fixed("unreadable")),
        vm: vm.and_then(|text| Name::parse(&text).ok()),
        gi: vgpu.gpu_instance_id().ok().filter(|gi| *gi != NO_INSTANCE),
    }
}

fn license(vgpu: &VgpuInstance<'_>) -> License {
    match vgpu.license_info_v2() {
        Ok(info) => {
            let state = match info.state {
                VgpuLicenseState::Unknown => LicenseState::Unknown,
                VgpuLicenseState::Uninitialized => LicenseState::Uninitialized,
                VgpuLicenseState::UnlicensedUnrestricted => LicenseState::UnlicensedUnrestricted,
                VgpuLicenseState::UnlicensedRestricted => LicenseState::UnlicensedRestricted,
                VgpuLicenseState::Unlicensed => LicenseState::Unlicensed,
                VgpuLicenseState::Licensed => LicenseState::Licensed,
            };
            License::Told(state, expiry(info.expiry))
        }
        Err(NvmlError::DriverNotLoaded) => License::GuestIsDown,
        Err(_) => License::Unreadable,
    }
}

/// Source: NVML, `NVML_GRID_LICENSE_EXPIRY_*`; instants are in UTC.
fn expiry(told: VgpuLicenseExpiry) -> Expiry {
    match told.status {
        0 => Expiry::NotAvailable,
        2 => {
            let date = NaiveDate::from_ymd_opt(told.year.into(), told.month.into(), told.day.into())
                .and_then(|date| date.and_hms_opt(told.hour.into(), told.min.into(), told.sec.into()));
            date.map_or(Expiry::Invalid, |date| {
                Expiry::At(Instant::from_micros(date.and_utc().timestamp_micros()))
            })
        }
        3 => Expiry::NotApplicable,
        4 => Expiry::Permanent,
        _ => Expiry::Invalid,
    }
}

/// Adds vGPUs to what a look saw. `instances`: the places of GPU instances' slices by the driver's number.
pub(super) fn add(
    snapshot: &mut Snapshot,
    device: &Name,
    running: &[Running],
    instances: &BTreeMap<u32, usize>,
) {
    for vgpu in running {
        let mode = if vgpu.known.gi.is_some() { SharingMode::MigVgpu } else { SharingMode::Vgpu };
        let of = vgpu.known.gi.and_then(|gi| instances.get(&gi)).and_then(|at| snapshot.slices.get(*at));
        let parent = of.and_then(|slice| slice.id.clone());
        let slice = Slice {
            id: Some(vgpu.known.uuid.clone()),
            parent,
            scheduler: snapshot.scheduler,
            ..Slice::plain(device.clone(), mode, SliceSize::Profile(vgpu.known.kind.clone()))
        };
        let slice = snapshot.slice(slice);
        // A vGPU that runs is held, also where the driver does not say by which VM.
        let unnamed = || Name::parse(&format!("vgpu {}", vgpu.known.uuid)).ok();
        let seen: Option<(EvidenceField, Name)> = match &vgpu.known.vm {
            Some(vm) => Some((EvidenceField::Vm, vm.clone())),
            None => unnamed().map(|name| (EvidenceField::Process, name)),
        };
        let evidence: Evidence = seen.into_iter().collect();
        snapshot.holder(slice, evidence);
        let meter = snapshot.meter(slice, None, Gauge { reads: Reads::Vgpu, memory: vgpu.memory });
        snapshot.vgpus.insert(vgpu.id, meter);
    }
}
