//! Charts in the rows that nothing else needs: of what, how many side by side, and where each is.
//!
//! Pure geometry. A cell is the two charts of one GPU or of one process: its memory, and how much was
//! computed. They are beside each other or one above the other, whichever is nearer to the form in which a
//! course is read best. The charts in the GPUs' cards are divided by the same functions.

use ratatui::layout::Rect;

use super::{Gpus, LayoutNeeds};

/// Blank columns between two charts.
pub const CHART_GAP: u16 = 2;
/// Fewer rows than these show no chart: a caption, and two rows of dots.
pub const CHARTS_ROWS_MIN: u16 = 3;
/// From so many rows on, the last row of a chart says what times its columns are.
const TIMES_FROM: u16 = 4;
/// Columns that a chart has at least.
const COLUMNS_LEAST: u16 = 10;
/// Rows of dots that a chart has at least.
const ROWS_LEAST: u16 = 2;
/// Columns of a chart for each of its rows, where its form is best.
const BEST_FORM: f64 = 7.0;
/// Rows, with which the charts of a process and those of the GPUs have room beside each other.
const BOTH_FROM: u16 = 12;
/// Rows of a process's charts, where GPUs have charts, too.
const PROCESS_ROWS_MAX: u16 = 14;
/// Rows and columns that a process's charts have, where those of several are shown.
const PROCESS_CELL: (u16, u16) = (60, 9);

/// Where a chart is, with its caption above it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChartSlot {
    /// All of it.
    pub area: Rect,
    /// Whether its last row says the times.
    pub has_times: bool,
}

/// Cells of one size, side by side and one below the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChartGrid {
    /// All of them.
    pub area: Rect,
    /// How many there are.
    pub count: usize,
    across: u16,
    down: u16,
    is_stacked: bool,
}

/// What the free rows show.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ChartPanes {
    /// A cell for each GPU, or one for all of them; absent where they have cards.
    pub gpus: Option<ChartGrid>,
    /// A cell for the selected process, or for the first ones of the table.
    pub processes: Option<ChartGrid>,
}

impl ChartPanes {
    /// Divides the free rows.
    pub(super) fn new(area: Rect, form: Gpus, needs: &LayoutNeeds) -> Self {
        if area.height < CHARTS_ROWS_MIN || needs.gpus == 0 {
            return Self::default();
        }
        let of_gpus = |area| {
            let each = ChartGrid::new(area, needs.gpus);
            each.or_else(|| ChartGrid::new(area, 1))
        };
        let has_cards = matches!(form, Gpus::Cards { .. });
        match (has_cards, needs.is_selected_listed) {
            (false, false) => Self { gpus: of_gpus(area), processes: None },
            (false, true) if area.height >= BOTH_FROM => {
                let rows = (area.height / 2).min(PROCESS_ROWS_MAX);
                let [upper, lower] = split_rows(area, area.height - rows);
                Self { gpus: of_gpus(upper), processes: ChartGrid::new(lower, 1) }
            }
            (_, true) => Self { gpus: None, processes: ChartGrid::new(area, 1) },
            (true, false) => {
                let (columns, rows) = PROCESS_CELL;
                let most = (area.width / columns).max(1) * (area.height / rows).max(1);
                let count = needs.listed.min(usize::from(most));
                Self {
                    gpus: None,
                    processes: (1..=count).rev().find_map(|count| ChartGrid::new(area, count)),
                }
            }
        }
    }
}

impl ChartGrid {
    /// As many cells in an area, each in the form that is nearest to the best; `None` where some would have
    /// no room, or where there is none to show.
    pub fn new(area: Rect, count: usize) -> Option<Self> {
        let mut best: Option<(f64, Self)> = None;
        let most = usize::from(area.height / CHARTS_ROWS_MIN).min(count);
        for down in (1..=most).map(|down| down as u16) {
            let Ok(across) = u16::try_from(count.div_ceil(usize::from(down))) else {
                continue;
            };
            let missing = usize::from(across) * usize::from(down) - count;
            // The last row is never half empty.
            if missing * 2 >= usize::from(across) && missing > 0 {
                continue;
            }
            for is_stacked in [false, true] {
                let grid = Self { area, count, across, down, is_stacked };
                let Some(distance) = grid.distance() else {
                    continue;
                };
                if best.is_none_or(|(least, _)| distance < least) {
                    best = Some((distance, grid));
                }
            }
        }
        best.map(|(_, grid)| grid)
    }

    /// How far the form of the smallest charts is from the best; `None` where they have no room.
    fn distance(&self) -> Option<f64> {
        let width = ((self.area.width + CHART_GAP) / self.across).checked_sub(CHART_GAP)?;
        let cell = Rect::new(0, 0, width, self.rows_least());
        let [one, other] = self.divided(cell);
        let rows = one.rows().min(other.rows());
        let columns = one.area.width.min(other.area.width);
        (rows >= ROWS_LEAST && columns >= COLUMNS_LEAST)
            .then(|| (f64::from(columns) / f64::from(rows) / BEST_FORM).ln().abs())
    }

