//! Those who have something in common with a target and are not in the plan: they are left alone.

use std::fs;

use super::*;
use crate::support::wait_until;
use gpumem::api::host::{Guarded as Facts, JobUsage, ListedProcess};
use gpumem::api::reclaim::{
    Approved, Handle, NotOpened, NotSent, ProcessControl, Request, RequestResult,
};

fn children(of: u32) -> Vec<u32> {
    let all = read_all(&Roots::default()).unwrap();
    let children = all.iter().filter(|it| it.ppid == Some(of));
    children.map(|it| it.pid).collect()
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
    let upload = || fs::read_to_string(&pid).ok()?.parse::<u32>().ok();
    wait_until("it tells who it is", || upload().is_some());
    let upload = upload().unwrap();
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
    let script = "echo ready; while :; do sleep 660 & wait; sleep 1; done";
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

    fn read_usage(&mut self, of: &[(u32, u64)], before: Option<&JobUsage>) -> JobUsage {
        self.inner.read_usage(of, before)
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
    let cast = Cast::new(command.args(["-c", "echo ready; exec sleep 670"]));
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
