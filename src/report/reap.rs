//! Plans of `gpumem reap`, `kill` and `release`, their results, and past actions, as JSON and as text.

use std::fmt::{self, Write as _};
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;

use super::check::undecided_line;
use super::escape::{escape, fit};
use super::refusal::{self, RefusalPlace, RefusalReader, protected, refusal};
use super::style::Style;
use crate::advice;
use crate::model::finding::Undecided;
use crate::model::snapshot::ReadError;
use crate::model::{Snapshot, Time};
use crate::reclaim::guard::Protection;
use crate::reclaim::ledger::{Deed, Failure, LedgerSummary, PastAct};
use crate::reclaim::plan::Why;
use crate::reclaim::release::PlannedTarget;
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

/// The plan that `gpumem reap --json` and `gpumem release --json` print and, with --yes, its result: one document, even
/// on failure. Units are part of the field names. Unknown values are absent or `null`, never 0. Readers must ignore
/// unknown fields.
#[derive(Clone, PartialEq, Debug, Default, JsonSchema, Serialize)]
pub struct ReapReport {
    /// Format and major version.
    #[schemars(extend("const" = SCHEMA))]
    pub schema: &'static str,
    /// Time of the snapshot that the plan was made from: RFC 3339, UTC; `null` if there was none.
    pub time: Option<Time>,
    /// Whether the snapshot is from a recording, so that nothing can be killed.
    pub is_replay: bool,
    /// `planned` (exit code 0): nothing was sent; `done` (exit code 0): every target was killed or released memory, and
    /// the memory is free; `incomplete` (exit code 1); `interrupted`: a signal ended gpumem; `error` (exit code 1, 2 or
    /// 3): the command failed for the reason in `errors`.
    pub status: ReapStatus,
    /// Total memory that the targets should free, in bytes; `null` if unknown for any target.
    pub expected_bytes: Option<u64>,
    /// Memory that was freed, in bytes; `null` if the plan was not carried out.
    pub freed_bytes: Option<u64>,
    /// The targets, most memory first.
    pub targets: Vec<PlannedTarget>,
    /// Processes that were requested or found, but are skipped.
    pub refused: Vec<Refused>,
    /// Requested rules that could not be decided and therefore produce no findings.
    pub undecided: Vec<Undecided>,
    /// Read errors, and the reason for a failure.
    pub errors: Vec<ReadError>,
}

impl ReapReport {
    pub fn new(plan: Plan, undecided: Vec<Undecided>, errors: Vec<ReadError>) -> Self {
        Self {
            schema: SCHEMA,
            time: Some(plan.time),
            is_replay: false,
            status: ReapStatus::Planned,
            expected_bytes: plan.targets.iter().map(|target| target.bytes).sum(),
            freed_bytes: None,
            targets: plan.targets.into_iter().map(PlannedTarget::new).collect(),
            refused: plan.refused,
            undecided,
            errors,
        }
    }

    pub fn fail(&mut self, error: &str) {
        self.status = ReapStatus::Error;
        self.errors.push(ReadError::new("reap", error));
    }

    pub fn freed(&self) -> u64 {
        let outcomes = self.targets.iter().filter_map(|planned| planned.outcome.as_ref());
        outcomes.map(Outcome::freed_bytes).sum()
    }

    pub fn ended(&self) -> usize {
        let is_ended =
            |planned: &&PlannedTarget| planned.outcome.as_ref().is_some_and(Outcome::is_success);
        self.targets.iter().filter(is_ended).count()
    }

