//! A PostgreSQL of the test's own: one cluster for the process, one database for each test.
//!
//! It owns starting, stopping and removing clusters, and the roles and databases in them. It does not own the
//! schema: the template database is made by the crate's own migrations, under the roles of `deploy/postgres/`.
//! Always true here: without PostgreSQL's programs a test fails, it is never skipped; a cluster listens on a socket
//! in its own folder and on nothing else; it ends with the process that started it, however that process ends.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::{JoinHandle, JoinSet};

const ROLES: &str = include_str!("../../../deploy/postgres/roles.sql");
const TEMPLATE: &str = "fatia_template";
/// PostgreSQL names its socket after the port, also where no port is open.
const SOCKET: &str = ".s.PGSQL.5432";
/// Databases that no test needs any more and that stay all the same. Dropping one takes longer than making one, and
/// most runs end before the 8 MB of each add up to something.
const DISCARDED_MAX: usize = 100;

/// A migrated database for one test. Its drop says that nobody needs the database any more.
pub struct TestDatabase {
    pub name: String,
    /// As the service connects. What a test does to the schema's subject, it does here.
    pub app_url: String,
    pub migrate_url: String,
    pub backup_url: String,
    pub superuser_url: String,
    folder: PathBuf,
    discarded: Arc<Mutex<Vec<String>>>,
}

impl TestDatabase {
    /// A database with the schema of the migrations and no rows, on the process's cluster.
    pub async fn fresh() -> TestDatabase {
        TestDatabase::fresh_on(cluster()).await
    }

    /// The same on a cluster of the test's own.
    pub async fn fresh_on(cluster: &Cluster) -> TestDatabase {
        match cluster.create_database().await {
            Ok(name) => TestDatabase {
                app_url: cluster.url("fatia_app", &name),
                migrate_url: cluster.url("fatia_migrate", &name),
                backup_url: cluster.url("fatia_backup", &name),
                superuser_url: cluster.url("postgres", &name),
                folder: cluster.folder.clone(),
                discarded: Arc::clone(&cluster.discarded),
                name,
            },
            Err(reason) => panic!("no test database: {reason}"),
        }
    }
}

impl Drop for TestDatabase {
    fn drop(&mut self) {
        // Only noted: a drop cannot await, and the test's own connections may be open still.
        if let Ok(mut discarded) = self.discarded.lock() {
            discarded.push(std::mem::take(&mut self.name));
        }
    }
}

/// The cluster that all tests of this process share. Nobody stops it; a test that wants to starts its own.
pub fn cluster() -> &'static Cluster {
    static CLUSTER: OnceLock<Result<Cluster, String>> = OnceLock::new();
    match CLUSTER.get_or_init(|| Cluster::try_start(false)) {
        Ok(cluster) => cluster,
        Err(reason) => panic!("no PostgreSQL to test on: {reason}"),
    }
}

/// A running cluster in a folder of its own. Dropping it stops it and removes the folder.
pub struct Cluster {
    programs: Programs,
    folder: PathBuf,
    /// Ends the cluster when its standard input ends. See `leash`.
    watcher: Child,
    admin: tokio::sync::Mutex<Admin>,
    discarded: Arc<Mutex<Vec<String>>>,
}

/// What only one test at a time may do: make databases.
#[derive(Default)]
struct Admin {
    /// The outcome is kept also if it is a failure, so that every test reports the same cause.
    template: Option<Result<(), String>>,
    created: u32,
}

impl Cluster {
    /// A cluster for one test. Without `fsync` it is faster, and still keeps what was committed if only the database
    /// stops and not the machine.
    pub fn start(fsync: bool) -> Cluster {
        Cluster::try_start(fsync).unwrap_or_else(|reason| panic!("no PostgreSQL to test on: {reason}"))
    }

    /// Stops as if the server had died: no checkpoint, connections cut. What was not committed is gone.
    pub fn stop_immediate(&self) {
        self.pg_ctl(&["stop", "-m", "immediate"]).unwrap_or_else(|reason| panic!("{reason}"));
    }

