//! Pools over the store: who is a member follows from what is stored, whichever job ran first.

use std::sync::Arc;

use fatia::domain::ids::{Name, ScopeKind, ScopeName};
use fatia::domain::period::Span;
use fatia::domain::usage::{Source, SourceRank};
use fatia::services::error::ServiceError;
use fatia::services::imports::{ImportOutcome, ImportRequest, Tables, import_intervals};
use fatia::services::states::import_states;
use fatia::services::table::Strictness;
use fatia::store::marks::{MarkKind, mark_hours};
use fatia::store::{StoreError, fleet, unit};

use crate::support::platform::{Sender, TestPlatform, at, name, on_both_databases, span, write};

/// Two nodes with a pool over both, and one device beside it.
const INVENTORY: &str = "
    n1 g1 A10 big
    n1 g2 A10 big
    n2 g3 A10 big
    n2 g4 L4 -";
/// From 02:00 to 05:30 two of three are held, from 04:00 to 06:00 four; then nobody holds any.
const JOBS: &str = "
    j1 acme big 2 02:00 05:30
    j2 beta big 2 04:00 06:00";

/// Lines `node device model pool`, in service for twelve hours of the ninth of June; the pool `-` is none, `.` leaves
/// the column out of the table.
fn inventory_table(lines: &str) -> String {
    let with_pool = !lines.contains(" .");
    let mut table = "node,gpu_uuid,gpu_model,in_service_from,in_service_to".to_owned();
    table.push_str(if with_pool { ",pool\n" } else { "\n" });
    for line in lines.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (from, to) = (at("06-09T00:00"), at("06-09T12:00"));
        table.push_str(&format!("{},{},{},{from},{to}", words[0], words[1], words[2]));
        if with_pool {
            table.push_str(&format!(",{}", if words[3] == "-" { "" } else { words[3] }));
        }
        table.push('\n');
    }
    table
}

/// Lines `job tenant pool gpus from to`, or `job tenant node/device - from to`: on the ninth of June.
fn intervals_table(lines: &str) -> String {
    let mut table = "workload,tenant,node,gpu_uuid,pool,gpus,mode,start,end\n".to_owned();
    for line in lines.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let place = match words[2].split_once('/') {
            Some((node, device)) => format!("{node},{device},,"),
            None => format!(",,{},{}", words[2], words[3]),
        };
        let time = |word: &str| at(&format!("06-09T{word}"));
        let (from, to) = (time(words[4]), time(words[5]));
        table.push_str(&format!("{},{},{place},dedicated,{from},{to}\n", words[0], words[1]));
    }
    table
}

async fn import_text(
    platform: &TestPlatform,
    source: &str,
    covers: Option<Span>,
    inventory: &str,
    intervals: &str,
) -> Result<ImportOutcome, ServiceError> {
    let source = Source { rank: SourceRank::Import, sender: name(source) };
    let tables = Tables {
        inventory: ("inventory.csv".to_owned(), inventory.as_bytes()),
        slices: None::<(String, &[u8])>,
        intervals: ("intervals.csv".to_owned(), intervals.as_bytes()),
    };
    import_intervals(platform, &ImportRequest { source, covers }, tables, Arc::new(|_| ())).await
}

async fn import(platform: &TestPlatform, inventory: &str, jobs: &str) -> ImportOutcome {
    let (inventory, jobs) = (inventory_table(inventory), intervals_table(jobs));
    let outcome = import_text(platform, "slurm", None, &inventory, &jobs).await;
    let outcome = outcome.unwrap_or_else(|error| panic!("the import fails: {error}"));
    assert_eq!(outcome.bad, [], "every line is good");
    outcome
}

/// Brings lines of devices in from another source, which vouches for one span.
async fn see(platform: &TestPlatform, covers: &str, lines: &str) {
    let table = intervals_table(lines).replace("pool,gpus,", "").replace(",,,dedicated", ",dedicated");
    let outcome = import_text(platform, "agent", Some(span(covers)), &inventory_table(""), &table).await;
    assert_eq!(outcome.expect("a good file").bad, []);
    platform.derive().await;
    platform.assert_well().await;
}

async fn filled(platform: &TestPlatform) {
    import(platform, INVENTORY, JOBS).await;
    platform.derive().await;
    platform.assert_well().await;
}

/// Deriving everything again makes no other byte.
async fn assert_rebuilt(platform: &TestPlatform) {
    let levels = platform.levels().await;
    platform.rebuild().await;
    assert_eq!(platform.levels().await, levels);
    platform.assert_well().await;
}

