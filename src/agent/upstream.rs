//! The way to the service: one request at a time, with limits on each step.

use std::io::Read;
use std::time::Duration;

use reqwest::blocking::Client;
use reqwest::{Certificate, Method};

use crate::wire::agent_v1::TIME_HEADER;

/// How long an answer may take.
const ANSWER_SECONDS: u64 = 60;
/// How long a connection may take to be made.
const CONNECT_SECONDS: u64 = 10;
/// Bytes of an answer that are read.
const ANSWER_BYTES_MAX: u64 = 4 << 20;

/// What is asked of the service.
#[derive(Debug, Clone)]
pub struct Request<'a> {
    /// The method.
    pub method: &'static str,
    /// The path.
    pub path: &'static str,
    /// The body's media type.
    pub media: &'static str,
    /// The body.
    pub body: &'a [u8],
    /// What is signed; none for an enrolment.
    pub token: Option<&'a str>,
}

/// What the service answered.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Reply {
    /// The status.
    pub status: u16,
    /// The service's time in microseconds since 1970 UTC.
    pub time_micros: Option<i64>,
    /// Seconds after which the same may succeed.
    pub retry_after: Option<u64>,
    /// The body.
    pub body: Vec<u8>,
}

/// There was no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the service cannot be reached: {0}")]
pub struct Unreachable(pub String);

/// Whoever answers.
pub trait Upstream: Send {
    /// Asks and waits for the answer.
    ///
    /// # Errors
    /// [`Unreachable`]: whether the request was taken is not known then.
    fn ask(&mut self, request: &Request<'_>) -> Result<Reply, Unreachable>;
}

/// The service at an address.
#[derive(Debug)]
pub struct Http {
    client: Client,
    server: String,
}

impl Http {
    /// A way to a service. `authority`: a PEM file of certificates, where the service's is by none that the machine
    /// trusts.
    ///
    /// # Errors
    /// In words, where the address or the certificates cannot be used.
    pub fn new(server: &str, authority: Option<&[u8]>) -> Result<Self, String> {
        if !(server.starts_with("https://") || server.starts_with("http://")) {
            return Err(format!("`{server}` is no address such as https://fatia.example:8443"));
        }
        let mut builder = Client::builder()
            .user_agent(concat!("fatia-agent/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(Duration::from_secs(CONNECT_SECONDS))
            .timeout(Duration::from_secs(ANSWER_SECONDS))
            // Whoever signs for one path must not be led to another.
            .redirect(reqwest::redirect::Policy::none())
            .pool_max_idle_per_host(1);
        if let Some(pem) = authority {
            let all =
                Certificate::from_pem_bundle(pem).map_err(|error| format!("no certificates: {error}"))?;
            builder = builder.tls_certs_only(all);
        }
        let client = builder.build().map_err(|error| error.to_string())?;
        Ok(Self { client, server: server.trim_end_matches('/').to_owned() })
    }
}

impl Upstream for Http {
    fn ask(&mut self, request: &Request<'_>) -> Result<Reply, Unreachable> {
        let unreachable = |error: &dyn std::error::Error| Unreachable(chain(error));
        let method = Method::from_bytes(request.method.as_bytes()).map_err(|error| unreachable(&error))?;
        let url = format!("{}{}", self.server, request.path);
        let mut asked = self.client.request(method, url).header("Content-Type", request.media);
        if let Some(token) = request.token {
            asked = asked.bearer_auth(token);
        }
        let answer = asked.body(request.body.to_vec()).send().map_err(|error| unreachable(&error))?;
        let number = |name: &str| answer.headers().get(name).and_then(|value| value.to_str().ok());
        let mut reply = Reply {
            status: answer.status().as_u16(),
            time_micros: number(TIME_HEADER).and_then(|text| text.parse().ok()),
            retry_after: number("retry-after").and_then(|text| text.parse().ok()),
            body: Vec::new(),
        };
        answer.take(ANSWER_BYTES_MAX).read_to_end(&mut reply.body).map_err(|error| unreachable(&error))?;
        Ok(reply)
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
