//! Agents: enrolment, inventories, and who there is.

use serde_json::json;

use crate::domain::device::Device;
use crate::domain::ids::Name;
use crate::domain::units::Instant;
use crate::http::call::{Body, Call, Reply};
use crate::http::json::{self, Faults, Fields, Node, good};
use crate::http::problem::{Kind, Problem};
use crate::services::agents::{self, ENROLMENT_SECONDS, FoundDevice, NewEnrolment, NewInventory, Newcomer};
use crate::services::error::ServiceError;
use crate::wire::agent_v1::DEVICES_MAX;
use crate::wire::signature::BatchVerifier;
use crate::wire::token;

pub(in crate::http) async fn list(mut call: Call) -> Result<Reply, Problem> {
    let page = call.only_page::<String>()?;
    let after = page.after.clone().unwrap_or_default();
    let found = agents::list(&call.platform()?, after, page.reach()).await?;
    Reply::page(page.cut(found, |each| each.id.clone()))
}

pub(in crate::http) async fn get(mut call: Call) -> Result<Reply, Problem> {
    call.no_more_query()?;
    Reply::json(&agents::find(&call.platform()?, call.name("agent")?.as_str()).await?)
}

pub(in crate::http) async fn revoke(mut call: Call) -> Result<Reply, Problem> {
    call.no_more_query()?;
    let revoked = agents::revoke(&call.platform()?, call.name("agent")?.as_str()).await?;
    call.service.agents.forget();
    Reply::json(&revoked)
}

pub(in crate::http) async fn list_enrolments(mut call: Call) -> Result<Reply, Problem> {
    let page = call.only_page::<String>()?;
    let after = page.after.clone().unwrap_or_default();
    let found = agents::enrolments(&call.platform()?, after, page.reach()).await?;
    Reply::page(page.cut(found, |each| each.id.clone()))
}

pub(in crate::http) async fn create_enrolment(mut call: Call) -> Result<Reply, Problem> {
    call.no_more_query()?;
    let node = call.node()?;
    let mut faults = Faults::default();
    let mut fields = Fields::of(&node, "", &mut faults);
    let nodes = fields.need("nodes", json::name, &mut faults);
    let since = fields.find("since", json::instant, &mut faults);
    let replaces = fields.find("replaces", json::boolean, &mut faults).unwrap_or_default();
    let seconds = fields.find("seconds", json::integer, &mut faults).unwrap_or(ENROLMENT_SECONDS);
    fields.end(&mut faults);
    faults.check()?;
    let new = NewEnrolment { nodes: good(nodes)?, since, replaces, seconds };
    let minted = call.service.mint()?;
    let made = agents::make_enrolment(&call.platform()?, new, &minted).await?;
    let mut shown = serde_json::to_value(&made).unwrap_or_default();
    if let Some(fields) = shown.as_object_mut() {
        // A repeated request finds the token of the first, whose text is known to nobody any more.
        let text = (made.id == minted.presented.id).then_some(minted.text);
        fields.insert("secret".to_owned(), text.into());
    }
    let location = "/api/v1/enrolment-tokens".to_owned();
    Ok(Reply::created(&shown, location)?.with("Cache-Control", "no-store"))
}

pub(in crate::http) async fn enrol(mut call: Call) -> Result<Reply, Problem> {
    call.no_more_query()?;
    let node = call.node()?;
    let mut faults = Faults::default();
    let mut fields = Fields::of(&node, "", &mut faults);
    let presented = fields.need("token", json::text, &mut faults);
    let name = fields.need("node", json::name, &mut faults);
    let key = fields.need("public_key", public_key, &mut faults);
    let version = fields.need("version", json::text, &mut faults);
    fields.end(&mut faults);
    faults.check()?;
    let Some(presented) = token::read(&good(presented)?) else {
        return Err(ServiceError::EnrolmentRefused.into());
    };
    let id = uuid::Builder::from_random_bytes(call.service.random_u128()?.to_be_bytes()).into_uuid();
    let newcomer = Newcomer {
        presented,
        node: good(name)?,
        key: good(key)?,
        version: good(version)?,
        id: id.to_string(),
    };
    // Nobody is known yet on whose behalf this could be done.
    let platform = call.service.platform.on_behalf(format!("agent of {}", newcomer.node), call.asked());
    let enrolled = agents::enrol(&platform, newcomer).await;
    // An agent that this one replaces is known no longer.
    call.service.agents.forget();
    Reply::json(&enrolled?)
}

