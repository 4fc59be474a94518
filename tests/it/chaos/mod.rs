//! What is left when processes are stopped and killed, connections are slow and cut, and the database goes away.
//!
//! Always true here: chance comes from a printed seed; every process that a test starts ends with the test; a
//! figure is compared with that of an undisturbed run, byte by byte.

mod agents;
mod fleet;
mod postgres;
mod relay;
mod resets;
mod rig;
mod sqlite;
