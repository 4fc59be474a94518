//! A made-up company: its prices, tenants and rules, and six nodes whose agents tell of last month and go on with now.
//!
//! All of it goes the way that real reports go: scripted source, windows, spool, HTTP, journal. What was told once is in
//! the data directory, and is not told again.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use fatia::agent::clock::ServerClock;
use fatia::agent::identity::Identity;
use fatia::agent::machine::Machine;
use fatia::agent::run::{Agent, Settings};
use fatia::agent::scripted::ScriptedSource;
use fatia::agent::sender;
use fatia::agent::source::Source as _;
use fatia::agent::upstream::Http;
use fatia::cli::DemoArguments;
use fatia::domain::ids::Name;
use fatia::domain::mapping::{Comparison, Condition, Rule};
use fatia::domain::period::Span;
use fatia::domain::units::{Instant, MICROS_PER_HOUR};
use fatia::domain::usage::EvidenceField;
use fatia::services::agents::{self, ENROLMENT_SECONDS, NewEnrolment};
use fatia::services::ctx::Platform;
use fatia::services::derive::Awaited;
use fatia::services::error::ServiceError;
use fatia::services::pricing;
use fatia::services::states::import_states;
use fatia::services::table::Strictness;
use fatia::services::tenancy::{self, RuleEdit};
use fatia::wire::token;

use super::node::{self, Host};

const FLEET: &str = include_str!("demo/fleet.toml");
const PRICES: &str = include_str!("demo/prices.toml");
const NODES: [&str; 6] =
    ["k8s-mig-1", "k8s-slices-1", "kvm-vgpu-1", "kvm-migvgpu-1", "kvm-cards-1", "train-1"];
/// Windows of the history: nobody reads minutes of last month.
const HISTORY_CUT: Duration = Duration::from_secs(3_600);
const SPOOL_BYTES: u64 = 64 << 20;

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

/// The demo, before anything is told.
pub(super) struct Demo {
    fleet: String,
    history: Span,
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
    let start = first_of_month(now, arguments.months)?;
    let start_text = start.to_string();
    if platform_is_new(platform).await? {
        pricing::load(platform, "demo/prices.toml", &PRICES.replace("{start}", &start_text)).await?;
        let mut projects = BTreeSet::new();
        for (order, (field, begins, tenant, project)) in (1..).zip(RULES) {
            let (tenant, project) = (Name::fixed(tenant), Name::fixed(project));
            if projects.insert((tenant.clone(), None)) {
                tenancy::make_tenant(platform, tenant.clone()).await?;
            }
            if projects.insert((tenant.clone(), Some(project.clone()))) {
                tenancy::make_project(platform, tenant.clone(), project.clone()).await?;
            }
            let condition = Condition { field, comparison: Comparison::Prefix, value: Name::fixed(begins) };
            let effective = Span::clamped(Instant::MIN, Instant::MAX);
            let rule = Rule { order: order * 10, effective, conditions: vec![condition], tenant, project };
            tenancy::edit_rule(platform, RuleEdit::Add(rule)).await?;
        }
    }
    let fleet = FLEET.replace("{seed}", &arguments.seed.to_string()).replace("{start}", &start_text);
    let minute = now.micros().div_euclid(60_000_000).saturating_mul(60_000_000);
    let history = Span::clamped(start, Instant::from_micros(minute));
    Ok(Demo { fleet, history, data: data.to_owned(), address, stop })
}

