//! Who asks, and what every service needs: the store, the installation, the clock.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::error::ServiceError;
use crate::domain::DERIVATION;
use crate::domain::money::Currency;
use crate::domain::period::BillingZone;
use crate::domain::units::Instant;
use crate::store::audit::Entry;
use crate::store::idempotency::{self, Remembered};
use crate::store::installation::{self, Installation};
use crate::store::outbox::{self, MessageKind, NewMessage};
use crate::store::{PlatformScope, ReadTx, Store, StoreError, WriteTx, audit, marks, prices, unit};
use crate::wire::signature::BatchSigner;

/// The time, as a port: only `main` owns a clock.
pub trait Clock: Send + Sync {
    /// The present instant.
    fn now(&self) -> Instant;
}

/// The billing settings as configured; what is not set keeps what the installation has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BillingSettings {
    /// Where days begin.
    pub zone: Option<BillingZone>,
    /// The book currency.
    pub currency: Option<Currency>,
}

/// The operator's own process: sees all, on behalf of `actor`.
#[derive(Clone)]
pub struct Platform {
    /// The open database.
    pub store: Store,
    /// What the installation is.
    pub installation: Arc<Installation>,
    /// Who acts, for the record.
    pub actor: String,
    asked: Arc<Asked>,
    clock: Arc<dyn Clock>,
    scope: PlatformScope,
}

/// The request in which something is done; all empty for a command beside the database.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Asked {
    /// The token's id.
    pub token: String,
    /// The request's id.
    pub request: String,
    /// So that a repeat is answered and not done again.
    pub idempotency: Option<IdempotencyKey>,
}

/// What tells a repeated request from another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdempotencyKey {
    /// The key that the client chose; its own for each token.
    pub key: String,
    /// SHA-256 of method, path and body: another request under the same key is refused.
    pub fingerprint: [u8; 32],
}

/// What a unit of work did, for its caller and for the record.
#[derive(Debug)]
pub(super) struct Changed<T> {
    pub(super) outcome: T,
    pub(super) records: Vec<Record>,
}

/// One change, for the record. None where nothing changed.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) action: &'static str,
    pub(super) subject: String,
    pub(super) before: Option<serde_json::Value>,
    pub(super) after: Option<serde_json::Value>,
}

impl std::fmt::Debug for Platform {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Platform({}, {})", self.store.describe(), self.actor)
    }
}

impl Platform {
    /// Opens the installation of a database, and makes it where there is none.
    ///
    /// `seed` is 32 random bytes, used where the installation is made.
    ///
    /// # Errors
    /// [`ServiceError::BillingIsFixed`] when the settings disagree with what can no longer change.
    pub async fn open(
        store: Store,
        actor: String,
        clock: Arc<dyn Clock>,
        settings: BillingSettings,
        seed: [u8; 32],
    ) -> Result<Self, ServiceError> {
        let scope = PlatformScope::of_process();
        let found = {
            let scope = scope.clone();
            store
                .read(&scope.clone(), move |tx| {
                    unit(async move { Ok::<_, ServiceError>(installation::find(&scope, tx).await?) })
                })
                .await?
        };
        let agrees = |there: &Installation| {
            settings.zone.is_none_or(|zone| zone == there.zone)
                && settings.currency.is_none_or(|currency| currency == there.currency)
                && (there.fixed.is_some() || there.zone_database == BillingZone::database_version())
        };
        let installation = match found {
            Some(there) if agrees(&there) => there,
            found => settle(&store, &scope, found, settings, seed, clock.now()).await?,
        };
        if store.is_embedded() {
            // Nobody else can have the file, so leases that a process left behind when it died hold nothing up.
            let keeper = scope.clone();
            store
                .write(&scope, move |tx| {
                    let keeper = keeper.clone();
                    unit(async move { Ok::<_, ServiceError>(marks::release_all_leases(&keeper, tx).await?) })
                })
                .await?;
        }
        let is_behind = installation.derivation < DERIVATION;
        let (installation, asked) = (Arc::new(installation), Arc::default());
        let platform = Self { store, installation, actor, asked, clock, scope };
        if is_behind {
            super::derive::adopt(&platform, DERIVATION).await?;
        }
        Ok(platform)
    }

