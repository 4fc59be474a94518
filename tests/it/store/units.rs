//! Units of work: whole or not at all, whoever stops waiting, fails or panics.

use std::sync::Arc;
use std::time::Duration;

use fatia::domain::cost::Sum;
use fatia::domain::ids::{ScopeId, TenantId};
use fatia::domain::period::{Day, Span};
use fatia::services::ctx::Platform;
use fatia::store::findings::{self, Finding, FindingKind};
use fatia::store::levels::{self, NodeDayRow};
use fatia::store::{StoreError, unit};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::support::platform::{TestPlatform, at, eventually, on_both_databases, read, write};

/// Something that a unit of work can write: one row under a subject.
fn row(subject: &str) -> [Finding; 1] {
    let (kind, scope) = (FindingKind::SourceConflict, ScopeId::from_stored(0));
    [Finding { kind, scope, subject: subject.to_owned(), span: Span::ALWAYS, detail: "written".to_owned() }]
}

/// Writes a row in two statements of one unit.
async fn write_pair(platform: &Platform, subject: String) -> Result<(), StoreError> {
    write(platform, move |scope, tx| {
        let subject = subject.clone();
        unit(async move {
            findings::write(scope, tx, &row(&format!("{subject} one")), at("06-01T00:00")).await?;
            findings::write(scope, tx, &row(&format!("{subject} two")), at("06-01T00:00")).await
        })
    })
    .await
}

async fn read_rows(platform: &Platform) -> Result<usize, StoreError> {
    read(platform, |scope, tx| unit(async move { Ok(findings::summary(scope, tx).await?.len()) })).await
}

/// The row breaks a rule of the schema.
fn against_a_rule() -> [NodeDayRow; 1] {
    let words = ["", "", "", "A10", "A10", "no such state", "", ""].map(str::to_owned);
    [NodeDayRow { tenant: TenantId::PLATFORM, words, sum: Sum::default() }]
}

