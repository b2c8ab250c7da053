//! Reads snapshots from another machine by running `gpumem record -` there through the user's ssh.
//!
//! ssh runs in batch mode, so it never asks for a password. It uses the keys, agents and jump hosts in the user's
//! configuration. The host's output is read like any recording: the length of lines is limited, and damaged lines are
//! skipped.

use std::ffi::OsStr;
use std::io::{self, Read};
use std::process::{ChildStderr, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::{Control, NextSnapshot, Origin, Source, SourceError};
use crate::deadline::Task;
use crate::model::snapshot::SCHEMA;
use crate::model::{Snapshot, Time};
use crate::recording::{RecordingError, RecordingReader};
use crate::subprocess::Subprocess;
use crate::units::system_message;

/// Options for all ssh commands. They override settings that users make for interactive sessions: ssh must not
/// forward anything, in particular not the agent, and must not run a different command.
const COMMON_OPTIONS: [&str; 4] =
    ["ClearAllForwardings=yes", "ForwardAgent=no", "ForwardX11=no", "RemoteCommand=none"];
/// Options for ssh without a terminal. ssh does not prompt, gives up on a host that does not answer, and compresses the
/// data. It uses an existing shared connection, but does not create one, because other sessions would then lose their
/// connection when this ssh exits.
const BATCH_OPTIONS: [&str; 7] = [
    "BatchMode=yes",
    "ConnectTimeout=10",
    "ServerAliveInterval=5",
    "ServerAliveCountMax=3",
    "Compression=yes",
    "ControlMaster=no",
    "RequestTTY=no",
];
/// Maximum number of bytes that are kept from the end of standard error.
const STDERR_BYTES: usize = 4096;
/// Time that ssh has to exit after its output has ended. Then, gpumem kills it.
const EXIT_WAIT: Duration = Duration::from_secs(1);
/// Minimum and maximum pause before the next attempt to connect after a failure.
const LEAST_PAUSE: Duration = Duration::from_secs(2);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// A snapshot up to this many seconds older than the last one is a duplicate. If it is even older, the clock was set
/// back.
const KNOWN_SECONDS: f64 = 60.0;
/// Exit status of ssh if it could not connect or lost the connection.
const SSH_FAILED: i32 = 255;
/// Exit status of a shell for an unknown command.
const NO_PROGRAM: i32 = 127;
/// Exit status of gpumem for unknown arguments.
const USAGE: i32 = 2;

/// A machine that ssh can reach, and how to run gpumem there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RemoteHost {
    /// Name of the host, as passed to ssh.
    pub name: Arc<str>,
    /// Command that runs gpumem on the host, for the host's shell.
    pub command: Arc<str>,
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub struct RemoteRequest {
    pub interval: Duration,
    /// Duration of the recording, or `None` to record until the connection is closed.
    pub duration: Option<Duration>,
    /// Duration of the stored history that the host sends first.
    pub history: Duration,
}

#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    #[error("ssh cannot be started: {}; install an OpenSSH client", system_message(cause))]
    NoSsh { cause: io::Error },
    #[error("ssh failed: {message}; make this command work without a prompt: {command}")]
    Ssh { message: String, command: Arc<str> },
    #[error(
        "ssh failed: {message}; sshd refuses connections while ten others are logging in: name fewer hosts, \
         or raise MaxStartups on the host or the jump host"
    )]
    Refused { message: String },
    #[error(
        "gpumem was not found there: {message}; install it, or name its path with --host-command"
    )]
    NoGpumem { message: String },
    #[error("gpumem there is too old for this request; upgrade it")]
    OlderProgram,
    #[error("its gpumem writes {found:?}, and this one reads {SCHEMA:?}; upgrade gpumem {}", .side)]
    Schema {
        found: String,
        /// Where gpumem must be upgraded: `here` or `there`.
        side: &'static str,
    },
    #[error("{message}")]
    Failed { message: String },
    #[error("{cause}")]
    Unreadable { cause: RecordingError },
}

/// A handle with which another thread can close a connection. Closing a closed connection has no effect.
#[derive(Clone, Debug, Default)]
pub struct Hangup(Arc<Mutex<Option<Subprocess>>>);

impl Hangup {
    pub fn hang_up(&self) {
        if let Some(ssh) = self.0.lock().unwrap_or_else(PoisonError::into_inner).as_ref() {
            ssh.kill();
        }
    }

    /// Waits until ssh exits, and kills it after [`EXIT_WAIT`].
    fn wait(&self) -> Option<ExitStatus> {
        let mut ssh = self.0.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        ssh.wait(EXIT_WAIT).ok()?
    }
}

pub struct Remote {
    host: RemoteHost,
    /// The ssh command, as typed in a shell.
    command: Arc<str>,
    output: Option<ChildStdout>,
    /// `None` until the first bytes have arrived.
    reader: Option<RecordingReader>,
    hangup: Hangup,
    errors: Arc<Mutex<Vec<u8>>>,
    /// The thread that reads standard error. It may never end, because a shared connection can keep standard error
    /// open.
    error_reader: Option<Task<()>>,
}

