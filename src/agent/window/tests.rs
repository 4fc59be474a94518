//! Rules of windows, on samples that were written by hand.

mod properties;

use std::cell::Cell;

use super::*;
use crate::agent::source::{Amount, Holder, Meter, Newcomer, Presence};
use crate::domain::device::SharingMode;
use crate::domain::ids::Name;
use crate::domain::usage::{CoverageOf, Evidence, EvidenceField, Slice, SliceSize};

/// 2026-06-01T00:00:00Z.
const START: i64 = 1_780_272_000_000_000;
const SECOND: i64 = 1_000_000_000;

/// Milliseconds after the start.
fn at(millis: i64) -> Instant {
    Instant::from_micros(START + millis * 1_000)
}

fn span(from: i64, to: i64) -> Span {
    Span::new(at(from), at(to)).unwrap()
}

/// Counts how often it is asked.
#[derive(Default)]
struct Marks(Cell<u8>);

impl Stamp for Marks {
    fn clocks(&self, span: Span) -> Option<ClockRow> {
        let boot = Name::fixed("boot");
        Some(ClockRow { span, boot, monotonic_nanos: 1, wall_micros: 2, offset_micros: 3 })
    }

    fn source_state(&self) -> Vec<u8> {
        self.0.set(self.0.get() + 1);
        vec![self.0.get()]
    }
}

fn pod(name: &str) -> Evidence {
    [(EvidenceField::Pod, Name::parse(name).unwrap())].into_iter().collect()
}

/// One MIG slice with a holder, measured as a whole, beside one that nobody holds.
fn standing(holder: &str) -> Standing {
    let device = Name::fixed("GPU-1");
    let size = SliceSize::Profile(Name::fixed("1g.10gb"));
    let slice = |id| Slice {
        id: Some(Name::fixed(id)),
        ..Slice::plain(device.clone(), SharingMode::Mig, size.clone())
    };
    Standing {
        device: device.clone(),
        presence: Presence::Present,
        scheduler: None,
        sees_holders: true,
        slices: vec![slice("MIG-1"), slice("MIG-2")],
        holders: vec![Holder { slice: 0, evidence: pod(holder) }],
        meters: vec![Meter { slice: 0, holder: None }],
    }
}

fn amount(active: impl Into<Option<i64>>, held: impl Into<Option<i64>>) -> Amount {
    Amount { active_nanos: active.into(), memory_byte_seconds: held.into() }
}

/// Plays samples of one device.
struct Play {
    windower: Windower,
    now: Arc<Standing>,
    last: Option<Instant>,
    marks: Marks,
}

impl Play {
    fn new() -> Self {
        let (windower, now) = (Windower::new(Instant::MIN), Arc::new(standing("a")));
        Self { windower, now, last: None, marks: Marks::default() }
    }

    /// A look at `millis` that measured since the one before.
    fn look(&mut self, millis: i64, amount: Amount, millijoules: Option<i64>) -> Vec<Window> {
        let look = DeviceSample {
            standing: Arc::clone(&self.now),
            measured_of: Arc::clone(&self.now),
            amounts: vec![amount],
            newcomers: vec![],
            millijoules,
        };
        let sample = Sample { since: self.last.replace(at(millis)), devices: vec![look] };
        self.windower.add(at(millis), &sample, &self.marks)
    }

    /// The same after a change: what was measured is of what was there before.
    fn change(&mut self, millis: i64, next: Standing, amount: Amount) -> Vec<Window> {
        let next = Arc::new(next);
        let look = DeviceSample {
            standing: Arc::clone(&next),
            measured_of: std::mem::replace(&mut self.now, next),
            amounts: vec![amount],
            newcomers: vec![],
            millijoules: None,
        };
        let sample = Sample { since: self.last.replace(at(millis)), devices: vec![look] };
        self.windower.add(at(millis), &sample, &self.marks)
    }

    fn end(&mut self) -> Window {
        self.windower.close(&self.marks).unwrap()
    }
}

fn usage(window: &Window) -> Vec<(Span, Option<i64>, Option<i64>)> {
    window.batch.usage.iter().map(|row| (row.span, row.active_nanos, row.memory_byte_seconds)).collect()
}

