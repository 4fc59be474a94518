//! How workers work.

use serde::{Deserialize, Deserializer, de::Error};

/// `[worker]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WorkerSettings {
    /// How long a worker may be silent before another takes its work; 1 to 3600.
    #[serde(deserialize_with = "lease_seconds")]
    pub lease_seconds: u32,
}

impl Default for WorkerSettings {
    fn default() -> Self {
        Self { lease_seconds: 60 }
    }
}

fn lease_seconds<'de, D: Deserializer<'de>>(input: D) -> Result<u32, D::Error> {
    match u32::deserialize(input)? {
        seconds @ 1..=3_600 => Ok(seconds),
        other => Err(D::Error::custom(format!("lease_seconds {other} is not between 1 and 3600"))),
    }
}
