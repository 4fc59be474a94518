//! The map is true: which floor may know which, and where a few words may stand.
//!
//! `FLOORS` is the map. The rules read the source as text, so that they also see what a build with other features
//! leaves out; comments, string literals and macro tricks are beyond them. Each rule says in its message where the
//! code belongs instead. The planted violations at the end show that each of them can fail.

use std::fmt::Write as _;

use crate::support::source::{Finding, Kind, Source, Token, is_float, mark_test_files, sources};

/// A folder of `src`, what it may know of the others, and what it is for.
struct Floor {
    name: &'static str,
    knows: &'static [&'static str],
    holds: &'static str,
}

/// All edges there are. A new one is a decision about the house, not a detail of a change. `main` knows everything.
const FLOORS: &[Floor] = &[
    Floor { name: "domain", knows: &[], holds: "values and decisions" },
    Floor { name: "config", knows: &["domain"], holds: "settings, read once" },
    Floor { name: "wire", knows: &["domain"], holds: "messages and their formats" },
    Floor { name: "store", knows: &["domain"], holds: "tables and units of work" },
    Floor { name: "services", knows: &["store", "wire", "domain"], holds: "one function per request" },
    Floor { name: "probe", knows: &["domain"], holds: "sockets and commands, into text" },
    Floor { name: "agent", knows: &["wire", "probe", "domain"], holds: "what runs on a GPU host" },
    Floor { name: "http", knows: &["services", "wire", "domain"], holds: "routes and handlers" },
    Floor { name: "worker", knows: &["services", "probe", "domain"], holds: "timers and jobs" },
    Floor { name: "cli", knows: &["services", "wire", "domain"], holds: "commands of a person" },
];

/// Floors whose numbers end up on a bill.
const EXACT: &[&str] = &["src/domain", "src/wire", "src/store", "src/services"];

const BACKENDS: &[&str] = &["src/store/backend", "src/store/migrate", "src/config/database"];
/// The one file that calls a C library by its pointers, and the folder that may only read through it.
const UNSAFE: &str = "src/agent/nvml/raw.rs";
const READS_ONLY: &[&str] = &["src/agent/nvml"];
/// Where scopes are made: everybody else is handed one.
const SCOPE_MAKERS: &[&str] = &["src/store/scope", "src/services/ctx", "src/services/access"];

// The rules.

#[test]
fn floors_know_only_what_the_map_allows() {
    check(
        foreign_floors,
        "Move what both need to a floor that both may know (values and decisions: `domain`), hand it in as an \
         argument from `main`, or put the calling code on a higher floor.",
    );
}

#[test]
fn every_folder_of_src_is_a_floor() {
    check(
        not_on_the_map,
        "The folders of `src` are the floors of `FLOORS`. Put the file into one of them, or decide on a new floor and \
         its edges first.",
    );
}

#[test]
fn database_crates_stay_in_the_store() {
    check(
        database_crates,
        "Queries belong into a function of `src/store` that takes a scope and returns domain values.",
    );
}

#[test]
fn only_the_backend_knows_which_database_it_is() {
    check(
        backend_words,
        "A caller says `read` or `write`, never which backend. What differs between the two is a verb of \
         `src/store/backend`; which one is used, `src/config/database.rs` says.",
    );
}

#[test]
fn only_config_and_main_read_the_environment() {
    check(
        environment,
        "Read it in `src/config` into a field of the settings and pass that on. `env!(\"CARGO_PKG_VERSION\")` is free.",
    );
}

#[test]
fn feature_gates_stand_at_the_doors() {
    check(
        feature_gates,
        "Features switch whole modules, in `src/lib.rs` and `src/main.rs`. Move the code to a module of its floor.",
    );
}

#[test]
fn no_float_comes_near_a_bill() {
    check(
        floats,
        "Use the integer types of `src/domain/units.rs`: shares are fractions, money and time are integers.",
    );
}

#[test]
fn only_main_owns_a_clock() {
    check(clocks, "Take the instant as an argument. `src/cli` may read `Instant::now` to show progress.");
}

#[test]
fn scopes_are_made_at_their_doors_only() {
    check(
        scope_makers,
        "A scope is handed down from `Platform`, or comes from a verified credential; take it as the first argument.",
    );
}

#[test]
fn nothing_is_unsafe() {
    check(unsafe_code, "Find a safe call, or a crate whose subject the unsafe code is.");
}

#[test]
fn an_agent_changes_nothing_on_a_gpu() {
    check(
        changes_of_gpus,
        "An agent watches GPUs that others pay for: it never sets, clears, resets, makes or unmakes anything on one.",
    );
}

