//! The API's document: it changes on purpose only, is valid, and the service keeps to it on both databases.
//!
//! Two programs of others are the judges. They are found by `JUDGE_PYTHON`, an interpreter that has
//! `deploy/ci/requirements.txt`, and `JUDGE_PROMTOOL`; `make test` installs and names them. Without them it is said that
//! nothing was judged.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use super::access::two_tenants;
use crate::support::platform::on_both_databases;

#[expect(clippy::disallowed_methods, reason = "switches of the tests themselves, which have no settings")]
fn variable(name: &str) -> Option<std::ffi::OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

fn judge(name: &str) -> Option<PathBuf> {
    let found = variable(name).map(PathBuf::from).filter(|program| program.exists());
    if found.is_none() {
        println!("{name} names no program: nothing was judged");
    }
    found
}

fn told(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conformance")
}

/// The committed document is what a reviewer reads. Whoever changes the API writes it anew:
/// `WRITE_SNAPSHOTS=1 cargo test --test it contract`.
#[test]
fn the_document_is_the_committed_one() {
    let path = folder().join("openapi.json");
    let document = serde_json::to_string_pretty(&fatia::http::document()).expect("JSON") + "\n";
    if variable("WRITE_SNAPSHOTS").is_some() {
        std::fs::write(&path, &document).expect("the folder can be written");
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    let first = committed.lines().zip(document.lines()).enumerate().find(|(_, (old, new))| old != new);
    assert!(committed == document, "the document is another than the committed one, first at {first:?}");
}

#[test]
fn the_document_is_valid() {
    let Some(python) = judge("JUDGE_PYTHON") else { return };
    let output = Command::new(python)
        .args(["-m", "openapi_spec_validator", "--schema", "3.1"])
        .arg(folder().join("openapi.json"))
        .output()
        .expect("the interpreter starts");
    assert!(output.status.success(), "{}", told(&output));
}

on_both_databases! {
    async fn the_service_keeps_to_its_document(platform: &TestPlatform) {
        let Some(python) = judge("JUDGE_PYTHON") else { return };
        let (api, _) = two_tenants(platform).await;
        let examples = if variable("LONG_TESTS").is_some() { "200" } else { "20" };
        let (document, token) = (api.url("/api/openapi.json"), api.operator.clone());
        let scratch = tempfile::tempdir().expect("a folder to test in");
        let work = scratch.path().to_owned();
        let output = tokio::task::spawn_blocking(move || {
            Command::new(python)
                .args(["-m", "schemathesis.cli", "--config-file"])
                .arg(folder().join("schemathesis.toml"))
                .args(["run", &document, "--checks", "all", "--seed", "4", "--max-examples", examples])
                .args(["--no-color", "--warnings", "off", "--header", &format!("Authorization: Bearer {token}")])
                .env("SCHEMATHESIS_HOOKS", "hooks")
                .env("PYTHONPATH", folder())
                .env("PYTHONDONTWRITEBYTECODE", "1")
                // It keeps what it found beside where it runs.
                .current_dir(work)
                .output()
        });
        let output = output.await.expect("no panic").expect("the interpreter starts");
        assert!(output.status.success(), "{}", told(&output));
        assert!(told(&output).contains("No issues found"), "{}", told(&output));
    }

    async fn figures_have_the_names_that_their_collector_asks_for(platform: &TestPlatform) {
        let Some(promtool) = judge("JUDGE_PROMTOOL") else { return };
        let (api, _) = two_tenants(platform).await;
        let text = api.get(&api.operator, "/metrics").await.is(200).text;
        for name in ["fatia_http_requests_total", "fatia_derivation_marks_pending", "fatia_build_info"] {
            assert!(text.contains(&format!("# TYPE {name}")), "{name}");
        }
        let file = tempfile::NamedTempFile::new().expect("a file to test with");
        std::fs::write(file.path(), text).expect("it can be written");
        let input = std::fs::File::open(file.path()).expect("it is there");
        let output = Command::new(promtool).args(["check", "metrics"]).stdin(input).output();
        let output = output.expect("promtool starts");
        assert!(output.status.success() && told(&output).trim().is_empty(), "{}", told(&output));
    }
}
