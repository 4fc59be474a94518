//! What an agent needs of the machine under it: clocks, sleep, random bytes. `main` owns them.

use std::time::Duration;

use super::clock::Reading;

/// The machine.
pub trait Machine: Send + Sync {
    /// What its clocks show. The monotonic one goes on while the machine sleeps.
    fn reading(&self) -> Reading;

    /// Waits.
    fn sleep(&self, time: Duration);

    /// Fills with random bytes.
    ///
    /// # Errors
    /// In words, where there are none.
    fn random(&self, bytes: &mut [u8]) -> Result<(), String>;
}

/// A random number.
pub(super) fn random_u64(machine: &dyn Machine) -> u64 {
    let mut bytes = [0; 8];
    // Spread needs no good randomness: where there is none, the clock will do.
    match machine.random(&mut bytes) {
        Ok(()) => u64::from_le_bytes(bytes),
        Err(_) => machine.reading().monotonic_nanos.unsigned_abs(),
    }
}
