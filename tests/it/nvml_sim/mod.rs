//! The simulated NVML against the wrapper that the agent reads it with: what the wrapper makes of the
//! library's answers, and that what the simulator says over time is what its scenario says.

mod faults;
mod mig;
mod raw;
mod samples;
mod structures;
mod vgpus;
mod wrapper;

/// When the scenarios of these tests begin.
const START: &str = "2026-06-01T00:00:00Z";

const SECOND: i64 = 1_000_000;
const HOUR: i64 = 3_600 * SECOND;
const MIB: u64 = 1_048_576;

/// A scenario that begins at [`START`].
fn from_start(rest: &str) -> String {
    format!("start = \"{START}\"\n{rest}")
}

/// A host with one board.
fn one_board(rest: &str) -> String {
    from_start(&format!("[[board]]\nuuid = \"GPU-1\"\n{rest}"))
}
