//! Accepting a signed batch: it takes its number, is stored as it was signed, and marks what it changes.
//!
//! Always true here: one transaction holds the batch, its stream's mark, its dirty marks and its findings; a
//! body with a valid signature and size takes its number whatever is inside; an acknowledgement is given
//! after the commit.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::ctx::{Platform, check_zone};
use super::error::ServiceError;
use crate::domain::ids::{Name, ScopeKind, ScopeName};
use crate::domain::mapping::{MappingRules, PLATFORM_NAME};
use crate::domain::period::{BillingZone, Day, Span};
use crate::domain::segment::HOLDERS_MAX;
use crate::domain::units::Instant;
use crate::domain::usage::{
    Batch, Evidence, EvidenceField, LayoutRow, Row, Slice, SliceSize, Source, SourceRank, holding_edges,
};
use crate::store::findings::{Finding, FindingKind};
use crate::store::fleet::StoredScope;
use crate::store::journal::{NewBatch, StoredBatch, Stream};
use crate::store::marks::MarkKind;
use crate::store::tenants::Origin;
use crate::store::{
    PlatformScope, StoreError, WriteTx, findings, fleet, installation, journal, marks, tenants, unit,
};
use crate::wire::ack::{Acknowledgement, Outcome, Refusal};
use crate::wire::body::{self, BodyError};
use crate::wire::signature::{BatchClaims, BatchVerifier};
use crate::wire::usage_v1::{self, Decoded};

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
    let contents = read_contents(&claims, &batch.body, is_import);
    let received = platform.now();
    let source = credential.source.clone();
    let arrival =
        Arc::new(Arrival { source, is_import, claims, batch, contents, received, zone: platform.zone() });
    platform
        .write(move |scope, tx| {
            let arrival = Arc::clone(&arrival);
            unit(async move { arrival.take(scope, tx).await })
        })
        .await
}

