//! The lines of an import: who held what, and which slices existed, as tables state them.
//!
//! Always true here: a good line is taken and a bad one named with its reason, whatever stands around it; the
//! result does not depend on the order of the lines.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::Read;

use super::error::ServiceError;
use super::table::{BadLine, Table, TableRow};
use crate::domain::catalogue::{Catalogue, ProfileName};
use crate::domain::device::SharingMode;
use crate::domain::ids::{Name, ScopeKind, ScopeName};
use crate::domain::layout::{Instance, Layouts};
use crate::domain::mapping::PLATFORM_NAME;
use crate::domain::period::Span;
use crate::domain::policy::Weighting;
use crate::domain::units::Instant;
use crate::domain::usage::{Evidence, EvidenceField, POOL_DEVICES_MAX, Slice, SliceSize, VgpuScheduler};

/// Most equal parts of one slice, as replicas or partitions.
const REPLICAS_MAX: u32 = 1_000;

/// Where a device was in service, when, and to which pool it belonged meanwhile.
#[derive(Debug, Clone)]
pub(super) struct Home {
    pub(super) node: Name,
    pub(super) service: Span,
    pub(super) pool: Option<Name>,
}

/// What lines are checked against: where each device had its home when, its model, and when there were which pools.
#[derive(Debug, Clone, Default)]
pub(super) struct Fleet {
    pub(super) homes: BTreeMap<Name, Vec<Home>>,
    pub(super) models: BTreeMap<Name, Name>,
    pub(super) pools: BTreeMap<Name, Vec<Span>>,
}

impl Fleet {
    pub(super) fn add(&mut self, device: &Name, model: &Name, home: Home) {
        if let Some(pool) = &home.pool {
            self.pools.entry(pool.clone()).or_default().push(home.service);
        }
        self.homes.entry(device.clone()).or_default().push(home);
        self.models.entry(device.clone()).or_insert_with(|| model.clone());
    }

    /// Refuses a device that was not in service on a node at any time of a span.
    fn check(&self, node: &Name, device: &Name, span: Span) -> Result<(), String> {
        let home =
            self.homes.get(device).ok_or_else(|| format!("gpu_uuid {device} is not in the inventory"))?;
        if !home.iter().any(|each| each.node == *node) {
            return Err(format!("gpu_uuid {device} never was in service on node {node}"));
        }
        if !span.is_empty() && !home.iter().any(|each| each.node == *node && each.service.meets(span)) {
            return Err(format!("gpu_uuid {device} was not in service on node {node} at any time of {span}"));
        }
        Ok(())
    }

    /// The most devices that a pool had at an instant of a span.
    fn pool_size(&self, pool: &Name, span: Span) -> usize {
        let services = || self.pools.get(pool).into_iter().flatten().filter(|service| service.meets(span));
        // Where most of them are there at once, one of them begins, or the span does.
        let instants = services().map(|service| service.clip(span).start()).chain([span.start()]);
        let at = |instant: Instant| services().filter(|service| service.contains(instant)).count();
        let distinct: BTreeSet<Instant> = instants.collect();
        distinct.into_iter().map(at).max().unwrap_or(0)
    }

    /// Refuses a pool that had no device in service at any time of a span.
    fn check_pool(&self, pool: &Name, span: Span) -> Result<(), String> {
        let services = self.pools.get(pool).ok_or_else(|| format!("pool {pool} is not in the inventory"))?;
        if !span.is_empty() && !services.iter().any(|service| service.meets(span)) {
            return Err(format!("pool {pool} had no device in service at any time of {span}"));
        }
        Ok(())
    }
}

/// What was measured over a whole holding. Units as in [`crate::domain::usage::UseRow`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) struct Used {
    pub(super) active_nanos: Option<i64>,
    pub(super) memory_byte_seconds: Option<i64>,
}

/// A holding as a line states it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Holding {
    pub(super) span: Span,
    pub(super) slice: Slice,
    pub(super) evidence: Evidence,
    pub(super) used: Used,
}

/// A slice that existed, as a line states it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Existing {
    pub(super) span: Span,
    pub(super) slice: Slice,
}

/// What is known of a named slice while its lines are read.
#[derive(Debug, Clone)]
struct Known {
    node: Name,
    existing: Existing,
    line: u64,
}