/// Whether nothing was made here yet.
async fn platform_is_new(platform: &Platform) -> Result<bool, ServiceError> {
    let view = fatia::services::access::View::All(platform);
    Ok(tenancy::tenant_list(view, String::new(), 1).await?.is_empty())
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

impl Demo {
    /// Has each node's agent tell its history, waits until it is on the reports, and lets agents go on with now.
    pub(super) async fn tell(self, platform: &Platform) -> anyhow::Result<()> {
        let mut tokens = Vec::new();
        for node in NODES {
            let mut bytes = [0; 40];
            node::random(&mut bytes).map_err(anyhow::Error::msg)?;
            let minted = token::mint(&bytes);
            let new = NewEnrolment {
                nodes: Name::fixed(node),
                since: Some(self.history.start()),
                replaces: false,
                seconds: ENROLMENT_SECONDS,
            };
            if Identity::load(&self.folder(node))?.is_none_or(|kept| kept.agent.is_none()) {
                agents::make_enrolment(platform, new, &minted).await?;
            }
            tokens.push((node, minted.text));
        }
        let demo = Arc::new(self);
        let mut told = Vec::new();
        for (node, token) in tokens {
            let demo = Arc::clone(&demo);
            told.push(tokio::task::spawn_blocking(move || demo.history_of(node, &token)));
        }
        for each in told {
            each.await??;
        }
        demo.declare(platform).await?;
        let mut awaited = Awaited::now(platform).await?;
        while awaited.left(platform).await? > 0 && !demo.stop.load(Ordering::Acquire) {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        for node in NODES {
            let demo = Arc::clone(&demo);
            let work = std::thread::Builder::new().name(format!("agent of {node}"));
            work.spawn(move || {
                let lived = demo.agent(node).and_then(|agent| Ok(agent.run()?));
                if let Err(error) = lived {
                    tracing::error!("the demo's agent of {node} ended: {error:#}");
                }
            })?;
        }
        Ok(())
    }

    /// Says what no agent can know: a maintenance, and that a board that was lost was ill.
    async fn declare(&self, platform: &Platform) -> anyhow::Result<()> {
        let boards = ScriptedSource::open(&self.fleet, &Name::fixed("train-1"))?.inventory()?;
        let ill = boards.devices.last().context("the training node has boards")?;
        let after = |hours: i64| self.history.start().plus_micros(hours * MICROS_PER_HOUR);
        let text = format!(
            "node,gpu_uuid,kind,from,to\nk8s-slices-1,,maintenance,{},{}\ntrain-1,{},unhealthy,{},{}\n",
            after(6 * 24 + 2),
            after(6 * 24 + 5),
            ill.uuid,
            // As the fleet file has it.
            after(15 * 24 + 6),
            after(15 * 24 + 15),
        );
        let source = Name::fixed("demo");
        import_states(platform, &source, ("demo/states.csv", text.as_bytes()), Strictness::TakeTheGood)
            .await?;
        Ok(())
    }

    fn folder(&self, node: &str) -> PathBuf {
        self.data.join("nodes").join(node)
    }

    /// Enrols a node, if it is not, and tells what is not told of its history.
    fn history_of(&self, node: &'static str, token: &str) -> anyhow::Result<()> {
        let folder = self.folder(node);
        let machine = Host { boot: node::boot_id() };
        let mut identity = match Identity::load(&folder)? {
            Some(kept) => kept,
            None => Identity::make(&machine, &self.address, &Name::fixed(node))?,
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

    fn agent(&self, node: &'static str) -> anyhow::Result<Agent<ScriptedSource, Http>> {
        let folder = self.folder(node);
        let identity = Identity::load(&folder)?.context("the node is enrolled")?;
        let name = Name::fixed(node);
        Ok(Agent {
            settings: Settings {
                folder,
                budget: SPOOL_BYTES,
                keep_acknowledged_micros: MICROS_PER_HOUR,
                sample_every: Duration::from_secs(1),
                batch_windows: 512,
            },
            clock: ServerClock::restored(&identity.clock),
            source: ScriptedSource::open(&self.fleet, &name)?,
            upstream: Http::new(&self.address, None).map_err(anyhow::Error::msg)?,
            identity,
            machine: Arc::new(Host { boot: node::boot_id() }) as Arc<dyn Machine>,
            stop: Arc::clone(&self.stop),
        })
    }
}
