//! What is there, page by page: nodes and pools, devices, price books, declared states, findings, the audit.

use serde::Serialize;
use serde_json::Value;

use super::ctx::Platform;
use super::error::ServiceError;
use super::pricing::version_json;
use crate::domain::ids::{Name, ScopeKind, ScopeName};
use crate::domain::units::Instant;
use crate::store::findings::{FindingKind, FindingPlace};
use crate::store::fleet::{DevicesWanted, ListedDevice, ListedScope, StoredScope};
use crate::store::prices::{Published, VersionsWanted};
pub use crate::store::states::StatePlace as Place;
use crate::store::{audit, findings, fleet, prices, states, unit};

fn open_end(end: Instant) -> Option<String> {
    (end != Instant::MAX).then(|| end.to_string())
}

/// A node or pool, as shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ScopeView {
    /// Its name.
    pub name: String,
    /// Devices that are, or were, at home there or belong to it.
    pub devices: i64,
    /// Of these, devices that are in service without an end.
    pub in_service: i64,
}

impl ScopeView {
    fn of(listed: &ListedScope) -> Self {
        Self { name: listed.name.name.to_string(), devices: listed.devices, in_service: listed.in_service }
    }
}

/// Nodes, or pools, after one, at most so many.
///
/// # Errors
/// [`ServiceError`].
pub async fn scopes(
    platform: &Platform,
    kind: ScopeKind,
    after: String,
    limit: i64,
) -> Result<Vec<ScopeView>, ServiceError> {
    let found = platform
        .read(move |scope, tx| {
            unit(async move { Ok(fleet::list_scopes(scope, tx, kind, &after, limit).await?) })
        })
        .await?;
    Ok(found.iter().map(ScopeView::of).collect())
}

/// A device, as shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DeviceView {
    /// By which it is known everywhere.
    pub gpu_uuid: String,
    /// Its model, as its inventory names it.
    pub gpu_model: String,
    /// Its memory in MiB, where its inventory states it.
    pub gpu_memory_mib: Option<i64>,
    /// Its in-service intervals, by start.
    pub in_service: Vec<IntervalView>,
}

/// An in-service interval, as shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct IntervalView {
    /// The home node.
    pub node: String,
    /// The pool to which the device belongs meanwhile.
    pub pool: Option<String>,
    /// The device's number on the node.
    pub gpu_index: Option<i64>,
    /// Since when it counts.
    pub from: String,
    /// Until when; none: still in service.
    pub to: Option<String>,
    /// Until when some source vouched for who held it.
    pub covered_to: String,
    /// Until when the sums have counted it.
    pub counted_to: String,
}

impl DeviceView {
    fn of(listed: &ListedDevice) -> Self {
        let intervals = listed.intervals.iter().map(|each| IntervalView {
            node: each.node.to_string(),
            pool: each.pool.as_ref().map(ToString::to_string),
            gpu_index: each.node_index,
            from: each.span.start().to_string(),
            to: open_end(each.span.end()),
            covered_to: each.covered_to.to_string(),
            counted_to: each.counted_to.to_string(),
        });
        Self {
            gpu_uuid: listed.device.uuid.to_string(),
            gpu_model: listed.device.model.to_string(),
            gpu_memory_mib: listed.memory_mib,
            in_service: intervals.collect(),
        }
    }
}

/// Devices after one, at most so many; with a node or pool those that are, or were, there.
///
/// # Errors
/// [`ServiceError::NotFound`] for a node or pool that is not there.
pub async fn devices(
    platform: &Platform,
    of: Option<ScopeName>,
    after: String,
    limit: i64,
) -> Result<Vec<DeviceView>, ServiceError> {
    let found = platform
        .read(move |scope, tx| {
            unit(async move {
                let of = match of {
                    None => None,
                    Some(name) => Some(scope_named(scope, tx, &name).await?.id),
                };
                let wanted = DevicesWanted::Page { after: &after, limit, of };
                Ok(fleet::list_devices(scope, tx, wanted).await?)
            })
        })
        .await?;
    Ok(found.iter().map(DeviceView::of).collect())
}

