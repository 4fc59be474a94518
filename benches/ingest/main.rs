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

use std::path::Path;
use std::time::Instant as Moment;

use fatia::domain::units::{Instant, MICROS_PER_HOUR, MICROS_PER_SECOND};
use fatia::wire::agent_v1;
use serde_json::Value;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, PgConnection};

use fleet::{Agent, Chance, Connection, Sending, Service, cpu_of_server, now, parent, request};

mod fleet;
mod lag;
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
#[path = "../../tests/it/support/postgres.rs"]
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
    let asked: Vec<String> = std::env::args().collect();
    if asked.iter().any(|each| each == "lag") {
        return match postgres::Cluster::try_start(true) {
            Err(reason) => Err(reason.into()),
            Ok(cluster) => lag::measure(&runtime, &cluster),
        };
    }
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
