//! What each call promises, on a disk that works.

use super::*;

const ROOM: u64 = 64 << 20;

/// A spool with so many minutes in it.
fn filled(disk: &SimDisk, to: i64) -> Spool<SimDisk> {
    let mut spool = open(disk, ROOM).unwrap();
    for minute in 0..to {
        spool.append(&measured(minute, 1, 2, 25)).unwrap();
    }
    spool
}

fn next(spool: &mut Spool<SimDisk>, lane: Lane) -> Outgoing {
    spool.next_batch(lane, LIMITS, true).unwrap().unwrap()
}

fn covered(out: &Outgoing) -> Batch {
    let OutBody::Bytes(body) = &out.body else { panic!("{out:?}") };
    decoded(body)
}

#[test]
fn a_batch_waits_until_it_is_full_or_closed() {
    let disk = SimDisk::default();
    let mut spool = filled(&disk, 4);
    assert_eq!(spool.next_batch(Lane::Live, LIMITS, false).unwrap(), None);
    spool.append(&measured(4, 1, 2, 25)).unwrap();
    let out = spool.next_batch(Lane::Live, LIMITS, false).unwrap().unwrap();
    assert_eq!((out.sequence, out.span), (1, minutes(0, 5)));
    // The same one until it is acknowledged, also by another process.
    drop(spool);
    let mut spool = open(&disk, ROOM).unwrap();
    assert_eq!(next(&mut spool, Lane::Live), out);
    spool.acknowledge(Lane::Live, 1, at(5)).unwrap();
    assert_eq!(spool.next_batch(Lane::Live, LIMITS, true).unwrap(), None);
}

#[test]
fn a_batch_is_its_windows_with_rows_joined_and_integrals_apart() {
    let disk = SimDisk::default();
    let mut spool = filled(&disk, 5);
    let batch = covered(&next(&mut spool, Lane::Live));
    assert_eq!((batch.slices.len(), batch.evidence.len()), (2, 2));
    assert_eq!(
        (batch.rows.len(), batch.layout.len(), batch.coverage.len(), batch.clocks.len()),
        (2, 2, 2, 1)
    );
    assert!(batch.rows.iter().all(|row| (row.span, row.uncut) == (minutes(0, 5), minutes(0, 5))));
    assert_eq!(batch.clocks[0].monotonic_nanos, 4 * 60_000_000_000);
    assert_eq!((batch.usage.len(), batch.energy.len()), (10, 5));
}

#[test]
fn after_an_outage_the_present_goes_first() {
    let disk = SimDisk::default();
    let mut spool = filled(&disk, 100);
    spool.split(at(100)).unwrap();
    drop(spool);
    let mut spool = open(&disk, ROOM).unwrap();
    assert_eq!(next(&mut spool, Lane::Live).span, minutes(89, 94));
    let old = spool.next_batch(Lane::Backlog, HOUR, true).unwrap().unwrap();
    assert_eq!((old.sequence, old.span), (1, minutes(0, 60)));
    let mut service = Service::default();
    service.take(&old);
    spool.acknowledge(Lane::Backlog, 1, at(100)).unwrap();
    let old = spool.next_batch(Lane::Backlog, HOUR, true).unwrap().unwrap();
    assert_eq!(old.span, minutes(60, 89));
    // A second outage, while the first is still being told.
    for minute in 100..130 {
        spool.append(&measured(minute, 1, 2, 25)).unwrap();
    }
    spool.split(at(130)).unwrap();
    for lane in Lane::ALL {
        send(&mut spool, &mut service, lane, at(130)).unwrap();
    }
    assert_eq!(service.check(0..130, "two outages"), 0);
    assert_eq!(service.streams.len(), 2);
}

