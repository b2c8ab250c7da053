//! GPUs in a grid: several on a line, each a cell with a bar or a number.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::super::bar::{Shares, bar};
use super::super::line_writer::Pen;
use super::figures::{is_lost, lost_text, sum, used_percent};
use crate::model::snapshot::{Gpu, Snapshot};
use crate::watch::layout::GRID_CELL;
use crate::watch::layout::gpus::CELL_GAP;
use crate::watch::text::whole;
use crate::watch::theme::Look;

/// What the numbers of a grid are, above it.
pub(super) fn cells_heading(
    snapshot: &Snapshot,
    what: &str,
    look: Look,
    area: Rect,
    buffer: &mut Buffer,
) {
    let text = format!("{}: {what}", sum(snapshot));
    Pen::new(buffer, area, 0).text(&text, look.heading());
}

/// Lays GPUs out in cells, row by row, all of them `indent` further right.
pub(super) fn cells(
    snapshot: &Snapshot,
    width: u16,
    indent: u16,
    area: Rect,
    buffer: &mut Buffer,
    mut draw: impl FnMut(&Gpu, &mut Pen<'_>),
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
        draw(gpu, &mut Pen::new(buffer, cell, 0));
    }
}

/// A cell with a bar.
pub(super) fn grid_cell(snapshot: &Snapshot, gpu: &Gpu, look: Look, pen: &mut Pen<'_>) {
    pen.right(&gpu.index.to_string(), 3, look.strong()).skip(1);
    if is_lost(gpu) {
        let text = lost_text(snapshot, gpu, GRID_CELL);
        pen.text(&text, look.alarm());
        return;
    }
    bar(
        gpu.memory.map(|memory| Shares::of(gpu, &memory)),
        10,
        look,
        pen,
    );
    pen.right(&used_percent(gpu), 5, look.plain());
    match gpu.stale_seconds {
        Some(_) => pen.right("stale", 5, look.alarm()),
        None => pen.right(&whole(gpu.gpu_percent, "%"), 5, look.faint()),
    };
}

/// A cell with a number.
pub(super) fn dense_cell(gpu: &Gpu, look: Look, pen: &mut Pen<'_>) {
    pen.right(&gpu.index.to_string(), 3, look.strong());
    if is_lost(gpu) {
        pen.right("lost", 5, look.alarm());
    } else if gpu.stale_seconds.is_some() {
        pen.right("stale", 6, look.alarm());
    } else {
        pen.right(&used_percent(gpu), 5, look.plain());
    }
}
