//! Floor 0: values and decisions, and nothing else.
//!
//! Owns the words of the field and the rules about them. Each word has one meaning:
//!
//! * **tenant, project, workload**: who pays; their cost centre; the pod, VM, job or process that held a slice.
//! * **device**: one physical board, known by its UUID, with stored in-service intervals.
//! * **pool**: devices of one model of which sources say how many are held, and not which.
//! * **slice**: a part of a device that one consumer can hold.
//! * **evidence**: what a source saw of the holder; **mapping rules** turn it into tenant and project.
//! * **coverage**: the spans for which a source vouches that what it did not report was not there.
//! * **segment**: a maximal span of constant layout, holders and source on one device.
//! * **device-hour**: one device in one billing hour; **part**: what it is divided into.
//! * **role, permission**: what a credential is for; what it may do.
//! * **price book, item**: effective-dated prices; one version's price for one key.
//!
//! Does not own: storage, messages, the network, the clock, randomness. Time comes in as an argument.
//!
//! Always true here: no async, no I/O, no floating point; parts sum to the whole; the same input in any
//! order gives the same output.
#![deny(
    clippy::arithmetic_side_effects,
    clippy::float_arithmetic,
    clippy::float_cmp,
    clippy::indexing_slicing,
    clippy::wildcard_enum_match_arm,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_lossless,
    clippy::cast_possible_wrap,
    missing_docs
)]
#![cfg_attr(test, allow(clippy::arithmetic_side_effects, reason = "tests compute with small literals"))]

/// By which rules segments and parts are derived. It grows with each release that derives otherwise from the same
/// journal, also where only an embedded table changed; an installation that is behind derives everything anew.
pub const DERIVATION: i64 = 2;

pub mod access;
pub mod allocation;
pub mod catalogue;
pub mod cost;
pub mod device;
pub mod division;
pub mod energy;
pub mod ids;
pub mod layout;
pub mod mapping;
pub mod money;
pub mod period;
pub mod policy;
pub mod pool;
pub mod price;
pub mod report;
pub mod segment;
pub mod share;
pub mod tree;
pub mod units;
pub mod usage;
