//! Imports: a scheduler's or hypervisor's history as a table, turned into signed batches.
//!
//! Rows are sorted and cut at billing hours and carry their whole span; a batch stays inside one billing day.
//! The stream of a scope is made from what it says, so the same rows in any order are the same stream, a
//! repeat changes nothing, and a broken import resumes.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::io::Read;
use std::sync::Arc;

use sha2::{Digest, Sha256};
use tokio::task::JoinSet;
use uuid::Uuid;

use super::accept::{Credential, SignedBatch, accept};
use super::ctx::Platform;
use super::error::ServiceError;
use super::inventory::{self, Inventory, InventoryOutcome};
use super::table::{BadLine, Table, TableRow};
use crate::domain::device::SharingMode;
use crate::domain::ids::{Name, ScopeId, ScopeKind, ScopeName};
use crate::domain::mapping::PLATFORM_NAME;
use crate::domain::period::{BillingZone, Day, Span};
use crate::domain::units::Instant;
use crate::domain::usage::{
    Batch, Coverage, CoverageOf, Evidence, EvidenceField, Row, Slice, SliceSize, Source, SourceRank,
};
use crate::store::journal::Stream;
use crate::store::{fleet, journal, unit};
use crate::wire::ack::{Outcome, Refusal};
use crate::wire::body::{self, ROWS_MAX};
use crate::wire::signature::{BatchClaims, BatchSigner, BatchVerifier};
use crate::wire::usage_v1;

/// The namespace of import streams, itself a UUIDv5 of the product's name.
const STREAMS: Uuid = Uuid::from_u128(0x7f3c_52f1_9a40_5d0a_9c5e_6a1d_0b7e_42c8);
/// Scopes whose batches are accepted at the same time; each scope's own go in order.
const SCOPES_AT_ONCE: usize = 16;

/// Where a device had its home, and when: against this, lines are checked.
type Homes = BTreeMap<Name, Vec<(Name, Span)>>;

const REQUIRED: [&str; 6] = ["workload", "node", "gpu_uuid", "mode", "start", "end"];
const OPTIONAL: [&str; 4] = ["tenant", "project", "profile", "share_ppm"];

/// A holding as a line states it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Holding {
    span: Span,
    slice: Slice,
    evidence: Evidence,
}

/// The holdings of a table by node: sorted, each once.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Holdings {
    by_node: BTreeMap<Name, BTreeSet<Holding>>,
    lines: u64,
    repeated: u64,
    bad: Vec<BadLine>,
}

/// What identifies a holding within its source: the key of amendments.
type HoldingKey = (Name, Name, Instant);

impl Holdings {
    fn read(input: impl Read, file: &str, homes: &Homes, now: Instant) -> Result<Self, ServiceError> {
        let mut holdings = Self::default();
        let mut seen: HashMap<HoldingKey, u64> = HashMap::new();
        Table::read(input, file, &REQUIRED, &OPTIONAL, |number, row| {
            holdings.lines += 1;
            let read = row.and_then(|row| read_holding(&row, homes, now));
            if let Err(reason) =
                read.and_then(|(node, holding)| holdings.add(number, node, holding, &mut seen))
            {
                holdings.bad.push(BadLine { file: file.to_owned(), line: number, reason });
            }
        })?;
        Ok(holdings)
    }

    fn add(
        &mut self,
        number: u64,
        node: Name,
        holding: Holding,
        seen: &mut HashMap<HoldingKey, u64>,
    ) -> Result<(), String> {
        let workload = holding.evidence.workload().cloned().ok_or("workload is empty")?;
        let key = (workload, holding.slice.device.clone(), holding.span.start());
        let of_node = self.by_node.entry(node).or_default();
        match seen.get(&key) {
            None => {
                seen.insert(key, number);
                of_node.insert(holding);
                Ok(())
            }
            Some(_) if of_node.contains(&holding) => {
                self.repeated += 1;
                Ok(())
            }
            Some(first) => Err(format!(
                "workload {} on {} from {} stands in line {first} with other values",
                key.0, key.1, key.2
            )),
        }
    }
}

