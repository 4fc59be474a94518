//! Frames: how a record lies in a segment file, and how good ones are found around damage.
//!
//! `magic u32, length u32, CRC-32C u32 over (kind, length, payload), kind u8, payload`; numbers are little-endian. A
//! frame that reads is whole: what is torn or changed fails its sum.

use std::ops::Range;

use crc::{CRC_32_ISCSI, Crc, Table};

const MAGIC: [u8; 4] = *b"fTsP";
/// Bytes before the payload.
pub(super) const HEAD: usize = 13;
/// Longest payload: a packed body of 1 MiB and its head many times over. A length above is damage.
pub(super) const PAYLOAD_MAX: usize = 16 << 20;

static CRC: Crc<u32, Table<16>> = Crc::<u32, Table<16>>::new(&CRC_32_ISCSI);

/// A frame's bytes.
pub(super) fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap_or(u32::MAX).to_le_bytes();
    let mut bytes = Vec::with_capacity(payload.len().saturating_add(HEAD));
    bytes.extend(MAGIC);
    bytes.extend(length);
    bytes.extend(sum(kind, length, payload).to_le_bytes());
    bytes.push(kind);
    bytes.extend(payload);
    bytes
}

fn sum(kind: u8, length: [u8; 4], payload: &[u8]) -> u32 {
    let mut digest = CRC.digest();
    digest.update(&[kind]);
    digest.update(&length);
    digest.update(payload);
    digest.finalize()
}

/// A frame that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Found<'a> {
    pub(super) kind: u8,
    pub(super) payload: &'a [u8],
    /// Its bytes in the file.
    pub(super) at: Range<usize>,
}

/// What a file holds.
#[derive(Debug, PartialEq, Eq, Default)]
pub(super) struct Scan<'a> {
    /// The good frames, in order.
    pub(super) frames: Vec<Found<'a>>,
    /// Until where the file is of use: behind it nothing reads.
    pub(super) good: usize,
    /// Whether something damaged lies before a good frame.
    pub(super) is_damaged: bool,
}

/// The frame that begins at `offset`.
pub(super) fn read_at(bytes: &[u8], offset: usize) -> Option<Found<'_>> {
    let rest = bytes.get(offset..)?;
    let (head, behind) = rest.split_at_checked(HEAD)?;
    let head: &[u8; HEAD] = head.try_into().ok()?;
    let [m0, m1, m2, m3, l0, l1, l2, l3, c0, c1, c2, c3, kind] = *head;
    let length = [l0, l1, l2, l3];
    let size = usize::try_from(u32::from_le_bytes(length)).ok()?;
    if [m0, m1, m2, m3] != MAGIC || size > PAYLOAD_MAX {
        return None;
    }
    let payload = behind.get(..size)?;
    let is_good = sum(kind, length, payload) == u32::from_le_bytes([c0, c1, c2, c3]);
    let end = offset.checked_add(HEAD)?.checked_add(size)?;
    is_good.then_some(Found { kind, payload, at: offset..end })
}

/// Reads a file's frames; after damage it looks for the next one that is whole.
pub(super) fn scan(bytes: &[u8]) -> Scan<'_> {
    let mut scan = Scan::default();
    let mut at = 0;
    while let Some(found) = next(bytes, at) {
        scan.is_damaged |= found.at.start != at;
        at = found.at.end;
        scan.good = at;
        scan.frames.push(found);
    }
    scan
}

fn next(bytes: &[u8], from: usize) -> Option<Found<'_>> {
    if let Some(found) = read_at(bytes, from) {
        return Some(found);
    }
    let rest = bytes.get(from..)?;
    let mut starts = rest.windows(MAGIC.len()).enumerate().filter(|(_, word)| **word == MAGIC);
    starts.find_map(|(at, _)| read_at(bytes, from.checked_add(at)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> (Vec<u8>, [usize; 3]) {
        let mut bytes = Vec::new();
        let mut ends = [0; 3];
        for (at, payload) in [b"first".as_slice(), b"the second, longer", b"3"].into_iter().enumerate() {
            bytes.extend(frame(u8::try_from(at).unwrap(), payload));
            ends[at] = bytes.len();
        }
        (bytes, ends)
    }

    #[test]
    fn frames_read_back() {
        let (bytes, ends) = file();
        let scan = scan(&bytes);
        let read: Vec<(u8, &[u8])> = scan.frames.iter().map(|each| (each.kind, each.payload)).collect();
        assert_eq!(read, [(0, b"first".as_slice()), (1, b"the second, longer"), (2, b"3")]);
        assert_eq!((scan.good, scan.is_damaged), (ends[2], false));
    }

    #[test]
    fn a_tail_torn_at_any_byte_is_no_frame() {
        let (bytes, ends) = file();
        for cut in ends[1]..ends[2] {
            let scan = scan(&bytes[..cut]);
            assert_eq!((scan.frames.len(), scan.good, scan.is_damaged), (2, ends[1], false), "{cut}");
        }
    }

    #[test]
    fn a_middle_changed_at_any_bit_is_passed_over() {
        let (bytes, ends) = file();
        for at in ends[0]..ends[1] {
            for bit in 0..8 {
                let mut bytes = bytes.clone();
                bytes[at] ^= 1 << bit;
                let scan = scan(&bytes);
                let kinds: Vec<u8> = scan.frames.iter().map(|each| each.kind).collect();
                assert_eq!((kinds, scan.good, scan.is_damaged), (vec![0, 2], ends[2], true), "{at} {bit}");
            }
        }
    }

    #[test]
    fn the_sum_is_crc_32c() {
        // The check value of CRC-32C for "123456789". Source: RFC 3720, appendix B.4 lists the same polynomial.
        assert_eq!(CRC.checksum(b"123456789"), 0xe306_9283);
    }
}
