//! A visit to a watched process: what is due is read through its folder. When a visit is due, and what a stat alone
//! tells, is in `entry`.

use std::sync::Arc;

use rustix::io::{self, Errno, pread};

use crate::host::gpu::gpu_files::read_held;
use crate::host::owner::cgroup::CGROUP_BYTES;
use crate::host::owner::place::Around;
use crate::host::proc::cmdline::{CMDLINE_BYTES, parse_cmdline};
use crate::host::proc::entry::{
    ProcessEntry, REVISIT_NS, SECOND_NS, STATUS_BYTES, Surroundings, due_after,
};
use crate::host::proc::environ::{ENVIRON_BYTES, parse_environ};
use crate::host::proc::folder::{Folder, if_readable, is_gone};
use crate::host::proc::framework::read_framework;
use crate::host::proc::io_counters::{IO_BYTES, parse_io};
use crate::host::proc::notebook::parse_kernel;
use crate::host::proc::stat::{STAT_BYTES, Stat, parse_stat};
use crate::host::proc::status::parse_status;

/// How long after a look at the libraries the next one is due: soon while a program loads, then
/// seldom, since thousands of mappings take a millisecond and hold the process up meanwhile.
const MAPS_AGAIN_NS: [u64; 3] = [5 * SECOND_NS, 25 * SECOND_NS, 300 * SECOND_NS];

/// What is to be read in a visit.
#[derive(Debug)]
pub(in crate::host) struct DueReads {
    /// What seldom changes.
    slow: bool,
    /// Which files it runs and holds open.
    files: bool,
    /// argv.
    command: bool,
    environment: bool,
    /// The libraries it has mapped.
    maps: bool,
}

impl DueReads {
    pub(in crate::host) fn of(entry: &ProcessEntry, stat: &Stat<'_>, now_ns: u64) -> Self {
        let slow = now_ns >= entry.revisit_ns;
        let has_memory = stat.state != 'D' && !stat.is_exiting && !stat.is_kernel_thread;
        Self {
            slow,
            files: !stat.is_exiting && slow,
            command: has_memory && (slow || entry.wants_command),
            environment: has_memory && entry.wants_environment,
            maps: has_memory && now_ns >= entry.maps_ns,
        }
    }

    pub(in crate::host) fn is_any(&self) -> bool {
        self.slow || self.command || self.environment || self.maps
    }
}

impl ProcessEntry {
    /// Whether `folder`, opened by the pid alone, is this process's and not a later one's.
    fn owns(&self, folder: &Folder) -> io::Result<bool> {
        let mut content = [0; STAT_BYTES];
        let length = match &self.stat {
            // It was alive after the folder was opened, so that the pid was its own then.
            Some(file) => pread(file, &mut content, 0)?,
            None => pread(folder.file(c"stat")?, &mut content, 0)?,
        };
        let start_ticks = parse_stat(&content[..length]).map(|stat| stat.start_ticks);
        Ok(start_ticks.is_some() && start_ticks == self.process.start_ticks)
    }
}

