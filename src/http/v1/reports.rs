//! Cost reports: of everything, or of the caller's own tenant.

use crate::domain::period::{BillingZone, Day, Month};
use crate::domain::report::{Dimension, PeriodError, ReportPeriod};
use crate::domain::units::Instant;
use crate::http::call::{Call, Reply};
use crate::http::problem::Problem;
use crate::http::query::Query;
use crate::services::access::View;
use crate::services::reports;
use crate::wire::costs_v1::{Costs, Frame};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Json,
    Csv,
}

pub(in crate::http) async fn costs(mut call: Call) -> Result<Reply, Problem> {
    let zone = call.service.platform.zone();
    let period = period(&mut call.query, zone);
    let dimensions = call.query.find("group_by", dimensions);
    let format = call.query.find("format", |text| match text {
        "json" => Ok(Format::Json),
        "csv" => Ok(Format::Csv),
        _ => Err("is neither json nor csv"),
    });
    call.no_more_query()?;
    // A period that is missing was a fault above.
    let Some(period) = period else { return Err(Problem::not_found()) };
    let by_default = || vec![Dimension::Tenant, Dimension::Project, Dimension::Mode];
    let dimensions = dimensions.unwrap_or_else(by_default);
    let _turn = call.service.reports.acquire().await;
    let (costs, pending) = match call.view()? {
        View::All(platform) => {
            let platform = platform.clone();
            let made = call.service.apart(async move {
                let reports::Costs { report, pending } =
                    reports::costs(&platform, period, dimensions).await?;
                Ok((Costs::of_report(&report, platform.installation.is_demo), Some(pending)))
            });
            made.await?
        }
        View::Tenant(platform, tenancy) => {
            let (platform, tenancy) = (platform.clone(), tenancy.clone());
            let made = call.service.apart(async move {
                let own = reports::tenant_costs(&platform, &tenancy, period, dimensions).await?;
                let (currency, is_demo) = (platform.installation.currency, platform.installation.is_demo);
                let frame = Frame { period, zone, currency, as_of: own.as_of, is_demo };
                Ok((Costs::of_summary(frame, &own.summary), None))
            });
            made.await?
        }
    };
    let reply = match format.unwrap_or(Format::Json) {
        Format::Json => Reply::json(&costs)?,
        Format::Csv => {
            let of = if costs.demo { "demo-costs" } else { "costs" };
            let name = format!("{of}-{}", costs.period.replace('/', "_"));
            Reply::bytes("text/csv; charset=utf-8; header=present", costs.to_csv())
                .with("Content-Disposition", format!("attachment; filename=\"{name}.csv\""))
        }
    };
    Ok(match pending {
        // Marks that wait for a worker: while some do, the figures may change.
        Some(pending) => reply.with("Fatia-Pending-Marks", pending.to_string()),
        None => reply,
    })
}

/// The dimensions in the order asked, each once.
fn dimensions(text: &str) -> Result<Vec<Dimension>, String> {
    let mut distinct = Vec::new();
    for word in text.split(',') {
        let dimension = Dimension::parse(word.trim()).map_err(|error| error.to_string())?;
        if !distinct.contains(&dimension) {
            distinct.push(dimension);
        }
    }
    Ok(distinct)
}

/// `period=YYYY-MM`, or `from` and `to`: each a date of the billing zone or an instant at which a day begins there.
fn period(query: &mut Query, zone: BillingZone) -> Option<ReportPeriod> {
    let month = query.find("period", Month::parse);
    let (asked_period, from, to) = (query.text("period"), query.text("from"), query.text("to"));
    match (asked_period, &from, &to) {
        (Some(_), None, None) => return month.map(ReportPeriod::of_month),
        (Some(_), ..) => query.fault("period", "is given beside from or to; one of them is taken"),
        (None, Some(_), None) => query.fault("to", "is missing"),
        (None, None, Some(_)) => query.fault("from", "is missing"),
        (None, None, None) => query.fault("period", "is missing; so are from and to"),
        (None, Some(_), Some(_)) => {}
    }
    let from = query.find("from", |text| edge(text, zone));
    let to = query.find("to", |text| edge(text, zone));
    match ReportPeriod::of_edges(zone, from?, to?) {
        Ok(period) => Some(period),
        Err(error) => {
            let name = match error {
                PeriodError::InsideADay { edge, .. } if Some(edge) == from => "from",
                PeriodError::InsideADay { .. } | PeriodError::Empty { .. } | PeriodError::TooLong { .. } => {
                    "to"
                }
            };
            query.fault(name, error);
            None
        }
    }
}

fn edge(text: &str, zone: BillingZone) -> Result<Instant, &'static str> {
    let date = Day::parse(text).ok().map(|day| zone.day_start(day));
    date.or_else(|| Instant::parse(text).ok())
        .ok_or("is neither a date such as 2026-06-01 nor an RFC 3339 instant")
}
