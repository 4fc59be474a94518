//! Scopes, devices and their in-service intervals.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use super::backend::lock_clause;
use super::{PlatformScope, ReadTx, StoreError, WriteTx, states};
use crate::domain::device::{DeclaredState, Device};
use crate::domain::ids::{Bucket, Name, ScopeId, ScopeKind, ScopeName};
use crate::domain::period::Span;
use crate::domain::report::CountedService;
use crate::domain::units::Instant;

/// A scope as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredScope {
    /// Its number.
    pub id: ScopeId,
    /// What it is.
    pub name: ScopeName,
    /// The bucket under which its work is leased.
    pub bucket: Bucket,
}

/// A device as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredDevice {
    /// Its number.
    pub id: i64,
    /// What attribution needs to know of it.
    pub device: Device,
}

/// An in-service interval as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceInterval {
    /// The device's number.
    pub device: i64,
    /// The home scope.
    pub scope: ScopeId,
    /// From when to when; an open end reaches [`Instant::MAX`].
    pub span: Span,
    /// The device's index on the node, where known.
    pub node_index: Option<i64>,
    /// Until when the tick has asked for its hours.
    pub edge: Instant,
    /// The latest edge of coverage of holding.
    pub covered_to: Instant,
    /// The pool to which the device belongs while it lasts.
    pub pool: Option<ScopeId>,
}

/// An end as stored: empty while it is open.
pub(super) fn stored_end(end: Instant) -> Option<i64> {
    (end != Instant::MAX).then(|| end.micros())
}

/// A span as stored.
pub(super) fn span_of(from: i64, to: Option<i64>) -> Span {
    Span::clamped(Instant::from_micros(from), to.map_or(Instant::MAX, Instant::from_micros))
}

pub(super) fn name_of(text: &str) -> Result<Name, StoreError> {
    Name::parse(text).map_err(|error| StoreError::corrupt("a name", format!("`{text}` {error}")))
}

/// All scopes.
///
/// # Errors
/// [`StoreError`].
pub async fn scopes(_scope: &PlatformScope, tx: &ReadTx) -> Result<Vec<StoredScope>, StoreError> {
    let rows = tx.all("SELECT scope_id, kind, name FROM scope ORDER BY kind, name", vec![]).await?;
    rows.iter()
        .map(|row| {
            let kind: String = row.get(1)?;
            let kind = ScopeKind::parse(&kind).ok_or_else(|| StoreError::corrupt("a scope", kind))?;
            let name = name_of(&row.get::<String>(2)?)?;
            let bucket = Bucket::of(&name);
            Ok(StoredScope { id: ScopeId::from_stored(row.get(0)?), name: ScopeName { kind, name }, bucket })
        })
        .collect()
}

/// One scope by name.
///
/// # Errors
/// [`StoreError`].
pub async fn find_scope(
    _scope: &PlatformScope,
    tx: &ReadTx,
    name: &ScopeName,
) -> Result<Option<StoredScope>, StoreError> {
    let sql = "SELECT scope_id FROM scope WHERE kind = $1 AND name = $2";
    let row = tx.one(sql, vec![name.kind.word().into(), name.name.as_str().into()]).await?;
    row.map(|row| {
        let id = ScopeId::from_stored(row.get(0)?);
        Ok(StoredScope { id, name: name.clone(), bucket: Bucket::of(&name.name) })
    })
    .transpose()
}

/// Locks a scope's row until the transaction ends.
///
/// # Errors
/// [`StoreError`].
pub async fn lock_scope(_scope: &PlatformScope, tx: &WriteTx, scope: ScopeId) -> Result<(), StoreError> {
    let sql = format!("SELECT scope_id FROM scope WHERE scope_id = $1{}", lock_clause(tx.dialect()));
    tx.one(&sql, vec![scope.stored().into()]).await.map(|_| ())
}