#[test]
fn a_window_ends_at_the_minute_and_says_everything_once() {
    let mut play = Play::new();
    assert_eq!(
        play.look(58_000, amount(9 * SECOND, 9), Some(9_000)),
        vec![],
        "measured before anybody looked"
    );
    assert_eq!(play.look(59_000, amount(SECOND / 2, 100), Some(100)), vec![]);
    let [window] = &play.look(61_000, amount(SECOND, 50), Some(200))[..] else { panic!("one window") };
    let whole = span(58_000, 60_000);
    let batch = &window.batch;
    assert_eq!((window.span, &window.source_state), (whole, &vec![1]));
    assert_eq!(batch.slices, play.now.slices);
    assert_eq!(batch.evidence, vec![pod("a")]);
    assert_eq!(
        batch.rows.iter().map(|row| (row.slice, row.evidence, row.span, row.uncut)).collect::<Vec<_>>(),
        [(0, 0, whole, whole)]
    );
    assert_eq!(
        batch.layout.iter().map(|row| (row.slice, row.span, row.uncut)).collect::<Vec<_>>(),
        [(0, whole, whole), (1, whole, whole)]
    );
    let covered: Vec<_> = batch.coverage.iter().map(|each| (each.of, each.span)).collect();
    assert_eq!(covered, [(CoverageOf::Holding, whole), (CoverageOf::Use, whole)]);
    assert_eq!(usage(window), [(whole, Some(SECOND), Some(125))]);
    assert_eq!((batch.energy[0].span, batch.energy[0].millijoules), (whole, 200));
    assert_eq!(batch.clocks[0].span, whole);
    let rest = play.end();
    assert_eq!(
        (rest.span, usage(&rest)),
        (span(60_000, 61_000), vec![(span(60_000, 61_000), Some(SECOND / 2), Some(25))])
    );
    assert_eq!(rest.batch.energy[0].millijoules, 100);
    assert_eq!(play.windower.close(&play.marks), None, "there is nothing more");
}

#[test]
fn a_change_cuts_where_it_was_seen() {
    let mut play = Play::new();
    play.look(1_000, amount(None, None), None);
    play.look(2_000, amount(7, 1), None);
    let [window] = &play.change(3_000, standing("b"), amount(8, 1))[..] else { panic!("one window") };
    assert_eq!(
        (window.span, usage(window)),
        (span(1_000, 3_000), vec![(span(1_000, 3_000), Some(15), Some(2))])
    );
    assert_eq!(window.batch.evidence, vec![pod("a")]);
    play.look(4_000, amount(9, 1), None);
    let next = play.end();
    assert_eq!((next.span, next.batch.evidence.clone()), (span(3_000, 4_000), vec![pod("b")]));
}

#[test]
fn equal_standings_are_no_change_whoever_made_them() {
    let mut play = Play::new();
    play.look(1_000, amount(None, None), None);
    assert_eq!(play.change(2_000, standing("a"), amount(7, 1)), vec![]);
    assert_eq!(play.look(3_000, amount(7, 1), None), vec![]);
    assert_eq!(usage(&play.end()), [(span(1_000, 3_000), Some(14), Some(2))]);
}

#[test]
fn a_span_that_nobody_sampled_is_in_no_window() {
    let mut play = Play::new();
    play.look(1_000, amount(None, None), None);
    play.look(2_000, amount(1, 1), None);
    assert_eq!(play.look(12_000, amount(1, 1), None), vec![], "ten seconds are waited for");
    let [window] = &play.look(22_001, amount(SECOND, 1), None)[..] else { panic!("one window") };
    assert_eq!(window.span, span(1_000, 12_000));
    play.look(23_000, amount(3, 1), None);
    let next = play.end();
    assert_eq!(
        (next.span, usage(&next)),
        (span(22_001, 23_000), vec![(span(22_001, 23_000), Some(3), Some(1))])
    );
    assert_eq!(play.windower.counts().silences, 1);
}

#[test]
fn a_clock_that_goes_back_tells_no_time_twice() {
    let mut play = Play::new();
    play.look(10_000, amount(None, None), None);
    play.look(12_000, amount(2 * SECOND, 1), None);
    let [window] = &play.look(5_000, amount(SECOND, 1), None)[..] else { panic!("one window") };
    assert_eq!(window.span, span(10_000, 12_000));
    play.last = Some(at(5_000));
    assert_eq!(play.look(11_000, amount(6 * SECOND, 1), None), vec![]);
    play.look(13_000, amount(2 * SECOND, 1), None);
    let next = play.end();
    assert_eq!((next.span, usage(&next)[0].1), (span(12_000, 13_000), Some(SECOND)));
    assert_eq!(play.windower.counts().steps_back, 1);
}

