//! A full read of a watched process: everything beyond stat. `entry` decides when it is due.

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
use crate::host::proc::framework::{MAPS_BYTES, loaded};
use crate::host::proc::io_counters::{IO_BYTES, parse_io};
use crate::host::proc::notebook::parse_kernel;
use crate::host::proc::small_file::read_text;
use crate::host::proc::stat::Stat;
use crate::host::proc::status::{STATUS_BYTES, owner_uid, parse_status};
use crate::model::Process;
use crate::model::program::never_killed;

/// Interval between full reads while a program loads.
const YOUNG_NS: u64 = 5 * SECOND_NS;

/// How many full reads a loading program gets.
const YOUNG_VISITS: u32 = 3;

/// After those, one full read in this many includes the libraries: thousands of mappings take a millisecond.
const VISITS_TO_LIBRARIES: u32 = 10;

/// The most that is read of `cgroup.events`, which has two lines.
const EVENTS_BYTES: u64 = 1024;

/// The thread through which a process's files and memory are read: the first one, or a live one.
#[derive(Clone, Copy)]
pub(in crate::host) struct LiveThread<'a> {
    pub folder: &'a Folder,
    pub stat: &'a Stat<'a>,
}

impl Surroundings {
    /// Reads everything through the process's folder; its memory only if that cannot block.
    ///
    /// # Errors
    ///
    /// If the process is gone, or gpumem is out of descriptors.
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

    /// Reads argv, environment and libraries.
    fn read_memory(&mut self, entry: &mut ProcessEntry, folder: &Folder) -> io::Result<()> {
        let process = &mut entry.process;
        // Read once for each program: it changes only if the process writes over it.
        let looks_at_environment = process.environment.is_none();
        let looks_at_libraries = entry.is_memory_unread
            || entry.visits <= YOUNG_VISITS
            || entry.visits.is_multiple_of(VISITS_TO_LIBRARIES);
        let [command, environment, maps] = folder.read_memory([
            // One byte more than is kept shows whether there is more.
            CMDLINE_BYTES + 1,
            if looks_at_environment { ENVIRON_BYTES } else { 0 },
            if looks_at_libraries { MAPS_BYTES } else { 0 },
        ]);
        // A process that begins to exit has no argv; the old one stays.
        if let Some(command) = if_readable(command)?.and_then(|it| parse_cmdline(&it))
            && process.command.as_ref() != Some(&command)
        {
            process.jupyter = parse_kernel(&command).map(Arc::from);
            process.command = Some(command);
        }
        if looks_at_environment {
            process.environment = if_readable(environment)?.and_then(|it| parse_whole_environ(&it));
        }
        // The old value stays if the maps may no longer be read.
        if let Some(maps) = if_readable(maps)?.filter(|_| looks_at_libraries) {
            let loaded = loaded(&maps, process.command.as_deref().unwrap_or_default());
            set(&mut process.framework, loaded.framework);
            set(&mut process.framework_version, loaded.version.as_deref());
            set_all(&mut process.libraries, &loaded.libraries);
        }
        Ok(())
    }

    /// Reads whose process it is.
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

    /// Reads which files it runs and holds open.
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
            // It has begun to exit; the old value stays.
            Err(errno) if is_gone(errno) => {}
            link => {
                set(&mut process.executable, if_readable(link)?.as_deref());
                let name = never_killed(process.executable.as_deref(), None, None, &[]);
                process.executable_is_roots = name.and_then(|_| folder.leads_to_roots_file(c"exe"));
            }
        }
        let listens = self.listening.read(folder, held.sockets.as_ref())?;
        process.listening = listens.at_all;
        if process.listening_on != listens.on {
            process.listening_on = listens.on;
        }
        // A kernel may lack this file, and other files show whether the process is gone.
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

/// Whether a cgroup of the unified hierarchy is frozen; `None` if it is none, or outside this one's root.
fn is_frozen(root: &Path, cgroup: &str) -> Option<bool> {
    let is_above = cgroup.split('/').any(|part| part == "..");
    let events = root.join("sys/fs/cgroup").join(cgroup.trim_start_matches('/'));
    let events = (!is_above).then(|| read_text(&events.join("cgroup.events"), EVENTS_BYTES))??;
    let frozen = events.lines().find_map(|line| line.strip_prefix("frozen "));
    frozen.map(|frozen| frozen.trim() == "1")
}

/// Sets a text, keeping the shared one if it is equal.
fn set(text: &mut Option<Arc<str>>, new: Option<&str>) {
    if text.as_deref() != new {
        *text = new.map(Arc::from);
    }
}

/// As [`set`], for a list; an empty one becomes `None`.
fn set_all(list: &mut Option<Arc<[Arc<str>]>>, new: &[&str]) {
    let old = list.as_deref().unwrap_or_default();
    if !old.iter().map(|text| &**text).eq(new.iter().copied()) {
        *list = (!new.is_empty()).then(|| new.iter().copied().map(Arc::from).collect());
    }
}
