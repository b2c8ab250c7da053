//! The process table. Text is formatted only for visible rows.

use crate::watch::text;
use std::borrow::Cow;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use super::chart::{self, ChartWindow, Layer};
use super::line_writer::LineWriter;
use crate::history::memory_series::MemorySeries;
use crate::model::field::state_name;
use crate::report::escape::escape;
use crate::report::processes;
use crate::watch::column::Column;
use crate::watch::layout::Layout;
use crate::watch::layout::columns::{GUTTER, chosen, column_width};
use crate::watch::listing::{ListingLine, TreeBranch};
use crate::watch::state::App;
use crate::watch::text::{NOT_AVAILABLE, UNKNOWN, clean, columns, scrolled};
use crate::watch::theme::Styles;
use crate::watch::view_model::{Sort, Subject, WINDOW_SECONDS, badge};

/// Marks at the edge of a row with a finding, and of a suspected row.
const FOUND: &str = "▌";
const SUSPECTED: &str = "│";
/// Marks beside the edge: selected row, marked row, both.
const SELECTED: &str = "▸";
const TAGGED: &str = "*";
const BOTH: &str = "◆";
/// Maximum indentation, in generations.
const INDENTED: u16 = 8;
const SPAN_MIN_DIVISOR: f64 = 4.0;

pub fn draw(app: &App, styles: Styles, layout: &Layout, canvas: &mut Buffer) {
    let area = layout.table;
    let Some(screenful) = &app.screenful else {
        LineWriter::new(canvas, area, 0)
            .skip(GUTTER)
            .text("waiting for the first sample", styles.faint());
        return;
    };
    let columns = chosen(&app.table.columns, screenful.widths, area.width);
    let limits = layout.table_limits;
    if let Some(limited) = limited(app).filter(|_| !limits.is_empty()) {
        LineWriter::new(canvas, limits, 0).skip(GUTTER).text(&limited, styles.caution());
    }
    draw_heading(app, &columns, styles, layout, canvas);
    if app.table.listing.lines.is_empty() {
        let text = match app.table.choice.limits() {
            Some(limits) if !screenful.rows.is_empty() => {
                let count = screenful.rows.len();
                format!("none of {count} is shown ({}); Esc shows all", escape(&limits))
            }
            _ => processes::no_rows(&screenful.snapshot, true),
        };
        LineWriter::new(canvas, area, 0).skip(GUTTER).text(&text, styles.plain());
        return;
    }
    let end = screenful.snapshot.time;
    let cells = column_width(Column::History, screenful.widths);
    // The charts cover half an hour or, if shorter, the history. A cell covers at least a second.
    let first = app.judged.engine.history().first_time().unwrap_or(end);
    let first =
        first.max(end.plus_seconds(-WINDOW_SECONDS)).min(end.plus_seconds(-f64::from(cells)));
    let table =
        TableView { app, columns: &columns, styles, window: ChartWindow::between(first, end) };
    let lines = app.table.listing.lines.iter().enumerate().skip(app.table.offset);
    for (line, (at, entry)) in (0..area.height).zip(lines) {
        let Some(subject) = screenful.subject(entry.row) else {
            break;
        };
        let row = Rect::new(area.x, area.y + line, area.width, 1);
        table.draw_row(entry, &subject, row, canvas);
        let (edge, style) = match (subject.finding, subject.suspect) {
            (Some(finding), _) => (FOUND, styles.edge(finding.severity)),
            (None, Some(_)) => (SUSPECTED, styles.suspected()),
            (None, None) => (" ", styles.plain()),
        };
        LineWriter::new(canvas, row, 0).text(edge, style);
        let is_selected = app.table.selected() == Some(at);
        let (mark, style) = match (is_selected, app.table.tagged.contains(&subject.row.key)) {
            (false, false) => continue,
            (false, true) => (TAGGED, styles.tagged()),
            (true, false) => (SELECTED, styles.strong()),
            (true, true) => (BOTH, styles.strong()),
        };
        if is_selected {
            canvas.set_style(row, styles.selected());
        }
        LineWriter::new(canvas, row, 0).skip(1).text(mark, style);
    }
}

/// Formats the number of listed rows, such as `12 of 40`, if the filters hide rows.
pub fn count(app: &App) -> String {
    let shown = app.table.listing.lines.len();
    match app.table.listing.hidden {
        0 => String::new(),
        hidden => format!("{shown} of {}", shown + hidden),
    }
}

