//! A made-up company: its prices, tenants and rules, and six nodes whose agents tell of last month and go on with now.
//!
//! All of it goes the way that real reports go: scripted source, windows, spool, HTTP, journal. What was told once is in
//! the data directory, and is not told again.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, bail};
use fatia::agent::clock::ServerClock;
use fatia::agent::identity::Identity;
use fatia::agent::machine::Machine;
use fatia::agent::run::{Agent, Settings};
use fatia::agent::scripted::ScriptedSource;
use fatia::agent::sender;
use fatia::agent::source::Source as _;
use fatia::agent::upstream::Http;
use fatia::cli::DemoArguments;
use fatia::domain::ids::{Name, ScopeKind, ScopeName};
use fatia::domain::mapping::{Comparison, Condition, Rule};
use fatia::domain::period::Span;
use fatia::domain::units::{Instant, MICROS_PER_HOUR};
use fatia::domain::usage::EvidenceField;
use fatia::services::agents::{self, ENROLMENT_SECONDS, NewEnrolment};
use fatia::services::browse;
use fatia::services::ctx::Platform;
use fatia::services::derive::Awaited;
use fatia::services::error::ServiceError;
use fatia::services::pricing;
use fatia::services::states::import_states;
use fatia::services::table::Strictness;
use fatia::services::tenancy::{self, RuleEdit};
use fatia::services::tick;
use fatia::wire::token;
use serde::{Deserialize, Serialize};

use super::node::{self, Host};

const FLEET: &str = include_str!("demo/fleet.toml");
const PRICES: &str = include_str!("demo/prices.toml");
/// What no agent can know: a maintenance, and that a board that was lost was ill.
const STATES: &str = include_str!("demo/states.csv");
const SEED: u64 = 7;
const MONTHS: u32 = 1;
/// What the data directory was made with.
const MADE_FILE: &str = "demo.json";
/// Windows of the history: nobody reads minutes of last month.
const HISTORY_CUT: Duration = Duration::from_secs(3_600);
/// Windows of what was since the history was made, as an agent makes them.
const LIVE_CUT: Duration = Duration::from_secs(60);
const SPOOL_BYTES: u64 = 64 << 20;
/// How often it is said how far the history is.
const SAID_EVERY: Duration = Duration::from_secs(3);

/// Whose a holder is: by which field, what it begins with, and who pays for what.
const RULES: [(EvidenceField, &str, &str, &str); 10] = [
    (EvidenceField::Namespace, "aurora", "aurora", "search"),
    (EvidenceField::Namespace, "boreal", "boreal", "assistant"),
    (EvidenceField::Namespace, "labs", "labs", "research"),
    (EvidenceField::Namespace, "ci", "ci", "pipelines"),
    (EvidenceField::Namespace, "legacy", "legacy", "erp"),
    (EvidenceField::Vm, "forma-cad", "forma", "design"),
    (EvidenceField::Vm, "forma-render", "forma", "rendering"),
    (EvidenceField::Vm, "boreal", "boreal", "scoring"),
    (EvidenceField::Vm, "labs", "labs", "teaching"),
    (EvidenceField::Vm, "legacy", "legacy", "erp"),
];

/// What a data directory was made with. It stays as it is, so that a demo that is started again goes on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Made {
    seed: u64,
    months: u32,
    /// The first instant of the history.
    start: String,
    /// The first instant of the month that was the last one then.
    last_month: String,
    /// Whether prices, tenants and rules are made: what somebody changed of them afterwards stays changed.
    is_prepared: bool,
}

impl Made {
    /// What is there, or what is asked for.
    fn of(data: &Path, arguments: &DemoArguments, now: Instant) -> anyhow::Result<Self> {
        let file = data.join(MADE_FILE);
        let made: Self = match std::fs::read(&file) {
            Ok(bytes) => {
                serde_json::from_slice(&bytes).with_context(|| format!("read {}", file.display()))?
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let (seed, months) = (arguments.seed.unwrap_or(SEED), arguments.months.unwrap_or(MONTHS));
                let start = first_of_month(now, months)?.to_string();
                let last_month = first_of_month(now, 1)?.to_string();
                return Ok(Self { seed, months, start, last_month, is_prepared: false });
            }
            Err(error) => return Err(error).with_context(|| format!("read {}", file.display())),
        };
        let is_another = arguments.seed.is_some_and(|seed| seed != made.seed)
            || arguments.months.is_some_and(|months| months != made.months);
        if is_another {
            let (data, seed, months) = (data.display(), made.seed, made.months);
            bail!(
                "{data} was made with --seed {seed} --months {months}: remove that folder, or give another one with --data"
            );
        }
        Ok(made)
    }

