//! `gpumem release` on the mock driver: real processes give memory back and live on, by the signal that they
//! have announced. What comes back is what the driver shows from then on.

use std::fs;
use std::path::Path;
use std::process::Command;

use gpumem::api::host::{Roots, read_start_ticks};
use gpumem::api::reclaim::{
    NotReleased, ReleaseBy, ReleaseOptions, ReleaseWay, Signal, perform_release, probe_release,
};
use mock_nvml::scene::{Gpu, Process, Scene};
use serde_json::{Value, json};

use crate::machine::Talking;
use crate::reap::{Holder, Stage, outcome};
use crate::scenarios::random::Random;
use crate::support::{Output, find};

const GIB: u64 = 1 << 30;

/// One GPU on which a process holds so much.
fn holding(pid: u32, bytes: u64) -> Scene {
    let gpu = Gpu::new("NVIDIA H100 80GB HBM3").total(80 * GIB);
    Scene::new().gpu(gpu.process(Process::compute(pid, bytes)))
}

/// A Python program that announces SIGUSR2 and does this upon it.
pub fn announcing(stage: &Stage, handler: &str) -> Option<Holder> {
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
    Some(run(stage, &path))
}

fn run(stage: &Stage, program: &Path) -> Holder {
    let program = program.display();
    let holder =
        stage.holder(&format!("export GPUMEM_RELEASE_SIGNAL=USR2; exec python3 {program};"));
    // What the driver shows once it has released.
    let after = holding(holder.pid, GIB / 2);
    after.write(&stage.machine.path("after.json")).unwrap();
    holder
}

fn release(stage: &Stage, arguments: &[&str]) -> Output {
    let whole = [&["release", "--json"], arguments].concat();
    crate::support::finish(&mut stage.command(&whole))
}

#[test]
fn a_process_that_announces_a_signal_gives_memory_back_and_lives() {
    let stage = or_skip!(Stage::new());
    let holder = or_skip!(announcing(&stage, "os.replace(after, scene)"));
    let pid = holder.pid.to_string();
    // Its page names the way, though nothing was found of it.
    let page = crate::support::finish(&mut stage.command(&["explain", &pid]));
    let typed = format!("to free what it caches: `gpumem release {pid}`");
    assert!(page.stdout.contains(&typed), "{page:?}");
    let planned = release(&stage, &[&pid]).exits(0);
    let document = planned.json();
    assert_eq!(document["status"], "planned");
    assert_eq!(document["released_bytes"], Value::Null);
    let target = &document["targets"][0];
    assert_eq!(target["steps"][0]["way"]["by"], "signal");
    assert_eq!(target["steps"][0]["way"]["signal"], "USR2");
    let proved = target["proved"].as_str().unwrap();
    assert!(proved.contains("has a handler"), "{proved}");
    assert!(stage.lines().is_empty(), "nothing was done so far");

    let done = release(&stage, &["--yes", &pid]).exits(0);
    let released = outcome(&done);
    assert_eq!(released["outcome"], "released", "{done:?}");
    assert_eq!(released["bytes"], json!(2 * GIB - GIB / 2));
    assert_eq!(done.json()["released_bytes"], json!(2 * GIB - GIB / 2));
    assert!(holder.is_alive());
    assert_eq!(stage.events(), ["begun", "intended", "done", "ended"]);
    let intended = &stage.lines()[1];
    assert_eq!(intended["deed"], "release");
    assert_eq!(intended["way"]["pid"], json!(holder.pid));

    // The ledger has it: nobody is held up again for nothing.
    let again = release(&stage, &["--yes", &pid]).exits(1);
    assert_eq!(outcome(&again)["outcome"], "refused", "{again:?}");
    assert!(holder.is_alive());
    let history = crate::support::finish(&mut stage.command(&["reap", "--history"]));
    assert!(history.stdout.contains("released 1.5 GiB"), "{history:?}");
}

#[test]
fn who_gives_nothing_back_has_released_nothing_and_who_ends_is_said_to() {
    let ends = "import json; it = json.load(open(after)); it['gpus'][0]['processes'] = []; \
                json.dump(it, open(after, 'w')); os.replace(after, scene); os._exit(0)";
    for (handler, expected, lives) in
        [("pass", "nothing_to_release", true), (ends, "released", false)]
    {
        let stage = or_skip!(Stage::new());
        let holder = or_skip!(announcing(&stage, handler));
        let output = release(&stage, &["--yes", &holder.pid.to_string()]);
        let outcome = outcome(&output);
        assert_eq!(
            (output.code == 0, &outcome["outcome"]),
            (!lives, &expected.into()),
            "{output:?}"
        );
        assert_eq!(output.json()["released_bytes"] == 0, lives, "{output:?}");
        assert_eq!(outcome["why"] == "it ended", !lives, "{output:?}");
        assert_eq!(holder.is_alive(), lives, "{expected}");
    }
}

