//! Imports that are uploaded: done beside the answer, watched, and their refused lines read.

use std::time::Duration;

use reqwest::multipart::{Form, Part};
use serde_json::{Value, json};

use crate::support::api::Api;
use crate::support::platform::on_both_databases;

const INVENTORY: &str = "node,gpu_uuid,gpu_model,in_service_from,in_service_to\n\
                         n1,g1,A10,2026-06-01T00:00:00Z,2026-06-03T00:00:00Z\n";
const HEADER: &str = "workload,tenant,node,gpu_uuid,mode,start,end\n";

fn form(intervals: &str) -> Form {
    let part = |name: &'static str, text: String| Part::bytes(text.into_bytes()).file_name(name);
    Form::new()
        .part("inventory", part("fleet.csv", INVENTORY.to_owned()))
        .part("intervals", part("june.csv", format!("{HEADER}{intervals}")))
}

/// The import once it has ended.
async fn ended(api: &Api, id: &str) -> Value {
    for _ in 0..2_000 {
        let run = api.get(&api.operator, &format!("/api/v1/imports/{id}")).await.is(200).json();
        if run["state"] != "running" {
            return run;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the import does not end");
}

async fn upload(api: &Api, form: Form) -> Value {
    let ask = api.ask("POST", "/api/v1/imports").token(&api.operator);
    let begun = ask.form(form).send().await.is(202);
    let id = begun.json()["id"].as_str().unwrap().to_owned();
    assert_eq!(begun.header("location"), Some(format!("/api/v1/imports/{id}").as_str()));
    ended(api, &id).await
}

on_both_databases! {
    async fn an_upload_is_an_import(platform: &TestPlatform) {
        let api = Api::of(platform);
        let good = "w1,acme,n1,g1,dedicated,2026-06-01T00:00:00Z,2026-06-01T12:00:00Z\n";
        let bad = "w2,acme,n1,none,dedicated,2026-06-01T00:00:00Z,2026-06-01T12:00:00Z\n";
        let run = upload(&api, form(&format!("{good}{bad}")).text("source", "slurm")).await;
        assert_eq!(run["state"], "finished");
        assert_eq!((&run["source"], &run["outcome"]["refused_lines"]), (&json!("slurm"), &json!(1)));
        assert_eq!((&run["outcome"]["opened"], &run["outcome"]["stored"]), (&json!(1), &json!(2)));
        assert_eq!((&run["batches"], &run["answered"]), (&json!(2), &json!(2)));
        let refused = api.all(&api.operator, &format!("/api/v1/imports/{}/refused-lines", run["id"].as_str().unwrap()), 1).await;
        assert_eq!((&refused[0]["file"], &refused[0]["line"]), (&json!("june.csv"), &json!(3)));
        platform.derive().await;
        assert_eq!(platform.shown("tenant").await[0], "acme 12.000000 - unpriced 12.000000");
        // Brought again it changes nothing.
        let again = upload(&api, form(&format!("{bad}{good}")).text("source", "slurm")).await;
        assert_eq!((&again["outcome"]["stored"], &again["outcome"]["duplicates"]), (&json!(0), &json!(2)));
        assert_eq!(api.all(&api.operator, "/api/v1/imports", 1).await.len(), 2);
    }

    async fn an_import_that_cannot_be_done_says_why(platform: &TestPlatform) {
        let api = Api::of(platform);
        let table = Form::new().text("inventory", INVENTORY).text("intervals", "a,b\n1,2\n");
        let run = upload(&api, table).await;
        assert_eq!((&run["state"], &run["outcome"]), (&json!("failed"), &json!(null)));
        assert!(run["failure"].as_str().unwrap().starts_with("intervals.csv: line 1: unknown column `a`"), "{run}");
        assert_eq!(platform.count("usage_batch").await, 0);
    }

    async fn an_uploads_parts_are_checked_before_it_begins(platform: &TestPlatform) {
        let api = Api::of(platform);
        let ask = |form: Form| api.ask("POST", "/api/v1/imports").token(&api.operator).form(form).send();
        assert_eq!(ask(Form::new().text("intervals", HEADER)).await.is(422).faults(), ["#/inventory is missing"]);
        let both = form("").text("rank", "host_agent").text("covers", "june").text("source", " ");
        assert_eq!(ask(both).await.is(422).faults(), [
            "#/source is empty",
            "#/rank is none of hypervisor, scheduler, scrape, import",
            "#/covers is not FROM/TO, two instants",
        ]);
        assert_eq!(ask(form("").text("secret", "x")).await.is(422).faults(), ["#/secret is no part of an import"]);
        assert_eq!(ask(form("").text("inventory", "")).await.is(422).faults(), ["#/inventory stands twice"]);
        ask(form("").text("source", "x".repeat(2_000))).await.is(413);
        let raw = |media: &'static str, body: &'static str| api.ask("POST", "/api/v1/imports").token(&api.operator).body(media, body).send();
        raw("multipart/form-data", "x").await.is(400);
        raw("multipart/form-data; boundary=b", "--b\r\nContent-Disposition: form-data; name=\"inventory\"\r\n\r\nhalf").await.is(400);
        raw("application/json", "{}").await.is(415);
        assert_eq!(platform.count("import_run").await, 0);
    }

    async fn a_repeated_upload_is_the_one_that_was_begun(platform: &TestPlatform) {
        let api = Api::of(platform);
        let ask = || api.ask("POST", "/api/v1/imports").token(&api.operator).header("Idempotency-Key", "u").form(form("")).send();
        let (first, again) = (ask().await.is(202).json(), ask().await.is(202).json());
        assert_eq!(first["id"], again["id"]);
        ended(&api, first["id"].as_str().unwrap()).await;
        assert_eq!(platform.count("import_run").await, 1);
    }

    async fn an_import_whose_process_died_is_interrupted(platform: &TestPlatform) {
        let api = Api::of(platform);
        let mut raw = platform.raw().await;
        raw.run("INSERT INTO import_run (run_id, source, rank, state, started_us, started_by, beat_us, batches, answered) \
                 VALUES ('r1', 's', 'import', 'running', 1781092800000000, 'ana', 1781092800000000, 9, 4)").await;
        let state = || async { api.get(&api.operator, "/api/v1/imports/r1").await.is(200).json()["state"].clone() };
        assert_eq!(state().await, "running");
        platform.clock.set("06-10T12:00:31");
        assert_eq!(state().await, "interrupted");
    }
}
