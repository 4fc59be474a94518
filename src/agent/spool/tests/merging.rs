//! Merging keeps every integral and who held what.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::agent::spool::merge;

/// Minutes in which holders, slices and coverage come and go as drawn.
fn windows(draws: &[(u8, u8, u8, bool)]) -> Vec<Batch> {
    let mut all = Vec::new();
    for (minute, (holder, held, there, covered)) in draws.iter().enumerate() {
        let minute = i64::try_from(minute).unwrap();
        let mut batch = measured(minute, 2, 2, 1_000).batch;
        for slice in 0..4 {
            let holder = (holder >> (2 * slice)) & 1;
            batch.evidence[slice] =
                Evidence::from_iter([(EvidenceField::Pod, name(&format!("pod-{holder}")))]);
        }
        batch.rows.retain(|row| held >> row.slice & 1 == 1);
        batch.usage.retain(|row| held >> row.slice & 1 == 1);
        batch.layout.retain(|row| there >> row.slice & 1 == 1);
        if !covered {
            batch.coverage.clear();
            batch.energy.clear();
        }
        // What a slice as a whole did, whoever held it.
        let whole = UseRow {
            slice: 0,
            evidence: None,
            ..batch.usage.first().cloned().unwrap_or(UseRow {
                slice: 0,
                evidence: None,
                span: minutes(minute, minute + 1),
                uncut_start: at(minute),
                active_nanos: Some(7),
                memory_byte_seconds: None,
            })
        };
        batch.usage.push(whole);
        all.push(batch);
    }
    all
}

type Key = (Slice, Option<Evidence>);

/// Sums by key, and the held time by key and minute.
#[derive(Debug, PartialEq, Eq, Default)]
struct Told {
    sums: BTreeMap<Key, (i64, i64)>,
    energy: BTreeMap<Name, i64>,
    held: BTreeMap<(Key, i64), i64>,
}

fn told(batches: &[Batch]) -> Told {
    let Told { mut sums, mut energy, mut held } = Told::default();
    for batch in batches {
        let key = |slice: usize, evidence: Option<usize>| {
            (batch.slices[slice].clone(), evidence.map(|at| batch.evidence[at].clone()))
        };
        for row in &batch.usage {
            let sum = sums.entry(key(row.slice, row.evidence)).or_insert((0, 0));
            sum.0 += row.active_nanos.unwrap_or(0);
            sum.1 += row.memory_byte_seconds.unwrap_or(0);
        }
        for row in &batch.energy {
            *energy.entry(row.device.clone()).or_insert(0) += row.millijoules;
        }
        for row in &batch.rows {
            for minute in 0..15 {
                let part = row.span.clip(minutes(minute, minute + 1)).nanos();
                if part > 0 {
                    *held.entry((key(row.slice, Some(row.evidence)), minute)).or_insert(0) += part;
                }
            }
        }
    }
    Told { sums, energy, held }
}

proptest! {
    #[test]
    fn sums_and_held_time_are_the_same(draws in prop::collection::vec(any::<(u8, u8, u8, bool)>(), 1..15)) {
        let windows = windows(&draws);
        let before = told(&windows);
        prop_assert_eq!(&told(&[merge::join(&windows)]), &before);
        let merged = merge::merge(&windows);
        prop_assert_eq!(&told(std::slice::from_ref(&merged)), &before);
        // A message says the same.
        let settings = settings(1);
        let message = usage_v1::encode(&settings.scope, &settings.source, &merged).unwrap();
        prop_assert_eq!(&told(&[decoded(&body::pack(&message).unwrap())]), &before);
        // Merging in two steps is merging in one.
        let half = windows.len() / 2;
        let two = [merge::merge(&windows[..half]), merge::merge(&windows[half..])];
        prop_assert_eq!(&told(&[merge::merge(&two)]), &before);
    }

    #[test]
    fn no_integral_is_spread_over_a_change(draws in prop::collection::vec(any::<(u8, u8, u8, bool)>(), 1..15)) {
        let merged = merge::merge(&windows(&draws));
        for use_row in &merged.usage {
            let device = &merged.slices[use_row.slice].device;
            for row in merged.rows.iter().filter(|row| &merged.slices[row.slice].device == device) {
                for edge in [row.span.start(), row.span.end()] {
                    let inside = use_row.span.start() < edge && edge < use_row.span.end();
                    prop_assert!(!inside, "{:?} over {:?}", use_row, row);
                }
            }
        }
    }
}

#[test]
fn a_quiet_quarter_hour_is_one_row_of_each() {
    let windows: Vec<Batch> = (0..15).map(|minute| measured(minute, 2, 3, 1_000).batch).collect();
    let merged = merge::merge(&windows);
    let tables = [merged.rows.len(), merged.usage.len(), merged.energy.len(), merged.coverage.len()];
    assert_eq!((tables, merged.clocks.len()), ([6, 6, 2, 4], 1));
    let whole = minutes(0, 15);
    assert!(merged.usage.iter().all(|row| row.span == whole && row.uncut_start == at(0)));
    assert_eq!(merged.clocks[0].monotonic_nanos, 14 * 60_000_000_000);
}

#[test]
fn a_change_of_holder_stays_a_cut_for_the_device() {
    let mut windows: Vec<Batch> = (0..4).map(|minute| measured(minute, 1, 2, 1_000).batch).collect();
    for late in &mut windows[2..] {
        late.evidence[1] = Evidence::from_iter([(EvidenceField::Pod, name("another"))]);
    }
    let merged = merge::merge(&windows);
    let spans = |slice: usize| -> Vec<Span> {
        merged.usage.iter().filter(|row| row.slice == slice).map(|row| row.span).collect()
    };
    // Also of the slice beside it: its activity is measured on the same device.
    assert_eq!(spans(0), [minutes(0, 2), minutes(2, 4)]);
    assert_eq!(merged.energy.iter().map(|row| row.span).collect::<Vec<_>>(), [minutes(0, 2), minutes(2, 4)]);
    assert_eq!(merged.rows.len(), 3);
}

#[test]
fn a_sum_that_does_not_fit_is_two_rows() {
    let mut windows: Vec<Batch> = (0..2).map(|minute| measured(minute, 1, 1, 1_000).batch).collect();
    for window in &mut windows {
        window.usage[0].memory_byte_seconds = Some(i64::MAX);
        window.energy[0].millijoules = i64::MAX;
    }
    let merged = merge::merge(&windows);
    assert_eq!((merged.usage.len(), merged.energy.len(), merged.rows.len()), (2, 2, 1));
}
