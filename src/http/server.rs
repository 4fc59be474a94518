//! The framework's side: listening, reading a request step by step, answering, stopping.
//!
//! The order of a request: its route, its caller, how often it may ask, then its body, then its handler. Nobody's body is
//! read before it is known who sends it. Whatever a handler does with the database runs in tasks that do not end with the
//! connection.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use actix_web::body::BoxBody;
use actix_web::dev::ServerHandle;
use actix_web::http::StatusCode;
use actix_web::http::header::{HeaderMap, HeaderName, HeaderValue};
use actix_web::{App, HttpRequest, HttpResponse, HttpServer, web};
use futures_util::FutureExt;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;

use super::ROUTES;
use super::authn::{AgentKeys, Limits, Tokens, agent_token};
use super::call::{Access, Body, Call, Method, Reply, Route, Signed, Takes};
use super::decode::{BodyReader, Encoding, Limits as BodyLimits};
use super::json;
use super::metrics::{Counted, Metrics};
use super::problem::{Kind, Problem};
use super::query::Query;
use super::settings::Settings;
use super::v1::derivation::Waits;
use super::v1::imports::Upload;
use crate::domain::access::Role;
use crate::domain::ids::Name;
use crate::services::access::{Caller, Identity};
use crate::services::agents::{AgentIdentity, record_refusal};
use crate::services::ctx::{Asked, IdempotencyKey, Platform};
use crate::services::error::{Fault, ServiceError};
use crate::services::intake::Intake;
use crate::wire::agent_v1::{ENROL_PATH, HEALTH_PATH, TIME_HEADER};
use crate::wire::body::hex;
use crate::wire::token::{self, Minted};

/// The largest body but for imports, on the wire.
const PACKED_MAX: u64 = 1 << 20;
/// The largest body but for imports, unpacked.
const UNPACKED_MAX: u64 = 4 << 20;
/// Who gives a command of this machine.
const ACTOR: &str = "Fatia-Actor";
/// Longest idempotency key.
const KEY_BYTES_MAX: usize = 255;
/// Uploaded imports that one process works on at once.
const IMPORTS_AT_ONCE: usize = 2;
/// Reports that one process makes at once; others wait their turn.
const REPORTS_AT_ONCE: usize = 4;
/// Between two rounds of forgetting who did not ask for a while.
const ROUND: Duration = Duration::from_secs(60);
const MIB: u64 = 1 << 20;

/// What all requests share.
pub(super) struct Service {
    pub(super) platform: Platform,
    pub(super) tokens: Tokens,
    pub(super) agents: AgentKeys,
    pub(super) intake: Intake,
    pub(super) limits: Limits,
    pub(super) metrics: Metrics,
    pub(super) imports: Arc<Semaphore>,
    /// Reports that are made at once: each holds all its groups in memory.
    pub(super) reports: Semaphore,
    /// The doctor looks at everything, and at one thing at a time.
    pub(super) doctor: Semaphore,
    pub(super) waits: Waits,
    /// Where work goes on that outlives its request.
    pub(super) runtime: tokio::runtime::Handle,
    settings: Settings,
    is_stopping: AtomicBool,
    /// Random, and different for each process: with the count behind it, it names requests.
    start: String,
    requests: AtomicU64,
    random: fn(&mut [u8]) -> Result<(), String>,
}

impl Service {
    pub(super) fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Relaxed)
    }

    /// Does what must come to its end also where its request does not, and waits for it.
    pub(super) async fn apart<T, F>(&self, work: F) -> Result<T, Problem>
    where
        F: Future<Output = Result<T, ServiceError>> + Send + 'static,
        T: Send + 'static,
    {
        match self.runtime.spawn(work).await {
            Ok(ended) => Ok(ended?),
            Err(error) => Err(Problem {
                cause: Some(error.to_string()),
                ..Problem::new(
                    Kind::Internal,
                    "the service failed; the log has the reason under this request",
                )
            }),
        }
    }

    fn fill(&self, bytes: &mut [u8]) -> Result<(), Problem> {
        (self.random)(bytes).map_err(|cause| Problem {
            cause: Some(cause),
            ..Problem::new(Kind::Internal, "no random bytes can be had")
        })
    }

    /// A new token.
    pub(super) fn mint(&self) -> Result<Minted, Problem> {
        let mut random = [0; 40];
        self.fill(&mut random)?;
        Ok(token::mint(&random))
    }

    pub(super) fn random_u128(&self) -> Result<u128, Problem> {
        let mut random = [0; 16];
        self.fill(&mut random)?;
        Ok(u128::from_be_bytes(random))
    }

    fn request_id(&self, given: Option<&str>) -> String {
        let is_plain = |text: &&str| {
            (1..=64).contains(&text.len())
                && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
        };
        match given.filter(is_plain) {
            Some(given) => given.to_owned(),
            None => format!("{}-{}", self.start, self.requests.fetch_add(1, Ordering::Relaxed)),
        }
    }
}

