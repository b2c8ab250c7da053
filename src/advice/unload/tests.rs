//! Tests the table and the verdicts on answers, and that the advice in `explain` agrees with the table.

use super::*;
use crate::advice;
use crate::model::process::{Container, Relative};

fn words(command: &str) -> Vec<Arc<str>> {
    command.split(' ').map(Arc::from).collect()
}

fn addresses_of(addresses: &[&str]) -> Vec<Arc<str>> {
    addresses.iter().copied().map(Arc::from).collect()
}

fn answer(status: u16, body: &str) -> UnloadAnswer {
    UnloadAnswer { status, body: body.as_bytes().to_vec() }
}

fn deeds(row: &UnloadServer) -> Vec<ServerRequest> {
    let facts = ServerFacts {
        models: vec!["a/b:1".to_owned(), "MODEL".to_owned()],
        ..ServerFacts::default()
    };
    row.unload.as_ref().map_or_else(Vec::new, |api| api.deeds(&facts))
}

#[test]
fn every_row_is_complete() {
    let table = parse().unwrap();
    let mut names: Vec<&str> = table.server.iter().map(|row| &*row.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), table.server.len());
    for row in &table.server {
        let name = &row.name;
        assert!(!name.is_empty() && !row.title.is_empty(), "{name}");
        assert!(row.advice.is_some() != row.unload.is_some(), "{name}");
        // An entry contains both scripts and folders, or neither.
        assert_eq!(row.folders.is_empty(), row.scripts.is_empty(), "{name}");
        let Some(api) = &row.unload else {
            continue;
        };
        assert!(row.port > 0 && !api.start.is_empty() && !api.wake.is_empty(), "{name}");
        // Answers or the absence of connections must prove that the server is idle.
        assert!(!api.idle.is_empty() || api.is_idle_unconnected, "{name}");
        let hold = api.hold.iter().flat_map(|hold| [&hold.pause, &hold.resume]);
        for deed in deeds(row).into_iter().chain(hold.map(|question| question.request("m"))) {
            let is_json = |body: &String| serde_json::from_str::<Value>(body).is_ok();
            assert!(deed.body.as_ref().is_none_or(is_json), "{name} {deed:?}");
            assert!(deed.verb == "POST" && deed.path.starts_with('/'), "{deed:?}");
        }
        for question in api.identify.iter().chain(&api.idle).chain(&api.done) {
            let ask = question.request("m");
            assert!(ask.verb == "GET" || ask.path == "/v2/repository/index", "{name} {ask:?}");
            assert!(ask.path.starts_with('/') && !ask.path.contains("/slots"), "{name} {ask:?}");
        }
    }
}

#[test]
fn model_names_are_encoded_in_paths_and_bodies() {
    let row = unload_server("triton-server").unwrap();
    assert_eq!(deeds(row)[0].path, "/v2/repository/models/a%2Fb%3A1/unload");
    assert_eq!(encoded("../é?#"), "..%2F%C3%A9%3F%23");
    let row = unload_server("ollama").unwrap();
    let body = deeds(row)[0].body.clone().unwrap();
    assert_eq!(body, r#"{"model": "a/b:1", "keep_alive": 0}"#);
}

#[test]
fn servers_are_recognised_by_command_folder_and_port() {
    let none: &[&str] = &[];
    for (name, command, addresses) in [
        ("vllm", "vllm serve m", none),
        ("vllm", "python -m vllm.entrypoints.openai.api_server --port 1", none),
        ("vllm", "/v/bin/python3.12 /v/bin/vllm serve m", none),
        ("vllm", "VLLM::EngineCore", none),
        ("sglang", "sglang::scheduler_TP0", none),
        ("sglang", "python -m sglang.launch_server", none),
        ("ollama", "/usr/local/bin/ollama serve", none),
        ("torchserve", "java -cp x org.pytorch.serve.ModelServer", none),
        ("comfyui", "python /srv/ComfyUI/main.py --listen", none),
        ("comfyui", "python main.py --listen", &["tcp:0.0.0.0:8188"]),
        ("stable-diffusion-webui", "python launch.py", &["tcp:127.0.0.1:7860"]),
        ("tabbyapi", "python /srv/tabbyAPI/main.py", none),
        ("tgi", "text-generation-launcher --model-id m", none),
        ("xinference", "/v/bin/python /v/bin/xinference-local", none),
    ] {
        let runs = unload_servers()
            .iter()
            .filter(|row| row.runs(&words(command), None, &addresses_of(addresses)));
        assert_eq!(runs.map(|row| &*row.name).collect::<Vec<_>>(), [name], "{command}");
    }
    for (command, addresses) in [
        ("python main.py", &["tcp:0.0.0.0:80"] as &[&str]),
        ("python train.py --model vllm", none),
        ("python server.py", none),
        ("python /srv/ComfyUI/train.py", none),
        ("python /srv/ComfyUI/custom_nodes/x/main.py", none),
        ("python ComfyUI/../main.py", none),
        ("python -c import#vllm", none),
        ("cat vllm", none),
        ("java -cp org.pytorch.serve.ModelServer2", none),
    ] {
        let mut rows = unload_servers().iter();
        let found = rows.find(|row| row.runs(&words(command), None, &addresses_of(addresses)));
        assert!(found.is_none(), "{command}: {found:?}");
    }
}

/// Returns the name of the table entry that matches a listening process.
fn server_in(working_directory: Option<&str>, command: &str, port: u16) -> Option<&'static str> {
    let process = Process {
        start_ticks: Some(7),
        command: Some(words(command).into()),
        working_directory: working_directory.map(Arc::from),
        listening: Some(true),
        listening_on: Some([Arc::from(format!("tcp:127.0.0.1:{port}"))].into()),
        ..Process::default()
    };
    server_of(&process).map(|(row, _)| &*row.name)
}

