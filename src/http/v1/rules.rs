//! Mapping rules. An edit names the version that its editor has seen, or is refused where that is no longer the one.

use crate::domain::mapping::{Comparison, Condition, Rule};
use crate::domain::period::Span;
use crate::domain::units::Instant;
use crate::domain::usage::EvidenceField;
use crate::http::call::{Call, Reply};
use crate::http::json::{self, Faults, Fields, Node, good};
use crate::http::problem::Problem;
use crate::services::error::Fault;
use crate::services::tenancy::{self, RuleEdit, RuleView};

/// Conditions of one rule, at most.
const CONDITIONS_MAX: usize = 32;

pub(in crate::http) async fn list(mut call: Call) -> Result<Reply, Problem> {
    let page = call.only_page::<(i64, i64)>()?;
    let after = page.after.unwrap_or((i64::MIN, i64::MIN));
    let found = tenancy::rule_list(&call.platform()?, after, page.reach()).await?;
    Reply::page(page.cut(found, |each| (each.order, each.id)))
}

pub(in crate::http) async fn get(mut call: Call) -> Result<Reply, Problem> {
    call.no_more_query()?;
    shown(&tenancy::rule(&call.platform()?, id(&call)?).await?)
}

pub(in crate::http) async fn create(mut call: Call) -> Result<Reply, Problem> {
    call.no_more_query()?;
    let rule = rule(&call.node()?)?;
    let made = tenancy::edit_rule(&call.platform()?, RuleEdit::Add(rule)).await?;
    let location = format!("/api/v1/mapping-rules/{}", made.id);
    Ok(Reply::created(&made, location)?.with_etag(&made.version()))
}

pub(in crate::http) async fn replace(mut call: Call) -> Result<Reply, Problem> {
    call.no_more_query()?;
    let (id, rule, seen) = (id(&call)?, rule(&call.node()?)?, seen(&call)?);
    shown(&tenancy::edit_rule(&call.platform()?, RuleEdit::Replace { id, rule, seen }).await?)
}

pub(in crate::http) async fn remove(mut call: Call) -> Result<Reply, Problem> {
    call.no_more_query()?;
    let (id, seen) = (id(&call)?, seen(&call)?);
    shown(&tenancy::edit_rule(&call.platform()?, RuleEdit::Remove { id, seen }).await?)
}

fn shown(rule: &RuleView) -> Result<Reply, Problem> {
    Ok(Reply::json(rule)?.with_etag(&rule.version()))
}

fn id(call: &Call) -> Result<i64, Problem> {
    call.parameter("rule").parse().map_err(|_| Problem::not_found())
}

/// The version that an editor has seen: `If-Match: "version"`, or `*` for whatever is there.
fn seen(call: &Call) -> Result<Option<String>, Problem> {
    match call.if_match.as_deref().map(str::trim) {
        None => Err(Problem::invalid(vec![Fault::header(
            "If-Match",
            "is missing: the ETag of the rule that was seen, or *",
        )])),
        Some("*") => Ok(None),
        Some(etag) => Ok(Some(etag.trim_start_matches("W/").trim_matches('"').to_owned())),
    }
}

fn rule(node: &Node) -> Result<Rule, Problem> {
    let mut faults = Faults::default();
    let mut fields = Fields::of(node, "", &mut faults);
    let order = fields.need("order", json::integer, &mut faults);
    let from = fields.find("effective_from", json::instant, &mut faults).unwrap_or(Instant::MIN);
    let to = fields.find("effective_to", json::instant, &mut faults).unwrap_or(Instant::MAX);
    let tenant = fields.need("tenant", json::name, &mut faults);
    let project = fields.need("project", json::name, &mut faults);
    let mut conditions = Vec::new();
    for (pointer, node) in fields.list("conditions", CONDITIONS_MAX, &mut faults) {
        conditions.extend(condition(node, &pointer, &mut faults));
    }
    fields.end(&mut faults);
    if to <= from {
        faults.body("/effective_to", "does not lie after effective_from");
    }
    faults.check()?;
    Ok(Rule {
        order: good(order)?,
        effective: Span::clamped(from, to),
        conditions,
        tenant: good(tenant)?,
        project: good(project)?,
    })
}

fn condition(node: &Node, pointer: &str, faults: &mut Faults) -> Option<Condition> {
    fn field(node: &Node) -> Result<EvidenceField, String> {
        EvidenceField::parse(&json::text(node)?).map_err(|error| error.to_string())
    }
    fn comparison(node: &Node) -> Result<Comparison, String> {
        Comparison::parse(&json::text(node)?).map_err(|error| error.to_string())
    }
    let mut fields = Fields::of(node, pointer, faults);
    let field = fields.need("field", field, faults);
    let comparison = fields.need("comparison", comparison, faults);
    let value = fields.need("value", json::name, faults);
    fields.end(faults);
    Some(Condition { field: field?, comparison: comparison?, value: value? })
}
