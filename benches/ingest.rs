//! How much a service takes from agents over HTTP, each request with its signature checked, from sixteen connections at
//! once, on both databases; beside PostgreSQL's own binary COPY of the same windows as plain rows, and beside SQLite's
//! multi-row inserts of them, in one run.
//!
//! It starts the built program, as its operator does. A window is one slice over one minute. CPU is the kernel's own
//! count of the service's process and of PostgreSQL's. Absolute figures move with the machine; the ratios are what to
//! compare. Sixteen clients, the service and the database share the machine's cores.
#![allow(
    clippy::print_stdout,
    clippy::float_arithmetic,
    clippy::cast_precision_loss,
    reason = "a benchmark prints what it measured"
)]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant as Moment, SystemTime, UNIX_EPOCH};

use fatia::domain::device::SharingMode;
use fatia::domain::ids::{Name, ScopeKind, ScopeName};
use fatia::domain::period::Span;
use fatia::domain::units::{Instant, MICROS_PER_HOUR, MICROS_PER_SECOND};
use fatia::domain::usage::{
    Batch, ClockRow, Coverage, CoverageOf, EnergyRow, Evidence, EvidenceField, LayoutRow, Row, Slice,
    SliceSize, Source, SourceRank, UseRow,
};
use fatia::wire::signature::{BatchSigner, RequestClaims, StreamPlace};
use fatia::wire::{agent_v1, body, usage_v1};
use serde_json::{Value, json};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, PgConnection};
use uuid::Uuid;

#[allow(
    dead_code,
    unused_imports,
    unreachable_pub,
    missing_debug_implementations,
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "the tests' own: it is shared so that one place knows how a server is started, and not all of it is used"
)]
#[path = "../tests/it/support/postgres.rs"]
mod postgres;

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

const AGENTS: i64 = 16;
const DEVICES: usize = 8;
const SLICES_OF_DEVICE: usize = 7;
const SLICES: i64 = 56;
/// Windows of a batch as agents send it: 56 slices over five minutes.
const LIVE: i64 = 280;
const LIVE_BATCHES: i64 = 150;
/// Windows of a batch of a history: holdings of a minute each.
const LARGE: i64 = 5_000;
const LARGE_BATCHES: i64 = 12;
const MINUTE: i64 = 60 * MICROS_PER_SECOND;
const MODEL: &str = "NVIDIA H100 80GB HBM3";

fn main() -> Outcome<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    println!("{AGENTS} agents at once; a window is a slice over a minute; CPU in µs a window");
    let folder = tempfile::tempdir()?;
    let sqlite = Service::start(&folder.path().join("sqlite"), None, false)?;
    let size = |path: &Path| std::fs::metadata(path.join("fatia.db")).map_or(0, |meta| meta.len());
    let data = folder.path().join("sqlite");
    let fatia = ingest("SQLite", &sqlite, &|| size(&data) as f64, &|| Ok(0.0))?;
    drop(sqlite);
    let yardstick = runtime.block_on(insert_rows(&folder.path().join("plain.db")))?;
    println!("SQLite     multi-row inserts, synchronous FULL      {:>9.0} windows/s", yardstick);
    println!(
        "SQLite     imports / inserts                        {:>9.2} (target 1.0), backlogs / inserts {:.2}",
        fatia.large / yardstick,
        fatia.backlog / yardstick
    );
    match postgres::Cluster::try_start(true) {
        Err(reason) => println!("skipped: PostgreSQL. {reason}"),
        Ok(cluster) => on_postgres(&runtime, &cluster, folder.path())?,
    }
    Ok(())
}

