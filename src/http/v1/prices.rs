//! Price books: published as JSON, or as the file that the command takes.

use std::collections::BTreeMap;

use crate::domain::device::SharingMode;
use crate::domain::ids::Name;
use crate::domain::money::{Currency, UnitPrice};
use crate::domain::period::Span;
use crate::domain::policy::{Basis, Policy};
use crate::domain::price::{Book, PriceVersion};
use crate::domain::units::Instant;
use crate::http::call::{Body, Call, Reply, segment};
use crate::http::json::{self, Faults, Fields, Node, cut, good};
use crate::http::problem::Problem;
use crate::services::error::Fault;
use crate::services::{browse, pricing};

pub(in crate::http) async fn list(mut call: Call) -> Result<Reply, Problem> {
    let page = call.only_page::<String>()?;
    let after = page.after.clone().unwrap_or_default();
    let found = browse::price_books(&call.platform()?, after, page.reach()).await?;
    let name = |each: &serde_json::Value| each["name"].as_str().unwrap_or_default().to_owned();
    Reply::page(page.cut(found, name))
}

pub(in crate::http) async fn get(mut call: Call) -> Result<Reply, Problem> {
    call.no_more_query()?;
    let revisions = browse::price_book(&call.platform()?, call.name("name")?).await?;
    let newest = revisions.first().and_then(|first| first["revision"].as_i64()).unwrap_or_default();
    Ok(Reply::json(&serde_json::json!({ "revisions": revisions }))?.with_etag(&newest.to_string()))
}

pub(in crate::http) async fn publish(mut call: Call) -> Result<Reply, Problem> {
    let file = call.file_name();
    call.no_more_query()?;
    let seen = match call.if_match.as_deref().map(|etag| etag.trim().trim_matches('"').parse()) {
        _ if call.if_match.as_deref().map(str::trim) == Some("*") => None,
        None => None,
        Some(Ok(revision)) => Some(revision),
        Some(Err(_)) => {
            return Err(Problem::invalid(vec![Fault::header("If-Match", "is no ETag of a price book")]));
        }
    };
    let platform = call.platform()?;
    let outcome = match std::mem::replace(&mut call.body, Body::Nothing) {
        Body::Text(text) => {
            pricing::publish(&platform, &file, pricing::version_of(&file, &text)?, seen).await?
        }
        Body::Json(node) => pricing::publish(&platform, &file, version(&node)?, seen).await?,
        Body::Nothing | Body::Files(_) | Body::Bytes(_) => return Err(Problem::not_found()),
    };
    let end = (outcome.effective.end() != Instant::MAX).then(|| outcome.effective.end().to_string());
    let shown = serde_json::json!({
        "name": outcome.name.as_str(),
        "revision": outcome.revision,
        "effective_from": outcome.effective.start().to_string(),
        "effective_to": end,
        "prices": outcome.prices,
        "is_new": outcome.is_new,
    });
    if outcome.is_new {
        Reply::created(&shown, format!("/api/v1/price-books/{}", segment(outcome.name.as_str())))
    } else {
        Reply::json(&shown)
    }
}

fn version(node: &Node) -> Result<PriceVersion, Problem> {
    fn currency(node: &Node) -> Result<Currency, String> {
        Currency::parse(&json::text(node)?).map_err(|error| cut(&error.to_string()))
    }
    let mut faults = Faults::default();
    let mut fields = Fields::of(node, "", &mut faults);
    let name = fields.need("name", json::name, &mut faults);
    let currency = fields.need("currency", currency, &mut faults);
    let from = fields.need("effective_from", json::instant, &mut faults);
    let to = fields.find("effective_to", json::instant, &mut faults).unwrap_or(Instant::MAX);
    let mut prices = BTreeMap::new();
    for book in Book::ALL {
        if let Some(node) = fields.node(book.word()) {
            let pointer = fields.at(book.word());
            prices.extend(book_prices(node, &pointer, book, &mut faults));
        }
    }
    let policy = match fields.node("policy") {
        Some(node) => policy(node, &fields.at("policy"), &mut faults),
        None => Policy::default(),
    };
    fields.end(&mut faults);
    if from.is_some_and(|from| to <= from) {
        faults.body("/effective_to", "does not lie after effective_from");
    }
    faults.check()?;
    let effective = Span::clamped(good(from)?, to);
    Ok(PriceVersion { name: good(name)?, revision: 1, effective, currency: good(currency)?, prices, policy })
}

fn book_prices(
    node: &Node,
    pointer: &str,
    book: Book,
    faults: &mut Faults,
) -> BTreeMap<(Book, Name), UnitPrice> {
    fn price(node: &Node) -> Result<UnitPrice, String> {
        UnitPrice::parse(&json::text(node)?).map_err(|error| cut(&error.to_string()))
    }
    let Node::Object(entries) = node else {
        Fields::of(node, pointer, faults);
        return BTreeMap::new();
    };
    let mut fields = Fields::of(node, pointer, faults);
    let mut prices = BTreeMap::new();
    for (model, _) in entries {
        let at = fields.at(model);
        let value = fields.need(model, price, faults);
        match (Name::parse(model), value) {
            (Ok(name), Some(value)) => {
                if prices.insert((book, name), value).is_some() {
                    faults.body(&at, "stands twice, but for white space");
                }
            }
            (Err(error), _) => faults.body(&at, format!("as a model {error}")),
            (Ok(_), None) => {}
        }
    }
    prices
}

fn policy(node: &Node, pointer: &str, faults: &mut Faults) -> Policy {
    fn basis(node: &Node) -> Result<Basis, String> {
        Basis::parse(&json::text(node)?).map_err(|error| error.to_string())
    }
    let mut fields = Fields::of(node, pointer, faults);
    let word = fields.find("weighting", json::text, faults).unwrap_or_else(|| "blended".to_owned());
    let alpha = fields.find("alpha", json::text, faults);
    let mut policy = Policy {
        entitled: fields.find("entitled", json::boolean, faults).unwrap_or_default(),
        reserves_powered_off: fields.find("reserve_powered_off", json::boolean, faults).unwrap_or_default(),
        ..Policy::default()
    };
    if let Some(node) = fields.node("basis") {
        let at = fields.at("basis");
        let mut by_mode = Fields::of(node, &at, faults);
        for mode in SharingMode::ALL {
            match by_mode.find(mode.word(), basis, faults) {
                // What is said by default is not told apart from what is not said.
                Some(Basis::Allocation) | None => {}
                Some(basis @ (Basis::Usage | Basis::Larger)) => {
                    policy.basis.insert(mode, basis);
                }
            }
        }
        by_mode.end(faults);
    }
    let weighting = pricing::weighting(&word, alpha.as_deref());
    match weighting {
        Ok(weighting) => policy.weighting = weighting,
        Err((field, reason)) => faults.body(&fields.at(field), cut(&reason)),
    }
    fields.end(faults);
    policy
}
