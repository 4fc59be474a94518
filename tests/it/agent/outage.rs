//! A service that cannot be reached for days.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant as Moment;

use fatia::agent::spool::{Lane, PressureState};
use fatia::agent::upstream::{Request, Upstream as _};
use fatia::domain::period::Span;
use fatia::domain::usage::merged;

use super::rig::{
    DENSE, MINUTE, Node, TestMachine, Way, assert_same_held, away, hours, http, journal, scripted,
    total_micros, without,
};
use crate::support::api::Api;
use crate::support::is_long;
use crate::support::platform::{TestPlatform, at, on_both_databases, span};

/// Eight boards of seven slices, held by services, notebooks and training: the boards of short jobs are held by more
/// services.
fn steady() -> String {
    let (boards, _) = DENSE.split_once("# Jobs, one kind").expect("the fixture has jobs");
    let all: Vec<String> =
        (4..8).flat_map(|board| (0..7).map(move |slice| format!("\"{board}.{slice}\""))).collect();
    format!(
        "{boards}\n[[node.habit]]\nwho = {{ namespace = \"search\", pod = \"index-{{on}}\" }}\non = [{}]\nbusy = 350\n\
         memory_mib = 6144\n",
        all.join(", ")
    )
}

/// Seven days in a long run, a fifth of a day in others.
fn outage() -> Span {
    if is_long() { span("06-02T00:00 06-09T00:00") } else { span("06-02T04:30 06-02T09:18") }
}

async fn begun(platform: &TestPlatform, script: &str, before: Span) -> (Api, Node) {
    let api = Api::of(platform);
    let machine = TestMachine::at(platform.now(), None);
    let node = Node::enrolled(&api, machine, "dense-1", script).await;
    let mut agent = node.start(http(&api));
    agent.look(at("06-01T00:00"));
    agent.play(before);
    agent.drain();
    (api, node)
}

on_both_databases! {
    async fn a_week_without_the_service_is_kept_and_sent_while_what_is_new_goes_first(platform: &TestPlatform) {
        let (script, outage) = (steady(), outage());
        let before = Span::clamped(outage.start().plus_micros(-10 * MINUTE), outage.start());
        let (api, node) = begun(platform, &script, before).await;
        let is_there = Arc::new(AtomicBool::new(false));
        let (mut way, there) = (http(&api), Arc::clone(&is_there));
        let mut agent = node.start(Way(move |request: &Request<'_>| {
            if there.load(Ordering::Acquire) { way.ask(request) } else { away() }
        }));
        let began = Moment::now();
        agent.play(outage);
        assert!(matches!(agent.step(), fatia::agent::sender::Step::Pause(_)));
        let kept = agent.shared.spool.lock().unwrap().pressure();
        assert_eq!(kept.state, PressureState::Fine, "{} bytes of {}", kept.used, kept.budget);
        println!("kept {outage} in {} bytes, in {:?}", kept.used, began.elapsed());
        // It is back. Each minute that comes in meanwhile is sent at once, however much still waits.
        is_there.store(true, Ordering::Release);
        let began = Moment::now();
        let (mut edge, mut requests) = (outage.end(), 0_u32);
        agent.step();
        requests += 1;
        let mut waited = 0;
        while agent.shared.spool.lock().unwrap().has_untried(Lane::Backlog) {
            let minute = Span::clamped(edge, edge.plus_micros(MINUTE));
            agent.play(minute);
            edge = minute.end();
            waited += 1;
            let mut steps = 0;
            while agent.shared.spool.lock().unwrap().has_untried(Lane::Live) {
                agent.step();
                steps += 1;
            }
            assert!(steps <= 2, "what is new waits for {steps} requests");
            for _ in 0..8 {
                agent.step();
            }
            requests += steps + 8;
        }
        agent.drain();
        let took = began.elapsed();
        println!("sent in {took:?}: {requests} requests, {waited} minutes came in meanwhile");
        assert!(waited > 0, "there was a backlog");
        if is_long() {
            assert!(took.as_secs() <= 60, "{took:?}");
        }
        let whole = Span::clamped(before.start(), edge);
        let stored = journal(platform, &node.scope()).await;
        let want = scripted(&script, &node.name(), whole);
        assert_same_held(&stored.held(), &want);
        assert_eq!((stored.doubled_micros(), stored.gaps.len(), agent.sender.counts.new_streams), (0, 0, 0));
        // The report has it right afterwards: each slice is a seventh of the compute, an eighth of the memory.
        let began = Moment::now();
        platform.derive().await;
        let used: i64 = hours(platform, "state").await["used"].replace('.', "").parse().unwrap();
        println!("derived in {:?}", began.elapsed());
        let want = i128::from(total_micros(&want)) * 15 / 112 / 3_600;
        assert!((i128::from(used) - want).abs() < 56 * 8 * 200, "{used} µh used, {want} by the script");
    }

    async fn a_small_disk_holds_less_detail_and_then_less_time_and_says_so(platform: &TestPlatform) {
        let (script, outage) = (steady(), outage());
        let before = Span::clamped(outage.start().plus_micros(-10 * MINUTE), outage.start());
        let minutes = u64::try_from(outage.end().micros_since(outage.start()) / MINUTE).unwrap();
        // Of what a minute takes: a third, then a thirtieth.
        for (bytes_a_minute, want) in [(1_200, PressureState::Merging), (120, PressureState::Dropping)] {
            let other = platform.another().await;
            let (api, mut node) = begun(&other, &script, before).await;
            node.budget = (bytes_a_minute * minutes).max(96 << 10);
            let mut agent = node.start(http(&api));
            agent.play(outage);
            let kept = agent.shared.spool.lock().unwrap().pressure();
            assert_eq!(kept.state, want, "{} bytes of {}", kept.used, kept.budget);
            assert!(kept.used <= kept.budget);
            agent.drain();
            assert_eq!(agent.sender.counts.set_aside, 0);
            let stored = journal(&other, &node.scope()).await;
            let gaps = merged(stored.gaps.iter().copied());
            assert_eq!(gaps.is_empty(), want == PressureState::Merging, "{gaps:?}");
            let whole = Span::clamped(before.start(), outage.end());
            assert_same_held(&stored.held(), &without(&scripted(&script, &node.name(), whole), &gaps));
            assert_eq!(stored.doubled_micros(), 0);
            other.tick().await;
            other.derive().await;
            other.assert_well().await;
            println!("{want:?}: {} bytes for {outage}, {} gaps", kept.used, gaps.len());
        }
    }
}
