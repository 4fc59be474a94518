//! On PostgreSQL: several workers, slow and cut connections, a database that dies and comes back.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fatia::domain::ids::{Bucket, Name};
use fatia::domain::usage::{Source, SourceRank};
use fatia::services::accept::{Credential, accept};
use fatia::services::ctx::Platform;
use fatia::services::derive::{self, Worker};
use fatia::wire::ack::Outcome;
use fatia::wire::body;
use fatia::wire::signature::BatchVerifier;
use sqlx::{Connection as _, PgConnection};
use tokio::task::{JoinHandle, JoinSet};

use super::fleet::{
    Change, Covers, Fleet, Levels, Sender, import, inventory_line, no_history, one_holding, prices,
};
use super::rig::{
    Process, Program, Random, assert_healthy, counts, derive, is_passing, named_session, now_micros,
    platform_at, platform_in, until, worker,
};
use crate::support::postgres::{Cluster, TestDatabase, slow_socket};

async fn connect(url: &str) -> PgConnection {
    PgConnection::connect(url).await.unwrap_or_else(|error| panic!("{url}: {error}"))
}

/// A second look at the database, past row security, on a connection of its own.
struct Watch(tokio::sync::Mutex<PgConnection>);

impl Watch {
    async fn on(database: &TestDatabase) -> Self {
        Self(tokio::sync::Mutex::new(connect(&database.superuser_url).await))
    }

    async fn run(&self, sql: &'static str) {
        let mut connection = self.0.lock().await;
        sqlx::raw_sql(sql).execute(&mut *connection).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    }

    async fn number(&self, sql: &'static str) -> i64 {
        let mut connection = self.0.lock().await;
        let found = sqlx::query_scalar(sql).fetch_one(&mut *connection).await;
        found.unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    async fn marks(&self) -> i64 {
        self.number("SELECT (SELECT count(*) FROM dirty_node) + (SELECT count(*) FROM dirty_tenant_day)")
            .await
    }

    async fn no_mark_is_left(&self) {
        until("no mark is left", async || self.marks().await == 0).await;
    }

    /// How many sessions of the test's database wait for a lock.
    async fn waiting(&self) -> i64 {
        self.number(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'",
        )
        .await
    }

    /// The leases that hold now: who, which bucket, in which epoch.
    async fn leases(&self) -> Vec<(String, i64, i64)> {
        let sql = "SELECT holder, bucket, epoch FROM bucket_lease WHERE until_us > $1 ORDER BY bucket";
        let mut connection = self.0.lock().await;
        let found = sqlx::query_as(sql).bind(now_micros()).fetch_all(&mut *connection).await;
        found.expect("leases can be read")
    }

    /// From now on the database itself notes each write of a worker that does not hold the lease in the
    /// transaction that writes, and each epoch that goes back or stays where the holder changes.
    async fn note_violations(&self) {
        self.run(VIOLATIONS).await;
    }

    async fn assert_no_violation(&self, when: &str) {
        let mut connection = self.0.lock().await;
        let found: Vec<String> =
            sqlx::query_scalar("SELECT DISTINCT what FROM chaos.violation ORDER BY what LIMIT 5")
                .fetch_all(&mut *connection)
                .await
                .expect("violations can be read");
        assert!(found.is_empty(), "{when}: {found:#?}");
    }
}

const VIOLATIONS: &str = "
CREATE SCHEMA chaos;
CREATE TABLE chaos.violation (what text NOT NULL);
CREATE FUNCTION chaos_write() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    who text := current_setting('fatia.worker', true);
    at_bucket bigint;
    lease record;
BEGIN
    IF who IS NULL OR who NOT LIKE 'worker%' THEN
        RETURN NULL;
    END IF;
    IF TG_TABLE_NAME IN ('dirty_node', 'dirty_tenant_day') THEN
        at_bucket := OLD.bucket;
    ELSIF TG_TABLE_NAME IN ('tenant_day', 'tenant_month') THEN
        IF TG_OP = 'DELETE' THEN at_bucket := OLD.tenant_id; ELSE at_bucket := NEW.tenant_id; END IF;
    ELSE
        IF TG_OP = 'DELETE' THEN
            SELECT bucket INTO at_bucket FROM scope WHERE scope_id = OLD.scope_id;
        ELSE
            SELECT bucket INTO at_bucket FROM scope WHERE scope_id = NEW.scope_id;
        END IF;
    END IF;
    SELECT holder, epoch, xmax = pg_current_xact_id()::xid AS locked INTO lease FROM bucket_lease WHERE bucket = at_bucket;
    IF lease.holder <> who OR NOT lease.locked THEN
        INSERT INTO chaos.violation VALUES (format('%s wrote %s of bucket %s; its holder is %s, locked by the writer: %s',
            who, TG_TABLE_NAME, at_bucket, lease.holder, lease.locked));
    END IF;
    RETURN NULL;
END $$;
CREATE FUNCTION chaos_lease() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    IF NEW.epoch < OLD.epoch OR (NEW.holder <> OLD.holder AND NEW.epoch <= OLD.epoch) THEN
        INSERT INTO chaos.violation VALUES (format('bucket %s went from %s in epoch %s to %s in epoch %s',
            OLD.bucket, OLD.holder, OLD.epoch, NEW.holder, NEW.epoch));
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER chaos AFTER DELETE ON dirty_node FOR EACH ROW EXECUTE FUNCTION chaos_write();
CREATE TRIGGER chaos AFTER DELETE ON dirty_tenant_day FOR EACH ROW EXECUTE FUNCTION chaos_write();
CREATE TRIGGER chaos AFTER INSERT OR UPDATE OR DELETE ON tenant_day FOR EACH ROW EXECUTE FUNCTION chaos_write();
CREATE TRIGGER chaos AFTER INSERT OR UPDATE OR DELETE ON tenant_month FOR EACH ROW EXECUTE FUNCTION chaos_write();
CREATE TRIGGER chaos AFTER INSERT OR UPDATE OR DELETE ON node_day FOR EACH ROW EXECUTE FUNCTION chaos_write();
CREATE TRIGGER chaos AFTER INSERT OR UPDATE OR DELETE ON node_hour FOR EACH ROW EXECUTE FUNCTION chaos_write();
CREATE TRIGGER chaos AFTER UPDATE ON bucket_lease FOR EACH ROW EXECUTE FUNCTION chaos_lease();
";

/// The same changes on a database that nothing disturbs, with one worker.
struct Undisturbed {
    folder: tempfile::TempDir,
    platform: Platform,
    fleet: Fleet,
}

impl Undisturbed {
    async fn with_history(fleet: Fleet) -> Self {
        let folder = tempfile::tempdir().expect("the temporary folder takes one more");
        let platform = platform_in(folder.path()).await;
        begin(&platform, fleet).await;
        derive(&platform).await;
        Self { folder, platform, fleet }
    }

