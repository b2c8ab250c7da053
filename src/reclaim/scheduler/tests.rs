//! Simulates days of the scheduler, and checks its notices, its acts, and why it does not act.

use super::notices::NoticeKind;
use super::*;
use crate::config::{self, Config};
use crate::model::Process;
use crate::model::dice::Dice;
use crate::model::family::families;
use crate::model::process::AskedRelease;
use crate::model::testing::rounds;
use crate::reclaim::Signal;
use crate::reclaim::process_control::RequestResult;
use crate::reclaim::release::{NotReleased, ReleaseAnswer, ReleaseReport};
use crate::reclaim::target::Request;
use crate::reclaim::testing::{
    BOOT, FakeControl, MemoryLedger, Shared, at, facts, gpu, guard, plan_with, process, snapshot,
};
use crate::units::GIB;

/// The rule finds the process after two minutes. The warning period is ten minutes, and the grace period is one minute.
const REAPS: &str = "[rules.stopped]\naction = \"reap\"\nduration = \"2m\"\n\
                     [reap]\nnotify = [\"/bin/true\"]\nwarn = \"10m\"\ngrace = \"1m\"\n";
const ONLY_NOTIFIES: &str =
    "[rules.stopped]\nduration = \"2m\"\n[reap]\nwarn = \"10m\"\ngrace = \"1m\"\n";
const STEP: f64 = 2.0;
/// Latest times, in seconds, of the first warning, the last warning, and the act.
const WARNED: f64 = 124.0;
const WARNED_LAST: f64 = WARNED + 604.0;
const ACTED: f64 = WARNED_LAST + 64.0;

/// Simulated processes and effects. Records everything that the scheduler does.
#[derive(Default)]
struct FakeSystem {
    control: Shared<FakeControl>,
    ledger: Shared<MemoryLedger>,
    acts: Vec<Time>,
    /// Notices that were queued but not delivered yet.
    notices: Vec<Notice>,
    log: Vec<String>,
    is_busy: bool,
    now: f64,
}

impl System for FakeSystem {
    fn plan(&mut self, targets: Targets, source: PlanSource<'_>) -> Result<(Plan, Guard), String> {
        let mut guard = guard();
        guard.policy.targets = targets;
        guard.policy.never = source.rules.never().to_vec();
        guard.policy.releasing = source.reap.unwrap().releasing().cloned().collect();
        let families = families(source.snapshot);
        let control = self.control.get();
        let mut plan =
            plan_with(source.findings, source.snapshot, &families, &control.processes, &guard);
        for target in &mut plan.targets {
            target.used_at_plan = Some(Arc::new(control.usage.clone()));
        }
        Ok((plan, guard))
    }

    fn notify(&mut self, notice: Notice) -> bool {
        self.notices.push(notice);
        true
    }

    fn log(&mut self, text: &str) {
        self.log.push(text.to_owned());
    }

    fn tools(&mut self) -> Result<Tools, String> {
        if self.is_busy {
            return Err("another reaper is running".to_owned());
        }
        let (control, record) = (self.control.clone(), self.ledger.clone());
        let tools = Tools::new(Box::new(control), Box::new(record));
        Ok(tools.after(self.acts.clone()))
    }
}

/// A scheduler, its system, and the processes that hold 1 GiB each on GPU 0.
struct SchedulerTest {
    scheduler: ReapScheduler,
    system: FakeSystem,
    processes: Vec<Process>,
    /// Whether NVML's process list is unreadable.
    is_blind: bool,
    at_work: Vec<u32>,
    /// Error with which deliveries fail, or `None` if they succeed.
    undelivered: Option<&'static str>,
    /// Time, in seconds, and kind of each notice that was queued.
    sent_notices: Vec<(f64, NoticeKind)>,
    snapshots: Vec<Snapshot>,
    folder: tempfile::TempDir,
}

fn configured(toml: &str) -> Config {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), toml).unwrap();
    config::load(&[file.path().to_owned()], true).unwrap()
}

