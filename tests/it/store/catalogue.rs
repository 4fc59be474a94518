//! The operator's catalogue file over the store: the newest holds, whole, and what it changes is marked.

use std::sync::Arc;

use fatia::domain::catalogue::Catalogue;
use fatia::services::catalogue::{self, CatalogueOutcome};
use fatia::services::derive::pending;
use fatia::services::error::ServiceError;
use fatia::store::unit;
use sqlx::{Connection as _, PgConnection};

use crate::support::platform::{Raw, TestPlatform, name, on_both_databases};

const BOARD: &str = "[[board]]\nkey = \"X\"\nnames = [\"Board X\"]\nmemory_mib = 65536\ncompute_slices = 7\nmemory_slots = 8\n";
const PROFILE: &str =
    "[[profile]]\nboard = \"X\"\nname = \"1g.8gb\"\nmemory_slots = 1\nstarts = [0, 1]\nmax_instances = 2\n";

async fn load(platform: &TestPlatform, text: &str) -> Result<CatalogueOutcome, ServiceError> {
    catalogue::load(platform, "catalogue.toml", text).await
}

async fn current(platform: &TestPlatform) -> Arc<Catalogue> {
    let scope = platform.scope();
    let held = platform
        .store
        .read(&platform.scope(), move |tx| unit(async move { catalogue::current(&scope, tx).await }))
        .await;
    held.unwrap_or_else(|error| panic!("no catalogue: {error}"))
}

/// One device in service for a day and a half, held by nobody that is known.
async fn a_day_and_a_half(platform: &TestPlatform) {
    platform.import("n1 g1 A10 06-01T00:00 06-02T12:00", "").await;
    platform.derive().await;
}

