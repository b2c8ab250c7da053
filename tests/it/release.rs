//! `gpumem release` on the mock driver: processes free memory on the signal in `GPUMEM_RELEASE_SIGNAL`, and continue to
//! run.
//! The tests change the driver's scene to simulate the freed memory.

use std::fs;
use std::path::Path;
use std::process::Command;

use gpumem::api::host::{Roots, read_start_ticks};
use gpumem::api::reclaim::{
    NotReleased, ReleaseBy, ReleaseOptions, ReleaseWay, Signal, perform_release, probe_release,
};
use mock_nvml::scene::{Gpu, Process, Scene};
use serde_json::{Value, json};

use crate::machine::LineProcess;
use crate::reap::{Holder, Stage, outcome};
use crate::scenarios::random::Random;
use crate::support::{Output, find};

const GIB: u64 = 1 << 30;

fn scene_with(pid: u32, bytes: u64) -> Scene {
    let gpu = Gpu::new("NVIDIA H100 80GB HBM3").total(80 * GIB);
    Scene::new().gpu(gpu.process(Process::compute(pid, bytes)))
}

/// Starts a Python program that sets `GPUMEM_RELEASE_SIGNAL` to SIGUSR2, and handles the signal with the given code.
pub fn start_announcing(stage: &Stage, handler: &str) -> Option<Holder> {
    find("python3", "python3")?;
    let scene = stage.machine.path("scene.json");
    let after = stage.machine.path("after.json");
    let program = format!(
        "import os, signal, time\n\
         def release(*_):\n    {handler}\n\
         scene, after = {scene:?}, {after:?}\n\
         signal.signal(signal.SIGUSR2, release)\n\
         print(\"ready\", flush=True)\n\
         while True: time.sleep(0.05)"
    );
    let path = stage.machine.path("program.py");
    fs::write(&path, program).unwrap();
    Some(start_program(stage, &path))
}

fn start_program(stage: &Stage, program: &Path) -> Holder {
    let program = program.display();
    let holder =
        stage.holder(&format!("export GPUMEM_RELEASE_SIGNAL=USR2; exec python3 {program};"));
    // The handler replaces the scene with this scene.
    let after = scene_with(holder.pid, GIB / 2);
    after.write(&stage.machine.path("after.json")).unwrap();
    holder
}

fn release(stage: &Stage, arguments: &[&str]) -> Output {
    let arguments = [&["release", "--json"], arguments].concat();
    crate::support::finish(&mut stage.command(&arguments))
}

#[test]
fn a_process_that_announces_a_signal_frees_memory_and_lives() {
    let stage = or_skip!(Stage::new());
    let holder = or_skip!(start_announcing(&stage, "os.replace(after, scene)"));
    let pid = holder.pid.to_string();
    let planned = release(&stage, &[&pid]).exits(0);
    let document = planned.json();
    assert_eq!(document["status"], "planned");
    assert_eq!(document["freed_bytes"], Value::Null);
    let target = &document["targets"][0];
    assert_eq!(target["steps"][0]["way"]["by"], "signal");
    assert_eq!(target["steps"][0]["way"]["signal"], "USR2");
    assert!(stage.lines().is_empty(), "a plan must not be logged");

    let done = release(&stage, &["--yes", &pid]).exits(0);
    let released = outcome(&done);
    assert_eq!(released["outcome"], "released", "{done:?}");
    assert_eq!(released["bytes"], json!(2 * GIB - GIB / 2));
    assert_eq!(done.json()["freed_bytes"], json!(2 * GIB - GIB / 2));
    assert!(holder.is_alive());
    assert_eq!(stage.events(), ["begun", "intended", "done", "ended"]);
    let intended = &stage.lines()[1];
    assert_eq!(intended["deed"], "release");
    assert_eq!(intended["way"]["pid"], json!(holder.pid));

    // The audit log prevents a second request.
    let again = release(&stage, &["--yes", &pid]).exits(1);
    assert_eq!(outcome(&again)["outcome"], "refused", "{again:?}");
    assert!(holder.is_alive());
}

#[test]
fn a_release_that_frees_nothing_or_ends_the_process_is_reported() {
    let exit = "import json; scene_after = json.load(open(after)); scene_after['gpus'][0]['processes'] = []; \
    json.dump(scene_after, open(after, 'w')); os.replace(after, scene); os._exit(0)";
    for (handler, expected, lives) in
        [("pass", "nothing_to_release", true), (exit, "released", false)]
    {
        let stage = or_skip!(Stage::new());
        let holder = or_skip!(start_announcing(&stage, handler));
        let output = release(&stage, &["--yes", &holder.pid.to_string()]);
        let outcome = outcome(&output);
        assert_eq!(
            (output.code == 0, &outcome["outcome"]),
            (!lives, &expected.into()),
            "{output:?}"
        );
        assert_eq!(output.json()["freed_bytes"] == 0, lives, "{output:?}");
        assert_eq!(outcome["why"] == "it ended", !lives, "{output:?}");
        assert_eq!(holder.is_alive(), lives, "{expected}");
    }
}