fn stopped(pid: u32) -> Process {
    Process { state: Some('T'), ..process(pid, "python train.py") }
}

impl SchedulerTest {
    fn new(toml: &str, processes: Vec<Process>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let scheduler = Self::open(toml, &folder, Engine::new(configured(toml).rules));
        let system = FakeSystem::default();
        system.control.get().processes = facts(&snapshot(at(0.0), &processes, Vec::new()));
        Self {
            scheduler,
            system,
            processes,
            is_blind: false,
            at_work: Vec::new(),
            undelivered: None,
            sent_notices: Vec::new(),
            snapshots: Vec::new(),
            folder,
        }
    }

    fn reaping() -> Self {
        Self::new(REAPS, vec![stopped(70)])
    }

    fn open(toml: &str, folder: &tempfile::TempDir, engine: Engine) -> ReapScheduler {
        let config = configured(toml);
        let path = folder.path().join("warnings");
        let (warnings, error) = Warnings::open(&path, BOOT.into());
        assert!(error.is_none(), "{error:?}");
        ReapScheduler::new(engine, config.reap, warnings)
    }

    fn restart(&mut self, toml: &str) {
        let mut engine = Engine::new(configured(toml).rules);
        for snapshot in &self.snapshots {
            engine.observe(snapshot);
        }
        self.scheduler = Self::open(toml, &self.folder, engine);
    }

    /// Runs one sample at a time until the given time. Notices are delivered immediately.
    fn run_until(&mut self, seconds: f64) {
        while self.system.now < seconds {
            self.system.now += STEP;
            let control = self.system.control.get();
            self.processes.retain(|process| control.processes.contains_key(&process.pid));
            let deeds = control.sent.len();
            drop(control);
            let rows: Vec<(u32, u64)> =
                self.processes.iter().map(|process| (process.pid, GIB)).collect();
            let mut gpu = gpu(0, &rows, 0);
            for row in gpu.processes.iter_mut().flatten() {
                row.sm_percent = Some(if self.at_work.contains(&row.pid) { 40 } else { 0 });
            }
            if self.is_blind {
                gpu.processes = None;
            }
            let snapshot = snapshot(at(self.system.now), &self.processes, vec![gpu]);
            self.snapshots.push(snapshot.clone());
            self.scheduler.observe(snapshot, &mut self.system);
            if self.system.control.get().sent.len() > deeds {
                self.system.acts.push(at(self.system.now));
            }
            for notice in std::mem::take(&mut self.system.notices) {
                self.sent_notices.push((self.system.now, notice.kind));
                let result = self.undelivered.map_or(Ok(()), |why| Err(why.to_owned()));
                self.scheduler.delivered(&notice, result, at(self.system.now), &mut self.system);
            }
        }
    }

    fn sent(&self) -> Vec<(u32, Signal)> {
        self.system.control.get().sent.clone()
    }

    fn kinds(&self) -> Vec<NoticeKind> {
        self.sent_notices.iter().map(|notice| notice.1).collect()
    }

    fn reconfigure(&mut self, toml: &str) {
        let config = configured(toml);
        self.scheduler.reconfigure(config.rules, config.reap);
    }

    fn run_until_sent(&mut self) -> Vec<(u32, Signal)> {
        while self.sent().is_empty() {
            assert!(self.system.now < ACTED + 10.0, "{:?}", self.system.log);
            self.run_until(self.system.now + STEP);
        }
        self.sent()
    }

    #[track_caller]
    fn run_idle_until(&mut self, seconds: f64) {
        self.run_until(seconds);
        assert_eq!(self.sent(), [], "{:?}", self.system.log);
    }

    #[track_caller]
    fn run_until_act(&mut self, seconds: f64) {
        self.run_until(seconds);
        assert!(!self.sent().is_empty(), "{:?}", self.system.log);
    }

