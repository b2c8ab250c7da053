//! Sends messages to the service manager with systemd's notification protocol (sd_notify(3)).
//!
//! `NOTIFY_SOCKET` contains the path or, after an `@`, the abstract name of the manager's socket. Without the
//! variable, nothing is sent. The protocol is too simple to justify a crate. Sending does not block and ignores
//! errors, because a hung manager must not stop the service.

use std::env;
use std::ffi::OsStr;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::process;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::report::escape::escape;

pub(super) const VARIABLES: [&str; 3] = ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"];
/// Maximum length of a status, in characters.
const LONGEST_STATUS: usize = 200;

#[derive(Debug)]
pub(super) struct Service {
    socket: Option<(UnixDatagram, SocketAddr)>,
    watchdog: Option<Duration>,
}

impl Service {
    pub(super) fn from_environment() -> Self {
        let [socket, usec, pid] = VARIABLES.map(env::var_os);
        let text = |value: &Option<std::ffi::OsString>| {
            value.as_ref().and_then(|text| text.to_str()).map(str::to_owned)
        };
        Self::new(socket.as_deref(), text(&usec).as_deref(), text(&pid).as_deref())
    }

    fn new(socket: Option<&OsStr>, usec: Option<&str>, pid: Option<&str>) -> Self {
        // A child process inherits these variables, but WATCHDOG_PID contains its parent's pid.
        let is_ours = pid.is_none_or(|pid| pid.parse() == Ok(process::id()));
        let usec = usec.and_then(|usec| usec.parse().ok());
        let usec = usec.filter(|&usec: &u64| is_ours && usec > 0);
        Self { socket: socket.and_then(connect), watchdog: usec.map(Duration::from_micros) }
    }

    /// Returns the interval between notifications: half the timeout of the watchdog, as sd_watchdog_enabled(3)
    /// recommends.
    pub(super) fn watchdog(&self) -> Option<Duration> {
        self.watchdog.filter(|_| self.socket.is_some()).map(|timeout| timeout / 2)
    }

    /// Reports that start-up or reloading is complete.
    pub(super) fn ready(&self) {
        self.report("READY=1");
    }

    pub(super) fn alive(&self) {
        self.report("WATCHDOG=1");
    }

    pub(super) fn reloading(&self) {
        let now = clock_gettime(ClockId::Monotonic);
        let usec = i128::from(now.tv_sec) * 1_000_000 + i128::from(now.tv_nsec) / 1000;
        self.report(&format!("RELOADING=1\nMONOTONIC_USEC={usec}"));
    }

    pub(super) fn stopping(&self) {
        self.report("STOPPING=1");
    }

    /// Reports the status that `systemctl status` shows.
    pub(super) fn status(&self, text: &str) {
        let text: String = escape(text).chars().take(LONGEST_STATUS).collect();
        self.report(&format!("STATUS={text}"));
    }

    fn report(&self, state: &str) {
        if let Some((socket, manager)) = &self.socket {
            let _ = socket.send_to_addr(state.as_bytes(), manager);
        }
    }
}

fn connect(name: &OsStr) -> Option<(UnixDatagram, SocketAddr)> {
    let manager = match name.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name).ok()?,
        [b'/', ..] => SocketAddr::from_pathname(name).ok()?,
        // Other addresses, such as `vsock:`, are not supported.
        _ => return None,
    };
    let socket = UnixDatagram::unbound().ok()?;
    socket.set_nonblocking(true).ok()?;
    Some((socket, manager))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next_message(socket: &UnixDatagram) -> String {
        let mut bytes = [0; 4096];
        let length = socket.recv(&mut bytes).unwrap();
        String::from_utf8(bytes[..length].to_vec()).unwrap()
    }

    #[test]
    fn a_manager_receives_messages_by_path_or_abstract_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let by_path = UnixDatagram::bind(&path).unwrap();
        let name = format!("gpumem-test-{}", process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let abstract_one = UnixDatagram::bind_addr(&address).unwrap();
        let at = format!("@{name}");
        for (socket, name) in [(&by_path, path.as_os_str()), (&abstract_one, OsStr::new(&at))] {
            let service = Service::new(Some(name), None, None);
            service.ready();
            service.status("a\u{1b}[2Jb\nREADY=1");
            service.reloading();
            service.alive();
            service.stopping();
            assert_eq!(next_message(socket), "READY=1");
            assert_eq!(next_message(socket), "STATUS=a\\e[2Jb\\nREADY=1", "it stays one line");
            let reloading = next_message(socket);
            let usec = reloading.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").unwrap();
            assert!(usec.parse::<u64>().unwrap() > 0);
            assert_eq!(next_message(socket), "WATCHDOG=1");
            assert_eq!(next_message(socket), "STOPPING=1");
        }
    }

    #[test]
    fn a_watchdog_of_another_process_is_ignored() {
        let watchdog_interval = |usec, pid| {
            let socket = Some(OsStr::new("/nonexistent/notify"));
            Service::new(socket, usec, pid).watchdog()
        };
        let own_pid = process::id().to_string();
        let second = Some(Duration::from_secs(1));
        assert_eq!(watchdog_interval(Some("2000000"), None), second);
        assert_eq!(watchdog_interval(Some("2000000"), Some(&own_pid)), second);
        assert_eq!(watchdog_interval(Some("2000000"), Some("1")), None);
        for usec in [None, Some("0"), Some("-1"), Some(""), Some("x")] {
            assert_eq!(watchdog_interval(usec, None), None, "{usec:?}");
        }
        for name in [None, Some(""), Some("vsock:2:1")] {
            let unreachable = Service::new(name.map(OsStr::new), Some("2000000"), None);
            unreachable.ready();
            assert_eq!(unreachable.watchdog(), None, "{name:?}");
        }
    }
}