impl Surroundings {
    /// Reads what is due through the process's folder.
    ///
    /// # Errors
    ///
    /// Where the process is gone, or no descriptor is left.
    pub(in crate::host) fn visit(
        &mut self,
        entry: &mut ProcessEntry,
        folder: Option<&Folder>,
        due: &DueReads,
        now_ns: u64,
    ) -> io::Result<()> {
        let opened;
        let folder = match folder {
            Some(folder) => folder,
            None => {
                opened = Folder::open(&self.roots.proc, entry.process.pid)?;
                if !entry.owns(&opened)? {
                    return Err(Errno::SRCH);
                }
                &opened
            }
        };
        if due.slow {
            self.read_owner(entry, folder, now_ns)?;
        }
        if due.files {
            self.read_files(entry, folder)?;
        }
        if due.command {
            // One byte more than is kept tells whether there is more.
            let read = folder.read(c"cmdline", &mut self.content, CMDLINE_BYTES + 1);
            let command = if_readable(read)?.and_then(|()| parse_cmdline(&self.content));
            // One that begins to exit has no argv any more; what it had stands.
            if let Some(command) = command
                && entry.process.command.as_ref() != Some(&command)
            {
                entry.process.jupyter = parse_kernel(&command).map(Arc::from);
                entry.process.command = Some(command);
            }
        }
        if due.environment {
            // Read once for each program: it does not change, but for what a process writes over it.
            let read = if_readable(folder.read(c"environ", &mut self.content, ENVIRON_BYTES))?;
            entry.process.environment = read.map(|()| Arc::new(parse_environ(&self.content)));
            entry.wants_environment = false;
        }
        if due.slow || due.environment {
            let read = if_readable(folder.read(c"cgroup", &mut self.content, CGROUP_BYTES))?;
            let cgroup = read.map(|()| self.content.as_slice().into());
            let mut around = Around {
                proc: &self.roots.proc,
                names: &mut self.names,
                jobs: &mut self.jobs,
                ancestors: &mut self.ancestors,
                users: &mut self.users,
                now_ns,
            };
            entry.whereabouts.renew(&mut entry.process, cgroup, &mut around, &mut self.content);
        }
        if due.maps {
            read_libraries(entry, folder, now_ns)?;
        }
        if due.slow {
            entry.revisit_ns = due_after(REVISIT_NS, entry.process.pid, now_ns);
            entry.wants_command = !due.command;
        } else if due.command {
            entry.wants_command = false;
        }
        Ok(())
    }

    /// Whose process it is. The status is read only where the folder has another owner than before.
    fn read_owner(
        &mut self,
        entry: &mut ProcessEntry,
        folder: &Folder,
        now_ns: u64,
    ) -> io::Result<()> {
        let owner = folder.owner()?;
        let process = &mut entry.process;
        if entry.owner != Some(owner) {
            let read = folder.read(c"status", &mut self.content, STATUS_BYTES);
            let status = if_readable(read)?.map(|()| parse_status(&self.content));
            let status = status.unwrap_or_default();
            process.uid = status.uid;
            process.namespace_pid = status.namespace_pid;
        }
        entry.owner = Some(owner);
        process.user = process.uid.and_then(|uid| self.users.name(uid, now_ns));
        Ok(())
    }

    /// Which files it runs and holds open.
    fn read_files(&mut self, entry: &mut ProcessEntry, folder: &Folder) -> io::Result<()> {
        let process = &mut entry.process;
        let held = read_held(folder, &self.roots.dev)?;
        let path = |path: &[u8]| String::from_utf8_lossy(path).into_owned();
        match folder.link(c"exe", path) {
            // It has begun to exit: what it was stands.
            Err(errno) if is_gone(errno) => {}
            link => set(&mut process.executable, if_readable(link)?.as_deref()),
        }
        let listens = self.listening.read(folder, held.sockets.as_ref())?;
        process.listening = listens.at_all;
        process.sockets = listens.sockets;
        if process.listening_on != listens.on {
            process.listening_on = listens.on;
        }
        // A kernel may be built without it, and who has gone is missed by other files.
        let io = folder.read(c"io", &mut self.content, IO_BYTES);
        process.io_bytes = io.ok().and_then(|()| parse_io(&self.content));
        let gpu_files = held.gpu_files.filter(|_| self.has_gpu_device_files);
        if process.gpu_files != gpu_files {
            process.gpu_files = gpu_files;
        }
        Ok(())
    }
}

/// The framework by the libraries that are mapped. What was loaded stands where the maps may not be read any more.
fn read_libraries(entry: &mut ProcessEntry, folder: &Folder, now_ns: u64) -> io::Result<()> {
    let process = &mut entry.process;
    let command = process.command.as_deref().unwrap_or_default();
    if let Some(loaded) = read_framework(folder, command)? {
        set(&mut process.framework, loaded.framework);
        set(&mut process.framework_version, loaded.version.as_deref());
        set_all(&mut process.libraries, &loaded.libraries);
    }
    let again = MAPS_AGAIN_NS[entry.maps_looks.min(MAPS_AGAIN_NS.len() - 1)];
    entry.maps_ns = due_after(again, process.pid, now_ns);
    entry.maps_looks = entry.maps_looks.saturating_add(1);
    Ok(())
}

/// Sets a text, keeping the one that is shared where it is the same.
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
