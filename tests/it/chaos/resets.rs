//! Clients that reset their connections while they write: nothing that was acknowledged is lost, and no session is left
//! inside a transaction. What a client heard is told apart from what is stored.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

use super::rig::counts;
use crate::support::api::Api;
use crate::support::platform::{TestPlatform, eventually};

/// Connections at once.
const AT_ONCE: usize = 64;

/// What a client heard before it went away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Heard {
    Made,
    Nothing,
}

/// Asks for a tenant, and resets the connection `after` microseconds; or waits for the answer first, and then resets it.
async fn ask(api: &Api, name: &str, after: Option<u64>) -> Heard {
    let body = format!("{{\"name\":\"{name}\"}}");
    let request = format!(
        "POST /api/v1/tenants HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        api.operator,
        body.len()
    );
    let mut stream = TcpStream::connect(api.running.address).await.expect("it listens");
    stream.set_zero_linger().expect("a close becomes a reset");
    stream.write_all(request.as_bytes()).await.expect("it takes a request");
    let mut heard = vec![0; 1_024];
    match after {
        Some(micros) => {
            let read = tokio::time::timeout(Duration::from_micros(micros), stream.read(&mut heard)).await;
            match read {
                Ok(Ok(length)) if heard[..length].starts_with(b"HTTP/1.1 201") => Heard::Made,
                _ => Heard::Nothing,
            }
        }
        None => {
            let length = stream.read(&mut heard).await.expect("an answer");
            assert!(
                heard[..length].starts_with(b"HTTP/1.1 201"),
                "{}",
                String::from_utf8_lossy(&heard[..length])
            );
            Heard::Made
        }
    }
}

async fn storm(platform: &TestPlatform, clients: u64) -> (Arc<Api>, BTreeSet<String>) {
    let api = Arc::new(Api::of(platform));
    let turns = Arc::new(Semaphore::new(AT_ONCE));
    let mut asks = Vec::new();
    for number in 0..clients {
        let (api, turn) = (Arc::clone(&api), Arc::clone(&turns).acquire_owned().await.expect("open"));
        asks.push(tokio::spawn(async move {
            let _turn = turn;
            let name = format!("t{number}");
            // Spread over all that happens between the request's head and the answer: from at once to ten milliseconds.
            let after = (number % 8 != 0).then(|| number.wrapping_mul(2_654_435_761) % 10_000);
            (ask(&api, &name, after).await, name)
        }));
    }
    let mut acknowledged = BTreeSet::new();
    for ask in asks {
        let (heard, name) = ask.await.expect("no panic");
        if heard == Heard::Made {
            acknowledged.insert(name);
        }
    }
    (api, acknowledged)
}

async fn nothing_acknowledged_is_lost(platform: &TestPlatform, clients: u64) {
    let (api, acknowledged) = storm(platform, clients).await;
    assert!(acknowledged.len() as u64 >= clients / 8, "{} were answered", acknowledged.len());
    let mut raw = platform.raw().await;
    // What nobody waits for any more is done all the same, and then nothing is under way.
    let mut before = -1;
    eventually("the work ends", async || {
        tokio::time::sleep(Duration::from_millis(200)).await;
        let now = raw.number("SELECT COUNT(*) FROM tenant").await;
        std::mem::replace(&mut before, now) == now
    })
    .await;
    let stored: BTreeSet<String> =
        raw.rows::<(String,)>("SELECT name FROM tenant").await.into_iter().map(|(name,)| name).collect();
    let lost: Vec<&String> = acknowledged.difference(&stored).collect();
    assert!(lost.is_empty(), "{} of {} acknowledged were lost: {lost:?}", lost.len(), acknowledged.len());
    let recorded = raw.number("SELECT COUNT(*) FROM audit WHERE action = 'tenant.create'").await;
    assert_eq!(recorded, stored.len() as i64 - 1, "each that is stored is recorded, and nothing else");
    println!("{} of {clients} acknowledged, {} stored", acknowledged.len(), recorded);
    // The service goes on as before.
    api.post("/api/v1/tenants", &serde_json::json!({ "name": "after the storm" })).await.is(201);
}

fn clients() -> u64 {
    u64::from(counts(10_000))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite_keeps_what_it_acknowledged_to_clients_that_reset() {
    nothing_acknowledged_is_lost(&TestPlatform::sqlite().await, clients()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_keeps_what_it_acknowledged_to_clients_that_reset_and_leaves_no_transaction_open() {
    let platform = TestPlatform::postgres().await;
    nothing_acknowledged_is_lost(&platform, clients()).await;
    let mut raw = platform.raw().await;
    let sql = "SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() \
               AND application_name = 'fatia' AND state LIKE 'idle in transaction%'";
    eventually("no session is left in a transaction", async || raw.number(sql).await == 0).await;
}
