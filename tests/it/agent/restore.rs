//! Services and nodes that were set back, and copies of agents.

use fatia::agent::sender::Step;
use fatia::agent::spool::BatchLimits;
use fatia::agent::upstream::{Request, Upstream as _};
use fatia::wire::signature::{BatchVerifier, RequestClaims};
use fatia::wire::{agent_v1, body};

use super::rig::{
    Held, Node, SMALL, TestMachine, Way, assert_same_held, hours, http, journal, scripted, without,
};
use crate::support::api::Api;
use crate::support::platform::{TestPlatform, at, on_both_databases, span};

/// What a backup of the service's database says of streams and of the time that devices are in service.
struct Backup {
    marks: Vec<(String, i64)>,
    edges: Vec<(i64, i64, i64, i64, i64)>,
}

async fn back_up(platform: &TestPlatform) -> Backup {
    let mut raw = platform.raw().await;
    let edges = "SELECT device_id, from_us, edge_us, counted_to_us, covered_to_us FROM device_service";
    Backup {
        marks: raw.rows("SELECT CAST(stream_id AS TEXT), mark FROM usage_stream").await,
        edges: raw.rows(edges).await,
    }
}

/// Sets the journal back to a backup, and everything that is derived of it.
async fn restore(platform: &TestPlatform, backup: &Backup) {
    let mut raw = platform.raw().await;
    let mut known = vec!["''".to_owned()];
    for (stream, mark) in &backup.marks {
        let it = format!("CAST(stream_id AS TEXT) = '{stream}'");
        raw.run(&format!("DELETE FROM usage_batch WHERE {it} AND sequence > {mark}")).await;
        raw.run(&format!("DELETE FROM usage_gap WHERE {it} AND to_sequence > {mark}")).await;
        raw.run(&format!("UPDATE usage_stream SET mark = {mark} WHERE {it}")).await;
        known.push(format!("'{stream}'"));
    }
    let unknown = format!("CAST(stream_id AS TEXT) NOT IN ({})", known.join(", "));
    for table in ["usage_batch", "usage_gap", "usage_stream"] {
        raw.run(&format!("DELETE FROM {table} WHERE {unknown}")).await;
    }
    for level in ["tenant_month", "tenant_day", "node_day", "node_hour", "dirty_tenant_day", "dirty_node"] {
        raw.run(&format!("DELETE FROM {level}")).await;
    }
    for (device, from, edge, counted, covered) in &backup.edges {
        raw.run(&format!(
            "UPDATE device_service SET edge_us = {edge}, counted_to_us = {counted}, covered_to_us = {covered} \
             WHERE device_id = {device} AND from_us = {from}"
        ))
        .await;
    }
}

async fn begun(platform: &TestPlatform) -> (Api, Node) {
    let api = Api::of(platform);
    let machine = TestMachine::at(platform.now(), Some(platform.clock.clone()));
    let node = Node::enrolled(&api, machine, "node-1", SMALL).await;
    (api, node)
}

fn small_batches(windows_max: usize) -> BatchLimits {
    BatchLimits { windows_max, ..fatia::agent::sender::LIMITS }
}

/// The kinds of findings, each once.
async fn kinds(platform: &TestPlatform) -> Vec<String> {
    let mut kinds: Vec<String> = platform.findings().await.into_iter().map(|(kind, _)| kind).collect();
    kinds.dedup();
    kinds
}

async fn settled(platform: &TestPlatform) {
    platform.tick().await;
    platform.rebuild().await;
    platform.assert_well().await;
}

fn script(node: &Node, text: &str) -> Held {
    scripted(&node.script, &node.name(), span(text))
}

