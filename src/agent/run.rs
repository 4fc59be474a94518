//! An agent at work: one thread looks and keeps, another sends.
//!
//! Live, the looks are a second apart and windows are placed by the service's time: any source can be looked at so. In a
//! replay the time of a source that can be played passes as fast as the spool takes what it shows.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use uuid::Uuid;

use super::clock::{OFF_MICROS_MIN, Reading, ServerClock};
use super::identity::{Identity, IdentityError};
use super::machine::{Machine, random_u64};
use super::scripted::ScriptedSource;
use super::sender::{Counts, LIMITS, Sender, Shared, Step, inventory_message, locked};
use super::source::{Sample, Source, SourceError};
use super::spool::{self, BatchLimits, FolderError, RealDisk, Spool, SpoolError};
use super::upstream::Upstream;
use super::window::{Stamp, Window, Windower};
use crate::domain::ids::{Name, ScopeKind, ScopeName};
use crate::domain::period::Span;
use crate::domain::units::{Instant, MICROS_PER_SECOND, NANOS_PER_MICRO};
use crate::domain::usage::{self, ClockRow, SourceRank};
use crate::wire::agent_v1::Inventory;
use crate::wire::body::ROWS_MAX;

const MINUTE_MICROS: i64 = 60 * MICROS_PER_SECOND;
/// Between two batches of what comes in now, where nothing changes.
const SEND_EVERY_MICROS: i64 = 300 * MICROS_PER_SECOND;
/// Between two batches where something does.
const CHANGE_EVERY_MICROS: i64 = 15 * MICROS_PER_SECOND;
/// Between two looks at what the node has.
const INVENTORY_EVERY_MICROS: i64 = 600 * MICROS_PER_SECOND;
/// Between two looks at whether there is something to send.
const LOOK: Duration = Duration::from_millis(200);
/// How long the last batch may take when the agent is asked to stop.
const STOP_TRIES: u32 = 3;

/// How an agent works.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The agent's folder: its identity, and the spool in it.
    pub folder: PathBuf,
    /// Bytes that the spool may take.
    pub budget: u64,
    /// How long acknowledged batches are kept, in microseconds.
    pub keep_acknowledged_micros: i64,
    /// Between two looks at the devices.
    pub sample_every: Duration,
    /// Windows of one batch at most.
    pub batch_windows: usize,
}

/// Why an agent cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// Its identity.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// Its folder.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// Its spool.
    #[error("{}", chain(.0))]
    Spool(#[from] SpoolError),
    /// Its devices.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// It is not enrolled.
    #[error("this node is not enrolled: give an enrolment token with --enrol")]
    NotEnrolled,
    /// A thread of it ended before its time.
    #[error("a part of the agent failed")]
    Failed,
}

fn chain(error: &dyn std::error::Error) -> String {
    let cause = error.source().map(|cause| format!(": {}", chain(cause)));
    format!("{error}{}", cause.unwrap_or_default())
}

/// What an agent is made of.
pub struct Agent<S, U> {
    /// How it works.
    pub settings: Settings,
    /// Who it is.
    pub identity: Identity,
    /// The service's time, as far as it is known.
    pub clock: ServerClock,
    /// The devices.
    pub source: S,
    /// The way to the service.
    pub upstream: U,
    /// The machine.
    pub machine: Arc<dyn Machine>,
    /// Set by whoever wants it to end.
    pub stop: Arc<AtomicBool>,
}

impl<S, U> std::fmt::Debug for Agent<S, U> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Agent").field("settings", &self.settings).finish_non_exhaustive()
    }
}

/// What the sampler tells the sender.
#[derive(Debug, Default)]
struct Notes {
    /// The newest inventory, and when it was taken, until the sender has it.
    inventory: Mutex<Option<(Inventory, Option<Reading>)>>,
    /// The source was asked what there is; what it found is in `inventory`.
    has_looked: AtomicBool,
    /// A holder or a layout changed.
    has_changed: AtomicBool,
    /// Nothing more will come.
    is_over: AtomicBool,
    /// The sender failed for good.
    has_failed: AtomicBool,
}

