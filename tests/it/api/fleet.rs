//! Nodes, devices, in-service intervals and declared states over HTTP.

use serde_json::json;

use crate::support::api::Api;
use crate::support::platform::on_both_databases;

fn device(uuid: &str, from: &str, to: Option<&str>) -> serde_json::Value {
    json!({ "node": "n1", "gpu_uuid": uuid, "gpu_model": "A10", "gpu_index": 0, "in_service_from": from, "in_service_to": to })
}

on_both_databases! {
    async fn an_operator_opens_and_ends_in_service_intervals(platform: &TestPlatform) {
        let api = Api::of(platform);
        let from = "2026-06-01T00:00:00Z";
        let body = json!({ "devices": [device("g1", from, None), device("g2", from, None)] });
        let brought = api.post("/api/v1/inventory", &body).await.is(200).json();
        assert_eq!(brought, json!({ "opened": 2, "ended": 0, "repooled": 0, "refused": [] }));
        let body = json!({ "devices": [device("g1", from, Some("2026-06-02T00:00:00Z"))] });
        assert_eq!(api.post("/api/v1/inventory", &body).await.is(200).json()["ended"], 1);
        let shown = api.get(&api.operator, "/api/v1/devices/g1").await.is(200).json();
        assert_eq!(shown["in_service"][0]["to"], "2026-06-02T00:00:00Z");
        assert_eq!(shown["in_service"][0]["gpu_index"], 0);
        let nodes = api.all(&api.operator, "/api/v1/nodes", 10).await;
        assert_eq!(nodes, [json!({ "name": "n1", "devices": 2, "in_service": 1 })]);
        assert_eq!(api.get(&api.operator, "/api/v1/nodes/n1").await.is(200).json(), nodes[0]);
        assert_eq!(api.all(&api.operator, "/api/v1/devices?node=n1", 1).await.len(), 2);
        api.get(&api.operator, "/api/v1/devices?node=none").await.is(404);
        api.get(&api.operator, "/api/v1/devices/none").await.is(404);
        let audit = api.get(&api.operator, "/api/v1/audit").await.is(200).json();
        let first = &audit["items"][0];
        assert_eq!((&first["action"], &first["subject"]), (&json!("in_service.amend"), &json!("g1/2026-06-01T00:00:00Z")));
        assert_eq!(first["before"], json!({ "in_service_to": null }));
        platform.derive().await;
        platform.assert_well().await;
    }

    async fn of_json_all_or_none_and_of_a_table_the_good_lines(platform: &TestPlatform) {
        let api = Api::of(platform);
        let (from, bad) = ("2026-06-01T00:00:00Z", "1999-06-01T00:00:00Z");
        let body = json!({ "devices": [device("g1", from, None), device("g2", bad, None), device("g3", from, Some(from))] });
        let faults = api.post("/api/v1/inventory", &body).await.is(422).faults();
        assert_eq!(faults.len(), 2, "{faults:?}");
        assert!(faults[0].starts_with("#/devices/1 ") && faults[1].starts_with("#/devices/2 "), "{faults:?}");
        assert_eq!(platform.count("device").await, 0);
        let table = format!("node,gpu_uuid,gpu_model,in_service_from\nn1,g1,A10,{from}\nn1,g2,A10,{bad}\n");
        let ask = api.ask("POST", "/api/v1/inventory?file=fleet.csv").token(&api.operator);
        let brought = ask.body("text/csv", table).send().await.is(200).json();
        assert_eq!((&brought["opened"], &brought["refused"][0]["line"]), (&json!(1), &json!(3)));
        assert_eq!(brought["refused"][0]["file"], "fleet.csv");
        let elsewhere = json!({ "devices": [{ "node": "n2", "gpu_uuid": "g1", "gpu_model": "A10", "in_service_from": from }] });
        let faults = api.post("/api/v1/inventory", &elsewhere).await.is(422).faults();
        assert_eq!(faults, ["#/devices/0 device g1 is in service elsewhere from the same instant"]);
        // A cell cannot make a second line or another column.
        let sly = json!({ "devices": [{ "node": "n1\",\"x", "gpu_uuid": "g9\ng10", "gpu_model": "A10", "in_service_from": from }] });
        let faults = api.post("/api/v1/inventory", &sly).await.is(422).faults();
        assert_eq!(faults, ["#/devices/0/gpu_uuid holds a control character"]);
    }

    async fn states_are_declared_amended_and_taken_back(platform: &TestPlatform) {
        let api = Api::of(platform);
        platform.import("n1 g1 A10 06-01T00:00 06-02T00:00", "").await;
        let state = |to: Option<&str>| {
            json!({ "states": [{ "node": "n1", "gpu_uuid": "g1", "kind": "maintenance", "from": "2026-06-01T06:00:00Z", "to": to }] })
        };
        let declared = api.post("/api/v1/states", &state(None)).await.is(200).json();
        assert_eq!(declared["declared"], 1);
        let amended = api.post("/api/v1/states", &state(Some("2026-06-01T08:00:00Z"))).await.is(200).json();
        assert_eq!(amended["amended"], 1);
        platform.derive().await;
        assert_eq!(platform.shown("state").await, ["idle 22.000000 - unpriced 22.000000", "maintenance 2.000000 - unpriced 2.000000"]);
        let listed = api.all(&api.operator, "/api/v1/states?node=n1", 1).await;
        assert_eq!((listed.len(), &listed[0]["to"], &listed[0]["declared_by"]), (1, &json!("2026-06-01T08:00:00Z"), &json!("ana")));
        let back = api.post("/api/v1/states", &state(Some("2026-06-01T06:00:00Z"))).await.is(200).json();
        assert_eq!(back["taken_back"], 1);
        assert_eq!(api.all(&api.operator, "/api/v1/states", 1).await.len(), 0);
        let mut raw = platform.raw().await;
        let recorded = raw.rows::<(String,)>("SELECT action FROM audit WHERE action LIKE 'state%' ORDER BY audit_id").await;
        let recorded: Vec<&str> = recorded.iter().map(|(action,)| action.as_str()).collect();
        assert_eq!(recorded, ["state.declare", "state.amend", "state.take_back"]);
        let bad = json!({ "states": [
            { "node": "n1", "kind": "maintenance", "from": "2026-06-01T06:00:00Z" },
            { "node": "none", "kind": "maintenance", "from": "2026-06-01T06:00:00Z" },
            { "node": "n1", "kind": "asleep", "from": "soon" },
        ] });
        let faults = api.post("/api/v1/states", &bad).await.is(422).faults();
        assert_eq!(faults.len(), 2, "{faults:?}");
        assert_eq!(platform.count("state_declared").await, 0);
    }

    async fn lists_are_read_to_their_end_whatever_the_page(platform: &TestPlatform) {
        let api = Api::of(platform);
        let lines: String = (0..23).map(|n| format!("n{n} g{n} A10 06-01T00:00 06-02T00:00\n")).collect();
        platform.import(&lines, "").await;
        let states: Vec<_> = (0..23).map(|n| json!({ "node": format!("n{n}"), "kind": "maintenance", "from": "2026-06-01T06:00:00Z" })).collect();
        api.post("/api/v1/states", &json!({ "states": states })).await.is(200);
        for path in ["nodes", "devices", "states", "audit"] {
            let whole = api.all(&api.operator, &format!("/api/v1/{path}"), 1_000).await;
            assert!(whole.len() >= 23, "{path}");
            for limit in [1, 7, 22, 23] {
                assert_eq!(api.all(&api.operator, &format!("/api/v1/{path}"), limit).await, whole, "{path} by {limit}");
            }
        }
        for (query, fault) in [("limit=0", "limit"), ("limit=1001", "limit"), ("after=zz", "after"), ("x=1", "x"), ("limit=1&limit=2", "limit")] {
            let faults = api.get(&api.operator, &format!("/api/v1/nodes?{query}")).await.is(422).faults();
            assert!(faults[0].starts_with(fault), "{query}: {faults:?}");
        }
    }

    async fn findings_are_listed_with_their_natural_names(platform: &TestPlatform) {
        let api = Api::of(platform);
        platform.import("n1 g1 A10 06-01T00:00 06-02T00:00", "w acme n1 g1 mig:9g.90gb 06-01T00:00 06-01T03:00").await;
        platform.derive().await;
        let all = api.all(&api.operator, "/api/v1/findings", 1).await;
        assert!(!all.is_empty());
        assert_eq!((&all[0]["kind"], &all[0]["scope"]), (&json!("unknown_profile"), &json!("n1")));
        assert_eq!(api.all(&api.operator, "/api/v1/findings?kind=unknown_profile", 10).await, all);
        assert_eq!(api.all(&api.operator, "/api/v1/findings?kind=source_conflict", 10).await.len(), 0);
        api.get(&api.operator, "/api/v1/findings?kind=x").await.is(422);
    }
}
