//! Chooses the columns of the process table that fit, and finds the column under the mouse.

use crate::watch::column::{Column, Columns};
use crate::watch::layout::Layout;
use crate::watch::state::App;
use crate::watch::text;
use crate::watch::text::columns;
use crate::watch::view_model::Widths;

/// Screen columns before the first table column, for edges and marks.
pub const GUTTER: u16 = 2;
/// Maximum scroll offset. A process controls the length of its command line.
const FARTHEST: u16 = 4096;

pub fn chosen(columns: &Columns, widths: Widths, width: u16) -> Vec<(Column, u16)> {
    let command_min = (width / 4).clamp(8, 40);
    let mut room = width.saturating_sub(GUTTER);
    let mut kept = Vec::with_capacity(Column::ALL.len());
    for column in Column::BY_NEED {
        if !columns.has(column) {
            continue;
        }
        let wanted = match column {
            Column::Command => command_min,
            column => column_width(column, widths),
        };
        if wanted == 0 {
            continue;
        }
        if wanted + 1 > room {
            break;
        }
        room -= wanted + 1;
        kept.push((column, wanted));
    }
    let mut shown: Vec<(Column, u16)> = Vec::with_capacity(kept.len());
    for column in columns.iter() {
        shown.extend(kept.iter().filter(|(kept, _)| *kept == column));
    }
    // The last column needs no blank after it.
    let blank = u16::from(matches!(shown.last(), Some((Column::Command, _))));
    let mut commands = shown.iter_mut();
    if let Some((_, width)) = commands.find(|(column, _)| *column == Column::Command) {
        *width += room + blank;
    }
    shown
}

pub fn column_width(column: Column, widths: Widths) -> u16 {
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

pub fn hit_column(app: &App, layout: &Layout, x: u16) -> Option<Column> {
    let area = layout.table_heading;
    let widths = app.screenful.as_ref()?.widths;
    if x >= area.right() {
        return None;
    }
    let mut left = x.checked_sub(area.x)?.checked_sub(GUTTER)?;
    for (column, width) in chosen(&app.table.columns, widths, area.width) {
        if left <= width {
            return Some(column);
        }
        left -= width + 1;
    }
    None
}

/// Returns the scroll offset after `steps` more columns, up to the end of the longest visible command.
pub fn scrolled_on(app: &App, layout: &Layout, steps: u16) -> u16 {
    let Some(screenful) = &app.screenful else {
        return app.table.scrolled;
    };
    let columns = chosen(&app.table.columns, screenful.widths, layout.table.width);
    let mut columns = columns.into_iter();
    let Some((_, width)) = columns.find(|(column, _)| *column == Column::Command) else {
        return app.table.scrolled;
    };
    let height = usize::from(layout.table.height);
    let visible = app.table.listing.lines.iter().skip(app.table.offset).take(height);
    let longest = visible
        .filter_map(|line| screenful.subject(line.row))
        .map(|subject| self::columns(&text::row_command(&subject, FARTHEST)))
        .max();
    let farthest = longest.unwrap_or(0).saturating_sub(width).min(FARTHEST);
    app.table.scrolled.saturating_add(steps).min(farthest.max(app.table.scrolled))
}

/// Formats the number of marked rows and, if the table needs scrolling, the visible range: `2 marked  1-12 of 40`.
pub fn beyond(app: &App, height: u16) -> String {
    let mut parts = Vec::new();
    if !app.table.tagged.is_empty() {
        parts.push(marked(app));
    }
    let count = app.table.listing.lines.len();
    if count > usize::from(height) {
        let last = (app.table.offset + usize::from(height)).min(count);
        parts.push(format!("{}-{last} of {count}", app.table.offset + 1));
    }
    parts.join("  ")
}

/// Formats the number of marked rows, including rows that are hidden or gone.
fn marked(app: &App) -> String {
    let rows = app.screenful.as_ref().map_or(&[][..], |screenful| &screenful.rows);
    let lines = app.table.listing.lines.iter();
    let visible = lines
        .filter_map(|line| rows.get(line.row))
        .filter(|row| app.table.tagged.contains(&row.key))
        .count();
    let count = app.table.tagged.len();
    match count.saturating_sub(visible) {
        0 => format!("{count} marked"),
        hidden => format!("{count} marked, {hidden} not shown"),
    }
}
