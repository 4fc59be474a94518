//! Accepting a signed batch: it takes its number, is stored as it was signed, and marks what it changes.
//!
//! Batches that arrive together are taken together: what a transaction costs is shared by them.
//!
//! Always true here: one transaction holds the batch, its stream's mark, its dirty marks and its findings; a
//! body with a valid signature and size takes its number whatever is inside; an acknowledgement is given
//! after the commit.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use uuid::Uuid;

use super::ctx::{Platform, check_zone};
use super::error::ServiceError;
use crate::domain::ids::{Name, ScopeId, ScopeKind, ScopeName};
use crate::domain::mapping::{MappingRules, PLATFORM_NAME};
use crate::domain::period::{BillingZone, Day, Span};
use crate::domain::segment::HOLDERS_MAX;
use crate::domain::units::{Instant, MICROS_PER_HOUR, MICROS_PER_SECOND};
use crate::domain::usage::{
    Batch, Evidence, EvidenceField, LayoutRow, Row, Slice, SliceSize, Source, SourceRank, holding_edges,
};
use crate::store::audit::Entry;
use crate::store::findings::{Finding, FindingKind};
use crate::store::fleet::StoredScope;
use crate::store::journal::{Advance, Kept, NewBatch, StoredBatch, Stream};
use crate::store::marks::MarkKind;
use crate::store::tenants::Origin;
use crate::store::{
    PlatformScope, StoreError, WriteTx, audit, findings, fleet, installation, journal, marks, tenants, unit,
};
use crate::wire::ack::{Acknowledgement, Outcome, Refusal};
use crate::wire::body::{self, BodyError};
use crate::wire::signature::{BatchClaims, BatchVerifier};
use crate::wire::usage_v1::{self, DecodeError, Decoded};

/// How far a batch may end after it was received, in microseconds. A service whose clock was set back has agents that
/// followed it, and what they say is true; a year is none of that.
const AHEAD_US_MAX: i64 = MICROS_PER_HOUR;
/// By how much a sender's wall clock may be off before somebody is told.
const SKEW_US_TOLD: i64 = 120 * MICROS_PER_SECOND;

/// A batch as it arrives: the signature, and the bytes that it signs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignedBatch {
    /// The compact JWS.
    pub signature: String,
    /// The compressed message.
    pub body: Vec<u8>,
}

/// Who a sender is, from what it proved and never from what it says: its key, and the source that it speaks as.
#[derive(Debug, Clone)]
pub struct Credential {
    /// Its public key.
    pub key: BatchVerifier,
    /// Its rank and natural id.
    pub source: Source,
}

/// Takes a batch of a sender that is known.
///
/// A stream's first batch opens it, unless it is open already. Cancelling the caller cancels nothing.
///
/// # Errors
/// Those that leave the stream's mark where it is: a signature that does not hold, a body that is too large,
/// an unknown scope, a stream of another's, and other bytes under a number that was taken.
pub async fn accept(
    platform: &Platform,
    credential: &Credential,
    batch: SignedBatch,
) -> Result<Acknowledgement, ServiceError> {
    if batch.body.len() > body::PACKED_BYTES_MAX {
        return Err(BodyError::TooLarge { bytes: batch.body.len() }.into());
    }
    let claims = credential.key.verify(&batch.signature, &batch.body)?;
    let is_import = *credential.key.public_key() == platform.installation.public_key;
    let arrival = Arrival::read(
        Verified { source: credential.source.clone(), is_import, home: None, claims, reason: None },
        batch,
        platform.now(),
    );
    let mut taken = take_all(platform, vec![Arc::new(arrival)]).await?;
    match taken.pop() {
        Some(answer) => answer,
        None => Err(StoreError::Abandoned.into()),
    }
}

/// Takes batches of senders that are known, in one transaction: each has its own answer.
///
/// # Errors
/// [`ServiceError`] where none of them was taken.
pub async fn take_all(
    platform: &Platform,
    arrivals: Vec<Arc<Arrival>>,
) -> Result<Vec<Result<Acknowledgement, ServiceError>>, ServiceError> {
    let (arrivals, now, zone) = (Arc::new(arrivals), platform.now(), platform.zone());
    platform
        .write(move |scope, tx| {
            let arrivals = Arc::clone(&arrivals);
            unit(async move { Taking { scope, tx, now, zone }.run(&arrivals).await })
        })
        .await
}

