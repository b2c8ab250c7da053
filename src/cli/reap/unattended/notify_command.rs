//! The notify command: a program that is told of a finding as JSON on its standard input.
//!
//! It is run without a shell, for a bounded time; what it prints goes nowhere, of what it complains of the
//! beginning to standard error. One that does not end in time is ended with all that it has started.
//! May take as long as that: run it on a thread of its own.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher as _;
use std::io::{self, Read as _, Write as _};
use std::path::PathBuf;
use std::process::{Child, ChildStderr, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use rustix::time::Timespec;

use super::service;
use crate::cli::config::prove_command;
use crate::cli::warn;
use crate::host::{ListedProcess, NotOurs, Roots, carries_variable, read_all, read_start_ticks};

/// How long it may take.
pub(super) const DEADLINE: Duration = Duration::from_secs(10);
/// Between two looks whether it has ended.
const PAUSE: Duration = Duration::from_millis(20);
/// What it complains of is kept up to here,
const MOST_KEPT_BYTES: usize = 4 << 10;
/// up to so many lines. The rest is read now and then, so that it is not held up.
const MOST_LINES: usize = 16;
/// How much is read at a time.
const CHUNK_BYTES: usize = 16 << 10;
/// Names what it and all that it starts have in their environment, so that they are found.
const MARK: &str = "GPUMEM_NOTIFY_RUN";
/// What it has started is looked for so often, until nothing is found any more.
const MOST_LOOKS: usize = 50;
/// How long one that was killed may take to be gone.
const DYING: Duration = Duration::from_secs(2);

/// Why it delivered nothing.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotifyError {
    /// Others may change it.
    #[error("the notify command is not run: {}: {why}", path.display())]
    NotOurs {
        /// The program, or a file that it is given.
        path: PathBuf,
        /// What of its path, and what to do about it.
        why: NotOurs,
    },
    /// It cannot be run.
    #[error("cannot run the notify command {program}: {cause}; check its path and permissions")]
    Run { program: Arc<str>, cause: io::Error },
    #[error("the notify command {program} failed ({status}); run it by hand to see why")]
    Failed { program: Arc<str>, status: ExitStatus },
    /// It does not end.
    #[error("the notify command {program} was killed after {}s, with all that it had started; let it do its work in the background", deadline.as_secs_f64())]
    Hangs { program: Arc<str>, deadline: Duration },
}

/// Runs a command on an input; done when it ends with success.
///
/// # Errors
///
/// Where it cannot be run, fails or takes too long, and then it is killed.
pub(super) fn run(
    command: &[Arc<str>],
    input: &[u8],
    deadline: Duration,
) -> Result<(), NotifyError> {
    let mut output = CommandOutput::default();
    let done = run_and_read(command, input, deadline, &mut output);
    let program = command.first().map_or("", |program| program);
    for line in output.lines() {
        warn(&format!("{program}: {line}"));
    }
    done
}

fn run_and_read(
    command: &[Arc<str>],
    input: &[u8],
    deadline: Duration,
    printed: &mut CommandOutput,
) -> Result<(), NotifyError> {
    let Some((program, arguments)) = command.split_first() else {
        return Ok(());
    };
    // It may have become another's since the configuration was read.
    prove_command(command).map_err(|(path, why)| NotifyError::NotOurs { path, why })?;
    let program = Arc::clone(program);
    let failed = |cause| NotifyError::Run { program: Arc::clone(&program), cause };
    let mark = mark();
    let mut command = Command::new(&*program);
    command
        .args(arguments.iter().map(|it| &**it))
        .env(MARK, &mark)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    for name in service::VARIABLES {
        command.env_remove(name);
    }
    let begun = Instant::now();
    let mut child = command.spawn().map_err(failed)?;
    let mut pipes = Pipes {
        stdin: child.stdin.take().filter(does_not_wait),
        input,
        stderr: child.stderr.take().filter(does_not_wait),
        printed,
    };
    loop {
        pipes.wait();
        match child.try_wait() {
            Ok(Some(status)) => {
                // What it said last. What it left running may say no more.
                pipes.read();
                return match status.success() {
                    true => Ok(()),
                    false => Err(NotifyError::Failed { program, status }),
                };
            }
            Ok(None) if begun.elapsed() < deadline => {}
            Ok(None) => {
                end(&mut child, &mark);
                pipes.read();
                return Err(NotifyError::Hangs { program, deadline });
            }
            Err(cause) => {
                end(&mut child, &mark);
                return Err(failed(cause));
            }
        }
    }
}

/// Of this run alone.
fn mark() -> String {
    let chance = || RandomState::new().hash_one(std::process::id());
    format!("{:016x}{:016x}", chance(), chance())
}

/// Has a pipe answer at once; one that would not is not used.
fn does_not_wait(pipe: &impl AsFd) -> bool {
    fcntl_getfl(pipe).and_then(|flags| fcntl_setfl(pipe, flags | OFlags::NONBLOCK)).is_ok()
}

