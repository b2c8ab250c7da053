//! One watched process: what is known of it, and how that is brought up to date.
//!
//! What seldom changes is read when a process appears, when its name or its stack shows that it
//! has executed another program, and every half a minute, not all processes in the same sample. It is
//! shared: each sample carries the same strings again.
//!
//! Reading argv, the environment or maps takes a lock of the process's memory map. A process that is
//! stuck in a driver (state D) may hold that lock for ever, and whoever reads them would hang with it:
//! they are left until it is out of D, and the process is known by its short name meanwhile.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use rustix::fd::OwnedFd;
use rustix::fs::{Access, access};
use rustix::io::{self, Errno, pread};

use super::above::{Ancestors, Jobs};
use super::cmdline::{CMDLINE_BYTES, parse_cmdline};
use super::environ::{ENVIRON_BYTES, parse_environ};
use super::folder::{Folder, if_readable, is_gone, is_out_of_descriptors};
use super::framework::read_framework;
use super::gpu_files::{is_driver_behind_files, read_held};
use super::io_counters::{IO_BYTES, parse_io};
use super::machine::read_boot_seconds;
use super::names::Names;
use super::notebook::parse_kernel;
use super::parent::Parents;
use super::place::{Around, Whereabouts};
use super::reaper::is_reaper;
use super::relatives::Relatives;
use super::sockets::Listening;
use super::stat::{STAT_BYTES, Stat, parse_stat, terminal_name};
use super::status::parse_status;
use super::users::Users;
use super::{HostError, Roots};
use crate::model::{Process, Time};

const SECOND_NS: u64 = 1_000_000_000;

/// How often what seldom changes is read again.
const REVISIT_NS: u64 = 30 * SECOND_NS;

/// How long after a look at the libraries the next one is due: soon while a program loads, then
/// seldom, since thousands of mappings take a millisecond and hold the process up meanwhile.
const MAPS_AGAIN_NS: [u64; 3] = [5 * SECOND_NS, 25 * SECOND_NS, 300 * SECOND_NS];

/// The longest status that is read; groups come before `NSpid`, and a user may be in many.
const STATUS_BYTES: usize = 16 << 10;

/// Whether there still is a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Presence {
    /// There is.
    Here,
    /// It has exited.
    Gone,
}

/// A process, and what is needed to say what has changed of it.
#[derive(Debug)]
pub struct ProcessEntry {
    /// What is said of it; all that seldom changes is shared with the samples.
    pub process: Process,
    /// Its `/proc/PID/stat`, where there was a descriptor for it.
    pub stat: Option<OwnedFd>,
    /// The kernel's short name, as bytes.
    comm: Box<[u8]>,
    start_stack: u64,
    /// Whom its folder belonged to when its status was read.
    owner: Option<u32>,
    /// Device number of its terminal.
    terminal: u32,
    pub(super) cpu_ticks: u64,
    /// CPU time of children that have ended and were waited for.
    pub(super) waited_ticks: u64,
    /// When `cpu_ticks` were so; `None` before the first time.
    sampled_ns: Option<u64>,
    /// It was seen to change its parent: only who adopts orphans becomes a parent later on.
    is_adopted: bool,
    /// When to read again what seldom changes.
    revisit_ns: u64,
    /// argv is still to be read.
    wants_command: bool,
    /// The environment is still to be read; it stays what it was when the program was executed.
    wants_environment: bool,
    whereabouts: Whereabouts,
    /// When to look at the libraries again.
    maps_ns: u64,
    /// How often they were looked at.
    maps_looks: usize,
}

