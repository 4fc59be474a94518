//! Random fleets: devices in and out of service, what sources say of them, mapping rules and prices.
//!
//! Everything happens on a short stage around an edge that a zone makes interesting, so that random instants
//! do meet each other and the edges of hours, days and months.

use std::fmt;

use fatia::domain::device::{DeclaredKind, DeclaredState, Device, SharingMode};
use fatia::domain::ids::Name;
use fatia::domain::mapping::{Comparison, Condition, Rule};
use fatia::domain::money::{Currency, UnitPrice};
use fatia::domain::period::{BillingZone, Month, Span};
use fatia::domain::policy::Policy;
use fatia::domain::price::{Book, PriceVersion};
use fatia::domain::units::Instant;
use fatia::domain::usage::{
    Batch, Coverage, CoverageOf, EnergyRow, Evidence, EvidenceField, LayoutRow, Row, Slice, SliceSize,
    Source, SourceRank, UseRow,
};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

pub(super) const SECOND: i64 = 1_000_000;
pub(super) const MINUTE: i64 = 60 * SECOND;
pub(super) const HOUR: i64 = 60 * MINUTE;
/// Length of the stage.
pub(super) const STAGE: i64 = 12 * HOUR;
/// How many nodes a fleet has; devices take turns.
pub(super) const NODES: usize = 2;

/// Zone, month and the stage's first instant: each stage holds an edge at which calendars go wrong.
const PLACES: [(&str, &str, &str); 9] = [
    ("UTC", "2026-06", "2026-06-30T18:00:00Z"),
    // The day of 23 hours that begins at 01:00, and the one of 25.
    ("America/Sao_Paulo", "2018-11", "2018-11-03T21:00:00Z"),
    ("America/Sao_Paulo", "2019-02", "2019-02-16T21:00:00Z"),
    ("Europe/Lisbon", "2026-03", "2026-03-28T19:00:00Z"),
    // Days of 23.5 and 24.5 hours: a billing hour of 30 minutes.
    ("Australia/Lord_Howe", "2026-10", "2026-10-04T06:00:00Z"),
    ("Australia/Lord_Howe", "2026-04", "2026-04-05T06:00:00Z"),
    // Half an hour beside UTC, at the month's first instant.
    ("Asia/Kolkata", "2026-06", "2026-05-31T12:30:00Z"),
    // Clocks fall back across midnight.
    ("America/St_Johns", "2010-11", "2010-11-06T21:30:00Z"),
    // 2011-12-30 never was.
    ("Pacific/Apia", "2011-12", "2011-12-30T04:00:00Z"),
];

/// Where and when a fleet is looked at.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub zone: BillingZone,
    pub month: Month,
    pub start: Instant,
}

impl Place {
    pub(super) fn all() -> impl Strategy<Value = Self> {
        (0..PLACES.len()).prop_map(Self::number)
    }

    pub(super) fn number(number: usize) -> Self {
        let (zone, month, start) = PLACES[number];
        Self {
            zone: BillingZone::parse(zone).unwrap(),
            month: Month::parse(month).unwrap(),
            start: Instant::parse(start).unwrap(),
        }
    }

    pub(super) fn at(&self, micros: i64) -> Instant {
        self.start.plus_micros(micros)
    }

    pub(super) fn span(&self, (a, b): (i64, i64)) -> Span {
        Span::new(self.at(a.min(b)), self.at(a.max(b))).unwrap()
    }
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} from {}", self.zone, self.month, self.start)
    }
}

/// A device of the fleet.
#[derive(Debug, Clone)]
pub(super) struct FleetDevice {
    pub device: Device,
    /// Memory in MiB as an inventory states it.
    pub memory_mib: Option<u32>,
    pub node: usize,
    /// In-service spans as stored: sorted and disjoint; neighbours may touch.
    pub services: Vec<Span>,
    /// Until when its time is counted.
    pub counted_to: Instant,
    pub states: Vec<DeclaredState>,
}

