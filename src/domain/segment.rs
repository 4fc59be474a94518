//! The fold: from what sources claim to one account per device and instant.
//!
//! A **segment** is a maximal span of constant layout, holders and source on one device within one
//! billing hour. Segments are keyed by evidence and never by tenant, and hold natural keys only.
//!
//! Always true here: the result depends on the claims as a set. Their order, their repetition and their
//! split into batches do not show. Source: DESIGN §3 (one source per device and instant) and §4 (node_hour).

use std::collections::HashMap;
use std::hash::Hash;

use super::ids::Name;
use super::period::Span;
use super::units::Instant;
use super::usage::{Batch, CoverageOf, Evidence, Slice, Source, SourceRank, covered_nanos, merged};

/// Most holders of one device at one time, by one source. No way of sharing has more; without a bound, one file of
/// nested holdings would make segments that no memory holds.
pub const HOLDERS_MAX: usize = 256;

/// Who holds which slice during a segment: indexes into the hour's tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Holder {
    /// Index into [`HourSegments::slices`].
    pub slice: usize,
    /// Index into [`HourSegments::evidence`].
    pub evidence: usize,
}

/// A maximal span of constant holders and source on one device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// When; inside the billing hour.
    pub span: Span,
    /// Index of the believed source in [`HourSegments::sources`].
    pub source: usize,
    /// Whether the source vouches for what it did not report. If not, the unheld rest is `unknown`.
    pub covered: bool,
    /// Who holds what, in natural order.
    pub holders: Vec<Holder>,
}

/// A source that claimed holdings while another was believed; or, where both are the same, one that claimed more
/// than [`HOLDERS_MAX`] at once: the later ones are left out.
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
}

/// What the sources said of one scope in one billing hour, with the tables that it points into.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HourSegments {
    /// The billing hour.
    pub hour: Span,
    /// Slices that are held, in natural order.
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
        if let Some(number) = self.numbers.get(value) {
            return *number;
        }
        let number = self.values.len();
        self.values.push(value.clone());
        self.numbers.insert(value.clone(), number);
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

/// One holding as claimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Claim {
    device: usize,
    span: Span,
    source: usize,
    slice: usize,
    evidence: usize,
    uncut: Span,
    number: i64,
}

impl Claim {
    fn is_piece_of_the_holding_of(&self, other: &Self) -> bool {
        (self.source, self.slice, self.evidence, self.uncut)
            == (other.source, other.slice, other.evidence, other.uncut)
    }
}

/// The key under which an import's highest number wins whole: (source, device, workload, uncut start).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct AmendmentKey {
    source: usize,
    device: usize,
    workload: Option<Name>,
    start: Instant,
}