impl ProcessEntry {
    /// A process that was not known before; everything is due to be read.
    pub fn new(process: Process) -> Self {
        Self {
            process,
            stat: None,
            comm: Box::default(),
            start_stack: 0,
            owner: None,
            terminal: 0,
            cpu_ticks: 0,
            waited_ticks: 0,
            sampled_ns: None,
            is_adopted: false,
            revisit_ns: 0,
            wants_command: true,
            wants_environment: true,
            whereabouts: Whereabouts::default(),
            maps_ns: 0,
            maps_looks: 0,
        }
    }

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

/// All around the processes: where they are read, and what several of them share.
#[derive(Debug)]
pub struct Surroundings {
    /// Where the kernel's folders are.
    pub roots: Roots,
    /// Every process is in /proc, so that one which is not there does not exist.
    pub sees_all: bool,
    /// The driver was reached through device files when last looked at.
    pub has_gpu_device_files: bool,
    /// When to look for them again.
    devices_ns: Option<u64>,
    ticks_per_second: u64,
    page_bytes: u64,
    boot_seconds: Option<i64>,
    users: Users,
    /// In this sample: whether there is a process with this pid.
    exists: HashMap<u32, Option<bool>>,
    /// In this sample: whether the process with this pid adopts orphans.
    reapers: HashMap<u32, Option<bool>>,
    parents: Parents,
    names: Names,
    /// Which Slurm jobs have steps here, and who is above the processes in this sample.
    jobs: Jobs,
    ancestors: Ancestors,
    /// Which sockets listen.
    pub(super) listening: Listening,
    /// In this sample: something was left unread for want of a descriptor.
    is_short_of_descriptors: bool,
    /// Who of those who work with the watched processes listens.
    pub(super) relatives: Relatives,
    /// What files are read into.
    pub(super) content: Vec<u8>,
}

impl Surroundings {
    /// Those under `roots`.
    pub fn new(roots: Roots) -> Self {
        Self {
            // The first process is always there; where it is not shown, others are hidden too.
            sees_all: access(roots.proc.join("1"), Access::EXISTS).is_ok(),
            has_gpu_device_files: is_driver_behind_files(&roots),
            devices_ns: None,
            ticks_per_second: rustix::param::clock_ticks_per_second().max(1),
            page_bytes: rustix::param::page_size() as u64,
            boot_seconds: read_boot_seconds(&roots.proc),
            users: Users::default(),
            exists: HashMap::new(),
            reapers: HashMap::new(),
            parents: Parents::default(),
            names: Names::new(roots.root.clone()),
            jobs: Jobs::default(),
            ancestors: Ancestors::default(),
            listening: Listening::default(),
            is_short_of_descriptors: false,
            relatives: Relatives::default(),
            content: Vec::new(),
            roots,
        }
    }

    pub fn begin(&mut self, now_ns: u64) {
        self.exists.clear();
        self.reapers.clear();
        self.parents.begin();
        self.ancestors.begin();
        self.listening.begin(now_ns);
        self.is_short_of_descriptors = false;
        if self.devices_ns.is_some_and(|due_ns| now_ns >= due_ns) {
            self.has_gpu_device_files = is_driver_behind_files(&self.roots);
            self.devices_ns = None;
        }
        self.devices_ns
            .get_or_insert_with(|| now_ns.saturating_add(REVISIT_NS));
    }

    /// Whether something was left unread in this sample for want of a descriptor.
    pub fn is_short_of_descriptors(&self) -> bool {
        self.is_short_of_descriptors
    }

    /// A process's folder, to name it in an error.
    pub fn path(&self, pid: u32) -> PathBuf {
        self.roots.proc.join(pid.to_string())
    }

    /// When a process started, in wall-clock time.
    pub fn start_time(&self, start_ticks: u64) -> Option<Time> {
        let since_boot = start_ticks.checked_mul(1000)? / self.ticks_per_second;
        let boot = self.boot_seconds?.checked_mul(1000)?;
        boot.checked_add(i64::try_from(since_boot).ok()?)
            .map(Time::from_unix_milliseconds)
    }

