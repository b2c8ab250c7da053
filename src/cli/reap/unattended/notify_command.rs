//! Runs the notify command, which receives a finding as JSON on standard input.
//!
//! The command runs without a shell or a terminal, and with a time limit. gpumem discards the command's standard
//! output. The command inherits gpumem's standard error, so the service manager logs its messages. When the command
//! exits or times out, gpumem kills the command's process group. [`run`] blocks until then.

use std::fs::File;
use std::io::{self, Seek as _, Write as _};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use rustix::fs::{MemfdFlags, memfd_create};

use super::service;
use crate::cli::config::prove_command;
use crate::subprocess::Subprocess;

pub(super) const DEADLINE: Duration = Duration::from_secs(10);

/// Runs a command with `input` on standard input. Fails if other users can change the command, or if the command cannot
/// be run, exits with an error, or exceeds the time limit.
pub(super) fn run(command: &[Arc<str>], input: &[u8], deadline: Duration) -> anyhow::Result<()> {
    // File permissions may have changed since the configuration was read.
    prove_command(command).map_err(|(path, why)| {
        anyhow!("the notify command is not run: {}: {why}", path.display())
    })?;
    let (program, arguments) = command.split_first().context("[reap] has no notify command")?;
    let cannot =
        || format!("cannot run the notify command {program} (check its path and permissions)");
    let mut spawning = Command::new(&**program);
    spawning
        .args(arguments.iter().map(|argument| &**argument))
        .stdin(stdin(input).with_context(cannot)?)
        .stdout(Stdio::null())
        .stderr(Stdio::inherit());
    for name in service::VARIABLES {
        spawning.env_remove(name);
    }
    let mut subprocess = Subprocess::start(&mut spawning).with_context(cannot)?;
    match subprocess.wait(deadline).with_context(cannot)? {
        Some(status) if status.success() => Ok(()),
        Some(status) => {
            bail!("the notify command {program} failed ({status}); run it by hand to see why")
        }
        None => bail!(
            "the notify command {program} was killed after {}s, with its process group; start longer work in a \
             separate session (setsid)",
            deadline.as_secs_f64()
        ),
    }
}

/// Returns an in-memory file. With a pipe, gpumem would block until the command reads its input.
fn stdin(input: &[u8]) -> io::Result<Stdio> {
    let mut file = File::from(memfd_create("gpumem-notice", MemfdFlags::CLOEXEC)?);
    file.write_all(input)?;
    file.rewind()?;
    Ok(file.into())
}

#[cfg(test)]
mod tests {
    use std::time::Instant;
    use std::{fs, thread};

    use super::*;

    fn command_words(words: &[&str]) -> Vec<Arc<str>> {
        words.iter().map(|&word| word.into()).collect()
    }

    #[test]
    fn the_command_gets_the_whole_input_and_its_arguments_unchanged() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("told");
        let command =
            command_words(&["/bin/sh", "-c", "cat > \"$1\"", "x", path.to_str().unwrap()]);
        // The input exceeds the capacity of a pipe.
        let input = vec![b'x'; 1 << 20];
        run(&command, &input, DEADLINE).unwrap();
        assert_eq!(fs::read(&path).unwrap(), input);
        let literal =
            command_words(&["/bin/sh", "-c", "test \"$1\" = '$(id); \"'", "x", "$(id); \""]);
        run(&literal, b"{}", DEADLINE).unwrap();
        // The command cannot reach the service manager.
        let command = command_words(&["/bin/sh", "-c", "test -z \"$NOTIFY_SOCKET$WATCHDOG_USEC\""]);
        run(&command, b"{}", DEADLINE).unwrap();
    }

    #[test]
    fn a_command_need_not_read_but_must_exist_and_succeed() {
        run(&command_words(&["/bin/true"]), &vec![b'x'; 1 << 20], DEADLINE).unwrap();
        let error = run(&command_words(&["/nonexistent/tell"]), b"{}", DEADLINE).unwrap_err();
        assert!(error.to_string().contains("cannot run"), "{error}");
        let error = run(&command_words(&["/bin/sh", "-c", "exit 3"]), b"{}", DEADLINE).unwrap_err();
        assert!(error.to_string().contains("exit status: 3"), "{error}");
    }

    fn is_running(pid: &str) -> bool {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let state = stat.rsplit(')').next().unwrap().trim_start().chars().next();
        state.is_some_and(|state| !matches!(state, 'Z' | 'X'))
    }

    /// Returns whether a process ends within a minute.
    fn ends(pid: &str) -> bool {
        let begun = Instant::now();
        while is_running(pid.trim()) && begun.elapsed() < Duration::from_secs(60) {
            thread::sleep(Duration::from_millis(20));
        }
        !is_running(pid.trim())
    }

    #[test]
    fn a_hanging_command_is_killed_with_its_process_group() {
        let folder = tempfile::tempdir().unwrap();
        let script = "cd \"$1\" || exit; echo $$ > own
            sh -c 'echo $$ > child; exec sleep 1000' &
            yes & exec yes";
        let command =
            command_words(&["/bin/sh", "-c", script, "x", folder.path().to_str().unwrap()]);
        let error = run(&command, b"{}", Duration::from_secs(5)).unwrap_err();
        assert!(error.to_string().contains("was killed after 5s"), "{error}");
        for name in ["own", "child"] {
            let pid = fs::read_to_string(folder.path().join(name)).unwrap();
            assert!(ends(&pid), "{name} is still running");
        }
    }

    #[test]
    fn remaining_children_are_killed_unless_in_their_own_session() {
        let folder = tempfile::tempdir().unwrap();
        let script = "cd \"$1\" || exit; sleep 1000 & echo $! > child
            setsid sh -c 'echo $$ > daemon; exec sleep 1000' &
            while ! [ -s daemon ]; do sleep 0.01; done
            cut -d' ' -f6,7 /proc/$$/stat > session; echo $$ 0 >> session";
        let command =
            command_words(&["/bin/sh", "-c", script, "x", folder.path().to_str().unwrap()]);
        run(&command, b"{}", DEADLINE).unwrap();
        let read = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
        let session = read("session");
        let (is, expected) = session.trim().split_once('\n').unwrap();
        assert_eq!(is, expected, "its own session, without a terminal");
        let (child, daemon) = (read("child"), read("daemon"));
        assert!(ends(&child), "{child} is still running");
        assert!(is_running(daemon.trim()), "{daemon} was killed");
        let killed = Command::new("kill").args(["-9", daemon.trim()]).status();
        assert!(killed.unwrap().success());
    }
}
