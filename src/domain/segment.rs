//! The fold: from what sources claim to one account per device and instant.
//!
//! A **segment** is a maximal span of constant layout, holders and source on one device within one
//! billing hour, with what was measured in it. Segments are keyed by evidence and never by tenant, and hold natural
//! keys only.
//!
//! Always true here: the result depends on the claims as a set. Their order, their repetition and their
//! split into batches do not show. Source: DESIGN §3 (one source per device and instant) and §4 (node_hour).

use std::collections::HashMap;
use std::hash::Hash;

use super::ids::Name;
use super::period::Span;
use super::units::Instant;
use super::usage::{
    Batch, CoverageOf, Evidence, Slice, Source, SourceRank, covered_nanos, cut_integral, merged,
};

/// Most holders of one device at one time, by one source, and as many existing slices. No way of sharing has more;
/// without a bound, one file of nested holdings would make segments that no memory holds.
pub const HOLDERS_MAX: usize = 256;

/// Most holders, slices and measures of one device in one billing hour, over all of its segments. A device at which
/// something changes every second stays below; what is beyond is unknown from there on, and a finding says so.
pub const ENTRIES_MAX: usize = 100_000;

/// Who holds which slice during a segment: indexes into the hour's tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Holder {
    /// Index into [`HourSegments::slices`].
    pub slice: usize,
    /// Index into [`HourSegments::evidence`].
    pub evidence: usize,
}

/// What was measured of a slice during a segment: integrals over it. Units as in [`super::usage::UseRow`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Measure {
    /// Index into [`HourSegments::slices`].
    pub slice: usize,
    /// Index into [`HourSegments::evidence`]; none: of the slice as a whole.
    pub evidence: Option<usize>,
    /// Nanoseconds × SM activity.
    pub active_nanos: Option<i64>,
    /// Bytes held × seconds.
    pub memory_byte_seconds: Option<i64>,
}

impl Measure {
    /// What is measured, without how much.
    const fn key(&self) -> (usize, Option<usize>, bool, bool) {
        (self.slice, self.evidence, self.active_nanos.is_some(), self.memory_byte_seconds.is_some())
    }

    fn add(&mut self, other: &Self) {
        let add = |sum: &mut Option<i64>, more: Option<i64>| {
            if let Some(more) = more {
                *sum = Some(sum.unwrap_or_default().saturating_add(more));
            }
        };
        add(&mut self.active_nanos, other.active_nanos);
        add(&mut self.memory_byte_seconds, other.memory_byte_seconds);
    }
}

/// A maximal span of constant layout, holders and source on one device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// When; inside the billing hour.
    pub span: Span,
    /// Index in [`HourSegments::sources`] of the source that is believed for holding; none: only use was reported.
    pub source: Option<usize>,
    /// Whether the source vouches for what it did not report. If not, the unheld rest is `unknown`.
    pub covered: bool,
    /// Who holds what, in natural order.
    pub holders: Vec<Holder>,
    /// Slices that are stated to exist, held or not, in natural order: indexes into [`HourSegments::slices`].
    pub layout: Vec<usize>,
    /// What was measured, in natural order.
    pub measures: Vec<Measure>,
    /// Energy that the device took, in millijoules; none: no counter seen.
    pub energy: Option<i64>,
}

impl Segment {
    /// How much it takes to keep.
    const fn entries(&self) -> usize {
        self.holders
            .len()
            .saturating_add(self.layout.len())
            .saturating_add(self.measures.len())
            .saturating_add(1)
    }
}

/// A source that claimed holdings while another was believed; or, where both are the same, one that claimed more
/// than [`HOLDERS_MAX`] holders or slices at once, or more than [`ENTRIES_MAX`] in the hour: the rest is left out.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Conflict {
    /// When.
    pub span: Span,
    /// Index of the believed source.
    pub believed: usize,
    /// Index of the source that was not believed.
    pub set_aside: usize,
}

/// The segments of one device in one billing hour; where there is none, nobody reported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceSegments {
    /// The device's UUID.
    pub device: Name,
    /// Segments in order of time.
    pub segments: Vec<Segment>,
    /// Claims that were not believed.
    pub conflicts: Vec<Conflict>,
    /// The 5th percentile of the power, in milliwatts, in those windows of the hour in which nobody held the device;
    /// none: there was no such window.
    pub idle_milliwatts: Option<i64>,
}

/// What the sources said of one scope in one billing hour, with the tables that it points into.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HourSegments {
    /// The billing hour.
    pub hour: Span,
    /// Slices that are held, exist or were measured, in natural order.
    pub slices: Vec<Slice>,
    /// Evidence, in natural order.
    pub evidence: Vec<Evidence>,
    /// Sources, in natural order.
    pub sources: Vec<Source>,
    /// Devices by UUID.
    pub devices: Vec<DeviceSegments>,
    /// Device-nanoseconds of the hour for which some source vouched for holding. Never shrinks while the
    /// journal is kept, so a smaller figure means that evidence was lost.
    pub covered_nanos: i64,
}

/// Values with numbers: each distinct value once.
#[derive(Debug, Clone)]
struct Table<T> {
    values: Vec<T>,
    numbers: HashMap<T, usize>,
}

