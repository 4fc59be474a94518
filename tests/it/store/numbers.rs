//! Whole numbers stay whole: through tables, sums and reports, on both databases.

use std::collections::{BTreeMap, BTreeSet};

use fatia::domain::cost::Sum;
use fatia::domain::ids::{Name, ScopeId, TenantId};
use fatia::domain::money::{Currency, UnitPrice};
use fatia::domain::period::{Day, Span};
use fatia::domain::policy::Policy;
use fatia::domain::price::{Book, PriceVersion};
use fatia::domain::report::{Dimension, ReportError, SumRow};
use fatia::domain::units::Quantity;
use fatia::services::error::ServiceError;
use fatia::services::pricing;
use fatia::store::levels::{self, NodeDayRow};
use fatia::store::{PlatformScope, ReadTx, Scope, StoreError, journal, prices, unit};

use crate::support::platform::{TestPlatform, at, name, on_both_databases, read, write};

/// 2026-06-01.
fn first_of_june() -> Day {
    Day::from_stored(20_605).expect("a day of this century")
}

/// Writes rows of `node_day`, one scope each, so that only the level above adds them up.
async fn store_quantities(platform: &TestPlatform, quantities: &[i64]) {
    for (scope, quantity) in (1_i64..).zip(quantities) {
        let words = ["", &format!("w{scope}"), "", "A10", "A10", "idle", "", ""].map(str::to_owned);
        let row = NodeDayRow {
            tenant: TenantId::PLATFORM,
            words,
            sum: Sum { quantity: Quantity::from_micro(*quantity), ..Sum::default() },
        };
        let rows = [row];
        write(platform, move |platform, tx| {
            let rows = rows.clone();
            unit(async move {
                levels::replace_node_day(platform, tx, ScopeId::from_stored(scope), first_of_june(), &rows)
                    .await
            })
        })
        .await
        .expect("any quantity can be stored");
    }
}

async fn sum_up(platform: &TestPlatform) -> Result<(), StoreError> {
    write(platform, |scope, tx| {
        unit(async move { levels::replace_tenant_day(scope, tx, first_of_june(), TenantId::PLATFORM).await })
    })
    .await
}

async fn all_sums(
    scope: &PlatformScope,
    tx: &ReadTx,
    days: std::ops::Range<Day>,
    stale: &BTreeSet<Day>,
    dimensions: &[Dimension],
) -> Result<Vec<SumRow>, StoreError> {
    let names = levels::Names::read(scope, tx, dimensions).await?;
    levels::sums(&Scope::from(scope), tx, days, stale, dimensions, &names).await
}

async fn sums(platform: &TestPlatform, dimensions: &'static [Dimension]) -> Result<Vec<i64>, StoreError> {
    let days = first_of_june()..first_of_june().next();
    let rows = read(platform, move |scope, tx| {
        unit(async move { all_sums(scope, tx, days, &BTreeSet::new(), dimensions).await })
    });
    Ok(rows.await?.into_iter().map(|row| row.sum.quantity.micro()).collect())
}

