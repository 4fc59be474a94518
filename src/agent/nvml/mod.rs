//! The GPUs of this host, by NVIDIA's management library, and those that it gave to VMs, by the kernel.
//!
//! | file | knows |
//! |---|---|
//! | `library` | whether there is a library and a driver, and what would help where there is none |
//! | `raw` | what the wrapper does not call, or calls wrongly |
//! | `fault` | what an error means; what a board does not have |
//! | `board` | one board from look to look |
//! | `snapshot`, `processes`, `mig`, `vgpu` | what is there: slices, holders, meters |
//! | `utilization`, `gpm`, `energy` | what was measured |
//! | `health` | critical errors |
//! | `host`, `vfio` | processes, control groups, users; cards of VMs |
//! | `state` | what outlives the process |
//! | `checkup` | what an agent needs of a host |
//!
//! Always true here: nothing is ever changed on a GPU; one that fails stops no other; what the driver does
//! not tell is none and not 0; a device is its UUID, whatever its index.

mod board;
pub mod checkup;
mod energy;
mod fault;
mod gpm;
pub mod health;
pub mod host;
pub mod library;
mod mig;
mod processes;
pub mod raw;
mod snapshot;
mod state;
mod utilization;
mod vfio;
pub mod vgpu;

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;

use nvml_wrapper::{Device, Nvml};

use super::source::{DeviceInfo, DeviceSample, Inventory, Presence, Sample, Source, SourceError, Standing};
use crate::domain::ids::Name;
use crate::domain::units::{Instant, MICROS_PER_SECOND};
use board::{Board, Moment};
use fault::Fault;
use health::Health;
use host::{Host, Roots};
use library::{Condition, Library};
use raw::Scheduling;
use state::{BoardState, CardState, State};
use vfio::{Card, Holders};
use vgpu::VgpuRecord;

/// Between two lists of the cards of VMs, in microseconds.
const CARDS_EVERY_MICROS: i64 = 5 * MICROS_PER_SECOND;
/// Between two questions whether the driver is still the same, in microseconds.
const DRIVER_EVERY_MICROS: i64 = 60 * MICROS_PER_SECOND;

/// Where an NVML source looks.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NvmlOptions {
    /// The library's file; none: where the loader finds `libnvidia-ml.so.1`.
    pub library: Option<PathBuf>,
    /// The host's folders.
    pub roots: Roots,
}

/// A source that sees the GPUs of this host. See the module.
#[derive(Debug)]
pub struct NvmlSource {
    library: Library,
    host: Host,
    /// In the order in which they were first seen.
    devices: Vec<Watched>,
    cards: Cards,
    /// States of boards that were not seen again yet.
    kept: BTreeMap<String, BoardState>,
    last: Option<Instant>,
    asked_driver: Option<Instant>,
}

/// A device, while this process knows it.
struct Watched {
    info: DeviceInfo,
    board: Board,
    /// What was shown of it last.
    shown: Option<Arc<Standing>>,
}

impl std::fmt::Debug for Watched {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watched").field("info", &self.info).finish_non_exhaustive()
    }
}

/// The cards that were given to VMs.
#[derive(Debug, Default)]
struct Cards {
    now: Vec<Card>,
    listed: Option<Instant>,
    holders: Holders,
    /// What the driver knew of the card at an address.
    known: BTreeMap<String, CardState>,
}

/// What the driver has at one look.
#[derive(Default)]
struct Found<'n> {
    /// By UUID.
    devices: HashMap<Name, Device<'n>>,
    /// Why those that did not tell who they are do not answer.
    lost: Option<&'static str>,
}

impl NvmlSource {
    /// A source. Nothing is loaded before the first look.
    #[must_use]
    pub fn new(options: NvmlOptions) -> Self {
        Self {
            library: Library::new(options.library),
            host: Host::new(options.roots),
            devices: Vec::new(),
            cards: Cards::default(),
            kept: BTreeMap::new(),
            last: None,
            asked_driver: None,
        }
    }

    /// In which condition the library is; none: it was not tried yet.
    #[must_use]
    pub const fn condition(&self) -> Option<&Condition> {
        self.library.condition()
    }

