//! Sends what the outbox holds, at least once, to whoever takes it.

use std::sync::Arc;

use futures_util::future::BoxFuture;

use super::ctx::Platform;
use super::error::ServiceError;
use crate::domain::units::{Instant, MICROS_PER_SECOND};
use crate::store::outbox;
pub use crate::store::outbox::NewMessage as Message;
use crate::store::{idempotency, unit};

/// Messages that are taken at once.
const TAKEN_AT_ONCE: i64 = 64;
/// One whose sender said nothing for so long is sent by another.
const GIVEN_UP_US: i64 = 60 * MICROS_PER_SECOND;
/// Between two tries of a message, at most.
const PAUSE_US_MAX: i64 = 3_600 * MICROS_PER_SECOND;
/// How long messages are kept after they were sent, and answers for repeated requests.
const KEPT_US: i64 = 24 * 3_600 * MICROS_PER_SECOND;

/// Takes messages, as a port: `main` chooses to whom they go.
pub trait Receiver: Send + Sync {
    /// Hands a message over; a reason where it was not taken.
    fn receive<'a>(&'a self, message: &'a Message) -> BoxFuture<'a, Result<(), String>>;
}

/// Sends what is due. Returns how many messages were taken.
///
/// # Errors
/// [`ServiceError`] when the store fails; a message that is not taken is no error, it is tried again later.
pub async fn send_due(platform: &Platform, receiver: &dyn Receiver) -> Result<u64, ServiceError> {
    let mut sent = 0;
    loop {
        let now = platform.now();
        let again = now.plus_micros(GIVEN_UP_US);
        let taken = platform
            .write(move |scope, tx| {
                unit(async move { Ok(outbox::take(scope, tx, now, again, TAKEN_AT_ONCE).await?) })
            })
            .await?;
        if taken.is_empty() {
            return Ok(sent);
        }
        let mut ended = Vec::with_capacity(taken.len());
        for waiting in taken {
            let result = receiver.receive(&waiting.message).await;
            sent += u64::from(result.is_ok());
            ended.push((waiting.id, now.plus_micros(pause_us(waiting.attempts)), result));
        }
        let ended = Arc::new(ended);
        platform
            .write(move |scope, tx| {
                let ended = Arc::clone(&ended);
                unit(async move {
                    for (id, again, result) in &*ended {
                        match result {
                            Ok(()) => outbox::sent(scope, tx, *id, now).await?,
                            Err(reason) => outbox::failed(scope, tx, *id, *again, reason).await?,
                        }
                    }
                    Ok(())
                })
            })
            .await?;
    }
}

/// Twice as long after each try.
fn pause_us(attempts: i64) -> i64 {
    let doubled = u32::try_from(attempts.clamp(0, 12)).unwrap_or(12);
    (5 * MICROS_PER_SECOND).saturating_mul(1_i64 << doubled).min(PAUSE_US_MAX)
}

/// Forgets what nobody will ask for any more: messages that were sent, answers of a day ago.
///
/// # Errors
/// [`ServiceError`].
pub async fn forget_old(platform: &Platform) -> Result<(), ServiceError> {
    let before: Instant = platform.now().plus_micros(-KEPT_US);
    platform
        .write(move |scope, tx| {
            unit(async move {
                outbox::forget(scope, tx, before).await?;
                idempotency::forget(scope, tx, before).await?;
                Ok(())
            })
        })
        .await
}

/// How many messages wait.
///
/// # Errors
/// [`ServiceError`].
pub async fn waiting(platform: &Platform) -> Result<i64, ServiceError> {
    platform.read(move |scope, tx| unit(async move { Ok(outbox::waiting(scope, tx).await?) })).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_an_hour() {
        let seconds: Vec<i64> = (0..14).map(|tries| pause_us(tries) / MICROS_PER_SECOND).collect();
        assert_eq!(seconds[..4], [5, 10, 20, 40]);
        assert_eq!(seconds[13], 3_600);
    }
}
