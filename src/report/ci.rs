//! Formats that CI servers display: JUnit XML as test results, and GitHub workflow commands as annotations of a job.
//!
//! JUnit XML has no official schema. The output validates against `junit-10.xsd` of the Jenkins xUnit plugin and
//! against Windy Road's `JUnit.xsd` for Ant. The latter also requires some empty attributes and elements.

use std::fmt::Write as _;
use std::sync::Arc;

use super::escape::escape;
use crate::model::Time;

#[derive(Clone, PartialEq, Debug)]
pub struct Suite {
    pub name: String,
    pub time: Time,
    pub hostname: Option<Arc<str>>,
    pub seconds: f64,
    pub cases: Vec<Case>,
    /// The report as text, for `<system-out>`.
    pub output: String,
}

#[derive(Clone, PartialEq, Debug)]
pub struct Case {
    pub class: String,
    pub name: String,
    pub seconds: f64,
    pub result: CaseResult,
}

#[derive(Clone, PartialEq, Debug)]
pub enum CaseResult {
    Passed,
    Failed(Failure),
    /// The case could not be measured.
    Error(Failure),
    /// The case was not decided; the text is the reason.
    Skipped(String),
}

#[derive(Clone, PartialEq, Debug)]
pub struct Failure {
    pub kind: &'static str,
    pub message: String,
    pub text: String,
}

impl Suite {
    pub fn to_xml(&self) -> String {
        let count =
            |is: fn(&CaseResult) -> bool| self.cases.iter().filter(|case| is(&case.result)).count();
        let hostname = self.hostname.as_deref().filter(|name| !name.is_empty());
        let time = self.time.to_string();
        let mut out = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n");
        // Writing to a String cannot fail.
        let _ = writeln!(
            out,
            "<testsuite name=\"{name}\" package=\"{name}\" id=\"0\" timestamp=\"{}\" hostname=\"{}\" \
             tests=\"{}\" failures=\"{}\" errors=\"{}\" skipped=\"{}\" time=\"{:.3}\">\n<properties/>",
            // Both schemas forbid fractions of a second and time zones.
            time.get(..19).unwrap_or("1970-01-01T00:00:00"),
            attribute(hostname.unwrap_or("localhost")),
            self.cases.len(),
            count(|result| matches!(result, CaseResult::Failed(_))),
            count(|result| matches!(result, CaseResult::Error(_))),
            count(|result| matches!(result, CaseResult::Skipped(_))),
            self.seconds,
            name = attribute(&self.name),
        );
        for case in &self.cases {
            case.write(&mut out);
        }
        let output = lines(&self.output);
        out + "<system-out>"
            + &output
            + "</system-out>\n<system-err/>\n</testsuite>\n</testsuites>\n"
    }
}

impl Case {
    fn write(&self, out: &mut String) {
        let _ = write!(
            out,
            "<testcase classname=\"{}\" name=\"{}\" time=\"{:.3}\"",
            attribute(&self.class),
            attribute(&self.name),
            self.seconds
        );
        let (element, Failure { kind, message, text }) = match &self.result {
            CaseResult::Passed => return out.push_str("/>\n"),
            CaseResult::Skipped(reason) => {
                let _ = writeln!(out, "><skipped message=\"{}\"/></testcase>", attribute(reason));
                return;
            }
            CaseResult::Failed(failure) => ("failure", failure),
            CaseResult::Error(failure) => ("error", failure),
        };
        let _ = writeln!(
            out,
            "><{element} type=\"{}\" message=\"{}\">{}</{element}></testcase>",
            attribute(kind),
            attribute(message),
            lines(text)
        );
    }
}

/// Escapes an attribute value. [`escape`] replaces the characters that XML forbids.
fn attribute(text: &str) -> String {
    let text = escape(text).replace('&', "&amp;").replace('<', "&lt;");
    text.replace('>', "&gt;").replace('"', "&quot;")
}

/// Escapes text between tags but keeps its line breaks.
fn lines(text: &str) -> String {
    text.split('\n').map(attribute).collect::<Vec<String>>().join("\n")
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Level {
    Error,
    Warning,
    Notice,
}

/// Formats an annotation. The texts are escaped, so they cannot start another workflow command.
pub fn annotation(level: Level, title: &str, message: &str) -> String {
    let command = match level {
        Level::Error => "error",
        Level::Warning => "warning",
        Level::Notice => "notice",
    };
    let title = data(title).replace(':', "%3A").replace(',', "%2C");
    let lines: Vec<String> = message.trim_end().split('\n').map(data).collect();
    format!("::{command} title={title}::{}\n", lines.join("%0A"))
}

/// Escapes text for a workflow command. [`escape`] replaces line feeds and carriage returns.
fn data(text: &str) -> String {
    escape(text).replace('%', "%25")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::dice::Dice;

    #[test]
    fn untrusted_text_becomes_valid_xml_without_markup() {
        let hostile: String = ('\0'..='\u{10ffff}').collect();
        for text in [attribute(&hostile), lines(&hostile)] {
            let is_allowed = |c: char| matches!(c, '\n' | ' '..='\u{d7ff}' | '\u{e000}'..='\u{fffd}' | '\u{10000}'..);
            assert!(text.chars().all(is_allowed));
            assert!(!text.contains(['<', '>', '"']));
            let entities = ["&amp;", "&lt;", "&gt;", "&quot;"];
            let known: usize = entities.iter().map(|entity| text.matches(entity).count()).sum();
            assert_eq!(text.matches('&').count(), known);
        }
        assert!(!attribute(&hostile).contains('\n'));
    }

    /// Parses a line as the runner's `ActionCommand.TryParseV2` does.
    fn read(line: &str) -> Option<(String, String, String)> {
        let (info, message) = line.trim_start().strip_prefix("::")?.split_once("::")?;
        let (command, properties) = info.split_once(' ')?;
        let mut properties =
            properties.split(',').map(|property| property.split_once('=').unwrap());
        let ("title", title) = properties.next()? else { return None };
        assert_eq!(properties.next(), None);
        let plain = |text: &str| text.replace("%0D", "\r").replace("%0A", "\n");
        let title = plain(title).replace("%3A", ":").replace("%2C", ",").replace("%25", "%");
        Some((command.to_owned(), title, plain(message).replace("%25", "%")))
    }

    #[test]
    fn untrusted_text_injects_no_command() {
        let words =
            ["::", ":", ",", "=", "%", "%0A", "\n", "\r\n", "##[", "::error::", "title", "ü", " "];
        let mut dice = Dice::new(7);
        for _ in 0..2000 {
            let mut text =
                || (0..dice.place(8)).map(|_| words[dice.place(words.len())]).collect::<String>();
            let (title, message) = (text(), text());
            let line = annotation(Level::Warning, &title, &message);
            assert_eq!(line.matches(['\n', '\r']).count(), 1, "{line:?}");
            let lines: Vec<_> = message.trim_end().split('\n').map(escape).collect();
            let expected = ("warning".to_owned(), escape(&title).into_owned(), lines.join("\n"));
            assert_eq!(read(line.trim_end_matches('\n')), Some(expected), "{line:?}");
        }
    }
}
