//! What an agent and the service say to each other beside batches: enrolment, inventory, skipped numbers.
//!
//! JSON, each in the body of one request that the agent signs (but the first, before it has a key that anybody knows).
//! Instants are microseconds since 1970 UTC. Answers may gain fields: an agent reads what it knows of.

use serde::{Deserialize, Serialize};

use super::ack::Refusal;

/// The header in which the service tells its time with each answer to an agent: microseconds since 1970 UTC.
pub const TIME_HEADER: &str = "fatia-time";
/// Where a service says that it is there, and what time it is.
pub const HEALTH_PATH: &str = "/healthz";
/// Where a node is enrolled.
pub const ENROL_PATH: &str = "/api/v1/agents/enrol";
/// Where batches go.
pub const BATCHES_PATH: &str = "/api/v1/usage/batches";
/// Where it is said which numbers will never come.
pub const SKIPS_PATH: &str = "/api/v1/usage/skips";
/// Where an agent says what its node has.
pub const INVENTORY_PATH: &str = "/api/v1/agents/self/inventory";
/// The media type of a batch: a zstd frame, as it was signed.
pub const BATCH_TYPE: &str = "application/octet-stream";
/// Most devices of one node.
pub const DEVICES_MAX: usize = 1_024;
/// Most numbers that one skip leaves out.
pub const SKIP_MAX: i64 = 100_000_000;

/// Asks to become a node's agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Enrol {
    /// The enrolment token, which serves once.
    pub token: String,
    /// The node's name.
    pub node: String,
    /// The agent's public key: 32 bytes in hexadecimal.
    pub public_key: String,
    /// The program's version.
    pub version: String,
}

/// Who the agent is from now on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Enrolled {
    /// The agent's id, which it signs with.
    pub agent: String,
    /// Its node.
    pub node: String,
    /// The installation, as requests name it.
    pub audience: String,
}

/// What a node has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inventory {
    /// Larger with each inventory of this agent, so that an old one is never taken for the newest.
    pub counter: i64,
    /// When it was taken.
    pub at: i64,
    /// The program's version.
    pub version: String,
    /// The driver's version, where it is known.
    pub driver: Option<String>,
    /// The devices.
    pub devices: Vec<InventoryDevice>,
}

/// A device of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InventoryDevice {
    /// Its UUID.
    pub uuid: String,
    /// Its model.
    pub model: String,
    /// Its memory in MiB.
    pub memory_mib: Option<i64>,
    /// Its index on the node, from 0; it may change with each start.
    pub index: Option<i64>,
    /// Its PCI address.
    pub pci: Option<String>,
    /// Its serial number.
    pub serial: Option<String>,
}

/// What became of an inventory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InventoryTaken {
    /// Its counter.
    pub counter: i64,
    /// Devices that came into service.
    pub opened: u64,
    /// Devices that came here from another node.
    pub moved: u64,
    /// Devices that were not taken, with reasons.
    pub refused: Vec<Refusal>,
}

/// Says that numbers of a stream will never come. The span of which they were is in the signature.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Skip {
    /// The first number.
    pub from: i64,
    /// The last number.
    pub to: i64,
    /// Why, for people.
    pub reason: String,
}

/// What of a problem an agent reads.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ProblemAnswer {
    /// The stable URI of the cause.
    #[serde(rename = "type")]
    pub kind: String,
    /// In words for people.
    pub detail: String,
}
