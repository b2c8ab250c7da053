//! The list of columns: opened, moved in, switched, kept or left. The table shows what is chosen at once.
//!
//! Where it is is in `layout/column_list.rs`; it is drawn in `view/columns.rs`.

use crate::watch::column::Columns;
use crate::watch::keys::KeyAction;
use crate::watch::state::column_list::ColumnList;
use crate::watch::state::{App, Effect, Mode};

/// Puts the list beside the table.
pub fn open(app: &mut App) -> Option<Effect> {
    if app.layout().is_none() {
        return app.refuse("the screen is too small for a table");
    }
    app.mode = Mode::Columns(ColumnList::new(&app.table.columns));
    Some(Effect::Draw)
}

/// Does what a key asks for while the list is open.
pub fn on_key(app: &mut App, action: Option<KeyAction>) -> Option<Effect> {
    let Mode::Columns(list) = &mut app.mode else {
        return None;
    };
    match action? {
        KeyAction::Down => list.go_to(list.cursor + 1),
        KeyAction::Up => list.go_to(list.cursor.saturating_sub(1)),
        KeyAction::PageUp | KeyAction::First => list.go_to(0),
        KeyAction::PageDown | KeyAction::Last => list.go_to(usize::MAX),
        KeyAction::SwitchColumn => {
            list.switch();
            if list.chosen().is_none() {
                list.switch();
                return app.refuse("the table needs a column");
            }
        }
        KeyAction::ColumnLeft => list.shift(-1),
        KeyAction::ColumnRight => list.shift(1),
        KeyAction::DefaultColumns => list.entries = ColumnList::new(&Columns::default()).entries,
        KeyAction::Open => {
            app.mode = Mode::Main;
            return Some(Effect::Draw);
        }
        KeyAction::Back | KeyAction::Quit => {
            app.table.columns = list.before.clone();
            app.mode = Mode::Main;
            return Some(Effect::Draw);
        }
        _ => return None,
    }
    if let Some(columns) = list.chosen() {
        app.table.columns = columns;
    }
    Some(Effect::Draw)
}

/// Switches the entry on this line of the list.
pub fn click(app: &mut App, entry: usize) -> Option<Effect> {
    let Mode::Columns(list) = &mut app.mode else {
        return None;
    };
    list.go_to(entry);
    on_key(app, Some(KeyAction::SwitchColumn))
}