/// A node or pool by its name.
///
/// # Errors
/// [`ServiceError::NotFound`].
pub(super) async fn scope_named(
    scope: &crate::store::PlatformScope,
    tx: &crate::store::ReadTx,
    name: &ScopeName,
) -> Result<StoredScope, ServiceError> {
    let missing = || ServiceError::NotFound { what: name.kind.word(), name: name.name.to_string() };
    fleet::find_scope(scope, tx, name).await?.ok_or_else(missing)
}

/// One device.
///
/// # Errors
/// [`ServiceError::NotFound`].
pub async fn device(platform: &Platform, uuid: Name) -> Result<DeviceView, ServiceError> {
    platform
        .read(move |scope, tx| {
            unit(async move {
                let found = fleet::list_devices(scope, tx, DevicesWanted::One(&uuid)).await?;
                let missing = || ServiceError::NotFound { what: "device", name: uuid.to_string() };
                found.first().map(DeviceView::of).ok_or_else(missing)
            })
        })
        .await
}

/// One node or pool.
///
/// # Errors
/// [`ServiceError::NotFound`].
pub async fn scope(platform: &Platform, name: ScopeName) -> Result<ScopeView, ServiceError> {
    platform
        .read(move |scope, tx| {
            unit(async move {
                let found = fleet::list_scope(scope, tx, &name).await?;
                let missing =
                    || ServiceError::NotFound { what: name.kind.word(), name: name.name.to_string() };
                found.as_ref().map(ScopeView::of).ok_or_else(missing)
            })
        })
        .await
}

fn published_json(published: &Published) -> Value {
    let mut json = version_json(&published.version);
    if let Value::Object(fields) = &mut json {
        fields.insert("published".to_owned(), published.published.to_string().into());
        fields.insert("replaced".to_owned(), published.replaced.map(|at| at.to_string()).into());
    }
    json
}

/// The newest revision of each price book after one, at most so many.
///
/// # Errors
/// [`ServiceError`].
pub async fn price_books(platform: &Platform, after: String, limit: i64) -> Result<Vec<Value>, ServiceError> {
    let wanted = VersionsWanted::Newest { after, limit };
    let found = platform
        .read(move |scope, tx| unit(async move { Ok(prices::list(scope, tx, &wanted).await?) }))
        .await?;
    Ok(found.iter().map(published_json).collect())
}

/// All revisions of a price book, the newest first.
///
/// # Errors
/// [`ServiceError::NotFound`].
pub async fn price_book(platform: &Platform, name: Name) -> Result<Vec<Value>, ServiceError> {
    let wanted = VersionsWanted::Of(name.to_string());
    let found = platform
        .read(move |scope, tx| unit(async move { Ok(prices::list(scope, tx, &wanted).await?) }))
        .await?;
    if found.is_empty() {
        return Err(ServiceError::NotFound { what: "price book", name: name.to_string() });
    }
    Ok(found.iter().map(published_json).collect())
}

/// A declared state, as shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StateView {
    /// The node.
    pub node: String,
    /// The device; none: every device of the node.
    pub gpu_uuid: Option<String>,
    /// The slice; none: the whole device.
    pub slice: Option<String>,
    /// `maintenance`, `migration` or `unhealthy`.
    pub kind: String,
    /// Since when.
    pub from: String,
    /// Until when; none: until further notice.
    pub to: Option<String>,
    /// Who declared it.
    pub source: String,
    /// When.
    pub declared: String,
    /// By whose hand.
    pub declared_by: String,
}