    /// The vGPUs that ran at the last look, with their licenses.
    pub fn vgpus(&self) -> impl Iterator<Item = &VgpuRecord> {
        self.devices.iter().flat_map(|watched| &watched.board.vgpus.records)
    }

    /// How a device was at the last look.
    #[must_use]
    pub fn health(&self, device: &Name) -> Option<&Health> {
        self.watched(device).map(|watched| &watched.board.health)
    }

    /// How a device's time is divided among vGPUs, with its parameters; none: it has no such thing.
    #[must_use]
    pub fn scheduling(&self, device: &Name) -> Option<Scheduling> {
        self.watched(device)?.board.vgpus.scheduling()
    }

    fn watched(&self, device: &Name) -> Option<&Watched> {
        self.devices.iter().find(|watched| watched.info.uuid == *device)
    }

    /// The library, loaded now if that is due.
    fn nvml(&mut self, at: Option<Instant>) -> Option<Arc<Nvml>> {
        if self.library.load(at) {
            self.devices.iter_mut().for_each(|watched| watched.board.forget());
        }
        let nvml = self.library.loaded()?;
        if let Some(at) = at {
            let is_due = |last: Instant| !(0..DRIVER_EVERY_MICROS).contains(&at.micros_since(last));
            if self.asked_driver.is_none_or(is_due) {
                self.asked_driver = Some(at);
                if self.library.has_new_driver() {
                    self.devices.iter_mut().for_each(|watched| watched.board.forget());
                }
            }
        }
        Some(nvml)
    }

