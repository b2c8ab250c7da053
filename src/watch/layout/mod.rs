//! Sizes and positions of the panels, and which panels a small screen drops.
//!
//! The layout depends only on the screen size, the amount of content and the user's choices. The
//! submodules lay out single panels. Panels are dropped in this order:
//!
//! | when | what is dropped |
//! |---|---|
//! | below 45, 30, 20 and 14 rows | findings: 7, 4, 2 and 1 lines remain instead of 9 |
//! | if they would exceed [`CHARTS_SHARE`] | all charts of one-line GPUs |
//! | if the GPUs exceed half of the space | lines of the charts in their cards |
//! | | the cards: one line per GPU and MIG device remains |
//! | | the lines of all MIG devices |
//! | | the lines of the GPUs: one line with totals remains |
//! | below 20 rows | the GPU heading, and the line with the table's filters |
//! | below [`ROWS_MIN`] rows or [`COLUMNS_MIN`] columns | all panels: a short text remains |
//!
//! The header, the table heading, [`TABLE_ROWS_MIN`] table rows ([`TABLE_ROWS_ASIDE`] while the findings have the
//! focus), one line of findings and the key hints are never dropped. The GPUs get at most half of the other rows,
//! unless the user chose a form that needs more.
//!
//! Rows that the table does not need go first to the findings, up to a third of the screen, and then to charts below
//! the table. The split changes in steps of [`STEP`] rows, so that panels do not move whenever a process starts.

pub mod columns;
pub mod gpus;
pub mod help;
pub mod hints;

pub use gpus::Form;
use gpus::gpu_form;
use ratatui::layout::Rect;

/// The panels that a small screen drops, as the help describes them.
pub const FOLDS: [(&str, &str); 5] = [
    ("findings", "from 9 lines to one"),
    ("charts", "before the table becomes shorter than they are"),
    ("GPUs", "cards, a line each, totals"),
    ("columns", "from the framework to the user"),
    ("below 40x10", "the essentials in words"),
];

/// Minimum size for panels. A smaller screen shows a short text.
pub const COLUMNS_MIN: u16 = 40;
pub const ROWS_MIN: u16 = 10;
/// Table rows that remain even with many GPUs.
pub const TABLE_ROWS_MIN: u16 = 5;
/// Table rows that remain while the findings have the focus.
const TABLE_ROWS_ASIDE: u16 = 3;
/// Table rows that remain when charts claim [`CHARTS_SHARE`].
const TABLE_ROWS_BESIDE: u16 = 6;
/// Maximum share of the rows of table and charts that the charts of one-line GPUs can claim.
const CHARTS_SHARE: (u16, u16) = (3, 5);
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
    /// Maximum number of MIG devices of one GPU.
    pub parts_max: usize,
    /// Number of table lines, or `None` before the first sample.
    pub table: Option<usize>,
    pub is_limited: bool,
    pub findings: usize,
    pub is_in_findings: bool,
    pub is_selected: bool,
    /// Form that the user chose, or `None` for the automatic form.
    pub form: Option<Form>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    pub header: Rect,
    /// Empty on a short screen and above cards.
    pub gpu_heading: Rect,
    pub gpus: Rect,
    pub gpu_form: Form,
    /// Empty without filters and on a short screen.
    pub table_limits: Rect,
    pub table_heading: Rect,
    pub table: Rect,
    /// Charts below the table. Empty unless rows are left over.
    pub charts: Rect,
    pub status: Rect,
    pub hints: Rect,
}

