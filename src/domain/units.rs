//! Instants, durations and quantities: integers with a unit, never floats.

use std::fmt;

use chrono::{DateTime, SecondsFormat, Utc};

/// Microseconds in one second.
pub const MICROS_PER_SECOND: i64 = 1_000_000;
/// Microseconds in one full billing hour.
pub const MICROS_PER_HOUR: i64 = 3_600 * MICROS_PER_SECOND;
/// Nanoseconds in one microsecond.
pub const NANOS_PER_MICRO: i64 = 1_000;
/// Nanoseconds that make one micro-GPU-hour: 3,600 s ÷ 10⁶.
///
/// Source: DESIGN §2, "a partial one is floor(in-service ns ÷ 3.6·10⁶)".
pub const NANOS_PER_MICRO_HOUR: i64 = 3_600_000;

/// A value does not fit its integer type, or a computation left its range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{what} is out of range")]
pub struct OutOfRange {
    /// What was being computed.
    pub what: &'static str,
}

impl OutOfRange {
    /// An error that names what was being computed.
    #[must_use]
    pub const fn of(what: &'static str) -> Self {
        Self { what }
    }
}

/// A point in time: microseconds since 1970-01-01T00:00:00Z.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(i64);

/// A text is not an RFC 3339 instant with at most microseconds.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not an RFC 3339 instant such as 2026-06-01T00:00:00Z")]
pub struct NotAnInstant {
    /// The text as given.
    pub text: String,
}

impl Instant {
    /// The earliest instant that is ever accepted: 1970-01-01T00:00:00Z.
    pub const MIN: Self = Self(0);
    /// The first instant that is never accepted: 2200-01-01T00:00:00Z. Bounds every sum of durations.
    pub const MAX: Self = Self(7_258_118_400_000_000);

    /// An instant from microseconds since 1970 UTC.
    #[must_use]
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// Microseconds since 1970 UTC.
    #[must_use]
    pub const fn micros(self) -> i64 {
        self.0
    }

    /// Reads RFC 3339 with any offset. Digits below the microsecond are cut.
    ///
    /// # Errors
    /// [`NotAnInstant`] when the text is something else, or lies outside 1970 to 2200.
    pub fn parse(text: &str) -> Result<Self, NotAnInstant> {
        let refused = || NotAnInstant { text: text.to_owned() };
        let parsed = DateTime::parse_from_rfc3339(text).map_err(|_| refused())?;
        let instant = Self(parsed.timestamp_micros());
        if (Self::MIN..Self::MAX).contains(&instant) { Ok(instant) } else { Err(refused()) }
    }

    /// This instant moved by `micros`, kept inside [`Instant::MIN`] and [`Instant::MAX`].
    #[must_use]
    pub fn plus_micros(self, micros: i64) -> Self {
        Self(self.0.saturating_add(micros).clamp(Self::MIN.0, Self::MAX.0))
    }

    /// Microseconds from `earlier` to this instant; negative when `earlier` is later.
    #[must_use]
    pub const fn micros_since(self, earlier: Self) -> i64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Display for Instant {
    /// RFC 3339 in UTC, with as many digits as the value has.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match DateTime::<Utc>::from_timestamp_micros(self.0) {
            Some(time) => f.write_str(&time.to_rfc3339_opts(SecondsFormat::AutoSi, true)),
            None => write!(f, "{}us", self.0),
        }
    }
}

/// A quantity in millionths of a unit; for GPU-hours these are micro-GPU-hours (µh).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Quantity(i64);

impl Quantity {
    /// Nothing.
    pub const ZERO: Self = Self(0);
    /// One full device-hour.
    pub const DEVICE_HOUR: Self = Self(1_000_000);

    /// A quantity from millionths of the unit.
    #[must_use]
    pub const fn from_micro(micro: i64) -> Self {
        Self(micro)
    }

    /// Millionths of the unit.
    #[must_use]
    pub const fn micro(self) -> i64 {
        self.0
    }

    /// The whole micro-GPU-hours in `nanos` of one device; what is left below one is cut.
    #[must_use]
    pub const fn of_device_nanos(nanos: i64) -> Self {
        Self(nanos.div_euclid(NANOS_PER_MICRO_HOUR))
    }

    /// The sum.
    ///
    /// # Errors
    /// [`OutOfRange`] past 9.2·10¹² units.
    pub fn plus(self, other: Self) -> Result<Self, OutOfRange> {
        self.0.checked_add(other.0).map(Self).ok_or(OutOfRange::of("a sum of quantities"))
    }

    /// The difference; may be negative.
    ///
    /// # Errors
    /// [`OutOfRange`] past 9.2·10¹² units.
    pub fn minus(self, other: Self) -> Result<Self, OutOfRange> {
        self.0.checked_sub(other.0).map(Self).ok_or(OutOfRange::of("a difference of quantities"))
    }

    /// The sum of many.
    ///
    /// # Errors
    /// [`OutOfRange`] past 9.2·10¹² units.
    pub fn sum(all: impl IntoIterator<Item = Self>) -> Result<Self, OutOfRange> {
        all.into_iter().try_fold(Self::ZERO, Self::plus)
    }
}

impl fmt::Display for Quantity {
    /// Units with exactly six decimals: `1.500000`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.0 < 0 { "-" } else { "" };
        let magnitude = self.0.unsigned_abs();
        let (whole, rest) = (magnitude.div_euclid(1_000_000), magnitude.rem_euclid(1_000_000));
        f.pad(&format!("{sign}{whole}.{rest:06}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instant_reads_what_it_writes() {
        for text in ["2026-06-01T00:00:00Z", "2026-06-01T00:00:00.250Z", "1970-01-01T00:00:00.000001Z"] {
            assert_eq!(Instant::parse(text).unwrap().to_string(), text);
        }
        let shifted = Instant::parse("2026-06-01T02:00:00+02:00").unwrap();
        assert_eq!(shifted.to_string(), "2026-06-01T00:00:00Z");
    }

    #[test]
    fn an_instant_refuses_what_has_no_zone_or_lies_far_away() {
        for text in ["2026-06-01", "2026-06-01T00:00:00", "1969-12-31T23:59:59Z", "2200-01-01T00:00:00Z", ""]
        {
            assert!(Instant::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_quantity_has_six_decimals() {
        assert_eq!(Quantity::from_micro(1_500_000).to_string(), "1.500000");
        assert_eq!(Quantity::from_micro(-1).to_string(), "-0.000001");
        assert_eq!(Quantity::of_device_nanos(3_600_000_000_000), Quantity::DEVICE_HOUR);
        assert_eq!(Quantity::of_device_nanos(3_599_999).micro(), 0);
    }

    #[test]
    fn sums_never_wrap() {
        assert!(Quantity::from_micro(i64::MAX).plus(Quantity::from_micro(1)).is_err());
        assert!(Quantity::from_micro(i64::MIN).minus(Quantity::from_micro(1)).is_err());
    }
}
