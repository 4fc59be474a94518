//! Which database: a PostgreSQL server where a URL is set, else an embedded SQLite file in the data directory.

use serde::Deserialize;

/// `[database]`.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Database {
    /// Connects as the service's role; not set: embedded. Also `DATABASE_URL`. Holds a secret.
    pub url: Option<String>,
    /// Connects as the role that owns the schema, for `fatia migrate`. Also `DATABASE_MIGRATE_URL`. Holds a secret.
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