/// Answers batches that were taken before with the same bytes, without reading them again; none for the others, which
/// have to go the whole way.
///
/// # Errors
/// [`ServiceError`].
pub async fn repeats(
    platform: &Platform,
    asked: Vec<Verified>,
) -> Result<Vec<Option<Acknowledgement>>, ServiceError> {
    let asked = Arc::new(asked);
    // Nothing is locked and nothing written, so nothing is waited for; what is planned once is kept.
    platform
        .write(move |scope, tx| {
            let asked = Arc::clone(&asked);
            unit(async move {
                let wanted = asked.iter().filter_map(|from| {
                    Some((from.home.as_ref()?.id, from.claims.stream, from.claims.sequence))
                });
                let kept = journal::kept(scope, tx, &wanted.collect()).await?;
                let answer = |from: &Verified| {
                    let BatchClaims { stream, sequence, body_hash, .. } = &from.claims;
                    let there = kept.get(&(*stream, *sequence))?;
                    let is_it = there.source == from.source
                        && there.body_hash == *body_hash
                        && *sequence <= there.mark;
                    is_it.then(|| Acknowledgement {
                        stream: stream.to_string(),
                        sequence: *sequence,
                        outcome: Outcome::Duplicate,
                        mark: there.mark,
                        accepted_rows: 0,
                        refused: vec![],
                    })
                };
                Ok(asked.iter().map(answer).collect())
            })
        })
        .await
}

/// What is in a body, or why nothing in it can be read; and whether it speaks for another than its signature.
fn read_contents(claims: &BatchClaims, packed: &[u8], is_import: bool) -> (Result<Decoded, String>, bool) {
    let mut speaks_for_another = false;
    (try_contents(claims, packed, is_import, &mut speaks_for_another), speaks_for_another)
}

fn try_contents(
    claims: &BatchClaims,
    packed: &[u8],
    is_import: bool,
    speaks_for_another: &mut bool,
) -> Result<Decoded, String> {
    if claims.span.end().micros_since(claims.span.start()) > journal::BATCH_SPAN_US_MAX {
        return Err("the batch spans more than 26 hours".to_owned());
    }
    let message = body::unpack(packed).map_err(|error| error.to_string())?;
    let decoded = usage_v1::decode_from(&message, &claims.scope, claims.span, sender(is_import));
    let mut decoded = decoded.map_err(|error| {
        *speaks_for_another = matches!(error, DecodeError::OtherScope);
        error.to_string()
    })?;
    refuse_reserved_tenants(&mut decoded);
    refuse_crowds(&mut decoded);
    Ok(decoded)
}

const fn sender(is_import: bool) -> usage_v1::Sender {
    if is_import { usage_v1::Sender::Importer } else { usage_v1::Sender::Reporter }
}

/// Nobody may declare the platform's own name as a tenant.
fn refuse_reserved_tenants(decoded: &mut Decoded) {
    let Decoded { batch: Batch { rows, evidence, .. }, row_numbers, refused, .. } = decoded;
    let reserved = |seen: Option<&Evidence>| {
        seen.and_then(|seen| seen.get(EvidenceField::Tenant))
            .is_some_and(|name| name.as_str() == PLATFORM_NAME)
    };
    refuse("rows", row_numbers, rows, refused, |row| {
        reserved(evidence.get(row.evidence))
            .then(|| format!("declares the reserved tenant `{PLATFORM_NAME}`"))
    });
}

/// Refuses the rows that would give a device more than [`HOLDERS_MAX`] holders at once, or as many existing slices or
/// measures: each makes every segment of the others longer. The first in order of time stay.
fn refuse_crowds(decoded: &mut Decoded) {
    let Decoded { batch, row_numbers, layout_numbers, usage_numbers, refused, .. } = decoded;
    let Batch { slices, rows, layout, usage, .. } = batch;
    let device = |slice: usize| slices.get(slice).map(|slice| &slice.device);
    let crowded = crowd(&rows.iter().map(|row| (device(row.slice), row.span)).collect::<Vec<_>>());
    let mut at = 0..;
    refuse("rows", row_numbers, rows, refused, |_| reason(&crowded, at.next(), "holders"));
    let crowded = crowd(&layout.iter().map(|row| (device(row.slice), row.span)).collect::<Vec<_>>());
    let mut at = 0..;
    refuse("layout", layout_numbers, layout, refused, |_| reason(&crowded, at.next(), "slices"));
    let crowded = crowd(&usage.iter().map(|row| (device(row.slice), row.span)).collect::<Vec<_>>());
    let mut at = 0..;
    refuse("usage", usage_numbers, usage, refused, |_| reason(&crowded, at.next(), "measures"));
}

fn reason(crowded: &BTreeSet<usize>, at: Option<usize>, what: &str) -> Option<String> {
    let is_crowded = at.is_some_and(|at| crowded.contains(&at));
    is_crowded.then(|| format!("the device would have more than {HOLDERS_MAX} {what} at once"))
}

