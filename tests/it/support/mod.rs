//! What several test modules share: databases to test on, and our own source to look at.

pub mod agent;
pub mod api;
pub mod nvml;
pub mod platform;
pub mod postgres;
pub mod source;

/// Whether runs may take long: `LONG_TESTS=1`.
pub fn is_long() -> bool {
    #[expect(clippy::disallowed_methods, reason = "the length of a run is its caller's choice")]
    let asked = std::env::var_os("LONG_TESTS");
    asked.is_some_and(|value| value == "1")
}
