//! The tick: asks for every in-service hour that has begun, whether anybody reports or not.
//!
//! Without it a dead node would leave the sum instead of becoming `unknown`.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::accept::hours_meeting;
use super::ctx::Platform;
use super::error::ServiceError;
use crate::domain::ids::ScopeId;
use crate::domain::period::Span;
use crate::domain::units::{Instant, MICROS_PER_SECOND};
use crate::store::fleet::ServiceInterval;
use crate::store::marks::MarkKind;
use crate::store::{fleet, marks, unit};

/// In the open hour a device is counted at least to this long ago; older silence is `unknown`.
const SILENCE_US: i64 = 600 * MICROS_PER_SECOND;

/// Until when an in-service interval is counted at `now`.
#[must_use]
pub fn edge_at(interval: &ServiceInterval, now: Instant) -> Instant {
    let silent = now.plus_micros(-SILENCE_US);
    let reported = interval.covered_to.min(now);
    interval.edge.max(silent.max(reported).min(interval.span.end())).max(interval.span.start())
}

/// Moves the edges of all in-service intervals to the present and marks the hours between.
///
/// # Errors
/// [`ServiceError`].
pub async fn advance(platform: &Platform) -> Result<(), ServiceError> {
    let now = platform.now();
    let (homes, unfinished) = {
        platform
            .read(move |scope, tx| {
                unit(async move {
                    let homes = fleet::scopes(scope, tx).await?;
                    Ok::<_, ServiceError>((homes, fleet::unfinished_services(scope, tx).await?))
                })
            })
            .await?
    };
    let mut by_scope: BTreeMap<ScopeId, Vec<(ServiceInterval, Instant)>> = BTreeMap::new();
    for interval in unfinished {
        let edge = edge_at(&interval, now);
        if interval.edge < edge {
            by_scope.entry(interval.scope).or_default().push((interval, edge));
        }
    }
    for home in homes {
        let Some(moved) = by_scope.remove(&home.id) else { continue };
        let spans = moved.iter().map(|(interval, edge)| Span::clamped(interval.edge, *edge));
        let hours = hours_meeting(platform.zone(), spans);
        let work = Arc::new((home, moved, hours));
        platform
            .write(move |scope, tx| {
                let work = Arc::clone(&work);
                unit(async move {
                    let (home, moved, hours) = &*work;
                    for (interval, edge) in moved {
                        fleet::advance_edge(scope, tx, interval, *edge).await?;
                    }
                    Ok::<_, ServiceError>(marks::mark_hours(scope, tx, home, MarkKind::Fold, hours).await?)
                })
            })
            .await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_counted_to_its_last_coverage_and_at_least_to_ten_minutes_ago() {
        let minute = |m: i64| Instant::from_micros(m * 60 * MICROS_PER_SECOND);
        let interval = |end: Instant, edge: i64, covered: i64| ServiceInterval {
            device: 1,
            scope: ScopeId::from_stored(1),
            span: Span::clamped(minute(0), end),
            node_index: None,
            edge: minute(edge),
            covered_to: minute(covered),
        };
        let check =
            |interval: ServiceInterval, want: i64| assert_eq!(edge_at(&interval, minute(100)), minute(want));
        check(interval(Instant::MAX, 0, 97), 97);
        check(interval(Instant::MAX, 0, 30), 90);
        check(interval(Instant::MAX, 95, 30), 95);
        check(interval(Instant::MAX, 0, 500), 100);
        check(interval(minute(60), 0, 500), 60);
        check(interval(minute(95), 0, 0), 90);
    }
}
