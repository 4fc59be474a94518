//! `fatia catalogue`: load an operator's rows, show what is known.

use std::fmt::Display;

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};

use super::args::{CatalogueLoadArguments, CatalogueShowArguments};
use super::wait::until_derived;
use super::{Ending, Target, read_text, show, tell};
use crate::services::catalogue::{self, BoardDocument, CatalogueDocument, VgpuDocument};
use crate::services::error::ServiceError;

const MIB_PER_GIB: u32 = 1024;

pub(super) async fn load(
    target: &Target<'_>,
    arguments: &CatalogueLoadArguments,
) -> Result<Ending, ServiceError> {
    let (file, text) = read_text(&arguments.file)?;
    let outcome = match target {
        Target::Here(platform, _) => catalogue::load(platform, &file, &text).await?,
        Target::Server(server) => server.load_catalogue(&file, text).await?,
    };
    let done = if outcome.is_new { "loaded" } else { "nothing changed" };
    let rows = format!(
        "{} boards, {} profiles, {} vGPU types over the embedded ones",
        outcome.boards, outcome.profiles, outcome.vgpus
    );
    match outcome.revision {
        Some(revision) => tell(&format!("catalogue revision {revision}, {rows}: {done}")),
        None => tell(&format!("catalogue, {rows}: {done}")),
    }
    until_derived(target, arguments.no_wait).await?;
    Ok(Ending::Done)
}

pub(super) async fn list(
    target: &Target<'_>,
    arguments: &CatalogueShowArguments,
) -> Result<Ending, ServiceError> {
    let document = match target {
        Target::Here(platform, _) => catalogue::show(platform, arguments.model.clone()).await?.document(),
        Target::Server(server) => server.catalogue(arguments.model.as_ref()).await?,
    };
    show(&as_text(&document))?;
    Ok(Ending::Done)
}

fn as_text(view: &CatalogueDocument) -> String {
    let mut text = match &view.file {
        None => "embedded catalogue\n".to_owned(),
        Some(file) => format!(
            "embedded catalogue with revision {} over it, loaded {} by {}\n",
            file.revision, file.loaded, file.loaded_by
        ),
    };
    let boards_shown = (!view.boards.is_empty()).then(|| boards(&view.boards));
    let vgpus_shown = (!view.vgpu_types.is_empty()).then(|| vgpus(&view.vgpu_types));
    for table in [boards_shown, profiles(&view.boards), vgpus_shown].into_iter().flatten() {
        text.push_str(&format!("\n{table}\n"));
    }
    // What pads a row's last cell says nothing.
    text.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

fn boards(boards: &[BoardDocument]) -> Table {
    let header = ["board", "GiB", "baseline mW", "slices", "slots", "confidence", "source", "names"];
    let mut table = table(&header, &[1, 2, 3, 4]);
    for board in boards {
        table.add_row([
            board.key.clone(),
            gib(board.memory_mib),
            shown(board.baseline_milliwatts),
            shown(board.compute_slices),
            shown(board.memory_slots),
            board.confidence.clone(),
            board.source.clone(),
            board.names.join("; "),
        ]);
    }
    table
}

fn profiles(boards: &[BoardDocument]) -> Option<Table> {
    let header = ["board", "profile", "compute", "memory", "starts", "max", "confidence", "source"];
    let mut table = table(&header, &[5]);
    for board in boards {
        for profile in &board.profiles {
            let starts = profile.starts.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
            table.add_row([
                board.key.clone(),
                profile.name.clone(),
                format!("{}/{}", profile.compute_slices, shown(board.compute_slices)),
                format!("{}/{}", profile.memory_slots, shown(board.memory_slots)),
                if starts.is_empty() { "not known".to_owned() } else { starts },
                profile.max_instances.to_string(),
                profile.confidence.clone(),
                profile.source.clone(),
            ]);
        }
    }
    (!table.is_empty()).then_some(table)
}

fn vgpus(types: &[VgpuDocument]) -> Table {
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
            each.name.clone(),
            gib(each.board_memory_mib),
            each.framebuffer_mib.to_string(),
            shown(each.gi_profile.as_ref()),
            each.max.to_string(),
            shown(each.max_mixed),
            each.confidence.clone(),
            each.source.clone(),
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
