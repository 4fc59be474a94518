//! A replay, from the script to the report.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use fatia::agent::clock::ServerClock;
use fatia::agent::run::{Agent, Replay, Settings};
use fatia::agent::scripted::ScriptedSource;
use fatia::agent::sender::Step;
use fatia::agent::source::{Inventory, Sample, Source, SourceError};
use fatia::agent::upstream::Request;
use fatia::domain::units::Instant;
use fatia::wire::usage_v1;
use serde_json::Value;

use super::rig::{
    MINUTE, Node, SECOND, SMALL, TestMachine, Way, assert_same_held, away, hours, http, journal, kept,
    measured, scripted, total_micros,
};
use crate::support::api::Api;
use crate::support::platform::{at, on_both_databases, span};

fn agent(
    node: &Node,
    api: &Api,
    batch_windows: usize,
) -> Agent<ScriptedSource, fatia::agent::upstream::Http> {
    Agent {
        settings: Settings {
            folder: node.folder().to_owned(),
            budget: node.budget,
            keep_acknowledged_micros: node.keep_micros,
            sample_every: Duration::from_secs(1),
            batch_windows,
        },
        identity: node.identity.clone(),
        clock: ServerClock::restored(&node.identity.clock),
        source: ScriptedSource::open(&node.script, &node.name()).expect("a good script"),
        upstream: http(api),
        machine: node.machine.clone(),
        stop: Arc::new(AtomicBool::new(false)),
    }
}

/// A script whose devices are slow to list.
struct Slow(ScriptedSource);

impl Source for Slow {
    fn inventory(&mut self) -> Result<Inventory, SourceError> {
        std::thread::sleep(Duration::from_millis(300));
        self.0.inventory()
    }

    fn sample(&mut self, at: Instant, sample: &mut Sample) -> Result<(), SourceError> {
        self.0.sample(at, sample)
    }

    fn state(&self) -> Vec<u8> {
        self.0.state()
    }

    fn restore(&mut self, state: &[u8]) {
        self.0.restore(state);
    }
}

impl Replay for Slow {
    fn next_change(&self, after: Instant, end: Instant) -> Option<Instant> {
        Replay::next_change(&self.0, after, end)
    }
}

/// The pod of a key of what was held.
fn pod(key: &str) -> &str {
    key.split("pod=").nth(1).unwrap_or(key)
}

