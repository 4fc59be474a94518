//! How long a month's cost report takes over HTTP, on both databases, beside DuckDB summing the same hours from a file of
//! its own, and beside a route that says hello, in one run. Absolute figures move with the machine; the ratios are what
//! to compare.
//!
//! The sums are put where derivation leaves them, by plain SQL: this is about reading a month, not about making it. All
//! contestants take turns, so that what slows the machine down slows all of them.
//!
//! Needs nothing that is not there: without PostgreSQL's programs, or without Python's `duckdb` (`JUDGE_PYTHON` names
//! the interpreter), it says so and measures the rest.

#![allow(clippy::print_stdout, clippy::panic, reason = "a bench prints, and ends where it cannot measure")]

use std::collections::HashMap;
use std::error::Error;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Instant as Moment;

use actix_web::{App, HttpServer, web};
use fatia::domain::units::{Instant, MICROS_PER_HOUR, Quantity};
use fatia::http::{Door, Running, Settings, start};
use fatia::services::ctx::{BillingSettings, Clock, Platform};
use fatia::store::Store;
use fatia::wire::token;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, SqliteConnection};

#[allow(
    dead_code,
    unused_imports,
    unreachable_pub,
    missing_debug_implementations,
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "the tests' own: it is shared so that one place knows how a server is started, and not all of it is used"
)]
#[path = "../tests/it/support/postgres.rs"]
mod postgres;

type Outcome<T> = Result<T, Box<dyn Error>>;

const SLICES: usize = 10_000;
/// How many times as many slices the second measurement has, for the same tenants and projects.
const GROWTH: usize = 10;
const SLICES_OF_DEVICE: usize = 8;
const DEVICES_OF_NODE: usize = 8;
const TENANTS: usize = 50;
const PROJECTS_OF_TENANT: usize = 20;
const DAYS: usize = 30;
const ROUNDS: usize = 21;
const WARM_UP: usize = 4;
/// Rows of one INSERT.
const ROWS_AT_ONCE: usize = 400;

/// What a slice is: its mode, its device's model, its article, and the price of a GPU-hour in 10^-8.
const KINDS: [(&str, &str, &str, i64); 4] = [
    ("mig", "A100-SXM4-80GB", "mig:1g.10gb", 175_000_000),
    ("mps", "H100-SXM5-80GB", "mps:125000", 210_000_000),
    ("time_slicing", "A10", "time_slicing:125000", 95_000_000),
    ("vgpu", "L40S", "vgpu:6q", 320_000_000),
];
const GROUPS: usize = TENANTS * PROJECTS_OF_TENANT * KINDS.len();

const FATIA_SQLITE: &str = "Fatia, SQLite";
const FATIA_SQLITE_GROWN: &str = "Fatia, SQLite, 10 times the slices";
const FATIA_SQLITE_BEHIND: &str = "Fatia, SQLite, a day behind";
const FATIA_POSTGRES_BEHIND: &str = "Fatia, PostgreSQL, a day behind";
const FATIA_POSTGRES: &str = "Fatia, PostgreSQL";
const FATIA_POSTGRES_GROWN: &str = "Fatia, PostgreSQL, 10 times the slices";
const DUCKDB: &str = "DuckDB, its own file";
const HELLO: &str = "hello";

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let measured = match runtime {
        Ok(runtime) => runtime.block_on(measure()),
        Err(error) => panic!("{error}"),
    };
    if let Err(error) = measured {
        panic!("{error}");
    }
}

