//! The account depends on what was said, never on when it came, how often, or in which batches.

use fatia::domain::device::SharingMode;
use fatia::domain::ids::Name;
use fatia::domain::period::Span;
use fatia::domain::segment::Claims;
use fatia::domain::units::Instant;
use fatia::domain::usage::{Batch, Evidence, EvidenceField, Row, Slice, SliceSize, Source};
use fatia::store::node_hour;
use proptest::collection::vec;
use proptest::prelude::*;

use super::account::Accounted;
use super::holds;
use super::nests::nests;
use super::world::{
    Cover, Existing, HOUR, Holding, MINUTE, NODES, Window, World, device_name, evidence, push_layout,
    push_row, push_use, source, worlds,
};

/// Numbers that decide how something is arranged; all zero leaves it as it is, so failures shrink to that.
#[derive(Debug, Clone)]
struct Choices {
    numbers: Vec<u16>,
    next: usize,
}

impl Choices {
    fn all() -> impl Strategy<Value = Self> {
        vec(any::<u16>(), 64).prop_map(|numbers| Self { numbers, next: 0 })
    }

    /// A number below `bound`.
    fn below(&mut self, bound: usize) -> usize {
        let number = self.numbers[self.next % self.numbers.len()];
        // Walks on through the numbers at another pace each time round, so that patterns do not repeat.
        self.next += 1 + self.next / self.numbers.len();
        usize::from(number) % bound.max(1)
    }

    fn one_in(&mut self, bound: usize) -> bool {
        self.below(bound) + 1 == bound
    }

    fn shuffle<T>(&mut self, all: &mut [T]) {
        for at in 1..all.len() {
            let steps = self.below(at + 1);
            all.swap(at, at - steps);
        }
    }

    /// Cuts a span into up to three; an empty one stays, because it says that something never was.
    fn cut(&mut self, span: Span) -> Vec<Span> {
        let mut edges = vec![span.start(), span.end()];
        for _ in 0..self.below(3) {
            let thousandths = i64::try_from(self.below(1_001)).unwrap();
            let length = span.end().micros() - span.start().micros();
            edges.push(Instant::from_micros(span.start().micros() + length / 1_000 * thousandths));
        }
        edges.sort_unstable();
        edges.windows(2).map(|pair| Span::new(pair[0], pair[1]).unwrap()).collect()
    }

    /// Sends what a fleet's sources say in other batches, in another order, some of it more than once.
    fn arrange(&mut self, world: &World) -> Vec<Window> {
        let mut sent: Vec<(Window, usize)> = Vec::new();
        for holding in &world.holdings {
            for span in self.cut(holding.span) {
                let piece = Holding { span, ..holding.clone() };
                for _ in 0..1 + usize::from(self.one_in(4)) {
                    push_row_shared(self.batch(&mut sent, &piece.source, piece.number), &piece);
                }
            }
        }
        for cover in &world.covers {
            for span in self.cut(cover.coverage.span) {
                let Cover { source, number, mut coverage } = cover.clone();
                coverage.span = span;
                for _ in 0..1 + usize::from(self.one_in(4)) {
                    self.batch(&mut sent, &source, number).coverage.push(coverage.clone());
                }
            }
        }
        for existing in &world.layouts {
            for span in self.cut(existing.span) {
                let piece = Existing { span, ..existing.clone() };
                for _ in 0..1 + usize::from(self.one_in(4)) {
                    push_layout(self.batch(&mut sent, &piece.source, piece.number), &piece);
                }
            }
        }
        // An integral that is cut is another one, so these stay whole.
        for measured in &world.uses {
            for _ in 0..1 + usize::from(self.one_in(4)) {
                push_use(self.batch(&mut sent, &measured.source, 1), measured);
            }
        }
        for energy in &world.energies {
            for _ in 0..1 + usize::from(self.one_in(4)) {
                self.batch(&mut sent, &energy.source, 1).energy.push(energy.row.clone());
            }
        }
        let mut windows: Vec<Window> = Vec::new();
        for (mut window, _) in sent {
            self.reorder(&mut window.batch);
            for _ in 0..1 + usize::from(self.one_in(3)) {
                windows.push(window.clone());
            }
        }
        self.shuffle(&mut windows);
        windows
    }

