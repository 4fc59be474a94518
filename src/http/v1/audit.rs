//! Who changed what, and what someone should know.

use crate::http::call::{Call, Reply};
use crate::http::problem::Problem;
use crate::services::browse;

pub(in crate::http) async fn list(mut call: Call) -> Result<Reply, Problem> {
    let page = call.only_page::<i64>()?;
    let before = page.after.unwrap_or(i64::MAX);
    let found = browse::audit_list(&call.platform()?, before, page.reach()).await?;
    Reply::page(page.cut(found, |each| each.id))
}

type Place = (i64, String, i64, String);

pub(in crate::http) async fn findings(mut call: Call) -> Result<Reply, Problem> {
    let page = call.query.page::<Place>();
    let kind = call.query.find("kind", browse::finding_kind);
    call.no_more_query()?;
    let before = page.after.clone().unwrap_or((i64::MAX, String::new(), 0, String::new()));
    let found = browse::finding_list(&call.platform()?, kind, before, page.reach()).await?;
    let (found, next) = page.cut(found, |(place, _)| place.clone());
    Reply::page((found.into_iter().map(|(_, view)| view).collect(), next))
}