async fn measure() -> Outcome<()> {
    println!(
        "a month of {SLICES} slices and of {} in {GROUPS} groups, {ROUNDS} rounds of taking turns, wall time",
        SLICES * GROWTH
    );
    let (few, many) = (Month::of(SLICES), Month::of(SLICES * GROWTH));
    let folder = tempfile::tempdir()?;
    let mut services = vec![
        Service::on_sqlite(FATIA_SQLITE, &folder.path().join("few"), &few, Days::Summed).await?,
        Service::on_sqlite(FATIA_SQLITE_GROWN, &folder.path().join("many"), &many, Days::Summed).await?,
        Service::on_sqlite(FATIA_SQLITE_BEHIND, &folder.path().join("behind"), &few, Days::LastIsBehind)
            .await?,
    ];
    let cluster = match postgres::Cluster::try_start(false) {
        Ok(cluster) => Some(cluster),
        Err(reason) => {
            println!("skipped: PostgreSQL. {reason}");
            None
        }
    };
    if let Some(cluster) = &cluster {
        services.push(Service::on_postgres(FATIA_POSTGRES, cluster, &few, Days::Summed).await?);
        services.push(Service::on_postgres(FATIA_POSTGRES_GROWN, cluster, &many, Days::Summed).await?);
        let behind = Days::LastIsBehind;
        services.push(Service::on_postgres(FATIA_POSTGRES_BEHIND, cluster, &few, behind).await?);
    }
    let mut duckdb = DuckDb::start(&folder.path().join("slice_hour.duckdb"))?;
    let hello = Hello::start()?;
    let _already = rustls::crypto::ring::default_provider().install_default();
    let client = reqwest::Client::new();

    let mut times: HashMap<&str, Vec<f64>> = HashMap::new();
    for round in 0..WARM_UP + ROUNDS {
        let mut note = |name, milliseconds| {
            if round >= WARM_UP {
                times.entry(name).or_default().push(milliseconds);
            }
        };
        note(HELLO, hello.ask(&client).await?);
        for service in &services {
            note(service.name, service.report(&client, round == 0).await?);
        }
        if let Some(duckdb) = &mut duckdb {
            note(DUCKDB, duckdb.report(&few)?);
        }
    }
    show(&times);
    for service in services {
        service.running.stop().await;
    }
    Ok(())
}

fn show(times: &HashMap<&str, Vec<f64>>) {
    let middle = |name: &str| {
        let mut all = times.get(name).cloned()?;
        all.sort_by(f64::total_cmp);
        Some((*all.get(all.len() / 2)?, *all.first()?, *all.last()?))
    };
    let all = [
        HELLO,
        FATIA_SQLITE,
        FATIA_SQLITE_GROWN,
        FATIA_SQLITE_BEHIND,
        FATIA_POSTGRES,
        FATIA_POSTGRES_GROWN,
        FATIA_POSTGRES_BEHIND,
        DUCKDB,
    ];
    for name in all {
        if let Some((median, least, most)) = middle(name) {
            println!("{name:<40} {median:>9.2} ms (min {least:.2}, max {most:.2})");
        }
    }
    let ratio = |what: &str, one: &str, other: &str, target: &str| {
        if let (Some((one, ..)), Some((other, ..))) = (middle(one), middle(other)) {
            println!("{what:<40} {:>9.3} {target}", one / other);
        }
    };
    let (beside, grown) = ("(at most 0.35)", "(at most 1.3)");
    ratio("ratio SQLite / DuckDB", FATIA_SQLITE, DUCKDB, beside);
    ratio("ratio PostgreSQL / DuckDB", FATIA_POSTGRES, DUCKDB, beside);
    ratio("ratio SQLite / DuckDB, a day behind", FATIA_SQLITE_BEHIND, DUCKDB, "");
    ratio("ratio PostgreSQL / DuckDB, a day behind", FATIA_POSTGRES_BEHIND, DUCKDB, "");
    ratio("ratio 10 times the slices, SQLite", FATIA_SQLITE_GROWN, FATIA_SQLITE, grown);
    ratio("ratio 10 times the slices, PostgreSQL", FATIA_POSTGRES_GROWN, FATIA_POSTGRES, grown);
    ratio("ratio SQLite / hello", FATIA_SQLITE, HELLO, "");
    ratio("ratio PostgreSQL / hello", FATIA_POSTGRES, HELLO, "");
}

/// How far the tenants' sums are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Days {
    /// All days are summed.
    Summed,
    /// The last day's nodes were derived again, and its tenants are not summed yet: so it is for some seconds of every
    /// five minutes on a fleet that reports.
    LastIsBehind,
}

impl Days {
    fn statements(self) -> Vec<String> {
        if self == Self::Summed {
            return vec![];
        }
        let last = first_day() + DAYS as i64 - 1;
        let keys =
            "day, revision, tenant_id, project, mode, model, sku, state, cost_item, charge_item, quantity";
        vec![
            format!(
                "INSERT INTO node_day (scope_id, workload, {keys}) SELECT 1, 'w', {keys} FROM tenant_day WHERE day = {last}"
            ),
            format!(
                "INSERT INTO dirty_tenant_day (bucket, day, tenant_id, version) SELECT tenant_id, {last}, tenant_id, 1 FROM tenant"
            ),
        ]
    }
}

/// June 2026 of so many slices, as sums.
struct Month {
    slices: usize,
    /// Millionths of a GPU-hour by day and group.
    used: Vec<Vec<i64>>,
}

