//! Deriving: fold, part, price and sum, from dirty marks to levels.
//!
//! A job is one scope and one billing day. It reads its marks first and everything else after, computes, and
//! writes levels and cleared marks in one transaction, which checks its lease again. Each batch is decoded
//! once for all hours of the day.
//!
//! A device-hour of a pooled device belongs to the pool where its node's sources say nothing of who held it: the
//! node's row leaves it out, and the pool's row takes what it finds left out in the stored node-hours. So a node's job
//! marks the pools of the hours that it writes, and the result does not depend on which job ran first.
//!
//! Always true here: a mark is cleared only in the version that was read; equal inputs give equal bytes; an
//! hour is never replaced by one with less coverage.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use sha2::{Digest, Sha256};
use tokio::task::JoinSet;
use uuid::Uuid;

use super::accept::read_stored;
use super::ctx::{Changed, Platform, Record, check_zone};
use super::error::ServiceError;
use super::pools;
use crate::domain::allocation::{DeviceFacts, DeviceHour, Divider};
use crate::domain::catalogue::Catalogue;
use crate::domain::cost::{DaySums, NodeHour};
use crate::domain::ids::{Bucket, Name, ScopeId, ScopeKind, TenantId};
use crate::domain::mapping::MappingRules;
use crate::domain::period::{BillingZone, Day, Month, Span};
use crate::domain::policy::Policy;
use crate::domain::pool;
use crate::domain::price::PriceBook;
use crate::domain::segment::{Claims, HOLDERS_MAX, HourSegments};
use crate::domain::tree::DoubtKind;
use crate::domain::units::{Instant, MICROS_PER_SECOND};
use crate::store::findings::{Finding, FindingKind};
use crate::store::fleet::{ScopeDevice, StoredScope};
use crate::store::installation::Lock;
use crate::store::journal::{StoredBatch, Stream};
use crate::store::levels::NodeDayRow;
use crate::store::marks::{Lease, Mark, MarkKind, TenantDayMark};
use crate::store::node_hour::StoredHour;
use crate::store::{
    PlatformScope, ReadTx, StoreError, WriteTx, findings, fleet, installation, journal, levels, mapping,
    marks, node_hour, prices, tenants, unit,
};

/// What a derivation finds, and finds anew each time.
const FOUND: [FindingKind; 7] = [
    FindingKind::UnknownProfile,
    FindingKind::IllegalLayout,
    FindingKind::LostParent,
    FindingKind::LayoutAssumed,
    FindingKind::PoolOverheld,
    FindingKind::HourTooLarge,
    FindingKind::SourceConflict,
];
/// Days that one worker derives at the same time.
const JOBS_AT_ONCE: usize = 8;
/// Days that are asked for at once.
const DAYS_AT_ONCE: i64 = 256;
/// Tenants' days that are summed in one transaction.
const TENANT_DAYS_AT_ONCE: usize = 64;
/// How often tenants' days are summed in one turn, so that a worker that others keep busy looks for its nodes' days again.
const SUMS_A_TURN: usize = 16;
/// Buckets that one worker takes at once, so that others find some too.
const BUCKETS_AT_ONCE: i64 = 64;

/// A worker: its name and how long it may be silent before another takes its work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Worker {
    /// A name unlike any other's.
    pub holder: String,
    /// The length of a lease.
    pub lease_seconds: u32,
}

/// What a pass did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Derived {
    /// Scopes' days that were derived.
    pub days: u64,
    /// Tenants' days that were summed.
    pub tenant_days: u64,
}

/// Derives until no mark is left that this worker may clear.
///
/// `progress` is told now and then how many scopes' days are done.
///
/// # Errors
/// [`ServiceError`]; a lost lease is no error, its work is another's.
pub async fn derive_all(
    platform: &Platform,
    worker: &Worker,
    progress: &(dyn Fn(u64) + Send + Sync),
) -> Result<Derived, ServiceError> {
    let mut derived = Derived::default();
    // Round once more: something may have been marked in the buckets before.
    while round(platform, worker, &mut derived, progress).await? {}
    Ok(derived)
}

/// Derives what is marked, once round all scopes. A worker that does so now and then, and not until nothing is left, sums
/// a day anew once for many batches that come in meanwhile.
///
/// # Errors
/// As [`derive_all`].
pub async fn derive_round(platform: &Platform, worker: &Worker) -> Result<Derived, ServiceError> {
    let mut derived = Derived::default();
    round(platform, worker, &mut derived, &|_| ()).await?;
    Ok(derived)
}

/// Goes once round the buckets that nobody else holds. Whether there was something to do.
async fn round(
    platform: &Platform,
    worker: &Worker,
    derived: &mut Derived,
    progress: &(dyn Fn(u64) + Send + Sync),
) -> Result<bool, ServiceError> {
    let (mut failed, mut after) = (Failed::new(), None);
    loop {
        let leases = take_leases(platform, worker, after).await?;
        let Some(last) = leases.last() else {
            return match failed.pop_first() {
                Some((_, error)) => Err(error),
                None => Ok(after.is_some()),
            };
        };
        after = Some(last.bucket);
        let mut held = Held { leases, renewed: platform.now() };
        let result = work_off(platform, worker, &mut held, &mut failed, derived, progress).await;
        release(platform, held.leases).await?;
        result?;
    }
}

