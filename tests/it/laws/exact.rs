//! A second computation of who held how much, as plain as it can be and without the domain's own code.
//!
//! Time is cut at every edge that anything has; at each piece's first instant the rules are applied as DESIGN §3
//! states them, and nanoseconds × share are added up as fractions of big integers. Nothing is ever rounded but
//! integrals, which a measured share has to be.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use fatia::domain::allocation::PartState;
use fatia::domain::device::{DeclaredKind, SharingMode};
use fatia::domain::ids::Name;
use fatia::domain::mapping::{Comparison, Owner};
use fatia::domain::period::Span;
use fatia::domain::units::Instant;
use fatia::domain::usage::{CoverageOf, Evidence, EvidenceField, Slice, Source, SourceRank};
use num_bigint::BigInt;
use num_integer::Integer as _;

use super::shares::{Kind, Twig, divide};
use super::world::{Energy, Existing, FleetDevice, Holding, Measured, World};

/// A fraction of big integers in lowest terms; the denominator is positive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Exact {
    numerator: BigInt,
    denominator: BigInt,
}

impl Exact {
    pub(super) fn of(numerator: impl Into<BigInt>, denominator: impl Into<BigInt>) -> Self {
        let (numerator, denominator) = (numerator.into(), denominator.into());
        let common = numerator.gcd(&denominator);
        Self { numerator: numerator / &common, denominator: denominator / &common }
    }

    pub(super) fn zero() -> Self {
        Self::of(0, 1)
    }

    pub(super) fn one() -> Self {
        Self::of(1, 1)
    }

    pub(super) fn is_zero(&self) -> bool {
        self.numerator == BigInt::from(0)
    }

    pub(super) fn plus(&self, other: &Self) -> Self {
        let (a, b) = (&self.numerator * &other.denominator, &other.numerator * &self.denominator);
        Self::of(a + b, &self.denominator * &other.denominator)
    }

    pub(super) fn minus(&self, other: &Self) -> Self {
        let (a, b) = (&self.numerator * &other.denominator, &other.numerator * &self.denominator);
        Self::of(a - b, &self.denominator * &other.denominator)
    }

    pub(super) fn times(&self, other: &Self) -> Self {
        Self::of(&self.numerator * &other.numerator, &self.denominator * &other.denominator)
    }

    pub(super) fn over(&self, other: &Self) -> Self {
        Self::of(&self.numerator * &other.denominator, &self.denominator * &other.numerator)
    }

    pub(super) fn sum<'a>(all: impl IntoIterator<Item = &'a Self>) -> Self {
        all.into_iter().fold(Self::zero(), |sum, each| sum.plus(each))
    }

    /// What is above zero of it.
    pub(super) fn positive(self) -> Self {
        self.max(Self::zero())
    }

    /// The largest whole number that is not above this.
    pub(super) fn floor(&self) -> i64 {
        i64::try_from(self.numerator.div_floor(&self.denominator)).unwrap()
    }
}

