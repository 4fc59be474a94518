//! Tables of text, as people bring them: CSV with a header, read line by line, each fault with its line's number.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::io::Read;
use std::rc::Rc;

use serde::{Deserialize, Serialize};

use super::error::ServiceError;
use crate::domain::ids::Name;
use crate::domain::units::Instant;

/// A line that was not taken, with its number in its file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BadLine {
    /// The file.
    pub file: String,
    /// Its line, counted from 1, the header included.
    pub line: u64,
    /// Why.
    pub reason: String,
}

/// What becomes of a table of which some lines cannot be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strictness {
    /// They are reported, and the others are taken.
    TakeTheGood,
    /// Nothing is taken.
    AllOrNothing,
}

/// Lines of one table, at most.
const LINES_MAX: u64 = 10_000_000;
/// Lines of one table that cannot be taken, at most: beyond, it is another table than it ought to be.
const BAD_LINES_MAX: usize = 100_000;
/// Line ends that are read ahead of a record, at most.
const ENDS_AHEAD_MAX: usize = 4_000_000;
/// Characters of a reason.
const REASON_CHARS_MAX: usize = 500;

/// A table of text read line by line.
pub(super) struct Table;

/// What was read of a table.
pub(super) struct TableRead {
    /// The columns that it has.
    pub(super) columns: BTreeSet<String>,
    /// Lines that were not taken, in order.
    pub(super) bad: Vec<BadLine>,
}

/// A reason as it can be kept and shown, whatever the line held: no control characters, and not more than some lines.
pub(super) fn for_show(reason: &str) -> String {
    let plain = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    let mut shown: String = reason.chars().take(REASON_CHARS_MAX).map(plain).collect();
    if reason.chars().nth(REASON_CHARS_MAX).is_some() {
        shown.push('…');
    }
    shown
}

/// One line of a table; columns by name.
pub(super) struct TableRow<'a> {
    record: &'a csv::StringRecord,
    columns: &'a HashMap<String, usize>,
}

impl Table {
    /// Reads a table with these columns in any order; calls `each` with the line's number and its row, which says why
    /// it cannot be taken.
    pub(super) fn read(
        input: impl Read,
        file: &str,
        required: &[&str],
        optional: &[&str],
        mut each: impl FnMut(u64, Result<TableRow<'_>, String>) -> Result<(), String>,
    ) -> Result<TableRead, ServiceError> {
        let refused =
            |reason: String| ServiceError::File { file: file.to_owned(), reason: for_show(&reason) };
        let lines = Rc::new(RefCell::new(LineEnds::default()));
        let counted = CountedLines { input, offset: 0, after_return: false, ends: Rc::clone(&lines) };
        let mut reader = csv::ReaderBuilder::new().flexible(true).from_reader(counted);
        let header = match reader.headers() {
            Ok(header) => header.clone(),
            Err(error) if matches!(error.kind(), csv::ErrorKind::Utf8 { .. }) => {
                return Err(refused("line 1 is not UTF-8 text".to_owned()));
            }
            Err(error) => return Err(refused(error.to_string())),
        };
        if header.is_empty() {
            return Err(refused("is empty".to_owned()));
        }
        if let [only] = header.iter().collect::<Vec<_>>().as_slice()
            && only.contains([';', '\t'])
        {
            return Err(refused("line 1: columns are to be separated by commas".to_owned()));
        }
        let mut columns = HashMap::new();
        for (at, name) in header.iter().enumerate() {
            let name = name.trim().trim_start_matches('\u{feff}');
            if !required.contains(&name) && !optional.contains(&name) {
                let known = [required, optional].concat().join(", ");
                return Err(refused(format!("line 1: unknown column `{name}`; known are: {known}")));
            }
            if columns.insert(name.to_owned(), at).is_some() {
                return Err(refused(format!("line 1: column `{name}` stands twice")));
            }
        }
        if let Some(missing) = required.iter().find(|name| !columns.contains_key(**name)) {
            return Err(refused(format!("line 1: column `{missing}` is missing")));
        }
        let mut record = csv::StringRecord::new();
        let (mut read_lines, mut bad) = (0_u64, Vec::new());
        loop {
            read_lines += 1;
            if read_lines > LINES_MAX {
                return Err(refused(format!("has more than {LINES_MAX} lines; bring it in parts")));
            }
            let before = reader.position().byte();
            let read = reader.read_record(&mut record);
            let line = lines.borrow_mut().line_from(before);
            let taken = match read {
                Ok(false) => return Ok(TableRead { columns: columns.into_keys().collect(), bad }),
                Ok(true) if record.len() != header.len() => {
                    let (fields, columns) = (record.len(), header.len());
                    let fields = if fields == 1 { "1 field".to_owned() } else { format!("{fields} fields") };
                    let quote = if record.iter().any(|field| field.contains('\n')) {
                        "; a quote is not closed, or a field spans lines"
                    } else {
                        ""
                    };
                    each(line, Err(format!("has {fields}, not {columns}{quote}")))
                }
                Ok(true) => each(line, Ok(TableRow { record: &record, columns: &columns })),
                Err(error) => match error.kind() {
                    csv::ErrorKind::Utf8 { .. } => each(line, Err("is not UTF-8 text".to_owned())),
                    _ => return Err(refused(error.to_string())),
                },
            };
            if let Err(reason) = taken {
                if bad.len() == BAD_LINES_MAX {
                    let reason =
                        format!("more than {BAD_LINES_MAX} lines cannot be taken; line {line}: {reason}");
                    return Err(refused(reason));
                }
                bad.push(BadLine { file: file.to_owned(), line, reason: for_show(&reason) });
            }
        }
    }
}

/// Where lines end, so that a record can be given its line's number: blank lines count, and are no records.
#[derive(Debug, Default)]
struct LineEnds {
    /// For each line that was read and not asked for yet: the offset of its newline, and whether a carriage
    /// return stands before it.
    ends: VecDeque<(u64, bool)>,
    /// Lines that ended before the first of `ends`.
    passed: u64,
}

impl LineEnds {
    /// The number, from 1, of the line in which the first text at or after `offset` stands. Offsets only grow.
    fn line_from(&mut self, offset: u64) -> u64 {
        let mut from = offset;
        while let Some((end, after_return)) = self.ends.front() {
            let blank = from + u64::from(*after_return) >= *end;
            if !blank {
                break;
            }
            from = from.max(*end + 1);
            self.ends.pop_front();
            self.passed += 1;
        }
        self.passed + 1
    }
}

/// Passes text through and notes where its lines end.
struct CountedLines<R> {
    input: R,
    offset: u64,
    after_return: bool,
    ends: Rc<RefCell<LineEnds>>,
}

impl<R: Read> Read for CountedLines<R> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let count = self.input.read(into)?;
        let mut ends = self.ends.borrow_mut();
        for byte in into.iter().take(count) {
            if *byte == b'\n' {
                // A record is found before long, or this is a file of nothing: each end that waits takes memory.
                if ends.ends.len() == ENDS_AHEAD_MAX {
                    return Err(std::io::Error::other("too many lines without a record"));
                }
                ends.ends.push_back((self.offset, self.after_return));
            }
            self.after_return = *byte == b'\r';
            self.offset += 1;
        }
        Ok(count)
    }
}

