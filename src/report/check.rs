//! The verdict of `gpumem check`: as JSON, and for people with the worst first. As CI servers show it, it is in
//! `ci`.

mod ci;

use std::fmt::{self, Write as _};
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;

use super::escape::escape;
use super::style::{Style, broken};
use super::table::Table;
use crate::model::finding::{Finding, Kept, Pending, Undecided};
use crate::model::snapshot::ReadError;
use crate::model::{Reclaimable, Severity, Suspect, Time};
use crate::units::{Bytes, Span, number_of};

/// The `schema` that this version writes.
pub const SCHEMA: &str = "gpumem.check/1";

/// What the check came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, JsonSchema, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckOutcome {
    /// Nothing at or above the severity asked for.
    Ok,
    /// Something at or above it.
    Findings,
    /// It could not be measured.
    #[default]
    Error,
}

/// How many findings there are of each severity.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, JsonSchema, Serialize)]
pub struct Counts {
    /// Of severity info.
    pub info: usize,
    /// Of severity warning.
    pub warning: usize,
    /// Of severity critical.
    pub critical: usize,
}

impl Counts {
    /// Counts what lasts; what has ceased does not count.
    pub fn of(findings: &[Finding]) -> Self {
        let mut counts = Self::default();
        for finding in findings.iter().filter(|finding| finding.resolved_at.is_none()) {
            match finding.severity {
                Severity::Info => counts.info += 1,
                Severity::Warning => counts.warning += 1,
                Severity::Critical => counts.critical += 1,
            }
        }
        counts
    }
}

/// The verdict that `gpumem check --json` prints: one document, also where the check failed. Units are
/// in the names. What is not known is absent or `null`, never 0. A reader ignores fields that it does
/// not know.
#[derive(Clone, PartialEq, Debug, Default, JsonSchema, Serialize)]
pub struct CheckReport {
    /// Format and major version.
    #[schemars(extend("const" = SCHEMA))]
    pub schema: &'static str,
    /// Time of the last snapshot: RFC 3339, UTC; `null` where there was none.
    pub time: Option<Time>,
    /// The span of history that was judged, in seconds.
    pub window_seconds: f64,
    /// `ok`, the exit code is 0; `findings`, 1: something at or above --fail-on, a limit exceeded, a new
    /// holder, or memory not free in time; `error`, 2 or 3: it could not be measured, and errors says why.
    pub status: CheckOutcome,
    /// How many findings last, by severity.
    pub counts: Counts,
    /// How much is reclaimable, and how much is suspected.
    pub reclaimable: Reclaimable,
    /// Whether rules were applied; `false` where only limits were asked for, so that no finding means
    /// nothing.
    pub rules_applied: bool,
    /// What lasts, the worst first, then what cleared since, latest first.
    pub findings: Vec<Finding>,
    /// What will be a finding when its rule's duration is over, if nothing changes.
    pub pending: Vec<Pending>,
    /// What looks like waste already and is not proved, what holds most first. It counts for no exit code, and
    /// nothing is done about it.
    pub suspects: Vec<Suspect>,
    /// What an exemption of the configuration keeps from being a finding.
    pub kept: Vec<Kept>,
    /// Rules that could not be decided; they produce no finding.
    pub undecided: Vec<Undecided>,
    /// Each limit that was asked for, on each GPU; empty where none was.
    pub limits: Vec<LimitVerdict>,
    /// What was waited for; empty without `--wait-free`.
    pub wait: Vec<WaitVerdict>,
    /// Who holds memory and did not in the snapshot that `--baseline` names; `null` without it.
    pub new_holders: Option<Vec<NewHolder>>,
    /// What could not be read, and why the check failed.
    pub errors: Vec<ReadError>,
    /// How many GPUs it is about.
    #[serde(skip)]
    pub gpus: usize,
    /// The host's name.
    #[serde(skip)]
    pub hostname: Option<Arc<str>>,
    /// The rules that were applied.
    #[serde(skip)]
    pub rules: Vec<Arc<str>>,
    /// The least severity that fails the check; none where findings do not.
    #[serde(skip)]
    pub fail_on: Option<Severity>,
    /// Of each GPU that was waited for: what is free of it, and who holds the rest.
    #[serde(skip)]
    pub holders: Vec<(String, Table)>,
}

