//! Measures the CPU time and the file and network I/O of a job, which consists of the given processes and all
//! processes that work for them. The difference between two readings shows whether the job worked in the meantime.
//!
//! `tree` follows all watched processes at low cost. This module reads all values when it is called, so that they are
//! current. A job includes the descendants of the given processes and the other members of their process groups. It
//! also includes processes that belonged to the job at an earlier reading, and orphans of the same user that have
//! inherited the environment.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use crate::host::Roots;
use crate::host::gpu::gpu_files::read_held;
use crate::host::machine::clocks::read_clocks;
use crate::host::owner::above::adopts;
use crate::host::proc::folder::Folder;
use crate::host::proc::guarded::read_each;
use crate::host::proc::processes::read_cpu_wait;
use crate::host::proc::stat::Ticks;
use crate::host::proc::status::{owner_uid, read_status};
use crate::host::proc::traffic::{BySocket, Traffic};

const MAX_MEMBERS: usize = 4096;
/// Maximum number of orphans whose environments are read. Users can start any number of orphans.
const MAX_ORPHANS: usize = 256;
const ENVIRONMENT_BYTES: usize = 128 << 10;
/// Maximum CPU wait that is included in the work, as a multiple of the running time. On a busy machine, even a
/// process that only polls waits for a CPU each time.
const MAX_WAIT_RATIO: f64 = 10.0;
const CHANGING: [&[u8]; 4] = [b"_=", b"SHLVL=", b"PWD=", b"OLDPWD="];

#[derive(Clone, PartialEq, Debug, Default)]
pub struct JobUsage {
    read_ns: u64,
    /// All processes of the machine. They are kept to compare the CPU time of a process that joins the job later.
    machine: Arc<BTreeMap<u32, Listed>>,
    job: BTreeMap<u32, JobMember>,
    sockets: BySocket,
}

#[derive(Clone, Copy, PartialEq, Debug)]
struct Listed {
    ppid: Option<u32>,
    process_group: Option<u32>,
    has_memory: bool,
    ticks: Ticks,
}

#[derive(Clone, Copy, PartialEq, Debug, Default)]
struct JobMember {
    /// Time spent waiting for a CPU. On a less busy machine, the process would have run in that time.
    wait_seconds: f64,
    io_bytes: u64,
}

#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct JobWork {
    pub seconds: f64,
    pub cpu_seconds: f64,
    pub bytes: u64,
}

impl JobUsage {
    pub fn since(&self, before: &Self) -> JobWork {
        let ticks_per_second = rustix::param::clock_ticks_per_second().max(1) as f64;
        let (mut own_ticks, mut reaped_ticks, mut ended_ticks) = (0u64, 0u64, 0u64);
        let (mut wait_seconds, mut bytes) = (0.0, 0u64);
        for (pid, member) in &self.job {
            let Some(ticks) = self.machine.get(pid).map(|listed| listed.ticks) else {
                continue;
            };
            let last_ticks = before
                .machine
                .get(pid)
                .map(|listed| listed.ticks)
                .filter(|last| last.start == ticks.start);
            let before_ticks = last_ticks.unwrap_or_default();
            let new_ticks = ticks.own_ticks.saturating_sub(before_ticks.own_ticks);
            own_ticks = own_ticks.saturating_add(new_ticks);
            reaped_ticks = reaped_ticks
                .saturating_add(ticks.reaped_ticks.saturating_sub(before_ticks.reaped_ticks));
            // If an older process joined the job after the first reading, its earlier I/O is unknown.
            let last = match last_ticks {
                None => JobMember::default(),
                Some(_) => before.job.get(pid).copied().unwrap_or(*member),
            };
            let wait = (member.wait_seconds - last.wait_seconds).max(0.0);
            wait_seconds += wait.min(MAX_WAIT_RATIO * new_ticks as f64 / ticks_per_second);
            bytes = bytes.saturating_add(member.io_bytes.saturating_sub(last.io_bytes));
        }
        for (inode, bytes_now) in &self.sockets {
            let bytes_before = before.sockets.get(inode).copied().unwrap_or_default();
            bytes = bytes.saturating_add(bytes_now.saturating_sub(bytes_before));
        }
        // When a parent reaps a child, the child's whole CPU time is added to the parent's, including time before the
        // first reading.
        for pid in before.job.keys().filter(|&&pid| before.start_of(pid) != self.start_of(pid)) {
            let ticks = before.machine.get(pid).map(|listed| listed.ticks).unwrap_or_default();
            ended_ticks =
                ended_ticks.saturating_add(ticks.own_ticks.saturating_add(ticks.reaped_ticks));
        }
        let ticks = own_ticks.saturating_add(reaped_ticks.saturating_sub(ended_ticks));
        JobWork {
            seconds: self.read_ns.saturating_sub(before.read_ns) as f64 / 1e9,
            cpu_seconds: ticks as f64 / ticks_per_second + wait_seconds,
            bytes,
        }
    }

