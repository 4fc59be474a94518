//! A wire between clients and a service that moves: its own address stays, whatever becomes of the service's.
//!
//! It resets connections at random bytes, and says requests again on connections of its own that it resets too: a
//! repeat may arrive in part, twice, late, or before what it repeats.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, JoinSet};

use super::rig::Random;

/// Most bytes that a connection carries until it is reset, where it is to be.
const CUT_WITHIN: u64 = 64 << 10;
/// Longest wait for the answer to a repeat, in milliseconds.
const PATIENCE_MILLIS: u64 = 10;
/// Repeats at once.
const AT_ONCE: usize = 16;

/// Ends with this value, and its connections with it.
pub struct Relay {
    pub address: SocketAddr,
    wire: Arc<Wire>,
    accepting: JoinHandle<()>,
}

/// What was done to the connections so far.
#[derive(Debug, Clone, Copy)]
pub struct Done {
    /// Whole requests of clients.
    pub requests: u64,
    /// Connections of clients that were reset.
    pub cuts: u64,
    /// Requests that were said again, on connections that were reset.
    pub repeats: u64,
    /// Of these, those whose answer was heard.
    pub answered: u64,
}

struct Wire {
    /// Where the service is; none: nobody answers.
    service: Mutex<Option<SocketAddr>>,
    random: Mutex<Random>,
    turns: Arc<Semaphore>,
    cuts_left: AtomicU64,
    repeats_left: AtomicU64,
    /// Of one request.
    repeats_most: AtomicU64,
    requests: AtomicU64,
    cuts: AtomicU64,
    repeats: AtomicU64,
    answered: AtomicU64,
}

