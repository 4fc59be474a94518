//! A second computation of who held how much, as plain as it can be and without the domain's own code.
//!
//! Time is cut at every edge that anything has; at each piece's first instant the rules are applied as DESIGN §3
//! states them, and nanoseconds × share are added up as fractions of big integers. Nothing is ever rounded.

use std::collections::{BTreeMap, BTreeSet};

use fatia::domain::allocation::PartState;
use fatia::domain::device::{DeclaredKind, SharingMode};
use fatia::domain::ids::Name;
use fatia::domain::mapping::{Comparison, Owner};
use fatia::domain::period::Span;
use fatia::domain::units::Instant;
use fatia::domain::usage::{CoverageOf, Evidence, EvidenceField, Slice, SliceSize, Source, SourceRank};
use num_bigint::BigInt;
use num_integer::Integer as _;

use super::world::{FleetDevice, Holding, World};

/// A fraction of big integers; the denominator is positive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Exact {
    numerator: BigInt,
    denominator: BigInt,
}

impl Exact {
    fn zero() -> Self {
        Self { numerator: 0.into(), denominator: 1.into() }
    }

    fn plus(&self, numerator: i128, denominator: i128) -> Self {
        let (n, d) = (BigInt::from(numerator), BigInt::from(denominator));
        let (numerator, denominator) = (&self.numerator * &d + n * &self.denominator, &self.denominator * d);
        let common = numerator.gcd(&denominator);
        Self { numerator: numerator / &common, denominator: denominator / common }
    }

    /// Whether `whole` is the largest whole number that is not above this.
    pub(super) fn floors_to(&self, whole: i64) -> bool {
        let left = &self.numerator - BigInt::from(whole) * &self.denominator;
        BigInt::from(0) <= left && left < self.denominator
    }
}

/// What tells one part of a device-hour from another, by value.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Leaf {
    pub state: PartState,
    pub slice: Option<Slice>,
    pub evidence: Option<Evidence>,
    pub owner: Option<Owner>,
    pub mode: Option<SharingMode>,
}

/// The exact micro-GPU-hours of each leaf of a device in `hour`.
pub(super) fn leaves(world: &World, device: &FleetDevice, hour: Span) -> BTreeMap<Leaf, Exact> {
    let said = Said::of(world, device);
    let mut leaves: BTreeMap<Leaf, Exact> = BTreeMap::new();
    for (start, end) in elementary(world, device, &said, hour) {
        let nanos = i128::from(end.micros() - start.micros()) * 1_000;
        for (leaf, numerator, denominator) in account(world, device, &said, start) {
            let sum = leaves.entry(leaf).or_insert_with(Exact::zero);
            *sum = sum.plus(nanos * numerator, denominator * 3_600_000);
        }
    }
    leaves
}

/// The in-service nanoseconds of a device in `hour`.
pub(super) fn in_service_nanos(device: &FleetDevice, hour: Span) -> i64 {
    let each = device.services.iter().map(|service| {
        let end = service.end().min(device.counted_to).min(hour.end());
        (end.micros() - service.start().max(hour.start()).micros()).max(0)
    });
    each.sum::<i64>() * 1_000
}

/// Each elementary span of `hour` with who is believed in it, and whose holdings are set aside.
pub(super) fn trust<'a>(
    world: &'a World,
    device: &FleetDevice,
    hour: Span,
) -> Vec<(Span, Option<&'a Source>, BTreeSet<&'a Source>)> {
    let said = Said::of(world, device);
    let spans = elementary(world, device, &said, hour).into_iter();
    spans
        .map(|(start, end)| {
            let believed = said.believed(start);
            let claiming = said.holdings.iter().filter(|holding| holds(holding.span, start));
            let others = claiming.map(|holding| &holding.source).filter(|source| Some(*source) != believed);
            (Span::new(start, end).unwrap(), believed, others.collect())
        })
        .collect()
}

/// What stands of a device after all amendments, and who vouches for it when.
struct Said<'a> {
    holdings: Vec<&'a Holding>,
    vouched: Vec<(&'a Source, Span)>,
}

impl<'a> Said<'a> {
    fn of(world: &'a World, device: &FleetDevice) -> Self {
        let here = |holding: &&Holding| holding.slice.device == device.device.uuid;
        let all: Vec<&Holding> = world.holdings.iter().filter(here).collect();
        let covers = world.covers.iter().filter(|cover| {
            cover.coverage.of == CoverageOf::Holding && cover.coverage.device == device.device.uuid
        });
        Self {
            holdings: all.iter().copied().filter(|holding| !is_amended(holding, &all)).collect(),
            vouched: covers.map(|cover| (&cover.source, cover.coverage.span)).collect(),
        }
    }
}

impl<'a> Said<'a> {
    /// Whose word counts: of those who say anything, the most trusted.
    fn believed(&self, now: Instant) -> Option<&'a Source> {
        let claiming = self.holdings.iter().filter(|holding| holds(holding.span, now));
        let vouching = self.vouched.iter().filter(|(_, span)| holds(*span, now));
        let speaking = claiming.map(|holding| &holding.source).chain(vouching.map(|(source, _)| *source));
        speaking.min_by_key(|source| (source.rank, &source.sender))
    }
}

