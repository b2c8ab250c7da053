//! Tests conversations with simulated servers: the order of requests, and random races with clients.

use crate::model::dice::Dice;
use std::collections::HashMap;
use std::time::Duration;

use super::conversation::{AskFailed, Conversation, ServerChannel};
use super::*;
use crate::model::process::Relative;
use crate::model::testing::rounds;

#[derive(Clone, Copy, PartialEq, Debug)]
enum Effect {
    /// The unload waits until all running requests are finished.
    Waits,
    /// The unload aborts the running requests.
    Ends,
}

#[derive(Clone, Copy)]
struct Load {
    is_busy: bool,
    is_unloaded: bool,
    /// Number of finished requests.
    done: usize,
}

type Answers = fn(&ServerRequest, Load) -> UnloadAnswer;

/// A server whose client requests start and end at fixed times, in microseconds.
struct Simulated {
    now_us: u64,
    until_us: u64,
    /// Time until each answer.
    answer_us: u64,
    requests: Vec<(u64, u64)>,
    effect: Effect,
    answers: Answers,
    command: Arc<[Arc<str>]>,
    deeds: u32,
    harmed: u32,
    /// Time of the first query about the server's activity.
    queried_us: Option<u64>,
    unload_us: Option<u64>,
    asked: Vec<String>,
    is_unloaded: bool,
    /// Path of a request that is never answered.
    unanswered: &'static str,
    dice: Dice,
}

impl Simulated {
    fn running(&self) -> usize {
        let runs = |(from, to): &&(u64, u64)| (*from..*to).contains(&self.now_us);
        self.requests.iter().filter(runs).count()
    }
}

impl ServerChannel for Simulated {
    fn ask(&mut self, ask: &ServerRequest, limit: Duration) -> Result<UnloadAnswer, AskFailed> {
        self.asked.push(format!("{} {}", ask.verb, ask.path));
        if self.now_us >= self.until_us || ask.path == self.unanswered {
            return Err(AskFailed::Late);
        }
        let is_deed = is_deed(ask);
        if !is_deed {
            let limit_us = u64::try_from(limit.min(self.left()).as_micros()).unwrap();
            let answer_us = self.answer_us + 200 + self.dice.roll(3_000);
            self.now_us += answer_us.min(limit_us);
            if answer_us > limit_us {
                return Err(AskFailed::Late);
            }
        }
        let running = self.running();
        let done = self.requests.iter().filter(|(_, to)| *to <= self.now_us).count();
        if matches!(&*ask.path, "/metrics" | "/queue") {
            self.queried_us.get_or_insert(self.now_us);
        }
        if is_deed {
            self.unload_us = Some(self.now_us);
            self.deeds += 1;
            if self.effect == Effect::Ends {
                self.harmed += u32::try_from(running).unwrap();
            }
            let last = self.requests.iter().filter(|(from, _)| *from <= self.now_us);
            let last = last.map(|(_, to)| *to).max().unwrap_or(0);
            self.now_us = self.now_us.max(last) + self.dice.roll(3_000);
            self.is_unloaded = true;
        }
        let load = Load { is_busy: running > 0, is_unloaded: self.is_unloaded, done };
        Ok((self.answers)(ask, load))
    }

    fn command(&self) -> &[Arc<str>] {
        &self.command
    }

    fn connections(&mut self) -> Option<usize> {
        Some(self.running())
    }

    fn available_bytes(&mut self) -> Option<u64> {
        Some(1 << 40)
    }

    fn pause(&mut self, time: Duration) {
        self.now_us += u64::try_from(time.as_micros()).unwrap();
    }

    fn left(&self) -> Duration {
        Duration::from_micros(self.until_us.saturating_sub(self.now_us))
    }
}

fn is_deed(ask: &ServerRequest) -> bool {
    ask.path.starts_with("/sleep")
        || matches!(&*ask.path, "/models/unload" | "/free" | "/release_memory_occupation")
}

fn json(body: serde_json::Value) -> UnloadAnswer {
    UnloadAnswer { status: 200, body: body.to_string().into_bytes() }
}

fn vllm(ask: &ServerRequest, load: Load) -> UnloadAnswer {
    match &*ask.path {
        "/version" => json(serde_json::json!({"version": "0.33.0"})),
        "/is_sleeping" => json(serde_json::json!({"is_sleeping": load.is_unloaded})),
        "/metrics" => UnloadAnswer {
            status: 200,
            body: format!(
                "vllm:num_requests_running {}\nvllm:num_requests_waiting 0\n\
                vllm:request_success_total{{finished_reason=\"stop\"}} {}\n",
                u8::from(load.is_busy),
                load.done,
            )
            .into_bytes(),
        },
        _ => json(serde_json::json!({})),
    }
}