fn read_holding(row: &TableRow<'_>, homes: &Homes, now: Instant) -> Result<(Name, Holding), String> {
    let workload = row.name("workload")?;
    let node = row.name("node")?;
    let device = row.name("gpu_uuid")?;
    let mode = row.name("mode")?;
    let mode = SharingMode::parse(mode.as_str()).map_err(|error| format!("mode {error}"))?;
    let size = read_size(row, mode)?;
    let start = row.instant("start")?;
    if start > now {
        return Err(format!("start {start} lies in the future"));
    }
    // What still runs is held until now, whatever else the import vouches for.
    let end = row.find_instant("end")?.unwrap_or(now);
    let span = Span::new(start, end).map_err(|_| format!("end {end} lies before start {start}"))?;
    if end > now {
        return Err(format!("end {end} lies in the future; leave it empty for what still runs"));
    }
    let home = homes.get(&device).ok_or_else(|| format!("gpu_uuid {device} is not in the inventory"))?;
    if !home.iter().any(|(name, _)| *name == node) {
        return Err(format!("gpu_uuid {device} never was in service on node {node}"));
    }
    if !span.is_empty() && !home.iter().any(|(name, service)| *name == node && service.meets(span)) {
        return Err(format!("gpu_uuid {device} was not in service on node {node} at any time of {span}"));
    }
    let mut evidence = vec![(EvidenceField::Workload, workload)];
    if let Some(tenant) = row.find_name("tenant")? {
        if tenant.as_str() == PLATFORM_NAME {
            return Err(format!("tenant `{PLATFORM_NAME}` is reserved"));
        }
        evidence.push((EvidenceField::Tenant, tenant));
        evidence.extend(row.find_name("project")?.map(|project| (EvidenceField::Project, project)));
    } else if row.find_name("project")?.is_some() {
        return Err("project is given without a tenant".to_owned());
    }
    let holding =
        Holding { span, slice: Slice { device, mode, size }, evidence: evidence.into_iter().collect() };
    Ok((node, holding))
}

fn read_size(row: &TableRow<'_>, mode: SharingMode) -> Result<SliceSize, String> {
    let (share, profile) = (row.find_number("share_ppm")?, row.find_name("profile")?);
    if mode.takes_whole_device() {
        return match (share, profile) {
            (None | Some(1_000_000), None) => Ok(SliceSize::Whole),
            (Some(share), _) => {
                Err(format!("share_ppm {share}: mode {} holds the whole device", mode.word()))
            }
            (None, Some(_)) => {
                Err(format!("profile is given, but mode {} holds the whole device", mode.word()))
            }
        };
    }
    match (share, profile) {
        (Some(_), Some(_)) => {
            Err("both share_ppm and profile are given; one of them says the size".to_owned())
        }
        (None, Some(profile)) => Ok(SliceSize::Profile(profile)),
        (Some(share), None) => match u32::try_from(share) {
            Ok(share @ 1..=1_000_000) => Ok(SliceSize::Declared(share)),
            Ok(_) | Err(_) => Err(format!("share_ppm {share} is not between 1 and 1000000")),
        },
        (None, None) => Err(format!("mode {} needs a share_ppm or a profile", mode.word())),
    }
}

/// What an import is asked to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportRequest {
    /// The source's name: its numbers, its amendments and its trust are its own.
    pub source: Name,
    /// For which span the source vouches that what it does not list was not held; none: for the devices'
    /// in-service time up to now.
    pub covers: Option<Span>,
}

/// How far an import is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    /// Batches to send.
    pub batches: u64,
    /// Batches answered.
    pub answered: u64,
}

/// What an import did.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ImportOutcome {
    /// Lines read, the header apart.
    pub lines: u64,
    /// Lines that repeat another to the letter.
    pub repeated: u64,
    /// Lines that were refused, of both files.
    pub bad: Vec<BadLine>,
    /// What the inventory changed.
    pub inventory: InventoryOutcome,
    /// Batches that were stored now.
    pub stored: u64,
    /// Batches that were stored before.
    pub duplicates: u64,
    /// Rows that acceptance refused, after the lines were found good.
    pub refused_rows: u64,
    /// The import's number within its source; none where everything had been said before.
    pub number: Option<i64>,
}

