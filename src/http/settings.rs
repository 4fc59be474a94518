//! How the service answers, as whoever starts it decides.

use std::net::SocketAddr;
use std::path::PathBuf;

/// Where it listens, and how much it takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Where it listens.
    pub listen: SocketAddr,
    /// PEM files of a certificate with its chain and of its key: TLS, and nothing else, on `listen`.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// Threads that read requests and write answers.
    pub threads: usize,
    /// Connections at once, for all threads together.
    pub connections_max: usize,
    /// How long a request's head may take.
    pub head_seconds: u32,
    /// How long a body may take, and a second more for each 16 KiB that came.
    pub body_seconds: u32,
    /// How long requests that are under way have to end when the service stops.
    pub stop_seconds: u32,
    /// Requests a second of one token; 0: no limit.
    pub token_rate: u32,
    /// Requests of one token at once, beyond the rate.
    pub token_burst: u32,
    /// Requests a second without a valid token from one address; 0: no limit.
    pub address_rate: u32,
    /// Requests without a valid token from one address at once, beyond the rate.
    pub address_burst: u32,
    /// The largest uploaded import, in MiB.
    pub import_mib_max: u32,
}
