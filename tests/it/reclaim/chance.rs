//! Acts on random families of processes. Every process that receives a signal must be in the plan, or descend from a
//! process in the plan and be younger than its parent's pidfd.
//!
//! A spawner starts real processes in a new pid namespace: ended logins, launchers and their ranks, data loaders,
//! supervisors, daemons, and processes with a keep ([`people`]). The library makes plans for some of the processes
//! and acts, in a process under strace. The system calls in strace's log show the signals ([`trace`]). The processes
//! themselves record their parents ([`truth`]). The checks do not use sessions, groups, run ids or names ([`judge`]).
//!
//! `GPUMEM_CHANCE_FAMILIES=10000` sets the number of families, and `GPUMEM_CHANCE_SEED=7` sets the first seed.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use gpumem::api::host::{Processes, Roots, read_clocks, read_guarded, read_host};
use gpumem::api::model::{Kind, PidNamespace, Process, Snapshot, Time, families};
use gpumem::api::reclaim::ledger::{Actor, Deed, read};
use gpumem::api::reclaim::{
    Act, ActProgress, Guard, Ledger, Outcome, PidfdControl, Plan, PlanInput, Policy, Recheck,
    StepInput, Target, Targets, pids, plan,
};

use crate::scenarios::random::Random;
use crate::support::{find, finish, skip};

mod judge;
mod people;
pub(super) mod seen;
mod trace;
mod truth;

use people::Population;
pub use seen::finding;
use seen::gpu;
use trace::{Call, Event, Trace};
use truth::{Born, Truth};

const NAME: &str = "reclaim::chance::signals_go_only_to_planned_processes_and_their_children";
/// The process that acts receives the path of the shared directory in this environment variable.
const INSIDE: &str = "GPUMEM_TEST_CHANCE";
pub(super) const FAMILIES: &str = "GPUMEM_CHANCE_FAMILIES";
const SEED: &str = "GPUMEM_CHANCE_SEED";
/// Number of families that live at the same time.
const AT_ONCE: usize = 6;
/// Number of families in a plain `cargo test`.
const DEFAULT_COUNT: u64 = 102;

#[test]
fn signals_go_only_to_planned_processes_and_their_children() {
    if let Some(folder) = std::env::var_os(INSIDE) {
        Machine::new(folder.into()).run();
        return;
    }
    let programs = [("cc", "gcc"), ("strace", "strace"), ("unshare", "util-linux")];
    if programs.iter().any(|(program, package)| find(program, package).is_none()) {
        return;
    }
    let flags = match rustix::process::geteuid().is_root() {
        true => "-pfm",
        false => "-rpfm",
    };
    let test_run = Command::new("unshare")
        .args([flags, "--mount-proc", "strace", "-o", "/dev/null", "true"])
        .stderr(Stdio::null())
        .status();
    if !test_run.is_ok_and(|status| status.success()) {
        let hint = "run as root, or allow user namespaces and ptrace";
        skip("a pid namespace with strace", hint);
        return;
    }
    let (first, count) = (number(SEED, 1), number(FAMILIES, DEFAULT_COUNT));
    // Use two workers, because the machines that run the tests have two processors.
    let shares = if count >= 2 * DEFAULT_COUNT { 2 } else { 1 };
    let share = count.div_ceil(shares);
    let started: Vec<_> = (0..shares)
        .map(|index| {
            let seed = first + index * share.div_ceil(AT_ONCE as u64);
            thread::spawn(move || run_in_namespace(flags, seed, share))
        })
        .collect();
    let ended: Vec<_> = started.into_iter().map(thread::JoinHandle::join).collect();
    assert!(ended.iter().all(Result::is_ok));
}

