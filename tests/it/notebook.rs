//! gpumem finds the notebook and the server of a kernel. The tests run real Jupyter servers and kernels. `batch`
//! tests programs that execute a notebook without a server, and `misbehaving` tests servers that misbehave.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::machine::{GIB, Machine, Running, one_gpu};
use crate::procs;
use crate::support::{self, wait_until};

mod batch;
mod doctor;
mod misbehaving;

pub const TOKEN: &str = "s3cret-t0ken";
/// Sends a request over TLS, and prints the answer. The arguments are the port and the request.
const OVER_TLS: &str = "
import socket, ssl, sys
context = ssl._create_unverified_context()
with context.wrap_socket(socket.create_connection(('127.0.0.1', int(sys.argv[1])))) as stream:
    stream.sendall(sys.argv[2].encode())
    answer = b''
    while part := stream.recv(65536):
        answer += part
sys.stdout.write(answer.decode())
";
/// The key in the connection file of `fake_server.py`.
const KEY: &str = "k3y-k3y";

/// A home directory for servers and kernels. On drop, every process whose command line contains the path is killed.
pub struct JupyterHome(tempfile::TempDir);

impl JupyterHome {
    pub fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Returns a command whose Jupyter settings are all in this directory.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command
            .env("HOME", self.0.path())
            .env("JUPYTER_RUNTIME_DIR", self.path("runtime"))
            .env("JUPYTER_DATA_DIR", self.path("data"))
            .env("JUPYTER_CONFIG_DIR", self.path("config"))
            .env("IPYTHONDIR", self.path("ipython"))
            .env_remove("JUPYTER_TOKEN")
            .current_dir(self.0.path());
        command
    }

    /// Returns the processes whose command lines contain `text` and the directory's path.
    pub fn pids_with(&self, text: &str) -> Vec<u32> {
        let folder = self.0.path().to_str().unwrap();
        let entries = fs::read_dir("/proc").unwrap().filter_map(Result::ok);
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        pids.filter(|pid| {
            let argv = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let argv = String::from_utf8_lossy(&argv);
            argv.contains(folder) && argv.contains(text)
        })
        .collect()
    }

    /// Waits for the process whose command line contains `text` and the directory's path.
    pub fn pid_with(&self, text: &str) -> u32 {
        let mut pids = Vec::new();
        wait_until("a process with this text in argv", || {
            pids = self.pids_with(text);
            !pids.is_empty()
        });
        assert_eq!(pids.len(), 1, "{text}");
        pids[0]
    }

    /// Waits for the server's file. Returns the path and the content.
    pub fn server_file(&self) -> (PathBuf, Value) {
        let mut found = None;
        wait_until("the server has written its file", || {
            let entries = fs::read_dir(self.path("runtime")).into_iter().flatten();
            let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
            found = paths
                .filter(|path| {
                    let name = path.file_name().unwrap().to_str().unwrap();
                    name.starts_with("jpserver-") && name.ends_with(".json")
                })
                .find_map(|path| {
                    let value = serde_json::from_slice(&fs::read(&path).ok()?).ok()?;
                    Some((path, value))
                });
            found.is_some()
        });
        found.unwrap()
    }

    pub fn fake_server(&self, arguments: &[&str]) -> Option<FakeServer> {
        let python = support::find("python3", "python3")?;
        let mut command = self.command(&python);
        command.arg(script("fake_server.py")).arg(self.0.path());
        let server = Running::start(command.args(arguments));
        self.server_file();
        let kernel = self.pid_with("ipykernel_launcher.py");
        Some(FakeServer { server, kernel })
    }

    /// Starts a program that executes the notebook `a.ipynb`, and waits until the only cell runs. The cell ends when
    /// the file `done` exists.
    pub fn run_batch(&self, python: &Path, arguments: &[&str]) -> Batch {
        let (pid_file, done) = (self.path("pid"), self.path("done"));
        let code = format!(
            "import os, time\n\
             open({pid_file:?}, 'w').write(str(os.getpid()))\n\
             while not os.path.exists({done:?}): time.sleep(0.01)\n"
        );
        let notebook = json!({
            "cells": [{
                "cell_type": "code", "execution_count": null, "id": "a", "metadata": {},
                "outputs": [], "source": code,
            }],
            "metadata": {"kernelspec": {"name": "python3", "display_name": "", "language": "python"}},
            "nbformat": 4, "nbformat_minor": 5,
        });
        fs::write(self.path("a.ipynb"), notebook.to_string()).unwrap();
        let mut running = Running::start(self.command(python).args(arguments));
        let mut kernel = 0;
        wait_until("the cell runs", || {
            let pid = fs::read_to_string(&pid_file).unwrap_or_default();
            kernel = pid.parse().unwrap_or(0);
            let ended = running.0.try_wait().unwrap();
            assert_eq!(ended, None, "{arguments:?} exited");
            kernel != 0
        });
        Batch { running, kernel }
    }
}

