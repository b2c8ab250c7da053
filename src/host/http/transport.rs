//! Connects to a server and verifies that the connection reaches it.
//!
//! Connections use only loopback addresses or the server's Unix socket. The server's process must hold the listening
//! socket. For TCP, this is checked both before and after connecting. gpumem therefore sends nothing to another
//! process. For HTTPS servers, the check replaces a check of the certificate, which most of these servers have signed
//! themselves.
//!
//! A server in a container can have a separate loopback interface. gpumem then starts a thread that enters the
//! server's network namespace and connects. Other threads remain in gpumem's namespace.

use std::fmt;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::fd::{AsFd as _, OwnedFd};
use std::thread;
use std::time::Duration;

use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv,
    send, socket_with,
};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{
    Buffers, ConnectionDetails, Connector, LazyBuffers, NextTimeout, Transport,
};

use super::{Endpoint, HttpError, Listener};
use crate::host::Roots;
use crate::host::proc::opened_process::OpenedProcess;
use crate::host::proc::sockets::{holds_listener, shares_network};
use crate::units::system_message;

const SOCKET_BYTES: usize = 108;

/// Returns the loopback address on which the server's process listens, and whether the process is in another network
/// namespace.
fn find_address(
    roots: &Roots,
    server: &Listener,
    host: &str,
    port: u16,
) -> Result<(SocketAddr, bool), HttpError> {
    let process = open_server(roots, (server.pid, server.start_ticks))?;
    let is_elsewhere = match shares_network(roots, &process.folder) {
        Some(shares) => !shares,
        None => {
            return Err(HttpError::NotListening { pid: server.pid, port, is_known: false });
        }
    };
    let named = host.parse().ok().filter(IpAddr::is_loopback);
    let usual = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
    let mut is_known = true;
    for ip in named.into_iter().chain(usual) {
        let address = SocketAddr::new(ip, port);
        match holds_listener(roots, &process.folder, address) {
            Some(true) => return Ok((address, is_elsewhere)),
            Some(false) => {}
            None => is_known = false,
        }
    }
    Err(HttpError::NotListening { pid: server.pid, port, is_known })
}

fn open_server(roots: &Roots, (pid, start_ticks): (u32, u64)) -> Result<OpenedProcess, HttpError> {
    match OpenedProcess::open(roots, pid) {
        Ok(Some(process)) if process.start_ticks == start_ticks => Ok(process),
        _ => Err(HttpError::Ended { pid }),
    }
}

#[derive(Clone, Debug)]
enum RequestTarget {
    Tcp { address: SocketAddr, is_elsewhere: bool },
    Unix(String),
}

#[derive(Clone, Debug)]
pub struct ToServer {
    roots: Roots,
    server: (u32, u64),
    target: RequestTarget,
}

impl ToServer {
    pub fn find(roots: &Roots, server: &Listener) -> Result<Self, HttpError> {
        let target = match &server.endpoint {
            Endpoint::Tcp { host, port } => {
                let (address, is_elsewhere) = find_address(roots, server, host, *port)?;
                RequestTarget::Tcp { address, is_elsewhere }
            }
            Endpoint::Unix(path) => RequestTarget::Unix(path.clone()),
        };
        Ok(Self { roots: roots.clone(), server: (server.pid, server.start_ticks), target })
    }

    /// Returns the `Host` header of requests. Jupyter and Ollama accept only local names.
    pub fn host(&self) -> String {
        match &self.target {
            RequestTarget::Tcp { address, .. } => address.to_string(),
            RequestTarget::Unix(_) => "localhost".to_owned(),
        }
    }

    /// Returns the path of the socket through the root directory of the server's process, so that it also works for a
    /// container. Returns `path` itself if the result would be too long for a socket address.
    fn within_root(&self, path: &str) -> String {
        let root = self.roots.proc.join(self.server.0.to_string()).join("root");
        let within = format!("{}{path}", root.display());
        if within.len() < SOCKET_BYTES { within } else { path.to_owned() }
    }

    pub(super) fn open(&self, time: Option<Duration>) -> Result<Stream, ureq::Error> {
        let foreign = |error: HttpError| ureq::Error::Other(Box::new(error));
        match &self.target {
            RequestTarget::Tcp { address, is_elsewhere } => {
                let stream = if *is_elsewhere {
                    let process = open_server(&self.roots, self.server).map_err(foreign)?;
                    connect_within(&process, *address, time).map_err(foreign)?
                } else {
                    connect_tcp(*address, time)?
                };
                // The server held the port before connecting. If it still holds the port, it must be the process that
                // accepted the connection.
                let process = open_server(&self.roots, self.server).map_err(foreign)?;
                let is_still = shares_network(&self.roots, &process.folder) != Some(*is_elsewhere);
                let holds_port = holds_listener(&self.roots, &process.folder, *address)
                    .map(|holds| holds && is_still);
                if holds_port != Some(true) {
                    return Err(foreign(HttpError::NotListening {
                        pid: self.server.0,
                        port: address.port(),
                        is_known: holds_port.is_some(),
                    }));
                }
                Ok(Stream(stream.into()))
            }
            RequestTarget::Unix(path) => {
                let within = self.within_root(path);
                let stream = connect_unix(&within, time).map_err(io::Error::from)?;
                // The kernel reports the pid of the process that listens on the socket (unix(7), `SO_PEERCRED`). The
                // pid is 0 if that process is outside gpumem's pid namespace.
                let peer = getsockopt(&stream, PeerCredentials).map_err(io::Error::from)?;
                let process = open_server(&self.roots, self.server).map_err(foreign)?;
                if u32::try_from(peer.pid()) != Ok(process.pid) {
                    return Err(foreign(HttpError::ForeignSocket { path: path.clone() }));
                }
                Ok(Stream(stream))
            }
        }
    }
}