/// Days that could not be derived, with the reason: they keep their marks, and the others go on without them.
type Failed = BTreeMap<(ScopeId, Day), ServiceError>;

/// How many marks there are.
///
/// # Errors
/// [`ServiceError`].
pub async fn pending(platform: &Platform) -> Result<i64, ServiceError> {
    platform.read(move |scope, tx| unit(async move { Ok(marks::count(scope, tx).await?) })).await
}

/// What was marked at some moment, and has not been seen without its mark since.
///
/// On a fleet that reports all the time something is always marked; what somebody waits for is that the marks of
/// a moment are worked off.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Awaited {
    days: BTreeSet<(ScopeId, Day)>,
    pool_days: Option<BTreeSet<(ScopeId, Day)>>,
    tenant_days: Option<BTreeSet<(TenantId, Day)>>,
}

impl Awaited {
    /// Everything that is marked now.
    ///
    /// # Errors
    /// [`ServiceError`].
    pub async fn now(platform: &Platform) -> Result<Self, ServiceError> {
        let days = marked(platform).await?.days;
        Ok(Self { days, pool_days: None, tenant_days: None })
    }

    /// Looks again; returns how much is still awaited. Pools' days come after the nodes' days that mark them, and
    /// tenants' days after both.
    ///
    /// # Errors
    /// [`ServiceError`].
    pub async fn left(&mut self, platform: &Platform) -> Result<usize, ServiceError> {
        let Marked { days, pool_days, tenant_days } = marked(platform).await?;
        self.days.retain(|day| days.contains(day));
        if !self.days.is_empty() {
            return Ok(self.days.len().saturating_add(tenant_days.len()));
        }
        let awaited = self.pool_days.get_or_insert_with(|| pool_days.clone());
        awaited.retain(|day| pool_days.contains(day));
        if !awaited.is_empty() {
            return Ok(awaited.len().saturating_add(tenant_days.len()));
        }
        let awaited = self.tenant_days.get_or_insert_with(|| tenant_days.clone());
        awaited.retain(|day| tenant_days.contains(day));
        Ok(awaited.len())
    }
}

/// The days that are marked: of all scopes, of the pools among them, and of tenants.
struct Marked {
    days: BTreeSet<(ScopeId, Day)>,
    pool_days: BTreeSet<(ScopeId, Day)>,
    tenant_days: BTreeSet<(TenantId, Day)>,
}

async fn marked(platform: &Platform) -> Result<Marked, ServiceError> {
    platform
        .read(move |scope, tx| {
            unit(async move {
                Ok(Marked {
                    days: marks::marked_days(scope, tx).await?,
                    pool_days: marks::marked_pool_days(scope, tx).await?,
                    tenant_days: marks::marked_tenant_days(scope, tx).await?,
                })
            })
        })
        .await
}

/// Whether some worker holds a lease now.
///
/// # Errors
/// [`ServiceError`].
pub async fn someone_works(platform: &Platform) -> Result<bool, ServiceError> {
    let now = platform.now();
    platform.read(move |scope, tx| unit(async move { Ok(marks::someone_works(scope, tx, now).await?) })).await
}

/// Marks every hour of every in-service interval, and every sum, so that all levels are derived from the journal
/// again. A scope at a time: what is marked already is being derived meanwhile.
///
/// # Errors
/// [`ServiceError`].
pub async fn mark_everything(platform: &Platform) -> Result<(), ServiceError> {
    mark_services(platform, MarkKind::Fold, Span::ALWAYS).await?;
    platform
        .write(move |scope, tx| {
            unit(async move {
                let mut by_day: BTreeMap<Day, BTreeSet<TenantId>> = BTreeMap::new();
                for (day, tenant) in levels::tenant_days(scope, tx).await? {
                    by_day.entry(day).or_default().insert(tenant);
                }
                for (day, tenants) in by_day {
                    marks::mark_tenant_days(scope, tx, day, &tenants).await?;
                }
                Ok(())
            })
        })
        .await
}

/// The same because somebody asked for it, which is recorded.
///
/// # Errors
/// [`ServiceError`].
pub async fn rebuild(platform: &Platform) -> Result<(), ServiceError> {
    platform
        .change(move |_, _| {
            unit(async move {
                let subject = "levels".to_owned();
                let record = Record { action: "derivation.rebuild", subject, before: None, after: None };
                Ok(Changed { outcome: (), records: vec![record] })
            })
        })
        .await?;
    mark_everything(platform).await
}

/// Marks everything where the levels were derived by other rules than this program's. Of several processes that find
/// it so, one does it.
///
/// # Errors
/// [`ServiceError`].
pub(super) async fn adopt(platform: &Platform, derivation: i64) -> Result<(), ServiceError> {
    let zone = platform.zone();
    platform
        .write(move |scope, tx| {
            unit(async move {
                installation::lock(scope, tx, Lock::Alone).await?;
                match installation::find(scope, tx).await? {
                    Some(there) if there.derivation < derivation => {
                        mark_all_homes(scope, tx, zone, MarkKind::Fold, Span::ALWAYS).await?;
                        Ok(installation::set_derivation(scope, tx, derivation).await?)
                    }
                    Some(_) | None => Ok(()),
                }
            })
        })
        .await
}