    async fn apply(&self, change: Change) {
        change.apply(&self.platform, self.fleet).await.expect("nobody disturbs");
        derive(&self.platform).await;
    }

    async fn levels(&self) -> Levels {
        Levels::in_folder(self.folder.path()).await
    }
}

/// The first state of all: prices and a history.
async fn begin(platform: &Platform, fleet: Fleet) {
    Change::Prices(0).apply(platform, fleet).await.expect("nobody disturbs yet");
    let outcome = import(platform, &fleet.inventory(), &fleet.history(), Covers::All).await;
    assert!(outcome.expect("nobody disturbs yet").stored > 0);
}

/// Stops a worker at a random moment in which it holds leases; which, and those leases. None: all was done
/// before one was caught.
async fn stop_one_at_work(
    watch: &Watch,
    workers: &[Process],
    random: &mut Random,
) -> Option<(usize, Vec<(i64, i64)>)> {
    loop {
        let holders: Vec<String> = {
            let holders: BTreeSet<String> = watch.leases().await.into_iter().map(|lease| lease.0).collect();
            holders.into_iter().collect()
        };
        if holders.is_empty() {
            if watch.marks().await == 0 {
                return None;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
            continue;
        }
        let holder = random.of(&holders).clone();
        let victim = workers.iter().position(|each| each.is_named(&holder)).expect("a worker of this test");
        tokio::time::sleep(random.millis(80)).await;
        workers[victim].signal("-STOP");
        let held: Vec<(i64, i64)> = watch
            .leases()
            .await
            .into_iter()
            .filter(|lease| lease.0 == holder)
            .map(|(_, bucket, epoch)| (bucket, epoch))
            .collect();
        if !held.is_empty() {
            return Some((victim, held));
        }
        workers[victim].signal("-CONT");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_workers_one_stopped_past_its_lease_give_one_result() {
    let mut random = Random::seeded("three workers", 0x16_0001);
    // More than 64 buckets, so that one worker does not take them all.
    let fleet = Fleet { nodes: 160, days: 1 };
    let (rounds, begun) = (counts(100), Instant::now());
    let database = TestDatabase::fresh().await;
    let watch = Watch::on(&database).await;
    watch.note_violations().await;
    let disturbed = platform_at(&database.app_url).await;
    begin(&disturbed, fleet).await;
    let undisturbed = Undisturbed::with_history(fleet).await;
    let program = Program::on(Some(database.app_url.clone()));
    let mut workers: Vec<Process> =
        ["worker-a", "worker-b", "worker-c"].into_iter().map(|name| program.worker(name)).collect();
    watch.no_mark_is_left().await;

    let (mut taken_over, mut again, mut slowest) = (0_u32, 0_u32, Duration::ZERO);
    for round in 1..=rounds {
        let (change, round_begun) = (Change::of(round), Instant::now());
        change.apply(&disturbed, fleet).await.expect("the database is there");
        let (victim, held) = loop {
            if let Some(caught) = stop_one_at_work(&watch, &workers, &mut random).await {
                break caught;
            }
            // They were done before one was caught: the same once more.
            again += 1;
            Change::Rebuild.apply(&disturbed, fleet).await.expect("the database is there");
        };
        // While one is stopped, the other database has time to come to the same state.
        let apply = undisturbed.apply(change);
        let past_the_lease = async {
            until("the stopped worker's leases end", async || {
                let leases = watch.leases().await;
                held.iter().all(|held| !leases.iter().any(|(_, bucket, epoch)| (*bucket, *epoch) == *held))
            })
            .await;
            // Not always long enough for others to take over: both shall happen.
            let patience = Instant::now() + Duration::from_millis(200) + random.millis(800);
            while Instant::now() < patience && watch.marks().await > 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::join!(apply, past_the_lease);
        let epochs: BTreeMap<i64, i64> = {
            let mut connection = watch.0.lock().await;
            let found = sqlx::query_as("SELECT bucket, epoch FROM bucket_lease").fetch_all(&mut *connection);
            found.await.expect("leases can be read").into_iter().collect()
        };
        taken_over += u32::from(held.iter().any(|(bucket, epoch)| epochs[bucket] > *epoch));
        workers[victim].signal("-CONT");
        watch.no_mark_is_left().await;
        let when = format!("round {round}, {change:?}");
        Levels::on_server(&database.superuser_url).await.assert_same(&undisturbed.levels().await, &when);
        watch.assert_no_violation(&when).await;
        slowest = slowest.max(round_begun.elapsed());
    }
    for each in &mut workers {
        each.signal("-TERM");
        assert!(each.wait().success(), "a worker that is asked to stop ends well:\n{}", each.said());
        assert!(!each.said().contains("deriving failed"), "{}", each.said());
    }
    // What a late worker may have written after the last look.
    let levels = Levels::on_server(&database.superuser_url).await;
    levels.assert_same(&undisturbed.levels().await, "after all");
    watch.assert_no_violation("after all").await;
    assert_healthy(&disturbed, "after all").await;
    assert!(taken_over > 0, "in no round did another worker take over");
    eprintln!(
        "three workers: {rounds} rounds, one stopped past its lease in each, taken over in {taken_over}, work given \
         again {again} times; {} rows of levels the same; slowest round {slowest:.1?}, all {:.1?}",
        levels.count(),
        begun.elapsed()
    );
}

/// What a sender was told: (stream, number, hash).
type Acknowledged = BTreeSet<(String, i64, Vec<u8>)>;

/// Senders of signed batches, as the far side sees them.
struct Load {
    credential: Credential,
    calls: AtomicU64,
    cancelled: AtomicU64,
    failed: AtomicU64,
    duplicates: AtomicU64,
    /// The longest time that one call took to fail, in ms.
    slowest_failure: AtomicU64,
}

impl Load {
    fn on(platform: &Platform) -> Arc<Self> {
        Arc::new(Self {
            credential: Credential {
                key: BatchVerifier::new(&platform.installation.public_key).expect("a good key"),
                source: Source {
                    rank: SourceRank::Import,
                    sender: Name::parse("chaos").expect("a good name"),
                },
            },
            calls: AtomicU64::new(0),
            cancelled: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            duplicates: AtomicU64::new(0),
            slowest_failure: AtomicU64::new(0),
        })
    }

    /// Sends a number until it is acknowledged. `patience` says how long to wait for an answer; none: as long
    /// as it takes.
    async fn send(
        self: &Arc<Self>,
        platform: &Platform,
        sender: &Sender,
        sequence: i64,
        mut patience: impl FnMut() -> Option<Duration>,
    ) -> (String, i64, Vec<u8>) {
        let batch = sender.batch(sequence);
        let key = (sender.stream(), sequence, body::hash(&batch.body).to_vec());
        let begun = Instant::now();
        loop {
            assert!(begun.elapsed() < Duration::from_secs(120), "{key:?} was not acknowledged");
            self.calls.fetch_add(1, Ordering::Relaxed);
            let called = Instant::now();
            let call = {
                let (platform, load, batch) = (platform.clone(), Arc::clone(self), batch.clone());
                tokio::spawn(async move { accept(&platform, &load.credential, batch).await })
            };
            let Some(answer) = cut_after(patience(), call).await else {
                self.cancelled.fetch_add(1, Ordering::Relaxed);
                continue;
            };
            match answer {
                Ok(answer) => {
                    let good = matches!(answer.outcome, Outcome::Accepted | Outcome::Duplicate);
                    assert!(good && answer.refused.is_empty() && answer.mark >= sequence, "{answer:?}");
                    let again = u64::from(answer.outcome == Outcome::Duplicate);
                    self.duplicates.fetch_add(again, Ordering::Relaxed);
                    return key;
                }
                Err(error) => {
                    assert!(is_passing(&error), "not an error that passes: {error}: {error:?}");
                    self.failed.fetch_add(1, Ordering::Relaxed);
                    let took = u64::try_from(called.elapsed().as_millis()).expect("a short time");
                    self.slowest_failure.fetch_max(took, Ordering::Relaxed);
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
        }
    }

    fn summary(&self) -> String {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        format!(
            "{} accept calls, {} cancelled, {} failed after {} ms at most, {} answered as duplicates",
            of(&self.calls),
            of(&self.cancelled),
            of(&self.failed),
            of(&self.slowest_failure),
            of(&self.duplicates)
        )
    }
}

/// The answer of a task, or none where it was aborted first.
async fn cut_after<T>(patience: Option<Duration>, task: JoinHandle<T>) -> Option<T> {
    let Some(patience) = patience else { return Some(task.await.expect("no call panics")) };
    tokio::pin!(task);
    tokio::select! {
        answer = &mut task => Some(answer.expect("no call panics")),
        () = tokio::time::sleep(patience) => {
            task.abort();
            match task.await {
                // It had its answer already, but nobody heard it.
                Ok(_) => None,
                Err(error) => {
                    assert!(error.is_cancelled(), "no call panics: {error}");
                    None
                }
            }
        }
    }
}

/// Everything that was acknowledged is stored, once, and nothing else; marks of streams and hours say so too.
async fn assert_stored(watch: &Watch, acknowledged: &Acknowledged) {
    let mut connection = watch.0.lock().await;
    let stored: Vec<(String, i64, Vec<u8>)> =
        sqlx::query_as("SELECT stream_id, sequence, body_hash FROM usage_batch ORDER BY stream_id, sequence")
            .fetch_all(&mut *connection)
            .await
            .expect("batches can be read");
    let count = stored.len();
    let stored: Acknowledged = stored.into_iter().collect();
    assert_eq!(count, stored.len(), "a batch is stored twice");
    let lost: Vec<_> = acknowledged.difference(&stored).take(5).collect();
    assert!(lost.is_empty(), "acknowledged and lost: {lost:?}");
    let never_said: Vec<_> = stored.difference(acknowledged).take(5).collect();
    assert!(never_said.is_empty(), "stored and never acknowledged: {never_said:?}");
    let mut marks: BTreeMap<String, i64> = BTreeMap::new();
    for (stream, sequence, _) in acknowledged {
        let mark = marks.entry(stream.clone()).or_default();
        *mark = (*mark).max(*sequence);
    }
    let stored: Vec<(String, i64)> =
        sqlx::query_as("SELECT stream_id, mark FROM usage_stream WHERE mark > 0")
            .fetch_all(&mut *connection)
            .await
            .expect("streams can be read");
    assert_eq!(stored.into_iter().collect::<BTreeMap<_, _>>(), marks);
}

/// Ready to be sent to: devices in service, nothing known of them, nothing to derive.
async fn begin_empty(platform: &Platform, fleet: Fleet) {
    Change::Prices(0).apply(platform, fleet).await.expect("nobody disturbs yet");
    import(platform, &fleet.inventory(), no_history(), Covers::Nothing).await.expect("nobody disturbs yet");
    derive(platform).await;
}

/// The levels after the same batches on a database that nothing disturbs.
async fn levels_after(fleet: Fleet, counts: &[i64]) -> Levels {
    let folder = tempfile::tempdir().expect("the temporary folder takes one more");
    let platform = platform_in(folder.path()).await;
    begin_empty(&platform, fleet).await;
    let load = Load::on(&platform);
    let mut sending = JoinSet::new();
    for (node, count) in (0..).zip(counts.iter().copied()) {
        let (platform, load) = (platform.clone(), Arc::clone(&load));
        sending.spawn(async move {
            let sender = Sender::new(&platform, node);
            for sequence in 1..=count {
                load.send(&platform, &sender, sequence, || None).await;
            }
        });
    }
    while let Some(sent) = sending.join_next().await {
        sent.expect("nobody disturbs");
    }
    derive(&platform).await;
    Levels::in_folder(folder.path()).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slowed_connection_and_cancelled_accept_calls_lose_nothing_acknowledged() {
    let mut random = Random::seeded("cancelled calls", 0x14_0001);
    let (numbers, begun) = (i64::from(counts(300)), Instant::now());
    let fleet = Fleet { nodes: 8, days: 2 };
    let database = TestDatabase::fresh().await;
    let watch = Watch::on(&database).await;
    begin_empty(&platform_at(&database.app_url).await, fleet).await;
    let proxy = slow_socket(Duration::ZERO).await;
    let slow = platform_at(&proxy.url_for(&database)).await;
    proxy.set_delay(Duration::from_millis(3));

    let load = Load::on(&slow);
    let mut sending = JoinSet::new();
    for node in 0..fleet.nodes {
        let (platform, load) = (slow.clone(), Arc::clone(&load));
        let mut random = Random::seeded("cancelled calls, a sender", random.below(u64::MAX));
        sending.spawn(async move {
            let sender = Sender::new(&platform, node);
            let mut acknowledged = Acknowledged::new();
            for sequence in 1..=numbers {
                let mut tries = 0;
                // Sooner or later a sender waits long enough, else nothing would ever be acknowledged.
                let patience = || {
                    tries += 1;
                    (tries < 4).then(|| random.millis(300))
                };
                acknowledged.insert(load.send(&platform, &sender, sequence, patience).await);
                // Reads are cancelled too: what they leave behind is the next writer's connection.
                let read = {
                    let platform = platform.clone();
                    tokio::spawn(async move { derive::pending(&platform).await })
                };
                if let Some(pending) = cut_after(Some(random.millis(40)), read).await {
                    assert!(pending.is_ok(), "{pending:?}");
                }
            }
            acknowledged
        });
    }
    // Until the last sender is done: no session lies idle inside a transaction.
    let mut acknowledged = Acknowledged::new();
    while let Some(sent) = sending.join_next().await {
        acknowledged.extend(sent.expect("no sender panics"));
        let idle = watch.number(IDLE_FOR_LONG).await;
        assert_eq!(idle, 0, "sessions lie idle inside a transaction");
    }
    // The cancelled calls' transactions end by themselves.
    until("no session is left inside a transaction", async || watch.number(INSIDE).await == 0).await;
    assert_stored(&watch, &acknowledged).await;
    assert_eq!(watch.number(UNMARKED).await, 0, "hours of accepted batches are not marked");
    derive(&platform_at(&database.app_url).await).await;
    let undisturbed = levels_after(fleet, &[numbers; 8]).await;
    Levels::on_server(&database.superuser_url).await.assert_same(&undisturbed, "cancelled calls");
    eprintln!(
        "cancelled calls: {}; {} batches stored once each, {} rows of levels the same; {:.1?}",
        load.summary(),
        acknowledged.len(),
        undisturbed.count(),
        begun.elapsed()
    );
}

const IDLE_FOR_LONG: &str = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
     AND state LIKE 'idle in transaction%' AND state_change < now() - interval '5 seconds'";
const INSIDE: &str = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
     AND usename = 'fatia_app' AND (state LIKE 'idle in transaction%' OR state = 'active')";
/// Batches with an hour that no fold mark names. All batches of that test are inside one hour.
const UNMARKED: &str = "SELECT count(*) FROM usage_batch b WHERE NOT EXISTS (SELECT 1 FROM dirty_node d \
     WHERE d.scope_id = b.scope_id AND d.kind = 'fold' AND d.hour_us = b.from_us - b.from_us % 3600000000)";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_worker_costs_nothing() {
    let mut random = Random::seeded("killed workers", 0x15_0001);
    let (kills, begun) = (counts(50), Instant::now());
    let fleet = Fleet { nodes: 32, days: 1 };
    let database = TestDatabase::fresh().await;
    let watch = Watch::on(&database).await;
    watch.note_violations().await;
    let platform = platform_at(&database.app_url).await;
    begin(&platform, fleet).await;
    let undisturbed = Undisturbed::with_history(fleet).await;
    let program = Program::on(Some(database.app_url.clone()));
    let (mut killed, mut change) = (0, 0);
    while killed < kills {
        if watch.marks().await == 0 {
            change += 1;
            // Results change too, so that a day that was derived in part would show.
            let next = Change::of(change);
            next.apply(&platform, fleet).await.expect("the database is there");
            undisturbed.apply(next).await;
        }
        let name = format!("worker-{killed}");
        let mut worker = program.worker(&name);
        until("a worker has a lease, or nothing is left to do", async || {
            watch.leases().await.iter().any(|lease| lease.0 == name) || watch.marks().await == 0
        })
        .await;
        tokio::time::sleep(random.millis(150)).await;
        let at_work = watch.leases().await.iter().any(|lease| lease.0 == name);
        assert!(worker.kill(), "the worker ended by itself:\n{}", worker.said());
        killed += u32::from(at_work);
    }
    program.succeed(&["worker", "--once", "--holder", "worker-last"]);
    let levels = Levels::on_server(&database.superuser_url).await;
    levels.assert_same(&undisturbed.levels().await, "after the kills");
    watch.assert_no_violation("after the kills").await;
    assert_healthy(&platform, "after the kills").await;
    eprintln!(
        "killed workers: {kills} killed while they held leases, over {change} changes; {} rows of levels the same; {:.1?}",
        levels.count(),
        begun.elapsed()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_import_resumes() {
    let begun = Instant::now();
    let database = TestDatabase::fresh().await;
    let watch = Watch::on(&database).await;
    let program = Program::on(Some(database.app_url.clone()));
    let kills = super::sqlite::kill_imports(&program, "killed imports", async || ()).await;
    program.succeed(&["worker", "--once"]);
    assert_eq!(watch.marks().await, 0);
    super::sqlite::assert_same_reports(&program, &kills);
    let undisturbed = Levels::in_folder(kills.undisturbed.data()).await;
    Levels::on_server(&database.superuser_url).await.assert_same(&undisturbed, "after the kills");
    program.succeed(&["doctor"]);
    eprintln!("killed imports: {}; {:.1?}", kills.summary, begun.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_database_loses_nothing() {
    let mut random = Random::seeded("restarted database", 0x13_0001);
    let (restarts, begun) = (counts(20), Instant::now());
    // As much time as a sender can fill with five-minute batches until the last restart.
    let fleet = Fleet { nodes: 8, days: i64::from(restarts / 2).max(2) };
    let cluster = Arc::new(Cluster::start(true));
    let database = TestDatabase::fresh_on(&cluster).await;
    let platform = platform_at(&database.app_url).await;
    begin_empty(&platform, fleet).await;

    let (load, stop) = (Load::on(&platform), Arc::new(AtomicBool::new(false)));
    let mut sending = JoinSet::new();
    for node in 0..fleet.nodes {
        let (platform, load, stop) = (platform.clone(), Arc::clone(&load), Arc::clone(&stop));
        sending.spawn(async move {
            let sender = Sender::new(&platform, node);
            let mut acknowledged = Acknowledged::new();
            let mut sequence = 0;
            while !stop.load(Ordering::Relaxed) && sequence < fleet.days * 288 {
                sequence += 1;
                acknowledged.insert(load.send(&platform, &sender, sequence, || None).await);
            }
            (node, acknowledged)
        });
    }
    // One worker of the same process, which nobody restarts either.
    let (end_worker, ended) = tokio::sync::oneshot::channel::<()>();
    let deriving = {
        let platform = platform.clone();
        let stopped = async move { ended.await.unwrap_or_default() };
        // After a fault its leases are its own no more: a short one, so that the test does not wait for its end.
        let worker = Worker { holder: "chaos".to_owned(), lease_seconds: 2 };
        tokio::spawn(async move { fatia::worker::run(&platform, &worker, stopped).await })
    };
    for _ in 0..restarts {
        tokio::time::sleep(Duration::from_millis(300) + random.millis(1_200)).await;
        let (cluster, away) = (Arc::clone(&cluster), random.millis(400));
        let restarted = tokio::task::spawn_blocking(move || {
            cluster.stop_immediate();
            std::thread::sleep(away);
            cluster.restart();
        });
        restarted.await.expect("the server comes back");
    }
    stop.store(true, Ordering::Relaxed);
    let (mut acknowledged, mut numbers) = (Acknowledged::new(), vec![0; 8]);
    while let Some(sent) = sending.join_next().await {
        let (node, of_sender) = sent.expect("no sender panics");
        numbers[usize::try_from(node).expect("few nodes")] = i64::try_from(of_sender.len()).expect("few");
        acknowledged.extend(of_sender);
    }
    let watch = Watch::on(&database).await;
    assert_stored(&watch, &acknowledged).await;
    watch.no_mark_is_left().await;
    end_worker.send(()).expect("the worker goes on through all of it");
    deriving.await.expect("the worker does not panic").expect("nothing stops it but us");
    assert_healthy(&platform, "after the restarts").await;
    let undisturbed = levels_after(fleet, &numbers).await;
    Levels::on_server(&database.superuser_url).await.assert_same(&undisturbed, "after the restarts");
    assert!(load.failed.load(Ordering::Relaxed) > 0, "no restart met a call");
    eprintln!(
        "restarted database: {restarts} restarts; {}; {} batches stored once each, {} rows of levels the same; {:.1?}",
        load.summary(),
        acknowledged.len(),
        undisturbed.count(),
        begun.elapsed()
    );
}

/// Commits of batches wait, with all that they wrote, while somebody holds the advisory lock 42.
const LATE_COMMITS: &str = "
CREATE FUNCTION chaos_late() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(42);
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER chaos_late AFTER UPDATE ON usage_stream DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION chaos_late();
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_commit_meets_the_running_rollup() {
    let mut random = Random::seeded("late commits", 0x38_0001);
    let (rounds, begun) = (counts(100), Instant::now());
    let fleet = Fleet { nodes: 6, days: 2 };
    let database = TestDatabase::fresh().await;
    let watch = Watch::on(&database).await;
    let platform = platform_at(&database.app_url).await;
    begin_empty(&platform, fleet).await;
    watch.run(LATE_COMMITS).await;
    let mut gate = connect(&database.superuser_url).await;
    let (load, mut late) = (Load::on(&platform), 0);
    let mut numbers = [0_i64; 6];
    for round in 1..=rounds {
        // Some rounds: the late hours are marked already, and some days have other work to do.
        if random.below(2) == 0 {
            Change::Rebuild.apply(&platform, fleet).await.expect("the database is there");
        } else if random.below(2) == 0 {
            Change::Prices(round).apply(&platform, fleet).await.expect("the database is there");
        }
        let mut held = gate.begin().await.expect("the database is there");
        sqlx::query("SELECT pg_advisory_xact_lock(42)").execute(&mut *held).await.expect("it is free");
        let mut working = JoinSet::new();
        let mut sent = 0;
        for (node, number) in (0..).zip(numbers.iter_mut()).filter(|(node, _)| (node + round) % 3 > 0) {
            (*number, sent) = (*number + 1, sent + 1);
            let (platform, load, sequence) = (platform.clone(), Arc::clone(&load), *number);
            working.spawn(async move {
                load.send(&platform, &Sender::new(&platform, node), sequence, || None).await;
            });
        }
        until("the batches wait for their commit", async || watch.number(WAITS_FOR_GATE).await == sent).await;
        for name in ["one", "two"] {
            let platform = platform.clone();
            working.spawn(async move {
                derive::derive_all(&platform, &worker(name), &|_| ()).await.expect("the database is there");
            });
        }
        tokio::time::sleep(random.millis(120)).await;
        held.rollback().await.expect("the database is there");
        while let Some(done) = working.join_next().await {
            done.expect("nobody panics");
        }
        late += sent;
        derive(&platform).await;
        assert_healthy(&platform, &format!("round {round}")).await;
    }
    let undisturbed = Levels::on_server(&database.superuser_url).await;
    Change::Rebuild.apply(&platform, fleet).await.expect("the database is there");
    derive(&platform).await;
    Levels::on_server(&database.superuser_url).await.assert_same(&undisturbed, "after a rebuild");
    eprintln!(
        "late commits: {rounds} rounds, {late} commits held open across a rollup, each recounted; {:.1?}",
        begun.elapsed()
    );
}

const WAITS_FOR_GATE: &str = "SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database \
     WHERE d.datname = current_database() AND l.locktype = 'advisory' AND NOT l.granted";

/// Bytes of a price file are published in one step with the marks of what they price: whoever dies between the
/// two would leave sums that nobody derives again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_price_load_is_made_good_by_its_repeat() {
    let fleet = Fleet { nodes: 2, days: 1 };
    let database = TestDatabase::fresh().await;
    let watch = Watch::on(&database).await;
    let platform = platform_at(&database.app_url).await;
    begin(&platform, fleet).await;
    derive(&platform).await;
    let program = Program::on(Some(database.app_url.clone()));
    let file = program.data().join("prices.toml");
    std::fs::write(&file, prices(7)).expect("the folder is ours");
    let load = ["price", "load", "--no-wait", file.to_str().expect("a plain path")];

    let mut gate = connect(&database.superuser_url).await;
    let mut held = gate.begin().await.expect("the database is there");
    sqlx::query("LOCK TABLE dirty_node IN EXCLUSIVE MODE").execute(&mut *held).await.expect("it is free");
    let mut killed = program.start("killed", &load);
    until("the load comes to its marks", async || watch.waiting().await > 0).await;
    assert!(killed.kill(), "it ended by itself:\n{}", killed.said());
    held.rollback().await.expect("the database is there");

    program.succeed(&load);
    derive(&platform).await;
    assert_healthy(&platform, "after the repeat").await;
}

/// A worker that is at work when a node joins in a bucket that it holds derives that node too, or leaves it to
/// others, but does not turn in circles over it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_joins_while_a_worker_works_is_derived() {
    let bucket = |name: &str| Bucket::of(&Name::parse(name).expect("a good name"));
    let first = "node-000".to_owned();
    let second = (1..10_000)
        .map(|number| format!("joined-{number}"))
        .find(|name| bucket(name) == bucket(&first))
        .expect("256 buckets have two names in one of them");
    let database = TestDatabase::fresh().await;
    let watch = Watch::on(&database).await;
    let platform = platform_at(&database.app_url).await;
    let inventory = Fleet { nodes: 1, days: 1 }.inventory();
    import(&platform, &inventory, no_history(), Covers::Nothing).await.expect("nobody disturbs");

    // The worker has its lease, and waits for the first node's marks.
    let mut gate = connect(&database.superuser_url).await;
    let mut held = gate.begin().await.expect("the database is there");
    sqlx::query("SELECT 1 FROM dirty_node FOR UPDATE").fetch_all(&mut *held).await.expect("they are free");
    let mut deriving = {
        let platform = platform.clone();
        tokio::spawn(async move { derive::derive_all(&platform, &worker("chaos"), &|_| ()).await })
    };
    until("the worker comes to its marks", async || watch.waiting().await > 0).await;
    let joined = inventory + &inventory_line(&second, 1, 1);
    import(&platform, &joined, no_history(), Covers::Nothing).await.expect("nobody disturbs");
    held.rollback().await.expect("the database is there");

    let done = tokio::time::timeout(Duration::from_secs(20), &mut deriving).await;
    deriving.abort();
    let marks = watch.marks().await;
    assert!(done.is_ok(), "the worker still turns after 20 s, over {marks} marks of the node that joined");
    derive(&platform).await;
    assert_healthy(&platform, "after all").await;
}

/// The first import's batches wait before they are stored, those of the second before they are committed.
const IMPORTS_IN_STEP: &str = "
CREATE FUNCTION chaos_step() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_TABLE_NAME = 'usage_stream' AND current_setting('fatia.worker', true) = 'second' THEN
        PERFORM pg_advisory_xact_lock_shared(44);
    ELSIF TG_TABLE_NAME <> 'usage_stream' AND current_setting('fatia.worker', true) = 'first' THEN
        PERFORM pg_advisory_xact_lock_shared(43);
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER chaos_step BEFORE INSERT ON usage_batch FOR EACH ROW EXECUTE FUNCTION chaos_step();
CREATE CONSTRAINT TRIGGER chaos_step AFTER UPDATE ON usage_stream DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION chaos_step();
";

/// Two imports of one source at the same moment: neither sees the other's batches, and still what the second
/// amends in the first is derived again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_imports_at_once_mark_what_they_amend() {
    let fleet = Fleet { nodes: 1, days: 1 };
    let database = TestDatabase::fresh().await;
    let watch = Watch::on(&database).await;
    let platform = platform_at(&database.app_url).await;
    begin_empty(&platform, fleet).await;
    // Makes the journal's partitions, for which the two would wait too.
    let other = one_holding("other", 0, (700, 710));
    import(&platform, &fleet.inventory(), &other, Covers::Nothing).await.expect("nobody disturbs");
    watch.run(IMPORTS_IN_STEP).await;
    let (mut one, mut two) = (connect(&database.superuser_url).await, connect(&database.superuser_url).await);
    sqlx::query("SELECT pg_advisory_lock(43)").execute(&mut one).await.expect("it is free");
    sqlx::query("SELECT pg_advisory_lock(44)").execute(&mut two).await.expect("it is free");

    let start = |platform: Platform, span: (i64, i64)| {
        tokio::spawn(async move {
            let rows = one_holding("training", 0, span);
            import(&platform, &fleet.inventory(), &rows, Covers::Nothing).await.expect("it waits, no more")
        })
    };
    // At its gate; or behind the first, where imports of one source wait for each other.
    let comes_to_wait = async |waiting: i64| {
        until("the import comes to its batches", async || {
            watch.number(WAITS_FOR_GATE).await == waiting || watch.waiting().await == waiting
        })
        .await;
    };
    // Held from 3 h to 10 h, says the first; not held at all, says the second.
    let first = start(platform_at(&named_session(&database.app_url, "first")).await, (180, 600));
    comes_to_wait(1).await;
    let second = start(platform_at(&named_session(&database.app_url, "second")).await, (180, 180));
    comes_to_wait(2).await;
    sqlx::query("SELECT pg_advisory_unlock(43)").execute(&mut one).await.expect("it was held");
    let first = first.await.expect("no import panics");
    let deriving = {
        let platform = platform.clone();
        tokio::spawn(async move { derive::derive_all(&platform, &worker("chaos"), &|_| ()).await })
    };
    // It is done, or waits for a mark that the second has set and not committed.
    until("the first import is derived", async || deriving.is_finished() || watch.waiting().await > 1).await;
    sqlx::query("SELECT pg_advisory_unlock(44)").execute(&mut two).await.expect("it was held");
    let second = second.await.expect("no import panics");
    deriving.await.expect("it does not panic").expect("the database is there");
    assert_eq!((first.number, second.number), (Some(2), Some(3)));
    derive(&platform).await;
    assert_healthy(&platform, "after both imports").await;
    let used = watch.number("SELECT count(*) FROM node_day WHERE workload = 'training'").await;
    assert_eq!(used, 0, "the deleted holding is still billed");
}
