//! The answer to a batch.

use serde::{Deserialize, Serialize};

/// What the service says about a batch that it was sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Acknowledgement {
    /// The stream's id.
    pub stream: String,
    /// The number of the batch that is answered.
    pub sequence: i64,
    /// What became of it.
    pub outcome: Outcome,
    /// The stream's mark: every number up to it is durable. The next number taken is mark + 1.
    pub mark: i64,
    /// Rows that were taken.
    pub accepted_rows: u64,
    /// Rows and table entries that were not, with reasons.
    pub refused: Vec<Refusal>,
}

/// What became of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Stored; its number is the stream's mark now.
    Accepted,
    /// Stored, but nothing in it could be read; its span is unknown and its bytes are kept.
    SetAside,
    /// Was already stored with the same bytes; nothing changed.
    Duplicate,
    /// Was already taken, and its bytes are no longer kept to compare.
    DuplicateUnverified,
    /// Comes after a number that was never seen; nothing changed.
    Ahead,
}

impl Outcome {
    /// The word, as in messages.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::SetAside => "set_aside",
            Self::Duplicate => "duplicate",
            Self::DuplicateUnverified => "duplicate_unverified",
            Self::Ahead => "ahead",
        }
    }
}

/// Something in a batch that was not taken.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Refusal {
    /// Where: a JSON pointer into the message, such as `/rows/3`.
    pub pointer: String,
    /// Why, for people.
    pub reason: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_reads_as_it_was_released() {
        let answer = Acknowledgement {
            stream: "00000000-0000-0000-0000-000000000007".to_owned(),
            sequence: 3,
            outcome: Outcome::Accepted,
            mark: 3,
            accepted_rows: 41,
            refused: vec![Refusal {
                pointer: "/rows/3".to_owned(),
                reason: "lies outside the signed span".to_owned(),
            }],
        };
        let released = r#"{"stream":"00000000-0000-0000-0000-000000000007","sequence":3,"outcome":"accepted","mark":3,"accepted_rows":41,"refused":[{"pointer":"/rows/3","reason":"lies outside the signed span"}]}"#;
        assert_eq!(serde_json::to_string(&answer).unwrap(), released);
        assert_eq!(serde_json::from_str::<Acknowledgement>(released).unwrap(), answer);
        let unknown = released.replacen("\"mark\"", "\"extra\":1,\"mark\"", 1);
        assert!(serde_json::from_str::<Acknowledgement>(&unknown).is_err());
        for outcome in [
            Outcome::Accepted,
            Outcome::SetAside,
            Outcome::Duplicate,
            Outcome::DuplicateUnverified,
            Outcome::Ahead,
        ] {
            assert_eq!(serde_json::to_string(&outcome).unwrap(), format!("\"{}\"", outcome.word()));
        }
    }
}