/// Runs `count` random families in a new namespace.
fn run_in_namespace(flags: &str, seed: u64, count: u64) {
    let folder = tempfile::tempdir().unwrap();
    // Other users must be able to run the programs in the directory.
    let open = <fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o755);
    fs::set_permissions(folder.path(), open).unwrap();
    let program = folder.path().join("python3");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/reclaim/chance/spawner.c");

    finish(Command::new("cc").args(["-O1", "-o"]).arg(&program).arg(source)).exits(0);
    fs::hard_link(&program, folder.path().join("bash")).unwrap();
    let script = "mount -t tmpfs none /dev && : > /dev/null && : > /dev/nvidia0 && : > /dev/nvidia1 \
        && : > /dev/nvidiactl && exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args([flags, "--mount-proc", "sh", "-c", script, "sh"]);
    command.arg(&program).arg(folder.path());
    command.args(["strace", "-f", "--seccomp-bpf", "-yy", "-ttt", "-q"]);
    command.args(["-e", "signal=none", "-e"]);
    command.arg(format!("trace={}", trace::CALLS));
    command.arg("-o").arg(folder.path().join("trace"));
    command.arg(std::env::current_exe().unwrap());
    command.args([NAME, "--exact", "--nocapture", "--test-threads=1"]);
    command.env(SEED, seed.to_string());
    command.env(FAMILIES, count.to_string());
    let output = finish(command.env(INSIDE, folder.path()));
    assert!(
        output.code == 0 && output.stdout.contains("1 passed"),
        "{}\n{}",
        output.stdout,
        output.stderr
    );
    assert!(output.stderr.contains(" families, "), "{output:?}");
    eprint!("{}", output.stderr);
}

pub(super) fn number(name: &str, default: u64) -> u64 {
    let value = std::env::var(name).unwrap_or_default();
    value.parse().unwrap_or(default)
}

fn microseconds() -> i64 {
    let since = SystemTime::UNIX_EPOCH.elapsed().unwrap();
    i64::try_from(since.as_micros()).unwrap()
}

struct Acted {
    target: Target,
    outcome: Outcome,
    /// Start time of each step, in microseconds.
    calls: Vec<i64>,
    events: Vec<Event>,
    /// Pids and signals in the audit log. The signals have strace's names.
    signalled: BTreeSet<(i64, String)>,
    /// Set if every recheck of the finding succeeds.
    is_free: bool,
    /// Activity between the plan and the action.
    work: TargetWork,
}

/// How the process that worked between the plan and the action is related to the target.
#[derive(Clone, Copy, PartialEq, Debug)]
enum TargetWork {
    None,
    /// The process is in the same family, and can be in the same process group.
    Perhaps,
    /// The process is in the target or descends from the target.
    Own,
}

/// The processes in the namespace, as the acting process sees them.
struct Machine {
    folder: PathBuf,
    request: File,
    reply: BufReader<File>,
    processes: Processes,
    trace: Trace,
    /// Simulated time in milliseconds.
    clock: i64,
    observations: u64,
    ourselves: gpumem::api::host::Ourselves,
    targets: usize,
    ended: usize,
    sent: usize,
    born_and_sent: usize,
    failures: Vec<String>,
}

impl Machine {
    fn new(folder: PathBuf) -> Self {
        let request = OpenOptions::new().write(true).open(folder.join("request"));
        let reply = File::open(folder.join("reply")).unwrap();
        let mut ourselves = gpumem::api::host::read_ourselves(&Roots::default()).unwrap();
        ourselves.pid_namespace = Some(PidNamespace::Host);
        Self {
            request: request.unwrap(),
            reply: BufReader::new(reply),
            processes: Processes::new(Roots::default()),
            trace: Trace::open(&folder.join("trace")),
            folder,
            clock: 1_700_000_000_000,
            observations: 0,
            ourselves,
            targets: 0,
            ended: 0,
            sent: 0,
            born_and_sent: 0,
            failures: Vec::new(),
        }
    }

