//! An open installation to test on, on either database, with a clock that tests set and short words for tables.
//!
//! It owns how a test opens a platform, brings tables and signed batches in, derives, and looks at what is stored
//! beside the service. It does not own servers: `support::postgres` does.
//! Always true here: every database is the test's own; no test waits for time to pass, it sets the clock; what is
//! compared over databases has natural names in place of row numbers.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use fatia::domain::device::SharingMode;
use fatia::domain::ids::{Name, ScopeKind, ScopeName};
use fatia::domain::money::Currency;
use fatia::domain::period::{BillingZone, Month, Span};
use fatia::domain::report::{CostReport, Dimension, ReportPeriod};
use fatia::domain::units::Instant;
use fatia::domain::usage::{
    Batch, Coverage, CoverageOf, Evidence, EvidenceField, Row, Slice, SliceSize, Source, SourceRank,
};
use fatia::services::accept::{Credential, SignedBatch, accept};
use fatia::services::ctx::{BillingSettings, Clock, Platform};
use fatia::services::derive::{Derived, Worker, derive_all};
use fatia::services::doctor::{self, Check, Verdict};
use fatia::services::error::ServiceError;
use fatia::services::imports::{ImportOutcome, ImportRequest, Tables, import_intervals};
use fatia::services::{inventory, reports};
use fatia::store::{PlatformScope, ReadTx, Store, StoreError, UnitError, WriteTx, unit};
use fatia::wire::ack::Acknowledgement;
use fatia::wire::signature::{BatchClaims, BatchSigner, BatchVerifier};
use fatia::wire::{body, usage_v1};
use futures_util::future::BoxFuture;
use sqlx::postgres::PgRow;
use sqlx::sqlite::{SqliteConnectOptions, SqliteRow};
use sqlx::{AssertSqlSafe, Connection as _, FromRow, PgConnection, SqliteConnection};
use tempfile::TempDir;
use uuid::Uuid;

use super::postgres::TestDatabase;

/// Makes two tests of each function: `sqlite::name` and `postgres::name`, each with a fresh platform.
macro_rules! on_both_databases {
    ($($(#[$attribute:meta])* async fn $name:ident($platform:ident: &TestPlatform $(,)?) $body:block)*) => {
        $($(#[$attribute])* async fn $name($platform: &$crate::support::platform::TestPlatform) $body)*

        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name(&$crate::support::platform::TestPlatform::sqlite().await).await;
            })*
        }

        mod postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name(&$crate::support::platform::TestPlatform::postgres().await).await;
            })*
        }
    };
}
pub(crate) use on_both_databases;

/// What the clock of a new platform shows.
pub const START: &str = "06-10T12:00";

/// An instant of 2026, UTC: `06-10T12:30`, or with seconds.
pub fn at(text: &str) -> Instant {
    let seconds = if text.matches(':').count() == 1 { ":00" } else { "" };
    let text = format!("2026-{text}{seconds}Z");
    Instant::parse(&text).unwrap_or_else(|error| panic!("{error}"))
}

/// A span of 2026: `06-10T12:30 06-10T13:00`; without an end it is open.
pub fn span(text: &str) -> Span {
    let mut words = text.split_whitespace();
    let start = at(words.next().expect("a span has a start"));
    let end = words.next().filter(|end| *end != "-").map_or(Instant::MAX, at);
    Span::new(start, end).unwrap_or_else(|error| panic!("{text}: {error}"))
}

pub fn name(text: &str) -> Name {
    Name::parse(text).unwrap_or_else(|error| panic!("`{text}` {error}"))
}

/// A clock that shows what it was set to.
pub struct TestClock(AtomicI64);

impl TestClock {
    pub fn at(text: &str) -> Arc<TestClock> {
        Arc::new(TestClock(AtomicI64::new(at(text).micros())))
    }

    pub fn set(&self, text: &str) {
        self.0.store(at(text).micros(), Ordering::SeqCst);
    }

    /// Goes on by so many microseconds.
    pub fn pass(&self, micros: i64) {
        self.0.fetch_add(micros, Ordering::SeqCst);
    }
}

impl Clock for TestClock {
    fn now(&self) -> Instant {
        Instant::from_micros(self.0.load(Ordering::SeqCst))
    }
}

