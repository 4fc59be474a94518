//! Fatia: multi-tenant GPU chargeback and licenses.
//!
//! Floors, each importing only those below it: `domain` (values and decisions) → `store`, `wire` (tables and
//! messages) → `services` (one function a request) → the edges (`cli`, `http`, `worker`). The map is ARCHITECTURE.md.

pub mod domain;
pub mod wire;

#[cfg(feature = "agent")]
pub mod agent;

#[cfg(feature = "server")]
pub mod services;
#[cfg(feature = "server")]
pub mod store;

#[cfg(feature = "server")]
pub mod cli;
#[cfg(feature = "server")]
pub mod config;
#[cfg(feature = "server")]
pub mod http;
#[cfg(feature = "server")]
pub mod worker;
