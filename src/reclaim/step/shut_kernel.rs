//! The step that asks a notebook server to shut down a kernel without restarting it.
//!
//! Before the request, the step checks the kernel again: the start time of its process, its command line, its parent if
//! that is a server, and its state at the server. A mismatch is an error. If a running server could restart the kernel,
//! the kernel is left alone, because signals would not help. If the server is gone, the act continues with signals.
//!
//! The step can take seconds and reads users' files, which can hang, so
//! [`PidfdControl`](crate::reclaim::PidfdControl) runs it on a separate thread. Answers and errors never contain the
//! token; see `host::jupyter`.

use std::sync::Arc;
use std::time::Duration;

use super::{FamilyInput, StepContext, StepEffect, StepState};
use crate::deadline::Task;
use crate::host::Roots;
use crate::host::http::HttpError;
use crate::host::jupyter::{self, Client, KernelState, ServerError, read_kernel};
use crate::model::Process;
use crate::model::process::AskedRelease;
use crate::model::snapshot::Jupyter;
use crate::reclaim::guard::Protection;
use crate::reclaim::ledger::LedgerError;
use crate::reclaim::process_control::RequestResult;
use crate::reclaim::target::{Deed, KernelAtServer, Request, Step};
use crate::reclaim::verify::Outcome;

/// Time limit of the step, in seconds. The following time limits add up to 9 s, so all requests have ended by then.
const GRACE_SECONDS: f64 = 10.0;

const READ_TIME: Duration = Duration::from_secs(1);
const QUERY_TIME: Duration = Duration::from_secs(2);
/// Time limit for the shutdown. A notebook server escalates from interrupt to SIGKILL within 5 s (`jupyter_client`:
/// `KernelManager.shutdown_wait_time`).
const SHUTDOWN_TIME: Duration = Duration::from_secs(6);

/// Returns the step for a kernel whose server can be asked. If such a kernel received a signal, its server would
/// restart it.
pub(super) fn plan(candidate: &FamilyInput<'_>) -> Option<Step> {
    let policy = &candidate.guard.policy;
    if policy.direct && policy.signal.is_some() {
        return None;
    }
    let kernels = candidate.processes.iter().filter_map(|process| kernel(process));
    // Processes forked by a kernel look like the kernel, but are younger.
    let kernel = kernels.min_by_key(|kernel| (kernel.start_ticks, kernel.pid))?;
    Some(Step::ShutKernel { kernel, grace_seconds: GRACE_SECONDS })
}

/// Returns the advice for a kernel whose server cannot be asked and may restart it. Ending such a kernel would lose
/// the notebook's state without freeing memory for long.
pub(super) fn restarted(process: &Process) -> Option<Arc<str>> {
    let kernel = process.jupyter.as_deref();
    kernel.filter(|kernel| kernel.may_be_restarted()).map(through_server)
}

fn kernel(process: &Process) -> Option<KernelAtServer> {
    let jupyter = process.jupyter.as_deref()?;
    if jupyter.server_error.is_some() || process.has_lost_server() || !is_notebook(process) {
        return None;
    }
    Some(KernelAtServer {
        id: jupyter.kernel_id.clone()?,
        pid: process.pid,
        start_ticks: process.start_ticks?,
        last_activity: process.last_activity(),
        server_url: jupyter.server_url.clone()?,
        server_pid: jupyter.server_pid,
        notebook: jupyter.notebook_path.clone(),
    })
}

/// Returns the advice for a kernel whose server cannot be asked, including the reason why no signal is sent.
fn through_server(kernel: &Jupyter) -> Arc<str> {
    let why = kernel.server_error.as_deref();
    let why = why.unwrap_or("it has not reported the kernel's state");
    let reason = match kernel.server_alive {
        Some(true) => "its server would start it again, and cannot be asked",
        _ => "its server may start it again",
    };
    let advice = match kernel.application.as_deref() {
        Some("voila") => "close its dashboard, or stop Voilà",
        Some("kernelgateway") => "have the client of its gateway shut it down",
        Some("databricks") => "detach its notebook",
        _ => "shut the kernel down in its notebook",
    };
    format!("{advice}; {reason}: {why}").into()
}