impl Layout {
    pub fn new(area: Rect, needs: &LayoutNeeds) -> Option<Self> {
        if area.width < COLUMNS_MIN || area.height < ROWS_MIN {
            return None;
        }
        let roomy = area.height >= 20;
        let status = status_rows(area.height);
        // Three lines: the header, the table heading and the hints.
        let rest = area.height - 3 - status;
        let limits = u16::from(roomy && needs.is_limited);
        let max = rest.saturating_sub(TABLE_ROWS_MIN + u16::from(roomy) + limits).max(1);
        let (gpu_form, gpu_rows) = gpu_form(area, max, max.min(rest / 2).max(1), needs);
        let heading = match gpu_form {
            Form::Lines => roomy,
            Form::Cards | Form::Totals => false,
        };
        let heading = u16::from(heading);
        let kept = |max| match gpu_form {
            Form::Cards => 0,
            Form::Lines | Form::Totals => rows_kept(area.width, max, needs.gpus),
        };
        let rest = area.height - 3 - heading - gpu_rows - limits;
        let max = area.height / FINDINGS_PART;
        let (status, charts) = divide_rows(rest, (status, max), kept, needs);

        let mut top = area.y;
        let mut take = |height: u16| {
            let rect = Rect::new(area.x, top, area.width, height);
            top += height;
            rect
        };
        Some(Self {
            header: take(1),
            gpu_heading: take(heading),
            gpus: take(gpu_rows),
            gpu_form,
            table_limits: take(limits),
            table_heading: take(1),
            table: take(rest - status - charts),
            charts: take(charts),
            status: take(status),
            hints: take(1),
        })
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
/// The findings get at most `usual` rows if the table is short of rows, and otherwise at most `max` rows. `kept`
/// returns how many of the given rows the charts claim.
fn divide_rows(
    rest: u16,
    (usual, max): (u16, u16),
    kept: impl Fn(u16) -> u16,
    needs: &LayoutNeeds,
) -> (u16, u16) {
    let wanted = needs.findings.saturating_add(1);
    let wanted = match (needs.findings, needs.is_selected) {
        (0, false) => 1,
        (_, false) => stepped(wanted),
        (_, true) => stepped(wanted).max(DETAILS),
    };
    let wanted = at_most(wanted, max.max(usual));
    let min = match needs.findings {
        // Without findings, the selected process is guaranteed only about half of the usual rows.
        0 => wanted.min(usual / 2 + 1),
        _ => wanted,
    };
    let (min, table) = match needs.is_in_findings {
        true => (wanted, TABLE_ROWS_ASIDE),
        false => (min.min(usual), TABLE_ROWS_MIN),
    };
    let min = min.min(rest.saturating_sub(table)).max(1);
    let is_known = needs.gpus > 0 && needs.table.is_some();
    let (part, of) = CHARTS_SHARE;
    let max = (rest - min) * part / of;
    let max = max.min((rest - min).saturating_sub(TABLE_ROWS_BESIDE));
    let sure = if is_known { kept(max) } else { 0 };
    let used = match needs.table.unwrap_or(usize::MAX) {
        0 => 1,
        lines => stepped(lines).max(usize::from(TABLE_ROWS_MIN)),
    };
    let used = at_most(used, rest - min - sure);
    let status = wanted.min(rest - used - sure).max(min);
    let free = rest - status - used;
    let charts = if is_known && free >= CHARTS_ROWS_MIN { free } else { 0 };
    (status, charts)
}

fn stepped(lines: usize) -> usize {
    lines.div_ceil(STEP).saturating_mul(STEP)
}

fn at_most(wanted: usize, max: u16) -> u16 {
    wanted.min(usize::from(max)) as u16
}

/// Minimum height of a chart with time labels: caption, two rows of blocks, labels.
pub const CHARTS_ROWS_MIN: u16 = 4;
const GAP: u16 = 2;
const CELL_COLUMNS: u16 = 38;
/// Usual height of a chart: caption, four rows of blocks, time labels.
const CELL_ROWS: u16 = 6;

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
        let max = cells_across(area.width).clamp(1, count);
        let rows = |across: u16| area.height / count.div_ceil(across);
        // If there are too few rows, use as few columns as possible without adding a row.
        let fewest = || count.div_ceil(count.div_ceil(max));
        let across = (1..=max).find(|across| rows(*across) >= CELL_ROWS).unwrap_or_else(fewest);
        let rows = rows(across);
        (rows >= CHARTS_ROWS_MIN).then_some(Self { area, across, rows })
    }

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

/// Returns the number of rows for the charts of `gpus` GPUs, or 0 if `max` rows are too few.
pub fn rows_kept(width: u16, max: u16, gpus: usize) -> u16 {
    let across = usize::from(cells_across(width)).max(1);
    let down = u16::try_from(gpus.div_ceil(across)).unwrap_or(u16::MAX);
    let heights = (CHARTS_ROWS_MIN..=CELL_ROWS).rev().map(|rows| down.saturating_mul(rows));
    heights.filter(|rows| *rows <= max).max().unwrap_or(0)
}

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

