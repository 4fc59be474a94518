//! A made-up fleet and its history, in versions, and the levels that come of them, read as text.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

use fatia::domain::device::SharingMode;
use fatia::domain::ids::{Name, ScopeKind, ScopeName};
use fatia::domain::period::Span;
use fatia::domain::units::Instant;
use fatia::domain::usage::{
    Batch, Coverage, CoverageOf, Evidence, EvidenceField, Row, Slice, SliceSize, Source, SourceRank,
};
use fatia::services::accept::SignedBatch;
use fatia::services::ctx::Platform;
use fatia::services::error::ServiceError;
use fatia::services::imports::{ImportOutcome, ImportRequest, Tables, import_intervals};
use fatia::services::{derive, pricing};
use fatia::wire::signature::{BatchClaims, BatchSigner};
use fatia::wire::{body, usage_v1};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, SqliteConnection};
use uuid::Uuid;

const MINUTE: i64 = 60_000_000;
/// 2026-06-01T00:00:00Z.
const START: i64 = 1_780_272_000_000_000;

const INVENTORY_HEADER: &str =
    "node,gpu_uuid,gpu_index,gpu_model,gpu_memory_gib,in_service_from,in_service_to\n";
const INTERVALS_HEADER: &str = "workload,tenant,project,node,gpu_uuid,mode,profile,share_ppm,start,end\n";

/// An instant so many minutes into the history.
pub fn minute(minutes: i64) -> Instant {
    Instant::from_micros(START + minutes * MINUTE)
}

/// One device a node, in service for some days in June.
#[derive(Debug, Clone, Copy)]
pub struct Fleet {
    pub nodes: u32,
    pub days: i64,
}

impl Fleet {
    pub fn inventory(self) -> String {
        let mut text = INVENTORY_HEADER.to_owned();
        for node in 0..self.nodes {
            text.push_str(&inventory_line(&format!("node-{node:03}"), node, self.days));
        }
        text
    }

    /// What the first import says: on each node one long holding and, each day, a short one beside it.
    pub fn history(self) -> String {
        let mut text = INTERVALS_HEADER.to_owned();
        for node in 0..self.nodes {
            let long = (180, self.days * 1_440 - 60);
            text.push_str(&holding(&format!("long-{node}"), node, node % 5, 300_000, long));
            for day in 0..self.days {
                let from = day * 1_440 + 400 + i64::from(node % 50);
                let name = format!("short-{node}-{day}");
                text.push_str(&holding(&name, node, node % 3, 450_000, (from, from + 333)));
            }
        }
        text
    }

    /// A later import: a third of the long holdings ended earlier, at a minute that no other version says, and
    /// were another tenant's.
    pub fn amendment(self, version: u32) -> String {
        let mut text = INTERVALS_HEADER.to_owned();
        for node in (0..self.nodes).filter(|node| node % 3 == version % 3) {
            let end = 800 + i64::from(version) * 17 % (self.days * 1_440 - 1_000);
            let name = format!("long-{node}");
            text.push_str(&holding(&name, node, node.wrapping_add(version) % 5, 300_000, (180, end)));
        }
        text
    }
}

/// A line of an inventory: a node's one device.
pub fn inventory_line(name: &str, number: u32, days: i64) -> String {
    let model = if number.is_multiple_of(2) { "A10" } else { "H100" };
    format!("{name},{},0,{model},24,{},{}\n", device(number), minute(0), minute(days * 1_440))
}

fn device(node: u32) -> String {
    format!("GPU-{node:08x}")
}

fn holding(workload: &str, node: u32, tenant: u32, share: u32, (from, to): (i64, i64)) -> String {
    format!(
        "{workload},tenant-{tenant},project-{},node-{node:03},{},mps,,{share},{},{}\n",
        node % 2,
        device(node),
        minute(from),
        minute(to)
    )
}

/// A table with one holding.
pub fn one_holding(workload: &str, node: u32, span: (i64, i64)) -> String {
    INTERVALS_HEADER.to_owned() + &holding(workload, node, 0, 300_000, span)
}

/// A table without lines.
pub fn no_history() -> &'static str {
    INTERVALS_HEADER
}