/// A limit that a GPU may be held to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, JsonSchema, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Limit {
    /// On the GPU's used memory.
    MaxUsed,
    /// On what of it no listed process holds.
    MaxUnattributed,
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::MaxUsed => "max-used",
            Self::MaxUnattributed => "max-unattributed",
        })
    }
}

/// What a GPU came to, against a limit, in the last snapshot.
#[derive(Clone, PartialEq, Eq, Debug, JsonSchema, Serialize)]
pub struct LimitVerdict {
    /// On used memory, or on what of it no listed process holds. Reserved memory is not used; but where
    /// memory.reserved_bytes of the snapshot is `null`, used includes it.
    pub limit: Limit,
    /// The GPU's index.
    pub gpu: u32,
    /// Its UUID.
    pub uuid: Option<Arc<str>>,
    /// The most that it may be, in bytes; `null` for a share of an unknown whole.
    pub limit_bytes: Option<u64>,
    /// What it is, in bytes; `null` where that is not known.
    pub actual_bytes: Option<u64>,
    /// Whether that is more; `null` where it cannot be told, and then status is not `ok`.
    pub exceeded: Option<bool>,
}

/// A process that holds memory on a GPU on which it held none in the baseline.
#[derive(Clone, PartialEq, Eq, Debug, JsonSchema, Serialize)]
pub struct NewHolder {
    /// The GPU's index.
    pub gpu: u32,
    /// Its UUID.
    pub uuid: Option<Arc<str>>,
    /// As NVML names it.
    pub pid: u32,
    /// What it is called; a process may choose that.
    pub name: String,
    /// Its owner; `null` where that is not known.
    pub user: Option<String>,
    /// What it holds there, in bytes; `null` where that is not known.
    pub used_bytes: Option<u64>,
}

/// What became of waiting for free memory.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize)]
pub struct WaitVerdict {
    /// The GPU that was named, as it was typed; `null` where it may be any.
    pub named: Option<String>,
    /// The GPU that has it, or that came nearest, by NVML's index; `null` where nothing is known of
    /// any.
    pub gpu: Option<u32>,
    /// Its UUID.
    pub uuid: Option<Arc<str>>,
    /// What it has free or, where satisfied is false, had at most, in bytes.
    pub free_bytes: Option<u64>,
    /// What was to be free, in bytes.
    pub wanted_bytes: u64,
    /// Whether so much was free in the last snapshot.
    pub satisfied: bool,
    /// From the first snapshot to the last, in seconds.
    #[schemars(range(min = 0))]
    pub waited_seconds: f64,
}

impl CheckReport {
    /// The report of a check that came to nothing, because of this.
    pub fn failed(error: &str) -> Self {
        Self {
            schema: SCHEMA,
            errors: vec![ReadError { gpu: None, call: "check".into(), error: error.into() }],
            ..Self::default()
        }
    }

    /// The report for people; its lines broken for a terminal of `width` columns, where one is given.
    pub fn to_text(&self, look: TextLook) -> String {
        let TextLook { style, width, ascii, verbose } = look;
        let mut out = String::new();
        // Writing to a String cannot fail.
        let _ = self.write_wait(&mut out, style);
        // Where it could not be measured, or no rule was asked, whether anything is reclaimable is not known.
        let is_judged = self.rules_applied && self.status != CheckOutcome::Error;
        if is_judged || !self.reclaimable.is_nothing() {
            out += &(style.heading(&self.reclaimable.headline(ascii)) + "\n\n");
        }
        let _ = self.text(&mut out, style, verbose);
        match width {
            Some(width) => broken(&out, width),
            None => out,
        }
    }