impl Remote {
    /// Connects to a host. `hangup` can close the connection from another thread. Returns an error if ssh cannot be
    /// started. If the host does not answer, [`Remote::next`] returns the error.
    pub fn connect(
        host: &RemoteHost,
        request: RemoteRequest,
        hangup: &Hangup,
    ) -> Result<Self, RemoteError> {
        let no_ssh = |cause| RemoteError::NoSsh { cause };
        let mut command = ssh();
        command.args(BATCH_OPTIONS.iter().flat_map(|option| ["-o", option]));
        command.args(["--", &*host.name]);
        let words: Vec<_> = command.get_args().map(OsStr::to_string_lossy).collect();
        let remote_command = request.command(host);
        let typed = format!("ssh {} {}", words.join(" "), single_quoted(&remote_command));
        command.arg(remote_command);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut ssh = Subprocess::start(&mut command).map_err(no_ssh)?;
        let (output, errors) = (ssh.child.stdout.take(), ssh.child.stderr.take());
        *hangup.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(ssh);
        let kept = Arc::new(Mutex::new(Vec::new()));
        let mut remote = Self {
            host: host.clone(),
            command: typed.into(),
            output,
            reader: None,
            hangup: hangup.clone(),
            errors: Arc::clone(&kept),
            error_reader: None,
        };
        let listen = move || keep_last(errors, &kept);
        remote.error_reader = Some(Task::start("ssh-errors", listen).map_err(no_ssh)?);
        Ok(remote)
    }

    /// Waits for the next snapshot. Returns `None` when the host has sent all requested data, and an error if the
    /// connection ended before that.
    pub fn next(&mut self) -> Result<Option<Snapshot>, RemoteError> {
        if let Some(output) = self.output.take() {
            // Blocks until the first bytes arrive.
            let reader = RecordingReader::from_read(output, &*self.host.name);
            self.reader = Some(reader.map_err(|cause| self.unreadable(cause))?);
        }
        let Some(reader) = &mut self.reader else { return Ok(None) };
        match reader.next() {
            Some(Ok(snapshot)) => Ok(Some(snapshot)),
            Some(Err(RecordingError::Empty { .. })) | None => self.end(),
            Some(Err(cause)) => Err(self.unreadable(cause)),
        }
    }

    pub fn damage_count(&self) -> u64 {
        self.reader.as_ref().map_or(0, RecordingReader::damage_count)
    }

    /// Returns `None` if the host has sent all data, otherwise an error that explains why data is missing.
    fn end(&mut self) -> Result<Option<Snapshot>, RemoteError> {
        self.reader = None;
        let status = self.hangup.wait();
        self.error_reader.take().and_then(|reader| reader.wait(EXIT_WAIT).ok());
        let output = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        let output = String::from_utf8_lossy(&output);
        let is_unknown_argument = output.contains("unexpected argument");
        let is_refused = output.contains("exchange_identification");
        let line = output.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or_default();
        let message = line.trim_start_matches("gpumem: ").to_owned();
        Err(match status.and_then(|status| status.code()) {
            Some(0) => return Ok(None),
            Some(SSH_FAILED) if is_refused => RemoteError::Refused { message },
            Some(SSH_FAILED) => {
                let message =
                    if message.is_empty() { "the connection was lost".to_owned() } else { message };
                RemoteError::Ssh { message, command: Arc::clone(&self.command) }
            }
            Some(NO_PROGRAM) => RemoteError::NoGpumem { message },
            Some(USAGE) if is_unknown_argument => RemoteError::OlderProgram,
            Some(code) if message.is_empty() => {
                let message = format!("`{}` ended there with exit code {code}", self.host.command);
                RemoteError::Failed { message }
            }
            _ if message.is_empty() => {
                RemoteError::Failed { message: "the connection ended".to_owned() }
            }
            _ => RemoteError::Failed { message },
        })
    }

    fn unreadable(&self, cause: RecordingError) -> RemoteError {
        self.hangup.hang_up();
        self.hangup.wait();
        match cause {
            RecordingError::Schema { found, .. } => {
                let side = if is_newer(&found) { "here" } else { "there" };
                RemoteError::Schema { found, side }
            }
            cause => RemoteError::Unreadable { cause },
        }
    }
}

/// A source of snapshots from another machine. Connects again if the connection is lost.
pub struct RemoteSource {
    host: RemoteHost,
    request: RemoteRequest,
    hangup: Hangup,
    remote: Option<Remote>,
    read: Option<Snapshot>,
    /// Time of the last snapshot on the host's clock, and when it arrived.
    last: Option<(Time, Instant)>,
    trouble: Option<String>,
    /// When to connect again. If that fails, the next attempt is `pause` later.
    retry_at: Option<Instant>,
    pause: Duration,
}

impl RemoteSource {
    pub fn new(host: RemoteHost, request: RemoteRequest, hangup: Hangup) -> Self {
        Self {
            host,
            request,
            hangup,
            remote: None,
            read: None,
            last: None,
            trouble: None,
            retry_at: None,
            pause: LEAST_PAUSE,
        }
    }

