//! The embedded file: one process has it, and one that died is in nobody's way.

use fatia::store::{Store, StoreError, marks, unit};

use crate::support::platform::{TestPlatform, at, write};

#[tokio::test]
async fn a_second_open_is_refused_and_names_the_holder() {
    let folder = tempfile::tempdir().expect("a folder to test in");
    let first = Store::open(folder.path(), "`fatia serve`, process 4711").await.expect("a new folder");
    for _ in 0..2 {
        let error = Store::open(folder.path(), "another").await.expect_err("one process has it");
        assert!(
            matches!(&error, StoreError::InUse { holder, .. } if holder.contains("process 4711")),
            "{error:?}"
        );
        assert!(error.to_string().contains("fatia.db is in use by `fatia serve`, process 4711"), "{error}");
    }
    // Whoever opens it next is named next, however short the name.
    drop(first);
    let _second = Store::open(folder.path(), "me").await.expect("nobody has it");
    let error = Store::open(folder.path(), "another").await.expect_err("one process has it");
    assert!(matches!(&error, StoreError::InUse { holder, .. } if holder == "me"), "{error:?}");
}

#[tokio::test]
async fn two_folders_are_two_databases() {
    let (one, other) = (TestPlatform::sqlite().await, TestPlatform::sqlite().await);
    one.inventory("n1 g1 A10 06-01T00:00").await;
    assert_eq!((one.count("device").await, other.count("device").await), (1, 0));
}

#[tokio::test]
async fn leases_of_a_process_that_died_do_not_hold_up_the_next() {
    let platform = TestPlatform::sqlite().await;
    platform.import("n1 g1 A10 06-09T00:00 06-09T02:00", "").await;
    let taken = write(&platform, |scope, tx| {
        unit(async move {
            marks::take_leases(scope, tx, "dead", at("06-10T12:00")..at("12-31T00:00"), None, 64).await
        })
    });
    assert_eq!(taken.await.expect("leases can be taken").len(), 1);
    assert_eq!(platform.derive().await.days, 0, "it is at work, as far as anybody knows");

    let platform = platform.reopened().await;
    assert_eq!(platform.derive().await.days, 1);
    platform.assert_well().await;
}

#[tokio::test]
async fn what_was_answered_is_there_after_a_restart() {
    let platform = TestPlatform::sqlite().await;
    platform
        .import("n1 g1 A10 06-09T00:00 06-09T02:00", "w1 acme/a n1 g1 dedicated 06-09T00:00 06-09T01:00")
        .await;
    platform.derive().await;
    let levels = platform.levels().await;
    let platform = platform.reopened().await;
    assert_eq!(platform.levels().await, levels);
    let again = platform.import("", "w1 acme/a n1 g1 dedicated 06-09T00:00 06-09T01:00").await;
    assert_eq!((again.stored, again.duplicates), (0, 1));
}
