//! What agents are promised, and what the service does with those that lie.

use fatia::wire::signature::{BatchSigner, RequestClaims};
use fatia::wire::{agent_v1, body};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::agent::{Agent, ask_to_enrol, enrolment};
use crate::support::api::{Answer, Api};
use crate::support::platform::{START, TestPlatform, on_both_databases, span};

/// An agent of `n1` with two devices that have been in service since the morning.
async fn with_devices(platform: &TestPlatform) -> (Api, Agent) {
    platform.clock.set("06-10T08:00");
    let api = Api::of(platform);
    let agent = Agent::enrol(&api, "n1").await;
    let taken = agent.inventory(&api, platform, 1, &["g1", "g2"]).await.is(200).json();
    assert_eq!((&taken["opened"], &taken["refused"]), (&json!(2), &json!([])));
    platform.clock.set(START);
    (api, agent)
}

fn outcome(answer: &Answer) -> (String, i64) {
    let document = answer.json();
    (document["outcome"].as_str().unwrap_or("none").to_owned(), document["mark"].as_i64().unwrap_or(-1))
}

fn kind(answer: &Answer) -> String {
    answer.json()["type"].as_str().unwrap_or_default().replace("urn:fatia:problem:", "")
}

on_both_databases! {
    async fn what_an_agent_sends_is_on_the_report(platform: &TestPlatform) {
        let (api, agent) = with_devices(platform).await;
        let held = agent.pack("train-0 - g1 dedicated 06-10T10:00 06-10T11:00",
                              "g1 06-10T10:00 06-10T11:00\ng2 06-10T10:00 06-10T11:00");
        let answer = agent.send(&api, platform, 1, &held).await.is(200);
        assert_eq!(outcome(&answer), ("accepted".to_owned(), 1));
        let time = answer.header("fatia-time").and_then(|text| text.parse::<i64>().ok());
        assert_eq!(time, Some(platform.now().micros()), "the answer tells the service's time");
        // A repeat, signed again at another moment, is a duplicate.
        assert_eq!(outcome(&agent.send(&api, platform, 1, &held).await.is(200)), ("duplicate".to_owned(), 1));
        platform.tick().await;
        platform.derive().await;
        let shown = platform.shown("workload state").await;
        assert!(shown.contains(&"train-0 used 1.000000 - unpriced 1.000000".to_owned()), "{shown:?}");
        platform.assert_well().await;
        let shown = api.get(&api.operator, &format!("/api/v1/agents/{}", agent.id)).await.is(200).json();
        assert_eq!(shown["reported_to"], "2026-06-10T11:00:00Z");
        assert_eq!(shown["node"], "n1");
        assert_eq!(shown["inventory"]["devices"][1]["uuid"], "g2");
        // The signature is kept with the batch, and still holds.
        let mut raw = platform.raw().await;
        let kept = raw.rows::<(String, Vec<u8>)>("SELECT signature, body FROM usage_batch").await;
        let verifier = fatia::wire::signature::BatchVerifier::new(&agent.signer.public_key()).unwrap();
        assert_eq!(verifier.verify(&kept[0].0, &kept[0].1).unwrap().sequence, 1);
    }

    async fn an_enrolment_token_serves_one_key_and_one_hour(platform: &TestPlatform) {
        let api = Api::of(platform);
        let secret = enrolment(&api, &json!({ "nodes": "gpu-*" })).await;
        let signer = |seed: u8| BatchSigner::from_seed(&[seed; 32]);
        // Neither for another node, nor with a key that proves nothing.
        assert_eq!(ask_to_enrol(&api, &secret, "cpu-1", &signer(1)).await.status, 401);
        for weak in ["00".repeat(32), format!("01{}", "00".repeat(31)), "07".repeat(31), "07".repeat(33), "zz".repeat(32)] {
            let body = json!({ "token": secret, "node": "gpu-1", "public_key": weak, "version": "1" });
            let answer = api.ask("POST", agent_v1::ENROL_PATH).json(&body).send().await.is(422);
            assert!(answer.faults()[0].starts_with("#/public_key"), "{:?}", answer.faults());
        }
        let first = ask_to_enrol(&api, &secret, "gpu-1", &signer(1)).await.is(200);
        platform.clock.set("06-10T12:30");
        // The same key is answered alike, however late; another one is not, nor another node.
        assert_eq!(ask_to_enrol(&api, &secret, "gpu-1", &signer(1)).await.is(200).json(), first.json());
        let other = ask_to_enrol(&api, &secret, "gpu-1", &signer(2)).await.is(401);
        assert_eq!(ask_to_enrol(&api, &secret, "gpu-2", &signer(1)).await.is(401).json()["detail"], other.json()["detail"]);
        platform.clock.set("06-10T13:30");
        assert_eq!(ask_to_enrol(&api, &secret, "gpu-1", &signer(1)).await.is(200).json(), first.json());
        // Over after an hour, for whoever did not come.
        let late = enrolment(&api, &json!({ "nodes": "*" })).await;
        platform.clock.set("06-10T14:30");
        assert_eq!(ask_to_enrol(&api, &late, "gpu-3", &signer(3)).await.status, 401);
        // A node has one agent, unless it is said that the new one takes its place: then the old key is no use.
        let again = enrolment(&api, &json!({ "nodes": "gpu-1" })).await;
        assert_eq!(ask_to_enrol(&api, &again, "gpu-1", &signer(4)).await.status, 409);
        let replacing = enrolment(&api, &json!({ "nodes": "gpu-1", "replaces": true })).await;
        let second = ask_to_enrol(&api, &replacing, "gpu-1", &signer(4)).await.is(200).json();
        assert_ne!(second["agent"], first.json()["agent"]);
        assert_eq!(ask_to_enrol(&api, &secret, "gpu-1", &signer(1)).await.status, 401);
        let audit = api.all(&api.operator, "/api/v1/audit", 100).await;
        let actions: Vec<&str> = audit.iter().rev().map(|entry| entry["action"].as_str().unwrap()).collect();
        assert_eq!(actions.iter().filter(|each| **each == "agent.enrol").count(), 2, "{actions:?}");
        assert!(actions.contains(&"agent.replace") && actions.contains(&"enrolment.create"));
        let text = serde_json::to_string(&audit).unwrap();
        assert!(!text.contains(&secret) && !text.contains(secret.split('_').nth(2).unwrap()), "no secret is recorded");
        let listed = api.all(&api.operator, "/api/v1/enrolment-tokens", 1).await;
        assert_eq!(listed.iter().filter(|each| !each["used"].is_null()).count(), 2);
    }

    async fn of_many_keys_that_use_one_token_at_once_one_is_enrolled(platform: &TestPlatform) {
        let api = Api::of(platform);
        let secret = enrolment(&api, &json!({ "nodes": "*" })).await;
        let signers: Vec<BatchSigner> = (1..=12).map(|seed| BatchSigner::from_seed(&[seed; 32])).collect();
        let asks = signers.iter().map(|signer| ask_to_enrol(&api, &secret, "n1", signer));
        let answers = futures_util::future::join_all(asks).await;
        let statuses: Vec<u16> = answers.iter().map(|answer| answer.status).collect();
        assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 1, "{statuses:?}");
        assert_eq!(platform.count("agent").await, 1);
    }

    async fn an_agent_speaks_for_its_own_node_alone(platform: &TestPlatform) {
        let (api, a) = with_devices(platform).await;
        let b = Agent::enrol(&api, "n2").await;
        b.inventory(&api, platform, 1, &["h1"]).await.is(200);
        let of_a = a.pack("w - g1 dedicated 06-10T10:00 06-10T11:00", "g1 06-10T10:00 06-10T11:00");
        let of_b = b.pack("w - h1 dedicated 06-10T10:00 06-10T11:00", "h1 06-10T10:00 06-10T11:00");
        // B's body under A's key and A's node; B's node in A's signature; A's signature on B's behalf.
        let claims = a.claims(platform, "POST", agent_v1::BATCHES_PATH, &of_b.bytes);
        let claims = RequestClaims { place: a.place(1, of_b.span), ..claims };
        let bodys = a.send_signed(&api, &claims, of_b.bytes.clone()).await.is(403);
        assert_eq!(kind(&bodys), "forbidden");
        let node = RequestClaims { node: b.node.clone(), ..claims.clone() };
        a.send_signed(&api, &node, of_b.bytes.clone()).await.is(403);
        let issuer = RequestClaims { issuer: b.id.clone(), ..claims.clone() };
        a.send_signed(&api, &issuer, of_b.bytes.clone()).await.is(401);
        // Another's stream is not taken over.
        b.send(&api, platform, 1, &of_b).await.is(200);
        let stream = Agent { stream: b.stream, id: a.id.clone(), node: a.node.clone(), audience: a.audience.clone(),
                             signer: a.signer.clone(), off: 0 };
        assert_eq!(stream.send(&api, platform, 2, &of_a).await.status, 409);
        // Nothing of it moved a mark, and each try is on record.
        assert_eq!(outcome(&a.send(&api, platform, 1, &of_a).await.is(200)), ("accepted".to_owned(), 1));
        let refused = "audit WHERE action = 'usage.refuse'";
        assert_eq!(platform.count(refused).await, 2);
        let audit = api.all(&api.operator, "/api/v1/audit", 100).await;
        let tries: Vec<&Value> = audit.iter().filter(|entry| entry["action"] == "usage.refuse").collect();
        assert_eq!(tries[0]["actor"], format!("agent {}", a.id));
        assert_eq!(tries[0]["subject"], format!("n1/{}", a.id));
    }

    async fn a_signature_is_for_one_request_of_one_installation_at_one_time(platform: &TestPlatform) {
        let (api, agent) = with_devices(platform).await;
        let held = agent.pack("w - g1 dedicated 06-10T10:00 06-10T11:00", "g1 06-10T10:00 06-10T11:00");
        let good = agent.claims(platform, "POST", agent_v1::BATCHES_PATH, &held.bytes);
        let good = RequestClaims { place: agent.place(1, held.span), ..good };
        let send = async |claims: RequestClaims| {
            let token = agent.signer.sign_request(&claims).unwrap();
            let ask = api.ask("POST", agent_v1::BATCHES_PATH).token(&token);
            ask.body(agent_v1::BATCH_TYPE, held.bytes.clone()).send().await
        };
        for claims in [
            RequestClaims { audience: "fatia:another".to_owned(), ..good.clone() },
            RequestClaims { path: agent_v1::SKIPS_PATH.to_owned(), ..good.clone() },
            RequestClaims { method: "PUT".to_owned(), ..good.clone() },
            RequestClaims { body_hash: [0; 32], ..good.clone() },
            RequestClaims { place: None, ..good.clone() },
            RequestClaims { expires: good.issued + 61, ..good.clone() },
        ] {
            assert_eq!(kind(&send(claims).await.is(401)), "unauthorized");
        }
        // Old, or of a time to come: the answer says what time it is.
        for off in [-70, 70, 86_400 * 365, -86_400 * 365] {
            let claims = RequestClaims { issued: good.issued + off, expires: good.expires + off, ..good.clone() };
            let answer = send(claims).await.is(401);
            assert_eq!(kind(&answer), "clock-skew");
            assert_eq!(answer.header("fatia-time").unwrap(), platform.now().micros().to_string());
        }
        let unsigned = agent.signer.sign_request(&good).unwrap();
        let payload = unsigned.split('.').nth(1).unwrap();
        let unsigned = format!("eyJhbGciOiJub25lIiwidHlwIjoiSldUIn0.{payload}.");
        api.ask("POST", agent_v1::BATCHES_PATH).token(&unsigned).body(agent_v1::BATCH_TYPE, held.bytes.clone())
            .send().await.is(401);
        send(good).await.is(200);
        // A revoked agent is done at once.
        let path = format!("/api/v1/agents/{}/revoke", agent.id);
        api.ask("POST", &path).token(&api.operator).send().await.is(200);
        agent.send(&api, platform, 2, &held).await.is(401);
    }

    async fn other_bytes_under_a_number_are_refused_and_the_first_are_kept(platform: &TestPlatform) {
        let (api, agent) = with_devices(platform).await;
        let first = agent.pack("a - g1 dedicated 06-10T10:00 06-10T11:00", "g1 06-10T10:00 06-10T11:00");
        let other = agent.pack("b - g1 dedicated 06-10T10:00 06-10T11:00", "g1 06-10T10:00 06-10T11:00");
        agent.send(&api, platform, 1, &first).await.is(200);
        let refused = agent.send(&api, platform, 1, &other).await.is(409);
        assert_eq!(kind(&refused), "conflict");
        let mut raw = platform.raw().await;
        let kept = raw.rows::<(Vec<u8>,)>("SELECT body FROM usage_batch").await;
        assert_eq!(kept, [(first.bytes.clone(),)]);
        let findings = platform.findings().await;
        assert_eq!(findings[0].0, "rollback_or_clone");
        // Numbers that are ahead are told where to go on; those that were set back start a stream of their own.
        assert_eq!(outcome(&agent.send(&api, platform, 5, &other).await.is(200)), ("ahead".to_owned(), 1));
        let fresh = Agent { stream: Uuid::from_u128(99), ..agent };
        let claims = fresh.claims(platform, "POST", agent_v1::BATCHES_PATH, &other.bytes);
        let reason = Some("the service knows another batch 1".to_owned());
        let claims = RequestClaims { place: fresh.place(1, other.span), reason, ..claims };
        assert_eq!(outcome(&fresh.send_signed(&api, &claims, other.bytes.clone()).await.is(200)), ("accepted".to_owned(), 1));
        let told = platform.findings().await.iter().any(|(_, detail)| detail.contains("began stream"));
        assert!(told, "a stream that follows another is told of");
    }

    async fn a_row_that_claims_too_much_is_refused_with_its_pointer(platform: &TestPlatform) {
        let (api, agent) = with_devices(platform).await;
        let (from, to) = (span("06-10T10:00 06-10T10:01").start().micros(), span("06-10T10:00 06-10T10:01").end().micros());
        let window = |active: i64| json!([0, 0, from, to, from, active * 1_000_000_000, null]);
        let message = json!({
            "v": "usage_v1", "scope": { "node": "n1" }, "source": { "rank": "host_agent", "sender": agent.id },
            "devices": ["g1", "g9"], "slices": [{ "device": 0, "mode": "dedicated" }, { "device": 1, "mode": "dedicated" }],
            "evidence": [{ "pod": "p" }, { "tenant": "acme" }],
            "rows": [[0, 0, from, to, from, to], [1, 0, from, to, from, to], [0, 1, from, to, from, to]],
            "coverage": [[0, from, to, "holding"]], "usage": [window(60), window(61)],
        });
        let bytes = body::pack(message.to_string().as_bytes()).unwrap();
        let packed = crate::support::agent::Packed { span: span("06-10T10:00 06-10T10:01"), bytes };
        let answer = agent.send(&api, platform, 1, &packed).await.is(200).json();
        let refused: Vec<(&str, &str)> = answer["refused"].as_array().unwrap().iter()
            .map(|each| (each["pointer"].as_str().unwrap(), each["reason"].as_str().unwrap())).collect();
        assert_eq!(refused, [
            ("/evidence/1", "names a tenant, which only an import may"),
            ("/rows/2", "names evidence that was refused or is not there"),
            ("/usage/1", "is active for longer than the 60 s that it spans"),
            ("/rows/1", "device g9 never was in service on n1"),
        ]);
        assert_eq!((&answer["outcome"], &answer["accepted_rows"]), (&json!("accepted"), &json!(1)));
        platform.tick().await;
        platform.derive().await;
        let path = "/api/v1/usage/windows?node=n1&from=2026-06-10T00:00:00Z&to=2026-06-11T00:00:00Z";
        let windows = api.all(&api.operator, path, 1).await;
        let kinds: Vec<&str> = windows.iter().map(|window| window["kind"].as_str().unwrap()).collect();
        assert_eq!(kinds, ["held", "measured"], "what was refused is not there");
        assert_eq!(windows[1]["active_nanos"], 60_000_000_000_i64);
        assert_eq!(windows[0]["evidence"], json!({ "pod": "p" }));
    }

    async fn a_device_that_its_node_still_reports_is_not_taken_away(platform: &TestPlatform) {
        let (api, a) = with_devices(platform).await;
        let b = Agent::enrol(&api, "n2").await;
        let held = a.pack("w - g1 dedicated 06-10T11:50 06-10T11:55", "g1 06-10T11:50 06-10T11:55");
        a.send(&api, platform, 1, &held).await.is(200);
        let taken = b.inventory(&api, platform, 1, &["g1", "h1"]).await.is(200).json();
        assert_eq!((&taken["opened"], &taken["moved"]), (&json!(1), &json!(0)));
        assert_eq!(taken["refused"][0]["pointer"], "/devices/0");
        assert_eq!(platform.findings().await[0].0, "device_contested");
        // Its home is silent for a quarter of an hour: the board was carried over.
        platform.clock.set("06-10T12:10");
        let moved = b.inventory(&api, platform, 2, &["g1", "h1"]).await.is(200).json();
        assert_eq!((&moved["opened"], &moved["moved"], &moved["refused"]), (&json!(0), &json!(1), &json!([])));
        let device = api.get(&api.operator, "/api/v1/devices/g1").await.is(200).json();
        let nodes: Vec<(&str, &Value)> = device["in_service"].as_array().unwrap().iter()
            .map(|each| (each["node"].as_str().unwrap(), &each["to"])).collect();
        assert_eq!(nodes, [("n1", &json!("2026-06-10T12:10:00Z")), ("n2", &Value::Null)]);
        platform.tick().await;
        platform.derive().await;
        platform.assert_well().await;
        // Absence closes nothing, and what a person took out of service stays out.
        a.inventory(&api, platform, 2, &[]).await.is(200);
        let device = api.get(&api.operator, "/api/v1/devices/g2").await.is(200).json();
        assert_eq!(device["in_service"][0]["to"], Value::Null);
        let start = device["in_service"][0]["from"].as_str().unwrap();
        let ended = json!({ "devices": [{ "node": "n1", "gpu_uuid": "g2", "gpu_model": "A10", "in_service_from": start,
                                          "in_service_to": "2026-06-10T12:05:00Z" }] });
        api.post("/api/v1/inventory", &ended).await.is(200);
        let back = a.inventory(&api, platform, 3, &["g2"]).await.is(200).json();
        assert_eq!(back["refused"][0]["reason"], "device g2 was taken out of service on this node");
    }

    async fn an_inventory_is_taken_once_and_never_an_older_one(platform: &TestPlatform) {
        let (api, agent) = with_devices(platform).await;
        let inventory = json!({ "counter": 5, "at": platform.now().micros(), "version": "0.1.0",
                                "devices": [{ "uuid": "g3", "model": "A10" }] });
        assert_eq!(agent.put(&api, platform, &inventory).await.is(200).json()["opened"], 1);
        assert_eq!(agent.put(&api, platform, &inventory).await.is(200).json()["opened"], 0, "a repeat");
        let mut other = inventory.clone();
        other["devices"] = json!([]);
        agent.put(&api, platform, &other).await.is(409);
        other["counter"] = 4.into();
        agent.put(&api, platform, &other).await.is(409);
        let bad = json!({ "counter": 0, "at": "now", "version": "1", "colour": 1,
                          "devices": [{ "uuid": "g4" }, { "uuid": "g5", "model": "A10", "index": -1 },
                                      { "uuid": "g6", "model": "A10" }, { "uuid": "g6", "model": "A10" }] });
        let faults = agent.put(&api, platform, &bad).await.is(422).faults();
        for pointer in ["#/counter", "#/at", "#/colour", "#/devices/0/model", "#/devices/1/index", "#/devices "] {
            assert!(faults.iter().any(|fault| fault.starts_with(pointer)), "{pointer}: {faults:?}");
        }
        let ahead = json!({ "counter": 6, "at": platform.now().micros() + 200_000_000, "version": "1", "devices": [] });
        assert_eq!(agent.put(&api, platform, &ahead).await.is(422).faults(), ["#/at has not come yet"]);
    }

    async fn numbers_that_will_never_come_leave_a_gap_and_nothing_waits_for_them(platform: &TestPlatform) {
        let (api, agent) = with_devices(platform).await;
        let lost = span("06-10T09:00 06-10T10:00");
        assert_eq!(outcome(&agent.skip(&api, platform, (1, 12), lost).await.is(200)), ("accepted".to_owned(), 12));
        assert_eq!(outcome(&agent.skip(&api, platform, (1, 12), lost).await.is(200)), ("duplicate".to_owned(), 12));
        assert_eq!(outcome(&agent.skip(&api, platform, (14, 20), lost).await.is(200)), ("ahead".to_owned(), 12));
        agent.skip(&api, platform, (0, 13), lost).await.is(422);
        let held = agent.pack("w - g1 dedicated 06-10T10:00 06-10T11:00", "g1 06-10T10:00 06-10T11:00");
        assert_eq!(outcome(&agent.send(&api, platform, 13, &held).await.is(200)), ("accepted".to_owned(), 13));
        let findings = platform.findings().await;
        assert_eq!(findings, [("usage_gap".to_owned(), "batches 1 to 12 will not come: the disk lost them".to_owned())]);
        assert_eq!(platform.count("usage_gap").await, 1);
        platform.tick().await;
        platform.derive().await;
        platform.assert_well().await;
    }

    async fn what_an_older_service_cannot_read_takes_its_number_and_is_kept(platform: &TestPlatform) {
        let (api, agent) = with_devices(platform).await;
        let newer = body::pack(b"{\"v\":\"usage_v2\",\"news\":[]}").unwrap();
        let packed = crate::support::agent::Packed { span: span("06-10T10:00 06-10T11:00"), bytes: newer.clone() };
        assert_eq!(outcome(&agent.send(&api, platform, 1, &packed).await.is(200)), ("set_aside".to_owned(), 1));
        let held = agent.pack("w - g1 dedicated 06-10T11:00 06-10T11:30", "g1 06-10T11:00 06-10T11:30");
        assert_eq!(outcome(&agent.send(&api, platform, 2, &held).await.is(200)), ("accepted".to_owned(), 2));
        let mut raw = platform.raw().await;
        let kept = raw.rows::<(Vec<u8>,)>("SELECT body FROM usage_batch WHERE set_aside IS NOT NULL").await;
        assert_eq!(kept, [(newer,)]);
        assert_eq!(platform.findings().await[0].0, "batch_set_aside");
    }

    async fn batches_that_arrive_at_once_are_each_answered_for_themselves(platform: &TestPlatform) {
        let (api, agent) = with_devices(platform).await;
        let mut agents = vec![agent];
        for number in 2..=8 {
            let agent = Agent::enrol(&api, &format!("n{number}")).await;
            agent.inventory(&api, platform, 1, &[&format!("d{number}")]).await.is(200);
            agents.push(agent);
        }
        for sequence in 1..=20 {
            let minutes = format!("06-10T10:{:02} 06-10T10:{:02}", sequence - 1, sequence);
            let sends = agents.iter().enumerate().map(async |(number, agent)| {
                let device = if number == 0 { "g1".to_owned() } else { format!("d{}", number + 1) };
                let packed = agent.pack(&format!("w - {device} dedicated {minutes}"), &format!("{device} {minutes}"));
                // One of them asks for what is not its turn, one says twice what it says.
                let place = if number == 3 { sequence + 1 } else { sequence };
                let (first, second) = futures_util::future::join(
                    agent.send(&api, platform, place, &packed), agent.send(&api, platform, place, &packed)).await;
                (number, outcome(&first.is(200)).0, outcome(&second.is(200)).0)
            });
            for (number, first, second) in futures_util::future::join_all(sends).await {
                let mut both = [first.as_str(), second.as_str()];
                both.sort_unstable();
                let want = if number == 3 { ["ahead", "ahead"] } else { ["accepted", "duplicate"] };
                assert_eq!(both, want, "agent {number}, batch {sequence}");
            }
        }
        assert_eq!(platform.count("usage_batch").await, 7 * 20);
        platform.tick().await;
        platform.derive().await;
        platform.assert_well().await;
    }

    async fn a_tenant_sees_of_the_windows_what_its_own_workloads_held(platform: &TestPlatform) {
        let (api, agent) = with_devices(platform).await;
        for tenant in ["acme", "beta"] {
            api.post("/api/v1/tenants", &json!({ "name": tenant })).await.is(201);
            api.post(&format!("/api/v1/tenants/{tenant}/projects"), &json!({ "name": "p" })).await.is(201);
            let rule = json!({ "order": 10, "tenant": tenant, "project": "p",
                               "conditions": [{ "field": "pod", "comparison": "prefix", "value": tenant }] });
            api.post("/api/v1/mapping-rules", &rule).await.is(201);
        }
        let held = agent.pack(
            "acme-1 - g1 dedicated 06-10T10:00 06-10T10:30
             beta-1 - g2 dedicated 06-10T10:00 06-10T10:30
             acme-2 - g1 dedicated 06-10T10:30 06-10T11:00",
            "g1 06-10T10:00 06-10T11:00");
        agent.send(&api, platform, 1, &held).await.is(200);
        let token = api.token("tenant", Some("acme")).await;
        let path = "/api/v1/usage/windows?node=n1&from=2026-06-10T00:00:00Z&to=2026-06-11T00:00:00Z";
        let own = api.all(&token, path, 1).await;
        let pods: Vec<&str> = own.iter().map(|window| window["evidence"]["pod"].as_str().unwrap()).collect();
        assert_eq!(pods, ["acme-1", "acme-2"]);
        assert_eq!(api.all(&api.operator, path, 2).await.len(), 3);
        // Whoever pays is named by the rules; one device and one kind can be asked for, also page by page.
        let of_g1 = api.all(&api.operator, &format!("{path}&device=g1&kind=held"), 1).await;
        let payers: Vec<&str> = of_g1.iter().map(|window| window["tenant"].as_str().unwrap()).collect();
        assert_eq!(payers, ["acme", "acme"]);
        assert!(api.all(&api.operator, &format!("{path}&device=g2&kind=measured"), 2).await.is_empty());
        let bad = api.get(&token, &format!("{path}&kind=seen")).await.is(422);
        assert_eq!(bad.faults(), ["kind is none of held, existed and measured"]);
        // A node that is not there, and one of which nothing is its own, look the same.
        let none = path.replace("n1", "nowhere");
        assert_eq!(api.get(&token, &none).await.is(200).json(), json!({ "items": [], "next": null }));
        assert_eq!(api.get(&api.operator, &none).await.status, 404);
        let faults = api.get(&token, "/api/v1/usage/windows?from=2026-06-11T00:00:00Z&to=2026-06-10T00:00:00Z").await.is(422);
        assert_eq!(faults.faults(), ["node is missing", "to lies before from"]);
    }

    async fn what_is_said_of_a_time_to_come_is_set_aside_and_nothing_waits_for_it(platform: &TestPlatform) {
        let (api, agent) = with_devices(platform).await;
        let tomorrow = agent.pack("w - g1 dedicated 06-11T10:00 06-11T10:01", "g1 06-11T10:00 06-11T10:01");
        let answer = agent.send(&api, platform, 1, &tomorrow).await.is(200);
        assert_eq!(outcome(&answer), ("set_aside".to_owned(), 1));
        assert!(answer.text.contains("has not come yet"), "{}", answer.text);
        let now = agent.pack("w - g1 dedicated 06-10T10:00 06-10T10:01", "g1 06-10T10:00 06-10T10:01");
        assert_eq!(outcome(&agent.send(&api, platform, 2, &now).await.is(200)), ("accepted".to_owned(), 2));
        let kinds: Vec<String> = platform.findings().await.into_iter().map(|(kind, _)| kind).collect();
        assert_eq!(kinds, ["batch_set_aside"]);
        let seen = platform.raw().await.number("SELECT MAX(edge_us) FROM usage_stream").await;
        assert!(seen <= platform.now().micros(), "no stream has spoken of tomorrow");
        // Whoever says that a thousand years are lost has an hour's marks written for none of them.
        let span = fatia::domain::period::Span::clamped(
            fatia::domain::units::Instant::from_micros(0),
            fatia::domain::units::Instant::MAX,
        );
        assert_eq!(outcome(&agent.skip(&api, platform, (3, 3), span).await.is(200)).1, 3);
        let marks = platform.raw().await.number("SELECT COUNT(*) FROM dirty_node").await;
        assert!(marks <= 24 * 101, "{marks} marks");
    }

    async fn a_clock_that_is_a_year_off_is_told_of(platform: &TestPlatform) {
        let (api, agent) = with_devices(platform).await;
        let (from, to) = (span("06-10T10:00 06-10T10:01").start().micros(), span("06-10T10:00 06-10T10:01").end().micros());
        let year = 365 * 86_400 * 1_000_000_i64;
        let message = json!({
            "v": "usage_v1", "scope": { "node": "n1" }, "source": { "rank": "host_agent", "sender": agent.id },
            "devices": ["g1"], "slices": [{ "device": 0, "mode": "dedicated" }], "evidence": [{ "pod": "p" }],
            "rows": [[0, 0, from, to, from, to]], "coverage": [[0, from, to, "holding"]],
            "clocks": [[from, to, "b0b0", 77_000_000_000_i64, to - year, year]],
        });
        let bytes = body::pack(message.to_string().as_bytes()).unwrap();
        let packed = crate::support::agent::Packed { span: span("06-10T10:00 06-10T10:01"), bytes };
        assert_eq!(outcome(&agent.send(&api, platform, 1, &packed).await.is(200)).0, "accepted");
        let findings = platform.findings().await;
        let detail = "the node's clock is 31536000 s behind; its windows are placed by the service's";
        assert_eq!(findings, [("clock_skew".to_owned(), detail.to_owned())]);
        let shown = api.get(&api.operator, &format!("/api/v1/agents/{}", agent.id)).await.is(200).json();
        assert_eq!(shown["clock_offset_us"], year);
        platform.tick().await;
        platform.derive().await;
        let used = platform.shown("state").await;
        assert!(used.contains(&"used 0.016666 - unpriced 0.016666".to_owned()), "{used:?}");
    }
}
