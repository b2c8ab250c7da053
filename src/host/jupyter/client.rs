//! Sends requests to a Jupyter server: for the state of its kernels, or to shut one down.
//!
//! Answers are untrusted. This module limits their length, and display code escapes them. `host::http` sends the
//! requests and ensures that they reach the server's process.

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

const BODY_BYTES: u64 = 1 << 20;
/// Maximum length of a cookie value that is sent back to the server. The cookies of Tornado, the web server that
/// Jupyter uses, have about 60 bytes.
const COOKIE_BYTES: usize = 256;
const KERNELS: usize = 4096;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KernelState {
    pub id: String,
    /// Path of the notebook relative to the server's root, or `None` if the kernel has no session.
    pub path: Option<String>,
    pub execution_state: Option<String>,
    /// Time when the kernel last sent or received a message.
    pub last_activity: Option<Time>,
    pub connections: Option<u32>,
}

#[derive(Debug)]
pub struct Client<'a> {
    server: &'a Server,
    http: HttpClient,
}

impl<'a> Client<'a> {
    pub fn new(roots: &Roots, server: &'a Server) -> Result<Self, ServerError> {
        let http = HttpClient::new(roots, &server.listener)?;
        Ok(Self { server, http })
    }

    /// Sends `GET api/sessions`, which lists the kernels that have a notebook or console. Returns an error if there
    /// is no valid answer within `time`.
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

    pub fn kernels(&self, time: Duration) -> Result<Vec<KernelState>, ServerError> {
        let kernels: Vec<ServerKernel> = self.get("GET api/kernels", "api/kernels", time)?;
        let states = kernels.into_iter().take(KERNELS);
        Ok(states.map(|kernel| kernel.state(None)).collect())
    }

    pub fn kernel(&self, id: &str, time: Duration) -> Result<KernelState, ServerError> {
        let request = "GET api/kernels/ID";
        match self.get::<ServerKernel>(request, &kernel_path(id)?, time) {
            Ok(kernel) if kernel.id == id => Ok(kernel.state(None)),
            Ok(_) => Err(ServerError::NotJupyter { request }),
            Err(ServerError::Status { status: 404, .. }) => Err(ServerError::UnknownKernel),
            Err(error) => Err(error),
        }
    }

    /// Sends `DELETE api/kernels/ID`, which permanently shuts down a kernel and can take five seconds. The request is
    /// never repeated. After a timeout, the server may still shut down the kernel.
    ///
    /// A request without a token must contain an XSRF cookie that the server set in an earlier answer (jupyter_server:
    /// `JupyterHandler.check_xsrf_cookie`).
    pub fn shut_down(&self, id: &str, time: Duration) -> Result<(), ServerError> {
        let request = "DELETE api/kernels/ID";
        let path = kernel_path(id)?;
        let mut proof = HeaderMap::new();
        let mut time_left = time;
        if self.server.token.is_none() {
            let page = self.call(Method::GET, "GET _xsrf", "_xsrf", &proof, time / 4)?;
            time_left = time - time / 4;
            if let Some(value) = xsrf(&page.headers) {
                let cookie = HeaderValue::from_str(&format!("_xsrf={value}"));
                proof.extend(cookie.ok().map(|cookie| (header::COOKIE, cookie)));
                let value = HeaderValue::from_str(value).ok();
                proof.extend(value.map(|value| (HeaderName::from_static("x-xsrftoken"), value)));
            }
        }
        match self.call(Method::DELETE, request, &path, &proof, time_left)?.status {
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

    fn declined(&self, request: &'static str, status: u16) -> ServerError {
        match status {
            300..=399 => ServerError::Redirects { request },
            // The server's file does not show every kind of password, so a request without a token can be refused.
            401 | 403 if self.server.token.is_none() && request.starts_with("GET") => {
                ServerError::Password
            }
            401 | 403 => ServerError::Refused { request },
            status => ServerError::Status { request, status },
        }
    }

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
        let http_request = HttpRequest {
            method,
            path: &format!("{}{path}", self.server.base_url),
            headers,
            body: None,
            limit_bytes: BODY_BYTES,
            time,
        };
        let answer = self.http.send(http_request);
        answer.map_err(|error| ServerError::from_request(request, error))
    }
}

/// Returns the value of the `_xsrf` cookie that an answer sets, if all characters are allowed in a cookie (RFC 6265,
/// section 4.1.1).
fn xsrf(headers: &HeaderMap) -> Option<&str> {
    let cookies = headers.get_all(header::SET_COOKIE).into_iter();
    let value =
        cookies.filter_map(|cookie| cookie.to_str().ok()?.strip_prefix("_xsrf=")).next_back()?;
    let value = value.split(';').next()?;
    let is_sound = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b',' | b'\\');
    let is_bounded = !value.is_empty() && value.len() <= COOKIE_BYTES;
    (is_bounded && value.bytes().all(is_sound)).then_some(value)
}

