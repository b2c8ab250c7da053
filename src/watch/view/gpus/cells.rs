//! GPUs in a grid: several on a line, each a cell with a bar or a number.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::super::bar::{Shares, bar};
use super::super::line_writer::LineWriter;
use super::figures::{is_lost, lost_text, sum, used_percent};
use crate::model::field::gpu::UTILIZATION;
use crate::model::snapshot::{Gpu, Snapshot};
use crate::watch::layout::GRID_CELL;
use crate::watch::layout::gpus::CELL_GAP;
use crate::watch::theme::Styles;

/// What the numbers of a grid are, above it.
pub(super) fn cells_heading(
    snapshot: &Snapshot,
    what: &str,
    styles: Styles,
    area: Rect,
    buffer: &mut Buffer,
) {
    let text = format!("{}: {what}", sum(snapshot));
    LineWriter::new(buffer, area, 0).text(&text, styles.heading());
}

/// Lays GPUs out in cells, row by row, all of them `indent` further right.
pub(super) fn cells(
    snapshot: &Snapshot,
    width: u16,
    indent: u16,
    area: Rect,
    buffer: &mut Buffer,
    mut draw: impl FnMut(&Gpu, &mut LineWriter<'_>),
) {
    let across = (area.width / width).max(1);
    for (at, gpu) in (0u16..).zip(&snapshot.gpus) {
        let (line, column) = (at / across, at % across);
        if line >= area.height {
            return;
        }
        let cell = Rect::new(
            area.x + indent + column * width,
            area.y + line,
            width - CELL_GAP,
            1,
        );
        draw(gpu, &mut LineWriter::new(buffer, cell, 0));
    }
}

/// A cell with a bar.
pub(super) fn grid_cell(
    snapshot: &Snapshot,
    gpu: &Gpu,
    styles: Styles,
    writer: &mut LineWriter<'_>,
) {
    writer
        .right(&gpu.index.to_string(), 3, styles.strong())
        .skip(1);
    if is_lost(gpu) {
        let text = lost_text(snapshot, gpu, GRID_CELL);
        writer.text(&text, styles.alarm());
        return;
    }
    bar(
        gpu.memory.map(|memory| Shares::of(gpu, &memory)),
        10,
        styles,
        writer,
    );
    writer.right(&used_percent(gpu), 5, styles.plain());
    match gpu.stale_seconds {
        Some(_) => writer.right("stale", 5, styles.alarm()),
        None => writer.right(&UTILIZATION.short(gpu), 5, styles.faint()),
    };
}

/// A cell with a number.
pub(super) fn dense_cell(gpu: &Gpu, styles: Styles, writer: &mut LineWriter<'_>) {
    writer.right(&gpu.index.to_string(), 3, styles.strong());
    if is_lost(gpu) {
        writer.right("lost", 5, styles.alarm());
    } else if gpu.stale_seconds.is_some() {
        writer.right("stale", 6, styles.alarm());
    } else {
        writer.right(&used_percent(gpu), 5, styles.plain());
    }
}
