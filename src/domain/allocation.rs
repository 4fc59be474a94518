//! The division of a device-hour into parts.
//!
//! Parts are a pure function of segments, in-service intervals, declared states, catalogue, mapping rules and
//! policies. No price is in them.
//!
//! Always true here: the parts of a device-hour sum to ⌊in-service ns ÷ 3.6·10⁶⌋ exactly. Each leaf's weight
//! is summed exactly over the hour's segments and floored once, so flooring never moves a neighbour; what
//! flooring leaves is the part `rounding`. Source: DESIGN §2 and §3.

use std::rc::Rc;

use super::catalogue::Catalogue;
use super::device::{DeclaredKind, DeclaredState, Device, SharingMode, UnknownWord};
use super::energy;
use super::ids::Name;
use super::mapping::{MappingRules, Owner};
use super::period::Span;
use super::policy::Policy;
use super::pool;
use super::segment::{DeviceSegments, HourSegments, Segment};
use super::share::{Share, Weight};
use super::tree::{Doubt, Forest, Ground, Leaf, LeafKind, Shares, Spot};
use super::units::{Instant, OutOfRange, Quantity};

/// What a part of a device-hour was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PartState {
    /// Held by a holder.
    Used,
    /// Held and not used; only under a usage basis.
    HeldUnused,
    /// Not held, and could have been sold.
    Idle,
    /// Not held, and the layout leaves no way to sell it.
    Stranded,
    /// Broken; the affected holder is kept.
    Unhealthy,
    /// Being worked on.
    Maintenance,
    /// Nobody reported, or a profile that no catalogue knows.
    Unknown,
    /// The few micro-hours that flooring left.
    Rounding,
}

impl PartState {
    /// All states.
    pub const ALL: [Self; 8] = [
        Self::Used,
        Self::HeldUnused,
        Self::Idle,
        Self::Stranded,
        Self::Unhealthy,
        Self::Maintenance,
        Self::Unknown,
        Self::Rounding,
    ];

    /// The state's word.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Used => "used",
            Self::HeldUnused => "held_unused",
            Self::Idle => "idle",
            Self::Stranded => "stranded",
            Self::Unhealthy => "unhealthy",
            Self::Maintenance => "maintenance",
            Self::Unknown => "unknown",
            Self::Rounding => "rounding",
        }
    }

    /// Reads a word.
    ///
    /// # Errors
    /// [`UnknownWord`] lists the states.
    pub fn parse(word: &str) -> Result<Self, UnknownWord> {
        Self::ALL
            .into_iter()
            .find(|state| state.word() == word)
            .ok_or_else(|| UnknownWord::new(word, Self::ALL.map(Self::word)))
    }
}

/// A part of a device-hour.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Part {
    /// What it was.
    pub state: PartState,
    /// Index of the slice in the hour's tables; none where no slice exists.
    pub slice: Option<usize>,
    /// Index of the holder's evidence in the hour's tables; none where nobody held.
    pub evidence: Option<usize>,
    /// Who pays; none where nobody held (the platform's).
    pub owner: Option<Owner>,
    /// How the device was shared for the slice; none where that is open.
    pub mode: Option<SharingMode>,
    /// What is sold: the model, and below it the kind of slice.
    pub sku: Name,
    /// Whether the share is the declared one because the measured one is missing.
    pub estimated: bool,
    /// How much of the device-hour.
    pub quantity: Quantity,
    /// Of it, how much was in time whose energy was counted.
    pub metered: Quantity,
    /// Energy in millijoules, of the metered time.
    pub millijoules: i64,
}

/// One device in one billing hour, divided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceHour {
    /// The device's UUID.
    pub device: Name,
    /// Its model, by which it is priced.
    pub model: Name,
    /// Until when its in-service time was counted.
    pub counted_to: Instant,
    /// ⌊in-service ns ÷ 3.6·10⁶⌋.
    pub in_service: Quantity,
    /// The parts, in order; they sum to `in_service`.
    pub parts: Vec<Part>,
    /// What someone should know, and of which time: each span maximal.
    pub doubts: Vec<(Doubt, Span)>,
}

