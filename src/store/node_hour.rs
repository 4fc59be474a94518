//! The level `node_hour`: one scope and billing hour as one compressed body.
//!
//! The body is JSON under zstd with natural keys only, so that equal contents have equal bytes on every
//! database and after every rebuild. A new layout is a new version number beside the old.

use std::io::Read;

use serde::{Deserialize, Serialize};

use super::backend::{Partitioned, make_room};
use super::{PlatformScope, ReadTx, StoreError, WriteTx};
use crate::domain::allocation::{DeviceHour, Part, PartState};
use crate::domain::cost::NodeHour;
use crate::domain::device::SharingMode;
use crate::domain::ids::{Name, ScopeId};
use crate::domain::mapping::Owner;
use crate::domain::period::Span;
use crate::domain::segment::{Conflict, DeviceSegments, Holder, HourSegments, Segment};
use crate::domain::units::{Instant, Quantity};
use crate::domain::usage::{Evidence, EvidenceField, Slice, SliceSize, Source, SourceRank};

/// Largest unpacked body. Acceptance bounds how many holders a device has at once, so none comes near it.
const BYTES_MAX: usize = 64 << 20;

/// The revision of an open month.
pub const OPEN_REVISION: i64 = 0;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct BodyV1 {
    v: u8,
    hour: (i64, i64),
    slices: Vec<(String, String, Option<u32>, Option<String>)>,
    evidence: Vec<Vec<(String, String)>>,
    sources: Vec<(String, String)>,
    segments: Vec<(String, Vec<SegmentV1>, Vec<ConflictV1>)>,
    devices: Vec<DeviceV1>,
    covered_ns: i64,
}

/// from, to (µs into the hour), source, covered, holders.
type SegmentV1 = (i64, i64, usize, bool, Vec<(usize, usize)>);

