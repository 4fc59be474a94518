//! How far deriving is, deriving again, and whether all levels say the same.

use std::time::Duration;

use serde_json::json;

use crate::http::call::{Call, Reply};
use crate::http::problem::Problem;
use crate::services::derive::{self, Awaited};
use crate::services::doctor;

/// How long one request may wait for what is marked.
const WAIT_MAX: u32 = 60;
/// Between two looks.
const LOOK: Duration = Duration::from_millis(200);

/// How many marks wait; with `wait`, once what was marked at the request's beginning is derived, or the time is over.
pub(in crate::http) async fn get(mut call: Call) -> Result<Reply, Problem> {
    let wait = call.query.find("wait", |text| match text.parse() {
        Ok(seconds @ 0..=WAIT_MAX) => Ok(seconds),
        Ok(_) | Err(_) => Err(format!("is not a whole number of seconds from 0 to {WAIT_MAX}")),
    });
    call.no_more_query()?;
    let platform = call.platform()?;
    let mut awaited = Awaited::now(&platform).await?;
    let mut left = awaited.left(&platform).await?;
    let over = tokio::time::sleep(Duration::from_secs(u64::from(wait.unwrap_or(0))));
    tokio::pin!(over);
    while left > 0 && !over.is_elapsed() && !call.service.is_stopping() {
        tokio::select! {
            () = &mut over => {}
            () = tokio::time::sleep(LOOK) => left = awaited.left(&platform).await?,
        }
    }
    let (pending, someone_works) =
        (derive::pending(&platform).await?, derive::someone_works(&platform).await?);
    Reply::json(&json!({ "pending_marks": pending, "awaited_days": left, "someone_works": someone_works }))
}

/// Marks everything, so that all levels are derived from the journal again.
pub(in crate::http) async fn rebuild(mut call: Call) -> Result<Reply, Problem> {
    call.no_more_query()?;
    let platform = call.platform()?;
    let pending = call
        .service
        .apart(async move {
            derive::rebuild(&platform).await?;
            derive::pending(&platform).await
        })
        .await?;
    Ok(Reply { status: 202, ..Reply::json(&json!({ "pending_marks": pending }))? })
}

/// Looks at each level against the one below.
pub(in crate::http) async fn checks(mut call: Call) -> Result<Reply, Problem> {
    call.no_more_query()?;
    let checks = doctor::examine(&call.platform()?).await?;
    let all: Vec<serde_json::Value> = checks
        .iter()
        .map(|check| json!({ "subject": check.subject, "verdict": check.verdict.word(), "detail": check.detail }))
        .collect();
    Reply::json(&json!({ "checks": all }))
}
