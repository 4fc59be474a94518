//! Fatia.
pub mod domain;
pub mod wire;
