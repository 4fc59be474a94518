//! The product as its users run it: the built program on both databases.
