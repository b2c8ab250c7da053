//! Sizes and positions of the panels, and which panels a small screen drops.
//!
//! The layout depends only on the screen size, the amount of content and the user's choices. The
//! submodules lay out single panels. Panels are dropped in this order:
//!
//! | when | what is dropped |
//! |---|---|
//! | below 45, 30, 20 and 14 rows | findings: 7, 4, 2 and 1 lines remain instead of 9 |
//! | if a process would be hidden | the load of the host, and the charts below the table |
//! | if the GPUs exceed half of the rows above the findings or leave the table too few | the lines of all MIG devices |
//! | | the lines of the GPUs: a grid of ever smaller cells remains, and finally one line with totals |
//! | below 20 rows | the load of the host, the GPU heading, and the line with the table's filters |
//! | below [`ROWS_MIN`] rows or [`COLUMNS_MIN`] columns | all panels: a short text remains |
//!
//! The header, the table heading, [`TABLE_ROWS_MIN`] table rows ([`TABLE_ROWS_ASIDE`] while the findings have the
//! focus, or if the GPUs need the rows), one line of findings and the key hints are never dropped.
//!
//! On a wide screen, the charts of the GPUs are to the right of the other panels. On other screens, rows that the table
//! does not need go first to the findings, up to a third of the screen, and then to charts below the table. The split
//! changes in steps of [`STEP`] rows, so that panels do not move whenever a process starts.

pub mod columns;
pub mod gpus;
pub mod help;
pub mod hints;

pub use gpus::Form;
use gpus::gpu_form;
use ratatui::layout::Rect;

/// Minimum size for panels. A smaller screen shows a short text.
pub const COLUMNS_MIN: u16 = 40;
pub const ROWS_MIN: u16 = 10;
/// Minimum number of table rows, unless `TABLE_ROWS_ASIDE` applies.
pub const TABLE_ROWS_MIN: u16 = 5;
/// Minimum number of table rows while the findings have the focus, or on a short screen with many GPUs.
const TABLE_ROWS_ASIDE: u16 = 3;
/// Minimum width of a screen with charts to the right of the table.
const SIDE_FROM: u16 = 180;
/// Minimum width of the panels to the left of the charts.
const LEFT_MIN: u16 = 80;
/// Share of the width that the charts get, unless the user moves the border.
const SIDE_SHARE: (u16, u16) = (2, 5);
/// Number of columns by which a key moves the border.
pub const BORDER_STEP: i16 = 4;
/// Divisor of the screen height that gives the maximum height of the findings.
const FINDINGS_PART: u16 = 3;
/// Number of lines that are enough to describe most processes.
const DETAILS: usize = 8;
/// Heights of panels change in steps of this many rows.
const STEP: usize = 2;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LayoutNeeds {
    pub gpus: usize,
    pub parts: usize,
    /// Number of table lines, or `None` before the first sample.
    pub table: Option<usize>,
    pub is_limited: bool,
    pub has_load: bool,
    /// Number of lines for findings, alarms and errors.
    pub findings: usize,
    /// Number of lines for suspects and undecided rules.
    pub notes: usize,
    pub is_in_findings: bool,
    pub is_selected: bool,
    /// Number of columns by which the user widened the charts to the right of the table.
    pub border: i16,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    pub header: Rect,
    /// The load of the host. Empty on a short screen, if the load is unknown, or if the table needs the line.
    pub host: Rect,
    /// Empty on a short screen, and above cells and totals.
    pub gpu_heading: Rect,
    pub gpus: Rect,
    pub gpu_form: Form,
    /// Empty without filters and on a short screen.
    pub table_limits: Rect,
    pub table_heading: Rect,
    pub table: Rect,
    /// Charts to the right of the other panels, or below the table if rows are left over.
    pub charts: Rect,
    pub status: Rect,
    pub hints: Rect,
}

impl Layout {
    pub fn new(area: Rect, needs: &LayoutNeeds) -> Option<Self> {
        let layout = Self::with_host(area, needs)?;
        let is_short = usize::from(layout.table.height) < needs.table.unwrap_or(0);
        match needs.has_load && is_short {
            true => Self::with_host(area, &LayoutNeeds { has_load: false, ..*needs }),
            false => Some(layout),
        }
    }

