//! A visit to a watched process: what is due is read through its folder, and taken in.
//!
//! The reading needs nothing that several processes share, so that many new ones are read on several threads
//! (`first_look`); what was read is then taken in one process after the other. When a visit is due, and what a
//! stat alone tells, is in `entry`.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use rustix::io::{self, Errno, pread};

use super::cgroup::CGROUP_BYTES;
use super::cmdline::{CMDLINE_BYTES, parse_cmdline};
use super::entry::{ProcessEntry, SECOND_NS, STATUS_BYTES, Surroundings, due_after};
use super::environ::{ENVIRON_BYTES, parse_environ};
use super::folder::{Folder, if_readable, is_gone};
use super::framework::{Loaded, read_framework};
use super::gpu_files::{HeldFiles, read_held};
use super::io_counters::{IO_BYTES, parse_io};
use super::notebook::parse_kernel;
use super::place::Around;
use super::stat::{STAT_BYTES, Stat, parse_stat};
use super::status::parse_status;

/// How long after a look at the libraries the next one is due: soon while a program loads, then
/// seldom, since thousands of mappings take a millisecond and hold the process up meanwhile.
const MAPS_AGAIN_NS: [u64; 3] = [5 * SECOND_NS, 25 * SECOND_NS, 300 * SECOND_NS];

/// What is to be read in a visit.
#[derive(Debug)]
pub(super) struct DueReads {
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
    /// All that a process in this state may be asked for.
    pub(super) fn all(stat: &Stat<'_>) -> Self {
        let has_memory = stat.state != 'D' && !stat.is_exiting && !stat.is_kernel_thread;
        Self {
            slow: true,
            files: !stat.is_exiting,
            command: has_memory,
            environment: has_memory,
            maps: has_memory,
        }
    }

    /// What of that is due now.
    pub(super) fn of(entry: &ProcessEntry, stat: &Stat<'_>, now_ns: u64) -> Self {
        let slow = now_ns >= entry.revisit_ns;
        let all = Self::all(stat);
        Self {
            slow,
            files: all.files && slow,
            command: all.command && (slow || entry.wants_command),
            environment: all.environment && entry.wants_environment,
            maps: all.maps && now_ns >= entry.maps_ns,
        }
    }

    pub(super) fn is_any(&self) -> bool {
        self.slow || self.command || self.environment || self.maps
    }

    /// Reads what is due. `owner` and `command` are what is known of the process so far, `content` is what files
    /// are read into.
    ///
    /// # Errors
    ///
    /// Where the process is gone, or no descriptor is left.
    pub(super) fn read(
        &self,
        folder: &Folder,
        dev: &Path,
        (owner, command): (Option<u32>, &[Arc<str>]),
        content: &mut Vec<u8>,
    ) -> io::Result<VisitReads> {
        let mut reads = VisitReads::default();
        if self.slow {
            reads.owner = Some(OwnerRead::of(folder, owner, content)?);
        }
        if self.files {
            let held = read_held(folder, dev)?;
            let io = folder.read(c"io", content, IO_BYTES);
            reads.files = Some(FileReads {
                executable: read_executable(folder)?,
                held,
                // A kernel may be built without it, and who has gone is missed by other files.
                io_bytes: io.ok().and_then(|()| parse_io(content)),
            });
        }
        if self.command {
            // One byte more than is kept tells whether there is more.
            let read = folder.read(c"cmdline", content, CMDLINE_BYTES + 1);
            reads.command = Some(if_readable(read)?.and_then(|()| parse_cmdline(content)));
        }
        if self.environment {
            let read = folder.read(c"environ", content, ENVIRON_BYTES);
            let read = if_readable(read)?;
            reads.environment = Some(read.map(|()| Arc::new(parse_environ(content))));
        }
        if self.slow || self.environment {
            let read = folder.read(c"cgroup", content, CGROUP_BYTES);
            reads.cgroup = Some(if_readable(read)?.map(|()| content.as_slice().into()));
        }
        if self.maps {
            let now = reads.command.as_ref().and_then(|it| it.as_deref());
            reads.loaded = Some(read_framework(folder, now.unwrap_or(command))?);
        }
        Ok(reads)
    }
}

/// What was read in a visit: `None` what was not due.
#[derive(Debug, Default)]
pub(super) struct VisitReads {
    owner: Option<OwnerRead>,
    files: Option<FileReads>,
    /// Each of these is `None` within where it may not be read.
    command: Option<Option<Arc<[Arc<str>]>>>,
    environment: Option<Option<Environ>>,
    cgroup: Option<Option<Box<[u8]>>>,
    loaded: Option<Option<Loaded>>,
}

type Environ = Arc<BTreeMap<Arc<str>, Arc<str>>>;

