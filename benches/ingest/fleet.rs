//! The built program as its operator starts it, and agents as they are to it: enrolled, with batches of their own.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

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
use uuid::Uuid;

use super::{DEVICES, LARGE, LARGE_BATCHES, LIVE_BATCHES, MINUTE, MODEL, Outcome, SLICES, SLICES_OF_DEVICE};

/// The built program, answering; it ends with this.
pub(super) struct Service {
    child: Child,
    pub(super) address: String,
    token: String,
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _waited = self.child.wait();
    }
}

impl Service {
    pub(super) fn start(folder: &Path, database: Option<&str>, works: bool) -> Outcome<Self> {
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

    pub(super) fn cpu(&self) -> Outcome<f64> {
        cpu_of(i32::try_from(self.child.id())?).ok_or_else(|| "no such process".into())
    }

    pub(super) fn ask(&self, method: &str, path: &str, body: &Value) -> Outcome<Value> {
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

pub(super) struct Connection {
    stream: TcpStream,
    heard: Vec<u8>,
}

pub(super) fn request(method: &str, path: &str, token: &str, media: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\nContent-Type: {media}\r\n\
         Content-Length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

impl Connection {
    pub(super) fn open(address: &str) -> Outcome<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        Ok(Self { stream, heard: vec![0; 65_536] })
    }

    pub(super) fn ask(&mut self, request: &[u8]) -> Outcome<(u16, String)> {
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
pub(super) fn cpu_of(process: i32) -> Option<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let fields: Vec<&str> = stat.rsplit(") ").next()?.split(' ').collect();
    let ticks: f64 = fields.get(11..15)?.iter().filter_map(|field| field.parse::<f64>().ok()).sum();
    Some(ticks / 100.0)
}

pub(super) fn parent(process: i32) -> Option<i32> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    stat.rsplit(") ").next()?.split(' ').nth(1)?.parse().ok()
}

pub(super) fn cpu_of_server(postmaster: i32) -> Outcome<f64> {
    let mut sum = cpu_of(postmaster).unwrap_or_default();
    for entry in std::fs::read_dir("/proc")? {
        let Ok(process) = entry?.file_name().to_string_lossy().parse::<i32>() else { continue };
        if parent(process) == Some(postmaster) {
            sum += cpu_of(process).unwrap_or_default();
        }
    }
    Ok(sum)
}

pub(super) fn now() -> Instant {
    #[expect(clippy::disallowed_methods, reason = "a benchmark has a clock of its own")]
    let now = SystemTime::now();
    let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    Instant::from_micros(i64::try_from(since.as_micros()).unwrap_or_default())
}

/// A sequence that looks random and comes again.
pub(super) struct Chance(pub(super) u64);

impl Chance {
    pub(super) fn below(&mut self, limit: i64) -> i64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        i64::try_from(self.0 >> 33).unwrap_or_default() % limit
    }
}

/// An enrolled agent, and what it sends.
pub(super) struct Agent {
    id: String,
    audience: String,
    pub(super) node: Name,
    signer: BatchSigner,
    stream: Uuid,
    begin: Instant,
    devices: Vec<Name>,
    chance: Chance,
    sequence: i64,
}

impl Agent {
    pub(super) fn enrol(service: &Service, number: i64, begin: Instant) -> Outcome<Self> {
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

    pub(super) fn sign(
        &self,
        method: &str,
        path: &str,
        bytes: &[u8],
        place: Option<StreamPlace>,
    ) -> Outcome<String> {
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

    /// What was measured of a slice and its holder.
    fn measured(&mut self, slice: usize, span: Span) -> UseRow {
        UseRow {
            slice,
            evidence: Some(slice),
            span,
            uncut_start: span.start(),
            active_nanos: Some(self.chance.below(60_000_000_000)),
            memory_byte_seconds: Some(self.chance.below(10 << 20) * 60 * 1_024),
        }
    }

    /// Five minutes as an agent sends them: what stands once, what was measured minute by minute.
    pub(super) fn live(&mut self, number: i64) -> Outcome<Sending> {
        let span = Span::clamped(self.minute(number * 5), self.minute(number * 5 + 5));
        let mut batch = self.tables()?;
        for slice in 0..batch.slices.len() {
            batch.rows.push(Row { slice, evidence: slice, span, uncut: span });
            batch.layout.push(LayoutRow { slice, span, uncut: span });
        }
        for minute in 0..5 {
            let span = Span::clamped(self.minute(number * 5 + minute), self.minute(number * 5 + minute + 1));
            for slice in 0..batch.slices.len() {
                batch.usage.push(self.measured(slice, span));
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
    pub(super) fn history(&mut self, number: i64) -> Outcome<Sending> {
        let minutes = LARGE / SLICES + 1;
        let first = LIVE_BATCHES * 5 + number * minutes;
        self.large(first, false)
    }

    /// What an outage left behind: what stands once, what was measured minute by minute.
    pub(super) fn backlog(&mut self, number: i64) -> Outcome<Sending> {
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
                batch.usage.push(self.measured(slice, span));
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
pub(super) struct Sending {
    pub(super) bytes: Vec<u8>,
    pub(super) place: StreamPlace,
}