#[test]
fn nothing_unwraps_outside_tests() {
    check(unwraps, "Return the error, or say why it cannot happen: `.expect(\"reason\")`.");
}

#[test]
fn every_file_says_what_it_is() {
    check(
        module_text,
        "Begin the file with `//!`: what it owns, what it does not own, what is always true in it.",
    );
}

type Rule = fn(&Source) -> Vec<Finding>;

fn floor_of(source: &Source) -> Option<&'static Floor> {
    let first = source.module.as_ref()?.first()?;
    FLOORS.iter().find(|floor| floor.name == first)
}

fn foreign_floors(source: &Source) -> Vec<Finding> {
    let Some(home) = floor_of(source) else {
        return vec![];
    };
    let mut findings = vec![];
    for path in source.paths() {
        let Some(target) = source.absolute(&path) else {
            continue;
        };
        let text = path.segments.join("::");
        let Some(first) = target.first() else {
            if path.renamed {
                findings
                    .push(path.finding(format!("`{text}` renames the root of the crate, which hides edges")));
            }
            continue;
        };
        if first == "*" {
            findings.push(path.finding(format!("`{text}` takes in all floors at once; name the one")));
            continue;
        }
        if home.name == first || home.knows.contains(&first.as_str()) {
            continue;
        }
        let what = match FLOORS.iter().find(|floor| floor.name == first) {
            Some(there) => format!(
                "`{text}`: `{}` ({}) must not know `{first}` ({}); it may know {:?}",
                home.name, home.holds, there.holds, home.knows
            ),
            None => format!("`{text}`: `{first}` is no floor, and the root of the crate holds nothing else"),
        };
        findings.push(path.finding(what));
    }
    findings
}

fn not_on_the_map(source: &Source) -> Vec<Finding> {
    let at_the_door = source.path == "src/lib.rs" || source.is_in(&["src/main"]);
    if at_the_door || floor_of(source).is_some() {
        return vec![];
    }
    vec![Finding { line: 1, what: "this is on no floor".to_owned() }]
}

fn database_crates(source: &Source) -> Vec<Finding> {
    if source.is_in(&["src/store"]) {
        return vec![];
    }
    source.words(|word| word.starts_with("sea_orm") || word.starts_with("sqlx"))
}

fn backend_words(source: &Source) -> Vec<Finding> {
    if source.is_in(BACKENDS) {
        return vec![];
    }
    source.words(|word| {
        let lower = word.to_lowercase();
        let of_sqlx = word.strip_prefix("Pg").is_some_and(|rest| rest.starts_with(char::is_uppercase));
        let of_sea_orm = matches!(word, "DbBackend" | "DatabaseBackend");
        lower.contains("postgres") || lower.contains("sqlite") || of_sqlx || of_sea_orm
    })
}

fn environment(source: &Source) -> Vec<Finding> {
    if source.is_in(&["src/config", "src/main"]) {
        return vec![];
    }
    let mut findings: Vec<Finding> = source
        .paths()
        .iter()
        .filter(|path| path.segments.starts_with(&["std".to_owned(), "env".to_owned()]))
        .map(|path| path.finding(format!("`{}`", path.segments.join("::"))))
        .collect();
    for (at, token) in source.tokens.iter().enumerate() {
        let is_macro = token.is_word("env") || token.is_word("option_env");
        if is_macro && source.is_mark(at + 1, "!") {
            let name = source.tokens.get(at + 3);
            if !name.is_some_and(|name| name.kind == Kind::Text && name.text == "CARGO_PKG_VERSION") {
                findings.push(token.finding(format!("`{}!`", token.text)));
            }
        }
    }
    findings
}

fn feature_gates(source: &Source) -> Vec<Finding> {
    if source.is_in(&["src/lib", "src/main"]) {
        return vec![];
    }
    let mut findings = vec![];
    for (at, token) in source.tokens.iter().enumerate() {
        if !token.is_word("cfg") && !token.is_word("cfg_attr") {
            continue;
        }
        // `cfg(…)` in an attribute, `cfg!(…)` in an expression.
        let open = if source.is_mark(at + 1, "!") { at + 2 } else { at + 1 };
        if !source.is_mark(open, "(") {
            continue;
        }
        let inside = &source.tokens[open..source.closing(open)];
        if inside.iter().any(|token| token.is_word("feature")) {
            findings.push(token.finding("a feature is asked for here".to_owned()));
        }
    }
    findings
}

