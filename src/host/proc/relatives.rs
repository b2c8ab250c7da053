//! Finds listening processes that are related to a watched process and may serve requests with its help.
//!
//! The program that accepts requests often is not the one that holds the GPU memory. It may be a front end that
//! starts workers, a service that starts an engine, or the first process of a container. Twice a minute, this module
//! reads the sockets of a process's ancestors in the same session, of its descendants, and of other processes in its
//! service or container. It does not determine the purpose of a socket.
//!
//! The job of a process consists of the process, these relatives, and the other descendants of these ancestors in the
//! same session. A process outside the job that is connected to one of the sockets is a client.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use foldhash::HashMap;
use rustix::io;

use crate::host::gpu::gpu_files::read_held_within;
use crate::host::parse_number;
use crate::host::proc::cmdline::{read_cmdline, read_working_directory};
use crate::host::proc::folder::Folder;
use crate::host::proc::processes::HostFacts;
use crate::host::proc::stat::Stat;
use crate::host::proc::tree::Tree;
use crate::model::Process;
use crate::model::process::{Relation, Relative};

const VALID_NS: u64 = 30_000_000_000;

const MOST: usize = 64;

const MOST_LISTED: usize = 16;

const CGROUP_BYTES: usize = 8 << 10;

/// Mount points of the cgroup v2 hierarchy and of the v1 memory hierarchy, relative to `Roots::root`.
const CGROUPS: [&str; 3] = ["sys/fs/cgroup", "sys/fs/cgroup/unified", "sys/fs/cgroup/memory"];

#[derive(Debug, Default)]
pub(in crate::host) struct Relatives {
    /// Results of this sample, which all watched processes share. The result for a process that does not exist is
    /// `None`.
    seen: HashMap<u32, Option<SocketScan>>,
    known: HashMap<u32, KnownRelatives>,
}

#[derive(Clone, Debug)]
struct SocketScan {
    session: Option<u32>,
    inodes: Arc<[u64]>,
    listens: Option<RelativeSockets>,
}

#[derive(Clone, Debug)]
struct RelativeSockets {
    start_ticks: u64,
    command: Option<Arc<[Arc<str>]>>,
    working_directory: Option<Arc<str>>,
    on: Arc<[Arc<str>]>,
}

#[derive(Debug)]
struct KnownRelatives {
    start_ticks: Option<u64>,
    searched_ns: u64,
    relatives: Arc<[Relative]>,
    client_addresses: Option<Arc<[Arc<str>]>>,
}

impl HostFacts {
    pub(in crate::host) fn fill_relatives(
        &mut self,
        processes: &mut [Process],
        tree: &Tree,
        now_ns: u64,
    ) {
        self.relatives.seen.clear();
        let mut before = std::mem::take(&mut self.relatives.known);
        for process in processes.iter_mut().filter(|it| it.start_ticks.is_some()) {
            let known = before.remove(&process.pid);
            let known = known.filter(|known| known.start_ticks == process.start_ticks);
            let known = match known {
                Some(known) if now_ns.saturating_sub(known.searched_ns) < VALID_NS => known,
                known => self.find_job(process, tree, known.as_ref(), now_ns),
            };
            process.listening_relatives = Some(Arc::clone(&known.relatives));
            process.client_addresses.clone_from(&known.client_addresses);
            self.relatives.known.insert(process.pid, known);
        }
    }

