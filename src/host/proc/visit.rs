//! Visits a watched process, that is, reads the files that are not read in every sample. `processes` decides when a
//! visit is due.
//!
//! Each visit reads open files, sockets, I/O and the cgroup. Owner, program, working directory, cmdline and maps rarely
//! change unless the process executes another program. They are read at each visit during the first minute after an
//! exec, and then at every tenth visit. The environment is read once for each executed program.

use std::path::Path;
use std::sync::Arc;

use rustix::io::{self, Errno};

use crate::host::gpu::gpu_files::read_held_within;
use crate::host::owner::cgroup::CGROUP_BYTES;
use crate::host::owner::place::PlaceInput;
use crate::host::proc::cmdline::{CMDLINE_BYTES, parse_cmdline, read_working_directory};
use crate::host::proc::environ::{ENVIRON_BYTES, parse_own_environ};
use crate::host::proc::folder::{Folder, if_readable, is_gone, read_text};
use crate::host::proc::framework::{MAPS_BYTES, loaded};
use crate::host::proc::notebook::parse_kernel;
use crate::host::proc::processes::{HostFacts, ProcessEntry, REVISIT_NS, SECOND_NS};
use crate::host::proc::stat::Stat;
use crate::host::proc::status::{owner_uid, read_status};
use crate::host::proc::usage::{IO_BYTES, parse_io};
use crate::model::Process;
use crate::model::program::{is_preloaded, never_killed};

/// Time, in nanoseconds, after an exec during which each visit reads all files, because the program may still be
/// loading libraries.
const YOUNG_NS: u64 = 60 * SECOND_NS;

const YOUNG_VISIT_NS: u64 = 5 * SECOND_NS;

const VISITS_TO_ALL: u32 = 10;

const EVENTS_BYTES: u64 = 1024;

/// Thread whose folder shows the process's files and memory. It is the first thread, or another one if the first
/// thread has exited.
#[derive(Clone, Copy)]
pub(in crate::host) struct LiveThread<'a> {
    pub folder: &'a Folder,
    pub stat: &'a Stat<'a>,
}

impl HostFacts {
    /// Reads the files that are due. Skips files whose reading may block on the lock of the memory map. Returns an
    /// error if the process has exited or gpumem has no file descriptors left.
    pub(in crate::host) fn visit(
        &mut self,
        entry: &mut ProcessEntry,
        folder: &Folder,
        alive: LiveThread<'_>,
        now_ns: u64,
    ) -> io::Result<()> {
        let is_young = now_ns.saturating_sub(entry.executed_ns) < YOUNG_NS;
        let reads_all = is_young || entry.visits.is_multiple_of(VISITS_TO_ALL);
        if reads_all {
            self.read_owner(&mut entry.process, folder, now_ns)?;
        }
        if !alive.stat.is_exiting {
            if reads_all {
                self.read_program(&mut entry.process, alive.folder)?;
            }
            self.read_files(entry, alive.folder, now_ns)?;
        }
        if reads_all || entry.is_memory_unread {
            entry.is_memory_unread = !alive.stat.has_memory();
            if alive.stat.has_memory() {
                self.read_memory(&mut entry.process, alive.folder)?;
            }
        }
        if entry.process.environment.as_deref().is_some_and(is_preloaded) {
            let is_roots = &mut entry.process.executable_is_roots;
            *is_roots = is_roots.map(|_| false);
        }
        let read = if_readable(folder.read(c"cgroup", &mut self.content, CGROUP_BYTES))?;
        let cgroup = read.map(|()| self.content.as_slice().into());
        let mut input = PlaceInput {
            proc: &self.roots.proc,
            names: &mut self.names,
            jobs: &mut self.jobs,
            users: &mut self.users,
            above: &mut self.above,
            now_ns,
        };
        entry.process_place.renew(&mut entry.process, cgroup, &mut input, &mut self.content);
        entry.process.frozen = entry.process.cgroup.clone().and_then(|cgroup| {
            let read = || is_frozen(&self.roots.root, &cgroup);
            *self.frozen.entry(Arc::clone(&cgroup)).or_insert_with(read)
        });
        entry.visits = entry.visits.saturating_add(1);
        // The visits are distributed over the interval by pid, so that no sample visits all processes.
        let second_ns = now_ns.saturating_add(u64::from(entry.process.pid) * SECOND_NS);
        let until_ns = if is_young { YOUNG_VISIT_NS } else { REVISIT_NS - second_ns % REVISIT_NS };
        entry.revisit_ns = now_ns.saturating_add(until_ns);
        Ok(())
    }

