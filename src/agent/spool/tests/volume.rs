//! An outage of days: what fits, what is merged, and what becomes a gap.

use super::*;
use crate::domain::usage::merged;

/// Fills a spool through an outage; nothing is sent. Returns how the disk was used at the end.
fn outage(budget: u64, to: i64, gpus: i64, slices: i64) -> (Spool<SimDisk>, Pressure) {
    let mut spool = open(&SimDisk::default(), budget).unwrap();
    for minute in 0..to {
        spool.append(&measured(minute, gpus, slices, 720)).unwrap();
        let used = spool.pressure().used;
        assert!(used <= budget, "{used} at minute {minute}");
    }
    let pressure = spool.pressure();
    (spool, pressure)
}

/// Gaps and windows are the whole time, and nothing is told twice.
fn whole(spool: &Spool<SimDisk>, to: i64) -> (usize, Vec<Span>) {
    let mut edge = at(0);
    let mut gaps = Vec::new();
    for entry in spool.windows.values() {
        assert_eq!(entry.span.start(), edge);
        edge = entry.span.end();
        if entry.is_gap {
            gaps.push(entry.span);
        }
    }
    assert_eq!(edge, at(to));
    (spool.windows.len(), gaps)
}

#[test]
fn an_outage_that_fits_stays_as_it_was_measured() {
    let (spool, pressure) = outage(BUDGET_BYTES, 240, 8, 7);
    let (records, gaps) = whole(&spool, 240);
    assert_eq!((records, gaps, pressure.state), (240, vec![], PressureState::Fine));
    let a_window = pressure.used / 240;
    // Seven days of minutes, by this.
    assert!(a_window * 10_080 < BUDGET_BYTES, "{a_window} bytes a window");
}

#[test]
fn an_outage_that_does_not_fit_is_merged_into_quarter_hours() {
    let (mut spool, pressure) = outage(400_000, 600, 2, 3);
    assert_eq!(pressure.state, PressureState::Merging);
    let (records, gaps) = whole(&spool, 600);
    assert!(records < 450 && gaps.is_empty(), "{records} {gaps:?}");
    for entry in spool.windows.values() {
        let quarter = |instant: Instant| (instant.micros() - BEGIN).div_euclid(15 * MINUTE);
        let last = Instant::from_micros(entry.span.end().micros() - 1);
        assert_eq!(quarter(entry.span.start()), quarter(last), "{}", entry.span);
    }
    let mut service = Service::default();
    spool.split(at(600)).unwrap();
    for lane in Lane::ALL {
        send(&mut spool, &mut service, lane, at(600)).unwrap();
    }
    assert_eq!(service.check(0..600, "merged"), 0);
    // Energy of all minutes, to the millijoule.
    let all: i64 = service.heard().0.iter().flat_map(|batch| &batch.energy).map(|row| row.millijoules).sum();
    let measured = (0..600).flat_map(|minute| measured(minute, 2, 3, 720).batch.energy);
    assert_eq!(all, measured.map(|row| row.millijoules).sum::<i64>());
}

#[test]
fn an_outage_beyond_that_is_a_gap_and_the_newest_windows() {
    let (mut spool, pressure) = outage(100_000, 900, 2, 3);
    assert_eq!(pressure.state, PressureState::Dropping);
    let (_, gaps) = whole(&spool, 900);
    assert_eq!(merged(gaps.clone()), gaps, "gaps that touch are one");
    assert!(matches!(gaps.as_slice(), [gap] if gap.start() == at(0) && gap.end() < at(800)), "{gaps:?}");
    // A restart finds the same.
    let disk = spool.disk.clone();
    drop(spool);
    spool = open(&disk, 100_000).unwrap();
    assert_eq!(whole(&spool, 900).1, gaps);
    let mut service = Service::default();
    spool.split(at(900)).unwrap();
    for lane in Lane::ALL {
        send(&mut spool, &mut service, lane, at(900)).unwrap();
    }
    let in_gaps = service.check(0..900, "dropped");
    assert_eq!(i64::try_from(in_gaps).unwrap(), gaps[0].nanos() / (MINUTE * 1_000));
}

/// All files of windows that a disk has, added to those seen before.
fn remember(disk: &SimDisk, seen: &mut BTreeMap<String, Vec<u8>>) {
    for file in disk.files().into_iter().filter(|file| file.starts_with("windows")) {
        disk.edit(&file, |bytes| drop(seen.insert(file.clone(), bytes.clone())));
    }
}

