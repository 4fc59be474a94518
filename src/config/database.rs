//! Which database: a PostgreSQL server where a URL is set, else an embedded SQLite file in the data directory.

use serde::{Deserialize, Deserializer, de::Error};

/// `[database]`.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Database {
    /// Connects as the service's role; not set: embedded. Also `DATABASE_URL`. Holds a secret.
    #[serde(deserialize_with = "server_url")]
    pub url: Option<String>,
    /// Connects as the role that owns the schema, for `fatia migrate`. Also `DATABASE_MIGRATE_URL`. Holds a secret.
    #[serde(deserialize_with = "server_url")]
    pub migrate_url: Option<String>,
    /// Most connections of one process.
    pub connections: u32,
}

impl Default for Database {
    fn default() -> Self {
        Self { url: None, migrate_url: None, connections: 12 }
    }
}

impl std::fmt::Debug for Database {
    /// Never shows a URL: it may hold a password.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let set = |url: &Option<String>| if url.is_some() { "set" } else { "not set" };
        write!(f, "Database(url {}, migrate_url {})", set(&self.url), set(&self.migrate_url))
    }
}

/// A URL of the one kind of server that is known. The message never shows it: it may hold a password.
fn server_url<'de, D: Deserializer<'de>>(input: D) -> Result<Option<String>, D::Error> {
    let url = String::deserialize(input)?;
    if url.trim().is_empty() {
        return Ok(None);
    }
    let known = ["postgres://", "postgresql://"].iter().any(|scheme| url.starts_with(scheme));
    if known { Ok(Some(url)) } else { Err(D::Error::custom("is not the URL of a PostgreSQL server")) }
}