    fn with_host(area: Rect, needs: &LayoutNeeds) -> Option<Self> {
        if area.width < COLUMNS_MIN || area.height < ROWS_MIN {
            return None;
        }
        let roomy = area.height >= 20;
        let status = status_rows(area.height);
        let host = u16::from(roomy && needs.has_load);
        // The header, the table heading and the hints.
        let around = 3 + host;
        let rest = area.height - around - status;
        let limits = u16::from(roomy && needs.is_limited);
        let side = side_columns(area, needs);
        let left = Rect { width: area.width - side, ..area };
        let form = |table_rows: u16| {
            let max = rest.saturating_sub(table_rows + u16::from(roomy) + limits).min(rest / 2);
            gpu_form(left, max.max(1), needs)
        };
        let form = form(TABLE_ROWS_MIN).or_else(|| form(TABLE_ROWS_ASIDE));
        let (gpu_form, gpu_rows) = form.unwrap_or((Form::Totals, 1));
        let heading = u16::from(gpu_form == Form::Lines && roomy);
        let rest = area.height - around - heading - gpu_rows - limits;
        let max = area.height / FINDINGS_PART;
        let (status, mut free) = divide_rows(rest, (status, max), needs);
        if side > 0 {
            free = 0;
        }

        let mut top = area.y;
        let mut take = |width: u16, height: u16| {
            let rect = Rect::new(area.x, top, width, height);
            top += height;
            rect
        };
        let width = left.width;
        let mut layout = Self {
            header: take(area.width, 1),
            host: take(area.width, host),
            gpu_heading: take(width, heading),
            gpus: take(width, gpu_rows),
            gpu_form,
            table_limits: take(width, limits),
            table_heading: take(width, 1),
            table: take(width, rest - status - free),
            charts: take(width, free),
            status: take(width, status),
            hints: take(area.width, 1),
        };
        if side > 0 {
            let top = layout.host.bottom();
            let height = layout.hints.y - top;
            layout.charts = Rect::new(area.x + width + 1, top, side - 1, height);
        }
        Some(layout)
    }
}

/// Returns the number of columns for charts to the right of the table, with a blank before them, or 0 if the screen is
/// too narrow or not all GPUs fit.
fn side_columns(area: Rect, needs: &LayoutNeeds) -> u16 {
    if area.width < SIDE_FROM {
        return 0;
    }
    let (part, of) = SIDE_SHARE;
    let width = (area.width * part / of).saturating_add_signed(needs.border);
    let width = width.clamp(CELL_COLUMNS + 1, area.width - LEFT_MIN);
    let height = area.height - 2 - u16::from(needs.has_load);
    let charts = Rect { width: width - 1, height, ..area };
    ChartGrid::new(charts, needs.gpus).map_or(0, |_| width)
}

/// Returns the number of rows that the table needs, in steps.
fn table_rows(needs: &LayoutNeeds) -> usize {
    match needs.table.unwrap_or(usize::MAX) {
        0 => 1,
        lines => stepped(lines).max(usize::from(TABLE_ROWS_MIN)),
    }
}

fn status_rows(height: u16) -> u16 {
    match height {
        0..14 => 1,
        14..20 => 2,
        20..30 => 4,
        30..45 => 7,
        _ => 9,
    }
}

/// Divides `rest` rows between table, charts and findings. Returns the numbers of rows for findings and charts.
///
/// The findings get at most `max` rows. If the table is short of rows and the findings do not have the focus, they get
/// at most `usual` rows. The charts get the rows that are left over.
fn divide_rows(rest: u16, (usual, max): (u16, u16), needs: &LayoutNeeds) -> (u16, u16) {
    let wanted = |notes: usize| {
        let lines = needs.findings.saturating_add(notes);
        let lines = match (lines, needs.is_selected) {
            (0, false) => 1,
            (_, false) => stepped(lines.saturating_add(1)),
            (_, true) => stepped(lines.saturating_add(1)).max(DETAILS),
        };
        at_most(lines, max.max(usual))
    };
    let min = match (needs.findings, needs.is_selected) {
        // Without findings, the selected process is guaranteed only about half of the usual rows.
        (0, true) => wanted(0).min(usual / 2 + 1),
        // One line of notes is enough: the table marks suspects, and one line can name all undecided rules.
        _ => wanted(needs.notes.min(1)),
    };
    let wanted = wanted(needs.notes);
    let (min, table) = match needs.is_in_findings {
        true => (wanted, TABLE_ROWS_ASIDE),
        false => (min.min(usual), TABLE_ROWS_MIN),
    };
    let min = min.min(rest.saturating_sub(table)).max(1);
    let used = at_most(table_rows(needs), rest - min);
    let status = wanted.min(rest - used).max(min);
    let free = rest - status - used;
    let has_charts = needs.gpus > 0 && needs.table.is_some() && free >= CELL_ROWS_MIN;
    (status, if has_charts { free } else { 0 })
}

fn stepped(lines: usize) -> usize {
    lines.div_ceil(STEP).saturating_mul(STEP)
}

fn at_most(wanted: usize, max: u16) -> u16 {
    wanted.min(usize::from(max)) as u16
}

