//! What the host knows of a process: since when it runs, whose it is, in which control group.
//!
//! Always true here: a process is known by its pid and its start, so that a pid that comes again is another
//! one; what was read at first sight stays, since a process that ends takes it with it.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::domain::ids::{NAME_BYTES_MAX, Name};

/// Where the host's folders are: their real places, or a test's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Roots {
    /// `/proc`.
    pub proc: PathBuf,
    /// `/sys`.
    pub sys: PathBuf,
    /// `/etc`.
    pub etc: PathBuf,
}

impl Default for Roots {
    fn default() -> Self {
        Self { proc: "/proc".into(), sys: "/sys".into(), etc: "/etc".into() }
    }
}

impl Roots {
    /// All of them below one folder.
    #[must_use]
    pub fn below(folder: &Path) -> Self {
        Self { proc: folder.join("proc"), sys: folder.join("sys"), etc: folder.join("etc") }
    }
}

/// A process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Process {
    /// Clock ticks after the start of the machine.
    pub(super) start: u64,
    /// Its control group, if that says anything: not the root.
    pub(super) cgroup: Option<Name>,
    /// Its user, by name where the host has one.
    pub(super) user: Option<Name>,
    /// Its command name.
    pub(super) command: Option<Name>,
    /// What an MPS client may use, by its environment.
    pub(super) mps: MpsLimits,
}

/// What an MPS client may use.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct MpsLimits {
    /// Percent of threads; none: it says nothing, and may use all.
    pub(super) percent: Option<u32>,
    /// Memory in MiB by device number.
    pub(super) memory_mib: Vec<(u32, u32)>,
}

impl MpsLimits {
    /// The memory limit on a device. Numbers are those that the client sees: where it names one only, that
    /// one is meant.
    pub(super) fn memory_on(&self, index: u32) -> Option<u32> {
        match self.memory_mib.as_slice() {
            [(_, only)] => Some(*only),
            all => all.iter().find(|(of, _)| *of == index).map(|(_, mib)| *mib),
        }
    }
}

/// The host's processes, as far as they were asked for.
#[derive(Debug)]
pub(super) struct Host {
    pub(super) roots: Roots,
    known: HashMap<u32, (Arc<Process>, u64)>,
    users: HashMap<u32, Option<Name>>,
    /// Counts looks: who was not asked for lately is forgotten.
    look: u64,
    has_told: bool,
}

impl Host {
    pub(super) fn new(roots: Roots) -> Self {
        Self { roots, known: HashMap::new(), users: HashMap::new(), look: 0, has_told: false }
    }

    /// Begins a look, and forgets who was not in the last.
    pub(super) fn begin(&mut self) {
        let look = self.look;
        self.known.retain(|_, (_, seen)| *seen == look);
        self.look = look.wrapping_add(1);
        if self.look.is_multiple_of(3_600) {
            // Users come and go.
            self.users.clear();
        }
    }

    /// A process; none: the host does not know it. One that ended a moment ago is still known.
    pub(super) fn process(&mut self, pid: u32) -> Option<Arc<Process>> {
        let start = self.start(pid);
        let known = self.known.get_mut(&pid);
        if let Some((process, seen)) =
            known.filter(|(known, _)| start.is_none_or(|start| known.start == start))
        {
            *seen = self.look;
            return Some(Arc::clone(process));
        }
        let Some(start) = start else {
            if !std::mem::replace(&mut self.has_told, true) {
                tracing::warn!(
                    pid,
                    "a GPU has a process that this agent cannot see, so its holder is unknown: \
                     run the agent as root and in the host's PID namespace"
                );
            }
            return None;
        };
        let process = Arc::new(self.read(pid, start));
        self.known.insert(pid, (Arc::clone(&process), self.look));
        Some(process)
    }

    /// When it began, in clock ticks after the start of the machine; none: it is not there.
    fn start(&self, pid: u32) -> Option<u64> {
        let text = fs::read(self.folder(pid).join("stat")).ok()?;
        let text = String::from_utf8_lossy(&text);
        // The name before it may have blanks and brackets in it: what follows the last bracket is numbers.
        text.rsplit_once(')')?.1.split_ascii_whitespace().nth(19)?.parse().ok()
    }

    fn read(&mut self, pid: u32, start: u64) -> Process {
        let folder = self.folder(pid);
        let text =
            |file: &str| fs::read(folder.join(file)).map(|all| String::from_utf8_lossy(&all).into_owned());
        let cgroup = text("cgroup").ok().and_then(|text| cgroup_of(&text));
        let command = text("comm").ok().and_then(|text| Name::parse(&text).ok());
        let mps = text("environ").map(|text| limits_of(&text)).unwrap_or_default();
        let uid = text("status").ok().and_then(|text| {
            let line = text.lines().find_map(|line| line.strip_prefix("Uid:").map(str::to_owned))?;
            line.split_ascii_whitespace().next()?.parse().ok()
        });
        let user = uid.and_then(|uid| self.user(uid));
        Process { start, cgroup, user, command, mps }
    }

