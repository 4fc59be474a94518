//! Errors as RFC 9457 problem documents: the one place where an error becomes a status.
//!
//! Always true here: a type is stable and stands for one cause; all faults of a request come at once, each with where it
//! is; the database's own words never leave.

use serde_json::{Value, json};

use crate::domain::price::PriceError;
use crate::services::error::{Fault, FaultAt, ServiceError};
use crate::services::table::BadLine;

/// Faults that one answer tells; more are counted.
const FAULTS_TOLD: usize = 100;

/// A cause, with its status, its word in the type's URI and its title.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Malformed,
    Unauthorized,
    ClockSkew,
    Forbidden,
    NotFound,
    MethodNotAllowed,
    BodyTimeout,
    Conflict,
    PreconditionFailed,
    TooLarge,
    UnsupportedMediaType,
    Invalid,
    KeyReused,
    TooManyRequests,
    Unreconciled,
    Unavailable,
    Internal,
}

impl Kind {
    /// All kinds, as the document lists them.
    pub(super) const ALL: [Self; 17] = [
        Self::Malformed,
        Self::Unauthorized,
        Self::ClockSkew,
        Self::Forbidden,
        Self::NotFound,
        Self::MethodNotAllowed,
        Self::BodyTimeout,
        Self::Conflict,
        Self::PreconditionFailed,
        Self::TooLarge,
        Self::UnsupportedMediaType,
        Self::Invalid,
        Self::KeyReused,
        Self::TooManyRequests,
        Self::Unreconciled,
        Self::Unavailable,
        Self::Internal,
    ];

    pub(super) const fn status(self) -> u16 {
        match self {
            Self::Malformed => 400,
            Self::Unauthorized | Self::ClockSkew => 401,
            Self::Forbidden => 403,
            Self::NotFound => 404,
            Self::MethodNotAllowed => 405,
            Self::BodyTimeout => 408,
            Self::Conflict => 409,
            Self::PreconditionFailed => 412,
            Self::TooLarge => 413,
            Self::UnsupportedMediaType => 415,
            Self::Invalid | Self::KeyReused => 422,
            Self::TooManyRequests => 429,
            Self::Unreconciled | Self::Internal => 500,
            Self::Unavailable => 503,
        }
    }

    const fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Malformed => ("malformed", "The request cannot be read"),
            Self::Unauthorized => ("unauthorized", "A valid token is needed"),
            Self::ClockSkew => ("clock-skew", "The request was signed at another time"),
            Self::Forbidden => ("forbidden", "The token does not allow this"),
            Self::NotFound => ("not-found", "There is no such thing"),
            Self::MethodNotAllowed => ("method-not-allowed", "This cannot be done here"),
            Self::BodyTimeout => ("body-timeout", "The body did not come in time"),
            Self::Conflict => ("conflict", "It is there already"),
            Self::PreconditionFailed => ("precondition-failed", "It was changed meanwhile"),
            Self::TooLarge => ("too-large", "The body is too large"),
            Self::UnsupportedMediaType => {
                ("unsupported-media-type", "The body's type or encoding is not taken")
            }
            Self::Invalid => ("invalid", "Parts of the request cannot be taken"),
            Self::KeyReused => ("idempotency-key-reused", "The idempotency key was used for another request"),
            Self::TooManyRequests => ("too-many-requests", "Too many requests"),
            Self::Unreconciled => ("unreconciled", "The report does not reconcile"),
            Self::Unavailable => ("unavailable", "The service cannot answer now"),
            Self::Internal => ("internal", "The service failed"),
        }
    }

    /// The stable URI of the cause.
    pub(super) fn uri(self) -> String {
        format!("urn:fatia:problem:{}", self.words().0)
    }

    pub(super) const fn title(self) -> &'static str {
        self.words().1
    }
}

/// What went wrong, as it is answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Problem {
    pub(super) kind: Kind,
    pub(super) detail: String,
    pub(super) faults: Vec<Fault>,
    /// Seconds after which the same may succeed.
    pub(super) retry_after: Option<u64>,
    /// Methods that can be used instead.
    pub(super) allow: Option<String>,
    /// For the log, never for the answer.
    pub(super) cause: Option<String>,
}

impl Problem {
    pub(super) fn new(kind: Kind, detail: impl Into<String>) -> Self {
        Self { kind, detail: detail.into(), faults: vec![], retry_after: None, allow: None, cause: None }
    }

    /// Faults of a request, all at once.
    pub(super) fn invalid(faults: Vec<Fault>) -> Self {
        let detail = match faults.as_slice() {
            [only] => only.to_string(),
            all => format!("{} parts of the request cannot be taken", all.len()),
        };
        Self { faults, ..Self::new(Kind::Invalid, detail) }
    }

    /// Where nothing is, or nothing that the asker may see: the two are not told apart.
    pub(super) fn not_found() -> Self {
        Self::new(Kind::NotFound, "there is nothing here")
    }

