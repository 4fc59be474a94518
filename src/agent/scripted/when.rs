//! When a scripted holder is there: always, by the hours of a week, or in bursts. Whole seconds of UTC.
//!
//! Everything is a function of the instant: nothing is remembered from one look to the next.

use std::cmp::Ordering;

use crate::domain::period::Span;
use crate::domain::units::{Instant, MICROS_PER_SECOND};

const DAY_SECONDS: i64 = 86_400;
const WEEK_SECONDS: i64 = 7 * DAY_SECONDS;
/// 1970-01-05 was the first Monday.
const FIRST_MONDAY_SECONDS: i64 = 4 * DAY_SECONDS;
/// How many slots are searched for a burst in one go.
const SLOTS_AT_ONCE: i64 = 1_000;
const DAYS: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];

/// Spans of a week, in seconds from Monday 00:00 UTC. None meets another; the last may reach into the next week.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Hours(Vec<(i64, i64)>);

impl Hours {
    /// Reads lines such as `mon-fri 09:00-18:00` or `sun 22:00-06:00`, which ends on Monday.
    pub(super) fn parse(lines: &[String]) -> Result<Self, String> {
        let mut spans = Vec::new();
        for line in lines {
            let refused = || format!("`{line}` is not hours such as `mon-fri 09:00-18:00`");
            let (days, times) = line.trim().split_once(' ').ok_or_else(refused)?;
            let (from, to) = times.trim().split_once('-').ok_or_else(refused)?;
            let (from, to) = (clock(from).ok_or_else(refused)?, clock(to).ok_or_else(refused)?);
            if from == DAY_SECONDS || from == to {
                return Err(refused());
            }
            let to = if to > from { to } else { to.saturating_add(DAY_SECONDS) };
            for day in days_of(days).ok_or_else(refused)? {
                let midnight = day.saturating_mul(DAY_SECONDS);
                spans.push((midnight.saturating_add(from), midnight.saturating_add(to)));
            }
        }
        spans.sort_unstable();
        let next = spans.iter().skip(1).map(|(start, _)| *start);
        let first = spans.first().map(|(start, _)| start.saturating_add(WEEK_SECONDS));
        if spans.is_empty() {
            return Err("no hours are given".to_owned());
        }
        if spans.iter().zip(next.chain(first)).any(|((_, end), next)| *end > next) {
            return Err("hours meet each other".to_owned());
        }
        Ok(Self(spans))
    }

    /// The hours that hold an instant, with their number: the same in every run.
    fn stay(&self, at: Instant) -> Option<(i64, Span)> {
        self.around(at).find(|(_, span)| span.contains(at))
    }

    pub(super) fn contains(&self, at: Instant) -> bool {
        self.stay(at).is_some()
    }

    /// The first edge after an instant.
    pub(super) fn next_edge(&self, after: Instant) -> Option<Instant> {
        self.around(after).flat_map(|(_, span)| [span.start(), span.end()]).filter(|edge| *edge > after).min()
    }

    /// The hours of the week of an instant, and of those before and after.
    fn around(&self, at: Instant) -> impl Iterator<Item = (i64, Span)> {
        let second = at.micros().div_euclid(MICROS_PER_SECOND);
        let week = second.saturating_sub(FIRST_MONDAY_SECONDS).div_euclid(WEEK_SECONDS);
        let count = i64::try_from(self.0.len()).unwrap_or(i64::MAX);
        [week.saturating_sub(1), week, week.saturating_add(1)].into_iter().flat_map(move |week| {
            let monday = week.saturating_mul(WEEK_SECONDS).saturating_add(FIRST_MONDAY_SECONDS);
            self.0.iter().zip(0_i64..).map(move |((start, end), at)| {
                let number = week.saturating_mul(count).saturating_add(at);
                (number, Span::clamped(at_second(monday, *start), at_second(monday, *end)))
            })
        })
    }
}

fn at_second(base: i64, seconds: i64) -> Instant {
    Instant::MIN.plus_micros(base.saturating_add(seconds).saturating_mul(MICROS_PER_SECOND))
}

fn days_of(text: &str) -> Option<std::ops::RangeInclusive<i64>> {
    let day = |text: &str| {
        let at = DAYS.iter().position(|day| *day == text.trim().to_ascii_lowercase())?;
        i64::try_from(at).ok()
    };
    match text.split_once('-') {
        Some((from, to)) => {
            let (from, to) = (day(from)?, day(to)?);
            (from <= to).then_some(from..=to)
        }
        None => day(text).map(|day| day..=day),
    }
}