impl Relay {
    pub async fn start(random: Random) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("there is a free port");
        let address = listener.local_addr().expect("it is bound");
        let wire = Arc::new(Wire {
            service: Mutex::new(None),
            random: Mutex::new(random),
            turns: Arc::new(Semaphore::new(AT_ONCE)),
            cuts_left: AtomicU64::new(0),
            repeats_left: AtomicU64::new(0),
            repeats_most: AtomicU64::new(0),
            requests: AtomicU64::new(0),
            cuts: AtomicU64::new(0),
            repeats: AtomicU64::new(0),
            answered: AtomicU64::new(0),
        });
        let accepting = tokio::spawn(accept_all(listener, Arc::clone(&wire)));
        Relay { address, wire, accepting }
    }

    /// From now on the service is there.
    pub fn point_at(&self, service: Option<SocketAddr>) {
        *self.wire.service.lock().unwrap() = service;
    }

    /// So many connections more are to be reset, and requests to be said again so many times, of about so many requests.
    pub fn allow(&self, cuts: u64, repeats: u64, requests: u64) {
        self.wire.cuts_left.fetch_add(cuts, Ordering::Relaxed);
        self.wire.repeats_left.fetch_add(repeats, Ordering::Relaxed);
        // Half as many again as would do: who knows what a part of them comes to.
        self.wire.repeats_most.store(3 * repeats / requests.max(1) + 1, Ordering::Relaxed);
    }

    /// Nothing more is reset or said again.
    pub fn calm(&self) {
        self.wire.cuts_left.store(0, Ordering::Relaxed);
        self.wire.repeats_left.store(0, Ordering::Relaxed);
    }

    pub fn done(&self) -> Done {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Done {
            requests: of(&self.wire.requests),
            cuts: of(&self.wire.cuts),
            repeats: of(&self.wire.repeats),
            answered: of(&self.wire.answered),
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Wire {
    fn below(&self, limit: u64) -> u64 {
        self.random.lock().unwrap().below(limit)
    }

    async fn connect(&self) -> Option<TcpStream> {
        let service = *self.service.lock().unwrap();
        TcpStream::connect(service?).await.ok()
    }
}

/// Takes one of what is left.
fn take(left: &AtomicU64) -> bool {
    left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
}

fn will_reset(stream: &TcpStream) {
    stream.set_zero_linger().expect("a close becomes a reset");
}

async fn accept_all(listener: TcpListener, wire: Arc<Wire>) {
    // Owned here, so that aborting this task cuts the connections with it.
    let mut connections = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        connections.spawn(carry(client, Arc::clone(&wire)));
        while connections.try_join_next().is_some() {}
    }
}

/// Carries both ways until one end closes, or until the byte at which it is to be reset.
async fn carry(mut client: TcpStream, wire: Arc<Wire>) {
    let Some(mut service) = wire.connect().await else {
        return will_reset(&client);
    };
    let is_cut = take(&wire.cuts_left);
    let mut left = if is_cut { wire.below(CUT_WITHIN) } else { u64::MAX };
    let mut requests = Requests::default();
    let (mut asked, mut said) = (vec![0; 64 << 10], vec![0; 64 << 10]);
    while left > 0 {
        let most = |length: usize, left: u64| length.min(usize::try_from(left).unwrap_or(length));
        let carried = tokio::select! {
            read = client.read(&mut asked) => match read {
                Ok(length @ 1..) => {
                    let length = most(length, left);
                    for request in requests.take(&asked[..length]) {
                        wire.requests.fetch_add(1, Ordering::Relaxed);
                        for _ in 0..wire.below(wire.repeats_most.load(Ordering::Relaxed) + 1) {
                            say_again(&wire, request.clone());
                        }
                    }
                    service.write_all(&asked[..length]).await.map(|()| length)
                }
                _ => break,
            },
            read = service.read(&mut said) => match read {
                Ok(length @ 1..) => {
                    let length = most(length, left);
                    client.write_all(&said[..length]).await.map(|()| length)
                }
                _ => break,
            },
        };
        match carried {
            Ok(length) => left = left.saturating_sub(u64::try_from(length).expect("a chunk is small")),
            Err(_) => break,
        }
    }
    if left == 0 {
        will_reset(&client);
        will_reset(&service);
        wire.cuts.fetch_add(1, Ordering::Relaxed);
    } else if is_cut {
        // It ended by itself before: another one is reset in its place.
        wire.cuts_left.fetch_add(1, Ordering::Relaxed);
    }
}

/// Says a request again, while any repeats are left.
fn say_again(wire: &Arc<Wire>, request: Vec<u8>) {
    let Ok(turn) = Arc::clone(&wire.turns).try_acquire_owned() else { return };
    if !take(&wire.repeats_left) {
        return;
    }
    let wire = Arc::clone(wire);
    tokio::spawn(async move {
        let _turn = turn;
        let Some(mut service) = wire.connect().await else {
            wire.repeats_left.fetch_add(1, Ordering::Relaxed);
            return;
        };
        will_reset(&service);
        // One of two is said whole, and then there may be an answer.
        let whole = request.len();
        let part = usize::try_from(wire.below(2 * u64::try_from(whole).expect("a request is small")));
        let part = part.expect("a request is small").min(whole);
        let mut heard = [0; 1_024];
        if service.write_all(&request[..part]).await.is_ok() {
            let patience = Duration::from_micros(wire.below(PATIENCE_MILLIS * 1_000));
            let read = tokio::time::timeout(patience, service.read(&mut heard)).await;
            let is_answered = read.is_ok_and(|read| read.is_ok_and(|length| length > 0));
            wire.answered.fetch_add(u64::from(is_answered), Ordering::Relaxed);
        }
        wire.repeats.fetch_add(1, Ordering::Relaxed);
    });
}

/// Finds whole requests in what a client writes.
#[derive(Default)]
struct Requests {
    bytes: Vec<u8>,
}

impl Requests {
    fn take(&mut self, chunk: &[u8]) -> Vec<Vec<u8>> {
        self.bytes.extend_from_slice(chunk);
        let mut whole = Vec::new();
        while let Some(length) = self.first() {
            whole.push(self.bytes.drain(..length).collect());
        }
        whole
    }

    /// The length of the first request, where it is whole.
    fn first(&self) -> Option<usize> {
        let head = self.bytes.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
        let text = String::from_utf8_lossy(&self.bytes[..head]).to_ascii_lowercase();
        let length = text.lines().find_map(|line| line.strip_prefix("content-length:"));
        let body: usize = length.map_or(0, |length| length.trim().parse().expect("a client counts well"));
        (self.bytes.len() >= head + body).then_some(head + body)
    }
}
