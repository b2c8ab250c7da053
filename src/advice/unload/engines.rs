//! Engines that serve many at once, and servers of models.
//!
//! Sources: docs.vllm.ai, features, sleep mode, and `vllm/entrypoints/serve/sleep/api_router.py`;
//! docs.sglang.ai, SGLang for RL systems, and `managers/io_struct.py`; lmdeploy, `serve/openai/api_server.py`;
//! docs.nvidia.com, Triton Inference Server, model repository extension; docs.pytorch.org/serve, management API.

use serde_json::Value;

use super::answer::{
    AnswerCheckResult, AnswerVerdict, UnloadAnswer, busy, flag, list, text, version,
};
use super::{
    API, Hold, Known, ModelQuestion, Question, SERVER, ServerMarks, ServerRequest, UnloadApi,
    UnloadServer, Verb, encoded,
};

const IS_SLEEPING: Question =
    Question { ask: || ServerRequest::get("/is_sleeping"), check: is_awake };

const SLEEPS: Question = Question {
    ask: || ServerRequest::get("/is_sleeping"),
    check: |answer, _| match flag(&answer.json()?, "/is_sleeping")? {
        true => Ok(()),
        false => Err(AnswerVerdict::NotYet),
    },
};

fn is_awake(answer: &UnloadAnswer, _: &mut Known) -> AnswerCheckResult {
    match flag(&answer.json()?, "/is_sleeping")? {
        true => Err(AnswerVerdict::Nothing("it sleeps already".to_owned())),
        false => Ok(()),
    }
}

const VERSION: Question = Question {
    ask: || ServerRequest::get("/version"),
    check: |answer, known| {
        known.version = version(text(&answer.json()?, "/version")?);
        Ok(())
    },
};

const ENGINE_IS_IDLE: Question = Question {
    ask: || ServerRequest::get("/metrics"),
    check: |answer, _| {
        let running: &[&str] = &["vllm:num_requests_running", "aphrodite:num_requests_running"];
        let waiting: &[&str] = &["vllm:num_requests_waiting", "aphrodite:num_requests_waiting"];
        rests(answer, &[running, waiting])
    },
};

fn rests(answer: &UnloadAnswer, counts: &[&[&str]]) -> AnswerCheckResult {
    let count = answer.metrics(counts)?;
    match count == 0.0 {
        true => Ok(()),
        false => Err(AnswerVerdict::Busy(format!("{count} requests running or waiting"))),
    }
}

/// Never without `mode=wait`, which lets requests end that come in between (abort is its default), and never
/// level 2, which takes three requests to wake.
const SLEEP: UnloadApi = UnloadApi {
    identify: &[VERSION, IS_SLEEPING],
    idle: &[ENGINE_IS_IDLE],
    is_looked_at_twice: true,
    unload: |_| vec![ServerRequest::post("/sleep?level=1&mode=wait", None)],
    done: Some(SLEEPS),
    wake: "curl -X POST BASE/wake_up; requests hang until then",
    needs_host_memory: true,
    flag: Some("--enable-sleep-mode"),
    ..API
};

pub(super) const VLLM: UnloadServer = UnloadServer {
    name: "vllm",
    title: "vLLM",
    marks: ServerMarks { programs: &["vllm"], titles: &["VLLM::"], ..SERVER.marks },
    usual_port: 8000,
    tls_flags: &["--ssl-certfile", "--ssl-keyfile"],
    api: Ok(UnloadApi {
        since: Some((0, 17)),
        start: "VLLM_SERVER_DEV_MODE=1 and --enable-sleep-mode",
        ..SLEEP
    }),
    ..SERVER
};

pub(super) const APHRODITE: UnloadServer = UnloadServer {
    name: "aphrodite",
    title: "Aphrodite",
    marks: ServerMarks {
        programs: &["aphrodite"],
        titles: &["APHRODITE::", "Aphrodite::"],
        ..SERVER.marks
    },
    usual_port: 2242,
    tls_flags: &["--ssl-certfile", "--ssl-keyfile"],
    api: Ok(UnloadApi {
        // The first that is known to take `mode`.
        since: Some((0, 24)),
        start: "APHRODITE_SERVER_DEV_MODE=1 and --enable-sleep-mode",
        ..SLEEP
    }),
    ..SERVER
};

