//! `fatia import states`.

use super::args::StatesArguments;
use super::import::{name, open};
use super::wait::until_derived;
use super::{Ending, tell};
use crate::services::ctx::Platform;
use crate::services::derive::Worker;
use crate::services::error::ServiceError;
use crate::services::states::{StatesOutcome, import_states};

pub(super) async fn run(
    platform: &Platform,
    worker: &Worker,
    arguments: &StatesArguments,
) -> Result<Ending, ServiceError> {
    let (file, table) = (name(&arguments.file), open(&arguments.file)?);
    let outcome = import_states(platform, &arguments.source, (&file, table)).await?;
    for bad in &outcome.bad {
        tell(&format!("{}: line {}: {}", bad.file, bad.line, bad.reason));
    }
    tell(&summary(&outcome));
    until_derived(platform, worker, arguments.no_wait).await?;
    Ok(if outcome.bad.is_empty() { Ending::Done } else { Ending::SomeRefused })
}

fn summary(outcome: &StatesOutcome) -> String {
    format!(
        "{}: {} lines read, {} refused, {} repeated; {} states declared, {} amended, {} taken back",
        if outcome.changed() { "states" } else { "nothing new" },
        outcome.lines,
        outcome.bad.len(),
        outcome.repeated,
        outcome.declared,
        outcome.amended,
        outcome.taken_back,
    )
}
