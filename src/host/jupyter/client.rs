//! The requests to a Jupyter server: what its kernels do, and shutting one down.
//!
//! Answers are untrusted text: bounded here, escaped where they are shown. `host::http` sends the requests and
//! makes sure that they reach the server's own process.

use std::time::Duration;

use serde::Deserialize;

use super::{Server, ServerError, clip};
use crate::host::Roots;
use crate::host::http::{
    HeaderMap, HeaderName, HeaderValue, HttpClient, HttpError, HttpRequest, HttpResponse, Method,
    header,
};
use crate::host::proc::notebook::is_uuid;
use crate::model::Time;

/// The longest answer that is read.
const BODY_BYTES: u64 = 1 << 20;
/// The longest cookie value that is sent back; Tornado's has 60 bytes.
const COOKIE_BYTES: usize = 256;
/// The most kernels that are kept of an answer; no server has as many.
const KERNELS: usize = 4096;

/// A kernel as its server describes it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KernelState {
    pub id: String,
    /// Its notebook, relative to the server's root; only if it has a session.
    pub path: Option<String>,
    /// `idle`, `busy` …
    pub execution_state: Option<String>,
    /// When a message last went to or came from it.
    pub last_activity: Option<Time>,
    pub connections: Option<u32>,
}

#[derive(Debug)]
pub struct Client<'a> {
    server: &'a Server,
    http: HttpClient,
}

impl<'a> Client<'a> {
    /// Finds the address at which the server itself listens. Sends nothing.
    ///
    /// # Errors
    ///
    /// If no address proves to be the server's.
    pub fn new(roots: &Roots, server: &'a Server) -> Result<Self, ServerError> {
        let http = HttpClient::new(roots, &server.listener)?;
        Ok(Self { server, http })
    }

    /// `GET api/sessions`: kernels with a notebook or console.
    ///
    /// # Errors
    ///
    /// If the server does not answer within `time`, or not as Jupyter would.
    pub fn sessions(&self, time: Duration) -> Result<Vec<KernelState>, ServerError> {
        #[derive(Deserialize)]
        struct Session {
            path: Option<String>,
            kernel: Option<ServerKernel>,
        }
        let sessions: Vec<Session> = self.get("GET api/sessions", "api/sessions", time)?;
        let states = sessions.into_iter().take(KERNELS).filter_map(|session| {
            let path = session.path.filter(|path| !path.is_empty());
            Some(session.kernel?.state(path))
        });
        Ok(states.collect())
    }

    /// `GET api/kernels`: all kernels.
    ///
    /// # Errors
    ///
    /// As [`sessions`](Self::sessions).
    pub fn kernels(&self, time: Duration) -> Result<Vec<KernelState>, ServerError> {
        let kernels: Vec<ServerKernel> = self.get("GET api/kernels", "api/kernels", time)?;
        let states = kernels.into_iter().take(KERNELS);
        Ok(states.map(|kernel| kernel.state(None)).collect())
    }

    /// `GET api/kernels/ID`: one kernel.
    ///
    /// # Errors
    ///
    /// As [`sessions`](Self::sessions), and if there is no kernel with this id.
    pub fn kernel(&self, id: &str, time: Duration) -> Result<KernelState, ServerError> {
        let request = "GET api/kernels/ID";
        match self.get::<ServerKernel>(request, &kernel_path(id)?, time) {
            Ok(kernel) if kernel.id == id => Ok(kernel.state(None)),
            Ok(_) => Err(ServerError::NotJupyter { request }),
            Err(ServerError::Status { status: 404, .. }) => Err(ServerError::UnknownKernel),
            Err(error) => Err(error),
        }
    }