impl<T: Clone + Eq + Hash + Ord> Table<T> {
    fn new() -> Self {
        Self { values: Vec::new(), numbers: HashMap::new() }
    }

    fn number(&mut self, value: &T) -> usize {
        let next = self.values.len();
        // Values are cheap to clone, and hashed once so.
        let number = *self.numbers.entry(value.clone()).or_insert(next);
        if number == next {
            self.values.push(value.clone());
        }
        number
    }

    /// For each number its place in natural order.
    fn places(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.values.len()).collect();
        order.sort_by(|a, b| self.values.get(*a).cmp(&self.values.get(*b)));
        let mut places = vec![0; order.len()];
        for (place, number) in order.into_iter().enumerate() {
            if let Some(slot) = places.get_mut(number) {
                *slot = place;
            }
        }
        places
    }

    fn in_order(&self) -> Vec<&T> {
        let mut values: Vec<&T> = self.values.iter().collect();
        values.sort_unstable();
        values
    }
}

/// One holding, or one existing slice, as claimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Claim {
    span: Span,
    source: usize,
    slice: usize,
    /// None: the slice exists, whoever holds it.
    evidence: Option<usize>,
    uncut: Span,
    keys: AmendmentKeys,
    number: i64,
}

impl Claim {
    fn is_piece_of_the_holding_of(&self, other: &Self) -> bool {
        (self.source, self.slice, self.evidence, self.uncut)
            == (other.source, other.slice, other.evidence, other.uncut)
    }
}

/// Use as measured over a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct UseClaim {
    span: Span,
    keys: AmendmentKeys,
    number: i64,
    source: usize,
    slice: usize,
    evidence: Option<usize>,
    active_nanos: Option<i64>,
    memory_byte_seconds: Option<i64>,
}

/// Energy as measured over a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct EnergyClaim {
    span: Span,
    source: usize,
    millijoules: i64,
}

/// The key under which an import's highest number wins whole: (source, device, workload or slice, uncut start).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct AmendmentKey {
    source: usize,
    device: usize,
    /// Whether it is a slice's existence that is stated, and not a holding.
    is_layout: bool,
    name: Option<Name>,
    start: Instant,
}

/// The highest imports that state a key. A line that names no slice amends all of them, and each of them amends it;
/// lines of two slices that one workload holds leave each other alone.
#[derive(Debug, Clone, Default)]
struct Highest {
    /// Whatever the slice.
    any: i64,
    /// Those that name no slice.
    unnamed: i64,
    /// By the slice's number.
    named: Vec<(usize, i64)>,
}

impl Highest {
    fn raise(&mut self, slice: Option<usize>, number: i64) {
        self.any = number.max(self.any);
        let Some(slice) = slice else {
            self.unnamed = number.max(self.unnamed);
            return;
        };
        match self.named.iter_mut().find(|(each, _)| *each == slice) {
            Some((_, highest)) => *highest = number.max(*highest),
            None => self.named.push((slice, number)),
        }
    }

    fn is_of(&self, slice: Option<usize>, number: i64) -> bool {
        match slice {
            None => self.any == number,
            Some(slice) => {
                let of_slice = self.named.iter().find(|(each, _)| *each == slice);
                self.unnamed <= number && of_slice.is_none_or(|(_, highest)| *highest == number)
            }
        }
    }
}

/// The number of the key that decides whether an import's statement stands, and of the slice id that it names. Agents
/// have none.
type AmendmentKeys = Option<(usize, Option<usize>)>;

/// What is claimed of one device.
#[derive(Debug, Clone, Default)]
struct DeviceClaims {
    claims: Vec<Claim>,
    vouched: Vec<(usize, Span)>,
    /// Who vouches for use.
    metered: Vec<(usize, Span)>,
    uses: Vec<UseClaim>,
    energy: Vec<EnergyClaim>,
}

/// What all sources claim of one scope: filled from batches, then folded into hours.
#[derive(Debug, Clone)]
pub struct Claims {
    devices: Table<Name>,
    slices: Table<Slice>,
    evidence: Table<Evidence>,
    sources: Table<Source>,
    /// By the device's number.
    of_device: Vec<DeviceClaims>,
    keys: HashMap<AmendmentKey, usize>,
    /// By the key's number.
    highest: Vec<Highest>,
    /// Ids of slices.
    ids: Table<Name>,
}

impl Default for Claims {
    fn default() -> Self {
        Self::new()
    }
}

impl Claims {
    /// No claims.
    #[must_use]
    pub fn new() -> Self {
        Self {
            devices: Table::new(),
            slices: Table::new(),
            evidence: Table::new(),
            sources: Table::new(),
            of_device: Vec::new(),
            keys: HashMap::new(),
            highest: Vec::new(),
            ids: Table::new(),
        }
    }

    /// The number of a device, with room for what is claimed of it.
    fn device(&mut self, name: &Name) -> usize {
        let number = self.devices.number(name);
        if self.of_device.len() <= number {
            self.of_device.resize_with(number.saturating_add(1), DeviceClaims::default);
        }
        number
    }

