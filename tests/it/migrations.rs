//! The two sets of migrations make the same schema.
//!
//! Each change of the schema is written twice, in the words of each database; these tests are what pays it back.
//! They compare what the databases say of themselves after migrating, so it does not matter how the SQL says it.
//! They do not compare: indexes that only make something faster, triggers, policies, grants, defaults.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions as _, SqliteConnection};

/// Of sqlx's migrator, in both databases.
const NOT_OURS: &str = "_sqlx_migrations";

#[test]
fn both_databases_have_the_same_migrations() {
    let names = |files: &[PathBuf]| -> Vec<String> { files.iter().map(|file| name_of(file)).collect() };
    let postgres = names(&files("postgres"));
    assert_eq!(postgres, names(&files("sqlite")), "a migration has the same number and name in both folders");

    for (at, name) in postgres.iter().enumerate() {
        let number = format!("{:04}_", at + 1);
        assert!(
            name.starts_with(&number),
            "{name}: numbers have four digits and no holes, so this is {number}…"
        );
        let words = name.trim_start_matches(&number).trim_end_matches(".sql");
        let is_plain = !words.is_empty() && words.chars().all(|c| c.is_ascii_lowercase() || c == '_');
        assert!(is_plain, "{name}: lower-case words joined by `_`");
    }
}

#[test]
fn every_check_and_unique_has_a_name() {
    let mut unnamed = vec![];
    for file in ["postgres", "sqlite"].into_iter().flat_map(files) {
        let text = fs::read_to_string(&file).expect("a migration is text");
        unnamed.extend(unnamed_constraints(&text).iter().map(|line| format!("{}:{line}", file.display())));
    }
    // A violation is reported by the constraint's name, and we tell people which rule it was by that.
    assert!(
        unnamed.is_empty(),
        "write `CONSTRAINT name CHECK …` and `CONSTRAINT name UNIQUE …` at {unnamed:#?}"
    );
}

#[test]
fn an_unnamed_constraint_is_found() {
    for (text, lines) in [
        ("CREATE TABLE t (\n a TEXT CHECK (a <> ''),\n b TEXT UNIQUE,\n UNIQUE (a, b)\n)", vec![2, 3, 4]),
        ("ALTER TABLE t ADD CHECK (a > 0)", vec![1]),
        ("CREATE UNIQUE INDEX ON t (a)", vec![1]),
        ("CREATE TABLE t (a TEXT CONSTRAINT a_some check (a <> ''), CONSTRAINT b_once UNIQUE (b))", vec![]),
        ("CREATE UNIQUE INDEX a_once ON t (a); CREATE UNIQUE INDEX IF NOT EXISTS b_once ON t (b)", vec![]),
        ("CREATE POLICY p ON t USING (true) WITH CHECK (true)", vec![]),
        ("-- CHECK (a)\n/* UNIQUE */ SELECT 'CHECK (it''s)', \"unique\", $x$ UNIQUE $x$", vec![]),
    ] {
        assert_eq!(unnamed_constraints(text), lines, "{text}");
    }
}

#[tokio::test]
async fn sqlite_tables_are_strict() {
    let folder = tempfile::tempdir().expect("a folder to test in");
    let mut sqlite = migrated_sqlite(folder.path()).await;
    let loose: Vec<String> = sqlx::query_scalar(
        "SELECT name FROM pragma_table_list
         WHERE schema = 'main' AND type = 'table' AND strict = 0 AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' AND name <> ?",
    )
    .bind(NOT_OURS)
    .fetch_all(&mut sqlite)
    .await
    .expect("SQLite lists its tables");
    assert!(loose.is_empty(), "without STRICT, SQLite takes text into an integer column: {loose:?}");
}

/// Quantities, prices and instants are integers, amounts are canonical text: see `src/domain/units.rs`.
#[tokio::test]
async fn no_decimal_or_float_column_exists() {
    let folder = tempfile::tempdir().expect("a folder to test in");
    let mut sqlite = migrated_sqlite(folder.path()).await;
    let wrong: Vec<(String, String, String)> = sqlx::query_as(
        "SELECT m.name, x.name, x.type FROM sqlite_schema m, pragma_table_xinfo(m.name) x
         WHERE m.type = 'table' AND m.name <> ? AND x.type NOT IN ('INTEGER', 'TEXT', 'BLOB')",
    )
    .bind(NOT_OURS)
    .fetch_all(&mut sqlite)
    .await
    .expect("SQLite lists its columns");
    assert!(wrong.is_empty(), "a column is INTEGER, TEXT or BLOB: {wrong:?}");
}

