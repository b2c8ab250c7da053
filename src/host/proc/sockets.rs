//! Finds listening processes by comparing the sockets that a process holds with the tables in `/proc/PID/net`, which
//! contain all sockets of a network namespace.
//!
//! A line in the table of Unix sockets ends with a path, which can contain a newline and thus a forged line. The table
//! of Unix sockets therefore proves nothing, and [`holds_listener`], whose result must be certain, reads only the TCP
//! tables. After connecting to a Unix socket, gpumem gets the pid of the listening process from the kernel
//! (`SO_PEERCRED`).

use std::collections::{HashMap, HashSet};
use std::ffi::CStr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::Range;
use std::sync::Arc;

use rustix::io::{self, Errno};

use crate::host::gpu::gpu_files::{Sockets, read_held};
use crate::host::proc::folder::{Folder, if_readable};
use crate::host::{Roots, parse_number};

const TABLE_BYTES: usize = 1 << 20;

/// Time, in nanoseconds, for which a table is valid. To produce a table, the kernel reads a whole hash table even if
/// there are few connections. On a machine with 24 GiB of memory, this took 7 ms for both TCP tables. Tables expire
/// because the number of a namespace can be reused.
const VALID_NS: u64 = 60_000_000_000;

/// Maximum number of network namespaces whose tables are kept. Any user can create namespaces, and reading the tables
/// of each takes time. If there are more, the listening addresses of processes in the others are unknown.
pub(in crate::host) const MAX_NAMESPACES: usize = 256;

const MOST_LISTED: usize = 64;

/// Maximum number of connections kept from a table. If there are more, and no kept connection is from a client, it is
/// unknown whether a process has clients.
const MOST_CONNECTIONS: usize = 2_048;

/// Lowest port that the kernel assigns to outgoing connections by default (`ip_local_port_range`).
const FIRST_CHOSEN_PORT: u16 = 32_768;

pub(in crate::host) fn shares_network(roots: &Roots, folder: &Folder) -> Option<bool> {
    let own = Folder::own(&roots.proc).ok()?;
    Some(read_namespace(folder, c"ns/net")? == read_namespace(&own, c"ns/net")?)
}

/// Returns whether a process holds the socket that a connection to `address` from its network namespace would reach.
/// Must be called before a secret is sent, and again after connecting. Returns `Some(false)` if the connection would
/// reach another process or none. Returns `None` if the file descriptors cannot be read or if there are too many
/// sockets.
pub(in crate::host) fn holds_listener(
    roots: &Roots,
    folder: &Folder,
    address: SocketAddr,
) -> Option<bool> {
    let mut takers: Vec<(AddressMatch, u64)> = Vec::new();
    for table in &TABLES[TCP] {
        let Inodes { places, .. } = Inodes::read(*table, folder).ok().filter(|it| it.is_whole)?;
        let reaching = places.iter().map(|(inode, bound)| (bound.reach(address), *inode));
        takers.extend(reaching.filter_map(|(reach, inode)| Some((reach?, inode))));
    }
    // The kernel prefers sockets that are bound to the exact address (`__inet_lookup_listener` in
    // `net/ipv4/inet_hashtables.c`).
    if takers.iter().any(|(reach, _)| *reach == AddressMatch::Exact) {
        takers.retain(|(reach, _)| *reach == AddressMatch::Exact);
    }
    let is_reached = takers.iter().any(|(reach, _)| *reach != AddressMatch::Perhaps);
    let sockets = read_held(folder, &roots.dev).ok()?.sockets?;
    if takers.iter().all(|(_, inode)| sockets.inodes.contains(inode)) {
        Some(is_reached)
    } else {
        (!sockets.is_partial).then_some(false)
    }
}

/// Counts the established connections to the ports on which a process listens. Returns `None` if the number is unknown.
pub(in crate::host) fn count_connections(roots: &Roots, folder: &Folder) -> Option<usize> {
    let held = read_held(folder, &roots.dev).ok()?.sockets.filter(|held| !held.is_partial)?;
    let mut count = 0;
    for table in &TABLES[TCP] {
        let table = Inodes::read(*table, folder).ok().filter(|it| it.has_all_connections)?;
        let own = table.places.iter().filter(|(inode, _)| held.inodes.contains(inode));
        let ports: Vec<u16> = own.filter_map(|(_, bound)| bound.port()).collect();
        let connections = table.connections.iter();
        let is_own = |it: &&Connection| it.is_established && ports.contains(&it.local.port());
        count += connections.filter(is_own).count();
    }
    Some(count)
}

#[derive(Debug, Default)]
pub(in crate::host) struct Listening {
    now_ns: u64,
    namespaces: HashMap<u64, Tables>,
}

