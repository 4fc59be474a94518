//! What boards and their MIG devices are at an instant, from the scenario alone.

use crate::boards;
use crate::scenario::{Board, Bounds, Percents, Process, Scenario, Span, Steps};

use super::{Answer, Call, Code, Device, Instance, MigDevice, vgpus};

/// Bytes of a MiB.
pub(crate) const MIB: u64 = 1_048_576;

pub(super) fn is_lost(board: &Board, at: i64) -> bool {
    Bounds::hold(&board.lost, at) || Bounds::hold(&board.absent, at)
}

pub(super) fn wants_reset(board: &Board, at: i64) -> bool {
    Bounds::hold(&board.reset_required, at)
}

pub(super) fn is_mig(board: &Board, at: i64) -> bool {
    board.mig.as_ref().and_then(|mig| mig.at(at)).copied().unwrap_or(false)
}

/// The boards that are counted, in the order of their indices: those that are absent leave no gap.
pub(super) fn counted(scenario: &Scenario, at: i64) -> Vec<&Board> {
    let there = scenario.board.iter().enumerate().filter(|(_, board)| !Bounds::hold(&board.absent, at));
    let mut boards: Vec<(u32, usize, &Board)> = there
        .map(|(place, board)| {
            let own = board.index.as_ref().and_then(|index| index.at(at)).copied();
            (own.unwrap_or(u32::try_from(place).unwrap_or(u32::MAX)), place, board)
        })
        .collect();
    boards.sort_by_key(|(index, place, _)| (*index, *place));
    boards.into_iter().map(|(_, _, board)| board).collect()
}

pub(super) fn instances(board: &Board, at: i64) -> impl Iterator<Item = Instance<'_>> + use<'_> {
    let is_on = is_mig(board, at);
    board.instance.iter().filter(move |one| is_on && one.span().holds(at)).filter_map(|instance| {
        let profile = boards::profile(&board.r#type, &instance.profile)?;
        Some(Instance { board, instance, profile })
    })
}

pub(super) fn mig_devices(board: &Board, at: i64) -> impl Iterator<Item = MigDevice<'_>> + use<'_> {
    instances(board, at).flat_map(move |parent| {
        let computes = parent.instance.compute.iter().filter(move |one| one.span().holds(at));
        computes.map(move |compute| MigDevice { parent, compute })
    })
}

impl Instance<'_> {
    pub(crate) fn memory_mib(&self) -> u64 {
        self.instance.memory_mib.unwrap_or_else(|| self.profile.memory_mib())
    }

    pub(crate) fn sms(&self) -> u32 {
        self.instance.sms.or(self.profile.sms).unwrap_or(0)
    }
}

impl MigDevice<'_> {
    pub(crate) fn slices(&self) -> u32 {
        self.compute.slices.unwrap_or(self.parent.profile.slices)
    }

    /// Its part of its GPU instance's multiprocessors.
    pub(crate) fn sms(&self) -> u32 {
        self.parent.sms() * self.slices() / self.parent.profile.slices.max(1)
    }

    /// As the driver names it: `1c.` only where it is not all of its GPU instance.
    pub(crate) fn name(&self) -> String {
        let profile = &self.parent.profile.profile;
        match self.slices() {
            slices if slices == self.parent.profile.slices => profile.clone(),
            slices => format!("{slices}c.{profile}"),
        }
    }
}

/// Memory in bytes: total, reserved, used.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Memory {
    pub(crate) total: u64,
    pub(crate) reserved: u64,
    pub(crate) used: u64,
}

impl<'a> Call<'a> {
    /// The processes of a device, alive now.
    pub(crate) fn processes(&self, device: Device<'a>) -> impl Iterator<Item = &'a Process> + use<'a> {
        let now = self.now;
        device.board().process.iter().filter(move |process| {
            let of_device = match device {
                Device::Board(_) => true,
                Device::Mig(mig) => {
                    process.gi == Some(mig.parent.instance.gi) && process.ci == Some(mig.compute.ci)
                }
            };
            of_device && process.span().holds(now)
        })
    }

