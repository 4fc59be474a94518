//! What GPUs were divided into, and whose the pieces were: from the hours by which they are billed.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use serde::Serialize;

use super::browse::scope_named;
use super::ctx::Platform;
use super::error::ServiceError;
use crate::domain::allocation::{DeviceFacts, Divider};
use crate::domain::catalogue::Catalogue;
use crate::domain::cost::NodeHour;
use crate::domain::division::{Division, Piece};
use crate::domain::ids::{Name, ScopeId, ScopeKind, ScopeName};
use crate::domain::mapping::MappingRules;
use crate::domain::period::{BillingZone, Span};
use crate::domain::price::PriceBook;
use crate::domain::segment::HourSegments;
use crate::domain::units::{Instant, Quantity};
use crate::domain::usage::Slice;
use crate::store::fleet::{DevicesWanted, ListedDevice, ListedInterval, ScopeDevice, StoredScope};
use crate::store::node_hour::{self, StoredHour};
use crate::store::{PlatformScope, ReadTx, StoreError, fleet, mapping, prices, unit};

/// Longest span of one device's question, in hours.
pub const HOURS_MAX: i64 = 7 * 24;
/// Hours that are read at once: what was said of one takes up to a few MiB.
const HOURS_AT_ONCE: usize = 24;
/// Pieces of one answer, at most.
const PIECES_MAX: usize = 200_000;
/// Devices that are listed at once.
const DEVICES_AT_ONCE: i64 = 1_000;

/// A node's or pool's devices at an instant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ScopeLayout {
    /// Its name.
    pub name: String,
    /// The instant; none where nothing of it is counted yet.
    pub at: Option<String>,
    /// Its devices that are in service then, by UUID.
    pub devices: Vec<DeviceLayout>,
}

/// One device in a span.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SpanLayout {
    /// From when.
    pub from: String,
    /// Until when.
    pub to: String,
    /// The device, once for each node and pool of whose hours it was a part.
    pub devices: Vec<DeviceLayout>,
}

/// What a device was divided into.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DeviceLayout {
    /// Its UUID.
    pub gpu_uuid: String,
    /// Its model.
    pub gpu_model: String,
    /// Its number on the node.
    pub gpu_index: Option<i64>,
    /// Its home.
    pub node: String,
    /// The pool that divides it; none: its node does.
    pub pool: Option<String>,
    /// Those that meet the instant or span, whole as far as their hours go, in order of time. Time that is not derived
    /// yet is left out, and in a node's answer what a pool divides.
    pub layouts: Vec<LayoutView>,
}

/// A span in which nothing of a device changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LayoutView {
    /// From when.
    pub from: String,
    /// Until when.
    pub to: String,
    /// What it was divided into; the shares sum to 1.
    pub pieces: Vec<PieceView>,
    /// What someone should know of it.
    pub doubts: Vec<DoubtView>,
}

/// A piece of a device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PieceView {
    /// What it was.
    pub state: &'static str,
    /// Its share of the device, a fraction in lowest terms such as `15/112`.
    pub share: String,
    /// How the device was shared there.
    pub mode: Option<&'static str>,
    /// What is sold: the model, and below it the kind of slice.
    pub sku: String,
    /// The slice's path below the device.
    pub slice: Option<String>,
    /// What its source calls the slice.
    pub slice_id: Option<String>,
    /// The first memory slot of the GPU instance that it is or lies in.
    pub start: Option<u16>,
    /// Who pays; none: nobody held it, or no rule says whose the holder is.
    pub tenant: Option<String>,
    /// That tenant's cost centre, or the project to which what is not mapped is counted.
    pub project: Option<String>,
    /// What was seen of the holder.
    pub evidence: BTreeMap<&'static str, String>,
    /// SM activity as a share of the device; none: not measured.
    pub activity: Option<String>,
    /// The same as a share of the compute that its slice has: more than 1 where it may burst.
    pub utilization: Option<String>,
    /// Whether the share is the declared one because the measured one is missing.
    pub estimated: bool,
}

/// What someone should know, and about what.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DoubtView {
    /// Its kind.
    pub kind: &'static str,
    /// A profile, a slice or a reason.
    pub about: String,
}