#[test]
fn a_relative_script_is_in_the_working_directory() {
    for (name, folder, command) in [
        ("comfyui", "/home/ann/ComfyUI", "python main.py --port 3000"),
        ("comfyui", "/home/ann/ComfyUI/", "python -u ./main.py --port 3000"),
        ("comfyui", "/home/ann", "python ComfyUI/main.py --port 3000"),
        ("tabbyapi", "/home/ann/tabbyAPI", "python main.py"),
        ("tabbyapi", "/home/ann/tabbyAPI", "python3 start.py --gpu-lib cu12"),
        ("text-generation-webui", "/opt/text-generation-webui", "python server.py --api"),
        ("stable-diffusion-webui", "/srv/stable-diffusion-webui", "python -u launch.py --api"),
        ("stable-diffusion-webui", "/srv/sdnext", "python webui.py"),
        ("fooocus", "/root/Fooocus", "python launch.py --port 6006"),
    ] {
        assert_eq!(server_in(Some(folder), command, 3000), Some(name), "{folder}: {command}");
        assert_eq!(server_in(None, command, 3000).is_some(), command.contains("UI/"), "{command}");
    }
    for (folder, command) in [
        ("/home/ann/ComfyUI", "python train.py"),
        ("/home/ann/ComfyUI", "python /home/ann/main.py"),
        ("/home/ann/ComfyUI", "python /main.py"),
        ("/home/ann/ComfyUI", "python scripts/main.py"),
        ("/home/ann/ComfyUI", "python ../main.py"),
        ("/home/ann/ComfyUI", "python -m http.server"),
        ("/home/ann/ComfyUI", "main"),
        ("/home/ann/ComfyUI/custom_nodes", "python main.py"),
        ("/home/ann/ComfyUI2", "python main.py"),
        ("/", "python main.py"),
        ("", "python main.py"),
    ] {
        assert_eq!(server_in(Some(folder), command, 3000), None, "{folder}: {command}");
    }
    // On the default port, the script's name alone is sufficient.
    assert_eq!(server_in(Some("/home/ann"), "python main.py", 8188), Some("comfyui"));
}