on_both_databases! {
    async fn without_a_file_the_embedded_catalogue_holds(platform: &TestPlatform) {
        assert_eq!(&*current(platform).await, Catalogue::embedded());
        let view = catalogue::show(platform, None).await.expect("it can be shown");
        assert_eq!((view.file, view.boards.len()), (None, Catalogue::embedded().boards().count()));
        // Taking back what nobody loaded is nothing.
        let outcome = load(platform, "# nothing\n").await.expect("a good file");
        assert_eq!((outcome.revision, outcome.is_new), (None, false));
        assert_eq!(platform.count("catalogue_file").await, 0);
    }

    async fn a_file_holds_until_the_next_and_an_empty_one_takes_it_back(platform: &TestPlatform) {
        a_day_and_a_half(platform).await;
        let levels = platform.levels().await;
        let first = load(platform, &format!("{BOARD}{PROFILE}")).await.expect("a good file");
        assert_eq!((first.revision, first.boards, first.profiles, first.is_new), (Some(1), 1, 1, true));
        let held = current(platform).await;
        assert!(held.mig_profile(&name("board x"), "1g.8gb").is_some());

        let second = load(platform, BOARD).await.expect("a good file");
        assert_eq!((second.revision, second.is_new), (Some(2), true));
        assert!(current(platform).await.mig_profile(&name("X"), "1g.8gb").is_none());
        let view = catalogue::show(platform, Some(name("x"))).await.expect("it can be shown");
        let file = view.file.expect("one was loaded");
        assert_eq!((file.revision, file.loaded_by.as_str(), view.boards.len()), (2, "ana", 1));

        let third = load(platform, "").await.expect("an empty file is a file");
        assert_eq!((third.revision, third.is_new), (Some(3), true));
        assert_eq!(&*current(platform).await, Catalogue::embedded());
        catalogue::show(platform, Some(name("x"))).await.expect_err("X is gone");
        assert_eq!(platform.count("catalogue_file").await, 3);

        platform.derive().await;
        platform.assert_well().await;
        assert_eq!(platform.levels().await, levels, "nobody holds a profile");
    }

    async fn every_hour_is_divided_again_after_a_load(platform: &TestPlatform) {
        a_day_and_a_half(platform).await;
        load(platform, BOARD).await.expect("a good file");
        let mut raw = platform.raw().await;
        let hours = raw.number("SELECT COUNT(*) FROM dirty_node WHERE kind = 'part'").await;
        assert_eq!((hours, pending(platform).await.expect("marks can be counted")), (36, 36));
        platform.derive().await;
        platform.assert_well().await;
    }

    async fn the_same_rows_again_change_nothing(platform: &TestPlatform) {
        a_day_and_a_half(platform).await;
        load(platform, &format!("{BOARD}{PROFILE}")).await.expect("a good file");
        platform.derive().await;
        // Another layout of the same is the same.
        let again = load(platform, &format!("# turned\n{PROFILE}\n{BOARD}")).await.expect("a good file");
        assert_eq!((again.revision, again.is_new), (Some(1), false));
        assert_eq!(platform.count("catalogue_file").await, 1);
        assert_eq!(pending(platform).await.expect("marks can be counted"), 0);
    }

    async fn a_bad_file_leaves_the_one_before(platform: &TestPlatform) {
        a_day_and_a_half(platform).await;
        load(platform, BOARD).await.expect("a good file");
        platform.derive().await;
        for text in [PROFILE, "[[board]]\nkey = 1\n", &format!("{BOARD}{BOARD}")] {
            let error = load(platform, text).await.expect_err("a bad file");
            assert!(matches!(error, ServiceError::File { .. }), "{error:?}");
        }
        assert!(current(platform).await.board(&name("X")).is_some());
        assert_eq!(platform.count("catalogue_file").await, 1);
        assert_eq!(pending(platform).await.expect("marks can be counted"), 0);
    }

    /// Whoever changes an input marks what depends on it in the same transaction.
    async fn a_file_whose_hours_could_not_be_marked_is_not_loaded(platform: &TestPlatform) {
        a_day_and_a_half(platform).await;
        let mut raw = platform.raw().await;
        let constraint = match raw {
            Raw::Sqlite(_) => {
                "CREATE TRIGGER no_marks BEFORE INSERT ON dirty_node BEGIN SELECT RAISE(ABORT, 'no marks'); END"
            }
            Raw::Postgres(_) => "ALTER TABLE dirty_node ADD CONSTRAINT no_marks CHECK (false)",
        };
        raw.run(constraint).await;
        load(platform, BOARD).await.expect_err("nothing can be marked");
        assert_eq!(&*current(platform).await, Catalogue::embedded());
        assert_eq!(platform.count("catalogue_file").await, 0);
    }

    /// A file that fitted an earlier version's tables and not this one's is an error, never left out silently.
    async fn a_stored_file_that_no_longer_fits_is_an_error(platform: &TestPlatform) {
        let mut raw = platform.raw().await;
        let text = PROFILE.replace('\n', " ' || char(10) || '");
        let text = match raw {
            Raw::Sqlite(_) => text,
            Raw::Postgres(_) => text.replace("char(10)", "chr(10)"),
        };
        let hash = match raw {
            Raw::Sqlite(_) => "x'00'",
            Raw::Postgres(_) => "'\\x00'",
        };
        raw.run(&format!("INSERT INTO catalogue_file VALUES (4, '{text}', {hash}, 0, 'ana')")).await;
        let error = catalogue::show(platform, None).await.expect_err("its board is not there");
        let said = error.to_string();
        assert!(said.starts_with("catalogue revision 4: profile `X 1g.8gb`: board `X` is not known"), "{said}");
        // The next one mends it.
        let mended = load(platform, BOARD).await.expect("a good file");
        assert_eq!(mended.revision, Some(5));
        catalogue::show(platform, None).await.expect("it can be shown");
    }
}

/// On SQLite one writer decides after the other, and there are no roles.
mod only_postgres {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn of_equal_files_that_are_loaded_at_once_one_is_taken() {
        let platform = TestPlatform::postgres().await;
        let mut held = platform.raw().await;
        held.run("BEGIN; LOCK TABLE catalogue_file IN SHARE MODE").await;
        let mut loading = tokio::task::JoinSet::new();
        for _ in 0..3 {
            let platform = platform.platform.clone();
            loading.spawn(async move { catalogue::load(&platform, "catalogue.toml", BOARD).await });
        }
        platform.waiting_for_locks(3).await;
        held.run("COMMIT").await;
        let outcomes = loading.join_all().await.into_iter().map(|each| each.expect("a good file"));
        assert_eq!(outcomes.filter(|outcome| outcome.is_new).count(), 1);
        assert_eq!(platform.count("catalogue_file").await, 1);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn the_service_adds_files_and_never_changes_one() {
        let platform = TestPlatform::postgres().await;
        load(&platform, BOARD).await.expect("a good file");
        let url = &platform.storage.server().app_url;
        let mut app = Raw::Postgres(PgConnection::connect(url).await.expect("the server answers"));
        app.run("SELECT set_config('fatia.platform', 'on', false)").await;
        for sql in ["UPDATE catalogue_file SET content = ''", "DELETE FROM catalogue_file"] {
            let error = app.try_run(sql).await.expect_err(sql);
            assert!(error.to_string().contains("permission denied"), "{error}");
        }
    }
}
