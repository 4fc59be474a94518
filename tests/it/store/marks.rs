//! Dirty marks: what commits late, or while its job runs, is derived all the same.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use fatia::domain::ids::{ScopeKind, ScopeName};
use fatia::domain::period::{BillingZone, Day};
use fatia::domain::units::Instant;
use fatia::services::ctx::Clock;
use fatia::services::derive::{Worker, derive_round};
use fatia::store::marks::{self, Mark, MarkKind};
use fatia::store::{fleet, unit};
use futures_util::future::BoxFuture;

use crate::support::platform::{Sender, TestPlatform, at, derive, name, on_both_databases, read, write};

const FLEET: &str = "n1 g1 A10 06-09T00:00 06-10T00:00";

/// A clock that lets others do something each time it is asked, some times: whatever happens between two steps of a
/// job, happens there.
pub struct MeddlingClock {
    pub now: Instant,
    pub left: AtomicI64,
    pub meddle: Box<dyn Fn(i64) -> BoxFuture<'static, ()> + Send + Sync>,
}

impl Clock for MeddlingClock {
    fn now(&self) -> Instant {
        let left = self.left.fetch_sub(1, Ordering::SeqCst);
        if left > 0 {
            tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on((self.meddle)(left)));
        }
        self.now
    }
}

async fn stored_marks(platform: &TestPlatform, day: Day) -> Vec<Mark> {
    let node = ScopeName { kind: ScopeKind::Node, name: name("n1") };
    let found = read(platform, move |scope, tx| {
        unit(async move {
            let home = fleet::find_scope(scope, tx, &node).await?.expect("the node is there");
            marks::marks(scope, tx, &home, day).await
        })
    });
    found.await.expect("marks can be read")
}

async fn clear(platform: &TestPlatform, day: Day, read: Vec<Mark>) {
    let node = ScopeName { kind: ScopeKind::Node, name: name("n1") };
    write(platform, move |scope, tx| {
        let (node, read) = (node.clone(), read.clone());
        unit(async move {
            let home = fleet::find_scope(scope, tx, &node).await?.expect("the node is there");
            marks::clear(scope, tx, &home, day, &read).await
        })
    })
    .await
    .expect("marks can be cleared");
}

/// Five minutes of hour 10 held by a pod of its own, and vouched for.
fn five_minutes(agent: &Sender, sequence: i64) -> fatia::services::accept::SignedBatch {
    let (from, to) = (5 * (sequence - 1), 5 * sequence);
    let until = if to < 60 { format!("06-09T10:{to:02}") } else { "06-09T11:00".to_owned() };
    let held = format!("06-09T10:{from:02} {until}");
    agent.batch(sequence, &format!("pod-{sequence} - g1 dedicated {held}"), &format!("g1 {held}"))
}

