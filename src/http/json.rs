//! JSON bodies, read strictly, with every fault of a body told at once.
//!
//! A body is text without a byte order mark, nested sixteen deep at most, without a key that stands twice. Its fields are
//! taken by name and kind; what cannot be taken is noted with its pointer, and reading goes on; what nobody asked for is
//! a fault too, so that a slip is never silently ignored.

use std::cell::Cell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use super::problem::{Kind, Problem};
use crate::domain::ids::Name;
use crate::domain::units::Instant;
use crate::services::error::Fault;

/// How deep a body may nest.
const DEPTH_MAX: usize = 16;
/// Values of one body, at most: each costs a hundred times the bytes that it is written in.
const VALUES_MAX: usize = 20_000;

/// A JSON value as it was written.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Node {
    Null,
    Boolean(bool),
    Integer(i64),
    /// A number that is no 64-bit integer.
    Number,
    Text(String),
    List(Vec<Node>),
    Object(Vec<(String, Node)>),
}

impl Node {
    const fn kind(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Boolean(_) => "a boolean",
            Self::Integer(_) | Self::Number => "a number",
            Self::Text(_) => "a text",
            Self::List(_) => "a list",
            Self::Object(_) => "an object",
        }
    }
}

/// Reads a body.
///
/// # Errors
/// [`Kind::Malformed`] with the place where reading stopped.
pub(super) fn parse(body: &[u8]) -> Result<Node, Problem> {
    let malformed = |detail: String| Problem::new(Kind::Malformed, format!("the body is not JSON: {detail}"));
    if body.starts_with(b"\xef\xbb\xbf") {
        return Err(malformed("it begins with a byte order mark".to_owned()));
    }
    let mut reader = serde_json::Deserializer::from_slice(body);
    let left = Cell::new(VALUES_MAX);
    let node = Seed { depth: 0, left: &left }
        .deserialize(&mut reader)
        .map_err(|error| malformed(error.to_string()))?;
    reader.end().map_err(|error| malformed(error.to_string()))?;
    Ok(node)
}

/// Reads one value at a depth, of those that are left.
#[derive(Clone, Copy)]
struct Seed<'a> {
    depth: usize,
    left: &'a Cell<usize>,
}

impl<'de> DeserializeSeed<'de> for Seed<'_> {
    type Value = Node;

    fn deserialize<D: Deserializer<'de>>(self, input: D) -> Result<Node, D::Error> {
        match self.left.get().checked_sub(1) {
            Some(left) => self.left.set(left),
            None => return Err(D::Error::custom(format!("it has more than {VALUES_MAX} values"))),
        }
        input.deserialize_any(self)
    }
}

impl Seed<'_> {
    fn inside<E: Error>(self) -> Result<Self, E> {
        if self.depth < DEPTH_MAX {
            Ok(Self { depth: self.depth + 1, ..self })
        } else {
            Err(E::custom(format!("it nests more than {DEPTH_MAX} deep")))
        }
    }
}

