//! The one integration binary: what the parts promise, by folder.
#![allow(
    unreachable_pub,
    clippy::print_stdout,
    reason = "one binary that nobody imports; it says what it skips"
)]

#[cfg(test)]
mod agent;
#[cfg(test)]
mod api;
#[cfg(test)]
mod architecture;
#[cfg(test)]
mod chaos;
#[cfg(test)]
mod cli;
#[cfg(test)]
mod laws;
#[cfg(test)]
mod migrations;
#[cfg(test)]
mod nvml;
#[cfg(test)]
mod nvml_sim;
#[cfg(test)]
mod store;
#[cfg(test)]
mod support;
