//! The rules' verdict on a process or a GPU.

use super::KnownSoFar;
use super::page::{Row, Section};
use crate::model::finding::{Finding, Kept, OwnCommands, Pending, Undecided};
use crate::model::{Identity, Kind};
use crate::units::Span;

const MOST_UNDECIDED: usize = 3;

pub(super) struct Verdict<'k> {
    /// The requested finding comes first. Includes findings resolved within the history.
    pub(super) findings: Vec<Finding>,
    pending: Vec<&'k Pending>,
    kept: Vec<&'k Kept>,
    undecided: Vec<Undecided>,
}

impl<'k> Verdict<'k> {
    /// The verdict on a process on these GPUs. On those of `hidden_on`, it only has the device file open.
    pub(super) fn of_process(
        seen: KnownSoFar<'k>,
        identity: Identity,
        (gpus, hidden_on): (&[u32], &[u32]),
        asked: Option<&Finding>,
    ) -> Self {
        let engine = seen.engine;
        let is_its = |finding: &Finding| {
            finding.process.as_ref().is_some_and(|process| process.identity == identity)
        };
        // Memory on such a GPU that no listed process accounts for may belong to this process.
        let may_be_its = |finding: &&Finding| {
            let is_on = finding.gpus.iter().any(|gpu| hidden_on.contains(&gpu.index));
            finding.process.is_none() && finding.kind == Kind::Unattributed && is_on
        };
        let mut verdict = Self::of(
            seen,
            asked,
            is_its,
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

    /// The verdict on a GPU held by these processes. Findings about the GPU itself come first.
    pub(super) fn of_gpu(
        seen: KnownSoFar<'k>,
        index: u32,
        holders: &[u32],
        asked: Option<&Finding>,
    ) -> Self {
        let mut verdict = Self::of(
            seen,
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

    fn of(
        seen: KnownSoFar<'k>,
        asked: Option<&Finding>,
        is_found: impl Fn(&Finding) -> bool,
        is_pending: impl Fn(&Pending) -> bool,
        is_in_doubt: impl Fn(&Undecided) -> bool,
    ) -> Self {
        let engine = seen.engine;
        let found = engine.findings().iter().chain(engine.resolved());
        let mut findings: Vec<Finding> = found.filter(|it| is_found(it)).cloned().collect();
        if let Some(asked) = asked {
            findings.sort_by_key(|finding| finding.id != asked.id);
        }
        let mut undecided = engine.undecided();
        undecided.retain(is_in_doubt);
        Self {
            findings,
            pending: engine.pending().iter().filter(|it| is_pending(it)).collect(),
            kept: engine.kept().iter().filter(|it| is_found(&it.finding)).collect(),
            undecided,
        }
    }

    /// The verdict as a section. `is_shown` selects the findings shown in full.
    pub(super) fn section(
        &self,
        seen: KnownSoFar<'_>,
        is_shown: impl Fn(&Finding) -> bool,
    ) -> Section {
        let mut section = Section::new("Findings");
        let shown: Vec<&Finding> = self.findings.iter().filter(|it| is_shown(it)).collect();
        if shown.is_empty() && self.kept.is_empty() {
            let span = Span::from_seconds(seen.engine.history().span_seconds());
            let about = if self.findings.is_empty() { "" } else { " about the GPU itself" };
            section.item("- ", format!("no findings{about} in {span} of history"));
        }
        shown.into_iter().for_each(|finding| write(&mut section, finding));
        for kept in &self.kept {
            let until =
                kept.until.map_or_else(String::new, |until| format!(", until {}", until.local()));
            let doubt = match kept.certain {
                true => "",
                false => "; whether the exemption matches this one is not known",
            };
            let Finding { rule, message, .. } = &kept.finding;
            let why = &kept.reason;
            section.item(
                "kept: ",
                format!("{rule}: {message} (kept by the configuration: {why}{until}{doubt})"),
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
        for undecided in self.undecided.iter().take(MOST_UNDECIDED) {
            section.item("undecided: ", format!("{}: {}", undecided.rule, undecided.reason));
        }
        let more = self.undecided.len().saturating_sub(MOST_UNDECIDED);
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
    if let Some(why) = &finding.skipped {
        section.item("    skipped by reap: ", &**why);
    }
}

/// The commands of unresolved findings, each once, then those for the process itself, unless a finding has one of
/// the same kind. Omits commands that only open this page.
pub(super) fn commands(findings: &[Finding], own: &OwnCommands) -> Section {
    let mut section = Section::new("What to type");
    // A command for another machine begins with ssh.
    let is = |command: &str, word| command.split(' ').any(|it| it == word);
    let mut written: Vec<&str> = Vec::new();
    for command in findings.iter().flat_map(|finding| &finding.commands) {
        if !is(command, "explain") && !written.contains(&command.as_str()) {
            section.item("", format!("`{command}`"));
            written.push(command);
        }
    }
    // A finding's command also names other processes of the job.
    let (releases, ends): (Vec<&str>, Vec<&str>) =
        written.into_iter().partition(|it| is(it, "release"));
    if let (Some(command), true) = (&own.release, releases.is_empty()) {
        section.item("to free what it caches: ", format!("`{command}`"));
    }
    if let (Some(command), true) = (&own.kill, ends.is_empty()) {
        section.item("to end it: ", format!("`{command}`"));
    }
    section
}
