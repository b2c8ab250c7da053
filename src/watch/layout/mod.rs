//! Which panel gets which part of the screen, and what folds first when it is small.
//!
//! A pure function of the size, of what there is to show and of what was asked for, so that the state knows the
//! height of the table. Places inside a panel are in the files here, one for each panel; the mouse and the view read
//! them from there. What folds, first to last:
//!
//! | where | what |
//! |---|---|
//! | below 45, 30, 20 and 14 rows | the findings: 9 lines, then 7, 4, 2 and 1 |
//! | where they would take more than [`CHARTS_SHARE`] | the charts of GPUs that have lines, all of them |
//! | where the GPUs take more than their half | lines of the charts in their cards |
//! | | the cards: a line for each GPU, and one for each MIG device |
//! | | the MIG devices' lines, all of them |
//! | | the GPUs' lines: one line with the totals |
//! | below 20 rows | the GPUs' heading, and the line that says what limits the table |
//! | below [`ROWS_MIN`] rows or [`COLUMNS_MIN`] columns | all panels: the essentials in words |
//!
//! The header, [`TABLE_ROWS_MIN`] rows of the table with its heading, a line of findings and the keys
//! are as long as there are panels. The GPUs' half is of what header, heading, findings and keys leave;
//! it is more where a person asked for a form that needs more.
//!
//! The help says it in fewer words: [`FOLDS`].
//!
//! Rows that the table leaves blank go to the findings as far as they need them, up to a third of the screen, and
//! then to charts below the table, so that its rows stay where they are. A few rows change hands at a time,
//! so that the panels do not move with every process that comes or goes. Findings that have nothing to say
//! have one line.

pub mod charts;
pub mod columns;
pub mod gpus;
pub mod help;
pub mod hints;

use ratatui::layout::Rect;

use charts::{CHARTS_ROWS_MIN, rows_kept};
pub use gpus::Form;
use gpus::gpu_form;

/// What gives way on a small screen, and how, as the help says it.
pub const FOLDS: [(&str, &str); 5] = [
    ("findings", "from 9 lines to one"),
    ("charts", "where the table would have less than they"),
    ("GPUs", "cards, a line each, totals"),
    ("columns", "from the framework to the user"),
    ("below 40x10", "the essentials in words"),
];

/// Below this many columns only the essentials are shown.
pub const COLUMNS_MIN: u16 = 40;
/// Below this many rows only the essentials are shown.
pub const ROWS_MIN: u16 = 10;
/// The rows that the table keeps whatever the number of GPUs.
pub const TABLE_ROWS_MIN: u16 = 5;
/// The rows that it keeps while the keys move in the findings.
const TABLE_ROWS_ASIDE: u16 = 3;
/// The rows that it keeps beside charts that are sure of theirs.
const TABLE_ROWS_BESIDE: u16 = 6;
/// The charts of GPUs that have lines are sure of at most so much of what the findings leave to them and the table.
const CHARTS_SHARE: (u16, u16) = (3, 5);
/// The findings have no more than this part of the screen.
const FINDINGS_PART: u16 = 3;
/// Lines that say of a selected process what is to be said, in most cases.
const DETAILS: usize = 8;
/// Rows of the table that change hands at once.
const STEP: usize = 2;

/// What there is to show, and what was asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LayoutNeeds {
    /// How many GPUs there are.
    pub gpus: usize,
    /// MIG devices of all of them.
    pub parts: usize,
    /// MIG devices of the GPU that has the most.
    pub parts_most: usize,
    /// Lines of the table; `None` where nothing is known yet.
    pub table: Option<usize>,
    /// Whether something limits the table.
    pub is_limited: bool,
    /// Lines that findings and notes have to say.
    pub findings: usize,
    /// Whether the keys move in the findings.
    pub is_in_findings: bool,
    /// Whether a process is selected.
    pub is_selected: bool,
    /// How the GPUs are to be shown; `None` leaves it to the room that there is.
    pub form: Option<Form>,
}