/// What is in a body, or why nothing in it can be read.
fn read_contents(claims: &BatchClaims, packed: &[u8], is_import: bool) -> Result<Decoded, String> {
    if claims.span.end().micros_since(claims.span.start()) > journal::BATCH_SPAN_US_MAX {
        return Err("the batch spans more than 26 hours".to_owned());
    }
    let message = body::unpack(packed).map_err(|error| error.to_string())?;
    let mut decoded = usage_v1::decode_from(&message, &claims.scope, claims.span, sender(is_import))
        .map_err(|error| error.to_string())?;
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

/// A batch that was believed, on its way into the journal.
struct Arrival {
    source: Source,
    /// Whether the installation itself signed it.
    is_import: bool,
    claims: BatchClaims,
    batch: SignedBatch,
    contents: Result<Decoded, String>,
    received: Instant,
    zone: BillingZone,
}

impl Arrival {
    async fn take(&self, scope: &PlatformScope, tx: &WriteTx) -> Result<Acknowledgement, ServiceError> {
        check_zone(scope, tx, self.zone).await?;
        let Some(home) = fleet::find_scope(scope, tx, &self.claims.scope).await? else {
            let ScopeName { kind, name } = &self.claims.scope;
            return Err(ServiceError::UnknownScope { kind: kind.word(), name: name.to_string() });
        };
        if self.is_import || self.source.rank == SourceRank::Import {
            // Two imports at once would not see what the other amends.
            fleet::lock_scope(scope, tx, home.id).await?;
        }
        let stream = self.stream(scope, tx, &home).await?;
        let sequence = self.claims.sequence;
        if sequence <= stream.mark {
            return self.repeat(scope, tx, &stream).await;
        }
        if sequence > stream.mark + 1 {
            return Ok(self.answer(Outcome::Ahead, stream.mark, 0, vec![]));
        }
        match &self.contents {
            Ok(decoded) if decoded.source == stream.source => {
                let (taken, refused) =
                    self.store_readable(scope, tx, &home, &stream, decoded.clone()).await?;
                Ok(self.answer(Outcome::Accepted, sequence, taken, refused))
            }
            Ok(_) => {
                self.set_aside(scope, tx, &home, &stream, "it names another source than its stream").await
            }
            Err(reason) => self.set_aside(scope, tx, &home, &stream, reason).await,
        }
    }

    fn answer(
        &self,
        outcome: Outcome,
        mark: i64,
        accepted_rows: u64,
        refused: Vec<Refusal>,
    ) -> Acknowledgement {
        let (stream, sequence) = (self.claims.stream.to_string(), self.claims.sequence);
        Acknowledgement { stream, sequence, outcome, mark, accepted_rows, refused }
    }

    /// The batch's stream, locked; its first batch opens it.
    async fn stream(
        &self,
        scope: &PlatformScope,
        tx: &WriteTx,
        home: &StoredScope,
    ) -> Result<Stream, ServiceError> {
        let id = self.claims.stream;
        let mut stream = journal::lock_stream(scope, tx, id).await?;
        if stream.is_none() {
            let source = self.source.clone();
            let new = Stream { id, scope: home.id, source, import_number: 0, mark: 0, rows_hash: None };
            journal::open_stream(scope, tx, &new, self.received).await?;
            stream = journal::lock_stream(scope, tx, id).await?;
        }
        let foreign = |what| ServiceError::ForeignStream { stream: id.to_string(), what };
        match stream {
            Some(stream) if stream.scope != home.id => Err(foreign("node or pool")),
            Some(stream) if stream.source != self.source => Err(foreign("sender")),
            Some(stream) => Ok(stream),
            // It was opened just above; only a concurrent deletion could take it away, and nothing deletes streams.
            None => Err(StoreError::corrupt("a stream", "it is not there after it was opened").into()),
        }
    }

    async fn repeat(
        &self,
        scope: &PlatformScope,
        tx: &WriteTx,
        stream: &Stream,
    ) -> Result<Acknowledgement, ServiceError> {
        let stored = journal::body_hash(scope, tx, stream, self.claims.sequence).await?;
        match stored {
            None => Ok(self.answer(Outcome::DuplicateUnverified, stream.mark, 0, vec![])),
            Some(hash) if hash == self.claims.body_hash => {
                Ok(self.answer(Outcome::Duplicate, stream.mark, 0, vec![]))
            }
            Some(_) => {
                let (stream, sequence) = (stream.id.to_string(), self.claims.sequence);
                Err(ServiceError::OtherBytes { stream, sequence })
            }
        }
    }

    /// Stores a batch in which nothing can be read: its number is taken and nothing blocks behind it.
    async fn set_aside(
        &self,
        scope: &PlatformScope,
        tx: &WriteTx,
        home: &StoredScope,
        stream: &Stream,
        reason: &str,
    ) -> Result<Acknowledgement, ServiceError> {
        self.append(scope, tx, stream, 0, None, Some(reason.to_owned())).await?;
        let finding = Finding {
            kind: FindingKind::BatchSetAside,
            scope: home.id,
            subject: format!("{}/{}/{}", home.name.name, stream.id, self.claims.sequence),
            span: self.claims.span,
            detail: reason.to_owned(),
        };
        findings::write(scope, tx, &[finding], self.received).await?;
        let refused = vec![Refusal { pointer: String::new(), reason: reason.to_owned() }];
        Ok(self.answer(Outcome::SetAside, self.claims.sequence, 0, refused))
    }

    async fn store_readable(
        &self,
        scope: &PlatformScope,
        tx: &WriteTx,
        home: &StoredScope,
        stream: &Stream,
        mut decoded: Decoded,
    ) -> Result<(u64, Vec<Refusal>), ServiceError> {
        let homed = match home.name.kind {
            ScopeKind::Node => fleet::homed_devices(scope, tx, home.id).await?,
            ScopeKind::Pool => {
                refuse_parts(&mut decoded);
                BTreeSet::from([home.name.name.clone()])
            }
        };
        refuse_foreign_devices(&mut decoded, &homed, &home.name.name);
        let taken = decoded.batch.rows.len();
        let refused = match decoded.refused.as_slice() {
            [] => None,
            refused => Some(serde_json::to_string(refused).map_err(ServiceError::Encode)?),
        };
        let row_count = i64::try_from(taken).unwrap_or(i64::MAX);
        self.append(scope, tx, stream, row_count, refused, None).await?;
        installation::fix(scope, tx, self.received).await?;
        let declared = declared_tenants(&decoded.batch);
        tenants::ensure(scope, tx, &declared, Origin::Import, self.received).await?;
        for (device, edge) in holding_edges(&decoded.batch.coverage) {
            match home.name.kind {
                ScopeKind::Node => fleet::note_coverage(scope, tx, home.id, device, edge).await?,
                ScopeKind::Pool => fleet::note_pool_coverage(scope, tx, home.id, edge).await?,
            }
        }
        // All that was signed for, also hours of which it says nothing: the batch counts among theirs.
        let mut spans: Vec<Span> = vec![self.claims.span];
        spans.extend(self.amended(scope, tx, home, stream, &decoded.batch).await?);
        let hours = hours_meeting(self.zone, spans);
        marks::mark_hours(scope, tx, home, MarkKind::Fold, &hours).await?;
        Ok((u64::try_from(taken).unwrap_or(u64::MAX), decoded.refused))
    }

    async fn append(
        &self,
        scope: &PlatformScope,
        tx: &WriteTx,
        stream: &Stream,
        row_count: i64,
        refused: Option<String>,
        set_aside: Option<String>,
    ) -> Result<(), ServiceError> {
        let batch = NewBatch {
            scope: stream.scope,
            stream: stream.id,
            sequence: self.claims.sequence,
            received: self.received,
            span: self.claims.span,
            body: self.batch.body.clone(),
            body_hash: self.claims.body_hash,
            signature: self.batch.signature.clone(),
            row_count,
            refused,
            set_aside,
        };
        journal::append(scope, tx, &batch).await?;
        Ok(journal::set_mark(scope, tx, stream.id, self.claims.sequence).await?)
    }

    /// The whole spans of holdings that other imports of this source state under this batch's keys: they
    /// gain or lose, also outside this batch's span.
    async fn amended(
        &self,
        scope: &PlatformScope,
        tx: &WriteTx,
        home: &StoredScope,
        stream: &Stream,
        batch: &Batch,
    ) -> Result<Vec<Span>, ServiceError> {
        if stream.import_number == 0 {
            return Ok(vec![]);
        }
        let siblings: BTreeSet<_> = journal::streams(scope, tx, home.id)
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
        for other in journal::batches_meeting(scope, tx, home.id, self.claims.span).await? {
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
    batch
        .rows
        .iter()
        .filter_map(|row| batch.evidence.get(row.evidence))
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
