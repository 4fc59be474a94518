//! Declared states: maintenance, moves and faults of nodes, devices and slices, read from a table.
//!
//! A state is known by its source, node, device, slice, kind and start. The latest import that names it says when
//! it ends; one whose end is its start takes it back. Absence from a table takes nothing back.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io::Read;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::ctx::{Changed, Platform, Record, check_zone};
use super::error::ServiceError;
use super::pools;
use super::table::{BadLine, Strictness, Table, TableRow};
use crate::domain::device::DeclaredKind;
use crate::domain::ids::{Name, ScopeKind};
use crate::domain::period::{BillingZone, Span};
use crate::domain::units::Instant;
use crate::store::fleet::{ServiceInterval, StoredDevice, StoredScope};
use crate::store::installation::Lock;
use crate::store::marks::MarkKind;
use crate::store::states::{Declarer, StateKey};
use crate::store::{PlatformScope, ReadTx, WriteTx, fleet, installation, marks, states, unit};

const REQUIRED: [&str; 3] = ["node", "kind", "from"];
const OPTIONAL: [&str; 3] = ["gpu_uuid", "slice", "to"];

/// A state as a line declares it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Declaration {
    line: u64,
    node: Name,
    device: Option<Name>,
    slice: Option<Name>,
    kind: DeclaredKind,
    /// Empty: the state is taken back.
    span: Span,
}

fn read_line(row: &TableRow<'_>, line: u64, now: Instant) -> Result<Declaration, String> {
    let node = row.name("node")?;
    let device = row.find_name("gpu_uuid")?;
    let slice = row.find_name("slice")?;
    let kind = DeclaredKind::parse(row.name("kind")?.as_str()).map_err(|error| format!("kind {error}"))?;
    let from = row.instant("from")?;
    let to = row.find_instant("to")?;
    if slice.is_some() && device.is_none() {
        return Err("slice is given without a gpu_uuid".to_owned());
    }
    if kind == DeclaredKind::Migration && device.is_none() {
        return Err("kind migration needs a gpu_uuid".to_owned());
    }
    let span = Span::new(from, to.unwrap_or(Instant::MAX))
        .map_err(|_| format!("to {} lies before from {from}", to.unwrap_or(Instant::MAX)))?;
    if !kind.is_planned() && from > now {
        return Err(format!("from {from} lies in the future, and {} cannot be planned", kind.word()));
    }
    if let Some(to) = to.filter(|to| !kind.is_planned() && *to > now) {
        return Err(format!("to {to} lies in the future; leave it empty for what still lasts"));
    }
    Ok(Declaration { line, node, device, slice, kind, span })
}

/// What an import of states did.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct StatesOutcome {
    /// Lines read, the header apart.
    pub lines: u64,
    /// Lines that repeat another to the letter.
    pub repeated: u64,
    /// Lines that were refused.
    pub bad: Vec<BadLine>,
    /// States that were not known.
    pub declared: u64,
    /// States whose end was moved.
    pub amended: u64,
    /// States that were taken back.
    pub taken_back: u64,
}

impl StatesOutcome {
    /// Whether anything is now other than before.
    #[must_use]
    pub const fn changed(&self) -> bool {
        self.declared > 0 || self.amended > 0 || self.taken_back > 0
    }
}

/// Imports a table of declared states of one source: `node,gpu_uuid,slice,kind,from,to`.
///
/// The good lines are taken in one transaction; whether the bad ones stop them is the caller's to say. The hours whose
/// parts may change are marked; deriving is the caller's or a worker's. Hours to come are derived with the states of
/// their time.
///
/// # Errors
/// [`ServiceError::File`] when the file as a whole cannot be taken; [`ServiceError::Lines`] where all lines or none are
/// taken; nothing is then changed by it.
pub async fn import_states(
    platform: &Platform,
    source: &Name,
    (file, input): (&str, impl Read),
    strictness: Strictness,
) -> Result<StatesOutcome, ServiceError> {
    let now = platform.now();
    let mut outcome = StatesOutcome::default();
    let mut lines = Vec::new();
    let read = Table::read(input, file, &REQUIRED, &OPTIONAL, |line, row| {
        outcome.lines += 1;
        lines.push(row.and_then(|row| read_line(&row, line, now))?);
        Ok(())
    })?;
    outcome.bad = read.bad;
    let declarer = Declarer { source: source.clone(), actor: platform.actor.clone(), now };
    let work = Arc::new((lines, file.to_owned(), declarer, platform.zone(), outcome));
    platform
        .change(move |scope, tx| {
            let work = Arc::clone(&work);
            unit(async move {
                let (lines, file, declarer, zone, outcome) = &*work;
                // Neither the fleet nor an edge moves between here and the commit.
                installation::lock(scope, tx, Lock::Alone).await?;
                check_zone(scope, tx, *zone).await?;
                let fleet = Fleet::read(scope, tx).await?;
                let mut outcome = outcome.clone();
                let plan = Plan::of(lines, &fleet, file, &mut outcome);
                if strictness == Strictness::AllOrNothing && !outcome.bad.is_empty() {
                    return Err(ServiceError::Lines(outcome.bad));
                }
                let mut records = Vec::new();
                for (home, wanted) in plan.by_node.values() {
                    let application = Application { scope, tx, home, declarer, zone: *zone };
                    let changed = application.run(wanted, &mut outcome).await?;
                    records.extend(changed.into_iter().map(|change| change.record(home, declarer, &fleet)));
                }
                Ok(Changed { outcome, records })
            })
        })
        .await
}