/// Where a platform's rows lie.
pub enum Storage {
    Sqlite(TempDir),
    Postgres(TestDatabase),
}

impl Storage {
    pub fn file(&self) -> PathBuf {
        match self {
            Storage::Sqlite(folder) => folder.path().join("fatia.db"),
            Storage::Postgres(_) => panic!("a server's database is no file"),
        }
    }

    pub fn server(&self) -> &TestDatabase {
        match self {
            Storage::Sqlite(_) => panic!("a file is on no server"),
            Storage::Postgres(database) => database,
        }
    }

    async fn store(&self, actor: &str) -> Store {
        let store = match self {
            Storage::Sqlite(folder) => Store::open(folder.path(), actor).await,
            Storage::Postgres(database) => Store::connect(&database.app_url, 10).await,
        };
        store.unwrap_or_else(|error| panic!("no store: {error}"))
    }
}

/// An open installation in UTC and US dollars.
pub struct TestPlatform {
    // First, so that the store is closed before its folder goes.
    pub platform: Platform,
    pub clock: Arc<TestClock>,
    pub storage: Storage,
}

impl std::ops::Deref for TestPlatform {
    type Target = Platform;

    fn deref(&self) -> &Platform {
        &self.platform
    }
}

/// Opens the installation of a store with any clock.
pub async fn open_on(store: Store, actor: &str, clock: Arc<dyn Clock>) -> Platform {
    let settings =
        BillingSettings { zone: Some(BillingZone::UTC), currency: Some(Currency::parse("USD").unwrap()) };
    Platform::open(store, actor.to_owned(), clock, settings, [7; 32])
        .await
        .unwrap_or_else(|error| panic!("no platform: {error}"))
}

impl TestPlatform {
    pub async fn sqlite() -> TestPlatform {
        TestPlatform::on(Storage::Sqlite(tempfile::tempdir().expect("a folder to test in"))).await
    }

    pub async fn postgres() -> TestPlatform {
        TestPlatform::on(Storage::Postgres(TestDatabase::fresh().await)).await
    }

    /// A fresh one on the same kind of database.
    pub async fn another(&self) -> TestPlatform {
        match &self.storage {
            Storage::Sqlite(_) => TestPlatform::sqlite().await,
            Storage::Postgres(_) => TestPlatform::postgres().await,
        }
    }

    pub async fn on(storage: Storage) -> TestPlatform {
        let clock = TestClock::at(START);
        let store = storage.store("the test").await;
        TestPlatform { platform: open_on(store, "ana", clock.clone()).await, clock, storage }
    }

    /// Another replica's platform on the same database; where one process has the file, the same store.
    pub async fn replica(&self, clock: Arc<dyn Clock>) -> Platform {
        let store = match &self.storage {
            Storage::Sqlite(_) => self.store.clone(),
            Storage::Postgres(_) => self.storage.store("a replica").await,
        };
        open_on(store, "a replica", clock).await
    }

    /// Closes the store and opens it again, as a process does that was restarted.
    pub async fn reopened(self) -> TestPlatform {
        let TestPlatform { platform, clock, storage } = self;
        drop(platform);
        let store = storage.store("the test, again").await;
        TestPlatform { platform: open_on(store, "ana", clock.clone()).await, clock, storage }
    }

    /// A connection beside the store that sees and changes everything.
    pub async fn raw(&self) -> Raw {
        match &self.storage {
            Storage::Sqlite(_) => {
                let options = SqliteConnectOptions::new().filename(self.storage.file());
                let options = options.busy_timeout(Duration::from_secs(5));
                Raw::Sqlite(SqliteConnection::connect_with(&options).await.expect("the file is there"))
            }
            Storage::Postgres(database) => Raw::Postgres(
                PgConnection::connect(&database.superuser_url).await.expect("the server answers"),
            ),
        }
    }

    /// Imports an inventory and intervals, both as short tables, from the source `slurm`.
    pub async fn import(&self, inventory: &str, intervals: &str) -> ImportOutcome {
        let outcome = self.import_from("slurm", None, inventory, intervals).await;
        let outcome = outcome.unwrap_or_else(|error| panic!("the import fails: {error}"));
        assert_eq!(outcome.bad, [], "every line is good");
        outcome
    }

