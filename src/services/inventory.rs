//! Inventories: devices and their in-service intervals, read from a table and brought into the fleet.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::ctx::{Changed, Platform, Record, check_zone};
use super::error::ServiceError;
use super::table::{BadLine, Strictness, Table, TableRow};
use crate::domain::device::Device;
use crate::domain::ids::{Name, ScopeId, ScopeKind, ScopeName};
use crate::domain::period::{Day, Span};
use crate::domain::units::Instant;
use crate::store::fleet::{NewDevice, ServiceInterval, StoredDevice, StoredScope};
use crate::store::installation::Lock;
use crate::store::marks::MarkKind;
use crate::store::{PlatformScope, WriteTx, fleet, installation, marks, unit};

/// One line of an inventory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InventoryLine {
    /// Its line in the file, from 1.
    pub line: u64,
    /// The node.
    pub node: Name,
    /// The device.
    pub device: Device,
    /// Its index on the node, where given.
    pub index: Option<i64>,
    /// Its memory, where given.
    pub memory_mib: Option<i64>,
    /// From when to when it is in service; an open end reaches [`Instant::MAX`].
    pub in_service: Span,
    /// To which pool it belongs meanwhile.
    pub pool: PoolColumn,
}

/// What a line says of its pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PoolColumn {
    /// Nothing, for the table has no such column: what is known stays, and what is new is in none.
    Absent,
    /// The pool; none: the device is in none.
    Of(Option<Name>),
}

impl PoolColumn {
    /// The pool that the line names.
    #[must_use]
    pub const fn name(&self) -> Option<&Name> {
        match self {
            Self::Of(Some(name)) => Some(name),
            Self::Of(None) | Self::Absent => None,
        }
    }
}

/// An inventory as read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Inventory {
    /// The good lines.
    pub lines: Vec<InventoryLine>,
    /// The others.
    pub bad: Vec<BadLine>,
}

/// 2000-01-01T00:00:00Z. No GPU that computes is older; an earlier year is a slip that would cost a mark an hour.
const EARLIEST: Instant = Instant::from_micros(946_684_800_000_000);

const REQUIRED: [&str; 4] = ["node", "gpu_uuid", "gpu_model", "in_service_from"];
const OPTIONAL: [&str; 4] = ["gpu_index", "gpu_memory_gib", "in_service_to", "pool"];

impl Inventory {
    /// Reads an inventory: `node,gpu_uuid,gpu_index,gpu_model,gpu_memory_gib,in_service_from,in_service_to,pool`.
    ///
    /// # Errors
    /// [`ServiceError::File`] when the header is not of this table, or the file cannot be read.
    pub fn read(input: impl Read, file: &str) -> Result<Self, ServiceError> {
        let mut inventory = Self::default();
        let mut seen = SeenLines::default();
        let read = Table::read(input, file, &REQUIRED, &OPTIONAL, |number, row| {
            inventory.lines.push(row.and_then(|row| read_line(&row, number, &mut seen))?);
            Ok(())
        })?;
        inventory.bad = read.bad;
        Ok(inventory)
    }
}

/// What earlier lines said: of each device, and of each pool by its first.
#[derive(Default)]
struct SeenLines {
    devices: BTreeMap<Name, Vec<Seen>>,
    pools: BTreeMap<Name, (Name, Device, u64)>,
}

/// What an earlier line said of a device.
struct Seen {
    line: u64,
    model: Name,
    in_service: Span,
}

