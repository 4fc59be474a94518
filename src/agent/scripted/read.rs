//! Reads a fleet file, and refuses what cannot be, with the line and the key.

use std::collections::BTreeSet;

use toml::Spanned;
use uuid::Uuid;

use super::file::{BurstsFile, DeviceFile, FaultFile, FaultKind, FleetFile, HabitFile, NodeFile};
use super::fleet::{Device, Epoch, Habit, Metering, NUMBER, Node, ON, Target};
use super::layout::{self, Board};
use super::when::{Bursts, Hours, Schedule, mixed, parse_length};
use crate::agent::source::DeviceInfo;
use crate::domain::catalogue::Catalogue;
use crate::domain::device::SharingMode;
use crate::domain::ids::Name;
use crate::domain::period::Span;
use crate::domain::units::{Instant, MICROS_PER_SECOND};
use crate::domain::usage::{EvidenceField, SliceSize, VgpuScheduler, WATTS_MAX};

/// Into how many replicas a device may be divided: as many as a message can say.
const REPLICAS_MAX: u32 = 1_000;
/// All of a time, per mille.
const ALL: u16 = 1_000;
const BYTES_PER_MIB: i64 = 1 << 20;

/// Why a fleet file cannot be played.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScriptError {
    /// Not TOML, or with keys that there are not; the message has the line.
    #[error("the fleet file cannot be read: {0}")]
    NotThisShape(#[from] toml::de::Error),
    /// A value that cannot be.
    #[error("line {line} of the fleet file: `{key}` {reason}")]
    Impossible {
        /// The line where the table begins that has the key.
        line: usize,
        /// The key, with the tables above it.
        key: String,
        /// Why.
        reason: String,
    },
    /// No such node.
    #[error("the fleet file has no node `{node}`; it has: {known}")]
    NoSuchNode {
        /// As asked for.
        node: String,
        /// Those that there are.
        known: String,
    },
}

/// The names of the nodes of a fleet file, as they stand in it.
///
/// # Errors
/// [`ScriptError`].
pub fn nodes(text: &str) -> Result<Vec<Name>, ScriptError> {
    let file: FleetFile = toml::from_str(text)?;
    node_names(text, &file)
}

fn node_names(text: &str, file: &FleetFile) -> Result<Vec<Name>, ScriptError> {
    let mut names: Vec<Name> = Vec::new();
    for (number, node) in file.nodes.iter().enumerate() {
        let place = Place::top(text).inside("node", number, node);
        let name = place.name("name", &node.get_ref().name)?;
        if names.contains(&name) {
            return Err(place.refuse("name", format!("`{name}` is another node's already")));
        }
        names.push(name);
    }
    Ok(names)
}

/// Reads one node. All nodes are read, so that a fault shows whichever is played.
pub(super) fn node(text: &str, wanted: &Name) -> Result<Node, ScriptError> {
    let file: FleetFile = toml::from_str(text)?;
    let top = Place::top(text);
    let names = node_names(text, &file)?;
    let start = instant(&file.start).map_err(|reason| top.refuse("start", reason))?;
    let driver = file.driver.as_deref().map(|driver| top.name("driver", driver)).transpose()?;
    let mut uuids = BTreeSet::new();
    let mut found = None;
    for (number, (node, name)) in file.nodes.iter().zip(&names).enumerate() {
        let place = top.inside("node", number, node);
        let reader = NodeReader { start, seed: file.seed, name };
        let node = reader.read(&place, node.get_ref(), driver.clone())?;
        for device in &node.devices {
            if !uuids.insert(device.info.uuid.clone()) {
                return Err(place.refuse("device", format!("`{}` is there twice", device.info.uuid)));
            }
        }
        if name == wanted {
            found = Some(node);
        }
    }
    let known = || names.iter().map(Name::as_str).collect::<Vec<_>>().join(", ");
    found.ok_or_else(|| ScriptError::NoSuchNode { node: wanted.to_string(), known: known() })
}

/// Where in the file something stands.
#[derive(Debug, Clone)]
pub(super) struct Place<'a> {
    text: &'a str,
    path: String,
    line: usize,
}

impl<'a> Place<'a> {
    fn top(text: &'a str) -> Self {
        Self { text, path: String::new(), line: 1 }
    }

