//! What a cell of the table says of a row, and how it looks.

use std::borrow::Cow;

use ratatui::style::Style;

use crate::model::field::state_name;
use crate::watch::column::Column;
use crate::watch::command;
use crate::watch::text::{NOT_AVAILABLE, UNKNOWN, clean};
use crate::watch::theme::Styles;
use crate::watch::view_model::{Subject, badge};

/// What a cell says, and how it looks.
pub(super) fn cell<'a>(
    column: Column,
    width: u16,
    subject: &Subject<'a>,
    styles: Styles,
) -> (Cow<'a, str>, Style) {
    let stale = subject.gpu.is_some_and(|gpu| gpu.stale_seconds.is_some());
    let never_reported = subject.gpu.is_some_and(|gpu| gpu.process_memory_unavailable.is_some());
    let plain = |text: Option<String>| match text {
        Some(text) => (cleaned(text, width), styles.plain()),
        None => (Cow::Borrowed(UNKNOWN), styles.faint()),
    };
    match column {
        Column::Memory
            if never_reported && subject.is_listed() && subject.used_bytes().is_none() =>
        {
            (Cow::Borrowed(NOT_AVAILABLE), styles.faint())
        }
        Column::Memory => {
            // The last known value of a GPU that does not answer.
            let mark = if stale { "~" } else { "" };
            plain(column.text(subject).map(|text| format!("{mark}{text}")))
        }
        Column::State => match subject.process.ok().and_then(|it| it.state) {
            Some(state) => state_word(state, styles),
            None => plain(None),
        },
        Column::Finding => match subject.finding {
            Some(finding) => (Cow::Owned(badge(finding)), styles.badge(finding.severity)),
            None => match subject.suspect {
                Some(suspect) => (Cow::Owned(suspect.mark.to_string()), styles.suspected()),
                None => (Cow::Borrowed(""), styles.plain()),
            },
        },
        Column::Command => {
            let style = match subject.process {
                Ok(_) => styles.plain(),
                Err(_) => styles.caution(),
            };
            (Cow::Owned(command::of_row(subject, width)), style)
        }
        column => plain(column.text(subject)),
    }
}

/// Text that is made harmless: mostly as it is, and not copied.
fn cleaned<'a>(text: String, width: u16) -> Cow<'a, str> {
    Cow::Owned(match clean(&text, width) {
        Cow::Borrowed(whole) if whole.len() == text.len() => text,
        other => other.into_owned(),
    })
}

/// The command, behind the state of a process that has halted: where the column of states is folded
/// away, a zombie must not look alive.
pub(super) fn command_with_state<'a>(
    width: u16,
    subject: &Subject<'a>,
    styles: Styles,
) -> (Cow<'a, str>, Style) {
    let (command, style) = cell(Column::Command, width, subject, styles);
    let state = subject.process.ok().and_then(|process| process.state);
    match state.filter(|state| is_halted(*state)) {
        Some(state) => {
            let (word, style) = state_word(state, styles);
            (Cow::Owned(format!("{word}: {command}")), style)
        }
        None => (command, style),
    }
}

/// Whether a process in this state stays so until somebody does something: stopped, traced, defunct.
/// Not `D`, which comes and goes with every read from a disk, and would flicker.
pub fn is_halted(state: char) -> bool {
    matches!(state, 'T' | 't' | 'Z' | 'X')
}

/// The kernel's letter as a word.
pub fn state_word(state: char, styles: Styles) -> (Cow<'static, str>, Style) {
    let style = match state {
        'S' | 'I' => styles.faint(),
        'D' | 'T' | 't' => styles.caution(),
        'Z' | 'X' => styles.alarm(),
        _ => styles.plain(),
    };
    match state_name(state) {
        Some(word) => (Cow::Borrowed(word), style),
        None => (Cow::Owned(clean(state.encode_utf8(&mut [0; 4]), 6).into_owned()), style),
    }
}
