//! What runs on a GPU host: it watches the devices of one node and cuts what it saw into windows.
//!
//! No clock, no randomness and no environment is read here: instants and readings are arguments.

pub mod clock;
pub mod scripted;
pub mod source;
pub mod window;
