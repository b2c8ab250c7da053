//! Keeps and updates the watched processes.
//!
//! Each sample reads the `stat` file of each process that is not resting. If a pid has a different start time than
//! before, the pid has been reused. Most other files are read in a visit (`visit`), through the same open folder as
//! `stat`. A process is visited when it appears, and when a different name or stack address shows that it may have
//! executed another program. During the next minute, visits are repeated every five seconds, and then twice a minute.
//! Samples share unchanged strings.
//!
//! Reading cmdline, environ or maps takes a lock on the memory map of the process. A process stuck in a driver (state
//! D) can hold that lock forever, so these files are not read in state D. A new process in state D therefore has a
//! `comm`, but no command line.

use std::path::PathBuf;
use std::sync::Arc;

use foldhash::{HashMap, HashMapExt as _};
use rustix::fs::{Access, access};

use crate::host::gpu::gpu_files::{DESCRIPTOR_BUDGET, is_driver_behind_files};
use crate::host::gpu::holders::Holders;
use crate::host::machine::clocks::read_boot_time;
use crate::host::owner::above::{AncestorFacts, Jobs, ReadParent};
use crate::host::owner::names::{Names, Users};
use crate::host::owner::place::ProcessPlace;
use crate::host::proc::folder::{Folder, is_gone};
use crate::host::proc::guarded::is_zombie;
use crate::host::proc::relatives::Relatives;
use crate::host::proc::sockets::Listening;
use crate::host::proc::stat::{
    STAT_BYTES, Stat, Ticks, find_remaining_thread, parse_stat, terminal_name,
};
use crate::host::proc::traffic::{SocketBytes, Traffic};
use crate::host::proc::tree::{Node, WatchedUsage};
use crate::host::proc::visit::LiveThread;
use crate::host::{HostError, Roots};
use crate::model::{Process, Time};

pub(in crate::host) const SECOND_NS: u64 = 1_000_000_000;

pub(in crate::host) const REVISIT_NS: u64 = 30 * SECOND_NS;

const REST_NS: u64 = 10 * SECOND_NS;

/// Maximum age, in nanoseconds, of the data of a resting process. Reading sleeping processes in each sample took half
/// of the CPU time of `watch`. A sample can therefore notice this much later that a resting process has woken, stopped
/// or exited.
const RESTING_NS: u64 = 4 * SECOND_NS;

#[derive(Debug)]
pub struct Processes {
    entries: HashMap<u32, Box<ProcessEntry>>,
    around: HostFacts,
    content: Vec<u8>,
}

/// Result of [`Processes::sample`]. Each requested pid is in exactly one of the lists.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct ProcessSample {
    pub processes: Vec<Process>,
    pub gone: Vec<u32>,
    pub unreadable: Vec<(u32, HostError)>,
}

impl Processes {
    /// Creates an empty table. The boot time is read only here, so that start times do not change when the clock is
    /// set.
    pub fn new(roots: Roots) -> Self {
        Self {
            entries: HashMap::new(),
            around: HostFacts::new(roots),
            content: Vec::with_capacity(STAT_BYTES),
        }
    }

    /// Returns whether the machine has GPU device files or gpumem holds one open. Otherwise, `gpu_files` is `None`
    /// for all processes. The answer is updated twice a minute.
    pub fn has_gpu_device_files(&self) -> bool {
        self.around.has_gpu_device_files
    }

    /// Reads the processes with these pids, each of which must occur only once, and removes all others from the table.
    /// CPU usage is measured since the previous call.
    pub fn sample(&mut self, pids: &[u32], boottime_ns: u64) -> ProcessSample {
        self.around.begin(boottime_ns);
        let mut old_entries = std::mem::take(&mut self.entries);
        let processes = Vec::with_capacity(pids.len());
        let mut sample = ProcessSample { processes, ..ProcessSample::default() };
        let proc = Folder::list(&self.around.roots.proc).ok();
        for &pid in pids {
            let mut entry = old_entries.remove(&pid);
            let renewable = entry.as_mut().zip(proc.as_ref());
            if renewable
                .is_some_and(|(entry, proc)| self.around.update_from_stat(entry, proc, boottime_ns))
            {
                sample.processes.extend(entry.as_ref().map(|entry| entry.process.clone()));
                self.entries.extend(entry.map(|entry| (pid, entry)));
                continue;
            }
            match self.read_process(pid, &mut entry, boottime_ns) {
                Ok(Presence::Here) => {
                    sample.processes.extend(entry.as_ref().map(|entry| entry.process.clone()));
                }
                Ok(Presence::Gone) => {
                    entry = None;
                    sample.gone.push(pid);
                }
                Err(error) => sample.unreadable.push((pid, error)),
            }
            self.entries.extend(entry.map(|entry| (pid, entry)));
        }
        if self.around.update_names() {
            for process in &mut sample.processes {
                if let Some(entry) = self.entries.get_mut(&process.pid) {
                    self.around.name(entry);
                    *process = entry.process.clone();
                }
            }
        }
        sample
    }