/// What all sources claim of one scope: filled from batches, then folded into hours.
#[derive(Debug, Clone)]
pub struct Claims {
    devices: Table<Name>,
    slices: Table<Slice>,
    evidence: Table<Evidence>,
    sources: Table<Source>,
    claims: Vec<Claim>,
    vouched: Vec<(usize, usize, Span)>,
    highest: HashMap<AmendmentKey, i64>,
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
            claims: Vec::new(),
            vouched: Vec::new(),
            highest: HashMap::new(),
        }
    }

    /// Adds a decoded batch. `number` is the import's number within its source; agents have 0.
    pub fn add(&mut self, source: &Source, number: i64, batch: &Batch) {
        let source_number = self.sources.number(source);
        let slices: Vec<(usize, usize)> = batch
            .slices
            .iter()
            .map(|slice| (self.devices.number(&slice.device), self.slices.number(slice)))
            .collect();
        let evidence: Vec<usize> = batch.evidence.iter().map(|each| self.evidence.number(each)).collect();
        for row in &batch.rows {
            let (Some((device, slice)), Some(evidence)) = (slices.get(row.slice), evidence.get(row.evidence))
            else {
                continue;
            };
            if source.rank == SourceRank::Import {
                let key = AmendmentKey {
                    source: source_number,
                    device: *device,
                    workload: batch.evidence.get(row.evidence).and_then(Evidence::workload).cloned(),
                    start: row.uncut.start(),
                };
                let highest = self.highest.entry(key).or_insert(number);
                *highest = number.max(*highest);
            }
            self.claims.push(Claim {
                device: *device,
                span: row.span,
                source: source_number,
                slice: *slice,
                evidence: *evidence,
                uncut: row.uncut,
                number,
            });
        }
        for coverage in batch.coverage.iter().filter(|each| each.of == CoverageOf::Holding) {
            let device = self.devices.number(&coverage.device);
            self.vouched.push((device, source_number, coverage.span));
        }
    }

    /// The uncut starts before `before` of import holdings seen so far: the days in which a later import
    /// may have amended them.
    #[must_use]
    pub fn uncut_starts_before(&self, before: Instant) -> Vec<(Source, Instant)> {
        let mut starts: Vec<(Source, Instant)> = self
            .claims
            .iter()
            .filter(|claim| claim.uncut.start() < before)
            .filter_map(|claim| Some((self.sources.values.get(claim.source)?.clone(), claim.uncut.start())))
            .filter(|(source, _)| source.rank == SourceRank::Import)
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
            let Some(number) = self.devices.numbers.get(device) else {
                continue;
            };
            self.fold_device(*number, device, &places, &mut folded);
        }
        let tables = SortedTables {
            slices: self.slices.in_order(),
            evidence: self.evidence.in_order(),
            sources: self.sources.in_order(),
        };
        folded.into_iter().map(|hour| hour.finish(&tables)).collect()
    }

    /// The claims of one device that hold: not amended away, each once, in order of time.
    fn standing(&self, device: usize, within: Span, places: &Places) -> Vec<Claim> {
        let mut standing: Vec<Claim> = self
            .claims
            .iter()
            .filter(|claim| claim.device == device && claim.span.meets(within) && self.stands(claim))
            .map(|claim| Claim { span: claim.span.clip(within), number: 0, ..*claim })
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
            (claim.span, natural, place(&places.evidence, claim.evidence), claim.uncut)
        });
        merged
    }

    fn stands(&self, claim: &Claim) -> bool {
        let key = AmendmentKey {
            source: claim.source,
            device: claim.device,
            workload: self.evidence.values.get(claim.evidence).and_then(Evidence::workload).cloned(),
            start: claim.uncut.start(),
        };
        self.highest.get(&key).is_none_or(|highest| *highest == claim.number)
    }

    fn fold_device(&self, device: usize, name: &Name, places: &Places, hours: &mut [HourBuilder]) {
        let (Some(first), Some(last)) = (hours.first(), hours.last()) else {
            return;
        };
        let run = Span::clamped(first.hour.start(), last.hour.end());
        let claims = self.standing(device, run, places);
        let mut by_source: HashMap<usize, Vec<Span>> = HashMap::new();
        for (_, source, span) in self.vouched.iter().filter(|(each, ..)| *each == device) {
            by_source.entry(*source).or_default().push(span.clip(run));
        }
        let mut vouched: Vec<(usize, Vec<Span>)> =
            by_source.into_iter().map(|(source, spans)| (source, merged(spans))).collect();
        vouched.sort_unstable();
        if claims.is_empty() && vouched.iter().all(|(_, spans)| spans.is_empty()) {
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
            sweep.over(hour, &self.sources.values, |span, instant| {
                let mut holders: Vec<Holder> = instant
                    .held
                    .iter()
                    .filter(|claim| claim.source == instant.believed)
                    .map(|claim| Holder {
                        slice: place(&places.slices, claim.slice),
                        evidence: place(&places.evidence, claim.evidence),
                    })
                    .collect();
                holders.sort_unstable();
                let source = place(&places.sources, instant.believed);
                for claim in instant.held.iter().filter(|claim| claim.source != instant.believed) {
                    let set_aside = place(&places.sources, claim.source);
                    conflicts.push(Conflict { span, believed: source, set_aside });
                }
                let next = Segment { span, source, covered: instant.covered, holders };
                match segments.last_mut() {
                    Some(last) if continues(last, &next) => {
                        last.span = Span::clamped(last.span.start(), next.span.end())
                    }
                    Some(_) | None => segments.push(next),
                }
            });
            for claim in sweep.crowded.drain(..) {
                let source = place(&places.sources, claim.source);
                conflicts.push(Conflict { span: claim.span.clip(hour), believed: source, set_aside: source });
            }
            if !segments.is_empty() {
                let conflicts = merged_conflicts(conflicts);
                builder.devices.push(DeviceSegments { device: name.clone(), segments, conflicts });
            }
        }
    }
}