/// The pools to which in-service intervals of a node belong, by name.
///
/// # Errors
/// [`StoreError`].
pub async fn pools_of(
    _scope: &PlatformScope,
    tx: &ReadTx,
    node: ScopeId,
) -> Result<Vec<StoredScope>, StoreError> {
    let sql = "SELECT DISTINCT p.scope_id, p.name FROM device_service s JOIN scope p ON p.scope_id = s.pool_id \
               WHERE s.scope_id = $1";
    let rows = tx.all(sql, vec![node.stored().into()]).await?;
    let mut pools = rows
        .iter()
        .map(|row| {
            let (id, name) = (ScopeId::from_stored(row.get(0)?), name_of(&row.get::<String>(1)?)?);
            let bucket = Bucket::of(&name);
            Ok(StoredScope { id, name: ScopeName { kind: ScopeKind::Pool, name }, bucket })
        })
        .collect::<Result<Vec<_>, StoreError>>()?;
    pools.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    Ok(pools)
}

/// Makes the scopes that are missing.
///
/// # Errors
/// [`StoreError`].
pub async fn ensure_scopes(
    _scope: &PlatformScope,
    tx: &WriteTx,
    names: &[ScopeName],
    now: Instant,
) -> Result<(), StoreError> {
    let rows = names
        .iter()
        .map(|each| {
            let bucket = Bucket::of(&each.name).stored();
            vec![each.kind.word().into(), each.name.as_str().into(), bucket.into(), now.micros().into()]
        })
        .collect();
    let columns = ["kind", "name", "bucket", "created_us"];
    tx.insert("scope", &columns, rows, "ON CONFLICT (kind, name) DO NOTHING").await.map(|_| ())
}

/// All devices by UUID.
///
/// # Errors
/// [`StoreError`].
pub async fn devices(
    _scope: &PlatformScope,
    tx: &ReadTx,
) -> Result<BTreeMap<Name, StoredDevice>, StoreError> {
    let rows = tx.all("SELECT device_id, uuid, model FROM device", vec![]).await?;
    rows.iter()
        .map(|row| {
            let uuid = name_of(&row.get::<String>(1)?)?;
            let device = Device { uuid: uuid.clone(), model: name_of(&row.get::<String>(2)?)? };
            Ok((uuid, StoredDevice { id: row.get(0)?, device }))
        })
        .collect()
}

/// Devices by UUID, as far as they are known.
///
/// # Errors
/// [`StoreError`].
pub async fn devices_named(
    _scope: &PlatformScope,
    tx: &ReadTx,
    uuids: &[&Name],
) -> Result<BTreeMap<Name, StoredDevice>, StoreError> {
    let mut found = BTreeMap::new();
    for chunk in uuids.chunks(1_000) {
        let marks: Vec<String> = (1..=chunk.len()).map(|number| format!("${number}")).collect();
        let sql = format!("SELECT device_id, uuid, model FROM device WHERE uuid IN ({})", marks.join(", "));
        for row in tx.all(&sql, chunk.iter().map(|uuid| uuid.as_str().into()).collect()).await? {
            let uuid = name_of(&row.get::<String>(1)?)?;
            let device = Device { uuid: uuid.clone(), model: name_of(&row.get::<String>(2)?)? };
            found.insert(uuid, StoredDevice { id: row.get(0)?, device });
        }
    }
    Ok(found)
}

/// The in-service intervals of devices, on whichever node.
///
/// # Errors
/// [`StoreError`].
pub async fn services_of(
    _scope: &PlatformScope,
    tx: &ReadTx,
    uuids: &[&Name],
) -> Result<Vec<ServiceInterval>, StoreError> {
    let mut found = Vec::new();
    for chunk in uuids.chunks(1_000) {
        let marks: Vec<String> = (1..=chunk.len()).map(|number| format!("${number}")).collect();
        let sql = format!(
            "SELECT {SERVICE_COLUMNS} FROM device_service \
             WHERE device_id IN (SELECT d.device_id FROM device d WHERE d.uuid IN ({})) ORDER BY device_id, from_us",
            marks.join(", ")
        );
        for row in tx.all(&sql, chunk.iter().map(|uuid| uuid.as_str().into()).collect()).await? {
            found.push(service_of(&row)?);
        }
    }
    Ok(found)
}

