//! Acceptance: a batch takes its number once, is kept as it was signed, and blocks nothing behind it.

use std::collections::BTreeMap;

use fatia::services::accept::accept;
use fatia::services::error::ServiceError;
use fatia::wire::ack::{Acknowledgement, Outcome};
use fatia::wire::body::{self, PACKED_BYTES_MAX};
use fatia::wire::signature::BatchSigner;
use tokio::task::JoinSet;

use crate::support::platform::{Sender, TestPlatform, on_both_databases, span};

const FLEET: &str = "
    n1 g1 A10 06-09T00:00 06-10T00:00
    n2 g2 A10 06-09T00:00 06-10T00:00";

/// An hour held by one pod, and vouched for.
fn hour(sender: &Sender, sequence: i64, hour: &str, device: &str) -> fatia::services::accept::SignedBatch {
    let next = hour.parse::<u8>().expect("an hour") + 1;
    let held = format!("06-09T{hour}:00 06-09T{next:02}:00");
    sender.batch(sequence, &format!("pod - {device} dedicated {held}"), &format!("{device} {held}"))
}

/// What acceptance may change, without the batches' bytes.
async fn state(platform: &TestPlatform) -> Vec<String> {
    let mut raw = platform.raw().await;
    let mut all = Vec::new();
    for (table, columns) in [
        ("usage_stream", "stream_id || ' ' || sender, mark"),
        ("usage_batch", "stream_id || ' ' || COALESCE(refused, '') || COALESCE(set_aside, ''), sequence"),
        ("dirty_node", "kind || ' ' || CAST(hour_us AS TEXT), version"),
        ("finding", "kind || ' ' || subject, since_us"),
        ("tenant", "name, tenant_id"),
    ] {
        let rows = raw.rows::<(String, i64)>(&format!("SELECT {columns} FROM {table} ORDER BY 1, 2")).await;
        all.extend(rows.into_iter().map(|(text, number)| format!("{table}: {text} {number}")));
    }
    all
}

async fn taken(
    platform: &TestPlatform,
    sender: &Sender,
    batch: fatia::services::accept::SignedBatch,
) -> Acknowledgement {
    platform.accept(sender, batch).await.unwrap_or_else(|error| panic!("the batch is refused: {error}"))
}

fn pointers(answer: &Acknowledgement) -> Vec<&str> {
    answer.refused.iter().map(|each| each.pointer.as_str()).collect()
}

