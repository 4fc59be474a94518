//! Mapping rules: edited with the version that was seen, and open months are divided anew by each edit.

use serde_json::json;

use crate::support::api::Api;
use crate::support::platform::{TestPlatform, on_both_databases};

async fn with_tenants(platform: &TestPlatform) -> Api {
    platform
        .import("n1 g1 A10 06-01T00:00 06-02T00:00", "train-1 acme/a n1 g1 dedicated 06-01T00:00 06-01T12:00")
        .await;
    platform.derive().await;
    let api = Api::of(platform);
    api.post("/api/v1/tenants", &json!({ "name": "lab" })).await.is(201);
    api.post("/api/v1/tenants/lab/projects", &json!({ "name": "p" })).await.is(201);
    api
}

fn rule(from: Option<&str>) -> serde_json::Value {
    json!({
        "order": 10, "tenant": "lab", "project": "p", "effective_from": from,
        "conditions": [{ "field": "workload", "comparison": "prefix", "value": "train-" }],
    })
}

on_both_databases! {
    async fn an_edit_divides_open_months_anew(platform: &TestPlatform) {
        let api = with_tenants(platform).await;
        assert_eq!(platform.shown("tenant").await, ["acme 12.000000 - unpriced 12.000000", "platform 12.000000 - unpriced 12.000000"]);
        let made = api.post("/api/v1/mapping-rules", &rule(None)).await.is(201);
        let (path, etag) = (made.header("location").unwrap().to_owned(), made.header("etag").unwrap().to_owned());
        platform.derive().await;
        platform.assert_well().await;
        assert_eq!(platform.shown("tenant").await, ["lab 12.000000 - unpriced 12.000000", "platform 12.000000 - unpriced 12.000000"]);
        // From six o'clock on it holds.
        let ask = api.ask("PUT", &path).token(&api.operator).header("If-Match", &etag);
        let edited = ask.json(&rule(Some("2026-06-01T06:00:00Z"))).send().await.is(200);
        assert_eq!(edited.json()["revision"], 2);
        platform.derive().await;
        platform.assert_well().await;
        let halves = ["acme 6.000000 - unpriced 6.000000", "lab 6.000000 - unpriced 6.000000", "platform 12.000000 - unpriced 12.000000"];
        assert_eq!(platform.shown("tenant").await, halves);
        // The version that was seen first is no longer the one.
        let late = api.ask("DELETE", &path).token(&api.operator).header("If-Match", &etag).send().await.is(412);
        assert_eq!(late.json()["type"], "urn:fatia:problem:precondition-failed");
        api.ask("DELETE", &path).token(&api.operator).send().await.is(422);
        let etag = edited.header("etag").unwrap();
        api.ask("DELETE", &path).token(&api.operator).header("If-Match", etag).send().await.is(200);
        api.get(&api.operator, &path).await.is(404);
        platform.derive().await;
        assert_eq!(platform.shown("tenant").await[0], "acme 12.000000 - unpriced 12.000000");
        let mut raw = platform.raw().await;
        let recorded = raw.rows::<(String,)>("SELECT action FROM audit WHERE action LIKE 'mapping_rule%' ORDER BY audit_id").await;
        let recorded: Vec<&str> = recorded.iter().map(|(action,)| action.as_str()).collect();
        assert_eq!(recorded, ["mapping_rule.create", "mapping_rule.replace", "mapping_rule.remove"]);
    }

    async fn an_edit_marks_what_it_changes_and_nothing_else(platform: &TestPlatform) {
        let api = with_tenants(platform).await;
        let mut raw = platform.raw().await;
        let mut narrow = rule(Some("2026-06-01T06:00:00Z"));
        narrow["effective_to"] = json!("2026-06-01T08:00:00Z");
        let made = api.post("/api/v1/mapping-rules", &narrow).await.is(201);
        // Two hours, and the day's first, by which a day is told that has lost its hours.
        assert_eq!(raw.number("SELECT COUNT(*) FROM dirty_node WHERE kind = 'part'").await, 3);
        platform.derive().await;
        // The same again is no edit.
        let path = made.header("location").unwrap();
        let same = api.ask("PUT", path).token(&api.operator).header("If-Match", "*").json(&narrow).send().await.is(200);
        assert_eq!(same.json()["revision"], 1);
        assert_eq!(raw.number("SELECT COUNT(*) FROM dirty_node").await, 0);
    }

    async fn rules_are_listed_in_the_order_in_which_they_are_tried(platform: &TestPlatform) {
        let api = with_tenants(platform).await;
        for order in [30, -5, 10, 10] {
            let mut body = rule(None);
            body["order"] = order.into();
            api.post("/api/v1/mapping-rules", &body).await.is(201);
        }
        let all = api.all(&api.operator, "/api/v1/mapping-rules", 1).await;
        let orders: Vec<i64> = all.iter().map(|each| each["order"].as_i64().unwrap()).collect();
        assert_eq!(orders, [-5, 10, 10, 30]);
    }

    async fn a_rule_names_a_payer_that_is_there_and_all_its_faults_come_at_once(platform: &TestPlatform) {
        let api = with_tenants(platform).await;
        let mut body = rule(None);
        body["tenant"] = "nobody".into();
        assert_eq!(api.post("/api/v1/mapping-rules", &body).await.is(422).faults(), ["#/tenant `nobody` is no tenant"]);
        body["tenant"] = "acme".into();
        let faults = api.post("/api/v1/mapping-rules", &body).await.is(422).faults();
        assert_eq!(faults, ["#/project `p` is no project of tenant `acme`"]);
        let bad = json!({
            "order": "1", "project": "", "conditions": [{ "field": "color", "comparison": "equal", "value": "x", "y": 1 }, 7],
            "effective_from": "2026-06-02T00:00:00Z", "effective_to": "2026-06-01T00:00:00Z",
        });
        let faults = api.post("/api/v1/mapping-rules", &bad).await.is(422).faults();
        let places: Vec<&str> = faults.iter().map(|fault| fault.split(' ').next().unwrap()).collect();
        assert_eq!(places, [
            "#/order", "#/tenant", "#/project", "#/conditions/0/field", "#/conditions/0/y", "#/conditions/1", "#/effective_to",
        ]);
    }
}