fn llama_cpp(ask: &ServerRequest, load: Load) -> UnloadAnswer {
    if ask.path.starts_with("/slots") {
        return json(serde_json::json!([{"is_processing": load.is_busy}]));
    }
    let state = if load.is_unloaded { "unloaded" } else { "loaded" };
    json(serde_json::json!({"data": [{"id": "m", "status": {"value": state}}]}))
}

fn comfyui(ask: &ServerRequest, load: Load) -> UnloadAnswer {
    let running = if load.is_busy { vec![1] } else { Vec::new() };
    match &*ask.path {
        "/history?max_items=1" => json(serde_json::json!({format!("prompt {}", load.done): {}})),
        "/queue" => json(serde_json::json!({"queue_running": running, "queue_pending": []})),
        _ => json(serde_json::json!({"system": {"comfyui_version": "1"}, "devices": []})),
    }
}

fn options(is_named: bool) -> ReleaseOptions {
    ReleaseOptions { is_named, wait_ms: 30_000, ..ReleaseOptions::by_rule() }
}

fn run(row: &str, server: &mut Simulated, is_deed: bool) -> ReleaseAnswer {
    run_with(row, server, (&options(true), 1), is_deed)
}

fn run_with(
    row: &str,
    server: &mut Simulated,
    (options, held): (&ReleaseOptions, u64),
    is_deed: bool,
) -> ReleaseAnswer {
    let row = unload_server(row).unwrap();
    let api = row.unload.as_ref().unwrap();
    Conversation::new(row, api, "http://127.0.0.1:1", Some(held), options, server).run(is_deed)
}

/// Simulates servers that get requests at random times or continuously. No request may be lost, and a server that
/// reports its requests must not be unloaded while it is in use.
///
/// The simulation counts connections at the instant of the unload. A real client can still connect in the
/// microseconds between the check and the unload.
#[test]
fn an_unload_interrupts_no_client_request() {
    let servers: [(&str, Answers, Effect); 3] = [
        ("vllm", vllm, Effect::Waits),
        ("llama.cpp", llama_cpp, Effect::Ends),
        ("comfyui", comfyui, Effect::Waits),
    ];
    let mut outcomes: HashMap<(&str, &str), u32> = HashMap::new();
    for race in 0..rounds(1000) {
        let (row, answers, effect) = servers[usize::try_from(race % 3).unwrap()];
        let mut dice = Dice::new(race + 1);
        // Up to four requests of at most half a second each, or continuous short requests.
        let mut requests = Vec::new();
        for _ in 0..dice.roll(5) {
            let from = dice.roll(66_000_000);
            requests.push((from, from + 1 + dice.roll(500_000)));
        }
        if dice.roll(4) == 0 {
            let every = 900_000 + dice.roll(1_500_000);
            requests = (0..80).map(|at| (at * every, at * every + 20_000)).collect();
        }
        let mut server = Simulated {
            requests,
            now_us: dice.roll(2_000_000),
            effect,
            dice,
            ..idle_server(answers, 90_000_000)
        };
        let answer = run(row, &mut server, true);
        assert_eq!(server.harmed, 0, "{row} {race}: {:?}", server.asked);
        let outcome = match answer {
            Ok(_) => {
                assert_eq!(server.deeds, 1, "{row} {race}");
                if let Some((queried, deed)) = server.queried_us.zip(server.unload_us) {
                    let in_use = |(from, to): &&(u64, u64)| *from > queried && *to <= deed - 20_000;
                    let request = server.requests.iter().find(in_use);
                    assert_eq!(request, None, "{row} {race}: unloaded while in use");
                }
                "done"
            }
            Err(NotReleased::Busy(_)) => {
                assert_eq!(server.deeds, 0, "{row} {race}");
                "busy"
            }
            other => panic!("{row} {race}: {other:?} {:?}", server.asked),
        };
        *outcomes.entry((row, outcome)).or_default() += 1;
    }
    for (row, _, _) in servers {
        for outcome in ["done", "busy"] {
            assert!(outcomes.get(&(row, outcome)) > Some(&10), "{outcomes:?}");
        }
    }
}

fn idle_server(answers: Answers, until_us: u64) -> Simulated {
    Simulated {
        requests: Vec::new(),
        now_us: 0,
        until_us,
        answer_us: 0,
        effect: Effect::Ends,
        answers,
        command: ["x", "--enable-sleep-mode", "--enable-memory-saver"].map(Arc::from).into(),
        deeds: 0,
        harmed: 0,
        queried_us: None,
        unload_us: None,
        asked: Vec::new(),
        is_unloaded: false,
        unanswered: "",
        dice: Dice::new(7),
    }
}