impl Month {
    fn of(slices: usize) -> Self {
        let mut used = vec![vec![0; GROUPS]; DAYS];
        for (day, of_day) in used.iter_mut().enumerate() {
            for hour in day * 24..(day + 1) * 24 {
                for slice in 0..slices {
                    if let Some(sum) = of_day.get_mut(slice % GROUPS) {
                        *sum += used_of(slice, hour);
                    }
                }
            }
        }
        Self { slices, used }
    }

    fn devices(&self) -> usize {
        self.slices / SLICES_OF_DEVICE
    }

    fn total_used(&self) -> i64 {
        self.used.iter().flatten().sum()
    }

    /// The rows that derivation would leave, as statements that both databases take but for `no_hash`, 32 bytes.
    fn statements(&self, no_hash: &str) -> Vec<String> {
        let mut statements = Vec::new();
        let mut insert = |into: &str, rows: &mut dyn Iterator<Item = String>| {
            loop {
                let rows: Vec<String> = rows.take(ROWS_AT_ONCE).collect();
                if rows.is_empty() {
                    return;
                }
                statements.push(format!("INSERT INTO {into} VALUES {}", rows.join(", ")));
            }
        };
        insert(
            "tenant (tenant_id, name, origin, created_us)",
            &mut (0..TENANTS)
                .map(|tenant| format!("({}, '{}', 'import', 0)", tenant + 1, tenant_name(tenant))),
        );
        insert(
            "project (tenant_id, name, origin, created_us)",
            &mut (0..TENANTS * PROJECTS_OF_TENANT).map(|project| {
                let tenant = project / PROJECTS_OF_TENANT;
                format!("({}, '{}', 'import', 0)", tenant + 1, project_name(project))
            }),
        );
        insert(
            "scope (scope_id, kind, name, bucket, created_us)",
            &mut (0..self.devices().div_ceil(DEVICES_OF_NODE))
                .map(|node| format!("({}, 'node', 'node-{node:05}', {}, 0)", node + 1, node % 256)),
        );
        insert(
            "device (device_id, uuid, model, created_us)",
            &mut (0..self.devices()).zip(KINDS.iter().cycle()).map(|(device, (_, model, ..))| {
                format!("({}, 'GPU-{device:08x}-bench', '{model}', 0)", device + 1)
            }),
        );
        let (from, to) = (month_start().micros(), month_end().micros());
        insert(
            "device_service (device_id, from_us, scope_id, node_index, edge_us, counted_to_us, covered_to_us)",
            &mut (0..self.devices()).map(|device| {
                let (node, index) = (device / DEVICES_OF_NODE + 1, device % DEVICES_OF_NODE);
                format!("({}, {from}, {node}, {index}, {to}, {to}, {to})", device + 1)
            }),
        );
        insert(
            "price_version (name, revision, from_us, currency, content_hash, published_us)",
            &mut std::iter::once(format!("('list', 1, {from}, 'EUR', {no_hash}, 0)")),
        );
        insert(
            "price_item (name, revision, book, item_key, unit_price)",
            &mut ["cost", "charge"].into_iter().flat_map(|book| {
                KINDS
                    .iter()
                    .map(move |(_, model, _, price)| format!("('list', 1, '{book}', '{model}', {price})"))
            }),
        );
        insert(
            "tenant_day (day, tenant_id, revision, project, mode, model, sku, state, cost_item, charge_item, \
             quantity, metered, energy_mj)",
            &mut self.used.iter().zip(first_day()..).flat_map(|(of_day, day)| self.day(day, of_day)),
        );
        let keys = "tenant_id, revision, project, mode, model, sku, state, cost_item, charge_item";
        statements.push(format!(
            "INSERT INTO tenant_month (first_day, {keys}, quantity, metered, energy_mj) SELECT {}, {keys}, \
             CAST(SUM(quantity) AS BIGINT), CAST(SUM(metered) AS BIGINT), CAST(SUM(energy_mj) AS BIGINT) \
             FROM tenant_day GROUP BY {keys}",
            first_day()
        ));
        statements
    }

