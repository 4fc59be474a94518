//! Cost reports, with their reconciliation: a report that does not reconcile is an error.

use super::access::Tenancy;
use super::ctx::Platform;
use super::error::ServiceError;
use crate::domain::report::{CostReport, Dimension, ReportPeriod, Summary, as_of, cost_report, summary};
use crate::domain::units::{Instant, Quantity};
use crate::store::{Scope, StoreError, fleet, levels, marks, prices, unit};

/// A report, and how many marks wait for a worker: while some do, its figures may change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Costs {
    /// The report; it reconciles.
    pub report: CostReport,
    /// Marks that wait, over all months.
    pub pending: i64,
}

/// Makes the cost report of some days, from one snapshot.
///
/// # Errors
/// [`ServiceError::Unreconciled`] names the difference, and how many marks still wait for a worker.
pub async fn costs(
    platform: &Platform,
    period: ReportPeriod,
    dimensions: Vec<Dimension>,
) -> Result<Costs, ServiceError> {
    let zone = platform.zone();
    let asked = dimensions.clone();
    let (days, span) = (period.days(), period.span(zone));
    let (sums, services, prices, pending) = platform
        .read(move |scope, tx| {
            unit(async move {
                let stale = marks::stale_tenant_days(scope, tx, days.clone()).await?;
                let names = levels::Names::read(scope, tx, &asked).await?;
                let sums = levels::sums(&Scope::from(scope), tx, days, &stale, &asked, &names).await?;
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

/// A tenant's part of a report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TenantCosts {
    /// Its own groups and totals.
    pub summary: Summary,
    /// Until when everything is counted; at most the period's end.
    pub as_of: Instant,
}

/// Makes a tenant's part of the cost report of some days. The rows are read in the tenant's own scope; what it needs of
/// the platform (prices, names of nodes, how far the sums are) is read before.
///
/// # Errors
/// [`ServiceError`].
pub async fn tenant_costs(
    platform: &Platform,
    tenancy: &Tenancy,
    period: ReportPeriod,
    dimensions: Vec<Dimension>,
) -> Result<TenantCosts, ServiceError> {
    match tenant_costs_once(platform, tenancy, period, dimensions.clone()).await {
        // A price or a name that came between the two reads is there at the second look.
        Err(ServiceError::Report(_) | ServiceError::Store(StoreError::Corrupt { .. })) => {
            tenant_costs_once(platform, tenancy, period, dimensions).await
        }
        ended => ended,
    }
}

async fn tenant_costs_once(
    platform: &Platform,
    tenancy: &Tenancy,
    period: ReportPeriod,
    dimensions: Vec<Dimension>,
) -> Result<TenantCosts, ServiceError> {
    let asked = dimensions.clone();
    let (days, span) = (period.days(), period.span(platform.zone()));
    let stale_of = days.clone();
    let (stale, names, services, prices) = platform
        .read(move |scope, tx| {
            unit(async move {
                let stale = marks::stale_tenant_days(scope, tx, stale_of).await?;
                let names = levels::Names::read(scope, tx, &asked).await?;
                let services = fleet::counted_services(scope, tx, span).await?;
                Ok::<_, ServiceError>((stale, names, services, prices::cost_prices(scope, tx).await?))
            })
        })
        .await?;
    let (scope, asked) = (Scope::from(&tenancy.scope), dimensions.clone());
    let sums = platform
        .store
        .read(scope.clone(), move |tx| {
            unit(async move {
                Ok::<_, ServiceError>(levels::sums(&scope, tx, days, &stale, &asked, &names).await?)
            })
        })
        .await?;
    Ok(TenantCosts { summary: summary(dimensions, sums, &prices)?, as_of: as_of(span, &services) })
}
