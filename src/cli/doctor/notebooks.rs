//! This user's own Jupyter servers: whether there are any, and whether they let themselves be asked.
//!
//! A connection is opened and closed again, on this machine only; nothing is said on it.

use std::env;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::host::{self, Address};
use crate::report::doctor::{Check, Topic, Verdict};

/// On this machine it is taken or refused at once.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(200);

/// What was found.
#[derive(Debug)]
pub(super) struct Servers {
    /// Where it was looked for; `None` where there is no home.
    folder: Option<PathBuf>,
    found: Result<Found, ErrorKind>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Found {
    running: usize,
    reached: usize,
    stale: usize,
}

/// Looks for them; what is read may lie on a server that hangs.
pub(super) fn read(proc: &Path) -> Servers {
    let folder = host::runtime_folder(|name| env::var_os(name));
    let files = match &folder {
        Some(folder) => host::read_server_files(folder, proc),
        None => Err(ErrorKind::NotFound.into()),
    };
    Servers {
        folder,
        found: files.map_err(|error| error.kind()).map(|files| Found {
            running: files.running.len(),
            reached: files
                .running
                .iter()
                .flatten()
                .filter(|it| answers(it))
                .count(),
            stale: files.stale,
        }),
    }
}

fn answers(address: &Address) -> bool {
    let tcp = |host: IpAddr, port| -> io::Result<TcpStream> {
        TcpStream::connect_timeout(&SocketAddr::new(host, port), CONNECT_TIMEOUT)
    };
    match address {
        Address::Port(port) => {
            tcp(Ipv4Addr::LOCALHOST.into(), *port).is_ok()
                || tcp(Ipv6Addr::LOCALHOST.into(), *port).is_ok()
        }
        Address::Socket(path) => UnixStream::connect(path).is_ok(),
    }
}

pub(super) fn check(servers: Option<Servers>) -> Check {
    let topic = Topic::Notebooks;
    let Some(Servers { folder, found }) = servers else {
        return super::too_long(topic);
    };
    let none = |seen: String| Check::new(topic, Verdict::NotApplicable, seen);
    let Some(folder) = folder else {
        return none("there is no HOME to look for yours in".to_owned());
    };
    let folder = folder.display();
    let Found {
        running,
        reached,
        stale,
    } = match found {
        Ok(found) => found,
        Err(ErrorKind::NotFound) => return none(format!("none of yours in {folder}")),
        Err(error) => {
            let seen = format!("{folder} cannot be read: {error}");
            return Check::new(topic, Verdict::Limited, seen)
                .means("what your notebooks' kernels do is not known");
        }
    };
    let left = match stale {
        0 => String::new(),
        1 => "; 1 left its file behind".to_owned(),
        stale => format!("; {stale} left their files behind"),
    };
    if running == 0 {
        return none(format!("none of yours runs{left}"));
    }
    let seen = format!("{running} of yours, {reached} reachable{left}");
    if reached == running {
        Check::new(topic, Verdict::Ok, seen)
    } else {
        Check::new(topic, Verdict::Limited, seen)
            .means("of a server that cannot be asked it is not known what its kernels do")
            .next("jupyter server list")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::os::unix::net::UnixListener;

    #[test]
    fn a_server_answers_where_somebody_listens() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = Address::Port(listener.local_addr().unwrap().port());
        assert!(answers(&port));
        drop(listener);
        assert!(!answers(&port));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        assert!(!answers(&Address::Socket(path.clone())));
        let _listener = UnixListener::bind(&path).unwrap();
        assert!(answers(&Address::Socket(path)));
    }

    #[test]
    fn what_cannot_be_asked_is_a_limit() {
        let judged = |found| {
            let folder = Some("/r".into());
            let check = check(Some(Servers { folder, found }));
            (check.verdict, check.seen)
        };
        let found = |running, reached, stale| Found {
            running,
            reached,
            stale,
        };
        for (found, verdict, seen) in [
            (Ok(found(2, 2, 0)), Verdict::Ok, "2 of yours, 2 reachable"),
            (
                Ok(found(2, 1, 1)),
                Verdict::Limited,
                "2 of yours, 1 reachable; 1 left its file behind",
            ),
            (
                Ok(found(0, 0, 3)),
                Verdict::NotApplicable,
                "none of yours runs; 3 left their files behind",
            ),
            (
                Err(ErrorKind::NotFound),
                Verdict::NotApplicable,
                "none of yours in /r",
            ),
            (
                Err(ErrorKind::PermissionDenied),
                Verdict::Limited,
                "/r cannot be read: permission denied",
            ),
        ] {
            assert_eq!(judged(found), (verdict, seen.to_owned()));
        }
        assert_eq!(check(None).verdict, Verdict::Unknown);
    }
}
