//! The findings as a list, the worst first; then what could not be decided or read.
//!
//! A line each, with a mark on the selected one while the keys move here. Which of them are seen, and where,
//! is in `layout/findings.rs`.

use std::collections::HashSet;

use ratatui::style::Style;

use super::line_writer::LineWriter;
use super::lines::PanelWriter;
use crate::model::finding::{Finding, Severity};
use crate::report::check::counted;
use crate::report::escape::escape;
use crate::units::Bytes;
use crate::watch::layout::Layout;
use crate::watch::layout::findings::{NoteKind, choose_visible, has_title, notes, visible};
use crate::watch::state::next_commands::NextCommands;
use crate::watch::state::{App, Focus};
use crate::watch::text::{MESSAGE_CHARS, UNKNOWN, clean, columns};
use crate::watch::theme::Styles;
use crate::watch::view_model::{Screenful, badge};

/// From this width on, the severity has a column of its own.
const WIDEST: u16 = 100;
/// A command is left out where what is found would have fewer columns than this beside it.
const LEAST_TEXT: u16 = 24;
/// `findings 3-7 of 12: 2 critical, 9 warnings, 1 info`, or that there are none so far; where a GPU does not
/// answer, nothing is known of it.
pub fn title(app: &App, layout: &Layout) -> String {
    let Some(screenful) = &app.screenful else {
        return String::new();
    };
    let findings = &screenful.findings;
    let counts: Vec<String> = [Severity::Critical, Severity::Warning, Severity::Info]
        .into_iter()
        .filter_map(|severity| {
            let count = findings.iter().filter(|it| it.severity == severity).count();
            (count > 0).then(|| counted(count, severity))
        })
        .collect();
    let place = match visible(app, layout) {
        Some(visible) if visible.shown < findings.len() => format!(
            " {}-{} of {}",
            visible.first + 1,
            visible.first + visible.shown,
            findings.len()
        ),
        _ => String::new(),
    };
    match (counts.is_empty(), screenful.undecided.is_empty()) {
        (true, true) => "findings: none".to_owned(),
        (true, false) => match unread(screenful) {
            Some(unread) => format!("findings: none known, {unread}"),
            None => match screenful.suspects.len() {
                0 => "findings: none so far".to_owned(),
                count => format!("findings: none so far, {count} suspected"),
            },
        },
        (false, _) => format!("findings{place}: {}", counts.join(", ")),
    }
}

/// The GPUs whose processes are not known; `None` where they are of all.
fn unread(screenful: &Screenful) -> Option<String> {
    let mut unread = screenful.snapshot.gpus.iter().filter(|gpu| gpu.is_unread());
    let first = unread.next()?;
    Some(match unread.count() {
        0 if screenful.snapshot.gpus.len() == 1 => "the GPU is not read".to_owned(),
        0 => format!("GPU {} is not read", first.index),
        others => format!("{} GPUs are not read", others + 1),
    })
}

/// Draws the list, then the notes.
pub fn draw(app: &App, layout: &Layout, lines: &mut PanelWriter<'_>) {
    let Some(screenful) = &app.screenful else {
        return;
    };
    let styles = lines.styles;
    let form = Some(layout.gpu_form);
    let has_notes = notes(screenful, form).next().is_some();
    let visible = choose_visible(app, screenful, layout, lines.left(), has_notes);
    let seen = visible.first..visible.first + visible.shown;
    let commands = &app.next_commands;
    let columns = FindingColumns::new(&screenful.findings[seen], commands, lines.area.width);
    let selected = match app.focus {
        Focus::Findings => app.selected_finding().map(|(at, _)| at),
        Focus::Table => None,
    };
    let left_out = screenful.findings.len() - visible.shown;
    let seen = screenful.findings.iter().enumerate();
    for (at, finding) in seen.skip(visible.first).take(visible.shown) {
        let is_last = at + 1 == visible.first + visible.shown;
        let tail = if is_last && left_out > 0 && !has_title(layout) {
            format!("+{left_out}")
        } else {
            String::new()
        };
        let is_selected = selected == Some(at);
        // One command for several stands at the last of them.
        let command = commands.first(finding).filter(|command| {
            let next = screenful.findings.get(at + 1).filter(|_| !is_last);
            next.and_then(|next| commands.first(next)) != Some(command)
        });
        let command = clean(command.unwrap_or_default(), MESSAGE_CHARS);
        if visible.lines_each > 1 {
            columns.line(finding, is_selected, &tail, "", lines);
            let message = clean(&finding.message, MESSAGE_CHARS);
            let mut writer = lines.next_line();
            columns.end(writer.skip(2), &message, &command, styles);
        } else {
            columns.line(finding, is_selected, &tail, &command, lines);
        }
    }
    let room = usize::from(lines.left());
    // There may be as many suspects as processes.
    let mut notes: Vec<(NoteKind, String)> = notes(screenful, form).take(room + 1).collect();
    if notes.len() > room && screenful.undecided.len() > 1 {
        // The names of all of them say more than the reasons of a few.
        notes.retain(|(kind, _)| *kind != NoteKind::Undecided);
        notes.push((NoteKind::Undecided, undecided_rules(screenful)));
    }
    for (kind, note) in notes.iter().take(room) {
        lines.write(note, 1, note_style(*kind, styles));
    }
}