impl FleetDevice {
    /// In-service time as far as it is counted.
    pub(super) fn in_service(&self) -> Vec<Span> {
        let counted = |span: &Span| Span::clamped(span.start(), span.end().min(self.counted_to));
        self.services.iter().map(counted).filter(|span| !span.is_empty()).collect()
    }
}

/// A row as a source states it, without the tables of its batch.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Holding {
    pub source: Source,
    pub number: i64,
    pub slice: Slice,
    pub evidence: Evidence,
    pub span: Span,
    pub uncut: Span,
}

/// Coverage as a source states it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Cover {
    pub source: Source,
    pub number: i64,
    pub coverage: Coverage,
}

/// An existing slice as a source states it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Existing {
    pub source: Source,
    pub number: i64,
    pub slice: Slice,
    pub span: Span,
    pub uncut: Span,
}

/// What was measured, as a source states it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Measured {
    pub source: Source,
    pub slice: Slice,
    pub evidence: Option<Evidence>,
    pub span: Span,
    pub active_nanos: Option<i64>,
    pub memory_byte_seconds: Option<i64>,
}

/// The energy that a device took, as a source states it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Energy {
    pub source: Source,
    pub row: EnergyRow,
}

/// A fleet, and everything that is said of it.
#[derive(Debug, Clone)]
pub(super) struct World {
    pub place: Place,
    pub devices: Vec<FleetDevice>,
    pub holdings: Vec<Holding>,
    pub covers: Vec<Cover>,
    pub rules: Vec<Rule>,
    pub versions: Vec<PriceVersion>,
    pub layouts: Vec<Existing>,
    pub uses: Vec<Measured>,
    pub energies: Vec<Energy>,
    /// What holds at all times.
    pub policy: Policy,
}

/// A decoded batch with what its signature says.
#[derive(Debug, Clone)]
pub(super) struct Window {
    pub source: Source,
    pub number: i64,
    pub batch: Batch,
}

impl World {
    /// Devices of which nobody says anything.
    pub(super) fn of(place: Place, devices: Vec<FleetDevice>) -> Self {
        Self {
            place,
            devices,
            holdings: Vec::new(),
            covers: Vec::new(),
            rules: Vec::new(),
            versions: Vec::new(),
            layouts: Vec::new(),
            uses: Vec::new(),
            energies: Vec::new(),
            policy: Policy::default(),
        }
    }

    /// The plainest way to send what was said: one batch for each source and number.
    pub(super) fn windows(&self) -> Vec<Window> {
        let mut windows: Vec<Window> = Vec::new();
        for holding in &self.holdings {
            let batch = batch_of(&mut windows, &holding.source, holding.number);
            push_row(batch, holding);
        }
        for cover in &self.covers {
            batch_of(&mut windows, &cover.source, cover.number).coverage.push(cover.coverage.clone());
        }
        for existing in &self.layouts {
            push_layout(batch_of(&mut windows, &existing.source, existing.number), existing);
        }
        for measured in &self.uses {
            push_use(batch_of(&mut windows, &measured.source, 1), measured);
        }
        for energy in &self.energies {
            batch_of(&mut windows, &energy.source, 1).energy.push(energy.row.clone());
        }
        windows
    }
}

/// Adds a row of the layout with its own entry in the table.
pub(super) fn push_layout(batch: &mut Batch, existing: &Existing) {
    batch.slices.push(existing.slice.clone());
    let slice = batch.slices.len() - 1;
    batch.layout.push(LayoutRow { slice, span: existing.span, uncut: existing.uncut });
}

/// Adds a row of use with its own entries in the tables.
pub(super) fn push_use(batch: &mut Batch, measured: &Measured) {
    batch.slices.push(measured.slice.clone());
    batch.evidence.extend(measured.evidence.clone());
    batch.usage.push(UseRow {
        slice: batch.slices.len() - 1,
        evidence: measured.evidence.is_some().then(|| batch.evidence.len() - 1),
        span: measured.span,
        uncut_start: measured.span.start(),
        active_nanos: measured.active_nanos,
        memory_byte_seconds: measured.memory_byte_seconds,
    });
}