fn on_postgres(runtime: &tokio::runtime::Runtime, cluster: &postgres::Cluster, folder: &Path) -> Outcome<()> {
    let database = runtime.block_on(postgres::TestDatabase::fresh_on(cluster));
    let service = Service::start(&folder.join("postgres"), Some(&database.app_url), false)?;
    let mut raw = runtime.block_on(PgConnection::connect(&database.superuser_url))?;
    let backend: i32 = runtime.block_on(sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut raw))?;
    let postmaster = parent(backend).ok_or("no postmaster")?;
    let raw = std::cell::RefCell::new(raw);
    let bytes = || {
        let sql = "SELECT COALESCE(SUM(pg_total_relation_size(c.oid)), 0)::bigint FROM pg_class c \
                   WHERE c.relkind = 'r' AND (c.relname LIKE 'usage%' OR c.relname = 'dirty_node')";
        let size: Result<i64, _> =
            runtime.block_on(sqlx::query_scalar(sql).fetch_one(&mut *raw.borrow_mut()));
        size.unwrap_or_default() as f64
    };
    let fatia = ingest("PostgreSQL", &service, &bytes, &|| cpu_of_server(postmaster))?;
    drop(service);
    let before = cpu_of_server(postmaster)?;
    let (rows, copied) = runtime.block_on(copy_rows(&database.superuser_url))?;
    let cpu = cpu_of_server(postmaster)? - before;
    println!(
        "PostgreSQL binary COPY of plain rows                {copied:>9.0} windows/s, the server {:.2} µs",
        cpu * 1e6 / rows as f64
    );
    println!(
        "PostgreSQL imports / COPY                           {:>9.2} (target 1.5), backlogs / COPY {:.2}",
        fatia.large / copied,
        fatia.backlog / copied
    );
    // All of it: accepted, rolled up and attributed while more comes.
    let database = runtime.block_on(postgres::TestDatabase::fresh_on(cluster));
    let service = Service::start(&folder.join("all"), Some(&database.app_url), true)?;
    together(&service, &|| cpu_of_server(postmaster))
}

/// The built program, answering; it ends with this.
struct Service {
    child: Child,
    address: String,
    token: String,
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _waited = self.child.wait();
    }
}

impl Service {
    fn start(folder: &Path, database: Option<&str>, works: bool) -> Outcome<Self> {
        std::fs::create_dir_all(folder)?;
        std::fs::write(folder.join("fatia.toml"), "[http]\ntoken_rate = 0\naddress_rate = 0\n")?;
        let mut command = Command::new(env!("CARGO_BIN_EXE_fatia"));
        command.args(["serve", "--listen", "127.0.0.1:0", "--print-token", "--data"]).arg(folder);
        if !works {
            command.arg("--no-worker");
        }
        if let Some(url) = database {
            command.env("DATABASE_URL", url);
        }
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().ok_or("no output")?).read_line(&mut line)?;
        let said = line.trim().trim_start_matches("ready http://").split_once(" token=");
        let (address, token) = said.ok_or_else(|| format!("it said: {line}"))?;
        let (address, token) = (address.to_owned(), token.to_owned());
        Ok(Self { child, address, token })
    }

    fn cpu(&self) -> Outcome<f64> {
        cpu_of(i32::try_from(self.child.id())?).ok_or_else(|| "no such process".into())
    }

    fn ask(&self, method: &str, path: &str, body: &Value) -> Outcome<Value> {
        let mut connection = Connection::open(&self.address)?;
        let bytes = if body.is_null() { vec![] } else { body.to_string().into_bytes() };
        let request = request(method, path, &self.token, "application/json", &bytes);
        let (status, answer) = connection.ask(&request)?;
        if status >= 300 {
            return Err(format!("{method} {path}: {status} {answer}").into());
        }
        Ok(serde_json::from_str(&answer)?)
    }
}

struct Connection {
    stream: TcpStream,
    heard: Vec<u8>,
}

fn request(method: &str, path: &str, token: &str, media: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\nContent-Type: {media}\r\n\
         Content-Length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

impl Connection {
    fn open(address: &str) -> Outcome<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        Ok(Self { stream, heard: vec![0; 65_536] })
    }

    fn ask(&mut self, request: &[u8]) -> Outcome<(u16, String)> {
        self.stream.write_all(request)?;
        let mut length = 0;
        loop {
            let read = self.stream.read(self.heard.get_mut(length..).ok_or("a long answer")?)?;
            if read == 0 {
                return Err("the connection was closed".into());
            }
            length += read;
            let text = std::str::from_utf8(self.heard.get(..length).unwrap_or_default())?;
            let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
            let size = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap_or("0");
            if body.len() >= size.trim().parse::<usize>()? {
                let status = head.split(' ').nth(1).unwrap_or_default().parse()?;
                return Ok((status, body.to_owned()));
            }
        }
    }
}

