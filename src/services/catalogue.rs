//! The catalogue: the embedded tables with the operator's newest file over them.

use std::sync::{Arc, LazyLock};

use serde::{Deserialize, Serialize};

use super::ctx::{Changed, Platform, Record};
use super::derive::mark_all_homes;
use super::error::ServiceError;
use crate::domain::catalogue::{
    Board, BoardRow, Catalogue, CatalogueRows, ProfileRow, Provenance, VgpuType, VgpuTypeName,
};
use crate::domain::ids::Name;
use crate::domain::period::Span;
use crate::domain::units::Instant;
use crate::store::catalogue::{self, StoredFile};
use crate::store::installation::Lock;
use crate::store::marks::MarkKind;
use crate::store::{PlatformScope, ReadTx, installation, unit};
use crate::wire::body;

/// A catalogue file. Each table may be left out; an empty file takes everything back.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct CatalogueFile {
    #[serde(default)]
    board: Vec<BoardEntry>,
    #[serde(default)]
    profile: Vec<ProfileEntry>,
    #[serde(default)]
    vgpu: Vec<VgpuEntry>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct BoardEntry {
    key: String,
    #[serde(default)]
    names: Vec<String>,
    memory_mib: Option<u32>,
    compute_slices: Option<u16>,
    memory_slots: Option<u16>,
    baseline_milliwatts: Option<u32>,
    source: Option<String>,
    confidence: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ProfileEntry {
    board: String,
    name: String,
    memory_slots: u16,
    #[serde(default)]
    starts: Vec<u16>,
    length: Option<u16>,
    max_instances: u16,
    memory_mib: Option<u32>,
    source: Option<String>,
    confidence: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct VgpuEntry {
    name: String,
    board_memory_mib: u32,
    framebuffer_mib: u32,
    gi_profile: Option<String>,
    max: u16,
    max_mixed: Option<u16>,
    source: Option<String>,
    confidence: Option<String>,
}

/// What loading a catalogue file did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CatalogueOutcome {
    /// The revision that holds now; none if nothing was ever loaded.
    pub revision: Option<i64>,
    /// Boards in the file.
    pub boards: usize,
    /// MIG profiles in it.
    pub profiles: usize,
    /// vGPU types in it.
    pub vgpus: usize,
    /// Whether it was taken now; if not, the newest file said the same.
    pub is_new: bool,
}

/// Loads a catalogue file in place of the one before. One that says the same changes nothing.
///
/// # Errors
/// [`ServiceError::File`] names the row and field that cannot be read or break a rule.
pub async fn load(platform: &Platform, file: &str, text: &str) -> Result<CatalogueOutcome, ServiceError> {
    let (entries, rows) = read(file, text)?;
    over_embedded(file, &rows)?;
    let hash = content_hash(entries)?;
    let (zone, now) = (platform.zone(), platform.now());
    let empty = rows == CatalogueRows::default();
    let (text, actor) = (text.to_owned(), platform.actor.clone());
    let (revision, is_new) = platform
        .change(move |scope, tx| {
            let (content, loaded_by) = (text.clone(), actor.clone());
            unit(async move {
                // Of two that load at once, the second sees the first.
                installation::lock(scope, tx, Lock::Alone).await?;
                let newest = catalogue::current(scope, tx).await?;
                let revision = newest.as_ref().map(|newest| newest.revision);
                if newest.map_or(empty, |newest| newest.content_hash == hash) {
                    return Ok(Changed { outcome: (revision, false), records: vec![] });
                }
                let before = revision.map(|revision| serde_json::json!({ "revision": revision }));
                let revision = revision.unwrap_or(0) + 1;
                let content_hash = hash.to_vec();
                let added = StoredFile { revision, content, content_hash, loaded: now, loaded_by };
                catalogue::add(scope, tx, &added).await?;
                // A board or profile may have been anywhere at any time, so everything is divided again.
                mark_all_homes(scope, tx, zone, MarkKind::Part, Span::ALWAYS).await?;
                let after = Some(serde_json::json!({ "revision": revision }));
                let subject = "catalogue".to_owned();
                let records = vec![Record { action: "catalogue.load", subject, before, after }];
                Ok(Changed { outcome: (Some(revision), true), records })
            })
        })
        .await?;
    let (boards, profiles, vgpus) = (rows.boards.len(), rows.profiles.len(), rows.vgpus.len());
    Ok(CatalogueOutcome { revision, boards, profiles, vgpus, is_new })
}

/// The catalogue that holds: the embedded one with the newest file over it.
///
/// # Errors
/// [`ServiceError::File`] when the newest file does not fit this version's embedded tables.
pub async fn current(scope: &PlatformScope, tx: &ReadTx) -> Result<Arc<Catalogue>, ServiceError> {
    resolved(catalogue::current(scope, tx).await?.as_ref())
}

/// What is shown of the catalogue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CatalogueView {
    /// The file that holds; none was loaded.
    pub file: Option<LoadedFile>,
    /// Boards with their profiles.
    pub boards: Vec<Board>,
    /// vGPU types.
    pub vgpus: Vec<VgpuType>,
}

