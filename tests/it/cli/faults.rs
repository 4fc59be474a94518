//! What a person sees who asks for something impossible: an exit code, one clear line, and no secret.

use std::time::{Duration, Instant};

use super::program::Fatia;

#[test]
fn a_command_line_that_is_not_understood_ends_with_2_and_says_what_would_be() {
    let fatia = Fatia::new();
    let costs = |options: &[&str]| {
        let command = [&["report", "costs", "--period", "2026-09"], options].concat();
        fatia.run(&command).ended(2)
    };
    let fields = "`colour` is none of: tenant, project, mode, model, node, workload, day, state";
    costs(&["--group-by", "tenant,colour"]).told(&[fields]);
    costs(&["--group-by", ""]).told(&["tenant, project, mode"]);
    costs(&["--format", "xml"]).told(&["'xml'", "text, json, csv"]);
    for period in ["2026-13", "2026-00", "202609", "2026-9", "september", ""] {
        let ran = fatia.run(&["report", "costs", "--period", period]).ended(2);
        ran.told(&[&format!("`{period}` is not a month such as 2026-06")]);
    }
    fatia.run(&["report", "costs"]).ended(2).told(&["--period <YYYY-MM>"]);
    let import = |options: &[&str]| {
        let command = [&["import", "intervals", "--inventory", "i.csv", "f.csv"], options].concat();
        fatia.run(&command).ended(2)
    };
    import(&["--covers", "2026-09-01"]).told(&["--covers <FROM/TO>", "is not FROM/TO"]);
    import(&["--covers", "2026-09-02T00:00:00Z/2026-09-01T00:00:00Z"]).told(&["before its start"]);
    import(&["--covers", "2026-09-01T00:00:00Z/2026-09-01T00:00:00Z"]).told(&["covers nothing"]);
    import(&["--source", ""]).told(&["is empty"]);
    fatia.run(&["import", "intervals", "f.csv"]).ended(2).told(&["--inventory <FILE>"]);
    fatia.run(&["bill"]).ended(2).told(&["'bill'"]);
    fatia.run(&[]).ended(2).told(&["Usage: fatia", "import", "report"]);
    assert!(!fatia.path("data/fatia.db").exists(), "nothing was made");
}

#[test]
fn a_fault_in_an_agents_files_names_the_file_and_the_cause() {
    let fatia = Fatia::new();
    let agent = |options: &[&str]| {
        let command = [&["agent", "--node", "n-1", "--server", "http://127.0.0.1:1"], options].concat();
        fatia.run(&command).ended(1)
    };
    agent(&["--fleet", "nowhere.toml"]).told(&["fatia: nowhere.toml: ", "No such file"]);
    fatia.write("fleet.toml", "seed = 1\n[[node]]\nname = \"n-1\"\n");
    agent(&["--fleet", "fleet.toml"]).told(&["fatia: fleet.toml: ", "line 2", "missing field `device`"]);
    let other = "seed = 1\nstart = \"2026-06-01T00:00:00Z\"\n[[node]]\nname = \"n-2\"\n[[node.device]]\n\
                 model = \"NVIDIA L4\"\nmode = \"dedicated\"\nwatts = { idle = 16, busy = 72 }\n";
    fatia.write("fleet.toml", other);
    agent(&["--fleet", "fleet.toml"]).told(&["fatia: fleet.toml: ", "no node `n-1`", "n-2"]);
}

#[test]
fn a_fault_in_the_settings_names_its_key_and_where_it_was_set() {
    let check = |text: &str, parts: &[&str]| {
        let fatia = Fatia::new().with_settings(text);
        let ran = fatia.run(&["doctor"]).ended(1).told(&["fatia: settings: ", "fatia.toml"]).told(parts);
        assert_eq!(ran.out, "");
    };
    check("[billing]\nzone = \"Mars/Base\"\n", &["`Mars/Base`", "billing.zone"]);
    check("[billing]\nzones = \"UTC\"\n", &["`zones`", "`zone`"]);
    check("[billing]\ncurrency = \"usd\"\n", &["`usd`", "billing.currency"]);
    check("[bill]\nzone = \"UTC\"\n", &["`bill`", "`billing`"]);
    check("[worker]\nlease_seconds = 0\n", &["lease_seconds 0 is not between 1 and 3600"]);
    check("[worker]\nlease_seconds = \"x\"\n", &["worker.lease_seconds"]);
    check("[database]\nurl = 5\n", &["database.url"]);
    check("hello\n", &["line 1"]);

    let check = |name: &str, value: &str, parts: &[&str]| {
        Fatia::new().with(name, value).run(&["doctor"]).ended(1).told(&["fatia: settings: "]).told(parts);
    };
    check("FATIA_BILLING__ZONE", "Nowhere", &["`Nowhere`", "BILLING.ZONE", "environment"]);
    check("FATIA_COLOUR", "red", &["`colour`", "environment"]);
    check("FATIA_DATABASE_URL", "x", &["`database_url`", "environment"]);
    check("FATIA_WORKER__LEASE_SECONDS", "soon", &["lease_seconds", "environment", "a whole number"]);

    let fatia = Fatia::new();
    fatia.run(&["--config", "nowhere.toml", "doctor"]).ended(1).told(&["nowhere.toml is not there"]);
}