/// Notes a device's serial number, where none is known.
///
/// # Errors
/// [`StoreError`].
pub async fn note_serial(
    _scope: &PlatformScope,
    tx: &WriteTx,
    device: i64,
    serial: &Name,
) -> Result<(), StoreError> {
    let sql = "UPDATE device SET serial = $2 WHERE device_id = $1 AND serial IS NULL";
    tx.run(sql, vec![device.into(), serial.as_str().into()]).await.map(|_| ())
}

/// A device to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewDevice {
    /// What attribution needs to know of it.
    pub device: Device,
    /// Its memory, where known.
    pub memory_mib: Option<i64>,
}

/// Makes the devices that are missing.
///
/// # Errors
/// [`StoreError`].
pub async fn ensure_devices(
    _scope: &PlatformScope,
    tx: &WriteTx,
    new: &[NewDevice],
    now: Instant,
) -> Result<(), StoreError> {
    let rows = new
        .iter()
        .map(|each| {
            let (uuid, model) = (each.device.uuid.as_str().into(), each.device.model.as_str().into());
            vec![uuid, model, each.memory_mib.into(), now.micros().into()]
        })
        .collect();
    let columns = ["uuid", "model", "memory_mib", "created_us"];
    tx.insert("device", &columns, rows, "ON CONFLICT (uuid) DO NOTHING").await.map(|_| ())
}

const SERVICE_COLUMNS: &str =
    "device_id, scope_id, from_us, to_us, node_index, edge_us, covered_to_us, pool_id";

fn service_of(row: &super::unit::Row) -> Result<ServiceInterval, StoreError> {
    Ok(ServiceInterval {
        device: row.get(0)?,
        scope: ScopeId::from_stored(row.get(1)?),
        span: span_of(row.get(2)?, row.get(3)?),
        node_index: row.get(4)?,
        edge: Instant::from_micros(row.get(5)?),
        covered_to: Instant::from_micros(row.get(6)?),
        pool: row.get::<Option<i64>>(7)?.map(ScopeId::from_stored),
    })
}

/// All in-service intervals.
///
/// # Errors
/// [`StoreError`].
pub async fn services(_scope: &PlatformScope, tx: &ReadTx) -> Result<Vec<ServiceInterval>, StoreError> {
    let sql = format!("SELECT {SERVICE_COLUMNS} FROM device_service ORDER BY device_id, from_us");
    tx.all(&sql, vec![]).await?.iter().map(service_of).collect()
}

/// The in-service intervals of one scope: of a node those at home there, of a pool those that belong to it.
///
/// # Errors
/// [`StoreError`].
pub async fn scope_services(
    _scope: &PlatformScope,
    tx: &ReadTx,
    scope: ScopeId,
) -> Result<Vec<ServiceInterval>, StoreError> {
    let sql = format!(
        "SELECT {SERVICE_COLUMNS} FROM device_service WHERE scope_id = $1 OR pool_id = $1 \
         ORDER BY device_id, from_us"
    );
    tx.all(&sql, vec![scope.stored().into()]).await?.iter().map(service_of).collect()
}

/// In-service intervals whose hours the tick has not all asked for yet.
///
/// # Errors
/// [`StoreError`].
pub async fn unfinished_services(
    _scope: &PlatformScope,
    tx: &ReadTx,
) -> Result<Vec<ServiceInterval>, StoreError> {
    let sql = format!(
        "SELECT {SERVICE_COLUMNS} FROM device_service WHERE to_us IS NULL OR edge_us < to_us \
                       ORDER BY scope_id, device_id, from_us"
    );
    tx.all(&sql, vec![]).await?.iter().map(service_of).collect()
}

