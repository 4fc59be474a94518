//! The store behaves the same on both databases, and does not fall into its known traps.

mod accept;
mod catalogue;
mod demo;
mod file;
mod imports;
mod leases;
mod mapping;
mod marks;
mod numbers;
mod pools;
mod postgres;
mod prices;
mod rebuild;
mod states;
mod tick;
mod units;
