//! The helper: a process that performs one [`ParkOperation`] on another process.
//!
//! No time limit kills the helper, because an interrupted call can leave the process locked. It blocks the signals of a
//! terminal, runs in its own session, and finishes even if gpumem exits. Each call that changes the process is in the
//! journal before it is made. If a call fails, the helper queries the driver for the state, and undoes the lock of a
//! park. The driver's functions take a pid, so a pidfd, opened before the first call, shows whether the process has
//! exited.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write as _};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal};
use rustix::fd::OwnedFd;
use rustix::fs::{FlockOperation, flock};

use super::check::{find_obstacles, held, work};
use super::ffi::{Cuda, CudaError, NOT_READY, OUT_OF_MEMORY};
use super::journal::{ParkRecord, ParkStep, ParkedGpu, start_ticks};
use super::{ARGUMENT, ParkAnswer, ParkOperation, ParkRequest, ParkResult};
use crate::host::{Claims, Roots, has_gained_rights, read_memory_by_child, read_time};
use crate::model::process::ParkState;
use crate::model::{Gpu, Process, Snapshot};
use crate::reclaim::process_control::{ApprovedProcess, Handle, PidfdControl, ProcessControl as _};
use crate::source::live::Live;
use crate::source::nvml::NvmlOptions;
use crate::units::{Bytes, MIB};

/// Time limit of a lock, in milliseconds. The GPU work of the process must end within this time.
const LOCK_MS: u32 = 10_000;
/// How long NVML may take to show the effect of a call.
const EFFECT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(200);
/// Memory that must be free in addition to what is restored. A restore that fails for lack of memory can rarely be
/// repeated.
const SPARE_BYTES: u64 = 512 * MIB;
/// Maximum decrease of the free memory between the two checks. A larger decrease means that another process is
/// allocating the memory.
const TAKEN_BYTES: u64 = 64 * MIB;

/// Performs the request in the arguments, if they are those of a helper. Returns whether they are.
pub fn run_if_requested(arguments: impl Iterator<Item = OsString>) -> bool {
    let mut arguments = arguments.skip(1);
    if arguments.next().as_deref() != Some(OsStr::new(ARGUMENT)) {
        return false;
    }
    let request: Option<ParkRequest> =
        arguments.next().and_then(|text| serde_json::from_str(text.to_str()?).ok());
    let answer = match request {
        // Every user who can start a gpumem with file capabilities could otherwise use its privileges.
        Some(_) if has_gained_rights() => {
            refuse("gpumem parks only with the rights of its caller, not with file capabilities")
        }
        Some(request) => {
            isolate();
            let _reading = read_memory_by_child();
            operate(&request)
        }
        None => refuse("the helper is started only by gpumem itself"),
    };
    let answer = answer.unwrap_or_else(|answer| answer);
    // If gpumem has exited, no process reads the answer. The journal contains the result.
    let _ = serde_json::to_vec(&answer).map(|text| io::stdout().write_all(&text));
    true
}

/// The answer, as `Err` if a step ended the operation early.
type Answer = Result<ParkAnswer, ParkAnswer>;

fn refuse<T>(text: impl ToString) -> Result<T, ParkAnswer> {
    Err(ParkAnswer::refused(text))
}

fn isolate() {
    // Ignore errors. Lowering the OOM score requires a privilege, and a process group leader cannot create a session.
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

/// Locks a process against other helpers. Only its owner and root can open the file.
fn lock_process(pid: u32) -> io::Result<File> {
    let file = File::open(Roots::default().proc.join(format!("{pid}/environ")))?;
    flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|errno| match errno.into() {
        error if io::Error::kind(&error) == io::ErrorKind::WouldBlock => {
            io::Error::other("another helper is at work; see `gpumem park --list`")
        }
        error => error,
    })?;
    Ok(file)
}

fn operate(request: &ParkRequest) -> Answer {
    let process = &request.process;
    let cuda = Cuda::load().or_else(refuse)?;
    let _lock = lock_process(process.pid).or_else(refuse)?;
    let mut control = PidfdControl::new(Roots::default());
    let approved = ApprovedProcess {
        pid: process.pid,
        start_ticks: process.start_ticks,
        uid: process.uid,
        boot_id: Some(request.boot_id.clone()),
    };
    let handle = control.open(&approved).or_else(refuse)?;
    let mut records = request.settings.journals.read();
    let identity = (process.pid, process.start_ticks);
    records.retain(|record| (record.process.pid, record.process.start_ticks) == identity);
    let record = records.pop();
    let started = Instant::now();
    let mut operation =
        Operation { request, pid: process.pid, cuda, record, control, handle, live: None, started };
    match request.operation {
        ParkOperation::Park | ParkOperation::ParkToEnd => operation.park(),
        ParkOperation::Unpark => operation.unpark(),
        ParkOperation::AskState => operation.ask_state(),
    }
}