/// Returns whether a notebook server may restart the kernel. Editors and programs that run a notebook as a batch job
/// do not restart kernels.
pub(super) fn is_notebook(process: &Process) -> bool {
    process.jupyter.as_deref().is_some_and(|jupyter| {
        let application = jupyter.application.as_deref();
        !jupyter.is_batch() && !matches!(application, Some("vscode" | "marimo" | "ipykernel"))
    })
}

pub(super) fn describe(kernel: &KernelAtServer) -> String {
    let KernelAtServer { id, server_url, server_pid, .. } = kernel;
    let pid = server_pid.map_or_else(String::new, |pid| format!(" ({pid})"));
    format!("ask the notebook server {server_url}{pid} to shut kernel {id} down")
}

pub(super) fn request(
    kernel: &KernelAtServer,
    state: &mut StepState,
    context: &mut StepContext<'_>,
) -> Result<StepEffect, LedgerError> {
    let deed = Deed::ShutKernel { kernel_id: Arc::clone(&kernel.id) };
    let asked = state.requests_to(kernel.pid, kernel.start_ticks);
    let request = Request::ShutKernel {
        kernel: kernel.clone(),
        even_at_work: state.is_named(),
        asked: asked.map(|release| release.asked(context.input.now)).collect(),
    };
    state.request(deed, request, context)
}

pub(super) fn effect(state: &StepState) -> StepEffect {
    match &state.answer {
        RequestResult::Waiting | RequestResult::Done => StepEffect::Pending,
        RequestResult::AtWork => StepEffect::Ends(Outcome::RuleNoLongerTrue),
        RequestResult::Failed(_) | RequestResult::Released(_) | RequestResult::Parked(_) => {
            StepEffect::Over
        }
        RequestResult::Restarts(_) if state.guard.policy.direct => StepEffect::Over,
        RequestResult::Restarts(why) => StepEffect::Ends(left_to_server(why)),
    }
}

/// Ends the act if the server has not answered, because the server may restart a kernel that exits after a signal.
pub(super) fn expired(state: &StepState) -> StepEffect {
    match state.answer == RequestResult::Waiting && !state.guard.policy.direct {
        true => StepEffect::Ends(left_to_server("its server has not answered")),
        false => StepEffect::Over,
    }
}

fn left_to_server(why: &str) -> Outcome {
    let command = format!("shut the kernel down in its notebook; {why}").into();
    let why = Protection::Owned { command };
    Outcome::Protected { why }
}

/// Asks a notebook server to shut down a kernel, after checking the kernel's state. A working kernel is left alone,
/// unless `even_at_work` is set. `asked` contains the times of gpumem's own requests, which are not work. Can take
/// seconds.
pub fn ask_server(
    roots: &Roots,
    kernel: &KernelAtServer,
    even_at_work: bool,
    asked: &[AskedRelease],
) -> RequestResult {
    let shut = shut(roots, kernel, even_at_work, asked);
    shut.map_or_else(|error| error, |()| RequestResult::Done)
}

/// Tells the server to shut down a kernel. Sends at most one `DELETE` request. The texts of errors are untrusted, so
/// the caller must escape them for a terminal.
fn shut(
    roots: &Roots,
    kernel: &KernelAtServer,
    even_at_work: bool,
    asked: &[AskedRelease],
) -> Result<(), RequestResult> {
    let id = &kernel.id;
    let failed = |cause| {
        let why = format!("the server of kernel {id} has not shut it down: {cause}");
        match may_restart(&cause) {
            true => RequestResult::Restarts(why),
            false => RequestResult::Failed(why),
        }
    };
    let found = find(roots, kernel)?;
    let Some(server) = &found.server else {
        let why = found.jupyter.server_error.as_deref().unwrap_or("it has none");
        return Err(no_server(id, why, found.jupyter.server_alive == Some(false)));
    };
    let url = &kernel.server_url;
    let is_planned = kernel.server_pid.is_none_or(|pid| pid == server.listener.pid)
        && found.jupyter.server_url.as_ref() == Some(url);
    if !is_planned {
        return Err(RequestResult::Restarts(format!(
            "the server of kernel {id} is not {url} any more; make a new plan"
        )));
    }
    let client = Client::new(roots, server).map_err(failed)?;
    let state = client.kernel(id, QUERY_TIME).map_err(failed)?;
    if !even_at_work && is_at_work(&state, kernel, asked) {
        return Err(RequestResult::AtWork);
    }
    found.check(roots).map_err(failed)?;
    client.shut_down(id, SHUTDOWN_TIME).map_err(failed)
}

