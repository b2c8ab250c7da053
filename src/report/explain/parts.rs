//! Parts that several pages have: what the rules say, and what to do.

use super::page::PageText;
use super::{ExplainReport, ExplainStep, RuleVerdict, WhenPossible};
use crate::model::Time;
use crate::model::finding::Finding;
use crate::report::escape::escape;
use crate::units::Span;

/// Undecided rules that are listed.
const MOST_UNDECIDED: usize = 3;

/// What the rules say; `is_mine` tells the findings that are shown in full.
pub(super) fn verdict(
    sheet: &mut PageText,
    verdict: &RuleVerdict,
    report: &ExplainReport,
    is_mine: impl Fn(&Finding) -> bool,
) {
    sheet.section("Findings");
    let findings = || verdict.findings.iter().filter(|it| is_mine(it));
    if findings().next().is_none() && verdict.kept.is_empty() {
        let span = Span::from_seconds(report.window_seconds);
        let what = if verdict.findings.is_empty() {
            "no findings"
        } else {
            "no findings about the GPU itself"
        };
        sheet.item("- ", &format!("{what} in {span} of history"));
    }
    for finding in findings() {
        write_finding(sheet, finding);
    }
    for kept in &verdict.kept {
        let until =
            kept.until.map_or_else(String::new, |until| format!(", until {}", until.local()));
        let doubt =
            if kept.certain { "" } else { "; whether the exemption matches this one is not known" };
        let finding = &kept.finding;
        sheet.item(
            "kept: ",
            &format!(
                "{}: {} (kept by the configuration: {}{until}{doubt})",
                finding.rule, finding.message, kept.reason
            ),
        );
    }
    for pending in &verdict.pending {
        let where_ = match pending.pid {
            Some(_) => format!(" on GPU {}", pending.gpu),
            None => String::new(),
        };
        let text = format!(
            "{}{where_}, true since {}; becomes a finding at {} if nothing changes",
            pending.rule,
            pending.since.local(),
            pending.due.local()
        );
        sheet.item("pending: ", &text);
    }
    for undecided in verdict.undecided.iter().take(MOST_UNDECIDED) {
        let text = format!("{}: {}", undecided.rule, undecided.reason);
        sheet.item("undecided: ", &text);
    }
    let more = verdict.undecided.len().saturating_sub(MOST_UNDECIDED);
    if more > 0 {
        sheet.item("undecided: ", &format!("and {more} more (gpumem check lists them)"));
    }
}

fn write_finding(sheet: &mut PageText, finding: &Finding) {
    let style = sheet.look.style;
    let severity = finding.severity;
    let kind = finding.kind.to_string();
    let rule =
        if *finding.rule == *kind { String::new() } else { format!(" (rule {})", finding.rule) };
    let ceased =
        finding.resolved_at.map_or_else(String::new, |at| format!("cleared at {}: ", at.local()));
    let mark = format!("{}: ", style.severity(severity));
    let columns = severity.to_string().len() + 2;
    sheet.marked(&mark, columns, &format!("{kind}{rule}: {ceased}{}", finding.message));
    sheet.item("    since ", &finding.since.local().to_string());
    sheet.item("    because ", &escape(finding.evidence.words()));
    for also in &finding.also {
        sheet.item("    also ", &format!("{}: {}", also.kind, escape(also.evidence.words())));
    }
    if let Some(kept_by) = &finding.kept_by {
        sheet.item("    kept: ", &escape(&kept_by.to_string()));
    }
    if let Some(why) = &finding.skipped {
        sheet.item("    skipped by reap: ", &escape(why));
    }
}

/// What to do, gentlest first.
pub(super) fn steps(sheet: &mut PageText, steps: &[ExplainStep], heading: &str) {
    let now: Vec<&ExplainStep> =
        of(steps, WhenPossible::Now).chain(of(steps, WhenPossible::End)).collect();
    if !now.is_empty() {
        sheet.section(heading);
    }
    for (at, step) in now.iter().enumerate() {
        write_step(sheet, &format!("{}. ", at + 1), step);
    }
    let next: Vec<&ExplainStep> = of(steps, WhenPossible::NextStart).collect();
    if !next.is_empty() {
        sheet.section("At its next start");
    }
    for step in next {
        write_step(sheet, "- ", step);
    }
}

/// What to type about what lasts, each command once, and to release memory whatever was found; nothing where it is
/// only to open this page.
pub(super) fn commands(sheet: &mut PageText, findings: &[Finding], release: Option<&str>) {
    let mut written: Vec<&str> = Vec::new();
    let commands = findings.iter().flat_map(|finding| &finding.commands);
    for command in commands.filter(|command| !command.starts_with("gpumem explain ")) {
        if written.contains(&command.as_str()) {
            continue;
        }
        if written.is_empty() {
            sheet.section("What to type");
        }
        written.push(command);
        sheet.item("", &format!("`{command}`"));
    }
    // A finding's names others of its job with it.
    let is_written = written.iter().any(|it| it.starts_with("gpumem release "));
    if let Some(command) = release.filter(|_| !is_written) {
        if written.is_empty() {
            sheet.section("What to type");
        }
        sheet.item("to free what it caches: ", &format!("`{command}`"));
    }
}

fn of(steps: &[ExplainStep], moment: WhenPossible) -> impl Iterator<Item = &ExplainStep> {
    steps.iter().filter(move |step| step.moment == moment)
}

fn write_step(sheet: &mut PageText, mark: &str, step: &ExplainStep) {
    let measured =
        step.measured.as_ref().map_or_else(String::new, |by| format!(" (measured: {by})"));
    let text = match step.moment {
        WhenPossible::NextStart => at_start(&step.text),
        WhenPossible::Now | WhenPossible::End => &step.text,
    };
    sheet.item(mark, &format!("{text}{measured}"));
}

/// A line of advice below a heading that says already when it is meant for.
pub(super) fn at_start(text: &str) -> &str {
    const PREFIXES: [&str; 2] = ["at its next start: ", "at its next start, "];
    let rest = PREFIXES.iter().find_map(|prefix| text.strip_prefix(prefix));
    rest.unwrap_or(text)
}

/// Since when, and how long that is before the page's time.
pub(super) fn ago(time: Time, report: &ExplainReport) -> String {
    match report.time {
        Some(now) => {
            let span = Span::from_seconds(now.seconds_since(time));
            format!("{}, {span} ago", time.local())
        }
        None => time.local().to_string(),
    }
}
