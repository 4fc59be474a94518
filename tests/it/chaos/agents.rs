//! An agent and a service that are killed while the wire between them is cut, and a database that dies: what was
//! measured is in the journal once, whatever happened on the way.
//!
//! Always true here: a script is played to its end; it is read a second time, without windows, spool or messages, and
//! what it says is what the journal has to say.

use std::collections::{BTreeMap, BTreeSet};
use std::future::ready;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fatia::agent::identity::Identity;
use fatia::agent::scripted::ScriptedSource;
use fatia::agent::source::{Sample, Source as _};
use fatia::agent::spool::{self, Lane, RealDisk, Spool};
use fatia::domain::allocation::PartState;
use fatia::domain::ids::{Name, ScopeKind, ScopeName};
use fatia::domain::period::{BillingZone, Span};
use fatia::domain::report::{Dimension, ReportPeriod};
use fatia::domain::units;
use fatia::domain::usage::{Batch, CoverageOf, Evidence, Slice, Source, SourceRank, gaps, merged};
use fatia::services::ctx::Platform;
use fatia::services::{reports, tick};
use fatia::wire::{body, usage_v1};
use sqlx::{Connection as _, PgConnection};
use uuid::Uuid;

use super::fleet::open_file;
use super::relay::Relay;
use super::rig::{
    Process, Program, Random, assert_healthy, counts, derive, now_micros, platform_at, platform_in, until,
};
use super::sqlite::assert_sound;
use crate::support::is_long;
use crate::support::postgres::{Cluster, TestDatabase};

const MINUTE: i64 = 60_000_000;
const DAY: i64 = 1_440 * MINUTE;
const WEEK: i64 = 7 * DAY;

/// A node of 8 GPUs with 7 slices each.
const DENSE: &str = include_str!("../../fixtures/agent/dense.toml");
/// How a script says when it begins: on a Monday.
const SCRIPT_START: &str = "start = \"2026-06-01T00:00:00Z\"";
const NODE: &str = "dense-1";
const DEVICES: i64 = 8;
const SLICES: i64 = 56;

/// Windows of a batch: few, so that there are many batches.
const BATCH_WINDOWS: &str = "5";
/// How long a part of the script may take with all that happens in it.
const PART_PATIENCE: Duration = Duration::from_secs(240);

/// How much is done.
struct Plan {
    minutes: i64,
    /// The agent is killed in each part, and so is the service.
    parts: u32,
    restarts: u32,
    cuts: u32,
    repeats: u32,
}

impl Plan {
    /// In a long run a million minutes of slices; else a tenth.
    ///
    /// Of ten thousand resets, or a thousand, those are of the agent's own connections for whose pauses there is time;
    /// the others are of repeats of its requests, for which it does not wait.
    fn of(restarts: u32) -> Plan {
        let (slice_minutes, cuts) = if is_long() { (1_000_000, 500) } else { (100_000, 10) };
        Plan {
            minutes: slice_minutes / SLICES + 1,
            parts: counts(50),
            restarts,
            cuts,
            repeats: counts(10_000) - cuts,
        }
    }

    fn part_of(&self, all: u32, part: u32) -> u32 {
        all * part / self.parts - all * (part - 1) / self.parts
    }
}

/// A PostgreSQL server of the test's own, and the database on it.
struct Server {
    cluster: Cluster,
    database: TestDatabase,
}

/// What happens to those who run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    AgentIsKilled,
    ServiceIsKilled,
    DatabaseDies,
}

/// The script, as it is played: its first Monday is three weeks ago or a little more.
struct Script {
    text: String,
    start: units::Instant,
}

impl Script {
    fn of(text: &str) -> Script {
        // 1970 began on a Thursday.
        let monday = (now_micros() - 3 * WEEK - 4 * DAY).div_euclid(WEEK) * WEEK + 4 * DAY;
        let start = units::Instant::from_micros(monday);
        assert!(text.contains(SCRIPT_START));
        Script { text: text.replace(SCRIPT_START, &format!("start = \"{start}\"")), start }
    }

    fn dense() -> Script {
        Script::of(DENSE)
    }

