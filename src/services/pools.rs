//! Marks of pools: what changes a node's hours may change those of the pools to which its devices belong.

use std::collections::BTreeSet;

use super::error::ServiceError;
use crate::domain::period::{Day, Span};
use crate::domain::units::{Instant, MICROS_PER_SECOND};
use crate::store::fleet::StoredScope;
use crate::store::marks::MarkKind;
use crate::store::{PlatformScope, WriteTx, fleet, marks};

/// Marks hours of a node in its devices' pools, each as far as some device of the node belongs to it then.
///
/// Called after the node's own marks, and pools go by name: one order for all writers.
///
/// # Errors
/// [`ServiceError`].
pub(super) async fn mark(
    scope: &PlatformScope,
    tx: &WriteTx,
    node: &StoredScope,
    hours: &BTreeSet<(Day, Instant)>,
) -> Result<(), ServiceError> {
    if hours.is_empty() {
        return Ok(());
    }
    let pools = fleet::pools_of(scope, tx, node.id).await?;
    if pools.is_empty() {
        return Ok(());
    }
    let services = fleet::scope_services(scope, tx, node.id).await?;
    for pool in pools {
        let spans: Vec<Span> =
            services.iter().filter(|each| each.pool == Some(pool.id)).map(|each| each.span).collect();
        // The last hour of a day may be shorter; one too many costs nothing.
        let hour = |start: Instant| Span::clamped(start, start.plus_micros(3_600 * MICROS_PER_SECOND));
        let concerned = |(_, start): &&(Day, Instant)| spans.iter().any(|span| span.meets(hour(*start)));
        let hours: BTreeSet<(Day, Instant)> = hours.iter().filter(concerned).copied().collect();
        marks::mark_hours(scope, tx, &pool, MarkKind::Part, &hours).await?;
    }
    Ok(())
}
