//! Instants, spans and steps, as a scenario writes them.
//!
//! An instant is a length such as "1h 30m" after the scenario's `start`; everything in here counts
//! microseconds from there. Values that change are steps: one value, or a list of `[instant, value]` in
//! order.

use serde::Deserialize;
use serde::de::Error;

/// Units of a length, in microseconds.
const UNITS: &[(&str, i64)] = &[
    ("us", 1),
    ("ms", 1_000),
    ("s", 1_000_000),
    ("m", 60_000_000),
    ("h", 3_600_000_000),
    ("d", 86_400_000_000),
];

/// Microseconds after `start`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct At(pub(crate) i64);

impl<'de> Deserialize<'de> for At {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<At, D::Error> {
        let text = String::deserialize(deserializer)?;
        let micros = read_length(&text)
            .ok_or_else(|| D::Error::custom(format!("{text:?} is no length such as \"1h 30m\"")))?;
        Ok(At(micros))
    }
}

fn read_length(text: &str) -> Option<i64> {
    let mut sum = 0_i64;
    for word in text.split_ascii_whitespace() {
        let digits = word.find(|letter: char| !letter.is_ascii_digit())?;
        let (number, unit) = word.split_at(digits);
        let (_, micros) = UNITS.iter().find(|(name, _)| *name == unit)?;
        sum = sum.checked_add(number.parse::<i64>().ok()?.checked_mul(*micros)?)?;
    }
    (!text.trim().is_empty()).then_some(sum)
}

/// From when until before when something is so; without an end it stays so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) from: i64,
    pub(crate) until: i64,
}

impl Span {
    pub(crate) fn new(from: Option<At>, until: Option<At>) -> Span {
        Span { from: from.map_or(i64::MIN, |at| at.0), until: until.map_or(i64::MAX, |at| at.0) }
    }

    pub(crate) fn holds(self, at: i64) -> bool {
        self.from <= at && at < self.until
    }

    pub(crate) fn covers(self, other: Span) -> bool {
        self.from <= other.from && other.until <= self.until
    }

    pub(crate) fn meets(self, other: Span) -> bool {
        self.from < other.until && other.from < self.until
    }
}

/// A value over time. Before the first step there is none.
#[derive(Debug, Clone, Deserialize)]
#[serde(try_from = "RawSteps<T>", bound(deserialize = "T: Deserialize<'de>"))]
pub(crate) enum Steps<T> {
    /// It never changes.
    Always(T),
    /// It is this from then on.
    From(Vec<(At, T)>),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum RawSteps<T> {
    Always(T),
    From(Vec<(At, T)>),
}

impl<T> TryFrom<RawSteps<T>> for Steps<T> {
    type Error = &'static str;

    fn try_from(raw: RawSteps<T>) -> Result<Steps<T>, &'static str> {
        match raw {
            RawSteps::Always(value) => Ok(Steps::Always(value)),
            RawSteps::From(steps) if steps.is_sorted_by(|(one, _), (next, _)| one < next) => {
                Ok(Steps::From(steps))
            }
            RawSteps::From(_) => Err("steps are not in the order of time"),
        }
    }
}

impl<T> Steps<T> {
    pub(crate) fn at(&self, at: i64) -> Option<&T> {
        match self {
            Steps::Always(value) => Some(value),
            Steps::From(steps) => {
                let passed = steps.partition_point(|(from, _)| from.0 <= at);
                steps.get(passed.checked_sub(1)?).map(|(_, value)| value)
            }
        }
    }

    /// The instants that the value changes at, in order.
    pub(crate) fn edges(&self) -> impl Iterator<Item = i64> {
        let steps = match self {
            Steps::Always(_) => &[][..],
            Steps::From(steps) => steps,
        };
        steps.iter().map(|(from, _)| from.0)
    }

    /// The stretches of a span in which the value is one, with their lengths in microseconds.
    pub(crate) fn pieces(&self, span: Span) -> Vec<(i64, Option<&T>)> {
        let mut cuts = vec![span.from];
        cuts.extend(self.edges().filter(|edge| span.from < *edge && *edge < span.until));
        cuts.push(span.until);
        cuts.windows(2)
            .filter_map(|pair| match pair {
                [from, until] if from < until => Some((until - from, self.at(*from))),
                _ => None,
            })
            .collect()
    }
}

/// What a step has where there is nothing to tell, such as the memory of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Told<T>(pub(crate) Option<T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Told<T> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Told<T>, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Raw<T> {
            Value(T),
            Word(String),
        }
        match Raw::<T>::deserialize(deserializer)? {
            Raw::Value(value) => Ok(Told(Some(value))),
            Raw::Word(word) if word == "unavailable" => Ok(Told(None)),
            Raw::Word(word) => Err(D::Error::custom(format!("{word:?} is no value"))),
        }
    }
}