    /// One device that somebody else holds each second.
    fn busy() -> Script {
        let device = "[[node.device]]\nmodel = \"NVIDIA L4\"\nmode = \"dedicated\"\n\
                      watts = { idle = 16, busy = 72 }\n";
        let habit = "[[node.habit]]\nwho = { namespace = \"ci\", pod = \"job-{n}\" }\non = [\"0\"]\nbusy = 500\n\
                     bursts = { every = \"2s\", lasts = \"1s\", at_most = \"1s\", chance = 1000 }\n";
        Script::of(&format!("seed = 3\n{SCRIPT_START}\n[[node]]\nname = \"{NODE}\"\n{device}{habit}"))
    }

    fn first(&self, minutes: i64) -> Span {
        Span::clamped(self.start, self.start.plus_micros(minutes * MINUTE))
    }

    fn source(&self) -> ScriptedSource {
        ScriptedSource::open(&self.text, &Name::fixed(NODE)).expect("a good script")
    }

    /// Who holds what, when; and in how many pieces time falls where something changes, or a minute ends.
    fn held(&self, span: Span) -> (Held, u64) {
        let mut source = self.source();
        let (mut held, mut sample, mut at, mut pieces) =
            (Held::default(), Sample::default(), span.start(), 0);
        while at < span.end() {
            let minute = units::Instant::from_micros((at.micros().div_euclid(MINUTE) + 1) * MINUTE);
            let next = minute.min(span.end());
            let next = source.next_change_before(at, next).unwrap_or(next);
            source.sample(at, &mut sample).expect("a script can be seen");
            for look in &sample.devices {
                for holder in &look.standing.holders {
                    held.add(&look.standing.slices[holder.slice], &holder.evidence, Span::clamped(at, next));
                }
            }
            (at, pieces) = (next, pieces + 1);
        }
        (held.joined(), pieces)
    }
}

/// Who held what, when: by slice and evidence.
#[derive(Default)]
struct Held {
    keys: BTreeMap<String, Vec<Span>>,
    /// Time that was said more than once.
    doubled_micros: i64,
}

impl Held {
    fn add(&mut self, slice: &Slice, evidence: &Evidence, span: Span) {
        let id = slice.id.as_ref().map_or("", Name::as_str);
        let seen: String =
            evidence.iter().map(|(field, value)| format!(" {}={value}", field.word())).collect();
        let spans = self.keys.entry(format!("{} {} {id}{seen}", slice.device, slice.path())).or_default();
        match spans.last_mut() {
            Some(last) if span.start() == last.end() => *last = Span::clamped(last.start(), span.end()),
            _ => spans.push(span),
        }
    }

    /// Has what touches in one span, once all was added.
    fn joined(mut self) -> Held {
        let before = self.total_micros();
        self.keys.values_mut().for_each(|spans| *spans = merged(spans.drain(..)));
        self.keys.retain(|_, spans| !spans.is_empty());
        self.doubled_micros = before - self.total_micros();
        self
    }

    fn total_micros(&self) -> i64 {
        self.keys.values().flatten().map(|span| micros(*span)).sum()
    }

    /// The first few keys by which the two differ.
    fn differences(&self, other: &Held) -> Vec<String> {
        let keys: BTreeSet<&String> = self.keys.keys().chain(other.keys.keys()).collect();
        let different = keys.into_iter().filter(|key| self.keys.get(*key) != other.keys.get(*key));
        let shown = |held: &Held, key: &String| held.keys.get(key).map_or(0, Vec::len);
        different
            .take(5)
            .map(|key| format!("{key}: {} spans and {}", shown(self, key), shown(other, key)))
            .collect()
    }
}

/// A row of the journal: stream, number, body, from, to, what was refused, why it was set aside.
type Stored = (String, i64, Vec<u8>, i64, i64, Option<String>, Option<String>);

const JOURNAL: &str = "SELECT stream_id, sequence, body, from_us, to_us, refused, set_aside FROM usage_batch \
                       ORDER BY from_us, to_us, stream_id, sequence";
const GAPS: &str = "SELECT count(*) FROM usage_gap";

