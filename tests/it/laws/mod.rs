//! Laws as properties: what holds for every fleet, every batch, every order of arrival and every zone.
//!
//! Cases come from a fixed seed, so a run repeats itself, and a failure shrinks to its smallest input.
//! `LONG_TESTS=1` draws forty times as many.
//!
//! Owns: random fleets ([`world`], and [`nests`] of slices in slices), their account from claims to report
//! ([`account`]), and a second, naive computation of the same account ([`exact`], with the tree of [`shares`] and the
//! layouts of [`packing`]) that shares no code with the first. Does not own: examples of single rules; they stand
//! beside the rules.

mod account;
mod amendments;
mod conservation;
mod divisions;
mod exact;
mod integrator;
mod neighbours;
mod nested;
mod nests;
mod node_hour;
mod order;
mod packing;
mod pools;
mod shares;
mod wire;
mod world;
mod zones;

use proptest::strategy::Strategy;
use proptest::test_runner::{Config, RngSeed, TestCaseError, TestRunner};

/// Any number does, as long as it stays: it makes a failure on one machine a failure on all.
const SEED: u64 = 0x_fa71_a000;

/// Checks that a law holds for `cases` random inputs; panics with the smallest input for which it does not.
fn holds<S: Strategy>(cases: u32, inputs: S, law: impl Fn(S::Value) -> Result<(), TestCaseError>) {
    let config = Config {
        cases: if crate::support::is_long() { cases * 40 } else { cases },
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(SEED),
        max_shrink_iters: 4_000,
        max_global_rejects: cases * 1_000,
        ..Config::default()
    };
    if let Err(failure) = TestRunner::new(config).run(&inputs, law) {
        panic!("{failure}");
    }
}