    /// Brings what is known of a process up to `stat`, and reads more of it where that is due.
    /// `folder` is the process's own, where it happens to be open.
    ///
    /// # Errors
    ///
    /// Only where it was not known before and nothing more can be learnt for want of descriptors.
    pub fn update(
        &mut self,
        entry: &mut ProcessEntry,
        stat: &Stat<'_>,
        folder: Option<&Folder>,
        now_ns: u64,
    ) -> Result<Presence, HostError> {
        if stat.is_released {
            return Ok(Presence::Gone);
        }
        let is_new = entry.sampled_ns.is_none();
        if is_new || *entry.comm != *stat.comm {
            entry.comm = stat.comm.into();
            entry.process.comm = Some(String::from_utf8_lossy(stat.comm).into());
            entry.owner = None;
            entry.revisit_ns = 0;
        }
        if stat.start_stack != 0 && entry.start_stack != stat.start_stack {
            entry.start_stack = stat.start_stack;
            entry.process.framework = None;
            entry.process.framework_version = None;
            entry.process.libraries = None;
            entry.maps_looks = 0;
            entry.maps_ns = 0;
            entry.wants_environment = true;
            entry.owner = None;
            entry.revisit_ns = 0;
        }
        let is_due = now_ns >= entry.revisit_ns;
        self.relate(entry, stat, is_due);
        self.measure(entry, stat, now_ns);
        if stat.is_exiting {
            // What it still holds is out of sight.
            entry.process.gpu_files = None;
        }

        let has_memory = stat.state != 'D' && !stat.is_exiting && !stat.is_kernel_thread;
        let due = DueReads {
            slow: is_due,
            files: is_due && !stat.is_exiting,
            command: has_memory && (is_due || entry.wants_command),
            environment: has_memory && entry.wants_environment,
            maps: has_memory && now_ns >= entry.maps_ns,
        };
        if !(due.slow || due.command || due.environment || due.maps) {
            return Ok(Presence::Here);
        }
        match self.visit(entry, folder, &due, now_ns) {
            Ok(()) => Ok(Presence::Here),
            Err(errno) if is_gone(errno) => Ok(Presence::Gone),
            Err(errno) if is_new => {
                let path = self.path(entry.process.pid);
                Err(HostError::Read { path, errno })
            }
            // What was known stands; the next sample tries again.
            Err(errno) => {
                self.is_short_of_descriptors |= is_out_of_descriptors(errno);
                Ok(Presence::Here)
            }
        }
    }

    /// Its parent, group, session and terminal.
    fn relate(&mut self, entry: &mut ProcessEntry, stat: &Stat<'_>, is_due: bool) {
        let process = &mut entry.process;
        let is_new = entry.sampled_ns.is_none();
        let has_new_parent = process.ppid != stat.ppid;
        entry.is_adopted |= has_new_parent && !is_new;
        if is_new || has_new_parent || is_due {
            process.ppid = stat.ppid;
            process.parent_is_reaper = if entry.is_adopted {
                Some(true)
            } else {
                self.is_reaper(stat.ppid)
            };
            self.parents
                .note(process, &self.roots.proc, &mut self.content);
        }

        self.exists.insert(process.pid, Some(true));
        // A number is not given out again while a group or a session has it: once its leader is
        // gone, it stays so.
        let gone = |known, is_same| is_same && known == Some(false);
        if !gone(
            process.group_leader_alive,
            process.process_group == stat.process_group,
        ) {
            process.process_group = stat.process_group;
            process.group_leader_alive = self.exists(stat.process_group);
        }
        if !gone(
            process.session_leader_alive,
            process.session == stat.session,
        ) {
            process.session = stat.session;
            process.session_leader_alive = self.exists(stat.session);
        }

        if entry.terminal != stat.terminal {
            entry.terminal = stat.terminal;
            process.terminal = terminal_name(stat.terminal).map(Arc::from);
        }
    }