/// The devices of a node or pool at an instant; none: the last that is counted there.
///
/// # Errors
/// [`ServiceError::NotFound`] for a node or pool that is not there.
pub async fn of_scope(
    platform: &Platform,
    name: ScopeName,
    at: Option<Instant>,
) -> Result<ScopeLayout, ServiceError> {
    let zone = platform.installation.zone;
    platform
        .read(move |scope, tx| {
            unit(async move {
                let home = scope_named(scope, tx, &name).await?;
                let listed = all_devices(scope, tx, home.id).await?;
                let here = intervals(&listed, &name);
                let at = at.or(last_counted(&here));
                let mut devices: Vec<DeviceLayout> = Vec::new();
                let mut divided = BTreeMap::new();
                if let Some(at) = at {
                    let within = Span::clamped(at, at.plus_micros(1));
                    divided = Reader::new(scope, tx, zone).await?.divided(&home, within, None).await?;
                }
                for (device, each) in here {
                    if !at.is_some_and(|at| each.span.contains(at)) {
                        continue;
                    }
                    let layouts = divided.remove(&(each.node.clone(), device.device.uuid.clone()));
                    // In a node's own hours there is no pool.
                    let pool = match (name.kind, &layouts) {
                        (ScopeKind::Node, Some(_)) => None,
                        (ScopeKind::Node, None) | (ScopeKind::Pool, _) => each.pool.as_ref(),
                    };
                    let index = each.node_index;
                    devices.push(DeviceLayout::of(
                        device,
                        index,
                        &each.node,
                        pool,
                        layouts.unwrap_or_default(),
                    ));
                }
                let at = at.map(|at| at.to_string());
                Ok(ScopeLayout { name: name.name.to_string(), at, devices })
            })
        })
        .await
}

/// One device in a span of at most [`HOURS_MAX`] hours.
///
/// # Errors
/// [`ServiceError::NotFound`] for a device that is not there.
pub async fn of_device(platform: &Platform, uuid: Name, within: Span) -> Result<SpanLayout, ServiceError> {
    let zone = platform.installation.zone;
    platform
        .read(move |scope, tx| {
            unit(async move {
                let listed = fleet::list_devices(scope, tx, DevicesWanted::One(&uuid)).await?;
                let missing = || ServiceError::NotFound { what: "device", name: uuid.to_string() };
                let device = listed.first().ok_or_else(missing)?;
                let mut homes: BTreeMap<(Name, Option<Name>), Option<i64>> = BTreeMap::new();
                for each in device.intervals.iter().filter(|each| each.span.meets(within)) {
                    homes.insert((each.node.clone(), each.pool.clone()), each.node_index);
                    if each.pool.is_some() {
                        // Hours of which the node knows itself are its own.
                        homes.entry((each.node.clone(), None)).or_insert(each.node_index);
                    }
                }
                let reader = Reader::new(scope, tx, zone).await?;
                let mut devices = Vec::new();
                for ((node, pool), index) in homes {
                    let name = match &pool {
                        Some(pool) => ScopeName { kind: ScopeKind::Pool, name: pool.clone() },
                        None => ScopeName { kind: ScopeKind::Node, name: node.clone() },
                    };
                    let home = scope_named(scope, tx, &name).await?;
                    let mut divided = reader.divided(&home, within, Some(&uuid)).await?;
                    let layouts = divided.remove(&(node.clone(), uuid.clone())).unwrap_or_default();
                    devices.push(DeviceLayout::of(device, index, &node, pool.as_ref(), layouts));
                }
                let (from, to) = (within.start().to_string(), within.end().to_string());
                Ok(SpanLayout { from, to, devices })
            })
        })
        .await
}

/// A device and an interval of it.
type Served<'l> = (&'l ListedDevice, &'l ListedInterval);

/// The intervals that are of a node or pool.
fn intervals<'l>(listed: &'l [ListedDevice], of: &ScopeName) -> Vec<Served<'l>> {
    let all = listed.iter().flat_map(|device| device.intervals.iter().map(move |each| (device, each)));
    all.filter(|(_, each)| match of.kind {
        ScopeKind::Node => each.node == of.name,
        ScopeKind::Pool => each.pool.as_ref() == Some(&of.name),
    })
    .collect()
}

