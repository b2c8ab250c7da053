//! The rules' results for a process or a GPU.

use super::ExplainInput;
use super::page::{Row, Section};
use crate::model::finding::{Finding, Kept, OwnCommands, Pending, Undecided};
use crate::model::{Identity, Kind};
use crate::units::Span;

const UNDECIDED_MAX: usize = 3;

pub(super) struct Verdict<'k> {
    /// Findings, including findings that were resolved within the history. The finding that the user asked about comes
    /// first.
    pub(super) findings: Vec<Finding>,
    pending: Vec<&'k Pending>,
    kept: Vec<&'k Kept>,
    undecided: Vec<Undecided>,
}

impl<'k> Verdict<'k> {
    /// Collects the results for a process. On the GPUs in `hidden_on`, the process only has the device file open.
    pub(super) fn of_process(
        input: ExplainInput<'k>,
        identity: Identity,
        (gpus, hidden_on): (&[u32], &[u32]),
        asked: Option<&Finding>,
    ) -> Self {
        let engine = input.engine;
        let is_about_it = |finding: &Finding| {
            finding.process.as_ref().is_some_and(|process| process.identity == identity)
        };
        // Unattributed memory on these GPUs might belong to the process.
        let may_be_its = |finding: &&Finding| {
            let is_on = finding.gpus.iter().any(|gpu| hidden_on.contains(&gpu.index));
            finding.process.is_none() && finding.kind == Kind::Unattributed && is_on
        };
        let mut verdict = Self::select(
            input,
            asked,
            is_about_it,
            |pending| pending.pid == Some(identity.pid) && identity.is_certain(),
            |doubt| match (doubt.pid, doubt.gpu) {
                (Some(pid), _) => pid == identity.pid,
                (None, Some(gpu)) => gpus.contains(&gpu),
                (None, None) => true,
            },
        );
        verdict.findings.extend(engine.findings().iter().filter(may_be_its).cloned());
        verdict
    }

    /// Collects the results for a GPU. Results about the GPU itself come before results about its `holders`.
    pub(super) fn of_gpu(
        input: ExplainInput<'k>,
        index: u32,
        holders: &[u32],
        asked: Option<&Finding>,
    ) -> Self {
        let mut verdict = Self::select(
            input,
            asked,
            |finding| finding.gpus.iter().any(|gpu| gpu.index == index),
            |pending| pending.gpu == index,
            |doubt| match (doubt.gpu, doubt.pid) {
                (Some(gpu), _) => gpu == index,
                (None, Some(pid)) => holders.contains(&pid),
                (None, None) => true,
            },
        );
        verdict.findings.sort_by_key(|finding| finding.process.is_some());
        verdict
    }

    fn select(
        input: ExplainInput<'k>,
        asked: Option<&Finding>,
        is_found: impl Fn(&Finding) -> bool,
        is_pending: impl Fn(&Pending) -> bool,
        is_in_doubt: impl Fn(&Undecided) -> bool,
    ) -> Self {
        let engine = input.engine;
        let found = engine.findings().iter().chain(engine.resolved());
        let mut findings: Vec<Finding> =
            found.filter(|finding| is_found(finding)).cloned().collect();
        if let Some(asked) = asked {
            findings.sort_by_key(|finding| finding.id != asked.id);
        }
        let mut undecided = engine.undecided();
        undecided.retain(is_in_doubt);
        Self {
            findings,
            pending: engine.pending().iter().filter(|pending| is_pending(pending)).collect(),
            kept: engine.kept().iter().filter(|kept| is_found(&kept.finding)).collect(),
            undecided,
        }
    }