    /// Finds the boards that the driver has, and takes up those that are new.
    fn find<'n>(&mut self, nvml: &'n Arc<Nvml>) -> Result<Found<'n>, Fault> {
        let count = nvml.device_count()?;
        let mut found = Found::default();
        for index in 0..count {
            let asked = nvml.device_by_index(index).and_then(|device| Ok((device.uuid()?, device)));
            match asked.map_err(Fault::from) {
                Ok((uuid, device)) => {
                    if let Ok(uuid) = Name::parse(&uuid) {
                        self.take_up(nvml, &uuid, index, &device);
                        found.devices.insert(uuid, device);
                    }
                }
                Err(fault @ Fault::Library(_)) => return Err(fault),
                Err(Fault::Lost(reason)) => found.lost = Some(reason),
                Err(_) => found.lost = Some("the GPU does not answer"),
            }
        }
        self.library.say(if count == 0 { Condition::NoGpu } else { Condition::Ready });
        Ok(found)
    }

    /// Takes up a board that is new, or has another index.
    fn take_up(&mut self, nvml: &Arc<Nvml>, uuid: &Name, index: u32, device: &Device<'_>) {
        let address = raw::address(device);
        let known = self.devices.iter_mut().find(|watched| watched.info.uuid == *uuid);
        if let Some(watched) = known.filter(|watched| watched.board.address != 0) {
            watched.info.index = index;
            if !watched.board.is_heard_by(address) {
                watched.board.listen(nvml, device);
            }
            return;
        }
        let parsed = |text: Result<String, _>| text.ok().and_then(|text: String| Name::parse(&text).ok());
        let Some(model) = parsed(device.name()) else { return };
        let bytes = device.memory_info().map_or(0, |memory| memory.total);
        let info = DeviceInfo {
            uuid: uuid.clone(),
            model,
            memory_mib: u32::try_from(bytes >> 20).unwrap_or(u32::MAX),
            index,
            pci: device.pci_info().ok().and_then(|pci| vfio::address(&pci.bus_id)),
            serial: parsed(device.serial()),
        };
        if let Some(pci) = &info.pci {
            self.cards.known.insert(pci.to_string(), CardState::of(&info));
            // What was known by its place only has a name now.
            self.devices.retain(|watched| {
                watched.info.pci.as_ref() != Some(pci) || !watched.info.uuid.as_str().starts_with("PCI-")
            });
        }
        match self.devices.iter_mut().find(|watched| watched.info.uuid == *uuid) {
            // It was a VM's until now.
            Some(watched) => {
                watched.info = info;
                watched.board.listen(nvml, device);
            }
            None => {
                let mut board = Board::restored(self.kept.remove(uuid.as_str()).unwrap_or_default());
                board.listen(nvml, device);
                self.devices.push(Watched { info, board, shown: None });
            }
        }
    }

    /// Lists the cards of VMs where that is due, and takes up those that are new.
    fn list_cards(&mut self, at: Option<Instant>, is_due: bool, counted: usize) {
        let last = self.cards.listed;
        let is_late =
            at.zip(last).is_none_or(|(at, last)| !(0..CARDS_EVERY_MICROS).contains(&at.micros_since(last)));
        if !is_due && !is_late {
            return;
        }
        self.cards.listed = at;
        self.cards.now = vfio::cards(&self.host.roots.sys);
        for (place, card) in self.cards.now.iter().enumerate() {
            // The driver does not number it: it comes after those that it does.
            let index = u32::try_from(counted.saturating_add(place)).unwrap_or(u32::MAX);
            let known = self.cards.known.get(card.pci.as_str());
            let info = known.and_then(|known| known.info(&card.pci, index)).or_else(|| card.info(index));
            let Some(info) = info else { continue };
            match self.devices.iter_mut().find(|watched| watched.info.uuid == info.uuid) {
                Some(watched) => watched.info.index = index,
                None => self.devices.push(Watched { info, board: Board::default(), shown: None }),
            }
        }
    }

    /// Looks at one device.
    fn look(
        &mut self,
        place: usize,
        (nvml, found): (Option<&Arc<Nvml>>, &Found<'_>),
        held: &HashMap<Name, Standing>,
        moment: Moment,
    ) -> Result<Option<DeviceSample>, Fault> {
        let Some(watched) = self.devices.get_mut(place) else { return Ok(None) };
        let name = watched.info.uuid.clone();
        let lost = |watched: &mut Watched, reason: &str| {
            watched.board.lose();
            let reason = watched.board.health.reason(moment.at, reason);
            // What it was lost for stays what it was lost for.
            let before = watched.shown.as_ref().and_then(|shown| match &shown.presence {
                Presence::Lost(before) if health::is_of_board(before) => Some(before.clone()),
                Presence::Lost(_) | Presence::Present => None,
            });
            Standing::lost(name.clone(), before.unwrap_or(reason))
        };
        let standing = match (nvml, found.devices.get(&name)) {
            (Some(nvml), Some(device)) => {
                let of = (&name, watched.info.index);
                match watched.board.look((nvml, device), of, &mut self.host, moment) {
                    Ok(mut look) => {
                        if let Some(shown) = watched.shown.replace(Arc::clone(&look.standing)) {
                            look.measured_of = shown;
                        }
                        return Ok(Some(look));
                    }
                    Err(Fault::Lost(reason)) => lost(watched, reason),
                    Err(fault @ Fault::Library(_)) => return Err(fault),
                    Err(fault) => {
                        tracing::warn!(device = %name, ?fault, "a GPU cannot be looked at");
                        lost(watched, "the GPU does not answer")
                    }
                }
            }
            _ => match held.get(&name) {
                Some(standing) => {
                    // The driver has it no more; when it has it again, it is taken up anew.
                    watched.board.let_go();
                    watched.board.address = 0;
                    standing.clone()
                }
                None if nvml.is_none() && watched.board.address != 0 => {
                    let why = self.library.condition().map(ToString::to_string).unwrap_or_default();
                    lost(watched, &why)
                }
                None => lost(watched, found.lost.unwrap_or("the driver does not list it")),
            },
        };
        let before = watched.shown.take();
        let standing = match &before {
            Some(before) if **before == standing => Arc::clone(before),
            _ => Arc::new(standing),
        };
        watched.shown = Some(Arc::clone(&standing));
        let mut look = DeviceSample::unmeasured(standing);
        if let Some(before) = before {
            look.measured_of = before;
        }
        Ok(Some(look))
    }

    /// What is there of the cards of VMs, by device.
    fn held(&mut self, at: Instant) -> HashMap<Name, Standing> {
        let holders = self.cards.holders.of(&mut self.host, &self.cards.now, at);
        let cards = self.cards.now.iter().zip(holders);
        let standing = |(card, holder): (&Card, _)| {
            let watched = self.devices.iter().find(|watched| watched.info.pci.as_ref() == Some(&card.pci))?;
            Some((watched.info.uuid.clone(), card.standing(&watched.info.uuid, holder)))
        };
        cards.filter_map(standing).collect()
    }

    /// Lets the library go where it or its driver is gone.
    fn unload(&mut self, why: Condition, at: Option<Instant>) {
        self.devices.iter_mut().for_each(|watched| watched.board.let_go());
        self.library.unload(why, at);
    }
}

