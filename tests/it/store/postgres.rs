//! The server's set-up: who may connect as what, whose rows a transaction sees, and where partitions come from.

use fatia::store::{Store, StoreError};
use sqlx::{Connection as _, PgConnection};

use crate::support::platform::{Raw, TestPlatform};
use crate::support::postgres::TestDatabase;

/// Tables with a tenant in their key: its rows are that tenant's to read.
const TENANTS_OWN: [&str; 5] = ["node_day", "project", "tenant", "tenant_day", "tenant_month"];

async fn connect(url: &str) -> Raw {
    Raw::Postgres(PgConnection::connect(url).await.unwrap_or_else(|error| panic!("{url}: {error}")))
}

async fn refused(url: &str) -> String {
    match Store::connect(url, 2).await {
        Err(StoreError::Setup(reason)) => reason,
        Err(error) => panic!("refused for another reason: {error:?}"),
        Ok(_) => panic!("it connects all the same"),
    }
}

/// What the service says after the owner changed something.
async fn refused_after(change: &str) -> String {
    let database = TestDatabase::fresh().await;
    Store::connect(&database.app_url, 2).await.expect("nothing is wrong yet");
    connect(&database.superuser_url).await.run(change).await;
    refused(&database.app_url).await
}

/// A platform with a row in every table.
async fn filled() -> TestPlatform {
    let platform = TestPlatform::postgres().await;
    platform
        .import("n1 g1 A10 06-01T00:00 06-02T00:00", "w1 acme/a n1 g1 dedicated 06-01T01:00 06-01T03:00")
        .await;
    platform
        .import_from("vcenter", None, "", "w2 beta n1 g1 dedicated 06-01T02:00 06-01T04:00")
        .await
        .expect("good");
    let file = "name = \"june\"\ncurrency = \"USD\"\neffective_from = \"2026-06-01T00:00:00Z\"\n[cost]\nA10 = \"1\"\n";
    fatia::services::pricing::load(&platform, "june.toml", file).await.expect("a good book");
    let board = "[[board]]\nkey = \"X\"\nmemory_mib = 1024\n";
    fatia::services::catalogue::load(&platform, "catalogue.toml", board).await.expect("a good file");
    platform.derive().await;
    fatia::services::derive::mark_everything(&platform).await.expect("everything can be marked");
    let mut raw = platform.raw().await;
    raw.run(
        "INSERT INTO state_declared (scope_id, device_id, slice, kind, from_us, source, to_us, declared_us, declared_by) \
         SELECT scope_id, 0, '', 'maintenance', 0, 'operator', 1, 0, 'ana' FROM scope;
         INSERT INTO mapping_rule (ordinal, from_us, conditions, tenant_id, project) SELECT 1, 0, '[]', tenant_id, 'p' FROM tenant;
         INSERT INTO dirty_tenant_day (bucket, day, tenant_id, version) SELECT 0, 1, tenant_id, 1 FROM tenant;
         INSERT INTO api_token (token_id, secret_hash, name, role, tenant_id, scopes, created_us, created_by) \
         SELECT 't' || tenant_id, decode(repeat('00', 32), 'hex'), 't', 'tenant', tenant_id, '', 0, 'ana' FROM tenant \
         WHERE tenant_id > 0;
         INSERT INTO idempotency (asker, request_key, fingerprint, outcome, created_us) \
         VALUES ('t1', 'k', decode(repeat('00', 32), 'hex'), '{}', 0);
         INSERT INTO import_run (run_id, source, rank, state, started_us, started_by, beat_us, batches, answered) \
         VALUES ('r', 's', 'import', 'running', 0, 'ana', 0, 0, 0);
         INSERT INTO import_refusal (run_id, ordinal, file, line, reason) VALUES ('r', 1, 'f', 2, 'x');
         INSERT INTO enrolment_token (token_id, secret_hash, pattern, since_us, replaces, created_us, created_by, expires_us) \
         VALUES ('e', decode(repeat('00', 32), 'hex'), '*', 0, 0, 0, 'ana', 1);
         INSERT INTO agent (agent_id, scope_id, since_us, version, enrolled_us, enrolled_by, inventory_counter) \
         SELECT 'a' || scope_id, scope_id, 0, '1', 0, 'e', 0 FROM scope;
         INSERT INTO agent_key (key_id, agent_id, public_key, from_us) \
         SELECT 'k' || agent_id, agent_id, decode(repeat('00', 32), 'hex'), 0 FROM agent;
         INSERT INTO usage_gap (scope_id, stream_id, from_sequence, to_sequence, received_us, from_us, to_us, reason, signature) \
         SELECT scope_id, 's', 1, 2, 0, 0, 1, 'x', '' FROM scope;",
    )
    .await;
    for table in tables(&platform).await {
        assert!(raw.number(&format!("SELECT COUNT(*) FROM {table}")).await > 0, "{table} is empty");
    }
    platform
}

