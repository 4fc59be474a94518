//! An agent as the service sees one: a key, a node, and requests that are signed with it. It keeps no spool and has no
//! clock of its own; what it signs and when is its test's to say.

use fatia::domain::ids::Name;
use fatia::domain::period::Span;
use fatia::wire::signature::{BatchSigner, RequestClaims, StreamPlace};
use fatia::wire::{agent_v1, body};
use serde_json::{Value, json};
use uuid::Uuid;

use super::api::{Answer, Api};
use super::platform::{Sender, TestPlatform, name};

/// An enrolled agent.
pub struct Agent {
    pub id: String,
    pub node: Name,
    pub audience: String,
    pub signer: BatchSigner,
    pub stream: Uuid,
    /// What its requests are signed at, in seconds before or after the service's time.
    pub off: i64,
}

/// A body that an agent sends.
#[derive(Clone)]
pub struct Packed {
    pub span: Span,
    pub bytes: Vec<u8>,
}

impl Agent {
    /// Enrols an agent of a node with a key that follows from its name.
    pub async fn enrol(api: &Api, node: &str) -> Agent {
        let secret = enrolment(api, &json!({ "nodes": node, "since": "2026-06-01T00:00:00Z" })).await;
        let signer = BatchSigner::from_seed(&body::hash(node.as_bytes()));
        let enrolled = ask_to_enrol(api, &secret, node, &signer).await.is(200).json();
        let text = |field: &str| enrolled[field].as_str().expect("it is answered").to_owned();
        Agent {
            id: text("agent"),
            node: name(node),
            audience: text("audience"),
            stream: Uuid::new_v5(&Uuid::from_u128(2), node.as_bytes()),
            signer,
            off: 0,
        }
    }

    /// The claims of a request with this body.
    pub fn claims(&self, platform: &TestPlatform, method: &str, path: &str, bytes: &[u8]) -> RequestClaims {
        let issued = platform.now().micros() / 1_000_000 + self.off;
        RequestClaims {
            body_hash: body::hash(bytes),
            issuer: self.id.clone(),
            node: self.node.clone(),
            audience: self.audience.clone(),
            issued,
            expires: issued + 60,
            method: method.to_owned(),
            path: path.to_owned(),
            place: None,
            reason: None,
        }
    }

    /// A batch as an agent of this node makes it: rows and coverage as [`Sender::message`] reads them.
    pub fn pack(&self, rows: &str, coverage: &str) -> Packed {
        let sender = Sender { source: self.source(), ..Sender::agent(self.node.as_str()) };
        let (span, message) = sender.message(rows, coverage);
        Packed { span, bytes: body::pack(&message).expect("a small message") }
    }

    pub fn source(&self) -> fatia::domain::usage::Source {
        let rank = fatia::domain::usage::SourceRank::HostAgent;
        fatia::domain::usage::Source { rank, sender: name(&self.id) }
    }

    pub fn place(&self, sequence: i64, span: Span) -> Option<StreamPlace> {
        Some(StreamPlace { stream: self.stream, sequence, span })
    }

    pub async fn send(&self, api: &Api, platform: &TestPlatform, sequence: i64, packed: &Packed) -> Answer {
        let claims = self.claims(platform, "POST", agent_v1::BATCHES_PATH, &packed.bytes);
        let claims = RequestClaims { place: self.place(sequence, packed.span), ..claims };
        self.send_signed(api, &claims, packed.bytes.clone()).await
    }

    pub async fn send_signed(&self, api: &Api, claims: &RequestClaims, bytes: Vec<u8>) -> Answer {
        let token = self.signer.sign_request(claims).expect("claims can be signed");
        let media =
            if claims.path == agent_v1::BATCHES_PATH { agent_v1::BATCH_TYPE } else { "application/json" };
        api.ask(&claims.method, &claims.path).token(&token).body(media, bytes).send().await
    }

    pub async fn skip(
        &self,
        api: &Api,
        platform: &TestPlatform,
        (from, to): (i64, i64),
        span: Span,
    ) -> Answer {
        let bytes =
            json!({ "from": from, "to": to, "reason": "the disk lost them" }).to_string().into_bytes();
        let claims = self.claims(platform, "POST", agent_v1::SKIPS_PATH, &bytes);
        self.send_signed(api, &RequestClaims { place: self.place(to, span), ..claims }, bytes).await
    }

    pub async fn inventory(
        &self,
        api: &Api,
        platform: &TestPlatform,
        counter: i64,
        devices: &[&str],
    ) -> Answer {
        let devices: Vec<Value> = devices
            .iter()
            .enumerate()
            .map(
                |(index, uuid)| json!({ "uuid": uuid, "model": "A10", "memory_mib": 24_576, "index": index }),
            )
            .collect();
        let at = platform.now().micros();
        let body = json!({ "counter": counter, "at": at, "version": "0.1.0", "devices": devices });
        self.put(api, platform, &body).await
    }

    pub async fn put(&self, api: &Api, platform: &TestPlatform, body: &Value) -> Answer {
        let bytes = body.to_string().into_bytes();
        let claims = self.claims(platform, "PUT", agent_v1::INVENTORY_PATH, &bytes);
        self.send_signed(api, &claims, bytes).await
    }
}

/// A new enrolment token's text.
pub async fn enrolment(api: &Api, body: &Value) -> String {
    let made = api.post("/api/v1/enrolment-tokens", body).await.is(201).json();
    made["secret"].as_str().expect("its text is shown").to_owned()
}

pub async fn ask_to_enrol(api: &Api, secret: &str, node: &str, signer: &BatchSigner) -> Answer {
    let body = json!({
        "token": secret, "node": node, "public_key": body::hex(&signer.public_key()), "version": "0.1.0",
    });
    api.ask("POST", agent_v1::ENROL_PATH).json(&body).send().await
}
