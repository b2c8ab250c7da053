//! The panel with alarms, the findings (worst first), read errors and unavailable values, suspects, and undecided
//! rules, in this order.

use std::collections::HashSet;

use ratatui::style::Style;

use super::layout::{Form, Layout};
use super::state::findings::unavailable;
use super::state::{App, Focus};
use super::text::{MESSAGE_CHARS, UNKNOWN, clean, columns, wrap};
use super::theme::Styles;
use super::view::line_writer::LineWriter;
use super::view::lines::PanelWriter;
use super::view_model::{Screenful, badge};
use crate::model::finding::{Finding, Severity};
use crate::report::check::counted;
use crate::report::escape::escape;
use crate::units::Bytes;
use crate::watch::state::findings::NextCommands;

/// Minimum width of a panel that shows messages on a second line.
const WIDE: u16 = 72;
/// Minimum height of a panel with a title.
const TITLED: u16 = 4;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VisibleFindings {
    pub first: usize,
    pub shown: usize,
    pub lines_each: u16,
    pub top: u16,
}

/// Returns whether the panel shows the findings instead of the selected process.
pub fn are_shown(app: &App) -> bool {
    app.focus == Focus::Findings || !app.table.is_chosen()
}

/// Returns the visible part of the list, or `None` if the panel shows a process.
pub fn visible(app: &App, layout: &Layout) -> Option<VisibleFindings> {
    let area = layout.status;
    if !are_shown(app) {
        return None;
    }
    let screenful = app.screenful.as_ref()?;
    let mut used = u16::from(area.height >= TITLED);
    for (text, limit) in app.alarms() {
        let room = area.height.saturating_sub(used).min(limit);
        used += wrap(&text, area.width, usize::from(room)).len() as u16;
    }
    // Keep a line for notes if more than one line is left.
    let room = usize::from(area.height.saturating_sub(used));
    let has_notes = notes(screenful, layout.gpu_form).next().is_some();
    let kept = usize::from(has_notes && room > 1);
    let count = screenful.findings.len();
    let twice = area.width >= WIDE && count * 2 + kept <= room;
    let shown = count.min(room - kept);
    let selected = app.selected_finding().filter(|_| app.focus == Focus::Findings);
    let first = selected.map_or(app.findings.offset, |(at, _)| {
        app.findings.offset.clamp((at + 1).saturating_sub(shown), at)
    });
    Some(VisibleFindings {
        first: first.min(count - shown),
        shown,
        lines_each: if twice { 2 } else { 1 },
        top: area.y + used,
    })
}

