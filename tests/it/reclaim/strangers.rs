//! Processes that are related to a target but not in the plan survive.

use std::fs;

use super::*;
use crate::support::wait_until;
use gpumem::api::host::{Guarded as Facts, JobUsage, ListedProcess};
use gpumem::api::reclaim::{
    ApprovedProcess, Handle, NotOpened, NotSent, ProcessControl, Request, RequestResult,
};

fn children(parent: u32) -> Vec<u32> {
    let all = read_all(&Roots::default()).unwrap();
    let children = all.iter().filter(|process| process.ppid == Some(parent));
    children.map(|process| process.pid).collect()
}

#[test]
fn a_process_started_by_a_signal_handler_is_left_alone() {
    let python = or_skip!(python_with(&["signal"]));
    let folder = tempfile::tempdir().unwrap();
    let (pid, saved) = (folder.path().join("pid"), folder.path().join("saved"));
    // The handler's child outlives its parent, and still runs when the memory is freed.
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
    let leader = SessionLeader::python(&python, &script);
    let mut stage = Stage::new(&[leader.pid()]);
    stage.guard.policy.grace = Some(Duration::from_secs(20));
    let (outcome, past) = stage.end();
    let upload = || fs::read_to_string(&pid).ok()?.parse::<u32>().ok();
    wait_until("the child has written its pid", || upload().is_some());
    let upload = upload().unwrap();
    let _guard = KillOnDrop(upload);
    assert!(is_freed(&outcome), "{outcome:?}");
    assert_eq!(signals_to(&past, upload), []);
    wait_until("the child has saved", || {
        fs::read_to_string(&saved).is_ok_and(|text| text == "all of it")
    });
}

/// A process that leads a session, and is killed on drop.
pub struct KillOnDrop(pub u32);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        crate::procs::send(self.0, rustix::process::Signal::KILL);
    }
}

/// Starts a loop that restarts its job one second after the job has ended. Returns the loop and the job's pid.
fn start_supervisor() -> (SessionLeader, u32) {
    let script = "echo ready; while :; do sleep 660 & wait; sleep 1; done";
    let leader = SessionLeader::new(Command::new("setsid").args(["sh", "-c", script]));
    wait_until("the job runs", || !children(leader.pid()).is_empty());
    let job = children(leader.pid())[0];
    (leader, job)
}

#[test]
fn memory_held_by_a_successor_is_not_freed() {
    let (leader, job) = start_supervisor();
    let mut stage = Stage::new(&[job]);
    stage.heirs_of = vec![leader.pid()];
    let (outcome, past) = stage.end();
    let Outcome::Respawned { pid, .. } = outcome else {
        panic!("{outcome:?}");
    };
    assert!(pid != job && children(leader.pid()).contains(&pid));
    assert_eq!(signals_to(&past, pid), []);
    assert_eq!(outcome.freed_bytes(), 0);
}

#[test]
fn freed_memory_is_reported_despite_a_successor() {
    let (leader, job) = start_supervisor();
    let mut stage = Stage::new(&[job]);
    let mut target = stage.target();
    target.respawn_seconds = 20.0;
    let (outcome, past) = stage.act(target);
    assert_eq!(signals_to(&past, leader.pid()), []);
    assert!(matches!(outcome, Outcome::Respawned { .. }), "{outcome:?}");
    assert_eq!(outcome.freed_bytes(), GIB, "{outcome:?}");
}

/// A process control whose target exits without a signal, immediately after a check has found the target alive.
struct DiesByItself {
    inner: PidfdControl,
    /// The process to kill after the next check.
    dies: Option<u32>,
}

impl ProcessControl for DiesByItself {
    fn open(&mut self, process: &ApprovedProcess) -> Result<Handle, NotOpened> {
        self.inner.open(process)
    }

    fn read_guarded(&mut self, pid: u32) -> Option<Facts> {
        self.inner.read_guarded(pid)
    }

    fn signal(&mut self, _: Handle, _: Signal) -> Result<(), NotSent> {
        // Pretend that the signal was sent.
        Ok(())
    }

    fn has_exited(&mut self, handle: Handle) -> bool {
        let has_exited = self.inner.has_exited(handle);
        if let Some(pid) = self.dies.take_if(|_| !has_exited) {
            crate::procs::send(pid, rustix::process::Signal::KILL);
            wait_until("the process has ended", || self.inner.has_exited(handle));
        }
        has_exited
    }

    fn list(&mut self) -> Vec<ListedProcess> {
        self.inner.list()
    }

    fn read_usage(&mut self, family: &[(u32, u64)], before: Option<&JobUsage>) -> JobUsage {
        self.inner.read_usage(family, before)
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

/// Acts on a process that exits during step number `dies_in`. Time is simulated.
fn act_on_a_dying_process(dies_in: usize, recheck: [Recheck; 2]) -> Outcome {
    let mut command = Command::new("sh");
    let leader = SessionLeader::new(command.args(["-c", "echo ready; exec sleep 670"]));
    let mut stage = Stage::new(&[leader.pid()]);
    let mut target = stage.target();
    if recheck[0] != Recheck::StillTrue {
        let findings = Vec::new();
        target.reason = gpumem::api::reclaim::Reason::Found { findings };
    }
    let path = stage.folder.path().join("ledger.jsonl");
    let mut ledger = Ledger::open(&path).unwrap();
    let inner = PidfdControl::new(Roots::default());
    let mut control = DiesByItself { inner, dies: None };
    let mut act = Act::new(target, Arc::new(stage.guard.clone()), Actor::default());
    let mut now = stage.now();
    for step in 1.. {
        assert!(step < 50, "the action does not end");
        let mut snapshot = stage.observe();
        snapshot.time = now;
        control.dies = (step == dies_in).then_some(leader.pid());
        let input = StepInput { now, snapshot: &snapshot, recheck: recheck[usize::from(step > 1)] };
        match act.advance(input, &mut control, &mut ledger).unwrap() {
            ActProgress::Ended(outcome) => return outcome,
            ActProgress::Waiting { until } => now = until.plus_seconds(0.001),
        }
    }
    unreachable!()
}

#[test]
fn a_process_that_dies_by_itself_is_a_success() {
    let still_true = [Recheck::StillTrue; 2];
    // The process exits before SIGTERM, before SIGKILL, or after the last grace period.
    for dies_in in 1..=3 {
        let outcome = act_on_a_dying_process(dies_in, still_true);
        assert!(outcome.is_success(), "in step {dies_in}: {outcome:?}");
    }
    // The process exits in the step that completes the recheck.
    let outcome = act_on_a_dying_process(2, [Recheck::Unknown, Recheck::StillTrue]);
    assert!(outcome.is_success(), "{outcome:?}");
}
