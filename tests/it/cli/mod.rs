//! The product as its users run it: the built program on both databases.

mod demo;
mod faults;
mod lines;
mod lock;
mod openb;
mod postgres;
mod prices;
mod program;
mod reports;
mod states;
mod zones;
