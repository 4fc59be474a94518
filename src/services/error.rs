//! What a service can fail with, by what the person can do about it.

use crate::domain::allocation::AllocationError;
use crate::domain::money::Currency;
use crate::domain::period::BillingZone;
use crate::domain::price::PriceError;
use crate::domain::report::{Reconciliation, ReportError};
use crate::domain::units::OutOfRange;
use crate::store::{StoreError, UnitError};
use crate::wire::body::BodyError;
use crate::wire::signature::SignatureError;

/// A request could not be done.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// The store failed.
    #[error("{}", store_says(.0))]
    Store(#[from] StoreError),
    /// The installation's zone or currency is fixed, and the settings say another.
    #[error(
        "this installation bills in {fixed_currency} by {fixed_zone}, fixed when its first batch was accepted; \
         the settings say {currency} and {zone}"
    )]
    BillingIsFixed {
        /// The zone that is fixed.
        fixed_zone: BillingZone,
        /// The currency that is fixed.
        fixed_currency: Currency,
        /// The zone of the settings.
        zone: BillingZone,
        /// The currency of the settings.
        currency: Currency,
    },
    /// Another process changed the zone while it could still be changed; this one still cuts days by the old.
    #[error("this installation now bills by {now}; this process began when it was {then}: start it again")]
    ZoneChanged {
        /// What this process knows.
        then: BillingZone,
        /// What is stored.
        now: BillingZone,
    },
    /// A file as a whole cannot be taken.
    #[error("{file}: {reason}")]
    File {
        /// Which file.
        file: String,
        /// Why not.
        reason: String,
    },
    /// A price version breaks a rule.
    #[error("{file}: {source}")]
    Price {
        /// The file.
        file: String,
        /// Which rule.
        #[source]
        source: PriceError,
    },
    /// A batch is too large.
    #[error(transparent)]
    Body(#[from] BodyError),
    /// A batch's signature is not believed.
    #[error(transparent)]
    Signature(#[from] SignatureError),
    /// A message could not be written.
    #[error("a message could not be written")]
    Encode(#[source] serde_json::Error),
    /// A batch speaks for a node or pool that is not known.
    #[error("no {kind} is named `{name}`")]
    UnknownScope {
        /// Node or pool.
        kind: &'static str,
        /// Its name.
        name: String,
    },
    /// A batch's stream belongs to another node or pool, or sender.
    #[error("stream {stream} belongs to another {what}")]
    ForeignStream {
        /// The stream.
        stream: String,
        /// Scope or sender.
        what: &'static str,
    },
    /// A number was already taken with other bytes.
    #[error("number {sequence} of stream {stream} was already taken with other bytes")]
    OtherBytes {
        /// The stream.
        stream: String,
        /// The number.
        sequence: i64,
    },
    /// A device-hour could not be divided.
    #[error(transparent)]
    Allocation(#[from] AllocationError),
    /// A sum does not fit.
    #[error(transparent)]
    OutOfRange(#[from] OutOfRange),
    /// A report cannot be made.
    #[error(transparent)]
    Report(#[from] ReportError),
    /// The parts are not the in-service time.
    #[error(
        "the report does not reconcile: in service {} GPU-hours, parts {} GPU-hours, difference {}{}",
        .reconciliation.in_service_gpu_hours, .reconciliation.parts_gpu_hours, .reconciliation.difference,
        waiting(*.pending)
    )]
    Unreconciled {
        /// Both sides.
        reconciliation: Reconciliation,
        /// Marks that wait for a worker.
        pending: i64,
    },
}

fn store_says(error: &StoreError) -> String {
    match error {
        StoreError::Unavailable(source) => format!("{error}: {source}"),
        StoreError::Statement(source) | StoreError::Conflict { source, .. } | StoreError::Busy(source) => {
            format!("{error}: {source}")
        }
        StoreError::Corrupt { .. }
        | StoreError::TooLarge { .. }
        | StoreError::Setup(_)
        | StoreError::InUse { .. }
        | StoreError::LeaseLost { .. }
        | StoreError::Ignored
        | StoreError::Abandoned => error.to_string(),
    }
}

fn waiting(pending: i64) -> String {
    if pending == 0 { String::new() } else { format!("; {pending} marks still wait for a worker") }
}

impl ServiceError {
    /// Whether the same may succeed later without anybody doing anything: the database was away or in use.
    #[must_use]
    pub fn will_pass(&self) -> bool {
        matches!(self, Self::Store(StoreError::Unavailable(_) | StoreError::Busy(_) | StoreError::Abandoned))
    }
}

impl UnitError for ServiceError {
    fn is_busy(&self) -> bool {
        matches!(self, Self::Store(error) if error.is_busy())
    }
}
