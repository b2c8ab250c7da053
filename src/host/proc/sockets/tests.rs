//! Tests with lines of the kernel's tables, with a fake /proc, and with real sockets.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::fs::symlink;
use std::process::{Command, Stdio};

use super::*;
use crate::host::testing::FakeProc;

fn listens(line: Option<SocketLine>) -> Option<(u64, ListenAddress)> {
    match line {
        Some(SocketLine::Listens(inode, bound)) => Some((inode, bound)),
        _ => None,
    }
}

/// Formats an address in native byte order, as the kernel does.
fn word(bytes: [u8; 4]) -> String {
    format!("{:08X}", u32::from_ne_bytes(bytes))
}

fn tcp(address: &str, port: u16, state: &str, inode: u64) -> String {
    format!(
        "   0: {address}:{port:04X} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000  1000  \
         0 {inode} 1 0000000000000000 100 0 0 10 0\n"
    )
}

const UNIX: &str = "0000000000000000: 00000002 00000000 00010000 0001 01";

#[test]
fn listening_sockets_differ_from_connections() {
    let loopback = word([127, 0, 0, 1]);
    let line = tcp(&loopback, 8888, "0A", 77);
    let (inode, socket) = listens(parse_tcp(line.trim_ascii_end().as_bytes())).unwrap();
    assert_eq!((inode, &socket), (77, &ListenAddress::Tcp(8888, Ipv4Addr::LOCALHOST.into())));
    let loopback_at = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    assert_eq!(socket.reach(loopback_at(8888)), Some(AddressMatch::Exact));
    assert_eq!(socket.reach(loopback_at(8889)), None);
    for (state, is_the_end) in [("01", true), ("06", true), ("03", false)] {
        let line = tcp(&loopback, 8888, state, 77);
        let parsed = parse_tcp(line.as_bytes());
        assert_eq!(matches!(parsed, Some(SocketLine::Connected(_))), is_the_end);
        assert!(listens(parsed).is_none());
    }

    let zero = word([0; 4]);
    let mapped = word([0, 0, 0xff, 0xff]);
    let (exact, any, perhaps) =
        (Some(AddressMatch::Exact), Some(AddressMatch::Any), Some(AddressMatch::Perhaps));
    for (address, by_four, by_six) in [
        (zero.clone(), any, None),
        (word([127, 1, 2, 3]), None, None),
        (word([192, 168, 1, 5]), None, None),
        (zero.repeat(4), perhaps, any),
        (format!("{}{}", zero.repeat(3), word([0, 0, 0, 1])), None, exact),
        (format!("{}{mapped}{loopback}", zero.repeat(2)), exact, None),
        (format!("{}{}", word([0xfe, 0x80, 0, 0]), zero.repeat(3)), None, None),
    ] {
        let line = tcp(&address, 8888, "0A", 77);
        let (_, socket) = listens(parse_tcp(line.as_bytes())).unwrap();
        let six = SocketAddr::from((Ipv6Addr::LOCALHOST, 8888));
        let reaches = [loopback_at(8888), six].map(|address| socket.reach(address));
        assert_eq!(reaches, [by_four, by_six], "{line}");
    }

    let line = format!("{UNIX} 20531 /run/a b");
    let socket = listens(parse_unix(line.as_bytes())).unwrap();
    assert_eq!(socket, (20531, ListenAddress::Unix("/run/a b".into())));
    let line = format!("{UNIX} 20531");
    assert!(listens(parse_unix(line.as_bytes())).is_some());
    let connected = "0000000000000000: 00000003 00000000 00000000 0001 03 20531 /run/x";
    assert!(listens(parse_unix(connected.as_bytes())).is_none());
}

#[test]
fn malformed_lines_are_ignored() {
    for line in [
        &b""[..],
        b"  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode",
        b"Num       RefCount Protocol Flags    Type St Inode Path",
        b"   0: 0100007F:1F90 00000000:0000 0A",
        b"0: zz:1F90 0:0 0A 0 0 0 0 0 5",
        b"0: 0100007F:1F90F 0:0 0A 0 0 0 0 0 5",
        b"0: 0100007F:1F90 0:0 0A 0 0 0 0 0 -5",
        b"0: \xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9:1F90 0:0 0A 0 0 0 0 0 5",
        b"\xff\xff: \xff",
        b"0000000000000000: 00000002 00000000 00010000 0001 01 99999999999999999999 /x",
        b"0000000000000000: 00000002 00000000 0001000000 0001 01 5 /x",
    ] {
        assert!(listens(parse_tcp(line)).is_none(), "{}", line.escape_ascii());
        assert!(listens(parse_unix(line)).is_none(), "{}", line.escape_ascii());
    }
}

