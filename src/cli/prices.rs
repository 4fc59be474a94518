//! `fatia price load`.

use super::args::LoadArguments;
use super::wait::until_derived;
use super::{Ending, read_text, tell};
use crate::services::ctx::Platform;
use crate::services::derive::Worker;
use crate::services::error::ServiceError;
use crate::services::pricing;

pub(super) async fn run(
    platform: &Platform,
    worker: &Worker,
    arguments: &LoadArguments,
) -> Result<Ending, ServiceError> {
    let (file, text) = read_text(&arguments.file)?;
    let outcome = pricing::load(platform, &file, &text).await?;
    let done = if outcome.is_new { "published" } else { "was published before; nothing changed" };
    let (name, revision, prices) = (&outcome.name, outcome.revision, outcome.prices);
    tell(&format!(
        "price book `{name}` revision {revision}, {prices} prices, effective {}: {done}",
        outcome.effective
    ));
    until_derived(platform, worker, arguments.no_wait).await?;
    Ok(Ending::Done)
}
