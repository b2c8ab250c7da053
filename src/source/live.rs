//! Samples this machine: joins NVML's rows with facts from /proc about their processes.
//!
//! A pid that NVML lists can now belong to a different process, because the process that allocated the memory may
//! have exited and its pid may have been reused. `doubt` decides whether NVML means the current process. If not, the
//! row is shown as unresolved, without any facts about the current process, and no rule or action uses it. If a
//! process exits while NVML still lists its pid, its name is shown until the pid is reused.
//!
//! A process that has a GPU device file open is shown even if NVML does not list it. Its GPU memory is unknown.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use foldhash::{HashMap, HashMapExt as _};

use super::kernel_poller::Notebooks;
use super::named_pids::NamedPids;
use super::nvml::{self, Nvml};
use super::{Control, NextSnapshot, Origin, Source, SourceError};
use crate::host::{self, Claims, Clocks, CpuTicks, Holders, Processes, Reservations, Roots, Users};
use crate::model::snapshot::{Gpu, Host, PidNamespace};
use crate::model::{Process, Snapshot, Time};
use crate::units::MIB;

/// Minimum growth of unattributed memory that triggers a search of all processes.
const UNATTRIBUTED_BYTES: u64 = 256 * MIB;

pub struct Live {
    nvml: Nvml,
    processes: Processes,
    holders: Holders,
    reservations: Reservations,
    claims: Claims,
    users: Users,
    roots: Roots,
    /// Unattributed memory of each GPU at the last search, or its lowest value since then.
    unattributed: HashMap<u32, u64>,
    notebooks: Notebooks,
    host: Host,
    cpu_ticks: Option<CpuTicks>,
    /// Wall clock and boot time when the source was opened. Later times are computed from the boot time, so that
    /// setting the clock does not distort the history.
    opened: (Time, Clocks),
    timer: SampleTimer,
    marks: Option<Marks>,
    named: NamedPids,
    ticks_per_second: u64,
    gpus_only: bool,
}

struct Marks {
    shown: Box<dyn FnMut() -> Vec<u32> + Send>,
    mark: Box<dyn FnMut(&mut Snapshot) + Send>,
}

impl Live {
    /// Also shows the processes whose pids `shown` returns, even if they have no GPU device file open. Calls `mark` for
    /// each snapshot, to add what gpumem did to the processes. Both functions must be fast.
    pub fn marked_by(
        self,
        shown: impl FnMut() -> Vec<u32> + Send + 'static,
        mark: impl FnMut(&mut Snapshot) + Send + 'static,
    ) -> Self {
        Self { marks: Some(Marks { shown: Box::new(shown), mark: Box::new(mark) }), ..self }
    }

    pub fn open(options: nvml::NvmlOptions, interval: Duration) -> Result<Self, SourceError> {
        Self::open_at(options, interval, Roots::default())
    }

    /// Opens NVML on a machine whose /proc and device files are below `roots`.
    pub fn open_at(
        options: nvml::NvmlOptions,
        interval: Duration,
        roots: Roots,
    ) -> Result<Self, SourceError> {
        let nvml = Nvml::open(options)?;
        Ok(Self {
            nvml,
            host: host::read_host(&roots),
            cpu_ticks: None,
            holders: Holders::new(roots.clone()),
            reservations: Reservations::new(roots.clone()),
            claims: Claims::of_machine(),
            users: Users::default(),
            roots: roots.clone(),
            unattributed: HashMap::new(),
            notebooks: Notebooks::new(roots.clone()),
            processes: Processes::new(roots),
            opened: (wall_clock(), host::read_clocks()),
            timer: SampleTimer::new(interval, Instant::now()),
            marks: None,
            named: NamedPids::default(),
            ticks_per_second: rustix::param::clock_ticks_per_second(),
            gpus_only: false,
        })
    }

    /// Makes this process claim GPUs one level below the innermost claim that it or its ancestors hold. Returns the
    /// indices of the GPUs in that claim, and marks the claimed GPUs.
    pub fn nest_claims(&mut self, gpus: &mut [Gpu]) -> Vec<u32> {
        let inherited = self.claims.nest(gpus, &self.roots);
        self.mark_claims(gpus);
        inherited
    }

