//! An agent whose parts a test drives by hand, and what was reported beside what was played.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use fatia::agent::clock::{Reading, ServerClock};
use fatia::agent::identity::Identity;
use fatia::agent::machine::Machine;
use fatia::agent::scripted::ScriptedSource;
use fatia::agent::sender::{self, LIMITS, Sender, Shared, Step, inventory_message};
use fatia::agent::source::{Sample, Source as Looked};
use fatia::agent::spool::{self, BatchLimits, Lane, RealDisk, Spool};
use fatia::agent::upstream::{Http, Reply, Request, Unreachable, Upstream};
use fatia::agent::window::{Stamp, Window, Windower};
use fatia::domain::ids::{Name, ScopeKind, ScopeName};
use fatia::domain::period::Span;
use fatia::domain::units::Instant;
use fatia::domain::usage::{Batch, ClockRow, Evidence, Slice, Source, SourceRank, merged};
use fatia::wire::body::{self, ROWS_MAX};
use fatia::wire::usage_v1;
use serde_json::json;
use tempfile::TempDir;
use uuid::Uuid;

use crate::support::agent::enrolment;
use crate::support::api::{Api, install_crypto};
use crate::support::platform::{TestClock, TestPlatform, name};

pub const SECOND: i64 = 1_000_000;
pub const MINUTE: i64 = 60 * SECOND;

pub const SMALL: &str = include_str!("../../fixtures/agent/small.toml");
pub const DENSE: &str = include_str!("../../fixtures/agent/dense.toml");

/// Where a client that blocks may be made, used and dropped: beside the runtime.
pub fn blocking<T>(work: impl FnOnce() -> T) -> T {
    tokio::task::block_in_place(work)
}

/// A machine whose clocks its test sets. Who sleeps on it makes time pass.
///
/// Of a whole agent, the sampler alone does, and only while the sender sleeps: so nothing happens during a request, and
/// the same happens each time.
pub struct TestMachine {
    clocks: Mutex<Reading>,
    /// The service's clock, where time passes for both.
    service: Option<Arc<TestClock>>,
    chance: AtomicU64,
    turns: Mutex<Turns>,
    turned: Condvar,
    alarms: Mutex<Vec<Alarm>>,
}

/// Whose turn it is.
#[derive(Default)]
struct Turns {
    passed: u64,
    is_sender_asleep: bool,
}

struct Alarm {
    monotonic_nanos: i64,
    work: Box<dyn FnOnce() + Send>,
}

/// Longer than any request takes; and what a sender that has nothing to wait for waits.
const TURN_MAX: Duration = Duration::from_secs(30);
const TURN_SENDER: Duration = Duration::from_millis(50);

impl TestMachine {
    /// A machine of which both clocks are right at an instant.
    pub fn at(instant: Instant, service: Option<Arc<TestClock>>) -> Arc<TestMachine> {
        let (boot, wall_micros) = (Name::fixed("boot-0"), instant.micros());
        let clocks = Mutex::new(Reading { boot, monotonic_nanos: 100 * SECOND * 1_000, wall_micros });
        Arc::new(TestMachine {
            clocks,
            service,
            chance: AtomicU64::new(1),
            turns: Mutex::default(),
            turned: Condvar::new(),
            alarms: Mutex::default(),
        })
    }

    /// Has something done when so much time has passed.
    pub fn after(&self, micros: i64, work: impl FnOnce() + Send + 'static) {
        let monotonic_nanos = self.reading().monotonic_nanos + micros * 1_000;
        self.alarms.lock().unwrap().push(Alarm { monotonic_nanos, work: Box::new(work) });
    }

    fn ring(&self) {
        let now = self.reading().monotonic_nanos;
        let mut alarms = self.alarms.lock().unwrap();
        let due: Vec<Alarm> = alarms.extract_if(.., |alarm| alarm.monotonic_nanos <= now).collect();
        drop(alarms);
        due.into_iter().for_each(|alarm| (alarm.work)());
    }

