//! `fatia tenant`.

use super::args::{TenantCommand, TenantCreateArguments};
use super::{Ending, Target, show, tell};
use crate::domain::ids::Name;
use crate::services::access::View;
use crate::services::error::ServiceError;
use crate::services::tenancy::{self, NamedView};

/// Names that are read at once.
const PAGE: i64 = 1_000;

pub(super) async fn run(target: &Target<'_>, command: &TenantCommand) -> Result<Ending, ServiceError> {
    match command {
        TenantCommand::Create(arguments) => create(target, arguments).await,
        TenantCommand::List => {
            for tenant in tenants(target).await? {
                show(&format!("{} ({})\n", tenant.name, tenant.origin))?;
                for project in projects(target, &tenant.name).await? {
                    show(&format!("  {} ({})\n", project.name, project.origin))?;
                }
            }
            Ok(Ending::Done)
        }
    }
}

/// Whether an error says that it is there already, which is what was wanted.
fn is_there(error: &ServiceError) -> bool {
    match error {
        ServiceError::Exists { .. } => true,
        ServiceError::Answered { kind, .. } => kind.ends_with(":conflict"),
        _ => false,
    }
}

async fn create(target: &Target<'_>, arguments: &TenantCreateArguments) -> Result<Ending, ServiceError> {
    let name = &arguments.name;
    let made = match target {
        Target::Here(platform, _) => tenancy::make_tenant(platform, name.clone()).await,
        Target::Server(server) => server.make_tenant(name).await,
    };
    say(&format!("tenant `{name}`"), made)?;
    for project in &arguments.project {
        let made = match target {
            Target::Here(platform, _) => tenancy::make_project(platform, name.clone(), project.clone()).await,
            Target::Server(server) => server.make_project(name, project).await,
        };
        say(&format!("project `{project}` of tenant `{name}`"), made)?;
    }
    Ok(Ending::Done)
}

fn say(what: &str, made: Result<NamedView, ServiceError>) -> Result<(), ServiceError> {
    match made {
        Ok(_) => tell(&format!("{what}: made")),
        Err(error) if is_there(&error) => tell(&format!("{what}: is there already")),
        Err(error) => return Err(error),
    }
    Ok(())
}

async fn tenants(target: &Target<'_>) -> Result<Vec<NamedView>, ServiceError> {
    let platform = match target {
        Target::Here(platform, _) => platform,
        Target::Server(server) => return server.tenants().await,
    };
    let mut all: Vec<NamedView> = Vec::new();
    loop {
        let after = all.last().map(|last| last.name.clone()).unwrap_or_default();
        let page = tenancy::tenant_list(View::All(platform), after, PAGE).await?;
        if page.is_empty() {
            return Ok(all);
        }
        all.extend(page);
    }
}

async fn projects(target: &Target<'_>, tenant: &str) -> Result<Vec<NamedView>, ServiceError> {
    let platform = match target {
        Target::Here(platform, _) => platform,
        Target::Server(server) => return server.projects(tenant).await,
    };
    let Ok(tenant) = Name::parse(tenant) else { return Ok(vec![]) };
    let mut all: Vec<NamedView> = Vec::new();
    loop {
        let after = all.last().map(|last| last.name.clone()).unwrap_or_default();
        let page = tenancy::project_list(View::All(platform), tenant.clone(), after, PAGE).await?;
        if page.is_empty() {
            return Ok(all);
        }
        all.extend(page);
    }
}