/// Minimum height of a chart: four rows between the edges of its frame. With fewer rows, values cannot be read to
/// within 5 %.
pub const CELL_ROWS_MIN: u16 = 6;
/// Preferred minimum height of a chart. Charts are arranged in the fewest columns that allow it.
const CELL_ROWS: u16 = 10;
const CELL_ROWS_MAX: u16 = 22;
const CELL_COLUMNS: u16 = 36;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChartGrid {
    area: Rect,
    across: u16,
    rows: u16,
}

impl ChartGrid {
    /// Arranges `count` charts in as few columns as the rows allow. Returns `None` if the charts do not fit or
    /// `count` is 0.
    pub fn new(area: Rect, count: usize) -> Option<Self> {
        let count = u16::try_from(count).ok().filter(|count| *count > 0)?;
        let max = (area.width / CELL_COLUMNS).clamp(1, count);
        // With an even number of rows, the middle of the axis is on the edge of a row.
        let rows = |across: u16| area.height / count.div_ceil(across) / 2 * 2;
        // If no arrangement allows `CELL_ROWS`, use the fewest columns that do not add a row of charts.
        let fewest = || count.div_ceil(count.div_ceil(max));
        let across = (1..=max).find(|across| rows(*across) >= CELL_ROWS).unwrap_or_else(fewest);
        let rows = rows(across).min(CELL_ROWS_MAX);
        (rows >= CELL_ROWS_MIN).then_some(Self { area, across, rows })
    }