    /// Finds the listening relatives of a process, and the clients of the process and of its relatives. Clients in
    /// `before` are kept.
    fn find_job(
        &mut self,
        process: &Process,
        tree: &Tree,
        before: Option<&KnownRelatives>,
        now_ns: u64,
    ) -> KnownRelatives {
        let (mut relatives, top) = self.find_relatives(process, tree);
        let mut client_addresses = None;
        let listens_on = |addresses: &[Arc<str>]| addresses.iter().any(|it| it.starts_with("tcp:"));
        let listening_on = process.listening_on.as_deref().unwrap_or_default();
        if listens_on(listening_on)
            || relatives.iter().any(|relative| listens_on(&relative.listening_on))
        {
            let mut sockets = HashSet::new();
            let own = tree.descendants(process.pid).into_iter().take(MOST).chain([process.pid]);
            let own: Vec<u32> = own.chain(relatives.iter().map(|it| it.pid)).collect();
            let session = tree.descendants(top).into_iter().take(MOST).chain([top]);
            for pid in own.iter().copied().chain(session) {
                if let Some(scan) = self.scan_sockets(pid)
                    && (scan.session == process.session || own.contains(&pid))
                {
                    sockets.extend(scan.inodes.iter().copied());
                }
            }
            let find = |pid: u32, addresses: &[Arc<str>], before: Option<&[Arc<str>]>| {
                let folder = Folder::open(&self.roots.proc, pid).ok()?;
                let mut clients = self.listening.clients(&folder, addresses, &sockets);
                let is_left = |address: &&Arc<str>| addresses.contains(address);
                for address in before.unwrap_or_default().iter().filter(is_left) {
                    let clients = clients.get_or_insert_default();
                    if !clients.contains(address) {
                        clients.push(Arc::clone(address));
                    }
                }
                clients.map(Arc::from)
            };
            let known = before.and_then(|before| before.client_addresses.as_deref());
            client_addresses = find(process.pid, listening_on, known);
            for relative in &mut relatives {
                let known = before.into_iter().flat_map(|before| before.relatives.iter());
                let mut known = known.filter(|known| {
                    known.pid == relative.pid && known.start_ticks == relative.start_ticks
                });
                let known = known.next().and_then(|known| known.client_addresses.as_deref());
                relative.client_addresses = find(relative.pid, &relative.listening_on, known);
            }
        }
        KnownRelatives {
            start_ticks: process.start_ticks,
            searched_ns: now_ns,
            relatives: relatives.into(),
            client_addresses: client_addresses.filter(|_| !listening_on.is_empty()),
        }
    }

    /// Returns the listening relatives, and the topmost ancestor in the session of the process. If there is no such
    /// ancestor, returns the pid of the process itself.
    fn find_relatives(&mut self, process: &Process, tree: &Tree) -> (Vec<Relative>, u32) {
        let mut top = process.pid;
        let mut found: Vec<Relative> = Vec::new();
        let mut add = |pid, relation, listens: Option<RelativeSockets>| {
            let is_new = pid != process.pid && !found.iter().any(|it| it.pid == pid);
            if let Some(listens) = listens.filter(|_| is_new && found.len() < MOST_LISTED) {
                found.push(Relative {
                    pid,
                    start_ticks: Some(listens.start_ticks),
                    relation,
                    command: listens.command,
                    working_directory: listens.working_directory,
                    listening_on: listens.on,
                    client_addresses: None,
                });
            }
        };
        for pid in tree.ancestors(process.pid) {
            // Logins, terminal programs and schedulers start each process in a separate session. If the leader of a
            // session is outside this pid namespace, the session has the number 0 (proc_pid_stat(5)). A process and
            // an ancestor that both have number 0 are in the same session.
            match self.scan_sockets(pid) {
                Some(seen) if seen.session == process.session => {
                    add(pid, Relation::Ancestor, seen.listens);
                    top = pid;
                }
                _ => break,
            }
        }
        for pid in tree.descendants(process.pid).into_iter().take(MOST) {
            let listens = self.scan_sockets(pid).and_then(|it| it.listens);
            add(pid, Relation::Descendant, listens);
        }
        if has_cgroup_of_its_own(process) {
            for pid in read_cgroup(&self.roots.root, process).into_iter().take(MOST) {
                let listens = self.scan_sockets(pid).and_then(|it| it.listens);
                add(pid, Relation::Cgroup, listens);
            }
        }
        (found, top)
    }

    fn scan_sockets(&mut self, pid: u32) -> Option<SocketScan> {
        if let Some(seen) = self.relatives.seen.get(&pid) {
            return seen.clone();
        }
        let seen = self.read_sockets(pid);
        self.relatives.seen.insert(pid, seen.clone());
        seen
    }