    pub async fn import_from(
        &self,
        source: &str,
        covers: Option<Span>,
        inventory: &str,
        intervals: &str,
    ) -> Result<ImportOutcome, ServiceError> {
        let request =
            ImportRequest { source: Source { rank: SourceRank::Import, sender: name(source) }, covers };
        let (inventory, intervals) = (inventory_csv(inventory), intervals_csv(intervals));
        let tables = Tables {
            inventory: ("inventory.csv".to_owned(), inventory.as_bytes()),
            slices: None::<(String, &[u8])>,
            intervals: ("intervals.csv".to_owned(), intervals.as_bytes()),
        };
        import_intervals(self, &request, tables, Arc::new(|_| ())).await
    }

    /// Brings an inventory alone into the fleet.
    pub async fn inventory(&self, lines: &str) -> inventory::InventoryOutcome {
        let file = "inventory.csv";
        let read = inventory::Inventory::read(inventory_csv(lines).as_bytes(), file).expect("a good table");
        assert_eq!(read.bad, [], "every line is good");
        inventory::apply(self, file, read.lines).await.unwrap_or_else(|error| panic!("{error}"))
    }

    /// Takes a signed batch.
    pub async fn accept(&self, sender: &Sender, batch: SignedBatch) -> Result<Acknowledgement, ServiceError> {
        accept(self, &sender.credential(), batch).await
    }

    /// Ticks.
    pub async fn tick(&self) {
        fatia::services::tick::advance(self).await.unwrap_or_else(|error| panic!("the tick fails: {error}"));
    }

    /// Derives until nothing is marked.
    pub async fn derive(&self) -> Derived {
        derive(self, "worker").await.unwrap_or_else(|error| panic!("deriving fails: {error}"))
    }

    /// Marks everything and derives it again from the journal.
    pub async fn rebuild(&self) {
        fatia::services::derive::mark_everything(self).await.expect("everything can be marked");
        self.derive().await;
    }

    /// The cost report of a month of 2026 by dimensions: `06`, `tenant state`.
    pub async fn costs(&self, month: &str, dimensions: &str) -> Result<CostReport, ServiceError> {
        let dimensions = dimensions.split_whitespace().map(|word| Dimension::parse(word).unwrap()).collect();
        let month = ReportPeriod::of_month(Month::parse(&format!("2026-{month}")).unwrap());
        reports::costs(self, month, dimensions).await.map(|costs| costs.report)
    }

    /// The groups of June's report, one a line: `acme 1.500000 3`, with the values of `dimensions` first, then hours,
    /// cost, and the unpriced hours if there are any.
    pub async fn shown(&self, dimensions: &str) -> Vec<String> {
        let report = self.costs("06", dimensions).await.unwrap_or_else(|error| panic!("{error}"));
        let groups = report.groups.iter().map(|group| {
            let figures = &group.figures;
            let cost = figures.cost().map_or_else(|| "-".to_owned(), |cost| cost.to_string());
            let mut line = format!("{} {} {cost}", group.values.join(" "), figures.gpu_hours);
            if figures.unpriced_gpu_hours != fatia::domain::units::Quantity::ZERO {
                line.push_str(&format!(" unpriced {}", figures.unpriced_gpu_hours));
            }
            line
        });
        groups.collect()
    }

    /// What the doctor says.
    pub async fn examined(&self) -> Vec<Check> {
        doctor::examine(self).await.unwrap_or_else(|error| panic!("the doctor cannot look: {error}"))
    }

    /// The subjects that the doctor finds ill.
    pub async fn ill(&self) -> Vec<String> {
        let checks = self.examined().await;
        checks.into_iter().filter(|each| each.verdict == Verdict::Ill).map(|each| each.subject).collect()
    }

    /// Nothing is ill, nothing waits, and June reconciles.
    pub async fn assert_well(&self) {
        let checks = self.examined().await;
        assert!(checks.iter().all(|check| check.verdict != Verdict::Ill), "{checks:#?}");
        let report = self.costs("06", "tenant node workload").await;
        report.unwrap_or_else(|error| panic!("{error}"));
        let report = self.costs("06", "tenant").await;
        report.unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(fatia::services::derive::pending(self).await.expect("marks can be counted"), 0);
    }