/// A device with the in-service intervals that it has on one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScopeDevice {
    /// The device's number.
    pub id: i64,
    /// The node's number.
    pub home: ScopeId,
    /// The node's name.
    pub node: Name,
    /// The device.
    pub device: Device,
    /// Its memory in MiB, where its inventory states it.
    pub memory_mib: Option<u32>,
    /// Its in-service spans on this node as far as the tick has asked for them: sorted and disjoint.
    pub in_service: Vec<Span>,
    /// For each of these the pool to which it belongs.
    pub pools: Vec<Option<ScopeId>>,
    /// What was declared of its node, of itself and of its slices: in order, each once.
    pub states: Vec<DeclaredState>,
}

impl ScopeDevice {
    /// Its in-service spans inside an hour.
    #[must_use]
    pub fn in_service_during(&self, hour: Span) -> Vec<Span> {
        self.in_service.iter().map(|span| span.clip(hour)).filter(|span| !span.is_empty()).collect()
    }

    /// The pool of its device-hour: that of the first in-service span in it, for a device-hour is never divided
    /// among several.
    #[must_use]
    pub fn pool_during(&self, hour: Span) -> Option<ScopeId> {
        let first = self.in_service.iter().position(|span| span.meets(hour));
        first.and_then(|at| self.pools.get(at).copied()).flatten()
    }
}

/// The devices of a scope, with what was declared of them, as far as it meets `within`: of a node those whose home
/// it is, of a pool those that belong to it at any time, each with all of its time on its node. By UUID, then by node.
///
/// # Errors
/// [`StoreError`].
pub async fn scope_devices(
    platform: &PlatformScope,
    tx: &ReadTx,
    scope: ScopeId,
    within: Span,
) -> Result<Vec<ScopeDevice>, StoreError> {
    let sql = "SELECT d.device_id, d.uuid, d.model, d.memory_mib, s.scope_id, h.name, s.from_us, s.to_us, s.edge_us, \
               s.pool_id FROM device_service s JOIN device d ON d.device_id = s.device_id \
               JOIN scope h ON h.scope_id = s.scope_id \
               WHERE (s.device_id, s.scope_id) IN \
               (SELECT p.device_id, p.scope_id FROM device_service p WHERE p.scope_id = $1 OR p.pool_id = $1) \
               AND s.from_us < $2 AND (s.to_us IS NULL OR s.to_us > $3) ORDER BY s.from_us";
    let (start, end) = (within.start().micros(), within.end().micros());
    let mut devices: BTreeMap<(Name, Name), ScopeDevice> = BTreeMap::new();
    for row in tx.all(sql, vec![scope.stored().into(), end.into(), start.into()]).await? {
        let (uuid, home) = (name_of(&row.get::<String>(1)?)?, name_of(&row.get::<String>(5)?)?);
        let span = span_of(row.get(6)?, row.get(7)?);
        let asked =
            Span::clamped(span.start(), span.end().min(Instant::from_micros(row.get(8)?))).clip(within);
        let device = match devices.entry((uuid.clone(), home.clone())) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(entry) => {
                let memory_mib: Option<i64> = row.get(3)?;
                entry.insert(ScopeDevice {
                    id: row.get(0)?,
                    home: ScopeId::from_stored(row.get(4)?),
                    node: home,
                    device: Device { uuid, model: name_of(&row.get::<String>(2)?)? },
                    memory_mib: memory_mib.and_then(|mib| u32::try_from(mib).ok()),
                    in_service: Vec::new(),
                    pools: Vec::new(),
                    states: Vec::new(),
                })
            }
        };
        if !asked.is_empty() {
            device.in_service.push(asked);
            device.pools.push(row.get::<Option<i64>>(9)?.map(ScopeId::from_stored));
        }
    }
    let mut devices: Vec<ScopeDevice> = devices.into_values().collect();
    for (home, of, state) in states::scope_states(platform, tx, scope, within).await? {
        let concerned = |each: &&mut ScopeDevice| each.home == home && of.is_none_or(|of| of == each.id);
        for device in devices.iter_mut().filter(concerned) {
            device.states.push(state.clone());
        }
    }
    for device in &mut devices {
        // Several sources may say the same.
        device.states.sort_unstable();
        device.states.dedup();
    }
    Ok(devices)
}