/// Seconds of a day: `HH:MM`, up to 24:00.
fn clock(text: &str) -> Option<i64> {
    let (hours, minutes) = text.trim().split_once(':')?;
    if hours.len() != 2 || minutes.len() != 2 {
        return None;
    }
    let (hours, minutes) = (hours.parse::<u16>().ok()?, minutes.parse::<u16>().ok()?);
    let seconds =
        i64::from(hours).saturating_mul(3_600).saturating_add(i64::from(minutes).saturating_mul(60));
    (minutes < 60 && seconds <= DAY_SECONDS).then_some(seconds)
}

/// Bursts: in each slot of time at most one, whether and when by a hash of the slot's number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Bursts {
    /// Where slot 0 begins.
    pub(super) origin: Instant,
    /// The length of a slot, in seconds.
    pub(super) every: i64,
    /// The shortest burst and the longest, in seconds; at most a slot.
    pub(super) lasts: (i64, i64),
    /// In how many slots of a thousand there is one.
    pub(super) chance: u64,
    /// What makes this habit's bursts its own.
    pub(super) seed: u64,
    /// Only bursts that begin in these hours.
    pub(super) hours: Option<Hours>,
}

impl Bursts {
    fn slot(&self, at: Instant) -> i64 {
        let slot = self.every.saturating_mul(MICROS_PER_SECOND).max(1);
        at.micros_since(self.origin).div_euclid(slot)
    }

    fn slot_start(&self, slot: i64) -> Instant {
        self.origin.plus_micros(slot.saturating_mul(self.every).saturating_mul(MICROS_PER_SECOND))
    }

    /// The burst in a slot.
    fn burst(&self, slot: i64) -> Option<Span> {
        let draw = |what: u64, below: i64| -> i64 {
            let below = u64::try_from(below.max(1)).unwrap_or(1);
            let slot = u64::from_be_bytes(slot.to_be_bytes());
            i64::try_from(mixed(&[self.seed, what, slot]) % below).unwrap_or_default()
        };
        if u64::try_from(draw(0, 1_000)).unwrap_or_default() >= self.chance {
            return None;
        }
        let (least, most) = self.lasts;
        let length = least.saturating_add(draw(1, most.saturating_sub(least).saturating_add(1)));
        let offset = draw(2, self.every.saturating_sub(length).saturating_add(1));
        let start = self.slot_start(slot).plus_micros(offset.saturating_mul(MICROS_PER_SECOND));
        if self.hours.as_ref().is_some_and(|hours| !hours.contains(start)) {
            return None;
        }
        Some(Span::clamped(start, start.plus_micros(length.saturating_mul(MICROS_PER_SECOND))))
    }

    fn stay(&self, at: Instant) -> Option<(i64, Span)> {
        let slot = self.slot(at);
        self.burst(slot).filter(|span| span.contains(at)).map(|span| (slot, span))
    }

    /// The first edge after an instant. Where many slots have none, it is where the next of them begins: so the search
    /// ends.
    fn next_edge(&self, after: Instant) -> Option<Instant> {
        if self.chance == 0 {
            return None;
        }
        let slot = self.slot(after);
        let bursts = (slot..slot.saturating_add(SLOTS_AT_ONCE)).filter_map(|slot| self.burst(slot));
        let edge = bursts.flat_map(|span| [span.start(), span.end()]).find(|edge| *edge > after);
        edge.or_else(|| Some(self.slot_start(slot.saturating_add(SLOTS_AT_ONCE))))
    }
}

/// When somebody is there, and is it the same somebody.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Schedule {
    /// From its first instant to its last.
    Always,
    /// By the hours of a week.
    Weekly(Hours),
    /// In bursts.
    Bursts(Bursts),
}

impl Schedule {
    /// The number of the stay that holds an instant.
    pub(super) fn stay(&self, at: Instant) -> Option<i64> {
        match self {
            Self::Always => Some(0),
            Self::Weekly(hours) => hours.stay(at).map(|(number, _)| number),
            Self::Bursts(bursts) => bursts.stay(at).map(|(number, _)| number),
        }
    }

    /// The first instant after another at which anything may change.
    pub(super) fn next_edge(&self, after: Instant) -> Option<Instant> {
        match self {
            Self::Always => None,
            Self::Weekly(hours) => hours.next_edge(after),
            Self::Bursts(bursts) => bursts.next_edge(after),
        }
    }
}

