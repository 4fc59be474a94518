//! `fatia serve` as its operator runs it: ready, found by other commands, stopped, killed, and silent about its secrets.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use super::program::{Fatia, Ran, Running, fixture};
use crate::support::postgres::TestDatabase;

/// A service on a port of its own, and what it said when it was ready: its address and its operator's token.
pub fn serve(fatia: &Fatia, options: &[&str]) -> (Running, String, String) {
    let command = ["serve", "--listen", "127.0.0.1:0", "--print-token"];
    let running = fatia.start(&[&command, options].concat());
    let line = running.until_said("ready ");
    let (address, token) = line.trim_start_matches("ready ").split_once(" token=").expect("both are said");
    let (address, token) = (address.to_owned(), token.trim().to_owned());
    (running, address, token)
}

/// One request over a connection of its own; head and body of the answer.
fn ask(address: &str, request: &str) -> String {
    let mut stream = connect(address);
    stream.write_all(request.as_bytes()).expect("it takes a request");
    let mut heard = String::new();
    stream.read_to_string(&mut heard).expect("it answers");
    heard
}

fn connect(address: &str) -> TcpStream {
    let stream = TcpStream::connect(address.trim_start_matches("http://")).expect("it listens");
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a limit");
    stream
}

/// A request of somebody with a token.
pub fn get(address: &str, token: &str, path: &str) -> String {
    ask(
        address,
        &format!(
            "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer {token}\r\n\r\n"
        ),
    )
}

fn sample(fatia: &Fatia) {
    for file in ["inventory.csv", "intervals.csv", "prices.toml"] {
        fatia.write(file, fixture(&format!("sample/{file}")));
    }
}

/// The commands of a whole month, and what they print.
fn commands(fatia: &Fatia) -> Vec<(i32, String, String)> {
    sample(fatia);
    fatia.write(
        "bad.csv",
        "node,kind,from\nnone,maintenance,2026-09-01T00:00:00Z\ngn-01,maintenance,2026-09-02T00:00:00Z\n",
    );
    fatia.write("boards.toml", "[[board]]\nkey = \"X\"\nmemory_mib = 1024\n");
    fatia.write("wrong.toml", "name = 1\n");
    let all: &[&[&str]] = &[
        &["price", "load", "prices.toml"],
        &["price", "load", "prices.toml"],
        &["price", "load", "wrong.toml"],
        &["price", "load", "none.toml"],
        &["import", "intervals", "--inventory", "inventory.csv", "--source", "slurm", "intervals.csv"],
        &["import", "intervals", "--inventory", "inventory.csv", "--source", "slurm", "intervals.csv"],
        &["import", "intervals", "--inventory", "none.csv", "intervals.csv"],
        &["import", "intervals", "--inventory", "intervals.csv", "inventory.csv"],
        &["import", "states", "bad.csv"],
        &["catalogue", "load", "boards.toml"],
        &["catalogue", "show", "--model", "X"],
        &["report", "costs", "--period", "2026-09"],
        &["report", "costs", "--period", "2026-09", "--format", "json", "--group-by", "workload,mode,tenant"],
        &["report", "costs", "--period", "2026-09", "--format", "csv", "--group-by", "day,state"],
        &["tenant", "create", "new", "--project", "a", "--project", "b"],
        &["tenant", "create", "new", "--project", "b"],
        &["tenant", "create", "platform"],
        &["tenant", "list"],
        &["token", "revoke", "none"],
        &["rebuild"],
        &["doctor"],
    ];
    let run = |command: &&[&str]| {
        let Ran { code, out, err, .. } = fatia.run(command);
        // The operator's log is for the operator.
        let err: Vec<&str> = err.lines().filter(|line| !line.contains(" INFO ")).collect();
        (code.expect("it ended by itself"), out, err.join("\n"))
    };
    all.iter().map(run).collect()
}

/// Where the data lie and when it was is another in each installation.
fn alike(said: (i32, String, String)) -> (i32, String, String) {
    let lines = |text: String| -> String {
        let plain = |line: &str| {
            !line.contains("database:") && !line.contains("loaded 20") && !line.contains("marks set")
        };
        text.lines().filter(|line| plain(line)).map(|line| format!("{line}\n")).collect()
    };
    (said.0, lines(said.1), lines(said.2))
}