    /// Starts again after `stop_immediate`, and waits until recovery is through.
    pub fn restart(&self) {
        self.run_server().unwrap_or_else(|reason| panic!("{reason}"));
    }

    /// The same, for who can do without: a bench measures the rest.
    ///
    /// # Errors
    /// Why there is none, for people.
    pub fn try_start(fsync: bool) -> Result<Cluster, String> {
        let (folder, owner) = make_folder().map_err(|error| format!("no folder for a cluster: {error}"))?;
        let programs = Programs::find(owner);
        let watcher = leash(&folder, programs.as_ref().ok(), owner);
        let cluster = Cluster {
            watcher: watcher.map_err(|error| format!("no watcher for {}: {error}", folder.display()))?,
            programs: programs?,
            folder,
            admin: tokio::sync::Mutex::default(),
            discarded: Arc::default(),
        };
        cluster.initialise(fsync)?;
        cluster.run_server()?;
        Ok(cluster)
    }

    fn initialise(&self, fsync: bool) -> Result<(), String> {
        let mut initdb = self.programs.command("initdb");
        initdb.arg("-D").arg(self.data());
        // The C locale sorts by bytes everywhere, so no test depends on the machine's language.
        initdb.args(["--username=postgres", "--auth=trust", "--encoding=UTF8", "--no-locale", "--no-sync"]);
        output(&mut initdb)?;

        let folder = self.folder.display().to_string().replace('\'', "''");
        let fsync = if fsync { "on" } else { "off" };
        // Autovacuum is off since it connects where it likes: to the template while that is being copied, too.
        let settings = format!(
            "listen_addresses = ''\n\
             unix_socket_directories = '{folder}'\n\
             port = 5432\n\
             max_connections = 200\n\
             fsync = {fsync}\n\
             full_page_writes = {fsync}\n\
             autovacuum = off\n\
             max_wal_size = '256MB'\n\
             timezone = 'UTC'\n"
        );
        fs::OpenOptions::new()
            .append(true)
            .open(self.data().join("postgresql.conf"))
            .and_then(|mut file| file.write_all(settings.as_bytes()))
            .map_err(|error| format!("cannot write postgresql.conf: {error}"))
    }

    fn run_server(&self) -> Result<(), String> {
        let log = self.folder.join("log");
        self.pg_ctl(&["start", "-l", &log.display().to_string()]).map_err(|reason| {
            let log = fs::read_to_string(&log).unwrap_or_default();
            format!("{reason}\nThe server's log:\n{log}")
        })
    }

    fn pg_ctl(&self, arguments: &[&str]) -> Result<(), String> {
        let mut command = self.programs.command("pg_ctl");
        command.args(arguments).arg("-D").arg(self.data()).args(["-w", "-t", "60"]);
        output(&mut command)
    }

    fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    fn url(&self, role: &str, database: &str) -> String {
        url(role, database, &self.folder)
    }

    async fn create_database(&self) -> Result<String, String> {
        // One at a time: PostgreSQL refuses to copy a template that anybody is connected to.
        let mut admin = self.admin.lock().await;
        if admin.template.is_none() {
            admin.template = Some(self.create_template().await);
        }
        if let Some(Err(reason)) = &admin.template {
            return Err(reason.clone());
        }

        admin.created += 1;
        let name = format!("t_{}", admin.created);
        let mut statements = vec![];
        if let Ok(mut discarded) = self.discarded.lock()
            && discarded.len() > DISCARDED_MAX
        {
            statements.extend(discarded.drain(..).map(|name| drop_database(&name)));
        }
        statements.push(format!("CREATE DATABASE {name} TEMPLATE {TEMPLATE} OWNER fatia_migrate"));
        self.execute("postgres", &statements).await?;
        // Grants on a database are not copied with it, so each gets what an operator would give it.
        self.execute(&name, &[ROLES]).await?;
        Ok(name)
    }