/// The devices that are, or were, at home on each of these nodes.
///
/// # Errors
/// [`StoreError`].
pub async fn homed_on(
    _scope: &PlatformScope,
    tx: &ReadTx,
    scopes: &BTreeSet<ScopeId>,
) -> Result<BTreeMap<ScopeId, BTreeSet<Name>>, StoreError> {
    let marks: Vec<String> = (1..=scopes.len()).map(|number| format!("${number}")).collect();
    let sql = format!(
        "SELECT DISTINCT s.scope_id, d.uuid FROM device_service s JOIN device d ON d.device_id = s.device_id \
         WHERE s.scope_id IN ({})",
        marks.join(", ")
    );
    let mut homed: BTreeMap<ScopeId, BTreeSet<Name>> = BTreeMap::new();
    for row in tx.all(&sql, scopes.iter().map(|scope| scope.stored().into()).collect()).await? {
        let device = name_of(&row.get::<String>(1)?)?;
        homed.entry(ScopeId::from_stored(row.get(0)?)).or_default().insert(device);
    }
    Ok(homed)
}

/// The in-service intervals as far as the sums have counted them, where they meet `within` and cut to it: the right side
/// of the reconciliation. Devices that have one interval there and the same edges are told once, with their number, so
/// that what is read grows with what differs and not with the fleet.
///
/// # Errors
/// [`StoreError`].
pub async fn counted_services(
    _scope: &PlatformScope,
    tx: &ReadTx,
    within: Span,
) -> Result<Vec<CountedService>, StoreError> {
    // Edges past those of `within` change neither side; cut, they are alike. Most devices are in service from end to end,
    // and a device's intervals do not overlap: only of the others has it to be known whether they have one or several.
    let sql = "WITH part AS (SELECT device_id, scope_id, CASE WHEN from_us < $2 THEN $2 ELSE from_us END AS from_us, \
               CASE WHEN to_us IS NULL OR to_us > $1 THEN $1 ELSE to_us END AS to_us, \
               CASE WHEN counted_to_us > $1 THEN $1 ELSE counted_to_us END AS counted_to_us \
               FROM device_service WHERE from_us < $1 AND (to_us IS NULL OR to_us > $2) \
               AND (from_us > $2 OR to_us < $1)), \
               each AS (SELECT device_id, COUNT(*) AS intervals, MIN(scope_id) AS scope_id, MIN(from_us) AS from_us, \
               MIN(to_us) AS to_us, MIN(counted_to_us) AS counted_to_us FROM part GROUP BY device_id) \
               SELECT $2, $1, CASE WHEN counted_to_us > $1 THEN $1 ELSE counted_to_us END AS counted, MIN(scope_id), \
               MIN(device_id), COUNT(*) FROM device_service \
               WHERE from_us <= $2 AND (to_us IS NULL OR to_us >= $1) GROUP BY counted \
               UNION ALL SELECT from_us, to_us, counted_to_us, MIN(scope_id), MIN(device_id), COUNT(*) FROM each \
               WHERE intervals = 1 GROUP BY from_us, to_us, counted_to_us \
               UNION ALL SELECT from_us, to_us, counted_to_us, scope_id, device_id, 1 FROM part \
               WHERE device_id IN (SELECT device_id FROM each WHERE intervals > 1)";
    let rows = tx.all(sql, vec![within.end().micros().into(), within.start().micros().into()]).await?;
    rows.iter()
        .map(|row| {
            let span = span_of(row.get(0)?, Some(row.get(1)?));
            let counted_to = Instant::from_micros(row.get(2)?);
            let (scope, device) = (ScopeId::from_stored(row.get(3)?), row.get(4)?);
            Ok(CountedService { scope, device, alike: row.get(5)?, span, counted_to })
        })
        .collect()
}