#[test]
fn a_backlog_batch_stays_inside_an_hour_of_utc() {
    let disk = SimDisk::default();
    let mut spool = open(&disk, ROOM).unwrap();
    for minute in 40..130 {
        spool.append(&measured(minute, 1, 1, 25)).unwrap();
    }
    spool.split(at(200)).unwrap();
    let mut spans = Vec::new();
    while let Some(out) = spool.next_batch(Lane::Backlog, HOUR, true).unwrap() {
        spans.push(out.span);
        spool.acknowledge(Lane::Backlog, out.sequence, at(200)).unwrap();
    }
    assert_eq!(spans, [minutes(40, 60), minutes(60, 120), minutes(120, 130)]);
}

#[test]
fn a_service_that_was_set_back_is_sent_what_is_held() {
    let disk = SimDisk::default();
    let mut spool = filled(&disk, 15);
    let mut sent = Vec::new();
    for number in 1..=3 {
        sent.push(next(&mut spool, Lane::Live));
        spool.acknowledge(Lane::Live, number, at(15)).unwrap();
    }
    assert_eq!(spool.rewind(Lane::Live, 1).unwrap(), Rewound::To(2));
    assert_eq!(
        spool.lane(Lane::Live).acknowledged_at,
        [(1, at(15))],
        "what has to come again was not yet kept"
    );
    drop(spool);
    let mut spool = open(&disk, ROOM).unwrap();
    for out in &sent[1..] {
        assert_eq!(&next(&mut spool, Lane::Live), out);
        spool.acknowledge(Lane::Live, out.sequence, at(15)).unwrap();
    }
    assert!(matches!(spool.rewind(Lane::Live, 4), Err(SpoolError::NotWaiting { formed: 3, .. })));
    assert!(matches!(spool.acknowledge(Lane::Live, 4, at(15)), Err(SpoolError::NotWaiting { .. })));
}

#[test]
fn numbers_that_are_held_no_more_are_skipped_with_their_time() {
    let disk = SimDisk::default();
    let mut spool = Spool::open(
        disk.clone(),
        Settings { keep_acknowledged_micros: 60 * MINUTE, ..settings(80_000) },
        ids(),
    )
    .unwrap();
    let mut service = Service::default();
    let mut minute = 0;
    // The oldest segment of batches goes an hour after its last one was acknowledged.
    while minute == 0 || spool.held(Lane::Live).contains_key(&1) {
        assert!(minute < 400, "nothing was dropped");
        for _ in 0..5 {
            spool.append(&measured(minute, 1, 2, 25)).unwrap();
            minute += 1;
        }
        send(&mut spool, &mut service, Lane::Live, at(minute)).unwrap();
    }
    assert!(minute > 60, "{minute}: dropped before its time");
    // Another process knows as much.
    let settings = spool.settings.clone();
    drop(spool);
    let mut spool = Spool::open(disk, settings, ids()).unwrap();
    let oldest = *spool.held(Lane::Live).keys().next().unwrap();
    let stream = spool.lane(Lane::Live).stream.clone().unwrap().id;
    service.restore(stream, 1_000);
    let to = i64::try_from(oldest).unwrap() - 1;
    let span = minutes(0, to * 5);
    assert_eq!(spool.rewind(Lane::Live, 0).unwrap(), Rewound::NeedsSkip { from: 1, to, span });
    let out = next(&mut spool, Lane::Live);
    assert!(matches!(out.body, OutBody::Skip { from: 1, to: last, .. } if last == to), "{out:?}");
    send(&mut spool, &mut service, Lane::Live, at(minute)).unwrap();
    let in_gaps = service.check(0..minute, "refilled");
    assert_eq!(i64::try_from(in_gaps).unwrap(), to * 5);
}