    /// All levels as one text, with natural names: equal texts mean equal levels, on whichever database.
    pub async fn levels(&self) -> String {
        let mut raw = self.raw().await;
        let sql = "SELECT s.name, h.hour_us, h.revision, h.covered_ns, h.body \
                   FROM node_hour h JOIN scope s ON s.scope_id = h.scope_id";
        let hours = raw.rows::<(String, i64, i64, i64, Vec<u8>)>(sql).await;
        let hours = hours.into_iter().map(|(node, hour, revision, covered, packed)| {
            let text =
                String::from_utf8(body::unpack(&packed).expect("a body unpacks")).expect("a body is JSON");
            let hour = Instant::from_micros(hour);
            format!("node_hour {node} {hour} {revision} {covered} {} {text}", body::hex(&body::hash(&packed)))
        });
        let words = "l.project || '|' || l.mode || '|' || l.model || '|' || l.sku || '|' || l.state || '|' \
                     || l.cost_item || '|' || l.charge_item";
        let sql = format!(
            "SELECT s.name || '|' || l.workload || '|' || {words}, t.name, l.day, l.revision, l.quantity FROM node_day l \
             JOIN scope s ON s.scope_id = l.scope_id JOIN tenant t ON t.tenant_id = l.tenant_id"
        );
        let days = raw.rows::<(String, String, i64, i64, i64)>(&sql).await;
        let sql = format!(
            "SELECT {words}, t.name, l.day, l.revision, l.quantity FROM tenant_day l \
             JOIN tenant t ON t.tenant_id = l.tenant_id"
        );
        let sums = raw.rows::<(String, String, i64, i64, i64)>(&sql).await;
        let sql = format!(
            "SELECT {words}, t.name, l.first_day, l.revision, l.quantity FROM tenant_month l \
             JOIN tenant t ON t.tenant_id = l.tenant_id"
        );
        let months = raw.rows::<(String, String, i64, i64, i64)>(&sql).await;
        let line = |level: &'static str| {
            move |(words, tenant, day, revision, quantity): (String, String, i64, i64, i64)| {
                format!("{level} {day} {tenant} {words} {revision} {quantity}")
            }
        };
        let mut lines: Vec<String> = hours
            .chain(days.into_iter().map(line("node_day")))
            .chain(sums.into_iter().map(line("tenant_day")))
            .chain(months.into_iter().map(line("tenant_month")))
            .collect();
        lines.sort();
        lines.join("\n")
    }

    /// Waits until so many of the service's sessions wait for a lock of another's.
    pub async fn waiting_for_locks(&self, sessions: i64) {
        let mut raw = self.raw().await;
        let sql = "SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() \
                   AND application_name = 'fatia' AND wait_event_type = 'Lock'";
        eventually("the sessions wait", async || raw.number(sql).await == sessions).await;
    }

    /// Rows of a table.
    pub async fn count(&self, table: &str) -> i64 {
        self.raw().await.number(&format!("SELECT COUNT(*) FROM {table}")).await
    }

    /// Kinds and details of all findings, in order.
    pub async fn findings(&self) -> Vec<(String, String)> {
        let sql = "SELECT kind, detail FROM finding ORDER BY kind, subject, since_us";
        self.raw().await.rows(sql).await
    }
}

/// Derives until nothing is marked that this worker may clear.
pub async fn derive(platform: &Platform, holder: &str) -> Result<Derived, ServiceError> {
    derive_all(platform, &Worker { holder: holder.to_owned(), lease_seconds: 60 }, &|_| ()).await
}

/// Runs a unit of work that writes, as services do.
pub async fn write<T, E, F>(platform: &Platform, work: F) -> Result<T, E>
where
    F: for<'t> Fn(&'t PlatformScope, &'t WriteTx) -> BoxFuture<'t, Result<T, E>> + Send + Sync + 'static,
    T: Send + 'static,
    E: UnitError,
{
    let (scope, work) = (platform.scope(), Arc::new(work));
    platform
        .store
        .write(&platform.scope(), move |tx| {
            let (scope, work) = (scope.clone(), Arc::clone(&work));
            unit(async move { work(&scope, tx).await })
        })
        .await
}

