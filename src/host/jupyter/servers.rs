//! Finds running servers on this machine, including those without kernels. The servers write files to runtime
//! folders, which are found through the environments and command lines of running processes.
//!
//! [`find_runtime_folders`] reads only /proc. [`RuntimeFolder::read`] reads users' files and can hang if their file
//! system hangs. No requests are sent, and stale files are not deleted.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use super::files::{list_server_files, read_server_file};
use super::{Server, ServerError, clip, url};
use crate::host::Roots;
use crate::host::proc::folder::{Folder, ProcEntry};
use crate::host::proc::notebook::parse_kernel;
use crate::host::proc::opened_process::OpenedProcess;

const FOLDERS: usize = 256;
const SERVERS: usize = 64;

#[derive(Debug)]
pub struct RuntimeFolder {
    /// Path as seen by the user's processes.
    pub path: String,
    /// Process of the user. The path is resolved from the root directory of this process.
    viewer: OpenedProcess,
    mounts: Option<String>,
    /// Processes of the user, by pid in the innermost pid namespace.
    processes: HashMap<u32, Vec<NumberedServer>>,
}

#[derive(Clone, Debug)]
struct NumberedServer {
    pid: u32,
    mounts: Option<String>,
}

#[derive(Debug, Default)]
pub struct ServerFiles {
    pub running: Vec<FoundServer>,
    /// Paths of server files whose pid belongs to no process of the user.
    pub stale: Vec<String>,
}

#[derive(Debug)]
pub struct FoundServer {
    pub pid: u32,
    /// Address for display, without the token, or `None` if the file could not be read.
    pub url: Option<String>,
    pub server: Result<Server, ServerError>,
}

/// Returns the runtime folders that the environments of the current user's processes name, and the folders of the
/// connection files of kernels. If the current user is root, all users' processes are included. Returns an empty list
/// if processes cannot be listed.
pub fn find_runtime_folders(roots: &Roots) -> Vec<RuntimeFolder> {
    let caller = rustix::process::geteuid();
    let is_included = |uid: u32| caller.is_root() || uid == caller.as_raw();
    let mut processes: HashMap<u32, HashMap<u32, Vec<NumberedServer>>> = HashMap::new();
    let mut folders = BTreeMap::new();
    let listing = Folder::list(&roots.proc).and_then(|proc| proc.processes());
    for ProcEntry { pid, .. } in listing.unwrap_or_default() {
        let Ok(Some(process)) = OpenedProcess::open(roots, pid) else {
            continue;
        };
        let Some(uid) = process.uid.filter(|&uid| is_included(uid)) else {
            continue;
        };
        let mounts = process.link(c"ns/mnt");
        let Some(number) = process.numbers.last() else {
            continue;
        };
        let named = NumberedServer { pid, mounts: mounts.clone() };
        let of_user = processes.entry(uid).or_default();
        of_user.entry(*number).or_default().push(named);
        for path in named_folders(&process) {
            let is_new = !folders.contains_key(&(uid, mounts.clone(), path.clone()));
            if is_new && folders.len() < FOLDERS {
                let viewer = OpenedProcess::open(roots, pid);
                let viewer = viewer.ok().flatten();
                let opened = viewer.filter(|viewer| viewer.start_ticks == process.start_ticks);
                folders.extend(opened.map(|viewer| ((uid, mounts.clone(), path), viewer)));
            }
        }
    }
    let folders = folders.into_iter();
    let folder = |((uid, mounts, path), viewer)| RuntimeFolder {
        processes: processes.get(&uid).cloned().unwrap_or_default(),
        path,
        viewer,
        mounts,
    };
    folders.map(folder).collect()
}

fn named_folders(process: &OpenedProcess) -> Vec<String> {
    let environment = process.environment();
    let named = environment.and_then(|environment| environment.runtime_folder());
    let kernel = process.command().and_then(|argv| parse_kernel(&argv));
    let file = kernel.and_then(|kernel| kernel.connection_file);
    let beside = file.and_then(|file| Some(Path::new(&*file).parent()?.to_owned()));
    let folders = named.into_iter().chain(beside);
    let mut paths: Vec<String> = folders
        .filter(|folder| folder.is_absolute())
        .filter_map(|folder| Some(folder.to_str()?.to_owned()))
        .collect();
    paths.dedup();
    paths
}

