//! The store behaves the same on both databases, and does not fall into its known traps.

mod accept;
mod file;
mod imports;
mod leases;
mod mapping;
mod marks;
mod numbers;
mod postgres;
mod prices;
mod rebuild;
mod tick;
mod units;
