//! A minimal HTTP server for the metrics, the verdict and a health check. The server answers one GET or HEAD request
//! per connection, and limits connections, bytes and time. A framework is unnecessary without request bodies, upgrades
//! and persistent connections.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use zlib_rs::{DeflateConfig, ReturnCode, compress_bound, compress_slice};

use crate::cli::metrics::Published;

/// Maximum number of connections. Another connection closes the oldest, so that idle clients cannot block a scrape.
const MOST_CONNECTIONS: usize = 16;
/// Time limit for a connection, from accepting it to sending the last byte.
const PATIENCE: Duration = Duration::from_secs(5);
const MOST_REQUEST_BYTES: usize = 8 << 10;
/// Pause after accept(2) fails, for example because the process has too many open files.
const PAUSE: Duration = Duration::from_millis(100);

const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";
const PLAIN: &str = "text/plain; charset=utf-8";

#[derive(Clone, Debug, Default)]
pub(super) struct Server(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    is_local: bool,
    newest: Mutex<Option<Arc<Answer>>>,
    unfinished: Mutex<VecDeque<Arc<TcpStream>>>,
}

#[derive(Debug)]
struct Answer {
    published: Published,
    at: Instant,
    fresh_for: Option<Duration>,
}

struct Response<'a> {
    status: &'static str,
    content_type: &'static str,
    body: &'a str,
}

impl Server {
    /// Starts the server. Requests for documents get status 503 until the first call of [`publish`](Self::publish).
    pub(super) fn start(listener: TcpListener) -> anyhow::Result<Self> {
        let is_local = listener.local_addr().is_ok_and(|address| address.ip().is_loopback());
        let server = Self(Arc::new(Shared { is_local, ..Shared::default() }));
        let accepting = server.clone();
        let accept = move || {
            for stream in listener.incoming() {
                match stream {
                    Ok(stream) => accepting.accept(stream),
                    Err(_) => thread::sleep(PAUSE),
                }
            }
        };
        let spawned = thread::Builder::new().name("serving".to_owned()).spawn(accept);
        spawned.context("cannot start a thread to serve")?;
        Ok(server)
    }

    pub(super) fn publish(&self, published: Published, fresh_for: Option<Duration>) {
        let answer = Arc::new(Answer { published, at: Instant::now(), fresh_for });
        *self.0.newest.lock().unwrap_or_else(PoisonError::into_inner) = Some(answer);
    }

    fn newest(&self) -> Option<Arc<Answer>> {
        self.0.newest.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn accept(&self, stream: TcpStream) {
        let stream = Arc::new(stream);
        {
            let mut unfinished = self.unfinished();
            if unfinished.len() >= MOST_CONNECTIONS
                && let Some(oldest) = unfinished.pop_front()
            {
                // The shutdown makes pending reads and writes fail, which ends the connection's thread.
                let _ = oldest.shutdown(Shutdown::Both);
            }
            unfinished.push_back(Arc::clone(&stream));
        }
        let (server, accepted) = (self.clone(), Arc::clone(&stream));
        let answer = move || {
            // Ignore the error: the client has disconnected or is too slow.
            let _ = server.answer(&accepted);
            server.forget(&accepted);
        };
        if thread::Builder::new().name("answering".to_owned()).spawn(answer).is_err() {
            self.forget(&stream);
        }
    }

    fn unfinished(&self) -> MutexGuard<'_, VecDeque<Arc<TcpStream>>> {
        self.0.unfinished.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn forget(&self, stream: &Arc<TcpStream>) {
        self.unfinished().retain(|other| !Arc::ptr_eq(other, stream));
    }

    fn answer(&self, mut stream: &TcpStream) -> io::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        let request = read_request(&mut stream, deadline)?;
        let newest = self.newest();
        let response = match &request {
            Some(request) if self.0.is_local && !is_by_address(request) => Response {
                status: "403 Forbidden",
                content_type: PLAIN,
                body: "use localhost or an IP address in the URL (gpumem man serve)\n",
            },
            Some(request) => respond(request, newest.as_deref()),
            None => Response {
                status: "431 Request Header Fields Too Large",
                content_type: PLAIN,
                body: "",
            },
        };
        let zipped = request.as_deref().is_some_and(accepts_gzip).then(|| gzip(response.body));
        let zipped = zipped.flatten();
        let encoding = if zipped.is_some() { "Content-Encoding: gzip\r\n" } else { "" };
        let body = zipped.as_deref().unwrap_or(response.body.as_bytes());
        let is_head = request.is_some_and(|request| request.starts_with("HEAD "));
        let head = format!(
            "HTTP/1.1 {}\r\nContent-Type: {}\r\n{encoding}Content-Length: {}\r\nConnection: close\r\n\
             X-Content-Type-Options: nosniff\r\n\r\n",
            response.status,
            response.content_type,
            body.len(),
        );
        write(&mut stream, head.as_bytes(), deadline)?;
        if !is_head {
            write(&mut stream, body, deadline)?;
        }
        stream.shutdown(Shutdown::Write)
    }
}

