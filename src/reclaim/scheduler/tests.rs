//! Simulated days of the scheduler: notices, acts, and reasons not to act.

use super::notices::NoticeKind;
use super::*;
use crate::config::reap::ReapConfig;
use crate::config::{self, Config};
use crate::model::Process;
use crate::model::dice::Dice;
use crate::model::process::AskedRelease;
use crate::model::testing::rounds;
use crate::reclaim::Signal;
use crate::reclaim::process_control::RequestResult;
use crate::reclaim::release::{NotReleased, ReleaseAnswer, ReleaseReport};
use crate::reclaim::target::Request;
use crate::reclaim::testing::{
    BOOT, FakeControl, Pages, Shared, at, facts, gpu, guard, process, snapshot,
};
use crate::units::GIB;

/// The rule needs two minutes, the warning ten, and the last warning one.
const REAPS: &str = "[rules.stopped]\naction = \"reap\"\nduration = \"2m\"\n\
                     [reap]\nnotify = [\"/bin/true\"]\nwarn = \"10m\"\ngrace = \"1m\"\n";
const ONLY_NOTIFIES: &str =
    "[rules.stopped]\nduration = \"2m\"\n[reap]\nwarn = \"10m\"\ngrace = \"1m\"\n";
/// Interval between samples, in seconds.
const STEP: f64 = 2.0;
/// The latest times, in seconds, of the warning, the last warning, and the act.
const WARNED: f64 = 124.0;
const WARNED_LAST: f64 = WARNED + 604.0;
const ACTED: f64 = WARNED_LAST + 64.0;

/// A system with simulated processes that records all effects.
#[derive(Default)]
struct Stage {
    control: Shared<FakeControl>,
    pages: Shared<Pages>,
    acts: Vec<Time>,
    /// Notices that are sent and not yet delivered.
    notices: Vec<Notice>,
    log: Vec<String>,
    is_busy: bool,
    now: f64,
}

impl System for Stage {
    fn guard(&mut self, rules: &RuleSet, reap: &ReapConfig, _: &Snapshot) -> Result<Guard, String> {
        let mut guard = guard();
        guard.policy.never = rules.never().to_vec();
        guard.policy.releasing = reap.releasing().cloned().collect();
        Ok(guard)
    }

    fn facts(&mut self, pids: &[u32]) -> BTreeMap<u32, Guarded> {
        let control = self.control.get();
        let known = control.processes.iter();
        let known = known.filter(|(pid, _)| pids.contains(pid));
        known.map(|(&pid, facts)| (pid, facts.clone())).collect()
    }

    fn usage(&mut self, _: &Target) -> JobUsage {
        self.control.get().usage.clone()
    }

    fn actor(&mut self, _: &Snapshot) -> Actor {
        Actor::default()
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
        let (control, record) = (self.control.clone(), self.pages.clone());
        let tools = Tools::new(Box::new(control), Box::new(record));
        Ok(tools.after(self.acts.clone()))
    }
}

/// A scheduler, its system, and the processes that NVML lists on GPU 0 with 1 GiB each.
struct Day {
    scheduler: ReapScheduler,
    stage: Stage,
    processes: Vec<Process>,
    /// NVML's process list cannot be read.
    is_blind: bool,
    /// Pids of processes that use the GPU.
    at_work: Vec<u32>,
    /// The error for every delivery, if deliveries fail.
    undelivered: Option<&'static str>,
    /// Time in seconds and kind of every notice.
    sent_notices: Vec<(f64, NoticeKind)>,
    seen: Vec<Snapshot>,
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

impl Day {
    fn new(toml: &str, processes: Vec<Process>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let scheduler = Self::open(toml, &folder, Engine::new(configured(toml).rules));
        let stage = Stage::default();
        stage.control.get().processes = facts(&snapshot(at(0.0), &processes, Vec::new()));
        Self {
            scheduler,
            stage,
            processes,
            is_blind: false,
            at_work: Vec::new(),
            undelivered: None,
            sent_notices: Vec::new(),
            seen: Vec::new(),
            folder,
        }
    }

    /// A day with a stopped process, 70, and a rule that ends it.
    fn reaping() -> Self {
        Self::new(REAPS, vec![stopped(70)])
    }

    fn open(toml: &str, folder: &tempfile::TempDir, engine: Engine) -> ReapScheduler {
        let config = configured(toml);
        let path = folder.path().join("warnings");
        let (warnings, error) = Warnings::open(&path, BOOT.into());
        assert!(error.is_none(), "{error:?}");
        let settings = (config.rules, config.reap);
        ReapScheduler::new(engine, settings, warnings)
    }

