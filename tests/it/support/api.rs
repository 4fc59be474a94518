//! The service's door on an open installation: a real socket, and a client that speaks to it.
//!
//! Always true here: the port is one that the system gave; a request shows what was answered whatever it was; limits on
//! how often somebody may ask are off unless a test turns them on.

use std::sync::atomic::{AtomicU64, Ordering};

use fatia::http::{self, Door, Running, Settings};
use fatia::services::ctx::Platform;
use fatia::wire::token::{self, Minted};
use reqwest::{Client, Method, StatusCode};
use serde_json::{Value, json};

/// A service that answers.
pub struct Api {
    pub running: Running,
    client: Client,
    /// The operator's token.
    pub operator: String,
}

/// What was answered.
#[derive(Debug, Clone)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub text: String,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    #[track_caller]
    pub fn is(self, status: u16) -> Answer {
        assert_eq!(self.status, status, "{}", self.text);
        self
    }

    /// Everything that was said, for a search.
    pub fn everything(&self) -> String {
        let headers: Vec<String> =
            self.headers.iter().map(|(name, value)| format!("{name}: {value}")).collect();
        format!("{}\n\n{}", headers.join("\n"), self.text)
    }

    /// The faults, as `pointer detail`.
    pub fn faults(&self) -> Vec<String> {
        let document = self.json();
        let errors = document["errors"].as_array().cloned().unwrap_or_default();
        let place = |fault: &Value| {
            let keys = ["pointer", "parameter", "header", "path"];
            keys.iter().find_map(|key| fault[*key].as_str().map(str::to_owned)).unwrap_or_default()
        };
        errors.iter().map(|fault| format!("{} {}", place(fault), fault["detail"].as_str().unwrap())).collect()
    }
}

/// A request that is being made.
pub struct Ask<'a> {
    api: &'a Api,
    request: reqwest::RequestBuilder,
}

impl Ask<'_> {
    pub fn token(self, token: &str) -> Self {
        Self { request: self.request.bearer_auth(token), ..self }
    }

    pub fn header(self, name: &str, value: &str) -> Self {
        Self { request: self.request.header(name, value), ..self }
    }

    pub fn json(self, body: &Value) -> Self {
        self.body("application/json", body.to_string())
    }

    pub fn body(self, media: &str, body: impl Into<reqwest::Body>) -> Self {
        Self { request: self.request.header("Content-Type", media).body(body), ..self }
    }

    pub fn form(self, form: reqwest::multipart::Form) -> Self {
        Self { request: self.request.multipart(form), ..self }
    }

    pub async fn send(self) -> Answer {
        let _api = self.api;
        let response = self.request.send().await.unwrap_or_else(|error| panic!("no answer: {error:?}"));
        let status: StatusCode = response.status();
        let headers = response
            .headers()
            .iter()
            .map(|(name, value)| (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned()))
            .collect();
        let text = response.text().await.unwrap_or_else(|error| panic!("no text: {error:?}"));
        Answer { status: status.as_u16(), headers, text }
    }
}

/// What `main` does for the program.
pub fn install_crypto() {
    let _already = rustls::crypto::ring::default_provider().install_default();
}

/// How tests want to be answered: without limits on how often they ask.
pub fn settings() -> Settings {
    Settings {
        listen: "127.0.0.1:0".parse().expect("an address"),
        tls: None,
        threads: 2,
        connections_max: 4_096,
        head_seconds: 5,
        body_seconds: 20,
        stop_seconds: 5,
        token_rate: 0,
        token_burst: 0,
        address_rate: 0,
        address_burst: 0,
        import_mib_max: 64,
    }
}

/// Different each time, and nobody's secret.
pub fn mint() -> Minted {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let mut bytes = [0; 40];
    fill(&mut bytes).expect("always");
    bytes[..8].copy_from_slice(&NEXT.fetch_add(1, Ordering::Relaxed).to_be_bytes());
    token::mint(&bytes)
}

fn fill(bytes: &mut [u8]) -> Result<(), String> {
    getrandom::fill(bytes).map_err(|error| error.to_string())
}

impl Api {
    pub fn of(platform: &Platform) -> Api {
        Api::with(platform, settings())
    }

    pub fn with(platform: &Platform, settings: Settings) -> Api {
        let minted = mint();
        let door = Door { settings, token: minted.clone(), random: fill };
        let running = http::start(platform, door).unwrap_or_else(|error| panic!("no service: {error}"));
        install_crypto();
        let client = Client::builder().no_proxy().build().expect("a client");
        Api { running, client, operator: minted.text }
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.running.address)
    }

    pub fn ask(&self, method: &str, path: &str) -> Ask<'_> {
        let method = Method::from_bytes(method.as_bytes()).expect("a method");
        Ask { api: self, request: self.client.request(method, self.url(path)) }
    }

    pub async fn get(&self, token: &str, path: &str) -> Answer {
        self.ask("GET", path).token(token).send().await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Answer {
        self.ask("POST", path).token(&self.operator).json(body).send().await
    }

    /// A token of a role; of a tenant where it is named.
    pub async fn token(&self, role: &str, tenant: Option<&str>) -> String {
        let body = json!({ "name": format!("{role} of {tenant:?}"), "role": role, "tenant": tenant });
        let made = self.post("/api/v1/tokens", &body).await.is(201).json();
        made["secret"].as_str().expect("its text is shown").to_owned()
    }

    /// All values of a list, page by page.
    pub async fn all(&self, token: &str, path: &str, limit: u32) -> Vec<Value> {
        let (mut all, mut after) = (vec![], String::new());
        let join = if path.contains('?') { '&' } else { '?' };
        loop {
            let page = self.get(token, &format!("{path}{join}limit={limit}{after}")).await.is(200).json();
            all.extend(page["items"].as_array().expect("a list").iter().cloned());
            match page["next"].as_str() {
                Some(next) => after = format!("&after={next}"),
                None => return all,
            }
        }
    }
}
