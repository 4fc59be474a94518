//! The web pages, as `web/` was built: the files lie in the program, and nothing is fetched from elsewhere.
//!
//! Owns which file answers which path, and how long a browser may keep it. Does not own what the pages show: their
//! script asks the API, with the reader's own token. Always true here: no token is needed, since the files are the same
//! for all; a program that was built without them says how they are built.

use std::borrow::Cow;

use actix_web::web::Bytes;
use rust_embed::{Embed, EmbeddedFile};

use super::call::{Call, Reply};
use super::problem::Problem;
use crate::wire::body::hex;

/// What `make web` left. Without Node there is no such folder, and the program builds all the same.
#[derive(Embed)]
#[folder = "web/dist"]
#[allow_missing = true]
struct Files;

const HTML: &str = "text/html; charset=utf-8";
/// What the pages may load and ask: this service, and no script or style that stands in a page.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
/// A name has a hash of what is in the file, so a file never changes under its name.
const FOR_EVER: &str = "public, max-age=31536000, immutable";
/// Names the files of today, so it is asked for each time.
const EACH_TIME: &str = "no-cache";
const NOT_BUILT: &str = include_str!("../../web/not-built.html");

/// Answers each path of the pages alike: what is shown, the script reads from the address. So parameters are its own.
pub(super) async fn index(call: Call) -> Result<Reply, Problem> {
    let reply = file("index.html", HTML, call.takes_gzip).unwrap_or_else(|| Reply::bytes(HTML, NOT_BUILT));
    Ok(reply.with("Content-Security-Policy", POLICY).with("Cache-Control", EACH_TIME))
}

pub(super) async fn asset(mut call: Call) -> Result<Reply, Problem> {
    call.no_more_query()?;
    let name = call.parameter("file");
    let media = match name.rsplit_once('.').map(|(_, ending)| ending) {
        Some("js") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        _ => return Err(Problem::not_found()),
    };
    let found = file(&format!("assets/{name}"), media, call.takes_gzip).ok_or_else(Problem::not_found)?;
    Ok(found.with("Cache-Control", FOR_EVER))
}

/// A file, packed where it was packed and the asker takes that.
fn file(name: &str, media: &'static str, takes_gzip: bool) -> Option<Reply> {
    let packed = if takes_gzip { Files::get(&format!("{name}.gz")) } else { None };
    let reply = match packed {
        Some(packed) => reply(packed, media).with("Content-Encoding", "gzip"),
        None => reply(Files::get(name)?, media),
    };
    Some(reply.with("Vary", "Accept-Encoding"))
}

fn reply(file: EmbeddedFile, media: &'static str) -> Reply {
    let version = hex(&file.metadata.sha256_hash());
    let body = match file.data {
        Cow::Borrowed(bytes) => Bytes::from_static(bytes),
        Cow::Owned(bytes) => bytes.into(),
    };
    Reply::bytes(media, body).with_etag(version.get(..32).unwrap_or_default())
}