#[test]
fn a_new_stream_sends_the_same_bytes_from_one() {
    let disk = SimDisk::default();
    let mut spool = filled(&disk, 10);
    let first = next(&mut spool, Lane::Live);
    spool.acknowledge(Lane::Live, 1, at(10)).unwrap();
    let second = next(&mut spool, Lane::Live);
    spool.new_stream(Lane::Live, Name::fixed("409")).unwrap();
    let again = next(&mut spool, Lane::Live);
    drop(spool);
    let mut spool = open(&disk, ROOM).unwrap();
    assert_eq!(next(&mut spool, Lane::Live), again);
    assert_eq!((second.sequence, again.sequence), (2, 1));
    assert_eq!((&second.body, second.span), (&again.body, again.span));
    assert_ne!(first.stream, again.stream);
    spool.acknowledge(Lane::Live, 1, at(10)).unwrap();
    assert_eq!(spool.next_batch(Lane::Live, LIMITS, true).unwrap(), None);
}

#[test]
fn a_body_that_no_service_takes_becomes_a_skip() {
    let disk = SimDisk::default();
    let mut spool = filled(&disk, 10);
    let out = next(&mut spool, Lane::Live);
    spool.replace_with_skip(Lane::Live, 1, Name::fixed("413")).unwrap();
    drop(spool);
    let mut spool = open(&disk, ROOM).unwrap();
    let skip = OutBody::Skip { from: 1, to: 1, reason: Name::fixed("413"), span: out.span };
    assert_eq!(next(&mut spool, Lane::Live), Outgoing { body: skip, ..out });
    spool.acknowledge(Lane::Live, 1, at(10)).unwrap();
    assert_eq!(next(&mut spool, Lane::Live).sequence, 2);
    let late = spool.replace_with_skip(Lane::Live, 1, Name::fixed("413"));
    assert!(matches!(late, Err(SpoolError::NotWaiting { acknowledged: 1, .. })));
}

#[test]
fn batches_stay_inside_rows_and_bytes_and_one_window_that_cannot_is_skipped() {
    let disk = SimDisk::default();
    let mut spool = filled(&disk, 8);
    // Two use rows a window: four windows at most.
    let few = BatchLimits { rows_max: 9, span_max_micros: 60 * MINUTE, ..LIMITS };
    let out = spool.next_batch(Lane::Live, few, false).unwrap().unwrap();
    assert_eq!(out.span, minutes(0, 4));
    spool.acknowledge(Lane::Live, 1, at(8)).unwrap();
    let OutBody::Bytes(body) = out.body else { panic!() };
    let tight = BatchLimits { bytes_max: body.len() - 1, ..HOUR };
    let out = spool.next_batch(Lane::Live, tight, true).unwrap().unwrap();
    assert!(matches!(&out.body, OutBody::Bytes(smaller) if smaller.len() < body.len()));
    spool.acknowledge(Lane::Live, 2, at(8)).unwrap();
    let none = BatchLimits { bytes_max: 10, ..HOUR };
    let skip = spool.next_batch(Lane::Live, none, true).unwrap().unwrap();
    assert!(matches!(&skip.body, OutBody::Skip { from: 3, to: 3, .. }), "{skip:?}");
    assert_eq!(
        skip.span,
        minutes(out.span.end().micros_since(at(0)) / MINUTE, 1 + out.span.end().micros_since(at(0)) / MINUTE)
    );
}

#[test]
fn a_window_that_fits_no_message_is_a_gap_and_bad_rows_are_told() {
    let disk = SimDisk::default();
    let mut spool = open(&disk, ROOM).unwrap();
    let mut large = measured(0, 1, 1, 25);
    large.batch.usage = vec![large.batch.usage[0].clone(); body::ROWS_MAX + 1];
    assert!(spool.append(&large).unwrap().lost.is_some());
    let mut bad = measured(1, 1, 2, 25);
    bad.batch.usage[1].active_nanos = Some(-1);
    assert_eq!(spool.append(&bad).unwrap().refused.len(), 1);
    let batch = covered(&next(&mut spool, Lane::Live));
    assert_eq!(batch.gaps.iter().map(|gap| gap.span).collect::<Vec<_>>(), [minutes(0, 1)]);
    assert_eq!((batch.usage.len(), batch.rows.len()), (1, 2));
}