    fn keep(&self, data: &Path) -> anyhow::Result<()> {
        let (file, beside) = (data.join(MADE_FILE), data.join(format!("{MADE_FILE}.new")));
        let written = || -> std::io::Result<()> {
            std::fs::write(&beside, serde_json::to_vec_pretty(self)?)?;
            std::fs::rename(&beside, &file)
        };
        written().with_context(|| format!("write {}", file.display()))
    }
}

/// The demo, before anything is told.
pub(super) struct Demo {
    fleet: String,
    nodes: Vec<Name>,
    history: Span,
    last_month: Instant,
    data: PathBuf,
    address: String,
    stop: Arc<AtomicBool>,
}

/// Makes prices, tenants and rules, where they are not there yet.
pub(super) async fn prepare(
    platform: &Platform,
    arguments: &DemoArguments,
    data: &Path,
    address: String,
    stop: Arc<AtomicBool>,
) -> anyhow::Result<Demo> {
    let now = platform.now();
    let mut made = Made::of(data, arguments, now)?;
    if !made.is_prepared {
        made.keep(data)?;
        pricing::load(platform, "demo/prices.toml", &PRICES.replace("{start}", &made.start)).await?;
        make_rules(platform).await?;
        made.is_prepared = true;
        made.keep(data)?;
    }
    let (start, last_month) = (Instant::parse(&made.start)?, Instant::parse(&made.last_month)?);
    let fleet = FLEET.replace("{seed}", &made.seed.to_string()).replace("{start}", &made.start);
    let days = last_month.micros_since(start).div_euclid(24 * MICROS_PER_HOUR);
    let fleet = filled(&fleet, |inside| Ok(inside.parse::<i64>().ok().map(|day| (day + days).to_string())))?;
    let minute = now.micros().div_euclid(60_000_000).saturating_mul(60_000_000);
    let history = Span::clamped(start, Instant::from_micros(minute));
    Ok(Demo { nodes: node_names(&fleet)?, fleet, history, last_month, data: data.to_owned(), address, stop })
}

/// Makes the tenants, their projects and the rules, as far as a start that was broken off left some to make.
async fn make_rules(platform: &Platform) -> Result<(), ServiceError> {
    let there: BTreeSet<i64> = tenancy::rule_list(platform, (i64::MIN, i64::MIN), 1_000)
        .await?
        .iter()
        .map(|rule| rule.order)
        .collect();
    let unless_there = |made: Result<_, ServiceError>| match made {
        Ok(_) | Err(ServiceError::Exists { .. }) => Ok(()),
        Err(error) => Err(error),
    };
    for (order, (field, begins, tenant, project)) in (1..).map(|each| each * 10).zip(RULES) {
        let (tenant, project) = (Name::fixed(tenant), Name::fixed(project));
        unless_there(tenancy::make_tenant(platform, tenant.clone()).await)?;
        unless_there(tenancy::make_project(platform, tenant.clone(), project.clone()).await)?;
        if there.contains(&order) {
            continue;
        }
        let condition = Condition { field, comparison: Comparison::Prefix, value: Name::fixed(begins) };
        let effective = Span::clamped(Instant::MIN, Instant::MAX);
        let rule = Rule { order, effective, conditions: vec![condition], tenant, project };
        tenancy::edit_rule(platform, RuleEdit::Add(rule)).await?;
    }
    Ok(())
}

/// A text with what stands in braces put in; what nobody knows is left as it is, for the script has braces of its own.
fn filled(text: &str, value: impl Fn(&str) -> anyhow::Result<Option<String>>) -> anyhow::Result<String> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, (inside, after))) =
        rest.split_once('{').and_then(|(before, after)| Some((before, after.split_once('}')?)))
    {
        out.push_str(before);
        match value(inside)? {
            Some(value) => {
                out.push_str(&value);
                rest = after;
            }
            None => {
                out.push('{');
                rest = rest.get(before.len() + 1..).unwrap_or_default();
            }
        }
    }
    out.push_str(rest);
    Ok(out)
}

/// The nodes of a fleet file, in its order.
fn node_names(fleet: &str) -> anyhow::Result<Vec<Name>> {
    #[derive(Deserialize)]
    struct Fleet {
        node: Vec<Node>,
    }
    #[derive(Deserialize)]
    struct Node {
        name: String,
    }
    let fleet: Fleet = toml::from_str(fleet)?;
    fleet.node.iter().map(|node| Ok(Name::parse(&node.name)?)).collect()
}

/// Microseconds of a text such as `15d 6h`.
fn offset(text: &str) -> Option<i64> {
    text.split(' ').try_fold(0, |sum: i64, part| {
        let hours = match (part.strip_suffix('d'), part.strip_suffix('h')) {
            (Some(days), _) => days.parse::<i64>().ok()? * 24,
            (None, Some(hours)) => hours.parse().ok()?,
            (None, None) => return None,
        };
        Some(sum + hours * MICROS_PER_HOUR)
    })
}

