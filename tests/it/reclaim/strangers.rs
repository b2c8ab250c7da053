//! Those who have something in common with a target and are not in the plan: they are left alone.

use std::fs;

use super::*;
use crate::support::wait_until;
use gpumem::api::host::{Guarded as Facts, ListedProcess};
use gpumem::api::reclaim::{
    Approved, Handle, NotOpened, NotSent, ProcessControl, Request, RequestResult,
};

/// Ends within a second of SIGTERM, or only when it is killed.
const OBEYS: &str = "import signal, sys, time
def bye(*_):
    time.sleep(1)
    sys.exit(0)
signal.signal(signal.SIGTERM, bye)
while True: signal.pause()";

/// Four loaders at a time, new ones all the while, and an eye on what becomes of each and of itself.
const TRAINING: &str = "import os, signal, sys, time
def tell(what):
    with open(sys.argv[1], 'a') as file: file.write(what + '\\n')
def hear(who):
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGCONT):
        signal.signal(number, lambda number, _: tell(f'{who} heard {number}'))
hear('training')
loaders = 0
until = time.monotonic() + 60
while time.monotonic() < until:
    while loaders < 4:
        if os.fork() == 0:
            hear('loader')
            time.sleep(0.2)
            os._exit(0)
        loaders += 1
    pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
    if pid == 0:
        time.sleep(0.01)
    elif os.WIFSTOPPED(status):
        tell('a loader was stopped')
    else:
        loaders -= 1
        if status: tell(f'a loader ended by {status}')
";

/// A login that has ended and has left an idle job and a training, each in a group of its own.
struct Login {
    idle: u32,
    training: u32,
    witness: PathBuf,
    // Ends all of its session.
    _cast: Cast,
    _folder: tempfile::TempDir,
}

impl Login {
    fn new(python: &PathBuf, idle: &str, environment: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let witness = folder.path().join("witness");
        let pids = folder.path().join("pids");
        let script = format!(
            "import subprocess
def start(script, **more):
    return subprocess.Popen([sys.executable, '-c', script, {witness:?}], preexec_fn=os.setpgrp,
        env=dict(os.environ, **more), stdout=subprocess.DEVNULL).pid
idle, training = start({idle:?}), start({TRAINING:?}, {environment})
with open({pids:?}, 'w') as file: file.write(f'{{idle}} {{training}}')
print('ready', flush=True)"
        );
        let mut cast = Cast::python(python, &script);
        // Its leader is gone, and not even a zombie.
        cast.0.wait().unwrap();
        let pids = fs::read_to_string(pids).unwrap();
        let (idle, training) = pids.split_once(' ').unwrap();
        let training = training.parse().unwrap();
        wait_until("it trains", || children(training).len() == 4);
        Self { idle: idle.parse().unwrap(), training, witness, _cast: cast, _folder: folder }
    }

    /// Ends the idle job, and sees that nobody else has noticed.
    fn end_idle(&self, grace: Duration) {
        let mut stage = Stage::new(&[self.idle, self.training]);
        stage.guard.policy.grace = Some(grace);
        stage.guard.policy.targets = Targets::of_pids(&[self.idle]).unwrap();
        let (outcome, past) = stage.end();
        assert!(is_freed(&outcome), "{outcome:?}");
        let logged = fs::read_to_string(&self.witness).unwrap_or_default();
        assert_eq!(logged, "");
        let others = past.acts[0].deeds.iter().filter(|it| match &it.deed {
            Deed::Signal { processes, .. } => processes.iter().any(|it| it.pid != self.idle),
            _ => true,
        });
        assert_eq!(others.count(), 0, "{past:?}");
        wait_until("it still trains", || children(self.training).len() == 4);
    }
}

fn children(of: u32) -> Vec<u32> {
    let all = read_all(&Roots::default()).unwrap();
    let children = all.iter().filter(|it| it.ppid == Some(of));
    children.map(|it| it.pid).collect()
}

#[test]
fn a_neighbour_that_forks_while_the_target_obeys_is_left_alone() {
    let python = or_skip!(python_with(&["signal"]));
    Login::new(&python, OBEYS, "").end_idle(Duration::from_secs(3));
}

/// A launcher, with two ranks that name a run and no port.
const LAUNCHER: &str = "import os, signal, subprocess, sys, time
os.setsid()
rank = 'import time; time.sleep(60)'
ranks = [subprocess.Popen([sys.executable, '-c', rank], stdout=subprocess.DEVNULL,
    env=dict(os.environ, RANK=str(number), WORLD_SIZE='2', TORCHELASTIC_RUN_ID='100'),
    preexec_fn=os.setsid) for number in range(2)]
with open(sys.argv[1], 'w') as file: file.write(' '.join(str(rank.pid) for rank in ranks))
def end(*_):
    for rank in ranks: rank.terminate()
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
print('ready', flush=True)
while True: signal.pause()
";