/// Whether a later import of the same source says something else of the same workload and uncut start.
fn is_amended(holding: &Holding, all: &[&Holding]) -> bool {
    let is_later = |other: &&Holding| {
        other.source == holding.source
            && workload(&other.evidence) == workload(&holding.evidence)
            && other.uncut.start() == holding.uncut.start()
            && other.number > holding.number
    };
    holding.source.rank == SourceRank::Import && all.iter().any(is_later)
}

fn workload(evidence: &Evidence) -> Option<&Name> {
    use EvidenceField::{Cgroup, Job, Pod, Process, User, Vm, Workload};
    let fields = [Workload, Pod, Vm, Job, Cgroup, Process, User];
    fields.iter().find_map(|field| evidence.iter().find(|(seen, _)| seen == field).map(|(_, value)| value))
}

fn elementary(world: &World, device: &FleetDevice, said: &Said<'_>, hour: Span) -> Vec<(Instant, Instant)> {
    let mut edges = vec![hour.start(), hour.end(), device.counted_to];
    let mut of = |span: Span| edges.extend([span.start(), span.end()]);
    device.services.iter().for_each(|span| of(*span));
    device.states.iter().for_each(|state| of(state.span));
    said.holdings.iter().for_each(|holding| of(holding.span));
    said.vouched.iter().for_each(|(_, span)| of(*span));
    world.rules.iter().for_each(|rule| of(rule.effective));
    edges.retain(|edge| hour.start() <= *edge && *edge <= hour.end());
    edges.sort_unstable();
    edges.dedup();
    edges.windows(2).map(|pair| (pair[0], pair[1])).collect()
}

/// The shares of all leaves at one instant: leaf, numerator, denominator.
fn account(world: &World, device: &FleetDevice, said: &Said<'_>, now: Instant) -> Vec<(Leaf, i128, i128)> {
    let is_in_service = device.services.iter().any(|span| holds(*span, now)) && now < device.counted_to;
    if !is_in_service {
        return Vec::new();
    }
    let declared = |kind| device.states.iter().any(|state| state.kind == kind && holds(state.span, now));
    let claiming = said.holdings.iter().filter(|holding| holds(holding.span, now));
    let believed = said.believed(now);
    let is_vouched = said.vouched.iter().any(|(source, span)| holds(*span, now) && Some(*source) == believed);
    // One holding is one uncut span of one holder, however often it is stated.
    let held: BTreeSet<(&Slice, &Evidence, Span)> = claiming
        .filter(|holding| Some(&holding.source) == believed)
        .map(|holding| (&holding.slice, &holding.evidence, holding.uncut))
        .collect();
    let parts_of_a_million = |slice: &Slice| match slice.size {
        SliceSize::Whole => Some(1_000_000),
        SliceSize::Declared(ppm) => Some(i128::from(ppm)),
        SliceSize::Profile(_) => None,
    };
    let sum: i128 = held.iter().filter_map(|(slice, ..)| parts_of_a_million(slice)).sum();
    let denominator = sum.max(1_000_000);
    let held_state = if declared(DeclaredKind::Unhealthy) { PartState::Unhealthy } else { PartState::Used };
    let mut leaves = Vec::new();
    for (slice, evidence, _) in &held {
        if let Some(numerator) = parts_of_a_million(slice) {
            let leaf = Leaf {
                state: held_state,
                slice: Some((*slice).clone()),
                evidence: Some((*evidence).clone()),
                owner: Some(owner(world, evidence, now)),
                mode: Some(slice.mode),
            };
            leaves.push((leaf, numerator, denominator));
        }
    }
    // Of an unknown profile nothing is known but that the rest cannot be called idle.
    let unknown = held.iter().map(|(slice, ..)| *slice).find(|slice| parts_of_a_million(slice).is_none());
    let state = if declared(DeclaredKind::Maintenance) {
        PartState::Maintenance
    } else if declared(DeclaredKind::Unhealthy) {
        PartState::Unhealthy
    } else if unknown.is_some() || !is_vouched {
        PartState::Unknown
    } else {
        PartState::Idle
    };
    let mode = unknown.map(|slice| slice.mode);
    let rest = Leaf { state, slice: None, evidence: None, owner: None, mode };
    if sum < denominator {
        leaves.push((rest, denominator - sum, denominator));
    }
    leaves
}

fn holds(span: Span, now: Instant) -> bool {
    span.start() <= now && now < span.end()
}

/// The first rule by order whose time has come and whose conditions are met; else what an import declared.
fn owner(world: &World, evidence: &Evidence, now: Instant) -> Owner {
    let seen = |field| evidence.iter().find(|(each, _)| *each == field).map(|(_, value)| value);
    let fits = world.rules.iter().filter(|rule| {
        holds(rule.effective, now)
            && rule.conditions.iter().all(|condition| {
                seen(condition.field).is_some_and(|value| match condition.comparison {
                    Comparison::Equal => value == &condition.value,
                    Comparison::Prefix => value.as_str().starts_with(condition.value.as_str()),
                })
            })
    });
    match (fits.min_by_key(|rule| rule.order), seen(EvidenceField::Tenant)) {
        (Some(rule), _) => Owner { tenant: Some(rule.tenant.clone()), project: rule.project.clone() },
        (None, Some(tenant)) => Owner {
            tenant: Some(tenant.clone()),
            project: seen(EvidenceField::Project).cloned().unwrap_or(Name::fixed("default")),
        },
        (None, None) => Owner { tenant: None, project: Name::fixed("unmapped") },
    }
}