    pub fn pass(&self, micros: i64) {
        let mut clocks = self.clocks.lock().unwrap();
        clocks.monotonic_nanos += micros * 1_000;
        clocks.wall_micros += micros;
        if let Some(service) = &self.service {
            service.pass(micros);
        }
    }

    /// Sets the wall clock by so much.
    pub fn step_wall(&self, micros: i64) {
        self.clocks.lock().unwrap().wall_micros += micros;
    }

    /// Begins a new run of the machine, with a wall clock that is set by so much.
    pub fn reboot(&self, boot: &'static str, micros: i64) {
        let mut clocks = self.clocks.lock().unwrap();
        clocks.boot = Name::fixed(boot);
        clocks.monotonic_nanos = 3 * SECOND * 1_000;
        clocks.wall_micros += micros;
    }
}

impl Machine for TestMachine {
    fn reading(&self) -> Reading {
        self.clocks.lock().unwrap().clone()
    }

    fn sleep(&self, time: Duration) {
        let mut turns = self.turns.lock().unwrap();
        if std::thread::current().name() == Some("sender") {
            let passed = turns.passed;
            turns.is_sender_asleep = true;
            self.turned.notify_all();
            turns =
                self.turned.wait_timeout_while(turns, TURN_SENDER, |turns| turns.passed == passed).unwrap().0;
            turns.is_sender_asleep = false;
            return;
        }
        turns = self.turned.wait_timeout_while(turns, TURN_MAX, |turns| !turns.is_sender_asleep).unwrap().0;
        assert!(turns.is_sender_asleep, "the sender is at work, or gone");
        self.pass(i64::try_from(time.as_micros()).unwrap());
        self.ring();
        turns.passed += 1;
        turns.is_sender_asleep = false;
        self.turned.notify_all();
    }

    fn random(&self, bytes: &mut [u8]) -> Result<(), String> {
        for chunk in bytes.chunks_mut(8) {
            let number = self.chance.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let mixed = (number ^ (number >> 31)).to_le_bytes();
            chunk.copy_from_slice(&mixed[..chunk.len()]);
        }
        Ok(())
    }
}

/// A way to a service that a test has its hand in.
pub struct Way<F>(pub F);

impl<F: FnMut(&Request<'_>) -> Result<Reply, Unreachable> + Send> Upstream for Way<F> {
    fn ask(&mut self, request: &Request<'_>) -> Result<Reply, Unreachable> {
        (self.0)(request)
    }
}

pub fn away() -> Result<Reply, Unreachable> {
    Err(Unreachable("the test cut the line".to_owned()))
}

/// The way to a test's service.
pub fn http(api: &Api) -> Http {
    install_crypto();
    blocking(|| Http::new(&api.url(""), None)).expect("a good address")
}

/// A node with an agent that is enrolled.
pub struct Node {
    home: TempDir,
    pub machine: Arc<TestMachine>,
    pub identity: Identity,
    pub script: String,
    pub budget: u64,
    pub keep_micros: i64,
}

impl Node {
    /// Enrols the node that a script plays, which may say what it found since the first of June.
    pub async fn enrolled(api: &Api, machine: Arc<TestMachine>, node: &str, script: &str) -> Node {
        let body = json!({ "nodes": node, "since": "2026-06-01T00:00:00Z" });
        let secret = enrolment(api, &body).await;
        let mut identity = Identity::make(&*machine, &api.url(""), &name(node)).expect("random bytes");
        let mut upstream = http(api);
        let mut clock = ServerClock::new();
        blocking(|| sender::enrol(&mut upstream, &*machine, &mut identity, &mut clock, &secret))
            .unwrap_or_else(|error| panic!("{error}"));
        Node::of(machine, identity, script)
    }