/// from, to (µs into the hour), believed, set aside.
type ConflictV1 = (i64, i64, usize, usize);

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct DeviceV1 {
    device: String,
    model: String,
    counted_to: i64,
    in_service: i64,
    parts: Vec<PartV1>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    unknown_profiles: Vec<(String, i64, i64)>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PartV1 {
    state: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    slice: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    evidence: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tenant: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    project: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mode: Option<String>,
    sku: String,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    estimated: bool,
    quantity: i64,
}

fn corrupt(reason: impl std::fmt::Display) -> StoreError {
    StoreError::corrupt("a node-hour's body", reason)
}

/// Writes a node-hour as its body. Equal node-hours have equal bytes.
///
/// # Errors
/// [`StoreError::Corrupt`] when the compressor fails.
pub fn encode(hour: &NodeHour) -> Result<Vec<u8>, StoreError> {
    let segments = &hour.segments;
    let start = segments.hour.start();
    let into = |span: Span| (span.start().micros_since(start), span.end().micros_since(start));
    let text = |name: &Name| name.as_str().to_owned();
    let body = BodyV1 {
        v: 1,
        hour: (start.micros(), segments.hour.end().micros()),
        slices: segments
            .slices
            .iter()
            .map(|slice| {
                let (ppm, profile) = match &slice.size {
                    SliceSize::Whole => (None, None),
                    SliceSize::Declared(ppm) => (Some(*ppm), None),
                    SliceSize::Profile(profile) => (None, Some(text(profile))),
                };
                (text(&slice.device), slice.mode.word().to_owned(), ppm, profile)
            })
            .collect(),
        evidence: segments
            .evidence
            .iter()
            .map(|seen| seen.iter().map(|(field, value)| (field.word().to_owned(), text(value))).collect())
            .collect(),
        sources: segments
            .sources
            .iter()
            .map(|source| (source.rank.word().to_owned(), text(&source.sender)))
            .collect(),
        segments: segments
            .devices
            .iter()
            .map(|device| {
                let spans = device.segments.iter().map(|segment| {
                    let (from, to) = into(segment.span);
                    let holders =
                        segment.holders.iter().map(|holder| (holder.slice, holder.evidence)).collect();
                    (from, to, segment.source, segment.covered, holders)
                });
                let conflicts = device.conflicts.iter().map(|conflict| {
                    let (from, to) = into(conflict.span);
                    (from, to, conflict.believed, conflict.set_aside)
                });
                (text(&device.device), spans.collect(), conflicts.collect())
            })
            .collect(),
        devices: hour
            .devices
            .iter()
            .map(|device| DeviceV1 {
                device: text(&device.device),
                model: text(&device.model),
                counted_to: device.counted_to.micros(),
                in_service: device.in_service.micro(),
                parts: device.parts.iter().map(part_to_v1).collect(),
                unknown_profiles: device
                    .unknown_profiles
                    .iter()
                    .map(|(profile, span)| {
                        let (from, to) = into(*span);
                        (text(profile), from, to)
                    })
                    .collect(),
            })
            .collect(),
        covered_ns: segments.covered_nanos,
    };
    let json = serde_json::to_vec(&body).map_err(corrupt)?;
    if json.len() > BYTES_MAX {
        return Err(corrupt(format!("{} bytes are more than {BYTES_MAX}", json.len())));
    }
    zstd::bulk::compress(&json, 1).map_err(corrupt)
}

fn part_to_v1(part: &Part) -> PartV1 {
    PartV1 {
        state: part.state.word().to_owned(),
        slice: part.slice,
        evidence: part.evidence,
        tenant: part.owner.as_ref().and_then(|owner| owner.tenant.as_ref()).map(ToString::to_string),
        project: part.owner.as_ref().map(|owner| owner.project.to_string()),
        mode: part.mode.map(|mode| mode.word().to_owned()),
        sku: part.sku.to_string(),
        estimated: part.estimated,
        quantity: part.quantity.micro(),
    }
}

/// Reads a body back.
///
/// # Errors
/// [`StoreError::Corrupt`] when it is not one.
pub fn decode(body: &[u8]) -> Result<NodeHour, StoreError> {
    let mut json = Vec::with_capacity(body.len().saturating_mul(8).min(BYTES_MAX));
    let decoder = zstd::stream::read::Decoder::new(body).map_err(corrupt)?;
    let limit = u64::try_from(BYTES_MAX).unwrap_or(u64::MAX).saturating_add(1);
    decoder.take(limit).read_to_end(&mut json).map_err(corrupt)?;
    if json.len() > BYTES_MAX {
        return Err(corrupt(format!("it unpacks to more than {BYTES_MAX} bytes")));
    }
    let body: BodyV1 = serde_json::from_slice(&json).map_err(corrupt)?;
    if body.v != 1 {
        return Err(corrupt(format!("version {}", body.v)));
    }
    let start = Instant::from_micros(body.hour.0);
    let span = |from: i64, to: i64| Span::clamped(start.plus_micros(from), start.plus_micros(to));
    let name = |text: &str| Name::parse(text).map_err(corrupt);
    let mut slices = Vec::with_capacity(body.slices.len());
    for (device, mode, ppm, profile) in &body.slices {
        let size = match (ppm, profile) {
            (Some(ppm), _) => SliceSize::Declared(*ppm),
            (None, Some(profile)) => SliceSize::Profile(name(profile)?),
            (None, None) => SliceSize::Whole,
        };
        slices.push(Slice { device: name(device)?, mode: SharingMode::parse(mode).map_err(corrupt)?, size });
    }
    let mut evidence = Vec::with_capacity(body.evidence.len());
    for fields in &body.evidence {
        let fields = fields
            .iter()
            .map(|(field, value)| Ok((EvidenceField::parse(field).map_err(corrupt)?, name(value)?)))
            .collect::<Result<Evidence, StoreError>>()?;
        evidence.push(fields);
    }
    let mut sources = Vec::with_capacity(body.sources.len());
    for (rank, sender) in &body.sources {
        sources.push(Source { rank: SourceRank::parse(rank).map_err(corrupt)?, sender: name(sender)? });
    }
    let mut segments = Vec::with_capacity(body.segments.len());
    for (device, spans, conflicts) in body.segments {
        segments.push(DeviceSegments {
            device: name(&device)?,
            segments: spans
                .into_iter()
                .map(|(from, to, source, covered, holders)| Segment {
                    span: span(from, to),
                    source,
                    covered,
                    holders: holders
                        .into_iter()
                        .map(|(slice, evidence)| Holder { slice, evidence })
                        .collect(),
                })
                .collect(),
            conflicts: conflicts
                .into_iter()
                .map(|(from, to, believed, set_aside)| Conflict { span: span(from, to), believed, set_aside })
                .collect(),
        });
    }
    let mut devices = Vec::with_capacity(body.devices.len());
    for device in body.devices {
        devices.push(DeviceHour {
            device: name(&device.device)?,
            model: name(&device.model)?,
            counted_to: Instant::from_micros(device.counted_to),
            in_service: Quantity::from_micro(device.in_service),
            parts: device.parts.iter().map(part_from_v1).collect::<Result<_, _>>()?,
            unknown_profiles: device
                .unknown_profiles
                .iter()
                .map(|(profile, from, to)| Ok((name(profile)?, span(*from, *to))))
                .collect::<Result<_, StoreError>>()?,
        });
    }
    let hour = Span::clamped(start, Instant::from_micros(body.hour.1));
    let segments =
        HourSegments { hour, slices, evidence, sources, devices: segments, covered_nanos: body.covered_ns };
    Ok(NodeHour { segments, devices })
}

fn part_from_v1(part: &PartV1) -> Result<Part, StoreError> {
    let name = |text: &String| Name::parse(text).map_err(corrupt);
    let tenant = part.tenant.as_ref().map(name).transpose()?;
    Ok(Part {
        state: PartState::parse(&part.state).map_err(corrupt)?,
        slice: part.slice,
        evidence: part.evidence,
        owner: part
            .project
            .as_ref()
            .map(|project| Ok::<_, StoreError>(Owner { tenant, project: name(project)? }))
            .transpose()?,
        mode: part.mode.as_deref().map(SharingMode::parse).transpose().map_err(corrupt)?,
        sku: name(&part.sku)?,
        estimated: part.estimated,
        quantity: Quantity::from_micro(part.quantity),
    })
}

/// A node-hour as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredHour {
    /// When it begins.
    pub hour: Instant,
    /// Its body.
    pub body: Vec<u8>,
    /// Hash of the batches folded in.
    pub batches_hash: Vec<u8>,
    /// How much of it some source vouched for, in device-nanoseconds.
    pub covered_nanos: i64,
}

