//! The arguments, as clap reads them.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::domain::access::{Permission, Role};
use crate::domain::ids::Name;
use crate::domain::period::{Month, Span};
use crate::domain::report::Dimension;
use crate::domain::units::Instant;
use crate::domain::usage::SourceRank;

/// GPU chargeback: every GPU-hour attributed, priced and reconciled.
#[derive(Debug, Parser)]
#[command(name = "fatia", version, about, max_term_width = 100)]
pub struct Arguments {
    /// Where the embedded database and fatia.toml are
    #[arg(long, global = true, value_name = "DIR", default_value = "fatia-data")]
    pub data: PathBuf,
    /// Settings file [default: fatia.toml in the data directory]
    #[arg(long, global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Bring in a history of who held what, or declared states
    #[command(subcommand)]
    Import(ImportCommand),
    /// Read what it comes to
    #[command(subcommand)]
    Report(ReportCommand),
    /// Say what a GPU-hour costs
    #[command(subcommand)]
    Price(PriceCommand),
    /// Say what boards, MIG profiles and vGPU types are
    #[command(subcommand)]
    Catalogue(CatalogueCommand),
    /// Make, list and revoke the tokens by which the service knows who asks
    #[command(subcommand)]
    Token(TokenCommand),
    /// Make and list tenants and their projects
    #[command(subcommand)]
    Tenant(TenantCommand),
    /// Enrol nodes, and see and revoke their agents
    #[command(subcommand)]
    Node(NodeCommand),
    /// Watch this node's GPUs and report who holds what, until stopped
    Agent(AgentArguments),
    /// Answer over HTTP, and derive what is waiting, until stopped
    Serve(ServeArguments),
    /// Serve a made-up company's last month and what happens now, until stopped
    Demo(DemoArguments),
    /// Derive what is waiting, and go on until stopped
    Worker(WorkerArguments),
    /// Derive everything anew from the journal
    Rebuild(RebuildArguments),
    /// Check database, zone, and each level against the journal
    Doctor(DoctorArguments),
    /// Bring a PostgreSQL schema up to date (DATABASE_MIGRATE_URL)
    Migrate,
}

/// What can be imported.
#[derive(Debug, Subcommand)]
pub enum ImportCommand {
    /// A table of intervals: workload,tenant,project,node,gpu_uuid,mode,profile,share_ppm,start,end and more
    Intervals(IntervalsArguments),
    /// A table of declared states: node,gpu_uuid,slice,kind,from,to
    ///
    /// kind is maintenance, migration or unhealthy. Without a gpu_uuid it is declared of every GPU of the node,
    /// with a slice of that slice of the GPU alone. An empty `to` is open; a `to` that is the `from` takes an earlier
    /// declaration back.
    States(StatesArguments),
}

/// `import intervals`.
#[derive(Debug, Args)]
pub struct IntervalsArguments {
    /// The devices: node,gpu_uuid,gpu_index,gpu_model,gpu_memory_gib,in_service_from,in_service_to
    #[arg(long, value_name = "FILE")]
    pub inventory: PathBuf,
    /// Slices that existed, held or not: node,gpu_uuid,slice,parent,mode,profile,placement,start,end and more
    #[arg(long, value_name = "FILE")]
    pub slices: Option<PathBuf>,
    /// The span in which what is not listed was not held [default: in-service time up to now]
    #[arg(long, value_name = "FROM/TO", value_parser = Span::parse)]
    pub covers: Option<Span>,
    /// Whose history it is: a later import of the same source amends an earlier one
    #[arg(long, value_name = "NAME", default_value = "intervals", value_parser = parse_name)]
    pub source: Name,
    /// How far it is trusted where sources speak of one GPU at one time: hypervisor, scheduler, scrape or import
    #[arg(long, value_name = "RANK", default_value = "import", value_parser = parse_rank)]
    pub rank: SourceRank,
    /// Return before the figures are derived (PostgreSQL)
    #[arg(long)]
    pub no_wait: bool,
    /// The table
    pub file: PathBuf,
}

/// `import states`.
#[derive(Debug, Args)]
pub struct StatesArguments {
    /// Who declares: a later import of the same source amends an earlier one
    #[arg(long, value_name = "NAME", default_value = "operator", value_parser = parse_name)]
    pub source: Name,
    /// Return before the figures are derived (PostgreSQL)
    #[arg(long)]
    pub no_wait: bool,
    /// The table
    pub file: PathBuf,
}

