//! A stand-in for NVIDIA's management library, so that tests run the code that is shipped, on machines
//! without a GPU.
//!
//! It is built as a shared library, is loaded like the real one, and answers from a scenario. `scenario.toml`
//! and `clock` lie in the folder that the library's own file is in: a copy of the file in another folder is
//! another library with a state of its own, so tests run beside each other.
//!
//! What is true at an instant follows from the scenario and the instant alone, so that a test can work it out
//! a second time. Kept between calls is only: how often it was initialised, handles, event sets with what
//! they have delivered, and the instants of GPM samples.
//!
//! It proves which paths the code takes, not what NVIDIA's library does: where the documentation leaves
//! something open, the choice made here is no evidence.
#![allow(unsafe_code, reason = "the functions of a C library read and write through the caller's pointers")]

mod abi;
mod boards;
mod clock;
mod scenario;
mod state;
