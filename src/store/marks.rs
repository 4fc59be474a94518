//! Dirty marks, and the leases under which workers clear them.
//!
//! Always true here: whoever changes an input marks what depends on it in the same transaction; a worker
//! clears only the version of a mark that it read, so a change that commits while it works stays marked. No
//! watermark and no in-place sum exists.

use std::collections::BTreeSet;

use super::backend::lock_clause;
use super::fleet::StoredScope;
use super::{PlatformScope, ReadTx, StoreError, WriteTx};
use crate::domain::ids::{Bucket, ScopeId, TenantId};
use crate::domain::period::Day;
use crate::domain::units::Instant;

/// What has to be derived anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MarkKind {
    /// Journal to segments.
    Fold,
    /// Segments to parts.
    Part,
    /// Parts to sums; its hour is the day's start.
    Price,
}

impl MarkKind {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Fold, Self::Part, Self::Price];

    /// The word.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Fold => "fold",
            Self::Part => "part",
            Self::Price => "price",
        }
    }
}

/// A mark as read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mark {
    /// What has to be done.
    pub kind: MarkKind,
    /// For which hour.
    pub hour: Instant,
    /// Which version was read.
    pub version: i64,
}

/// Marks hours of a scope. A mark that is there already gets its next version.
///
/// # Errors
/// [`StoreError`].
pub async fn mark_hours(
    scope: &PlatformScope,
    tx: &WriteTx,
    of: &StoredScope,
    kind: MarkKind,
    hours: &BTreeSet<(Day, Instant)>,
) -> Result<(), StoreError> {
    mark_all(scope, tx, kind, [(of, hours)]).await
}

/// Marks hours of scopes.
///
/// # Errors
/// [`StoreError`].
pub async fn mark_all<'a>(
    _scope: &PlatformScope,
    tx: &WriteTx,
    kind: MarkKind,
    all: impl IntoIterator<Item = (&'a StoredScope, &'a BTreeSet<(Day, Instant)>)>,
) -> Result<(), StoreError> {
    // One order for all writers, so that two that mark the same hours wait and do not deadlock.
    let mut keys: Vec<_> = all
        .into_iter()
        .flat_map(|(of, hours)| {
            hours
                .iter()
                .map(move |(day, hour)| (of.bucket.stored(), of.id.stored(), day.stored(), hour.micros()))
        })
        .collect();
    keys.sort_unstable();
    keys.dedup();
    let rows = keys
        .into_iter()
        .map(|(bucket, scope, day, hour)| {
            vec![bucket.into(), scope.into(), day.into(), kind.word().into(), hour.into(), 1_i64.into()]
        })
        .collect();
    let columns = ["bucket", "scope_id", "day", "kind", "hour_us", "version"];
    let again =
        "ON CONFLICT (bucket, scope_id, day, kind, hour_us) DO UPDATE SET version = dirty_node.version + 1";
    tx.insert("dirty_node", &columns, rows, again).await.map(|_| ())
}

/// The marks of one scope and day.
///
/// # Errors
/// [`StoreError`].
pub async fn marks(
    _scope: &PlatformScope,
    tx: &ReadTx,
    of: &StoredScope,
    day: Day,
) -> Result<Vec<Mark>, StoreError> {
    let sql = "SELECT kind, hour_us, version FROM dirty_node WHERE bucket = $1 AND scope_id = $2 AND day = $3 \
               ORDER BY kind, hour_us";
    let values = vec![of.bucket.stored().into(), of.id.stored().into(), day.stored().into()];
    let rows = tx.all(sql, values).await?;
    rows.iter()
        .map(|row| {
            let word: String = row.get(0)?;
            let kind = MarkKind::ALL.into_iter().find(|kind| kind.word() == word);
            let kind = kind.ok_or_else(|| StoreError::corrupt("a mark", word))?;
            Ok(Mark { kind, hour: Instant::from_micros(row.get(1)?), version: row.get(2)? })
        })
        .collect()
}