/// The slices that a table states, by device and id.
#[derive(Debug, Clone, Default)]
pub(super) struct Slices {
    by_id: BTreeMap<(Name, Name), Vec<Known>>,
    pub(super) lines: u64,
    pub(super) repeated: u64,
    pub(super) bad: Vec<BadLine>,
    /// Whether a table was read at all.
    is_given: bool,
}

const SLICE_REQUIRED: [&str; 5] = ["node", "gpu_uuid", "slice", "mode", "start"];
const SLICE_OPTIONAL: [&str; 9] = [
    "parent",
    "profile",
    "share_ppm",
    "replicas",
    "thread_percent",
    "memory_limit_mib",
    "placement",
    "scheduler",
    "end",
];

impl Slices {
    /// Reads `slices.csv`: which slices existed when, held or not.
    ///
    /// # Errors
    /// [`ServiceError::File`] when the header is not of this table, or the file cannot be read.
    pub(super) fn read(
        input: impl Read,
        file: &str,
        fleet: &Fleet,
        catalogue: &Catalogue,
        now: Instant,
    ) -> Result<Self, ServiceError> {
        let mut slices = Self { is_given: true, ..Self::default() };
        let read = Table::read(input, file, &SLICE_REQUIRED, &SLICE_OPTIONAL, |line, row| {
            slices.lines += 1;
            let known = row.and_then(|row| read_slice(&row, line, fleet, now));
            known.and_then(|known| slices.add(known))
        })?;
        slices.bad = read.bad;
        slices.refuse_orphans(file);
        slices.refuse_illegal(file, fleet, catalogue);
        slices.bad.sort_by_key(|bad| bad.line);
        Ok(slices)
    }

    fn add(&mut self, known: Known) -> Result<(), String> {
        let id = known.existing.slice.id.clone().ok_or("slice is empty")?;
        let key = (known.existing.slice.device.clone(), id);
        let others = self.by_id.entry(key).or_default();
        if others.iter().any(|other| other.existing == known.existing && other.node == known.node) {
            self.repeated += 1;
            return Ok(());
        }
        let span = known.existing.span;
        let clash = others.iter().find(|other| {
            let there = other.existing.span;
            there.start() == span.start() || there.meets(span)
        });
        if let Some(other) = clash {
            return Err(format!("the slice already exists {} by line {}", other.existing.span, other.line));
        }
        others.push(known);
        Ok(())
    }

    /// Refuses slices that are inside themselves, and those whose parent does not exist for all of their time, and
    /// again those inside them.
    fn refuse_orphans(&mut self, file: &str) {
        let mut circles: Vec<(u64, String)> = Vec::new();
        for known in self.by_id.values().flatten() {
            let slice = &known.existing.slice;
            if let (Some(id), true) = (&slice.id, self.is_in_itself(slice)) {
                circles.push((known.line, format!("slice {id} is inside itself by its parents")));
            }
        }
        for (line, reason) in circles {
            self.refuse(file, line, reason);
        }
        loop {
            let mut orphans: Vec<(u64, String)> = Vec::new();
            for known in self.by_id.values().flatten() {
                let (slice, span) = (&known.existing.slice, known.existing.span);
                let Some(parent) = &slice.parent else { continue };
                if !span.is_empty() && !self.exists(&slice.device, parent, span) {
                    orphans.push((known.line, no_parent(parent, &slice.device, span)));
                }
            }
            if orphans.is_empty() {
                return;
            }
            for (line, reason) in orphans {
                self.refuse(file, line, reason);
            }
        }
    }

    /// Whether the parents of a slice lead back to it, at whatever time.
    fn is_in_itself(&self, slice: &Slice) -> bool {
        let mut around: BTreeSet<&Name> = BTreeSet::new();
        let mut open: Vec<&Name> = slice.parent.iter().collect();
        while let Some(id) = open.pop() {
            if Some(id) == slice.id.as_ref() {
                return true;
            }
            if around.insert(id) {
                let there = self.by_id.get(&(slice.device.clone(), id.clone())).into_iter().flatten();
                open.extend(there.filter_map(|known| known.existing.slice.parent.as_ref()));
            }
        }
        false
    }

