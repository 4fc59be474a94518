//! Where the library lies, what time it is there, and whether the scenario beside it has changed.
//!
//! The clock is a file: the test moves it. It is read at each call, by one system call and without opening it
//! again.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// What lies beside the library.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    clock: File,
}

/// A state of the scenario's file; another one is another scenario.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileState {
    inode: u64,
    size: u64,
    modified: (i64, i64),
}

impl Folder {
    /// The folder that this library was loaded from.
    pub(crate) fn of_this_library() -> io::Result<Folder> {
        let path = folder_of(Folder::of_this_library as *const () as usize)?;
        let clock = File::open(path.join("clock"))?;
        Ok(Folder { path, clock })
    }

    /// Microseconds since the epoch of Unix.
    ///
    /// The file holds one number, or the same number twice: a reader that comes while the file is written
    /// sees two that differ, and reads again.
    pub(crate) fn now(&self) -> io::Result<i64> {
        let mut buffer = [0; 64];
        for _ in 0..1_000 {
            let length = self.clock.read_at(&mut buffer, 0)?;
            if let Some(micros) = buffer.get(..length).and_then(read_clock) {
                return Ok(micros);
            }
        }
        Err(io::Error::other("the clock is not a number of microseconds"))
    }

    pub(crate) fn scenario(&self) -> PathBuf {
        self.path.join("scenario.toml")
    }

    pub(crate) fn scenario_state(&self) -> io::Result<FileState> {
        let file = fs::metadata(self.scenario())?;
        let modified = (file.mtime(), file.mtime_nsec());
        Ok(FileState { inode: file.ino(), size: file.size(), modified })
    }

    /// Leaves a message for the test: a C function can only answer with a number.
    pub(crate) fn complain(&self, message: &str) {
        // Nobody could be told that this fails.
        let _ = fs::write(self.path.join("complaint"), message);
    }
}

fn read_clock(text: &[u8]) -> Option<i64> {
    let mut words = std::str::from_utf8(text).ok()?.split_ascii_whitespace();
    let first = words.next()?;
    match words.next() {
        Some(second) if second != first => None,
        _ => first.parse().ok(),
    }
}

/// The folder of the file that is mapped at an address.
fn folder_of(address: usize) -> io::Result<PathBuf> {
    let maps = fs::read_to_string("/proc/self/maps")?;
    let file = maps.lines().find_map(|line| {
        let (range, rest) = line.split_once(' ')?;
        let (from, to) = range.split_once('-')?;
        let span = usize::from_str_radix(from, 16).ok()?..usize::from_str_radix(to, 16).ok()?;
        let path = rest.get(rest.find('/')?..)?;
        span.contains(&address).then(|| Path::new(path))
    });
    let folder = file.and_then(Path::parent).ok_or_else(|| io::Error::other("it lies nowhere"))?;
    Ok(folder.to_path_buf())
}