/// The catalogue as a document.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CatalogueDocument {
    /// The file that holds; none was loaded.
    pub file: Option<FileDocument>,
    /// Boards.
    pub boards: Vec<BoardDocument>,
    /// vGPU types.
    pub vgpu_types: Vec<VgpuDocument>,
}

/// Which file holds, in a document.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileDocument {
    /// Its revision.
    pub revision: i64,
    /// When it was loaded.
    pub loaded: String,
    /// Who loaded it.
    pub loaded_by: String,
}

/// A board, in a document.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BoardDocument {
    /// Its key.
    pub key: String,
    /// What it is also called.
    pub names: Vec<String>,
    /// Its memory.
    pub memory_mib: u32,
    /// Its power while nothing runs on it, where known.
    pub baseline_milliwatts: Option<u32>,
    /// Its compute slices, where MIG can cut it.
    pub compute_slices: Option<u16>,
    /// Its memory slots, where MIG can cut it.
    pub memory_slots: Option<u16>,
    /// Its MIG profiles.
    pub profiles: Vec<ProfileDocument>,
    /// From where this is known.
    pub source: String,
    /// How sure it is.
    pub confidence: String,
}

/// A MIG profile, in a document.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProfileDocument {
    /// Its name.
    pub name: String,
    /// Its compute slices.
    pub compute_slices: u16,
    /// Its memory slots.
    pub memory_slots: u16,
    /// Where it may begin; empty: not known.
    pub starts: Vec<u16>,
    /// How many there can be.
    pub max_instances: u16,
    /// From where this is known.
    pub source: String,
    /// How sure it is.
    pub confidence: String,
}

/// A vGPU type, in a document.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VgpuDocument {
    /// Its name.
    pub name: String,
    /// The board's memory.
    pub board_memory_mib: u32,
    /// Its framebuffer.
    pub framebuffer_mib: u32,
    /// The GPU instance that it needs, where it is MIG-backed.
    pub gi_profile: Option<String>,
    /// How many there can be.
    pub max: u16,
    /// How many beside other sizes, where known.
    pub max_mixed: Option<u16>,
    /// From where this is known.
    pub source: String,
    /// How sure it is.
    pub confidence: String,
}

impl CatalogueView {
    /// The same as a document.
    #[must_use]
    pub fn document(&self) -> CatalogueDocument {
        let file = self.file.as_ref().map(|file| FileDocument {
            revision: file.revision,
            loaded: file.loaded.to_string(),
            loaded_by: file.loaded_by.clone(),
        });
        let boards = self.boards.iter().map(board_document).collect();
        CatalogueDocument { file, boards, vgpu_types: self.vgpus.iter().map(vgpu_document).collect() }
    }
}

fn board_document(board: &Board) -> BoardDocument {
    let mig = board.mig.as_ref();
    let profiles = mig.into_iter().flat_map(|mig| &mig.profiles).map(|profile| ProfileDocument {
        name: profile.name.to_string(),
        compute_slices: profile.compute_slices,
        memory_slots: profile.memory_slots,
        starts: profile.starts.clone(),
        max_instances: profile.max_instances,
        source: profile.provenance.source.clone(),
        confidence: profile.provenance.confidence.clone(),
    });
    BoardDocument {
        key: board.key.to_string(),
        names: board.names.iter().map(ToString::to_string).collect(),
        memory_mib: board.memory_mib,
        baseline_milliwatts: board.baseline_milliwatts,
        compute_slices: mig.map(|mig| mig.compute_slices),
        memory_slots: mig.map(|mig| mig.memory_slots),
        profiles: profiles.collect(),
        source: board.provenance.source.clone(),
        confidence: board.provenance.confidence.clone(),
    }
}

fn vgpu_document(each: &VgpuType) -> VgpuDocument {
    VgpuDocument {
        name: each.name.to_string(),
        board_memory_mib: each.board_memory_mib,
        framebuffer_mib: each.framebuffer_mib,
        gi_profile: each.gi_profile.as_ref().map(ToString::to_string),
        max: each.max,
        max_mixed: each.max_mixed,
        source: each.provenance.source.clone(),
        confidence: each.provenance.confidence.clone(),
    }
}

/// Which file holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadedFile {
    /// Its revision.
    pub revision: i64,
    /// When it was loaded.
    pub loaded: Instant,
    /// Who loaded it.
    pub loaded_by: String,
}

