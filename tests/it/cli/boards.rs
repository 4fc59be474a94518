//! Boards for ten hours, each on a node of its own, with their slices and holders: the three tables of an import; and
//! the parts that they must come to.
//!
//! Expected parts are fractions of an hour, written as integers. Each is floored by itself; what flooring leaves must
//! be the report's `rounding`, so a check always speaks of the whole board.

use std::collections::BTreeMap;

use super::program::{Fatia, Ran, Report};

/// How long each board is in service.
pub const HOURS: i64 = 10;
const MICRO: i64 = 1_000_000;
const START: &str = "2026-09-01T00:00:00Z";
const END: &str = "2026-09-01T10:00:00Z";

const INVENTORY: [&str; 6] =
    ["node", "gpu_uuid", "gpu_model", "gpu_memory_gib", "in_service_from", "in_service_to"];
const SLICES: [&str; 14] = [
    "node",
    "gpu_uuid",
    "slice",
    "parent",
    "mode",
    "profile",
    "share_ppm",
    "replicas",
    "thread_percent",
    "memory_limit_mib",
    "placement",
    "scheduler",
    "start",
    "end",
];
const INTERVALS: [&str; 20] = [
    "workload",
    "tenant",
    "project",
    "node",
    "gpu_uuid",
    "slice",
    "parent",
    "mode",
    "profile",
    "share_ppm",
    "replicas",
    "thread_percent",
    "memory_limit_mib",
    "placement",
    "scheduler",
    "power",
    "sm_active_seconds",
    "memory_gib_seconds",
    "start",
    "end",
];

/// The tables of an import under construction.
///
/// A line is given as words `column=value`; node, device and the ten hours are filled in. A time is an hour of the day
/// (`end=05:00`), or a whole instant.
#[derive(Debug, Clone)]
pub struct Boards {
    end: &'static str,
    pub inventory: Vec<String>,
    pub slices: Vec<String>,
    pub intervals: Vec<String>,
}

impl Boards {
    pub fn new() -> Boards {
        Boards { end: END, inventory: vec![], slices: vec![], intervals: vec![] }
    }

    /// Boards that are there for a whole day, and so is what is on them.
    pub fn of_a_day() -> Boards {
        Boards { end: "2026-09-02T00:00:00Z", ..Boards::new() }
    }

    /// One board with everything on it: lines `slice …` exist, other lines are held; a line's first word is the
    /// slice's or the workload's name.
    pub fn of(model: &str, lines: &str) -> Boards {
        let mut boards = Boards::new();
        boards.add("n", model, lines);
        boards
    }

    /// The same on a node of that name, beside what is there.
    pub fn add(&mut self, node: &str, model: &str, lines: &str) -> &mut Boards {
        self.add_with_memory(node, model, "", lines)
    }

    /// The same with the memory in GiB that the inventory states.
    pub fn add_with_memory(&mut self, node: &str, model: &str, gib: &str, lines: &str) -> &mut Boards {
        self.inventory.push(format!("{node},GPU-{node},{model},{gib},{START},{}\n", self.end));
        for line in lines.lines().map(str::trim).filter(|line| !line.is_empty()) {
            match line.strip_prefix("slice ") {
                Some(line) => self.slices.push(self.row(&SLICES, node, "slice", line)),
                None => self.intervals.push(self.row(&INTERVALS, node, "workload", line)),
            }
        }
        self
    }

    /// A board cut by MIG as words `profile@placement` say, or `profile` where that is not known. Each instance is held,
    /// by `h0`, `h1` and so on, except those in parentheses, which exist and are not held.
    pub fn add_mig(&mut self, node: &str, model: &str, layout: &str) -> &mut Boards {
        self.add(node, model, "");
        for (number, word) in layout.split_whitespace().enumerate() {
            let unheld = word.strip_prefix('(').and_then(|word| word.strip_suffix(')'));
            let instance = unheld.unwrap_or(word);
            let (profile, placement) = instance.split_once('@').unwrap_or((instance, ""));
            let size = format!("mode=mig profile={profile} placement={placement}");
            self.slices.push(self.row(&SLICES, node, "slice", &format!("s{number} {size}")));
            if unheld.is_none() {
                let held = format!("h{number} slice=s{number} {size}");
                self.intervals.push(self.row(&INTERVALS, node, "workload", &held));
            }
        }
        self
    }

    /// Writes the tables into the installation's folder.
    pub fn write(&self, fatia: &Fatia) {
        let table = |columns: &[&str], lines: &[String]| format!("{}\n{}", columns.join(","), lines.concat());
        fatia.write("inventory.csv", table(&INVENTORY, &self.inventory));
        fatia.write("slices.csv", table(&SLICES, &self.slices));
        fatia.write("intervals.csv", table(&INTERVALS, &self.intervals));
    }

