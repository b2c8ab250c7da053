//! The findings as a list, the worst first; then what could not be decided or read.
//!
//! A line each, with a mark on the selected one while the keys move here. Which of them are seen, and where,
//! is in `layout/findings.rs`.

use std::collections::HashSet;

use super::lines::Lines;
use crate::model::finding::{Finding, Severity};
use crate::report::check::counted;
use crate::report::escape::escape;
use crate::units::Bytes;
use crate::watch::layout::findings::{fit, has_title, notes, window};
use crate::watch::picture::{Picture, badge};
use crate::watch::state::{App, Focus};
use crate::watch::text::{MESSAGE_CHARS, UNKNOWN, clean, columns};
use crate::watch::theme::Look;

/// From this width on, the severity has a column of its own.
const WIDEST: u16 = 100;
/// `findings 3-7 of 12: 2 critical, 9 warnings, 1 info`, or that there are none so far; where a GPU does not
/// answer, nothing is known of it.
pub fn title(app: &App) -> String {
    let Some(picture) = &app.picture else {
        return String::new();
    };
    let findings = &picture.findings;
    let counts: Vec<String> = [Severity::Critical, Severity::Warning, Severity::Info]
        .into_iter()
        .filter_map(|severity| {
            let count = findings.iter().filter(|it| it.severity == severity).count();
            (count > 0).then(|| counted(count, severity))
        })
        .collect();
    let place = match window(app) {
        Some(window) if window.shown < findings.len() => format!(
            " {}-{} of {}",
            window.first + 1,
            window.first + window.shown,
            findings.len()
        ),
        _ => String::new(),
    };
    match (counts.is_empty(), picture.undecided.is_empty()) {
        (true, true) => "findings".to_owned(),
        (true, false) => match unread(picture) {
            Some(unread) => format!("findings: none known, {unread}"),
            None => "findings: none so far".to_owned(),
        },
        (false, _) => format!("findings{place}: {}", counts.join(", ")),
    }
}

/// The GPUs whose processes are not known; `None` where they are of all.
fn unread(picture: &Picture) -> Option<String> {
    let mut unread = picture.snapshot.gpus.iter().filter(|gpu| gpu.is_unread());
    let first = unread.next()?;
    Some(match unread.count() {
        0 if picture.snapshot.gpus.len() == 1 => "the GPU is not read".to_owned(),
        0 => format!("GPU {} is not read", first.index),
        others => format!("{} GPUs are not read", others + 1),
    })
}

/// Draws the list, then the notes.
pub fn draw(app: &App, lines: &mut Lines<'_>) {
    let Some(picture) = &app.picture else {
        return;
    };
    let look = lines.look;
    let form = app.layout().map(|layout| layout.gpu_form);
    let has_notes = notes(picture, form).next().is_some();
    let window = fit(app, picture, lines.area.width, lines.left(), has_notes);
    let seen = window.first..window.first + window.shown;
    let columns = Columns::new(&picture.findings[seen], lines.area.width);
    let selected = match app.focus {
        Focus::Findings => app.selected_finding().map(|(at, _)| at),
        Focus::Table => None,
    };
    let left_out = picture.findings.len() - window.shown;
    let kept = u16::from(has_notes);
    let has_line = lines.left() > kept + window.shown as u16 * window.lines_each;
    let seen = picture.findings.iter().enumerate();
    for (at, finding) in seen.skip(window.first).take(window.shown) {
        let is_last = at + 1 == window.first + window.shown;
        let tail = if is_last && left_out > 0 && !has_title(app) && !has_line {
            format!("+{left_out}")
        } else {
            String::new()
        };
        columns.line(finding, selected == Some(at), &tail, lines);
        if window.lines_each > 1 {
            let message = clean(&finding.message, MESSAGE_CHARS);
            lines.pen().skip(2).text(&message, look.plain());
        }
    }
    if left_out > 0 && !has_title(app) && has_line {
        lines.write(&format!("and {left_out} more findings"), 1, look.faint());
    }
    let mut notes: Vec<String> = notes(picture, form).collect();
    let others = notes.len() - picture.undecided.len();
    if notes.len() > usize::from(lines.left()) && picture.undecided.len() > 1 {
        // The names of all of them say more than the reasons of a few.
        notes.truncate(others);
        notes.push(undecided_rules(picture));
    }
    for note in notes.iter().take(usize::from(lines.left())) {
        lines.write(note, 1, look.caution());
    }
}

/// `not decided yet: idle, leak`.
fn undecided_rules(picture: &Picture) -> String {
    let mut rules: Vec<&str> = picture.undecided.iter().map(|it| &*it.rule).collect();
    let mut seen = HashSet::new();
    rules.retain(|rule| seen.insert(*rule));
    format!("not decided yet: {}", clean(&rules.join(", "), 400))
}

/// How wide the columns are, as far as there are columns.
struct Columns {
    width: u16,
    badge: u16,
    memory: u16,
    who: u16,
    user: u16,
}

impl Columns {
    fn new(findings: &[Finding], width: u16) -> Self {
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
        }
    }

    /// Draws a finding; `tail` says how many more there are, where nothing else does.
    fn line(&self, finding: &Finding, is_selected: bool, tail: &str, lines: &mut Lines<'_>) {
        let look = lines.look;
        let mut pen = lines.pen();
        pen.left(if is_selected { "▸" } else { "" }, 1, look.plain());
        let style = look.badge(finding.severity);
        if self.width >= WIDEST {
            let severity = finding.severity.to_string();
            pen.left(&severity, 8, severity_style(look, finding))
                .skip(1);
        }
        pen.left(&badge(finding), self.badge, style).skip(1);
        for (text, width) in [(memory(finding), self.memory), (who(finding), self.who)] {
            pen.right(&text, width, look.plain()).skip(1);
        }
        if self.user > 0 {
            pen.left(&user(finding), self.user, look.plain()).skip(1);
        }
        let text = escape(&finding.evidence.words()).into_owned();
        let tail_width = if tail.is_empty() {
            0
        } else {
            columns(tail) + 1
        };
        let room = pen.room().saturating_sub(tail_width);
        pen.left(&clean(&text, MESSAGE_CHARS), room, look.plain())
            .at_end(tail, look.strong());
        if is_selected {
            lines.select();
        }
    }
}

fn severity_style(look: Look, finding: &Finding) -> ratatui::style::Style {
    match finding.severity {
        Severity::Critical => look.strong(),
        Severity::Warning | Severity::Info => look.plain(),
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