    fn read_sockets(&mut self, pid: u32) -> Option<SocketScan> {
        let folder = Folder::open(&self.roots.proc, pid).ok()?;
        let stat = Stat::read(&folder, &mut self.content).ok()??;
        let (start_ticks, session) = (stat.start_ticks, stat.session);
        let has_memory = stat.has_memory();
        let read = self.read_listens(&folder, start_ticks, has_memory);
        let (inodes, listens) = read.unwrap_or_default();
        Some(SocketScan { session, inodes, listens })
    }

    fn read_listens(
        &mut self,
        folder: &Folder,
        start_ticks: u64,
        has_memory: bool,
    ) -> io::Result<(Arc<[u64]>, Option<RelativeSockets>)> {
        let held = read_held_within(&mut self.descriptors, folder, &self.roots.dev)?;
        let on = self.listening.read(folder, held.sockets.as_ref())?.on;
        let inodes = held.sockets.map(|sockets| sockets.inodes.into()).unwrap_or_default();
        let Some(on) = on else {
            return Ok((inodes, None));
        };
        let command = has_memory.then(|| read_cmdline(folder, &mut self.content)).flatten();
        let working_directory = read_working_directory(folder).ok().map(Arc::from);
        Ok((inodes, Some(RelativeSockets { start_ticks, command, working_directory, on })))
    }
}

fn has_cgroup_of_its_own(process: &Process) -> bool {
    let is_service = process
        .systemd_unit
        .as_deref()
        .is_some_and(|unit| unit.ends_with(".service") && !unit.starts_with("user@"));
    (is_service || process.container.is_some()) && process.slurm.is_none()
}

