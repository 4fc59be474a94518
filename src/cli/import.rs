//! `fatia import intervals`.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use super::args::IntervalsArguments;
use super::wait::{ProgressLine, until_derived};
use super::{Ending, Target, tell};
use crate::domain::usage::Source;
use crate::services::error::ServiceError;
use crate::services::imports::{ImportRequest, Progress, Tables, import_intervals};
use crate::services::runs::RunOutcome;

pub(super) async fn run(target: &Target<'_>, arguments: &IntervalsArguments) -> Result<Ending, ServiceError> {
    let line = ProgressLine::new();
    let outcome = match target {
        Target::Here(platform, _) => {
            let source = Source { rank: arguments.rank, sender: arguments.source.clone() };
            let request = ImportRequest { source, covers: arguments.covers };
            let slices =
                arguments.slices.as_deref().map(|path| Ok::<_, ServiceError>((name(path), open(path)?)));
            let tables = Tables {
                inventory: (name(&arguments.inventory), open(&arguments.inventory)?),
                slices: slices.transpose()?,
                intervals: (name(&arguments.file), open(&arguments.file)?),
            };
            let show = move |progress: Progress| {
                line.show(&format!("importing: {} of {} batches", progress.answered, progress.batches));
            };
            let outcome = import_intervals(platform, &request, tables, Arc::new(show)).await?;
            line.clear();
            for bad in &outcome.bad {
                tell(&format!("{}: line {}: {}", bad.file, bad.line, bad.reason));
            }
            RunOutcome::of(&outcome)
        }
        Target::Server(server) => {
            let (run, refused) = server.import(arguments, line).await?;
            for bad in &refused {
                tell(&format!("{}: line {}: {}", bad.file, bad.line, bad.reason));
            }
            match (run.outcome, run.failure) {
                (Some(outcome), _) => outcome,
                (None, Some(detail)) => {
                    return Err(ServiceError::Answered { kind: "import".to_owned(), detail });
                }
                (None, None) => {
                    let detail = format!("import {} was interrupted; the same command resumes it", run.id);
                    return Err(ServiceError::Answered { kind: "import".to_owned(), detail });
                }
            }
        }
    };
    tell(&summary(&outcome));
    until_derived(target, arguments.no_wait).await?;
    let all_taken = outcome.refused_lines == 0 && outcome.refused_rows == 0;
    Ok(if all_taken { Ending::Done } else { Ending::SomeRefused })
}

fn summary(outcome: &RunOutcome) -> String {
    let number = match outcome.number {
        Some(number) => format!("import {number}"),
        None => "nothing new".to_owned(),
    };
    let mut text = format!(
        "{number}: {} lines read, {} refused, {} repeated; {} batches stored, {} already there; \
         {} in-service intervals opened, {} changed",
        outcome.lines,
        outcome.refused_lines,
        outcome.repeated,
        outcome.stored,
        outcome.duplicates,
        outcome.opened,
        outcome.changed,
    );
    if outcome.refused_rows > 0 {
        text.push_str(&format!("; {} rows refused at acceptance", outcome.refused_rows));
    }
    text
}

pub(super) fn name(path: &Path) -> String {
    path.display().to_string()
}

pub(super) fn open(path: &Path) -> Result<File, ServiceError> {
    File::open(path).map_err(|error| ServiceError::File {
        file: name(path),
        reason: format!("cannot be opened: {error}"),
    })
}
