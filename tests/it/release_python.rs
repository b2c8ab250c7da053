//! Asking a running interpreter: real ones of CPython 3.14, awake, asleep in each way, hostile and of other
//! versions. What they run is a module `torch` whose cache is in the mock driver's scene.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use gpumem::api::host::{Roots, read_start_ticks};
use gpumem::api::reclaim::{
    NotReleased, ReleaseAnswer, ReleaseBy, ReleaseWay, find_release as find,
    perform_release as perform, probe_release as probe,
};
use mock_nvml::scene::{Gpu, Process, Scene};
use rustix::process::Signal;

use crate::machine::{GIB, Machine};
use crate::procs;
use crate::release::options;
use crate::support::{self, wait_until};

mod command;

/// What PyTorch does of it: a cache of 6 GiB beside 2 GiB in use, which NVML sees.
const TORCH: &str = r#"
import json, os, sys
folder = os.path.dirname(__file__)
live, cached = 2 << 30, 6 << 30
released = 0
def _write():
    path = os.environ["GPUMEM_MOCK_SCENE"]
    with open(path) as file:
        scene = json.load(file)
    for gpu in scene["gpus"]:
        for row in gpu.get("processes") or []:
            if row["pid"] == os.getpid():
                row["used_bytes"] = live + cached
    with open(path + ".part", "w") as file:
        json.dump(scene, file)
    os.rename(path + ".part", path)
class cuda:
    is_initialized = staticmethod(lambda: True)
    memory_allocated = staticmethod(lambda: live)
    memory_reserved = staticmethod(lambda: live + cached)
    device_count = staticmethod(lambda: 1)
    @staticmethod
    def memory_stats(_):
        return {
            "allocated_bytes.all.current": cuda.memory_allocated(),
            "reserved_bytes.all.current": cuda.memory_reserved(),
        }
    ipc_collect = staticmethod(lambda: None)
    @staticmethod
    def empty_cache():
        global cached, released
        cached, released = 0, released + 1
        _write()
        # Last: whoever waits for it may send the next signal then.
        with open("released", "a") as file:
            file.write(sys.modules["__main__"].__dict__.get("mark", "x"))
"#;

/// What each program begins with: a module, a variable that must survive, and a signal that wakes it.
const START: &str = r#"
import os, signal, sys, threading, time
sys.path.insert(0, os.getcwd())
import torch
kept = list(range(5))
def ready():
    open("ready", "w").close()
def woken(*_):
    with open("woken", "a") as file:
        file.write("x")
signal.signal(signal.SIGUSR1, woken)
"#;

/// A CPython of this minor version, of Debian's testing release in CI; else one on the search path.
fn python(minor: u32) -> Option<PathBuf> {
    let name = format!("python3.{minor}");
    if let Some(folder) = std::env::var_os("GPUMEM_TEST_PYTHONS") {
        let program = Path::new(&folder).join("usr/bin").join(&name);
        assert!(program.is_file(), "{} is missing", program.display());
        return Some(program);
    }
    support::find(&name, &format!("CPython 3.{minor}"))
}

fn without_capabilities(program: &Path) -> Command {
    if !rustix::process::geteuid().is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args(["--bounding-set=-all", "--inh-caps=-all"]).arg(program);
    command
}

/// An interpreter and its library, copied to a folder that has none.
fn copy_python(to: &Path) -> Option<PathBuf> {
    let program = python(14)?.canonicalize().unwrap();
    let prefix = program.parent().unwrap().parent().unwrap();
    for part in ["bin/python3.14", "lib/python3.14"] {
        let target = to.join(part);
        fs::create_dir_all(target.parent().unwrap()).unwrap();
        let copied = Command::new("cp").arg("-a").arg(prefix.join(part)).arg(&target).status();
        assert!(copied.unwrap().success());
    }
    let owned = Command::new("chown").args(["-R", "0:0"]).arg(to).status();
    assert!(owned.unwrap().success());
    Some(to.join("bin/python3.14"))
}

/// A program that runs in a folder of its own.
struct Program {
    child: std::process::Child,
    machine: Machine,
}

impl Program {
    /// Runs this by CPython 3.14, until it is ready. As root, without root's capabilities, as in a container that
    /// has none: a program with more rights than its interpreter in a child cannot be asked.
    fn start(source: &str) -> Option<Self> {
        Self::start_by(without_capabilities(&python(14)?), source)
    }

    fn start_by(command: Command, source: &str) -> Option<Self> {
        Self::start_with(command, source, |_| ())
    }

