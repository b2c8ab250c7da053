//! Selects the processes for a plan: those that a person named, or those that rules found.

use std::sync::Arc;

use super::guard::{Guard, Protection};
use super::launcher::find_launcher;
use super::plan::{PlanInput, Refused, Why};
use super::policy::FindingSelector;
use super::release::{self, ReleaseBy, ReleaseWay};
use crate::model::field::{Needle, is_called};
use crate::model::finding::{Ends, Finding, Kind};
use crate::model::process_name::name_of;
use crate::model::selector::Selected;
use crate::model::{Process, Snapshot};
use crate::rules::serves;

pub(super) struct MatchedProcess<'a> {
    pub process: &'a Process,
    pub findings: Vec<&'a Finding>,
}

impl MatchedProcess<'_> {
    pub fn refused(&self, why: Why) -> Refused {
        let finding = self.findings.first();
        Refused {
            pid: Some(self.process.pid),
            user: self.process.user.clone(),
            name: Some(name_of(self.process).into()),
            finding: finding.map(|finding| Arc::clone(&finding.id)),
            kind: finding.map(|finding| finding.kind),
            why,
        }
    }
}

pub(super) fn select_named<'a>(
    input: &PlanInput<'a>,
    guard: &Guard,
    (pids, words): (&[u32], &[Arc<str>]),
    refused: &mut Vec<Refused>,
) -> Vec<MatchedProcess<'a>> {
    let selected = guard.policy.selected.as_ref();
    let mut matched: Vec<MatchedProcess<'a>> = Vec::new();
    let mut add = |process: &'a Process| {
        let is_new = matched.iter().all(|matched| matched.process.pid != process.pid);
        if is_new && fits(selected, process, None) {
            matched.push(MatchedProcess { process, findings: Vec::new() });
        }
    };
    for &pid in pids {
        if let Some(process) = input.snapshot.process(pid) {
            if process.is_zombie() {
                let why = Why::Zombie { parent: process.parent_words().into() };
                refused.push(MatchedProcess { process, findings: Vec::new() }.refused(why));
            } else {
                add(process);
            }
            continue;
        }
        // A pid that is not in the snapshot can be that of a launcher. It selects the launcher's ranks.
        let is_rank = |process: &&Process| {
            find_launcher(process, input.snapshot).is_some_and(|launcher| launcher.pid == pid)
        };
        let mut ranks = input.snapshot.processes.iter().filter(is_rank).peekable();
        if ranks.peek().is_none() {
            refused.push(Refused::new(Some(pid), Why::NotOnGpu));
        }
        ranks.for_each(&mut add);
    }
    for word in words {
        let found = called(word, input.snapshot, input.findings);
        if found.is_empty() {
            refused.push(Refused::new(None, Why::NoTarget { name: Arc::clone(word) }));
        }
        found.into_iter().filter(|process| !process.is_zombie()).for_each(&mut add);
    }
    matched
}

/// Returns the processes that a word selects: the process with this [exact name](crate::model::Identity::exact_name),
/// or all processes of a GPU, notebook, kernel, inference server or finding.
pub fn called<'a>(word: &str, snapshot: &'a Snapshot, findings: &[Finding]) -> Vec<&'a Process> {
    if let Some(needle) = Needle::of_gpu(word) {
        let gpus = snapshot.gpus.iter().filter(|gpu| is_called(gpu, &needle, false, false));
        let rows: Vec<u32> =
            gpus.flat_map(|gpu| gpu.processes.iter().flatten()).map(|row| row.pid).collect();
        return snapshot.processes.iter().filter(|process| rows.contains(&process.pid)).collect();
    }
    let is_server = |process: &Process| {
        let by_table = match release::find(process, snapshot) {
            Ok(ReleaseWay { by: ReleaseBy::Server(unload), .. }) => *unload.server == *word,
            _ => false,
        };
        by_table || (process.framework.as_deref() == Some(word) && serves(process, snapshot))
    };
    let boot_id = snapshot.host.boot_id.as_deref().filter(|_| word.contains('@'));
    let is_exactly = |process: &Process| {
        boot_id.is_some_and(|boot| process.identity().exact_name(boot).as_deref() == Some(word))
    };
    let is_match = |process: &&Process| {
        is_kernel(process, word)
            || is_notebook(process, word)
            || is_server(process)
            || is_exactly(process)
    };
    let mut found: Vec<&Process> = snapshot.processes.iter().filter(is_match).collect();
    let has_prefix = |finding: &&Finding| !word.is_empty() && finding.id.starts_with(word);
    let findings: Vec<&Finding> = findings.iter().filter(has_prefix).collect();
    let exact = findings.iter().find(|finding| *finding.id == *word);
    // A prefix that several findings share selects none of them.
    let finding = exact.or(findings.first().filter(|_| findings.len() == 1));
    let about = finding.and_then(|finding| finding.process.as_ref());
    let process = about.and_then(|about| {
        let process = snapshot.process(about.pid)?;
        (process.identity() == about.identity).then_some(process)
    });
    found.extend(process);
    found
}