/// The numbers of rows, each of a device and a span, that find no room beside those that begin before them.
fn crowd(rows: &[(Option<&Name>, Span)]) -> BTreeSet<usize> {
    let mut crowded = BTreeSet::new();
    if rows.len() <= HOLDERS_MAX {
        return crowded;
    }
    // A deletion takes no room.
    let all = rows.iter().enumerate().filter(|(_, (_, span))| !span.is_empty());
    let mut in_order: Vec<(usize, &(Option<&Name>, Span))> = all.collect();
    in_order.sort_by_key(|(number, (device, span))| (*device, span.start(), span.end(), *number));
    let mut ends: Vec<Instant> = Vec::new();
    let mut of = None;
    for (number, (device, span)) in in_order {
        if of != *device {
            of = *device;
            ends.clear();
        }
        ends.retain(|end| *end > span.start());
        if ends.len() < HOLDERS_MAX {
            ends.push(span.end());
        } else {
            crowded.insert(number);
        }
    }
    crowded
}

/// Refuses the entries of a table for which `why` has a reason.
fn refuse<T>(
    table: &str,
    numbers: &mut Vec<usize>,
    rows: &mut Vec<T>,
    refused: &mut Vec<Refusal>,
    mut why: impl FnMut(&T) -> Option<String>,
) {
    let all = std::mem::take(numbers).into_iter().zip(std::mem::take(rows));
    for (number, row) in all {
        match why(&row) {
            Some(reason) => refused.push(Refusal { pointer: format!("/{table}/{number}"), reason }),
            None => {
                numbers.push(number);
                rows.push(row);
            }
        }
    }
}

/// Who sent a batch and what the signature says of it, as verified.
#[derive(Debug, Clone)]
pub struct Verified {
    /// Who sends.
    pub source: Source,
    /// Whether the installation itself signed it.
    pub is_import: bool,
    /// The node or pool, where it is known already.
    pub home: Option<StoredScope>,
    /// What the signature vouches for.
    pub claims: BatchClaims,
    /// Why its stream was begun, where it follows another.
    pub reason: Option<String>,
}

impl Verified {
    /// Whether it may amend what other imports of its source said, and speak of what is planned.
    fn amends(&self) -> bool {
        self.is_import || self.source.rank == SourceRank::Import
    }
}

/// A batch that was believed and read, on its way into the journal.
#[derive(Debug)]
pub struct Arrival {
    from: Verified,
    batch: SignedBatch,
    contents: Result<Decoded, String>,
    received: Instant,
    speaks_for_another: bool,
}

impl Arrival {
    /// Reads what is in a batch; that it cannot be read is no error, for its number is taken all the same.
    #[must_use]
    pub fn read(from: Verified, batch: SignedBatch, received: Instant) -> Self {
        let end = from.claims.span.end();
        let (contents, speaks_for_another) = if !from.amends() && end.micros_since(received) > AHEAD_US_MAX {
            // Taken as it is, it would vouch for hours of which nobody can know anything.
            (Err(format!("the batch ends at {end}, which has not come yet")), false)
        } else {
            read_contents(&from.claims, &batch.body, from.is_import)
        };
        Self { from, batch, contents, received, speaks_for_another }
    }

    /// Bytes of its body.
    pub(super) const fn size(&self) -> usize {
        self.batch.body.len()
    }

    /// Whether its body speaks for another node or pool than its signature.
    #[must_use]
    pub const fn speaks_for_another(&self) -> bool {
        self.speaks_for_another
    }

    /// Whether it may amend what other imports of its source said.
    fn amends(&self) -> bool {
        self.from.amends()
    }

    fn answer(
        &self,
        outcome: Outcome,
        mark: i64,
        accepted_rows: u64,
        refused: Vec<Refusal>,
    ) -> Acknowledgement {
        let (stream, sequence) = (self.from.claims.stream.to_string(), self.from.claims.sequence);
        Acknowledgement { stream, sequence, outcome, mark, accepted_rows, refused }
    }

    /// As a row of the journal.
    fn row(
        &self,
        stream: &Stream,
        row_count: i64,
        refused: Option<String>,
        set_aside: Option<String>,
    ) -> NewBatch {
        NewBatch {
            scope: stream.scope,
            stream: stream.id,
            sequence: self.from.claims.sequence,
            received: self.received,
            span: self.from.claims.span,
            body: self.batch.body.clone(),
            body_hash: self.from.claims.body_hash,
            signature: self.batch.signature.clone(),
            row_count,
            refused,
            set_aside,
        }
    }
}