fn connect_tcp(address: SocketAddr, time: Option<Duration>) -> io::Result<TcpStream> {
    match time {
        Some(time) => TcpStream::connect_timeout(&address, time),
        None => TcpStream::connect(address),
    }
}

/// Connects on a separate thread that enters the network namespace of a process (setns(2)).
fn connect_within(
    process: &OpenedProcess,
    address: SocketAddr,
    time: Option<Duration>,
) -> Result<TcpStream, HttpError> {
    let network = |errno| HttpError::Network { pid: process.pid, errno };
    let namespace: OwnedFd = process.folder.file(c"ns/net").map_err(network)?;
    let connecting = move || {
        let kind = LinkNameSpaceType::Network;
        move_into_link_name_space(namespace.as_fd(), Some(kind))
            .map(|()| connect_tcp(address, time))
    };
    let failed = |why: String| HttpError::Failed { why };
    let thread = thread::Builder::new()
        .name("server-network".to_owned())
        .spawn(connecting)
        .map_err(|error| failed(system_message(&error)))?;
    let Ok(connected) = thread.join() else {
        return Err(failed("its thread has failed".to_owned()));
    };
    let connected = connected.map_err(network)?;
    connected.map_err(|error| failed(system_message(&error)))
}

fn connect_unix(path: &str, time: Option<Duration>) -> rustix::io::Result<OwnedFd> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // The timeout also applies to connecting, which blocks while the server's queue is full.
    set_socket_timeout(&socket, Timeout::Send, time)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

impl Connector for ToServer {
    type Out = BufferedStream;

    fn connect(
        &self,
        details: &ConnectionDetails<'_>,
        _: Option<()>,
    ) -> Result<Option<BufferedStream>, ureq::Error> {
        let time = details.timeout.not_zero().map(|time| *time);
        Ok(Some(BufferedStream {
            stream: self.open(time)?,
            buffers: LazyBuffers::new(
                details.config.input_buffer_size(),
                details.config.output_buffer_size(),
            ),
        }))
    }
}

impl Resolver for ToServer {
    fn resolve(
        &self,
        _: &Uri,
        _: &Config,
        _: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, ureq::Error> {
        let mut addresses = self.empty();
        addresses.push(match &self.target {
            RequestTarget::Tcp { address, .. } => *address,
            RequestTarget::Unix(_) => SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
        });
        Ok(addresses)
    }
}

#[derive(Debug)]
pub struct Stream(pub(in crate::host) OwnedFd);

impl Stream {
    pub fn write(&mut self, output: &[u8], time: Option<Duration>) -> io::Result<usize> {
        set_socket_timeout(&self.0, Timeout::Send, time)?;
        Ok(send(&self.0, output, SendFlags::NOSIGNAL)?)
    }

    pub fn read(&mut self, input: &mut [u8], time: Option<Duration>) -> io::Result<usize> {
        set_socket_timeout(&self.0, Timeout::Recv, time)?;
        Ok(recv(&self.0, input, RecvFlags::empty())?.0)
    }
}

pub struct BufferedStream {
    stream: Stream,
    buffers: LazyBuffers,
}

impl fmt::Debug for BufferedStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The buffers contain the token.
        f.write_str("BufferedStream(…)")
    }
}

impl Transport for BufferedStream {
    fn buffers(&mut self) -> &mut dyn Buffers {
        &mut self.buffers
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), ureq::Error> {
        let time = time_left(timeout)?;
        let mut output = &self.buffers.output()[..amount];
        while !output.is_empty() {
            match self.stream.write(output, time) {
                Ok(0) => return Err(io::Error::from(ErrorKind::WriteZero).into()),
                Ok(written) => output = &output[written..],
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(to_ureq_error(error, timeout)),
            }
        }
        Ok(())
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, ureq::Error> {
        let time = time_left(timeout)?;
        let input = self.buffers.input_append_buf();
        let read = self.stream.read(input, time);
        let amount = read.map_err(|error| to_ureq_error(error, timeout))?;
        self.buffers.input_appended(amount);
        Ok(amount > 0)
    }

    fn is_open(&mut self) -> bool {
        false
    }
}

fn time_left(timeout: NextTimeout) -> Result<Option<Duration>, ureq::Error> {
    if timeout.after.is_zero() {
        return Err(ureq::Error::Timeout(timeout.reason));
    }
    Ok(timeout.not_zero().map(|time| *time))
}

fn to_ureq_error(error: io::Error, timeout: NextTimeout) -> ureq::Error {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => ureq::Error::Timeout(timeout.reason),
        _ => error.into(),
    }
}
