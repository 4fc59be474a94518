//! Clocks that are wrong, by a little or by a year, of nodes and of services.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fatia::agent::clock::ServerClock;
use fatia::agent::identity::Identity;
use fatia::agent::run::{Agent, Replay, Settings};
use fatia::agent::scripted::ScriptedSource;
use fatia::agent::sender::Counts;
use fatia::agent::source::{Inventory, Sample, Source, SourceError};
use fatia::agent::upstream::{Reply, Request, Unreachable, Upstream as _};
use fatia::domain::period::Span;
use fatia::domain::units::Instant;
use fatia::services::ctx::Clock as _;

use super::rig::{
    Held, Node, SECOND, SMALL, TestMachine, Way, assert_same_held, away, http, journal, scripted,
    total_micros, without,
};
use crate::support::api::Api;
use crate::support::platform::{TestClock, TestPlatform, at, on_both_databases, span};

const YEAR: i64 = 365 * 86_400 * SECOND;

/// A script that shows what is there now, whatever the agent thinks that the time is.
struct Present {
    script: ScriptedSource,
    clock: Arc<TestClock>,
}

impl Source for Present {
    fn inventory(&mut self) -> Result<Inventory, SourceError> {
        self.script.inventory()
    }

    fn sample(&mut self, at: Instant, sample: &mut Sample) -> Result<(), SourceError> {
        let now = self.clock.now();
        self.script.sample(now, sample)?;
        sample.since = sample.since.map(|since| at.plus_micros(since.micros_since(now)));
        Ok(())
    }

    fn state(&self) -> Vec<u8> {
        self.script.state()
    }

    fn restore(&mut self, state: &[u8]) {
        self.script.restore(state);
    }
}

impl Replay for Present {
    fn next_change(&self, _: Instant, end: Instant) -> Option<Instant> {
        Some(end)
    }
}

/// A whole agent at work for so many seconds, as a process is, that reaches its service after `away_seconds`.
async fn live(node: &Node, (api, clock): (&Api, &Arc<TestClock>), seconds: i64, away_seconds: i64) -> Counts {
    let stop = Arc::new(AtomicBool::new(false));
    let ended = Arc::clone(&stop);
    node.machine.after(seconds * SECOND, move || ended.store(true, Ordering::Release));
    let is_there = Arc::new(AtomicBool::new(away_seconds == 0));
    let there = Arc::clone(&is_there);
    node.machine.after(away_seconds * SECOND, move || there.store(true, Ordering::Release));
    let mut way = http(api);
    let upstream = move |request: &Request<'_>| -> Result<Reply, Unreachable> {
        if is_there.load(Ordering::Acquire) { way.ask(request) } else { away() }
    };
    let identity = Identity::load(node.folder()).expect("it reads").expect("it was saved");
    let work = Agent {
        settings: Settings {
            folder: node.folder().to_owned(),
            budget: node.budget,
            keep_acknowledged_micros: node.keep_micros,
            sample_every: Duration::from_secs(1),
            batch_windows: 512,
        },
        clock: ServerClock::restored(&identity.clock),
        source: Present {
            script: ScriptedSource::open(&node.script, &node.name()).expect("a good script"),
            clock: Arc::clone(clock),
        },
        identity,
        upstream: Way(upstream),
        machine: node.machine.clone(),
        stop,
    };
    tokio::task::spawn_blocking(move || work.run()).await.expect("it ends").expect("its disk is well")
}

async fn begun(platform: &TestPlatform) -> (Api, Node) {
    let api = Api::of(platform);
    let machine = TestMachine::at(platform.now(), Some(platform.clock.clone()));
    let node = Node::enrolled(&api, machine, "node-1", SMALL).await;
    (api, node)
}

/// What the script has of some spans.
fn of(node: &Node, spans: &[Span]) -> Held {
    let mut all = Held::new();
    for part in spans {
        for (key, held) in scripted(&node.script, &node.name(), *part) {
            all.entry(key).or_default().extend(held);
        }
    }
    all.values_mut().for_each(|spans| *spans = fatia::domain::usage::merged(spans.iter().copied()));
    all
}

