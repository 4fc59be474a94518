//! The example of all settings that is shipped: it can be used as it is, and it knows what the program knows.

use std::collections::BTreeSet;
use std::path::Path;

use fatia::config::{Database, HttpSettings, LogSettings, Settings, WorkerSettings};
use fatia::domain::money::Currency;
use fatia::domain::period::BillingZone;

use super::program::Fatia;

const EXAMPLE: &str = include_str!("../../../deploy/fatia.example.toml");

/// The example with each setting in force: comments that read `key = value` without it.
fn in_force() -> String {
    let line = |line: &'static str| match key_of(line) {
        Some(_) => line.trim_start_matches("# "),
        None => line,
    };
    EXAMPLE.lines().map(line).collect::<Vec<_>>().join("\n")
}

/// The key of a commented setting.
fn key_of(line: &str) -> Option<&str> {
    let (key, _) = line.strip_prefix("# ")?.split_once(" = ")?;
    let is_key = !key.is_empty() && key.chars().all(|letter| letter.is_ascii_lowercase() || letter == '_');
    is_key.then_some(key)
}

fn load(text: &str) -> Result<Settings, String> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    std::fs::write(folder.path().join("fatia.toml"), text).expect("the folder takes a file");
    Settings::load(folder.path(), None).map_err(|error| error.to_string())
}

/// What the program says may stand where something else stood.
fn known_in(section: Option<&str>) -> BTreeSet<String> {
    let header = section.map(|section| format!("[{section}]\n")).unwrap_or_default();
    let said = load(&format!("{header}nonesuch = 1\n")).expect_err("an unknown key is refused");
    let (_, known) = said.split_once("is none of: ").unwrap_or_else(|| panic!("{said}"));
    known.split(", ").map(|word| word.trim_matches('`').to_owned()).collect()
}

#[test]
fn the_example_names_every_setting_that_there_is_and_no_other() {
    let mut named: Vec<(String, BTreeSet<String>)> = vec![];
    for line in EXAMPLE.lines() {
        if let Some(section) = line.strip_prefix('[') {
            named.push((section.trim_end_matches(']').to_owned(), BTreeSet::new()));
        } else if let Some(key) = key_of(line) {
            let (section, keys) = named.last_mut().expect("a key stands in a section");
            assert!(keys.insert(key.to_owned()), "{section}.{key} stands twice");
        }
    }
    let sections: BTreeSet<String> = named.iter().map(|(section, _)| section.clone()).collect();
    assert_eq!(sections, known_in(None));
    for (section, keys) in named {
        assert_eq!(keys, known_in(Some(&section)), "[{section}]");
    }
}

#[test]
fn the_example_changes_nothing_until_a_line_of_it_is_put_in_force() {
    assert_eq!(load(EXAMPLE), Ok(Settings::default()));
    let fatia = Fatia::new();
    fatia.write("fatia.toml", EXAMPLE);
    fatia.run(&["--config", "fatia.toml", "doctor"]).good();
}

#[test]
fn what_the_example_calls_a_default_is_one() {
    let settings = load(&in_force()).expect("each line can be put in force");
    let Settings { billing, database, http, log, worker } = settings;
    assert_eq!(billing.zone, BillingZone::parse("UTC").ok());
    assert_eq!(billing.currency, Currency::parse("USD").ok());
    // Examples, which have no default: where a database and a certificate are.
    let Database { url, migrate_url, connections } = database;
    assert!(url.is_some_and(|url| url.contains("fatia_app@")));
    assert!(migrate_url.is_some_and(|url| url.contains("fatia_migrate@")));
    assert_eq!(connections, Database::default().connections);
    assert_eq!(http.tls_certificate.as_deref(), Some(Path::new("/etc/fatia/cert.pem")));
    assert_eq!(http.tls_key.as_deref(), Some(Path::new("/etc/fatia/key.pem")));
    assert_eq!(HttpSettings { tls_certificate: None, tls_key: None, ..http }, HttpSettings::default());
    assert_eq!(log, LogSettings::default());
    assert_eq!(worker, WorkerSettings::default());
}
