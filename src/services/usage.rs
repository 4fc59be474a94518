//! What was reported, as it was: read from the journal, a page at a time.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::accept::read_stored;
use super::access::View;
use super::error::ServiceError;
use crate::domain::ids::{Name, ScopeKind, ScopeName};
use crate::domain::mapping::MappingRules;
use crate::domain::period::Span;
use crate::domain::usage::{Batch, Evidence, Slice};
use crate::store::journal::{BatchPlace, StoredBatch};
use crate::store::{fleet, journal, mapping, unit};

/// Longest span of one question, in hours.
pub const HOURS_MAX: i64 = 31 * 24;
/// Batches that are read at once.
const BATCHES_AT_ONCE: i64 = 32;

/// Where in the list a window stands: its batch's first instant, stream and number, and its place in the batch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowPlace(i64, String, i64, usize);

/// What a window says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum WindowKind {
    /// Somebody held the slice.
    Held,
    /// The slice existed.
    Existed,
    /// So much of it was used.
    Measured,
}

/// Which windows are asked for.
#[derive(Debug)]
pub struct WindowsAsked {
    /// The node's.
    pub node: Name,
    /// That meet this span.
    pub within: Span,
    /// Only this device's.
    pub device: Option<Name>,
    /// Only of this kind.
    pub kind: Option<WindowKind>,
}

/// A window, as shown.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WindowView {
    /// What it says.
    pub kind: WindowKind,
    /// From when.
    pub from: String,
    /// To when.
    pub to: String,
    /// The device.
    pub gpu_uuid: String,
    /// How it is shared.
    pub mode: String,
    /// The slice's path below the device.
    pub slice: String,
    /// What its source calls the slice.
    pub slice_id: Option<String>,
    /// Who pays for the holder, by the rules as they are now; none where no rule says it, or nobody held.
    pub tenant: Option<String>,
    /// What was seen of the holder.
    pub evidence: BTreeMap<&'static str, String>,
    /// Nanoseconds × SM activity.
    pub active_nanos: Option<i64>,
    /// Bytes held × seconds.
    pub memory_byte_seconds: Option<i64>,
    /// The stream by which it came.
    pub stream: String,
    /// Its batch's number there.
    pub sequence: i64,
    /// Where it stands.
    #[serde(skip)]
    pub place: WindowPlace,
}

/// The windows that are asked for, after one, at most so many: in the order of their batches. A tenant sees what
/// its workloads held, by the rules as they are now.
///
/// # Errors
/// [`ServiceError::NotFound`] for a node that is not there; a tenant, who may not know which there are, is answered
/// nothing.
pub async fn windows(
    view: View<'_>,
    asked: WindowsAsked,
    after: Option<WindowPlace>,
    limit: i64,
) -> Result<Vec<WindowView>, ServiceError> {
    let tenant = match view {
        View::All(_) => None,
        View::Tenant(_, tenancy) => Some(tenancy.name.clone()),
    };
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let WindowsAsked { node, within, device, kind } = asked;
    view.platform()
        .read(move |scope, tx| {
            unit(async move {
                let name = ScopeName { kind: ScopeKind::Node, name: node };
                let home = match (fleet::find_scope(scope, tx, &name).await?, &tenant) {
                    (Some(home), _) => home,
                    (None, Some(_)) => return Ok(vec![]),
                    (None, None) => {
                        return Err(ServiceError::NotFound { what: "node", name: name.name.to_string() });
                    }
                };
                let rules = mapping::rules(scope, tx).await?;
                let wanted = Wanted { within, device, kind, tenant, rules };
                let (mut shown, mut at) = (Vec::new(), after);
                loop {
                    let place = at.as_ref().map(|WindowPlace(from, stream, sequence, _)| BatchPlace {
                        from_us: *from,
                        stream: stream.clone(),
                        sequence: *sequence,
                    });
                    let batches =
                        journal::batches_after(scope, tx, home.id, within, place.as_ref(), BATCHES_AT_ONCE);
                    let batches = batches.await?;
                    let is_last = i64::try_from(batches.len()).unwrap_or(i64::MAX) < BATCHES_AT_ONCE;
                    for (batch, is_import) in batches {
                        let first = match &at {
                            Some(WindowPlace(_, stream, sequence, index))
                                if *stream == batch.stream.to_string() && *sequence == batch.sequence =>
                            {
                                index.saturating_add(1)
                            }
                            _ => 0,
                        };
                        // What cannot be read was set aside, and is not asked for.
                        let Ok(decoded) = read_stored(&batch, &name, is_import) else { continue };
                        shown.extend(
                            wanted
                                .of(&batch, &decoded.batch)
                                .into_iter()
                                .filter(|view| view.place.3 >= first),
                        );
                        at = Some(end_of(&batch));
                        if shown.len() >= limit {
                            shown.truncate(limit);
                            return Ok(shown);
                        }
                    }
                    if is_last {
                        return Ok(shown);
                    }
                }
            })
        })
        .await
}

