//! How far deriving is, deriving again, and whether all levels say the same.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::json;
use tokio::sync::Semaphore;

use crate::http::call::{Call, Reply};
use crate::http::problem::{Kind, Problem};
use crate::services::derive::{self, Awaited};
use crate::services::doctor;

/// How long one request may wait for what is marked.
const WAIT_MAX: u32 = 60;
/// Between two looks.
const LOOK: Duration = Duration::from_millis(300);
/// Requests that wait at once; others are answered at once.
const WAITING_MAX: usize = 16;
/// Moments that are remembered, so that the next request can go on waiting for what was marked then.
const MOMENTS_KEPT: usize = 64;

/// Who waits, and for what.
pub(in crate::http) struct Waits {
    turns: Semaphore,
    moments: Mutex<Moments>,
}

#[derive(Default)]
struct Moments {
    last: u64,
    kept: VecDeque<(u64, Awaited)>,
}

impl Default for Waits {
    fn default() -> Self {
        Self { turns: Semaphore::new(WAITING_MAX), moments: Mutex::default() }
    }
}

impl Waits {
    /// What was marked at a moment that an earlier answer named, if it is remembered.
    fn take(&self, moment: u64) -> Option<Awaited> {
        let mut moments = self.moments.lock().unwrap_or_else(PoisonError::into_inner);
        let at = moments.kept.iter().position(|(known, _)| *known == moment)?;
        moments.kept.remove(at).map(|(_, awaited)| awaited)
    }

    /// Remembers what is awaited still; the name of the moment.
    fn keep(&self, awaited: Awaited) -> u64 {
        let mut moments = self.moments.lock().unwrap_or_else(PoisonError::into_inner);
        moments.last += 1;
        let name = moments.last;
        moments.kept.push_back((name, awaited));
        if moments.kept.len() > MOMENTS_KEPT {
            moments.kept.pop_front();
        }
        name
    }
}

/// How many marks wait; with `wait`, once what was marked at the request's beginning is derived, or the time is over. The
/// answer names that moment, so that the next request can go on waiting for the same: on a fleet that reports all the
/// time, something is always marked.
pub(in crate::http) async fn get(mut call: Call) -> Result<Reply, Problem> {
    let wait = call.query.find("wait", |text| match text.parse() {
        Ok(seconds @ 0..=WAIT_MAX) => Ok(seconds),
        Ok(_) | Err(_) => Err(format!("is not a whole number of seconds from 0 to {WAIT_MAX}")),
    });
    let moment = call.query.find("moment", |text| text.parse::<u64>().map_err(|_| "is not a whole number"));
    call.no_more_query()?;
    let platform = call.platform()?;
    let service = Arc::clone(&call.service);
    let mut awaited = match moment.and_then(|moment| service.waits.take(moment)) {
        Some(awaited) => awaited,
        None => Awaited::now(&platform).await?,
    };
    let mut left = awaited.left(&platform).await?;
    let turn = service.waits.turns.try_acquire();
    let seconds = if turn.is_ok() { wait.unwrap_or(0) } else { 0 };
    let over = tokio::time::sleep(Duration::from_secs(u64::from(seconds)));
    tokio::pin!(over);
    while left > 0 && !over.is_elapsed() && !service.is_stopping() {
        tokio::select! {
            () = &mut over => {}
            () = tokio::time::sleep(LOOK) => left = awaited.left(&platform).await?,
        }
    }
    let (pending, someone_works) =
        (derive::pending(&platform).await?, derive::someone_works(&platform).await?);
    let moment = (left > 0).then(|| service.waits.keep(awaited));
    Reply::json(&json!({
        "pending_marks": pending, "awaited_days": left, "someone_works": someone_works, "moment": moment,
    }))
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
    let platform = call.platform()?;
    let Ok(_turn) = call.service.doctor.try_acquire() else {
        let detail = "somebody has the levels checked at the moment";
        return Err(Problem { retry_after: Some(10), ..Problem::new(Kind::TooManyRequests, detail) });
    };
    let checks = call.service.apart(async move { doctor::examine(&platform).await }).await?;
    let all: Vec<serde_json::Value> = checks
        .iter()
        .map(|check| json!({ "subject": check.subject, "verdict": check.verdict.word(), "detail": check.detail }))
        .collect();
    Reply::json(&json!({ "checks": all }))
}