fn floats(source: &Source) -> Vec<Finding> {
    if !source.is_in(EXACT) {
        return vec![];
    }
    let of_float = |token: &&Token| match token.kind {
        Kind::Word => matches!(token.text.as_str(), "f32" | "f64"),
        Kind::Number => is_float(&token.text),
        Kind::Text | Kind::Mark => false,
    };
    source.tokens.iter().filter(of_float).map(|token| token.finding(format!("`{}`", token.text))).collect()
}

fn clocks(source: &Source) -> Vec<Finding> {
    if source.is_in(&["src/main"]) {
        return vec![];
    }
    let mut findings = vec![];
    for (at, token) in source.tokens.iter().enumerate() {
        let is_clock = match token.text.as_str() {
            "Utc" | "Local" | "SystemTime" => true,
            "Instant" => !source.is_in(&["src/cli"]),
            _ => false,
        };
        if is_clock && source.is_mark(at + 1, "::") && source.is_word(at + 2, "now") {
            findings.push(token.finding(format!("`{}::now`", token.text)));
        }
    }
    findings
}

fn scope_makers(source: &Source) -> Vec<Finding> {
    if source.is_in(SCOPE_MAKERS) {
        return vec![];
    }
    source.words(|word| matches!(word, "of_process" | "of_verified"))
}

fn unsafe_code(source: &Source) -> Vec<Finding> {
    if source.path == UNSAFE {
        return vec![];
    }
    source.words(|word| word == "unsafe")
}

/// Names by which NVML and its wrapper change something. An event set is the caller's own.
fn changes_of_gpus(source: &Source) -> Vec<Finding> {
    if !source.is_in(READS_ONLY) {
        return vec![];
    }
    source.words(|word| {
        let of_wrapper =
            ["set_", "clear_", "reset_", "create_gpu", "destroy_", "remove_gpu", "discover_gpus", "modify_"];
        let of_library =
            ["Set", "Clear", "Reset", "Create", "Destroy", "Remove", "Modify", "Discover", "Freeze"];
        let is_own = word.starts_with("nvmlEventSet");
        let changes = word.starts_with("nvml") && of_library.iter().any(|verb| word.contains(verb));
        of_wrapper.iter().any(|verb| word.starts_with(verb)) || changes && !is_own
    })
}

fn unwraps(source: &Source) -> Vec<Finding> {
    let tokens = source.tokens.iter().enumerate();
    tokens
        .filter(|(at, token)| {
            let called = *at > 0 && (source.is_mark(at - 1, ".") || source.is_mark(at - 1, "::"));
            token.is_word("unwrap") && called && !token.in_test
        })
        .map(|(_, token)| token.finding("`unwrap`".to_owned()))
        .collect()
}

fn module_text(source: &Source) -> Vec<Finding> {
    if source.text.starts_with("//!") {
        return vec![];
    }
    vec![Finding { line: 1, what: "it begins without `//!`".to_owned() }]
}

// How a rule is held against the source.

fn check(rule: Rule, advice: &str) {
    let sources = sources();
    assert!(!sources.is_empty(), "no source was found, so nothing was checked");
    let mut text = String::new();
    for source in &sources {
        for Finding { line, what } in rule(source) {
            writeln!(text, "{}:{line}: {what}", source.path).expect("a string takes all");
        }
    }
    assert!(text.is_empty(), "\n{text}{advice}\n");
}

mod planted {
    use super::*;

    /// The lines that `rule` finds fault with.
    #[track_caller]
    fn expect(rule: Rule, path: &str, text: &str, lines: &[usize]) {
        let found: Vec<usize> = rule(&Source::new(path, text)).iter().map(|finding| finding.line).collect();
        assert_eq!(found, lines, "{path}: {text}");
    }

    #[test]
    fn foreign_floors_are_found_however_they_are_named() {
        let domain = "src/domain/price.rs";
        for text in [
            "use crate::store::Store;",
            "use crate::{domain::Money, store::Store};",
            "use crate::{\n    domain::{Money, Price},\n    wire::{self, Batch},\n};",
            "fn f(_: &crate::http::Problem) {}",
            "fn f() { fatia::cli::run() }",
            "use super::super::store;",
            "mod tests { use super::super::super::store::Store; }",
            "type A = Vec<crate::agent::Window>;",
            "fn f() { g::<crate::worker::Job>() }",
            "pub use ::fatia::services;",
            "use crate::*;",
            "use crate as root;",
            "use crate::{self as root};",
            "use crate::Hidden;",
        ] {
            assert!(!foreign_floors(&Source::new(domain, text)).is_empty(), "{text}");
        }
        expect(foreign_floors, "src/http/mod.rs", "//! x\n\nuse crate::store::Store;", &[3]);
        expect(foreign_floors, "src/store/backend/mod.rs", "use super::super::services::ingest;", &[1]);
        expect(foreign_floors, "src/cli/report.rs", "use crate::config::Config;", &[1]);
    }

