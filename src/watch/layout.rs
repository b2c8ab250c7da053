//! Which panel gets which part of the screen, and what folds first when it is small.
//!
//! A pure function of the size and of how many GPUs there are, so that `app` can know the height of
//! the table that `view` draws. The table keeps [`TABLE_ROWS_MIN`] rows wherever the height allows:
//! GPUs go from a line each to a grid, to a dense grid, to one line for all.

use ratatui::layout::Rect;

/// Below this many columns only the essentials are shown.
pub const COLUMNS_MIN: u16 = 40;
/// Below this many rows only the essentials are shown.
pub const ROWS_MIN: u16 = 10;
/// The rows that the table keeps whatever the number of GPUs.
pub const TABLE_ROWS_MIN: u16 = 5;
/// Columns of a cell in the grid: index, bar, memory %, utilization %.
pub const GRID_CELL: u16 = 26;
/// Columns of a cell in the dense grid: index, memory %.
pub const DENSE_CELL: u16 = 10;

/// How the GPUs are shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Gpus {
    /// A line for each.
    Lines,
    /// Several on a line, each with a bar.
    Grid,
    /// Many on a line, each a number.
    Dense,
    /// One line for all of them.
    Sum,
}

/// The forms of the GPUs' panel that a person can ask for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Form {
    /// A card with charts for each, where there is room.
    Cards,
    /// At most a line for each.
    Lines,
    /// As few lines as there can be.
    Compact,
}

impl Form {
    /// What the key goes on to; `None` leaves it to the room that there is.
    pub fn after(form: Option<Self>) -> Option<Self> {
        match form {
            None => Some(Self::Cards),
            Some(Self::Cards) => Some(Self::Lines),
            Some(Self::Lines) => Some(Self::Compact),
            Some(Self::Compact) => None,
        }
    }
}

/// The panels' places.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// Host, versions, clock, age.
    pub header: Rect,
    /// What the GPUs' numbers mean; empty on a low screen.
    pub gpu_heading: Rect,
    /// The GPUs.
    pub gpus: Rect,
    /// How they are shown there.
    pub gpu_form: Gpus,
    /// The process table's heading.
    pub table_heading: Rect,
    /// Its rows.
    pub table: Rect,
    /// The findings, or what is known of the selected process.
    pub status: Rect,
    /// The keys.
    pub hints: Rect,
}

impl Layout {
    /// Divides `area`; `None` where it is too small for panels. The GPUs' MIG devices, `part_count` of
    /// them, have lines of their own where there is room for all of them.
    pub fn new(area: Rect, gpu_count: usize, part_count: usize) -> Option<Self> {
        if area.width < COLUMNS_MIN || area.height < ROWS_MIN {
            return None;
        }
        let roomy = area.height >= 20;
        let status = match area.height {
            0..14 => 1,
            14..20 => 2,
            20..30 => 4,
            30..45 => 7,
            _ => 9,
        };
        // Header, table heading and hints stand always.
        let rest = area.height - 3 - status;
        let extra = if roomy { 2 } else { 0 };
        let budget = (rest / 2)
            .min(rest.saturating_sub(TABLE_ROWS_MIN + extra))
            .max(1);
        let (gpu_form, gpu_rows) = gpu_form(area.width, budget, gpu_count, part_count);
        // Numbers in a grid have no units beside them; they need their heading more.
        let in_cells = matches!(gpu_form, Gpus::Grid | Gpus::Dense);
        let heading = u16::from(roomy || in_cells && rest - gpu_rows > TABLE_ROWS_MIN);
        let blank = u16::from(roomy);

        let mut top = area.y;
        let mut take = |height: u16| {
            let rect = Rect::new(area.x, top, area.width, height);
            top += height;
            rect
        };
        let header = take(1);
        let gpu_heading = take(heading);
        let gpus = take(gpu_rows);
        take(blank);
        let table_heading = take(1);
        let table = take(rest - gpu_rows - heading - blank);
        let status = take(status);
        let hints = take(1);
        Some(Self {
            header,
            gpu_heading,
            gpus,
            gpu_form,
            table_heading,
            table,
            status,
            hints,
        })
    }
}

/// The first form in which all GPUs fit into `budget` rows, and the rows that it takes.
fn gpu_form(width: u16, budget: u16, count: usize, parts: usize) -> (Gpus, u16) {
    let rows = |cell: u16| count.max(1).div_ceil(usize::from((width / cell).max(1)));
    for (form, rows) in [
        (Gpus::Lines, count.max(1).saturating_add(parts)),
        (Gpus::Lines, count.max(1)),
        (Gpus::Grid, rows(GRID_CELL)),
        (Gpus::Dense, rows(DENSE_CELL)),
    ] {
        if rows <= usize::from(budget) {
            return (form, rows as u16);
        }
    }
    (Gpus::Sum, 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panels_fill_the_screen_without_overlap_at_every_size() {
        for width in 0..=220 {
            for height in 0..=70 {
                for (count, parts) in [(0, 0), (1, 7), (4, 0), (8, 56), (64, 3), (1000, 0)] {
                    let area = Rect::new(0, 0, width, height);
                    let Some(layout) = Layout::new(area, count, parts) else {
                        assert!(width < COLUMNS_MIN || height < ROWS_MIN);
                        continue;
                    };
                    let mut top = 0;
                    for panel in [
                        layout.header,
                        layout.gpu_heading,
                        layout.gpus,
                        layout.table_heading,
                        layout.table,
                        layout.status,
                        layout.hints,
                    ] {
                        assert!(panel.y >= top && panel.width == width, "{layout:?}");
                        top = panel.bottom();
                    }
                    assert_eq!(top, height);
                    assert!(layout.table.height >= TABLE_ROWS_MIN, "{layout:?}");
                }
            }
        }
    }

    #[test]
    fn gpus_compact_before_the_table_suffers() {
        let form = |width, height, count| {
            Layout::new(Rect::new(0, 0, width, height), count, 0).map(|layout| layout.gpu_form)
        };
        assert_eq!(form(80, 24, 8), Some(Gpus::Lines));
        assert_eq!(form(60, 15, 8), Some(Gpus::Grid));
        assert_eq!(form(80, 24, 64), Some(Gpus::Dense));
        assert_eq!(form(200, 60, 64), Some(Gpus::Grid));
        assert_eq!(form(40, 10, 64), Some(Gpus::Sum));
        assert_eq!(form(39, 60, 1), None);
        let lines = |height, parts| {
            let layout = Layout::new(Rect::new(0, 0, 80, height), 1, parts)?;
            Some((layout.gpu_form, layout.gpus.height))
        };
        assert_eq!(lines(24, 2), Some((Gpus::Lines, 3)));
        assert_eq!(
            lines(15, 7),
            Some((Gpus::Lines, 1)),
            "parts go before the table"
        );
    }
}