fn read_line(row: &TableRow<'_>, number: u64, seen: &mut SeenLines) -> Result<InventoryLine, String> {
    let node = row.name("node")?;
    let uuid = row.name("gpu_uuid")?;
    let model = row.name("gpu_model")?;
    let start = row.instant("in_service_from")?;
    let end = row.find_instant("in_service_to")?.unwrap_or(Instant::MAX);
    let in_service = Span::new(start, end)
        .map_err(|_| format!("in_service_to {end} lies before in_service_from {start}"))?;
    if in_service.is_empty() {
        return Err("in_service_to is in_service_from: the device is never in service".to_owned());
    }
    if start < EARLIEST {
        return Err(format!("in_service_from {start} lies before {EARLIEST}"));
    }
    let index = row.find_number("gpu_index")?;
    if let Some(index) = index.filter(|index| !(0..=65_535).contains(index)) {
        return Err(format!("gpu_index {index} is not between 0 and 65535"));
    }
    let memory_mib = match row.find_number("gpu_memory_gib")? {
        Some(gib @ 1..=1_048_576) => Some(gib * 1_024),
        Some(gib) => return Err(format!("gpu_memory_gib {gib} is not between 1 and 1048576")),
        None => None,
    };
    let pool = if row.has("pool") { PoolColumn::Of(row.find_name("pool")?) } else { PoolColumn::Absent };
    if let Some((name, other, line)) = pool.name().and_then(|name| seen.pools.get(name))
        && other.model != model
    {
        return Err(format!(
            "pool {name} has `{}` by line {line} ({}), not `{model}`",
            other.model, other.uuid
        ));
    }
    let others = seen.devices.entry(uuid.clone()).or_default();
    if let Some(other) = others.iter().find(|other| other.in_service.meets(in_service)) {
        return Err(format!(
            "device {uuid} is already in service {} by line {}",
            other.in_service, other.line
        ));
    }
    if let Some(other) = others.iter().find(|other| other.model != model) {
        return Err(format!("device {uuid} is `{}` by line {}, not `{model}`", other.model, other.line));
    }
    others.push(Seen { line: number, model: model.clone(), in_service });
    let device = Device { uuid, model };
    if let Some(name) = pool.name() {
        let first = || (name.clone(), device.clone(), number);
        seen.pools.entry(name.clone()).or_insert_with(first);
    }
    Ok(InventoryLine { line: number, node, device, index, memory_mib, in_service, pool })
}

/// What an inventory changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct InventoryOutcome {
    /// In-service intervals that were opened.
    pub opened: usize,
    /// In-service intervals whose end was set or moved.
    pub ended: usize,
    /// In-service intervals that came into another pool, or out of one.
    pub repooled: usize,
}

/// Brings an inventory into the fleet, all of it or nothing. A repeat changes nothing.
///
/// An interval of the same device and start gets the inventory's end and pool; a new one may not overlap what is
/// there. The devices of a pool are of one model. Absence from an inventory closes nothing.
///
/// # Errors
/// [`ServiceError::File`] names the line that contradicts what is known.
pub async fn apply(
    platform: &Platform,
    file: &str,
    lines: Vec<InventoryLine>,
) -> Result<InventoryOutcome, ServiceError> {
    let work = Arc::new((lines, file.to_owned(), platform.now(), platform.zone()));
    platform
        .change(move |scope, tx| {
            let work = Arc::clone(&work);
            unit(async move {
                let (lines, file, now, zone) = &*work;
                let application = Application { scope, tx, now: *now, zone: *zone, file };
                let mut records = Vec::new();
                let outcome = application.run(lines, &mut records).await?;
                Ok(Changed { outcome, records })
            })
        })
        .await
}

/// What became of an inventory.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct InventoryReport {
    /// What it changed.
    pub changed: InventoryOutcome,
    /// Lines that were not taken.
    pub bad: Vec<BadLine>,
}

/// Reads an inventory and brings its good lines into the fleet; whether the bad ones stop them is the caller's to say.
/// The tick is advanced, so that hours that are now in service are asked for.
///
/// # Errors
/// [`ServiceError::File`], [`ServiceError::Line`]; [`ServiceError::Lines`] where all lines or none are taken.
pub async fn bring(
    platform: &Platform,
    (file, input): (&str, impl Read),
    strictness: Strictness,
) -> Result<InventoryReport, ServiceError> {
    let Inventory { lines, bad } = Inventory::read(input, file)?;
    if strictness == Strictness::AllOrNothing && !bad.is_empty() {
        return Err(ServiceError::Lines(bad));
    }
    let changed = apply(platform, file, lines).await?;
    super::tick::advance(platform).await?;
    Ok(InventoryReport { changed, bad })
}

fn record_of(line: &InventoryLine, before: Option<&ServiceInterval>) -> Record {
    let shown = |end: Instant| (end != Instant::MAX).then(|| end.to_string());
    let after: Value = json!({
        "node": line.node.as_str(),
        "in_service_from": line.in_service.start().to_string(),
        "in_service_to": shown(line.in_service.end()),
        "pool": line.pool.name().map(Name::as_str),
    });
    let before = before.map(|interval| json!({ "in_service_to": shown(interval.span.end()) }));
    let action = if before.is_some() { "in_service.amend" } else { "in_service.open" };
    let subject = format!("{}/{}", line.device.uuid, line.in_service.start());
    Record { action, subject, before, after: Some(after) }
}