    /// Formats the verdict as a section. `is_shown` selects the findings to show in full.
    pub(super) fn section(
        &self,
        input: ExplainInput<'_>,
        is_shown: impl Fn(&Finding) -> bool,
    ) -> Section {
        let mut section = Section::new("Findings");
        let shown: Vec<&Finding> =
            self.findings.iter().filter(|finding| is_shown(finding)).collect();
        if shown.is_empty() && self.kept.is_empty() {
            let span = Span::from_seconds(input.engine.history().span_seconds());
            let about = if self.findings.is_empty() { "" } else { " about the GPU itself" };
            section.item("- ", format!("no findings{about} in {span} of history"));
        }
        shown.into_iter().for_each(|finding| write(&mut section, finding));
        for kept in &self.kept {
            let until =
                kept.until.map_or_else(String::new, |until| format!(", until {}", until.local()));
            let doubt = match kept.certain {
                true => "",
                false => "; unknown whether the exemption matches this process",
            };
            let Finding { rule, message, .. } = &kept.finding;
            let reason = &kept.reason;
            section.item(
                "kept: ",
                format!("{rule}: {message} (kept by the configuration: {reason}{until}{doubt})"),
            );
        }
        for pending in &self.pending {
            let on = pending.pid.map_or_else(String::new, |_| format!(" on GPU {}", pending.gpu));
            let (since, due) = (pending.since.local(), pending.due.local());
            let rule = &pending.rule;
            section.item(
                "pending: ",
                format!(
                    "{rule}{on}, true since {since}; becomes a finding at {due} if nothing changes"
                ),
            );
        }
        for undecided in self.undecided.iter().take(UNDECIDED_MAX) {
            section.item("undecided: ", format!("{}: {}", undecided.rule, undecided.reason));
        }
        let more = self.undecided.len().saturating_sub(UNDECIDED_MAX);
        if more > 0 {
            section.item("undecided: ", format!("and {more} more (gpumem check lists them)"));
        }
        section
    }
}

fn write(section: &mut Section, finding: &Finding) {
    let kind = finding.kind.to_string();
    let rule =
        if *finding.rule == *kind { String::new() } else { format!(" (rule {})", finding.rule) };
    let ceased =
        finding.resolved_at.map_or_else(String::new, |at| format!("cleared at {}: ", at.local()));
    section.rows.push(Row::Item {
        mark: format!("{}: ", finding.severity),
        text: format!("{kind}{rule}: {ceased}{}", finding.message),
        severity: Some(finding.severity),
    });
    section.item("    since ", finding.since.local().to_string());
    section.item("    because ", finding.evidence.words());
    for also in &finding.also {
        section.item("    also ", format!("{}: {}", also.kind, also.evidence.words()));
    }
    if let Some(kept_by) = &finding.kept_by {
        section.item("    kept: ", kept_by.to_string());
    }
    if let Some(reason) = &finding.skipped {
        section.item("    skipped by reap: ", &**reason);
    }
}

/// Lists the commands of the findings, and then commands for the process. Omits a command for the process if a finding
/// has a command of the same kind. Omits commands that would only open this page.
pub(super) fn commands(findings: &[Finding], process_commands: &OwnCommands) -> Section {
    let mut section = Section::new("Commands");
    // Look for the word at any position, because commands for other machines start with `ssh`.
    let has_word = |command: &str, word| command.split(' ').any(|part| part == word);
    let mut written: Vec<&str> = Vec::new();
    for command in findings.iter().flat_map(|finding| &finding.commands) {
        if !has_word(command, "explain") && !written.contains(&command.as_str()) {
            section.item("", format!("`{command}`"));
            written.push(command);
        }
    }
    // A finding's command can include other processes of the job, so it replaces the command for the process.
    let (releases, ends): (Vec<&str>, Vec<&str>) =
        written.into_iter().partition(|command| has_word(command, "release"));
    if let (Some(command), true) = (&process_commands.release, releases.is_empty()) {
        section.item("to free cached memory: ", format!("`{command}`"));
    }
    if let (Some(command), true) = (&process_commands.kill, ends.is_empty()) {
        section.item("to end it: ", format!("`{command}`"));
    }
    section
}