    async fn create_template(&self) -> Result<(), String> {
        let statements = [drop_database(TEMPLATE), format!("CREATE DATABASE {TEMPLATE}")];
        self.execute("postgres", &statements).await?;
        self.execute(TEMPLATE, &[ROLES]).await?;
        self.execute("postgres", &[format!("ALTER DATABASE {TEMPLATE} OWNER TO fatia_migrate")]).await?;

        fatia::store::migrate::migrate_server(&self.url("fatia_migrate", TEMPLATE))
            .await
            .map_err(|error| format!("the migrations fail: {}", chain(&error)))?;

        // A pool that was dropped closes its connections in its own time. Nobody may come after this.
        let statements = [
            format!("ALTER DATABASE {TEMPLATE} ALLOW_CONNECTIONS false"),
            format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{TEMPLATE}'"),
        ];
        self.execute("postgres", &statements).await
    }

    /// Runs statements as superuser, each on its own: CREATE DATABASE accepts no transaction around it.
    async fn execute(&self, database: &str, statements: &[impl AsRef<str>]) -> Result<(), String> {
        let because = |error: sqlx::Error| format!("in database {database}: {}", chain(&error));
        let mut connection = PgConnection::connect(&self.url("postgres", database)).await.map_err(because)?;
        for statement in statements {
            let statement = AssertSqlSafe(statement.as_ref().to_owned());
            sqlx::raw_sql(statement).execute(&mut connection).await.map_err(because)?;
        }
        connection.close().await.map_err(because)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        drop(self.watcher.stdin.take());
        // Its exit says nothing that a test could use; waiting keeps the folder from outliving this value.
        let _ = self.watcher.wait();
    }
}

/// A second socket for the same server, behind a slow wire. Lives on the runtime of the test that made it.
pub struct SlowProxy {
    folder: PathBuf,
    server: PathBuf,
    delay: Arc<AtomicU64>,
    accepting: JoinHandle<()>,
}

/// A proxy to the process's cluster that holds back each chunk for `delay`, in each direction.
pub async fn slow_socket(delay: Duration) -> SlowProxy {
    SlowProxy::to(cluster(), delay)
}

impl SlowProxy {
    /// The same to a cluster of the test's own. Must be called on a tokio runtime.
    pub fn to(cluster: &Cluster, delay: Duration) -> SlowProxy {
        static MADE: AtomicU64 = AtomicU64::new(1);
        // Inside the cluster's folder, so that it goes away with the cluster if not before.
        let folder = cluster.folder.join(format!("slow-{}", MADE.fetch_add(1, Ordering::Relaxed)));
        fs::create_dir(&folder).expect("the cluster's folder takes one more");
        if let Some(Owner { uid, gid }) = cluster.programs.owner {
            std::os::unix::fs::chown(&folder, Some(uid), Some(gid)).expect("only root has another owner");
        }
        let listener = UnixListener::bind(folder.join(SOCKET)).expect("a new folder has no socket yet");
        let delay = Arc::new(AtomicU64::new(micros(delay)));
        let accepting = tokio::spawn(forward_all(listener, cluster.folder.join(SOCKET), Arc::clone(&delay)));
        SlowProxy { folder, server: cluster.folder.clone(), delay, accepting }
    }

    /// The service's URL of `database`, through the proxy.
    pub fn url_for(&self, database: &TestDatabase) -> String {
        assert_eq!(self.server, database.folder, "the proxy and the database are of two clusters");
        url("fatia_app", &database.name, &self.folder)
    }

    /// Changes the delay, also of open connections: connect fast, then go slow.
    pub fn set_delay(&self, delay: Duration) {
        self.delay.store(micros(delay), Ordering::Relaxed);
    }
}