    /// Makes it an installation whose data is all made up, and says so wherever it is shown. It has to be new: nobody's
    /// real data becomes a demo, and nothing made up is mixed with it.
    ///
    /// # Errors
    /// [`ServiceError::NotADemo`] where something was brought in that is not made up.
    pub async fn as_demo(mut self) -> Result<Self, ServiceError> {
        if self.installation.is_demo {
            return Ok(self);
        }
        let place = self.store.describe();
        self.write(move |scope, tx| {
            let place = place.clone();
            unit(async move {
                installation::lock(scope, tx, installation::Lock::Alone).await?;
                let is_fixed =
                    installation::find(scope, tx).await?.is_some_and(|there| there.fixed.is_some());
                // All that anybody brings in is recorded.
                if is_fixed || !audit::list(scope, tx, i64::MAX, 1).await?.is_empty() {
                    return Err(ServiceError::NotADemo { place });
                }
                Ok(installation::set_demo(scope, tx).await?)
            })
        })
        .await?;
        self.installation = Arc::new(Installation { is_demo: true, ..(*self.installation).clone() });
        Ok(self)
    }

    /// The present instant.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.clock.now()
    }

    /// The billing zone.
    #[must_use]
    pub fn zone(&self) -> BillingZone {
        self.installation.zone
    }

    /// Asks the database for the one row that is always there: whether it answers.
    ///
    /// # Errors
    /// [`ServiceError`].
    pub async fn ping(&self) -> Result<(), ServiceError> {
        self.read(move |scope, tx| unit(async move { Ok(installation::find(scope, tx).await?) }))
            .await
            .map(|_| ())
    }

    /// Runs a unit of work that only reads, on one snapshot of all rows.
    pub(super) async fn read<T, F>(&self, work: F) -> Result<T, ServiceError>
    where
        F: for<'t> FnOnce(&'t PlatformScope, &'t ReadTx) -> BoxFuture<'t, Result<T, ServiceError>>
            + Send
            + 'static,
        T: Send + 'static,
    {
        let scope = self.scope.clone();
        self.store.read(&self.scope, move |tx| unit(async move { work(&scope, tx).await })).await
    }

    /// Runs a unit of work that writes: all of it, or nothing.
    pub(super) async fn write<T, F>(&self, work: F) -> Result<T, ServiceError>
    where
        F: for<'t> Fn(&'t PlatformScope, &'t WriteTx) -> BoxFuture<'t, Result<T, ServiceError>>
            + Send
            + Sync
            + 'static,
        T: Send + 'static,
    {
        let (scope, work) = (self.scope.clone(), Arc::new(work));
        self.store
            .write(&self.scope, move |tx| {
                let (scope, work) = (scope.clone(), Arc::clone(&work));
                unit(async move { work(&scope, tx).await })
            })
            .await
    }

    /// The same installation on behalf of somebody who asked.
    #[must_use]
    pub fn on_behalf(&self, actor: String, asked: Asked) -> Self {
        Self { actor, asked: Arc::new(asked), ..self.clone() }
    }

    /// The same on behalf of the same, for what is done after the request was answered.
    #[must_use]
    pub fn without_key(&self) -> Self {
        let asked = Asked { idempotency: None, ..(*self.asked).clone() };
        Self { asked: Arc::new(asked), ..self.clone() }
    }

    /// Runs a unit of work that somebody asked for: its change, its record, the event that leaves for others, and the
    /// answer to a repeat, in one transaction.
    ///
    /// # Errors
    /// The work's own; [`ServiceError::KeyReused`] where the idempotency key was used for another request.
    pub(super) async fn change<T, F>(&self, work: F) -> Result<T, ServiceError>
    where
        F: for<'t> Fn(&'t PlatformScope, &'t WriteTx) -> BoxFuture<'t, Result<Changed<T>, ServiceError>>
            + Send
            + Sync
            + 'static,
        T: Serialize + DeserializeOwned + Send + 'static,
    {
        let ended = self.change_once(Arc::new(work)).await;
        if ended.is_ok() || self.asked.idempotency.is_none() {
            return ended;
        }
        // Of two requests of one key at once the second waited for the first, and may have failed by what that did.
        let asked = Arc::clone(&self.asked);
        let first = self.read(move |scope, tx| unit(async move { answered(scope, tx, &asked).await })).await;
        match first {
            Ok(Some(answer)) => Ok(answer),
            Ok(None) | Err(_) => ended,
        }
    }

    async fn change_once<T, F>(&self, work: Arc<F>) -> Result<T, ServiceError>
    where
        F: for<'t> Fn(&'t PlatformScope, &'t WriteTx) -> BoxFuture<'t, Result<Changed<T>, ServiceError>>
            + Send
            + Sync
            + 'static,
        T: Serialize + DeserializeOwned + Send + 'static,
    {
        let (asked, actor, now) = (Arc::clone(&self.asked), self.actor.clone(), self.now());
        self.write(move |scope, tx| {
            let (work, asked, actor) = (Arc::clone(&work), Arc::clone(&asked), actor.clone());
            unit(async move {
                if let Some(answered) = answered(scope, tx, &asked).await? {
                    return Ok(answered);
                }
                let Changed { outcome, records } = work(scope, tx).await?;
                record(scope, tx, &asked, &actor, now, records).await?;
                if let Some(key) = &asked.idempotency {
                    let outcome = serde_json::to_string(&outcome).map_err(ServiceError::Encode)?;
                    let remembered = Remembered { fingerprint: key.fingerprint.to_vec(), outcome };
                    let by = (asked.token.as_str(), key.key.as_str());
                    idempotency::remember(scope, tx, by, &remembered, now).await?;
                }
                Ok(outcome)
            })
        })
        .await
    }

    /// The scope that sees all rows: for whoever has an open installation, and for nobody else.
    #[must_use]
    pub fn scope(&self) -> PlatformScope {
        self.scope.clone()
    }

    /// The key with which imports are signed.
    #[must_use]
    pub fn signer(&self) -> BatchSigner {
        BatchSigner::from_seed(&self.installation.signing_seed)
    }
}

