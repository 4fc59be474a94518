//! Agents: how a node's agent is enrolled, who a signed request comes from, what a node has.
//!
//! Always true here: an enrolment token serves one key; who an agent is comes from the key that signed and from nothing
//! that it says; a device that its home still reports is not taken away by another node.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use subtle::ConstantTimeEq;

use super::accept::{hours_meeting, refusal_entry};
use super::ctx::{Changed, Platform, Record, check_zone};
use super::error::{Fault, ServiceError};
use super::{pools, tick};
use crate::domain::device::Device;
use crate::domain::ids::{Name, ScopeKind, ScopeName};
use crate::domain::period::{BillingZone, Span};
use crate::domain::units::{Instant, MICROS_PER_HOUR, MICROS_PER_SECOND};
use crate::domain::usage::{Source, SourceRank};
use crate::store::agents::{EnrolmentToken, LastSeen, StoredAgent};
use crate::store::findings::{Finding, FindingKind};
use crate::store::fleet::{NewDevice, ServiceInterval, StoredDevice, StoredScope};
use crate::store::installation::Lock;
use crate::store::journal::{Advance, NewGap, Stream};
use crate::store::marks::MarkKind;
use crate::store::{
    PlatformScope, StoreError, WriteTx, agents, audit, findings, fleet, installation, journal, marks, unit,
};
use crate::wire::ack::{Acknowledgement, Outcome, Refusal};
use crate::wire::agent_v1::{Enrolled, InventoryTaken, SKIP_MAX};
use crate::wire::signature::{self, BatchVerifier, RequestClaims};
use crate::wire::token::{Minted, Presented};

/// How long an enrolment token is taken, where nothing else is said, and at most.
pub const ENROLMENT_SECONDS: i64 = 3_600;
/// As long as this a device is its home's alone after its home last vouched for it.
const PINNED_US: i64 = 900 * MICROS_PER_SECOND;
/// Of what was lost before so long ago nothing is derived anew.
const GAP_US_MAX: i64 = 100 * 24 * MICROS_PER_HOUR;
/// How far ahead of the service's time an inventory may be.
const AHEAD_US_MAX: i64 = 120 * MICROS_PER_SECOND;
/// The source of findings about devices has one subject a device.
const VERSION_BYTES_MAX: usize = 64;

/// Who signed a request: an agent that is enrolled and not revoked.
#[derive(Debug, Clone)]
pub struct AgentIdentity {
    /// The agent's id.
    pub id: String,
    /// Its node.
    pub home: StoredScope,
    /// As what it reports.
    pub source: Source,
    /// Its key.
    pub key: BatchVerifier,
    /// The earliest instant at which what it finds may have come into service.
    pub since: Instant,
}

/// Whose key this is; none where it is unknown or holds no longer.
///
/// # Errors
/// [`ServiceError`] when the store cannot be asked.
pub async fn identify_key(platform: &Platform, key_id: &str) -> Result<Option<AgentIdentity>, ServiceError> {
    let key_id = key_id.to_owned();
    let found = platform
        .read(move |scope, tx| unit(async move { Ok(agents::of_key(scope, tx, &key_id).await?) }))
        .await?;
    let Some((agent, key)) = found else { return Ok(None) };
    let sender = Name::parse(&agent.id).map_err(|error| StoreError::corrupt("an agent", error))?;
    let source = Source { rank: SourceRank::HostAgent, sender };
    let key = BatchVerifier::new(&key)?;
    Ok(Some(AgentIdentity { id: agent.id, home: agent.home, source, key, since: agent.since }))
}

/// An enrolment token to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewEnrolment {
    /// The nodes that may use it; `*` stands for any letters.
    pub nodes: Name,
    /// The earliest instant at which what the agent finds may have come into service; none: now.
    pub since: Option<Instant>,
    /// Whether it may take the place of an agent that a node has.
    pub replaces: bool,
    /// How long it is taken.
    pub seconds: i64,
}

/// What is shown of an enrolment token; never its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnrolmentView {
    /// Its id.
    pub id: String,
    /// The nodes that may use it.
    pub nodes: String,
    /// The earliest instant at which what the agent finds may have come into service.
    pub since: String,
    /// Whether it may take the place of an agent that a node has.
    pub replaces: bool,
    /// When it was made.
    pub created: String,
    /// By whom.
    pub created_by: String,
    /// From when on it is no longer taken.
    pub expires: String,
    /// When it was used.
    pub used: Option<String>,
}

