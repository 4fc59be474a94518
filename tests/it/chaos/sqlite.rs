//! On SQLite, and what it shares with PostgreSQL: imports that are killed and come again.

use std::time::{Duration, Instant};

use super::fleet::{Covers, Fleet, Levels, open_file, prices};
use super::rig::{Program, Random, counts};

/// What was done to a database, and one on which the same was done in peace.
pub struct Kills {
    pub undisturbed: Program,
    pub summary: String,
}

const FLEET: Fleet = Fleet { nodes: 24, days: 2 };

/// Imports a history and amendments, one after the other; each is killed at a random moment and run again until
/// it completes. `after_kill` looks at what a kill leaves.
pub async fn kill_imports(program: &Program, test: &str, after_kill: impl AsyncFn()) -> Kills {
    let mut random = Random::seeded(test, 0x15_0002);
    let wanted = counts(20).max(2);
    let undisturbed = Program::on(None);
    let folder = undisturbed.data().to_owned();
    let put = |name: &str, text: String| {
        let path = folder.join(name);
        std::fs::write(&path, text).expect("the folder is ours");
        path.into_os_string().into_string().expect("a plain path")
    };
    let (inventory, book) = (put("inventory.csv", FLEET.inventory()), put("prices.toml", prices(0)));
    for each in [program, &undisturbed] {
        each.succeed(&["price", "load", "--no-wait", &book]);
    }
    let (mut kills, mut imports) = (0, 0_u32);
    while kills < wanted {
        assert!(imports < wanted * 4, "imports end before they can be killed");
        let (rows, covers) = match imports {
            0 => (FLEET.history(), Covers::All),
            version => (FLEET.amendment(version), Covers::Nothing),
        };
        let (rows, covers) = (put(&format!("rows-{imports}.csv"), rows), covers.argument());
        imports += 1;
        let mut arguments = vec!["import", "intervals", "--no-wait", "--source", "scheduler"];
        arguments.extend(["--inventory", &inventory, "--covers", &covers, &rows]);
        let begun = Instant::now();
        undisturbed.succeed(&arguments);
        let in_peace = u64::try_from(begun.elapsed().as_millis()).expect("it was short");
        // The same import may be killed more than once.
        for _ in 0..2 {
            let mut import = program.start("import", &arguments);
            tokio::time::sleep(Duration::from_millis(15) + random.millis(in_peace)).await;
            if import.has_ended() {
                break;
            }
            kills += u32::from(import.kill());
            after_kill().await;
        }
        program.succeed(&arguments);
    }
    Kills { undisturbed, summary: format!("{kills} kills over {imports} imports") }
}

/// Finance reads the same months, byte by byte.
pub fn assert_same_reports(program: &Program, kills: &Kills) {
    for group_by in ["tenant,project,mode", "node,day", "workload,state"] {
        let arguments =
            ["report", "costs", "--period", "2026-06", "--group-by", group_by, "--format", "json"];
        assert_eq!(program.succeed(&arguments), kills.undisturbed.succeed(&arguments), "{group_by}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_import_resumes() {
    let begun = Instant::now();
    let program = Program::on(None);
    let looks = std::sync::atomic::AtomicU32::new(0);
    let kills = kill_imports(&program, "killed imports on a file", async || {
        assert_sound(&program).await;
        looks.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    })
    .await;
    // A kill may have come between the import and what it derives; the repeat has made that good.
    assert_same_reports(&program, &kills);
    let undisturbed = Levels::in_folder(kills.undisturbed.data()).await;
    Levels::in_folder(program.data()).await.assert_same(&undisturbed, "after the kills");
    program.succeed(&["doctor"]);
    let looks = looks.into_inner();
    assert!(looks > 0);
    eprintln!(
        "killed imports on a file: {}, the file sound after each; {:.1?}",
        kills.summary,
        begun.elapsed()
    );
}

/// SQLite itself finds nothing wrong with the file.
pub async fn assert_sound(program: &Program) {
    use sqlx::Connection as _;
    if !program.data().join("fatia.db").exists() {
        return;
    }
    let mut connection = open_file(program.data()).await;
    for check in ["PRAGMA integrity_check", "PRAGMA foreign_key_check"] {
        let found: Vec<String> = sqlx::query_scalar(check).fetch_all(&mut connection).await.expect("a check");
        assert!(found.iter().all(|line| line == "ok"), "{check}: {found:?}");
    }
    connection.close().await.expect("it was open");
}
