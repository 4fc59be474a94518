//! Price books over the store: what they price is summed again, and nothing is priced by guess.

use fatia::services::error::ServiceError;
use fatia::services::pricing::{self, PriceOutcome};

use crate::support::platform::{Raw, TestPlatform, at, on_both_databases};

fn book(name: &str, span: &str, prices: &[(&str, &str)]) -> String {
    let mut words = span.split_whitespace().map(at);
    let mut text = format!("name = \"{name}\"\ncurrency = \"USD\"\n");
    text.push_str(&format!("effective_from = \"{}\"\n", words.next().expect("a start")));
    if let Some(end) = words.next() {
        text.push_str(&format!("effective_to = \"{end}\"\n"));
    }
    text.push_str("[cost]\n");
    for (model, price) in prices {
        text.push_str(&format!("{model} = \"{price}\"\n"));
    }
    text
}

async fn load(platform: &TestPlatform, text: &str) -> Result<PriceOutcome, ServiceError> {
    let outcome = pricing::load(platform, "prices.toml", text).await?;
    platform.derive().await;
    platform.assert_well().await;
    Ok(outcome)
}

/// One device in service for a day and a half, held by nobody that is known.
async fn a_day_and_a_half(platform: &TestPlatform) {
    platform.import("n1 g1 A10 06-01T00:00 06-02T12:00", "").await;
    platform.derive().await;
}

