//! Whether the service lives, whether it can answer, and its figures.

use super::call::{Call, Reply};
use super::problem::{Kind, Problem};
use crate::services::{derive, outbox};

/// The process answers.
pub(super) async fn live(mut call: Call) -> Result<Reply, Problem> {
    call.no_more_query()?;
    Reply::json(&serde_json::json!({ "status": "ok", "version": env!("CARGO_PKG_VERSION") }))
}

/// The process can do its work: the database answers, and it is not stopping.
pub(super) async fn ready(mut call: Call) -> Result<Reply, Problem> {
    call.no_more_query()?;
    if call.service.is_stopping() {
        let detail = "the service is being stopped";
        return Err(Problem { retry_after: Some(5), ..Problem::new(Kind::Unavailable, detail) });
    }
    call.service.platform.ping().await?;
    Reply::json(&serde_json::json!({ "status": "ready" }))
}

/// The figures, in Prometheus's text format.
pub(super) async fn metrics(mut call: Call) -> Result<Reply, Problem> {
    call.no_more_query()?;
    let platform = call.platform()?;
    let metrics = &call.service.metrics;
    metrics.pending.set(derive::pending(&platform).await?);
    metrics.outbox.set(outbox::waiting(&platform).await?);
    Ok(Reply::bytes("text/plain; version=0.0.4; charset=utf-8", metrics.text()?))
}