    fn start_of(&self, pid: u32) -> Option<u64> {
        self.machine.get(&pid).map(|listed| listed.ticks.start)
    }

    #[cfg(test)]
    pub fn of_one(pid: u32, seconds: f64, cpu_ticks: u64, io_bytes: u64) -> Self {
        let ticks = Ticks { start: 0, own_ticks: cpu_ticks, reaped_ticks: 0 };
        let listed = Listed { ppid: None, process_group: None, has_memory: true, ticks };
        Self {
            read_ns: (seconds * 1e9) as u64,
            machine: Arc::new(BTreeMap::from([(pid, listed)])),
            job: BTreeMap::from([(pid, JobMember { io_bytes, wait_seconds: 0.0 })]),
            sockets: BySocket::default(),
        }
    }
}

#[derive(Debug)]
pub struct UsageReader<'a> {
    roots: &'a Roots,
    read_ns: u64,
    machine: Arc<BTreeMap<u32, Listed>>,
    children: HashMap<u32, Vec<u32>>,
}

impl<'a> UsageReader<'a> {
    /// Lists all processes. The list is empty if /proc cannot be read.
    pub fn new(roots: &'a Roots) -> Self {
        let mut machine = BTreeMap::new();
        let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
        let listed = read_each(roots, |pid, stat| {
            let (ppid, process_group) = (stat.ppid, stat.process_group);
            let (has_memory, ticks) = (stat.has_memory(), Ticks::from_stat(stat));
            machine.insert(pid, Listed { ppid, process_group, has_memory, ticks });
            children.entry(ppid.unwrap_or(0)).or_default().push(pid);
        });
        if listed.is_err() {
            machine.clear();
        }
        Self { roots, read_ns: read_clocks().boottime_ns, machine: Arc::new(machine), children }
    }

    /// Reads the usage of the job of these processes, which are identified by pid and start ticks. `before` is an
    /// earlier reading of the same job.
    pub fn read(&self, processes: &[(u32, u64)], before: Option<&JobUsage>) -> JobUsage {
        let start_of = |pid: u32| self.machine.get(&pid).map(|listed| listed.ticks.start);
        let is_alive = |(pid, start): &&(u32, u64)| start_of(*pid) == Some(*start);
        let named: Vec<u32> = processes.iter().filter(is_alive).map(|process| process.0).collect();
        let group_of = |pid: &u32| self.machine.get(pid)?.process_group;
        let groups: BTreeSet<u32> = named.iter().filter_map(group_of).collect();
        let is_of_group =
            |listed: &Listed| listed.process_group.is_some_and(|group| groups.contains(&group));
        // If a script runs gpumem, the script's job must not include gpumem and its children.
        let own_pid = std::process::id();
        let is_own = |pid: u32, listed: &Listed| pid == own_pid || listed.ppid == Some(own_pid);
        let of_groups = self
            .machine
            .iter()
            .filter(|(pid, listed)| is_of_group(listed) && !is_own(**pid, listed));
        let of_groups = of_groups.map(|(pid, _)| *pid);
        let earlier = before.into_iter().flat_map(|before| {
            let pids = before.job.keys().copied();
            pids.filter(|&pid| before.start_of(pid) == start_of(pid))
        });
        let mut job: BTreeSet<u32> =
            named.iter().copied().chain(of_groups).chain(earlier).collect();
        self.add_descendants(&mut job);
        job.extend(self.helpers(&named, &job));
        self.add_descendants(&mut job);
        let mut usage = JobUsage {
            read_ns: self.read_ns,
            machine: Arc::clone(&self.machine),
            ..JobUsage::default()
        };
        let mut traffic = Traffic::default();
        for pid in job.into_iter().take(MAX_MEMBERS) {
            let member = self.read_member(pid, &mut traffic, &mut usage.sockets);
            usage.job.insert(pid, member.unwrap_or_default());
        }
        usage
    }

    fn add_descendants(&self, job: &mut BTreeSet<u32>) {
        let mut due: Vec<u32> = job.iter().copied().collect();
        while let Some(parent) = due.pop() {
            let children = self.children.get(&parent).into_iter().flatten().copied();
            due.extend(children.filter(|&child| job.len() < MAX_MEMBERS && job.insert(child)));
        }
    }