    /// The key of an import's statement, by the slice that it names; the highest number that states it is kept.
    fn amends(&mut self, key: AmendmentKey, slice: Option<&Name>, number: i64) -> (usize, Option<usize>) {
        let slice = slice.map(|id| self.ids.number(id));
        let next = self.highest.len();
        let at = *self.keys.entry(key).or_insert(next);
        if at == next {
            self.highest.push(Highest::default());
        }
        if let Some(highest) = self.highest.get_mut(at) {
            highest.raise(slice, number);
        }
        (at, slice)
    }

    /// Adds a decoded batch. `number` is the import's number within its source; agents have 0.
    pub fn add(&mut self, source: &Source, number: i64, batch: &Batch) {
        let source_number = self.sources.number(source);
        let slices: Vec<(usize, usize)> = batch
            .slices
            .iter()
            .map(|slice| (self.device(&slice.device), self.slices.number(slice)))
            .collect();
        let evidence: Vec<usize> = batch.evidence.iter().map(|each| self.evidence.number(each)).collect();
        // A guest sees its own use; what it holds, the host knows better.
        if source.rank != SourceRank::GuestAgent {
            self.add_holdings(source_number, number, batch, &slices, &evidence);
        }
        for row in &batch.usage {
            let Some((device, slice)) = slices.get(row.slice) else { continue };
            let seen = row.evidence.map(|at| evidence.get(at).copied());
            if seen == Some(None) {
                continue;
            }
            // A holding that is stated anew has its use stated anew.
            let keys = (number > 0).then(|| {
                let name = row.evidence.and_then(|at| batch.evidence.get(at)).and_then(Evidence::workload);
                let id = batch.slices.get(row.slice).and_then(|slice| slice.id.as_ref());
                let (device, name, start) = (*device, name.cloned(), row.uncut_start);
                let source = source_number;
                self.amends(AmendmentKey { source, device, is_layout: false, name, start }, id, number)
            });
            let claim = UseClaim {
                span: row.span,
                keys,
                number,
                source: source_number,
                slice: *slice,
                evidence: seen.flatten(),
                active_nanos: row.active_nanos,
                memory_byte_seconds: row.memory_byte_seconds,
            };
            if let Some(of_device) = self.of_device.get_mut(*device) {
                of_device.uses.push(claim);
            }
        }
        // What no board can have taken is no count at all.
        for row in batch.energy.iter().filter(|row| row.is_plausible()) {
            let device = self.device(&row.device);
            let claim = EnergyClaim { span: row.span, source: source_number, millijoules: row.millijoules };
            if let Some(of_device) = self.of_device.get_mut(device) {
                of_device.energy.push(claim);
            }
        }
        for coverage in &batch.coverage {
            if source.rank == SourceRank::GuestAgent && coverage.of == CoverageOf::Holding {
                continue;
            }
            let device = self.device(&coverage.device);
            if let Some(of_device) = self.of_device.get_mut(device) {
                match coverage.of {
                    CoverageOf::Holding => of_device.vouched.push((source_number, coverage.span)),
                    CoverageOf::Use => of_device.metered.push((source_number, coverage.span)),
                }
            }
        }
    }

    fn add_holdings(
        &mut self,
        source: usize,
        number: i64,
        batch: &Batch,
        slices: &[(usize, usize)],
        evidence: &[usize],
    ) {
        for row in &batch.rows {
            let (Some((device, slice)), Some(seen)) = (slices.get(row.slice), evidence.get(row.evidence))
            else {
                continue;
            };
            let keys = (number > 0).then(|| {
                let name = batch.evidence.get(row.evidence).and_then(Evidence::workload).cloned();
                let id = batch.slices.get(row.slice).and_then(|slice| slice.id.as_ref());
                let (device, start) = (*device, row.uncut.start());
                self.amends(AmendmentKey { source, device, is_layout: false, name, start }, id, number)
            });
            let (slice, evidence) = (*slice, Some(*seen));
            let claim = Claim { span: row.span, source, slice, evidence, uncut: row.uncut, keys, number };
            if let Some(of_device) = self.of_device.get_mut(*device) {
                of_device.claims.push(claim);
            }
        }
        for row in &batch.layout {
            let Some((device, slice)) = slices.get(row.slice) else { continue };
            let keys = (number > 0).then(|| {
                let name = batch.slices.get(row.slice).and_then(|slice| slice.id.clone());
                let (device, start) = (*device, row.uncut.start());
                self.amends(AmendmentKey { source, device, is_layout: true, name, start }, None, number)
            });
            let slice = *slice;
            let claim =
                Claim { span: row.span, source, slice, evidence: None, uncut: row.uncut, keys, number };
            if let Some(of_device) = self.of_device.get_mut(*device) {
                of_device.claims.push(claim);
            }
        }
    }

    /// The uncut starts before `before` of import statements seen so far: the days in which a later import
    /// may have amended them.
    #[must_use]
    pub fn uncut_starts_before(&self, before: Instant) -> Vec<(Source, Instant)> {
        let claims = self.of_device.iter().flat_map(|each| &each.claims);
        let mut starts: Vec<(Source, Instant)> = claims
            .filter(|claim| claim.keys.is_some() && claim.uncut.start() < before)
            .filter_map(|claim| Some((self.sources.values.get(claim.source)?.clone(), claim.uncut.start())))
            .collect();
        starts.sort_unstable();
        starts.dedup();
        starts
    }