on_both_databases! {
    async fn the_same_prices_again_change_nothing(platform: &TestPlatform) {
        a_day_and_a_half(platform).await;
        let june = book("june", "06-01T00:00 07-01T00:00", &[("A10", "2"), ("H100", "4.5")]);
        let first = load(platform, &june).await.expect("a good book");
        assert_eq!((first.revision, first.is_new), (1, true));
        let levels = platform.levels().await;

        // Another layout of the same is the same.
        let same = june.replace("\"2\"", "\"2.00\"");
        let again = pricing::load(platform, "prices.toml", &same).await.expect("a good book");
        assert_eq!((again.revision, again.is_new), (1, false));
        assert_eq!(fatia::services::derive::pending(platform).await.expect("marks can be counted"), 0);
        assert_eq!((platform.levels().await, platform.count("price_version").await), (levels, 1));
    }

    async fn a_replaced_revision_prices_what_it_gains_and_what_it_loses(platform: &TestPlatform) {
        a_day_and_a_half(platform).await;
        load(platform, &book("june", "06-01T00:00 06-01T12:00", &[("A10", "2")])).await.expect("a good book");
        assert_eq!(platform.shown("model").await, ["A10 36.000000 24 unpriced 24.000000"]);

        let moved = book("june", "06-01T06:00 06-02T06:00", &[("A10", "3")]);
        let outcome = load(platform, &moved).await.expect("a good book");
        assert_eq!((outcome.revision, outcome.is_new), (2, true));
        assert_eq!(platform.shown("model").await, ["A10 36.000000 72 unpriced 12.000000"]);
        assert_eq!(
            platform.shown("day").await,
            ["2026-06-01 24.000000 54 unpriced 6.000000", "2026-06-02 12.000000 18 unpriced 6.000000"]
        );

        // Back to the first text: content that was replaced is a revision of its own.
        let back = book("june", "06-01T00:00 06-01T12:00", &[("A10", "2")]);
        assert_eq!(load(platform, &back).await.expect("a good book").revision, 3);
        assert_eq!(platform.shown("model").await, ["A10 36.000000 24 unpriced 24.000000"]);
    }

    async fn versions_that_overlap_are_refused(platform: &TestPlatform) {
        a_day_and_a_half(platform).await;
        load(platform, &book("first", "06-01T00:00 06-02T00:00", &[("A10", "2")]))
            .await
            .expect("a good book");
        let levels = platform.levels().await;
        let overlapping = book("second", "06-01T23:00 06-03T00:00", &[("A10", "3")]);
        let error = load(platform, &overlapping).await.expect_err("an hour has two prices");
        assert!(matches!(error, ServiceError::Price { .. }), "{error:?}");
        let between = book("second", "06-02T00:00", &[("A10", "3")]);
        load(platform, &between).await.expect("it begins where the first ends");
        let longer = book("first", "06-01T00:00 06-02T01:00", &[("A10", "2")]);
        let error = load(platform, &longer).await.expect_err("a mended version obeys too");
        assert!(matches!(error, ServiceError::Price { .. }), "{error:?}");
        assert_ne!(platform.levels().await, levels);
        assert_eq!(platform.count("price_version").await, 2);
    }

    /// Whoever changes an input marks what depends on it in the same transaction.
    async fn a_book_whose_hours_could_not_be_marked_is_not_published(platform: &TestPlatform) {
        a_day_and_a_half(platform).await;
        let june = book("june", "06-01T00:00", &[("A10", "2")]);
        // The service dies, or the database goes, before it has marked anything.
        let mut raw = platform.raw().await;
        let constraint = match raw {
            Raw::Sqlite(_) => {
                "CREATE TRIGGER no_marks BEFORE INSERT ON dirty_node BEGIN SELECT RAISE(ABORT, 'no marks'); END"
            }
            Raw::Postgres(_) => "ALTER TABLE dirty_node ADD CONSTRAINT no_marks CHECK (false)",
        };
        raw.run(constraint).await;
        pricing::load(platform, "prices.toml", &june).await.expect_err("nothing can be marked");
        raw.run(match raw {
            Raw::Sqlite(_) => "DROP TRIGGER no_marks",
            Raw::Postgres(_) => "ALTER TABLE dirty_node DROP CONSTRAINT no_marks",
        })
        .await;

        load(platform, &june).await.expect("a good book");
        assert_eq!(platform.shown("model").await, ["A10 36.000000 72"]);
    }

    async fn a_price_change_inside_a_day_splits_it_by_hours(platform: &TestPlatform) {
        a_day_and_a_half(platform).await;
        load(platform, &book("morning", "06-01T00:00 06-01T09:00", &[("A10", "1.00000001")]))
            .await
            .expect("good");
        load(platform, &book("later", "06-01T09:00", &[("A10", "2")])).await.expect("a good book");
        assert_eq!(
            platform.shown("day").await,
            ["2026-06-01 24.000000 39.00000009", "2026-06-02 12.000000 24"]
        );
        let mut raw = platform.raw().await;
        let items: Vec<(String, i64)> =
            raw.rows("SELECT cost_item, CAST(SUM(quantity) AS BIGINT) FROM tenant_day GROUP BY cost_item ORDER BY 1").await;
        assert_eq!(items, [("later#1/A10".to_owned(), 27_000_000), ("morning#1/A10".to_owned(), 9_000_000)]);
    }

    async fn a_hole_and_a_model_without_a_price_are_unpriced_and_never_free(platform: &TestPlatform) {
        platform.import("n1 g1 A10 06-01T00:00 06-02T00:00\nn1 g2 L4 06-01T00:00 06-02T00:00", "").await;
        load(platform, &book("early", "06-01T00:00 06-01T06:00", &[("A10", "2")]))
            .await
            .expect("a good book");
        load(platform, &book("late", "06-01T08:00", &[("A10", "0")])).await.expect("a good book");
        assert_eq!(
            platform.shown("model").await,
            ["A10 24.000000 12 unpriced 2.000000", "L4 24.000000 - unpriced 24.000000"]
        );
    }

    async fn an_edge_inside_an_hour_is_refused(platform: &TestPlatform) {
        a_day_and_a_half(platform).await;
        let error =
            load(platform, &book("june", "06-01T00:30", &[("A10", "2")])).await.expect_err("half an hour");
        assert!(matches!(error, ServiceError::Price { .. }), "{error:?}");
        assert_eq!(platform.count("price_version").await, 0);
    }
}

/// On SQLite one writer decides after the other.
mod only_postgres {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn of_overlapping_books_that_are_loaded_at_once_one_is_published() {
        let platform = TestPlatform::postgres().await;
        let mut held = platform.raw().await;
        held.run("BEGIN; LOCK TABLE price_version IN SHARE MODE").await;
        let mut loading = tokio::task::JoinSet::new();
        for number in 0..4 {
            let (platform, text) =
                (platform.platform.clone(), book(&format!("book {number}"), "06-01T00:00", &[("A10", "2")]));
            loading.spawn(async move { pricing::load(&platform, "prices.toml", &text).await });
        }
        platform.waiting_for_locks(4).await;
        held.run("COMMIT").await;
        let published = loading.join_all().await.into_iter().filter(Result::is_ok).count();
        assert_eq!((published, platform.count("price_version").await), (1, 1));
    }
}