/// What the service needs of its process.
#[derive(Debug, Clone)]
pub struct Door {
    /// How it answers.
    pub settings: Settings,
    /// The operator's own token, for the commands of this machine.
    pub token: Minted,
    /// Fills with random bytes.
    pub random: fn(&mut [u8]) -> Result<(), String>,
}

/// A service that answers.
#[derive(Debug)]
pub struct Running {
    /// The address on which it listens for everybody.
    pub address: SocketAddr,
    /// Where commands of this machine reach it, without TLS.
    pub local: SocketAddr,
    /// Whether `address` speaks TLS.
    pub is_tls: bool,
    handles: Vec<ServerHandle>,
    service: Stopping,
}

struct Stopping(Arc<Service>);

impl std::fmt::Debug for Stopping {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Stopping")
    }
}

impl Running {
    /// Stops: no new connection is taken, requests that are under way end, for as long as the settings say.
    pub async fn stop(&self) {
        self.service.0.is_stopping.store(true, Ordering::Relaxed);
        // All at once, under one limit. An import that goes on beyond is ended with the process; the same import
        // resumes it.
        let all = u32::try_from(IMPORTS_AT_ONCE).unwrap_or(1);
        let closed = futures_util::future::join_all(self.handles.iter().map(|handle| handle.stop(true)));
        let wait = Duration::from_secs(u64::from(self.service.0.settings.stop_seconds));
        let ended = async { tokio::join!(closed, self.service.0.imports.acquire_many(all)) };
        let _over = tokio::time::timeout(wait + Duration::from_secs(1), ended).await;
    }
}

/// Starts to answer.
///
/// # Errors
/// [`ServiceError::File`] where it cannot listen, or a certificate or key cannot be read.
pub fn start(platform: &Platform, door: Door) -> Result<Running, ServiceError> {
    let Door { settings, token, random } = door;
    let refused = |what: String, reason: String| ServiceError::File { file: what, reason };
    let tls = tls(&settings)?;
    let mut start = [0; 8];
    random(&mut start).map_err(|reason| refused("random bytes".to_owned(), reason))?;
    let service = Arc::new(Service {
        platform: platform.clone(),
        tokens: Tokens::new(&token, &platform.actor),
        agents: AgentKeys::default(),
        intake: Intake::start(platform, &tokio::runtime::Handle::current()),
        limits: Limits::new(&settings),
        metrics: Metrics::new(platform.installation.is_demo)?,
        imports: Arc::new(Semaphore::new(IMPORTS_AT_ONCE)),
        reports: Semaphore::new(REPORTS_AT_ONCE),
        doctor: Semaphore::new(1),
        waits: Waits::default(),
        runtime: tokio::runtime::Handle::current(),
        settings: settings.clone(),
        is_stopping: AtomicBool::new(false),
        start: hex(&start),
        requests: AtomicU64::new(0),
        random,
    });
    let configured = |service: &Arc<Service>, threads: usize| {
        let service = Arc::clone(service);
        HttpServer::new(move || app(Arc::clone(&service)))
            .workers(threads)
            .max_connections(settings.connections_max.div_ceil(threads))
            .client_request_timeout(Duration::from_secs(u64::from(settings.head_seconds)))
            .client_disconnect_timeout(Duration::from_secs(2))
            .keep_alive(Duration::from_secs(30))
            .shutdown_timeout(u64::from(settings.stop_seconds))
            .disable_signals()
    };
    let cannot = |at: SocketAddr| {
        move |error: std::io::Error| {
            refused(at.to_string(), format!("cannot listen: {error}; --listen takes another address"))
        }
    };
    let is_tls = tls.is_some();
    let mut handles = Vec::new();
    let mut run = |server: actix_web::dev::Server| {
        handles.push(server.handle());
        service.runtime.spawn(server);
    };
    let server = configured(&service, settings.threads);
    let server = match tls {
        Some(tls) => server.bind_rustls_0_23(settings.listen, tls),
        None => server.bind(settings.listen),
    };
    let server = server.map_err(cannot(settings.listen))?;
    let address = server.addrs().first().copied().unwrap_or(settings.listen);
    run(server.run());
    // Commands of this machine trust no certificate and no other machine: they have an entrance of their own where the
    // main one speaks TLS.
    let local = if is_tls {
        let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let server = configured(&service, 1).bind(loopback).map_err(cannot(loopback))?;
        let local = server.addrs().first().copied().unwrap_or(loopback);
        run(server.run());
        local
    } else if address.ip().is_unspecified() {
        SocketAddr::from((Ipv4Addr::LOCALHOST, address.port()))
    } else {
        address
    };
    let forgetting = Arc::downgrade(&service);
    service.runtime.spawn(async move {
        loop {
            tokio::time::sleep(ROUND).await;
            let Some(service) = forgetting.upgrade() else { return };
            service.limits.forget_idle();
        }
    });
    Ok(Running { address, local, is_tls, handles, service: Stopping(service) })
}

