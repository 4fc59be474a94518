//! Price books: read from a file, checked, published; what they price is summed again.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::ctx::{Changed, Platform, Record};
use super::derive::mark_all_homes;
use super::error::ServiceError;
use super::plain;
use crate::domain::device::SharingMode;
use crate::domain::ids::Name;
use crate::domain::money::{Currency, UnitPrice};
use crate::domain::period::Span;
use crate::domain::policy::{Basis, Policy, Weighting};
use crate::domain::price::{Book, PriceVersion};
use crate::domain::units::Instant;
use crate::store::installation::Lock;
use crate::store::marks::MarkKind;
use crate::store::{installation, prices, unit};
use crate::wire::body;

/// A price file. Prices are decimal strings: a bare number would be read as a float.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PriceFile {
    name: String,
    currency: String,
    effective_from: String,
    effective_to: Option<String>,
    #[serde(default)]
    cost: BTreeMap<String, String>,
    #[serde(default)]
    charge: BTreeMap<String, String>,
    #[serde(default)]
    policy: PolicyTable,
}

/// What decides shares; what is not named is as by default.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct PolicyTable {
    weighting: Option<String>,
    alpha: Option<String>,
    #[serde(default)]
    basis: BTreeMap<String, String>,
    #[serde(default)]
    entitled: bool,
    #[serde(default)]
    reserve_powered_off: bool,
}

impl PolicyTable {
    /// The policy, or which field cannot be read and why.
    fn read(&self) -> Result<Policy, String> {
        let word = self.weighting.as_deref().unwrap_or("blended");
        let weighting = weighting(word, self.alpha.as_deref())
            .map_err(|(field, reason)| format!("policy.{field} {reason}"))?;
        let mut basis = BTreeMap::new();
        for (mode, word) in &self.basis {
            let at = format!("policy.basis.{mode}");
            let mode = SharingMode::parse(mode).map_err(|error| format!("{at}: {error}"))?;
            let word = Basis::parse(word).map_err(|error| format!("{at} {error}"))?;
            // What is said by default is not told apart from what is not said.
            if word != Basis::Allocation {
                basis.insert(mode, word);
            }
        }
        Ok(Policy {
            weighting,
            basis,
            entitled: self.entitled,
            reserves_powered_off: self.reserve_powered_off,
        })
    }
}

/// A decimal from 0 to 1 with at most six digits behind the point, in millionths.
fn read_alpha(text: &str) -> Result<u32, String> {
    let scaled = UnitPrice::parse(text).map_err(|error| error.to_string())?.scaled();
    if scaled % 100 != 0 {
        return Err("has more than 6 decimals".to_owned());
    }
    match u32::try_from(scaled / 100) {
        Ok(ppm @ 0..=1_000_000) => Ok(ppm),
        Ok(_) | Err(_) => Err("is not between 0 and 1".to_owned()),
    }
}

/// Reads how compute and memory make one weight: the word, and for `blended` the share of compute.
///
/// # Errors
/// The field that cannot be taken, and why.
pub fn weighting(word: &str, alpha: Option<&str>) -> Result<Weighting, (&'static str, String)> {
    let alpha_ppm = match alpha {
        Some(_) if word != "blended" => {
            return Err(("alpha", format!("is given, but weighting {word} has none")));
        }
        Some(text) => read_alpha(text).map_err(|reason| ("alpha", format!("`{text}` {reason}")))?,
        None => 500_000,
    };
    Weighting::parse(word, alpha_ppm).map_err(|error| ("weighting", error.to_string()))
}

/// What loading a price file did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PriceOutcome {
    /// The version's name.
    #[serde(with = "plain::name")]
    pub name: Name,
    /// Its revision.
    pub revision: i64,
    /// When it holds.
    #[serde(with = "plain::span")]
    pub effective: Span,
    /// How many prices it has.
    pub prices: usize,
    /// Whether it was published now; if not, the same had been published before.
    pub is_new: bool,
}