mod postgres {
    use sqlx::{Connection as _, PgConnection};

    use super::*;
    use crate::support::postgres::TestDatabase;

    /// PostgreSQL asks that a key of a partitioned table includes what the table is partitioned by. Such a column is
    /// no part of the key's meaning, so SQLite's key goes without it.
    struct PartitionKey {
        table: &'static str,
        column: &'static str,
        reason: &'static str,
    }

    const PARTITION_KEYS: &[PartitionKey] = &[PartitionKey {
        table: "usage_batch",
        column: "received_us",
        reason: "the journal goes by weeks of receipt; that a sequence is taken once is kept by the stream's mark",
    }];

    #[tokio::test]
    async fn both_databases_have_the_same_schema() {
        let folder = tempfile::tempdir().expect("a folder to test in");
        let database = TestDatabase::fresh().await;
        let mut connection = connect(&database).await;
        let postgres = read(&mut connection).await;
        let sqlite = read_sqlite(&mut migrated_sqlite(folder.path()).await, &postgres.booleans).await;

        assert!(!postgres.facts.is_empty(), "no table was found, so nothing was compared");
        let only = |one: &Schema, other: &Schema| -> Vec<String> {
            one.facts.difference(&other.facts).cloned().collect()
        };
        let (ours, theirs) = (only(&postgres, &sqlite), only(&sqlite, &postgres));
        assert!(
            ours.is_empty() && theirs.is_empty(),
            "only PostgreSQL says: {ours:#?}\nonly SQLite says: {theirs:#?}\n\
             Write the change in both files of the migration. A BOOLEAN is in SQLite an INTEGER with \
             `CONSTRAINT name CHECK (column IN (0, 1))`."
        );
    }

    #[tokio::test]
    async fn partition_keys_name_columns_that_exist() {
        let database = TestDatabase::fresh().await;
        let partitioned: Vec<(String, String)> = sqlx::query_as(
            "SELECT c.relname::text, a.attname::text
             FROM pg_partitioned_table p
             JOIN pg_class c ON c.oid = p.partrelid
             JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = ANY (p.partattrs::int2[])",
        )
        .fetch_all(&mut connect(&database).await)
        .await
        .expect("PostgreSQL lists what is partitioned");
        for PartitionKey { table, column, reason } in PARTITION_KEYS {
            let listed = ((*table).to_owned(), (*column).to_owned());
            assert!(partitioned.contains(&listed), "{table} is not partitioned by {column} ({reason})");
        }
    }

    #[tokio::test]
    async fn no_decimal_or_float_column_exists() {
        let database = TestDatabase::fresh().await;
        // Also of partitions and views, and also behind an array or a domain.
        let wrong: Vec<(String, String, String)> = sqlx::query_as(
            "SELECT c.relname::text, a.attname::text, format_type(a.atttypid, a.atttypmod)
             FROM pg_attribute a
             JOIN pg_class c ON c.oid = a.attrelid
             JOIN pg_namespace n ON n.oid = c.relnamespace
             JOIN pg_type t ON t.oid = a.atttypid
             WHERE n.nspname NOT LIKE 'pg\\_%' AND n.nspname <> 'information_schema'
               AND a.attnum > 0 AND NOT a.attisdropped
               AND (a.atttypid IN ('numeric'::regtype, 'real'::regtype, 'double precision'::regtype, 'money'::regtype)
                    OR t.typelem IN ('numeric'::regtype, 'real'::regtype, 'double precision'::regtype, 'money'::regtype)
                    OR t.typbasetype IN ('numeric'::regtype, 'real'::regtype, 'double precision'::regtype, 'money'::regtype))",
        )
        .fetch_all(&mut connect(&database).await)
        .await
        .expect("PostgreSQL lists its columns");
        assert!(wrong.is_empty(), "a column holds a decimal or a float: {wrong:?}");
    }

    async fn connect(database: &TestDatabase) -> PgConnection {
        PgConnection::connect(&database.superuser_url).await.expect("the superuser may connect")
    }

