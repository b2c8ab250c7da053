//! The report of `gpumem doctor`, as JSON and as text.
//!
//! A [`DoctorCheck`] contains an observation about a [`Topic`], what the observation means, and what to do next.
//! `cli::doctor` chooses the meaning and the next steps from `doctor.toml`.

use std::collections::{BTreeMap, HashSet};
use std::fmt::{self, Write as _};
use std::sync::LazyLock;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use unicode_width::UnicodeWidthStr as _;

use self::CheckGroup as G;
use super::escape::escape;
use super::style::Style;
use crate::model::label::ranges;

pub const SCHEMA: &str = "gpumem.doctor/1";

/// Result of one check.
#[derive(Clone, Copy, PartialEq, Eq, Debug, JsonSchema, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum CheckStatus {
    /// The subject works as expected.
    Ok,
    /// The observed state limits what gpumem can do.
    Limited,
    /// The observed state prevents gpumem or a part of it from working.
    Broken,
    /// The state could not be determined.
    Unknown,
    /// The subject does not exist on this machine.
    NotApplicable,
}

impl CheckStatus {
    fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Limited => "limited",
            Self::Broken => "broken",
            Self::Unknown => "unknown",
            Self::NotApplicable => "n/a",
        }
    }

    /// Returns whether the report explains this result below the check.
    fn is_open(self) -> bool {
        matches!(self, Self::Limited | Self::Broken | Self::Unknown)
    }
}

/// Group of a check.
#[derive(Clone, Copy, PartialEq, Eq, Debug, JsonSchema, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckGroup {
    /// NVML, the kernel module, the device files.
    Driver,
    /// Each GPU.
    Gpus,
    /// Processes that gpumem can see, and their data.
    Processes,
    /// The machine.
    Machine,
    /// gpumem itself.
    Gpumem,
}

/// Subject of a check. Later versions can add subjects.
#[derive(Clone, Copy, PartialEq, Eq, Debug, JsonSchema, Serialize)]
pub struct Topic {
    /// Identifier of the subject: `library`, `driver`, `pid-namespace` and so on.
    #[schemars(regex(pattern = "^[a-z]+(-[a-z]+)*$"))]
    pub id: &'static str,
    /// Group of the check: `driver`, `gpus`, `processes`, `machine` or `gpumem`.
    #[schemars(with = "String")]
    pub group: CheckGroup,
    /// Title to display.
    pub title: &'static str,
}

impl Topic {
    pub const LIBRARY: Self = Self::new(G::Driver, "library", "NVML library");
    pub const DRIVER: Self = Self::new(G::Driver, "driver", "driver");
    pub const KERNEL_MODULE: Self = Self::new(G::Driver, "kernel-module", "kernel module");
    pub const DEVICE_FILES: Self = Self::new(G::Driver, "device-files", "device files");
    pub const GPU: Self = Self::new(G::Gpus, "gpu", "answers");
    pub const PERSISTENCE: Self = Self::new(G::Gpus, "persistence", "persistence mode");
    pub const PROCESS_UTILIZATION: Self =
        Self::new(G::Gpus, "process-utilization", "use by process");
    pub const ACCOUNTING: Self = Self::new(G::Gpus, "accounting", "accounting mode");
    pub const PROCESS_MEMORY: Self = Self::new(G::Gpus, "process-memory", "memory by process");
    pub const MIG: Self = Self::new(G::Gpus, "mig", "MIG");
    pub const MPS: Self = Self::new(G::Gpus, "mps", "MPS");
    pub const PID_NAMESPACE: Self = Self::new(G::Processes, "pid-namespace", "pid namespace");
    pub const DESCRIPTORS: Self = Self::new(G::Processes, "descriptors", "files of others");
    pub const HIDEPID: Self = Self::new(G::Processes, "hidepid", "hidepid");
    pub const PIDFD: Self = Self::new(G::Processes, "pidfd", "pidfd");
    pub const NOTEBOOKS: Self = Self::new(G::Processes, "notebooks", "Jupyter servers");
    pub const CGROUPS: Self = Self::new(G::Machine, "cgroups", "cgroups");
    pub const CLOCK: Self = Self::new(G::Machine, "clock", "clock and boot");
    pub const VERSION: Self = Self::new(G::Gpumem, "version", "version");
    pub const CONFIGURATION: Self = Self::new(G::Gpumem, "configuration", "configuration");
    pub const STORE: Self = Self::new(G::Gpumem, "store", "stored history");