#[test]
fn parts_of_one_window_are_kept_beside_each_other() {
    let mut spool = filled(&SimDisk::default(), 2);
    let part = measured(1, 1, 1, 25);
    spool.append(&part).unwrap();
    assert_eq!(spool.last_edge(), Some(at(2)));
    let whole = covered(&next(&mut filled(&SimDisk::default(), 2), Lane::Live));
    let batch = covered(&next(&mut spool, Lane::Live));
    assert_eq!(batch.usage.len(), whole.usage.len() + part.batch.usage.len());
}

#[test]
fn what_a_wrong_clock_placed_is_placed_anew_once_and_stays_there() {
    let disk = SimDisk::default();
    let mut spool = filled(&disk, 2);
    let boot = Name::fixed("boot-1");
    let (ahead, monotonic) = (400 * 86_400_000_000_i64, |minute: i64| 1_000_000_i64 * (60 * minute + 7));
    for minute in 3..5 {
        // The clock is as much ahead, and says what it was read from.
        let mut window = measured(minute, 1, 1, 25);
        shift(&mut window.batch, ahead);
        window.span = shifted(window.span, ahead);
        window.batch.clocks = vec![ClockRow {
            span: window.span,
            boot: boot.clone(),
            monotonic_nanos: monotonic(minute + 1) * 1_000,
            wall_micros: window.span.end().micros(),
            offset_micros: 0,
        }];
        spool.append(&window).unwrap();
    }
    assert_eq!(spool.last_edge(), Some(at(5).plus_micros(ahead)));
    let offset = at(0).micros() - monotonic(0);
    assert_eq!(spool.retime(&boot, offset, at(6)).unwrap(), 2);
    assert_eq!(spool.retime(&boot, offset, at(6)).unwrap(), 0);
    let other = Name::fixed("boot-0");
    assert_eq!(spool.retime(&other, 0, at(6)).unwrap(), 0, "of another run nothing is known");
    for mut spool in [spool, open(&disk, ROOM).unwrap()] {
        assert_eq!(spool.last_edge(), Some(at(5)));
        assert_eq!(spool.retime(&boot, offset, at(6)).unwrap(), 0);
        let batch = covered(&next(&mut spool, Lane::Live));
        let moved: Vec<&ClockRow> = batch.clocks.iter().filter(|row| row.boot == boot).collect();
        let told: Vec<(Span, i64)> = moved.iter().map(|row| (row.span, row.offset_micros)).collect();
        assert_eq!(told, [(minutes(3, 5), -ahead)]);
        assert!(batch.usage.iter().all(|row| row.span.end() <= at(5)));
    }
}

#[test]
fn windows_come_in_order() {
    let mut spool = filled(&SimDisk::default(), 2);
    let again = spool.append(&measured(0, 1, 1, 25));
    assert!(matches!(again, Err(SpoolError::NotAfter { .. })));
    let reaches_back = Window { span: minutes(1, 3), ..measured(1, 1, 1, 25) };
    assert!(matches!(spool.append(&reaches_back), Err(SpoolError::NotAfter { .. })));
    let empty = Window { span: minutes(5, 5), ..measured(5, 1, 1, 25) };
    assert!(matches!(spool.append(&empty), Err(SpoolError::NotAfter { .. })));
    let long = Window { source_state: vec![0; SOURCE_STATE_BYTES_MAX + 1], ..measured(7, 1, 1, 25) };
    assert!(matches!(spool.append(&long), Err(SpoolError::StateTooLong { .. })));
    let long = Window { source_state: vec![1; SOURCE_STATE_BYTES_MAX], ..measured(7, 1, 1, 25) };
    spool.append(&long).unwrap();
    let spool = open(&spool.disk, ROOM).unwrap();
    assert_eq!((spool.source_state(), spool.last_edge()), (long.source_state.as_slice(), Some(at(8))));
}