    /// Restarts gpumem with its stored state.
    fn restart(&mut self, toml: &str) {
        let mut engine = Engine::new(configured(toml).rules);
        for snapshot in &self.seen {
            engine.observe(snapshot);
        }
        self.scheduler = Self::open(toml, &self.folder, engine);
    }

    /// Runs until the given time, sample by sample. Notices are delivered at once.
    fn until(&mut self, seconds: f64) {
        while self.stage.now < seconds {
            self.stage.now += STEP;
            let control = self.stage.control.get();
            self.processes.retain(|it| control.processes.contains_key(&it.pid));
            let deeds = control.sent.len();
            drop(control);
            let rows: Vec<(u32, u64)> = self.processes.iter().map(|it| (it.pid, GIB)).collect();
            let mut gpu = gpu(0, &rows, 0);
            for row in gpu.processes.iter_mut().flatten() {
                row.sm_percent = Some(if self.at_work.contains(&row.pid) { 40 } else { 0 });
            }
            if self.is_blind {
                gpu.processes = None;
            }
            let snapshot = snapshot(at(self.stage.now), &self.processes, vec![gpu]);
            self.seen.push(snapshot.clone());
            self.scheduler.observe(snapshot, &mut self.stage);
            if self.stage.control.get().sent.len() > deeds {
                self.stage.acts.push(at(self.stage.now));
            }
            for notice in std::mem::take(&mut self.stage.notices) {
                self.sent_notices.push((self.stage.now, notice.kind));
                let result = self.undelivered.map_or(Ok(()), |why| Err(why.to_owned()));
                self.scheduler.delivered(&notice, result, at(self.stage.now), &mut self.stage);
            }
        }
    }

    fn sent(&self) -> Vec<(u32, Signal)> {
        self.stage.control.get().sent.clone()
    }

    fn kinds(&self) -> Vec<NoticeKind> {
        self.sent_notices.iter().map(|notice| notice.1).collect()
    }

    fn reconfigure(&mut self, toml: &str) {
        let config = configured(toml);
        self.scheduler.reconfigure(config.rules, config.reap);
    }

    /// Runs until the first signal. Returns the signals.
    fn until_sent(&mut self) -> Vec<(u32, Signal)> {
        while self.sent().is_empty() {
            assert!(self.stage.now < ACTED + 10.0, "{:?}", self.stage.log);
            self.until(self.stage.now + STEP);
        }
        self.sent()
    }

    /// Runs until the given time, and asserts that nothing was sent.
    #[track_caller]
    fn idle_until(&mut self, seconds: f64) {
        self.until(seconds);
        assert_eq!(self.sent(), [], "{:?}", self.stage.log);
    }

    /// Runs until the given time, and asserts that something was sent.
    #[track_caller]
    fn acts_by(&mut self, seconds: f64) {
        self.until(seconds);
        assert!(!self.sent().is_empty(), "{:?}", self.stage.log);
    }

    fn count_logged(&self, words: &str) -> usize {
        let log = self.stage.log.iter();
        log.filter(|line| line.contains(words)).count()
    }
}

#[test]
fn who_works_after_the_last_warning_is_warned_again() {
    const IDLE: &str = "[rules.idle]\naction = \"reap\"\nduration = \"1m\"\n\
                        [reap]\nnotify = [\"/bin/true\"]\nwarn = \"2m\"\ngrace = \"1m\"\n";
    let idle =
        |cpu_seconds| Process { cpu_seconds: Some(cpu_seconds), ..process(70, "python train.py") };
    for (worked_seconds, warnings) in [(2.0, 2), (8.0, 4)] {
        let mut day = Day::new(IDLE, vec![idle(100.0)]);
        while day.kinds().last() != Some(&NoticeKind::LastWarning) {
            assert!(day.stage.now < 600.0, "{:?}", day.stage.log);
            day.idle_until(day.stage.now + STEP);
        }
        // One core for a few seconds, once.
        day.processes[0] = idle(100.0 + worked_seconds);
        day.until(day.stage.now + 62.0);
        assert_eq!(day.sent().is_empty(), worked_seconds > 5.0, "{:?}", day.stage.log);
        day.acts_by(day.stage.now + 400.0);
        let kinds = day.kinds();
        let warned =
            kinds.iter().filter(|it| matches!(it, NoticeKind::Warning | NoticeKind::LastWarning));
        assert_eq!(warned.count(), warnings, "{:?}", day.stage.log);
    }
}

/// The work that a process starts at some time.
#[derive(Clone, Copy, PartialEq, Debug)]
enum BegunWork {
    Gpu,
    /// A share of a core.
    Cpu(f64),
    /// A share of a core on an overloaded host, where the process gets a tenth of that.
    WaitsForCpu(f64),
    /// Bytes per second. The counter updates every 30 s.
    Reads(f64),
}

impl BegunWork {
    /// The time for which work may be undetected before a signal. Less than 5 CPU seconds, a tenth of the grace
    /// period, or 50 MB is not work yet.
    fn unseen_seconds(self, grace: f64) -> f64 {
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
                let told_seconds = (seconds / 30.0).floor() * 30.0;
                process.io_bytes = Some(100 + (rate * told_seconds) as u64);
            }
        }
    }
}

