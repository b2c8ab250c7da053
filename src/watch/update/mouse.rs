//! Clicks and the wheel. Every click has the effect of a key, so the mouse is optional.

use std::time::Duration;

use crossterm::event::{KeyCode, MouseButton, MouseEvent, MouseEventKind};
use ratatui::layout::{Position, Rect};

use super::gpus::toggle_filter;
use super::{findings as list, key};
use crate::watch::column::Column;
use crate::watch::column_list;
use crate::watch::keys;
use crate::watch::layout::{Layout, columns, hints};
use crate::watch::state::{App, Effect, Focus, Mode};
use crate::watch::view_model::{RowKey, Sort};
use crate::watch::{findings, gpus};

/// Maximum time between the clicks of a double click.
const DOUBLE: Duration = Duration::from_millis(400);
const NOTCH: usize = 3;

pub fn on_mouse(app: &mut App, event: MouseEvent, now: Duration) -> Option<Effect> {
    let at = Position::new(event.column, event.row);
    match event.kind {
        MouseEventKind::Down(MouseButton::Left) => {
            // The note hides the hints, so a click on the note must not press a hint.
            let noted = app.note.take().map(|_| Effect::Draw);
            match noted {
                Some(_) if at.y + 1 == app.area.bottom() => noted,
                _ => on_click(app, at, now).or(noted),
            }
        }
        MouseEventKind::ScrollDown => on_wheel(app, at, KeyCode::Down),
        MouseEventKind::ScrollUp => on_wheel(app, at, KeyCode::Up),
        _ => None,
    }
}

fn on_wheel(app: &mut App, at: Position, key: KeyCode) -> Option<Effect> {
    match app.mode {
        Mode::Main => {
            let layout = app.layout()?;
            if layout.table.contains(at) || layout.table_heading.contains(at) {
                app.focus = Focus::Table;
            } else if layout.status.contains(at) && findings::are_shown(app) {
                app.focus = Focus::Findings;
            } else {
                return None;
            }
        }
        Mode::Help(_) | Mode::Page | Mode::Plan | Mode::Columns(_) => {}
        Mode::ChooseSort | Mode::Prompt(_) => return None,
    }
    let mut effect = None;
    for _ in 0..NOTCH {
        effect = press(app, key).or(effect);
    }
    effect
}

fn on_click(app: &mut App, at: Position, now: Duration) -> Option<Effect> {
    let last = app.table.clicked.take();
    let layout = app.layout();
    match &app.mode {
        // A click must not confirm or close a plan.
        Mode::Prompt(_) | Mode::Plan => return None,
        Mode::Help(_) => return press(app, KeyCode::Esc),
        Mode::Page => return on_hint(app, layout.as_ref(), at),
        Mode::Columns(_) => {
            return column_list::click(app, at).or_else(|| on_hint(app, layout.as_ref(), at));
        }
        Mode::Main | Mode::ChooseSort => {}
    }
    let layout = &layout?;
    let was_choosing = app.mode == Mode::ChooseSort;
    app.mode = Mode::Main;
    let effect = if was_choosing && !layout.table_heading.contains(at) {
        None
    } else if layout.hints.contains(at) {
        on_hint(app, Some(layout), at)
    } else if layout.table_heading.contains(at) {
        columns::hit_column(app, layout, at.x).map(|column| on_heading(app, column))
    } else if layout.gpus.contains(at) || layout.charts.contains(at) {
        on_gpu(app, layout, at)
    } else if layout.table.contains(at) {
        on_row(app, usize::from(at.y - layout.table.y), last, now)
    } else if layout.status.contains(at) && findings::are_shown(app) {
        let finding = findings::at_row(app, layout, at.y);
        app.focus = Focus::Findings;
        if let Some(finding) = finding {
            list::select(app, finding);
        }
        Some(Effect::Draw)
    } else {
        None
    };
    // Any click ends the choice of a sort column, which changes the bottom line.
    effect.or_else(|| was_choosing.then_some(Effect::Draw))
}

fn on_heading(app: &mut App, column: Column) -> Effect {
    let sort = app.table.choice.sort;
    app.sort_by(Sort { column, reversed: sort.column == column && !sort.reversed });
    Effect::Draw
}

fn on_gpu(app: &mut App, layout: &Layout, at: Position) -> Option<Effect> {
    let index = gpus::hit(app, layout, at.x, at.y)?;
    toggle_filter(app, index)
}

/// Selects a row, or opens its page on a double click. If another process has moved under the mouse, the second click
/// only selects that process.
fn on_row(
    app: &mut App,
    line: usize,
    last: Option<(RowKey, Duration)>,
    now: Duration,
) -> Option<Effect> {
    let at = app.table.offset + line;
    let key = app.subject_at(at)?.row.key;
    app.focus = Focus::Table;
    app.select(at);
    if last.is_some_and(|(row, time)| row == key && now.saturating_sub(time) <= DOUBLE) {
        return press(app, KeyCode::Enter).or(Some(Effect::Draw));
    }
    app.table.clicked = Some((key, now));
    Some(Effect::Draw)
}

fn on_hint(app: &mut App, layout: Option<&Layout>, at: Position) -> Option<Effect> {
    let bottom =
        Rect { y: app.area.bottom().saturating_sub(1), height: 1.min(app.area.height), ..app.area };
    if !bottom.contains(at) {
        return None;
    }
    let spots = hints::shown(app, layout, bottom.width);
    let hint = spots.iter().find(|spot| (spot.from..spot.to).contains(&at.x))?.hint;
    key::on_key(app, &keys::events(hint.key).next()?)
}

fn press(app: &mut App, code: KeyCode) -> Option<Effect> {
    key::on_key(app, &code.into())
}

#[cfg(test)]
mod tests;