/// What the same request did before, if it was made.
async fn answered<T: DeserializeOwned>(
    scope: &PlatformScope,
    tx: &ReadTx,
    asked: &Asked,
) -> Result<Option<T>, ServiceError> {
    let Some(key) = &asked.idempotency else { return Ok(None) };
    let Some(there) = idempotency::find(scope, tx, &asked.token, &key.key).await? else { return Ok(None) };
    if there.fingerprint != key.fingerprint {
        return Err(ServiceError::KeyReused { key: key.key.clone() });
    }
    let outcome = serde_json::from_str(&there.outcome);
    outcome.map(Some).map_err(|error| StoreError::corrupt("an answer", error).into())
}

/// Subjects that one event names; it counts all.
const SUBJECTS_NAMED: usize = 32;

/// Writes what was changed into the audit, and puts the events that say so: one for each kind of change.
pub(super) async fn record(
    scope: &PlatformScope,
    tx: &WriteTx,
    asked: &Asked,
    actor: &str,
    now: Instant,
    records: Vec<Record>,
) -> Result<(), ServiceError> {
    let mut entries = Vec::with_capacity(records.len());
    let mut by_action: BTreeMap<&'static str, Vec<String>> = BTreeMap::new();
    for Record { action, subject, before, after } in records {
        let text = |value: Option<serde_json::Value>| value.map(|value| value.to_string());
        by_action.entry(action).or_default().push(subject.clone());
        entries.push(Entry {
            at: now,
            actor: actor.to_owned(),
            token: asked.token.clone(),
            request: asked.request.clone(),
            action: action.to_owned(),
            subject,
            before: text(before),
            after: text(after),
        });
    }
    let events = by_action.into_iter().map(|(action, subjects)| {
        let named: Vec<&String> = subjects.iter().take(SUBJECTS_NAMED).collect();
        let payload = serde_json::json!({
            "action": action, "subjects": named, "count": subjects.len(), "at": now.to_string(), "actor": actor,
            "request": asked.request,
        });
        // A request changes a thing of a kind once; a command beside the database is told by its moment.
        let first = subjects.first().map_or("", String::as_str);
        let of = if asked.request.is_empty() { now.to_string() } else { asked.request.clone() };
        let key = format!("{action} {first} {of} {now}");
        NewMessage { kind: MessageKind::Event, key, payload: payload.to_string() }
    });
    audit::add(scope, tx, &entries).await?;
    Ok(outbox::put(scope, tx, &events.collect::<Vec<_>>(), now).await?)
}

