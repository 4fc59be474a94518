//! The running service, as commands use it: the same API that everybody has.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use reqwest::multipart::{Form, Part};
use reqwest::{Client, Method, RequestBuilder, Response};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::args::IntervalsArguments;
use super::wait::ProgressLine;
use crate::domain::ids::Name;
use crate::domain::period::Month;
use crate::domain::report::Dimension;
use crate::services::access::{NewToken, TokenView};
use crate::services::agents::{AgentView, EnrolmentView, NewEnrolment};
use crate::services::catalogue::{CatalogueDocument, CatalogueOutcome};
use crate::services::error::ServiceError;
use crate::services::runs::{RefusalView, RunView};
use crate::services::tenancy::NamedView;
use crate::wire::costs_v1::Costs;

/// Between two looks at an import.
const LOOK: Duration = Duration::from_millis(200);

/// A running service.
#[derive(Clone)]
pub struct Server {
    client: Client,
    address: String,
    token: String,
    actor: String,
    /// Whether an answer said that all data is made up.
    is_demo: Arc<AtomicBool>,
}

impl std::fmt::Debug for Server {
    /// Never shows the token.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Server({})", self.address)
    }
}

/// A page of a list.
#[derive(Deserialize)]
struct PageOf<T> {
    items: Vec<T>,
    next: Option<String>,
}

/// How far deriving is.
#[derive(Debug, Clone, Copy, Deserialize)]
pub(super) struct Derivation {
    pub(super) pending_marks: i64,
    pub(super) awaited_days: u64,
    pub(super) someone_works: bool,
    /// By which the next question is about the same marks.
    pub(super) moment: Option<u64>,
}

/// What a declaration of states did.
#[derive(Debug, Deserialize)]
pub(super) struct Declared {
    pub(super) lines: u64,
    pub(super) repeated: u64,
    pub(super) refused: Vec<crate::services::table::BadLine>,
    pub(super) declared: u64,
    pub(super) amended: u64,
    pub(super) taken_back: u64,
}

/// What a publication of prices did.
#[derive(Debug, Deserialize)]
pub(super) struct PublishedPrices {
    pub(super) name: String,
    pub(super) revision: i64,
    pub(super) effective_from: String,
    pub(super) effective_to: Option<String>,
    pub(super) prices: usize,
    pub(super) is_new: bool,
}

/// A token that was made, with its secret.
#[derive(Debug, Deserialize)]
pub(super) struct MadeToken {
    #[serde(flatten)]
    pub(super) token: TokenView,
    pub(super) secret: Option<String>,
}

/// An enrolment token that was made, with its secret.
#[derive(Debug, Deserialize)]
pub(super) struct MadeEnrolment {
    #[serde(flatten)]
    pub(super) enrolment: EnrolmentView,
    pub(super) secret: Option<String>,
}

fn away(error: &reqwest::Error) -> ServiceError {
    let mut reason = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        reason = format!("{reason}: {error}");
        cause = error.source();
    }
    ServiceError::Answered {
        kind: "away".to_owned(),
        detail: format!("the running service does not answer: {reason}"),
    }
}

impl Server {
    /// `actor` gives the commands, for the record.
    pub(super) fn at(address: String, token: String, actor: &str) -> Option<Self> {
        // Whatever proxy the environment names is for other machines.
        let client = Client::builder().no_proxy().build().ok()?;
        Some(Self { client, address, token, actor: actor.to_owned(), is_demo: Arc::default() })
    }

    pub(super) fn is_demo(&self) -> bool {
        self.is_demo.load(Ordering::Relaxed)
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self.client.request(method, format!("{}{path}", self.address));
        let request = request.bearer_auth(&self.token);
        // A name that a header cannot hold is left out; the service then names its own user.
        match reqwest::header::HeaderValue::from_str(&self.actor) {
            Ok(actor) => request.header("Fatia-Actor", actor),
            Err(_) => request,
        }
    }

    async fn send(&self, request: RequestBuilder) -> Result<Response, ServiceError> {
        let response = request.send().await.map_err(|error| away(&error))?;
        if response.headers().get("Fatia-Demo").is_some_and(|said| said == "true") {
            self.is_demo.store(true, Ordering::Relaxed);
        }
        if response.status().is_success() {
            return Ok(response);
        }
        let text = response.text().await.map_err(|error| away(&error))?;
        let problem: Value = serde_json::from_str(&text).unwrap_or_default();
        let said = problem["detail"].as_str().unwrap_or("the running service refuses");
        let faults = problem["errors"].as_array().map(Vec::as_slice).unwrap_or_default();
        let mut detail = said.to_owned();
        if faults.len() > 1 {
            for fault in faults {
                let places = ["pointer", "parameter", "header", "path"];
                let place = places.into_iter().find_map(|key| fault[key].as_str()).unwrap_or_default();
                detail.push_str(&format!("\n  {place} {}", fault["detail"].as_str().unwrap_or_default()));
            }
        }
        let kind = problem["type"].as_str().unwrap_or_default().to_owned();
        Err(ServiceError::Answered { kind, detail })
    }