/// Opens an in-service interval.
///
/// # Errors
/// [`StoreError::Conflict`] when the device already has one from the same instant.
pub async fn open_service(
    _scope: &PlatformScope,
    tx: &WriteTx,
    interval: &ServiceInterval,
) -> Result<(), StoreError> {
    let columns =
        "device_id, scope_id, from_us, to_us, node_index, edge_us, covered_to_us, pool_id, counted_to_us";
    let sql = format!("INSERT INTO device_service ({columns}) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $3)");
    let values = vec![
        interval.device.into(),
        interval.scope.stored().into(),
        interval.span.start().micros().into(),
        stored_end(interval.span.end()).into(),
        interval.node_index.into(),
        interval.edge.micros().into(),
        interval.covered_to.micros().into(),
        interval.pool.map(ScopeId::stored).into(),
    ];
    tx.run(&sql, values).await.map(|_| ())
}

/// Moves the end of an in-service interval, or opens it again. Edges past the end are pulled back to it.
///
/// # Errors
/// [`StoreError`].
pub async fn close_service(
    _scope: &PlatformScope,
    tx: &WriteTx,
    device: i64,
    from: Instant,
    to: Instant,
) -> Result<(), StoreError> {
    let sql = "UPDATE device_service SET to_us = $4, \
               edge_us = CASE WHEN edge_us > $3 THEN $3 ELSE edge_us END, \
               counted_to_us = CASE WHEN counted_to_us > $3 THEN $3 ELSE counted_to_us END \
               WHERE device_id = $1 AND from_us = $2";
    let values = vec![device.into(), from.micros().into(), to.micros().into(), stored_end(to).into()];
    tx.run(sql, values).await.map(|_| ())
}

/// Puts a device into a pool while an in-service interval lasts, or takes it out. The caller marks what it changes.
///
/// # Errors
/// [`StoreError`].
pub async fn set_pool(
    _scope: &PlatformScope,
    tx: &WriteTx,
    device: i64,
    from: Instant,
    pool: Option<ScopeId>,
) -> Result<(), StoreError> {
    let sql = "UPDATE device_service SET pool_id = $3 WHERE device_id = $1 AND from_us = $2";
    let values = vec![device.into(), from.micros().into(), pool.map(ScopeId::stored).into()];
    tx.run(sql, values).await.map(|_| ())
}

/// Moves the tick's edge of an interval forward.
///
/// # Errors
/// [`StoreError`].
pub async fn advance_edge(
    _scope: &PlatformScope,
    tx: &WriteTx,
    interval: &ServiceInterval,
    edge: Instant,
) -> Result<(), StoreError> {
    let sql = "UPDATE device_service SET edge_us = $3 WHERE device_id = $1 AND from_us = $2 AND edge_us < $3";
    let values = vec![interval.device.into(), interval.span.start().micros().into(), edge.micros().into()];
    tx.run(sql, values).await.map(|_| ())
}

/// Notes until when some source vouched for holding on devices of a node that have one edge.
///
/// # Errors
/// [`StoreError`].
pub async fn note_coverages(
    _scope: &PlatformScope,
    tx: &WriteTx,
    scope: ScopeId,
    devices: &[&Name],
    to: Instant,
) -> Result<(), StoreError> {
    for chunk in devices.chunks(1_000) {
        let marks: Vec<String> =
            (3..chunk.len().saturating_add(3)).map(|number| format!("${number}")).collect();
        let sql = format!(
            "UPDATE device_service SET covered_to_us = $2 WHERE scope_id = $1 AND covered_to_us < $2 \
             AND (to_us IS NULL OR covered_to_us < to_us) \
             AND device_id IN (SELECT device_id FROM device WHERE uuid IN ({}))",
            marks.join(", ")
        );
        let mut values = vec![scope.stored().into(), to.micros().into()];
        values.extend(chunk.iter().map(|device| device.as_str().into()));
        tx.run(&sql, values).await?;
    }
    Ok(())
}

