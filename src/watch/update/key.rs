//! Key actions on the table, the findings and the help. `keys.rs` maps keys to actions.

use crossterm::event::{KeyCode, KeyEvent};

use super::{findings, gpus, playback, prompt};
use crate::watch::column::Column;
use crate::watch::keys::{self, Context, KeyAction};
use crate::watch::layout::{BORDER_STEP, Layout, columns, help};
use crate::watch::listing::Choice;
use crate::watch::state::prompt::Purpose;
use crate::watch::state::{App, Effect, Focus, Mode, NOTHING_SEEN};
use crate::watch::view_model::Sort;
use crate::watch::{column_list, page, reaping};

/// Number of columns that a key press scrolls.
const SIDE_STEP: u16 = 8;

pub(super) fn on_key(app: &mut App, key: &KeyEvent) -> Option<Effect> {
    if key.is_release() {
        return None;
    }
    let note = app.note.take();
    let is_warned = note.as_deref() == Some(reaping::STILL_ENDING);
    let noted = note.map(|_| Effect::Draw);
    press(app, key, is_warned).or(noted)
}

/// Handles a key. `is_warned` is true if the screen showed the warning about a running batch.
fn press(app: &mut App, key: &KeyEvent, is_warned: bool) -> Option<Effect> {
    let action = match app.mode {
        Mode::Help(_) => keys::action(Context::Main, key),
        _ => keys::action(app.context(), key),
    };
    let is_typing = matches!(app.mode, Mode::Prompt(_));
    match action {
        Some(KeyAction::Repaint) => return Some(Effect::Repaint),
        Some(KeyAction::Suspend) => return Some(Effect::Suspend),
        Some(KeyAction::QuitAtOnce) if !is_typing => return Some(Effect::Quit),
        Some(KeyAction::Quit) if is_warned && app.mode == Mode::Main => return Some(Effect::Quit),
        _ => {}
    }
    match &app.mode {
        Mode::Main => match action {
            Some(action) => act(app, action),
            None => app.refuse(&keys::unbound(key)?),
        },
        Mode::Columns(_) => column_list::on_key(app, action),
        Mode::Help(line) => {
            let last = help::last_line(app.help_context, app.area);
            let page = help::body(app.area).height.saturating_sub(1).max(1);
            app.mode = match action {
                Some(KeyAction::Down) => Mode::Help(last.min(line + 1)),
                Some(KeyAction::Up) => Mode::Help(line.saturating_sub(1)),
                Some(KeyAction::PageDown | KeyAction::Tag) => Mode::Help(last.min(line + page)),
                Some(KeyAction::PageUp) => Mode::Help(line.saturating_sub(page)),
                Some(KeyAction::Last) => Mode::Help(last),
                Some(KeyAction::First) => Mode::Help(0),
                _ => match app.help_context {
                    Context::Main | Context::Columns => Mode::Main,
                    Context::Page => Mode::Page,
                    Context::Plan => Mode::Plan,
                },
            };
            Some(Effect::Draw)
        }
        Mode::ChooseSort => {
            let Sort { column, reversed } = app.table.choice.sort;
            // An arrow key sorts by the adjacent column. Any other key ends the choice.
            let steps = match key.code {
                KeyCode::Right | KeyCode::Down => 1,
                KeyCode::Left | KeyCode::Up => -1,
                _ => 0,
            };
            if steps != 0 {
                let column = column.step(steps);
                app.sort_by(Sort { column, reversed });
                return Some(Effect::Draw);
            }
            app.mode = Mode::Main;
            if let KeyCode::Char(letter) = key.code {
                let Some(column) = Column::by_letter(letter.to_ascii_lowercase()) else {
                    return app.refuse("no column has this letter");
                };
                // As in nvitop, a capital letter reverses the order.
                let reversed = letter.is_ascii_uppercase();
                app.sort_by(Sort { column, reversed });
            }
            Some(Effect::Draw)
        }
        Mode::Prompt(_) => prompt::on_key(app, key),
        Mode::Page | Mode::Plan if action == Some(KeyAction::Help) => open_help(app),
        Mode::Page => match action? {
            KeyAction::Gpu(digit) => gpus::on_digit(app, digit),
            KeyAction::GpuPage => gpus::open_page(app),
            KeyAction::Pause => playback::act(app, KeyAction::Pause),
            action => page::on_key(app, action),
        },
        Mode::Plan => reaping::on_key(app, key, action),
    }
}

fn open_help(app: &mut App) -> Option<Effect> {
    app.help_context = app.context();
    app.mode = Mode::Help(0);
    reaping::on_screen_change(app);
    Some(Effect::Draw)
}

