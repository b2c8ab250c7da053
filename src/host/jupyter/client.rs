//! The requests that a server is sent.
//!
//! With nothing of this machine's settings: no proxy, no redirect, no name looked up. A request ends
//! in the time that it is given, whatever the server does, and an answer is bounded. What it says is
//! text of strangers: bounded here, escaped where it is shown. Whom a connection leads to is `wire`'s
//! to prove.

use std::time::Duration;

use serde::Deserialize;
use ureq::Agent;
use ureq::http::{Method, Request, header};

use super::wire::ToServer;
use super::{Error, Server, clip};
use crate::host::Roots;
use crate::model::Time;

/// The longest answer that is read.
const BODY_BYTES: u64 = 1 << 20;
/// The longest head of an answer.
const HEADER_BYTES: usize = 16 << 10;
/// A server has fewer kernels.
const KERNELS: usize = 4096;

/// A kernel, as its server knows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KernelState {
    /// Its id.
    pub id: String,
    /// Its notebook, relative to the server's root; only of one that has a session.
    pub path: Option<String>,
    /// `idle`, `busy` …
    pub execution_state: Option<String>,
    /// When a message last went to it or came from it.
    pub last_activity: Option<Time>,
    /// Open connections.
    pub connections: Option<u32>,
}

/// One server, and how it is asked.
#[derive(Debug)]
pub struct Client<'a> {
    server: &'a Server,
    agent: Agent,
    /// `http://127.0.0.1:8888/`
    base: String,
}

impl<'a> Client<'a> {
    /// Finds the address at which the server itself listens. Nothing is sent yet.
    ///
    /// # Errors
    ///
    /// Where no address is seen to be the server's.
    pub fn new(roots: &Roots, server: &'a Server) -> Result<Self, Error> {
        let connector = ToServer::find(roots, server)?;
        let config = Agent::config_builder()
            .proxy(None)
            .max_redirects(0)
            .http_status_as_error(false)
            .max_idle_connections(0)
            .max_response_header_size(HEADER_BYTES)
            .user_agent("gpumem")
            .build();
        Ok(Self {
            server,
            base: format!("http://{}{}", connector.host(), server.base_url),
            agent: Agent::with_parts(config, connector.clone(), connector),
        })
    }

    /// `GET api/sessions`: the kernels that have a notebook or a console.
    ///
    /// # Errors
    ///
    /// Where the server does not answer within `time`, or not as Jupyter does.
    pub fn sessions(&self, time: Duration) -> Result<Vec<KernelState>, Error> {
        #[derive(Deserialize)]
        struct Session {
            path: Option<String>,
            kernel: Option<Kernel>,
        }
        let sessions: Vec<Session> = self.get("api/sessions", time)?;
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
    pub fn kernels(&self, time: Duration) -> Result<Vec<KernelState>, Error> {
        let kernels: Vec<Kernel> = self.get("api/kernels", time)?;
        let states = kernels.into_iter().take(KERNELS);
        Ok(states.map(|kernel| kernel.state(None)).collect())
    }

    fn get<T: serde::de::DeserializeOwned>(
        &self,
        path: &'static str,
        time: Duration,
    ) -> Result<T, Error> {
        let (status, body) = self.call(Method::GET, path, time)?;
        match status {
            200 => serde_json::from_slice(&body).map_err(|_| Error::NotJupyter { path }),
            300..=399 => Err(Error::Redirects { path }),
            // The file does not tell of every kind of password.
            401 | 403 if self.server.token.is_none() => Err(Error::Password),
            401 | 403 => Err(Error::Refused { path }),
            status => Err(Error::Status { path, status }),
        }
    }

    /// One request without a body; the answer's status and body.
    fn call(
        &self,
        method: Method,
        path: &'static str,
        time: Duration,
    ) -> Result<(u16, Vec<u8>), Error> {
        let failed = |error| Error::of_request(path, error);
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.base));
        if let Some(token) = &self.server.token {
            let value = token.header().ok_or(Error::Refused { path })?;
            request = request.header(header::AUTHORIZATION, value);
        }
        let request = request.body(()).map_err(|error| failed(error.into()))?;
        let request = self
            .agent
            .configure_request(request)
            .timeout_global(Some(time))
            .build();
        let mut response = self.agent.run(request).map_err(failed)?;
        let status = response.status().as_u16();
        let body = response.body_mut().with_config().limit(BODY_BYTES);
        Ok((status, body.read_to_vec().map_err(failed)?))
    }
}

/// A kernel's model in the server's answers; what it lacks is unknown.
#[derive(Deserialize)]
struct Kernel {
    id: String,
    execution_state: Option<String>,
    last_activity: Option<String>,
    connections: Option<u32>,
}

impl Kernel {
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

impl Error {
    fn of_request(path: &'static str, error: ureq::Error) -> Self {
        match error {
            ureq::Error::Timeout(_) => Self::Timeout { path },
            ureq::Error::BodyExceedsLimit(_) => Self::NotJupyter { path },
            ureq::Error::Other(error) => match error.downcast::<Self>() {
                Ok(own) => *own,
                Err(error) => Self::Request {
                    path,
                    why: error.to_string(),
                },
            },
            error => Self::Request {
                path,
                why: error.to_string(),
            },
        }
    }
}

#[cfg(test)]
mod tests;