on_both_databases! {
    /// What a report would be of is bounded before it is read, so that no question takes all memory.
    async fn a_report_of_too_many_groups_is_refused(platform: &TestPlatform) {
        platform.import("n1 g1 A10 06-01T00:00 06-01T03:00", "").await;
        let mut raw = platform.raw().await;
        raw.run(&format!(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i <= {}) \
             INSERT INTO node_day (scope_id, day, revision, tenant_id, project, workload, mode, model, sku, state, cost_item, \
             charge_item, quantity) SELECT 1, 20605, 0, 0, '', 'w' || CAST(i AS TEXT), '', '', '', 'used', '', '', 1 FROM n",
            levels::SUMS_MAX
        ))
        .await;
        let error = platform.costs("06", "workload").await.unwrap_err();
        assert_eq!(error.to_string(), "there are more than 200000 groups in the report");
    }

    /// A month's sums are read also while a few of its days are behind: theirs are taken out, and the nodes' put in.
    async fn a_month_of_which_a_day_is_behind_is_what_it_will_be(platform: &TestPlatform) {
        platform
            .import(
                "n1 g1 A10 06-01T00:00 06-04T00:00",
                "w1 acme/a n1 g1 dedicated 06-02T00:00 06-02T12:00
                 w2 beta/b n1 g1 dedicated 06-01T00:00 06-01T12:00",
            )
            .await;
        platform.derive().await;
        assert_eq!(
            platform.shown("tenant").await,
            ["acme 12.000000 - unpriced 12.000000", "beta 12.000000 - unpriced 12.000000", "platform 48.000000 - unpriced 48.000000"]
        );
        // What acme had on its only day is beta's now, and the tenants' sums are still those of before.
        let mut raw = platform.raw().await;
        let day = first_of_june().next().stored();
        let number = |name: &str| format!("(SELECT tenant_id FROM tenant WHERE name = '{name}')");
        raw.run(&format!(
            "UPDATE node_day SET tenant_id = {}, project = 'c' WHERE day = {day} AND tenant_id = {}",
            number("beta"),
            number("acme")
        ))
        .await;
        for tenant in ["acme", "beta"] {
            let bucket = format!("{} % 256", number(tenant));
            raw.run(&format!(
                "INSERT INTO dirty_tenant_day (bucket, day, tenant_id, version) VALUES ({bucket}, {day}, {}, 1)",
                number(tenant)
            ))
            .await;
        }
        let behind = platform.shown("tenant project state").await;
        assert_eq!(
            behind,
            [
                "beta b used 12.000000 - unpriced 12.000000",
                "beta c used 12.000000 - unpriced 12.000000",
                "platform none idle 48.000000 - unpriced 48.000000",
            ]
        );
        platform.derive().await;
        assert_eq!(platform.count("dirty_tenant_day").await, 0);
        assert_eq!(platform.shown("tenant project state").await, behind);
    }

    async fn sums_read_as_whole_numbers(platform: &TestPlatform) {
        // Past 2⁵³ a float would lose the last digits.
        store_quantities(platform, &[i64::MAX - 5, -7, 9, 2]).await;
        sum_up(platform).await.expect("it fits");
        assert_eq!(sums(platform, &[Dimension::Tenant]).await.expect("it fits"), [i64::MAX - 1]);
        let mut raw = platform.raw().await;
        assert_eq!(raw.number("SELECT quantity FROM tenant_day").await, i64::MAX - 1);
        let size = read(platform, |scope, tx| unit(async move { journal::size(scope, tx).await })).await;
        assert_eq!(size.expect("an empty journal has a size"), (0, 0));
        let unequal =
            read(platform, |scope, tx| unit(async move { levels::unequal_tenant_days(scope, tx).await }));
        assert_eq!(unequal.await.expect("sums can be compared"), []);
    }

    async fn a_sum_past_64_bits_is_an_error_and_never_a_float(platform: &TestPlatform) {
        store_quantities(platform, &[i64::MAX, 1]).await;
        let error = sum_up(platform).await.expect_err("it does not fit");
        assert!(matches!(error, StoreError::Statement(_)), "{error:?}");
        assert_eq!(platform.count("tenant_day").await, 0, "nothing was written in its place");
        let error = sums_by_model_of_nodes(platform).await.expect_err("it does not fit");
        assert!(matches!(error, StoreError::Statement(_)), "{error:?}");

        // Each group fits, their total does not.
        let error = platform.costs("06", "workload").await.expect_err("it does not fit");
        assert!(matches!(error, ServiceError::Report(ReportError::OutOfRange(_))), "{error:?}");
    }

    async fn no_decimal_survives_because_none_is_ever_made(platform: &TestPlatform) {
        let extremes = [i64::MIN, i64::MIN + 1, -1, 0, 1, (1 << 53) + 1, i64::MAX - 1, i64::MAX];
        store_quantities(platform, &extremes).await;
        let mut stored = Vec::new();
        for scope in 1..=8 {
            let rows = read(platform, move |platform, tx| {
                unit(async move {
                    levels::node_day(platform, tx, ScopeId::from_stored(scope), first_of_june()).await
                })
            });
            stored.extend(rows.await.expect("rows read back").into_iter().map(|row| row.sum.quantity.micro()));
        }
        assert_eq!(stored, extremes);

        let scaled = [0, 1, (1 << 53) + 1, i64::MAX - 1, i64::MAX];
        let models: Vec<Name> = (0..scaled.len()).map(|number| name(&format!("model {number}"))).collect();
        let prices: BTreeMap<(Book, Name), UnitPrice> = models
            .iter()
            .zip(scaled)
            .flat_map(|(model, price)| {
                Book::ALL.map(|book| ((book, model.clone()), UnitPrice::from_scaled(price)))
            })
            .collect();
        let currency = Currency::parse("USD").expect("a currency");
        let version =
            PriceVersion { name: name("extremes"), revision: 1, effective: Span::ALWAYS, currency, prices, policy: Policy::default() };
        let published = version.clone();
        write(platform, move |scope, tx| {
            let version = published.clone();
            unit(async move { prices::publish(scope, tx, &version, &[1; 32], at("06-01T00:00")).await })
        })
        .await
        .expect("any price can be stored");
        let book = read(platform, |scope, tx| unit(async move { prices::book(scope, tx).await })).await;
        assert_eq!(book.expect("a book reads back").versions(), [version]);
        let costs =
            read(platform, |scope, tx| unit(async move { prices::cost_prices(scope, tx).await })).await;
        let costs: Vec<i64> = costs.expect("prices read back").into_values().map(UnitPrice::scaled).collect();
        assert_eq!(costs, scaled);
    }

    async fn the_dearest_price_comes_out_of_a_file_as_it_stands_there(platform: &TestPlatform) {
        let file = "name = \"dear\"\ncurrency = \"USD\"\neffective_from = \"2026-06-01T00:00:00Z\"\n\
                    [cost]\nA10 = \"92233720368.54775807\"\n";
        pricing::load(platform, "dear.toml", file).await.expect("it is the largest");
        platform.import("n1 g1 A10 06-01T00:00 06-01T03:00", "").await;
        platform.derive().await;
        assert_eq!(platform.shown("model").await, ["A10 3.000000 276701161105.64327421"]);
    }
}

/// One group over all nodes, read from the level of the nodes.
async fn sums_by_model_of_nodes(platform: &TestPlatform) -> Result<Vec<i64>, StoreError> {
    let days = first_of_june()..first_of_june().next();
    let stale = BTreeSet::from([first_of_june()]);
    let rows = read(platform, move |scope, tx| {
        unit(async move { all_sums(scope, tx, days, &stale, &[Dimension::Model]).await })
    });
    Ok(rows.await?.into_iter().map(|row| row.sum.quantity.micro()).collect())
}