    /// What changes from sample to sample.
    fn measure(&self, entry: &mut ProcessEntry, stat: &Stat<'_>, now_ns: u64) {
        let process = &mut entry.process;
        let ticks_per_second = self.ticks_per_second as f64;
        if let Some(sampled_ns) = entry.sampled_ns
            && let elapsed_ns @ 1.. = now_ns.saturating_sub(sampled_ns)
        {
            let ticks = stat.cpu_ticks.saturating_sub(entry.cpu_ticks);
            let used_seconds = ticks as f64 / ticks_per_second;
            let elapsed_seconds = elapsed_ns as f64 / SECOND_NS as f64;
            process.cpu_percent = Some(hundredths(100.0 * used_seconds / elapsed_seconds));
        }
        entry.sampled_ns = Some(now_ns);
        entry.cpu_ticks = stat.cpu_ticks;
        entry.waited_ticks = stat.waited_ticks;
        process.cpu_seconds = Some(hundredths(stat.cpu_ticks as f64 / ticks_per_second));
        process.state = Some(stat.state);
        process.threads = stat.threads;
        process.rss_bytes = stat.rss_pages.checked_mul(self.page_bytes);
    }

    /// Reads what is due through the process's folder.
    fn visit(
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
            self.read_command(entry, folder)?;
        }
        if due.environment {
            self.read_environment(entry, folder)?;
        }
        if due.slow || due.environment {
            self.read_place(entry, folder, now_ns)?;
        }
        if due.maps {
            // What it had loaded stands where its maps may not be read any more.
            let process = &mut entry.process;
            let command = process.command.as_deref().unwrap_or_default();
            if let Some(loaded) = read_framework(folder, command)? {
                set(&mut process.framework, loaded.framework);
                set(&mut process.framework_version, loaded.version.as_deref());
                set_all(&mut process.libraries, &loaded.libraries);
            }
            let again = MAPS_AGAIN_NS[entry.maps_looks.min(MAPS_AGAIN_NS.len() - 1)];
            entry.maps_ns = due_after(again, entry.process.pid, now_ns);
            entry.maps_looks = entry.maps_looks.saturating_add(1);
        }
        if due.slow {
            entry.revisit_ns = due_after(REVISIT_NS, entry.process.pid, now_ns);
            entry.wants_command = !due.command;
        } else if due.command {
            entry.wants_command = false;
        }
        Ok(())
    }

    fn read_owner(
        &mut self,
        entry: &mut ProcessEntry,
        folder: &Folder,
        now_ns: u64,
    ) -> io::Result<()> {
        let process = &mut entry.process;
        let owner = folder.owner()?;
        if entry.owner != Some(owner) {
            let read = folder.read(c"status", &mut self.content, STATUS_BYTES);
            let status = if_readable(read)?.map(|()| parse_status(&self.content));
            let status = status.unwrap_or_default();
            process.uid = status.uid;
            process.namespace_pid = status.namespace_pid;
            entry.owner = Some(owner);
        }
        process.user = process.uid.and_then(|uid| self.users.name(uid, now_ns));
        Ok(())
    }

    fn read_files(&mut self, entry: &mut ProcessEntry, folder: &Folder) -> io::Result<()> {
        let process = &mut entry.process;
        let set_executable = |path: &[u8]| {
            set(
                &mut process.executable,
                Some(&*String::from_utf8_lossy(path)),
            );
        };
        match folder.link(c"exe", set_executable) {
            // It has begun to exit.
            Err(errno) if is_gone(errno) => {}
            link => {
                if if_readable(link)?.is_none() {
                    process.executable = None;
                }
            }
        }
        let held = read_held(folder, &self.roots.dev)?;
        let listens = self.listening.read(folder, held.sockets.as_ref())?;
        process.listening = listens.at_all;
        process.sockets = listens.sockets;
        let read = folder.read(c"io", &mut self.content, IO_BYTES);
        // A kernel may be built without it, and who has gone is missed by other files.
        process.io_bytes = read.ok().and_then(|()| parse_io(&self.content));
        if process.listening_on != listens.on {
            process.listening_on = listens.on;
        }
        let files = held.gpu_files.filter(|_| self.has_gpu_device_files);
        if process.gpu_files != files {
            process.gpu_files = files;
        }
        Ok(())
    }

