//! The catalogue of boards, MIG profiles and vGPU types.

use crate::domain::ids::Name;
use crate::http::call::{Body, Call, Reply};
use crate::http::problem::Problem;
use crate::services::catalogue;
use crate::services::error::{Fault, ServiceError};

pub(in crate::http) async fn get(mut call: Call) -> Result<Reply, Problem> {
    let model = call.query.find("model", Name::parse);
    call.no_more_query()?;
    let view = match catalogue::show(&call.platform()?, model).await {
        Err(ServiceError::File { reason, .. }) => {
            return Err(Problem::invalid(vec![Fault::query("model", reason)]));
        }
        ended => ended?,
    };
    Reply::json(&view.document())
}

pub(in crate::http) async fn load(mut call: Call) -> Result<Reply, Problem> {
    let file = call.file_name();
    call.no_more_query()?;
    let platform = call.platform()?;
    let Body::Text(text) = std::mem::replace(&mut call.body, Body::Nothing) else {
        return Err(Problem::not_found());
    };
    Reply::json(&catalogue::load(&platform, &file, &text).await?)
}