/// Clears marks in the versions that were read; a newer one stays.
///
/// # Errors
/// [`StoreError`].
pub async fn clear(
    _scope: &PlatformScope,
    tx: &WriteTx,
    of: &StoredScope,
    day: Day,
    marks: &[Mark],
) -> Result<(), StoreError> {
    for chunk in marks.chunks(100) {
        let mut values = vec![of.bucket.stored().into(), of.id.stored().into(), day.stored().into()];
        let mut clauses = Vec::with_capacity(chunk.len());
        for mark in chunk {
            let at = values.len();
            clauses.push(format!("(kind = ${} AND hour_us = ${} AND version = ${})", at + 1, at + 2, at + 3));
            values.extend([mark.kind.word().into(), mark.hour.micros().into(), mark.version.into()]);
        }
        let sql = format!(
            "DELETE FROM dirty_node WHERE bucket = $1 AND scope_id = $2 AND day = $3 AND ({})",
            clauses.join(" OR ")
        );
        tx.run(&sql, values).await?;
    }
    Ok(())
}

/// The scopes' days that have marks, in the given buckets: the oldest first, at most `limit`.
///
/// # Errors
/// [`StoreError`].
pub async fn pending_days(
    _scope: &PlatformScope,
    tx: &ReadTx,
    buckets: &[Bucket],
    limit: i64,
) -> Result<Vec<(ScopeId, Day)>, StoreError> {
    if buckets.is_empty() {
        return Ok(vec![]);
    }
    let marks: Vec<String> = (2..buckets.len() + 2).map(|number| format!("${number}")).collect();
    let sql = format!(
        "SELECT DISTINCT scope_id, day FROM dirty_node WHERE bucket IN ({}) ORDER BY day, scope_id LIMIT $1",
        marks.join(", ")
    );
    let mut values = vec![limit.into()];
    values.extend(buckets.iter().map(|bucket| bucket.stored().into()));
    let rows = tx.all(&sql, values).await?;
    rows.iter()
        .map(|row| {
            let day = Day::from_stored(row.get(1)?).map_err(|error| StoreError::corrupt("a mark", error))?;
            Ok((ScopeId::from_stored(row.get(0)?), day))
        })
        .collect()
}

/// Marks the days of tenants.
///
/// # Errors
/// [`StoreError`].
pub async fn mark_tenant_days(
    _scope: &PlatformScope,
    tx: &WriteTx,
    day: Day,
    tenants: &BTreeSet<TenantId>,
) -> Result<(), StoreError> {
    let rows = tenants
        .iter()
        .map(|tenant| {
            let bucket = Bucket::of_tenant(*tenant).stored();
            vec![bucket.into(), day.stored().into(), tenant.stored().into(), 1_i64.into()]
        })
        .collect();
    let columns = ["bucket", "day", "tenant_id", "version"];
    let again = "ON CONFLICT (bucket, day, tenant_id) DO UPDATE SET version = dirty_tenant_day.version + 1";
    tx.insert("dirty_tenant_day", &columns, rows, again).await.map(|_| ())
}

/// A tenant's day that has to be summed, in the version that was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct TenantDayMark {
    /// The day.
    pub day: Day,
    /// The tenant.
    pub tenant: TenantId,
    /// Which version was read.
    pub version: i64,
}

/// Tenants' days that have marks, in the given buckets, at most `limit`.
///
/// # Errors
/// [`StoreError`].
pub async fn pending_tenant_days(
    _scope: &PlatformScope,
    tx: &ReadTx,
    buckets: &[Bucket],
    limit: i64,
) -> Result<Vec<TenantDayMark>, StoreError> {
    if buckets.is_empty() {
        return Ok(vec![]);
    }
    let marks: Vec<String> = (2..buckets.len() + 2).map(|number| format!("${number}")).collect();
    let sql = format!(
        "SELECT day, tenant_id, version FROM dirty_tenant_day WHERE bucket IN ({}) ORDER BY day, tenant_id LIMIT $1",
        marks.join(", ")
    );
    let mut values = vec![limit.into()];
    values.extend(buckets.iter().map(|bucket| bucket.stored().into()));
    tx.all(&sql, values).await?.iter().map(tenant_day_of).collect()
}

