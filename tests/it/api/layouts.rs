//! What GPUs are divided into at an instant and over a span, over HTTP: the shares by which they are billed.

use std::sync::Arc;

use fatia::domain::usage::{Source, SourceRank};
use fatia::services::imports::{ImportRequest, Tables, import_intervals};
use serde_json::{Value, json};

use crate::support::api::Api;
use crate::support::platform::{TestPlatform, name, on_both_databases};

const INVENTORY: &str = "node,gpu_uuid,gpu_index,gpu_model,gpu_memory_gib,in_service_from,in_service_to,pool
n1,g1,0,NVIDIA H100 80GB HBM3,80,2026-06-01T00:00:00Z,2026-06-02T00:00:00Z,
n1,g2,1,A10,24,2026-06-01T00:00:00Z,2026-06-02T00:00:00Z,big
n2,g3,0,A10,24,2026-06-01T00:00:00Z,2026-06-02T00:00:00Z,big
";
/// Two GPU instances, one of them with two replicas; the bar's second half is cut anew at noon.
const SLICES: &str = "node,gpu_uuid,slice,parent,mode,profile,placement,replicas,start,end
n1,g1,gi0,,mig,3g.40gb,0,,2026-06-01T00:00:00Z,2026-06-02T00:00:00Z
n1,g1,gi1,,mig,3g.40gb,4,,2026-06-01T00:00:00Z,2026-06-01T12:00:00Z
n1,g1,r0,gi1,time_slicing,,,2,2026-06-01T00:00:00Z,2026-06-01T12:00:00Z
n1,g1,r1,gi1,time_slicing,,,2,2026-06-01T00:00:00Z,2026-06-01T12:00:00Z
";
const INTERVALS: &str = "workload,tenant,project,node,gpu_uuid,pool,gpus,slice,mode,start,end
train,vision,maps,n1,g1,,,gi0,,2026-06-01T00:00:00Z,2026-06-01T10:20:00Z
notebook,speech,,n1,g1,,,r1,,2026-06-01T00:00:00Z,2026-06-01T12:00:00Z
batch,vision,,,,big,1,,dedicated,2026-06-01T06:00:00Z,2026-06-01T07:00:00Z
";

async fn filled(platform: &TestPlatform) -> Api {
    let request =
        ImportRequest { source: Source { rank: SourceRank::Import, sender: name("slurm") }, covers: None };
    let tables = Tables {
        inventory: ("inventory.csv".to_owned(), INVENTORY.as_bytes()),
        slices: Some(("slices.csv".to_owned(), SLICES.as_bytes())),
        intervals: ("intervals.csv".to_owned(), INTERVALS.as_bytes()),
    };
    let outcome = import_intervals(platform, &request, tables, Arc::new(|_| ())).await.unwrap();
    assert_eq!(outcome.bad, []);
    let api = Api::of(platform);
    let states = json!({ "states": [
        { "node": "n1", "gpu_uuid": "g1", "kind": "maintenance", "from": "2026-06-01T11:00:00Z", "to": "2026-06-01T11:30:00Z" },
    ] });
    api.post("/api/v1/states", &states).await.is(200);
    platform.derive().await;
    platform.assert_well().await;
    api
}

/// Pieces as `state share slice start tenant/project workload`.
fn pieces(layout: &Value) -> Vec<String> {
    let text = |value: &Value| match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let of = |piece: &Value| {
        let [state, share, slice, start, tenant, project] =
            ["state", "share", "slice_id", "start", "tenant", "project"].map(|field| text(&piece[field]));
        format!("{state} {share} {slice} {start} {tenant}/{project} {}", text(&piece["evidence"]["workload"]))
    };
    layout["pieces"].as_array().unwrap().iter().map(of).collect()
}

fn layouts(device: &Value) -> Vec<(String, Vec<String>)> {
    let of = |layout: &Value| {
        let span = ["from", "to"].map(|edge| layout[edge].as_str().unwrap()[11..16].to_owned());
        (span.join("-"), pieces(layout))
    };
    device["layouts"].as_array().unwrap().iter().map(of).collect()
}

