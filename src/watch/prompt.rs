//! What is typed at the bottom of the screen: a filter, or a time to go to.

use crossterm::event::KeyEvent;

use super::app::{App, Effect, Mode};

/// A line that is being typed, and what for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Prompt {
    /// What for.
    pub purpose: Purpose,
    /// What was typed.
    pub text: String,
    /// The byte before which the next character goes.
    pub cursor: usize,
    /// Why it makes no sense as it is.
    pub error: Option<String>,
}

/// What is typed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// A filter, which holds while it is typed.
    Filter,
    /// A time to go to.
    Seek,
}

/// Has a filter typed.
pub fn open_filter(_app: &mut App) {}

/// Has a time typed.
pub fn open_seek(_app: &mut App) {}

/// Takes a key into what is typed.
pub fn on_key(app: &mut App, _key: &KeyEvent) -> Option<Effect> {
    app.mode = Mode::Main;
    Some(Effect::Draw)
}