fn tenant_day_of(row: &super::unit::Row) -> Result<TenantDayMark, StoreError> {
    let day = Day::from_stored(row.get(0)?).map_err(|error| StoreError::corrupt("a mark", error))?;
    Ok(TenantDayMark { day, tenant: TenantId::from_stored(row.get(1)?), version: row.get(2)? })
}

/// The days between two whose tenant sums are behind their node sums.
///
/// # Errors
/// [`StoreError`].
pub async fn stale_tenant_days(
    _scope: &PlatformScope,
    tx: &ReadTx,
    days: std::ops::Range<Day>,
) -> Result<BTreeSet<Day>, StoreError> {
    let sql = "SELECT day, tenant_id, version FROM dirty_tenant_day WHERE day >= $1 AND day < $2";
    let rows = tx.all(sql, vec![days.start.stored().into(), days.end.stored().into()]).await?;
    rows.iter().map(|row| tenant_day_of(row).map(|mark| mark.day)).collect()
}

/// Clears a tenant's day in the version that was read.
///
/// # Errors
/// [`StoreError`].
pub async fn clear_tenant_day(
    _scope: &PlatformScope,
    tx: &WriteTx,
    mark: &TenantDayMark,
) -> Result<(), StoreError> {
    let sql =
        "DELETE FROM dirty_tenant_day WHERE bucket = $1 AND day = $2 AND tenant_id = $3 AND version = $4";
    let bucket = Bucket::of_tenant(mark.tenant).stored();
    let values =
        vec![bucket.into(), mark.day.stored().into(), mark.tenant.stored().into(), mark.version.into()];
    tx.run(sql, values).await.map(|_| ())
}

/// How many marks there are, over nodes and tenants.
///
/// # Errors
/// [`StoreError`].
pub async fn count(_scope: &PlatformScope, tx: &ReadTx) -> Result<i64, StoreError> {
    let sql = "SELECT (SELECT COUNT(*) FROM dirty_node) + (SELECT COUNT(*) FROM dirty_tenant_day)";
    tx.one(sql, vec![]).await?.map_or(Ok(0), |row| row.get(0))
}

/// All scopes' days that have marks.
///
/// # Errors
/// [`StoreError`].
pub async fn marked_days(
    _scope: &PlatformScope,
    tx: &ReadTx,
) -> Result<BTreeSet<(ScopeId, Day)>, StoreError> {
    let sql = "SELECT DISTINCT scope_id, day FROM dirty_node";
    tx.all(sql, vec![]).await?.iter().map(day_of).collect()
}

fn day_of(row: &super::unit::Row) -> Result<(ScopeId, Day), StoreError> {
    let day = Day::from_stored(row.get(1)?).map_err(|error| StoreError::corrupt("a mark", error))?;
    Ok((ScopeId::from_stored(row.get(0)?), day))
}

/// The pools' days among those.
///
/// # Errors
/// [`StoreError`].
pub async fn marked_pool_days(
    _scope: &PlatformScope,
    tx: &ReadTx,
) -> Result<BTreeSet<(ScopeId, Day)>, StoreError> {
    let sql = "SELECT DISTINCT n.scope_id, n.day FROM dirty_node n JOIN scope s ON s.scope_id = n.scope_id \
               WHERE s.kind = 'pool'";
    tx.all(sql, vec![]).await?.iter().map(day_of).collect()
}

/// All tenants' days that have marks.
///
/// # Errors
/// [`StoreError`].
pub async fn marked_tenant_days(
    _scope: &PlatformScope,
    tx: &ReadTx,
) -> Result<BTreeSet<(TenantId, Day)>, StoreError> {
    let rows = tx.all("SELECT day, tenant_id, version FROM dirty_tenant_day", vec![]).await?;
    rows.iter().map(|row| tenant_day_of(row).map(|mark| (mark.tenant, mark.day))).collect()
}

/// A lease on a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lease {
    /// The bucket.
    pub bucket: i64,
    /// Grows with each change of hands.
    pub epoch: i64,
}

