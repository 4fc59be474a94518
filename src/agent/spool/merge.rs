//! Several windows as one: tables without repetition, rows that touch as one row, and sums of integrals.
//!
//! Always true: who held what at each instant is the same before and after, and so is the sum of every integral. No
//! integral is spread over a change of who holds a device or of what exists on it.

use std::collections::BTreeMap;

use crate::domain::ids::Name;
use crate::domain::period::Span;
use crate::domain::units::Instant;
use crate::domain::usage::{
    Batch, ClockRow, Coverage, EnergyRow, Evidence, Gap, LayoutRow, Row, Slice, UseRow,
};

/// The longest of a batch's tables.
pub(super) fn largest_table(batch: &Batch) -> usize {
    let tables = [
        batch.slices.len(),
        batch.evidence.len(),
        batch.rows.len(),
        batch.layout.len(),
        batch.usage.len(),
        batch.energy.len(),
        batch.coverage.len(),
        batch.clocks.len(),
        batch.gaps.len(),
    ];
    tables.into_iter().max().unwrap_or_default()
}

/// Windows as one batch. Use and energy stay a row for each window.
pub(super) fn join(windows: &[Batch]) -> Batch {
    let mut tables = Tables::default();
    for window in windows {
        tables.take(window);
    }
    let mut all = tables.batch;
    all.rows = joined(all.rows, |row| (row.slice, row.evidence), |row| row.span, join_rows);
    all.layout = joined(all.layout, |row| row.slice, |row| row.span, join_layout);
    all.coverage = joined(
        all.coverage,
        |each| (each.device.clone(), each.of),
        |each| each.span,
        |a, b| Some(Coverage { span: whole(a.span, b.span)?, ..a.clone() }),
    );
    all.clocks = joined(
        all.clocks,
        |row| (row.boot.clone(), row.offset_micros),
        |row| row.span,
        // The later reading.
        |a, b| Some(ClockRow { span: whole(a.span, b.span)?, ..b.clone() }),
    );
    all.gaps = joined(
        all.gaps,
        |gap| gap.reason.clone(),
        |gap| gap.span,
        |a, b| Some(Gap { span: whole(a.span, b.span)?, ..a.clone() }),
    );
    all
}

/// Windows as one window: as [`join`], and integrals of one key that touch are added.
pub(super) fn merge(windows: &[Batch]) -> Batch {
    let mut all = join(windows);
    let changes = changes(&all);
    let is_cut = |device: &Name, a: Span, b: Span| {
        let edges = changes.get(device).map(Vec::as_slice).unwrap_or_default();
        edges.iter().any(|edge| a.start() < *edge && *edge < b.end())
    };
    let slices = &all.slices;
    let usage = joined(
        std::mem::take(&mut all.usage),
        |row| {
            let measured = (row.active_nanos.is_some(), row.memory_byte_seconds.is_some());
            (row.slice, row.evidence, measured)
        },
        |row| row.span,
        |a, b| {
            let device = slices.get(a.slice).map(|slice| &slice.device)?;
            if a.span.end() != b.span.start() || is_cut(device, a.span, b.span) {
                return None;
            }
            Some(UseRow {
                span: whole(a.span, b.span)?,
                uncut_start: a.uncut_start.min(b.uncut_start),
                active_nanos: sum(a.active_nanos, b.active_nanos)?,
                memory_byte_seconds: sum(a.memory_byte_seconds, b.memory_byte_seconds)?,
                ..a.clone()
            })
        },
    );
    let energy = joined(
        std::mem::take(&mut all.energy),
        |row| row.device.clone(),
        |row| row.span,
        |a, b| {
            if a.span.end() != b.span.start() || is_cut(&a.device, a.span, b.span) {
                return None;
            }
            let millijoules = a.millijoules.checked_add(b.millijoules)?;
            Some(EnergyRow { span: whole(a.span, b.span)?, millijoules, ..a.clone() })
        },
    );
    Batch { usage, energy, ..all }
}

/// The sum of two integrals of which both or none were measured; none: it leaves its type.
#[expect(clippy::option_option, reason = "not measured, and a sum that does not fit, are two things")]
fn sum(a: Option<i64>, b: Option<i64>) -> Option<Option<i64>> {
    match (a, b) {
        (Some(a), Some(b)) => a.checked_add(b).map(Some),
        (None, None) => Some(None),
        (Some(_), None) | (None, Some(_)) => None,
    }
}

