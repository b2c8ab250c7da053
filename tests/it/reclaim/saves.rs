//! Activity protects a family: if a process works after a signal, gpumem delays SIGKILL. `chance` checks work between
//! the plan and the action.

use std::io::Read as _;
use std::net::TcpListener;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::thread;
use std::time::Duration;

use gpumem::api::reclaim::Signal;

use super::{SessionLeader, Stage, is_freed, signals_to};
use crate::support::python_with;

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