    /// A day's rows of `tenant_day`: what each group used, and the rest of the devices' time, which nobody held.
    fn day(&self, day: i64, used: &[i64]) -> Vec<String> {
        let mut rows: Vec<String> = used
            .iter()
            .zip(KINDS.iter().cycle())
            .enumerate()
            .map(|(group, (quantity, (mode, model, sku, _)))| {
                let project = group / KINDS.len();
                format!(
                    "({day}, {}, 0, '{}', '{mode}', '{model}', '{sku}', 'used', 'list#1/{model}', 'list#1/{model}', \
                     {quantity}, {quantity}, {})",
                    project / PROJECTS_OF_TENANT + 1,
                    project_name(project),
                    quantity * 9
                )
            })
            .collect();
        let in_service = i64::try_from(self.devices()).unwrap_or(0) * 24 * 1_000_000;
        let mut idle = in_service - used.iter().sum::<i64>();
        // Both sides of the identity are to be equal to the millionth: the last takes what division left.
        for (left, (_, model, ..)) in (1_i64..=4).rev().zip(KINDS) {
            let quantity = idle / left;
            idle -= quantity;
            rows.push(format!(
                "({day}, 0, 0, '', '', '{model}', '{model}', 'idle', 'list#1/{model}', '', {quantity}, 0, 0)"
            ));
        }
        rows
    }
}

/// Millionths of a GPU-hour that a slice uses in an hour of the month, out of the 125,000 that it is.
fn used_of(slice: usize, hour: usize) -> i64 {
    i64::try_from((slice * 7_919 + hour * 131) % 25_000).unwrap_or(0) + 100_000
}

fn tenant_name(tenant: usize) -> String {
    format!("tenant-{tenant:03}")
}

fn project_name(project: usize) -> String {
    format!("{}-project-{:02}", tenant_name(project / PROJECTS_OF_TENANT), project % PROJECTS_OF_TENANT)
}

fn month_start() -> Instant {
    Instant::parse("2026-06-01T00:00:00Z").unwrap_or(Instant::MIN)
}

fn month_end() -> Instant {
    Instant::parse("2026-07-01T00:00:00Z").unwrap_or(Instant::MIN)
}

fn first_day() -> i64 {
    month_start().micros() / (24 * MICROS_PER_HOUR)
}

struct Fixed(Instant);

impl Clock for Fixed {
    fn now(&self) -> Instant {
        self.0
    }
}

/// The service on one database, answering.
struct Service {
    name: &'static str,
    running: Running,
    token: String,
    /// What the report is to come to, in GPU-hours.
    used: String,
}

impl Service {
    async fn on_sqlite(name: &'static str, folder: &Path, month: &Month, days: Days) -> Outcome<Self> {
        let store = Store::open(folder, "bench").await?;
        let service = Self::start(name, store, month).await?;
        let options = SqliteConnectOptions::new().filename(folder.join("fatia.db")).foreign_keys(true);
        let mut connection = SqliteConnection::connect_with(&options).await?;
        sqlx::raw_sql("BEGIN").execute(&mut connection).await?;
        for statement in month.statements("zeroblob(32)").into_iter().chain(days.statements()) {
            sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut connection).await?;
        }
        sqlx::raw_sql("COMMIT").execute(&mut connection).await?;
        connection.close().await?;
        Ok(service)
    }

    async fn on_postgres(
        name: &'static str,
        cluster: &postgres::Cluster,
        month: &Month,
        days: Days,
    ) -> Outcome<Self> {
        let database = postgres::TestDatabase::fresh_on(cluster).await;
        let store = Store::connect(&database.app_url, 4).await?;
        let service = Self::start(name, store, month).await?;
        let mut connection = PgConnection::connect(&database.superuser_url).await?;
        sqlx::raw_sql("BEGIN").execute(&mut connection).await?;
        let no_hash = "decode(repeat('00', 32), 'hex')";
        for statement in month.statements(no_hash).into_iter().chain(days.statements()) {
            sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut connection).await?;
        }
        sqlx::raw_sql("COMMIT").execute(&mut connection).await?;
        // A server does this by itself in time; the tests' one does not.
        sqlx::raw_sql("VACUUM ANALYZE").execute(&mut connection).await?;
        connection.close().await?;
        Ok(service)
    }

    async fn start(name: &'static str, store: Store, month: &Month) -> Outcome<Self> {
        let clock = Arc::new(Fixed(month_end()));
        let platform =
            Platform::open(store, "bench".to_owned(), clock, BillingSettings::default(), [7; 32]).await?;
        let minted = token::mint(&[7; 40]);
        let settings = Settings {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            tls: None,
            threads: 2,
            connections_max: 64,
            head_seconds: 10,
            body_seconds: 10,
            stop_seconds: 1,
            token_rate: 0,
            token_burst: 0,
            address_rate: 0,
            address_burst: 0,
            import_mib_max: 1,
        };
        let random = |bytes: &mut [u8]| {
            bytes.fill(7);
            Ok(())
        };
        let door = Door { settings, token: minted.clone(), random };
        let used = Quantity::from_micro(month.total_used()).to_string();
        Ok(Self { name, running: start(&platform, door)?, token: minted.text, used })
    }

    /// Asks for the report: how many milliseconds until all of it is there.
    async fn report(&self, client: &reqwest::Client, is_checked: bool) -> Outcome<f64> {
        let address = self.running.address;
        let url = format!("http://{address}/api/v1/reports/costs?period=2026-06&group_by=project,mode");
        let began = Moment::now();
        let response = client.get(url).bearer_auth(&self.token).send().await?;
        let status = response.status();
        let body = response.bytes().await?;
        let milliseconds = began.elapsed().as_secs_f64() * 1_000.0;
        if !status.is_success() {
            return Err(format!("{}: {status} {}", self.name, String::from_utf8_lossy(&body)).into());
        }
        if is_checked {
            let report: serde_json::Value = serde_json::from_slice(&body)?;
            let list =
                |name: &str| report.get(name).and_then(serde_json::Value::as_array).into_iter().flatten();
            let used = list("totals").find(|total| total.get("state").is_some_and(|state| state == "used"));
            assert_eq!(list("groups").count(), GROUPS + 1, "every group, and what nobody held");
            assert_eq!(used.and_then(|used| used.get("gpu_hours")?.as_str()), Some(self.used.as_str()));
        }
        Ok(milliseconds)
    }
}

