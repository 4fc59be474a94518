//! Edge: the terminal. Parses arguments, calls one service, shows its answer.

mod args;
mod catalogue;
mod doctor;
pub mod door;
mod import;
mod nodes;
mod prices;
mod report;
mod server;
mod states;
mod tenants;
mod tokens;
mod wait;

pub use args::{
    Arguments, CatalogueCommand, Command, DemoArguments, ImportCommand, PriceCommand, ReportCommand,
    ServeArguments, TenantCommand, TokenCommand, WorkerArguments,
};
pub use server::Server;

use std::path::Path;

use crate::services::ctx::Platform;
use crate::services::derive::Worker;
use crate::services::error::ServiceError;
use crate::wire::token::{self, Minted};

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
    pub fn code_of(error: &ServiceError) -> u8 {
        match error {
            ServiceError::Unreconciled { .. } => Self::Wrong.code(),
            ServiceError::Answered { kind, .. } if kind.ends_with(":unreconciled") => Self::Wrong.code(),
            _ => 1,
        }
    }
}

/// What stands beside what nobody owes anybody.
const DEMO: &str = "Demo data: the company, its fleet and its prices are made up.";

/// Where a command is done.
#[derive(Debug)]
pub enum Target<'a> {
    /// By this process, which has the installation open.
    Here(&'a Platform, &'a Worker),
    /// By the service that has it open.
    Server(Server),
}

impl Target<'_> {
    /// Whether all of its data is made up; of a service as far as it has answered.
    fn is_demo(&self) -> bool {
        match self {
            Self::Here(platform, _) => platform.installation.is_demo,
            Self::Server(server) => server.is_demo(),
        }
    }
}

/// Whether a running service may do a command for this process.
#[must_use]
pub const fn is_for_a_service(command: &Command) -> bool {
    match command {
        Command::Import(_)
        | Command::Report(_)
        | Command::Price(_)
        | Command::Catalogue(_)
        | Command::Rebuild(_)
        | Command::Doctor(_)
        | Command::Token(_)
        | Command::Node(_)
        | Command::Tenant(_) => true,
        Command::Agent(_) | Command::Serve(_) | Command::Demo(_) | Command::Worker(_) | Command::Migrate => {
            false
        }
    }
}

/// Runs a command that needs nothing but the installation. `random` fills with random bytes.
///
/// # Errors
/// [`ServiceError`].
pub async fn run(
    target: &Target<'_>,
    command: &Command,
    random: fn(&mut [u8]) -> Result<(), String>,
) -> Result<Ending, ServiceError> {
    let ended = match command {
        Command::Import(ImportCommand::Intervals(arguments)) => import::run(target, arguments).await,
        Command::Import(ImportCommand::States(arguments)) => states::run(target, arguments).await,
        Command::Report(ReportCommand::Costs(arguments)) => report::run(target, arguments).await,
        Command::Price(PriceCommand::Load(arguments)) => prices::run(target, arguments).await,
        Command::Catalogue(CatalogueCommand::Load(arguments)) => catalogue::load(target, arguments).await,
        Command::Catalogue(CatalogueCommand::Show(arguments)) => catalogue::list(target, arguments).await,
        Command::Rebuild(arguments) => wait::rebuild(target, arguments.no_wait).await,
        Command::Doctor(_) => doctor::run(target).await,
        Command::Token(command) => tokens::run(target, command, random).await,
        Command::Node(command) => nodes::run(target, command, random).await,
        Command::Tenant(command) => tenants::run(target, command).await,
        // `main` runs these itself: they are other edges.
        Command::Agent(_) | Command::Serve(_) | Command::Demo(_) | Command::Worker(_) | Command::Migrate => {
            Ok(Ending::Done)
        }
    };
    let is_said = match command {
        // Above its figures, so that it goes where they go.
        Command::Report(ReportCommand::Costs(arguments)) => arguments.format == args::Format::Text,
        _ => false,
    };
    if target.is_demo() && !is_said {
        tell(DEMO);
    }
    ended
}

/// A new bearer or enrolment token.
fn mint(random: fn(&mut [u8]) -> Result<(), String>) -> Result<Minted, ServiceError> {
    let mut bytes = [0; 40];
    random(&mut bytes).map_err(|reason| ServiceError::File { file: "random bytes".to_owned(), reason })?;
    Ok(token::mint(&bytes))
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
