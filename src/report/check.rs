//! The verdict of `gpumem check`, as JSON and as text. `formats` writes JUnit XML and annotations.

mod formats;

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

pub const SCHEMA: &str = "gpumem.check/1";

/// Result of a check.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, JsonSchema, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckOutcome {
    /// Nothing fails the check.
    Ok,
    /// Something fails the check: a finding, a limit, a new holder, or memory that did not become free.
    Findings,
    /// The check could not be carried out, or a value could not be measured.
    #[default]
    Error,
}

/// Number of active findings of each severity.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, JsonSchema, Serialize)]
pub struct Counts {
    /// Findings of severity `info`.
    pub info: usize,
    /// Findings of severity `warning`.
    pub warning: usize,
    /// Findings of severity `critical`.
    pub critical: usize,
}

impl Counts {
    pub fn new(findings: &[Finding]) -> Self {
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

/// The result that `gpumem check --json` prints: one document, even if the check failed. Units are part of the field
/// names. Unknown values are absent or `null`, never 0. Readers must ignore unknown fields.
#[derive(Clone, PartialEq, Debug, Default, JsonSchema, Serialize)]
pub struct CheckReport {
    /// Format and major version.
    #[schemars(extend("const" = SCHEMA))]
    pub schema: &'static str,
    /// Time of the last snapshot: RFC 3339, UTC; `null` if there was none.
    pub time: Option<Time>,
    /// Length of the evaluated history, in seconds.
    pub window_seconds: f64,
    /// `ok` (exit code 0); `findings` (exit code 1): a finding at or above --fail-on, an exceeded limit, a new
    /// holder, or memory that did not become free in time; `error` (exit code 2 or 3): the check could not be carried
    /// out, or a value could not be measured, as explained in `errors`.
    pub status: CheckOutcome,
    /// Number of active findings, by severity.
    pub counts: Counts,
    /// Totals of reclaimable and suspected memory.
    pub reclaimable: Reclaimable,
    /// Whether rules were applied. `false` if only limits were requested; an empty list of findings then means nothing.
    pub rules_applied: bool,
    /// Active findings, most severe first, followed by resolved ones, most recent first.
    pub findings: Vec<Finding>,
    /// Conditions that become findings if they last as long as the rule requires.
    pub pending: Vec<Pending>,
    /// Suspected processes, most memory first. They look unused, but the rules need more evidence. Suspects do not
    /// affect the exit code, and gpumem does not act on them.
    pub suspects: Vec<Suspect>,
    /// Findings that the configuration exempts.
    pub kept: Vec<Kept>,
    /// Rules that could not be decided and therefore produce no findings.
    pub undecided: Vec<Undecided>,
    /// Result for each requested limit and GPU; empty if no limit was requested.
    pub limits: Vec<LimitVerdict>,
    /// Results of waiting for free memory; empty without `--wait-free`.
    pub wait: Vec<WaitVerdict>,
    /// Processes that hold memory on a GPU where they held none in the snapshot given with `--baseline`; `null`
    /// without `--baseline`.
    pub new_holders: Option<Vec<NewHolder>>,
    /// Read errors, and the reason if the check failed.
    pub errors: Vec<ReadError>,
    #[serde(skip)]
    pub gpus: usize,
    /// Hostname.
    #[serde(skip)]
    pub hostname: Option<Arc<str>>,
    #[serde(skip)]
    pub rules: Vec<Arc<str>>,
    /// Minimum severity that fails the check; `None` if findings do not fail it.
    #[serde(skip)]
    pub fail_on: Option<Severity>,
    /// For each GPU in `wait`, a line about its free memory and a table of its processes.
    #[serde(skip)]
    pub holders: Vec<(String, Table)>,
}

/// A memory limit for a GPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug, JsonSchema, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Limit {
    /// Limit on the GPU's used memory.
    MaxUsed,
    /// Limit on used memory that no listed process holds.
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

/// A GPU compared with a limit, in the last snapshot.
#[derive(Clone, PartialEq, Eq, Debug, JsonSchema, Serialize)]
pub struct LimitVerdict {
    /// The limited quantity: used memory, or used memory that no listed process holds. Used memory excludes reserved
    /// memory, unless the driver does not report the reserved memory.
    pub limit: Limit,
    /// NVML index of the GPU.
    pub gpu: u32,
    /// UUID of the GPU.
    pub uuid: Option<Arc<str>>,
    /// The limit, in bytes; `null` if it is a share of an unknown total.
    pub limit_bytes: Option<u64>,
    /// The measured value, in bytes; `null` if unknown.
    pub actual_bytes: Option<u64>,
    /// Whether the measured value exceeds the limit; `null` if unknown. The status of the report is then not `ok`.
    pub exceeded: Option<bool>,
}

/// A process that holds memory on a GPU where it held none in the baseline.
#[derive(Clone, PartialEq, Eq, Debug, JsonSchema, Serialize)]
pub struct NewHolder {
    /// NVML index of the GPU.
    pub gpu: u32,
    /// UUID of the GPU.
    pub uuid: Option<Arc<str>>,
    /// PID as reported by NVML.
    pub pid: u32,
    /// Name of the process. A process can choose its name.
    pub name: String,
    /// User name of the owner; `null` if unknown.
    pub user: Option<String>,
    /// Memory that the process holds on the GPU, in bytes; `null` if unknown.
    pub used_bytes: Option<u64>,
}

/// Result of waiting for free memory.
#[derive(Clone, PartialEq, Debug, Default, JsonSchema, Serialize)]
pub struct WaitVerdict {
    /// The GPU as given on the command line; `null` if any GPU will do.
    pub named: Option<String>,
    /// NVML index of the GPU with enough free memory, or else with the most free memory; `null` if no GPU could be
    /// read.
    pub gpu: Option<u32>,
    /// UUID of the GPU or MIG device.
    pub uuid: Option<Arc<str>>,
    /// The MIG device, such as `0:3`; `null` for a whole GPU.
    pub mig: Option<String>,
    /// Free memory of the GPU or MIG device, in bytes. If `satisfied` is false, the maximum during the wait.
    pub free_bytes: Option<u64>,
    /// Why programs cannot use the GPU regardless of its free memory; `null` if they can.
    pub refusal: Option<String>,
    /// Requested free memory, in bytes.
    pub wanted_bytes: u64,
    /// Whether the requested memory was free in the last snapshot.
    pub satisfied: bool,
    /// Time from the first snapshot to the last, in seconds.
    #[schemars(range(min = 0))]
    pub waited_seconds: f64,
}

impl CheckReport {
    /// Creates the report of a check that could not be carried out.
    pub fn failed(error: &str) -> Self {
        Self { schema: SCHEMA, errors: vec![ReadError::new("check", error)], ..Self::default() }
    }

    /// Formats the report as text, wrapped if `options` contains a width.
    pub fn to_text(&self, options: TextLook) -> String {
        let TextLook { style, width, ascii, verbose } = options;
        let mut out = String::new();
        // Writing to a String cannot fail.
        let _ = self.write_wait(&mut out, style);
        // Omit a reclaimable total of 0 if the rules did not run or the check failed: the true value is unknown.
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

    fn active_findings(&self) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(|finding| finding.resolved_at.is_none())
    }

    fn text(&self, out: &mut String, style: Style, verbose: bool) -> fmt::Result {
        // After a successful wait, omit the findings unless `--fail-on` or `--verbose` is given.
        let is_wait_satisfied =
            !self.wait.is_empty() && self.wait.iter().all(|wait| wait.satisfied);
        if verbose || !is_wait_satisfied || self.fail_on.is_some() {
            for equal in fold(self.active_findings()) {
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
            writeln!(out, "{}", undecided_line(undecided))?;
        }
        for error in self.errors.iter().filter(|error| !is_wait_error(error)) {
            writeln!(out, "error: {}", escape(&error.to_string()))?;
        }
        writeln!(out, "{}", self.summary())
    }

    /// Summarizes the result in one line without names that users choose.
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
                "no known limit exceeded".to_owned()
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

    fn write_wait(&self, out: &mut String, style: Style) -> fmt::Result {
        for wait in &self.wait {
            writeln!(out, "{}", style.heading(&wait.to_string()))?;
        }
        for error in self.errors.iter().filter(|error| is_wait_error(error)) {
            writeln!(out, "error: {}", escape(&error.to_string()))?;
        }
        out.push_str(&self.holders_text(style));
        if self.wait.is_empty() { Ok(()) } else { writeln!(out) }
    }

    fn holders_text(&self, style: Style) -> String {
        let text = |(title, table): &(String, Table)| match table.is_empty() {
            true => format!("\n{title}\n"),
            false => format!("\n{title}\n{}", table.render(None, |text| style.faint(text))),
        };
        self.holders.iter().map(text).collect()
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TextLook {
    pub style: Style,
    /// Width of the terminal in columns; `None` if the output is not a terminal.
    pub width: Option<usize>,
    pub ascii: bool,
    /// Whether to list undecided rules after a wait, and findings after a successful wait.
    pub verbose: bool,
}

impl fmt::Display for LimitVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = |bytes: Option<u64>| Bytes(bytes.unwrap_or_default());
        let quantity = match self.limit {
            Limit::MaxUsed => "in use",
            Limit::MaxUnattributed => "unattributed",
        };
        let (actual, max) = (bytes(self.actual_bytes), bytes(self.limit_bytes));
        write!(f, "{actual} {quantity}, more than {max} (--{})", self.limit)
    }
}

impl fmt::Display for WaitVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let wanted = Bytes(self.wanted_bytes);
        let waited = Span::from_seconds(self.waited_seconds);
        let device = match (&self.mig, self.gpu) {
            (Some(mig), _) => Some(format!("MIG device {mig}")),
            (None, gpu) => gpu.map(|gpu| format!("GPU {gpu}")),
        };
        match (device, self.free_bytes.map(Bytes)) {
            (Some(device), Some(free)) if self.satisfied => {
                write!(f, "free: {device}: {free} free, {wanted} wanted, after {waited}")
            }
            (Some(device), Some(free)) => {
                let refusal =
                    self.refusal.as_deref().map_or_else(String::new, |why| format!(" ({why})"));
                write!(
                    f,
                    "not free: {wanted} wanted, waited {waited}; at most {free} was free on {device}{refusal}"
                )
            }
            _ => write!(f, "not free: {wanted} wanted, waited {waited}; free memory is unknown"),
        }
    }
}

impl fmt::Display for NewHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes =
            self.used_bytes.map_or_else(|| "memory".to_owned(), |bytes| Bytes(bytes).to_string());
        let user =
            self.user.as_deref().map_or_else(String::new, |user| format!(" of {}", escape(user)));
        let name = escape(&self.name);
        let Self { gpu, pid, .. } = self;
        write!(f, "GPU {gpu}: {name} ({pid}){user} holds {bytes}, but held none in the baseline")
    }
}

