//! Declared states of nodes, devices and slices, as stored.

use std::collections::BTreeMap;

use super::fleet::{name_of, span_of, stored_end};
use super::unit::Row;
use super::{PlatformScope, ReadTx, StoreError, WriteTx};
use crate::domain::device::{DeclaredKind, DeclaredState};
use crate::domain::ids::{Name, ScopeId};
use crate::domain::period::Span;
use crate::domain::units::Instant;

/// As stored: every device of the node.
const ALL_DEVICES: i64 = 0;

/// What identifies a declared state within its source and scope.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct StateKey {
    /// The device's number; none: every device of the node while in service there.
    pub device: Option<i64>,
    /// The slice's id as its source names it; none: the whole device.
    pub slice: Option<Name>,
    /// What it is declared to be.
    pub kind: DeclaredKind,
    /// Since when.
    pub from: Instant,
}

/// Who declares, and when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Declarer {
    /// The source, by which states are told apart.
    pub source: Name,
    /// Who acts, for the record.
    pub actor: String,
    /// The present instant.
    pub now: Instant,
}

fn device_of(stored: i64) -> Option<i64> {
    (stored != ALL_DEVICES).then_some(stored)
}

fn slice_of(stored: &str) -> Result<Option<Name>, StoreError> {
    if stored.is_empty() { Ok(None) } else { name_of(stored).map(Some) }
}

/// A row that begins with device, slice, kind, start and end.
fn state_of(row: &Row) -> Result<(Option<i64>, DeclaredState), StoreError> {
    let word: String = row.get(2)?;
    let kind = DeclaredKind::parse(&word).map_err(|error| StoreError::corrupt("a declared state", error))?;
    let slice = slice_of(&row.get::<String>(1)?)?;
    let state = DeclaredState { kind, slice, span: span_of(row.get(3)?, row.get(4)?) };
    Ok((device_of(row.get(0)?), state))
}

/// The states of a scope that meet `within`, of all sources, each with its node and device; none: every device of
/// the node. What concerns a pool is declared of its devices' nodes.
///
/// # Errors
/// [`StoreError`].
pub(super) async fn scope_states(
    _scope: &PlatformScope,
    tx: &ReadTx,
    of: ScopeId,
    within: Span,
) -> Result<Vec<(ScopeId, Option<i64>, DeclaredState)>, StoreError> {
    let sql = "SELECT device_id, slice, kind, from_us, to_us, scope_id FROM state_declared \
               WHERE scope_id IN (SELECT scope_id FROM device_service WHERE scope_id = $1 OR pool_id = $1) \
               AND from_us < $2 AND (to_us IS NULL OR to_us > $3)";
    let values = vec![of.stored().into(), within.end().micros().into(), within.start().micros().into()];
    let rows = tx.all(sql, values).await?;
    rows.iter()
        .map(|row| {
            let (device, state) = state_of(row)?;
            Ok((ScopeId::from_stored(row.get(5)?), device, state))
        })
        .collect()
}

/// What one source has declared of a scope, with the ends; an open end is [`Instant::MAX`].
///
/// # Errors
/// [`StoreError`].
pub async fn declared_by(
    _scope: &PlatformScope,
    tx: &ReadTx,
    of: ScopeId,
    source: &Name,
) -> Result<BTreeMap<StateKey, Instant>, StoreError> {
    let sql = "SELECT device_id, slice, kind, from_us, to_us FROM state_declared \
               WHERE scope_id = $1 AND source = $2";
    let rows = tx.all(sql, vec![of.stored().into(), source.as_str().into()]).await?;
    rows.iter()
        .map(|row| {
            let (device, DeclaredState { kind, slice, span }) = state_of(row)?;
            Ok((StateKey { device, slice, kind, from: span.start() }, span.end()))
        })
        .collect()
}