fn place(places: &[usize], number: usize) -> usize {
    places.get(number).copied().unwrap_or_default()
}

fn continues(last: &Segment, next: &Segment) -> bool {
    last.span.end() == next.span.start()
        && last.source == next.source
        && last.covered == next.covered
        && last.holders == next.holders
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

/// One instant's account of a device.
struct Account<'a> {
    believed: usize,
    covered: bool,
    held: &'a [Claim],
}

/// Walks one device's claims and coverage in order of time, hour by hour.
struct Sweep {
    claims: Vec<Claim>,
    next: usize,
    active: Vec<Claim>,
    /// Claims that found no room since they were last taken.
    crowded: Vec<Claim>,
    vouched: Vec<(usize, Vec<Span>)>,
}

impl Sweep {
    /// `claims` sorted by start (they are of one device, so their order is by span first).
    fn new(claims: Vec<Claim>, vouched: Vec<(usize, Vec<Span>)>) -> Self {
        Self { claims, next: 0, active: Vec::new(), crowded: Vec::new(), vouched }
    }

    /// Calls `account` for each elementary span of `hour` of which some source speaks, in order of time.
    fn over(&mut self, hour: Span, sources: &[Source], mut account: impl FnMut(Span, &Account<'_>)) {
        let mut edges: Vec<Instant> = vec![hour.start(), hour.end()];
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
                let same = |each: &&Claim| each.source == claim.source && each.span.end() > span.start();
                let room = self.active.iter().filter(same).count() < HOLDERS_MAX;
                if room {
                    self.active.push(*claim)
                } else {
                    self.crowded.push(*claim)
                }
                self.next = self.next.saturating_add(1);
            }
            // After those that began: one that ended before this hour may never have been looked at.
            self.active.retain(|claim| claim.span.end() > span.start());
            let vouching = |source: usize| {
                self.vouched.iter().any(|(each, spans)| *each == source && covers(spans, span.start()))
            };
            let speaking = self.active.iter().map(|claim| claim.source).chain(
                self.vouched
                    .iter()
                    .filter(|(_, spans)| covers(spans, span.start()))
                    .map(|(source, _)| *source),
            );
            let Some(believed) = speaking.min_by(|a, b| sources.get(*a).cmp(&sources.get(*b))) else {
                continue;
            };
            account(span, &Account { believed, covered: vouching(believed), held: &self.active });
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
    fn new(hour: Span) -> Self {
        Self { hour, devices: Vec::new(), covered_nanos: 0 }
    }

    /// Keeps of the tables what this hour uses, and points into those.
    fn finish(mut self, tables: &SortedTables<'_>) -> HourSegments {
        let (mut slices, mut evidence, mut sources) = (Vec::new(), Vec::new(), Vec::new());
        for device in &self.devices {
            for segment in &device.segments {
                sources.push(segment.source);
                slices.extend(segment.holders.iter().map(|holder| holder.slice));
                evidence.extend(segment.holders.iter().map(|holder| holder.evidence));
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
                segment.source = renumber(&sources, segment.source);
                for holder in &mut segment.holders {
                    holder.slice = renumber(&slices, holder.slice);
                    holder.evidence = renumber(&evidence, holder.evidence);
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
        let slice =
            Slice { device: Name::fixed("GPU-1"), mode: SharingMode::Dedicated, size: SliceSize::Whole };
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
                            hour.sources[segment.source].sender,
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
