//! Query parameters, pages and cursors. A parameter that nobody asked for is a fault, as a field of a body is.

use std::fmt;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::problem::Problem;
use crate::domain::period::Span;
use crate::domain::units::{Instant, MICROS_PER_HOUR};
use crate::services::error::Fault;
use crate::wire::body::hex;

/// Values of one page, at most.
pub(super) const LIMIT_MAX: i64 = 1_000;
/// Parameters of one request, at most.
const PARAMETERS_MAX: usize = 64;
/// Values of one page, where it is not said.
const LIMIT: i64 = 100;

/// A query string that is being read.
#[derive(Debug, Default)]
pub(super) struct Query {
    entries: Vec<(String, String, bool)>,
    faults: Vec<Fault>,
}

impl Query {
    pub(super) fn parse(text: &str) -> Self {
        let mut query = Self::default();
        if text.split('&').count() > PARAMETERS_MAX {
            query.faults.push(Fault::query("", format!("has more than {PARAMETERS_MAX} parameters")));
            return query;
        }
        for (key, value) in form_urlencoded::parse(text.as_bytes()) {
            if query.entries.iter().any(|(known, ..)| *known == key) {
                query.fault(&key, "stands twice");
            } else {
                query.entries.push((key.into_owned(), value.into_owned(), false));
            }
        }
        query
    }

    pub(super) fn fault(&mut self, name: &str, detail: impl fmt::Display) {
        self.faults.push(Fault::query(super::json::cut(name), detail));
    }

    /// A parameter's text, if it is there.
    pub(super) fn text(&mut self, name: &str) -> Option<String> {
        let entry = self.entries.iter_mut().find(|(key, ..)| key == name)?;
        entry.2 = true;
        Some(entry.1.clone())
    }

    /// A parameter, if it is there.
    pub(super) fn find<T, E: fmt::Display>(
        &mut self,
        name: &str,
        read: impl Fn(&str) -> Result<T, E>,
    ) -> Option<T> {
        let text = self.text(name)?;
        match read(&text) {
            Ok(value) => Some(value),
            Err(error) => {
                self.fault(name, super::json::cut(&error.to_string()));
                None
            }
        }
    }

    /// A span of at most so many hours, `from` … `to`; both are needed.
    pub(super) fn span(&mut self, hours_max: i64) -> Option<Span> {
        let from = self.find("from", Instant::parse);
        let to = self.find("to", Instant::parse);
        for (name, is_there) in [("from", from.is_some()), ("to", to.is_some())] {
            if !is_there {
                self.fault(name, "is missing");
            }
        }
        let (from, to) = (from?, to?);
        let span = Span::new(from, to).ok();
        if span.is_none() {
            self.fault("to", "lies before from");
        } else if to.micros_since(from) > hours_max.saturating_mul(MICROS_PER_HOUR) {
            self.fault("to", format!("is more than {hours_max} hours after from"));
        }
        span
    }

    /// Which page is asked: after which place, and how many values.
    pub(super) fn page<P: DeserializeOwned>(&mut self) -> Page<P> {
        let limit = self.find("limit", |text| match text.parse() {
            Ok(limit @ 1..=LIMIT_MAX) => Ok(limit),
            Ok(_) | Err(_) => Err(format!("is not a whole number from 1 to {LIMIT_MAX}")),
        });
        let after = self.find("after", |text| read_cursor(text).ok_or("is no cursor of this list"));
        Page { limit: limit.unwrap_or(LIMIT), after }
    }

    /// Stops where a parameter cannot be taken, or nobody asked for it.
    pub(super) fn end(mut self) -> Result<(), Problem> {
        let unknown: Vec<String> =
            self.entries.iter().filter(|(.., taken)| !taken).map(|(key, ..)| key.clone()).collect();
        for key in unknown {
            self.fault(&key, "is not known here");
        }
        if self.faults.is_empty() { Ok(()) } else { Err(Problem::invalid(self.faults)) }
    }
}

/// A page that is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Page<P> {
    pub(super) limit: i64,
    pub(super) after: Option<P>,
}

impl<P> Page<P> {
    /// How many to read: one more than the page has, which tells whether another page follows.
    pub(super) const fn reach(&self) -> i64 {
        self.limit + 1
    }

    /// The page's values, and the cursor of the next page if there is one.
    pub(super) fn cut<T>(&self, mut found: Vec<T>, place: impl Fn(&T) -> P) -> (Vec<T>, Option<String>)
    where
        P: Serialize,
    {
        let limit = usize::try_from(self.limit).unwrap_or(usize::MAX);
        if found.len() <= limit {
            return (found, None);
        }
        found.truncate(limit);
        let next = found.last().map(|last| write_cursor(&place(last)));
        (found, next)
    }
}

/// A place in a list as text that says nothing to its reader.
fn write_cursor<P: Serialize>(place: &P) -> String {
    hex(&serde_json::to_vec(place).unwrap_or_default())
}

fn read_cursor<P: DeserializeOwned>(text: &str) -> Option<P> {
    if text.len() > 8_192
        || !text.len().is_multiple_of(2)
        || !text.bytes().all(|byte| byte.is_ascii_hexdigit())
    {
        return None;
    }
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let bytes: Option<Vec<u8>> = text
        .as_bytes()
        .chunks_exact(2)
        .map(|pair| match pair {
            [high, low] => Some(digit(*high)? << 4 | digit(*low)?),
            _ => None,
        })
        .collect();
    let bytes = bytes?;
    let place: serde_json::Value = serde_json::from_slice(&bytes).ok()?;
    if holds_zero(&place) {
        return None;
    }
    serde_json::from_value(place).ok()
}

/// PostgreSQL holds no zero character, and no name does.
fn holds_zero(value: &serde_json::Value) -> bool {
    match value {
        serde_json::Value::String(text) => text.contains('\0'),
        serde_json::Value::Array(list) => list.iter().any(holds_zero),
        serde_json::Value::Object(fields) => fields.values().any(holds_zero),
        serde_json::Value::Null | serde_json::Value::Bool(_) | serde_json::Value::Number(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_tells_whether_another_follows() {
        let page = Page::<String> { limit: 2, after: None };
        let (values, next) = page.cut(vec!["a".to_owned(), "b".to_owned(), "c".to_owned()], Clone::clone);
        assert_eq!(values, ["a", "b"]);
        assert_eq!(read_cursor::<String>(&next.unwrap()), Some("b".to_owned()));
        assert_eq!(page.cut(vec!["a".to_owned(), "b".to_owned()], Clone::clone).1, None);
    }

    #[test]
    fn cursors_that_nobody_gave_are_refused() {
        for text in ["", "x", "0", "zz", "22", "226122ff", "7b7d", "225c753030303022", "é1"] {
            assert_eq!(read_cursor::<String>(text), None, "{text}");
        }
    }

    #[test]
    fn parameters_are_taken_once_and_only_if_known() {
        let mut query = Query::parse("limit=0&x=1&x=2&y=3");
        let page = query.page::<String>();
        assert_eq!(page, Page { limit: 100, after: None });
        let problem = query.end().unwrap_err();
        let named: Vec<String> = problem.faults.iter().map(ToString::to_string).collect();
        assert_eq!(
            named,
            [
                "x stands twice",
                "limit is not a whole number from 1 to 1000",
                "x is not known here",
                "y is not known here"
            ]
        );
    }
}
