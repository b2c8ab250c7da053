//! `gpumem run`: runs a command and reports its GPU usage.
//!
//! `choose` waits for GPUs and claims them. `child` starts the command and waits for it on the main thread. Meanwhile,
//! another thread takes samples, and `usage` adds them up. If the command fails, gpumem exits with the command's exit
//! code. Otherwise, the assertions determine the exit code.

mod child;
mod choose;
mod usage;

use std::ffi::{OsStr, OsString};
use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;

use self::child::{Ending, Given, Signals};
use self::usage::Usage;
use super::args::{Global, RunArgs, RunFailure};
use super::devices::{VISIBLE, callers_visible};
use super::exit::{Exit, NotStarted, UsageError};
use super::reap::observe;
use super::{config, live, session, signals, warn};
use crate::host::{self, KernelModule, OutputFile, Roots};
use crate::model::json::document;
use crate::model::{Kind, Process, Time};
use crate::report::run::{HeldMemory, RunAssertion, RunGpu, RunReport, RunStatus, SCHEMA};
use crate::source::live::Live;
use crate::units::Bytes;

/// Interval between the first samples, so that short commands are sampled several times. Later, the interval is a
/// twentieth of the elapsed time, but at most the configured interval.
const FIRST_INTERVAL: Duration = Duration::from_millis(20);
const INTERVAL_SHARE: u32 = 20;
/// Maximum time from the exit of the command to the report of held memory. The command's descendants need time to exit.
const HELD_AFTER: Duration = Duration::from_secs(5);
const HELD_INTERVAL: Duration = Duration::from_millis(200);
/// Delay before the processes that keep a claim are named, because helper processes exit shortly after the command.
const HEIRS_AFTER: Duration = Duration::from_secs(1);
/// Time allowed after [`HELD_AFTER`] for the last sample, because a slow driver may delay each sample.
const PATIENCE: Duration = Duration::from_secs(10);

pub(super) fn run(args: &RunArgs, global: &Global) -> anyhow::Result<Exit> {
    let signals = Signals::block()?;
    let reports =
        args.report.iter().map(|path| Report::open(path)).collect::<Result<Vec<_>, _>>()?;
    // Replace an old report now: if gpumem is killed, an old report must not look like the report of this run.
    let interim = incomplete(args, "gpumem is still running, or a signal ended it".to_owned());
    for report in &reports {
        if matches!(report.file, OutputFile::Replaced(_)) {
            // Ignore the error: writing the final report fails in the same way, and that error is printed.
            let _ = report.write(&interim);
        }
    }
    let result = measure(args, global, &signals, &reports);
    if let Err(error) = &result {
        write_reports(&reports, &incomplete(args, format!("{error:#}")));
    }
    result
}

