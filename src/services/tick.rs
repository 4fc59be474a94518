//! The tick: asks for every in-service hour that has begun, whether anybody reports or not.
//!
//! Without it a dead node would leave the sum instead of becoming `unknown`.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::accept::hours_meeting;
use super::ctx::{Platform, check_zone};
use super::error::ServiceError;
use super::pools;
use crate::domain::ids::ScopeId;
use crate::domain::period::{BillingZone, Span};
use crate::domain::units::{Instant, MICROS_PER_SECOND};
use crate::store::fleet::{ServiceInterval, StoredScope};
use crate::store::installation::Lock;
use crate::store::marks::MarkKind;
use crate::store::{PlatformScope, WriteTx, fleet, installation, marks, unit};

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
    let (now, zone) = (platform.now(), platform.zone());
    let (homes, unfinished) = platform
        .read(move |scope, tx| {
            unit(async move {
                Ok((fleet::scopes(scope, tx).await?, fleet::unfinished_services(scope, tx).await?))
            })
        })
        .await?;
    let waiting: BTreeSet<ScopeId> = unfinished
        .iter()
        .filter(|interval| interval.edge < edge_at(interval, now))
        .map(|interval| interval.scope)
        .collect();
    for home in homes.into_iter().filter(|home| waiting.contains(&home.id)) {
        let home = Arc::new(home);
        platform
            .write(move |scope, tx| {
                let home = Arc::clone(&home);
                unit(async move { advance_home(scope, tx, &home, zone, now).await })
            })
            .await?;
    }
    Ok(())
}

/// Moves the edges of one scope, by what its intervals are now: an end may have moved since they were listed.
pub(super) async fn advance_home(
    scope: &PlatformScope,
    tx: &WriteTx,
    home: &StoredScope,
    zone: BillingZone,
    now: Instant,
) -> Result<(), ServiceError> {
    installation::lock(scope, tx, Lock::Shared).await?;
    check_zone(scope, tx, zone).await?;
    let mut spans = Vec::new();
    for interval in fleet::scope_services(scope, tx, home.id).await? {
        let edge = edge_at(&interval, now);
        if interval.edge < edge {
            fleet::advance_edge(scope, tx, &interval, edge).await?;
            spans.push(Span::clamped(interval.edge, edge));
        }
    }
    let hours = hours_meeting(zone, spans);
    marks::mark_hours(scope, tx, home, MarkKind::Fold, &hours).await?;
    pools::mark(scope, tx, home, &hours).await
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
            pool: None,
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