#[test]
fn requests_are_sent_in_order() {
    let mut server = idle_server(vllm, 90_000_000);
    assert!(run("vllm", &mut server, false).is_ok());
    let probe = ["GET /version", "GET /is_sleeping", "GET /metrics", "GET /metrics"];
    assert_eq!(server.asked, probe);
    let mut server = idle_server(vllm, 90_000_000);
    assert!(run("vllm", &mut server, true).is_ok());
    assert_eq!(&server.asked[..4], probe);
    assert!(server.now_us > 60_000_000, "it is observed for a minute");
    assert_eq!(server.asked[4..33], ["GET /metrics"; 29]);
    assert_eq!(server.asked[33..], ["POST /sleep?level=1&mode=wait", "GET /is_sleeping"]);
    // The router counts a query of its slots as use, so a probe does not send this query.
    let mut server = idle_server(llama_cpp, 90_000_000);
    assert!(run("llama.cpp", &mut server, false).is_ok());
    assert_eq!(server.asked, ["GET /models", "GET /models"]);
}

fn sglang(ask: &ServerRequest, load: Load) -> UnloadAnswer {
    match &*ask.path {
        "/metrics" => UnloadAnswer {
            status: 200,
            body: format!(
                "sglang:num_running_reqs 0\nsglang:num_queue_reqs 0\nsglang:num_requests_total {}\n",
                load.done
            )
            .into_bytes(),
        },
        _ => json(serde_json::json!({"version": "0.5.9", "enable_memory_saver": true})),
    }
}

/// SGLang is paused before it unloads. It must be resumed unless the unload may still be carried out.
#[test]
fn a_paused_server_is_resumed_if_it_does_not_unload() {
    for (unanswered, last, words) in [
        ("", "POST /release_memory_occupation", ""),
        ("/pause_generation", "POST /continue_generation", "was not asked to unload"),
        ("/release_memory_occupation", "POST /release_memory_occupation", "/continue_generation"),
    ] {
        let mut server = Simulated { unanswered, ..idle_server(sglang, 90_000_000) };
        let answer = run("sglang", &mut server, true);
        assert_eq!(server.asked.last().map(String::as_str), Some(last), "{answer:?}");
        match answer {
            Ok(_) => assert_eq!(unanswered, ""),
            Err(NotReleased::TimedOut(why)) => assert!(why.contains(words), "{why}"),
            other => panic!("{other:?}"),
        }
    }
}

/// Each check of ComfyUI sends two queries. The default time limit is 70 s, including an idle time of 60 s.
#[test]
fn a_slow_server_is_proved_idle_or_too_slow_and_never_hangs() {
    for answer_ms in [0, 100, 500, 1_000] {
        let mut server = idle_server(comfyui, 70_000_000);
        server.answer_us = answer_ms * 1_000;
        let answer = run("comfyui", &mut server, true);
        assert!(answer.is_ok(), "{answer_ms}: {answer:?}");
        assert_eq!(server.deeds, 1);
        let watched_us = server.unload_us.unwrap() - server.queried_us.unwrap();
        assert!(watched_us >= 60_000_000, "{answer_ms}: {watched_us}");
        assert!(server.asked.len() >= 30, "{answer_ms}: {:?}", server.asked);
    }
    for (answer_ms, words) in [
        (2_000, "answers too slowly to be proved idle"),
        (3_000, "answers too slowly to be proved idle"),
        (7_000, "answers too slowly to be proved idle"),
        (9_000, "within 8 s and was not asked to unload; it hangs, or is too slow"),
    ] {
        let mut server = idle_server(comfyui, 70_000_000);
        server.answer_us = answer_ms * 1_000;
        let options = ReleaseOptions { wait_ms: 10_000, ..options(true) };
        let answer = run_with("comfyui", &mut server, (&options, 1), true);
        assert!(
            matches!(&answer, Err(NotReleased::TimedOut(why)) if why.contains(words)),
            "{answer_ms}: {answer:?}"
        );
        assert_eq!(server.deeds, 0);
    }
}

#[test]
fn weights_that_may_not_fit_are_moved_only_with_force() {
    let ask = |held: u64, insists: bool| {
        let mut server = idle_server(vllm, 90_000_000);
        let options = ReleaseOptions { insists, ..options(true) };
        run_with("vllm", &mut server, (&options, held), true)
    };
    // The held memory exceeds the available host memory, although the weights alone may fit.
    let answer = ask(1 << 50, false);
    assert!(
        matches!(&answer, Err(NotReleased::Refused(why)) if why.contains("gpumem release --force vllm")),
        "{answer:?}"
    );
    assert!(ask(1 << 50, true).is_ok());
}

