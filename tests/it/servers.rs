//! Real servers, worker pools and parents of working children, and the findings about them.

use std::fs;
use std::net::TcpStream;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use crate::machine::{Machine, Running, one_gpu};
use crate::procs::{command_line, descendants, lives, send};
use crate::support::{self, free_port as port, wait_until};

/// Rules with short durations.
const QUICK: &str = "[rules.idle]\nduration = \"3s\"\n[rules.server-idle]\nduration = \"3s\"\n";

/// A directory with scripts, and the Python interpreter for them.
struct ServerScripts {
    folder: tempfile::TempDir,
    python: PathBuf,
}

impl ServerScripts {
    /// Writes the scripts. If Python cannot import the modules, prints the reason and returns `None`.
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

    /// Starts Python in a new process group, as a shell does. The scripts listen on PORT, and create the file READY.
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

/// A program that leads a process group. Its descendants are killed on drop.
struct Program {
    running: Running,
    port: u16,
    ready: PathBuf,
}

impl Program {
    fn pid(&self) -> u32 {
        self.running.pid()
    }

    fn wait_for_port(self) -> Self {
        let address = ("127.0.0.1", self.port);
        wait_until("the program listens", || TcpStream::connect(address).is_ok());
        self
    }

    fn wait_for_ready(self) -> Self {
        wait_until("the program is ready", || self.ready.exists());
        self
    }

