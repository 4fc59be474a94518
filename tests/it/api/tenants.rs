//! Tenants and projects: made, listed page by page, and told by their names alone.

use serde_json::json;

use crate::support::api::Api;
use crate::support::platform::on_both_databases;

on_both_databases! {
    async fn tenants_are_made_once_and_listed_by_name(platform: &TestPlatform) {
        let api = Api::of(platform);
        for name in ["delta", "alpha", "charlie", "bravo", "München / KI"] {
            let made = api.post("/api/v1/tenants", &json!({ "name": format!(" {name} ") })).await.is(201);
            assert_eq!(made.json()["name"], name);
            let found = api.get(&api.operator, made.header("location").unwrap()).await.is(200);
            assert_eq!(found.json(), made.json());
        }
        let again = api.post("/api/v1/tenants", &json!({ "name": "alpha" })).await.is(409);
        assert_eq!(again.json()["detail"], "tenant `alpha` is there already");
        let reserved = api.post("/api/v1/tenants", &json!({ "name": "platform" })).await.is(422);
        assert_eq!(reserved.faults(), ["#/name `platform` is reserved"]);
        for limit in [1, 2, 3, 100] {
            let all = api.all(&api.operator, "/api/v1/tenants", limit).await;
            let names: std::collections::BTreeSet<&str> = all.iter().map(|each| each["name"].as_str().unwrap()).collect();
            assert_eq!((all.len(), names.len()), (5, 5), "each once with {limit} a page");
        }
    }

    async fn projects_belong_to_their_tenant(platform: &TestPlatform) {
        let api = Api::of(platform);
        for tenant in ["acme", "beta"] {
            api.post("/api/v1/tenants", &json!({ "name": tenant })).await.is(201);
        }
        api.post("/api/v1/tenants/acme/projects", &json!({ "name": "vision" })).await.is(201);
        api.post("/api/v1/tenants/acme/projects", &json!({ "name": "vision" })).await.is(409);
        api.post("/api/v1/tenants/beta/projects", &json!({ "name": "vision" })).await.is(201);
        api.post("/api/v1/tenants/none/projects", &json!({ "name": "vision" })).await.is(404);
        api.get(&api.operator, "/api/v1/tenants/acme/projects/vision").await.is(200);
        api.get(&api.operator, "/api/v1/tenants/acme/projects/none").await.is(404);
        assert_eq!(api.all(&api.operator, "/api/v1/tenants/acme/projects", 10).await.len(), 1);
    }

    async fn what_is_known_already_is_not_sent_again(platform: &TestPlatform) {
        let api = Api::of(platform);
        api.post("/api/v1/tenants", &json!({ "name": "acme" })).await.is(201);
        let first = api.get(&api.operator, "/api/v1/tenants").await.is(200);
        let etag = first.header("etag").unwrap().to_owned();
        let ask = |etag: String| api.ask("GET", "/api/v1/tenants").token(&api.operator).header("If-None-Match", &etag).send();
        let known = ask(etag.clone()).await.is(304);
        assert_eq!((known.text.as_str(), known.header("etag")), ("", Some(etag.as_str())));
        ask(format!("\"other\", W/{etag}")).await.is(304);
        ask("\"other\"".to_owned()).await.is(200);
        api.post("/api/v1/tenants", &json!({ "name": "beta" })).await.is(201);
        ask(etag).await.is(200);
        let head = api.ask("HEAD", "/api/v1/tenants").token(&api.operator).send().await.is(200);
        assert_eq!(head.text, "");
        let whole = api.get(&api.operator, "/api/v1/tenants").await.is(200);
        assert_eq!(head.header("etag"), whole.header("etag"));
        assert_eq!(head.header("content-length"), Some(whole.text.len().to_string().as_str()));
    }

    async fn what_was_changed_is_recorded_with_who_and_how(platform: &TestPlatform) {
        let api = Api::of(platform);
        let token = api.token("admin", None).await;
        let ask = api.ask("POST", "/api/v1/tenants").token(&token).header("X-Request-Id", "my-request.1");
        let made = ask.json(&json!({ "name": "acme" })).send().await.is(201);
        assert_eq!(made.header("x-request-id"), Some("my-request.1"));
        let entry = api.get(&api.operator, "/api/v1/audit?limit=1").await.is(200).json()["items"][0].clone();
        let id = token.split('_').nth(1).unwrap();
        assert_eq!((&entry["action"], &entry["subject"]), (&json!("tenant.create"), &json!("acme")));
        assert_eq!((&entry["token"], &entry["request"]), (&json!(id), &json!("my-request.1")));
        assert_eq!((&entry["before"], &entry["after"]["name"]), (&json!(null), &json!("acme")));
        assert_eq!(entry["actor"], "admin of None");
        // The event that leaves was put with it.
        let mut raw = platform.raw().await;
        let events = raw.rows::<(String,)>("SELECT payload FROM outbox ORDER BY outbox_id").await;
        assert!(events.last().unwrap().0.contains("tenant.create"), "{events:?}");
        // Neither a refused request nor a repeat leaves a trace.
        api.post("/api/v1/tenants", &json!({ "name": "acme" })).await.is(409);
        assert_eq!(raw.number("SELECT COUNT(*) FROM audit").await, 2);
        for change in ["UPDATE audit SET actor = 'x'", "DELETE FROM audit"] {
            let refused = raw.try_run(change).await.unwrap_err().to_string();
            assert!(refused.contains("only ever added to"), "{refused}");
        }
    }
}