    fn run(mut self) {
        let start = Instant::now();
        let (first, limit) = (number(SEED, 1), number(FAMILIES, DEFAULT_COUNT));
        let mut count = 0;
        for seed in first.. {
            // Stop after three failures.
            if count >= limit || self.failures.len() == 3 {
                break;
            }
            count += AT_ONCE as u64;
            self.run_population(seed);
        }
        eprintln!(
            "{count} families, {} targets of which {} were ended, {} signals, {} to descendants, in {:?}",
            self.targets,
            self.ended,
            self.sent,
            self.born_and_sent,
            start.elapsed()
        );
        assert!(self.failures.is_empty(), "{}", self.failures.join("\n"));
        // If few targets ended, the test checked too little.
        assert!(limit < 100 || self.ended * 2 > self.targets);
        assert!(limit < 100 || self.ended as u64 > count / 20);
    }

    fn truth(&self) -> Truth {
        Truth::read(&self.folder)
    }

    fn send_request(&mut self, line: &str) {
        writeln!(self.request, "{line}").unwrap();
    }

    /// Starts families, makes a plan, acts, and checks the effects.
    fn run_population(&mut self, seed: u64) {
        let mut random = Random::new("chance", seed);
        let population = Population::new(&mut random, AT_ONCE);
        for request in &population.requests {
            self.send_request(request);
        }
        let start = Instant::now();
        loop {
            let truth = self.truth();
            let is_there = population.stays.iter().all(|id| truth.ready.contains(id));
            if is_there && population.gone.iter().all(|id| truth.ended.contains(id)) {
                break;
            }
            assert!(
                start.elapsed() < crate::support::PATIENCE,
                "seed {seed}: some processes did not start: {:?} {:?}\n{:#?}",
                truth.ready,
                truth.ended,
                population.requests
            );
            thread::sleep(Duration::from_micros(300));
        }
        let ledger = self.folder.join("ledger");
        let _ = fs::remove_file(&ledger);
        let mut complaints = String::new();

        // gpumem knows the CPU use from the second observation on.
        self.observe(&population);
        let snapshot = self.observe(&population);
        let (guard, plan) = self.plan(&mut random, &population, &snapshot);
        let worker =
            random.chance(0.4).then(|| self.work(&mut random, &population, &plan)).flatten();
        let mut acts = Vec::new();
        for target in plan.targets.iter().filter(|target| !target.is_advice()) {
            let work =
                worker.map_or(TargetWork::None, |pid| self.target_work(target, pid, &population));
            let acted = self.act(&mut random, &population, &guard, target.clone(), work);
            let truth = self.truth();
            self.judge(&acted, &truth, &mut complaints);
            acts.push(acted);
        }
        self.judge_others(&population, &plan, &acts, &mut complaints);
        let born = self.truth().born;
        self.send_request("end");
        let mut line = String::new();
        self.reply.read_line(&mut line).unwrap();
        assert_eq!(line, "ended\n");
        if complaints.is_empty() {
            return;
        }
        for acted in &acts {
            let members = acted.target.members.iter().map(|member| (member.pid, &member.name));
            let _ = writeln!(
                complaints,
                "{:?} of {:?} by {:?}, {:?}",
                acted.outcome,
                members.collect::<Vec<_>>(),
                acted.target.launcher,
                acted.target.steps
            );
            for event in &acted.events {
                let _ = writeln!(complaints, "    {} {:?}", event.at, event.call);
            }
        }
        self.failures.push(format!(
            "{complaints}{:#?}\n{:?}\nrepeat with: {SEED}={seed} {FAMILIES}=1 cargo test --test it {NAME}",
            population.requests,
            born,
        ));
    }

    /// Makes a process work between the plan and the action. The process is usually a target or its descendant.
    fn work(&mut self, random: &mut Random, population: &Population, plan: &Plan) -> Option<i64> {
        let truth = self.truth();
        let may_work = |(pid, born): &(&i64, &Born)| {
            population.stays.contains(&born.id) && truth::state(**pid) == Some('S')
        };
        let mut workers: Vec<i64> =
            truth.born.iter().filter(may_work).map(|(pid, _)| *pid).collect();
        if !plan.targets.is_empty() && random.chance(0.8) {
            let target = random.pick(&plan.targets.iter().collect::<Vec<_>>());
            workers.retain(|&pid| self.target_work(target, pid, population) == TargetWork::Own);
        }
        if workers.is_empty() {
            return None;
        }
        let pid = random.pick(&workers);
        self.send_request(&format!("work {pid}"));
        crate::support::wait_until("the process has worked", || self.truth().worked.contains(&pid));
        Some(pid)
    }