fn batch_of<'a>(windows: &'a mut Vec<Window>, source: &Source, number: i64) -> &'a mut Batch {
    let same = |window: &Window| window.source == *source && window.number == number;
    let at = windows.iter().position(same).unwrap_or_else(|| {
        windows.push(Window { source: source.clone(), number, batch: Batch::default() });
        windows.len() - 1
    });
    &mut windows[at].batch
}

/// Adds a row with its own entries in the tables.
pub(super) fn push_row(batch: &mut Batch, holding: &Holding) {
    batch.slices.push(holding.slice.clone());
    batch.evidence.push(holding.evidence.clone());
    let (slice, evidence) = (batch.slices.len() - 1, batch.evidence.len() - 1);
    batch.rows.push(Row { slice, evidence, span: holding.span, uncut: holding.uncut });
}

/// The rank of those whose batches have a number that counts.
pub(super) const IMPORT: SourceRank = SourceRank::Import;

pub(super) fn name(text: &str) -> Name {
    Name::parse(text).unwrap()
}

pub(super) fn usd() -> Currency {
    Currency::parse("USD").unwrap()
}

/// The same source comes as several ranks and senders, so that trust has something to decide.
pub(super) fn source(number: usize) -> Source {
    let (rank, sender) = [
        (SourceRank::Import, "slurm"),
        (SourceRank::HostAgent, "agent-7"),
        (SourceRank::Import, "history"),
        (SourceRank::Scheduler, "kubelet"),
        (SourceRank::GuestAgent, "guest-3"),
    ][number];
    Source { rank, sender: name(sender) }
}

pub(super) fn evidence(number: usize) -> Evidence {
    use EvidenceField::{Job, Namespace, Pod, Project, Tenant, User, Workload};
    let fields: &[(EvidenceField, &str)] = [
        &[(Workload, "w0"), (Tenant, "acme")][..],
        &[(Workload, "w1"), (Tenant, "acme"), (Project, "lab")],
        &[(Workload, "w2"), (Tenant, "zeta")],
        &[(Namespace, "team-a"), (Pod, "train-0")],
        &[(Namespace, "team-b"), (Pod, "train-0"), (User, "ana")],
        &[(Job, "417")],
        &[(Tenant, "acme")],
        &[],
    ][number];
    fields.iter().map(|(field, value)| (*field, name(value))).collect()
}
/// How many [`evidence`] there are.
pub(super) const EVIDENCE: usize = 8;

fn condition(number: usize) -> Condition {
    use EvidenceField::{Namespace, Pod, Tenant, User, Workload};
    let (field, comparison, value) = [
        (Namespace, Comparison::Prefix, "team-"),
        (Namespace, Comparison::Equal, "team-b"),
        (Pod, Comparison::Prefix, "train"),
        (User, Comparison::Equal, "ana"),
        (Tenant, Comparison::Equal, "acme"),
        (Workload, Comparison::Prefix, "w1"),
    ][number];
    Condition { field, comparison, value: name(value) }
}

/// An instant of the stage in microseconds from its start: mostly on a clock's marks, sometimes anywhere.
pub(super) fn at() -> impl Strategy<Value = i64> {
    prop_oneof![
        4 => (0..=STAGE / (15 * MINUTE)).prop_map(|quarter| quarter * 15 * MINUTE),
        2 => (0..=STAGE / MINUTE).prop_map(|minute| minute * MINUTE),
        2 => (0..=STAGE / SECOND).prop_map(|second| second * SECOND),
        2 => 0..=STAGE,
    ]
}

/// Sizes of slices: thirds of a whole that do not sum to one, millionths, whole devices, unknown profiles.
pub(super) fn size() -> impl Strategy<Value = SliceSize> {
    prop_oneof![
        3 => Just(SliceSize::Whole),
        3 => (0..4_usize).prop_map(|at| SliceSize::Declared([250_000, 460_000, 333_333, 142_857][at])),
        2 => (1..=1_000_000_u32).prop_map(SliceSize::Declared),
        1 => (0..2_usize).prop_map(|at| SliceSize::Profile(name(["1g.10gb", "3g.40gb"][at]))),
    ]
}