fn tls(settings: &Settings) -> Result<Option<rustls::ServerConfig>, ServiceError> {
    let refused =
        |path: &Path, reason: String| ServiceError::File { file: path.display().to_string(), reason };
    let Some((certificate, key)) = &settings.tls else { return Ok(None) };
    let chain = CertificateDer::pem_file_iter(certificate)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| refused(certificate, format!("is no PEM file of certificates: {error}")))?;
    let secret = PrivateKeyDer::from_pem_file(key)
        .map_err(|error| refused(key, format!("is no PEM file of a private key: {error}")))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map(|builder| builder.with_no_client_auth())
        .and_then(|builder| builder.with_single_cert(chain, secret))
        .map(Some)
        .map_err(|error| refused(certificate, format!("cannot be used: {error}")))
}

fn app(
    service: Arc<Service>,
) -> App<
    impl actix_web::dev::ServiceFactory<
        actix_web::dev::ServiceRequest,
        Config = (),
        Response = actix_web::dev::ServiceResponse<BoxBody>,
        Error = actix_web::Error,
        InitError = (),
    >,
> {
    let mut app = App::new();
    let mut paths: Vec<&'static str> = ROUTES.iter().map(|route| route.path).collect();
    paths.sort_unstable();
    paths.dedup();
    for path in paths {
        let routes: Vec<&'static Route> = ROUTES.iter().filter(|route| route.path == path).collect();
        let (service, routes) = (Arc::clone(&service), Arc::new(routes));
        app = app.service(web::resource(path).to(move |request: HttpRequest, payload: web::Payload| {
            answer(Arc::clone(&service), Some(Arc::clone(&routes)), request, payload)
        }));
    }
    app.default_service(web::to(move |request: HttpRequest, payload: web::Payload| {
        answer(Arc::clone(&service), None, request, payload)
    }))
}

/// A text header, if it is there.
fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// What of a request is kept for its answer and the log.
struct Exchange {
    id: String,
    method: String,
    if_none_match: Option<String>,
    began: i64,
    actor: String,
    /// Whether the answer says what time it is: agents place what they saw by it.
    tells_time: bool,
    /// Whether all that is answered is made up.
    is_demo: bool,
}