impl EnrolmentView {
    fn of(token: &EnrolmentToken) -> Self {
        Self {
            id: token.id.clone(),
            nodes: token.pattern.clone(),
            since: token.since.to_string(),
            replaces: token.replaces,
            created: token.created.to_string(),
            created_by: token.created_by.clone(),
            expires: token.expires.to_string(),
            used: token.used.as_ref().map(|(at, _)| at.to_string()),
        }
    }
}

/// Makes an enrolment token. Its text is the caller's to show, once.
///
/// # Errors
/// [`ServiceError::Faults`] for a start in the future and a life beyond [`ENROLMENT_SECONDS`].
pub async fn make_enrolment(
    platform: &Platform,
    new: NewEnrolment,
    minted: &Minted,
) -> Result<EnrolmentView, ServiceError> {
    let now = platform.now();
    let mut faults = Vec::new();
    if !(1..=ENROLMENT_SECONDS).contains(&new.seconds) {
        faults.push(Fault::body("/seconds", format!("is not from 1 to {ENROLMENT_SECONDS}")));
    }
    if new.since.is_some_and(|since| since > now) {
        faults.push(Fault::body("/since", "has not come yet"));
    }
    if !faults.is_empty() {
        return Err(ServiceError::Faults(faults));
    }
    let token = Arc::new(EnrolmentToken {
        id: minted.presented.id.clone(),
        secret_hash: minted.presented.secret_hash,
        pattern: new.nodes.to_string(),
        since: new.since.unwrap_or(now),
        replaces: new.replaces,
        created: now,
        created_by: platform.actor.clone(),
        expires: now.plus_micros(new.seconds.saturating_mul(MICROS_PER_SECOND)),
        used: None,
    });
    platform
        .change(move |scope, tx| {
            let token = Arc::clone(&token);
            unit(async move {
                agents::add_token(scope, tx, &token).await?;
                let outcome = EnrolmentView::of(&token);
                let after = serde_json::to_value(&outcome).ok();
                let subject = token.id.clone();
                let record = Record { action: "enrolment.create", subject, before: None, after };
                Ok(Changed { outcome, records: vec![record] })
            })
        })
        .await
}

/// Enrolment tokens after one, at most so many.
///
/// # Errors
/// [`ServiceError`].
pub async fn enrolments(
    platform: &Platform,
    after: String,
    limit: i64,
) -> Result<Vec<EnrolmentView>, ServiceError> {
    let found = platform
        .read(move |scope, tx| unit(async move { Ok(agents::tokens(scope, tx, &after, limit).await?) }))
        .await?;
    Ok(found.iter().map(EnrolmentView::of).collect())
}

/// A node that asks to be enrolled.
#[derive(Debug, Clone)]
pub struct Newcomer {
    /// What it presents.
    pub presented: Presented,
    /// What it is called.
    pub node: Name,
    /// Its public key.
    pub key: BatchVerifier,
    /// The program's version.
    pub version: String,
    /// The id that it gets: random.
    pub id: String,
}

/// Whether a node's name fits a pattern in which `*` stands for any letters.
#[must_use]
pub fn fits(pattern: &str, node: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = node.strip_prefix(parts.next().unwrap_or_default()) else { return false };
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else { return rest.is_empty() };
    for part in middle {
        match rest.find(part) {
            Some(at) => rest = rest.get(at.saturating_add(part.len())..).unwrap_or_default(),
            None => return false,
        }
    }
    rest.ends_with(last)
}

/// Enrols a node's agent. The same key with the same token is answered alike again, also after the token's time.
///
/// # Errors
/// [`ServiceError::EnrolmentRefused`] for a token that is unknown, over, another key's or another node's, which are not
/// told apart; [`ServiceError::Exists`] where the node has an agent and the token does not replace it.
pub async fn enrol(platform: &Platform, newcomer: Newcomer) -> Result<Enrolled, ServiceError> {
    let audience = signature::audience(&platform.installation.public_key);
    let work = Arc::new((newcomer, platform.now(), audience));
    platform
        .change(move |scope, tx| {
            let work = Arc::clone(&work);
            unit(async move {
                let (newcomer, now, audience) = &*work;
                let (agent, records) = enrol_in(scope, tx, newcomer, *now).await?;
                let node = newcomer.node.to_string();
                let outcome = Enrolled { agent, node, audience: audience.clone() };
                Ok(Changed { outcome, records })
            })
        })
        .await
}