impl PartialOrd for Exact {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Exact {
    fn cmp(&self, other: &Self) -> Ordering {
        (&self.numerator * &other.denominator).cmp(&(&other.numerator * &self.denominator))
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
    pub estimated: bool,
}

/// What a leaf has of a device-hour.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Has {
    pub micro_hours: Exact,
    pub millijoules: Exact,
}

/// A device-hour by the naive computation.
pub(super) struct Divided {
    pub leaves: BTreeMap<Leaf, Has>,
    /// The energy of in-service time, and that time.
    pub millijoules: Exact,
    pub metered_nanos: i64,
}

/// The exact micro-GPU-hours of each leaf of a device in `hour`.
pub(super) fn leaves(world: &World, device: &FleetDevice, hour: Span) -> BTreeMap<Leaf, Exact> {
    let leaves = divided(world, device, hour, None).leaves;
    leaves.into_iter().map(|(leaf, has)| (leaf, has.micro_hours)).collect()
}

/// The division of a device-hour, where the board takes `baseline` milliwatts when nobody works.
pub(super) fn divided(world: &World, device: &FleetDevice, hour: Span, baseline: Option<i64>) -> Divided {
    let said = Said::of(world, device);
    let mut of_hour = Divided { leaves: BTreeMap::new(), millijoules: Exact::zero(), metered_nanos: 0 };
    for (span, moment) in said.segments(hour) {
        let twigs = match &moment {
            Some(moment) => divide(world, device, span, moment),
            None => vec![Twig::unknown(None)],
        };
        let energy = moment.as_ref().and_then(|moment| moment.energy);
        let of_twigs = energy.map(|energy| energy_of(&twigs, energy, baseline.unwrap_or(0), span));
        for (start, end) in elementary(world, device, span) {
            if !device.services.iter().any(|each| holds(*each, start)) || device.counted_to <= start {
                continue;
            }
            let nanos = end.micros_since(start) * 1_000;
            let of_span = Exact::of(nanos, span.nanos());
            if let Some(energy) = energy {
                of_hour.millijoules = of_hour.millijoules.plus(&of_span.times(&Exact::of(energy, 1)));
                of_hour.metered_nanos += nanos;
            }
            let covered = moment.as_ref().is_some_and(|moment| moment.covered);
            for (number, twig) in twigs.iter().enumerate() {
                let leaf = leaf(world, device, twig, covered, start);
                let has = of_hour
                    .leaves
                    .entry(leaf)
                    .or_insert_with(|| Has { micro_hours: Exact::zero(), millijoules: Exact::zero() });
                has.micro_hours = has.micro_hours.plus(&twig.share.times(&Exact::of(nanos, 3_600_000)));
                if let Some(of_twigs) = &of_twigs {
                    has.millijoules = has.millijoules.plus(&of_twigs[number].times(&of_span));
                }
            }
        }
    }
    of_hour
}

/// Baseline by share; what is beyond it by measured activity where each holder has one, else by held share.
fn energy_of(twigs: &[Twig<'_>], energy: i64, baseline: i64, span: Span) -> Vec<Exact> {
    let all = Exact::of(energy, 1);
    let seconds = Exact::of(span.nanos(), 1_000_000_000);
    let base = Exact::of(baseline, 1).times(&seconds).min(all.clone());
    let beyond = all.minus(&base);
    let held = |twig: &&Twig<'_>| twig.evidence.is_some();
    // What a holder held and did not use has no activity of its own.
    let is_measured =
        twigs.iter().filter(held).all(|twig| twig.activity.is_some() || twig.kind == Kind::HeldUnused);
    let activity = |twig: &Twig<'_>| twig.activity.clone().filter(|_| held(&twig)).unwrap_or(Exact::zero());
    let active: Vec<Exact> = twigs.iter().map(activity).collect();
    let weights: Vec<Exact> = if is_measured && !Exact::sum(&active).is_zero() {
        active
    } else if twigs.iter().any(|twig| held(&twig)) {
        twigs.iter().map(|twig| if held(&twig) { twig.share.clone() } else { Exact::zero() }).collect()
    } else {
        twigs.iter().map(|twig| twig.share.clone()).collect()
    };
    let sum = Exact::sum(&weights);
    let of = |(twig, weight): (&Twig<'_>, &Exact)| {
        let more = if sum.is_zero() { Exact::zero() } else { beyond.times(weight).over(&sum) };
        twig.share.times(&base).plus(&more)
    };
    twigs.iter().zip(&weights).map(of).collect()
}

/// The first state that applies, and what is told of who holds.
fn leaf(world: &World, device: &FleetDevice, twig: &Twig<'_>, covered: bool, now: Instant) -> Leaf {
    let declared = |kind| {
        device.states.iter().any(|state| {
            let concerns = state.slice.as_ref().is_none_or(|slice| twig.path.contains(&slice));
            state.kind == kind && holds(state.span, now) && concerns
        })
    };
    // What is unknown for the sake of a slice of unknown size is taken as held.
    let is_silence = twig.kind == Kind::Unknown && twig.mode.is_none();
    let is_held = twig.evidence.is_some() || (twig.kind == Kind::Unknown && !is_silence);
    let work = if is_held { DeclaredKind::Migration } else { DeclaredKind::Maintenance };
    let state = if declared(work) {
        PartState::Maintenance
    } else if declared(DeclaredKind::Unhealthy) {
        PartState::Unhealthy
    } else {
        match twig.kind {
            Kind::Used => PartState::Used,
            Kind::HeldUnused => PartState::HeldUnused,
            Kind::Idle if covered => PartState::Idle,
            Kind::Stranded if covered => PartState::Stranded,
            Kind::Idle | Kind::Stranded | Kind::Unknown => PartState::Unknown,
        }
    };
    // What is unknown for want of a word about the rest is not told apart.
    let is_blank = state == PartState::Unknown && twig.kind != Kind::Unknown;
    Leaf {
        state,
        slice: twig.slice.filter(|_| !is_blank).cloned(),
        evidence: twig.evidence.cloned(),
        owner: twig.evidence.map(|seen| owner(world, seen, now)),
        mode: twig.mode.filter(|_| !is_blank),
        estimated: twig.estimated,
    }
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
    let spans = said.elementary(hour).into_iter();
    spans
        .map(|span| {
            let believed = said.believed(span.start());
            let claiming = said.holdings.iter().filter(|holding| holds(holding.span, span.start()));
            let others = claiming.map(|holding| &holding.source).filter(|source| Some(*source) != believed);
            (span, believed, others.collect())
        })
        .collect()
}

/// The spans of `hour` in which a segment should be, maximal, and nothing where nobody said anything.
pub(super) fn spans_of_segments(world: &World, device: &FleetDevice, hour: Span) -> Vec<Span> {
    let segments = Said::of(world, device).segments(hour).into_iter();
    segments.filter(|(_, moment)| moment.is_some()).map(|(span, _)| span).collect()
}

/// What stands of a device after all amendments, and who vouches for it when.
struct Said<'a> {
    holdings: Vec<&'a Holding>,
    layouts: Vec<&'a Existing>,
    vouched: Vec<(&'a Source, Span)>,
    uses: Vec<&'a Measured>,
    energies: Vec<&'a Energy>,
    metered: Vec<(&'a Source, Span)>,
}

/// What was measured of a slice or of a holder of it: activity and memory held.
type Integrals = (Option<i64>, Option<i64>);

/// What the believed sources say of one span.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Moment<'a> {
    believed: Option<&'a Source>,
    covered: bool,
    /// Sorted; who holds twice stands twice.
    pub held: Vec<(&'a Slice, &'a Evidence)>,
    pub exist: BTreeSet<&'a Slice>,
    pub measures: BTreeMap<(&'a Slice, Option<&'a Evidence>), Integrals>,
    energy: Option<i64>,
}

impl Moment<'_> {
    /// Whether nothing but figures differs.
    fn goes_on_as(&self, next: &Self) -> bool {
        let kinds = |moment: &Self| {
            let each = moment.measures.iter();
            let kinds = each.map(|((slice, seen), (active, held))| {
                ((*slice).clone(), seen.cloned(), active.is_some(), held.is_some())
            });
            (kinds.collect::<Vec<_>>(), moment.energy.is_some())
        };
        let rest = |moment: &Self| (moment.believed.cloned(), moment.covered);
        rest(self) == rest(next)
            && self.held == next.held
            && self.exist == next.exist
            && kinds(self) == kinds(next)
    }

    fn add(&mut self, next: &Self) {
        for (key, (active, held)) in &next.measures {
            let sum = self.measures.get_mut(key).unwrap();
            *sum = (plus(sum.0, *active), plus(sum.1, *held));
        }
        self.energy = plus(self.energy, next.energy);
    }
}

fn plus(one: Option<i64>, other: Option<i64>) -> Option<i64> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one + other),
        (one, other) => one.or(other),
    }
}

