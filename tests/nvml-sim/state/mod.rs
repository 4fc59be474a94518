//! What the library keeps between calls, and what a call finds: its instant, the scenario, and who it is
//! about.

mod devices;
mod events;
mod gpm;
mod handles;
mod samples;
mod vgpus;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::boards::{self, BoardType, Profile};
use crate::clock::{FileState, Folder};
use crate::scenario::{Board, ComputeInstance, GpuInstance, Scenario, Subject, Vgpu};
use handles::{Handle, Handles};

pub(crate) use devices::{MIB, fields, memory_of};
pub(crate) use events::{Event, MIG_CHANGE, XID};
pub(crate) use samples::{GuestSample, Sample};

/// Why a call fails: NVML's return codes, of which there are more than anybody has a name for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Code(pub(crate) u32);

impl Code {
    pub(crate) const UNINITIALIZED: Code = Code(1);
    pub(crate) const INVALID_ARGUMENT: Code = Code(2);
    pub(crate) const NOT_SUPPORTED: Code = Code(3);
    pub(crate) const NO_PERMISSION: Code = Code(4);
    pub(crate) const NOT_FOUND: Code = Code(6);
    pub(crate) const INSUFFICIENT_SIZE: Code = Code(7);
    pub(crate) const DRIVER_NOT_LOADED: Code = Code(9);
    pub(crate) const TIMEOUT: Code = Code(10);
    pub(crate) const GPU_LOST: Code = Code(15);
    pub(crate) const RESET_REQUIRED: Code = Code(16);
    pub(crate) const VERSION_MISMATCH: Code = Code(25);
    pub(crate) const UNKNOWN: Code = Code(999);
}

/// What a call comes to.
pub(crate) type Answer<T = ()> = Result<T, Code>;

/// One for each copy of the library that is loaded.
static WORLD: Mutex<World> = Mutex::new(World::new());

/// What is kept between calls.
struct World {
    /// How often it was initialised and not shut down since.
    inits: u32,
    folder: Option<Folder>,
    scenario: Option<(FileState, Arc<Scenario>)>,
    handles: Handles,
    sets: events::Sets,
    samples: gpm::Samples,
}

impl World {
    const fn new() -> World {
        World {
            inits: 0,
            folder: None,
            scenario: None,
            handles: Handles::new(),
            sets: events::Sets::new(),
            samples: gpm::Samples::new(),
        }
    }

    fn folder(&self) -> Answer<&Folder> {
        self.folder.as_ref().ok_or(Code::UNKNOWN)
    }

    /// Reads the scenario if its file is another than before.
    fn refresh(&mut self) -> Result<(), String> {
        if self.folder.is_none() {
            self.folder = Some(Folder::of_this_library().map_err(|error| error.to_string())?);
        }
        let Some(folder) = &self.folder else {
            return Ok(());
        };
        let state = folder.scenario_state().map_err(|error| format!("scenario.toml: {error}"))?;
        if self.scenario.as_ref().is_none_or(|(known, _)| *known != state) {
            let text = std::fs::read_to_string(folder.scenario()).map_err(|error| error.to_string())?;
            let scenario = Scenario::read(&text)?;
            self.scenario = Some((state, Arc::new(scenario)));
        }
        Ok(())
    }

    /// As [`World::refresh`]; a scenario that cannot be read is told beside the library.
    fn refreshed(&mut self) -> Answer<Arc<Scenario>> {
        if let Err(message) = self.refresh() {
            if let Some(folder) = &self.folder {
                folder.complain(&message);
            }
            return Err(Code::UNKNOWN);
        }
        self.scenario.as_ref().map(|(_, scenario)| Arc::clone(scenario)).ok_or(Code::UNKNOWN)
    }
}

fn world() -> MutexGuard<'static, World> {
    // A call that panicked changed nothing that the next one could not live with.
    WORLD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The number of an answer; a panic must not pass into the caller's C.
pub(crate) fn guarded(call: impl FnOnce() -> Answer) -> u32 {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(())) => 0,
        Ok(Err(Code(code))) => code,
        Err(_) => Code::UNKNOWN.0,
    }
}