/// What the journal holds, and how many gaps it was told of.
async fn journal(program: &Program, server: Option<&Server>) -> (Vec<Stored>, i64) {
    match server {
        Some(server) => {
            let url = &server.database.superuser_url;
            let mut connection = PgConnection::connect(url).await.expect("the server answers");
            let rows = sqlx::query_as(JOURNAL).fetch_all(&mut connection).await.expect("the journal");
            (rows, sqlx::query_scalar(GAPS).fetch_one(&mut connection).await.expect("the gaps"))
        }
        None => {
            let mut connection = open_file(program.data()).await;
            let rows = sqlx::query_as(JOURNAL).fetch_all(&mut connection).await.expect("the journal");
            let gaps = sqlx::query_scalar(GAPS).fetch_one(&mut connection).await.expect("the gaps");
            connection.close().await.expect("it was open");
            (rows, gaps)
        }
    }
}

/// The bodies that an agent's folder holds, acknowledged or not, by hash; nothing waits to be put into one.
fn kept(data: &Path) -> BTreeMap<[u8; 32], u32> {
    let folder = data.join("agent");
    let identity = Identity::load(&folder).expect("it can be read").expect("it was kept");
    let agent = Name::parse(identity.agent.as_deref().expect("it is enrolled")).expect("a good name");
    let settings = spool::Settings {
        scope: scope(),
        source: Source { rank: SourceRank::HostAgent, sender: agent },
        budget: u64::MAX / 4,
        keep_acknowledged_micros: i64::MAX / 4,
    };
    let disk = RealDisk::open(&folder.join("spool")).expect("nobody else has it");
    let mut spool = Spool::open(disk, settings, Uuid::nil).expect("a spool opens");
    let mut bodies = BTreeMap::new();
    for lane in Lane::ALL {
        assert!(!spool.has_untried(lane), "{lane:?}: windows are in no batch");
        for (span, packed) in spool.kept(lane).expect("the disk is well") {
            let packed = packed.unwrap_or_else(|| panic!("{lane:?}: a skip stands for {span}"));
            *bodies.entry(body::hash(&packed)).or_default() += 1;
        }
    }
    bodies
}

fn scope() -> ScopeName {
    ScopeName { kind: ScopeKind::Node, name: Name::fixed(NODE) }
}

/// What the journal's rows say together.
#[derive(Default)]
struct Reported {
    bodies: BTreeMap<[u8; 32], u32>,
    streams: BTreeMap<String, Vec<i64>>,
    held: Held,
    rows: usize,
    /// By device: when it is known who held it.
    known: BTreeMap<Name, Vec<Span>>,
}

impl Reported {
    fn of(journal: Vec<Stored>) -> Reported {
        let mut all = Reported::default();
        let mut known = BTreeMap::<Name, Vec<Span>>::new();
        for (stream, sequence, packed, from, to, refused, set_aside) in journal {
            assert_eq!((refused, set_aside), (None, None), "{sequence} of {stream} is not whole");
            *all.bodies.entry(body::hash(&packed)).or_default() += 1;
            all.streams.entry(stream).or_default().push(sequence);
            let span = Span::clamped(units::Instant::from_micros(from), units::Instant::from_micros(to));
            let message = body::unpack(&packed).expect("a body unpacks");
            let read = usage_v1::decode_from(&message, &scope(), span, usage_v1::Sender::Reporter);
            let Batch { slices, evidence, rows: mut held, coverage, gaps, .. } =
                read.expect("a good message").batch;
            assert_eq!(gaps, [], "the agent said that it lost something");
            held.sort_unstable_by_key(|row| row.span.start());
            for row in &held {
                all.held.add(&slices[row.slice], &evidence[row.evidence], row.span);
            }
            all.rows += held.len();
            for each in coverage.into_iter().filter(|each| each.of == CoverageOf::Holding) {
                known.entry(each.device).or_default().push(each.span);
            }
        }
        all.held = all.held.joined();
        all.known = known.into_iter().map(|(device, spans)| (device, merged(spans))).collect();
        all
    }

    /// Each stream has its numbers from 1 on, and neither lane of the agent's began one anew.
    fn assert_streams_are_whole(&mut self) {
        assert!(self.streams.len() <= Lane::ALL.len(), "{} streams", self.streams.len());
        for (stream, numbers) in &mut self.streams {
            numbers.sort_unstable();
            let is_whole = numbers.iter().zip(1..).all(|(number, want)| *number == want);
            assert!(is_whole, "{stream} has not each number once");
        }
    }