/// The panels' places.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// Host, versions, clock, age.
    pub header: Rect,
    /// What the GPUs' numbers mean; empty on a low screen and above cards.
    pub gpu_heading: Rect,
    /// The GPUs.
    pub gpus: Rect,
    /// How they are shown there.
    pub gpu_form: Form,
    /// What limits the process table; empty where nothing does, and on a low screen.
    pub table_limits: Rect,
    /// The process table's heading.
    pub table_heading: Rect,
    /// Its rows.
    pub table: Rect,
    /// Charts, in rows that nothing else needs; empty where there are none.
    pub charts: Rect,
    /// The findings, or what is known of the selected process.
    pub status: Rect,
    /// The keys.
    pub hints: Rect,
}

impl Layout {
    /// Divides `area`; `None` where it is too small for panels.
    pub fn new(area: Rect, needs: &LayoutNeeds) -> Option<Self> {
        if area.width < COLUMNS_MIN || area.height < ROWS_MIN {
            return None;
        }
        let roomy = area.height >= 20;
        let status = status_rows(area.height);
        // Header, table heading and hints are always.
        let rest = area.height - 3 - status;
        let limits = u16::from(roomy && needs.is_limited);
        let most = rest.saturating_sub(TABLE_ROWS_MIN + u16::from(roomy) + limits).max(1);
        let (gpu_form, gpu_rows) = gpu_form(area, most, most.min(rest / 2).max(1), needs);
        let heading = match gpu_form {
            Form::Lines => roomy,
            // They say what their numbers are.
            Form::Cards | Form::Totals => false,
        };
        let heading = u16::from(heading);
        let kept = |most| match gpu_form {
            // They have their charts.
            Form::Cards => 0,
            Form::Lines | Form::Totals => rows_kept(area.width, most, needs.gpus),
        };
        let rest = area.height - 3 - heading - gpu_rows - limits;
        let most = area.height / FINDINGS_PART;
        let (status, charts) = shared(rest, (status, most), kept, needs);

        let mut top = area.y;
        // Top down, as the fields below are.
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

/// The rows of the findings where neither they nor the table are short of any.
fn status_rows(height: u16) -> u16 {
    match height {
        0..14 => 1,
        14..20 => 2,
        20..30 => 4,
        30..45 => 7,
        _ => 9,
    }
}

/// How many of the `rest` rows of table, charts and findings are the findings', and how many the charts'. The
/// findings have `usual` where the table needs more than there are, and at most `most`; `kept` tells how many of so
/// many the charts are sure of.
fn shared(
    rest: u16,
    (usual, most): (u16, u16),
    kept: impl Fn(u16) -> u16,
    needs: &LayoutNeeds,
) -> (u16, u16) {
    // A title comes before them.
    let wanted = needs.findings.saturating_add(1);
    let wanted = match (needs.findings, needs.is_selected) {
        (0, false) => 1,
        (_, false) => stepped(wanted),
        (_, true) => stepped(wanted).max(DETAILS),
    };
    let wanted = at_most(wanted, most.max(usual));
    let least = match needs.findings {
        // What is said of a selected process fits in half of them.
        0 => wanted.min(usual / 2 + 1),
        _ => wanted,
    };
    let (least, table) = match needs.is_in_findings {
        true => (wanted, TABLE_ROWS_ASIDE),
        false => (least.min(usual), TABLE_ROWS_MIN),
    };
    let least = least.min(rest.saturating_sub(table)).max(1);
    let is_known = needs.gpus > 0 && needs.table.is_some();
    let (part, of) = CHARTS_SHARE;
    let most = (rest - least) * part / of;
    let most = most.min((rest - least).saturating_sub(TABLE_ROWS_BESIDE));
    let sure = if is_known { kept(most) } else { 0 };
    let used = match needs.table.unwrap_or(usize::MAX) {
        // It says so.
        0 => 1,
        lines => stepped(lines).max(usize::from(TABLE_ROWS_MIN)),
    };
    let used = at_most(used, rest - least - sure);
    let status = wanted.min(rest - used - sure).max(least);
    let free = rest - status - used;
    let charts = if is_known && free >= CHARTS_ROWS_MIN { free } else { 0 };
    (status, charts)
}

/// The next number of lines at which rows change hands.
fn stepped(lines: usize) -> usize {
    lines.div_ceil(STEP).saturating_mul(STEP)
}

fn at_most(wanted: usize, most: u16) -> u16 {
    wanted.min(usize::from(most)) as u16
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

    /// Whether the panels fill the screen without overlap, and the table keeps its rows.
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
        let least = match needs.is_in_findings {
            _ if needs.table == Some(0) => 1,
            true => TABLE_ROWS_ASIDE,
            false => TABLE_ROWS_MIN,
        };
        assert!(layout.table.height >= least, "{layout:?} {needs:?}");
        assert!(layout.status.height <= (height / FINDINGS_PART).max(1), "{layout:?} {needs:?}");
        assert!(layout.status.height >= 1 && layout.gpus.height >= 1);
        if layout.gpu_form == Form::Cards {
            assert!(layout.gpus.height >= 6 + needs.parts_most as u16);
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
                        parts_most: parts.min(7),
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
    fn a_few_gpus_have_cards_and_many_compact_before_the_table_suffers() {
        use Form::{Cards, Lines, Totals};
        for (width, height, count, parts, asked, expected) in [
            (80, 24, 1, 0, None, (Cards, 8)),
            (120, 40, 2, 0, None, (Cards, 13)),
            // One would be below the other.
            (80, 24, 2, 0, None, (Lines, 2)),
            (80, 15, 1, 0, None, (Lines, 1)),
            (200, 60, 0, 0, None, (Lines, 1)),
            (80, 24, 8, 0, None, (Lines, 8)),
            (200, 60, 8, 0, None, (Lines, 8)),
            (60, 15, 8, 0, None, (Totals, 1)),
            (200, 60, 64, 0, None, (Totals, 1)),
            // None stands alone.
            (200, 60, 4, 0, Some(Cards), (Cards, 24)),
            (200, 60, 8, 0, Some(Cards), (Cards, 24)),
            (80, 24, 8, 0, Some(Cards), (Lines, 8)),
            (120, 40, 1, 0, Some(Lines), (Lines, 1)),
            (80, 24, 1, 2, Some(Lines), (Lines, 3)),
            // Parts go before the table.
            (80, 15, 1, 7, Some(Lines), (Lines, 1)),
            (80, 24, 1, 0, Some(Totals), (Totals, 1)),
        ] {
            let needs = LayoutNeeds { form: asked, parts, parts_most: parts, ..gpus(count) };
            let layout = layout(width, height, needs).unwrap();
            let is = (layout.gpu_form, layout.gpus.height);
            assert_eq!(is, expected, "{count} of {parts} parts at {width}x{height} as {asked:?}");
        }
        assert_eq!(layout(39, 60, gpus(1)), None);
    }

    #[test]
    fn findings_grow_into_blank_rows_and_shrink_where_they_need_less() {
        let rows = |height, lines, findings, is_in_findings| {
            let needs = LayoutNeeds { table: Some(lines), findings, is_in_findings, ..gpus(8) };
            layout(80, height, needs).map(|layout| layout.status.height)
        };
        assert_eq!(rows(24, 100, 3, false), Some(4));
        assert_eq!(rows(24, 100, 0, false), Some(1));
        assert_eq!(rows(30, 3, 3, false), Some(4));
        assert_eq!(rows(40, 3, 20, false), Some(13), "a third");
        assert_eq!(rows(10, 100, 8, true), Some(3), "while the keys move in them");
        for height in ROWS_MIN..70 {
            for lines in [0, 5, 17, 100] {
                for asked in [false, true] {
                    let grown = (0..60).map(|findings| rows(height, lines, findings, asked));
                    assert!(grown.is_sorted(), "more to say, more room");
                }
                let free = |lines| rows(height, lines, 9, false);
                assert!(free(lines + 1) <= free(lines), "less blank, less room");
                let asked = |findings| rows(height, lines, findings, true);
                assert!(rows(height, lines, 9, false) <= asked(9));
            }
        }
    }

    #[test]
    fn a_process_more_or_less_moves_no_panel() {
        let at = |lines| {
            let needs = LayoutNeeds { table: Some(lines), findings: 20, ..gpus(4) };
            layout(120, 40, needs)
        };
        for lines in 1..40 {
            let same = at(lines) == at(lines + 1);
            assert!(same || lines % STEP == 0 || lines < usize::from(TABLE_ROWS_MIN), "{lines}");
        }
    }
}