    fn read(&mut self) -> Result<(), RemoteError> {
        let remote = match &mut self.remote {
            Some(remote) => remote,
            None => {
                let mut request = self.request;
                if let Some((_, at)) = self.last {
                    // The host's store may contain the snapshots that were missed.
                    request.history = request.history.min(at.elapsed());
                }
                self.remote.insert(Remote::connect(&self.host, request, &self.hangup)?)
            }
        };
        while let Some(snapshot) = remote.next()? {
            let is_known = |(last, _): (Time, Instant)| {
                (0.0..KNOWN_SECONDS).contains(&last.seconds_since(snapshot.time))
            };
            if self.last.is_some_and(is_known) {
                continue;
            }
            self.last = Some((snapshot.time, Instant::now()));
            self.read = Some(snapshot);
            return Ok(());
        }
        Err(RemoteError::Failed { message: "the connection ended".to_owned() })
    }
}

impl Source for RemoteSource {
    fn due(&mut self, now: Instant) -> Result<NextSnapshot, SourceError> {
        if let Some(retry_at) = self.retry_at.filter(|retry_at| *retry_at > now) {
            return Ok(NextSnapshot::In(retry_at - now));
        }
        if self.read.is_none() {
            match self.read() {
                Ok(()) => (self.trouble, self.retry_at, self.pause) = (None, None, LEAST_PAUSE),
                Err(error) => {
                    self.remote = None;
                    self.trouble = Some(error.to_string());
                    self.retry_at = Some(Instant::now() + self.pause);
                    self.pause = (self.pause * 2).min(LONGEST_PAUSE);
                }
            }
        }
        Ok(NextSnapshot::In(Duration::ZERO))
    }

    fn take(&mut self, _: Instant) -> Result<Option<Snapshot>, SourceError> {
        Ok(self.read.take())
    }

    fn steer(&mut self, _: Control, _: Instant) -> Result<(), SourceError> {
        Ok(())
    }

    fn origin(&self) -> Origin {
        Origin::Live
    }

    fn trouble(&self) -> Option<String> {
        self.trouble.clone()
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        self.hangup.hang_up();
        self.hangup.wait();
    }
}

impl RemoteRequest {
    fn command(self, host: &RemoteHost) -> String {
        let mut command =
            format!("{} record --interval {}ms", host.command, self.interval.as_millis());
        if let Some(duration) = self.duration {
            command.push_str(&format!(" --duration {}ms", duration.as_millis()));
        }
        if !self.history.is_zero() {
            command.push_str(&format!(" --history {}ms", self.history.as_millis()));
        }
        command + " -"
    }
}

impl RemoteHost {
    /// Returns an ssh command for the current terminal, on which ssh can ask for a password.
    pub fn on_terminal(&self, command: &str) -> Command {
        let mut ssh = ssh();
        ssh.args(["-t", "--", &*self.name, &self.shell_command(command)]);
        ssh
    }

    /// Returns the command line with which a user runs `command` on the host.
    pub fn typed(&self, command: &str) -> String {
        format!("ssh -t {} {}", self.name, single_quoted(&self.shell_command(command)))
    }

    /// Replaces `gpumem` in a command with the host's command for gpumem.
    fn shell_command(&self, command: &str) -> String {
        match command.strip_prefix("gpumem ") {
            Some(words) => format!("{} {words}", self.command),
            None => command.to_owned(),
        }
    }
}

fn single_quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

fn ssh() -> Command {
    let mut ssh = Command::new("ssh");
    ssh.args(COMMON_OPTIONS.iter().flat_map(|option| ["-o", option]));
    ssh
}

fn is_newer(found: &str) -> bool {
    let version = |schema: &str| schema.rsplit('/').next()?.parse::<u32>().ok();
    version(found) > version(SCHEMA)
}

/// Reads standard error to its end, but keeps only the last bytes.
fn keep_last(errors: Option<ChildStderr>, kept: &Mutex<Vec<u8>>) {
    let Some(mut errors) = errors else { return };
    let mut part = [0; 1024];
    while let Ok(read @ 1..) = errors.read(&mut part) {
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.extend_from_slice(&part[..read]);
        let excess = kept.len().saturating_sub(STDERR_BYTES);
        kept.drain(..excess);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The command line passes through the local shell and through the host's shell.
    #[test]
    fn a_typed_command_survives_both_shells() {
        let host = RemoteHost { name: "me@gpu01".into(), command: "printf '<%s>' \"it's\"".into() };
        for word in ["a b", "it's", "$(id)`id`", "\\", "\"", "'; id; '", "!1 *~"] {
            let quoted = crate::advice::quote(word).unwrap();
            let typed = host.typed(&format!("gpumem {quoted}"));
            let ssh = r#"ssh() { [ "$*" = "-t me@gpu01 $3" ] && sh -c "$3"; }"#;
            let output = Command::new("sh").args(["-c", &format!("{ssh}; {typed}")]).output();
            let output = String::from_utf8(output.unwrap().stdout).unwrap();
            assert_eq!(output, format!("<it's><{word}>"), "{typed}");
        }
    }
}