on_both_databases! {
    async fn a_dropped_caller_drops_no_transaction(platform: &TestPlatform) {
        let (entered, gate) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let caller = {
            let (platform, entered, gate) =
                (platform.platform.clone(), Arc::clone(&entered), Arc::clone(&gate));
            tokio::spawn(async move {
                write(&platform, move |scope, tx| {
                    let (entered, gate) = (Arc::clone(&entered), Arc::clone(&gate));
                    unit(async move {
                        findings::write(scope, tx, &row("one"), at("06-01T00:00")).await?;
                        entered.notify_one();
                        gate.notified().await;
                        findings::write(scope, tx, &row("two"), at("06-01T00:00")).await
                    })
                })
                .await
            })
        };
        entered.notified().await;
        caller.abort();
        assert!(caller.await.expect_err("it was aborted").is_cancelled());
        assert_eq!(platform.count("finding").await, 0);

        gate.notify_one();
        eventually("both rows", async || {
            let rows = platform.count("finding").await;
            assert_ne!(rows, 1, "half a unit of work");
            rows == 2
        })
        .await;
    }

    async fn a_caller_dropped_right_after_it_asked_is_served_all_the_same(platform: &TestPlatform) {
        for number in 0..20 {
            let mut asked = Box::pin(write_pair(platform, format!("{number}")));
            // Polled once, which hands the work in, and dropped.
            tokio::select! {
                biased;
                _ = &mut asked => {}
                () = std::future::ready(()) => {}
            }
            drop(asked);
        }
        eventually("every pair", async || {
            let rows = platform.count("finding").await;
            assert_eq!(rows % 2, 0, "half a unit of work");
            rows == 40
        })
        .await;
    }

    async fn a_unit_that_fails_or_panics_takes_nobody_with_it(platform: &TestPlatform) {
        // The first unit holds the file's writer until all others wait for it, so that they share one commit.
        let (entered, gate) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let mut running = JoinSet::new();
        {
            let (platform, entered, gate) =
                (platform.platform.clone(), Arc::clone(&entered), Arc::clone(&gate));
            running.spawn(async move {
                let held = write(&platform, move |_, _| {
                    let (entered, gate) = (Arc::clone(&entered), Arc::clone(&gate));
                    unit(async move {
                        entered.notify_one();
                        gate.notified().await;
                        Ok::<_, StoreError>(())
                    })
                });
                (0, held.await)
            });
        }
        entered.notified().await;
        for number in 1..=40_i64 {
            let platform = platform.platform.clone();
            running.spawn(async move {
                let done = write(&platform, move |scope, tx| {
                    unit(async move {
                        findings::write(scope, tx, &row(&format!("{number}")), at("06-01T00:00")).await?;
                        match number % 4 {
                            0 => Err(StoreError::Setup("thought better of it".to_owned())),
                            1 => {
                                let day = Day::from_stored(20_000)
                                    .map_err(|error| StoreError::Setup(error.to_string()))?;
                                levels::replace_node_day(
                                    scope,
                                    tx,
                                    ScopeId::from_stored(1),
                                    day,
                                    &against_a_rule(),
                                )
                                .await
                            }
                            2 if number == 22 => panic!("this panic is part of the test"),
                            _ => Ok(()),
                        }
                    })
                });
                (number, done.await)
            });
        }
        gate.notify_one();

        let mut committed = 0;
        while let Some(done) = running.join_next().await {
            let (number, result) = done.expect("no caller panics");
            match (number % 4, result) {
                _ if number == 0 => {}
                (0, Err(StoreError::Setup(_))) => {}
                (1, Err(StoreError::Conflict { rule, .. })) => assert_eq!(rule, "node_day_state_word"),
                (2, Err(StoreError::Abandoned)) if number == 22 => {}
                (2 | 3, Ok(())) => committed += 1,
                (_, result) => panic!("unit {number}: {result:?}"),
            }
        }
        assert_eq!(committed, 19);
        assert_eq!(platform.count("finding").await, 19);
        assert_eq!(platform.count("finding WHERE subject IN ('4', '5', '22')").await, 0);
        write_pair(platform, "afterwards".to_owned()).await.expect("the writer is still there");
    }

    /// Architecture notes, 3.4: PostgreSQL's transaction is dead after an error and SQLite's goes on, so one error ends
    /// the unit on both. Else PostgreSQL acknowledges a COMMIT that rolled back.
    async fn a_unit_that_swallows_an_error_is_not_acknowledged(platform: &TestPlatform) {
        let done = write(platform, |scope, tx| {
            unit(async move {
                findings::write(scope, tx, &row("one"), at("06-01T00:00")).await?;
                let day = Day::from_stored(20_000).map_err(|error| StoreError::Setup(error.to_string()))?;
                let rows = against_a_rule();
                let broken = levels::replace_node_day(scope, tx, ScopeId::from_stored(1), day, &rows);
                assert!(broken.await.is_err());
                Ok::<_, StoreError>(())
            })
        });
        let acknowledged = done.await.is_ok();
        assert_eq!((acknowledged, platform.count("finding").await), (false, 0));
    }

    async fn read_then_write_units_never_meet_a_busy_database(platform: &TestPlatform) {
        let mut running = JoinSet::new();
        for number in 0..64 {
            let writer = platform.platform.clone();
            running.spawn(async move {
                write(&writer, move |scope, tx| {
                    unit(async move {
                        let before = findings::summary(scope, tx).await?.len();
                        findings::write(scope, tx, &row(&format!("{number}")), at("06-01T00:00")).await?;
                        assert!(
                            findings::summary(scope, tx).await?.len() > before,
                            "a unit reads what it wrote"
                        );
                        Ok::<_, StoreError>(())
                    })
                })
                .await
            });
            read_rows(platform).await.expect("readers are not in the way, nor it in theirs");
        }
        while let Some(done) = running.join_next().await {
            done.expect("no unit panics").expect("no unit meets a busy database");
        }
        assert_eq!(platform.count("finding").await, 64);
    }
}

/// Why the file has one writer, which begins with BEGIN IMMEDIATE: the trap is there.
#[tokio::test]
async fn a_deferred_transaction_that_reads_and_then_writes_fails_at_once() {
    use sqlx::{Connection as _, SqliteConnection};

    let platform = TestPlatform::sqlite().await;
    let options = sqlx::sqlite::SqliteConnectOptions::new()
        .filename(platform.storage.file())
        .busy_timeout(Duration::from_secs(5));
    let mut reader = SqliteConnection::connect_with(&options).await.expect("the file is there");
    let mut deferred = reader.begin().await.expect("a deferred transaction begins");
    let read = sqlx::query("SELECT COUNT(*) FROM tenant").fetch_one(&mut *deferred).await;
    read.expect("it reads");

    write_pair(&platform, "meanwhile".to_owned()).await.expect("another writes");

    let asked = std::time::Instant::now();
    let insert = "INSERT INTO tenant (name, origin, created_us) VALUES ('acme', 'operator', 0)";
    let error = sqlx::query(insert).execute(&mut *deferred).await.expect_err("its snapshot is old");
    let code = error.as_database_error().and_then(|error| error.code().map(|code| code.into_owned()));
    assert_eq!(code.as_deref(), Some("517"), "SQLITE_BUSY_SNAPSHOT");
    assert!(asked.elapsed() < Duration::from_secs(1), "it did not wait for the busy timeout");
}

mod only_postgres {
    use super::*;
    use crate::support::platform::{TestClock, open_on};
    use crate::support::postgres::{TestDatabase, slow_socket};

