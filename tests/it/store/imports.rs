//! Imports over the store: amendments, and that order, repetition and split do not show.

use crate::support::platform::{Storage, TestPlatform, on_both_databases};

const DEVICES: &str = "
    n1 g1 A10 06-01T00:00 06-08T00:00
    n1 g2 A10 06-01T00:00 06-08T00:00";
/// Holds beside the one that is amended, and stays as it is.
const NEIGHBOUR: &str = "w2 beta/b n1 g2 mps:250000 06-01T06:00 06-06T07:30";

fn held(span: &str) -> String {
    format!("w1 acme/a n1 g1 dedicated {span}\n{NEIGHBOUR}")
}

/// The levels of a database that only saw one state. Always a file: levels are the same on both databases.
async fn levels_of(devices: &str, intervals: &str) -> String {
    let fresh = TestPlatform::sqlite().await;
    fresh.clock.set("06-12T00:00");
    fresh.import(devices, intervals).await;
    fresh.derive().await;
    fresh.levels().await
}

/// Imports a three-day holding and then what amends it; both are derived in between or not.
async fn amended(platform: &TestPlatform, amendment: &str, want: &str) {
    let want = levels_of(DEVICES, want).await;
    let other = platform.another().await;
    for (platform, derived_between) in [(platform, true), (&other, false)] {
        platform.clock.set("06-12T00:00");
        platform.import(DEVICES, &held("06-02T12:30 06-05T12:30")).await;
        if derived_between {
            platform.derive().await;
        }
        let outcome = platform.import(DEVICES, amendment).await;
        assert_eq!(outcome.number, Some(2));
        platform.derive().await;
        assert_eq!(platform.levels().await, want);
        platform.assert_well().await;

        // The old file again does not undo it.
        let again = platform.import(DEVICES, &held("06-02T12:30 06-05T12:30")).await;
        assert_eq!((again.stored, again.number), (0, None));
        platform.derive().await;
        assert_eq!(platform.levels().await, want);
        platform.rebuild().await;
        assert_eq!(platform.levels().await, want);
    }
}

on_both_databases! {
    async fn a_later_import_shortens_a_holding(platform: &TestPlatform) {
        let shorter = held("06-02T12:30 06-03T06:15");
        amended(platform, &shorter, &shorter).await;
    }

    async fn a_later_import_lengthens_a_holding(platform: &TestPlatform) {
        let longer = held("06-02T12:30 06-07T18:45");
        amended(platform, &longer, &longer).await;
    }

    async fn a_later_import_deletes_a_holding(platform: &TestPlatform) {
        amended(platform, &held("06-02T12:30 06-02T12:30"), NEIGHBOUR).await;
    }

    async fn a_holding_that_was_deleted_can_be_brought_back(platform: &TestPlatform) {
        platform.clock.set("06-12T00:00");
        for span in ["06-02T12:30 06-05T12:30", "06-02T12:30 06-02T12:30", "06-02T12:30 06-04T00:00"] {
            platform.import(DEVICES, &held(span)).await;
            platform.derive().await;
        }
        let want = levels_of(DEVICES, &held("06-02T12:30 06-04T00:00")).await;
        assert_eq!(platform.levels().await, want);
    }

    async fn an_old_file_brought_again_later_does_not_undo_an_amendment(platform: &TestPlatform) {
        // The device stays in service, so the old file vouches for more each time that it is brought.
        let devices = "n1 g1 A10 06-01T00:00\nn1 g2 A10 06-01T00:00";
        let (old, new) = (held("06-02T12:30 06-05T12:30"), held("06-02T12:30 06-03T06:15"));
        platform.clock.set("06-08T00:00");
        platform.import(devices, &old).await;
        platform.derive().await;
        platform.clock.set("06-09T00:00");
        platform.import(devices, &new).await;
        platform.derive().await;
        for time in ["06-10T00:00", "06-11T00:00", "06-12T00:00"] {
            platform.clock.set(time);
            let outcome = platform.import(devices, &old).await;
            assert!(outcome.stored > 0, "the coverage is new");
            platform.derive().await;
            platform.assert_well().await;
        }
        assert_eq!(platform.levels().await, levels_of(devices, &new).await);
    }

    async fn any_order_repetition_or_split_gives_the_same_node_hours(platform: &TestPlatform) {
        let mut seen = vec![all_in_order(&TestPlatform::sqlite().await, [0, 1, 2]).await];
        assert!(seen[0].lines().count() > 100, "{}", seen[0]);
        let orders: &[[usize; 3]] = match platform.storage {
            Storage::Sqlite(_) => &[[0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]],
            // The fold is the same code, so these show that the database keeps no order of its own.
            Storage::Postgres(_) => &[[1, 2, 0], [2, 1, 0]],
        };
        for order in orders {
            seen.push(all_in_order(&platform.another().await, *order).await);
        }
        seen.push(split_and_repeated(platform).await);
        seen.dedup();
        assert_eq!(seen.len(), 1, "{seen:#?}");
    }
}

/// Three sources that contradict each other.
const SOURCES: [(&str, &str); 3] = [
    (
        "slurm",
        "w1 acme/a n1 g1 dedicated   06-01T10:20 06-02T03:40
         w2 acme/a n1 g2 mps:250000  06-01T09:00 06-01T21:00
         w3 beta/b n2 g3 mig:1g.10gb 06-01T00:00 06-01T05:00",
    ),
    (
        "vcenter",
        "v1 beta/b  n1 g1 passthrough 06-01T18:00 06-02T12:00
         v2 gamma   n1 g2 dedicated   06-01T20:30 06-02T01:00",
    ),
    (
        "by-hand",
        "h1 acme/a n2 g3 time_slicing:500000 06-01T04:00 06-01T23:59
         h2 delta  n2 g3 time_slicing:500000 06-01T12:00 06-02T02:00",
    ),
];
const NODES: &str = "
    n1 g1 A10  06-01T00:00 06-03T00:00
    n1 g2 A10  06-01T00:00 06-02T12:30
    n2 g3 H100 06-01T00:00 06-03T00:00";

async fn bring(platform: &TestPlatform, (source, intervals): (&str, &str)) {
    let outcome = platform.import_from(source, None, NODES, intervals).await;
    assert_eq!(outcome.expect("a good file").bad, []);
}

async fn all_in_order(platform: &TestPlatform, order: [usize; 3]) -> String {
    for (place, source) in order.into_iter().enumerate() {
        bring(platform, SOURCES[source]).await;
        if place != 1 {
            platform.derive().await;
        }
    }
    platform.assert_well().await;
    platform.levels().await
}

async fn split_and_repeated(platform: &TestPlatform) -> String {
    for (source, intervals) in SOURCES {
        let mut lines: Vec<&str> = intervals.lines().collect();
        lines.reverse();
        for part in lines.chunks(1).chain([lines.as_slice(), lines.as_slice()]) {
            bring(platform, (source, &part.join("\n"))).await;
            platform.derive().await;
        }
    }
    platform.assert_well().await;
    platform.levels().await
}
