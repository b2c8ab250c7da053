//! Parses the names of remote hosts, and queries the hosts concurrently.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use std::{fs, iter, thread};

use anyhow::Context as _;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use super::args::{OtherHosts, Stored};
use super::exit::Exit;
use super::{UsageError, print, warn};
use crate::deadline::Task;
use crate::model::Snapshot;
use crate::model::json::document;
use crate::report::style::Style;
use crate::source::remote::{Hangup, Remote, RemoteError, RemoteHost, RemoteRequest};

/// Time limit for connecting to a host and receiving its stored history. It is added to the sampling time.
const ANSWER: Duration = Duration::from_secs(20);
pub(super) const INTERVAL: Duration = Duration::from_secs(1);
/// Pauses before retries, in seconds, if a host or jump host refuses a connection.
const PAUSES: [u64; 4] = [1, 2, 3, 4];
/// Additional history to request, because the recorder may delete the oldest snapshots before they are read.
const MARGIN: Duration = Duration::from_secs(600);
/// Maximum number of hosts. A longer list is probably the wrong file.
const MOST_HOSTS: usize = 1024;
/// Maximum number of concurrent queries. Each query runs ssh on this machine.
const MOST_QUERIES: usize = 256;
const LONGEST_NAME: usize = 255;

/// Returns the hosts on the command line, without duplicates.
pub(super) fn named(args: &OtherHosts) -> anyhow::Result<Vec<RemoteHost>> {
    let mut lists = args.host.clone();
    if let Some(file) = &args.hosts {
        let text = fs::read_to_string(file).map_err(|error| {
            UsageError(format!("cannot read --hosts {}: {error}", file.display()))
        })?;
        let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
        lists.extend(lines.filter(|line| !line.is_empty()).map(str::to_owned));
        if lists.is_empty() {
            let name = file.display();
            return Err(
                UsageError(format!("--hosts {name} lists no host; write one per line")).into()
            );
        }
    }
    let mut names = Vec::new();
    lists.iter().try_for_each(|list| expand(list, &mut names))?;
    // Each connection needs several file descriptors. The usual soft limit is 1024.
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    let host = |name| RemoteHost { name, command: args.host_command.as_str().into() };
    Ok(names.into_iter().map(host).collect())
}

/// Adds the hosts in a list to `names`. The hosts are separated by commas and can contain ranges as in Slurm:
/// `n[01-03,7]` means n01, n02, n03 and n7.
fn expand(list: &str, names: &mut Vec<Arc<str>>) -> Result<(), UsageError> {
    let mut is_in_range = false;
    let is_end = |c| {
        is_in_range = c == '[' || (is_in_range && c != ']');
        c == ',' && !is_in_range
    };
    for name in list.split(is_end).map(str::trim) {
        if let Some(address) = name.strip_prefix('[').filter(|rest| rest.contains(':')) {
            let address = address.split(']').next().unwrap_or_default();
            return Err(UsageError(format!(
                "{name:?}: write an IPv6 address without brackets and port: {address}"
            )));
        }
        let Some((start, rest)) = name.split_once('[') else {
            check_name(name)?;
            if !names.iter().any(|known| **known == *name) {
                names.push(name.into());
            }
            if names.len() > MOST_HOSTS {
                return Err(UsageError(format!("too many hosts; the maximum is {MOST_HOSTS}")));
            }
            continue;
        };
        let wrong = || UsageError(format!("{name:?} is not a range; write n[01-64] or n[1,3-5]"));
        let (ranges, end) = rest.split_once(']').ok_or_else(wrong)?;
        for range in ranges.split(',') {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let numbers = first.parse::<u32>().ok().zip(last.parse::<u32>().ok());
            let is_short = range.len() < 20 && !range.contains('+');
            let (from, to) =
                numbers.filter(|(from, to)| is_short && from <= to).ok_or_else(wrong)?;
            for number in from..=to {
                expand(&format!("{start}{number:0width$}{end}", width = first.len()), names)?;
            }
        }
    }
    Ok(())
}

/// Rejects a name that ssh would treat as an option or a shell would split.
fn check_name(name: &str) -> Result<(), UsageError> {
    if let Some((host, port)) = name.split_once(':').filter(|(_, port)| !port.contains(':')) {
        return Err(UsageError(format!(
            "{name:?} contains a port; write {host}, and set \"Port {port}\" for it in ~/.ssh/config"
        )));
    }
    let is_plain = |c: char| c.is_alphanumeric() || "._-@:%".contains(c);
    let has_length = (1..=LONGEST_NAME).contains(&name.len());
    if !has_length || name.starts_with('-') || !name.chars().all(is_plain) {
        return Err(UsageError(format!("{name:?} is not a host name; write HOST or USER@HOST")));
    }
    Ok(())
}

/// Queries up to [`MOST_QUERIES`] hosts concurrently. Each host has a time limit of `time` plus [`ANSWER`]. The answers
/// are in the order of `hosts`, so the caller can print them while a later host hangs.
pub(super) fn ask_all<T: Send + 'static>(
    hosts: Vec<RemoteHost>,
    time: Duration,
    ask: impl Fn(&RemoteHost, &Hangup) -> anyhow::Result<T> + Send + Sync + 'static,
) -> impl Iterator<Item = (RemoteHost, anyhow::Result<T>)> {
    /// Closes the connection when dropped, even if the caller stops before it has all answers.
    struct HangsUp(Hangup);
    impl Drop for HangsUp {
        fn drop(&mut self) {
            self.0.hang_up();
        }
    }
    let ask = Arc::new(ask);
    let start = move |host: RemoteHost| {
        let connection = HangsUp(Hangup::default());
        let (ask, host_copy, hangup) = (Arc::clone(&ask), host.clone(), connection.0.clone());
        let task = Task::start("host", move || ask(&host_copy, &hangup));
        (host, connection, task)
    };
    let mut waiting = hosts.into_iter();
    let mut asked: VecDeque<_> = waiting.by_ref().take(MOST_QUERIES).map(&start).collect();
    iter::from_fn(move || {
        let (host, connection, task) = asked.pop_front()?;
        let limit = time + ANSWER;
        let answer = task.context("cannot start a thread").and_then(|task| {
            task.within(limit).unwrap_or_else(|_| {
                let (seconds, more) = (limit.as_secs(), host.typed("gpumem doctor"));
                Err(anyhow::anyhow!("no answer within {seconds} s; run `{more}`"))
            })
        });
        drop(connection);
        asked.extend(waiting.next().map(&start));
        Some((host, answer))
    })
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

const SCHEMA: &str = "gpumem.hosts/1";

/// The output of `ps --json` and `check --json` for other machines: one answer per machine, in the order of the
/// command line. Readers must ignore unknown fields.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize)]
pub struct HostsReport {
    /// Format and major version.
    #[schemars(extend("const" = SCHEMA))]
    pub schema: &'static str,
    /// The answers, one per machine.
    pub hosts: Vec<HostAnswer>,
}

/// Answer of one machine.
#[derive(Clone, PartialEq, Debug, JsonSchema, Serialize)]
pub struct HostAnswer {
    /// Name of the machine, as given on the command line.
    pub host: Arc<str>,
    /// Why the answer is missing or incomplete; `null` if it is complete.
    pub error: Option<String>,
    /// The document that the command printed on the machine, in the format given by the document's `schema`; `null`
    /// if none arrived.
    pub document: Option<Value>,
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
                (HostOutput::Nothing, Exit::from_error(&error), Some(format!("{error:#}")))
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
        print(&document(&HostsReport { schema: SCHEMA, hosts: documents })?)?;
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
