//! The notify command: a program that is told of a finding as JSON on its standard input.
//!
//! It is run without a shell, for a bounded time; what it prints goes nowhere, what it complains of to
//! standard error. May take as long as that: run it on a thread of its own.

use std::io::{self, Write as _};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::service;

/// How long it may take.
pub(super) const DEADLINE: Duration = Duration::from_secs(10);
/// Between two looks whether it has ended.
const PAUSE: Duration = Duration::from_millis(20);

/// Why it told nobody.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    /// It cannot be run.
    #[error("cannot run the notify command {program}: {cause}; check its path and permissions")]
    Run {
        /// Which.
        program: Arc<str>,
        /// Why.
        cause: io::Error,
    },
    /// It has failed.
    #[error("the notify command {program} failed ({status}); run it by hand to see why")]
    Failed {
        /// Which.
        program: Arc<str>,
        /// How it ended.
        status: ExitStatus,
    },
    /// It does not end.
    #[error("the notify command {program} was ended after {}s; let it do its work in the background", deadline.as_secs_f64())]
    Hangs {
        /// Which.
        program: Arc<str>,
        /// How long it had.
        deadline: Duration,
    },
}

/// Runs a command on an input; done when it ends with success.
///
/// # Errors
///
/// Where it cannot be run, fails or takes too long, and then it is killed.
pub(super) fn run(command: &[Arc<str>], input: &[u8], deadline: Duration) -> Result<(), Error> {
    let Some((program, arguments)) = command.split_first() else {
        return Ok(());
    };
    let program = Arc::clone(program);
    let failed = |cause| Error::Run {
        program: Arc::clone(&program),
        cause,
    };
    let mut command = Command::new(&*program);
    command
        .args(arguments.iter().map(|it| &**it))
        .stdin(Stdio::piped())
        .stdout(Stdio::null());
    for name in service::VARIABLES {
        command.env_remove(name);
    }
    let begun = Instant::now();
    let mut child = command.spawn().map_err(failed)?;
    if let Some(mut stdin) = child.stdin.take() {
        let input = input.to_vec();
        // One that reads nothing fills the pipe, and would hold this thread up.
        let write = move || {
            let _ = stdin.write_all(&input);
        };
        let spawned = thread::Builder::new().name("hook".to_owned()).spawn(write);
        if let Err(cause) = spawned {
            end(&mut child);
            return Err(failed(cause));
        }
    }
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(Some(status)) => return Err(Error::Failed { program, status }),
            Ok(None) if begun.elapsed() < deadline => thread::sleep(PAUSE),
            Ok(None) => {
                end(&mut child);
                return Err(Error::Hangs { program, deadline });
            }
            Err(cause) => {
                end(&mut child);
                return Err(failed(cause));
            }
        }
    }
}

/// Our own child, not yet waited for: the number is its own.
fn end(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn words(words: &[&str]) -> Vec<Arc<str>> {
        words.iter().map(|&word| word.into()).collect()
    }

    #[test]
    fn it_gets_the_whole_input_and_its_arguments_as_they_are() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("told");
        let command = words(&["/bin/sh", "-c", "cat > \"$1\"", "x", path.to_str().unwrap()]);
        // More than a pipe holds.
        let input = vec![b'x'; 1 << 20];
        run(&command, &input, DEADLINE).unwrap();
        assert_eq!(fs::read(&path).unwrap(), input);
        let literal = words(&[
            "/bin/sh",
            "-c",
            "test \"$1\" = '$(id); \"'",
            "x",
            "$(id); \"",
        ]);
        run(&literal, b"{}", DEADLINE).unwrap();
    }

    #[test]
    fn one_that_reads_nothing_and_one_that_does_not_exist() {
        run(&words(&["/bin/true"]), &vec![b'x'; 1 << 20], DEADLINE).unwrap();
        run(&[], b"{}", DEADLINE).unwrap();
        let error = run(&words(&["/nonexistent/tell"]), b"{}", DEADLINE).unwrap_err();
        assert!(matches!(error, Error::Run { .. }), "{error}");
        let error = run(&words(&["/bin/sh", "-c", "exit 3"]), b"{}", DEADLINE).unwrap_err();
        assert!(error.to_string().contains("exit status: 3"), "{error}");
    }

    #[test]
    fn one_that_hangs_is_killed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pid");
        let script = "echo $$ > \"$1\"; exec sleep 600";
        let command = words(&["/bin/sh", "-c", script, "x", path.to_str().unwrap()]);
        let error = run(&command, b"{}", Duration::from_millis(300)).unwrap_err();
        assert!(matches!(error, Error::Hangs { .. }), "{error}");
        let pid = fs::read_to_string(&path).unwrap();
        let proc = std::path::Path::new("/proc").join(pid.trim());
        assert!(!proc.exists(), "{pid} lives on");
    }

    #[test]
    fn it_does_not_speak_to_the_service_manager() {
        let command = words(&["/bin/sh", "-c", "test -z \"$NOTIFY_SOCKET$WATCHDOG_USEC\""]);
        run(&command, b"{}", DEADLINE).unwrap();
    }
}