/// User and system time of a process in seconds, its ended children's with it.
fn cpu_of(process: i32) -> Option<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let fields: Vec<&str> = stat.rsplit(") ").next()?.split(' ').collect();
    let ticks: f64 = fields.get(11..15)?.iter().filter_map(|field| field.parse::<f64>().ok()).sum();
    Some(ticks / 100.0)
}

fn parent(process: i32) -> Option<i32> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    stat.rsplit(") ").next()?.split(' ').nth(1)?.parse().ok()
}

fn cpu_of_server(postmaster: i32) -> Outcome<f64> {
    let mut sum = cpu_of(postmaster).unwrap_or_default();
    for entry in std::fs::read_dir("/proc")? {
        let Ok(process) = entry?.file_name().to_string_lossy().parse::<i32>() else { continue };
        if parent(process) == Some(postmaster) {
            sum += cpu_of(process).unwrap_or_default();
        }
    }
    Ok(sum)
}

fn now() -> Instant {
    #[expect(clippy::disallowed_methods, reason = "a benchmark has a clock of its own")]
    let now = SystemTime::now();
    let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    Instant::from_micros(i64::try_from(since.as_micros()).unwrap_or_default())
}

/// A sequence that looks random and comes again.
struct Chance(u64);

impl Chance {
    fn below(&mut self, limit: i64) -> i64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        i64::try_from(self.0 >> 33).unwrap_or_default() % limit
    }
}

/// An enrolled agent, and what it sends.
struct Agent {
    id: String,
    audience: String,
    node: Name,
    signer: BatchSigner,
    stream: Uuid,
    begin: Instant,
    devices: Vec<Name>,
    chance: Chance,
    sequence: i64,
}

impl Agent {
    fn enrol(service: &Service, number: i64, begin: Instant) -> Outcome<Self> {
        let node = format!("node-{number}");
        let since = Instant::from_micros(begin.micros() - MICROS_PER_HOUR).to_string();
        let made =
            service.ask("POST", "/api/v1/enrolment-tokens", &json!({ "nodes": node, "since": since }))?;
        let seed = body::hash(node.as_bytes());
        let signer = BatchSigner::from_seed(&seed);
        let ask = json!({
            "token": made["secret"], "node": node, "public_key": body::hex(&signer.public_key()), "version": "bench",
        });
        let enrolled = service.ask("POST", agent_v1::ENROL_PATH, &ask)?;
        let text = |field: &str| enrolled[field].as_str().unwrap_or_default().to_owned();
        let devices = (0..DEVICES).map(|at| {
            let digits = Uuid::new_v5(&Uuid::from_u128(3), format!("{node} {at}").as_bytes());
            Name::parse(&format!("GPU-{digits}"))
        });
        let agent = Self {
            id: text("agent"),
            audience: text("audience"),
            node: Name::parse(&node)?,
            stream: Uuid::new_v5(&Uuid::from_u128(4), &seed),
            signer,
            begin,
            devices: devices.collect::<Result<_, _>>()?,
            chance: Chance(u64::try_from(number)?),
            sequence: 0,
        };
        let found: Vec<Value> =
            agent.devices.iter().map(|uuid| json!({ "uuid": uuid.as_str(), "model": MODEL })).collect();
        let inventory = json!({ "counter": 1, "at": begin.micros(), "version": "bench", "devices": found });
        let bytes = inventory.to_string().into_bytes();
        let token = agent.sign("PUT", agent_v1::INVENTORY_PATH, &bytes, None)?;
        let asked = request("PUT", agent_v1::INVENTORY_PATH, &token, "application/json", &bytes);
        let (status, answer) = Connection::open(&service.address)?.ask(&asked)?;
        if status == 200 { Ok(agent) } else { Err(format!("inventory: {status} {answer}").into()) }
    }