pub(super) fn mode() -> impl Strategy<Value = SharingMode> {
    (0..SharingMode::ALL.len()).prop_map(|at| SharingMode::ALL[at])
}

/// Spans of service.
#[derive(Debug, Clone)]
enum Service {
    /// Between the edges, where the mask says so.
    Intervals { edges: Vec<i64>, mask: u8 },
    /// Since three days before the stage, without an end.
    Open,
    /// Since the day before the month, without an end.
    Month,
}

#[derive(Debug, Clone)]
struct DevicePlan {
    model: usize,
    service: Service,
    counted_to: Option<i64>,
    states: Vec<(bool, (i64, i64))>,
}

fn device() -> impl Strategy<Value = DevicePlan> {
    let service = prop_oneof![
        12 => (vec(at(), 2..6), any::<u8>())
            .prop_map(|(edges, mask)| Service::Intervals { edges, mask: mask | 1 }),
        2 => Just(Service::Open),
        1 => Just(Service::Month),
    ];
    let states = vec((any::<bool>(), (at(), at())), 0..3);
    (0..3_usize, service, option::weighted(0.3, at()), states)
        .prop_map(|(model, service, counted_to, states)| DevicePlan { model, service, counted_to, states })
}

impl DevicePlan {
    fn place(self, number: usize, place: &Place) -> FleetDevice {
        let month = place.zone.month_span(place.month);
        let services = match self.service {
            Service::Intervals { mut edges, mask } => {
                edges.sort_unstable();
                edges.dedup();
                let inside = |(at, _): &(usize, &[i64])| mask >> at & 1 == 1;
                let pairs = edges.windows(2).enumerate().filter(inside);
                pairs.map(|(_, pair)| place.span((pair[0], pair[1]))).collect()
            }
            Service::Open => vec![Span::clamped(place.at(-72 * HOUR), Instant::MAX)],
            Service::Month => vec![Span::clamped(month.start().plus_micros(-24 * HOUR), Instant::MAX)],
        };
        let kind = |healthy| if healthy { DeclaredKind::Maintenance } else { DeclaredKind::Unhealthy };
        FleetDevice {
            device: Device {
                uuid: device_name(number),
                model: name(["A10", "H100-SXM", "L40S"][self.model]),
            },
            memory_mib: None,
            node: number % NODES,
            services,
            counted_to: match self.counted_to {
                Some(micros) => place.at(micros),
                None => month.end().max(place.at(STAGE)),
            },
            states: self
                .states
                .into_iter()
                .map(|(healthy, span)| DeclaredState {
                    kind: kind(healthy),
                    slice: None,
                    span: place.span(span),
                })
                .collect(),
        }
    }
}

pub(super) fn device_name(number: usize) -> Name {
    name(&format!("GPU-{number}"))
}

type HoldingPlan = (usize, i64, usize, (SharingMode, SliceSize), usize, (i64, i64));

fn holding() -> impl Strategy<Value = HoldingPlan> {
    (0..4_usize, 1..4_i64, 0..3_usize, (mode(), size()), 0..EVIDENCE, (at(), at()))
}

type CoverPlan = (usize, i64, usize, (i64, i64), bool);

fn cover() -> impl Strategy<Value = CoverPlan> {
    (0..4_usize, 1..4_i64, 0..3_usize, (at(), at()), prop::bool::weighted(0.9))
}

type RulePlan = (i64, Option<(i64, i64)>, Vec<usize>, usize);

fn rule() -> impl Strategy<Value = RulePlan> {
    (0..3_i64, option::weighted(0.7, (at(), at())), vec(0..6_usize, 0..3), 0..3_usize)
}

/// What holds from one price edge to the next: nothing, or prices for some models in each book.
type PricePlan = Option<[Option<i64>; 6]>;