    /// One of three batches of a source and number.
    fn batch<'a>(
        &mut self,
        sent: &'a mut Vec<(Window, usize)>,
        source: &Source,
        number: i64,
    ) -> &'a mut Batch {
        let which = self.below(3);
        let same = |(window, each): &(Window, usize)| {
            window.source == *source && window.number == number && *each == which
        };
        let at = sent.iter().position(same).unwrap_or_else(|| {
            sent.push((Window { source: source.clone(), number, batch: Batch::default() }, which));
            sent.len() - 1
        });
        &mut sent[at].0.batch
    }

    /// Puts rows, coverage and tables into another order.
    fn reorder(&mut self, batch: &mut Batch) {
        self.shuffle(&mut batch.rows);
        self.shuffle(&mut batch.coverage);
        self.shuffle(&mut batch.layout);
        self.shuffle(&mut batch.usage);
        self.shuffle(&mut batch.energy);
        let mut slices: Vec<usize> = (0..batch.slices.len()).collect();
        let mut evidence: Vec<usize> = (0..batch.evidence.len()).collect();
        self.shuffle(&mut slices);
        self.shuffle(&mut evidence);
        for row in &mut batch.rows {
            row.slice = slices.iter().position(|old| *old == row.slice).unwrap();
            row.evidence = evidence.iter().position(|old| *old == row.evidence).unwrap();
        }
        for row in &mut batch.layout {
            row.slice = slices.iter().position(|old| *old == row.slice).unwrap();
        }
        for row in &mut batch.usage {
            row.slice = slices.iter().position(|old| *old == row.slice).unwrap();
            row.evidence = row.evidence.map(|at| evidence.iter().position(|old| *old == at).unwrap());
        }
        batch.slices = slices.iter().map(|old| batch.slices[*old].clone()).collect();
        batch.evidence = evidence.iter().map(|old| batch.evidence[*old].clone()).collect();
    }
}

/// Adds a row that shares table entries with earlier ones, as a thrifty sender does.
fn push_row_shared(batch: &mut Batch, holding: &Holding) {
    push_row(batch, holding);
    let row = batch.rows.last_mut().unwrap();
    row.slice = batch.slices.iter().position(|slice| *slice == holding.slice).unwrap();
    row.evidence = batch.evidence.iter().position(|seen| *seen == holding.evidence).unwrap();
    batch.slices.truncate(batch.slices.len() - usize::from(row.slice + 1 < batch.slices.len()));
    batch.evidence.truncate(batch.evidence.len() - usize::from(row.evidence + 1 < batch.evidence.len()));
}

fn bodies(accounted: &[Accounted]) -> Vec<Vec<u8>> {
    accounted.iter().map(|each| node_hour::encode(&each.hour).unwrap()).collect()
}

/// Compares contents first, because they say more than bytes when they differ.
fn same_bodies(one: &[Accounted], other: &[Accounted]) -> Result<(), TestCaseError> {
    for (one, other) in one.iter().zip(other) {
        prop_assert_eq!(one, other);
    }
    prop_assert_eq!(bodies(one), bodies(other));
    Ok(())
}

#[test]
fn any_order_repetition_and_split_gives_the_same_bytes() {
    holds(120, (worlds(), Choices::all()), |(world, mut choices)| {
        same_bodies(&world.account(), &world.account_of(&choices.arrange(&world)))
    });
}

#[test]
fn layouts_use_and_energy_give_the_same_bytes_in_any_order_too() {
    holds(150, (nests(), Choices::all()), |(world, mut choices)| {
        same_bodies(&world.account(), &world.account_of(&choices.arrange(&world)))
    });
}

#[test]
fn layouts_sent_whole_and_again_in_pieces_count_once() {
    holds(80, (nests(), Choices::all()), |(world, mut choices)| {
        let mut windows = world.windows();
        windows.extend(choices.arrange(&world));
        choices.shuffle(&mut windows);
        same_bodies(&world.account(), &world.account_of(&windows))
    });
}

// Once a fault of src/domain/segment.rs, `Claims::standing`: it drops equal pieces of a holding and not pieces that overlap.
// See `pieces_of_one_holding_that_overlap_count_once` for the smallest example.
#[test]
fn what_was_sent_whole_and_again_in_pieces_counts_once() {
    holds(60, (worlds(), Choices::all()), |(world, mut choices)| {
        let mut windows = world.windows();
        windows.extend(choices.arrange(&world));
        windows.extend(choices.arrange(&world));
        choices.shuffle(&mut windows);
        same_bodies(&world.account(), &world.account_of(&windows))
    });
}

