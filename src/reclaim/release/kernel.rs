//! Asks a Jupyter kernel to release memory. A recipe is sent over the kernel's shell channel, and the kernel
//! evaluates it.
//!
//! The first request asks for information about the kernel. A kernel that is running a cell does not answer and is left
//! alone. A second request could not be withdrawn and would run after the cell. Then, one silent request without code
//! evaluates one expression (`advice::recipe`). The expression does nothing after its deadline, so it cannot delay a
//! cell that starts in between. The notebook's output, history, counters and names stay the same. The server counts the
//! request as activity, so the report contains the time of the request.
//!
//! The control channel and subshells are never used, because with them the server shows a kernel as idle while a cell
//! is running.

use std::time::Duration;

use super::at_work;
use super::{NotReleased, ReleaseAnswer, ReleaseBy, ReleaseOptions, ReleaseWay};
use crate::advice::recipe::{self, RecipeOptions, ReleaseReport};
use crate::deadline::Deadline;
use crate::host::http::HttpError;
use crate::host::jupyter::{ChannelError, Evaluated, ServerError, ShellChannel};
use crate::host::{Roots, read_time};
use crate::model::{Process, Snapshot};

/// Time limit for the first answer. An idle kernel answers within about 5 ms, or later if the machine is busy.
const PROBE_TIME: Duration = Duration::from_millis(800);

/// The last part of the time limit is reserved for the answer, so the recipe must start earlier. That part is the time
/// limit divided by this number.
const ANSWER_SHARE: u32 = 4;

/// Returns the release request for a kernel, or the reason why the kernel cannot be asked. Returns `None` if the
/// process is not a kernel.
pub(super) fn find(process: &Process, snapshot: &Snapshot) -> Option<Result<ReleaseWay, String>> {
    let jupyter = process.jupyter.as_deref()?;
    let why = |why: &str| Some(Err(why.to_owned()));
    if let Some(kernel) = process.kernel_forked_from() {
        let forked = format!("it was forked from kernel {kernel} and takes no requests of its own");
        return Some(Err(forked));
    }
    if jupyter.is_batch() {
        return why("it runs a notebook as a batch job and exits when that is done");
    }
    let Some(path) = jupyter.connection_file.as_deref() else {
        return why("its command line names no connection file, so it cannot be reached");
    };
    if !path.starts_with('/') {
        return why(
            "its connection file is a relative path; start the kernel with an absolute one",
        );
    }
    let Some(start_ticks) = process.start_ticks else {
        return why(
            "its start time is unknown, so it cannot be identified; check that /proc is readable",
        );
    };
    if let Some(why) = at_work(process.pid, snapshot) {
        return Some(Err(why));
    }
    let by = ReleaseBy::Kernel {
        kernel_id: jupyter.kernel_id.clone(),
        notebook: jupyter.notebook_path.clone(),
        last_activity: process.last_activity(),
    };
    Some(Ok(ReleaseWay { pid: process.pid, start_ticks, by }))
}

/// Checks that the kernel is idle, without causing activity at its server. If `is_deed` is set, then runs the recipe
/// in the kernel and waits for its result, at most for `wait_ms`.
pub(super) fn ask(
    roots: &Roots,
    way: &ReleaseWay,
    options: &ReleaseOptions,
    is_deed: bool,
) -> ReleaseAnswer {
    let mut channel = open(roots, way, options)?;
    if !is_deed {
        return Ok(ReleaseReport::default());
    }
    let wait = Duration::from_millis(options.wait_ms);
    let begun = read_time();
    let source = recipe::source(&RecipeOptions {
        collects: options.collects,
        references: options.references,
        deadline: begun.plus_seconds((wait - wait / ANSWER_SHARE).as_secs_f64()),
        pci_bus_ids: options.pci_bus_ids.clone(),
    });
    let report = match channel.evaluate(&recipe::expression(&source), Deadline::after(wait)) {
        Ok(Evaluated::Value(value)) => recipe::parse_value(&value),
        // The text of an error that the recipe raised is untrusted.
        Ok(Evaluated::Raised(error)) => Err(format!("the script failed in the kernel: {error}")),
        Ok(Evaluated::Aborted) => {
            let why = "a cell failed in between, and the kernel dropped the request; try again";
            return Err(NotReleased::Busy(why.to_owned()));
        }
        Err(ChannelError::Silent) => {
            return Err(NotReleased::TimedOut(format!(
                "the kernel did not answer within {} ms: it is running a cell, or the script needs more time; a script that has not started will not start later; increase --wait",
                options.wait_ms
            )));
        }
        Err(error) => return Err(refusal(&error)),
    };
    let report = report.map_err(NotReleased::NoWayIn)?;
    Ok(ReleaseReport { asked: Some((begun, read_time())), ..report })
}

fn open(
    roots: &Roots,
    way: &ReleaseWay,
    options: &ReleaseOptions,
) -> Result<ShellChannel, NotReleased> {
    let time = PROBE_TIME.min(Duration::from_millis(options.wait_ms));
    let until = Deadline::after(time);
    let process = (way.pid, way.start_ticks);
    let mut channel = ShellChannel::open(roots, process, until).map_err(|error| refusal(&error))?;
    // The request gets the full time limit, however long reading the connection file took.
    let until = Deadline::after(time);
    let implementation = channel.implementation(until).map_err(|error| refusal(&error))?;
    match implementation.as_str() {
        "ipython" => Ok(channel),
        other => {
            let why = format!("the kernel is {other:?}, and gpumem supports only IPython");
            Err(NotReleased::NoWayIn(why))
        }
    }
}

