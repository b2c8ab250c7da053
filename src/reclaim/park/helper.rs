//! The helper: a process that performs one operation of the CUDA driver on another process.
//!
//! No time limit kills the helper, because an interrupted call can leave the process locked. It ignores the signals of
//! a terminal, runs in its own session, and finishes if gpumem exits. Each step is in the journal before it happens. If
//! a call fails, the helper asks the driver for the state and undoes a lock. A pidfd, opened before the first call,
//! shows whether the process has exited, because the driver's functions take a pid.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write as _};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal};
use rustix::fd::OwnedFd;

use super::check::{ParkCheck, held, work};
use super::ffi::{Cuda, CudaError, CudaState, NOT_READY, OUT_OF_MEMORY};
use super::journal::{Journal, JournalStep, Journals, ParkRecord, ParkedGpu, ParkedProcess};
use super::{ARGUMENT, ParkAnswer, ParkOperation, ParkRequest};
use crate::host::{Claims, Roots, has_gained_rights, read_memory_by_child};
use crate::model::{Gpu, Snapshot};
use crate::reclaim::process_control::{ApprovedProcess, Handle, PidfdControl, ProcessControl as _};
use crate::source::live::Live;
use crate::source::nvml::NvmlOptions;
use crate::units::{Bytes, MIB, system_message};

/// Time limit of a lock, in which the process's work on the GPU must end.
const LOCK_MS: u32 = 10_000;
/// How long NVML may take to show the effect of a call.
const EFFECT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(200);
/// Interval between the two looks at the free memory before a restore.
const LOOKS: Duration = Duration::from_secs(1);
/// Memory that must be free in addition to what is restored. A restore that fails for lack of memory cannot be repeated.
const SPARE_BYTES: u64 = 512 * MIB;
/// Maximum decrease of the free memory between the two looks. A process that allocates more would take the memory.
const TAKEN_BYTES: u64 = 64 * MIB;

/// Performs the request in the arguments, if they are those of a helper. Returns whether they are.
pub fn serves(arguments: impl Iterator<Item = OsString>) -> bool {
    let mut arguments = arguments.skip(1);
    if arguments.next().as_deref() != Some(OsStr::new(ARGUMENT)) {
        return false;
    }
    let request: Option<ParkRequest> =
        arguments.next().and_then(|text| serde_json::from_str(text.to_str()?).ok());
    let answer = match request {
        // Every user who may start such a gpumem could use its rights.
        Some(_) if has_gained_rights() => {
            refused("gpumem parks only with the rights of its caller, not with file capabilities")
        }
        Some(request) => {
            isolate();
            let _reading = read_memory_by_child();
            operate(&request)
        }
        None => refused("the helper is started only by gpumem itself"),
    };
    let answer = match answer {
        Ok(answer) | Err(answer) => answer,
    };
    // Nobody reads the answer if gpumem has exited. The journal contains the result.
    let _ = serde_json::to_vec(&answer).map(|text| io::stdout().write_all(&text));
    true
}

fn refused<T>(why: impl Into<String>) -> Result<T, ParkAnswer> {
    Err(ParkAnswer::Refused { why: why.into() })
}

fn isolate() {
    // Ignore the errors: without the privilege, the OOM score stays, and a session leader stays one.
    let _ = rustix::process::setsid();
    let _ = std::fs::write("/proc/self/oom_score_adj", "-500");
    let mut signals = SigSet::empty();
    for signal in
        [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGTSTP]
    {
        signals.add(signal);
    }
    let _ = signals.thread_block();
}

fn operate(request: &ParkRequest) -> Result<ParkAnswer, ParkAnswer> {
    let roots = Roots::default();
    let cuda = Cuda::load().or_else(refused)?;
    if request.operation == ParkOperation::Probe {
        cuda.restore_thread(request.way.pid).or_else(|error| refused(error.to_string()))?;
        return Ok(ParkAnswer::Running { bytes: 0, ms: 0 });
    }
    let journals = request.settings.journals();
    let name = (&*request.boot_id, request.way.pid, request.way.start_ticks);
    let journal = journals
        .open(name)
        .or_else(|error| refused(format!("the journal: {}", system_message(&error))))?;
    let mut control = PidfdControl::new(roots.clone());
    let approved = ApprovedProcess {
        pid: request.way.pid,
        start_ticks: request.way.start_ticks,
        uid: request.way.uid,
        boot_id: Some(request.boot_id.clone()),
    };
    let handle = control.open(&approved).or_else(|error| refused(error.to_string()))?;
    let mut operation = Operation {
        request,
        roots,
        cuda,
        journals,
        journal,
        control,
        handle,
        live: None,
        started: Instant::now(),
    };
    match request.operation {
        ParkOperation::Park | ParkOperation::ParkToEnd => operation.park(),
        ParkOperation::Unpark => operation.unpark(),
        ParkOperation::AskState | ParkOperation::Probe => operation.ask_state(),
    }
}

