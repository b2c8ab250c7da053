//! The charts below the table: the rows that are kept for them, and the cell of each.

use ratatui::layout::Rect;

/// Rows of the lowest chart that has its times: a caption, two rows of blocks, the times.
pub const CHARTS_ROWS_MIN: u16 = 4;
/// Blank columns between two charts.
const GAP: u16 = 2;
/// Columns of a GPU's cell, at the least.
const CELL_COLUMNS: u16 = 38;
/// Rows of a GPU's cell where there are enough: a caption, four rows of blocks, the times.
const CELL_ROWS: u16 = 6;

/// Cells of one size, side by side and one below the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChartGrid {
    area: Rect,
    across: u16,
    /// Rows of each cell.
    rows: u16,
}

impl ChartGrid {
    /// `count` cells, as few side by side as there are rows for; `None` where they do not fit.
    pub fn new(area: Rect, count: usize) -> Option<Self> {
        let count = u16::try_from(count).ok().filter(|count| *count > 0)?;
        let most = cells_across(area.width).clamp(1, count);
        let rows = |across: u16| area.height / count.div_ceil(across);
        // As few as have as many rows, where there are not enough rows for high ones.
        let fewest = || count.div_ceil(count.div_ceil(most));
        let across = (1..=most).find(|across| rows(*across) >= CELL_ROWS).unwrap_or_else(fewest);
        let rows = rows(across);
        (rows >= CHARTS_ROWS_MIN).then_some(Self { area, across, rows })
    }

    /// The cell of this number, counted from 0.
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

/// The rows that are kept for the charts of `gpus` GPUs, at most `most`; 0 where they do not fit with their times.
pub fn rows_kept(width: u16, most: u16, gpus: usize) -> u16 {
    let across = usize::from(cells_across(width)).max(1);
    let down = u16::try_from(gpus.div_ceil(across)).unwrap_or(u16::MAX);
    let heights = (CHARTS_ROWS_MIN..=CELL_ROWS).rev().map(|rows| down.saturating_mul(rows));
    heights.filter(|rows| *rows <= most).max().unwrap_or(0)
}

/// How many cells have room side by side.
fn cells_across(width: u16) -> u16 {
    (width + GAP) / (CELL_COLUMNS + GAP)
}

/// Two charts beside each other.
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
