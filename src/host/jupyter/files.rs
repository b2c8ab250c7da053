//! Reads the files of a kernel and its server. The content is untrusted, because the owner of a file can write
//! anything to it.
//!
//! Paths are resolved from the root directory of the process (`/proc/PID/root`), so a link in a container cannot lead
//! out of the container. Only regular files that belong to the process's user are read. This excludes devices, pipes
//! that nothing writes to, and root-owned files that a user's link points to. No files are written or deleted, not
//! even stale ones.
//!
//! Home directories can be on a file server that hangs. Callers therefore use a separate thread that they can abandon.

use std::ffi::CStr;
use std::net::IpAddr;

use nix::unistd::{Uid, setfsuid};
use ring::hmac;
use rustix::fd::OwnedFd;
use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, openat, openat2};
use rustix::io::{self, Errno};
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::{ChannelError, Endpoint, ServerError, Token};
use crate::host::proc::folder::Folder;
use crate::host::proc::opened_process::OpenedProcess;
use crate::host::secrets;

const FILE_BYTES: usize = 64 << 10;
/// Maximum number of entries read from a folder, which can contain the files of thousands of kernels. The entries after
/// this limit are ignored.
const ENTRIES: usize = 1 << 16;

#[derive(Debug, Deserialize)]
pub struct Connection {
    #[serde(default)]
    ip: String,
    #[serde(default)]
    transport: String,
    /// Absolute path of the notebook, if the server knew the path when it started the kernel.
    pub jupyter_session: Option<String>,
}

impl Connection {
    pub fn is_local(&self) -> bool {
        self.transport == "ipc" || self.ip.parse().is_ok_and(|ip: IpAddr| ip.is_loopback())
    }
}

#[derive(Debug)]
pub struct ShellEndpoint {
    /// Loopback address with a port, or path of a Unix socket.
    pub endpoint: Endpoint,
    /// Key that signs messages. It must not be displayed.
    pub key: hmac::Key,
}

/// Content of a server's `jpserver-PID.json`, which older versions of Jupyter call `nbserver-PID.json`.
#[derive(Debug)]
pub struct ServerFile {
    /// Pid of the server in its pid namespace.
    pub pid: u32,
    pub hostname: String,
    pub port: u16,
    /// Path of the Unix socket, or an empty string if the server uses TCP.
    pub sock: String,
    /// URL path of the server, which starts and ends with `/`.
    pub base_url: String,
    pub root: Option<String>,
    pub is_https: bool,
    pub has_password: bool,
    pub token: Option<Token>,
}

pub fn read_connection(process: &OpenedProcess, path: &str) -> Result<Connection, ServerError> {
    let content = read(process, path)?;
    let read = serde_json::from_slice(&content);
    let mut read: Connection = read.map_err(|_| ServerError::Malformed { path: path.into() })?;
    // In a damaged file, this field may contain the key.
    let is_secret = |name: &String| contains_secret(name, None);
    if read.jupyter_session.as_ref().is_some_and(is_secret) {
        read.jupyter_session = None;
    }
    Ok(read)
}

/// Reads the address and key of a kernel's shell channel. Returns an error if other users can read or write the file,
/// or if the kernel must not be contacted at the address.
pub fn read_shell_endpoint(
    process: &OpenedProcess,
    path: &str,
) -> Result<ShellEndpoint, ChannelError> {
    let (content, mode) = read_with_mode(process, path)?;
    if mode.intersects(Mode::RWXG | Mode::RWXO) {
        return Err(ChannelError::Exposed { path: path.into() });
    }
    parse_shell_endpoint(&content, path)
}