/// What of an integral lies in `piece`: what is reached at its end less what is reached at its start, both floored.
fn cut(integral: i64, whole: Span, piece: Span) -> i64 {
    let length = i128::from(whole.end().micros() - whole.start().micros());
    let reached =
        |at: Instant| i128::from(integral) * i128::from(at.micros() - whole.start().micros()) / length;
    i64::try_from(reached(piece.end()) - reached(piece.start())).unwrap()
}

impl<'a> Said<'a> {
    fn of(world: &'a World, device: &FleetDevice) -> Self {
        let uuid = &device.device.uuid;
        // A guest sees what it uses alone.
        let may = |source: &Source| source.rank != SourceRank::GuestAgent;
        let all: Vec<&Holding> =
            world.holdings.iter().filter(|each| each.slice.device == *uuid && may(&each.source)).collect();
        let layouts: Vec<&Existing> =
            world.layouts.iter().filter(|each| each.slice.device == *uuid && may(&each.source)).collect();
        let covers = |of: CoverageOf| {
            let here = world
                .covers
                .iter()
                .filter(move |each| each.coverage.of == of && each.coverage.device == *uuid);
            here.map(|cover| (&cover.source, cover.coverage.span))
        };
        let mut uses: Vec<&Measured> = Vec::new();
        for each in world.uses.iter().filter(|each| each.slice.device == *uuid) {
            if !uses.contains(&each) {
                uses.push(each);
            }
        }
        Self {
            holdings: all.iter().copied().filter(|holding| !is_amended(holding, &all)).collect(),
            layouts: layouts.iter().copied().filter(|each| !is_amended_layout(each, &layouts)).collect(),
            vouched: covers(CoverageOf::Holding).filter(|(source, _)| may(source)).collect(),
            uses,
            energies: world.energies.iter().filter(|each| each.row.device == *uuid).collect(),
            metered: covers(CoverageOf::Use).collect(),
        }
    }