    /// What PostgreSQL says of its tables, in the words of `Schema`. Partitions are their parents' affair.
    async fn read(connection: &mut PgConnection) -> Schema {
        let mut schema = Schema::default();

        let columns: Vec<(String, String, String, bool)> = sqlx::query_as(
            "SELECT c.relname::text, a.attname::text, format_type(a.atttypid, a.atttypmod), a.attnotnull
             FROM pg_attribute a
             JOIN pg_class c ON c.oid = a.attrelid
             JOIN pg_namespace n ON n.oid = c.relnamespace
             WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relname <> $1
               AND n.nspname NOT LIKE 'pg\\_%' AND n.nspname <> 'information_schema'
               AND a.attnum > 0 AND NOT a.attisdropped",
        )
        .bind(NOT_OURS)
        .fetch_all(&mut *connection)
        .await
        .expect("PostgreSQL lists its columns");
        for (table, column, kind, required) in columns {
            let kind = match kind.as_str() {
                "bigint" => "integer",
                "text" => "text",
                "bytea" => "bytes",
                "boolean" => {
                    schema.fact(&table, format!("{column} is 0 or 1"));
                    schema.booleans.insert((table.clone(), column.clone()));
                    "integer"
                }
                other => panic!("{table}.{column} is {other}: SQLite has no type that is the same"),
            };
            schema.column(&table, &column, kind, required);
        }

        let keys: Vec<(String, bool, bool, Vec<String>)> = sqlx::query_as(
            "SELECT c.relname::text, i.indisprimary, i.indpred IS NOT NULL,
                    ARRAY(SELECT coalesce(a.attname::text, 'expression')
                          FROM unnest(i.indkey::int2[]) WITH ORDINALITY k (attnum, position)
                          LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.attnum
                          WHERE position <= i.indnkeyatts
                          ORDER BY position)
             FROM pg_index i
             JOIN pg_class c ON c.oid = i.indrelid
             JOIN pg_namespace n ON n.oid = c.relnamespace
             WHERE i.indisunique AND NOT c.relispartition AND c.relname <> $1
               AND n.nspname NOT LIKE 'pg\\_%' AND n.nspname <> 'information_schema'",
        )
        .bind(NOT_OURS)
        .fetch_all(&mut *connection)
        .await
        .expect("PostgreSQL lists its indexes");
        for (table, is_primary, is_partial, mut columns) in keys {
            columns.retain(|column| {
                !PARTITION_KEYS.iter().any(|key| key.table == table && key.column == column)
            });
            schema.key(&table, is_primary, is_partial, &columns);
        }

        let constraints: Vec<(String, String, String, String)> = sqlx::query_as(
            "SELECT c.relname::text, k.conname::text, k.contype::text, pg_get_constraintdef(k.oid)
             FROM pg_constraint k
             JOIN pg_class c ON c.oid = k.conrelid
             JOIN pg_namespace n ON n.oid = c.relnamespace
             WHERE k.contype IN ('c', 'f', 'u') AND NOT c.relispartition AND c.relname <> $1
               AND n.nspname NOT LIKE 'pg\\_%' AND n.nspname <> 'information_schema'",
        )
        .bind(NOT_OURS)
        .fetch_all(&mut *connection)
        .await
        .expect("PostgreSQL lists its constraints");
        for (table, name, kind, definition) in constraints {
            match kind.as_str() {
                "c" => schema.check(&table, &name, &tokens_of(&definition)),
                "f" => schema.named(&table, "foreign key", &name),
                _ => schema.named(&table, "unique constraint", &name),
            }
        }
        schema
    }
}

/// A schema as sentences, so that two of them can be compared, and a difference can be read.
#[derive(Default)]
struct Schema {
    facts: BTreeSet<String>,
    /// (table, column) of PostgreSQL's booleans: integers in SQLite, with a CHECK that PostgreSQL does not need.
    booleans: BTreeSet<(String, String)>,
}

impl Schema {
    fn fact(&mut self, table: &str, what: String) {
        self.facts.insert(format!("{table}: {what}"));
    }

    fn column(&mut self, table: &str, column: &str, kind: &str, required: bool) {
        let null = if required { "never null" } else { "may be null" };
        self.fact(table, format!("{column} is {kind}, {null}"));
    }

    fn key(&mut self, table: &str, is_primary: bool, is_partial: bool, columns: &[String]) {
        let kind = if is_primary { "primary key" } else { "unique" };
        let scope = if is_partial { " for some rows" } else { "" };
        self.fact(table, format!("{kind} ({}){scope}", columns.join(", ")));
    }

    fn named(&mut self, table: &str, kind: &str, name: &str) {
        self.fact(table, format!("has the {kind} {name}"));
    }

