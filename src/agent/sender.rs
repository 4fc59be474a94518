//! Sends what the spool holds: what each answer of the service means, and when the next try is made.
//!
//! Always true here: a number is acknowledged to the spool only when the service said that it is durable; nothing is given
//! up for its age; what comes in now waits for no backlog.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::clock::{OFF_MICROS_MIN, Observed, Reading, ServerClock};
use super::identity::Identity;
use super::machine::{Machine, random_u64};
use super::source;
use super::spool::{BatchLimits, Disk, Lane, OutBody, Outgoing, Rewound, Spool, SpoolError};
use super::upstream::{Reply, Request, Unreachable, Upstream};
use crate::domain::ids::Name;
use crate::domain::units::{Instant, MICROS_PER_HOUR, MICROS_PER_SECOND};
use crate::wire::ack::{Acknowledgement, Outcome};
use crate::wire::agent_v1::{
    BATCH_TYPE, BATCHES_PATH, ENROL_PATH, Enrol, Enrolled, INVENTORY_PATH, Inventory, InventoryDevice,
    InventoryTaken, ProblemAnswer, SKIPS_PATH, Skip,
};
use crate::wire::body;
use crate::wire::signature::{BatchSigner, RequestClaims, StreamPlace};

/// The first pause after something did not succeed.
const PAUSE_MICROS_MIN: i64 = MICROS_PER_SECOND;
/// The longest.
const PAUSE_MICROS_MAX: i64 = 300 * MICROS_PER_SECOND;
/// The pause after an answer that only a person can change.
const REFUSED_MICROS: i64 = 600 * MICROS_PER_SECOND;
/// How long what an agent signs holds.
const SIGNED_SECONDS: i64 = 60;
/// Most of a batch's rows. The service takes 5,000 and reads smaller ones with less delay for others.
const ROWS: usize = body::ROWS_MAX;

/// What every batch is at most.
pub const LIMITS: BatchLimits = BatchLimits {
    rows_max: ROWS,
    bytes_max: body::PACKED_BYTES_MAX,
    span_max_micros: MICROS_PER_HOUR,
    windows_max: 512,
};

/// The agent's own state that sampler and sender share.
#[derive(Debug)]
pub struct Shared<D> {
    /// What is to be sent.
    pub spool: Mutex<Spool<D>>,
    /// The service's time.
    pub clock: Mutex<ServerClock>,
}

impl<D: Disk> Shared<D> {
    /// Places what is kept, and is in no batch yet, by the time as it is known now.
    ///
    /// # Errors
    /// [`SpoolError`].
    pub(super) fn retime(&self, reading: &Reading) -> Result<(), SpoolError> {
        let clock = locked(&self.clock).clone();
        let Some(offset) = clock.offset(&reading.boot) else { return Ok(()) };
        let moved = locked(&self.spool).retime(&reading.boot, offset, clock.now(reading))?;
        if moved > 0 {
            tracing::warn!("{moved} windows were placed by a clock that was off, and are placed anew");
        }
        Ok(())
    }
}

/// Locks, also what a panic of another thread left: each call of the spool and the clock leaves them whole.
pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a step of sending came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Something was sent; there may be more.
    Sent,
    /// There is nothing to send.
    Idle,
    /// Not before so many microseconds.
    Pause(i64),
}

/// Why the service does not take what is sent, in a way that does not pass by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trouble {
    /// 401: the key is not known any more.
    Revoked(String),
    /// 403: this agent may not speak for the node.
    Forbidden(String),
}

/// An inventory that is to be sent.
#[derive(Debug, Clone)]
struct Taken {
    message: Inventory,
    /// What the clocks showed when it was taken; none: its instant is a script's.
    at: Option<Reading>,
}

/// What was sent so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Batches that the service acknowledged, skips among them.
    pub acknowledged: u64,
    /// Of these, batches that it had already.
    pub duplicates: u64,
    /// Batches of which it could read nothing.
    pub set_aside: u64,
    /// Tries that came to nothing.
    pub failures: u64,
    /// Streams that were begun anew.
    pub new_streams: u64,
    /// Times that the service was behind what it had acknowledged.
    pub rewinds: u64,
}

