//! `fatia import states`.

use super::args::StatesArguments;
use super::import::{name, open};
use super::wait::until_derived;
use super::{Ending, Target, read_text, tell};
use crate::services::error::ServiceError;
use crate::services::states::{StatesOutcome, import_states};
use crate::services::table::Strictness;

pub(super) async fn run(target: &Target<'_>, arguments: &StatesArguments) -> Result<Ending, ServiceError> {
    let outcome = match target {
        Target::Here(platform, _) => {
            let (file, table) = (name(&arguments.file), open(&arguments.file)?);
            import_states(platform, &arguments.source, (&file, table), Strictness::TakeTheGood).await?
        }
        Target::Server(server) => {
            let (file, table) = read_text(&arguments.file)?;
            let declared = server.declare(&arguments.source, &file, table).await?;
            StatesOutcome {
                lines: declared.lines,
                repeated: declared.repeated,
                bad: declared.refused,
                declared: declared.declared,
                amended: declared.amended,
                taken_back: declared.taken_back,
            }
        }
    };
    for bad in &outcome.bad {
        tell(&format!("{}: line {}: {}", bad.file, bad.line, bad.reason));
    }
    tell(&summary(&outcome));
    until_derived(target, arguments.no_wait).await?;
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
