//! Layout of the GPU panel: lines, cells or totals.

use ratatui::layout::Rect;

use super::LayoutNeeds;

/// Usual and minimum width of a cell: an index, a bar and the utilization, with a gap.
const CELL: [u16; 2] = [20, 10];
const CELLS_ACROSS_MAX: u16 = 8;

#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Form {
    /// A line for each GPU and, if there is room, for each MIG device.
    Lines,
    /// A grid with a bar and the utilization of each GPU.
    Cells,
    Totals,
}

impl Form {
    /// Returns the form that follows `form` when the user switches forms. `None` is the automatic form.
    pub fn after(form: Option<Self>) -> Option<Self> {
        match form {
            None => Some(Self::Lines),
            Some(Self::Lines) => Some(Self::Cells),
            Some(Self::Cells) => Some(Self::Totals),
            Some(Self::Totals) => None,
        }
    }

    pub fn describe(form: Option<Self>) -> &'static str {
        match form {
            None => "GPUs: automatic",
            Some(Self::Lines) => "GPUs: lines, if they fit",
            Some(Self::Cells) => "GPUs: cells, if they fit",
            Some(Self::Totals) => "GPUs: totals",
        }
    }
}

/// Returns the first form in which all GPUs fit, and its number of rows: at most `max` for a form that the user chose,
/// otherwise at most `usual`.
pub fn gpu_form(area: Rect, (max, usual): (u16, u16), needs: &LayoutNeeds) -> (Form, u16) {
    let budget = match needs.form {
        None => usual,
        Some(Form::Lines | Form::Cells) => max,
        Some(Form::Totals) => return (Form::Totals, 1),
    };
    let count = needs.gpus.max(1);
    let mut lines = [count.saturating_add(needs.parts), count].into_iter();
    let lines = lines.find(|rows| *rows <= usize::from(budget) && needs.form != Some(Form::Cells));
    let cells = || {
        let across = CELL.map(|width| usize::from((area.width / width).clamp(1, CELLS_ACROSS_MAX)));
        let mut rows = across.into_iter().map(|across| count.div_ceil(across));
        rows.find(|rows| *rows <= usize::from(budget))
    };
    match (lines, cells()) {
        (Some(rows), _) => (Form::Lines, rows as u16),
        (None, Some(rows)) => (Form::Cells, rows as u16),
        (None, None) => (Form::Totals, 1),
    }
}

/// Returns the area of a cell. The cells fill the columns of the grid from top to bottom.
pub fn cell_area(area: Rect, count: usize, at: usize) -> Rect {
    let rows = usize::from(area.height.max(1));
    let across = count.div_ceil(rows).max(1) as u16;
    let width = area.width / across;
    let (column, row) = ((at / rows) as u16, (at % rows) as u16);
    // The last column of the panel is blank, like the gap after other cells.
    Rect::new(area.x + column * width, area.y + row, width.saturating_sub(1), 1).intersection(area)
}