    #[test]
    fn allowed_edges_pass() {
        for (path, text) in [
            (
                "src/domain/price.rs",
                "use crate::domain::units::Micros; use super::money::Money; use std::fmt;",
            ),
            ("src/domain/price.rs", "mod tests { use super::super::money::Money; use super::*; }"),
            ("src/domain/price.rs", "// crate::store\n/* use crate::store; /* crate::http */ crate::http */"),
            (
                "src/domain/price.rs",
                r##"const A: &str = "crate::store"; const B: &str = r#"use "crate::http"; "#;"##,
            ),
            (
                "src/domain/price.rs",
                "pub(crate) fn f() {} pub(in crate::domain) fn g() {} pub(super) fn h() {}",
            ),
            ("src/services/ingest.rs", "use crate::{domain::Money, store::Store, wire::{Batch, self}};"),
            ("src/http/mod.rs", "fn f<'a>(_: &'a crate::services::Caller) -> char { '\\'' }"),
            ("src/main.rs", "use fatia::{store::Store, http, config::Config};"),
            ("src/lib.rs", "pub mod domain; pub mod store;"),
        ] {
            expect(foreign_floors, path, text, &[]);
        }
    }

    #[test]
    fn the_map_is_listed_from_the_ground_up() {
        // So it has no cycle, and reads as a house.
        for (at, floor) in FLOORS.iter().enumerate() {
            for known in floor.knows {
                assert!(
                    FLOORS[..at].iter().any(|below| below.name == *known),
                    "{} knows {known}",
                    floor.name
                );
            }
        }
    }

    #[test]
    fn a_file_without_a_floor_is_found() {
        expect(not_on_the_map, "src/utils.rs", "", &[1]);
        expect(not_on_the_map, "src/billing/mod.rs", "", &[1]);
        for path in ["src/lib.rs", "src/main.rs", "src/main/node.rs", "src/domain/mod.rs", "src/store.rs"] {
            expect(not_on_the_map, path, "", &[]);
        }
    }

    #[test]
    fn a_scope_made_elsewhere_is_found() {
        let text = "let scope = PlatformScope::of_process();\nTenantScope::of_verified(tenant);";
        expect(scope_makers, "src/services/reports.rs", text, &[1, 2]);
        expect(scope_makers, "src/services/ctx.rs", text, &[]);
    }

    #[test]
    fn database_words_are_found() {
        expect(database_crates, "src/services/ingest.rs", "use sea_orm::DbErr;\nuse sqlx::Row;", &[1, 2]);
        expect(database_crates, "src/store/usage.rs", "use sea_orm::DbErr; use sqlx::Row;", &[]);
        expect(database_crates, "src/storefront.rs", "use sqlx::Row;", &[1]);

        let text = "match backend { DbBackend::Sqlite => 1 }\nfn migrate_postgres() {}\nlet p: PgPool;";
        expect(backend_words, "src/store/usage.rs", text, &[1, 1, 2, 3]);
        expect(backend_words, "src/main.rs", text, &[1, 1, 2, 3]);
        expect(backend_words, "src/main.rs", "// sqlite\nlet u = \"postgres://localhost\"; Pgp::new();", &[]);
        for path in ["src/store/backend/sqlite.rs", "src/config/database.rs", "src/store/migrate.rs"] {
            expect(backend_words, path, text, &[]);
        }
    }

    #[test]
    fn environment_is_found() {
        let text = "std::env::var(\"HOME\");\nuse std::{env, fs};\nenv!(\"OUT_DIR\");\noption_env!(\"CI\");";
        let mut found: Vec<usize> =
            environment(&Source::new("src/agent/mod.rs", text)).iter().map(|finding| finding.line).collect();
        found.sort_unstable();
        assert_eq!(found, [1, 2, 3, 4]);
        expect(environment, "src/config/mod.rs", text, &[]);
        expect(environment, "src/main.rs", text, &[]);
        expect(
            environment,
            "src/cli/mod.rs",
            "const V: &str = env!(\"CARGO_PKG_VERSION\"); let env = 1;",
            &[],
        );
    }

