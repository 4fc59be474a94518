//! The product as its users run it: the built program on both databases.

mod boards;
mod catalogue;
mod declared;
mod demo;
mod example;
mod faults;
mod field_cases;
mod layouts;
mod lines;
mod lock;
mod measured;
mod nested;
mod node;
mod openb;
mod postgres;
mod prices;
mod program;
mod reports;
mod sample;
mod serve;
mod slices;
mod states;
mod zones;