/// Sends for one agent.
pub struct Sender<D, U> {
    shared: Arc<Shared<D>>,
    upstream: U,
    machine: Arc<dyn Machine>,
    speaker: Speaker,
    /// Why a lane's stream follows another, until its first number is taken.
    reasons: [Option<Name>; 2],
    pause: i64,
    was_away: bool,
    /// The time turned out to be another: what was placed by the old one is placed anew before the next batch is made.
    is_off: bool,
    inventory: Option<Taken>,
    /// What the service says that only a person can change.
    pub trouble: Option<Trouble>,
    /// What was sent.
    pub counts: Counts,
}

impl<D, U> std::fmt::Debug for Sender<D, U> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sender")
            .field("agent", &self.speaker.agent)
            .field("node", &self.speaker.node)
            .finish_non_exhaustive()
    }
}

/// Becomes a node's agent, or goes on being it. The key is on the disk before the service is told.
///
/// # Errors
/// In words, what the service said; an answer that was lost is asked for again by the next call.
pub fn enrol(
    upstream: &mut dyn Upstream,
    machine: &dyn Machine,
    identity: &mut Identity,
    clock: &mut ServerClock,
    token: &str,
) -> Result<(), String> {
    let signer = identity.signer().ok_or("the key is damaged")?;
    let ask = Enrol {
        token: token.trim().to_owned(),
        node: identity.node.clone(),
        public_key: body::hex(&signer.public_key()),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    };
    let bytes = serde_json::to_vec(&ask).map_err(|error| error.to_string())?;
    let request =
        Request { method: "POST", path: ENROL_PATH, media: "application/json", body: &bytes, token: None };
    let sent = machine.reading();
    let reply = upstream.ask(&request).map_err(|error| error.to_string())?;
    if let Some(time) = reply.time_micros {
        clock.observe(&sent, &machine.reading(), time);
    }
    if reply.status != 200 {
        return Err(format!("the service refuses to enrol {}: {}", identity.node, said(&reply)));
    }
    let enrolled: Enrolled = serde_json::from_slice(&reply.body).map_err(|error| error.to_string())?;
    identity.agent = Some(enrolled.agent);
    identity.audience = Some(enrolled.audience);
    identity.clock = clock.state();
    Ok(())
}

/// What an answer says of why it is none.
pub(super) fn said(reply: &Reply) -> String {
    let problem: ProblemAnswer = serde_json::from_slice(&reply.body).unwrap_or_default();
    if problem.detail.is_empty() { format!("status {}", reply.status) } else { problem.detail }
}

/// Who an agent is to its service, and the key by which it proves that.
pub(super) struct Speaker {
    signer: BatchSigner,
    agent: String,
    audience: String,
    node: Name,
}

impl Speaker {
    /// None: it is not enrolled, or has no good key or name.
    pub(super) fn of(identity: &Identity) -> Option<Self> {
        Some(Self {
            signer: identity.signer()?,
            agent: identity.agent.clone()?,
            audience: identity.audience.clone()?,
            node: Name::parse(&identity.node).ok()?,
        })
    }

    /// What it says of a request, for a minute from an instant on. It speaks of no stream.
    fn claims(&self, (method, path): (&str, &str), bytes: &[u8], at: Instant) -> RequestClaims {
        let issued = at.micros().div_euclid(MICROS_PER_SECOND);
        RequestClaims {
            body_hash: body::hash(bytes),
            issuer: self.agent.clone(),
            node: self.node.clone(),
            audience: self.audience.clone(),
            issued,
            expires: issued.saturating_add(SIGNED_SECONDS),
            method: method.to_owned(),
            path: path.to_owned(),
            place: None,
            reason: None,
        }
    }

    /// A request that speaks of no stream, signed; none: that cannot be.
    pub(super) fn sign(&self, request: (&str, &str), bytes: &[u8], at: Instant) -> Option<String> {
        self.signer.sign_request(&self.claims(request, bytes, at)).ok()
    }
}

fn is_clock_skew(reply: &Reply) -> bool {
    let problem: ProblemAnswer = serde_json::from_slice(&reply.body).unwrap_or_default();
    reply.status == 401 && problem.kind.ends_with(":clock-skew")
}

impl<D: Disk, U: Upstream> Sender<D, U> {
    /// A sender for an agent that is enrolled; none: it is not.
    pub fn new(
        shared: Arc<Shared<D>>,
        upstream: U,
        machine: Arc<dyn Machine>,
        identity: &Identity,
    ) -> Option<Self> {
        Some(Self {
            shared,
            upstream,
            machine,
            speaker: Speaker::of(identity)?,
            reasons: [None, None],
            pause: 0,
            // What a process before this one left behind may be old.
            was_away: true,
            is_off: false,
            inventory: None,
            trouble: None,
            counts: Counts::default(),
        })
    }