#[derive(Debug)]
struct Tables {
    read_ns: u64,
    tables: [Option<Inodes>; 3],
}

#[derive(Debug)]
struct Inodes {
    places: Vec<(u64, ListenAddress)>,
    is_whole: bool,
    connections: Vec<Connection>,
    has_all_connections: bool,
}

/// TCP connection. The inode number is 0 if no process holds the socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Connection {
    local: SocketAddr,
    remote: SocketAddr,
    inode: u64,
    is_established: bool,
}

/// Address of a listening socket. Addresses are reported in this order, because services usually use low ports, and
/// libraries use high ports or Unix sockets for internal purposes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum ListenAddress {
    Tcp(u16, IpAddr),
    /// Path, or an empty string if the socket has no name. An abstract name starts with `@`.
    Unix(Arc<str>),
}

impl ListenAddress {
    fn port(&self) -> Option<u16> {
        match self {
            Self::Tcp(port, _) => Some(*port),
            Self::Unix(_) => None,
        }
    }

    fn reach(&self, wanted: SocketAddr) -> Option<AddressMatch> {
        let bound = match self {
            Self::Tcp(port, address) if *port == wanted.port() => address,
            _ => return None,
        };
        if bound.to_canonical() == wanted.ip().to_canonical() {
            return Some(AddressMatch::Exact);
        }
        match (bound.is_unspecified(), bound.is_ipv4(), wanted.is_ipv4()) {
            (true, true, true) | (true, false, false) => Some(AddressMatch::Any),
            (true, false, true) => Some(AddressMatch::Perhaps),
            _ => None,
        }
    }

