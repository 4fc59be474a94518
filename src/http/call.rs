//! A request as handlers see it, and what they answer: nothing of the framework's.

use std::sync::Arc;

use actix_web::web::Bytes;
use futures_util::future::LocalBoxFuture;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use super::json::Node;
use super::problem::{Kind, Problem};
use super::query::{Page, Query};
use super::server::Service;
use crate::domain::access::{Grants, Permission};
use crate::domain::ids::Name;
use crate::services::access::{Caller, View};
use crate::services::agents::AgentIdentity;
use crate::services::ctx::{Asked, Platform};
use crate::services::error::ServiceError;
use crate::wire::agent_v1::BATCH_TYPE;
use crate::wire::body::{hash, hex};
use crate::wire::signature::RequestClaims;

/// The methods that are answered. HEAD goes with GET.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Method {
    /// Reads.
    Get,
    /// Makes, or does.
    Post,
    /// Puts in place of what is there.
    Put,
    /// Takes away.
    Delete,
}

impl Method {
    /// The word.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Post => "POST",
            Self::Put => "PUT",
            Self::Delete => "DELETE",
        }
    }
}

/// Who may ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Anybody.
    Open,
    /// Whose token has the permission.
    Needs(Permission),
}

/// What a body may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Takes {
    /// There is none.
    Nothing,
    /// `application/json`.
    Json,
    /// `application/json`, or a table as `text/csv`.
    JsonOrCsv,
    /// `application/json`, or a file as `application/toml`.
    JsonOrToml,
    /// A file as `application/toml`.
    Toml,
    /// Files as `multipart/form-data`.
    Files,
    /// A batch as it was signed: bytes that are compressed already.
    Batch,
}

impl Takes {
    /// The media types.
    #[must_use]
    pub const fn types(self) -> &'static [&'static str] {
        match self {
            Self::Nothing => &[],
            Self::Json => &["application/json"],
            Self::JsonOrCsv => &["application/json", "text/csv"],
            Self::JsonOrToml => &["application/json", "application/toml"],
            Self::Toml => &["application/toml"],
            Self::Files => &["multipart/form-data"],
            Self::Batch => &[BATCH_TYPE],
        }
    }
}

/// Answers a request.
pub(super) type Run = fn(Call) -> LocalBoxFuture<'static, Result<Reply, Problem>>;

/// One line of the route table.
#[derive(Debug, Clone, Copy)]
pub struct Route {
    /// The method.
    pub method: Method,
    /// The path, with its parameters in braces.
    pub path: &'static str,
    /// The name of the operation, which names functions of generated clients.
    pub operation: &'static str,
    /// Who may ask.
    pub access: Access,
    /// What its body may be.
    pub takes: Takes,
    pub(super) run: Run,
}

pub(super) const fn route(
    method: Method,
    path: &'static str,
    operation: &'static str,
    access: Access,
    takes: Takes,
    run: Run,
) -> Route {
    Route { method, path, operation, access, takes, run }
}

/// A request's body, decoded.
pub(super) enum Body {
    Nothing,
    Json(Node),
    /// A file, and what it is: `csv` or `toml`.
    Text(String),
    Files(super::v1::imports::Upload),
    /// As it came.
    Bytes(Vec<u8>),
}

/// What an agent signed of its request.
#[derive(Debug, Clone)]
pub(super) struct Signed {
    pub(super) claims: RequestClaims,
    /// The token itself, which is kept.
    pub(super) token: String,
}

/// A request.
pub(super) struct Call {
    pub(super) service: Arc<Service>,
    pub(super) route: &'static Route,
    pub(super) caller: Option<Caller>,
    /// The request's id.
    pub(super) request: String,
    pub(super) parameters: Vec<(String, String)>,
    pub(super) query: Query,
    pub(super) body: Body,
    /// SHA-256 of the body's bytes.
    pub(super) digest: [u8; 32],
    /// Where an agent asks.
    pub(super) signed: Option<Signed>,
    pub(super) if_match: Option<String>,
    /// Whether an answer may be gzip.
    pub(super) takes_gzip: bool,
}

impl Call {
    fn granted(&self) -> Result<(&Caller, Permission), Problem> {
        match (&self.caller, self.route.access) {
            (Some(caller), Access::Needs(permission)) => Ok((caller, permission)),
            (None, _) | (_, Access::Open) => Err(Problem::new(Kind::Unauthorized, "a token is needed")),
        }
    }

    /// What the caller may.
    pub(super) fn grants(&self) -> Result<Grants, Problem> {
        Ok(self.granted()?.0.identity().grants.clone())
    }