/// For each device, the instants at which a holding, a slice or coverage of it begins or ends.
fn changes(joined: &Batch) -> BTreeMap<Name, Vec<Instant>> {
    let mut changes: BTreeMap<Name, Vec<Instant>> = BTreeMap::new();
    let device = |slice: usize| joined.slices.get(slice).map(|slice| &slice.device);
    let rows = joined.rows.iter().map(|row| (device(row.slice), row.span));
    let layout = joined.layout.iter().map(|row| (device(row.slice), row.span));
    let coverage = joined.coverage.iter().map(|each| (Some(&each.device), each.span));
    for (device, span) in rows.chain(layout).chain(coverage) {
        if let Some(device) = device {
            changes.entry(device.clone()).or_default().extend([span.start(), span.end()]);
        }
    }
    changes
}

/// Two spans that meet or touch as one; none: there is time between them.
fn whole(a: Span, b: Span) -> Option<Span> {
    let (first, second) = if a.start() <= b.start() { (a, b) } else { (b, a) };
    (second.start() <= first.end()).then(|| Span::clamped(first.start(), first.end().max(second.end())))
}

/// A deletion, whose uncut span is empty, is joined with nothing.
fn join_uncut(a: Span, b: Span) -> Option<Span> {
    if a.is_empty() || b.is_empty() {
        return None;
    }
    Some(Span::clamped(a.start().min(b.start()), a.end().max(b.end())))
}

fn join_rows(a: &Row, b: &Row) -> Option<Row> {
    Some(Row { span: whole(a.span, b.span)?, uncut: join_uncut(a.uncut, b.uncut)?, ..a.clone() })
}

fn join_layout(a: &LayoutRow, b: &LayoutRow) -> Option<LayoutRow> {
    Some(LayoutRow { span: whole(a.span, b.span)?, uncut: join_uncut(a.uncut, b.uncut)?, ..a.clone() })
}

/// Sorts rows by key and span, and makes one of neighbours where `two` says so.
fn joined<T, K: Ord>(
    mut rows: Vec<T>,
    key: impl Fn(&T) -> K,
    span: impl Fn(&T) -> Span,
    two: impl Fn(&T, &T) -> Option<T>,
) -> Vec<T> {
    rows.sort_by_cached_key(|row| (key(row), span(row)));
    let mut joined: Vec<T> = Vec::with_capacity(rows.len());
    for row in rows {
        let same = joined.last_mut().filter(|last| key(last) == key(&row));
        match same.and_then(|last| two(last, &row).map(|one| (last, one))) {
            Some((last, one)) => *last = one,
            None => joined.push(row),
        }
    }
    joined
}

/// Puts windows' tables together, and their rows behind one another with new indexes.
#[derive(Default)]
struct Tables {
    batch: Batch,
    slices: BTreeMap<Slice, usize>,
    evidence: BTreeMap<Evidence, usize>,
}

impl Tables {
    fn take(&mut self, window: &Batch) {
        let all = &mut self.batch;
        let slices: Vec<usize> =
            window.slices.iter().map(|each| index(&mut self.slices, &mut all.slices, each)).collect();
        let evidence: Vec<usize> =
            window.evidence.iter().map(|each| index(&mut self.evidence, &mut all.evidence, each)).collect();
        // Rows of a decoded window point into its tables; one that would not is nobody's.
        let slice = |old: usize| slices.get(old).copied();
        let holder = |old: usize| evidence.get(old).copied();
        all.rows.extend(window.rows.iter().filter_map(|row| {
            Some(Row { slice: slice(row.slice)?, evidence: holder(row.evidence)?, ..row.clone() })
        }));
        all.layout.extend(
            window
                .layout
                .iter()
                .filter_map(|row| Some(LayoutRow { slice: slice(row.slice)?, ..row.clone() })),
        );
        all.usage.extend(window.usage.iter().filter_map(|row| {
            let evidence = match row.evidence {
                Some(old) => Some(holder(old)?),
                None => None,
            };
            Some(UseRow { slice: slice(row.slice)?, evidence, ..row.clone() })
        }));
        all.energy.extend(window.energy.iter().cloned());
        all.coverage.extend(window.coverage.iter().cloned());
        all.clocks.extend(window.clocks.iter().cloned());
        all.gaps.extend(window.gaps.iter().cloned());
    }
}

fn index<T: Ord + Clone>(known: &mut BTreeMap<T, usize>, table: &mut Vec<T>, value: &T) -> usize {
    if let Some(at) = known.get(value) {
        return *at;
    }
    let at = table.len();
    table.push(value.clone());
    known.insert(value.clone(), at);
    at
}