    pub fn usage(&self, pid: u32) -> Option<WatchedUsage> {
        let entry = self.entries.get(&pid)?;
        let (io_bytes, io_read_ns) = entry.file_bytes;
        Some(WatchedUsage { node: entry.node?, ticks: entry.ticks, io_bytes, io_read_ns })
    }

    /// Sets the listening relatives of each process. Uses the process tree of `holders`, which must be up to date.
    pub fn fill_relatives(
        &mut self,
        processes: &mut [Process],
        holders: &Holders,
        boottime_ns: u64,
    ) {
        self.around.fill_relatives(processes, holders.tree(), boottime_ns);
    }

    fn read_process(
        &mut self,
        pid: u32,
        entry: &mut Option<Box<ProcessEntry>>,
        now_ns: u64,
    ) -> Result<Presence, HostError> {
        let path = self.around.path(pid);
        let folder = match Folder::open(&self.around.roots.proc, pid) {
            Ok(folder) => folder,
            Err(errno) if is_gone(errno) && !self.around.sees_all => {
                return Err(HostError::Hidden { path });
            }
            Err(errno) if is_gone(errno) => return Ok(Presence::Gone),
            Err(errno) => return Err(HostError::Read { path, errno }),
        };
        match folder.read(c"stat", &mut self.content, STAT_BYTES) {
            Ok(()) => {}
            // The kernel lets gpumem open the folder of a hidden process (proc(5), hidepid).
            Err(errno) if is_gone(errno) && !self.around.sees_all => {
                return Err(HostError::Hidden { path });
            }
            Err(errno) if is_gone(errno) => return Ok(Presence::Gone),
            Err(errno) => return Err(HostError::Read { path, errno }),
        }
        let stat = parse_stat(&self.content).ok_or(HostError::Malformed { path })?;
        let old_entry =
            entry.take().filter(|entry| entry.process.start_ticks == Some(stat.start_ticks));
        let mut new_entry = old_entry.unwrap_or_else(|| {
            let inode = folder.inode().unwrap_or(0);
            let process = Process {
                pid,
                start_ticks: Some(stat.start_ticks),
                start_time: self.around.start_time(stat.start_ticks),
                ..Process::default()
            };
            Box::new(ProcessEntry::new(process, inode, self.around.started_ns(stat.start_ticks)))
        });
        let presence = self.around.update(&mut new_entry, &stat, &folder, now_ns)?;
        *entry = Some(new_entry);
        Ok(presence)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Presence {
    Here,
    Gone,
}

#[derive(Debug)]
pub struct ProcessEntry {
    pub process: Process,
    comm: Box<[u8]>,
    start_stack: u64,
    terminal: u32,
    inode: u64,
    pub(in crate::host) node: Option<Node>,
    pub ticks: Ticks,
    sampled_ns: Option<u64>,
    moved_ns: u64,
    /// Whether the parent has changed. Only a process that adopts orphans can become the new parent of a running
    /// process.
    is_adopted: bool,
    /// Time since boot when the process started, or when gpumem noticed that the process had executed another program.
    pub(in crate::host) executed_ns: u64,
    pub(in crate::host) revisit_ns: u64,
    pub(in crate::host) visits: u32,
    pub(in crate::host) is_memory_unread: bool,
    pub(in crate::host) process_place: ProcessPlace,
    pub(in crate::host) socket_bytes: SocketBytes,
    /// Bytes read and written according to `/proc/PID/io`, and when it was read.
    pub(in crate::host) file_bytes: (Option<u64>, u64),
}

impl ProcessEntry {
    pub fn new(process: Process, inode: u64, started_ns: u64) -> Self {
        Self {
            process,
            inode,
            node: None,
            comm: Box::default(),
            start_stack: 0,
            terminal: 0,
            ticks: Ticks::default(),
            sampled_ns: None,
            moved_ns: 0,
            is_adopted: false,
            executed_ns: started_ns,
            revisit_ns: 0,
            visits: 0,
            is_memory_unread: true,
            process_place: ProcessPlace::default(),
            socket_bytes: SocketBytes::default(),
            file_bytes: (None, 0),
        }
    }

    fn is_resting(&self) -> bool {
        let still_ns = self.sampled_ns.map(|at| at.saturating_sub(self.moved_ns));
        self.process.state == Some('S') && still_ns.is_some_and(|ns| ns >= REST_NS)
    }
}

#[derive(Debug)]
pub struct HostFacts {
    pub roots: Roots,
    /// Whether /proc shows all processes. If it does, a process that is missing from /proc does not exist.
    pub sees_all: bool,
    pub has_gpu_device_files: bool,
    devices_ns: Option<u64>,
    ticks_per_second: u64,
    page_bytes: u64,
    pub(in crate::host) booted: Time,
    pub(in crate::host) users: Users,
    pub(in crate::host) names: Names,
    pub(in crate::host) jobs: Jobs,
    pub(in crate::host) listening: Listening,
    pub(in crate::host) traffic: Traffic,
    pub(in crate::host) relatives: Relatives,
    /// Whether the leader of a group or session is alive, for each leader that was checked in this sample. The key
    /// contains the pid of the leader, and whether a zombie is treated as dead.
    leaders: HashMap<(u32, bool), Option<bool>>,
    parents: HashMap<u32, ReadParent>,
    pub(in crate::host) above: HashMap<u32, AncestorFacts>,
    pub(in crate::host) frozen: HashMap<Arc<str>, Option<bool>>,
    /// Number of file descriptors that the current sample may still read (see [`DESCRIPTOR_BUDGET`]).
    pub(in crate::host) descriptors: usize,
    pub(in crate::host) content: Vec<u8>,
}

impl HostFacts {
    pub fn new(roots: Roots) -> Self {
        Self {
            // Process 1 always exists. If it is hidden, so are other processes.
            sees_all: access(roots.proc.join("1"), Access::EXISTS).is_ok(),
            has_gpu_device_files: is_driver_behind_files(&roots),
            devices_ns: None,
            ticks_per_second: rustix::param::clock_ticks_per_second().max(1),
            page_bytes: rustix::param::page_size() as u64,
            booted: read_boot_time(),
            users: Users::default(),
            names: Names::new(roots.root.clone()),
            jobs: Jobs::default(),
            listening: Listening::default(),
            traffic: Traffic::default(),
            relatives: Relatives::default(),
            leaders: HashMap::new(),
            parents: HashMap::new(),
            above: HashMap::new(),
            frozen: HashMap::new(),
            descriptors: DESCRIPTOR_BUDGET,
            content: Vec::new(),
            roots,
        }
    }

    pub fn begin(&mut self, now_ns: u64) {
        self.listening.begin(now_ns);
        self.descriptors = DESCRIPTOR_BUDGET;
        self.leaders.clear();
        self.parents.clear();
        self.above.clear();
        self.frozen.clear();
        let due_ns = self.devices_ns.get_or_insert(now_ns.saturating_add(REVISIT_NS));
        if now_ns >= *due_ns {
            *due_ns = now_ns.saturating_add(REVISIT_NS);
            self.has_gpu_device_files = is_driver_behind_files(&self.roots);
        }
    }

    pub fn path(&self, pid: u32) -> PathBuf {
        self.roots.proc.join(pid.to_string())
    }

    pub fn started_ns(&self, start_ticks: u64) -> u64 {
        start_ticks.saturating_mul(SECOND_NS / self.ticks_per_second)
    }

    pub fn start_time(&self, start_ticks: u64) -> Option<Time> {
        let since_boot = start_ticks.checked_mul(1000)? / self.ticks_per_second;
        let booted = self.booted.unix_milliseconds();
        booted.checked_add(i64::try_from(since_boot).ok()?).map(Time::from_unix_milliseconds)
    }

    /// Updates a known process from `stat` and, if it may have waited for a CPU, from `schedstat`. Returns `false` if
    /// other files must be read, too. Makes three system calls for each file, and none for a resting process that was
    /// read recently.
    pub fn update_from_stat(
        &mut self,
        entry: &mut ProcessEntry,
        proc: &Folder,
        now_ns: u64,
    ) -> bool {
        let is_due = now_ns >= entry.revisit_ns || entry.is_memory_unread;
        if !is_due && entry.is_resting() && now_ns < entry.sampled_ns.unwrap_or(0) + RESTING_NS {
            return true;
        }
        let mut content = [0; STAT_BYTES];
        let Ok(length) = proc.file_of(entry.process.pid, "stat", &mut content) else {
            return false;
        };
        let Some(stat) = parse_stat(&content[..length]) else {
            return false;
        };
        let is_same = entry.process.start_ticks == Some(stat.start_ticks)
            && *entry.comm == *stat.comm
            && (stat.start_stack == 0 || stat.start_stack == entry.start_stack)
            && entry.process.ppid == stat.ppid;
        let is_usual = !stat.is_released && !stat.is_exiting && stat.state != 'D';
        if !is_same || !is_usual || is_due {
            return false;
        }
        self.update_relations(entry, &stat, false);
        self.update_usage(entry, &stat, now_ns);
        // Only a process that is runnable, or that has used CPU time since the last sample, may have waited for a CPU.
        if stat.state == 'R' || entry.moved_ns == now_ns {
            let waited = read_cpu_wait(proc, entry.process.pid);
            entry.process.cpu_wait_seconds = waited.or(entry.process.cpu_wait_seconds);
        }
        (entry.process.left_thread_state, entry.process.wchan) = (None, None);
        true
    }

    /// Updates a process from `stat`, which was read through `folder`, and visits the process if a visit is due.
    /// Returns an error only if the process is new and gpumem has no file descriptors left.
    pub fn update(
        &mut self,
        entry: &mut ProcessEntry,
        stat: &Stat<'_>,
        folder: &Folder,
        now_ns: u64,
    ) -> Result<Presence, HostError> {
        if stat.is_released {
            return Ok(Presence::Gone);
        }
        let is_new = entry.sampled_ns.is_none();
        if is_new || *entry.comm != *stat.comm {
            entry.comm = stat.comm.into();
            entry.process.comm = Some(String::from_utf8_lossy(stat.comm).into());
            (entry.visits, entry.revisit_ns) = (0, 0);
        }
        if stat.start_stack != 0 && entry.start_stack != stat.start_stack {
            if !is_new {
                entry.executed_ns = now_ns;
            }
            entry.start_stack = stat.start_stack;
            entry.process.framework = None;
            entry.process.framework_version = None;
            entry.process.libraries = None;
            entry.process.environment = None;
            (entry.visits, entry.revisit_ns) = (0, 0);
        }
        let is_due = now_ns >= entry.revisit_ns;
        self.update_relations(entry, stat, is_due);
        self.update_usage(entry, stat, now_ns);
        let live_thread = find_remaining_thread(folder, stat);
        let live_stat = live_thread.as_ref().and_then(|thread| parse_stat(&thread.content));
        let alive = match (&live_thread, &live_stat) {
            (Some(thread), Some(stat)) => LiveThread { folder: &thread.folder, stat },
            _ => LiveThread { folder, stat },
        };
        self.read_wait(&mut entry.process, live_stat.as_ref().map(|stat| stat.state), alive.folder);
        if alive.stat.is_exiting {
            entry.process.gpu_files = None;
        }

        let has_memory = alive.stat.has_memory();
        let is_memory_due = entry.is_memory_unread && has_memory;
        if !is_due && !is_memory_due {
            return Ok(Presence::Here);
        }
        match self.visit(entry, folder, alive, now_ns) {
            Ok(()) => Ok(Presence::Here),
            Err(errno) if is_gone(errno) => Ok(Presence::Gone),
            Err(errno) if is_new => {
                let path = self.path(entry.process.pid);
                Err(HostError::Read { path, errno })
            }
            Err(_) => Ok(Presence::Here),
        }
    }

    fn read_wait(&mut self, process: &mut Process, thread_state: Option<char>, alive: &Folder) {
        process.left_thread_state = thread_state;
        let is_blocked = thread_state.or(process.state) == Some('D');
        let read = || alive.read(c"wchan", &mut self.content, STAT_BYTES).ok();
        let wchan = is_blocked.then(read).flatten();
        // The kernel returns 0 to unprivileged readers (`proc_pid_wchan` in `fs/proc/base.c`).
        let name = wchan.map(|()| String::from_utf8_lossy(&self.content).trim().to_owned());
        process.wchan = name.filter(|name| name != "0" && !name.is_empty()).map(Arc::from);
    }

    fn update_relations(&mut self, entry: &mut ProcessEntry, stat: &Stat<'_>, is_due: bool) {
        let process = &mut entry.process;
        let is_new = entry.sampled_ns.is_none();
        let has_new_parent = process.ppid != stat.ppid;
        entry.is_adopted |= has_new_parent && !is_new;
        if is_new || has_new_parent || is_due {
            process.ppid = stat.ppid;
            process.parent_is_reaper = entry.is_adopted.then_some(true);
            if let Some(ppid) = stat.ppid.filter(|_| !entry.is_adopted) {
                let read = || ReadParent::read(ppid, &self.roots.proc, &mut self.content);
                let parent = self.parents.entry(ppid).or_insert_with(read);
                process.parent_is_reaper = parent.adopts;
                parent.note(process);
            }
        }

        // While a group or session exists, the kernel does not use its id as the pid of a new process. A dead leader
        // therefore remains dead.
        let is_known_dead = |alive, is_same| is_same && alive == Some(false);
        if !is_known_dead(process.group_leader_alive, process.process_group == stat.process_group) {
            process.process_group = stat.process_group;
            let leader = (stat.process_group, process.parent_is_reaper);
            process.group_leader_alive = self.has_leader(process.pid, leader);
        }
        if !is_known_dead(process.session_leader_alive, process.session == stat.session) {
            process.session = stat.session;
            let leader = (stat.session, process.parent_is_reaper);
            process.session_leader_alive = self.has_leader(process.pid, leader);
        }

        if entry.terminal != stat.terminal {
            entry.terminal = stat.terminal;
            process.terminal = terminal_name(stat.terminal).map(Arc::from);
        }
    }

    fn update_usage(&self, entry: &mut ProcessEntry, stat: &Stat<'_>, now_ns: u64) {
        let process = &mut entry.process;
        let ticks_per_second = self.ticks_per_second as f64;
        if let Some(sampled_ns) = entry.sampled_ns
            && let elapsed_ns @ 1.. = now_ns.saturating_sub(sampled_ns)
        {
            let ticks = stat.cpu_ticks.saturating_sub(entry.ticks.own_ticks);
            let used_seconds = ticks as f64 / ticks_per_second;
            let elapsed_seconds = elapsed_ns as f64 / SECOND_NS as f64;
            process.cpu_percent = Some(hundredths(100.0 * used_seconds / elapsed_seconds));
        }
        let ticks = Ticks::from_stat(stat);
        if entry.sampled_ns.is_none() || entry.ticks != ticks {
            entry.moved_ns = now_ns;
        }
        entry.sampled_ns = Some(now_ns);
        entry.node = Some(Node::from_stat(entry.inode, stat));
        entry.ticks = ticks;
        process.state = Some(stat.state);
        process.threads = stat.threads;
        process.cpu_seconds = Some(hundredths(stat.cpu_ticks as f64 / ticks_per_second));
        process.rss_bytes = stat.rss_pages.checked_mul(self.page_bytes);
    }

    /// Looks up names that were unknown in this sample. Returns whether new names are known. If so, the caller must
    /// call [`HostFacts::name`] for each process.
    pub fn update_names(&mut self) -> bool {
        self.names.settle()
    }

    pub fn name(&mut self, entry: &mut ProcessEntry) {
        if entry.process_place.may_have_names() {
            entry.process_place.fill(&mut entry.process, &mut self.names);
        }
    }

    /// Returns whether the leader of a process's group or session is alive, or `None` if it is unknown. Each leader
    /// is checked once per sample, because many processes share leaders. A zombie leader is treated as dead unless it
    /// is known that the process's parent does not adopt orphans.
    fn has_leader(
        &mut self,
        pid: u32,
        (leader, is_adopted): (Option<u32>, Option<bool>),
    ) -> Option<bool> {
        let leader = leader?;
        if leader == pid {
            return Some(true);
        }
        let is_adopted = is_adopted != Some(false);
        if let Some(is_alive) = self.leaders.get(&(leader, is_adopted)) {
            return *is_alive;
        }
        let is_alive = match access(self.path(leader), Access::EXISTS) {
            Ok(()) => Some(!(is_adopted && is_zombie(&self.roots, leader))),
            Err(errno) if is_gone(errno) && self.sees_all => Some(false),
            Err(_) => None,
        };
        self.leaders.insert((leader, is_adopted), is_alive);
        is_alive
    }
}

/// Reads for how many seconds the first thread has waited in a run queue. This is the second number in `schedstat`,
/// in nanoseconds (`Documentation/scheduler/sched-stats.rst`).
pub(in crate::host) fn read_cpu_wait(proc: &Folder, pid: u32) -> Option<f64> {
    let mut content = [0; 64];
    let length = proc.file_of(pid, "schedstat", &mut content).ok()?;
    let text = std::str::from_utf8(&content[..length]).ok()?;
    let waited_ns: u64 = text.split_ascii_whitespace().nth(1)?.parse().ok()?;
    Some(hundredths(waited_ns as f64 / SECOND_NS as f64))
}

pub(in crate::host) fn hundredths(number: f64) -> f64 {
    (number * 100.0).round() / 100.0
}

#[cfg(test)]
mod tests;