/// Imports an inventory and a table of intervals.
///
/// Bad lines are reported and the others go on. The tick is advanced, so that every in-service hour up to now
/// is asked for; deriving is the caller's or a worker's.
///
/// # Errors
/// [`ServiceError::File`] when a file as a whole cannot be taken; nothing is then changed by it.
pub async fn import_intervals(
    platform: &Platform,
    request: &ImportRequest,
    (inventory_name, inventory): (&str, impl Read),
    (intervals_name, intervals): (&str, impl Read),
    progress: Arc<dyn Fn(Progress) + Send + Sync>,
) -> Result<ImportOutcome, ServiceError> {
    let now = platform.now();
    let inventory = Inventory::read(inventory, inventory_name)?;
    let mut outcome = ImportOutcome { bad: inventory.bad, ..ImportOutcome::default() };
    // Both files are read before anything is changed: one that is no table at all changes nothing.
    let (_, mut known) = homes(platform).await?;
    for line in &inventory.lines {
        known.entry(line.device.uuid.clone()).or_default().push((line.node.clone(), line.in_service));
    }
    let mut holdings = Holdings::read(intervals, intervals_name, &known, now)?;
    outcome.inventory = inventory::apply(platform, inventory_name, inventory.lines).await?;
    let (nodes, homes) = homes(platform).await?;
    (outcome.lines, outcome.repeated) = (holdings.lines, holdings.repeated);
    outcome.bad.append(&mut holdings.bad);
    let mut plans = Vec::new();
    for (node, id) in nodes {
        let coverage = coverage_of(&node, &homes, request.covers, now);
        let holdings: Vec<Holding> = holdings.by_node.remove(&node).into_iter().flatten().collect();
        if holdings.is_empty() && coverage.is_empty() {
            continue;
        }
        let name = ScopeName { kind: ScopeKind::Node, name: node };
        plans.push(Plan::new(&request.source, id, name, holdings, coverage));
    }
    let latest;
    (outcome.number, latest) = open_streams(platform, &request.source, &mut plans).await?;
    let sent = send_all(platform, &request.source, plans, progress).await?;
    (outcome.stored, outcome.duplicates, outcome.refused_rows) =
        (sent.stored, sent.duplicates, sent.refused_rows);
    // An import that had broken off is finished under the number that it had.
    if let Some(number) = latest.filter(|_| sent.stored > 0 || outcome.number.is_some()) {
        let taken = outcome.lines.saturating_sub(count(&outcome.bad)).saturating_sub(sent.refused_rows);
        finish(platform, &request.source, number, (taken, count(&outcome.bad))).await?;
    }
    super::tick::advance(platform).await?;
    Ok(outcome)
}

fn count<T>(all: &[T]) -> u64 {
    u64::try_from(all.len()).unwrap_or(u64::MAX)
}

/// All nodes with their numbers, and all devices' homes.
async fn homes(platform: &Platform) -> Result<(BTreeMap<Name, ScopeId>, Homes), ServiceError> {
    let (scopes, devices, services) = platform
        .read(move |scope, tx| {
            unit(async move {
                let scopes = fleet::scopes(scope, tx).await?;
                let devices = fleet::devices(scope, tx).await?;
                Ok::<_, ServiceError>((scopes, devices, fleet::services(scope, tx).await?))
            })
        })
        .await?;
    let nodes: BTreeMap<ScopeId, Name> = scopes
        .iter()
        .filter(|each| each.name.kind == ScopeKind::Node)
        .map(|each| (each.id, each.name.name.clone()))
        .collect();
    let uuids: BTreeMap<i64, Name> = devices.into_iter().map(|(uuid, device)| (device.id, uuid)).collect();
    let mut homes = Homes::new();
    for service in services {
        if let (Some(uuid), Some(node)) = (uuids.get(&service.device), nodes.get(&service.scope)) {
            homes.entry(uuid.clone()).or_default().push((node.clone(), service.span));
        }
    }
    Ok((nodes.into_iter().map(|(id, name)| (name, id)).collect(), homes))
}