fn draw_heading(
    app: &App,
    columns: &[(Column, u16)],
    styles: Styles,
    layout: &Layout,
    canvas: &mut Buffer,
) {
    let sort = app.table.choice.sort;
    // If the layout has no line for the filters, show the filters here.
    let limited = limited(app).filter(|_| layout.table_limits.is_empty());
    let mut writer = LineWriter::new(canvas, layout.table_heading, 0);
    writer.skip(GUTTER);
    for &(column, width) in columns {
        let style = if column == sort.column {
            styles.heading().patch(styles.strong())
        } else {
            styles.heading()
        };
        let title = title(column, sort);
        if column == Column::Command
            && let Some(limited) = &limited
        {
            writer.left(limited, width, styles.caution());
        } else if column.spec().right {
            writer.right(&title, width, style).skip(1);
        } else {
            writer.left(&title, width, style).skip(1);
        }
    }
}

fn title(column: Column, sort: Sort) -> String {
    let mark = match (column == sort.column, sort.descending()) {
        (false, _) => "",
        (true, true) => "▼",
        (true, false) => "▲",
    };
    format!("{}{mark}", column.spec().title)
}

/// Formats the active filters, such as `4 of 300 (filter: gpu:2), 3 of 4 GPUs hidden`.
fn limited(app: &App) -> Option<String> {
    let limits = app.table.choice.limits()?;
    let all = app.screenful.as_ref()?.snapshot.gpus.len();
    let shown = app.table.listing.lines.len();
    let gpus = match all.saturating_sub(app.shown_gpus().len()) {
        0 => String::new(),
        hidden => format!(", {hidden} of {all} GPUs hidden"),
    };
    let count = shown + app.table.listing.hidden;
    Some(format!("{shown} of {count} ({}){gpus}", escape(&limits)))
}

struct TableView<'a> {
    app: &'a App,
    columns: &'a [(Column, u16)],
    styles: Styles,
    window: ChartWindow,
}

impl TableView<'_> {
    fn draw_row(&self, line: &ListingLine, subject: &Subject<'_>, area: Rect, canvas: &mut Buffer) {
        let styles = self.styles;
        let mut writer = LineWriter::new(canvas, area, 0);
        writer.skip(GUTTER);
        let has_state_column = self.columns.iter().any(|(column, _)| *column == Column::State);
        for &(column, width) in self.columns {
            match column {
                Column::Command => {
                    let tree = indent(line, width / 2);
                    writer.text(&tree, styles.faint());
                    let width = width.saturating_sub(columns(&tree));
                    let enough = width.saturating_add(self.app.table.scrolled);
                    let (text, style) = if has_state_column {
                        cell(column, enough, subject, styles)
                    } else {
                        command_with_state(enough, subject, styles)
                    };
                    writer.left(&scrolled(&text, self.app.table.scrolled), width, style);
                }
                Column::History => {
                    self.draw_history(subject, width, &mut writer);
                    writer.skip(1);
                }
                column => {
                    let (text, mut style) = cell(column, width, subject, styles);
                    if column == Column::User && subject.is_of(&self.app.setup.me) == Some(false) {
                        style = styles.faint();
                    }
                    if column.spec().right {
                        writer.right(&text, width, style).skip(1);
                    } else {
                        writer.left(&text, width, style).skip(1);
                    }
                }
            }
        }
    }

    fn draw_history(&self, subject: &Subject<'_>, width: u16, writer: &mut LineWriter<'_>) {
        let series = subject.memory_series(&self.app.judged.all_series);
        let buckets = series.map_or(&[][..], MemorySeries::buckets);
        let mut values = chart::memory(buckets, self.window, width);
        let present = || values.iter().flatten().copied();
        let range = present().reduce(f64::min).zip(present().reduce(f64::max));
        let Some((low, high)) = range else {
            writer.right(UNKNOWN, width, self.styles.faint());
            return;
        };
        // A small change does not use the full height, or noise would look like growth.
        let span = (high - low).max(high / SPAN_MIN_DIVISOR).max(1.0);
        // Constant memory is drawn faintly, at the height of its share of the GPU, so that changes stand out.
        let share = subject.memory_percent().unwrap_or(0.0) / 100.0;
        let (base, top, style) = match (high - low) * 7.0 < span {
            true => (0.0, high / share, self.styles.faint()),
            false => (low, span, self.styles.held()),
        };
        values.iter_mut().flatten().for_each(|value| *value -= base);
        let (area, canvas) = writer.reserve(width);
        chart::draw_area(&[Layer { glyph: '▇', style, values }], top, area, canvas);
    }
}