    fn inside<T>(&self, table: &str, number: usize, of: &Spanned<T>) -> Self {
        let before = self.text.get(..of.span().start).unwrap_or_default();
        let line = before.matches('\n').count().saturating_add(1);
        Self { text: self.text, path: format!("{}{table}[{number}].", self.path), line }
    }

    pub(super) fn refuse(&self, key: &str, reason: impl Into<String>) -> ScriptError {
        ScriptError::Impossible { line: self.line, key: format!("{}{key}", self.path), reason: reason.into() }
    }

    fn name(&self, key: &str, text: &str) -> Result<Name, ScriptError> {
        Name::parse(text).map_err(|error| self.refuse(key, error.to_string()))
    }
}

struct NodeReader<'a> {
    start: Instant,
    seed: u64,
    name: &'a Name,
}

impl NodeReader<'_> {
    fn read(&self, place: &Place<'_>, file: &NodeFile, driver: Option<Name>) -> Result<Node, ScriptError> {
        let mut node = Node { driver, devices: Vec::new(), habits: Vec::new(), replays: Vec::new() };
        if file.devices.is_empty() {
            return Err(place.refuse("device", "has nothing in it"));
        }
        for (number, device) in file.devices.iter().enumerate() {
            let place = place.inside("device", number, device);
            node.devices.push(self.device(&place, number, device.get_ref())?);
        }
        for (number, fault) in file.faults.iter().enumerate() {
            self.fault(&place.inside("fault", number, fault), fault.get_ref(), &mut node)?;
        }
        for (number, habit) in file.habits.iter().enumerate() {
            let place = place.inside("habit", number, habit);
            let habit = self.habit(&place, number, habit.get_ref(), &node.devices)?;
            node.habits.push(habit);
        }
        for (number, device) in node.devices.iter().enumerate() {
            let SliceSize::OneOf(replicas) = device.own_size else { continue };
            let holders = node.habits.iter().flat_map(|habit| &habit.on).filter(|on| on.device == number);
            if u32::try_from(holders.count()).unwrap_or(u32::MAX) > replicas {
                let reason = format!("has more habits on device {number} than its {replicas} replicas");
                return Err(place.refuse("habit", reason));
            }
        }
        node.replays.sort_unstable();
        Ok(node)
    }

    /// A UUID that depends on the seed and the path to what it names.
    fn uuid(&self, path: &str) -> Uuid {
        let text = format!("fatia scripted fleet {} {} {path}", self.seed, self.name);
        Uuid::new_v5(&Uuid::NAMESPACE_OID, text.as_bytes())
    }

    fn device(&self, place: &Place<'_>, number: usize, file: &DeviceFile) -> Result<Device, ScriptError> {
        let mode = SharingMode::parse(&file.mode).map_err(|error| place.refuse("mode", error.to_string()))?;
        let model = place.name("model", &file.model)?;
        let known = Catalogue::embedded().board(&model).map(|board| board.memory_mib);
        let memory_mib = file.memory_mib.or(known).filter(|memory| *memory > 0).ok_or_else(|| {
            place.refuse("memory_mib", format!("is needed: the catalogue does not know `{model}`"))
        })?;
        let uuid = match &file.uuid {
            Some(uuid) => place.name("uuid", uuid)?,
            None => place.name("uuid", &format!("GPU-{}", self.uuid(&format!("device {number}"))))?,
        };
        let named =
            |key, text: &Option<String>| text.as_deref().map(|text| place.name(key, text)).transpose();
        let info = DeviceInfo {
            uuid,
            model,
            memory_mib,
            index: u32::try_from(number).unwrap_or(u32::MAX),
            pci: named("pci", &file.pci)?,
            serial: named("serial", &file.serial)?,
        };
        let metering = match file.meters.as_deref() {
            Some("slice") => Metering::Slices,
            Some("holder") => Metering::Holders,
            Some("none") => Metering::Nothing,
            Some(other) => {
                return Err(place.refuse("meters", format!("`{other}` is none of: slice, holder, none")));
            }
            None if layout::has_layout(mode) && mode != SharingMode::Vgpu => Metering::Slices,
            None => Metering::Holders,
        };
        if file.watts.idle > file.watts.busy || file.watts.busy > WATTS_MAX {
            return Err(place.refuse("watts", format!("is not idle ≤ busy ≤ {WATTS_MAX}")));
        }
        let own_size = match (mode, file.replicas) {
            (SharingMode::TimeSlicing, Some(replicas)) if (1..=REPLICAS_MAX).contains(&replicas) => {
                SliceSize::OneOf(replicas)
            }
            (SharingMode::TimeSlicing, Some(replicas)) => {
                return Err(
                    place.refuse("replicas", format!("{replicas} is not between 1 and {REPLICAS_MAX}"))
                );
            }
            (SharingMode::TimeSlicing, None) => SliceSize::Even,
            (_, Some(_)) => return Err(place.refuse("replicas", "is of time_slicing only")),
            (SharingMode::Partition, None) => {
                return Err(place.refuse("mode", "partition cannot be played"));
            }
            (_, None) => SliceSize::Whole,
        };
        let scheduler = scheduler(place, mode, file.scheduler.as_deref())?;
        let board = Board { info: &info, mode, uuid: &|path| self.uuid(&format!("device {number} {path}")) };
        let epochs = vec![layout::epoch(place, &board, &file.layout, scheduler, (Instant::MIN, 0))?];
        let milliwatts = |watts: u32| i64::from(watts).saturating_mul(1_000);
        Ok(Device {
            mode,
            metering,
            own_size,
            epochs,
            idle_milliwatts: milliwatts(file.watts.idle),
            busy_milliwatts: milliwatts(file.watts.busy),
            lost: Vec::new(),
            hidden: Vec::new(),
            resets: Vec::new(),
            info,
        })
    }

    /// An instant in RFC 3339, or so long after the start.
    fn instant(&self, place: &Place<'_>, key: &str, text: &str) -> Result<Instant, ScriptError> {
        if let Ok(seconds) = parse_length(text) {
            return Ok(self.start.plus_micros(seconds.saturating_mul(MICROS_PER_SECOND)));
        }
        instant(text).map_err(|reason| place.refuse(key, reason))
    }

    fn fault(&self, place: &Place<'_>, file: &FaultFile, node: &mut Node) -> Result<(), ScriptError> {
        let at = self.instant(place, "at", &file.at)?;
        let has_length =
            matches!(file.kind, FaultKind::Lost | FaultKind::HoldersHidden | FaultKind::BufferReplayed);
        let length = match (has_length, &file.lasts) {
            (true, Some(text)) => length(place, "for", text)?.saturating_mul(MICROS_PER_SECOND),
            (true, None) => return Err(place.refuse("for", "is missing: how long does it last?")),
            (false, Some(_)) => return Err(place.refuse("for", "is of faults that end")),
            (false, None) => 0,
        };
        let is_reconfigured = file.kind == FaultKind::Reconfigure;
        if !is_reconfigured && (file.layout.is_some() || file.scheduler.is_some()) {
            return Err(place.refuse("layout", "and `scheduler` are of `reconfigure` only"));
        }
        if file.kind != FaultKind::Lost && file.reason.is_some() {
            return Err(place.refuse("reason", "is of `lost` only"));
        }
        if file.kind == FaultKind::BufferReplayed {
            if file.device.is_some() {
                return Err(place.refuse("device", "is none here: all of a node's are replayed"));
            }
            node.replays.push((at, length));
            return Ok(());
        }
        let number = file.device.ok_or_else(|| place.refuse("device", "is missing"))?;
        let devices = node.devices.len();
        let device = node
            .devices
            .get_mut(number)
            .ok_or_else(|| place.refuse("device", format!("{number} is none of the {devices} devices")))?;
        let span = Span::clamped(at, at.plus_micros(length));
        match file.kind {
            FaultKind::Lost => {
                let reason = file.reason.as_deref().unwrap_or("fell off the bus");
                device.lost.push((span, place.name("reason", reason)?));
            }
            FaultKind::HoldersHidden => device.hidden.push(span),
            FaultKind::CountersReset => device.resets.push(at),
            FaultKind::Reconfigure => {
                let epoch = self.reconfigured(place, file, device, number, at)?;
                device.epochs.push(epoch);
            }
            FaultKind::BufferReplayed => {}
        }
        Ok(())
    }

    fn reconfigured(
        &self,
        place: &Place<'_>,
        file: &FaultFile,
        device: &Device,
        number: usize,
        at: Instant,
    ) -> Result<Epoch, ScriptError> {
        let last = device.epochs.last().filter(|last| last.from < at);
        let last = last.ok_or_else(|| place.refuse("at", "is not after the reconfiguration before it"))?;
        let scheduler = match file.scheduler.as_deref() {
            Some(word) => scheduler(place, device.mode, Some(word))?,
            None => last.scheduler,
        };
        if let Some(parts) = &file.layout {
            let path = |path: &str| self.uuid(&format!("device {number} {path}"));
            let board = Board { info: &device.info, mode: device.mode, uuid: &path };
            return layout::epoch(place, &board, parts, scheduler, (at, device.epochs.len()));
        }
        if file.scheduler.is_none() {
            return Err(place.refuse("layout", "or `scheduler` is missing: what changes?"));
        }
        let mut next = Epoch { from: at, scheduler, ..last.clone() };
        for slice in
            next.slices.iter_mut().filter(|slice| slice.scheduler.is_some() || last.scheduler.is_none())
        {
            if matches!(slice.mode, SharingMode::Vgpu | SharingMode::MigVgpu) {
                slice.scheduler = scheduler;
            }
        }
        Ok(next)
    }

    fn habit(
        &self,
        place: &Place<'_>,
        number: usize,
        file: &HabitFile,
        devices: &[Device],
    ) -> Result<Habit, ScriptError> {
        let mut on = Vec::new();
        for text in &file.on {
            let target = target(text).ok_or_else(|| {
                place.refuse("on", format!("`{text}` is not device, device.part or device.part.vgpu"))
            })?;
            let has = devices.get(target.device).is_some_and(|device| match target.part {
                Some(part) => device.epochs.iter().any(|epoch| epoch.targets.contains_key(&part)),
                None => !layout::has_layout(device.mode),
            });
            if !has {
                return Err(place.refuse("on", format!("`{text}` is in no layout of its device")));
            }
            if on.contains(&target) {
                return Err(place.refuse("on", format!("`{text}` stands twice")));
            }
            on.push(target);
        }
        if on.is_empty() {
            return Err(place.refuse("on", "has nothing in it"));
        }
        let from = file.from.as_deref().map(|text| self.instant(place, "from", text)).transpose()?;
        let until = file.until.as_deref().map(|text| self.instant(place, "until", text)).transpose()?;
        let (from, until) = (from.unwrap_or(Instant::MIN), until.unwrap_or(Instant::MAX));
        let life = Span::new(from, until).map_err(|error| place.refuse("until", error.to_string()))?;
        for (key, value) in [("busy", file.busy), ("idle", file.idle)] {
            if value > ALL {
                return Err(place.refuse(key, format!("{value} is above {ALL} per mille")));
            }
        }
        Ok(Habit {
            who: who(place, file)?,
            own_size: own_size(place, file, &on, devices)?,
            on,
            life,
            schedule: self.schedule(place, number, file)?,
            busy_hours: hours(place, "busy_hours", file.busy_hours.as_deref())?,
            busy: file.busy.into(),
            idle: file.idle.into(),
            memory_bytes: i64::from(file.memory_mib).saturating_mul(BYTES_PER_MIB),
        })
    }

    fn schedule(&self, place: &Place<'_>, number: usize, file: &HabitFile) -> Result<Schedule, ScriptError> {
        let hours = hours(place, "hours", file.hours.as_deref())?;
        let Some(BurstsFile { every, lasts, at_most, chance }) = &file.bursts else {
            return Ok(hours.map_or(Schedule::Always, Schedule::Weekly));
        };
        let every = length(place, "bursts.every", every)?;
        let least = length(place, "bursts.lasts", lasts)?;
        let most = at_most.as_deref().map(|text| length(place, "bursts.at_most", text)).transpose()?;
        let most = most.unwrap_or(least);
        if !(least..=every).contains(&most) {
            return Err(place.refuse("bursts", "is not lasts ≤ at_most ≤ every"));
        }
        if *chance > ALL {
            return Err(place.refuse("bursts.chance", format!("{chance} is above {ALL} per mille")));
        }
        let node = self.name.as_str().bytes().map(u64::from);
        let words: Vec<u64> =
            [self.seed, u64::try_from(number).unwrap_or(u64::MAX)].into_iter().chain(node).collect();
        Ok(Schedule::Bursts(Bursts {
            origin: self.start,
            every,
            lasts: (least, most),
            chance: u64::from(*chance),
            seed: mixed(&words),
            hours,
        }))
    }
}

