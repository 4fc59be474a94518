//! Declared states: what is declared shows in the parts, is amended by its key, and is marked with what it changes.

use fatia::domain::device::{DeclaredKind, DeclaredState};
use fatia::domain::ids::{ScopeKind, ScopeName};
use fatia::domain::units::Instant;
use fatia::services::derive;
use fatia::services::states::{StatesOutcome, import_states};
use fatia::services::table::Strictness;
use fatia::store::{fleet, unit};
use sqlx::{Connection as _, PgConnection};

use crate::support::platform::{Raw, Storage, TestPlatform, at, name, on_both_databases, read, span};

/// Lines `node device slice kind from [to]`, with `-` for nothing, as a table of declared states.
fn states_csv(lines: &str) -> String {
    let mut table = "node,gpu_uuid,slice,kind,from,to\n".to_owned();
    for line in lines.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let text = |place: usize| words.get(place).filter(|text| **text != "-").copied().unwrap_or_default();
        let time = |place: usize| match text(place) {
            "" => String::new(),
            text => at(text).to_string(),
        };
        let (from, to) = (time(4), time(5));
        table.push_str(&format!("{},{},{},{},{from},{to}\n", text(0), text(1), text(2), text(3)));
    }
    table
}

async fn declare_as(platform: &TestPlatform, source: &str, lines: &str) -> StatesOutcome {
    let table = states_csv(lines);
    let outcome =
        import_states(platform, &name(source), ("states.csv", table.as_bytes()), Strictness::TakeTheGood)
            .await;
    let outcome = outcome.unwrap_or_else(|error| panic!("the import fails: {error}"));
    assert_eq!(outcome.bad, [], "every line is good");
    outcome
}

/// Declares as the operator; returns how many states are new, amended and taken back.
async fn declare(platform: &TestPlatform, lines: &str) -> (u64, u64, u64) {
    let outcome = declare_as(platform, "operator", lines).await;
    (outcome.declared, outcome.amended, outcome.taken_back)
}

/// June by these dimensions after everything was derived: their values and GPU-hours, one a line, in order.
async fn derived(platform: &TestPlatform, dimensions: &str) -> Vec<String> {
    platform.derive().await;
    platform.assert_well().await;
    let report = platform.costs("06", dimensions).await.unwrap_or_else(|error| panic!("{error}"));
    let line = |values: &[String], hours| format!("{} {hours}", values.join(" "));
    let groups = report.groups.iter();
    let mut lines: Vec<String> = groups.map(|group| line(&group.values, group.figures.gpu_hours)).collect();
    lines.sort_unstable();
    lines
}

/// Two devices of a node from midnight to noon; half of the first is held until six.
async fn half_a_day(platform: &TestPlatform) {
    platform
        .import(
            "n1 g1 A10 06-09T00:00 06-09T12:00\nn1 g2 A10 06-09T00:00 06-09T12:00",
            "w acme n1 g1 mps:500000 06-09T00:00 06-09T06:00",
        )
        .await;
    let hours = ["acme used 3.000000", "platform idle 21.000000"];
    assert_eq!(derived(platform, "tenant state").await, hours);
}

/// Hours of the ninth of June that are marked, by node and kind of mark.
async fn marked(platform: &TestPlatform) -> Vec<String> {
    let sql = "SELECT s.name || ' ' || d.kind, d.hour_us FROM dirty_node d \
               JOIN scope s ON s.scope_id = d.scope_id ORDER BY s.name, d.kind, d.hour_us";
    let rows: Vec<(String, i64)> = platform.raw().await.rows(sql).await;
    let hour = |micros: i64| Instant::from_micros(micros).micros_since(at("06-09T00:00")) / 3_600_000_000;
    rows.into_iter().map(|(words, micros)| format!("{words} {}", hour(micros))).collect()
}

