//! On a server's database other processes derive, and the schema is somebody's to bring up to date.

use sqlx::{AssertSqlSafe, Connection as _, PgConnection};

use super::program::{Fatia, fixture};
use super::states::check_moved_ends;
use crate::support::postgres::TestDatabase;

const ROLES: &str = include_str!("../../../deploy/postgres/roles.sql");
const INVENTORY: &str = "node,gpu_uuid,gpu_model,in_service_from,in_service_to\n\
                         n1,GPU-a,A10,2026-09-01T00:00:00Z,2026-09-03T00:00:00Z\n";
const INTERVALS: &str = "workload,tenant,node,gpu_uuid,mode,start,end\n\
                         w,t,n1,GPU-a,dedicated,2026-09-01T00:00:00Z,2026-09-01T08:00:00Z\n";
const PRICES: &str = "name = \"a\"\ncurrency = \"USD\"\neffective_from = \"2026-09-01T00:00:00Z\"\n\
                      [cost]\nA10 = \"1.5\"\n";
const IMPORT: [&str; 5] = ["import", "intervals", "--inventory", "inventory.csv", "intervals.csv"];

async fn installation() -> (TestDatabase, Fatia) {
    let database = TestDatabase::fresh().await;
    let fatia = Fatia::on(&database).with("FATIA_WORKER__LEASE_SECONDS", "2");
    (database, fatia)
}

#[tokio::test]
async fn commands_wait_for_the_worker_and_the_report_is_that_of_sqlite() {
    let (_database, server) = installation().await;
    let worker = server.worker();
    let embedded = Fatia::new();
    for fatia in [&server, &embedded] {
        fatia.price(&fixture("sample/prices.toml")).good();
        fatia.import_all(&fixture("sample/inventory.csv"), &fixture("sample/intervals.csv"), &[]);
    }
    for fields in ["tenant,project,mode", "day,state", "node,workload,model"] {
        for format in ["json", "csv", "text"] {
            let report = |fatia: &Fatia| fatia.report("2026-09", fields, format);
            assert_eq!(report(&server), report(&embedded), "{fields} {format}");
        }
    }
    let before = server.report("2026-09", "tenant", "json");
    server.run(&["rebuild"]).good();
    assert_eq!(server.report("2026-09", "tenant", "json"), before);
    server.import().good().told(&["nothing new"]);
    let doctor = server.run(&["doctor"]).good();
    assert!(doctor.out.contains("PostgreSQL") && !doctor.out.contains("WRONG"), "{doctor}");
    worker.stop().good();
}

#[tokio::test]
async fn no_wait_returns_at_once_and_the_figures_come_with_a_worker() {
    let (_database, fatia) = installation().await;
    fatia.import_all(INVENTORY, INTERVALS, &["--no-wait"]).told(&["wait for a worker", "fatia worker"]);
    // Nothing has been counted yet, and the report says until when that holds.
    let command = ["report", "costs", "--period", "2026-09", "--group-by", "tenant", "--format", "json"];
    fatia.run(&command).good().told(&["marks still wait for a worker"]);
    let report = fatia.json("2026-09", "tenant");
    assert_eq!((report.in_service(), report.text("as_of")), (0, "2026-09-01T00:00:00Z"));
    fatia.write("prices.toml", PRICES);
    fatia.run(&["price", "load", "--no-wait", "prices.toml"]).good().told(&["wait for a worker"]);
    fatia.run(&["rebuild", "--no-wait"]).good().told(&["wait for a worker"]);
    fatia.run(&["worker", "--once"]).good();
    let report = fatia.json("2026-09", "tenant");
    assert_eq!((report.in_service(), report.sum(&[("tenant", "t")])), (48_000_000, 8_000_000));
    let cost = report.groups().into_iter().find(|line| line.text("tenant") == "t").expect("t").cost();
    assert_eq!(cost, Some("12"));
    // With nothing left to wait for, no worker is needed.
    fatia.import().good().told(&["nothing new"]);
}