/// A program that executes all cells of a notebook.
pub struct Batch {
    pub running: Running,
    pub kernel: u32,
}

impl Drop for JupyterHome {
    fn drop(&mut self) {
        // Kill servers first, because they would restart their kernels.
        for text in ["jupyter_server", ""] {
            for pid in self.pids_with(text) {
                procs::send(pid, Signal::KILL);
            }
        }
    }
}

pub struct FakeServer {
    /// The server is killed on drop.
    server: Running,
    pub kernel: u32,
}

pub fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/notebook").join(name)
}

/// Returns the data that gpumem reports about a kernel after the server has answered.
///
/// The first sample waits only briefly for the server. On a busy machine, a TLS handshake can take longer than `ps`
/// waits, in every run. A later sample of `record` then contains the answer.
pub fn jupyter(machine: &Machine, pid: u32) -> Value {
    let mut facts = Value::Null;
    wait_until("no request about the kernel is pending", || {
        facts = first_facts(machine, pid);
        if facts["asking"] == true {
            facts = later_facts(machine, pid);
        }
        let error = facts["server_error"].as_str().unwrap_or_default();
        facts["asking"] != true && !error.contains("in time")
    });
    facts
}

/// Returns the data that gpumem reports about a kernel in the last of several samples.
fn later_facts(machine: &Machine, pid: u32) -> Value {
    let output = machine.run(&["record", "--interval", "200ms", "--duration", "4s"]).exits(0);
    assert_no_secret(&[&output.stdout, &output.stderr]);
    let last = output.stdout.lines().last().unwrap();
    facts_of(&serde_json::from_str(last).unwrap(), pid)
}

/// Returns the data that gpumem reports about a kernel in one sample. Asserts that gpumem did not hang and printed no
/// secret.
fn first_facts(machine: &Machine, pid: u32) -> Value {
    let start = Instant::now();
    let output = machine.run(&["ps", "--json"]);
    // A hung server must not delay the first sample. The limit allows for a busy machine.
    assert!(start.elapsed() < Duration::from_secs(60), "{output:?}");
    assert_eq!(output.code, 0, "{output:?}");
    assert_no_secret(&[&output.stdout, &output.stderr]);
    facts_of(&output.json(), pid)
}

fn facts_of(snapshot: &Value, pid: u32) -> Value {
    let processes = snapshot["processes"].as_array().unwrap();
    let process = processes.iter().find(|process| process["pid"] == pid);
    process.unwrap_or_else(|| panic!("{pid}: {snapshot}"))["jupyter"].clone()
}

pub fn assert_no_secret(texts: &[&str]) {
    for text in texts {
        assert!(!text.contains(TOKEN) && !text.contains(KEY), "{text}");
    }
}

pub struct Server {
    pub home: JupyterHome,
    pub python: PathBuf,
    pub running: Running,
    pub file: Value,
}

impl Server {
    /// Starts a server. If Jupyter is not installed, prints the reason and returns `None`.
    pub fn start(flags: &[&str]) -> Option<Self> {
        Self::start_with(flags, |_| ())
    }