/// The last instant of which anything is counted.
fn last_counted(here: &[Served<'_>]) -> Option<Instant> {
    let counted = here.iter().filter(|(_, each)| each.counted_to > each.span.start());
    // An edge is the first instant that is not counted.
    counted.map(|(_, each)| each.counted_to.min(each.span.end()).plus_micros(-1)).max()
}

/// All devices that are, or were, of a scope.
async fn all_devices(
    scope: &PlatformScope,
    tx: &ReadTx,
    of: ScopeId,
) -> Result<Vec<ListedDevice>, ServiceError> {
    let mut all: Vec<ListedDevice> = Vec::new();
    loop {
        let after = all.last().map(|last| last.device.uuid.to_string()).unwrap_or_default();
        let wanted = DevicesWanted::Page { after: &after, limit: DEVICES_AT_ONCE, of: Some(of) };
        let page = fleet::list_devices(scope, tx, wanted).await?;
        let is_last = i64::try_from(page.len()).unwrap_or(i64::MAX) < DEVICES_AT_ONCE;
        all.extend(page);
        if is_last {
            return Ok(all);
        }
    }
}

impl DeviceLayout {
    fn of(
        device: &ListedDevice,
        index: Option<i64>,
        node: &Name,
        pool: Option<&Name>,
        layouts: Layouts,
    ) -> Self {
        Self {
            gpu_uuid: device.device.uuid.to_string(),
            gpu_model: device.device.model.to_string(),
            gpu_index: index,
            node: node.to_string(),
            pool: pool.map(ToString::to_string),
            layouts: layouts
                .0
                .into_iter()
                .map(|(span, pieces, doubts)| LayoutView {
                    from: span.start().to_string(),
                    to: span.end().to_string(),
                    pieces,
                    doubts,
                })
                .collect(),
        }
    }
}

/// Layouts under construction, in order of time.
#[derive(Debug, Default)]
struct Layouts(Vec<(Span, Vec<PieceView>, Vec<DoubtView>)>);

impl Layouts {
    fn pieces(&self) -> usize {
        self.0.iter().map(|(_, pieces, _)| pieces.len()).sum()
    }

    /// Adds an hour's; what an hour's edge cut in two is put together again.
    fn add(&mut self, division: &Division, hour: &HourSegments) {
        let span = division.span;
        let pieces: Vec<PieceView> = division.pieces.iter().map(|piece| PieceView::of(piece, hour)).collect();
        let doubts = division.doubts.iter();
        let doubts: Vec<DoubtView> =
            doubts.map(|(kind, about)| DoubtView { kind: kind.word(), about: about.to_string() }).collect();
        match self.0.last_mut() {
            Some((last, same, also)) if last.end() == span.start() && *same == pieces && *also == doubts => {
                *last = Span::clamped(last.start(), span.end());
            }
            Some(_) | None => self.0.push((span, pieces, doubts)),
        }
    }
}

impl PieceView {
    fn of(piece: &Piece, hour: &HourSegments) -> Self {
        let slice = piece.slice.and_then(|slice| hour.slices.get(slice));
        let seen = piece.evidence.and_then(|seen| hour.evidence.get(seen));
        let owner = piece.owner.as_ref();
        Self {
            state: piece.state.word(),
            share: piece.share.to_string(),
            mode: piece.mode.map(|mode| mode.word()),
            sku: piece.sku.to_string(),
            slice: slice.map(Slice::path),
            slice_id: slice.and_then(|slice| slice.id.as_ref()).map(Name::to_string),
            start: piece.start,
            tenant: owner.and_then(|owner| owner.tenant.as_ref()).map(Name::to_string),
            project: owner.map(|owner| owner.project.to_string()),
            evidence: seen
                .into_iter()
                .flat_map(|seen| seen.iter())
                .map(|(field, value)| (field.word(), value.to_string()))
                .collect(),
            activity: piece.activity.map(|activity| activity.to_string()),
            utilization: piece.utilization.map(|utilization| utilization.to_string()),
            estimated: piece.estimated,
        }
    }
}

/// Reads scopes' hours, and divides them by what holds now.
struct Reader<'t> {
    scope: &'t PlatformScope,
    tx: &'t ReadTx,
    zone: BillingZone,
    rules: MappingRules,
    book: PriceBook,
    catalogue: Arc<Catalogue>,
}

/// A device with its time in service in an hour.
type Member<'d> = (&'d ScopeDevice, Vec<Span>);

/// By node and device.
type Divided = BTreeMap<(Name, Name), Layouts>;

impl<'t> Reader<'t> {
    async fn new(scope: &'t PlatformScope, tx: &'t ReadTx, zone: BillingZone) -> Result<Self, ServiceError> {
        Ok(Self {
            scope,
            tx,
            zone,
            rules: mapping::rules(scope, tx).await?,
            book: prices::book(scope, tx).await?,
            catalogue: super::catalogue::current(scope, tx).await?,
        })
    }

    /// What the hours of a scope that meet a span have of it: of all devices, or of one.
    async fn divided(
        &self,
        home: &StoredScope,
        within: Span,
        only: Option<&Name>,
    ) -> Result<Divided, ServiceError> {
        let mut divided = Divided::new();
        let all: Vec<Span> = self.zone.hours_meeting(within).collect();
        for hours in all.chunks(HOURS_AT_ONCE) {
            let (Some(first), Some(last)) = (hours.first(), hours.last()) else { continue };
            let run = Span::clamped(first.start(), last.end());
            let devices = fleet::scope_devices(self.scope, self.tx, home.id, run).await?;
            let hours = node_hour::hours(self.scope, self.tx, home.id, run).await?;
            self.divide(home, (within, only), (&devices, &hours), &mut divided)?;
        }
        Ok(divided)
    }

