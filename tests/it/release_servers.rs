//! Inference servers that unload their model on request. Stand-ins implement the real routes, and gpumem finds their
//! listening sockets in /proc. The mock driver shows the freed memory.

use std::fs;
use std::io::Read as _;
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::Instant;

use gpumem::api::host::Roots;
use gpumem::api::model::Snapshot;
use gpumem::api::reclaim::{
    NotReleased, ReleaseAnswer, ReleaseBy, ReleaseOptions, ReleaseWay, ServerUnload,
    find_release as find, perform_release as perform, probe_release as probe,
};
use serde_json::Value;

use crate::machine::{GIB, Machine, Running, one_gpu};
use crate::reclaim::Stage;
use crate::release::options;
use crate::support::{self, wait_until};

/// Memory of the CUDA context, which no request frees.
const CONTEXT_BYTES: u64 = 256 << 20;

/// A server: its row in gpumem's table, the program and its arguments, and the request that unloads the model.
struct Program {
    row: &'static str,
    file: &'static str,
    arguments: &'static [&'static str],
    unload: &'static str,
}

const fn program(
    row: &'static str,
    file: &'static str,
    arguments: &'static [&'static str],
    unload: &'static str,
) -> Program {
    Program { row, file, arguments, unload }
}

/// In the arguments, `PORT` stands for the port of the server, and `METRICS` for the port of its metrics.
const PROGRAMS: &[Program] = &[
    program("ollama", "ollama", &["serve"], "POST /api/generate"),
    program("vllm", "vllm", &["--port", "PORT", "--enable-sleep-mode"], "POST /sleep"),
    program(
        "sglang",
        "sglang",
        &["--port", "PORT", "--enable-memory-saver"],
        "POST /release_memory_occupation",
    ),
    program("llama.cpp", "llama-server", &["--port", "PORT"], "POST /models/unload"),
    program(
        "triton-server",
        "tritonserver",
        &["--http-port=PORT", "--metrics-port=METRICS"],
        "POST /v2/repository/models",
    ),
    program("comfyui", "ComfyUI/main.py", &["--port", "PORT"], "POST /free"),
    program(
        "stable-diffusion-webui",
        "stable-diffusion-webui/launch.py",
        &["--api", "--port", "PORT"],
        "POST /sdapi/v1/unload",
    ),
];

/// A server with a self-signed certificate on a Unix socket.
const SECURE: Program = program(
    "vllm",
    "vllm",
    &[
        "--port",
        "PORT",
        "--enable-sleep-mode",
        "--ssl-certfile",
        "FOLDER/c.pem",
        "--ssl-keyfile",
        "FOLDER/k.pem",
    ],
    "POST /sleep",
);
const LOCAL: Program =
    program("vllm", "vllm", &["--uds", "FOLDER/s", "--enable-sleep-mode"], "POST /sleep");

fn program_of(row: &str) -> &'static Program {
    PROGRAMS.iter().find(|program| program.row == row).unwrap()
}

/// A running stand-in that holds 2 GiB on a GPU.
struct StandIn {
    program: &'static Program,
    running: Option<Running>,
    machine: Machine,
    port: u16,
}

fn start_program(
    python: &PathBuf,
    program: &Program,
    manner: &str,
    environment: &[(&str, &str)],
    machine: &Machine,
) -> (Running, u16) {
    let (port, metrics) = (support::free_port(), support::free_port());
    let mut ports = port.to_string();
    if program.row == "triton-server" {
        ports = format!("{port} {metrics}");
    }
    let mut command = Command::new(python);
    let file = machine.path(program.file);
    // ComfyUI is started with `cd ComfyUI; python main.py`, so only the working directory identifies the server.
    match program.row {
        "comfyui" => command.current_dir(file.parent().unwrap()).arg(file.file_name().unwrap()),
        _ => command.arg(&file),
    };
    command.args([program.row, manner]);
    for argument in program.arguments {
        let argument = argument.replace("PORT", &port.to_string());
        let argument = argument.replace("FOLDER/", machine.path("").to_str().unwrap());
        command.arg(argument.replace("METRICS", &metrics.to_string()));
    }
    for (name, file) in [("RECORD", "record"), ("READY", "ready"), ("SCENE", "scene.json")] {
        command.env(name, machine.path(file));
    }
    command.env("PORTS", ports);
    command.envs(environment.iter().copied());
    (Running::start(&mut command), port)
}

