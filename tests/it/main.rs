//! The one integration binary: what the parts promise, by folder.

#[cfg(test)]
mod architecture;
#[cfg(test)]
mod chaos;
#[cfg(test)]
mod cli;
#[cfg(test)]
mod laws;
#[cfg(test)]
mod migrations;
#[cfg(test)]
mod store;
#[cfg(test)]
mod support;