/// A price book's file; each version has other prices.
pub fn prices(version: u32) -> String {
    format!(
        "name = \"june\"\ncurrency = \"USD\"\neffective_from = \"2026-06-01T00:00:00Z\"\n\
         [cost]\nA10 = \"1.{version:04}\"\nH100 = \"4.{version:04}\"\n"
    )
}

/// What an import vouches for: the whole history, or nothing, so that it speaks of its own rows alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Covers {
    All,
    Nothing,
}

impl Covers {
    fn span(self) -> Span {
        match self {
            Self::All => Span::clamped(minute(0), minute(31 * 1_440)),
            Self::Nothing => Span::clamped(minute(-2_880), minute(-1_440)),
        }
    }

    /// As an argument of `--covers`.
    pub fn argument(self) -> String {
        let span = self.span();
        format!("{}/{}", span.start(), span.end())
    }
}

pub async fn import(
    platform: &Platform,
    inventory: &str,
    intervals: &str,
    covers: Covers,
) -> Result<ImportOutcome, ServiceError> {
    let sender = Name::parse("scheduler").expect("a good name");
    let source = Source { rank: SourceRank::Import, sender };
    let request = ImportRequest { source, covers: Some(covers.span()) };
    let tables = Tables {
        inventory: ("inventory.csv".to_owned(), inventory.as_bytes()),
        slices: None::<(String, &[u8])>,
        intervals: ("intervals.csv".to_owned(), intervals.as_bytes()),
    };
    let outcome = import_intervals(platform, &request, tables, Arc::new(|_| ())).await?;
    assert_eq!((outcome.bad.as_slice(), outcome.refused_rows), (&[][..], 0));
    Ok(outcome)
}

/// Something that makes work.
#[derive(Debug, Clone, Copy)]
pub enum Change {
    /// Everything is derived again, and comes out the same.
    Rebuild,
    /// All sums change.
    Prices(u32),
    /// Segments, parts and sums of a third of the nodes change.
    Amendment(u32),
}

impl Change {
    /// The change of a round.
    pub fn of(round: u32) -> Self {
        match round % 3 {
            0 => Self::Amendment(round),
            1 => Self::Prices(round),
            _ => Self::Rebuild,
        }
    }

    pub async fn apply(self, platform: &Platform, fleet: Fleet) -> Result<(), ServiceError> {
        match self {
            Self::Rebuild => derive::mark_everything(platform).await,
            Self::Prices(version) => {
                pricing::load(platform, "prices.toml", &prices(version)).await.map(|_| ())
            }
            Self::Amendment(version) => {
                let rows = fleet.amendment(version);
                import(platform, &fleet.inventory(), &rows, Covers::Nothing).await.map(|_| ())
            }
        }
    }
}

/// A sender of signed five-minute batches for one node.
pub struct Sender {
    node: u32,
    stream: Uuid,
    signer: BatchSigner,
}

impl Sender {
    pub fn new(platform: &Platform, node: u32) -> Self {
        Self { node, stream: Uuid::from_u128(0xc4a0_5000 + u128::from(node)), signer: platform.signer() }
    }

    pub fn stream(&self) -> String {
        self.stream.to_string()
    }

    /// The batch of a number: always the same bytes.
    pub fn batch(&self, sequence: i64) -> SignedBatch {
        let name = |text: String| Name::parse(&text).expect("a good name");
        let span = Span::clamped(minute(sequence * 5 - 5), minute(sequence * 5));
        let gpu = name(device(self.node));
        let evidence: Evidence = [
            (EvidenceField::Workload, name(format!("job-{}", sequence / 7))),
            (EvidenceField::Tenant, name(format!("tenant-{}", (sequence + i64::from(self.node)) % 4))),
            (EvidenceField::Project, name("research".to_owned())),
        ]
        .into_iter()
        .collect();
        let batch = Batch {
            slices: vec![Slice::plain(gpu.clone(), SharingMode::Dedicated, SliceSize::Whole)],
            evidence: vec![evidence],
            rows: vec![Row { slice: 0, evidence: 0, span, uncut: span }],
            coverage: vec![Coverage { device: gpu, span, of: CoverageOf::Holding }],
            ..Batch::default()
        };
        let scope = ScopeName { kind: ScopeKind::Node, name: name(format!("node-{:03}", self.node)) };
        let source = Source { rank: SourceRank::Import, sender: name("chaos".to_owned()) };
        let message = usage_v1::encode(&scope, &source, &batch).expect("a good batch");
        let body = body::pack(&message).expect("a small batch");
        let claims = BatchClaims {
            body_hash: body::hash(&body),
            issuer: "installation".to_owned(),
            subject: None,
            scope,
            stream: self.stream,
            sequence,
            span,
        };
        SignedBatch { signature: self.signer.sign(&claims).expect("a good key"), body }
    }
}