/// A source that can play a script faster than time passes.
pub trait Replay: Source {
    /// The next instant before `end` at which a holder or a layout changes.
    fn next_change(&self, after: Instant, end: Instant) -> Option<Instant>;
}

impl Replay for ScriptedSource {
    fn next_change(&self, after: Instant, end: Instant) -> Option<Instant> {
        self.next_change_before(after, end)
    }
}

impl<S: Replay, U: Upstream + 'static> Agent<S, U> {
    /// Plays a part of its source instead of what is now, until it is all sent; windows are cut each `cut`. Returns what
    /// was sent.
    ///
    /// # Errors
    /// [`AgentError`]. Whoever starts it again loses nothing that was kept.
    pub fn replay(self, span: Span, cut: Duration) -> Result<Counts, AgentError> {
        let cut = i64::try_from(cut.as_micros()).unwrap_or(MINUTE_MICROS);
        self.work(true, |sampler, last_edge| sampler.replay((span, cut), last_edge))
    }
}

impl<S: Source, U: Upstream + 'static> Agent<S, U> {
    /// Works until it is told to stop. Returns what was sent.
    ///
    /// # Errors
    /// [`AgentError`]. Whoever starts it again loses nothing that was kept.
    pub fn run(self) -> Result<Counts, AgentError> {
        self.work(false, Sampler::live)
    }

    fn work(
        mut self,
        is_replay: bool,
        look: impl FnOnce(Sampler<S>, Instant) -> Result<(), AgentError>,
    ) -> Result<Counts, AgentError> {
        let node = Name::parse(&self.identity.node).map_err(|_| AgentError::NotEnrolled)?;
        let sender = self.identity.agent.as_deref().and_then(|id| Name::parse(id).ok());
        let sender = sender.ok_or(AgentError::NotEnrolled)?;
        let disk = RealDisk::open(&self.settings.folder.join("spool"))?;
        let spool_settings = spool::Settings {
            scope: ScopeName { kind: ScopeKind::Node, name: node },
            source: usage::Source { rank: SourceRank::HostAgent, sender },
            budget: self.settings.budget,
            keep_acknowledged_micros: self.settings.keep_acknowledged_micros,
        };
        let machine = Arc::clone(&self.machine);
        let ids = move || {
            let mut bytes = [0; 16];
            if machine.random(&mut bytes).is_err() {
                // A stream's id has to be unlike any other's; without random bytes the clocks have to do.
                let Reading { monotonic_nanos, wall_micros, .. } = machine.reading();
                bytes = (i128::from(monotonic_nanos) << 64 | i128::from(wall_micros)).to_be_bytes();
            }
            uuid::Builder::from_random_bytes(bytes).into_uuid()
        };
        let spool = Spool::open(disk, spool_settings, ids)?;
        self.source.restore(spool.source_state());
        let last_edge = spool.last_edge().unwrap_or(Instant::MIN);
        let mut clock = self.clock.clone();
        clock.not_before(last_edge, &self.machine.reading());
        let shared = Arc::new(Shared { spool: Mutex::new(spool), clock: Mutex::new(clock) });
        let upstream = self.upstream;
        let sending = Sender::new(Arc::clone(&shared), upstream, Arc::clone(&self.machine), &self.identity);
        let sending = sending.ok_or(AgentError::NotEnrolled)?;
        let notes = Arc::new(Notes::default());
        let sampler = Sampler {
            settings: self.settings.clone(),
            identity: self.identity,
            source: self.source,
            machine: Arc::clone(&self.machine),
            stop: Arc::clone(&self.stop),
            shared: Arc::clone(&shared),
            notes: Arc::clone(&notes),
            devices: None,
        };
        let delivery = Delivery {
            sender: sending,
            limits: BatchLimits { windows_max: self.settings.batch_windows.max(1), ..LIMITS },
            is_replay,
            phase: i64::try_from(random_phase(&sampler.identity)).unwrap_or_default(),
            machine: self.machine,
            stop: self.stop,
            shared,
            notes: Arc::clone(&notes),
        };
        let thread = std::thread::Builder::new().name("sender".to_owned()).spawn(move || delivery.run());
        let thread = thread.map_err(|_| AgentError::Failed)?;
        let sampled = look(sampler, last_edge);
        notes.is_over.store(true, Ordering::Release);
        let sent = thread.join().map_err(|_| AgentError::Failed)?;
        sampled?;
        sent
    }
}