    /// Folds the claims into the given billing hours, which are sorted and disjoint.
    #[must_use]
    pub fn fold(&self, hours: &[Span]) -> Vec<HourSegments> {
        let places = Places {
            slices: self.slices.places(),
            evidence: self.evidence.places(),
            sources: self.sources.places(),
        };
        let mut folded: Vec<HourBuilder> = hours.iter().map(|hour| HourBuilder::new(*hour)).collect();
        for device in self.devices.in_order() {
            let Some(claims) = self.devices.numbers.get(device).and_then(|at| self.of_device.get(*at)) else {
                continue;
            };
            self.fold_device(claims, device, &places, &mut folded);
        }
        let tables = SortedTables {
            slices: self.slices.in_order(),
            evidence: self.evidence.in_order(),
            sources: self.sources.in_order(),
        };
        folded.into_iter().map(|hour| hour.finish(&tables)).collect()
    }

    /// The claims of one device that hold: not amended away, each once, in order of time.
    fn standing(&self, of_device: &DeviceClaims, within: Span, places: &Places) -> Vec<Claim> {
        let mut standing: Vec<Claim> = of_device
            .claims
            .iter()
            .filter(|claim| claim.span.meets(within) && self.stands(claim.keys, claim.number))
            .map(|claim| Claim { span: claim.span.clip(within), number: 0, keys: None, ..*claim })
            .collect();
        // Pieces of one holding that touch or overlap are one: however it was cut, it is held once.
        standing.sort_unstable_by_key(|claim| {
            (claim.source, claim.slice, claim.evidence, claim.uncut, claim.span)
        });
        let mut merged: Vec<Claim> = Vec::with_capacity(standing.len());
        for next in standing {
            match merged.last_mut() {
                Some(last)
                    if last.is_piece_of_the_holding_of(&next) && next.span.start() <= last.span.end() =>
                {
                    last.span = Span::clamped(last.span.start(), last.span.end().max(next.span.end()));
                }
                Some(_) | None => merged.push(next),
            }
        }
        // By natural order, so that it is the same claims that find no room where there are too many.
        merged.sort_unstable_by_key(|claim| {
            let natural = (place(&places.sources, claim.source), place(&places.slices, claim.slice));
            (claim.span, natural, claim.evidence.map(|at| place(&places.evidence, at)), claim.uncut)
        });
        merged
    }

    /// Whether no later import states the same.
    fn stands(&self, keys: AmendmentKeys, number: i64) -> bool {
        let Some((key, slice)) = keys else { return true };
        self.highest.get(key).is_none_or(|highest| highest.is_of(slice, number))
    }

    fn fold_device(&self, of_device: &DeviceClaims, name: &Name, places: &Places, hours: &mut [HourBuilder]) {
        let (Some(first), Some(last)) = (hours.first(), hours.last()) else {
            return;
        };
        let run = Span::clamped(first.hour.start(), last.hour.end());
        let claims = self.standing(of_device, run, places);
        let vouched = by_source(&of_device.vouched, run);
        let stands = |claim: &UseClaim| self.stands(claim.keys, claim.number);
        let meter = Meter::new(of_device, run, stands);
        if claims.is_empty() && vouched.is_empty() && meter.is_empty() {
            return;
        }
        let all_vouched = merged(vouched.iter().flat_map(|(_, spans)| spans.iter().copied()));
        let mut sweep = Sweep::new(claims, vouched);
        for builder in hours {
            let hour = builder.hour;
            let covered: Vec<Span> = all_vouched.iter().map(|span| span.clip(hour)).collect();
            builder.covered_nanos = builder.covered_nanos.saturating_add(covered_nanos(&covered));
            let mut segments: Vec<Segment> = Vec::new();
            let mut conflicts: Vec<Conflict> = Vec::new();
            let mut entries = 0_usize;
            let metered = meter.during(hour);
            sweep.over(hour, &self.sources.values, &metered.edges, |span, instant| {
                let (measures, energy) = metered.at(span, &self.sources.values, places);
                if instant.believed.is_none() && measures.is_empty() && energy.is_none() {
                    return;
                }
                let source = instant.believed.map(|source| place(&places.sources, source));
                let mut next = Segment {
                    span,
                    source,
                    covered: instant.covered,
                    holders: Vec::new(),
                    layout: Vec::new(),
                    measures,
                    energy,
                };
                let mut crowd = fill(&mut next, instant, places);
                // Another word about a layout is none about who pays.
                let holding = instant.held.iter().filter(|claim| claim.evidence.is_some());
                let mut others: Vec<usize> = Vec::new();
                for claim in holding.filter(|claim| Some(claim.source) != instant.believed) {
                    if !others.contains(&claim.source) {
                        others.push(claim.source);
                    }
                }
                for (other, believed) in others.into_iter().zip(std::iter::repeat(source)) {
                    let set_aside = place(&places.sources, other);
                    conflicts.extend(believed.map(|believed| Conflict { span, believed, set_aside }));
                }
                entries = entries.saturating_add(next.entries());
                if entries > ENTRIES_MAX {
                    crowd = true;
                    next =
                        Segment { holders: vec![], layout: vec![], measures: vec![], covered: false, ..next };
                }
                if let (true, Some(source)) = (crowd, source) {
                    conflicts.push(Conflict { span, believed: source, set_aside: source });
                }
                match segments.last_mut() {
                    Some(last) if continues(last, &next) => extend(last, &next),
                    Some(_) | None => segments.push(next),
                }
            });
            if !segments.is_empty() {
                let conflicts = merged_conflicts(conflicts);
                let idle_milliwatts =
                    fifth_percentile(metered.idle_milliwatts(&segments, &self.sources.values));
                let device = name.clone();
                builder.devices.push(DeviceSegments { device, segments, conflicts, idle_milliwatts });
            }
        }
    }
}

