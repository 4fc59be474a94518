//! Findings: what someone should know, written in the transaction that saw it.

use super::{PlatformScope, ReadTx, StoreError, WriteTx};
use crate::domain::ids::ScopeId;
use crate::domain::period::Span;
use crate::domain::units::Instant;

/// What was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FindingKind {
    /// A slice's profile is in no catalogue; its time is unknown.
    UnknownProfile,
    /// A layout that no board can have; the device's time is unknown.
    IllegalLayout,
    /// A slice inside one that did not exist; its time is unknown.
    LostParent,
    /// A placement was not known; the one that leaves the most was taken.
    LayoutAssumed,
    /// More devices of a pool were held than it had; each holder has its part of all of them.
    PoolOverheld,
    /// What sources said of an hour is more than can be kept; it is unknown.
    HourTooLarge,
    /// Two sources claimed one device at one time; one was believed.
    SourceConflict,
    /// A signed batch could not be read; its bytes are kept and its span is unknown.
    BatchSetAside,
    /// A rebuild found less evidence than the kept hour has; the hour was left alone.
    CoverageLost,
    /// A sender says that what it saw is lost; the span is unknown.
    UsageGap,
    /// A sender began a new stream, since the service has what it did not send: it was set back, or runs twice.
    RollbackOrClone,
    /// A sender's wall clock is off; its windows were placed by the service's time.
    ClockSkew,
    /// A node's agent found a device that is another's, or that was taken out of service.
    DeviceContested,
}

impl FindingKind {
    /// All kinds.
    pub const ALL: [Self; 13] = [
        Self::UnknownProfile,
        Self::IllegalLayout,
        Self::LostParent,
        Self::LayoutAssumed,
        Self::PoolOverheld,
        Self::HourTooLarge,
        Self::SourceConflict,
        Self::BatchSetAside,
        Self::CoverageLost,
        Self::UsageGap,
        Self::RollbackOrClone,
        Self::ClockSkew,
        Self::DeviceContested,
    ];

    /// The word.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::UnknownProfile => "unknown_profile",
            Self::IllegalLayout => "illegal_layout",
            Self::LostParent => "lost_parent",
            Self::LayoutAssumed => "layout_assumed",
            Self::PoolOverheld => "pool_overheld",
            Self::HourTooLarge => "hour_too_large",
            Self::SourceConflict => "source_conflict",
            Self::BatchSetAside => "batch_set_aside",
            Self::CoverageLost => "coverage_lost",
            Self::UsageGap => "usage_gap",
            Self::RollbackOrClone => "rollback_or_clone",
            Self::ClockSkew => "clock_skew",
            Self::DeviceContested => "device_contested",
        }
    }
}

/// A row that says what someone should know.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// What was found.
    pub kind: FindingKind,
    /// The node or pool that it is about.
    pub scope: ScopeId,
    /// Of what: natural names.
    pub subject: String,
    /// For which time.
    pub span: Span,
    /// In words for people.
    pub detail: String,
}

/// Writes findings; one that is there already is brought up to date.
///
/// # Errors
/// [`StoreError`].
pub async fn write(
    _scope: &PlatformScope,
    tx: &WriteTx,
    findings: &[Finding],
    now: Instant,
) -> Result<(), StoreError> {
    // One statement may not touch a row twice.
    let mut distinct: std::collections::BTreeMap<(&str, i64, &str, i64), &Finding> =
        std::collections::BTreeMap::new();
    for finding in findings {
        let since = finding.span.start().micros();
        distinct.insert((finding.kind.word(), finding.scope.stored(), &finding.subject, since), finding);
    }
    let rows = distinct
        .into_values()
        .map(|finding| {
            let (since, until) = (finding.span.start().micros(), finding.span.end().micros());
            vec![
                finding.kind.word().into(),
                finding.scope.stored().into(),
                finding.subject.as_str().into(),
                since.into(),
                until.into(),
                finding.detail.as_str().into(),
                now.micros().into(),
            ]
        })
        .collect();
    let columns = ["kind", "scope_id", "subject", "since_us", "until_us", "detail", "written_us"];
    let again = "ON CONFLICT (kind, scope_id, subject, since_us) DO UPDATE SET until_us = excluded.until_us, detail = excluded.detail";
    tx.insert("finding", &columns, rows, again).await.map(|_| ())
}

