//! Becoming a node's agent, where answers are lost.

use fatia::agent::clock::ServerClock;
use fatia::agent::identity::Identity;
use fatia::agent::machine::Machine as _;
use fatia::agent::sender;
use fatia::agent::upstream::{Request, Upstream as _};
use serde_json::json;

use super::rig::{TestMachine, Way, away, blocking, http};
use crate::support::agent::enrolment;
use crate::support::api::Api;
use crate::support::platform::{name, on_both_databases};

on_both_databases! {
    async fn an_enrolment_whose_answer_was_lost_is_repeated_with_the_same_key(platform: &TestPlatform) {
        let api = Api::of(platform);
        let secret = enrolment(&api, &json!({ "nodes": "node-1" })).await;
        let machine = TestMachine::at(platform.now(), Some(platform.clock.clone()));
        let folder = tempfile::tempdir().unwrap();
        let made = Identity::make(&*machine, &api.url(""), &name("node-1")).unwrap();
        made.save(folder.path()).unwrap();
        let mut way = http(&api);
        let mut asked = 0;
        let mut lossy = Way(|request: &Request<'_>| {
            asked += 1;
            let answer = way.ask(request);
            if asked == 1 { away() } else { answer }
        });
        // The process ends with the lost answer; the next one has what is on the disk, and no more.
        let mut first = Identity::load(folder.path()).unwrap().unwrap();
        let mut clock = ServerClock::new();
        let lost = blocking(|| sender::enrol(&mut lossy, &*machine, &mut first, &mut clock, &secret));
        assert!(lost.unwrap_err().contains("cut the line"));
        assert_eq!(first.agent, None);
        let mut second = Identity::load(folder.path()).unwrap().unwrap();
        blocking(|| sender::enrol(&mut lossy, &*machine, &mut second, &mut clock, &secret)).unwrap();
        let agents = api.all(&api.operator, "/api/v1/agents", 100).await;
        assert_eq!(agents.len(), 1, "{agents:?}");
        assert_eq!(agents[0]["id"].as_str(), second.agent.as_deref());
        assert_eq!(clock.now(&machine.reading()), platform.now());
        // Another folder has another key, for which the token is no use any more.
        let mut other = Identity::make(&*machine, &api.url(""), &name("node-1")).unwrap();
        let refused = blocking(|| sender::enrol(&mut http(&api), &*machine, &mut other, &mut clock, &secret));
        assert!(refused.unwrap_err().contains("refuses to enrol node-1"));
    }
}