#[test]
fn a_signal_without_a_handler_is_not_sent() {
    let stage = or_skip!(Stage::new());
    // `sleep` inherits the variable and has no handler: the signal would end it.
    let holder = stage.holder("export GPUMEM_RELEASE_SIGNAL=USR2;");
    let pid = holder.pid.to_string();
    for arguments in [&["--dry-run", &*pid][..], &["--yes", &*pid]] {
        let output = release(&stage, arguments).exits(1);
        let outcome = outcome(&output);
        assert_eq!(outcome["outcome"], "refused", "{output:?}");
        assert!(outcome["why"].as_str().unwrap().contains("no handler"));
        assert!(holder.is_alive());
    }
    assert!(stage.lines().is_empty(), "nobody was asked");
}

#[test]
fn what_has_no_way_in_is_shown_what_helps_instead() {
    let stage = or_skip!(Stage::new());
    let holder = stage.holder("");
    let pid = holder.pid.to_string();
    let mut command = stage.command(&["release", "--yes", &pid]);
    let output = crate::support::finish(&mut command).exits(1);
    assert!(output.stdout.contains("no way in: "), "{output:?}");
    assert!(output.stdout.contains("instead: "), "{output:?}");
    assert!(output.stdout.contains(&format!("gpumem explain {pid}")));
    let unknown = release(&stage, &["--yes", "no-such.ipynb"]).exits(1);
    assert_eq!(unknown.json()["refused"][0]["why"]["why"], "no_target");
    assert!(holder.is_alive());
}

/// Root would run a file that another user called `python3.14`.
#[test]
fn a_process_is_never_entered_through_its_interpreter() {
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
    let output = release(&stage, &["--yes", &pid]).exits(1);
    let why = output.json()["refused"][0]["why"]["ways"].as_str().unwrap().to_owned();
    assert!(why.contains("gpumem explain --snippet"), "{output:?}");
    assert!(!trace.exists(), "it was run");
    assert!(holder.is_alive() && stage.lines().is_empty());
}

/// A program that does what it is told: `on` and `off` set and remove the handler, `exec` runs the program
/// anew, `count` says how often the handler ran.
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

fn handler_program() -> Talking {
    let mut command = Command::new("python3");
    command.args(["-u", "-c", HANDLER_PROGRAM]).env("PROGRAM", HANDLER_PROGRAM);
    let mut told = Talking::start(command.env("GPUMEM_RELEASE_SIGNAL", "USR2"));
    assert_eq!(told.line(), "ready");
    told
}

/// As a person asks who names a process.
pub fn options(wait_ms: u64) -> ReleaseOptions {
    ReleaseOptions {
        collects: true,
        references: false,
        is_named: true,
        insists: false,
        wait_ms,
        idle_ms: 2_500,
        pci_bus_ids: Vec::new(),
    }
}

/// In any order a handler comes and goes, signals are ignored and blocked, and the program is executed anew:
/// the process is sent a signal exactly where it handles it, and always lives.
#[test]
fn a_signal_is_sent_only_where_there_is_a_handler_at_that_moment() {
    or_skip!(find("python3", "python3"));
    let roots = Roots::default();
    for seed in 0..6 {
        let mut random = Random::new("announced", seed);
        let mut told = handler_program();
        let pid = told.running.pid();
        let way = ReleaseWay {
            pid,
            start_ticks: read_start_ticks(Path::new("/proc"), pid).unwrap().unwrap(),
            by: ReleaseBy::Signal { signal: Signal::Usr2 },
        };
        let (mut handles, mut blocks, mut count) = (false, false, 0);
        for _ in 0..40 {
            // Between plan and deed anything may happen.
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
            let said = told.ask(word);
            if word == "exec" {
                assert_eq!(said, "ready", "seed {seed}");
            }
            let answer = perform_release(&roots, &way, &options(1000));
            let is_sent = answer.is_ok();
            assert_eq!(is_sent, handles && !blocks, "seed {seed}: {word}: {answer:?}");
            if !is_sent {
                assert!(matches!(answer, Err(NotReleased::Refused(_))), "{answer:?}");
            }
            count += u32::from(is_sent);
            assert_eq!(told.ask("count"), count.to_string(), "seed {seed}: {word}");
        }
        assert!(told.running.0.try_wait().unwrap().is_none());
    }
}
