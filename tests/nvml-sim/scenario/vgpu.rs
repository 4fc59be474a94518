//! vGPUs as a scenario tells them: what they are, whose, licensed until when, and how they share the board's
//! time.

use serde::Deserialize;

use super::board::{Accounted, Percents};
use super::time::{At, Span, Steps};

/// A vGPU that runs.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Vgpu {
    /// As it is before the first reload of the driver; each reload adds [`super::IDS_PER_LOAD`].
    pub(crate) id: u32,
    /// A type of `vgpu-types.csv`.
    pub(crate) r#type: String,
    pub(crate) uuid: String,
    pub(crate) vm: Vm,
    /// Absent: not supported on this host.
    pub(crate) mdev: Option<String>,
    pub(crate) gi: Option<u32>,
    pub(crate) placement: Option<u32>,
    from: Option<At>,
    until: Option<At>,
    /// The guest's driver, from when it is loaded; absent: it never is.
    pub(crate) guest_driver: Option<Steps<String>>,
    pub(crate) license: Option<Steps<License>>,
    pub(crate) fb_used_mib: Option<Steps<u64>>,
    pub(crate) frame_rate_limit: Option<u32>,
    #[serde(default)]
    pub(crate) process: Vec<GuestProcess>,
    #[serde(default)]
    pub(crate) accounting: bool,
    #[serde(default)]
    pub(crate) accounted: Vec<Accounted>,
    pub(crate) percent: Option<Percents>,
}

impl Vgpu {
    pub(crate) fn span(&self) -> Span {
        Span::new(self.from, self.until)
    }
}

/// How the hypervisor names a VM.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Vm {
    Domain(String),
    Uuid(String),
}

/// A process inside a VM.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct GuestProcess {
    pub(crate) pid: u32,
    pub(crate) name: String,
    from: Option<At>,
    until: Option<At>,
    pub(crate) percent: Option<Percents>,
}

impl GuestProcess {
    pub(crate) fn span(&self) -> Span {
        Span::new(self.from, self.until)
    }
}

/// A state of a vGPU's license.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct License {
    pub(crate) state: LicenseState,
    #[serde(default)]
    pub(crate) expires: Expiry,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LicenseState {
    Unknown,
    Uninitialized,
    UnlicensedUnrestricted,
    UnlicensedRestricted,
    Unlicensed,
    Licensed,
}

/// Until when a license is good.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Expiry {
    #[default]
    NotAvailable,
    Invalid,
    At(At),
    NotApplicable,
    Permanent,
}

/// How the board's time is divided among vGPUs.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Scheduler {
    pub(crate) policy: Policy,
    #[serde(default)]
    pub(crate) timeslice_ns: u32,
    /// With it, adaptive round robin is on.
    pub(crate) average_factor: Option<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Policy {
    BestEffort,
    EqualShare,
    FixedShare,
}

/// What a guest sees of its own license.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct GuestLicense {
    pub(crate) product: String,
    /// 0 unknown, 1 vGPU, 2 RTX vWS, 3 gaming, 4 compute.
    pub(crate) feature: u32,
    pub(crate) enabled: bool,
    #[serde(default)]
    pub(crate) expires: Expiry,
}
