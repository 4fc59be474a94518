//! How boards are: critical errors, memory errors, throttling. What a board is lost for says which error
//! came before.

use nvml_wrapper::Device;
use nvml_wrapper::enum_wrappers::device::{EccCounter, MemoryError};
use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::structs::device::FieldId;

use super::fault::{Absent, Fault, Metric};
use crate::domain::ids::Name;
use crate::domain::units::{Instant, MICROS_PER_SECOND};

/// Between two looks at errors and throttling, in microseconds.
const LOOK_EVERY_MICROS: i64 = 10 * MICROS_PER_SECOND;
/// Most critical errors that are remembered of a board.
const XIDS_MAX: usize = 16;
/// How long after a critical error it is the reason for which a board is lost, in microseconds.
const REASON_MICROS: i64 = 600 * MICROS_PER_SECOND;
/// `NVML_FI_DEV_GET_GPU_RECOVERY_ACTION`, and `NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN` as drivers
/// before 580.82 number it. The wrapper translates what is asked for and not what is answered.
const FIELDS: [FieldId; 2] = [FieldId(230), FieldId(251)];

/// Critical errors that are the board's own and not an application's. Source: NVIDIA, XID Errors.
const OF_BOARDS: &[(u64, &str)] = &[
    (48, "a memory error that cannot be corrected"),
    (63, "a memory row was retired"),
    (64, "a memory row could not be retired"),
    (74, "NVLink failed"),
    (79, "the GPU has fallen off the bus"),
    (92, "too many memory errors"),
    (94, "a memory error that was contained"),
    (95, "a memory error that was not contained"),
    (119, "the GPU's system processor does not answer"),
    (120, "the GPU's system processor failed"),
];

/// How a board was when it was looked at last. What is none, the board does not tell.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Health {
    /// The last critical errors with their instants, the newest last.
    pub xids: Vec<(Instant, u64)>,
    /// Memory errors that could not be corrected since the driver was loaded.
    pub uncorrected: Option<u64>,
    /// Why clocks are lower than they could be: NVML's bits, as far as they have names.
    pub throttle: Option<u64>,
    /// What would make the board well: NVML's number, 0 for nothing.
    pub recovery: Option<u64>,
    /// How long clocks were lowered because of heat since the driver was loaded, in nanoseconds.
    pub hot_nanos: Option<u64>,
    looked: Option<Instant>,
}

impl Health {
    pub(super) fn note_xid(&mut self, at: Instant, xid: u64) {
        if self.xids.len() >= XIDS_MAX {
            self.xids.remove(0);
        }
        self.xids.push((at, xid));
    }

    /// Why a board is lost, in words.
    pub(super) fn reason(&self, at: Instant, otherwise: &str) -> Name {
        let recent = self.xids.iter().rev().filter(|(when, _)| at.micros_since(*when) <= REASON_MICROS);
        let mut known = recent.filter_map(|(_, xid)| OF_BOARDS.iter().find(|(of, _)| of == xid));
        let text =
            known.next().map_or_else(|| otherwise.to_owned(), |(xid, why)| format!("Xid {xid}: {why}"));
        Name::parse(&text).unwrap_or_else(|_| Name::fixed("lost"))
    }

    pub(super) fn look(
        &mut self,
        device: &Device<'_>,
        absent: &mut Absent,
        at: Instant,
    ) -> Result<(), Fault> {
        if self.looked.is_some_and(|last| (0..LOOK_EVERY_MICROS).contains(&at.micros_since(last))) {
            return Ok(());
        }
        self.looked = Some(at);
        let (kind, counter) = (MemoryError::Uncorrected, EccCounter::Volatile);
        self.uncorrected = absent.ask(Metric::Ecc, || device.total_ecc_errors(kind, counter))?;
        let throttle = absent.ask(Metric::Throttle, || device.current_throttle_reasons())?;
        self.throttle = throttle.map(|reasons| reasons.bits());
        let told = absent.ask(Metric::Fields, || device.field_values_for(&FIELDS))?;
        // Answers are known by their place.
        let mut values = told.unwrap_or_default().into_iter().map(|one| number(&one.ok()?.value.ok()?));
        (self.recovery, self.hot_nanos) = (values.next().flatten(), values.next().flatten());
        Ok(())
    }
}

/// Whether a reason is a critical error's.
pub(super) fn is_of_board(reason: &Name) -> bool {
    reason.as_str().starts_with("Xid ")
}

fn number(value: &SampleValue) -> Option<u64> {
    match value {
        SampleValue::U32(value) => Some((*value).into()),
        SampleValue::U64(value) => Some(*value),
        _ => None,
    }
}
