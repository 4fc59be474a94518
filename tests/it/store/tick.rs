//! The tick: silence is unknown, and both sides of the identity use the same edge.

use fatia::domain::ids::ScopeId;
use fatia::domain::period::{BillingZone, Month, Span};
use fatia::domain::report::{CountedService, as_of, in_service};
use fatia::domain::units::Instant;
use fatia::services::inventory::{self, InventoryOutcome};
use fatia::store::{fleet, unit};

use crate::support::platform::{Sender, TestPlatform, inventory_csv, on_both_databases, read};

async fn refreshed(platform: &TestPlatform, time: &str) -> Vec<String> {
    platform.clock.set(time);
    platform.tick().await;
    platform.derive().await;
    platform.assert_well().await;
    platform.shown("node state").await
}

on_both_databases! {
    async fn an_old_inventory_cannot_put_a_device_that_moved_in_two_places(platform: &TestPlatform) {
        platform.inventory("n1 g1 A10 06-01T00:00").await;
        // It moves: the end on one node and the start on the other, in whatever order the lines stand.
        let outcome = platform.inventory("n2 g1 A10 06-05T00:00\nn1 g1 A10 06-01T00:00 06-05T00:00").await;
        assert_eq!((outcome.opened, outcome.ended), (1, 1));
        let old = crate::support::platform::inventory_csv("n1 g1 A10 06-01T00:00");
        let lines =
            fatia::services::inventory::Inventory::read(old.as_bytes(), "old").expect("a table").lines;
        let error =
            fatia::services::inventory::apply(platform, "old", lines).await.expect_err("it is elsewhere");
        assert!(error.to_string().contains("line 2: device g1 is already in service 2026-06-05"), "{error}");
        assert_eq!(
            refreshed(platform, "06-10T00:00").await,
            ["n1 unknown 96.000000 - unpriced 96.000000", "n2 unknown 119.833333 - unpriced 119.833333"]
        );
    }

    async fn prices_of_another_currency_hold_up_a_change_of_it(platform: &TestPlatform) {
        let file = "name = \"june\"\ncurrency = \"USD\"\neffective_from = \"2026-06-01T00:00:00Z\"\n[cost]\nA10 = \"2\"\n";
        fatia::services::pricing::load(platform, "june.toml", file).await.expect("a good book");
        let currency = fatia::domain::money::Currency::parse("BRL").ok();
        let settings = fatia::services::ctx::BillingSettings { zone: None, currency };
        let clock = platform.clock.clone();
        let opened = fatia::services::ctx::Platform::open(
            platform.store.clone(),
            "x".into(),
            clock,
            settings,
            [1; 32],
        )
        .await;
        let error = opened.expect_err("its prices are in dollars");
        assert!(error.to_string().contains("`june`"), "{error}");
    }

    async fn a_node_that_reports_nothing_is_unknown_for_exactly_its_in_service_time(platform: &TestPlatform) {
        platform
            .inventory(
                "
            n1 g1 A10 06-09T10:30 06-09T13:00
            n1 g2 A10 06-09T10:00 06-09T10:00:00.0036",
            )
            .await;
        assert_eq!(refreshed(platform, "06-10T00:00").await, ["n1 unknown 2.500001 - unpriced 2.500001"]);

        // The report comes a day late and takes its place.
        let agent = Sender::agent("n1");
        let rows = "pod - g1 dedicated 06-09T11:00 06-09T11:30";
        let batch = agent.batch(1, rows, "g1 06-09T11:00 06-09T12:00");
        platform.accept(&agent, batch).await.expect("a good batch");
        assert_eq!(
            refreshed(platform, "06-10T01:00").await,
            [
                "n1 idle 0.500000 - unpriced 0.500000",
                "n1 unknown 1.500001 - unpriced 1.500001",
                "n1 used 0.500000 - unpriced 0.500000",
            ]
        );
    }

    async fn the_open_hour_is_counted_to_its_coverage_and_at_least_to_ten_minutes_ago(
        platform: &TestPlatform,
    ) {
        platform.inventory("n1 g1 A10 06-10T08:00\nn2 g2 A10 06-10T08:00").await;
        let agent = Sender::agent("n1");
        let reported = |sequence: i64, minutes: &str| {
            let rows = format!("pod - g1 dedicated {minutes}");
            agent.batch(sequence, &rows, &format!("g1 {minutes}"))
        };
        let hours = |idle_and_used: &[&str], unknown: &str| -> Vec<String> {
            let unknown = format!("n2 unknown {unknown} - unpriced {unknown}");
            idle_and_used.iter().map(|line| (*line).to_owned()).chain([unknown]).collect()
        };

        // 08:05: nothing is ten minutes old, nothing was reported.
        assert_eq!(refreshed(platform, "06-10T08:05").await, Vec::<String>::new());
        // 08:10 to 08:15: n1 is counted to what it reported, n2 to ten minutes ago.
        platform.accept(&agent, reported(1, "06-10T08:00 06-10T08:12")).await.expect("a good batch");
        let shown = refreshed(platform, "06-10T08:13").await;
        assert_eq!(shown, hours(&["n1 used 0.200000 - unpriced 0.200000"], "0.050000"));
        let report = platform.costs("06", "node").await.expect("it reconciles");
        assert_eq!(report.as_of.to_string(), "2026-06-10T08:03:00Z");

        // 08:40: n1 has fallen silent, so its time is unknown up to ten minutes ago.
        let shown = refreshed(platform, "06-10T08:40").await;
        let n1 = ["n1 unknown 0.300000 - unpriced 0.300000", "n1 used 0.200000 - unpriced 0.200000"];
        assert_eq!(shown, hours(&n1, "0.500000"));

        // 09:02: it catches up over the hour's edge; what was unknown is not.
        platform.accept(&agent, reported(2, "06-10T08:12 06-10T09:00")).await.expect("a good batch");
        let shown = refreshed(platform, "06-10T09:02").await;
        assert_eq!(shown, hours(&["n1 used 1.000000 - unpriced 1.000000"], "0.866666"));
        // The clock of another replica is behind: no edge moves back.
        let shown = refreshed(platform, "06-10T08:30").await;
        assert_eq!(shown, hours(&["n1 used 1.000000 - unpriced 1.000000"], "0.866666"));

        let levels = platform.levels().await;
        platform.rebuild().await;
        assert_eq!(platform.levels().await, levels);
    }

    async fn a_report_from_the_future_counts_no_further_than_now(platform: &TestPlatform) {
        platform.inventory("n1 g1 A10 06-10T08:00").await;
        let agent = Sender::agent("n1");
        let batch =
            agent.batch(1, "pod - g1 dedicated 06-10T08:00 06-10T09:00", "g1 06-10T08:00 06-10T09:00");
        platform.accept(&agent, batch).await.expect("a good batch");
        let shown = refreshed(platform, "06-10T08:30").await;
        assert_eq!(shown, ["n1 used 0.500000 - unpriced 0.500000"]);
    }

    async fn ending_a_service_later_shrinks_both_sides(platform: &TestPlatform) {
        platform.inventory("n1 g1 A10 06-09T00:00\nn1 g2 A10 06-09T00:00").await;
        let shown = refreshed(platform, "06-10T12:00").await;
        assert_eq!(shown, ["n1 unknown 71.666666 - unpriced 71.666666"]);

        let outcome = platform.inventory("n1 g1 A10 06-09T00:00 06-09T20:30").await;
        assert_eq!(outcome, InventoryOutcome { opened: 0, ended: 1, repooled: 0 });
        let shown = refreshed(platform, "06-10T12:00").await;
        assert_eq!(shown, ["n1 unknown 56.333333 - unpriced 56.333333"]);
        let report = platform.costs("06", "state").await.expect("it reconciles");
        assert_eq!(report.reconciliation.in_service_gpu_hours.to_string(), "56.333333");

        // It goes on without the device, over several ticks.
        for (time, hours) in
            [("06-10T12:05", "56.416666"), ("06-10T13:00", "57.333333"), ("06-10T13:10", "57.500000")]
        {
            assert_eq!(refreshed(platform, time).await, [format!("n1 unknown {hours} - unpriced {hours}")]);
        }
        // Ending it once more at the same instant changes nothing; a device that is gone altogether leaves no hour.
        let again = platform.inventory("n1 g1 A10 06-09T00:00 06-09T20:30").await;
        assert_eq!(again, InventoryOutcome::default());
        let levels = platform.levels().await;
        platform.rebuild().await;
        assert_eq!(platform.levels().await, levels);
    }

    async fn an_end_that_moves_out_again_is_counted_again(platform: &TestPlatform) {
        platform.inventory("n1 g1 A10 06-09T00:00 06-09T06:00").await;
        assert_eq!(refreshed(platform, "06-10T12:00").await, ["n1 unknown 6.000000 - unpriced 6.000000"]);
        platform.inventory("n1 g1 A10 06-09T00:00 06-09T08:00").await;
        assert_eq!(refreshed(platform, "06-10T12:00").await, ["n1 unknown 8.000000 - unpriced 8.000000"]);
        platform.inventory("n1 g1 A10 06-09T00:00").await;
        assert_eq!(refreshed(platform, "06-10T12:00").await, ["n1 unknown 35.833333 - unpriced 35.833333"]);
    }

    async fn a_service_that_is_cut_to_an_earlier_day_leaves_no_sums_behind(platform: &TestPlatform) {
        platform.inventory("n1 g1 A10 06-08T00:00").await;
        refreshed(platform, "06-10T12:00").await;
        platform.inventory("n1 g1 A10 06-08T00:00 06-08T01:00").await;
        assert_eq!(refreshed(platform, "06-10T12:00").await, ["n1 unknown 1.000000 - unpriced 1.000000"]);
        assert_eq!(platform.count("node_hour").await, 1);
        assert_eq!(platform.count("node_day").await, 1);
        assert_eq!(platform.count("tenant_day").await, 1);
    }

    async fn devices_with_the_same_edges_are_read_as_one_and_come_to_the_same(platform: &TestPlatform) {
        platform
            .inventory(
                "
            n1 g1 A10 05-01T00:00
            n1 g2 A10 05-20T00:00
            n1 g3 A10 06-03T00:00:00.5
            n2 g4 A10 06-03T00:00:00.5
            n2 g5 A10 06-01T10:00 06-01T10:20:00.0001
            n2 g5 A10 06-01T10:30 06-01T10:40:00.0035
            n3 g6 A10 05-02T00:00 06-05T00:00
            n4 g6 A10 06-05T00:00
            n4 g7 A10 05-02T00:00 05-05T00:00",
            )
            .await;
        for time in ["06-10T10:30", "07-03T00:00"] {
            refreshed(platform, time).await;
            let june = BillingZone::UTC.month_span(Month::parse("2026-06").expect("a month"));
            let services = read(platform, move |scope, tx| {
                unit(async move { fleet::counted_services(scope, tx, june).await })
            });
            let services = services.await.expect("intervals can be read");
            let sql = "SELECT scope_id, device_id, from_us, to_us, counted_to_us FROM device_service";
            let each = platform.raw().await.rows::<(i64, i64, i64, Option<i64>, i64)>(sql).await;
            let each: Vec<CountedService> = each
                .into_iter()
                .map(|(scope, device, from, to, counted_to)| CountedService {
                    scope: ScopeId::from_stored(scope),
                    device,
                    alike: 1,
                    span: Span::clamped(
                        Instant::from_micros(from),
                        to.map_or(Instant::MAX, Instant::from_micros),
                    ),
                    counted_to: Instant::from_micros(counted_to),
                })
                .collect();
            assert_eq!(in_service(BillingZone::UTC, june, &services), in_service(BillingZone::UTC, june, &each));
            assert_eq!(as_of(june, &services), as_of(june, &each));
            // g1 and g2, g3 and g4, and each interval of the two that have two.
            assert_eq!(services.len(), 6, "{services:?}");
            assert_eq!(services.iter().map(|service| service.alike).sum::<i64>(), 8);
        }
    }
}