async fn answer(
    service: Arc<Service>,
    routes: Option<Arc<Vec<&'static Route>>>,
    request: HttpRequest,
    payload: web::Payload,
) -> HttpResponse {
    let headers = request.headers();
    let route = routes.as_ref().and_then(|routes| routes.first()).map_or("none", |route| route.path);
    let mut exchange = Exchange {
        id: service.request_id(header(headers, "X-Request-Id")),
        // A method is the client's own word: only those that are known get into figures.
        method: match request.method().as_str() {
            known @ ("GET" | "HEAD" | "POST" | "PUT" | "DELETE" | "OPTIONS" | "PATCH") => known.to_owned(),
            _ => "OTHER".to_owned(),
        },
        if_none_match: header(headers, "If-None-Match").map(str::to_owned),
        began: service.platform.now().micros(),
        actor: String::new(),
        is_demo: service.platform.installation.is_demo,
        tells_time: route == ENROL_PATH || route == HEALTH_PATH,
    };
    // Dropped with the handler, also where the client goes away and the framework gives it up.
    let counted = Counted::in_gauge(&service.metrics.in_flight);
    let work = handle(&service, routes, &request, payload, &mut exchange);
    let result = match AssertUnwindSafe(work).catch_unwind().await {
        Ok(result) => result,
        Err(_) => Err(Problem {
            cause: Some("a handler panicked".to_owned()),
            ..Problem::new(Kind::Internal, "the service failed; the log has the reason under this request")
        }),
    };
    drop(counted);
    let mut response = match result {
        Ok(reply) => shape(reply, &exchange),
        Err(problem) => {
            if let Some(cause) = &problem.cause {
                let id = &exchange.id;
                tracing::warn!(request = %id, route, "request {id} failed: {cause}");
            }
            refuse(&problem, &exchange)
        }
    };
    if exchange.tells_time {
        put(response.headers_mut(), TIME_HEADER, &service.platform.now().micros().to_string());
    }
    let status = response.status().as_u16();
    let micros = service.platform.now().micros().saturating_sub(exchange.began);
    service.metrics.answered(&exchange.method, route, status, micros);
    let (id, method, actor) = (&exchange.id, &exchange.method, &exchange.actor);
    tracing::debug!(request = %id, %method, route, status, micros, %actor, "{method} {route}: {status}");
    response
}

async fn handle(
    service: &Arc<Service>,
    routes: Option<Arc<Vec<&'static Route>>>,
    request: &HttpRequest,
    payload: web::Payload,
    exchange: &mut Exchange,
) -> Result<Reply, Problem> {
    let headers = request.headers();
    let address = request.peer_addr().map(|peer| peer.ip());
    let count = |problem: Problem| match service.limits.address(address) {
        Ok(()) => problem,
        Err(limited) => {
            service.metrics.refused("address_rate");
            limited
        }
    };
    let Some(routes) = routes else { return Err(count(Problem::not_found())) };
    let allow = || {
        let mut words: Vec<&str> = routes.iter().map(|route| route.method.word()).collect();
        if words.contains(&"GET") {
            words.push("HEAD");
        }
        words.push("OPTIONS");
        words.join(", ")
    };
    let method = match request.method().as_str() {
        "GET" | "HEAD" => Some(Method::Get),
        "POST" => Some(Method::Post),
        "PUT" => Some(Method::Put),
        "DELETE" => Some(Method::Delete),
        "OPTIONS" => {
            service.limits.address(address)?;
            let empty = Reply::bytes("", Vec::new());
            return Ok(Reply { status: 204, ..empty }.with("Allow", allow()));
        }
        _ => None,
    };
    let Some(route) = routes.iter().copied().find(|route| Some(route.method) == method) else {
        let detail = format!("this path takes {}", allow());
        let problem = Problem { allow: Some(allow()), ..Problem::new(Kind::MethodNotAllowed, detail) };
        return Err(count(problem));
    };
    let signed = signer(service, route, request, address, exchange).await?;
    let is_agent = signed.is_some();
    let caller = match is_agent {
        true => None,
        false => caller(service, route, headers, address, exchange, Count::First).await?,
    };
    let (body, digest) = body(service, route, headers, payload).await?;
    // A body may take its time, and its sender's token may have been revoked meanwhile.
    let caller = match (route.takes, caller) {
        (Takes::Nothing, known) => known,
        (_, _) if is_agent => None,
        (_, _) => self::caller(service, route, headers, address, exchange, Count::Again).await?,
    };
    let (caller, signed) = match (caller, signed) {
        (Some((identity, asked)), _) => {
            let identity = named(identity, headers);
            let asked = with_key(asked, headers, route, request, digest)?;
            (Some(Caller::new(&service.platform, identity, asked)), None)
        }
        (None, Some((agent, signed))) => {
            let asked = Asked { token: String::new(), request: exchange.id.clone(), idempotency: None };
            let asked = with_key(asked, headers, route, request, digest)?;
            (Some(Caller::of_agent(&service.platform, agent, asked)), Some(signed))
        }
        (None, None) => (None, None),
    };
    let mut parameters = Vec::new();
    for (name, value) in request.match_info().iter() {
        let decoded = percent_encoding::percent_decode_str(value).decode_utf8();
        parameters.push((name.to_owned(), decoded.map_err(|_| Problem::not_found())?.into_owned()));
    }
    let call = Call {
        service: Arc::clone(service),
        route,
        caller,
        request: exchange.id.clone(),
        parameters,
        query: Query::parse(request.query_string()),
        body,
        digest,
        signed,
        // What is no text is no version that anybody gave, and must not look as if nothing had been said.
        if_match: headers.get("If-Match").map(|value| value.to_str().unwrap_or("\u{fffd}").to_owned()),
        takes_gzip: header(headers, "Accept-Encoding").is_some_and(|text| text.contains("gzip")),
    };
    (route.run)(call).await
}

