//! JUnit XML, which CI servers display as test results.
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
    Failed {
        kind: String,
        message: String,
        text: String,
    },
    /// The case could not be measured.
    Error {
        kind: String,
        message: String,
        text: String,
    },
    /// The case was not decided; the text is the reason.
    Skipped(String),
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
            count(|result| matches!(result, CaseResult::Failed { .. })),
            count(|result| matches!(result, CaseResult::Error { .. })),
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
        let (element, kind, message, text) = match &self.result {
            CaseResult::Passed => return out.push_str("/>\n"),
            CaseResult::Skipped(reason) => {
                let _ = writeln!(out, "><skipped message=\"{}\"/></testcase>", attribute(reason));
                return;
            }
            CaseResult::Failed { kind, message, text } => ("failure", kind, message, text),
            CaseResult::Error { kind, message, text } => ("error", kind, message, text),
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

/// Escapes an attribute value. [`escape`] has already replaced characters that XML forbids.
fn attribute(text: &str) -> String {
    let text = escape(text).replace('&', "&amp;").replace('<', "&lt;");
    text.replace('>', "&gt;").replace('"', "&quot;")
}

/// Escapes text between tags but keeps its line breaks.
fn lines(text: &str) -> String {
    text.split('\n').map(attribute).collect::<Vec<String>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