/// The spans for which the import vouches on a node: explicit, so that a repeat says the same.
fn coverage_of(node: &Name, homes: &Homes, covers: Option<Span>, now: Instant) -> Vec<Coverage> {
    // Nobody can vouch for what has not happened yet.
    let within = covers.unwrap_or(Span::ALWAYS).clip(Span::clamped(Instant::MIN, now));
    let mut coverage = Vec::new();
    for (device, services) in homes {
        let spans = services.iter().filter(|(home, _)| home == node).map(|(_, span)| span.clip(within));
        for span in crate::domain::usage::merged(spans) {
            coverage.push(Coverage { device: device.clone(), span, of: CoverageOf::Holding });
        }
    }
    coverage
}

/// What an import says of one scope.
struct Plan {
    scope: ScopeId,
    name: ScopeName,
    holdings: Vec<Holding>,
    coverage: Vec<Coverage>,
    stream: Uuid,
    rows_hash: Vec<u8>,
    /// The stream's mark before this import; what is at or below it was sent before.
    mark: i64,
}

impl Plan {
    fn new(
        source: &Name,
        scope: ScopeId,
        name: ScopeName,
        holdings: Vec<Holding>,
        coverage: Vec<Coverage>,
    ) -> Self {
        let (rows_hash, digest) = digests(&holdings, &coverage);
        let key = format!("{source}\0{}\0{}\0{}", name.kind.word(), name.name, body::hex(&digest));
        let stream = Uuid::new_v5(&STREAMS, key.as_bytes());
        Self { scope, name, holdings, coverage, stream, rows_hash: rows_hash.to_vec(), mark: 0 }
    }
}

/// SHA-256 of a scope's sorted, uncut rows, and of these and its coverage. Fields are ended by a zero byte, which no name holds.
fn digests(holdings: &[Holding], coverage: &[Coverage]) -> ([u8; 32], [u8; 32]) {
    // Numbers and words only, never a form made for people: stream ids depend on these bytes for ever.
    let edges = |span: Span| format!("{}/{}", span.start().micros(), span.end().micros());
    let put = |hash: &mut Sha256, text: &str| {
        hash.update(text.as_bytes());
        hash.update([0]);
    };
    let mut hash = Sha256::new();
    for holding in holdings {
        put(&mut hash, "row");
        put(&mut hash, &edges(holding.span));
        put(&mut hash, holding.slice.device.as_str());
        put(&mut hash, holding.slice.mode.word());
        match &holding.slice.size {
            SliceSize::Whole => put(&mut hash, "whole"),
            SliceSize::Declared(ppm) => put(&mut hash, &ppm.to_string()),
            SliceSize::Profile(profile) => put(&mut hash, &format!("profile {profile}")),
        }
        holding.evidence.iter().for_each(|(field, value)| {
            put(&mut hash, field.word());
            put(&mut hash, value.as_str());
        });
    }
    let rows = hash.clone().finalize().into();
    for each in coverage {
        put(&mut hash, "coverage");
        put(&mut hash, each.device.as_str());
        put(&mut hash, &edges(each.span));
        put(&mut hash, each.of.word());
    }
    (rows, hash.finalize().into())
}