struct Fake(FakeProc);

impl std::ops::Deref for Fake {
    type Target = FakeProc;

    fn deref(&self) -> &FakeProc {
        &self.0
    }
}

impl Fake {
    fn new() -> Self {
        let fake = Self(FakeProc::new());
        fake.process(2, &[], [1, 1]);
        symlink("2", fake.proc.join("self")).unwrap();
        fake
    }

    /// Adds a process that holds the given sockets. `namespaces` contains the numbers of its network and mount
    /// namespaces.
    fn process(&self, pid: u32, sockets: &[u64], namespaces: [u64; 2]) {
        for name in ["fd", "net"] {
            fs::create_dir_all(self.folder(pid).join(name)).unwrap();
        }
        for (kind, number) in ["net", "mnt"].iter().zip(namespaces) {
            self.link(pid, &format!("ns/{kind}"), format!("{kind}:[{number}]"));
        }
        for inode in sockets {
            self.link(pid, &format!("fd/{inode}"), format!("socket:[{inode}]"));
        }
    }

    fn table(&self, pid: u32, name: &str, lines: &str) {
        self.put(pid, &format!("net/{name}"), format!("heading\n{lines}"));
    }

    fn opened(&self, pid: u32) -> Folder {
        Folder::open(&self.proc, pid).unwrap()
    }

    fn holds(&self, pid: u32, address: &str) -> Option<bool> {
        holds_listener(self, &self.opened(pid), address.parse().unwrap())
    }
}

#[test]
fn a_listener_is_held_if_no_other_process_can_be_reached() {
    let fake = Fake::new();
    fake.process(70, &[7, 8], [1, 1]);
    let loopback = word([127, 0, 0, 1]);
    let zero = word([0; 4]);
    let other = word([192, 168, 1, 5]);
    let port = "127.0.0.1:8888";
    for (lines, holds) in [
        (tcp(&loopback, 8888, "0A", 7), true),
        (tcp(&zero, 8888, "0A", 7), true),
        (tcp(&loopback, 8888, "0A", 9), false),
        (tcp(&loopback, 8889, "0A", 7), false),
        (tcp(&loopback, 8888, "01", 7), false),
        (String::new(), false),
        // A connection to loopback does not reach a socket on another address.
        (tcp(&other, 8888, "0A", 7), false),
        // A connection can reach the other process.
        (tcp(&zero, 8888, "0A", 7) + &tcp(&loopback, 8888, "0A", 9), false),
        // Both sockets belong to the process.
        (tcp(&zero, 8888, "0A", 7) + &tcp(&loopback, 8888, "0A", 8), true),
        // The other process listens on a different address.
        (tcp(&loopback, 8888, "0A", 7) + &tcp(&other, 8888, "0A", 9), true),
    ] {
        fake.table(70, "tcp", &lines);
        assert_eq!(fake.holds(70, port), Some(holds), "{lines}");
    }
}

#[test]
fn an_exact_address_takes_precedence() {
    let fake = Fake::new();
    fake.process(70, &[7], [1, 1]);
    let loopback = word([127, 0, 0, 1]);
    let mapped = word([0; 4]).repeat(2) + &word([0, 0, 0xff, 0xff]) + &loopback;
    let all6 = word([0; 4]).repeat(4);
    let [ours, others] = [7, 9];
    for (four, six, holds) in [
        // A process that listens on all addresses receives no connection to an address on which another process
        // listens.
        (tcp(&loopback, 8888, "0A", ours), tcp(&all6, 8888, "0A", others), [true, false]),
        // The other process is bound to the exact address in IPv6 notation.
        (tcp(&word([0; 4]), 8888, "0A", ours), tcp(&mapped, 8888, "0A", others), [false, false]),
        // The other socket can also accept IPv4 connections.
        (tcp(&word([0; 4]), 8888, "0A", ours), tcp(&all6, 8888, "0A", others), [false, false]),
        (String::new(), tcp(&all6, 8888, "0A", ours), [false, true]),
        (tcp(&word([0; 4]), 8888, "0A", ours), String::new(), [true, false]),
    ] {
        fake.table(70, "tcp", &four);
        fake.table(70, "tcp6", &six);
        let held = ["127.0.0.1:8888", "[::1]:8888"].map(|address| fake.holds(70, address));
        assert_eq!(held, holds.map(Some), "{four}{six}");
    }
}

