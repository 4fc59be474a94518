//! When an agent asks again, by what it was answered. No service is needed for it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use fatia::agent::identity::Identity;
use fatia::agent::sender::{Step, Trouble};
use fatia::agent::spool::Lane;
use fatia::agent::upstream::{Reply, Request, Unreachable, Upstream};
use fatia::domain::units::Instant;
use fatia::wire::agent_v1;
use fatia::wire::signature::{BatchVerifier, RequestClaims};
use serde_json::json;

use super::rig::{Node, Running, SECOND, SMALL, TestMachine, Way, away};
use crate::support::platform::{at, name, span};

type Answers = Arc<Mutex<VecDeque<Result<Reply, Unreachable>>>>;
type Asked = Arc<Mutex<Vec<(String, Vec<u8>, String)>>>;

/// A node of which the service knows nothing: its answers are the test's.
fn node(chance: u64) -> Node {
    let machine = TestMachine::at(at("06-01T00:00"), None);
    for _ in 0..chance {
        fatia::agent::machine::Machine::random(&*machine, &mut [0; 8]).unwrap();
    }
    let mut identity = Identity::make(&*machine, "http://service", &name("node-1")).unwrap();
    identity.agent = Some("0198c0de-0000-7000-8000-000000000001".to_owned());
    identity.audience = Some("urn:fatia:installation:test".to_owned());
    Node::of(machine, identity, SMALL)
}

fn reply(status: u16, body: &serde_json::Value) -> Result<Reply, Unreachable> {
    Ok(Reply { status, time_micros: None, retry_after: None, body: body.to_string().into_bytes() })
}

/// What a token says, by the key of the node's agent.
fn claims(node: &Node, token: &str) -> RequestClaims {
    let signer = node.identity.signer().expect("it has a key");
    let verifier = BatchVerifier::new(&signer.public_key()).expect("a good key");
    verifier.verify_request(token).expect("it is signed")
}

/// What a service that takes everything says.
fn taken(claims: &RequestClaims) -> Result<Reply, Unreachable> {
    let place = claims.place.as_ref().expect("a batch has a place");
    let answer = json!({
        "stream": place.stream.to_string(), "sequence": place.sequence, "outcome": "accepted",
        "mark": place.sequence, "accepted_rows": 1, "refused": [],
    });
    reply(200, &answer)
}

/// An agent with an hour to send, and what it is answered first; after that everything is taken.
fn asking(
    node: &Node,
    first: Vec<Result<Reply, Unreachable>>,
) -> (Running<impl Upstream + use<>>, Answers, Asked) {
    let answers: Answers = Arc::new(Mutex::new(first.into()));
    let asked = Asked::default();
    let (to_give, log) = (Arc::clone(&answers), Arc::clone(&asked));
    let signer = node.identity.signer().expect("it has a key");
    let verifier = BatchVerifier::new(&signer.public_key()).expect("a good key");
    let way = Way(move |request: &Request<'_>| {
        let token = request.token.unwrap_or_default().to_owned();
        log.lock().unwrap().push((request.path.to_owned(), request.body.to_vec(), token));
        let given = to_give.lock().unwrap().pop_front();
        given.unwrap_or_else(|| {
            taken(&verifier.verify_request(request.token.expect("it is signed")).expect("it is"))
        })
    });
    let mut agent = node.start(way);
    agent.play(span("06-01T00:00 06-01T01:00"));
    (agent, answers, asked)
}