    /// Finds orphans that one of these processes has started. They have the same user, and their environments include
    /// the environment of that process.
    fn helpers(&self, named: &[u32], job: &BTreeSet<u32>) -> Vec<u32> {
        let origins: Vec<(u64, Origin)> = named
            .iter()
            .filter_map(|&pid| Some((self.machine.get(&pid)?.ticks.start, self.origin(pid)?)))
            .collect();
        let Some(oldest) = origins.iter().map(|(start, _)| *start).min() else {
            return Vec::new();
        };
        let (mut content, mut adopters) = (Vec::new(), HashMap::new());
        let mut is_adopted = |ppid: u32| {
            let adopts = || adopts(ppid, &self.roots.proc, &mut content) == Some(true);
            *adopters.entry(ppid).or_insert_with(adopts)
        };
        let newer = self
            .machine
            .iter()
            .filter(|(pid, listed)| !job.contains(pid) && listed.ticks.start >= oldest);
        let orphans = newer
            .filter(|(_, listed)| listed.has_memory && listed.ppid.is_some_and(&mut is_adopted));
        let is_helper = |&(pid, listed): &(&u32, &Listed)| {
            let Some((uid, environment)) = self.origin(*pid) else {
                return false;
            };
            let has_started = |(start, (origin_uid, origin)): &(u64, Origin)| {
                *start <= listed.ticks.start && *origin_uid == uid && origin.is_subset(&environment)
            };
            origins.iter().any(has_started)
        };
        let helpers = orphans.take(MAX_ORPHANS).filter(is_helper);
        helpers.map(|(pid, _)| *pid).collect()
    }

    fn origin(&self, pid: u32) -> Option<Origin> {
        let folder = Folder::open(&self.roots.proc, pid).ok()?;
        let mut content = Vec::new();
        let uid = read_status(&folder, &mut content).ok()?.uid;
        let uid = owner_uid(&folder, uid, &mut content)?;
        folder.read(c"environ", &mut content, ENVIRONMENT_BYTES).ok()?;
        let is_telling = |variable: &&[u8]| {
            !variable.is_empty() && !CHANGING.iter().any(|name| variable.starts_with(name))
        };
        let variables = content.split(|&byte| byte == 0).filter(is_telling);
        let environment: BTreeSet<Vec<u8>> = variables.map(<[u8]>::to_vec).collect();
        let is_known = content.len() < ENVIRONMENT_BYTES && !environment.is_empty();
        is_known.then_some((uid, environment))
    }

    fn read_member(
        &self,
        pid: u32,
        traffic: &mut Traffic,
        sockets: &mut BySocket,
    ) -> Option<JobMember> {
        let folder = Folder::open(&self.roots.proc, pid).ok()?;
        let mut content = Vec::new();
        let io = folder.read(c"io", &mut content, IO_BYTES).ok();
        let io_bytes = io.and_then(|()| parse_io(&content)).unwrap_or_default();
        let files = read_held(&folder, &self.roots.dev).ok();
        let inodes =
            files.and_then(|files| files.sockets).map(|sockets| sockets.inodes).unwrap_or_default();
        sockets
            .extend(traffic.read((self.roots, &folder), &inodes, self.read_ns).unwrap_or_default());
        let proc = Folder::list(&self.roots.proc).ok()?;
        let wait_seconds = read_cpu_wait(&proc, pid).unwrap_or_default();
        Some(JobMember { wait_seconds, io_bytes })
    }
}

type Origin = (u32, BTreeSet<Vec<u8>>);

// `/proc/PID/io` contains the number of bytes that read(2), write(2) and similar calls have transferred on any file
// descriptor, such as a file, pipe or terminal. It does not include send(2) and recv(2) (proc_pid_io(5)), which
// `traffic` counts. Only root and the owner of the process may read the file.

pub const IO_BYTES: usize = 512;

pub fn parse_io(content: &[u8]) -> Option<u64> {
    field(content, "rchar:")?.checked_add(field(content, "wchar:")?)
}