#[test]
fn commands_say_the_same_through_a_running_service_as_beside_the_database() {
    let (alone, served) = (Fatia::new(), Fatia::new());
    let (running, ..) = serve(&served, &[]);
    let (alone, served) = (commands(&alone), commands(&served));
    for (at, (alone, served)) in alone.into_iter().zip(served).enumerate() {
        assert_eq!(alike(alone), alike(served), "command {at}");
    }
    running.stop().good();
}

#[tokio::test]
async fn postgres_commands_go_through_the_service_too() {
    let database = TestDatabase::fresh().await;
    let fatia = Fatia::on(&database);
    let (running, address, token) = serve(&fatia, &[]);
    sample(&fatia);
    fatia.run(&["price", "load", "prices.toml"]).good();
    let imported =
        fatia.run(&["import", "intervals", "--inventory", "inventory.csv", "intervals.csv"]).good();
    assert!(imported.err.contains("import 1: 332 lines read"), "{imported}");
    let report = fatia.json("2026-09", "tenant");
    assert_eq!(report.in_service(), 12_414_416_666);
    assert!(get(&address, &token, "/api/v1/imports").contains("\"state\":\"finished\""));
    running.stop().good();
}

#[test]
fn a_token_that_was_made_by_a_command_opens_the_door() {
    let fatia = Fatia::new();
    let before = fatia.run(&["token", "create", "--name", "early", "--role", "finance"]).good();
    let (running, address, _) = serve(&fatia, &[]);
    let made = fatia.run(&["token", "create", "--name", "ci", "--role", "admin"]).good();
    for token in [before.out.trim(), made.out.trim()] {
        assert!(get(&address, token, "/api/v1/self").starts_with("HTTP/1.1 200"), "{token}");
    }
    let id = made.out.split('_').nth(1).expect("an id").to_owned();
    let listed = fatia.run(&["token", "list"]).good();
    assert!(listed.out.contains(&id) && listed.out.contains("early"), "{listed}");
    assert!(!listed.out.contains(made.out.trim()), "no text is listed");
    fatia.run(&["token", "revoke", &id]).good();
    assert!(get(&address, made.out.trim(), "/api/v1/self").starts_with("HTTP/1.1 401"));
    fatia
        .run(&["token", "create", "--name", "x", "--role", "tenant", "--tenant", "none"])
        .ended(1)
        .told(&["`none` is no tenant"]);
    fatia.run(&["tenant", "create", "acme"]).good();
    fatia
        .run(&[
            "token",
            "create",
            "--name",
            "x",
            "--role",
            "tenant",
            "--tenant",
            "acme",
            "--scope",
            "reports:read",
        ])
        .good();
    running.stop().good();
}