impl Source for NvmlSource {
    fn inventory(&mut self) -> Result<Inventory, SourceError> {
        let nvml = self.nvml(None);
        let counted = match nvml.as_ref().map(|nvml| self.find(nvml)) {
            Some(Ok(found)) => found.devices.len(),
            Some(Err(Fault::Library(why))) => {
                self.unload(why, None);
                0
            }
            Some(Err(fault)) => return Err(unavailable(&fault)),
            None => 0,
        };
        self.list_cards(None, true, counted);
        let mut devices: Vec<DeviceInfo> = self.devices.iter().map(|watched| watched.info.clone()).collect();
        devices.sort_by(|a, b| (a.index, &a.uuid).cmp(&(b.index, &b.uuid)));
        Ok(Inventory { driver: self.library.driver.clone(), devices })
    }

    fn sample(&mut self, at: Instant, sample: &mut Sample) -> Result<(), SourceError> {
        self.host.begin();
        let mut nvml = self.nvml(Some(at));
        let mut found = Found::default();
        let handle = nvml.clone();
        match handle.as_ref().map(|nvml| self.find(nvml)) {
            Some(Ok(all)) => found = all,
            Some(Err(Fault::Library(why))) => {
                self.unload(why, Some(at));
                nvml = None;
            }
            Some(Err(fault)) => return Err(unavailable(&fault)),
            None => {}
        }
        for watched in &mut self.devices {
            watched.board.hear(&watched.info.uuid, at);
        }
        let is_missing =
            |watched: &Watched| watched.board.address != 0 && !found.devices.contains_key(&watched.info.uuid);
        let is_missing = self.devices.iter().any(is_missing);
        self.list_cards(Some(at), is_missing, found.devices.len());
        let held = self.held(at);
        let moment = Moment { at, since: self.last };
        sample.devices.clear();
        let mut place = 0;
        while place < self.devices.len() {
            match self.look(place, (nvml.as_ref(), &found), &held, moment) {
                Ok(look) => {
                    sample.devices.extend(look);
                    place = place.saturating_add(1);
                }
                Err(fault) => {
                    let why = match fault {
                        Fault::Library(why) => why,
                        other => Condition::Failed(format!("{other:?}")),
                    };
                    self.unload(why, Some(at));
                    // Its boards are looked at again, as what they are now: out of reach. No two have a look
                    // each.
                    nvml = None;
                    found = Found::default();
                    sample.devices.clear();
                    place = 0;
                }
            }
        }
        sample.since = self.last.map(|last| last.min(at));
        self.last = Some(at);
        Ok(())
    }

    fn state(&self) -> Vec<u8> {
        let mut boards = self.kept.clone();
        let driven = self.devices.iter().filter(|watched| !watched.info.uuid.as_str().starts_with("PCI-"));
        boards.extend(driven.map(|watched| (watched.info.uuid.to_string(), watched.board.state())));
        let state = State { boards, cards: self.cards.known.clone() };
        serde_json::to_vec(&state).unwrap_or_default()
    }

    fn restore(&mut self, state: &[u8]) {
        let State { boards, cards } = serde_json::from_slice(state).unwrap_or_default();
        self.kept = boards;
        self.cards.known = cards;
        self.devices.clear();
        self.last = None;
    }
}

fn unavailable(fault: &Fault) -> SourceError {
    let reason = match fault {
        Fault::Passing(reason) => reason.clone(),
        other => format!("{other:?}"),
    };
    SourceError::Unavailable { reason }
}
