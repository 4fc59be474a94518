//! Reads the tables that come with this program. They take the operator's way in, with its checks.

use std::str::FromStr;

use csv::StringRecord;

use super::{BoardRow, Catalogue, CatalogueRows, ProfileRow, Provenance, VgpuType};
use crate::domain::ids::Name;

const BOARDS: &str = include_str!("boards.csv");
const BOARD_COLUMNS: [&str; 8] = [
    "key",
    "names",
    "memory_mib",
    "compute_slices",
    "memory_slots",
    "baseline_milliwatts",
    "confidence",
    "source",
];
const PROFILES: &str = include_str!("mig.csv");
const PROFILE_COLUMNS: [&str; 9] = [
    "board",
    "profile",
    "memory_slots",
    "length",
    "starts",
    "max_instances",
    "memory_mib",
    "confidence",
    "source",
];
const VGPUS: &str = include_str!("vgpu.csv");
const VGPU_COLUMNS: [&str; 9] = [
    "type",
    "board_code",
    "board_memory_mib",
    "framebuffer_mib",
    "gi_profile",
    "max",
    "max_mixed",
    "confidence",
    "source",
];

/// The embedded catalogue.
#[expect(clippy::expect_used, reason = "the tables are part of the program, and a test reads every row")]
pub(super) fn read() -> Catalogue {
    let rows = rows().expect("the embedded tables are well-formed");
    Catalogue::default().extended(&rows).expect("the embedded tables break no rule")
}

/// All rows as they stand in the tables.
pub(super) fn rows() -> Result<CatalogueRows, String> {
    Ok(CatalogueRows {
        boards: table(BOARDS, &BOARD_COLUMNS, board)?,
        profiles: table(PROFILES, &PROFILE_COLUMNS, profile)?,
        vgpus: table(VGPUS, &VGPU_COLUMNS, vgpu)?,
    })
}

/// One row; cells are asked for by column.
struct Cells<'a> {
    columns: &'a [&'a str],
    record: &'a StringRecord,
}

impl<'a> Cells<'a> {
    fn text(&self, column: &str) -> Result<&'a str, String> {
        let found = self.columns.iter().position(|each| *each == column);
        found.and_then(|place| self.record.get(place)).ok_or_else(|| format!("has no {column}"))
    }

    fn value<T: FromStr>(&self, column: &str) -> Result<T, String> {
        let text = self.text(column)?;
        text.parse().map_err(|_| format!("{column} `{text}` is no number"))
    }

    fn optional<T: FromStr>(&self, column: &str) -> Result<Option<T>, String> {
        if self.text(column)?.is_empty() { Ok(None) } else { self.value(column).map(Some) }
    }

    fn name(&self, column: &str) -> Result<Name, String> {
        name(column, self.text(column)?)
    }

    fn provenance(&self) -> Result<Provenance, String> {
        let (source, confidence) = (self.text("source")?.to_owned(), self.text("confidence")?.to_owned());
        Ok(Provenance { source, confidence })
    }
}

fn name(column: &str, text: &str) -> Result<Name, String> {
    Name::parse(text).map_err(|error| format!("{column} `{text}` {error}"))
}

fn table<T>(
    text: &str,
    columns: &[&str],
    row: impl Fn(&Cells<'_>) -> Result<T, String>,
) -> Result<Vec<T>, String> {
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    let header = reader.headers().map_err(|error| error.to_string())?;
    if header.iter().ne(columns.iter().copied()) {
        return Err(format!("has the columns {header:?}, not {columns:?}"));
    }
    reader
        .records()
        .map(|record| {
            let record = record.map_err(|error| error.to_string())?;
            row(&Cells { columns, record: &record }).map_err(|error| format!("{record:?} {error}"))
        })
        .collect()
}

fn board(cells: &Cells<'_>) -> Result<BoardRow, String> {
    let names = cells.text("names")?.split(';').filter(|name| !name.trim().is_empty());
    Ok(BoardRow {
        key: cells.name("key")?,
        names: names.map(|text| name("names", text)).collect::<Result<_, _>>()?,
        memory_mib: Some(cells.value("memory_mib")?),
        compute_slices: cells.optional("compute_slices")?,
        memory_slots: cells.optional("memory_slots")?,
        baseline_milliwatts: cells.optional("baseline_milliwatts")?,
        provenance: cells.provenance()?,
    })
}

fn profile(cells: &Cells<'_>) -> Result<ProfileRow, String> {
    let starts = cells.text("starts")?.split_whitespace();
    let start = |text: &str| text.parse().map_err(|_| format!("starts `{text}` is no number"));
    Ok(ProfileRow {
        board: cells.name("board")?,
        name: cells.name("profile")?,
        memory_slots: cells.value("memory_slots")?,
        starts: starts.map(start).collect::<Result<_, String>>()?,
        length: cells.value("length")?,
        max_instances: cells.value("max_instances")?,
        memory_mib: cells.optional("memory_mib")?,
        provenance: cells.provenance()?,
    })
}

fn vgpu(cells: &Cells<'_>) -> Result<VgpuType, String> {
    let gi_profile = match cells.text("gi_profile")? {
        "" => None,
        profile => Some(name("gi_profile", profile)?),
    };
    Ok(VgpuType {
        name: cells.name("type")?,
        board_code: cells.name("board_code")?,
        board_memory_mib: cells.value("board_memory_mib")?,
        framebuffer_mib: cells.value("framebuffer_mib")?,
        gi_profile,
        max: cells.value("max")?,
        max_mixed: cells.optional("max_mixed")?,
        provenance: cells.provenance()?,
    })
}