/// Returns the processes that rules found and that `selector` requests.
pub(super) fn select_found<'a>(
    input: &PlanInput<'a>,
    guard: &Guard,
    selector: &FindingSelector,
    refused: &mut Vec<Refused>,
) -> Vec<MatchedProcess<'a>> {
    let selected = guard.policy.selected.as_ref();
    let mut matched: Vec<MatchedProcess<'a>> = Vec::new();
    for finding in input.findings {
        if finding.resolved_at.is_some()
            || !(selector.rules.is_empty() || selector.rules.contains(&finding.rule))
        {
            continue;
        }
        let is_asked = selector.kinds.contains(&finding.kind);
        // A selector that names rules, but no kinds, requests all findings of these rules.
        let by_name = is_asked || (selector.kinds.is_empty() && !selector.rules.is_empty());
        let is_released = guard.policy.releasing.contains(&finding.rule);
        if !(by_name || selector.kinds.is_empty()) {
            continue;
        }
        let process = finding.process.as_ref();
        let mut refuse = |why| {
            let shown = process.and_then(|process| input.snapshot.process(process.pid));
            refused.push(Refused {
                user: process.and_then(|process| process.user.clone()),
                name: shown.map(|process| name_of(process).into()),
                finding: Some(Arc::clone(&finding.id)),
                kind: Some(finding.kind),
                ..Refused::new(process.map(|process| process.pid), why)
            });
        };
        let Some(about) = process else {
            if is_asked {
                refuse(Why::NoProcess);
            }
            continue;
        };
        let process = input
            .snapshot
            .process(about.pid)
            .filter(|process| process.identity() == about.identity);
        let fits = |process: &Process| {
            (selector.pids.is_empty() || is_of_pids(process, &selector.pids, input.snapshot))
                && fits(selected, process, Some(finding))
        };
        if !process.is_none_or(fits) {
            continue;
        }
        let kind = finding.kind;
        match kind.ends() {
            Ends::Always => {}
            Ends::Configured | Ends::Named if by_name || is_released => {}
            Ends::Configured | Ends::Named => {
                // Users do not expect that an idle server is ended, so do not report it as refused.
                if kind != Kind::ServerIdle {
                    refuse(Why::OnlyWhenAsked { kind });
                }
                continue;
            }
            Ends::Never if is_released => {}
            Ends::Never => {
                if by_name || matches!(kind, Kind::Dead | Kind::Stuck) {
                    refuse(Why::NeverTaken { kind });
                }
                continue;
            }
        }
        let Some(process) = process else {
            refuse(Why::Gone);
            continue;
        };
        if kind != Kind::Placeholder && !is_asked_for_as_placeholder(input, selector, process) {
            refuse(Why::OnlyWhenAsked { kind: Kind::Placeholder });
            continue;
        }
        if finding.is_only_notified() && !is_released {
            refuse(Why::OnlyNotified);
            continue;
        }
        let now = input.snapshot.time;
        let mut exemptions = guard.policy.kept.iter();
        if let Some(exemption) = exemptions.find(|exemption| exemption.is_for(finding, now)) {
            let (pid, protection) = (process.pid, Protection::of_exemption(exemption));
            refuse(Why::Protected { pid, protection });
            continue;
        }
        match matched.iter_mut().find(|matched| matched.process.pid == process.pid) {
            Some(matched) => matched.findings.push(finding),
            None => matched.push(MatchedProcess { process, findings: vec![finding] }),
        }
    }
    matched
}

/// Returns false if the process is a placeholder and placeholders were not requested. A request for other findings on
/// the process, such as idle, is not enough.
fn is_asked_for_as_placeholder(
    input: &PlanInput<'_>,
    selector: &FindingSelector,
    process: &Process,
) -> bool {
    let found = input.findings.iter().find(|finding| {
        let about = finding.process.as_ref();
        finding.kind == Kind::Placeholder
            && about.is_some_and(|about| about.identity == process.identity())
    });
    selector.kinds.contains(&Kind::Placeholder)
        || found.is_some_and(|finding| selector.rules.contains(&finding.rule))
        || (found.is_none() && process.placeholder().is_none())
}

fn fits(selected: Option<&Selected>, process: &Process, finding: Option<&Finding>) -> bool {
    selected.is_none_or(|selected| match finding {
        Some(finding) => selected.findings.contains(&finding.id),
        None => selected.processes.contains(&process.identity()),
    })
}

/// Returns whether `pids` contains the pid of the process or of its run's launcher.
fn is_of_pids(process: &Process, pids: &[u32], snapshot: &Snapshot) -> bool {
    let is_rank =
        || find_launcher(process, snapshot).is_some_and(|launcher| pids.contains(&launcher.pid));
    pids.contains(&process.pid) || is_rank()
}

fn is_kernel(process: &Process, id: &str) -> bool {
    let kernel = process.jupyter.as_deref();
    kernel.is_some_and(|kernel| kernel.kernel_id.as_deref() == Some(id))
}

/// Returns whether `path` is the notebook's path or consists of its last components.
fn is_notebook(process: &Process, path: &str) -> bool {
    let Some(kernel) = process.jupyter.as_deref() else {
        return false;
    };
    let Some(notebook) = kernel.notebook_path.as_deref() else {
        return false;
    };
    let ends = |long: &str, short: &str| {
        !short.is_empty()
            && long.strip_suffix(short).is_some_and(|rest| {
                rest.is_empty() || rest.ends_with('/') || short.starts_with('/')
            })
    };
    let whole = kernel.server_root.as_deref().map(|root| {
        let root = root.trim_end_matches('/');
        format!("{root}/{}", notebook.trim_start_matches('/'))
    });
    let path = path.trim_start_matches("./");
    ends(notebook, path) || whole.is_some_and(|whole| ends(&whole, path))
}
