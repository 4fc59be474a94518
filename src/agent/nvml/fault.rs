//! What an error of NVML means for an agent, and what a board was found not to have.

use std::collections::BTreeSet;

use nvml_wrapper::error::NvmlError;

use super::library::Condition;

/// What an error comes to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fault {
    /// There is no such thing here: the column is absent, not zero, until the driver changes.
    Absent,
    /// Nothing new, nobody there.
    Nothing,
    /// The handle is of something that is gone: what is there has to be listed anew.
    Dead,
    /// The caller may not.
    Forbidden,
    /// The device cannot be reached, for a reason.
    Lost(&'static str),
    /// The library or its driver is gone.
    Library(Condition),
    /// It may work the next time.
    Passing(String),
}

impl Fault {
    pub(super) fn of(error: &NvmlError) -> Self {
        match error {
            NvmlError::NotSupported | NvmlError::FailedToLoadSymbol(_) | NvmlError::FunctionNotFound => {
                Self::Absent
            }
            // 25: a structure of another version than the driver's; 26: taken out of the driver.
            NvmlError::UnexpectedVariant(25 | 26) => Self::Absent,
            NvmlError::NotFound => Self::Nothing,
            NvmlError::InvalidArg => Self::Dead,
            NvmlError::NoPermission => Self::Forbidden,
            NvmlError::GpuLost | NvmlError::UnexpectedVariant(28) => Self::Lost("the GPU is lost"),
            NvmlError::ResetRequired => Self::Lost("the GPU requires a reset"),
            NvmlError::Uninitialized => Self::Library(Condition::Failed("it was shut down".to_owned())),
            NvmlError::DriverNotLoaded => Self::Library(Condition::DriverNotLoaded),
            NvmlError::LibRmVersionMismatch => Self::Library(Condition::VersionMismatch),
            other => Self::Passing(other.to_string()),
        }
    }

    /// Whether no other call on the device can come to more.
    pub(super) const fn ends_the_look(&self) -> bool {
        matches!(self, Self::Lost(_) | Self::Library(_))
    }
}

impl From<NvmlError> for Fault {
    fn from(error: NvmlError) -> Self {
        Self::of(&error)
    }
}

/// What can be asked of a board that not every board has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Metric {
    Mig,
    GpuInstances,
    Vgpus,
    VgpuUse,
    Scheduler,
    Graphics,
    Mps,
    ProcessUse,
    DeviceUse,
    Energy,
    Gpm,
    Ecc,
    Throttle,
    Fields,
}

/// What a board was found not to have. It is forgotten when the driver changes, or MIG is switched.
#[derive(Debug, Default)]
pub(super) struct Absent {
    metrics: BTreeSet<Metric>,
    has_told: bool,
}

impl Absent {
    /// Asks, unless it is known that there is no answer; none: no answer. What ends a look is handed on.
    pub(super) fn ask<T>(
        &mut self,
        metric: Metric,
        ask: impl FnOnce() -> Result<T, NvmlError>,
    ) -> Result<Option<T>, Fault> {
        if self.metrics.contains(&metric) {
            return Ok(None);
        }
        match ask().map_err(Fault::from) {
            Ok(value) => Ok(Some(value)),
            Err(fault) if fault.ends_the_look() => Err(fault),
            Err(Fault::Absent) => {
                self.metrics.insert(metric);
                Ok(None)
            }
            Err(Fault::Forbidden) => {
                self.metrics.insert(metric);
                if !std::mem::replace(&mut self.has_told, true) {
                    tracing::warn!(
                        "the driver does not let the agent see all of a GPU ({metric:?}): run it as root"
                    );
                }
                Ok(None)
            }
            Err(_) => Ok(None),
        }
    }

    /// Whether it is known that there is no answer.
    pub(super) fn has(&self, metric: Metric) -> bool {
        self.metrics.contains(&metric)
    }

    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }
}