/// The least that this framework does for a request.
struct Hello {
    address: SocketAddr,
}

impl Hello {
    fn start() -> Outcome<Self> {
        let server = HttpServer::new(|| App::new().route("/", web::get().to(async || "hello")))
            .workers(2)
            .disable_signals()
            .bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = server.addrs().first().copied().ok_or("it listens nowhere")?;
        tokio::spawn(server.run());
        Ok(Self { address })
    }

    async fn ask(&self, client: &reqwest::Client) -> Outcome<f64> {
        let began = Moment::now();
        let body = client.get(format!("http://{}/", self.address)).send().await?.bytes().await?;
        let milliseconds = began.elapsed().as_secs_f64() * 1_000.0;
        assert_eq!(&body[..], b"hello");
        Ok(milliseconds)
    }
}

/// Another process with the same hours in a DuckDB file, which times itself.
struct DuckDb {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl DuckDb {
    /// None where it is not installed.
    fn start(file: &Path) -> Outcome<Option<Self>> {
        #[expect(clippy::disallowed_methods, reason = "a bench has no settings but its environment")]
        let python = std::env::var_os("JUDGE_PYTHON").unwrap_or_else(|| "python3".into());
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/duckdb_report.py");
        let mut command = Command::new(python);
        command.arg(script).arg(file).arg(SLICES.to_string()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = match command.spawn() {
            Ok(process) => process,
            Err(error) => {
                println!("skipped: DuckDB. Python does not start: {error}");
                return Ok(None);
            }
        };
        let (Some(input), Some(output)) = (process.stdin.take(), process.stdout.take()) else {
            return Err("a process without pipes".into());
        };
        let mut duckdb = Self { process, input, output: BufReader::new(output) };
        let ready = duckdb.line()?;
        match ready.split_whitespace().collect::<Vec<_>>()[..] {
            ["ready", version, rows] => {
                println!("DuckDB {version}, {rows} rows, 2 threads");
                Ok(Some(duckdb))
            }
            _ => {
                println!(
                    "skipped: DuckDB. Python's `duckdb` cannot be imported; JUDGE_PYTHON names another Python"
                );
                Ok(None)
            }
        }
    }

    fn line(&mut self) -> Outcome<String> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        Ok(line)
    }

    /// Asks for the report: how many milliseconds it took, by its own clock.
    fn report(&mut self, month: &Month) -> Outcome<f64> {
        writeln!(self.input, "report")?;
        let line = self.line()?;
        let [milliseconds, groups, used] = line.split_whitespace().collect::<Vec<_>>()[..] else {
            return Err(format!("DuckDB's side answered `{line}`").into());
        };
        assert_eq!(
            (groups.parse(), used.parse()),
            (Ok(GROUPS), Ok(month.total_used())),
            "both report the same"
        );
        Ok(milliseconds.parse()?)
    }
}

impl Drop for DuckDb {
    fn drop(&mut self) {
        // It has nothing to finish: its file goes with the folder.
        let _ended_already = self.process.kill();
        let _status = self.process.wait();
    }
}