    /// Starts a server after `change` has modified the command.
    pub fn start_with(flags: &[&str], change: impl FnOnce(&mut Command)) -> Option<Self> {
        let python = support::python_with(&["jupyter_server", "ipykernel"])?;
        let home = JupyterHome::new();
        fs::create_dir_all(home.path("work/deep")).unwrap();
        let mut command = home.command(&python);
        command
            .args(["-m", "jupyter_server", "--no-browser", "--allow-root"])
            .arg(format!("--ServerApp.root_dir={}", home.path("work").display()))
            .args(flags);
        // By default, the server writes a free port into its file and binds the port later. Another program can take
        // the port in the meantime.
        if !flags.iter().any(|flag| flag.starts_with("--ServerApp.sock")) {
            command.arg(format!("--ServerApp.port={}", support::free_port()));
        }
        change(&mut command);
        let running = Running::start(&mut command);
        let server = Self { file: home.server_file().1, home, python, running };
        // The server writes the file before it listens.
        wait_until("the server listens", || match server.file["sock"].as_str() {
            Some("") | None => TcpStream::connect(("127.0.0.1", server.port())).is_ok(),
            Some(sock) => UnixStream::connect(sock).is_ok(),
        });
        Some(server)
    }

    fn port(&self) -> u16 {
        self.file["port"].as_u64().unwrap().try_into().unwrap()
    }

    /// Sends a request with the server's token. Returns the JSON answer.
    pub fn request(&self, method: &str, path: &str, body: &Value) -> Value {
        let mut token = format!("Authorization: token {TOKEN}\r\n");
        if self.file["token"] == "" {
            // Without a token, tornado requires a cookie and a header with the same value (`check_xsrf_cookie`).
            token = "Cookie: _xsrf=0a1b\r\nX-XSRFToken: 0a1b\r\n".to_owned();
        }
        let answer = self.answer(method, path, body, &token);
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(" 20"), "{answer}");
        serde_json::from_str(body).unwrap_or_default()
    }

    /// Sends a request with additional header lines. Returns the answer with its header.
    pub fn answer(&self, method: &str, path: &str, body: &Value, lines: &str) -> String {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let request = format!(
            "{method} {path} HTTP/1.0\r\nHost: localhost\r\n{lines}Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let mut answer = String::new();
        match self.file["sock"].as_str() {
            Some("") | None if self.file["secure"] == true => {
                return self.request_over_tls(&request);
            }
            Some("") | None => {
                let mut stream = TcpStream::connect(("127.0.0.1", self.port())).unwrap();
                stream.write_all(request.as_bytes()).unwrap();
                stream.read_to_string(&mut answer).unwrap();
            }
            Some(sock) => {
                let mut stream = UnixStream::connect(sock).unwrap();
                stream.write_all(request.as_bytes()).unwrap();
                stream.read_to_string(&mut answer).unwrap();
            }
        }
        answer
    }

    fn request_over_tls(&self, request: &str) -> String {
        let mut command = Command::new(&self.python);
        command.args(["-c", OVER_TLS, &self.port().to_string(), request]);
        let output = support::finish(&mut command).exits(0);
        output.stdout
    }

    /// Opens a notebook as JupyterLab does. Returns the kernel.
    pub fn open(&self, path: &str) -> Kernel {
        let session = json!({
            "path": path, "name": path, "type": "notebook", "kernel": {"name": "python3"},
        });
        let session = self.request("POST", "/api/sessions", &session);
        self.kernel(session["kernel"]["id"].as_str().unwrap())
    }

    pub fn kernel(&self, id: &str) -> Kernel {
        let connection_file = self.home.path(&format!("runtime/kernel-{id}.json"));
        let pid = self.home.pid_with(&format!("kernel-{id}.json"));
        Kernel { id: id.to_owned(), pid, connection_file }
    }

    pub fn start_code(&self, kernel: &Kernel, code: &str) -> Running {
        let mut command = self.home.command(&self.python);
        command.arg(script("drive.py")).arg(&kernel.connection_file);
        Running::start(command.arg(code))
    }
}

pub struct Kernel {
    pub id: String,
    pub pid: u32,
    pub connection_file: PathBuf,
}