async fn enrol_in(
    scope: &PlatformScope,
    tx: &WriteTx,
    newcomer: &Newcomer,
    now: Instant,
) -> Result<(String, Vec<Record>), ServiceError> {
    let refused = || ServiceError::EnrolmentRefused;
    let key_id = signature::key_id(newcomer.key.public_key());
    let Some(token) = agents::lock_token(scope, tx, &newcomer.presented.id).await? else {
        return Err(refused());
    };
    let is_it: bool = token.secret_hash.ct_eq(&newcomer.presented.secret_hash).into();
    if !is_it || !fits(&token.pattern, newcomer.node.as_str()) {
        return Err(refused());
    }
    if let Some((_, used_by)) = &token.used {
        let owner = agents::owner_of_key(scope, tx, &key_id).await?;
        let agent = match owner.filter(|_| *used_by == key_id) {
            Some(owner) => agents::find(scope, tx, &owner).await?,
            None => None,
        };
        // What was answered before is answered again, as long as it is still true.
        let same = agent.filter(|agent| agent.revoked.is_none() && agent.home.name.name == newcomer.node);
        return same.map(|agent| (agent.id, vec![])).ok_or_else(refused);
    }
    if token.expires <= now || agents::owner_of_key(scope, tx, &key_id).await?.is_some() {
        return Err(refused());
    }
    let name = ScopeName { kind: ScopeKind::Node, name: newcomer.node.clone() };
    let pool = ScopeName { kind: ScopeKind::Pool, ..name.clone() };
    if fleet::find_scope(scope, tx, &pool).await?.is_some() {
        return Err(ServiceError::Exists { what: "pool", name: newcomer.node.to_string() });
    }
    fleet::ensure_scopes(scope, tx, std::slice::from_ref(&name), now).await?;
    let home = fleet::find_scope(scope, tx, &name).await?;
    let home = home.ok_or_else(|| StoreError::corrupt("a node", "it is not there after it was made"))?;
    // Two that enrol one node at once see each other.
    fleet::lock_scope(scope, tx, home.id).await?;
    let mut records = Vec::new();
    for there in agents::of_node(scope, tx, home.id).await? {
        if !token.replaces {
            return Err(ServiceError::Exists { what: "an agent of node", name: newcomer.node.to_string() });
        }
        agents::revoke(scope, tx, &there.id, &token.id, now).await?;
        records.push(Record {
            action: "agent.replace",
            subject: there.id.clone(),
            before: Some(json!({ "node": newcomer.node.as_str() })),
            after: Some(json!({ "replaced_by": newcomer.id })),
        });
    }
    let agent = StoredAgent {
        id: newcomer.id.clone(),
        home,
        since: token.since,
        version: newcomer.version.chars().take(VERSION_BYTES_MAX).collect(),
        enrolled: now,
        enrolled_by: token.id.clone(),
        revoked: None,
        inventory: None,
        inventory_counter: 0,
        inventory_at: None,
    };
    agents::add(scope, tx, &agent, (&key_id, newcomer.key.public_key())).await?;
    agents::use_token(scope, tx, &token.id, &key_id, now).await?;
    records.push(Record {
        action: "agent.enrol",
        subject: agent.id.clone(),
        before: None,
        after: Some(json!({ "node": newcomer.node.as_str(), "key": key_id, "enrolment": token.id })),
    });
    Ok((agent.id, records))
}

/// An agent, as shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentView {
    /// Its id.
    pub id: String,
    /// Its node.
    pub node: String,
    /// The program's version.
    pub version: String,
    /// When it was enrolled.
    pub enrolled: String,
    /// When it was revoked.
    pub revoked: Option<String>,
    /// When a batch came last.
    pub last_seen: Option<String>,
    /// Until when it spoke.
    pub reported_to: Option<String>,
    /// By how many microseconds its node's clock is behind the service's.
    pub clock_offset_us: Option<i64>,
    /// The newest inventory that it sent.
    pub inventory: Option<Value>,
}

impl AgentView {
    fn of(agent: &StoredAgent, last: LastSeen) -> Self {
        let text = |instant: Option<Instant>| instant.map(|instant| instant.to_string());
        Self {
            id: agent.id.clone(),
            node: agent.home.name.name.to_string(),
            version: agent.version.clone(),
            enrolled: agent.enrolled.to_string(),
            revoked: text(agent.revoked),
            last_seen: text(last.at),
            reported_to: text(last.edge),
            clock_offset_us: last.offset_micros,
            inventory: agent.inventory.as_deref().and_then(|text| serde_json::from_str(text).ok()),
        }
    }
}

