//! Colour, where the reader wants it; never the only carrier of a meaning.

use super::doctor::Verdict;
use crate::model::Severity;

/// Whether and how text is coloured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Style {
    /// Write SGR escape sequences.
    pub color: bool,
}

impl Style {
    fn paint(self, code: &str, text: &str) -> String {
        if self.color {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }

    /// A heading.
    pub fn heading(self, text: &str) -> String {
        self.paint("1", text)
    }

    /// What matters less.
    pub fn faint(self, text: &str) -> String {
        self.paint("2", text)
    }

    /// A severity's word, in its colour.
    pub fn severity(self, severity: Severity) -> String {
        let code = match severity {
            Severity::Info => "36",
            Severity::Warning => "33;1",
            Severity::Critical => "31;1",
        };
        self.paint(code, &severity.to_string())
    }

    /// What a verdict's word stands in, in its colour.
    pub fn verdict(self, verdict: Verdict, text: &str) -> String {
        let code = match verdict {
            Verdict::Ok => "32",
            Verdict::Limited => "33;1",
            Verdict::Broken => "31;1",
            Verdict::Unknown => "36",
            Verdict::NotApplicable => "2",
        };
        self.paint(code, text)
    }
}