#[test]
fn no_window_begins_before_the_last_edge() {
    let mut play = Play { windower: Windower::new(at(2_500)), ..Play::new() };
    play.look(1_000, amount(None, None), None);
    play.look(2_000, amount(SECOND, 1), None);
    play.look(3_000, amount(SECOND, 10), None);
    let window = play.end();
    let half = span(2_500, 3_000);
    assert_eq!((window.span, usage(&window)), (half, vec![(half, Some(SECOND / 2), Some(5))]));
}

#[test]
fn the_same_sample_again_adds_nothing() {
    let mut play = Play::new();
    play.look(1_000, amount(None, None), None);
    play.look(2_000, amount(5, 5), Some(5));
    play.look(2_000, amount(5, 5), Some(0));
    assert_eq!(usage(&play.end()), [(span(1_000, 2_000), Some(5), Some(5))]);
}

#[test]
fn what_a_source_measures_twice_counts_once() {
    let mut play = Play::new();
    play.look(1_000, amount(None, None), None);
    play.look(4_000, amount(3 * SECOND, 30), Some(30));
    // The driver's buffer comes once more: five seconds, of which one is new.
    play.last = Some(at(0));
    play.look(5_000, amount(5 * SECOND, 50), Some(50));
    let window = play.end();
    assert_eq!(usage(&window), [(span(1_000, 5_000), Some(4 * SECOND), Some(40))]);
    assert_eq!(window.batch.energy[0].millijoules, 40);
}

#[test]
fn what_was_not_measured_is_a_hole_and_no_zero() {
    let mut play = Play::new();
    play.look(1_000, amount(None, None), None);
    play.look(2_000, amount(5, None), Some(3));
    play.look(3_000, amount(None, None), None);
    play.look(4_000, amount(6, None), Some(4));
    play.look(5_000, amount(6, 9), Some(4));
    // The source began anew in between: of half a second it knows nothing.
    play.last = Some(at(5_500));
    play.look(6_000, amount(7, 9), Some(5));
    let window = play.end();
    assert_eq!(window.span, span(1_000, 6_000), "who held what was seen all the time");
    assert_eq!(
        usage(&window),
        [
            (span(1_000, 2_000), Some(5), None),
            (span(3_000, 4_000), Some(6), None),
            (span(4_000, 5_000), Some(6), Some(9)),
            (span(5_500, 6_000), Some(7), Some(9)),
        ]
    );
    let energy: Vec<_> = window.batch.energy.iter().map(|row| (row.span, row.millijoules)).collect();
    assert_eq!(energy, [(span(1_000, 2_000), 3), (span(3_000, 5_000), 8), (span(5_500, 6_000), 5)]);
}

#[test]
fn what_cannot_have_been_is_left_out_and_counted() {
    let mut play = Play::new();
    play.look(1_000, amount(None, None), None);
    play.look(2_000, amount(SECOND + 3, 1), Some(100_000_001));
    play.look(3_000, amount(SECOND, -1), Some(-1));
    let window = play.end();
    assert_eq!(
        usage(&window),
        [(span(1_000, 2_000), Some(SECOND), Some(1)), (span(2_000, 3_000), Some(SECOND), None),]
    );
    assert_eq!(window.batch.energy, vec![]);
    let counts = play.windower.counts();
    assert_eq!((counts.overstated_nanos, counts.negative, counts.implausible_energy), (3, 1, 2));
}

#[test]
fn a_second_that_is_overstated_and_one_that_is_understated_even_out() {
    let mut play = Play::new();
    play.look(1_000, amount(None, None), None);
    play.look(2_000, amount(SECOND + 3, 1), None);
    play.look(3_000, amount(SECOND - 3, 1), None);
    assert_eq!(usage(&play.end()), [(span(1_000, 3_000), Some(2 * SECOND), Some(2))]);
    assert_eq!(play.windower.counts().overstated_nanos, 0);
}

#[test]
fn amounts_of_something_else_are_not_taken() {
    let mut play = Play::new();
    play.look(1_000, amount(None, None), None);
    play.now = Arc::new(standing("b"));
    let windows = play.look(2_000, amount(SECOND, 1), None);
    assert_eq!(windows.iter().map(usage).collect::<Vec<_>>(), [vec![]]);
    assert_eq!(windows[0].batch.evidence, vec![pod("a")]);
    assert_eq!(play.windower.counts().misfits, 1);
}

