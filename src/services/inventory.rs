//! Inventories: devices and their in-service intervals, read from a table and brought into the fleet.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::sync::Arc;

use super::ctx::{Platform, check_zone};
use super::error::ServiceError;
use super::table::{BadLine, Table, TableRow};
use crate::domain::device::Device;
use crate::domain::ids::{Name, ScopeKind, ScopeName};
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
const OPTIONAL: [&str; 3] = ["gpu_index", "gpu_memory_gib", "in_service_to"];

impl Inventory {
    /// Reads an inventory: `node,gpu_uuid,gpu_index,gpu_model,gpu_memory_gib,in_service_from,in_service_to`.
    ///
    /// # Errors
    /// [`ServiceError::File`] when the header is not of this table, or the file cannot be read.
    pub fn read(input: impl Read, file: &str) -> Result<Self, ServiceError> {
        let mut inventory = Self::default();
        let mut seen: BTreeMap<Name, Vec<Seen>> = BTreeMap::new();
        Table::read(input, file, &REQUIRED, &OPTIONAL, |number, row| {
            match row.and_then(|row| read_line(&row, number, &mut seen)) {
                Ok(line) => inventory.lines.push(line),
                Err(reason) => inventory.bad.push(BadLine { file: file.to_owned(), line: number, reason }),
            }
        })?;
        Ok(inventory)
    }
}

/// What an earlier line said of a device.
struct Seen {
    line: u64,
    model: Name,
    in_service: Span,
}

fn read_line(
    row: &TableRow<'_>,
    number: u64,
    seen: &mut BTreeMap<Name, Vec<Seen>>,
) -> Result<InventoryLine, String> {
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
    let others = seen.entry(uuid.clone()).or_default();
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
    Ok(InventoryLine { line: number, node, device: Device { uuid, model }, index, memory_mib, in_service })
}

/// What an inventory changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct InventoryOutcome {
    /// In-service intervals that were opened.
    pub opened: usize,
    /// In-service intervals whose end was set or moved.
    pub ended: usize,
}

/// Brings an inventory into the fleet, all of it or nothing. A repeat changes nothing.
///
/// An interval of the same device and start gets the inventory's end; a new one may not overlap what is
/// there. Absence from an inventory closes nothing.
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
        .write(move |scope, tx| {
            let work = Arc::clone(&work);
            unit(async move {
                let (lines, file, now, zone) = &*work;
                Application { scope, tx, now: *now, zone: *zone, file }.run(lines).await
            })
        })
        .await
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
    async fn run(&self, lines: &[InventoryLine]) -> Result<InventoryOutcome, ServiceError> {
        installation::lock(self.scope, self.tx, Lock::Alone).await?;
        check_zone(self.scope, self.tx, self.zone).await?;
        let (scopes, devices) = self.ensure(lines).await?;
        let mut known: BTreeMap<i64, Vec<ServiceInterval>> = BTreeMap::new();
        for interval in fleet::services(self.scope, self.tx).await? {
            known.entry(interval.device).or_default().push(interval);
        }
        let mut outcome = InventoryOutcome::default();
        let mut dirty: BTreeMap<&Name, BTreeSet<(Day, Instant)>> = BTreeMap::new();
        let mut new: Vec<(&InventoryLine, &StoredScope, i64)> = Vec::new();
        // Ends first: a device that moved is ended on one node and begun on another, in whatever order.
        for line in lines {
            let (Some(home), Some(device)) = (scopes.get(&line.node), devices.get(&line.device.uuid)) else {
                continue;
            };
            let (uuid, model) = (&line.device.uuid, &device.device.model);
            if *model != line.device.model {
                let reason = format!("device {uuid} is known as `{model}`, not `{}`", line.device.model);
                return Err(self.refuse(line, reason));
            }
            let there = known.entry(device.id).or_default();
            let same = there.iter_mut().find(|each| each.span.start() == line.in_service.start());
            let Some(same) = same else {
                new.push((line, home, device.id));
                continue;
            };
            if same.scope != home.id {
                let reason = format!("device {uuid} is in service elsewhere from the same instant");
                return Err(self.refuse(line, reason));
            }
            if same.span.end() != line.in_service.end() {
                let gone = Span::clamped(line.in_service.end().min(same.edge), same.edge);
                self.end(same, line.in_service.end()).await?;
                let hours = super::accept::hours_meeting(self.zone, [gone]);
                dirty.entry(&line.node).or_default().extend(hours);
                outcome.ended += 1;
            }
        }
        for (line, home, device) in new {
            let interval = ServiceInterval {
                device,
                scope: home.id,
                span: line.in_service,
                node_index: line.index,
                edge: line.in_service.start(),
                covered_to: line.in_service.start(),
            };
            fleet::open_service(self.scope, self.tx, &interval).await?;
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
        for (node, hours) in dirty {
            if let Some(home) = scopes.get(node) {
                marks::mark_hours(self.scope, self.tx, home, MarkKind::Fold, &hours).await?;
            }
        }
        Ok(outcome)
    }

    fn refuse(&self, line: &InventoryLine, reason: String) -> ServiceError {
        ServiceError::File { file: self.file.to_owned(), reason: format!("line {}: {reason}", line.line) }
    }

    async fn end(&self, interval: &mut ServiceInterval, end: Instant) -> Result<(), ServiceError> {
        let device = interval.device;
        fleet::close_service(self.scope, self.tx, device, interval.span.start(), end).await?;
        interval.span = Span::clamped(interval.span.start(), end);
        interval.edge = interval.edge.min(end);
        Ok(())
    }

    /// Makes what is missing; returns nodes by name and devices by UUID.
    async fn ensure(
        &self,
        lines: &[InventoryLine],
    ) -> Result<(BTreeMap<Name, StoredScope>, BTreeMap<Name, StoredDevice>), ServiceError> {
        let names: BTreeSet<&Name> = lines.iter().map(|line| &line.node).collect();
        let names: Vec<ScopeName> =
            names.into_iter().map(|name| ScopeName { kind: ScopeKind::Node, name: name.clone() }).collect();
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
        let scopes = scopes
            .into_iter()
            .filter(|each| each.name.kind == ScopeKind::Node)
            .map(|each| (each.name.name.clone(), each))
            .collect();
        Ok((scopes, fleet::devices(self.scope, self.tx).await?))
    }
}