    fn divide(
        &self,
        home: &StoredScope,
        (within, only): (Span, Option<&Name>),
        (devices, hours): (&[ScopeDevice], &[StoredHour]),
        divided: &mut Divided,
    ) -> Result<(), ServiceError> {
        let mut divider = Divider::new(&self.catalogue, &self.rules);
        for stored in hours {
            let Some((node_hour, members)) = members(home, stored, devices)? else { continue };
            let segments = &node_hour.segments;
            let facts: Vec<DeviceFacts<'_>> = members
                .iter()
                .map(|(device, in_service)| DeviceFacts {
                    device: &device.device,
                    memory_mib: device.memory_mib,
                    in_service,
                    states: &device.states,
                })
                .collect();
            let claimed = |device: &Name| segments.devices.iter().find(|each| each.device == *device);
            let is_wanted = |device: &ScopeDevice| only.is_none_or(|only| *only == device.device.uuid);
            let all: Vec<Vec<Division>> = match home.name.kind {
                ScopeKind::Node => {
                    let policy = self.book.policy(segments.hour.start());
                    let of_wanted = members.iter().zip(&facts).map(|((device, _), facts)| {
                        let said = claimed(&device.device.uuid);
                        if is_wanted(device) {
                            divider.divisions(facts, segments, said, &policy)
                        } else {
                            vec![]
                        }
                    });
                    of_wanted.collect()
                }
                ScopeKind::Pool => {
                    let said = claimed(&home.name.name);
                    let is_wanted = |device: &Name| only.is_none_or(|only| only == device);
                    divider.pool_divisions(&facts, segments, said, is_wanted)
                }
            };
            for ((device, _), divisions) in
                members.iter().zip(all).filter(|((device, _), _)| is_wanted(device))
            {
                let layouts = match divided.entry((device.node.clone(), device.device.uuid.clone())) {
                    Entry::Occupied(known) => known.into_mut(),
                    Entry::Vacant(entry) => entry.insert(Layouts::default()),
                };
                divisions
                    .iter()
                    .filter(|each| each.span.meets(within))
                    .for_each(|each| layouts.add(each, segments));
                if layouts.pieces() > PIECES_MAX {
                    let what = "pieces in the span";
                    return Err(StoreError::TooMany { what, most: PIECES_MAX }.into());
                }
            }
        }
        Ok(())
    }
}

/// A stored hour, and the devices that it divides with their time in service, in its order. None for a pool's of
/// another inventory than that of now: it is going to be derived anew.
fn members<'d>(
    home: &StoredScope,
    stored: &StoredHour,
    devices: &'d [ScopeDevice],
) -> Result<Option<(NodeHour, Vec<Member<'d>>)>, ServiceError> {
    let node_hour = node_hour::decode(&stored.body)?;
    let hour = node_hour.segments.hour;
    let concerns = |device: &ScopeDevice| match home.name.kind {
        ScopeKind::Node => device.home == home.id,
        ScopeKind::Pool => device.pool_during(hour) == Some(home.id),
    };
    let served = |device: &ScopeDevice| {
        let spans = device.in_service_during(hour);
        let nanos = spans.iter().fold(0_i64, |sum, span| sum.saturating_add(span.nanos()));
        (spans, Quantity::of_device_nanos(nanos))
    };
    let mut candidates = devices.iter().filter(|device| concerns(device));
    let mut members = Vec::with_capacity(node_hour.devices.len());
    for divided in &node_hour.devices {
        // Both are in order of UUID and node. Of a device that moved within the hour, a pool may have one node's
        // time and not the other's: then the time tells them apart.
        let same = |device: &&ScopeDevice| {
            device.device.uuid == divided.device && served(device).1 == divided.in_service
        };
        let any = |device: &&ScopeDevice| device.device.uuid == divided.device;
        let found = candidates.clone().find(same).or_else(|| candidates.clone().find(any));
        let Some(device) = found else {
            match home.name.kind {
                // What a pool has is dealt among all of its devices, so without one the others' is not known either.
                ScopeKind::Pool => return Ok(None),
                ScopeKind::Node => continue,
            }
        };
        members.push((device, served(device).0));
        candidates.by_ref().take_while(|each| !std::ptr::eq(*each, device)).for_each(drop);
    }
    Ok(Some((node_hour, members)))
}