    /// Waits for a descendant whose command line contains `text`.
    fn descendant(&self, text: &str) -> u32 {
        let mut found = None;
        wait_until(text, || {
            found =
                descendants(self.pid()).into_iter().find(|&pid| command_line(pid).contains(text));
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
        // Listens like TorchServe's worker (ts/model_service_worker.py).
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
    (
        "explore.py",
        "import os, socket, time
s = socket.create_server(('127.0.0.1', int(os.environ['PORT'])))
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

fn check(machine: &Machine, rules: &str, window: &str) -> Value {
    machine.configure(rules);
    let arguments = ["check", "--json", "--interval", "500ms", "--window", window];
    let output = machine.run(&arguments);
    assert!(output.code <= 1, "{output:?}");
    output.json()
}

fn kinds(checked: &Value, pid: u32) -> Vec<String> {
    let findings = checked["findings"].as_array().unwrap().iter();
    let of_process = findings.filter(|finding| finding["process"]["pid"] == pid);
    of_process.map(|finding| finding["kind"].as_str().unwrap().to_owned()).collect()
}

fn finding(checked: &Value, pid: u32) -> &Value {
    let mut findings = checked["findings"].as_array().unwrap().iter();
    findings
        .find(|finding| finding["process"]["pid"] == pid)
        .unwrap_or_else(|| panic!("no finding about {}: {checked}", command_line(pid)))
}

#[test]
fn servers_are_exempt_and_listening_trainings_are_not() {
    let modules = ["uvicorn", "gunicorn", "gradio", "debugpy"];
    let scripts = or_skip!(ServerScripts::new(&modules));
    let socket = scripts.path("ts.sock.9000");
    let socket = socket.to_str().unwrap();
    let start = |arguments: &[&str]| scripts.start(arguments, port());
    let text = |port: u16| port.to_string();
    let shared = port();
    let workers = scripts
        .start(&["-m", "uvicorn", "--workers", "2", "--port", &text(shared), "app:app"], shared);
    let pool = port();
    let bound = format!("127.0.0.1:{pool}");
    let gunicorn = scripts.start(&["-m", "gunicorn", "-b", &bound, "app:wsgi"], pool);
    let gradio = start(&["demo.py"]);
    let front = start(&["front.py"]);
    let parent = start(&["parent.py"]);
    let rank_port = port();
    let mut ranks = Command::new(&scripts.python);
    let ranks = ranks
        .arg("ranks.py")
        .current_dir(scripts.folder.path())
        .env("RANK", "0")
        .env("MASTER_PORT", text(rank_port))
        .env("READY", scripts.path("ready-ranks"));
    let ranks = Program {
        running: Running::start(ranks.process_group(0)),
        port: rank_port,
        ready: scripts.path("ready-ranks"),
    };
    let debugged = port();
    let debugged =
        scripts.start(&["-m", "debugpy", "--listen", &text(debugged), "train.py"], debugged);
    let torchserve =
        start(&["model_service_worker.py", "--sock-type", "unix", "--sock-name", socket]);
    let named = ["huggingfaceserver", "wyoming_faster_whisper"];
    let named = named.map(|module| start(&["-m", module]).wait_for_port());
    let (script, answers) =
        (start(&["app.py"]).wait_for_port(), start(&["answers.py"]).wait_for_port());
    let (workers, gunicorn) = (workers.wait_for_port(), gunicorn.wait_for_port());
    let (gradio, front, parent) =
        (gradio.wait_for_port(), front.wait_for_port(), parent.wait_for_port());
    let torchserve = torchserve.wait_for_ready();
    let (ranks, debugged) = (ranks.wait_for_ready(), debugged.wait_for_ready());
    let (waiting, managed) =
        (start(&["reserve.py"]).wait_for_ready(), start(&["managed.py"]).wait_for_ready());
    let unused = start(&["explore.py"]).wait_for_ready();
    let with_clients = [&script, &answers, &gradio, &front, &parent].map(|program| program.port);
    let _client = connect(&with_clients);

    let listening = [
        script.pid(),
        answers.pid(),
        gradio.pid(),
        workers.descendant("spawn_main"),
        gunicorn.descendant("gunicorn"),
        torchserve.pid(),
        named[0].pid(),
        named[1].pid(),
    ];
    let (engine, above) = (front.descendant("engine.py"), parent.pid());
    let servers = [&listening[..], &[engine, above]].concat();
    let trainings = [waiting.pid(), ranks.pid(), debugged.pid(), managed.pid(), unused.pid()];
    let machine = Machine::new(&one_gpu(&[&servers[..], &trainings].concat()));

    let snapshot = machine.snapshot(0);
    for pid in listening {
        let process = snapshot.process(pid);
        assert_eq!(process["listening"], true, "{process}");
        assert!(process["listening_on"].is_array(), "{process}");
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
    let output = machine.act(&["reap", "--dry-run", "--json", "--window", "8s"]);
    let planned = output.json()["targets"].to_string();
    let is_planned = |pid: u32| planned.contains(&format!("\"pid\":{pid},"));
    assert!(trainings.into_iter().any(is_planned), "{output:?}");
    for &pid in &servers {
        assert!(!is_planned(pid), "{} {planned}", command_line(pid));
    }
}

/// Starts a process that is in another session and stays connected to these ports.
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

/// Asserts that a pool's worker has an idle finding with advice about the pool and with `notify` as its only action.
#[track_caller]
fn assert_advised(checked: &Value, pid: u32, words: &str) {
    let finding = finding(checked, pid);
    assert_eq!(finding["kind"], "idle", "{finding}");
    assert_eq!(finding["actions"], serde_json::json!(["notify"]), "{finding}");
    let advice = finding["advice"][0].as_str().unwrap();
    assert!(advice.contains(words), "{advice}");
}

#[test]
fn pool_workers_are_left_to_their_pool() {
    let scripts = or_skip!(ServerScripts::new(&["celery", "distributed", "ray"]));
    let ray = scripts.start(&["actor.py"], port());
    let celery = ["-m", "celery", "-A", "tasks", "worker", "--concurrency", "1"];
    let celery = scripts.start(&celery, port());
    let scheduler_port = port();
    let text = scheduler_port.to_string();
    let scheduler = ["-m", "distributed.cli.dask_scheduler", "--port", &text, "--no-dashboard"];
    let scheduler = scripts.start(&scheduler, scheduler_port).wait_for_port();
    let address = format!("tcp://127.0.0.1:{scheduler_port}");
    let dask = scripts.python.parent().unwrap().join("dask");
    let dask = [dask.to_str().unwrap(), "worker", &address, "--no-dashboard", "--nworkers", "1"];
    let dask = scripts.start(&dask, port());
    let (task, worker) = (celery.descendant("celery"), dask.descendant("spawn_main"));
    let ray = ray.wait_for_ready();
    let rays = [ray.descendant("ray::Holder"), ray.descendant("ray::IDLE")];
    let all = [celery.pid(), task, worker, rays[0], rays[1]];
    let machine = Machine::new(&one_gpu(&all));
    // Start-up counts as activity, so repeat the check until the workers are idle.
    let mut checked = Value::Null;
    wait_until("the workers are idle", || {
        checked = check(&machine, QUICK, "5s");
        all.iter().all(|pid| !kinds(&checked, *pid).is_empty())
    });
    assert_advised(&checked, celery.pid(), "control shutdown");
    assert_advised(&checked, task, &format!("(pid {})", celery.pid()));
    assert_advised(&checked, worker, "client.restart()");
    assert!(lives(scheduler.pid()));
    // gpumem gives different advice for a worker with an actor and a worker without an actor.
    for (worker, words) in rays.into_iter().zip(["ray.kill(ACTOR)", "ray.shutdown()"]) {
        // The kind can vary, because the rules cannot distinguish the ports of Ray's processes from the dashboard's
        // port.
        let finding = finding(&checked, worker);
        assert_eq!(finding["actions"], serde_json::json!(["notify"]), "{finding}");
        assert!(finding["advice"].to_string().contains(words), "{finding}");
    }
    // A person who names a worker gets the same advice, and gpumem sends no signal.
    machine.act(&["kill", "--yes", &rays[0].to_string()]).exits(1);
    assert!(lives(rays[0]));
}
