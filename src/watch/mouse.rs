//! The mouse: what lies under it, and what a button or the wheel does there.

use crossterm::event::MouseEvent;

use super::app::{App, Effect};

/// Takes in what the mouse did.
pub fn on_mouse(_app: &mut App, _event: MouseEvent) -> Option<Effect> {
    None
}