/// Runs a call at the instant that it is.
pub(crate) fn enter(symbol: &'static str, act: impl FnOnce(&mut Call<'_>) -> Answer) -> u32 {
    guarded(|| {
        let mut world = world();
        if world.inits == 0 {
            return Err(Code::UNINITIALIZED);
        }
        // Counting devices is what an agent does once a cycle, so a test may rewrite the scenario between
        // two.
        let scenario = match (&world.scenario, symbol) {
            (Some((_, scenario)), name) if name != "nvmlDeviceGetCount_v2" => Arc::clone(scenario),
            _ => world.refreshed()?,
        };
        let now = world.folder()?.now().map_err(|_| Code::UNKNOWN)? - scenario.origin;
        if let Some(code) = scenario.fault(symbol, Subject::Library, now) {
            return Err(Code(code));
        }
        act(&mut Call { symbol, now, scenario: &scenario, world: &mut world })
    })
}

/// Initialises the library once more.
pub(crate) fn initialise(symbol: &'static str) -> u32 {
    guarded(|| {
        let mut world = world();
        let scenario = world.refreshed()?;
        let now = world.folder()?.now().map_err(|_| Code::UNKNOWN)? - scenario.origin;
        let failure = scenario.init_failure(now);
        if let Some(code) = failure.or_else(|| scenario.fault(symbol, Subject::Library, now)) {
            return Err(Code(code));
        }
        world.inits += 1;
        Ok(())
    })
}

/// Ends one initialisation.
pub(crate) fn shut_down() -> u32 {
    guarded(|| {
        let mut world = world();
        world.inits = world.inits.checked_sub(1).ok_or(Code::UNINITIALIZED)?;
        Ok(())
    })
}

/// A call, while it runs.
pub(crate) struct Call<'a> {
    pub(crate) symbol: &'static str,
    /// Microseconds after the scenario's start.
    pub(crate) now: i64,
    pub(crate) scenario: &'a Scenario,
    world: &'a mut World,
}

/// A GPU instance with what its profile is.
#[derive(Clone, Copy)]
pub(crate) struct Instance<'a> {
    pub(crate) board: &'a Board,
    pub(crate) instance: &'a GpuInstance,
    pub(crate) profile: &'static Profile,
}

/// A MIG device.
#[derive(Clone, Copy)]
pub(crate) struct MigDevice<'a> {
    pub(crate) parent: Instance<'a>,
    pub(crate) compute: &'a ComputeInstance,
}

/// What a device handle is of.
#[derive(Clone, Copy)]
pub(crate) enum Device<'a> {
    Board(&'a Board),
    Mig(MigDevice<'a>),
}

impl<'a> Device<'a> {
    pub(crate) fn board(self) -> &'a Board {
        match self {
            Device::Board(board) => board,
            Device::Mig(device) => device.parent.board,
        }
    }
}

impl<'a> Call<'a> {
    /// The instant as the driver stamps it.
    pub(crate) fn stamp(&self, at: i64) -> u64 {
        u64::try_from(self.scenario.origin + at).unwrap_or(0)
    }

    /// The type of a board.
    pub(crate) fn kind(&self, board: &Board) -> Answer<&'static BoardType> {
        boards::board(&board.r#type).ok_or(Code::UNKNOWN)
    }

