//! Floor 1: the messages between senders and the service.
//!
//! Owns the outer formats: the usage message, the compressed body, the signature over it, the acknowledgement, a
//! token's text, and the report as a document. Turns messages into domain values and back, so that neither `domain` nor `services`
//! knows a format's version.
//!
//! Does not own: storage, the decision whether a batch is taken, transport.
//!
//! Always true here: a released format never changes its meaning; a new one stands beside it. Unknown fields
//! are refused. A bad row is a value and never takes the good ones with it.
#![deny(clippy::float_arithmetic, clippy::indexing_slicing, missing_docs)]

pub mod ack;
pub mod agent_v1;
pub mod body;
pub mod costs_v1;
pub mod signature;
pub mod token;
pub mod usage_v1;