    pub fn of(machine: Arc<TestMachine>, identity: Identity, script: &str) -> Node {
        let home = tempfile::tempdir().expect("a folder to test in");
        identity.save(home.path()).expect("the folder is ours");
        let (budget, keep_micros) = (spool::BUDGET_BYTES, i64::MAX / 4);
        Node { home, machine, identity, script: script.to_owned(), budget, keep_micros }
    }

    pub fn folder(&self) -> &Path {
        self.home.path()
    }

    pub fn name(&self) -> Name {
        name(&self.identity.node)
    }

    pub fn scope(&self) -> ScopeName {
        ScopeName { kind: ScopeKind::Node, name: self.name() }
    }

    /// The agent as a process: what its folder holds is where it goes on.
    pub fn start<U: Upstream>(&self, upstream: U) -> Running<U> {
        self.start_in(self.folder(), upstream)
    }

    /// The same on another copy of its folder.
    pub fn start_in<U: Upstream>(&self, folder: &Path, upstream: U) -> Running<U> {
        let source = ScriptedSource::open(&self.script, &self.name()).expect("a good script");
        self.start_with(folder, source, upstream)
    }

    /// The same with devices of another kind than the script's.
    pub fn start_with<U: Upstream, S: Looked>(
        &self,
        folder: &Path,
        mut source: S,
        upstream: U,
    ) -> Running<U, S> {
        let spool = self.spool(folder);
        let edge = spool.last_edge().unwrap_or(Instant::MIN);
        source.restore(spool.source_state());
        let clock = Mutex::new(ServerClock::restored(&self.identity.clock));
        let shared = Arc::new(Shared { spool: Mutex::new(spool), clock });
        let machine: Arc<dyn Machine> = self.machine.clone();
        let sender = Sender::new(Arc::clone(&shared), upstream, machine, &self.identity);
        Running {
            sender: sender.expect("it is enrolled"),
            windower: Windower::with_silence_max(edge, 2 * MINUTE),
            machine: Arc::clone(&self.machine),
            shared,
            source,
            sample: Sample::default(),
            limits: LIMITS,
            stamped_as: None,
        }
    }

    /// The spool in a copy of its folder.
    pub fn spool(&self, folder: &Path) -> Spool<RealDisk> {
        let agent = self.identity.agent.as_deref().expect("it is enrolled");
        let settings = spool::Settings {
            scope: self.scope(),
            source: Source { rank: SourceRank::HostAgent, sender: name(agent) },
            budget: self.budget,
            keep_acknowledged_micros: self.keep_micros,
        };
        let machine = Arc::clone(&self.machine);
        let ids = move || {
            let mut bytes = [0; 16];
            machine.random(&mut bytes).expect("always");
            Uuid::from_bytes(bytes)
        };
        let disk = RealDisk::open(&folder.join("spool")).expect("nobody else has it");
        Spool::open(disk, settings, ids).expect("a spool opens")
    }

    /// A copy of the agent's folder, as a snapshot of its disk is.
    pub fn snapshot(&self) -> TempDir {
        let copy = tempfile::tempdir().expect("a folder to test in");
        copy_folder(self.folder(), copy.path());
        copy
    }
}

/// Copies files and folders.
pub fn copy_folder(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("the folder is ours");
    for entry in std::fs::read_dir(from).expect("it is there") {
        let entry = entry.expect("it can be read");
        let target: PathBuf = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_folder(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).expect("the folder is ours");
        }
    }
}

/// An agent at work, whose every step is a test's.
pub struct Running<U, S = ScriptedSource> {
    pub sender: Sender<RealDisk, U>,
    pub shared: Arc<Shared<RealDisk>>,
    pub limits: BatchLimits,
    /// Of which run of a machine windows say what the clocks showed, as live ones do.
    pub stamped_as: Option<&'static str>,
    machine: Arc<TestMachine>,
    pub source: S,
    windower: Windower,
    sample: Sample,
}

struct Stamped<'a, S> {
    source: &'a S,
    clocks: Option<(ServerClock, Reading)>,
}

