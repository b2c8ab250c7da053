//! The page about a GPU that ran out of memory: the holders, the unused part, and what would be enough.

use super::gpu::{Marks, held_by, holders, memory};
use super::page::{ExplainPage, Section};
use super::{KnownSoFar, who};
use crate::model::finding::Finding;
use crate::model::{Gpu, Identity, Suspect};
use crate::units::Bytes;

/// The shortage, as far as known.
#[derive(Clone, Copy, Debug, Default)]
pub struct Shortage<'s> {
    /// The GPUs in question, by index; empty means all. Of several, the page shows the fullest.
    pub gpus: &'s [u32],
    pub asked_bytes: Option<u64>,
}

/// A process that held memory on the GPU without using it.
#[derive(Debug)]
struct Unused<'u> {
    bytes: u64,
    name: String,
    evidence: Evidence<'u>,
}

#[derive(Debug)]
enum Evidence<'u> {
    Found(&'u Finding),
    Suspected(&'u Suspect),
}

pub fn out_of_memory(seen: KnownSoFar<'_>, shortage: &Shortage<'_>) -> ExplainPage {
    let last = seen.last;
    let is_asked = |gpu: &&Gpu| shortage.gpus.is_empty() || shortage.gpus.contains(&gpu.index);
    let asked = last.gpus.iter().filter(is_asked);
    let Some(gpu) = asked.min_by_key(|gpu| gpu.free_bytes().unwrap_or(u64::MAX)) else {
        return seen.page("out of memory, on an unknown GPU".to_owned(), |_| true);
    };
    let mut findings: Vec<Finding> = seen.engine.findings().to_vec();
    (seen.commands)(&mut findings, None);
    let suspects = seen.engine.suspects();
    let name = gpu.name.as_deref().unwrap_or("of an unknown name");
    let title = format!("out of memory on GPU {}: {name}", gpu.index);
    let mut page = seen.page(title, |index| index == gpu.index);
    let mut facts = Section::default();
    facts.entry("When", last.time.local().to_string());
    if let Some(bytes) = shortage.asked_bytes {
        facts.entry("Asked", Bytes(bytes).to_string());
    }
    memory(&mut facts, last, gpu);
    let holders = holders(last, gpu);
    let held = held_by(last, gpu, &holders, Marks { findings: &findings, suspects });
    let unused = unused(seen, gpu, &findings);
    page.sections.extend([facts, held, listed(&unused), sufficient(seen, gpu, shortage, &unused)]);
    page.sections.retain(|section| !section.rows.is_empty());
    let is_unused = |it: &Finding| {
        let is_it = |unused: &Unused<'_>| matches!(unused.evidence, Evidence::Found(found) if found.id == it.id);
        unused.iter().any(is_it)
    };
    page.findings = findings.iter().filter(|it| is_unused(it)).cloned().collect();
    page.gpu = Some(gpu.clone());
    page
}

/// The processes that held memory on the GPU without using it: findings before suspects, then by size.
fn unused<'u>(seen: KnownSoFar<'u>, gpu: &Gpu, findings: &'u [Finding]) -> Vec<Unused<'u>> {
    let held = |who: Identity| {
        let rows = gpu.processes.iter().flatten().filter(|row| row.pid == who.pid);
        let bytes: u64 = rows.filter_map(|row| row.used_bytes).sum();
        (bytes > 0 && who.is_certain()).then_some(bytes)
    };
    let name = |pid: u32| {
        let (name, user) = who(seen.last, pid);
        let of = user.map_or_else(String::new, |user| format!(" of {user}"));
        format!("{name} ({pid}){of}")
    };
    let found = findings.iter().filter_map(|finding| {
        let who = finding.process.as_ref()?.identity;
        let is_free_to_go = finding.resolved_at.is_none() && finding.kept_by.is_none();
        let bytes = held(who).filter(|_| is_free_to_go && finding.kind.is_unused())?;
        Some(Unused { bytes, name: name(who.pid), evidence: Evidence::Found(finding) })
    });
    let suspected = seen.engine.suspects().iter().filter_map(|suspect| {
        let who = suspect.process.identity;
        let bytes = held(who).filter(|_| suspect.kind.is_unused())?;
        Some(Unused { bytes, name: name(who.pid), evidence: Evidence::Suspected(suspect) })
    });
    let mut unused: Vec<Unused<'_>> = found.chain(suspected).collect();
    unused.sort_by_key(|it| (!it.is_proved(), std::cmp::Reverse(it.bytes)));
    unused
}

impl Unused<'_> {
    fn is_proved(&self) -> bool {
        matches!(self.evidence, Evidence::Found(_))
    }
}