/// Brings back files that were removed, as power may that is lost before the removal is durable.
fn bring_back(disk: &mut SimDisk, seen: &BTreeMap<String, Vec<u8>>) -> usize {
    let there = disk.files();
    let gone: Vec<_> = seen.iter().filter(|(file, _)| !there.contains(file)).collect();
    for (file, bytes) in &gone {
        disk.create(file).unwrap();
        disk.append(file, bytes).unwrap();
        disk.sync(file).unwrap();
    }
    disk.sync_folder().unwrap();
    gone.len()
}

#[test]
fn a_file_that_comes_back_tells_nothing_twice() {
    const BUDGET: u64 = 24_000;
    let mut disk = SimDisk::default();
    let mut spool = open(&disk, BUDGET).unwrap();
    let mut seen = BTreeMap::new();
    for minute in 0..120 {
        spool.append(&measured(minute, 1, 2, 720)).unwrap();
        remember(&disk, &mut seen);
    }
    let before = whole(&spool, 120);
    drop(spool);
    assert!(bring_back(&mut disk, &seen) > 10);
    let mut spool = open(&disk, BUDGET).unwrap();
    assert_eq!(whole(&spool, 120), before);
    assert!(bring_back(&mut disk.copy(), &seen) > 10, "what was taken over was removed again");
    let mut service = Service::default();
    send(&mut spool, &mut service, Lane::Live, at(120)).unwrap();
    drop(spool);
    bring_back(&mut disk, &seen);
    let mut spool = open(&disk, BUDGET).unwrap();
    assert!(!spool.has_untried(Lane::Live) && !spool.has_untried(Lane::Backlog));
    assert_eq!(spool.next_batch(Lane::Live, LIMITS, true).unwrap(), None);
    service.check(0..120, "files came back");
}

/// Hours without a service and with little room, split into lanes at a minute, with one call that fails. Returns the
/// calls in which windows on both sides of the split were dropped, and all calls; none: the spool had to end.
fn cramped(split: i64, fail: Option<usize>) -> Option<(std::ops::Range<usize>, usize)> {
    let disk = SimDisk::default();
    if let Some(call) = fail {
        disk.at(call, crate::agent::spool::sim::Fault::Fail);
    }
    let mut spool = open(&disk, 24_000).ok()?;
    let mut crossing = 0..0;
    for minute in 0..130 {
        if minute == split {
            spool.split(at(minute)).ok()?;
        }
        let window = measured(minute, 1, 1, 720);
        let before = disk.calls();
        // Once more where nothing was kept; a spool that does not know its disk ends.
        if let Err(error) = spool.append(&window) {
            if error.is_fatal() {
                return None;
            }
            spool.append(&window).unwrap();
        }
        whole(&spool, minute + 1);
        // The lanes part where they were split, whatever was dropped on both sides.
        let from = spool.cursor.live_from;
        assert!(spool.windows.iter().all(|(first, entry)| entry.last < from || from <= *first));
        let has_crossed = from > 0 && spool.windows.get(&from).is_some_and(|entry| entry.is_gap);
        if has_crossed && crossing.is_empty() {
            crossing = before..disk.calls();
        }
    }
    Some((crossing, disk.calls()))
}

#[test]
fn a_call_that_fails_while_room_is_made_leaves_windows_and_gaps_whole() {
    // One of them has both sides of the split in one file.
    for split in [41, 42] {
        let (crossing, calls) = cramped(split, None).unwrap();
        assert!(!crossing.is_empty());
        let few = (0..calls).step_by(19).chain(crossing);
        let ended: Vec<usize> = few.filter(|call| cramped(split, Some(*call)).is_none()).collect();
        assert!(ended.len() < calls / 19, "{} of {calls}", ended.len());
    }
}

#[test]
#[ignore = "minutes: a week of 8 GPUs with 7 slices each, three times"]
fn a_week_of_56_slices_fits_unmerged() {
    const WEEK: i64 = 10_080;
    let minutes = |gaps: &[Span]| gaps.iter().map(|gap| gap.nanos() / (MINUTE * 1_000)).sum::<i64>();
    for budget in [BUDGET_BYTES, 8 << 20, 1 << 20] {
        let (spool, pressure) = outage(budget, WEEK, 8, 7);
        let (records, gaps) = whole(&spool, WEEK);
        let a_minute = pressure.used / WEEK.unsigned_abs();
        let lost = minutes(&gaps);
        eprintln!("{budget} bytes: {records} records, {a_minute} bytes a minute, {lost} minutes in gaps");
        match budget {
            BUDGET_BYTES => assert_eq!((i64::try_from(records), lost), (Ok(WEEK), 0)),
            _ if budget == 8 << 20 => assert_eq!((pressure.state, lost), (PressureState::Merging, 0)),
            _ => assert!(pressure.state == PressureState::Dropping && 0 < lost && lost < WEEK),
        }
    }
}
