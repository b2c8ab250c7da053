//! A way: the control daemon of NVIDIA's Multi-Process Service parts with a client, before that is ended.
//!
//! A client that is killed with work in flight can take its server, and with it all other clients, down.
//! The daemon is spoken to by its own program, which reads commands on its standard input (NVIDIA:
//! Multi-Process Service, appendix "Tools and Interface Reference"). The server itself is never touched.

use std::fmt;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use super::{FamilyInput, PendingRequest, ReclaimWay, Started, StepContext, StepEffect, StepState};
use crate::deadline::Task;
use crate::model::snapshot::ProcessType;
use crate::model::{Process, Snapshot};
use crate::reclaim::ledger;
use crate::reclaim::process_control::{Handle, RequestResult};
use crate::reclaim::target::{Deed, Request, Step, Target};
use crate::reclaim::verify::Outcome;
use crate::units::Span;

/// What a client may take to part from its server: more than the control daemon has for one command, or
/// a client would be signalled while it is being parted with.
const GRACE_SECONDS: f64 = 5.0;

/// Where the program is installed.
const CONTROL: &str = "/usr/bin/nvidia-cuda-mps-control";
/// How long one command may take.
const DEADLINE: Duration = Duration::from_secs(3);
/// How much of its answer is read: lists of pids.
const MOST_BYTES: u64 = 64 << 10;
/// How many servers are asked for their clients; there is one a user.
const MOST_SERVERS: usize = 64;

/// To have the daemon part with clients.
pub(super) struct TerminateClient<'a> {
    pub pids: &'a [u32],
    pub pipe_directory: &'a Option<Arc<str>>,
    pub grace_seconds: f64,
}

/// Where some of a family are clients of the service.
pub(super) fn plan(candidate: &FamilyInput<'_>) -> Option<Step> {
    let clients: Vec<&Process> = candidate
        .processes
        .iter()
        .copied()
        .filter(|process| is_client(process, candidate.snapshot))
        .collect();
    (!clients.is_empty()).then(|| Step::TerminateClient {
        pids: clients.iter().map(|process| process.pid).collect(),
        pipe_directory: clients.iter().find_map(|process| {
            let environment = process.environment.as_deref()?;
            environment.get("CUDA_MPS_PIPE_DIRECTORY").cloned()
        }),
        grace_seconds: GRACE_SECONDS,
    })
}

fn is_client(process: &Process, snapshot: &Snapshot) -> bool {
    let rows = snapshot.gpus.iter().flat_map(|gpu| &gpu.processes);
    rows.flatten().any(|row| row.pid == process.pid && row.kind == ProcessType::Mps)
}

/// What the daemon is asked, in words.
pub(super) fn write_deed(f: &mut fmt::Formatter<'_>, pids: &[u32]) -> fmt::Result {
    let pids = super::numbers(pids.iter().copied());
    write!(f, "asking the MPS control daemon to terminate {pids}")
}

/// Asks, by the control program.
pub(super) fn perform(pids: &[u32], pipe_directory: Option<&str>) -> RequestResult {
    match terminate(Path::new(CONTROL), pids, pipe_directory) {
        Ok(()) => RequestResult::Done,
        Err(error) => RequestResult::Failed(error.to_string()),
    }
}

impl ReclaimWay for TerminateClient<'_> {
    fn describe(&self, _: &Target) -> String {
        let pids = super::numbers(self.pids.iter().copied());
        let wait = Span::from_seconds(self.grace_seconds);
        format!("ask the MPS control daemon to terminate {pids}; wait {wait}")
    }

    fn recipients(&self, scene: &mut StepState<'_>) -> Vec<Handle> {
        scene.held.alive(&mut *scene.control)
    }

    fn execute(
        &self,
        context: &mut StepContext<'_>,
        _: &[Handle],
    ) -> Result<Started, ledger::LedgerError> {
        let deed = Deed::TerminateClient { pids: self.pids.to_vec() };
        let request = Request::TerminateClient {
            pids: self.pids.to_vec(),
            pipe_directory: self.pipe_directory.clone(),
        };
        context.request(&deed, request)?;
        Ok(Started::PendingRequest(PendingRequest { deed, prevents_respawn: false }))
    }

    fn grace_seconds(&self) -> f64 {
        self.grace_seconds
    }

    fn effect(&self, scene: &mut StepState<'_>) -> StepEffect {
        match scene.answer {
            RequestResult::Waiting | RequestResult::Done => StepEffect::Pending,
            RequestResult::AtWork => StepEffect::Ends(Outcome::RuleNoLongerTrue),
            RequestResult::Failed(_) | RequestResult::Restarts(_) | RequestResult::Released(_) => {
                StepEffect::Over
            }
        }
    }
}

/// Why clients were not parted with.
#[derive(Debug, thiserror::Error)]
pub enum TerminateClientError {
    /// The program did not run to its end.
    #[error("cannot run {}: {cause}", program.display())]
    Run { program: PathBuf, cause: io::Error },
    /// It did not answer in time.
    #[error("{} does not answer", program.display())]
    Silent { program: PathBuf },
    #[error("{} failed; is the daemon running?", program.display())]
    Failed { program: PathBuf },
    /// It knows none of them.
    #[error("no server of the Multi-Process Service knows {0:?}")]
    Unknown(Vec<u32>),
}

