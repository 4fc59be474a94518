//! The month's cost report, with its reconciliation: a report that does not reconcile is an error.

use super::ctx::Platform;
use super::error::ServiceError;
use crate::domain::period::Month;
use crate::domain::report::{CostReport, Dimension, cost_report};
use crate::domain::units::Quantity;
use crate::store::{fleet, levels, marks, prices, unit};

/// A report, and how many marks wait for a worker: while some do, its figures may change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Costs {
    /// The report; it reconciles.
    pub report: CostReport,
    /// Marks that wait, over all months.
    pub pending: i64,
}

/// Makes the cost report of a month, from one snapshot.
///
/// # Errors
/// [`ServiceError::Unreconciled`] names the difference, and how many marks still wait for a worker.
pub async fn costs(
    platform: &Platform,
    period: Month,
    dimensions: Vec<Dimension>,
) -> Result<Costs, ServiceError> {
    let zone = platform.zone();
    let asked = dimensions.clone();
    let (days, span) = (period.first_day()..period.end_day(), zone.month_span(period));
    let (sums, services, prices, pending) = platform
        .read(move |scope, tx| {
            unit(async move {
                let stale = marks::stale_tenant_days(scope, tx, days.clone()).await?;
                let sums = levels::sums(scope, tx, days, &stale, &asked).await?;
                let services = fleet::counted_services(scope, tx, span).await?;
                let prices = prices::cost_prices(scope, tx).await?;
                Ok::<_, ServiceError>((sums, services, prices, marks::count(scope, tx).await?))
            })
        })
        .await?;
    let currency = platform.installation.currency;
    let report = cost_report(period, zone, currency, dimensions, sums, &prices, &services)?;
    if report.reconciliation.difference != Quantity::ZERO {
        return Err(ServiceError::Unreconciled { reconciliation: report.reconciliation, pending });
    }
    Ok(Costs { report, pending })
}
