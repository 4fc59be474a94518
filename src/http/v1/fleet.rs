//! Nodes, pools, devices and their in-service intervals.

use crate::domain::ids::{Name, ScopeKind, ScopeName};
use crate::domain::units::Instant;
use crate::http::call::{Body, Call, Reply};
use crate::http::json::{self, Faults, Fields, Node, good};
use crate::http::problem::{Problem, line_fault};
use crate::services::browse;
use crate::services::error::ServiceError;
use crate::services::inventory::bring as bring_inventory;
use crate::services::layouts;
use crate::services::table::Strictness;

/// Devices of one request, at most.
const DEVICES_MAX: usize = 1_000;
const COLUMNS: [&str; 7] =
    ["node", "gpu_uuid", "gpu_index", "gpu_model", "gpu_memory_gib", "in_service_from", "in_service_to"];

pub(in crate::http) async fn list_nodes(call: Call) -> Result<Reply, Problem> {
    list_scopes(call, ScopeKind::Node).await
}

pub(in crate::http) async fn list_pools(call: Call) -> Result<Reply, Problem> {
    list_scopes(call, ScopeKind::Pool).await
}

async fn list_scopes(mut call: Call, kind: ScopeKind) -> Result<Reply, Problem> {
    let page = call.only_page::<String>()?;
    let after = page.after.clone().unwrap_or_default();
    let found = browse::scopes(&call.platform()?, kind, after, page.reach()).await?;
    Reply::page(page.cut(found, |each| each.name.clone()))
}

pub(in crate::http) async fn get_node(mut call: Call) -> Result<Reply, Problem> {
    call.no_more_query()?;
    let name = ScopeName { kind: ScopeKind::Node, name: call.name("node")? };
    Reply::json(&browse::scope(&call.platform()?, name).await?)
}

pub(in crate::http) async fn node_layout(call: Call) -> Result<Reply, Problem> {
    scope_layout(call, ScopeKind::Node).await
}

pub(in crate::http) async fn pool_layout(call: Call) -> Result<Reply, Problem> {
    scope_layout(call, ScopeKind::Pool).await
}

async fn scope_layout(mut call: Call, kind: ScopeKind) -> Result<Reply, Problem> {
    let at = call.query.find("at", Instant::parse);
    call.no_more_query()?;
    let name = ScopeName { kind, name: call.name(kind.word())? };
    // Hours are unpacked and divided for it, as much work as a report's.
    let _turn = call.service.reports.acquire().await;
    Reply::json(&layouts::of_scope(&call.platform()?, name, at).await?)
}

pub(in crate::http) async fn device_layout(mut call: Call) -> Result<Reply, Problem> {
    let within = call.query.span(layouts::HOURS_MAX);
    call.no_more_query()?;
    let device = call.name("device")?;
    let _turn = call.service.reports.acquire().await;
    Reply::json(&layouts::of_device(&call.platform()?, device, good(within)?).await?)
}

pub(in crate::http) async fn list_devices(mut call: Call) -> Result<Reply, Problem> {
    let page = call.query.page::<String>();
    let node = call.query.find("node", Name::parse);
    let pool = call.query.find("pool", Name::parse);
    if node.is_some() && pool.is_some() {
        call.query.fault("pool", "is given beside node; one of them is taken");
    }
    call.no_more_query()?;
    let named = |kind, name| ScopeName { kind, name };
    let of = node.map(|name| named(ScopeKind::Node, name)).or(pool.map(|name| named(ScopeKind::Pool, name)));
    let after = page.after.clone().unwrap_or_default();
    let found = browse::devices(&call.platform()?, of, after, page.reach()).await?;
    Reply::page(page.cut(found, |each| each.gpu_uuid.clone()))
}

pub(in crate::http) async fn get_device(mut call: Call) -> Result<Reply, Problem> {
    call.no_more_query()?;
    Reply::json(&browse::device(&call.platform()?, call.name("device")?).await?)
}

pub(in crate::http) async fn bring(mut call: Call) -> Result<Reply, Problem> {
    let file = call.file_name();
    call.no_more_query()?;
    let platform = call.platform()?;
    let report = match std::mem::replace(&mut call.body, Body::Nothing) {
        Body::Text(text) => {
            bring_inventory(&platform, (&file, text.as_bytes()), Strictness::TakeTheGood).await?
        }
        Body::Json(node) => {
            let table = read(&node)?;
            let table = (file.as_str(), table.as_bytes());
            match bring_inventory(&platform, table, Strictness::AllOrNothing).await {
                Err(ServiceError::Lines(lines)) => {
                    return Err(Problem::invalid(
                        lines.iter().map(|bad| line_fault("devices", bad)).collect(),
                    ));
                }
                Err(ServiceError::Line(bad)) => {
                    return Err(Problem::invalid(vec![line_fault("devices", &bad)]));
                }
                ended => ended?,
            }
        }
        Body::Nothing | Body::Files(_) | Body::Bytes(_) => return Err(Problem::not_found()),
    };
    Reply::json(&serde_json::json!({
        "opened": report.changed.opened,
        "ended": report.changed.ended,
        "repooled": report.changed.repooled,
        "refused": report.bad,
    }))
}

fn read(node: &Node) -> Result<String, Problem> {
    let mut faults = Faults::default();
    let mut fields = Fields::of(node, "", &mut faults);
    if fields.node("devices").is_none() {
        faults.body("/devices", "is missing");
    }
    let rows = fields.list("devices", DEVICES_MAX, &mut faults);
    // A table without that column leaves the pools of known intervals as they are.
    let is_pooled = |(_, row): &(String, &Node)| matches!(row, Node::Object(fields) if fields.iter().any(|(key, _)| key == "pool"));
    let mut columns = COLUMNS.to_vec();
    if rows.iter().any(is_pooled) {
        columns.push("pool");
        if let Some((pointer, _)) = rows.iter().find(|row| !is_pooled(row)) {
            faults.body(pointer, "says nothing of its pool, and another device does: all or none");
        }
    }
    let table = json::table(&rows, &columns, &mut faults);
    fields.end(&mut faults);
    faults.check()?;
    Ok(table)
}
