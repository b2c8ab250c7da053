//! Activity protects a family. If a process works between the plan and the action, gpumem does not act on a rule's
//! finding. If it works after a signal, gpumem delays SIGKILL.

use std::fs;
use std::io::Read as _;
use std::net::TcpListener;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use gpumem::api::reclaim::{Outcome, Signal};

use super::{SessionLeader, Stage, is_freed, signals_to};
use crate::support::{python_with, wait_until};

/// Sleeps until the file `go` exists. Then the target, a child, a daemon or the daemon's child uses 1.5 s of CPU time or
/// reads 200 MiB, and creates the file `worked`.
const WORKER: &str = r#"
import os, signal, sys, time
folder, worker, activity = sys.argv[1:4]
def fork():
    is_child = os.fork() == 0
    if is_child: signal.alarm(300)
    return is_child
signal.alarm(300)
works = worker == "target"
if worker == "child":
    works = fork()
elif worker.startswith("daemon"):
    if fork():
        os.setsid()
        if not fork(): os._exit(0)
        with open(folder + "/new", "w") as file: file.write(str(os.getpid()))
        os.rename(folder + "/new", folder + "/daemon")
        works = worker == "daemon" or fork()
        if not works: signal.pause()
    else:
        os.wait()
if worker == "target" or not works: print("ready", flush=True)
while works and not os.path.exists(folder + "/go"): time.sleep(0.05)
if works and activity == "reads":
    with open("/dev/zero", "rb", buffering=0) as file:
        for _ in range(200): file.read(1 << 20)
while works and activity == "computes" and time.process_time() < 1.5: sum(range(10000))
if works: open(folder + "/worked", "w").close()
while True: signal.pause()
"#;

/// Makes a plan, lets a process of the job work, and acts. Activity does not protect a process that a person names.
fn act_after_work(python: &Path, worker: &str, activity: &str, is_named: bool) {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let mut command = Command::new(python);
    command.args(["-c", WORKER]).arg(folder.path()).args([worker, activity]);
    // gpumem assigns the daemons to the job by this variable, which no other test sets.
    command.env("GPUMEM_TEST_JOB", folder.path());
    let mut leader = SessionLeader::new(command.process_group(0));
    let daemon = worker.starts_with("daemon").then(|| {
        wait_until("the daemon runs", || path("daemon").exists());
        fs::read_to_string(path("daemon")).unwrap().parse().unwrap()
    });
    let mut stage = Stage::new(&[leader.pid()]);
    let target = if is_named { stage.target() } else { stage.found(leader.pid()) };
    if worker != "none" {
        fs::write(path("go"), "").unwrap();
        wait_until("the work is done", || path("worked").exists());
    }
    let (outcome, past) = stage.act(target);
    let (signals, case) = (signals_to(&past, leader.pid()), format!("{worker} {activity}"));
    if is_named || worker == "none" {
        assert!(is_freed(&outcome) && signals == [Signal::Term], "{case}: {outcome:?}");
    } else {
        assert_eq!(outcome, Outcome::RuleNoLongerTrue, "{case}");
        assert!(signals.is_empty() && leader.is_alive(), "{case}");
    }
    if let Some(pid) = daemon {
        crate::procs::send(pid, rustix::process::Signal::KILL);
    }
}

#[test]
fn work_by_any_member_after_the_plan_cancels() {
    let python = or_skip!(python_with(&["signal"]));
    thread::scope(|scope| {
        for (worker, activity) in [
            ("none", ""),
            ("target", "computes"),
            ("child", "computes"),
            ("daemon's child", "computes"),
            ("target", "reads"),
            ("daemon", "reads"),
        ] {
            let python = &python;
            scope.spawn(move || act_after_work(python, worker, activity, false));
        }
    });
}

#[test]
fn a_named_process_that_begins_to_work_is_ended() {
    act_after_work(&or_skip!(python_with(&["signal"])), "target", "computes", true);
}

/// On SIGTERM, ignores the signal, or works for about three seconds, creates the file `saved`, and exits. The second
/// argument selects the behaviour.
const SAVER: &str = r#"
import os, signal, socket, sys, time, zlib
folder, manner, port = sys.argv[1:4]
signal.alarm(300)
connection = socket.create_connection(("127.0.0.1", int(port))) if manner == "sends" else None
def write():
    with open("/dev/null", "wb", buffering=0) as file:
        for _ in range(60):
            file.write(b"x" * (1 << 17))
            time.sleep(0.05)
def compress():
    while time.process_time() < 3:
        zlib.compress(os.urandom(1 << 16), 9)
def on_term(*_):
    if manner == "ignores":
        return
    if manner == "sends":
        for _ in range(60):
            connection.sendall(b"x" * (1 << 17))
            time.sleep(0.05)
    elif manner == "writes":
        write()
    elif manner == "compresses":
        compress()
    else:
        child = os.fork()
        if child == 0:
            signal.alarm(300)
            if manner == "child writes": write()
            if manner == "child compresses": compress()
            if manner == "helper compresses":
                os.setsid()
                if os.fork() > 0: os._exit(0)
                compress()
                open(folder + "/compressed", "w").close()
            os._exit(0)
        os.waitpid(child, 0)
        while manner == "helper compresses" and not os.path.exists(folder + "/compressed"):
            time.sleep(0.05)
    open(folder + "/saved", "w").close()
    os._exit(0)
signal.signal(signal.SIGTERM, on_term)
print("ready", flush=True)
while True:
    signal.pause()
"#;

#[test]
fn a_saving_process_is_not_killed_and_an_idle_one_is() {
    let python = or_skip!(python_with(&["signal", "zlib"]));
    let cases = [
        "ignores",
        "sends",
        "writes",
        "compresses",
        "child writes",
        "child compresses",
        "helper compresses",
    ];
    thread::scope(|scope| {
        for manner in cases {
            let python = &python;
            scope.spawn(move || {
                let folder = tempfile::tempdir().unwrap();
                let listener = TcpListener::bind("127.0.0.1:0").unwrap();
                let port = listener.local_addr().unwrap().port().to_string();
                if manner == "sends" {
                    thread::spawn(move || {
                        let (mut connection, _) = listener.accept().unwrap();
                        let mut bytes = vec![0; 1 << 20];
                        while connection.read(&mut bytes).is_ok_and(|length| length > 0) {}
                    });
                }
                let mut command = Command::new(python);
                command.args(["-c", SAVER]).arg(folder.path()).args([manner, &port]);
                command.env("GPUMEM_TEST_JOB", folder.path());
                let leader = SessionLeader::new(command.process_group(0));
                let mut stage = Stage::new(&[leader.pid()]);
                stage.guard.policy.grace = Some(Duration::from_secs(1));
                let target = stage.found(leader.pid());
                let (outcome, past) = stage.act(target);
                let case = format!("{manner}: {outcome:?}, {:?}", past.acts);
                assert!(is_freed(&outcome), "{case}");
                let is_saved = folder.path().join("saved").exists();
                let signals = signals_to(&past, leader.pid());
                match manner {
                    "ignores" => assert_eq!(signals, [Signal::Term, Signal::Kill], "{case}"),
                    _ => assert!(is_saved && signals == [Signal::Term], "{case}"),
                }
            });
        }
    });
}
