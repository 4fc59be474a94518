//! The one integration binary: what the parts promise, by folder.

#[cfg(test)]
mod architecture;
#[cfg(test)]
mod laws;
#[cfg(test)]
mod migrations;
#[cfg(test)]
mod support;