#[test]
fn after_a_failed_sync_every_call_fails() {
    let disk = SimDisk::default();
    let mut spool = filled(&disk, 1);
    disk.at(disk.calls() + 1, crate::agent::spool::sim::Fault::Fail);
    assert!(matches!(spool.append(&measured(1, 1, 1, 25)), Err(SpoolError::Sync { .. })));
    assert!(matches!(spool.append(&measured(2, 1, 1, 25)), Err(SpoolError::Failed)));
    assert!(matches!(spool.next_batch(Lane::Live, LIMITS, true), Err(SpoolError::Failed)));
    assert!(matches!(spool.split(at(9)), Err(SpoolError::Failed)));
    assert!(matches!(spool.acknowledge(Lane::Live, 1, at(9)), Err(SpoolError::Failed)));
}

#[test]
fn two_threads_share_a_spool_on_a_real_disk() {
    let folder = tempfile::tempdir().unwrap();
    let open = || Spool::open(RealDisk::open(folder.path()).unwrap(), settings(ROOM), ids()).unwrap();
    let spool = std::sync::Mutex::new(open());
    let (spool, mut service) = (&spool, Service::default());
    std::thread::scope(|scope| {
        let sampler = scope.spawn(move || {
            for minute in 0..40 {
                spool.lock().unwrap().append(&measured(minute, 1, 2, 25)).unwrap();
            }
        });
        while !sampler.is_finished() {
            send(&mut spool.lock().unwrap(), &mut service, Lane::Live, at(40)).unwrap();
        }
    });
    send(&mut spool.lock().unwrap(), &mut service, Lane::Live, at(40)).unwrap();
    assert_eq!(service.check(0..40, "two threads"), 0);
    assert!(matches!(RealDisk::open(folder.path()), Err(FolderError::InUse { .. })));
}

#[test]
fn what_was_acknowledged_goes_before_any_detail_does() {
    const BUDGET: u64 = 60_000;
    let mut spool = open(&SimDisk::default(), BUDGET).unwrap();
    let mut service = Service::default();
    let mut minute = 0;
    while spool.pressure().used * 10 < BUDGET * 9 {
        spool.append(&measured(minute, 1, 2, 25)).unwrap();
        minute += 1;
        send(&mut spool, &mut service, Lane::Live, at(minute)).unwrap();
    }
    let held = spool.held(Lane::Live).len();
    // The service is gone; what it has makes room for what it has not.
    for minute in minute..minute + 40 {
        spool.append(&measured(minute, 1, 2, 25)).unwrap();
    }
    assert_eq!(spool.pressure().state, PressureState::Half);
    assert!(spool.held(Lane::Live).len() < held, "{held}");
    assert_eq!(spool.untried(Lane::Live).count(), 40);
    send(&mut spool, &mut service, Lane::Live, at(minute + 40)).unwrap();
    assert_eq!(service.check(0..minute + 40, "full of what was acknowledged"), 0);
}

#[test]
fn an_unlink_that_fails_is_made_up_for() {
    let disk = SimDisk::default();
    let mut spool = filled(&disk, 5);
    spool.window_log.close();
    spool.append(&measured(5, 1, 2, 25)).unwrap();
    let windows = |disk: &SimDisk| disk.files().iter().filter(|file| file.starts_with("windows")).count();
    // One batch of five windows: their reading, the record, its sync; then the unlink.
    disk.at(disk.calls() + 7, crate::agent::spool::sim::Fault::Fail);
    next(&mut spool, Lane::Live);
    assert_eq!(windows(&disk), 2, "the unlink did not fail: count the calls anew");
    spool.maintain(at(6)).unwrap();
    assert_eq!(windows(&disk), 1);
    drop(spool);
    assert_eq!(open(&disk, ROOM).unwrap().last_edge(), Some(at(6)));
}