/// Where in the five minutes this agent sends: a fleet's agents are spread over them.
fn random_phase(identity: &Identity) -> u64 {
    let id = Uuid::parse_str(identity.agent.as_deref().unwrap_or_default()).unwrap_or_default();
    let (high, low) = id.as_u64_pair();
    (high ^ low) % SEND_EVERY_MICROS.unsigned_abs()
}

/// Looks at the devices, and keeps what it saw.
struct Sampler<S> {
    settings: Settings,
    identity: Identity,
    source: S,
    machine: Arc<dyn Machine>,
    stop: Arc<AtomicBool>,
    shared: Arc<Shared<RealDisk>>,
    notes: Arc<Notes>,
    /// What the node had at the last look.
    devices: Option<super::source::Inventory>,
}

struct Stamped<'a, S> {
    source: &'a S,
    /// The clock that placed the samples, and what it was read from.
    clocks: Option<(&'a ServerClock, &'a Reading)>,
}

impl<S: Source> Stamp for Stamped<'_, S> {
    fn clocks(&self, span: Span) -> Option<ClockRow> {
        self.clocks.map(|(clock, reading)| clock.evidence(span, reading))
    }

    fn source_state(&self) -> Vec<u8> {
        self.source.state()
    }
}

impl<S: Source> Sampler<S> {
    fn is_told_to_stop(&self) -> bool {
        self.stop.load(Ordering::Acquire) || self.notes.has_failed.load(Ordering::Acquire)
    }

    fn live(mut self, last_edge: Instant) -> Result<(), AgentError> {
        let mut windower = Windower::new(last_edge);
        let mut sample = Sample::default();
        let mut looked = Instant::MIN;
        // By which windows are placed, from one look to the next.
        let mut clock = locked(&self.shared.clock).clone();
        while !self.is_told_to_stop() {
            let reading = self.machine.reading();
            let began = reading.monotonic_nanos;
            let newest = locked(&self.shared.clock).clone();
            let off = newest.now(&reading).micros_since(clock.now(&reading));
            if off.saturating_abs() >= OFF_MICROS_MIN {
                let stamp = Stamped { source: &self.source, clocks: Some((&clock, &reading)) };
                let last = windower.close(&stamp);
                self.keep(last.into_iter().collect())?;
                self.shared.retime(&reading)?;
                let edge = locked(&self.shared.spool).last_edge();
                windower = Windower::new(edge.unwrap_or(Instant::MIN));
            }
            clock = newest;
            let at = clock.now(&reading);
            if at.micros_since(looked) >= INVENTORY_EVERY_MICROS || at < looked {
                self.look(at, Some(reading.clone()))?;
                looked = at;
            }
            match self.source.sample(at, &mut sample) {
                Ok(()) => {
                    if self.lacks(&sample) {
                        // The service takes nothing of a device that it was not told of.
                        self.look(at, Some(reading.clone()))?;
                        looked = at;
                    }
                    let stamp = Stamped { source: &self.source, clocks: Some((&clock, &reading)) };
                    let closed = windower.add(at, &sample, &stamp);
                    self.keep(closed)?;
                }
                Err(error) => tracing::warn!("{error}"),
            }
            let took = self.machine.reading().monotonic_nanos.saturating_sub(began);
            let took = Duration::from_nanos(took.unsigned_abs());
            self.machine.sleep(self.settings.sample_every.saturating_sub(took).max(Duration::from_millis(1)));
        }
        let reading = self.machine.reading();
        let stamp = Stamped { source: &self.source, clocks: Some((&clock, &reading)) };
        let last = windower.close(&stamp);
        self.keep(last.into_iter().collect())
    }