/// Fills in who holds what by the believed source, and which slices exist by it; says whether some found no room.
///
/// Where there are too many, it is the same ones in every order of batches and whatever hours are folded together.
fn fill(segment: &mut Segment, instant: &Account<'_>, places: &Places) -> bool {
    let of_believed = instant.held.iter().filter(|claim| Some(claim.source) == instant.believed);
    let natural = |claim: &Claim| {
        let seen = claim.evidence.map(|seen| place(&places.evidence, seen));
        (place(&places.slices, claim.slice), seen, claim.uncut)
    };
    let mut holders: Vec<(Holder, Span)> = Vec::new();
    for claim in of_believed {
        let (slice, seen, uncut) = natural(claim);
        match seen {
            Some(evidence) => holders.push((Holder { slice, evidence }, uncut)),
            None => segment.layout.push(slice),
        }
    }
    holders.sort_unstable();
    segment.layout.sort_unstable();
    segment.layout.dedup();
    let is_crowded = holders.len() > HOLDERS_MAX || segment.layout.len() > HOLDERS_MAX;
    segment.holders = holders.into_iter().take(HOLDERS_MAX).map(|(holder, _)| holder).collect();
    segment.layout.truncate(HOLDERS_MAX);
    // Somebody holds what is left: it is not idle.
    segment.covered &= !is_crowded;
    is_crowded
}

/// Spans by source, each merged, clipped to `run`.
fn by_source(spans: &[(usize, Span)], run: Span) -> Vec<(usize, Vec<Span>)> {
    let mut sources: Vec<usize> = spans.iter().map(|(source, _)| *source).collect();
    sources.sort_unstable();
    sources.dedup();
    let of = |source: usize| {
        merged(spans.iter().filter(|(each, _)| *each == source).map(|(_, span)| span.clip(run)))
    };
    sources.into_iter().map(|source| (source, of(source))).filter(|(_, spans)| !spans.is_empty()).collect()
}

fn place(places: &[usize], number: usize) -> usize {
    places.get(number).copied().unwrap_or_default()
}

fn continues(last: &Segment, next: &Segment) -> bool {
    last.span.end() == next.span.start()
        && last.source == next.source
        && last.covered == next.covered
        && last.holders == next.holders
        && last.layout == next.layout
        && last.energy.is_some() == next.energy.is_some()
        && last.measures.len() == next.measures.len()
        && last.measures.iter().zip(&next.measures).all(|(a, b)| a.key() == b.key())
}

fn extend(last: &mut Segment, next: &Segment) {
    last.span = Span::clamped(last.span.start(), next.span.end());
    for (sum, more) in last.measures.iter_mut().zip(&next.measures) {
        sum.add(more);
    }
    if let (Some(sum), Some(more)) = (last.energy, next.energy) {
        last.energy = Some(sum.saturating_add(more));
    }
}

/// Mean power over a span: millijoules a second.
fn milliwatts(millijoules: i64, span: Span) -> i64 {
    let micros = i128::from(span.end().micros_since(span.start())).max(1);
    let value = i128::from(millijoules).saturating_mul(1_000_000).div_euclid(micros);
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// By nearest rank, so that it is one of the values.
fn fifth_percentile(mut values: Vec<i64>) -> Option<i64> {
    values.sort_unstable();
    let rank = values.len().div_ceil(20);
    rank.checked_sub(1).and_then(|at| values.get(at)).copied()
}

fn merged_conflicts(mut conflicts: Vec<Conflict>) -> Vec<Conflict> {
    conflicts.sort_unstable_by_key(|each| (each.believed, each.set_aside, each.span));
    let mut merged: Vec<Conflict> = Vec::new();
    for next in conflicts {
        match merged.last_mut() {
            Some(last)
                if (last.believed, last.set_aside) == (next.believed, next.set_aside)
                    && next.span.start() <= last.span.end() =>
            {
                last.span = Span::clamped(last.span.start(), last.span.end().max(next.span.end()));
            }
            Some(_) | None => merged.push(next),
        }
    }
    merged
}

/// Natural places of table numbers.
struct Places {
    slices: Vec<usize>,
    evidence: Vec<usize>,
    sources: Vec<usize>,
}

/// The tables in natural order: place → value.
struct SortedTables<'a> {
    slices: Vec<&'a Slice>,
    evidence: Vec<&'a Evidence>,
    sources: Vec<&'a Source>,
}

/// What was measured of one device.
struct Meter {
    /// Each once, by start.
    uses: Vec<UseClaim>,
    energy: Vec<EnergyClaim>,
    metered: Vec<(usize, Vec<Span>)>,
}

