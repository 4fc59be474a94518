//! Price books: effective-dated prices, changed on billing-hour edges only.
//!
//! Always true here: versions of one book do not overlap, and a hole between them is *unpriced*, never zero.

use std::collections::BTreeMap;
use std::fmt;

use super::ids::Name;
use super::money::{Currency, UnitPrice};
use super::period::{BillingZone, Span};
use super::policy::Policy;
use super::units::Instant;

/// Which of the two books a price belongs to (DESIGN §5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Book {
    /// What the fleet costs.
    Cost,
    /// What tenants are billed.
    Charge,
}

impl Book {
    /// Both books.
    pub const ALL: [Self; 2] = [Self::Cost, Self::Charge];

    /// The book's word.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Cost => "cost",
            Self::Charge => "charge",
        }
    }
}

/// A published version of prices. Its natural key is (name, revision).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PriceVersion {
    /// The name that its author gave it.
    pub name: Name,
    /// 1 for the first publication under the name; a mended one replaces it under the next number.
    pub revision: i64,
    /// The hours for which it holds.
    pub effective: Span,
    /// The book currency.
    pub currency: Currency,
    /// Price of one GPU-hour by book and model.
    pub prices: BTreeMap<(Book, Name), UnitPrice>,
    /// What decides shares in these hours.
    pub policy: Policy,
}

/// A reference to one version's price for one key; the key of amounts in sums.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Item {
    /// The version's name.
    pub version: Name,
    /// The version's revision.
    pub revision: i64,
    /// The key within the version: the model.
    pub key: Name,
}

impl fmt::Display for Item {
    /// `name#revision/key`: the form in which sums keep it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}/{}", self.version, self.revision, self.key)
    }
}

/// Why a version is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PriceError {
    /// A version may begin and end on billing-hour edges only.
    #[error("{field} {instant} is not on an edge of a billing hour in {zone}")]
    NotOnHourEdge {
        /// Which end.
        field: &'static str,
        /// The instant as given.
        instant: Instant,
        /// The billing zone.
        zone: BillingZone,
    },
    /// The span holds no hour.
    #[error("the price book is effective for no hour: {span}")]
    NeverEffective {
        /// The span as given.
        span: Span,
    },
    /// Another version holds for some of the hours.
    #[error(
        "`{name}` would hold at the same time as `{other}` ({other_span}); end one before the other begins"
    )]
    Overlaps {
        /// The version that is refused.
        name: Name,
        /// The version that is there.
        other: Name,
        /// When that one holds.
        other_span: Span,
    },
    /// Not the installation's currency.
    #[error("prices are in {given}, but this installation's book currency is {book}")]
    WrongCurrency {
        /// As given.
        given: Currency,
        /// The installation's.
        book: Currency,
    },
    /// Nothing in it.
    #[error("the price book holds no price")]
    Empty,
    /// Two items could have one text.
    #[error("the price book's name `{name}` holds `#` or `/`, which items use")]
    ReservedCharacter {
        /// The name as given.
        name: Name,
    },
}

/// All versions that hold, in order of time.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PriceBook {
    versions: Vec<PriceVersion>,
}

impl PriceBook {
    /// A book from versions as stored; each holds at its own time.
    #[must_use]
    pub fn new(mut versions: Vec<PriceVersion>) -> Self {
        versions.sort_by(|a, b| (a.effective, &a.name).cmp(&(b.effective, &b.name)));
        Self { versions }
    }