    const fn new(group: CheckGroup, id: &'static str, title: &'static str) -> Self {
        Self { id, group, title }
    }
}

impl Topic {
    pub fn ok(self, observed: impl Into<String>) -> DoctorCheck {
        self.check(CheckStatus::Ok, observed)
    }

    pub fn limited(self, observed: impl Into<String>) -> DoctorCheck {
        self.check(CheckStatus::Limited, observed)
    }

    pub fn broken(self, observed: impl Into<String>) -> DoctorCheck {
        self.check(CheckStatus::Broken, observed)
    }

    pub fn unknown(self, observed: impl Into<String>) -> DoctorCheck {
        self.check(CheckStatus::Unknown, observed)
    }

    pub fn not_applicable(self, observed: impl Into<String>) -> DoctorCheck {
        self.check(CheckStatus::NotApplicable, observed)
    }

    pub fn check(self, verdict: CheckStatus, observed: impl Into<String>) -> DoctorCheck {
        DoctorCheck {
            topic: self,
            gpus: Vec::new(),
            verdict,
            seen: observed.into(),
            means: None,
            next: Vec::new(),
        }
    }
}

/// One check. Several checks can have the same id, each for different GPUs.
#[derive(Clone, PartialEq, Eq, Debug, JsonSchema, Serialize)]
pub struct DoctorCheck {
    #[serde(flatten)]
    pub topic: Topic,
    /// NVML indices of the checked GPUs; absent if the check is not about GPUs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<u32>,
    /// `ok`; `limited`: the observed state limits what gpumem can do; `broken`: it prevents gpumem or a part of it
    /// from working; `unknown`: the state could not be determined; `not-applicable`: the subject does not exist on
    /// this machine.
    pub verdict: CheckStatus,
    /// Observed state.
    pub seen: String,
    /// Consequence for gpumem; absent if obvious.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub means: Option<String>,
    /// Next steps: commands to run, or sentences. Absent if there is nothing to do.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub next: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Advice {
    means: Option<String>,
    #[serde(default)]
    next: Vec<String>,
}

const ADVICE_TEXT: &str = include_str!("doctor.toml");

static ADVICE: LazyLock<BTreeMap<String, Advice>> =
    LazyLock::new(|| toml::from_str(ADVICE_TEXT).unwrap_or_default());

impl DoctorCheck {
    /// Adds the meaning and the next steps that `doctor.toml` lists under `case`.
    #[must_use]
    pub fn advise(mut self, case: &str) -> Self {
        if let Some(advice) = ADVICE.get(case) {
            self.means = advice.means.clone().or(self.means);
            self.next.extend_from_slice(&advice.next);
        }
        self
    }

    #[must_use]
    pub fn means(mut self, means: impl Into<String>) -> Self {
        self.means = Some(means.into());
        self
    }

    #[must_use]
    pub fn next(mut self, next: impl Into<String>) -> Self {
        self.next.push(next.into());
        self
    }
}

/// Merges the checks of all GPUs by topic. GPUs with equal results share a check.
pub fn merge(gpus: impl IntoIterator<Item = (u32, Vec<DoctorCheck>)>) -> Vec<DoctorCheck> {
    let mut merged: Vec<DoctorCheck> = Vec::new();
    for (index, checks) in gpus {
        for check in checks {
            let is_same = |other: &&mut DoctorCheck| {
                DoctorCheck { gpus: other.gpus.clone(), ..check.clone() } == **other
            };
            if let Some(same) = merged.iter_mut().find(is_same) {
                same.gpus.push(index);
                continue;
            }
            let after = merged.iter().rposition(|other| other.topic == check.topic);
            let at = after.map_or(merged.len(), |at| at + 1);
            let gpus = vec![index];
            merged.insert(at, DoctorCheck { gpus, ..check });
        }
    }
    merged
}