    pub(crate) fn memory(&self, device: Device<'a>) -> Answer<Memory> {
        let held = self.processes(device).filter_map(|process| memory_of(process, self.now)).sum::<u64>();
        match device {
            Device::Mig(mig) => {
                let total = mig.parent.memory_mib() * MIB;
                Ok(Memory { total, reserved: 0, used: held.min(total) })
            }
            Device::Board(board) => {
                let kind = self.kind(board)?;
                let of_vgpus = vgpus::running(self.scenario, board, self.now)
                    .filter_map(|(_, vgpu)| boards::vgpu_type(&vgpu.r#type))
                    .map(|kind| kind.framebuffer_mib * MIB)
                    .sum::<u64>();
                let told = board.used_mib.as_ref().and_then(|used| used.at(self.now));
                let (total, reserved) = (kind.memory_mib * MIB, board.reserved_mib * MIB);
                let used = told.map_or(held + of_vgpus, |mib| mib * MIB);
                Ok(Memory { total, reserved, used: used.min(total.saturating_sub(reserved)) })
            }
        }
    }

    /// What the energy counter shows, in millijoules: the power since the driver was loaded.
    pub(crate) fn energy(&self, board: &Board) -> Answer<u64> {
        let power = board.power_mw.as_ref().ok_or(Code::NOT_SUPPORTED)?;
        let (loaded, _) = self.scenario.last_load(self.now);
        let before = if loaded.is_some() { 0 } else { board.energy_mj };
        let span = Span { from: loaded.unwrap_or(0), until: self.now };
        let nanojoules: i128 = power
            .pieces(span)
            .into_iter()
            .map(|(us, mw)| i128::from(us) * mw.map_or(0, |mw| i128::from(*mw)))
            .sum();
        Ok(before + u64::try_from(nanojoules / 1_000_000).unwrap_or(0))
    }

    /// Nanoseconds since the driver was loaded in which one of these throttle reasons held.
    fn throttled_ns(&self, board: &Board, bits: u64) -> Option<u64> {
        let (loaded, _) = self.scenario.last_load(self.now);
        let span = Span { from: loaded.unwrap_or(0), until: self.now };
        let pieces = board.throttle.as_ref()?.pieces(span).into_iter();
        let held = pieces.filter(|(_, reasons)| reasons.is_some_and(|reasons| reasons & bits != 0));
        u64::try_from(held.map(|(us, _)| us * 1_000).sum::<i64>()).ok()
    }

    /// Percent of the board's time that its processes use, at most 100.
    pub(crate) fn percent(&self, board: &'a Board, own: Option<&Steps<u32>>, engine: usize) -> u32 {
        if let Some(percent) = own.and_then(|steps| steps.at(self.now)) {
            return *percent;
        }
        let of_processes =
            self.processes(Device::Board(board)).filter_map(|process| process.percent.as_ref());
        let of_vgpus = self.vgpus(board).into_iter().filter_map(|(_, vgpu)| vgpu.percent.as_ref());
        let of = |percents: &Percents| percents.at(self.now).get(engine).copied().unwrap_or(0);
        of_processes.chain(of_vgpus).map(of).sum::<u32>().min(100)
    }
}

/// What a process holds, in bytes; `None`: the driver does not say.
pub(crate) fn memory_of(process: &Process, at: i64) -> Option<u64> {
    process.memory_mib.as_ref()?.at(at)?.0.map(|mib| mib * MIB)
}

/// Field values, by the numbers that drivers before 580.82 use.
pub(crate) mod fields {
    use super::{Answer, Board, Call, Code};

    /// A value with its kind.
    pub(crate) enum Value {
        Unsigned(u32),
        Long(u64),
    }

    /// SM power capping.
    const POWER: u64 = 0x4;
    /// Thermal slowdown, by software or hardware.
    const THERMAL: u64 = 0x60;

    /// What a driver of this scenario calls a field, as an older one calls it.
    pub(crate) fn older_number(call: &Call<'_>, id: u32) -> u32 {
        match id {
            251..=268 if call.scenario.numbers_fields_anew() => id + 5,
            269..=273 if call.scenario.numbers_fields_anew() => id - 18,
            _ => id,
        }
    }

    /// The value of a field.
    pub(crate) fn value(call: &Call<'_>, board: &Board, id: u32) -> Answer<Value> {
        let older = older_number(call, id);
        if let Some(field) = board.field.iter().find(|field| field.id == older) {
            if let Some(code) = field.code {
                return Err(Code(code));
            }
            let told = field.value.as_ref().and_then(|steps| steps.at(call.now));
            return told.map(|value| Value::Long(*value)).ok_or(Code::NOT_SUPPORTED);
        }
        let power = || board.power_mw.as_ref().and_then(|power| power.at(call.now)).copied();
        let value = match older {
            74 => call.throttled_ns(board, POWER).map(Value::Long),
            75 => call.throttled_ns(board, THERMAL).map(Value::Long),
            83 => return call.energy(board).map(Value::Long),
            185 | 186 => power().map(Value::Unsigned),
            190 => board.power_limit_mw.map(Value::Unsigned),
            230 => board
                .recovery_action
                .as_ref()
                .and_then(|steps| steps.at(call.now))
                .copied()
                .map(Value::Unsigned),
            _ => None,
        };
        value.ok_or(Code::NOT_SUPPORTED)
    }
}