/// A device-hour could not be divided.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AllocationError {
    /// A value left its range.
    #[error("device {device} cannot be divided: {source}")]
    OutOfRange {
        /// The device.
        device: Name,
        /// Which value.
        #[source]
        source: OutOfRange,
    },
    /// The parts came out larger than the whole: a fault of this program, never of its input.
    #[error("the parts of device {device} exceed its in-service time by {excess} GPU-hours")]
    Overfull {
        /// The device.
        device: Name,
        /// By how much.
        excess: Quantity,
    },
}

/// What is known of one device in one billing hour beside its segments.
#[derive(Debug, Clone, Copy)]
pub struct DeviceFacts<'a> {
    /// The device.
    pub device: &'a Device,
    /// Its memory in MiB as its inventory states it; none: as the catalogue knows it.
    pub memory_mib: Option<u32>,
    /// Its in-service spans inside the hour: sorted and disjoint.
    pub in_service: &'a [Span],
    /// States that were declared for it and its slices.
    pub states: &'a [DeclaredState],
}

/// What identifies a part under construction, beside its sku and owner: state, slice, evidence, mode, estimated.
type KeyNumbers = (PartState, Option<usize>, Option<usize>, Option<SharingMode>, bool);

/// A part under construction: what identifies it, and its exact weights.
#[derive(Debug)]
struct Growing {
    key: KeyNumbers,
    sku: Name,
    owner: Option<Owner>,
    weight: Weight,
    metered: Weight,
    millijoules: Weight,
}

/// Divides device-hours, and remembers what depends on layouts and models alone.
#[derive(Debug)]
pub struct Divider<'a> {
    pub(super) rules: &'a MappingRules,
    forest: Forest<'a>,
}

impl<'a> Divider<'a> {
    /// A divider by these rules and this catalogue.
    #[must_use]
    pub fn new(catalogue: &'a Catalogue, rules: &'a MappingRules) -> Self {
        Self { rules, forest: Forest::new(catalogue) }
    }

    /// Divides one device-hour into parts.
    ///
    /// `segments` are those of this device; none: nobody reported, and all in-service time is `unknown` unless a
    /// declared state says better.
    ///
    /// # Errors
    /// [`AllocationError`] when exact values do not fit.
    pub fn divide(
        &mut self,
        facts: &DeviceFacts<'_>,
        hour: &HourSegments,
        segments: Option<&DeviceSegments>,
        policy: &Policy,
    ) -> Result<DeviceHour, AllocationError> {
        let device = facts.device;
        let baseline = self.baseline(facts, segments);
        let mut parts = Parts {
            growing: Vec::new(),
            hour,
            model: &device.model,
            rules: self.rules,
            is_one_owner: self.rules.edges(hour.hour).is_empty(),
            metered: 0,
            energy: Weight::default(),
        };
        let mut doubts: Vec<(Doubt, Span)> = Vec::new();
        let mut nanos = 0_i64;
        let all = segments.map(|each| each.segments.as_slice()).unwrap_or_default();
        let ground = Ground { device: &device.uuid, model: &device.model, memory_mib: facts.memory_mib };
        for service in facts.in_service {
            nanos = nanos.saturating_add(service.nanos());
            for (span, segment) in tiles(*service, all) {
                let shares = self.shares(ground, policy, hour, segment);
                doubts.extend(shares.doubts.iter().map(|doubt| (doubt.clone(), span)));
                let energy =
                    segment.and_then(|segment| energy::of_segment(segment, &shares.leaves, baseline));
                for (piece, at) in pieces(span, facts.states, self.rules) {
                    parts.add(piece, at, segment, &shares, energy.as_ref(), facts.states);
                }
            }
        }
        let in_service = Quantity::of_device_nanos(nanos);
        let parts = finish(parts, device, in_service)?;
        Ok(DeviceHour {
            device: device.uuid.clone(),
            model: device.model.clone(),
            counted_to: facts.in_service.last().map_or(hour.hour.start(), |span| span.end()),
            in_service,
            parts,
            doubts: merged_doubts(doubts),
        })
    }

