//! NVIDIA's management library: loaded from its usual place or a path, and in which condition it is.
//!
//! A node without it, without a driver or without a GPU is a node in a normal condition: the agent says so
//! once, and looks again each minute.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;

use crate::domain::ids::Name;
use crate::domain::units::{Instant, MICROS_PER_SECOND};

/// Between two tries to load it, in microseconds.
pub const RETRY_MICROS: i64 = 60 * MICROS_PER_SECOND;

/// In which condition the library is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Condition {
    /// It answers, and there are GPUs.
    Ready,
    /// It answers, and there is no GPU.
    NoGpu,
    /// There is none.
    NoLibrary,
    /// The kernel's driver is not loaded.
    DriverNotLoaded,
    /// The agent may not open the devices.
    NoPermission,
    /// Library and kernel's driver are of different versions.
    VersionMismatch,
    /// It fails otherwise.
    Failed(String),
}

impl Condition {
    fn of(error: &NvmlError) -> Self {
        match error {
            NvmlError::LibloadingError(_) | NvmlError::LibraryNotFound => Self::NoLibrary,
            NvmlError::DriverNotLoaded => Self::DriverNotLoaded,
            NvmlError::NoPermission => Self::NoPermission,
            NvmlError::LibRmVersionMismatch => Self::VersionMismatch,
            // Its text has the library's path, which is nobody's business beyond this machine's operator.
            NvmlError::FailedToLoadSymbol(_) => Self::Failed("it lacks a function".to_owned()),
            other => Self::Failed(other.to_string()),
        }
    }

    /// What would help.
    #[must_use]
    pub const fn remedy(&self) -> &'static str {
        match self {
            Self::Ready => "Nothing has to be done.",
            Self::NoGpu => "If the node should have GPUs, see `lspci` and `dmesg`.",
            Self::NoLibrary => {
                "Install NVIDIA's driver, or give the path of libnvidia-ml.so.1 with --nvml-library."
            }
            Self::DriverNotLoaded => "Load the driver with `modprobe nvidia`; `dmesg` says why it is not.",
            Self::NoPermission => {
                "Run the agent as root, or let it read and write /dev/nvidia*; in a container, map the devices."
            }
            Self::VersionMismatch => "The driver was updated: restart the machine, or load the new module.",
            Self::Failed(_) => "See `nvidia-smi` and `dmesg` on this node.",
        }
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ready => f.write_str("NVML is ready"),
            Self::NoGpu => f.write_str("NVML finds no GPU"),
            Self::NoLibrary => f.write_str("NVML is not installed"),
            Self::DriverNotLoaded => f.write_str("the NVIDIA driver is not loaded"),
            Self::NoPermission => f.write_str("the agent may not open the GPUs"),
            Self::VersionMismatch => {
                f.write_str("NVML and the loaded NVIDIA driver are of different versions")
            }
            Self::Failed(reason) => write!(f, "NVML fails: {reason}"),
        }
    }
}

/// The library, loaded or not.
#[derive(Debug)]
pub(super) struct Library {
    path: Option<PathBuf>,
    nvml: Option<Arc<Nvml>>,
    condition: Option<Condition>,
    tried: Option<Instant>,
    /// The driver's version, while it is loaded.
    pub(super) driver: Option<Name>,
}

impl Library {
    pub(super) const fn new(path: Option<PathBuf>) -> Self {
        Self { path, nvml: None, condition: None, tried: None, driver: None }
    }

    pub(super) const fn condition(&self) -> Option<&Condition> {
        self.condition.as_ref()
    }

    /// The library, if it is loaded.
    pub(super) fn loaded(&self) -> Option<Arc<Nvml>> {
        self.nvml.clone()
    }

    /// Loads it, if that was not tried within the last minute. Without an instant: if it was never tried.
    /// Whether it was loaded just now.
    pub(super) fn load(&mut self, at: Option<Instant>) -> bool {
        if self.nvml.is_some() {
            return false;
        }
        let is_due = match (at, self.tried) {
            (Some(at), Some(tried)) => {
                // A clock that goes back is no reason to wait longer.
                !(0..RETRY_MICROS).contains(&at.micros_since(tried))
            }
            (None, Some(_)) => false,
            (_, None) => self.condition.is_none() || at.is_some(),
        };
        if !is_due {
            return false;
        }
        self.tried = at.or(self.tried);
        let mut builder = Nvml::builder();
        if let Some(path) = &self.path {
            builder.lib_path(path.as_os_str());
        }
        match builder.init() {
            Ok(nvml) => {
                self.driver = nvml.sys_driver_version().ok().and_then(|text| Name::parse(&text).ok());
                self.nvml = Some(Arc::new(nvml));
                true
            }
            Err(error) => {
                self.say(Condition::of(&error));
                false
            }
        }
    }

    /// Lets it go: it is loaded anew within a minute.
    pub(super) fn unload(&mut self, why: Condition, at: Option<Instant>) {
        self.nvml = None;
        self.driver = None;
        self.tried = at;
        self.say(why);
    }

    /// Whether the driver is another one than when it was loaded. It is asked for again, since it can be
    /// replaced under a library that goes on answering.
    pub(super) fn has_new_driver(&mut self) -> bool {
        let Some(told) = self.nvml.as_ref().and_then(|nvml| nvml.sys_driver_version().ok()) else {
            return false;
        };
        let told = Name::parse(&told).ok();
        told.is_some() && std::mem::replace(&mut self.driver, told.clone()) != told
    }

    /// Takes note of a condition, and says it once.
    pub(super) fn say(&mut self, condition: Condition) {
        if self.condition.as_ref() == Some(&condition) {
            return;
        }
        match &condition {
            Condition::Ready => {
                tracing::info!(driver = ?self.driver.as_ref().map(Name::as_str), "{condition}")
            }
            other => tracing::warn!("{other}. {} It is tried again each minute.", other.remedy()),
        }
        self.condition = Some(condition);
    }
}
