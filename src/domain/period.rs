//! Half-open spans, and the billing calendar of one zone: hours, days and months.
//!
//! Always true here: the hours of a day tile it, the days of a month tile it, and the months tile time,
//! whatever the zone does to its clocks. Source: DESIGN §2.

use std::fmt;

use chrono::{DateTime, Datelike, NaiveDate, Offset, TimeZone, Utc};
use chrono_tz::Tz;

use super::units::{Instant, MICROS_PER_HOUR, MICROS_PER_SECOND, NANOS_PER_MICRO, NotAnInstant, OutOfRange};

/// A half-open span of time `[start, end)`; neighbours touch and never overlap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span {
    start: Instant,
    end: Instant,
}

/// The end of a span lies before its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("ends at {end}, before its start {start}")]
pub struct EndsBeforeStart {
    /// The start as given.
    pub start: Instant,
    /// The end as given.
    pub end: Instant,
}

/// A text is not a span of time.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SpanTextError {
    /// There are not two instants.
    #[error("is not FROM/TO")]
    NotASpan,
    /// One of them is none.
    #[error(transparent)]
    NotAnInstant(#[from] NotAnInstant),
    /// They are the wrong way round.
    #[error(transparent)]
    EndsBeforeStart(#[from] EndsBeforeStart),
    /// Nothing lies between them.
    #[error("covers nothing")]
    Empty,
}

impl Span {
    /// Reads `FROM/TO`, two instants in RFC 3339 with some time between them.
    ///
    /// # Errors
    /// [`SpanTextError`].
    pub fn parse(text: &str) -> Result<Self, SpanTextError> {
        let (from, to) = text.split_once('/').ok_or(SpanTextError::NotASpan)?;
        let span = Self::new(Instant::parse(from)?, Instant::parse(to)?)?;
        if span.is_empty() { Err(SpanTextError::Empty) } else { Ok(span) }
    }

    /// All time that is ever accepted.
    pub const ALWAYS: Self = Self { start: Instant::MIN, end: Instant::MAX };

    /// A span from `start` to `end`; it may be empty.
    ///
    /// # Errors
    /// [`EndsBeforeStart`] when `end < start`.
    pub fn new(start: Instant, end: Instant) -> Result<Self, EndsBeforeStart> {
        if end < start { Err(EndsBeforeStart { start, end }) } else { Ok(Self { start, end }) }
    }

    /// The span between two instants, empty at `start` when they are the wrong way round.
    #[must_use]
    pub fn clamped(start: Instant, end: Instant) -> Self {
        Self { start, end: end.max(start) }
    }

    /// The first instant inside.
    #[must_use]
    pub const fn start(self) -> Instant {
        self.start
    }

    /// The first instant past the end.
    #[must_use]
    pub const fn end(self) -> Instant {
        self.end
    }

    /// Whether nothing is inside.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.start == self.end
    }

    /// The length in nanoseconds.
    #[must_use]
    pub const fn nanos(self) -> i64 {
        self.end.micros_since(self.start).saturating_mul(NANOS_PER_MICRO)
    }

    /// The part of this span inside `other`; empty when they do not meet.
    #[must_use]
    pub fn clip(self, other: Self) -> Self {
        Self::clamped(self.start.max(other.start), self.end.min(other.end))
    }

    /// Whether both share at least one instant.
    #[must_use]
    pub fn meets(self, other: Self) -> bool {
        self.start < other.end && other.start < self.end && !self.is_empty() && !other.is_empty()
    }

    /// Whether `instant` is inside.
    #[must_use]
    pub fn contains(self, instant: Instant) -> bool {
        self.start <= instant && instant < self.end
    }
}

impl fmt::Display for Span {
    /// `start/end`; an open end is `..`, as in ISO 8601-2.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.end == Instant::MAX {
            write!(f, "{}/..", self.start)
        } else {
            write!(f, "{}/{}", self.start, self.end)
        }
    }
}

/// A billing day: a local calendar date, counted in days since 1970-01-01.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Day(i32);

impl Day {
    /// A day as stored: days since 1970-01-01.
    ///
    /// # Errors
    /// [`OutOfRange`] when it is no date.
    pub fn from_stored(number: i64) -> Result<Self, OutOfRange> {
        let day = i32::try_from(number).map(Self).map_err(|_| OutOfRange::of("a day"))?;
        day.date().map(|_| day).ok_or(OutOfRange::of("a day"))
    }

