//! The keys of what is open over the table: a page, a plan, the list of columns.

use crossterm::event::KeyCode;

use super::bindings::{bind, char, plain};
use super::{Context, Group, Key, KeyAction};

/// On a page.
pub(super) const PAGE: Group = Group {
    context: Context::Page,
    title: "On a page of explanation",
    bindings: &[
        bind(
            &[char('j'), plain(KeyCode::Down), Key::Ctrl('n')],
            "j Down",
            "a line down",
            KeyAction::Down,
        )
        .hinted("j k", "Scroll", 3, 3),
        bind(&[char('k'), plain(KeyCode::Up), Key::Ctrl('p')], "k Up", "a line up", KeyAction::Up),
        bind(
            &[char(' '), plain(KeyCode::PageDown), Key::Ctrl('f'), Key::Ctrl('d')],
            "Space PgDn",
            "a screenful down",
            KeyAction::PageDown,
        ),
        bind(
            &[plain(KeyCode::PageUp), Key::Ctrl('b'), Key::Ctrl('u')],
            "PgUp",
            "a screenful up",
            KeyAction::PageUp,
        ),
        bind(&[plain(KeyCode::Home), char('g')], "Home g", "the beginning", KeyAction::First),
        bind(&[plain(KeyCode::End), char('G')], "End G", "the end", KeyAction::Last),
        bind(
            &[char('x'), char('K'), plain(KeyCode::F(9)), plain(KeyCode::Delete)],
            "x K F9 Del",
            "show the plan to kill the process",
            KeyAction::Reap,
        )
        .hinted("F9", "Kill", 2, 2),
        bind(
            &[char('R')],
            "R",
            "show the plan to have it release memory and live on",
            KeyAction::Release,
        ),
        bind(&[char('p'), char('Z')], "p Z", "pause; again: resume", KeyAction::Pause),
        bind(&[char('?'), char('h'), plain(KeyCode::F(1))], "? h F1", "this help", KeyAction::Help)
            .hinted("F1", "Help", 1, 1),
        bind(
            &[plain(KeyCode::Esc), plain(KeyCode::Enter), char('q')],
            "Esc Enter q",
            "back",
            KeyAction::Back,
        )
        .hinted("Esc", "Back", 4, 0),
    ],
};

/// On a plan.
pub(super) const PLAN: Group = Group {
    context: Context::Plan,
    title: "On a plan",
    bindings: &[
        bind(&[char('y')], "y", "yes: carry out the plan after a few seconds", KeyAction::Confirm),
        bind(&[char('u')], "u", "undo, until the first signal; then stop", KeyAction::Undo),
        bind(&[plain(KeyCode::Enter)], "Enter", "press the button that is marked", KeyAction::Open),
        bind(
            &[plain(KeyCode::Left), plain(KeyCode::Right)],
            "Left Right",
            "mark the other button",
            KeyAction::OtherButton,
        ),
        bind(
            &[char('s'), plain(KeyCode::F(9))],
            "s F9",
            "choose another signal",
            KeyAction::ChooseSignal,
        ),
        bind(
            &[plain(KeyCode::Tab), plain(KeyCode::BackTab)],
            "Tab",
            "the selected, their families, all findings",
            KeyAction::SwitchFocus,
        ),
        bind(&[char('a')], "a", "processes of other users, too", KeyAction::EveryUser),
        bind(&[char('d')], "d", "what a scheduler or service owns, too", KeyAction::Direct),
        bind(&[char('r'), plain(KeyCode::F(5))], "r F5", "refresh the plan", KeyAction::PlanAgain),
        bind(
            &[char('j'), plain(KeyCode::Down), Key::Ctrl('n')],
            "j Down",
            "a line down",
            KeyAction::Down,
        ),
        bind(&[char('k'), plain(KeyCode::Up), Key::Ctrl('p')], "k Up", "a line up", KeyAction::Up),
        bind(&[char('?'), char('h'), plain(KeyCode::F(1))], "? h F1", "this help", KeyAction::Help)
            .hinted("F1", "Help", 1, 1),
        bind(
            &[plain(KeyCode::Esc), char('n'), char('q'), char('x'), plain(KeyCode::F(10))],
            "Esc n q x",
            "no; leave the plan",
            KeyAction::Back,
        )
        .hinted("Esc", "Leave", 2, 0),
    ],
};

/// In the list of columns.
pub(super) const COLUMNS: Group = Group {
    context: Context::Columns,
    title: "In the list of columns (F2)",
    bindings: &[
        bind(
            &[char('j'), plain(KeyCode::Down), Key::Ctrl('n')],
            "j Down",
            "the next column",
            KeyAction::Down,
        ),
        bind(
            &[char('k'), plain(KeyCode::Up), Key::Ctrl('p')],
            "k Up",
            "the one before",
            KeyAction::Up,
        ),
        bind(&[plain(KeyCode::Home), char('g')], "Home g", "the first", KeyAction::First),
        bind(&[plain(KeyCode::End), char('G')], "End G", "the last", KeyAction::Last),
        bind(&[char(' ')], "Space", "show the column, or hide it", KeyAction::SwitchColumn)
            .hinted("Space", "Switch", 1, 2),
        bind(
            &[plain(KeyCode::Left), char('<'), plain(KeyCode::F(7))],
            "Left < F7",
            "move it to the left in the table",
            KeyAction::ColumnLeft,
        )
        .hinted("Left Right", "Move", 2, 3),
        bind(
            &[plain(KeyCode::Right), char('>'), plain(KeyCode::F(8))],
            "Right > F8",
            "move it to the right",
            KeyAction::ColumnRight,
        ),
        bind(&[char('r')], "r", "all columns, in their usual order", KeyAction::DefaultColumns)
            .hinted("r", "Reset", 3, 4),
        bind(
            &[plain(KeyCode::Enter), plain(KeyCode::F(2))],
            "Enter F2",
            "keep them, for the next time too",
            KeyAction::Open,
        )
        .hinted("Enter", "Keep", 4, 0),
        bind(
            &[plain(KeyCode::Esc), char('q'), plain(KeyCode::F(10))],
            "Esc q F10",
            "leave them as they were",
            KeyAction::Back,
        )
        .hinted("Esc", "Cancel", 5, 1),
    ],
};