/// On SQLite one writer decides after the other.
mod only_postgres {
    use super::*;

    /// Else an edge could move between the moment at which a price load sees which hours there are and its commit, and
    /// those hours would keep the old price for good.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn the_tick_waits_for_whoever_changes_prices_or_the_fleet() {
        let platform = TestPlatform::postgres().await;
        platform.inventory("n1 g1 A10 06-01T00:00 06-02T00:00").await;
        platform.clock.set("06-10T00:00");
        let mut held = platform.raw().await;
        held.run("BEGIN; SELECT installation_id FROM installation FOR UPDATE").await;
        let ticking = platform.platform.clone();
        let ticking = tokio::spawn(async move { fatia::services::tick::advance(&ticking).await });
        platform.waiting_for_locks(1).await;
        let edges = "SELECT COUNT(*) FROM device_service WHERE edge_us > from_us";
        assert_eq!(held.number(edges).await, 0, "no edge moves meanwhile");
        held.run("COMMIT").await;
        ticking.await.expect("the tick goes on").expect("and succeeds");
        assert_eq!(held.number(edges).await, 1);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn of_inventories_that_contradict_each_other_at_once_one_is_taken() {
        let platform = TestPlatform::postgres().await;
        platform.inventory("n1 g1 A10 06-01T00:00 06-02T00:00").await;
        let mut held = platform.raw().await;
        held.run("BEGIN; LOCK TABLE device_service IN SHARE MODE").await;
        let mut applying = tokio::task::JoinSet::new();
        for number in 2..6 {
            let table = inventory_csv(&format!("n{number} g1 A10 06-0{number}T12:00 06-12T00:00"));
            let read = inventory::Inventory::read(table.as_bytes(), "inventory.csv").expect("a good table");
            let platform = platform.platform.clone();
            applying.spawn(async move { inventory::apply(&platform, "inventory.csv", read.lines).await });
        }
        platform.waiting_for_locks(4).await;
        held.run("COMMIT").await;
        let taken = applying.join_all().await.into_iter().filter(Result::is_ok).count();
        assert_eq!(
            (taken, platform.count("device_service").await),
            (1, 2),
            "a device is in one place at a time"
        );
    }
}