    #[test]
    fn feature_gates_are_found() {
        let text = "#[cfg(feature = \"agent\")]\nmod a;\n#[cfg(all(unix, feature = \"server\"))] mod b;\n\
                    if cfg!(feature = \"agent\") {}\n#[cfg_attr(feature = \"server\", derive(Debug))] struct S;";
        expect(feature_gates, "src/store/mod.rs", text, &[1, 3, 4, 5]);
        expect(feature_gates, "src/lib.rs", text, &[]);
        expect(feature_gates, "src/store/mod.rs", "#[cfg(test)] mod tests { fn feature() {} }", &[]);
    }

    #[test]
    fn floats_are_found() {
        let text = "fn f(a: f64) {}\nlet a = 0.5;\nlet b = 1_f32;\nlet c = 1e-6;\nlet d = 2.;\nlet e = 1e9;";
        expect(floats, "src/domain/units.rs", text, &[1, 2, 3, 4, 5, 6]);
        expect(floats, "src/cli/report.rs", text, &[]);
        let exact = "let a = 1..2; pair.0.1; 0x1e5; 1_000_usize; 1.max(2); 7e; \"0.5\"; // 0.5";
        expect(floats, "src/domain/units.rs", exact, &[]);
    }

    #[test]
    fn clocks_are_found() {
        let text =
            "let a = chrono::Utc::now();\nlet b = SystemTime::now;\nlet c = std::time::Instant::now();";
        expect(clocks, "src/services/ctx.rs", text, &[1, 2, 3]);
        expect(clocks, "src/cli/import.rs", text, &[1, 2]);
        expect(clocks, "src/main.rs", text, &[]);
        expect(clocks, "src/services/ctx.rs", "let now = caller.now; Instant::new(1)", &[]);
    }

    #[test]
    fn unsafe_code_and_missing_texts_are_found() {
        expect(unsafe_code, "src/agent/nvml.rs", "//! x\nunsafe { f() }", &[2]);
        expect(unsafe_code, "src/agent/nvml/mod.rs", "//! x\nunsafe { f() }", &[2]);
        expect(unsafe_code, "src/agent/nvml/raw.rs", "//! x\nunsafe { f() }", &[]);
        expect(unsafe_code, "src/agent/nvml.rs", "#![forbid(unsafe_code)] // unsafe", &[]);
        expect(module_text, "src/agent/nvml.rs", "use std::fs;", &[1]);
        expect(module_text, "src/agent/nvml.rs", "//! What it is.\n", &[]);
    }

    #[test]
    fn what_would_change_a_gpu_is_found() {
        let text = "device.set_accounting(true);\ndevice.clear_accounting_pids();\nlib.nvmlDeviceResetGpuLockedClocks;\n\
                    lib.nvmlDeviceCreateGpuInstance;\nvgpu.set_encoder_capacity(1);\nlib.nvmlVgpuInstanceSetEncoderCapacity;";
        expect(changes_of_gpus, "src/agent/nvml/board.rs", text, &[1, 2, 3, 4, 5, 6]);
        expect(changes_of_gpus, "src/store/units.rs", text, &[]);
        let own =
            "lib.nvmlEventSetCreate; lib.nvmlEventSetFree; c::nvmlEventSet_t; map.remove(1); self.clear()";
        expect(changes_of_gpus, "src/agent/nvml/raw.rs", own, &[]);
    }

    #[test]
    fn unwraps_are_found_outside_tests_only() {
        let text = "fn f() { a.unwrap() }\n\
                    #[cfg(test)]\nmod tests {\n    #[test]\n    fn g() { a.unwrap(); }\n}\n\
                    fn h() { a.map(Option::unwrap) }\n\
                    #[test]\nfn i(_: [u8; 2]) { a.unwrap() }\n\
                    #[cfg(not(test))]\nfn j() { a.unwrap() }\n\
                    fn k() { a.unwrap_or(1); a.expect(\"unwrap\") }";
        expect(unwraps, "src/domain/price.rs", text, &[1, 7, 11]);
        expect(unwraps, "src/domain/price.rs", "#![cfg(test)]\nfn f() { a.unwrap() }", &[]);
    }

    #[test]
    fn a_file_that_only_tests_declare_is_test_code() {
        let mut sources = vec![
            Source::new("src/domain/price.rs", "#[cfg(test)]\nmod tests;\nmod other;"),
            Source::new("src/domain/price/tests.rs", "fn f() { a.unwrap() }"),
            Source::new("src/domain/price/other.rs", "fn f() { a.unwrap() }"),
        ];
        mark_test_files(&mut sources);
        let found: Vec<usize> = sources.iter().map(|source| unwraps(source).len()).collect();
        assert_eq!(found, [0, 0, 1]);
    }
}