    /// Reads a date, `YYYY-MM-DD`, between 1970 and 2199.
    ///
    /// # Errors
    /// [`OutOfRange`] when it is none.
    pub fn parse(text: &str) -> Result<Self, OutOfRange> {
        let date = NaiveDate::parse_from_str(text, "%Y-%m-%d").ok();
        let date = date.filter(|date| text.len() == 10 && (1970..2200).contains(&date.year()));
        date.map(Self::of_date).ok_or(OutOfRange::of("a day"))
    }

    /// Days since 1970-01-01.
    #[must_use]
    pub fn stored(self) -> i64 {
        i64::from(self.0)
    }

    /// The day after.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }

    fn of_date(date: NaiveDate) -> Self {
        Self(date.to_epoch_days())
    }

    fn date(self) -> Option<NaiveDate> {
        NaiveDate::from_epoch_days(self.0)
    }
}

impl fmt::Display for Day {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.date() {
            Some(date) => write!(f, "{date}"),
            None => write!(f, "day {}", self.0),
        }
    }
}

/// A calendar month in the billing zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Month {
    first: NaiveDate,
}

/// A text is not a month or a zone.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CalendarError {
    /// Not a month between 1970-01 and 2199-12.
    #[error("`{text}` is not a month such as 2026-06")]
    NotAMonth {
        /// The text as given.
        text: String,
    },
    /// Not in the time-zone database.
    #[error("`{text}` is not a zone of the IANA time-zone database, such as America/Sao_Paulo")]
    NotAZone {
        /// The text as given.
        text: String,
    },
}

impl Month {
    /// Reads `YYYY-MM`.
    ///
    /// # Errors
    /// [`CalendarError::NotAMonth`].
    pub fn parse(text: &str) -> Result<Self, CalendarError> {
        let refused = || CalendarError::NotAMonth { text: text.to_owned() };
        let shape = text.len() == 7
            && text.bytes().enumerate().all(|(at, b)| if at == 4 { b == b'-' } else { b.is_ascii_digit() });
        if !shape {
            return Err(refused());
        }
        let first = NaiveDate::parse_from_str(&format!("{text}-01"), "%Y-%m-%d").map_err(|_| refused())?;
        if (1970..2200).contains(&first.year()) { Ok(Self { first }) } else { Err(refused()) }
    }

    /// The month in which a day lies.
    #[must_use]
    pub fn of(day: Day) -> Self {
        let date = day.date().unwrap_or(NaiveDate::MAX);
        Self { first: date.with_day(1).unwrap_or(date) }
    }

    /// The days of the month.
    #[must_use]
    pub fn days(self) -> std::ops::Range<Day> {
        self.first_day()..self.end_day()
    }

    /// The first day of the month.
    #[must_use]
    pub fn first_day(self) -> Day {
        Day::of_date(self.first)
    }

    /// The first day of the next month.
    #[must_use]
    pub fn end_day(self) -> Day {
        let next = self.first.checked_add_months(chrono::Months::new(1)).unwrap_or(NaiveDate::MAX);
        Day::of_date(next)
    }
}

impl fmt::Display for Month {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.first.format("%Y-%m"))
    }
}

/// The billing zone: where days begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BillingZone(Tz);

impl BillingZone {
    /// Coordinated universal time, the default.
    pub const UTC: Self = Self(Tz::UTC);

    /// Reads an IANA name.
    ///
    /// # Errors
    /// [`CalendarError::NotAZone`].
    pub fn parse(text: &str) -> Result<Self, CalendarError> {
        text.parse().map(Self).map_err(|_| CalendarError::NotAZone { text: text.to_owned() })
    }