    /// Whose word counts: of those who say anything, the most trusted.
    fn believed(&self, now: Instant) -> Option<&'a Source> {
        let claiming = self.holdings.iter().filter(|each| holds(each.span, now)).map(|each| &each.source);
        let vouching = self.vouched.iter().filter(|(_, span)| holds(*span, now)).map(|(source, _)| *source);
        claiming.chain(vouching).min_by_key(|source| (source.rank, &source.sender))
    }

    /// The same for what was used.
    fn believed_for_use(&self, now: Instant, hour: Span) -> Option<&'a Source> {
        if !self.uses.iter().any(|each| each.span.meets(hour))
            && !self.energies.iter().any(|each| each.row.span.meets(hour))
        {
            return None;
        }
        // A counter of energy says nothing about use.
        let using = self.uses.iter().filter(|each| holds(each.span, now)).map(|each| &each.source);
        let vouching = self.metered.iter().filter(|(_, span)| holds(*span, now)).map(|(source, _)| *source);
        using.chain(vouching).min_by_key(|source| (source.rank, &source.sender))
    }

    fn elementary(&self, hour: Span) -> Vec<Span> {
        let mut edges = vec![hour.start(), hour.end()];
        let mut of = |span: Span| edges.extend([span.start(), span.end()]);
        self.holdings.iter().for_each(|each| of(each.span));
        self.layouts.iter().for_each(|each| of(each.span));
        self.vouched.iter().chain(&self.metered).for_each(|(_, span)| of(*span));
        self.uses.iter().for_each(|each| of(each.span));
        self.energies.iter().for_each(|each| of(each.row.span));
        pieces(edges, hour).into_iter().map(|(start, end)| Span::new(start, end).unwrap()).collect()
    }

    fn moment(&self, span: Span, hour: Span) -> Option<Moment<'a>> {
        let now = span.start();
        let believed = self.believed(now);
        let is_believed = |source: &Source| Some(source) == believed;
        // One holding is one uncut span of one holder, however often it is stated.
        let held: BTreeSet<(&Slice, &Evidence, Span)> = self
            .holdings
            .iter()
            .filter(|each| is_believed(&each.source) && holds(each.span, now))
            .map(|each| (&each.slice, &each.evidence, each.uncut))
            .collect();
        let exist = self.layouts.iter().filter(|each| is_believed(&each.source) && holds(each.span, now));
        let meter = self.believed_for_use(now, hour);
        let mut measures: BTreeMap<(&Slice, Option<&Evidence>), Integrals> = BTreeMap::new();
        for each in self.uses.iter().filter(|each| Some(&each.source) == meter && holds(each.span, now)) {
            let of = |integral: Option<i64>| integral.map(|all| cut(all, each.span, span));
            let sum = measures.entry((&each.slice, each.evidence.as_ref())).or_default();
            *sum = (plus(sum.0, of(each.active_nanos)), plus(sum.1, of(each.memory_byte_seconds)));
        }
        let counted = self.energies.iter().filter(|each| holds(each.row.span, now));
        let energy = counted
            .min_by_key(|each| (each.source.rank, &each.source.sender, each.row.span, each.row.millijoules));
        let moment = Moment {
            believed,
            covered: self.vouched.iter().any(|(source, span)| is_believed(source) && holds(*span, now)),
            held: held.into_iter().map(|(slice, evidence, _)| (slice, evidence)).collect(),
            exist: exist.map(|each| &each.slice).collect(),
            measures,
            energy: energy.map(|each| cut(each.row.millijoules, each.row.span, span)),
        };
        let is_silent = believed.is_none() && moment.measures.is_empty() && moment.energy.is_none();
        (!is_silent).then_some(moment)
    }

    /// The hour in maximal spans of constant account.
    fn segments(&self, hour: Span) -> Vec<(Span, Option<Moment<'a>>)> {
        let mut segments: Vec<(Span, Option<Moment<'a>>)> = Vec::new();
        for span in self.elementary(hour) {
            let next = self.moment(span, hour);
            match (segments.last_mut(), next) {
                (Some((whole, Some(last))), Some(next)) if last.goes_on_as(&next) => {
                    *whole = Span::new(whole.start(), span.end()).unwrap();
                    last.add(&next);
                }
                (_, next) => segments.push((span, next)),
            }
        }
        segments
    }
}