/// Opens the streams that are not there, under one new number of the source; reads the marks of the others.
/// Returns the new number, and the latest of all.
async fn open_streams(
    platform: &Platform,
    source: &Name,
    plans: &mut [Plan],
) -> Result<(Option<i64>, Option<i64>), ServiceError> {
    let now = platform.now();
    let wanted: Vec<(Uuid, ScopeId, Vec<u8>)> =
        plans.iter().map(|plan| (plan.stream, plan.scope, plan.rows_hash.clone())).collect();
    let work = Arc::new((wanted, source.clone(), platform.actor.clone()));
    let (number, latest, marks) = platform
        .write(move |scope, tx| {
            let work = Arc::clone(&work);
            unit(async move {
                let (wanted, source, actor) = &*work;
                let (mut number, mut latest, mut marks) = (None, None, Vec::with_capacity(wanted.len()));
                for (id, home, rows_hash) in wanted {
                    if let Some(stream) = journal::find_stream(scope, tx, *id).await? {
                        latest = latest.max(Some(stream.import_number));
                        marks.push(stream.mark);
                        continue;
                    }
                    let sender = Source { rank: SourceRank::Import, sender: source.clone() };
                    // The same rows with more coverage are no amendment: they keep the number that they had,
                    // so that bringing an old file again does not undo what was amended since.
                    let there = journal::streams(scope, tx, *home).await?;
                    let same =
                        |each: &&Stream| each.source == sender && each.rows_hash.as_ref() == Some(rows_hash);
                    let import_number = match (there.iter().find(same), number) {
                        (Some(same), _) => same.import_number,
                        (None, Some(number)) => number,
                        (None, None) => {
                            let next = journal::begin_import(scope, tx, source, actor, now).await?;
                            number = Some(next);
                            next
                        }
                    };
                    let rows_hash = Some(rows_hash.clone());
                    let stream =
                        Stream { id: *id, scope: *home, source: sender, import_number, mark: 0, rows_hash };
                    journal::open_stream(scope, tx, &stream, now).await?;
                    latest = latest.max(Some(import_number));
                    marks.push(0);
                }
                Ok::<_, ServiceError>((number, latest, marks))
            })
        })
        .await?;
    for (plan, mark) in plans.iter_mut().zip(marks) {
        plan.mark = mark;
    }
    Ok((number, latest))
}

async fn finish(
    platform: &Platform,
    source: &Name,
    number: i64,
    (taken, refused): (u64, u64),
) -> Result<(), ServiceError> {
    let stored = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    let (source, now) = (source.clone(), platform.now());
    platform
        .write(move |scope, tx| {
            let source = source.clone();
            unit(async move {
                let rows = (stored(taken), stored(refused));
                Ok(journal::finish_import(scope, tx, &source, number, rows, now).await?)
            })
        })
        .await
}

/// Sends what the plans say: scopes side by side, each scope's batches in order.
async fn send_all(
    platform: &Platform,
    source: &Name,
    plans: Vec<Plan>,
    progress: Arc<dyn Fn(Progress) + Send + Sync>,
) -> Result<ImportOutcome, ServiceError> {
    let credential = Arc::new(Credential {
        key: BatchVerifier::new(&platform.installation.public_key)?,
        source: Source { rank: SourceRank::Import, sender: source.clone() },
    });
    let total: u64 = plans.iter().map(|plan| count_batches(plan, platform.zone())).sum();
    let (mut running, mut waiting) = (JoinSet::new(), plans.into_iter());
    let (mut outcome, mut answered) = (ImportOutcome::default(), 0);
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    loop {
        while running.len() < SCOPES_AT_ONCE {
            let Some(plan) = waiting.next() else { break };
            running.spawn(send_plan(platform.clone(), Arc::clone(&credential), plan, tell.clone()));
        }
        tokio::select! {
            Some(()) = told.recv() => {
                answered += 1;
                progress(Progress { batches: total, answered });
            }
            done = running.join_next() => match done {
                None => break,
                Some(sent) => {
                    let sent = sent.map_err(|_| ServiceError::Store(crate::store::StoreError::Abandoned))??;
                    outcome.stored += sent.stored;
                    outcome.duplicates += sent.duplicates;
                    outcome.refused_rows += sent.refused_rows;
                }
            },
        }
    }
    progress(Progress { batches: total, answered: total });
    Ok(outcome)
}