#[test]
fn a_launcher_is_not_ended_for_one_of_its_ranks() {
    let python = or_skip!(python_with(&["signal"]));
    let folder = tempfile::tempdir().unwrap();
    let (launcher, pids) = (folder.path().join("torchrun"), folder.path().join("pids"));
    fs::write(&launcher, LAUNCHER).unwrap();
    let mut run = Cast::new(Command::new(&python).arg(&launcher).arg(&pids));
    let ranks = fs::read_to_string(&pids).unwrap();
    let ranks: Vec<u32> = ranks.split(' ').map(|pid| pid.parse().unwrap()).collect();
    // Left behind by an earlier run, which had the same name.
    let mut orphan = Command::new(&python);
    orphan.args(["-c", "print('ready', flush=True); import time; time.sleep(60)"]);
    orphan.envs([("RANK", "1"), ("TORCHELASTIC_RUN_ID", "100")]);
    let mut orphan = Cast::new(orphan.process_group(0));
    for listed in [&[ranks[0], ranks[1]][..], &[ranks[0], ranks[1], orphan.pid()]] {
        let mut stage = Stage::new(listed);
        stage.guard.policy.targets = Targets::of_pids(&[ranks[0]]).unwrap();
        let plan = stage.plan();
        let refused = format!("{:?}", plan.refused);
        for target in plan.targets {
            let (_, past) = stage.act(target);
            assert_eq!(sent(&past, run.pid()), []);
            assert_eq!(sent(&past, ranks[1]), []);
            assert_eq!(sent(&past, orphan.pid()), []);
        }
        assert!(run.is_alive() && orphan.is_alive());
        assert!(children(run.pid()).contains(&ranks[1]), "the other rank");
        assert!(children(run.pid()).contains(&ranks[0]), "it would be missed");
        let pid = run.pid().to_string();
        assert!(refused.contains(&pid), "not whom to name: {refused}");
    }
}

#[test]
fn what_a_handler_starts_goes_on_when_the_memory_is_back() {
    let python = or_skip!(python_with(&["signal"]));
    let folder = tempfile::tempdir().unwrap();
    let (pid, saved) = (folder.path().join("pid"), folder.path().join("saved"));
    // It outlives its parent, and the memory's return.
    let script = format!(
        "def upload(*_):
    if os.fork() == 0:
        os.setsid()
        with open({pid:?}, 'w') as file: file.write(str(os.getpid()))
        time.sleep(2)
        with open({saved:?}, 'w') as file: file.write('all of it')
        time.sleep(30)
    time.sleep(0.6)
    os._exit(0)
signal.signal(signal.SIGTERM, upload)
print('ready', flush=True)
while True: signal.pause()"
    );
    let cast = Cast::python(&python, &script);
    let mut stage = Stage::new(&[cast.pid()]);
    stage.guard.policy.grace = Some(Duration::from_secs(20));
    let (outcome, past) = stage.end();
    let upload: u32 = fs::read_to_string(&pid).unwrap().parse().unwrap();
    let _end = Ended(upload);
    assert!(is_freed(&outcome), "{outcome:?}");
    assert_eq!(sent(&past, upload), []);
    wait_until("it has saved", || fs::read_to_string(&saved).is_ok_and(|text| text == "all of it"));
}

/// A process of a session of its own that is killed when the test is over.
pub struct Ended(pub u32);

impl Drop for Ended {
    fn drop(&mut self) {
        crate::procs::send(self.0, rustix::process::Signal::KILL);
    }
}

/// A loop that starts its job again a second after it has ended.
fn supervisor() -> (Cast, u32) {
    let script = "echo ready; while :; do sleep 66 & wait; sleep 1; done";
    let cast = Cast::new(Command::new("setsid").args(["sh", "-c", script]));
    wait_until("its job runs", || !children(cast.pid()).is_empty());
    let job = children(cast.pid())[0];
    (cast, job)
}

#[test]
fn memory_that_is_taken_again_after_a_second_is_not_freed() {
    let (cast, job) = supervisor();
    let mut stage = Stage::new(&[job]);
    stage.heirs_of = vec![cast.pid()];
    let (outcome, past) = stage.end();
    let Outcome::Respawned { pid, .. } = outcome else {
        panic!("{outcome:?}");
    };
    assert!(pid != job && children(cast.pid()).contains(&pid));
    assert_eq!(sent(&past, pid), []);
    assert_eq!(outcome.freed_bytes(), 0);
}

#[test]
fn what_was_freed_is_reported_though_another_was_started() {
    let (cast, job) = supervisor();
    let mut stage = Stage::new(&[job]);
    let mut target = stage.target();
    target.respawn_seconds = 20.0;
    let (outcome, past) = stage.act(target);
    assert_eq!(sent(&past, cast.pid()), []);
    assert!(matches!(outcome, Outcome::Respawned { .. }), "{outcome:?}");
    assert_eq!(outcome.freed_bytes(), GIB, "{outcome:?}");
}