/// A request that is running, or comes in between, trips an assertion in its scheduler, which ends the server:
/// sgl-project/sglang#24123. So requests are made to wait before, where a version can do that without ending any.
pub(super) const SGLANG: UnloadServer = UnloadServer {
    name: "sglang",
    title: "SGLang",
    marks: ServerMarks { programs: &["sglang"], titles: &["sglang::"], ..SERVER.marks },
    usual_port: 30_000,
    tls_flags: &["--ssl-certfile", "--ssl-keyfile"],
    api: Ok(UnloadApi {
        identify: &[Question {
            ask: || ServerRequest {
                older: Some((Verb::Get, "/get_server_info")),
                ..ServerRequest::get("/server_info")
            },
            check: |answer, known| {
                let value = answer.json()?;
                let own = text(&value, "/version")?;
                // Its arguments are in the same object.
                if value.get("enable_memory_saver").and_then(Value::as_bool) == Some(false) {
                    return Err(AnswerVerdict::Absent);
                }
                known.version = version(own);
                Ok(())
            },
        }],
        idle: &[Question {
            ask: || ServerRequest::get("/metrics"),
            check: |answer, _| {
                rests(answer, &[&["sglang:num_running_reqs"], &["sglang:num_queue_reqs"]])
            },
        }],
        is_looked_at_twice: true,
        hold: Some(Hold {
            since: (0, 5, 6),
            pause: || ServerRequest::post("/pause_generation", Some(r#"{"mode": "in_place"}"#)),
            resume: || ServerRequest::post("/continue_generation", Some("{}")),
        }),
        unload: |_| vec![ServerRequest::post("/release_memory_occupation", Some("{}"))],
        wake: "curl -H 'Content-Type: application/json' -d '{}' BASE/resume_memory_occupation, then the same with \
               /continue_generation; not before the next request",
        risk: Some("a request that runs or comes meanwhile can crash its scheduler"),
        flag: Some("--enable-memory-saver"),
        start: "--enable-memory-saver, and --enable-metrics to show whether it is idle",
        ..API
    }),
    ..SERVER
};

pub(super) const LMDEPLOY: UnloadServer = UnloadServer {
    name: "lmdeploy",
    title: "LMDeploy",
    marks: ServerMarks { programs: &["lmdeploy"], ..SERVER.marks },
    port_flags: &["--server-port"],
    usual_port: 23_333,
    tls_flags: &["--ssl"],
    api: Ok(UnloadApi {
        identify: &[
            Question {
                ask: || ServerRequest::get("/v1/models"),
                check: |answer, _| match list(&answer.json()?, "/data")?
                    .iter()
                    .any(|model| model.get("owned_by").and_then(Value::as_str) == Some("lmdeploy"))
                {
                    true => Ok(()),
                    false => {
                        Err(AnswerVerdict::Another("models that are not LMDeploy's".to_owned()))
                    }
                },
            },
            IS_SLEEPING,
        ],
        is_looked_at_twice: true,
        is_idle_unconnected: true,
        unload: |_| vec![ServerRequest::post("/sleep?level=1", Some("{}"))],
        done: Some(SLEEPS),
        wake: "curl -H 'Content-Type: application/json' -d '{}' BASE/wakeup",
        needs_host_memory: true,
        start: "a version that can sleep",
        ..API
    }),
    ..SERVER
};

fn ready_models(answer: &UnloadAnswer) -> Result<Vec<String>, AnswerVerdict> {
    let value = answer.json()?;
    let models = list(&value, "")?.iter();
    models.map(|model| Ok(text(model, "/name")?.to_owned())).collect()
}

const READY: fn() -> ServerRequest =
    || ServerRequest::post("/v2/repository/index", Some(r#"{"ready": true}"#));

/// Requests under way end before a model is unloaded, by itself.
pub(super) const TRITON: UnloadServer = UnloadServer {
    name: "triton-server",
    title: "Triton Inference Server",
    marks: ServerMarks {
        programs: &["tritonserver", "triton_python_backend_stub"],
        ..SERVER.marks
    },
    port_flags: &["--http-port"],
    usual_port: 8000,
    metrics_port: Some(("--metrics-port", 8002)),
    api: Ok(UnloadApi {
        identify: &[Question {
            ask: || ServerRequest::get("/v2"),
            check: |answer, _| {
                let value = answer.json()?;
                let extensions = list(&value, "/extensions")?;
                let has = |name: &str| extensions.iter().any(|it| it.as_str() == Some(name));
                match text(&value, "/name")? == "triton" && has("model_repository") {
                    true => Ok(()),
                    false => {
                        Err(AnswerVerdict::Another("a server without model_repository".to_owned()))
                    }
                }
            },
        }],
        idle: &[
            Question { ask: READY, check: |answer, known| known.load(ready_models(answer)?) },
            Question {
                ask: || ServerRequest { is_metrics: true, ..ServerRequest::get("/metrics") },
                check: |answer, known| {
                    let pending = answer.metrics(&[&["nv_inference_pending_request_count"]])?;
                    if pending != 0.0 {
                        return Err(AnswerVerdict::Busy(format!("{pending} requests waiting")));
                    }
                    // One that was done in between has moved it.
                    let ran = answer.metrics(&[&["nv_inference_exec_count"]])?;
                    known.marks.push(ran.to_string());
                    Ok(())
                },
            },
        ],
        is_looked_at_twice: true,
        unload: |known| {
            let unload = |model: &String| ServerRequest {
                path: format!("/v2/repository/models/{}/unload", encoded(model)).into(),
                ..ServerRequest::post("", Some(r#"{"parameters": {"unload_dependents": true}}"#))
            };
            known.models.iter().map(unload).collect()
        },
        done: Some(Question {
            ask: READY,
            check: |answer, known| known.unloaded(ready_models(answer)?),
        }),
        wake: "curl -X POST BASE/v2/repository/models/MODEL/load for each of its models",
        start: "--model-control-mode=explicit",
        ..API
    }),
    ..SERVER
};

pub(super) const TORCHSERVE: UnloadServer = UnloadServer {
    name: "torchserve",
    title: "TorchServe",
    marks: ServerMarks {
        programs: &["torchserve", "model_service_worker.py"],
        arguments: &["org.pytorch.serve.ModelServer"],
        ..SERVER.marks
    },
    port_flags: &[],
    usual_port: 8081,
    api: Ok(UnloadApi {
        identify: &[Question {
            ask: || ServerRequest::get("/models?limit=100"),
            check: |answer, known| {
                // Without its token it answers so, and not 401.
                let is_token_missing = answer.status == 400
                    && String::from_utf8_lossy(&answer.body).contains("Token Authorization");
                if is_token_missing {
                    return Err(AnswerVerdict::Key);
                }
                let value = answer.json()?;
                let models = list(&value, "/models")?.iter();
                let names = models.map(|model| Ok(text(model, "/modelName")?.to_owned()));
                known.load(names.collect::<Result<_, AnswerVerdict>>()?)
            },
        }],
        idle_models: Some(ModelQuestion {
            ask: |model| ServerRequest {
                path: format!("/models/{}", encoded(model)).into(),
                ..ServerRequest::get("")
            },
            check: |answer, _| {
                let value = answer.json()?;
                for version in list(&value, "")? {
                    let status = version.pointer("/jobQueueStatus/pendingRequests");
                    if status.and_then(Value::as_i64).is_some_and(|waiting| waiting > 0) {
                        return Err(busy("requests are waiting"));
                    }
                    if !list(version, "/workers")?.is_empty() {
                        return Ok(());
                    }
                }
                Err(AnswerVerdict::Skip)
            },
        }),
        is_idle_unconnected: true,
        unload: |known| {
            let scale = |model: &String| ServerRequest {
                verb: Verb::Put,
                path: format!(
                    "/models/{}?min_worker=0&max_worker=0&synchronous=true",
                    encoded(model)
                )
                .into(),
                ..ServerRequest::get("")
            };
            known.models.iter().map(scale).collect()
        },
        wake: "curl -X PUT 'BASE/models/MODEL?min_worker=1' for each of its models",
        start: "its management API",
        ..API
    }),
    ..SERVER
};

pub(super) const TGI: UnloadServer = UnloadServer {
    name: "tgi",
    title: "Text Generation Inference",
    marks: ServerMarks {
        programs: &[
            "text-generation-launcher",
            "text-generation-router",
            "text-generation-server",
            "text_generation_server",
        ],
        ..SERVER.marks
    },
    usual_port: 3000,
    api: Err(
        "Text Generation Inference has no request that unloads; only stopping it frees the memory",
    ),
    ..SERVER
};

pub(super) const TENSORRT_LLM: UnloadServer = UnloadServer {
    name: "tensorrt-llm",
    title: "TensorRT-LLM",
    marks: ServerMarks { programs: &["trtllm-serve", "tensorrt_llm"], ..SERVER.marks },
    usual_port: 8000,
    api: Err("trtllm-serve has no request that unloads; only stopping it frees the memory"),
    ..SERVER
};

pub(super) const INFINITY: UnloadServer = UnloadServer {
    name: "infinity",
    title: "Infinity",
    marks: ServerMarks { programs: &["infinity_emb"], ..SERVER.marks },
    usual_port: 7997,
    api: Err("Infinity has no request that unloads; only stopping it frees the memory"),
    ..SERVER
};

pub(super) const XINFERENCE: UnloadServer = UnloadServer {
    name: "xinference",
    title: "Xinference",
    marks: ServerMarks {
        programs: &["xinference", "xinference-local", "xinference-worker", "xinference-supervisor"],
        ..SERVER.marks
    },
    usual_port: 9997,
    api: Err(
        "Xinference can only stop a model's worker, and the model has to be launched again afterwards; to do \
         it: `curl -X DELETE http://HOST:9997/v1/models/UID`",
    ),
    ..SERVER
};
