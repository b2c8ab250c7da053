//! Real servers, workers and parents whose children work: who is left alone, and who is not.

use std::fs;
use std::net::TcpStream;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use crate::machine::{Machine, Running, one_gpu};
use crate::procs::{command_line, descendants, lives, send};
use crate::support::{self, free_port as port, wait_until};

/// Rules that are decided within a test.
const QUICK: &str = "[rules.idle]\nduration = \"3s\"\n[rules.server-idle]\nduration = \"3s\"\n";

/// The same, where a hundredth of a core is work: a busy machine gives one that burns no more at times.
const STRICT: &str = "[rules.idle]\nduration = \"3s\"\nmax_cpu_percent = 1\n";

/// A folder with scripts, and the Python that runs them.
struct ServerScripts {
    folder: tempfile::TempDir,
    python: PathBuf,
}

impl ServerScripts {
    /// `None`, after a printed reason, where Python cannot import these modules.
    fn new(modules: &[&str]) -> Option<Self> {
        let python = support::python_with(modules)?;
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in SCRIPTS {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        Some(Self { folder, python })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Starts Python with these arguments, in a process group of its own as a shell does. Scripts find
    /// their port in PORT and say that they are ready in the file READY.
    fn start(&self, arguments: &[&str], port: u16) -> Program {
        let ready = self.path(&format!("ready-{port}"));
        let mut command = Command::new(&self.python);
        command
            .args(arguments)
            .current_dir(self.folder.path())
            .env("HOME", self.folder.path())
            .env("PORT", port.to_string())
            .env("READY", &ready)
            .env("GRADIO_ANALYTICS_ENABLED", "False")
            .process_group(0);
        Program { running: Running::start(&mut command), port, ready }
    }
}

/// A program that runs in a process group of its own, which is killed at the end.
struct Program {
    running: Running,
    port: u16,
    ready: PathBuf,
}

impl Program {
    fn pid(&self) -> u32 {
        self.running.pid()
    }

    fn listens(self) -> Self {
        let address = ("127.0.0.1", self.port);
        wait_until("it listens", || TcpStream::connect(address).is_ok());
        self
    }

    fn when_ready(self) -> Self {
        wait_until("it is ready", || self.ready.exists());
        self
    }

    /// Its first descendant whose command line has this.
    fn below(&self, part: &str) -> u32 {
        let mut found = None;
        wait_until(part, || {
            found =
                descendants(self.pid()).into_iter().find(|&pid| command_line(pid).contains(part));
            found.is_some()
        });
        found.unwrap()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        for pid in descendants(self.pid()) {
            send(pid, rustix::process::Signal::KILL);
        }
    }
}

const SCRIPTS: &[(&str, &str)] = &[
    (
        "app.py",
        "import os
async def app(scope, receive, send):
    if scope['type'] == 'http':
        await send({'type': 'http.response.start', 'status': 200, 'headers': []})
        await send({'type': 'http.response.body', 'body': b'x'})
def wsgi(environ, start):
    start('200 OK', [])
    return [b'x']
if __name__ == '__main__':
    import uvicorn
    uvicorn.run(app, port=int(os.environ['PORT']))
",
    ),
    (
        "demo.py",
        "import os, gradio
gradio.Interface(lambda x: x, 'text', 'text').launch(server_port=int(os.environ['PORT']))
",
    ),
    (
        "answers.py",
        "import os, http.server as h
h.HTTPServer(('127.0.0.1', int(os.environ['PORT'])), h.BaseHTTPRequestHandler).serve_forever()
",
    ),
    (
        "front.py",
        "import os, subprocess, sys, http.server as h
server = h.HTTPServer(('127.0.0.1', int(os.environ['PORT'])), h.BaseHTTPRequestHandler)
child = subprocess.Popen([sys.executable, 'engine.py'])
server.serve_forever()
",
    ),
    (
        "parent.py",
        "import subprocess, sys
subprocess.run([sys.executable, 'answers.py'])
",
    ),
    (
        // Listens as TorchServe's does (ts/model_service_worker.py).
        "model_service_worker.py",
        "import os, socket, sys, time
name = sys.argv[sys.argv.index('--sock-name') + 1]
s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
s.bind(name)
s.listen(1)
open(os.environ['READY'], 'w')
time.sleep(600)
",
    ),
    ("huggingfaceserver/__main__.py", LISTENS),
    ("wyoming_faster_whisper/__main__.py", LISTENS),
    ("engine.py", WAITS),
    ("train.py", WAITS),
    ("reserve.py", WAITS),
    (
        "ranks.py",
        "import os, socket, time
at = lambda port: socket.create_server(('127.0.0.1', port))
held = [at(int(os.environ['MASTER_PORT'])), at(0)]
open(os.environ['READY'], 'w')
time.sleep(600)
",
    ),
    (
        "managed.py",
        "import multiprocessing as m, os, time
if __name__ == '__main__':
    manager = m.Manager()
    open(os.environ['READY'], 'w')
    time.sleep(600)
",
    ),
    (
        "tasks.py",
        "import os, celery
here = os.environ['HOME']
for name in ['in', 'out']:
    os.makedirs(here + '/' + name, exist_ok=True)
app = celery.Celery('tasks', broker='filesystem://')
app.conf.broker_transport_options = {
    'data_folder_in': here + '/in', 'data_folder_out': here + '/in', 'processed_folder': here + '/out'}
",
    ),
    (
        "actor.py",
        "import os, time, ray
ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, object_store_memory=80_000_000,
    _temp_dir=os.environ['HOME'] + '/ray')
@ray.remote
class Holder:
    def here(self):
        return True
@ray.remote
def once():
    return True
holder = Holder.remote()
ray.get([holder.here.remote(), once.remote()])
open(os.environ['READY'], 'w')
time.sleep(600)
",
    ),
];

const WAITS: &str = "import os, time
open(os.environ['READY'] + '-' + __file__.split('/')[-1], 'w')
open(os.environ['READY'], 'w')
time.sleep(600)
";

const LISTENS: &str = "import os, socket, time
s = socket.create_server(('127.0.0.1', int(os.environ['PORT'])))
time.sleep(600)
";

/// What `check` finds of these processes.
fn check(machine: &Machine, rules: &str, window: &str) -> Value {
    machine.configure(rules);
    let arguments = ["check", "--json", "--interval", "500ms", "--window", window];
    let output = machine.run(&arguments);
    assert!(output.code <= 1, "{output:?}");
    output.json()
}

/// The kinds of what is found of a process.
fn kinds(checked: &Value, pid: u32) -> Vec<String> {
    let findings = checked["findings"].as_array().unwrap().iter();
    let of = findings.filter(|finding| finding["process"]["pid"] == pid);
    of.map(|finding| finding["kind"].as_str().unwrap().to_owned()).collect()
}

fn finding(checked: &Value, pid: u32) -> &Value {
    let mut findings = checked["findings"].as_array().unwrap().iter();
    findings
        .find(|finding| finding["process"]["pid"] == pid)
        .unwrap_or_else(|| panic!("nothing of {}: {checked}", command_line(pid)))
}

#[test]
fn a_server_is_exempt_and_a_training_that_listens_is_not() {
    let modules = ["uvicorn", "gunicorn", "gradio", "debugpy"];
    let place = or_skip!(ServerScripts::new(&modules));
    let socket = place.path("ts.sock.9000");
    let socket = socket.to_str().unwrap();
    let start = |arguments: &[&str]| place.start(arguments, port());
    let text = |port: u16| port.to_string();
    let shared = port();
    let workers = place
        .start(&["-m", "uvicorn", "--workers", "2", "--port", &text(shared), "app:app"], shared);
    let pool = port();
    let bound = format!("127.0.0.1:{pool}");
    let gunicorn = place.start(&["-m", "gunicorn", "-b", &bound, "app:wsgi"], pool);
    let gradio = start(&["demo.py"]);
    let front = start(&["front.py"]);
    let parent = start(&["parent.py"]);
    let rank_port = port();
    let mut ranks = Command::new(&place.python);
    let ranks = ranks
        .arg("ranks.py")
        .current_dir(place.folder.path())
        .env("RANK", "0")
        .env("MASTER_PORT", text(rank_port))
        .env("READY", place.path("ready-ranks"));
    let ranks = Program {
        running: Running::start(ranks.process_group(0)),
        port: rank_port,
        ready: place.path("ready-ranks"),
    };
    let debugged = port();
    let debugged =
        place.start(&["-m", "debugpy", "--listen", &text(debugged), "train.py"], debugged);
    let torchserve =
        start(&["model_service_worker.py", "--sock-type", "unix", "--sock-name", socket]);
    let named = ["huggingfaceserver", "wyoming_faster_whisper"];
    let named = named.map(|module| start(&["-m", module]).listens());
    let (script, answers) = (start(&["app.py"]).listens(), start(&["answers.py"]).listens());
    let (workers, gunicorn) = (workers.listens(), gunicorn.listens());
    let (gradio, front, parent) = (gradio.listens(), front.listens(), parent.listens());
    let torchserve = torchserve.when_ready();
    let (ranks, debugged) = (ranks.when_ready(), debugged.when_ready());
    let (waiting, managed) =
        (start(&["reserve.py"]).when_ready(), start(&["managed.py"]).when_ready());
    let unused = start(&["answers.py"]).listens();
    let with_clients = [&script, &answers, &gradio, &front, &parent].map(|program| program.port);
    let _client = connect(&with_clients);

    let listening = [
        script.pid(),
        answers.pid(),
        gradio.pid(),
        workers.below("spawn_main"),
        gunicorn.below("gunicorn"),
        torchserve.pid(),
        named[0].pid(),
        named[1].pid(),
    ];
    let (engine, above) = (front.below("engine.py"), parent.pid());
    let servers = [&listening[..], &[engine, above]].concat();
    let trainings = [waiting.pid(), ranks.pid(), debugged.pid(), managed.pid(), unused.pid()];
    let machine = Machine::new(&one_gpu(&[&servers[..], &trainings].concat()));

    let snapshot = machine.snapshot(0);
    for pid in listening {
        let shown = snapshot.process(pid);
        assert_eq!(shown["listening"], true, "{shown}");
        assert!(shown["listening_on"].is_array(), "{shown}");
    }
    let relation = |pid| snapshot.process(pid)["listening_relatives"][0]["relation"].clone();
    assert_eq!((relation(engine), relation(above)), ("ancestor".into(), "descendant".into()));

    let checked = check(&machine, QUICK, "8s");
    for &pid in &servers {
        let kinds = kinds(&checked, pid);
        assert!(kinds.iter().all(|kind| kind == "server-idle"), "{} {kinds:?}", command_line(pid));
    }
    for pid in trainings {
        assert_eq!(kinds(&checked, pid), ["idle"], "{} {checked}", command_line(pid));
    }
    let reap = ["reap", "--yes", "--json", "--interval", "500ms", "--window", "5s"];
    let output = machine.act(&reap);
    let planned = &output.json()["targets"];
    for &pid in &servers {
        assert!(lives(pid), "{} {output:?}", command_line(pid));
        assert!(!planned.to_string().contains(&format!("\"pid\":{pid},")), "{planned}");
    }
}

/// Starts a process in another session that stays connected to these ports.
fn connect(ports: &[u16]) -> Running {
    let folder = tempfile::tempdir().unwrap();
    let ready = folder.path().join("ready");
    let code = "import os, socket, sys, time
held = [socket.create_connection(('127.0.0.1', int(port))) for port in sys.argv[2:]]
open(sys.argv[1], 'w')
time.sleep(600)
";
    let mut command = Command::new("setsid");
    command.args(["python3", "-c", code]).arg(&ready);
    command.args(ports.iter().map(u16::to_string));
    let client = Running::start(&mut command);
    wait_until("the client is connected", || ready.exists());
    client
}

/// A shell whose own work is to wait.
fn shell(script: &str) -> Program {
    let mut command = Command::new("sh");
    Program {
        running: Running::start(command.args(["-c", script]).process_group(0)),
        port: 0,
        ready: PathBuf::new(),
    }
}

const BURNS: &str = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done";

#[test]
fn work_in_children_counts_also_of_those_that_have_ended() {
    let burning = shell("sh -c 'while :; do :; done' & wait");
    let grandchild = shell("sh -c 'sh -c \"while :; do :; done\" & wait' & wait");
    let brief = shell(&format!("while :; do sh -c '{BURNS}'; done"));
    let waiting = shell("sleep 600 & wait");
    burning.below("while");
    waiting.below("sleep");
    wait_until("a grandchild", || descendants(grandchild.pid()).len() == 2);
    let at_work = [burning.pid(), grandchild.pid(), brief.pid()];
    let pids = [&at_work[..], &[waiting.pid()]].concat();
    let machine = Machine::new(&one_gpu(&pids));
    let snapshot = machine.snapshot(0);
    let below = |pid| snapshot.process(pid)["descendants"].clone();
    assert_eq!(below(grandchild.pid())["count"], 2);
    let checked = check(&machine, STRICT, "8s");
    for pid in at_work {
        assert_eq!(kinds(&checked, pid), [""; 0], "{} {checked}", command_line(pid));
    }
    assert_eq!(kinds(&checked, waiting.pid()), ["idle"], "{checked}");
}

/// A worker of a pool is said to be idle, with how to end the pool, and is not offered to be ended.
#[track_caller]
fn assert_advised(checked: &Value, pid: u32, words: &str) {
    let found = finding(checked, pid);
    assert_eq!(found["kind"], "idle", "{found}");
    assert_eq!(found["actions"], serde_json::json!(["notify"]), "{found}");
    let advice = found["advice"][0].as_str().unwrap();
    assert!(advice.contains(words), "{advice}");
}

#[test]
fn workers_belong_to_what_starts_them_again() {
    let place = or_skip!(ServerScripts::new(&["celery", "distributed"]));
    let celery = ["-m", "celery", "-A", "tasks", "worker", "--concurrency", "1"];
    let celery = place.start(&celery, port());
    let at = port();
    let text = at.to_string();
    let scheduler = ["-m", "distributed.cli.dask_scheduler", "--port", &text, "--no-dashboard"];
    let scheduler = place.start(&scheduler, at).listens();
    let address = format!("tcp://127.0.0.1:{at}");
    let dask = place.python.parent().unwrap().join("dask");
    let dask = [dask.to_str().unwrap(), "worker", &address, "--no-dashboard", "--nworkers", "1"];
    let dask = place.start(&dask, port());
    let (task, worker) = (celery.below("celery"), dask.below("spawn_main"));
    let machine = Machine::new(&one_gpu(&[celery.pid(), task, worker]));
    // What they do while they start is work.
    let mut checked = Value::Null;
    wait_until("they wait for work", || {
        checked = check(&machine, QUICK, "5s");
        [celery.pid(), task, worker].iter().all(|pid| !kinds(&checked, *pid).is_empty())
    });
    assert_advised(&checked, celery.pid(), "control shutdown");
    assert_advised(&checked, task, &format!("(pid {})", celery.pid()));
    assert_advised(&checked, worker, "client.restart()");
    assert!(lives(scheduler.pid()));
}

#[test]
fn actors_of_ray_belong_to_ray() {
    let place = or_skip!(ServerScripts::new(&["ray"]));
    let driver = place.start(&["actor.py"], port()).when_ready();
    let workers = [driver.below("ray::Holder"), driver.below("ray::IDLE")];
    let machine = Machine::new(&one_gpu(&workers));
    let mut checked = Value::Null;
    wait_until("they wait for work", || {
        checked = check(&machine, QUICK, "5s");
        workers.iter().all(|pid| !kinds(&checked, *pid).is_empty())
    });
    // What ends an actor is not what ends a worker that has none.
    for (worker, words) in workers.into_iter().zip(["ray.kill(ACTOR)", "ray.shutdown()"]) {
        // They listen for each other, on ports that no rule tells from those of Ray's dashboard.
        let found = finding(&checked, worker);
        assert_eq!(found["actions"], serde_json::json!(["notify"]), "{found}");
        assert!(found["advice"].to_string().contains(words), "{found}");
    }
    // A person who names one is told the same, and nothing is sent.
    let pid = workers[0].to_string();
    let output = machine.act(&["kill", "--yes", &pid]).exits(1);
    // Where pids are not the host's, that is said first.
    let words = ["ray.kill(ACTOR)", "pids here are not the host's"];
    let is_printed = words.iter().any(|words| output.stdout.contains(words));
    assert!(is_printed, "{output:?}");
    assert!(lives(workers[0]));
}