impl Drop for SlowProxy {
    fn drop(&mut self) {
        self.accepting.abort();
        // The cluster's end removes what is left.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

async fn forward_all(listener: UnixListener, server: PathBuf, delay: Arc<AtomicU64>) {
    // Owned here, so that aborting this task cuts the connections with it.
    let mut connections = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        // A server that is down looks the same from the other side: the connection closes.
        let Ok(server) = UnixStream::connect(&server).await else {
            continue;
        };
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        connections.spawn(forward(from_client, to_server, Arc::clone(&delay)));
        connections.spawn(forward(from_server, to_client, Arc::clone(&delay)));
    }
}

async fn forward(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, delay: Arc<AtomicU64>) {
    let mut chunk = vec![0; 64 * 1024];
    while let Ok(length @ 1..) = from.read(&mut chunk).await {
        tokio::time::sleep(Duration::from_micros(delay.load(Ordering::Relaxed))).await;
        if to.write_all(&chunk[..length]).await.is_err() {
            break;
        }
    }
    // The other side may be gone already, which is what this would tell it.
    let _ = to.shutdown().await;
}

fn micros(delay: Duration) -> u64 {
    u64::try_from(delay.as_micros()).expect("a delay in a test is short")
}

/// The user that the server runs as, where that is not the user of the test: PostgreSQL refuses to run as root.
#[derive(Clone, Copy)]
struct Owner {
    uid: u32,
    gid: u32,
}

/// PostgreSQL's server programs.
struct Programs {
    /// None: they are in PATH.
    folder: Option<PathBuf>,
    owner: Option<Owner>,
}

impl Programs {
    fn find(owner: Option<Owner>) -> Result<Programs, String> {
        // Debian keeps each major version in a folder of its own, outside PATH.
        let mut versions: Vec<(u32, PathBuf)> = fs::read_dir("/usr/lib/postgresql")
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| {
                let version = entry.file_name().to_str()?.parse().ok()?;
                Some((version, entry.path().join("bin")))
            })
            .collect();
        versions.sort_by(|one, other| other.cmp(one));

        std::iter::once(None)
            .chain(versions.into_iter().map(|(_, folder)| Some(folder)))
            .map(|folder| Programs { folder, owner })
            .find(Programs::all_run)
            .ok_or_else(|| {
                "PostgreSQL's server programs (initdb, pg_ctl, postgres) are neither in PATH nor in \
                 /usr/lib/postgresql/*/bin. These tests need them and are never skipped; \
                 `deploy/ci/needs.sh test` installs them where it can."
                    .to_owned()
            })
    }

    /// Tried rather than looked up: a folder in root's PATH may be closed to the server's user.
    fn all_run(&self) -> bool {
        ["initdb", "pg_ctl", "postgres"]
            .iter()
            .all(|program| self.command(program).arg("--version").output().is_ok_and(|o| o.status.success()))
    }

    fn path(&self, program: &str) -> PathBuf {
        self.folder.as_ref().map_or_else(|| PathBuf::from(program), |folder| folder.join(program))
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.path(program));
        run_as(&mut command, self.owner);
        command
    }
}

fn run_as(command: &mut Command, owner: Option<Owner>) {
    if let Some(Owner { uid, gid }) = owner {
        command.uid(uid).gid(gid);
    }
    // The working folder of the test may be closed to that user.
    command.current_dir("/").stdin(Stdio::null());
}