    /// What lasts.
    fn lasting(&self) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(|finding| finding.resolved_at.is_none())
    }

    fn text(&self, out: &mut String, style: Style, verbose: bool) -> fmt::Result {
        // Who was waiting, and has what was asked for, asks nothing of the others.
        let is_served = !self.wait.is_empty() && self.wait.iter().all(|wait| wait.satisfied);
        if verbose || !is_served || self.fail_on.is_some() {
            for equal in fold(self.lasting()) {
                write_finding(out, &equal, style)?;
            }
            for suspect in &self.suspects {
                write_suspect(out, suspect, style)?;
            }
        }
        for exceeded in self.exceeded() {
            writeln!(out, "limit: GPU {}: {exceeded}", exceeded.gpu)?;
        }
        for new in self.new_holders.iter().flatten() {
            writeln!(out, "new: {new}")?;
        }
        for kept in &self.kept {
            write_kept(out, kept)?;
        }
        let shows_undecided = verbose || self.wait.is_empty();
        for undecided in self.undecided.iter().filter(|_| shows_undecided) {
            writeln!(out, "undecided: {}: {}", undecided.rule, escape(&undecided.reason))?;
        }
        for error in self.errors.iter().filter(|error| !is_of_wait(error)) {
            writeln!(out, "error: {}", error_line(error))?;
        }
        writeln!(out, "{}", self.summary())
    }

    /// The verdict in a line, in which nothing stands that a process chose.
    fn summary(&self) -> String {
        let counts = self.counts;
        let mut found = Vec::new();
        for (count, severity) in [
            (counts.critical, Severity::Critical),
            (counts.warning, Severity::Warning),
            (counts.info, Severity::Info),
        ] {
            if count > 0 {
                found.push(counted(count, severity));
            }
        }
        let exceeded = self.exceeded().count();
        if exceeded > 0 {
            found.push(format!("{} exceeded", number_of(exceeded, "limit")));
        }
        let new = self.new_holders.as_ref().map_or(0, Vec::len);
        if new > 0 {
            found.push(number_of(new, "new holder"));
        }
        if self.wait.iter().any(|wait| !wait.satisfied) {
            found.push("not free in time".to_owned());
        }
        let found = match (found.is_empty(), self.rules_applied) {
            (true, false) if self.status != CheckOutcome::Ok => {
                "nothing exceeded that is known".to_owned()
            }
            (true, false) if self.limits.is_empty() => "no new holders".to_owned(),
            (true, false) => "within limits".to_owned(),
            (true, true) => "no findings".to_owned(),
            (false, _) => found.join(", "),
        };
        let ceased = self.findings.len() - counts.info - counts.warning - counts.critical;
        let cleared = if ceased > 0 { format!(", {ceased} cleared since") } else { String::new() };
        let suspects = match self.suspects.len() {
            0 => String::new(),
            count => format!(", {}", number_of(count, "suspect")),
        };
        let kept = match self.kept.len() {
            0 => String::new(),
            count => format!(", {count} kept by the configuration"),
        };
        let span = Span::from_seconds(self.window_seconds);
        let gpus = number_of(self.gpus, "GPU");
        let verdict =
            if self.status == CheckOutcome::Error { "could not measure everything; " } else { "" };
        let based = match self.rules_applied {
            true => format!(", based on {span} of history"),
            false => String::new(),
        };
        format!("{verdict}{found}{suspects}{cleared}{kept} on {gpus}{based}")
    }

    fn exceeded(&self) -> impl Iterator<Item = &LimitVerdict> {
        let exceeded = |verdict: &&LimitVerdict| verdict.exceeded == Some(true);
        self.limits.iter().filter(exceeded)
    }

    /// What the wait came to, a line each, and who holds the rest.
    fn write_wait(&self, out: &mut String, style: Style) -> fmt::Result {
        for wait in &self.wait {
            writeln!(out, "{}", style.heading(&wait.to_string()))?;
        }
        for error in self.errors.iter().filter(|error| is_of_wait(error)) {
            writeln!(out, "error: {}", error_line(error))?;
        }
        for (title, table) in &self.holders {
            let rows = table.render(None, |heading| style.faint(heading));
            write!(out, "\n{title}\n{}", if table.is_empty() { "" } else { &rows })?;
        }
        if self.wait.is_empty() { Ok(()) } else { writeln!(out) }
    }
}

