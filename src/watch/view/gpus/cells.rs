//! GPUs in a grid: several on a line, each a cell with a bar or a number.

use ratatui::layout::Rect;
use ratatui::style::Style;

use crate::watch::canvas::Canvas;

use super::super::bar::bar;
use super::super::line_writer::LineWriter;
use super::figure_style;
use super::figures::{is_lost, lost_text, sum, used_percent};
use crate::model::field::gpu::UTILIZATION;
use crate::model::snapshot::{Gpu, Snapshot};
use crate::watch::layout::CELL_GAP;
use crate::watch::memory_shares::GpuShares;
use crate::watch::theme::Styles;

/// Columns of the two figures after the bar of a cell.
const GRID_FIGURES: u16 = 10;

/// What the numbers of a grid are, above it.
pub(super) fn cells_heading(
    gpus: &[&Gpu],
    what: &str,
    styles: Styles,
    area: Rect,
    canvas: &mut Canvas,
) {
    let text = format!("{}: {what}", sum(gpus));
    LineWriter::new(canvas, area, 0).text(&text, styles.heading());
}

/// Lays GPUs out in cells, row by row, all of them `indent` further right.
pub(super) fn cells(
    shown: &[(&Gpu, &GpuShares)],
    (across, width): (u16, u16),
    indent: u16,
    area: Rect,
    canvas: &mut Canvas,
    mut draw: impl FnMut((&Gpu, &GpuShares), &mut LineWriter<'_>),
) {
    for (at, &gpu) in (0u16..).zip(shown) {
        let (line, column) = (at / across, at % across);
        if line >= area.height {
            return;
        }
        let cell = Rect::new(area.x + indent + column * width, area.y + line, width - CELL_GAP, 1)
            .intersection(area);
        draw(gpu, &mut LineWriter::new(canvas, cell, 0));
    }
}

/// A cell with a bar.
pub(super) fn grid_cell(
    snapshot: &Snapshot,
    (gpu, shares): (&Gpu, &GpuShares),
    styles: Styles,
    writer: &mut LineWriter<'_>,
) {
    writer.right(&gpu.index.to_string(), 3, styles.strong()).skip(1);
    if is_lost(gpu) {
        let text = lost_text(snapshot, gpu, writer.room());
        writer.text(&text, styles.alarm());
        return;
    }
    let is_stale = gpu.stale_seconds.is_some();
    let width = writer.room().saturating_sub(GRID_FIGURES);
    bar(shares.whole.as_ref(), is_stale, width, styles, writer);
    writer.right(&used_percent(gpu), 5, memory_style(shares, styles));
    match is_stale {
        true => writer.right("stale", 5, styles.alarm()),
        false => {
            let style = figure_style(&UTILIZATION, gpu, styles);
            writer.right(&UTILIZATION.short(gpu), 5, style)
        }
    };
}

/// A cell with a number.
pub(super) fn dense_cell(
    (gpu, shares): (&Gpu, &GpuShares),
    styles: Styles,
    writer: &mut LineWriter<'_>,
) {
    writer.right(&gpu.index.to_string(), 3, styles.strong());
    if is_lost(gpu) {
        writer.right("lost", 5, styles.alarm());
    } else if gpu.stale_seconds.is_some() {
        writer.right("stale", 6, styles.alarm());
    } else {
        writer.right(&used_percent(gpu), 5, memory_style(shares, styles));
    }
}

/// How a figure of a GPU's memory looks: by how full that is.
fn memory_style(shares: &GpuShares, styles: Styles) -> Style {
    let level = shares.whole.map(|it| it.level());
    level.map_or(styles.plain(), |level| styles.strain(level))
}