fn measure(
    args: &RunArgs,
    global: &Global,
    signals: &Signals,
    reports: &[Report],
) -> anyhow::Result<Exit> {
    let config = config::load(global)?;
    let mut rules = config.rules.clone();
    observe::switch_on(&mut rules, &[Kind::Leak]);
    let interval = args.interval.unwrap_or(config.sample.interval).0;
    session::live_options(global, interval)?;
    let shared = Arc::new(Mutex::new(Usage::new(rules)));
    let (mut opened, mut has_driver) = (None, true);
    if needs_driver(args) {
        match live(global, interval) {
            Ok(live) => opened = Some(Box::new(live)),
            // The report contains the error.
            Err(error) if args.allow_no_gpu => {
                lock(&shared).note(format!("{error:#}"));
                has_driver = false;
            }
            Err(error) => return Err(error),
        }
    }
    let mut chosen = None;
    if let Some(live) = opened.as_mut().filter(|_| choose::is_asked(args)) {
        chosen = choose::choose(args, global, live, (config.rules, interval))?;
        if chosen.is_none() {
            let reason = format!(
                "not free within {} (--timeout); the command was not started",
                args.timeout
            );
            return Err(NotStarted { exit: Exit::Findings, reason }.into());
        }
    }
    // Take one sample first, because a short command may exit before the sampling thread starts.
    if let Some(live) = opened.as_mut().filter(|_| has_assertions(args)) {
        let snapshot = live.sample();
        lock(&shared).observe(snapshot, |_| false);
    }
    let (time, begun) = (host::read_time(), Instant::now());
    let given = chosen.as_ref().map_or_else(Given::default, |chosen| Given {
        // The command inherits the file locks, so the GPUs remain claimed even if gpumem is killed.
        descriptors: chosen.locks.iter().map(AsRawFd::as_raw_fd).collect(),
        variable: Some((VISIBLE, chosen.visible.clone())),
    });
    let child = match signals.start(&args.command, &given) {
        Ok(child) => child,
        Err(error) => {
            let reason = format!("{}: {}", args.command[0].display(), error.desc());
            let exit = Exit::Command(child::code_of_failure(error));
            return Err(NotStarted { exit, reason }.into());
        }
    };
    let sampling = has_driver
        .then(|| Sampling::start((global, interval, opened), &shared, signals))
        .and_then(|started| started.map_err(|error| lock(&shared).note(error.to_string())).ok());
    give_up_input_and_output();
    let ending = signals.wait(child)?;
    let seconds = begun.elapsed().as_secs_f64();
    let is_over = !child::reap();
    let held = match sampling {
        Some(sampling) => sampling.end(is_over),
        None => is_over.then(Vec::new),
    };
    if let Some(chosen) = chosen.as_ref().filter(|_| args.claim && !args.quiet) {
        let since = Instant::now();
        let is_hurried = || signals.is_hurried.load(Ordering::Relaxed);
        while child::reap() && since.elapsed() < HEIRS_AFTER && !is_hurried() {
            thread::sleep(HELD_INTERVAL);
        }
        if child::reap() {
            chosen.warn_about_heirs();
        }
    }
    let waited = chosen.as_ref().map(|chosen| chosen.waited);
    let visible = given.variable.map(|(_, value)| value);
    let visible = visible.or_else(callers_visible);
    let run = Run { time, seconds, ending, held, waited, visible, has_driver };
    let report = report(args, &lock(&shared), run);
    let is_written = publish_report(args, &report, reports);
    // The kernel ignores fatal signals that the init process of a pid namespace sends to itself, so init exits with a
    // code.
    if let Some(signal) = report.signal.filter(|_| std::process::id() != 1) {
        // Die from the command's signal, so that the parent sees the same status, but do not dump core a second time.
        let none = rustix::process::Rlimit { current: Some(0), maximum: Some(0) };
        let _ = rustix::process::setrlimit(rustix::process::Resource::Core, none);
        let _ = signals::end_as_by(signal);
    }
    Ok(match report.status {
        RunStatus::Failed | RunStatus::Incomplete => {
            let code = report.exit_code.or(report.signal.map(|signal| 128 + signal));
            Exit::Command(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX))
        }
        RunStatus::Findings => Exit::Findings,
        RunStatus::Error => Exit::CannotMeasure,
        RunStatus::Ok if !is_written => Exit::Findings,
        RunStatus::Ok => Exit::Clean,
    })
}

/// Closes standard input and output, so that programs at the other ends of pipes notice that the command has exited.
fn give_up_input_and_output() {
    if let Ok(null) = OpenOptions::new().read(true).write(true).open("/dev/null") {
        // Ignore the error: the descriptors are then closed when gpumem exits.
        let _ = nix::unistd::dup2_stdin(&null).and_then(|()| nix::unistd::dup2_stdout(&null));
    }
}

/// Returns whether to open the driver before the command starts. If the kernel module is loaded, the sampling thread
/// can open the driver instead, unless GPUs must be chosen or assertions checked.
fn needs_driver(args: &RunArgs) -> bool {
    let module = || host::read_kernel_module(&Roots::default().proc);
    choose::is_asked(args)
        || has_assertions(args)
        || !matches!(module(), KernelModule::Loaded { .. })
}

fn has_assertions(args: &RunArgs) -> bool {
    args.max_peak.is_some() || !args.fail_on.is_empty()
}

#[derive(Debug)]
struct Sampling {
    /// Tells the sampling thread that the command has exited: `true` if all of its descendants have exited as well.
    ended: Sender<bool>,
    held: Receiver<Option<Vec<HeldMemory>>>,
}

impl Sampling {
    fn start(
        (global, interval, opened): (&Global, Duration, Option<Box<Live>>),
        shared: &Arc<Mutex<Usage>>,
        signals: &Signals,
    ) -> io::Result<Self> {
        let (ended, ended_there) = channel();
        let (held, held_here) = channel();
        let (global, shared) = (global.clone(), Arc::clone(shared));
        let is_hurried = Arc::clone(&signals.is_hurried);
        let sample = move || match opened.map_or_else(|| live(&global, interval), |live| Ok(*live))
        {
            Err(error) => lock(&shared).note(format!("{error:#}")),
            Ok(mut live) => {
                if !until_end(&mut live, &shared, interval, &ended_there) {
                    let _ = held.send(held_after(&mut live, &shared, &is_hurried));
                }
            }
        };
        thread::Builder::new().name("sampler".to_owned()).spawn(sample)?;
        Ok(Self { ended, held: held_here })
    }