/// The open month's node-hours of a scope that begin inside `within`, in order.
///
/// # Errors
/// [`StoreError`].
pub async fn hours(
    _scope: &PlatformScope,
    tx: &ReadTx,
    scope: ScopeId,
    within: Span,
) -> Result<Vec<StoredHour>, StoreError> {
    let sql = "SELECT hour_us, body, batches_hash, covered_ns FROM node_hour \
               WHERE scope_id = $1 AND hour_us >= $2 AND hour_us < $3 AND revision = 0 ORDER BY hour_us";
    let values = vec![scope.stored().into(), within.start().micros().into(), within.end().micros().into()];
    let rows = tx.all(sql, values).await?;
    rows.iter()
        .map(|row| {
            Ok(StoredHour {
                hour: Instant::from_micros(row.get(0)?),
                body: row.get(1)?,
                batches_hash: row.get(2)?,
                covered_nanos: row.get(3)?,
            })
        })
        .collect()
}

/// When the stored node-hours of a scope begin.
///
/// # Errors
/// [`StoreError`].
pub async fn starts(_scope: &PlatformScope, tx: &ReadTx, scope: ScopeId) -> Result<Vec<Instant>, StoreError> {
    let sql = "SELECT hour_us FROM node_hour WHERE scope_id = $1 AND revision = 0";
    let rows = tx.all(sql, vec![scope.stored().into()]).await?;
    rows.iter().map(|row| row.get(0).map(Instant::from_micros)).collect()
}

/// Puts node-hours of an open month in place of those that are there.
///
/// # Errors
/// [`StoreError`].
pub async fn replace(
    _scope: &PlatformScope,
    tx: &WriteTx,
    scope: ScopeId,
    hours: &[StoredHour],
) -> Result<(), StoreError> {
    if hours.is_empty() {
        return Ok(());
    }
    make_room(tx.connection(), Partitioned::NodeHour, hours.iter().map(|hour| hour.hour.micros())).await?;
    let rows = hours
        .iter()
        .map(|hour| {
            let (scope, start) = (scope.stored().into(), hour.hour.micros().into());
            let (body, batches) = (hour.body.clone().into(), hour.batches_hash.clone().into());
            vec![scope, start, OPEN_REVISION.into(), body, batches, hour.covered_nanos.into()]
        })
        .collect();
    let columns = ["scope_id", "hour_us", "revision", "body", "batches_hash", "covered_ns"];
    let again = "ON CONFLICT (scope_id, hour_us, revision) DO UPDATE SET body = excluded.body, \
                 batches_hash = excluded.batches_hash, covered_ns = excluded.covered_ns";
    tx.insert("node_hour", &columns, rows, again).await.map(|_| ())
}

/// Removes node-hours of an open month: no device was in service in them after all.
///
/// # Errors
/// [`StoreError`].
pub async fn remove(
    _scope: &PlatformScope,
    tx: &WriteTx,
    scope: ScopeId,
    hours: &[Instant],
) -> Result<(), StoreError> {
    for hour in hours {
        let sql = "DELETE FROM node_hour WHERE scope_id = $1 AND hour_us = $2 AND revision = 0";
        tx.run(sql, vec![scope.stored().into(), hour.micros().into()]).await?;
    }
    Ok(())
}
