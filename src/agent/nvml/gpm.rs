//! GPM: what SMs of a GPU or of a GPU instance did between two looks. From Hopper on.
//!
//! The only place of the agent with a float: NVML tells percents as one, which is rounded once, to parts of
//! 10⁹.

use std::collections::HashMap;
use std::sync::Arc;

use nvml_wrapper::enums::gpm::GpmMetricId;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::gpm::{GpmSample, gpm_metrics_get};
use nvml_wrapper::{Device, Nvml};

use super::fault::{Absent, Fault, Metric};
use super::raw::GpmHeld;
use crate::domain::ids::Name;
use crate::domain::units::Instant;

/// Two samples that are nearer make no average. Source: NVML API reference, GPM.
const APART_MICROS_MIN: i64 = 100_000;
const BILLION: i64 = 1_000_000_000;

/// What is measured: the whole board, or a GPU instance under its slice's id.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Part {
    Whole,
    Instance(Name, u32),
}

/// The samples of one board.
#[derive(Debug, Default)]
pub(super) struct Gpm {
    /// What each part was at its last sample, and when.
    last: HashMap<Part, (Instant, GpmHeld)>,
    /// Whether the board can; none: not asked yet.
    can: Option<bool>,
}

impl Gpm {
    /// How active each part was since its last sample, in parts of 10⁹; a part without an answer is not in
    /// it.
    pub(super) fn read(
        &mut self,
        nvml: &Arc<Nvml>,
        device: &Device<'_>,
        absent: &mut Absent,
        parts: &[Part],
        at: Instant,
    ) -> Result<HashMap<Part, i64>, Fault> {
        self.last.retain(|part, _| parts.contains(part));
        let mut active = HashMap::new();
        if parts.is_empty() || !self.can(device, absent)? {
            return Ok(active);
        }
        for part in parts {
            let since = self.last.get(part).map(|(since, _)| at.micros_since(*since));
            if since.is_some_and(|micros| (0..APART_MICROS_MIN).contains(&micros)) {
                continue;
            }
            let taken = match part {
                Part::Whole => device.gpm_sample(),
                Part::Instance(_, gi) => device.gpm_mig_sample(*gi),
            };
            let taken = match taken {
                Ok(taken) => GpmHeld::new(nvml, taken),
                Err(error) => {
                    self.last.remove(part);
                    let fault = Fault::of(&error);
                    if fault.ends_the_look() {
                        return Err(fault);
                    }
                    continue;
                }
            };
            if let Some((_, last)) = self.last.get(part) {
                active.extend(last.with(&taken, sm_activity).map(|activity| (part.clone(), activity)));
            }
            self.last.insert(part.clone(), (at, taken));
        }
        Ok(active)
    }

    fn can(&mut self, device: &Device<'_>, absent: &mut Absent) -> Result<bool, Fault> {
        if self.can.is_none() {
            self.can = absent.ask(Metric::Gpm, || device.gpm_support())?;
        }
        Ok(self.can.unwrap_or_default())
    }

    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }
}

/// How active SMs were between two samples, in parts of 10⁹; none: the board does not say.
fn sm_activity(nvml: &Nvml, earlier: &GpmSample<'_>, later: &GpmSample<'_>) -> Option<i64> {
    let told = gpm_metrics_get(nvml, earlier, later, &[GpmMetricId::SmUtil]).ok()?;
    let told: Result<_, NvmlError> = told.into_iter().next()?;
    billionths_of_percent(told.ok()?.value)
}

/// A percent of NVML in parts of 10⁹ of the whole, rounded once; none: no share of anything.
#[expect(clippy::float_arithmetic, reason = "NVML tells GPM metrics as floats: this is where they end")]
#[expect(clippy::cast_possible_truncation, reason = "it is between 0 and 10⁹")]
fn billionths_of_percent(percent: f64) -> Option<i64> {
    if !percent.is_finite() || percent < 0.0 {
        return None;
    }
    Some((percent.min(100.0) * 1e7).round() as i64)
}

/// Nanoseconds that parts of 10⁹ of a span are.
pub(super) fn of_billionths(billionths: i64, micros: i64) -> i64 {
    let nanos = i128::from(billionths).saturating_mul(micros.into()).div_euclid((BILLION / 1_000).into());
    i64::try_from(nanos).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percent_is_rounded_once_and_what_is_none_is_no_share() {
        let read = [0.0, 12.5, 33.333_333_333, 100.0, 130.0, -1.0, f64::NAN, f64::INFINITY]
            .map(billionths_of_percent);
        let full = Some(1_000_000_000);
        assert_eq!(read, [Some(0), Some(125_000_000), Some(333_333_333), full, full, None, None, None]);
        assert_eq!(of_billionths(125_000_000, 1_000_000), 125_000_000);
        assert_eq!(of_billionths(1_000_000_000, 7), 7_000);
    }
}