async fn send_plan(
    platform: Platform,
    credential: Arc<Credential>,
    plan: Plan,
    tell: tokio::sync::mpsc::UnboundedSender<()>,
) -> Result<ImportOutcome, ServiceError> {
    let signer = platform.signer();
    let mut outcome = ImportOutcome::default();
    let (name, stream, mark) = (plan.name.clone(), plan.stream, plan.mark);
    // What an earlier run could not store is said again, and not hidden behind its number.
    for trouble in troubles(&platform, plan.scope, stream).await? {
        if let Some(reason) = trouble.set_aside {
            return Err(set_aside(&name, trouble.sequence, &reason));
        }
        outcome.refused_rows += trouble.refused;
    }
    for (sequence, (span, batch)) in
        (1_i64..).zip(Batches::new(&plan.holdings, &plan.coverage, platform.zone()))
    {
        if sequence <= mark {
            outcome.duplicates += 1;
        } else {
            let actor = &platform.actor;
            let signed = sign(&signer, actor, &credential.source, &name, stream, sequence, span, &batch)?;
            let answer = accept(&platform, &credential, signed).await?;
            match answer.outcome {
                Outcome::Accepted => outcome.stored += 1,
                // Another process sends the same import at this moment.
                Outcome::Duplicate | Outcome::DuplicateUnverified => outcome.duplicates += 1,
                Outcome::SetAside => {
                    let reason = answer.refused.first().map(|each| each.reason.clone()).unwrap_or_default();
                    return Err(set_aside(&name, sequence, &reason));
                }
                Outcome::Ahead => {
                    let file = format!("batch {sequence} of {}", name.name);
                    let reason = format!("was not taken: the batch after number {} is missing", answer.mark);
                    return Err(ServiceError::File { file, reason });
                }
            }
            outcome.refused_rows += count(&answer.refused);
        }
        let _nobody_listens = tell.send(());
    }
    Ok(outcome)
}

fn set_aside(name: &ScopeName, sequence: i64, reason: &str) -> ServiceError {
    let file = format!("batch {sequence} of {}", name.name);
    ServiceError::File { file, reason: format!("was stored but cannot be read: {reason}") }
}

/// Batches of a stream with something in them that was not taken.
async fn troubles(platform: &Platform, scope: ScopeId, stream: Uuid) -> Result<Vec<Trouble>, ServiceError> {
    let stored = platform
        .read(move |platform, tx| {
            unit(async move { Ok(journal::troubles(platform, tx, scope, stream).await?) })
        })
        .await?;
    let refused =
        |text: &str| serde_json::from_str::<Vec<Refusal>>(text).map_or(1, |refused| count(&refused));
    Ok(stored
        .into_iter()
        .map(|(sequence, set_aside, list)| Trouble {
            sequence,
            set_aside,
            refused: list.as_deref().map_or(0, refused),
        })
        .collect())
}

/// What was not taken of a stored batch.
struct Trouble {
    sequence: i64,
    set_aside: Option<String>,
    refused: u64,
}

#[expect(clippy::too_many_arguments, reason = "the claims of a signature, each of its own type")]
fn sign(
    signer: &BatchSigner,
    actor: &str,
    source: &Source,
    name: &ScopeName,
    stream: Uuid,
    sequence: i64,
    span: Span,
    batch: &Batch,
) -> Result<SignedBatch, ServiceError> {
    let message = usage_v1::encode(name, source, batch).map_err(ServiceError::Encode)?;
    let body = body::pack(&message)?;
    let claims = BatchClaims {
        body_hash: body::hash(&body),
        issuer: "installation".to_owned(),
        subject: Some(actor.to_owned()),
        scope: name.clone(),
        stream,
        sequence,
        span,
    };
    Ok(SignedBatch { signature: signer.sign(&claims)?, body })
}

fn count_batches(plan: &Plan, zone: BillingZone) -> u64 {
    let days: BTreeSet<Day> = plan
        .coverage
        .iter()
        .map(|each| each.span)
        .chain(plan.holdings.iter().map(|holding| holding.span))
        .flat_map(|span| zone.days_meeting(span))
        .collect();
    count(&days.into_iter().collect::<Vec<_>>())
}

/// The batches of one scope: for each billing day one, or several where a day has many rows.
struct Batches<'a> {
    zone: BillingZone,
    holdings: &'a [Holding],
    coverage: &'a [Coverage],
    /// The first holding, by start, that has not begun before the day at hand.
    next: usize,
    active: Vec<&'a Holding>,
    day: Option<Day>,
    ready: VecDeque<(Span, Batch)>,
}

impl<'a> Batches<'a> {
    /// `holdings` are sorted by start.
    fn new(holdings: &'a [Holding], coverage: &'a [Coverage], zone: BillingZone) -> Self {
        let first = holdings.first().map(|holding| holding.span.start());
        let first = first.into_iter().chain(coverage.iter().map(|each| each.span.start())).min();
        let day = first.map(|first| zone.day_of(first));
        Self { zone, holdings, coverage, next: 0, active: Vec::new(), day, ready: VecDeque::new() }
    }

