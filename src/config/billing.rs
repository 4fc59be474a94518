//! Where days begin, and the book currency.

use serde::{Deserialize, Deserializer, de::Error};

use crate::domain::money::Currency;
use crate::domain::period::BillingZone;

/// `[billing]`: fixed for an installation when its first batch is accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Billing {
    /// An IANA name; not set: what the installation has, and UTC for a new one.
    #[serde(deserialize_with = "zone")]
    pub zone: Option<BillingZone>,
    /// An ISO 4217 code; not set: what the installation has, and USD for a new one.
    #[serde(deserialize_with = "currency")]
    pub currency: Option<Currency>,
}

fn zone<'de, D: Deserializer<'de>>(input: D) -> Result<Option<BillingZone>, D::Error> {
    BillingZone::parse(&String::deserialize(input)?).map(Some).map_err(D::Error::custom)
}

fn currency<'de, D: Deserializer<'de>>(input: D) -> Result<Option<Currency>, D::Error> {
    Currency::parse(&String::deserialize(input)?).map(Some).map_err(D::Error::custom)
}