struct Operation<'a> {
    request: &'a ParkRequest,
    roots: Roots,
    cuda: Cuda,
    journals: Journals,
    journal: Journal,
    control: PidfdControl,
    handle: Handle,
    live: Option<Live>,
    started: Instant,
}

impl Operation<'_> {
    fn park(&mut self) -> Result<ParkAnswer, ParkAnswer> {
        let pid = self.request.way.pid;
        let is_ending = self.request.operation == ParkOperation::ParkToEnd;
        let snapshot = self.sample()?;
        let process = self.describe(&snapshot)?;
        // No other helper may count on the same host memory.
        let memory = self.journals.lock_memory().or_else(|error| refused(error.to_string()))?;
        let records = self.records(&snapshot)?;
        let check = ParkCheck {
            roots: &self.roots,
            snapshot: &snapshot,
            pid,
            records: &records,
            most_bytes: self.request.settings.most_bytes,
            is_ending,
        };
        let obstacles = check.obstacles();
        if !obstacles.is_empty() {
            return refused(obstacles.join("; "));
        }
        let thread = self.cuda.restore_thread(pid).or_else(|error| refused(error.to_string()))?;
        if !self.roots.proc.join(format!("{pid}/task/{thread}")).exists() {
            return refused("the driver names a thread of another process");
        }
        self.announce(JournalStep::Intent(process.clone()))?;
        drop(memory);
        self.announce(JournalStep::Locking)?;
        let locked = self.cuda.lock(pid, LOCK_MS);
        if self.control.has_exited(self.handle) {
            // If another process has the pid now, the lock must not stay.
            let _ = locked.map(|()| self.cuda.unlock(pid));
            return Err(self.exited());
        }
        if let Err(error) = locked {
            return Err(self.recover(&error.to_string(), error.code == NOT_READY));
        }
        if let Some(why) = self.changed(&process, is_ending) {
            return Err(self.recover(&why, true));
        }
        if let Err(error) = self.journal.write(JournalStep::Checkpointing) {
            return Err(self.recover(&format!("the journal: {}", system_message(&error)), false));
        }
        let checkpointed = self.cuda.checkpoint(pid);
        if self.control.has_exited(self.handle) {
            return Err(self.exited());
        }
        if let Err(error) = checkpointed {
            return Err(self.recover(&error.to_string(), false));
        }
        match self.cuda.state(pid) {
            Ok(CudaState::Checkpointed) => {}
            Ok(state) => return Err(self.recover(&format!("the driver reports {state:?}"), false)),
            Err(error) => return Err(self.recover(&error.to_string(), false)),
        }
        let left_bytes = self.wait_for_bytes(|bytes| bytes == 0);
        self.note(JournalStep::Parked { left_bytes });
        if left_bytes != Some(0) {
            let left = left_bytes.map_or("does not report its memory".to_owned(), |left| {
                format!("still shows {}", Bytes(left))
            });
            let why = format!("parked, but NVML {left}; gpumem unpark {pid} restores it");
            return Ok(ParkAnswer::Failed { why });
        }
        Ok(ParkAnswer::Parked { bytes: process.bytes(), ms: self.milliseconds() })
    }

    /// Returns why the process must not be parked after all: since the lock it is a different one, works or has grown.
    fn changed(&mut self, process: &ParkedProcess, is_ending: bool) -> Option<String> {
        let snapshot = match self.sample() {
            Ok(snapshot) => snapshot,
            Err(answer) => return Some(answer.words()),
        };
        let pid = self.request.way.pid;
        let is_same = snapshot
            .process(pid)
            .is_some_and(|now| now.identity() == process.identity() && now.unresolved.is_none());
        let now = held(pid, &snapshot).map(|held| held.iter().map(|gpu| gpu.bytes).sum::<u64>());
        if !is_same {
            return Some("it is another process now".to_owned());
        }
        if now.is_none_or(|now| now > process.bytes()) {
            return Some("it allocated memory in the meantime".to_owned());
        }
        if is_ending { None } else { work(pid, &snapshot) }
    }

    fn unpark(&mut self) -> Result<ParkAnswer, ParkAnswer> {
        let pid = self.request.way.pid;
        let record = self
            .own_record()?
            .ok_or(ParkAnswer::Refused { why: "gpumem has not parked it".to_owned() })?;
        let process = record.process;
        let snapshot = self.sample()?;
        if snapshot.driver.version.as_deref() != Some(&*process.driver_version) {
            let now = snapshot.driver.version.as_deref().unwrap_or("unknown");
            return refused(format!(
                "it was parked with driver {}, and the driver is {now} now; its GPU state cannot be restored",
                process.driver_version
            ));
        }
        match self.cuda.state(pid) {
            Ok(CudaState::Running) => {
                self.note(JournalStep::Running);
                return Ok(ParkAnswer::Running { bytes: 0, ms: 0 });
            }
            Ok(CudaState::Locked) => return self.unlock(&process, 0),
            Ok(CudaState::Checkpointed) => {}
            Ok(_) => return Err(self.recover("the state does not allow a restore", false)),
            Err(error) => return Err(self.recover(&error.to_string(), false)),
        }
        let _locks = self.lock_gpus(&process.gpus, &snapshot)?;
        let first = find_room(&process.gpus, &snapshot)?;
        thread::sleep(LOOKS);
        let second = find_room(&process.gpus, &self.sample()?)?;
        let is_falling = first
            .iter()
            .zip(&second)
            .any(|(first, second)| first.saturating_sub(*second) > TAKEN_BYTES);
        if is_falling {
            let why = "another process is allocating memory on its GPU; try again".to_owned();
            return Err(ParkAnswer::NoRoom { why });
        }
        if let Err(error) = self.cuda.init() {
            return Err(self.recover(&error.to_string(), false));
        }
        if self.control.has_exited(self.handle) {
            return Err(self.exited());
        }
        self.announce(JournalStep::Restoring)?;
        let restored = self.cuda.restore(pid);
        if self.control.has_exited(self.handle) {
            return Err(self.exited());
        }
        if let Err(error) = restored
            && self.cuda.state(pid) != Ok(CudaState::Locked)
        {
            return Err(self.not_restored(&error));
        }
        self.unlock(&process, process.bytes())
    }

    fn not_restored(&mut self, error: &CudaError) -> ParkAnswer {
        let why = match error.code {
            OUT_OF_MEMORY => {
                format!("{error}; a restore that lacked memory can rarely be repeated")
            }
            _ => error.to_string(),
        };
        self.recover(&why, false)
    }

    /// Lets the process run, and waits until NVML shows the restored bytes.
    fn unlock(&mut self, process: &ParkedProcess, bytes: u64) -> Result<ParkAnswer, ParkAnswer> {
        self.note(JournalStep::Unlocking);
        let unlocked = self.cuda.unlock(process.pid);
        if self.control.has_exited(self.handle) {
            return Err(self.exited());
        }
        match unlocked.and_then(|()| self.cuda.state(process.pid)) {
            Ok(CudaState::Running) => self.note(JournalStep::Running),
            Ok(state) => return Err(self.recover(&format!("the driver reports {state:?}"), false)),
            Err(error) => return Err(self.recover(&error.to_string(), false)),
        }
        let expected = bytes - bytes / 20;
        let shown = self.wait_for_bytes(|shown| shown >= expected).unwrap_or(0);
        if shown < expected {
            let why = format!("it runs, but NVML shows {} of {}", Bytes(shown), Bytes(bytes));
            return Ok(ParkAnswer::Failed { why });
        }
        Ok(ParkAnswer::Running { bytes, ms: self.milliseconds() })
    }

    fn ask_state(&mut self) -> Result<ParkAnswer, ParkAnswer> {
        if self.own_record()?.is_none() {
            return refused("gpumem has not parked it");
        }
        match self.cuda.state(self.request.way.pid) {
            Ok(CudaState::Running) => self.note(JournalStep::Running),
            Ok(CudaState::Checkpointed) => self.note(JournalStep::Parked { left_bytes: None }),
            state => {
                let why = match &state {
                    Err(error) => error.to_string(),
                    Ok(_) => "an earlier operation was interrupted".to_owned(),
                };
                self.note(JournalStep::Failed { why, state: state.ok() });
            }
        }
        Ok(ParkAnswer::Running { bytes: 0, ms: 0 })
    }

    /// Undoes a lock, and describes the state in which a failure has left the process. `is_harmless` is set if the
    /// process only worked.
    fn recover(&mut self, why: &str, is_harmless: bool) -> ParkAnswer {
        let pid = self.request.way.pid;
        let was_parking = self.request.operation != ParkOperation::Unpark;
        let mut state = self.cuda.state(pid);
        if state == Ok(CudaState::Locked) && was_parking {
            self.note(JournalStep::Unlocking);
            state = self.cuda.unlock(pid).and_then(|()| self.cuda.state(pid));
        }
        let unparks = format!("run `gpumem unpark {pid}`");
        let words = match &state {
            Ok(CudaState::Running) => "it runs as before".to_owned(),
            Ok(CudaState::Locked) => format!("it is locked, and its CUDA calls wait; {unparks}"),
            Ok(CudaState::Checkpointed) => format!("its memory is on the host; {unparks}"),
            Ok(CudaState::Failed) => "its CUDA state is lost; end it".to_owned(),
            Ok(CudaState::Other(number)) => {
                format!("its state is {number}, which gpumem does not know")
            }
            Err(error) => format!("its state is unknown ({error})"),
        };
        self.note(JournalStep::Failed { why: why.to_owned(), state: state.clone().ok() });
        let why = format!("{why}; {words}");
        match is_harmless && state == Ok(CudaState::Running) {
            true => ParkAnswer::Busy { why },
            false => ParkAnswer::Failed { why },
        }
    }

    fn exited(&mut self) -> ParkAnswer {
        ParkAnswer::Failed { why: "it exited in the meantime".to_owned() }
    }

    /// Writes a step that precedes a call. The call must not happen if this fails.
    fn announce(&mut self, step: JournalStep) -> Result<(), ParkAnswer> {
        self.journal
            .write(step)
            .or_else(|error| refused(format!("the journal: {}", system_message(&error))))
    }

    /// Writes what has happened, or precedes a call that only undoes something. Such a call must happen even if the
    /// disk is full.
    fn note(&mut self, step: JournalStep) {
        let _ = self.journal.write(step);
    }

    /// Returns the record of the process. If only another user's journal contains it, copies it.
    fn own_record(&mut self) -> Result<Option<ParkRecord>, ParkAnswer> {
        let failed = |error: io::Error| ParkAnswer::Refused {
            why: format!("the journal: {}", system_message(&error)),
        };
        if let Some(record) = self.journal.record().map_err(failed)? {
            return Ok(Some(record));
        }
        let mut records = self.journals.read(&self.roots).into_iter();
        let identity = (self.request.way.pid, self.request.way.start_ticks);
        let record =
            records.find(|record| (record.process.pid, record.process.start_ticks) == identity);
        if let Some(record) = &record {
            self.announce(JournalStep::Adopted(record.process.clone()))?;
        }
        Ok(record)
    }

    /// Returns all records. That of this process shows the state before this operation.
    fn records(&mut self, snapshot: &Snapshot) -> Result<Vec<ParkRecord>, ParkAnswer> {
        let own = self
            .journal
            .record()
            .or_else(|error| refused(format!("the journal: {}", system_message(&error))))?;
        let mut records = self.journals.read(&self.roots);
        let pid = self.request.way.pid;
        records.retain(|record| own.is_none() || record.process.pid != pid);
        records.extend(own);
        Ok(records.into_iter().map(|record| record.corrected(snapshot)).collect())
    }

    fn describe(&self, snapshot: &Snapshot) -> Result<ParkedProcess, ParkAnswer> {
        let gpus = held(self.request.way.pid, snapshot).filter(|gpus| !gpus.is_empty());
        let Some((gpus, driver_version)) = gpus.zip(snapshot.driver.version.clone()) else {
            return refused("NVML does not report its memory");
        };
        Ok(ParkedProcess {
            pid: self.request.way.pid,
            start_ticks: self.request.way.start_ticks,
            uid: self.request.way.uid,
            boot_id: self.request.boot_id.clone(),
            name: self.request.way.name.clone(),
            notebook: self.request.way.notebook.clone(),
            driver_version,
            gpus,
        })
    }

    fn sample(&mut self) -> Result<Snapshot, ParkAnswer> {
        if self.live.is_none() {
            let settings = &self.request.settings;
            let options = NvmlOptions {
                library: settings.nvml_library.clone(),
                timeout: settings.nvml_timeout,
            };
            let live = Live::open(options, POLL).or_else(|error| refused(error.to_string()))?;
            self.live = Some(live);
        }
        match &mut self.live {
            Some(live) => Ok(live.sample()),
            None => refused("NVML is not open"),
        }
    }

    /// Waits until NVML shows a wanted number of bytes for the process. Returns the number in the last sample, or `None`
    /// if it is unknown.
    fn wait_for_bytes(&mut self, is_wanted: impl Fn(u64) -> bool) -> Option<u64> {
        let start = Instant::now();
        loop {
            let shown =
                self.sample().ok().and_then(|snapshot| held(self.request.way.pid, &snapshot));
            let bytes = shown.map(|held| held.iter().map(|gpu| gpu.bytes).sum::<u64>());
            if bytes.is_some_and(&is_wanted) || start.elapsed() > EFFECT {
                return bytes;
            }
            thread::sleep(POLL);
        }
    }

    /// Locks the GPUs against other restores.
    fn lock_gpus(
        &self,
        gpus: &[ParkedGpu],
        snapshot: &Snapshot,
    ) -> Result<Vec<OwnedFd>, ParkAnswer> {
        let claims = Claims::of_machine();
        let lock = |parked: &ParkedGpu| {
            let gpu = find_gpu(parked, snapshot)?;
            let lock = claims.lock_for_restore(gpu).or_else(|error| refused(error.to_string()))?;
            lock.ok_or_else(|| ParkAnswer::NoRoom {
                why: format!("another process is being restored on GPU {}; try again", gpu.index),
            })
        };
        gpus.iter().map(lock).collect()
    }

    fn milliseconds(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

fn find_gpu<'a>(parked: &ParkedGpu, snapshot: &'a Snapshot) -> Result<&'a Gpu, ParkAnswer> {
    let mut gpus = snapshot.gpus.iter();
    let gpu = gpus.find(|gpu| gpu.uuid.as_ref() == Some(&parked.uuid));
    let gpu = gpu.filter(|gpu| gpu.stale_seconds.is_none());
    gpu.ok_or_else(|| ParkAnswer::NoRoom {
        why: format!("GPU {}, which it used, cannot be read", parked.uuid),
    })
}

