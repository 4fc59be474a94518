//! The journal is the truth: levels are rebuilt from it, never to less, and the doctor sees what was tampered with.

use crate::support::platform::{Sender, TestClock, TestPlatform, on_both_databases, span};

async fn filled(platform: &TestPlatform) {
    let file = "name = \"june\"\ncurrency = \"USD\"\neffective_from = \"2026-06-01T00:00:00Z\"\n[cost]\nA10 = \"2\"\n";
    fatia::services::pricing::load(platform, "june.toml", file).await.expect("a good book");
    platform
        .import(
            "n1 g1 A10 06-01T00:00 06-03T00:00
             n2 g2 A10 06-01T00:00 06-02T00:00",
            "w1 acme/a n1 g1 dedicated  06-01T20:00 06-02T04:00
             w2 beta/b n2 g2 mps:300000 06-01T20:10 06-01T21:00",
        )
        .await;
    platform.derive().await;
}

/// What the doctor calls wrong after a change that no service made.
async fn ill_after(platform: &TestPlatform, change: &str) -> Vec<String> {
    let platform = platform.another().await;
    filled(&platform).await;
    assert_eq!(platform.ill().await, Vec::<String>::new());
    let touched = platform.raw().await.run(change).await;
    assert!(touched > 0, "{change}");
    platform.ill().await
}

const HOURS_AND_DAYS: &str = "node_hour, node_day";
const TENANT_DAY: &str = "tenant_day";
const TENANT_MONTH: &str = "tenant_month";