/// Loads a price file. The same content again changes nothing; other content under the same name replaces it
/// as its next revision.
///
/// # Errors
/// [`ServiceError::File`] names the field that cannot be read; [`ServiceError::Price`] the rule that is broken.
pub async fn load(platform: &Platform, file: &str, text: &str) -> Result<PriceOutcome, ServiceError> {
    publish(platform, file, version_of(file, text)?, None).await
}

/// The version that a price file says.
///
/// # Errors
/// [`ServiceError::File`] names the field that cannot be read.
pub fn version_of(file: &str, text: &str) -> Result<PriceVersion, ServiceError> {
    read(file, text)
}

/// Publishes a version. The same content again changes nothing; other content under the same name replaces it as its
/// next revision: of the one that the publisher has seen, where that is said. `file` is what it is called in errors.
///
/// # Errors
/// [`ServiceError::Price`] names the rule that is broken; [`ServiceError::ChangedMeanwhile`].
pub async fn publish(
    platform: &Platform,
    file: &str,
    version: PriceVersion,
    seen: Option<i64>,
) -> Result<PriceOutcome, ServiceError> {
    let file = file.to_owned();
    let hash = content_hash(&version)?;
    let (zone, currency, now) = (platform.zone(), platform.installation.currency, platform.now());
    let work = Arc::new(version);
    platform
        .change(move |scope, tx| {
            let (version, file) = (Arc::clone(&work), file.clone());
            unit(async move {
                // Of two that publish at once, the second sees the first.
                installation::lock(scope, tx, Lock::Alone).await?;
                let mut version = (*version).clone();
                let newest = prices::newest(scope, tx, version.name.as_str()).await?;
                if seen.is_some_and(|seen| seen != newest.as_ref().map_or(0, |(revision, _)| *revision)) {
                    let name = version.name.to_string();
                    return Err(ServiceError::ChangedMeanwhile { what: "price book", name });
                }
                if let Some((revision, known)) = newest {
                    version.revision = revision;
                    if known == hash {
                        return Ok(Changed { outcome: outcome_of(&version, false), records: vec![] });
                    }
                    version.revision += 1;
                }
                let book = prices::book(scope, tx).await?;
                book.admit(&version, zone, currency)
                    .map_err(|source| ServiceError::Price { file, source })?;
                prices::publish(scope, tx, &version, &hash, now).await?;
                // Both the hours that gain a price and those that lose one, in the transaction that does it.
                let replaced = book.versions().iter().find(|other| other.name == version.name);
                // Where a policy comes or goes, shares may change, and not the prices alone.
                let is_plain = |version: &PriceVersion| version.policy == Policy::default();
                let kind = if is_plain(&version) && replaced.is_none_or(is_plain) {
                    MarkKind::Price
                } else {
                    MarkKind::Part
                };
                for span in replaced.map(|other| other.effective).into_iter().chain([version.effective]) {
                    mark_all_homes(scope, tx, zone, kind, span).await?;
                }
                let record = Record {
                    action: "price_book.publish",
                    subject: version.name.to_string(),
                    before: replaced.map(version_json),
                    after: Some(version_json(&version)),
                };
                Ok(Changed { outcome: outcome_of(&version, true), records: vec![record] })
            })
        })
        .await
}

/// A version as the record and the API show it.
#[must_use]
pub fn version_json(version: &PriceVersion) -> Value {
    let open = |instant: Instant, edge: Instant| (instant != edge).then(|| instant.to_string());
    let book = |book: Book| -> BTreeMap<String, String> {
        let of_book = version.prices.iter().filter(|((of, _), _)| *of == book);
        of_book.map(|((_, key), price)| (key.to_string(), price.to_string())).collect()
    };
    let policy = &version.policy;
    let basis: BTreeMap<&str, &str> =
        policy.basis.iter().map(|(mode, basis)| (mode.word(), basis.word())).collect();
    let alpha = match policy.weighting {
        Weighting::Blended { alpha_ppm } => Some(alpha_text(alpha_ppm)),
        Weighting::Compute | Weighting::Memory | Weighting::Dominant => None,
    };
    json!({
        "name": version.name.as_str(),
        "revision": version.revision,
        "currency": version.currency.to_string(),
        "effective_from": version.effective.start().to_string(),
        "effective_to": open(version.effective.end(), Instant::MAX),
        "cost": book(Book::Cost),
        "charge": book(Book::Charge),
        "policy": {
            "weighting": policy.weighting.word(),
            "alpha": alpha,
            "basis": basis,
            "entitled": policy.entitled,
            "reserve_powered_off": policy.reserves_powered_off,
        },
    })
}