impl StandIn {
    fn start(python: &PathBuf, program: &'static Program, manner: &str) -> Self {
        Self::start_with(python, program, manner, &[])
    }

    fn start_with(
        python: &PathBuf,
        program: &'static Program,
        manner: &str,
        environment: &[(&str, &str)],
    ) -> Self {
        let machine = Machine::new(&one_gpu(&[]));
        let file = machine.path(program.file);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, include_str!("release_servers/stand_in.py")).unwrap();
        if program.arguments.contains(&"FOLDER/c.pem") {
            support::certificate(&machine.path("")).unwrap();
        }
        let (mut running, port) = start_program(python, program, manner, environment, &machine);
        let ready = machine.path("ready");
        wait_until("the stand-in listens", || {
            let ended = running.0.try_wait().unwrap();
            assert!(ended.is_none(), "the stand-in exited early: {ended:?}");
            ready.exists()
        });
        let ready: Value = serde_json::from_slice(&fs::read(ready).unwrap()).unwrap();
        let holder = u32::try_from(ready["holder"].as_u64().unwrap()).unwrap();
        machine.play(&one_gpu(&[holder]));
        Self { program, running: Some(running), machine, port }
    }

    fn pid(&self) -> u32 {
        self.running.as_ref().unwrap().pid()
    }

    fn snapshot(&self) -> Snapshot {
        serde_json::from_value(self.machine.snapshot(0).0).unwrap()
    }

    /// Returns the address of the server in the format of a snapshot.
    fn address(&self) -> String {
        match self.program.arguments.contains(&"--uds") {
            true => format!("unix:{}", self.machine.path("s").display()),
            false => format!("tcp:127.0.0.1:{}", self.port),
        }
    }

    /// Returns the way to release the server's memory, according to a snapshot.
    fn way(&self) -> ReleaseWay {
        let snapshot = self.snapshot();
        let way = find(&snapshot.processes[0], &snapshot);
        let way =
            way.unwrap_or_else(|reason| panic!("{}: {reason} {snapshot:?}", self.program.row));
        assert_eq!(way.pid, self.pid());
        let server = unload(&way);
        assert_eq!((&*server.server, &*server.address), (self.program.row, &*self.address()));
        way
    }

    fn held_bytes(&self) -> u64 {
        let snapshot = self.machine.snapshot(0);
        let rows = snapshot.gpu(0)["processes"].as_array().unwrap();
        rows.iter().map(|row| row["used_bytes"].as_u64().unwrap()).sum()
    }

    /// Returns the requests that the server has received.
    fn requests(&self) -> Vec<String> {
        let record = fs::read_to_string(self.machine.path("record")).unwrap_or_default();
        let requests: Vec<String> = record.lines().map(str::to_owned).collect();
        assert!(!requests.iter().any(|line| line.ends_with("FOREIGN")), "{requests:?}");
        requests
    }

    /// Returns the number of unload requests that the server has received.
    fn unload_count(&self) -> usize {
        self.requests().iter().filter(|line| line.starts_with(self.program.unload)).count()
    }

    /// Asserts that the server has received only requests that change nothing and do not count as use.
    fn assert_untouched(&self) {
        let is_harmless = |line: &String| {
            let reads = line.starts_with("GET /") || line.starts_with("POST /v2/repository/index");
            reads && !line.starts_with("GET /slots")
        };
        let requests = self.requests();
        assert!(requests.iter().all(is_harmless), "{}: {requests:?}", self.program.row);
    }
}