    fn refuse(&mut self, file: &str, line: u64, reason: String) {
        for all in self.by_id.values_mut() {
            all.retain(|known| known.line != line);
        }
        self.bad.push(BadLine { file: file.to_owned(), line, reason });
    }

    /// Refuses each GPU instance that makes a layout no board can have, in order of time and then of line.
    fn refuse_illegal(&mut self, file: &str, fleet: &Fleet, catalogue: &Catalogue) {
        let mut check = LayoutCheck::new(fleet, catalogue);
        let mut all: Vec<(Span, u64, Slice)> = self
            .by_id
            .values()
            .flatten()
            .map(|known| (known.existing.span, known.line, known.existing.slice.clone()))
            .collect();
        all.sort_unstable_by_key(|each| (each.0.start(), each.1));
        let refused: Vec<(u64, String)> = all
            .into_iter()
            .filter_map(|(span, line, slice)| check.add(&slice, span).err().map(|reason| (line, reason)))
            .collect();
        for (line, reason) in refused {
            self.refuse(file, line, reason);
        }
        // What stood inside them is inside nothing now.
        self.refuse_orphans(file);
    }

    /// Whether a slice of that id exists during all of a span.
    fn exists(&self, device: &Name, id: &Name, span: Span) -> bool {
        let all = self.by_id.get(&(device.clone(), id.clone())).into_iter().flatten();
        crate::domain::usage::gaps(span, all.map(|known| known.existing.span)).is_empty()
    }

    /// The slice of that id during a span; one that changed in it is none.
    fn find(&self, device: &Name, id: &Name, span: Span) -> Result<&Slice, String> {
        let all = self.by_id.get(&(device.clone(), id.clone())).map(Vec::as_slice).unwrap_or_default();
        let at_start = |known: &&Known| {
            let there = known.existing.span;
            there.contains(span.start()) || (span.is_empty() && there.start() == span.start())
        };
        let Some(known) = all.iter().find(at_start) else {
            return Err(format!("slice {id} of {device} does not exist at {}", span.start()));
        };
        let same = all.iter().filter(|other| other.existing.slice == known.existing.slice);
        if crate::domain::usage::gaps(span, same.map(|other| other.existing.span)).is_empty() {
            Ok(&known.existing.slice)
        } else {
            Err(format!("slice {id} of {device} does not exist as it is for all of {span}"))
        }
    }

    /// The slices by node: sorted.
    pub(super) fn by_node(&self) -> BTreeMap<Name, Vec<Existing>> {
        let mut by_node: BTreeMap<Name, Vec<Existing>> = BTreeMap::new();
        for known in self.by_id.values().flatten() {
            by_node.entry(known.node.clone()).or_default().push(known.existing.clone());
        }
        by_node.values_mut().for_each(|all| all.sort_unstable());
        by_node
    }
}

fn no_parent(parent: &Name, device: &Name, span: Span) -> String {
    format!("parent {parent} does not exist on {device} for all of {span}")
}

fn read_slice(row: &TableRow<'_>, line: u64, fleet: &Fleet, now: Instant) -> Result<Known, String> {
    let node = row.name("node")?;
    let device = row.name("gpu_uuid")?;
    let id = row.name("slice")?;
    let (mode, size) = (read_mode(row)?, read_size(row)?);
    let size = size_of(mode, size)?;
    if mode.takes_whole_device() {
        return Err(format!("mode {} holds the whole device, and has no slices", mode.word()));
    }
    let span = read_span(row, now)?;
    fleet.check(&node, &device, span)?;
    let mut slice = Slice { id: Some(id.clone()), ..Slice::plain(device, mode, size) };
    read_place(row, &mut slice)?;
    if slice.parent.as_ref() == Some(&id) {
        return Err(format!("parent {id} is the slice itself"));
    }
    Ok(Known { node, existing: Existing { span, slice }, line })
}

/// The holdings of a table by node and pool: sorted, each once.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Holdings {
    pub(super) by_scope: BTreeMap<ScopeName, BTreeSet<Holding>>,
    /// Whether the table has a column for pools.
    pub(super) knows_pools: bool,
    pub(super) lines: u64,
    pub(super) repeated: u64,
    pub(super) bad: Vec<BadLine>,
    /// By device and id: what lines say of named slices, and when.
    named: BTreeMap<(Name, Name), Vec<NamedLine>>,
}