    fn read_memory(&mut self, process: &mut Process, folder: &Folder) -> io::Result<()> {
        // The environment changes only if the process overwrites it, so it is read only once for each executed program.
        let looks_at_environment = process.environment.is_none();
        let [command, environment, maps] = folder.read_memory([
            CMDLINE_BYTES + 1,
            if looks_at_environment { ENVIRON_BYTES } else { 0 },
            MAPS_BYTES,
        ]);
        if let Some(command) = if_readable(command)?.and_then(|bytes| parse_cmdline(&bytes))
            && process.command.as_ref() != Some(&command)
        {
            process.jupyter = parse_kernel(&command).map(Arc::from);
            process.command = Some(command);
        }
        if looks_at_environment {
            let read = if_readable(environment)?;
            process.environment = read.and_then(|bytes| parse_own_environ(&bytes, folder));
        }
        // If the kernel denies access to maps, the previous values remain.
        if let Some(maps) = if_readable(maps)? {
            let loaded = loaded(&maps, process.command.as_deref().unwrap_or_default());
            set(&mut process.framework, loaded.framework);
            set(&mut process.framework_version, loaded.version.as_deref());
            set_all(&mut process.libraries, &loaded.libraries);
        }
        Ok(())
    }

    fn read_owner(
        &mut self,
        process: &mut Process,
        folder: &Folder,
        now_ns: u64,
    ) -> io::Result<()> {
        let status = if_readable(read_status(folder, &mut self.content))?.unwrap_or_default();
        let uid = status.uid;
        process.namespace_pid = status.namespace_pid;
        process.uid = owner_uid(folder, uid, &mut self.content);
        process.user = process.uid.and_then(|uid| self.users.name(uid, now_ns));
        Ok(())
    }

    fn read_program(&mut self, process: &mut Process, folder: &Folder) -> io::Result<()> {
        let path = |path: &[u8]| String::from_utf8_lossy(path).into_owned();
        match folder.link(c"exe", path) {
            Err(errno) if is_gone(errno) => {}
            link => {
                set(&mut process.executable, if_readable(link)?.as_deref());
                let name = never_killed(process.executable.as_deref(), None, None, &[]);
                process.executable_is_roots = name.and_then(|_| folder.leads_to_roots_file(c"exe"));
            }
        }
        match read_working_directory(folder) {
            Err(errno) if is_gone(errno) => {}
            read => set(&mut process.working_directory, if_readable(read)?.as_deref()),
        }
        Ok(())
    }

    fn read_files(
        &mut self,
        entry: &mut ProcessEntry,
        folder: &Folder,
        now_ns: u64,
    ) -> io::Result<()> {
        let process = &mut entry.process;
        let files = read_held_within(&mut self.descriptors, folder, &self.roots.dev)?;
        let listening = self.listening.read(folder, files.sockets.as_ref())?;
        process.listening = listening.at_all;
        if process.listening_on != listening.on {
            process.listening_on = listening.on;
        }
        let sockets = files.sockets.as_ref();
        let servers = sockets.and_then(|held| self.listening.servers(folder, &held.inodes));
        if process.connected_to.as_deref() != servers.as_deref() {
            process.connected_to = servers.map(Arc::from);
        }
        // The kernel may lack this file. Other files show whether the process has exited.
        let io = folder.read(c"io", &mut self.content, IO_BYTES);
        let by_files = io.ok().and_then(|()| parse_io(&self.content));
        entry.file_bytes = (by_files, now_ns);
        let inodes = files.sockets.map(|sockets| sockets.inodes).unwrap_or_default();
        let at = (&self.roots, folder);
        let by_sockets = self.traffic.add(&mut entry.socket_bytes, at, &inodes, now_ns);
        process.io_bytes = match by_sockets {
            Err(Errno::NOBUFS) => None,
            // If gpumem may not enter the network namespace, only file I/O is included.
            by_sockets => by_files.map(|bytes| bytes.saturating_add(by_sockets.unwrap_or(0))),
        };
        let gpu_files = files.gpu_files.filter(|_| self.has_gpu_device_files);
        if process.gpu_files != gpu_files {
            process.gpu_files = gpu_files;
        }
        Ok(())
    }
}

/// Returns whether a cgroup is frozen, or `None` if it is a v1 cgroup or outside gpumem's cgroup namespace.
fn is_frozen(root: &Path, cgroup: &str) -> Option<bool> {
    let is_outside = cgroup.split('/').any(|part| part == "..");
    let events = root.join("sys/fs/cgroup").join(cgroup.trim_start_matches('/'));
    let events =
        (!is_outside).then(|| read_text(&events.join("cgroup.events"), EVENTS_BYTES))??;
    let frozen = events.lines().find_map(|line| line.strip_prefix("frozen "));
    frozen.map(|frozen| frozen.trim() == "1")
}

/// Replaces a text only if it has changed, because samples share it.
fn set(text: &mut Option<Arc<str>>, new: Option<&str>) {
    if text.as_deref() != new {
        *text = new.map(Arc::from);
    }
}

fn set_all(list: &mut Option<Arc<[Arc<str>]>>, new: &[&str]) {
    let old = list.as_deref().unwrap_or_default();
    if !old.iter().map(|text| &**text).eq(new.iter().copied()) {
        *list = (!new.is_empty()).then(|| new.iter().copied().map(Arc::from).collect());
    }
}
