//! Totals of reclaimable memory and processes, for the first line of `check`, of `ps` and of the screen.
//!
//! Reclaimable memory is the memory that `gpumem reap --all-users` would free by default. The total includes the
//! findings of kinds that `reap` includes by default. It excludes findings that offer only a notice, findings on exempt
//! processes and placeholders, and findings that a plan for the same snapshot skips. Facts that gpumem reads only when
//! it carries out a plan are not considered. Suspected memory is the memory of suspects.

use std::sync::Arc;

use foldhash::{HashMap, HashSet};
use schemars::JsonSchema;
use serde::Serialize;

use super::finding::{Action, Ends, Finding, Kind};
use super::process::Identity;
use super::suspect::Suspect;
use crate::units::{Bytes, number_of};

/// Totals of reclaimable and suspected memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, JsonSchema, Serialize)]
pub struct Reclaimable {
    /// Known memory of the processes that `gpumem reap --all-users` targets by default, in bytes. Exempt processes,
    /// and processes that are skipped because of another process of their job, are not counted.
    pub bytes: u64,
    /// Number of processes with reclaimable memory.
    pub processes: usize,
    /// Number of users with reclaimable memory.
    pub users: usize,
    /// Known memory of suspects, in bytes. It might be in use, and gpumem does not reclaim it.
    pub suspected_bytes: u64,
    /// Number of suspects.
    pub suspected_processes: usize,
    /// Whether the memory of a process is unknown, so that the total is a lower bound.
    #[serde(skip)]
    is_least: bool,
    #[serde(skip)]
    pub findings: usize,
    /// Whether any rule that `gpumem reap` uses by default is undecided.
    #[serde(skip)]
    pub is_undecided: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PlanMark {
    pub finding: Arc<str>,
    /// Reason why the plan skips the finding, or `None` if the plan includes it.
    pub skipped: Option<Arc<str>>,
    /// Memory, in bytes, that the plan frees in addition to the finding's own: memory of dead processes of the job, and
    /// of members without a finding. The amount is added to only one finding of each target.
    pub more_bytes: Option<u64>,
}

impl Finding {
    /// Returns whether the finding offers only a notice, although `reap` includes other findings of its kind. Always
    /// false for stopped processes, whose findings never offer an action.
    pub fn is_only_notified(&self) -> bool {
        let offers = |action: &Action| *action != Action::Notify;
        matches!(self.kind, Kind::Idle | Kind::Orphan) && !self.actions.iter().any(offers)
    }

    /// Returns whether `gpumem reap --all-users` would include the finding by default, if no plan skipped it.
    pub fn is_offered(&self) -> bool {
        self.resolved_at.is_none()
            && self.kind.ends() == Ends::Always
            && !self.is_only_notified()
            && self.kept_by.is_none()
    }

    pub fn mark_planned(&mut self, marks: &[PlanMark]) {
        let mark = marks.iter().find(|mark| mark.finding == self.id);
        self.skipped = mark.and_then(|mark| mark.skipped.clone());
        self.more_bytes = mark.and_then(|mark| mark.more_bytes);
    }