#[test]
fn a_server_without_its_flag_is_not_asked() {
    let mut server = idle_server(vllm, 30_000_000);
    server.command = Arc::from(vec![Arc::from("vllm"), Arc::from("serve")]);
    let answer = run("vllm", &mut server, true);
    assert!(
        matches!(&answer, Err(NotReleased::Refused(why)) if why.contains("--enable-sleep-mode")),
        "{answer:?}"
    );
    assert!(server.asked.is_empty());
}

fn process(command: &str, on: &[&str]) -> Process {
    Process {
        pid: 70,
        start_ticks: Some(700),
        command: Some(command.split(' ').map(Arc::from).collect()),
        listening_on: (!on.is_empty()).then(|| on.iter().copied().map(Arc::from).collect()),
        listening_relatives: Some(Arc::from(Vec::new())),
        ..Process::default()
    }
}

fn with_ancestor(mut process: Process, command: &str, on: &str) -> Process {
    let relative = Relative {
        pid: 60,
        start_ticks: Some(600),
        relation: Relation::Ancestor,
        command: Some(command.split(' ').map(Arc::from).collect()),
        working_directory: None,
        listening_on: [Arc::from(on)].into(),
        client_addresses: None,
    };
    process.listening_relatives = Some([relative].into());
    process
}

fn find_way(process: &Process) -> Option<Result<ReleaseWay, String>> {
    let snapshot = Snapshot {
        processes: vec![process.clone()],
        ..Snapshot::new(crate::model::Time::from_unix_milliseconds(0))
    };
    find(process, &snapshot)
}

#[test]
fn only_servers_with_an_unload_request_are_found() {
    assert_eq!(find_way(&process("python train.py", &["tcp:0.0.0.0:29500"])), None);
    assert_eq!(find_way(&process("VLLM::EngineCore", &[])), None);
    for (command, words) in [
        ("text-generation-launcher", "no request that unloads"),
        ("trtllm-serve m", "no request that unloads"),
        ("infinity_emb v2", "no request that unloads"),
        ("xinference-local", "only stop a model's worker"),
    ] {
        let why = find_way(&process(command, &["tcp:0.0.0.0:80"])).unwrap().unwrap_err();
        assert!(why.contains(words), "{why}");
        // The worker of a server is recognised even if it does not listen.
        assert!(find_way(&process(command, &[])).unwrap().is_err());
    }
    // A server that another server started must be unloaded by that server.
    for command in ["llama-server -m a.gguf --port 5800", "vllm serve m --port 5800"] {
        let started = process(command, &["tcp:127.0.0.1:5800"]);
        let why =
            find_way(&with_ancestor(started, "llama-swap", "tcp:[::]:8080")).unwrap().unwrap_err();
        assert!(why.contains("to unload them: `curl"), "{why}");
    }
    let unknown = process("vllm serve m", &["tcp:0.0.0.0:1", "tcp:0.0.0.0:2"]);
    assert!(find_way(&unknown).unwrap().unwrap_err().contains("which of its ports"));
    let unknown = process("vllm serve m", &["unix:@v"]);
    assert!(find_way(&unknown).unwrap().unwrap_err().contains("127.0.0.1"));
    let mut expandable = process("vllm serve m", &["tcp:0.0.0.0:8000"]);
    let variable = ("PYTORCH_CUDA_ALLOC_CONF".into(), "expandable_segments:True".into());
    expandable.environment = Some(Arc::new([variable].into()));
    assert!(find_way(&expandable).unwrap().unwrap_err().contains("expandable segments"));
}

#[test]
fn an_address_becomes_a_curl_argument() {
    for (address, expected) in [
        ("tcp:0.0.0.0:8000", "http://127.0.0.1:8000"),
        ("tcp:[::]:8000", "http://127.0.0.1:8000"),
        ("tcp:[::1]:8000", "http://[::1]:8000"),
        ("tcp:127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("unix:/run/a b", "--unix-socket '/run/a b' http://localhost"),
    ] {
        let listener = Listener {
            pid: 1,
            start_ticks: 1,
            endpoint: endpoint(address).unwrap(),
            is_https: false,
        };
        assert_eq!(base(&listener), expected);
    }
    for address in ["", "tcp:", "tcp:8000", "unix:", "unix:@a", "unix:a", "udp:127.0.0.1:1"] {
        assert_eq!(endpoint(address), None, "{address}");
    }
}