#[test]
fn a_process_that_resumes_work_at_any_moment_is_not_ended() {
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
        // Nine of ten processes start working, most of them near the time of the act.
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
        let mut day = Day::new(&toml, processes);
        for (pid, _) in &people {
            day.stage.control.get().ends_on.insert(*pid, vec![Signal::Term]);
        }
        while day.stage.now < acted + 300.0 {
            let now = day.stage.now + STEP;
            for process in &mut day.processes {
                let does = people.iter().find(|(pid, _)| *pid == process.pid).unwrap().1;
                let (seconds, does) = match does {
                    Some((at, does)) => ((now - at).max(0.0), does),
                    None => (0.0, BegunWork::Cpu(0.0)),
                };
                does.after(seconds, process);
                let uses_gpu = seconds > 0.0 && does == BegunWork::Gpu;
                day.at_work.retain(|pid| *pid != process.pid);
                day.at_work.extend(uses_gpu.then_some(process.pid));
            }
            let before = day.sent().len();
            day.until(now);
            for (pid, signal) in day.sent().split_off(before) {
                let does = people.iter().find(|(it, _)| *it == pid).unwrap().1;
                ended += 1;
                let Some((at, does)) = does.filter(|(at, _)| *at < now) else {
                    continue;
                };
                begun += 1;
                let worked = now - at;
                assert!(
                    worked <= does.unseen_seconds(grace),
                    "seed {seed}: {signal} to {pid}, {worked} s after it began: {does:?}, {toml}\n{:?}",
                    day.stage.log
                );
            }
        }
        assert!(day.sent().contains(&(79, Signal::Term)), "{:?}", day.stage.log);
    }
    assert!(
        begun > 0 && ended > 2 * begun,
        "{ended} ended, {begun} of them had just begun to work"
    );
}

/// A long grace period must not hide recent work. Constant low CPU usage is not work.
#[test]
fn work_in_the_last_seconds_is_not_averaged_away() {
    for (works_for, is_ended) in [(0.0, true), (12.0, false), (30.0, false)] {
        let mut day = Day::reaping();
        while day.stage.now < ACTED + 10.0 && day.stage.control.get().sent.is_empty() {
            let works_from = WARNED_LAST + 60.0 - works_for;
            let worked =
                (day.stage.now - works_from).max(0.0) * f64::from(u8::from(works_for > 0.0));
            let ticks = (day.stage.now + 100.0 * worked) as u64;
            day.stage.control.get().usage = JobUsage::of_one(70, day.stage.now, ticks, 0);
            day.until(day.stage.now + STEP);
        }
        assert_eq!(!day.stage.control.get().sent.is_empty(), is_ended, "works for {works_for} s");
    }
}

#[test]
fn it_is_warned_twice_then_ended_and_the_memory_is_back() {
    let mut day = Day::reaping();
    day.stage.control.get().ends_on.insert(70, vec![Signal::Term]);
    day.until(WARNED_LAST);
    assert_eq!(day.kinds(), [NoticeKind::Warning, NoticeKind::LastWarning]);
    let apart = day.sent_notices[1].0 - day.sent_notices[0].0;
    assert!((600.0..=604.0).contains(&apart), "{:?}", day.sent_notices);
    day.idle_until(day.sent_notices[1].0 + 58.0);
    day.until(ACTED + 30.0);
    assert_eq!(day.sent()[0], (70, Signal::Term));
    assert!(day.sent().iter().all(|sent| sent.1 != Signal::Kill));
    assert_eq!(day.count_logged("70: freed 1.0 GiB in "), 1, "{:?}", day.stage.log);
    assert!(!day.scheduler.is_acting());
    assert!(day.scheduler.warnings.all().is_empty(), "nothing is left of it");
}