#[test]
fn a_child_that_is_kept_and_was_born_meanwhile_is_left_alone() {
    let python = or_skip!(python_with(&["signal"]));
    let is_left_alone = |is_listed: bool| {
        let folder = tempfile::tempdir().unwrap();
        let pid = folder.path().join("pid");
        let script = format!(
            "import subprocess
def start(*_):
    child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'],
        env=dict(os.environ, GPUMEM_KEEP='forever'))
    with open({pid:?}, 'w') as file: file.write(str(child.pid))
signal.signal(signal.SIGTERM, start)
print('ready', flush=True)
while True: signal.pause()"
        );
        let cast = Cast::python(&python, &script);
        let mut stage = Stage::new(&[cast.pid()]);
        stage.guard.policy.grace = Some(Duration::from_secs(2));
        if is_listed {
            stage.heirs_of = vec![cast.pid()];
        }
        let (outcome, past) = stage.end();
        let child: u32 = fs::read_to_string(&pid).unwrap().parse().unwrap();
        let _end = Ended(child);
        assert_eq!(sent(&past, child), [], "{outcome:?} {past:?}");
        let facts = read_guarded(&Roots::default(), child).unwrap();
        let facts = facts.expect("it is there");
        assert!(!matches!(facts.state, Some('T' | 'Z')), "{facts:?}");
    };
    thread::scope(|scope| {
        scope.spawn(|| is_left_alone(false));
        scope.spawn(|| is_left_alone(true));
    });
}

/// ProcessControl that find a process alive for the last time, and then it ends by itself.
struct TooLate {
    inner: PidfdControl,
    /// Who, when its time has come.
    dies: Option<u32>,
}

impl ProcessControl for TooLate {
    fn open(&mut self, who: &Approved) -> Result<Handle, NotOpened> {
        self.inner.open(who)
    }

    fn read_guarded(&mut self, pid: u32) -> Option<Facts> {
        self.inner.read_guarded(pid)
    }

    fn signal(&mut self, _: Handle, _: Signal) -> Result<(), NotSent> {
        // It goes its own way.
        Ok(())
    }

    fn has_exited(&mut self, handle: Handle) -> bool {
        let has_exited = self.inner.has_exited(handle);
        if let Some(pid) = self.dies.take_if(|_| !has_exited) {
            crate::procs::send(pid, rustix::process::Signal::KILL);
            wait_until("it has ended", || self.inner.has_exited(handle));
        }
        has_exited
    }

    fn list(&mut self) -> Vec<ListedProcess> {
        self.inner.list()
    }

    fn held_up(&mut self, pid: u32) -> Option<String> {
        self.inner.held_up(pid)
    }

    fn start_request(&mut self, request: Request) {
        self.inner.start_request(request);
    }

    fn answer(&mut self) -> RequestResult {
        self.inner.answer()
    }

    fn release(&mut self) {
        self.inner.release();
    }
}

/// Drives an act over a process that ends by itself in the `dies_in`th call; its time jumps.
fn ends_by_itself(dies_in: usize, recheck: [Recheck; 2]) -> Outcome {
    let mut command = Command::new("sh");
    let cast = Cast::new(command.args(["-c", "echo ready; exec sleep 67"]));
    let mut stage = Stage::new(&[cast.pid()]);
    let mut target = stage.target();
    if recheck[0] != Recheck::StillTrue {
        let findings = Vec::new();
        target.reason = gpumem::api::reclaim::Reason::Found { findings };
    }
    let path = stage.folder.path().join("ledger.jsonl");
    let mut ledger = Ledger::open(&path).unwrap();
    let inner = PidfdControl::new(Roots::default());
    let mut control = TooLate { inner, dies: None };
    let mut act = Act::new(target, Arc::new(stage.guard.clone()), Actor::default());
    let mut now = stage.now();
    for call in 1.. {
        assert!(call < 50, "no end");
        let mut snapshot = stage.look();
        snapshot.time = now;
        control.dies = (call == dies_in).then_some(cast.pid());
        let moment =
            StepInput { now, snapshot: &snapshot, recheck: recheck[usize::from(call > 1)] };
        match act.advance(moment, &mut control, &mut ledger).unwrap() {
            ActProgress::Ended(outcome) => return outcome,
            ActProgress::Waiting { until } => now = until.plus_seconds(0.001),
        }
    }
    unreachable!()
}

#[test]
fn who_dies_by_itself_is_not_still_alive() {
    let holds = [Recheck::StillTrue; 2];
    // Before SIGTERM, before SIGKILL, and when the last grace is over.
    for dies_in in 1..=3 {
        let outcome = ends_by_itself(dies_in, holds);
        assert!(outcome.is_success(), "in call {dies_in}: {outcome:?}");
    }
    // When the rule holds after all.
    let outcome = ends_by_itself(2, [Recheck::Unknown, Recheck::StillTrue]);
    assert!(outcome.is_success(), "{outcome:?}");
}
