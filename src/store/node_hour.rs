//! The level `node_hour`: one scope and billing hour as one compressed body.
//!
//! The body is JSON under zstd with natural keys only, so that equal contents have equal bytes on every
//! database and after every rebuild. A new layout is a new version number beside the old.

use std::collections::BTreeSet;
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
use crate::domain::segment::{Conflict, DeviceSegments, Holder, HourSegments, Measure, Segment};
use crate::domain::tree::DoubtKind;
use crate::domain::units::{Instant, Quantity};
use crate::domain::usage::{Evidence, EvidenceField, Slice, SliceSize, Source, SourceRank, VgpuScheduler};

/// Largest unpacked body. The fold bounds what a device may have in an hour; what is still larger is a node of many
/// such devices, or of holders with long names, and its hour is unknown.
const BYTES_MAX: usize = 64 << 20;

/// The revision of an open month.
pub const OPEN_REVISION: i64 = 0;

/// Which layout a body has.
#[derive(Deserialize)]
struct Version {
    v: u8,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct BodyV2 {
    v: u8,
    hour: (i64, i64),
    slices: Vec<SliceV2>,
    evidence: Vec<Vec<(String, String)>>,
    sources: Vec<(String, String)>,
    segments: Vec<DeviceSegmentsV2>,
    devices: Vec<DeviceV2>,
    covered_ns: i64,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SliceV2 {
    device: String,
    mode: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ppm: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    profile: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    one_of: Option<u32>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    even: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    devices: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    percent: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    memory_mib: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    parent: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    start: Option<u16>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    scheduler: Option<String>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    powered_off: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct DeviceSegmentsV2 {
    device: String,
    segments: Vec<SegmentV2>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    conflicts: Vec<ConflictV1>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    idle_mw: Option<i64>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SegmentV2 {
    /// µs into the hour.
    from: i64,
    to: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    source: Option<usize>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    covered: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    holders: Vec<(usize, usize)>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    layout: Vec<usize>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    measures: Vec<MeasureV2>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    energy_mj: Option<i64>,
}

/// slice, evidence, active nanoseconds, byte-seconds held.
type MeasureV2 = (usize, Option<usize>, Option<i64>, Option<i64>);

/// from, to (µs into the hour), believed, set aside.
type ConflictV1 = (i64, i64, usize, usize);

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct DeviceV2 {
    device: String,
    model: String,
    counted_to: i64,
    in_service: i64,
    parts: Vec<PartV2>,
    /// kind, about what, from, to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    doubts: Vec<(String, String, i64, i64)>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PartV2 {
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
    #[serde(default, skip_serializing_if = "is_zero")]
    metered: i64,
    #[serde(default, skip_serializing_if = "is_zero")]
    energy_mj: i64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the serializer passes a reference")]
const fn is_zero(value: &i64) -> bool {
    *value == 0
}

/// The layout before slices could nest. Read, and never written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BodyV1 {
    #[serde(rename = "v")]
    _v: u8,
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

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DeviceV1 {
    device: String,
    model: String,
    counted_to: i64,
    in_service: i64,
    parts: Vec<PartV2>,
    #[serde(default)]
    unknown_profiles: Vec<(String, i64, i64)>,
}

impl From<BodyV1> for BodyV2 {
    fn from(old: BodyV1) -> Self {
        let slice = |(device, mode, ppm, profile)| SliceV2 {
            device,
            mode,
            ppm,
            profile,
            one_of: None,
            even: false,
            devices: None,
            percent: None,
            memory_mib: None,
            id: None,
            parent: None,
            start: None,
            scheduler: None,
            powered_off: false,
        };
        let segment = |(from, to, source, covered, holders)| SegmentV2 {
            from,
            to,
            source: Some(source),
            covered,
            holders,
            layout: Vec::new(),
            measures: Vec::new(),
            energy_mj: None,
        };
        let device = |old: DeviceV1| DeviceV2 {
            device: old.device,
            model: old.model,
            counted_to: old.counted_to,
            in_service: old.in_service,
            parts: old.parts,
            doubts: old
                .unknown_profiles
                .into_iter()
                .map(|(profile, from, to)| (DoubtKind::UnknownProfile.word().to_owned(), profile, from, to))
                .collect(),
        };
        Self {
            v: 2,
            hour: old.hour,
            slices: old.slices.into_iter().map(slice).collect(),
            evidence: old.evidence,
            sources: old.sources,
            segments: old
                .segments
                .into_iter()
                .map(|(device, segments, conflicts)| DeviceSegmentsV2 {
                    device,
                    segments: segments.into_iter().map(segment).collect(),
                    conflicts,
                    idle_mw: None,
                })
                .collect(),
            devices: old.devices.into_iter().map(device).collect(),
            covered_ns: old.covered_ns,
        }
    }
}

fn corrupt(reason: impl std::fmt::Display) -> StoreError {
    StoreError::corrupt("a node-hour's body", reason)
}

fn text(name: &Name) -> String {
    name.as_str().to_owned()
}

/// Writes a node-hour as its body. Equal node-hours have equal bytes.
///
/// # Errors
/// [`StoreError::TooLarge`]; [`StoreError::Corrupt`] when the compressor fails.
pub fn encode(hour: &NodeHour) -> Result<Vec<u8>, StoreError> {
    let segments = &hour.segments;
    let start = segments.hour.start();
    let into = |span: Span| (span.start().micros_since(start), span.end().micros_since(start));
    let body = BodyV2 {
        v: 2,
        hour: (start.micros(), segments.hour.end().micros()),
        slices: segments.slices.iter().map(slice_to_v2).collect(),
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
            .map(|device| DeviceSegmentsV2 {
                device: text(&device.device),
                segments: device
                    .segments
                    .iter()
                    .map(|segment| {
                        let (from, to) = into(segment.span);
                        SegmentV2 {
                            from,
                            to,
                            source: segment.source,
                            covered: segment.covered,
                            holders: segment.holders.iter().map(|each| (each.slice, each.evidence)).collect(),
                            layout: segment.layout.clone(),
                            measures: segment
                                .measures
                                .iter()
                                .map(|m| (m.slice, m.evidence, m.active_nanos, m.memory_byte_seconds))
                                .collect(),
                            energy_mj: segment.energy,
                        }
                    })
                    .collect(),
                conflicts: device
                    .conflicts
                    .iter()
                    .map(|conflict| {
                        let (from, to) = into(conflict.span);
                        (from, to, conflict.believed, conflict.set_aside)
                    })
                    .collect(),
                idle_mw: device.idle_milliwatts,
            })
            .collect(),
        devices: hour
            .devices
            .iter()
            .map(|device| DeviceV2 {
                device: text(&device.device),
                model: text(&device.model),
                counted_to: device.counted_to.micros(),
                in_service: device.in_service.micro(),
                parts: device.parts.iter().map(part_to_v2).collect(),
                doubts: device
                    .doubts
                    .iter()
                    .map(|((kind, about), span)| {
                        let (from, to) = into(*span);
                        (kind.word().to_owned(), text(about), from, to)
                    })
                    .collect(),
            })
            .collect(),
        covered_ns: segments.covered_nanos,
    };
    let json = serde_json::to_vec(&body).map_err(corrupt)?;
    if json.len() > BYTES_MAX {
        return Err(StoreError::TooLarge { what: "a node-hour's body", bytes: json.len() });
    }
    zstd::bulk::compress(&json, 1).map_err(corrupt)
}

fn slice_to_v2(slice: &Slice) -> SliceV2 {
    let mut row = SliceV2 {
        device: text(&slice.device),
        mode: slice.mode.word().to_owned(),
        ppm: None,
        profile: None,
        one_of: None,
        even: false,
        devices: None,
        percent: None,
        memory_mib: None,
        id: slice.id.as_ref().map(text),
        parent: slice.parent.as_ref().map(text),
        start: slice.start,
        scheduler: slice.scheduler.map(|each| each.word().to_owned()),
        powered_off: slice.is_powered_off,
    };
    match &slice.size {
        SliceSize::Whole => {}
        SliceSize::Declared(ppm) => row.ppm = Some(*ppm),
        SliceSize::Profile(profile) => row.profile = Some(text(profile)),
        SliceSize::OneOf(count) => row.one_of = Some(*count),
        SliceSize::Even => row.even = true,
        SliceSize::Devices(count) => row.devices = Some(*count),
        SliceSize::Threads { percent, memory_mib } => {
            row.percent = Some(*percent);
            row.memory_mib = *memory_mib;
        }
    }
    row
}

fn slice_from_v2(row: &SliceV2) -> Result<Slice, StoreError> {
    let name = |text: &String| Name::parse(text).map_err(corrupt);
    let size = match (row.ppm, &row.profile, row.one_of, row.even, row.percent) {
        (Some(ppm), ..) => SliceSize::Declared(ppm),
        (None, Some(profile), ..) => SliceSize::Profile(name(profile)?),
        (None, None, Some(count), ..) => SliceSize::OneOf(count),
        (None, None, None, true, _) => SliceSize::Even,
        (None, None, None, false, Some(percent)) => {
            SliceSize::Threads { percent, memory_mib: row.memory_mib }
        }
        (None, None, None, false, None) => row.devices.map_or(SliceSize::Whole, SliceSize::Devices),
    };
    Ok(Slice {
        device: name(&row.device)?,
        mode: SharingMode::parse(&row.mode).map_err(corrupt)?,
        size,
        id: row.id.as_ref().map(name).transpose()?,
        parent: row.parent.as_ref().map(name).transpose()?,
        start: row.start,
        scheduler: row.scheduler.as_deref().map(VgpuScheduler::parse).transpose().map_err(corrupt)?,
        is_powered_off: row.powered_off,
    })
}

fn part_to_v2(part: &Part) -> PartV2 {
    PartV2 {
        state: part.state.word().to_owned(),
        slice: part.slice,
        evidence: part.evidence,
        tenant: part.owner.as_ref().and_then(|owner| owner.tenant.as_ref()).map(ToString::to_string),
        project: part.owner.as_ref().map(|owner| owner.project.to_string()),
        mode: part.mode.map(|mode| mode.word().to_owned()),
        sku: part.sku.to_string(),
        estimated: part.estimated,
        quantity: part.quantity.micro(),
        metered: part.metered.micro(),
        energy_mj: part.millijoules,
    }
}

/// The devices that a body divides, whatever its layout: what else stands in it is not read.
///
/// # Errors
/// [`StoreError::Corrupt`] when it is no body.
pub fn divided_devices(body: &[u8]) -> Result<BTreeSet<Name>, StoreError> {
    #[derive(Deserialize)]
    struct Listing {
        devices: Vec<Listed>,
    }
    #[derive(Deserialize)]
    struct Listed {
        device: String,
    }
    let listing: Listing = serde_json::from_slice(&unpack(body)?).map_err(corrupt)?;
    listing.devices.iter().map(|each| Name::parse(&each.device).map_err(corrupt)).collect()
}

/// Unpacks a body, within limits.
fn unpack(body: &[u8]) -> Result<Vec<u8>, StoreError> {
    let mut json = Vec::with_capacity(body.len().saturating_mul(8).min(BYTES_MAX));
    let decoder = zstd::stream::read::Decoder::new(body).map_err(corrupt)?;
    let limit = u64::try_from(BYTES_MAX).unwrap_or(u64::MAX).saturating_add(1);
    decoder.take(limit).read_to_end(&mut json).map_err(corrupt)?;
    if json.len() > BYTES_MAX {
        return Err(corrupt(format!("it unpacks to more than {BYTES_MAX} bytes")));
    }
    Ok(json)
}

/// Reads a body back, of this layout or an earlier one.
///
/// # Errors
/// [`StoreError::Corrupt`] when it is not one.
pub fn decode(body: &[u8]) -> Result<NodeHour, StoreError> {
    let json = unpack(body)?;
    let body: BodyV2 = match serde_json::from_slice::<BodyV2>(&json) {
        Ok(body) if body.v == 2 => body,
        // A body of another layout, or of none.
        Ok(_) | Err(_) => match serde_json::from_slice::<Version>(&json).map_err(corrupt)?.v {
            1 => serde_json::from_slice::<BodyV1>(&json).map_err(corrupt)?.into(),
            2 => serde_json::from_slice::<BodyV2>(&json).map_err(corrupt)?,
            other => return Err(corrupt(format!("version {other}"))),
        },
    };
    let start = Instant::from_micros(body.hour.0);
    let span = |from: i64, to: i64| Span::clamped(start.plus_micros(from), start.plus_micros(to));
    let name = |text: &str| Name::parse(text).map_err(corrupt);
    let slices = body.slices.iter().map(slice_from_v2).collect::<Result<Vec<_>, _>>()?;
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
    for device in body.segments {
        segments.push(DeviceSegments {
            device: name(&device.device)?,
            segments: device
                .segments
                .into_iter()
                .map(|segment| Segment {
                    span: span(segment.from, segment.to),
                    source: segment.source,
                    covered: segment.covered,
                    holders: segment
                        .holders
                        .into_iter()
                        .map(|(slice, evidence)| Holder { slice, evidence })
                        .collect(),
                    layout: segment.layout,
                    measures: segment
                        .measures
                        .into_iter()
                        .map(|(slice, evidence, active_nanos, memory_byte_seconds)| Measure {
                            slice,
                            evidence,
                            active_nanos,
                            memory_byte_seconds,
                        })
                        .collect(),
                    energy: segment.energy_mj,
                })
                .collect(),
            conflicts: device
                .conflicts
                .into_iter()
                .map(|(from, to, believed, set_aside)| Conflict { span: span(from, to), believed, set_aside })
                .collect(),
            idle_milliwatts: device.idle_mw,
        });
    }
    let mut devices = Vec::with_capacity(body.devices.len());
    for device in body.devices {
        let doubt = |(kind, about, from, to): &(String, String, i64, i64)| {
            let kind = DoubtKind::parse(kind).ok_or_else(|| corrupt(format!("a doubt `{kind}`")))?;
            Ok::<_, StoreError>(((kind, name(about)?), span(*from, *to)))
        };
        devices.push(DeviceHour {
            device: name(&device.device)?,
            model: name(&device.model)?,
            counted_to: Instant::from_micros(device.counted_to),
            in_service: Quantity::from_micro(device.in_service),
            parts: device.parts.iter().map(part_from_v2).collect::<Result<_, _>>()?,
            doubts: device.doubts.iter().map(doubt).collect::<Result<_, _>>()?,
        });
    }
    let hour = Span::clamped(start, Instant::from_micros(body.hour.1));
    let segments =
        HourSegments { hour, slices, evidence, sources, devices: segments, covered_nanos: body.covered_ns };
    Ok(NodeHour { segments, devices })
}

fn part_from_v2(part: &PartV2) -> Result<Part, StoreError> {
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
        metered: Quantity::from_micro(part.metered),
        millijoules: part.energy_mj,
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A body as the release before nested slices wrote it.
    const BEFORE: &str = r#"{"v":1,"hour":[1780272000000000,1780275600000000],
        "slices":[["GPU-1","dedicated",null,null],["GPU-1","mig",null,"1g.10gb"],["GPU-1","mps",250000,null]],
        "evidence":[[["workload","w1"],["tenant","acme"]]],"sources":[["import","slurm"]],
        "segments":[["GPU-1",[[0,1800000000,0,true,[[2,0]]],[1800000000,3600000000,0,false,[]]],[[0,5,0,0]]]],
        "devices":[{"device":"GPU-1","model":"A10","counted_to":1780275600000000,"in_service":1000000,
        "parts":[{"state":"used","slice":2,"evidence":0,"tenant":"acme","project":"default","mode":"mps",
        "sku":"A10:share","quantity":125000},{"state":"unknown","sku":"A10","quantity":875000}],
        "unknown_profiles":[["1g.10gb",0,1800000000]]}],"covered_ns":1800000000000}"#;

    #[test]
    fn a_body_of_the_layout_before_is_read_and_written_in_this_one() {
        let before = zstd::bulk::compress(BEFORE.as_bytes(), 1).unwrap();
        let hour = decode(&before).unwrap();
        assert_eq!(hour.segments.slices[2].size, SliceSize::Declared(250_000));
        assert_eq!(hour.segments.devices[0].segments[0].source, Some(0));
        assert_eq!(hour.devices[0].doubts[0].0, (DoubtKind::UnknownProfile, Name::fixed("1g.10gb")));
        assert_eq!(hour.devices[0].parts.iter().map(|part| part.quantity.micro()).sum::<i64>(), 1_000_000);
        assert_eq!(decode(&encode(&hour).unwrap()).unwrap(), hour);
    }

    #[test]
    fn a_body_of_a_layout_to_come_is_an_error() {
        let body = zstd::bulk::compress(BEFORE.replacen("\"v\":1", "\"v\":3", 1).as_bytes(), 1).unwrap();
        assert!(decode(&body).unwrap_err().to_string().contains("version 3"));
    }
}