/// What lines are checked against.
struct Fleet {
    nodes: BTreeMap<Name, StoredScope>,
    devices: BTreeMap<Name, StoredDevice>,
    services: BTreeMap<i64, Vec<ServiceInterval>>,
}

impl Fleet {
    async fn read(scope: &PlatformScope, tx: &ReadTx) -> Result<Self, ServiceError> {
        let scopes = fleet::scopes(scope, tx).await?;
        let nodes = scopes.into_iter().filter(|each| each.name.kind == ScopeKind::Node);
        let mut services: BTreeMap<i64, Vec<ServiceInterval>> = BTreeMap::new();
        for interval in fleet::services(scope, tx).await? {
            services.entry(interval.device).or_default().push(interval);
        }
        Ok(Self {
            nodes: nodes.map(|each| (each.name.name.clone(), each)).collect(),
            devices: fleet::devices(scope, tx).await?,
            services,
        })
    }

    /// Where a declaration belongs.
    fn place(&self, declared: &Declaration) -> Result<(&StoredScope, StateKey), String> {
        let node = &declared.node;
        let home = self.nodes.get(node).ok_or_else(|| format!("node {node} is not in the inventory"))?;
        let device = match &declared.device {
            Some(uuid) => Some(self.device_on(uuid, home, declared.span)?),
            None => None,
        };
        let (slice, from) = (declared.slice.clone(), declared.span.start());
        Ok((home, StateKey { device, slice, kind: declared.kind, from }))
    }

    fn device_on(&self, uuid: &Name, home: &StoredScope, span: Span) -> Result<i64, String> {
        let device =
            self.devices.get(uuid).ok_or_else(|| format!("gpu_uuid {uuid} is not in the inventory"))?;
        let services = self.services.get(&device.id).into_iter().flatten();
        let mut here = services.filter(|service| service.scope == home.id).peekable();
        let node = &home.name.name;
        if here.peek().is_none() {
            return Err(format!("gpu_uuid {uuid} never was in service on node {node}"));
        }
        if !span.is_empty() && !here.any(|service| service.span.meets(span)) {
            return Err(format!("gpu_uuid {uuid} was not in service on node {node} at any time of {span}"));
        }
        Ok(device.id)
    }
}

/// The states that a table wants on one node, with their ends and the lines that say so.
type Wanted = BTreeMap<StateKey, (Instant, u64)>;

/// What a table wants, by node.
#[derive(Default)]
struct Plan<'a> {
    by_node: BTreeMap<&'a Name, (&'a StoredScope, Wanted)>,
}

impl<'a> Plan<'a> {
    fn of(lines: &[Declaration], fleet: &'a Fleet, file: &str, outcome: &mut StatesOutcome) -> Self {
        let mut plan = Self::default();
        for declared in lines {
            let added = fleet.place(declared).and_then(|(home, key)| plan.add(declared, home, key));
            match added {
                Ok(true) => {}
                Ok(false) => outcome.repeated += 1,
                Err(reason) => {
                    outcome.bad.push(BadLine { file: file.to_owned(), line: declared.line, reason });
                }
            }
        }
        outcome.bad.sort_by_key(|bad| bad.line);
        plan
    }

