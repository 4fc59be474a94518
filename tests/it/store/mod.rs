//! The store behaves the same on both databases, and does not fall into its known traps.
