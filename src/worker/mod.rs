//! Edge: the timers. Ticks, then derives what is marked, until it is told to stop.
//!
//! Owns no state: everything is in marks and leases, so any number of workers may run, and any may die.

use std::time::Duration;

use crate::domain::units::{Instant, MICROS_PER_SECOND};
use crate::services::ctx::Platform;
use crate::services::derive::{self, Worker};
use crate::services::error::ServiceError;
use crate::services::outbox::{self, Receiver};
use crate::services::tick;
use futures_util::future::BoxFuture;

/// Between two ticks: the open hour is refreshed this often.
const TICK_US: i64 = 300 * MICROS_PER_SECOND;
/// Between two looks for marks.
const LOOK: Duration = Duration::from_millis(500);
/// The same after a round in which there was something to derive: more of the same days may be on its way.
const PACE: Duration = Duration::from_millis(200);
/// After an error, before the next try.
const REST: Duration = Duration::from_secs(5);

/// Ticks once and derives until nothing is marked, also what other workers hold.
///
/// # Errors
/// [`ServiceError`].
pub async fn run_once(platform: &Platform, worker: &Worker) -> Result<(), ServiceError> {
    tick::advance(platform).await?;
    loop {
        derive::derive_all(platform, worker, &|_| ()).await?;
        if derive::pending(platform).await? == 0 {
            return Ok(());
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Works until `stop` completes; what is begun is finished. An error is logged and the work goes on.
///
/// # Errors
/// [`ServiceError::ZoneChanged`], which only a new start cures.
pub async fn run(
    platform: &Platform,
    worker: &Worker,
    stop: impl Future<Output = ()>,
) -> Result<(), ServiceError> {
    tokio::pin!(stop);
    let mut ticked = Instant::MIN;
    loop {
        let pause = match step(platform, worker, &mut ticked).await {
            Ok(0) => LOOK,
            Ok(_) => PACE,
            Err(error @ ServiceError::ZoneChanged { .. }) => return Err(error),
            Err(error) => {
                tracing::warn!(worker = %worker.holder, "deriving failed and will be tried again: {}", chain(&error));
                REST
            }
        };
        tokio::select! {
            () = &mut stop => return Ok(()),
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// Ticks where it is time, and derives once round. How many scopes' days were derived.
async fn step(platform: &Platform, worker: &Worker, ticked: &mut Instant) -> Result<u64, ServiceError> {
    let now = platform.now();
    if now.micros_since(*ticked) >= TICK_US {
        tick::advance(platform).await?;
        outbox::forget_old(platform).await?;
        *ticked = now;
    }
    let derived = derive::derive_round(platform, worker).await;
    // A day that cannot be derived holds nothing else up.
    outbox::send_due(platform, &LogReceiver).await?;
    let derived = derived?;
    if derived.days > 0 {
        tracing::info!(worker = %worker.holder, days = derived.days, "derived {} node-days", derived.days);
    }
    Ok(derived.days)
}

/// Says events in the log: for whoever collects logs, and as long as nobody else wants them.
struct LogReceiver;

impl Receiver for LogReceiver {
    fn receive<'a>(&'a self, message: &'a outbox::Message) -> BoxFuture<'a, Result<(), String>> {
        let (kind, payload) = (message.kind.word(), &message.payload);
        tracing::info!(kind, "changed: {payload}");
        Box::pin(std::future::ready(Ok(())))
    }
}

/// An error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
