//! The process table: a row per process and GPU, made of text only where it is visible; what a cell says
//! is in `cell`, what a process is called in `command.rs`.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use self::cell::{cell, command_with_state};
pub use self::cell::{is_halted, state_word};
use super::line_writer::Pen;
use crate::model::snapshot::Snapshot;
use crate::report::escape::escape;
use crate::watch::column::Column;
use crate::watch::layout::Layout;
use crate::watch::layout::columns::{GUTTER, chosen, column_width};
use crate::watch::listing::{Bough, Head, Line};
use crate::watch::picture::{Picture, Sort, Subject};
use crate::watch::state::App;
use crate::watch::text::{UNKNOWN, clean, columns, scrolled};
use crate::watch::theme::Look;
use crate::watch::trend::Axis;

/// In the gutter: the selected row, a marked one, both.
const SELECTED: &str = "▸";
const TAGGED: &str = "*";
const BOTH: &str = "◆";
/// Columns of what limits the rows that say more than their count alone: ` (filter: g…`.
const WORDS_LEAST: u16 = 12;
/// Generations that a tree indents; further ones stand below each other.
const INDENTED: u16 = 8;
/// Blocks for the heights of an outline.
const BLOCKS: [&str; 8] = ["▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"];

/// Draws what limits the table, the heading and the visible rows.
pub fn draw(app: &App, look: Look, layout: &Layout, buffer: &mut Buffer) {
    let area = layout.table;
    let Some(picture) = &app.picture else {
        Pen::new(buffer, area, 0)
            .skip(GUTTER)
            .text("waiting for the first sample", look.faint());
        return;
    };
    let columns = chosen(picture.widths, area.width);
    let limits = layout.table_limits;
    if let Some(limited) = Limited::new(app).filter(|_| !limits.is_empty()) {
        Pen::new(buffer, limits, 0)
            .skip(GUTTER)
            .text(&limited.text(), look.caution());
    }
    draw_heading(app, &columns, look, layout, buffer);
    if app.listing.lines.is_empty() {
        let text = match app.choice.limits() {
            Some(limits) if !picture.rows.is_empty() => {
                let count = picture.rows.len();
                format!(
                    "none of {count} is shown ({}); Esc shows all",
                    escape(&limits)
                )
            }
            _ => nothing(picture),
        };
        Pen::new(buffer, area, 0)
            .skip(GUTTER)
            .text(&text, look.plain());
        return;
    }
    let first = app.engine.history().first_time();
    let table = Table {
        app,
        picture,
        columns: &columns,
        look,
        axis: Axis::new(
            first,
            picture.snapshot.time,
            column_width(Column::History, picture.widths),
        ),
    };
    for line in 0..area.height {
        let at = app.offset + usize::from(line);
        let Some((of_tree, subject)) = app
            .listing
            .lines
            .get(at)
            .and_then(|line| Some((line, picture.subject(line.row)?)))
        else {
            break;
        };
        let row = Rect::new(area.x, area.y + line, area.width, 1);
        table.draw_row(at, of_tree, &subject, row, buffer);
        let is_selected = app.selected() == Some(at);
        let (mark, style) = match (is_selected, app.tagged.contains(&subject.row.key)) {
            (false, false) => continue,
            (false, true) => (TAGGED, look.tagged()),
            (true, false) => (SELECTED, look.strong()),
            (true, true) => (BOTH, look.strong()),
        };
        if is_selected {
            buffer.set_style(row.intersection(buffer.area), look.selected());
        }
        Pen::new(buffer, row, 0).text(mark, style);
    }
}

/// How many of the rows are shown, where not all are: `12 of 40`.
pub fn count(app: &App) -> String {
    let shown = app.listing.lines.len();
    match app.listing.hidden {
        0 => String::new(),
        hidden => format!("{shown} of {}", shown + hidden),
    }
}

/// Why there is no row.
fn nothing(picture: &Picture) -> String {
    let unread: Vec<String> = picture
        .snapshot
        .gpus
        .iter()
        .filter(|gpu| gpu.processes.is_none())
        .map(|gpu| gpu.index.to_string())
        .collect();
    if unread.is_empty() {
        "no process holds GPU memory".to_owned()
    } else {
        format!(
            "the process list could not be read: GPU {}",
            unread.join(", ")
        )
    }
}

fn draw_heading(
    app: &App,
    columns: &[(Column, u16)],
    look: Look,
    layout: &Layout,
    buffer: &mut Buffer,
) {
    let sort = app.choice.sort;
    // What limits the rows is told here where it has no line of its own.
    let limited = Limited::new(app).filter(|_| layout.table_limits.is_empty());
    let mut pen = Pen::new(buffer, layout.table_heading, 0);
    pen.skip(GUTTER);
    for &(column, width) in columns {
        let style = if column == sort.column {
            look.heading().patch(look.strong())
        } else {
            look.heading()
        };
        let title = title(column, sort);
        if column == Column::Command
            && let Some(limited) = &limited
        {
            // The title gives way only where not even the count has room beside it.
            let mut room = width;
            let beside = width.saturating_sub(self::columns(&title) + 1);
            if limited.least() <= beside {
                pen.text(&title, style).skip(1);
                room = beside;
            }
            pen.text(&limited.within(room), look.caution());
        } else if column.spec().right {
            pen.right(&title, width, style).skip(1);
        } else {
            pen.left(&title, width, style).skip(1);
        }
    }
}

