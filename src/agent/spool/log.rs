//! A log in segment files of one folder: appending, reading, rewriting one file at a time.
//!
//! A file's name has the number of its first record. Not owned here: what records say.

use std::collections::BTreeMap;
use std::io;

use super::disk::Disk;
use super::{SpoolError, frame};

/// Where a record lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    /// The segment, by its first number.
    pub(super) segment: u64,
    /// Bytes from the file's start.
    pub(super) offset: u64,
    /// Bytes of the whole frame.
    pub(super) length: u64,
}

/// A segment file.
#[derive(Debug, Clone, Default)]
pub(super) struct Segment {
    pub(super) bytes: u64,
    /// Nothing is appended any more.
    pub(super) is_closed: bool,
    /// Merging it again would change nothing.
    pub(super) is_merged: bool,
}

/// The segments of one log.
#[derive(Debug)]
pub(super) struct Log {
    prefix: &'static str,
    segment_max: u64,
    pub(super) segments: BTreeMap<u64, Segment>,
    /// A file was made, and its name is not durable yet.
    owes_folder: bool,
}

impl Log {
    pub(super) const fn new(prefix: &'static str, segment_max: u64) -> Self {
        Self { prefix, segment_max, segments: BTreeMap::new(), owes_folder: false }
    }

    pub(super) fn file(&self, first: u64) -> String {
        format!("{}-{first:020}.seg", self.prefix)
    }

    /// The first number in a file's name, if it is one of this log.
    pub(super) fn first_of(&self, file: &str) -> Option<u64> {
        let digits = file.strip_prefix(self.prefix)?.strip_prefix('-')?.strip_suffix(".seg")?;
        digits.parse().ok().filter(|first| self.file(*first) == file)
    }

    pub(super) fn bytes(&self) -> u64 {
        self.segments.values().fold(0, |sum, segment| sum.saturating_add(segment.bytes))
    }

    /// The newest segment.
    pub(super) fn newest(&self) -> Option<u64> {
        self.segments.last_key_value().map(|(first, _)| *first)
    }

    /// Ends the newest segment: the next record begins another.
    pub(super) fn close(&mut self) {
        if let Some(mut newest) = self.segments.last_entry() {
            newest.get_mut().is_closed = true;
        }
    }

    /// Appends a frame and makes it durable.
    ///
    /// # Errors
    /// With [`SpoolError::Io`] nothing was appended.
    pub(super) fn append(
        &mut self,
        disk: &mut impl Disk,
        number: u64,
        frame: &[u8],
    ) -> Result<Place, SpoolError> {
        let length = bytes_of(frame);
        let room = |segment: &Segment| {
            !segment.is_closed
                && (segment.bytes == 0 || segment.bytes.saturating_add(length) <= self.segment_max)
        };
        let open =
            self.segments.last_key_value().filter(|(_, segment)| room(segment)).map(|(first, _)| *first);
        let first = match open {
            Some(first) => first,
            None => {
                let file = self.file(number);
                disk.create(&file).map_err(io("create", &file))?;
                self.owes_folder = true;
                self.segments.insert(number, Segment::default());
                number
            }
        };
        let file = self.file(first);
        let offset = self.segments.get(&first).map_or(0, |segment| segment.bytes);
        if let Err(error) = disk.append(&file, frame) {
            // A part of the frame may be there.
            disk.truncate(&file, offset).map_err(sync("cut", &file))?;
            return Err(io("append to", &file)(error));
        }
        disk.sync(&file).map_err(sync("sync", &file))?;
        if self.owes_folder {
            disk.sync_folder().map_err(sync("sync the folder for", &file))?;
            self.owes_folder = false;
        }
        if let Some(segment) = self.segments.get_mut(&first) {
            segment.bytes = offset.saturating_add(length);
            segment.is_merged = false;
        }
        Ok(Place { segment: first, offset, length })
    }

    /// A record's frame, `(kind, payload)` still inside; none: it is damaged.
    pub(super) fn read(&self, disk: &mut impl Disk, place: &Place) -> Result<Option<Vec<u8>>, SpoolError> {
        let file = self.file(place.segment);
        let length = usize::try_from(place.length).unwrap_or(usize::MAX);
        let bytes = match disk.read_at(&file, place.offset, length) {
            Ok(bytes) => bytes,
            // The file was cut behind our back.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            Err(error) => return Err(io("read", &file)(error)),
        };
        Ok(frame::read_at(&bytes, 0).is_some().then_some(bytes))
    }

    /// Replaces a segment's file, or makes one; durable when this returns. Nothing is appended to it later.
    /// Returns each frame's place.
    pub(super) fn rewrite(
        &mut self,
        disk: &mut impl Disk,
        first: u64,
        frames: &[Vec<u8>],
    ) -> Result<Vec<Place>, SpoolError> {
        replace(disk, &self.file(first), &frames.concat())?;
        let mut offset = 0_u64;
        let mut places = Vec::with_capacity(frames.len());
        for frame in frames {
            let length = bytes_of(frame);
            places.push(Place { segment: first, offset, length });
            offset = offset.saturating_add(length);
        }
        self.segments.insert(first, Segment { bytes: offset, is_closed: true, is_merged: false });
        Ok(places)
    }
}

/// Replaces a file at once: all of it or nothing, also when power is lost.
pub(super) fn replace(disk: &mut impl Disk, file: &str, bytes: &[u8]) -> Result<(), SpoolError> {
    let beside = format!("{file}{BESIDE}");
    disk.create(&beside).map_err(io("create", &beside))?;
    disk.append(&beside, bytes).map_err(io("write", &beside))?;
    disk.sync(&beside).map_err(sync("sync", &beside))?;
    // Whether a rename that failed took place, nobody can tell.
    disk.rename(&beside, file).map_err(sync("rename", &beside))?;
    disk.sync_folder().map_err(sync("sync the folder for", file))
}

/// How the name of a file ends that is not finished.
pub(super) const BESIDE: &str = ".new";

pub(super) fn bytes_of(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).unwrap_or(u64::MAX)
}

pub(super) fn io(what: &'static str, file: &str) -> impl FnOnce(io::Error) -> SpoolError {
    let file = file.to_owned();
    move |source| SpoolError::Io { what, file, source }
}

pub(super) fn sync(what: &'static str, file: &str) -> impl FnOnce(io::Error) -> SpoolError {
    let file = file.to_owned();
    move |source| SpoolError::Sync { what, file, source }
}