/// RFC 3339, at a whole second: rates change there only, so that nothing is rounded where they do.
fn instant(text: &str) -> Result<Instant, String> {
    let instant = Instant::parse(text).map_err(|error| error.to_string())?;
    if instant.micros().rem_euclid(MICROS_PER_SECOND) == 0 {
        Ok(instant)
    } else {
        Err(format!("`{text}` is not at a whole second"))
    }
}

fn length(place: &Place<'_>, key: &str, text: &str) -> Result<i64, ScriptError> {
    let seconds = parse_length(text).map_err(|reason| place.refuse(key, reason))?;
    if seconds > 0 { Ok(seconds) } else { Err(place.refuse(key, "is no time at all")) }
}

fn hours(place: &Place<'_>, key: &str, lines: Option<&[String]>) -> Result<Option<Hours>, ScriptError> {
    lines.map(Hours::parse).transpose().map_err(|reason| place.refuse(key, reason))
}

fn scheduler(
    place: &Place<'_>,
    mode: SharingMode,
    word: Option<&str>,
) -> Result<Option<VgpuScheduler>, ScriptError> {
    let Some(word) = word else { return Ok(None) };
    if !matches!(mode, SharingMode::Vgpu | SharingMode::MigVgpu) {
        return Err(place.refuse("scheduler", "is of vGPUs only"));
    }
    VgpuScheduler::parse(word).map(Some).map_err(|error| place.refuse("scheduler", error.to_string()))
}

