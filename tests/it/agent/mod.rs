//! What an agent promises, by its real parts in this process, against a real service on either database.
//!
//! Always true here: a test sets the clocks of the agent's machine and of the service; what was reported is compared with
//! the script that was played, which is read a second time and in another way.

mod checkup;
mod clocks;
mod enrolment;
mod outage;
mod pauses;
mod replay;
mod restore;
pub mod rig;