/// One device, one source, one holder of a quarter of it: pieces of holdings in minutes.
fn quarters(pieces: &[[(i64, i64); 2]]) -> Claims {
    let minutes = |(from, to): (i64, i64)| {
        Span::new(Instant::from_micros(from * MINUTE), Instant::from_micros(to * MINUTE)).unwrap()
    };
    let mut batch = Batch::default();
    for [span, uncut] in pieces {
        let slice = Slice::plain(device_name(0), SharingMode::TimeSlicing, SliceSize::Declared(250_000));
        let (source, evidence) = (source(1), evidence(3));
        let (span, uncut) = (minutes(*span), minutes(*uncut));
        push_row(&mut batch, &Holding { source, number: 0, slice, evidence, span, uncut });
    }
    let mut claims = Claims::new();
    claims.add(&source(1), 0, &batch);
    claims
}

// Once a fault of src/domain/segment.rs, `Claims::standing`: (0, 40) and (20, 60) of one holding hold it twice from 20 to
// 40. Pieces of equal source, slice, evidence and uncut span have to be merged, not only compared.
#[test]
fn pieces_of_one_holding_that_overlap_count_once() {
    let hour = Span::clamped(Instant::MIN, Instant::from_micros(HOUR));
    let whole = quarters(&[[(0, 60), (0, 60)]]).fold(&[hour]);
    assert_eq!(quarters(&[[(0, 40), (0, 60)], [(20, 60), (0, 60)]]).fold(&[hour]), whole);
}

// Once a fault of src/domain/segment.rs, `Sweep::over`: a claim that lies in a hole of the run is still among the active
// ones in the first span after the hole. Ended claims have to go after new ones have come, not before.
#[test]
fn what_was_held_between_two_hours_is_held_in_neither() {
    let hour = |number: i64| {
        Span::clamped(Instant::from_micros(number * HOUR), Instant::from_micros((number + 1) * HOUR))
    };
    let claims = quarters(&[[(70, 80), (70, 80)]]);
    for folded in claims.fold(&[hour(0), hour(2)]) {
        assert_eq!(folded.devices, []);
    }
}

// Once a fault of src/domain/segment.rs: see the two examples above.
#[test]
fn an_hour_folds_alike_alone_in_a_run_and_in_a_run_with_holes() {
    holds(100, (prop_oneof![worlds().boxed(), nests().boxed()], any::<u64>()), |(world, mask)| {
        let hours: Vec<Span> = world.run().into_iter().map(|(_, hour)| hour).collect();
        let some: Vec<Span> = hours
            .iter()
            .enumerate()
            .filter(|(at, _)| mask >> (at % 64) & 1 == 1)
            .map(|(_, hour)| *hour)
            .collect();
        for node in 0..NODES {
            let claims = world.claims(node, &world.windows());
            let run = claims.fold(&hours);
            for segments in claims.fold(&some) {
                let in_run = run.iter().find(|each| each.hour == segments.hour).unwrap();
                prop_assert_eq!(&segments, in_run);
                prop_assert_eq!(&claims.fold(&[segments.hour])[0], in_run);
            }
        }
        Ok(())
    });
}

/// Whatever a source claims, a device has a bounded number of holders, and it does not depend on the order which.
#[test]
fn more_holders_than_there_can_be_are_left_out_alike_in_any_order() {
    let at = |minute: i64| Instant::from_micros(minute * 60_000_000);
    let hour = Span::clamped(at(0), at(60));
    let holder = |number: usize| -> Evidence {
        let workload = Name::parse(&format!("w{number}")).unwrap();
        [(EvidenceField::Workload, workload)].into_iter().collect()
    };
    let rows = |numbers: Vec<usize>| {
        let mut claims = Claims::new();
        for chunk in numbers.chunks(100) {
            let slice = Slice::plain(device_name(0), SharingMode::TimeSlicing, SliceSize::Declared(1_000));
            let holdings = chunk.iter().enumerate().map(|(at, _)| Row {
                slice: 0,
                evidence: at,
                span: hour,
                uncut: hour,
            });
            let batch = Batch {
                slices: vec![slice],
                rows: holdings.collect(),
                evidence: chunk.iter().map(|number| holder(*number)).collect(),
                ..Batch::default()
            };
            claims.add(&source(1), 0, &batch);
        }
        claims.fold(&[hour]).remove(0)
    };
    let folded = rows((0..700).collect());
    assert_eq!(folded, rows((0..700).rev().collect()));
    let device = &folded.devices[0];
    assert_eq!(device.segments.len(), 1);
    assert_eq!(device.segments[0].holders.len(), fatia::domain::segment::HOLDERS_MAX);
    assert_eq!(device.conflicts.len(), 1, "and it is said");
}