/// Whether a look at the caller is a request of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Count {
    First,
    Again,
}

type Known = (Arc<Identity>, Asked);

/// Who asks: checked before anything else is read.
async fn caller(
    service: &Service,
    route: &Route,
    headers: &HeaderMap,
    address: Option<IpAddr>,
    exchange: &mut Exchange,
    look: Count,
) -> Result<Option<Known>, Problem> {
    let count = || service.limits.address(address).inspect_err(|_| service.metrics.refused("address_rate"));
    let needed = match route.access {
        // Whoever watches over the process asks often, and is answered at next to no cost.
        Access::Open if matches!(route.path, "/healthz" | "/readyz") => return Ok(None),
        Access::Open => {
            count()?;
            return Ok(None);
        }
        Access::Needs(permission) => permission,
    };
    // A header that is no text is no token either.
    let presented = headers.get("Authorization").map(|value| value.to_str().unwrap_or_default());
    let lookup = || service.limits.lookup(address).inspect_err(|_| service.metrics.refused("address_rate"));
    let identity = service.tokens.identity(&service.platform, presented, &lookup, &count).await;
    let identity = identity.inspect_err(|_| service.metrics.refused("token"))?;
    let Some(identity) = identity else {
        count()?;
        service.metrics.refused("token");
        return Err(Problem::new(Kind::Unauthorized, "this needs a token: Authorization: Bearer TOKEN"));
    };
    exchange.actor.clone_from(&identity.token);
    if look == Count::First {
        service.limits.token(&identity.token).inspect_err(|_| service.metrics.refused("token_rate"))?;
    }
    if !identity.grants.may(needed) {
        return Err(ServiceError::Forbidden { permission: needed.word() }.into());
    }
    let asked = Asked { token: String::new(), request: exchange.id.clone(), idempotency: None };
    Ok(Some((identity, asked)))
}

/// The agent that signed a request; none where somebody else asks.
async fn signer(
    service: &Service,
    route: &Route,
    request: &HttpRequest,
    address: Option<IpAddr>,
    exchange: &mut Exchange,
) -> Result<Option<(Arc<AgentIdentity>, Signed)>, Problem> {
    let Access::Needs(needed) = route.access else { return Ok(None) };
    let Some(token) = agent_token(header(request.headers(), "Authorization")) else { return Ok(None) };
    exchange.tells_time = true;
    let count = || service.limits.address(address).inspect_err(|_| service.metrics.refused("address_rate"));
    let lookup = || service.limits.lookup(address).inspect_err(|_| service.metrics.refused("address_rate"));
    let asked = (route.method.word(), request.path());
    let signer = service.agents.signer(&service.platform, token, asked, &lookup, &count).await;
    let (agent, claims) = signer.inspect_err(|_| service.metrics.refused("token"))?;
    exchange.actor.clone_from(&agent.id);
    service.limits.token(&agent.id).inspect_err(|_| service.metrics.refused("token_rate"))?;
    if !Role::Agent.may(needed) {
        return Err(ServiceError::Forbidden { permission: needed.word() }.into());
    }
    if claims.node != agent.home.name.name {
        let detail = format!("signed for node {}", claims.node);
        record_refusal(&service.platform, &agent, detail).await?;
        return Err(ServiceError::ForeignNode { own: agent.home.name.name.to_string() }.into());
    }
    Ok(Some((agent, Signed { claims, token: token.to_owned() })))
}