/// What a line says of a named slice, and when.
type NamedLine = (Span, Slice, u64);

/// What identifies a holding within its source: the key of amendments.
type HoldingKey = (Name, Name, Option<Name>, Instant, ScopeKind);

const REQUIRED: [&str; 6] = ["workload", "node", "gpu_uuid", "mode", "start", "end"];
const OPTIONAL: [&str; 4] = ["pool", "gpus", "tenant", "project"];
/// The optional columns that say what only one device has: a line of a pool leaves them empty.
const OPTIONAL_OF_DEVICE: [&str; 12] = [
    "profile",
    "share_ppm",
    "replicas",
    "thread_percent",
    "memory_limit_mib",
    "slice",
    "parent",
    "placement",
    "scheduler",
    "power",
    "sm_active_seconds",
    "memory_gib_seconds",
];

impl Holdings {
    /// Reads `intervals.csv`: who held what.
    ///
    /// # Errors
    /// [`ServiceError::File`] when the header is not of this table, or the file cannot be read.
    pub(super) fn read(
        input: impl Read,
        file: &str,
        fleet: &Fleet,
        slices: &Slices,
        catalogue: &Catalogue,
        now: Instant,
    ) -> Result<Self, ServiceError> {
        let mut holdings = Self::default();
        let mut seen: HashMap<HoldingKey, u64> = HashMap::new();
        // Instances that no table of slices states exist while they are held.
        let mut implied: Vec<(ScopeName, Holding, u64)> = Vec::new();
        let optional = [&OPTIONAL[..], &OPTIONAL_OF_DEVICE[..]].concat();
        let read = Table::read(input, file, &REQUIRED, &optional, |line, row| {
            holdings.lines += 1;
            let read = row.and_then(|row| read_holding(&row, fleet, slices, now));
            read.and_then(|(scope, holding)| {
                if is_instance(&holding.slice) && !slices.knows(&holding.slice) {
                    implied.push((scope.clone(), holding.clone(), line));
                }
                holdings.add(line, scope, holding, &mut seen)
            })
        })?;
        let columns = read.columns;
        holdings.bad = read.bad;
        holdings.knows_pools = columns.contains("pool");
        holdings.refuse_illegal(file, implied, fleet, slices, catalogue);
        holdings.bad.sort_by_key(|bad| bad.line);
        Ok(holdings)
    }

    fn add(
        &mut self,
        line: u64,
        scope: ScopeName,
        holding: Holding,
        seen: &mut HashMap<HoldingKey, u64>,
    ) -> Result<(), String> {
        let workload = holding.evidence.workload().cloned().ok_or("workload is empty")?;
        let slice = &holding.slice;
        if let Some(id) = &slice.id {
            let said = self.named.entry((slice.device.clone(), id.clone())).or_default();
            let other = said.iter().find(|(span, other, _)| span.meets(holding.span) && !agree(slice, other));
            if let Some((.., first)) = other {
                return Err(format!("slice {id} of {} is another by line {first}", slice.device));
            }
            said.push((holding.span, slice.clone(), line));
        }
        let key = (workload, slice.device.clone(), slice.id.clone(), holding.span.start(), scope.kind);
        let of_scope = self.by_scope.entry(scope).or_default();
        match seen.get(&key) {
            None => {
                seen.insert(key, line);
                of_scope.insert(holding);
                Ok(())
            }
            Some(_) if of_scope.contains(&holding) => {
                self.repeated += 1;
                Ok(())
            }
            Some(first) => Err(format!(
                "workload {} on {} from {} stands in line {first} with other values",
                key.0, key.1, key.3
            )),
        }
    }