fn parse_shell_endpoint(content: &[u8], path: &str) -> Result<ShellEndpoint, ChannelError> {
    // `Debug` is not derived, because it would print the key.
    #[derive(Deserialize)]
    struct Raw {
        #[serde(default)]
        ip: String,
        #[serde(default)]
        transport: String,
        shell_port: u32,
        #[serde(default)]
        key: String,
        #[serde(default)]
        signature_scheme: Option<String>,
        #[serde(default)]
        curve_publickey: Option<IgnoredAny>,
        #[serde(default)]
        curve_secretkey: Option<IgnoredAny>,
    }
    let path = || path.to_owned();
    let malformed = || ServerError::Malformed { path: path() };
    // serde would also accept an array, and assign its elements to fields by position.
    if !content.trim_ascii_start().starts_with(b"{") {
        return Err(malformed().into());
    }
    let raw: Raw = serde_json::from_slice(content).map_err(|_| malformed())?;
    if raw.curve_publickey.is_some() || raw.curve_secretkey.is_some() {
        return Err(ChannelError::Encrypted);
    }
    if raw.key.is_empty() {
        return Err(ChannelError::Unsigned { path: path() });
    }
    // Without a scheme, Jupyter uses hmac-sha256 (jupyter_client: `ConnectionFileMixin.load_connection_info`).
    let scheme = raw.signature_scheme.as_deref().filter(|scheme| !scheme.is_empty());
    if scheme.is_some_and(|scheme| scheme != "hmac-sha256") {
        return Err(ChannelError::Scheme { path: path() });
    }
    let endpoint = match raw.transport.as_str() {
        "ipc" if raw.ip.starts_with('/') => {
            Endpoint::Unix(format!("{}-{}", raw.ip, raw.shell_port))
        }
        "" | "tcp" => {
            let is_loopback = raw.ip.parse().is_ok_and(|ip: IpAddr| ip.is_loopback());
            let port = u16::try_from(raw.shell_port).ok().filter(|port| *port > 0);
            match port.filter(|_| is_loopback) {
                Some(port) => Endpoint::Tcp { host: raw.ip, port },
                None => return Err(ChannelError::Elsewhere { path: path() }),
            }
        }
        _ => return Err(ChannelError::Elsewhere { path: path() }),
    };
    Ok(ShellEndpoint { endpoint, key: hmac::Key::new(hmac::HMAC_SHA256, raw.key.as_bytes()) })
}

pub fn read_server_file(
    process: &OpenedProcess,
    path: &str,
    number: u32,
) -> Result<Option<ServerFile>, ServerError> {
    match read(process, path) {
        Ok(content) => parse_server_file(&content)
            .filter(|file| file.pid == number)
            .map(Some)
            .ok_or_else(|| ServerError::Malformed { path: path.into() }),
        Err(ServerError::Read { errno: Errno::NOENT, .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

pub fn read_token(process: &OpenedProcess, path: &str) -> Result<Option<Token>, ServerError> {
    let content = read(process, path)?;
    let text = std::str::from_utf8(&content);
    let text = text.map_err(|_| ServerError::Malformed { path: path.into() })?;
    Ok(Token::new(text.trim_end()))
}

/// Returns N and the name of each file `jpserver-N.json` or `nbserver-N.json` in a folder. Returns an empty list if
/// the folder does not exist.
pub fn list_server_files(
    process: &OpenedProcess,
    path: &str,
) -> Result<Vec<(u32, String)>, ServerError> {
    let failed = |errno| ServerError::Read { path: path.into(), errno };
    let folder = match find(process, path) {
        Err(Errno::NOENT) => return Ok(Vec::new()),
        folder => Folder::from(reopen(&folder.map_err(failed)?).map_err(failed)?),
    };
    let mut files = Vec::new();
    let mut entries_left = ENTRIES;
    let listed = folder.names(|name| {
        files.extend(name.to_str().ok().and_then(server_number));
        entries_left -= 1;
        entries_left > 0
    });
    listed.map_err(failed)?;
    Ok(files)
}

fn server_number(name: &str) -> Option<(u32, String)> {
    let number = name
        .strip_prefix("jpserver-")
        .or_else(|| name.strip_prefix("nbserver-"))?
        .strip_suffix(".json")?;
    Some((number.parse().ok()?, name.to_owned()))
}

fn parse_server_file(content: &[u8]) -> Option<ServerFile> {
    // `Debug` is not derived, because it would print the token.
    #[derive(Deserialize)]
    struct Raw {
        pid: u32,
        #[serde(default)]
        hostname: String,
        #[serde(default)]
        port: u16,
        #[serde(default)]
        sock: String,
        #[serde(default)]
        base_url: String,
        root_dir: Option<String>,
        notebook_dir: Option<String>,
        #[serde(default)]
        secure: bool,
        #[serde(default)]
        password: bool,
        #[serde(default)]
        token: Option<String>,
    }
    // serde would also accept an array, and assign its elements to fields by position.
    if !content.trim_ascii_start().starts_with(b"{") {
        return None;
    }
    let raw: Raw = serde_json::from_slice(content).ok()?;
    let mut base_url = raw.base_url;
    if !base_url.ends_with('/') {
        base_url.push('/');
    }
    let is_path = base_url.starts_with('/')
        && base_url
            .bytes()
            .all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'?' | b'#' | b'"' | b'\\'));
    let is_host = raw
        .hostname
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b':' | b'*'));
    let root = raw.root_dir.or(raw.notebook_dir);
    // In a damaged file, a field that is displayed may contain the token.
    let token = raw.token.as_deref();
    let is_secret = |text: &str| contains_secret(text, token);
    let is_sock = raw.sock.is_empty() || raw.sock.starts_with('/');
    if !is_sock || [&raw.hostname, &base_url, &raw.sock].into_iter().any(|text| is_secret(text)) {
        return None;
    }
    let is_root = |root: &String| root.starts_with('/') && !is_secret(root);
    (is_path && is_host).then(|| ServerFile {
        pid: raw.pid,
        hostname: raw.hostname,
        port: raw.port,
        sock: raw.sock,
        base_url,
        root: root.filter(is_root),
        is_https: raw.secure,
        has_password: raw.password,
        token: raw.token.as_deref().and_then(Token::new),
    })
}