/// Agents after one, at most so many.
///
/// # Errors
/// [`ServiceError`].
pub async fn list(platform: &Platform, after: String, limit: i64) -> Result<Vec<AgentView>, ServiceError> {
    platform
        .read(move |scope, tx| {
            unit(async move {
                let mut shown = Vec::new();
                for agent in agents::list(scope, tx, &after, limit).await? {
                    let last = agents::last_seen(scope, tx, &agent.id).await?;
                    shown.push(AgentView::of(&agent, last));
                }
                Ok(shown)
            })
        })
        .await
}

/// One agent.
///
/// # Errors
/// [`ServiceError::NotFound`].
pub async fn find(platform: &Platform, id: &str) -> Result<AgentView, ServiceError> {
    let id = id.to_owned();
    platform
        .read(move |scope, tx| {
            unit(async move {
                let agent = agents::find(scope, tx, &id).await?;
                let agent =
                    agent.ok_or_else(|| ServiceError::NotFound { what: "agent", name: id.clone() })?;
                let last = agents::last_seen(scope, tx, &id).await?;
                Ok(AgentView::of(&agent, last))
            })
        })
        .await
}

/// Revokes an agent: its key is taken no longer. One that is revoked already stays as it is.
///
/// # Errors
/// [`ServiceError::NotFound`].
pub async fn revoke(platform: &Platform, id: &str) -> Result<AgentView, ServiceError> {
    let work = Arc::new((id.to_owned(), platform.actor.clone(), platform.now()));
    platform
        .change(move |scope, tx| {
            let work = Arc::clone(&work);
            unit(async move {
                let (id, actor, now) = &*work;
                let missing = || ServiceError::NotFound { what: "agent", name: id.clone() };
                let before = agents::lock(scope, tx, id).await?.ok_or_else(missing)?;
                let last = agents::last_seen(scope, tx, id).await?;
                if before.revoked.is_some() {
                    return Ok(Changed { outcome: AgentView::of(&before, last), records: vec![] });
                }
                agents::revoke(scope, tx, id, actor, *now).await?;
                let outcome = AgentView::of(&StoredAgent { revoked: Some(*now), ..before }, last);
                let record = Record {
                    action: "agent.revoke",
                    subject: id.clone(),
                    before: Some(json!({ "revoked": null })),
                    after: Some(json!({ "revoked": outcome.revoked, "node": outcome.node })),
                };
                Ok(Changed { outcome, records: vec![record] })
            })
        })
        .await
}

/// Records that an agent tried what it may not.
///
/// # Errors
/// [`ServiceError`].
pub async fn record_refusal(
    platform: &Platform,
    agent: &AgentIdentity,
    detail: String,
) -> Result<(), ServiceError> {
    let subject = format!("{}/{}", agent.home.name.name, agent.id);
    let entry = Arc::new(refusal_entry(platform.now(), &agent.id, subject, &detail));
    platform
        .write(move |scope, tx| {
            let entry = Arc::clone(&entry);
            unit(async move { Ok(audit::add(scope, tx, std::slice::from_ref(&*entry)).await?) })
        })
        .await
}

/// A device as an agent found it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundDevice {
    /// By which it is known everywhere, and its model.
    pub device: Device,
    /// Its memory in MiB.
    pub memory_mib: Option<i64>,
    /// Its index on the node.
    pub index: Option<i64>,
    /// Its PCI address.
    pub pci: Option<Name>,
    /// Its serial number.
    pub serial: Option<Name>,
}

/// What an agent says that its node has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewInventory {
    /// Larger with each one.
    pub counter: i64,
    /// When it was taken.
    pub at: Instant,
    /// The program's version.
    pub version: String,
    /// The devices.
    pub devices: Vec<FoundDevice>,
    /// The message, to be kept.
    pub message: String,
}