    fn sign(&self, method: &str, path: &str, bytes: &[u8], place: Option<StreamPlace>) -> Outcome<String> {
        let issued = now().micros() / MICROS_PER_SECOND;
        Ok(self.signer.sign_request(&RequestClaims {
            body_hash: body::hash(bytes),
            issuer: self.id.clone(),
            node: self.node.clone(),
            audience: self.audience.clone(),
            issued,
            expires: issued + 60,
            method: method.to_owned(),
            path: path.to_owned(),
            place,
            reason: None,
        })?)
    }

    fn tables(&self) -> Outcome<Batch> {
        let mut batch = Batch::default();
        for (number, device) in self.devices.iter().enumerate() {
            for slice in 0..SLICES_OF_DEVICE {
                let id = Uuid::new_v5(&Uuid::from_u128(5), format!("{device} {slice}").as_bytes());
                let size = SliceSize::Profile(Name::fixed("1g.10gb"));
                let plain = Slice::plain(device.clone(), SharingMode::Mig, size);
                let start = Some(u16::try_from(slice)?);
                batch.slices.push(Slice { id: Some(Name::parse(&format!("MIG-{id}"))?), start, ..plain });
                let pod = format!("trainer-{number}-{slice}-{}", self.node);
                let team = format!("team-{}", slice % 5);
                let seen = [
                    (EvidenceField::Namespace, Name::parse(&team)?),
                    (EvidenceField::Pod, Name::parse(&pod)?),
                ];
                batch.evidence.push(seen.into_iter().collect::<Evidence>());
            }
        }
        Ok(batch)
    }

    fn minute(&self, number: i64) -> Instant {
        self.begin.plus_micros(number * MINUTE)
    }

    fn pack(&mut self, batch: &Batch, span: Span) -> Outcome<Sending> {
        let scope = ScopeName { kind: ScopeKind::Node, name: self.node.clone() };
        let source = Source { rank: SourceRank::HostAgent, sender: Name::parse(&self.id)? };
        let bytes = body::pack(&usage_v1::encode(&scope, &source, batch)?)?;
        self.sequence += 1;
        Ok(Sending { bytes, place: StreamPlace { stream: self.stream, sequence: self.sequence, span } })
    }

    /// Five minutes as an agent sends them: what stands once, what was measured minute by minute.
    fn live(&mut self, number: i64) -> Outcome<Sending> {
        let span = Span::clamped(self.minute(number * 5), self.minute(number * 5 + 5));
        let mut batch = self.tables()?;
        for slice in 0..batch.slices.len() {
            batch.rows.push(Row { slice, evidence: slice, span, uncut: span });
            batch.layout.push(LayoutRow { slice, span, uncut: span });
        }
        for minute in 0..5 {
            let span = Span::clamped(self.minute(number * 5 + minute), self.minute(number * 5 + minute + 1));
            for slice in 0..batch.slices.len() {
                let active_nanos = Some(self.chance.below(60_000_000_000));
                let memory_byte_seconds = Some(self.chance.below(10 << 20) * 60 * 1_024);
                let (evidence, uncut_start) = (Some(slice), span.start());
                batch.usage.push(UseRow {
                    slice,
                    evidence,
                    span,
                    uncut_start,
                    active_nanos,
                    memory_byte_seconds,
                });
            }
            for device in &self.devices {
                let millijoules = 18_000_000 + self.chance.below(20_000_000);
                batch.energy.push(EnergyRow { device: device.clone(), span, millijoules });
            }
        }
        for device in &self.devices {
            for of in [CoverageOf::Holding, CoverageOf::Use] {
                batch.coverage.push(Coverage { device: device.clone(), span, of });
            }
        }
        let boot = Name::fixed("3f8a1c52-6a0e-4c55-9a39-0d2f0b7f1d11");
        let (monotonic_nanos, wall_micros) = (span.end().micros(), span.end().micros());
        batch.clocks.push(ClockRow { span, boot, monotonic_nanos, wall_micros, offset_micros: 0 });
        self.pack(&batch, span)
    }