#[test]
fn a_rule_that_only_notifies_kills_nothing() {
    let mut day = Day::new(ONLY_NOTIFIES, vec![stopped(70)]);
    day.idle_until(3.0 * ACTED);
    assert!(day.stage.pages.get().lines.is_empty());
    assert_eq!(day.kinds(), [NoticeKind::Found]);
}

#[test]
fn what_ceases_and_comes_back_starts_over() {
    let mut day = Day::reaping();
    day.until(WARNED_LAST);
    day.processes[0].state = Some('S');
    day.until(WARNED_LAST + 4.0);
    day.processes[0].state = Some('T');
    day.idle_until(WARNED_LAST + 600.0);
    let again = [NoticeKind::Warning, NoticeKind::LastWarning, NoticeKind::Warning];
    assert_eq!(day.kinds(), again);
    day.acts_by(WARNED_LAST + 4.0 + ACTED);
}

#[test]
fn an_owner_who_could_not_be_notified_was_not_warned() {
    let mut day = Day::reaping();
    day.undelivered = Some("the notify command /bin/false failed");
    day.idle_until(2.0 * ACTED);
    let apart = day.sent_notices[1].0 - day.sent_notices[0].0;
    assert!((60.0..=64.0).contains(&apart), "{:?}", day.sent_notices);
    let why = "not notified: the notify command /bin/false failed";
    assert_eq!(day.count_logged(why), 1, "{:?}", day.stage.log);
    day.undelivered = None;
    day.idle_until(2.0 * ACTED + 600.0);
    day.acts_by(3.0 * ACTED);
}

#[test]
fn without_a_warning_nothing_is_killed_and_the_log_has_why_once() {
    let mut day = Day::reaping();
    day.undelivered = Some("[reap] has no notify command");
    day.idle_until(2.0 * ACTED);
    assert!(day.stage.pages.get().lines.is_empty() && day.scheduler.warnings.all().is_empty());
    assert_eq!(day.count_logged("ann not notified: "), 1, "{:?}", day.stage.log);
    // Delivery works again, so the warning period starts anew.
    day.undelivered = None;
    day.idle_until(2.0 * ACTED + 600.0);
    assert_eq!(day.count_logged("ann warned, to be killed at"), 1);
    // The last warning cannot be delivered.
    day.undelivered = Some("[reap] has no notify command");
    day.idle_until(4.0 * ACTED);
    day.undelivered = None;
    day.acts_by(5.0 * ACTED);
}

#[test]
fn a_restart_neither_forgets_a_warning_nor_acts_without_one() {
    let mut day = Day::reaping();
    day.until(WARNED + 300.0);
    day.restart(REAPS);
    day.until(WARNED_LAST - 20.0);
    day.restart(REAPS);
    day.until(ACTED + 4.0);
    assert_eq!(day.sent_notices.len(), 2, "{:?}", day.sent_notices);
    assert!(!day.sent().is_empty());
    // The file with the warnings is lost.
    let mut day = Day::reaping();
    day.until(WARNED_LAST);
    std::fs::remove_file(day.folder.path().join("warnings")).unwrap();
    day.restart(REAPS);
    day.idle_until(ACTED + 300.0);
}

#[test]
fn after_a_restart_without_history_it_starts_over_where_it_may_have_ceased() {
    let mut day = Day::reaping();
    day.until(WARNED_LAST);
    day.seen.clear();
    day.restart(REAPS);
    day.idle_until(WARNED_LAST + 600.0);
    assert_eq!(day.sent_notices.last().unwrap().1, NoticeKind::Warning);
}

#[test]
fn blindness_in_the_midst_of_an_act_sends_nothing_more() {
    let mut day = Day::reaping();
    let sent = day.until_sent();
    day.is_blind = true;
    day.until(day.stage.now + 120.0);
    assert_eq!(day.sent(), sent, "it ignores SIGTERM, and SIGKILL is not sent unseen");
    assert!(!day.scheduler.is_acting());
}

