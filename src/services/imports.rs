//! Imports: a scheduler's or hypervisor's history as a table, turned into signed batches.
//!
//! Rows are sorted and cut at billing hours and carry their whole span; a batch stays inside one billing day.
//! The stream of a scope is made from what it says, so the same rows in any order are the same stream, a
//! repeat changes nothing, and a broken import resumes.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::Read;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::task::JoinSet;
use uuid::Uuid;

use super::accept::{Credential, SignedBatch, accept};
use super::ctx::Platform;
use super::error::ServiceError;
use super::holdings::{Existing, Fleet, Holding, Holdings, Home, Slices, Used};
use super::inventory::{self, Inventory, InventoryOutcome};
use super::table::BadLine;
use crate::domain::ids::{Name, ScopeId, ScopeKind, ScopeName};
use crate::domain::period::{BillingZone, Day, Span};
use crate::domain::units::Instant;
use crate::domain::usage::{
    Batch, Coverage, CoverageOf, Evidence, LayoutRow, Row, Slice, SliceSize, Source, SourceRank, UseRow,
    cut_integral,
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

/// What an import is asked to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportRequest {
    /// The source's name: its numbers, its amendments and its trust are its own. Its rank says how far it is
    /// trusted beside others: a hypervisor's history more than a scheduler's.
    pub source: Source,
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
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
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

/// The tables of an import, each with its name.
#[derive(Debug)]
pub struct Tables<I, S, H> {
    /// The devices.
    pub inventory: (String, I),
    /// Which slices existed when; none: slices exist while they are held.
    pub slices: Option<(String, S)>,
    /// Who held what.
    pub intervals: (String, H),
}

/// Imports an inventory, a table of intervals, and the slices that existed.
///
/// Bad lines are reported and the others go on. The tick is advanced, so that every in-service hour up to now
/// is asked for; deriving is the caller's or a worker's.
///
/// # Errors
/// [`ServiceError::File`] when a file as a whole cannot be taken; nothing is then changed by it.
pub async fn import_intervals(
    platform: &Platform,
    request: &ImportRequest,
    tables: Tables<impl Read, impl Read, impl Read>,
    progress: Arc<dyn Fn(Progress) + Send + Sync>,
) -> Result<ImportOutcome, ServiceError> {
    let now = platform.now();
    let (inventory_name, inventory) = tables.inventory;
    let inventory = Inventory::read(inventory, &inventory_name)?;
    let mut outcome = ImportOutcome { bad: inventory.bad, ..ImportOutcome::default() };
    // All files are read before anything is changed: one that is no table at all changes nothing.
    let (_, mut known) = fleet_of(platform).await?;
    for line in &inventory.lines {
        let home =
            Home { node: line.node.clone(), service: line.in_service, pool: line.pool.name().cloned() };
        known.add(&line.device.uuid, &line.device.model, home);
    }
    let catalogue = platform
        .read(move |scope, tx| unit(async move { super::catalogue::current(scope, tx).await }))
        .await?;
    let mut slices = match tables.slices {
        Some((name, input)) => Slices::read(input, &name, &known, &catalogue, now)?,
        None => Slices::default(),
    };
    let (intervals_name, intervals) = tables.intervals;
    let mut holdings = Holdings::read(intervals, &intervals_name, &known, &slices, &catalogue, now)?;
    outcome.inventory = inventory::apply(platform, &inventory_name, inventory.lines).await?;
    let (scopes, fleet) = fleet_of(platform).await?;
    outcome.lines = holdings.lines + slices.lines;
    outcome.repeated = holdings.repeated + slices.repeated;
    outcome.bad.append(&mut slices.bad);
    outcome.bad.append(&mut holdings.bad);
    let mut existing = slices.by_node();
    let mut plans = Vec::new();
    // Nobody can vouch for what has not happened yet.
    let within = request.covers.unwrap_or(Span::ALWAYS).clip(Span::clamped(Instant::MIN, now));
    for (name, id) in scopes {
        let existing = match name.kind {
            ScopeKind::Node => existing.remove(&name.name).unwrap_or_default(),
            ScopeKind::Pool => Vec::new(),
        };
        let holdings_of = holdings.by_scope.remove(&name).into_iter().flatten().collect();
        let mut said = Said { holdings: holdings_of, existing, coverage: Vec::new() };
        said.coverage = match name.kind {
            ScopeKind::Node => coverage_of(&name.name, &fleet, &said, within),
            // A table without that column does not know of pools.
            ScopeKind::Pool if holdings.knows_pools => pool_coverage_of(&name.name, &fleet, within),
            ScopeKind::Pool => Vec::new(),
        };
        if !said.is_empty() {
            plans.push(Plan::new(&request.source, id, name, said));
        }
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

/// All nodes and pools with their numbers, and all devices with their homes.
async fn fleet_of(platform: &Platform) -> Result<(BTreeMap<ScopeName, ScopeId>, Fleet), ServiceError> {
    let (scopes, devices, services) = platform
        .read(move |scope, tx| {
            unit(async move {
                let scopes = fleet::scopes(scope, tx).await?;
                let devices = fleet::devices(scope, tx).await?;
                Ok::<_, ServiceError>((scopes, devices, fleet::services(scope, tx).await?))
            })
        })
        .await?;
    let names: BTreeMap<ScopeId, Name> =
        scopes.iter().map(|each| (each.id, each.name.name.clone())).collect();
    let by_number: BTreeMap<i64, (Name, Name)> =
        devices.into_iter().map(|(uuid, device)| (device.id, (uuid, device.device.model))).collect();
    let mut fleet = Fleet::default();
    for service in services {
        if let (Some((uuid, model)), Some(node)) = (by_number.get(&service.device), names.get(&service.scope))
        {
            let pool = service.pool.and_then(|pool| names.get(&pool)).cloned();
            fleet.add(uuid, model, Home { node: node.clone(), service: service.span, pool });
        }
    }
    Ok((scopes.into_iter().map(|each| (each.name, each.id)).collect(), fleet))
}

/// The spans for which the import vouches on a node: explicit, so that a repeat says the same. For a device while it
/// is in a pool only where the import has a line of it: to say that nobody held it would take it out of its pool.
fn coverage_of(node: &Name, fleet: &Fleet, said: &Said, within: Span) -> Vec<Coverage> {
    let held = said.holdings.iter().map(|holding| &holding.slice.device);
    let named: BTreeSet<&Name> = held.chain(said.existing.iter().map(|each| &each.slice.device)).collect();
    let mut coverage = Vec::new();
    for (device, homes) in &fleet.homes {
        let vouches = |home: &&Home| home.node == *node && (home.pool.is_none() || named.contains(device));
        let spans = homes.iter().filter(vouches).map(|home| home.service.clip(within));
        for span in crate::domain::usage::merged(spans) {
            coverage.push(Coverage { device: device.clone(), span, of: CoverageOf::Holding });
        }
    }
    coverage
}

/// The spans for which the import vouches of a pool: while any device belonged to it.
fn pool_coverage_of(pool: &Name, fleet: &Fleet, within: Span) -> Vec<Coverage> {
    let spans = fleet.pools.get(pool).into_iter().flatten().map(|span| span.clip(within));
    let spans = crate::domain::usage::merged(spans).into_iter();
    spans.map(|span| Coverage { device: pool.clone(), span, of: CoverageOf::Holding }).collect()
}

/// What an import says of one scope: each sorted.
#[derive(Debug, Clone, Default)]
struct Said {
    holdings: Vec<Holding>,
    existing: Vec<Existing>,
    coverage: Vec<Coverage>,
}

impl Said {
    const fn is_empty(&self) -> bool {
        self.holdings.is_empty() && self.existing.is_empty() && self.coverage.is_empty()
    }

    /// All spans of which something is said.
    fn spans(&self) -> impl Iterator<Item = Span> {
        let holdings = self.holdings.iter().map(|holding| holding.span);
        let existing = self.existing.iter().map(|existing| existing.span);
        holdings.chain(existing).chain(self.coverage.iter().map(|each| each.span))
    }
}

/// What an import says of one scope, on its way.
struct Plan {
    scope: ScopeId,
    name: ScopeName,
    said: Said,
    stream: Uuid,
    rows_hash: Vec<u8>,
    /// The stream's mark before this import; what is at or below it was sent before.
    mark: i64,
}

impl Plan {
    fn new(source: &Source, scope: ScopeId, name: ScopeName, said: Said) -> Self {
        let (rows_hash, digest) = digests(&said);
        let mut key =
            format!("{}\0{}\0{}\0{}", source.sender, name.kind.word(), name.name, body::hex(&digest));
        // The rank of imports leaves no trace: streams keep the ids that they had before there were others.
        if source.rank != SourceRank::Import {
            key.push_str(&format!("\0{}", source.rank.word()));
        }
        let stream = Uuid::new_v5(&STREAMS, key.as_bytes());
        Self { scope, name, said, stream, rows_hash: rows_hash.to_vec(), mark: 0 }
    }
}

/// SHA-256 of a scope's sorted, uncut rows, and of these and its coverage. Fields are ended by a zero byte, which no
/// name holds. What a row does not have leaves no trace, so that rows keep the bytes that they had before the field
/// was there.
fn digests(said: &Said) -> ([u8; 32], [u8; 32]) {
    // Numbers and words only, never a form made for people: stream ids depend on these bytes for ever.
    let edges = |span: Span| format!("{}/{}", span.start().micros(), span.end().micros());
    let put = |hash: &mut Sha256, text: &str| {
        hash.update(text.as_bytes());
        hash.update([0]);
    };
    let put_slice = |hash: &mut Sha256, slice: &Slice| {
        put(hash, slice.device.as_str());
        put(hash, slice.mode.word());
        match &slice.size {
            SliceSize::Whole => put(hash, "whole"),
            SliceSize::Declared(ppm) => put(hash, &ppm.to_string()),
            SliceSize::Profile(profile) => put(hash, &format!("profile {profile}")),
            SliceSize::OneOf(count) => put(hash, &format!("one of {count}")),
            SliceSize::Even => put(hash, "even"),
            SliceSize::Devices(count) => put(hash, &format!("devices {count}")),
            SliceSize::Threads { percent, memory_mib } => {
                put(hash, &format!("threads {percent}"));
                memory_mib.iter().for_each(|mib| put(hash, &format!("memory {mib}")));
            }
        }
        slice.id.iter().for_each(|id| put(hash, &format!("slice {id}")));
        slice.parent.iter().for_each(|parent| put(hash, &format!("parent {parent}")));
        slice.start.iter().for_each(|start| put(hash, &format!("start {start}")));
        slice.scheduler.iter().for_each(|each| put(hash, &format!("scheduler {}", each.word())));
        if slice.is_powered_off {
            put(hash, "powered off");
        }
    };
    let mut hash = Sha256::new();
    for holding in &said.holdings {
        put(&mut hash, "row");
        put(&mut hash, &edges(holding.span));
        put_slice(&mut hash, &holding.slice);
        holding.evidence.iter().for_each(|(field, value)| {
            put(&mut hash, field.word());
            put(&mut hash, value.as_str());
        });
        let used = holding.used;
        used.active_nanos.iter().for_each(|nanos| put(&mut hash, &format!("active {nanos}")));
        used.memory_byte_seconds.iter().for_each(|held| put(&mut hash, &format!("held {held}")));
    }
    for existing in &said.existing {
        put(&mut hash, "exists");
        put(&mut hash, &edges(existing.span));
        put_slice(&mut hash, &existing.slice);
    }
    let rows = hash.clone().finalize().into();
    for each in &said.coverage {
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
    source: &Source,
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
                    let sender = source.clone();
                    // The same rows with more coverage are no amendment: they keep the number that they had,
                    // so that bringing an old file again does not undo what was amended since.
                    let there = journal::streams(scope, tx, *home).await?;
                    let same =
                        |each: &&Stream| each.source == sender && each.rows_hash.as_ref() == Some(rows_hash);
                    let import_number = match (there.iter().find(same), number) {
                        (Some(same), _) => same.import_number,
                        (None, Some(number)) => number,
                        (None, None) => {
                            let next = journal::begin_import(scope, tx, &source.sender, actor, now).await?;
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
    source: &Source,
    number: i64,
    (taken, refused): (u64, u64),
) -> Result<(), ServiceError> {
    let stored = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    let (source, now) = (source.sender.clone(), platform.now());
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
    source: &Source,
    plans: Vec<Plan>,
    progress: Arc<dyn Fn(Progress) + Send + Sync>,
) -> Result<ImportOutcome, ServiceError> {
    let credential = Arc::new(Credential {
        key: BatchVerifier::new(&platform.installation.public_key)?,
        source: source.clone(),
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
    for (sequence, (span, batch)) in (1_i64..).zip(Batches::new(&plan.said, platform.zone())) {
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
    let days: BTreeSet<Day> = plan.said.spans().flat_map(|span| zone.days_meeting(span)).collect();
    count(&days.into_iter().collect::<Vec<_>>())
}

/// A piece of what is said, inside one billing hour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Piece<'a> {
    Held(&'a Holding),
    Exists(&'a Existing),
}

impl<'a> Piece<'a> {
    const fn span(self) -> Span {
        match self {
            Self::Held(holding) => holding.span,
            Self::Exists(existing) => existing.span,
        }
    }

    const fn slice(self) -> &'a Slice {
        match self {
            Self::Held(holding) => &holding.slice,
            Self::Exists(existing) => &existing.slice,
        }
    }
}

/// The batches of one scope: for each billing day one, or several where a day has many rows.
struct Batches<'a> {
    zone: BillingZone,
    /// By start.
    pieces: Vec<Piece<'a>>,
    coverage: &'a [Coverage],
    /// The first piece that has not begun before the day at hand.
    next: usize,
    active: Vec<Piece<'a>>,
    day: Option<Day>,
    ready: VecDeque<(Span, Batch)>,
}

impl<'a> Batches<'a> {
    fn new(said: &'a Said, zone: BillingZone) -> Self {
        let held = said.holdings.iter().map(Piece::Held);
        let mut pieces: Vec<Piece<'a>> = held.chain(said.existing.iter().map(Piece::Exists)).collect();
        pieces.sort_by_key(|piece| piece.span().start());
        let day = said.spans().map(Span::start).min().map(|first| zone.day_of(first));
        let (active, ready) = (Vec::new(), VecDeque::new());
        Self { zone, pieces, coverage: &said.coverage, next: 0, active, day, ready }
    }

    /// Whether anything is left from this day on.
    fn is_exhausted(&self, day: Span) -> bool {
        self.next >= self.pieces.len()
            && self.active.is_empty()
            && self.coverage.iter().all(|each| each.span.end() <= day.start())
    }

    fn fill(&mut self, day: Day) {
        let span = self.zone.day_span(day);
        while let Some(piece) = self.pieces.get(self.next).filter(|each| each.span().start() < span.end()) {
            self.active.push(*piece);
            self.next += 1;
        }
        let mut pieces: Vec<(Span, Piece<'_>)> = Vec::new();
        for piece in &self.active {
            let whole = piece.span();
            if whole.is_empty() {
                pieces.push((whole, *piece));
            }
            for hour in self.zone.hours_of(day).filter(|hour| hour.meets(whole)) {
                pieces.push((whole.clip(hour), *piece));
            }
        }
        pieces.sort_unstable();
        self.active.retain(|piece| piece.span().end() > span.end());
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
fn chunk_length(pieces: &[(Span, Piece<'_>)]) -> usize {
    /// A row's numbers, and the punctuation of its table entries. These and the names of a plain holding decide where
    /// batches end, so they stay as they are: a repeat must cut alike.
    const ROW_BYTES: usize = 160;
    /// What else a row may have beside its names.
    const MORE_BYTES: usize = 200;
    /// Below what a body may have when nothing in it compresses.
    const CHUNK_BYTES: usize = body::PACKED_BYTES_MAX - (64 << 10);
    let mut bytes = 0;
    // Escapes at worst double a name.
    let doubled = |name: &Name| name.as_str().len() * 2 + 16;
    let bytes_of = |piece: Piece<'_>| {
        let slice = piece.slice();
        let profile = match &slice.size {
            SliceSize::Profile(profile) => Some(profile),
            SliceSize::Whole
            | SliceSize::Declared(_)
            | SliceSize::OneOf(_)
            | SliceSize::Even
            | SliceSize::Devices(_)
            | SliceSize::Threads { .. } => None,
        };
        let (seen, is_plain): (usize, bool) = match piece {
            Piece::Held(holding) => (
                holding.evidence.iter().map(|(_, value)| doubled(value)).sum(),
                *slice == Slice::plain(slice.device.clone(), slice.mode, slice.size.clone())
                    && holding.used == Used::default(),
            ),
            Piece::Exists(_) => (0, false),
        };
        let of_slice = [slice.id.as_ref(), slice.parent.as_ref(), profile];
        let more: usize = of_slice.into_iter().flatten().map(doubled).sum();
        let more = if is_plain { 0 } else { MORE_BYTES + more };
        ROW_BYTES + more + seen + slice.device.as_str().len()
    };
    let fits = |(_, piece): &&(Span, Piece<'_>)| {
        bytes += bytes_of(*piece);
        bytes <= CHUNK_BYTES
    };
    // A single one always fits: names are at most 256 bytes.
    pieces.iter().take(ROWS_MAX).take_while(fits).count().max(usize::from(!pieces.is_empty()))
}

/// Rows with their tables, in the order given.
fn tabulate(pieces: &[(Span, Piece<'_>)], coverage: Vec<Coverage>) -> Batch {
    let slices: BTreeSet<&Slice> = pieces.iter().map(|(_, piece)| piece.slice()).collect();
    let evidence: BTreeSet<&Evidence> = pieces
        .iter()
        .filter_map(|(_, piece)| match piece {
            Piece::Held(holding) => Some(&holding.evidence),
            Piece::Exists(_) => None,
        })
        .collect();
    let (slices, evidence): (Vec<&Slice>, Vec<&Evidence>) =
        (slices.into_iter().collect(), evidence.into_iter().collect());
    let mut batch = Batch { coverage, ..Batch::default() };
    for (span, piece) in pieces {
        let (span, uncut) = (*span, piece.span());
        let slice = slices.binary_search(&piece.slice()).unwrap_or_default();
        match piece {
            Piece::Exists(_) => batch.layout.push(LayoutRow { slice, span, uncut }),
            Piece::Held(holding) => {
                let evidence = evidence.binary_search(&&holding.evidence).unwrap_or_default();
                batch.rows.push(Row { slice, evidence, span, uncut });
                let used = holding.used;
                if used.active_nanos.is_some() || used.memory_byte_seconds.is_some() {
                    let cut = |integral: Option<i64>| integral.map(|all| cut_integral(all, uncut, span));
                    batch.usage.push(UseRow {
                        slice,
                        evidence: Some(evidence),
                        span,
                        uncut_start: uncut.start(),
                        active_nanos: cut(used.active_nanos),
                        memory_byte_seconds: cut(used.memory_byte_seconds),
                    });
                }
            }
        }
    }
    batch.slices = slices.into_iter().cloned().collect();
    batch.evidence = evidence.into_iter().cloned().collect();
    batch
}
