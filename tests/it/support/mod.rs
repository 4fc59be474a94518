//! What several test modules share: databases to test on, and our own source to look at.

pub mod agent;
pub mod api;
pub mod nvml;
pub mod platform;
pub mod postgres;
pub mod source;