    /// A history of holdings, each a minute long, as an import has it.
    fn history(&mut self, number: i64) -> Outcome<Sending> {
        let minutes = LARGE / SLICES + 1;
        let first = LIVE_BATCHES * 5 + number * minutes;
        self.large(first, false)
    }

    /// What an outage left behind: what stands once, what was measured minute by minute.
    fn backlog(&mut self, number: i64) -> Outcome<Sending> {
        let minutes = LARGE / SLICES + 1;
        let first = LIVE_BATCHES * 5 + (LARGE_BATCHES + number) * minutes;
        self.large(first, true)
    }

    fn large(&mut self, first: i64, is_measured: bool) -> Outcome<Sending> {
        let minutes = LARGE / SLICES + 1;
        let span = Span::clamped(self.minute(first), self.minute(first + minutes));
        let mut batch = self.tables()?;
        for at in 0..LARGE {
            let (slice, minute) = (usize::try_from(at % SLICES)?, at / SLICES);
            let span = Span::clamped(self.minute(first + minute), self.minute(first + minute + 1));
            if is_measured {
                let active_nanos = Some(self.chance.below(60_000_000_000));
                let memory_byte_seconds = Some(self.chance.below(10 << 20) * 60 * 1_024);
                let (evidence, uncut_start) = (Some(slice), span.start());
                batch.usage.push(UseRow {
                    slice,
                    evidence,
                    span,
                    uncut_start,
                    active_nanos,
                    memory_byte_seconds,
                });
            } else {
                batch.rows.push(Row { slice, evidence: slice, span, uncut: span });
            }
        }
        for slice in (0..batch.slices.len()).filter(|_| is_measured) {
            batch.rows.push(Row { slice, evidence: slice, span, uncut: span });
        }
        for device in &self.devices {
            batch.coverage.push(Coverage { device: device.clone(), span, of: CoverageOf::Holding });
        }
        self.pack(&batch, span)
    }
}

/// A batch that is ready to be sent, but for its signature, which holds for a minute.
struct Sending {
    bytes: Vec<u8>,
    place: StreamPlace,
}

/// What a round came to.
struct Round {
    seconds: f64,
    windows: f64,
    batches: f64,
    service: f64,
    server: f64,
    bytes: f64,
}

/// Windows a second.
struct Measured {
    large: f64,
    backlog: f64,
}

/// Sends all of it from sixteen connections, each batch after the answer to the one before.
fn send(
    service: &Service,
    agents: &[Agent],
    sendings: &[Vec<Sending>],
    want: &str,
    windows: i64,
    (size, server): (&dyn Fn() -> f64, &dyn Fn() -> Outcome<f64>),
) -> Outcome<Round> {
    let mut requests = Vec::new();
    for (agent, sendings) in agents.iter().zip(sendings) {
        let mut own = Vec::new();
        for sending in sendings {
            let token =
                agent.sign("POST", agent_v1::BATCHES_PATH, &sending.bytes, Some(sending.place.clone()))?;
            own.push(request("POST", agent_v1::BATCHES_PATH, &token, agent_v1::BATCH_TYPE, &sending.bytes));
        }
        requests.push((Connection::open(&service.address)?, own));
    }
    let batches: usize = requests.iter().map(|(_, own)| own.len()).sum();
    let want = format!("\"outcome\":\"{want}\"");
    let (cpu, cpu_server, bytes) = (service.cpu()?, server()?, size());
    let began = Moment::now();
    std::thread::scope(|scope| -> Outcome<()> {
        let threads: Vec<_> = requests
            .into_iter()
            .map(|(mut connection, own)| {
                let want = &want;
                scope.spawn(move || -> Outcome<()> {
                    for request in own {
                        let (status, answer) = connection.ask(&request)?;
                        if status != 200 || !answer.contains(want) || !answer.contains("\"refused\":[]") {
                            return Err(format!("{status} {answer}").into());
                        }
                    }
                    Ok(())
                })
            })
            .collect();
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| "a client panicked")?)
    })?;
    let seconds = began.elapsed().as_secs_f64();
    let batches = batches as f64;
    Ok(Round {
        seconds,
        windows: batches * windows as f64,
        batches,
        service: service.cpu()? - cpu,
        server: server()? - cpu_server,
        bytes: size() - bytes,
    })
}

