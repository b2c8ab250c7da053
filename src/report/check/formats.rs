//! The verdict of `gpumem check` in formats for CI servers: JUnit XML and job annotations.
//!
//! Each limit, wait and baseline is a test case. If findings can fail the check, each rule is a test case as well.
//! Passed test cases are included, so that a CI server can show their history. If gpumem could not measure something,
//! an additional test case fails.

use std::sync::Arc;

use super::{CheckOutcome, CheckReport, TextLook, fold, write_finding};
use crate::model::finding::Finding;
use crate::model::{Severity, Time};
use crate::report::ci::{Case, CaseResult, Failure, Level, Suite, annotation};
use crate::report::style::Style;
use crate::units::{Bytes, number_of};

const NAME: &str = "gpumem check";

impl CheckReport {
    /// Formats the report as JUnit XML. If the check took no snapshot, the suite has the date `now` and
    /// the machine's `hostname`.
    pub fn to_junit(&self, now: Time, hostname: Option<Arc<str>>) -> String {
        let rules = self.rules.iter().filter(|_| self.fail_on.is_some());
        let suite = Suite {
            name: NAME.to_owned(),
            time: self.time.unwrap_or(now),
            hostname: self.hostname.clone().or(hostname),
            seconds: self.window_seconds,
            cases: rules.map(|rule| self.rule(rule)).chain(self.gates()).collect(),
            output: self.to_text(TextLook { ascii: true, verbose: true, ..TextLook::default() }),
        };
        suite.to_xml()
    }

    /// Formats the report as annotations, followed by the verdict.
    pub fn to_github(&self) -> String {
        let mut out = String::new();
        for equal in fold(self.active_findings()) {
            let level = match equal[0].severity {
                severity if self.fail_on.is_some_and(|min| severity >= min) => Level::Error,
                Severity::Info => Level::Notice,
                Severity::Warning | Severity::Critical => Level::Warning,
            };
            let title = format!("{NAME}: {}", equal[0].rule);
            out += &annotation(level, &title, &paragraph(&equal));
        }
        for case in self.gates() {
            if let CaseResult::Failed(failure) | CaseResult::Error(failure) = case.result {
                let title = format!("{NAME}: {}", case.name);
                out += &annotation(Level::Error, &title, &failure.text);
            }
        }
        out + &self.summary() + "\n"
    }

    fn rule(&self, rule: &str) -> Case {
        let fails =
            |finding: &&Finding| *finding.rule == *rule && Some(finding.severity) >= self.fail_on;
        let found: Vec<&Finding> = self.active_findings().filter(fails).collect();
        let undecided = self.undecided.iter().find(|undecided| *undecided.rule == *rule);
        let result = match (found.first(), undecided) {
            (Some(first), _) => {
                let message = match found.len() {
                    1 => first.message.to_string(),
                    more => format!("{} (and {} more)", first.message, more - 1),
                };
                let kind = first.kind.name();
                let text = fold(found.into_iter()).iter().map(|equal| paragraph(equal)).collect();
                CaseResult::Failed(Failure { kind, message, text })
            }
            (None, Some(undecided)) => CaseResult::Skipped(undecided.reason.clone()),
            (None, None) => CaseResult::Passed,
        };
        case("rule", rule.to_owned(), result)
    }

    fn gates(&self) -> Vec<Case> {
        let mut cases = Vec::new();
        for limit in &self.limits {
            let name = format!("{} on GPU {}", limit.limit, limit.gpu);
            let result = match limit.exceeded {
                Some(false) => CaseResult::Passed,
                Some(true) => failed("limit", limit.to_string(), limit.to_string()),
                None => CaseResult::Skipped("not known".to_owned()),
            };
            cases.push(case("limit", name, result));
        }
        for wait in &self.wait {
            let on = match wait.named.as_deref() {
                Some(gpu) if gpu.bytes().all(|byte| byte.is_ascii_digit()) => format!("GPU {gpu}"),
                Some(uuid) => uuid.to_owned(),
                None => "any GPU".to_owned(),
            };
            let name = format!("{} free on {on}", Bytes(wait.wanted_bytes));
            let result = match wait.satisfied {
                true => CaseResult::Passed,
                false if wait.gpu.is_some() => {
                    let text = format!("{wait}\n{}", self.holders_text(Style::default()));
                    failed("wait-free", wait.to_string(), text)
                }
                false => CaseResult::Skipped("not known".to_owned()),
            };
            let seconds = wait.waited_seconds;
            cases.push(Case { seconds, ..case("wait-free", name, result) });
        }
        if let Some(new) = &self.new_holders {
            let lines: Vec<String> = new.iter().map(ToString::to_string).collect();
            let result = match lines.len() {
                0 => CaseResult::Passed,
                count => failed("baseline", number_of(count, "new holder"), lines.join("\n")),
            };
            cases.push(case("baseline", "no new holders".to_owned(), result));
        }
        let result = match self.status {
            CheckOutcome::Ok | CheckOutcome::Findings => CaseResult::Passed,
            CheckOutcome::Error => {
                let lines: Vec<String> = self.errors.iter().map(ToString::to_string).collect();
                let lines = if lines.is_empty() { vec![self.summary()] } else { lines };
                let (message, text) = (lines[0].clone(), lines.join("\n"));
                CaseResult::Error(Failure { kind: "error", message, text })
            }
        };
        cases.push(case("check", "measured".to_owned(), result));
        cases
    }
}

fn case(class: &str, name: String, result: CaseResult) -> Case {
    Case { class: format!("gpumem.{class}"), name, seconds: 0.0, result }
}

fn failed(kind: &'static str, message: String, text: String) -> CaseResult {
    CaseResult::Failed(Failure { kind, message, text })
}

fn paragraph(equal: &[&Finding]) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = write_finding(&mut out, equal, Style::default());
    out
}
