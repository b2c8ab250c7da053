//! Parses the names of remote hosts, and queries the hosts concurrently.

use std::fs;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::Context as _;
use serde_json::Value;

use super::args::{OtherHosts, Stored};
use super::exit::Exit;
use super::{UsageError, print, warn};
use crate::deadline::Task;
use crate::model::Snapshot;
use crate::model::json::document;
use crate::report::hosts::{HostAnswer, HostsReport};
use crate::report::style::Style;
use crate::source::remote::{Hangup, Remote, RemoteError, RemoteHost, RemoteRequest};

/// Time limit for connecting to a host and receiving its stored history, in addition to the sampling time.
const ANSWER: Duration = Duration::from_secs(20);
pub(super) const INTERVAL: Duration = Duration::from_secs(1);
/// Pauses before retries, in seconds, if a host or jump host refuses a connection.
const PAUSES: [u64; 4] = [1, 2, 3, 4];
/// Additional history to request, because the recorder can delete the oldest snapshots before they are read.
const MARGIN: Duration = Duration::from_secs(600);
/// Maximum number of hosts. A longer list is probably the wrong file.
const MOST_HOSTS: usize = 256;
const LONGEST_NAME: usize = 255;

/// Returns the named hosts without duplicates, or an empty list if none are named.
pub(super) fn named(args: &OtherHosts) -> anyhow::Result<Vec<RemoteHost>> {
    let mut names: Vec<&str> = args.host.iter().map(|name| name.trim()).collect();
    let text;
    if let Some(file) = &args.hosts {
        text = fs::read_to_string(file).map_err(|error| {
            UsageError(format!("cannot read --hosts {}: {error}", file.display()))
        })?;
        let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
        names.extend(lines.filter(|line| !line.is_empty()));
        if names.is_empty() {
            let name = file.display();
            return Err(
                UsageError(format!("--hosts {name} lists no host; write one per line")).into()
            );
        }
    }
    let mut hosts: Vec<RemoteHost> = Vec::new();
    for name in names {
        check_name(name)?;
        if hosts.iter().all(|host| *host.name != *name) {
            hosts
                .push(RemoteHost { name: name.into(), command: args.host_command.as_str().into() });
        }
    }
    if hosts.len() > MOST_HOSTS {
        let why = format!("{} hosts are too many; the maximum is {MOST_HOSTS}", hosts.len());
        return Err(UsageError(why).into());
    }
    Ok(hosts)
}

/// Rejects names that ssh would treat as an option or a shell would split.
fn check_name(name: &str) -> Result<(), UsageError> {
    let is_plain = |c: char| c.is_alphanumeric() || "._-@:%".contains(c);
    if name.is_empty() || name.starts_with('-') || !name.chars().all(is_plain) {
        return Err(UsageError(format!("{name:?} is not a host name; write HOST or USER@HOST")));
    }
    if name.len() > LONGEST_NAME {
        return Err(UsageError("the name of a host is too long; write HOST or USER@HOST".into()));
    }
    Ok(())
}

/// Queries all hosts concurrently. `time` is the time limit for each host, to which [`ANSWER`] is added. The answers
/// are in the order of `hosts`, so earlier answers can be printed while a later host hangs.
pub(super) fn ask_all<T: Send + 'static>(
    hosts: Vec<RemoteHost>,
    time: Duration,
    ask: impl Fn(&RemoteHost, &Hangup) -> anyhow::Result<T> + Send + Sync + 'static,
) -> anyhow::Result<impl Iterator<Item = (RemoteHost, anyhow::Result<T>)>> {
    let ask = Arc::new(ask);
    let mut asked = Vec::new();
    for host in hosts {
        let hangup = HangupOnDrop(Hangup::default());
        let (ask, host_copy, to_end) = (Arc::clone(&ask), host.clone(), hangup.0.clone());
        let task = Task::start("host", move || ask(&host_copy, &to_end))
            .context("cannot start a thread")?;
        asked.push((host, hangup, task));
    }
    Ok(asked.into_iter().map(move |(host, _hangup, task)| {
        let limit = time + ANSWER;
        let answer = task.within(limit).unwrap_or_else(|_| {
            let (seconds, more) = (limit.as_secs(), host.typed("gpumem doctor"));
            Err(anyhow::anyhow!("no answer within {seconds} s; run `{more}`"))
        });
        (host, answer)
    }))
}

/// Closes the connection to a host when its answer is no longer needed, for example after a timeout.
struct HangupOnDrop(Hangup);

impl Drop for HangupOnDrop {
    fn drop(&mut self) {
        self.0.hang_up();
    }
}

/// Returns a request to sample a host for `duration` and to send the history that the rules need.
pub(super) fn request(
    interval: Duration,
    duration: Option<Duration>,
    stored: Stored,
    needed: Duration,
) -> RemoteRequest {
    let history = if stored.no_store { Duration::ZERO } else { needed + MARGIN };
    RemoteRequest { interval, duration, history }
}

pub(super) enum HostOutput {
    Text(String),
    Document(Value),
    Nothing,
}

/// Prints text under the name of each host, or combines JSON into one document. Returns the worst exit code.
pub(super) fn print_answers(
    answers: impl Iterator<Item = (RemoteHost, anyhow::Result<(HostOutput, Exit)>)>,
    is_json: bool,
    quiet: bool,
    style: Style,
) -> anyhow::Result<Exit> {
    let mut exit = Exit::Clean;
    let mut documents = Vec::new();
    for (host, answer) in answers {
        let (output, host_exit, error) = match answer {
            Ok((output, exit)) => (output, exit, None),
            Err(error) => {
                if !quiet {
                    warn(&format!("{}: {error:#}", host.name));
                }
                (HostOutput::Nothing, Exit::of(&error), Some(format!("{error:#}")))
            }
        };
        exit = exit.or_worse(host_exit);
        let document = match output {
            HostOutput::Text(text) => {
                print(&format!("{}\n{text}\n", style.heading(&host.name)))?;
                None
            }
            HostOutput::Document(document) => Some(document),
            HostOutput::Nothing => None,
        };
        documents.push(HostAnswer { host: host.name, error, document });
    }
    if is_json {
        print(&document(&HostsReport::new(documents))?)?;
    }
    Ok(exit)
}

/// Calls `handle` with each snapshot from a host, and returns the last snapshot.
pub(super) fn sample_host(
    host: &RemoteHost,
    request: RemoteRequest,
    hangup: &Hangup,
    mut handle: impl FnMut(&Snapshot) -> anyhow::Result<()>,
) -> anyhow::Result<Snapshot> {
    let mut remote = Remote::connect(host, request, hangup)?;
    let mut last = None;
    let mut pauses = PAUSES.iter();
    loop {
        match remote.next() {
            Ok(Some(snapshot)) => {
                handle(&snapshot)?;
                last = Some(snapshot);
            }
            Ok(None) => break,
            Err(error @ RemoteError::Refused { .. }) => {
                let seconds = *pauses.next().ok_or(error)?;
                // Drop the old connection first, because dropping it later would close the new connection.
                drop(remote);
                thread::sleep(Duration::from_secs(seconds));
                remote = Remote::connect(host, request, hangup)?;
            }
            Err(error) => return Err(error.into()),
        }
    }
    if remote.damage_count() > 0 {
        warn(&format!("{}: {} lines are not snapshots", host.name, remote.damage_count()));
    }
    last.with_context(|| format!("received no snapshot; run `{}`", host.typed("gpumem doctor")))
}
