//! What a cell of the table says of a row, and how it looks.

use std::borrow::Cow;

use ratatui::style::Style;

use crate::model::snapshot::Process;
use crate::units::{Bytes, Span};
use crate::watch::column::Column;
use crate::watch::command;
use crate::watch::picture::{Subject, badge};
use crate::watch::text::{NOT_AVAILABLE, UNKNOWN, clean};
use crate::watch::theme::Look;

/// What a cell says, and how it looks.
pub(super) fn cell<'a>(
    column: Column,
    width: u16,
    subject: &Subject<'a>,
    look: Look,
) -> (Cow<'a, str>, Style) {
    let row = subject.row;
    let entry = &row.entry;
    let process = subject.process.ok();
    let stale = subject.gpu.is_some_and(|gpu| gpu.stale_seconds.is_some());
    let never_told = subject
        .gpu
        .is_some_and(|gpu| gpu.process_memory_unavailable.is_some());
    let plain = |text: Option<String>| match text {
        Some(text) => (Cow::Owned(text), look.plain()),
        None => (Cow::Borrowed(UNKNOWN), look.faint()),
    };
    let span = |seconds: Option<f64>| seconds.map(|it| Span::from_seconds(it).to_string());
    match column {
        Column::Gpu => plain(subject.place_on_gpus()),
        Column::Pid => plain(Some(
            process.map_or_else(|| row.key.identity.pid.to_string(), Process::pid_text),
        )),
        Column::User => match process.and_then(|it| it.user.as_deref()) {
            Some(user) => (clean(user, width), look.plain()),
            None => match subject.ended.and_then(|it| it.user.as_deref()) {
                Some(user) => (clean(user, width), look.plain()),
                None => plain(process.and_then(|it| it.uid).map(|uid| uid.to_string())),
            },
        },
        Column::Memory if never_told && row.is_listed && entry.used_bytes.is_none() => {
            (Cow::Borrowed(NOT_AVAILABLE), look.faint())
        }
        Column::Memory => {
            // The last known value of a GPU that does not answer.
            let mark = if stale { "~" } else { "" };
            plain(
                entry
                    .used_bytes
                    .map(|bytes| format!("{mark}{}", Bytes(bytes))),
            )
        }
        Column::MemoryPercent => plain(subject.memory_percent().map(|it| format!("{it:.1}"))),
        // It is drawn, not written.
        Column::History => plain(None),
        Column::SmPercent => plain(entry.sm_percent.map(|it| it.to_string())),
        Column::CpuPercent => plain(process.and_then(|it| it.cpu_percent).map(|percent| {
            if percent < 1000.0 {
                format!("{percent:.1}")
            } else {
                format!("{percent:.0}")
            }
        })),
        Column::HostMemory => plain(
            process
                .and_then(|it| it.rss_bytes)
                .map(|bytes| Bytes(bytes).to_string()),
        ),
        Column::State => match process.and_then(|it| it.state) {
            Some(state) => state_word(state, look),
            None => plain(None),
        },
        Column::Idle => plain(span(row.idle_seconds)),
        Column::Runtime => plain(span(row.runtime_seconds)),
        Column::Framework => plain(
            process
                .and_then(Process::framework_text)
                .map(|text| clean(&text, width).into_owned()),
        ),
        Column::Place => plain(
            process
                .and_then(Process::place)
                .map(|text| clean(&text, width).into_owned()),
        ),
        Column::Finding => match subject.finding {
            Some(finding) => (Cow::Owned(badge(finding)), look.badge(finding.severity)),
            None => (Cow::Borrowed(""), look.plain()),
        },
        Column::Command => {
            let style = match subject.process {
                Ok(_) => look.plain(),
                Err(_) => look.caution(),
            };
            (Cow::Owned(command::of_row(subject, width)), style)
        }
    }
}

/// The command, behind the state of a process that has halted: where the column of states is folded
/// away, a zombie must not look alive.
pub(super) fn command_with_state<'a>(
    width: u16,
    subject: &Subject<'a>,
    look: Look,
) -> (Cow<'a, str>, Style) {
    let (command, style) = cell(Column::Command, width, subject, look);
    let state = subject.process.ok().and_then(|process| process.state);
    match state.filter(|state| is_halted(*state)) {
        Some(state) => {
            let (word, style) = state_word(state, look);
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

/// The kernel's letter as its own word for it.
pub fn state_word(state: char, look: Look) -> (Cow<'static, str>, Style) {
    let (word, style) = match state {
        'R' => ("run", look.plain()),
        'S' => ("sleep", look.faint()),
        'D' => ("disk", look.caution()),
        'T' => ("stop", look.caution()),
        't' => ("traced", look.caution()),
        'Z' => ("zombie", look.alarm()),
        'X' => ("dead", look.alarm()),
        'I' => ("kernel", look.faint()),
        other => {
            let text = clean(other.encode_utf8(&mut [0; 4]), 6).into_owned();
            return (Cow::Owned(text), look.plain());
        }
    };
    (Cow::Borrowed(word), style)
}