fn is_wait_error(error: &ReadError) -> bool {
    &*error.call == "--wait-free"
}

/// Formats a count, such as `1 warning` or `4 warnings`. Only "warning" has a plural.
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
        write!(out, "; unknown whether it matches this process")?;
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
    writeln!(out, "    {}", suspect.missing)?;
    writeln!(out, "    {} {}", style.faint("->"), escape(&suspect.command))?;
    writeln!(out)
}

fn fold<'f>(findings: impl Iterator<Item = &'f Finding>) -> Vec<Vec<&'f Finding>> {
    let mut groups: Vec<Vec<&Finding>> = Vec::new();
    for finding in findings {
        match groups.iter_mut().find(|group| is_same(group[0], finding)) {
            Some(group) => group.push(finding),
            None => groups.push(vec![finding]),
        }
    }
    groups
}

/// Returns whether two findings can share a paragraph. The same rule must have found both processes, and the same
/// commands and advice must apply to them.
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
        && one.advice == other.advice
        && one.commands == other.commands
        && one.kept_by == other.kept_by
        && one.skipped == other.skipped
        && names(one, first.pid)
        && names(one, second.pid)
        && one.also.iter().map(|also| also.kind).eq(other.also.iter().map(|also| also.kind))
}

/// Formats a group as `3 processes, 1.4 GiB: 402519, 402520, 402521`. The size is omitted if the memory of one of the
/// processes is unknown.
fn summarize(equal: &[&Finding]) -> String {
    let bytes: Option<u64> = equal.iter().map(|finding| finding.memory_bytes).sum();
    let bytes = bytes.map_or_else(String::new, |bytes| format!(", {}", Bytes(bytes)));
    let pids = equal.iter().filter_map(|finding| finding.process.as_ref());
    let pids: Vec<String> = pids.map(|process| process.pid.to_string()).collect();
    format!("{} processes{bytes}: {}", equal.len(), pids.join(", "))
}