    /// Whether it is new to this table.
    fn add(&mut self, declared: &Declaration, home: &'a StoredScope, key: StateKey) -> Result<bool, String> {
        let (_, wanted) = self.by_node.entry(&home.name.name).or_insert_with(|| (home, Wanted::new()));
        match wanted.entry(key) {
            Entry::Vacant(entry) => {
                entry.insert((declared.span.end(), declared.line));
                Ok(true)
            }
            Entry::Occupied(entry) => match *entry.get() {
                (end, _) if end == declared.span.end() => Ok(false),
                (_, first) => {
                    let (kind, from) = (declared.kind.word(), declared.span.start());
                    Err(format!("{kind} from {from} stands in line {first} with another end"))
                }
            },
        }
    }
}

/// How one state changed: where it ends, before and after. An end at its start: it was not there, or is no longer.
struct StateChange {
    key: StateKey,
    before: Instant,
    after: Instant,
}

impl StateChange {
    fn record(self, home: &StoredScope, declarer: &Declarer, fleet: &Fleet) -> Record {
        let Self { key, before, after } = self;
        let device = fleet.devices.values().find(|device| Some(device.id) == key.device);
        let device = device.map(|device| device.device.uuid.to_string());
        let shown = |end: Instant| {
            let to = (end != Instant::MAX).then(|| end.to_string());
            let (slice, source) = (key.slice.as_ref().map(Name::as_str), declarer.source.as_str());
            (end != key.from).then(|| {
                json!({
                    "node": home.name.name.as_str(), "gpu_uuid": device, "slice": slice,
                    "kind": key.kind.word(), "from": key.from.to_string(), "to": to, "source": source,
                })
            })
        };
        let (before, after) = (shown(before), shown(after));
        let action = match (&before, &after) {
            (None, _) => "state.declare",
            (Some(_), Some(_)) => "state.amend",
            (Some(_), None) => "state.take_back",
        };
        let subject = format!("{}/{}", home.name.name, key.kind.word());
        // Several states of one node and kind may be declared at once: the start tells them apart.
        Record { action, subject: format!("{subject}/{}", key.from), before, after }
    }
}

/// The states of one source and node inside the import's transaction.
struct Application<'a> {
    scope: &'a PlatformScope,
    tx: &'a WriteTx,
    home: &'a StoredScope,
    declarer: &'a Declarer,
    zone: BillingZone,
}

impl Application<'_> {
    async fn run(
        &self,
        wanted: &Wanted,
        outcome: &mut StatesOutcome,
    ) -> Result<Vec<StateChange>, ServiceError> {
        let (scope, tx, home) = (self.scope, self.tx, self.home);
        let known = states::declared_by(scope, tx, home.id, &self.declarer.source).await?;
        let mut put = Vec::new();
        let mut changed: Vec<(Option<i64>, Span)> = Vec::new();
        let mut changes = Vec::new();
        for (key, (end, _)) in wanted {
            // What is not known ends where it begins, and so does what is taken back.
            let before = known.get(key).copied().unwrap_or(key.from);
            if before == *end {
                continue;
            }
            changed.push((key.device, Span::clamped(before.min(*end), before.max(*end))));
            changes.push(StateChange { key: key.clone(), before, after: *end });
            if *end == key.from {
                states::take_back(scope, tx, home.id, &self.declarer.source, key).await?;
                outcome.taken_back += 1;
                continue;
            }
            if before == key.from {
                outcome.declared += 1;
            } else {
                outcome.amended += 1;
            }
            put.push((key.clone(), *end));
        }
        states::declare(scope, tx, home.id, self.declarer, &put).await?;
        self.mark(&changed).await?;
        Ok(changes)
    }

    /// Marks the hours that have been asked for and in which a device's states are now others.
    async fn mark(&self, changed: &[(Option<i64>, Span)]) -> Result<(), ServiceError> {
        if changed.is_empty() {
            return Ok(());
        }
        let services = fleet::scope_services(self.scope, self.tx, self.home.id).await?;
        let spans = changed.iter().flat_map(|(device, span)| {
            let concerned = services.iter().filter(move |each| device.is_none_or(|id| id == each.device));
            concerned.map(move |each| Span::clamped(each.span.start(), each.edge).clip(*span))
        });
        let hours = super::accept::hours_meeting(self.zone, spans);
        marks::mark_hours(self.scope, self.tx, self.home, MarkKind::Part, &hours).await?;
        pools::mark(self.scope, self.tx, self.home, &hours).await
    }
}
