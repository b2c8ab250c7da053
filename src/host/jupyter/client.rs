//! The requests that a server is sent: what its kernels do, and to shut one down.
//!
//! What it answers is text of strangers: bounded here, escaped where it is shown. How a request is sent, and
//! that it goes to the server's own process, is `host::http`'s.

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
/// The longest value of a cookie that is sent back; Tornado's is 60 bytes.
const COOKIE_BYTES: usize = 256;
/// A server has fewer kernels.
const KERNELS: usize = 4096;

/// A kernel, as its server knows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KernelState {
    pub id: String,
    /// Its notebook, relative to the server's root; only of one that has a session.
    pub path: Option<String>,
    /// `idle`, `busy` …
    pub execution_state: Option<String>,
    /// When a message last went to it or came from it.
    pub last_activity: Option<Time>,
    pub connections: Option<u32>,
}

/// One server, and how it is asked.
#[derive(Debug)]
pub struct Client<'a> {
    server: &'a Server,
    http: HttpClient,
}

impl<'a> Client<'a> {
    /// Finds the address at which the server itself listens. Nothing is sent yet.
    ///
    /// # Errors
    ///
    /// Where no address is seen to be the server's.
    pub fn new(roots: &Roots, server: &'a Server) -> Result<Self, ServerError> {
        let http = HttpClient::new(roots, &server.listener)?;
        Ok(Self { server, http })
    }

    /// `GET api/sessions`: the kernels that have a notebook or a console.
    ///
    /// # Errors
    ///
    /// Where the server does not answer within `time`, or not as Jupyter does.
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

    /// `GET api/kernels`: all of its kernels.
    ///
    /// # Errors
    ///
    /// As [`sessions`](Self::sessions).
    pub fn kernels(&self, time: Duration) -> Result<Vec<KernelState>, ServerError> {
        let kernels: Vec<ServerKernel> = self.get("GET api/kernels", "api/kernels", time)?;
        let states = kernels.into_iter().take(KERNELS);
        Ok(states.map(|kernel| kernel.state(None)).collect())
    }

    /// `GET api/kernels/ID`: one of its kernels.
    ///
    /// # Errors
    ///
    /// As [`sessions`](Self::sessions), and where it has none of this id.
    pub fn kernel(&self, id: &str, time: Duration) -> Result<KernelState, ServerError> {
        let request = "GET api/kernels/ID";
        match self.get::<ServerKernel>(request, &kernel_path(id)?, time) {
            Ok(kernel) if kernel.id == id => Ok(kernel.state(None)),
            Ok(_) => Err(ServerError::NotJupyter { request }),
            Err(ServerError::Status { status: 404, .. }) => Err(ServerError::UnknownKernel),
            Err(error) => Err(error),
        }
    }

    /// `DELETE api/kernels/ID`: has it shut a kernel down, which may take it five seconds, and not
    /// start it again. Sent once, whatever becomes of it.
    ///
    /// Who comes without a token shows as a browser does that no foreign page has sent it: with what a
    /// page of the server's own gave it (`jupyter_server`: `JupyterHandler.check_xsrf_cookie`).
    ///
    /// # Errors
    ///
    /// As [`kernel`](Self::kernel). Where it did not answer in time it may do it all the same.
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

    /// What a status means that is none of success.
    fn declined(&self, request: &'static str, status: u16) -> ServerError {
        match status {
            300..=399 => ServerError::Redirects { request },
            // The file does not tell of every kind of password.
            401 | 403 if self.server.token.is_none() && request.starts_with("GET") => {
                ServerError::Password
            }
            401 | 403 => ServerError::Refused { request },
            status => ServerError::Status { request, status },
        }
    }

    /// One request without a body, with these headers. Errors name it as `request`.
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

/// The value of the cookie `_xsrf` that an answer sets, of characters that a cookie may have (RFC 6265,
/// 4.1.1).
fn xsrf(headers: &HeaderMap) -> Option<&str> {
    let cookies = headers.get_all(header::SET_COOKIE).into_iter();
    let value =
        cookies.filter_map(|cookie| cookie.to_str().ok()?.strip_prefix("_xsrf=")).next_back()?;
    let value = value.split(';').next()?;
    let is_sound = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b',' | b'\\');
    let is_bounded = !value.is_empty() && value.len() <= COOKIE_BYTES;
    (is_bounded && value.bytes().all(is_sound)).then_some(value)
}

/// Where a kernel is at its server; no server knows one whose id is none that Jupyter gives.
fn kernel_path(id: &str) -> Result<String, ServerError> {
    match is_uuid(id) {
        true => Ok(format!("api/kernels/{id}")),
        false => Err(ServerError::UnknownKernel),
    }
}

/// A kernel's model in the server's answers; what it lacks is unknown.
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