/// All levels as lines of text with natural names, so that databases can be compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Levels {
    lines: BTreeSet<String>,
}

impl Levels {
    /// Fails and shows the first differences where two are not the same.
    pub fn assert_same(&self, undisturbed: &Self, when: &str) {
        let mut text = String::new();
        let shown = |line: &String| line.chars().take(200).collect::<String>();
        for line in self.lines.difference(&undisturbed.lines).take(4) {
            writeln!(text, "only disturbed:   {}", shown(line)).expect("text");
        }
        for line in undisturbed.lines.difference(&self.lines).take(4) {
            writeln!(text, "only undisturbed: {}", shown(line)).expect("text");
        }
        assert!(text.is_empty(), "{when}: the levels differ\n{text}");
        assert!(!self.lines.is_empty(), "{when}: there are no levels");
    }

    pub fn count(&self) -> usize {
        self.lines.len()
    }

    pub async fn on_server(url: &str) -> Self {
        let mut connection =
            PgConnection::connect(url).await.unwrap_or_else(|error| panic!("{url}: {error}"));
        let mut levels = Self { lines: BTreeSet::new() };
        for (level, sql) in queries(|bytes| format!("encode({bytes}, 'hex')")) {
            let rows: Vec<String> =
                sqlx::query_scalar(AssertSqlSafe(sql)).fetch_all(&mut connection).await.expect("a level");
            levels.add(level, rows);
        }
        levels
    }

    pub async fn in_folder(folder: &Path) -> Self {
        let mut connection = open_file(folder).await;
        let mut levels = Self { lines: BTreeSet::new() };
        for (level, sql) in queries(|bytes| format!("lower(hex({bytes}))")) {
            let rows: Vec<String> =
                sqlx::query_scalar(AssertSqlSafe(sql)).fetch_all(&mut connection).await.expect("a level");
            levels.add(level, rows);
        }
        connection.close().await.expect("it was open");
        levels
    }

    fn add(&mut self, level: &str, rows: Vec<String>) {
        for row in rows {
            let line = format!("{level} {row}");
            assert!(self.lines.insert(line.clone()), "twice: {line}");
        }
    }
}

/// A connection to the file in a data folder, beside whoever has it.
pub async fn open_file(folder: &Path) -> SqliteConnection {
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(folder.join("fatia.db"));
    SqliteConnection::connect_with(&options).await.expect("the file is there")
}

fn queries(hex: impl Fn(&str) -> String) -> [(&'static str, String); 4] {
    let words = "project || '|' || l.mode || '|' || l.model || '|' || l.sku || '|' || l.state || '|' || \
                 l.cost_item || '|' || l.charge_item || '|' || l.revision || '|' || l.quantity";
    [
        (
            "node_hour",
            format!(
                "SELECT s.name || '|' || h.hour_us || '|' || h.revision || '|' || h.covered_ns || '|' || {} || '|' || {} \
                 FROM node_hour h JOIN scope s ON s.scope_id = h.scope_id",
                hex("h.batches_hash"),
                hex("h.body")
            ),
        ),
        (
            "node_day",
            format!(
                "SELECT s.name || '|' || l.day || '|' || t.name || '|' || l.workload || '|' || l.{words} \
                 FROM node_day l JOIN scope s ON s.scope_id = l.scope_id JOIN tenant t ON t.tenant_id = l.tenant_id"
            ),
        ),
        (
            "tenant_day",
            format!(
                "SELECT l.day || '|' || t.name || '|' || l.{words} \
                 FROM tenant_day l JOIN tenant t ON t.tenant_id = l.tenant_id"
            ),
        ),
        (
            "tenant_month",
            format!(
                "SELECT l.first_day || '|' || t.name || '|' || l.{words} \
                 FROM tenant_month l JOIN tenant t ON t.tenant_id = l.tenant_id"
            ),
        ),
    ]
}