/// Stores states with their ends, and moves the ends of those that the source has declared already. The caller
/// marks what they change.
///
/// # Errors
/// [`StoreError::Conflict`] for a state that does not end after it begins, or lacks the device that it needs.
pub async fn declare(
    _scope: &PlatformScope,
    tx: &WriteTx,
    of: ScopeId,
    declarer: &Declarer,
    states: &[(StateKey, Instant)],
) -> Result<(), StoreError> {
    let rows = states
        .iter()
        .map(|(key, end)| {
            vec![
                of.stored().into(),
                key.device.unwrap_or(ALL_DEVICES).into(),
                key.slice.as_ref().map_or("", Name::as_str).into(),
                key.kind.word().into(),
                key.from.micros().into(),
                declarer.source.as_str().into(),
                stored_end(*end).into(),
                declarer.now.micros().into(),
                declarer.actor.as_str().into(),
            ]
        })
        .collect();
    let columns = [
        "scope_id",
        "device_id",
        "slice",
        "kind",
        "from_us",
        "source",
        "to_us",
        "declared_us",
        "declared_by",
    ];
    let again = "ON CONFLICT (scope_id, device_id, slice, kind, from_us, source) DO UPDATE SET \
                 to_us = excluded.to_us, declared_us = excluded.declared_us, declared_by = excluded.declared_by";
    tx.insert("state_declared", &columns, rows, again).await.map(|_| ())
}

/// Forgets a state that the source has declared. The caller marks what it changes.
///
/// # Errors
/// [`StoreError`].
pub async fn take_back(
    _scope: &PlatformScope,
    tx: &WriteTx,
    of: ScopeId,
    source: &Name,
    key: &StateKey,
) -> Result<(), StoreError> {
    let sql = "DELETE FROM state_declared WHERE scope_id = $1 AND device_id = $2 AND slice = $3 AND kind = $4 \
               AND from_us = $5 AND source = $6";
    let values = vec![
        of.stored().into(),
        key.device.unwrap_or(ALL_DEVICES).into(),
        key.slice.as_ref().map_or("", Name::as_str).into(),
        key.kind.word().into(),
        key.from.micros().into(),
        source.as_str().into(),
    ];
    tx.run(sql, values).await.map(|_| ())
}

/// A declared state as stored, with its natural names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedState {
    /// The node.
    pub node: Name,
    /// The device; none: every device of the node.
    pub device: Option<Name>,
    /// What, where and when.
    pub state: DeclaredState,
    /// Who declared it.
    pub source: Name,
    /// When.
    pub declared: Instant,
    /// By whose hand; empty where it was not kept.
    pub declared_by: String,
}

/// Where in the list of states one stands: start, node, device, slice, kind, source. The natural order of the list.
pub type StatePlace = (Instant, String, String, String, String, String);

/// Declared states after one, by start, at most so many; of one node where it is named.
///
/// # Errors
/// [`StoreError`].
pub async fn list(
    _scope: &PlatformScope,
    tx: &ReadTx,
    node: Option<&Name>,
    after: &StatePlace,
    limit: i64,
) -> Result<Vec<ListedState>, StoreError> {
    let only = if node.is_some() { " AND n.name = $8" } else { "" };
    let sql = format!(
        "SELECT s.device_id, s.slice, s.kind, s.from_us, s.to_us, n.name, COALESCE(d.uuid, ''), s.source, \
         s.declared_us, s.declared_by FROM state_declared s JOIN scope n ON n.scope_id = s.scope_id \
         LEFT JOIN device d ON d.device_id = s.device_id \
         WHERE (s.from_us, n.name, COALESCE(d.uuid, ''), s.slice, s.kind, s.source) > ($1, $2, $3, $4, $5, $6){only} \
         ORDER BY s.from_us, n.name, COALESCE(d.uuid, ''), s.slice, s.kind, s.source LIMIT $7"
    );
    let (from, rest) = (after.0.micros(), [&after.1, &after.2, &after.3, &after.4, &after.5]);
    let mut values = vec![from.into()];
    values.extend(rest.into_iter().map(|word| word.as_str().into()));
    values.push(limit.into());
    values.extend(node.map(|node| node.as_str().into()));
    let rows = tx.all(&sql, values).await?;
    rows.iter()
        .map(|row| {
            let uuid: String = row.get(6)?;
            Ok(ListedState {
                node: name_of(&row.get::<String>(5)?)?,
                device: if uuid.is_empty() { None } else { Some(name_of(&uuid)?) },
                state: state_of(row)?.1,
                source: name_of(&row.get::<String>(7)?)?,
                declared: Instant::from_micros(row.get(8)?),
                declared_by: row.get(9)?,
            })
        })
        .collect()
}