    /// The spans of which it is not known who held a device.
    fn unknown(&self, span: Span) -> Vec<Span> {
        self.known.values().flat_map(|known| gaps(span, known.iter().copied())).collect()
    }
}

fn micros(span: Span) -> i64 {
    span.end().micros_since(span.start())
}

/// A service, its door, and a node that is enrolled.
struct Stage<'a> {
    server: Option<&'a Server>,
    program: Program,
    service: Process,
    relay: Relay,
    home: Arc<Program>,
}

impl<'a> Stage<'a> {
    /// The node may tell what it found since an instant.
    async fn set(server: Option<&'a Server>, script: &str, since: units::Instant) -> Stage<'a> {
        let program = Program::on(server.map(|server| server.database.app_url.clone()));
        let relay = Relay::start(Random::seeded("its wire", 0x17_0002)).await;
        let (service, address) = program.serve("service");
        relay.point_at(Some(address));
        let home = Arc::new(Program::on(None));
        std::fs::write(home.data().join("fleet.toml"), script).expect("the folder is ours");
        let token = program.succeed(&["node", "token", "--nodes", NODE, "--since", &since.to_string()]);
        std::fs::write(home.data().join("token"), token.trim()).expect("the folder is ours");
        Stage { server, program, service, relay, home }
    }

    fn agent(&self, how: &[&str]) -> Agent {
        let server = format!("http://{}", self.relay.address);
        let file =
            |name: &str| self.home.data().join(name).into_os_string().into_string().expect("a plain path");
        let (token, fleet) = (file("token"), file("fleet.toml"));
        let mut arguments = vec!["agent", "--server", &server, "--enrol", &token, "--node", NODE];
        arguments.extend(["--fleet", &fleet, "--keep-hours", "100000", "--spool-mib", "4096"]);
        arguments.extend(how);
        let arguments: Vec<String> = arguments.into_iter().map(str::to_owned).collect();
        let process = started(&self.home, &arguments);
        Agent { home: Arc::clone(&self.home), arguments, process }
    }

    /// An agent that plays a part of its script.
    fn replays(&self, span: Span) -> Agent {
        let replay = format!("{}/{}", span.start(), span.end());
        self.agent(&["--replay", &replay, "--batch-windows", BATCH_WINDOWS])
    }

    /// Kills the service and starts it again elsewhere, with nobody there in between; whether it was running.
    async fn kill_service(&mut self, pause: Duration) -> bool {
        let was_running = self.service.kill();
        self.relay.point_at(None);
        tokio::time::sleep(pause).await;
        let (again, address) = self.program.serve("service");
        self.service = again;
        self.relay.point_at(Some(address));
        was_running
    }

    /// The database dies and comes back.
    async fn restart_database(&self, pause: Duration) {
        let server = self.server.expect("there is one to restart");
        server.cluster.stop_immediate();
        tokio::time::sleep(pause).await;
        server.cluster.restart();
    }

    /// Asks the service to end, and reads what the journal holds: what the agent's spool holds, byte by byte.
    async fn end(&mut self) -> Reported {
        self.service.signal("-TERM");
        let ended = self.service.wait();
        assert!(ended.success(), "a service that is asked to stop ends well:\n{}", self.service.said());
        let (stored, told_gaps) = journal(&self.program, self.server).await;
        assert_eq!(told_gaps, 0, "numbers were skipped");
        let mut reported = Reported::of(stored);
        reported.assert_streams_are_whole();
        let kept = kept(self.home.data());
        let only = |one: &BTreeMap<[u8; 32], u32>, other: &BTreeMap<[u8; 32], u32>| {
            one.iter().filter(|(hash, times)| other.get(*hash) != Some(times)).count()
        };
        let odd = (only(&kept, &reported.bodies), only(&reported.bodies, &kept));
        assert_eq!(odd, (0, 0), "bodies that only the agent has, and only the service");
        assert!(reported.bodies.values().all(|times| *times == 1), "a body is there twice");
        assert_eq!(reported.held.doubled_micros, 0, "time is told twice");
        reported
    }

    /// The platform, once the service has ended: derived to the present, and well.
    async fn platform(&self) -> Platform {
        let platform = match self.server {
            Some(server) => platform_at(&server.database.app_url).await,
            None => {
                assert_sound(&self.program).await;
                platform_in(self.program.data()).await
            }
        };
        tick::advance(&platform).await.expect("nobody disturbs");
        derive(&platform).await;
        assert_healthy(&platform, "after all").await;
        platform
    }
}

/// An agent's process, and how it is started.
struct Agent {
    home: Arc<Program>,
    arguments: Vec<String>,
    process: Process,
}

impl Agent {
    /// Kills it and starts it again; whether it was still at work.
    fn kill(&mut self) -> bool {
        let was_running = self.process.kill();
        self.process = started(&self.home, &self.arguments);
        was_running
    }