    /// Refuses each held GPU instance that makes a layout no board can have, in order of time and then of line.
    fn refuse_illegal(
        &mut self,
        file: &str,
        mut implied: Vec<(ScopeName, Holding, u64)>,
        fleet: &Fleet,
        slices: &Slices,
        catalogue: &Catalogue,
    ) {
        if implied.is_empty() {
            return;
        }
        let mut check = LayoutCheck::new(fleet, catalogue);
        let mut all: Vec<Standing> = slices
            .by_id
            .values()
            .flatten()
            .map(|known| (known.existing.span, 0, None, known.existing.slice.clone()))
            .collect();
        all.extend(implied.drain(..).map(|(scope, holding, line)| {
            let slice = holding.slice.clone();
            (holding.span, line, Some((scope, holding)), slice)
        }));
        all.sort_unstable_by_key(|each| (each.0.start(), each.1, each.0));
        let mut taken: BTreeSet<(ScopeName, Holding)> = BTreeSet::new();
        for (span, line, held, slice) in all {
            let Some((scope, holding)) = held else {
                let _was_checked = check.add(&slice, span);
                continue;
            };
            if !taken.insert((scope.clone(), holding.clone())) {
                continue;
            }
            let Err(reason) = check.add(&slice, span) else { continue };
            if self.by_scope.get_mut(&scope).is_some_and(|of_scope| of_scope.remove(&holding)) {
                self.bad.push(BadLine { file: file.to_owned(), line, reason });
            }
        }
    }
}

/// Whether two lines can speak of one slice: a placement or a scheduler that only one of them knows is none.
fn agree(one: &Slice, other: &Slice) -> bool {
    let same = |a: Option<u64>, b: Option<u64>| a.is_none() || b.is_none() || a == b;
    (one.mode, &one.size, &one.parent) == (other.mode, &other.size, &other.parent)
        && same(one.start.map(u64::from), other.start.map(u64::from))
        && (one.scheduler.is_none() || other.scheduler.is_none() || one.scheduler == other.scheduler)
}

/// An instance while it stands: when, by which line, for which node's holding, and what.
type Standing = (Span, u64, Option<(ScopeName, Holding)>, Slice);

impl Slices {
    /// Whether a slice is one that the table states.
    fn knows(&self, slice: &Slice) -> bool {
        let id = slice.id.as_ref();
        id.is_some_and(|id| self.by_id.contains_key(&(slice.device.clone(), id.clone())))
    }
}

/// Whether a slice is a GPU instance directly on its device.
fn is_instance(slice: &Slice) -> bool {
    let SliceSize::Profile(profile) = &slice.size else { return false };
    let is_mig = matches!(slice.mode, SharingMode::Mig | SharingMode::MigVgpu);
    let name = ProfileName::parse(profile.as_str());
    is_mig
        && slice.parent.is_none()
        && name.is_some_and(|name| name.compute_instance.is_none_or(|slices| slices == name.slices))
}

/// Which GPU instances exist on each device, in order of time.
struct LayoutCheck<'a> {
    fleet: &'a Fleet,
    catalogue: &'a Catalogue,
    layouts: Layouts,
    there: HashMap<Name, Vec<(Span, Option<Name>, Instance)>>,
}

impl<'a> LayoutCheck<'a> {
    fn new(fleet: &'a Fleet, catalogue: &'a Catalogue) -> Self {
        Self { fleet, catalogue, layouts: Layouts::default(), there: HashMap::new() }
    }

    /// Adds an instance that begins no earlier than those before it; says why it cannot stand beside those that are
    /// there then. What is no GPU instance, or on a board that no catalogue knows, is not looked at.
    fn add(&mut self, slice: &Slice, span: Span) -> Result<(), String> {
        let SliceSize::Profile(profile) = &slice.size else { return Ok(()) };
        if span.is_empty() || !is_instance(slice) {
            return Ok(());
        }
        let Some(model) = self.fleet.models.get(&slice.device) else { return Ok(()) };
        let found = self.catalogue.mig_profile(model, profile.as_str());
        let (Some((board, found)), Some(key)) = (found, self.catalogue.board(model)) else {
            return Ok(());
        };
        let Some(at) = board.profiles.iter().position(|each| each.name == found.name) else { return Ok(()) };
        let there = self.there.entry(slice.device.clone()).or_default();
        there.retain(|(other, ..)| other.end() > span.start());
        // Several holders of one named instance are in one instance, which exists as long as any of them holds it.
        if slice.id.is_some()
            && let Some((other, ..)) = there.iter_mut().find(|(_, id, _)| *id == slice.id)
        {
            *other = Span::clamped(other.start(), other.end().max(span.end()));
            return Ok(());
        }
        let instance = Instance { profile: at, start: slice.start };
        let mut instances: Vec<Instance> = there.iter().map(|(.., instance)| *instance).collect();
        instances.push(instance);
        let examined = self.layouts.examine((&key.key, board), instances, Weighting::DEFAULT);
        if let Err(illegal) = examined {
            return Err(format!("{model} cannot be divided so from {}: {illegal}", span.start()));
        }
        there.push((span, slice.id.clone(), instance));
        Ok(())
    }
}