fn refusal(error: &ChannelError) -> NotReleased {
    let why = error.to_string();
    match error {
        ChannelError::Silent => {
            let ms = PROBE_TIME.as_millis();
            let why = format!(
                "the kernel did not answer within {ms} ms: it is running a cell, hangs, or does not accept the key \
                in its connection file; try again when it is idle"
            );
            NotReleased::Busy(why)
        }
        ChannelError::Unsigned { .. }
        | ChannelError::Exposed { .. }
        | ChannelError::Server(
            ServerError::Foreign { .. } | ServerError::NotConnected(HttpError::NotListening { .. }),
        ) => NotReleased::Refused(why),
        _ => NotReleased::NoWayIn(why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::process::AskedRelease;
    use crate::model::snapshot::{Gpu, GpuProcess, Jupyter, Parent};

    fn kernel(application: &str, file: Option<&str>) -> Process {
        let mut process = Process { pid: 7, ..Process::default() };
        process.start_ticks = Some(11);
        process.command = Some(["python".into(), "-m".into()].into());
        process.jupyter = Some(
            Jupyter {
                application: Some(application.into()),
                connection_file: file.map(Into::into),
                kernel_id: Some("0a1b".into()),
                ..Jupyter::default()
            }
            .into(),
        );
        process
    }

    fn find_way(process: &Process) -> Option<Result<ReleaseWay, String>> {
        find(process, &Snapshot::new(crate::model::Time::default()))
    }

    #[test]
    fn a_kernel_with_a_connection_file_can_be_asked() {
        for application in ["jupyter", "vscode", "jupyterhub", "spyder"] {
            let way = find_way(&kernel(application, Some("/run/k.json")));
            let way = way.unwrap().unwrap();
            assert_eq!((way.pid, way.start_ticks), (7, 11));
            assert!(
                matches!(way.by, ReleaseBy::Kernel { kernel_id: Some(id), .. } if &*id == "0a1b")
            );
        }
    }

    #[test]
    fn our_earlier_request_is_not_user_activity() {
        let time = crate::model::Time::from_unix_milliseconds;
        let mut process = kernel("jupyter", Some("/run/k.json"));
        let mut jupyter = process.jupyter.as_deref().cloned().unwrap();
        jupyter.last_activity = Some(time(100_500));
        process.jupyter = Some(jupyter.into());
        process.asked = Some(
            AskedRelease {
                since: time(100_000),
                until: time(101_000),
                last_activity: Some(time(7_000)),
            }
            .into(),
        );
        let last_activity = |process: &Process| match find_way(process).unwrap().unwrap().by {
            ReleaseBy::Kernel { last_activity, .. } => last_activity,
            other => panic!("{other:?}"),
        };
        assert_eq!(last_activity(&process), Some(time(7_000)));
        process.asked = None;
        assert_eq!(last_activity(&process), Some(time(100_500)));
    }

    #[test]
    fn a_kernel_that_cannot_be_asked_has_a_reason() {
        let mut plain = kernel("jupyter", Some("/k.json"));
        plain.jupyter = None;
        assert_eq!(find_way(&plain), None);
        let mut unknown = kernel("jupyter", Some("/k.json"));
        unknown.start_ticks = None;
        let mut fork = kernel("jupyter", Some("/k.json"));
        let parent = Parent { pid: 3, command: fork.command.clone(), ..Parent::default() };
        fork.parent = Some(parent.into());
        for (process, word) in [
            (kernel("papermill", Some("/k.json")), "batch job"),
            (kernel("marimo", None), "no connection file"),
            (kernel("jupyter", Some("k.json")), "is a relative path"),
            (unknown, "is unknown"),
            (fork, "forked from kernel 3"),
        ] {
            let why = find_way(&process).unwrap().unwrap_err();
            assert!(why.contains(word), "{why}");
        }
    }

    #[test]
    fn a_kernel_that_computes_is_not_asked() {
        let find_with = |of_process: Option<u32>, of_gpu: Option<u32>, pid: u32| {
            let mut snapshot = Snapshot::new(crate::model::Time::default());
            snapshot.gpus.push(Gpu {
                index: 3,
                gpu_percent: of_gpu,
                processes: Some(vec![GpuProcess {
                    pid,
                    sm_percent: of_process,
                    ..GpuProcess::default()
                }]),
                ..Gpu::default()
            });
            find(&kernel("jupyter", Some("/k.json")), &snapshot).unwrap()
        };
        assert!(find_with(Some(0), Some(99), 7).is_ok(), "another's work");
        assert!(find_with(None, Some(0), 7).is_ok());
        assert!(find_with(None, None, 7).is_ok(), "not known");
        assert!(find_with(Some(5), Some(5), 8).is_ok(), "another's row");
        for (of_process, of_gpu) in [(Some(5), None), (None, Some(5)), (Some(5), Some(0))] {
            let why = find_with(of_process, of_gpu, 7).unwrap_err();
            let used = match of_process {
                Some(_) => "it used GPU 3 in the last sample (SM 5%)",
                None => "GPU 3 was busy in the last sample (5%)",
            };
            assert!(why.starts_with(used), "{why}");
        }
    }
}