/// Shows the catalogue that holds: all of it, or what is known of a model: a board by its names, vGPU types by the
/// board's code in their names.
///
/// # Errors
/// [`ServiceError::File`] when nothing is known of the model.
pub async fn show(platform: &Platform, model: Option<Name>) -> Result<CatalogueView, ServiceError> {
    let stored =
        platform.read(move |scope, tx| unit(async move { Ok(catalogue::current(scope, tx).await?) })).await?;
    let all = resolved(stored.as_ref())?;
    let (boards, vgpus): (Vec<Board>, Vec<VgpuType>) = match &model {
        None => (all.boards().cloned().collect(), all.vgpu_types().cloned().collect()),
        Some(model) => {
            let is_of = |each: &&VgpuType| each.board_code.as_str().eq_ignore_ascii_case(model.as_str());
            let vgpus = all.vgpu_types().filter(is_of).cloned().collect();
            (all.board(model).cloned().into_iter().collect(), vgpus)
        }
    };
    if let (Some(model), true) = (model, boards.is_empty() && vgpus.is_empty()) {
        let reason = format!("knows no board `{model}`; a file can add it, or its name to a known one");
        return Err(ServiceError::File { file: "catalogue".to_owned(), reason });
    }
    let file = stored.map(|stored| LoadedFile {
        revision: stored.revision,
        loaded: stored.loaded,
        loaded_by: stored.loaded_by,
    });
    Ok(CatalogueView { file, boards, vgpus })
}

fn resolved(stored: Option<&StoredFile>) -> Result<Arc<Catalogue>, ServiceError> {
    static EMBEDDED: LazyLock<Arc<Catalogue>> = LazyLock::new(|| Arc::new(Catalogue::embedded().clone()));
    let Some(stored) = stored else { return Ok(Arc::clone(&EMBEDDED)) };
    let file = format!("catalogue revision {}", stored.revision);
    let (_, rows) = read(&file, &stored.content)?;
    over_embedded(&file, &rows).map(Arc::new)
}

fn over_embedded(file: &str, rows: &CatalogueRows) -> Result<Catalogue, ServiceError> {
    Catalogue::embedded()
        .extended(rows)
        .map_err(|error| ServiceError::File { file: file.to_owned(), reason: error.to_string() })
}

/// SHA-256 of what a file says: the same rows in another order or layout are the same.
fn content_hash(mut file: CatalogueFile) -> Result<[u8; 32], ServiceError> {
    file.board.sort_by(|a, b| a.key.cmp(&b.key));
    file.profile.sort_by(|a, b| (&a.board, &a.name).cmp(&(&b.board, &b.name)));
    file.vgpu.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(body::hash(&serde_json::to_vec(&file).map_err(ServiceError::Encode)?))
}

fn read(file: &str, text: &str) -> Result<(CatalogueFile, CatalogueRows), ServiceError> {
    let refused = |reason: String| ServiceError::File { file: file.to_owned(), reason };
    let parsed: CatalogueFile =
        toml::from_str(text).map_err(|error| refused(error.to_string().trim_end().to_owned()))?;
    let boards = parsed.board.iter().map(board_row).collect::<Result<_, _>>().map_err(refused)?;
    let profiles = parsed.profile.iter().map(profile_row).collect::<Result<_, _>>().map_err(refused)?;
    let vgpus = parsed.vgpu.iter().map(vgpu_row).collect::<Result<_, _>>().map_err(refused)?;
    Ok((parsed, CatalogueRows { boards, profiles, vgpus }))
}

fn board_row(entry: &BoardEntry) -> Result<BoardRow, String> {
    let at = format!("board `{}`", entry.key);
    Ok(BoardRow {
        key: name(&at, "key", &entry.key)?,
        names: entry.names.iter().map(|text| name(&at, "names", text)).collect::<Result<_, _>>()?,
        memory_mib: entry.memory_mib,
        compute_slices: entry.compute_slices,
        memory_slots: entry.memory_slots,
        baseline_milliwatts: entry.baseline_milliwatts,
        provenance: provenance(&at, entry.source.as_deref(), entry.confidence.as_deref())?,
    })
}

fn profile_row(entry: &ProfileEntry) -> Result<ProfileRow, String> {
    let at = format!("profile `{} {}`", entry.board, entry.name);
    Ok(ProfileRow {
        board: name(&at, "board", &entry.board)?,
        name: name(&at, "name", &entry.name)?,
        memory_slots: entry.memory_slots,
        starts: entry.starts.clone(),
        length: entry.length.unwrap_or(entry.memory_slots),
        max_instances: entry.max_instances,
        memory_mib: entry.memory_mib,
        provenance: provenance(&at, entry.source.as_deref(), entry.confidence.as_deref())?,
    })
}

