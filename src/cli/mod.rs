//! Edge: the terminal. Parses arguments, calls one service, shows its answer.

mod args;
mod catalogue;
mod doctor;
mod import;
mod prices;
mod report;
mod states;
mod wait;

pub use args::{
    Arguments, CatalogueCommand, Command, ImportCommand, PriceCommand, ReportCommand, WorkerArguments,
};

use std::path::Path;

use crate::services::ctx::Platform;
use crate::services::derive::Worker;
use crate::services::error::ServiceError;

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// All done.
    Done,
    /// Done, but some lines were refused.
    SomeRefused,
    /// Something is wrong with the figures.
    Wrong,
}

impl Ending {
    /// The process's exit code.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::SomeRefused => 3,
            Self::Wrong => 4,
        }
    }

    /// The exit code of an error.
    #[must_use]
    pub const fn code_of(error: &ServiceError) -> u8 {
        match error {
            ServiceError::Unreconciled { .. } => Self::Wrong.code(),
            _ => 1,
        }
    }
}

/// Runs a command that needs nothing but the open installation.
///
/// # Errors
/// [`ServiceError`].
pub async fn run(platform: &Platform, worker: &Worker, command: &Command) -> Result<Ending, ServiceError> {
    match command {
        Command::Import(ImportCommand::Intervals(arguments)) => {
            import::run(platform, worker, arguments).await
        }
        Command::Import(ImportCommand::States(arguments)) => states::run(platform, worker, arguments).await,
        Command::Report(ReportCommand::Costs(arguments)) => report::run(platform, arguments).await,
        Command::Price(PriceCommand::Load(arguments)) => prices::run(platform, worker, arguments).await,
        Command::Catalogue(CatalogueCommand::Load(arguments)) => {
            catalogue::load(platform, worker, arguments).await
        }
        Command::Catalogue(CatalogueCommand::Show(arguments)) => catalogue::list(platform, arguments).await,
        Command::Rebuild(arguments) => wait::rebuild(platform, worker, arguments.no_wait).await,
        Command::Doctor => doctor::run(platform).await,
        // `main` runs these itself: they are other edges.
        Command::Worker(_) | Command::Migrate => Ok(Ending::Done),
    }
}

/// A file that an operator names, and its text: what it is called in errors comes first.
fn read_text(path: &Path) -> Result<(String, String), ServiceError> {
    let file = path.display().to_string();
    match std::fs::read_to_string(path) {
        Ok(text) => Ok((file, text)),
        Err(error) => Err(ServiceError::File { file, reason: format!("cannot be read: {error}") }),
    }
}

/// Writes to standard output. A closed pipe (`| head`) is no error; a full disk is.
fn show(text: &str) -> Result<(), ServiceError> {
    use std::io::Write;
    let mut out = std::io::stdout();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(ServiceError::File { file: "standard output".to_owned(), reason: error.to_string() })
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Writes a line to standard error: progress and refusals, so that output stays clean.
fn tell(text: &str) {
    use std::io::Write;
    let _closed_by_its_reader = writeln!(std::io::stderr(), "{text}");
}