fn read_mode(row: &TableRow<'_>) -> Result<SharingMode, String> {
    let mode = row.name("mode")?;
    SharingMode::parse(mode.as_str()).map_err(|error| format!("mode {error}"))
}

fn read_span(row: &TableRow<'_>, now: Instant) -> Result<Span, String> {
    let start = row.instant("start")?;
    if start > now {
        return Err(format!("start {start} lies in the future"));
    }
    // What still runs is held until now, whatever else the import vouches for.
    let end = row.find_instant("end")?.unwrap_or(now);
    let span = Span::new(start, end).map_err(|_| format!("end {end} lies before start {start}"))?;
    if end > now {
        return Err(format!("end {end} lies in the future; leave it empty for what still runs"));
    }
    Ok(span)
}

/// Where a slice stands: its parent, its placement, its scheduler.
fn read_place(row: &TableRow<'_>, slice: &mut Slice) -> Result<(), String> {
    slice.parent = row.find_name("parent")?;
    slice.start = match row.find_number("placement")? {
        None => None,
        Some(start) => Some(
            u16::try_from(start)
                .ok()
                .filter(|start| *start < 64)
                .ok_or_else(|| format!("placement {start} is not between 0 and 63"))?,
        ),
    };
    let scheduler = row.find_name("scheduler")?;
    slice.scheduler = match scheduler {
        None => None,
        Some(word) => {
            Some(VgpuScheduler::parse(word.as_str()).map_err(|error| format!("scheduler {error}"))?)
        }
    };
    if slice.start.is_some() && !is_instance(slice) {
        return Err("placement is given, but only a MIG GPU instance has one".to_owned());
    }
    if slice.scheduler.is_some() && !matches!(slice.mode, SharingMode::Vgpu | SharingMode::MigVgpu) {
        return Err("scheduler is given, but only a vGPU has one".to_owned());
    }
    Ok(())
}

fn read_holding(
    row: &TableRow<'_>,
    fleet: &Fleet,
    slices: &Slices,
    now: Instant,
) -> Result<(ScopeName, Holding), String> {
    if let Some(pool) = row.find_name("pool")? {
        return read_pooled(row, pool, fleet, now);
    }
    if !row.text("gpus").is_empty() {
        return Err("gpus is given, but only a line of a pool has a number".to_owned());
    }
    let workload = row.name("workload")?;
    let node = row.name("node")?;
    let device = row.name("gpu_uuid")?;
    let id = row.find_name("slice")?;
    // A slice that the other table states is what that says.
    let is_stated = slices.is_given && id.is_some();
    let mode = if is_stated && row.text("mode").is_empty() { None } else { Some(read_mode(row)?) };
    let size = read_size(row)?;
    let size = match mode {
        Some(mode) if !is_stated || size.is_some() => Some(size_of(mode, size)?),
        Some(_) | None => None,
    };
    let span = read_span(row, now)?;
    fleet.check(&node, &device, span)?;
    let mut slice = match (&id, mode, size) {
        (Some(id), mode, size) if is_stated => {
            let stated = slices.find(&device, id, span)?;
            if let Some(mode) = mode.filter(|mode| *mode != stated.mode) {
                return Err(format!("mode {}: slice {id} is {}", mode.word(), stated.mode.word()));
            }
            if size.is_some_and(|size| size != stated.size) {
                return Err(format!("slice {id} has another size by the table of slices"));
            }
            for (column, known) in [
                ("parent", stated.parent.as_ref().map(ToString::to_string)),
                ("placement", stated.start.map(|start| start.to_string())),
                ("scheduler", stated.scheduler.map(|each| each.word().to_owned())),
            ] {
                let given = row.text(column);
                if !given.is_empty() && Some(given) != known.as_deref() {
                    return Err(format!(
                        "{column} {given}: the table of slices says otherwise of slice {id}"
                    ));
                }
            }
            stated.clone()
        }
        (_, Some(mode), Some(size)) => {
            let mut slice = Slice { id, ..Slice::plain(device.clone(), mode, size) };
            read_place(row, &mut slice)?;
            slice
        }
        (..) => return Err("mode is empty".to_owned()),
    };
    if let Some(parent) = &slice.parent
        && slices.is_given
        && !is_stated
        && !span.is_empty()
        && !slices.exists(&device, parent, span)
    {
        return Err(no_parent(parent, &device, span));
    }
    slice.is_powered_off = match row.text("power") {
        "" | "on" => false,
        "off" => true,
        other => return Err(format!("power `{other}` is none of: on, off")),
    };
    let evidence = read_evidence(row, workload)?;
    let used = Used {
        active_nanos: row.find_decimal("sm_active_seconds", 9)?,
        memory_byte_seconds: match row.find_decimal("memory_gib_seconds", 6)? {
            None => None,
            Some(micro) => {
                let bytes = i128::from(micro).saturating_mul(1 << 30) / 1_000_000;
                Some(i64::try_from(bytes).map_err(|_| "memory_gib_seconds is too large".to_owned())?)
            }
        },
    };
    let scope = ScopeName { kind: ScopeKind::Node, name: node };
    Ok((scope, Holding { span, slice, evidence, used }))
}