on_both_databases! {
    async fn a_mark_is_cleared_only_in_the_version_that_was_read(platform: &TestPlatform) {
        platform.inventory(FLEET).await;
        let agent = Sender::agent("n1");
        let day = BillingZone::UTC.day_of(at("06-09T10:00"));
        platform.accept(&agent, five_minutes(&agent, 1)).await.expect("a good batch");
        let before = stored_marks(platform, day).await;
        let versions =
            |marks: &[Mark]| marks.iter().map(|mark| (mark.kind, mark.version)).collect::<Vec<_>>();
        assert_eq!(versions(&before), [(MarkKind::Fold, 1)]);

        platform.accept(&agent, five_minutes(&agent, 2)).await.expect("a good batch");
        clear(platform, day, before).await;
        let after = stored_marks(platform, day).await;
        assert_eq!(versions(&after), [(MarkKind::Fold, 2)]);

        clear(platform, day, after).await;
        assert_eq!(stored_marks(platform, day).await, []);
    }

    async fn a_tenants_mark_is_cleared_only_in_the_version_that_was_read(platform: &TestPlatform) {
        let day = BillingZone::UTC.day_of(at("06-09T10:00"));
        let tenants = BTreeSet::from([fatia::domain::ids::TenantId::PLATFORM]);
        let buckets = [fatia::domain::ids::Bucket::of_tenant(fatia::domain::ids::TenantId::PLATFORM)];
        let mark = async || {
            let tenants = tenants.clone();
            write(platform, move |scope, tx| {
                let tenants = tenants.clone();
                unit(async move { marks::mark_tenant_days(scope, tx, day, &tenants).await })
            })
            .await
            .expect("a day can be marked");
            let found = read(platform, move |scope, tx| {
                unit(async move { marks::pending_tenant_days(scope, tx, &buckets, 10).await })
            });
            found.await.expect("marks can be read")
        };
        let before = mark().await;
        let after = mark().await;
        assert_eq!((before[0].version, after[0].version), (1, 2));
        for (cleared, left) in [(before[0], 1), (after[0], 0)] {
            write(platform, move |scope, tx| {
                unit(async move { marks::clear_tenant_day(scope, tx, &cleared).await })
            })
            .await
            .expect("a mark can be cleared");
            assert_eq!(platform.count("dirty_tenant_day").await, left);
        }
    }

    async fn a_mark_set_while_its_job_runs_stays(platform: &TestPlatform) {
        platform.inventory(FLEET).await;
        let agent = Arc::new(Sender::agent("n1"));
        platform.accept(&agent, five_minutes(&agent, 1)).await.expect("a good batch");
        platform.tick().await;

        // Whenever the worker looks at the clock, which it does between reading and writing too, a batch arrives.
        let (quiet, sender) = (platform.platform.clone(), Arc::clone(&agent));
        let meddle = move |left: i64| -> BoxFuture<'static, ()> {
            let (platform, sender) = (quiet.clone(), Arc::clone(&sender));
            Box::pin(async move {
                let batch = five_minutes(&sender, 13 - left);
                let answer = fatia::services::accept::accept(&platform, &sender.credential(), batch).await;
                answer.expect("a good batch");
            })
        };
        let clock = MeddlingClock { now: platform.now(), left: AtomicI64::new(11), meddle: Box::new(meddle) };
        let clock = Arc::new(clock);
        let worker = platform.replica(clock.clone()).await;
        for pass in 0.. {
            assert!(pass < 20, "the batches run out");
            derive(&worker, "worker").await.expect("deriving goes on");
            if clock.left.load(Ordering::SeqCst) <= 0 {
                break;
            }
        }
        derive(&worker, "worker").await.expect("deriving goes on");

        platform.assert_well().await;
        let shown = platform.shown("state").await;
        assert_eq!(
            shown[1..],
            ["unknown 23.000000 - unpriced 23.000000", "used 0.999996 - unpriced 0.999996"]
        );
        let undisturbed = platform.another().await;
        undisturbed.inventory(FLEET).await;
        for sequence in 1..=12 {
            undisturbed.accept(&agent, five_minutes(&agent, sequence)).await.expect("a good batch");
        }
        undisturbed.tick().await;
        undisturbed.derive().await;
        assert_eq!(platform.levels().await, undisturbed.levels().await);
    }

    async fn a_day_that_is_marked_again_and_again_is_derived_once_a_round(platform: &TestPlatform) {
        platform.inventory(FLEET).await;
        platform.tick().await;
        let agent = Sender::agent("n1");
        platform.accept(&agent, five_minutes(&agent, 1)).await.expect("a good batch");
        let accepting = platform.platform.clone();
        // Each time the worker looks at its clock, an agent that catches up has sent another five minutes.
        let meddle = move |left: i64| -> BoxFuture<'static, ()> {
            let (platform, agent) = (accepting.clone(), Sender::agent("n1"));
            Box::pin(async move {
                let batch = five_minutes(&agent, 13 - left);
                fatia::services::accept::accept(&platform, &agent.credential(), batch).await.expect("a good batch");
            })
        };
        let clock = MeddlingClock { now: platform.now(), left: AtomicI64::new(11), meddle: Box::new(meddle) };
        let clock = Arc::new(clock);
        let worker = Worker { holder: "worker".to_owned(), lease_seconds: 60 };
        let replica = platform.replica(clock.clone()).await;
        let left = clock.left.load(Ordering::SeqCst);
        let derived = derive_round(&replica, &worker).await.expect("deriving goes on");
        assert!(clock.left.load(Ordering::SeqCst) < left - 1, "the agent went on meanwhile");
        assert_eq!(derived.days, 1);
        let derived = derive_round(&replica, &worker).await.expect("deriving goes on");
        assert_eq!(derived.days, 1);
        assert!(derived.tenant_days > 0, "tenants' sums wait for no agent");
        platform.derive().await;
        platform.assert_well().await;
    }
}

/// On SQLite a batch cannot commit late: the one writer commits in the order in which it begins.
mod only_postgres {
    use sqlx::{Connection as _, PgConnection};

    use super::*;

    const SET_SCOPE: &str = "SELECT set_config('fatia.platform', 'on', true)";

    /// What acceptance does for one more batch of the agent, by hand, so that the test says when it commits.
    async fn insert_batch(connection: &mut PgConnection, agent: &Sender, sequence: i64, hour: &str) {
        let held = format!("06-09T{hour}:00 06-09T{hour}:30");
        let (span, message) = agent.message(&format!("late - g1 dedicated {held}"), &format!("g1 {held}"));
        let batch = agent.sign(sequence, span, &message);
        sqlx::query(SET_SCOPE).execute(&mut *connection).await.expect("a setting");
        let insert = "INSERT INTO usage_batch (scope_id, stream_id, sequence, received_us, from_us, to_us, body, \
                      body_hash, signature, row_count) \
                      SELECT scope_id, stream_id, $2, received_us, $3, $4, $5, $6, $7, 1 \
                      FROM usage_batch WHERE stream_id = $1 AND sequence = 1";
        let inserted = sqlx::query(insert)
            .bind(agent.stream.to_string())
            .bind(sequence)
            .bind(span.start().micros())
            .bind(span.end().micros())
            .bind(&batch.body)
            .bind(fatia::wire::body::hash(&batch.body).to_vec())
            .bind(&batch.signature)
            .execute(&mut *connection)
            .await
            .expect("a batch like the first");
        assert_eq!(inserted.rows_affected(), 1);
        sqlx::query("UPDATE usage_stream SET mark = $2 WHERE stream_id = $1")
            .bind(agent.stream.to_string())
            .bind(sequence)
            .execute(&mut *connection)
            .await
            .expect("the stream is there");
        let mark = "INSERT INTO dirty_node (bucket, scope_id, day, kind, hour_us, version) \
                    SELECT bucket, scope_id, $1, 'fold', $2, 1 FROM scope \
                    ON CONFLICT (bucket, scope_id, day, kind, hour_us) DO UPDATE SET version = dirty_node.version + 1";
        let day = BillingZone::UTC.day_of(span.start()).stored();
        let hour = BillingZone::UTC.hour_of(span.start()).start().micros();
        sqlx::query(mark).bind(day).bind(hour).execute(&mut *connection).await.expect("a mark");
    }

