//! Cost reports over HTTP: their periods, groups and formats.

use serde_json::json;

use crate::support::api::Api;
use crate::support::platform::{TestPlatform, on_both_databases};

async fn three_days(platform: &TestPlatform) -> Api {
    platform
        .import(
            "n1 g1 A10 06-01T00:00 06-04T00:00",
            "w1 acme/a n1 g1 dedicated 06-01T12:00 06-02T12:00
             =cmd acme/@b n1 g1 dedicated 06-02T12:00 06-02T18:00",
        )
        .await;
    let book = "name = \"june\"\ncurrency = \"USD\"\neffective_from = \"2026-06-01T00:00:00Z\"\n[cost]\nA10 = \"0.00000001\"\n";
    fatia::services::pricing::load(platform, "june.toml", book).await.expect("a good book");
    platform.derive().await;
    Api::of(platform)
}

on_both_databases! {
    async fn days_add_up_to_their_month(platform: &TestPlatform) {
        let api = three_days(platform).await;
        let hours = |query: String| {
            let api = &api;
            async move {
                let report = api.get(&api.operator, &format!("/api/v1/reports/costs?{query}")).await.is(200).json();
                assert_eq!(report["reconciliation"]["difference"], "0.000000");
                report["total"]["gpu_hours"].as_str().unwrap().parse::<f64>().unwrap()
            }
        };
        assert_eq!(hours("period=2026-06".to_owned()).await, 72.0);
        assert_eq!(hours("from=2026-06-02&to=2026-06-03".to_owned()).await, 24.0);
        assert_eq!(hours("from=2026-06-01T00:00:00Z&to=2026-06-03T00:00:00Z".to_owned()).await, 48.0);
        assert_eq!(hours("from=2026-01-01&to=2027-01-01".to_owned()).await, 72.0);
        let shown = api.get(&api.operator, "/api/v1/reports/costs?from=2026-06-02&to=2026-06-03").await.json();
        assert_eq!((&shown["period"], &shown["from"]), (&json!("2026-06-02/2026-06-03"), &json!("2026-06-02T00:00:00Z")));
    }

    async fn what_is_no_period_is_refused_by_its_parameter(platform: &TestPlatform) {
        let api = Api::of(platform);
        for (query, faults) in [
            ("", vec!["period is missing; so are from and to"]),
            ("period=2026-13", vec!["period `2026-13` is not a month such as 2026-06"]),
            ("period=2026-06&from=2026-06-01", vec!["period is given beside from or to; one of them is taken"]),
            ("from=2026-06-01", vec!["to is missing"]),
            ("to=2026-06-01", vec!["from is missing"]),
            ("from=2026-06-01T00:00:01Z&to=2026-06-02", vec![
                "from 2026-06-01T00:00:01Z is not the edge of a day in UTC; the day begins at 2026-06-01T00:00:00Z"]),
            ("from=2026-06-01&to=2026-06-01T12:00:00Z", vec![
                "to 2026-06-01T12:00:00Z is not the edge of a day in UTC; the day begins at 2026-06-01T00:00:00Z"]),
            ("from=2026-06-02&to=2026-06-01", vec!["to there is no day between 2026-06-02T00:00:00Z and 2026-06-01T00:00:00Z"]),
            ("from=2020-01-01&to=2026-06-01", vec!["to spans 2343 days; a report spans at most 806"]),
            ("from=x&to=2026-02-30", vec![
                "from is neither a date such as 2026-06-01 nor an RFC 3339 instant",
                "to is neither a date such as 2026-06-01 nor an RFC 3339 instant"]),
            ("period=2026-06&group_by=colour&format=pdf", vec![
                "group_by `colour` is none of: tenant, project, mode, model, node, workloa…", "format is neither json nor csv"]),
        ] {
            let answer = api.get(&api.operator, &format!("/api/v1/reports/costs?{query}")).await.is(422);
            assert_eq!(answer.faults(), faults, "{query}");
        }
    }

    async fn a_csv_has_the_same_figures_and_no_formula(platform: &TestPlatform) {
        let api = three_days(platform).await;
        let path = "/api/v1/reports/costs?period=2026-06&group_by=workload,project&format=csv";
        let csv = api.get(&api.operator, path).await.is(200);
        assert_eq!(csv.header("content-disposition"), Some("attachment; filename=\"costs-2026-06.csv\""));
        assert!(csv.header("content-type").unwrap().starts_with("text/csv"));
        let lines: Vec<&str> = csv.text.lines().collect();
        assert_eq!(lines[0], "workload,project,state,gpu_hours,unpriced_gpu_hours,cost,metered_gpu_hours,energy_joules");
        assert!(lines.contains(&"'=cmd,'@b,used,6.000000,0.000000,0.00000006,0.000000,"), "{lines:?}");
        let json = api.get(&api.operator, &path.replace("csv", "json")).await.is(200).json();
        assert_eq!(lines.len() - 1, json["groups"].as_array().unwrap().len());
    }

    async fn a_report_says_how_many_marks_wait(platform: &TestPlatform) {
        let api = three_days(platform).await;
        let pending = || async {
            let report = api.get(&api.operator, "/api/v1/reports/costs?period=2026-06").await.is(200);
            report.header("fatia-pending-marks").unwrap().parse::<i64>().unwrap()
        };
        assert_eq!(pending().await, 0);
        let rebuilt = api.ask("POST", "/api/v1/derivation/rebuild").token(&api.operator).send().await.is(202).json();
        assert!(rebuilt["pending_marks"].as_i64().unwrap() > 0);
        assert_eq!(pending().await, rebuilt["pending_marks"].as_i64().unwrap());
        let waited = api.get(&api.operator, "/api/v1/derivation?wait=1").await.is(200).json();
        assert_eq!((&waited["awaited_days"], &waited["someone_works"]), (&json!(8), &json!(false)));
        assert!(waited["moment"].is_u64());
        platform.derive().await;
        // What is marked afterwards is not waited for.
        let declare = |from: &str, to: &str| {
            let state = json!({ "node": "n1", "kind": "maintenance", "from": from, "to": to });
            let api = &api;
            async move { api.post("/api/v1/states", &json!({ "states": [state] })).await.is(200) }
        };
        declare("2026-06-03T12:00:00Z", "2026-06-03T13:00:00Z").await;
        let awaited = |query: String| {
            let api = &api;
            async move { api.get(&api.operator, &format!("/api/v1/derivation{query}")).await.is(200).json() }
        };
        let first = awaited(String::new()).await;
        declare("2026-06-01T01:00:00Z", "2026-06-01T02:00:00Z").await;
        let (same, now) = (awaited(format!("?moment={}", first["moment"])).await, awaited(String::new()).await);
        assert_eq!(same["awaited_days"], first["awaited_days"]);
        assert!(now["awaited_days"].as_u64() > same["awaited_days"].as_u64(), "{same} {now}");
        platform.derive().await;
        let waited = api.get(&api.operator, "/api/v1/derivation?wait=60").await.is(200).json();
        assert_eq!(waited["awaited_days"], 0);
        let checks = api.get(&api.operator, "/api/v1/derivation/checks").await.is(200).json();
        assert!(checks["checks"].as_array().unwrap().iter().all(|check| check["verdict"] != "WRONG"));
    }
}