/// What a group of batches comes to, written when all of it is judged.
#[derive(Default)]
struct Ledger {
    /// What was taken before, of those that come again.
    kept: BTreeMap<(Uuid, i64), Kept>,
    batches: Vec<NewBatch>,
    advances: BTreeMap<Uuid, Advance>,
    /// Per scope: until when its devices are covered, and the hours to be folded.
    covered: BTreeMap<ScopeId, BTreeMap<Name, Instant>>,
    dirty: BTreeMap<ScopeId, (StoredScope, BTreeSet<(Day, Instant)>)>,
    declared: BTreeSet<(Name, Name)>,
    findings: Vec<Finding>,
    audit: Vec<Entry>,
}

/// Batches inside their transaction.
struct Taking<'a> {
    scope: &'a PlatformScope,
    tx: &'a WriteTx,
    now: Instant,
    zone: BillingZone,
}

type Answers = Vec<Result<Acknowledgement, ServiceError>>;

impl Taking<'_> {
    async fn run(&self, arrivals: &[Arc<Arrival>]) -> Result<Answers, ServiceError> {
        check_zone(self.scope, self.tx, self.zone).await?;
        let homes = self.homes(arrivals).await?;
        for (arrival, home) in arrivals.iter().zip(&homes) {
            if let Some(home) = home.as_ref().filter(|_| arrival.amends()) {
                // Two imports at once would not see what the other amends.
                fleet::lock_scope(self.scope, self.tx, home.id).await?;
            }
        }
        let streams = self.streams(arrivals, &homes).await?;
        let nodes = homes.iter().flatten().filter(|home| home.name.kind == ScopeKind::Node);
        let nodes: BTreeSet<ScopeId> = nodes.map(|home| home.id).collect();
        let homed = if nodes.is_empty() {
            BTreeMap::new()
        } else {
            fleet::homed_on(self.scope, self.tx, &nodes).await?
        };
        let repeats = arrivals.iter().zip(&homes).filter_map(|(arrival, home)| {
            let (claims, home) = (&arrival.from.claims, home.as_ref()?);
            let is_repeat = streams.get(&claims.stream).is_some_and(|stream| claims.sequence <= stream.mark);
            is_repeat.then_some((home.id, claims.stream, claims.sequence))
        });
        let kept = journal::kept(self.scope, self.tx, &repeats.collect()).await?;
        let mut ledger = Ledger { kept, ..Ledger::default() };
        let mut answers = Answers::with_capacity(arrivals.len());
        for (arrival, home) in arrivals.iter().zip(&homes) {
            let Some(home) = home else {
                let ScopeName { kind, name } = &arrival.from.claims.scope;
                answers.push(Err(ServiceError::UnknownScope { kind: kind.word(), name: name.to_string() }));
                continue;
            };
            let stream = streams.get(&arrival.from.claims.stream);
            answers.push(match stream {
                Some(stream) => self.take(arrival, home, stream, &homed, &mut ledger).await?,
                // It was opened just above; only a concurrent deletion could take it away, and nothing deletes streams.
                None => Err(StoreError::corrupt("a stream", "it is not there after it was opened").into()),
            });
        }
        self.write(ledger).await?;
        Ok(answers)
    }

    async fn homes(&self, arrivals: &[Arc<Arrival>]) -> Result<Vec<Option<StoredScope>>, ServiceError> {
        let mut homes = Vec::with_capacity(arrivals.len());
        for arrival in arrivals {
            homes.push(match &arrival.from.home {
                Some(home) => Some(home.clone()),
                None => fleet::find_scope(self.scope, self.tx, &arrival.from.claims.scope).await?,
            });
        }
        Ok(homes)
    }

    /// The batches' streams, locked; a first batch opens its own.
    async fn streams(
        &self,
        arrivals: &[Arc<Arrival>],
        homes: &[Option<StoredScope>],
    ) -> Result<BTreeMap<Uuid, Stream>, ServiceError> {
        let ids: BTreeSet<Uuid> = arrivals.iter().map(|each| each.from.claims.stream).collect();
        let found = journal::lock_streams(self.scope, self.tx, &ids).await?;
        let mut missing: BTreeMap<Uuid, Stream> = BTreeMap::new();
        for (arrival, home) in arrivals.iter().zip(homes) {
            let id = arrival.from.claims.stream;
            if let Some(home) = home.as_ref().filter(|_| !found.contains_key(&id)) {
                let source = arrival.from.source.clone();
                let new = Stream { id, scope: home.id, source, import_number: 0, mark: 0, rows_hash: None };
                missing.entry(id).or_insert(new);
            }
        }
        if missing.is_empty() {
            return Ok(found);
        }
        let new: Vec<Stream> = missing.into_values().collect();
        journal::open_streams(self.scope, self.tx, &new, self.now).await?;
        Ok(journal::lock_streams(self.scope, self.tx, &ids).await?)
    }

    async fn take(
        &self,
        arrival: &Arrival,
        home: &StoredScope,
        stream: &Stream,
        homed: &BTreeMap<ScopeId, BTreeSet<Name>>,
        ledger: &mut Ledger,
    ) -> Result<Result<Acknowledgement, ServiceError>, ServiceError> {
        let foreign = |what| ServiceError::ForeignStream { stream: stream.id.to_string(), what };
        if stream.scope != home.id {
            return Ok(Err(foreign("node or pool")));
        }
        if stream.source != arrival.from.source {
            return Ok(Err(foreign("sender")));
        }
        let sequence = arrival.from.claims.sequence;
        let mark = ledger.advances.get(&stream.id).map_or(stream.mark, |each| each.mark);
        if sequence <= mark {
            return self.repeat(arrival, home, stream, mark, ledger);
        }
        if sequence > mark.saturating_add(1) {
            return Ok(Ok(arrival.answer(Outcome::Ahead, mark, 0, vec![])));
        }
        let offset_micros = arrival.contents.as_ref().ok().and_then(|decoded| {
            let latest = decoded.batch.clocks.iter().max_by_key(|clock| clock.span.end());
            latest.map(|clock| clock.offset_micros)
        });
        let edge = arrival.from.claims.span.end().min(arrival.received);
        let advance = Advance { stream: stream.clone(), mark: sequence, edge, offset_micros };
        ledger.advances.insert(stream.id, advance);
        if let Some(reason) = arrival.from.reason.as_ref().filter(|_| sequence == 1) {
            let subject = format!("{}/{}", home.name.name, arrival.from.source.sender);
            let detail = format!("the agent began stream {} anew: {reason}", stream.id);
            ledger.alert(FindingKind::RollbackOrClone, home.id, subject, arrival.from.claims.span, detail);
        }
        let set_aside = match &arrival.contents {
            Ok(decoded) if decoded.source == stream.source => {
                return self.readable(arrival, home, stream, homed, decoded, ledger).await.map(Ok);
            }
            Ok(_) => "it names another source than its stream",
            Err(reason) => reason.as_str(),
        };
        // Nothing in it can be read: its number is taken and nothing blocks behind it.
        ledger.batches.push(arrival.row(stream, 0, None, Some(set_aside.to_owned())));
        let subject = format!("{}/{}/{sequence}", home.name.name, stream.id);
        let (kind, span) = (FindingKind::BatchSetAside, arrival.from.claims.span);
        ledger.alert(kind, home.id, subject, span, set_aside.to_owned());
        let refused = vec![Refusal { pointer: String::new(), reason: set_aside.to_owned() }];
        Ok(Ok(arrival.answer(Outcome::SetAside, sequence, 0, refused)))
    }

    fn repeat(
        &self,
        arrival: &Arrival,
        home: &StoredScope,
        stream: &Stream,
        mark: i64,
        ledger: &mut Ledger,
    ) -> Result<Result<Acknowledgement, ServiceError>, ServiceError> {
        let sequence = arrival.from.claims.sequence;
        let is_it = |batch: &&NewBatch| batch.stream == stream.id && batch.sequence == sequence;
        let stored = match ledger.batches.iter().find(is_it) {
            Some(batch) => Some(batch.body_hash.to_vec()),
            None => ledger.kept.get(&(stream.id, sequence)).map(|kept| kept.body_hash.clone()),
        };
        match stored {
            None => Ok(Ok(arrival.answer(Outcome::DuplicateUnverified, mark, 0, vec![]))),
            Some(hash) if hash == arrival.from.claims.body_hash => {
                Ok(Ok(arrival.answer(Outcome::Duplicate, mark, 0, vec![])))
            }
            Some(_) => {
                let (name, sender) = (&home.name.name, &arrival.from.source.sender);
                let detail = format!("other bytes came under number {sequence} of stream {}", stream.id);
                let span = arrival.from.claims.span;
                let subject = format!("{name}/{sender}");
                ledger.alert(FindingKind::RollbackOrClone, home.id, subject.clone(), span, detail.clone());
                ledger.audit.push(refusal_entry(self.now, sender.as_str(), subject, &detail));
                let stream = stream.id.to_string();
                Ok(Err(ServiceError::OtherBytes { stream, sequence }))
            }
        }
    }

    async fn readable(
        &self,
        arrival: &Arrival,
        home: &StoredScope,
        stream: &Stream,
        homed: &BTreeMap<ScopeId, BTreeSet<Name>>,
        decoded: &Decoded,
        ledger: &mut Ledger,
    ) -> Result<Acknowledgement, ServiceError> {
        let own;
        let homed = match home.name.kind {
            ScopeKind::Node => homed.get(&home.id),
            ScopeKind::Pool => {
                own = BTreeSet::from([home.name.name.clone()]);
                Some(&own)
            }
        };
        let decoded = checked(decoded, home, homed);
        let taken = decoded.batch.rows.len();
        let refused = match decoded.refused.as_slice() {
            [] => None,
            refused => Some(serde_json::to_string(refused).map_err(ServiceError::Encode)?),
        };
        ledger.batches.push(arrival.row(stream, i64::try_from(taken).unwrap_or(i64::MAX), refused, None));
        if arrival.amends() {
            ledger.declared.extend(declared_tenants(&decoded.batch));
        }
        let covered = ledger.covered.entry(home.id).or_default();
        for (device, edge) in holding_edges(&decoded.batch.coverage) {
            match covered.get_mut(device) {
                Some(known) => *known = edge.max(*known),
                None => {
                    covered.insert(device.clone(), edge);
                }
            }
        }
        for gap in &decoded.batch.gaps {
            let subject = format!("{}/{}", home.name.name, stream.id);
            ledger.alert(FindingKind::UsageGap, home.id, subject, gap.span, gap.reason.to_string());
        }
        self.tell_skew(arrival, home, &decoded.batch, ledger);
        // All that was signed for, also hours of which it says nothing: the batch counts among theirs.
        let mut spans: Vec<Span> = vec![arrival.from.claims.span];
        if arrival.amends() {
            spans.extend(self.amended(arrival, home, stream, &decoded.batch).await?);
        }
        let hours = hours_meeting(self.zone, spans);
        ledger.dirty.entry(home.id).or_insert_with(|| (home.clone(), BTreeSet::new())).1.extend(hours);
        let refused = decoded.refused.clone();
        let taken = u64::try_from(taken).unwrap_or(u64::MAX);
        Ok(arrival.answer(Outcome::Accepted, arrival.from.claims.sequence, taken, refused))
    }

    /// Tells of a clock that is off. What a reporter says of a time to come is kept, and counts when that time is there.
    fn tell_skew(&self, arrival: &Arrival, home: &StoredScope, batch: &Batch, ledger: &mut Ledger) {
        let off = batch.clocks.iter().map(|clock| clock.offset_micros);
        let off = off.max_by_key(|offset| offset.saturating_abs()).unwrap_or_default();
        let span = arrival.from.claims.span;
        let ahead = if arrival.amends() { 0 } else { span.end().micros_since(self.now) };
        let detail = if off.saturating_abs() > SKEW_US_TOLD {
            let word = if off > 0 { "behind" } else { "ahead" };
            let seconds = off.saturating_abs() / MICROS_PER_SECOND;
            format!("the node's clock is {seconds} s {word}; its windows are placed by the service's")
        } else if ahead > SKEW_US_TOLD {
            format!("it speaks of a time {} s ahead, which counts from then on", ahead / MICROS_PER_SECOND)
        } else {
            return;
        };
        // One a day says it.
        let day = self.zone.day_start(self.zone.day_of(span.start()));
        let subject = format!("{}/{}", home.name.name, arrival.from.source.sender);
        ledger.alert(FindingKind::ClockSkew, home.id, subject, Span::clamped(day, span.end()), detail);
    }

    async fn write(&self, ledger: Ledger) -> Result<(), ServiceError> {
        let (scope, tx) = (self.scope, self.tx);
        if !ledger.batches.is_empty() {
            let is_readable = ledger.batches.iter().any(|batch| batch.set_aside.is_none());
            journal::append_all(scope, tx, ledger.batches).await?;
            let advances: Vec<Advance> = ledger.advances.into_values().collect();
            journal::advance_streams(scope, tx, &advances, self.now).await?;
            if is_readable {
                installation::fix(scope, tx, self.now).await?;
            }
        }
        if !ledger.declared.is_empty() {
            tenants::ensure(scope, tx, &ledger.declared, Origin::Import, self.now).await?;
        }
        for (home, covered) in &ledger.covered {
            let is_pool = ledger.dirty.get(home).is_some_and(|(home, _)| home.name.kind == ScopeKind::Pool);
            let mut by_edge: BTreeMap<Instant, Vec<&Name>> = BTreeMap::new();
            for (device, edge) in covered {
                by_edge.entry(*edge).or_default().push(device);
            }
            for (edge, devices) in by_edge {
                if is_pool {
                    fleet::note_pool_coverage(scope, tx, *home, edge).await?;
                } else {
                    fleet::note_coverages(scope, tx, *home, &devices, edge).await?;
                }
            }
        }
        let dirty = ledger.dirty.values().map(|(home, hours)| (home, hours));
        marks::mark_all(scope, tx, MarkKind::Fold, dirty).await?;
        findings::write(scope, tx, &ledger.findings, self.now).await?;
        Ok(audit::add(scope, tx, &ledger.audit).await?)
    }

    /// The whole spans of holdings that other imports of this source state under this batch's keys: they
    /// gain or lose, also outside this batch's span.
    async fn amended(
        &self,
        arrival: &Arrival,
        home: &StoredScope,
        stream: &Stream,
        batch: &Batch,
    ) -> Result<Vec<Span>, ServiceError> {
        if stream.import_number == 0 {
            return Ok(vec![]);
        }
        let siblings: BTreeSet<_> = journal::streams(self.scope, self.tx, home.id)
            .await?
            .into_iter()
            .filter(|other| other.source == stream.source && other.import_number != stream.import_number)
            .map(|other| other.id)
            .collect();
        if siblings.is_empty() {
            return Ok(vec![]);
        }
        let key = |batch: &Batch, row: &Row| {
            let device = batch.slices.get(row.slice).map(|slice| slice.device.clone());
            let workload = batch.evidence.get(row.evidence).and_then(Evidence::workload).cloned();
            (device, workload, row.uncut.start())
        };
        // A holding's first piece speaks for it; the later ones would mark the same again.
        let firsts = batch.rows.iter().filter(|row| row.span.start() == row.uncut.start());
        let keys: BTreeSet<_> = firsts.map(|row| key(batch, row)).collect();
        let slice_key = |batch: &Batch, row: &LayoutRow| {
            let slice = batch.slices.get(row.slice);
            (slice.map(|slice| (slice.device.clone(), slice.id.clone())), row.uncut.start())
        };
        let firsts = batch.layout.iter().filter(|row| row.span.start() == row.uncut.start());
        let slices: BTreeSet<_> = firsts.map(|row| slice_key(batch, row)).collect();
        if keys.is_empty() && slices.is_empty() {
            return Ok(vec![]);
        }
        let mut spans = Vec::new();
        let meeting = journal::batches_meeting(self.scope, self.tx, home.id, arrival.from.claims.span);
        for other in meeting.await? {
            if !siblings.contains(&other.stream) {
                continue;
            }
            let Ok(decoded) = read_stored(&other, &home.name, true) else { continue };
            let same = decoded.batch.rows.iter().filter(|row| keys.contains(&key(&decoded.batch, row)));
            spans.extend(same.map(|row| row.uncut));
            let rows = decoded.batch.layout.iter();
            let same = rows.filter(|row| slices.contains(&slice_key(&decoded.batch, row)));
            spans.extend(same.map(|row| row.uncut));
        }
        // The holding that amends may be longer than what it amends, and its later pieces come in later
        // batches, which mark their own hours.
        Ok(spans)
    }
}