    /// Returns the relation of a working process to a target, according to the process's ancestors.
    fn target_work(&self, target: &Target, pid: i64, population: &Population) -> TargetWork {
        let truth = self.truth();
        let is_member = |pid: i64| target.members.iter().any(|member| i64::from(member.pid) == pid);
        let (mut next, mut has_executed) = (pid, false);
        while let Some(born) = truth.born.get(&next).filter(|_| !is_member(next)) {
            has_executed |= truth.executed.contains_key(&next);
            next = born.parent;
        }
        // gpumem cannot recognise a descendant whose ancestors no longer include the target and that has executed a
        // program with another environment.
        let is_linked = truth::ancestors(pid).into_iter().any(is_member);
        if is_member(next) && (!has_executed || is_linked) {
            return TargetWork::Own;
        }
        let family = |pid: i64| population.family.get(&truth.born.get(&pid)?.id);
        match family(i64::from(target.leader)) == family(pid) {
            true => TargetWork::Perhaps,
            false => TargetWork::None,
        }
    }

    fn observe(&mut self, population: &Population) -> Snapshot {
        let truth = self.truth();
        let listed = |pid: u32| {
            let born = truth.born.get(&i64::from(pid))?;
            population.listed.get(&born.id).copied()
        };
        let visible_pid = |(pid, born): (&i64, &Born)| {
            let pid = u32::try_from(*pid).unwrap();
            (born.has_gpu || listed(pid).is_some()).then_some(pid)
        };
        let pids: Vec<u32> = truth.born.iter().filter_map(visible_pid).collect();
        self.observations += 1;
        let boottime = read_clocks().boottime_ns + self.observations * 60_000_000_000;
        let sample = self.processes.sample(&pids, boottime);
        self.clock += 1;
        let mut snapshot = Snapshot::new(Time::from_unix_milliseconds(self.clock));
        snapshot.host = read_host(&Roots::default());
        snapshot.host.pid_namespace = Some(PidNamespace::Host);
        let lives = |process: &Process| process.state != Some('Z');
        snapshot.processes = sample.processes.into_iter().filter(lives).collect();
        for process in &mut snapshot.processes {
            process.environment.get_or_insert_default();
            process.cpu_percent = process.cpu_percent.map(|percent| percent.min(1.0));
        }
        snapshot.gpus = [0, 1].map(|index| gpu(index, &snapshot, &listed)).into();
        snapshot
    }

