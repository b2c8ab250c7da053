//! The table as a whole, what answers mean, and that the words of `serving` agree with it.

use super::answer::{metric, version};
use super::*;
use crate::advice;

fn words(command: &str) -> Vec<String> {
    command.split(' ').map(str::to_owned).collect()
}

fn places(on: &[&str]) -> Vec<Arc<str>> {
    on.iter().copied().map(Arc::from).collect()
}

fn answer(status: u16, body: &str) -> UnloadAnswer {
    UnloadAnswer { status, body: body.as_bytes().to_vec() }
}

/// A row with what is known of a server that has two models loaded.
fn unloads(row: &UnloadServer) -> Vec<ServerRequest> {
    let known = Known { models: vec!["a/b:1".to_owned(), "MODEL".to_owned()], ..Known::default() };
    row.api.as_ref().map_or_else(|_| Vec::new(), |api| (api.unload)(&known))
}

#[test]
fn each_row_is_whole() {
    let mut names: Vec<&str> = unload_servers().iter().map(|row| row.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), unload_servers().len());
    let ways = unload_servers().iter().filter(|row| row.api.is_ok());
    assert_eq!(ways.count(), 16);
    for row in unload_servers() {
        assert!(!row.title.is_empty() && row.usual_port > 0, "{}", row.name);
        let Ok(api) = &row.api else {
            continue;
        };
        assert!(!unloads(row).is_empty(), "{}", row.name);
        assert!(!api.start.is_empty() && !api.wake.is_empty(), "{}", row.name);
        // Rest is proved by its answers or by who is connected.
        assert!(!api.idle.is_empty() || api.is_idle_unconnected, "{}", row.name);
        // What proves that it is the server comes first, and only reads.
        for question in api.identify.iter().chain(api.idle) {
            let ask = (question.ask)();
            let only_lists = ask.path == "/v2/repository/index";
            assert!(ask.verb == Verb::Get || only_lists, "{} {ask:?}", row.name);
            assert!(!ask.path.contains("/slots") && !ask.path.contains("model="), "{ask:?}");
        }
    }
}

#[test]
fn an_engine_sleeps_at_level_1_once_its_requests_have_ended() {
    for name in ["vllm", "aphrodite"] {
        let row = unload_server(name).unwrap();
        assert_eq!(unloads(row)[0].path, "/sleep?level=1&mode=wait");
        assert!(row.api.as_ref().unwrap().since >= Some((0, 17)));
        assert!(row.api.as_ref().unwrap().needs_host_memory);
    }
}

#[test]
fn what_may_harm_a_request_is_only_for_a_person_to_ask() {
    let risky = unload_servers().iter().filter(|row| row.api.is_ok_and(|api| api.risk.is_some()));
    assert_eq!(
        risky.map(|row| row.name).collect::<Vec<_>>(),
        [
            "llama-swap",
            "lm-studio",
            "sglang",
            "llama.cpp",
            "text-generation-webui",
            "tabbyapi",
            "stable-diffusion-webui",
        ]
    );
}

#[test]
fn a_name_stays_a_part_of_its_path() {
    let row = unload_server("triton-server").unwrap();
    assert_eq!(unloads(row)[0].path, "/v2/repository/models/a%2Fb%3A1/unload");
    assert_eq!(encoded("../é?#"), "..%2F%C3%A9%3F%23");
    let row = unload_server("ollama").unwrap();
    let body = unloads(row)[0].body.clone().unwrap();
    assert_eq!(body, r#"{"keep_alive":0,"model":"a/b:1"}"#);
}

#[test]
fn a_server_is_recognised_by_what_runs_it() {
    let none: &[&str] = &[];
    for (name, command, on) in [
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
        (
            "text-generation-webui",
            "python server.py --api",
            &["tcp:127.0.0.1:5000", "tcp:127.0.0.1:7860"],
        ),
        ("tabbyapi", "python main.py", &["tcp:127.0.0.1:5000"]),
        ("tgi", "text-generation-launcher --model-id m", none),
        ("xinference", "/v/bin/python /v/bin/xinference-local", none),
    ] {
        let runs = unload_servers().iter().filter(|row| row.runs(&words(command), &places(on)));
        assert_eq!(runs.map(|row| row.name).collect::<Vec<_>>(), [name], "{command}");
    }
    for (command, on) in [
        ("python main.py", &["tcp:0.0.0.0:80"] as &[&str]),
        ("python train.py --model vllm", none),
        ("python server.py", none),
        ("python -c import#vllm", none),
        ("cat vllm", none),
        ("java -cp org.pytorch.serve.ModelServer2", none),
    ] {
        let mut rows = unload_servers().iter();
        let found = rows.find(|row| row.runs(&words(command), &places(on)));
        assert!(found.is_none(), "{command}: {found:?}");
    }
}

#[test]
fn it_is_asked_where_it_is_known_to_listen() {
    for (name, command, on, expected) in [
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
            "llama-swap",
            "llama-swap --listen 127.0.0.1:9292",
            &["tcp:127.0.0.1:9292", "tcp:127.0.0.1:1"],
            Some("tcp:127.0.0.1:9292"),
        ),
        (
            "triton-server",
            "tritonserver",
            &["tcp:0.0.0.0:8000", "tcp:0.0.0.0:8001", "tcp:0.0.0.0:8002"],
            Some("tcp:0.0.0.0:8000"),
        ),
    ] {
        let row = unload_server(name).unwrap();
        let found = row.address(&words(command), &places(on));
        assert_eq!(found.as_deref(), expected, "{command} {on:?}");
    }
    let triton = unload_server("triton-server").unwrap();
    assert_eq!(triton.metrics_port(&words("tritonserver --metrics-port=9")), Some(9));
    assert_eq!(triton.metrics_port(&words("tritonserver")), Some(8002));
    let vllm = unload_server("vllm").unwrap();
    assert!(vllm.is_secure(&words("vllm serve m --ssl-certfile=/a")));
    assert!(!vllm.is_secure(&words("vllm serve m")));
}