const SHOWN: [&str; 4] = [
    "big acme used 6.250000 -",
    "big beta used 3.250000 -",
    "big platform idle 26.500000 -",
    "n2 platform idle 12.000000 -",
];

async fn shown(platform: &TestPlatform) -> Vec<String> {
    let lines = platform.shown("node tenant state").await;
    lines.into_iter().map(|line| line.split(" unpriced").next().unwrap_or_default().to_owned()).collect()
}

on_both_databases! {
    async fn holders_of_a_pool_have_devices_and_the_rest_is_idle(platform: &TestPlatform) {
        filled(platform).await;
        // 02:00 to 04:00 two of acme, 04:00 to 05:30 three are shared by four, to 06:00 two of beta.
        assert_eq!(shown(platform).await, SHOWN);
        let report = platform.costs("06", "node").await.expect("it reconciles");
        assert_eq!(report.reconciliation.in_service_gpu_hours.to_string(), "48.000000");
        assert_rebuilt(platform).await;

        // On the other database it is the same, to the byte.
        let file = TestPlatform::sqlite().await;
        filled(&file).await;
        assert_eq!(platform.levels().await, file.levels().await);
        let json = |report: fatia::domain::report::CostReport| format!("{report:?}");
        let (here, there) = (platform.costs("06", "node workload").await, file.costs("06", "node workload").await);
        assert_eq!(json(here.expect("a report")), json(there.expect("a report")));
    }

    async fn a_pool_that_is_imported_again_is_nothing_new(platform: &TestPlatform) {
        filled(platform).await;
        let levels = platform.levels().await;
        let again = import(platform, INVENTORY, JOBS).await;
        assert_eq!((again.stored, again.number, again.inventory.repooled), (0, None, 0));
        platform.derive().await;
        assert_eq!(platform.levels().await, levels);
        // A table without the column leaves the pools as they are.
        let again = import(platform, "n1 g1 A10 .\nn1 g2 A10 .", JOBS).await;
        assert_eq!((again.stored, again.number, again.inventory.repooled), (0, None, 0));
    }

    async fn a_device_that_a_source_sees_is_its_nodes_own_and_may_go_back(platform: &TestPlatform) {
        filled(platform).await;
        see(platform, "06-09T04:00 06-09T05:00", "w1 gamma n1/g1 - 04:00 08:00").await;
        // Seen from 04:00 to 08:00; of the others' hours then two are shared by four, and two are two's.
        assert_eq!(shown(platform).await, [
            "big acme used 5.500000 -",
            "big beta used 2.500000 -",
            "big platform idle 24.000000 -",
            "n1 gamma used 4.000000 -",
            "n2 platform idle 12.000000 -",
        ]);
        assert_rebuilt(platform).await;

        // The amendment leaves what is vouched for, and takes the other hours back.
        see(platform, "06-09T04:00 06-09T05:00", "w1 gamma n1/g1 - 04:00 04:30").await;
        assert_eq!(shown(platform).await, [
            "big acme used 5.750000 -",
            "big beta used 2.750000 -",
            "big platform idle 26.500000 -",
            "n1 gamma used 0.500000 -",
            "n1 platform idle 0.500000 -",
            "n2 platform idle 12.000000 -",
        ]);
        assert_rebuilt(platform).await;
    }

    async fn it_does_not_show_which_job_ran_first(platform: &TestPlatform) {
        filled(platform).await;
        let want = platform.levels().await;
        for kind in [ScopeKind::Pool, ScopeKind::Node] {
            // All levels are gone; the days of one kind are derived before those of the other.
            let mut raw = platform.raw().await;
            for table in ["node_hour", "node_day", "tenant_day"] {
                raw.run(&format!("DELETE FROM {table}")).await;
            }
            for kind in [kind, if kind == ScopeKind::Pool { ScopeKind::Node } else { ScopeKind::Pool }] {
                mark_all(platform, kind).await;
                platform.derive().await;
            }
            assert_eq!(platform.levels().await, want);
            platform.assert_well().await;
        }
    }

    async fn a_device_comes_into_a_pool_and_out_of_it(platform: &TestPlatform) {
        let without = INVENTORY.replace("big", "-");
        import(platform, &without, "").await;
        platform.derive().await;
        platform.assert_well().await;
        let outcome = import(platform, INVENTORY, JOBS).await;
        assert_eq!(outcome.inventory.repooled, 3);
        platform.derive().await;
        // That an import had vouched for all it did not list says nothing of a device that it never named.
        assert_eq!(shown(platform).await, [
            "big acme used 6.250000 -",
            "big beta used 3.250000 -",
            "big platform idle 26.500000 -",
            "n2 platform idle 12.000000 -",
        ]);
        assert_rebuilt(platform).await;

        let other = TestPlatform::another(platform).await;
        filled(&other).await;
        let moved = INVENTORY.replace("n2 g3 A10 big", "n2 g3 A10 small");
        assert_eq!(import(&other, &moved, JOBS).await.inventory.repooled, 1);
        other.derive().await;
        other.assert_well().await;
        assert_eq!(shown(&other).await, [
            "big acme used 5.500000 -",
            "big beta used 2.500000 -",
            "big platform idle 16.000000 -",
            "n2 platform idle 12.000000 -",
            "small platform idle 12.000000 -",
        ]);
        assert_rebuilt(&other).await;
        let out = INVENTORY.replace("n2 g3 A10 big", "n2 g3 A10 -");
        assert_eq!(import(&other, &out, JOBS).await.inventory.repooled, 1);
        other.derive().await;
        other.assert_well().await;
        assert_rebuilt(&other).await;
        import(&other, INVENTORY, JOBS).await;
        other.derive().await;
        other.assert_well().await;
        assert_eq!(shown(&other).await, shown(platform).await);
    }

    async fn an_hour_that_becomes_another_pools_is_derived_there(platform: &TestPlatform) {
        // One device in two pools within an hour: the hour is the first one's, all of it.
        let table = |end: &str| {
            let (head, from) = ("node,gpu_uuid,gpu_model,in_service_from,in_service_to,pool", at("06-09T00:00"));
            let (first, second, last) = (at(end), at("06-09T01:30"), at("06-09T12:00"));
            format!("{head}\nn1,g1,A10,{from},{first},big\nn1,g1,A10,{second},{last},small\n")
        };
        let jobs = intervals_table("j1 acme big 1 00:00 00:30");
        import_text(platform, "slurm", None, &table("06-09T01:10"), &jobs).await.expect("a good file");
        platform.derive().await;
        platform.assert_well().await;
        // The first interval now ends before the hour, and nothing else of the node changes.
        let outcome = import_text(platform, "slurm", None, &table("06-09T00:50"), &jobs).await;
        assert_eq!(outcome.expect("a good file").inventory.ended, 1);
        platform.derive().await;
        assert_eq!(shown(platform).await, [
            "big acme used 0.500000 -",
            "big platform idle 0.333333 -",
            "small platform idle 10.500000 -",
        ]);
        assert_rebuilt(platform).await;
    }

    async fn a_line_with_more_than_the_pool_ever_had_is_refused(platform: &TestPlatform) {
        let jobs = intervals_table("j1 acme big 4 02:00 03:00");
        let outcome = import_text(platform, "slurm", None, &inventory_table(INVENTORY), &jobs).await;
        let bad = outcome.expect("a good file").bad;
        assert!(bad[0].reason.starts_with("gpus 4: pool big never had more than 3 of them in "), "{bad:?}");
    }

    async fn more_than_there_are_is_found(platform: &TestPlatform) {
        filled(platform).await;
        let found = platform.findings().await;
        assert!(found.iter().any(|(kind, _)| kind == "pool_overheld"), "{found:?}");
    }

    async fn a_state_of_a_member_marks_its_pool(platform: &TestPlatform) {
        filled(platform).await;
        let table = format!(
            "node,gpu_uuid,kind,from,to\nn1,g1,maintenance,{},{}\nn2,,maintenance,{},{}\n",
            at("06-09T00:00"),
            at("06-09T03:00"),
            at("06-09T08:00"),
            at("06-09T09:00"),
        );
        let source = Name::fixed("operator");
        let outcome = import_states(platform, &source, ("states.csv", table.as_bytes()), Strictness::TakeTheGood).await;
        assert_eq!(outcome.expect("a good table").declared, 2);
        platform.derive().await;
        assert_eq!(shown(platform).await, [
            "big acme used 6.250000 -",
            "big beta used 3.250000 -",
            "big platform idle 22.500000 -",
            "big platform maintenance 4.000000 -",
            "n2 platform idle 11.000000 -",
            "n2 platform maintenance 1.000000 -",
        ]);
        assert_rebuilt(platform).await;
    }

    async fn a_member_that_ends_leaves_its_pool(platform: &TestPlatform) {
        filled(platform).await;
        let early = inventory_table("n1 g2 A10 big").replace(&at("06-09T12:00").to_string(), &at("06-09T03:30").to_string());
        let outcome = import_text(platform, "slurm", None, &early, &intervals_table(JOBS)).await.expect("a good file");
        assert_eq!(outcome.inventory.ended, 1);
        platform.derive().await;
        platform.assert_well().await;
        let report = platform.costs("06", "node").await.expect("it reconciles");
        assert_eq!(report.reconciliation.in_service_gpu_hours.to_string(), "39.500000");
        assert_rebuilt(platform).await;
    }

    async fn a_device_hour_is_in_one_row_whatever_pools_meet_in_it(platform: &TestPlatform) {
        // g1 changes its pool within an hour and microseconds off its millionths; g2 changes its node within one, and
        // stays in its pool.
        let edge = |seconds: &str| at(&format!("06-09T{seconds}"));
        let (from, to) = (edge("00:00"), edge("12:00"));
        let (one, two) = (edge("03:20:01"), edge("05:40:07"));
        let table = format!(
            "node,gpu_uuid,gpu_model,in_service_from,in_service_to,pool\n\
             n1,g1,A10,{from},{one},big\nn1,g1,A10,{one},{to},small\n\
             n1,g2,A10,{from},{two},big\nn2,g2,A10,{two},{to},big\n\
             n2,g3,A10,{from},{one},\nn2,g3,A10,{one},{to},small\n"
        );
        let jobs = "j1 acme big 2 01:00 05:00\nj2 beta small 1 03:00 07:00";
        let outcome = import_text(platform, "slurm", None, &table, &intervals_table(jobs)).await;
        assert_eq!(outcome.expect("a good file").bad, []);
        platform.derive().await;
        platform.assert_well().await;
        let report = platform.costs("06", "node").await.expect("it reconciles");
        // g2's two pieces of one hour lose less than a millionth each: they are two device-hours.
        assert_eq!(report.reconciliation.in_service_gpu_hours.to_string(), "35.999999");
        assert_rebuilt(platform).await;
    }

    async fn of_a_pool_only_whole_devices_are_accepted(platform: &TestPlatform) {
        import(platform, INVENTORY, "").await;
        let mut sender = Sender::import(platform, "other", "big");
        sender.scope = ScopeName { kind: ScopeKind::Pool, name: name("big") };
        let rows = "w1 acme big dedicated 06-09T01:00 06-09T02:00\nw2 acme g1 dedicated 06-09T01:00 06-09T02:00";
        let answer = platform.accept(&sender, sender.batch(1, rows, "g1 06-09T01:00 06-09T02:00")).await;
        let refused = answer.expect("it takes its number").refused;
        let refused: Vec<String> =
            refused.into_iter().map(|each| format!("{}: {}", each.pointer, each.reason)).collect();
        assert_eq!(refused, [
            "/rows/0: a pool's devices are held whole, so many of them",
            "/rows/1: a pool's devices are held whole, so many of them",
            "/coverage/0: device g1 never was in service on big",
        ]);
    }

    async fn the_open_hour_of_a_pool_goes_on(platform: &TestPlatform) {
        let from = at("06-10T10:00");
        let table = format!("node,gpu_uuid,gpu_model,in_service_from,pool\nn1,g1,A10,{from},big\nn2,g2,A10,{from},big\n");
        let jobs = "workload,tenant,node,gpu_uuid,pool,gpus,mode,start,end\n";
        let jobs = format!("{jobs}w,acme,,,big,,dedicated,{from},\n");
        for (now, hours) in [("06-10T12:00", "4.000000"), ("06-10T12:30", "5.000000")] {
            platform.clock.set(now);
            import_text(platform, "slurm", None, &table, &jobs).await.expect("a good file");
            platform.derive().await;
            platform.assert_well().await;
            let report = platform.costs("06", "node").await.expect("it reconciles");
            assert_eq!(report.reconciliation.in_service_gpu_hours.to_string(), hours);
        }
        platform.clock.set("06-10T13:00");
        platform.tick().await;
        platform.derive().await;
        platform.assert_well().await;
        assert_eq!(shown(platform).await, [
            "big acme used 2.500000 -",
            "big platform idle 2.500000 -",
            "big platform unknown 0.666666 -",
        ]);
        assert_rebuilt(platform).await;
    }

    async fn a_pool_and_a_node_have_names_of_their_own(platform: &TestPlatform) {
        import(platform, INVENTORY, "").await;
        for (table, reason) in [
            ("n3 g5 A10 n1", "line 2: pool n1 has the name of a node"),
            ("big g5 A10 -", "line 2: node big has the name of a pool"),
        ] {
            let table = inventory_table(table);
            let refused = import_text(platform, "slurm", None, &table, &intervals_table("")).await;
            let refused = refused.expect_err("a name that is taken").to_string();
            assert!(refused.contains(reason), "{refused}");
        }
    }

    async fn whatever_happens_sums_are_exact_and_a_rebuild_changes_nothing(platform: &TestPlatform) {
        // A few walks over what can happen to a pool, derived now and then.
        for seed in 1..=4_u64 {
            let fresh = platform.another().await;
            let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let mut next = |count: u64| {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                usize::try_from((random >> 33) % count).expect("a small number")
            };
            filled(&fresh).await;
            for _ in 0..6 {
                let pools: Vec<&str> = (0..3).map(|_| ["big", "big", "small", "-"][next(4)]).collect();
                let inventory = format!(
                    "n1 g1 A10 {}\nn1 g2 A10 {}\nn2 g3 A10 {}\nn2 g4 L4 -",
                    pools[0], pools[1], pools[2]
                );
                let (start, end) = (next(10), next(4) + 1);
                let held = format!("0{start}:15 {:02}:45", (start + end).min(11));
                let device = ["n1/g1", "n1/g2", "n2/g3"][next(3)];
                let lines = match next(4) {
                    0 => format!("{JOBS}\nj3 gamma big {} {held}", next(4) + 1),
                    1 => format!("{JOBS}\nj4 delta {device} - {held}"),
                    2 => "j1 acme big 1 02:00 03:00\nj2 beta big 3 04:00 04:00".to_owned(),
                    _ => JOBS.to_owned(),
                };
                let covers = (next(2) == 0).then(|| span("06-09T03:00 06-09T05:00"));
                let (inventory, lines) = (inventory_table(&inventory), intervals_table(&lines));
                let source = ["slurm", "agent"][next(2)];
                import_text(&fresh, source, covers, &inventory, &lines).await.expect("a good file");
                if next(2) == 0 {
                    fresh.derive().await;
                    fresh.assert_well().await;
                }
            }
            fresh.derive().await;
            fresh.assert_well().await;
            assert_rebuilt(&fresh).await;
        }
    }

    async fn a_line_of_a_pool_is_refused_with_its_reason(platform: &TestPlatform) {
        let inventory = inventory_table(&format!("{INVENTORY}\nn3 g5 L4 big"));
        let (from, to) = (at("06-09T01:00"), at("06-09T02:00"));
        let lines = [
            "w,acme,n1,,big,1,dedicated",
            "w,acme,,g1,big,1,dedicated",
            "w,acme,,,other,1,dedicated",
            "w,acme,,,big,0,dedicated",
            "w,acme,,,big,1.5,dedicated",
            "w,acme,,,big,1,mig",
            "w,acme,n2,g4,,2,dedicated",
            "w,acme,,,,1,dedicated",
        ];
        let mut table = "workload,tenant,node,gpu_uuid,pool,gpus,mode,start,end\n".to_owned();
        lines.iter().for_each(|line| table.push_str(&format!("{line},{from},{to}\n")));
        let outcome = import_text(platform, "slurm", None, &inventory, &table).await.expect("a file");
        let reasons: Vec<&str> = outcome.bad.iter().map(|bad| bad.reason.as_str()).collect();
        assert_eq!(reasons, [
            "pool big has `A10` by line 2 (g1), not `L4`",
            "node is given, but the line is of a pool, whose devices have no names there",
            "gpu_uuid is given, but the line is of a pool, whose devices have no names there",
            "pool other is not in the inventory",
            "gpus 0 is not between 1 and 1000000",
            "gpus `1.5` is not a whole number",
            "mode mig: devices of a pool are held whole, passthrough or dedicated",
            "gpus is given, but only a line of a pool has a number",
            "gpus is given, but only a line of a pool has a number",
        ]);
        // Also against what is known.
        let other = inventory_table("n3 g5 L4 big");
        let refused = import_text(platform, "slurm", None, &other, &table).await.expect_err("another model");
        let refused = format!("{refused}");
        assert!(refused.contains("line 2: pool big has `A10` (device g1), not `L4`"), "{refused}");
    }
}

/// Marks every in-service hour of the scopes of a kind.
async fn mark_all(platform: &TestPlatform, kind: ScopeKind) {
    let zone = platform.zone();
    write(platform, move |scope, tx| {
        unit(async move {
            for each in fleet::scopes(scope, tx).await? {
                let ScopeName { kind: other, .. } = &each.name;
                if *other != kind {
                    continue;
                }
                let hours = fatia::services::accept::hours_meeting(zone, [span("06-09T00:00 06-09T12:00")]);
                mark_hours(scope, tx, &each, MarkKind::Fold, &hours).await?;
            }
            Ok::<_, StoreError>(())
        })
    })
    .await
    .expect("hours can be marked");
}
