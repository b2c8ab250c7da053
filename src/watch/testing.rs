//! A screen for tests, and what happens to it: how all tests of the screen begin.

use std::time::Duration;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::state::{App, Effect, Event, Setup};
use super::update::update;
use crate::model::Snapshot;
use crate::model::row::Me;
use crate::rules::{Engine, RuleSet};

/// A screen of this machine in sixteen colours that waits for its first sample; one is due every two seconds.
pub fn screen(columns: u16, rows: u16) -> App {
    screen_of(None, 2, (columns, rows))
}

/// The same of the recording of this name, with a sample every so many seconds.
pub fn screen_of(replay: Option<&str>, seconds: u64, (columns, rows): (u16, u16)) -> App {
    let setup = Setup {
        replay: replay.map(str::to_owned),
        version: "0.1.0",
        me: Me::default(),
        has_color: true,
        ascii: false,
    };
    let engine = Engine::new(RuleSet::default());
    let interval = Duration::from_secs(seconds);
    App::new(setup, engine, interval, columns, rows)
}

/// Presses a key.
pub fn press(app: &mut App, code: KeyCode) -> Option<Effect> {
    update(app, Event::Key(KeyEvent::new(code, KeyModifiers::NONE)))
}

/// A sample comes so many seconds after the start of the screen.
pub fn see(app: &mut App, seconds: u64, snapshot: Snapshot) -> Option<Effect> {
    let event = Event::Snapshot {
        now: Duration::from_secs(seconds),
        snapshot: Box::new(snapshot),
        is_passing: false,
    };
    update(app, event)
}

/// It is so many milliseconds after the start of the screen.
pub fn tick(app: &mut App, milliseconds: u64) -> Option<Effect> {
    let now = Duration::from_millis(milliseconds);
    update(app, Event::Tick { now })
}
