//! Declared states.

use crate::domain::ids::Name;
use crate::domain::units::Instant;
use crate::http::call::{Body, Call, Reply};
use crate::http::json::{self, Faults, Fields, Node, good};
use crate::http::problem::{Problem, line_fault};
use crate::services::browse;
use crate::services::error::ServiceError;
use crate::services::states::import_states;
use crate::services::table::Strictness;

/// States of one request, at most.
const STATES_MAX: usize = 1_000;
const COLUMNS: [&str; 6] = ["node", "gpu_uuid", "slice", "kind", "from", "to"];

type Place = (i64, String, String, String, String, String);

pub(in crate::http) async fn list(mut call: Call) -> Result<Reply, Problem> {
    let page = call.query.page::<Place>();
    let node = call.query.find("node", Name::parse);
    call.no_more_query()?;
    let (from, node_, device, slice, kind, source) = page.after.clone().unwrap_or((
        i64::MIN,
        String::new(),
        String::new(),
        String::new(),
        String::new(),
        String::new(),
    ));
    let after = (Instant::from_micros(from), node_, device, slice, kind, source);
    let found = browse::declared_states(&call.platform()?, node, after, page.reach()).await?;
    let place = |((from, node, device, slice, kind, source), _): &(browse::Place, browse::StateView)| {
        let (node, device, slice) = (node.clone(), device.clone(), slice.clone());
        (from.micros(), node, device, slice, kind.clone(), source.clone())
    };
    let (found, next) = page.cut(found, place);
    Reply::page((found.into_iter().map(|(_, view)| view).collect(), next))
}

pub(in crate::http) async fn declare(mut call: Call) -> Result<Reply, Problem> {
    let source = call.query.find("source", Name::parse);
    let file = call.file_name();
    call.no_more_query()?;
    let platform = call.platform()?;
    let operator = || Name::fixed("operator");
    let outcome = match std::mem::replace(&mut call.body, Body::Nothing) {
        Body::Text(text) => {
            let source = source.unwrap_or_else(operator);
            import_states(&platform, &source, (&file, text.as_bytes()), Strictness::TakeTheGood).await?
        }
        Body::Json(node) => {
            let (named, table) = read(&node)?;
            let source = named.or(source).unwrap_or_else(operator);
            let table = (file.as_str(), table.as_bytes());
            match import_states(&platform, &source, table, Strictness::AllOrNothing).await {
                Err(ServiceError::Lines(lines)) => {
                    return Err(Problem::invalid(
                        lines.iter().map(|bad| line_fault("states", bad)).collect(),
                    ));
                }
                ended => ended?,
            }
        }
        Body::Nothing | Body::Files(_) | Body::Bytes(_) => return Err(Problem::not_found()),
    };
    Reply::json(&serde_json::json!({
        "lines": outcome.lines,
        "repeated": outcome.repeated,
        "refused": outcome.bad,
        "declared": outcome.declared,
        "amended": outcome.amended,
        "taken_back": outcome.taken_back,
    }))
}

fn read(node: &Node) -> Result<(Option<Name>, String), Problem> {
    let mut faults = Faults::default();
    let mut fields = Fields::of(node, "", &mut faults);
    let source = fields.find("source", json::name, &mut faults);
    if fields.node("states").is_none() {
        faults.body("/states", "is missing");
    }
    let rows = fields.list("states", STATES_MAX, &mut faults);
    let table = json::table(&rows, &COLUMNS, &mut faults);
    fields.end(&mut faults);
    faults.check()?;
    Ok((source, good(Some(table))?))
}