on_both_databases! {
    async fn a_rebuild_gives_the_same_bytes(platform: &TestPlatform) {
        filled(platform).await;
        let levels = platform.levels().await;
        platform.rebuild().await;
        assert_eq!(platform.levels().await, levels);
        for table in ["node_hour", "node_day", "tenant_day", "tenant_month"] {
            platform.raw().await.run(&format!("DELETE FROM {table}")).await;
        }
        platform.rebuild().await;
        assert_eq!(platform.levels().await, levels);
        platform.assert_well().await;
    }

    async fn what_other_rules_derived_is_derived_anew_when_the_database_is_opened(platform: &TestPlatform) {
        filled(platform).await;
        let levels = platform.levels().await;
        // A release before this one left other figures behind.
        platform.raw().await.run("UPDATE node_day SET quantity = quantity + 1").await;
        platform.raw().await.run("UPDATE installation SET derivation = 1").await;
        assert_eq!(platform.count("dirty_node").await, 0);
        let opened = platform.replica(TestClock::at("06-03T12:00")).await;
        assert!(platform.count("dirty_node").await > 0, "everything is marked");
        assert_eq!(platform.raw().await.number("SELECT derivation FROM installation").await, fatia::domain::DERIVATION);
        crate::support::platform::derive(&opened, "w").await.expect("all is derived");
        assert_eq!(platform.levels().await, levels);
        // And not again.
        let _again = platform.replica(TestClock::at("06-03T12:00")).await;
        assert_eq!(platform.count("dirty_node").await, 0);
    }

    async fn a_day_that_cannot_be_derived_keeps_its_marks_and_holds_up_no_other(platform: &TestPlatform) {
        filled(platform).await;
        let levels = platform.levels().await;
        let torn = "UPDATE usage_batch SET body = body_hash WHERE from_us = 1780358400000000 \
                    AND scope_id = (SELECT scope_id FROM scope WHERE name = 'n1')";
        assert_eq!(platform.raw().await.run(torn).await, 1);
        platform.raw().await.run("DELETE FROM node_day").await;
        fatia::services::derive::mark_everything(platform).await.expect("marks are set");
        let error = crate::support::platform::derive(platform, "w").await.expect_err("a batch is torn");
        assert!(error.to_string().contains("a batch cannot be read back"), "{error}");
        let mut raw = platform.raw().await;
        let marked = "SELECT s.name, d.day FROM dirty_node d JOIN scope s ON s.scope_id = d.scope_id \
                      GROUP BY s.name, d.day";
        assert_eq!(raw.rows::<(String, i64)>(marked).await, [("n1".to_owned(), 20_606)]);
        let of_n2 = raw.number("SELECT COUNT(*) FROM node_day n JOIN scope s \
            ON s.scope_id = n.scope_id WHERE s.name = 'n2'").await;
        assert!(of_n2 > 0, "the other node was derived");
        assert!(platform.levels().await != levels, "the torn day is not there");
    }

    async fn a_rebuild_mends_whichever_level_was_changed(platform: &TestPlatform) {
        filled(platform).await;
        let levels = platform.levels().await;
        for change in [
            "UPDATE node_hour SET body = batches_hash",
            "UPDATE node_day SET quantity = quantity + 1",
            "UPDATE tenant_day SET quantity = quantity + 1",
            "DELETE FROM tenant_day",
            "UPDATE tenant_month SET quantity = quantity + 1",
            "UPDATE tenant_month SET project = 'nobody'",
            "DELETE FROM tenant_month",
        ] {
            platform.raw().await.run(change).await;
            platform.rebuild().await;
            assert!(platform.levels().await == levels, "still there after a rebuild: {change}");
        }
    }

    async fn a_month_of_which_many_days_are_behind_is_read_by_its_days(platform: &TestPlatform) {
        filled(platform).await;
        let shown = platform.shown("tenant").await;
        let mut raw = platform.raw().await;
        assert!(raw.run("UPDATE tenant_month SET quantity = quantity + 1").await > 0);
        assert!(platform.costs("06", "tenant").await.is_err(), "the month is read as one");
        assert!(platform.costs("06", "tenant day").await.is_ok(), "days are read one by one");
        // June 2nd to 9th: eight days, and a month bears with seven.
        for day in 20_606..20_614 {
            raw.run(&format!("INSERT INTO dirty_tenant_day (bucket, day, tenant_id, version) VALUES (1, {day}, 1, 1)")).await;
        }
        assert_eq!(platform.shown("tenant").await, shown);
        // What mends the day mends its month.
        raw.run("DELETE FROM dirty_tenant_day").await;
        platform.rebuild().await;
        assert_eq!(platform.shown("tenant").await, shown);
    }

    async fn an_hour_is_never_replaced_by_one_with_less_coverage(platform: &TestPlatform) {
        filled(platform).await;
        let levels = platform.levels().await;
        let mut raw = platform.raw().await;
        let gone = "DELETE FROM usage_batch WHERE scope_id = (SELECT scope_id FROM scope WHERE name = 'n1') AND sequence = 1";
        assert_eq!(raw.run(gone).await, 1);
        platform.rebuild().await;
        assert_eq!(platform.levels().await, levels);
        let findings = platform.findings().await;
        assert_eq!(findings.iter().filter(|(kind, _)| kind == "coverage_lost").count(), 24);
        platform.assert_well().await;

        // What still comes in is derived, also on the day that lost its journal.
        let covers = Some(span("06-02T00:00 06-03T00:00"));
        let held = "w3 gamma n1 g1 dedicated 06-02T10:00 06-02T11:00";
        platform.import_from("vcenter", covers, "", held).await.expect("a good file");
        platform.derive().await;
        platform.assert_well().await;
        let shown = platform.shown("tenant").await;
        assert_eq!(shown[0], "acme 8.000000 16");
    }

    async fn part_of_an_hours_evidence_lost_keeps_the_hour(platform: &TestPlatform) {
        platform.inventory("n1 g1 A10 06-09T00:00 06-09T01:00").await;
        let agent = Sender::agent("n1");
        for (sequence, held) in [(1, "06-09T00:00 06-09T00:20"), (2, "06-09T00:20 06-09T00:40")] {
            let batch = agent.batch(sequence, &format!("pod - g1 dedicated {held}"), &format!("g1 {held}"));
            platform.accept(&agent, batch).await.expect("a good batch");
        }
        platform.tick().await;
        platform.derive().await;
        let levels = platform.levels().await;
        platform.raw().await.run("DELETE FROM usage_batch WHERE sequence = 2").await;
        platform.rebuild().await;
        assert_eq!(platform.levels().await, levels);
        assert_eq!(platform.findings().await.len(), 1);
    }

    async fn the_doctor_finds_a_sound_database_well(platform: &TestPlatform) {
        filled(platform).await;
        let checks = platform.examined().await;
        let words: Vec<(&str, &str)> =
            checks.iter().map(|check| (check.subject.as_str(), check.verdict.word())).collect();
        let subjects = ["database", "journal", "zone", "currency", "worker", HOURS_AND_DAYS, TENANT_DAY, TENANT_MONTH];
        assert_eq!(words, subjects.map(|subject| (subject, "ok")), "{checks:#?}");
    }

    async fn the_doctor_sees_a_quantity_that_was_changed(platform: &TestPlatform) {
        let change =
            "UPDATE node_day SET quantity = quantity + 1 WHERE workload = 'w1' AND quantity = 4000000";
        assert_eq!(
            ill_after(platform, &format!("{change} AND day = 20605")).await,
            [HOURS_AND_DAYS, TENANT_DAY]
        );
        let change = "UPDATE tenant_day SET quantity = quantity - 1 WHERE project = 'b'";
        assert_eq!(ill_after(platform, change).await, [TENANT_DAY, TENANT_MONTH]);
        let change = "UPDATE tenant_month SET energy_mj = energy_mj + 1 WHERE project = 'b'";
        assert_eq!(ill_after(platform, change).await, [TENANT_MONTH]);
    }

    async fn the_doctor_sees_an_hour_that_was_changed(platform: &TestPlatform) {
        let other = "UPDATE node_hour SET body = (SELECT body FROM node_hour o WHERE o.scope_id = node_hour.scope_id \
                     ORDER BY hour_us LIMIT 1) WHERE hour_us = 1780344000000000";
        assert_eq!(ill_after(platform, other).await, [HOURS_AND_DAYS]);
        let torn = "UPDATE node_hour SET body = batches_hash WHERE hour_us = 1780344000000000";
        assert_eq!(ill_after(platform, torn).await, [HOURS_AND_DAYS]);
        let covered = "UPDATE node_hour SET covered_ns = covered_ns - 1 WHERE hour_us = 1780344000000000";
        assert_eq!(ill_after(platform, covered).await, [HOURS_AND_DAYS]);
    }

    async fn the_doctor_sees_rows_that_are_missing_or_too_many(platform: &TestPlatform) {
        let missing = "DELETE FROM node_hour WHERE hour_us = 1780344000000000";
        assert_eq!(ill_after(platform, missing).await, [HOURS_AND_DAYS]);
        let missing = "DELETE FROM node_day WHERE workload = 'w2'";
        assert_eq!(ill_after(platform, missing).await, [HOURS_AND_DAYS, TENANT_DAY]);
        let missing = "DELETE FROM tenant_day WHERE project = 'a'";
        assert_eq!(ill_after(platform, missing).await, [TENANT_DAY, TENANT_MONTH]);
        let surplus = "UPDATE node_day SET day = day + 100 WHERE workload = 'w2'";
        assert_eq!(ill_after(platform, surplus).await, [HOURS_AND_DAYS, TENANT_DAY]);
    }

    async fn the_doctor_sees_an_hour_in_which_nothing_was_in_service(platform: &TestPlatform) {
        let surplus = "INSERT INTO node_hour SELECT scope_id, hour_us + 86400000000, revision, body, batches_hash, covered_ns \
                       FROM node_hour WHERE hour_us = 1780344000000000 \
                       AND scope_id = (SELECT scope_id FROM scope WHERE name = 'n2')";
        assert_eq!(ill_after(platform, surplus).await, [HOURS_AND_DAYS]);
    }

    async fn the_doctor_sees_what_moved_between_rows_of_one_sum(platform: &TestPlatform) {
        let moved = "UPDATE tenant_day SET project = 'other' WHERE project = 'a'";
        assert_eq!(ill_after(platform, moved).await, [TENANT_DAY, TENANT_MONTH]);
        let moved = "UPDATE tenant_day SET cost_item = '' WHERE project = 'b'";
        assert_eq!(ill_after(platform, moved).await, [TENANT_DAY, TENANT_MONTH]);
    }
}