/// What a command has complained of.
#[derive(Debug, Default)]
struct CommandOutput {
    kept: Vec<u8>,
    /// How much there was, as far as it was read.
    bytes: usize,
}

impl CommandOutput {
    fn append(&mut self, bytes: &[u8]) {
        let room = MOST_KEPT_BYTES - self.kept.len();
        self.kept.extend_from_slice(&bytes[..bytes.len().min(room)]);
        self.bytes += bytes.len();
    }

    fn has_room(&self) -> bool {
        self.kept.len() < MOST_KEPT_BYTES
    }

    /// A few lines, the last of which says where there were more.
    fn lines(&self) -> Vec<String> {
        let text = String::from_utf8_lossy(&self.kept);
        let lines = text.lines().filter(|line| !line.trim().is_empty());
        let mut lines: Vec<String> = lines.map(str::to_owned).collect();
        if lines.len() > MOST_LINES || self.bytes > self.kept.len() {
            lines.truncate(MOST_LINES);
            lines.push("… and more, which is not shown; run it by hand to see it".to_owned());
        }
        lines
    }
}

/// Its standard input and standard error, neither of which is waited for on its own.
struct Pipes<'a> {
    stdin: Option<ChildStdin>,
    /// What is still to be written.
    input: &'a [u8],
    stderr: Option<ChildStderr>,
    printed: &'a mut CommandOutput,
}

impl Pipes<'_> {
    /// Waits a moment, and moves what can be moved.
    fn wait(&mut self) {
        let mut fds = Vec::with_capacity(2);
        fds.extend(self.stdin.iter().map(|pipe| PollFd::new(pipe, PollFlags::OUT)));
        // A flood is not hurried after.
        let stderr = self.stderr.iter().filter(|_| self.printed.has_room());
        fds.extend(stderr.map(|pipe| PollFd::new(pipe, PollFlags::IN)));
        let pause = Timespec { tv_sec: 0, tv_nsec: i64::from(PAUSE.subsec_nanos()) };
        if fds.is_empty() || poll(&mut fds, Some(&pause)).is_err() {
            drop(fds);
            thread::sleep(PAUSE);
        }
        self.write();
        self.read();
    }

    fn write(&mut self) {
        let Some(pipe) = &mut self.stdin else { return };
        match pipe.write(self.input) {
            Ok(written) => self.input = &self.input[written..],
            Err(error) if would_wait(&error) => return,
            // It does not want to know.
            Err(_) => self.input = &[],
        }
        if self.input.is_empty() {
            self.stdin = None;
        }
    }

    fn read(&mut self) {
        let Some(pipe) = &mut self.stderr else { return };
        let mut bytes = [0; CHUNK_BYTES];
        match pipe.read(&mut bytes) {
            Ok(length @ 1..) => self.printed.append(&bytes[..length]),
            Err(error) if would_wait(&error) => {}
            Ok(0) | Err(_) => self.stderr = None,
        }
    }
}

