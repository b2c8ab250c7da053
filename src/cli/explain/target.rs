//! Parses the argument of `gpumem explain`, and finds the process or GPU in the last snapshot.
//!
//! If the target does not exist, the error lists existing targets. If an unreadable GPU could contain the target, the
//! exit code means "could not measure".

use crate::cli::selection::{more_than_one, no_such_gpu};
use crate::cli::{UsageError, unreadable};
use crate::explain;
use crate::model::field::{Needle, is_called};
use crate::model::finding::Finding;
use crate::model::snapshot::MigDevice;
use crate::model::{Gpu, Snapshot};
use crate::reclaim::called;
use crate::rules;
use crate::units::some_of;

use super::SampledHistory;

/// Maximum number of processes or findings in an error message.
const MOST_LISTED: usize = 8;

/// A target from the command line of `explain`, `kill` or another command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::cli) enum TypedTarget {
    Pid(u32),
    /// A GPU, for example `gpu:0`, `GPU-…` or `MIG-…`. A prefix of a UUID is enough.
    Gpu(Needle),
    /// A prefix of a finding's id, or the name of a notebook, kernel or inference server.
    Name(String),
}

/// The subject of a page, with the finding if the user asked for a finding.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum ExplainSubject {
    Process(u32, Option<Finding>),
    /// Index into the GPUs of the last snapshot.
    Gpu(usize, Option<Finding>),
}

impl TypedTarget {
    /// Parses an argument. Fails if the argument is empty or is a number that cannot be a pid.
    pub(in crate::cli) fn parse(typed: &str) -> Result<Self, UsageError> {
        if typed.trim().is_empty() {
            return Err(UsageError("a target is empty; give a PID, such as 4242".to_owned()));
        }
        if typed.bytes().all(|byte| byte.is_ascii_digit()) {
            return typed
                .parse()
                .map(Self::Pid)
                .map_err(|_| UsageError(format!("{typed} is not a pid; `gpumem ps` lists them")));
        }
        Ok(Needle::of_gpu(typed).map_or_else(|| Self::Name(typed.to_owned()), Self::Gpu))
    }

    /// Finds the target. Fails with [`UsageError`] if the target does not exist, and with another error if an
    /// unreadable GPU could contain the target.
    pub(super) fn find(
        &self,
        history: &SampledHistory,
        last: &Snapshot,
    ) -> anyhow::Result<ExplainSubject> {
        match self {
            Self::Pid(pid) => find_pid(*pid, history, last),
            Self::Gpu(gpu) => find_gpu(gpu, last).map_err(Into::into),
            Self::Name(name) => find_named(name, history, last).map_err(Into::into),
        }
    }

    /// Returns a note if the target is a MIG device, because the page describes the whole GPU.
    pub(super) fn note(&self, found: &ExplainSubject, last: &Snapshot) -> Option<String> {
        let (Self::Gpu(needle), ExplainSubject::Gpu(index, _)) = (self, found) else {
            return None;
        };
        let is_meant = |device: &&MigDevice| {
            let uuid = device.uuid.as_deref();
            needle.is_uuid() && uuid.is_some_and(|uuid| needle.is_uuid_of(uuid, false))
        };
        let instance = last.gpus.get(*index)?.mig_devices.iter().find(is_meant)?.gpu_instance_id?;
        Some(format!(
            "the MIG device is GPU instance {instance} of this GPU; the page describes the whole GPU"
        ))
    }
}

fn find_pid(pid: u32, history: &SampledHistory, last: &Snapshot) -> anyhow::Result<ExplainSubject> {
    let is_listed = |gpu: &Gpu| gpu.processes.iter().flatten().any(|row| row.pid == pid);
    if last.gpus.iter().any(is_listed) || last.process(pid).is_some() {
        return Ok(ExplainSubject::Process(pid, None));
    }
    let mut message = match history.all_series.last_on_gpu(pid) {
        Some((time, gpu)) => {
            format!("pid {pid} was on GPU {gpu} until {}, and uses no GPU now", time.local())
        }
        None => format!(
            "pid {pid} is not on a GPU: NVML does not list it, and no open GPU device file is \
             visible"
        ),
    };
    if last.gpus.iter().any(|gpu| gpu.index == pid) {
        message.push_str(&format!("; to name GPU {pid}, write gpu:{pid}"));
    }
    message.push_str(&format!("; {}", list_holders(last)));
    if unreadable(last) && !last.gpus.is_empty() {
        return Err(anyhow::anyhow!("{message}; not every GPU could be read (see `gpumem ps`)"));
    }
    Err(UsageError(message).into())
}

fn find_gpu(needle: &Needle, last: &Snapshot) -> Result<ExplainSubject, UsageError> {
    let is_match = |at: &usize| is_called(&last.gpus[*at], needle, false, false);
    let indices: Vec<usize> = (0..last.gpus.len()).filter(is_match).collect();
    let typed = needle.typed();
    match indices[..] {
        [] => Err(no_such_gpu(typed, &last.gpus)),
        [index] => Ok(ExplainSubject::Gpu(index, None)),
        _ => Err(more_than_one(typed, &Vec::from_iter(indices.iter().map(|&at| &last.gpus[at])))),
    }
}