struct Operation<'a> {
    request: &'a ParkRequest,
    pid: u32,
    cuda: Cuda,
    /// The last line about the process in the journals, or the line to write first.
    record: Option<ParkRecord>,
    control: PidfdControl,
    handle: Handle,
    live: Option<Live>,
    started: Instant,
}

impl Operation<'_> {
    fn park(&mut self) -> Answer {
        let is_ending = self.request.operation == ParkOperation::ParkToEnd;
        // Prevent other helpers from counting on the same host memory.
        let memory_lock = Claims::of_machine().lock_parks().or_else(refuse)?;
        let snapshot = self.sample()?;
        let obstacles = find_obstacles(&self.request.settings, &snapshot, self.pid, is_ending);
        if !obstacles.is_empty() {
            return refuse(obstacles.join("; "));
        }
        let thread = self.cuda.restore_thread(self.pid).or_else(refuse)?;
        if !Roots::default().proc.join(format!("{}/task/{thread}", self.pid)).exists() {
            return refuse("the driver names a thread of another process");
        }
        self.record = Some(self.describe(&snapshot)?);
        self.write(ParkStep::Intent, ParkState::Running, None)
            .or_else(|error| refuse(format!("cannot write the journal: {error}")))?;
        drop(memory_lock);
        let locked = self.call(ParkStep::Locking, |cuda, pid| cuda.lock(pid, LOCK_MS))?;
        if let Err(error) = locked {
            return Err(self.recover(&error.to_string(), error.code == NOT_READY));
        }
        if let Some(why) = self.find_change(is_ending) {
            return Err(self.recover(&why, true));
        }
        let checkpointed = self.call(ParkStep::Checkpointing, Cuda::checkpoint)?;
        self.expect(checkpointed, ParkState::Parked)?;
        let _ = self.write(ParkStep::Parked, ParkState::Parked, None);
        match self.wait_for_bytes(|bytes| bytes == 0) {
            Some(0) => {
                let text = format!("parked {} in host memory", Bytes(self.bytes()));
                Ok(self.done(ParkResult::Parked, &text, self.bytes()))
            }
            shown => {
                let left =
                    shown.map_or("an unknown size".to_owned(), |shown| Bytes(shown).to_string());
                let unpark = format!("run `gpumem unpark {}`", self.pid);
                let text = format!("parked, but NVML still shows {left}; {unpark}");
                Ok(ParkAnswer::new(ParkResult::Failed, text))
            }
        }
    }

    /// Checks the process again after the lock. Returns why it must not be parked: the pid belongs to another process,
    /// or the process is working or has allocated memory.
    fn find_change(&mut self, is_ending: bool) -> Option<String> {
        let snapshot = match self.sample() {
            Ok(snapshot) => snapshot,
            Err(answer) => return Some(answer.text),
        };
        let identity = self.record.as_ref().map(ParkRecord::identity);
        let now = snapshot.process(self.pid).filter(|now| now.unresolved.is_none());
        if now.map(Process::identity) != identity {
            return Some("it is another process now".to_owned());
        }
        if sum(held(self.pid, &snapshot)).is_none_or(|now| now > self.bytes()) {
            return Some("it allocated memory in the meantime".to_owned());
        }
        if is_ending { None } else { work(self.pid, &snapshot) }
    }

    fn unpark(&mut self) -> Answer {
        let Some(record) = self.record.clone() else {
            return refuse("gpumem has not parked it");
        };
        let snapshot = self.sample()?;
        let version = snapshot.driver.version.as_deref().unwrap_or("unknown");
        let parked_by = &*record.driver_version;
        if version != parked_by {
            let drivers =
                format!("parked with driver {parked_by}, and the driver is {version} now");
            return refuse(format!("it was {drivers}; its GPU state cannot be restored"));
        }
        match self.cuda.state(self.pid) {
            Ok(ParkState::Running) => {
                let _ = self.write(ParkStep::Running, ParkState::Running, None);
                let text = "running; nothing had to be restored";
                return Ok(ParkAnswer::new(ParkResult::Running, text));
            }
            Ok(ParkState::Locked) => return self.unlock(0),
            state => self.expect(state.map(|_| ()), ParkState::Parked)?,
        }
        let _locks = self.lock_gpus(&record.gpus, &snapshot)?;
        let first = find_room(&record.gpus, &snapshot).or_else(no_room)?;
        thread::sleep(self.request.settings.check_interval);
        let second = find_room(&record.gpus, &self.sample()?).or_else(no_room)?;
        let mut both = first.iter().zip(&second);
        if both.any(|(first, second)| first.saturating_sub(*second) > TAKEN_BYTES) {
            let why = "another process is allocating memory on its GPU; try again";
            return no_room(why.to_owned());
        }
        let initialised = self.cuda.init();
        self.expect(initialised, ParkState::Parked)?;
        let restored = self.call(ParkStep::Restoring, Cuda::restore)?;
        if let Err(error) = restored
            && self.cuda.state(self.pid) != Ok(ParkState::Locked)
        {
            let hint = match error.code {
                OUT_OF_MEMORY => ", and a restore that lacked memory can rarely be repeated",
                _ => "",
            };
            return Err(self.recover(&format!("{error}{hint}"), false));
        }
        self.unlock(record.process.bytes)
    }

    /// Lets the process run, and waits until NVML shows the restored bytes.
    fn unlock(&mut self, bytes: u64) -> Answer {
        let unlocked = self.call(ParkStep::Unlocking, Cuda::unlock)?;
        self.expect(unlocked, ParkState::Running)?;
        let _ = self.write(ParkStep::Running, ParkState::Running, None);
        let expected = bytes - bytes / 20;
        let shown = self.wait_for_bytes(|shown| shown >= expected).unwrap_or(0);
        if shown < expected {
            let text = format!("it runs, but NVML shows {} of {}", Bytes(shown), Bytes(bytes));
            return Ok(ParkAnswer::new(ParkResult::Failed, text));
        }
        Ok(self.done(ParkResult::Running, &format!("restored {}", Bytes(bytes)), bytes))
    }

    fn ask_state(&mut self) -> Answer {
        let state = self.cuda.state(self.pid);
        let failure = state.as_ref().err().map(CudaError::to_string);
        // This helper holds the lock, so no other helper is running, and the last one has died.
        if self.record.as_ref().is_some_and(|record| record.state() == ParkState::Unknown) {
            let known = state.clone().unwrap_or(ParkState::Unknown);
            let why = failure.clone().unwrap_or("an earlier operation was interrupted".to_owned());
            let _ = self.write(ParkStep::Asked, known, Some(why));
        }
        match failure {
            None => Ok(ParkAnswer::new(ParkResult::Running, "the driver reports the state")),
            Some(failure) => refuse(failure),
        }
    }

    /// Makes a call that changes the state, after its step is on disk. Returns an error if the call was not made, or if
    /// the process has exited.
    fn call(
        &mut self,
        step: ParkStep,
        call: impl FnOnce(&Cuda, u32) -> Result<(), CudaError>,
    ) -> Result<Result<(), CudaError>, ParkAnswer> {
        let written = self.write(step, ParkState::Unknown, None);
        // An unlock must happen even if the disk is full.
        if let Err(error) = written
            && step != ParkStep::Unlocking
        {
            return Err(self.recover(&format!("cannot write the journal: {error}"), false));
        }
        let result = call(&self.cuda, self.pid);
        if self.control.has_exited(self.handle) {
            // The pid may belong to another process now, which must not stay locked.
            if step == ParkStep::Locking && result.is_ok() {
                let _ = self.cuda.unlock(self.pid);
            }
            return Err(ParkAnswer::new(ParkResult::Failed, "it exited in the meantime"));
        }
        Ok(result)
    }

    /// Returns an error unless a call succeeded and the driver reports the expected state.
    fn expect(
        &mut self,
        result: Result<(), CudaError>,
        expected: ParkState,
    ) -> Result<(), ParkAnswer> {
        let why = match result.and_then(|()| self.cuda.state(self.pid)) {
            Ok(state) if state == expected => return Ok(()),
            Ok(_) => "the driver reports another state than expected".to_owned(),
            Err(error) => error.to_string(),
        };
        Err(self.recover(&why, false))
    }

    /// Undoes the lock of a park, and describes the state in which a failure has left the process. `is_harmless` means
    /// that the process was only working or had changed.
    fn recover(&mut self, why: &str, is_harmless: bool) -> ParkAnswer {
        let was_parking = self.request.operation != ParkOperation::Unpark;
        let mut state = self.cuda.state(self.pid);
        if state == Ok(ParkState::Locked) && was_parking {
            let _ = self.write(ParkStep::Unlocking, ParkState::Unknown, None);
            state = self.cuda.unlock(self.pid).and_then(|()| self.cuda.state(self.pid));
        }
        let unpark = format!("run `gpumem unpark {}`", self.pid);
        let (known, text) = match state {
            Ok(ParkState::Running) => (ParkState::Running, "it runs as before".to_owned()),
            Ok(ParkState::Lost) => (ParkState::Lost, "its CUDA state is lost; end it".to_owned()),
            Ok(state @ ParkState::Locked) => {
                (state, format!("it is locked, and its CUDA calls wait; {unpark}"))
            }
            Ok(state @ ParkState::Parked) => {
                (state, format!("its memory is on the host; {unpark}"))
            }
            Ok(_) => (ParkState::Unknown, "the driver reports an unknown state".to_owned()),
            Err(error) => (ParkState::Unknown, format!("its state is unknown ({error})")),
        };
        let _ = self.write(ParkStep::Asked, known, Some(why.to_owned()));
        let is_busy = is_harmless && known == ParkState::Running;
        let result = if is_busy { ParkResult::Busy } else { ParkResult::Failed };
        ParkAnswer::new(result, format!("{why}; {text}"))
    }

    /// Writes a step to the journal.
    fn write(
        &mut self,
        step: ParkStep,
        state_without_helper: ParkState,
        failure: Option<String>,
    ) -> io::Result<()> {
        let record = self.record.as_mut().ok_or(io::ErrorKind::NotFound)?;
        let pid = std::process::id();
        record.time = read_time();
        record.helper = (pid, start_ticks(pid)?.unwrap_or(0));
        record.was_restored |= step == ParkStep::Restoring;
        (record.step, record.state_without_helper) = (step, state_without_helper);
        record.failure = failure;
        self.request.settings.journals.append(record)
    }

    fn describe(&self, snapshot: &Snapshot) -> Result<ParkRecord, ParkAnswer> {
        let gpus = held(self.pid, snapshot).zip(snapshot.driver.version.clone());
        let Some((gpus, driver_version)) = gpus else {
            return refuse("NVML does not report its memory");
        };
        let before = self.record.clone();
        let mut process = self.request.process.clone();
        process.bytes = gpus.iter().map(|gpu| gpu.bytes).sum();
        Ok(ParkRecord {
            time: read_time(),
            helper: (0, 0),
            step: ParkStep::Intent,
            state_without_helper: ParkState::Running,
            failure: None,
            was_restored: before.is_some_and(|record| record.corrected(snapshot).was_restored),
            boot_id: self.request.boot_id.clone(),
            driver_version,
            gpus,
            process,
        })
    }

    fn bytes(&self) -> u64 {
        self.record.as_ref().map_or(0, |record| record.process.bytes)
    }

    fn sample(&mut self) -> Result<Snapshot, ParkAnswer> {
        let live = match self.live.take() {
            Some(live) => live,
            None => {
                let settings = &self.request.settings;
                let (library, timeout) = (settings.nvml_library.clone(), settings.nvml_timeout);
                Live::open(NvmlOptions { library, timeout }, POLL).or_else(refuse)?
            }
        };
        Ok(self.live.insert(live).sample())
    }

    /// Waits, at most for [`EFFECT`], until NVML shows a wanted number of bytes for the process. Returns the number in
    /// the last sample, or `None` if it is unknown.
    fn wait_for_bytes(&mut self, is_wanted: impl Fn(u64) -> bool) -> Option<u64> {
        let start = Instant::now();
        loop {
            let bytes = self.sample().ok().and_then(|snapshot| sum(held(self.pid, &snapshot)));
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
            let gpu = find_gpu(parked, snapshot).or_else(no_room)?;
            let lock = claims.lock_for_restore(gpu).or_else(refuse)?;
            let why =
                || format!("another process is being restored on GPU {}; try again", gpu.index);
            lock.ok_or_else(|| ParkAnswer::new(ParkResult::NoRoom, why()))
        };
        gpus.iter().map(lock).collect()
    }

    fn done(&self, result: ParkResult, text: &str, bytes: u64) -> ParkAnswer {
        let time = self.started.elapsed();
        let text = format!("{text} in {:.1} s", time.as_secs_f64());
        let ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        ParkAnswer { result, text, bytes, ms }
    }
}