fn target(text: &str) -> Option<Target> {
    let mut numbers = text.split('.').map(|number| number.parse::<u16>().ok());
    let device = usize::from(numbers.next()??);
    let part = match (numbers.next(), numbers.next(), numbers.next()) {
        (None, ..) => None,
        (Some(part), None, _) => Some((part?, 0)),
        (Some(part), Some(vgpu), None) => Some((part?, vgpu?)),
        (Some(_), Some(_), Some(_)) => return None,
    };
    Some(Target { device, part })
}

/// Evidence, checked with the longest number that a stay may have.
fn who(place: &Place<'_>, file: &HabitFile) -> Result<Vec<(EvidenceField, String)>, ScriptError> {
    let mut who = Vec::new();
    for (word, text) in &file.who {
        let key = format!("who.{word}");
        let field = EvidenceField::parse(word).map_err(|error| place.refuse(&key, error.to_string()))?;
        if field.is_declaration() {
            return Err(place.refuse(&key, "says who pays, which no agent may"));
        }
        let longest = Target { device: u16::MAX.into(), part: Some((u16::MAX, u16::MAX)) };
        let text_of = text.replace(NUMBER, &i64::MIN.to_string()).replace(ON, &longest.to_string());
        place.name(&key, &text_of)?;
        who.push((field, text.clone()));
    }
    if who.is_empty() { Err(place.refuse("who", "has nothing in it")) } else { Ok(who) }
}

/// What an MPS client may use; of the other modes nobody says so.
fn own_size(
    place: &Place<'_>,
    file: &HabitFile,
    on: &[Target],
    devices: &[Device],
) -> Result<Option<SliceSize>, ScriptError> {
    let is_mps = |on: &Target| devices.get(on.device).is_some_and(|each| each.mode == SharingMode::Mps);
    let clients = on.iter().filter(|on| is_mps(on)).count();
    match file.percent {
        None if clients == 0 && file.limit_mib.is_none() => Ok(None),
        None if clients == 0 => Err(place.refuse("limit_mib", "is of mps only")),
        None => Err(place.refuse("percent", "is missing: an mps client has one")),
        Some(_) if clients < on.len() => Err(place.refuse("percent", "is of mps only")),
        Some(percent) if !(1..=100).contains(&percent) => {
            Err(place.refuse("percent", format!("{percent} is not between 1 and 100")))
        }
        Some(percent) if file.limit_mib != Some(0) => {
            Ok(Some(SliceSize::Threads { percent, memory_mib: file.limit_mib }))
        }
        Some(_) => Err(place.refuse("limit_mib", "is 0")),
    }
}