    fn count_logged(&self, words: &str) -> usize {
        let log = self.system.log.iter();
        log.filter(|line| line.contains(words)).count()
    }
}

#[test]
fn work_after_the_last_warning_restarts_the_warnings() {
    const IDLE: &str = "[rules.idle]\naction = \"reap\"\nduration = \"1m\"\n\
                        [reap]\nnotify = [\"/bin/true\"]\nwarn = \"2m\"\ngrace = \"1m\"\n";
    let idle =
        |cpu_seconds| Process { cpu_seconds: Some(cpu_seconds), ..process(70, "python train.py") };
    for (worked_seconds, warnings) in [(2.0, 2), (8.0, 4)] {
        let mut test = SchedulerTest::new(IDLE, vec![idle(100.0)]);
        while test.kinds().last() != Some(&NoticeKind::LastWarning) {
            assert!(test.system.now < 600.0, "{:?}", test.system.log);
            test.run_idle_until(test.system.now + STEP);
        }
        // The process uses a core for a few seconds.
        test.processes[0] = idle(100.0 + worked_seconds);
        test.run_until(test.system.now + 62.0);
        assert_eq!(test.sent().is_empty(), worked_seconds > 5.0, "{:?}", test.system.log);
        test.run_until_act(test.system.now + 400.0);
        let kinds = test.kinds();
        let warned = kinds
            .iter()
            .filter(|kind| matches!(kind, NoticeKind::Warning | NoticeKind::LastWarning));
        assert_eq!(warned.count(), warnings, "{:?}", test.system.log);
    }
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum BegunWork {
    Gpu,
    Cpu(f64),
    /// The process needs this share of a core, but gets only a tenth of it, because the host is overloaded.
    WaitsForCpu(f64),
    /// The process reads this many bytes per second. The counter is updated every 30 s.
    Reads(f64),
}

impl BegunWork {
    /// Returns how long the process can work before the act without being detected. Less than 5 s of CPU time, CPU
    /// use below a tenth of the grace period, and less than 50 MB of I/O are not work.
    fn undetected_seconds(self, grace: f64) -> f64 {
        let of_cpu = |share: f64| f64::max(5.0, 0.1 * grace) / share;
        2.0 * STEP
            + match self {
                Self::Gpu => 0.0,
                Self::Cpu(share) | Self::WaitsForCpu(share) => of_cpu(share),
                Self::Reads(rate) => 50e6 / rate + 30.0,
            }
    }

    fn after(self, seconds: f64, process: &mut Process) {
        process.cpu_seconds = Some(100.0);
        process.cpu_wait_seconds = Some(100.0);
        process.io_bytes = Some(100);
        match self {
            Self::Gpu => {}
            Self::Cpu(share) => process.cpu_seconds = Some(100.0 + share * seconds),
            Self::WaitsForCpu(share) => {
                process.cpu_seconds = Some(100.0 + 0.1 * share * seconds);
                process.cpu_wait_seconds = Some(100.0 + 0.9 * share * seconds);
            }
            Self::Reads(rate) => {
                let reported_seconds = (seconds / 30.0).floor() * 30.0;
                process.io_bytes = Some(100 + (rate * reported_seconds) as u64);
            }
        }
    }
}

#[test]
fn a_process_that_resumes_work_is_not_ended() {
    let (mut ended, mut begun) = (0, 0);
    for seed in 0..rounds(3) {
        let mut dice = Dice::new(seed);
        let mut between = |least: u64, most: u64| (least + dice.roll(most - least + 1)) as f64;
        let (duration, warn, grace) = (between(1, 8), between(1, 4), between(30, 120));
        let toml = format!(
            "[rules.idle]\naction = \"reap\"\nduration = \"{duration}m\"\nmin_memory = \"512MiB\"\n\
             [reap]\nnotify = [\"/bin/true\"]\nwarn = \"{warn}m\"\ngrace = \"{grace}s\"\nmost = 100\n"
        );
        let acted = 60.0 * (duration + warn) + grace;
        // Nine of ten processes start to work, most of them shortly before or after the act.
        let people: Vec<(u32, Option<(f64, BegunWork)>)> = (70..80)
            .map(|pid| {
                let at = if pid % 2 == 0 { between(0, 1) * acted } else { acted + grace };
                let at = at - between(0, grace as u64 * 2);
                let does = match pid % 4 {
                    0 => BegunWork::Gpu,
                    1 => BegunWork::Cpu(between(5, 20) / 10.0),
                    2 => BegunWork::WaitsForCpu(between(5, 10) / 10.0),
                    _ => BegunWork::Reads(between(2, 50) * 1e6),
                };
                (pid, (pid != 79).then_some((at, does)))
            })
            .collect();
        let processes = people.iter().map(|(pid, _)| process(*pid, "python train.py")).collect();
        let mut test = SchedulerTest::new(&toml, processes);
        for (pid, _) in &people {
            test.system.control.get().ends_on.insert(*pid, vec![Signal::Term]);
        }
        while test.system.now < acted + 300.0 {
            let now = test.system.now + STEP;
            for process in &mut test.processes {
                let does = people.iter().find(|(pid, _)| *pid == process.pid).unwrap().1;
                let (seconds, does) = match does {
                    Some((at, does)) => ((now - at).max(0.0), does),
                    None => (0.0, BegunWork::Cpu(0.0)),
                };
                does.after(seconds, process);
                let uses_gpu = seconds > 0.0 && does == BegunWork::Gpu;
                test.at_work.retain(|pid| *pid != process.pid);
                test.at_work.extend(uses_gpu.then_some(process.pid));
            }
            let before = test.sent().len();
            test.run_until(now);
            for (pid, signal) in test.sent().split_off(before) {
                let does = people.iter().find(|(worker_pid, _)| *worker_pid == pid).unwrap().1;
                ended += 1;
                let Some((at, does)) = does.filter(|(at, _)| *at < now) else {
                    continue;
                };
                begun += 1;
                let worked = now - at;
                assert!(
                    worked <= does.undetected_seconds(grace),
                    "seed {seed}: {signal} to {pid}, {worked} s after it began: {does:?}, {toml}\n{:?}",
                    test.system.log
                );
            }
        }
        assert!(test.sent().contains(&(79, Signal::Term)), "{:?}", test.system.log);
    }
    assert!(
        begun > 0 && ended > 2 * begun,
        "{ended} ended, {begun} of them had just begun to work"
    );
}

/// Recent work must cancel the act even if the grace period is long. Constant low CPU use must not.
#[test]
fn recent_work_is_detected_despite_a_long_grace_period() {
    for (works_for, is_ended) in [(0.0, true), (12.0, false), (30.0, false)] {
        let mut test = SchedulerTest::reaping();
        while test.system.now < ACTED + 10.0 && test.system.control.get().sent.is_empty() {
            let works_from = WARNED_LAST + 60.0 - works_for;
            let worked =
                (test.system.now - works_from).max(0.0) * f64::from(u8::from(works_for > 0.0));
            let ticks = (test.system.now + 100.0 * worked) as u64;
            test.system.control.get().usage = JobUsage::of_one(70, test.system.now, ticks, 0);
            test.run_until(test.system.now + STEP);
        }
        assert_eq!(!test.system.control.get().sent.is_empty(), is_ended, "works for {works_for} s");
    }
}

#[test]
fn a_process_is_warned_twice_and_then_ended() {
    let mut test = SchedulerTest::reaping();
    test.system.control.get().ends_on.insert(70, vec![Signal::Term]);
    test.run_until(WARNED_LAST);
    assert_eq!(test.kinds(), [NoticeKind::Warning, NoticeKind::LastWarning]);
    let apart = test.sent_notices[1].0 - test.sent_notices[0].0;
    assert!((600.0..=604.0).contains(&apart), "{:?}", test.sent_notices);
    test.run_idle_until(test.sent_notices[1].0 + 58.0);
    test.run_until(ACTED + 30.0);
    assert_eq!(test.sent()[0], (70, Signal::Term));
    assert!(test.sent().iter().all(|sent| sent.1 != Signal::Kill));
    assert_eq!(test.count_logged("70: freed 1.0 GiB in "), 1, "{:?}", test.system.log);
    assert!(!test.scheduler.is_acting());
    assert!(test.scheduler.warnings.all().is_empty(), "the warnings are removed");
}

#[test]
fn warnings_start_over_if_the_finding_returns() {
    let mut test = SchedulerTest::reaping();
    test.run_until(WARNED_LAST);
    test.processes[0].state = Some('S');
    test.run_until(WARNED_LAST + 4.0);
    test.processes[0].state = Some('T');
    test.run_idle_until(WARNED_LAST + 600.0);
    let again = [NoticeKind::Warning, NoticeKind::LastWarning, NoticeKind::Warning];
    assert_eq!(test.kinds(), again);
    test.run_until_act(WARNED_LAST + 4.0 + ACTED);
}

#[test]
fn without_a_delivered_warning_nothing_is_killed() {
    let mut test = SchedulerTest::reaping();
    test.undelivered = Some("[reap] has no notify command");
    test.run_idle_until(2.0 * ACTED);
    assert!(test.system.ledger.get().lines.is_empty() && test.scheduler.warnings.all().is_empty());
    assert_eq!(test.count_logged("ann not notified: "), 1, "{:?}", test.system.log);
    let apart = test.sent_notices[1].0 - test.sent_notices[0].0;
    assert!((60.0..=64.0).contains(&apart), "{:?}", test.sent_notices);
    test.undelivered = None;
    test.run_idle_until(2.0 * ACTED + 600.0);
    assert_eq!(test.count_logged("ann warned, to be killed at"), 1);
    test.undelivered = Some("[reap] has no notify command");
    test.run_idle_until(4.0 * ACTED);
    test.undelivered = None;
    test.run_until_act(5.0 * ACTED);
}

#[test]
fn a_restart_keeps_warnings_and_requires_them() {
    let mut test = SchedulerTest::reaping();
    test.run_until(WARNED + 300.0);
    test.restart(REAPS);
    test.run_until(WARNED_LAST - 20.0);
    test.restart(REAPS);
    test.run_until(ACTED + 4.0);
    assert_eq!(test.sent_notices.len(), 2, "{:?}", test.sent_notices);
    assert!(!test.sent().is_empty());
    // If the file with the warnings is deleted, the warnings start over.
    let mut test = SchedulerTest::reaping();
    test.run_until(WARNED_LAST);
    std::fs::remove_file(test.folder.path().join("warnings")).unwrap();
    test.restart(REAPS);
    test.run_idle_until(ACTED + 300.0);
    // Without history, the warnings start over, too.
    let mut test = SchedulerTest::reaping();
    test.run_until(WARNED_LAST);
    test.snapshots.clear();
    test.restart(REAPS);
    test.run_idle_until(WARNED_LAST + 600.0);
    assert_eq!(test.sent_notices.last().unwrap().1, NoticeKind::Warning);
}

#[test]
fn without_a_process_list_an_act_sends_nothing_more() {
    let mut test = SchedulerTest::reaping();
    let sent = test.run_until_sent();
    test.is_blind = true;
    test.run_until(test.system.now + 120.0);
    assert_eq!(test.sent(), sent, "SIGKILL is not sent without a process list");
    assert!(!test.scheduler.is_acting());
}

#[test]
fn a_new_configuration_can_cancel_a_running_act() {
    let mut test = SchedulerTest::reaping();
    let sent = test.run_until_sent();
    assert_eq!(test.scheduler.target().unwrap().leader, 70);
    test.reconfigure(ONLY_NOTIFIES);
    test.run_until(test.system.now + 60.0);
    assert_eq!(test.sent(), sent, "no SIGKILL");
    assert!(!test.scheduler.is_acting());
    assert_eq!(test.count_logged("70: skipped: the finding"), 1, "{:?}", test.system.log);
    // If the configuration allows ending the process again, gpumem first warns again.
    test.reconfigure(REAPS);
    test.run_until(test.system.now + 300.0);
    assert_eq!(test.sent(), sent);
}

#[test]
fn a_new_exemption_prevents_the_act() {
    let keep = "[[keep]]\nwhere = \"user=ann\"\nreason = \"a talk\"\n";
    let mut test = SchedulerTest::reaping();
    test.run_until(WARNED_LAST + 10.0);
    test.reconfigure(&format!("{REAPS}{keep}"));
    test.run_idle_until(ACTED + 300.0);
}

#[test]
fn the_owner_of_a_protected_process_is_not_warned() {
    let never = format!("{REAPS}never = [\"python3.11\"]\n");
    let mut test = SchedulerTest::new(&never, vec![stopped(70)]);
    test.run_until(2.0 * ACTED);
    assert_eq!((test.sent(), test.sent_notices.len()), (Vec::new(), 0));
    assert_eq!(test.count_logged("70: skipped: python3.11 is never killed"), 1);
}

#[test]
fn obstacles_delay_an_act_until_they_end() {
    let blind = |test: &mut SchedulerTest, is_so| test.is_blind = is_so;
    let busy = |test: &mut SchedulerTest, is_so| test.system.is_busy = is_so;
    let full = |test: &mut SchedulerTest, is_so| {
        test.system.ledger.get().capacity = if is_so { 0 } else { usize::MAX };
    };
    type Set = fn(&mut SchedulerTest, bool);
    let hindrances: [(Set, &str, usize); 3] = [
        (blind, "", usize::MAX),
        (busy, "another reaper is running", 1),
        (full, "cannot write to the audit log", usize::MAX),
    ];
    for (set, logged, most) in hindrances {
        let mut test = SchedulerTest::reaping();
        test.run_until(WARNED_LAST + 30.0);
        set(&mut test, true);
        test.run_idle_until(ACTED + 200.0);
        assert!((1..=most).contains(&test.count_logged(logged)), "{:?}", test.system.log);
        set(&mut test, false);
        test.run_until_act(ACTED + 300.0);
    }
}

#[test]
fn acts_run_one_at_a_time_within_the_rate_limit() {
    let pids = [70, 71, 72, 73, 74];
    let mut test = SchedulerTest::new(REAPS, pids.map(stopped).to_vec());
    for pid in pids {
        test.system.control.get().ends_on.insert(pid, vec![Signal::Term]);
    }
    let terms = |test: &SchedulerTest| {
        let sent = test.sent().into_iter();
        sent.filter(|sent| sent.1 == Signal::Term).count()
    };
    let mut before = 0;
    let mut last = 0.0;
    while test.system.now < ACTED + 570.0 {
        test.run_until(test.system.now + STEP);
        let now = terms(&test);
        assert!(now <= before + 1, "two acts in one sample");
        if now > before && before > 0 {
            assert!(test.system.now - last >= 15.0, "no pause between two acts");
        }
        if now > before {
            (before, last) = (now, test.system.now);
        }
    }
    assert_eq!(before, 3, "three in ten minutes: {:?}", test.system.log);
    test.run_until(ACTED + 700.0);
    assert_eq!(terms(&test), 5);
}

#[test]
fn a_failed_act_is_not_repeated() {
    let mut test = SchedulerTest::reaping();
    test.run_until(3.0 * ACTED);
    let kills = test.sent().into_iter().filter(|sent| sent.1 == Signal::Kill);
    assert_eq!(kills.count(), 1, "{:?}", test.sent());
    assert_eq!(test.count_logged("killing 70"), 1);
}

const RELEASES: &str = "[rules.idle]\naction = \"release\"\nduration = \"2m\"\n\
                        [reap]\nwarn = \"10m\"\ngrace = \"1m\"\n";

fn announcing(pid: u32) -> Process {
    let announced = (Arc::from("GPUMEM_RELEASE_SIGNAL"), Arc::from("USR2"));
    Process { environment: Some(Arc::new([announced].into())), ..process(pid, "python train.py") }
}

/// Runs for `seconds` and answers release requests with `answer`. Also returns how many requests were sent.
fn run_release(seconds: f64, answer: ReleaseAnswer) -> (SchedulerTest, usize) {
    let mut test = SchedulerTest::new(RELEASES, vec![announcing(70)]);
    test.system.control.get().answer = Some(RequestResult::Released(answer));
    test.run_until(seconds);
    let control = test.system.control.get();
    let asked = control.asked.len();
    let is_release = |request: &Request| matches!(request, Request::Release { .. });
    assert!(control.asked.iter().all(is_release));
    assert!(control.sent.is_empty(), "no signal is sent");
    drop(control);
    (test, asked)
}

#[test]
fn action_release_asks_once_and_kills_no_process() {
    let done = || Ok(ReleaseReport::default());
    let (_, asked) = run_release(110.0, done());
    assert_eq!(asked, 0, "no finding yet");
    let (test, asked) = run_release(4000.0, done());
    let undecided = test.scheduler.engine.undecided();
    assert_eq!(asked, 1, "{:#?} {undecided:#?}", test.system.log);
    assert_eq!(test.processes.len(), 1);
    // The owner is notified, but not warned.
    assert_eq!(test.kinds(), [NoticeKind::Found]);
    let log = test.system.log.join("\n");
    assert!(log.contains("asking 70 (python train.py)"), "{log}");
    assert!(log.contains("70: nothing to release"), "{log}");
    assert!(!log.contains("kill"), "{log}");
}

/// If a GPU in use has less free memory than `min_free`, the processes on it that announce a signal are asked
/// repeatedly.
#[test]
fn a_full_gpu_asks_working_processes_at_intervals() {
    let cleans =
        "[rules.pressure]\naction = \"release\"\nmin_free = \"79GiB\"\n[reap]\nwithin = \"20m\"\n";
    let at_work = |process: Process| Process { cpu_percent: Some(100.0), ..process };
    let plain = at_work(process(71, "python train.py"));
    let kept = Process { environment: None, ..at_work(process(72, "python train.py")) };
    let mut test = SchedulerTest::new(cleans, vec![at_work(announcing(70)), plain, kept]);
    test.system.control.get().answer = Some(RequestResult::Released(Ok(ReleaseReport::default())));
    for (seconds, asked) in [(50.0, 0), (1000.0, 1), (2000.0, 2), (4100.0, 4)] {
        test.run_until(seconds);
        let control = test.system.control.get();
        assert_eq!(control.asked.len(), asked, "{seconds}: {:#?}", test.system.log);
        let is_it =
            |request: &Request| matches!(request, Request::Release { way, .. } if way.pid == 70);
        assert!(control.asked.iter().all(is_it) && control.sent.is_empty());
    }
}

#[test]
fn a_busy_process_is_asked_again_later() {
    let (test, asked) = run_release(1000.0, Err(NotReleased::Busy("a cell runs".to_owned())));
    assert!((2..=4).contains(&asked), "{asked}: {:#?}", test.system.log);
}

#[test]
fn a_process_asked_by_an_earlier_run_is_not_asked_again() {
    let mut process = announcing(70);
    process.asked =
        Some(Arc::new(AskedRelease { since: at(30.0), until: at(31.0), last_activity: None }));
    let mut test = SchedulerTest::new(RELEASES, vec![process]);
    test.run_until(1000.0);
    assert!(test.system.control.get().asked.is_empty());
    assert!(!test.sent_notices.is_empty(), "it was found");
}