/// How the report looks to people.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TextLook {
    pub style: Style,
    /// Columns of the terminal, where it is one.
    pub width: Option<usize>,
    /// A headline of ASCII characters only.
    pub ascii: bool,
    /// Where something was waited for: what rules have not decided, and all that they find when it is free, too.
    pub verbose: bool,
}

impl fmt::Display for LimitVerdict {
    /// What the GPU comes to, against the limit.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = |bytes: Option<u64>| Bytes(bytes.unwrap_or_default());
        let what = match self.limit {
            Limit::MaxUsed => "in use",
            Limit::MaxUnattributed => "in use by no process that NVML lists",
        };
        let (actual, most) = (bytes(self.actual_bytes), bytes(self.limit_bytes));
        write!(f, "{actual} {what}, more than {most} (--{})", self.limit)
    }
}

impl fmt::Display for WaitVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let wanted = Bytes(self.wanted_bytes);
        let waited = Span::from_seconds(self.waited_seconds);
        match (self.gpu, self.free_bytes.map(Bytes)) {
            (Some(gpu), Some(free)) if self.satisfied => {
                write!(f, "free: GPU {gpu}: {free} free, {wanted} wanted, after {waited}")
            }
            (Some(gpu), Some(free)) => write!(
                f,
                "not free: {wanted} wanted, waited {waited}; the most was {free} on GPU {gpu}"
            ),
            _ => write!(
                f,
                "not free: {wanted} wanted, waited {waited}; its free memory is not known"
            ),
        }
    }
}

impl fmt::Display for NewHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.used_bytes.map_or_else(|| "memory".to_owned(), |it| Bytes(it).to_string());
        let user =
            self.user.as_deref().map_or_else(String::new, |it| format!(" of {}", escape(it)));
        let name = escape(&self.name);
        let Self { gpu, pid, .. } = self;
        write!(f, "GPU {gpu}: {name} ({pid}){user} holds {bytes}, and held none in the baseline")
    }
}

/// Whether it says why waiting is in vain.
fn is_of_wait(error: &ReadError) -> bool {
    &*error.call == "--wait-free"
}

/// What could not be read, in a line.
pub fn error_line(error: &ReadError) -> String {
    let gpu = error.gpu.map_or_else(String::new, |gpu| format!("GPU {gpu}: "));
    format!("{gpu}{}: {}", escape(&error.call), escape(&error.error))
}

/// `1 warning`, `4 warnings`; the other two have no plural.
pub fn counted(count: usize, severity: Severity) -> String {
    let s = match severity {
        Severity::Warning if count != 1 => "s",
        _ => "",
    };
    format!("{count} {severity}{s}")
}

fn write_kept(out: &mut String, kept: &Kept) -> fmt::Result {
    let finding = &kept.finding;
    write!(
        out,
        "kept: {}: {} ({}",
        escape(&finding.rule),
        escape(&finding.message),
        escape(&kept.reason)
    )?;
    if let Some(until) = kept.until {
        write!(out, ", until {}", until.local())?;
    }
    if !kept.certain {
        write!(out, "; whether it matches this one is not known")?;
    }
    writeln!(out, ")")
}

fn write_suspect(out: &mut String, suspect: &Suspect, style: Style) -> fmt::Result {
    write!(out, "suspect: {}", style.heading(suspect.kind.name()))?;
    if *suspect.rule != *suspect.kind.name() {
        write!(out, " (rule {})", escape(&suspect.rule))?;
    }
    writeln!(out, ": {}", escape(&suspect.message))?;
    let owner = match suspect.process.user.as_deref() {
        Some(user) => format!("owner {}; ", escape(user)),
        None => String::new(),
    };
    writeln!(out, "    {owner}{}", escape(&suspect.evidence.words()))?;
    writeln!(out, "    not proved: {}", suspect.missing)?;
    writeln!(out, "    {} {}", style.faint("->"), escape(&suspect.command))?;
    writeln!(out)
}