fn vgpu_row(entry: &VgpuEntry) -> Result<VgpuType, String> {
    let at = format!("vgpu `{}`", entry.name);
    let type_name = name(&at, "name", &entry.name)?;
    // What is no type's name has no code either; the catalogue's own rules say so.
    let board_code = VgpuTypeName::parse(&entry.name).map_or_else(|| type_name.clone(), |read| read.board);
    let gi_profile = entry.gi_profile.as_deref().map(|text| name(&at, "gi_profile", text)).transpose()?;
    Ok(VgpuType {
        name: type_name,
        board_code,
        board_memory_mib: entry.board_memory_mib,
        framebuffer_mib: entry.framebuffer_mib,
        gi_profile,
        max: entry.max,
        max_mixed: entry.max_mixed,
        provenance: provenance(&at, entry.source.as_deref(), entry.confidence.as_deref())?,
    })
}

fn name(at: &str, field: &str, text: &str) -> Result<Name, String> {
    Name::parse(text).map_err(|error| format!("{at}: {field} {error}"))
}

fn provenance(at: &str, source: Option<&str>, confidence: Option<&str>) -> Result<Provenance, String> {
    let source = name(at, "source", source.unwrap_or("the operator's file"))?.to_string();
    let confidence = name(at, "confidence", confidence.unwrap_or("declared"))?.to_string();
    Ok(Provenance { source, confidence })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
[[board]]
key = "A100-64GB"
names = ["NVIDIA A100-SXM-64GB"]
memory_mib = 65536
compute_slices = 7
memory_slots = 8
baseline_milliwatts = 52_500
source = "our listing"
confidence = "measured"

[[profile]]
board = "A100-64GB"
name = "1g.8gb"
memory_slots = 1
starts = [0, 1, 2, 3, 4, 5, 6]
max_instances = 7

[[vgpu]]
name = "NVIDIA RTX6000-Ada-24Q"
board_memory_mib = 49152
framebuffer_mib = 24576
max = 2
"#;

    fn rows(text: &str) -> Result<Catalogue, ServiceError> {
        over_embedded("c.toml", &read("c.toml", text)?.1)
    }

    #[test]
    fn a_catalogue_file_is_read() {
        let catalogue = rows(GOOD).unwrap();
        let board = catalogue.board(&Name::fixed("A100-SXM-64GB")).unwrap();
        assert_eq!(
            (board.baseline_milliwatts, board.provenance.source.as_str()),
            (Some(52_500), "our listing")
        );
        let (_, profile) = catalogue.mig_profile(&board.key, "1g.8gb").unwrap();
        assert_eq!((profile.length, profile.provenance.confidence.as_str()), (1, "declared"));
        assert_eq!(catalogue.vgpu("rtx6000-ada-24q").unwrap().name.as_str(), "RTX6000-ADA-24Q");
        assert_eq!(&rows("").unwrap(), Catalogue::embedded());
    }

    #[test]
    fn faults_name_the_file_the_row_and_the_field() {
        let check = |from: &str, to: &str, parts: &[&str]| {
            assert!(GOOD.contains(from), "{from}");
            let error = rows(&GOOD.replacen(from, to, 1)).unwrap_err().to_string();
            assert!(error.starts_with("c.toml: "), "{error}");
            assert!(parts.iter().all(|part| error.contains(part)), "{error}");
        };
        check("52_500", "52.5", &["baseline_milliwatts = 52.5", "invalid type"]);
        check("65536", "-1", &["memory_mib = -1", "invalid value"]);
        check("memory_slots = 8", "memory_slot = 8", &["unknown field `memory_slot`"]);
        check("[[vgpu]]", "[[vgpus]]", &["unknown field `vgpus`"]);
        check("max = 2", "", &["missing field `max`"]);
        check("\"our listing\"", "\"\"", &["board `A100-64GB`: source is empty"]);
        check("\"NVIDIA A100-SXM-64GB\"", "\" \"", &["board `A100-64GB`: names is empty"]);
        check("\"1g.8gb\"", "\"8gb\"", &["profile `A100-64GB 8gb`: name `8gb` is no name such as"]);
        check("5, 6]", "5, 8]", &["profile `A100-64GB 1g.8gb`: starts has 8"]);
        check("Ada-24Q", "Ada-Q", &["vgpu `NVIDIA RTX6000-Ada-Q`: name `NVIDIA RTX6000-Ada-Q` is no name"]);
        check("24576", "24", &["vgpu `NVIDIA RTX6000-Ada-24Q`: framebuffer_mib is `24`"]);
    }

    #[test]
    fn the_same_rows_in_another_layout_are_the_same() {
        let hash = |text: &str| content_hash(read("c.toml", text).unwrap().0).unwrap();
        let (boards, rest) = GOOD.split_once("[[profile]]").unwrap();
        assert_eq!(hash(GOOD), hash(&format!("# turned\n[[profile]]{rest}{boards}")));
        assert_ne!(hash(GOOD), hash(&GOOD.replace("52_500", "52_501")));
        assert_ne!(hash(GOOD), hash(""));
    }
}