    /// Has an inventory to be sent before the next batch: devices that are new have to be known first.
    ///
    /// `at` is what the clocks showed when it was taken: it is told by the service's time as it is known when it is
    /// sent. None: its instant is a script's.
    pub fn put_inventory(&mut self, message: Inventory, at: Option<Reading>) {
        self.inventory = Some(Taken { message, at });
    }

    /// Whether the inventory was taken.
    #[must_use]
    pub const fn is_inventory_taken(&self) -> bool {
        self.inventory.is_none()
    }

    /// Sends one thing: the inventory, else a batch of what comes in now, else one of the backlog. With `close` whatever
    /// waits is sent, else a batch is made when it is full.
    ///
    /// # Errors
    /// [`SpoolError`]; after one of [`SpoolError::Sync`] the process has to end.
    pub fn step(&mut self, limits: BatchLimits, close: bool) -> Result<Step, SpoolError> {
        if let Some(inventory) = self.inventory.take() {
            let step = self.send_inventory(&inventory);
            if step != Step::Sent {
                self.inventory = Some(inventory);
            }
            return Ok(step);
        }
        if self.is_off {
            self.shared.retime(&self.machine.reading())?;
            self.is_off = false;
        }
        for lane in Lane::ALL {
            // A backlog is sent as it is.
            let close = close || lane == Lane::Backlog;
            let next = locked(&self.shared.spool).next_batch(lane, limits, close)?;
            if let Some(out) = next {
                return self.send(&out);
            }
        }
        Ok(Step::Idle)
    }

    /// Server time.
    fn now(&self) -> Instant {
        locked(&self.shared.clock).now(&self.machine.reading())
    }

