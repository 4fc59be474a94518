//! Rules of scripted fleets.