fn act(app: &mut App, action: KeyAction) -> Option<Effect> {
    if app.focus == Focus::Findings
        && let Some(effect) = findings::act(app, action)
    {
        return Some(effect);
    }
    let page_rows = app.page_rows() as isize;
    let sort = app.table.choice.sort;
    let sorted = |column| Sort { column, reversed: false };
    match action {
        KeyAction::Down => app.move_by(1),
        KeyAction::Up => app.move_by(-1),
        KeyAction::PageDown => app.move_by(page_rows),
        KeyAction::PageUp => app.move_by(-page_rows),
        KeyAction::First => app.select(0),
        KeyAction::Last => app.select(usize::MAX),
        KeyAction::Left => app.table.scrolled = 0,
        KeyAction::Right => {
            if let Some(layout) = app.layout() {
                app.table.scrolled = columns::scrolled_on(app, &layout, SIDE_STEP);
            }
        }
        KeyAction::SwitchFocus => return findings::enter(app),
        KeyAction::Open => return page::open(app),
        KeyAction::Gpu(digit) => return gpus::on_digit(app, digit),
        KeyAction::GpuPage => return gpus::open_page(app),
        KeyAction::Environment => return page::open_environment(app),
        KeyAction::Totals => return page::open_totals(app),
        KeyAction::Columns => return column_list::open(app),
        KeyAction::Tag => app.tag(),
        KeyAction::UntagAll if app.table.tagged.is_empty() => {
            return app.refuse("nothing is marked");
        }
        KeyAction::UntagAll => app.table.tagged.clear(),
        KeyAction::Reap => return reaping::open_selected(app, false),
        KeyAction::Release => return reaping::open_selected(app, true),
        KeyAction::ReapFindings => return reaping::open_findings(app),
        KeyAction::Filter => prompt::open(app, Purpose::Filter),
        KeyAction::Search | KeyAction::Seek if app.screenful.is_none() => {
            return app.refuse(NOTHING_SEEN);
        }
        KeyAction::Search => prompt::open(app, Purpose::Search),
        KeyAction::Seek => prompt::open(app, Purpose::Seek),
        KeyAction::Tree => app.choose(|choice| choice.tree ^= true),
        KeyAction::Mine => app.choose(|choice| choice.mine ^= true),
        KeyAction::OnlyFindings => app.choose(|choice| choice.only_findings ^= true),
        KeyAction::ChooseSort => app.mode = Mode::ChooseSort,
        KeyAction::SortRight => app.sort_by(sorted(sort.column.step(1))),
        KeyAction::SortLeft => app.sort_by(sorted(sort.column.step(-1))),
        KeyAction::SortBy(column) => app.sort_by(sorted(column)),
        KeyAction::Reverse => app.sort_by(Sort { reversed: !sort.reversed, ..sort }),
        KeyAction::WidenCharts | KeyAction::NarrowCharts => {
            let is_beside = |layout: &Layout| layout.charts.right() > layout.table.right();
            let left = |app: &App| app.layout().filter(is_beside).map(|layout| layout.charts.x);
            let before = (app.border, left(app));
            let step = if action == KeyAction::WidenCharts { BORDER_STEP } else { -BORDER_STEP };
            app.border = app.border.saturating_add(step);
            if left(app).is_none() || left(app) == before.1 {
                app.border = before.0;
                return app.refuse("no charts beside the table, or no room to move their border");
            }
        }
        KeyAction::NextTheme => {
            app.theme = app.theme.next();
            // Without colour, the note is the only visible effect.
            app.note = Some(format!("theme: {}", app.theme.name()));
        }
        KeyAction::Help => return open_help(app),
        KeyAction::Hosts if app.setup.host.is_some() => return Some(Effect::Hosts),
        KeyAction::Hosts => {
            return app
                .refuse("no other hosts are watched; start gpumem with --host to watch several");
        }
        KeyAction::Back if app.playback.is_seeking() => return playback::interrupt(app),
        KeyAction::Back if app.table.clear_chosen() => {}
        KeyAction::Back if !app.table.tagged.is_empty() => app.table.tagged.clear(),
        KeyAction::Back if app.table.choice.is_limited() => app.choose(Choice::clear_limits),
        // If Esc quit, one Esc too many would discard a day of history. On a slow connection, an
        // arrow key can arrive as Esc followed by other keys.
        KeyAction::Back => playback::note(app, "nothing is open; q quits"),
        KeyAction::Quit if app.reaping.is_running() => return app.refuse(reaping::STILL_ENDING),
        KeyAction::Quit | KeyAction::QuitAtOnce => return Some(Effect::Quit),
        KeyAction::Repaint => return Some(Effect::Repaint),
        KeyAction::Suspend => return Some(Effect::Suspend),
        _ => return playback::act(app, action),
    }
    Some(Effect::Draw)
}