#[test]
fn holders_that_were_not_seen_leave_use_alone() {
    let mut play = Play::new();
    let hidden = Standing { sees_holders: false, holders: vec![], ..standing("a") };
    play.look(1_000, amount(None, None), None);
    play.change(2_000, hidden, amount(1, 1));
    play.look(3_000, amount(2, 2), None);
    let window = play.end();
    let covered: Vec<CoverageOf> = window.batch.coverage.iter().map(|each| each.of).collect();
    assert_eq!(covered, [CoverageOf::Use]);
    assert_eq!((window.batch.rows.len(), window.batch.layout.len(), usage(&window).len()), (0, 2, 1));
}

#[test]
fn nobody_vouches_for_a_lost_device() {
    let mut play = Play::new();
    let lost = Standing::lost(Name::fixed("GPU-1"), Name::fixed("Xid 79"));
    play.look(1_000, amount(None, None), None);
    assert_eq!(play.change(2_000, lost, amount(1, 1))[0].batch.coverage.len(), 2);
    let back = Arc::new(standing("a"));
    let newcomer = Newcomer { slice: back.slices[0].clone(), evidence: None, amount: amount(1, 1) };
    let look = DeviceSample {
        measured_of: Arc::clone(&play.now),
        newcomers: vec![newcomer],
        millijoules: Some(5),
        ..DeviceSample::unmeasured(back)
    };
    let sample = Sample { since: Some(at(2_000)), devices: vec![look] };
    let [window] = &play.windower.add(at(3_000), &sample, &play.marks)[..] else { panic!("one window") };
    let clocks = window.batch.clocks.clone();
    assert_eq!(window.batch, Batch { clocks, ..Batch::default() });
}

#[test]
fn who_came_between_two_samples_is_measured_and_holds_from_the_second() {
    let mut play = Play::new();
    play.look(1_000, amount(None, None), None);
    let next = Arc::new(standing("b"));
    let seen = Some(pod("b"));
    let newcomer = Newcomer { slice: next.slices[0].clone(), evidence: seen, amount: amount(4, 4) };
    let look = DeviceSample {
        standing: next,
        measured_of: Arc::clone(&play.now),
        amounts: vec![amount(6, 6)],
        newcomers: vec![newcomer],
        millijoules: None,
    };
    let sample = Sample { since: Some(at(1_000)), devices: vec![look] };
    let [window] = &play.windower.add(at(2_000), &sample, &play.marks)[..] else { panic!("one window") };
    let rows: Vec<_> = window.batch.usage.iter().map(|row| (row.evidence, row.active_nanos)).collect();
    assert_eq!(rows, [(None, Some(6)), (Some(1), Some(4))]);
    assert_eq!(window.batch.rows.len(), 1, "only one held it");
    assert_eq!(window.batch.evidence, vec![pod("a"), pod("b")]);
}

#[test]
fn a_device_that_is_put_in_is_a_change() {
    let mut play = Play::new();
    play.look(1_000, amount(None, None), None);
    let first = Arc::clone(&play.now);
    let second = Arc::new(Standing {
        device: Name::fixed("GPU-2"),
        slices: vec![],
        holders: vec![],
        meters: vec![],
        ..standing("a")
    });
    let both = [DeviceSample::unmeasured(second), DeviceSample::unmeasured(first)];
    let sample = Sample { since: Some(at(1_000)), devices: both.to_vec() };
    let windows = play.windower.add(at(2_000), &sample, &play.marks);
    assert_eq!(windows[0].batch.devices().collect::<Vec<_>>(), [&Name::fixed("GPU-1")]);
    play.windower.add(at(3_000), &sample, &play.marks);
    assert_eq!(play.end().batch.devices().count(), 2);
}

#[test]
fn a_rare_look_is_cut_at_every_minute_between() {
    let mut play = Play { windower: Windower::with_silence_max(Instant::MIN, 300_000_000), ..Play::new() };
    play.look(30_000, amount(None, None), None);
    let windows = play.look(210_000, amount(180, 18), Some(1_800));
    let cut: Vec<_> = windows.iter().map(|each| (each.span, usage(each)[0].1)).collect();
    assert_eq!(
        cut,
        [
            (span(30_000, 60_000), Some(30)),
            (span(60_000, 120_000), Some(60)),
            (span(120_000, 180_000), Some(60)),
        ]
    );
    assert_eq!(usage(&play.end())[0].1, Some(30));
}