impl TableRow<'_> {
    pub(super) fn has(&self, column: &str) -> bool {
        self.columns.contains_key(column)
    }

    pub(super) fn text(&self, column: &str) -> &str {
        self.columns.get(column).and_then(|at| self.record.get(*at)).map(str::trim).unwrap_or_default()
    }

    pub(super) fn name(&self, column: &str) -> Result<Name, String> {
        Name::parse(self.text(column)).map_err(|error| format!("{column} {error}"))
    }

    pub(super) fn find_name(&self, column: &str) -> Result<Option<Name>, String> {
        if self.text(column).is_empty() { Ok(None) } else { self.name(column).map(Some) }
    }

    pub(super) fn instant(&self, column: &str) -> Result<Instant, String> {
        if self.text(column).is_empty() {
            return Err(format!("{column} is empty"));
        }
        Instant::parse(self.text(column)).map_err(|error| format!("{column} {error}"))
    }

    pub(super) fn find_instant(&self, column: &str) -> Result<Option<Instant>, String> {
        if self.text(column).is_empty() { Ok(None) } else { self.instant(column).map(Some) }
    }

    /// A decimal that is not negative, in units of its last of `digits` decimals.
    pub(super) fn find_decimal(&self, column: &str, digits: usize) -> Result<Option<i64>, String> {
        let text = self.text(column);
        if text.is_empty() {
            return Ok(None);
        }
        let (whole, part) = text.split_once('.').unwrap_or((text, ""));
        let is_plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        if whole.is_empty() || !is_plain(whole) || !is_plain(part) || text.ends_with('.') {
            return Err(format!("{column} `{text}` is not a decimal number such as 12.5"));
        }
        if part.len() > digits {
            return Err(format!("{column} `{text}` has more than {digits} decimals"));
        }
        let scaled = format!("{whole}{part:0<digits$}").parse();
        scaled.map(Some).map_err(|_| format!("{column} `{text}` is too large"))
    }

    pub(super) fn find_number(&self, column: &str) -> Result<Option<i64>, String> {
        let text = self.text(column);
        if text.is_empty() {
            return Ok(None);
        }
        text.parse().map(Some).map_err(|_| format!("{column} `{text}` is not a whole number"))
    }
}