pub fn at_row(app: &App, layout: &Layout, row: u16) -> Option<usize> {
    let visible = visible(app, layout)?;
    let line = row.checked_sub(visible.top)?;
    let at = usize::from(line / visible.lines_each);
    (at < visible.shown).then_some(visible.first + at)
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum NoteKind {
    Missing,
    Suspect,
    Undecided,
}

fn notes(screenful: &Screenful, form: Form) -> impl Iterator<Item = (NoteKind, String)> {
    let errors = &screenful.snapshot.errors;
    let unread = errors.first().map(|error| {
        let call = clean(&error.call, 200);
        // Few users know the NVML call, so its name comes last, where a long line is truncated.
        let source =
            error.gpu.map_or_else(|| call.clone().into_owned(), |index| format!("GPU {index}"));
        let call = error.gpu.map_or_else(String::new, |_| format!(" ({call})"));
        let more = match errors.len() {
            1 => String::new(),
            count => format!(" (and {} more)", count - 1),
        };
        format!("could not read {source}: {}{call}{more}", clean(&error.error, 400))
    });
    let undecided = screenful.undecided.iter().map(|undecided| {
        format!(
            "not decided yet: {}: {}",
            clean(&undecided.rule, 100),
            clean(&undecided.reason, 400)
        )
    });
    let unavailable = unavailable(&screenful.snapshot, form == Form::Lines);
    let missing = unread.into_iter().chain(unavailable);
    let suspects = screenful.suspects.iter().map(|suspect| {
        let message = clean(&suspect.message, MESSAGE_CHARS);
        format!("{}: {message}; {}", suspect.mark, suspect.missing)
    });
    let missing = missing.map(|text| (NoteKind::Missing, text));
    let suspects = suspects.map(|text| (NoteKind::Suspect, text));
    let undecided = undecided.map(|text| (NoteKind::Undecided, text));
    missing.chain(suspects).chain(undecided)
}

/// Minimum width of a finding's text. The command is omitted if the text would be narrower.
const TEXT_MIN: u16 = 24;
/// Formats the panel's title, such as `findings 3-7 of 12: 2 critical, 9 warnings, 1 info`.
pub fn title(app: &App, layout: &Layout) -> String {
    let Some(screenful) = &app.screenful else {
        return String::new();
    };
    let findings = &screenful.findings;
    let counts: Vec<String> = [Severity::Critical, Severity::Warning, Severity::Info]
        .into_iter()
        .filter_map(|severity| {
            let count = findings.iter().filter(|finding| finding.severity == severity).count();
            (count > 0).then(|| counted(count, severity))
        })
        .collect();
    let range = match visible(app, layout) {
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
        (false, _) => format!("findings{range}: {}", counts.join(", ")),
    }
}

fn unread(screenful: &Screenful) -> Option<String> {
    let mut unread = screenful.snapshot.gpus.iter().filter(|gpu| gpu.is_unread());
    let first = unread.next()?;
    Some(match unread.count() {
        0 if screenful.snapshot.gpus.len() == 1 => "the GPU could not be read".to_owned(),
        0 => format!("GPU {} could not be read", first.index),
        others => format!("{} GPUs could not be read", others + 1),
    })
}

pub fn draw(app: &App, layout: &Layout, lines: &mut PanelWriter<'_>) {
    let Some(screenful) = &app.screenful else {
        return;
    };
    let styles = lines.styles;
    let Some(visible) = visible(app, layout) else {
        return;
    };
    let range = visible.first..visible.first + visible.shown;
    let commands = &app.next_commands;
    let columns = FindingColumns::new(&screenful.findings[range], commands, lines.area.width);
    let selected = app.selected_finding().filter(|_| app.focus == Focus::Findings);
    let findings = screenful.findings.iter().enumerate();
    for (at, finding) in findings.skip(visible.first).take(visible.shown) {
        let is_last = at + 1 == visible.first + visible.shown;
        let is_selected = selected.is_some_and(|(selected, _)| selected == at);
        // Of consecutive findings with the same command, only the last shows the command.
        let command = commands.first(finding).filter(|command| {
            let next = screenful.findings.get(at + 1).filter(|_| !is_last);
            next.and_then(|next| commands.first(next)) != Some(command)
        });
        let command = clean(command.unwrap_or_default(), MESSAGE_CHARS);
        if visible.lines_each > 1 {
            columns.line(finding, is_selected, "", lines);
            let message = clean(&finding.message, MESSAGE_CHARS);
            let mut writer = lines.next_line();
            columns.end(writer.skip(2), &message, &command, styles);
        } else {
            columns.line(finding, is_selected, &command, lines);
        }
    }
    let room = usize::from(lines.left());
    // There can be a note for every process, so format only those that fit.
    let mut notes: Vec<(NoteKind, String)> =
        notes(screenful, layout.gpu_form).take(room + 1).collect();
    if notes.len() > room && screenful.undecided.len() > 1 {
        // If not all notes fit, name all undecided rules on one line instead of giving the reasons for a few.
        notes.retain(|(kind, _)| *kind != NoteKind::Undecided);
        notes.push((NoteKind::Undecided, undecided_rules(screenful)));
    }
    for (kind, note) in notes.iter().take(room) {
        lines.write(note, 1, note_style(*kind, styles));
    }
}

fn note_style(kind: NoteKind, styles: Styles) -> Style {
    match kind {
        NoteKind::Missing => styles.caution(),
        NoteKind::Suspect => styles.suspected(),
        NoteKind::Undecided => styles.faint(),
    }
}

fn undecided_rules(screenful: &Screenful) -> String {
    let mut rules: Vec<&str> =
        screenful.undecided.iter().map(|undecided| &*undecided.rule).collect();
    let mut unique = HashSet::new();
    rules.retain(|rule| unique.insert(*rule));
    format!("not decided yet: {}", clean(&rules.join(", "), 400))
}

struct FindingColumns {
    badge: u16,
    memory: u16,
    subject: u16,
    user: u16,
    command: u16,
}

impl FindingColumns {
    fn new(findings: &[Finding], commands: &NextCommands, width: u16) -> Self {
        let typed = findings.iter().filter_map(|finding| commands.first(finding));
        let typed = typed.map(|command| columns(&clean(command, MESSAGE_CHARS)));
        // A truncated command would be useless, so ignore long commands.
        let typed = typed.filter(|command| *command <= width / 3);
        let widest = |text: fn(&Finding) -> String| {
            let texts = findings.iter().map(|finding| columns(&text(finding)));
            texts.max().unwrap_or(0)
        };
        Self {
            badge: widest(badge).min(22),
            memory: widest(memory).min(12),
            subject: widest(subject).min(12),
            user: widest(user).min(12),
            command: typed.max().unwrap_or(0),
        }
    }

    fn end(&self, writer: &mut LineWriter<'_>, text: &str, command: &str, styles: Styles) {
        let room = writer.room();
        if self.command == 0 || self.command + TEXT_MIN > room {
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

    fn line(
        &self,
        finding: &Finding,
        is_selected: bool,
        command: &str,
        lines: &mut PanelWriter<'_>,
    ) {
        let styles = lines.styles;
        let mut writer = lines.next_line();
        writer.left(if is_selected { "▸" } else { "" }, 1, styles.plain());
        let style = styles.badge(finding.severity);
        writer.left(&badge(finding), self.badge, style).skip(1);
        for (text, width) in [(memory(finding), self.memory), (subject(finding), self.subject)] {
            writer.right(&text, width, styles.plain()).skip(1);
        }
        if self.user > 0 {
            writer.left(&user(finding), self.user, styles.plain()).skip(1);
        }
        let text = escape(finding.evidence.words()).into_owned();
        let text = clean(&text, MESSAGE_CHARS);
        self.end(&mut writer, &text, command, styles);
        if is_selected {
            lines.select();
        }
    }
}

fn memory(finding: &Finding) -> String {
    let bytes = finding.memory_bytes.map(|bytes| Bytes(bytes).to_string());
    bytes.unwrap_or_else(|| UNKNOWN.to_owned())
}

fn subject(finding: &Finding) -> String {
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
