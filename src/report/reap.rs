//! Plans of `gpumem reap` and `gpumem kill`, their results, and past actions, as JSON and as text.

use std::fmt::{self, Write as _};
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;

use super::escape::{escape, fit};
use super::refusal::{self, RefusalReader, protected, refusal};
use super::style::Style;
use crate::model::Time;
use crate::model::finding::Undecided;
use crate::model::snapshot::ReadError;
use crate::reclaim::guard::Protection;
use crate::reclaim::ledger::{Deed, Failure, LedgerSummary, PastAct};
use crate::reclaim::target::{Reason, Step, TargetProcess};
use crate::reclaim::{Outcome, Plan, Refused, Target};
use crate::units::Bytes;

pub const SCHEMA: &str = "gpumem.reap/1";
pub const HISTORY: &str = "gpumem.history/1";
/// Maximum width of a command in text, in columns. JSON contains the whole command.
const NAME_COLUMNS: usize = 100;

/// Result of `gpumem reap` or `gpumem release`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, JsonSchema, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ReapStatus {
    /// A plan was made, and nothing was sent.
    #[default]
    Planned,
    /// Everything requested was done, and the memory is free.
    Done,
    /// Part of the request was not carried out.
    Incomplete,
    /// A signal interrupted gpumem.
    Interrupted,
    /// The command failed; `errors` contains the reason.
    Error,
}

/// The plan that `gpumem reap --json` prints and, with --yes, its result: one document, even on failure. Units are
/// part of the field names. Unknown values are absent or `null`, never 0. Readers must ignore unknown fields.
#[derive(Clone, PartialEq, Debug, Default, JsonSchema, Serialize)]
pub struct ReapReport {
    /// Format and major version.
    #[schemars(extend("const" = SCHEMA))]
    pub schema: &'static str,
    /// Time of the snapshot that the plan was made from: RFC 3339, UTC; `null` if there was none.
    pub time: Option<Time>,
    /// Whether the snapshot is from a recording, so that nothing can be killed.
    pub is_replay: bool,
    /// `planned` (exit code 0): nothing was sent; `done` (exit code 0): every target was killed and its memory freed;
    /// `incomplete` (exit code 1); `interrupted`: a signal ended gpumem; `error` (exit code 1, 2 or 3): the command
    /// failed for the reason in `errors`.
    pub status: ReapStatus,
    /// Total memory that the targets should free, in bytes; `null` if unknown for any target.
    pub expected_bytes: Option<u64>,
    /// Memory that was freed, in bytes; `null` if the plan was not carried out.
    pub freed_bytes: Option<u64>,
    /// The targets, most memory first.
    pub targets: Vec<Planned>,
    /// Processes that were requested or found, but are skipped.
    pub refused: Vec<Refused>,
    /// Requested rules that could not be decided and therefore produce no findings.
    pub undecided: Vec<Undecided>,
    /// Read errors, and the reason for a failure.
    pub errors: Vec<ReadError>,
}

/// A target and its outcome.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize)]
pub struct Planned {
    /// The target.
    #[serde(flatten)]
    pub target: Target,
    /// Outcome for the target; `null` if the plan was not carried out or not completed for the target.
    pub outcome: Option<Outcome>,
}

impl ReapReport {
    pub fn new(plan: Plan, undecided: Vec<Undecided>, errors: Vec<ReadError>) -> Self {
        let expected = plan.targets.iter().map(|target| target.bytes);
        Self {
            schema: SCHEMA,
            time: Some(plan.time),
            is_replay: false,
            status: ReapStatus::Planned,
            expected_bytes: expected.sum(),
            freed_bytes: None,
            targets: plan
                .targets
                .into_iter()
                .map(|target| Planned { target, outcome: None })
                .collect(),
            refused: plan.refused,
            undecided,
            errors,
        }
    }

    /// Creates the report for a command that failed before a plan was made.
    pub fn failed(error: &str) -> Self {
        let mut report = Self { schema: SCHEMA, ..Self::default() };
        report.fail(error);
        report
    }

    pub fn fail(&mut self, error: &str) {
        self.status = ReapStatus::Error;
        self.errors.push(ReadError { gpu: None, call: "reap".into(), error: error.into() });
    }

    pub fn freed(&self) -> u64 {
        let outcomes = self.targets.iter().filter_map(|planned| planned.outcome.as_ref());
        outcomes.map(Outcome::freed_bytes).sum()
    }

    pub fn ended(&self) -> usize {
        let is_ended =
            |planned: &&Planned| planned.outcome.as_ref().is_some_and(Outcome::is_success);
        self.targets.iter().filter(is_ended).count()
    }
}

