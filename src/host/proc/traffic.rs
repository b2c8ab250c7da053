//! Counts the bytes transferred over TCP connections. The files in /proc do not include recv(2) and send(2), but the
//! kernel's socket diagnostics contain counts for each socket (sock_diag(7), `tcp_info` in `include/uapi/linux/tcp.h`).
//!
//! The kernel returns the sockets of the caller's network namespace. If gpumem may not enter the namespace of a
//! process, such as the container of another user, the count is unknown.

use std::os::fd::{AsFd as _, OwnedFd};
use std::thread;

use foldhash::HashMap;
use rustix::io::{self, Errno};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with,
};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::host::Roots;
use crate::host::proc::folder::Folder;
use crate::host::proc::sockets::{MAX_NAMESPACES, read_namespace, shares_network};

/// Time, in nanoseconds, for which the result for a namespace is valid. It is shorter than the usual time between two
/// visits to a process.
const VALID_NS: u64 = 20_000_000_000;

/// Maximum number of connections read in a namespace. Reading this many takes a fifth of a second. If there are more,
/// the traffic of all processes in the namespace is unknown.
const MAX_CONNECTIONS: usize = 128 << 10;

pub(in crate::host) type BySocket = HashMap<u64, u64>;

#[derive(Debug, Default)]
pub(in crate::host) struct Traffic {
    namespaces: HashMap<u64, (u64, io::Result<BySocket>)>,
}

#[derive(Debug, Default)]
pub(in crate::host) struct SocketBytes {
    last: BySocket,
    total: u64,
}

impl Traffic {
    /// Adds to `sum` the bytes that were transferred over a process's sockets since the last call, and returns the
    /// total. Returns `NOBUFS` if connections or namespaces exceed a limit, and another error if gpumem may not enter
    /// the namespace.
    pub(in crate::host) fn add(
        &mut self,
        sum: &mut SocketBytes,
        process: (&Roots, &Folder),
        inodes: &[u64],
        now_ns: u64,
    ) -> io::Result<u64> {
        if inodes.is_empty() {
            return Ok(sum.total);
        }
        let sockets = self.read(process, inodes, now_ns)?;
        for (inode, bytes) in &sockets {
            let last = sum.last.get(inode).copied().unwrap_or(0);
            sum.total = sum.total.saturating_add(bytes.saturating_sub(last));
        }
        sum.last = sockets;
        Ok(sum.total)
    }

    pub(in crate::host) fn read(
        &mut self,
        (roots, folder): (&Roots, &Folder),
        inodes: &[u64],
        now_ns: u64,
    ) -> io::Result<BySocket> {
        if inodes.is_empty() {
            return Ok(BySocket::default());
        }
        let namespace = read_namespace(folder, c"ns/net").ok_or(Errno::ACCESS)?;
        self.namespaces.retain(|_, (read_ns, _)| now_ns.saturating_sub(*read_ns) < VALID_NS);
        if self.namespaces.len() >= MAX_NAMESPACES && !self.namespaces.contains_key(&namespace) {
            return Err(Errno::NOBUFS);
        }
        let read = || (now_ns, read_within(roots, folder));
        let (_, by_socket) = self.namespaces.entry(namespace).or_insert_with(read);
        let by_socket = by_socket.as_ref().map_err(|errno| *errno)?;
        Ok(inodes.iter().filter_map(|inode| Some((*inode, *by_socket.get(inode)?))).collect())
    }
}

fn read_within(roots: &Roots, folder: &Folder) -> io::Result<BySocket> {
    if shares_network(roots, folder) == Some(true) {
        return read_table(MAX_CONNECTIONS);
    }
    let namespace: OwnedFd = folder.file(c"ns/net")?;
    let reading = move || {
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
        read_table(MAX_CONNECTIONS)
    };
    let thread = thread::Builder::new().name("network".to_owned()).spawn(reading);
    thread.map_err(|_| Errno::AGAIN)?.join().unwrap_or(Err(Errno::IO))
}

fn read_table(limit: usize) -> io::Result<BySocket> {
    let kind = SocketType::DGRAM;
    let socket =
        socket_with(AddressFamily::NETLINK, kind, SocketFlags::CLOEXEC, Some(netlink::SOCK_DIAG))?;
    let mut sockets = BySocket::default();
    for family in [AddressFamily::INET, AddressFamily::INET6] {
        send(&socket, &request(family), SendFlags::empty())?;
        let mut message = vec![0; 64 << 10];
        loop {
            let (_, length) = recv(&socket, message.as_mut_slice(), RecvFlags::empty())?;
            if !parse(&message[..length.min(message.len())], &mut sockets)? {
                break;
            }
            if sockets.len() > limit {
                return Err(Errno::NOBUFS);
            }
        }
    }
    Ok(sockets)
}

/// `SOCK_DIAG_BY_FAMILY` and other constants of `linux/netlink.h` and `linux/inet_diag.h`.
const BY_FAMILY: u16 = 20;
const ERROR: u16 = 2;
const DONE: u16 = 3;
const INFO: u16 = 2;
const HEADER_BYTES: usize = 16;
const SOCKET_BYTES: usize = 72;