/// The hours to be folded, by scope.
type Dirty = BTreeMap<ScopeId, BTreeSet<(Day, Instant)>>;

fn node_of(line: &InventoryLine) -> ScopeName {
    ScopeName { kind: ScopeKind::Node, name: line.node.clone() }
}

fn pool_of(line: &InventoryLine) -> Option<ScopeName> {
    line.pool.name().map(|name| ScopeName { kind: ScopeKind::Pool, name: name.clone() })
}

/// One inventory inside its transaction.
struct Application<'a> {
    scope: &'a PlatformScope,
    tx: &'a WriteTx,
    now: Instant,
    zone: crate::domain::period::BillingZone,
    file: &'a str,
}

impl Application<'_> {
    async fn run(
        &self,
        lines: &[InventoryLine],
        records: &mut Vec<Record>,
    ) -> Result<InventoryOutcome, ServiceError> {
        installation::lock(self.scope, self.tx, Lock::Alone).await?;
        check_zone(self.scope, self.tx, self.zone).await?;
        let (scopes, devices) = self.ensure(lines).await?;
        let mut known: BTreeMap<i64, Vec<ServiceInterval>> = BTreeMap::new();
        for interval in fleet::services(self.scope, self.tx).await? {
            known.entry(interval.device).or_default().push(interval);
        }
        let mut outcome = InventoryOutcome::default();
        let mut dirty = Dirty::new();
        let mut new: Vec<(&InventoryLine, &StoredScope, Option<ScopeId>, i64)> = Vec::new();
        // Ends first: a device that moved is ended on one node and begun on another, in whatever order.
        for line in lines {
            let home = scopes.get(&node_of(line));
            let (Some(home), Some(device)) = (home, devices.get(&line.device.uuid)) else { continue };
            let pool = pool_of(line).and_then(|name| scopes.get(&name)).map(|pool| pool.id);
            let (uuid, model) = (&line.device.uuid, &device.device.model);
            if *model != line.device.model {
                let reason = format!("device {uuid} is known as `{model}`, not `{}`", line.device.model);
                return Err(self.refuse(line, reason));
            }
            let there = known.entry(device.id).or_default();
            let same = there.iter_mut().find(|each| each.span.start() == line.in_service.start());
            let Some(same) = same else {
                new.push((line, home, pool, device.id));
                continue;
            };
            if same.scope != home.id {
                let reason = format!("device {uuid} is in service elsewhere from the same instant");
                return Err(self.refuse(line, reason));
            }
            let is_repooled = line.pool != PoolColumn::Absent && same.pool != pool;
            if same.span.end() != line.in_service.end() || is_repooled {
                records.push(record_of(line, Some(same)));
            }
            if same.span.end() != line.in_service.end() {
                let gone = Span::clamped(line.in_service.end().min(same.edge), same.edge);
                self.end(same, line.in_service.end()).await?;
                let hours = super::accept::hours_meeting(self.zone, [gone]);
                for concerned in [Some(home.id), same.pool].into_iter().flatten() {
                    dirty.entry(concerned).or_default().extend(&hours);
                }
                outcome.ended += 1;
            }
            if is_repooled {
                fleet::set_pool(self.scope, self.tx, same.device, same.span.start(), pool).await?;
                let asked = Span::clamped(same.span.start(), same.edge);
                let hours = super::accept::hours_meeting(self.zone, [asked]);
                for concerned in [Some(home.id), same.pool, pool].into_iter().flatten() {
                    dirty.entry(concerned).or_default().extend(&hours);
                }
                same.pool = pool;
                outcome.repooled += 1;
            }
        }
        for (line, home, pool, device) in new {
            let interval = ServiceInterval {
                device,
                scope: home.id,
                span: line.in_service,
                node_index: line.index,
                edge: line.in_service.start(),
                covered_to: line.in_service.start(),
                pool,
            };
            fleet::open_service(self.scope, self.tx, &interval).await?;
            records.push(record_of(line, None));
            known.entry(device).or_default().push(interval);
            outcome.opened += 1;
        }
        // One board is in one place at a time, whichever line moved what.
        for line in lines {
            let Some(device) = devices.get(&line.device.uuid) else { continue };
            let all = known.get(&device.id).into_iter().flatten();
            let mut others = all.filter(|each| each.span.start() != line.in_service.start());
            if let Some(other) = others.find(|each| each.span.meets(line.in_service)) {
                let reason = format!("device {} is already in service {}", line.device.uuid, other.span);
                return Err(self.refuse(line, reason));
            }
        }
        self.check_pools(lines, &scopes, &devices, &known)?;
        // Nodes before pools, each by name: one order for all writers.
        for each in scopes.values() {
            if let Some(hours) = dirty.get(&each.id) {
                marks::mark_hours(self.scope, self.tx, each, MarkKind::Fold, hours).await?;
            }
        }
        // A device-hour with several intervals may now be another pool's than the one that is marked above.
        for node in scopes.values().filter(|each| each.name.kind == ScopeKind::Node) {
            if let Some(hours) = dirty.get(&node.id) {
                super::pools::mark(self.scope, self.tx, node, hours).await?;
            }
        }
        Ok(outcome)
    }

    /// Refuses a line that brings a device into a pool of another model, now or at any other time, and a name that
    /// a pool and a node would both have.
    fn check_pools(
        &self,
        lines: &[InventoryLine],
        scopes: &BTreeMap<ScopeName, StoredScope>,
        devices: &BTreeMap<Name, StoredDevice>,
        known: &BTreeMap<i64, Vec<ServiceInterval>>,
    ) -> Result<(), ServiceError> {
        let by_number: BTreeMap<i64, &Device> =
            devices.values().map(|stored| (stored.id, &stored.device)).collect();
        let mut pools: BTreeMap<ScopeId, BTreeMap<&Name, &Name>> = BTreeMap::new();
        for each in known.values().flatten() {
            if let (Some(pool), Some(device)) = (each.pool, by_number.get(&each.device)) {
                let first = pools.entry(pool).or_default().entry(&device.model).or_insert(&device.uuid);
                *first = (*first).min(&device.uuid);
            }
        }
        for line in lines {
            // Reports show both in one column.
            let both = |kind, name: &Name| scopes.contains_key(&ScopeName { kind, name: name.clone() });
            if let Some(name) = line.pool.name().filter(|name| both(ScopeKind::Node, name)) {
                return Err(self.refuse(line, format!("pool {name} has the name of a node")));
            }
            if both(ScopeKind::Pool, &line.node) {
                return Err(self.refuse(line, format!("node {} has the name of a pool", line.node)));
            }
            let pool = pool_of(line).and_then(|name| scopes.get(&name));
            let models = pool.and_then(|pool| pools.get(&pool.id));
            let mut others = models.into_iter().flatten().filter(|(model, _)| ***model != line.device.model);
            if let (Some(pool), Some((model, uuid))) = (pool, others.next()) {
                let (name, own) = (&pool.name.name, &line.device.model);
                let reason = format!("pool {name} has `{model}` (device {uuid}), not `{own}`");
                return Err(self.refuse(line, reason));
            }
        }
        Ok(())
    }

    fn refuse(&self, line: &InventoryLine, reason: String) -> ServiceError {
        ServiceError::Line(BadLine { file: self.file.to_owned(), line: line.line, reason })
    }

    async fn end(&self, interval: &mut ServiceInterval, end: Instant) -> Result<(), ServiceError> {
        let device = interval.device;
        fleet::close_service(self.scope, self.tx, device, interval.span.start(), end).await?;
        interval.span = Span::clamped(interval.span.start(), end);
        interval.edge = interval.edge.min(end);
        Ok(())
    }

    /// Makes what is missing; returns nodes and pools by name, and devices by UUID.
    async fn ensure(
        &self,
        lines: &[InventoryLine],
    ) -> Result<(BTreeMap<ScopeName, StoredScope>, BTreeMap<Name, StoredDevice>), ServiceError> {
        let names: BTreeSet<ScopeName> =
            lines.iter().flat_map(|line| [Some(node_of(line)), pool_of(line)]).flatten().collect();
        let names: Vec<ScopeName> = names.into_iter().collect();
        fleet::ensure_scopes(self.scope, self.tx, &names, self.now).await?;
        let new: BTreeMap<&Name, NewDevice> = lines
            .iter()
            .map(|line| {
                let new = NewDevice { device: line.device.clone(), memory_mib: line.memory_mib };
                (&line.device.uuid, new)
            })
            .collect();
        let new: Vec<NewDevice> = new.into_values().collect();
        fleet::ensure_devices(self.scope, self.tx, &new, self.now).await?;
        let scopes = fleet::scopes(self.scope, self.tx).await?;
        let scopes = scopes.into_iter().map(|each| (each.name.clone(), each)).collect();
        Ok((scopes, fleet::devices(self.scope, self.tx).await?))
    }
}