on_both_databases! {
    async fn a_batch_that_comes_many_times_at_once_is_stored_once(platform: &TestPlatform) {
        platform.inventory(FLEET).await;
        let agent = Sender::agent("n1");
        let mut sending = JoinSet::new();
        for _ in 0..8 {
            let (platform, key, batch) =
                (platform.platform.clone(), agent.credential(), hour(&agent, 1, "10", "g1"));
            sending.spawn(async move { accept(&platform, &key, batch).await });
        }
        let mut outcomes: BTreeMap<&str, i32> = BTreeMap::new();
        while let Some(answer) = sending.join_next().await {
            let answer = answer.expect("no caller panics").expect("a good batch");
            assert_eq!(answer.mark, 1);
            *outcomes.entry(answer.outcome.word()).or_default() += 1;
        }
        assert_eq!(outcomes, BTreeMap::from([("accepted", 1), ("duplicate", 7)]));

        let before = state(platform).await;
        let answer = taken(platform, &agent, hour(&agent, 1, "10", "g1")).await;
        assert_eq!((answer.outcome, answer.mark, answer.accepted_rows), (Outcome::Duplicate, 1, 0));
        assert_eq!(state(platform).await, before);
    }

    async fn a_repeat_is_a_duplicate_however_old_it_is(platform: &TestPlatform) {
        platform.inventory(FLEET).await;
        let agent = Sender::agent("n1");
        for sequence in 1..=3 {
            taken(platform, &agent, hour(&agent, sequence, &format!("1{sequence}"), "g1")).await;
        }
        platform.raw().await.run("DELETE FROM usage_batch WHERE sequence = 1").await;
        let before = state(platform).await;
        for (sequence, outcome) in
            [(1, Outcome::DuplicateUnverified), (2, Outcome::Duplicate), (3, Outcome::Duplicate)]
        {
            let answer = taken(platform, &agent, hour(&agent, sequence, &format!("1{sequence}"), "g1")).await;
            assert_eq!((answer.outcome, answer.mark), (outcome, 3));
        }
        assert_eq!(state(platform).await, before);
    }

    async fn other_bytes_under_a_number_that_was_taken_are_refused(platform: &TestPlatform) {
        platform.inventory(FLEET).await;
        let agent = Sender::agent("n1");
        taken(platform, &agent, hour(&agent, 1, "10", "g1")).await;
        let before = state(platform).await;
        let error =
            platform.accept(&agent, hour(&agent, 1, "11", "g1")).await.expect_err("it says something else");
        assert!(matches!(error, ServiceError::OtherBytes { sequence: 1, .. }), "{error:?}");
        let after = state(platform).await;
        let (told, kept): (Vec<String>, Vec<String>) =
            after.into_iter().partition(|line| line.starts_with("finding: rollback_or_clone n1/agent-of-n1"));
        assert_eq!((told.len(), kept), (1, before), "the first is kept, and somebody is told");
        assert_eq!(platform.count("audit WHERE action = 'usage.refuse'").await, 1);
    }

    async fn a_number_that_is_ahead_is_told_the_mark(platform: &TestPlatform) {
        platform.inventory(FLEET).await;
        let agent = Sender::agent("n1");
        let answer = taken(platform, &agent, hour(&agent, 2, "10", "g1")).await;
        assert_eq!((answer.outcome, answer.mark), (Outcome::Ahead, 0));
        taken(platform, &agent, hour(&agent, 1, "10", "g1")).await;
        let before = state(platform).await;
        let answer = taken(platform, &agent, hour(&agent, 3, "12", "g1")).await;
        assert_eq!((answer.outcome, answer.mark), (Outcome::Ahead, 1));
        assert_eq!(state(platform).await, before);
        let answer = taken(platform, &agent, hour(&agent, 2, "11", "g1")).await;
        assert_eq!((answer.outcome, answer.mark), (Outcome::Accepted, 2));
    }

    async fn what_cannot_be_read_is_set_aside_and_blocks_nothing_behind_it(platform: &TestPlatform) {
        platform.inventory(FLEET).await;
        let agent = Sender::agent("n1");
        taken(platform, &agent, hour(&agent, 1, "01", "g1")).await;
        let when = span("06-09T02:00 06-09T03:00");
        let (_, message) =
            agent.message("pod - g1 dedicated 06-09T02:00 06-09T03:00", "g1 06-09T02:00 06-09T03:00");
        let text = String::from_utf8(message.clone()).expect("a message is text");
        let edited = |from: &str, to: &str| {
            assert!(text.contains(from), "{text}");
            body::pack(text.replace(from, to).as_bytes()).expect("a small message")
        };
        let bomb = zstd::bulk::compress(&vec![b' '; 9 << 20], 19).expect("spaces are packed");
        let unreadable = [
            (when, b"no frame at all".to_vec(), "not a zstd frame"),
            (when, body::pack(b"no message at all").expect("a small message"), "not usage_v1"),
            (when, bomb, "unpacks to more"),
            (when, edited("usage_v1", "usage_v9"), "`usage_v9`"),
            (when, edited("\"n1\"", "\"n2\""), "another node or pool"),
            (when, edited("agent-of-n1", "agent-of-n2"), "another source"),
            (
                span("06-08T00:00 06-09T03:00"),
                body::pack(&message).expect("a small message"),
                "more than 26 hours",
            ),
        ];
        for (sequence, (when, packed, reason)) in (2_i64..).zip(&unreadable) {
            let batch = agent.sign_body(sequence, *when, packed.clone());
            let answer = taken(platform, &agent, batch.clone()).await;
            assert_eq!(
                (answer.outcome, answer.mark, answer.accepted_rows),
                (Outcome::SetAside, sequence, 0),
                "{reason}"
            );
            assert!(answer.refused[0].reason.contains(reason), "{reason}: {answer:?}");
            let (kind, detail) = platform.findings().await.pop().expect("someone should know");
            assert_eq!(kind, "batch_set_aside");
            assert!(detail.contains(reason), "{detail}");
            assert_eq!(taken(platform, &agent, batch).await.outcome, Outcome::Duplicate, "{reason}");
        }
        let last = 2 + i64::try_from(unreadable.len()).expect("a few");
        let answer = taken(platform, &agent, hour(&agent, last, "04", "g1")).await;
        assert_eq!((answer.outcome, answer.mark), (Outcome::Accepted, last));

        // Its span is unknown; the hours around it are what they were said to be.
        platform.tick().await;
        platform.derive().await;
        let shown = platform.shown("node state").await;
        let used = "n1 used 2.000000 - unpriced 2.000000";
        assert_eq!(shown[..2], ["n1 unknown 22.000000 - unpriced 22.000000", used]);
        let levels = platform.levels().await;
        platform.rebuild().await;
        assert_eq!(platform.levels().await, levels);
        platform.assert_well().await;
    }

    /// DESIGN §4: a body with a valid signature and size takes its number whatever is inside.
    async fn a_streams_first_batch_takes_its_number_even_if_it_cannot_be_read(platform: &TestPlatform) {
        platform.inventory(FLEET).await;
        let agent = Sender::agent("n1");
        let batch = agent.sign(1, span("06-09T02:00 06-09T03:00"), b"no message at all");
        let answer = taken(platform, &agent, batch).await;
        assert_eq!((answer.outcome, answer.mark), (Outcome::SetAside, 1));
        let answer = taken(platform, &agent, hour(&agent, 2, "04", "g1")).await;
        assert_eq!((answer.outcome, answer.mark), (Outcome::Accepted, 2));
    }

    async fn what_is_not_believed_leaves_the_mark_where_it_is(platform: &TestPlatform) {
        platform.inventory(FLEET).await;
        let agent = Sender::agent("n1");
        taken(platform, &agent, hour(&agent, 1, "10", "g1")).await;
        let before = state(platform).await;

        let mut forged = Sender::agent("n1");
        forged.signer = BatchSigner::from_seed(&[66; 32]);
        let error = platform.accept(&agent, hour(&forged, 2, "11", "g1")).await.expect_err("another's key");
        assert!(matches!(error, ServiceError::Signature(_)), "{error:?}");

        let mut swapped = hour(&agent, 2, "11", "g1");
        swapped.body = hour(&agent, 2, "12", "g1").body;
        let error = platform.accept(&agent, swapped).await.expect_err("another's body");
        assert!(matches!(error, ServiceError::Signature(_)), "{error:?}");

        let large = agent.sign_body(2, span("06-09T11:00 06-09T12:00"), vec![7; PACKED_BYTES_MAX + 1]);
        let error = platform.accept(&agent, large).await.expect_err("it is too large");
        assert!(matches!(error, ServiceError::Body(_)), "{error:?}");

        let nowhere = Sender::agent("n9");
        let error = platform.accept(&nowhere, hour(&nowhere, 1, "11", "g1")).await.expect_err("no such node");
        assert!(matches!(error, ServiceError::UnknownScope { .. }), "{error:?}");

        let mut elsewhere = Sender::agent("n2");
        elsewhere.stream = agent.stream;
        let error =
            platform.accept(&elsewhere, hour(&elsewhere, 2, "11", "g2")).await.expect_err("another's stream");
        assert!(matches!(error, ServiceError::ForeignStream { .. }), "{error:?}");

        assert_eq!(state(platform).await, before);
        let answer = taken(platform, &agent, hour(&agent, 2, "11", "g1")).await;
        assert_eq!((answer.outcome, answer.mark), (Outcome::Accepted, 2));
    }

    async fn good_rows_survive_a_bad_one_and_a_rebuild_obeys_what_was_refused(platform: &TestPlatform) {
        platform.inventory(FLEET).await;
        let agent = Sender::agent("n1");
        let rows = "
            good  - g1 dedicated 06-09T10:00 06-09T11:00
            early - g3 dedicated 06-09T10:00 06-09T11:00
            good  - g1 dedicated 06-09T11:00 06-09T12:00
            other - g2 dedicated 06-09T10:00 06-09T11:00";
        let coverage = "g1 06-09T10:00 06-09T12:00\ng3 06-09T10:00 06-09T12:00";
        let (when, message) = agent.message(rows, coverage);
        let mut message: serde_json::Value = serde_json::from_slice(&message).expect("a message is JSON");
        message["rows"][2] = serde_json::json!([0, 0, "not", "numbers"]);
        let batch = agent.sign(1, when, message.to_string().as_bytes());
        let answer = taken(platform, &agent, batch).await;
        assert_eq!((answer.outcome, answer.accepted_rows), (Outcome::Accepted, 1));
        let mut refused = pointers(&answer);
        refused.sort_unstable();
        assert_eq!(refused, ["/coverage/1", "/rows/1", "/rows/2", "/rows/3"]);

        // The device that nobody knew comes to this node after all. What was refused stays refused.
        platform.inventory("n1 g3 A10 06-09T10:00 06-09T12:00").await;
        platform.tick().await;
        platform.rebuild().await;
        let of_n1: Vec<String> = platform
            .shown("node workload state")
            .await
            .into_iter()
            .filter(|line| line.starts_with("n1"))
            .collect();
        assert_eq!(
            of_n1,
            [
                "n1 good used 1.000000 - unpriced 1.000000",
                "n1 none idle 1.000000 - unpriced 1.000000",
                "n1 none unknown 24.000000 - unpriced 24.000000",
            ]
        );
        platform.assert_well().await;
    }

    async fn a_device_of_another_node_is_refused(platform: &TestPlatform) {
        platform.inventory(FLEET).await;
        let agent = Sender::agent("n1");
        let answer = taken(platform, &agent, hour(&agent, 1, "10", "g2")).await;
        assert_eq!((answer.outcome, answer.mark, answer.accepted_rows), (Outcome::Accepted, 1, 0));
        assert_eq!(pointers(&answer), ["/rows/0", "/coverage/0"]);
        platform.tick().await;
        platform.derive().await;
        assert_eq!(platform.shown("state").await, ["unknown 48.000000 - unpriced 48.000000"]);
    }

    async fn nobody_declares_the_platforms_name_and_agents_declare_no_tenant(platform: &TestPlatform) {
        platform.inventory(FLEET).await;
        let import = Sender::import(platform, "slurm", "n1");
        let rows = "
            w1 platform/p g1 dedicated 06-09T10:00 06-09T11:00
            w2 acme/p     g1 dedicated 06-09T11:00 06-09T12:00";
        let answer = taken(platform, &import, import.batch(1, rows, "")).await;
        assert_eq!((answer.accepted_rows, pointers(&answer)), (1, vec!["/rows/0"]));

        let agent = Sender::agent("n1");
        let answer = taken(platform, &agent, agent.batch(1, rows, "")).await;
        assert_eq!(answer.accepted_rows, 0);
        assert_eq!(pointers(&answer), ["/evidence/0", "/evidence/1", "/rows/0", "/rows/1"]);

        platform.tick().await;
        platform.rebuild().await;
        let shown = platform.shown("tenant project state").await;
        assert_eq!(shown[0], "acme p used 1.000000 - unpriced 1.000000");
        assert_eq!(shown[1..], ["platform none unknown 47.000000 - unpriced 47.000000"]);
        assert_eq!(platform.count("tenant").await, 2);
    }
}