fn unload(way: &ReleaseWay) -> &ServerUnload {
    match &way.by {
        ReleaseBy::Server(server) => server,
        other => panic!("{other:?}"),
    }
}

fn probe_way(way: &ReleaseWay) -> ReleaseAnswer {
    probe(&Roots::default(), way, &options(30_000))
}

fn perform_way(way: &ReleaseWay, wait_ms: u64) -> ReleaseAnswer {
    perform(&Roots::default(), way, &options(wait_ms))
}

fn with_each(test: impl Fn(&PathBuf, &'static Program) + Sync) {
    let python = or_skip!(support::python_with(&["http.server"]));
    thread::scope(|scope| {
        for program in PROGRAMS {
            let (python, test) = (&python, &test);
            scope.spawn(move || test(python, program));
        }
    });
}

#[test]
fn each_server_unloads_and_nvml_shows_the_freed_memory() {
    with_each(|python, program| {
        let server = StandIn::start(python, program, "idle");
        let row = program.row;
        let way = server.way();
        assert_eq!(unload(&way).held_bytes, Some(2 * GIB), "{row}");
        let answer = probe_way(&way);
        assert!(answer.is_ok(), "{row}: {answer:?}");
        server.assert_untouched();
        assert_eq!(server.held_bytes(), 2 * GIB);
        let answer = perform_way(&way, 30_000);
        let Ok(report) = answer else {
            panic!("{row}: {answer:?} {:?}", server.requests());
        };
        assert_eq!(server.unload_count(), 1, "{row}: {:?}", server.requests());
        let left = server.held_bytes();
        assert!(left == 0 || left == CONTEXT_BYTES, "{row}: {left}");
        // The server still listens, and the report contains a command that loads the model again.
        assert!(TcpStream::connect(("127.0.0.1", server.port)).is_ok(), "{row}");
        let wake = report.wake.unwrap();
        let base = format!("http://127.0.0.1:{}/", server.port);
        assert!(!wake.contains("curl") || wake.contains(&base), "{row}: {wake}");
    });
}

#[test]
fn a_server_with_tls_or_on_a_unix_socket_is_asked() {
    let python = or_skip!(support::python_with(&["http.server", "ssl"]));
    or_skip!(support::find("openssl", "openssl"));
    let assert_asked = |program: &'static Program, base: &str| {
        let server = StandIn::start(&python, program, "busy");
        let answer = perform_way(&server.way(), 30_000);
        assert!(matches!(&answer, Err(NotReleased::Busy(_))), "{answer:?}");
        assert_eq!(server.unload_count(), 0, "{:?}", server.requests());

        let server = StandIn::start(&python, program, "idle");
        let way = server.way();
        let answer = probe_way(&way);
        assert!(answer.is_ok(), "{answer:?}");
        server.assert_untouched();
        let Ok(report) = perform_way(&way, 30_000) else {
            panic!("{:?}", server.requests());
        };
        assert_eq!(server.unload_count(), 1, "{:?}", server.requests());
        assert_eq!(server.held_bytes(), CONTEXT_BYTES);
        let wake = report.wake.unwrap();
        assert!(wake.contains(base), "{wake}");

        // A server that does not answer causes a timeout. gpumem sends no key to a server that requires one.
        let server = StandIn::start(&python, program, "hangs");
        let start = Instant::now();
        let answer = perform_way(&server.way(), 3_000);
        assert!(matches!(&answer, Err(NotReleased::TimedOut(_))), "{answer:?}");
        assert!(start.elapsed() < support::PATIENCE, "{:?}", start.elapsed());
        let server = StandIn::start(&python, program, "key");
        let answer = perform_way(&server.way(), 30_000);
        assert!(matches!(&answer, Err(NotReleased::Refused(_))), "{answer:?}");
    };
    thread::scope(|scope| {
        scope.spawn(|| assert_asked(&SECURE, "https://127.0.0.1:"));
        scope.spawn(|| assert_asked(&LOCAL, "--unix-socket "));
    });
}