    const LANES: u64 = 8;
    const EACH: u64 = 25;

    /// sqlx 0.9.0: a `begin` that is dropped in flight leaves its connection inside a transaction.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_cancelled_begin_loses_nothing_that_was_acknowledged() {
        let database = TestDatabase::fresh().await;
        let proxy = slow_socket(Duration::ZERO).await;
        let store =
            fatia::store::Store::connect(&proxy.url_for(&database), 8).await.expect("slow, not broken");
        let platform = open_on(store, "ana", TestClock::at("06-10T00:00")).await;
        proxy.set_delay(Duration::from_millis(3));

        let mut raw = raw(&database).await;
        let sessions = "SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() \
                        AND state LIKE 'idle in transaction%'";
        let mut lanes = JoinSet::new();
        for number in 0..EACH {
            for lane in 0..LANES {
                let platform = platform.clone();
                lanes.spawn(async move {
                    let asked = if lane % 4 == 3 {
                        tokio::spawn(async move { read_rows(&platform).await.map(|_| ()) })
                    } else {
                        tokio::spawn(
                            async move { write_pair(&platform, format!("cut {lane} {number}")).await },
                        )
                    };
                    // Between nothing sent and the transaction under way: each round trip takes 6 ms.
                    let point = (lane * EACH + number) * 7_919 % 30_000;
                    tokio::time::sleep(Duration::from_micros(point)).await;
                    asked.abort();
                });
            }
            while let Some(lane) = lanes.join_next().await {
                lane.expect("no lane panics");
            }
            // After each round: the next unit's COMMIT would end what was left open, and so hide it.
            eventually("no session is idle in a transaction", async || raw.number(sessions).await == 0).await;
        }

        for lane in 0..LANES {
            let platform = platform.clone();
            lanes.spawn(async move {
                for number in 0..EACH {
                    let kept = write_pair(&platform, format!("kept {lane} {number}")).await;
                    kept.unwrap_or_else(|error| panic!("kept {lane} {number}: {error:?}"));
                }
            });
        }
        while let Some(lane) = lanes.join_next().await {
            lane.expect("every write is acknowledged");
        }

        let kept = raw.number("SELECT COUNT(*) FROM finding WHERE subject LIKE 'kept %'").await;
        assert_eq!(kept, i64::try_from(2 * LANES * EACH).unwrap());
        eventually("no session is idle in a transaction", async || raw.number(sessions).await == 0).await;
        let cut = |half: &str| format!("SELECT COUNT(*) FROM finding WHERE subject LIKE 'cut % {half}'");
        let halves = (raw.number(&cut("one")).await, raw.number(&cut("two")).await);
        assert_eq!(halves.0, halves.1, "a write that was cut off is whole or not there");
    }

    /// Why each connection is rolled back before the next borrower gets it: the trap is there.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_bare_pool_loses_what_it_acknowledged_after_a_begin_was_dropped() {
        for (rolled_back, kept) in [(false, 0), (true, 1)] {
            let database = TestDatabase::fresh().await;
            let proxy = slow_socket(Duration::ZERO).await;
            let mut options =
                sqlx::postgres::PgPoolOptions::new().max_connections(1).test_before_acquire(false);
            if rolled_back {
                options = options.after_release(|connection, _| {
                    Box::pin(async move {
                        sqlx::Executor::execute(connection, "ROLLBACK").await?;
                        Ok(true)
                    })
                });
            }
            let pool = options.connect(&proxy.url_for(&database)).await.expect("slow, not broken");
            proxy.set_delay(Duration::from_millis(250));
            let begun = tokio::time::timeout(Duration::from_millis(25), pool.begin()).await;
            assert!(begun.is_err(), "the answer takes half a second");
            proxy.set_delay(Duration::ZERO);

            let insert = "INSERT INTO tenant (name, origin, created_us) VALUES ('acme', 'operator', 0)";
            let mut borrowed = pool.acquire().await.expect("the connection is lent again");
            let scope = "SELECT set_config('fatia.platform', 'on', false)";
            sqlx::query(scope).execute(&mut *borrowed).await.expect("a setting for the session");
            let inserted = sqlx::query(insert).execute(&mut *borrowed).await.expect("it is acknowledged");
            assert_eq!(inserted.rows_affected(), 1);
            borrowed.close().await.expect("it is closed in order");

            let found = raw(&database).await.number("SELECT COUNT(*) FROM tenant WHERE name = 'acme'").await;
            assert_eq!(found, kept, "rolled back: {rolled_back}");
        }
    }

    async fn raw(database: &TestDatabase) -> crate::support::platform::Raw {
        use sqlx::Connection as _;
        let connection = sqlx::PgConnection::connect(&database.superuser_url).await;
        crate::support::platform::Raw::Postgres(connection.expect("the server answers"))
    }
}
