//! `/api/v1`: one file a resource. A handler parses, calls one service, and shapes its answer.

pub(super) mod agents;
pub(super) mod audit;
pub(super) mod catalogue;
pub(super) mod derivation;
pub(super) mod fleet;
pub(super) mod imports;
pub(super) mod prices;
pub(super) mod reports;
pub(super) mod rules;
pub(super) mod states;
pub(super) mod tenants;
pub(super) mod tokens;
pub(super) mod usage;