/// Declared states after one, by start, at most so many; of one node where it is named.
///
/// # Errors
/// [`ServiceError`].
pub async fn declared_states(
    platform: &Platform,
    node: Option<Name>,
    after: Place,
    limit: i64,
) -> Result<Vec<(Place, StateView)>, ServiceError> {
    let found = platform
        .read(move |scope, tx| {
            unit(async move { Ok(states::list(scope, tx, node.as_ref(), &after, limit).await?) })
        })
        .await?;
    let text = |name: Option<&Name>| name.map(ToString::to_string);
    Ok(found
        .into_iter()
        .map(|each| {
            let state = StateView {
                node: each.node.to_string(),
                gpu_uuid: text(each.device.as_ref()),
                slice: text(each.state.slice.as_ref()),
                kind: each.state.kind.word().to_owned(),
                from: each.state.span.start().to_string(),
                to: open_end(each.state.span.end()),
                source: each.source.to_string(),
                declared: each.declared.to_string(),
                declared_by: each.declared_by,
            };
            let place = (
                each.state.span.start(),
                state.node.clone(),
                state.gpu_uuid.clone().unwrap_or_default(),
                state.slice.clone().unwrap_or_default(),
                state.kind.clone(),
                state.source.clone(),
            );
            (place, state)
        })
        .collect())
}

/// Reads a finding kind's word.
///
/// # Errors
/// In words that follow the word.
pub fn finding_kind(word: &str) -> Result<FindingKind, &'static str> {
    FindingKind::ALL.into_iter().find(|kind| kind.word() == word).ok_or("is no kind of finding")
}

/// A finding, as shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FindingView {
    /// What was found.
    pub kind: String,
    /// The node or pool that it is about.
    pub scope: Option<String>,
    /// Of what.
    pub subject: String,
    /// Since when.
    pub since: String,
    /// Until when; none: it lasts.
    pub until: Option<String>,
    /// In words for people.
    pub detail: String,
    /// When it was written.
    pub written: String,
}

/// Findings before one, the latest first, at most so many; of one kind where it is named.
///
/// # Errors
/// [`ServiceError`].
pub async fn finding_list(
    platform: &Platform,
    kind: Option<FindingKind>,
    before: FindingPlace,
    limit: i64,
) -> Result<Vec<(FindingPlace, FindingView)>, ServiceError> {
    let found = platform
        .read(move |scope, tx| {
            unit(async move { Ok(findings::list(scope, tx, kind, &before, limit).await?) })
        })
        .await?;
    Ok(found
        .into_iter()
        .map(|each| {
            let view = FindingView {
                kind: each.kind,
                scope: each.scope,
                subject: each.subject,
                since: each.span.start().to_string(),
                until: open_end(each.span.end()),
                detail: each.detail,
                written: each.written.to_string(),
            };
            (each.place, view)
        })
        .collect())
}

/// An entry of the audit, as shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AuditView {
    /// Its number.
    pub id: i64,
    /// When.
    pub at: String,
    /// Who.
    pub actor: String,
    /// By which token; none: a command beside the database.
    pub token: Option<String>,
    /// In which request.
    pub request: Option<String>,
    /// What was done.
    pub action: String,
    /// To what.
    pub subject: String,
    /// What it was.
    pub before: Option<Value>,
    /// What it is now.
    pub after: Option<Value>,
}

/// Entries of the audit before one, the newest first, at most so many.
///
/// # Errors
/// [`ServiceError`].
pub async fn audit_list(
    platform: &Platform,
    before: i64,
    limit: i64,
) -> Result<Vec<AuditView>, ServiceError> {
    let found = platform
        .read(move |scope, tx| unit(async move { Ok(audit::list(scope, tx, before, limit).await?) }))
        .await?;
    let some = |text: String| (!text.is_empty()).then_some(text);
    let json = |text: Option<String>| text.and_then(|text| serde_json::from_str(&text).ok());
    Ok(found
        .into_iter()
        .map(|(id, entry)| AuditView {
            id,
            at: entry.at.to_string(),
            actor: entry.actor,
            token: some(entry.token),
            request: some(entry.request),
            action: entry.action,
            subject: entry.subject,
            before: json(entry.before),
            after: json(entry.after),
        })
        .collect())
}
