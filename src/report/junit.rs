//! JUnit XML, which CI servers show as a page of tests.
//!
//! No one owns the format. This is valid by the two schemas that are used: that of Jenkins' xUnit plugin
//! (`junit-10.xsd`), and Windy Road's for Ant (`JUnit.xsd`), which requires every attribute and empty element here.

use std::fmt::Write as _;

use super::escape::escape;
use crate::model::Time;

/// A document with one suite of test cases.
#[derive(Clone, PartialEq, Debug)]
pub struct Suite {
    pub name: String,
    pub time: Time,
    pub hostname: Option<String>,
    pub seconds: f64,
    pub cases: Vec<Case>,
    /// The command's report for people.
    pub output: String,
}

#[derive(Clone, PartialEq, Debug)]
pub struct Case {
    /// Class of the test case; CI servers group by it.
    pub class: String,
    pub name: String,
    pub seconds: f64,
    pub result: CaseResult,
}

#[derive(Clone, PartialEq, Debug)]
pub enum CaseResult {
    Passed,
    /// The case failed: the kind of failure, a summary in one line, and details of any number of lines.
    Failed {
        kind: String,
        message: String,
        text: String,
    },
    /// The case could not be measured; fields as above.
    Error {
        kind: String,
        message: String,
        text: String,
    },
    /// The case was not decided, with the reason.
    Skipped(String),
}

impl Suite {
    /// The document.
    pub fn to_xml(&self) -> String {
        let count =
            |of: fn(&CaseResult) -> bool| self.cases.iter().filter(|it| of(&it.result)).count();
        let hostname = self.hostname.as_deref().filter(|name| !name.is_empty());
        let time = self.time.to_string();
        let mut out = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n");
        // Writing to a String cannot fail.
        let _ = writeln!(
            out,
            "<testsuite name=\"{name}\" package=\"{name}\" id=\"0\" timestamp=\"{}\" hostname=\"{}\" \
             tests=\"{}\" failures=\"{}\" errors=\"{}\" skipped=\"{}\" time=\"{:.3}\">\n<properties/>",
            // The schema has neither a fraction nor a zone.
            time.get(..19).unwrap_or("1970-01-01T00:00:00"),
            attribute(hostname.unwrap_or("localhost")),
            self.cases.len(),
            count(|it| matches!(it, CaseResult::Failed { .. })),
            count(|it| matches!(it, CaseResult::Error { .. })),
            count(|it| matches!(it, CaseResult::Skipped(_))),
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
            CaseResult::Skipped(why) => {
                let _ = writeln!(out, "><skipped message=\"{}\"/></testcase>", attribute(why));
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

/// Text as an attribute's value. [`escape`] has replaced characters that XML cannot contain.
fn attribute(text: &str) -> String {
    let text = escape(text).replace('&', "&amp;").replace('<', "&lt;");
    text.replace('>', "&gt;").replace('"', "&quot;")
}

/// Text between tags, escaped line by line.
fn lines(text: &str) -> String {
    text.split('\n').map(attribute).collect::<Vec<String>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_a_process_chose_is_markup_or_forbidden_in_xml() {
        let hostile: String = ('\0'..='\u{10ffff}').collect();
        for text in [attribute(&hostile), lines(&hostile)] {
            let is_allowed = |c: char| matches!(c, '\n' | ' '..='\u{d7ff}' | '\u{e000}'..='\u{fffd}' | '\u{10000}'..);
            assert!(text.chars().all(is_allowed));
            assert!(!text.contains(['<', '>', '"']));
            let entities = ["&amp;", "&lt;", "&gt;", "&quot;"];
            let known: usize = entities.iter().map(|it| text.matches(it).count()).sum();
            assert_eq!(text.matches('&').count(), known);
        }
        assert!(!attribute(&hostile).contains('\n'));
    }
}