/// The output of `gpumem reap --history --json`: past actions, from the audit log. Units are part of the field names.
/// Unknown values are absent or `null`, never 0. Readers must ignore unknown fields.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize)]
pub struct ReapHistory {
    /// Format and major version.
    #[schemars(extend("const" = HISTORY))]
    pub schema: &'static str,
    /// Path of the audit log.
    pub ledger: Arc<str>,
    /// Whether the audit log contains earlier actions that are not listed.
    pub is_cut: bool,
    /// Number of lines of the audit log that are incomplete or from a later version.
    pub unread_lines: usize,
    /// The actions, oldest first.
    pub acts: Vec<PastAct>,
}

impl ReapHistory {
    pub fn new(ledger: Arc<str>, past: LedgerSummary) -> Self {
        Self {
            schema: HISTORY,
            ledger,
            is_cut: past.is_cut,
            unread_lines: past.unread_lines,
            acts: past.acts,
        }
    }
}

pub fn plan(report: &ReapReport, style: Style, reader: RefusalReader) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = write_plan(&mut out, report, style, reader);
    out
}

fn write_plan(
    out: &mut String,
    report: &ReapReport,
    style: Style,
    reader: RefusalReader,
) -> fmt::Result {
    for Planned { target, .. } in &report.targets {
        write_target(out, target, style, reader)?;
        writeln!(out)?;
    }
    for refused in &report.refused {
        let words = refusal(refused, reader);
        writeln!(out, "{} {words}", style.faint("skipped:"))?;
    }
    for undecided in &report.undecided {
        let (rule, reason) = (escape(&undecided.rule), escape(&undecided.reason));
        writeln!(out, "undecided: {rule}: {reason}")?;
    }
    for error in &report.errors {
        let gpu = error.gpu.map(|gpu| format!("GPU {gpu}: "));
        let (call, error) = (escape(&error.call), escape(&error.error));
        writeln!(out, "error: {}{call}: {error}", gpu.unwrap_or_default())?;
    }
    let (advised, others): (Vec<&Target>, Vec<&Target>) =
        report.targets.iter().map(|planned| &planned.target).partition(|target| target.is_advice());
    let (asked, ended): (Vec<&Target>, Vec<&Target>) =
        others.into_iter().partition(|target| target.is_release());
    let mut words = Vec::new();
    if !asked.is_empty() {
        words.push(format!("will ask {} to release memory", count(&asked)));
    }
    match (ended.len(), advised.len() + asked.len()) {
        (0, 0) => words.push("nothing to kill".to_owned()),
        (0, _) if asked.is_empty() => words.push("nothing for gpumem to kill".to_owned()),
        (0, _) => {}
        (_, _) => {
            words.push(format!("will kill {}; should free {}", count(&ended), expected(&ended)));
        }
    }
    if !advised.is_empty() {
        words.push(format!("{} for others to kill", advised.len()));
    }
    if !report.refused.is_empty() {
        words.push(format!("{} skipped", report.refused.len()));
    }
    writeln!(out, "{}", words.join("; "))
}

/// Formats the question that the user must confirm before the plan is carried out.
pub fn question(targets: &[&Target]) -> String {
    let (asked, ended): (Vec<&Target>, Vec<&Target>) =
        targets.iter().partition(|target| target.is_release());
    let ask = || format!("ask {} to release memory", count(&asked));
    let kill = || format!("ill {} to free {}", count(&ended), expected(&ended));
    match (asked.is_empty(), ended.is_empty()) {
        (true, _) => format!("K{}?", kill()),
        (false, true) => format!("A{}?", &ask()[1..]),
        (false, false) => format!("K{}, and {}?", kill(), ask()),
    }
}

/// Formats the number of processes that receive a signal or request, and the number of jobs if it differs.
pub fn count(targets: &[&Target]) -> String {
    let processes: usize = targets.iter().map(|target| receivers(target).count()).sum();
    match (processes, targets.len()) {
        (1, _) => "1 process".to_owned(),
        (processes, jobs) if processes == jobs => format!("{processes} processes"),
        (processes, 1) => format!("{processes} processes of 1 job"),
        (processes, jobs) => format!("{processes} processes of {jobs} jobs"),
    }
}

/// Returns the processes that receive a signal or request, starting with the launcher.
fn receivers(target: &Target) -> impl Iterator<Item = &TargetProcess> {
    target.launcher.iter().chain(&target.members)
}

/// Formats the memory that the targets should free. If only some amounts are known, their sum is a lower bound. If
/// none is known, says that NVML does not report the memory.
pub fn expected(targets: &[&Target]) -> String {
    let known_bytes: u64 = targets.iter().filter_map(|target| target.bytes).sum();
    let unknown_count = targets.iter().filter(|target| target.bytes.is_none()).count();
    match (known_bytes, unknown_count) {
        (_, 0) => Bytes(known_bytes).to_string(),
        (0, _) => "memory that NVML does not report".to_owned(),
        (_, _) => format!("{} or more", Bytes(known_bytes)),
    }
}