    /// Imports all three tables; without lines of slices, only the two others.
    pub fn import(&self, fatia: &Fatia) -> Ran {
        self.write(fatia);
        let slices = if self.slices.is_empty() { &[][..] } else { &["--slices", "slices.csv"] };
        let command = ["import", "intervals", "--inventory", "inventory.csv", "intervals.csv"];
        fatia.run(&[&command, slices].concat())
    }

    fn row(&self, columns: &[&str], node: &str, name: &str, line: &str) -> String {
        let (first, rest) = line.split_once(' ').unwrap_or((line, ""));
        let device = format!("GPU-{node}");
        let mut values: BTreeMap<&str, String> = [
            ("node", node.to_owned()),
            ("gpu_uuid", device),
            ("start", START.to_owned()),
            ("end", self.end.to_owned()),
            (name, first.to_owned()),
        ]
        .into();
        if name == "workload" {
            values.insert("tenant", "t".to_owned());
        }
        for word in rest.split_whitespace() {
            let (column, value) = word.split_once('=').unwrap_or_else(|| panic!("`{word}` of `{line}`"));
            assert!(columns.contains(&column), "no column {column}");
            let is_hour = matches!(column, "start" | "end") && value.len() == 5;
            values.insert(column, if is_hour { format!("2026-09-01T{value}:00Z") } else { value.to_owned() });
        }
        let cells: Vec<&str> =
            columns.iter().map(|column| values.get(column).map_or("", String::as_str)).collect();
        format!("{}\n", cells.join(","))
    }

    /// A new installation with these tables; all lines are good.
    pub fn imported(&self) -> Fatia {
        let fatia = Fatia::new();
        self.import(&fatia).good();
        fatia
    }
}

/// A price file with this under `[policy]`.
pub fn policy(lines: &str) -> String {
    format!(
        "name = \"a\"\ncurrency = \"USD\"\neffective_from = \"2026-09-01T00:00:00Z\"\n\
         [cost]\n\"H100-80GB\" = \"3\"\nA10 = \"3\"\n[policy]\n{lines}\n"
    )
}

/// The report of the month with all that a check needs; it reconciles.
pub fn shares(fatia: &Fatia) -> Report {
    let report = fatia.json("2026-09", "node,workload,mode");
    report.in_service();
    report
}

/// Whether a board's ten hours are divided into these parts and no others.
///
/// A part is `state workload mode` and its fractions of an hour, each a leaf of its own: `3/7`, `7*1/8` for seven of
/// them, `1/2@5` for five of the ten hours. Parts are separated by semicolons. A board of the platform's alone has `none`
/// as workload and as mode.
#[track_caller]
pub fn check(report: &Report, node: &str, parts: &str) {
    let mut wanted: BTreeMap<String, i64> = BTreeMap::new();
    for part in parts.split(';') {
        let words: Vec<&str> = part.split_whitespace().collect();
        let [state, workload, mode, fractions @ ..] = words.as_slice() else { panic!("`{part}`") };
        let sum: i64 = fractions.iter().map(|fraction| micro_of(fraction)).sum();
        assert!(sum > 0, "`{part}`");
        *wanted.entry(format!("{state} {workload} {mode}")).or_default() += sum;
    }
    let rounding = HOURS * MICRO - wanted.values().sum::<i64>();
    if rounding > 0 {
        wanted.insert("rounding none none".to_owned(), rounding);
    }
    let mut found: BTreeMap<String, i64> = BTreeMap::new();
    for line in report.groups().iter().filter(|line| line.text("node") == node) {
        let [state, workload, mode] = ["state", "workload", "mode"].map(|field| line.text(field));
        found.insert(format!("{state} {workload} {mode}"), line.gpu_hours());
    }
    found.retain(|_, hours| *hours != 0);
    assert_eq!(found, wanted, "{node}");
}

/// `n*a/b@h` in millionths of an hour.
fn micro_of(text: &str) -> i64 {
    let number = |text: &str| text.parse::<i64>().unwrap_or_else(|error| panic!("`{text}`: {error}"));
    let (text, hours) = text.split_once('@').map_or((text, HOURS), |(text, hours)| (text, number(hours)));
    let (count, text) = text.split_once('*').map_or((1, text), |(count, text)| (number(count), text));
    let (numerator, denominator) = text.split_once('/').unwrap_or((text, "1"));
    let (numerator, denominator) = (number(numerator), number(denominator));
    count * hours * (MICRO * numerator / denominator)
}