/// Marks what is derived by `kind` in the in-service time of all devices inside `within`, a scope at a time.
///
/// # Errors
/// [`ServiceError`].
pub async fn mark_services(platform: &Platform, kind: MarkKind, within: Span) -> Result<(), ServiceError> {
    let homes = scopes_by_id(platform).await?;
    let zone = platform.zone();
    for home in homes.into_values() {
        let home = Arc::new(home);
        platform
            .write(move |scope, tx| {
                let home = Arc::clone(&home);
                unit(async move { mark_home(scope, tx, &home, zone, kind, within).await })
            })
            .await?;
    }
    Ok(())
}

/// The same inside a transaction that changes what they are derived from.
///
/// # Errors
/// [`ServiceError`].
pub(super) async fn mark_all_homes(
    scope: &PlatformScope,
    tx: &WriteTx,
    zone: BillingZone,
    kind: MarkKind,
    within: Span,
) -> Result<(), ServiceError> {
    for home in fleet::scopes(scope, tx).await? {
        mark_home(scope, tx, &home, zone, kind, within).await?;
    }
    Ok(())
}

async fn mark_home(
    scope: &PlatformScope,
    tx: &WriteTx,
    home: &StoredScope,
    zone: BillingZone,
    kind: MarkKind,
    within: Span,
) -> Result<(), ServiceError> {
    let services = fleet::scope_services(scope, tx, home.id).await?;
    let spans = services.iter().map(|service| Span::clamped(service.span.start(), service.edge).clip(within));
    let mut hours = super::accept::hours_meeting(zone, spans);
    // A day that has sums but no in-service time any more has to lose them.
    let summed = levels::summed_days(scope, tx, home.id).await?;
    let known = summed.into_iter().filter(|day| zone.day_span(*day).meets(within));
    hours.extend(known.map(|day| (day, zone.day_start(day))));
    if kind == MarkKind::Price {
        hours = hours.into_iter().map(|(day, _)| (day, zone.day_start(day))).collect();
    }
    Ok(marks::mark_hours(scope, tx, home, kind, &hours).await?)
}

/// The leases that a worker holds, and when it last prolonged them.
struct Held {
    leases: Vec<Lease>,
    renewed: Instant,
}

impl Held {
    fn buckets(&self) -> Vec<Bucket> {
        self.leases.iter().filter_map(|lease| Bucket::from_stored(lease.bucket)).collect()
    }

    fn of(&self, bucket: Bucket) -> Option<Lease> {
        self.leases.iter().copied().find(|lease| lease.bucket == bucket.stored())
    }

    fn lose(&mut self, bucket: i64) {
        self.leases.retain(|lease| lease.bucket != bucket);
    }
}

async fn take_leases(
    platform: &Platform,
    worker: &Worker,
    after: Option<i64>,
) -> Result<Vec<Lease>, ServiceError> {
    let (holder, now) = (worker.holder.clone(), platform.now());
    let until = now.plus_micros(i64::from(worker.lease_seconds).saturating_mul(MICROS_PER_SECOND));
    let zone = platform.zone();
    platform
        .write(move |scope, tx| {
            let holder = holder.clone();
            unit(async move {
                check_zone(scope, tx, zone).await?;
                Ok(marks::take_leases(scope, tx, &holder, now..until, after, BUCKETS_AT_ONCE).await?)
            })
        })
        .await
}

async fn release(platform: &Platform, leases: Vec<Lease>) -> Result<(), ServiceError> {
    let leases = Arc::new(leases);
    platform
        .write(move |scope, tx| {
            let leases = Arc::clone(&leases);
            unit(async move { Ok(marks::release_leases(scope, tx, &leases).await?) })
        })
        .await
}

/// Prolongs the leases when a third of their time is gone; forgets those that were lost.
async fn keep(platform: &Platform, worker: &Worker, held: &mut Held) -> Result<(), ServiceError> {
    let now = platform.now();
    let length = i64::from(worker.lease_seconds).saturating_mul(MICROS_PER_SECOND);
    if now.micros_since(held.renewed) < length / 3 {
        return Ok(());
    }
    let (leases, until) = (Arc::new(held.leases.clone()), now.plus_micros(length));
    held.leases = platform
        .write(move |scope, tx| {
            let leases = Arc::clone(&leases);
            unit(async move { Ok::<_, ServiceError>(marks::renew_leases(scope, tx, &leases, until).await?) })
        })
        .await?;
    held.renewed = now;
    Ok(())
}

