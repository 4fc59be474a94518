//! Deriving before a command returns: here where the database is embedded, else by a worker that is waited for.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use super::{Ending, Server, Target, tell};
use crate::services::ctx::Platform;
use crate::services::derive::{self, Awaited};
use crate::services::error::ServiceError;

/// Between two looks at what is left.
const LOOK: Duration = Duration::from_millis(300);
/// With nobody at work for this long, the person is told.
const NOBODY: Duration = Duration::from_secs(5);

/// A line of progress on a terminal that is written over itself; nothing where nobody watches.
#[derive(Debug, Clone, Copy)]
pub(super) struct ProgressLine {
    watched: bool,
}

impl ProgressLine {
    pub(super) fn new() -> Self {
        Self { watched: std::io::stderr().is_terminal() }
    }

    pub(super) fn show(self, text: &str) {
        use std::io::Write;
        if self.watched {
            let _closed_by_its_reader = write!(std::io::stderr(), "\r\x1b[2K{text}");
        }
    }

    pub(super) fn clear(self) {
        self.show("");
    }
}

/// How long one question to a running service waits.
const ASK_SECONDS: u32 = 5;

/// Sees to it that everything marked is derived, unless `no_wait`.
pub(super) async fn until_derived(target: &Target<'_>, no_wait: bool) -> Result<(), ServiceError> {
    let line = ProgressLine::new();
    let (platform, worker) = match target {
        Target::Here(platform, worker) => (platform, worker),
        Target::Server(server) => return wait_for_a_service(server, no_wait, line).await,
    };
    if platform.store.is_embedded() {
        let show = move |done: u64| line.show(&format!("deriving: {done} days of nodes done"));
        derive::derive_all(platform, worker, &show).await?;
        line.clear();
        return Ok(());
    }
    if no_wait {
        let left = derive::pending(platform).await?;
        tell(&format!("{left} marks wait for a worker (`fatia worker`)"));
        return Ok(());
    }
    wait_for_a_worker(platform, line).await
}

fn nobody() {
    tell("nobody works on what is marked: start `fatia worker` (or use --no-wait); waiting");
}

async fn wait_for_a_service(server: &Server, no_wait: bool, line: ProgressLine) -> Result<(), ServiceError> {
    let (mut told, mut moment) = (false, None);
    loop {
        let state = server.derivation(if no_wait { 0 } else { ASK_SECONDS }, moment).await?;
        moment = state.moment;
        if no_wait {
            tell(&format!("{} marks wait for a worker", state.pending_marks));
            return Ok(());
        }
        if state.awaited_days == 0 {
            line.clear();
            return Ok(());
        }
        if !state.someone_works && !told {
            told = true;
            nobody();
        }
        line.show(&format!("waiting for a worker: {} days left", state.awaited_days));
    }
}

async fn wait_for_a_worker(platform: &Platform, line: ProgressLine) -> Result<(), ServiceError> {
    let now = Instant::now;
    let (mut last_work, mut least, mut told) = (now(), usize::MAX, false);
    let mut awaited = Awaited::now(platform).await?;
    loop {
        let left = awaited.left(platform).await?;
        if left == 0 {
            line.clear();
            return Ok(());
        }
        if left < least || derive::someone_works(platform).await? {
            (least, last_work) = (left.min(least), now());
        } else if last_work.elapsed() > NOBODY && !told {
            told = true;
            nobody();
        }
        line.show(&format!("waiting for a worker: {left} days left"));
        tokio::time::sleep(LOOK).await;
    }
}

/// Marks everything and sees to it that it is derived.
pub(super) async fn rebuild(target: &Target<'_>, no_wait: bool) -> Result<Ending, ServiceError> {
    let marks = match target {
        Target::Here(platform, _) => {
            derive::rebuild(platform).await?;
            derive::pending(platform).await?
        }
        Target::Server(server) => server.rebuild().await?,
    };
    until_derived(target, no_wait).await?;
    tell(&format!("rebuild: {marks} marks set, all levels derived from the journal again"));
    Ok(Ending::Done)
}
