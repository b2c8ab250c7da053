//! A router of llama.cpp unloads a model on request, and gpumem leaves a server with a single model alone. The tests
//! check the server's state and the exit of the runner. The mock driver lists a process until it exits.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use gpumem::api::host::Roots;
use gpumem::api::model::Snapshot;
use gpumem::api::reclaim::{
    NotReleased, ReleaseBy, ReleaseWay, ServerUnload, find_release as find,
    perform_release as perform, probe_release as probe,
};
use serde_json::{Value, json};

use crate::machine::{GIB, Machine, Running, one_gpu};
use crate::procs::{self, lives};
use crate::release::options;
use crate::support::{self, wait_until};

/// Returns the directory in which `.ci/servers` has installed a server. If the server is missing, prints the reason
/// and returns `None`.
fn find_server(server: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("GPUMEM_TEST_SERVERS");
    let folder = folder.map(|folder| Path::new(&folder).join(server));
    if folder.is_none() {
        support::skip(server, ".ci/servers FOLDER, GPUMEM_TEST_SERVERS=FOLDER");
    }
    folder
}

/// A server that leads a process group, and its machine. The group is killed on drop.
struct Server {
    running: Running,
    machine: Machine,
    port: u16,
}

impl Drop for Server {
    fn drop(&mut self) {
        procs::kill_group(self.running.pid());
    }
}

/// Sends a request, and returns the open connection.
fn send(port: u16, verb: &str, path: &str, body: &str) -> TcpStream {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let timeout = Some(Duration::from_secs(90));
    stream.set_read_timeout(timeout).unwrap();
    let length = body.len();
    write!(
        stream,
        "{verb} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
         Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    )
    .unwrap();
    stream
}

/// Sends a request, and returns the status and the body of the answer.
fn ask(port: u16, verb: &str, path: &str, body: &str) -> (u16, String) {
    let mut reader = BufReader::new(send(port, verb, path, body));
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert_ne!(reader.read_line(&mut head).unwrap(), 0, "{head}");
    }
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let mut body = Vec::new();
    reader.read_to_end(&mut body).unwrap();
    (status, String::from_utf8_lossy(&body).into_owned())
}

fn unload(way: &ReleaseWay) -> &ServerUnload {
    match &way.by {
        ReleaseBy::Server(server) => server,
        other => panic!("{other:?}"),
    }
}

fn first_child(pid: u32) -> Option<u32> {
    procs::children(pid).first().copied()
}

impl Server {
    /// Returns the way to release the memory of a process.
    fn way(&self, holder: u32) -> ReleaseWay {
        self.machine.play(&one_gpu(&[holder]));
        let snapshot: Snapshot = serde_json::from_value(self.machine.snapshot(0).0).unwrap();
        let way = find(&snapshot.processes[0], &snapshot);
        let way = way.unwrap_or_else(|reason| panic!("{reason} {snapshot:?}"));
        let server = unload(&way);
        let port = format!(":{}", self.port);
        assert!(server.address.ends_with(&port), "{way:?}");
        assert_eq!(server.held_bytes, Some(2 * GIB));
        way
    }

    /// Runs `gpumem release HOLDER --yes`, and returns the outcome. The driver lists the holder with 2 GiB until it
    /// exits.
    fn release(&self, holder: u32) -> Value {
        self.machine.play(&one_gpu(&[holder]));
        let pid = holder.to_string();
        let is_over = AtomicBool::new(false);
        let output = thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) && lives(holder) {
                    thread::sleep(Duration::from_millis(10));
                }
                if !lives(holder) {
                    self.machine.play(&one_gpu(&[]));
                }
            });
            let arguments = ["release", "--yes", "--json", "--idle-for=3s", &pid];
            let output = self.machine.act(&arguments);
            is_over.store(true, Ordering::Relaxed);
            output
        });
        let document = output.json();
        document["targets"][0]["outcome"].clone()
    }
}

/// Starts llama.cpp's server with a tiny random model.
fn start_llama(arguments: &[&str]) -> Option<Server> {
    let program = find_server("llama")?.join("usr/bin/llama-server");
    let python = support::find("python3", "python3")?;
    let machine = Machine::new(&one_gpu(&[]));
    fs::create_dir(machine.path("models")).unwrap();
    fs::write(machine.path("tiny_gguf.py"), include_str!("release_servers/tiny_gguf.py")).unwrap();
    let mut model = Command::new(python);
    model.args(["tiny_gguf.py", "models/tiny.gguf"]);
    support::finish(model.current_dir(machine.path(""))).exits(0);
    let port = support::free_port();
    let mut command = Command::new(program);
    command
        .args(["--port", &port.to_string(), "--threads", "1"])
        .args(["--log-file", "log"])
        .args(arguments)
        .current_dir(machine.path(""))
        .process_group(0);
    let running = Running::start(&mut command);
    let server = Server { running, machine, port };
    wait_until("llama-server is healthy", || {
        TcpStream::connect(("127.0.0.1", port)).is_ok() && ask(port, "GET", "/health", "").0 == 200
    });
    Some(server)
}

