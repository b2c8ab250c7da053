//! Inference servers that unload by their own request: stand-ins that speak the real routes, each in a process of
//! its own, whose listener is looked for in the kernel's tables as any; what NVML shows is the mock driver's.

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

mod command;

/// What its context takes, whatever is unloaded.
const CONTEXT_BYTES: u64 = 256 << 20;

/// A server: its row, the file that its program is, its arguments, and what unloads it.
struct Program {
    row: &'static str,
    file: &'static str,
    arguments: &'static [&'static str],
    deed: &'static str,
}

const fn program(
    row: &'static str,
    file: &'static str,
    arguments: &'static [&'static str],
    deed: &'static str,
) -> Program {
    Program { row, file, arguments, deed }
}

/// `PORT` is where it listens, `METRICS` where its metrics are.
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

/// With a certificate of its own, and on a Unix socket.
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

fn the(row: &str) -> &'static Program {
    PROGRAMS.iter().find(|it| it.row == row).unwrap()
}

/// A server that runs, and the GPU that it holds 2 GiB of.
struct StandIn {
    program: &'static Program,
    running: Option<Running>,
    machine: Machine,
    port: u16,
}

/// Starts a server on a port of its own.
fn run(
    python: &PathBuf,
    program: &Program,
    manner: &str,
    environment: &[(&str, &str)],
    machine: &Machine,
) -> (Running, u16) {
    let (port, metrics) = (support::free_port(), support::free_port());
    let mut listens = port.to_string();
    if program.row == "triton-server" {
        listens = format!("{port} {metrics}");
    }
    let mut command = Command::new(python);
    let file = machine.path(program.file);
    // `cd ComfyUI; python main.py`: only the working directory shows which server it is.
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
    command.env("PORTS", listens);
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
        let (mut running, port) = run(python, program, manner, environment, &machine);
        let ready = machine.path("ready");
        wait_until("it listens", || {
            let ended = running.0.try_wait().unwrap();
            assert!(ended.is_none(), "it ended before it listened: {ended:?}");
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

    /// Where it listens, as a snapshot has it.
    fn address(&self) -> String {
        match self.program.arguments.contains(&"--uds") {
            true => format!("unix:{}", self.machine.path("s").display()),
            false => format!("tcp:127.0.0.1:{}", self.port),
        }
    }

    /// How it is asked, as the snapshot shows it.
    fn way(&self) -> ReleaseWay {
        let snapshot = self.snapshot();
        let way = find(&snapshot.processes[0], &snapshot);
        let way = way.unwrap_or_else(|why| panic!("{}: {why} {snapshot:?}", self.program.row));
        assert_eq!(way.pid, self.pid());
        let server = unload(&way);
        assert_eq!((&*server.server, &*server.address), (self.program.row, &*self.address()));
        way
    }

    /// What NVML shows that is held.
    fn held_bytes(&self) -> u64 {
        let snapshot = self.machine.snapshot(0);
        let rows = snapshot.gpu(0)["processes"].as_array().unwrap();
        rows.iter().map(|row| row["used_bytes"].as_u64().unwrap()).sum()
    }

    /// What it was asked.
    fn asked(&self) -> Vec<String> {
        let record = fs::read_to_string(self.machine.path("record")).unwrap_or_default();
        let asked: Vec<String> = record.lines().map(str::to_owned).collect();
        assert!(!asked.iter().any(|it| it.ends_with("FOREIGN")), "{asked:?}");
        asked
    }

    /// How often it was asked to unload.
    fn deeds(&self) -> usize {
        self.asked().iter().filter(|it| it.starts_with(self.program.deed)).count()
    }

    /// That it was asked nothing that changes, loads, wakes or counts as use.
    fn assert_untouched(&self) {
        let is_harmless = |asked: &String| {
            let reads =
                asked.starts_with("GET /") || asked.starts_with("POST /v2/repository/index");
            reads && !asked.starts_with("GET /slots")
        };
        let asked = self.asked();
        assert!(asked.iter().all(is_harmless), "{}: {asked:?}", self.program.row);
    }
}

fn unload(way: &ReleaseWay) -> &ServerUnload {
    match &way.by {
        ReleaseBy::Server(server) => server,
        other => panic!("{other:?}"),
    }
}

fn probed(way: &ReleaseWay) -> ReleaseAnswer {
    probe(&Roots::default(), way, &options(30_000))
}

fn performed(way: &ReleaseWay, wait_ms: u64) -> ReleaseAnswer {
    perform(&Roots::default(), way, &options(wait_ms))
}

/// Runs a test with each of the programs at once.
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
fn each_server_unloads_and_nvml_shows_what_came_back() {
    with_each(|python, program| {
        let server = StandIn::start(python, program, "idle");
        let row = program.row;
        let way = server.way();
        assert_eq!(unload(&way).held_bytes, Some(2 * GIB), "{row}");
        let answer = probed(&way);
        assert!(answer.is_ok(), "{row}: {answer:?}");
        server.assert_untouched();
        assert_eq!(server.held_bytes(), 2 * GIB);
        let answer = performed(&way, 30_000);
        let Ok(report) = answer else {
            panic!("{row}: {answer:?} {:?}", server.asked());
        };
        assert_eq!(server.deeds(), 1, "{row}: {:?}", server.asked());
        let left = server.held_bytes();
        assert!(left == 0 || left == CONTEXT_BYTES, "{row}: {left}");
        // It goes on listening, and there is a way back.
        assert!(TcpStream::connect(("127.0.0.1", server.port)).is_ok(), "{row}");
        let wake = report.wake.unwrap();
        let base = format!("http://127.0.0.1:{}/", server.port);
        assert!(!wake.contains("curl") || wake.contains(&base), "{row}: {wake}");
    });
}

#[test]
fn a_server_with_a_certificate_of_its_own_or_on_a_unix_socket_is_asked_as_any() {
    let python = or_skip!(support::python_with(&["http.server", "ssl"]));
    or_skip!(support::find("openssl", "openssl"));
    let asked_as_any = |program: &'static Program, base: &str| {
        let server = StandIn::start(&python, program, "busy");
        let answer = performed(&server.way(), 30_000);
        assert!(matches!(&answer, Err(NotReleased::Busy(_))), "{answer:?}");
        assert_eq!(server.deeds(), 0, "{:?}", server.asked());

        let server = StandIn::start(&python, program, "idle");
        let way = server.way();
        let answer = probed(&way);
        assert!(answer.is_ok(), "{answer:?}");
        server.assert_untouched();
        let Ok(report) = performed(&way, 30_000) else {
            panic!("{:?}", server.asked());
        };
        assert_eq!(server.deeds(), 1, "{:?}", server.asked());
        assert_eq!(server.held_bytes(), CONTEXT_BYTES);
        let wake = report.wake.unwrap();
        assert!(wake.contains(base), "{wake}");

        // What does not answer is given up in time, and one that asks for a key is sent none.
        let server = StandIn::start(&python, program, "hangs");
        let begun = Instant::now();
        let answer = performed(&server.way(), 3_000);
        assert!(matches!(&answer, Err(NotReleased::TimedOut(_))), "{answer:?}");
        assert!(begun.elapsed() < support::PATIENCE, "{:?}", begun.elapsed());
        let server = StandIn::start(&python, program, "key");
        let answer = performed(&server.way(), 30_000);
        assert!(matches!(&answer, Err(NotReleased::Refused(_))), "{answer:?}");
    };
    thread::scope(|scope| {
        scope.spawn(|| asked_as_any(&SECURE, "https://127.0.0.1:"));
        scope.spawn(|| asked_as_any(&LOCAL, "--unix-socket "));
    });
}

#[test]
fn a_stranger_on_a_servers_unix_socket_is_sent_nothing() {
    let python = or_skip!(support::python_with(&["http.server"]));
    let server = StandIn::start(&python, &LOCAL, "idle");
    let way = server.way();
    let socket = server.machine.path("s");
    fs::remove_file(&socket).unwrap();
    let stranger = UnixListener::bind(&socket).unwrap();
    for answer in [probed(&way), performed(&way, 30_000)] {
        let Err(NotReleased::NoWayIn(why)) = &answer else {
            panic!("{answer:?}");
        };
        assert!(why.contains("another process listens"), "{why}");
        let mut sent = Vec::new();
        stranger.accept().unwrap().0.read_to_end(&mut sent).unwrap();
        assert_eq!(sent, b"");
    }
    assert_eq!(server.asked(), Vec::<String>::new());
    assert_eq!(server.held_bytes(), 2 * GIB);
}

#[test]
fn a_server_at_work_is_not_touched() {
    with_each(|python, program| {
        let server = StandIn::start(python, program, "busy");
        let way = server.way();
        let answer = performed(&way, 30_000);
        assert!(matches!(&answer, Err(NotReleased::Busy(_))), "{}: {answer:?}", program.row);
        assert_eq!(server.deeds(), 0, "{:?}", server.asked());
        // llama.cpp's slots count as use, and are asked at the deed.
        if program.row != "llama.cpp" {
            server.assert_untouched();
            let answer = probed(&way);
            assert!(matches!(&answer, Err(NotReleased::Busy(_))), "{}: {answer:?}", program.row);
        }
        assert_eq!(server.held_bytes(), 2 * GIB);
    });
}

/// With the answers outside the idle time of 20 s, the proof would take 31 s; it takes 23 s.
#[test]
fn a_slow_server_is_unloaded() {
    let python = or_skip!(support::python_with(&["http.server"]));
    let server = StandIn::start(&python, the("comfyui"), "slow");
    let options = ReleaseOptions { idle_ms: 20_000, ..options(10_500) };
    let answer = perform(&Roots::default(), &server.way(), &options);
    assert!(answer.is_ok(), "{answer:?}");
    assert_eq!(server.deeds(), 1, "{:?}", server.asked());
    assert_eq!(server.held_bytes(), CONTEXT_BYTES);
}

/// It rests whenever it is looked at, and has completed a request since.
#[test]
fn a_server_in_use_is_not_touched() {
    with_each(|python, program| {
        if program.row == "llama.cpp" {
            return;
        }
        let server = StandIn::start(python, program, "used");
        let answer = performed(&server.way(), 30_000);
        assert!(
            matches!(&answer, Err(NotReleased::Busy(why)) if why.contains("it handled a request")),
            "{}: {answer:?}",
            program.row
        );
        server.assert_untouched();
    });
}

/// The servers without a request that shows it, and those of which unloading ends what runs.
#[test]
fn a_server_to_which_a_client_is_connected_is_not_touched() {
    let gated = ["ollama", "llama.cpp"];
    with_each(|python, program| {
        if !gated.contains(&program.row) {
            return;
        }
        let server = StandIn::start(python, program, "idle");
        let way = server.way();
        let client = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
        let answer = performed(&way, 30_000);
        let Err(NotReleased::Busy(why)) = &answer else {
            panic!("{}: {answer:?}", program.row);
        };
        // A busy server may not have heard yet that one that asked before has left.
        assert!(why.contains("connected to it"), "{why}");
        server.assert_untouched();
        drop(client);
        wait_until("it may be asked", || probed(&way).is_ok());
    });
}

#[test]
fn one_that_does_not_do_as_the_server_does_is_told_from_it() {
    // The manner, how long it is waited for, what the answer begins with and has, and what it was asked to do.
    for (manner, wait_ms, name, words, deeds) in [
        // NVML sees that nothing came back.
        ("lies", 30_000, "Ok(", "", 1),
        ("hangs", 12_000, "Err(TimedOut(", "it may still do so", 1),
        // It is left with the command.
        ("key", 30_000, "Err(Refused(", "needs a key", 0),
        ("garbage", 30_000, "Err(NoWayIn(", "", 0),
        ("redirect", 30_000, "Err(NoWayIn(", "", 0),
        ("huge", 30_000, "Err(NoWayIn(", "", 0),
    ] {
        with_each(|python, program| {
            let server = StandIn::start(python, program, manner);
            let way = server.way();
            let begun = Instant::now();
            let answer = performed(&way, wait_ms);
            assert!(begun.elapsed() < support::PATIENCE, "{:?}", begun.elapsed());
            let (row, told) = (program.row, format!("{answer:?}"));
            // A machine that is busy may not read as much as is read in the time.
            let is_slow = manner == "huge" && matches!(&answer, Err(NotReleased::TimedOut(_)));
            assert!(
                told.starts_with(name) && told.contains(words) || is_slow,
                "{row} {manner}: {told}"
            );
            if manner == "key" {
                let base = format!("http://127.0.0.1:{}/", server.port);
                assert!(told.contains("$KEY") && told.contains(&base), "{told}");
            } else if deeds == 0 {
                assert_eq!(server.asked().len(), 1, "{row} {manner}: {:?}", server.asked());
            } else {
                assert_eq!(server.deeds(), deeds, "{row} {manner}");
            }
            if manner != "hangs" {
                assert_eq!(server.held_bytes(), 2 * GIB, "{row} {manner}");
            }
        });
    }
}

#[test]
fn a_stranger_who_has_its_port_is_not_connected_to() {
    let python = or_skip!(support::python_with(&["http.server"]));
    let mut server = StandIn::start(&python, the("comfyui"), "idle");
    let way = server.way();
    server.running = None;
    wait_until("its port is free", || TcpListener::bind(("127.0.0.1", server.port)).is_ok());
    let stranger = TcpListener::bind(("127.0.0.1", server.port)).unwrap();
    stranger.set_nonblocking(true).unwrap();
    let answer = performed(&way, 5_000);
    assert!(matches!(&answer, Err(NotReleased::NoWayIn(_))), "{answer:?}");
    // Nor where a process of that pid lives, as after it was given anew.
    let own = Stage::new(&[std::process::id()]).look();
    let way = ReleaseWay {
        pid: std::process::id(),
        start_ticks: own.processes[0].start_ticks.unwrap() + 1,
        ..way
    };
    let answer = performed(&way, 5_000);
    assert!(matches!(&answer, Err(NotReleased::NoWayIn(_))), "{answer:?}");
    let sleeper = Running::sleep();
    let other = Stage::new(&[sleeper.pid()]).look();
    let way = ReleaseWay {
        pid: sleeper.pid(),
        start_ticks: other.processes[0].start_ticks.unwrap(),
        ..way
    };
    // Its command line is no server's any more, and it does not listen there.
    let answer = performed(&way, 5_000);
    assert!(matches!(&answer, Err(NotReleased::NoWayIn(_))), "{answer:?}");
    assert!(stranger.accept().is_err(), "it was connected to");
}

#[test]
fn what_a_server_lacks_is_a_refusal_in_words() {
    let python = or_skip!(support::python_with(&["http.server"]));
    for (environment, words) in [
        (("VERSION", "0.16.2"), "vLLM 0.16.2 aborts running requests"),
        (("VERSION", "dev"), "the version of vLLM is not known"),
        (("DEV_MODE", "0"), "VLLM_SERVER_DEV_MODE=1"),
    ] {
        let server = StandIn::start_with(&python, the("vllm"), "idle", &[environment]);
        let answer = performed(&server.way(), 30_000);
        let Err(NotReleased::Refused(why)) = &answer else {
            panic!("{environment:?}: {answer:?}");
        };
        assert!(why.contains(words), "{why}");
        server.assert_untouched();
    }
    // Weights go to host memory, and there is not so much of it.
    let server = StandIn::start(&python, the("vllm"), "idle");
    let mut way = server.way();
    way.by = ReleaseBy::Server(ServerUnload { held_bytes: Some(1 << 50), ..unload(&way).clone() });
    let answer = performed(&way, 30_000);
    assert!(
        matches!(&answer, Err(NotReleased::Refused(why)) if why.contains("host memory")),
        "{answer:?}"
    );
    server.assert_untouched();
    // Only a person may ask SGLang, and sees the risk.
    let server = StandIn::start(&python, the("sglang"), "idle");
    let way = server.way();
    let by_rule = ReleaseOptions { is_named: false, ..options(30_000) };
    let answer = perform(&Roots::default(), &way, &by_rule);
    assert!(
        matches!(&answer, Err(NotReleased::Refused(why)) if why.contains("crash")),
        "{answer:?}"
    );
    assert!(server.asked().is_empty());
    let Ok(report) = probed(&way) else {
        panic!("{:?}", server.asked());
    };
    assert!(report.why.unwrap().contains("crash"));
}
