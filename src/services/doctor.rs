//! The doctor: is the database well, and do the levels still say what the journal says.

use std::collections::BTreeSet;

use super::ctx::Platform;
use super::derive::{self, DayInputs};
use super::error::ServiceError;
use crate::domain::period::{BillingZone, Day, Span};
use crate::store::{findings, fleet, installation, journal, levels, marks, node_hour, unit};

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    /// What.
    pub subject: String,
    /// How it is.
    pub verdict: Verdict,
    /// In words.
    pub detail: String,
}

/// How something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// As it should be.
    Well,
    /// Worth knowing; no figure is wrong.
    Notice,
    /// Wrong.
    Ill,
}

impl Verdict {
    /// The word.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Well => "ok",
            Self::Notice => "notice",
            Self::Ill => "WRONG",
        }
    }
}

/// Looks at the database, the zone, the findings, and each level against the one below, down to the journal.
///
/// # Errors
/// [`ServiceError`] when it cannot look.
pub async fn examine(platform: &Platform) -> Result<Vec<Check>, ServiceError> {
    let mut checks = Vec::new();
    let mut say = |subject: &str, verdict, detail: String| {
        checks.push(Check { subject: subject.to_owned(), verdict, detail });
    };
    let ((batches, rows), found, (unequal, unequal_months), fixed, before) = platform
        .read(move |scope, tx| {
            unit(async move {
                let size = journal::size(scope, tx).await?;
                let found = findings::summary(scope, tx).await?;
                let unequal = levels::unequal_tenant_days(scope, tx).await?;
                let unequal = (unequal, levels::unequal_tenant_months(scope, tx).await?);
                // What this process read at its start may have been fixed since.
                let fixed = installation::find(scope, tx).await?.and_then(|there| there.fixed);
                Ok::<_, ServiceError>((size, found, unequal, fixed, marks::count(scope, tx).await?))
            })
        })
        .await?;
    say("database", Verdict::Well, platform.store.describe());
    if platform.installation.is_demo {
        say("demo", Verdict::Notice, "all data of this installation is made up".to_owned());
    }
    say("journal", Verdict::Well, format!("{batches} batches, {rows} rows"));
    zone_check(platform, fixed.is_some(), &mut say);
    let pending = derive::pending(platform).await?;
    let verdict = if pending == 0 { Verdict::Well } else { Verdict::Notice };
    say("worker", verdict, format!("{pending} marks wait to be derived"));
    let recount = recount(platform).await?;
    let after = derive::pending(platform).await?;
    // While marks wait, the levels are behind by design; also where they are worked off while somebody looks.
    let behind = if (before, pending, after) == (0, 0, 0) { Verdict::Ill } else { Verdict::Notice };
    let verdict = if recount.differing.is_empty() { Verdict::Well } else { behind };
    let detail =
        format!("{} node-days recounted from the journal, {} differ", recount.days, recount.differing.len());
    say("node_hour, node_day", verdict, detail + &shown(&recount.differing));
    let differing: Vec<String> = unequal
        .iter()
        .map(|(day, tenant, difference)| format!("{day} tenant {} by {difference}", tenant.stored()))
        .collect();
    let verdict = if differing.is_empty() { Verdict::Well } else { behind };
    say(
        "tenant_day",
        verdict,
        format!("{} sums of tenants differ from those of their nodes", differing.len()) + &shown(&differing),
    );
    let differing: Vec<String> = unequal_months
        .iter()
        .map(|(month, tenant, difference)| format!("{month} tenant {} by {difference}", tenant.stored()))
        .collect();
    // The one level that is never behind the one below.
    let verdict = if differing.is_empty() { Verdict::Well } else { Verdict::Ill };
    say(
        "tenant_month",
        verdict,
        format!("{} sums of months differ from those of their days", differing.len()) + &shown(&differing),
    );
    for (kind, subject, times, detail) in found {
        say("finding", Verdict::Notice, format!("{kind} {subject} ({times} times): {detail}"));
    }
    Ok(checks)
}

fn zone_check(platform: &Platform, is_fixed: bool, say: &mut impl FnMut(&str, Verdict, String)) {
    let installation = &platform.installation;
    let (stored, carried) = (&installation.zone_database, BillingZone::database_version());
    let state = if is_fixed { "fixed" } else { "not fixed yet" };
    let zone = format!("{}, {state}; time-zone database {carried}", installation.zone);
    if stored == carried {
        say("zone", Verdict::Well, zone);
    } else {
        let detail = format!(
            "{zone}, but days were cut with {stored}: compare the zone's rules, then `fatia rebuild`"
        );
        say("zone", Verdict::Notice, detail);
    }
    say("currency", Verdict::Well, installation.currency.to_string());
}

fn shown(differing: &[String]) -> String {
    let first: Vec<&str> = differing.iter().take(5).map(String::as_str).collect();
    if first.is_empty() { String::new() } else { format!(": {}", first.join("; ")) }
}

/// What a recount found.
struct Recount {
    days: usize,
    differing: Vec<String>,
}

/// Derives each day anew from the journal, without writing, and compares the bytes.
async fn recount(platform: &Platform) -> Result<Recount, ServiceError> {
    let zone = platform.zone();
    let scopes =
        platform.read(move |scope, tx| unit(async move { Ok(fleet::scopes(scope, tx).await?) })).await?;
    let mut recount = Recount { days: 0, differing: Vec::new() };
    for home in scopes {
        let id = home.id;
        let (services, summed, starts) = platform
            .read(move |scope, tx| {
                unit(async move {
                    let services = fleet::scope_services(scope, tx, id).await?;
                    let summed = levels::summed_days(scope, tx, id).await?;
                    Ok((services, summed, node_hour::starts(scope, tx, id).await?))
                })
            })
            .await?;
        let mut days: BTreeSet<Day> = summed.into_iter().collect();
        for service in services {
            days.extend(zone.days_meeting(Span::clamped(service.span.start(), service.edge)));
        }
        days.extend(starts.into_iter().map(|start| zone.day_of(start)));
        for day in days {
            let home = home.clone();
            let inputs = platform
                .read(move |scope, tx| {
                    unit(async move { DayInputs::read_all(scope, tx, home, day, zone).await })
                })
                .await?;
            let result = inputs.compute()?;
            recount.days += 1;
            if !result.changed.is_empty() || !result.removed.is_empty() || result.rows != inputs.rows {
                recount.differing.push(inputs.describe());
            }
        }
    }
    Ok(recount)
}