    fn start_with(
        mut command: Command,
        source: &str,
        prepare: impl FnOnce(&Machine),
    ) -> Option<Self> {
        let machine = Machine::new(&Scene::new());
        fs::write(machine.path("torch.py"), TORCH).unwrap();
        fs::write(machine.path("main.py"), format!("{START}\n{source}")).unwrap();
        let errors = fs::File::create(machine.path("errors")).unwrap();
        machine.environment(&mut command);
        let child = command
            .arg("main.py")
            .current_dir(machine.path(""))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(errors)
            .spawn()
            .unwrap();
        let mut program = Self { child, machine };
        let row = Process::compute(program.pid(), 8 * GIB);
        let gpu = Gpu::new("NVIDIA H100 80GB HBM3").total(80 * GIB);
        let scene = Scene::new().gpu(gpu.process(row));
        program.machine.play(&scene);
        prepare(&program.machine);
        wait_until("the program is ready", || {
            let ended = program.child.try_wait().unwrap();
            assert!(ended.is_none(), "{ended:?}: {}", program.errors());
            program.machine.path("ready").exists()
        });
        Some(program)
    }

    /// Of one who waits for a file `go` before it begins, and is another user.
    fn start_in_open_folder(command: Command, source: &str) -> Option<Self> {
        Self::start_with(command, source, |machine| {
            let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o777);
            fs::set_permissions(machine.path(""), everybody).unwrap();
            fs::write(machine.path("go"), "").unwrap();
        })
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    fn way(&self) -> ReleaseWay {
        way(self.pid())
    }

    fn perform(&self, wait_ms: u64) -> ReleaseAnswer {
        perform(&Roots::default(), &self.way(), &options(wait_ms))
    }

    fn probe(&self) -> ReleaseAnswer {
        probe(&Roots::default(), &self.way(), &options(1000))
    }

    /// How often its cache was emptied.
    fn releases(&self) -> usize {
        let released = fs::read(self.machine.path("released"));
        released.unwrap_or_default().len()
    }

    /// Whether the file of a script that it is asked to run is there.
    fn has_scripts(&self) -> bool {
        let prefix = format!("gpumem-{}-", self.pid());
        let mut entries = fs::read_dir("/tmp").unwrap().filter_map(Result::ok);
        entries.any(|it| it.file_name().as_encoded_bytes().starts_with(prefix.as_bytes()))
    }

    /// Nothing lies about of what it was asked.
    fn assert_nothing_is_left(&self) {
        wait_until("the files of scripts are gone", || !self.has_scripts());
    }

    fn errors(&self) -> String {
        fs::read_to_string(self.machine.path("errors")).unwrap()
    }

    /// Has its main thread run a signal's handler, and waits until it has.
    fn wake(&self) {
        let times = || fs::read(self.machine.path("woken")).unwrap_or_default().len();
        let before = times();
        procs::send(self.pid(), Signal::USR1);
        wait_until("it has woken", || times() > before);
    }

