//! Checks whether the Jupyter servers on this machine report the activity of their kernels.
//!
//! The check covers the caller's servers, or all servers for root. The output never contains a token.

use std::thread;
use std::time::Duration;

use crate::host::Roots;
use crate::host::jupyter::{Client, FoundServer, Server, ServerError, find_runtime_folders};
use crate::report::doctor::{CheckStatus, DoctorCheck, Topic};
use crate::units::Span;

const SERVER_TIME: Duration = Duration::from_secs(3);
/// Timeout for finding and querying all servers.
pub(super) const TIMEOUT: Duration = Duration::from_secs(7);
/// Maximum number of servers or stale files named in one line.
const NAMED: usize = 16;
/// Maximum number of failed servers that are described. Further failures are only counted.
const FAILED: usize = 16;

#[derive(Debug, Default)]
pub(super) struct Servers {
    asked: Vec<ProbedServer>,
    stale: Vec<String>,
    unread: Vec<String>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct ProbedServer {
    pid: u32,
    url: Option<String>,
    result: Result<(), ServerError>,
}

/// Finds the Jupyter servers and queries them concurrently.
pub(super) fn read(roots: &Roots) -> Servers {
    let mut servers = Servers::default();
    let mut running: Vec<FoundServer> = Vec::new();
    for folder in find_runtime_folders(roots) {
        match folder.read(roots) {
            Ok(files) => {
                running.extend(files.running);
                servers.stale.extend(files.stale);
            }
            Err(error) => servers.unread.push(error.to_string()),
        }
    }
    // A server's file can be in two folders.
    running.sort_by_key(|found| found.pid);
    running.dedup_by_key(|found| found.pid);
    servers.stale.sort();
    servers.stale.dedup();
    servers.asked = thread::scope(|scope| {
        let ask = |found| {
            let thread = thread::Builder::new().name("notebook-server".to_owned());
            thread.spawn_scoped(scope, || probe(roots, found)).ok()
        };
        let asking: Vec<_> = running.into_iter().filter_map(ask).collect();
        asking.into_iter().filter_map(|asking| asking.join().ok()).collect()
    });
    servers
}

fn probe(roots: &Roots, found: FoundServer) -> ProbedServer {
    let ask = |server: &Server| {
        let client = Client::new(roots, server)?;
        client.sessions(SERVER_TIME).map(drop)
    };
    ProbedServer {
        pid: found.pid,
        url: found.url,
        result: found.server.as_ref().map_err(Clone::clone).and_then(ask),
    }
}

impl ProbedServer {
    fn name(&self) -> String {
        match &self.url {
            Some(url) => format!("{url} (process {})", self.pid),
            None => format!("process {}", self.pid),
        }
    }

    fn why(&self) -> Option<String> {
        Some(match self.result.as_ref().err()? {
            ServerError::Timeout { .. } => {
                format!("no answer for {}; check whether it hangs", Span(SERVER_TIME))
            }
            error => error.to_string(),
        })
    }
}

pub(super) fn checks(servers: Option<Servers>) -> Vec<DoctorCheck> {
    let topic = Topic::NOTEBOOKS;
    let Some(servers) = servers else {
        return vec![super::too_long(topic)];
    };
    let answering = servers.asked.iter().filter(|server| server.result.is_ok());
    let answering: Vec<String> = answering.map(ProbedServer::name).collect();
    let (verdict, mut observation) = match answering.len() {
        0 => (CheckStatus::NotApplicable, "none answers".to_owned()),
        1 => (CheckStatus::Ok, format!("1 answers: {}", answering[0])),
        count => (CheckStatus::Ok, format!("{count} answer: {}", some_of(&answering))),
    };
    if servers.asked.is_empty() && servers.unread.is_empty() {
        observation = "no running server found".to_owned();
    }
    if !servers.stale.is_empty() {
        observation.push_str("; left behind by ones that ended: ");
        observation.push_str(&some_of(&servers.stale));
    }
    let limited = |text: &str| {
        // The error messages end with advice after the last semicolon.
        let (observation, next) = text.rsplit_once("; ").unwrap_or((text, ""));
        let check = topic.limited(observation).advise("servers-not-asked");
        if next.is_empty() { check } else { check.next(next) }
    };
    let failed = servers.asked.iter();
    let failed = failed.filter_map(|asked| Some(format!("{}: {}", asked.name(), asked.why()?)));
    let failed: Vec<String> = failed.chain(servers.unread).collect();
    let mut checks = Vec::new();
    if failed.is_empty() || verdict == CheckStatus::Ok || !servers.stale.is_empty() {
        checks.push(topic.check(verdict, observation));
    }
    checks.extend(failed.iter().take(FAILED).map(|text| limited(text)));
    let more = failed.len().saturating_sub(FAILED);
    if more > 0 {
        checks.push(limited(&format!("{more} more could not be asked")));
    }
    checks
}

/// Lists the first `NAMED` names, and counts the others.
fn some_of(names: &[String]) -> String {
    let mut text = names[..names.len().min(NAMED)].join(", ");
    let more = names.len().saturating_sub(NAMED);
    if more > 0 {
        text.push_str(&format!(" and {more} more"));
    }
    text
}