fn no_room<T>(why: String) -> Result<T, ParkAnswer> {
    Err(ParkAnswer::new(ParkResult::NoRoom, why))
}

fn sum(held: Option<Vec<ParkedGpu>>) -> Option<u64> {
    Some(held?.iter().map(|gpu| gpu.bytes).fold(0, u64::saturating_add))
}

fn find_gpu<'a>(parked: &ParkedGpu, snapshot: &'a Snapshot) -> Result<&'a Gpu, String> {
    let mut gpus = snapshot.gpus.iter();
    let gpu = gpus.find(|gpu| gpu.uuid.as_ref() == Some(&parked.uuid));
    let gpu = gpu.filter(|gpu| gpu.stale_seconds.is_none());
    gpu.ok_or_else(|| format!("GPU {}, which it used, cannot be read", parked.uuid))
}

/// Returns the free memory of each GPU. If it is not enough for a restore, returns an error that names the largest
/// holders.
pub fn find_room(gpus: &[ParkedGpu], snapshot: &Snapshot) -> Result<Vec<u64>, String> {
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
        let holders = if holders.is_empty() { "no listed process" } else { &holders };
        let (needed, free, index) = (Bytes(needed), Bytes(free), gpu.index);
        Err(format!("it needs {needed} on GPU {index}, and {free} are free; held by {holders}"))
    };
    gpus.iter().map(room).collect()
}