fn until(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// Reads a request up to the empty line, or returns `None` if the request is too long.
fn read_request(stream: &mut &TcpStream, deadline: Instant) -> io::Result<Option<String>> {
    let mut request = Vec::new();
    let mut part = [0; 1024];
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        if request.len() >= MOST_REQUEST_BYTES {
            return Ok(None);
        }
        stream.set_read_timeout(Some(until(deadline)?))?;
        match stream.read(&mut part)? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            length => request.extend_from_slice(&part[..length]),
        }
    }
    Ok(Some(String::from_utf8_lossy(&request).into_owned()))
}

fn write(stream: &mut &TcpStream, mut bytes: &[u8], deadline: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        stream.set_write_timeout(Some(until(deadline)?))?;
        match stream.write(bytes)? {
            0 => return Err(ErrorKind::WriteZero.into()),
            length => bytes = &bytes[length..],
        }
    }
    Ok(())
}

fn header<'r>(request: &'r str, name: &'static str) -> impl Iterator<Item = &'r str> {
    let lines = request.lines().filter_map(|line| line.split_once(':'));
    lines.filter(|(header, _)| header.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
}

/// Returns whether all Host headers contain an IP address or "localhost". In a DNS rebinding attack, a browser sends
/// the attacker's host name instead.
fn is_by_address(request: &str) -> bool {
    header(request, "host").all(|host| {
        let name = host.split(':').next().unwrap_or_default();
        name.eq_ignore_ascii_case("localhost")
            || host.parse::<SocketAddr>().is_ok()
            || host.parse::<IpAddr>().is_ok()
    })
}

/// Returns whether an Accept-Encoding header names gzip without the weight 0, which means "not acceptable".
fn accepts_gzip(request: &str) -> bool {
    header(request, "accept-encoding").flat_map(|value| value.split(',')).any(|coding| {
        let (name, weight) = coding.split_once(';').unwrap_or((coding, ""));
        let weight = weight.trim().strip_prefix("q=").and_then(|weight| weight.parse().ok());
        name.trim().eq_ignore_ascii_case("gzip") && weight.is_none_or(|weight: f64| weight > 0.0)
    })
}

fn gzip(body: &str) -> Option<Vec<u8>> {
    // Level 1 is the fastest. Window bits above 15 select gzip's header, which is longer than zlib's.
    let config = DeflateConfig { window_bits: 31, ..DeflateConfig::new(1) };
    let mut bytes = vec![0; compress_bound(body.len()) + 12];
    let (zipped, code) = compress_slice(&mut bytes, body.as_bytes(), config);
    (code == ReturnCode::Ok).then(|| zipped.to_vec())
}

fn respond<'a>(request: &str, newest: Option<&'a Answer>) -> Response<'a> {
    let plain = |status, body| Response { status, content_type: PLAIN, body };
    let mut words = request.lines().next().unwrap_or_default().split(' ');
    let (method, target) = (words.next(), words.next().unwrap_or_default());
    if !matches!(method, Some("GET" | "HEAD")) {
        return plain("405 Method Not Allowed", "GET only\n");
    }
    let path = target.split('?').next().unwrap_or_default();
    if path == "/" {
        let links = "<!DOCTYPE html><title>gpumem</title>\
            <p><a href=\"/metrics\">/metrics</a> for Prometheus, <a href=\"/check\">/check</a>: the verdict as JSON, \
            <a href=\"/-/healthy\">/-/healthy</a>\n";
        return Response {
            status: "200 OK",
            content_type: "text/html; charset=utf-8",
            body: links,
        };
    }
    if !matches!(path, "/metrics" | "/check" | "/-/healthy") {
        return plain("404 Not Found", "available: /metrics, /check, /-/healthy\n");
    }
    let Some(newest) = newest else {
        return plain("503 Service Unavailable", "nothing has been sampled yet\n");
    };
    if newest.fresh_for.is_some_and(|fresh| newest.at.elapsed() > fresh) {
        return plain("503 Service Unavailable", "the newest sample is too old\n");
    }
    let published = &newest.published;
    let (content_type, body) = match path {
        "/metrics" => (METRICS, &*published.metrics),
        "/check" => ("application/json", &*published.check),
        _ => (PLAIN, "ok\n"),
    };
    Response { status: "200 OK", content_type, body }
}