    /// The databases print an expression each in its own way; its name and the words in it are the same in both.
    fn check(&mut self, table: &str, name: &str, expression: &[Token]) {
        let words: BTreeSet<&str> = expression
            .iter()
            .filter(|token| token.kind == Kind::Text)
            .map(|token| token.text.as_str())
            .collect();
        self.fact(table, format!("has the check {name}, which names {words:?}"));
    }
}

async fn read_sqlite(sqlite: &mut SqliteConnection, booleans: &BTreeSet<(String, String)>) -> Schema {
    let mut schema = Schema::default();
    let tables: Vec<(String, String)> = sqlx::query_as(
        "SELECT name, sql FROM sqlite_schema
         WHERE type = 'table' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' AND name <> ?",
    )
    .bind(NOT_OURS)
    .fetch_all(&mut *sqlite)
    .await
    .expect("SQLite lists its tables");

    for (table, sql) in tables {
        let columns: Vec<(String, String, bool, i64)> =
            sqlx::query_as("SELECT name, type, \"notnull\", pk FROM pragma_table_xinfo(?)")
                .bind(&table)
                .fetch_all(&mut *sqlite)
                .await
                .expect("SQLite lists its columns");
        let mut primary_key = BTreeMap::new();
        for (column, kind, required, key_position) in columns {
            let kind = match kind.as_str() {
                "INTEGER" => "integer",
                "TEXT" => "text",
                "BLOB" => "bytes",
                other => panic!("{table}.{column} is {other}: PostgreSQL has no type that is the same"),
            };
            // A key of a STRICT table is never null, whether that is written or not.
            schema.column(&table, &column, kind, required || key_position > 0);
            if key_position > 0 {
                primary_key.insert(key_position, column);
            }
        }
        if !primary_key.is_empty() {
            let columns: Vec<String> = primary_key.into_values().collect();
            schema.key(&table, true, false, &columns);
        }

        let keys: Vec<(String, bool)> = sqlx::query_as(
            "SELECT name, partial FROM pragma_index_list(?) WHERE \"unique\" = 1 AND origin <> 'pk'",
        )
        .bind(&table)
        .fetch_all(&mut *sqlite)
        .await
        .expect("SQLite lists its indexes");
        for (index, is_partial) in keys {
            let columns: Vec<String> = sqlx::query_scalar(
                "SELECT coalesce(name, 'expression') FROM pragma_index_info(?) ORDER BY seqno",
            )
            .bind(&index)
            .fetch_all(&mut *sqlite)
            .await
            .expect("SQLite lists an index's columns");
            schema.key(&table, false, is_partial, &columns);
        }

        // SQLite keeps no list of constraints, but the words that made the table.
        let tokens = tokens_of(&sql);
        for (at, token) in tokens.iter().enumerate() {
            if !token.is("CONSTRAINT") || at + 2 >= tokens.len() {
                continue;
            }
            let name = &tokens[at + 1].text;
            if tokens[at + 2].is("UNIQUE") {
                schema.named(&table, "unique constraint", name);
            } else if tokens[at + 2].is("FOREIGN") || tokens[at + 2].is("REFERENCES") {
                schema.named(&table, "foreign key", name);
            } else if tokens[at + 2].is("CHECK") {
                let expression = &tokens[at + 3..closing(&tokens, at + 3)];
                match boolean_column(expression)
                    .filter(|column| booleans.contains(&(table.clone(), column.clone())))
                {
                    Some(column) => schema.fact(&table, format!("{column} is 0 or 1")),
                    None => schema.check(&table, name, expression),
                }
            }
        }
    }
    schema
}

/// The column of `(column IN (0, 1))`, which is how SQLite says BOOLEAN.
fn boolean_column(expression: &[Token]) -> Option<String> {
    let texts: Vec<&str> = expression.iter().map(|token| token.text.as_str()).collect();
    match texts.as_slice() {
        ["(", column, within, "(", "0", ",", "1", ")"] if within.eq_ignore_ascii_case("in") => {
            Some((*column).to_owned())
        }
        _ => None,
    }
}

async fn migrated_sqlite(folder: &Path) -> SqliteConnection {
    let file = folder.join("fatia.db");
    fatia::store::migrate::migrate_file(&file).await.expect("the migrations run on an empty file");
    SqliteConnectOptions::new().filename(&file).connect().await.expect("the file is there")
}