/// Returns whether a text contains `token` or a word that may be a secret. Jupyter's tokens have 48 hexadecimal
/// digits. A kernel's key has 32 hexadecimal digits, as does a UUID.
fn contains_secret(text: &str, token: Option<&str>) -> bool {
    // A shorter token may be an ordinary word.
    const SHORTEST_TOKEN: usize = 6;
    let token = token.filter(|token| token.len() >= SHORTEST_TOKEN);
    token.is_some_and(|token| text.contains(token))
        || text.split(|c: char| !c.is_ascii_alphanumeric() && c != '-').any(|word| {
            let digits = word.bytes().filter(|byte| *byte != b'-');
            digits.clone().count() >= 32 && digits.clone().all(|byte| byte.is_ascii_hexdigit())
        })
        || secrets::is_opaque(text)
}

fn read(process: &OpenedProcess, path: &str) -> Result<Vec<u8>, ServerError> {
    Ok(read_with_mode(process, path)?.0)
}

fn read_with_mode(process: &OpenedProcess, path: &str) -> Result<(Vec<u8>, Mode), ServerError> {
    let failed = |errno| ServerError::Read { path: path.into(), errno };
    let path_fd = find(process, path).map_err(failed)?;
    let stat = fstat(&path_fd).map_err(failed)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile
        || process.uid != Some(stat.st_uid)
    {
        return Err(ServerError::Foreign { path: path.into() });
    }
    let mode = Mode::from_raw_mode(stat.st_mode);
    let file = {
        let _rights = FileRights::assume(process.uid);
        reopen(&path_fd).map_err(failed)?
    };
    let mut content = Vec::with_capacity(FILE_BYTES);
    while content.len() < FILE_BYTES {
        let read = io::read(&file, rustix::buffer::spare_capacity(&mut content));
        if read.map_err(failed)? == 0 {
            return Ok((content, mode));
        }
    }
    Err(ServerError::Malformed { path: path.into() })
}

/// While this guard exists, the thread opens files with the file access rights of another user instead of root's
/// (setfsuid(2)). gpumem then reads only files that the user can read, and can read home directories on a file server
/// that refuses root. Without root rights, the guard has no effect.
struct FileRights(Uid);

impl FileRights {
    fn assume(uid: Option<u32>) -> Option<Self> {
        let uid = uid.filter(|uid| !Uid::from_raw(*uid).is_root())?;
        Some(Self(setfsuid(Uid::from_raw(uid))))
    }
}

impl Drop for FileRights {
    fn drop(&mut self) {
        setfsuid(self.0);
    }
}

/// Finds a file without opening it for reading, because opening a pipe or device can have side effects.
fn find(process: &OpenedProcess, path: &str) -> io::Result<OwnedFd> {
    let root = process.root()?;
    let _rights = FileRights::assume(process.uid);
    // The process may have changed its working directory since it started, so a relative path is ambiguous.
    if !path.starts_with('/') {
        return Err(Errno::NOENT);
    }
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let within = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    match openat2(root, path, flags, Mode::empty(), within) {
        // Kernels before Linux 5.6 do not support `openat2`. `openat` resolves a link with an absolute target from
        // gpumem's root directory. The caller still reads only files that belong to the process's user.
        Err(Errno::NOSYS) => {
            let path = path.trim_start_matches('/');
            openat(root, path, flags, Mode::empty())
        }
        opened => opened,
    }
}