    /// Makes a plan for random processes on the GPUs, sometimes with all listed processes of one family. Either a rule
    /// has found the processes, or a person names them.
    fn plan(
        &mut self,
        random: &mut Random,
        population: &Population,
        snapshot: &Snapshot,
    ) -> (Guard, Plan) {
        let mut policy = Policy {
            all_users: random.chance(0.5),
            direct: random.chance(0.7),
            grace: random.chance(0.7).then(|| Duration::from_secs(2)),
            ..Policy::default()
        };
        let is_named = random.chance(0.5);
        let share = random.pick(&[0.0, 0.1, 0.2, 0.35]);
        let whole = random.whole(0, 2 * AT_ONCE as u64);
        let truth = self.truth();
        let family = |pid: u32| population.family.get(&truth.born.get(&i64::from(pid))?.id);
        let (mut findings, mut named) = (Vec::new(), Vec::new());
        for process in &snapshot.processes {
            let is_listed = snapshot
                .gpus
                .iter()
                .flat_map(|gpu| gpu.processes.iter().flatten())
                .any(|row| row.pid == process.pid);
            let is_of_family = family(process.pid).is_some_and(|&index| index as u64 == whole);
            if is_listed && (random.chance(share) || is_of_family) {
                let kind = random.pick(&[Kind::Idle, Kind::Orphan, Kind::Stopped]);
                findings.push(finding(kind, process, snapshot.time));
                named.push(process.pid);
            }
        }
        if is_named {
            // Also name any other process, for example a launcher, a data loader or a shell.
            if random.chance(0.3) {
                let everyone: Vec<i64> = truth.born.keys().copied().collect();
                named.extend(u32::try_from(random.pick(&everyone)));
            }
            // If no process is named, the plan is made from the findings, of which there are none.
            policy.targets = Targets::named(named.clone(), Vec::new()).unwrap_or(policy.targets);
        }
        let guard = Guard { policy, ourselves: self.ourselves.clone() };
        let families = families(snapshot);
        let facts = pids(snapshot, &families)
            .into_iter()
            .filter_map(|pid| Some((pid, read_guarded(&Roots::default(), pid).ok()??)))
            .collect();
        let input = PlanInput { findings: &findings, snapshot, families: &families, facts: &facts };
        let mut plan = plan(&input, &guard);
        plan.note_usage(&Roots::default());
        (guard, plan)
    }

    fn act(
        &mut self,
        random: &mut Random,
        population: &Population,
        guard: &Guard,
        target: Target,
        work: TargetWork,
    ) -> Acted {
        let path = self.folder.join("ledger");
        let _ = fs::remove_file(&path);
        let mut ledger = Ledger::open(&path).unwrap();
        let mut control = PidfdControl::new(Roots::default());
        let mut act = Act::new(target.clone(), Arc::new(guard.clone()), Actor::default());
        let is_free = random.chance(0.85);
        let (mut calls, mut events) = (Vec::new(), self.trace.until_now());
        let outcome = loop {
            assert!(calls.len() < 1000, "the action does not end: {target:?}");
            let snapshot = self.observe(population);
            let recheck = match is_free || random.chance(0.7) {
                true => Recheck::StillTrue,
                false => random.pick(&[Recheck::Unknown, Recheck::NoLonger]),
            };
            let input = StepInput { now: snapshot.time, snapshot: &snapshot, recheck };
            calls.push(microseconds());
            let progress = act.advance(input, &mut control, &mut ledger).unwrap();
            let called = self.trace.until_now();
            // Simulated time can jump, but the kernel needs real time to end killed processes.
            let killed = called.iter().filter_map(|event| match &event.call {
                Call::Sent { pid, signal } if signal == "SIGKILL" => Some(*pid),
                _ => None,
            });
            let killed: Vec<i64> = killed.collect();
            let start = Instant::now();
            while killed.iter().any(truth::lives) {
                assert!(start.elapsed() < crate::support::PATIENCE, "{killed:?}");
                thread::sleep(Duration::from_micros(200));
            }
            events.extend(called);
            match progress {
                ActProgress::Ended(outcome) => break outcome,
                ActProgress::Waiting { until } => {
                    let until = until.unix_milliseconds();
                    let jump = self.clock + random.pick(&[700, 2500, 9000, 60_000, 60_000]);
                    self.clock = until.min(jump).max(self.clock);
                    let rest = random.pick(&[300, 1000, 2000, 4000]);
                    thread::sleep(Duration::from_micros(rest));
                }
            }
        };
        let mut signalled = BTreeSet::new();
        for act in read(&path, 1 << 24).unwrap().acts {
            for deed in act.deeds {
                if let Deed::Signal { signals, processes } = deed.deed {
                    for (signal, process) in signals
                        .iter()
                        .flat_map(|signal| processes.iter().map(move |process| (signal, process)))
                    {
                        signalled.insert((i64::from(process.pid), signal.to_string()));
                    }
                }
            }
        }
        Acted { target, outcome, calls, events, signalled, is_free, work }
    }
}