    /// Rows that each cell has; some have one more.
    fn rows_least(&self) -> u16 {
        self.area.height / self.down.max(1)
    }

    /// The cell of this number, counted from 0.
    pub fn cell(&self, at: usize) -> Rect {
        let across = usize::from(self.across.max(1));
        let (row, column) = ((at / across) as u16, (at % across) as u16);
        // Equal widths, so that what is shown of one is shown of all.
        let width = (self.area.width + CHART_GAP) / self.across.max(1);
        // Rows that are left over by dividing go to some of them, so that none stays blank.
        let part = |row: u16| {
            let height = u32::from(self.area.height) * u32::from(row);
            (height / u32::from(self.down.max(1))) as u16
        };
        Rect::new(
            self.area.x + column * width,
            self.area.y + part(row),
            width.saturating_sub(CHART_GAP),
            part(row + 1) - part(row),
        )
        .intersection(self.area)
    }

    /// The two charts of a cell.
    pub fn charts(&self, at: usize) -> [ChartSlot; 2] {
        self.divided(self.cell(at))
    }

    fn divided(&self, cell: Rect) -> [ChartSlot; 2] {
        // All have times, or none has.
        let least = self.rows_least();
        if !self.is_stacked {
            let has_times = least >= TIMES_FROM;
            return beside(cell).map(|slot| ChartSlot { has_times, ..slot });
        }
        // One line of times is for both.
        let has_times = least >= 2 * TIMES_FROM;
        let rows = cell.height - u16::from(has_times);
        let [upper, lower] = split_rows(cell, rows.div_ceil(2));
        [ChartSlot { area: upper, has_times: false }, ChartSlot { area: lower, has_times }]
    }
}

impl ChartSlot {
    /// A chart on all of an area.
    pub fn new(area: Rect) -> Self {
        Self { area, has_times: area.height >= TIMES_FROM }
    }

    /// Rows of dots, between the caption and the times.
    fn rows(self) -> u16 {
        let others = 1 + u16::from(self.has_times);
        self.area.height.saturating_sub(others)
    }

    /// Where the dots are, and what is to the left of them.
    pub fn body(self) -> Rect {
        Rect { y: self.area.y + 1, height: self.rows(), ..self.area }
    }
}

/// Two charts beside each other.
pub fn beside(area: Rect) -> [ChartSlot; 2] {
    let half = area.width.saturating_sub(CHART_GAP) / 2;
    let right = half + CHART_GAP;
    [
        ChartSlot::new(Rect { width: half, ..area }),
        ChartSlot::new(Rect {
            x: area.x + right.min(area.width),
            width: area.width.saturating_sub(right),
            ..area
        }),
    ]
}

fn split_rows(area: Rect, upper: u16) -> [Rect; 2] {
    let upper = upper.min(area.height);
    [
        Rect { height: upper, ..area },
        Rect { y: area.y + upper, height: area.height - upper, ..area },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid(width: u16, height: u16, count: usize) -> Option<(u16, u16, bool)> {
        let grid = ChartGrid::new(Rect::new(0, 0, width, height), count)?;
        Some((grid.across, grid.down, grid.is_stacked))
    }

    #[test]
    fn charts_are_as_many_side_by_side_as_suits_their_form() {
        assert_eq!(grid(200, 30, 1), Some((1, 1, false)));
        assert_eq!(grid(200, 12, 4), Some((4, 1, true)));
        assert_eq!(grid(200, 27, 8), Some((4, 2, true)));
        assert_eq!(grid(80, 6, 4), Some((4, 1, true)));
        assert_eq!(grid(200, 26, 64), Some((16, 4, true)));
        assert_eq!(grid(200, 12, 64), None);
        assert_eq!(grid(200, 2, 1), None);
        assert_eq!(grid(200, 30, 0), None);
        assert_eq!(grid(20, 3, 1), None);
    }

    #[test]
    fn cells_fill_their_area_and_do_not_overlap() {
        for width in (20..=220).step_by(7) {
            for height in 3..=50 {
                for count in [1, 2, 3, 4, 5, 7, 8, 13, 64] {
                    let area = Rect::new(3, 5, width, height);
                    let Some(grid) = ChartGrid::new(area, count) else {
                        continue;
                    };
                    let slots = (0..count).flat_map(|at| grid.charts(at));
                    let slots: Vec<Rect> = slots.map(|slot| slot.area).collect();
                    for (at, slot) in slots.iter().enumerate() {
                        assert_eq!(slot.intersection(area), *slot);
                        assert!(slot.width >= COLUMNS_LEAST && slot.height > ROWS_LEAST);
                        let later = slots[at + 1..].iter();
                        assert!(later.clone().all(|other| !slot.intersects(*other)));
                    }
                    let last = grid.cell(count - 1);
                    assert_eq!(last.bottom(), area.bottom(), "{grid:?}");
                    let first_row = grid.cell(usize::from(grid.across) - 1);
                    assert!(area.right() - first_row.right() < grid.across, "{grid:?}");
                    assert!(last.right() - area.x > width / 2, "{grid:?}");
                }
            }
        }
    }
}