    /// `DELETE api/kernels/ID`: shuts a kernel down for good, which may take five seconds. Sent once, whatever
    /// the outcome.
    ///
    /// Without a token, the request has to prove as a browser's would that no foreign page sent it: it carries
    /// the XSRF cookie of one of the server's own pages (`jupyter_server`: `JupyterHandler.check_xsrf_cookie`).
    ///
    /// # Errors
    ///
    /// As [`kernel`](Self::kernel). If it did not answer in time, it may still do it.
    pub fn shut_down(&self, id: &str, time: Duration) -> Result<(), ServerError> {
        let request = "DELETE api/kernels/ID";
        let path = kernel_path(id)?;
        let mut proof = HeaderMap::new();
        let mut left = time;
        if self.server.token.is_none() {
            let page = self.call(Method::GET, "GET _xsrf", "_xsrf", &proof, time / 4)?;
            left = time - time / 4;
            if let Some(value) = xsrf(&page.headers) {
                let cookie = HeaderValue::from_str(&format!("_xsrf={value}"));
                proof.extend(cookie.ok().map(|cookie| (header::COOKIE, cookie)));
                let value = HeaderValue::from_str(value).ok();
                proof.extend(value.map(|value| (HeaderName::from_static("x-xsrftoken"), value)));
            }
        }
        match self.call(Method::DELETE, request, &path, &proof, left)?.status {
            200 | 204 => Ok(()),
            404 => Err(ServerError::UnknownKernel),
            status => Err(self.declined(request, status)),
        }
    }

    fn get<T: serde::de::DeserializeOwned>(
        &self,
        request: &'static str,
        path: &str,
        time: Duration,
    ) -> Result<T, ServerError> {
        let answer = self.call(Method::GET, request, path, &HeaderMap::new(), time)?;
        match answer.status {
            200 => serde_json::from_slice(&answer.body)
                .map_err(|_| ServerError::NotJupyter { request }),
            status => Err(self.declined(request, status)),
        }
    }

    /// The error for an unsuccessful status.
    fn declined(&self, request: &'static str, status: u16) -> ServerError {
        match status {
            300..=399 => ServerError::Redirects { request },
            // The server's file does not record every kind of password.
            401 | 403 if self.server.token.is_none() && request.starts_with("GET") => {
                ServerError::Password
            }
            401 | 403 => ServerError::Refused { request },
            status => ServerError::Status { request, status },
        }
    }

    /// Sends one request without a body and with these headers. Errors call it `request`.
    fn call(
        &self,
        method: Method,
        request: &'static str,
        path: &str,
        headers: &HeaderMap,
        time: Duration,
    ) -> Result<HttpResponse, ServerError> {
        let mut headers = headers.clone();
        if let Some(token) = &self.server.token {
            let value = token.header().ok_or(ServerError::Refused { request })?;
            headers.insert(header::AUTHORIZATION, value);
        }
        let asked = HttpRequest {
            method,
            path: &format!("{}{path}", self.server.base_url),
            headers,
            body: None,
            limit_bytes: BODY_BYTES,
            time,
        };
        let answer = self.http.send(asked);
        answer.map_err(|error| ServerError::of_request(request, error))
    }
}

/// The `_xsrf` cookie that an answer sets, if it has only characters that a cookie may have (RFC 6265, 4.1.1).
fn xsrf(headers: &HeaderMap) -> Option<&str> {
    let cookies = headers.get_all(header::SET_COOKIE).into_iter();
    let value =
        cookies.filter_map(|cookie| cookie.to_str().ok()?.strip_prefix("_xsrf=")).next_back()?;
    let value = value.split(';').next()?;
    let is_sound = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b',' | b'\\');
    let is_bounded = !value.is_empty() && value.len() <= COOKIE_BYTES;
    (is_bounded && value.bytes().all(is_sound)).then_some(value)
}

/// A kernel's path at its server. An error for an id that Jupyter cannot have given.
fn kernel_path(id: &str) -> Result<String, ServerError> {
    match is_uuid(id) {
        true => Ok(format!("api/kernels/{id}")),
        false => Err(ServerError::UnknownKernel),
    }
}

/// A kernel in the server's JSON; missing fields are unknown.
#[derive(Deserialize)]
struct ServerKernel {
    id: String,
    execution_state: Option<String>,
    last_activity: Option<String>,
    connections: Option<u32>,
}

impl ServerKernel {
    fn state(self, path: Option<String>) -> KernelState {
        KernelState {
            id: self.id,
            path: path.map(|path| clip(&path)),
            execution_state: self.execution_state.map(|state| clip(&state)),
            last_activity: self.last_activity.and_then(|time| time.parse().ok()),
            connections: self.connections,
        }
    }
}

impl ServerError {
    pub(super) fn of_request(request: &'static str, error: HttpError) -> Self {
        match error {
            HttpError::Timeout => Self::Timeout { request },
            HttpError::TooLong => Self::NotJupyter { request },
            HttpError::Failed { why } => Self::Request { request, why },
            error => error.into(),
        }
    }
}

#[cfg(test)]
mod tests;
