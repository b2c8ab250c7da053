//! A visit to a watched process: all that its stat does not tell is read through its folder. When a visit is due is
//! in `entry`.

use std::path::Path;
use std::sync::Arc;

use rustix::io;

use crate::host::gpu::gpu_files::read_held;
use crate::host::owner::cgroup::CGROUP_BYTES;
use crate::host::owner::place::Around;
use crate::host::proc::cmdline::{CMDLINE_BYTES, parse_cmdline};
use crate::host::proc::entry::{ProcessEntry, REVISIT_NS, SECOND_NS, Surroundings};
use crate::host::proc::environ::{ENVIRON_BYTES, parse_whole_environ};
use crate::host::proc::folder::{Folder, if_readable, is_gone};
use crate::host::proc::framework::read_framework;
use crate::host::proc::io_counters::{IO_BYTES, parse_io};
use crate::host::proc::notebook::parse_kernel;
use crate::host::proc::small_file::read_text;
use crate::host::proc::stat::Stat;
use crate::host::proc::status::{STATUS_BYTES, owner_uid, parse_status};
use crate::model::Process;
use crate::model::program::never_killed;

/// How soon after a visit the next one is due, while a program loads.
const YOUNG_NS: u64 = 5 * SECOND_NS;

/// So many visits are to a program that loads.
const YOUNG_VISITS: u32 = 3;

/// In every so many visits after those the libraries are looked at: thousands of mappings take a millisecond.
const VISITS_TO_LIBRARIES: u32 = 10;

/// The longest `cgroup.events` that is read: it has two lines.
const EVENTS_BYTES: u64 = 1024;

/// The thread through which a process's files and memory are seen: its first one, or what is left.
#[derive(Clone, Copy)]
pub(in crate::host) struct LiveThread<'a> {
    pub folder: &'a Folder,
    pub stat: &'a Stat<'a>,
}

impl Surroundings {
    /// Reads all through the process's folder, its memory only where that is not held up.
    ///
    /// # Errors
    ///
    /// Where the process is gone, or no descriptor is left.
    pub(in crate::host) fn visit(
        &mut self,
        entry: &mut ProcessEntry,
        folder: &Folder,
        alive: LiveThread<'_>,
        now_ns: u64,
    ) -> io::Result<()> {
        let has_memory = alive.stat.has_memory();
        self.read_owner(&mut entry.process, folder, now_ns)?;
        if !alive.stat.is_exiting {
            self.read_files(entry, alive.folder, now_ns)?;
        }
        if has_memory {
            self.read_memory(entry, alive.folder)?;
        }
        let read = if_readable(folder.read(c"cgroup", &mut self.content, CGROUP_BYTES))?;
        let cgroup = read.map(|()| self.content.as_slice().into());
        let mut around = Around {
            proc: &self.roots.proc,
            names: &mut self.names,
            jobs: &mut self.jobs,
            users: &mut self.users,
            above: &mut self.above,
            now_ns,
        };
        entry.whereabouts.renew(&mut entry.process, cgroup, &mut around, &mut self.content);
        let cgroup = entry.process.cgroup.as_deref();
        entry.process.frozen = cgroup.and_then(|cgroup| is_frozen(&self.roots.root, cgroup));
        entry.is_memory_unread = !has_memory;
        entry.visits = entry.visits.saturating_add(1);
        let is_young = entry.visits <= YOUNG_VISITS;
        entry.revisit_ns = now_ns.saturating_add(if is_young { YOUNG_NS } else { REVISIT_NS });
        Ok(())
    }

    /// Its arguments, environment and libraries.
    fn read_memory(&mut self, entry: &mut ProcessEntry, folder: &Folder) -> io::Result<()> {
        let process = &mut entry.process;
        // One byte more than is kept tells whether there is more.
        let read = folder.read(c"cmdline", &mut self.content, CMDLINE_BYTES + 1);
        let command = if_readable(read)?.and_then(|()| parse_cmdline(&self.content));
        // One that begins to exit has no argv any more; what it had stands.
        if let Some(command) = command
            && process.command.as_ref() != Some(&command)
        {
            process.jupyter = parse_kernel(&command).map(Arc::from);
            process.command = Some(command);
        }
        if process.environment.is_none() {
            // Read once for each program: it does not change, but for what a process writes over it.
            let read = if_readable(folder.read(c"environ", &mut self.content, ENVIRON_BYTES))?;
            process.environment = read.and_then(|()| parse_whole_environ(&self.content));
        }
        let looks_at_libraries = entry.is_memory_unread
            || entry.visits <= YOUNG_VISITS
            || entry.visits.is_multiple_of(VISITS_TO_LIBRARIES);
        // What was loaded stands where the maps may not be read any more.
        let command = process.command.as_deref().unwrap_or_default();
        if looks_at_libraries && let Some(loaded) = read_framework(folder, command)? {
            set(&mut process.framework, loaded.framework);
            set(&mut process.framework_version, loaded.version.as_deref());
            set_all(&mut process.libraries, &loaded.libraries);
        }
        Ok(())
    }

