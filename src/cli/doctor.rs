//! `fatia doctor`.

use super::{Ending, show};
use crate::services::ctx::Platform;
use crate::services::doctor::{Verdict, examine};
use crate::services::error::ServiceError;

pub(super) async fn run(platform: &Platform) -> Result<Ending, ServiceError> {
    let checks = examine(platform).await?;
    for check in &checks {
        show(&format!("{:<7} {}: {}\n", check.verdict.word(), check.subject, check.detail))?;
    }
    let wrong = checks.iter().any(|check| check.verdict == Verdict::Ill);
    Ok(if wrong { Ending::Wrong } else { Ending::Done })
}