fn would_wait(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// Ends our own child, which was not waited for, so that its number is its own; and all that it has
/// started: its descendants, and those of them that have lost their parents, by the mark in their
/// environment, which nothing has but by being one. Were gpumem made the one that adopts them
/// (`PR_SET_CHILD_SUBREAPER`), it would have to wait for whatever commands leave in the background
/// rightly, for as long as it runs.
///
/// First they are stopped, because one that is stopped starts nothing any more, then killed.
fn end(child: &mut Child, mark: &str) {
    let mut held: Vec<(ListedProcess, OwnedFd)> = Vec::new();
    for _ in 0..MOST_LOOKS {
        let found = started_by(child.id(), mark, &held);
        if found.is_empty() {
            break;
        }
        for (_, pidfd) in &found {
            let _ = pidfd_send_signal(pidfd, Signal::STOP);
        }
        held.extend(found);
    }
    for (_, pidfd) in &held {
        let _ = pidfd_send_signal(pidfd, Signal::KILL);
    }
    // Where there are no pidfds.
    let _ = child.kill();
    let killed = Instant::now();
    // One that the kernel holds up dies later.
    while matches!(child.try_wait(), Ok(None)) && killed.elapsed() < DYING {
        thread::sleep(PAUSE);
    }
}

/// The command and all that it has started, as far as it is not `held`.
fn started_by(
    command: u32,
    mark: &str,
    held: &[(ListedProcess, OwnedFd)],
) -> Vec<(ListedProcess, OwnedFd)> {
    let roots = Roots::default();
    let all = read_all(&roots).unwrap_or_default();
    let Some(root) = all.iter().find(|it| it.pid == command) else {
        return Vec::new();
    };
    let variable = format!("{MARK}={mark}");
    // Nothing older was started by it, and of nothing older the environment is read.
    let younger = all.iter().filter(|it| it.start_ticks >= root.start_ticks);
    let mut ours: Vec<ListedProcess> = younger
        .clone()
        .filter(|it| it.pid == command || carries_variable(&roots, it, &variable))
        .copied()
        .collect();
    let mut at = 0;
    while let Some(parent) = ours.get(at).map(|it| it.pid) {
        at += 1;
        let is_new = |it: &&ListedProcess| !ours.iter().any(|known| known.pid == it.pid);
        let children = younger.clone().filter(|it| it.ppid == Some(parent));
        let children: Vec<ListedProcess> = children.filter(is_new).copied().collect();
        ours.extend(children);
    }
    let is_held = |it: &ListedProcess| held.iter().any(|(known, _)| known == it);
    ours.into_iter()
        .filter(|it| !is_held(it))
        .filter_map(|it| {
            let pid = Pid::from_raw(i32::try_from(it.pid).ok()?)?;
            let pidfd = pidfd_open(pid, PidfdFlags::empty()).ok()?;
            // The number may have become another's before it was held.
            let is_same = read_start_ticks(&roots.proc, it.pid) == Ok(Some(it.start_ticks));
            is_same.then_some((it, pidfd))
        })
        .collect()
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
        let literal = words(&["/bin/sh", "-c", "test \"$1\" = '$(id); \"'", "x", "$(id); \""]);
        run(&literal, b"{}", DEADLINE).unwrap();
    }

    #[test]
    fn one_that_reads_nothing_and_one_that_does_not_exist() {
        run(&words(&["/bin/true"]), &vec![b'x'; 1 << 20], DEADLINE).unwrap();
        run(&[], b"{}", DEADLINE).unwrap();
        let error = run(&words(&["/nonexistent/tell"]), b"{}", DEADLINE).unwrap_err();
        assert!(matches!(error, NotifyError::Run { .. }), "{error}");
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
        assert!(matches!(error, NotifyError::Hangs { .. }), "{error}");
        let pid = fs::read_to_string(&path).unwrap();
        let proc = std::path::Path::new("/proc").join(pid.trim());
        assert!(!proc.exists(), "{pid} lives on");
    }

    /// Whether a process with this number runs, by its state.
    fn runs(pid: &str) -> bool {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let state = stat.rsplit(')').next().unwrap().trim_start().chars().next();
        state.is_some_and(|state| !matches!(state, 'Z' | 'X'))
    }

    #[test]
    fn one_that_hangs_is_killed_with_all_that_it_has_started() {
        let folder = tempfile::tempdir().unwrap();
        // A child, one in a session of its own, one that has lost its parent as well, one that knows
        // nothing of its environment, and a flood on both outputs.
        let script = "cd \"$1\" || exit
            sh -c 'echo $$ > child; exec sleep 1000' &
            setsid sh -c 'echo $$ > session; exec sleep 1000' &
            (setsid sh -c 'echo $$ > daemon; exec sleep 1000' &) &
            env -i /bin/sh -c 'echo $$ > bare; exec /bin/sleep 1000' &
            yes & exec yes >&2";
        let command = words(&["/bin/sh", "-c", script, "x", folder.path().to_str().unwrap()]);
        let mut printed = CommandOutput::default();
        let error =
            run_and_read(&command, b"{}", Duration::from_secs(2), &mut printed).unwrap_err();
        assert!(matches!(error, NotifyError::Hangs { .. }), "{error}");
        for name in ["child", "session", "daemon", "bare"] {
            let pid = fs::read_to_string(folder.path().join(name)).unwrap();
            let begun = Instant::now();
            while runs(pid.trim()) && begun.elapsed() < Duration::from_secs(10) {
                thread::sleep(PAUSE);
            }
            assert!(!runs(pid.trim()), "{name} lives on");
        }
        assert!(printed.kept.len() <= MOST_KEPT_BYTES && printed.bytes < 8 << 20);
        let lines = printed.lines();
        assert_eq!(lines.len(), MOST_LINES + 1);
        assert!(lines[MOST_LINES].starts_with("… and more"), "{lines:?}");
    }

    #[test]
    fn what_it_leaves_in_the_background_lives_on() {
        let folder = tempfile::tempdir().unwrap();
        let script = "setsid sleep 1000 & echo $! > \"$1\"; echo it went >&2";
        let path = folder.path().join("pid");
        let command = words(&["/bin/sh", "-c", script, "x", path.to_str().unwrap()]);
        let mut printed = CommandOutput::default();
        run_and_read(&command, b"{}", DEADLINE, &mut printed).unwrap();
        assert_eq!(printed.lines(), ["it went"]);
        let pid = fs::read_to_string(&path).unwrap();
        assert!(runs(pid.trim()), "{pid} was ended");
        let killed = Command::new("kill").args(["-9", pid.trim()]).status();
        assert!(killed.unwrap().success());
    }

    #[test]
    fn it_does_not_speak_to_the_service_manager() {
        let command = words(&["/bin/sh", "-c", "test -z \"$NOTIFY_SOCKET$WATCHDOG_USEC\""]);
        run(&command, b"{}", DEADLINE).unwrap();
    }
}