    /// What an agent asks for its own node: on whose behalf, who it is, and what it signed of this body.
    pub(super) fn own_node(&self) -> Result<(Platform, Arc<AgentIdentity>, Signed), Problem> {
        let (caller, permission) = self.granted()?;
        let (platform, agent) = caller.own_node(permission)?;
        match &self.signed {
            Some(signed) if signed.claims.body_hash == self.digest => {
                Ok((platform.clone(), Arc::clone(agent), signed.clone()))
            }
            Some(_) => Err(Problem::new(Kind::Unauthorized, "the signature is of another body")),
            None => Err(Problem::new(Kind::Unauthorized, "this is for agents, who sign what they ask")),
        }
    }

    /// Everybody's rows, where the route's permission is of a role that sees them.
    pub(super) fn platform(&self) -> Result<Platform, Problem> {
        let (caller, permission) = self.granted()?;
        Ok(caller.platform(permission)?.clone())
    }

    /// The caller's rows.
    pub(super) fn view(&self) -> Result<View<'_>, Problem> {
        let (caller, permission) = self.granted()?;
        Ok(caller.view(permission)?)
    }

    /// The request itself, for what is done on behalf of nobody who is known.
    pub(super) fn asked(&self) -> Asked {
        Asked { token: String::new(), request: self.request.clone(), idempotency: None }
    }

    /// A name in the path. What cannot be a name names nothing.
    pub(super) fn name(&self, parameter: &str) -> Result<Name, Problem> {
        Name::parse(self.parameter(parameter)).map_err(|_| Problem::not_found())
    }

    pub(super) fn parameter(&self, parameter: &str) -> &str {
        let found = self.parameters.iter().find(|(name, _)| name == parameter);
        found.map_or("", |(_, value)| value.as_str())
    }

    /// What the body is called in answers.
    pub(super) fn file_name(&mut self) -> String {
        self.query.find("file", Name::parse).map_or_else(|| "the body".to_owned(), |name| name.to_string())
    }

    /// Reads which page is asked, where nothing else may be.
    pub(super) fn only_page<P: DeserializeOwned>(&mut self) -> Result<Page<P>, Problem> {
        let page = self.query.page();
        self.no_more_query()?;
        Ok(page)
    }

    /// Refuses parameters that nobody asked for.
    pub(super) fn no_more_query(&mut self) -> Result<(), Problem> {
        std::mem::take(&mut self.query).end()
    }

    /// The body as JSON.
    pub(super) fn node(&mut self) -> Result<Node, Problem> {
        match std::mem::replace(&mut self.body, Body::Nothing) {
            Body::Json(node) => Ok(node),
            Body::Nothing | Body::Text(_) | Body::Files(_) | Body::Bytes(_) => {
                Err(Problem::new(Kind::UnsupportedMediaType, "a JSON body is needed"))
            }
        }
    }
}

/// What is answered.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) status: u16,
    pub(super) media: &'static str,
    pub(super) body: Bytes,
    pub(super) headers: Vec<(&'static str, String)>,
    pub(super) etag: Option<String>,
}

pub(super) const JSON: &str = "application/json";

impl Reply {
    pub(super) fn bytes(media: &'static str, body: impl Into<Bytes>) -> Self {
        Self { status: 200, media, body: body.into(), headers: vec![], etag: None }
    }

    pub(super) fn json(value: &impl Serialize) -> Result<Self, Problem> {
        let body = serde_json::to_vec(value).map_err(ServiceError::Encode)?;
        Ok(Self::bytes(JSON, body))
    }

    /// A page of a list.
    pub(super) fn page<T: Serialize>((items, next): (Vec<T>, Option<String>)) -> Result<Self, Problem> {
        Self::json(&json!({ "items": items, "next": next }))
    }

    /// Something that was made, and where it is.
    pub(super) fn created(value: &impl Serialize, location: String) -> Result<Self, Problem> {
        Ok(Self { status: 201, ..Self::json(value)? }.with("Location", location))
    }

    pub(super) fn with(mut self, header: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((header, value.into()));
        self
    }

    pub(super) fn with_etag(mut self, version: &str) -> Self {
        self.etag = Some(format!("\"{version}\""));
        self
    }

    /// The version of the answer: as its handler said, or a hash of its bytes.
    pub(super) fn version(&self) -> String {
        match &self.etag {
            Some(etag) => etag.clone(),
            None => format!("\"{}\"", hex(&hash(&self.body)).get(..32).unwrap_or_default()),
        }
    }
}

/// A path segment that holds a name.
pub(super) fn segment(name: &str) -> String {
    percent_encoding::utf8_percent_encode(name, percent_encoding::NON_ALPHANUMERIC).to_string()
}