/// Findings that say the same of processes of one job, in their order: each of them in one paragraph.
fn fold<'f>(findings: impl Iterator<Item = &'f Finding>) -> Vec<Vec<&'f Finding>> {
    let mut folded: Vec<Vec<&Finding>> = Vec::new();
    for finding in findings {
        match folded.iter_mut().find(|known| is_same(known[0], finding)) {
            Some(known) => known.push(finding),
            None => folded.push(vec![finding]),
        }
    }
    folded
}

/// Whether two findings differ in nothing but the process: the same program of the same user, the same to
/// do, and one command that names both.
fn is_same(one: &Finding, other: &Finding) -> bool {
    let (Some(first), Some(second)) = (&one.process, &other.process) else {
        return false;
    };
    let names = |finding: &Finding, pid: u32| {
        let pid = pid.to_string();
        let mut commands = finding.commands.iter();
        commands.any(|command| command.split(' ').any(|word| word == pid))
    };
    one.kind == other.kind
        && one.rule == other.rule
        && one.severity == other.severity
        && first.user == second.user
        && first.command == second.command
        && one.advice == other.advice
        && one.commands == other.commands
        && one.kept_by == other.kept_by
        && one.skipped == other.skipped
        && names(one, first.pid)
        && names(one, second.pid)
        && one.also.is_empty()
        && other.also.is_empty()
}

/// `3 processes, 1.4 GiB: 402519, 402520, 402521`; without the bytes where not all are known.
fn together(equal: &[&Finding]) -> String {
    let bytes: Option<u64> = equal.iter().map(|finding| finding.memory_bytes).sum();
    let bytes = bytes.map_or_else(String::new, |bytes| format!(", {}", Bytes(bytes)));
    let pids = equal.iter().filter_map(|it| it.process.as_ref());
    let pids: Vec<String> = pids.map(|process| process.pid.to_string()).collect();
    format!("{} processes{bytes}: {}", equal.len(), pids.join(", "))
}

/// Writes a paragraph about findings that are the same.
fn write_finding(out: &mut String, equal: &[&Finding], style: Style) -> fmt::Result {
    let finding = equal[0];
    write!(
        out,
        "{}: {}",
        style.severity(finding.severity),
        style.heading(&finding.kind.to_string())
    )?;
    if finding.rule.as_ref() != finding.kind.to_string() {
        write!(out, " (rule {})", escape(&finding.rule))?;
    }
    match equal.len() {
        1 => writeln!(out, ": {}", escape(&finding.message))?,
        _ => {
            writeln!(out, ": {}", together(equal))?;
            writeln!(out, "    the first: {}", escape(&finding.message))?;
        }
    }
    let user = finding.process.as_ref().and_then(|process| process.user.as_deref());
    write!(out, "    since {}", finding.since.local())?;
    if let Some(user) = user {
        write!(out, ", owner {}", escape(user))?;
    }
    if let Some(bytes) = finding.memory_bytes {
        write!(out, ", {}", Bytes(bytes))?;
    }
    writeln!(out, "; {}", escape(finding.evidence.words()))?;
    for also in &finding.also {
        writeln!(out, "    also {}: {}", also.kind, escape(also.evidence.words()))?;
    }
    if let Some(kept_by) = &finding.kept_by {
        writeln!(out, "    kept: {}", escape(&kept_by.to_string()))?;
    }
    if let Some(why) = &finding.skipped {
        writeln!(out, "    skipped by reap: {}", escape(why))?;
    }
    for advice in &finding.advice {
        writeln!(out, "    {} {}", style.faint("->"), escape(advice))?;
    }
    for command in &finding.commands {
        writeln!(out, "    {} {}", style.faint("run:"), escape(command))?;
    }
    writeln!(out)
}