on_both_databases! {
    async fn a_service_that_is_restored_gets_back_what_agents_still_hold(platform: &TestPlatform) {
        let (api, node) = begun(platform).await;
        let mut agent = node.start(http(&api));
        agent.limits = small_batches(10);
        agent.look(at("06-01T00:00"));
        agent.play(span("06-01T00:00 06-01T03:00"));
        agent.drain();
        platform.tick().await;
        platform.derive().await;
        let backup = back_up(platform).await;
        agent.play(span("06-01T03:00 06-01T06:00"));
        let sent = agent.drain();
        assert!(sent > 10, "{sent} batches are behind the backup");
        platform.derive().await;
        restore(platform, &backup).await;
        // One more batch is all that has to happen: the answer says how far the service is.
        agent.play(span("06-01T06:00 06-01T06:10"));
        agent.drain();
        assert_eq!((agent.sender.counts.rewinds, agent.sender.counts.new_streams), (1, 0));
        let stored = journal(platform, &node.scope()).await;
        assert_same_held(&stored.held(), &script(&node, "06-01T00:00 06-01T06:10"));
        assert_eq!(stored.bodies, agent.kept(&node.scope()).bodies);
        assert_eq!(stored.doubled_micros(), 0);
        settled(platform).await;
        assert_eq!(platform.findings().await, []);
    }

    async fn what_nobody_holds_after_a_restore_is_skipped_and_told_of(platform: &TestPlatform) {
        let (api, mut node) = begun(platform).await;
        (node.keep_micros, node.budget) = (0, 256 << 10);
        let mut agent = node.start(http(&api));
        agent.limits = small_batches(10);
        agent.look(at("06-01T00:00"));
        agent.play(span("06-01T00:00 06-01T03:00"));
        agent.drain();
        let backup = back_up(platform).await;
        agent.play(span("06-01T03:00 06-01T15:00"));
        agent.drain();
        restore(platform, &backup).await;
        agent.play(span("06-01T15:00 06-01T15:20"));
        let steps = agent.drain();
        assert!(steps > 2, "{steps} steps");
        assert_eq!(agent.sender.counts.new_streams, 0);
        let mut raw = platform.raw().await;
        let gaps = raw.rows::<(i64, i64)>("SELECT from_us, to_us FROM usage_gap").await;
        let [(from, to)] = gaps.as_slice() else { panic!("one skip says it all: {gaps:?}") };
        let lost = |instant: i64| fatia::domain::units::Instant::from_micros(instant);
        let lost = fatia::domain::period::Span::clamped(lost(*from), lost(*to));
        assert_eq!(lost.start(), at("06-01T03:00"));
        assert!(lost.end() < at("06-01T15:00"), "the newest batches are held: {lost}");
        let stored = journal(platform, &node.scope()).await;
        let script = script(&node, "06-01T00:00 06-01T15:20");
        assert_same_held(&stored.held(), &without(&script, &[lost]));
        assert_eq!(kinds(platform).await, ["usage_gap"]);
        settled(platform).await;
        let unknown = hours(platform, "state").await;
        assert!(unknown.contains_key("unknown"), "{unknown:?}");
        println!("lost {lost}, steps {steps}");
    }

    async fn a_node_that_is_set_back_to_a_snapshot_begins_a_new_stream(platform: &TestPlatform) {
        let (api, node) = begun(platform).await;
        let mut agent = node.start(http(&api));
        agent.limits = small_batches(10);
        agent.look(at("06-01T00:00"));
        agent.play(span("06-01T00:00 06-01T02:00"));
        agent.drain();
        // All is acknowledged in the first snapshot; in the second a batch is made and not sent.
        let first = node.snapshot();
        agent.play(span("06-01T02:00 06-01T02:20"));
        assert_eq!(agent.step(), Step::Sent);
        {
            let mut spool = agent.shared.spool.lock().unwrap();
            let lane = fatia::agent::spool::Lane::Live;
            assert!(spool.next_batch(lane, small_batches(10), true).unwrap().is_some());
        }
        let second = node.snapshot();
        agent.drain();
        agent.play(span("06-01T02:20 06-01T04:00"));
        agent.drain();
        drop(agent);
        // Nothing but later windows comes after the first: they bear numbers that are taken.
        let mut agent = node.start_in(first.path(), http(&api));
        agent.limits = small_batches(10);
        agent.play(span("06-01T04:30 06-01T05:00"));
        agent.drain();
        assert_eq!(agent.sender.counts.new_streams, 1);
        drop(agent);
        // The second sends what the service has, which is behind other numbers by now.
        let mut agent = node.start_in(second.path(), http(&api));
        agent.limits = small_batches(10);
        agent.drain();
        agent.play(span("06-01T05:00 06-01T06:00"));
        agent.drain();
        // One for what comes in now, one for the backlog, whose numbers the first has used meanwhile.
        assert_eq!((agent.sender.counts.new_streams, agent.sender.counts.failures), (2, 0));
        let stored = journal(platform, &node.scope()).await;
        let script = script(&node, "06-01T00:00 06-01T06:00");
        assert_same_held(&stored.held(), &without(&script, &[span("06-01T04:00 06-01T04:30")]));
        assert_eq!(kinds(platform).await, ["rollback_or_clone"]);
        settled(platform).await;
        assert_no_more_than(platform, &script).await;
    }

    async fn a_cloned_folder_is_told_of_and_charges_nothing_twice(platform: &TestPlatform) {
        let (api, node) = begun(platform).await;
        let mut agent = node.start(http(&api));
        agent.look(at("06-01T00:00"));
        agent.play(span("06-01T00:00 06-01T01:00"));
        agent.drain();
        drop(agent);
        let (one, other) = (node.snapshot(), node.snapshot());
        let mut agents = [node.start_in(one.path(), http(&api)), node.start_in(other.path(), http(&api))];
        // Both look at the same boards, and each says what its own clocks showed.
        for (agent, boot) in agents.iter_mut().zip(["boot-1", "boot-2"]) {
            agent.stamped_as = Some(boot);
        }
        agents[1].look(at("06-01T00:30"));
        for hour in 1..7 {
            for agent in &mut agents {
                agent.play(span(&format!("06-01T0{hour}:00 06-01T0{}:00", hour + 1)));
                agent.drain();
                node.machine.pass(7_000_000);
            }
        }
        let begun: u64 = agents.iter().map(|agent| agent.sender.counts.new_streams).sum();
        let failures: u64 = agents.iter().map(|agent| agent.sender.counts.failures).sum();
        assert!((1..=2).contains(&begun), "{begun} new streams");
        assert_eq!(failures, 0, "neither is held up");
        let stored = journal(platform, &node.scope()).await;
        let script = script(&node, "06-01T00:00 06-01T07:00");
        assert_same_held(&stored.held(), &script);
        assert!(stored.doubled_micros() > 0, "both said it");
        assert!(kinds(platform).await.contains(&"rollback_or_clone".to_owned()));
        settled(platform).await;
        assert_no_more_than(platform, &script).await;
        // One agent alone comes to the same report.
        let alone = platform.another().await;
        let (api, node) = begun_on(&alone).await;
        let mut agent = node.start(http(&api));
        agent.look(at("06-01T00:00"));
        agent.play(span("06-01T00:00 06-01T07:00"));
        agent.drain();
        alone.clock.pass(platform.now().micros_since(alone.now()));
        alone.tick().await;
        alone.derive().await;
        assert_eq!(hours(platform, "workload state").await, hours(&alone, "workload state").await);
    }

    async fn an_agent_newer_than_its_service_is_set_aside_and_not_stopped(platform: &TestPlatform) {
        let (api, node) = begun(platform).await;
        let mut upstream = http(&api);
        let signer = node.identity.signer().unwrap();
        let verifier = BatchVerifier::new(&signer.public_key()).unwrap();
        let mut batches = 0;
        // The second and the third batch are of a version to come, signed as such.
        let newer = Way(move |request: &Request<'_>| {
            batches += i32::from(request.path == agent_v1::BATCHES_PATH);
            if request.path != agent_v1::BATCHES_PATH || !(2..=3).contains(&batches) {
                return upstream.ask(request);
            }
            let message = body::unpack(request.body).unwrap();
            let message = String::from_utf8(message).unwrap().replace("\"usage_v1\"", "\"usage_v2\"");
            let body = body::pack(message.as_bytes()).unwrap();
            let claims = verifier.verify_request(request.token.unwrap()).unwrap();
            let token = signer.sign_request(&RequestClaims { body_hash: body::hash(&body), ..claims }).unwrap();
            upstream.ask(&Request { body: &body, token: Some(&token), ..request.clone() })
        });
        let mut agent = node.start(newer);
        agent.limits = small_batches(30);
        agent.look(at("06-01T00:00"));
        agent.play(span("06-01T00:00 06-01T03:00"));
        agent.drain();
        let counts = agent.sender.counts;
        assert_eq!((counts.set_aside, counts.failures, counts.new_streams), (2, 0, 0));
        assert!(counts.acknowledged > 4);
        let mut raw = platform.raw().await;
        let sql = "SELECT from_us, to_us FROM usage_batch WHERE set_aside IS NOT NULL ORDER BY from_us";
        let aside: Vec<_> = raw.rows::<(i64, i64)>(sql).await.into_iter().map(|(from, to)| {
            let instant = fatia::domain::units::Instant::from_micros;
            fatia::domain::period::Span::clamped(instant(from), instant(to))
        }).collect();
        assert_eq!(aside.len(), 2);
        let stored = journal(platform, &node.scope()).await;
        assert_same_held(&stored.held(), &without(&script(&node, "06-01T00:00 06-01T03:00"), &aside));
        assert_eq!(kinds(platform).await, ["batch_set_aside"]);
        settled(platform).await;
    }
}

async fn begun_on(platform: &TestPlatform) -> (Api, Node) {
    begun(platform).await
}

/// No workload is charged for more than the script has of it.
async fn assert_no_more_than(platform: &TestPlatform, script: &Held) {
    let charged = hours(platform, "workload").await;
    for (pod, told) in
        charged.iter().filter(|(pod, _)| script.keys().any(|key| key.ends_with(&format!("pod={pod}"))))
    {
        let spans = script.iter().filter(|(key, _)| key.ends_with(&format!("pod={pod}")));
        let micros: i64 =
            spans.flat_map(|(_, spans)| spans).map(|each| each.end().micros_since(each.start())).sum();
        let told = told.replace('.', "").parse::<i64>().unwrap();
        assert!(told <= micros / 3_600, "{pod}: {told} µh charged, {} µh of wall time", micros / 3_600);
    }
}