impl<S: Looked> Stamp for Stamped<'_, S> {
    fn clocks(&self, span: Span) -> Option<ClockRow> {
        self.clocks.as_ref().map(|(clock, reading)| clock.evidence(span, reading))
    }

    fn source_state(&self) -> Vec<u8> {
        self.source.state()
    }
}

impl<U: Upstream> Running<U> {
    /// Plays a part of the script into the spool, where time does not count, and closes the last window.
    pub fn play(&mut self, span: Span) {
        let mut at = span.start();
        loop {
            self.see(at);
            if at == span.end() {
                break;
            }
            let minute = Instant::from_micros((at.micros().div_euclid(MINUTE) + 1) * MINUTE);
            let next = minute.min(span.end());
            at = self.source.next_change_before(at, next).unwrap_or(next);
        }
        self.close();
    }
}

impl<U: Upstream, S: Looked> Running<U, S> {
    /// Has the inventory sent, as found at an instant of the script.
    pub fn look(&mut self, at: Instant) {
        let found = self.source.inventory().expect("it can be listed");
        self.sender.put_inventory(inventory_message(&found, at.micros(), at), None);
    }

    pub fn see(&mut self, at: Instant) {
        self.source.sample(at, &mut self.sample).expect("it can be seen");
        let stamp = Stamped { source: &self.source, clocks: self.clocks() };
        let closed = self.windower.add(at, &self.sample, &stamp);
        self.keep(closed);
    }

    pub fn close(&mut self) {
        let stamp = Stamped { source: &self.source, clocks: self.clocks() };
        let last = self.windower.close(&stamp);
        self.keep(last.into_iter().collect());
    }

    fn clocks(&self) -> Option<(ServerClock, Reading)> {
        let clock = self.shared.clock.lock().unwrap().clone();
        let boot = Name::fixed(self.stamped_as?);
        Some((clock, Reading { boot, ..self.machine.reading() }))
    }

    fn keep(&self, closed: Vec<Window>) {
        for part in closed.into_iter().flat_map(|window| window.parts(ROWS_MAX)) {
            let kept = spool::Window { span: part.span, batch: part.batch, source_state: part.source_state };
            let appended = self.shared.spool.lock().unwrap().append(&kept).expect("the disk takes it");
            assert_eq!((appended.refused.len(), appended.lost), (0, None));
        }
    }

    pub fn step(&mut self) -> Step {
        blocking(|| self.sender.step(self.limits, true)).expect("the disk is well")
    }

    /// Sends until nothing is left; pauses pass at once. Returns how many steps came to something.
    pub fn drain(&mut self) -> u32 {
        let (mut sent, mut pauses) = (0, 0);
        loop {
            match self.step() {
                Step::Idle => return sent,
                Step::Sent => (sent, pauses) = (sent + 1, 0),
                Step::Pause(micros) => {
                    pauses += 1;
                    assert!(
                        pauses < 20,
                        "it gets nowhere: {:?} {:?}",
                        self.sender.counts,
                        self.sender.trouble
                    );
                    self.machine.pass(micros);
                }
            }
        }
    }

    /// What the spool holds in batches, acknowledged or not.
    pub fn kept(&self, scope: &ScopeName) -> Reported {
        kept(&mut self.shared.spool.lock().unwrap(), scope)
    }
}

/// What a spool holds in batches, acknowledged or not.
pub fn kept(spool: &mut Spool<RealDisk>, scope: &ScopeName) -> Reported {
    let mut all = Reported::default();
    for lane in Lane::ALL {
        for (span, body) in spool.kept(lane).expect("the disk is well") {
            if let Some(body) = body {
                all.read(scope, span, body);
            }
        }
    }
    all
}

/// Who held what, when: by device, slice and evidence.
pub type Held = BTreeMap<String, Vec<Span>>;