fn reopen(path_fd: &OwnedFd) -> io::Result<OwnedFd> {
    use rustix::fd::AsRawFd as _;
    let path = format!("/proc/self/fd/{}\0", path_fd.as_raw_fd());
    let path = CStr::from_bytes_with_nul(path.as_bytes()).map_err(|_| Errno::INVAL)?;
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    openat(CWD, path, flags, Mode::empty())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::path::Path;

    use super::*;
    use crate::host::testing::Proc;

    /// Reads a path inside the root directory of a process of the current user.
    fn read_within(set_up: impl FnOnce(&Path), path: &str) -> Result<Vec<u8>, ServerError> {
        let proc = Proc::new();
        let root = proc.root_of(90);
        set_up(&root);
        let process = OpenedProcess::open(&proc.roots(), 90).unwrap().unwrap();
        read(&process, path)
    }

    #[test]
    fn paths_are_resolved_from_the_processs_root() {
        let content = read_within(
            |root| {
                std::fs::create_dir_all(root.join("srv/home")).unwrap();
                std::fs::write(root.join("srv/home/a.json"), "{}").unwrap();
                symlink("/srv/home", root.join("home")).unwrap();
            },
            "/home/a.json",
        );
        assert_eq!(content, Ok(b"{}".to_vec()));
    }

    #[test]
    fn only_a_regular_file_of_the_processs_user_is_read() {
        let foreign = Err(ServerError::Foreign { path: "/a.json".to_owned() });
        let link = |root: &Path| {
            std::fs::write(root.join("b.json"), "{}").unwrap();
            symlink("b.json", root.join("a.json")).unwrap();
        };
        assert_eq!(read_within(link, "/a.json"), foreign);
        let folder = |root: &Path| std::fs::create_dir(root.join("a.json")).unwrap();
        assert_eq!(read_within(folder, "/a.json"), foreign);
        // Opening a pipe would wait for a writer.
        let pipe = |root: &Path| {
            let kind = FileType::Fifo;
            rustix::fs::mknodat(CWD, root.join("a.json"), kind, Mode::RUSR, 0).unwrap();
        };
        assert_eq!(read_within(pipe, "/a.json"), foreign);
    }

    #[test]
    fn a_missing_or_oversized_file_is_an_error() {
        let missing = read_within(|_| (), "/a.json");
        assert!(missing.unwrap_err().to_string().starts_with("cannot read /a.json"));
        assert!(read_within(|_| (), "a.json").is_err());
        let long = |root: &Path| {
            std::fs::write(root.join("a.json"), vec![b' '; FILE_BYTES + 1]).unwrap();
        };
        assert!(matches!(read_within(long, "/a.json"), Err(ServerError::Malformed { .. })));
    }

    #[test]
    fn server_files_of_jupyter_server_and_notebook_are_parsed() {
        let server = parse_server_file(
            br#"{"base_url": "/user/ann/", "hostname": "localhost", "password": false, "pid": 30451,
                "port": 33921, "root_dir": "/home/ann", "secure": false, "sock": "", "token": "s3cret",
                "url": "http://localhost:33921/", "version": "2.21.1"}"#,
        )
        .unwrap();
        assert_eq!((server.pid, server.port), (30451, 33921));
        assert_eq!(server.root.as_deref(), Some("/home/ann"));
        assert_eq!(server.base_url, "/user/ann/");
        assert!(server.token.is_some() && !format!("{server:?}").contains("s3cret"));
        let old = br#"{"base_url": "/x", "pid": 7, "notebook_dir": "/n", "token": ""}"#;
        let old = parse_server_file(old).unwrap();
        assert_eq!(old.base_url, "/x/");
        assert_eq!((old.root.as_deref(), old.token), (Some("/n"), None));
        for hostile in [
            r#"{"pid": 7, "base_url": "/a b/"}"#,
            r#"{"pid": 7, "base_url": "/?x=/"}"#,
            r#"{"pid": 7, "base_url": "//", "hostname": "a@b"}"#,
            r#"{"pid": -7}"#,
            r#"{"pid": 7, "port": 99999}"#,
            "[",
        ] {
            assert!(parse_server_file(hostile.as_bytes()).is_none(), "{hostile}");
        }
    }

    #[test]
    fn a_shell_endpoint_must_be_local_signed_and_unencrypted() {
        let parse = |changes: serde_json::Value| {
            let mut file = serde_json::json!({
                "ip": "127.0.0.1", "transport": "tcp", "shell_port": 5001, "key": "k3y",
                "signature_scheme": "hmac-sha256", "kernel_name": "python3", "hb_port": 5002,
            });
            let fields = file.as_object_mut().unwrap();
            fields.extend(changes.as_object().unwrap().clone());
            parse_shell_endpoint(file.to_string().as_bytes(), "/k.json")
        };
        let endpoint = parse(serde_json::json!({})).unwrap();
        assert!(!format!("{endpoint:?}").contains("k3y"));
        assert!(matches!(endpoint.endpoint, Endpoint::Tcp { port: 5001, .. }));
        let ipc = serde_json::json!({"transport": "ipc", "ip": "/run/k", "shell_port": 1});
        let ipc = parse(ipc).unwrap().endpoint;
        assert_eq!(ipc, Endpoint::Unix("/run/k-1".to_owned()));
        let path = || "/k.json".to_owned();
        let elsewhere = ChannelError::Elsewhere { path: path() };
        for (changes, error) in [
            (r#"{"key": ""}"#, ChannelError::Unsigned { path: path() }),
            (r#"{"key": null}"#, ServerError::Malformed { path: path() }.into()),
            (r#"{"signature_scheme": "hmac-md5"}"#, ChannelError::Scheme { path: path() }),
            (r#"{"curve_publickey": "x"}"#, ChannelError::Encrypted),
            (r#"{"curve_secretkey": "x"}"#, ChannelError::Encrypted),
            (r#"{"ip": "0.0.0.0"}"#, elsewhere.clone()),
            (r#"{"ip": "10.0.0.7"}"#, elsewhere.clone()),
            (r#"{"ip": "localhost"}"#, elsewhere.clone()),
            (r#"{"shell_port": 0}"#, elsewhere.clone()),
            (r#"{"shell_port": 70000}"#, elsewhere.clone()),
            (r#"{"shell_port": -1}"#, ServerError::Malformed { path: path() }.into()),
            (r#"{"transport": "ipc", "ip": "k"}"#, elsewhere.clone()),
            (r#"{"transport": "udp"}"#, elsewhere),
        ] {
            let actual = parse(serde_json::from_str(changes).unwrap()).unwrap_err();
            assert_eq!(actual, error, "{changes}");
        }
        assert!(parse_shell_endpoint(b"[\"127.0.0.1\", \"tcp\", 5001, \"k3y\"]", "/k").is_err());
    }

    #[test]
    fn a_key_readable_by_other_users_is_refused() {
        let proc = Proc::new();
        let root = proc.root_of(90);
        let file = root.join("k.json");
        let content = r#"{"ip": "127.0.0.1", "shell_port": 1, "key": "k3y"}"#;
        std::fs::write(&file, content).unwrap();
        let process = OpenedProcess::open(&proc.roots(), 90).unwrap().unwrap();
        let read = |mode: u32| {
            rustix::fs::chmod(&file, Mode::from_raw_mode(mode)).unwrap();
            read_shell_endpoint(&process, "/k.json").map(|_| ())
        };
        assert_eq!(read(0o600), Ok(()));
        assert_eq!(read(0o1600), Ok(()));
        let exposed = Err(ChannelError::Exposed { path: "/k.json".to_owned() });
        for mode in [0o640, 0o604, 0o620, 0o602, 0o644] {
            assert_eq!(read(mode), exposed, "{mode:o}");
        }
    }

    #[test]
    fn a_connection_shows_whether_clients_are_local_without_the_key() {
        let parse = |text: &str| serde_json::from_str::<Connection>(text).unwrap();
        let local = parse(
            r#"{"ip": "127.0.0.1", "key": "k3y", "transport": "tcp", "jupyter_session": "/a.ipynb"}"#,
        );
        assert!(local.is_local() && !format!("{local:?}").contains("k3y"));
        assert_eq!(local.jupyter_session.as_deref(), Some("/a.ipynb"));
        assert!(parse(r#"{"ip": "/run/k", "transport": "ipc"}"#).is_local());
        assert!(!parse(r#"{"ip": "10.0.0.7", "transport": "tcp"}"#).is_local());
        assert!(!parse("{}").is_local());
    }
}
