//! What a checkup of a node says of the way to its service.

use fatia::agent::checkup::{State, of_service};
use fatia::agent::identity::Identity;
use fatia::agent::upstream::Request;

use super::rig::{Node, SECOND, SMALL, TestMachine, Way, away, blocking, http};
use crate::support::api::Api;
use crate::support::platform::{name, on_both_databases};

/// What was found, a line each.
fn told(node: &Node, identity: &Identity, api: &Api) -> Vec<String> {
    let mut way = http(api);
    let checks = blocking(|| of_service(&mut way, &*node.machine, identity));
    checks.iter().map(|check| format!("{} {} {}", check.state, check.what, check.found)).collect()
}

on_both_databases! {
    async fn a_checkup_says_what_is_between_an_agent_and_its_service(platform: &TestPlatform) {
        let api = Api::of(platform);
        let machine = TestMachine::at(platform.now(), Some(platform.clock.clone()));
        let node = Node::enrolled(&api, machine, "node-1", SMALL).await;
        let agent = node.identity.agent.clone().unwrap();
        let url = api.url("");
        assert_eq!(told(&node, &node.identity, &api), [
            format!("ok service {} answers", url.trim_end_matches('/')),
            "ok clock 0 s ahead of the service's".to_owned(),
            format!("ok agent the service knows it as {agent}, of node-1"),
        ]);
        // A clock that is wrong is told of, and is no reason for anything else to fail.
        node.machine.step_wall(-900 * SECOND);
        let told_late = told(&node, &node.identity, &api);
        assert_eq!(told_late[1], "warning clock 900 s behind the service's");
        assert!(told_late[2].starts_with("ok agent"), "{told_late:?}");
        let stranger = Identity::make(&*node.machine, &url, &name("node-1")).unwrap();
        assert_eq!(told(&node, &stranger, &api)[2], "error agent node-1 is not enrolled");
        let path = format!("/api/v1/agents/{agent}/revoke");
        api.ask("POST", &path).token(&api.operator).send().await.is(200);
        platform.clock.pass(10 * SECOND);
        let revoked = told(&node, &node.identity, &api);
        assert!(revoked[2].starts_with("error agent the service does not take what it signs"), "{revoked:?}");
        let mut cut = Way(|_: &Request<'_>| away());
        let checks = of_service(&mut cut, &*node.machine, &node.identity);
        assert_eq!((checks.len(), checks[0].state), (1, State::Broken));
        assert!(checks[0].remedy.as_ref().is_some_and(|remedy| remedy.contains("firewall")));
        assert!(checks[0].to_string().starts_with("error    service      the service cannot be reached"));
        // Nothing was written by it.
        let audit = api.all(&api.operator, "/api/v1/audit", 100).await;
        assert!(audit.iter().all(|entry| entry["action"] != "usage.skip"), "{audit:?}");
        assert_eq!(platform.raw().await.number("SELECT COUNT(*) FROM usage_stream").await, 0);
    }
}