    /// The shares of a tile: of its segment, or of a span of which nobody said anything.
    pub(super) fn shares(
        &mut self,
        ground: Ground<'_>,
        policy: &Policy,
        hour: &HourSegments,
        segment: Option<&Segment>,
    ) -> Rc<Shares> {
        match segment {
            Some(segment) => self.forest.shares(ground, policy, hour, segment),
            None => nobody_reported(ground.model),
        }
    }

    /// Divides the members of a pool in one billing hour: each its own device-hour, in the order given.
    ///
    /// `segments` are those of the pool; none: nobody reported.
    ///
    /// # Errors
    /// [`AllocationError`] when exact values do not fit.
    pub fn divide_pool(
        &mut self,
        members: &[DeviceFacts<'_>],
        hour: &HourSegments,
        segments: Option<&DeviceSegments>,
    ) -> Result<Vec<DeviceHour>, AllocationError> {
        let dealt = pool::deal(members, hour, segments);
        members.iter().zip(dealt).map(|(facts, dealt)| self.member(facts, hour, &dealt)).collect()
    }

    /// One member's device-hour, from what it was dealt.
    fn member(
        &self,
        facts: &DeviceFacts<'_>,
        hour: &HourSegments,
        dealt: &[pool::Dealt<'_>],
    ) -> Result<DeviceHour, AllocationError> {
        let device = facts.device;
        let mut parts = Parts {
            growing: Vec::new(),
            hour,
            model: &device.model,
            rules: self.rules,
            is_one_owner: self.rules.edges(hour.hour).is_empty(),
            metered: 0,
            energy: Weight::default(),
        };
        let mut doubts = Vec::new();
        for (span, segment, shares) in dealt {
            doubts.extend(shares.doubts.iter().map(|doubt| (doubt.clone(), *span)));
            for (piece, at) in pieces(*span, facts.states, self.rules) {
                parts.add(piece, at, *segment, shares, None, facts.states);
            }
        }
        let nanos = facts.in_service.iter().fold(0_i64, |sum, span| sum.saturating_add(span.nanos()));
        let in_service = Quantity::of_device_nanos(nanos);
        Ok(DeviceHour {
            device: device.uuid.clone(),
            model: device.model.clone(),
            counted_to: facts.in_service.last().map_or(hour.hour.start(), |span| span.end()),
            in_service,
            parts: finish(parts, device, in_service)?,
            doubts: merged_doubts(doubts),
        })
    }

    /// The power of the device when nobody works on it, in milliwatts.
    fn baseline(&mut self, facts: &DeviceFacts<'_>, segments: Option<&DeviceSegments>) -> Option<i64> {
        let segments =
            segments.filter(|each| each.segments.iter().any(|segment| segment.energy.is_some()))?;
        let board = self.forest.board(&facts.device.model);
        board.and_then(|board| board.baseline_milliwatts).map(i64::from).or(segments.idle_milliwatts)
    }
}

/// Floors each part once; what that leaves is `rounding`.
fn finish(all: Parts<'_>, device: &Device, in_service: Quantity) -> Result<Vec<Part>, AllocationError> {
    let out_of_range = |source| AllocationError::OutOfRange { device: device.uuid.clone(), source };
    let whole_metered = Quantity::of_device_nanos(all.metered);
    let whole_energy = all.energy.floor_in(1).map_err(out_of_range)?;
    let mut parts = Vec::with_capacity(all.growing.len().saturating_add(1));
    let (mut sum, mut metered_sum, mut energy_sum) = (Quantity::ZERO, Quantity::ZERO, 0_i64);
    for growing in all.growing {
        let quantity = growing.weight.floor().map_err(out_of_range)?;
        let metered = growing.metered.floor().map_err(out_of_range)?;
        let millijoules = growing.millijoules.floor_in(1).map_err(out_of_range)?;
        sum = sum.plus(quantity).map_err(out_of_range)?;
        metered_sum = metered_sum.plus(metered).map_err(out_of_range)?;
        energy_sum = energy_sum.saturating_add(millijoules);
        if quantity == Quantity::ZERO && millijoules == 0 {
            continue;
        }
        let (state, slice, evidence, mode, estimated) = growing.key;
        parts.push(Part {
            state,
            slice,
            evidence,
            owner: growing.owner,
            mode,
            sku: growing.sku,
            estimated,
            quantity,
            metered,
            millijoules,
        });
    }
    let left = in_service.minus(sum).map_err(out_of_range)?;
    let (metered, millijoules) =
        (whole_metered.minus(metered_sum).map_err(out_of_range)?, whole_energy.saturating_sub(energy_sum));
    if left < Quantity::ZERO || metered < Quantity::ZERO || millijoules < 0 {
        let excess = sum.minus(in_service).map_err(out_of_range)?;
        return Err(AllocationError::Overfull { device: device.uuid.clone(), excess });
    }
    if left > Quantity::ZERO || metered > Quantity::ZERO || millijoules > 0 {
        parts.push(Part {
            state: PartState::Rounding,
            slice: None,
            evidence: None,
            owner: None,
            mode: None,
            sku: device.model.clone(),
            estimated: false,
            quantity: left,
            metered,
            millijoules,
        });
    }
    parts.sort_unstable();
    Ok(parts)
}

/// The shares of a span of which nobody said anything.
fn nobody_reported(model: &Name) -> Rc<Shares> {
    // Not held, as far as anybody knows; that nobody vouches for it makes it unknown.
    let leaf = Leaf {
        kind: LeafKind::Idle,
        spot: Spot::Nowhere,
        mode: None,
        sku: model.clone(),
        path: Vec::new(),
        share: Share::WHOLE,
        estimated: false,
        activity: None,
        utilization: None,
    };
    Rc::new(Shares { leaves: vec![leaf], doubts: Vec::new() })
}

/// Doubts in order, each with maximal spans.
fn merged_doubts(mut doubts: Vec<(Doubt, Span)>) -> Vec<(Doubt, Span)> {
    doubts.sort_unstable();
    let mut merged: Vec<(Doubt, Span)> = Vec::with_capacity(doubts.len());
    for (doubt, span) in doubts {
        match merged.last_mut() {
            Some((last, until)) if *last == doubt && span.start() <= until.end() => {
                *until = Span::clamped(until.start(), until.end().max(span.end()));
            }
            Some(_) | None => merged.push((doubt, span)),
        }
    }
    merged
}

/// Tiles an in-service span with segments, and with nothing where nobody reported.
pub(super) fn tiles<'a>(service: Span, segments: &'a [Segment]) -> Vec<(Span, Option<&'a Segment>)> {
    let mut tiles: Vec<(Span, Option<&'a Segment>)> = Vec::new();
    let mut at = service.start();
    for segment in segments.iter().filter(|segment| segment.span.meets(service)) {
        let span = segment.span.clip(service);
        if at < span.start() {
            tiles.push((Span::clamped(at, span.start()), None));
        }
        tiles.push((span, Some(segment)));
        at = span.end();
    }
    if at < service.end() {
        tiles.push((Span::clamped(at, service.end()), None));
    }
    tiles
}

/// Cuts a span where a declared state or a mapping rule begins or ends; each piece with its first instant.
pub(super) fn pieces(span: Span, states: &[DeclaredState], rules: &MappingRules) -> Vec<(Span, Instant)> {
    let mut edges = rules.edges(span);
    for state in states.iter().filter(|state| state.span.meets(span)) {
        edges.extend([state.span.start(), state.span.end()]);
    }
    if edges.is_empty() {
        return vec![(span, span.start())];
    }
    edges.retain(|edge| span.start() < *edge && *edge < span.end());
    edges.extend([span.start(), span.end()]);
    edges.sort_unstable();
    edges.dedup();
    edges
        .windows(2)
        .filter_map(|pair| match pair {
            [start, end] => Some((Span::clamped(*start, *end), *start)),
            _ => None,
        })
        .collect()
}

/// Whether a state of that kind is declared for the device, or for one of the slices of a path.
fn is_declared(states: &[DeclaredState], kind: DeclaredKind, at: Instant, path: &[Name]) -> bool {
    states.iter().any(|state| {
        state.kind == kind
            && state.span.contains(at)
            && state.slice.as_ref().is_none_or(|slice| path.contains(slice))
    })
}

/// The first state that applies (DESIGN §3).
fn state_of(leaf: &Leaf, is_covered: bool, states: &[DeclaredState], at: Instant) -> PartState {
    // A slice whose size is not known is held as a rule: what is unknown with it is not called maintenance.
    let is_held = leaf.is_held() || leaf.kind == LeafKind::Unknown;
    let declared = |kind| is_declared(states, kind, at, &leaf.path);
    let is_in_maintenance = !states.is_empty()
        && if is_held { declared(DeclaredKind::Migration) } else { declared(DeclaredKind::Maintenance) };
    if is_in_maintenance {
        return PartState::Maintenance;
    }
    if !states.is_empty() && declared(DeclaredKind::Unhealthy) {
        return PartState::Unhealthy;
    }
    match leaf.kind {
        LeafKind::Used => PartState::Used,
        LeafKind::HeldUnused => PartState::HeldUnused,
        LeafKind::Idle | LeafKind::Stranded | LeafKind::Unknown if !is_covered => PartState::Unknown,
        LeafKind::Idle => PartState::Idle,
        LeafKind::Stranded => PartState::Stranded,
        LeafKind::Unknown => PartState::Unknown,
    }
}

/// What is told of a leaf: its state, and of which slice and holder it is.
pub(super) struct Told<'a> {
    pub(super) state: PartState,
    pub(super) slice: Option<usize>,
    pub(super) evidence: Option<usize>,
    pub(super) mode: Option<SharingMode>,
    pub(super) sku: &'a Name,
}

/// What is told of a leaf at an instant.
pub(super) fn told<'a>(
    leaf: &'a Leaf,
    segment: Option<&Segment>,
    model: &'a Name,
    states: &[DeclaredState],
    at: Instant,
) -> Told<'a> {
    let is_covered = segment.is_some_and(|segment| segment.covered);
    let evidence = segment.and_then(|segment| leaf.evidence(segment));
    let state = state_of(leaf, is_covered, states, at);
    // Of time of which nobody knows more than that, it is not told apart either.
    let is_blank = state == PartState::Unknown && leaf.kind != LeafKind::Unknown && evidence.is_none();
    if is_blank {
        return Told { state, slice: None, evidence, mode: None, sku: model };
    }
    let slice = segment.and_then(|segment| leaf.slice(segment));
    Told { state, slice, evidence, mode: leaf.mode, sku: &leaf.sku }
}