impl Ledger {
    fn alert(&mut self, kind: FindingKind, scope: ScopeId, subject: String, span: Span, detail: String) {
        self.findings.push(Finding { kind, scope, subject, span, detail });
    }
}

/// The record of something that was not taken from an agent.
pub(super) fn refusal_entry(at: Instant, agent: &str, subject: String, detail: &str) -> Entry {
    Entry {
        at,
        actor: format!("agent {agent}"),
        token: agent.to_owned(),
        request: String::new(),
        action: "usage.refuse".to_owned(),
        subject,
        before: None,
        after: Some(serde_json::json!({ "reason": detail }).to_string()),
    }
}

/// A batch's contents without what its scope may not claim; unchanged, and not copied, where there is none of that.
fn checked<'a>(decoded: &'a Decoded, home: &StoredScope, homed: Option<&BTreeSet<Name>>) -> Cow<'a, Decoded> {
    let is_home = |device: &Name| homed.is_some_and(|homed| homed.contains(device));
    let batch = &decoded.batch;
    let is_plain = home.name.kind == ScopeKind::Node
        && batch.slices.iter().all(|slice| is_home(&slice.device))
        && batch.coverage.iter().all(|each| is_home(&each.device))
        && batch.energy.iter().all(|each| is_home(&each.device));
    if is_plain {
        return Cow::Borrowed(decoded);
    }
    let mut decoded = decoded.clone();
    if home.name.kind == ScopeKind::Pool {
        refuse_parts(&mut decoded);
    }
    refuse_foreign_devices(&mut decoded, homed.unwrap_or(&BTreeSet::new()), &home.name.name);
    Cow::Owned(decoded)
}

