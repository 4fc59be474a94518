//! `fatia import intervals`.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use super::args::IntervalsArguments;
use super::wait::{ProgressLine, until_derived};
use super::{Ending, tell};
use crate::domain::usage::Source;
use crate::services::ctx::Platform;
use crate::services::derive::Worker;
use crate::services::error::ServiceError;
use crate::services::imports::{ImportOutcome, ImportRequest, Progress, Tables, import_intervals};

pub(super) async fn run(
    platform: &Platform,
    worker: &Worker,
    arguments: &IntervalsArguments,
) -> Result<Ending, ServiceError> {
    let source = Source { rank: arguments.rank, sender: arguments.source.clone() };
    let request = ImportRequest { source, covers: arguments.covers };
    let slices = arguments.slices.as_deref().map(|path| Ok::<_, ServiceError>((name(path), open(path)?)));
    let tables = Tables {
        inventory: (name(&arguments.inventory), open(&arguments.inventory)?),
        slices: slices.transpose()?,
        intervals: (name(&arguments.file), open(&arguments.file)?),
    };
    let line = ProgressLine::new();
    let show = move |progress: Progress| {
        line.show(&format!("importing: {} of {} batches", progress.answered, progress.batches));
    };
    let outcome = import_intervals(platform, &request, tables, Arc::new(show)).await?;
    line.clear();
    for bad in &outcome.bad {
        tell(&format!("{}: line {}: {}", bad.file, bad.line, bad.reason));
    }
    tell(&summary(&outcome));
    until_derived(platform, worker, arguments.no_wait).await?;
    let all_taken = outcome.bad.is_empty() && outcome.refused_rows == 0;
    Ok(if all_taken { Ending::Done } else { Ending::SomeRefused })
}

fn summary(outcome: &ImportOutcome) -> String {
    let number = match outcome.number {
        Some(number) => format!("import {number}"),
        None => "nothing new".to_owned(),
    };
    let mut text = format!(
        "{number}: {} lines read, {} refused, {} repeated; {} batches stored, {} already there; \
         {} in-service intervals opened, {} changed",
        outcome.lines,
        outcome.bad.len(),
        outcome.repeated,
        outcome.stored,
        outcome.duplicates,
        outcome.inventory.opened,
        outcome.inventory.ended + outcome.inventory.repooled,
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