    /// Whether a look shows a device that the last inventory did not have.
    fn lacks(&self, sample: &Sample) -> bool {
        let known = self.devices.as_ref().map(|found| found.devices.as_slice()).unwrap_or_default();
        sample.devices.len() > known.len()
            || sample
                .devices
                .iter()
                .any(|look| known.iter().all(|device| device.uuid != look.standing.device))
    }

    fn keep(&self, closed: Vec<Window>) -> Result<(), AgentError> {
        for window in closed {
            let is_cut = window.span.end().micros().rem_euclid(MINUTE_MICROS) != 0;
            for part in window.parts(ROWS_MAX) {
                let mut kept =
                    spool::Window { span: part.span, batch: part.batch, source_state: part.source_state };
                match self.append(&mut kept) {
                    Ok(appended) => {
                        for refusal in appended.refused.iter().take(5) {
                            tracing::error!("a row cannot be sent: {} {}", refusal.pointer, refusal.reason);
                        }
                        if let Some(lost) = appended.lost {
                            tracing::error!(%lost, "a window is lost: {lost}");
                        }
                    }
                    // What the disk could not take now is gone, and unknown; the next window may find room.
                    // So is what begins before the newest edge: the service's time was set back.
                    Err(error @ (SpoolError::Io { .. } | SpoolError::NotAfter { .. })) => {
                        tracing::error!("a window is lost: {}", chain(&error))
                    }
                    Err(error) => return Err(error.into()),
                }
            }
            if is_cut {
                self.notes.has_changed.store(true, Ordering::Release);
            }
        }
        Ok(())
    }

    /// Keeps a window, where the time as it is known now puts it.
    fn append(&self, window: &mut spool::Window) -> Result<spool::Appended, SpoolError> {
        let mut spool = locked(&self.shared.spool);
        let clock = locked(&self.shared.clock);
        let boot = window.batch.clocks.last().map(|row| row.boot.clone());
        let known = boot.and_then(|boot| clock.offset(&boot).map(|offset| (boot, offset)));
        let off = known.and_then(|(boot, offset)| spool::misplaced_by(&window.batch, &boot, offset));
        drop(clock);
        if let Some(off) = off {
            spool::shift(&mut window.batch, off);
            window.span = spool::shifted(window.span, off);
        }
        spool.append(window)
    }

    /// Looks at what the node has, and has it told where it is new.
    fn look(&mut self, at: Instant, reading: Option<Reading>) -> Result<(), AgentError> {
        self.take_inventory(at, reading)?;
        self.notes.has_looked.store(true, Ordering::Release);
        Ok(())
    }

    fn take_inventory(&mut self, at: Instant, reading: Option<Reading>) -> Result<(), AgentError> {
        let found = match self.source.inventory() {
            Ok(found) => found,
            Err(error) => {
                tracing::warn!("{error}");
                return Ok(());
            }
        };
        if self.devices.as_ref() == Some(&found) {
            return Ok(());
        }
        // A counter that follows the time is above the last also where the agent's folder was set back.
        let now = locked(&self.shared.clock).now(&self.machine.reading()).micros();
        let counter = now.max(self.identity.inventory_counter.saturating_add(1));
        self.identity.inventory_counter = counter;
        self.identity.clock = locked(&self.shared.clock).state();
        self.identity.save(&self.settings.folder)?;
        *locked(&self.notes.inventory) = Some((inventory_message(&found, counter, at), reading));
        self.devices = Some(found);
        Ok(())
    }
}

impl<S: Replay> Sampler<S> {
    /// Plays a script: it is looked at where something changes, and where windows are cut.
    fn replay(mut self, (span, cut): (Span, i64), last_edge: Instant) -> Result<(), AgentError> {
        let mut windower = Windower::with_cuts(last_edge, cut.saturating_mul(2), cut);
        let mut sample = Sample::default();
        let mut at = span.start().max(last_edge);
        self.look(span.start(), None)?;
        while at <= span.end() && !self.is_told_to_stop() {
            self.source.sample(at, &mut sample)?;
            let stamp = Stamped { source: &self.source, clocks: None };
            let closed = windower.add(at, &sample, &stamp);
            self.keep(closed)?;
            if at == span.end() {
                break;
            }
            let edge = at.micros().div_euclid(cut).saturating_add(1).saturating_mul(cut);
            let next = Instant::from_micros(edge).min(span.end());
            at = self.source.next_change(at, next).unwrap_or(next);
            // What is not sent yet must not push out what was played before: there is no hurry.
            // What is acknowledged and only kept goes by itself where room is needed.
            while locked(&self.shared.spool).pressure().is_half_unsent() && !self.is_told_to_stop() {
                self.machine.sleep(Duration::from_millis(20));
            }
        }
        let stamp = Stamped { source: &self.source, clocks: None };
        let last = windower.close(&stamp);
        self.keep(last.into_iter().collect())
    }
}