/// Returns whether the server may restart the kernel, given this error. A server that is gone or does not know the
/// kernel will not.
fn may_restart(cause: &ServerError) -> bool {
    !matches!(
        cause,
        ServerError::UnknownKernel
            | ServerError::Replaced { .. }
            | ServerError::Ended { .. }
            | ServerError::NotConnected(HttpError::Ended { .. })
            | ServerError::Gone { .. }
    )
}

/// Returns the error for a kernel whose server cannot be asked. `is_gone` means that the server has exited.
fn no_server(id: &str, why: &str, is_gone: bool) -> RequestResult {
    let why = format!("the server of kernel {id} cannot be asked: {why}");
    if is_gone { RequestResult::Failed(why) } else { RequestResult::Restarts(why) }
}

fn find(roots: &Roots, kernel: &KernelAtServer) -> Result<jupyter::LocalKernel, RequestResult> {
    let (id, pid) = (&kernel.id, kernel.pid);
    let another = || {
        RequestResult::Failed(format!("process {pid} is not kernel {id} any more; make a new plan"))
    };
    let candidate = jupyter::KernelCandidate::read(roots, pid, kernel.start_ticks);
    let candidate = candidate.filter(|candidate| {
        let jupyter = candidate.jupyter.as_deref();
        jupyter.and_then(|jupyter| jupyter.kernel_id.as_ref()) == Some(id)
    });
    let candidate = candidate.ok_or_else(another)?;
    let roots = roots.clone();
    let reading = Task::start("notebook-files", move || read_kernel(&roots, &candidate))
        .map_err(|error| no_server(id, &error.to_string(), false))?;
    match reading.wait(READ_TIME) {
        Ok(found) => found.ok_or_else(another),
        Err(_) => Err(RequestResult::Restarts(format!(
            "could not read the files of kernel {id} in time; check whether its file system hangs"
        ))),
    }
}

/// Returns whether a kernel works, or has worked since the plan was made. An unknown state is treated as work. A
/// kernel to which no client has connected yet is in state `starting` (`jupyter_server`:
/// `MappingKernelManager._async_start_kernel`).
fn is_at_work(state: &KernelState, kernel: &KernelAtServer, asked: &[AskedRelease]) -> bool {
    let rests = matches!(state.execution_state.as_deref(), Some("idle" | "starting"));
    let is_later = match (state.last_activity, kernel.last_activity) {
        (Some(now), Some(then)) => now > then && !asked.iter().any(|request| request.explains(now)),
        _ => false,
    };
    !rests || is_later
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Time;

    fn kernel(last_activity: Option<i64>) -> KernelAtServer {
        KernelAtServer {
            id: "0a1b2c3d-0123-4567-89ab-00aa11bb22cc".into(),
            pid: std::process::id(),
            start_ticks: 1,
            last_activity: last_activity.map(Time::from_unix_milliseconds),
            server_url: "http://127.0.0.1:1/".into(),
            server_pid: None,
            notebook: None,
        }
    }

    #[test]
    fn only_a_known_idle_state_counts_as_idle() {
        let is_at_work = |state: Option<&str>, now: Option<i64>, then: Option<i64>| {
            let state = KernelState {
                id: "x".to_owned(),
                path: None,
                execution_state: state.map(str::to_owned),
                last_activity: now.map(Time::from_unix_milliseconds),
                connections: Some(1),
            };
            is_at_work(&state, &kernel(then), &[])
        };
        for (state, expected) in [
            (Some("idle"), false),
            (Some("starting"), false),
            (Some("busy"), true),
            (Some("restarting"), true),
            (Some("?"), true),
            (None, true),
        ] {
            assert_eq!(is_at_work(state, Some(5), Some(5)), expected, "{state:?}");
        }
        assert!(is_at_work(Some("idle"), Some(6), Some(5)));
        assert!(!is_at_work(Some("idle"), Some(6), None));
        assert!(!is_at_work(Some("idle"), None, Some(5)));
    }

    #[test]
    fn a_process_that_is_not_the_kernel_is_not_shut_down() {
        let kernel = kernel(None);
        // The request contains this process's pid, but not its start time.
        let asked = ask_server(&Roots::default(), &kernel, true, &[]);
        let RequestResult::Failed(why) = asked else {
            panic!("{asked:?}");
        };
        assert!(why.contains("is not kernel 0a1b2c3d"), "{why}");
    }
}