/// Returns a request for all connections of a family with their `tcp_info`. It consists of `nlmsghdr` and
/// `inet_diag_req_v2`.
fn request(family: AddressFamily) -> [u8; 72] {
    const REQUEST_DUMP: u16 = 0x301;
    const TCP: u8 = 6;
    /// Set of the states `TCP_ESTABLISHED` and `TCP_CLOSE_WAIT`, in which connections are established or closed only
    /// by the peer.
    const CONNECTED: u32 = 1 << 1 | 1 << 8;
    let mut message = [0; 72];
    message[..4].copy_from_slice(&72u32.to_ne_bytes());
    message[4..6].copy_from_slice(&BY_FAMILY.to_ne_bytes());
    message[6..8].copy_from_slice(&REQUEST_DUMP.to_ne_bytes());
    message[16] = u8::try_from(family.as_raw()).unwrap_or(0);
    message[17] = TCP;
    message[18] = 1 << (INFO - 1);
    message[20..24].copy_from_slice(&CONNECTED.to_ne_bytes());
    message
}

fn parse(mut answers: &[u8], sockets: &mut BySocket) -> io::Result<bool> {
    while let Some((length, kind)) = u32_at(answers, 0).zip(u16_at(answers, 4)) {
        let length = length as usize;
        let Some(answer) = answers.get(HEADER_BYTES..length) else {
            return Err(Errno::BADMSG);
        };
        match kind {
            DONE => return Ok(false),
            ERROR => return Err(Errno::NOTSUP),
            BY_FAMILY => sockets.extend(parse_socket(answer)),
            _ => {}
        }
        answers = answers.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(true)
}

fn parse_socket(answer: &[u8]) -> Option<(u64, u64)> {
    let inode = u32_at(answer, SOCKET_BYTES - 4)?;
    let mut attributes = answer.get(SOCKET_BYTES..)?;
    while let Some((length, kind)) = u16_at(attributes, 0).zip(u16_at(attributes, 2)) {
        let length = usize::from(length);
        if kind == INFO {
            // Kernels before 4.1 lack these fields of `tcp_info`.
            let info = attributes.get(4..length)?;
            let bytes = u64_at(info, 120)?.checked_add(u64_at(info, 128)?)?;
            return Some((inode.into(), bytes));
        }
        attributes = attributes.get(length.max(4).next_multiple_of(4)..)?;
    }
    None
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd as _;

    use super::*;

    #[test]
    fn bytes_of_a_connection_are_counted_by_socket() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut receiver, _) = listener.accept().unwrap();
        let roots = Roots::default();
        let own_folder = Folder::own(&roots.proc).unwrap();
        let inode = |stream: &TcpStream| {
            let link = std::fs::read_link(format!("/proc/self/fd/{}", stream.as_raw_fd())).unwrap();
            let name = link.to_str().unwrap();
            name.strip_prefix("socket:[").unwrap().strip_suffix(']').unwrap().parse().unwrap()
        };
        let inodes: [u64; 2] = [inode(&sender), inode(&receiver)];
        let mut traffic = Traffic::default();
        let mut sums = [SocketBytes::default(), SocketBytes::default()];
        let mut carried = |now_ns| {
            let add = |index: usize| {
                traffic.add(&mut sums[index], (&roots, &own_folder), &inodes[index..=index], now_ns)
            };
            [0, 1].map(add).map(Result::unwrap)
        };
        // Sent bytes are counted when they are acknowledged. The first packet of a connection adds one byte.
        assert_eq!(carried(0), [1, 0]);
        let sent = [7; 100_000];
        sender.write_all(&sent[..60_000]).unwrap();
        receiver.read_exact(&mut [0; 60_000]).unwrap();
        assert_eq!(carried(VALID_NS / 2), [1, 0], "the cached table is used");
        assert_eq!(carried(VALID_NS)[1], 60_000);
        sender.write_all(&sent).unwrap();
        receiver.read_exact(&mut [0; 100_000]).unwrap();
        let [sent, received] = carried(2 * VALID_NS);
        assert_eq!(received, 160_000);
        assert!((60_001..=160_001).contains(&sent), "{sent}");
    }

    #[test]
    fn traffic_beyond_the_connection_limit_is_unknown() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        // The kernel returns about a hundred connections per message.
        let open = || TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let _open: Vec<_> = (0..300).map(|_| (open(), listener.accept().unwrap())).collect();
        assert_eq!(read_table(500), Err(Errno::NOBUFS));
        assert!(read_table(MAX_CONNECTIONS).unwrap().len() >= 600);
    }

    #[test]
    fn cut_or_inconsistent_answers_are_refused() {
        let mut answer = vec![0u8; 16 + SOCKET_BYTES + 4 + 136];
        let length = u32::try_from(answer.len()).unwrap();
        answer[..4].copy_from_slice(&length.to_ne_bytes());
        answer[4..6].copy_from_slice(&BY_FAMILY.to_ne_bytes());
        answer[16 + 68..16 + 72].copy_from_slice(&41u32.to_ne_bytes());
        answer[88..90].copy_from_slice(&140u16.to_ne_bytes());
        answer[90..92].copy_from_slice(&INFO.to_ne_bytes());
        answer[92 + 120] = 5;
        answer[92 + 128] = 6;
        let read = |bytes: &[u8]| {
            let mut sockets = BySocket::default();
            parse(bytes, &mut sockets).map(|more| (more, sockets.into_iter().collect::<Vec<_>>()))
        };
        assert_eq!(read(&answer), Ok((true, vec![(41, 11)])));
        for cut in 6..answer.len() {
            assert!(read(&answer[..cut]).is_err(), "cut to {cut}");
        }
        for length in [0u16, 1, 3, 139, 141, u16::MAX] {
            answer[88..90].copy_from_slice(&length.to_ne_bytes());
            assert!(read(&answer).is_ok_and(|(_, sockets)| sockets.is_empty()), "{length}");
        }
        answer[..4].copy_from_slice(&3u32.to_ne_bytes());
        assert!(read(&answer).is_err());
    }
}