#[test]
fn settings_come_from_the_file_that_is_named_and_the_environment_wins() {
    let fatia = Fatia::new().with_settings("[billing]\nzone = \"Europe/Lisbon\"\n");
    fatia.write("other.toml", "[billing]\nzone = \"Asia/Kolkata\"\ncurrency = \"INR\"\n");
    let told = |fatia: &Fatia, options: &[&str], parts: &[&str]| {
        let ran = fatia.run(&[options, &["doctor"]].concat()).good();
        for part in parts {
            assert!(ran.out.contains(part), "{ran}");
        }
    };
    told(&fatia, &[], &["Europe/Lisbon", "USD"]);
    told(&fatia, &["--config", "other.toml"], &["Asia/Kolkata", "INR"]);
    let fatia = fatia.with("FATIA_BILLING__ZONE", "America/Sao_Paulo");
    told(&fatia, &["--config", "other.toml"], &["America/Sao_Paulo", "INR"]);
}

/// Whatever goes wrong with a URL, its password is not in what the program says.
#[test]
fn a_database_that_is_not_there_is_an_error_within_seconds_and_shows_no_secret() {
    let url = "postgres://user:SECRET@localhost:1/none";
    let check = |fatia: &Fatia, command: &[&str], parts: &[&str]| {
        let began = Instant::now();
        let ran = fatia.run(command).ended(1).told(&["fatia: "]).told(parts);
        assert!(began.elapsed() < Duration::from_secs(20), "{ran}");
        assert!(!ran.err.contains("SECRET") && !ran.out.contains("SECRET"), "{ran}");
    };
    let not_there = ["the database is not available", "Connection refused"];
    let fatia = Fatia::new().with("DATABASE_URL", url);
    for command in [&["doctor"][..], &["worker"], &["rebuild"], &["report", "costs", "--period", "2026-09"]] {
        check(&fatia, command, &not_there);
    }
    check(&Fatia::new().with("RUST_LOG", "trace").with("DATABASE_URL", url), &["doctor"], &not_there);
    check(&Fatia::new().with("FATIA_DATABASE__URL", url), &["doctor"], &not_there);
    let file = format!("[database]\nurl = \"{url}\"\n");
    check(&Fatia::new().with_settings(&file), &["doctor"], &not_there);
    check(&Fatia::new().with("DATABASE_MIGRATE_URL", url), &["migrate"], &["Connection refused"]);
    for url in ["SECRET", "postgres:SECRET", "postgres://user:SECRET@localhost:99999/none"] {
        check(&Fatia::new().with("DATABASE_URL", url), &["doctor"], &[]);
    }
}

#[test]
fn a_secret_in_the_wrong_place_is_not_shown_either() {
    let url = "postgres://user:SECRET@localhost:1/none";
    let check = |fatia: Fatia| {
        let ran = fatia.run(&["doctor"]).ended(1).told(&["fatia: settings: "]);
        assert!(!ran.err.contains("SECRET"), "{ran}");
    };
    check(Fatia::new().with("FATIA_DATABASE_URL", url));
    check(Fatia::new().with("FATIA_DATABASE", url));
    check(Fatia::new().with("FATIA_DATABASE__CONNECTIONS", url));
    check(Fatia::new().with_settings(&format!("[database]\nurl = {url}\n")));
    check(Fatia::new().with_settings(&format!("[database]\nconnections = \"{url}\"\n")));
    check(Fatia::new().with_settings(&format!("database = \"{url}\"\n")));
    check(Fatia::new().with_settings(&format!("[database]\nurl = \"{url}\n")));
}

#[test]
fn a_url_of_another_kind_of_database_is_refused_as_such() {
    for url in ["mysql://user:SECRET@localhost:1/none", "sqlite:///tmp/none.db", "http://localhost:1"] {
        let ran = Fatia::new().with("DATABASE_URL", url).run(&["doctor"]).ended(1);
        assert!(!ran.err.contains("Connection refused"), "{url} was taken for PostgreSQL: {ran}");
        assert!(!ran.err.contains("SECRET"), "{ran}");
        ran.told(&["PostgreSQL"]);
    }
}

#[test]
fn a_data_directory_that_cannot_be_one_is_an_error() {
    let fatia = Fatia::new();
    fatia.write("file", "");
    fatia.run(&["--data", "file", "doctor"]).ended(2);
    let check = |data: &str| {
        let fatia = Fatia::new();
        std::fs::remove_dir(fatia.path("data")).expect("an empty folder");
        std::os::unix::fs::symlink(data, fatia.path("data")).expect("a new link");
        fatia.run(&["doctor"]).ended(1).told(&["fatia: ", "data"]);
    };
    check("/dev/null");
    check("/proc");
    let other = Fatia::new();
    other.write("data/fatia.db", "this is no database, whatever its name says");
    other.run(&["doctor"]).ended(1).told(&["fatia: "]);
}

#[test]
fn migrate_needs_to_be_told_which_schema() {
    Fatia::new().run(&["migrate"]).ended(1).told(&["DATABASE_MIGRATE_URL is not set"]);
}
