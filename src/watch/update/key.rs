//! What each key does.
//!
//! A key means what the table of `keys.rs` says of it in the [`Context`] that is open; what is open takes
//! it from there: a prompt, a page and a plan each in their own file, the table and the findings here.

use crossterm::event::{KeyCode, KeyEvent};

use super::{findings, page, playback, prompt};
use crate::watch::column::Column;
use crate::watch::keys::{self, Action, Context};
use crate::watch::layout::{Form, columns, help};
use crate::watch::listing::Choice;
use crate::watch::picture::Sort;
use crate::watch::reaping;
use crate::watch::state::{App, Effect, Focus, Mode, NOTHING_SEEN};

/// Columns of the commands that one key scrolls away.
const SIDE_STEP: u16 = 8;

/// Takes in a key, by what it means where it is pressed.
pub(super) fn on_key(app: &mut App, key: &KeyEvent) -> Option<Effect> {
    if key.is_release() {
        return None;
    }
    let note = app.note.take();
    let is_warned = note.as_deref() == Some(reaping::STILL_ENDING);
    // A note that goes away is drawn, too.
    let noted = note.map(|_| Effect::Draw);
    press(app, key, is_warned).or(noted)
}

/// `is_warned`: the key before this one asked to quit, and was told what is still being ended.
fn press(app: &mut App, key: &KeyEvent, is_warned: bool) -> Option<Effect> {
    let action = match app.mode {
        Mode::Help(_) => keys::action(Context::Main, key),
        _ => keys::action(app.context(), key),
    };
    let is_typing = matches!(app.mode, Mode::Prompt(_));
    match action {
        Some(Action::Repaint) => return Some(Effect::Repaint),
        Some(Action::Suspend) => return Some(Effect::Suspend),
        Some(Action::QuitAtOnce) if !is_typing => return Some(Effect::Quit),
        Some(Action::Quit) if is_warned && app.mode == Mode::Main => return Some(Effect::Quit),
        _ => {}
    }
    match &app.mode {
        Mode::Main => act(app, action?),
        Mode::Help(line) => {
            let last = help::last_line(app.help_over, app.area);
            app.mode = match action {
                Some(Action::Down) => Mode::Help(last.min(line + 1)),
                Some(Action::Up) => Mode::Help(line.saturating_sub(1)),
                Some(Action::PageDown | Action::Last) => Mode::Help(last),
                Some(Action::PageUp | Action::First) => Mode::Help(0),
                // Any other key leaves the help, and only that.
                _ => match app.help_over {
                    Context::Main => Mode::Main,
                    Context::Page => Mode::Page,
                    Context::Plan => Mode::Plan,
                },
            };
            Some(Effect::Draw)
        }
        Mode::ChooseSort => {
            let Sort { column, reversed } = app.choice.sort;
            // The table shows what one moves to; any other key leaves it so.
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
                // A capital turns the order around, as in nvitop.
                let reversed = letter.is_ascii_uppercase();
                app.sort_by(Sort { column, reversed });
            }
            Some(Effect::Draw)
        }
        Mode::Prompt(_) => prompt::on_key(app, key),
        Mode::Page | Mode::Plan if action == Some(Action::Help) => open_help(app),
        Mode::Page => page::on_key(app, action),
        Mode::Plan => reaping::on_key(app, key, action),
    }
}

/// Puts the help over what is open.
fn open_help(app: &mut App) -> Option<Effect> {
    app.help_over = app.context();
    app.mode = Mode::Help(0);
    reaping::turned(app);
    Some(Effect::Draw)
}

/// Does what a key asks for while nothing is open.
fn act(app: &mut App, action: Action) -> Option<Effect> {
    if app.focus == Focus::Findings
        && let Some(effect) = findings::act(app, action)
    {
        return Some(effect);
    }
    let page_rows = app.page_rows() as isize;
    let sort = app.choice.sort;
    let sorted = |column| Sort {
        column,
        reversed: false,
    };
    match action {
        Action::Down => app.move_by(1),
        Action::Up => app.move_by(-1),
        Action::PageDown => app.move_by(page_rows),
        Action::PageUp => app.move_by(-page_rows),
        Action::First => app.select(0),
        Action::Last => app.select(usize::MAX),
        Action::Left => app.scrolled = 0,
        Action::Right => app.scrolled = columns::scrolled_on(app, SIDE_STEP),
        Action::SwitchFocus => return findings::enter(app),
        Action::Open => return page::open(app),
        Action::Tag => app.tag(),
        Action::UntagAll if app.tagged.is_empty() => return app.refuse("nothing is marked"),
        Action::UntagAll => app.tagged.clear(),
        Action::Reap => return reaping::open_selected(app),
        Action::ReapFindings => return reaping::open_findings(app),
        Action::Filter => prompt::open_filter(app),
        Action::Seek if app.picture.is_none() => return app.refuse(NOTHING_SEEN),
        Action::Seek => prompt::open_seek(app),
        Action::Tree => app.choose(|choice| choice.tree ^= true),
        Action::Mine => app.choose(|choice| choice.mine ^= true),
        Action::OnlyFindings => app.choose(|choice| choice.only_findings ^= true),
        Action::HideSmall => app.choose(|choice| choice.hide_small ^= true),
        Action::ChooseSort => app.mode = Mode::ChooseSort,
        Action::SortRight => app.sort_by(sorted(sort.column.step(1))),
        Action::SortLeft => app.sort_by(sorted(sort.column.step(-1))),
        Action::SortBy(column) => app.sort_by(sorted(column)),
        Action::Reverse => app.sort_by(Sort {
            reversed: !sort.reversed,
            ..sort
        }),
        Action::Pause
        | Action::StepBack
        | Action::StepOn
        | Action::LeapBack
        | Action::LeapOn
        | Action::NextFinding
        | Action::PreviousFinding
        | Action::Now
        | Action::Faster
        | Action::Slower => return playback::act(app, action),
        Action::NextForm => {
            app.form = Form::after(app.form);
            // There may be no room for it, and then nothing else tells that the key was heard.
            app.note = Some(Form::said(app.form).to_owned());
        }
        Action::NextTheme => {
            app.theme = app.theme.next();
            // Where there are no colours, nothing else says so.
            app.note = Some(format!("theme: {}", app.theme.name()));
        }
        Action::Help => return open_help(app),
        Action::Back if app.playback.is_seeking() => return playback::interrupt(app),
        Action::Back if app.unselect() => {}
        Action::Back if !app.tagged.is_empty() => app.tagged.clear(),
        Action::Back if app.choice.is_limited() => app.choose(Choice::lift),
        // Not the end: one Esc too many would throw away a day's history, and on a slow line an arrow
        // whose bytes come one by one begins as one.
        Action::Back => playback::note(app, "nothing is open; q quits"),
        Action::Quit if app.reaping.is_running() => return app.refuse(reaping::STILL_ENDING),
        Action::Quit | Action::QuitAtOnce => return Some(Effect::Quit),
        Action::Repaint => return Some(Effect::Repaint),
        Action::Suspend => return Some(Effect::Suspend),
        Action::Confirm
        | Action::Undo
        | Action::ChooseSignal
        | Action::EveryUser
        | Action::Direct
        | Action::OtherButton
        | Action::PlanAgain => return None,
    }
    // What was done may have given the table more rows, or fewer.
    app.scroll();
    Some(Effect::Draw)
}
