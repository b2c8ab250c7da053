//! The page about a shortage of memory on a GPU: who holds the memory, how much is unused, and what to free.
//!
//! Samples do not show failed allocations, so the page never claims that an allocation failed.

use super::gpu::{Marks, held_by, holders, memory};
use super::page::{ExplainPage, Section};
use super::{ExplainInput, who};
use crate::model::finding::Finding;
use crate::model::{Gpu, Identity, Suspect, Time};
use crate::units::Bytes;

#[derive(Clone, Copy, Debug, Default)]
pub struct Shortage<'s> {
    /// Indices of the GPUs to consider. An empty list means all GPUs. The page is about the fullest of these GPUs.
    pub gpus: &'s [u32],
    pub asked_bytes: Option<u64>,
}

/// A process that held memory on the GPU without using it.
#[derive(Debug)]
struct Unused<'u> {
    bytes: u64,
    name: String,
    /// The finding, or the suspicion if there is no finding.
    found: Result<&'u Finding, &'u Suspect>,
}

pub fn out_of_memory(input: ExplainInput<'_>, shortage: &Shortage<'_>) -> ExplainPage {
    let last = input.last;
    let is_asked = |gpu: &&Gpu| shortage.gpus.is_empty() || shortage.gpus.contains(&gpu.index);
    let asked = last.gpus.iter().filter(is_asked);
    let least_free = |gpu: &&Gpu| {
        let free_bytes = gpu.free_bytes().unwrap_or(u64::MAX);
        let freed_bytes = fullest(input, gpu).map_or(0, |(_, bytes)| bytes);
        free_bytes.saturating_sub(freed_bytes)
    };
    let Some(gpu) = asked.min_by_key(least_free) else {
        return input.page("GPU memory: no such GPU in the sample".to_owned(), |_| true);
    };
    let mut findings: Vec<Finding> = input.engine.findings().to_vec();
    (input.commands)(&mut findings, None);
    let suspects = input.engine.suspects();
    let name = gpu.name.as_deref().unwrap_or("unknown model");
    let free = gpu.free_bytes().map_or("unknown".to_owned(), |bytes| Bytes(bytes).to_string());
    let title = format!("{free} free on GPU {}: {name}", gpu.index);
    let mut page = input.page(title, |index| index == gpu.index);
    let mut facts = Section::default();
    facts.entry("When", last.time.local().to_string());
    if let Some(bytes) = shortage.asked_bytes {
        facts.entry("Asked", Bytes(bytes).to_string());
    }
    memory(&mut facts, last, gpu);
    if let Some((time, freed_bytes)) = fullest(input, gpu) {
        let more = Bytes(freed_bytes);
        facts.entry("Fullest", format!("{}: {more} more in use than now", input.ago(time)));
        page.notes.push(
            "--at TIME shows an earlier sample, such as the one in which the GPU was fullest"
                .to_owned(),
        );
    }
    page.notes.push("failed allocations are not visible in samples".to_owned());
    let holders = holders(last, gpu);
    let held = held_by(last, gpu, &holders, Marks { findings: &findings, suspects });
    let unused = unused(input, gpu, &findings);
    page.sections.extend([facts, held, listed(&unused), sufficient(input, gpu, shortage, &unused)]);
    page.sections.retain(|section| !section.rows.is_empty());
    let is_unused = |finding: &Finding| {
        unused.iter().any(|unused| unused.found.is_ok_and(|found| found.id == finding.id))
    };
    page.findings = findings.iter().filter(|finding| is_unused(finding)).cloned().collect();
    page.gpu = Some(gpu.clone());
    page
}

/// Returns when most memory was used, and how much more than in the last sample. Returns `None` if usage was never
/// higher or is unknown.
fn fullest(input: ExplainInput<'_>, gpu: &Gpu) -> Option<(Time, u64)> {
    let used_bytes = gpu.memory?.used_bytes;
    let buckets = input.all_series.gpu(gpu)?.buckets().iter();
    let fullest = buckets.max_by_key(|bucket| bucket.high)?;
    let more = fullest.high.checked_sub(used_bytes).filter(|&more| more > 0)?;
    Some((fullest.since, more))
}

