//! Whether it is a given process that would answer at an address.
//!
//! A runtime file may be stale and its port another's by now. Nothing is said to a port before the
//! process that the file is about has been seen to hold it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::super::Roots;
use super::process::Opened;

/// How much of a table of sockets is read; those that listen come first in it
/// (Linux: `net/ipv4/tcp_ipv4.c`, `tcp_seq_start`).
const TABLE_BYTES: usize = 4 << 20;

/// The state of a socket that listens (`TCP_LISTEN` of Linux's `include/net/tcp_states.h`).
const LISTEN: &str = "0A";

/// A socket that listens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Listening {
    address: SocketAddr,
    inode: u64,
}

/// Whether a connection to `address`, made from here, is taken by a socket of the process's. `None`
/// where that cannot be told.
pub fn holds_listener(roots: &Roots, process: &Opened, address: SocketAddr) -> Option<bool> {
    let own = std::fs::read_link(roots.proc.join("self/ns/net")).ok()?;
    if process.link(c"ns/net")? != own.to_str()? {
        return Some(false);
    }
    let table = if address.is_ipv4() {
        c"net/tcp"
    } else {
        c"net/tcp6"
    };
    let mut content = Vec::new();
    process.folder.read(table, &mut content, TABLE_BYTES).ok()?;
    let listening = parse_listening(&content);
    let takers = takers(&listening, address);
    if takers.is_empty() {
        return (content.len() < TABLE_BYTES).then_some(false);
    }
    let held = read_sockets(process)?;
    Some(takers.iter().all(|taker| held.contains(&taker.inode)))
}

/// Those that take connections to an address: bound to it, else to all addresses.
fn takers(listening: &[Listening], address: SocketAddr) -> Vec<Listening> {
    let with = |matches: &dyn Fn(IpAddr) -> bool| -> Vec<Listening> {
        listening
            .iter()
            .filter(|it| it.address.port() == address.port() && matches(it.address.ip()))
            .copied()
            .collect()
    };
    let exact = with(&|ip| ip == address.ip());
    if exact.is_empty() {
        with(&|ip| ip.is_unspecified())
    } else {
        exact
    }
}

fn parse_listening(table: &[u8]) -> Vec<Listening> {
    let text = String::from_utf8_lossy(table);
    text.lines().skip(1).filter_map(parse_line).collect()
}

fn parse_line(line: &str) -> Option<Listening> {
    let mut fields = line.split_ascii_whitespace();
    let address = parse_address(fields.nth(1)?)?;
    if fields.nth(1)? != LISTEN {
        return None;
    }
    let inode = fields.nth(5)?.parse().ok()?;
    Some(Listening { address, inode })
}

/// `0100007F:22B8`: words of the address as this machine holds them in memory, and the port.
fn parse_address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |at: usize| {
        Some(
            u32::from_str_radix(ip.get(at..at + 8)?, 16)
                .ok()?
                .to_ne_bytes(),
        )
    };
    let ip = match ip.len() {
        8 => IpAddr::V4(Ipv4Addr::from(word(0)?)),
        32 => {
            let words = [word(0)?, word(8)?, word(16)?, word(24)?];
            let bytes: [u8; 16] = words.concat().try_into().ok()?;
            IpAddr::V6(Ipv6Addr::from(bytes))
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

/// The inodes of the sockets that a process holds; `None` where they may not be read.
fn read_sockets(process: &Opened) -> Option<Vec<u64>> {
    let descriptors = process.folder.folder(c"fd").ok()?;
    let mut sockets = Vec::new();
    descriptors
        .names(|name| {
            let inode = descriptors.link(name, parse_socket);
            sockets.extend(inode.ok().flatten());
            true
        })
        .ok()?;
    Some(sockets)
}

/// `socket:[4711]`.
fn parse_socket(target: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(target).ok()?;
    text.strip_prefix("socket:[")?
        .strip_suffix(']')?
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_table_is_read_as_linux_writes_it() {
        let word = |bytes: [u8; 4]| format!("{:08X}", u32::from_ne_bytes(bytes));
        let any6 = "0".repeat(32);
        let table = format!(
            "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n   \
             0: {}:22B8 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 4711 1 0 100 0 0 10 0\n   \
             1: {}:22B8 {}:1F90 01 00000000:00000000 00:00000000 00000000  1000        0 4712 1 0\n   \
             2: {any6}:22B9 {any6}:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4713 1 0\n\
             torn 0",
            word([127, 0, 0, 1]),
            word([127, 0, 0, 1]),
            word([10, 0, 0, 1]),
        );
        let listening = parse_listening(table.as_bytes());
        let expected = [("127.0.0.1:8888", 4711), ("[::]:8889", 4713)];
        let expected = expected.map(|(address, inode)| Listening {
            address: address.parse().unwrap(),
            inode,
        });
        assert_eq!(listening, expected);
    }

    #[test]
    fn who_is_bound_to_the_very_address_goes_before_who_is_bound_to_all() {
        let listening = |address: &str, inode| Listening {
            address: address.parse().unwrap(),
            inode,
        };
        let all = listening("0.0.0.0:80", 1);
        let stranger = listening("127.0.0.1:80", 2);
        let target = "127.0.0.1:80".parse().unwrap();
        assert_eq!(takers(&[all, stranger], target), [stranger]);
        assert_eq!(takers(&[all], target), [all]);
        assert_eq!(takers(&[listening("0.0.0.0:81", 1)], target), []);
    }

    #[test]
    fn this_process_holds_what_it_listens_on_and_nothing_else() {
        let roots = Roots::default();
        let own = Opened::open(&roots, std::process::id()).unwrap().unwrap();
        for bound in ["127.0.0.1:0", "0.0.0.0:0"] {
            let listener = TcpListener::bind(bound).unwrap();
            let port = listener.local_addr().unwrap().port();
            let target = SocketAddr::from(([127, 0, 0, 1], port));
            assert_eq!(holds_listener(&roots, &own, target), Some(true), "{bound}");
            // Whose socket it is decides, not that there is one.
            let parent = own.ppid.and_then(|pid| Opened::open(&roots, pid).unwrap());
            let held = parent.and_then(|parent| holds_listener(&roots, &parent, target));
            assert_ne!(held, Some(true), "{bound}");
            drop(listener);
            assert_eq!(holds_listener(&roots, &own, target), Some(false), "{bound}");
        }
    }
}