    fn text(&self) -> Arc<str> {
        match self {
            Self::Tcp(port, address) => format!("tcp:{}", SocketAddr::new(*address, *port)).into(),
            Self::Unix(name) => format!("unix:{name}").into(),
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(in crate::host) struct Listens {
    pub at_all: Option<bool>,
    pub on: Option<Arc<[Arc<str>]>>,
}

impl Listening {
    pub(in crate::host) fn begin(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
        self.namespaces.retain(|_, known| now_ns.saturating_sub(known.read_ns) < VALID_NS);
    }

    pub(in crate::host) fn read(
        &mut self,
        folder: &Folder,
        sockets: Option<&Sockets>,
    ) -> io::Result<Listens> {
        let Some(sockets) = sockets else {
            return Ok(Listens::default());
        };
        let mut is_complete = !sockets.is_partial;
        let mut bound: Vec<&ListenAddress> = Vec::new();
        if !sockets.inodes.is_empty() {
            let Some(namespace) = read_namespace(folder, c"ns/net") else {
                return Ok(Listens::default());
            };
            let is_full = self.namespaces.len() >= MAX_NAMESPACES;
            if is_full && !self.namespaces.contains_key(&namespace) {
                return Ok(Listens::default());
            }
            let known = self
                .namespaces
                .entry(namespace)
                .or_insert(Tables { read_ns: self.now_ns, tables: [None, None, None] });
            for (table, known) in TABLES.into_iter().zip(&mut known.tables) {
                if known.is_none() {
                    *known = if_readable(Inodes::read(table, folder))?;
                }
                let Some(Inodes { places, is_whole, .. }) = known else {
                    is_complete = false;
                    continue;
                };
                bound.extend(sockets.inodes.iter().filter_map(|inode| {
                    let at = places.binary_search_by_key(inode, |(inode, _)| *inode);
                    Some(&places.get(at.ok()?)?.1)
                }));
                is_complete &= *is_whole;
            }
        }
        bound.sort_unstable();
        bound.dedup();
        Ok(Listens {
            at_all: (is_complete || !bound.is_empty()).then_some(!bound.is_empty()),
            on: (!bound.is_empty())
                .then(|| bound.iter().take(MOST_LISTED).map(|it| it.text()).collect()),
        })
    }

    /// Returns the TCP addresses in `addresses` that have a client. A client is a process outside the job
    /// that is connected or recently was. `folder` belongs to the process that listens at the addresses, and `job`
    /// contains the sockets of all processes of the job. Uses the tables read by [`read`](Self::read). Returns `None`
    /// without these tables, or if no client was found and there are too many connections to know.
    pub(in crate::host) fn clients(
        &self,
        folder: &Folder,
        addresses: &[Arc<str>],
        job: &HashSet<u64>,
    ) -> Option<Vec<Arc<str>>> {
        let tables = &self.namespaces.get(&read_namespace(folder, c"ns/net")?)?.tables;
        let mut inodes = HashMap::new();
        let mut has_all = true;
        for table in &tables[TCP] {
            let table = table.as_ref()?;
            let ends = table.connections.iter().map(|it| ((it.local, it.remote), it.inode));
            inodes.extend(ends);
            has_all &= table.has_all_connections;
        }
        // The table contains both ends of a connection within the machine.
        let is_of_the_job = |connection: &Connection| {
            let other = inodes.get(&(connection.remote, connection.local));
            other.is_some_and(|inode| job.contains(inode))
        };
        let has_client = |address: &SocketAddr| {
            let connections = tables[TCP].iter().flatten().flat_map(|table| &table.connections);
            connections.into_iter().any(|connection| {
                let is_it = |end: SocketAddr| {
                    end.port() == address.port()
                        && (address.ip().is_unspecified()
                            || end.ip() == address.ip().to_canonical())
                };
                if connection.inode != 0 {
                    return is_it(connection.local) && !is_of_the_job(connection);
                }
                // The kernel lists a closed connection for a minute, but not the process that held its socket.
                let is_local = connection.remote.ip().is_loopback();
                (is_it(connection.local) || is_it(connection.remote))
                    && (address.port() < FIRST_CHOSEN_PORT || !is_local)
            })
        };
        let with_clients = addresses.iter().filter(|address| {
            let address = address.strip_prefix("tcp:").and_then(|address| address.parse().ok());
            address.is_some_and(|address| has_client(&address))
        });
        let with_clients: Vec<Arc<str>> = with_clients.cloned().collect();
        (has_all || !with_clients.is_empty()).then_some(with_clients)
    }

    /// Returns the addresses of listening sockets on this machine to which one of `sockets` is connected. Uses the
    /// tables that [`read`](Self::read) has filled for the network namespace of `folder`. Returns `None` without
    /// tables, or if there are too many connections.
    pub(in crate::host) fn servers(
        &self,
        folder: &Folder,
        sockets: &[u64],
    ) -> Option<Vec<Arc<str>>> {
        if sockets.is_empty() {
            return Some(Vec::new());
        }
        let tables = &self.namespaces.get(&read_namespace(folder, c"ns/net")?)?.tables;
        let tables: Vec<&Inodes> = tables[TCP].iter().flatten().collect();
        if !tables.iter().all(|table| table.has_all_connections) {
            return None;
        }
        let sockets: HashSet<u64> = sockets.iter().copied().collect();
        let connections = || tables.iter().flat_map(|table| &table.connections);
        // The table contains both ends of a connection within the machine.
        let is_accepted = |own: &Connection| {
            connections().any(|end| (end.remote, end.local) == (own.local, own.remote))
        };
        let own = connections().filter(|own| sockets.contains(&own.inode) && is_accepted(own));
        let places = || tables.iter().flat_map(|table| &table.places);
        let servers =
            own.flat_map(|own| places().filter(|(_, bound)| bound.reach(own.remote).is_some()));
        let mut servers: Vec<Arc<str>> = servers.map(|(_, bound)| bound.text()).collect();
        servers.sort_unstable();
        servers.dedup();
        servers.truncate(MOST_LISTED);
        Some(servers)
    }
}

pub(in crate::host) fn read_namespace(folder: &Folder, name: &CStr) -> Option<u64> {
    let number = folder.link(name, |target| {
        let start = target.iter().position(|&byte| byte == b'[')?;
        parse_number(target[start + 1..].strip_suffix(b"]")?)
    });
    number.ok()?
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum AddressMatch {
    Exact,
    /// The socket is bound to all addresses of the wanted address's IP version.
    Any,
    /// The socket is bound to all IPv6 addresses. Unless `IPV6_V6ONLY` is set, which the table does not show, it also
    /// accepts IPv4 connections.
    Perhaps,
}

#[derive(PartialEq, Debug)]
enum SocketLine {
    Listens(u64, ListenAddress),
    /// A pending TCP connection, which older kernels list among the listening sockets, or a Unix socket that accepts no
    /// stream connections.
    Other,
    /// An open or closed connection. The kernel lists connections after all listening sockets (`tcp_get_idx` in
    /// `net/ipv4/tcp_ipv4.c`).
    Connected(Connection),
}

type SocketTable = (&'static CStr, fn(&[u8]) -> Option<SocketLine>);

/// The table of Unix sockets is first, because reading it takes the least time.
const TABLES: [SocketTable; 3] =
    [(c"net/unix", parse_unix), (c"net/tcp", parse_tcp), (c"net/tcp6", parse_tcp)];
const TCP: Range<usize> = 1..3;

impl Inodes {
    fn read((name, parse): SocketTable, folder: &Folder) -> io::Result<Self> {
        let mut content = Vec::new();
        match folder.read_list(name, &mut content, TABLE_BYTES) {
            // If the process still exists, a missing table means that the kernel lacks the protocol.
            Err(Errno::NOENT) if read_namespace(folder, c"ns/net").is_some() => {}
            read => read?,
        }
        let mut is_whole = content.len() < TABLE_BYTES;
        let mut has_all_connections = is_whole;
        let mut places = Vec::new();
        let mut ports = HashSet::new();
        let mut connections = Vec::new();
        for line in content.split_inclusive(|&byte| byte == b'\n') {
            match line.strip_suffix(b"\n").and_then(|line| parse(line.trim_ascii_end())) {
                Some(SocketLine::Listens(inode, bound)) => {
                    ports.extend(bound.port());
                    places.push((inode, bound));
                }
                Some(SocketLine::Connected(connection)) => {
                    is_whole = true;
                    let Connection { local, remote, .. } = connection;
                    if !ports.contains(&local.port()) && !ports.contains(&remote.port()) {
                        continue;
                    }
                    if connections.len() == MOST_CONNECTIONS {
                        has_all_connections = false;
                        break;
                    }
                    connections.push(connection);
                }
                Some(SocketLine::Other) | None => {}
            }
        }
        places.sort_unstable();
        Ok(Self { places, is_whole, connections, has_all_connections })
    }
}

/// Parses a line such as `  0: 0100007F:22B8 00000000:0000 0A 00000000:00000000 00:00000000 00000000 1000 0 8841 1
/// …`.
fn parse_tcp(line: &[u8]) -> Option<SocketLine> {
    const ESTABLISHED: u8 = 1;
    const SYN_RECEIVED: u8 = 3;
    const LISTEN: u8 = 10;
    let line = std::str::from_utf8(line).ok()?;
    let mut fields = line.split_ascii_whitespace();
    let local = parse_socket_address(fields.nth(1)?)?;
    let remote = fields.next()?;
    let state = u8::from_str_radix(fields.next()?, 16).ok()?;
    let inode = fields.nth(5)?.parse().ok()?;
    Some(match state {
        LISTEN => SocketLine::Listens(inode, ListenAddress::Tcp(local.port(), local.ip())),
        SYN_RECEIVED => SocketLine::Other,
        _ => {
            let canonical = |at: SocketAddr| SocketAddr::new(at.ip().to_canonical(), at.port());
            let (local, remote) = (canonical(local), canonical(parse_socket_address(remote)?));
            let is_established = state == ESTABLISHED;
            SocketLine::Connected(Connection { local, remote, inode, is_established })
        }
    })
}

fn parse_socket_address(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.split_once(':')?;
    Some(SocketAddr::new(parse_address(address)?, u16::from_str_radix(port, 16).ok()?))
}

/// Parses an address in the kernel's format, which consists of groups of four bytes. Each group is a hexadecimal
/// number in native byte order.
fn parse_address(hexadecimal: &str) -> Option<IpAddr> {
    let word = |at: usize| {
        let digits = hexadecimal.get(at * 8..at * 8 + 8)?;
        Some(u32::from_str_radix(digits, 16).ok()?.to_ne_bytes())
    };
    match hexadecimal.len() {
        8 => Some(Ipv4Addr::from(word(0)?).into()),
        32 => {
            let mut bytes = [0; 16];
            for (at, four) in bytes.chunks_exact_mut(4).enumerate() {
                four.copy_from_slice(&word(at)?);
            }
            Some(Ipv6Addr::from(bytes).into())
        }
        _ => None,
    }
}

/// Parses a line such as `ffff8ef7c0a51000: 00000002 00000000 00010000 0001 01 20531 /run/systemd/private`.
///
/// Only stream sockets count, because the CUDA library listens on a seqpacket socket (`@cuda-uvmfd-…`) in each process
/// that has a CUDA context.
fn parse_unix(line: &[u8]) -> Option<SocketLine> {
    /// Flag `__SO_ACCEPTCON` of a listening socket (`include/uapi/linux/net.h`).
    const ACCEPTS: u32 = 1 << 16;
    const STREAM: &str = "0001";
    let mut rest = line;
    let mut field = || {
        let text = rest.trim_ascii_start();
        let end = text.iter().position(|&byte| byte == b' ');
        let (field, after) = text.split_at(end.unwrap_or(text.len()));
        rest = after;
        std::str::from_utf8(field).ok()
    };
    if !field()?.ends_with(':') {
        return None;
    }
    let flags = (field()?, field()?, field()?).2;
    let flags = u32::from_str_radix(flags, 16).ok()?;
    let kind = field()?;
    let inode = (field()?, field()?).1.parse().ok()?;
    let name = rest.strip_prefix(b" ").unwrap_or(rest);
    if flags & ACCEPTS == 0 || kind != STREAM {
        return Some(SocketLine::Other);
    }
    Some(SocketLine::Listens(inode, ListenAddress::Unix(String::from_utf8_lossy(name).into())))
}

#[cfg(test)]
mod tests;
