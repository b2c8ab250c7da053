//! Asks an inference server to unload its model, if the server supports unloading.
//!
//! The table `advice::unload` contains the requests and how to interpret the answers. `conversation` decides which
//! requests to send, without network or clock. This file finds the server in a snapshot and connects to it, only over
//! loopback or the server's own Unix socket. `host::http` verifies which process owns the socket. NVML shows the
//! effect (`step::release`).

mod conversation;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use super::{NotReleased, ReleaseAnswer, ReleaseBy, ReleaseOptions, ReleaseWay, ServerUnload};
use crate::advice::unload::{
    ServerListener, ServerRequest, UnloadAnswer, UnloadServer, server_of, unload_server,
};
use crate::deadline::Deadline;
use crate::host::http::{
    Endpoint, HeaderMap, HeaderValue, HttpClient, HttpError, HttpRequest, Listener, Method, header,
};
use crate::host::{Roots, read_available_memory};
use crate::model::process::Relation;
use crate::model::{Process, Snapshot};
use conversation::{AskFailed, Conversation, ServerChannel};

/// Maximum size of an answer, in bytes. The largest answers are the metrics of servers with many models.
const BODY_BYTES: u64 = 4 << 20;

/// Maximum number of checks whether an earlier connection has been closed.
const CLOSING_CHECKS: u32 = 20;
const CLOSING_INTERVAL: Duration = Duration::from_millis(10);

/// Returns the release request if the process is an inference server or works for one, or the reason why the server
/// cannot be asked.
pub(super) fn find(process: &Process, snapshot: &Snapshot) -> Option<Result<ReleaseWay, String>> {
    let (row, listener) = server_of(process)?;
    Some(match &row.advice {
        Some(advice) => Err(advice.clone()),
        None => find_way(row, process, &listener?, snapshot),
    })
}

fn find_way(
    row: &UnloadServer,
    process: &Process,
    listener: &ServerListener<'_>,
    snapshot: &Snapshot,
) -> Result<ReleaseWay, String> {
    let title = &row.title;
    let address = row.address(listener.command, listener.listening_on);
    let address = address.ok_or_else(|| {
        format!("unknown on which of its ports {title} accepts requests; set the port on its command line")
    })?;
    if address.starts_with("unix:@") {
        return Err(format!(
            "{title} listens on {address}, whose owner cannot be verified; have it listen on 127.0.0.1"
        ));
    }
    let needs_host_memory = row.unload.as_ref().is_some_and(|api| api.needs_host_memory);
    if needs_host_memory && has_expandable_segments(process) {
        return Err(format!(
            "{title} was started with expandable segments (PYTORCH_CUDA_ALLOC_CONF), with which sleeping frees \
             nothing; start it without"
        ));
    }
    let server = row.name.as_str().into();
    let held_bytes = held_bytes(listener.pid, snapshot);
    Ok(ReleaseWay {
        pid: listener.pid,
        start_ticks: listener.start_ticks,
        by: ReleaseBy::Server(ServerUnload { server, address, held_bytes }),
    })
}

/// Returns whether PyTorch uses expandable segments, with which vLLM cannot unload (vllm-project/vllm#11743).
fn has_expandable_segments(process: &Process) -> bool {
    let environment = process.environment.as_deref();
    ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"].iter().any(|name| {
        let value = environment.and_then(|environment| environment.get(*name));
        value.is_some_and(|value| value.to_lowercase().contains("expandable_segments:true"))
    })
}

fn held_bytes(server: u32, snapshot: &Snapshot) -> Option<u64> {
    let works_for = |process: &&Process| {
        let relatives = process.listening_relatives.as_deref().unwrap_or_default();
        let mut relatives = relatives.iter();
        process.pid == server
            || relatives
                .any(|relative| relative.pid == server && relative.relation == Relation::Ancestor)
    };
    let pids: Vec<u32> =
        snapshot.processes.iter().filter(works_for).map(|process| process.pid).collect();
    let rows = snapshot.gpus.iter().flat_map(|gpu| gpu.processes.iter().flatten());
    let mut rows = rows.filter(|row| pids.contains(&row.pid)).peekable();
    rows.peek()?;
    rows.try_fold(0u64, |sum, row| Some(sum.saturating_add(row.used_bytes?)))
}

/// Checks that a server is running, is idle and may be asked. If `is_deed` is set, then unloads the server and waits
/// until the unload is complete, at most until the time limit.
pub(super) fn ask(
    roots: &Roots,
    way: &ReleaseWay,
    server: &ServerUnload,
    options: &ReleaseOptions,
    is_deed: bool,
) -> ReleaseAnswer {
    let row = unload_server(&server.server);
    let Some((row, api)) = row.and_then(|row| Some((row, row.unload.as_ref()?))) else {
        let why = format!("gpumem cannot unload {}", server.server);
        return Err(NotReleased::NoWayIn(why));
    };
    let mut channel = LiveChannel::open(roots, row, way, &server.address, options)
        .map_err(|error| NotReleased::NoWayIn(format!("{} cannot be asked: {error}", row.title)))?;
    let base = channel.base.clone();
    Conversation::new(row, api, &base, server.held_bytes, options, &mut channel).run(is_deed)
}