    pub fn cell(&self, at: usize) -> Rect {
        let across = usize::from(self.across);
        let (row, column) = ((at / across) as u16, (at % across) as u16);
        let left = |column: u16| {
            (u32::from(self.area.width) * u32::from(column) / u32::from(self.across)) as u16
        };
        Rect::new(
            self.area.x + left(column),
            self.area.y.saturating_add(row.saturating_mul(self.rows)),
            left(column + 1) - left(column),
            self.rows,
        )
        .intersection(self.area)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(width: u16, height: u16, needs: LayoutNeeds) -> Option<Layout> {
        Layout::new(Rect::new(0, 0, width, height), &needs)
    }

    fn gpus(gpus: usize) -> LayoutNeeds {
        LayoutNeeds { gpus, ..LayoutNeeds::default() }
    }

    /// Checks that the panels cover the screen without overlap and that the table keeps its rows.
    fn check(width: u16, height: u16, needs: LayoutNeeds) {
        let Some(layout) = layout(width, height, needs) else {
            assert!(width < COLUMNS_MIN || height < ROWS_MIN);
            return;
        };
        let is_beside = layout.charts.right() > layout.table.right();
        let below = if is_beside { Rect::ZERO } else { layout.charts };
        let mut top = 0;
        for panel in [
            layout.header,
            layout.host,
            layout.gpu_heading,
            layout.gpus,
            layout.table_heading,
            layout.table,
            below,
            layout.status,
            layout.hints,
        ] {
            if !panel.is_empty() {
                assert!(panel.y >= top, "{layout:?}");
                top = panel.bottom();
            }
            assert!(!is_beside || panel.height < 2 || panel.right() <= layout.charts.x);
        }
        assert_eq!(top, height, "{layout:?}");
        assert_eq!((layout.header.width, layout.hints.width), (width, width));
        let has_many_gpus = layout.gpus.height > 1 && layout.table.height < TABLE_ROWS_MIN;
        let min = match needs.is_in_findings || has_many_gpus {
            _ if needs.table == Some(0) => 1,
            true => TABLE_ROWS_ASIDE,
            false => TABLE_ROWS_MIN,
        };
        assert!(layout.table.height >= min, "{layout:?} {needs:?}");
        assert!(layout.status.height <= (height / FINDINGS_PART).max(1), "{layout:?} {needs:?}");
        assert!(layout.status.height >= 1 && layout.gpus.height >= 1);
    }

    #[test]
    fn panels_fill_the_screen_without_overlap_at_every_size() {
        for width in 0..=220 {
            for height in 0..=70 {
                for (at, (gpus, parts)) in
                    [(0, 0), (1, 7), (2, 3), (8, 56), (64, 3), (1000, 0)].into_iter().enumerate()
                {
                    let seed = usize::from(width) + usize::from(height) + at;
                    let needs = LayoutNeeds {
                        gpus,
                        parts,
                        table: [None, Some(0), Some(9), Some(1000)][seed % 4],
                        is_limited: seed % 7 == 0,
                        has_load: seed.is_multiple_of(2),
                        findings: [0, 1, 40, usize::MAX][seed / 4 % 4],
                        notes: seed / 2 % 5,
                        is_in_findings: seed % 3 == 0,
                        is_selected: seed % 5 < 3,
                        border: seed as i16 % 100 - 50,
                    };
                    check(width, height, needs);
                }
            }
        }
    }

    #[test]
    fn many_gpus_get_shorter_forms() {
        use Form::{Cells, Lines, Totals};
        for (width, height, count, parts, expected) in [
            (80, 24, 2, 0, (Lines, 2)),
            (80, 15, 1, 0, (Lines, 1)),
            (80, 24, 1, 2, (Lines, 3)),
            (80, 15, 1, 7, (Lines, 1)),
            (200, 60, 0, 0, (Lines, 1)),
            (80, 24, 8, 0, (Lines, 8)),
            (200, 60, 16, 0, (Lines, 16)),
            (60, 15, 8, 0, (Cells, 3)),
            (80, 24, 16, 0, (Cells, 4)),
            (80, 24, 64, 0, (Cells, 8)),
            (100, 30, 64, 0, (Cells, 8)),
            (200, 60, 64, 0, (Cells, 8)),
            (40, 10, 8, 0, (Cells, 2)),
            (40, 10, 16, 0, (Cells, 3)),
            (40, 10, 64, 0, (Totals, 1)),
            (200, 60, 1000, 0, (Totals, 1)),
        ] {
            let needs = LayoutNeeds { parts, table: Some(3), ..gpus(count) };
            let layout = layout(width, height, needs).unwrap();
            let actual = (layout.gpu_form, layout.gpus.height);
            assert_eq!(actual, expected, "{count} of {parts} parts at {width}x{height}");
        }
        assert_eq!(layout(39, 60, gpus(1)), None);
    }

    #[test]
    fn no_chart_hides_a_process_at_any_size() {
        for (width, height) in
            (40u16..=220).flat_map(|width| (10..=70).map(move |height| (width, height)))
        {
            for (count, lines) in [(1, 3), (1, 26), (2, 9), (8, 26), (16, 26), (64, 100)] {
                let has_load = width.is_multiple_of(2);
                let needs =
                    LayoutNeeds { table: Some(lines), findings: 3, has_load, ..gpus(count) };
                let layout = layout(width, height, needs).unwrap();
                let is_beside = layout.charts.right() > layout.table.right();
                let has_charts = !layout.charts.is_empty();
                let shown = usize::from(layout.table.height);
                assert!(shown >= lines || is_beside || !has_charts, "{layout:?} {needs:?}");
                assert!(shown >= lines || layout.host.is_empty(), "{layout:?} {needs:?}");
                assert!(!is_beside || layout.table.width >= LEFT_MIN, "{layout:?}");
            }
        }
    }

    #[test]
    fn findings_take_blank_rows_but_only_as_many_as_needed() {
        let rows = |height, lines, findings, is_in_findings| {
            let needs = LayoutNeeds { table: Some(lines), findings, is_in_findings, ..gpus(8) };
            layout(80, height, needs).map(|layout| layout.status.height)
        };
        assert_eq!(rows(24, 100, 3, false), Some(4));
        assert_eq!(rows(24, 100, 0, false), Some(1));
        assert_eq!(rows(30, 3, 3, false), Some(4));
        assert_eq!(rows(40, 3, 20, false), Some(13), "a third of the screen");
        assert_eq!(rows(10, 100, 8, true), Some(3), "with the focus");
        for height in ROWS_MIN..70 {
            for lines in [0, 5, 17, 100] {
                for asked in [false, true] {
                    let grown = (0..60).map(|findings| rows(height, lines, findings, asked));
                    assert!(grown.is_sorted(), "more findings never get fewer rows");
                }
                let free = |lines| rows(height, lines, 9, false);
                assert!(free(lines + 1) <= free(lines), "fewer blank rows never add finding rows");
                let asked = |findings| rows(height, lines, findings, true);
                assert!(rows(height, lines, 9, false) <= asked(9));
            }
        }
    }

    #[test]
    fn chart_cells_stay_in_their_area_and_do_not_overlap() {
        for width in (40..=220).step_by(7) {
            for height in CELL_ROWS_MIN..=50 {
                for count in [0, 1, 2, 3, 5, 8, 13, 64, 100_000] {
                    let area = Rect::new(3, 5, width, height);
                    let Some(grid) = ChartGrid::new(area, count) else {
                        let is_too_low = usize::from(height) < count * usize::from(CELL_ROWS_MIN);
                        assert!(count == 0 || is_too_low);
                        continue;
                    };
                    let cells: Vec<Rect> = (0..count).map(|at| grid.cell(at)).collect();
                    for (at, cell) in cells.iter().enumerate() {
                        assert_eq!(cell.intersection(area), *cell);
                        assert!(cell.width >= CELL_COLUMNS && cell.height >= CELL_ROWS_MIN);
                        assert!(cell.height.is_multiple_of(2), "{cell:?}");
                        assert!(cells[at + 1..].iter().all(|other| !cell.intersects(*other)));
                    }
                }
            }
        }
    }
}