fn show(database: &str, what: &str, round: &Round) {
    let Round { seconds, windows, batches, service, server, bytes } = round;
    println!(
        "{database:<10} {what:<28} {:>8.0} batches/s {:>9.0} windows/s  CPU: service {:.2}, server {:.2}  {:>5.1} bytes",
        batches / seconds,
        windows / seconds,
        service * 1e6 / windows,
        server * 1e6 / windows,
        bytes / windows,
    );
}

fn enrolled(service: &Service, begin: Instant) -> Outcome<Vec<Agent>> {
    (0..AGENTS).map(|number| Agent::enrol(service, number, begin)).collect()
}

fn begin_days_ago(days: i64) -> Instant {
    let ago = now().micros() - days * 24 * MICROS_PER_HOUR;
    Instant::from_micros(ago.div_euclid(MICROS_PER_HOUR) * MICROS_PER_HOUR)
}

fn ingest(
    database: &str,
    service: &Service,
    size: &dyn Fn() -> f64,
    server: &dyn Fn() -> Outcome<f64>,
) -> Outcome<Measured> {
    let mut agents = enrolled(service, begin_days_ago(8))?;
    let live = all(&mut agents, LIVE_BATCHES, Agent::live)?;
    let large = all(&mut agents, LARGE_BATCHES, Agent::history)?;
    let backlog = all(&mut agents, LARGE_BATCHES, Agent::backlog)?;
    let fixed = (size, server);
    let first = send(service, &agents, &live, "accepted", LIVE, fixed)?;
    show(database, "agents' batches", &first);
    let again = send(service, &agents, &live, "duplicate", LIVE, fixed)?;
    show(database, "the same again", &again);
    println!(
        "{database:<10} repeats / first                          {:>9.2} (target 2)",
        (again.batches / again.seconds) / (first.batches / first.seconds)
    );
    let large = send(service, &agents, &large, "accepted", LARGE, fixed)?;
    show(database, "imports of holdings", &large);
    let backlog = send(service, &agents, &backlog, "accepted", LARGE, fixed)?;
    show(database, "backlogs with measures", &backlog);
    Ok(Measured { large: large.windows / large.seconds, backlog: backlog.windows / backlog.seconds })
}

fn all(
    agents: &mut [Agent],
    count: i64,
    make: impl Fn(&mut Agent, i64) -> Outcome<Sending>,
) -> Outcome<Vec<Vec<Sending>>> {
    agents.iter_mut().map(|agent| (0..count).map(|number| make(agent, number)).collect()).collect()
}

/// Accept, roll up and attribute at once: how long until nothing waits, and what it costs.
fn together(service: &Service, server: &dyn Fn() -> Outcome<f64>) -> Outcome<()> {
    let mut agents = enrolled(service, begin_days_ago(2))?;
    let live = all(&mut agents, LIVE_BATCHES, Agent::live)?;
    let began = Moment::now();
    let (cpu, cpu_server) = (service.cpu()?, server()?);
    let round = send(service, &agents, &live, "accepted", LIVE, (&|| 0.0, server))?;
    loop {
        let waits = service.ask("GET", "/api/v1/derivation?wait=60", &Value::Null);
        let pending = match waits {
            Ok(answer) => answer["pending_marks"].as_i64().unwrap_or_default(),
            Err(error) => return Err(error),
        };
        if pending == 0 {
            break;
        }
    }
    let (all, windows) = (began.elapsed().as_secs_f64(), round.windows);
    println!(
        "PostgreSQL accept, roll up and attribute            {:>9.0} windows/s in all; the last report {:.1} s after the \
         last batch; CPU: service {:.2}, server {:.2}",
        windows / all,
        all - round.seconds,
        (service.cpu()? - cpu) * 1e6 / windows,
        (server()? - cpu_server) * 1e6 / windows,
    );
    Ok(())
}

