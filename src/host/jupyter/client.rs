//! The requests that a server is sent.
//!
//! Only over loopback or its own Unix socket, only after the server's process was seen to hold the
//! listening end, and with nothing of this machine's settings: no proxy, no redirect, no name looked
//! up. A request ends in the time that it is given, whatever the server does, and an answer is
//! bounded. What it says is text of strangers: bounded here, escaped where it is shown.

use std::fmt;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use rustix::net::sockopt::set_socket_timeout;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use serde::Deserialize;
use ureq::Agent;
use ureq::config::Config;
use ureq::http::{Method, Request, Uri, header};
use ureq::unversioned::resolver::{ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{
    Buffers, ConnectionDetails, Connector, LazyBuffers, NextTimeout, Transport,
};

use super::listener::holds_listener;
use super::process::Opened;
use super::{Endpoint, Error, Server, clip};
use crate::host::Roots;
use crate::model::Time;

/// The longest answer that is read.
const BODY_BYTES: u64 = 1 << 20;
/// The longest head of an answer.
const HEADER_BYTES: usize = 16 << 10;
/// The longest path of a socket (unix(7), `sun_path`), with the zero that ends it.
const SOCKET_BYTES: usize = 108;
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
        let target = match &server.endpoint {
            Endpoint::Tcp { host, port } => Target::Tcp(find_address(roots, server, host, *port)?),
            Endpoint::Unix(path) => Target::Unix(path.clone()),
        };
        let host = match &target {
            Target::Tcp(address) => address.to_string(),
            Target::Unix(_) => "localhost".to_owned(),
        };
        let config = Agent::config_builder()
            .proxy(None)
            .max_redirects(0)
            .http_status_as_error(false)
            .max_idle_connections(0)
            .max_response_header_size(HEADER_BYTES)
            .user_agent("gpumem")
            .build();
        let address = match &target {
            Target::Tcp(address) => *address,
            Target::Unix(_) => SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
        };
        let connector = ToServer {
            roots: roots.clone(),
            server: (server.pid, server.start_ticks),
            target,
        };
        Ok(Self {
            server,
            agent: Agent::with_parts(config, connector, Fixed(address)),
            base: format!("http://{host}{}", server.base_url),
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

/// The address on loopback at which the server's own process listens.
fn find_address(
    roots: &Roots,
    server: &Server,
    host: &str,
    port: u16,
) -> Result<SocketAddr, Error> {
    let process = open_server(roots, (server.pid, server.start_ticks))?;
    let named = host.parse().ok().filter(IpAddr::is_loopback);
    let usual = [
        IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(Ipv6Addr::LOCALHOST),
    ];
    let mut is_known = true;
    for ip in named.into_iter().chain(usual) {
        let address = SocketAddr::new(ip, port);
        match holds_listener(roots, &process, address) {
            Some(true) => return Ok(address),
            Some(false) => {}
            None => is_known = false,
        }
    }
    Err(Error::NotListening {
        pid: server.pid,
        port,
        is_known,
    })
}

fn open_server(roots: &Roots, (pid, start_ticks): (u32, u64)) -> Result<Opened, Error> {
    match Opened::open(roots, pid) {
        Ok(Some(process)) if process.start_ticks == start_ticks => Ok(process),
        _ => Err(Error::Ended { pid }),
    }
}

#[derive(Clone, Debug)]
enum Target {
    Tcp(SocketAddr),
    Unix(String),
}

/// Connects to one server and to nobody else.
#[derive(Debug)]
struct ToServer {
    roots: Roots,
    /// The server's pid and start.
    server: (u32, u64),
    target: Target,
}

impl ToServer {
    /// A socket's path as the server itself sees it, in a container too, where that is not too long
    /// for the address of a socket.
    fn within_root(&self, path: &str) -> String {
        let root = self.roots.proc.join(self.server.0.to_string()).join("root");
        let within = format!("{}{path}", root.display());
        if within.len() < SOCKET_BYTES {
            within
        } else {
            path.to_owned()
        }
    }

    fn connect(&self, time: Option<Duration>) -> Result<Stream, ureq::Error> {
        let foreign = |error: Error| ureq::Error::Other(Box::new(error));
        match &self.target {
            Target::Tcp(address) => {
                let stream = match time {
                    Some(time) => TcpStream::connect_timeout(address, time)?,
                    None => TcpStream::connect(address)?,
                };
                // It held the port before; that it does still, now that a connection stands, leaves
                // nobody else at the other end of it.
                let process = open_server(&self.roots, self.server).map_err(foreign)?;
                let held = holds_listener(&self.roots, &process, *address);
                if held != Some(true) {
                    return Err(foreign(Error::NotListening {
                        pid: self.server.0,
                        port: address.port(),
                        is_known: held.is_some(),
                    }));
                }
                Ok(Stream::Tcp(stream))
            }
            Target::Unix(path) => {
                let within = self.within_root(path);
                let stream = connect_unix(&within, time).map_err(std::io::Error::from)?;
                // The process that listens, as the kernel noted it (unix(7), SO_PEERCRED); 0 where
                // it is of no namespace of ours.
                let peer = getsockopt(&stream, PeerCredentials).map_err(std::io::Error::from)?;
                let process = open_server(&self.roots, self.server).map_err(foreign)?;
                if u32::try_from(peer.pid()) != Ok(process.pid) {
                    return Err(foreign(Error::ForeignSocket { path: path.clone() }));
                }
                Ok(Stream::Unix(stream))
            }
        }
    }
}

fn connect_unix(path: &str, time: Option<Duration>) -> rustix::io::Result<UnixStream> {
    let socket = socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    // Also bounds how long a server that takes no connections is waited for.
    set_socket_timeout(&socket, rustix::net::sockopt::Timeout::Send, time)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket.into())
}

impl Connector for ToServer {
    type Out = Wire;

    fn connect(
        &self,
        details: &ConnectionDetails<'_>,
        _: Option<()>,
    ) -> Result<Option<Wire>, ureq::Error> {
        let time = details.timeout.not_zero().map(|time| *time);
        Ok(Some(Wire {
            stream: self.connect(time)?,
            buffers: LazyBuffers::new(
                details.config.input_buffer_size(),
                details.config.output_buffer_size(),
            ),
        }))
    }
}

/// Looks no names up: the address was found before.
#[derive(Debug)]
struct Fixed(SocketAddr);

impl Resolver for Fixed {
    fn resolve(
        &self,
        _: &Uri,
        _: &Config,
        _: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, ureq::Error> {
        let mut addresses = self.empty();
        addresses.push(self.0);
        Ok(addresses)
    }
}

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// A connection that stands.
struct Wire {
    stream: Stream,
    buffers: LazyBuffers,
}

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Its buffers hold the token.
        f.write_str("Wire(…)")
    }
}

impl Transport for Wire {
    fn buffers(&mut self) -> &mut dyn Buffers {
        &mut self.buffers
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), ureq::Error> {
        let time = left(timeout)?;
        let output = &self.buffers.output()[..amount];
        let written = match &mut self.stream {
            Stream::Tcp(stream) => {
                stream.set_write_timeout(time)?;
                stream.write_all(output)
            }
            Stream::Unix(stream) => {
                stream.set_write_timeout(time)?;
                stream.write_all(output)
            }
        };
        written.map_err(|error| of_io(error, timeout))
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, ureq::Error> {
        let time = left(timeout)?;
        let input = self.buffers.input_append_buf();
        let read = match &mut self.stream {
            Stream::Tcp(stream) => {
                stream.set_read_timeout(time)?;
                stream.read(input)
            }
            Stream::Unix(stream) => {
                stream.set_read_timeout(time)?;
                stream.read(input)
            }
        };
        let amount = read.map_err(|error| of_io(error, timeout))?;
        self.buffers.input_appended(amount);
        Ok(amount > 0)
    }

    fn is_open(&mut self) -> bool {
        // None is kept for another request.
        false
    }
}

fn left(timeout: NextTimeout) -> Result<Option<Duration>, ureq::Error> {
    if timeout.after.is_zero() {
        return Err(ureq::Error::Timeout(timeout.reason));
    }
    Ok(timeout.not_zero().map(|time| *time))
}

fn of_io(error: std::io::Error, timeout: NextTimeout) -> ureq::Error {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => ureq::Error::Timeout(timeout.reason),
        _ => error.into(),
    }
}

#[cfg(test)]
mod tests;
