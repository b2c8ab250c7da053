//! Processes that are related to a target but not in the plan survive.

use std::fs;

use super::*;
use crate::support::wait_until;

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
