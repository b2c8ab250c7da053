//! A screen for tests, and functions that send events to it.

use std::time::Duration;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::buffer::{Buffer, Cell};

use super::once::Keys;
use super::state::{App, Effect, Event, Setup};
use super::update::update;
use crate::model::Snapshot;
use crate::model::row::CurrentUser;
use crate::rules::{Engine, RuleSet};

/// Creates a colour screen for this machine, with a sampling interval of two seconds and without samples.
pub fn screen(columns: u16, rows: u16) -> App {
    screen_of(None, 2, (columns, rows))
}

/// Creates a screen for the recording `replay`, or for this machine, with a sampling interval of `seconds`.
pub fn screen_of(replay: Option<&str>, seconds: u64, (columns, rows): (u16, u16)) -> App {
    let setup = Setup {
        host: None,
        replay: replay.map(str::to_owned),
        version: "0.1.0",
        me: CurrentUser::default(),
        has_color: true,
        ascii: false,
    };
    let engine = Engine::new(RuleSet::default());
    let interval = Duration::from_secs(seconds);
    App::new(setup, engine, interval, columns, rows)
}

pub fn press(app: &mut App, key: impl Into<KeyEvent>) -> Option<Effect> {
    update(app, Event::Key(key.into()))
}

pub fn ctrl(letter: char) -> KeyEvent {
    KeyEvent::new(KeyCode::Char(letter), KeyModifiers::CONTROL)
}

/// Presses the keys in `line` and returns the effect of the last key. Every earlier key must have an effect.
pub fn keys(app: &mut App, line: &str) -> Option<Effect> {
    let mut effect = None;
    for (at, key) in events(line).enumerate() {
        assert!(at == 0 || effect.is_some(), "{line:?} before its key {at}");
        effect = press(app, key);
    }
    effect
}

pub fn events(line: &str) -> impl Iterator<Item = KeyEvent> {
    let Keys(keys) = line.parse().unwrap();
    keys.into_iter().map(|(_, key)| key)
}

pub fn show_sample(app: &mut App, seconds: u64, snapshot: Snapshot) -> Option<Effect> {
    let event = Event::Snapshot { now: Duration::from_secs(seconds), snapshot: Box::new(snapshot) };
    update(app, event)
}

pub fn tick(app: &mut App, milliseconds: u64) -> Option<Effect> {
    let now = Duration::from_millis(milliseconds);
    update(app, Event::Tick { now })
}

pub fn selected_pid(app: &App) -> Option<u32> {
    app.subject().map(|subject| subject.row.key.identity.pid)
}

pub fn filter(app: &App) -> String {
    app.table.choice.filter.as_ref().map_or_else(String::new, ToString::to_string)
}

pub fn note(app: &App) -> &str {
    app.note.as_deref().unwrap_or_default()
}

pub fn lines(buffer: &Buffer) -> Vec<String> {
    let lines = buffer.content.chunks(usize::from(buffer.area.width).max(1));
    lines.map(|line| line.iter().map(Cell::symbol).collect()).collect()
}