impl Meter {
    fn new(of_device: &DeviceClaims, run: Span, stands: impl Fn(&UseClaim) -> bool) -> Self {
        let standing = of_device.uses.iter().filter(|claim| claim.span.meets(run) && stands(claim));
        // The number has decided; what is left is told apart by what it says.
        let mut uses: Vec<UseClaim> =
            standing.map(|claim| UseClaim { keys: None, number: 0, ..*claim }).collect();
        let mut energy: Vec<EnergyClaim> =
            of_device.energy.iter().filter(|claim| claim.span.meets(run)).copied().collect();
        uses.sort_unstable();
        uses.dedup();
        energy.sort_unstable();
        energy.dedup();
        let metered = if uses.is_empty() && energy.is_empty() {
            Vec::new()
        } else {
            by_source(&of_device.metered, run)
        };
        Self { uses, energy, metered }
    }

    const fn is_empty(&self) -> bool {
        self.uses.is_empty() && self.energy.is_empty()
    }

    /// What was measured in an hour, with the edges at which anything of it changes.
    fn during(&self, hour: Span) -> Metered<'_> {
        let mut edges = Vec::new();
        let uses: Vec<UseClaim> = self.uses.iter().filter(|claim| claim.span.meets(hour)).copied().collect();
        let energy: Vec<EnergyClaim> =
            self.energy.iter().filter(|claim| claim.span.meets(hour)).copied().collect();
        let spans = uses.iter().map(|claim| claim.span).chain(energy.iter().map(|claim| claim.span));
        edges.extend(spans.flat_map(|span| [span.start(), span.end()]));
        if !edges.is_empty() {
            let meeting = self.metered.iter().flat_map(|(_, spans)| spans).filter(|span| span.meets(hour));
            edges.extend(meeting.flat_map(|span| [span.start(), span.end()]));
        }
        Metered { uses, energy, metered: &self.metered, edges }
    }
}

/// What was measured of one device in one hour.
struct Metered<'a> {
    uses: Vec<UseClaim>,
    energy: Vec<EnergyClaim>,
    metered: &'a [(usize, Vec<Span>)],
    edges: Vec<Instant>,
}

impl Metered<'_> {
    /// The measures of an elementary span, from the one source that is believed for use in it.
    fn at(&self, span: Span, sources: &[Source], places: &Places) -> (Vec<Measure>, Option<i64>) {
        if self.uses.is_empty() && self.energy.is_empty() {
            return (Vec::new(), None);
        }
        let at = span.start();
        let uses = || self.uses.iter().filter(|claim| claim.span.contains(at));
        let energy = || self.energy.iter().filter(|claim| claim.span.contains(at));
        let vouching = self.metered.iter().filter(|(_, spans)| covers(spans, at)).map(|(source, _)| *source);
        let first = |a: &usize, b: &usize| sources.get(*a).cmp(&sources.get(*b));
        // A counter of energy says nothing about use, and use nothing about energy: each has its own best source.
        let believed = uses().map(|claim| claim.source).chain(vouching).min_by(first);
        let counting = energy().map(|claim| claim.source).min_by(first);
        let mut measures: Vec<Measure> = uses()
            .filter(|claim| Some(claim.source) == believed)
            .map(|claim| {
                let cut = |integral: Option<i64>| integral.map(|all| cut_integral(all, claim.span, span));
                Measure {
                    slice: place(&places.slices, claim.slice),
                    evidence: claim.evidence.map(|seen| place(&places.evidence, seen)),
                    active_nanos: cut(claim.active_nanos),
                    memory_byte_seconds: cut(claim.memory_byte_seconds),
                }
            })
            .collect();
        measures.sort_unstable();
        measures.dedup_by(|next, kept| {
            let is_same = (next.slice, next.evidence) == (kept.slice, kept.evidence);
            if is_same {
                kept.add(next);
            }
            is_same
        });
        // In natural order, so that it is the same ones that find no room.
        measures.truncate(HOLDERS_MAX);
        // No source has two counters of one board: where windows overlap, the first by order counts.
        let energy = energy().find(|claim| Some(claim.source) == counting);
        (measures, energy.map(|claim| cut_integral(claim.millijoules, claim.span, span)))
    }

    /// The mean power of each window in which nobody held the device and nothing was used, in milliwatts.
    fn idle_milliwatts(&self, segments: &[Segment], sources: &[Source]) -> Vec<i64> {
        if self.energy.is_empty() {
            return Vec::new();
        }
        // Where nobody vouches, nobody knows that nobody held it.
        let is_idle =
            |segment: &&Segment| segment.covered && segment.holders.is_empty() && segment.measures.is_empty();
        let idle = merged(segments.iter().filter(is_idle).map(|segment| segment.span));
        let (Some(first), Some(last)) = (segments.first(), segments.last()) else { return Vec::new() };
        let hour = Span::clamped(first.span.start(), last.span.end());
        let best =
            self.energy.iter().map(|claim| claim.source).min_by(|a, b| sources.get(*a).cmp(&sources.get(*b)));
        self.energy
            .iter()
            .filter(|claim| Some(claim.source) == best)
            .map(|claim| (claim, claim.span.clip(hour)))
            .filter(|(_, window)| !window.is_empty() && idle.iter().any(|span| window.clip(*span) == *window))
            .map(|(claim, window)| milliwatts(cut_integral(claim.millijoules, claim.span, window), window))
            .collect()
    }
}