on_both_databases! {
    async fn a_nodes_gpus_are_divided_as_they_are_billed(platform: &TestPlatform) {
        let api = filled(platform).await;
        let at = |at: &str| format!("/api/v1/nodes/n1/layout?at=2026-06-01T{at}Z");
        let seen = api.get(&api.operator, &at("06:30:00")).await.is(200).json();
        assert_eq!((&seen["name"], &seen["at"]), (&json!("n1"), &json!("2026-06-01T06:30:00Z")));
        let device = &seen["devices"][0];
        assert_eq!((&device["gpu_uuid"], &device["gpu_index"], &device["pool"]), (&json!("g1"), &json!(0), &Value::Null));
        assert_eq!(layouts(device), [("06:00-07:00".to_owned(), vec![
            "used 13/28 gi0 0 vision/maps train".to_owned(),
            "idle 13/56 r0 4 -/- -".to_owned(),
            "used 13/56 r1 4 speech/default notebook".to_owned(),
            "stranded 1/14 - - -/- -".to_owned(),
        ])]);
        let piece = &device["layouts"][0]["pieces"][0];
        assert_eq!((&piece["mode"], &piece["slice"], &piece["activity"]), (&json!("mig"), &json!("mig/3g.40gb"), &Value::Null));
        // Nobody holds the first half any more, and the GPU is worked on: what is held stays its holder's.
        let seen = api.get(&api.operator, &at("11:15:00")).await.is(200).json();
        assert_eq!(layouts(&seen["devices"][0]), [("11:00-11:30".to_owned(), vec![
            "maintenance 13/28 gi0 0 -/- -".to_owned(),
            "maintenance 13/56 r0 4 -/- -".to_owned(),
            "used 13/56 r1 4 speech/default notebook".to_owned(),
            "maintenance 1/14 - - -/- -".to_owned(),
        ])]);
        // A pooled GPU is its pool's: which of them is held, nobody said.
        let device = &seen["devices"][1];
        assert_eq!((&device["gpu_uuid"], &device["pool"], &device["layouts"]), (&json!("g2"), &json!("big"), &json!([])));
        // Without an instant: the last that is counted.
        let seen = api.get(&api.operator, "/api/v1/nodes/n1/layout").await.is(200).json();
        assert_eq!(seen["at"], "2026-06-01T23:59:59.999999Z");
        assert_eq!(pieces(&seen["devices"][0]["layouts"][0])[0], "idle 13/28 gi0 0 -/- -");
        let seen = api.get(&api.operator, "/api/v1/nodes/n1/layout?at=2026-07-01T00:00:00Z").await.is(200).json();
        assert_eq!(seen["devices"], json!([]));
    }

    async fn a_pools_gpus_are_dealt_to_its_holders(platform: &TestPlatform) {
        let api = filled(platform).await;
        let seen = api.get(&api.operator, "/api/v1/pools/big/layout?at=2026-06-01T06:30:00Z").await.is(200).json();
        let devices = seen["devices"].as_array().unwrap();
        let shown: Vec<(&Value, &Value, &Value, Vec<String>)> = devices
            .iter()
            .map(|device| (&device["gpu_uuid"], &device["node"], &device["pool"], pieces(&device["layouts"][0])))
            .collect();
        assert_eq!(shown, [
            (&json!("g2"), &json!("n1"), &json!("big"), vec!["used 1/1 - - vision/default batch".to_owned()]),
            (&json!("g3"), &json!("n2"), &json!("big"), vec!["idle 1/1 - - -/- -".to_owned()]),
        ]);
        let path = "/api/v1/devices/g2/layout?from=2026-06-01T05:00:00Z&to=2026-06-01T08:00:00Z";
        let seen = api.get(&api.operator, path).await.is(200).json();
        let of_pool = seen["devices"].as_array().unwrap().iter().find(|device| device["pool"] == "big").unwrap();
        let spans: Vec<String> = layouts(of_pool).into_iter().map(|(span, pieces)| format!("{span} {}", pieces[0])).collect();
        assert_eq!(spans, [
            "05:00-06:00 idle 1/1 - - -/- -",
            "06:00-07:00 used 1/1 - - vision/default batch",
            "07:00-08:00 idle 1/1 - - -/- -",
        ]);
    }

    async fn a_gpus_spans_are_maximal_and_tile_what_is_counted(platform: &TestPlatform) {
        let api = filled(platform).await;
        let path = "/api/v1/devices/g1/layout?from=2026-06-01T00:00:00Z&to=2026-06-02T12:00:00Z";
        let seen = api.get(&api.operator, path).await.is(200).json();
        let devices = seen["devices"].as_array().unwrap();
        assert_eq!(devices.len(), 1);
        let spans: Vec<String> = layouts(&devices[0]).into_iter().map(|(span, pieces)| format!("{span} {}", pieces.len())).collect();
        assert_eq!(spans, ["00:00-10:20 4", "10:20-11:00 4", "11:00-11:30 4", "11:30-12:00 4", "12:00-00:00 3"]);
        let (_, last) = layouts(&devices[0]).pop().unwrap();
        assert_eq!(last, ["idle 13/28 gi0 0 -/- -", "idle 13/28 - - -/- -", "stranded 1/14 - - -/- -"]);
    }

    async fn what_cannot_be_asked_is_said(platform: &TestPlatform) {
        let api = filled(platform).await;
        let get = |path: &str| { let path = path.to_owned(); let api = &api; async move { api.get(&api.operator, &path).await } };
        get("/api/v1/nodes/none/layout").await.is(404);
        get("/api/v1/pools/n1/layout").await.is(404);
        get("/api/v1/devices/none/layout?from=2026-06-01T00:00:00Z&to=2026-06-02T00:00:00Z").await.is(404);
        assert_eq!(get("/api/v1/nodes/n1/layout?at=noon").await.is(422).faults().len(), 1);
        assert_eq!(get("/api/v1/devices/g1/layout").await.is(422).faults(), ["from is missing", "to is missing"]);
        let long = "/api/v1/devices/g1/layout?from=2026-06-01T00:00:00Z&to=2026-06-08T00:00:01Z";
        assert_eq!(get(long).await.is(422).faults(), ["to is more than 168 hours after from"]);
        let back = "/api/v1/devices/g1/layout?from=2026-06-02T00:00:00Z&to=2026-06-01T00:00:00Z";
        assert_eq!(get(back).await.is(422).faults(), ["to lies before from"]);
        // What is in service and not derived yet is left out.
        platform.inventory("n9 g9 A10 06-01T00:00 06-02T00:00").await;
        let seen = get("/api/v1/nodes/n9/layout").await.is(200).json();
        assert_eq!(seen, json!({ "name": "n9", "at": null, "devices": [] }));
        let seen = get("/api/v1/nodes/n9/layout?at=2026-06-01T12:00:00Z").await.is(200).json();
        assert_eq!(seen["devices"][0]["layouts"], json!([]));
    }
}