#[test]
fn a_stranger_on_a_servers_unix_socket_gets_no_request() {
    let python = or_skip!(support::python_with(&["http.server"]));
    let server = StandIn::start(&python, &LOCAL, "idle");
    let way = server.way();
    let socket = server.machine.path("s");
    fs::remove_file(&socket).unwrap();
    let stranger = UnixListener::bind(&socket).unwrap();
    for answer in [probe_way(&way), perform_way(&way, 30_000)] {
        assert!(matches!(&answer, Err(NotReleased::NoWayIn(_))), "{answer:?}");
        let mut sent = Vec::new();
        stranger.accept().unwrap().0.read_to_end(&mut sent).unwrap();
        assert_eq!(sent, b"");
    }
    assert_eq!(server.requests(), Vec::<String>::new());
    assert_eq!(server.held_bytes(), 2 * GIB);
}

#[test]
fn a_busy_server_is_not_asked_to_unload() {
    with_each(|python, program| {
        let server = StandIn::start(python, program, "busy");
        let way = server.way();
        let answer = perform_way(&way, 30_000);
        assert!(matches!(&answer, Err(NotReleased::Busy(_))), "{}: {answer:?}", program.row);
        assert_eq!(server.unload_count(), 0, "{:?}", server.requests());
        // Reading llama.cpp's slots counts as use, so gpumem reads the slots only immediately before the unload.
        if program.row != "llama.cpp" {
            server.assert_untouched();
            let answer = probe_way(&way);
            assert!(matches!(&answer, Err(NotReleased::Busy(_))), "{}: {answer:?}", program.row);
        }
        assert_eq!(server.held_bytes(), 2 * GIB);
    });
}

/// These servers do not report recent requests, or abort running requests when they unload. Therefore, gpumem refuses
/// while a client is connected.
#[test]
fn a_server_with_a_connected_client_is_not_asked_to_unload() {
    let gated = ["ollama", "llama.cpp"];
    with_each(|python, program| {
        if !gated.contains(&program.row) {
            return;
        }
        let server = StandIn::start(python, program, "idle");
        let way = server.way();
        let client = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
        let answer = perform_way(&way, 30_000);
        assert!(matches!(&answer, Err(NotReleased::Busy(_))), "{}: {answer:?}", program.row);
        server.assert_untouched();
        drop(client);
        wait_until("the server may be asked", || probe_way(&way).is_ok());
    });
}

#[test]
fn answers_unlike_the_servers_are_reported() {
    // Mode of the stand-in, timeout, start and part of the answer, and expected number of unload requests.
    for (manner, wait_ms, name, words, unloads) in [
        // The server claims success, but NVML shows that no memory was freed.
        ("lies", 30_000, "Ok(", "", 1),
        ("hangs", 12_000, "Err(TimedOut(", "it may still do so", 1),
        // Only the user can supply the key. The answer contains the command for that.
        ("key", 30_000, "Err(Refused(", "requires a key", 0),
        ("garbage", 30_000, "Err(NoWayIn(", "", 0),
        ("redirect", 30_000, "Err(NoWayIn(", "", 0),
        ("huge", 30_000, "Err(NoWayIn(", "", 0),
    ] {
        with_each(|python, program| {
            let server = StandIn::start(python, program, manner);
            let way = server.way();
            let start = Instant::now();
            let answer = perform_way(&way, wait_ms);
            assert!(start.elapsed() < support::PATIENCE, "{:?}", start.elapsed());
            let (row, text) = (program.row, format!("{answer:?}"));
            // On a busy machine, the timeout can expire before the answer reaches the size limit.
            let is_slow = manner == "huge" && matches!(&answer, Err(NotReleased::TimedOut(_)));
            assert!(
                text.starts_with(name) && text.contains(words) || is_slow,
                "{row} {manner}: {text}"
            );
            if manner == "key" {
                let base = format!("http://127.0.0.1:{}/", server.port);
                assert!(text.contains("$KEY") && text.contains(&base), "{text}");
            } else if unloads == 0 {
                assert_eq!(server.requests().len(), 1, "{row} {manner}: {:?}", server.requests());
            } else {
                assert_eq!(server.unload_count(), unloads, "{row} {manner}");
            }
            if manner != "hangs" {
                assert_eq!(server.held_bytes(), 2 * GIB, "{row} {manner}");
            }
        });
    }
}

