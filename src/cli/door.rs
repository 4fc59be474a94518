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

use super::server::Server;
use crate::services::error::ServiceError;

#[derive(Serialize, Deserialize)]
struct Content {
    address: String,
    token: String,
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
    _lock: File,
}

impl Drop for Door {
    fn drop(&mut self) {
        // Whoever finds it later finds it unlocked, which says the same.
        let _gone = std::fs::remove_file(&self.path);
    }
}

/// Writes where this service is, and the token of its operator.
///
/// # Errors
/// [`ServiceError::File`] where it cannot be written, or another service of this directory runs.
pub fn open(data: &Path, local: SocketAddr, token: &str) -> Result<Door, ServiceError> {
    let path = path_in(data);
    let cannot = |error: std::io::Error| failed(&path, &error);
    std::fs::create_dir_all(data).map_err(cannot)?;
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(&path).map_err(cannot)?;
    match file.try_lock() {
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
    let content = Content { address: format!("http://{local}"), token: token.to_owned() };
    let text = serde_json::to_string(&content).map_err(ServiceError::Encode)?;
    file.set_len(0).map_err(cannot)?;
    file.rewind().map_err(cannot)?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(cannot)?;
    Ok(Door { path, _lock: file })
}

/// The running service of a data directory, if there is one that this user may speak to.
#[must_use]
pub fn find(data: &Path) -> Option<Server> {
    // It may be about to write what is not there yet.
    for _ in 0..20 {
        let mut file = File::open(path_in(data)).ok()?;
        match file.try_lock_shared() {
            Err(TryLockError::WouldBlock) => {}
            Ok(()) | Err(TryLockError::Error(_)) => return None,
        }
        let mut text = String::new();
        file.read_to_string(&mut text).ok()?;
        if let Ok(Content { address, token }) = serde_json::from_str(&text) {
            return Server::at(address, token);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    None
}
