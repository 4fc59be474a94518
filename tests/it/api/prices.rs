//! Price books and the catalogue over HTTP.

use serde_json::json;

use crate::support::api::Api;
use crate::support::platform::on_both_databases;

fn book(price: &str) -> serde_json::Value {
    json!({ "name": "june", "currency": "USD", "effective_from": "2026-06-01T00:00:00Z", "cost": { "A10": price } })
}

on_both_databases! {
    async fn json_and_the_file_are_the_same_book(platform: &TestPlatform) {
        let api = Api::of(platform);
        let first = api.post("/api/v1/price-books", &book("1.25")).await.is(201).json();
        assert_eq!((&first["revision"], &first["is_new"]), (&json!(1), &json!(true)));
        let file = "name = \"june\"\ncurrency = \"USD\"\neffective_from = \"2026-06-01T00:00:00Z\"\n[cost]\nA10 = \"1.250\"\n";
        let ask = api.ask("POST", "/api/v1/price-books?file=june.toml").token(&api.operator);
        let same = ask.body("application/toml", file).send().await.is(200).json();
        assert_eq!((&same["revision"], &same["is_new"]), (&json!(1), &json!(false)));
        let ask = api.ask("POST", "/api/v1/price-books").token(&api.operator).header("If-Match", "\"7\"");
        ask.json(&book("2")).send().await.is(412);
        let ask = api.ask("POST", "/api/v1/price-books").token(&api.operator).header("If-Match", "\"7\"");
        ask.body("application/toml", file.replace("1.250", "2")).send().await.is(412);
        let ask = api.ask("POST", "/api/v1/price-books").token(&api.operator).header("If-Match", "\"1\"");
        ask.json(&book("2")).send().await.is(201);
        let shown = api.get(&api.operator, "/api/v1/price-books/june").await.is(200);
        assert_eq!(shown.header("etag"), Some("\"2\""));
        let revisions = shown.json()["revisions"].clone();
        assert_eq!(revisions.as_array().unwrap().len(), 2);
        assert_eq!((&revisions[0]["cost"]["A10"], &revisions[1]["cost"]["A10"]), (&json!("2"), &json!("1.25")));
        assert!(revisions[0]["replaced"].is_null() && revisions[1]["replaced"].is_string());
        assert_eq!(api.all(&api.operator, "/api/v1/price-books", 1).await.len(), 1);
    }

    async fn a_books_faults_come_at_once_and_rules_name_their_field(platform: &TestPlatform) {
        let api = Api::of(platform);
        let bad = json!({
            "name": "a", "currency": "usd", "effective_from": "2026-06-01", "cost": { "A10": 1.25, "B": "-1", " ": "1" },
            "policy": { "weighting": "blended", "alpha": "2", "basis": { "mig": "often", "x": "usage" } }, "free": true,
        });
        let faults = api.post("/api/v1/price-books", &bad).await.is(422).faults();
        let places: Vec<&str> = faults.iter().map(|fault| fault.split(' ').next().unwrap()).collect();
        assert_eq!(places, [
            "#/currency", "#/effective_from", "#/cost/", "#/cost/A10", "#/cost/B", "#/policy/basis/mig",
            "#/policy/basis/x", "#/policy/alpha", "#/free",
        ]);
        let mut late = book("1");
        late["effective_from"] = json!("2026-06-01T00:30:00Z");
        let faults = api.post("/api/v1/price-books", &late).await.is(422).faults();
        assert!(faults[0].starts_with("#/effective_from "), "{faults:?}");
        api.post("/api/v1/price-books", &book("1")).await.is(201);
        let mut other = book("1");
        other["name"] = json!("other");
        let faults = api.post("/api/v1/price-books", &other).await.is(422).faults();
        assert!(faults[0].contains("`other` would hold at the same time as `june`"), "{faults:?}");
        let ask = api.ask("POST", "/api/v1/price-books?file=bad.toml").token(&api.operator);
        let said = ask.body("application/toml", "name = 1").send().await.is(422).json();
        assert!(said["detail"].as_str().unwrap().starts_with("bad.toml: "), "{said}");
    }

    async fn a_policy_is_shown_as_it_was_published(platform: &TestPlatform) {
        let api = Api::of(platform);
        let mut with = book("1");
        with["policy"] = json!({ "weighting": "blended", "alpha": "0.25", "basis": { "mig": "usage" }, "entitled": true, "reserve_powered_off": false });
        api.post("/api/v1/price-books", &with).await.is(201);
        let shown = api.get(&api.operator, "/api/v1/price-books/june").await.json();
        assert_eq!(shown["revisions"][0]["policy"], with["policy"]);
    }

    async fn the_catalogue_is_shown_and_an_operators_rows_lie_over_it(platform: &TestPlatform) {
        let api = Api::of(platform);
        let all = api.get(&api.operator, "/api/v1/catalogue").await.is(200).json();
        assert!(all["boards"].as_array().unwrap().len() > 20);
        let one = api.get(&api.operator, "/api/v1/catalogue?model=NVIDIA%20H100%2080GB%20HBM3").await.is(200).json();
        assert_eq!(one["boards"].as_array().unwrap().len(), 1);
        let none = api.get(&api.operator, "/api/v1/catalogue?model=none").await.is(422);
        assert!(none.faults()[0].starts_with("model knows no board `none`"), "{:?}", none.faults());
        let rows = "[[board]]\nkey = \"X\"\nmemory_mib = 1024\n";
        let ask = || api.ask("PUT", "/api/v1/catalogue").token(&api.operator);
        let loaded = ask().body("application/toml", rows).send().await.is(200).json();
        assert_eq!((&loaded["revision"], &loaded["boards"]), (&json!(1), &json!(1)));
        api.get(&api.operator, "/api/v1/catalogue?model=X").await.is(200);
        ask().body("application/json", "{}").send().await.is(415);
    }
}