/// These checks share a server, because starting a server is slow. The last check kills the server.
#[test]
fn a_servers_notebooks_are_identified_while_it_lives() {
    let mut server = or_skip!(Server::start(&[&format!("--IdentityProvider.token={TOKEN}")]));
    assert_notebook_and_activity_are_shown(&server);
    assert_only_the_idle_notebook_is_found(&server);
    let name = format!("http://localhost:{}/ (process {})", server.port(), server.running.pid());
    wait_until("doctor reports the server", || {
        doctor::check_of(&server.home, &name).is_some_and(|check| check["verdict"] == "ok")
    });
    assert_a_stale_server_file_is_not_trusted(&mut server);
    let file = server.home.server_file().0;
    let check = doctor::check_of(&server.home, file.to_str().unwrap()).unwrap();
    assert!(check["seen"].as_str().unwrap().contains("left behind"), "{check}");
    assert_eq!(doctor::check_of(&server.home, &name), None);
}

fn assert_notebook_and_activity_are_shown(server: &Server) {
    let kernel = server.open("deep/thought.ipynb");
    let machine = Machine::new(&one_gpu(&[kernel.pid]));
    let mut driver = server.start_code(&kernel, "x = 1");
    assert!(driver.0.wait().unwrap().success());

    let facts = jupyter(&machine, kernel.pid);
    let root = server.home.path("work");
    for (name, expected) in [
        ("application", json!("jupyter")),
        ("kernel_id", json!(kernel.id)),
        ("connection_file", json!(kernel.connection_file.to_str().unwrap())),
        ("notebook_path", json!("deep/thought.ipynb")),
        ("server_url", json!(format!("http://localhost:{}/", server.port()))),
        ("server_pid", json!(server.running.pid())),
        ("server_alive", json!(true)),
        ("server_root", json!(root.to_str().unwrap())),
        ("server_error", Value::Null),
        ("execution_state", json!("idle")),
        ("connections", json!(0)),
    ] {
        assert_eq!(facts[name], expected, "{name}: {facts}");
    }
    let active: gpumem::api::model::Time =
        facts["last_activity"].as_str().unwrap().parse().unwrap();

    let done = server.home.path("done");
    let mut driver = server.start_code(
        &kernel,
        &format!("import os, time\nwhile not os.path.exists({done:?}): time.sleep(0.01)",),
    );
    wait_until("the server reports the kernel as busy", || {
        jupyter(&machine, kernel.pid)["execution_state"] == "busy"
    });
    fs::write(&done, "").unwrap();
    assert!(driver.0.wait().unwrap().success());
    let mut later = Value::Null;
    wait_until("the kernel is idle again", || {
        later = jupyter(&machine, kernel.pid);
        later["execution_state"] == "idle"
    });
    let later: gpumem::api::model::Time = later["last_activity"].as_str().unwrap().parse().unwrap();
    assert!(later > active);

    let text = machine.run(&["ps"]);
    assert!(text.stdout.contains("deep/thought.ipynb"), "{text:?}");
    let recording = machine.path("recording.jsonl");
    let record = machine
        .run(&["record", recording.to_str().unwrap(), "--interval", "100ms", "--duration", "1s"])
        .exits(0);
    let recorded = fs::read_to_string(&recording).unwrap();
    assert!(recorded.contains("deep/thought.ipynb"), "{recorded}");
    assert_no_secret(&[&text.stdout, &text.stderr, &record.stderr, &recorded]);
}