    /// What the driver says that it holds, in GiB.
    fn held_gib(&self) -> u64 {
        let snapshot = self.machine.snapshot(0);
        snapshot.row(0, self.pid())["used_bytes"].as_u64().unwrap() / GIB
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The words of an answer that is neither done nor of another kind.
fn way(pid: u32) -> ReleaseWay {
    let start_ticks = read_start_ticks(&Roots::default().proc, pid);
    ReleaseWay { pid, start_ticks: start_ticks.ok().flatten().unwrap(), by: ReleaseBy::Python }
}

fn refused(answer: ReleaseAnswer) -> String {
    match answer {
        Err(NotReleased::Refused(why)) => why,
        answer => panic!("{answer:?}"),
    }
}

fn no_way_in(answer: ReleaseAnswer) -> String {
    match answer {
        Err(NotReleased::NoWayIn(why)) => why,
        answer => panic!("{answer:?}"),
    }
}

const LOOP: &str = r"
import asyncio
async def main():
    ready()
    while True:
        await asyncio.sleep(0.02)
asyncio.run(main())
";

#[test]
fn a_server_s_loop_gives_its_cache_back_and_goes_on() {
    let program = or_skip!(Program::start(LOOP));
    assert_eq!(program.held_gib(), 8);
    assert!(program.probe().is_ok());
    assert_eq!((program.held_gib(), program.releases()), (8, 0));
    let Ok(report) = program.perform(20_000) else {
        panic!("{}", program.errors());
    };
    assert_eq!(report.live_bytes, Some(2 * GIB));
    assert_eq!(report.cached_bytes_left, Some(0));
    assert_eq!((program.held_gib(), program.releases()), (2, 1));
    // Again, and it lives on as if nothing had been.
    assert!(program.perform(20_000).is_ok());
    assert_eq!(program.releases(), 2);
    program.wake();
    assert_eq!(program.errors(), "");
    program.assert_nothing_is_left();
}

#[test]
fn what_is_found_in_a_snapshot_is_the_program_that_is_entered() {
    let program = or_skip!(Program::start(LOOP));
    let snapshot = program.machine.run(&["ps", "--json"]);
    let snapshot: gpumem::api::model::Snapshot = serde_json::from_str(&snapshot.stdout).unwrap();
    let process = snapshot.processes.iter().find(|it| it.pid == program.pid());
    let found = find(process.unwrap(), &snapshot);
    assert_eq!(found, Ok(program.way()));
}

/// Ways to sleep, and what is awake in each.
const ASLEEP: &[(&str, &str)] = &[
    (
        "asyncio",
        "import asyncio\nasync def main():\n    ready()\n    while True:\n        await asyncio.sleep(600)\nasyncio.run(main())",
    ),
    ("sleep", "ready()\nwhile True:\n    time.sleep(600)"),
    ("lock", "lock = threading.Lock()\nlock.acquire()\nready()\nlock.acquire()"),
    ("stdin", "ready()\nsys.stdin.read()"),
    ("epoll", "import select\npoll = select.epoll()\nready()\nwhile True:\n    poll.poll(600)"),
];

#[test]
fn who_sleeps_is_left_and_runs_nothing_later() {
    let is_left = |name: &str, source: &str| {
        let program = or_skip!(Program::start(source));
        let began = Instant::now();
        let answer = program.perform(2000);
        assert!(matches!(answer, Err(NotReleased::TimedOut(_))), "{name}: {answer:?}");
        assert!(began.elapsed() < Duration::from_secs(60), "{name}");
        // Whatever wakes it then does not run what was taken back.
        program.wake();
        program.wake();
        assert_eq!(program.releases(), 0, "{name}");
        assert_eq!(program.errors(), "", "{name}");
        // While it is asked, the same would have: the request was there.
        let waker = thread::scope(|scope| {
            let asked = scope.spawn(|| program.perform(20_000));
            while !asked.is_finished() {
                program.wake();
                thread::sleep(Duration::from_millis(50));
            }
            asked.join().unwrap()
        });
        assert!(waker.is_ok(), "{name}: {waker:?}");
        assert_eq!((program.releases(), program.held_gib()), (1, 2), "{name}");
        assert_eq!(program.errors(), "", "{name}");
        program.assert_nothing_is_left();
    };
    thread::scope(|scope| {
        for (name, source) in ASLEEP {
            scope.spawn(|| is_left(name, source));
        }
    });
}

#[test]
fn who_computes_is_asked_between_two_bytecodes() {
    let busy = or_skip!(Program::start("ready()\nwhile True:\n    pass"));
    assert!(busy.perform(20_000).is_ok());
    assert_eq!((busy.releases(), busy.held_gib()), (1, 2));
    busy.assert_nothing_is_left();
}

#[test]
fn another_version_or_no_python_is_refused_in_words() {
    let plain = "ready()\ntime.sleep(600)";
    if let Some(younger) = python(15) {
        let program = Program::start_by(without_capabilities(&younger), plain).unwrap();
        let why = no_way_in(program.perform(1000));
        assert!(why.contains("no python3.14"), "{why}");
        assert_eq!(no_way_in(program.probe()), why);
    }
    let older = or_skip!(support::find("python3", "python3"));
    let program = Program::start_by(Command::new(older), plain).unwrap();
    let version = Command::new("python3").arg("--version").output().unwrap();
    if !version.stdout.starts_with(b"Python 3.14") {
        let why = no_way_in(program.perform(1000));
        assert!(why.contains("no python3.14"), "{why}");
    }
    let other = crate::machine::Running::sleep();
    let way = way(other.pid());
    let roots = Roots::default();
    let why = no_way_in(perform(&roots, &way, &options(1000)));
    assert!(why.contains("no python3.14"), "{why}");
    let another = ReleaseWay { start_ticks: way.start_ticks + 1, ..way };
    let why = no_way_in(perform(&roots, &another, &options(1000)));
    assert!(why.contains("another process"), "{why}");
}

#[test]
fn who_is_stopped_is_not_asked_before_it_runs() {
    let program = or_skip!(Program::start(LOOP));
    procs::send(program.pid(), Signal::STOP);
    wait_until("it is stopped", || procs::state(program.pid()) == Some('T'));
    let answer = program.perform(20_000);
    assert!(matches!(answer, Err(NotReleased::Busy(_))), "{answer:?}");
    procs::send(program.pid(), Signal::CONT);
    wait_until("it runs", || procs::state(program.pid()) != Some('T'));
    assert_eq!(program.releases(), 0);
    assert!(program.perform(20_000).is_ok());
    assert_eq!((program.releases(), program.held_gib()), (1, 2));
}

#[test]
fn who_has_said_no_is_left() {
    let interpreter = or_skip!(python(14));
    let mut command = without_capabilities(&interpreter);
    command.env("PYTHON_DISABLE_REMOTE_DEBUG", "1");
    let program = Program::start_by(command, LOOP).unwrap();
    let why = refused(program.perform(1000));
    assert!(why.contains("Remote debugging is not enabled"), "{why}");
    let veto = r#"
def veto(event, arguments):
    if event == "cpython.remote_debugger_script":
        raise RuntimeError("no")
sys.addaudithook(veto)
"#;
    let program = Program::start(&format!("{veto}\n{LOOP}")).unwrap();
    let answer = program.perform(1000);
    assert!(
        matches!(&answer, Err(NotReleased::TimedOut(why)) if why.contains("audit hook")),
        "{answer:?}"
    );
    assert_eq!(program.releases(), 0);
}

#[test]
fn who_ends_or_becomes_another_program_in_the_middle_is_let_go() {
    for (name, call) in
        [("ends", "os._exit(3)"), ("executes", "os.execv('/bin/sleep', ['sleep', '600'])")]
    {
        // While the recipe runs.
        let begun = format!("def leave(*_):\n    {call}\ntorch.cuda.empty_cache = leave\n{LOOP}");
        let program = or_skip!(Program::start(&begun));
        let why = no_way_in(program.perform(20_000));
        assert!(why.starts_with("it has exited"), "{name}: {why}");
        // Before it has begun: a signal's handler comes before it.
        let asleep = format!(
            "def leave(*_):\n    {call}\nsignal.signal(signal.SIGUSR1, leave)\nready()\nwhile True:\n    time.sleep(600)"
        );
        let program = Program::start(&asleep).unwrap();
        let answer = thread::scope(|scope| {
            let asked = scope.spawn(|| program.perform(20_000));
            wait_until("it is being asked", || program.has_scripts());
            thread::sleep(Duration::from_millis(500));
            procs::send(program.pid(), Signal::USR1);
            asked.join().unwrap()
        });
        let why = no_way_in(answer);
        assert!(why.starts_with("it has exited"), "{name}: {why}");
        program.assert_nothing_is_left();
        assert_eq!(program.releases(), 0, "{name}");
        assert_eq!(program.errors(), "", "{name}");
    }
}

#[test]
fn an_answer_that_no_recipe_writes_is_refused() {
    // What it answers is nothing that a recipe writes, or has no end.
    for answer in ["'x' * (1 << 24)", "1 << 70", "object()", "sys.exit()"] {
        let source = format!("torch.cuda.memory_allocated = lambda: {answer}\n{LOOP}");
        let program = or_skip!(Program::start(&source));
        let answer = program.perform(20_000);
        let is_known = match &answer {
            Err(NotReleased::Refused(_)) | Err(NotReleased::TimedOut(_)) => false,
            Ok(report) => report.live_bytes.is_some(),
            _ => true,
        };
        assert!(!is_known, "{source}: {answer:?}");
        program.wake();
        program.assert_nothing_is_left();
    }
}

/// Python in namespaces of its own, behind `sh` with a script that ends with `exec "$@"`; `None`, after a printed
/// reason, where that may not be made.
fn in_namespaces(namespaces: &str, script: &str) -> Option<Command> {
    let unshare = support::find("unshare", "util-linux")?;
    let mut command = Command::new(unshare);
    command.args([namespaces, "sh", "-c", script, "sh"]);
    let tried = Command::new("unshare").args([namespaces, "true"]).output();
    if !tried.is_ok_and(|output| output.status.success()) {
        support::skip("namespaces of one's own", "run as root");
        return None;
    }
    command.args(["setpriv", "--bounding-set=-all", "--inh-caps=-all"]).arg(python(14)?);
    Some(command)
}

#[test]
fn the_script_lies_where_the_process_sees_it_and_nobody_else_may_write() {
    let tmp = "mount -t tmpfs -o mode=1777 own /tmp && ";
    let unsafe_tmp = "mount -t tmpfs -o mode=0777 own /tmp && ";
    let linked = "mount -t tmpfs -o mode=0755 own /tmp && mount -t tmpfs -o mode=0755 own /var && ln -s /tmp /var/tmp && chown 65534 /tmp && ";
    for (name, script) in
        [("its own", tmp), ("others may write there", unsafe_tmp), ("links", linked)]
    {
        // The test's own folder is in /tmp.
        let keep = format!(
            "mkdir -p /run/kept && mount --bind \"$PWD\" /run/kept && {script} cd /run/kept && exec \"$@\""
        );
        let command = or_skip!(in_namespaces("-m", &keep));
        let listing = "def places():\n    return sorted(p for d in ('/tmp', '/var/tmp', '/dev/shm') for p in os.listdir(d) if p.startswith('gpumem-'))\nreal = torch.cuda.empty_cache\ndef empty():\n    open('places', 'w').write(str([d for d in ('/tmp', '/var/tmp', '/dev/shm') if any(p.startswith('gpumem-') for p in os.listdir(d))]))\ntorch.cuda.empty_cache = empty";
        let program = Program::start_by(command, &format!("{listing}\n{LOOP}")).unwrap();
        let answer = program.perform(20_000);
        assert!(answer.is_ok(), "{name}: {answer:?} {}", program.errors());
        let places = fs::read_to_string(program.machine.path("places")).unwrap();
        let expected = match name {
            "its own" => "'/tmp'",
            "others may write there" => "'/var/tmp'",
            _ => "'/dev/shm'",
        };
        assert!(places.contains(expected), "{name}: {places}");
    }
}

#[test]
fn threads_are_known_by_their_numbers_in_their_own_namespace() {
    let command = or_skip!(in_namespaces("-pf", "exec \"$@\""));
    let program = Program::start_by(command, LOOP).unwrap();
    // The one that was started waits for it.
    let path = format!("/proc/{0}/task/{0}/children", program.pid());
    let pid: u32 = fs::read_to_string(path).unwrap().trim().parse().unwrap();
    let answer = perform(&Roots::default(), &way(pid), &options(20_000));
    procs::send(pid, Signal::KILL);
    assert!(answer.is_ok(), "{answer:?}");
    assert_eq!(program.releases(), 1);
}

#[test]
fn one_with_a_second_interpreter_is_refused_by_its_own() {
    let source = format!("import _interpreters\nother = _interpreters.create()\n{LOOP}");
    let program = or_skip!(Program::start(&source));
    let why = refused(program.perform(20_000));
    assert!(why.contains("main thread"), "{why}");
    assert_eq!(program.releases(), 0);
    program.assert_nothing_is_left();
}

#[test]
fn an_interrupt_in_the_middle_is_the_program_s() {
    or_skip!(support::interrupts("a program that is interrupted"));
    let source = r#"
def slow():
    open("slow", "w").close()
    time.sleep(1)
torch.cuda.empty_cache = slow
ready()
try:
    while True:
        time.sleep(0.02)
except KeyboardInterrupt:
    open("interrupted", "w").close()
time.sleep(600)
"#;
    let program = or_skip!(Program::start(source));
    thread::scope(|scope| {
        scope.spawn(|| program.perform(20_000));
        wait_until("the recipe runs", || program.machine.path("slow").exists());
        procs::send(program.pid(), Signal::INT);
    });
    wait_until("it is interrupted", || program.machine.path("interrupted").exists());
    assert_eq!(program.errors(), "");
}

#[test]
fn another_user_s_process_is_entered_with_that_user_s_rights_over_files() {
    or_skip!(support::root("a process of another user"));
    let interpreter = or_skip!(python(14));
    let setpriv = support::find("setpriv", "util-linux").unwrap();
    let mut command = Command::new(setpriv);
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
    command.args(["sh", "-c", "until [ -e go ]; do sleep 0.02; done; exec \"$@\"", "sh"]);
    command.arg(interpreter);
    // What it writes lies in a folder of root's, that others may enter and write to.
    let source = format!(
        "real = torch.cuda.empty_cache\ndef empty():\n    import glob\n    open('owner', 'w').write(str({{(os.stat(p).st_uid, oct(os.stat(p).st_mode & 0o777)) for d in glob.glob('/tmp/gpumem-*/release.py') if os.access(d, os.R_OK) for p in [d, os.path.dirname(d)]}}))\n    real()\ntorch.cuda.empty_cache = empty\n{LOOP}"
    );
    let program = or_skip!(Program::start_in_open_folder(command, &source));
    let answer = program.perform(20_000);
    assert!(answer.is_ok(), "{answer:?} {}", program.errors());
    let owner = fs::read_to_string(program.machine.path("owner")).unwrap();
    assert!(owner.contains("(65534, '0o700')") && owner.contains("(65534, '0o600')"), "{owner}");
    assert!(!owner.contains("(0, "), "{owner}");
    program.assert_nothing_is_left();
}

/// Whether it can be asked where Yama's `ptrace_scope` is this.
fn probe_under(program: &Program, scope: &str) -> ReleaseAnswer {
    let proc = tempfile::tempdir().unwrap();
    let pid = program.pid().to_string();
    std::os::unix::fs::symlink(Path::new("/proc").join(&pid), proc.path().join(&pid)).unwrap();
    fs::create_dir_all(proc.path().join("sys/kernel/yama")).unwrap();
    fs::write(proc.path().join("sys/kernel/yama/ptrace_scope"), scope).unwrap();
    let roots = Roots { proc: proc.path().to_owned(), ..Roots::default() };
    probe(&roots, &program.way(), &options(1000))
}

#[test]
fn root_runs_what_only_root_can_change_and_else_the_user_does() {
    or_skip!(support::root("an interpreter of root's"));
    let (safe, shared) = (tempfile::tempdir_in("/var/lib").unwrap(), tempfile::tempdir().unwrap());
    for folder in [&safe, &shared] {
        let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(folder.path(), everybody).unwrap();
    }
    let (Some(roots), Some(users)) = (copy_python(safe.path()), copy_python(shared.path())) else {
        return;
    };
    // With all of root's rights, and of another user: tracing is permitted to root's interpreter alone.
    let as_root = Program::start_by(Command::new(&roots), LOOP).unwrap();
    assert!(as_root.perform(20_000).is_ok());
    assert!(probe_under(&as_root, "1\n").is_ok());
    assert!(refused(probe_under(&as_root, "3\n")).contains("ptrace_scope is 3: no program"));
    let as_root = Program::start_by(Command::new(&users), LOOP).unwrap();
    assert!(refused(as_root.perform(20_000)).contains("not permitted"));
    let as_user = || {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
        command.args(["sh", "-c", "until [ -e go ]; do sleep 0.02; done; exec \"$@\"", "sh"]);
        command
    };
    for (interpreter, is_roots) in [(&roots, true), (&users, false)] {
        let mut command = as_user();
        command.arg(interpreter);
        let program = Program::start_in_open_folder(command, LOOP).unwrap();
        assert!(probe_under(&program, "0\n").is_ok());
        match (probe_under(&program, "1\n"), is_roots) {
            (Ok(_), true) => {}
            (Err(NotReleased::Refused(why)), false) => {
                assert!(why.contains("ptrace_scope is 1: only root"), "{why}");
            }
            (answer, _) => panic!("{answer:?}"),
        }
        let answer = program.perform(20_000);
        assert!(answer.is_ok(), "{answer:?} {}", program.errors());
        assert_eq!((program.releases(), program.errors()), (1, String::new()));
    }
    // One that its user may replace is not run by root, whoever has put it there.
    let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    fs::set_permissions(safe.path().join("lib/python3.14"), everybody).unwrap();
    let mut command = as_user();
    command.arg(&roots);
    let program = Program::start_in_open_folder(command, LOOP).unwrap();
    assert!(refused(probe_under(&program, "1\n")).contains("ptrace_scope is 1: only root"));
}

/// A program of this name that waits as a target, and as an interpreter writes down what rights it has and then does
/// what the file `does` says.
const IMPOSTOR: &str = r#"
#include <dirent.h>
#include <libgen.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
extern char **environ;
int main(int argc, char **argv) {
    char path[4096] = {0}, line[4096], does = 0;
    if (argc < 2 || strcmp(argv[1], "-I")) for (;;) pause();
    readlink("/proc/self/exe", path, sizeof path - 1);
    chdir(dirname(path));
    FILE *from = fopen("/proc/self/status", "r"), *to = fopen("rights", "w");
    while (fgets(line, sizeof line, from)) fputs(line, to);
    fclose(from);
    for (int fd = 3; fd < 1024; fd++)
        if (fd != fileno(to) && !dup2(fd, fd)) fprintf(to, "open %d\n", fd);
    for (char **it = environ; it && *it; it++) fprintf(to, "env %s\n", *it);
    fclose(to);
    from = fopen("does", "r");
    does = fgetc(from);
    for (int number = 1; number < 32; number++) signal(number, SIG_IGN);
    if (does == 'f') for (;;) if (write(1, line, sizeof line) < 0) return 1;
    if (does == 'a') return puts("answered {\"out\": {\"late\": false, \"live_bytes\": 7, \"references\": []}}");
    if (does == 'k' && fork()) return 0;
    if (does == 'k') return sleep(12);
    if (does == 'x') return 3;
    for (;;) pause();
}
"#;

#[test]
fn an_impostor_has_no_right_and_holds_nobody_up() {
    or_skip!(support::root("an interpreter of another user"));
    let compiler = or_skip!(support::find("cc", "gcc"));
    let folder = tempfile::tempdir().unwrap();
    let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    fs::set_permissions(folder.path(), everybody).unwrap();
    let bin = folder.path().join("bin");
    fs::create_dir(&bin).unwrap();
    fs::write(folder.path().join("impostor.c"), IMPOSTOR).unwrap();
    let program = bin.join("python3.14");
    let source = folder.path().join("impostor.c");
    let built = Command::new(compiler).arg(source).arg("-o").arg(&program).status();
    assert!(built.unwrap().success());
    let owned = Command::new("chown").args(["-R", "65534:65534"]).arg(folder.path()).status();
    assert!(owned.unwrap().success());
    let mut target = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(&program)
        .spawn()
        .unwrap();
    let exe = format!("/proc/{}/exe", target.id());
    wait_until("it runs", || fs::read_link(&exe).is_ok_and(|path| path == program));
    let way = way(target.id());
    let perform = || {
        let began = Instant::now();
        let answer = perform(&Roots::default(), &way, &options(1000));
        assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
        answer
    };
    for does in ["hangs", "floods", "keeps the pipe", "x"] {
        fs::write(bin.join("does"), does).unwrap();
        let why = no_way_in(perform());
        assert!(why.contains("did not answer"), "{does}: {why}");
        let rights = fs::read_to_string(bin.join("rights")).unwrap();
        let has = |line: &str| rights.lines().any(|it| it == line);
        for name in ["CapPrm", "CapEff", "CapBnd", "CapAmb"] {
            assert!(has(&format!("{name}:\t0000000000000000")), "{rights}");
        }
        for line in ["Uid:\t65534\t65534\t65534\t65534", "Gid:\t65534\t65534\t65534\t65534"] {
            assert!(has(line), "{rights}");
        }
        assert!(has("NoNewPrivs:\t1") && has("Groups:\t "), "{rights}");
        assert!(!rights.contains("open ") && !rights.contains("env "), "{rights}");
        fs::remove_file(bin.join("rights")).unwrap();
    }
    // What it claims is its user's word, and NVML's is what counts.
    fs::write(bin.join("does"), "answers").unwrap();
    assert!(perform().is_ok());
    // A file system that answers nothing, mounted over the program since.
    let mounts = "exec 3<>/dev/fuse && mount -i -t fuse -o fd=3,rootmode=40000,user_id=65534,group_id=65534,allow_other hangs \"$1\" && echo && read -r _";
    let mut server = Command::new("sh")
        .args(["-c", mounts, "sh"])
        .arg(&bin)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut mounted = [0];
    let is_mounted = std::io::Read::read(server.stdout.as_mut().unwrap(), &mut mounted);
    if is_mounted.unwrap() == 1 {
        let why = no_way_in(perform());
        assert!(why.contains("did not answer"), "{why}");
    } else {
        support::skip("a file system that hangs", "load the kernel module fuse");
    }
    // With its server's end every request fails.
    server.kill().unwrap();
    server.wait().unwrap();
    let _ = Command::new("umount").args(["-l"]).arg(&bin).status();
    target.kill().unwrap();
    target.wait().unwrap();
}

/// What `gpumem explain --snippet` prints.
fn snippet() -> String {
    let output = support::run(&["explain", "--snippet"]);
    assert_eq!((output.code, &*output.stderr), (0, ""));
    output.stdout
}

/// A program with the handler pasted in, of the system's Python.
fn cooperating(signal: &str, source: &str) -> Option<Program> {
    let mut command = Command::new(support::find("python3", "python3")?);
    command.env("GPUMEM_RELEASE_SIGNAL", signal);
    let pasted = snippet();
    Program::start_by(command, &format!("{pasted}\n{source}"))
}

/// The bit of a signal in `SigCgt`.
fn handles(program: &Program, signal: Signal) -> bool {
    let status = fs::read_to_string(format!("/proc/{}/status", program.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("SigCgt:\t"));
    let bits = u64::from_str_radix(line.unwrap(), 16).unwrap();
    bits & (1 << (signal.as_raw() - 1)) != 0
}

#[test]
fn the_handler_that_is_pasted_gives_back_between_steps_and_while_idle() {
    // Never within a step; what is written then would be an "s".
    let steps = "mark = 'x'\nready()\nwhile True:\n    mark = 's'\n    time.sleep(0.05)\n    mark = 'x'\n    release_gpu_memory_if_asked()";
    let waits = "ready()\nwith gpu_is_idle():\n    while True:\n        time.sleep(600)";
    let asked_before = "os.kill(os.getpid(), signal.SIGUSR2)\nassert torch.released == 0\nready()\nwith gpu_is_idle():\n    time.sleep(600)";
    let serves = "import asyncio\nasync def main():\n    loop = asyncio.get_running_loop()\n    loop.add_signal_handler(signal.SIGUSR2, release_gpu_memory)\n    ready()\n    await asyncio.sleep(600)\nasyncio.run(main())";
    for (name, source) in [("steps", steps), ("waits", waits), ("serves", serves)] {
        let program = or_skip!(cooperating("USR2", source));
        assert!(handles(&program, Signal::USR2), "{name}");
        for times in 1..=3 {
            procs::send(program.pid(), Signal::USR2);
            wait_until("it is released", || program.releases() == times);
        }
        let marks = fs::read_to_string(program.machine.path("released")).unwrap();
        assert_eq!(marks, "xxx", "{name}");
        assert_eq!(program.held_gib(), 2, "{name}");
        assert_eq!(program.errors(), "", "{name}");
    }
    let program = cooperating("SIGUSR2", asked_before).unwrap();
    wait_until("it is released once idle", || program.releases() == 1);
    // Without the variable nothing is handled, and with another's neither.
    for signal in ["", "KILL", "TERM", "__x__", "2"] {
        let program = cooperating(signal, waits).unwrap();
        assert!(!handles(&program, Signal::USR2) && !handles(&program, Signal::TERM));
        assert_eq!(program.errors(), "", "{signal}");
    }
}

/// A pool as TensorFlow's: with the first use of a GPU it takes what is needed, and it keeps that until its process
/// ends, whatever is closed. What the driver then no longer lists, a child of it takes off the scene.
const TENSORFLOW: &str = r#"
import fcntl, json, os
def _rows(change):
    path = os.environ["GPUMEM_MOCK_SCENE"]
    with open("lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with open(path) as file:
            scene = json.load(file)
        rows = scene["gpus"][0].setdefault("processes", [])
        scene["gpus"][0]["processes"] = change(rows)
        with open(path + ".part", "w") as file:
            json.dump(scene, file)
        os.rename(path + ".part", path)
class Session:
    def __init__(self, gib):
        pid = os.getpid()
        row = {"pid": pid, "used_bytes": gib << 30}
        _rows(lambda rows: rows + [row])
        alive, end = os.pipe()
        if os.fork() == 0:
            os.close(end)
            os.read(alive, 1)
            _rows(lambda rows: [row for row in rows if row["pid"] != pid])
            os._exit(0)
    def close(self):
        pass
"#;

#[test]
fn training_with_a_pool_that_is_never_returned_goes_on_in_another_process() {
    let python = or_skip!(support::find("python3", "python3"));
    // At first a batch too large: its pool is more than the work needs.
    let trains = "def train():
    import tensorflow
    began = os.path.exists('checkpoint')
    step = int(open('checkpoint').read()) if began else 0
    session = tensorflow.Session(3 if began else 9)
    open('began', 'a').write('%d %d\\n' % (os.getpid(), step))
    session.close()
    while not os.path.exists('enough'):
        step += 1
        time.sleep(0.01)
        if asked_to_save():
            open('checkpoint', 'w').write(str(step))
            return False
    return True
if __name__ == '__main__':
    open('ready', 'w').close()
    train_in_children(train)
    open('done', 'w').close()";
    let printed = support::run(&["explain", "--framework", "tensorflow", "--snippet"]).exits(0);
    let mut command = Command::new(python);
    command.env("GPUMEM_RELEASE_SIGNAL", "USR2");
    let source = format!("{}\n{trains}", printed.stdout);
    let prepare = |machine: &Machine| {
        fs::write(machine.path("tensorflow.py"), TENSORFLOW).unwrap();
        let gpu = Gpu::new("NVIDIA H100 80GB HBM3").total(80 * GIB);
        machine.play(&Scene::new().gpu(gpu));
    };
    let mut program = Program::start_with(command, &source, prepare).unwrap();
    let began = || -> Vec<(u32, u64)> {
        let text = fs::read_to_string(program.machine.path("began")).unwrap_or_default();
        let lines = text.lines().map(|line| line.split_once(' ').unwrap());
        lines.map(|(pid, step)| (pid.parse().unwrap(), step.parse().unwrap())).collect()
    };
    wait_until("a child trains", || began().len() == 1);
    let first = began()[0].0;
    let released = program.machine.run(&["release", &first.to_string(), "--yes"]);
    let said = &released.exits(0).stdout;
    assert!(said.contains("GiB in ") && !said.contains("nothing"), "{said}");
    wait_until("another goes on", || began().len() == 2);
    let (second, step) = began()[1];
    assert!(second != first && step > 0, "{:?}", began());
    fs::write(program.machine.path("enough"), "").unwrap();
    wait_until("it is done", || program.machine.path("done").exists());
    assert!(program.child.wait().unwrap().success());
    assert_eq!(program.errors(), "");
}

#[test]
fn the_handlers_for_pools_of_the_driver_trim_them() {
    let compiler = or_skip!(support::find("cc", "gcc"));
    // Of two GPUs the program has a context on the second.
    let driver = r#"
#include <stdio.h>
int cuDeviceGetCount(int *count) { *count = 2; return 0; }
int cuDeviceGet(int *device, int index) { *device = index; return 0; }
int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) { *flags = 0; *active = device == 1; return 0; }
int cuDeviceGetDefaultMemPool(void **pool, int device) { *pool = (void *)(0x1000000000l + device); return 0; }
int cuDeviceGetMemPool(void **pool, int device) { *pool = (void *)(0x2000000000l + device); return 0; }
int cuMemPoolTrimTo(void *pool, unsigned long keep) {
    FILE *file = fopen("trimmed", "a");
    fprintf(file, "%p %lu\n", pool, keep);
    return fclose(file);
}
"#;
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("driver.c");
    fs::write(&source, driver).unwrap();
    let library = folder.path().join("libcuda.so.1");
    let built = Command::new(compiler)
        .args(["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o"])
        .args([&library, &source])
        .status();
    assert!(built.unwrap().success());
    let modules = "import types\nsys.modules['jax'] = types.SimpleNamespace(clear_caches=lambda: open('cleared', 'w').close())\nsys.modules['tensorflow'] = types.SimpleNamespace()\n";
    let main = "ready()\nwith gpu_is_idle():\n    while True:\n        time.sleep(600)";
    let python = or_skip!(support::find("python3", "python3"));
    for is_loaded in [true, false] {
        let mut command = Command::new(&python);
        command.env("GPUMEM_RELEASE_SIGNAL", "HUP");
        if is_loaded {
            command.env("LD_PRELOAD", &library);
        }
        let source = format!("{}\n{modules}{main}", snippet());
        let program = Program::start_by(command, &source).unwrap();
        let done = |name: &str| program.machine.path(name).exists();
        procs::send(program.pid(), Signal::HUP);
        if is_loaded {
            let trimmed = || fs::read_to_string(program.machine.path("trimmed"));
            let both = "0x1000000001 0\n0x2000000001 0\n";
            wait_until("pools are trimmed", || trimmed().is_ok_and(|text| text == both));
        } else {
            wait_until("its programs are dropped", || done("cleared"));
            assert!(!done("trimmed"));
        }
        assert!(done("cleared"));
        assert_eq!(program.errors(), "");
    }
}