    /// It ends well when all is sent.
    async fn ends(&mut self) {
        let begun = Instant::now();
        while !self.process.has_ended() {
            assert!(begun.elapsed() < PART_PATIENCE, "it does not end:\n{}", self.last_words());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let ended = self.process.wait();
        assert!(ended.success(), "the agent ends with {ended}:\n{}", self.last_words());
    }

    /// It keeps a window.
    async fn keeps_one(&mut self, windows: &Windows<'_>) {
        until("it keeps a window", || ready(windows.has_grown() || self.process.has_ended())).await;
        assert!(!self.process.has_ended(), "it ended by itself:\n{}", self.last_words());
    }

    fn last_words(&self) -> String {
        let said = self.process.said();
        let lines: Vec<&str> = said.lines().rev().take(40).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("\n")
    }
}

fn started(home: &Program, arguments: &[String]) -> Process {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    home.start("agent", &arguments)
}

/// The bytes of an agent's windows, when its process was started.
struct Windows<'a> {
    home: &'a Program,
    bytes: u64,
}

impl<'a> Windows<'a> {
    fn of(home: &'a Program) -> Windows<'a> {
        Windows { home, bytes: Windows::bytes(home) }
    }

    fn bytes(home: &Program) -> u64 {
        let Ok(files) = std::fs::read_dir(home.data().join("agent/spool")) else { return 0 };
        let windows =
            files.flatten().filter(|file| file.file_name().to_string_lossy().starts_with("windows-"));
        windows.filter_map(|file| file.metadata().ok()).map(|file| file.len()).sum()
    }

    /// Whether one was kept since, or all were sent and removed.
    fn has_grown(&self) -> bool {
        Windows::bytes(self.home) != self.bytes
    }
}

/// What was done, for people.
#[derive(Debug, Default)]
struct Happened {
    agent_kills: u32,
    service_kills: u32,
    restarts: u32,
}

/// Plays the script in parts, and in each of them kills whatever there is to kill.
async fn disturb(stage: &mut Stage<'_>, plan: &Plan, script: &Script, random: &mut Random) -> Happened {
    let mut happened = Happened::default();
    // How many requests a part takes, about: as many as the last one.
    let mut usual = 30;
    for part in 1..=plan.parts {
        let (cuts, repeats) = (plan.part_of(plan.cuts, part), plan.part_of(plan.repeats, part));
        stage.relay.allow(cuts.into(), repeats.into(), usual);
        let before = stage.relay.done().requests;
        let minutes = plan.minutes * i64::from(part) / i64::from(plan.parts + 1);
        let mut agent = stage.replays(script.first(minutes));
        let mut events = vec![Event::AgentIsKilled, Event::ServiceIsKilled];
        events.extend((0..plan.part_of(plan.restarts, part)).map(|_| Event::DatabaseDies));
        // In the first half, so that there is work left to disturb.
        let mut moments: Vec<(u64, Event)> =
            events.into_iter().map(|event| (random.below(usual / 2), event)).collect();
        moments.sort_unstable();
        for (moment, event) in moments {
            until("the agent gets on", || {
                ready(agent.process.has_ended() || stage.relay.done().requests >= before + moment)
            })
            .await;
            tokio::time::sleep(random.millis(60)).await;
            let pause = random.millis(300);
            match event {
                Event::AgentIsKilled => happened.agent_kills += u32::from(agent.kill()),
                Event::ServiceIsKilled => {
                    happened.service_kills += u32::from(stage.kill_service(pause).await)
                }
                Event::DatabaseDies => {
                    stage.restart_database(pause).await;
                    happened.restarts += 1;
                }
            }
        }
        agent.ends().await;
        usual = stage.relay.done().requests - before;
        assert!(!stage.service.has_ended(), "the service ended:\n{}", stage.service.said());
    }
    stage.relay.calm();
    happened
}

/// Plays all of it, and compares.
async fn nothing_is_lost_or_doubled(test: &str, server: Option<&Server>) {
    let begun = Instant::now();
    let mut random = Random::seeded(test, 0x17_0001);
    let plan = Plan::of(server.map_or(0, |_| counts(20)));
    let script = Script::dense();
    let whole = script.first(plan.minutes);
    let mut stage = Stage::set(server, &script.text, whole.start()).await;
    // Enrolled in peace: what a lost answer to that comes to is another test's.
    stage.replays(script.first(1)).ends().await;
    let happened = disturb(&mut stage, &plan, &script, &mut random).await;
    let disturbed = begun.elapsed();
    stage.replays(whole).ends().await;
    let played = begun.elapsed();
    if let Some(server) = server {
        no_transaction_is_left(server).await;
    }

    let reported = stage.end().await;
    let (want, pieces) = script.held(whole);
    // A script can be read again: what a window held that was open when its agent was killed comes with the next one.
    assert_eq!(reported.held.differences(&want), Vec::<String>::new(), "held, and by the script");
    let unknown = reported.unknown(whole);
    assert_eq!(unknown, [], "open windows that were lost");
    let report = Shown::of(&stage.platform().await, whole).await;
    let late = (report.days.end().micros_since(whole.end())) * DEVICES;
    report.assert_unknown(late);

    let done = stage.relay.done();
    let resets = done.cuts + done.repeats;
    assert!(resets >= u64::from(plan.cuts + plan.repeats) * 9 / 10, "{done:?}");
    assert!(happened.agent_kills >= plan.parts * 9 / 10, "{happened:?}");
    assert_eq!(happened.service_kills, plan.parts);
    eprintln!(
        "{test}: {} kills of the agent, {} of the service, {} restarts of the database; {resets} resets, {} of the \
         agent's connections and {} of repeats, of which {} were answered; {} requests; {} minutes of {SLICES} slices \
         ({}) in {pieces} windows, {} batches, {} rows; {} holders held {} h; {} open windows lost; {disturbed:.0?} of \
         disturbance, then {:.1?} in peace, {:.0?} in all",
        happened.agent_kills,
        happened.service_kills,
        happened.restarts,
        done.cuts,
        done.repeats,
        done.answered,
        done.requests,
        plan.minutes,
        plan.minutes * SLICES,
        reported.bodies.len(),
        reported.rows,
        want.keys.len(),
        want.total_micros() / MINUTE / 60,
        unknown.len(),
        played - disturbed,
        begun.elapsed(),
    );
}

/// No session of the service is left inside a transaction.
async fn no_transaction_is_left(server: &Server) {
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
               AND state LIKE 'idle in transaction%'";
    until("no session is left in a transaction", async || {
        let connected = PgConnection::connect(&server.database.superuser_url).await;
        let mut connection = connected.expect("the server answers");
        let idle: i64 = sqlx::query_scalar(sql).fetch_one(&mut connection).await.expect("sessions");
        idle == 0
    })
    .await;
}

/// A report that reconciles, of the days that a span meets.
struct Shown {
    days: Span,
    in_service: i64,
    unknown: i64,
}

impl Shown {
    async fn of(platform: &Platform, span: Span) -> Shown {
        let first = span.start().micros().div_euclid(DAY) * DAY;
        let end = (span.end().micros() + DAY - 1).div_euclid(DAY) * DAY;
        let days = Span::clamped(units::Instant::from_micros(first), units::Instant::from_micros(end));
        let period = ReportPeriod::of_edges(BillingZone::UTC, days.start(), days.end()).expect("whole days");
        let costs = reports::costs(platform, period, vec![Dimension::State]).await;
        let report = costs.unwrap_or_else(|error| panic!("{error}")).report;
        let unknown = report.totals.iter().find(|(state, _)| *state == PartState::Unknown);
        Shown {
            days,
            in_service: report.reconciliation.in_service_gpu_hours.micro(),
            unknown: unknown.map_or(0, |(_, figures)| figures.gpu_hours.micro()),
        }
    }