    /// Returns whether the latest plan of `gpumem reap --all-users` includes the finding by default.
    pub fn is_reclaimable(&self) -> bool {
        self.is_offered() && self.skipped.is_none()
    }
}

impl Reclaimable {
    /// Adds up suspects and findings, including findings that are attached to a more severe finding on the same
    /// process.
    pub fn new<'a>(
        findings: impl Iterator<Item = &'a Finding> + Clone,
        suspects: impl Iterator<Item = &'a Suspect>,
    ) -> Self {
        let identity = |finding: &Finding| Some(finding.process.as_ref()?.identity);
        let is_placeholder = |finding: &&Finding| finding.kind == Kind::Placeholder;
        let placeholders: HashSet<Identity> =
            findings.clone().filter(is_placeholder).filter_map(identity).collect();
        let mut held: HashMap<Identity, Option<u64>> = HashMap::default();
        let mut users = std::collections::HashSet::new();
        for finding in findings {
            let Some(process) = finding.process.as_ref().filter(|_| finding.is_reclaimable())
            else {
                continue;
            };
            if placeholders.contains(&process.identity) {
                continue;
            }
            users.insert(process.user.as_deref());
            let bytes = held.entry(process.identity).or_default();
            let with_more = |more| more + finding.memory_bytes.unwrap_or_default();
            *bytes = (*bytes).max(finding.more_bytes.map(with_more).or(finding.memory_bytes));
        }
        let mut sum = Self {
            processes: held.len(),
            users: users.len(),
            bytes: held.values().flatten().fold(0, |sum, bytes| sum.saturating_add(*bytes)),
            is_least: held.values().any(Option::is_none),
            ..Self::default()
        };
        for suspect in suspects {
            sum.suspected_processes += 1;
            let bytes = suspect.memory_bytes.unwrap_or_default();
            sum.suspected_bytes = sum.suspected_bytes.saturating_add(bytes);
        }
        sum
    }

    /// Returns whether the totals are meaningful, because all rules were decided or a process was found.
    pub fn is_known(&self) -> bool {
        self.processes > 0 || !self.is_undecided
    }

    pub fn is_nothing(&self) -> bool {
        self.processes + self.findings + self.suspected_processes == 0
    }

    /// Returns the headline, such as `78.4 GiB reclaimable: 4 processes of 3 users · 12.0 GiB suspected`. If `ascii`
    /// is set, a comma replaces the dot.
    pub fn headline(&self, ascii: bool) -> String {
        let [whole, ..] = self.headlines();
        whole.text(ascii)
    }

    /// Returns headlines of decreasing length: the complete one, one without users, and only the total.
    pub fn headlines(&self) -> [Headline; 3] {
        let processes = |count: usize| match count {
            1 => "1 process".to_owned(),
            _ => format!("{count} processes"),
        };
        let least = if self.is_least { "at least " } else { "" };
        let bytes = Bytes(self.bytes);
        let (whole, short) = match self.processes {
            0 if self.findings > 0 => {
                let findings = number_of(self.findings, "finding");
                (format!("{findings}, none reclaimable by default"), findings)
            }
            0 => {
                let text = match (self.is_undecided, self.suspected_processes) {
                    (true, _) => "reclaimable: not known",
                    (false, 0) => "nothing to reclaim",
                    (false, _) => "nothing to reclaim yet",
                };
                (text.to_owned(), text.to_owned())
            }
            count => {
                let (processes, users) = (processes(count), number_of(self.users, "user"));
                let short = format!("{least}{bytes} reclaimable");
                (format!("{short}: {processes} of {users}"), short)
            }
        };
        let suspected = (self.suspected_processes > 0).then(|| match self.suspected_bytes {
            0 => format!("{} suspected", processes(self.suspected_processes)),
            bytes => format!("{} suspected", Bytes(bytes)),
        });
        let shortest = match (self.processes, &suspected) {
            (0, Some(_)) => String::new(),
            _ => short.clone(),
        };
        let rest = suspected.clone().filter(|_| shortest.is_empty());
        [(whole, suspected.clone()), (short, suspected), (shortest, rest)]
            .map(|(found, suspected)| Headline { found, suspected })
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Headline {
    pub found: String,
    pub suspected: Option<String>,
}

impl Headline {
    pub const fn separator(ascii: bool) -> &'static str {
        if ascii { ", " } else { " · " }
    }

    pub fn text(&self, ascii: bool) -> String {
        let parts = [Some(&self.found), self.suspected.as_ref()].into_iter();
        let parts = parts.flatten().filter(|part| !part.is_empty());
        let parts: Vec<&str> = parts.map(String::as_str).collect();
        parts.join(Self::separator(ascii))
    }
}