fn headline(finding: &Finding, style: Style) -> String {
    let severity = style.severity(finding.severity);
    let kind = style.heading(finding.kind.name());
    let rule = match *finding.rule == *finding.kind.name() {
        true => String::new(),
        false => format!(" (rule {})", escape(&finding.rule)),
    };
    format!("{severity}: {kind}{rule}")
}

pub fn finding_line(finding: &Finding, style: Style) -> String {
    format!("{}: {}", headline(finding, style), escape(&finding.message))
}

pub fn undecided_line(undecided: &Undecided) -> String {
    format!("undecided: {}: {}", undecided.rule, escape(&undecided.reason))
}

fn write_finding(out: &mut String, equal: &[&Finding], style: Style) -> fmt::Result {
    let finding = equal[0];
    match equal.len() {
        1 => writeln!(out, "{}", finding_line(finding, style))?,
        _ => {
            writeln!(out, "{}: {}", headline(finding, style), summarize(equal))?;
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
    if let Some(reason) = &finding.skipped {
        writeln!(out, "    skipped by reap: {}", escape(reason))?;
    }
    for advice in &finding.advice {
        writeln!(out, "    {} {}", style.faint("->"), escape(advice))?;
    }
    for command in &finding.commands {
        writeln!(out, "    {} {}", style.faint("run:"), escape(command))?;
    }
    writeln!(out)
}
