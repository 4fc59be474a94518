//! Scopes, devices, their in-service intervals and declared states.

use std::collections::BTreeMap;

use super::backend::lock_clause;
use super::{PlatformScope, ReadTx, StoreError, WriteTx};
use crate::domain::device::{DeclaredKind, DeclaredState, Device};
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

const SERVICE_COLUMNS: &str = "device_id, scope_id, from_us, to_us, node_index, edge_us, covered_to_us";

fn service_of(row: &super::unit::Row) -> Result<ServiceInterval, StoreError> {
    Ok(ServiceInterval {
        device: row.get(0)?,
        scope: ScopeId::from_stored(row.get(1)?),
        span: span_of(row.get(2)?, row.get(3)?),
        node_index: row.get(4)?,
        edge: Instant::from_micros(row.get(5)?),
        covered_to: Instant::from_micros(row.get(6)?),
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

/// The in-service intervals of one scope.
///
/// # Errors
/// [`StoreError`].
pub async fn scope_services(
    _scope: &PlatformScope,
    tx: &ReadTx,
    scope: ScopeId,
) -> Result<Vec<ServiceInterval>, StoreError> {
    let sql = format!(
        "SELECT {SERVICE_COLUMNS} FROM device_service WHERE scope_id = $1 ORDER BY device_id, from_us"
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

/// A device with the in-service intervals that it has on one scope.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScopeDevice {
    /// The device's number.
    pub id: i64,
    /// The device.
    pub device: Device,
    /// Its in-service spans on this scope as far as the tick has asked for them: sorted and disjoint.
    pub in_service: Vec<Span>,
    /// Its declared states.
    pub states: Vec<DeclaredState>,
}

/// The devices whose home is a scope, with what was declared of them, as far as it meets `within`.
///
/// # Errors
/// [`StoreError`].
pub async fn scope_devices(
    _scope: &PlatformScope,
    tx: &ReadTx,
    scope: ScopeId,
    within: Span,
) -> Result<Vec<ScopeDevice>, StoreError> {
    let sql = "SELECT d.device_id, d.uuid, d.model, s.from_us, s.to_us, s.edge_us FROM device_service s \
               JOIN device d ON d.device_id = s.device_id \
               WHERE s.scope_id = $1 AND s.from_us < $2 AND (s.to_us IS NULL OR s.to_us > $3) \
               ORDER BY d.uuid, s.from_us";
    let (start, end) = (within.start().micros(), within.end().micros());
    let mut devices: Vec<ScopeDevice> = Vec::new();
    for row in tx.all(sql, vec![scope.stored().into(), end.into(), start.into()]).await? {
        let id: i64 = row.get(0)?;
        let span = span_of(row.get(3)?, row.get(4)?);
        let asked =
            Span::clamped(span.start(), span.end().min(Instant::from_micros(row.get(5)?))).clip(within);
        if devices.last().is_none_or(|last| last.id != id) {
            let device =
                Device { uuid: name_of(&row.get::<String>(1)?)?, model: name_of(&row.get::<String>(2)?)? };
            devices.push(ScopeDevice { id, device, in_service: Vec::new(), states: Vec::new() });
        }
        if let Some(last) = devices.last_mut().filter(|_| !asked.is_empty()) {
            last.in_service.push(asked);
        }
    }
    let sql = "SELECT t.device_id, t.kind, t.from_us, t.to_us FROM declared_state t \
               WHERE t.from_us < $2 AND (t.to_us IS NULL OR t.to_us > $3) \
               AND t.device_id IN (SELECT device_id FROM device_service WHERE scope_id = $1) \
               ORDER BY t.device_id, t.kind, t.from_us";
    for row in tx.all(sql, vec![scope.stored().into(), end.into(), start.into()]).await? {
        let id: i64 = row.get(0)?;
        let word: String = row.get(1)?;
        let kind =
            DeclaredKind::parse(&word).map_err(|error| StoreError::corrupt("a declared state", error))?;
        let state = DeclaredState { kind, span: span_of(row.get(2)?, row.get(3)?) };
        if let Some(device) = devices.iter_mut().find(|device| device.id == id) {
            device.states.push(state);
        }
    }
    Ok(devices)
}

/// UUIDs of the devices that have, or had, their home on a scope.
///
/// # Errors
/// [`StoreError`].
pub async fn homed_devices(
    _scope: &PlatformScope,
    tx: &ReadTx,
    scope: ScopeId,
) -> Result<std::collections::BTreeSet<Name>, StoreError> {
    let sql = "SELECT DISTINCT d.uuid FROM device_service s JOIN device d ON d.device_id = s.device_id \
               WHERE s.scope_id = $1";
    let rows = tx.all(sql, vec![scope.stored().into()]).await?;
    rows.iter().map(|row| name_of(&row.get::<String>(0)?)).collect()
}

/// The in-service intervals as far as the sums have counted them, where they meet `within`: the right side of
/// the reconciliation.
///
/// # Errors
/// [`StoreError`].
pub async fn counted_services(
    _scope: &PlatformScope,
    tx: &ReadTx,
    within: Span,
) -> Result<Vec<CountedService>, StoreError> {
    let sql = "SELECT from_us, to_us, counted_to_us, scope_id, device_id FROM device_service \
               WHERE from_us < $1 AND (to_us IS NULL OR to_us > $2)";
    let rows = tx.all(sql, vec![within.end().micros().into(), within.start().micros().into()]).await?;
    rows.iter()
        .map(|row| {
            let counted_to = Instant::from_micros(row.get(2)?);
            let (scope, device) = (ScopeId::from_stored(row.get(3)?), row.get(4)?);
            Ok(CountedService { scope, device, span: span_of(row.get(0)?, row.get(1)?), counted_to })
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
    let columns = "device_id, scope_id, from_us, to_us, node_index, edge_us, covered_to_us, counted_to_us";
    let sql = format!("INSERT INTO device_service ({columns}) VALUES ($1, $2, $3, $4, $5, $6, $7, $3)");
    let values = vec![
        interval.device.into(),
        interval.scope.stored().into(),
        interval.span.start().micros().into(),
        stored_end(interval.span.end()).into(),
        interval.node_index.into(),
        interval.edge.micros().into(),
        interval.covered_to.micros().into(),
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

/// Notes until when some source vouched for holding on a device of this scope.
///
/// # Errors
/// [`StoreError`].
pub async fn note_coverage(
    _scope: &PlatformScope,
    tx: &WriteTx,
    scope: ScopeId,
    device: &Name,
    to: Instant,
) -> Result<(), StoreError> {
    let sql = "UPDATE device_service SET covered_to_us = $3 WHERE scope_id = $1 AND covered_to_us < $3 \
               AND (to_us IS NULL OR covered_to_us < to_us) \
               AND device_id = (SELECT device_id FROM device WHERE uuid = $2)";
    tx.run(sql, vec![scope.stored().into(), device.as_str().into(), to.micros().into()]).await.map(|_| ())
}

/// Notes until when the sums have counted the devices of a scope.
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
