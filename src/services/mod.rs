//! Floor 2: one function per request of a person, an agent or a timer; the unit of work.
//!
//! Owns the order of steps: check who, load, decide (domain), write, return. Edges parse and show; they never
//! decide.
//!
//! Does not own: rules (domain), tables (store), formats (wire decodes), the clock (a port).
//!
//! Always true here: each step that writes is one unit of work; what can be repeated is safe to repeat.
#![deny(clippy::float_arithmetic, clippy::indexing_slicing, missing_docs)]

pub mod accept;
pub mod access;
pub mod agents;
pub mod browse;
pub mod catalogue;
pub mod ctx;
pub mod derive;
pub mod doctor;
pub mod error;
mod holdings;
pub mod imports;
pub mod intake;
pub mod inventory;
pub mod layouts;
pub mod outbox;
mod plain;
mod pools;
pub mod pricing;
pub mod reports;
pub mod runs;
pub mod states;
pub mod table;
pub mod tenancy;
pub mod tick;
pub mod usage;
