//! `fatia catalogue`: load an operator's rows, show what is known.

use std::fmt::Display;

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};

use super::args::{CatalogueLoadArguments, CatalogueShowArguments};
use super::wait::until_derived;
use super::{Ending, read_text, show, tell};
use crate::domain::catalogue::{Board, VgpuType};
use crate::domain::ids::Name;
use crate::services::catalogue::{self, CatalogueView};
use crate::services::ctx::Platform;
use crate::services::derive::Worker;
use crate::services::error::ServiceError;

const MIB_PER_GIB: u32 = 1024;

pub(super) async fn load(
    platform: &Platform,
    worker: &Worker,
    arguments: &CatalogueLoadArguments,
) -> Result<Ending, ServiceError> {
    let (file, text) = read_text(&arguments.file)?;
    let outcome = catalogue::load(platform, &file, &text).await?;
    let done = if outcome.is_new { "loaded" } else { "nothing changed" };
    let rows = format!(
        "{} boards, {} profiles, {} vGPU types over the embedded ones",
        outcome.boards, outcome.profiles, outcome.vgpus
    );
    match outcome.revision {
        Some(revision) => tell(&format!("catalogue revision {revision}, {rows}: {done}")),
        None => tell(&format!("catalogue, {rows}: {done}")),
    }
    until_derived(platform, worker, arguments.no_wait).await?;
    Ok(Ending::Done)
}

pub(super) async fn list(
    platform: &Platform,
    arguments: &CatalogueShowArguments,
) -> Result<Ending, ServiceError> {
    let view = catalogue::show(platform, arguments.model.clone()).await?;
    show(&as_text(&view))?;
    Ok(Ending::Done)
}

fn as_text(view: &CatalogueView) -> String {
    let mut text = match &view.file {
        None => "embedded catalogue\n".to_owned(),
        Some(file) => format!(
            "embedded catalogue with revision {} over it, loaded {} by {}\n",
            file.revision, file.loaded, file.loaded_by
        ),
    };
    let boards_shown = (!view.boards.is_empty()).then(|| boards(&view.boards));
    let vgpus_shown = (!view.vgpus.is_empty()).then(|| vgpus(&view.vgpus));
    for table in [boards_shown, profiles(&view.boards), vgpus_shown].into_iter().flatten() {
        text.push_str(&format!("\n{table}\n"));
    }
    // What pads a row's last cell says nothing.
    text.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

fn boards(boards: &[Board]) -> Table {
    let header = ["board", "GiB", "baseline mW", "slices", "slots", "confidence", "source", "names"];
    let mut table = table(&header, &[1, 2, 3, 4]);
    for board in boards {
        let mig = board.mig.as_ref();
        table.add_row([
            board.key.to_string(),
            gib(board.memory_mib),
            shown(board.baseline_milliwatts),
            shown(mig.map(|mig| mig.compute_slices)),
            shown(mig.map(|mig| mig.memory_slots)),
            board.provenance.confidence.clone(),
            board.provenance.source.clone(),
            board.names.iter().map(Name::as_str).collect::<Vec<_>>().join("; "),
        ]);
    }
    table
}

fn profiles(boards: &[Board]) -> Option<Table> {
    let header = ["board", "profile", "compute", "memory", "starts", "max", "confidence", "source"];
    let mut table = table(&header, &[5]);
    for (board, mig) in boards.iter().filter_map(|board| board.mig.as_ref().map(|mig| (board, mig))) {
        for profile in &mig.profiles {
            let starts = profile.starts.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
            table.add_row([
                board.key.to_string(),
                profile.name.to_string(),
                format!("{}/{}", profile.compute_slices, mig.compute_slices),
                format!("{}/{}", profile.memory_slots, mig.memory_slots),
                if starts.is_empty() { "not known".to_owned() } else { starts },
                profile.max_instances.to_string(),
                profile.provenance.confidence.clone(),
                profile.provenance.source.clone(),
            ]);
        }
    }
    (!table.is_empty()).then_some(table)
}

fn vgpus(types: &[VgpuType]) -> Table {
    let header = [
        "vGPU type",
        "board GiB",
        "framebuffer MiB",
        "on profile",
        "max",
        "max mixed",
        "confidence",
        "source",
    ];
    let mut table = table(&header, &[1, 2, 4, 5]);
    for each in types {
        table.add_row([
            each.name.to_string(),
            gib(each.board_memory_mib),
            each.framebuffer_mib.to_string(),
            shown(each.gi_profile.as_ref()),
            each.max.to_string(),
            shown(each.max_mixed),
            each.provenance.confidence.clone(),
            each.provenance.source.clone(),
        ]);
    }
    table
}

fn table(header: &[&str], numbers: &[usize]) -> Table {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Disabled)
        .set_header(header.to_vec());
    for (number, column) in table.column_iter_mut().enumerate() {
        if numbers.contains(&number) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

fn shown(value: Option<impl Display>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

/// Whole GiB where it is whole, else MiB with its unit.
fn gib(mib: u32) -> String {
    if mib.is_multiple_of(MIB_PER_GIB) { (mib / MIB_PER_GIB).to_string() } else { format!("{mib} MiB") }
}