/// Notes until when some source vouched for holding on a pool: on all of its devices.
///
/// # Errors
/// [`StoreError`].
pub async fn note_pool_coverage(
    _scope: &PlatformScope,
    tx: &WriteTx,
    pool: ScopeId,
    to: Instant,
) -> Result<(), StoreError> {
    let sql = "UPDATE device_service SET covered_to_us = $2 WHERE pool_id = $1 AND covered_to_us < $2 \
               AND from_us < $2 AND (to_us IS NULL OR covered_to_us < to_us)";
    tx.run(sql, vec![pool.stored().into(), to.micros().into()]).await.map(|_| ())
}

/// Notes until when the sums have counted the devices at home on a node.
///
/// # Errors
/// [`StoreError`].
pub async fn note_counted(
    _scope: &PlatformScope,
    tx: &WriteTx,
    scope: ScopeId,
    counted: &BTreeMap<i64, Instant>,
) -> Result<(), StoreError> {
    // Most devices share their edge, so one statement an edge is nearly always one statement.
    let mut by_edge: BTreeMap<Instant, Vec<i64>> = BTreeMap::new();
    for (device, edge) in counted {
        by_edge.entry(*edge).or_default().push(*device);
    }
    for (edge, devices) in by_edge {
        let marks: Vec<String> = (3..devices.len() + 3).map(|number| format!("${number}")).collect();
        let sql = format!(
            "UPDATE device_service SET counted_to_us = $2 WHERE scope_id = $1 AND counted_to_us < $2 \
             AND from_us < $2 AND device_id IN ({})",
            marks.join(", ")
        );
        let mut values = vec![scope.stored().into(), edge.micros().into()];
        values.extend(devices.into_iter().map(Into::into));
        tx.run(&sql, values).await?;
    }
    Ok(())
}

/// A node or pool, with how many devices it has had.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedScope {
    /// What it is.
    pub name: ScopeName,
    /// Devices that are, or were, at home there or belong to it.
    pub devices: i64,
    /// Of these, devices whose in-service interval is open.
    pub in_service: i64,
}

/// Scopes of a kind whose name comes after one, at most so many.
///
/// # Errors
/// [`StoreError`].
pub async fn list_scopes(
    scope: &PlatformScope,
    tx: &ReadTx,
    kind: ScopeKind,
    after: &str,
    limit: i64,
) -> Result<Vec<ListedScope>, StoreError> {
    let page = "kind = $1 AND name > $2 ORDER BY name LIMIT $3";
    counted_scopes(scope, tx, kind, page, vec![kind.word().into(), after.into(), limit.into()]).await
}

/// One scope by name.
///
/// # Errors
/// [`StoreError`].
pub async fn list_scope(
    scope: &PlatformScope,
    tx: &ReadTx,
    name: &ScopeName,
) -> Result<Option<ListedScope>, StoreError> {
    let values = vec![name.kind.word().into(), name.name.as_str().into()];
    Ok(counted_scopes(scope, tx, name.kind, "kind = $1 AND name = $2", values).await?.pop())
}

async fn counted_scopes(
    _scope: &PlatformScope,
    tx: &ReadTx,
    kind: ScopeKind,
    page: &str,
    values: Vec<sea_orm::Value>,
) -> Result<Vec<ListedScope>, StoreError> {
    // The page first: so the count reads the intervals of as many scopes, whatever the fleet has.
    let belongs = match kind {
        ScopeKind::Node => "s.scope_id",
        ScopeKind::Pool => "s.pool_id",
    };
    let sql = format!(
        "SELECT p.name, COUNT(DISTINCT s.device_id), \
         COUNT(DISTINCT CASE WHEN s.to_us IS NULL THEN s.device_id END) FROM \
         (SELECT scope_id, name FROM scope WHERE {page}) p \
         LEFT JOIN device_service s ON {belongs} = p.scope_id GROUP BY p.name ORDER BY p.name"
    );
    let rows = tx.all(&sql, values).await?;
    rows.iter()
        .map(|row| {
            let name = ScopeName { kind, name: name_of(&row.get::<String>(0)?)? };
            Ok(ListedScope { name, devices: row.get(1)?, in_service: row.get(2)? })
        })
        .collect()
}