    /// Whom a device handle is of, if it can be asked now.
    pub(crate) fn device(&self, handle: usize) -> Answer<Device<'a>> {
        let (board, mig) = match self.world.handles.find(handle) {
            Some(Handle::Board(uuid)) => (uuid, None),
            Some(Handle::Mig { board, uuid }) => (board, Some(uuid)),
            _ => return Err(Code::INVALID_ARGUMENT),
        };
        let (_, board) = self.scenario.board(board).ok_or(Code::INVALID_ARGUMENT)?;
        self.check_board(board)?;
        let Some(mig) = mig else {
            return Ok(Device::Board(board));
        };
        let found = self.mig_devices(board).find(|device| device.compute.uuid == *mig);
        let device = found.ok_or(Code::INVALID_ARGUMENT)?;
        self.check_fault(Subject::Device(mig))?;
        Ok(Device::Mig(device))
    }

    /// As [`Call::device`], where MIG devices cannot be asked.
    pub(crate) fn board(&self, handle: usize) -> Answer<&'a Board> {
        match self.device(handle)? {
            Device::Board(board) => Ok(board),
            Device::Mig(_) => Err(Code::NOT_SUPPORTED),
        }
    }

    /// As [`Call::board`], where only boards with MIG can be asked.
    pub(crate) fn mig_board(&self, handle: usize) -> Answer<&'a Board> {
        let board = self.board(handle)?;
        self.kind(board)?.mig_slots.map(|_| board).ok_or(Code::NOT_SUPPORTED)
    }

    /// Whether a board answers.
    pub(crate) fn check_board(&self, board: &Board) -> Answer {
        self.check_fault(Subject::Device(&board.uuid))?;
        if devices::is_lost(board, self.now) {
            return Err(Code::GPU_LOST);
        }
        if devices::wants_reset(board, self.now) {
            return Err(Code::RESET_REQUIRED);
        }
        Ok(())
    }

    fn check_fault(&self, subject: Subject<'_>) -> Answer {
        match self.scenario.fault(self.symbol, subject, self.now) {
            Some(code) => Err(Code(code)),
            None => Ok(()),
        }
    }

    /// Fails where the caller may only read.
    pub(crate) fn check_privilege(&self) -> Answer {
        if self.scenario.is_privileged(self.now) { Ok(()) } else { Err(Code::NO_PERMISSION) }
    }

    /// Fails while the board is in MIG mode.
    pub(crate) fn check_undivided(&self, board: &Board) -> Answer {
        if devices::is_mig(board, self.now) { Err(Code::NOT_SUPPORTED) } else { Ok(()) }
    }

    /// The GPU instances of a board that exist now.
    pub(crate) fn instances(&self, board: &'a Board) -> impl Iterator<Item = Instance<'a>> + use<'a> {
        devices::instances(board, self.now)
    }

    /// The MIG devices of a board that exist now.
    pub(crate) fn mig_devices(&self, board: &'a Board) -> impl Iterator<Item = MigDevice<'a>> + use<'a> {
        devices::mig_devices(board, self.now)
    }

    /// The boards that are counted, in the order of their indices.
    pub(crate) fn boards(&self) -> Vec<&'a Board> {
        devices::counted(self.scenario, self.now)
    }

    pub(crate) fn board_handle(&mut self, board: &Board) -> usize {
        self.world.handles.of(Handle::Board(board.uuid.clone()))
    }

    pub(crate) fn mig_handle(&mut self, device: MigDevice<'_>) -> usize {
        let board = device.parent.board.uuid.clone();
        self.world.handles.of(Handle::Mig { board, uuid: device.compute.uuid.clone() })
    }

    pub(crate) fn instance_handle(&mut self, instance: Instance<'_>) -> usize {
        let from = instance.instance.span().from;
        self.world.handles.of(Handle::GpuInstance {
            board: instance.board.uuid.clone(),
            gi: instance.instance.gi,
            from,
        })
    }

    /// The GPU instance of a handle, while it exists.
    pub(crate) fn instance(&self, handle: usize) -> Answer<Instance<'a>> {
        let Some(Handle::GpuInstance { board, gi, from }) = self.world.handles.find(handle) else {
            return Err(Code::INVALID_ARGUMENT);
        };
        let (_, board) = self.scenario.board(board).ok_or(Code::INVALID_ARGUMENT)?;
        self.check_board(board)?;
        let mut instances = self.instances(board);
        let found = instances.find(|one| one.instance.gi == *gi && one.instance.span().from == *from);
        found.ok_or(Code::INVALID_ARGUMENT)
    }

    pub(crate) fn compute_handle(&mut self, device: MigDevice<'_>) -> usize {
        let board = device.parent.board.uuid.clone();
        self.world.handles.of(Handle::ComputeInstance { board, uuid: device.compute.uuid.clone() })
    }

    /// The compute instance of a handle, while it exists.
    pub(crate) fn compute(&self, handle: usize) -> Answer<MigDevice<'a>> {
        let Some(Handle::ComputeInstance { board, uuid }) = self.world.handles.find(handle) else {
            return Err(Code::INVALID_ARGUMENT);
        };
        let (_, board) = self.scenario.board(board).ok_or(Code::INVALID_ARGUMENT)?;
        self.check_board(board)?;
        let found = self.mig_devices(board).find(|device| device.compute.uuid == *uuid);
        found.ok_or(Code::INVALID_ARGUMENT)
    }

    /// The vGPU of an id, with its board, while it runs.
    pub(crate) fn vgpu(&self, id: u32) -> Answer<(&'a Board, &'a Vgpu)> {
        let found = self.scenario.board.iter().find_map(|board| {
            let vgpu = vgpus::running(self.scenario, board, self.now).find(|(running, _)| *running == id)?;
            Some((board, vgpu.1))
        });
        let (board, vgpu) = found.ok_or(Code(self.scenario.dead_vgpu))?;
        self.check_board(board)?;
        self.check_fault(Subject::Vgpu(id))?;
        Ok((board, vgpu))
    }

    /// The vGPUs of a board that run now, with their ids.
    pub(crate) fn vgpus(&self, board: &'a Board) -> Vec<(u32, &'a Vgpu)> {
        vgpus::running(self.scenario, board, self.now).collect()
    }
}