/// A column's title, with the mark of the order.
fn title(column: Column, sort: Sort) -> String {
    let mark = match (column == sort.column, sort.descending()) {
        (false, _) => "",
        (true, true) => "▼",
        (true, false) => "▲",
    };
    format!("{}{mark}", column.spec().title)
}

/// How many rows are shown, and what limits them.
struct Limited {
    shown: usize,
    count: usize,
    /// Made harmless.
    limits: String,
}

impl Limited {
    /// `None` where nothing limits the rows.
    fn new(app: &App) -> Option<Self> {
        let limits = app.choice.limits()?;
        let shown = app.listing.lines.len();
        Some(Self {
            shown,
            count: shown + app.listing.hidden,
            limits: escape(&limits).into_owned(),
        })
    }

    /// `4 of 300 (filter: gpu:2)`.
    fn text(&self) -> String {
        format!("{} of {} ({})", self.shown, self.count, self.limits)
    }

    /// As much of it as `room` columns say: the count is whole, if need be as `4/300`.
    fn within(&self, room: u16) -> String {
        let count = format!("{} of {}", self.shown, self.count);
        if columns(&self.text()) <= room || columns(&count) + WORDS_LEAST <= room {
            self.text()
        } else if columns(&count) <= room {
            count
        } else {
            self.shortest()
        }
    }

    fn shortest(&self) -> String {
        format!("{}/{}", self.shown, self.count)
    }

    /// Columns below which the count is not whole.
    fn least(&self) -> u16 {
        columns(&self.shortest())
    }
}

/// What the visible rows have in common.
struct Table<'a> {
    app: &'a App,
    picture: &'a Picture,
    columns: &'a [(Column, u16)],
    look: Look,
    axis: Axis,
}

impl Table<'_> {
    /// Draws the line of the table at `at`.
    fn draw_row(
        &self,
        at: usize,
        line: &Line,
        subject: &Subject<'_>,
        area: Rect,
        buffer: &mut Buffer,
    ) {
        let look = self.look;
        let mut pen = Pen::new(buffer, area, 0);
        pen.skip(GUTTER);
        let tells_state = self.columns.iter().any(|(it, _)| *it == Column::State);
        for &(column, width) in self.columns {
            match column {
                Column::Command => {
                    let tree = indent(line, width / 2);
                    pen.text(&tree, look.faint());
                    let width = width.saturating_sub(columns(&tree));
                    let enough = width.saturating_add(self.app.scrolled);
                    let (text, style) = if tells_state {
                        cell(column, enough, subject, look)
                    } else {
                        command_with_state(enough, subject, look)
                    };
                    let head = self.app.listing.heads.get(&at);
                    let head = head.map(|head| family(*head, &self.picture.snapshot));
                    let text = format!("{}{text}", head.unwrap_or_default());
                    pen.left(&scrolled(&text, self.app.scrolled), width, style);
                }
                Column::History => {
                    self.draw_history(subject, width, &mut pen);
                    pen.skip(1);
                }
                column => {
                    let (text, mut style) = cell(column, width, subject, look);
                    if column == Column::User && subject.is_of(&self.app.setup.me) == Some(false) {
                        style = look.faint();
                    }
                    if column.spec().right {
                        pen.right(&text, width, style).skip(1);
                    } else {
                        pen.left(&text, width, style).skip(1);
                    }
                }
            }
        }
    }

    /// How its memory moved, up to the time that is shown.
    fn draw_history(&self, subject: &Subject<'_>, width: u16, pen: &mut Pen<'_>) {
        let course = subject.course(&self.app.courses);
        let heights = course.map(|course| self.axis.heights(course));
        match heights.filter(|heights| heights.iter().any(Option::is_some)) {
            Some(heights) => {
                for height in heights.iter().take(usize::from(width)) {
                    match height {
                        Some(height) => {
                            let block = BLOCKS[usize::from(*height).min(BLOCKS.len() - 1)];
                            pen.fill(block, 1, self.look.held());
                        }
                        None => {
                            pen.skip(1);
                        }
                    }
                }
            }
            None => {
                pen.right(UNKNOWN, width, self.look.faint());
            }
        }
    }
}

/// What stands before a line of a tree: `│  ├─ `, at most `room` columns of it.
fn indent(line: &Line, room: u16) -> String {
    let last = match line.bough {
        Bough::Root => return String::new(),
        Bough::First => "┌─ ",
        Bough::Middle => "├─ ",
        Bough::Last => "└─ ",
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

/// What a family hangs on, before its first line.
fn family(head: Head, snapshot: &Snapshot) -> String {
    let name = |pid: u32| {
        let process = snapshot.process(pid).filter(|it| it.unresolved.is_none());
        let ended = process.and_then(|it| it.ended());
        let comm = process.and_then(|it| it.comm.as_deref());
        let comm = comm.or_else(|| ended?.comm.as_deref());
        let name = comm.map_or_else(String::new, |comm| format!("{} ", clean(comm, 16)));
        let dead = match process.map(|it| it.state) {
            Some(Some('Z' | 'X')) => ", dead",
            _ if ended.is_some() => ", dead",
            _ => "",
        };
        format!("{name}{pid}{dead}")
    };
    match head {
        Head::Member(pid) => format!("[family of {}] ", name(pid)),
        Head::Launcher(pid) => format!("[family started by {}] ", name(pid)),
        Head::Unknown => "[family] ".to_owned(),
    }
}

mod cell;
#[cfg(test)]
mod tests;
