//! The agent's real source against the simulated NVML: what it makes of the library's answers, of `/proc`
//! and `/sys`, and what comes of it in windows, in the journal and on reports.
//!
//! Always true here: server time is the simulator's clock; the host's folders are a test's own.

mod conditions;
mod evidence;
mod layouts;
mod losses;
mod measured;
mod modes;
mod pitfalls;
mod reports;
mod rig;
mod vgpus;
mod week;