/// Sends what the sampler keeps.
struct Delivery<U> {
    sender: Sender<RealDisk, U>,
    limits: BatchLimits,
    is_replay: bool,
    /// Where in the five minutes it sends.
    phase: i64,
    machine: Arc<dyn Machine>,
    stop: Arc<AtomicBool>,
    shared: Arc<Shared<RealDisk>>,
    notes: Arc<Notes>,
}

impl<U: Upstream> Delivery<U> {
    fn run(mut self) -> Result<Counts, AgentError> {
        let ended = self.deliver();
        if ended.is_err() {
            self.notes.has_failed.store(true, Ordering::Release);
        }
        ended.map(|()| self.sender.counts)
    }

    fn deliver(&mut self) -> Result<(), AgentError> {
        // Pauses are of the monotonic clock: an answer may move the service's time by a year, either way.
        let (mut slot, mut sent, mut is_due) = (i64::MIN, i64::MIN, false);
        let (mut not_before, mut tries) = (i64::MIN, 0);
        loop {
            // What is on the disk may be of devices that the process before this one had not told of yet, and rows of such
            // are refused for good: the first thing that is sent is what there is.
            let is_over = self.notes.is_over.load(Ordering::Acquire);
            if !self.notes.has_looked.load(Ordering::Acquire) {
                if is_over {
                    return Ok(());
                }
                self.machine.sleep(LOOK);
                continue;
            }
            if let Some((inventory, at)) = locked(&self.notes.inventory).take() {
                self.sender.put_inventory(inventory, at);
            }
            let reading = self.machine.reading();
            let elapsed = reading.monotonic_nanos.div_euclid(NANOS_PER_MICRO);
            let now = locked(&self.shared.clock).now(&reading);
            let turn = now.micros().saturating_sub(self.phase).div_euclid(SEND_EVERY_MICROS);
            if turn != slot {
                // At a start there is nothing yet that would be due.
                is_due |= slot != i64::MIN;
                slot = turn;
            }
            if elapsed.saturating_sub(sent) >= CHANGE_EVERY_MICROS
                && self.notes.has_changed.swap(false, Ordering::AcqRel)
            {
                is_due |= !self.is_replay;
            }
            if elapsed < not_before && !(is_over && tries == 0) {
                if is_over && !self.is_replay {
                    return Ok(());
                }
                self.machine.sleep(LOOK);
                if self.stop.load(Ordering::Acquire) && is_over {
                    return Ok(());
                }
                continue;
            }
            match self.sender.step(self.limits, is_due || is_over)? {
                Step::Sent => tries = 0,
                Step::Idle => {
                    if is_due {
                        sent = elapsed;
                    }
                    is_due = false;
                    if is_over {
                        return Ok(());
                    }
                    self.machine.sleep(LOOK);
                }
                Step::Pause(micros) => {
                    tries += 1;
                    not_before = elapsed.saturating_add(micros);
                    // What is left is on the disk, and the next start sends it.
                    if is_over
                        && (self.stop.load(Ordering::Acquire) || !self.is_replay)
                        && tries >= STOP_TRIES
                    {
                        return Ok(());
                    }
                }
            }
        }
    }
}

/// A pause that is different for each agent, so that a fleet that starts as one does not ask as one.
#[must_use]
pub fn start_pause(machine: &dyn Machine) -> Duration {
    Duration::from_millis(random_u64(machine) % 1_000)
}