#[test]
fn unreadable_sockets_and_tables_are_unknown() {
    let fake = Fake::new();
    let line = tcp(&word([127, 0, 0, 1]), 8888, "0A", 7);
    let port = "127.0.0.1:8888";
    for (pid, namespaces) in [(70, [1, 1]), (71, [2, 1]), (72, [1, 2])] {
        fake.process(pid, &[7], namespaces);
        fake.table(pid, "tcp", &line);
    }
    assert_eq!(fake.holds(70, port), Some(true));
    assert_eq!(fake.holds(71, port), Some(true), "from its own network");
    assert_eq!(fake.holds(72, port), Some(true), "in another file system");

    // Even root cannot list a regular file.
    fs::remove_dir_all(fake.proc.join("70/fd")).unwrap();
    fake.put(70, "fd", "");
    assert_eq!(fake.holds(70, port), None);
    let shares = |pid| shares_network(&fake, &fake.opened(pid));
    assert_eq!([shares(70), shares(71)], [Some(true), Some(false)]);
    fs::remove_file(fake.proc.join("71/ns/net")).unwrap();
    assert_eq!(shares(71), None);
    // The table exceeds the limit.
    let other = tcp(&word([127, 0, 0, 1]), 1, "0A", 9);
    fake.table(72, "tcp", &other.repeat(TABLE_BYTES / other.len() + 1));
    assert_eq!(fake.holds(72, port), None);
}

#[test]
fn tables_are_read_once_a_minute_for_each_network() {
    let fake = Fake::new();
    for (pid, sockets, network) in [(70, &[7][..], 1), (71, &[8], 1), (72, &[7], 2), (73, &[], 1)] {
        fake.process(pid, sockets, [network, 1]);
    }
    let line = tcp(&word([192, 168, 1, 5]), 8888, "0A", 7);
    fake.table(70, "tcp", &line);
    // gpumem must not read the table again, because this process is in the same network namespace.
    fake.table(71, "tcp", &tcp(&word([127, 0, 0, 1]), 9, "0A", 8));
    let mut listening = Listening::default();
    let has = |listening: &mut Listening, pid| {
        let folder = fake.opened(pid);
        let held = read_held(&folder, &fake.dev).unwrap();
        let listens = listening.read(&folder, held.sockets.as_ref());
        listens.unwrap().at_all
    };
    assert_eq!(has(&mut listening, 70), Some(true));
    assert_eq!(has(&mut listening, 71), Some(false), "by the table read before");
    assert_eq!(has(&mut listening, 72), Some(false), "it is another network's 7");
    assert_eq!(has(&mut listening, 73), Some(false), "without a socket");
    listening.begin(VALID_NS - 1);
    assert_eq!(has(&mut listening, 71), Some(false), "for a minute");
    listening.begin(VALID_NS);
    assert_eq!(has(&mut listening, 71), Some(true), "by its own");
    let folder = fake.opened(71);
    assert_eq!(listening.read(&folder, None), Ok(Listens::default()));
    let partial = Sockets { inodes: vec![5], is_partial: true };
    assert_eq!(listening.read(&folder, Some(&partial)), Ok(Listens::default()));
}

#[test]
fn low_ports_are_listed_first() {
    let fake = Fake::new();
    fake.process(70, &[3, 4, 5, 6, 7, 8], [1, 1]);
    let zero = word([0; 4]);
    let lines = tcp(&zero, 41_234, "0A", 3)
        + &tcp(&word([127, 0, 0, 1]), 8000, "0A", 4)
        + &tcp(&zero, 8000, "0A", 5);
    fake.table(70, "tcp", &lines);
    let packets = UNIX.replace(" 0001 01", " 0005 01");
    let lines = format!("{UNIX} 6 /run/x.sock\n{packets} 7 @cuda-uvmfd-1-70\n{UNIX} 8 @x\n");
    fake.table(70, "unix", &lines);
    let folder = fake.opened(70);
    let held = read_held(&folder, &fake.dev).unwrap();
    let listens = Listening::default().read(&folder, held.sockets.as_ref()).unwrap();
    // The seqpacket socket of the CUDA library must not be listed.
    let on = listens.on.unwrap();
    assert_eq!(
        on.iter().map(|place| &**place).collect::<Vec<_>>(),
        [
            "tcp:0.0.0.0:8000",
            "tcp:127.0.0.1:8000",
            "tcp:0.0.0.0:41234",
            "unix:/run/x.sock",
            "unix:@x",
        ]
    );
}