    pub fn mark_claims(&mut self, gpus: &mut [Gpu]) {
        let now_ns = host::read_clocks().boottime_ns;
        self.claims.mark(gpus, &self.roots, &mut self.users, now_ns);
    }

    pub fn claims(&mut self) -> &mut Claims {
        &mut self.claims
    }

    /// Leaves processes and reservations out of samples: the pids that NVML lists are not looked up in /proc. Claims are
    /// still detected.
    pub fn of_gpus_only(mut self) -> Self {
        self.gpus_only = true;
        self
    }

    pub fn sample(&mut self) -> Snapshot {
        let clocks = host::read_clocks();
        let mut snapshot = Snapshot::new(self.time_at(clocks));
        let suspended = clocks.suspended_seconds(self.host.suspended_seconds);
        self.host.suspended_seconds = Some(suspended);

        let sample = self.nvml.sample();
        snapshot.errors = sample.errors;
        let clock = (Instant::now(), host::read_clocks().boottime_ns);
        self.named.record(&sample.gpus, clock);
        snapshot.gpus = sample.gpus.into_iter().map(|sampled| sampled.gpu).collect();
        self.mark_claims(&mut snapshot.gpus);
        snapshot.driver = self.nvml.driver().clone();
        if !self.gpus_only {
            self.add_processes(&mut snapshot);
        }
        snapshot.host = self.host.clone();
        if let Some(Marks { mark, .. }) = &mut self.marks {
            mark(&mut snapshot);
        }
        snapshot
    }

    fn add_processes(&mut self, snapshot: &mut Snapshot) {
        self.look_for_holders(&snapshot.gpus);
        self.host.load = Some(host::read_load(&self.roots, &mut self.cpu_ticks));
        snapshot.processes = self.look_up(&snapshot.gpus);
        // Notebook servers are slow, so their data is requested first and collected last.
        self.notebooks.ask(&snapshot.processes);
        let now_ns = host::read_clocks().boottime_ns;
        snapshot.reservations = self.reservations.refresh(now_ns, snapshot, &self.holders);
        self.notebooks.join(&mut snapshot.processes);
    }

    /// Refreshes the list of device file holders. Requests a search of all processes if unattributed memory has grown.
    fn look_for_holders(&mut self, gpus: &[Gpu]) {
        let mut has_grown = false;
        for gpu in gpus {
            let level = self.unattributed.entry(gpu.index).or_default();
            has_grown |= unattributed_bytes(gpu).is_some_and(|bytes| rises(level, bytes));
        }
        if self.processes.has_gpu_device_files() {
            self.holders.refresh(host::read_clocks().boottime_ns, has_grown);
            self.host.unread_processes = self.holders.unread();
        }
    }

    fn look_up(&mut self, gpus: &[Gpu]) -> Vec<Process> {
        let rows = gpus.iter().flat_map(|gpu| gpu.processes.iter().flatten());
        let mut listed: Vec<u32> = rows.map(|row| row.pid).collect();
        listed.sort_unstable();
        listed.dedup();
        let is_listed = |pid: u32| listed.binary_search(&pid).is_ok();
        let shown = self.marks.as_mut().map(|marks| (marks.shown)()).unwrap_or_default();
        let mut hidden = [self.holders.pids(), shown.clone()].concat();
        hidden.sort_unstable();
        hidden.dedup();
        let hidden = hidden.into_iter();
        let pids: Vec<u32> =
            listed.iter().copied().chain(hidden.filter(|&pid| !is_listed(pid))).collect();
        let mut sample = self.processes.sample(&pids, host::read_clocks().boottime_ns);
        // A process that NVML does not list is shown only while it has a GPU device file open.
        sample.processes.retain(|process| {
            is_listed(process.pid) || holds_files(process) || shown.contains(&process.pid)
        });
        sample.gone.retain(|&pid| is_listed(pid));
        sample.unreadable.retain(|&(pid, _)| is_listed(pid));
        let trust = PidTrust {
            namespace: self.host.pid_namespace,
            has_gpu_device_files: self.processes.has_gpu_device_files(),
        };
        let mut processes = sample.processes;
        let now_ns = host::read_clocks().boottime_ns;
        self.holders.fill_descendants(&mut processes, |pid| self.processes.usage(pid), now_ns);
        self.processes.fill_relatives(&mut processes, &self.holders, now_ns);
        for process in processes.iter_mut().filter(|process| is_listed(process.pid)) {
            let named = self.named.get_mut(process.pid);
            let named_ticks =
                named.as_ref().map(|named| ticks(named.first_ns, self.ticks_per_second));
            let doubt = doubt(process, named_ticks, trust);
            if let Some(named) = named {
                named.record(process, doubt.is_none());
            }
            if let Some(reason) = doubt {
                *process = unresolved(process.pid, reason.into());
            }
        }
        processes.extend(sample.gone.into_iter().map(|pid| match self.host.pid_namespace {
            Some(PidNamespace::Host) => {
                Process { pid, last_known: self.named.last_known(pid), ..Process::default() }
            }
            _ => unresolved(pid, "a pid of another pid namespace".into()),
        }));
        processes.extend(
            sample.unreadable.into_iter().map(|(pid, why)| unresolved(pid, why.to_string().into())),
        );
        processes.sort_unstable_by_key(|process| process.pid);
        processes
    }