/// Finds the finding whose id begins with `name`. If there is none, finds the process of the notebook, kernel or
/// server with this name.
fn find_named(
    name: &str,
    history: &SampledHistory,
    last: &Snapshot,
) -> Result<ExplainSubject, UsageError> {
    if history.findings().any(|finding| finding.id.starts_with(name)) {
        return find_finding(name, history, last);
    }
    let found = called(name, last, &[]);
    match found[..] {
        [] => Err(no_such_finding(name, history, last)),
        [process] => Ok(ExplainSubject::Process(process.pid, None)),
        _ => {
            let pids: Vec<String> = found.iter().map(|process| process.pid.to_string()).collect();
            Err(UsageError(format!(
                "{name} matches more than one process ({}); give one of these PIDs",
                some_of(MOST_LISTED, ", ", &pids)
            )))
        }
    }
}

fn find_finding(
    id: &str,
    history: &SampledHistory,
    last: &Snapshot,
) -> Result<ExplainSubject, UsageError> {
    let exact = history.findings().find(|finding| *finding.id == *id);
    let finding = match exact {
        Some(finding) => finding,
        None => {
            let begins = |finding: &&Finding| finding.id.starts_with(id);
            let found: Vec<&Finding> = history.findings().filter(begins).collect();
            match found[..] {
                [finding] => finding,
                [] => return Err(no_such_finding(id, history, last)),
                _ => {
                    return Err(UsageError(format!(
                        "{id} matches more than one finding: {}; give more of the id",
                        ids(found.into_iter())
                    )));
                }
            }
        }
    };
    let asked = Some(finding.clone());
    let found = match &finding.process {
        Some(process) => {
            let is_present = explain::is_there(process.identity, last);
            is_present.then_some(ExplainSubject::Process(process.pid, asked))
        }
        None => {
            let on = finding.gpus.first();
            let is_match = |gpu: &Gpu| on.is_some_and(|on| on.index == gpu.index);
            let index = last.gpus.iter().position(is_match);
            index.map(|index| ExplainSubject::Gpu(index, asked))
        }
    };
    found.ok_or_else(|| {
        let since = match finding.resolved_at {
            Some(at) => format!("cleared at {}", at.local()),
            None => "is not in the last snapshot".to_owned(),
        };
        UsageError(format!(
            "{id} {since}, and its process or GPU no longer exists; {}",
            list_holders(last)
        ))
    })
}

fn no_such_finding(id: &str, history: &SampledHistory, last: &Snapshot) -> UsageError {
    let mut active = history.engine.active_findings().peekable();
    let active_ids = if active.peek().is_none() {
        format!("there are no findings; {}", list_holders(last))
    } else {
        format!("findings: {}", ids(active))
    };
    UsageError(format!("no finding, notebook, kernel or server is named {id}; {active_ids}"))
}

fn ids<'f>(findings: impl Iterator<Item = &'f Finding>) -> String {
    some_of(MOST_LISTED, ", ", &Vec::from_iter(findings.map(|finding| &finding.id)))
}

/// Lists the processes on GPUs for an error message, as in `processes: 4242 (python train.py) on GPU 0`.
fn list_holders(last: &Snapshot) -> String {
    let mut holders: Vec<(u32, String)> = Vec::new();
    for gpu in &last.gpus {
        for row in gpu.processes.iter().flatten() {
            if holders.iter().any(|(pid, _)| *pid == row.pid) {
                continue;
            }
            let process = last.process(row.pid);
            let process = process.filter(|process| process.identity().is_certain());
            let name = match process {
                Some(process) => format!(" ({})", rules::name_of(process)),
                None => String::new(),
            };
            let words = format!("{}{name} on GPU {}", row.pid, gpu.index);
            holders.push((row.pid, words));
        }
    }
    if holders.is_empty() {
        return "NVML lists no process on any GPU".to_owned();
    }
    let holders: Vec<String> = holders.into_iter().map(|(_, words)| words).collect();
    format!("processes: {}", some_of(MOST_LISTED, ", ", &holders))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_parsed_as_a_pid_a_gpu_or_a_name() {
        let gpu = |typed: &str| TypedTarget::Gpu(Needle::new(typed));
        for (typed, target) in [
            ("4242", TypedTarget::Pid(4242)),
            ("0", TypedTarget::Pid(0)),
            ("gpu:0", gpu("0")),
            ("GPU:12", gpu("12")),
            ("gpu:2-4", gpu("2-4")),
            ("GPU-3f", gpu("GPU-3f")),
            ("gpu:GPU-3F", gpu("gpu-3f")),
            ("mig-1", gpu("mig-1")),
            ("idle:GPU-3f:42:7", TypedTarget::Name("idle:GPU-3f:42:7".into())),
            ("vllm", TypedTarget::Name("vllm".into())),
        ] {
            assert_eq!(TypedTarget::parse(typed).ok(), Some(target), "{typed}");
        }
        for wrong in ["", " ", "99999999999"] {
            assert!(TypedTarget::parse(wrong).is_err(), "{wrong}");
        }
    }
}