/// A line of a pool: so many whole devices, whichever they are.
fn read_pooled(
    row: &TableRow<'_>,
    pool: Name,
    fleet: &Fleet,
    now: Instant,
) -> Result<(ScopeName, Holding), String> {
    let workload = row.name("workload")?;
    let mut foreign = ["node", "gpu_uuid"].into_iter().chain(OPTIONAL_OF_DEVICE);
    if let Some(column) = foreign.find(|column| !row.text(column).is_empty()) {
        return Err(format!(
            "{column} is given, but the line is of a pool, whose devices have no names there"
        ));
    }
    let mode = read_mode(row)?;
    if !mode.takes_whole_device() {
        return Err(format!(
            "mode {}: devices of a pool are held whole, passthrough or dedicated",
            mode.word()
        ));
    }
    let count = row.find_number("gpus")?.unwrap_or(1);
    let size = match u32::try_from(count) {
        Ok(count) if (1..=POOL_DEVICES_MAX).contains(&count) => SliceSize::Devices(count),
        Ok(_) | Err(_) => return Err(format!("gpus {count} is not between 1 and {POOL_DEVICES_MAX}")),
    };
    let span = read_span(row, now)?;
    fleet.check_pool(&pool, span)?;
    let most = fleet.pool_size(&pool, span);
    if usize::try_from(count).is_ok_and(|count| count > most) {
        return Err(format!("gpus {count}: pool {pool} never had more than {most} of them in {span}"));
    }
    let evidence = read_evidence(row, workload)?;
    let slice = Slice::plain(pool.clone(), mode, size);
    let scope = ScopeName { kind: ScopeKind::Pool, name: pool };
    Ok((scope, Holding { span, slice, evidence, used: Used::default() }))
}

/// What a line says of its holder.
fn read_evidence(row: &TableRow<'_>, workload: Name) -> Result<Evidence, String> {
    let mut evidence = vec![(EvidenceField::Workload, workload)];
    if let Some(tenant) = row.find_name("tenant")? {
        if tenant.as_str() == PLATFORM_NAME {
            return Err(format!("tenant `{PLATFORM_NAME}` is reserved"));
        }
        evidence.push((EvidenceField::Tenant, tenant));
        evidence.extend(row.find_name("project")?.map(|project| (EvidenceField::Project, project)));
    } else if row.find_name("project")?.is_some() {
        return Err("project is given without a tenant".to_owned());
    }
    Ok(evidence.into_iter().collect())
}