    async fn read<T: DeserializeOwned>(&self, request: RequestBuilder) -> Result<T, ServiceError> {
        let text = self.send(request).await?.text().await.map_err(|error| away(&error))?;
        serde_json::from_str(&text).map_err(|error| ServiceError::Answered {
            kind: "unreadable".to_owned(),
            detail: format!("the running service answers in another version's words: {error}"),
        })
    }

    /// All values of a list, page by page.
    async fn all<T: DeserializeOwned>(&self, path: &str) -> Result<Vec<T>, ServiceError> {
        let (mut all, mut after) = (Vec::new(), None::<String>);
        loop {
            let mut request = self.request(Method::GET, path).query_pair("limit", "1000");
            if let Some(after) = &after {
                request = request.query_pair("after", after);
            }
            let page: PageOf<T> = self.read(request).await?;
            all.extend(page.items);
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(all),
            }
        }
    }

    pub(super) async fn costs(
        &self,
        month: Month,
        dimensions: &[Dimension],
    ) -> Result<(Costs, i64), ServiceError> {
        let words: Vec<&str> = dimensions.iter().map(|each| each.word()).collect();
        let request = self
            .request(Method::GET, "/api/v1/reports/costs")
            .query_pair("period", &month.to_string())
            .query_pair("group_by", &words.join(","));
        let response = self.send(request).await?;
        let pending = response.headers().get("Fatia-Pending-Marks").and_then(|value| value.to_str().ok());
        let pending = pending.and_then(|text| text.parse().ok()).unwrap_or_default();
        let text = response.text().await.map_err(|error| away(&error))?;
        let costs: Costs = serde_json::from_str(&text).map_err(ServiceError::Encode)?;
        Ok((costs.ordered(), pending))
    }

    /// Uploads an import and waits for its end.
    pub(super) async fn import(
        &self,
        arguments: &IntervalsArguments,
        line: ProgressLine,
    ) -> Result<(RunView, Vec<RefusalView>), ServiceError> {
        let mut run: RunView = loop {
            let request = self.request(Method::POST, "/api/v1/imports").multipart(form(arguments).await?);
            match self.read(request).await {
                // Others are being worked on.
                Err(ServiceError::Answered { kind, .. }) if kind.ends_with(":too-many-requests") => {
                    line.show("waiting for other imports");
                    tokio::time::sleep(Duration::from_secs(2)).await;
                }
                ended => break ended?,
            }
        };
        let path = format!("/api/v1/imports/{}", run.id);
        while run.state == "running" {
            line.show(&format!("importing: {} of {} batches", run.answered, run.batches));
            tokio::time::sleep(LOOK).await;
            run = self.read(self.request(Method::GET, &path)).await?;
        }
        line.clear();
        let refused = self.all(&format!("{path}/refused-lines")).await?;
        Ok((run, refused))
    }

    pub(super) async fn declare(
        &self,
        source: &Name,
        file: &str,
        table: String,
    ) -> Result<Declared, ServiceError> {
        let request = self.request(Method::POST, "/api/v1/states");
        let request = request.query_pair("file", &called(file)).query_pair("source", source.as_str());
        self.read(packed(request, "text/csv", &table)?).await
    }

    pub(super) async fn publish(&self, file: &str, text: String) -> Result<PublishedPrices, ServiceError> {
        let request = self.request(Method::POST, "/api/v1/price-books").query_pair("file", &called(file));
        self.read(packed(request, "application/toml", &text)?).await
    }

    pub(super) async fn load_catalogue(
        &self,
        file: &str,
        text: String,
    ) -> Result<CatalogueOutcome, ServiceError> {
        let request = self.request(Method::PUT, "/api/v1/catalogue").query_pair("file", &called(file));
        self.read(packed(request, "application/toml", &text)?).await
    }

    pub(super) async fn catalogue(&self, model: Option<&Name>) -> Result<CatalogueDocument, ServiceError> {
        let mut request = self.request(Method::GET, "/api/v1/catalogue");
        if let Some(model) = model {
            request = request.query_pair("model", model.as_str());
        }
        self.read(request).await
    }

    /// Waits a while for what is marked now, or was at a moment.
    pub(super) async fn derivation(
        &self,
        wait_seconds: u32,
        moment: Option<u64>,
    ) -> Result<Derivation, ServiceError> {
        let mut request = self.request(Method::GET, "/api/v1/derivation");
        request = request.query_pair("wait", &wait_seconds.to_string());
        if let Some(moment) = moment {
            request = request.query_pair("moment", &moment.to_string());
        }
        self.read(request).await
    }

    pub(super) async fn rebuild(&self) -> Result<i64, ServiceError> {
        let answer: Value = self.read(self.request(Method::POST, "/api/v1/derivation/rebuild")).await?;
        Ok(answer["pending_marks"].as_i64().unwrap_or_default())
    }

    /// Verdict, subject and detail of each check.
    pub(super) async fn checks(&self) -> Result<Vec<[String; 3]>, ServiceError> {
        let answer: Value = self.read(self.request(Method::GET, "/api/v1/derivation/checks")).await?;
        let text = |check: &Value, key: &str| check[key].as_str().unwrap_or_default().to_owned();
        let checks = answer["checks"].as_array().map(Vec::as_slice).unwrap_or_default();
        Ok(checks.iter().map(|check| ["verdict", "subject", "detail"].map(|key| text(check, key))).collect())
    }

    pub(super) async fn make_token(&self, new: &NewToken) -> Result<MadeToken, ServiceError> {
        let scopes: Vec<&str> = new.only.iter().map(|each| each.word()).collect();
        let body = json!({
            "name": new.name.as_str(),
            "role": new.role.word(),
            "tenant": new.tenant.as_ref().map(Name::as_str),
            "scopes": scopes,
            "expires": new.expires.map(|expires| expires.to_string()),
        });
        self.read(self.post_json("/api/v1/tokens", &body)).await
    }

    pub(super) async fn tokens(&self) -> Result<Vec<TokenView>, ServiceError> {
        self.all("/api/v1/tokens").await
    }

    pub(super) async fn revoke_token(&self, id: &str) -> Result<TokenView, ServiceError> {
        self.read(self.request(Method::POST, &format!("/api/v1/tokens/{}/revoke", segment(id)))).await
    }

    pub(super) async fn make_enrolment(&self, new: &NewEnrolment) -> Result<MadeEnrolment, ServiceError> {
        let body = json!({
            "nodes": new.nodes.as_str(), "since": new.since.map(|since| since.to_string()), "replaces": new.replaces,
            "seconds": new.seconds,
        });
        self.read(self.post_json("/api/v1/enrolment-tokens", &body)).await
    }

    pub(super) async fn agents(&self) -> Result<Vec<AgentView>, ServiceError> {
        self.all("/api/v1/agents").await
    }

    pub(super) async fn revoke_agent(&self, id: &str) -> Result<AgentView, ServiceError> {
        self.read(self.request(Method::POST, &format!("/api/v1/agents/{}/revoke", segment(id)))).await
    }

    pub(super) async fn make_tenant(&self, name: &Name) -> Result<NamedView, ServiceError> {
        self.read(self.post_json("/api/v1/tenants", &json!({ "name": name.as_str() }))).await
    }

    pub(super) async fn make_project(&self, tenant: &Name, name: &Name) -> Result<NamedView, ServiceError> {
        let path = format!("/api/v1/tenants/{}/projects", segment(tenant.as_str()));
        self.read(self.post_json(&path, &json!({ "name": name.as_str() }))).await
    }

    pub(super) async fn tenants(&self) -> Result<Vec<NamedView>, ServiceError> {
        self.all("/api/v1/tenants").await
    }

    pub(super) async fn projects(&self, tenant: &str) -> Result<Vec<NamedView>, ServiceError> {
        self.all(&format!("/api/v1/tenants/{}/projects", segment(tenant))).await
    }

    fn post_json(&self, path: &str, body: &Value) -> RequestBuilder {
        let request = self.request(Method::POST, path);
        request.header("Content-Type", "application/json").body(body.to_string())
    }
}

