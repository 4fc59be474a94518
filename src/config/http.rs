//! How the service answers: where it listens, and how much it takes.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use serde::{Deserialize, Deserializer, de::Error};

/// `[http]`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HttpSettings {
    /// Where it listens.
    pub listen: SocketAddr,
    /// A PEM file with the certificate and its chain; with `tls_key`: TLS, and nothing else, on `listen`.
    pub tls_certificate: Option<PathBuf>,
    /// A PEM file with the certificate's key.
    pub tls_key: Option<PathBuf>,
    /// Threads that read requests and write answers.
    #[serde(deserialize_with = "threads")]
    pub threads: usize,
    /// Connections at once, for all threads together; others wait until one ends.
    pub connections_max: usize,
    /// How long a request's head may take.
    #[serde(deserialize_with = "seconds")]
    pub head_seconds: u32,
    /// How long a body may take, and a second more for each 16 KiB that came.
    #[serde(deserialize_with = "seconds")]
    pub body_seconds: u32,
    /// How long requests that are under way have to end when the service stops.
    #[serde(deserialize_with = "seconds")]
    pub stop_seconds: u32,
    /// Requests a second of one token, on average; 0: no limit.
    pub token_rate: u32,
    /// Requests of one token at once, beyond the rate.
    pub token_burst: u32,
    /// Requests a second without a valid token from one address, on average; 0: no limit.
    pub address_rate: u32,
    /// Requests without a valid token from one address at once, beyond the rate.
    pub address_burst: u32,
    /// The largest uploaded import, unpacked, in MiB.
    pub import_mib_max: u32,
}

impl Default for HttpSettings {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 8_080)),
            tls_certificate: None,
            tls_key: None,
            threads: 2,
            connections_max: 8_192,
            head_seconds: 5,
            body_seconds: 20,
            stop_seconds: 20,
            token_rate: 100,
            token_burst: 400,
            address_rate: 20,
            address_burst: 100,
            import_mib_max: 256,
        }
    }
}

fn seconds<'de, D: Deserializer<'de>>(input: D) -> Result<u32, D::Error> {
    match u32::deserialize(input)? {
        seconds @ 1..=3_600 => Ok(seconds),
        other => Err(D::Error::custom(format!("{other} is not between 1 and 3600"))),
    }
}

fn threads<'de, D: Deserializer<'de>>(input: D) -> Result<usize, D::Error> {
    match usize::deserialize(input)? {
        threads @ 1..=256 => Ok(threads),
        other => Err(D::Error::custom(format!("threads {other} is not between 1 and 256"))),
    }
}

/// `[log]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LogSettings {
    /// How a line looks.
    pub format: LogFormat,
}

/// How a line of the log looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}
