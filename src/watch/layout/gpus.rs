//! Layout of the GPU panel: lines, cells or totals.

use ratatui::layout::Rect;

use super::LayoutNeeds;

/// Widths of a cell: with a bar of usual length, with a short bar, and with a single glyph and no gap to the next cell.
const CELL: [u16; 3] = [20, 10, TINY_CELL];
/// Width of a cell such as `17▒83`.
pub const TINY_CELL: u16 = 6;
const CELLS_ACROSS_MAX: u16 = 8;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// A line for each GPU and, if there is room, for each MIG device.
    Lines,
    /// A grid with a bar and the utilization of each GPU.
    Cells,
    Totals,
}

/// Returns the first form in which all GPUs fit into at most `max` rows, and its number of rows.
pub fn gpu_form(area: Rect, max: u16, needs: &LayoutNeeds) -> Option<(Form, u16)> {
    let count = needs.gpus.max(1);
    let lines = [count.saturating_add(needs.parts), count].map(|rows| (Form::Lines, rows));
    let cells = CELL.map(|width| {
        let across = usize::from((area.width / width).clamp(1, CELLS_ACROSS_MAX));
        (Form::Cells, count.div_ceil(across))
    });
    let mut forms = lines.into_iter().chain(cells);
    forms.find(|(_, rows)| *rows <= usize::from(max)).map(|(form, rows)| (form, rows as u16))
}

/// Returns the area of a cell. The cells fill the columns of the grid from top to bottom.
pub fn cell_area(area: Rect, count: usize, at: usize) -> Rect {
    let rows = usize::from(area.height.max(1));
    let across = count.div_ceil(rows).max(1) as u16;
    let width = area.width / across;
    let (column, row) = ((at / rows) as u16, (at % rows) as u16);
    // The last column of the panel is blank, like the gap after other cells.
    let gap = u16::from(width > TINY_CELL);
    Rect::new(area.x + column * width, area.y + row, width - gap, 1).intersection(area)
}