/// Without the moments in which it learned what time it is, at most as many as `learned`, there is all that the script
/// has.
fn assert_all_but_moments(found: &Held, script: &Held, learned: usize) {
    let always = script.keys().find(|key| key.ends_with("pod=embedder-0-0")).expect("it is always held");
    let none = Held::from([(always.clone(), script[always].clone())]);
    let lost = without(&none, &found[always]).remove(always).unwrap_or_default();
    assert!(lost.len() <= learned, "{lost:?}");
    assert!(lost.iter().all(|each| each.end().micros_since(each.start()) <= SECOND), "{lost:?}");
    assert_same_held(found, &without(script, &lost));
}

async fn is_a_year_off(platform: &TestPlatform, off: i64) {
    let (api, node) = begun(platform).await;
    let service = (&api, &platform.clock);
    let machine = Arc::clone(&node.machine);
    machine.after(300 * SECOND, {
        let machine = Arc::clone(&machine);
        move || machine.step_wall(off)
    });
    let counts = live(&node, service, 601, 0).await;
    assert_eq!(counts.failures, 0, "a wall clock that is set while it runs is nothing to it");
    // It starts anew, with a wall clock of which nobody knows how wrong it is, and its service is away.
    machine.pass(59 * SECOND);
    machine.reboot("boot-1", off);
    let counts = live(&node, service, 1_201, 600).await;
    assert!(counts.failures > 0 && counts.acknowledged > 0);
    // And once more, where one request is all it takes.
    machine.pass(59 * SECOND);
    machine.reboot("boot-2", -3 * off);
    let counts = live(&node, service, 301, 0).await;
    assert_eq!(counts.failures, 0, "one more try with the right time is no failure");
    let stored = journal(platform, &node.scope()).await;
    let spans = ["06-10T12:00 06-10T12:10", "06-10T12:11 06-10T12:31", "06-10T12:32 06-10T12:37"].map(span);
    assert_all_but_moments(&stored.held(), &of(&node, &spans), 2);
    assert_eq!((stored.doubled_micros(), stored.gaps.len()), (0, 0));
    let findings = platform.findings().await;
    assert!(!findings.is_empty() && findings.iter().all(|(kind, _)| kind == "clock_skew"), "{findings:?}");
    platform.tick().await;
    platform.rebuild().await;
    platform.assert_well().await;
}

on_both_databases! {
    async fn a_clock_that_is_a_year_ahead_locks_nobody_out(platform: &TestPlatform) {
        is_a_year_off(platform, YEAR).await;
    }

    async fn a_clock_that_is_a_year_behind_locks_nobody_out(platform: &TestPlatform) {
        is_a_year_off(platform, -YEAR).await;
    }

    async fn a_service_whose_clock_was_wrong_for_a_while_locks_nobody_out(platform: &TestPlatform) {
        let (api, node) = begun(platform).await;
        let machine = Arc::clone(&node.machine);
        let (ahead, back) = (platform.clock.clone(), platform.clock.clone());
        machine.after(600 * SECOND, move || ahead.pass(YEAR));
        machine.after(1_200 * SECOND, move || back.pass(-YEAR));
        live(&node, (&api, &platform.clock), 2_401, 0).await;
        let stored = journal(platform, &node.scope()).await;
        // What was placed by the service's wrong time is lost to its report, and nothing behind it is.
        let after = of(&node, &[span("06-10T12:26 06-10T12:40")]);
        let found = without(&stored.held(), &[span("06-01T00:00 06-10T12:26"), span("06-10T12:40 08-01T00:00"),
            Span::clamped(at("08-01T00:00"), Instant::MAX)]);
        assert_same_held(&found, &after);
        assert!(total_micros(&after) > 0);
    }
}
