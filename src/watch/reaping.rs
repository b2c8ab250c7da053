//! Ending processes: the plan as it is shown, a yes to it, and how far it is.
//!
//! Pure: what has to be done is asked of the [`hand`](super::hand).

use crossterm::event::KeyEvent;

use super::app::{App, Effect};
use super::hand::News;
use super::keys::Action;

/// What is to be ended, or being ended.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Reaping {}

/// Shows how the marked processes, or the selected one, would be ended.
pub fn open_selected(_app: &mut App) -> Option<Effect> {
    None
}

/// Shows how all that the rules found would be ended.
pub fn open_findings(_app: &mut App) -> Option<Effect> {
    None
}

/// Takes a key while the plan is open.
pub fn on_key(_app: &mut App, _key: &KeyEvent, _action: Option<Action>) -> Option<Effect> {
    None
}

/// Takes in what came of what was asked.
pub fn hear(_app: &mut App, _news: News) -> Option<Effect> {
    None
}