    pub fn host(&self) -> &Host {
        &self.host
    }

    pub fn now(&self) -> Time {
        self.time_at(host::read_clocks())
    }

    fn time_at(&self, clocks: Clocks) -> Time {
        let elapsed_ns = clocks.boottime_ns.saturating_sub(self.opened.1.boottime_ns);
        self.opened.0.plus_seconds(elapsed_ns as f64 / 1e9)
    }
}

impl Source for Live {
    fn due(&mut self, now: Instant) -> Result<NextSnapshot, SourceError> {
        Ok(NextSnapshot::In(self.timer.wait(now)))
    }

    fn take(&mut self, now: Instant) -> Result<Option<Snapshot>, SourceError> {
        self.timer.record_sample(now);
        Ok(Some(self.sample()))
    }

    fn steer(&mut self, control: Control, now: Instant) -> Result<(), SourceError> {
        match control {
            Control::Interval(interval) => self.timer.set_interval(interval),
            Control::Fast(is_fast) => self.timer.set_fast(is_fast, now),
            _ => {}
        }
        Ok(())
    }

    fn origin(&self) -> Origin {
        Origin::Live
    }
}

fn wall_clock() -> Time {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Time::from_unix_milliseconds(i64::try_from(since_epoch.as_millis()).unwrap_or(i64::MAX))
}

/// Converts nanoseconds to clock ticks, rounded up. A process that started in the same tick then counts as older.
fn ticks(boottime_ns: u64, ticks_per_second: u64) -> u64 {
    (boottime_ns / 1_000_000 * ticks_per_second).div_ceil(1000)
}

fn unresolved(pid: u32, reason: Arc<str>) -> Process {
    Process { pid, unresolved: Some(reason), ..Process::default() }
}

fn holds_files(process: &Process) -> bool {
    let files = process.gpu_files.as_deref();
    files.is_some_and(|files| !files.is_empty())
}

/// Returns how much used memory belongs to no listed process, or `None` if that is unknown.
fn unattributed_bytes(gpu: &Gpu) -> Option<u64> {
    let used_bytes = gpu.memory?.used_bytes;
    Some(used_bytes.saturating_sub(gpu.process_bytes()?))
}

/// Returns whether unattributed memory has grown so much since the last search that another one is needed. Updates
/// the level.
fn rises(level: &mut u64, bytes: u64) -> bool {
    let rises = bytes >= level.saturating_add(UNATTRIBUTED_BYTES);
    *level = if rises { bytes } else { bytes.min(*level) };
    rises
}

#[derive(Clone, Copy, Debug)]
struct PidTrust {
    namespace: Option<PidNamespace>,
    has_gpu_device_files: bool,
}