    /// The document.
    pub(super) fn document(&self, request: &str) -> Value {
        let mut document = json!({
            "type": self.kind.uri(),
            "title": self.kind.title(),
            "status": self.kind.status(),
            "detail": self.detail,
            "instance": format!("urn:fatia:request:{request}"),
        });
        if !self.faults.is_empty() {
            let mut errors: Vec<Value> = self.faults.iter().take(FAULTS_TOLD).map(fault_json).collect();
            let more = self.faults.len().saturating_sub(FAULTS_TOLD);
            if more > 0 {
                errors.push(json!({ "detail": format!("and {more} more faults") }));
            }
            if let Some(fields) = document.as_object_mut() {
                fields.insert("errors".to_owned(), errors.into());
            }
        }
        document
    }
}

fn fault_json(fault: &Fault) -> Value {
    let (key, place) = match &fault.at {
        FaultAt::Body(pointer) => ("pointer", format!("#{pointer}")),
        FaultAt::Query(name) => ("parameter", name.clone()),
        FaultAt::Header(name) => ("header", name.clone()),
        FaultAt::Path(name) => ("path", name.clone()),
    };
    json!({ key: place, "detail": fault.detail })
}

/// A line of a table as a fault: of a table in JSON by its place in the list, of a file by its number.
pub(super) fn line_fault(list: &str, bad: &BadLine) -> Fault {
    let row = bad.line.saturating_sub(2);
    Fault::body(format!("/{list}/{row}"), &bad.reason)
}

impl From<ServiceError> for Problem {
    fn from(error: ServiceError) -> Self {
        let said = error.for_people();
        match &error {
            ServiceError::NotFound { .. } | ServiceError::UnknownScope { .. } => {
                Self::new(Kind::NotFound, said)
            }
            ServiceError::Exists { .. } | ServiceError::OldInventory { .. } => {
                Self::new(Kind::Conflict, said)
            }
            ServiceError::EnrolmentRefused => Self::new(Kind::Unauthorized, said),
            ServiceError::Forbidden { .. } | ServiceError::ForeignNode { .. } => {
                Self::new(Kind::Forbidden, said)
            }
            ServiceError::Faults(faults) => Self::invalid(faults.clone()),
            ServiceError::ChangedMeanwhile { .. } => Self::new(Kind::PreconditionFailed, said),
            ServiceError::KeyReused { .. } => Self {
                faults: vec![Fault::header("Idempotency-Key", "was used for another request")],
                ..Self::new(Kind::KeyReused, said)
            },
            ServiceError::File { .. } | ServiceError::Line(_) => Self::new(Kind::Invalid, said),
            ServiceError::Lines(lines) => Self {
                faults: lines.iter().map(|bad| line_fault("lines", bad)).collect(),
                ..Self::new(Kind::Invalid, said)
            },
            ServiceError::Price { source, .. } => Self {
                faults: vec![Fault::body(price_pointer(source), source)],
                ..Self::new(Kind::Invalid, source.to_string())
            },
            ServiceError::Body(_) => Self::new(Kind::TooLarge, said),
            ServiceError::Signature(_) => Self::new(Kind::Unauthorized, said),
            ServiceError::OtherBytes { .. } | ServiceError::ForeignStream { .. } => {
                Self::new(Kind::Conflict, said)
            }
            ServiceError::Unreconciled { .. } => Self::new(Kind::Unreconciled, said),
            ServiceError::Store(_) if error.will_pass() => Self {
                retry_after: Some(1),
                cause: Some(error.to_string()),
                ..Self::new(
                    Kind::Unavailable,
                    "the database cannot be reached now; the same may succeed later",
                )
            },
            ServiceError::Store(_) if error.is_too_much() => Self::new(Kind::Invalid, said),
            ServiceError::Store(_) if error.is_conflict() => Self {
                cause: Some(error.to_string()),
                ..Self::new(Kind::Conflict, "somebody else was first")
            },
            ServiceError::Store(_)
            | ServiceError::Answered { .. }
            | ServiceError::NotADemo { .. }
            | ServiceError::BillingIsFixed { .. }
            | ServiceError::ZoneChanged { .. }
            | ServiceError::Encode(_)
            | ServiceError::Allocation(_)
            | ServiceError::OutOfRange(_)
            | ServiceError::Report(_) => Self {
                cause: Some(error.to_string()),
                ..Self::new(Kind::Internal, "the service failed; the log has the reason under this request")
            },
        }
    }
}

fn price_pointer(error: &PriceError) -> String {
    match error {
        PriceError::NotOnHourEdge { field, .. } => format!("/{field}"),
        PriceError::NeverEffective { .. } | PriceError::Overlaps { .. } => "/effective_from".to_owned(),
        PriceError::WrongCurrency { .. } => "/currency".to_owned(),
        PriceError::Empty => "/cost".to_owned(),
        PriceError::ReservedCharacter { .. } => "/name".to_owned(),
    }
}