/// What batches say.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reported {
    /// Each body once.
    pub bodies: BTreeMap<[u8; 32], u32>,
    /// Each row's span, in any order.
    rows: Held,
    /// Active nanoseconds and byte-seconds, by slice and evidence.
    pub measured: BTreeMap<String, (i64, i64)>,
    /// What was said to be lost.
    pub gaps: Vec<Span>,
}

fn key(slice: &Slice, seen: Option<&Evidence>) -> String {
    let id = slice.id.as_ref().map_or("", Name::as_str);
    let seen: Vec<String> = seen
        .into_iter()
        .flat_map(Evidence::iter)
        .map(|(field, value)| format!("{}={value}", field.word()))
        .collect();
    format!("{} {} {id} {}", slice.device, slice.path(), seen.join(" "))
}

impl Reported {
    pub fn read(&mut self, scope: &ScopeName, span: Span, packed: Vec<u8>) {
        let message = body::unpack(&packed).expect("a body unpacks");
        let read = usage_v1::decode_from(&message, scope, span, usage_v1::Sender::Reporter);
        let Batch { slices, evidence, rows, usage, gaps, .. } = read.expect("a good message").batch;
        *self.bodies.entry(body::hash(&packed)).or_default() += 1;
        for row in rows {
            let key = key(&slices[row.slice], Some(&evidence[row.evidence]));
            self.rows.entry(key).or_default().push(row.span);
        }
        for row in usage {
            let key = key(&slices[row.slice], row.evidence.map(|at| &evidence[at]));
            let sum = self.measured.entry(key).or_default();
            sum.0 += row.active_nanos.unwrap_or_default();
            sum.1 += row.memory_byte_seconds.unwrap_or_default();
        }
        self.gaps.extend(gaps.into_iter().map(|gap| gap.span));
    }

    pub fn held(&self) -> Held {
        let all = self.rows.iter().map(|(key, spans)| (key.clone(), merged(spans.iter().copied())));
        all.filter(|(_, spans)| !spans.is_empty()).collect()
    }

    /// Time that is said more than once of one holder.
    pub fn doubled_micros(&self) -> i64 {
        let length =
            |spans: &[Span]| spans.iter().map(|span| span.end().micros_since(span.start())).sum::<i64>();
        self.rows.values().map(|spans| length(spans) - length(&merged(spans.iter().copied()))).sum()
    }
}

/// What the journal holds of a node.
pub async fn journal(platform: &TestPlatform, scope: &ScopeName) -> Reported {
    let mut raw = platform.raw().await;
    let sql = "SELECT b.body, b.from_us, b.to_us FROM usage_batch b JOIN scope s ON s.scope_id = b.scope_id \
               WHERE b.set_aside IS NULL AND s.name = '";
    let sql = format!("{sql}{}' ORDER BY b.from_us", scope.name);
    let mut all = Reported::default();
    for (packed, from, to) in raw.rows::<(Vec<u8>, i64, i64)>(&sql).await {
        all.read(scope, Span::clamped(Instant::from_micros(from), Instant::from_micros(to)), packed);
    }
    let told = format!(
        "SELECT g.from_us, g.to_us FROM usage_gap g JOIN scope s ON s.scope_id = g.scope_id WHERE s.name = '{}'",
        scope.name
    );
    for (from, to) in raw.rows::<(i64, i64)>(&told).await {
        all.gaps.push(Span::clamped(Instant::from_micros(from), Instant::from_micros(to)));
    }
    all
}

/// What a script says of a span, read without windows, spool or messages.
pub fn scripted(script: &str, node: &Name, span: Span) -> Held {
    let mut source = ScriptedSource::open(script, node).expect("a good script");
    let (mut held, mut sample, mut at) = (Held::new(), Sample::default(), span.start());
    while at < span.end() {
        let next = source.next_change_before(at, span.end()).unwrap_or(span.end());
        source.sample(at, &mut sample).expect("a script can be seen");
        for standing in sample.devices.iter().map(|look| &look.standing).filter(|each| each.sees_holders) {
            for holder in &standing.holders {
                let key = key(&standing.slices[holder.slice], Some(&holder.evidence));
                held.entry(key).or_default().push(Span::clamped(at, next));
            }
        }
        at = next;
    }
    held.values_mut().for_each(|spans| *spans = merged(spans.iter().copied()));
    held
}