/// The output of `gpumem doctor --json`: what works on this machine, what does not, and what to do.
/// Readers must ignore unknown fields, checks and groups.
#[derive(Clone, PartialEq, Eq, Debug, JsonSchema, Serialize)]
pub struct DoctorReport {
    /// Format and major version.
    #[schemars(extend("const" = SCHEMA))]
    pub schema: &'static str,
    /// Version of gpumem.
    pub version: &'static str,
    /// Whether NVML answers and at least one GPU can be read. If so, the exit code is 0, otherwise 3.
    pub works: bool,
    /// Summary in one sentence, with the reason.
    pub summary: String,
    /// The checks, by group.
    pub checks: Vec<DoctorCheck>,
}

impl DoctorReport {
    /// Formats the report as text: a line per check, details of the checks with problems, and a summary.
    pub fn to_text(&self, style: Style) -> String {
        let mut out = String::new();
        // Writing to a String cannot fail.
        let _ = self.text(&mut out, style);
        out
    }

    fn text(&self, out: &mut String, style: Style) -> fmt::Result {
        const VERDICT: usize = 7;
        let names: Vec<String> = self.checks.iter().map(name).collect();
        let width = names.iter().map(|name| name.width()).max().unwrap_or(0);
        let mut group = None;
        // Meanings and next steps that are already in the output.
        let mut printed = HashSet::new();
        for (check, name) in self.checks.iter().zip(&names) {
            if group.is_some_and(|group| group != check.topic.group) {
                writeln!(out)?;
            }
            group = Some(check.topic.group);
            let word = format!("{:VERDICT$}", check.verdict.word());
            let seen = escape(&check.seen);
            let line = format!("{name:width$}  {seen}");
            let line =
                if check.verdict == CheckStatus::NotApplicable { style.faint(&line) } else { line };
            writeln!(out, "{}  {line}", style.verdict(check.verdict, &word))?;
            if !check.verdict.is_open() {
                continue;
            }
            let indent = VERDICT + 2;
            if let Some(means) = check.means.as_ref().filter(|text| printed.insert(text.as_str())) {
                writeln!(out, "{:indent$}{}", "", escape(means))?;
            }
            for next in check.next.iter().filter(|text| printed.insert(text.as_str())) {
                writeln!(out, "{:indent$}-> {}", "", escape(next))?;
            }
        }
        writeln!(out, "\n{}", style.heading(&escape(&self.summary)))
    }
}

fn name(check: &DoctorCheck) -> String {
    if check.gpus.is_empty() {
        check.topic.title.to_owned()
    } else {
        format!("GPU {} {}", ranges(check.gpus.iter().copied()), check.topic.title)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_has_advice_and_all_advice_is_used() {
        let files = [
            include_str!("../cli/doctor.rs"),
            include_str!("../cli/doctor/driver.rs"),
            include_str!("../cli/doctor/gpus.rs"),
            include_str!("../cli/doctor/notebooks.rs"),
            include_str!("../cli/doctor/processes.rs"),
        ];
        let texts = files.iter().flat_map(|file| file.split(".advise(\"").skip(1));
        let used: HashSet<&str> = texts.filter_map(|text| text.split('"').next()).collect();
        let table: BTreeMap<String, Advice> = toml::from_str(ADVICE_TEXT).unwrap();
        assert_eq!(used, table.keys().map(String::as_str).collect());
    }

    #[test]
    fn only_checks_that_need_attention_show_next_steps() {
        let report = DoctorReport {
            schema: SCHEMA,
            version: "1",
            works: true,
            summary: "gpumem works here".to_owned(),
            checks: vec![
                Topic::LIBRARY.ok("found").means("not shown"),
                Topic::PERSISTENCE.limited("off\x1b[31m").means("slow").next("type this"),
            ],
        };
        let text = report.to_text(Style::default());
        assert!(text.contains("off\\e[31m\n") && !text.contains("not shown"), "{text}");
        assert!(text.contains("slow\n") && text.contains("-> type this\n"), "{text}");
    }
}