/// A device, with its memory and its in-service intervals.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedDevice {
    /// The device.
    pub device: Device,
    /// Its memory in MiB, where its inventory states it.
    pub memory_mib: Option<i64>,
    /// Its in-service intervals, by start.
    pub intervals: Vec<ListedInterval>,
}

/// An in-service interval with its natural names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedInterval {
    /// The home node.
    pub node: Name,
    /// The pool to which the device belongs meanwhile.
    pub pool: Option<Name>,
    /// The device's index on the node, where known.
    pub node_index: Option<i64>,
    /// From when to when; an open end reaches [`Instant::MAX`].
    pub span: Span,
    /// Until when the sums have counted it.
    pub counted_to: Instant,
    /// Until when some source vouched for holding.
    pub covered_to: Instant,
}

/// Which devices are listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DevicesWanted<'a> {
    /// The one of this UUID.
    One(&'a Name),
    /// Those whose UUID comes after one, at most so many.
    Page {
        /// After which; empty: from the first.
        after: &'a str,
        /// At most so many.
        limit: i64,
        /// Only those that are, or were, at home there or belong to it.
        of: Option<ScopeId>,
    },
}

/// Devices with their in-service intervals, by UUID.
///
/// # Errors
/// [`StoreError`].
pub async fn list_devices(
    _scope: &PlatformScope,
    tx: &ReadTx,
    wanted: DevicesWanted<'_>,
) -> Result<Vec<ListedDevice>, StoreError> {
    let (condition, values) = match wanted {
        DevicesWanted::One(uuid) => ("d.uuid = $1".to_owned(), vec![uuid.as_str().into()]),
        DevicesWanted::Page { after, limit, of } => {
            let there = "AND d.device_id IN (SELECT device_id FROM device_service WHERE scope_id = $3 OR pool_id = $3)";
            let there = if of.is_some() { there } else { "" };
            let mut values = vec![after.into(), limit.into()];
            values.extend(of.map(|of| of.stored().into()));
            (format!("d.uuid > $1 {there} ORDER BY d.uuid LIMIT $2"), values)
        }
    };
    let sql = format!("SELECT d.device_id, d.uuid, d.model, d.memory_mib FROM device d WHERE {condition}");
    let mut devices = Vec::new();
    for row in tx.all(&sql, values).await? {
        let id: i64 = row.get(0)?;
        let device =
            Device { uuid: name_of(&row.get::<String>(1)?)?, model: name_of(&row.get::<String>(2)?)? };
        devices.push((id, ListedDevice { device, memory_mib: row.get(3)?, intervals: Vec::new() }));
    }
    if devices.is_empty() {
        return Ok(vec![]);
    }
    let marks: Vec<String> = (1..=devices.len()).map(|number| format!("${number}")).collect();
    let sql = format!(
        "SELECT s.device_id, n.name, p.name, s.node_index, s.from_us, s.to_us, s.counted_to_us, s.covered_to_us \
         FROM device_service s JOIN scope n ON n.scope_id = s.scope_id LEFT JOIN scope p ON p.scope_id = s.pool_id \
         WHERE s.device_id IN ({}) ORDER BY s.device_id, s.from_us",
        marks.join(", ")
    );
    let numbers = devices.iter().map(|(id, _)| (*id).into()).collect();
    let mut intervals: BTreeMap<i64, Vec<ListedInterval>> = BTreeMap::new();
    for row in tx.all(&sql, numbers).await? {
        let pool: Option<String> = row.get(2)?;
        intervals.entry(row.get(0)?).or_default().push(ListedInterval {
            node: name_of(&row.get::<String>(1)?)?,
            pool: pool.as_deref().map(name_of).transpose()?,
            node_index: row.get(3)?,
            span: span_of(row.get(4)?, row.get(5)?),
            counted_to: Instant::from_micros(row.get(6)?),
            covered_to: Instant::from_micros(row.get(7)?),
        });
    }
    Ok(devices
        .into_iter()
        .map(|(id, mut device)| {
            device.intervals = intervals.remove(&id).unwrap_or_default();
            device
        })
        .collect())
}