    /// Stops sampling. Returns the memory that descendants of the command still hold, or `None` if it could not be
    /// measured.
    fn end(&self, is_over: bool) -> Option<Vec<HeldMemory>> {
        let _ = self.ended.send(is_over);
        if is_over {
            return Some(Vec::new());
        }
        let begun = Instant::now();
        while begun.elapsed() < HELD_AFTER + PATIENCE {
            match self.held.recv_timeout(Duration::from_millis(100)) {
                Ok(held) => return held,
                Err(RecvTimeoutError::Disconnected) => return None,
                // All descendants have exited, so none holds memory.
                Err(RecvTimeoutError::Timeout) if !child::reap() => return Some(Vec::new()),
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
        None
    }
}

/// Locks the usage data, which the main thread and the sampling thread share. The lock is not held during NVML calls.
fn lock(shared: &Mutex<Usage>) -> MutexGuard<'_, Usage> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes samples until the command exits. Returns whether all descendants of the command have exited as well.
fn until_end(
    live: &mut Live,
    shared: &Mutex<Usage>,
    longest: Duration,
    ended: &Receiver<bool>,
) -> bool {
    let begun = Instant::now();
    loop {
        let snapshot = live.sample();
        let pause = (begun.elapsed() / INTERVAL_SHARE).max(FIRST_INTERVAL).min(longest);
        // Discard a sample that was taken after the command exited.
        match ended.try_recv() {
            Err(TryRecvError::Empty) => lock(shared).observe(snapshot, is_ours),
            message => return message.unwrap_or(true),
        }
        match ended.recv_timeout(pause) {
            Err(RecvTimeoutError::Timeout) => {}
            message => return message.unwrap_or(true),
        }
    }
}

/// Returns the memory that descendants hold `HELD_AFTER` after the command exited. Returns early if no memory is held
/// or a signal arrives.
fn held_after(
    live: &mut Live,
    shared: &Mutex<Usage>,
    is_hurried: &AtomicBool,
) -> Option<Vec<HeldMemory>> {
    let begun = Instant::now();
    loop {
        let snapshot = live.sample();
        let held = lock(shared).held(&snapshot, is_ours);
        let is_over = begun.elapsed() >= HELD_AFTER || is_hurried.load(Ordering::Relaxed);
        if is_over || held.as_ref().is_some_and(Vec::is_empty) {
            return held;
        }
        thread::sleep(HELD_INTERVAL.min(HELD_AFTER.saturating_sub(begun.elapsed())));
    }
}

/// Returns whether a process descends from gpumem, which adopts orphaned descendants of the command.
fn is_ours(process: &Process) -> bool {
    host::descends_from(&Roots::default(), process.pid, std::process::id())
}

/// The outcome of a run, except for the samples.
#[derive(Debug)]
struct Run {
    time: Time,
    seconds: f64,
    ending: Ending,
    held: Option<Vec<HeldMemory>>,
    waited: Option<Duration>,
    visible: Option<String>,
    has_driver: bool,
}

fn report(args: &RunArgs, usage: &Usage, run: Run) -> RunReport {
    let (exit_code, signal) = match run.ending {
        Ending::Exited(code) => (Some(code), None),
        Ending::Signaled(signal) => (None, Some(signal)),
    };
    let is_measured = usage.samples > 0;
    let mut report = RunReport {
        time: run.time,
        seconds: run.seconds,
        waited_seconds: run.waited.map(|waited| waited.as_secs_f64()),
        exit_code,
        signal,
        samples: usage.samples,
        gpus: usage.gpus(),
        processes: usage.processes(),
        leaks_decided: usage.leaks_decided(),
        leaks: usage.leaks(),
        held: run.held,
        least_free: (run.ending != Ending::Exited(0))
            .then(|| usage.least_free(run.visible.as_deref())),
        errors: usage.errors.clone(),
        ..incomplete(args, String::new())
    };
    // `--allow-no-gpu` accepts a machine without a driver, so a missing measurement is undecided, not an error.
    let no_driver = (!run.has_driver).then_some("there is no driver (--allow-no-gpu)");
    let assertion = |name: String, failure: Option<String>, is_known: bool, why: Option<&str>| {
        let undecided = no_driver.or(why);
        let (passed, message) = match (failure, undecided) {
            (Some(message), _) => (Some(false), message),
            (None, _) if is_known => (Some(true), "passed".to_owned()),
            (None, Some(why)) => (None, format!("undecided: {why}")),
            (None, None) => (None, "could not be measured".to_owned()),
        };
        let is_undecided = passed.is_none() && undecided.is_some();
        RunAssertion { name, passed, message, is_undecided }
    };
    let peak = args.max_peak.map(|limit| {
        let allowed = |gpu: &RunGpu| limit.in_bytes(gpu.total_bytes);
        let over = report.gpus.iter().find_map(|gpu| {
            let allowed = allowed(gpu)?;
            let peak = gpu.figures.peak_bytes.filter(|&peak| peak > allowed)?;
            Some(format!("{} on GPU {}, more than {}", Bytes(peak), gpu.index, Bytes(allowed)))
        });
        let is_known = report.gpus.iter().all(|gpu| allowed(gpu).is_some());
        let is_known = is_measured && is_known && !usage.is_blind();
        assertion(format!("--max-peak {limit}"), over, is_known, None)
    });
    let failures = args.fail_on.iter().map(|failure| match failure {
        RunFailure::Leak => {
            let leak = report.leaks.first().map(|leak| leak.message.to_string());
            let is_known = report.leaks_decided && !usage.is_blind();
            let why = is_measured.then_some("too little evidence to rule out a leak");
            assertion("--fail-on leak".to_owned(), leak, is_known, why)
        }
        RunFailure::Held => {
            let is_held = report.held.as_ref().is_some_and(|held| !held.is_empty());
            let held = is_held.then(|| report.held_text());
            assertion("--fail-on held".to_owned(), held, report.held.is_some(), None)
        }
    });
    report.assertions = peak.into_iter().chain(failures).collect();
    let any = |is: fn(&RunAssertion) -> bool| report.assertions.iter().any(is);
    let is_undecided = any(|assertion| assertion.is_undecided);
    report.status = match exit_code {
        Some(0) if any(|assertion| assertion.passed == Some(false)) => RunStatus::Findings,
        Some(0) if any(|it| it.passed.is_none() && !it.is_undecided) => RunStatus::Error,
        Some(0) if is_undecided && args.fail_on_undecided => RunStatus::Findings,
        Some(0) => RunStatus::Ok,
        _ => RunStatus::Failed,
    };
    report
}

fn incomplete(args: &RunArgs, reason: String) -> RunReport {
    RunReport {
        schema: SCHEMA,
        time: host::read_time(),
        command: masked(&args.command),
        errors: vec![reason],
        ..RunReport::default()
    }
}

/// Returns the command. `parse_cmdline` masks passwords and tokens.
fn masked(command: &[OsString]) -> Arc<[Arc<str>]> {
    let words: Vec<&[u8]> = command.iter().map(|word| word.as_bytes()).collect();
    host::parse_cmdline(&words.join(&0)).unwrap_or_default()
}

/// Prints the report and writes the report files. Returns whether all files could be written.
fn publish_report(args: &RunArgs, report: &RunReport, reports: &[Report]) -> bool {
    if !args.quiet {
        for line in report.lines() {
            warn(&line);
        }
    }
    if std::env::var_os("GITHUB_ACTIONS").is_some_and(|value| value == "true") {
        let _ = io::stderr().write_all(report.to_annotations().as_bytes());
    }
    write_reports(reports, report)
}

fn write_reports(reports: &[Report], report: &RunReport) -> bool {
    let mut is_written = true;
    for file in reports {
        if let Err(error) = file.write(report) {
            warn(&format!("{error:#}"));
            is_written = false;
        }
    }
    is_written
}

#[derive(Debug)]
struct Report {
    path: PathBuf,
    is_json: bool,
    file: OutputFile,
}

impl Report {
    fn open(path: &Path) -> Result<Self, UsageError> {
        let name = path.display();
        let is_json = match path.extension().and_then(OsStr::to_str) {
            Some("json") => true,
            Some("xml") => false,
            _ => {
                let why = format!("--report {name}: the file name must end in .json or .xml");
                return Err(UsageError(why));
            }
        };
        let file = OutputFile::document(path).map_err(|error| {
            UsageError(format!("--report {name}: cannot write: {error}; choose another file"))
        })?;
        Ok(Self { path: path.to_owned(), is_json, file })
    }

    fn write(&self, report: &RunReport) -> anyhow::Result<()> {
        let text = match self.is_json {
            true => document(report)?,
            false => report.to_junit(host::read_host(&Roots::default()).hostname),
        };
        self.file
            .write(text.as_bytes(), None)
            .with_context(|| format!("cannot write {}", self.path.display()))
    }
}
