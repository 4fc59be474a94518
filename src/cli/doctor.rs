//! `fatia doctor`.

use super::{Ending, Target, show};
use crate::services::doctor::{Verdict, examine};
use crate::services::error::ServiceError;

pub(super) async fn run(target: &Target<'_>) -> Result<Ending, ServiceError> {
    let checks = match target {
        Target::Here(platform, _) => {
            let checks = examine(platform).await?.into_iter();
            checks.map(|check| [check.verdict.word().to_owned(), check.subject, check.detail]).collect()
        }
        Target::Server(server) => server.checks().await?,
    };
    for [verdict, subject, detail] in &checks {
        show(&format!("{verdict:<7} {subject}: {detail}\n"))?;
    }
    let wrong = checks.iter().any(|[verdict, ..]| verdict == Verdict::Ill.word());
    Ok(if wrong { Ending::Wrong } else { Ending::Done })
}