/// Returns the URL path of a kernel on its server. Returns an error if Jupyter cannot have assigned the id.
fn kernel_path(id: &str) -> Result<String, ServerError> {
    match is_uuid(id) {
        true => Ok(format!("api/kernels/{id}")),
        false => Err(ServerError::UnknownKernel),
    }
}

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
    pub(super) fn from_request(request: &'static str, error: HttpError) -> Self {
        match error {
            HttpError::Timeout => Self::Timeout { request },
            HttpError::TooLong => Self::NotJupyter { request },
            HttpError::Failed { why } => Self::Request { request, why },
            error => error.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;
    use std::thread::{self, JoinHandle};

    use super::*;
    use crate::host::http::{Endpoint, Listener};
    use crate::host::read_start_ticks;

    /// Starts a server that sends one answer. The thread returns the received request.
    fn serve(answer: Vec<u8>) -> (Server, JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let pid = std::process::id();
        let server = Server {
            listener: Listener {
                pid,
                start_ticks: read_start_ticks("/proc".as_ref(), pid).unwrap().unwrap(),
                endpoint: Endpoint::Tcp {
                    host: "localhost".to_owned(),
                    port: listener.local_addr().unwrap().port(),
                },
                is_https: false,
            },
            base_url: "/user/ann/".to_owned(),
            token: super::super::Token::new("s3cret"),
        };
        let thread = thread::spawn(move || {
            let mut stream = listener.accept().unwrap().0;
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                request.push(byte[0]);
            }
            // The client may close the connection early.
            let _ = stream.write_all(&answer);
            String::from_utf8(request).unwrap()
        });
        (server, thread)
    }

    fn sessions(answer: &str) -> (Result<Vec<KernelState>, ServerError>, String) {
        let (server, thread) = serve(answer.as_bytes().to_vec());
        let client = Client::new(&Roots::default(), &server).unwrap();
        let debug = format!("{client:?}");
        assert!(!debug.contains("s3cret"), "{debug}");
        let sessions = client.sessions(Duration::from_secs(20));
        (sessions, thread.join().unwrap())
    }

    #[test]
    fn a_request_uses_the_base_url_and_the_token() {
        let body = r#"[{"path": "a.ipynb", "kernel": {"id": "k", "execution_state": "idle",
        "last_activity": "2026-11-21T16:01:46.482243Z", "connections": 1}}, {"kernel": null}, {"path": "", "kernel": {"id": "l", "last_activity": "yesterday"}}]"#;
        let (first, second) = body.split_at(50);
        let chunked = format!(
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{first}\r\n{:x}\r\n{second}\r\n0\r\n\r\n",
            first.len(),
            second.len()
        );
        let (states, request) = sessions(&chunked);
        assert!(request.starts_with("GET /user/ann/api/sessions HTTP/1.1\r\n"));
        assert!(request.contains("authorization: token s3cret\r\n"), "{request}");
        let expected = KernelState {
            id: "k".to_owned(),
            path: Some("a.ipynb".to_owned()),
            execution_state: Some("idle".to_owned()),
            last_activity: Some("2026-11-21T16:01:46.482Z".parse().unwrap()),
            connections: Some(1),
        };
        let unknown = KernelState {
            id: "l".to_owned(),
            path: None,
            execution_state: None,
            last_activity: None,
            connections: None,
        };
        assert_eq!(states, Ok(vec![expected, unknown]));
    }

    #[test]
    fn a_bad_answer_is_an_error_that_names_the_request() {
        let request = "GET api/sessions";
        for (answer, expected) in [
            (
                "HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n",
                ServerError::Refused { request },
            ),
            (
                "HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
                ServerError::Redirects { request },
            ),
            (
                "HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n",
                ServerError::Status { request, status: 500 },
            ),
            ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", ServerError::NotJupyter { request }),
        ] {
            assert_eq!(sessions(answer).0, Err(expected), "{answer}");
        }
        for answer in ["", "SSH-2.0-x\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n["] {
            let (states, _) = sessions(answer);
            assert!(matches!(states, Err(ServerError::Request { .. })), "{answer} {states:?}");
        }
    }

    #[test]
    fn a_process_that_does_not_hold_the_port_is_refused() {
        let (server, _thread) = serve(Vec::new());
        let pid = server.listener.pid;
        let mut restarted = server.clone();
        restarted.listener.start_ticks += 1;
        assert_eq!(
            Client::new(&Roots::default(), &restarted).unwrap_err(),
            ServerError::NotConnected(HttpError::Ended { pid })
        );
        let closed = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = closed.local_addr().unwrap().port();
        drop(closed);
        let mut not_listening = server;
        not_listening.listener.endpoint = Endpoint::Tcp { host: "localhost".to_owned(), port };
        assert!(matches!(
            Client::new(&Roots::default(), &not_listening).unwrap_err(),
            ServerError::NotConnected(HttpError::NotListening { is_known: true, .. })
        ));
    }

    const ID: &str = "0a1b2c3d-0123-4567-89ab-00aa11bb22cc";
    const TIME: Duration = Duration::from_secs(20);

    #[test]
    fn a_kernel_is_requested_by_its_id() {
        let answered = |status: &str, body: &str| {
            let length = body.len();
            let answer = format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\n\r\n{body}");
            let (server, thread) = serve(answer.into_bytes());
            let client = Client::new(&Roots::default(), &server).unwrap();
            let state = client.kernel(ID, TIME);
            let request = thread.join().unwrap();
            let line = format!("GET /user/ann/api/kernels/{ID} HTTP/1.1\r\n");
            assert!(request.starts_with(&line), "{request}");
            state
        };
        let body = format!(r#"{{"id": "{ID}", "execution_state": "idle"}}"#);
        let state = answered("200 OK", &body).unwrap();
        assert_eq!(state.execution_state.as_deref(), Some("idle"));
        let request = "GET api/kernels/ID";
        for (status, body, expected) in [
            ("404 Not Found", "", ServerError::UnknownKernel),
            ("200 OK", r#"{"id": "another"}"#, ServerError::NotJupyter { request }),
            ("403 Forbidden", "", ServerError::Refused { request }),
        ] {
            assert_eq!(answered(status, body), Err(expected), "{status}");
        }
    }

    #[test]
    fn a_shutdown_succeeds_only_if_the_server_confirms_it() {
        let request = "DELETE api/kernels/ID";
        for (status, expected) in [
            ("204 No Content", Ok(())),
            ("404 Not Found", Err(ServerError::UnknownKernel)),
            ("403 Forbidden", Err(ServerError::Refused { request })),
            ("302 Found\r\nLocation: http://127.0.0.1:1/", Err(ServerError::Redirects { request })),
            ("500 Oops", Err(ServerError::Status { request, status: 500 })),
        ] {
            let length = if status.starts_with("204") { "" } else { "\r\nContent-Length: 0" };
            let (server, thread) = serve(format!("HTTP/1.1 {status}{length}\r\n\r\n").into());
            let client = Client::new(&Roots::default(), &server).unwrap();
            assert_eq!(client.shut_down(ID, TIME), expected, "{status}");
            let sent = thread.join().unwrap();
            let line = format!("DELETE /user/ann/api/kernels/{ID} HTTP/1.1\r\n");
            assert!(sent.starts_with(&line), "{sent}");
            assert!(sent.contains("authorization: token s3cret\r\n"), "{sent}");
        }
    }

    #[test]
    fn an_id_that_changes_the_path_is_not_sent() {
        let (server, _thread) = serve(Vec::new());
        let client = Client::new(&Roots::default(), &server).unwrap();
        for id in ["", "../sessions/1", "a?b", &format!("{ID}/restart")] {
            assert_eq!(client.shut_down(id, TIME), Err(ServerError::UnknownKernel));
            assert_eq!(client.kernel(id, TIME), Err(ServerError::UnknownKernel));
        }
    }
}