/// Reads a length of time: `2d 4h 10m 30s`, in any order, each unit once. Seconds.
pub(super) fn parse_length(text: &str) -> Result<i64, String> {
    let refused = || format!("`{text}` is not a length of time such as `2d 4h` or `90s`");
    let mut seconds = 0_i64;
    let mut seen = Vec::new();
    for word in text.split_whitespace() {
        let (digits, unit) = word.split_at_checked(word.len().saturating_sub(1)).ok_or_else(refused)?;
        let factor = match unit {
            "d" => DAY_SECONDS,
            "h" => 3_600,
            "m" => 60,
            "s" => 1,
            _ => return Err(refused()),
        };
        if seen.contains(&unit) || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(refused());
        }
        seen.push(unit);
        let count = digits.parse::<u32>().map_err(|_| refused())?;
        seconds = seconds.saturating_add(i64::from(count).saturating_mul(factor));
    }
    match (seen.is_empty(), seconds.cmp(&(36_525 * DAY_SECONDS))) {
        (false, Ordering::Less) => Ok(seconds),
        (true, _) | (false, Ordering::Equal | Ordering::Greater) => Err(refused()),
    }
}

/// A number that depends on all of `words` and looks like none of them: SplitMix64, word by word.
pub(super) fn mixed(words: &[u64]) -> u64 {
    words.iter().fold(0, |state, word| {
        let mut mixed = (state ^ word).wrapping_add(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Instant {
        Instant::parse(text).unwrap()
    }

    fn hours(lines: &[&str]) -> Result<Hours, String> {
        Hours::parse(&lines.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn hours_are_of_the_week_and_may_pass_midnight() {
        // 2026-06-01 is a Monday.
        let night = hours(&["mon-fri 22:00-06:00"]).unwrap();
        for (text, is_inside) in [
            ("2026-06-01T21:59:59Z", false),
            ("2026-06-01T22:00:00Z", true),
            ("2026-06-02T05:59:59Z", true),
            ("2026-06-02T06:00:00Z", false),
            ("2026-06-06T05:00:00Z", true),
            ("2026-06-06T22:30:00Z", false),
            ("2026-06-01T05:00:00Z", false),
        ] {
            assert_eq!(night.contains(at(text)), is_inside, "{text}");
        }
        let sunday = hours(&["sun 22:00-06:00"]).unwrap();
        assert!(sunday.contains(at("2026-06-01T05:00:00Z")));
        let (evening, morning) = (at("2026-05-31T23:00:00Z"), at("2026-06-01T01:00:00Z"));
        assert_eq!(sunday.stay(evening), sunday.stay(morning), "one stay over the week's edge");
        assert_eq!(sunday.next_edge(morning), Some(at("2026-06-01T06:00:00Z")));
        assert_eq!(sunday.next_edge(at("2026-06-01T06:00:00Z")), Some(at("2026-06-07T22:00:00Z")));
    }

    #[test]
    fn hours_that_are_none_or_meet_are_refused() {
        for line in [
            "",
            "mon",
            "mon 9-10",
            "fri-mon 09:00-10:00",
            "mon 09:00-09:00",
            "mon 24:00-01:00",
            "mon 25:00-26:00",
        ] {
            assert!(hours(&[line]).is_err(), "{line}");
        }
        assert!(hours(&["mon 09:00-12:00", "mon 11:00-13:00"]).is_err());
        assert!(hours(&["sun 22:00-06:00", "mon 05:00-07:00"]).is_err());
        assert!(hours(&["mon 09:00-12:00", "mon 12:00-13:00"]).is_ok());
        assert!(hours(&[]).is_err());
    }

    #[test]
    fn bursts_lie_in_their_slots_and_come_as_often_as_they_should() {
        let bursts = Bursts {
            origin: at("2026-06-01T00:00:00Z"),
            every: 900,
            lasts: (60, 300),
            chance: 400,
            seed: 7,
            hours: None,
        };
        let all: Vec<(i64, Span)> =
            (-500..10_000).filter_map(|slot| bursts.burst(slot).map(|span| (slot, span))).collect();
        assert!((3_900..4_500).contains(&all.len()), "{}", all.len());
        for (slot, span) in &all {
            assert!((60..=300).contains(&(span.nanos() / 1_000_000_000)));
            assert!(bursts.slot_start(*slot) <= span.start());
            assert!(span.end() <= bursts.slot_start(slot + 1));
            assert_eq!(bursts.stay(span.start()), Some((*slot, *span)));
        }
        let lengths: std::collections::BTreeSet<i64> = all.iter().map(|(_, span)| span.nanos()).collect();
        assert!(lengths.len() > 200, "they differ");
    }

    #[test]
    fn a_length_has_units() {
        assert_eq!(parse_length("1d 2h 3m 4s"), Ok(93_784));
        assert_eq!(parse_length("90s"), Ok(90));
        for text in ["", "90", "1h 1h", "-1h", "1w", "é", "99999999999s", "4294967295d"] {
            assert!(parse_length(text).is_err(), "{text}");
        }
    }
}