    async fn begun() -> (TestPlatform, Sender, PgConnection) {
        let platform = TestPlatform::postgres().await;
        platform.inventory(FLEET).await;
        let agent = Sender::agent("n1");
        let first = "06-09T01:00 06-09T01:30";
        let batch = agent.batch(1, &format!("first - g1 dedicated {first}"), &format!("g1 {first}"));
        platform.accept(&agent, batch).await.expect("a good batch");
        platform.tick().await;
        platform.derive().await;
        let app =
            PgConnection::connect(&platform.storage.server().app_url).await.expect("the server answers");
        (platform, agent, app)
    }

    /// Another source's batch, for another hour of the same day.
    async fn other_batch(platform: &TestPlatform, hour: &str) {
        let import = Sender::import(platform, "slurm", "n1");
        let held = format!("06-09T{hour}:00 06-09T{hour}:30");
        let batch = import.batch(1, &format!("other - g1 dedicated {held}"), "");
        platform.accept(&import, batch).await.expect("a good batch");
    }

    async fn assert_equal_to_a_recount(platform: &TestPlatform) {
        platform.assert_well().await;
        let used = platform.shown("workload").await;
        assert_eq!(used[..2], ["first 0.500000 - unpriced 0.500000", "late 0.500000 - unpriced 0.500000"]);
        let levels = platform.levels().await;
        platform.rebuild().await;
        assert_eq!(platform.levels().await, levels);
    }

    /// Whatever takes locks takes them in one order: a deadlock costs everybody in it a second.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn acceptance_ticks_and_deriving_take_their_locks_in_one_order() {
        let platform = TestPlatform::postgres().await;
        platform.inventory("n1 g1 A10 06-10T00:00").await;
        let agent = Sender::agent("n1");
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let worker = platform.platform.clone();
        let deriving = tokio::spawn(async move {
            let mut stopped = stopped;
            while stopped.try_recv() == Err(tokio::sync::oneshot::error::TryRecvError::Empty) {
                derive(&worker, "worker").await.expect("deriving goes on");
            }
        });
        for minute in 0..59 {
            platform.clock.set(&format!("06-10T00:{:02}", minute + 1));
            let held = format!("06-10T00:{minute:02} 06-10T00:{:02}", minute + 1);
            let batch = agent.batch(minute + 1, &format!("pod - g1 dedicated {held}"), &format!("g1 {held}"));
            platform.accept(&agent, batch).await.expect("a good batch");
            platform.tick().await;
        }
        stop.send(()).expect("the worker is there");
        deriving.await.expect("the worker ends");
        platform.derive().await;
        platform.assert_well().await;
        let mut raw = platform.raw().await;
        let deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()";
        assert_eq!(raw.number(deadlocks).await, 0);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_late_commit_is_not_lost_by_the_rollup() {
        let (platform, agent, mut app) = begun().await;
        let mut late = app.begin().await.expect("a transaction begins");
        insert_batch(&mut late, &agent, 2, "05").await;

        // A whole rollup of the same day goes by, with work of its own.
        other_batch(&platform, "07").await;
        assert_eq!(platform.derive().await.days, 1);
        assert_eq!(platform.count("dirty_node").await, 0);
        late.commit().await.expect("it was only late");

        assert_eq!(platform.derive().await.days, 1);
        assert_equal_to_a_recount(&platform).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_late_commit_in_the_very_hour_that_is_derived_is_not_lost() {
        let (platform, agent, mut app) = begun().await;
        other_batch(&platform, "07").await;
        let mut late = app.begin().await.expect("a transaction begins");
        insert_batch(&mut late, &agent, 2, "07").await;

        let worker = platform.platform.clone();
        let deriving = tokio::spawn(async move { derive(&worker, "worker").await });
        platform.waiting_for_locks(1).await;
        late.commit().await.expect("it was only late");

        let derived = deriving.await.expect("the worker goes on").expect("deriving goes on");
        assert_eq!(derived.days, 2, "the mark that it read was another version's");
        assert_equal_to_a_recount(&platform).await;
    }
}