/// Refuses to go on with a zone that is no longer the installation's: days would be cut in two ways.
///
/// # Errors
/// [`ServiceError::ZoneChanged`].
pub(super) async fn check_zone(
    scope: &PlatformScope,
    tx: &ReadTx,
    then: BillingZone,
) -> Result<(), ServiceError> {
    match installation::find(scope, tx).await? {
        Some(stored) if stored.zone != then => Err(ServiceError::ZoneChanged { then, now: stored.zone }),
        Some(_) | None => Ok(()),
    }
}

/// Makes the installation, or brings it in line with the settings while it still may change.
async fn settle(
    store: &Store,
    scope: &PlatformScope,
    found: Option<Installation>,
    settings: BillingSettings,
    seed: [u8; 32],
    now: Instant,
) -> Result<Installation, ServiceError> {
    let default_currency = Currency::parse("USD").ok();
    let there = found.as_ref().map(|found| (found.zone, found.currency));
    let zone = settings.zone.or(there.map(|(zone, _)| zone)).unwrap_or(BillingZone::UTC);
    let currency = settings.currency.or(there.map(|(_, currency)| currency)).or(default_currency);
    let currency = currency.ok_or_else(|| ServiceError::File {
        file: "settings".to_owned(),
        reason: "[billing] currency is not set".to_owned(),
    })?;
    let new = Installation {
        zone,
        zone_database: BillingZone::database_version().to_owned(),
        currency,
        signing_seed: seed,
        public_key: BatchSigner::from_seed(&seed).public_key(),
        fixed: None,
        derivation: DERIVATION,
        is_demo: false,
    };
    let scope = scope.clone();
    store
        .write(&scope.clone(), move |tx| {
            let (scope, new) = (scope.clone(), new.clone());
            unit(async move {
                installation::create(&scope, tx, &new, now).await?;
                installation::set_billing(&scope, tx, zone, currency).await?;
                for version in prices::book(&scope, tx).await?.versions() {
                    let edges = [version.effective.start(), version.effective.end()];
                    let on_edges =
                        edges.into_iter().all(|edge| edge == Instant::MAX || zone.is_hour_edge(edge));
                    if version.currency != currency || !on_edges {
                        let (file, name) = ("settings".to_owned(), &version.name);
                        let reason = format!(
                            "price book `{name}` was loaded in {} by another zone or currency; \
                             replace it before billing in {currency} by {zone}",
                            version.currency
                        );
                        return Err(ServiceError::File { file, reason });
                    }
                }
                // Another process may have made it first; what is stored counts.
                let stored = installation::find(&scope, tx).await?.unwrap_or(new);
                if stored.fixed.is_some() && (stored.zone, stored.currency) != (zone, currency) {
                    return Err(ServiceError::BillingIsFixed {
                        fixed_zone: stored.zone,
                        fixed_currency: stored.currency,
                        zone,
                        currency,
                    });
                }
                Ok(stored)
            })
        })
        .await
}
