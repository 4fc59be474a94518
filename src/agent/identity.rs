//! Who an agent is: its key, its node and its service, kept in one file that only its owner reads.
//!
//! Always true here: the key is on the disk before anybody is told of it, so that an enrolment whose answer was lost is
//! asked for again with the same key.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::clock::ClockState;
use super::machine::Machine;
use crate::domain::ids::Name;
use crate::wire::body::hex;
use crate::wire::signature::BatchSigner;

/// The file's name in the agent's folder.
pub const IDENTITY_FILE: &str = "agent.json";

/// What is kept.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The service's address, such as `https://fatia.example:8443`.
    pub server: String,
    /// The node.
    pub node: String,
    /// The private key's seed in hexadecimal. Secret.
    pub seed: String,
    /// The agent's id; none: not enrolled yet.
    pub agent: Option<String>,
    /// The installation, as requests name it.
    pub audience: Option<String>,
    /// The counter of the newest inventory.
    pub inventory_counter: i64,
    /// What is known of the service's time.
    pub clock: ClockState,
}

impl std::fmt::Debug for Identity {
    /// Never shows the seed.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Identity({} {:?} {})", self.node, self.agent, self.server)
    }
}

/// Why an identity cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// Its file cannot be read or written.
    #[error("cannot {what} {}", file.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// The file.
        file: PathBuf,
        /// What the disk said.
        #[source]
        source: io::Error,
    },
    /// Its file is damaged. It is not made anew by itself: that would be another agent.
    #[error("{} is damaged: {reason}; enrol the node anew with a token that replaces its agent", file.display())]
    Damaged {
        /// The file.
        file: PathBuf,
        /// Why.
        reason: String,
    },
    /// There are no random bytes for a key.
    #[error("cannot make a key: {0}")]
    Random(String),
}

impl Identity {
    /// A new identity with a key of its own, not enrolled.
    ///
    /// # Errors
    /// [`IdentityError::Random`].
    pub fn make(machine: &dyn Machine, server: &str, node: &Name) -> Result<Self, IdentityError> {
        let mut seed = [0; 32];
        machine.random(&mut seed).map_err(IdentityError::Random)?;
        Ok(Self {
            server: server.trim_end_matches('/').to_owned(),
            node: node.to_string(),
            seed: hex(&seed),
            agent: None,
            audience: None,
            inventory_counter: 0,
            clock: ClockState::default(),
        })
    }

    /// Reads the identity of a folder; none: there is none yet.
    ///
    /// # Errors
    /// [`IdentityError`].
    pub fn load(folder: &Path) -> Result<Option<Self>, IdentityError> {
        let file = folder.join(IDENTITY_FILE);
        let text = match fs::read_to_string(&file) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(IdentityError::Io { what: "read", file, source }),
        };
        let identity: Self = serde_json::from_str(&text)
            .map_err(|error| IdentityError::Damaged { file: file.clone(), reason: error.to_string() })?;
        match identity.seed_bytes() {
            Some(_) => Ok(Some(identity)),
            None => Err(IdentityError::Damaged { file, reason: "its key is none".to_owned() }),
        }
    }

    /// Writes the identity, whole or not at all.
    ///
    /// # Errors
    /// [`IdentityError::Io`].
    pub fn save(&self, folder: &Path) -> Result<(), IdentityError> {
        let file = folder.join(IDENTITY_FILE);
        let beside = folder.join(format!("{IDENTITY_FILE}.new"));
        let written = || {
            let mut builder = fs::DirBuilder::new();
            builder.recursive(true);
            #[cfg(unix)]
            std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
            builder.create(folder)?;
            let mut options = fs::OpenOptions::new();
            options.create(true).truncate(true).write(true);
            #[cfg(unix)]
            std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
            let mut out = options.open(&beside)?;
            out.write_all(&serde_json::to_vec_pretty(self)?)?;
            out.sync_all()?;
            fs::rename(&beside, &file)?;
            fs::File::open(folder)?.sync_all()
        };
        written().map_err(|source| IdentityError::Io { what: "write", file: file.clone(), source })
    }

    /// What it signs with. None where the seed is damaged, which [`Identity::load`] refuses.
    #[must_use]
    pub fn signer(&self) -> Option<BatchSigner> {
        self.seed_bytes().map(|seed| BatchSigner::from_seed(&seed))
    }

    fn seed_bytes(&self) -> Option<[u8; 32]> {
        let digits = self.seed.as_bytes();
        if digits.len() != 64 || !digits.is_ascii() {
            return None;
        }
        let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
        let bytes: Option<Vec<u8>> = digits.chunks(2).map(pair).collect();
        bytes?.try_into().ok()
    }
}
