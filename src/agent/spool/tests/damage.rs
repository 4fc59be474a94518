//! Files that were torn or changed: the spool opens, and says what is lost.

use super::*;

const ROOM: u64 = 64 << 20;

/// A spool's disk with six windows, the first two in a batch that was acknowledged, the next two in one that was not.
fn disk() -> (SimDisk, Vec<Outgoing>) {
    let disk = SimDisk::default();
    let mut spool = open(&disk, ROOM).unwrap();
    let mut sent = Vec::new();
    for minute in 0..6 {
        spool.append(&measured(minute, 1, 1, 25)).unwrap();
        if minute == 1 {
            sent.extend(spool.next_batch(Lane::Live, LIMITS, true).unwrap());
            spool.acknowledge(Lane::Live, 1, at(2)).unwrap();
        }
        if minute == 3 {
            sent.extend(spool.next_batch(Lane::Live, LIMITS, true).unwrap());
        }
    }
    (disk, sent)
}

fn file(disk: &SimDisk, prefix: &str) -> String {
    let files: Vec<String> = disk.files().into_iter().filter(|file| file.starts_with(prefix)).collect();
    assert_eq!(files.len(), 1, "{files:?}");
    files[0].clone()
}

/// Where the frames of a file lie.
fn frames(disk: &SimDisk, file: &str) -> Vec<std::ops::Range<usize>> {
    let mut found = Vec::new();
    disk.edit(file, |bytes| found = frame::scan(bytes).frames.iter().map(|each| each.at.clone()).collect());
    found
}

fn opened(disk: &SimDisk) -> Spool<SimDisk> {
    open(disk, ROOM).unwrap()
}

fn heard(spool: &mut Spool<SimDisk>) -> Vec<Outgoing> {
    let mut all = Vec::new();
    while let Some(out) = spool.next_batch(Lane::Live, LIMITS, true).unwrap() {
        spool.acknowledge(Lane::Live, out.sequence, at(9)).unwrap();
        all.push(out);
    }
    all
}

#[test]
fn a_torn_tail_is_cut_at_every_byte() {
    let (disk, _) = disk();
    let file = file(&disk, "windows");
    let last = frames(&disk, &file).pop().unwrap();
    for cut in last.clone() {
        let disk = disk.copy();
        disk.edit(&file, |bytes| bytes.truncate(cut));
        let mut spool = opened(&disk);
        assert_eq!(spool.last_edge(), Some(at(5)), "{cut}");
        assert_eq!(spool.source_state(), 4_i64.to_le_bytes());
        spool.append(&measured(5, 1, 1, 25)).unwrap();
        let rest = heard(&mut opened(&disk));
        assert_eq!(rest.iter().map(|out| out.span).collect::<Vec<_>>(), [minutes(2, 4), minutes(4, 6)]);
    }
}

#[test]
fn a_window_changed_at_any_byte_is_a_gap() {
    let (disk, _) = disk();
    let file = file(&disk, "windows");
    let frame = frames(&disk, &file)[4].clone();
    for at_byte in frame {
        let disk = disk.copy();
        disk.edit(&file, |bytes| bytes[at_byte] ^= 1 << (at_byte % 8));
        // The second time it is there: nothing is written twice.
        drop(opened(&disk));
        let out = heard(&mut opened(&disk)).pop().unwrap();
        assert_eq!((out.sequence, out.span), (3, minutes(4, 6)), "{at_byte}");
        let OutBody::Bytes(body) = &out.body else { panic!("{out:?}") };
        let batch = decoded(body);
        assert_eq!(batch.gaps.iter().map(|gap| gap.span).collect::<Vec<_>>(), [minutes(4, 5)]);
        assert!(batch.rows.iter().all(|row| row.span == minutes(5, 6)) && batch.rows.len() == 1);
    }
}

#[test]
fn a_waiting_batch_changed_at_any_byte_is_not_forgotten() {
    let (disk, sent) = disk();
    // A third batch behind it, and its windows in a file that is gone: nobody else has them.
    let mut spool = opened(&disk);
    spool.acknowledge(Lane::Live, 2, at(6)).unwrap();
    let third = spool.next_batch(Lane::Live, LIMITS, true).unwrap().unwrap();
    spool.window_log.close();
    spool.append(&measured(6, 1, 1, 25)).unwrap();
    spool.maintain(at(6)).unwrap();
    assert_eq!(spool.rewind(Lane::Live, 1).unwrap(), Rewound::To(2));
    drop(spool);
    let file = file(&disk, "batches");
    // Two streams, then the batches.
    let frame = frames(&disk, &file)[3].clone();
    for at_byte in frame {
        let disk = disk.copy();
        disk.edit(&file, |bytes| bytes[at_byte] ^= 1 << (at_byte % 8));
        let rest = heard(&mut opened(&disk));
        let [skip, after, live] = rest.as_slice() else { panic!("{rest:?}") };
        assert!(matches!(skip.body, OutBody::Skip { from: 2, to: 2, .. }), "{skip:?}");
        assert_eq!((skip.span, after), (sent[1].span, &third));
        assert_eq!((live.sequence, live.span.end()), (4, at(7)));
    }
}

#[test]
fn a_damaged_cursor_sends_again_what_is_held() {
    let (disk, sent) = disk();
    for at_byte in 0.. {
        let disk = disk.copy();
        let mut length = 0;
        disk.edit(CURSOR_FILE, |bytes| {
            length = bytes.len();
            if let Some(byte) = bytes.get_mut(at_byte) {
                *byte ^= 0x10;
            }
        });
        if at_byte == length {
            break;
        }
        let mut spool = opened(&disk);
        assert_eq!(spool.last_edge(), Some(at(6)));
        let again = heard(&mut spool);
        assert_eq!(again[..2], sent[..], "{at_byte}");
        assert_eq!((again[2].sequence, again[2].span, again.len()), (3, minutes(4, 6), 3));
    }
}

#[test]
fn any_byte_of_any_file_changed_keeps_no_spool_from_opening() {
    let (disk, _) = disk();
    for file in disk.files() {
        let mut length = 0;
        disk.edit(&file, |bytes| length = bytes.len());
        for at_byte in 0..length {
            let disk = disk.copy();
            disk.edit(&file, |bytes| bytes[at_byte] = !bytes[at_byte]);
            let mut spool = opened(&disk);
            spool.append(&measured(8, 1, 1, 25)).unwrap();
            assert_eq!(heard(&mut spool).last().map(|out| out.span.end()), Some(at(9)), "{file} {at_byte}");
        }
    }
}