/// All tables that hold rows of ours, without the partitions.
async fn tables(platform: &TestPlatform) -> Vec<String> {
    let sql = "SELECT relname::text FROM pg_class WHERE relkind IN ('r', 'p') AND NOT relispartition \
               AND relnamespace = 'public'::regnamespace AND relname <> '_sqlx_migrations' ORDER BY 1";
    platform.raw().await.rows::<(String,)>(sql).await.into_iter().map(|(table,)| table).collect()
}

async fn as_tenant(platform: &TestPlatform, tenant: &str) -> (Raw, i64) {
    let number =
        platform.raw().await.number(&format!("SELECT tenant_id FROM tenant WHERE name = '{tenant}'")).await;
    let mut app = connect(&platform.storage.server().app_url).await;
    app.run(&format!("BEGIN; SELECT set_config('fatia.tenant', '{number}', true)")).await;
    (app, number)
}

/// The error's code, with the transaction's state as it was before.
async fn code_of(app: &mut Raw, sql: &str) -> String {
    app.run("SAVEPOINT before").await;
    let error = app.try_run(sql).await.expect_err(sql);
    app.run("ROLLBACK TO before").await;
    error.as_database_error().and_then(|error| error.code()).expect("the server refuses").into_owned()
}

const DENIED: &str = "42501";

#[tokio::test]
async fn a_role_that_ignores_row_security_is_refused() {
    let database = TestDatabase::fresh().await;
    for (url, role) in [(&database.superuser_url, "`postgres`"), (&database.backup_url, "`fatia_backup`")] {
        let reason = refused(url).await;
        assert!(reason.contains(role) && reason.contains("ignores row security"), "{reason}");
    }
}

#[tokio::test]
async fn the_schemas_owner_is_refused() {
    let database = TestDatabase::fresh().await;
    let reason = refused(&database.migrate_url).await;
    assert!(reason.contains("`fatia_migrate`, the owner of table `"), "{reason}");
}

#[tokio::test]
async fn the_owner_of_one_table_is_refused() {
    let reason =
        refused_after("GRANT CREATE ON SCHEMA public TO fatia_app; ALTER TABLE finding OWNER TO fatia_app")
            .await;
    assert!(reason.contains("`fatia_app`, the owner of table `finding`"), "{reason}");
}

#[tokio::test]
async fn a_table_without_forced_row_security_is_named() {
    for change in ["NO FORCE", "DISABLE"] {
        let reason = refused_after(&format!("ALTER TABLE node_day {change} ROW LEVEL SECURITY")).await;
        assert!(reason.contains("`node_day`"), "{change}: {reason}");
    }
    let reason = refused_after(
        "SELECT fatia_ensure_partition('node_hour', 0, 10); ALTER TABLE node_hour_0 NO FORCE ROW LEVEL SECURITY",
    )
    .await;
    assert!(reason.contains("`node_hour_0`"), "{reason}");
}

#[tokio::test]
async fn a_partition_with_a_grant_of_its_own_is_named() {
    for whom in ["fatia_app", "PUBLIC"] {
        let reason = refused_after(&format!(
            "SELECT fatia_ensure_partition('usage_batch', 0, 10); GRANT SELECT ON usage_batch_0 TO {whom}"
        ))
        .await;
        assert!(reason.contains("`usage_batch_0`"), "{reason}");
    }
}

#[tokio::test]
async fn a_schema_of_another_version_is_refused() {
    let older = refused_after(
        "DELETE FROM _sqlx_migrations WHERE version = (SELECT MAX(version) FROM _sqlx_migrations)",
    )
    .await;
    assert!(older.contains("fatia migrate"), "{older}");
    let newer = refused_after(
        "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time) \
         VALUES (9999, 'of a later program', true, '', 0)",
    )
    .await;
    assert!(newer.contains("9999"), "{newer}");
    let none = refused_after("DROP TABLE _sqlx_migrations").await;
    assert!(none.contains("fatia migrate"), "{none}");
}

