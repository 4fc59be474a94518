//! Edge: the network. Reads a request, calls one service, answers.
//!
//! Owns the route table, the reading of requests with a limit at each step, tokens to callers, problems (RFC 9457), the
//! API's document. Does not own what a request means (services), nor who may do what (`domain::access`).
//!
//! Always true here: a route's permission is checked before its body is read; a handler is handed the platform only under
//! a permission of a role that sees everybody's rows; what is foreign and what is missing are answered alike.

mod authn;
mod call;
mod decode;
mod docs;
mod health;
mod json;
mod metrics;
mod openapi;
mod page;
mod problem;
mod query;
mod server;
mod settings;
mod v1;

pub use call::{Access, Method, Route, Takes};
pub use openapi::document;
pub use server::{Door, Running, start};
pub use settings::Settings;

use call::route;
use v1::{
    agents, audit, catalogue, derivation, fleet, imports, prices, reports, rules, states, tenants, tokens,
    usage,
};

use crate::domain::access::Permission as P;

/// Makes a table's entry of a handler.
macro_rules! run {
    ($handler:path) => {
        |call| Box::pin($handler(call))
    };
}

/// All that is answered. A test walks it with every role.
#[rustfmt::skip]
pub const ROUTES: &[Route] = &[
    route(Method::Get,    "/healthz",                                   "health",              Access::Open,                        Takes::Nothing,    run!(health::live)),
    route(Method::Get,    "/readyz",                                    "readiness",           Access::Open,                        Takes::Nothing,    run!(health::ready)),
    route(Method::Get,    "/docs",                                      "docs",                Access::Open,                        Takes::Nothing,    run!(docs::page)),
    route(Method::Get,    "/docs/{file}",                               "docsFile",            Access::Open,                        Takes::Nothing,    run!(docs::file)),
    route(Method::Get,    "/",                                          "page",                Access::Open,                        Takes::Nothing,    run!(page::index)),
    route(Method::Get,    "/month",                                     "monthPage",           Access::Open,                        Takes::Nothing,    run!(page::index)),
    route(Method::Get,    "/fleet",                                     "fleetPage",           Access::Open,                        Takes::Nothing,    run!(page::index)),
    route(Method::Get,    "/assets/{file}",                             "pageFile",            Access::Open,                        Takes::Nothing,    run!(page::asset)),
    route(Method::Get,    "/api/openapi.json",                          "openapi",             Access::Open,                        Takes::Nothing,    run!(docs::openapi)),
    route(Method::Get,    "/metrics",                                   "metrics",             Access::Needs(P::MetricsRead),       Takes::Nothing,    run!(health::metrics)),
    route(Method::Get,    "/api/v1/self",                               "self",                Access::Needs(P::SelfRead),          Takes::Nothing,    run!(tokens::myself)),
    route(Method::Get,    "/api/v1/tenants",                            "listTenants",         Access::Needs(P::TenantsRead),       Takes::Nothing,    run!(tenants::list)),
    route(Method::Post,   "/api/v1/tenants",                            "createTenant",        Access::Needs(P::TenantsWrite),      Takes::Json,       run!(tenants::create)),
    route(Method::Get,    "/api/v1/tenants/{tenant}",                   "getTenant",           Access::Needs(P::TenantsRead),       Takes::Nothing,    run!(tenants::get)),
    route(Method::Get,    "/api/v1/tenants/{tenant}/projects",          "listProjects",        Access::Needs(P::TenantsRead),       Takes::Nothing,    run!(tenants::list_projects)),
    route(Method::Post,   "/api/v1/tenants/{tenant}/projects",          "createProject",       Access::Needs(P::TenantsWrite),      Takes::Json,       run!(tenants::create_project)),
    route(Method::Get,    "/api/v1/tenants/{tenant}/projects/{project}","getProject",          Access::Needs(P::TenantsRead),       Takes::Nothing,    run!(tenants::get_project)),
    route(Method::Get,    "/api/v1/mapping-rules",                      "listMappingRules",    Access::Needs(P::RulesRead),         Takes::Nothing,    run!(rules::list)),
    route(Method::Post,   "/api/v1/mapping-rules",                      "createMappingRule",   Access::Needs(P::RulesWrite),        Takes::Json,       run!(rules::create)),
    route(Method::Get,    "/api/v1/mapping-rules/{rule}",               "getMappingRule",      Access::Needs(P::RulesRead),         Takes::Nothing,    run!(rules::get)),
    route(Method::Put,    "/api/v1/mapping-rules/{rule}",               "replaceMappingRule",  Access::Needs(P::RulesWrite),        Takes::Json,       run!(rules::replace)),
    route(Method::Delete, "/api/v1/mapping-rules/{rule}",               "removeMappingRule",   Access::Needs(P::RulesWrite),        Takes::Nothing,    run!(rules::remove)),
    route(Method::Get,    "/api/v1/price-books",                        "listPriceBooks",      Access::Needs(P::PricesRead),        Takes::Nothing,    run!(prices::list)),
    route(Method::Post,   "/api/v1/price-books",                        "publishPriceBook",    Access::Needs(P::PricesWrite),       Takes::JsonOrToml, run!(prices::publish)),
    route(Method::Get,    "/api/v1/price-books/{name}",                 "getPriceBook",        Access::Needs(P::PricesRead),        Takes::Nothing,    run!(prices::get)),
    route(Method::Get,    "/api/v1/catalogue",                          "getCatalogue",        Access::Needs(P::CatalogueRead),     Takes::Nothing,    run!(catalogue::get)),
    route(Method::Put,    "/api/v1/catalogue",                          "loadCatalogue",       Access::Needs(P::CatalogueWrite),    Takes::Toml,       run!(catalogue::load)),
    route(Method::Get,    "/api/v1/states",                             "listStates",          Access::Needs(P::StatesRead),        Takes::Nothing,    run!(states::list)),
    route(Method::Post,   "/api/v1/states",                             "declareStates",       Access::Needs(P::StatesWrite),       Takes::JsonOrCsv,  run!(states::declare)),
    route(Method::Get,    "/api/v1/nodes",                              "listNodes",           Access::Needs(P::FleetRead),         Takes::Nothing,    run!(fleet::list_nodes)),
    route(Method::Get,    "/api/v1/nodes/{node}",                       "getNode",             Access::Needs(P::FleetRead),         Takes::Nothing,    run!(fleet::get_node)),
    route(Method::Get,    "/api/v1/nodes/{node}/layout",                "getNodeLayout",       Access::Needs(P::FleetRead),         Takes::Nothing,    run!(fleet::node_layout)),
    route(Method::Get,    "/api/v1/pools",                              "listPools",           Access::Needs(P::FleetRead),         Takes::Nothing,    run!(fleet::list_pools)),
    route(Method::Get,    "/api/v1/pools/{pool}/layout",                "getPoolLayout",       Access::Needs(P::FleetRead),         Takes::Nothing,    run!(fleet::pool_layout)),
    route(Method::Get,    "/api/v1/devices",                            "listDevices",         Access::Needs(P::FleetRead),         Takes::Nothing,    run!(fleet::list_devices)),
    route(Method::Get,    "/api/v1/devices/{device}",                   "getDevice",           Access::Needs(P::FleetRead),         Takes::Nothing,    run!(fleet::get_device)),
    route(Method::Get,    "/api/v1/devices/{device}/layout",            "getDeviceLayout",     Access::Needs(P::FleetRead),         Takes::Nothing,    run!(fleet::device_layout)),
    route(Method::Post,   "/api/v1/inventory",                          "bringInventory",      Access::Needs(P::FleetWrite),        Takes::JsonOrCsv,  run!(fleet::bring)),
    route(Method::Get,    "/api/v1/imports",                            "listImports",         Access::Needs(P::ImportsRead),       Takes::Nothing,    run!(imports::list)),
    route(Method::Post,   "/api/v1/imports",                            "uploadImport",        Access::Needs(P::ImportsWrite),      Takes::Files,      run!(imports::upload)),
    route(Method::Get,    "/api/v1/imports/{import}",                   "getImport",           Access::Needs(P::ImportsRead),       Takes::Nothing,    run!(imports::get)),
    route(Method::Get,    "/api/v1/imports/{import}/refused-lines",     "listRefusedLines",    Access::Needs(P::ImportsRead),       Takes::Nothing,    run!(imports::refused)),
    route(Method::Get,    "/api/v1/reports/costs",                      "reportCosts",         Access::Needs(P::ReportsRead),       Takes::Nothing,    run!(reports::costs)),
    route(Method::Get,    "/api/v1/tokens",                             "listTokens",          Access::Needs(P::TokensRead),        Takes::Nothing,    run!(tokens::list)),
    route(Method::Post,   "/api/v1/tokens",                             "createToken",         Access::Needs(P::TokensWrite),       Takes::Json,       run!(tokens::create)),
    route(Method::Get,    "/api/v1/tokens/{token}",                     "getToken",            Access::Needs(P::TokensRead),        Takes::Nothing,    run!(tokens::get)),
    route(Method::Post,   "/api/v1/tokens/{token}/revoke",              "revokeToken",         Access::Needs(P::TokensWrite),       Takes::Nothing,    run!(tokens::revoke)),
    route(Method::Get,    "/api/v1/agents",                             "listAgents",          Access::Needs(P::AgentsRead),        Takes::Nothing,    run!(agents::list)),
    route(Method::Post,   "/api/v1/agents/enrol",                       "enrol",               Access::Open,                        Takes::Json,       run!(agents::enrol)),
    route(Method::Put,    "/api/v1/agents/self/inventory",              "putInventory",        Access::Needs(P::UsageSend),         Takes::Json,       run!(agents::put_inventory)),
    route(Method::Get,    "/api/v1/agents/{agent}",                     "getAgent",            Access::Needs(P::AgentsRead),        Takes::Nothing,    run!(agents::get)),
    route(Method::Post,   "/api/v1/agents/{agent}/revoke",              "revokeAgent",         Access::Needs(P::AgentsWrite),       Takes::Nothing,    run!(agents::revoke)),
    route(Method::Get,    "/api/v1/enrolment-tokens",                   "listEnrolmentTokens", Access::Needs(P::AgentsRead),        Takes::Nothing,    run!(agents::list_enrolments)),
    route(Method::Post,   "/api/v1/enrolment-tokens",                   "createEnrolmentToken",Access::Needs(P::AgentsWrite),       Takes::Json,       run!(agents::create_enrolment)),
    route(Method::Post,   "/api/v1/usage/batches",                      "sendBatch",           Access::Needs(P::UsageSend),         Takes::Batch,      run!(usage::take_batch)),
    route(Method::Post,   "/api/v1/usage/skips",                        "sendSkip",            Access::Needs(P::UsageSend),         Takes::Json,       run!(usage::skip)),
    route(Method::Get,    "/api/v1/usage/windows",                      "listWindows",         Access::Needs(P::UsageRead),         Takes::Nothing,    run!(usage::list_windows)),
    route(Method::Get,    "/api/v1/audit",                              "listAudit",           Access::Needs(P::AuditRead),         Takes::Nothing,    run!(audit::list)),
    route(Method::Get,    "/api/v1/findings",                           "listFindings",        Access::Needs(P::FindingsRead),      Takes::Nothing,    run!(audit::findings)),
    route(Method::Get,    "/api/v1/derivation",                         "getDerivation",       Access::Needs(P::DerivationRead),    Takes::Nothing,    run!(derivation::get)),
    route(Method::Post,   "/api/v1/derivation/rebuild",                 "rebuild",             Access::Needs(P::DerivationWrite),   Takes::Nothing,    run!(derivation::rebuild)),
    route(Method::Get,    "/api/v1/derivation/checks",                  "checkLevels",         Access::Needs(P::DerivationRead),    Takes::Nothing,    run!(derivation::checks)),
];