/// One instant's account of a device.
struct Account<'a> {
    believed: Option<usize>,
    covered: bool,
    held: &'a [Claim],
}

/// Walks one device's claims and coverage in order of time, hour by hour.
struct Sweep {
    claims: Vec<Claim>,
    next: usize,
    active: Vec<Claim>,
    vouched: Vec<(usize, Vec<Span>)>,
}

impl Sweep {
    /// `claims` sorted by start (they are of one device, so their order is by span first).
    const fn new(claims: Vec<Claim>, vouched: Vec<(usize, Vec<Span>)>) -> Self {
        Self { claims, next: 0, active: Vec::new(), vouched }
    }

    /// Calls `account` for each elementary span of `hour`, in order of time.
    fn over(
        &mut self,
        hour: Span,
        sources: &[Source],
        metered: &[Instant],
        mut account: impl FnMut(Span, &Account<'_>),
    ) {
        let mut edges: Vec<Instant> = vec![hour.start(), hour.end()];
        edges.extend(metered);
        let starting = self.claims.get(self.next..).unwrap_or_default().iter();
        let touching = starting.take_while(|claim| claim.span.start() < hour.end());
        for span in self.active.iter().chain(touching).map(|claim| claim.span) {
            edges.extend([span.start(), span.end()]);
        }
        for span in self.vouched.iter().flat_map(|(_, spans)| spans).filter(|span| span.meets(hour)) {
            edges.extend([span.start(), span.end()]);
        }
        edges.retain(|edge| (hour.start()..=hour.end()).contains(edge));
        edges.sort_unstable();
        edges.dedup();
        for pair in edges.windows(2) {
            let [start, end] = pair else { continue };
            let span = Span::clamped(*start, *end);
            while let Some(claim) =
                self.claims.get(self.next).filter(|claim| claim.span.start() <= span.start())
            {
                self.active.push(*claim);
                self.next = self.next.saturating_add(1);
            }
            // After those that began: one that ended before this hour may never have been looked at.
            self.active.retain(|claim| claim.span.end() > span.start());
            let vouching = |source: usize| {
                self.vouched.iter().any(|(each, spans)| *each == source && covers(spans, span.start()))
            };
            // Who only says which slices exist says nothing about who holds them.
            let holding = self.active.iter().filter(|claim| claim.evidence.is_some());
            let speaking = holding.map(|claim| claim.source).chain(
                self.vouched
                    .iter()
                    .filter(|(_, spans)| covers(spans, span.start()))
                    .map(|(source, _)| *source),
            );
            let believed = speaking.min_by(|a, b| sources.get(*a).cmp(&sources.get(*b)));
            let covered = believed.is_some_and(vouching);
            account(span, &Account { believed, covered, held: &self.active });
        }
    }
}

/// Whether sorted, disjoint spans hold an instant.
fn covers(spans: &[Span], instant: Instant) -> bool {
    let after = spans.partition_point(|span| span.start() <= instant);
    after.checked_sub(1).and_then(|at| spans.get(at)).is_some_and(|span| span.contains(instant))
}

/// An hour under construction; its indexes are places in the sorted tables of all claims.
struct HourBuilder {
    hour: Span,
    devices: Vec<DeviceSegments>,
    covered_nanos: i64,
}

impl HourBuilder {
    const fn new(hour: Span) -> Self {
        Self { hour, devices: Vec::new(), covered_nanos: 0 }
    }