fn price() -> impl Strategy<Value = PricePlan> {
    let scaled = prop_oneof![Just(0), Just(250_000_000), 1..=1_000_000_000_000_i64];
    let prices = prop::array::uniform6(option::weighted(0.8, scaled));
    // A version needs a price to be admitted.
    option::weighted(0.8, prices.prop_filter("no price", |prices| prices.iter().any(Option::is_some)))
}

fn versions(place: &Place, cuts: &[usize], plans: &[PricePlan]) -> Vec<PriceVersion> {
    let hours: Vec<Span> = place.zone.hours_meeting(place.span((0, STAGE))).collect();
    let mut edges: Vec<Instant> = cuts.iter().map(|cut| hours[cut % hours.len()].start()).collect();
    edges.extend([Instant::MIN, Instant::MAX]);
    edges.sort_unstable();
    edges.dedup();
    let keys: Vec<(Book, Name)> = Book::ALL
        .into_iter()
        .flat_map(|book| ["A10", "H100-SXM", "L40S"].map(|model| (book, name(model))))
        .collect();
    edges
        .windows(2)
        .zip(plans.iter().cycle())
        .enumerate()
        .filter_map(|(number, (pair, plan))| {
            let prices = keys.iter().zip((*plan)?);
            Some(PriceVersion {
                name: name(&format!("book-{number}")),
                revision: 1,
                effective: Span::new(pair[0], pair[1]).unwrap(),
                currency: usd(),
                prices: prices
                    .filter_map(|(key, scaled)| Some((key.clone(), UnitPrice::from_scaled(scaled?))))
                    .collect(),
                policy: Policy::default(),
            })
        })
        .collect()
}

/// Any fleet of up to three devices on two nodes.
pub(super) fn worlds() -> impl Strategy<Value = World> {
    worlds_of(0..14)
}

/// Any fleet with so many holdings.
pub(super) fn worlds_of(holdings: std::ops::Range<usize>) -> impl Strategy<Value = World> {
    (
        Place::all(),
        vec(device(), 1..4),
        vec(holding(), holdings),
        vec(cover(), 0..6),
        vec(rule(), 0..3),
        (vec(0..14_usize, 0..4), vec(price(), 1..5)),
    )
        .prop_map(|(place, devices, holdings, covers, rules, (cuts, prices))| {
            let count = devices.len();
            // An agent's batches have no number that counts.
            let number = |source: &Source, number| if source.rank == SourceRank::Import { number } else { 0 };
            World {
                place,
                devices: devices.into_iter().enumerate().map(|(at, plan)| plan.place(at, &place)).collect(),
                holdings: holdings
                    .into_iter()
                    .map(|(from, import, device, (mode, size), seen, span)| Holding {
                        number: number(&source(from), import),
                        source: source(from),
                        slice: Slice::plain(device_name(device % count), mode, size),
                        evidence: evidence(seen),
                        span: place.span(span),
                        uncut: place.span(span),
                    })
                    .collect(),
                covers: covers
                    .into_iter()
                    .map(|(from, import, device, span, holding)| Cover {
                        number: number(&source(from), import),
                        source: source(from),
                        coverage: Coverage {
                            device: device_name(device % count),
                            span: place.span(span),
                            of: if holding { CoverageOf::Holding } else { CoverageOf::Use },
                        },
                    })
                    .collect(),
                rules: rules
                    .into_iter()
                    .zip(0..)
                    .map(|((order, effective, conditions, tenant), number)| Rule {
                        // Orders stay distinct: what decides between equal ones is a rule's text.
                        order: order * 10 + number,
                        effective: effective.map_or(Span::ALWAYS, |span| place.span(span)),
                        conditions: conditions.into_iter().map(condition).collect(),
                        tenant: name(["acme", "zeta", "team-x"][tenant]),
                        project: name("ruled"),
                    })
                    .collect(),
                versions: versions(&place, &cuts, &prices),
                ..World::of(place, Vec::new())
            }
        })
}
