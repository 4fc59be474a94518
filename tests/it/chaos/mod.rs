//! Faults: killed, stopped and slowed processes; nothing acknowledged is lost and each result is one.