/// Brings an agent's inventory into the fleet. A device that is new comes into service; one that is not in it stays
/// what it is. The same inventory again changes nothing.
///
/// # Errors
/// [`ServiceError::Faults`] for an inventory of a time to come; [`ServiceError::OldInventory`] for a counter that was
/// taken with another content.
pub async fn take_inventory(
    platform: &Platform,
    agent: &AgentIdentity,
    inventory: NewInventory,
) -> Result<InventoryTaken, ServiceError> {
    let (now, zone) = (platform.now(), platform.zone());
    if inventory.at.micros_since(now) > AHEAD_US_MAX {
        return Err(ServiceError::Faults(vec![Fault::body("/at", "has not come yet")]));
    }
    let work = Arc::new((inventory, agent.clone()));
    platform
        .change(move |scope, tx| {
            let work = Arc::clone(&work);
            unit(async move {
                let (inventory, agent) = &*work;
                Bringing { scope, tx, now, zone, agent, inventory }.run().await
            })
        })
        .await
}

/// An agent's inventory inside its transaction.
struct Bringing<'a> {
    scope: &'a PlatformScope,
    tx: &'a WriteTx,
    now: Instant,
    zone: BillingZone,
    agent: &'a AgentIdentity,
    inventory: &'a NewInventory,
}

/// What becomes of a device.
enum Fate {
    Stays,
    Opens,
    /// From another node, where it ends.
    Moves(ServiceInterval),
    Refused(String),
}