/// Reliability notes, F24: "drop one policy: refused with the table named".
#[tokio::test]
async fn a_table_whose_policy_is_gone_or_lets_everybody_in_is_named() {
    for change in [
        "DROP POLICY tenant_day_scope ON tenant_day",
        "ALTER POLICY tenant_day_scope ON tenant_day USING (true)",
        "CREATE POLICY everybody ON tenant_day USING (true)",
    ] {
        let reason = refused_after(change).await;
        assert!(reason.contains("`tenant_day`"), "{change}: {reason}");
    }
}

#[tokio::test]
async fn without_a_scope_no_row_is_seen() {
    let platform = filled().await;
    let mut app = connect(&platform.storage.server().app_url).await;
    for settings in [
        "SELECT 1",
        // What a setting reads as after a transaction that had set it.
        "SELECT set_config('fatia.tenant', '', true), set_config('fatia.platform', '', true)",
        "SELECT set_config('fatia.platform', 'off', true)",
        "SELECT set_config('fatia.platform', 'ON', true)",
    ] {
        app.run(&format!("BEGIN; {settings}")).await;
        for table in tables(&platform).await {
            let seen = app.number(&format!("SELECT COUNT(*) FROM {table}")).await;
            assert_eq!(seen, 0, "{table} after {settings}");
        }
        app.run("ROLLBACK").await;
    }
    app.run("BEGIN; SELECT set_config('fatia.platform', 'on', true)").await;
    for table in tables(&platform).await {
        assert!(app.number(&format!("SELECT COUNT(*) FROM {table}")).await > 0, "{table}");
    }
    app.run("COMMIT").await;
    assert_eq!(app.number("SELECT COUNT(*) FROM tenant").await, 0, "the scope ended with its transaction");
}

#[tokio::test]
async fn a_tenant_sees_its_own_rows_and_nothing_else() {
    let platform = filled().await;
    let mut raw = platform.raw().await;
    let (mut app, number) = as_tenant(&platform, "acme").await;
    for table in tables(&platform).await {
        let seen = app.number(&format!("SELECT COUNT(*) FROM {table}")).await;
        let own = if TENANTS_OWN.contains(&table.as_str()) {
            let own = raw.number(&format!("SELECT COUNT(*) FROM {table} WHERE tenant_id = {number}")).await;
            assert!(own > 0, "{table} has rows of the tenant");
            own
        } else {
            0
        };
        assert_eq!(seen, own, "{table}");
    }
}

#[tokio::test]
async fn a_tenant_writes_no_row_of_anothers() {
    let platform = filled().await;
    let (mut app, acme) = as_tenant(&platform, "acme").await;
    let other = platform.raw().await.number("SELECT tenant_id FROM tenant WHERE name = 'beta'").await;
    let insert = |tenant: i64| {
        format!(
            "INSERT INTO tenant_day (day, tenant_id, revision, project, mode, model, sku, state, cost_item, charge_item, \
             quantity) VALUES (1, {tenant}, 0, '', '', 'A10', 'A10', 'used', '', '', 1)"
        )
    };
    app.run(&insert(acme)).await;
    for tenant in [0, other] {
        assert_eq!(code_of(&mut app, &insert(tenant)).await, DENIED);
        let moved = format!("UPDATE tenant_day SET tenant_id = {tenant} WHERE tenant_id = {acme}");
        assert_eq!(code_of(&mut app, &moved).await, DENIED);
        assert_eq!(
            app.run(&format!("UPDATE tenant_day SET quantity = 0 WHERE tenant_id = {tenant}")).await,
            0
        );
        assert_eq!(app.run(&format!("DELETE FROM tenant_day WHERE tenant_id = {tenant}")).await, 0);
    }
    for statement in [
        "INSERT INTO scope (kind, name, bucket, created_us) VALUES ('node', 'n9', 1, 0)",
        "INSERT INTO finding (kind, scope_id, subject, since_us, detail, written_us) VALUES ('coverage_lost', 0, '', 0, '', 0)",
        "INSERT INTO price_item (name, revision, book, item_key, unit_price) VALUES ('june', 1, 'cost', 'L4', 0)",
    ] {
        assert_eq!(code_of(&mut app, statement).await, DENIED, "{statement}");
    }
    for table in ["node_hour", "usage_batch", "price_item", "installation", "bucket_lease"] {
        assert_eq!(app.run(&format!("DELETE FROM {table}")).await, 0, "{table}");
    }
}