    fn read_command(&mut self, entry: &mut ProcessEntry, folder: &Folder) -> io::Result<()> {
        let process = &mut entry.process;
        // One byte more than is kept tells whether there is more.
        let read = folder.read(c"cmdline", &mut self.content, CMDLINE_BYTES + 1);
        let command = if_readable(read)?.and_then(|()| parse_cmdline(&self.content));
        // One that begins to exit has no argv any more; what it had stands.
        if command.is_some() && process.command != command {
            process.jupyter = command.as_deref().and_then(parse_kernel).map(Arc::from);
            process.command = command;
        }
        Ok(())
    }

    /// It is read once for each program: it does not change, but for what a process writes over it.
    fn read_environment(&mut self, entry: &mut ProcessEntry, folder: &Folder) -> io::Result<()> {
        let read = folder.read(c"environ", &mut self.content, ENVIRON_BYTES);
        let read = if_readable(read)?;
        entry.process.environment = read.map(|()| Arc::new(parse_environ(&self.content)));
        entry.wants_environment = false;
        Ok(())
    }

    fn read_place(
        &mut self,
        entry: &mut ProcessEntry,
        folder: &Folder,
        now_ns: u64,
    ) -> io::Result<()> {
        let ProcessEntry {
            process,
            whereabouts,
            ..
        } = entry;
        let mut around = Around {
            proc: &self.roots.proc,
            names: &mut self.names,
            jobs: &mut self.jobs,
            ancestors: &mut self.ancestors,
            users: &mut self.users,
            now_ns,
        };
        whereabouts.read(process, folder, &mut around, &mut self.content)
    }

    /// Asks for the names that were not known in this sample, and tells whether there are new ones:
    /// then [`Surroundings::name`] is due for each process.
    pub fn settle_names(&mut self) -> bool {
        self.names.settle()
    }

    /// Gives a process's container and pod the names that have become known.
    pub fn name(&mut self, entry: &mut ProcessEntry) {
        if entry.whereabouts.may_have_names() {
            entry.whereabouts.fill(&mut entry.process, &mut self.names);
        }
    }

    /// Whether there is a process with this pid; `None` where that cannot be told. Asked once a
    /// sample for each pid.
    fn exists(&mut self, pid: Option<u32>) -> Option<bool> {
        let pid = pid?;
        let Self {
            roots,
            sees_all,
            exists,
            ..
        } = self;
        *exists.entry(pid).or_insert_with(|| {
            let path = roots.proc.join(rustix::path::DecInt::new(pid));
            match access(&path, Access::EXISTS) {
                Ok(()) => Some(true),
                Err(errno) if is_gone(errno) && *sees_all => Some(false),
                Err(_) => None,
            }
        })
    }

    /// Whether the process with this pid adopts orphans; `None` where that cannot be told, as of a
    /// parent outside this pid namespace. Asked once a sample for each pid.
    fn is_reaper(&mut self, pid: Option<u32>) -> Option<bool> {
        let pid = pid?;
        if pid == 1 {
            return Some(true);
        }
        if let Some(&known) = self.reapers.get(&pid) {
            return known;
        }
        let read = Folder::open(&self.roots.proc, pid)
            .and_then(|folder| folder.read(c"status", &mut self.content, STATUS_BYTES));
        let adopts = read
            .ok()
            .and_then(|()| is_reaper(&parse_status(&self.content)));
        self.reapers.insert(pid, adopts);
        adopts
    }
}

/// What is to be read in a visit.
#[derive(Debug)]
struct DueReads {
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

/// When something is due that is done every `period_ns`: up to a third sooner, by an amount that
/// differs from process to process and time to time, so that not all come due in one sample.
fn due_after(period_ns: u64, pid: u32, now_ns: u64) -> u64 {
    let mixed = (u64::from(pid) ^ now_ns).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    now_ns.saturating_add(period_ns - (mixed >> 24) % (period_ns / 3))
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

fn hundredths(number: f64) -> f64 {
    (number * 100.0).round() / 100.0
}
