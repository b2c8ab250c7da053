//! The process table: a row per process and GPU, made of text only where it is visible; what a cell says
//! is in `cell`, what a process is called in [`command`].

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use self::cell::{cell, command_with_state};
pub use self::cell::{is_halted, state_word};
use super::UNKNOWN;
use super::look::Look;
use super::pen::{Pen, clean, columns, scrolled};
use crate::model::snapshot::Snapshot;
use crate::report::escape::escape;
use crate::watch::app::App;
use crate::watch::column::Column;
use crate::watch::layout::Layout;
use crate::watch::listing::{Bough, Head, Line};
use crate::watch::picture::{Picture, Sort, Subject, Widths};
use crate::watch::trend::Axis;

/// The column before the first, for the marks of rows.
const GUTTER: u16 = 1;
/// In the gutter: the selected row, a marked one, both.
const SELECTED: &str = "▸";
const TAGGED: &str = "*";
const BOTH: &str = "◆";
/// Columns of what limits the rows that say more than their count alone: ` (filter: g…`.
const WORDS_LEAST: u16 = 12;
/// How far commands can be scrolled, whatever a process calls itself.
const FARTHEST: u16 = 4096;
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

/// The column whose heading, or whose cells, lie at this column of the screen.
pub fn hit_column(app: &App, x: u16) -> Option<Column> {
    let area = app.layout()?.table_heading;
    let widths = app.picture.as_ref()?.widths;
    if x >= area.right() {
        return None;
    }
    let mut left = x.checked_sub(area.x)?.checked_sub(GUTTER)?;
    for (column, width) in chosen(widths, area.width) {
        if left <= width {
            return Some(column);
        }
        left -= width + 1;
    }
    None
}

/// How far the commands are scrolled away when they are scrolled on by `steps`: no further than the end
/// of the longest one that is visible.
pub fn scrolled_on(app: &App, steps: u16) -> u16 {
    let (Some(picture), Some(layout)) = (&app.picture, app.layout()) else {
        return app.scrolled;
    };
    let columns = chosen(picture.widths, layout.table.width);
    let Some(&(Column::Command, width)) = columns.last() else {
        return app.scrolled;
    };
    let look = Look {
        theme: app.theme,
        depth: app.setup.depth,
    };
    let height = usize::from(layout.table.height);
    let visible = app.listing.lines.iter().skip(app.offset).take(height);
    let longest = visible
        .filter_map(|line| picture.subject(line.row))
        .map(|subject| {
            let (text, _) = cell(Column::Command, FARTHEST, &subject, look);
            self::columns(&text)
        })
        .max();
    let farthest = longest.unwrap_or(0).saturating_sub(width).min(FARTHEST);
    app.scrolled
        .saturating_add(steps)
        .min(farthest.max(app.scrolled))
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

/// The columns that have room, left to right, with their widths.
fn chosen(widths: Widths, width: u16) -> Vec<(Column, u16)> {
    let command_min = (width / 4).clamp(8, 40);
    let mut room = width.saturating_sub(GUTTER);
    let mut kept = Vec::with_capacity(Column::ALL.len());
    for column in Column::BY_NEED {
        let wanted = match column {
            Column::Command => command_min,
            column => column_width(column, widths),
        };
        // A column without anything to say takes no room.
        if wanted == 0 {
            continue;
        }
        if wanted + 1 > room {
            break;
        }
        room -= wanted + 1;
        kept.push((column, wanted));
    }
    let mut columns: Vec<(Column, u16)> = Vec::with_capacity(kept.len());
    for column in Column::ALL {
        columns.extend(kept.iter().filter(|(kept, _)| *kept == column));
    }
    if let Some((Column::Command, width)) = columns.last_mut() {
        // No blank follows the last column.
        *width += room + 1;
    }
    columns
}

fn column_width(column: Column, widths: Widths) -> u16 {
    match column {
        Column::Gpu => widths.gpu,
        Column::Pid => widths.pid,
        Column::User => widths.user,
        Column::Framework => widths.framework,
        Column::Place => widths.place,
        Column::Finding => widths.finding,
        column => column.spec().width,
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

/// How many rows are marked, and which of the rows are visible where not all are: `2 marked  1-12 of 40`.
pub fn beyond(app: &App, height: u16) -> String {
    let mut parts = Vec::new();
    if !app.tagged.is_empty() {
        parts.push(marked(app));
    }
    let count = app.listing.lines.len();
    if count > usize::from(height) {
        let last = (app.offset + usize::from(height)).min(count);
        parts.push(format!("{}-{last} of {count}", app.offset + 1));
    }
    parts.join("  ")
}

/// How many rows are marked; those that are hidden, or gone, are marked all the same.
fn marked(app: &App) -> String {
    let rows = app
        .picture
        .as_ref()
        .map_or(&[][..], |picture| &picture.rows);
    let lines = app.listing.lines.iter();
    let seen = lines
        .filter_map(|line| rows.get(line.row))
        .filter(|row| app.tagged.contains(&row.key))
        .count();
    let count = app.tagged.len();
    match count.saturating_sub(seen) {
        0 => format!("{count} marked"),
        unseen => format!("{count} marked, {unseen} not shown"),
    }
}

/// The column that the rows are sorted by, where it is folded away.
pub fn hidden_sort(app: &App, width: u16) -> Option<&'static str> {
    let widths = app.picture.as_ref()?.widths;
    let column = app.choice.sort.column;
    let shown = chosen(widths, width).iter().any(|(it, _)| *it == column);
    (!shown).then(|| column.spec().title)
}

mod cell;
pub mod command;
#[cfg(test)]
mod tests;
