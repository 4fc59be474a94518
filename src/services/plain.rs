//! Domain values as plain text inside outcomes, which are kept as JSON to answer repeated requests.

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serializer};

use crate::domain::ids::Name;
use crate::domain::period::Span;
use crate::domain::units::Instant;

/// A name.
pub(super) mod name {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(name: &Name, out: S) -> Result<S::Ok, S::Error> {
        out.serialize_str(name.as_str())
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(input: D) -> Result<Name, D::Error> {
        Name::parse(&String::deserialize(input)?).map_err(D::Error::custom)
    }
}

/// A span, as its edges in microseconds.
pub(super) mod span {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(span: &Span, out: S) -> Result<S::Ok, S::Error> {
        serde::Serialize::serialize(&(span.start().micros(), span.end().micros()), out)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(input: D) -> Result<Span, D::Error> {
        let (start, end) = <(i64, i64)>::deserialize(input)?;
        Span::new(Instant::from_micros(start), Instant::from_micros(end)).map_err(D::Error::custom)
    }
}