/// The same windows as plain rows: minute, slice, tenant, and two measures.
fn plain_rows() -> impl Iterator<Item = [i64; 5]> {
    let mut chance = Chance(7);
    (0..AGENTS * LARGE_BATCHES * LARGE).map(move |at| {
        let (agent, rest) = (at / (LARGE_BATCHES * LARGE), at % (LARGE_BATCHES * LARGE));
        let (minute, slice) = (rest / SLICES, agent * SLICES + rest % SLICES);
        [minute * MINUTE, slice, slice % 50, chance.below(60_000_000_000), chance.below(10 << 30)]
    })
}

/// Binary COPY from sixteen connections, 5,000 rows each time; how many rows, and rows a second.
async fn copy_rows(url: &str) -> Outcome<(i64, f64)> {
    let mut raw = PgConnection::connect(url).await?;
    let table = "CREATE TABLE plain_window (minute_us BIGINT NOT NULL, slice BIGINT NOT NULL, tenant BIGINT NOT NULL, \
                 active_ns BIGINT NOT NULL, held BIGINT NOT NULL, PRIMARY KEY (minute_us, slice, tenant))";
    sqlx::query(AssertSqlSafe(table)).execute(&mut raw).await?;
    let rows: Vec<[i64; 5]> = plain_rows().collect();
    let count = i64::try_from(rows.len())?;
    let per_agent = usize::try_from(LARGE_BATCHES * LARGE)?;
    let mut parts = Vec::new();
    for own in rows.chunks(per_agent) {
        let mut bodies = Vec::new();
        for chunk in own.chunks(usize::try_from(LARGE)?) {
            let mut body = b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0".to_vec();
            for row in chunk {
                body.extend_from_slice(&5_i16.to_be_bytes());
                for value in row {
                    body.extend_from_slice(&8_i32.to_be_bytes());
                    body.extend_from_slice(&value.to_be_bytes());
                }
            }
            body.extend_from_slice(&(-1_i16).to_be_bytes());
            bodies.push(body);
        }
        parts.push((PgConnection::connect(url).await?, bodies));
    }
    let began = Moment::now();
    let tasks: Vec<_> = parts
        .into_iter()
        .map(|(mut connection, bodies)| {
            tokio::spawn(async move {
                for body in bodies {
                    let mut copy =
                        connection.copy_in_raw("COPY plain_window FROM STDIN (FORMAT binary)").await?;
                    copy.send(body).await?;
                    copy.finish().await?;
                }
                Ok::<_, sqlx::Error>(())
            })
        })
        .collect();
    for task in tasks {
        task.await??;
    }
    Ok((count, count as f64 / began.elapsed().as_secs_f64()))
}

/// Multi-row inserts, 5,000 rows a transaction; rows a second.
async fn insert_rows(path: &Path) -> Outcome<f64> {
    let options = SqliteConnectOptions::new()
        .filename(path)
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full);
    let mut raw = options.connect().await?;
    let table = "CREATE TABLE plain_window (minute_us INTEGER NOT NULL, slice INTEGER NOT NULL, tenant INTEGER NOT NULL, \
                 active_ns INTEGER NOT NULL, held INTEGER NOT NULL, PRIMARY KEY (minute_us, slice, tenant)) STRICT, WITHOUT ROWID";
    sqlx::query(AssertSqlSafe(table)).execute(&mut raw).await?;
    let rows: Vec<[i64; 5]> = plain_rows().collect();
    let statement = |count: usize| {
        let values = vec!["(?, ?, ?, ?, ?)"; count].join(", ");
        format!("INSERT INTO plain_window (minute_us, slice, tenant, active_ns, held) VALUES {values}")
    };
    let began = Moment::now();
    for chunk in rows.chunks(usize::try_from(LARGE)?) {
        let mut tx = raw.begin().await?;
        for some in chunk.chunks(500) {
            let sql = statement(some.len());
            let mut query = sqlx::query(AssertSqlSafe(sql));
            for value in some.iter().flatten() {
                query = query.bind(*value);
            }
            query.execute(&mut *tx).await?;
        }
        tx.commit().await?;
    }
    Ok(rows.len() as f64 / began.elapsed().as_secs_f64())
}