/// Only what is missing needs somebody; the rest goes on by itself.
fn note_style(kind: NoteKind, styles: Styles) -> Style {
    match kind {
        NoteKind::Missing => styles.caution(),
        NoteKind::Suspect => styles.suspected(),
        NoteKind::Undecided => styles.faint(),
    }
}

/// `not decided yet: idle, leak`.
fn undecided_rules(screenful: &Screenful) -> String {
    let mut rules: Vec<&str> = screenful.undecided.iter().map(|it| &*it.rule).collect();
    let mut seen = HashSet::new();
    rules.retain(|rule| seen.insert(*rule));
    format!("not decided yet: {}", clean(&rules.join(", "), 400))
}

/// How wide the columns are, as far as there are columns.
struct FindingColumns {
    width: u16,
    badge: u16,
    memory: u16,
    who: u16,
    user: u16,
    command: u16,
}

impl FindingColumns {
    fn new(findings: &[Finding], commands: &NextCommands, width: u16) -> Self {
        let typed = findings.iter().filter_map(|it| commands.first(it));
        let typed = typed.map(|command| columns(&clean(command, MESSAGE_CHARS)));
        // A part of a command is none.
        let typed = typed.filter(|command| *command <= width / 3);
        let widest = |text: fn(&Finding) -> String| {
            let texts = findings.iter().map(|it| columns(&text(it)));
            texts.max().unwrap_or(0)
        };
        Self {
            width,
            badge: widest(badge).min(22),
            memory: widest(memory).min(12),
            who: widest(who).min(12),
            user: widest(user).min(12),
            command: typed.max().unwrap_or(0),
        }
    }

    /// Draws what is found and, at the end of the line, what to type, where there is room for both.
    fn end(&self, writer: &mut LineWriter<'_>, text: &str, command: &str, styles: Styles) {
        let room = writer.room();
        if self.command == 0 || self.command + LEAST_TEXT > room {
            writer.left(text, room, styles.plain());
            return;
        }
        let command = Some(command).filter(|command| columns(command) <= self.command);
        writer.left(text, room - self.command - 1, styles.plain()).skip(1).left(
            command.unwrap_or_default(),
            self.command,
            styles.faint(),
        );
    }

    /// Draws a finding; `tail` says how many more there are, where nothing else does.
    fn line(
        &self,
        finding: &Finding,
        is_selected: bool,
        tail: &str,
        command: &str,
        lines: &mut PanelWriter<'_>,
    ) {
        let styles = lines.styles;
        let mut writer = lines.next_line();
        writer.left(if is_selected { "▸" } else { "" }, 1, styles.plain());
        let style = styles.badge(finding.severity);
        if self.width >= WIDEST {
            let severity = finding.severity.to_string();
            writer.left(&severity, 8, severity_style(styles, finding)).skip(1);
        }
        writer.left(&badge(finding), self.badge, style).skip(1);
        for (text, width) in [(memory(finding), self.memory), (who(finding), self.who)] {
            writer.right(&text, width, styles.plain()).skip(1);
        }
        if self.user > 0 {
            writer.left(&user(finding), self.user, styles.plain()).skip(1);
        }
        let text = escape(finding.evidence.words()).into_owned();
        let tail_width = if tail.is_empty() { 0 } else { columns(tail) + 1 };
        let room = writer.room().saturating_sub(tail_width);
        let text = clean(&text, MESSAGE_CHARS);
        if tail.is_empty() {
            self.end(&mut writer, &text, command, styles);
        } else {
            writer.left(&text, room, styles.plain()).at_end(tail, styles.strong());
        }
        if is_selected {
            lines.select();
        }
    }
}

fn severity_style(styles: Styles, finding: &Finding) -> Style {
    match finding.severity {
        Severity::Critical => styles.strong(),
        Severity::Warning | Severity::Info => styles.plain(),
    }
}

fn memory(finding: &Finding) -> String {
    let bytes = finding.memory_bytes.map(|bytes| Bytes(bytes).to_string());
    bytes.unwrap_or_else(|| UNKNOWN.to_owned())
}

/// The pid, or the GPUs where it is about no process.
fn who(finding: &Finding) -> String {
    match (&finding.process, &finding.gpus[..]) {
        (Some(process), _) => process.pid.to_string(),
        (None, []) => String::new(),
        (None, [only]) => format!("GPU {}", only.index),
        (None, [first, rest @ ..]) => format!("GPU {} +{}", first.index, rest.len()),
    }
}

fn user(finding: &Finding) -> String {
    let process = finding.process.as_ref();
    let user = process.and_then(|process| process.user.as_deref());
    user.map_or_else(String::new, |user| clean(user, 12).into_owned())
}