    const FORMS: [Option<Form>; 4] =
        [None, Some(Form::Cards), Some(Form::Lines), Some(Form::Totals)];

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
        let mut top = 0;
        for panel in [
            layout.header,
            layout.gpu_heading,
            layout.gpus,
            layout.table_heading,
            layout.table,
            layout.charts,
            layout.status,
            layout.hints,
        ] {
            assert!(panel.y >= top && panel.width == width, "{layout:?}");
            top = panel.bottom();
        }
        assert_eq!(top, height, "{layout:?}");
        let min = match needs.is_in_findings {
            _ if needs.table == Some(0) => 1,
            true => TABLE_ROWS_ASIDE,
            false => TABLE_ROWS_MIN,
        };
        assert!(layout.table.height >= min, "{layout:?} {needs:?}");
        assert!(layout.status.height <= (height / FINDINGS_PART).max(1), "{layout:?} {needs:?}");
        assert!(layout.status.height >= 1 && layout.gpus.height >= 1);
        if layout.gpu_form == Form::Cards {
            assert!(layout.gpus.height >= 6 + needs.parts_max as u16);
        }
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
                        parts_max: parts.min(7),
                        table: [None, Some(0), Some(9), Some(1000)][seed % 4],
                        is_limited: seed % 7 == 0,
                        findings: [0, 1, 40, usize::MAX][seed / 4 % 4],
                        is_in_findings: seed % 3 == 0,
                        is_selected: seed % 5 < 3,
                        form: FORMS[seed % 4],
                    };
                    check(width, height, needs);
                }
            }
        }
    }

    #[test]
    fn few_gpus_get_cards_and_many_gpus_get_shorter_forms() {
        use Form::{Cards, Lines, Totals};
        for (width, height, count, parts, asked, expected) in [
            (80, 24, 1, 0, None, (Cards, 8)),
            (120, 40, 2, 0, None, (Cards, 13)),
            // The screen is too narrow for two cards side by side.
            (80, 24, 2, 0, None, (Lines, 2)),
            (80, 15, 1, 0, None, (Lines, 1)),
            (200, 60, 0, 0, None, (Lines, 1)),
            (80, 24, 8, 0, None, (Lines, 8)),
            (200, 60, 8, 0, None, (Lines, 8)),
            (60, 15, 8, 0, None, (Totals, 1)),
            (200, 60, 64, 0, None, (Totals, 1)),
            (200, 60, 4, 0, Some(Cards), (Cards, 24)),
            (200, 60, 8, 0, Some(Cards), (Cards, 24)),
            (80, 24, 8, 0, Some(Cards), (Lines, 8)),
            (120, 40, 1, 0, Some(Lines), (Lines, 1)),
            (80, 24, 1, 2, Some(Lines), (Lines, 3)),
            (80, 15, 1, 7, Some(Lines), (Lines, 1)),
            (80, 24, 1, 0, Some(Totals), (Totals, 1)),
        ] {
            let needs = LayoutNeeds { form: asked, parts, parts_max: parts, ..gpus(count) };
            let layout = layout(width, height, needs).unwrap();
            let actual = (layout.gpu_form, layout.gpus.height);
            assert_eq!(
                actual, expected,
                "{count} of {parts} parts at {width}x{height} as {asked:?}"
            );
        }
        assert_eq!(layout(39, 60, gpus(1)), None);
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
    fn panels_move_in_steps_of_several_rows() {
        let at = |lines| {
            let needs = LayoutNeeds { table: Some(lines), findings: 20, ..gpus(4) };
            layout(120, 40, needs)
        };
        for lines in 1..40 {
            let same = at(lines) == at(lines + 1);
            assert!(same || lines % STEP == 0 || lines < usize::from(TABLE_ROWS_MIN), "{lines}");
        }
    }

    #[test]
    fn chart_cells_stay_in_their_area_and_do_not_overlap() {
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