struct LiveChannel<'a> {
    roots: &'a Roots,
    listener: Listener,
    command: Arc<[Arc<str>]>,
    metrics_port: Option<u16>,
    deadline: Deadline,
    /// Address of the server as shown in commands for the user.
    base: String,
}

impl<'a> LiveChannel<'a> {
    fn open(
        roots: &'a Roots,
        row: &UnloadServer,
        way: &ReleaseWay,
        address: &str,
        options: &ReleaseOptions,
    ) -> Result<Self, HttpError> {
        let mut listener = Listener {
            pid: way.pid,
            start_ticks: way.start_ticks,
            endpoint: endpoint(address).ok_or_else(|| HttpError::Failed {
                why: format!("{address} is not a valid address"),
            })?,
            is_https: false,
        };
        let command = listener.command(roots).ok_or(HttpError::Ended { pid: way.pid })?;
        listener.is_https = row.is_secure(&command);
        Ok(Self {
            roots,
            base: base(&listener),
            metrics_port: row.metrics_port(&command),
            listener,
            command,
            deadline: Deadline::after(Duration::from_millis(options.server_ms())),
        })
    }
}

/// Parses an address such as `tcp:0.0.0.0:8000` or `unix:/run/x.sock`.
fn endpoint(address: &str) -> Option<Endpoint> {
    if let Some(path) = address.strip_prefix("unix:") {
        return path.starts_with('/').then(|| Endpoint::Unix(path.to_owned()));
    }
    let address: std::net::SocketAddr = address.strip_prefix("tcp:")?.parse().ok()?;
    Some(Endpoint::Tcp { host: address.ip().to_canonical().to_string(), port: address.port() })
}

/// Returns the arguments with which `curl` reaches the server.
fn base(listener: &Listener) -> String {
    let scheme = if listener.is_https { "https" } else { "http" };
    match &listener.endpoint {
        Endpoint::Unix(path) => {
            let path = crate::advice::quote(path).unwrap_or_else(|| "PATH".to_owned());
            format!("--unix-socket {path} {scheme}://localhost")
        }
        Endpoint::Tcp { host, port } => {
            let host = match host.parse::<std::net::IpAddr>() {
                Ok(ip) if ip.is_ipv6() && ip.is_loopback() => "[::1]",
                _ => "127.0.0.1",
            };
            format!("{scheme}://{host}:{port}")
        }
    }
}

impl ServerChannel for LiveChannel<'_> {
    fn ask(&mut self, request: &ServerRequest, limit: Duration) -> Result<UnloadAnswer, AskFailed> {
        let mut listener = self.listener.clone();
        if let (true, Some(metrics), Endpoint::Tcp { port, .. }) =
            (request.is_metrics, self.metrics_port, &mut listener.endpoint)
        {
            *port = metrics;
        }
        let mut headers = HeaderMap::new();
        if request.body.is_some() {
            let json = HeaderValue::from_static("application/json");
            headers.insert(header::CONTENT_TYPE, json);
        }
        let time = self.deadline.left().min(limit);
        if time.is_zero() {
            return Err(AskFailed::Late);
        }
        // The client verifies which process is listening, both before and after connecting.
        let client = HttpClient::new(self.roots, &listener).map_err(AskFailed::from_http)?;
        let method = match request.verb.as_str() {
            "POST" => Method::POST,
            "PUT" => Method::PUT,
            _ => Method::GET,
        };
        let body = (method != Method::GET).then(|| request.body.as_deref().unwrap_or_default());
        let response = client.send(HttpRequest {
            method,
            path: &request.path,
            headers,
            body,
            limit_bytes: BODY_BYTES,
            time,
        });
        let response = response.map_err(AskFailed::from_http)?;
        Ok(UnloadAnswer { status: response.status, body: response.body })
    }

    fn command(&self) -> &[Arc<str>] {
        &self.command
    }

    fn connections(&mut self) -> Option<usize> {
        match self.listener.endpoint {
            Endpoint::Tcp { .. } => {
                let mut count = self.listener.connections(self.roots)?;
                // gpumem's own previous connection may still be closing.
                for _ in 0..CLOSING_CHECKS {
                    if count == 0 {
                        break;
                    }
                    thread::sleep(CLOSING_INTERVAL);
                    count = self.listener.connections(self.roots)?;
                }
                Some(count)
            }
            Endpoint::Unix(_) => None,
        }
    }

    fn available_bytes(&mut self) -> Option<u64> {
        read_available_memory(self.roots, self.listener.pid)
    }

    fn pause(&mut self, time: Duration) {
        thread::sleep(time.min(self.deadline.left()));
    }

    fn left(&self) -> Duration {
        self.deadline.left()
    }
}

impl AskFailed {
    fn from_http(error: HttpError) -> Self {
        match error {
            HttpError::Timeout => Self::Late,
            error => Self::NotReached(error.to_string()),
        }
    }
}