/// The operator's own token is that of all who work on this machine: their commands say who they are, as they do beside
/// the database.
fn named(identity: Arc<Identity>, headers: &HeaderMap) -> Arc<Identity> {
    let actor = header(headers, ACTOR).and_then(|text| Name::parse(text).ok());
    match actor {
        Some(actor) if identity.is_operator() => {
            Arc::new(Identity { name: actor.to_string(), ..(*identity).clone() })
        }
        Some(_) | None => identity,
    }
}

fn with_key(
    asked: Asked,
    headers: &HeaderMap,
    route: &Route,
    request: &HttpRequest,
    digest: [u8; 32],
) -> Result<Asked, Problem> {
    let invalid = |detail: &str| Problem::invalid(vec![Fault::header("Idempotency-Key", detail)]);
    let Some(key) = headers.get("Idempotency-Key") else { return Ok(asked) };
    let key = key.to_str().unwrap_or_default();
    if key.is_empty() || key.len() > KEY_BYTES_MAX || !key.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(invalid("is not one to 255 visible ASCII characters"));
    }
    if route.method == Method::Get {
        return Ok(asked);
    }
    let mut hash = Sha256::new();
    for part in [route.method.word(), request.uri().to_string().as_str(), &hex(&digest)] {
        hash.update(part.as_bytes());
        hash.update([0]);
    }
    let fingerprint = hash.finalize().into();
    Ok(Asked { idempotency: Some(IdempotencyKey { key: key.to_owned(), fingerprint }), ..asked })
}

/// The body, decoded as its route takes it, and the hash of its bytes.
async fn body(
    service: &Service,
    route: &Route,
    headers: &HeaderMap,
    payload: web::Payload,
) -> Result<(Body, [u8; 32]), Problem> {
    let content_type = header(headers, "Content-Type").unwrap_or_default();
    let media = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let (packed, unpacked) = match route.takes {
        Takes::Files => {
            let most = u64::from(service.settings.import_mib_max).saturating_mul(MIB);
            (most, most)
        }
        // A table takes no more memory than it is long.
        Takes::JsonOrCsv if media == "text/csv" => (4 * PACKED_MAX, 2 * UNPACKED_MAX),
        Takes::Batch => (PACKED_MAX, PACKED_MAX),
        Takes::Nothing | Takes::Json | Takes::JsonOrCsv | Takes::JsonOrToml | Takes::Toml => {
            (PACKED_MAX, UNPACKED_MAX)
        }
    };
    let declared = header(headers, "Content-Length").and_then(|text| text.parse::<u64>().ok());
    if declared.is_some_and(|declared| declared > packed) {
        return Err(super::decode::too_large(packed, "as sent"));
    }
    let is_empty = declared.unwrap_or(0) == 0 && !headers.contains_key("Transfer-Encoding");
    if route.takes == Takes::Nothing {
        if is_empty {
            return Ok((Body::Nothing, [0; 32]));
        }
        return Err(Problem::new(Kind::Malformed, "this request takes no body"));
    }
    let Some(media) = route.takes.types().iter().find(|known| **known == media) else {
        let detail = format!("Content-Type is none of {}", route.takes.types().join(", "));
        return Err(Problem::new(Kind::UnsupportedMediaType, detail));
    };
    let encoding = Encoding::parse(header(headers, "Content-Encoding"))?;
    let deadline = Duration::from_secs(u64::from(service.settings.body_seconds));
    // Files are packed once and hard, with windows of 8 MiB; a small body needs none larger than itself.
    let window_log = if route.takes == Takes::Files { 23 } else { 22 };
    let limits = BodyLimits { packed, unpacked, window_log, deadline };
    let mut reader = BodyReader::new(payload.into_inner(), encoding, limits)?;
    if route.takes == Takes::Files {
        // Each lies on the disk and, while it is at work, in memory: whose turn it is not yet is told so before it sends.
        let Ok(turn) = Arc::clone(&service.imports).try_acquire_owned() else {
            let detail = "other imports are being worked on; try again when one of them has ended";
            return Err(Problem { retry_after: Some(5), ..Problem::new(Kind::TooManyRequests, detail) });
        };
        let upload = Upload::read(content_type, reader, turn).await?;
        let digest = upload.digest;
        return Ok((Body::Files(upload), digest));
    }
    let bytes = reader.whole().await?;
    let digest = Sha256::digest(&bytes).into();
    if route.takes == Takes::Batch {
        return Ok((Body::Bytes(bytes), digest));
    }
    if *media == "application/json" {
        return Ok((Body::Json(json::parse(&bytes)?), digest));
    }
    let text =
        String::from_utf8(bytes).map_err(|_| Problem::new(Kind::Malformed, "the body is not UTF-8 text"))?;
    Ok((Body::Text(text), digest))
}

