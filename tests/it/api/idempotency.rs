//! A request that is repeated with its key is answered and not done again, whoever repeats it when.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use fatia::services::outbox::{self, Message, Receiver};
use futures_util::future::BoxFuture;
use serde_json::json;

use crate::support::api::{Answer, Api};
use crate::support::platform::on_both_databases;

async fn make(api: &Api, token: &str, key: &str, name: &str) -> Answer {
    let ask = api.ask("POST", "/api/v1/tenants").token(token).header("Idempotency-Key", key);
    ask.json(&json!({ "name": name })).send().await
}

on_both_databases! {
    async fn a_repeat_is_answered_alike_and_changes_nothing(platform: &TestPlatform) {
        let api = Api::of(platform);
        let first = make(&api, &api.operator, "k1", "acme").await.is(201);
        platform.clock.set("06-10T13:00");
        let again = make(&api, &api.operator, "k1", "acme").await.is(201);
        assert_eq!(again.text, first.text);
        let other = make(&api, &api.operator, "k1", "beta").await.is(422);
        assert_eq!(other.json()["type"], "urn:fatia:problem:idempotency-key-reused");
        // A key belongs to its token.
        let token = api.token("admin", None).await;
        make(&api, &token, "k1", "beta").await.is(201);
        // What failed was not done, so it is tried again.
        make(&api, &api.operator, "k2", "acme").await.is(409);
        make(&api, &api.operator, "k2", "acme").await.is(409);
        let mut raw = platform.raw().await;
        assert_eq!(raw.number("SELECT COUNT(*) FROM audit WHERE action = 'tenant.create'").await, 2);
        for key in ["", "a b", &"x".repeat(256)] {
            make(&api, &api.operator, key, "gamma").await.is(422);
        }
    }

    async fn of_many_repeats_at_once_one_is_done(platform: &TestPlatform) {
        let api = Arc::new(Api::of(platform));
        let asks = (0..32).map(|_| {
            let api = Arc::clone(&api);
            tokio::spawn(async move { make(&api, &api.operator, "k", "acme").await })
        });
        let mut texts = std::collections::BTreeSet::new();
        for ask in asks.collect::<Vec<_>>() {
            texts.insert(ask.await.expect("no panic").is(201).text);
        }
        assert_eq!(texts.len(), 1, "all are answered alike: {texts:?}");
        assert_eq!(platform.count("tenant").await, 2);
        assert_eq!(platform.count("idempotency").await, 1);
    }

    async fn a_repeated_token_is_the_one_that_was_made_without_its_text(platform: &TestPlatform) {
        let api = Api::of(platform);
        let ask = || async {
            let ask = api.ask("POST", "/api/v1/tokens").token(&api.operator).header("Idempotency-Key", "t");
            ask.json(&json!({ "name": "a", "role": "agent" })).send().await.is(201).json()
        };
        let (first, again) = (ask().await, ask().await);
        assert_eq!(first["id"], again["id"]);
        assert!(first["secret"].is_string() && again["secret"].is_null());
        assert_eq!(platform.count("api_token").await, 1);
    }

    async fn answers_and_sent_messages_are_forgotten_after_a_day(platform: &TestPlatform) {
        let api = Api::of(platform);
        make(&api, &api.operator, "k", "acme").await.is(201);
        let receiver = Heard::default();
        assert_eq!(outbox::send_due(platform, &receiver).await.unwrap(), 1);
        assert_eq!(outbox::send_due(platform, &receiver).await.unwrap(), 0);
        assert!(receiver.heard.lock().unwrap()[0].contains("tenant.create"));
        platform.clock.set("06-11T11:00");
        outbox::forget_old(platform).await.unwrap();
        assert_eq!((platform.count("idempotency").await, platform.count("outbox").await), (1, 1));
        platform.clock.set("06-11T13:00");
        outbox::forget_old(platform).await.unwrap();
        assert_eq!((platform.count("idempotency").await, platform.count("outbox").await), (0, 0));
    }

    async fn a_message_that_is_not_taken_is_tried_again_later_and_later(platform: &TestPlatform) {
        let api = Api::of(platform);
        make(&api, &api.operator, "k", "acme").await.is(201);
        let refusing = Heard { refuses: true.into(), ..Heard::default() };
        let send = || async { outbox::send_due(platform, &refusing).await.unwrap() };
        assert_eq!(send().await, 0);
        assert_eq!(send().await, 0);
        assert_eq!(refusing.heard.lock().unwrap().len(), 1, "not before its time");
        platform.clock.set("06-10T12:00:05");
        send().await;
        platform.clock.set("06-10T12:00:10");
        send().await;
        assert_eq!(refusing.heard.lock().unwrap().len(), 2);
        platform.clock.set("06-10T12:00:15");
        refusing.refuses.store(false, Ordering::Relaxed);
        assert_eq!(send().await, 1);
        assert_eq!(outbox::waiting(platform).await.unwrap(), 0);
    }
}

/// Notes what it is told, and takes it or not.
#[derive(Default)]
struct Heard {
    heard: Mutex<Vec<String>>,
    refuses: AtomicBool,
}

impl Receiver for Heard {
    fn receive<'a>(&'a self, message: &'a Message) -> BoxFuture<'a, Result<(), String>> {
        self.heard.lock().unwrap().push(message.payload.clone());
        let result = if self.refuses.load(Ordering::Relaxed) { Err("not now".to_owned()) } else { Ok(()) };
        Box::pin(std::future::ready(result))
    }
}
