//! The files by which this user's own Jupyter servers say where they listen: `jpserver-PID.json`, of
//! older ones `nbserver-PID.json`, in Jupyter's runtime folder.
//!
//! They hold the server's token: of a file only the port and the socket are taken. A server that was
//! killed leaves its file behind; nothing is removed here. The folder may lie on a server that hangs:
//! not for the thread that samples.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use serde::Deserialize;

/// Nobody has more servers; a folder may hold thousands of files of kernels.
const MOST_SERVERS: usize = 64;
const MOST_ENTRIES: usize = 1 << 16;
/// A file has a dozen short fields.
const FILE_BYTES: u64 = 64 << 10;

/// Where a server listens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Address {
    /// A TCP port of this machine.
    Port(u16),
    /// A unix socket.
    Socket(PathBuf),
}

/// What the files say.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ServerFiles {
    /// Of each server whose process runs as this user: where it listens; `None` where its file does
    /// not tell.
    pub running: Vec<Option<Address>>,
    /// Files whose process has ended, or is another user's now.
    pub stale: usize,
}

/// Jupyter's runtime folder, by the environment (jupyter_core, `jupyter_runtime_dir`); `None` where
/// there is no home.
pub fn runtime_folder(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let folder = |name| {
        variable(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    folder("JUPYTER_RUNTIME_DIR")
        .or_else(|| Some(folder("JUPYTER_DATA_DIR")?.join("runtime")))
        .or_else(|| Some(folder("XDG_DATA_HOME")?.join("jupyter/runtime")))
        .or_else(|| Some(folder("HOME")?.join(".local/share/jupyter/runtime")))
}

/// Reads the files of servers in `folder`, and looks under `proc` whether they run.
///
/// # Errors
///
/// Where the folder cannot be listed.
pub fn read_server_files(folder: &Path, proc: &Path) -> io::Result<ServerFiles> {
    let own = rustix::process::geteuid().as_raw();
    let mut files = ServerFiles::default();
    for entry in fs::read_dir(folder)?
        .take(MOST_ENTRIES)
        .filter_map(Result::ok)
    {
        let Some(pid) = entry.file_name().to_str().and_then(server_pid) else {
            continue;
        };
        let process = fs::metadata(proc.join(pid.to_string()));
        if process.is_ok_and(|process| process.uid() == own) {
            files.running.push(read_address(&entry.path()));
        } else {
            files.stale += 1;
        }
        if files.running.len() >= MOST_SERVERS {
            break;
        }
    }
    Ok(files)
}

/// PID of `jpserver-PID.json` and `nbserver-PID.json`.
fn server_pid(name: &str) -> Option<u32> {
    let name = name
        .strip_prefix("jpserver-")
        .or_else(|| name.strip_prefix("nbserver-"))?;
    name.strip_suffix(".json")?.parse().ok()
}

fn read_address(path: &Path) -> Option<Address> {
    // A link may lead anywhere, and who opens a pipe waits.
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits();
    let file = File::options()
        .read(true)
        .custom_flags(i32::try_from(flags).ok()?)
        .open(path)
        .ok()?;
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut text = Vec::new();
    file.take(FILE_BYTES).read_to_end(&mut text).ok()?;
    parse_address(&text)
}

/// Where a server listens, by the content of its file.
pub fn parse_address(text: &[u8]) -> Option<Address> {
    #[derive(Deserialize)]
    struct Told {
        port: Option<u16>,
        sock: Option<PathBuf>,
    }
    let told: Told = serde_json::from_slice(text).ok()?;
    // Of a server on a socket the port is 0, and of one on a port the socket is empty.
    told.sock
        .filter(|sock| sock.is_absolute())
        .map(Address::Socket)
        .or_else(|| told.port.filter(|&port| port != 0).map(Address::Port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_is_looked_for_in_jupyters_order() {
        let mut set = vec![("HOME", "/home/ann")];
        let found = |set: &[(&str, &str)]| {
            runtime_folder(|name| {
                let of = set.iter().find(|(key, _)| *key == name);
                of.map(|(_, value)| value.into())
            })
        };
        let is = |path: &str| Some(PathBuf::from(path));
        assert_eq!(found(&set), is("/home/ann/.local/share/jupyter/runtime"));
        set.push(("XDG_DATA_HOME", "/data"));
        assert_eq!(found(&set), is("/data/jupyter/runtime"));
        set.push(("JUPYTER_DATA_DIR", "/jupyter"));
        assert_eq!(found(&set), is("/jupyter/runtime"));
        set.push(("JUPYTER_RUNTIME_DIR", "/run/jupyter"));
        assert_eq!(found(&set), is("/run/jupyter"));
        assert_eq!(found(&[("HOME", "")]), None);
    }

    #[test]
    fn an_address_is_a_port_or_a_socket() {
        let parse = |text: &str| parse_address(text.as_bytes());
        assert_eq!(
            parse(r#"{"port": 8888, "sock": "", "token": "secret"}"#),
            Some(Address::Port(8888))
        );
        assert_eq!(
            parse(r#"{"port": 0, "sock": "/run/s"}"#),
            Some(Address::Socket("/run/s".into()))
        );
        for text in [
            "",
            "[]",
            "{}",
            r#"{"port": 0}"#,
            r#"{"port": 70000}"#,
            r#"{"sock": "s"}"#,
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
        assert_eq!(parse_address(b"\xff\xfe"), None);
    }

    #[test]
    fn a_file_without_its_process_is_stale_and_others_are_passed_over() {
        let (folder, proc) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        write("jpserver-7.json", r#"{"port": 8888}"#);
        write("nbserver-8.json", "{}");
        write("jpserver-9.json", r#"{"port": 9999}"#);
        write("jpserver-x.json", "{}");
        write("jpserver-7-open.html", "");
        write("kernel-7.json", "{}");
        let link = folder.path().join("jpserver-10.json");
        std::os::unix::fs::symlink(folder.path().join("jpserver-7.json"), link).unwrap();
        for pid in ["7", "8", "10"] {
            fs::create_dir(proc.path().join(pid)).unwrap();
        }
        for pid in 100..300 {
            write(&format!("jpserver-{pid}.json"), "");
        }
        let mut files = read_server_files(folder.path(), proc.path()).unwrap();
        files.running.sort_by_key(Option::is_none);
        assert_eq!(files.running, [Some(Address::Port(8888)), None, None]);
        assert_eq!(files.stale, 201);
        assert!(read_server_files(&folder.path().join("none"), proc.path()).is_err());
    }
}