on_both_databases! {
    async fn what_was_kept_before_the_service_knew_of_any_device_waits_until_it_does(platform: &TestPlatform) {
        let (before, whole) = (span("06-01T00:00 06-01T00:10"), span("06-01T00:00 06-01T00:20"));
        let api = Api::of(platform);
        let node = Node::enrolled(&api, TestMachine::at(platform.now(), None), "node-1", SMALL).await;
        // A process that is killed after it tried its first batch, and before it told what there is.
        let mut killed = node.start(Way(|_: &Request<'_>| away()));
        killed.play(before);
        assert!(matches!(killed.step(), Step::Pause(_)));
        drop(killed);
        let Agent { settings, identity, clock, source, upstream, machine, stop } = agent(&node, &api, 64);
        let source = Slow(source);
        let next = Agent { settings, identity, clock, source, upstream, machine, stop };
        let work = move || next.replay(whole, Duration::from_secs(60));
        tokio::task::spawn_blocking(work).await.unwrap().unwrap();
        assert_same_held(&journal(platform, &node.scope()).await.held(), &scripted(SMALL, &node.name(), whole));
        let mut raw = platform.raw().await;
        assert_eq!(raw.number("SELECT COUNT(*) FROM usage_batch WHERE refused IS NOT NULL").await, 0);
    }

    async fn a_replayed_day_is_in_the_journal_and_on_the_report_as_scripted(platform: &TestPlatform) {
        // Until Tuesday noon: so the five minutes are in it in which nobody sees who holds the second board.
        let (day, whole) = (span("06-01T00:00 06-02T00:00"), span("06-01T00:00 06-02T12:00"));
        let api = Api::of(platform);
        let machine = TestMachine::at(platform.now(), None);
        let node = Node::enrolled(&api, machine, "node-1", SMALL).await;
        let (name, scope) = (node.name(), node.scope());
        for part in [day, whole] {
            let work = agent(&node, &api, 64);
            let counts = tokio::task::spawn_blocking(move || work.replay(part, std::time::Duration::from_secs(60))).await.unwrap().unwrap();
            assert_eq!((counts.duplicates, counts.failures, counts.new_streams), (0, 0, 0));
            assert!(counts.acknowledged > 0);
        }
        let (spool, stored) = (kept(&mut node.spool(node.folder()), &scope), journal(platform, &scope).await);
        assert_eq!(spool.bodies, stored.bodies, "what the agent kept is what the service stored");
        assert!(stored.bodies.values().all(|times| *times == 1));
        assert_eq!((stored.doubled_micros(), stored.gaps.len()), (0, 0));
        let script = scripted(SMALL, &name, whole);
        assert_same_held(&stored.held(), &script);
        // Looked at on a grid of its own: what was measured is as much.
        assert_eq!(stored.measured, measured(SMALL, &name, whole, MINUTE));
        platform.tick().await;
        platform.derive().await;
        platform.assert_well().await;

        // A seventh of the compute and an eighth of the memory, for as long as it was held: their mean of the board.
        let report = hours(platform, "workload").await;
        let mut pods: BTreeMap<&str, i64> = BTreeMap::new();
        for (key, spans) in script.iter().filter(|(key, _)| key.contains("mig/")) {
            *pods.entry(pod(key)).or_default() += spans.iter().map(|each| each.end().micros_since(each.start())).sum::<i64>();
        }
        assert!(pods.len() > 10, "{pods:?}");
        for (pod, micros) in &pods {
            let told = micro_hours(&report[*pod]);
            let share = micros * 15 / 112 / 3_600;
            assert!((told - share).abs() <= 60, "{pod}: {told} µh, {share} by the script");
        }
        let mut by_state = hours(platform, "state").await;
        let unknown: i64 = micro_hours(&by_state.remove("unknown").unwrap_or_default());
        // Two boards are in service; those five minutes, and all after noon, are known of neither in full.
        let late = platform.now().plus_micros(-10 * MINUTE).micros_since(at("06-02T12:00")) * 2 / 3_600;
        let hidden = 5 * MINUTE / 3_600;
        assert!((unknown - late - hidden).abs() <= 60, "{unknown} µh unknown, {late} and {hidden} by the script");
        let whole_micros = total_micros(&script);
        println!("{} batches, {} s held in {} runs", stored.bodies.len(), whole_micros / SECOND, script.len());

        // What people read one by one is the same.
        let path = "/api/v1/usage/windows?node=node-1&from=2026-06-01T00:00:00Z&to=2026-06-02T12:00:00Z";
        let shown = api.all(&api.operator, path, 1_000).await;
        let held = |each: &&Value| each["kind"] == "held";
        let micros = |each: &Value| {
            let edge = |field: &str| fatia::domain::units::Instant::parse(each[field].as_str().unwrap()).unwrap();
            edge("to").micros_since(edge("from"))
        };
        assert_eq!(shown.iter().filter(held).map(micros).sum::<i64>(), whole_micros);
        assert_eq!(usage_v1::VERSION, "usage_v1");
    }

    async fn a_replay_of_more_than_half_its_disk_budget_gets_to_its_end(platform: &TestPlatform) {
        let api = Api::of(platform);
        let machine = TestMachine::at(platform.now(), None);
        let mut node = Node::enrolled(&api, machine, "node-1", SMALL).await;
        node.budget = 128 << 10;
        let part = span("06-01T00:00 06-02T00:00");
        let work = agent(&node, &api, 8);
        let counts = tokio::task::spawn_blocking(move || work.replay(part, std::time::Duration::from_secs(60))).await.unwrap().unwrap();
        assert_eq!(counts.failures, 0);
        let stored = journal(platform, &node.scope()).await;
        let (bytes, gaps) = (platform.raw().await.number("SELECT CAST(SUM(length(body)) AS BIGINT) FROM usage_batch").await, &stored.gaps);
        assert!(bytes > 64 << 10, "{bytes} bytes are more than half of the budget");
        assert_eq!(gaps, &[]);
        assert_same_held(&stored.held(), &scripted(SMALL, &node.name(), part));
    }
}

/// Hours as a report shows them, in millionths.
fn micro_hours(text: &str) -> i64 {
    let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
    whole.parse::<i64>().unwrap_or_default() * 1_000_000
        + format!("{part:0<6}").parse::<i64>().unwrap_or_default()
}