fn listed(unused: &[Unused<'_>]) -> Section {
    let mut section = Section::new("Which of it was unused");
    if unused.is_empty() {
        section.item("- ", "nothing known to be unused");
    }
    for it in unused {
        let mark = format!("{}: ", Bytes(it.bytes));
        match it.evidence {
            Evidence::Found(finding) => {
                section.item(&mark, format!("{}: {}", finding.kind, finding.message));
                for command in &finding.commands {
                    section.item("    run: ", command.as_str());
                }
            }
            Evidence::Suspected(suspect) => {
                section.item(&mark, format!("suspect: {}: {}", suspect.kind, suspect.message));
                section.item("    ", suspect.missing.to_string());
            }
        }
    }
    section
}

fn sufficient(
    seen: KnownSoFar<'_>,
    gpu: &Gpu,
    shortage: &Shortage<'_>,
    unused: &[Unused<'_>],
) -> Section {
    let mut section = Section::new("What would have been enough");
    let sum = |of: &[Unused<'_>]| of.iter().map(|it| it.bytes).sum::<u64>();
    let (Some(asked), Some(free_bytes)) = (shortage.asked_bytes, gpu.free_bytes()) else {
        let why = match gpu.free_bytes() {
            Some(_) => "how much was asked for is not known (--asked SIZE)",
            None => "how much was free is not known",
        };
        let more = if unused.is_empty() {
            String::new()
        } else {
            format!("; {} was unused", Bytes(sum(unused)))
        };
        section.item("- ", format!("{why}{more}"));
        return section;
    };
    let Some(missing) = asked.checked_sub(free_bytes).filter(|&missing| missing > 0) else {
        section.item(
            "- ",
            format!(
                "{} was free at this sample, which is enough: this cannot show memory that was \
                taken later, or fragmentation",
                Bytes(free_bytes)
            ),
        );
        return section;
    };
    let missing_is = Bytes(missing);
    let proved = &unused[..unused.iter().filter(|it| it.is_proved()).count()];
    let text = match (enough(proved, missing), enough(unused, missing)) {
        (Some(names), _) => format!("freeing {names} would have been enough"),
        (None, Some(names)) => {
            format!("freeing {names} would have been enough, if it is unused, which is not proved")
        }
        (None, None) if unused.is_empty() => "ask for less".to_owned(),
        (None, None) => {
            let left = Bytes(missing - sum(unused));
            format!("ask for less: with all that was unused freed, {left} still was")
        }
    };
    section.item("- ", format!("{missing_is} was missing: {text}"));
    for other in &seen.last.gpus {
        if let Some(bytes) =
            other.free_bytes().filter(|&bytes| bytes >= asked && other.index != gpu.index)
        {
            section.item("- ", format!("GPU {} had {} free", other.index, Bytes(bytes)));
        }
    }
    section
}

/// The smallest set of these that holds enough: the smallest sufficient one, or else the largest together.
fn enough(unused: &[Unused<'_>], missing: u64) -> Option<String> {
    let mut sorted: Vec<&Unused<'_>> = unused.iter().collect();
    sorted.sort_by_key(|it| it.bytes);
    let named = |it: &&Unused<'_>| format!("{}, {}", it.name, Bytes(it.bytes));
    if let Some(one) = sorted.iter().find(|it| it.bytes >= missing) {
        return Some(named(one));
    }
    let mut names = Vec::new();
    let mut sum = 0;
    for it in sorted.iter().rev() {
        names.push(named(it));
        sum += it.bytes;
        if sum >= missing {
            return Some(names.join("; "));
        }
    }
    None
}
