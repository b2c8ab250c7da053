//! Colours of text on a terminal. Text without colours must contain the same information.

use std::fmt::Write as _;

use unicode_width::UnicodeWidthStr as _;

use super::doctor::CheckStatus;
use super::escape::wrap;
use crate::model::Severity;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Style {
    pub color: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Emphasis {
    Plain,
    Heading,
    Chart,
    Severity(Severity),
}

const HEADING: &str = "1";
const CHART: &str = "32";
const END: &str = "\x1b[0m";

fn code(severity: Severity) -> &'static str {
    match severity {
        Severity::Info => "36",
        Severity::Warning => "33;1",
        Severity::Critical => "31;1",
    }
}

/// Maximum number of lines into which a long line is wrapped. Untrusted text can have any length.
const LINES_MAX: usize = 64;
/// Minimum width of a wrapped line in columns, for very narrow terminals.
const COLUMNS_MIN: usize = 8;
/// Additional indentation of continuation lines, in columns.
const HANG: usize = 4;

/// Wraps lines that are wider than the terminal. Only the start of a line can be coloured.
pub fn broken(text: &str, width: usize) -> String {
    let wide = |text: &str| -> usize { pieces(text).map(|(_, piece)| piece.width()).sum() };
    let mut out = String::new();
    for line in text.lines() {
        if wide(line) <= width {
            out.push_str(line);
            out.push('\n');
            continue;
        }
        let hang = line.len() - line.trim_start_matches(' ').len() + HANG;
        let colours = line.rfind(END).map_or(0, |at| at + END.len());
        let rest = line[colours..].trim_start_matches(' ');
        let head = &line[..line.len() - rest.len()];
        let room = |before: usize| width.saturating_sub(before).max(COLUMNS_MIN);
        let widths = (room(wide(head)), room(hang));
        let mut lines = wrap(rest, widths, LINES_MAX).into_iter();
        out.push_str(head);
        out.push_str(&lines.next().unwrap_or_default());
        out.push('\n');
        for line in lines {
            // Writing to a String cannot fail.
            let _ = writeln!(out, "{:hang$}{line}", "");
        }
    }
    out
}

/// Splits coloured text into pieces, which `watch` draws in the colours of its theme.
pub fn pieces(text: &str) -> impl Iterator<Item = (Emphasis, &str)> {
    let parts = text.split('\x1b').enumerate();
    let pieces = parts.map(|(at, part)| {
        let sequence = part.strip_prefix('[').filter(|_| at > 0);
        match sequence.and_then(|rest| rest.split_once('m')) {
            Some((written, piece)) => (mark_of(written), piece),
            None => (Emphasis::Plain, part),
        }
    });
    pieces.filter(|(_, piece)| !piece.is_empty())
}

fn mark_of(written: &str) -> Emphasis {
    let severities = [Severity::Info, Severity::Warning, Severity::Critical];
    let severity = severities.into_iter().find(|severity| code(*severity) == written);
    match severity {
        Some(severity) => Emphasis::Severity(severity),
        None if written == HEADING => Emphasis::Heading,
        None if written == CHART => Emphasis::Chart,
        None => Emphasis::Plain,
    }
}

impl Style {
    fn paint(self, code: &str, text: &str) -> String {
        if self.color { format!("\x1b[{code}m{text}{END}") } else { text.to_owned() }
    }

    pub fn heading(self, text: &str) -> String {
        self.paint(HEADING, text)
    }

    pub fn chart(self, text: &str) -> String {
        self.paint(CHART, text)
    }

    pub fn faint(self, text: &str) -> String {
        self.paint("2", text)
    }

    pub fn severity(self, severity: Severity) -> String {
        self.paint(code(severity), &severity.to_string())
    }

    pub fn verdict(self, verdict: CheckStatus, text: &str) -> String {
        let code = match verdict {
            CheckStatus::Ok => "32",
            CheckStatus::Limited => "33;1",
            CheckStatus::Broken => "31;1",
            CheckStatus::Unknown => "36",
            CheckStatus::NotApplicable => "2",
        };
        self.paint(code, text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_escape_is_omitted() {
        for hostile in ["\x1b", "\x1b[", "a\x1b[2Jb", "\x1b\x1b[0m", "\x1b]0;x\x07"] {
            let escape = |(_, piece): (Emphasis, &str)| piece.contains('\x1b');
            assert!(!pieces(hostile).any(escape), "{hostile:?}");
        }
    }
}