fn files(database: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("migrations").join(database);
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<PathBuf> = entries
        .map(|entry| entry.expect("an entry of the folder").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "sql"))
        .collect();
    files.sort();
    assert!(!files.is_empty(), "{}: no migrations", folder.display());
    files
}

fn name_of(file: &Path) -> String {
    file.file_name().expect("it is a file").to_string_lossy().into_owned()
}

/// The lines of CHECKs and UNIQUEs that the database would have to find a name for.
fn unnamed_constraints(text: &str) -> Vec<usize> {
    let tokens = tokens_of(text);
    let is =
        |at: Option<usize>, word: &str| at.and_then(|at| tokens.get(at)).is_some_and(|token| token.is(word));
    let mut lines = vec![];
    for (at, token) in tokens.iter().enumerate() {
        let named = is(at.checked_sub(2), "CONSTRAINT");
        let is_unnamed = if token.is("CHECK") {
            // `WITH CHECK (…)` belongs to a policy.
            !named && !is(at.checked_sub(1), "WITH")
        } else if token.is("UNIQUE") && is(Some(at + 1), "INDEX") {
            is(Some(at + 2), "ON")
        } else {
            token.is("UNIQUE") && !named
        };
        if is_unnamed {
            lines.push(token.line);
        }
    }
    lines
}

// Just enough of SQL's grammar to tell code from comments and text.

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Word,
    /// A name in double quotes, which is no keyword.
    Name,
    /// A string literal or a dollar-quoted body.
    Text,
    Mark,
}

#[derive(Debug)]
struct Token {
    kind: Kind,
    text: String,
    line: usize,
}

impl Token {
    fn is(&self, keyword: &str) -> bool {
        self.kind == Kind::Word && self.text.eq_ignore_ascii_case(keyword)
    }
}

fn tokens_of(sql: &str) -> Vec<Token> {
    let mut tokens = vec![];
    let mut rest = sql;
    while let Some(first) = rest.chars().next() {
        let (kind, length) = if first.is_whitespace() {
            (None, first.len_utf8())
        } else if rest.starts_with("--") {
            (None, rest.find('\n').unwrap_or(rest.len()))
        } else if rest.starts_with("/*") {
            (None, past(rest, 2, "*/"))
        } else if first == '\'' || first == '"' {
            let kind = if first == '"' { Kind::Name } else { Kind::Text };
            (Some(kind), past_quotes(rest, first))
        } else if let Some(tag) = dollar_tag(rest) {
            (Some(Kind::Text), past(rest, tag.len(), tag))
        } else if first.is_alphanumeric() || first == '_' {
            let is_part = |c: char| c.is_alphanumeric() || c == '_';
            (Some(Kind::Word), rest.find(|c| !is_part(c)).unwrap_or(rest.len()))
        } else {
            (Some(Kind::Mark), first.len_utf8())
        };
        let (token, after) = rest.split_at(length);
        if let Some(kind) = kind {
            let line = 1 + sql[..sql.len() - rest.len()].matches('\n').count();
            let text = match kind {
                Kind::Name | Kind::Text => token.trim_matches(['\'', '"']).to_owned(),
                Kind::Word | Kind::Mark => token.to_owned(),
            };
            tokens.push(Token { kind, text, line });
        }
        rest = after;
    }
    tokens
}

/// Where the text after the first `end` past `from` begins.
fn past(text: &str, from: usize, end: &str) -> usize {
    text[from..].find(end).map_or(text.len(), |at| from + at + end.len())
}

/// Where the text after a literal begins; a doubled quote is one inside it.
fn past_quotes(text: &str, quote: char) -> usize {
    let mut at = past(text, 1, &quote.to_string());
    while text[at..].starts_with(quote) {
        at = past(text, at + 1, &quote.to_string());
    }
    at
}

/// `$$` or `$name$`, which opens a body and closes it.
fn dollar_tag(text: &str) -> Option<&str> {
    let name = text.strip_prefix('$')?;
    let end = name.find('$')?;
    let is_name = name[..end].chars().all(|c| c.is_alphanumeric() || c == '_');
    is_name.then(|| &text[..end + 2])
}

/// The token that closes the bracket at `open`.
fn closing(tokens: &[Token], open: usize) -> usize {
    let mut depth = 0_usize;
    for (at, token) in tokens.iter().enumerate().skip(open) {
        match token.text.as_str() {
            "(" if token.kind == Kind::Mark => depth += 1,
            ")" if token.kind == Kind::Mark => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 {
            return at;
        }
    }
    tokens.len()
}
