//! The findings as a list with a selection, and the page that explains one of them or a process.

use super::app::{App, Effect};
use super::keys::Action;

/// A page of explanation.
#[derive(Clone, PartialEq, Debug)]
pub struct Page {
    /// Lines that are scrolled away.
    pub offset: usize,
}

/// Explains what is selected.
pub fn open(_app: &mut App) -> Option<Effect> {
    None
}

/// Moves in the findings, where that is what the action does there.
pub fn act_on_findings(_app: &mut App, _action: Action) -> Option<Effect> {
    None
}

/// Scrolls the page, or leaves it.
pub fn on_key(_app: &mut App, _action: Option<Action>) -> Option<Effect> {
    None
}