#[test]
fn a_connected_process_outside_the_job_is_a_client() {
    let fake = Fake::new();
    fake.process(70, &[3], [1, 1]);
    let end = |address: [u8; 4], port: u16| format!("{}:{port:04X}", word(address));
    let (here, there) = ([127, 0, 0, 1], [10, 0, 0, 9]);
    let connection = |local: &str, remote: &str, state: &str, inode: u64| {
        format!("0: {local} {remote} {state} 0:0 0:0 0 0 0 {inode} 1\n")
    };
    let own = end(here, 8000);
    for (remote, state, inode, other, is_client) in [
        (end(there, 50_000), "01", 21, None, true),
        (end(here, 50_000), "01", 21, Some(99), true),
        (end(here, 50_000), "01", 21, Some(5), false),
        // The kernel can keep either end of a closed connection.
        (end(here, 50_000), "06", 0, None, true),
        (end(here, 50_000), "06", 0, Some(0), true),
        // The connection has not been accepted.
        (end(there, 50_000), "03", 0, None, false),
    ] {
        let listens = tcp(&word([0; 4]), 8000, "0A", 3);
        let mut lines = listens + &connection(&own, &remote, state, inode);
        if let Some(other) = other {
            lines += &connection(&remote, &own, state, other);
        }
        fake.table(70, "tcp", &lines);
        let mut listening = Listening::default();
        let folder = fake.opened(70);
        let held = read_held(&folder, &fake.dev).unwrap();
        let on = listening.read(&folder, held.sockets.as_ref()).unwrap().on.unwrap();
        let job = [3, 5].into();
        let clients = listening.clients(&folder, &on, &job).unwrap();
        assert_eq!(!clients.is_empty(), is_client, "{lines}");
    }
}

#[test]
fn closed_connections_to_a_port_chosen_by_the_kernel_are_no_clients() {
    let fake = Fake::new();
    fake.process(70, &[3], [1, 1]);
    let loopback = word([127, 0, 0, 1]);
    let (own, other) = (format!("{loopback}:9C40"), format!("{loopback}:C350"));
    let lines = tcp(&loopback, 40_000, "0A", 3)
        + &format!("0: {own} {other} 06 0:0 0:0 0 0 0 0 1\n")
        + &format!("0: {other} {own} 06 0:0 0:0 0 0 0 0 1\n");
    fake.table(70, "tcp", &lines);
    let mut listening = Listening::default();
    let folder = fake.opened(70);
    let held = read_held(&folder, &fake.dev).unwrap();
    let on = listening.read(&folder, held.sockets.as_ref()).unwrap().on.unwrap();
    assert_eq!(listening.clients(&folder, &on, &[3].into()), Some(Vec::new()));
    // The limit hides the line that shows that the client belongs to the job, so the client is reported.
    let one = format!("0: {own} {other} 01 0:0 0:0 0 0 0 3 1\n");
    let job = format!("0: {other} {own} 01 0:0 0:0 0 0 0 3 1\n");
    fake.table(
        70,
        "tcp",
        &(tcp(&loopback, 40_000, "0A", 3) + &one.repeat(MOST_CONNECTIONS) + &job),
    );
    let mut listening = Listening::default();
    listening.read(&folder, held.sockets.as_ref()).unwrap();
    assert_eq!(listening.clients(&folder, &on, &[3].into()).map(|it| it.len()), Some(1));
}

#[test]
fn real_sockets_are_found() {
    let roots = Roots::default();
    let own = Folder::own(&roots.proc).unwrap();
    let tcp = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = tcp.local_addr().unwrap();
    let mut sleep = Command::new("sleep").arg("600").stdin(Stdio::null()).spawn().unwrap();
    let other = Folder::open(&roots.proc, sleep.id()).unwrap();
    let holds = [&own, &other].map(|folder| holds_listener(&roots, folder, address));
    sleep.kill().unwrap();
    sleep.wait().unwrap();
    assert_eq!(holds, [Some(true), Some(false)]);

    let held = read_held(&own, &roots.dev).unwrap();
    let listens = Listening::default().read(&own, held.sockets.as_ref()).unwrap();
    assert_eq!(listens.at_all, Some(true));
    let on = listens.on.unwrap_or_default();
    let expected = format!("tcp:{address}");
    assert!(on.iter().any(|place| **place == *expected), "{on:?}");
    let mut listening = Listening::default();
    let client = TcpStream::connect(address).unwrap();
    let inode = fs::metadata(format!("/proc/self/fd/{}", client.as_raw_fd())).unwrap().ino();
    listening.read(&own, held.sockets.as_ref()).unwrap();
    assert_eq!(listening.servers(&own, &[inode]), Some(vec![expected.into()]));
    assert_eq!(listening.servers(&own, &[1]), Some(Vec::new()));
    drop(tcp);
    assert_eq!(holds_listener(&roots, &own, address), Some(false));
}