/// Of a pool it is said how many whole devices are held, and no more.
fn refuse_parts(decoded: &mut Decoded) {
    let Decoded { batch, row_numbers, layout_numbers, usage_numbers, energy_numbers, refused, .. } = decoded;
    let Batch { slices, rows, layout, usage, energy, .. } = batch;
    let is_whole = |slice: &Slice| {
        let plain = Slice::plain(slice.device.clone(), slice.mode, slice.size.clone());
        matches!(slice.size, SliceSize::Devices(_)) && slice.mode.takes_whole_device() && *slice == plain
    };
    refuse("rows", row_numbers, rows, refused, |row| {
        let slice = slices.get(row.slice)?;
        (!is_whole(slice)).then(|| "a pool's devices are held whole, so many of them".to_owned())
    });
    let why = || Some("a pool has no slices, and nothing is measured of it".to_owned());
    refuse("layout", layout_numbers, layout, refused, |_| why());
    refuse("usage", usage_numbers, usage, refused, |_| why());
    refuse("energy", energy_numbers, energy, refused, |_| why());
}

/// A device that is another node's, or nobody's, cannot be held here.
fn refuse_foreign_devices(decoded: &mut Decoded, homed: &BTreeSet<Name>, node: &Name) {
    let Decoded { batch, refused, .. } = decoded;
    let Batch { slices, rows, coverage, layout, usage, energy, .. } = batch;
    let of = |slice: usize| slices.get(slice).map(|slice| &slice.device);
    let foreign = |device: Option<&Name>| {
        let device = device?;
        (!homed.contains(device)).then(|| format!("device {device} never was in service on {node}"))
    };
    refuse("rows", &mut decoded.row_numbers, rows, refused, |row| foreign(of(row.slice)));
    refuse("layout", &mut decoded.layout_numbers, layout, refused, |row| foreign(of(row.slice)));
    refuse("usage", &mut decoded.usage_numbers, usage, refused, |row| foreign(of(row.slice)));
    refuse("energy", &mut decoded.energy_numbers, energy, refused, |row| foreign(Some(&row.device)));
    refuse("coverage", &mut decoded.coverage_numbers, coverage, refused, |each| foreign(Some(&each.device)));
}