#[test]
fn another_configuration_cancels_what_it_would_not_do() {
    let mut day = Day::reaping();
    let sent = day.until_sent();
    assert_eq!(day.scheduler.target().unwrap().leader, 70);
    day.reconfigure(ONLY_NOTIFIES);
    day.until(day.stage.now + 60.0);
    assert_eq!(day.sent(), sent, "no SIGKILL");
    assert!(!day.scheduler.is_acting());
    assert_eq!(day.count_logged("70: skipped: the finding"), 1, "{:?}", day.stage.log);
    // A configuration that ends the process again must warn again.
    day.reconfigure(REAPS);
    day.until(day.stage.now + 300.0);
    assert_eq!(day.sent(), sent);
}

#[test]
fn what_the_configuration_keeps_is_not_ended() {
    let keep = "[[keep]]\nwhere = \"user=ann\"\nreason = \"a talk\"\n";
    let mut day = Day::reaping();
    day.until(WARNED_LAST + 10.0);
    day.reconfigure(&format!("{REAPS}{keep}"));
    day.idle_until(ACTED + 300.0);
}

#[test]
fn the_owner_of_what_is_never_killed_is_not_warned() {
    let never = format!("{REAPS}never = [\"python3.11\"]\n");
    let mut day = Day::new(&never, vec![stopped(70)]);
    day.until(2.0 * ACTED);
    assert_eq!((day.sent(), day.sent_notices.len()), (Vec::new(), 0));
    assert_eq!(day.count_logged("70: skipped: python3.11 is never killed"), 1);
}

#[test]
fn while_it_is_blind_or_another_reaper_works_or_the_disk_is_full_nothing_is_sent() {
    let blind = |day: &mut Day, is_so| day.is_blind = is_so;
    let busy = |day: &mut Day, is_so| day.stage.is_busy = is_so;
    let full = |day: &mut Day, is_so| {
        day.stage.pages.get().room = if is_so { 0 } else { usize::MAX };
    };
    type Set = fn(&mut Day, bool);
    let hindrances: [(Set, &str, usize); 3] = [
        (blind, "", usize::MAX),
        (busy, "another reaper is running", 1),
        (full, "cannot write to the audit log", usize::MAX),
    ];
    for (set, logged, most) in hindrances {
        let mut day = Day::reaping();
        day.until(WARNED_LAST + 30.0);
        set(&mut day, true);
        day.idle_until(ACTED + 200.0);
        assert!((1..=most).contains(&day.count_logged(logged)), "{:?}", day.stage.log);
        set(&mut day, false);
        day.acts_by(ACTED + 300.0);
    }
}

#[test]
fn one_at_a_time_and_so_many_in_a_time() {
    let pids = [70, 71, 72, 73, 74];
    let mut day = Day::new(REAPS, pids.map(stopped).to_vec());
    for pid in pids {
        day.stage.control.get().ends_on.insert(pid, vec![Signal::Term]);
    }
    let terms = |day: &Day| {
        let sent = day.sent().into_iter();
        sent.filter(|sent| sent.1 == Signal::Term).count()
    };
    let mut before = 0;
    let mut last = 0.0;
    while day.stage.now < ACTED + 570.0 {
        day.until(day.stage.now + STEP);
        let now = terms(&day);
        assert!(now <= before + 1, "two at once");
        if now > before && before > 0 {
            assert!(day.stage.now - last >= 15.0, "no pause between two");
        }
        if now > before {
            (before, last) = (now, day.stage.now);
        }
    }
    assert_eq!(before, 3, "three in ten minutes: {:?}", day.stage.log);
    day.until(ACTED + 700.0);
    assert_eq!(terms(&day), 5);
}

#[test]
fn what_was_tried_in_vain_is_not_tried_again() {
    let mut day = Day::reaping();
    day.until(3.0 * ACTED);
    let kills = day.sent().into_iter().filter(|sent| sent.1 == Signal::Kill);
    assert_eq!(kills.count(), 1, "{:?}", day.sent());
    assert_eq!(day.count_logged("killing 70"), 1);
}

/// An idle placeholder is not ended, neither before nor after it is recognised as one.
#[test]
fn a_placeholder_that_is_idle_is_not_ended_where_idle_is() {
    let reaps = "[rules.idle]\naction = \"reap\"\nduration = \"2m\"\nmin_memory = \"512MiB\"\n\
                 [rules.placeholder]\nduration = \"1h\"\n[reap]\nnotify = [\"/bin/true\"]\nwarn = \"10m\"\ngrace = \"1m\"\n";
    let keeper = |started| {
        let mut keeper = process(71, "python /v/bin/keep-gpu --gpu-ids 0");
        keeper.start_time = Some(at(started));
        keeper
    };
    for started in [-86_400.0, 0.0] {
        let mut day = Day::new(reaps, vec![process(70, "python train.py"), keeper(started)]);
        for pid in [70, 71] {
            day.stage.control.get().ends_on.insert(pid, vec![Signal::Term]);
        }
        day.until(ACTED);
        assert_eq!(day.sent(), [(70, Signal::Term)], "{:?}", day.stage.log);
        assert_eq!(day.count_logged("71: skipped: killed only on request"), 1);
    }
}