/// Behind the last window of a batch.
fn end_of(batch: &StoredBatch) -> WindowPlace {
    WindowPlace(batch.span.start().micros(), batch.stream.to_string(), batch.sequence, usize::MAX)
}

struct Wanted {
    within: Span,
    device: Option<Name>,
    kind: Option<WindowKind>,
    tenant: Option<Name>,
    rules: MappingRules,
}

impl WindowKind {
    /// Reads a word.
    ///
    /// # Errors
    /// Says which there are.
    pub fn parse(word: &str) -> Result<Self, &'static str> {
        match word {
            "held" => Ok(Self::Held),
            "existed" => Ok(Self::Existed),
            "measured" => Ok(Self::Measured),
            _ => Err("is none of held, existed and measured"),
        }
    }
}

impl Wanted {
    fn of(&self, from: &StoredBatch, batch: &Batch) -> Vec<WindowView> {
        let rows =
            batch.rows.iter().map(|row| (WindowKind::Held, row.slice, Some(row.evidence), row.span, None));
        let layout = batch.layout.iter().map(|row| (WindowKind::Existed, row.slice, None, row.span, None));
        let usage = batch.usage.iter().map(|row| {
            let measured = (row.active_nanos, row.memory_byte_seconds);
            (WindowKind::Measured, row.slice, row.evidence, row.span, Some(measured))
        });
        let all = rows.chain(layout).chain(usage).enumerate();
        all.filter(|(_, (kind, .., span, _))| {
            span.meets(self.within) && self.kind.is_none_or(|wanted| wanted == *kind)
        })
        .filter_map(|(index, (kind, slice, seen, span, measured))| {
            let slice = batch.slices.get(slice)?;
            if self.device.as_ref().is_some_and(|wanted| *wanted != slice.device) {
                return None;
            }
            let seen = seen.and_then(|seen| batch.evidence.get(seen));
            self.is_seen(seen, span).then(|| self.view((kind, slice, seen, span), measured, from, index))
        })
        .collect()
    }

    fn is_seen(&self, evidence: Option<&Evidence>, span: Span) -> bool {
        let Some(tenant) = &self.tenant else { return true };
        evidence.is_some_and(|seen| self.rules.owner(seen, span.start()).tenant.as_ref() == Some(tenant))
    }

    fn view(
        &self,
        (kind, slice, seen, span): (WindowKind, &Slice, Option<&Evidence>, Span),
        measured: Option<(Option<i64>, Option<i64>)>,
        from: &StoredBatch,
        index: usize,
    ) -> WindowView {
        let (active_nanos, memory_byte_seconds) = measured.unwrap_or_default();
        let stream: Uuid = from.stream;
        WindowView {
            kind,
            from: span.start().to_string(),
            to: span.end().to_string(),
            gpu_uuid: slice.device.to_string(),
            mode: slice.mode.word().to_owned(),
            slice: slice.path(),
            slice_id: slice.id.as_ref().map(Name::to_string),
            tenant: seen
                .and_then(|seen| self.rules.owner(seen, span.start()).tenant)
                .map(|tenant| tenant.to_string()),
            evidence: seen
                .into_iter()
                .flat_map(Evidence::iter)
                // Whom an import declared may be somebody else, whom a rule put aside.
                .filter(|(field, _)| self.tenant.is_none() || !field.is_declaration())
                .map(|(field, value)| (field.word(), value.to_string()))
                .collect(),
            active_nanos,
            memory_byte_seconds,
            stream: stream.to_string(),
            sequence: from.sequence,
            place: WindowPlace(from.span.start().micros(), stream.to_string(), from.sequence, index),
        }
    }
}