fn read_cgroup(root: &Path, process: &Process) -> Vec<u32> {
    // A path with `..` is outside this cgroup namespace and is not visible.
    let cgroup = process.cgroup.as_deref().filter(|path| {
        path.len() > 1 && path.starts_with('/') && !path.split('/').any(|part| part == "..")
    });
    let Some(cgroup) = cgroup else {
        return Vec::new();
    };
    for mounted in CGROUPS {
        let folder = root.join(mounted).join(&cgroup[1..]);
        let Ok(folder) = Folder::list(&folder) else {
            continue;
        };
        let mut content = Vec::new();
        if folder.read_list(c"cgroup.procs", &mut content, CGROUP_BYTES).is_ok() {
            return content.split(|&byte| byte == b'\n').filter_map(parse_number).collect();
        }
    }
    Vec::new()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::host::Holders;
    use crate::host::testing::{FakeProc, StatLine};
    use crate::model::process::{Container, Slurm};

    struct Fake {
        proc: FakeProc,
        around: HostFacts,
        holders: Holders,
        now_ns: u64,
    }

    impl Fake {
        fn new() -> Self {
            let proc = FakeProc::new();
            Self {
                around: HostFacts::new(proc.roots.clone()),
                holders: Holders::new(proc.roots.clone()),
                proc,
                now_ns: VALID_NS,
            }
        }

        fn process(&self, pid: u32, ppid: u32, session: u32, socket: u64) {
            self.proc.stat(pid, &StatLine { ppid, session, ..StatLine::ASLEEP });
            self.proc.put(pid, "cmdline", format!("program{pid}\0-x\0"));
            self.proc.link(pid, "cwd", format!("/srv/{pid}"));
            self.proc.link(pid, "ns/net", "net:[1]");
            self.proc.link(pid, "fd/3", format!("socket:[{socket}]"));
            let lines: String = [8, 9]
                .iter()
                .map(|inode| format!("0: 0100007F:1F9{inode} 0:0 0A 0:0 0:0 0 0 0 {inode} 1\n"))
                .collect();
            self.proc.put(pid, "net/tcp", format!("heading\n{lines}"));
        }

        fn relatives(&mut self, process: &Process) -> Vec<(u32, Relation, String)> {
            self.around.begin(self.now_ns);
            self.holders.fill_descendants(&mut [], |_| None, self.now_ns);
            let mut processes = [process.clone()];
            self.around.fill_relatives(&mut processes, self.holders.tree(), self.now_ns);
            let relatives = processes[0].listening_relatives.clone().unwrap();
            relatives
                .iter()
                .map(|it| {
                    assert_eq!(*it.command.as_ref().unwrap()[0], *format!("program{}", it.pid));
                    let folder = it.pid.to_string();
                    assert_eq!(it.working_directory.as_deref(), Some(&*folder));
                    (it.pid, it.relation, it.listening_on.join(" "))
                })
                .collect()
        }
    }

    fn process(pid: u32) -> Process {
        Process { pid, start_ticks: Some(7), session: Some(70), ..Process::default() }
    }

    #[test]
    fn ancestors_in_the_session_and_descendants_are_searched() {
        let mut fake = Fake::new();
        // The processes are a terminal server, a shell, a listening front end, the process itself, and its listening
        // child.
        fake.process(60, 1, 60, 8);
        fake.process(70, 60, 70, 1);
        fake.process(71, 70, 70, 8);
        fake.process(72, 71, 70, 1);
        fake.process(73, 72, 73, 9);
        fake.process(74, 70, 70, 9);
        let (eight, nine) = ("tcp:127.0.0.1:8088", "tcp:127.0.0.1:8089");
        assert_eq!(
            fake.relatives(&process(72)),
            [
                (71, Relation::Ancestor, eight.to_owned()),
                (73, Relation::Descendant, nine.to_owned()),
            ]
        );
        // Relatives are read again only after half a minute.
        fs::remove_file(fake.proc.proc.join("71/fd/3")).unwrap();
        fake.now_ns += VALID_NS - 1;
        assert_eq!(fake.relatives(&process(72)).len(), 2);
        fake.now_ns += 1;
        assert_eq!(fake.relatives(&process(72)), [(73, Relation::Descendant, nine.to_owned())]);
        // The pid has been reused by another process.
        let other = Process { start_ticks: Some(8), ..process(72) };
        assert_eq!(fake.relatives(&other).len(), 1);
        let unknown = Process { pid: 72, ..Process::default() };
        let mut processes = [unknown];
        fake.around.fill_relatives(&mut processes, fake.holders.tree(), fake.now_ns);
        assert_eq!(processes[0].listening_relatives, None);
    }

    #[test]
    fn a_session_outside_the_namespace_is_shared_with_ancestors() {
        let mut fake = Fake::new();
        // The leader of the common session is outside the namespace. Process 60 is in a different session.
        fake.process(60, 1, 60, 8);
        fake.process(70, 60, 0, 1);
        fake.process(71, 70, 0, 8);
        fake.process(72, 71, 0, 1);
        let outside = Process { session: None, ..process(72) };
        let relative = (71, Relation::Ancestor, "tcp:127.0.0.1:8088".to_owned());
        assert_eq!(fake.relatives(&outside), [relative]);
    }

    #[test]
    fn other_processes_of_a_service_or_container_are_searched() {
        let mut fake = Fake::new();
        fake.process(70, 1, 70, 1);
        fake.process(80, 1, 80, 8);
        let cgroup = "/system.slice/llm.service";
        let folder = fake.proc.root.join("sys/fs/cgroup").join(&cgroup[1..]);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("cgroup.procs"), "70\n80\n99\n").unwrap();
        let of = |cgroup: &str, unit: Option<&str>| Process {
            cgroup: Some(cgroup.into()),
            systemd_unit: unit.map(Arc::from),
            ..process(70)
        };
        let unit = of(cgroup, Some("llm.service"));
        let container =
            Process { container: Some(Arc::new(Container::default())), ..of(cgroup, None) };
        let found = [(80, Relation::Cgroup, "tcp:127.0.0.1:8088".to_owned())];
        for process in [unit.clone(), container] {
            assert_eq!(fake.relatives(&process), found);
            fake.now_ns += VALID_NS;
        }
        let step = Process { slurm: Some(Arc::new(Slurm::default())), ..unit };
        for process in [
            of(cgroup, None),
            of(cgroup, Some("user@1000.service")),
            of(cgroup, Some("session-3.scope")),
            of("/../llm.service", Some("llm.service")),
            of("/", Some("llm.service")),
            step,
        ] {
            assert_eq!(fake.relatives(&process), [], "{:?}", process.systemd_unit);
            fake.now_ns += VALID_NS;
        }
    }
}
