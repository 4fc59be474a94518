//! The few disk calls of the spool, as a trait, and the real disk.
//!
//! Names are plain file names inside one folder. Nothing is durable before `sync` (a file's bytes) and `sync_folder`
//! (which names there are). One process at a time has a folder.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// The calls that a spool makes. Each may fail; a failed `sync` or `sync_folder` leaves open what is on the disk.
#[expect(clippy::missing_errors_doc, reason = "each passes on the error of the disk")]
pub trait Disk {
    /// All file names of the folder, in any order.
    fn list(&mut self) -> io::Result<Vec<String>>;
    /// A whole file.
    fn read(&mut self, name: &str) -> io::Result<Vec<u8>>;
    /// `length` bytes from `offset`; fewer is an error.
    fn read_at(&mut self, name: &str, offset: u64, length: usize) -> io::Result<Vec<u8>>;
    /// An empty file of that name, in the place of an older one.
    fn create(&mut self, name: &str) -> io::Result<()>;
    /// Bytes at a file's end. A failure may leave a part of them there.
    fn append(&mut self, name: &str, bytes: &[u8]) -> io::Result<()>;
    /// Cuts a file to `length` bytes.
    fn truncate(&mut self, name: &str, length: u64) -> io::Result<()>;
    /// Makes a file's bytes durable.
    fn sync(&mut self, name: &str) -> io::Result<()>;
    /// Makes what was created, renamed and unlinked durable.
    fn sync_folder(&mut self) -> io::Result<()>;
    /// Gives a file another name, in the place of an older one, at once.
    fn rename(&mut self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file.
    fn unlink(&mut self, name: &str) -> io::Result<()>;
}

/// The name of the file that is locked. It holds nothing.
const LOCK: &str = "lock";

/// A folder on a real disk, locked for this process as long as the value lives.
#[derive(Debug)]
pub struct RealDisk {
    folder: PathBuf,
    /// The file that was last written. Kept open until the next: the kernel tells a failed write-back only to those
    /// who had the file open when it happened.
    open: Option<(String, File)>,
    _lock: File,
}

/// Why a folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// Another process has it.
    #[error("the spool {} is in use by another process", folder.display())]
    InUse {
        /// The folder.
        folder: PathBuf,
    },
    /// It cannot be made or locked.
    #[error("cannot make or lock the spool {}", folder.display())]
    Io {
        /// The folder.
        folder: PathBuf,
        /// What the disk said.
        #[source]
        source: io::Error,
    },
}

impl RealDisk {
    /// Makes the folder where it is not there, and locks it.
    ///
    /// # Errors
    /// [`FolderError`].
    pub fn open(folder: &Path) -> Result<Self, FolderError> {
        let failed = |source| FolderError::Io { folder: folder.to_owned(), source };
        std::fs::create_dir_all(folder).map_err(failed)?;
        let lock = OpenOptions::new().create(true).truncate(false).write(true).open(folder.join(LOCK));
        let lock = lock.map_err(failed)?;
        match lock.try_lock() {
            Ok(()) => Ok(Self { folder: folder.to_owned(), open: None, _lock: lock }),
            Err(TryLockError::WouldBlock) => Err(FolderError::InUse { folder: folder.to_owned() }),
            Err(TryLockError::Error(source)) => Err(failed(source)),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn opened(&mut self, name: &str) -> io::Result<&mut File> {
        let kept = self.open.take().filter(|(kept, _)| kept == name);
        let file = match kept {
            Some((_, file)) => file,
            None => OpenOptions::new().append(true).open(self.path(name))?,
        };
        Ok(&mut self.open.insert((name.to_owned(), file)).1)
    }

    fn forget(&mut self, name: &str) {
        self.open = self.open.take().filter(|(kept, _)| kept != name);
    }
}

impl Disk for RealDisk {
    fn list(&mut self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&self.folder)? {
            // A name that is no text is none of ours.
            if let Ok(name) = entry?.file_name().into_string()
                && name != LOCK
            {
                names.push(name);
            }
        }
        Ok(names)
    }

    fn read(&mut self, name: &str) -> io::Result<Vec<u8>> {
        std::fs::read(self.path(name))
    }

    fn read_at(&mut self, name: &str, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        let mut file = File::open(self.path(name))?;
        file.seek(SeekFrom::Start(offset))?;
        let mut bytes = vec![0; length];
        file.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn create(&mut self, name: &str) -> io::Result<()> {
        self.forget(name);
        File::create(self.path(name))?;
        self.opened(name).map(|_| ())
    }

    fn append(&mut self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.opened(name)?.write_all(bytes)
    }

    fn truncate(&mut self, name: &str, length: u64) -> io::Result<()> {
        self.opened(name)?.set_len(length)
    }

    fn sync(&mut self, name: &str) -> io::Result<()> {
        self.opened(name)?.sync_all()
    }

    fn sync_folder(&mut self) -> io::Result<()> {
        File::open(&self.folder)?.sync_all()
    }

    fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        self.forget(from);
        self.forget(to);
        std::fs::rename(self.path(from), self.path(to))
    }

    fn unlink(&mut self, name: &str) -> io::Result<()> {
        self.forget(name);
        std::fs::remove_file(self.path(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_process_has_a_folder() {
        let folder = tempfile::tempdir().unwrap();
        let first = RealDisk::open(folder.path()).unwrap();
        assert!(matches!(RealDisk::open(folder.path()), Err(FolderError::InUse { .. })));
        drop(first);
        RealDisk::open(folder.path()).unwrap();
    }

    #[test]
    fn a_file_is_appended_to_cut_renamed_and_removed() {
        let folder = tempfile::tempdir().unwrap();
        let mut disk = RealDisk::open(folder.path()).unwrap();
        disk.create("a").unwrap();
        disk.append("a", b"one").unwrap();
        disk.sync("a").unwrap();
        disk.append("a", b"two").unwrap();
        disk.truncate("a", 4).unwrap();
        disk.append("a", b"x").unwrap();
        assert_eq!(disk.read("a").unwrap(), b"onetx");
        assert_eq!(disk.read_at("a", 1, 3).unwrap(), b"net");
        assert!(disk.read_at("a", 4, 3).is_err());
        disk.create("b").unwrap();
        disk.append("b", b"other").unwrap();
        disk.rename("b", "a").unwrap();
        disk.sync_folder().unwrap();
        disk.append("a", b"!").unwrap();
        assert_eq!(disk.read("a").unwrap(), b"other!");
        assert_eq!(disk.list().unwrap(), ["a"]);
        disk.unlink("a").unwrap();
        assert!(disk.list().unwrap().is_empty());
    }
}
