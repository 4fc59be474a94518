//! Tokens: made once, narrowed, expired, revoked everywhere within seconds, and never shown again.

use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::support::api::Api;
use crate::support::platform::{eventually, on_both_databases};

on_both_databases! {
    async fn a_tokens_text_is_shown_once_and_kept_nowhere(platform: &TestPlatform) {
        let api = Api::of(platform);
        let made = api.post("/api/v1/tokens", &json!({ "name": "ci", "role": "finance" })).await.is(201);
        assert_eq!(made.header("cache-control"), Some("no-store"));
        let (id, text) = (made.json()["id"].clone(), made.json()["secret"].as_str().unwrap().to_owned());
        assert_eq!(made.header("location"), Some(format!("/api/v1/tokens/{}", id.as_str().unwrap()).as_str()));
        api.get(&text, "/api/v1/self").await.is(200);
        let secret = &text[23..87];
        for path in [format!("/api/v1/tokens/{}", id.as_str().unwrap()), "/api/v1/tokens".into(), "/api/v1/audit".into()] {
            assert!(!api.get(&api.operator, &path).await.is(200).everything().contains(secret), "{path}");
        }
        let mut raw = platform.raw().await;
        let kept = raw.rows::<(Vec<u8>,)>("SELECT secret_hash FROM api_token").await;
        assert!(kept.iter().all(|(hash,)| hash.len() == 32 && !secret.as_bytes().starts_with(hash)));
        let used = "SELECT COUNT(*) FROM api_token WHERE last_used_us IS NOT NULL";
        eventually("its use is noted", async || raw.number(used).await == 1).await;
    }

    async fn a_narrowed_token_does_what_it_says_and_no_more(platform: &TestPlatform) {
        let api = Api::of(platform);
        let body = json!({ "name": "dash", "role": "finance", "scopes": ["reports:read"] });
        let token = api.post("/api/v1/tokens", &body).await.is(201).json()["secret"].as_str().unwrap().to_owned();
        let own = api.get(&token, "/api/v1/self").await.is(200).json();
        assert_eq!(own["permissions"], json!(["self:read", "reports:read"]));
        api.get(&token, "/api/v1/reports/costs?period=2026-06").await.is(200);
        let refused = api.get(&token, "/api/v1/price-books").await.is(403).json();
        assert_eq!(refused["type"], "urn:fatia:problem:forbidden");
        assert_eq!(refused["detail"], "this needs the permission prices:read");
        let wider = json!({ "name": "x", "role": "tenant", "tenant": "acme", "scopes": ["audit:read"] });
        let faults = api.post("/api/v1/tokens", &wider).await.is(422).faults();
        assert_eq!(faults, ["#/scopes has audit:read, which role tenant may not"]);
    }

    async fn a_tokens_role_and_tenant_belong_together(platform: &TestPlatform) {
        let api = Api::of(platform);
        let faults = |body: serde_json::Value| {
            let api = &api;
            async move { api.post("/api/v1/tokens", &body).await.is(422).faults() }
        };
        assert_eq!(faults(json!({ "name": "a", "role": "tenant" })).await, ["#/tenant is missing: role tenant belongs to one"]);
        assert_eq!(faults(json!({ "name": "a", "role": "tenant", "tenant": "none" })).await, ["#/tenant `none` is no tenant"]);
        assert_eq!(
            faults(json!({ "name": "a", "role": "admin", "tenant": "acme", "expires": "2026-06-10T12:00:00Z" })).await,
            ["#/tenant is given, and role admin has none", "#/expires has passed"]
        );
        let all = faults(json!({ "role": "root", "scopes": ["fly"], "expires": "soon", "x": 1 })).await;
        assert_eq!(all.len(), 5, "{all:?}");
    }

    async fn an_expired_token_is_refused_to_the_second(platform: &TestPlatform) {
        let api = Api::of(platform);
        let body = json!({ "name": "a", "role": "admin", "expires": "2026-06-10T12:00:02Z" });
        let token = api.post("/api/v1/tokens", &body).await.is(201).json()["secret"].as_str().unwrap().to_owned();
        platform.clock.set("06-10T12:00:01");
        api.get(&token, "/api/v1/self").await.is(200);
        // It is still remembered as good.
        platform.clock.set("06-10T12:00:02");
        let refused = api.get(&token, "/api/v1/self").await.is(401);
        assert_eq!(refused.header("www-authenticate"), Some("Bearer realm=\"fatia\""));
    }

    async fn a_revoked_token_is_refused_here_at_once_and_on_other_replicas_within_five_seconds(platform: &TestPlatform) {
        let api = Api::of(platform);
        let replica = platform.replica(platform.clock.clone()).await;
        let elsewhere = Api::of(&replica);
        let made = api.post("/api/v1/tokens", &json!({ "name": "a", "role": "admin" })).await.is(201).json();
        let (id, token) = (made["id"].as_str().unwrap(), made["secret"].as_str().unwrap());
        for each in [&api, &elsewhere] {
            each.get(token, "/api/v1/self").await.is(200);
        }
        let path = format!("/api/v1/tokens/{id}/revoke");
        let revoked = api.ask("POST", &path).token(&api.operator).send().await.is(200).json();
        assert_eq!(revoked["revoked"], "2026-06-10T12:00:00Z");
        api.get(token, "/api/v1/self").await.is(401);
        platform.clock.set("06-10T12:00:05");
        elsewhere.get(token, "/api/v1/self").await.is(401);
        // Again changes nothing, and is recorded once.
        let again = api.ask("POST", &path).token(&api.operator).send().await.is(200).json();
        assert_eq!(again["revoked"], "2026-06-10T12:00:00Z");
        let mut raw = platform.raw().await;
        assert_eq!(raw.number("SELECT COUNT(*) FROM audit WHERE action = 'token.revoke'").await, 1);
    }

    async fn nobody_makes_a_token_that_may_more(platform: &TestPlatform) {
        let api = Api::of(platform);
        let body = json!({ "name": "maker", "role": "admin", "scopes": ["tokens:write", "reports:read"] });
        let maker = api.post("/api/v1/tokens", &body).await.is(201).json()["secret"].as_str().unwrap().to_owned();
        let make = |body: serde_json::Value| api.ask("POST", "/api/v1/tokens").token(&maker).json(&body).send();
        for body in [
            json!({ "name": "x", "role": "admin" }),
            json!({ "name": "x", "role": "finance" }),
            json!({ "name": "x", "role": "admin", "scopes": ["tokens:write", "tokens:read"] }),
        ] {
            let faults = make(body).await.is(422).faults();
            assert!(faults[0].contains("which the token that makes it has not"), "{faults:?}");
        }
        make(json!({ "name": "x", "role": "finance", "scopes": ["reports:read"] })).await.is(201);
        make(json!({ "name": "x", "role": "agent" })).await.is(201);
    }

    async fn a_token_that_is_revoked_while_its_body_comes_does_nothing(platform: &TestPlatform) {
        let api = Api::of(platform);
        let made = api.post("/api/v1/tokens", &json!({ "name": "a", "role": "admin" })).await.is(201).json();
        let (id, token) = (made["id"].as_str().unwrap(), made["secret"].as_str().unwrap());
        let body = "{\"name\":\"stolen\"}";
        let head = format!(
            "POST /api/v1/tenants HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer {token}\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        let mut stream = tokio::net::TcpStream::connect(api.running.address).await.expect("it listens");
        stream.write_all(head.as_bytes()).await.expect("it takes the head");
        stream.write_all(&body.as_bytes()[..4]).await.expect("it takes some of the body");
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        api.ask("POST", &format!("/api/v1/tokens/{id}/revoke")).token(&api.operator).send().await.is(200);
        stream.write_all(&body.as_bytes()[4..]).await.expect("it takes the rest");
        let mut heard = String::new();
        stream.read_to_string(&mut heard).await.expect("it answers");
        assert!(heard.starts_with("HTTP/1.1 401"), "{heard}");
        assert_eq!(platform.count("tenant").await, 1);
    }

    async fn what_is_no_token_is_refused_alike(platform: &TestPlatform) {
        let api = Api::of(platform);
        let unknown = crate::support::api::mint().text;
        let (most, last) = api.operator.split_at(api.operator.len() - 1);
        let slipped = format!("{most}{}", if last == "0" { "1" } else { "0" });
        let mut said = vec![];
        for token in [unknown.as_str(), &slipped, "x", "", &"y".repeat(4_000)] {
            let answer = api.ask("GET", "/api/v1/self").header("Authorization", &format!("Bearer {token}")).send().await;
            said.push((answer.status, answer.json()["detail"].clone()));
        }
        said.dedup();
        assert_eq!(said, [(401, json!("the token is unknown, expired or revoked"))]);
        let basic = api.ask("GET", "/api/v1/self").header("Authorization", "Basic YTpi").send().await.is(401);
        assert_eq!(basic.json()["detail"], "Authorization is to be: Bearer TOKEN");
    }
}