const RELEASES: &str = "[rules.idle]\naction = \"release\"\nduration = \"2m\"\n\
                        [reap]\nwarn = \"10m\"\ngrace = \"1m\"\n";

/// An idle process that has announced a signal.
fn announcing(pid: u32) -> Process {
    let announced = (Arc::from("GPUMEM_RELEASE_SIGNAL"), Arc::from("USR2"));
    Process { environment: Some(Arc::new([announced].into())), ..process(pid, "python train.py") }
}

/// Runs a day with this answer to releases. Returns the number of requests by then.
fn asked_by(seconds: f64, answer: ReleaseAnswer) -> (Day, usize) {
    let mut day = Day::new(RELEASES, vec![announcing(70)]);
    day.stage.control.get().answer = Some(RequestResult::Released(answer));
    day.until(seconds);
    let control = day.stage.control.get();
    let asked = control.asked.len();
    let is_release = |it: &Request| matches!(it, Request::Release { .. });
    assert!(control.asked.iter().all(is_release));
    assert!(control.sent.is_empty(), "no signal is sent");
    drop(control);
    (day, asked)
}

#[test]
fn a_rule_with_action_release_asks_once_and_kills_no_process() {
    let done = || Ok(ReleaseReport::default());
    let (_, asked) = asked_by(110.0, done());
    assert_eq!(asked, 0, "it is not found yet");
    let (day, asked) = asked_by(4000.0, done());
    let undecided = day.scheduler.engine.undecided();
    assert_eq!(asked, 1, "{:#?} {undecided:#?}", day.stage.log);
    assert_eq!(day.processes.len(), 1);
    // The owner gets a notice of the finding and no warning of a kill.
    assert_eq!(day.kinds(), [NoticeKind::Found]);
    let log = day.stage.log.join("\n");
    assert!(log.contains("asking 70 (python train.py)"), "{log}");
    assert!(log.contains("70: nothing to release"), "{log}");
    assert!(!log.contains("kill"), "{log}");
}

/// A GPU with 80 GiB that is nearly full, in use.
#[test]
fn on_a_full_gpu_who_announced_a_signal_is_asked_while_it_works_and_not_too_often() {
    let cleans =
        "[rules.pressure]\naction = \"release\"\nmin_free = \"79GiB\"\n[reap]\nwithin = \"20m\"\n";
    let at_work = |it: Process| Process { cpu_percent: Some(100.0), ..it };
    let plain = at_work(process(71, "python train.py"));
    let kept = Process { environment: None, ..at_work(process(72, "python train.py")) };
    let mut day = Day::new(cleans, vec![at_work(announcing(70)), plain, kept]);
    day.stage.control.get().answer = Some(RequestResult::Released(Ok(ReleaseReport::default())));
    for (seconds, asked) in [(50.0, 0), (1000.0, 1), (2000.0, 2), (4100.0, 4)] {
        day.until(seconds);
        let control = day.stage.control.get();
        assert_eq!(control.asked.len(), asked, "{seconds}: {:#?}", day.stage.log);
        let is_it = |it: &Request| matches!(it, Request::Release { way, .. } if way.pid == 70);
        assert!(control.asked.iter().all(is_it) && control.sent.is_empty());
    }
}

#[test]
fn what_is_busy_is_asked_again_later() {
    let (day, asked) = asked_by(1000.0, Err(NotReleased::Busy("a cell runs".to_owned())));
    assert!((2..=4).contains(&asked), "{asked}: {:#?}", day.stage.log);
}

#[test]
fn who_was_asked_by_an_earlier_gpumem_is_not_asked_again() {
    let mut process = announcing(70);
    process.asked =
        Some(Arc::new(AskedRelease { since: at(30.0), until: at(31.0), last_activity: None }));
    let mut day = Day::new(RELEASES, vec![process]);
    day.until(1000.0);
    assert!(day.stage.control.get().asked.is_empty());
    assert!(!day.sent_notices.is_empty(), "it was found");
}