fn assert_only_the_idle_notebook_is_found(server: &Server) {
    let (busy, idle) = (server.open("busy.ipynb"), server.open("idle.ipynb"));
    let machine = Machine::new(&one_gpu(&[busy.pid, idle.pid]));
    let done = server.home.path("busy-is-done");
    let wait = format!("import os, time\nwhile not os.path.exists({done:?}): time.sleep(0.01)");
    // gpumem recognises PyTorch by the name of a mapped library. The content of the file does not matter.
    let library = server.home.path("torch/lib/libtorch_cuda.so");
    let load = format!(
        "import mmap, os\nos.makedirs(os.path.dirname({library:?}))\n\
         with open({library:?}, 'w+b') as f: f.truncate(4096); m = mmap.mmap(f.fileno(), 4096)"
    );
    assert!(server.start_code(&idle, &load).0.wait().unwrap().success());
    let mut driver = server.start_code(&busy, &wait);
    wait_until("one kernel is busy", || jupyter(&machine, busy.pid)["execution_state"] == "busy");
    machine.configure("[rules.idle]\nmin_memory = \"1GiB\"\nduration = \"2s\"\n");
    let check = ["check", "--json", "--window", "6s", "--interval", "200ms"];
    let mut output = machine.run(&check);
    // The finding appears only when the kernel has been idle for the rule's duration.
    wait_until("the other kernel is idle for long enough", || {
        output = machine.run(&check);
        output.code == 1
    });
    assert_no_secret(&[&output.stdout, &output.stderr]);
    let verdict = output.json();
    let findings = verdict["findings"].as_array().unwrap();
    assert_eq!(findings.len(), 1, "{verdict}");
    assert_eq!(findings[0]["process"]["pid"], idle.pid);
    let message = findings[0]["message"].as_str().unwrap();
    assert!(message.starts_with(&format!("notebook idle.ipynb ({})", idle.pid)), "{message}");
    assert_eq!(findings[0]["memory_bytes"], 2 * GIB);

    let page = machine.run(&["explain", &idle.pid.to_string(), "--window", "6s"]);
    assert_eq!((page.code, page.stderr.as_str()), (0, ""), "{page:?}");
    for part in [
        "notebook idle.ipynb",
        "PyTorch",
        "state idle",
        "warning: idle: notebook idle.ipynb",
        "torch.cuda.empty_cache()",
        "shut the kernel down (idle.ipynb)",
    ] {
        assert!(page.stdout.contains(part), "{part}: {page:?}");
    }
    // The page must not advise `kill`, because the server would restart the kernel.
    assert!(!page.stdout.contains("`kill"), "{page:?}");
    assert_no_secret(&[&page.stdout]);
    fs::write(&done, "").unwrap();
    assert!(driver.0.wait().unwrap().success());
}

/// Listens on a port, and creates a file after each connection.
const STRANGER: &str = "import socket, sys
server = socket.create_server(('127.0.0.1', int(sys.argv[1])))
while True:
    server.accept()
    open(sys.argv[2], 'w').close()
";

fn assert_a_stale_server_file_is_not_trusted(server: &mut Server) {
    let kernel = server.open("a.ipynb");
    let machine = Machine::new(&one_gpu(&[kernel.pid]));
    wait_until("the kernel's files are read", || {
        jupyter(&machine, kernel.pid)["notebook_path"] == "a.ipynb"
    });
    // Stop the kernel with SIGSTOP, because it would exit when it notices that its parent has died.
    procs::send(kernel.pid, Signal::STOP);
    let port = server.port();
    server.running.0.kill().unwrap();
    server.running.0.wait().unwrap();
    // Listen in another process. The test process is an ancestor of other tests' children, which would look like
    // servers if the test process listened.
    let request_log = server.home.path("connected");
    let mut stranger = Command::new(&server.python);
    stranger.args(["-c", STRANGER, &port.to_string()]).arg(&request_log);
    let _stranger = Running::start(&mut stranger);
    let address = ("127.0.0.1", port);
    wait_until("the stranger listens", || TcpStream::connect(address).is_ok());
    wait_until("the stranger has logged the connection", || request_log.exists());
    fs::remove_file(&request_log).unwrap();

    let facts = jupyter(&machine, kernel.pid);
    let error = facts["server_error"].as_str().unwrap();
    let file = format!("jpserver-{}.json", server.running.pid());
    assert!(error.contains("has exited"), "{facts}");
    assert!(server.home.path("runtime").join(file).exists());
    assert!(facts["notebook_path"].as_str().unwrap().ends_with("work/a.ipynb"), "{facts}");
    assert_eq!(facts["server_alive"], false, "{facts}");
    let page = machine.run(&["explain", &kernel.pid.to_string()]).exits(0).stdout;
    let advice = format!("gpumem kill {}", kernel.pid);
    assert!(page.contains(&advice) && !page.contains("Shut Down Kernel"), "{page}");
    machine.configure("[rules.orphan]\nduration = \"1s\"\n");
    let check = machine
        .run(&["check", "--json", "--window", "5s", "--interval", "500ms", "--kind", "orphan"])
        .exits(1);
    let verdict = check.json();
    assert_eq!(verdict["findings"][0]["kind"], "orphan", "{verdict}");
    assert!(!request_log.exists(), "gpumem connected to the stranger");
    assert_no_secret(&[&check.stdout, &check.stderr]);
}
