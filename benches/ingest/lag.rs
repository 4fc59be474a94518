//! How long after a batch is accepted reports have it: a thousand nodes, each with eight boards of seven slices, that send
//! every five minutes, spread as agents spread themselves, while the worker rolls up and attributes. PostgreSQL.
//!
//! `cargo bench --bench ingest -- lag`. It takes as long as three rounds of the fleet: a quarter of an hour.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant as Moment};

use fatia::domain::units::Instant;
use fatia::wire::agent_v1;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};

use super::fleet::{Agent, Connection, Service, cpu_of_server, now, parent, request};
use super::{MINUTE, Outcome, postgres};

const NODES: i64 = 1_000;
const CLIENTS: usize = 8;
/// Each node sends so often.
const ROUNDS: i64 = 3;
const EVERY: Duration = Duration::from_secs(300);
/// What is behind by then is a failure, and not a delay.
const PATIENCE: Duration = Duration::from_secs(900);

/// Batches that were accepted and that no report has yet, by node.
type Waiting = Mutex<HashMap<String, Vec<Moment>>>;

/// Runs the fleet, and prints how far reports are behind it.
pub(super) fn measure(runtime: &tokio::runtime::Runtime, cluster: &postgres::Cluster) -> Outcome<()> {
    let folder = tempfile::tempdir()?;
    let database = runtime.block_on(postgres::TestDatabase::fresh_on(cluster));
    let service = Service::start(folder.path(), Some(&database.app_url), true)?;
    let mut raw = runtime.block_on(PgConnection::connect(&database.superuser_url))?;
    let backend: i32 = runtime.block_on(sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut raw))?;
    let postmaster = parent(backend).ok_or("no postmaster")?;
    // The first five minutes are over when the first node sends.
    let begin = Instant::from_micros((now().micros() - 6 * MINUTE).div_euclid(MINUTE) * MINUTE);
    let began = Moment::now();
    let mut agents = Vec::new();
    for number in 0..NODES {
        agents.push(Agent::enrol(&service, number, begin)?);
    }
    println!("{NODES} nodes enrolled in {:.1} s", began.elapsed().as_secs_f64());
    let (waiting, is_over) = (Waiting::default(), AtomicBool::new(false));
    let (cpu, cpu_server) = (service.cpu()?, cpu_of_server(postmaster)?);
    let began = Moment::now();
    let (lags, answers) = std::thread::scope(|scope| -> Outcome<_> {
        let mut clients = Vec::new();
        let mut rest = agents;
        for client in 0..CLIENTS {
            let own = rest.split_off(rest.len() - rest.len() / (CLIENTS - client));
            let (service, waiting) = (&service, &waiting);
            clients.push(scope.spawn(move || send(service, own, client, waiting, began)));
        }
        let watcher = scope.spawn(|| watch(runtime, &mut raw, &waiting, &is_over));
        let mut answers = Vec::new();
        let mut failed = None;
        for client in clients {
            match client.join().map_err(|_| "a client panicked")? {
                Ok(own) => answers.extend(own),
                Err(error) => failed = Some(error),
            }
        }
        is_over.store(true, Ordering::Release);
        let lags = watcher.join().map_err(|_| "the watcher panicked")??;
        failed.map_or(Ok((lags, answers)), Err)
    })?;
    let elapsed = began.elapsed().as_secs_f64();
    let quantile = |all: &mut Vec<f64>, percent: usize| -> f64 {
        all.sort_by(f64::total_cmp);
        all.get(all.len().saturating_sub(1) * percent / 100).copied().unwrap_or_default()
    };
    let (mut lags, mut answers) = (lags, answers);
    println!(
        "{} batches of 280 windows in {elapsed:.0} s; accepted after {:.0} ms (p99)",
        answers.len(),
        quantile(&mut answers, 99) * 1e3
    );
    println!(
        "in reports after {:.1} s (median), {:.1} s (p99), {:.1} s (most); target 360 s (p99)",
        quantile(&mut lags, 50),
        quantile(&mut lags, 99),
        quantile(&mut lags, 100)
    );
    println!(
        "CPU: the service {:.1} %, PostgreSQL {:.1} % of one core",
        (service.cpu()? - cpu) / elapsed * 100.0,
        (cpu_of_server(postmaster)? - cpu_server) / elapsed * 100.0
    );
    Ok(())
}

/// Sends for some of the nodes, each at its own time; how long each answer took.
fn send(
    service: &Service,
    mut agents: Vec<Agent>,
    client: usize,
    waiting: &Waiting,
    began: Moment,
) -> Outcome<Vec<f64>> {
    let mut connection = Connection::open(&service.address)?;
    let mut took = Vec::new();
    let count = u32::try_from(agents.len())?;
    for round in 0..ROUNDS {
        for (number, agent) in agents.iter_mut().enumerate() {
            // Clients take turns inside the step from one of their nodes to the next.
            let step = EVERY / count;
            let phase =
                step * u32::try_from(number)? + step / u32::try_from(CLIENTS)? * u32::try_from(client)?;
            let due = EVERY * u32::try_from(round)? + phase;
            std::thread::sleep(due.saturating_sub(began.elapsed()));
            let sending = agent.live(round)?;
            let place = Some(sending.place.clone());
            let token = agent.sign("POST", agent_v1::BATCHES_PATH, &sending.bytes, place)?;
            let media = agent_v1::BATCH_TYPE;
            let asked = request("POST", agent_v1::BATCHES_PATH, &token, media, &sending.bytes);
            let sent = Moment::now();
            let (status, answer) = connection.ask(&asked)?;
            if status != 200 || !answer.contains("\"outcome\":\"accepted\"") {
                return Err(format!("{status} {answer}").into());
            }
            took.push(sent.elapsed().as_secs_f64());
            let mut waiting = waiting.lock().map_err(|_| "a client panicked")?;
            waiting.entry(agent.node.to_string()).or_default().push(Moment::now());
        }
    }
    Ok(took)
}

/// Looks once a second which nodes have hours that are to be derived anew; how long each batch was among them.
fn watch(
    runtime: &tokio::runtime::Runtime,
    raw: &mut PgConnection,
    waiting: &Waiting,
    is_over: &AtomicBool,
) -> Outcome<Vec<f64>> {
    let sql = "SELECT DISTINCT s.name FROM dirty_node d JOIN scope s ON s.scope_id = d.scope_id";
    let mut lags = Vec::new();
    let mut over_since = None;
    loop {
        let looked = Moment::now();
        let dirty: Vec<String> =
            runtime.block_on(sqlx::query_scalar(AssertSqlSafe(sql)).fetch_all(&mut *raw))?;
        let mut all = waiting.lock().map_err(|_| "a client panicked")?;
        for (node, accepted) in all.iter_mut().filter(|(node, _)| !dirty.contains(node)) {
            let _node = node;
            // One that was accepted after the look may have a mark by now.
            let (done, rest): (Vec<_>, Vec<_>) = accepted.drain(..).partition(|at| *at < looked);
            lags.extend(done.into_iter().map(|at| looked.duration_since(at).as_secs_f64()));
            *accepted = rest;
        }
        let left: usize = all.values().map(Vec::len).sum();
        drop(all);
        if is_over.load(Ordering::Acquire) {
            if left == 0 {
                return Ok(lags);
            }
            if over_since.get_or_insert(looked).elapsed() > PATIENCE {
                return Err(format!("{left} batches are in no report").into());
            }
        }
        std::thread::sleep(Duration::from_secs(1));
    }
}
