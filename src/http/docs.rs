//! The API's document, and a page that shows it: from this process alone, nothing is fetched from elsewhere.

use std::io::Read;
use std::sync::LazyLock;

use actix_web::web::Bytes;

use super::call::{Call, JSON, Reply};
use super::problem::{Kind, Problem};

/// RapiDoc 9.3.8, MIT license: `web/vendor/`.
const RAPIDOC: &[u8] = include_bytes!("../../web/vendor/rapidoc-9.3.8.min.js.gz");
const PAGE: &str = include_str!("../../web/vendor/docs.html");
/// The page's own script, apart from it: no script stands in a page.
const SCRIPT: &str = include_str!("../../web/vendor/docs.js");
/// The viewer writes styles into its own elements, and talks to this service only.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; \
                      font-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// For those who take nothing packed: unpacked once, and shared by all of them.
static RAPIDOC_PLAIN: LazyLock<Bytes> = LazyLock::new(|| {
    let mut plain = Vec::new();
    // It is one of the program's own files.
    let _whole = flate2::read::GzDecoder::new(RAPIDOC).read_to_end(&mut plain);
    plain.into()
});

static DOCUMENT: LazyLock<Bytes> =
    LazyLock::new(|| serde_json::to_vec(&super::openapi::document()).unwrap_or_default().into());

pub(super) async fn openapi(mut call: Call) -> Result<Reply, Problem> {
    call.no_more_query()?;
    Ok(Reply::bytes(JSON, DOCUMENT.clone()))
}

pub(super) async fn page(mut call: Call) -> Result<Reply, Problem> {
    call.no_more_query()?;
    Ok(Reply::bytes("text/html; charset=utf-8", PAGE).with("Content-Security-Policy", POLICY))
}

pub(super) async fn file(mut call: Call) -> Result<Reply, Problem> {
    call.no_more_query()?;
    const MEDIA: &str = "text/javascript; charset=utf-8";
    match call.parameter("file") {
        "docs.js" => Ok(Reply::bytes(MEDIA, SCRIPT)),
        "rapidoc.js" if call.takes_gzip => {
            let packed = Reply::bytes(MEDIA, RAPIDOC).with("Content-Encoding", "gzip");
            Ok(packed.with("Vary", "Accept-Encoding"))
        }
        "rapidoc.js" => Ok(Reply::bytes(MEDIA, RAPIDOC_PLAIN.clone()).with("Vary", "Accept-Encoding")),
        _ => Err(Problem::new(Kind::NotFound, "there is nothing here")),
    }
}
