//! Tenants and their projects.

use crate::domain::ids::Name;
use crate::http::call::{Call, Reply, segment};
use crate::http::json::{self, Faults, Fields, good};
use crate::http::problem::Problem;
use crate::services::tenancy;

pub(in crate::http) async fn list(mut call: Call) -> Result<Reply, Problem> {
    let page = call.only_page::<String>()?;
    let after = page.after.clone().unwrap_or_default();
    let found = tenancy::tenant_list(call.view()?, after, page.reach()).await?;
    Reply::page(page.cut(found, |each| each.name.clone()))
}

pub(in crate::http) async fn get(mut call: Call) -> Result<Reply, Problem> {
    call.no_more_query()?;
    Reply::json(&tenancy::tenant(call.view()?, call.name("tenant")?).await?)
}

pub(in crate::http) async fn create(mut call: Call) -> Result<Reply, Problem> {
    call.no_more_query()?;
    let name = only_name(&mut call)?;
    let made = tenancy::make_tenant(&call.platform()?, name).await?;
    let location = format!("/api/v1/tenants/{}", segment(&made.name));
    Reply::created(&made, location)
}

pub(in crate::http) async fn list_projects(mut call: Call) -> Result<Reply, Problem> {
    let page = call.only_page::<String>()?;
    let after = page.after.clone().unwrap_or_default();
    let found = tenancy::project_list(call.view()?, call.name("tenant")?, after, page.reach()).await?;
    Reply::page(page.cut(found, |each| each.name.clone()))
}

pub(in crate::http) async fn get_project(mut call: Call) -> Result<Reply, Problem> {
    call.no_more_query()?;
    Reply::json(&tenancy::project(call.view()?, call.name("tenant")?, call.name("project")?).await?)
}

pub(in crate::http) async fn create_project(mut call: Call) -> Result<Reply, Problem> {
    call.no_more_query()?;
    let (tenant, name) = (call.name("tenant")?, only_name(&mut call)?);
    let made = tenancy::make_project(&call.platform()?, tenant.clone(), name).await?;
    let location = format!("/api/v1/tenants/{}/projects/{}", segment(tenant.as_str()), segment(&made.name));
    Reply::created(&made, location)
}

/// A body that holds a name and nothing else.
fn only_name(call: &mut Call) -> Result<Name, Problem> {
    let (node, mut faults) = (call.node()?, Faults::default());
    let mut fields = Fields::of(&node, "", &mut faults);
    let name = fields.need("name", json::name, &mut faults);
    fields.end(&mut faults);
    faults.check()?;
    good(name)
}