impl Bringing<'_> {
    async fn run(&self) -> Result<Changed<InventoryTaken>, ServiceError> {
        let (scope, tx, counter) = (self.scope, self.tx, self.inventory.counter);
        installation::lock(scope, tx, Lock::Alone).await?;
        check_zone(scope, tx, self.zone).await?;
        let missing = || ServiceError::NotFound { what: "agent", name: self.agent.id.clone() };
        let known = agents::lock(scope, tx, &self.agent.id).await?.ok_or_else(missing)?;
        let mut outcome = InventoryTaken { counter, opened: 0, moved: 0, refused: vec![] };
        if counter <= known.inventory_counter {
            let is_it = counter == known.inventory_counter
                && known.inventory.as_deref() == Some(self.inventory.message.as_str());
            if is_it {
                return Ok(Changed { outcome, records: vec![] });
            }
            return Err(ServiceError::OldInventory { counter, newest: known.inventory_counter });
        }
        let devices = self.ensure().await?;
        let uuids: Vec<&Name> = devices.keys().collect();
        let mut services: BTreeMap<i64, Vec<ServiceInterval>> = BTreeMap::new();
        for interval in fleet::services_of(scope, tx, &uuids).await? {
            services.entry(interval.device).or_default().push(interval);
        }
        let (mut records, mut told) = (Vec::new(), Vec::new());
        for (number, found) in self.inventory.devices.iter().enumerate() {
            let uuid = &found.device.uuid;
            let Some(stored) = devices.get(uuid) else { continue };
            let there = services.entry(stored.id).or_default();
            match self.fate(found, stored, there) {
                Fate::Stays => {}
                Fate::Refused(reason) => {
                    let span = Span::clamped(self.inventory.at, self.inventory.at);
                    told.push(Finding {
                        kind: FindingKind::DeviceContested,
                        scope: self.agent.home.id,
                        subject: uuid.to_string(),
                        span,
                        detail: reason.clone(),
                    });
                    outcome.refused.push(Refusal { pointer: format!("/devices/{number}"), reason });
                }
                Fate::Opens => {
                    there.push(self.open(found, stored, self.start(there), &mut records).await?);
                    outcome.opened += 1;
                }
                Fate::Moves(from) => {
                    let start = self.end(&from, &mut records).await?;
                    for interval in there.iter_mut().filter(|each| each.span.start() == from.span.start()) {
                        interval.span = Span::clamped(interval.span.start(), start);
                    }
                    there.push(self.open(found, stored, start, &mut records).await?);
                    outcome.moved += 1;
                }
            }
        }
        let inventory = &self.inventory;
        agents::keep_inventory(
            scope,
            tx,
            &self.agent.id,
            (counter, &inventory.message, &inventory.version),
            self.now,
        )
        .await?;
        findings::write(scope, tx, &told, self.now).await?;
        tick::advance_home(scope, tx, &self.agent.home, self.zone, self.now).await?;
        Ok(Changed { outcome, records })
    }

    /// What becomes of a device, by the intervals that it has.
    fn fate(&self, found: &FoundDevice, stored: &StoredDevice, there: &[ServiceInterval]) -> Fate {
        let (uuid, at) = (&found.device.uuid, self.inventory.at);
        if stored.device.model != found.device.model {
            let (known, said) = (&stored.device.model, &found.device.model);
            return Fate::Refused(format!("device {uuid} is known as `{known}`, not `{said}`"));
        }
        let home = self.agent.home.id;
        let open = there.iter().find(|each| each.span.end() == Instant::MAX);
        match open {
            Some(open) if open.scope == home => Fate::Stays,
            // Whoever holds the board reports it; two cannot. It moves when its home has been silent about it.
            Some(open) => {
                let silent = at.micros_since(open.covered_to.max(open.span.start()));
                if silent >= PINNED_US {
                    Fate::Moves(open.clone())
                } else {
                    Fate::Refused(format!(
                        "device {uuid} is in service on another node, which reported it {} s before",
                        silent / MICROS_PER_SECOND
                    ))
                }
            }
            // Only a person, or another node's inventory, takes a device out of service; and only a person brings it back.
            None if there.iter().any(|each| each.scope == home && each.span.end() > self.agent.since) => {
                Fate::Refused(format!("device {uuid} was taken out of service on this node"))
            }
            None => Fate::Opens,
        }
    }

    /// When a new device comes into service: when the inventory was taken, and not before the agent may say so, nor
    /// before another interval of the device ends.
    fn start(&self, there: &[ServiceInterval]) -> Instant {
        let ended = there.iter().map(|each| each.span.end()).max().unwrap_or(Instant::MIN);
        self.inventory.at.min(self.now).max(self.agent.since).max(ended)
    }

    async fn open(
        &self,
        found: &FoundDevice,
        stored: &StoredDevice,
        start: Instant,
        records: &mut Vec<Record>,
    ) -> Result<ServiceInterval, ServiceError> {
        let interval = ServiceInterval {
            device: stored.id,
            scope: self.agent.home.id,
            span: Span::clamped(start, Instant::MAX),
            node_index: found.index,
            edge: start,
            covered_to: start,
            pool: None,
        };
        fleet::open_service(self.scope, self.tx, &interval).await?;
        records.push(Record {
            action: "in_service.open",
            subject: format!("{}/{start}", found.device.uuid),
            before: None,
            after: Some(
                json!({ "node": self.agent.home.name.name.as_str(), "in_service_from": start.to_string() }),
            ),
        });
        Ok(interval)
    }

    /// Ends a device's time on another node where that node last vouched for it.
    async fn end(&self, from: &ServiceInterval, records: &mut Vec<Record>) -> Result<Instant, ServiceError> {
        let end = self.inventory.at.min(self.now).max(from.span.start().plus_micros(1));
        fleet::close_service(self.scope, self.tx, from.device, from.span.start(), end).await?;
        let gone = hours_meeting(self.zone, [Span::clamped(end.min(from.edge), from.edge)]);
        let scopes = fleet::scopes(self.scope, self.tx).await?;
        if let Some(home) = scopes.into_iter().find(|each| each.id == from.scope) {
            marks::mark_hours(self.scope, self.tx, &home, MarkKind::Fold, &gone).await?;
            pools::mark(self.scope, self.tx, &home, &gone).await?;
            records.push(Record {
                action: "in_service.amend",
                subject: format!("{}/{}", home.name.name, from.span.start()),
                before: Some(json!({ "in_service_to": null })),
                after: Some(json!({ "in_service_to": end.to_string(), "moved_to": self.agent.home.name.name.as_str() })),
            });
        }
        Ok(end)
    }

    /// Makes the devices that are missing; returns those of the inventory by UUID.
    async fn ensure(&self) -> Result<BTreeMap<Name, StoredDevice>, ServiceError> {
        let mut seen = BTreeSet::new();
        let distinct = self.inventory.devices.iter().filter(|found| seen.insert(&found.device.uuid));
        let new: Vec<NewDevice> = distinct
            .map(|found| NewDevice { device: found.device.clone(), memory_mib: found.memory_mib })
            .collect();
        fleet::ensure_devices(self.scope, self.tx, &new, self.now).await?;
        let uuids: Vec<&Name> = new.iter().map(|each| &each.device.uuid).collect();
        let devices = fleet::devices_named(self.scope, self.tx, &uuids).await?;
        for found in &self.inventory.devices {
            if let (Some(device), Some(serial)) = (devices.get(&found.device.uuid), &found.serial) {
                fleet::note_serial(self.scope, self.tx, device.id, serial).await?;
            }
        }
        Ok(devices)
    }
}

