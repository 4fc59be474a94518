//! Layouts of a fleet file: the slices that they are, if a board can have them.

use std::collections::{BTreeMap, BTreeSet};

use uuid::Uuid;

use super::file::PartFile;
use super::fleet::Epoch;
use super::read::{Place, ScriptError};
use crate::agent::source::DeviceInfo;
use crate::domain::catalogue::{Catalogue, ProfileName, VgpuType};
use crate::domain::device::SharingMode;
use crate::domain::ids::Name;
use crate::domain::layout::{Instance, examine};
use crate::domain::policy::Weighting;
use crate::domain::units::Instant;
use crate::domain::usage::{Slice, SliceSize, VgpuScheduler};

/// Whether slices of the mode exist before somebody holds them.
pub(super) const fn has_layout(mode: SharingMode) -> bool {
    matches!(mode, SharingMode::Mig | SharingMode::Vgpu | SharingMode::MigVgpu)
}

/// The device of a layout.
pub(super) struct Board<'a> {
    pub(super) info: &'a DeviceInfo,
    pub(super) mode: SharingMode,
    /// A UUID that depends on a path alone.
    pub(super) uuid: &'a dyn Fn(&str) -> Uuid,
}

/// A layout under construction.
struct Builder<'a, 'p> {
    place: &'p Place<'p>,
    board: &'p Board<'a>,
    number: usize,
    scheduler: Option<VgpuScheduler>,
    epoch: Epoch,
    instances: Vec<Instance>,
    vgpus: BTreeMap<Name, (u16, &'static VgpuType)>,
}

/// Reads a layout that is there from an instant on, as the device's layout of that number.
pub(super) fn epoch(
    place: &Place<'_>,
    board: &Board<'_>,
    parts: &[PartFile],
    scheduler: Option<VgpuScheduler>,
    (from, number): (Instant, usize),
) -> Result<Epoch, ScriptError> {
    if has_layout(board.mode) == parts.is_empty() && number == 0 || !has_layout(board.mode) && number > 0 {
        let reason = if has_layout(board.mode) { "is missing" } else { "is of mig and vGPUs only" };
        return Err(place.refuse("layout", reason));
    }
    let epoch = Epoch {
        from,
        scheduler,
        slices: Vec::new(),
        weights: Vec::new(),
        whole: 1,
        targets: BTreeMap::new(),
    };
    let (instances, vgpus) = (Vec::new(), BTreeMap::new());
    let mut builder = Builder { place, board, number, scheduler, epoch, instances, vgpus };
    for (at, part) in (0_u16..).zip(parts) {
        builder.add(at, part)?;
    }
    builder.finish()
}

impl Builder<'_, '_> {
    fn add(&mut self, at: u16, part: &PartFile) -> Result<(), ScriptError> {
        let refuse = |key: &str, reason: String| self.place.refuse(&format!("layout[{at}].{key}"), reason);
        let expected = |key: &str, is_there: bool, is_wanted: bool| match (is_there, is_wanted) {
            (true, false) => Err(refuse(key, format!("is not of {}", self.board.mode.word()))),
            (false, true) => Err(refuse(key, "is missing".to_owned())),
            (true, true) | (false, false) => Ok(()),
        };
        let mode = self.board.mode;
        let (is_mig, is_vgpu) = (mode != SharingMode::Vgpu, mode != SharingMode::Mig);
        expected("profile", part.profile.is_some(), is_mig)?;
        expected("start", part.start.is_some(), is_mig)?;
        expected("vgpu", part.vgpu.is_some(), is_vgpu)?;
        if part.count.is_some() && !is_vgpu || part.count == Some(0) {
            return Err(refuse("count", "is of vGPUs, and at least 1".to_owned()));
        }
        let vgpu = part.vgpu.as_deref().map(|text| {
            let reason = || refuse("vgpu", format!("`{text}` is no vGPU type that the catalogue knows"));
            Catalogue::embedded().vgpu(text).ok_or_else(reason)
        });
        let vgpu = vgpu.transpose()?;
        let mut parent = None;
        let mut weight = 1;
        if let (Some(profile), Some(start)) = (&part.profile, part.start) {
            let (instance, compute_slices) = self.instance(at, profile, start)?;
            weight = compute_slices;
            parent = instance.id.clone();
            if let Some(vgpu) = vgpu {
                let wanted = vgpu.gi_profile.as_ref().map(Name::as_str);
                if wanted.and_then(ProfileName::parse) != ProfileName::parse(profile) {
                    let reason = format!("{} does not run on {profile}", vgpu.name);
                    return Err(self.place.refuse(&format!("layout[{at}].vgpu"), reason));
                }
            }
            if vgpu.is_none() {
                self.epoch.targets.insert((at, 0), self.epoch.slices.len());
            }
            self.push(instance, weight);
        } else if let Some(vgpu) = vgpu.filter(|vgpu| vgpu.gi_profile.is_some()) {
            return Err(refuse("vgpu", format!("{} runs on a MIG instance only", vgpu.name)));
        }
        let Some(vgpu) = vgpu else { return Ok(()) };
        let count = part.count.unwrap_or(1);
        if count > vgpu.max {
            return Err(self.place.refuse(
                &format!("layout[{at}].count"),
                format!("{count} × {}, and there is room for {}", vgpu.name, vgpu.max),
            ));
        }
        let all = self.vgpus.entry(vgpu.name.clone()).or_insert((0, vgpu));
        all.0 = all.0.saturating_add(count);
        for number in 0..count {
            let id = (self.board.uuid)(&format!("layout {} part {at} vgpu {number}", self.number));
            let mut slice = self.slice(SliceSize::Profile(vgpu.name.clone()), id.to_string())?;
            slice.parent.clone_from(&parent);
            slice.scheduler = self.scheduler;
            self.epoch.targets.insert((at, number), self.epoch.slices.len());
            self.push(slice, weight);
        }
        Ok(())
    }