/// Returns why NVML may not mean the current process with a pid, or `None` if it does.
///
/// The process must have started before NVML first listed the pid. If the driver uses device files, the process must
/// also have one open. If its file descriptors cannot be read, the process is trusted on the host, but not in a
/// container, where the pid may be from a different pid namespace.
///
/// A real driver always uses device files: NVML keeps one open in gpumem itself. This is visible even if `/dev`
/// contains no device files, as in a container that only has the library. If gpumem has none open either, only the
/// start time is checked.
fn doubt(process: &Process, named_ticks: Option<u64>, trust: PidTrust) -> Option<&'static str> {
    if process.start_ticks.zip(named_ticks).is_some_and(|(start, named)| start > named) {
        return Some("the process with this pid started after NVML first named it");
    }
    // A zombie has no open files, so only its start time can be checked.
    if !trust.has_gpu_device_files || process.state == Some('Z') {
        return None;
    }
    match (&process.gpu_files, trust.namespace) {
        (Some(files), _) if files.is_empty() => {
            Some("the process with this pid has no GPU device file open")
        }
        (Some(_), _) | (None, Some(PidNamespace::Host)) => None,
        (None, _) => Some(
            "NVML's pid may be that of a process in another pid namespace, and the open files of \
            the local process cannot be read; that requires root",
        ),
    }
}

/// Sampling interval while a user waits for a process to exit.
const FAST: Duration = Duration::from_millis(250);

/// A timer for samples at regular intervals. The caller passes in the current time.
#[derive(Clone, Copy, Debug)]
struct SampleTimer {
    interval: Duration,
    is_fast: bool,
    /// When the last sample was due, or `None` before the first sample.
    last: Option<Instant>,
    due: Instant,
}

impl SampleTimer {
    /// Creates a timer whose first sample is due immediately.
    fn new(interval: Duration, now: Instant) -> Self {
        Self { interval, is_fast: false, last: None, due: now }
    }

    fn wait(&self, now: Instant) -> Duration {
        self.due.saturating_duration_since(now)
    }

    fn record_sample(&mut self, now: Instant) {
        // If a sample took longer than the interval, later intervals are not shortened.
        let due = (self.due + self.current()).max(now);
        self.last = Some(self.due.min(now));
        self.due = due;
    }

    /// Changes the interval. The current interval still counts from the last sample.
    fn set_interval(&mut self, interval: Duration) {
        self.interval = interval;
        self.replan();
    }

    /// Starts or stops fast sampling. When it starts, a sample is due immediately.
    fn set_fast(&mut self, is_fast: bool, now: Instant) {
        if self.is_fast == is_fast {
            return;
        }
        self.is_fast = is_fast;
        if is_fast {
            self.due = self.due.min(now);
        } else {
            self.replan();
        }
    }

    fn replan(&mut self) {
        if let Some(last) = self.last {
            self.due = last + self.current();
        }
    }

