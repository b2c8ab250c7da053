//! Requests to servers of this machine, over a connection that is proved to lead to the very process that is
//! meant.
//!
//! With nothing of this machine's settings: no proxy, no redirect, no name looked up, no `Origin`. A request ends
//! in the time that it is given, whatever the server does, and an answer is bounded; no connection is kept for
//! another request. What an answer has in it is text of strangers. To which process a connection leads is
//! `transport`'s to prove, also where it is HTTPS: certificates are not looked at. What is asked, and what an
//! answer means, is for the callers: `host::jupyter` of notebook servers, `reclaim::release` of inference
//! servers.

use std::time::Duration;

use rustix::io::Errno;
use ureq::http::{Request, Response};
use ureq::tls::TlsConfig;
use ureq::unversioned::transport::{Connector as _, RustlsConnector};
use ureq::{Agent, AsSendBody, Body};

use super::Roots;
use transport::ToServer;

pub use transport::Stream;

mod listener;
mod transport;

pub use ureq::http::{HeaderMap, HeaderName, HeaderValue, Method, header};

/// The longest head of an answer.
const HEADER_BYTES: usize = 16 << 10;

/// A server on this machine answers a connection at once, or its queue is full.
const CONNECT_TIME: Duration = Duration::from_secs(3);

/// A process that listens, and where.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listener {
    /// The process id.
    pub pid: u32,
    /// Clock ticks from boot to its start.
    pub start_ticks: u64,
    /// Where.
    pub endpoint: Endpoint,
    /// Whether it speaks TLS there.
    pub is_https: bool,
}

/// Where a server listens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Endpoint {
    /// A port; on loopback, whatever the host is called.
    Tcp { host: String, port: u16 },
    /// A path, as the server itself names it.
    Unix(String),
}

/// Why a request has no answer. Nothing was sent where it is not by the server's own fault.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum HttpError {
    /// The server ended between two looks.
    #[error("its process {pid} has just exited; try again")]
    Ended { pid: u32 },
    /// Nothing of the server's answers at its port.
    #[error(
        "its process {pid} {} on port {port} of this machine's loopback, so that nothing was sent; {}",
        if *is_known { "does not listen" } else { "is not seen to listen" },
        if *is_known {
            "let it listen on 127.0.0.1"
        } else {
            "that takes root or its owner"
        }
    )]
    NotListening {
        pid: u32,
        port: u16,
        /// That it does not is known.
        is_known: bool,
    },
    /// The server's network is not to be entered.
    #[error(
        "its process {pid} is in a network of its own, a container's, which cannot be entered: {errno}; that takes root on the host"
    )]
    Network { pid: u32, errno: Errno },
    /// Another process listens on its socket.
    #[error("another process listens on {path}, so that nothing was sent; see which")]
    ForeignSocket { path: String },
    /// No HTTPS where that was to be.
    #[error("its HTTPS cannot be used: {why}; see what serves there")]
    Https { why: String },
    /// No answer in time.
    #[error("it did not answer in time; see whether it hangs")]
    Timeout,
    /// An answer that is longer than is read.
    #[error("its answer is too long; see what serves there")]
    TooLong,
    /// Anything else.
    #[error("the request failed: {why}; see whether it runs")]
    Failed { why: String },
}

/// What a server answered.
#[derive(Debug)]
pub struct HttpResponse {
    /// `200`.
    pub status: u16,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body, whole.
    pub body: Vec<u8>,
}

/// What is asked.
#[derive(Debug)]
pub struct HttpRequest<'a> {
    /// `GET` …
    pub method: Method,
    /// From the root on, with what follows a `?`.
    pub path: &'a str,
    /// Beside those that every request has.
    pub headers: HeaderMap,
    /// `None` where it has none.
    pub body: Option<&'a str>,
    /// The longest answer that is read.
    pub limit_bytes: u64,
    /// How long it may take, from connecting to the end of the answer.
    pub time: Duration,
}

/// Connects to a process that listens, to speak something else than HTTP. Nothing is sent yet.
///
/// # Errors
///
/// Where no address is seen to be the process's own, or it takes no connection in `time`.
pub fn connect(roots: &Roots, listener: &Listener, time: Duration) -> Result<Stream, HttpError> {
    let connector = ToServer::find(roots, listener)?;
    connector.open(Some(time)).map_err(HttpError::of)
}

/// One server, and how it is asked.
#[derive(Debug)]
pub struct HttpClient {
    agent: Agent,
    /// `http://127.0.0.1:8888`
    base: String,
}

impl HttpClient {
    /// Finds the address at which the server itself listens. Nothing is sent yet.
    ///
    /// # Errors
    ///
    /// Where no address is seen to be the server's.
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

    /// Asks once, on a connection of its own.
    ///
    /// # Errors
    ///
    /// Where there is no whole answer in time. The server may do what it was asked for all the same.
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
        let body = body.read_to_vec().map_err(HttpError::of)?;
        Ok(HttpResponse { status, headers, body })
    }

    fn run(
        &self,
        message: ureq::http::Result<Request<impl AsSendBody>>,
        time: Duration,
    ) -> Result<Response<Body>, HttpError> {
        let message = message.map_err(|error| HttpError::of(error.into()))?;
        let request = self.agent.configure_request(message).timeout_global(Some(time)).build();
        self.agent.run(request).map_err(HttpError::of)
    }
}

impl HttpError {
    fn of(error: ureq::Error) -> Self {
        match error {
            ureq::Error::Timeout(_) => Self::Timeout,
            ureq::Error::BodyExceedsLimit(_) => Self::TooLong,
            ureq::Error::Rustls(error) => Self::Https { why: error.to_string() },
            ureq::Error::Other(error) => match error.downcast::<Self>() {
                Ok(own) => *own,
                Err(error) => Self::Failed { why: error.to_string() },
            },
            error => Self::Failed { why: error.to_string() },
        }
    }
}