    /// The IANA name.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.0.name()
    }

    /// The version of the time-zone database that this program carries.
    #[must_use]
    pub const fn database_version() -> &'static str {
        chrono_tz::IANA_TZDB_VERSION
    }

    /// The first instant of a local date. A date that the zone skipped begins where the next one does.
    #[must_use]
    pub fn day_start(self, day: Day) -> Instant {
        let Some(midnight) = day.date().and_then(|date| date.and_hms_opt(0, 0, 0)) else {
            return Instant::MAX;
        };
        match self.0.from_local_datetime(&midnight) {
            chrono::LocalResult::Single(time) => instant_of(&time),
            chrono::LocalResult::Ambiguous(earliest, _) => instant_of(&earliest),
            chrono::LocalResult::None => self.end_of_gap(midnight),
        }
    }

    /// The instant at which a gap in local time that holds `local` ends: the only transition near it.
    fn end_of_gap(self, local: chrono::NaiveDateTime) -> Instant {
        let offset_at = |second: i64| {
            let time = DateTime::<Utc>::from_timestamp(second, 0).unwrap_or_default();
            self.0.offset_from_utc_datetime(&time.naive_utc()).fix()
        };
        // Offsets lie within ±14 h and a gap is at most a day, so the transition is inside these bounds.
        let near = local.and_utc().timestamp();
        let (mut before, mut after) = (near.saturating_sub(40 * 3_600), near.saturating_add(40 * 3_600));
        let old = offset_at(before);
        while after.saturating_sub(before) > 1 {
            let middle = i64::midpoint(before, after);
            if offset_at(middle) == old { before = middle } else { after = middle }
        }
        Instant::from_micros(after.saturating_mul(MICROS_PER_SECOND))
    }

    /// The billing day that holds an instant.
    #[must_use]
    pub fn day_of(self, instant: Instant) -> Day {
        let utc = DateTime::<Utc>::from_timestamp_micros(instant.micros()).unwrap_or_default();
        let mut day = Day::of_date(utc.with_timezone(&self.0).date_naive());
        // Local time may fall back across midnight: the day that had already begun keeps those instants.
        while self.day_start(day.next()) <= instant {
            day = day.next();
        }
        while instant < self.day_start(day) {
            day = Day(day.0.saturating_sub(1));
        }
        day
    }

    /// The span of a billing day; empty for a date that the zone skipped.
    #[must_use]
    pub fn day_span(self, day: Day) -> Span {
        Span::clamped(self.day_start(day), self.day_start(day.next()))
    }

    /// The billing hours of a day: 3,600 s each from its first instant; the last may be shorter.
    pub fn hours_of(self, day: Day) -> impl Iterator<Item = Span> {
        let span = self.day_span(day);
        let mut start = span.start();
        std::iter::from_fn(move || {
            if start >= span.end() {
                return None;
            }
            let hour = Span::clamped(start, later(start, MICROS_PER_HOUR)).clip(span);
            start = hour.end();
            Some(hour)
        })
    }

    /// The billing hour that holds an instant.
    #[must_use]
    pub fn hour_of(self, instant: Instant) -> Span {
        let day = self.day_span(self.day_of(instant));
        let into = instant.micros_since(day.start()).div_euclid(MICROS_PER_HOUR);
        let start = later(day.start(), into.saturating_mul(MICROS_PER_HOUR));
        Span::clamped(start, later(start, MICROS_PER_HOUR)).clip(day)
    }

    /// The billing hours that share an instant with `span`, in order.
    pub fn hours_meeting(self, span: Span) -> impl Iterator<Item = Span> {
        self.days_meeting(span).flat_map(move |day| self.hours_of(day)).filter(move |hour| hour.meets(span))
    }

    /// The billing days that share an instant with `span`, in order.
    pub fn days_meeting(self, span: Span) -> impl Iterator<Item = Day> {
        let mut day = self.day_of(span.start());
        std::iter::from_fn(move || {
            while !span.is_empty() && self.day_start(day) < span.end() {
                let this = day;
                day = day.next();
                if self.day_span(this).meets(span) {
                    return Some(this);
                }
            }
            None
        })
    }

    /// The span of a month.
    #[must_use]
    pub fn month_span(self, month: Month) -> Span {
        Span::clamped(self.day_start(month.first_day()), self.day_start(month.end_day()))
    }

    /// Whether prices may change at this instant: the start of a billing hour.
    #[must_use]
    pub fn is_hour_edge(self, instant: Instant) -> bool {
        self.hour_of(instant).start() == instant
    }
}

impl fmt::Display for BillingZone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.0.name())
    }
}

