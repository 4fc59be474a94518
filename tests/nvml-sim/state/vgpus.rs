//! Which vGPUs run at an instant, under which ids, and which more could be made.

use crate::boards::{self, VgpuType};
use crate::scenario::{Board, IDS_PER_LOAD, Scenario, Vgpu};

use super::{Call, devices};

/// The vGPUs of a board that run, with the ids that they have since the driver was loaded.
pub(super) fn running<'a>(
    scenario: &Scenario,
    board: &'a Board,
    at: i64,
) -> impl Iterator<Item = (u32, &'a Vgpu)> + use<'a> {
    let there = !devices::is_lost(board, at);
    known(scenario, board, at).into_iter().filter(move |(_, vgpu)| there && vgpu.span().holds(at))
}

/// All vGPUs of a board, also those that do not run, with the ids that they have since the driver was loaded.
pub(super) fn known<'a>(scenario: &Scenario, board: &'a Board, at: i64) -> Vec<(u32, &'a Vgpu)> {
    let (_, loads) = scenario.last_load(at);
    board.vgpu.iter().map(|vgpu| (vgpu.id + loads * IDS_PER_LOAD, vgpu)).collect()
}

impl Call<'_> {
    /// Types that one more vGPU could have: of one size, unless mixed sizes are on, and as many as the board
    /// takes.
    pub(crate) fn creatable(&self, board: &Board) -> Vec<&'static VgpuType> {
        let mixed = board.heterogeneous.as_ref().and_then(|steps| steps.at(self.now)).copied();
        let kind = |vgpu: &Vgpu| boards::vgpu_type(&vgpu.r#type);
        let running: Vec<&VgpuType> =
            running(self.scenario, board, self.now).filter_map(|(_, vgpu)| kind(vgpu)).collect();
        let used: u64 = running.iter().map(|kind| kind.framebuffer_mib).sum();
        let total = boards::board(&board.r#type).map_or(0, |kind| kind.memory_mib);
        let fits = |kind: &&VgpuType| {
            let of_one_size = running.iter().all(|other| other.framebuffer_mib == kind.framebuffer_mib);
            let has_room = match (of_one_size, kind.max) {
                (true, Some(max)) => running.len() < usize::try_from(max).unwrap_or(usize::MAX),
                _ => used + kind.framebuffer_mib <= total,
            };
            (of_one_size || mixed == Some(true)) && has_room
        };
        board.vgpu_types.iter().filter_map(|name| boards::vgpu_type(name)).filter(fits).collect()
    }
}