/// Whose process it is.
#[derive(Debug)]
struct OwnerRead {
    /// The owner of its folder.
    owner: u32,
    /// What its status tells, where the owner is another than before: user, and pid in its namespace.
    status: Option<(Option<u32>, Option<u32>)>,
}

impl OwnerRead {
    fn of(folder: &Folder, before: Option<u32>, content: &mut Vec<u8>) -> io::Result<Self> {
        let owner = folder.owner()?;
        let mut status = None;
        if before != Some(owner) {
            let read = folder.read(c"status", content, STATUS_BYTES);
            let read = if_readable(read)?.map(|()| parse_status(content));
            let read = read.unwrap_or_default();
            status = Some((read.uid, read.namespace_pid));
        }
        Ok(Self { owner, status })
    }
}

/// Which files it runs and holds open.
#[derive(Debug)]
struct FileReads {
    executable: Executable,
    held: HeldFiles,
    io_bytes: Option<u64>,
}

#[derive(Debug)]
enum Executable {
    Path(String),
    Unreadable,
    /// It has begun to exit: what it was stands.
    Gone,
}

fn read_executable(folder: &Folder) -> io::Result<Executable> {
    let path = |path: &[u8]| String::from_utf8_lossy(path).into_owned();
    Ok(match folder.link(c"exe", path) {
        Err(errno) if is_gone(errno) => Executable::Gone,
        link => if_readable(link)?.map_or(Executable::Unreadable, Executable::Path),
    })
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
    /// Reads what is due through the process's folder, and takes it in.
    pub(super) fn visit(
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
        let command = entry.process.command.as_deref().unwrap_or_default();
        let known = (entry.owner, command);
        let reads = due.read(folder, &self.roots.dev, known, &mut self.content)?;
        self.take_in(entry, folder, reads, now_ns)
    }

    /// Takes in what was read through the process's folder.
    pub(super) fn take_in(
        &mut self,
        entry: &mut ProcessEntry,
        folder: &Folder,
        reads: VisitReads,
        now_ns: u64,
    ) -> io::Result<()> {
        let process = &mut entry.process;
        let (is_slow, has_command) = (reads.owner.is_some(), reads.command.is_some());
        if let Some(read) = reads.owner {
            if let Some((uid, namespace_pid)) = read.status {
                process.uid = uid;
                process.namespace_pid = namespace_pid;
            }
            entry.owner = Some(read.owner);
            process.user = process.uid.and_then(|uid| self.users.name(uid, now_ns));
        }
        if let Some(files) = reads.files {
            match files.executable {
                Executable::Path(path) => set(&mut process.executable, Some(&path)),
                Executable::Unreadable => process.executable = None,
                Executable::Gone => {}
            }
            let listens = self.listening.read(folder, files.held.sockets.as_ref())?;
            process.listening = listens.at_all;
            process.sockets = listens.sockets;
            process.io_bytes = files.io_bytes;
            if process.listening_on != listens.on {
                process.listening_on = listens.on;
            }
            let held = files.held.gpu_files.filter(|_| self.has_gpu_device_files);
            if process.gpu_files != held {
                process.gpu_files = held;
            }
        }
        // One that begins to exit has no argv any more; what it had stands.
        if let Some(command) = reads.command.flatten()
            && process.command.as_ref() != Some(&command)
        {
            process.jupyter = parse_kernel(&command).map(Arc::from);
            process.command = Some(command);
        }
        // It is read once for each program: it does not change, but for what a process writes over it.
        if let Some(environment) = reads.environment {
            process.environment = environment;
            entry.wants_environment = false;
        }
        if let Some(cgroup) = reads.cgroup {
            let mut around = Around {
                proc: &self.roots.proc,
                names: &mut self.names,
                jobs: &mut self.jobs,
                ancestors: &mut self.ancestors,
                users: &mut self.users,
                now_ns,
            };
            let content = &mut self.content;
            entry.whereabouts.renew(process, cgroup, &mut around, content);
        }
        if let Some(loaded) = reads.loaded {
            // What it had loaded stands where its maps may not be read any more.
            if let Some(loaded) = loaded {
                set(&mut process.framework, loaded.framework);
                set(&mut process.framework_version, loaded.version.as_deref());
                set_all(&mut process.libraries, &loaded.libraries);
            }
            let again = MAPS_AGAIN_NS[entry.maps_looks.min(MAPS_AGAIN_NS.len() - 1)];
            entry.maps_ns = due_after(again, process.pid, now_ns);
            entry.maps_looks = entry.maps_looks.saturating_add(1);
        }
        if is_slow {
            entry.note_visit(self.may_rest, now_ns);
            entry.wants_command = !has_command;
        } else if has_command {
            entry.wants_command = false;
        }
        Ok(())
    }
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