/// An instant moved, also past the bounds of accepted time: the first and last days reach over them.
const fn later(instant: Instant, micros: i64) -> Instant {
    Instant::from_micros(instant.micros().saturating_add(micros))
}

fn instant_of<Z: TimeZone>(time: &DateTime<Z>) -> Instant {
    Instant::from_micros(time.timestamp_micros())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zone(name: &str) -> BillingZone {
        BillingZone::parse(name).unwrap()
    }

    fn day(text: &str) -> Day {
        Day::of_date(text.parse().unwrap())
    }

    #[test]
    fn days_have_the_hours_their_zone_gives_them() {
        let check = |name: &str, date: &str, start: &str, hours: usize, last_minutes: i64| {
            let zone = zone(name);
            let all: Vec<Span> = zone.hours_of(day(date)).collect();
            assert_eq!(zone.day_start(day(date)).to_string(), start, "{name} {date}");
            assert_eq!(all.len(), hours, "{name} {date}");
            assert_eq!(all.last().unwrap().nanos() / 60_000_000_000, last_minutes, "{name} {date}");
        };
        check("UTC", "2026-06-01", "2026-06-01T00:00:00Z", 24, 60);
        // Clocks go forward at midnight: the day begins at 01:00 and has 23 hours.
        check("America/Sao_Paulo", "2018-11-04", "2018-11-04T03:00:00Z", 23, 60);
        check("America/Sao_Paulo", "2019-02-16", "2019-02-16T02:00:00Z", 25, 60);
        check("Europe/Lisbon", "2026-03-29", "2026-03-29T00:00:00Z", 23, 60);
        check("Europe/Lisbon", "2026-10-25", "2026-10-24T23:00:00Z", 25, 60);
        // Half an hour of daylight saving: the last hour of the day is short.
        check("Australia/Lord_Howe", "2026-10-04", "2026-10-03T13:30:00Z", 24, 30);
        check("Australia/Lord_Howe", "2026-04-05", "2026-04-04T13:00:00Z", 25, 30);
        check("Asia/Kolkata", "2026-06-01", "2026-05-31T18:30:00Z", 24, 60);
        // Clocks fell back at 00:01 to 23:01 of the day before: the new day had begun and goes on.
        check("America/St_Johns", "2010-11-07", "2010-11-07T02:30:00Z", 25, 60);
    }

    #[test]
    fn a_skipped_date_is_empty() {
        let apia = zone("Pacific/Apia");
        assert!(apia.day_span(day("2011-12-30")).is_empty());
        assert_eq!(apia.day_start(day("2011-12-31")).to_string(), "2011-12-30T10:00:00Z");
        let month = apia.month_span(Month::parse("2011-12").unwrap());
        assert_eq!(month.nanos() / 3_600_000_000_000, 30 * 24);
    }

    #[test]
    fn an_instant_lies_in_the_hour_and_day_that_hold_it() {
        for name in
            ["America/St_Johns", "Australia/Lord_Howe", "America/Sao_Paulo", "Pacific/Apia", "Asia/Kolkata"]
        {
            let zone = zone(name);
            for step in 0..20_000_i64 {
                let instant = Instant::from_micros(1_262_304_000_000_000 + step * 9_973 * 1_000_000);
                let (d, hour) = (zone.day_of(instant), zone.hour_of(instant));
                assert!(zone.day_span(d).contains(instant), "{name} {instant}");
                assert!(hour.contains(instant), "{name} {instant}");
                assert!(zone.hours_of(d).any(|each| each == hour), "{name} {instant}");
            }
        }
    }

    #[test]
    fn a_month_is_read_strictly() {
        assert_eq!(Month::parse("2026-06").unwrap().to_string(), "2026-06");
        for text in
            ["2026-13", "2026-6", "2026-06-01", "26-06", "", "2026-00", "+026-06", "1969-12", "2200-01"]
        {
            assert!(Month::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn spans_touch_and_do_not_overlap() {
        let at = |seconds: i64| Instant::from_micros(seconds * 1_000_000);
        let (a, b) = (Span::new(at(0), at(10)).unwrap(), Span::new(at(10), at(20)).unwrap());
        assert!(!a.meets(b));
        assert!(a.clip(b).is_empty());
        assert!(Span::new(at(2), at(1)).is_err());
    }
}