#[test]
fn requests_go_to_the_configured_or_default_port() {
    for (name, command, addresses, expected) in [
        (
            "vllm",
            "vllm serve m --port 8011",
            &["tcp:0.0.0.0:8011", "tcp:0.0.0.0:5555"] as &[&str],
            Some("tcp:0.0.0.0:8011"),
        ),
        (
            "vllm",
            "vllm serve m --port=1 --port=8011",
            &["tcp:0.0.0.0:8011", "tcp:0.0.0.0:1"],
            Some("tcp:0.0.0.0:8011"),
        ),
        ("vllm", "vllm serve m", &["tcp:0.0.0.0:5555", "tcp:[::]:8000"], Some("tcp:[::]:8000")),
        ("vllm", "vllm serve m", &["tcp:127.0.0.1:1234"], Some("tcp:127.0.0.1:1234")),
        ("vllm", "vllm serve m", &["unix:/run/v.sock"], Some("unix:/run/v.sock")),
        ("vllm", "vllm serve m", &["tcp:0.0.0.0:1", "tcp:0.0.0.0:2"], None),
        ("vllm", "vllm serve m --port 8011", &["tcp:0.0.0.0:8000"], None),
        (
            "triton-server",
            "tritonserver",
            &["tcp:0.0.0.0:8000", "tcp:0.0.0.0:8001", "tcp:0.0.0.0:8002"],
            Some("tcp:0.0.0.0:8000"),
        ),
    ] {
        let row = unload_server(name).unwrap();
        let found = row.address(&words(command), &addresses_of(addresses));
        assert_eq!(found.as_deref(), expected, "{command} {addresses:?}");
    }
    let triton = unload_server("triton-server").unwrap();
    assert_eq!(triton.metrics_port(&words("tritonserver --metrics-port=9")), Some(9));
    assert_eq!(triton.metrics_port(&words("tritonserver")), Some(8002));
    let vllm = unload_server("vllm").unwrap();
    assert!(vllm.is_secure(&words("vllm serve m --ssl-certfile=/a")));
    assert!(!vllm.is_secure(&words("vllm serve m")));
}

#[test]
fn metrics_are_summed_and_missing_ones_are_unknown() {
    let text = "# HELP a a 1\n# TYPE a gauge\na{x=\"1 } 5\"} 2.0 1700000000\na{x=\"2\"} 3\nab 7\nb 0.0\nc NaN\nd -1\ne\n";
    assert_eq!(metric(text, "a"), Some(5.0));
    assert_eq!(metric(text, "b"), Some(0.0));
    for name in ["c", "d", "e", "f"] {
        assert_eq!(metric(text, name), None, "{name}");
    }
    let zero = Question { zero: vec!["b".into(), "a".into()], ..Question::default() };
    let check = |status, text| zero.check(&answer(status, text), &mut ServerFacts::default());
    assert_eq!(check(200, "a 0\nb 0\n"), Ok(()));
    assert!(matches!(check(200, text), Err(AnswerVerdict::Busy(_))));
    assert!(matches!(check(200, "b 0\n"), Err(AnswerVerdict::Unknown(_))));
    assert_eq!(check(404, "a 0\nb 0\n"), Err(AnswerVerdict::Absent));
}

#[test]
fn versions_are_parsed_leniently() {
    for (text, expected) in [
        ("0.17.1", Some((0, 17, 1))),
        ("v0.17", Some((0, 17, 0))),
        ("0.33.0rc1.dev12+gabc", Some((0, 33, 0))),
        ("1.2.3.4", Some((1, 2, 3))),
        ("dev", None),
        ("", None),
        ("99999999999.1", None),
    ] {
        assert_eq!(version(text), expected, "{text}");
    }
}

#[test]
fn no_malformed_answer_proves_a_server_idle() {
    let deep = "[".repeat(100_000);
    let many = format!("{{\"models\":[{}{{}}]}}", "{\"name\":\"a\"},".repeat(300));
    let bodies = [
        "",
        "null",
        "{}",
        "[]",
        "0",
        "\u{feff}{}",
        "true",
        "\"idle\"",
        &deep,
        &many,
        "{\"models\": 0}",
        "{\"data\": [{}]}",
        "{\"running\": [{}]}",
        "{\"state\": {}}",
    ];
    for row in unload_servers().iter().filter(|row| row.unload.is_some()) {
        let api = row.unload.iter();
        let idle = || api.clone().flat_map(|api| &api.idle);
        for body in bodies {
            let refuses = |question: &Question| {
                question.check(&answer(200, body), &mut ServerFacts::default()).is_err()
            };
            assert!(idle().any(refuses), "{} {:.40}", row.name, body);
        }
        for question in idle().chain(api.clone().flat_map(|api| &api.at_deed)) {
            for status in [301, 401, 404, 500] {
                let judged = question.check(&answer(status, "{}"), &mut ServerFacts::default());
                assert!(judged.is_err() || question.may_be_absent, "{} {status}", row.name);
            }
        }
    }
}