/// Takes buckets above `after` that have marks and that nobody else holds, at most `limit`, from now until the
/// lease's end. One's own, which an error may have
/// left behind, are taken again under a new epoch.
///
/// # Errors
/// [`StoreError`].
pub async fn take_leases(
    _scope: &PlatformScope,
    tx: &WriteTx,
    holder: &str,
    lease: std::ops::Range<Instant>,
    after: Option<i64>,
    limit: i64,
) -> Result<Vec<Lease>, StoreError> {
    let skip = if lock_clause(tx.dialect()).is_empty() { "" } else { " FOR UPDATE SKIP LOCKED" };
    let sql = format!(
        "SELECT bucket, epoch FROM bucket_lease WHERE (until_us <= $1 OR holder = $3) AND bucket > $4 AND (\
         EXISTS (SELECT 1 FROM dirty_node n WHERE n.bucket = bucket_lease.bucket) OR \
         EXISTS (SELECT 1 FROM dirty_tenant_day t WHERE t.bucket = bucket_lease.bucket)) \
         ORDER BY bucket LIMIT $2{skip}"
    );
    let after = after.unwrap_or(-1);
    let values = vec![lease.start.micros().into(), limit.into(), holder.to_owned().into(), after.into()];
    let rows = tx.all(&sql, values).await?;
    let mut leases = Vec::with_capacity(rows.len());
    for row in rows {
        let taken = Lease { bucket: row.get(0)?, epoch: row.get::<i64>(1)? + 1 };
        let sql = "UPDATE bucket_lease SET holder = $2, epoch = $3, until_us = $4 WHERE bucket = $1";
        let values = vec![
            taken.bucket.into(),
            holder.to_owned().into(),
            taken.epoch.into(),
            lease.end.micros().into(),
        ];
        tx.run(sql, values).await?;
        leases.push(taken);
    }
    Ok(leases)
}

/// Checks that a lease is still held, and keeps it so until the transaction ends.
///
/// # Errors
/// [`StoreError::LeaseLost`] when another has it: what was computed must not be written.
pub async fn hold_lease(_scope: &PlatformScope, tx: &WriteTx, lease: Lease) -> Result<(), StoreError> {
    let sql = format!("SELECT epoch FROM bucket_lease WHERE bucket = $1{}", lock_clause(tx.dialect()));
    let row = tx.one(&sql, vec![lease.bucket.into()]).await?;
    let epoch: Option<i64> = row.map(|row| row.get(0)).transpose()?;
    if epoch == Some(lease.epoch) { Ok(()) } else { Err(StoreError::LeaseLost { bucket: lease.bucket }) }
}

/// Prolongs leases that are still held; returns those.
///
/// # Errors
/// [`StoreError`].
pub async fn renew_leases(
    _scope: &PlatformScope,
    tx: &WriteTx,
    leases: &[Lease],
    until: Instant,
) -> Result<Vec<Lease>, StoreError> {
    let mut kept = Vec::with_capacity(leases.len());
    for lease in leases {
        let sql = "UPDATE bucket_lease SET until_us = $3 WHERE bucket = $1 AND epoch = $2";
        let values = vec![lease.bucket.into(), lease.epoch.into(), until.micros().into()];
        if tx.run(sql, values).await? == 1 {
            kept.push(*lease);
        }
    }
    Ok(kept)
}

/// Gives leases back.
///
/// # Errors
/// [`StoreError`].
pub async fn release_leases(scope: &PlatformScope, tx: &WriteTx, leases: &[Lease]) -> Result<(), StoreError> {
    renew_leases(scope, tx, leases, Instant::MIN).await.map(|_| ())
}

/// Ends all leases: for the one process that can have the database.
///
/// # Errors
/// [`StoreError`].
pub async fn release_all_leases(_scope: &PlatformScope, tx: &WriteTx) -> Result<(), StoreError> {
    tx.run("UPDATE bucket_lease SET until_us = 0 WHERE until_us > 0", vec![]).await.map(|_| ())
}

/// Whether some worker holds a lease at `now`: somebody is at work.
///
/// # Errors
/// [`StoreError`].
pub async fn someone_works(_scope: &PlatformScope, tx: &ReadTx, now: Instant) -> Result<bool, StoreError> {
    let sql = "SELECT COUNT(*) FROM bucket_lease WHERE until_us > $1";
    let row = tx.one(sql, vec![now.micros().into()]).await?;
    Ok(row.map_or(Ok(0_i64), |row| row.get(0))? > 0)
}