const COMPLETION: &str = r#"{"model": "tiny", "prompt": "x", "max_tokens": 2}"#;
/// Requests many tokens as a stream, so that the slot stays busy.
const ENDLESS: &str =
    r#"{"model": "tiny", "prompt": "x", "max_tokens": 60000, "ignore_eos": true, "stream": true}"#;

#[test]
fn a_llama_cpp_router_unloads_only_when_idle_and_loads_again() {
    let server = or_skip!(start_llama(&["--models-dir", "models"]));
    let (router, port) = (server.running.pid(), server.port);
    let state = || {
        let (_, models) = ask(port, "GET", "/models", "");
        let models: Value = serde_json::from_str(&models).unwrap();
        models["data"][0]["status"]["value"].clone()
    };
    // If no model is loaded, gpumem must not make the router load a model.
    let way = server.way(router);
    for answer in [probe, perform].map(|request| request(&Roots::default(), &way, &options(60_000)))
    {
        assert!(matches!(&answer, Err(NotReleased::NoWayIn(_))), "{answer:?}");
    }
    assert_eq!((state(), first_child(router)), (json!("unloaded"), None));

    let (status, answer) = ask(port, "POST", "/v1/completions", COMPLETION);
    assert_eq!(status, 200, "{answer}");
    let runner = first_child(router).unwrap();
    let way = server.way(runner);
    assert_eq!((&*unload(&way).server, way.pid), ("llama.cpp", router));
    let probed = probe(&Roots::default(), &way, &options(60_000));
    assert!(probed.is_ok(), "{probed:?}");
    assert_eq!((state(), first_child(router)), (json!("loaded"), Some(runner)));

    // The server is busy with a client of the router, and then with a client of the runner. Only the runner's slots
    // show the second client.
    let command = fs::read_to_string(format!("/proc/{runner}/cmdline")).unwrap();
    let mut words = command.split('\0').skip_while(|word| *word != "--port");
    let runners_port = words.nth(1).unwrap().parse().unwrap();
    for (port, reason) in
        [(port, "a client is connected to it"), (runners_port, "a slot is processing")]
    {
        let mut client = send(port, "POST", "/v1/completions", ENDLESS);
        let mut piece = [0; 256];
        client.read_exact(&mut piece).unwrap();
        let answer = perform(&Roots::default(), &way, &options(60_000));
        assert!(
            matches!(&answer, Err(NotReleased::Busy(text)) if text.contains(reason)),
            "{answer:?}"
        );
        // The server continues to generate.
        for _ in 0..8 {
            client.read_exact(&mut piece).unwrap();
        }
        assert_eq!((state(), first_child(router)), (json!("loaded"), Some(runner)));
    }
    // The slot becomes idle after the client has disconnected.
    wait_until("no slot is processing", || {
        let (_, slots) = ask(runners_port, "GET", "/slots", "");
        !slots.contains("\"is_processing\":true")
    });

    let outcome = server.release(runner);
    assert_eq!(outcome["outcome"], "released", "{outcome}");
    assert_eq!(outcome["bytes"], json!(2 * GIB));
    assert!(!lives(runner) && lives(router));
    assert_eq!(state(), "unloaded");
    // The next request loads the model again.
    let (status, answer) = ask(port, "POST", "/v1/completions", COMPLETION);
    assert_eq!((status, state()), (200, json!("loaded")), "{answer}");
}

#[test]
fn llama_cpp_with_one_model_is_left_alone() {
    let server = or_skip!(start_llama(&["--model", "models/tiny.gguf"]));
    let pid = server.running.pid();
    let way = server.way(pid);
    for answer in [probe, perform].map(|request| request(&Roots::default(), &way, &options(60_000)))
    {
        assert!(matches!(&answer, Err(NotReleased::NoWayIn(_))), "{answer:?}");
    }
    let outcome = server.release(pid);
    assert_eq!(outcome["outcome"], "no_way_in", "{outcome}");
    let (status, answer) = ask(server.port, "POST", "/v1/completions", COMPLETION);
    assert_eq!(status, 200, "{answer}");
}
