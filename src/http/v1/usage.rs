//! Usage: batches as agents send them, numbers that will never come, and what was reported, as it was.

use crate::domain::ids::Name;
use crate::http::call::{Call, Reply};
use crate::http::json::{self, Faults, Fields, good};
use crate::http::problem::{Kind, Problem};
use crate::services::accept::{Arrival, SignedBatch, Verified};
use crate::services::agents::{self, Skipped};
use crate::services::error::ServiceError;
use crate::services::usage::{HOURS_MAX, WindowKind, WindowPlace, WindowsAsked, windows};

/// From so many bytes on, a body is read where it keeps nobody waiting.
const LARGE: usize = 64 << 10;

pub(in crate::http) async fn take_batch(mut call: Call) -> Result<Reply, Problem> {
    call.no_more_query()?;
    let (platform, agent, signed) = call.own_node()?;
    let body = super::agents::bytes(&mut call)?;
    let Some(claims) = signed.claims.batch() else {
        return Err(Problem::new(Kind::Unauthorized, "the signature names no stream"));
    };
    let from = Verified {
        source: agent.source.clone(),
        is_import: false,
        home: Some(agent.home.clone()),
        claims,
        reason: signed.claims.reason,
    };
    if let Some(answer) = call.service.intake.repeat(&from).await {
        return Reply::json(&answer);
    }
    let batch = SignedBatch { signature: signed.token, body };
    let received = platform.now();
    let arrival = if batch.body.len() < LARGE {
        Arrival::read(from, batch, received)
    } else {
        let read = call.service.runtime.spawn_blocking(move || Arrival::read(from, batch, received));
        read.await.map_err(|error| Problem {
            cause: Some(error.to_string()),
            ..Problem::new(Kind::Internal, "the service failed; the log has the reason under this request")
        })?
    };
    if arrival.speaks_for_another() {
        agents::record_refusal(&platform, &agent, "a body that speaks for another node".to_owned()).await?;
        return Err(ServiceError::ForeignNode { own: agent.home.name.name.to_string() }.into());
    }
    Reply::json(&call.service.intake.take(arrival).await?)
}

pub(in crate::http) async fn skip(mut call: Call) -> Result<Reply, Problem> {
    call.no_more_query()?;
    let (platform, agent, signed) = call.own_node()?;
    let node = call.node()?;
    let mut faults = Faults::default();
    let mut fields = Fields::of(&node, "", &mut faults);
    let from = fields.need("from", json::integer, &mut faults);
    let to = fields.need("to", json::integer, &mut faults);
    let reason = fields.need("reason", json::name, &mut faults);
    fields.end(&mut faults);
    let signed_to = signed.claims.place.as_ref().map(|place| place.sequence);
    if to.is_some() && to != signed_to {
        faults.body("/to", "is not the number that is signed");
    }
    faults.check()?;
    let skipped =
        Skipped { claims: signed.claims, token: signed.token, from: good(from)?, reason: good(reason)? };
    Reply::json(&agents::skip(&platform, &agent, skipped).await?)
}

pub(in crate::http) async fn list_windows(mut call: Call) -> Result<Reply, Problem> {
    let page = call.query.page::<WindowPlace>();
    let node = call.query.find("node", Name::parse);
    let device = call.query.find("device", Name::parse);
    let kind = call.query.find("kind", WindowKind::parse);
    if node.is_none() {
        call.query.fault("node", "is missing");
    }
    let within = call.query.span(HOURS_MAX);
    call.no_more_query()?;
    let asked = WindowsAsked { node: good(node)?, within: good(within)?, device, kind };
    let found = windows(call.view()?, asked, page.after.clone(), page.reach()).await?;
    Reply::page(page.cut(found, |each| each.place.clone()))
}
