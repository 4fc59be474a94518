//! What of an NVML source outlives its process: which samples were counted, and which UUIDs lie at which PCI
//! address.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::utilization::GridState;
use crate::agent::source::DeviceInfo;
use crate::domain::ids::Name;

/// Which samples of a board were counted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BoardState {
    pub(super) processes: GridState,
    pub(super) vgpus: GridState,
}

/// What the driver knew of a card before it was given away.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CardState {
    uuid: String,
    model: String,
    memory_mib: u32,
    serial: Option<String>,
}

impl CardState {
    pub(super) fn of(info: &DeviceInfo) -> Self {
        Self {
            uuid: info.uuid.to_string(),
            model: info.model.to_string(),
            memory_mib: info.memory_mib,
            serial: info.serial.as_ref().map(Name::to_string),
        }
    }

    pub(super) fn info(&self, pci: &Name, index: u32) -> Option<DeviceInfo> {
        Some(DeviceInfo {
            uuid: Name::parse(&self.uuid).ok()?,
            model: Name::parse(&self.model).ok()?,
            memory_mib: self.memory_mib,
            index,
            pci: Some(pci.clone()),
            serial: self.serial.as_deref().and_then(|text| Name::parse(text).ok()),
        })
    }
}

/// All of it.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct State {
    /// By UUID.
    pub(super) boards: BTreeMap<String, BoardState>,
    /// By PCI address.
    pub(super) cards: BTreeMap<String, CardState>,
}
