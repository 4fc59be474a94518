//! What can go wrong in the store, by what the caller can do about it.

/// A failure of the store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The database cannot be reached, or went away. Whether the last write happened is unknown; a repeat by
    /// its key is safe.
    #[error("the database is not available")]
    Unavailable(#[source] sea_orm::DbErr),
    /// Another transaction was in the way; the unit of work can be tried again from its start.
    #[error("another transaction was in the way")]
    Busy(#[source] sea_orm::DbErr),
    /// A constraint refused the write.
    #[error("the rule `{rule}` refuses this write")]
    Conflict {
        /// The constraint's name.
        rule: String,
        /// The database's error.
        #[source]
        source: sea_orm::DbErr,
    },
    /// A statement failed for another reason: a fault of this program or of the schema.
    #[error("a statement failed")]
    Statement(#[source] sea_orm::DbErr),
    /// What is stored cannot be what this program wrote.
    #[error("{what} cannot be read back: {reason}")]
    Corrupt {
        /// What was read.
        what: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// What is to be stored is more than can be kept.
    #[error("{what} is of {bytes} bytes, more than can be kept")]
    TooLarge {
        /// What was to be stored.
        what: &'static str,
        /// How large it is.
        bytes: usize,
    },
    /// What is asked for is more than is held in memory at once.
    #[error("there are more than {most} {what}")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many there may be.
        most: usize,
    },
    /// The database is not set up for this program.
    #[error("{0}")]
    Setup(String),
    /// Another process has the data directory.
    #[error("{path} is in use by {holder}; only one process may have it open")]
    InUse {
        /// The database file.
        path: String,
        /// Who holds it, as it wrote itself.
        holder: String,
    },
    /// A worker's lease is no longer its own; what it computed was not written.
    #[error("the lease on bucket {bucket} was lost")]
    LeaseLost {
        /// The bucket.
        bucket: i64,
    },
    /// A statement failed and the unit of work went on as if it had not: nothing of it was kept.
    #[error("a statement failed and its error was ignored; nothing was kept")]
    Ignored,
    /// The unit of work ended without an answer: it panicked, or the process is ending.
    #[error("the unit of work ended without an answer")]
    Abandoned,
}

impl StoreError {
    /// Something that cannot be what was written.
    pub(crate) fn corrupt(what: &'static str, reason: impl std::fmt::Display) -> Self {
        Self::Corrupt { what, reason: reason.to_string() }
    }
}

/// An error of a unit of work that may be the store's own, and so may be worth another try.
pub trait UnitError: From<StoreError> + Send + 'static {
    /// Whether the unit of work can be tried again from its start.
    fn is_busy(&self) -> bool;
}

impl UnitError for StoreError {
    fn is_busy(&self) -> bool {
        matches!(self, Self::Busy(_))
    }
}