    pub fn due(&self) -> Vec<Target> {
        let due = self.targets.iter().filter(|planned| planned.is_due());
        due.map(|planned| planned.target.clone()).collect()
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
    for PlannedTarget { target, .. } in &report.targets {
        write_target(out, target, style, reader)?;
        writeln!(out)?;
    }
    for refused in &report.refused {
        let words = refusal(refused, reader);
        writeln!(out, "{} {words}", style.faint("skipped:"))?;
    }
    for undecided in &report.undecided {
        writeln!(out, "{}", undecided_line(undecided))?;
    }
    for error in &report.errors {
        writeln!(out, "error: {}", escape(&error.to_string()))?;
    }
    let (advised, others): (Vec<&Target>, Vec<&Target>) =
        report.targets.iter().map(|planned| &planned.target).partition(|target| target.is_advice());
    let (asked, others): (Vec<&Target>, Vec<&Target>) =
        others.into_iter().partition(|target| target.is_release());
    let (parked, ended): (Vec<&Target>, Vec<&Target>) =
        others.into_iter().partition(|target| target.is_park());
    let mut words = Vec::new();
    if !asked.is_empty() {
        words.push(format!("will ask {} to release memory", count(&asked)));
    }
    if !parked.is_empty() {
        words.push(format!("will park {}", count(&parked)));
    }
    match (ended.len(), advised.len() + asked.len() + parked.len()) {
        (0, 0) if reader.place == RefusalPlace::Release => words.push("nothing to park".to_owned()),
        (0, 0) => words.push("nothing to kill".to_owned()),
        (0, _) if words.is_empty() => words.push("nothing for gpumem to kill".to_owned()),
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

/// Formats a plan of `gpumem release`: first the targets with their steps, and then the skipped processes with reasons
/// and alternatives.
pub fn release_plan(
    report: &ReapReport,
    snapshot: &Snapshot,
    style: Style,
    reader: RefusalReader,
) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    for planned in &report.targets {
        let _ = writeln!(out, "{}", title(&planned.target, style));
        for step in &planned.target.steps {
            let words = step.describe(&planned.target);
            let _ = writeln!(out, "    {}", escape(&words));
        }
        let _ = match (&planned.outcome, &planned.proved) {
            (Some(outcome), _) => writeln!(out, "    {}", escape(&outcome.to_string())),
            (None, Some(proved)) => writeln!(out, "    verified: {}", escape(proved)),
            (None, None) => Ok(()),
        };
        if matches!(planned.outcome, Some(Outcome::NoWayIn { .. })) {
            out.push_str(&alternative(planned.target.leader, snapshot));
        }
        out.push('\n');
    }
    for refused in &report.refused {
        let words = refusal(refused, reader);
        let _ = writeln!(out, "{} {words}", style.faint("skipped:"));
        if let (Why::NoWayIn { .. }, Some(pid)) = (&refused.why, refused.pid) {
            out.push_str(&alternative(pid, snapshot));
        }
    }
    for error in &report.errors {
        let _ = writeln!(out, "error: {}", escape(&error.to_string()));
    }
    let due = report.due();
    let mut words = vec![match due.len() {
        0 => "no process to ask".to_owned(),
        _ => format!("will ask {} to release memory", count(&due.iter().collect::<Vec<_>>())),
    }];
    let left = report.targets.len() - due.len() + report.refused.len();
    if left > 0 {
        words.push(format!("{left} skipped"));
    }
    let _ = writeln!(out, "{}", words.join("; "));
    out
}

fn alternative(pid: u32, snapshot: &Snapshot) -> String {
    let Some(process) = snapshot.process(pid) else {
        return String::new();
    };
    let mut out = String::new();
    for line in advice::steps(process) {
        let _ = writeln!(out, "    instead: {}", escape(&line));
    }
    let _ = writeln!(out, "    more: gpumem explain {pid}");
    out
}

/// Formats the question that asks the user to confirm the plan.
pub fn question(targets: &[&Target]) -> String {
    let (asked, others): (Vec<&Target>, Vec<&Target>) =
        targets.iter().partition(|target| target.is_release());
    let (parked, ended): (Vec<&Target>, Vec<&Target>) =
        others.into_iter().partition(|target| target.is_park());
    let phrases = [
        (&ended, format!("kill {} to free {}", count(&ended), expected(&ended))),
        (&asked, format!("ask {} to release memory", count(&asked))),
        (&parked, format!("park {}", count(&parked))),
    ];
    let phrases = phrases.into_iter().filter(|(targets, _)| !targets.is_empty());
    let mut question = phrases.map(|(_, phrase)| phrase).collect::<Vec<_>>().join(", and ") + "?";
    if let Some(first) = question.get_mut(..1) {
        first.make_ascii_uppercase();
    }
    question
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

/// Returns the processes that receive a signal or request. The launcher comes first.
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
    let first_end = target.steps.iter().position(Step::ends_processes);
    for (at, step) in target.steps.iter().enumerate() {
        if let Some(command) = target.instead.as_ref().filter(|_| first_end == Some(at)) {
            writeln!(
                out,
                "    or `{command}`: keep it, with its memory on the host (experimental)"
            )?;
        }
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

/// Formats the outcome, the variables that still hold memory after a release, and how to wake a paused server.
pub fn outcome(target: &Target, outcome: &Outcome, reader: RefusalReader) -> String {
    let mut out = format!("{}: {}\n", target.leader, refusal::outcome(outcome, reader));
    if let Outcome::Released { report, .. } | Outcome::NothingToRelease { report, .. } = outcome {
        for reference in &report.references {
            let (bytes, name) = (Bytes(reference.bytes), escape(&reference.name));
            // Writing to a String cannot fail.
            let _ = writeln!(out, "    {bytes} held by {name}");
        }
    }
    if let Some(wake) = outcome.wake() {
        let _ = writeln!(out, "    to wake it: {}", escape(wake));
    }
    out
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
mod tests {
    use super::*;
    use crate::model::keep::KeptBy;
    use crate::model::{Kind, Time};
    use crate::reclaim::Refused;
    use crate::reclaim::guard::Protection;
    use crate::reclaim::plan::{Plan, Why};
    use crate::reclaim::target::{Because, MemberGpu};
    use crate::watch::sample;

    const READER: RefusalReader = RefusalReader { place: RefusalPlace::Reap, is_root: true };

    fn target(pid: u32, bytes: Option<u64>) -> Target {
        let mut target = Target { bytes, ..sample::target(pid) };
        let member = &mut target.members[0];
        member.user = Some("ann\u{1b}[2J".into());
        member.name = "evil\n\u{202e}name".into();
        member.gpus = vec![MemberGpu { index: 3, uuid: None, used_bytes: bytes }];
        target
    }

    fn report(targets: Vec<Target>, refused: Vec<Refused>) -> ReapReport {
        let plan = Plan { time: Time::default(), targets, refused };
        ReapReport::new(plan, Vec::new(), Vec::new())
    }

    fn because(kind: Kind) -> Reason {
        Reason::Found {
            findings: vec![Because {
                id: "x".into(),
                rule: "night\u{7}".into(),
                kind,
                pid: 7,
                since: Time::default(),
                message: "it \u{1b}]0;idles".to_owned(),
                evidence: serde_json::Value::Null,
            }],
        }
    }

    #[test]
    fn a_plan_shows_targets_reasons_and_steps_escaped() {
        let mut found = target(7, Some(1 << 30));
        found.reason = because(Kind::Idle);
        let refused = Refused {
            pid: Some(8),
            user: Some("bob\r".into()),
            name: Some("x\u{9b}y".into()),
            finding: None,
            kind: Some(Kind::Idle),
            why: Why::Protected {
                pid: 8,
                protection: Protection::Kept {
                    kept_by: KeptBy::Configuration { reason: "paper\n".into(), until: None },
                },
            },
        };
        let text = plan(&report(vec![found], vec![refused]), Style::default(), READER);
        let expected = "\
7 ann\\e[2J: 1.0 GiB on GPU 3: evil\\n\\u{202e}name
    idle since 1970-01-01 00:00:00 UTC (rule night\\u{7}): it \\e]0;idles
    1. SIGTERM to 7; wait 10s, longer while it works

skipped: 8 bob\\r (x\\u{9b}y): idle: protected by the configuration: paper\\n
will kill 1 process; should free 1.0 GiB; 1 skipped
";
        assert_eq!(text, expected);
    }

    #[test]
    fn every_signalled_process_has_a_line_and_is_counted() {
        let mut run = target(7, Some(1 << 30));
        for pid in [8, 9] {
            let mut member = run.members[0].clone();
            (member.pid, member.name) = (pid, format!("python rank{pid}.py").into());
            member.gpus[0].used_bytes = (pid == 8).then_some(2 << 30);
            run.members.push(member);
        }
        run.members[2].is_listed = false;
        let mut launcher = run.members[0].clone();
        (launcher.pid, launcher.user, launcher.name) = (6, None, "torchrun run.py".into());
        (launcher.gpus, launcher.is_listed) = (Vec::new(), false);
        run.launcher = Some(launcher);
        run.bytes = Some(3 << 30);
        let text = plan(&report(vec![run.clone()], Vec::new()), Style::default(), READER);
        let expected = "\
7 ann\\e[2J: 3.0 GiB on GPU 3: evil\\n\\u{202e}name
    kills 6 uid 1000: the launcher: torchrun run.py
    kills 7 ann\\e[2J: 1.0 GiB: evil\\n\\u{202e}name
    kills 8 ann\\e[2J: 2.0 GiB: python rank8.py
    kills 9 ann\\e[2J: not listed by NVML: python rank9.py
    selected by you
    1. SIGTERM to 7, 8, 9; wait 10s, longer while it works

will kill 4 processes of 1 job; should free 3.0 GiB
";
        assert_eq!(text, expected);
        let (one, other) = (target(20, Some(0)), target(21, Some(0)));
        assert_eq!(count(&[&one]), "1 process");
        assert_eq!(count(&[&one, &other]), "2 processes");
        assert_eq!(count(&[&run, &one]), "5 processes of 2 jobs");
        let json = serde_json::to_value(report(vec![run], Vec::new())).unwrap();
        let pid_of = |process: &serde_json::Value| process["pid"].as_u64().unwrap();
        let members = json["targets"][0]["members"].as_array().unwrap();
        assert_eq!(members.iter().map(pid_of).collect::<Vec<_>>(), [7, 8, 9]);
        assert_eq!(pid_of(&json["targets"][0]["launcher"]), 6);
    }
}