#[test]
fn a_stranger_on_a_servers_port_is_not_contacted() {
    let python = or_skip!(support::python_with(&["http.server"]));
    let mut server = StandIn::start(&python, program_of("comfyui"), "idle");
    let way = server.way();
    server.running = None;
    wait_until("the port is free", || TcpListener::bind(("127.0.0.1", server.port)).is_ok());
    let stranger = TcpListener::bind(("127.0.0.1", server.port)).unwrap();
    stranger.set_nonblocking(true).unwrap();
    let answer = perform_way(&way, 5_000);
    assert!(matches!(&answer, Err(NotReleased::NoWayIn(_))), "{answer:?}");
    // gpumem also refuses if the pid has been reused.
    let own = Stage::new(&[std::process::id()]).observe();
    let way = ReleaseWay {
        pid: std::process::id(),
        start_ticks: own.processes[0].start_ticks.unwrap() + 1,
        ..way
    };
    let answer = perform_way(&way, 5_000);
    assert!(matches!(&answer, Err(NotReleased::NoWayIn(_))), "{answer:?}");
    let sleeper = Running::sleep();
    let other = Stage::new(&[sleeper.pid()]).observe();
    let way = ReleaseWay {
        pid: sleeper.pid(),
        start_ticks: other.processes[0].start_ticks.unwrap(),
        ..way
    };
    // The process has no command line of a server, and does not listen on the port.
    let answer = perform_way(&way, 5_000);
    assert!(matches!(&answer, Err(NotReleased::NoWayIn(_))), "{answer:?}");
    assert!(stranger.accept().is_err(), "gpumem connected to the stranger");
}

#[test]
fn unmet_requirements_of_a_server_are_refused() {
    let python = or_skip!(support::python_with(&["http.server"]));
    for (environment, words) in [
        (("VERSION", "0.16.2"), "vLLM 0.16.2 aborts running requests"),
        (("VERSION", "dev"), "the version of vLLM is unknown"),
        (("DEV_MODE", "0"), "VLLM_SERVER_DEV_MODE=1"),
    ] {
        let server = StandIn::start_with(&python, program_of("vllm"), "idle", &[environment]);
        let answer = perform_way(&server.way(), 30_000);
        let Err(NotReleased::Refused(reason)) = &answer else {
            panic!("{environment:?}: {answer:?}");
        };
        assert!(reason.contains(words), "{reason}");
        server.assert_untouched();
    }
    // The server holds more memory than is available on the host, to which it would move the weights.
    let server = StandIn::start(&python, program_of("vllm"), "idle");
    let mut way = server.way();
    way.by = ReleaseBy::Server(ServerUnload { held_bytes: Some(1 << 50), ..unload(&way).clone() });
    let answer = perform_way(&way, 30_000);
    assert!(matches!(&answer, Err(NotReleased::Refused(_))), "{answer:?}");
    server.assert_untouched();
    // Unloading can crash SGLang, so a rule must not unload it. If a person names the server, the report contains a
    // warning.
    let server = StandIn::start(&python, program_of("sglang"), "idle");
    let way = server.way();
    let by_rule = ReleaseOptions { is_named: false, ..options(30_000) };
    let answer = perform(&Roots::default(), &way, &by_rule);
    assert!(matches!(&answer, Err(NotReleased::Refused(_))), "{answer:?}");
    assert!(server.requests().is_empty());
    let Ok(report) = probe_way(&way) else {
        panic!("{:?}", server.requests());
    };
    assert!(report.why.is_some());
}
