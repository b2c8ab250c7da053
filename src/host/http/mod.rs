//! Sends HTTP requests to servers on this machine over connections that are verified to reach the intended process.
//!
//! The client uses no proxy, follows no redirects, resolves no names, and sends no `Origin` header. Each request uses
//! a separate connection and ends within its time limit. Answers are untrusted, and their length is limited.
//! `transport` verifies which process a connection reaches. HTTPS certificates are not checked. Callers choose
//! requests and interpret answers: `host::jupyter` for notebook servers, `reclaim::release` for inference servers.

mod transport;

use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
pub use ureq::http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use ureq::http::{Request, Response};
use ureq::tls::TlsConfig;
use ureq::unversioned::transport::{Connector as _, RustlsConnector};
use ureq::{Agent, AsSendBody, Body};

use crate::host::Roots;
use crate::host::proc::opened_process::OpenedProcess;
use crate::host::proc::sockets::count_connections;
use crate::units::system_message;
pub use transport::Stream;
use transport::ToServer;

const HEADER_BYTES: usize = 16 << 10;

/// Maximum time to connect. A local server accepts a connection immediately unless its queue is full.
const CONNECT_TIME: Duration = Duration::from_secs(3);

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listener {
    pub pid: u32,
    pub start_ticks: u64,
    pub endpoint: Endpoint,
    pub is_https: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Endpoint {
    /// A port on a loopback address. If `host` is a loopback address, it is tried first, then 127.0.0.1 and ::1.
    Tcp { host: String, port: u16 },
    /// Path of a Unix socket, resolved from the server's root directory.
    Unix(String),
}

#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum HttpError {
    #[error("its process {pid} has just exited; try again")]
    Ended { pid: u32 },
    #[error(
        "its process {pid} {} on port {port} of this machine's loopback, so nothing was sent; {}",
        if *is_known { "does not listen" } else { "may not listen" },
        if *is_known {
            "let it listen on 127.0.0.1"
        } else {
            "that requires root or its owner"
        }
    )]
    NotListening { pid: u32, port: u16, is_known: bool },
    #[error(
        "its process {pid} is in a container's network namespace, which cannot be entered: \
        {errno}; that requires root on the host"
    )]
    Network { pid: u32, errno: Errno },
    #[error("another process listens on {path}, so nothing was sent; check which one")]
    ForeignSocket { path: String },
    #[error("its HTTPS cannot be used: {why}; check which server listens there")]
    Https { why: String },
    #[error("it did not answer in time; check whether it hangs")]
    Timeout,
    #[error("its answer is too long; check which server listens there")]
    TooLong,
    #[error("the request failed: {why}; check whether it runs")]
    Failed { why: String },
}

#[derive(Debug)]
pub struct HttpResponse {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
}

#[derive(Debug)]
pub struct HttpRequest<'a> {
    pub method: Method,
    pub path: &'a str,
    pub headers: HeaderMap,
    pub body: Option<&'a str>,
    pub limit_bytes: u64,
    pub time: Duration,
}

/// Connects to a listening process for a protocol other than HTTP. Sends nothing.
pub fn connect(roots: &Roots, listener: &Listener, time: Duration) -> Result<Stream, HttpError> {
    let connector = ToServer::find(roots, listener)?;
    connector.open(Some(time)).map_err(HttpError::from_ureq)
}

#[derive(Debug)]
pub struct HttpClient {
    agent: Agent,
    base: String,
}

impl HttpClient {
    pub fn new(roots: &Roots, server: &Listener) -> Result<Self, HttpError> {
        let connector = ToServer::find(roots, server)?;
        let provider = rustls::crypto::ring::default_provider();
        let tls = TlsConfig::builder()
            .disable_verification(true)
            .unversioned_rustls_crypto_provider(provider.into())
            .build();
        let scheme = if server.is_https { "https" } else { "http" };
        let config = Agent::config_builder()
            .tls_config(tls)
            .proxy(None)
            .max_redirects(0)
            .http_status_as_error(false)
            .max_idle_connections(0)
            .max_response_header_size(HEADER_BYTES)
            .timeout_connect(Some(CONNECT_TIME))
            .user_agent("gpumem")
            .build();
        Ok(Self {
            base: format!("{scheme}://{}", connector.host()),
            agent: Agent::with_parts(
                config,
                connector.clone().chain(RustlsConnector::default()),
                connector,
            ),
        })
    }

    /// Sends a request once, on a separate connection. Returns an error if the answer is not complete in time. The
    /// server may have carried out the request nevertheless.
    pub fn send(&self, request: HttpRequest<'_>) -> Result<HttpResponse, HttpError> {
        let mut message =
            Request::builder().method(request.method).uri(format!("{}{}", self.base, request.path));
        for (name, value) in &request.headers {
            message = message.header(name, value);
        }
        let response = match request.body {
            Some(body) => self.run(message.body(body.to_owned()), request.time),
            None => self.run(message.body(()), request.time),
        };
        let mut response = response?;
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let body = response.body_mut().with_config().limit(request.limit_bytes);
        let body = body.read_to_vec().map_err(HttpError::from_ureq)?;
        Ok(HttpResponse { status, headers, body })
    }

    fn run(
        &self,
        message: ureq::http::Result<Request<impl AsSendBody>>,
        time: Duration,
    ) -> Result<Response<Body>, HttpError> {
        let message = message.map_err(|error| HttpError::from_ureq(error.into()))?;
        let request = self.agent.configure_request(message).timeout_global(Some(time)).build();
        self.agent.run(request).map_err(HttpError::from_ureq)
    }
}

impl HttpError {
    fn from_ureq(error: ureq::Error) -> Self {
        match error {
            ureq::Error::Timeout(_) => Self::Timeout,
            ureq::Error::BodyExceedsLimit(_) => Self::TooLong,
            ureq::Error::Rustls(error) => Self::Https { why: system_message(&error) },
            ureq::Error::Other(error) => match error.downcast::<Self>() {
                Ok(error) => *error,
                Err(error) => Self::Failed { why: system_message(&error) },
            },
            error => Self::Failed { why: system_message(&error) },
        }
    }
}

impl Listener {
    /// Reads the current command line of the process. Returns `None` if the process has exited or if its command line
    /// cannot be read.
    pub fn command(&self, roots: &Roots) -> Option<Arc<[Arc<str>]>> {
        self.open(roots)?.command()
    }

    pub fn connections(&self, roots: &Roots) -> Option<usize> {
        count_connections(roots, &self.open(roots)?.folder)
    }

    fn open(&self, roots: &Roots) -> Option<OpenedProcess> {
        let process = OpenedProcess::open(roots, self.pid).ok()??;
        (process.start_ticks == self.start_ticks).then_some(process)
    }
}