fn put(headers: &mut HeaderMap, name: &'static str, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(HeaderName::from_static(name), value);
    }
}

/// What all answers say.
fn common(response: &mut HttpResponse, exchange: &Exchange) {
    let headers = response.headers_mut();
    put(headers, "x-request-id", &exchange.id);
    put(headers, "x-content-type-options", "nosniff");
    put(headers, "referrer-policy", "no-referrer");
    if exchange.is_demo {
        put(headers, "fatia-demo", "true");
    }
    for (name, value) in [
        ("cache-control", "private, no-cache"),
        ("content-security-policy", "default-src 'none'; frame-ancestors 'none'"),
    ] {
        if !headers.contains_key(name) {
            put(headers, name, value);
        }
    }
}

fn shape(reply: Reply, exchange: &Exchange) -> HttpResponse {
    let status = StatusCode::from_u16(reply.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut builder = HttpResponse::build(status);
    let is_read = matches!(exchange.method.as_str(), "GET" | "HEAD") && status == StatusCode::OK;
    let version = (is_read || reply.etag.is_some()).then(|| reply.version());
    let is_known = is_read
        && version.as_deref().is_some_and(|version| {
            let known = exchange.if_none_match.as_deref().unwrap_or_default();
            known.split(',').any(|each| {
                matches!(each.trim().trim_start_matches("W/"), "*")
                    || each.trim().trim_start_matches("W/") == version
            })
        });
    let mut response = if is_known {
        HttpResponse::NotModified().finish()
    } else if reply.media.is_empty() {
        builder.finish()
    } else {
        builder.content_type(reply.media).body(reply.body)
    };
    let headers = response.headers_mut();
    for (name, value) in &reply.headers {
        if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_str(value))
        {
            headers.insert(name, value);
        }
    }
    if let Some(version) = version {
        put(headers, "etag", &version);
    }
    common(&mut response, exchange);
    response
}

fn refuse(problem: &Problem, exchange: &Exchange) -> HttpResponse {
    let status = StatusCode::from_u16(problem.kind.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut builder = HttpResponse::build(status);
    builder.content_type("application/problem+json");
    // A body that was not read to its end would be taken for the next request.
    if matches!(
        problem.kind,
        Kind::TooLarge | Kind::BodyTimeout | Kind::Malformed | Kind::UnsupportedMediaType
    ) {
        builder.force_close();
    }
    let body = problem.document(&exchange.id).to_string();
    let mut response = builder.body(body);
    let headers = response.headers_mut();
    put(headers, "cache-control", "no-store");
    if problem.kind == Kind::Unauthorized {
        put(headers, "www-authenticate", "Bearer realm=\"fatia\"");
    }
    if let Some(allow) = &problem.allow {
        put(headers, "allow", allow);
    }
    if let Some(seconds) = problem.retry_after {
        put(headers, "retry-after", &seconds.to_string());
    }
    common(&mut response, exchange);
    response
}
