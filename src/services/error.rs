//! What a service can fail with, by what the person can do about it.

use super::table::BadLine;
use crate::domain::allocation::AllocationError;
use crate::domain::money::Currency;
use crate::domain::period::BillingZone;
use crate::domain::price::PriceError;
use crate::domain::report::{Reconciliation, ReportError};
use crate::domain::units::OutOfRange;
use crate::store::{StoreError, UnitError};
use crate::wire::body::BodyError;
use crate::wire::signature::SignatureError;

/// Where in a request a fault is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum FaultAt {
    /// In the body, by JSON pointer.
    Body(String),
    /// In a query parameter.
    Query(String),
    /// In a header.
    Header(String),
    /// In the path.
    Path(String),
}

/// Something in a request that cannot be taken.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fault {
    /// Where.
    pub at: FaultAt,
    /// Why, in words that follow the place's name.
    pub detail: String,
}

impl Fault {
    /// A fault in the body.
    #[must_use]
    pub fn body(pointer: impl Into<String>, detail: impl std::fmt::Display) -> Self {
        Self { at: FaultAt::Body(pointer.into()), detail: detail.to_string() }
    }

    /// A fault in a query parameter.
    #[must_use]
    pub fn query(name: impl Into<String>, detail: impl std::fmt::Display) -> Self {
        Self { at: FaultAt::Query(name.into()), detail: detail.to_string() }
    }

    /// A fault in a header.
    #[must_use]
    pub fn header(name: impl Into<String>, detail: impl std::fmt::Display) -> Self {
        Self { at: FaultAt::Header(name.into()), detail: detail.to_string() }
    }

    /// A fault in the path.
    #[must_use]
    pub fn path(name: impl Into<String>, detail: impl std::fmt::Display) -> Self {
        Self { at: FaultAt::Path(name.into()), detail: detail.to_string() }
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let place = match &self.at {
            FaultAt::Body(pointer) => pointer.trim_start_matches('/').replace('/', "."),
            FaultAt::Query(name) | FaultAt::Header(name) | FaultAt::Path(name) => name.clone(),
        };
        if place.is_empty() { f.write_str(&self.detail) } else { write!(f, "{place} {}", self.detail) }
    }
}

fn listed(faults: &[Fault]) -> String {
    faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// A request could not be done.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// What is asked about is not there, or is not the asker's: the two are not told apart.
    #[error("no {what} is named `{name}`")]
    NotFound {
        /// What.
        what: &'static str,
        /// Its name as asked.
        name: String,
    },
    /// What is to be made is there already.
    #[error("{what} `{name}` is there already")]
    Exists {
        /// What.
        what: &'static str,
        /// Its name.
        name: String,
    },
    /// The credential does not allow it.
    #[error("this needs the permission {permission}")]
    Forbidden {
        /// The permission's word.
        permission: &'static str,
    },
    /// An enrolment token is unknown, over, another key's or another node's: which of these nobody is told.
    #[error("the enrolment token is unknown, used, expired or for another node")]
    EnrolmentRefused,
    /// An inventory's counter was taken already, with another content.
    #[error("inventory {counter} is not newer than {newest}, which was taken before")]
    OldInventory {
        /// The counter as given.
        counter: i64,
        /// The newest that was taken.
        newest: i64,
    },
    /// An agent speaks for another node than its own.
    #[error("this agent speaks for node `{own}` alone")]
    ForeignNode {
        /// Its own node.
        own: String,
    },
    /// Parts of a request cannot be taken: all of them.
    #[error("{}", listed(.0))]
    Faults(Vec<Fault>),
    /// A running service answered that it cannot be done: what it said.
    #[error("{detail}")]
    Answered {
        /// The problem's type.
        kind: String,
        /// In words for people.
        detail: String,
    },
    /// What was to be changed was changed by somebody else meanwhile.
    #[error("{what} `{name}` was changed meanwhile")]
    ChangedMeanwhile {
        /// What.
        what: &'static str,
        /// Its name.
        name: String,
    },
    /// An idempotency key was used for another request.
    #[error("the idempotency key `{key}` was used for another request")]
    KeyReused {
        /// The key.
        key: String,
    },
    /// The store failed.
    #[error("{}", store_says(.0))]
    Store(#[from] StoreError),
    /// Made-up data is not put beside real data.
    #[error(
        "{place} holds data that is not the demo's: give the demo a folder of its own (--data), or remove this one if it is an \
             earlier version's demo"
    )]
    NotADemo {
        /// The database.
        place: String,
    },
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
    /// A line contradicts what is known, and nothing of its file is taken.
    #[error("{}: line {}: {}", .0.file, .0.line, .0.reason)]
    Line(BadLine),
    /// Lines cannot be taken, and so nothing is.
    #[error("{} lines cannot be taken", .0.len())]
    Lines(Vec<BadLine>),
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
        | StoreError::TooMany { .. }
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
    /// What may be shown to whoever asked: nothing of the database's own words.
    #[must_use]
    pub fn for_people(&self) -> String {
        match self {
            // Without its source, which is what the database said.
            Self::Store(error) => error.to_string(),
            error => error.to_string(),
        }
    }

    /// Whether less has to be asked for at once.
    #[must_use]
    pub fn is_too_much(&self) -> bool {
        matches!(self, Self::Store(StoreError::TooMany { .. }))
    }

    /// Whether a constraint of the database refused it: somebody else was first.
    #[must_use]
    pub fn is_conflict(&self) -> bool {
        matches!(self, Self::Store(StoreError::Conflict { .. }))
    }

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