    /// Whose process it is.
    fn read_owner(
        &mut self,
        process: &mut Process,
        folder: &Folder,
        now_ns: u64,
    ) -> io::Result<()> {
        let read = if_readable(folder.read(c"status", &mut self.content, STATUS_BYTES))?;
        let status = read.map(|()| parse_status(&self.content)).unwrap_or_default();
        let uid = status.uid;
        process.namespace_pid = status.namespace_pid;
        process.uid = owner_uid(folder, uid, &mut self.content);
        process.user = process.uid.and_then(|uid| self.users.name(uid, now_ns));
        Ok(())
    }

    /// Which files it runs and holds open.
    fn read_files(
        &mut self,
        entry: &mut ProcessEntry,
        folder: &Folder,
        now_ns: u64,
    ) -> io::Result<()> {
        let process = &mut entry.process;
        let held = read_held(folder, &self.roots.dev)?;
        let path = |path: &[u8]| String::from_utf8_lossy(path).into_owned();
        match folder.link(c"exe", path) {
            // It has begun to exit: what it was stands.
            Err(errno) if is_gone(errno) => {}
            link => {
                set(&mut process.executable, if_readable(link)?.as_deref());
                let name = never_killed(process.executable.as_deref(), None, None, &[]);
                process.executable_is_roots = name.and_then(|_| folder.leads_to_roots_file(c"exe"));
            }
        }
        let listens = self.listening.read(folder, held.sockets.as_ref())?;
        process.listening = listens.at_all;
        process.sockets = listens.sockets;
        if process.listening_on != listens.on {
            process.listening_on = listens.on;
        }
        // A kernel may be built without it, and who has gone is missed by other files.
        let io = folder.read(c"io", &mut self.content, IO_BYTES);
        let by_files = io.ok().and_then(|()| parse_io(&self.content));
        let inodes = held.sockets.map(|it| it.inodes).unwrap_or_default();
        let at = (&self.roots, folder);
        let by_sockets = self.traffic.add(&mut entry.socket_bytes, at, &inodes, now_ns);
        process.io_bytes = by_files.map(|bytes| bytes.saturating_add(by_sockets.unwrap_or(0)));
        let gpu_files = held.gpu_files.filter(|_| self.has_gpu_device_files);
        if process.gpu_files != gpu_files {
            process.gpu_files = gpu_files;
        }
        Ok(())
    }
}

/// Sets a text, keeping the one that is shared where it is the same.
/// Whether a cgroup of the unified hierarchy is frozen; `None` where it is none, or is not under this one's root.
fn is_frozen(root: &Path, cgroup: &str) -> Option<bool> {
    let is_above = cgroup.split('/').any(|part| part == "..");
    let events = root.join("sys/fs/cgroup").join(cgroup.trim_start_matches('/'));
    let events = (!is_above).then(|| read_text(&events.join("cgroup.events"), EVENTS_BYTES))??;
    let frozen = events.lines().find_map(|line| line.strip_prefix("frozen "));
    frozen.map(|frozen| frozen.trim() == "1")
}

fn set(text: &mut Option<Arc<str>>, new: Option<&str>) {
    if text.as_deref() != new {
        *text = new.map(Arc::from);
    }
}

/// Sets a list likewise; an empty one says nothing.
fn set_all(list: &mut Option<Arc<[Arc<str>]>>, new: &[&str]) {
    let old = list.as_deref().unwrap_or_default();
    if !old.iter().map(|text| &**text).eq(new.iter().copied()) {
        *list = (!new.is_empty()).then(|| new.iter().copied().map(Arc::from).collect());
    }
}