#[tokio::test]
async fn backup_reads_every_row_and_writes_none() {
    let platform = filled().await;
    let mut raw = platform.raw().await;
    let mut backup = connect(&platform.storage.server().backup_url).await;
    for table in tables(&platform).await {
        let count = format!("SELECT COUNT(*) FROM {table}");
        assert_eq!(backup.number(&count).await, raw.number(&count).await, "{table}");
    }
    assert!(backup.try_run("DELETE FROM finding").await.is_err());
}

#[tokio::test]
async fn the_service_neither_makes_nor_drops_tables() {
    let platform = filled().await;
    let mut app = connect(&platform.storage.server().app_url).await;
    app.run("BEGIN; SELECT set_config('fatia.platform', 'on', true)").await;
    for statement in [
        "CREATE TABLE t (id bigint)",
        "CREATE TABLE node_hour_x PARTITION OF node_hour FOR VALUES FROM (-2) TO (-1)",
        "DROP TABLE node_day",
        "TRUNCATE node_day",
        "ALTER TABLE node_day DISABLE ROW LEVEL SECURITY",
        "ALTER TABLE node_day NO FORCE ROW LEVEL SECURITY",
        "DROP POLICY node_day_scope ON node_day",
        "SET ROLE fatia_migrate",
        "SET ROLE fatia_backup",
    ] {
        assert_eq!(code_of(&mut app, statement).await, DENIED, "{statement}");
    }
    for call in ["'tenant', 0, 1", "'pg_class', 0, 1", "'node_hour', 1, 1", "'node_hour', 2, 1"] {
        let code = code_of(&mut app, &format!("SELECT fatia_ensure_partition({call})")).await;
        assert_eq!(code, "P0001", "{call}");
    }
    // A partition itself shows nothing, even to who sees all of its parent.
    let sql = "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'usage_batch'::regclass";
    for (partition,) in app.rows::<(String,)>(sql).await {
        assert_eq!(code_of(&mut app, &format!("SELECT * FROM {partition}")).await, DENIED);
    }
}

async fn partitions(platform: &TestPlatform, parent: &str) -> Vec<String> {
    let sql = format!(
        "SELECT pg_get_expr(c.relpartbound, c.oid) FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid \
         WHERE i.inhparent = '{parent}'::regclass ORDER BY 1"
    );
    platform.raw().await.rows::<(String,)>(&sql).await.into_iter().map(|(bounds,)| bounds).collect()
}

#[tokio::test]
async fn partitions_are_made_where_rows_need_them_and_weeks_ahead() {
    const WEEK: i64 = 7 * 86_400_000_000;
    let platform = TestPlatform::postgres().await;
    assert_eq!(partitions(&platform, "usage_batch").await, Vec::<String>::new());
    platform.import("n1 g1 A10 01-05T22:00 01-06T01:00\nn1 g2 A10 06-01T00:00 06-01T01:00", "").await;

    let received = platform.now().micros().div_euclid(WEEK);
    let week = |number: i64| format!("FOR VALUES FROM ('{}') TO ('{}')", number * WEEK, (number + 1) * WEEK);
    let made = partitions(&platform, "usage_batch").await;
    assert_eq!(made, (received..=received + 13).map(week).collect::<Vec<_>>(), "13 weeks are 91 days");

    platform.derive().await;
    let made = partitions(&platform, "node_hour").await;
    assert_eq!(made.len(), 2, "January's and June's: {made:?}");
    // The set-up is still one that the service connects to.
    Store::connect(&platform.storage.server().app_url, 2).await.expect("partitions are safe");
}

/// The second waits for the first, then has to see what the first made.
#[tokio::test]
async fn two_who_want_the_same_partition_both_get_it() {
    let database = TestDatabase::fresh().await;
    let (mut one, mut other) = (connect(&database.app_url).await, connect(&database.app_url).await);
    one.run("BEGIN; SELECT fatia_ensure_partition('usage_batch', 0, 10)").await;
    let waiting =
        tokio::spawn(
            async move { other.try_run("SELECT fatia_ensure_partition('usage_batch', 0, 10)").await },
        );
    let mut raw = connect(&database.superuser_url).await;
    let waits = "SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
    crate::support::platform::eventually("the second waits", async || raw.number(waits).await == 1).await;
    one.run("COMMIT").await;
    waiting.await.expect("it goes on").expect("the partition is there");
}