/// The pauses that follow as many answers.
fn pauses<U: Upstream>(agent: &mut Running<U>, count: usize) -> Vec<i64> {
    let pause = |step| match step {
        Step::Pause(micros) => micros,
        other => panic!("it goes on: {other:?}"),
    };
    (0..count).map(|_| pause(agent.step())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn pauses_grow_to_five_minutes_and_are_each_agents_own() {
    let mut all = Vec::new();
    for chance in 0..4 {
        let node = node(chance);
        let (mut agent, _, _) = asking(&node, (0..14).map(|_| away()).collect());
        let found = pauses(&mut agent, 14);
        for (tries, pause) in found.iter().enumerate() {
            let most = (SECOND << tries.min(9)).min(300 * SECOND);
            assert!((most / 2..=most).contains(pause), "try {tries}: {pause} µs of {most}");
        }
        // It never gives up, and one success makes the next pause short again.
        agent.drain();
        assert!(agent.sender.counts.acknowledged > 0);
        all.push(found);
    }
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 4, "no two ask at the same times");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_says_when_is_not_asked_before() {
    for status in [429, 503] {
        let node = node(1);
        let busy = Reply { status, time_micros: None, retry_after: Some(90), body: Vec::new() };
        let silly = Reply { retry_after: Some(u64::MAX), ..busy.clone() };
        let (mut agent, _, _) = asking(&node, vec![Ok(busy), Ok(silly)]);
        let found = pauses(&mut agent, 2);
        assert!((90 * SECOND..=91 * SECOND).contains(&found[0]), "{found:?}");
        assert!(found[1] <= 600 * SECOND, "nobody keeps it away for ever: {found:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_is_refused_goes_on_measuring_and_says_so() {
    for status in [401, 403] {
        let node = node(1);
        let problem = json!({ "type": "urn:fatia:problem:unauthenticated", "detail": "the key is revoked" });
        let (mut agent, _, asked) = asking(&node, vec![reply(status, &problem), reply(status, &problem)]);
        for pause in pauses(&mut agent, 2) {
            assert!((300 * SECOND..=600 * SECOND).contains(&pause), "{pause}");
        }
        let words = "the key is revoked".to_owned();
        let want = if status == 401 { Trouble::Revoked(words) } else { Trouble::Forbidden(words) };
        assert_eq!(agent.sender.trouble, Some(want));
        agent.play(span("06-01T01:00 06-01T02:00"));
        agent.drain();
        assert_eq!(agent.sender.trouble, None);
        let asked = asked.lock().unwrap();
        assert_eq!((&asked[0].1, &asked[1].1), (&asked[1].1, &asked[2].1), "the same bytes each time");
        let spool = agent.shared.spool.lock().unwrap();
        assert_eq!(spool.last_edge(), Some(at("06-01T02:00")));
        assert!(!spool.has_untried(Lane::Live) && !spool.has_untried(Lane::Backlog));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_no_service_takes_for_its_size_becomes_a_skip() {
    let node = node(1);
    let (mut agent, _, asked) = asking(&node, vec![reply(413, &json!({ "detail": "too large" }))]);
    agent.drain();
    let asked = asked.lock().unwrap();
    let paths: Vec<&str> = asked.iter().take(2).map(|(path, _, _)| path.as_str()).collect();
    assert_eq!(paths, [agent_v1::BATCHES_PATH, agent_v1::SKIPS_PATH]);
    let skip: serde_json::Value = serde_json::from_slice(&asked[1].1).unwrap();
    assert_eq!((skip["from"].as_i64(), skip["to"].as_i64()), (Some(1), Some(1)), "{skip}");
    assert_eq!(agent.sender.counts.failures, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_cannot_be_read_is_asked_for_again() {
    let node = node(1);
    let garbage = Reply { status: 200, time_micros: None, retry_after: None, body: b"<html>".to_vec() };
    let strange = json!({ "stream": "x", "sequence": 1, "outcome": "maybe", "mark": 1, "accepted_rows": 1, "refused": [] });
    let answers = vec![Ok(garbage), reply(200, &strange), reply(302, &json!({})), reply(500, &json!({}))];
    let (mut agent, _, asked) = asking(&node, answers);
    assert_eq!(pauses(&mut agent, 4).len(), 4);
    agent.drain();
    let asked = asked.lock().unwrap();
    assert!(asked.iter().take(5).all(|(_, body, _)| *body == asked[0].1), "the same bytes each time");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_is_wrong_is_set_by_the_answer_and_asked_with_once_more() {
    let node = node(1);
    let skew = |micros: i64| {
        let body = json!({ "type": "urn:fatia:problem:clock-skew", "detail": "it is later" }).to_string();
        Ok(Reply { status: 401, time_micros: Some(micros), retry_after: None, body: body.into_bytes() })
    };
    let later = at("06-11T00:00").micros();
    let (mut agent, answers, asked) = asking(&node, vec![skew(later)]);
    assert_eq!(agent.step(), Step::Sent);
    let issued = |at: usize| claims(&node, &asked.lock().unwrap()[at].2).issued;
    assert_eq!(Instant::from_micros(issued(0) * SECOND), at("06-01T00:00"));
    assert_eq!(Instant::from_micros(issued(1) * SECOND), at("06-11T00:00"));
    // A service that says so again and again is asked with pauses, not in a circle.
    let tries = asked.lock().unwrap().len();
    answers.lock().unwrap().extend([skew(later), skew(later)]);
    agent.play(span("06-01T01:00 06-01T01:10"));
    assert!(matches!(agent.step(), Step::Pause(_)));
    assert_eq!(asked.lock().unwrap().len(), tries + 2);
    assert_eq!(agent.sender.trouble, None, "it is no key that was revoked");
}