pub fn title(target: &Target, style: Style) -> String {
    let Some(leader) = lead(target) else {
        return String::new();
    };
    let pid = style.heading(&leader.pid.to_string());
    let mut gpus: Vec<u32> =
        target.members.iter().flat_map(|member| member.gpus.iter().map(|gpu| gpu.index)).collect();
    gpus.sort_unstable();
    gpus.dedup();
    let on = match &gpus[..] {
        [] => String::new(),
        [gpu] => format!(" on GPU {gpu}"),
        gpus => format!(" on GPUs {}", numbers(gpus)),
    };
    let (owner, bytes) = (owner(leader), expected(&[target]));
    format!("{pid} {owner}: {bytes}{on}: {}", short(&leader.name))
}

fn write_target(
    out: &mut String,
    target: &Target,
    style: Style,
    reader: RefusalReader,
) -> fmt::Result {
    if lead(target).is_none() {
        return Ok(());
    }
    writeln!(out, "{}", title(target, style))?;
    if receivers(target).nth(1).is_some() {
        for member in receivers(target) {
            writeln!(out, "    {}", receiver(member, target))?;
        }
    }
    if !target.dead.is_empty() {
        writeln!(out, "    holding memory allocated by {}, which exited", numbers(&target.dead))?;
    }
    match &target.reason {
        Reason::Named => writeln!(out, "    selected by you")?,
        Reason::Found { findings } => {
            for found in findings {
                write!(out, "    {} since {}", found.kind, found.since.local())?;
                if *found.rule != *found.kind.name() {
                    write!(out, " (rule {})", escape(&found.rule))?;
                }
                writeln!(out, ": {}", escape(&found.message))?;
            }
        }
    }
    if let Some(owner) = &target.owner {
        writeln!(out, "    first: {}", escape(owner))?;
    }
    for (at, step) in target.steps.iter().enumerate() {
        writeln!(out, "    {}. {}", at + 1, step_text(step, target, reader))?;
    }
    Ok(())
}

fn receiver(member: &TargetProcess, target: &Target) -> String {
    let is_launcher = target.launcher.as_ref() == Some(member);
    let bytes: Option<u64> = member.gpus.iter().map(|gpu| gpu.used_bytes).sum();
    let holds = match bytes {
        _ if is_launcher => "the launcher".to_owned(),
        _ if !member.is_listed => "not listed by NVML".to_owned(),
        Some(bytes) => Bytes(bytes).to_string(),
        None => "memory that NVML does not report".to_owned(),
    };
    let (pid, owner, name) = (member.pid, owner(member), short(&member.name));
    format!("kills {pid} {owner}: {holds}: {name}")
}

/// Describes why a process is a target: `named`, or the kinds of its findings.
pub fn why(target: &Target) -> String {
    match &target.reason {
        Reason::Named => "named".to_owned(),
        Reason::Found { findings } => {
            let mut kinds: Vec<&str> = findings.iter().map(|finding| finding.kind.name()).collect();
            kinds.dedup();
            kinds.join(", ")
        }
    }
}

/// Returns the leader of a target, or its first member if the leader is not a member. Returns `None` if the target
/// has no members.
pub fn lead(target: &Target) -> Option<&TargetProcess> {
    let leader = target.members.iter().find(|member| member.pid == target.leader);
    leader.or(target.members.first())
}

pub fn owner(member: &TargetProcess) -> String {
    match &member.user {
        Some(user) => escape(user).into_owned(),
        None => format!("uid {}", member.uid),
    }
}

pub fn short(name: &str) -> String {
    fit(&escape(name), NAME_COLUMNS).into_owned()
}

pub fn numbers(numbers: &[u32]) -> String {
    let words: Vec<String> = numbers.iter().map(ToString::to_string).collect();
    words.join(", ")
}

fn step_text(step: &Step, target: &Target, reader: RefusalReader) -> String {
    match step.advice() {
        Some(command) => {
            let command = Arc::clone(command);
            protected(&Protection::Owned { command }, None, reader)
        }
        None => escape(&step.describe(target)).into_owned(),
    }
}

pub fn deed(deed: &Deed) -> String {
    escape(&deed.to_string()).into_owned()
}

pub fn failures(failures: &[Failure]) -> String {
    let words: Vec<String> = failures
        .iter()
        .map(|failure| match failure.pid {
            Some(pid) => format!("not to {pid}: {}", escape(&failure.error)),
            None => format!("failed: {}", escape(&failure.error)),
        })
        .collect();
    words.join("; ")
}

pub fn outcome(target: &Target, outcome: &Outcome, reader: RefusalReader) -> String {
    format!("{}: {}\n", target.leader, refusal::outcome(outcome, reader))
}

pub fn total(report: &ReapReport) -> String {
    let freed = Bytes(report.freed());
    let (ended, all) = (report.ended(), report.targets.len());
    let interrupted = match report.status {
        ReapStatus::Interrupted => "; interrupted",
        _ => "",
    };
    format!("freed {freed}; {ended} of {all} done{interrupted}\n")
}

#[cfg(test)]
mod tests;
