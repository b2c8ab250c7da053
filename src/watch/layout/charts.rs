//! The charts below the table: how many rows they get, and where each is.

use ratatui::layout::Rect;

/// Rows of the lowest chart with times: a caption, two rows of blocks, the times.
pub const CHARTS_ROWS_MIN: u16 = 4;
const GAP: u16 = 2;
/// Least width of a GPU's cell.
const CELL_COLUMNS: u16 = 38;
/// Usual height of a GPU's cell: a caption, four rows of blocks, the times.
const CELL_ROWS: u16 = 6;

/// Cells of one size, in rows and columns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChartGrid {
    area: Rect,
    across: u16,
    rows: u16,
}

impl ChartGrid {
    /// `count` cells, in as few columns as the rows allow; `None` if they do not fit.
    pub fn new(area: Rect, count: usize) -> Option<Self> {
        let count = u16::try_from(count).ok().filter(|count| *count > 0)?;
        let most = cells_across(area.width).clamp(1, count);
        let rows = |across: u16| area.height / count.div_ceil(across);
        // If rows are short: the fewest columns that need no more rows.
        let fewest = || count.div_ceil(count.div_ceil(most));
        let across = (1..=most).find(|across| rows(*across) >= CELL_ROWS).unwrap_or_else(fewest);
        let rows = rows(across);
        (rows >= CHARTS_ROWS_MIN).then_some(Self { area, across, rows })
    }

    /// The area of a cell, by number from 0.
    pub fn cell(&self, at: usize) -> Rect {
        let across = usize::from(self.across);
        let (row, column) = ((at / across) as u16, (at % across) as u16);
        let width = (self.area.width + GAP) / self.across;
        Rect::new(
            self.area.x + column * width,
            self.area.y.saturating_add(row.saturating_mul(self.rows)),
            width.saturating_sub(GAP),
            self.rows,
        )
        .intersection(self.area)
    }
}

/// Rows kept for the charts of `gpus` GPUs, at most `most`; 0 if they do not fit with their times.
pub fn rows_kept(width: u16, most: u16, gpus: usize) -> u16 {
    let across = usize::from(cells_across(width)).max(1);
    let down = u16::try_from(gpus.div_ceil(across)).unwrap_or(u16::MAX);
    let heights = (CHARTS_ROWS_MIN..=CELL_ROWS).rev().map(|rows| down.saturating_mul(rows));
    heights.filter(|rows| *rows <= most).max().unwrap_or(0)
}

/// How many cells fit side by side.
fn cells_across(width: u16) -> u16 {
    (width + GAP) / (CELL_COLUMNS + GAP)
}

pub fn beside(area: Rect) -> [Rect; 2] {
    let half = area.width.saturating_sub(GAP) / 2;
    let right = (half + GAP).min(area.width);
    [Rect { width: half, ..area }, Rect { x: area.x + right, width: area.width - right, ..area }]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_stay_in_their_area_and_do_not_overlap() {
        for width in (40..=220).step_by(7) {
            for height in CHARTS_ROWS_MIN..=50 {
                for count in [0, 1, 2, 3, 5, 8, 13, 64, 100_000] {
                    let area = Rect::new(3, 5, width, height);
                    let Some(grid) = ChartGrid::new(area, count) else {
                        assert!(
                            count == 0
                                || usize::from(height) < count * usize::from(CHARTS_ROWS_MIN)
                        );
                        continue;
                    };
                    let cells: Vec<Rect> = (0..count).map(|at| grid.cell(at)).collect();
                    for (at, cell) in cells.iter().enumerate() {
                        assert_eq!(cell.intersection(area), *cell);
                        assert!(cell.width >= CELL_COLUMNS - GAP && cell.height >= CHARTS_ROWS_MIN);
                        assert!(cells[at + 1..].iter().all(|other| !cell.intersects(*other)));
                    }
                }
            }
        }
    }
}