fn output(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|error| format!("cannot run {command:?}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let text = [output.stdout, output.stderr].concat();
    Err(format!("{command:?} failed ({}): {}", output.status, String::from_utf8_lossy(&text)))
}

/// Makes an empty folder with a short path for a cluster, and says who is to own what is in it.
fn make_folder() -> std::io::Result<(PathBuf, Option<Owner>)> {
    let system = std::env::temp_dir();
    // A socket's path has at most 107 bytes, and the server's user must be able to get there.
    let usable = system.as_os_str().len() <= 60 && system.ancestors().all(is_open_to_others);
    let base = if usable { system.as_path() } else { Path::new("/tmp") };
    let folder = tempfile::Builder::new().prefix("fatia-pg-").tempdir_in(base)?.keep();

    // A new folder belongs to who made it, which tells whether this is root.
    let owner = if fs::metadata(&folder)?.uid() == 0 { Some(unprivileged_user()?) } else { None };
    if let Some(Owner { uid, gid }) = owner {
        std::os::unix::fs::chown(&folder, Some(uid), Some(gid))?;
    }
    Ok((folder, owner))
}

fn is_open_to_others(folder: &Path) -> bool {
    fs::metadata(folder).is_ok_and(|data| data.permissions().mode() & 0o001 != 0)
}

fn unprivileged_user() -> std::io::Result<Owner> {
    let users = fs::read_to_string("/etc/passwd")?;
    let find = |wanted: &str| {
        users.lines().find_map(|line| {
            let mut fields = line.split(':');
            let (name, _password) = (fields.next()?, fields.next()?);
            let (uid, gid) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
            (name == wanted).then_some(Owner { uid, gid })
        })
    };
    find("postgres").or_else(|| find("nobody")).ok_or_else(|| {
        std::io::Error::other(
            "this is root, which PostgreSQL refuses, and neither `postgres` nor `nobody` is a user",
        )
    })
}

/// Starts what ends the cluster: a shell that waits for its standard input to end. The pipe's other end is held by
/// this process and by nothing else, so it ends when this process does: by a return, a panic, Ctrl-C or SIGKILL.
/// An exit handler would cover the first two only, and a second way to do the same.
fn leash(folder: &Path, programs: Option<&Programs>, owner: Option<Owner>) -> std::io::Result<Child> {
    // Without the stop, a server whose folder is gone ends by itself too, within a minute.
    let script = "trap '' INT TERM HUP
        read -r _
        \"$2\" stop -D \"$1/data\" -m immediate -t 30
        rm -rf \"$1\"";
    let pg_ctl = programs.map_or_else(|| PathBuf::from("true"), |programs| programs.path("pg_ctl"));
    let mut command = Command::new("sh");
    run_as(&mut command, owner);
    command
        .args(["-c", script, "fatia-postgres-watcher"])
        .arg(folder)
        .arg(pg_ctl)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        // Out of the terminal's group: what kills the whole group must not kill the one that clears up.
        .process_group(0)
        .spawn()
}

fn url(role: &str, database: &str, socket_folder: &Path) -> String {
    let folder: String = socket_folder
        .display()
        .to_string()
        .bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'-' | b'_' | b'.' => {
                char::from(byte).to_string()
            }
            other => format!("%{other:02X}"),
        })
        .collect();
    // Port and TLS are spelled out, since PGPORT and PGSSLMODE would fill them in from outside.
    format!("postgres://{role}@localhost:5432/{database}?host={folder}&sslmode=disable")
}

fn drop_database(name: &str) -> String {
    format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)")
}

/// An error with its causes: our errors print only their own floor.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

mod tests {
    use std::io::{BufRead as _, BufReader};
    use std::time::Instant;

    use super::*;

    async fn connect(url: &str) -> PgConnection {
        PgConnection::connect(url).await.unwrap_or_else(|error| panic!("{url}: {error}"))
    }

    async fn run(connection: &mut PgConnection, statement: &'static str) -> Result<(), sqlx::Error> {
        sqlx::raw_sql(statement).execute(connection).await.map(|_| ())
    }

    #[tokio::test]
    async fn each_url_connects_as_its_role_and_only_backup_passes_row_security() {
        let database = TestDatabase::fresh().await;
        for (url, role, superuser, bypass) in [
            (&database.app_url, "fatia_app", false, false),
            (&database.migrate_url, "fatia_migrate", false, false),
            (&database.backup_url, "fatia_backup", false, true),
            (&database.superuser_url, "postgres", true, true),
        ] {
            let found: (String, bool, bool) = sqlx::query_as(
                "SELECT rolname::text, rolsuper, rolbypassrls FROM pg_roles WHERE rolname = current_user",
            )
            .fetch_one(&mut connect(url).await)
            .await
            .expect("every role may read pg_roles");
            assert_eq!(found, (role.to_owned(), superuser, bypass));
        }
    }