/// What can be reported.
#[derive(Debug, Subcommand)]
pub enum ReportCommand {
    /// A month's GPU-hours and costs, reconciled
    Costs(CostsArguments),
}

/// `report costs`.
#[derive(Debug, Args)]
pub struct CostsArguments {
    /// The month, in the billing zone
    #[arg(long, value_name = "YYYY-MM", value_parser = parse_month)]
    pub period: Month,
    /// Any of tenant,project,mode,model,node,workload,day,state
    #[arg(long, value_name = "FIELDS", value_delimiter = ',', default_value = "tenant,project,mode", value_parser = parse_dimension)]
    pub group_by: Vec<Dimension>,
    /// How to show it
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub format: Format,
}

/// How a report is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Tables for people
    Text,
    /// One document
    Json,
    /// One line a group
    Csv,
}

/// What can be done with prices.
#[derive(Debug, Subcommand)]
pub enum PriceCommand {
    /// Publish a price file
    Load(LoadArguments),
}

/// `price load`.
#[derive(Debug, Args)]
pub struct LoadArguments {
    /// Return before the figures are derived (PostgreSQL)
    #[arg(long)]
    pub no_wait: bool,
    /// The price file (TOML)
    pub file: PathBuf,
}

/// What can be done with the catalogue.
#[derive(Debug, Subcommand)]
pub enum CatalogueCommand {
    /// Put a file's rows over the embedded ones, in place of those of the file before
    Load(CatalogueLoadArguments),
    /// Show what is known, and from where
    Show(CatalogueShowArguments),
}

/// `catalogue load`.
#[derive(Debug, Args)]
pub struct CatalogueLoadArguments {
    /// Return before the figures are derived (PostgreSQL)
    #[arg(long)]
    pub no_wait: bool,
    /// The catalogue file (TOML); an empty one takes all rows back
    pub file: PathBuf,
}

/// `catalogue show`.
#[derive(Debug, Args)]
pub struct CatalogueShowArguments {
    /// One model: a board by any of its names, or the board's code in vGPU types
    #[arg(long, value_name = "MODEL", value_parser = parse_name)]
    pub model: Option<Name>,
}

/// `rebuild`.
#[derive(Debug, Args)]
pub struct RebuildArguments {
    /// Return before the figures are derived (PostgreSQL)
    #[arg(long)]
    pub no_wait: bool,
}

/// `serve`.
#[derive(Debug, Args)]
pub struct ServeArguments {
    /// Where to listen [default: http.listen of the settings, or 127.0.0.1:8080]
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Option<SocketAddr>,
    /// Leave deriving to other workers (PostgreSQL)
    #[arg(long)]
    pub no_worker: bool,
    /// Say the operator's token of this process on standard output, once it is ready
    #[arg(long)]
    pub print_token: bool,
}

/// `demo`.
#[derive(Debug, Args)]
pub struct DemoArguments {
    /// Where to listen
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080")]
    pub listen: SocketAddr,
    /// How many months of history there are before this one [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=12))]
    pub months: Option<u32>,
    /// By which its habits are thrown; the same seed makes the same history [default: 7]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
}

/// What can be done with tokens.
#[derive(Debug, Subcommand)]
pub enum TokenCommand {
    /// Make one; its text is shown once, and kept nowhere
    Create(TokenCreateArguments),
    /// List them, without their texts
    List,
    /// Take one back, everywhere within seconds
    Revoke(TokenRevokeArguments),
}

/// `token create`.
#[derive(Debug, Args)]
pub struct TokenCreateArguments {
    /// What it is called: who or what uses it
    #[arg(long, value_parser = parse_name)]
    pub name: Name,
    /// What it is for: admin, finance, tenant, enforcer or agent
    #[arg(long, value_parser = parse_role)]
    pub role: Role,
    /// Whose it is, for role tenant
    #[arg(long, value_name = "NAME", value_parser = parse_name)]
    pub tenant: Option<Name>,
    /// Narrow the role to these permissions, such as reports:read
    #[arg(long, value_name = "PERMISSION", value_delimiter = ',', value_parser = parse_permission)]
    pub scope: Vec<Permission>,
    /// From when on it is no longer taken
    #[arg(long, value_name = "INSTANT", value_parser = parse_instant)]
    pub expires: Option<Instant>,
}

