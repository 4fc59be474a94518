//! `fatia price load`.

use super::args::LoadArguments;
use super::wait::until_derived;
use super::{Ending, Target, read_text, tell};
use crate::services::error::ServiceError;
use crate::services::pricing;

pub(super) async fn run(target: &Target<'_>, arguments: &LoadArguments) -> Result<Ending, ServiceError> {
    let (file, text) = read_text(&arguments.file)?;
    let (name, revision, prices, effective, is_new) = match target {
        Target::Here(platform, _) => {
            let outcome = pricing::load(platform, &file, &text).await?;
            let (name, effective) = (outcome.name.to_string(), outcome.effective.to_string());
            (name, outcome.revision, outcome.prices, effective, outcome.is_new)
        }
        Target::Server(server) => {
            let outcome = server.publish(&file, text).await?;
            let end = outcome.effective_to.as_deref().unwrap_or("..");
            let effective = format!("{}/{end}", outcome.effective_from);
            (outcome.name, outcome.revision, outcome.prices, effective, outcome.is_new)
        }
    };
    let done = if is_new { "published" } else { "was published before; nothing changed" };
    tell(&format!("price book `{name}` revision {revision}, {prices} prices, effective {effective}: {done}"));
    until_derived(target, arguments.no_wait).await?;
    Ok(Ending::Done)
}