    /// Asks with a signature; once more with the right time, if the service says that ours is wrong.
    fn ask(
        &mut self,
        request: (&'static str, &'static str, &'static str),
        bytes: &[u8],
        place: Option<&StreamPlace>,
        reason: Option<&Name>,
    ) -> Result<Reply, Unreachable> {
        let reply = self.ask_once(request, bytes, place, reason)?;
        if is_clock_skew(&reply) { self.ask_once(request, bytes, place, reason) } else { Ok(reply) }
    }

    /// Asks with a signature, and learns the service's time from the answer.
    fn ask_once(
        &mut self,
        (method, path, media): (&'static str, &'static str, &'static str),
        bytes: &[u8],
        place: Option<&StreamPlace>,
        reason: Option<&Name>,
    ) -> Result<Reply, Unreachable> {
        let sent = self.machine.reading();
        let at = locked(&self.shared.clock).now(&sent);
        let claims = RequestClaims {
            place: place.cloned(),
            reason: reason.map(Name::to_string),
            ..self.speaker.claims((method, path), bytes, at)
        };
        let signed = self.speaker.signer.sign_request(&claims);
        let token = signed.map_err(|error| Unreachable(error.to_string()))?;
        let reply = self.upstream.ask(&Request { method, path, media, body: bytes, token: Some(&token) })?;
        if let Some(time) = reply.time_micros {
            let received = self.machine.reading();
            let observed = locked(&self.shared.clock).observe(&sent, &received, time);
            if let Observed::Stepped(micros) | Observed::First(micros) = observed
                && micros.saturating_abs() >= OFF_MICROS_MIN
            {
                tracing::warn!(micros, "the service's time is {} ms off what was assumed", micros / 1_000);
                self.is_off = true;
            }
        }
        Ok(reply)
    }

    fn send_inventory(&mut self, taken: &Taken) -> Step {
        let request = ("PUT", INVENTORY_PATH, "application/json");
        let mut sent = self.told(taken).map(|bytes| self.ask_once(request, &bytes, None, None));
        if sent.as_ref().is_some_and(|sent| sent.as_ref().is_ok_and(is_clock_skew)) {
            // The time in it was as wrong as that of the signature.
            sent = self.told(taken).map(|bytes| self.ask_once(request, &bytes, None, None));
        }
        let reply = match sent {
            Some(Ok(reply)) => reply,
            Some(Err(error)) => return self.failed(&error.to_string(), None),
            None => return Step::Pause(REFUSED_MICROS),
        };
        match reply.status {
            200 => {
                let taken: Option<InventoryTaken> = serde_json::from_slice(&reply.body).ok();
                for refusal in taken.into_iter().flat_map(|taken| taken.refused) {
                    tracing::warn!("the service does not take a device: {}", refusal.reason);
                }
                self.succeeded();
                Step::Sent
            }
            // It has a newer one, of a copy of this agent or of a time that was set back: it keeps that.
            409 => {
                tracing::error!("the service has a newer inventory of this agent: {}", said(&reply));
                self.succeeded();
                Step::Sent
            }
            _ => self.refused(&reply),
        }
    }

    /// An inventory's bytes, with its instant in the service's time.
    fn told(&self, taken: &Taken) -> Option<Vec<u8>> {
        let mut message = taken.message.clone();
        if let Some(reading) = &taken.at {
            message.at = locked(&self.shared.clock).now(reading).micros();
        }
        serde_json::to_vec(&message).ok()
    }

    fn send(&mut self, out: &Outgoing) -> Result<Step, SpoolError> {
        let place = StreamPlace { stream: out.stream, sequence: out.sequence, span: out.span };
        let reason = self.reasons.get(lane_index(out.lane)).cloned().flatten();
        let asked = match &out.body {
            OutBody::Bytes(bytes) => {
                self.ask(("POST", BATCHES_PATH, BATCH_TYPE), bytes, Some(&place), reason.as_ref())
            }
            OutBody::Skip { from, to, reason: why, span } => {
                let skip = Skip { from: *from, to: *to, reason: why.to_string() };
                let bytes = serde_json::to_vec(&skip).map_err(SpoolError::Encode)?;
                let place = StreamPlace { sequence: *to, span: *span, ..place };
                self.ask(("POST", SKIPS_PATH, "application/json"), &bytes, Some(&place), reason.as_ref())
            }
        };
        let reply = match asked {
            Ok(reply) => reply,
            Err(error) => return Ok(self.failed(&error.to_string(), None)),
        };
        match reply.status {
            200 => match serde_json::from_slice::<Acknowledgement>(&reply.body) {
                Ok(ack) => self.answered(out, &ack),
                Err(error) => Ok(self.failed(&format!("the answer cannot be read: {error}"), None)),
            },
            409 => self.begin_anew(out.lane, &said(&reply)),
            413 => {
                tracing::error!("the service takes no batch as large as {}: it is lost", out.sequence);
                let why = Name::fixed("the service takes no batch as large");
                locked(&self.shared.spool).replace_with_skip(out.lane, out.sequence, why)?;
                Ok(Step::Sent)
            }
            _ => Ok(self.refused(&reply)),
        }
    }

    /// What an acknowledgement means.
    fn answered(&mut self, out: &Outgoing, ack: &Acknowledgement) -> Result<Step, SpoolError> {
        match ack.outcome {
            Outcome::Accepted | Outcome::Duplicate | Outcome::DuplicateUnverified | Outcome::SetAside => {
                // Each number is sent when the one before was answered: a mark above this one is none of ours.
                if ack.mark > out.sequence && self.is_newest(out)? {
                    let why =
                        format!("the service has {} numbers of which {} were sent", ack.mark, out.sequence);
                    return self.begin_anew(out.lane, &why);
                }
                match ack.outcome {
                    Outcome::Duplicate | Outcome::DuplicateUnverified => self.counts.duplicates += 1,
                    Outcome::SetAside => {
                        self.counts.set_aside += 1;
                        let why = ack.refused.first().map_or("", |refusal| refusal.reason.as_str());
                        tracing::error!("the service can read nothing of batch {}: {why}", out.sequence);
                    }
                    Outcome::Accepted | Outcome::Ahead => {}
                }
                for refusal in ack.refused.iter().take(5).filter(|refusal| !refusal.pointer.is_empty()) {
                    tracing::warn!("the service does not take {}: {}", refusal.pointer, refusal.reason);
                }
                let now = self.now();
                locked(&self.shared.spool).acknowledge(out.lane, out.sequence, now)?;
                self.counts.acknowledged += 1;
                if let Some(reason) = self.reasons.get_mut(lane_index(out.lane)) {
                    *reason = None;
                }
                if self.was_away {
                    locked(&self.shared.spool).split(now)?;
                    self.was_away = false;
                }
                self.succeeded();
                Ok(Step::Sent)
            }
            Outcome::Ahead => {
                self.counts.rewinds += 1;
                tracing::warn!(
                    "the service is at {} and was sent {}: it was restored",
                    ack.mark,
                    out.sequence
                );
                let rewound = locked(&self.shared.spool).rewind(out.lane, ack.mark);
                match rewound {
                    Ok(Rewound::To(_) | Rewound::NeedsSkip { .. }) => Ok(Step::Sent),
                    // It asks for what it never had, or was promised otherwise: only a new stream gets on.
                    Err(SpoolError::NotWaiting { .. }) => {
                        self.begin_anew(out.lane, "the service's mark is no number of ours")
                    }
                    Err(error) => Err(error),
                }
            }
        }
    }

    /// Whether nothing behind a number was made yet.
    fn is_newest(&self, out: &Outgoing) -> Result<bool, SpoolError> {
        Ok(locked(&self.shared.spool).formed(out.lane) <= out.sequence)
    }

    fn begin_anew(&mut self, lane: Lane, why: &str) -> Result<Step, SpoolError> {
        tracing::error!("begins a new stream: {why}");
        let reason: String = why.chars().filter(|c| !c.is_control()).take(90).collect();
        let reason = Name::parse(&reason).unwrap_or_else(|_| Name::fixed("the service has other numbers"));
        locked(&self.shared.spool).new_stream(lane, reason.clone())?;
        if let Some(kept) = self.reasons.get_mut(lane_index(lane)) {
            *kept = Some(reason);
        }
        self.counts.new_streams += 1;
        Ok(Step::Sent)
    }

    fn succeeded(&mut self) {
        self.pause = 0;
        self.trouble = None;
    }

    /// An answer that is no success: whether a person has to do something, and when it is tried again.
    fn refused(&mut self, reply: &Reply) -> Step {
        let words = said(reply);
        match reply.status {
            401 if !is_clock_skew(reply) => self.stopped(Trouble::Revoked(words)),
            403 => self.stopped(Trouble::Forbidden(words)),
            _ => self.failed(&words, reply.retry_after),
        }
    }

    fn stopped(&mut self, trouble: Trouble) -> Step {
        if self.trouble.as_ref() != Some(&trouble) {
            tracing::error!(
                "the service takes nothing from this agent: {trouble:?}; what is measured is kept here"
            );
        }
        self.trouble = Some(trouble);
        self.counts.failures += 1;
        self.was_away = true;
        Step::Pause(self.spread(REFUSED_MICROS))
    }

    /// Twice the pause of before, spread so that a fleet does not come back as one; at least as long as was asked for.
    fn failed(&mut self, why: &str, retry_after: Option<u64>) -> Step {
        tracing::warn!("was not sent, and will be: {why}");
        self.counts.failures += 1;
        self.was_away = true;
        self.pause = self.pause.saturating_mul(2).clamp(PAUSE_MICROS_MIN, PAUSE_MICROS_MAX);
        let asked = retry_after.and_then(|seconds| i64::try_from(seconds).ok()).unwrap_or_default();
        let asked = asked.saturating_mul(MICROS_PER_SECOND).min(PAUSE_MICROS_MAX);
        Step::Pause(asked.saturating_add(self.spread(self.pause)))
    }

    /// Between half of a time and all of it.
    fn spread(&self, micros: i64) -> i64 {
        let half = micros / 2;
        let part = random_u64(&*self.machine) % half.unsigned_abs().max(1);
        half.saturating_add(i64::try_from(part).unwrap_or_default())
    }
}

const fn lane_index(lane: Lane) -> usize {
    match lane {
        Lane::Live => 0,
        Lane::Backlog => 1,
    }
}

/// What a node has, as a message.
#[must_use]
pub fn inventory_message(inventory: &source::Inventory, counter: i64, at: Instant) -> Inventory {
    let devices = inventory.devices.iter().map(|device| InventoryDevice {
        uuid: device.uuid.to_string(),
        model: device.model.to_string(),
        memory_mib: Some(i64::from(device.memory_mib)).filter(|mib| *mib > 0),
        index: Some(i64::from(device.index)),
        pci: device.pci.as_ref().map(Name::to_string),
        serial: device.serial.as_ref().map(Name::to_string),
    });
    Inventory {
        counter,
        at: at.micros(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        driver: inventory.driver.as_ref().map(Name::to_string),
        devices: devices.collect(),
    }
}