    /// So much time of devices is shown as unknown, to a fifth of a second.
    fn assert_unknown(&self, micros: i64) {
        let want = micros / 3_600;
        assert!(
            (self.unknown - want).abs() <= 60,
            "{} µh are unknown, {want} were not reported",
            self.unknown
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite_has_each_window_of_an_agent_once_whatever_is_killed_or_cut() {
    nothing_is_lost_or_doubled("an agent and a file", None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_has_each_window_of_an_agent_once_whatever_is_killed_or_cut() {
    let cluster = Cluster::start(false);
    let database = TestDatabase::fresh_on(&cluster).await;
    let server = Server { cluster, database };
    nothing_is_lost_or_doubled("an agent and a server", Some(&server)).await;
}

/// How much of a gap is before the kill that made it. No kill makes two gaps.
fn lost_before(gap: Span, kills: &mut Vec<i64>) -> i64 {
    let (from, to) = (gap.start().micros(), gap.end().micros());
    // The agent's idea of the service's time may be some milliseconds off.
    let kill = kills.iter().position(|kill| (from - MINUTE / 600..=to).contains(kill));
    let kill = kill.unwrap_or_else(|| panic!("{gap} is lost, and nobody was killed in it"));
    kills.remove(kill) - from
}

/// What is now cannot be read again. A window is a minute at most, and here a second: something changes as often.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_live_agent_that_is_killed_loses_its_open_window_and_says_nothing_of_it() {
    let test = "a live agent";
    let mut random = Random::seeded(test, 0x17_0003);
    let script = Script::busy();
    let mut stage = Stage::set(None, &script.text, units::Instant::from_micros(now_micros())).await;
    let kills = counts(30);
    let mut moments = Vec::new();
    for _ in 0..kills {
        let mut agent = stage.agent(&["--every-ms", "20"]);
        let windows = Windows::of(&stage.home);
        agent.keeps_one(&windows).await;
        tokio::time::sleep(random.millis(1_500)).await;
        moments.push(now_micros());
        assert!(agent.process.kill(), "it ended by itself:\n{}", agent.last_words());
    }
    let mut agent = stage.agent(&["--every-ms", "20"]);
    let windows = Windows::of(&stage.home);
    agent.keeps_one(&windows).await;
    agent.process.signal("-TERM");
    agent.ends().await;

    let reported = stage.end().await;
    let known: Vec<Span> = reported.known.into_values().flatten().collect();
    let whole = Span::clamped(known.first().expect("some").start(), known.last().expect("some").end());
    let lost = gaps(whole, known.iter().copied());
    let open: Vec<i64> = lost.iter().map(|gap| lost_before(*gap, &mut moments)).collect();
    assert!(!open.is_empty() && open.iter().all(|open| *open < MINUTE), "lost before each kill: {open:?} µs");
    // What was held in what is known is as scripted, to the looks at it; and all else is unknown.
    let want: i64 = known.iter().map(|span| script.held(*span).0.total_micros()).sum();
    let held = reported.held.total_micros();
    let looks = i64::from(kills + 1) * MINUTE / 60;
    assert!((held - want).abs() <= looks, "{held} µs held, {want} by the script");
    let report = Shown::of(&stage.platform().await, whole).await;
    let known: i64 = known.iter().map(|span| micros(*span)).sum();
    report.assert_unknown(report.in_service * 3_600 - known);
    eprintln!(
        "{test}: {kills} kills, {} µs of open windows lost at most, {} ms known, {} ms between",
        open.iter().max().expect("some"),
        known / 1_000,
        lost.iter().map(|span| micros(*span)).sum::<i64>() / 1_000
    );
}