    /// A GPU instance, and the compute slices that it has.
    fn instance(&mut self, at: u16, profile: &str, start: u16) -> Result<(Slice, i64), ScriptError> {
        let model = &self.board.info.model;
        let found = Catalogue::embedded().mig_profile(model, profile);
        let is_whole = ProfileName::parse(profile).is_some_and(|name| name.compute_instance.is_none());
        let Some((mig, known)) = found.filter(|_| is_whole) else {
            let reason = format!("`{profile}` is no GPU instance that the catalogue knows of `{model}`");
            return Err(self.place.refuse(&format!("layout[{at}].profile"), reason));
        };
        let number = mig.profiles.iter().position(|each| each.name == known.name).unwrap_or_default();
        self.instances.push(Instance { profile: number, start: Some(start) });
        self.epoch.whole = mig.compute_slices.into();
        let id = (self.board.uuid)(&format!("layout {} part {at}", self.number));
        let mut slice = self.slice(SliceSize::Profile(known.name.clone()), format!("MIG-{id}"))?;
        slice.mode = SharingMode::Mig;
        slice.start = Some(start);
        Ok((slice, known.compute_slices.into()))
    }

    fn slice(&self, size: SliceSize, id: String) -> Result<Slice, ScriptError> {
        let id = Name::parse(&id).map_err(|error| self.place.refuse("layout", error.to_string()))?;
        let slice = Slice::plain(self.board.info.uuid.clone(), self.board.mode, size);
        Ok(Slice { id: Some(id), ..slice })
    }

    fn push(&mut self, slice: Slice, weight: i64) {
        self.epoch.slices.push(slice);
        self.epoch.weights.push(weight);
    }

    /// Checks the layout as a whole.
    fn finish(self) -> Result<Epoch, ScriptError> {
        let refuse = |reason: String| self.place.refuse("layout", reason);
        if !self.instances.is_empty() {
            let mig =
                Catalogue::embedded().board(&self.board.info.model).and_then(|board| board.mig.as_ref());
            let mig = mig.ok_or_else(|| refuse("is of a board that MIG cannot cut".to_owned()))?;
            examine(mig, &self.instances, Weighting::DEFAULT)
                .map_err(|error| refuse(format!("cannot be: {error}")))?;
        }
        let is_time_sliced = self.board.mode == SharingMode::Vgpu;
        if is_time_sliced {
            let boards: BTreeSet<&Name> = self.vgpus.values().map(|(_, vgpu)| &vgpu.board_code).collect();
            if boards.len() > 1 {
                return Err(refuse("has vGPU types of different boards".to_owned()));
            }
            let is_mixed = self.vgpus.len() > 1;
            for (name, (count, vgpu)) in &self.vgpus {
                let most = if is_mixed { vgpu.max_mixed.unwrap_or(vgpu.max) } else { vgpu.max };
                if *count > most {
                    return Err(refuse(format!("has {count} × {name}, and there is room for {most}")));
                }
            }
            let taken =
                self.vgpus.values().map(|(count, vgpu)| u64::from(*count) * u64::from(vgpu.framebuffer_mib));
            let (taken, room) = (taken.fold(0, u64::saturating_add), self.board.info.memory_mib);
            if is_mixed && taken > u64::from(room) {
                return Err(refuse(format!("takes {taken} MiB of framebuffer, and the board has {room}")));
            }
        }
        Ok(self.epoch)
    }
}
