//! Another machine as a source: the output of `gpumem record -` there, over the user's own ssh.
//!
//! Nothing asks for a password: ssh runs in batch mode, with the keys, agents and jump hosts of the user's
//! configuration. A host's output is read like any recording: lines are bounded and damage is skipped.

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

/// Options for every ssh: whatever the user's configuration adds to sessions of a person, nothing is forwarded, the
/// agent least of all, and gpumem is the command.
const COMMON_OPTIONS: [&str; 4] =
    ["ClearAllForwardings=yes", "ForwardAgent=no", "ForwardX11=no", "RemoteCommand=none"];
/// Options for ssh without a terminal: never ask, give up on a host that does not answer, compress. It may use a
/// connection shared by others, but never opens one that others would share and then lose.
const BATCH_OPTIONS: [&str; 7] = [
    "BatchMode=yes",
    "ConnectTimeout=10",
    "ServerAliveInterval=5",
    "ServerAliveCountMax=3",
    "Compression=yes",
    "ControlMaster=no",
    "RequestTTY=no",
];
/// How much of the end of standard error is kept.
const STDERR_BYTES: usize = 4096;
/// How long ssh may take to exit after its output has ended.
const EXIT_WAIT: Duration = Duration::from_secs(1);
/// How long after a failure to connect again: at first, and at most.
const LEAST_PAUSE: Duration = Duration::from_secs(2);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// A snapshot at most this much older than the last one was already seen; an older one means that the clock was set
/// back.
const KNOWN_SECONDS: f64 = 60.0;
/// ssh's exit code if it could not connect or lost the connection.
const SSH_FAILED: i32 = 255;
/// A shell's exit code if there is no such program.
const NO_PROGRAM: i32 = 127;
/// gpumem's exit code for unknown arguments.
const USAGE: i32 = 2;

/// A machine that ssh can reach, and how to run gpumem there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RemoteHost {
    /// The name for ssh.
    pub name: Arc<str>,
    /// The command that runs gpumem there, for that machine's shell.
    pub command: Arc<str>,
}

/// What to request from a host.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct RemoteRequest {
    pub interval: Duration,
    /// For how long; `None` means until it is dropped.
    pub duration: Option<Duration>,
    /// How much stored history to send first.
    pub history: Duration,
}

/// Why a host sends nothing more.
#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    #[error("ssh cannot be started: {cause}; install an OpenSSH client")]
    NoSsh { cause: io::Error },
    #[error("ssh failed: {said}; `ssh {host} true` has to work without asking anything")]
    Ssh { host: Arc<str>, said: String },
    #[error(
        "ssh failed: {said}; with ten that have not logged in yet, an sshd begins to refuse others: name fewer hosts, \
         or raise MaxStartups there or on the jump host"
    )]
    Refused { said: String },
    #[error("there is no gpumem: {said}; install it there, or say where it is with --host-command")]
    NoGpumem { said: String },
    #[error("the gpumem there is older and cannot do what it is asked; upgrade gpumem there")]
    OlderProgram,
    #[error("its gpumem writes {found:?}, and this one reads {SCHEMA:?}; upgrade gpumem {}", .side)]
    Schema {
        found: String,
        /// Where to upgrade: `here` or `there`.
        side: &'static str,
    },
    #[error("{said}")]
    Failed { said: String },
    #[error("{cause}")]
    Unreadable { cause: RecordingError },
}

/// Ends a connection from another thread, if it has not ended.
#[derive(Clone, Debug, Default)]
pub struct Hangup(Arc<Mutex<Option<Subprocess>>>);

impl Hangup {
    pub fn hang_up(&self) {
        if let Some(ssh) = self.0.lock().unwrap_or_else(PoisonError::into_inner).as_ref() {
            ssh.kill();
        }
    }

    /// Waits for ssh to exit; kills it if it still runs a moment after its output has ended.
    fn wait(&self) -> Option<ExitStatus> {
        let mut ssh = self.0.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        ssh.wait(EXIT_WAIT).ok()?
    }
}

pub struct Remote {
    host: RemoteHost,
    output: Option<ChildStdout>,
    /// `None` until the host has answered.
    reader: Option<RecordingReader>,
    hangup: Hangup,
    said: Arc<Mutex<Vec<u8>>>,
    /// Reads standard error. A shared connection keeps that open, so this may not end.
    listening: Option<Task<()>>,
}