/// Parts clients from their servers: their calls fail from then on, and their memory is given back.
/// Takes up to some seconds.
///
/// # Errors
///
/// Where one was not parted with; others may have been.
pub fn terminate(
    program: &Path,
    pids: &[u32],
    pipe_directory: Option<&str>,
) -> Result<(), TerminateClientError> {
    let ask = |command: &str| run(program, command, pipe_directory);
    let mut left: Vec<u32> = pids.to_vec();
    let servers = numbers(&ask("get_server_list")?);
    for server in servers.into_iter().take(MOST_SERVERS) {
        let clients = match ask(&format!("get_client_list {server}")) {
            Ok(clients) => clients,
            // One that ends meanwhile has no clients; those of the others are still to be found.
            Err(TerminateClientError::Failed { .. }) => continue,
            Err(error) => return Err(error),
        };
        for client in numbers(&clients) {
            if let Some(at) = left.iter().position(|&pid| pid == client) {
                ask(&format!("terminate_client {server} {client}"))?;
                left.swap_remove(at);
            }
        }
    }
    match left.is_empty() {
        true => Ok(()),
        false => Err(TerminateClientError::Unknown(left)),
    }
}

/// The lines that are numbers.
fn numbers(text: &str) -> Vec<u32> {
    text.lines().filter_map(|line| line.trim().parse().ok()).collect()
}

fn run(
    program: &Path,
    command: &str,
    pipe_directory: Option<&str>,
) -> Result<String, TerminateClientError> {
    let failed = |cause| TerminateClientError::Run { program: program.to_owned(), cause };
    let mut control = Command::new(program);
    control.env_clear().stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    if let Some(folder) = pipe_directory {
        control.env("CUDA_MPS_PIPE_DIRECTORY", folder);
    }
    let mut child = control.spawn().map_err(failed)?;
    let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
    if let Some(mut stdin) = stdin {
        // One that has ended without reading says so by its status.
        let _ = writeln!(stdin, "{command}");
    }
    let reading = Task::start("mps-control", move || {
        let mut text = Vec::new();
        if let Some(stdout) = stdout {
            let _ = stdout.take(MOST_BYTES).read_to_end(&mut text);
        }
        String::from_utf8_lossy(&text).into_owned()
    });
    let text = match reading.map(|reading| reading.wait(DEADLINE)) {
        Ok(Ok(text)) => text,
        unread => {
            let _ = child.kill();
            let _ = child.wait();
            return Err(match unread {
                Err(cause) => failed(cause),
                Ok(_) => TerminateClientError::Silent { program: program.to_owned() },
            });
        }
    };
    let status = child.wait().map_err(failed)?;
    match status.success() {
        true => Ok(text),
        false => Err(TerminateClientError::Failed { program: program.to_owned() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// A program that answers as the daemon does and writes down what it was told.
    fn daemon(folder: &Path, answers: &str) -> PathBuf {
        let path = folder.join("control");
        let log = folder.join("log");
        let script = format!(
            "#!/bin/sh\nread line\necho \"$CUDA_MPS_PIPE_DIRECTORY $line\" >> {}\ncase $line in\n{answers}\nesac\n",
            log.display()
        );
        // By another process: what this one has open to write, one that another test starts may have
        // inherited, and what is open to write cannot be run.
        let mut writer = Command::new("sh")
            .args(["-c", "cat > \"$0\" && chmod 755 \"$0\""])
            .arg(&path)
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = writer.stdin.take().unwrap();
        stdin.write_all(script.as_bytes()).unwrap();
        drop(stdin);
        assert!(writer.wait().unwrap().success());
        path
    }

    #[test]
    fn a_client_is_parted_from_its_own_server_only() {
        let folder = tempfile::tempdir().unwrap();
        let program = daemon(
            folder.path(),
            "get_server_list) echo 5; echo 10; echo 20;;\n\"get_client_list 5\") exit 1;;\n\
             \"get_client_list 10\") echo 1;;\n\"get_client_list 20\") echo 2; echo 3;;",
        );
        terminate(&program, &[3], Some("/tmp/mps")).unwrap();
        let logged = fs::read_to_string(folder.path().join("log")).unwrap();
        let last = logged.lines().last();
        assert_eq!(last, Some("/tmp/mps terminate_client 20 3"));
        assert_eq!(logged.matches("terminate_client").count(), 1);
        let error = terminate(&program, &[4], None).unwrap_err();
        assert!(error.to_string().contains("[4]"), "{error}");
    }

    #[test]
    fn a_daemon_that_is_not_there_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let program = daemon(folder.path(), "*) exit 1;;");
        let error = terminate(&program, &[4], None).unwrap_err();
        assert!(matches!(error, TerminateClientError::Failed { .. }), "{error}");
        let error = terminate(Path::new("/nonexistent"), &[4], None).unwrap_err();
        assert!(matches!(error, TerminateClientError::Run { .. }), "{error}");
        assert_eq!(numbers("10\nx\n\n 20 \n-3\n99999999999\n"), [10, 20]);
    }
}