/// Formats the branches before a row of a tree, such as `│  ├─ `, in at most `room` columns.
fn indent(line: &ListingLine, room: u16) -> String {
    let last = match line.branch {
        TreeBranch::Root => return String::new(),
        TreeBranch::First => "┌─ ",
        TreeBranch::Middle => "├─ ",
        TreeBranch::Last => "└─ ",
    };
    let depth = line.depth.min(INDENTED).min((room / 3).max(1));
    let mut text = String::new();
    for generation in 1..depth {
        let follows = line.rails & (1 << generation) != 0;
        text.push_str(if follows { "│  " } else { "   " });
    }
    text.push_str(last);
    text
}

fn cell<'a>(
    column: Column,
    width: u16,
    subject: &Subject<'a>,
    styles: Styles,
) -> (Cow<'a, str>, Style) {
    let stale = subject.gpu.is_some_and(|gpu| gpu.stale_seconds.is_some());
    let never_reported = subject.gpu.is_some_and(|gpu| gpu.process_memory_unavailable.is_some());
    let plain = |text: Option<String>| match text {
        Some(text) => (cleaned(text, width), styles.plain()),
        None => (Cow::Borrowed(UNKNOWN), styles.faint()),
    };
    match column {
        Column::Memory
            if never_reported && subject.is_listed() && subject.used_bytes().is_none() =>
        {
            (Cow::Borrowed(NOT_AVAILABLE), styles.faint())
        }
        Column::Memory => {
            // `~` marks the last known value of a GPU that does not answer.
            let mark = if stale { "~" } else { "" };
            plain(column.text(subject).map(|text| format!("{mark}{text}")))
        }
        Column::State => match subject.process.ok().and_then(|process| process.state) {
            Some(state) => state_word(state, styles),
            None => plain(None),
        },
        Column::Finding => match subject.finding {
            Some(finding) => (Cow::Owned(badge(finding)), styles.badge(finding.severity)),
            None => match subject.suspect {
                Some(suspect) => (Cow::Owned(suspect.mark.to_string()), styles.suspected()),
                None => (Cow::Borrowed(""), styles.plain()),
            },
        },
        Column::Command => {
            let style = match subject.process {
                Ok(_) => styles.plain(),
                Err(_) => styles.caution(),
            };
            (Cow::Owned(text::row_command(subject, width)), style)
        }
        column => plain(column.text(subject)),
    }
}

fn cleaned<'a>(text: String, width: u16) -> Cow<'a, str> {
    Cow::Owned(match clean(&text, width) {
        Cow::Borrowed(whole) if whole.len() == text.len() => text,
        other => other.into_owned(),
    })
}

/// Returns the command, preceded by the state of a halted process: a zombie would otherwise look alive.
fn command_with_state<'a>(
    width: u16,
    subject: &Subject<'a>,
    styles: Styles,
) -> (Cow<'a, str>, Style) {
    let (command, style) = cell(Column::Command, width, subject, styles);
    let state = subject.process.ok().and_then(|process| process.state);
    match state.filter(|state| is_halted(*state)) {
        Some(state) => {
            let (word, style) = state_word(state, styles);
            (Cow::Owned(format!("{word}: {command}")), style)
        }
        None => (command, style),
    }
}

/// Returns whether a process stays in this state until another process acts. `D` is excluded: processes enter this
/// state with every disk access, so the text would flicker.
pub fn is_halted(state: char) -> bool {
    matches!(state, 'T' | 't' | 'Z' | 'X')
}

pub fn state_word(state: char, styles: Styles) -> (Cow<'static, str>, Style) {
    let style = match state {
        'S' | 'I' => styles.faint(),
        'D' | 'T' | 't' => styles.caution(),
        'Z' | 'X' => styles.alarm(),
        _ => styles.plain(),
    };
    match state_name(state) {
        Some(word) => (Cow::Borrowed(word), style),
        None => (Cow::Owned(clean(state.encode_utf8(&mut [0; 4]), 6).into_owned()), style),
    }
}

#[cfg(test)]
mod tests;