/// The tenants and projects that the built-in import rule makes. An operator's rule may send the evidence
/// elsewhere; the declared tenant exists all the same, so that taking the rule away loses nobody.
fn declared_tenants(batch: &Batch) -> BTreeSet<(Name, Name)> {
    let built_in = MappingRules::default();
    let seen: BTreeSet<usize> = batch.rows.iter().map(|row| row.evidence).collect();
    seen.into_iter()
        .filter_map(|at| batch.evidence.get(at))
        .filter_map(|seen| {
            let owner = built_in.owner(seen, Instant::MIN);
            owner.tenant.map(|tenant| (tenant, owner.project))
        })
        .collect()
}

/// The billing hours that share an instant with any of the spans, by day.
#[must_use]
pub fn hours_meeting(zone: BillingZone, spans: impl IntoIterator<Item = Span>) -> BTreeSet<(Day, Instant)> {
    let mut hours = BTreeSet::new();
    for span in crate::domain::usage::merged(spans) {
        for day in zone.days_meeting(span) {
            hours.extend(zone.hours_of(day).filter(|hour| hour.meets(span)).map(|hour| (day, hour.start())));
        }
    }
    hours
}

/// Reads a stored batch again, of an import or of another sender, and obeys what acceptance refused.
///
/// # Errors
/// In words, why it cannot be read; it could be when it was accepted.
pub fn read_stored(batch: &StoredBatch, scope: &ScopeName, is_import: bool) -> Result<Decoded, String> {
    let message = body::unpack(&batch.body).map_err(|error| error.to_string())?;
    let mut decoded = usage_v1::decode_from(&message, scope, batch.span, sender(is_import))
        .map_err(|error| error.to_string())?;
    let Some(refused) = &batch.refused else { return Ok(decoded) };
    let refused: Vec<Refusal> = serde_json::from_str(refused).map_err(|error| error.to_string())?;
    let refused: BTreeSet<&str> = refused.iter().map(|each| each.pointer.as_str()).collect();
    let batch = &mut decoded.batch;
    keep_taken("rows", &decoded.row_numbers, &mut batch.rows, &refused);
    keep_taken("coverage", &decoded.coverage_numbers, &mut batch.coverage, &refused);
    keep_taken("layout", &decoded.layout_numbers, &mut batch.layout, &refused);
    keep_taken("usage", &decoded.usage_numbers, &mut batch.usage, &refused);
    keep_taken("energy", &decoded.energy_numbers, &mut batch.energy, &refused);
    Ok(decoded)
}

/// Takes away the entries of a table whose pointers were refused.
fn keep_taken<T>(table: &str, numbers: &[usize], rows: &mut Vec<T>, refused: &BTreeSet<&str>) {
    let mut numbers = numbers.iter();
    rows.retain(|_| {
        let number = numbers.next();
        number.is_none_or(|number| !refused.contains(format!("/{table}/{number}").as_str()))
    });
}