fn public_key(node: &Node) -> Result<BatchVerifier, String> {
    let text = json::text(node)?;
    let bytes = text.is_ascii().then(|| {
        let pairs = text.as_bytes().chunks(2);
        pairs.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap_or_default(), 16)).collect()
    });
    let Some(Ok::<Vec<u8>, _>(bytes)) = bytes.filter(|_| text.len() == 64) else {
        return Err("is not 32 bytes in hexadecimal".to_owned());
    };
    BatchVerifier::new(&bytes).map_err(|error| error.to_string())
}

pub(in crate::http) async fn put_inventory(mut call: Call) -> Result<Reply, Problem> {
    call.no_more_query()?;
    let (platform, agent, _signed) = call.own_node()?;
    let inventory = inventory(&call.node()?)?;
    Reply::json(&agents::take_inventory(&platform, &agent, inventory).await?)
}

fn inventory(node: &Node) -> Result<NewInventory, Problem> {
    let mut faults = Faults::default();
    let mut fields = Fields::of(node, "", &mut faults);
    let counter = fields.need("counter", counter, &mut faults);
    let at = fields.need("at", micros, &mut faults);
    let version = fields.need("version", json::text, &mut faults);
    let driver = fields.find("driver", json::text, &mut faults);
    if fields.node("devices").is_none() {
        faults.body("/devices", "is missing");
    }
    let mut devices = Vec::new();
    for (pointer, each) in fields.list("devices", DEVICES_MAX, &mut faults) {
        let mut fields = Fields::of(each, &pointer, &mut faults);
        let uuid = fields.need("uuid", json::name, &mut faults);
        let model = fields.need("model", json::name, &mut faults);
        let memory_mib = fields.find("memory_mib", memory, &mut faults);
        let index = fields.find("index", index, &mut faults);
        let pci = fields.find("pci", json::name, &mut faults);
        let serial = fields.find("serial", json::name, &mut faults);
        fields.end(&mut faults);
        if let (Some(uuid), Some(model)) = (uuid, model) {
            devices.push(FoundDevice { device: Device { uuid, model }, memory_mib, index, pci, serial });
        }
    }
    fields.end(&mut faults);
    let mut seen: Vec<&Name> = devices.iter().map(|each| &each.device.uuid).collect();
    seen.sort_unstable();
    if let Some(twice) =
        seen.windows(2).find(|pair| pair.first() == pair.last()).and_then(|pair| pair.first())
    {
        faults.body("/devices", format!("has {twice} twice"));
    }
    faults.check()?;
    let (at, version, counter) = (good(at)?, good(version)?, good(counter)?);
    let shown: Vec<serde_json::Value> = devices
        .iter()
        .map(|each| {
            json!({
                "uuid": each.device.uuid.as_str(), "model": each.device.model.as_str(), "memory_mib": each.memory_mib,
                "index": each.index, "pci": each.pci.as_ref().map(Name::as_str),
                "serial": each.serial.as_ref().map(Name::as_str),
            })
        })
        .collect();
    let message =
        json!({ "at": at.to_string(), "version": version, "driver": driver, "devices": shown }).to_string();
    Ok(NewInventory { counter, at, version, devices, message })
}

fn within(node: &Node, range: std::ops::RangeInclusive<i64>) -> Result<i64, String> {
    match json::integer(node)? {
        number if range.contains(&number) => Ok(number),
        _ => Err(format!("is not from {} to {}", range.start(), range.end())),
    }
}

fn counter(node: &Node) -> Result<i64, String> {
    within(node, 1..=i64::MAX)
}

fn memory(node: &Node) -> Result<i64, String> {
    within(node, 1..=1 << 30)
}

fn index(node: &Node) -> Result<i64, String> {
    within(node, 0..=65_535)
}

fn micros(node: &Node) -> Result<Instant, String> {
    within(node, Instant::MIN.micros()..=Instant::MAX.micros()).map(Instant::from_micros)
}

/// A body as it came.
pub(super) fn bytes(call: &mut Call) -> Result<Vec<u8>, Problem> {
    match std::mem::replace(&mut call.body, Body::Nothing) {
        Body::Bytes(bytes) => Ok(bytes),
        Body::Nothing | Body::Json(_) | Body::Text(_) | Body::Files(_) => {
            Err(Problem::new(Kind::UnsupportedMediaType, "a batch is needed"))
        }
    }
}