#[test]
fn the_way_to_a_service_is_its_owners_alone_and_goes_with_it() {
    let fatia = Fatia::new();
    let (running, _, token) = serve(&fatia, &[]);
    let file = fatia.path("data/fatia.server");
    let mode = std::fs::metadata(&file).expect("it is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert!(std::fs::read_to_string(&file).expect("ours").contains(&token));
    // A second service, and whatever else wants the file for itself, is told who has it.
    fatia.run(&["serve", "--listen", "127.0.0.1:0"]).ended(1).told(&["is in use by process"]);
    fatia.run(&["worker", "--once"]).ended(1).told(&["is in use by process"]);
    fatia.run(&["doctor"]).good();
    running.stop().good();
    assert!(!file.exists());
    fatia.run(&["doctor"]).good();
}

#[test]
fn a_killed_services_file_leads_nobody_astray() {
    let fatia = Fatia::new();
    let (running, address, token) = serve(&fatia, &[]);
    running.kill();
    let file = fatia.path("data/fatia.server");
    assert!(file.exists(), "it had no time to remove it");
    // Somebody else has its port now, and must not be sent the token.
    let other =
        std::net::TcpListener::bind(address.trim_start_matches("http://")).expect("the port is free again");
    other.set_nonblocking(true).expect("a listener");
    fatia.run(&["doctor"]).good();
    assert!(other.accept().is_err(), "nobody asked the other");
    drop(other);
    let (running, again, _) = serve(&fatia, &[]);
    assert!(
        get(&again, &token, "/api/v1/self").starts_with("HTTP/1.1 401"),
        "the token went with its process"
    );
    running.stop().good();
}

#[test]
fn commands_say_who_gives_them_and_ask_no_other_databases_service() {
    let fatia = Fatia::new().with("USER", "ana");
    let (running, address, token) = serve(&fatia, &[]);
    let of_bea = fatia.with("USER", "bea");
    of_bea.run(&["tenant", "create", "acme"]).good();
    assert!(get(&address, &token, "/api/v1/audit").contains("\"actor\":\"bea\""));
    // Whoever names another database means that one.
    let elsewhere = of_bea.with("DATABASE_URL", "postgres://nobody@127.0.0.1:1/none");
    let ran = elsewhere.run(&["tenant", "list"]);
    assert_ne!(ran.code, Some(0), "{ran}");
    assert!(!ran.out.contains("acme"), "{ran}");
    running.stop().good();
}

#[test]
fn a_service_that_is_stopped_ends_what_is_under_way() {
    let fatia = Fatia::new();
    let (running, address, token) = serve(&fatia, &[]);
    let body = "{\"name\":\"late\"}";
    let head = format!(
        "POST /api/v1/tenants HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer {token}\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let mut under_way = connect(&address);
    under_way.write_all(head.as_bytes()).expect("it takes the head");
    under_way.write_all(&body.as_bytes()[..5]).expect("it takes half of the body");
    std::thread::sleep(Duration::from_millis(300));
    let stopping = std::thread::spawn(move || running.stop());
    std::thread::sleep(Duration::from_millis(300));
    under_way.write_all(&body.as_bytes()[5..]).expect("it takes the rest");
    let mut heard = String::new();
    under_way.read_to_string(&mut heard).expect("it answers");
    assert!(heard.starts_with("HTTP/1.1 201"), "{heard}");
    let ended = stopping.join().expect("no panic").good();
    assert!(ended.err.contains("stopping"), "{ended}");
    assert!(fatia.run(&["tenant", "list"]).good().out.contains("late"));
}

#[test]
fn logs_are_json_lines_if_wanted_and_hold_no_secret() {
    let fatia = Fatia::new().with_settings("[log]\nformat = \"json\"\n").with("RUST_LOG", "debug");
    let (running, address, token) = serve(&fatia, &[]);
    let made =
        fatia.run(&["token", "create", "--name", "ci", "--role", "admin"]).good().out.trim().to_owned();
    get(&address, &made, "/api/v1/tenants?after=zz");
    get(&address, "fatia_wrong", "/api/v1/tenants");
    get(&address, &made, "/api/v1/none");
    let seed = std::fs::read(fatia.path("data/fatia.db")).expect("the database");
    assert!(!seed.is_empty());
    let ended = running.stop().good();
    assert!(ended.err.lines().count() > 5);
    for line in ended.err.lines() {
        let json: serde_json::Value =
            serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        assert!(json["timestamp"].is_string() && json["level"].is_string(), "{line}");
    }
    assert!(ended.err.contains("\"route\":\"/api/v1/tenants\""), "requests are logged at debug");
    for secret in [&token, &made] {
        assert!(!ended.err.contains(&secret[23..60]), "a token's secret is in the log");
    }
}

#[test]
fn settings_of_the_door_are_checked_before_it_opens() {
    let check = |text: &str, part: &str| {
        let fatia = Fatia::new().with_settings(text);
        fatia.run(&["serve", "--listen", "127.0.0.1:0"]).ended(1).told(&[part]);
    };
    check("[http]\nlisten = \"nowhere\"\n", "http.listen");
    check("[http]\nthreads = 0\n", "threads 0 is not between 1 and 256");
    check("[http]\ntls_key = \"key.pem\"\n", "tls_certificate and http.tls_key are given together");
    check("[http]\ntls_key = \"key.pem\"\ntls_certificate = \"cert.pem\"\n", "cert.pem: is no PEM file");
    check("[log]\nformat = \"xml\"\n", "log.format");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("it has one").to_string();
    Fatia::new().run(&["serve", "--listen", &address]).ended(1).told(&["cannot listen"]);
}