#[tokio::test]
async fn without_a_worker_a_command_that_waits_says_so() {
    let (_database, fatia) = installation().await;
    fatia.write("inventory.csv", INVENTORY);
    fatia.write("intervals.csv", INTERVALS);
    let mut import = fatia.start(&IMPORT);
    import.until_told("import 1: 1 lines read");
    import.until_told("nobody works on what is marked: start `fatia worker`");
    assert!(import.is_running(), "it goes on waiting");
    // What is stored is stored, also if nobody waits for the figures.
    import.kill();
    let waiting = fatia.start(&IMPORT);
    waiting.until_told("nothing new");
    let worker = fatia.worker();
    waiting.finish().good();
    assert_eq!(fatia.json("2026-09", "tenant").sum(&[("tenant", "t")]), 8_000_000);
    worker.stop().good();
}

#[tokio::test]
async fn a_worker_that_was_killed_keeps_nobody_waiting_past_its_lease() {
    let (_database, fatia) = installation().await;
    let killed = fatia.worker();
    fatia.import_all(INVENTORY, INTERVALS, &[]);
    killed.kill();
    let worker = fatia.worker();
    fatia.price(PRICES).good();
    assert_eq!(fatia.json("2026-09", "day").total("used"), 8_000_000);
    worker.stop().good();
}

async fn execute(url: &str, statements: String) {
    let mut connection = PgConnection::connect(url).await.expect("the test's own server");
    sqlx::raw_sql(AssertSqlSafe(statements)).execute(&mut connection).await.expect("a superuser may");
    connection.close().await.expect("a connection closes");
}

#[tokio::test]
async fn a_schema_is_migrated_by_command_and_a_second_time_is_harmless() {
    let database = TestDatabase::fresh().await;
    let empty = format!("{}_empty", database.name);
    execute(&database.superuser_url, format!("CREATE DATABASE {empty} OWNER fatia_migrate")).await;
    let of = |url: &str| {
        let other = url.replacen(&format!("/{}?", database.name), &format!("/{empty}?"), 1);
        assert_ne!(other, url, "the URL names the database");
        other
    };
    execute(&of(&database.superuser_url), ROLES.to_owned()).await;

    let app = Fatia::new().with("DATABASE_URL", &of(&database.app_url));
    for command in [&["doctor"][..], &["worker"], &["report", "costs", "--period", "2026-09"]] {
        app.run(command).ended(1).told(&["fatia migrate"]);
    }
    let migrate = Fatia::new().with("DATABASE_MIGRATE_URL", &of(&database.migrate_url));
    migrate.run(&["migrate"]).good();
    migrate.run(&["migrate"]).good();
    assert!(!migrate.path("data/fatia.db").exists(), "it is about the server's database alone");
    app.import_all(INVENTORY, INTERVALS, &["--no-wait"]);
    app.run(&["worker", "--once"]).good();
    let report = app.report("2026-09", "tenant", "json");
    migrate.run(&["migrate"]).good();
    assert_eq!(app.report("2026-09", "tenant", "json"), report);
}

#[tokio::test]
async fn roles_that_see_too_much_are_refused() {
    let database = TestDatabase::fresh().await;
    for (url, part) in [
        (&database.superuser_url, "connects as `postgres`, which ignores row security"),
        (&database.migrate_url, "own"),
        (&database.backup_url, "connects as `fatia_backup`, which ignores row security"),
    ] {
        let ran = Fatia::new().with("DATABASE_URL", url).run(&["doctor"]).ended(1);
        ran.told(&["fatia: ", part]);
    }
}

/// `DATABASE_MIGRATE_URL` is for one command: another must not change the schema because it is set.
#[tokio::test]
async fn only_migrate_migrates() {
    let fatia = Fatia::new().with("DATABASE_MIGRATE_URL", "postgres://nobody@localhost:1/none");
    fatia.run(&["doctor"]).good();
}

#[tokio::test]
async fn an_inventory_that_moves_an_end_moves_the_time_in_service() {
    let (_database, fatia) = installation().await;
    let worker = fatia.worker();
    check_moved_ends(
        |inventory, intervals| _ = fatia.import_all(inventory, intervals, &[]),
        |group_by| fatia.json("2026-09", group_by),
    );
    worker.stop().good();
}
