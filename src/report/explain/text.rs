//! The page for people: plain text of a given width; colour carries no meaning of its own.

use super::framework;
use super::page::{PageText, instant};
use super::{ExplainReport, ExplainStep, RuleVerdict, WhenPossible, gpu, process};
use crate::model::Time;
use crate::model::finding::Finding;
use crate::report::escape::escape;
use crate::report::style::Style;
use crate::units::Span;

/// No page is narrower: a command that is cut in two cannot be typed.
const LEAST_WIDTH: usize = 40;
/// No page is wider: nobody reads longer lines.
const MOST_WIDTH: usize = 120;
/// Undecided rules that are listed.
const MOST_UNDECIDED: usize = 3;

/// How a page looks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageStyle {
    /// Columns.
    pub width: usize,
    /// Colour.
    pub style: Style,
    /// Charts of ASCII characters only.
    pub ascii: bool,
}

/// The page, each line no wider than the look's width (but for 40 to 120 columns).
pub fn page(report: &ExplainReport, look: PageStyle) -> String {
    let mut sheet = PageText::new(PageStyle {
        width: look.width.clamp(LEAST_WIDTH, MOST_WIDTH),
        ..look
    });
    if let Some(page) = &report.process {
        process::write(&mut sheet, page, report);
    }
    if let Some(page) = &report.gpu {
        gpu::write(&mut sheet, page, report);
    }
    match &report.frameworks[..] {
        [] => {}
        [page] => framework::write(&mut sheet, page),
        pages => framework::list(&mut sheet, pages),
    }
    if !report.notes.is_empty() || !report.errors.is_empty() {
        sheet.section("What this page lacks");
        for note in &report.notes {
            sheet.item("- ", note);
        }
        for error in &report.errors {
            let gpu = error
                .gpu
                .map_or_else(String::new, |gpu| format!("GPU {gpu}: "));
            sheet.item("- ", &format!("{gpu}{}: {}", error.call, error.error));
        }
    }
    sheet.finish()
}

/// What the rules say; `is_mine` tells the findings that are shown in full.
pub(super) fn verdict(
    sheet: &mut PageText,
    verdict: &RuleVerdict,
    report: &ExplainReport,
    is_mine: impl Fn(&Finding) -> bool,
) {
    sheet.section("What the rules say");
    let findings = || verdict.findings.iter().filter(|it| is_mine(it));
    if findings().next().is_none() && verdict.kept.is_empty() {
        let span = Span::from_seconds(report.window_seconds);
        let what = if verdict.findings.is_empty() {
            "nothing is found against it"
        } else {
            "nothing is found against the GPU itself"
        };
        sheet.item("- ", &format!("{what}, as far as {span} of history tells"));
    }
    for finding in findings() {
        write_finding(sheet, finding);
    }
    for kept in &verdict.kept {
        let until = kept
            .until
            .map_or_else(String::new, |until| format!(", until {}", instant(until)));
        let doubt = if kept.certain {
            ""
        } else {
            "; whether the exemption is for this one is not known"
        };
        let finding = &kept.finding;
        sheet.item(
            "kept: ",
            &format!(
                "{}: {} (the configuration says: {}{until}{doubt})",
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
            "{}{where_}, so since {}; a finding from {} on, if nothing changes",
            pending.rule,
            instant(pending.since),
            instant(pending.due)
        );
        sheet.item("pending: ", &text);
    }
    for undecided in verdict.undecided.iter().take(MOST_UNDECIDED) {
        let text = format!("{}: {}", undecided.rule, undecided.reason);
        sheet.item("undecided: ", &text);
    }
    let more = verdict.undecided.len().saturating_sub(MOST_UNDECIDED);
    if more > 0 {
        sheet.item(
            "undecided: ",
            &format!("and {more} more (gpumem check lists them)"),
        );
    }
}

fn write_finding(sheet: &mut PageText, finding: &Finding) {
    let style = sheet.look.style;
    let severity = finding.severity;
    let kind = finding.kind.to_string();
    let rule = if *finding.rule == *kind {
        String::new()
    } else {
        format!(" (rule {})", finding.rule)
    };
    let ceased = finding
        .resolved_at
        .map_or_else(String::new, |at| format!("ceased at {}: ", instant(at)));
    let mark = format!("{}: ", style.severity(severity));
    let columns = severity.to_string().len() + 2;
    sheet.marked(
        &mark,
        columns,
        &format!("{kind}{rule}: {ceased}{}", finding.message),
    );
    sheet.item("    since ", &instant(finding.since));
    sheet.item("    because ", &escape(&finding.evidence.words()));
    for also in &finding.also {
        sheet.item(
            "    also ",
            &format!("{}: {}", also.kind, escape(&also.evidence.words())),
        );
    }
}

/// What to do, gentlest first.
pub(super) fn steps(sheet: &mut PageText, steps: &[ExplainStep], heading: &str) {
    let now: Vec<&ExplainStep> = of(steps, WhenPossible::Now)
        .chain(of(steps, WhenPossible::End))
        .collect();
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

fn of(steps: &[ExplainStep], moment: WhenPossible) -> impl Iterator<Item = &ExplainStep> {
    steps.iter().filter(move |step| step.moment == moment)
}

fn write_step(sheet: &mut PageText, mark: &str, step: &ExplainStep) {
    let measured = step
        .measured
        .as_ref()
        .map_or_else(String::new, |by| format!(" (measured: {by})"));
    let text = match step.moment {
        WhenPossible::NextStart => at_start(&step.text),
        WhenPossible::Now | WhenPossible::End => &step.text,
    };
    sheet.item(mark, &format!("{text}{measured}"));
}

/// A line of advice below a heading that says already when it is meant for.
pub(super) fn at_start(text: &str) -> &str {
    const SAID: [&str; 2] = ["at its next start: ", "at its next start, "];
    let rest = SAID.iter().find_map(|said| text.strip_prefix(said));
    rest.unwrap_or(text)
}

/// Since when, and how long that is before the page's time.
pub(super) fn ago(time: Time, report: &ExplainReport) -> String {
    match report.time {
        Some(now) => {
            let span = Span::from_seconds(now.seconds_since(time));
            format!("{}, {span} ago", instant(time))
        }
        None => instant(time),
    }
}
