//! Whether an agent can work on this node: each thing that it needs, what was found, and what would help.
//!
//! Always true here: nothing is changed by a checkup, neither on the node nor at the service.

use std::fmt;

use super::clock::ServerClock;
use super::identity::Identity;
use super::machine::Machine;
use super::sender::{Speaker, said};
use super::upstream::{Request, Upstream};
use crate::domain::units::MICROS_PER_SECOND;
use crate::wire::agent_v1::{HEALTH_PATH, SKIPS_PATH};

/// By how much a wall clock may be off before somebody is told, in microseconds: as much as the service allows.
const OFF_MICROS_TOLD: i64 = 120 * MICROS_PER_SECOND;

/// How something was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// As it should be.
    Well,
    /// The agent works, and tells less than it could, or later.
    Doubtful,
    /// The agent does not work.
    Broken,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Well => "ok",
            Self::Doubtful => "warning",
            Self::Broken => "error",
        })
    }
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    /// What.
    pub what: &'static str,
    /// How it is.
    pub state: State,
    /// What was found.
    pub found: String,
    /// What would help, where something would.
    pub remedy: Option<String>,
}

impl Check {
    /// Something that is as it should be.
    #[must_use]
    pub fn well(what: &'static str, found: impl Into<String>) -> Self {
        Self { what, state: State::Well, found: found.into(), remedy: None }
    }

    /// Something that is less than it could be, and what would help.
    #[must_use]
    pub fn doubtful(what: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { what, state: State::Doubtful, found: found.into(), remedy: Some(remedy.into()) }
    }

    /// Something without which the agent does not work, and what would help.
    #[must_use]
    pub fn broken(what: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { what, state: State::Broken, found: found.into(), remedy: Some(remedy.into()) }
    }
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<8} {:<12} {}", self.state.to_string(), self.what, self.found)?;
        match &self.remedy {
            Some(remedy) => write!(f, "\n{:21} {remedy}", ""),
            None => Ok(()),
        }
    }
}

/// Checks the way to the service, the node's clock beside the service's, and whether the service knows the agent.
pub fn of_service(upstream: &mut dyn Upstream, machine: &dyn Machine, identity: &Identity) -> Vec<Check> {
    let server = &identity.server;
    let request =
        Request { method: "GET", path: HEALTH_PATH, media: "application/json", body: &[], token: None };
    let sent = machine.reading();
    let reply = match upstream.ask(&request) {
        Ok(reply) if reply.status == 200 => reply,
        Ok(reply) => {
            let found = format!("{server} answers with status {}", reply.status);
            let remedy = "Is it a Fatia service, and ready? See its /readyz.";
            return vec![Check::broken("service", found, remedy)];
        }
        Err(error) => {
            let remedy = "Check the address, the firewall, and the certificate (--ca).";
            return vec![Check::broken("service", error.to_string(), remedy)];
        }
    };
    let received = machine.reading();
    let mut clock = ServerClock::new();
    let mut checks = vec![Check::well("service", format!("{server} answers"))];
    let Some(time) = reply.time_micros else {
        let remedy = "Is there a proxy that drops what it does not know?";
        checks.push(Check::doubtful("clock", "the service does not tell its time", remedy));
        return checks;
    };
    clock.observe(&sent, &received, time);
    let off = received.wall_micros.saturating_sub(clock.now(&received).micros());
    let word = if off < 0 { "behind" } else { "ahead of" };
    let seconds = off.saturating_abs() / MICROS_PER_SECOND;
    checks.push(if off.saturating_abs() <= OFF_MICROS_TOLD {
        Check::well("clock", format!("{seconds} s {word} the service's"))
    } else {
        let found = format!("{seconds} s {word} the service's");
        Check::doubtful(
            "clock",
            found,
            "Set it, and keep it by NTP. Reports are placed by the service's time.",
        )
    });
    checks.push(of_agent(upstream, machine, identity, &clock));
    checks
}

/// Whether the service takes what this agent signs. What is asked is nothing that it could do.
fn of_agent(
    upstream: &mut dyn Upstream,
    machine: &dyn Machine,
    identity: &Identity,
    clock: &ServerClock,
) -> Check {
    let enrol = "Make a token with `fatia node token`, and start the agent with --enrol once.";
    let (Some(agent), Some(_)) = (&identity.agent, &identity.audience) else {
        return Check::broken("agent", format!("{} is not enrolled", identity.node), enrol);
    };
    let body = b"{}";
    let at = clock.now(&machine.reading());
    let speaker = Speaker::of(identity);
    let Some(token) = speaker.and_then(|speaker| speaker.sign(("POST", SKIPS_PATH), body, at)) else {
        return Check::broken("agent", "the key cannot sign", enrol);
    };
    let request =
        Request { method: "POST", path: SKIPS_PATH, media: "application/json", body, token: Some(&token) };
    match upstream.ask(&request) {
        // It was believed, and is nothing that could be done.
        Ok(reply) if reply.status == 422 || reply.status == 400 => {
            Check::well("agent", format!("the service knows it as {agent}, of {}", identity.node))
        }
        Ok(reply) if matches!(reply.status, 401 | 403) => {
            let found = format!("the service does not take what it signs: {}", said(&reply));
            Check::broken("agent", found, "It may be revoked: see `fatia node list`. Enrol it anew.")
        }
        Ok(reply) => {
            let found = format!("the service answers with status {}: {}", reply.status, said(&reply));
            Check::doubtful("agent", found, "The service's log says why.")
        }
        Err(error) => Check::broken("agent", error.to_string(), "Check the network."),
    }
}
