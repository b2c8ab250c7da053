//! Checks whether the Jupyter servers on this machine report the activity of their kernels.
//!
//! The check covers the caller's servers, or all servers for root. The output never contains a token.

use std::thread;
use std::time::Duration;

use crate::host::Roots;
use crate::host::jupyter::{Client, FoundServer, ServerError, find_runtime_folders};
use crate::report::doctor::{CheckStatus, DoctorCheck, Topic};
use crate::units::{Span, some_of};

const SERVER_TIME: Duration = Duration::from_secs(3);
/// Timeout for finding and querying all servers.
pub(super) const TIMEOUT: Duration = Duration::from_secs(7);
/// Maximum number of servers, stale files or failures in the report. The rest are only counted.
const NAMED: usize = 16;

pub(super) fn checks(roots: &Roots) -> Vec<DoctorCheck> {
    let topic = Topic::NOTEBOOKS;
    let mut running: Vec<FoundServer> = Vec::new();
    let (mut stale, mut failed) = (Vec::new(), Vec::new());
    for folder in find_runtime_folders(roots) {
        match folder.read(roots) {
            Ok(files) => {
                running.extend(files.running);
                stale.extend(files.stale);
            }
            Err(error) => failed.push(error.to_string()),
        }
    }
    // The file of a server may be in two folders.
    running.sort_by_key(|found| found.pid);
    running.dedup_by_key(|found| found.pid);
    stale.sort();
    stale.dedup();
    let is_none = running.is_empty() && failed.is_empty();
    let mut answering = Vec::new();
    for (found, result) in probe_all(roots, &running) {
        let name = match &found.url {
            Some(url) => format!("{url} (process {})", found.pid),
            None => format!("process {}", found.pid),
        };
        match result {
            Ok(()) => answering.push(name),
            Err(ServerError::Timeout { .. }) => {
                let limit = Span(SERVER_TIME);
                failed.push(format!("{name}: no answer for {limit}; check whether it hangs"));
            }
            Err(error) => failed.push(format!("{name}: {error}")),
        }
    }
    let (verdict, mut observation) = match answering.len() {
        0 if is_none => (CheckStatus::NotApplicable, "no running server found".to_owned()),
        0 => (CheckStatus::NotApplicable, "none answers".to_owned()),
        1 => (CheckStatus::Ok, format!("1 answers: {}", answering[0])),
        count => (CheckStatus::Ok, format!("{count} answer: {}", some_of(NAMED, ", ", &answering))),
    };
    if !stale.is_empty() {
        observation.push_str("; files left behind by exited servers: ");
        observation.push_str(&some_of(NAMED, ", ", &stale));
    }
    let mut checks = Vec::new();
    if failed.is_empty() || verdict == CheckStatus::Ok || !stale.is_empty() {
        checks.push(topic.check(verdict, observation));
    }
    if let more @ 1.. = failed.len().saturating_sub(NAMED) {
        failed.truncate(NAMED);
        failed.push(format!("{more} more servers could not be queried"));
    }
    checks.extend(failed.iter().map(|text| {
        // The error messages end with advice after the last semicolon.
        let (observation, next) = text.rsplit_once("; ").unwrap_or((text.as_str(), ""));
        let check = topic.limited(observation).advise("servers-not-asked");
        if next.is_empty() { check } else { check.next(next) }
    }));
    checks
}

type Probed<'f> = (&'f FoundServer, Result<(), ServerError>);

fn probe_all<'f>(roots: &Roots, running: &'f [FoundServer]) -> Vec<Probed<'f>> {
    let probe = |found: &FoundServer| {
        let server = found.server.as_ref().map_err(Clone::clone)?;
        Client::new(roots, server)?.sessions(SERVER_TIME).map(drop)
    };
    thread::scope(|scope| {
        let ask = |found: &'f FoundServer| {
            let thread = thread::Builder::new().name("notebook-server".to_owned());
            Some((found, thread.spawn_scoped(scope, move || probe(found)).ok()?))
        };
        let asking: Vec<_> = running.iter().filter_map(ask).collect();
        asking
            .into_iter()
            .filter_map(|(found, thread)| Some((found, thread.join().ok()?)))
            .collect()
    })
}