/// Returns the free memory of each GPU. Fails if it is not enough.
pub fn find_room(gpus: &[ParkedGpu], snapshot: &Snapshot) -> Result<Vec<u64>, ParkAnswer> {
    let room = |parked: &ParkedGpu| {
        let gpu = find_gpu(parked, snapshot)?;
        let needed = parked.bytes.saturating_add(SPARE_BYTES);
        let free = gpu.memory.map_or(0, |memory| memory.free_bytes);
        if free >= needed {
            return Ok(free);
        }
        let mut rows: Vec<_> = gpu.processes.iter().flatten().collect();
        rows.sort_by_key(|row| std::cmp::Reverse(row.used_bytes));
        let holders = rows.iter().take(3).map(|row| {
            let name = snapshot.process(row.pid).and_then(|process| process.user.as_deref());
            let bytes = row.used_bytes.map(|bytes| format!(" {}", Bytes(bytes)));
            format!("{} {}{}", row.pid, name.unwrap_or("?"), bytes.unwrap_or_default())
        });
        let holders = holders.collect::<Vec<_>>().join(", ");
        Err(ParkAnswer::NoRoom {
            why: format!(
                "it needs {} on GPU {}, and {} are free; held by {}",
                Bytes(needed),
                gpu.index,
                Bytes(free),
                if holders.is_empty() { "no listed process" } else { &holders }
            ),
        })
    };
    gpus.iter().map(room).collect()
}