#[test]
fn answers_map_to_the_right_verdict() {
    let api = |name: &str| unload_server(name).unwrap().unload.as_ref().unwrap();
    let asked = |question: &Question, status, body: &str| {
        let mut facts = ServerFacts::default();
        (question.check(&answer(status, body), &mut facts), facts)
    };
    let busy = |judged| matches!(judged, (Err(AnswerVerdict::Busy(_)), _));
    // If a model is only in host memory, Ollama reports a `size_vram` of 0. Each use of a model changes `expires_at`.
    let ollama = &api("ollama").idle[0];
    let (judged, facts) = asked(
        ollama,
        200,
        r#"{"models": [{"name": "a", "size_vram": 9, "expires_at": "t"}, {"name": "b", "size_vram": 0}]}"#,
    );
    assert_eq!((judged, facts.models, facts.marks), (Ok(()), vec!["a".into()], vec!["a t".into()]));
    let llama = &api("llama.cpp").idle[0];
    assert!(busy(asked(llama, 200, r#"{"data": [{"id": "a", "status": {"value": "loading"}}]}"#)));
    let single = asked(llama, 200, r#"{"data": [{"id": "a"}]}"#).0;
    assert!(
        matches!(single, Err(AnswerVerdict::Nothing(why)) if why.contains("started with its model"))
    );
    let slots = api("llama.cpp").at_deed.as_ref().unwrap();
    assert_eq!(asked(slots, 404, "").0, Ok(()));
    let some = r#"[{"is_processing": false}, {"is_processing": true}]"#;
    assert!(busy(asked(slots, 200, some)));
    let jobs = &api("stable-diffusion-webui").idle[0];
    assert!(busy(asked(jobs, 200, r#"{"state": {"job_count": -1}}"#)));
    let sglang = &api("sglang").identify[0];
    let (judged, facts) = asked(sglang, 200, r#"{"version": "0.5.6"}"#);
    assert_eq!((judged, facts.version), (Ok(()), Some((0, 5, 6))));
    let without = r#"{"version": "0.5.6", "enable_memory_saver": false}"#;
    assert_eq!(asked(sglang, 200, without).0, Err(AnswerVerdict::Absent));
    let triton = &api("triton-server").identify[0];
    let other = r#"{"name": "triton", "extensions": ["statistics"]}"#;
    assert!(matches!(asked(triton, 200, other).0, Err(AnswerVerdict::Another(_))));
    let done = api("ollama").done.as_ref().unwrap();
    let judge = |body| done.check_done(&answer(200, body), &mut ServerFacts::default());
    assert_eq!(judge(r#"{"models": []}"#), Ok(()));
    assert_eq!(judge(r#"{"models": [{"name": "a"}]}"#), Err(AnswerVerdict::NotYet));
    assert!(matches!(judge("{}"), Err(AnswerVerdict::Another(_))));
}

#[test]
fn commands_are_quoted() {
    let api = |name: &str| unload_server(name).unwrap().unload.as_ref().unwrap();
    let line = |name, model: &str, base| {
        let facts = ServerFacts { models: vec![model.to_owned()], ..ServerFacts::default() };
        api(name).deeds(&facts)[0].command(base, api(name).key())
    };
    assert_eq!(
        line("llama.cpp", "a'b; reboot", "http://127.0.0.1:8080").unwrap(),
        r#"curl -H "Authorization: Bearer $KEY" -H 'Content-Type: application/json' -d '{"model": "a'\''b; reboot"}' http://127.0.0.1:8080/models/unload"#
    );
    assert_eq!(
        line("vllm", "", "--unix-socket /run/v.sock http://localhost").unwrap(),
        "curl -X POST -H \"Authorization: Bearer $KEY\" --unix-socket /run/v.sock 'http://localhost/sleep?level=1&mode=wait'"
    );
    assert_eq!(line("llama.cpp", "\u{202e}", "http://127.0.0.1:8080"), None);
}

#[test]
fn advice_matches_the_unload_table() {
    let mut held = 0;
    for row in unload_servers() {
        let Some(framework) =
            advice::frameworks().iter().find(|framework| framework.name == row.name)
        else {
            continue;
        };
        let texts: Vec<&str> = framework.inside.iter().map(|line| &*line.text).collect();
        let text = texts.join("\n");
        let Some(api) = &row.unload else {
            assert!(framework.inside.is_empty(), "{}: {text}", row.name);
            continue;
        };
        held += 1;
        let facts = ServerFacts { models: vec!["MODEL".to_owned()], ..ServerFacts::default() };
        for ask in api.deeds(&facts) {
            assert!(text.contains(&ask.path), "{}: {} is not in {text}", row.name, ask.path);
        }
        for wake in ["/wake_up", "/resume_memory_occupation"] {
            assert_eq!(api.wake.contains(wake), text.contains(wake), "{}", row.name);
        }
        if let Some((major, minor)) = api.since {
            assert!(text.contains(&format!("before {major}.{minor}")), "{}: {text}", row.name);
        }
        let all = framework.inside.iter().chain(&framework.at_start);
        let all: Vec<&str> = all.map(|line| &*line.text).collect();
        if let Some(flag) = &api.flag {
            assert!(all.join("\n").contains(flag), "{}", row.name);
        }
    }
    assert_eq!(held, 5, "vllm, sglang, triton-server, ollama, llama.cpp");
}

fn server(framework: &str, command: &str, addresses: &[&str]) -> Process {
    Process {
        start_ticks: Some(70),
        framework: Some(framework.into()),
        command: Some(words(command).into()),
        listening_on: Some(addresses_of(addresses).into()),
        ..Process::default()
    }
}

fn with_parent(process: Process, command: &str, address: &str) -> Process {
    let relative = Relative {
        start_ticks: Some(60),
        pid: 7,
        relation: Relation::Ancestor,
        command: Some(words(command).into()),
        working_directory: None,
        listening_on: [Arc::from(address)].into(),
        client_addresses: None,
    };
    Process { listening_relatives: Some([relative].into()), ..process }
}

#[test]
fn the_address_of_a_listening_server_is_filled_in() {
    let worker = || server("vllm", "VLLM::EngineCore", &[]);
    let runner = server("ollama", "/usr/bin/ollama runner --port 40123", &["tcp:127.0.0.1:40123"]);
    let contained = Process {
        container: Some(Arc::new(Container { id: Some("3f2a".into()), ..Container::default() })),
        ..server("vllm", "vllm serve m", &["tcp:127.0.0.1:8000"])
    };
    for (process, words) in [
        (server("vllm", "vllm serve m", &["tcp:0.0.0.0:8011"]), "http://localhost:8011/wake_up"),
        (
            server("vllm", "vllm serve m --ssl-certfile /a.pem", &["tcp:10.0.0.7:8000"]),
            "https://10.0.0.7:8000/wake_up",
        ),
        (
            server("sglang", "python -m sglang.launch_server", &["tcp:[::1]:30001"]),
            "http://localhost:30001/release_memory_occupation",
        ),
        (
            server("triton-server", "tritonserver --http-port=9000", &["tcp:0.0.0.0:9000"]),
            "http://localhost:9000/v2/repository/models/MODEL/unload",
        ),
        (with_parent(worker(), "vllm serve m", "tcp:0.0.0.0:8012"), "localhost:8012/"),
        (with_parent(runner, "ollama serve", "tcp:127.0.0.1:11434"), "localhost:11434/"),
        (contained, "HOST:8000/wake_up"),
        (
            Process { listening_on: None, ..server("vllm", "vllm serve m --port 8011", &[]) },
            "http://localhost:8011/wake_up",
        ),
        // A worker whose server is unknown has no known address, so the placeholder remains.
        (worker(), "HOST:PORT"),
        (server("vllm", "vllm serve m --port 8011", &["tcp:0.0.0.0:8000"]), "HOST:PORT"),
        (server("vllm", "vllm serve m", &["unix:/run/x"]), "HOST:PORT"),
        (with_parent(worker(), "llama-swap", "tcp:0.0.0.0:8080"), "HOST:PORT"),
    ] {
        let lines = advice::find(process.framework.as_deref().unwrap()).unwrap().inside.iter();
        let text = lines.map(|line| line.text_for(&process)).collect::<Vec<_>>().join("\n");
        assert!(text.contains(words), "{words}: {text}");
    }
}