#[test]
fn a_signal_without_a_handler_is_not_sent() {
    let stage = or_skip!(Stage::new());
    // `sleep` inherits the variable but has no handler, so the signal would kill it.
    let holder = stage.holder("export GPUMEM_RELEASE_SIGNAL=USR2;");
    let pid = holder.pid.to_string();
    for arguments in [&["--dry-run", &*pid][..], &["--yes", &*pid]] {
        let output = release(&stage, arguments).exits(1);
        let outcome = outcome(&output);
        assert_eq!(outcome["outcome"], "refused", "{output:?}");
        assert!(outcome["why"].as_str().unwrap().contains("no handler"));
        assert!(holder.is_alive());
    }
    assert!(stage.lines().is_empty(), "a refused request must not be logged");
}

/// As root, gpumem must not run the interpreter of a process, because any user can name a program `python3.14`.
#[test]
fn the_interpreter_of_a_process_is_never_run() {
    let stage = or_skip!(Stage::new());
    let compiler = or_skip!(find("cc", "gcc"));
    let (program, trace) = (stage.machine.path("python3.14"), stage.machine.path("was-run"));
    let source = stage.machine.path("program.c");
    let text = format!(
        "#include <fcntl.h>\n#include <unistd.h>\n\
         int main(int count, char **words) {{ if (count > 1) creat({trace:?}, 0600); else sleep(600); }}"
    );
    fs::write(&source, text).unwrap();
    let mut compile = Command::new(compiler);
    crate::support::finish(compile.arg("-o").arg(&program).arg(&source)).exits(0);
    let holder = stage.holder(&format!("echo ready; exec {};", program.display()));
    let pid = holder.pid.to_string();
    release(&stage, &["--yes", &pid]).exits(1);
    assert!(!trace.exists(), "the program was run");
    assert!(holder.is_alive() && stage.lines().is_empty());
}

/// Reads commands from standard input. `on` and `off` set and remove the handler, `exec` executes the program again,
/// and `count` prints the number of handled signals.
const HANDLER_PROGRAM: &str = r#"
import os, signal, sys
count = 0
def handle(*_):
    global count
    count += 1
print("ready", flush=True)
for line in sys.stdin:
    word = line.strip()
    if word == "on":
        signal.signal(signal.SIGUSR2, handle)
    elif word == "off":
        signal.signal(signal.SIGUSR2, signal.SIG_DFL)
    elif word == "ignore":
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    elif word == "block":
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
    elif word == "unblock":
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR2])
    elif word == "exec":
        signal.signal(signal.SIGUSR2, signal.SIG_DFL)
        os.execv(sys.executable, [sys.executable, "-u", "-c", os.environ["PROGRAM"]])
    print(count, flush=True)
"#;

fn start_handler_program() -> LineProcess {
    let mut command = Command::new("python3");
    command.args(["-u", "-c", HANDLER_PROGRAM]).env("PROGRAM", HANDLER_PROGRAM);
    let mut program = LineProcess::start(command.env("GPUMEM_RELEASE_SIGNAL", "USR2"));
    assert_eq!(program.line(), "ready");
    program
}

/// Returns the options of a request by a person who names a process.
pub fn options(wait_ms: u64) -> ReleaseOptions {
    ReleaseOptions { is_named: true, wait_ms, idle_ms: 2_500, ..ReleaseOptions::by_rule() }
}

/// In random order, the program sets and removes a handler, ignores and blocks the signal, and executes itself again.
/// gpumem sends the signal exactly if the program handles the signal and does not block it, and the process always
/// survives.
#[test]
fn a_signal_is_sent_only_while_it_is_handled() {
    or_skip!(find("python3", "python3"));
    let roots = Roots::default();
    for seed in 0..6 {
        let mut random = Random::new("announced", seed);
        let mut program = start_handler_program();
        let pid = program.running.pid();
        let way = ReleaseWay {
            pid,
            start_ticks: read_start_ticks(Path::new("/proc"), pid).unwrap().unwrap(),
            by: ReleaseBy::Signal { signal: Signal::Usr2 },
        };
        let (mut handles, mut blocks, mut count) = (false, false, 0);
        for _ in 0..40 {
            // A plan includes a probe, which must not change the result.
            let _ = probe_release(&roots, &way, &options(1000));
            let words = ["on", "off", "ignore", "block", "unblock", "exec", "wait"];
            let word = random.pick(&words);
            match word {
                "on" => handles = true,
                "off" | "ignore" => handles = false,
                "block" => blocks = true,
                "unblock" => blocks = false,
                "exec" => (handles, count) = (false, 0),
                _ => {}
            }
            let reply = program.ask(word);
            if word == "exec" {
                assert_eq!(reply, "ready", "seed {seed}");
            }
            let answer = perform_release(&roots, &way, &options(1000));
            let is_sent = answer.is_ok();
            assert_eq!(is_sent, handles && !blocks, "seed {seed}: {word}: {answer:?}");
            if !is_sent {
                assert!(matches!(answer, Err(NotReleased::Refused(_))), "{answer:?}");
            }
            count += u32::from(is_sent);
            assert_eq!(program.ask("count"), count.to_string(), "seed {seed}: {word}");
        }
        assert!(program.running.0.try_wait().unwrap().is_none());
    }
}