#[test]
fn metrics_are_summed_and_never_taken_for_none() {
    let text = "# HELP a a 1\n# TYPE a gauge\na{x=\"1 } 5\"} 2.0 1700000000\na{x=\"2\"} 3\nab 7\nb 0.0\nc NaN\nd -1\ne\n";
    assert_eq!(metric(text, "a"), Some(5.0));
    assert_eq!(metric(text, "b"), Some(0.0));
    for name in ["c", "d", "e", "f"] {
        assert_eq!(metric(text, name), None, "{name}");
    }
    let metrics = answer(200, "b 0\n");
    assert_eq!(metrics.metrics(&[&["x", "b"]]), Ok(0.0));
    assert!(matches!(metrics.metrics(&[&["b"], &["x"]]), Err(AnswerVerdict::Unknown(_))));
    assert_eq!(answer(404, "b 0\n").metrics(&[&["b"]]), Err(AnswerVerdict::Absent));
}

#[test]
fn a_version_is_read_as_far_as_it_is_one() {
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

/// What is not as the server writes it is never rest: no answer of these proves a server idle.
#[test]
fn no_hostile_answer_proves_rest() {
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
    for row in unload_servers() {
        let Ok(api) = &row.api else {
            continue;
        };
        for question in api.idle {
            for body in bodies {
                let judged = (question.check)(&answer(200, body), &mut Known::default());
                assert!(judged.is_err(), "{} {:.40}", row.name, body);
            }
            for status in [301, 401, 404, 500] {
                let judged = (question.check)(&answer(status, "{}"), &mut Known::default());
                // TabbyAPI has no other answer where nothing is loaded, which is nothing to unload.
                assert!(judged.is_err(), "{} {status}", row.name);
            }
        }
    }
}

#[test]
fn what_is_typed_is_quoted() {
    let ask = post_json("/models/unload", &serde_json::json!({"model": "a'b; reboot"}));
    let line = ask.command("http://127.0.0.1:8080", Some("Authorization: Bearer $KEY")).unwrap();
    assert_eq!(
        line,
        r#"curl -H "Authorization: Bearer $KEY" -H 'Content-Type: application/json' -d '{"model":"a'\''b; reboot"}' http://127.0.0.1:8080/models/unload"#
    );
    let ask = ServerRequest::post("/sleep?level=1&mode=wait", None);
    assert_eq!(
        ask.command("--unix-socket /run/v.sock http://localhost", None).unwrap(),
        "curl -X POST --unix-socket /run/v.sock 'http://localhost/sleep?level=1&mode=wait'"
    );
    let ask = post_json("/x", &serde_json::json!({"model": "\u{202e}"}));
    assert_eq!(ask.command("http://127.0.0.1:8080", None), None);
}

/// One source: what a person is advised to type is what the table sends.
#[test]
fn the_advice_names_the_requests_of_the_table() {
    let mut held = 0;
    for row in unload_servers() {
        let Some(framework) = advice::frameworks().iter().find(|it| it.name == row.name) else {
            continue;
        };
        let texts: Vec<&str> = framework.inside.iter().map(|line| &*line.text).collect();
        let text = texts.join("\n");
        let Ok(api) = &row.api else {
            assert!(framework.inside.is_empty(), "{}: {text}", row.name);
            continue;
        };
        held += 1;
        let known = Known { models: vec!["MODEL".to_owned()], ..Known::default() };
        for ask in (api.unload)(&known) {
            assert!(text.contains(&*ask.path), "{}: {} is not in {text}", row.name, ask.path);
        }
        for wake in ["/wake_up", "/resume_memory_occupation"] {
            assert_eq!(api.wake.contains(wake), text.contains(wake), "{}", row.name);
        }
        for name in ["vllm:num_requests_running", "vllm:num_requests_waiting"] {
            assert_eq!(row.name == "vllm", text.contains(name), "{}", row.name);
        }
        if let Some((major, minor)) = api.since {
            assert!(text.contains(&format!("before {major}.{minor}")), "{}: {text}", row.name);
        }
        let all = framework.inside.iter().chain(&framework.at_start);
        let all: Vec<&str> = all.map(|line| &*line.text).collect();
        if let Some(flag) = api.flag {
            assert!(all.join("\n").contains(flag), "{}", row.name);
        }
    }
    assert_eq!(held, 5, "vllm, sglang, triton-server, ollama, llama.cpp");
}