/// Millionths as a decimal without trailing zeros.
fn alpha_text(ppm: u32) -> String {
    let text = format!("{}.{:06}", ppm / 1_000_000, ppm % 1_000_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn outcome_of(version: &PriceVersion, is_new: bool) -> PriceOutcome {
    PriceOutcome {
        name: version.name.clone(),
        revision: version.revision,
        effective: version.effective,
        prices: version.prices.len(),
        is_new,
    }
}

fn read(file: &str, text: &str) -> Result<PriceVersion, ServiceError> {
    let refused = |reason: String| ServiceError::File { file: file.to_owned(), reason };
    let parsed: PriceFile =
        toml::from_str(text).map_err(|error| refused(error.to_string().trim_end().to_owned()))?;
    let name = Name::parse(&parsed.name).map_err(|error| refused(format!("name {error}")))?;
    let instant =
        |field: &str, text: &str| Instant::parse(text).map_err(|error| refused(format!("{field} {error}")));
    let start = instant("effective_from", &parsed.effective_from)?;
    let end = match &parsed.effective_to {
        Some(text) => instant("effective_to", text)?,
        None => Instant::MAX,
    };
    let effective = Span::new(start, end).map_err(|error| refused(format!("effective_to {error}")))?;
    let mut all = BTreeMap::new();
    for (book, prices) in [(Book::Cost, &parsed.cost), (Book::Charge, &parsed.charge)] {
        for (model, price) in prices {
            let at = format!("{}.{model:?}", book.word());
            let key = Name::parse(model).map_err(|error| refused(format!("{at} {error}")))?;
            let price = UnitPrice::parse(price).map_err(|error| refused(format!("{at} {error}")))?;
            all.insert((book, key), price);
        }
    }
    let currency = Currency::parse(&parsed.currency).map_err(|error| refused(format!("currency {error}")))?;
    let policy = parsed.policy.read().map_err(refused)?;
    Ok(PriceVersion { name, revision: 1, effective, currency, prices: all, policy })
}

/// SHA-256 of what a version says, its revision apart: the same prices in another layout are the same.
fn content_hash(version: &PriceVersion) -> Result<[u8; 32], ServiceError> {
    let (from, to) = (version.effective.start().micros(), version.effective.end().micros());
    let mut text = format!("{}\0{from}\0{to}\0{}\0", version.name, version.currency);
    for ((book, key), price) in &version.prices {
        text.push_str(&format!("{}\0{key}\0{}\0", book.word(), price.scaled()));
    }
    // Nothing where it is the default, so that files from before policies are the same as ever.
    text.push_str(&prices::policy_text(&version.policy)?);
    Ok(body::hash(text.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "name = \"a\"\ncurrency = \"USD\"\neffective_from = \"2026-06-01T00:00:00Z\"\n[cost]\nA10 = \"1.25\"\n";

    #[test]
    fn a_price_file_is_read_and_its_faults_are_named() {
        let check = |from: &str, to: &str, part: &str| {
            let error = read("p.toml", &GOOD.replace(from, to)).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        };
        assert_eq!(read("p.toml", GOOD).unwrap().prices.len(), 1);
        check("\"1.25\"", "1.25", "invalid type");
        check("\"1.25\"", "\"-1\"", "cost.\"A10\" `-1` is negative");
        check("\"1.25\"", "\"0.000000001\"", "more than 8 decimals");
        check("USD", "usd", "currency `usd`");
        check("2026-06-01T00:00:00Z", "2026-06-01", "effective_from `2026-06-01`");
        check("[cost]", "[costs]", "unknown field `costs`");
    }
}