/// The size that a line gives, if it gives one.
fn read_size(row: &TableRow<'_>) -> Result<Option<SliceSize>, String> {
    let (share, profile) = (row.find_number("share_ppm")?, row.find_name("profile")?);
    let (replicas, percent) = (row.find_number("replicas")?, row.find_number("thread_percent")?);
    let memory = row.find_number("memory_limit_mib")?;
    if share.is_some() && profile.is_some() {
        return Err("both share_ppm and profile are given; one of them says the size".to_owned());
    }
    let given = [share.is_some(), profile.is_some(), replicas.is_some(), percent.is_some()];
    if given.into_iter().filter(|given| *given).count() > 1 {
        return Err(
            "more than one of share_ppm, profile, replicas and thread_percent is given; one of them says the size"
                .to_owned(),
        );
    }
    let inside = |column: &str, value: i64, most: u32| match u32::try_from(value) {
        Ok(value) if (1..=most).contains(&value) => Ok(value),
        Ok(_) | Err(_) => Err(format!("{column} {value} is not between 1 and {most}")),
    };
    let memory_mib = memory.map(|mib| inside("memory_limit_mib", mib, 1 << 24)).transpose()?;
    if let Some(percent) = percent {
        let percent = inside("thread_percent", percent, 100)?;
        return Ok(Some(SliceSize::Threads { percent, memory_mib }));
    }
    if memory_mib.is_some() && given.into_iter().any(|given| given) {
        return Err("memory_limit_mib is given, but only an MPS client has one".to_owned());
    }
    if memory_mib.is_some() {
        return Ok(Some(SliceSize::Threads { percent: 100, memory_mib }));
    }
    if let Some(share) = share {
        return Ok(Some(SliceSize::Declared(inside("share_ppm", share, 1_000_000)?)));
    }
    if let Some(replicas) = replicas {
        return Ok(Some(SliceSize::OneOf(inside("replicas", replicas, REPLICAS_MAX)?)));
    }
    Ok(profile.map(SliceSize::Profile))
}

/// The size of a slice of that mode; what a mode has without being told.
fn size_of(mode: SharingMode, given: Option<SliceSize>) -> Result<SliceSize, String> {
    use SharingMode::{Dedicated, Mig, MigVgpu, Mps, Partition, Passthrough, TimeSlicing, Vgpu};
    let word = mode.word();
    match (mode, given) {
        (Passthrough | Dedicated, None | Some(SliceSize::Declared(1_000_000) | SliceSize::Whole)) => {
            Ok(SliceSize::Whole)
        }
        (Passthrough | Dedicated, Some(SliceSize::Declared(share))) => {
            Err(format!("share_ppm {share}: mode {word} holds the whole device"))
        }
        (Passthrough | Dedicated, Some(size)) => {
            let column = match size {
                SliceSize::Profile(_) => "profile",
                SliceSize::OneOf(_) | SliceSize::Even => "replicas",
                SliceSize::Threads { .. } => "thread_percent",
                SliceSize::Whole | SliceSize::Declared(_) | SliceSize::Devices(_) => "share_ppm",
            };
            Err(format!("{column} is given, but mode {word} holds the whole device"))
        }
        (Mps, None) => Ok(SliceSize::Threads { percent: 100, memory_mib: None }),
        (TimeSlicing, None) => Ok(SliceSize::Even),
        (Partition, None) => {
            Err(format!("mode {word} needs a share_ppm, or replicas for the number of partitions"))
        }
        (Mig | Vgpu | MigVgpu, None) => Err(format!("mode {word} needs a profile or a share_ppm")),
        (Mps, Some(size @ (SliceSize::Threads { .. } | SliceSize::Declared(_))))
        | (TimeSlicing | Partition, Some(size @ (SliceSize::OneOf(_) | SliceSize::Declared(_))))
        | (Mig | Vgpu | MigVgpu, Some(size @ (SliceSize::Profile(_) | SliceSize::Declared(_)))) => Ok(size),
        (_, Some(SliceSize::Threads { .. })) => {
            Err(format!("thread_percent and memory_limit_mib are of mps clients, and mode is {word}"))
        }
        (_, Some(SliceSize::OneOf(_) | SliceSize::Even)) => {
            Err(format!("replicas are of time_slicing and partition, and mode is {word}"))
        }
        // A profile that says nothing about a share: its time will be unknown, and a finding says why.
        (Mps | TimeSlicing | Partition, Some(size @ SliceSize::Profile(_))) => Ok(size),
        (_, Some(size @ (SliceSize::Whole | SliceSize::Devices(_)))) => Ok(size),
    }
}