async fn work_off(
    platform: &Platform,
    worker: &Worker,
    held: &mut Held,
    failed: &mut Failed,
    derived: &mut Derived,
    progress: &(dyn Fn(u64) + Send + Sync),
) -> Result<(), ServiceError> {
    let mut homes = scopes_by_id(platform).await?;
    // What is marked again while it is derived waits for the next round: agents that catch up mark a day with each batch,
    // and neither other days nor tenants' sums wait for theirs.
    let mut sums = 0;
    let (mut done, mut again) = (BTreeSet::new(), BTreeSet::<(ScopeId, Day)>::new());
    loop {
        keep(platform, worker, held).await?;
        let buckets = held.buckets();
        let left_out = i64::try_from(failed.len().saturating_add(again.len())).unwrap_or(i64::MAX);
        let days_at_once = DAYS_AT_ONCE.saturating_add(left_out);
        let (days, tenant_days) = platform
            .read(move |scope, tx| {
                unit(async move {
                    let days = marks::pending_days(scope, tx, &buckets, days_at_once).await?;
                    let limit = i64::try_from(TENANT_DAYS_AT_ONCE * 8).unwrap_or(DAYS_AT_ONCE);
                    let tenant_days = marks::pending_tenant_days(scope, tx, &buckets, limit).await?;
                    Ok::<_, ServiceError>((days, tenant_days))
                })
            })
            .await?;
        progress(derived.days);
        let known_again = again.len();
        again.extend(days.iter().filter(|day| done.contains(*day)));
        let is_new = |day: &(ScopeId, Day)| !failed.contains_key(day) && !again.contains(day);
        let days: Vec<(ScopeId, Day)> = days.into_iter().filter(is_new).collect();
        if days.iter().any(|(scope, _)| !homes.contains_key(scope)) {
            // A node joined while this worker had its bucket.
            homes = scopes_by_id(platform).await?;
        }
        if !days.is_empty() {
            done.extend(days.iter().copied());
            derive_days(platform, worker, held, &homes, days, failed, derived).await?;
        } else if !tenant_days.is_empty() && sums < SUMS_A_TURN {
            sums += 1;
            sum_tenant_days(platform, held, tenant_days, derived).await?;
        } else if again.len() == known_again {
            return Ok(());
        }
    }
}

async fn scopes_by_id(platform: &Platform) -> Result<BTreeMap<ScopeId, StoredScope>, ServiceError> {
    let all = platform
        .read(move |scope, tx| unit(async move { Ok::<_, ServiceError>(fleet::scopes(scope, tx).await?) }))
        .await?;
    Ok(all.into_iter().map(|each| (each.id, each)).collect())
}

async fn derive_days(
    platform: &Platform,
    worker: &Worker,
    held: &mut Held,
    homes: &BTreeMap<ScopeId, StoredScope>,
    days: Vec<(ScopeId, Day)>,
    failed: &mut Failed,
    derived: &mut Derived,
) -> Result<(), ServiceError> {
    let (mut running, mut waiting) = (JoinSet::new(), days.into_iter());
    loop {
        while running.len() < JOBS_AT_ONCE {
            let Some((scope, day)) = waiting.next() else { break };
            let Some(home) = homes.get(&scope) else { continue };
            let Some(lease) = held.of(home.bucket) else { continue };
            let job = derive_day(platform.clone(), home.clone(), day, lease);
            running.spawn(async move { ((scope, day), job.await) });
        }
        match running.join_next().await {
            None => return Ok(()),
            Some(Ok((_, Ok(())))) => derived.days += 1,
            // Another has the bucket now; what this worker computed was not written.
            Some(Ok((_, Err(ServiceError::Store(StoreError::LeaseLost { bucket }))))) => held.lose(bucket),
            Some(Ok((_, Err(error)))) if error.will_pass() => return Err(error),
            Some(Ok((day, Err(error)))) => {
                failed.insert(day, error);
            }
            Some(Err(_)) => return Err(StoreError::Abandoned.into()),
        }
        keep(platform, worker, held).await?;
    }
}