/// Whether a later import of the same source says something else of the same workload, slice and uncut start.
fn is_amended(holding: &Holding, all: &[&Holding]) -> bool {
    let is_later = |other: &&Holding| {
        other.source == holding.source
            && workload(&other.evidence) == workload(&holding.evidence)
            // Lines of two slices leave each other alone.
            && (other.slice.id == holding.slice.id || other.slice.id.is_none() || holding.slice.id.is_none())
            && other.uncut.start() == holding.uncut.start()
            && other.number > holding.number
    };
    holding.source.rank == SourceRank::Import && all.iter().any(is_later)
}

/// The same of an existing slice.
fn is_amended_layout(existing: &Existing, all: &[&Existing]) -> bool {
    let is_later = |other: &&Existing| {
        other.source == existing.source
            && other.slice.id == existing.slice.id
            && other.uncut.start() == existing.uncut.start()
            && other.number > existing.number
    };
    existing.source.rank == SourceRank::Import && all.iter().any(is_later)
}

fn workload(evidence: &Evidence) -> Option<&Name> {
    use EvidenceField::{Cgroup, Job, Pod, Process, User, Vm, Workload};
    let fields = [Workload, Pod, Vm, Job, Cgroup, Process, User];
    fields.iter().find_map(|field| evidence.iter().find(|(seen, _)| seen == field).map(|(_, value)| value))
}

/// A segment's span, cut where the device, its states or the rules change.
fn elementary(world: &World, device: &FleetDevice, span: Span) -> Vec<(Instant, Instant)> {
    let mut edges = vec![span.start(), span.end(), device.counted_to];
    let mut of = |span: Span| edges.extend([span.start(), span.end()]);
    device.services.iter().for_each(|span| of(*span));
    device.states.iter().for_each(|state| of(state.span));
    world.rules.iter().for_each(|rule| of(rule.effective));
    pieces(edges, span)
}

fn pieces(mut edges: Vec<Instant>, whole: Span) -> Vec<(Instant, Instant)> {
    edges.retain(|edge| whole.start() <= *edge && *edge <= whole.end());
    edges.sort_unstable();
    edges.dedup();
    edges.windows(2).map(|pair| (pair[0], pair[1])).collect()
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
