//! `fatia node`.

use comfy_table::{ContentArrangement, Table, presets};

use super::args::{NodeCommand, NodeTokenArguments};
use super::{Ending, Target, mint, show, tell};
use crate::services::agents::{self, AgentView, NewEnrolment};
use crate::services::error::ServiceError;

/// Agents that are read at once.
const PAGE: i64 = 1_000;

pub(super) async fn run(
    target: &Target<'_>,
    command: &NodeCommand,
    random: fn(&mut [u8]) -> Result<(), String>,
) -> Result<Ending, ServiceError> {
    match command {
        NodeCommand::Token(arguments) => create(target, arguments, random).await,
        NodeCommand::List => {
            show(&as_text(&list(target).await?))?;
            Ok(Ending::Done)
        }
        NodeCommand::Revoke(arguments) => {
            let revoked = match target {
                Target::Here(platform, _) => agents::revoke(platform, &arguments.agent).await?,
                Target::Server(server) => server.revoke_agent(&arguments.agent).await?,
            };
            let since = revoked.revoked.unwrap_or_default();
            tell(&format!("agent {} of {} is revoked since {since}", revoked.id, revoked.node));
            Ok(Ending::Done)
        }
    }
}

async fn create(
    target: &Target<'_>,
    arguments: &NodeTokenArguments,
    random: fn(&mut [u8]) -> Result<(), String>,
) -> Result<Ending, ServiceError> {
    let new = NewEnrolment {
        nodes: arguments.nodes.clone(),
        since: arguments.since,
        replaces: arguments.replaces,
        seconds: arguments.seconds,
    };
    let (made, secret) = match target {
        Target::Here(platform, _) => {
            let minted = mint(random)?;
            (agents::make_enrolment(platform, new, &minted).await?, Some(minted.text))
        }
        Target::Server(server) => {
            let made = server.make_enrolment(&new).await?;
            (made.enrolment, made.secret)
        }
    };
    tell(&format!("enrols one of `{}` until {}: its text is shown this once", made.nodes, made.expires));
    show(&format!("{}\n", secret.unwrap_or_default()))?;
    Ok(Ending::Done)
}

async fn list(target: &Target<'_>) -> Result<Vec<AgentView>, ServiceError> {
    let platform = match target {
        Target::Here(platform, _) => platform,
        Target::Server(server) => return server.agents().await,
    };
    let mut all: Vec<AgentView> = Vec::new();
    loop {
        let after = all.last().map(|last| last.id.clone()).unwrap_or_default();
        let page = agents::list(platform, after, PAGE).await?;
        if page.is_empty() {
            return Ok(all);
        }
        all.extend(page);
    }
}

fn as_text(agents: &[AgentView]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled).set_header([
        "node",
        "agent",
        "version",
        "enrolled",
        "last seen",
        "reported to",
        "clock off",
        "revoked",
    ]);
    let shown = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
    for agent in agents {
        table.add_row([
            agent.node.clone(),
            agent.id.clone(),
            agent.version.clone(),
            agent.enrolled.clone(),
            shown(&agent.last_seen),
            shown(&agent.reported_to),
            agent
                .clock_offset_us
                .map_or_else(|| "-".to_owned(), |micros| format!("{} s", micros / 1_000_000)),
            shown(&agent.revoked),
        ]);
    }
    format!("{}\n", table.trim_fmt())
}