/// Runs a unit of work that reads, as services do.
pub async fn read<T, F>(platform: &Platform, work: F) -> Result<T, StoreError>
where
    F: for<'t> FnOnce(&'t PlatformScope, &'t ReadTx) -> BoxFuture<'t, Result<T, StoreError>> + Send + 'static,
    T: Send + 'static,
{
    let scope = platform.scope();
    platform.store.read(&platform.scope(), move |tx| unit(async move { work(&scope, tx).await })).await
}

/// Waits until a state is there, and fails when it does not come.
pub async fn eventually(what: &str, mut is_there: impl AsyncFnMut() -> bool) {
    let patience = tokio::time::Instant::now() + Duration::from_secs(20);
    while !is_there().await {
        assert!(tokio::time::Instant::now() < patience, "never: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A connection beside the store.
pub enum Raw {
    Sqlite(SqliteConnection),
    Postgres(PgConnection),
}

impl Raw {
    /// Runs statements; returns how many rows the last touched.
    pub async fn run(&mut self, sql: &str) -> u64 {
        self.try_run(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    pub async fn try_run(&mut self, sql: &str) -> Result<u64, sqlx::Error> {
        let statement = sqlx::raw_sql(AssertSqlSafe(sql.to_owned()));
        Ok(match self {
            Raw::Sqlite(connection) => statement.execute(connection).await?.rows_affected(),
            Raw::Postgres(connection) => statement.execute(connection).await?.rows_affected(),
        })
    }

    /// All rows of a query, as tuples.
    pub async fn rows<T>(&mut self, sql: &str) -> Vec<T>
    where
        T: for<'r> FromRow<'r, SqliteRow> + for<'r> FromRow<'r, PgRow> + Send + Unpin,
    {
        let text = AssertSqlSafe(sql.to_owned());
        let rows = match self {
            Raw::Sqlite(connection) => sqlx::query_as(text).fetch_all(connection).await,
            Raw::Postgres(connection) => sqlx::query_as(text).fetch_all(connection).await,
        };
        rows.unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    /// The one number that a query gives.
    pub async fn number(&mut self, sql: &str) -> i64 {
        match self.rows::<(i64,)>(sql).await.as_slice() {
            [(number,)] => *number,
            rows => panic!("{sql}: {} rows", rows.len()),
        }
    }
}

fn csv(header: &str, lines: &str, fields: impl Fn(&[&str]) -> String) -> String {
    let mut table = format!("{header}\n");
    for line in lines.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let words: Vec<&str> = line.split_whitespace().collect();
        table.push_str(&fields(&words));
        table.push('\n');
    }
    table
}

fn time(words: &[&str], place: usize) -> String {
    words.get(place).filter(|text| **text != "-").map(|text| at(text).to_string()).unwrap_or_default()
}

/// Lines `node device model from [to]` as a table of an inventory.
pub fn inventory_csv(lines: &str) -> String {
    csv("node,gpu_uuid,gpu_model,in_service_from,in_service_to", lines, |words| {
        format!("{},{},{},{},{}", words[0], words[1], words[2], time(words, 3), time(words, 4))
    })
}

/// Lines `workload owner node device mode from [to]` as a table of intervals. The owner is `tenant/project`, `tenant`
/// or `-`; the mode has its share or profile behind a colon: `mps:250000`, `mig:1g.10gb`.
pub fn intervals_csv(lines: &str) -> String {
    let header = "workload,tenant,project,node,gpu_uuid,mode,share_ppm,profile,start,end";
    csv(header, lines, |words| {
        let (tenant, project) = owner(words[1]);
        let (mode, size) = words[4].split_once(':').unwrap_or((words[4], ""));
        let is_share = size.bytes().all(|byte| byte.is_ascii_digit());
        let (share, profile) = if is_share { (size, "") } else { ("", size) };
        let (tenant, project) = (tenant.unwrap_or_default(), project.unwrap_or_default());
        let (from, to) = (time(words, 5), time(words, 6));
        format!(
            "{},{tenant},{project},{},{},{mode},{share},{profile},{from},{to}",
            words[0], words[2], words[3]
        )
    })
}

fn owner(text: &str) -> (Option<&str>, Option<&str>) {
    match text.split_once('/') {
        Some((tenant, project)) => (Some(tenant), Some(project)),
        None => ((text != "-").then_some(text), None),
    }
}

/// Who sends signed batches: an agent on a node, or an import.
pub struct Sender {
    pub source: Source,
    pub scope: ScopeName,
    pub stream: Uuid,
    pub signer: BatchSigner,
}

impl Sender {
    /// An agent of a node. Its key and stream follow from the node's name.
    pub fn agent(node: &str) -> Sender {
        let source = Source { rank: SourceRank::HostAgent, sender: name(&format!("agent-of-{node}")) };
        Sender::new(source, node, &[9; 32])
    }

    /// An import, signed by the installation.
    pub fn import(platform: &Platform, source: &str, node: &str) -> Sender {
        let source = Source { rank: SourceRank::Import, sender: name(source) };
        Sender::new(source, node, &platform.installation.signing_seed)
    }

    fn new(source: Source, node: &str, seed: &[u8; 32]) -> Sender {
        let stream = Uuid::new_v5(&Uuid::from_u128(1), format!("{} {node}", source.sender).as_bytes());
        let scope = ScopeName { kind: ScopeKind::Node, name: name(node) };
        Sender { source, scope, stream, signer: BatchSigner::from_seed(seed) }
    }

    pub fn credential(&self) -> Credential {
        let key = BatchVerifier::new(&self.signer.public_key()).expect("a seed's key is usable");
        Credential { key, source: self.source.clone() }
    }

    /// A batch: lines `workload owner device mode from to` and, of what is vouched for, `device from to`. Its span is
    /// from the earliest instant to the latest.
    pub fn batch(&self, sequence: i64, rows: &str, coverage: &str) -> SignedBatch {
        let (span, message) = self.message(rows, coverage);
        self.sign(sequence, span, &message)
    }

    /// The same before it is compressed and signed.
    pub fn message(&self, rows: &str, coverage: &str) -> (Span, Vec<u8>) {
        let mut batch = Batch::default();
        for line in rows.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let words: Vec<&str> = line.split_whitespace().collect();
            let field = match self.source.rank {
                SourceRank::Import => EvidenceField::Workload,
                _ => EvidenceField::Pod,
            };
            let (tenant, project) = owner(words[1]);
            let seen = [
                Some((field, name(words[0]))),
                tenant.map(|tenant| (EvidenceField::Tenant, name(tenant))),
                project.map(|project| (EvidenceField::Project, name(project))),
            ];
            batch.evidence.push(seen.into_iter().flatten().collect::<Evidence>());
            let (mode, size) = words[3].split_once(':').unwrap_or((words[3], ""));
            let size = match size.parse() {
                Ok(share) => SliceSize::Declared(share),
                Err(_) if size.is_empty() => SliceSize::Whole,
                Err(_) => SliceSize::Profile(name(size)),
            };
            let mode = SharingMode::parse(mode).unwrap_or_else(|error| panic!("{error}"));
            batch.slices.push(Slice::plain(name(words[2]), mode, size));
            let held = span(&words[4..].join(" "));
            let number = batch.rows.len();
            batch.rows.push(Row { slice: number, evidence: number, span: held, uncut: held });
        }
        for line in coverage.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let (device, vouched) = line.split_once(' ').expect("a device and a span");
            let (device, span) = (name(device), span(vouched));
            batch.coverage.push(Coverage { device, span, of: CoverageOf::Holding });
        }
        let spans =
            || batch.rows.iter().map(|row| row.span).chain(batch.coverage.iter().map(|each| each.span));
        let start = spans().map(Span::start).min().expect("a batch says something");
        let whole = Span::clamped(start, spans().map(Span::end).max().unwrap_or(start));
        (whole, usage_v1::encode(&self.scope, &self.source, &batch).expect("a batch is a message"))
    }

    pub fn sign(&self, sequence: i64, span: Span, message: &[u8]) -> SignedBatch {
        self.sign_body(sequence, span, body::pack(message).expect("a small message"))
    }

    pub fn sign_body(&self, sequence: i64, span: Span, body: Vec<u8>) -> SignedBatch {
        let claims = BatchClaims {
            body_hash: body::hash(&body),
            issuer: self.source.sender.to_string(),
            subject: None,
            scope: self.scope.clone(),
            stream: self.stream,
            sequence,
            span,
        };
        SignedBatch { signature: self.signer.sign(&claims).expect("claims can be signed"), body }
    }
}