async fn sum_tenant_days(
    platform: &Platform,
    held: &mut Held,
    mut tenant_days: Vec<TenantDayMark>,
    derived: &mut Derived,
) -> Result<(), ServiceError> {
    // The days of one tenant together: each transaction sums a tenant's month once.
    tenant_days.sort_unstable_by_key(|mark| (mark.tenant, mark.day));
    for chunk in tenant_days.chunks(TENANT_DAYS_AT_ONCE) {
        let marked: Vec<(TenantDayMark, Lease)> =
            chunk.iter().filter_map(|mark| Some((*mark, held.of(Bucket::of_tenant(mark.tenant))?))).collect();
        let count = u64::try_from(marked.len()).unwrap_or(u64::MAX);
        let marked = Arc::new(marked);
        let summed = platform
            .write(move |scope, tx| {
                let marked = Arc::clone(&marked);
                unit(async move {
                    let leases: BTreeSet<Lease> = marked.iter().map(|(_, lease)| *lease).collect();
                    for lease in leases {
                        marks::hold_lease(scope, tx, lease).await?;
                    }
                    for (mark, _) in marked.iter() {
                        // Cleared first: a mark that is set meanwhile waits for this transaction and stays.
                        marks::clear_tenant_day(scope, tx, mark).await?;
                        levels::replace_tenant_day(scope, tx, mark.day, mark.tenant).await?;
                    }
                    let months: BTreeSet<(TenantId, Month)> =
                        marked.iter().map(|(mark, _)| (mark.tenant, Month::of(mark.day))).collect();
                    for (tenant, month) in months {
                        levels::replace_tenant_month(scope, tx, month, tenant).await?;
                    }
                    Ok::<_, ServiceError>(())
                })
            })
            .await;
        match summed {
            Ok(()) => derived.tenant_days += count,
            Err(ServiceError::Store(StoreError::LeaseLost { bucket })) => held.lose(bucket),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// One job: a scope's day, from its marks to its sums.
async fn derive_day(
    platform: Platform,
    home: StoredScope,
    day: Day,
    lease: Lease,
) -> Result<(), ServiceError> {
    let zone = platform.zone();
    let inputs = {
        let home = home.clone();
        platform
            .read(move |scope, tx| unit(async move { DayInputs::read(scope, tx, home, day, zone).await }))
            .await?
    };
    let result = inputs.compute()?;
    let (work, now) = (Arc::new((inputs, result)), platform.now());
    platform
        .write(move |scope, tx| {
            let work = Arc::clone(&work);
            unit(async move {
                let (inputs, result) = &*work;
                marks::hold_lease(scope, tx, lease).await?;
                let home = &inputs.home;
                // In-service rows before marks: acceptance and the tick lock them in this order too.
                for (node, counted) in &result.counted {
                    fleet::note_counted(scope, tx, *node, counted).await?;
                }
                marks::clear(scope, tx, home, day, &inputs.marks).await?;
                node_hour::replace(scope, tx, home.id, &result.changed).await?;
                node_hour::remove(scope, tx, home.id, &result.removed).await?;
                if result.rows != inputs.rows {
                    levels::replace_node_day(scope, tx, home.id, day, &result.rows).await?;
                    let before_and_now = inputs.rows.iter().chain(&result.rows).map(|row| row.tenant);
                    let touched: BTreeSet<TenantId> = before_and_now.collect();
                    marks::mark_tenant_days(scope, tx, day, &touched).await?;
                }
                findings::forget(scope, tx, home.id, &FOUND, inputs.day_span).await?;
                findings::write(scope, tx, &result.findings, now).await?;
                if home.name.kind == ScopeKind::Node && inputs.has_pooled_devices() {
                    let changed = result.changed.iter().map(|hour| hour.hour);
                    let hours = changed.chain(result.removed.iter().copied()).map(|hour| (day, hour));
                    pools::mark(scope, tx, home, &hours.collect()).await?;
                }
                Ok::<_, ServiceError>(())
            })
        })
        .await
}

/// Everything that a scope's day is derived from, as of one snapshot.
pub(super) struct DayInputs {
    home: StoredScope,
    day: Day,
    day_span: Span,
    hours: Vec<Span>,
    marks: Vec<Mark>,
    devices: Vec<ScopeDevice>,
    rules: MappingRules,
    book: PriceBook,
    catalogue: Arc<Catalogue>,
    tenants: BTreeMap<Name, TenantId>,
    claims: Claims,
    batches: Vec<(Span, Vec<u8>)>,
    stored: BTreeMap<Instant, StoredHour>,
    /// Of a pool, for its devices' nodes and the hours that are divided anew: the devices that the node's own row
    /// divides. A node-hour that is not there is not derived yet.
    divided: BTreeMap<(ScopeId, Instant), BTreeSet<Name>>,
    pub(super) rows: Vec<NodeDayRow>,
}

/// What a scope's day comes to.
pub(super) struct DayResult {
    /// Node-hours that are new or other than stored.
    pub(super) changed: Vec<StoredHour>,
    /// Node-hours that are stored and should not be.
    pub(super) removed: Vec<Instant>,
    /// All rows of the day's sums.
    pub(super) rows: Vec<NodeDayRow>,
    /// By node and device.
    counted: BTreeMap<ScopeId, BTreeMap<i64, Instant>>,
    findings: Vec<Finding>,
}

impl DayInputs {
    /// Reads the inputs of a job. Marks come first: what changes afterwards marks again.
    pub(super) async fn read(
        scope: &PlatformScope,
        tx: &ReadTx,
        home: StoredScope,
        day: Day,
        zone: BillingZone,
    ) -> Result<Self, ServiceError> {
        let marks = marks::marks(scope, tx, &home, day).await?;
        Self::read_marked(scope, tx, home, day, zone, marks).await
    }

    /// The same as if every hour of the day were marked for folding: the recount.
    pub(super) async fn read_all(
        scope: &PlatformScope,
        tx: &ReadTx,
        home: StoredScope,
        day: Day,
        zone: BillingZone,
    ) -> Result<Self, ServiceError> {
        let hours = zone.hours_of(day);
        let marks = hours.map(|hour| Mark { kind: MarkKind::Fold, hour: hour.start(), version: 0 }).collect();
        Self::read_marked(scope, tx, home, day, zone, marks).await
    }

    async fn read_marked(
        scope: &PlatformScope,
        tx: &ReadTx,
        home: StoredScope,
        day: Day,
        zone: BillingZone,
        marks: Vec<Mark>,
    ) -> Result<Self, ServiceError> {
        let day_span = zone.day_span(day);
        let hours: Vec<Span> = zone.hours_of(day).collect();
        let stored = node_hour::hours(scope, tx, home.id, day_span).await?;
        let mut inputs = Self {
            devices: fleet::scope_devices(scope, tx, home.id, day_span).await?,
            rules: mapping::rules(scope, tx).await?,
            book: prices::book(scope, tx).await?,
            catalogue: super::catalogue::current(scope, tx).await?,
            tenants: tenants::numbers(scope, tx).await?,
            claims: Claims::new(),
            batches: Vec::new(),
            stored: stored.into_iter().map(|hour| (hour.hour, hour)).collect(),
            divided: BTreeMap::new(),
            rows: levels::node_day(scope, tx, home.id, day).await?,
            home,
            day,
            day_span,
            hours,
            marks,
        };
        let to_fold = inputs.to_fold();
        if let (Some(first), Some(last)) = (to_fold.first(), to_fold.last()) {
            inputs.read_journal(scope, tx, Span::clamped(first.start(), last.end())).await?;
        }
        if inputs.home.name.kind == ScopeKind::Pool {
            inputs.read_nodes(scope, tx).await?;
        }
        Ok(inputs)
    }

    /// Reads what the nodes of a pool's devices divide themselves, as far as the pool is divided anew.
    async fn read_nodes(&mut self, scope: &PlatformScope, tx: &ReadTx) -> Result<(), ServiceError> {
        let is_kept = |hour: &Span| self.stored.contains_key(&hour.start()) && !self.is_marked(*hour);
        let anew: Vec<Span> = self.hours.iter().copied().filter(|hour| !is_kept(hour)).collect();
        let (Some(first), Some(last)) = (anew.first(), anew.last()) else { return Ok(()) };
        let run = Span::clamped(first.start(), last.end());
        let nodes: BTreeSet<ScopeId> = self.devices.iter().map(|device| device.home).collect();
        for node in nodes {
            for stored in node_hour::hours(scope, tx, node, run).await? {
                // One that cannot be read says nothing; the node's own job reports it, mends it and marks the pool.
                if let Ok(divided) = node_hour::divided_devices(&stored.body) {
                    self.divided.insert((node, stored.hour), divided);
                }
            }
        }
        Ok(())
    }

    /// Whether an hour is divided anew.
    fn is_marked(&self, hour: Span) -> bool {
        let divides = |kind| match kind {
            MarkKind::Fold | MarkKind::Part => true,
            MarkKind::Price => false,
        };
        self.marks.iter().any(|mark| divides(mark.kind) && mark.hour == hour.start())
    }

    fn has_pooled_devices(&self) -> bool {
        self.devices.iter().any(|device| device.pools.iter().any(Option::is_some))
    }

    /// The hours whose segments have to be folded: marked so, or needed and not there.
    fn to_fold(&self) -> Vec<Span> {
        let marked = |hour: &Span| {
            self.marks.iter().any(|mark| mark.kind == MarkKind::Fold && mark.hour == hour.start())
                || (!self.stored.contains_key(&hour.start()) && self.is_in_service(*hour))
        };
        self.hours.iter().copied().filter(marked).collect()
    }

    fn is_in_service(&self, hour: Span) -> bool {
        self.devices.iter().any(|device| self.concerns(device, hour))
    }

    /// Whether a device-hour may be in this scope's row.
    fn concerns(&self, device: &ScopeDevice, hour: Span) -> bool {
        match self.home.name.kind {
            ScopeKind::Node => device.in_service.iter().any(|span| span.meets(hour)),
            ScopeKind::Pool => device.pool_during(hour) == Some(self.home.id),
        }
    }

    /// Whether a device-hour that may be is: a pooled one is the node's own where the node's sources speak of it, and
    /// the pool's where the node has left it out.
    fn divides(&self, device: &ScopeDevice, hour: Span, segments: &HourSegments) -> bool {
        let uuid = &device.device.uuid;
        match self.home.name.kind {
            ScopeKind::Node => device.pool_during(hour).is_none() || pool::has_holding_source(segments, uuid),
            ScopeKind::Pool => {
                let divided = self.divided.get(&(device.home, hour.start()));
                divided.is_some_and(|divided| !divided.contains(uuid))
            }
        }
    }

    /// Decodes the batches that meet a run of hours, each once, and those that amend what they say.
    async fn read_journal(
        &mut self,
        scope: &PlatformScope,
        tx: &ReadTx,
        run: Span,
    ) -> Result<(), ServiceError> {
        let streams = journal::streams(scope, tx, self.home.id).await?;
        let streams: BTreeMap<Uuid, Stream> = streams.into_iter().map(|stream| (stream.id, stream)).collect();
        let mut seen: HashSet<(Uuid, i64)> = HashSet::new();
        for batch in journal::batches_meeting(scope, tx, self.home.id, run).await? {
            self.claim(&streams, &mut seen, &batch)?;
            self.batches.push((batch.span, batch.body_hash));
        }
        let amended: BTreeSet<&Name> = streams
            .values()
            .filter(|stream| stream.import_number > 0)
            .filter(|stream| {
                let other = |each: &&Stream| {
                    each.source == stream.source && each.import_number != stream.import_number
                };
                streams.values().any(|each| other(&each))
            })
            .map(|stream| &stream.source.sender)
            .collect();
        if amended.is_empty() {
            return Ok(());
        }
        // A later import may have amended a holding in the batch where it begins, which may lie long before.
        let mut days: BTreeSet<(Name, Instant)> = BTreeSet::new();
        for (source, start) in self.claims.uncut_starts_before(run.start()) {
            if amended.contains(&source.sender) {
                days.insert((source.sender, start));
            }
        }
        for (sender, start) in days {
            for batch in
                journal::batches_meeting(scope, tx, self.home.id, Span::clamped(start, start)).await?
            {
                let is_of_source =
                    streams.get(&batch.stream).is_some_and(|stream| stream.source.sender == sender);
                if is_of_source {
                    self.claim(&streams, &mut seen, &batch)?;
                }
            }
        }
        Ok(())
    }

    fn claim(
        &mut self,
        streams: &BTreeMap<Uuid, Stream>,
        seen: &mut HashSet<(Uuid, i64)>,
        batch: &StoredBatch,
    ) -> Result<(), ServiceError> {
        if !seen.insert((batch.stream, batch.sequence)) {
            return Ok(());
        }
        let Some(stream) = streams.get(&batch.stream) else {
            return Err(
                StoreError::corrupt("a batch", format!("stream {} is not there", batch.stream)).into()
            );
        };
        let decoded = read_stored(batch, &self.home.name, stream.import_number > 0)
            .map_err(|reason| StoreError::corrupt("a batch", reason))?;
        self.claims.add(&stream.source, stream.import_number, &decoded.batch);
        Ok(())
    }

    /// Folds, divides, prices and sums. Pure.
    pub(super) fn compute(&self) -> Result<DayResult, ServiceError> {
        let to_fold = self.to_fold();
        let mut folded: BTreeMap<Instant, HourSegments> = self
            .claims
            .fold(&to_fold)
            .into_iter()
            .map(|segments| (segments.hour.start(), segments))
            .collect();
        let mut result = DayResult {
            changed: Vec::new(),
            removed: Vec::new(),
            rows: Vec::new(),
            counted: BTreeMap::new(),
            findings: Vec::new(),
        };
        let is_hour = |start: &Instant| self.hours.iter().any(|hour| hour.start() == *start);
        result.removed.extend(self.stored.keys().filter(|start| !is_hour(start)));
        let mut sums = DaySums::default();
        let mut divider = Divider::new(&self.catalogue, &self.rules);
        for hour in &self.hours {
            if !self.is_in_service(*hour) {
                if self.stored.contains_key(&hour.start()) {
                    result.removed.push(hour.start());
                }
                continue;
            }
            let stored = self.stored.get(&hour.start());
            let node_hour =
                self.node_hour(*hour, folded.remove(&hour.start()), stored, &mut divider, &mut result)?;
            sums.add(*hour, &node_hour.devices, &node_hour.segments.evidence, &self.book)?;
            self.note(&node_hour, &mut result);
        }
        result.rows = levels::node_day_rows(&sums, &self.tenants)?;
        Ok(result)
    }

    /// One node-hour: from new segments, or from those that are stored.
    fn node_hour(
        &self,
        hour: Span,
        folded: Option<HourSegments>,
        stored: Option<&StoredHour>,
        divider: &mut Divider<'_>,
        result: &mut DayResult,
    ) -> Result<NodeHour, ServiceError> {
        let is_marked =
            self.marks.iter().any(|mark| mark.kind == MarkKind::Part && mark.hour == hour.start());
        let (segments, batches_hash) = match (folded, stored) {
            (Some(segments), Some(stored)) if segments.covered_nanos < stored.covered_nanos => {
                result.findings.push(Finding {
                    kind: FindingKind::CoverageLost,
                    scope: self.home.id,
                    subject: self.home.name.name.to_string(),
                    span: hour,
                    detail: "the journal holds less than this hour was derived from; it was left as it was"
                        .to_owned(),
                });
                (node_hour::decode(&stored.body)?.segments, stored.batches_hash.clone())
            }
            (Some(segments), _) => (segments, self.batches_hash(hour)),
            (None, Some(stored)) => {
                let node_hour = node_hour::decode(&stored.body)?;
                if !is_marked {
                    return Ok(node_hour);
                }
                (node_hour.segments, stored.batches_hash.clone())
            }
            // Not marked, not stored and in service: `to_fold` has it, so this is an hour without claims.
            (None, None) => (Claims::new().fold(&[hour]).remove(0), self.batches_hash(hour)),
        };
        let policy = self.book.policy(hour.start());
        let here = self
            .devices
            .iter()
            .filter(|device| self.concerns(device, hour) && self.divides(device, hour, &segments));
        let here: Vec<(&ScopeDevice, Vec<Span>)> =
            here.map(|device| (device, device.in_service_during(hour))).collect();
        let covered_nanos = segments.covered_nanos;
        let devices = self.divided(&here, &segments, divider, &policy)?;
        let node_hour = NodeHour { segments, devices };
        let (node_hour, body) = match node_hour::encode(&node_hour) {
            Err(StoreError::TooLarge { bytes, .. }) => {
                // One hour that cannot be kept holds up no day: it is unknown, and somebody is told.
                result.findings.push(Finding {
                    kind: FindingKind::HourTooLarge,
                    scope: self.home.id,
                    subject: self.home.name.name.to_string(),
                    span: hour,
                    detail: format!("what was said of this hour takes {bytes} bytes; its time is unknown"),
                });
                let mut segments = Claims::new().fold(&[hour]).remove(0);
                segments.covered_nanos = covered_nanos;
                let devices = self.divided(&here, &segments, divider, &policy)?;
                let node_hour = NodeHour { segments, devices };
                let body = node_hour::encode(&node_hour)?;
                (node_hour, body)
            }
            body => (node_hour, body?),
        };
        let next = StoredHour { hour: hour.start(), body, batches_hash, covered_nanos };
        if stored != Some(&next) {
            result.changed.push(next);
        }
        Ok(node_hour)
    }

    /// The devices in service, divided by what was said.
    fn divided(
        &self,
        here: &[(&ScopeDevice, Vec<Span>)],
        segments: &HourSegments,
        divider: &mut Divider<'_>,
        policy: &Policy,
    ) -> Result<Vec<DeviceHour>, ServiceError> {
        let facts = here.iter().map(|(device, in_service)| DeviceFacts {
            device: &device.device,
            memory_mib: device.memory_mib,
            in_service,
            states: &device.states,
        });
        let claimed = |device: &Name| segments.devices.iter().find(|each| each.device == *device);
        match self.home.name.kind {
            ScopeKind::Node => facts
                .map(|facts| Ok(divider.divide(&facts, segments, claimed(&facts.device.uuid), policy)?))
                .collect(),
            ScopeKind::Pool => {
                let members: Vec<DeviceFacts<'_>> = facts.collect();
                Ok(divider.divide_pool(&members, segments, claimed(&self.home.name.name))?)
            }
        }
    }

    /// A hash over the batches that meet an hour, whatever the order in which they came.
    fn batches_hash(&self, hour: Span) -> Vec<u8> {
        let meeting: BTreeSet<&Vec<u8>> =
            self.batches.iter().filter(|(span, _)| span.meets(hour)).map(|(_, hash)| hash).collect();
        let mut hash = Sha256::new();
        meeting.into_iter().for_each(|each| hash.update(each));
        hash.finalize().to_vec()
    }

    /// What a node-hour says beside its parts: how far its devices are counted, and what someone should know.
    fn note(&self, node_hour: &NodeHour, result: &mut DayResult) {
        let node = &self.home.name.name;
        for device in &node_hour.devices {
            let hour = node_hour.segments.hour;
            let first = self.devices.partition_point(|each| each.device.uuid < device.device);
            let same = self.devices.iter().skip(first).take_while(|each| each.device.uuid == device.device);
            // A device that moved may be in a pool's hour twice, once for each node.
            for known in same.filter(|each| self.concerns(each, hour)) {
                let of_node = result.counted.entry(known.home).or_default();
                let counted = of_node.entry(known.id).or_insert(device.counted_to);
                *counted = device.counted_to.max(*counted);
            }
            for ((kind, about), span) in &device.doubts {
                let (kind, subject, detail) = self.doubt(*kind, about, device);
                result.findings.push(Finding { kind, scope: self.home.id, subject, span: *span, detail });
            }
        }
        let segments = &node_hour.segments;
        for device in &segments.devices {
            for conflict in &device.conflicts {
                let name = |at: usize| segments.sources.get(at).map(|source| source.sender.to_string());
                let believed = name(conflict.believed).unwrap_or_default();
                let set_aside = name(conflict.set_aside).unwrap_or_default();
                result.findings.push(Finding {
                    kind: FindingKind::SourceConflict,
                    scope: self.home.id,
                    subject: format!("{node}/{}/{set_aside}", device.device),
                    span: conflict.span,
                    detail: if conflict.believed == conflict.set_aside {
                        format!(
                            "{set_aside} claims more than {HOLDERS_MAX} holders or slices at once, or changes more \
                             often in an hour than can be kept; the rest was left out"
                        )
                    } else {
                        format!("source {believed} was believed over {set_aside}")
                    },
                });
            }
        }
    }

    /// A doubt as a finding: kind, subject, detail.
    fn doubt(&self, kind: DoubtKind, about: &Name, device: &DeviceHour) -> (FindingKind, String, String) {
        let on = format!("{}/{}", self.home.name.name, device.device);
        match kind {
            DoubtKind::UnknownProfile => (
                FindingKind::UnknownProfile,
                format!("{on}/{about}"),
                format!("no catalogue knows profile {about} of {}; its time is unknown", device.model),
            ),
            DoubtKind::IllegalLayout => (
                FindingKind::IllegalLayout,
                on,
                format!("no {} can be like this: {about}; its time is unknown", device.model),
            ),
            DoubtKind::LostParent => (
                FindingKind::LostParent,
                format!("{on}/{about}"),
                format!(
                    "a slice lies inside {about}, which did not exist then or lies too deep; its time is unknown"
                ),
            ),
            DoubtKind::PoolOverheld => (
                FindingKind::PoolOverheld,
                self.home.name.name.to_string(),
                "more devices were held than there were; each holder has its part of all of them".to_owned(),
            ),
            DoubtKind::LayoutAssumed => (
                FindingKind::LayoutAssumed,
                on,
                "a placement was not reported; the one that leaves the most to sell was assumed".to_owned(),
            ),
        }
    }

    /// The day, for people.
    pub(super) fn describe(&self) -> String {
        format!("{} {}", self.home.name.name, self.day)
    }
}