impl<'de> Visitor<'de> for Seed<'_> {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E: Error>(self) -> Result<Node, E> {
        Ok(Node::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Node, E> {
        Ok(Node::Boolean(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Node, E> {
        Ok(Node::Integer(value))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Node, E> {
        Ok(i64::try_from(value).map_or(Node::Number, Node::Integer))
    }

    /// `12.0` is an integer to JSON Schema, as far as it is exact.
    fn visit_f64<E: Error>(self, value: f64) -> Result<Node, E> {
        const EXACT: f64 = 9_007_199_254_740_992.0;
        if value.fract() == 0.0 && value.abs() <= EXACT {
            #[expect(clippy::cast_possible_truncation, reason = "whole and below 2^53 by the line above")]
            return Ok(Node::Integer(value as i64));
        }
        Ok(Node::Number)
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Node, E> {
        Ok(Node::Text(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Node, A::Error> {
        let inside = self.inside()?;
        let mut nodes = Vec::new();
        while let Some(node) = list.next_element_seed(inside)? {
            nodes.push(node);
        }
        Ok(Node::List(nodes))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
        let inside = self.inside()?;
        let mut fields: Vec<(String, Node)> = Vec::new();
        let mut seen = std::collections::BTreeSet::new();
        while let Some(key) = map.next_key::<String>()? {
            if !seen.insert(key.clone()) {
                return Err(A::Error::custom(format!("the key `{}` stands twice", cut(&key))));
            }
            fields.push((key, map.next_value_seed(inside)?));
        }
        Ok(Node::Object(fields))
    }
}

/// A text of the body as it is shown in an answer: not more than a line of it.
pub(super) fn cut(text: &str) -> String {
    let mut shown: String = text.chars().take(64).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    shown
}

/// The faults that were found so far.
#[derive(Debug, Default)]
pub(super) struct Faults(pub(super) Vec<Fault>);

impl Faults {
    pub(super) fn body(&mut self, pointer: &str, detail: impl fmt::Display) {
        self.0.push(Fault::body(pointer, detail));
    }

    /// Stops where there are any.
    pub(super) fn check(self) -> Result<(), Problem> {
        if self.0.is_empty() { Ok(()) } else { Err(Problem::invalid(self.0)) }
    }
}

/// The answer to a value that was found to be good, after [`Faults::check`]. What is none here was a fault there.
pub(super) fn good<T>(value: Option<T>) -> Result<T, Problem> {
    value.ok_or_else(|| Problem::new(Kind::Internal, "a value that was checked is missing"))
}

/// Reads one value, or says in words that follow its name why not.
pub(super) type Reader<T> = fn(&Node) -> Result<T, String>;

/// The fields of an object, taken one by one.
pub(super) struct Fields<'a> {
    pointer: String,
    /// What is no object has one fault, and not one for each field that it lacks.
    is_object: bool,
    entries: Vec<(&'a str, &'a Node, bool)>,
}

impl<'a> Fields<'a> {
    /// The fields of a value that ought to be an object.
    pub(super) fn of(node: &'a Node, pointer: &str, faults: &mut Faults) -> Self {
        let entries = match node {
            Node::Object(fields) => fields.iter().map(|(key, node)| (key.as_str(), node, false)).collect(),
            Node::Null
            | Node::Boolean(_)
            | Node::Integer(_)
            | Node::Number
            | Node::Text(_)
            | Node::List(_) => {
                faults.body(pointer, format!("is {}, not an object", node.kind()));
                vec![]
            }
        };
        Self { pointer: pointer.to_owned(), is_object: matches!(node, Node::Object(_)), entries }
    }

    /// The pointer of a field.
    pub(super) fn at(&self, field: &str) -> String {
        format!("{}/{}", self.pointer, field.replace('~', "~0").replace('/', "~1"))
    }

    /// A field's value, if it is there and not null.
    pub(super) fn node(&mut self, field: &str) -> Option<&'a Node> {
        let entry = self.entries.iter_mut().find(|(key, ..)| *key == field)?;
        entry.2 = true;
        (*entry.1 != Node::Null).then_some(entry.1)
    }

    /// A field that may be missing or null.
    pub(super) fn find<T>(&mut self, field: &str, read: Reader<T>, faults: &mut Faults) -> Option<T> {
        let node = self.node(field)?;
        match read(node) {
            Ok(value) => Some(value),
            Err(reason) => {
                faults.body(&self.at(field), reason);
                None
            }
        }
    }

    /// A field that must be there.
    pub(super) fn need<T>(&mut self, field: &str, read: Reader<T>, faults: &mut Faults) -> Option<T> {
        let is_there = self.node(field).is_some();
        if !is_there && self.is_object {
            faults.body(&self.at(field), "is missing");
        }
        self.find(field, read, faults)
    }

    /// A field that is a list, if it is there; each value with its pointer.
    pub(super) fn list(&mut self, field: &str, max: usize, faults: &mut Faults) -> Vec<(String, &'a Node)> {
        let pointer = self.at(field);
        match self.node(field) {
            Some(Node::List(nodes)) if nodes.len() <= max => {
                nodes.iter().enumerate().map(|(at, node)| (format!("{pointer}/{at}"), node)).collect()
            }
            Some(Node::List(nodes)) => {
                faults.body(&pointer, format!("has {} values; at most {max} are taken", nodes.len()));
                vec![]
            }
            Some(other) => {
                faults.body(&pointer, format!("is {}, not a list", other.kind()));
                vec![]
            }
            None => vec![],
        }
    }

    /// Notes what nobody asked for.
    pub(super) fn end(self, faults: &mut Faults) {
        for (key, _, is_taken) in &self.entries {
            if !is_taken {
                faults.body(&self.at(key), "is not known here");
            }
        }
    }
}

pub(super) fn text(node: &Node) -> Result<String, String> {
    match node {
        Node::Text(text) => Ok(text.clone()),
        Node::Null | Node::Boolean(_) | Node::Integer(_) | Node::Number | Node::List(_) | Node::Object(_) => {
            Err(format!("is {}, not a text", node.kind()))
        }
    }
}

pub(super) fn name(node: &Node) -> Result<Name, String> {
    Name::parse(&text(node)?).map_err(|error| error.to_string())
}

pub(super) fn instant(node: &Node) -> Result<Instant, String> {
    let text = text(node)?;
    Instant::parse(&text).map_err(|_| format!("`{}` is not an RFC 3339 instant", cut(&text)))
}

pub(super) fn boolean(node: &Node) -> Result<bool, String> {
    match node {
        Node::Boolean(value) => Ok(*value),
        Node::Null | Node::Text(_) | Node::Integer(_) | Node::Number | Node::List(_) | Node::Object(_) => {
            Err(format!("is {}, not true or false", node.kind()))
        }
    }
}

pub(super) fn integer(node: &Node) -> Result<i64, String> {
    match node {
        Node::Integer(value) => Ok(*value),
        Node::Number => Err("is not a whole number of 64 bits".to_owned()),
        Node::Null | Node::Text(_) | Node::Boolean(_) | Node::List(_) | Node::Object(_) => {
            Err(format!("is {}, not a whole number", node.kind()))
        }
    }
}

/// A value of a table as the text that stands for it there.
pub(super) fn cell(node: &Node) -> Result<String, String> {
    match node {
        Node::Integer(value) => Ok(value.to_string()),
        // Rows are told by their lines.
        Node::Text(text) if text.chars().any(char::is_control) => Err("holds a control character".to_owned()),
        Node::Text(text) => Ok(text.clone()),
        Node::Null => Ok(String::new()),
        Node::Number | Node::Boolean(_) | Node::List(_) | Node::Object(_) => {
            Err(format!("is {}, not a text or a whole number", node.kind()))
        }
    }
}

/// Rows of a table in JSON, as the text of the table: so that both are read by the same rules.
pub(super) fn table(rows: &[(String, &Node)], columns: &[&'static str], faults: &mut Faults) -> String {
    let mut out = csv::Writer::from_writer(Vec::new());
    let _in_memory = out.write_record(columns);
    for (pointer, node) in rows {
        let mut fields = Fields::of(node, pointer, faults);
        let row: Vec<String> =
            columns.iter().map(|column| fields.find(column, cell, faults).unwrap_or_default()).collect();
        fields.end(faults);
        let _in_memory = out.write_record(row);
    }
    String::from_utf8(out.into_inner().unwrap_or_default()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(body: impl AsRef<[u8]>) -> String {
        let problem = parse(body.as_ref()).unwrap_err();
        assert_eq!(problem.kind, Kind::Malformed);
        problem.detail
    }

    #[test]
    fn hostile_bodies_are_refused_in_words() {
        assert!(refused("[".repeat(1 << 20)).contains("nests more than 16 deep"));
        assert!(refused("{\"a\":".repeat(1_000)).contains("nests more than 16 deep"));
        assert!(refused(r#"{"a":1,"a":2}"#).contains("the key `a` stands twice"));
        assert!(refused(b"\xef\xbb\xbf{}").contains("byte order mark"));
        assert!(refused("NaN").contains("line 1 column 1"));
        assert!(refused("{}{}").contains("trailing"));
        assert!(refused("1e999").contains("out of range"));
        assert!(refused(b"\"\xff\"").contains("unicode"));
        assert!(refused("").contains("EOF"));
        assert!(refused(format!("[{}0]", "0,".repeat(20_000))).contains("more than 20000 values"));
        let long = format!("{{\"{0}\":1,\"{0}\":1}}", "k".repeat(100_000));
        assert!(refused(long).len() < 300);
    }

    #[test]
    fn all_faults_of_a_body_come_at_once_with_their_pointers() {
        let node = parse(br#"{"name":" ","order":1.5,"from":"yesterday","a/b~":1,"on":null}"#).unwrap();
        let mut faults = Faults::default();
        let mut fields = Fields::of(&node, "", &mut faults);
        assert_eq!(fields.need("name", name, &mut faults), None);
        assert_eq!(fields.need("order", integer, &mut faults), None);
        assert_eq!(fields.find("from", instant, &mut faults), None);
        assert_eq!(fields.find("on", boolean, &mut faults), None);
        assert_eq!(fields.need("tenant", name, &mut faults), None);
        fields.end(&mut faults);
        let shown: Vec<String> = faults
            .0
            .iter()
            .map(|fault| match &fault.at {
                crate::services::error::FaultAt::Body(pointer) => format!("{pointer} {}", fault.detail),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(
            shown,
            [
                "/name is empty",
                "/order is not a whole number of 64 bits",
                "/from `yesterday` is not an RFC 3339 instant",
                "/tenant is missing",
                "/a~1b~0 is not known here",
            ]
        );
    }

    #[test]
    fn whole_numbers_are_whole_however_they_are_written() {
        let read = |text: &str| integer(&parse(text.as_bytes()).unwrap());
        assert_eq!(read("12518.0"), Ok(12_518));
        assert_eq!(read("-9223372036854775808"), Ok(i64::MIN));
        assert!(read(&"9".repeat(40)).is_err());
        assert!(read("1.5").is_err());
        assert!(read("\"1\"").is_err());
    }
}