impl RuntimeFolder {
    /// Reads the server files in this folder, which need not exist. Returns an error if the folder cannot be listed.
    pub fn read(&self, roots: &Roots) -> Result<ServerFiles, ServerError> {
        let mut files = ServerFiles::default();
        let mut listed = list_server_files(&self.viewer, &self.path)?;
        listed.sort_by_key(|(number, _)| !self.processes.contains_key(number));
        for (number, name) in listed.into_iter().take(SERVERS) {
            let path = format!("{}/{name}", self.path);
            let Some(processes) = self.processes.get(&number) else {
                files.stale.push(clip(&path));
                continue;
            };
            // A server in another container may share the folder. That server is found through the processes of its
            // container.
            let local = processes.iter().find(|server| server.mounts == self.mounts);
            let Some(local) = local else {
                continue;
            };
            files.running.push(read_server(roots, local.pid, &path, number));
        }
        Ok(files)
    }
}

fn read_server(roots: &Roots, pid: u32, path: &str, number: u32) -> FoundServer {
    let mut result = FoundServer { pid, url: None, server: Err(ServerError::Ended { pid }) };
    let Ok(Some(process)) = OpenedProcess::open(roots, pid) else {
        return result;
    };
    let file = match read_server_file(&process, path, number) {
        Ok(Some(file)) => file,
        Ok(None) => return result,
        Err(error) => {
            result.server = Err(error);
            return result;
        }
    };
    result.url = Some(clip(&url(&file)));
    result.server = Server::from_file(&process, process.environment().as_ref(), file);
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::testing::Proc;

    const FILE: &str = r#"{"pid": 50, "port": 8888, "hostname": "localhost", "token": "s3cret"}"#;

    fn read(proc: &Proc) -> Vec<(String, ServerFiles)> {
        let folders = find_runtime_folders(&proc.roots());
        let read = |folder: RuntimeFolder| {
            let files = folder.read(&proc.roots()).unwrap();
            (folder.path, files)
        };
        folders.into_iter().map(read).collect()
    }

    #[test]
    fn a_server_is_found_in_the_folder_of_its_environment() {
        let proc = Proc::new();
        proc.process(50, 1, 500, &["JUPYTER_RUNTIME_DIR=/rt"]);
        proc.write(50, "/rt/jpserver-50.json", FILE);
        proc.write(50, "/rt/nbserver-60.json", FILE);
        proc.write(50, "/rt/kernel-50.json", "{}");
        proc.write(50, "/rt/jpserver-50-open.html", "");
        let read = read(&proc);
        let [(path, files)] = &read[..] else {
            panic!("{read:?}");
        };
        assert_eq!(path, "/rt");
        assert_eq!(files.stale, ["/rt/nbserver-60.json"]);
        let [found_server] = &files.running[..] else {
            panic!("{files:?}");
        };
        assert_eq!(found_server.url.as_deref(), Some("http://localhost:8888/"));
        assert_eq!(found_server.server.as_ref().unwrap().listener.pid, 50);
        assert!(!format!("{read:?}").contains("s3cret"));
    }

    #[test]
    fn many_stale_files_hide_no_server() {
        let proc = Proc::new();
        proc.process(50, 1, 500, &["JUPYTER_RUNTIME_DIR=/rt"]);
        proc.write(50, "/rt/jpserver-50.json", FILE);
        let folder = proc.root_of(50).join("rt");
        for number in 1000..1000 + 2 * SERVERS {
            std::fs::write(folder.join(format!("jpserver-{number}.json")), "").unwrap();
        }
        let files = &read(&proc)[0].1;
        assert_eq!((files.running.len(), files.stale.len()), (1, SERVERS - 1));
    }

    #[test]
    fn a_folder_named_by_kernels_is_read_once() {
        let proc = Proc::new();
        for pid in [50, 60] {
            proc.process(pid, 1, 500, &[]);
            proc.command(pid, "python -m ipykernel_launcher -f /other/kernel-1.json");
        }
        proc.write(50, "/other/jpserver-50.json", FILE);
        let read = read(&proc);
        let paths: Vec<&str> = read.iter().map(|(path, _)| path.as_str()).collect();
        assert_eq!(paths, ["/other"]);
    }

    #[test]
    fn refused_servers_and_foreign_files_are_reported() {
        for (file, expected) in [
            (
                FILE.replace("s3cret", "").replace("\"port\"", "\"password\": true, \"port\""),
                ServerError::Password,
            ),
            (
                FILE.replace("50", "51"),
                ServerError::Malformed { path: "/rt/jpserver-50.json".to_owned() },
            ),
        ] {
            let proc = Proc::new();
            proc.process(50, 1, 500, &["JUPYTER_RUNTIME_DIR=/rt"]);
            proc.write(50, "/rt/jpserver-50.json", &file);
            let found_server = &read(&proc)[0].1.running[0];
            assert_eq!(found_server.server.as_ref().unwrap_err(), &expected);
        }
    }

    /// Returns damaged versions of a Jupyter Server 2 file. In each version, a structural character is removed, doubled
    /// or changed, a value or key is replaced by another, the file is truncated, or the fields are in an array.
    fn damaged(token: &str) -> Vec<String> {
        let fields = [
            ("base_url", "\"/user/ann/\"".to_owned()),
            ("hostname", "\"localhost\"".to_owned()),
            ("password", "false".to_owned()),
            ("pid", "50".to_owned()),
            ("port", "8888".to_owned()),
            ("root_dir", "\"/home/ann\"".to_owned()),
            ("secure", "false".to_owned()),
            ("sock", "\"\"".to_owned()),
            ("token", format!("\"{token}\"")),
            ("url", "\"http://localhost:8888/user/ann/\"".to_owned()),
            ("version", "\"2.21.1\"".to_owned()),
        ];
        let text = |fields: &[(&str, String)]| {
            let fields = fields.iter().map(|(key, value)| format!("\"{key}\": {value}"));
            format!("{{{}}}", fields.collect::<Vec<_>>().join(", "))
        };
        let whole = text(&fields);
        let mut all = vec![whole.clone()];
        for at in 0..whole.len() {
            all.push(whole[..at].to_owned());
            if b"{}\":,/".contains(&whole.as_bytes()[at]) {
                for instead in ["", "\"", ":", ",", "\"\"", "x", "\\", " ", "/"] {
                    all.push(format!("{}{instead}{}", &whole[..at], &whole[at + 1..]));
                }
            }
        }
        for first in 0..fields.len() {
            for second in 0..fields.len() {
                let (mut values, mut keys) = (fields.clone(), fields.clone());
                (values[first].1, values[second].1) =
                    (fields[second].1.clone(), fields[first].1.clone());
                keys[first].0 = fields[second].0;
                let mut copied = fields.clone();
                copied[first].1.clone_from(&fields[second].1);
                all.extend([text(&values), text(&keys), text(&copied)]);
            }
        }
        let values: Vec<&str> = fields.iter().map(|(_, value)| value.as_str()).collect();
        all.push(format!("[{}]", values.join(", ")));
        all.push(format!(
            "[50, \"localhost\", 8888, \"\", \"/\", \"{token}\", null, false, false, null]"
        ));
        all
    }

    #[test]
    fn a_damaged_file_never_shows_the_token() {
        for token in
            ["1f0c9e8d7b6a59483726150f1e2d3c4b5a69788796a5b4c3", "Zx8Kq2Lm9Pv4Rt7Wy1Bn6Hs3"]
        {
            let all = damaged(token);
            assert!(all.len() >= 200, "{}", all.len());
            let proc = Proc::new();
            proc.process(50, 1, 500, &["JUPYTER_RUNTIME_DIR=/rt"]);
            let process = OpenedProcess::open(&proc.roots(), 50).unwrap().unwrap();
            for file in all {
                proc.write(50, "/rt/jpserver-50.json", &file);
                let found_server = read_server(&proc.roots(), 50, "/rt/jpserver-50.json", 50);
                let read = read_server_file(&process, "/rt/jpserver-50.json", 50);
                let why = found_server.server.as_ref().err().map(ToString::to_string);
                let debug = format!("{found_server:?} {read:?} {why:?}");
                assert!(!debug.contains(&token[..12]), "{file}: {debug}");
            }
        }
    }
}