/// What a script measures of a span, looked at once in so long.
pub fn measured(script: &str, node: &Name, span: Span, every: i64) -> BTreeMap<String, (i64, i64)> {
    let mut source = ScriptedSource::open(script, node).expect("a good script");
    let (mut sums, mut sample, mut at) = (BTreeMap::new(), Sample::default(), span.start());
    loop {
        source.sample(at, &mut sample).expect("a script can be seen");
        for look in sample.devices.iter().filter(|_| at > span.start()) {
            let of = &look.measured_of;
            let old = of.meters.iter().zip(&look.amounts).map(|(meter, amount)| {
                let seen = meter.holder.map(|holder| &of.holders[holder].evidence);
                (key(&of.slices[meter.slice], seen), *amount)
            });
            let new =
                look.newcomers.iter().map(|each| (key(&each.slice, each.evidence.as_ref()), each.amount));
            for (key, amount) in old.chain(new) {
                let sum: &mut (i64, i64) = sums.entry(key).or_default();
                sum.0 += amount.active_nanos.unwrap_or_default();
                sum.1 += amount.memory_byte_seconds.unwrap_or_default();
            }
        }
        if at == span.end() {
            return sums;
        }
        at = at.plus_micros(every).min(span.end());
    }
}

/// What was held, without some spans.
pub fn without(held: &Held, gaps: &[Span]) -> Held {
    let gaps = merged(gaps.iter().copied());
    let mut left = Held::new();
    for (key, spans) in held {
        let mut pieces = Vec::new();
        for span in spans {
            let mut from = span.start();
            for gap in gaps.iter().filter(|gap| gap.meets(*span)) {
                pieces.push(Span::clamped(from, gap.start().max(from)));
                from = from.max(gap.end().min(span.end()));
            }
            pieces.push(Span::clamped(from, span.end().max(from)));
        }
        let pieces = merged(pieces);
        if !pieces.is_empty() {
            left.insert(key.clone(), pieces);
        }
    }
    left
}

/// Fails and shows the first differences.
#[track_caller]
pub fn assert_same_held(found: &Held, want: &Held) {
    let show =
        |spans: &Vec<Span>| spans.iter().take(4).map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let mut differences = Vec::new();
    for key in found.keys().chain(want.keys().filter(|key| !found.contains_key(*key))) {
        let (found, want) =
            (found.get(key).cloned().unwrap_or_default(), want.get(key).cloned().unwrap_or_default());
        if found != want {
            let first =
                found.iter().zip(&want).position(|(a, b)| a != b).unwrap_or(found.len().min(want.len()));
            let (found, want) = (found[first..].to_vec(), want[first..].to_vec());
            differences.push(format!("{key}: found {} …, want {} …", show(&found), show(&want)));
        }
    }
    differences.truncate(6);
    assert!(differences.is_empty(), "{differences:#?}");
    assert!(!want.is_empty(), "there is something to compare");
}

/// The time that holders held together, in microseconds.
pub fn total_micros(held: &Held) -> i64 {
    held.values().flatten().map(|span| span.end().micros_since(span.start())).sum()
}

/// The names in a report of workloads, with their hours.
pub async fn hours(platform: &TestPlatform, dimensions: &str) -> BTreeMap<String, String> {
    let report = platform.costs("06", dimensions).await.unwrap_or_else(|error| panic!("{error}"));
    let groups = report.groups.iter();
    groups.map(|group| (group.values.join(" "), group.figures.gpu_hours.to_string())).collect()
}
