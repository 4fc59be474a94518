//! Leases: one worker a bucket, and a worker that slept writes nothing.

use std::sync::Arc;
use std::sync::atomic::AtomicI64;

use fatia::domain::units::Instant;
use fatia::store::marks::{self, Lease};
use fatia::store::{StoreError, unit};
use futures_util::future::BoxFuture;

use super::marks::MeddlingClock;
use crate::support::platform::{TestPlatform, at, derive, on_both_databases, write};

async fn take(platform: &TestPlatform, holder: &'static str, now: Instant, until: Instant) -> Vec<Lease> {
    write(platform, move |scope, tx| {
        unit(async move { marks::take_leases(scope, tx, holder, now..until, None, 64).await })
    })
    .await
    .expect("leases can be asked for")
}

async fn hold(platform: &TestPlatform, lease: Lease) -> Result<(), StoreError> {
    write(platform, move |scope, tx| unit(async move { marks::hold_lease(scope, tx, lease).await })).await
}

/// One node in service on one day, with its marks.
async fn one_day(platform: &TestPlatform) {
    platform.inventory("n1 g1 A10 06-09T00:00 06-09T02:00").await;
    platform.tick().await;
}

on_both_databases! {
    async fn a_lease_that_ran_out_is_anothers_under_the_next_epoch(platform: &TestPlatform) {
        one_day(platform).await;
        let mine = take(platform, "one", at("06-10T00:00"), at("06-10T00:01")).await;
        assert_eq!(mine.iter().map(|lease| lease.epoch).collect::<Vec<_>>(), [1]);
        hold(platform, mine[0]).await.expect("it is held");
        assert_eq!(take(platform, "other", at("06-10T00:00:59"), at("06-10T00:02")).await, []);

        let theirs = take(platform, "other", at("06-10T00:01"), at("06-10T00:02")).await;
        assert_eq!(theirs, [Lease { bucket: mine[0].bucket, epoch: 2 }]);
        let error = hold(platform, mine[0]).await.expect_err("it is another's");
        assert!(matches!(error, StoreError::LeaseLost { bucket } if bucket == mine[0].bucket), "{error:?}");
        hold(platform, theirs[0]).await.expect("it is held");

        // The first neither prolongs nor ends what is another's now.
        let renewed = write(platform, move |scope, tx| {
            let mine = mine.clone();
            unit(async move { marks::renew_leases(scope, tx, &mine, at("06-11T00:00")).await })
        });
        assert_eq!(renewed.await.expect("it may ask"), []);
        hold(platform, theirs[0]).await.expect("it is held");
    }

    async fn a_worker_that_lost_its_lease_writes_nothing(platform: &TestPlatform) {
        one_day(platform).await;
        let raw = Arc::new(tokio::sync::Mutex::new(platform.raw().await));
        let steal = move |_| -> BoxFuture<'static, ()> {
            let raw = Arc::clone(&raw);
            Box::pin(async move {
                let until = at("06-11T00:00").micros();
                let sql = format!(
                    "UPDATE bucket_lease SET holder = 'thief', epoch = epoch + 1, until_us = {until} \
                     WHERE holder = 'sleeper'"
                );
                raw.lock().await.run(&sql).await;
            })
        };
        // Its sleep begins after it took its leases; when it wakes, they are another's.
        let clock =
            MeddlingClock { now: platform.now(), left: AtomicI64::new(1_000), meddle: Box::new(steal) };
        let sleeper = platform.replica(Arc::new(clock)).await;
        let derived = derive(&sleeper, "sleeper").await.expect("a lost lease is no error");
        assert_eq!(derived.days, 0);
        assert_eq!(platform.count("node_hour").await, 0);
        assert_eq!(platform.count("node_day").await, 0);
        assert_eq!(platform.count("dirty_node").await, 2);
        assert_eq!(platform.count("bucket_lease WHERE holder = 'thief' AND until_us > 0").await, 1);

        platform.clock.set("06-11T00:00");
        assert_eq!(platform.derive().await.days, 1);
        platform.assert_well().await;
    }

    async fn epochs_only_grow(platform: &TestPlatform) {
        let epochs = async || -> Vec<(i64,)> {
            platform.raw().await.rows("SELECT epoch FROM bucket_lease ORDER BY bucket").await
        };
        let mut before = epochs().await;
        for hour in 1..=3 {
            platform.inventory(&format!("n{hour} g{hour} A10 06-09T00:00 06-09T0{hour}:00")).await;
            platform.tick().await;
            platform.derive().await;
            let after = epochs().await;
            assert!(after.iter().zip(&before).all(|(after, before)| after >= before));
            assert_ne!(after, before, "whoever takes a bucket does so under a new epoch");
            before = after;
        }
    }
}

mod only_postgres {
    use super::*;

    /// More nodes than one worker takes buckets.
    fn fleet() -> (String, String) {
        let mut tables = (String::new(), String::new());
        for node in 0..96 {
            tables.0.push_str(&format!("n{node} g{node} A10 06-09T00:00 06-09T02:00\n"));
            let tenant = node % 7;
            tables
                .1
                .push_str(&format!("w{node} t{tenant} n{node} g{node} dedicated 06-09T00:15 06-09T01:45\n"));
        }
        tables
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn two_workers_do_each_day_once() {
        let platform = TestPlatform::postgres().await;
        let (inventory, intervals) = fleet();
        platform.import(&inventory, &intervals).await;
        let other = platform.replica(platform.clock.clone()).await;
        let (one, other) = tokio::join!(derive(&platform, "one"), derive(&other, "other"));
        let (one, other) = (one.expect("deriving goes on"), other.expect("deriving goes on"));
        assert_eq!(one.days + other.days, 96, "one {one:?}, other {other:?}");
        assert!(one.days > 0 && other.days > 0, "one {one:?}, other {other:?}");
        platform.assert_well().await;

        let alone = TestPlatform::sqlite().await;
        alone.import(&inventory, &intervals).await;
        alone.derive().await;
        assert_eq!(platform.levels().await, alone.levels().await);
    }
}
