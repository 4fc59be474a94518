//! What runs on a GPU host: it looks at the devices of one node, cuts what it saw into windows, keeps them on its own
//! disk, and hands them to the service, signed.
//!
//! Owns the source port and its scripted one, windows, the spool, the sender. Does not own a clock, randomness, the
//! environment or signals: they are arguments, which `main` gives.
//!
//! Always true here: what is sent was durable before; a number of a stream never has two bodies; what is lost is said.
#![deny(clippy::float_arithmetic)]

pub mod checkup;
pub mod clock;
pub mod identity;
pub mod machine;
pub mod nvml;
pub mod run;
pub mod scripted;
pub mod sender;
pub mod show;
pub mod source;
pub mod spool;
pub mod upstream;
pub mod window;
