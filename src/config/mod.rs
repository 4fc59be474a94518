//! Settings: read once from a file and the environment, checked as a whole, one struct a concern.
//!
//! Does not own defaults that change money: zone and currency that are not set keep what the installation has.

pub mod billing;
pub mod database;
pub mod http;
pub mod worker;

use std::path::{Path, PathBuf};

use figment::Figment;
use figment::providers::{Env, Format, Toml};
use serde::Deserialize;

pub use billing::Billing;
pub use database::Database;
pub use http::{HttpSettings, LogFormat, LogSettings};
pub use worker::WorkerSettings;

/// All settings.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Where days begin, and the book currency.
    pub billing: Billing,
    /// Which database.
    pub database: Database,
    /// How the service answers.
    pub http: HttpSettings,
    /// How it logs.
    pub log: LogSettings,
    /// How workers work.
    pub worker: WorkerSettings,
}

/// A setting cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// The message names the key and where it was set.
    #[error("settings: {}", without_secrets(.0))]
    Figment(#[from] Box<figment::Error>),
    /// A file that was named is not there.
    #[error("settings: {} is not there", .0.display())]
    NoFile(PathBuf),
}

/// The message of a fault without the value that was found: it may be a URL with a password, whatever the key.
/// Values that this program refuses itself (`Message`) show what may be shown.
fn without_secrets(error: &figment::Error) -> String {
    use figment::error::Kind;
    let key = error.path.join(".");
    let place = error.metadata.as_ref().map(|metadata| match &metadata.source {
        Some(source) => format!(" in {source}"),
        None => format!(" in {}", metadata.name),
    });
    let place = place.unwrap_or_default();
    match &error.kind {
        Kind::InvalidType(_, expected) | Kind::InvalidValue(_, expected) => {
            format!("{key}{place} is not {}", expected.to_string().replace("u32", "a whole number"))
        }
        Kind::UnknownField(field, known) => {
            format!(
                "{key}{place}: `{field}` is none of: {}",
                known.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ")
            )
        }
        // A parser shows the line that it stopped at.
        Kind::Message(text) if text.contains("://") => format!("{key}{place} cannot be read near a URL"),
        _ => error.to_string(),
    }
}

impl Settings {
    /// Reads `fatia.toml` in the data directory, or the file that was named, and the environment over it.
    ///
    /// # Errors
    /// [`SettingsError`] names the key that is unknown or malformed, and where it was set.
    pub fn load(data: &Path, file: Option<&Path>) -> Result<Self, SettingsError> {
        if let Some(file) = file.filter(|file| !file.is_file()) {
            return Err(SettingsError::NoFile(file.to_owned()));
        }
        let file = file.map_or_else(|| data.join("fatia.toml"), Path::to_owned);
        let database = Env::raw().only(&["DATABASE_URL", "DATABASE_MIGRATE_URL"]).map(|key| {
            let word = key.as_str().to_ascii_lowercase();
            word.replacen("database_", "database.", 1).into()
        });
        // An exact path: figment's own search would find a file in a parent directory.
        let from_file = if file.is_file() { Figment::from(Toml::file_exact(file)) } else { Figment::new() };
        from_file
            .merge(Env::prefixed("FATIA_").split("__"))
            .merge(database)
            .extract()
            .map_err(|error| SettingsError::Figment(Box::new(error)))
    }
}

/// Who runs this process, for the record of imports.
#[must_use]
pub fn actor() -> String {
    #[expect(clippy::disallowed_methods, reason = "settings are the one place that reads the environment")]
    let user = ["SUDO_USER", "USER", "LOGNAME"].into_iter().find_map(|name| std::env::var(name).ok());
    user.filter(|user| !user.trim().is_empty()).unwrap_or_else(|| "operator".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(text: &str) -> Result<Settings, String> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("fatia.toml"), text).unwrap();
        Settings::load(folder.path(), None).map_err(|error| error.to_string())
    }

    #[test]
    fn settings_are_read_and_faults_name_their_key() {
        let settings = load(
            "[billing]\nzone = \"America/Sao_Paulo\"\ncurrency = \"BRL\"\n[worker]\nlease_seconds = 9\n",
        )
        .unwrap();
        assert_eq!(settings.billing.zone.unwrap().name(), "America/Sao_Paulo");
        assert_eq!(settings.worker.lease_seconds, 9);
        assert_eq!(load("").unwrap(), Settings::default());
        let fails = |text: &str, part: &str| {
            let error = load(text).unwrap_err();
            assert!(error.contains(part), "{error}");
        };
        fails("[billing]\nzone = \"Mars/Base\"\n", "Mars/Base");
        fails("[billing]\nzones = \"UTC\"\n", "zones");
        fails("[worker]\nlease_seconds = 0\n", "lease_seconds");
        assert!(Settings::load(Path::new("/"), Some(Path::new("/nowhere.toml"))).is_err());
    }
}
