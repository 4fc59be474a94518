//! What a scenario may not say: a test that rests on what cannot be proves nothing.

use std::collections::BTreeSet;

use super::board::{Board, GpuInstance, Percents};
use super::time::Span;
use super::{IDS_PER_LOAD, Scenario};
use crate::{abi, boards};

pub(super) fn check(scenario: &Scenario) -> Result<(), String> {
    if scenario.sample_every_ms == 0 {
        return Err("sample_every_ms: a sample takes time".to_owned());
    }
    let symbols = scenario.symbols().filter(|symbol| *symbol != "*");
    if let Some(symbol) = symbols.into_iter().find(|symbol| !abi::is_exported(symbol)) {
        return Err(format!("{symbol} is no function of the library"));
    }
    if let Some(device) =
        scenario.fault.iter().filter_map(|fault| fault.device.as_ref()).find(|uuid| !is_known(scenario, uuid))
    {
        return Err(format!("{device} is no board and no MIG device"));
    }
    check_vgpus(scenario)?;
    let mut uuids = BTreeSet::new();
    for board in &scenario.board {
        let of_board = |what: String| format!("board {}: {what}", board.uuid);
        if !uuids.insert(&board.uuid) {
            return Err(of_board("it is there twice".to_owned()));
        }
        check_board(board).map_err(of_board)?;
        check_samples(board, scenario.sample_period()).map_err(of_board)?;
    }
    Ok(())
}

fn is_known(scenario: &Scenario, uuid: &str) -> bool {
    scenario.board.iter().any(|board| {
        let mut computes = board.instance.iter().flat_map(|instance| &instance.compute);
        board.uuid == uuid || computes.any(|compute| compute.uuid == uuid)
    })
}

fn check_vgpus(scenario: &Scenario) -> Result<(), String> {
    let vgpus: Vec<_> = scenario.board.iter().flat_map(|board| &board.vgpu).collect();
    for (at, vgpu) in vgpus.iter().enumerate() {
        let mut before = vgpus.iter().take(at);
        if before.any(|other| other.id == vgpu.id && other.span().meets(vgpu.span())) {
            return Err(format!("two vGPUs have id {} at once", vgpu.id));
        }
    }
    Ok(())
}

fn check_board(board: &Board) -> Result<(), String> {
    let kind = boards::board(&board.r#type).ok_or_else(|| format!("type {:?} is unknown", board.r#type))?;
    if board.mig.is_some() && kind.mig_slots.is_none() {
        return Err("its type has no MIG".to_owned());
    }
    for name in board.vgpu_types.iter().chain(board.vgpu.iter().map(|vgpu| &vgpu.r#type)) {
        boards::vgpu_type(name).ok_or_else(|| format!("vGPU type {name:?} is unknown"))?;
    }
    if let Some(vgpu) = board.vgpu.iter().find(|vgpu| vgpu.id == 0 || vgpu.id >= IDS_PER_LOAD) {
        return Err(format!("vGPU id {} is not between 1 and {}", vgpu.id, IDS_PER_LOAD - 1));
    }
    if let Some(activity) = board.activity.iter().find(|one| one.value.is_some() == one.code.is_some()) {
        return Err(format!("activity {}: a value or a code", activity.metric));
    }
    check_instances(board)
}

fn check_instances(board: &Board) -> Result<(), String> {
    let mut devices = vec![];
    for (at, instance) in board.instance.iter().enumerate() {
        let of_instance = |what: &str| format!("GPU instance {}: {what}", instance.gi);
        let profile = boards::profile(&board.r#type, &instance.profile)
            .ok_or_else(|| of_instance("its board has no such profile"))?;
        if !profile.starts.contains(&instance.start) {
            return Err(of_instance("it cannot start there"));
        }
        let range = |one: &GpuInstance| {
            let size = boards::profile(&board.r#type, &one.profile).map_or(0, |profile| profile.size);
            one.start..one.start + size
        };
        let mine = range(instance);
        for other in board.instance.iter().take(at) {
            let theirs = range(other);
            let in_place = mine.start < theirs.end && theirs.start < mine.end;
            if instance.span().meets(other.span()) && (in_place || instance.gi == other.gi) {
                return Err(of_instance(&format!("instance {} is in its place", other.gi)));
            }
        }
        for compute in &instance.compute {
            if compute.slices.is_some_and(|slices| slices == 0 || slices > profile.slices) {
                return Err(of_instance("a compute instance has more slices than it"));
            }
            devices.push((compute.slot, meeting(compute.span(), instance.span())));
        }
    }
    for (at, (slot, span)) in devices.iter().enumerate() {
        if devices.iter().take(at).any(|(other, of_other)| other == slot && span.meets(*of_other)) {
            return Err(format!("two MIG devices have index {slot} at once"));
        }
    }
    Ok(())
}

fn meeting(one: Span, other: Span) -> Span {
    Span { from: one.from.max(other.from), until: one.until.min(other.until) }
}

fn check_samples(board: &Board, period: i64) -> Result<(), String> {
    let of_processes = board.process.iter().map(|process| (process.pid, process.percent.as_ref()));
    let of_vgpus = board.vgpu.iter().map(|vgpu| (vgpu.id, vgpu.percent.as_ref()));
    let of_guests = board
        .vgpu
        .iter()
        .flat_map(|vgpu| &vgpu.process)
        .map(|process| (process.pid, process.percent.as_ref()));
    for (whose, percents) in of_processes.chain(of_vgpus).chain(of_guests) {
        if percents.is_some_and(|percents| !on_grid(percents, period)) {
            return Err(format!("percents of {whose} change between two samples"));
        }
    }
    Ok(())
}

fn on_grid(percents: &Percents, period: i64) -> bool {
    let mut steps = percents.engines().into_iter().flatten();
    steps.all(|steps| steps.edges().all(|edge| edge % period == 0))
}
