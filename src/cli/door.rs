//! Where a running service of this data directory is found: a file beside the database's lock, for its owner only.
//!
//! The file is locked as long as the service runs. So one that a dead service left behind is told from a living one's, and
//! no token is ever sent to whoever has the port now.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::server::Server;
use crate::services::error::ServiceError;
use crate::wire::body::hex;

#[derive(Serialize, Deserialize)]
struct Content {
    address: String,
    token: String,
    /// Of which database it is, as its settings name it: a hash, since that may hold a password.
    database: String,
}

/// Which database a process was told to use.
fn database_of(url: Option<&str>) -> String {
    let digest: [u8; 32] = Sha256::digest(url.unwrap_or("embedded")).into();
    hex(&digest)
}

fn path_in(data: &Path) -> PathBuf {
    data.join("fatia.server")
}

fn failed(path: &Path, error: &std::io::Error) -> ServiceError {
    ServiceError::File { file: path.display().to_string(), reason: error.to_string() }
}

/// The file of a service that runs; it goes with this.
#[derive(Debug)]
pub struct Door {
    path: PathBuf,
    lock: File,
}

impl Drop for Door {
    fn drop(&mut self) {
        // Whoever finds it later finds it unlocked, which says the same. One that another service has made meanwhile is
        // not ours to remove.
        if is_same(&self.lock, &self.path) {
            let _gone = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(unix)]
fn is_same(open: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    match (open.metadata(), std::fs::metadata(path)) {
        (Ok(open), Ok(there)) => (open.dev(), open.ino()) == (there.dev(), there.ino()),
        (Err(_), _) | (_, Err(_)) => false,
    }
}

#[cfg(not(unix))]
fn is_same(_open: &File, _path: &Path) -> bool {
    true
}

/// Tries for half a second: a command may be looking at what a dead service left, and holds it for that moment.
fn try_lock_awhile(file: &File) -> Result<(), TryLockError> {
    for _ in 0..25 {
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(20)),
            ended => return ended,
        }
    }
    file.try_lock()
}

/// Writes where this service of a database is, and the token of its operator.
///
/// # Errors
/// [`ServiceError::File`] where it cannot be written, or another service of this directory runs.
pub fn open(
    data: &Path,
    database: Option<&str>,
    local: SocketAddr,
    token: &str,
) -> Result<Door, ServiceError> {
    let path = path_in(data);
    let cannot = |error: std::io::Error| failed(&path, &error);
    std::fs::create_dir_all(data).map_err(cannot)?;
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(&path).map_err(cannot)?;
    match try_lock_awhile(&file) {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let reason = "another service of this data directory runs".to_owned();
            return Err(ServiceError::File { file: path.display().to_string(), reason });
        }
        Err(TryLockError::Error(error)) => return Err(cannot(error)),
    }
    // A file from before may have been made for others to read.
    #[cfg(unix)]
    file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o600)).map_err(cannot)?;
    let (address, database) = (format!("http://{local}"), database_of(database));
    let content = Content { address, token: token.to_owned(), database };
    let text = serde_json::to_string(&content).map_err(ServiceError::Encode)?;
    file.set_len(0).map_err(cannot)?;
    file.rewind().map_err(cannot)?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(cannot)?;
    Ok(Door { path, lock: file })
}

/// The running service of a data directory and of the database that this process was told to use, if there is one that
/// this user may speak to. `actor` gives the commands.
#[must_use]
pub fn find(data: &Path, database: Option<&str>, actor: &str) -> Option<Server> {
    // It may be about to write what is not there yet.
    for _ in 0..20 {
        let mut file = File::open(path_in(data)).ok()?;
        match file.try_lock_shared() {
            Err(TryLockError::WouldBlock) => {}
            Ok(()) | Err(TryLockError::Error(_)) => return None,
        }
        let mut text = String::new();
        file.read_to_string(&mut text).ok()?;
        if let Ok(Content { address, token, database: theirs }) = serde_json::from_str(&text) {
            return if theirs == database_of(database) { Server::at(address, token, actor) } else { None };
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    None
}
