//! Imports: files that are uploaded, and what becomes of them.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};

use futures_util::stream::{self, Stream};
use multer::{Constraints, Multipart, SizeLimit};
use sha2::{Digest, Sha256};
use tokio::sync::OwnedSemaphorePermit;
use uuid::Uuid;

use crate::domain::ids::Name;
use crate::domain::period::Span;
use crate::domain::units::Instant;
use crate::domain::usage::{Source, SourceRank};
use crate::http::call::{Body, Call, Reply};
use crate::http::decode::BodyReader;
use crate::http::metrics::Counted;
use crate::http::problem::{Kind, Problem};
use crate::services::error::Fault;
use crate::services::imports::{ImportRequest, Tables};
use crate::services::runs;

/// Parts of an upload that are texts are short.
const TEXT_BYTES_MAX: u64 = 1_024;

/// Files of an import, in temporary files that go with it, and what goes with them.
#[derive(Debug, Default)]
pub(in crate::http) struct Upload {
    files: Vec<(&'static str, String, File)>,
    texts: Vec<(&'static str, String)>,
    /// Of what was uploaded, whatever the boundary between its parts.
    pub(in crate::http) digest: [u8; 32],
    /// Its turn among those that are worked on at once.
    turn: Option<OwnedSemaphorePermit>,
}

const FILES: [&str; 3] = ["inventory", "slices", "intervals"];
const TEXTS: [&str; 3] = ["source", "rank", "covers"];

/// What a stream of the multipart reader fails with.
#[derive(Debug, thiserror::Error)]
#[error("the body cannot be read")]
struct Unreadable(Problem);

fn unpart(error: multer::Error) -> Problem {
    let detail = match &error {
        multer::Error::StreamReadFailed(source) => match source.downcast_ref::<Unreadable>() {
            Some(Unreadable(problem)) => return problem.clone(),
            None => "it cannot be read".to_owned(),
        },
        multer::Error::FieldSizeExceeded { limit, .. } => {
            return Problem::new(Kind::TooLarge, format!("a part has more than {limit} bytes"));
        }
        multer::Error::UnknownField { field_name } => {
            let name = crate::http::json::cut(field_name.as_deref().unwrap_or_default());
            return Problem::invalid(vec![Fault::body(format!("/{name}"), "is no part of an import")]);
        }
        error => error.to_string(),
    };
    Problem::new(Kind::Malformed, format!("the body is not multipart/form-data: {detail}"))
}

impl Upload {
    /// Reads an upload part by part; files go to disk as they come.
    pub(in crate::http) async fn read(
        content_type: &str,
        reader: BodyReader,
        turn: OwnedSemaphorePermit,
    ) -> Result<Self, Problem> {
        let boundary = multer::parse_boundary(content_type).map_err(unpart)?;
        // The reader of parts takes what may cross threads, which a connection's payload may not: one task does both.
        let (bytes, taken) = tokio::sync::mpsc::channel(1);
        let body = stream::unfold(taken, |mut taken| async { Some((taken.recv().await?, taken)) });
        let (_, upload) = tokio::join!(pump(reader, bytes), Self::parts(body, boundary));
        Ok(Self { turn: Some(turn), ..upload? })
    }

    async fn parts(
        body: impl Stream<Item = Result<bytes::Bytes, Unreadable>> + Send + 'static,
        boundary: String,
    ) -> Result<Self, Problem> {
        let mut limits = SizeLimit::new();
        for text in TEXTS {
            limits = limits.for_field(text, TEXT_BYTES_MAX);
        }
        let known = FILES.into_iter().chain(TEXTS).collect::<Vec<_>>();
        let constraints = Constraints::new().allowed_fields(known).size_limit(limits);
        let mut parts = Multipart::with_constraints(body, boundary, constraints);
        let mut upload = Self::default();
        let mut digest = Sha256::new();
        while let Some(mut part) = parts.next_field().await.map_err(unpart)? {
            let name = part.name().unwrap_or_default().to_owned();
            digest.update(name.as_bytes());
            digest.update([0]);
            if let Some(known) = TEXTS.into_iter().find(|known| *known == name) {
                let text = part.text().await.map_err(unpart)?;
                digest.update(text.as_bytes());
                upload.put(known, |upload| upload.texts.push((known, text)))?;
            } else if let Some(known) = FILES.into_iter().find(|known| *known == name) {
                let called = part.file_name().map_or_else(|| format!("{known}.csv"), last_of);
                let mut file = temporary()?;
                while let Some(bytes) = part.chunk().await.map_err(unpart)? {
                    digest.update(&bytes);
                    file.write_all(&bytes).map_err(|error| full(&error))?;
                }
                file.seek(SeekFrom::Start(0)).map_err(|error| full(&error))?;
                upload.put(known, |upload| upload.files.push((known, called, file)))?;
            }
        }
        upload.digest = digest.finalize().into();
        Ok(upload)
    }

    fn put(&mut self, name: &str, put: impl FnOnce(&mut Self)) -> Result<(), Problem> {
        let there =
            self.files.iter().map(|(known, ..)| *known).chain(self.texts.iter().map(|(known, _)| *known));
        if there.into_iter().any(|known| known == name) {
            return Err(Problem::invalid(vec![Fault::body(format!("/{name}"), "stands twice")]));
        }
        put(self);
        Ok(())
    }

    fn file(&mut self, name: &str) -> Option<(String, File)> {
        let at = self.files.iter().position(|(known, ..)| *known == name)?;
        let (_, called, file) = self.files.remove(at);
        Some((called, file))
    }

    fn text(&self, name: &str) -> Option<&str> {
        self.texts.iter().find(|(known, _)| *known == name).map(|(_, text)| text.as_str())
    }
}

/// Hands on what comes, until the end, an error, or until nobody takes it any more.
async fn pump(mut reader: BodyReader, bytes: tokio::sync::mpsc::Sender<Result<bytes::Bytes, Unreadable>>) {
    loop {
        let next = match reader.next().await {
            Ok(None) => return,
            Ok(Some(next)) => Ok(next),
            Err(problem) => Err(Unreadable(problem)),
        };
        let is_over = next.is_err();
        if bytes.send(next).await.is_err() || is_over {
            return;
        }
    }
}

/// The end of a file's name, which tells it from others more than its beginning does.
fn last_of(name: &str) -> String {
    let plain: Vec<char> = name.chars().filter(|c| !c.is_control()).collect();
    let beyond = plain.len().saturating_sub(128);
    let shown: String = plain.into_iter().skip(beyond).collect();
    if beyond > 0 { format!("…{shown}") } else { shown }
}

fn temporary() -> Result<File, Problem> {
    tempfile::tempfile().map_err(|error| full(&error))
}

fn full(error: &std::io::Error) -> Problem {
    let detail = "the upload cannot be kept now; the same may succeed later";
    Problem {
        retry_after: Some(60),
        cause: Some(error.to_string()),
        ..Problem::new(Kind::Unavailable, detail)
    }
}

pub(in crate::http) async fn upload(mut call: Call) -> Result<Reply, Problem> {
    call.no_more_query()?;
    let platform = call.platform()?;
    let Body::Files(mut upload) = std::mem::replace(&mut call.body, Body::Nothing) else {
        return Err(Problem::not_found());
    };
    let request = request(&upload)?;
    let mut faults = Vec::new();
    let (inventory, intervals) = (upload.file("inventory"), upload.file("intervals"));
    for (name, file) in [("inventory", &inventory), ("intervals", &intervals)] {
        if file.is_none() {
            faults.push(Fault::body(format!("/{name}"), "is missing"));
        }
    }
    let (Some(inventory), Some(intervals)) = (inventory, intervals) else {
        return Err(Problem::invalid(faults));
    };
    let tables = Tables { inventory, slices: upload.file("slices"), intervals };
    let turn = upload.turn.take();
    let id = Uuid::from_u128(call.service.random_u128()?).to_string();
    // What is begun is worked on, also where the client went away before it heard of it.
    let counted = Counted::in_gauge(&call.service.metrics.imports);
    let (begun, answer) = tokio::sync::oneshot::channel();
    call.service.runtime.spawn(async move {
        let _while_it_lasts = (turn, counted);
        let run = runs::begin(&platform, &request, id.clone()).await;
        // Else it is that of the request of which this one is a repeat.
        let is_ours = run.as_ref().is_ok_and(|run| run.id == id);
        let _nobody_waits = begun.send(run);
        if is_ours && let Err(error) = runs::run(&platform, &request, &id, tables).await {
            tracing::error!(import = %id, "the end of import {id} was not kept: {error}");
        }
    });
    let run = answer.await.map_err(|_| Problem::new(Kind::Internal, "the import did not begin"))??;
    let location = format!("/api/v1/imports/{}", run.id);
    Ok(Reply { status: 202, ..Reply::json(&run)? }.with("Location", location))
}

fn request(upload: &Upload) -> Result<ImportRequest, Problem> {
    let mut faults = Vec::new();
    let mut note = |name: &str, reason: String| faults.push(Fault::body(format!("/{name}"), reason));
    let sender = match upload.text("source").map(Name::parse) {
        None => Some(Name::fixed("intervals")),
        Some(Ok(name)) => Some(name),
        Some(Err(error)) => {
            note("source", error.to_string());
            None
        }
    };
    let rank = match upload.text("rank").map(SourceRank::parse) {
        None => Some(SourceRank::Import),
        Some(Ok(
            rank @ (SourceRank::Hypervisor | SourceRank::Scheduler | SourceRank::Scrape | SourceRank::Import),
        )) => Some(rank),
        Some(Ok(SourceRank::HostAgent | SourceRank::GuestAgent) | Err(_)) => {
            note("rank", "is none of hypervisor, scheduler, scrape, import".to_owned());
            None
        }
    };
    let covers = match upload.text("covers").map(span) {
        None => None,
        Some(Ok(span)) => Some(span),
        Some(Err(reason)) => {
            note("covers", reason);
            None
        }
    };
    match (sender, rank) {
        (Some(sender), Some(rank)) if faults.is_empty() => {
            Ok(ImportRequest { source: Source { rank, sender }, covers })
        }
        _ => Err(Problem::invalid(faults)),
    }
}

fn span(text: &str) -> Result<Span, String> {
    let (from, to) = text.split_once('/').ok_or("is not FROM/TO, two instants")?;
    let instant =
        |text: &str| Instant::parse(text.trim()).map_err(|_| "is not FROM/TO, two RFC 3339 instants");
    Span::new(instant(from)?, instant(to)?).map_err(|error| error.to_string())
}

pub(in crate::http) async fn list(mut call: Call) -> Result<Reply, Problem> {
    let page = call.only_page::<(i64, String)>()?;
    let (before, id) = page.after.clone().unwrap_or((i64::MAX, String::new()));
    let before = (Instant::from_micros(before), id);
    let found = runs::list(&call.platform()?, before, page.reach()).await?;
    let (found, next) = page.cut(found, |((started, id), _)| (started.micros(), id.clone()));
    Reply::page((found.into_iter().map(|(_, view)| view).collect(), next))
}

pub(in crate::http) async fn get(mut call: Call) -> Result<Reply, Problem> {
    call.no_more_query()?;
    Reply::json(&runs::find(&call.platform()?, call.name("import")?.as_str()).await?)
}

pub(in crate::http) async fn refused(mut call: Call) -> Result<Reply, Problem> {
    let page = call.only_page::<i64>()?;
    let (id, after) = (call.name("import")?, page.after.unwrap_or(0));
    let found = runs::refusals(&call.platform()?, id.as_str(), after, page.reach()).await?;
    Reply::page(page.cut(found, |each| each.ordinal))
}