    /// Checks a version before it is published beside those that are there.
    ///
    /// A version of the same name is the one that it replaces, so only others can be in its way.
    ///
    /// # Errors
    /// [`PriceError`] says which rule it breaks.
    pub fn admit(
        &self,
        next: &PriceVersion,
        zone: BillingZone,
        currency: Currency,
    ) -> Result<(), PriceError> {
        if next.currency != currency {
            return Err(PriceError::WrongCurrency { given: next.currency, book: currency });
        }
        if next.name.as_str().contains(['#', '/']) {
            return Err(PriceError::ReservedCharacter { name: next.name.clone() });
        }
        if next.prices.is_empty() {
            return Err(PriceError::Empty);
        }
        if next.effective.is_empty() {
            return Err(PriceError::NeverEffective { span: next.effective });
        }
        for (field, instant) in
            [("effective_from", next.effective.start()), ("effective_to", next.effective.end())]
        {
            let is_open = instant == Instant::MIN || instant == Instant::MAX;
            if !is_open && !zone.is_hour_edge(instant) {
                return Err(PriceError::NotOnHourEdge { field, instant, zone });
            }
        }
        match self
            .versions
            .iter()
            .find(|other| other.name != next.name && other.effective.meets(next.effective))
        {
            Some(other) => Err(PriceError::Overlaps {
                name: next.name.clone(),
                other: other.name.clone(),
                other_span: other.effective,
            }),
            None => Ok(()),
        }
    }

    /// The item that prices a model in the billing hour that begins at `hour`; none: unpriced.
    #[must_use]
    pub fn item(&self, book: Book, model: &Name, hour: Instant) -> Option<Item> {
        let version = self.versions.iter().find(|version| version.effective.contains(hour))?;
        version.prices.contains_key(&(book, model.clone())).then(|| Item {
            version: version.name.clone(),
            revision: version.revision,
            key: model.clone(),
        })
    }

    /// What decides shares in the billing hour that begins at `hour`; the defaults where no version holds.
    #[must_use]
    pub fn policy(&self, hour: Instant) -> Policy {
        let version = self.versions.iter().find(|version| version.effective.contains(hour));
        version.map(|version| version.policy.clone()).unwrap_or_default()
    }

    /// The versions in order of time.
    #[must_use]
    pub fn versions(&self) -> &[PriceVersion] {
        &self.versions
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(name: &'static str, from: &str, to: Option<&str>) -> PriceVersion {
        let start = Instant::parse(from).unwrap();
        let end = to.map_or(Instant::MAX, |to| Instant::parse(to).unwrap());
        PriceVersion {
            name: Name::fixed(name),
            revision: 1,
            effective: Span::clamped(start, end),
            currency: Currency::parse("USD").unwrap(),
            prices: [((Book::Cost, Name::fixed("A10")), UnitPrice::parse("1.2").unwrap())]
                .into_iter()
                .collect(),
            policy: Policy::default(),
        }
    }

    #[test]
    fn overlaps_are_refused_and_holes_are_unpriced() {
        let usd = Currency::parse("USD").unwrap();
        let first = version("a", "2026-06-01T00:00:00Z", Some("2026-07-01T00:00:00Z"));
        let book = PriceBook::new(vec![first.clone()]);
        let admit = |next: &PriceVersion| book.admit(next, BillingZone::UTC, usd);
        assert!(matches!(
            admit(&version("b", "2026-06-15T00:00:00Z", None)),
            Err(PriceError::Overlaps { .. })
        ));
        assert_eq!(admit(&version("b", "2026-08-01T00:00:00Z", None)), Ok(()));
        assert_eq!(admit(&version("a", "2026-05-01T00:00:00Z", None)), Ok(()), "the same name replaces");
        let at = |text: &str| book.item(Book::Cost, &Name::fixed("A10"), Instant::parse(text).unwrap());
        assert_eq!(at("2026-06-30T23:00:00Z").unwrap().to_string(), "a#1/A10");
        assert_eq!(at("2026-07-01T00:00:00Z"), None);
        assert_eq!(book.item(Book::Cost, &Name::fixed("G2"), first.effective.start()), None);
        assert_eq!(book.item(Book::Charge, &Name::fixed("A10"), first.effective.start()), None);
    }

    #[test]
    fn prices_change_on_hour_edges_only() {
        let usd = Currency::parse("USD").unwrap();
        let book = PriceBook::default();
        let kolkata = BillingZone::parse("Asia/Kolkata").unwrap();
        let next = version("a", "2026-06-01T00:00:00Z", None);
        assert!(matches!(book.admit(&next, kolkata, usd), Err(PriceError::NotOnHourEdge { .. })));
        assert_eq!(book.admit(&version("a", "2026-05-31T18:30:00Z", None), kolkata, usd), Ok(()));
    }
}