/// Adds a query parameter.
trait QueryPair {
    fn query_pair(self, name: &str, value: &str) -> Self;
}

impl QueryPair for RequestBuilder {
    fn query_pair(self, name: &str, value: &str) -> Self {
        self.query(&[(name, value)])
    }
}

fn segment(name: &str) -> String {
    percent_encoding::utf8_percent_encode(name, percent_encoding::NON_ALPHANUMERIC).to_string()
}

async fn form(arguments: &IntervalsArguments) -> Result<Form, ServiceError> {
    let mut form = Form::new()
        .text("source", arguments.source.to_string())
        .text("rank", arguments.rank.word())
        .part("inventory", part(&arguments.inventory).await?)
        .part("intervals", part(&arguments.file).await?);
    if let Some(slices) = &arguments.slices {
        form = form.part("slices", part(slices).await?);
    }
    if let Some(covers) = arguments.covers {
        form = form.text("covers", format!("{}/{}", covers.start(), covers.end()));
    }
    Ok(form)
}

/// The end of a file's name, as much of it as the service takes.
fn called(file: &str) -> String {
    let mut from = file.len().saturating_sub(200);
    while !file.is_char_boundary(from) {
        from += 1;
    }
    file.get(from..).unwrap_or_default().to_owned()
}

/// A text as a body that takes little room.
fn packed(request: RequestBuilder, media: &str, text: &str) -> Result<RequestBuilder, ServiceError> {
    let cannot =
        |error: std::io::Error| ServiceError::File { file: "a body".to_owned(), reason: error.to_string() };
    let body = zstd::bulk::compress(text.as_bytes(), 3).map_err(cannot)?;
    Ok(request.header("Content-Type", media).header("Content-Encoding", "zstd").body(body))
}

/// A file as a part of an upload, under the name by which its operator knows it.
async fn part(path: &Path) -> Result<Part, ServiceError> {
    let name = path.display().to_string();
    let cannot = |error: std::io::Error| ServiceError::File {
        file: name.clone(),
        reason: format!("cannot be opened: {error}"),
    };
    let bytes = std::fs::read(path).map_err(cannot)?;
    Ok(Part::bytes(bytes).file_name(name))
}