/// Numbers of an agent's stream that will never come.
#[derive(Debug, Clone)]
pub struct Skipped {
    /// What the agent signed.
    pub claims: RequestClaims,
    /// The token that it signed it with.
    pub token: String,
    /// The first number; the last is the signed one.
    pub from: i64,
    /// Why, for people.
    pub reason: Name,
}

/// Moves a stream's mark past numbers that will never come, and records the gap. A repeat changes nothing.
///
/// # Errors
/// [`ServiceError::Faults`] for numbers that are not the signed ones; [`ServiceError::ForeignStream`].
pub async fn skip(
    platform: &Platform,
    agent: &AgentIdentity,
    skipped: Skipped,
) -> Result<Acknowledgement, ServiceError> {
    let Some(place) = skipped.claims.place.clone() else {
        return Err(ServiceError::Faults(vec![Fault::header("Authorization", "signs no stream")]));
    };
    let count = place.sequence.saturating_sub(skipped.from);
    if skipped.from < 1 || !(0..SKIP_MAX).contains(&count) {
        return Err(ServiceError::Faults(vec![Fault::body("/from", "is not a number up to the signed one")]));
    }
    let work = Arc::new((skipped, place, agent.clone(), platform.now(), platform.zone()));
    platform
        .write(move |scope, tx| {
            let work = Arc::clone(&work);
            unit(async move {
                let (skipped, place, agent, now, zone) = &*work;
                let (home, to) = (&agent.home, place.sequence);
                let answer = |outcome, mark| {
                    let stream = place.stream.to_string();
                    Acknowledgement { stream, sequence: to, outcome, mark, accepted_rows: 0, refused: vec![] }
                };
                let ids = BTreeSet::from([place.stream]);
                let source = agent.source.clone();
                let new = Stream {
                    id: place.stream,
                    scope: home.id,
                    source,
                    import_number: 0,
                    mark: 0,
                    rows_hash: None,
                };
                journal::open_streams(scope, tx, &[new], *now).await?;
                let stream = journal::lock_streams(scope, tx, &ids).await?.remove(&place.stream);
                let foreign = |what| ServiceError::ForeignStream { stream: place.stream.to_string(), what };
                let stream = stream.ok_or_else(|| foreign("sender"))?;
                if stream.scope != home.id || stream.source != agent.source {
                    return Err(foreign("sender"));
                }
                if to <= stream.mark {
                    return Ok(answer(Outcome::Duplicate, stream.mark));
                }
                let first = stream.mark.saturating_add(1);
                if skipped.from > first {
                    return Ok(answer(Outcome::Ahead, stream.mark));
                }
                let gap = NewGap {
                    scope: home.id,
                    stream: place.stream,
                    sequences: (first, to),
                    span: place.span,
                    reason: skipped.reason.to_string(),
                    signature: skipped.token.clone(),
                };
                journal::append_gap(scope, tx, &gap, *now).await?;
                let edge = place.span.end().min(*now);
                let advance = Advance { stream, mark: to, edge, offset_micros: None };
                journal::advance_streams(scope, tx, &[advance], *now).await?;
                let finding = Finding {
                    kind: FindingKind::UsageGap,
                    scope: home.id,
                    subject: format!("{}/{}/{first}", home.name.name, place.stream),
                    span: place.span,
                    detail: format!("batches {first} to {to} will not come: {}", skipped.reason),
                };
                findings::write(scope, tx, &[finding], *now).await?;
                // A span is what its sender says: of one without measure only what may still be open is derived anew.
                let known = Span::clamped(now.plus_micros(GAP_US_MAX.saturating_neg()), *now);
                let hours = hours_meeting(*zone, [place.span.clip(known)]);
                marks::mark_hours(scope, tx, home, MarkKind::Fold, &hours).await?;
                Ok(answer(Outcome::Accepted, to))
            })
        })
        .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_letters() {
        for (pattern, node) in [
            ("*", "n1"),
            ("n1", "n1"),
            ("gpu-*", "gpu-"),
            ("gpu-*-a", "gpu-1-a-a"),
            ("*a*b*", "xaybz"),
            ("a*", "a"),
        ] {
            assert!(fits(pattern, node), "{pattern} {node}");
        }
        for (pattern, node) in
            [("n1", "n12"), ("gpu-*", "gp"), ("gpu-*-a", "gpu-a"), ("*a*b", "ba"), ("a*a", "a")]
        {
            assert!(!fits(pattern, node), "{pattern} {node}");
        }
    }
}