fn field(content: &[u8], name: &str) -> Option<u64> {
    let text = std::str::from_utf8(content).ok()?;
    // A line without a newline may be truncated.
    let mut lines = text.split_inclusive('\n');
    let value = lines.find_map(|line| line.strip_suffix('\n')?.strip_prefix(name))?;
    value.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::testing::{FakeProc, StatLine};

    /// Pid and start ticks of the process whose job is read, which is the child of a shell.
    const TRAINER: (u32, u64) = (70, 500);

    fn put(fake: &FakeProc, pid: u32, line: &StatLine, uid: u32, environment: &str) {
        fake.stat(pid, line);
        fake.put(pid, "status", format!("Tgid:\t{pid}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n"));
        fake.put(pid, "environ", environment.replace(' ', "\0") + "\0");
    }

    fn stat_line(ppid: u32, start: u64, ticks: u64) -> StatLine {
        StatLine { ppid, start, ticks, ..StatLine::ASLEEP }
    }

    const HOME: &str = "HOME=/home/ann JOB=7 PWD=/home/ann";

    fn trainer() -> FakeProc {
        let fake = FakeProc::new();
        put(&fake, 60, &stat_line(1, 400, 5), 1000, "HOME=/home/ann");
        put(&fake, 70, &stat_line(60, 500, 100), 1000, HOME);
        fake
    }

    fn read(fake: &FakeProc, before: Option<&JobUsage>) -> JobUsage {
        UsageReader::new(fake).read(&[TRAINER], before)
    }

    #[test]
    fn descendants_group_members_and_helpers_belong_to_the_job() {
        let cases: [(&str, StatLine, u32, &str, bool); 9] = [
            ("a child", stat_line(70, 600, 0), 1000, "", true),
            (
                "a member of its group",
                StatLine { group: 70, ..stat_line(60, 400, 0) },
                1000,
                "",
                true,
            ),
            (
                "a helper that left",
                stat_line(1, 600, 0),
                1000,
                "JOB=7 HOME=/home/ann X=1 PWD=/",
                true,
            ),
            ("with the same clock tick", stat_line(1, 500, 0), 1000, HOME, true),
            ("an older daemon", stat_line(1, 499, 0), 1000, HOME, false),
            ("another user's daemon", stat_line(1, 600, 0), 1001, HOME, false),
            ("a daemon of another job", stat_line(1, 600, 0), 1000, "JOB=8 HOME=/home/ann", false),
            ("another program of the shell", stat_line(60, 600, 0), 1000, HOME, false),
            ("the shell", stat_line(1, 400, 5), 1000, HOME, false),
        ];
        for (case, line, uid, environment, counts) in cases {
            let fake = trainer();
            put(&fake, 80, &line, uid, environment);
            let before = read(&fake, None);
            fake.stat(80, &StatLine { ticks: line.ticks + 300, ..line });
            let cpu_seconds = read(&fake, Some(&before)).since(&before).cpu_seconds;
            assert_eq!(cpu_seconds, if counts { 3.0 } else { 0.0 }, "{case}");
        }
    }

    #[test]
    fn a_process_that_leaves_the_job_between_readings_is_kept() {
        let fake = trainer();
        put(&fake, 80, &stat_line(70, 600, 0), 1000, "");
        let before = read(&fake, None);
        fake.stat(80, &stat_line(1, 600, 300));
        assert_eq!(
            read(&fake, None).since(&before).cpu_seconds,
            0.0,
            "unknown without the earlier reading"
        );
        assert_eq!(read(&fake, Some(&before)).since(&before).cpu_seconds, 3.0);
        // A process that reuses the pid must not be mistaken for the earlier process.
        fake.stat(80, &stat_line(1, 900, 300));
        assert_eq!(read(&fake, Some(&before)).since(&before).cpu_seconds, 0.0);
    }

    #[test]
    fn only_usage_since_the_last_reading_counts() {
        let fake = trainer();
        put(&fake, 80, &stat_line(70, 600, 5000), 1000, "");
        fake.put(80, "io", "rchar: 1000\nwchar: 500\n");
        fake.put(70, "schedstat", "0 1000000000 0\n");
        let before = read(&fake, None);
        // The process has since reaped a child that used its CPU time before the first reading.
        std::fs::remove_dir_all(fake.folder(80)).unwrap();
        fake.stat(70, &StatLine { waited: 5050, ..stat_line(60, 500, 110) });
        fake.put(70, "io", "rchar: 10\nwchar: 5\n");
        fake.put(70, "schedstat", "0 3000000000 0\n");
        // Another child has started since.
        put(&fake, 81, &stat_line(70, 700, 40), 1000, "");
        fake.put(81, "io", "rchar: 100\nwchar: 0\n");
        let used = read(&fake, Some(&before)).since(&before);
        // Process 70 itself ran for 0.1 s, so its 2 s of waiting are capped at 1 s (`MAX_WAIT_RATIO`). The children
        // add the other 0.9 s.
        assert!((used.cpu_seconds - 2.0).abs() < 1e-9, "{used:?}");
        assert_eq!(used.bytes, 115);
    }

    #[test]
    fn bytes_read_and_written_are_summed() {
        let whole = b"rchar: 4292\nwchar: 8\nsyscr: 13\nsyscw: 1\nread_bytes: 0\n";
        assert_eq!(parse_io(whole), Some(4300));
        for broken in [
            &b""[..],
            b"rchar: 4292\n",
            b"rchar: 4292\nwchar: 8",
            b"rchar: -1\nwchar: 8\n",
            b"rchar: 18446744073709551615\nwchar: 1\n",
            b"rchar: \xff\nwchar: 1\n",
        ] {
            assert_eq!(parse_io(broken), None, "{broken:?}");
        }
    }
}