    /// A user's name, or the number where the host has none for it.
    fn user(&mut self, uid: u32) -> Option<Name> {
        if let Some(user) = self.users.get(&uid) {
            return user.clone();
        }
        let text = fs::read_to_string(self.roots.etc.join("passwd")).unwrap_or_default();
        let name = text.lines().find_map(|line| {
            let mut fields = line.split(':');
            let name = fields.next()?;
            let of = fields.nth(1)?;
            (of.parse() == Ok(uid)).then(|| name.to_owned())
        });
        let user = Name::parse(&name.unwrap_or_else(|| uid.to_string())).ok();
        self.users.insert(uid, user.clone());
        user
    }

    pub(super) fn folder(&self, pid: u32) -> PathBuf {
        self.roots.proc.join(pid.to_string())
    }
}

/// The control group that says most: of version 2 where there is one, else of the controller that all
/// runtimes set.
fn cgroup_of(text: &str) -> Option<Name> {
    let mut lines: Vec<(&str, &str)> = text
        .lines()
        .filter_map(|line| {
            let (_, rest) = line.split_once(':')?;
            rest.split_once(':')
        })
        .filter(|(_, path)| *path != "/" && !path.is_empty())
        .collect();
    let rank = |controllers: &str| match controllers {
        "" => 0,
        "devices" => 1,
        "memory" => 2,
        "name=systemd" => 3,
        _ => 4,
    };
    lines.sort_by_key(|(controllers, _)| rank(controllers));
    let (_, path) = lines.first()?;
    // What is unlike others is at its end.
    let cut = path.len().saturating_sub(NAME_BYTES_MAX);
    let path = (cut..path.len()).find_map(|at| path.get(at..)).unwrap_or(path);
    Name::parse(path).ok()
}

/// What an environment says of MPS.
fn limits_of(environment: &str) -> MpsLimits {
    let value = |name: &str| {
        environment.split('\0').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('=').map(str::trim))
    };
    let percent = value("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE").and_then(|text| {
        // It may have decimals, of which nothing hangs.
        let whole: u32 = text.split('.').next()?.parse().ok()?;
        (1..=100).contains(&whole).then_some(whole)
    });
    let memory = value("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT").unwrap_or_default();
    let memory_mib = memory.split(',').filter_map(|pair| {
        let (device, size) = pair.trim().split_once('=')?;
        Some((device.trim().parse().ok()?, mib_of(size.trim())?))
    });
    MpsLimits { percent, memory_mib: memory_mib.collect() }
}

/// A size such as `1G` or `512MB` in MiB.
fn mib_of(text: &str) -> Option<u32> {
    let digits = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at_checked(digits)?;
    let number: u64 = number.parse().ok()?;
    let mib = match unit.trim().to_ascii_uppercase().trim_end_matches(['B', 'I']) {
        "G" => number.checked_mul(1_024)?,
        "M" => number,
        "K" => number / 1_024,
        "" => number / 1_048_576,
        _ => return None,
    };
    u32::try_from(mib).ok().filter(|mib| *mib > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_control_group_that_says_most_is_taken() {
        let pod = "/kubepods.slice/kubepods-pod1.slice/cri-containerd-2.scope";
        for (text, expected) in [
            (format!("0::{pod}\n"), Some(pod)),
            (format!("12:pids:/x\n3:devices:{pod}\n1:name=systemd:/y\n0::/\n"), Some(pod)),
            ("0::/\n".to_owned(), None),
            (String::new(), None),
        ] {
            assert_eq!(cgroup_of(&text).as_ref().map(Name::as_str), expected, "{text}");
        }
        let long = cgroup_of(&format!("0::/{}/{}", "a".repeat(300), "b".repeat(9))).unwrap();
        assert!(long.as_str().len() <= 256 && long.as_str().ends_with("/bbbbbbbbb"));
    }

    #[test]
    fn an_environment_tells_what_an_mps_client_may_use() {
        let read = |text: &str| limits_of(&text.replace(' ', "\0"));
        let limits =
            read("A=1 CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=30 CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=2G,1=512MB");
        assert_eq!(limits, MpsLimits { percent: Some(30), memory_mib: vec![(0, 2_048), (1, 512)] });
        assert_eq!((limits.memory_on(1), limits.memory_on(2)), (Some(512), None));
        let limits = read("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=33.3 CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=3g");
        assert_eq!((limits.percent, limits.memory_on(5)), (Some(33), Some(3_072)));
        for text in ["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=0", "XCUDA_MPS_ACTIVE_THREAD_PERCENTAGE=5", ""] {
            assert_eq!(read(text), MpsLimits::default());
        }
    }
}