/// The parts of one device-hour under construction.
struct Parts<'a> {
    growing: Vec<Growing>,
    hour: &'a HourSegments,
    model: &'a Name,
    rules: &'a MappingRules,
    /// Whether evidence belongs to the same owner all the hour long: no rule begins or ends in it.
    is_one_owner: bool,
    /// Nanoseconds whose energy was counted.
    metered: i64,
    energy: Weight,
}

impl Parts<'_> {
    /// Adds one piece of constant holders and states.
    fn add(
        &mut self,
        piece: Span,
        at: Instant,
        segment: Option<&Segment>,
        shares: &Shares,
        energy: Option<&energy::SegmentEnergy>,
        states: &[DeclaredState],
    ) {
        let nanos = piece.nanos();
        // What of the segment's energy belongs to this piece of it, by time.
        let of_piece = segment.map(|segment| {
            Share::new(nanos.into(), i128::from(segment.span.nanos()).max(1)).unwrap_or(Share::NONE)
        });
        let energy = energy.zip(of_piece);
        if let Some((energy, of_piece)) = &energy {
            self.metered = self.metered.saturating_add(nanos);
            self.energy.add(energy.millijoules, of_piece);
        }
        for (number, leaf) in shares.leaves.iter().enumerate() {
            let Told { state, slice, evidence, mode, sku } = told(leaf, segment, self.model, states, at);
            let growing = self.growing((state, slice, evidence, mode, leaf.estimated), sku, at);
            growing.weight.add(nanos, &leaf.share);
            if let Some((energy, of_piece)) = &energy {
                growing.metered.add(nanos, &leaf.share);
                if let Some(share) = energy.shares.get(number) {
                    growing.millijoules.add(energy.millijoules, &share.of(of_piece));
                }
            }
        }
    }

    fn growing(&mut self, key: KeyNumbers, sku: &Name, at: Instant) -> &mut Growing {
        let owner = |parts: &Self| {
            let seen = key.2.and_then(|seen| parts.hour.evidence.get(seen));
            seen.map(|seen| parts.rules.owner(seen, at))
        };
        // An owner is worked out once, unless it may change within the hour.
        let known = if self.is_one_owner { None } else { Some(owner(self)) };
        let same = |growing: &Growing| {
            growing.key == key
                && growing.sku == *sku
                && known.as_ref().is_none_or(|owner| *owner == growing.owner)
        };
        let at = match self.growing.iter().position(same) {
            Some(at) => at,
            None => {
                let owner = known.unwrap_or_else(|| owner(self));
                let (weight, metered, millijoules) = Default::default();
                self.growing.push(Growing { key, sku: sku.clone(), owner, weight, metered, millijoules });
                self.growing.len().saturating_sub(1)
            }
        };
        #[expect(clippy::indexing_slicing, reason = "the index was found or pushed just above")]
        &mut self.growing[at]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::segment::Claims;
    use crate::domain::usage::{
        Batch, Coverage, CoverageOf, EvidenceField, Row, Slice, SliceSize, Source, SourceRank,
    };

    const MINUTE: i64 = 60_000_000;

    fn span(start: i64, end: i64) -> Span {
        Span::new(Instant::from_micros(start * MINUTE), Instant::from_micros(end * MINUTE)).unwrap()
    }

    struct Case {
        rows: Vec<(&'static str, SharingMode, SliceSize, Span)>,
        covered: Vec<Span>,
        in_service: Vec<Span>,
        states: Vec<DeclaredState>,
    }

    impl Case {
        fn new(rows: &[(&'static str, SharingMode, SliceSize, Span)]) -> Self {
            Self {
                rows: rows.to_vec(),
                covered: vec![span(0, 60)],
                in_service: vec![span(0, 60)],
                states: vec![],
            }
        }

        fn check(&self, want: &[&str]) {
            let uuid = Name::fixed("GPU-1");
            let batch = Batch {
                slices: self
                    .rows
                    .iter()
                    .map(|(_, mode, size, _)| Slice::plain(uuid.clone(), *mode, size.clone()))
                    .collect(),
                evidence: self
                    .rows
                    .iter()
                    .map(|(tenant, ..)| {
                        [
                            (EvidenceField::Workload, Name::fixed(tenant)),
                            (EvidenceField::Tenant, Name::fixed(tenant)),
                        ]
                        .into_iter()
                        .collect()
                    })
                    .collect(),
                rows: (0..self.rows.len())
                    .map(|at| Row { slice: at, evidence: at, span: self.rows[at].3, uncut: self.rows[at].3 })
                    .collect(),
                coverage: self
                    .covered
                    .iter()
                    .map(|span| Coverage { device: uuid.clone(), span: *span, of: CoverageOf::Holding })
                    .collect(),
                ..Batch::default()
            };
            let mut claims = Claims::new();
            claims.add(&Source { rank: SourceRank::Import, sender: Name::fixed("s") }, 1, &batch);
            let hour = claims.fold(&[span(0, 60)]).remove(0);
            let device = Device { uuid: uuid.clone(), model: Name::fixed("A10") };
            let facts = DeviceFacts {
                device: &device,
                memory_mib: None,
                in_service: &self.in_service,
                states: &self.states,
            };
            let rules = MappingRules::default();
            let mut divider = Divider::new(Catalogue::embedded(), &rules);
            let divided = divider.divide(&facts, &hour, hour.devices.first(), &Policy::default()).unwrap();
            let sum = Quantity::sum(divided.parts.iter().map(|part| part.quantity)).unwrap();
            assert_eq!(sum, divided.in_service, "parts sum to the whole");
            let shown: Vec<String> = divided
                .parts
                .iter()
                .map(|part| {
                    let tenant = part.owner.as_ref().and_then(|owner| owner.tenant.clone());
                    let mode = part.mode.map_or("none", SharingMode::word);
                    let tenant = tenant.map_or("-".to_owned(), |name| name.to_string());
                    format!("{} {tenant} {mode} {} {}", part.state.word(), part.sku, part.quantity.micro())
                })
                .collect();
            assert_eq!(shown, want);
        }
    }

    use SharingMode::{Dedicated, Mig, TimeSlicing};
    use SliceSize::{Declared, Profile, Whole};

    #[test]
    fn a_whole_device_is_used_then_idle() {
        Case::new(&[("a", Dedicated, Whole, span(0, 45))])
            .check(&["used a dedicated A10 750000", "idle - none A10 250000"]);
    }

    #[test]
    fn declared_shares_leave_the_rest_idle() {
        Case::new(&[
            ("a", TimeSlicing, Declared(460_000), span(0, 60)),
            ("b", TimeSlicing, Declared(460_000), span(30, 60)),
        ])
        .check(&[
            "used a time_slicing A10:share 460000",
            "used b time_slicing A10:share 230000",
            "idle - none A10 310000",
        ]);
    }

    #[test]
    fn shares_above_one_are_normalised_per_instant_and_leave_rounding() {
        Case::new(&[
            ("a", Dedicated, Whole, span(0, 60)),
            ("b", Dedicated, Whole, span(0, 60)),
            ("c", Dedicated, Whole, span(0, 60)),
        ])
        .check(&[
            "used a dedicated A10 333333",
            "used b dedicated A10 333333",
            "used c dedicated A10 333333",
            "rounding - none A10 1",
        ]);
    }

    #[test]
    fn outside_coverage_the_rest_is_unknown() {
        let mut case = Case::new(&[("a", Dedicated, Whole, span(20, 30))]);
        case.covered = vec![span(0, 15)];
        case.check(&[
            "used a dedicated A10 166666",
            "idle - none A10 250000",
            "unknown - none A10 583333",
            "rounding - none A10 1",
        ]);
    }

    #[test]
    fn out_of_service_time_is_no_part_of_it() {
        let mut case = Case::new(&[("a", Dedicated, Whole, span(0, 60))]);
        case.in_service = vec![span(0, 15), span(30, 45)];
        case.check(&["used a dedicated A10 500000"]);
    }

    #[test]
    fn a_profile_that_no_catalogue_knows_is_unknown() {
        Case::new(&[("a", Mig, Profile(Name::fixed("1g.10gb")), span(0, 30))])
            .check(&["idle - none A10 500000", "unknown - mig A10 500000"]);
    }

    #[test]
    fn maintenance_takes_what_is_unheld_and_unhealthy_keeps_the_holder() {
        let mut case = Case::new(&[("a", TimeSlicing, Declared(250_000), span(0, 60))]);
        case.states = vec![
            DeclaredState { kind: DeclaredKind::Maintenance, slice: None, span: span(0, 30) },
            DeclaredState { kind: DeclaredKind::Unhealthy, slice: None, span: span(15, 45) },
        ];
        case.check(&[
            "used a time_slicing A10:share 125000",
            "idle - none A10 187500",
            "unhealthy - none A10 187500",
            "unhealthy a time_slicing A10:share 125000",
            "maintenance - none A10 375000",
        ]);
    }
}
