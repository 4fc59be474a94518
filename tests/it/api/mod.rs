//! The service as those who speak HTTP to it know it, on both databases.

mod access;
mod agents;
mod contract;
mod edges;
mod fleet;
mod idempotency;
mod imports;
mod layouts;
mod page;
mod prices;
mod reports;
mod rules;
mod tenants;
mod tls;
mod tokens;