    #[tokio::test]
    async fn app_owns_nothing_and_creates_nothing() {
        let database = TestDatabase::fresh().await;
        let mut app = connect(&database.app_url).await;
        for forbidden in
            ["CREATE TABLE t (id bigint)", "CREATE TEMPORARY TABLE t (id bigint)", "CREATE SCHEMA s"]
        {
            let error = run(&mut app, forbidden).await.expect_err(forbidden);
            let code =
                error.into_database_error().and_then(|error| error.code().map(|code| code.into_owned()));
            assert_eq!(code.as_deref(), Some("42501"), "{forbidden}");
        }
        let owned: i64 =
            sqlx::query_scalar("SELECT count(*) FROM pg_class WHERE relowner = 'fatia_app'::regrole")
                .fetch_one(&mut app)
                .await
                .expect("every role may read pg_class");
        assert_eq!(owned, 0);
    }

    #[tokio::test]
    async fn two_tests_do_not_see_each_other() {
        let (one, other) = (TestDatabase::fresh().await, TestDatabase::fresh().await);
        assert_ne!(one.name, other.name);
        let create = "CREATE TABLE only_here (id bigint)";
        run(&mut connect(&one.migrate_url).await, create).await.expect("the migrator may create tables");
        run(&mut connect(&other.migrate_url).await, create)
            .await
            .expect("the other database has no such table");
    }

    #[tokio::test]
    async fn slow_socket_delays_each_direction() {
        let database = TestDatabase::fresh().await;
        let proxy = slow_socket(Duration::ZERO).await;
        let mut connection = connect(&proxy.url_for(&database)).await;

        let delay = Duration::from_millis(50);
        proxy.set_delay(delay);
        let asked = Instant::now();
        run(&mut connection, "SELECT 1").await.expect("slow, not broken");
        assert!(asked.elapsed() >= 2 * delay, "{:?}", asked.elapsed());
    }

    #[tokio::test]
    async fn own_cluster_keeps_committed_rows_over_an_immediate_stop() {
        let cluster = Cluster::start(true);
        let url = cluster.url("postgres", "postgres");
        run(&mut connect(&url).await, "CREATE TABLE kept AS SELECT 1 AS id")
            .await
            .expect("a new cluster is writable");

        cluster.stop_immediate();
        assert!(PgConnection::connect(&url).await.is_err(), "the server is down");
        cluster.restart();

        let rows: i64 = sqlx::query_scalar("SELECT count(*) FROM kept")
            .fetch_one(&mut connect(&url).await)
            .await
            .expect("the table was committed");
        assert_eq!(rows, 1);

        let folder = cluster.folder.clone();
        drop(cluster);
        assert!(!folder.exists(), "{} is left", folder.display());
    }

    #[test]
    fn cluster_ends_with_a_killed_process() {
        let program = std::env::current_exe().expect("a test runs from a file");
        let mut child = Command::new(program)
            .args([
                "--exact",
                "--ignored",
                "--nocapture",
                "support::postgres::tests::hold_a_cluster_until_killed",
            ])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("this program runs again");
        let lines = BufReader::new(child.stderr.take().expect("it was piped")).lines();
        let folder = lines
            .map_while(Result::ok)
            .find_map(|line| line.split_once("cluster in ").map(|(_, folder)| PathBuf::from(folder)))
            .expect("the other process names its cluster");
        let server = fs::read_to_string(folder.join("data/postmaster.pid")).expect("the server is running");
        let server =
            PathBuf::from("/proc").join(server.lines().next().expect("the first line is its process"));

        child.kill().expect("it runs still");
        child.wait().expect("it was killed");

        let patience = Instant::now() + Duration::from_secs(30);
        while folder.exists() || server.exists() {
            assert!(Instant::now() < patience, "{} or {} is left", folder.display(), server.display());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    #[test]
    #[ignore = "not a test: the one above runs it in another process, which it kills"]
    fn hold_a_cluster_until_killed() {
        eprintln!("cluster in {}", cluster().folder.display());
        // Long enough to be killed in, and an end for who runs all ignored tests.
        std::thread::sleep(Duration::from_secs(60));
    }
}