/// Returns the processes that held memory without using it. Processes with findings come before suspects. Both groups
/// are sorted by size.
fn unused<'u>(input: ExplainInput<'u>, gpu: &Gpu, findings: &'u [Finding]) -> Vec<Unused<'u>> {
    let held = |identity: Identity| {
        let rows = gpu.processes.iter().flatten().filter(|row| row.pid == identity.pid);
        let bytes: u64 = rows.filter_map(|row| row.used_bytes).sum();
        (bytes > 0 && identity.is_certain()).then_some(bytes)
    };
    let name = |pid: u32| {
        let (name, user) = who(input.last, pid);
        let owner = user.map_or_else(String::new, |user| format!(" of {user}"));
        format!("{name} ({pid}){owner}")
    };
    let found = findings.iter().filter_map(|finding| {
        let identity = finding.process.as_ref()?.identity;
        let is_reclaimable = finding.resolved_at.is_none() && finding.kept_by.is_none();
        let bytes = held(identity).filter(|_| is_reclaimable && finding.kind.is_unused())?;
        Some(Unused { bytes, name: name(identity.pid), found: Ok(finding) })
    });
    let suspected = input.engine.suspects().iter().filter_map(|suspect| {
        let identity = suspect.process.identity;
        let bytes = held(identity).filter(|_| suspect.kind.is_unused())?;
        Some(Unused { bytes, name: name(identity.pid), found: Err(suspect) })
    });
    let mut unused: Vec<Unused<'_>> = found.chain(suspected).collect();
    unused.sort_by_key(|unused| (unused.found.is_err(), std::cmp::Reverse(unused.bytes)));
    unused
}

fn listed(unused: &[Unused<'_>]) -> Section {
    let mut section = Section::new("Unused memory");
    if unused.is_empty() {
        section.item("- ", "nothing known to be unused");
    }
    for process in unused {
        let mark = format!("{}: ", Bytes(process.bytes));
        match process.found {
            Ok(finding) => {
                section.item(&mark, format!("{}: {}", finding.kind, finding.message));
                for command in &finding.commands {
                    section.item("    run: ", command.as_str());
                }
            }
            Err(suspect) => {
                section.item(&mark, format!("suspect: {}: {}", suspect.kind, suspect.message));
                section.item("    ", suspect.missing.to_string());
            }
        }
    }
    section
}

fn sufficient(
    input: ExplainInput<'_>,
    gpu: &Gpu,
    shortage: &Shortage<'_>,
    unused: &[Unused<'_>],
) -> Section {
    let mut section = Section::new("What would have been enough");
    let sum = |unused: &[Unused<'_>]| unused.iter().map(|process| process.bytes).sum::<u64>();
    let (Some(asked), Some(free_bytes)) = (shortage.asked_bytes, gpu.free_bytes()) else {
        let reason = match gpu.free_bytes() {
            Some(_) => "the requested size is unknown; add --asked SIZE",
            None => "the free memory is unknown",
        };
        let more = if unused.is_empty() {
            String::new()
        } else {
            format!("; {} was unused", Bytes(sum(unused)))
        };
        section.item("- ", format!("{reason}{more}"));
        return section;
    };
    let Some(missing) = asked.checked_sub(free_bytes).filter(|&missing| missing > 0) else {
        section.item(
            "- ",
            format!(
                "{} was free in this sample, which is enough; later allocations and \
                fragmentation are not visible here",
                Bytes(free_bytes)
            ),
        );
        return section;
    };
    let missing_size = Bytes(missing);
    let proved = &unused[..unused.iter().filter(|process| process.found.is_ok()).count()];
    let text = match (enough(proved, missing), enough(unused, missing)) {
        (Some(names), _) => format!("freeing {names} would have been enough"),
        (None, Some(names)) => {
            format!("freeing {names} would have been enough, if the memory is unused (not proven)")
        }
        (None, None) if unused.is_empty() => "request less".to_owned(),
        (None, None) => {
            let left = Bytes(missing - sum(unused));
            format!("request less: after freeing all unused memory, {left} would still be missing")
        }
    };
    section.item("- ", format!("{missing_size} was missing: {text}"));
    for other in &input.last.gpus {
        if let Some(bytes) =
            other.free_bytes().filter(|&bytes| bytes >= asked && other.index != gpu.index)
        {
            section.item("- ", format!("GPU {} had {} free", other.index, Bytes(bytes)));
        }
    }
    section
}

/// Names the smallest process that holds enough memory. If there is none, names the largest processes that together
/// hold enough.
fn enough(unused: &[Unused<'_>], missing: u64) -> Option<String> {
    let mut sorted: Vec<&Unused<'_>> = unused.iter().collect();
    sorted.sort_by_key(|process| process.bytes);
    let named = |process: &&Unused<'_>| format!("{}, {}", process.name, Bytes(process.bytes));
    if let Some(sufficient) = sorted.iter().find(|process| process.bytes >= missing) {
        return Some(named(sufficient));
    }
    let mut names = Vec::new();
    let mut sum = 0;
    for process in sorted.iter().rev() {
        names.push(named(process));
        sum += process.bytes;
        if sum >= missing {
            return Some(names.join("; "));
        }
    }
    None
}