/// What a node's devices are declared to be on the ninth of June.
async fn states_of(platform: &TestPlatform, node: &str) -> Vec<(String, Vec<DeclaredState>)> {
    let node = ScopeName { kind: ScopeKind::Node, name: name(node) };
    let devices = read(platform, move |scope, tx| {
        unit(async move {
            let home = fleet::find_scope(scope, tx, &node).await?.expect("the node is there");
            fleet::scope_devices(scope, tx, home.id, span("06-09T00:00 06-10T00:00")).await
        })
    });
    let devices = devices.await.expect("states are read");
    devices.into_iter().map(|device| (device.device.uuid.to_string(), device.states)).collect()
}

on_both_databases! {
    async fn maintenance_of_a_node_takes_what_is_idle_and_leaves_what_is_used(platform: &TestPlatform) {
        half_a_day(platform).await;
        assert_eq!(declare(platform, "n1 - - maintenance 06-09T05:30 06-09T07:00").await, (1, 0, 0));
        // A half of a half hour is used; what is left of three hours of a device is maintenance.
        assert_eq!(
            derived(platform, "tenant state").await,
            ["acme used 3.000000", "platform idle 18.250000", "platform maintenance 2.750000"]
        );
        let levels = platform.levels().await;
        platform.rebuild().await;
        assert_eq!(platform.levels().await, levels);
    }

    async fn unhealthy_keeps_the_holder(platform: &TestPlatform) {
        half_a_day(platform).await;
        declare(platform, "n1 g1 - unhealthy 06-09T05:00 06-09T07:00").await;
        assert_eq!(
            derived(platform, "tenant state").await,
            [
                "acme unhealthy 0.500000",
                "acme used 2.500000",
                "platform idle 19.500000",
                "platform unhealthy 1.500000",
            ]
        );
    }

    async fn a_later_import_of_the_same_key_amends_and_an_equal_end_takes_back(platform: &TestPlatform) {
        half_a_day(platform).await;
        let check = async |to: &str, want: (u64, u64, u64), maintenance: &str| {
            let line = format!("n1 g2 - maintenance 06-09T02:00 {to}");
            assert_eq!(declare(platform, &line).await, want, "until {to}");
            let shown = derived(platform, "state").await;
            let shown = shown.iter().find(|line| line.starts_with("maintenance"));
            assert_eq!(shown.map_or("none", String::as_str), maintenance, "until {to}");
            // Again: nothing changes, and nothing is marked.
            assert_eq!(declare(platform, &line).await, (0, 0, 0), "until {to}, again");
            assert_eq!(derive::pending(platform).await.expect("marks can be counted"), 0);
        };
        check("06-09T04:00", (1, 0, 0), "maintenance 2.000000").await;
        check("06-09T08:30", (0, 1, 0), "maintenance 6.500000").await;
        check("-", (0, 1, 0), "maintenance 10.000000").await;
        check("06-09T03:00", (0, 1, 0), "maintenance 1.000000").await;
        check("06-09T02:00", (0, 0, 1), "none").await;
        assert_eq!(platform.count("state_declared").await, 0);
        // The latest import counts, also when it says what an earlier one said.
        check("06-09T04:00", (1, 0, 0), "maintenance 2.000000").await;
        // Taking back what nobody declared is no change.
        assert_eq!(declare(platform, "n1 - - unhealthy 06-09T02:00 06-09T02:00").await, (0, 0, 0));
    }

    async fn a_file_without_a_state_takes_nothing_back(platform: &TestPlatform) {
        half_a_day(platform).await;
        declare(platform, "n1 g2 - maintenance 06-09T02:00 06-09T04:00").await;
        assert_eq!(declare(platform, "").await, (0, 0, 0));
        assert_eq!(declare(platform, "n1 g1 - unhealthy 06-09T08:00 06-09T09:00").await, (1, 0, 0));
        let hours = ["idle 18.000000", "maintenance 2.000000", "unhealthy 1.000000", "used 3.000000"];
        assert_eq!(derived(platform, "state").await, hours);
    }

    async fn the_hours_that_change_are_marked_and_no_other(platform: &TestPlatform) {
        platform
            .inventory("n1 g1 A10 06-09T00:00 06-09T12:00\nn1 g2 A10 06-09T10:30 06-09T12:00\nn2 g3 A10 06-09T00:00")
            .await;
        platform.tick().await;
        platform.derive().await;
        let check = async |lines: &str, hours: &[&str]| {
            declare(platform, lines).await;
            assert_eq!(marked(platform).await, hours, "{lines}");
            platform.derive().await;
        };
        check("n1 g1 - maintenance 06-09T02:30 06-09T04:00", &["n1 part 2", "n1 part 3"]).await;
        // An amendment changes what lies between the old end and the new one.
        check("n1 g1 - maintenance 06-09T02:30 06-09T05:01", &["n1 part 4", "n1 part 5"]).await;
        check("n1 g1 - maintenance 06-09T02:30 06-09T05:00", &["n1 part 5"]).await;
        check("n1 g1 - maintenance 06-09T02:30 06-09T02:30", &["n1 part 2", "n1 part 3", "n1 part 4"]).await;
        // Not before a device is in service, and not after.
        check("n1 g2 - unhealthy 06-09T00:00 06-09T11:00", &["n1 part 10"]).await;
        check("n1 - - maintenance 06-09T11:00", &["n1 part 11"]).await;
        // What the tick has not asked for comes by itself.
        check("n2 - - maintenance 06-10T11:00", &["n2 part 35"]).await;
        check("n2 - - maintenance 06-11T00:00 06-12T00:00", &[]).await;
        platform.assert_well().await;
    }

    async fn an_open_state_and_a_planned_one_take_effect_in_hours_to_come(platform: &TestPlatform) {
        platform.inventory("n1 g1 A10 06-10T11:00").await;
        platform.tick().await;
        declare(platform, "n1 g1 - unhealthy 06-10T11:30\nn1 - - maintenance 06-10T13:00 06-10T13:30").await;
        let check = async |time: &str, hours: &[&str]| {
            platform.clock.set(time);
            platform.tick().await;
            assert_eq!(derived(platform, "state").await, hours, "at {time}");
        };
        check("06-10T12:10", &["unhealthy 0.500000", "unknown 0.500000"]).await;
        // Maintenance comes before unhealthy where nobody holds.
        check("06-10T14:10", &["maintenance 0.500000", "unhealthy 2.000000", "unknown 0.500000"]).await;
        // It is repaired, after the fact.
        assert_eq!(declare(platform, "n1 g1 - unhealthy 06-10T11:30 06-10T13:45").await, (0, 1, 0));
        check("06-10T14:10", &["maintenance 0.500000", "unhealthy 1.750000", "unknown 0.750000"]).await;
    }

    async fn a_device_that_joins_later_is_under_its_nodes_state_while_in_service_there(
        platform: &TestPlatform,
    ) {
        platform.inventory("n1 g1 A10 06-09T00:00 06-09T06:00\nn2 g2 A10 06-09T00:00 06-09T06:00").await;
        platform.tick().await;
        declare(platform, "n1 - - maintenance 06-09T05:00 06-09T09:00").await;
        assert_eq!(
            derived(platform, "node state").await,
            ["n1 maintenance 1.000000", "n1 unknown 5.000000", "n2 unknown 6.000000"]
        );
        // One joins from outside, one comes from the other node and goes back.
        platform
            .inventory("n1 g3 A10 06-09T07:00 06-09T10:00\nn1 g2 A10 06-09T08:00 06-09T10:00\nn2 g2 A10 06-09T10:00 06-09T11:00")
            .await;
        platform.tick().await;
        assert_eq!(
            derived(platform, "node state").await,
            ["n1 maintenance 4.000000", "n1 unknown 7.000000", "n2 unknown 7.000000"]
        );
    }

    async fn the_state_of_a_device_does_not_follow_it_to_another_node(platform: &TestPlatform) {
        platform.inventory("n1 g1 A10 06-09T00:00 06-09T06:00\nn2 g1 A10 06-09T06:00 06-09T12:00").await;
        platform.tick().await;
        declare(platform, "n1 g1 - unhealthy 06-09T04:00").await;
        assert_eq!(
            derived(platform, "node state").await,
            ["n1 unhealthy 2.000000", "n1 unknown 4.000000", "n2 unknown 6.000000"]
        );
    }

    async fn states_overlap_and_each_source_has_its_own(platform: &TestPlatform) {
        half_a_day(platform).await;
        let check = async |source: &str, line: &str, maintenance: &str| {
            declare_as(platform, source, line).await;
            let shown = derived(platform, "state").await;
            assert!(shown.contains(&format!("maintenance {maintenance}")), "{source} {line}: {shown:?}");
        };
        check("operator", "n1 g2 - maintenance 06-09T07:00 06-09T09:00", "2.000000").await;
        check("operator", "n1 g2 - maintenance 06-09T08:00 06-09T10:00", "3.000000").await;
        check("cmdb", "n1 g2 - maintenance 06-09T07:00 06-09T11:00", "4.000000").await;
        check("operator", "n1 g2 - maintenance 06-09T07:00 06-09T07:00", "4.000000").await;
        check("cmdb", "n1 g2 - maintenance 06-09T07:00 06-09T07:00", "2.000000").await;
    }

    async fn a_device_has_the_states_of_its_node_itself_and_its_slices_in_order(platform: &TestPlatform) {
        half_a_day(platform).await;
        let lines = "n1 g1 gi-7 unhealthy 06-09T01:00 06-09T02:00
                     n1 g1 gi-7 migration 06-09T03:00 06-09T04:00
                     n1 g1 - migration 06-09T03:00 06-09T04:00
                     n1 - - maintenance 06-09T05:00
                     n1 g1 gi-3 unhealthy 06-09T01:00 06-09T02:00
                     n1 g1 - unhealthy 06-08T01:00 06-09T00:00
                     n1 g1 - maintenance 06-10T00:00 06-11T00:00";
        // Outside of its time in service nothing can be declared of a device.
        let outcome = import_states(platform, &name("x"), ("s", states_csv(lines).as_bytes()), Strictness::TakeTheGood).await.expect("a table");
        assert_eq!(outcome.bad.iter().map(|bad| bad.line).collect::<Vec<_>>(), [7, 8]);
        // Another source says one of it too.
        declare_as(platform, "y", "n1 - - maintenance 06-09T05:00").await;
        let state = |kind, slice: &str, when: &str| {
            let slice = Some(slice).filter(|slice| !slice.is_empty()).map(name);
            DeclaredState { kind, slice, span: span(when) }
        };
        let of_node = state(DeclaredKind::Maintenance, "", "06-09T05:00");
        let g1 = vec![
            of_node.clone(),
            state(DeclaredKind::Migration, "", "06-09T03:00 06-09T04:00"),
            state(DeclaredKind::Migration, "gi-7", "06-09T03:00 06-09T04:00"),
            state(DeclaredKind::Unhealthy, "gi-3", "06-09T01:00 06-09T02:00"),
            state(DeclaredKind::Unhealthy, "gi-7", "06-09T01:00 06-09T02:00"),
        ];
        let want = vec![("g1".to_owned(), g1), ("g2".to_owned(), vec![of_node])];
        assert_eq!(states_of(platform, "n1").await, want);
        derived(platform, "state").await;
    }

    async fn the_order_of_lines_does_not_show(platform: &TestPlatform) {
        let lines = [
            "n1 - - maintenance 06-09T05:30 06-09T07:00",
            "n1 g1 - unhealthy 06-09T01:10 06-09T02:20",
            "n1 g2 - unhealthy 06-09T06:00",
            "n1 g1 - maintenance 06-09T01:30 06-09T01:40",
            "n1 g2 - maintenance 06-09T06:00 06-09T06:00",
        ];
        let mut turned = lines;
        turned.reverse();
        let other = platform.another().await;
        for (platform, lines) in [(platform, lines), (&other, turned)] {
            half_a_day(platform).await;
            declare(platform, &lines.join("\n")).await;
            derived(platform, "state").await;
        }
        assert_eq!(platform.levels().await, other.levels().await);
    }

    async fn states_and_their_marks_commit_together_or_not_at_all(platform: &TestPlatform) {
        half_a_day(platform).await;
        let mut raw = platform.raw().await;
        raw.run(match raw {
            Raw::Sqlite(_) => {
                "CREATE TRIGGER no_marks BEFORE INSERT ON dirty_node BEGIN SELECT RAISE(ABORT, 'no marks'); END"
            }
            Raw::Postgres(_) => "ALTER TABLE dirty_node ADD CONSTRAINT no_marks CHECK (false)",
        })
        .await;
        let table = states_csv("n1 g1 - maintenance 06-09T01:00 06-09T02:00");
        let outcome = import_states(platform, &name("operator"), ("states.csv", table.as_bytes()), Strictness::TakeTheGood).await;
        outcome.expect_err("nothing can be marked");
        assert_eq!(platform.count("state_declared").await, 0);
    }

    async fn the_states_of_an_older_schema_are_kept(platform: &TestPlatform) {
        platform.inventory("n1 g1 A10 06-09T00:00 06-09T06:00\nn2 g1 A10 06-09T06:00\nn2 g2 A10 06-09T00:00").await;
        // As the schema's owner, whom row security binds too.
        let (mut raw, fleet, states) = match &platform.storage {
            Storage::Sqlite(_) => {
                let fleet = include_str!("../../../migrations/sqlite/0002_fleet.sql");
                (platform.raw().await, fleet, include_str!("../../../migrations/sqlite/0008_states.sql"))
            }
            Storage::Postgres(database) => {
                let owner = PgConnection::connect(&database.migrate_url).await.expect("the server answers");
                let fleet = include_str!("../../../migrations/postgres/0002_fleet.sql");
                (Raw::Postgres(owner), fleet, include_str!("../../../migrations/postgres/0008_states.sql"))
            }
        };
        let (_, old) = fleet.split_once("-- What a device is declared to be in").expect("it has the table");
        let scoped = match raw {
            Raw::Sqlite(_) => "",
            Raw::Postgres(_) => "SELECT set_config('fatia.platform', 'on', true);",
        };
        raw.run(&format!("BEGIN; DROP TABLE state_declared; --{old}; COMMIT")).await;
        let rows = "INSERT INTO declared_state (device_id, kind, from_us, to_us) \
                    SELECT device_id, 'unhealthy', 7, NULL FROM device WHERE uuid = 'g1' UNION ALL \
                    SELECT device_id, 'maintenance', 7, 8 FROM device WHERE uuid = 'g2'";
        raw.run(&format!("BEGIN; {scoped} {rows}; COMMIT")).await;
        raw.run(&format!("BEGIN; {states} COMMIT")).await;

        let sql = "SELECT s.name || ' ' || d.uuid || ' ' || t.kind || t.slice || ' ' || t.source, t.from_us, t.to_us \
                   FROM state_declared t JOIN scope s ON s.scope_id = t.scope_id \
                   JOIN device d ON d.device_id = t.device_id ORDER BY 1";
        let kept: Vec<(String, i64, Option<i64>)> = platform.raw().await.rows(sql).await;
        let want = [
            ("n1 g1 unhealthy operator", 7, None),
            ("n2 g1 unhealthy operator", 7, None),
            ("n2 g2 maintenance operator", 7, Some(8)),
        ];
        assert_eq!(kept, want.map(|(words, from, to)| (words.to_owned(), from, to)));
    }
}

/// On SQLite one writer decides after the other.
mod only_postgres {
    use super::*;

    /// Else an edge could move between the moment at which the import sees which hours there are and its commit.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn an_import_of_states_waits_for_the_tick() {
        let platform = TestPlatform::postgres().await;
        half_a_day(&platform).await;
        let mut held = platform.raw().await;
        held.run("BEGIN; SELECT installation_id FROM installation FOR SHARE").await;
        let importing = platform.platform.clone();
        let table = states_csv("n1 - - maintenance 06-09T01:00 06-09T02:00");
        let importing = tokio::spawn(async move {
            import_states(
                &importing,
                &name("operator"),
                ("states.csv", table.as_bytes()),
                Strictness::TakeTheGood,
            )
            .await
        });
        platform.waiting_for_locks(1).await;
        assert_eq!(held.number("SELECT COUNT(*) FROM state_declared").await, 0);
        held.run("COMMIT").await;
        importing.await.expect("it goes on").expect("and succeeds");
        assert_eq!(held.number("SELECT COUNT(*) FROM state_declared").await, 1);
    }
}
