//! Price versions and their items.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::fleet::{name_of, span_of, stored_end};
use super::{PlatformScope, ReadTx, StoreError, WriteTx};
use crate::domain::device::SharingMode;
use crate::domain::money::{Currency, UnitPrice};
use crate::domain::policy::{Basis, Policy, Weighting};
use crate::domain::price::{Book, Item, PriceBook, PriceVersion};
use crate::domain::units::Instant;

fn corrupt(error: impl std::fmt::Display) -> StoreError {
    StoreError::corrupt("a price version", error)
}

/// A policy as its canonical text; the defaults are the empty one.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredPolicy {
    weighting: String,
    alpha_ppm: u32,
    basis: BTreeMap<String, String>,
    entitled: bool,
    reserves_powered_off: bool,
}

/// The canonical text of a policy: equal policies have equal texts.
///
/// # Errors
/// [`StoreError::Corrupt`], never for values of the domain.
pub fn policy_text(policy: &Policy) -> Result<String, StoreError> {
    if *policy == Policy::default() {
        return Ok(String::new());
    }
    let alpha_ppm = match policy.weighting {
        Weighting::Blended { alpha_ppm } => alpha_ppm,
        Weighting::Compute | Weighting::Memory | Weighting::Dominant => 0,
    };
    let basis = policy.basis.iter().map(|(mode, basis)| (mode.word().to_owned(), basis.word().to_owned()));
    let stored = StoredPolicy {
        weighting: policy.weighting.word().to_owned(),
        alpha_ppm,
        basis: basis.collect(),
        entitled: policy.entitled,
        reserves_powered_off: policy.reserves_powered_off,
    };
    serde_json::to_string(&stored).map_err(corrupt)
}

fn policy_of(text: &str) -> Result<Policy, StoreError> {
    if text.is_empty() {
        return Ok(Policy::default());
    }
    let stored: StoredPolicy = serde_json::from_str(text).map_err(corrupt)?;
    let basis = stored
        .basis
        .iter()
        .map(|(mode, basis)| {
            Ok((SharingMode::parse(mode).map_err(corrupt)?, Basis::parse(basis).map_err(corrupt)?))
        })
        .collect::<Result<_, StoreError>>()?;
    Ok(Policy {
        weighting: Weighting::parse(&stored.weighting, stored.alpha_ppm).map_err(corrupt)?,
        basis,
        entitled: stored.entitled,
        reserves_powered_off: stored.reserves_powered_off,
    })
}

/// The versions that hold: published and not replaced.
///
/// # Errors
/// [`StoreError`].
pub async fn book(_scope: &PlatformScope, tx: &ReadTx) -> Result<PriceBook, StoreError> {
    let sql = "SELECT v.name, v.revision, v.from_us, v.to_us, v.currency, v.policy, i.book, i.item_key, i.unit_price \
               FROM price_version v JOIN price_item i ON i.name = v.name AND i.revision = v.revision \
               WHERE v.replaced_us IS NULL ORDER BY v.name, v.revision, i.book, i.item_key";
    let mut versions: Vec<PriceVersion> = Vec::new();
    for row in tx.all(sql, vec![]).await? {
        let (name, revision) = (name_of(&row.get::<String>(0)?)?, row.get(1)?);
        if versions.last().is_none_or(|last| (&last.name, last.revision) != (&name, revision)) {
            versions.push(PriceVersion {
                name,
                revision,
                effective: span_of(row.get(2)?, row.get(3)?),
                currency: Currency::parse(&row.get::<String>(4)?).map_err(corrupt)?,
                prices: BTreeMap::new(),
                policy: policy_of(&row.get::<String>(5)?)?,
            });
        }
        let word: String = row.get(6)?;
        let book = Book::ALL.into_iter().find(|book| book.word() == word).ok_or_else(|| corrupt(word))?;
        let key = (book, name_of(&row.get::<String>(7)?)?);
        if let Some(last) = versions.last_mut() {
            last.prices.insert(key, UnitPrice::from_scaled(row.get(8)?));
        }
    }
    Ok(PriceBook::new(versions))
}

/// Unit prices of the cost book by item, as sums name them; of all versions, replaced ones too.
///
/// # Errors
/// [`StoreError`].
pub async fn cost_prices(
    _scope: &PlatformScope,
    tx: &ReadTx,
) -> Result<BTreeMap<String, UnitPrice>, StoreError> {
    let sql = "SELECT name, revision, item_key, unit_price FROM price_item WHERE book = 'cost'";
    let rows = tx.all(sql, vec![]).await?;
    rows.iter()
        .map(|row| {
            let (version, key) = (name_of(&row.get::<String>(0)?)?, name_of(&row.get::<String>(2)?)?);
            let item = Item { version, revision: row.get(1)?, key };
            Ok((item.to_string(), UnitPrice::from_scaled(row.get(3)?)))
        })
        .collect()
}