/// `token revoke`.
#[derive(Debug, Args)]
pub struct TokenRevokeArguments {
    /// Its id, the part of its text between the underscores
    pub id: String,
}

/// What can be done with nodes.
#[derive(Debug, Subcommand)]
pub enum NodeCommand {
    /// Make a token by which one node is enrolled, within an hour; its text is shown once
    Token(NodeTokenArguments),
    /// List the agents of nodes, and what came from them last
    List,
    /// Take an agent's key back, everywhere within seconds
    Revoke(NodeRevokeArguments),
}

/// `node token`.
#[derive(Debug, Args)]
pub struct NodeTokenArguments {
    /// The node that may use it; `*` stands for any letters
    #[arg(long, value_name = "PATTERN", value_parser = parse_name)]
    pub nodes: Name,
    /// The earliest instant at which its GPUs may have come into service [default: now]
    #[arg(long, value_name = "INSTANT", value_parser = parse_instant)]
    pub since: Option<Instant>,
    /// It may take the place of an agent that the node has
    #[arg(long)]
    pub replaces: bool,
    /// How long it is taken, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 3_600)]
    pub seconds: i64,
}

/// `node revoke`.
#[derive(Debug, Args)]
pub struct NodeRevokeArguments {
    /// The agent's id
    pub agent: String,
}

/// `doctor`.
#[derive(Debug, Args)]
pub struct DoctorArguments {
    /// Check this node and its agent alone [default: where the data directory holds one, that too]
    #[arg(long)]
    pub node: bool,
}

/// `agent`: what its own program, `fatia-agent`, takes.
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub struct AgentArguments {
    /// What it is told; --help says what there is
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "OPTION")]
    pub rest: Vec<std::ffi::OsString>,
}

/// What can be done with tenants.
#[derive(Debug, Subcommand)]
pub enum TenantCommand {
    /// Make one, and its projects
    Create(TenantCreateArguments),
    /// List them with their projects
    List,
}

/// `tenant create`.
#[derive(Debug, Args)]
pub struct TenantCreateArguments {
    /// Its name; one that is there already gets the projects
    #[arg(value_parser = parse_name)]
    pub name: Name,
    /// A cost centre of it; may be given several times
    #[arg(long, value_name = "NAME", value_parser = parse_name)]
    pub project: Vec<Name>,
}

/// `worker`.
#[derive(Debug, Args)]
pub struct WorkerArguments {
    /// Stop when nothing is waiting any more
    #[arg(long)]
    pub once: bool,
    /// A name unlike any other worker's [default: made from host and process]
    #[arg(long, value_name = "NAME")]
    pub holder: Option<String>,
}

fn parse_name(text: &str) -> Result<Name, String> {
    Name::parse(text).map_err(|error| error.to_string())
}

fn parse_instant(text: &str) -> Result<Instant, String> {
    Instant::parse(text).map_err(|error| error.to_string())
}

fn parse_role(text: &str) -> Result<Role, String> {
    Role::parse(text).map_err(|error| error.to_string())
}

fn parse_permission(text: &str) -> Result<Permission, String> {
    Permission::parse(text.trim()).map_err(|error| error.to_string())
}

fn parse_rank(text: &str) -> Result<SourceRank, String> {
    match SourceRank::parse(text).map_err(|error| error.to_string())? {
        rank @ (SourceRank::Hypervisor | SourceRank::Scheduler | SourceRank::Scrape | SourceRank::Import) => {
            Ok(rank)
        }
        rank @ (SourceRank::HostAgent | SourceRank::GuestAgent) => {
            Err(format!("{} is the rank of agents alone", rank.word()))
        }
    }
}

fn parse_month(text: &str) -> Result<Month, String> {
    Month::parse(text).map_err(|error| error.to_string())
}

fn parse_dimension(text: &str) -> Result<Dimension, String> {
    Dimension::parse(text.trim()).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arguments_are_well_formed() {
        use clap::CommandFactory;
        Arguments::command().debug_assert();
    }

    #[test]
    fn a_span_is_two_instants() {
        assert!(Span::parse("2026-06-01T00:00:00Z/2026-07-01T00:00:00Z").is_ok());
        for text in ["2026-06-01T00:00:00Z", "2026-07-01T00:00:00Z/2026-06-01T00:00:00Z", "a/b", "/"] {
            assert!(Span::parse(text).is_err(), "{text}");
        }
    }
}