    fn current(&self) -> Duration {
        if self.is_fast { self.interval.min(FAST) } else { self.interval }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::GpuProcess;
    use crate::model::snapshot::Memory;

    #[test]
    fn new_or_growing_unattributed_memory_starts_a_search() {
        let mut level = 0;
        for (mib, is_asked) in [
            (0, false),
            (255, false),
            (256, true),
            (511, false),
            (512, true),
            (600, false),
            // Memory that was freed and allocated again is treated as growth.
            (100, false),
            (355, false),
            (356, true),
            (356, false),
        ] {
            assert_eq!(rises(&mut level, mib * MIB), is_asked, "{mib}");
        }
        assert!(!rises(&mut u64::MAX.clone(), u64::MAX - 1));
    }

    #[test]
    fn unattributed_memory_requires_every_process_size() {
        let gpu = |used_bytes: &[Option<u64>]| Gpu {
            memory: Some(Memory { used_bytes: 10 * MIB, ..Memory::default() }),
            processes: Some(
                used_bytes
                    .iter()
                    .map(|&used_bytes| GpuProcess { used_bytes, ..GpuProcess::default() })
                    .collect(),
            ),
            ..Gpu::default()
        };
        let (sized, unknown) = (Some(4 * MIB), None);
        assert_eq!(unattributed_bytes(&gpu(&[])), Some(10 * MIB));
        assert_eq!(unattributed_bytes(&gpu(&[sized, sized])), Some(2 * MIB));
        assert_eq!(unattributed_bytes(&gpu(&[sized, sized, sized])), Some(0));
        assert_eq!(unattributed_bytes(&gpu(&[sized, unknown])), None);
        assert_eq!(unattributed_bytes(&Gpu::default()), None);
    }

    fn process(start_ticks: u64, gpu_files: Option<&[&str]>) -> Process {
        let files = gpu_files.map(|files| files.iter().map(|&file| file.into()).collect());
        Process { pid: 7, start_ticks: Some(start_ticks), gpu_files: files, ..Process::default() }
    }

    const HOST: PidTrust =
        PidTrust { namespace: Some(PidNamespace::Host), has_gpu_device_files: true };
    const CONTAINER: PidTrust = PidTrust { namespace: Some(PidNamespace::Container), ..HOST };

    #[test]
    fn a_pid_is_trusted_only_for_an_older_device_file_holder() {
        let (holds, holds_none) = (Some(&["/dev/nvidia0"][..]), Some(&[][..]));
        let zombie = Process { state: Some('Z'), ..process(50, holds_none) };
        let no_devices = PidTrust { has_gpu_device_files: false, ..CONTAINER };
        for (case, process, named_at, trust, is_trusted) in [
            ("started in the tick when it was named", process(100, holds), Some(100), HOST, true),
            ("unknown naming time", process(100, holds), None, HOST, true),
            ("started after its pid was named", process(101, holds), Some(100), HOST, false),
            ("holds no device file", process(50, holds_none), Some(100), HOST, false),
            ("a zombie, which has closed its files", zombie, Some(100), HOST, true),
            ("unreadable files, on the host", process(50, None), Some(100), HOST, true),
            ("unreadable files, in a container", process(50, None), Some(100), CONTAINER, false),
            ("in a container, a holder", process(50, holds), Some(100), CONTAINER, true),
            ("no device files at all", process(50, None), Some(100), no_devices, true),
        ] {
            assert_eq!(doubt(&process, named_at, trust).is_none(), is_trusted, "{case}");
        }
    }

    #[test]
    fn ticks_are_rounded_up() {
        assert_eq!(ticks(1_000_000_000, 100), 100);
        assert_eq!(ticks(1_001_000_000, 100), 101);
        assert_eq!(ticks(0, 100), 0);
    }

    const fn milliseconds(number: u64) -> Duration {
        Duration::from_millis(number)
    }

    /// Returns a timer with an interval of 2 s, and the time at which its first sample was taken.
    fn started_timer() -> (SampleTimer, Instant) {
        let start = Instant::now();
        let mut timer = SampleTimer::new(milliseconds(2000), start);
        assert_eq!(timer.wait(start), Duration::ZERO);
        timer.record_sample(start);
        (timer, start)
    }

    #[test]
    fn samples_are_regular_and_missed_ones_are_skipped() {
        let (mut timer, start) = started_timer();
        assert_eq!(timer.wait(start + milliseconds(500)), milliseconds(1500));
        // If a sample is 300 ms late, the next one is still on schedule.
        let late = start + milliseconds(2300);
        timer.record_sample(late);
        assert_eq!(timer.wait(late), milliseconds(1700));
        // If a sample is late by several intervals, only one sample is due.
        let stopped = start + milliseconds(60_000);
        timer.record_sample(stopped);
        assert_eq!(timer.wait(stopped), Duration::ZERO);
        timer.record_sample(stopped);
        assert_eq!(timer.wait(stopped), milliseconds(2000));
    }

    #[test]
    fn a_new_interval_starts_from_the_last_sample() {
        let (mut timer, start) = started_timer();
        let now = start + milliseconds(700);
        timer.set_interval(milliseconds(500));
        assert_eq!(timer.wait(now), Duration::ZERO);
        timer.set_interval(milliseconds(10_000));
        assert_eq!(timer.wait(now), milliseconds(9300));
    }

    #[test]
    fn fast_sampling_starts_at_once_and_ends_on_request() {
        let (mut timer, start) = started_timer();
        let now = start + milliseconds(700);
        timer.set_fast(true, now);
        assert_eq!(timer.wait(now), Duration::ZERO);
        timer.record_sample(now);
        assert_eq!(timer.wait(now), milliseconds(250));
        // A repeated control must not trigger a sample.
        timer.set_fast(true, now);
        assert_eq!(timer.wait(now), milliseconds(250));
        timer.set_interval(milliseconds(100));
        assert_eq!(timer.wait(now), milliseconds(100));
        timer.set_interval(milliseconds(2000));
        timer.set_fast(false, now);
        assert_eq!(timer.wait(now), milliseconds(2000));
    }
}