/// The newest revision of a name and the hash of its content, if there is one.
///
/// # Errors
/// [`StoreError`].
pub async fn newest(
    _scope: &PlatformScope,
    tx: &ReadTx,
    name: &str,
) -> Result<Option<(i64, Vec<u8>)>, StoreError> {
    let sql =
        "SELECT revision, content_hash FROM price_version WHERE name = $1 ORDER BY revision DESC LIMIT 1";
    tx.one(sql, vec![name.to_owned().into()]).await?.map(|row| Ok((row.get(0)?, row.get(1)?))).transpose()
}

/// Publishes a version; earlier revisions of its name are replaced.
///
/// # Errors
/// [`StoreError`].
pub async fn publish(
    _scope: &PlatformScope,
    tx: &WriteTx,
    version: &PriceVersion,
    content_hash: &[u8; 32],
    now: Instant,
) -> Result<(), StoreError> {
    let sql = "UPDATE price_version SET replaced_us = $2 WHERE name = $1 AND replaced_us IS NULL";
    tx.run(sql, vec![version.name.as_str().into(), now.micros().into()]).await?;
    let sql = "INSERT INTO price_version (name, revision, from_us, to_us, currency, content_hash, published_us, \
               replaced_us, policy) VALUES ($1, $2, $3, $4, $5, $6, $7, NULL, $8)";
    let values = vec![
        version.name.as_str().into(),
        version.revision.into(),
        version.effective.start().micros().into(),
        stored_end(version.effective.end()).into(),
        version.currency.to_string().into(),
        content_hash.to_vec().into(),
        now.micros().into(),
        policy_text(&version.policy)?.into(),
    ];
    tx.run(sql, values).await?;
    let rows = version
        .prices
        .iter()
        .map(|((book, key), price)| {
            let (name, revision) = (version.name.as_str().into(), version.revision.into());
            vec![name, revision, book.word().into(), key.as_str().into(), price.scaled().into()]
        })
        .collect();
    let columns = ["name", "revision", "book", "item_key", "unit_price"];
    tx.insert("price_item", &columns, rows, "").await.map(|_| ())
}

/// A version as published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Published {
    /// The version.
    pub version: PriceVersion,
    /// When.
    pub published: Instant,
    /// When a later revision of its name took its place.
    pub replaced: Option<Instant>,
}

/// Which versions are listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VersionsWanted {
    /// The revisions of a name, the newest first.
    Of(String),
    /// The newest revision of each name that comes after one, by name, at most so many.
    Newest {
        /// After which.
        after: String,
        /// At most so many.
        limit: i64,
    },
}

/// Published versions with their prices.
///
/// # Errors
/// [`StoreError`].
pub async fn list(
    _scope: &PlatformScope,
    tx: &ReadTx,
    wanted: &VersionsWanted,
) -> Result<Vec<Published>, StoreError> {
    let columns =
        "name, revision, from_us, to_us, currency, policy, published_us, replaced_us FROM price_version";
    let (sql, values) = match wanted {
        VersionsWanted::Of(name) => {
            (format!("SELECT {columns} WHERE name = $1 ORDER BY revision DESC"), vec![name.as_str().into()])
        }
        VersionsWanted::Newest { after, limit } => (
            format!("SELECT {columns} WHERE replaced_us IS NULL AND name > $1 ORDER BY name LIMIT $2"),
            vec![after.as_str().into(), (*limit).into()],
        ),
    };
    let mut listed = Vec::new();
    for row in tx.all(&sql, values).await? {
        let (name, revision): (String, i64) = (row.get(0)?, row.get(1)?);
        let sql = "SELECT book, item_key, unit_price FROM price_item WHERE name = $1 AND revision = $2";
        let mut prices = BTreeMap::new();
        for item in tx.all(sql, vec![name.as_str().into(), revision.into()]).await? {
            let word: String = item.get(0)?;
            let book = Book::ALL.into_iter().find(|book| book.word() == word).ok_or_else(|| corrupt(word))?;
            prices.insert((book, name_of(&item.get::<String>(1)?)?), UnitPrice::from_scaled(item.get(2)?));
        }
        listed.push(Published {
            version: PriceVersion {
                name: name_of(&name)?,
                revision,
                effective: span_of(row.get(2)?, row.get(3)?),
                currency: Currency::parse(&row.get::<String>(4)?).map_err(corrupt)?,
                prices,
                policy: policy_of(&row.get::<String>(5)?)?,
            },
            published: Instant::from_micros(row.get(6)?),
            replaced: row.get::<Option<i64>>(7)?.map(Instant::from_micros),
        });
    }
    Ok(listed)
}