/// Removes what a fold found in a span of a scope, before it is found anew.
///
/// # Errors
/// [`StoreError`].
pub async fn forget(
    _scope: &PlatformScope,
    tx: &WriteTx,
    scope: ScopeId,
    kinds: &[FindingKind],
    within: Span,
) -> Result<(), StoreError> {
    for kind in kinds {
        let sql =
            "DELETE FROM finding WHERE kind = $1 AND scope_id = $2 AND since_us >= $3 AND since_us < $4";
        let (start, end) = (within.start().micros().into(), within.end().micros().into());
        tx.run(sql, vec![kind.word().into(), scope.stored().into(), start, end]).await?;
    }
    Ok(())
}

/// Findings by kind and subject: how often, and one detail.
///
/// # Errors
/// [`StoreError`].
pub async fn summary(
    _scope: &PlatformScope,
    tx: &ReadTx,
) -> Result<Vec<(String, String, i64, String)>, StoreError> {
    let sql = "SELECT kind, subject, COUNT(*), MIN(detail) FROM finding GROUP BY kind, subject ORDER BY kind, subject";
    let rows = tx.all(sql, vec![]).await?;
    rows.iter().map(|row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?))).collect()
}

/// A finding with its natural names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedFinding {
    /// Its kind's word.
    pub kind: String,
    /// The node or pool that it is about; none: neither.
    pub scope: Option<String>,
    /// Of what.
    pub subject: String,
    /// For which time; an open end reaches [`Instant::MAX`].
    pub span: Span,
    /// In words for people.
    pub detail: String,
    /// When it was written.
    pub written: Instant,
    /// Where it stands in the list.
    pub place: FindingPlace,
}

/// Where in the list of findings one stands: since, kind, scope's number, subject.
pub type FindingPlace = (i64, String, i64, String);

/// Findings before one, the latest first, at most so many; of one kind where it is named.
///
/// # Errors
/// [`StoreError`].
pub async fn list(
    _scope: &PlatformScope,
    tx: &ReadTx,
    kind: Option<FindingKind>,
    before: &FindingPlace,
    limit: i64,
) -> Result<Vec<ListedFinding>, StoreError> {
    let only = if kind.is_some() { " AND f.kind = $6" } else { "" };
    let sql = format!(
        "SELECT f.kind, s.name, f.subject, f.since_us, f.until_us, f.detail, f.written_us, f.scope_id FROM finding f \
         LEFT JOIN scope s ON s.scope_id = f.scope_id \
         WHERE (f.since_us, f.kind, f.scope_id, f.subject) < ($1, $2, $3, $4){only} \
         ORDER BY f.since_us DESC, f.kind DESC, f.scope_id DESC, f.subject DESC LIMIT $5"
    );
    let (since, word, scope, subject) = before;
    let mut values =
        vec![(*since).into(), word.as_str().into(), (*scope).into(), subject.as_str().into(), limit.into()];
    values.extend(kind.map(|kind| kind.word().into()));
    let rows = tx.all(&sql, values).await?;
    rows.iter()
        .map(|row| {
            let (kind, subject, since): (String, String, i64) = (row.get(0)?, row.get(2)?, row.get(3)?);
            let place = (since, kind.clone(), row.get(7)?, subject.clone());
            Ok(ListedFinding {
                kind,
                scope: row.get(1)?,
                subject,
                span: super::fleet::span_of(since, row.get(4)?),
                detail: row.get(5)?,
                written: Instant::from_micros(row.get(6)?),
                place,
            })
        })
        .collect()
}