impl Remote {
    /// Connects; `hangup` ends the connection from elsewhere.
    ///
    /// # Errors
    ///
    /// If ssh cannot be started. [`Remote::next`] reports a host that does not answer.
    pub fn connect(
        host: &RemoteHost,
        request: RemoteRequest,
        hangup: &Hangup,
    ) -> Result<Self, RemoteError> {
        let no_ssh = |cause| RemoteError::NoSsh { cause };
        let mut command = ssh();
        command.args(BATCH_OPTIONS.iter().flat_map(|option| ["-o", option]));
        command.args(["--", &*host.name, &request.command(host)]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut ssh = Subprocess::start(&mut command).map_err(no_ssh)?;
        let (output, errors) = (ssh.child.stdout.take(), ssh.child.stderr.take());
        *hangup.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(ssh);
        let said = Arc::new(Mutex::new(Vec::new()));
        let mut remote = Self {
            host: host.clone(),
            output,
            reader: None,
            hangup: hangup.clone(),
            said: Arc::clone(&said),
            listening: None,
        };
        let listen = move || keep_last(errors, &said);
        remote.listening = Some(Task::start("ssh-errors", listen).map_err(no_ssh)?);
        Ok(remote)
    }

    /// Waits for the next snapshot; `None` once the host has sent everything requested.
    ///
    /// # Errors
    ///
    /// If the connection ended before that, with the reason.
    pub fn next(&mut self) -> Result<Option<Snapshot>, RemoteError> {
        if let Some(output) = self.output.take() {
            // This waits for the first bytes.
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

    /// How many lines were no snapshots.
    pub fn damage_count(&self) -> u64 {
        self.reader.as_ref().map_or(0, RecordingReader::damage_count)
    }

    /// Whether everything was sent; otherwise the reason.
    fn end(&mut self) -> Result<Option<Snapshot>, RemoteError> {
        self.reader = None;
        let status = self.hangup.wait();
        self.listening.take().and_then(|listening| listening.wait(EXIT_WAIT).ok());
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        let said = String::from_utf8_lossy(&said);
        let is_unknown_argument = said.contains("unexpected argument");
        let is_refused = said.contains("exchange_identification");
        let line = said.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or_default();
        let (host, said) = (Arc::clone(&self.host.name), line.trim_start_matches("gpumem: "));
        let said = said.to_owned();
        Err(match status.and_then(|status| status.code()) {
            Some(0) => return Ok(None),
            Some(SSH_FAILED) if is_refused => RemoteError::Refused { said },
            Some(SSH_FAILED) => {
                let said =
                    if said.is_empty() { "the connection was lost".to_owned() } else { said };
                RemoteError::Ssh { host, said }
            }
            Some(NO_PROGRAM) => RemoteError::NoGpumem { said },
            Some(USAGE) if is_unknown_argument => RemoteError::OlderProgram,
            Some(code) if said.is_empty() => {
                let said = format!("`{}` ended there with exit code {code}", self.host.command);
                RemoteError::Failed { said }
            }
            _ if said.is_empty() => RemoteError::Failed { said: "the connection ended".to_owned() },
            _ => RemoteError::Failed { said },
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

/// Another machine, sampled until the source is dropped; reconnects if the connection ends.
pub struct RemoteSource {
    host: RemoteHost,
    request: RemoteRequest,
    hangup: Hangup,
    remote: Option<Remote>,
    /// Read, but not taken yet.
    read: Option<Snapshot>,
    /// The time of the last snapshot, by its clock, and when it arrived here.
    last: Option<(Time, Instant)>,
    trouble: Option<String>,
    /// When to connect again, and the pause after the next failure.
    again: Option<Instant>,
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
            again: None,
            pause: LEAST_PAUSE,
        }
    }

    /// Waits for a snapshot that is newer than the last.
    fn read(&mut self) -> Result<(), RemoteError> {
        let remote = match &mut self.remote {
            Some(remote) => remote,
            None => {
                let mut request = self.request;
                if let Some((_, at)) = self.last {
                    // What was missed meanwhile may be in the store there.
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
        Err(RemoteError::Failed { said: "the connection ended".to_owned() })
    }
}

impl Source for RemoteSource {
    fn due(&mut self, now: Instant) -> Result<NextSnapshot, SourceError> {
        if let Some(again) = self.again.filter(|again| *again > now) {
            return Ok(NextSnapshot::In(again - now));
        }
        if self.read.is_none() {
            match self.read() {
                Ok(()) => (self.trouble, self.again, self.pause) = (None, None, LEAST_PAUSE),
                Err(error) => {
                    self.remote = None;
                    self.trouble = Some(error.to_string());
                    self.again = Some(Instant::now() + self.pause);
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
    /// The command for that machine's shell.
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
    /// A command there, on this terminal, where ssh may ask.
    pub fn on_terminal(&self, command: &str) -> Command {
        let mut ssh = ssh();
        ssh.args(["-t", "--", &*self.name, &self.there(command)]);
        ssh
    }

    /// What a person types here to run a command there, on a terminal.
    pub fn typed(&self, command: &str) -> String {
        let there = self.there(command).replace('\'', r"'\''");
        format!("ssh -t {} '{there}'", self.name)
    }

    /// A command, quoted for that machine's shell.
    fn there(&self, command: &str) -> String {
        match command.strip_prefix("gpumem ") {
            Some(words) => format!("{} {words}", self.command),
            None => command.to_owned(),
        }
    }
}

fn ssh() -> Command {
    let mut ssh = Command::new("ssh");
    ssh.args(COMMON_OPTIONS.iter().flat_map(|option| ["-o", option]));
    ssh
}

/// Whether a schema is of a later major version than ours.
fn is_newer(found: &str) -> bool {
    let version = |schema: &str| schema.rsplit('/').next()?.parse::<u32>().ok();
    version(found) > version(SCHEMA)
}

/// Reads to the end and keeps the last part.
fn keep_last(errors: Option<ChildStderr>, said: &Mutex<Vec<u8>>) {
    let Some(mut errors) = errors else { return };
    let mut part = [0; 1024];
    while let Ok(read @ 1..) = errors.read(&mut part) {
        let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
        said.extend_from_slice(&part[..read]);
        let excess = said.len().saturating_sub(STDERR_BYTES);
        said.drain(..excess);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In the shells here and there.
    #[test]
    fn a_typed_command_survives_both_shells() {
        let host = RemoteHost { name: "me@gpu01".into(), command: "printf '<%s>' \"it's\"".into() };
        for word in ["a b", "it's", "$(id)`id`", "\\", "\"", "'; id; '", "!1 *~"] {
            let quoted = crate::advice::quote(word).unwrap();
            let typed = host.typed(&format!("gpumem {quoted}"));
            let ssh = r#"ssh() { [ "$*" = "-t me@gpu01 $3" ] && sh -c "$3"; }"#;
            let output = Command::new("sh").args(["-c", &format!("{ssh}; {typed}")]).output();
            let said = String::from_utf8(output.unwrap().stdout).unwrap();
            assert_eq!(said, format!("<it's><{word}>"), "{typed}");
        }
    }
}