/// The first instant of a month of UTC, so many before the one of an instant.
fn first_of_month(now: Instant, before: u32) -> anyhow::Result<Instant> {
    let text = now.to_string();
    let number = |from: usize, to: usize| text.get(from..to).and_then(|part| part.parse::<u32>().ok());
    let (year, month) = number(0, 4).zip(number(5, 7)).context("the clock shows no year")?;
    let months = (year * 12 + month - 1).saturating_sub(before);
    let first = format!("{:04}-{:02}-01T00:00:00Z", months / 12, months % 12 + 1);
    Ok(Instant::parse(&first)?)
}

/// What a node's folder holds of its agent, if it is enrolled.
fn enrolled(folder: &Path) -> anyhow::Result<Option<Identity>> {
    Ok(Identity::load(folder)?.filter(|kept| kept.agent.is_some()))
}

impl Demo {
    /// Has each node's agent tell its history, waits until it is on the reports, and lets agents go on with now.
    pub(super) async fn tell(self, platform: &Platform) -> anyhow::Result<()> {
        let mut tokens = Vec::new();
        for node in &self.nodes {
            let mut bytes = [0; 40];
            node::random(&mut bytes).map_err(anyhow::Error::msg)?;
            let minted = token::mint(&bytes);
            let new = NewEnrolment {
                nodes: node.clone(),
                since: Some(self.history.start()),
                // The answer to an enrolment that was broken off may be lost, and the agent known all the same.
                replaces: true,
                seconds: ENROLMENT_SECONDS,
            };
            if enrolled(&self.folder(node))?.is_none() {
                agents::make_enrolment(platform, new, &minted).await?;
            }
            tokens.push((node.clone(), minted.text));
        }
        let demo = Arc::new(self);
        let mut told = tokio::task::JoinSet::new();
        for (node, token) in tokens {
            let demo = Arc::clone(&demo);
            told.spawn_blocking(move || demo.history_of(&node, &token));
        }
        let mut said = tokio::time::interval_at(tokio::time::Instant::now() + SAID_EVERY, SAID_EVERY);
        loop {
            tokio::select! {
                ended = told.join_next() => match ended {
                    Some(ended) => ended??,
                    None => break,
                },
                _ = said.tick() => {
                    let percent = demo.told_percent(platform).await?;
                    tracing::info!("the demo's agents tell their history: {percent} %");
                }
            }
        }
        demo.declare(platform).await?;
        // What was covered is counted now, and not with the next tick: last month may have ended a minute ago.
        tick::advance(platform).await?;
        let mut awaited = Awaited::now(platform).await?;
        while awaited.left(platform).await? > 0 && !demo.stop.load(Ordering::Acquire) {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let told_to = demo.history.end();
        for node in demo.nodes.clone() {
            let demo = Arc::clone(&demo);
            let work = std::thread::Builder::new().name(format!("agent of {node}"));
            // Between the history and now nobody was looked at either.
            let since = Span::clamped(told_to, platform.now());
            work.spawn(move || {
                let told = demo.agent(&node).and_then(|agent| Ok(agent.replay(since, LIVE_CUT)?));
                let lived = told.and_then(|_| Ok(demo.agent(&node)?.run()?));
                if let Err(error) = lived {
                    tracing::error!("the demo's agent of {node} ended: {error:#}");
                }
            })?;
        }
        Ok(())
    }

    /// How much of the history has come, all nodes together.
    async fn told_percent(&self, platform: &Platform) -> Result<i64, ServiceError> {
        let hours = |from: Instant, to: Instant| to.micros_since(from).max(0).div_euclid(MICROS_PER_HOUR);
        let whole = hours(self.history.start(), self.history.end()).max(1);
        let mut told = 0_i64;
        for node in &self.nodes {
            let name = ScopeName { kind: ScopeKind::Node, name: node.clone() };
            let devices = match browse::devices(platform, Some(name), String::new(), 1_000).await {
                Err(ServiceError::NotFound { .. }) => continue,
                devices => devices?,
            };
            let edges = devices.iter().flat_map(|device| &device.in_service);
            let edges = edges.filter_map(|each| Instant::parse(&each.covered_to).ok());
            told = told
                .saturating_add(edges.max().map_or(0, |edge| hours(self.history.start(), edge).min(whole)));
        }
        let nodes = i64::try_from(self.nodes.len()).unwrap_or(1).max(1);
        Ok(told.saturating_mul(100).div_euclid(whole.saturating_mul(nodes)))
    }

    /// Declares what no agent can know. A repeat changes nothing.
    async fn declare(&self, platform: &Platform) -> anyhow::Result<()> {
        let text = filled(STATES, |inside| {
            if let Some((node, number)) = inside.strip_prefix("gpu ").and_then(|gpu| gpu.split_once(' ')) {
                let boards = ScriptedSource::open(&self.fleet, &Name::parse(node)?)?.inventory()?;
                let board =
                    boards.devices.get(number.parse::<usize>()?).context("the node has that board")?;
                return Ok(Some(board.uuid.to_string()));
            }
            let micros = offset(inside).with_context(|| format!("`{inside}` is no time"))?;
            Ok(Some(self.last_month.plus_micros(micros).to_string()))
        })?;
        let source = Name::fixed("demo");
        let file = ("demo/states.csv", text.as_bytes());
        import_states(platform, &source, file, Strictness::AllOrNothing).await?;
        Ok(())
    }

    fn folder(&self, node: &Name) -> PathBuf {
        self.data.join("nodes").join(node.as_str())
    }

    /// Enrols a node, if it is not, and tells what is not told of its history.
    fn history_of(&self, node: &Name, token: &str) -> anyhow::Result<()> {
        let folder = self.folder(node);
        let machine = Host { boot: node::boot_id() };
        // A key whose enrolment was not answered is used up.
        let mut identity = match enrolled(&folder)? {
            Some(kept) => kept,
            None => Identity::make(&machine, &self.address, node)?,
        };
        // The port may be another one than the last time.
        self.address.clone_into(&mut identity.server);
        identity.save(&folder)?;
        if identity.agent.is_none() {
            let mut clock = ServerClock::restored(&identity.clock);
            let mut upstream = Http::new(&self.address, None).map_err(anyhow::Error::msg)?;
            sender::enrol(&mut upstream, &machine, &mut identity, &mut clock, token)
                .map_err(anyhow::Error::msg)?;
            identity.save(&folder)?;
        }
        self.agent(node)?.replay(self.history, HISTORY_CUT)?;
        Ok(())
    }

    fn agent(&self, node: &Name) -> anyhow::Result<Agent<ScriptedSource, Http>> {
        let folder = self.folder(node);
        let identity = Identity::load(&folder)?.context("the node is enrolled")?;
        Ok(Agent {
            settings: Settings {
                folder,
                budget: SPOOL_BYTES,
                keep_acknowledged_micros: MICROS_PER_HOUR,
                sample_every: Duration::from_secs(1),
                batch_windows: 512,
            },
            clock: ServerClock::restored(&identity.clock),
            source: ScriptedSource::open(&self.fleet, node)?,
            upstream: Http::new(&self.address, None).map_err(anyhow::Error::msg)?,
            identity,
            machine: Arc::new(Host { boot: node::boot_id() }) as Arc<dyn Machine>,
            stop: Arc::clone(&self.stop),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(months: Option<u32>, seed: Option<u64>) -> DemoArguments {
        let arguments = ["127.0.0.1:0"].map(|address| address.parse());
        let [Ok(listen)] = arguments else { panic!("an address") };
        DemoArguments { listen, months, seed }
    }

    #[test]
    fn a_demo_goes_on_as_what_it_was_made_and_as_nothing_else() {
        let folder = std::env::temp_dir().join(format!("fatia-demo-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let at = |text| Instant::parse(text).expect("an instant");
        let first =
            Made::of(&folder, &arguments(Some(2), None), at("2026-01-31T23:59:59Z")).expect("a new one");
        assert_eq!(
            (first.start.as_str(), first.last_month.as_str()),
            ("2025-11-01T00:00:00Z", "2025-12-01T00:00:00Z")
        );
        assert_eq!((first.seed, first.is_prepared), (SEED, false));
        first.keep(&folder).expect("it can be kept");
        let later = at("2026-03-01T00:00:00Z");
        assert_eq!(Made::of(&folder, &arguments(None, None), later).expect("the same"), first);
        assert_eq!(Made::of(&folder, &arguments(Some(2), Some(SEED)), later).expect("the same"), first);
        for other in [arguments(Some(1), None), arguments(None, Some(8))] {
            let refused = Made::of(&folder, &other, later).expect_err("another").to_string();
            assert!(refused.contains("was made with --seed 7 --months 2"), "{refused}");
        }
        std::fs::remove_dir_all(&folder).expect("our own folder");
    }

    #[test]
    fn what_stands_in_braces_is_put_in_where_it_is_known() {
        let day = |inside: &str| Ok(inside.parse::<i64>().ok().map(|day| (day + 30).to_string()));
        let text =
            filled(r#"at = "{8}d 3h", pod = "x-{n}-{on}", { a = 1 }, {2}d"#, day).expect("a good text");
        assert_eq!(text, r#"at = "38d 3h", pod = "x-{n}-{on}", { a = 1 }, 32d"#);
        assert_eq!(offset("15d 6h"), Some((15 * 24 + 6) * MICROS_PER_HOUR));
        assert_eq!((offset("15"), offset("")), (None, None));
    }
}