    /// Whether anything is left from this day on.
    fn is_exhausted(&self, day: Span) -> bool {
        self.next >= self.holdings.len()
            && self.active.is_empty()
            && self.coverage.iter().all(|each| each.span.end() <= day.start())
    }

    fn fill(&mut self, day: Day) {
        let span = self.zone.day_span(day);
        while let Some(holding) = self.holdings.get(self.next).filter(|each| each.span.start() < span.end()) {
            self.active.push(holding);
            self.next += 1;
        }
        let mut pieces: Vec<(Span, &Holding)> = Vec::new();
        for holding in &self.active {
            if holding.span.is_empty() {
                pieces.push((holding.span, holding));
            }
            for hour in self.zone.hours_of(day).filter(|hour| hour.meets(holding.span)) {
                pieces.push((holding.span.clip(hour), holding));
            }
        }
        pieces.sort_unstable();
        self.active.retain(|holding| holding.span.end() > span.end());
        let coverage = self.coverage.iter().filter(|each| each.span.meets(span));
        let mut coverage: Vec<Coverage> =
            coverage.map(|each| Coverage { span: each.span.clip(span), ..each.clone() }).collect();
        let mut rest = pieces.as_slice();
        loop {
            let (chunk, after) = rest.split_at(chunk_length(rest));
            if !chunk.is_empty() || !coverage.is_empty() {
                self.ready.push_back((span, tabulate(chunk, std::mem::take(&mut coverage))));
            }
            rest = after;
            if rest.is_empty() {
                break;
            }
        }
    }
}

impl Iterator for Batches<'_> {
    type Item = (Span, Batch);

    fn next(&mut self) -> Option<Self::Item> {
        while self.ready.is_empty() {
            let day = self.day?;
            if self.is_exhausted(self.zone.day_span(day)) {
                return None;
            }
            self.fill(day);
            self.day = Some(day.next());
        }
        self.ready.pop_front()
    }
}

/// How many pieces fit into one batch, whatever their names are and however badly they compress.
fn chunk_length(pieces: &[(Span, &Holding)]) -> usize {
    /// A row's numbers, and the punctuation of its table entries.
    const ROW_BYTES: usize = 160;
    /// Below what a body may have when nothing in it compresses.
    const CHUNK_BYTES: usize = body::PACKED_BYTES_MAX - (64 << 10);
    let mut bytes = 0;
    let bytes_of = |holding: &Holding| {
        // Escapes at worst double a name.
        let names: usize = holding.evidence.iter().map(|(_, value)| value.as_str().len() * 2 + 16).sum();
        ROW_BYTES + names + holding.slice.device.as_str().len()
    };
    let fits = |(_, holding): &&(Span, &Holding)| {
        bytes += bytes_of(holding);
        bytes <= CHUNK_BYTES
    };
    // A single one always fits: names are at most 256 bytes.
    pieces.iter().take(ROWS_MAX).take_while(fits).count().max(usize::from(!pieces.is_empty()))
}

/// Rows with their tables, in the order given.
fn tabulate(pieces: &[(Span, &Holding)], coverage: Vec<Coverage>) -> Batch {
    let slices: BTreeSet<&Slice> = pieces.iter().map(|(_, holding)| &holding.slice).collect();
    let evidence: BTreeSet<&Evidence> = pieces.iter().map(|(_, holding)| &holding.evidence).collect();
    let (slices, evidence): (Vec<&Slice>, Vec<&Evidence>) =
        (slices.into_iter().collect(), evidence.into_iter().collect());
    let rows = pieces
        .iter()
        .map(|(span, holding)| Row {
            slice: slices.binary_search(&&holding.slice).unwrap_or_default(),
            evidence: evidence.binary_search(&&holding.evidence).unwrap_or_default(),
            span: *span,
            uncut: holding.span,
        })
        .collect();
    Batch {
        slices: slices.into_iter().cloned().collect(),
        evidence: evidence.into_iter().cloned().collect(),
        rows,
        coverage,
    }
}