    /// Keeps of the tables what this hour uses, and points into those.
    fn finish(mut self, tables: &SortedTables<'_>) -> HourSegments {
        let (mut slices, mut evidence, mut sources) = (Vec::new(), Vec::new(), Vec::new());
        for device in &self.devices {
            for segment in &device.segments {
                sources.extend(segment.source);
                slices.extend(segment.holders.iter().map(|holder| holder.slice));
                slices.extend(&segment.layout);
                slices.extend(segment.measures.iter().map(|measure| measure.slice));
                evidence.extend(segment.holders.iter().map(|holder| holder.evidence));
                evidence.extend(segment.measures.iter().filter_map(|measure| measure.evidence));
            }
            sources.extend(device.conflicts.iter().map(|conflict| conflict.set_aside));
        }
        for used in [&mut slices, &mut evidence, &mut sources] {
            used.sort_unstable();
            used.dedup();
        }
        let renumber = |used: &[usize], place: usize| used.binary_search(&place).unwrap_or_default();
        for device in &mut self.devices {
            for segment in &mut device.segments {
                segment.source = segment.source.map(|source| renumber(&sources, source));
                for holder in &mut segment.holders {
                    holder.slice = renumber(&slices, holder.slice);
                    holder.evidence = renumber(&evidence, holder.evidence);
                }
                for slice in &mut segment.layout {
                    *slice = renumber(&slices, *slice);
                }
                for measure in &mut segment.measures {
                    measure.slice = renumber(&slices, measure.slice);
                    measure.evidence = measure.evidence.map(|seen| renumber(&evidence, seen));
                }
            }
            for conflict in &mut device.conflicts {
                conflict.believed = renumber(&sources, conflict.believed);
                conflict.set_aside = renumber(&sources, conflict.set_aside);
            }
        }
        HourSegments {
            hour: self.hour,
            slices: kept(&slices, &tables.slices),
            evidence: kept(&evidence, &tables.evidence),
            sources: kept(&sources, &tables.sources),
            devices: self.devices,
            covered_nanos: self.covered_nanos,
        }
    }
}

fn kept<T: Clone>(used: &[usize], table: &[&T]) -> Vec<T> {
    used.iter().filter_map(|place| table.get(*place).map(|value| (*value).clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::device::SharingMode;
    use crate::domain::usage::{Coverage, EvidenceField, Row, SliceSize};

    fn span(start: i64, end: i64) -> Span {
        Span::new(Instant::from_micros(start), Instant::from_micros(end)).unwrap()
    }

    fn import(sender: &'static str) -> Source {
        Source { rank: SourceRank::Import, sender: Name::fixed(sender) }
    }

    fn batch(rows: &[(&'static str, Span, Span)], coverage: &[Span]) -> Batch {
        let slice = Slice::plain(Name::fixed("GPU-1"), SharingMode::Dedicated, SliceSize::Whole);
        Batch {
            slices: vec![slice],
            evidence: rows
                .iter()
                .map(|(workload, ..)| {
                    [(EvidenceField::Workload, Name::fixed(workload))].into_iter().collect()
                })
                .collect(),
            rows: rows
                .iter()
                .enumerate()
                .map(|(at, (_, span, uncut))| Row { slice: 0, evidence: at, span: *span, uncut: *uncut })
                .collect(),
            coverage: coverage
                .iter()
                .map(|span| Coverage { device: Name::fixed("GPU-1"), span: *span, of: CoverageOf::Holding })
                .collect(),
            ..Batch::default()
        }
    }

    fn shown(hours: &[HourSegments]) -> Vec<String> {
        hours
            .iter()
            .flat_map(|hour| {
                hour.devices.iter().flat_map(move |device| {
                    device.segments.iter().map(move |segment| {
                        let holders: Vec<String> =
                            segment.holders.iter().map(|h| hour.evidence[h.evidence].to_string()).collect();
                        format!(
                            "{}-{} {} {}[{}]",
                            segment.span.start().micros(),
                            segment.span.end().micros(),
                            hour.sources[segment.source.unwrap()].sender,
                            if segment.covered { "" } else { "uncovered " },
                            holders.join(",")
                        )
                    })
                })
            })
            .collect()
    }

    #[test]
    fn holders_and_coverage_cut_segments() {
        let mut claims = Claims::new();
        claims.add(
            &import("a"),
            1,
            &batch(&[("x", span(2, 5), span(2, 5)), ("y", span(4, 12), span(4, 12))], &[span(0, 8)]),
        );
        let hours = claims.fold(&[span(0, 10), span(10, 20)]);
        assert_eq!(
            shown(&hours),
            [
                "0-2 a []",
                "2-4 a [workload=x]",
                "4-5 a [workload=x,workload=y]",
                "5-8 a [workload=y]",
                "8-10 a uncovered [workload=y]",
                "10-12 a uncovered [workload=y]",
            ]
        );
        assert_eq!(hours[0].covered_nanos, 8_000);
    }

    #[test]
    fn the_highest_import_number_wins_whole() {
        let mut claims = Claims::new();
        claims.add(
            &import("a"),
            1,
            &batch(&[("x", span(0, 10), span(0, 20)), ("x", span(10, 20), span(0, 20))], &[]),
        );
        claims.add(&import("a"), 2, &batch(&[("x", span(0, 3), span(0, 3))], &[]));
        assert_eq!(shown(&claims.fold(&[span(0, 10), span(10, 20)])), ["0-3 a uncovered [workload=x]"]);
        claims.add(&import("a"), 3, &batch(&[("x", span(0, 0), span(0, 0))], &[]));
        assert_eq!(shown(&claims.fold(&[span(0, 10), span(10, 20)])), Vec::<String>::new());
    }

    #[test]
    fn the_smaller_sender_is_believed_and_the_other_set_aside() {
        let (mut one, mut two) = (Claims::new(), Claims::new());
        let a = batch(&[("x", span(0, 4), span(0, 4))], &[span(0, 6)]);
        let b = batch(&[("y", span(2, 10), span(2, 10))], &[]);
        one.add(&import("a"), 1, &a);
        one.add(&import("b"), 1, &b);
        two.add(&import("b"), 1, &b);
        two.add(&import("a"), 1, &a);
        let hours = one.fold(&[span(0, 10)]);
        assert_eq!(hours, two.fold(&[span(0, 10)]));
        assert_eq!(shown(&hours), ["0-4 a [workload=x]", "4-6 a []", "6-10 b uncovered [workload=y]"]);
        assert_eq!(hours[0].devices[0].conflicts, [Conflict { span: span(2, 6), believed: 0, set_aside: 1 }]);
    }

    #[test]
    fn repeated_claims_count_once() {
        let mut claims = Claims::new();
        let once = batch(&[("x", span(0, 4), span(0, 4))], &[span(0, 10)]);
        claims.add(&import("a"), 1, &once);
        let single = claims.fold(&[span(0, 10)]);
        claims.add(&import("a"), 1, &once);
        assert_eq!(claims.fold(&[span(0, 10)]), single);
    }
}
