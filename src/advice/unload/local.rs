//! Servers of one's own machine, which load a model when it is asked for, and those that start such servers.
//!
//! Sources: docs.ollama.com, API and FAQ, and ollama/ollama, `server/sched.go`; ggml-org/llama.cpp,
//! `tools/server/README.md`, #23096, #20227; mostlygeek/llama-swap, `README.md`; lmstudio.ai, REST API v1;
//! oobabooga/text-generation-webui, `modules/api/script.py`; theroyallab/tabbyAPI, `endpoints/core`;
//! localai.io, backend monitor.

use serde_json::{Value, json};

use super::answer::{AnswerCheckResult, AnswerVerdict, UnloadAnswer, busy, list, text};
use super::{
    API, Known, MAY_LOSE_A_REQUEST, ModelQuestion, Question, SERVER, ServerMarks, ServerRequest,
    UnloadApi, UnloadServer, Verb, encoded, post_json,
};

/// The models that `/api/ps` lists with memory of a GPU.
fn ollama_models(answer: &UnloadAnswer, known: &mut Known) -> Result<Vec<String>, AnswerVerdict> {
    let value = answer.json()?;
    let mut names = Vec::new();
    for model in list(&value, "/models")? {
        if model.get("size_vram").and_then(Value::as_u64) == Some(0) {
            continue;
        }
        let name = text(model, "/name")?;
        let expires = model.get("expires_at").and_then(Value::as_str);
        known.marks.push(format!("{name} {}", expires.unwrap_or_default()));
        names.push(name.to_owned());
    }
    Ok(names)
}

/// Requests under way end before a model goes, by itself (it counts them).
pub(super) const OLLAMA: UnloadServer = UnloadServer {
    name: "ollama",
    title: "Ollama",
    marks: ServerMarks { programs: &["ollama"], ..SERVER.marks },
    port_flags: &[],
    usual_port: 11_434,
    api: Ok(UnloadApi {
        identify: &[Question {
            ask: || ServerRequest::get("/"),
            check: |answer, _| match answer.text()?.trim() {
                "Ollama is running" => Ok(()),
                _ => Err(AnswerVerdict::Another("a page that is not Ollama's".to_owned())),
            },
        }],
        idle: &[Question {
            ask: || ServerRequest::get("/api/ps"),
            check: |answer, known| {
                let names = ollama_models(answer, known)?;
                known.load(names)
            },
        }],
        is_looked_at_twice: true,
        is_idle_unconnected: true,
        unload: |known| {
            let unload = |model: &String| {
                post_json("/api/generate", &json!({"model": model, "keep_alive": 0}))
            };
            known.models.iter().map(unload).collect()
        },
        done: Some(Question {
            ask: || ServerRequest::get("/api/ps"),
            check: |answer, known| {
                let names = ollama_models(answer, known)?;
                known.unloaded(names)
            },
        }),
        start: "a version with /api/ps",
        ..API
    }),
    ..SERVER
};

/// The router's models that are loaded.
fn llama_models(answer: &UnloadAnswer) -> Result<Vec<String>, AnswerVerdict> {
    let value = answer.json()?;
    let mut names = Vec::new();
    for model in list(&value, "/data")? {
        match model.pointer("/status/value").and_then(Value::as_str) {
            Some("loaded") => names.push(text(model, "/id")?.to_owned()),
            Some("loading") => return Err(busy("it is loading a model")),
            Some(_) => {}
            None => {
                return Err(AnswerVerdict::Nothing(
                    "it was started with its model and keeps that until it ends; at its next start \
                     --sleep-idle-seconds makes it unload"
                        .to_owned(),
                ));
            }
        }
    }
    Ok(names)
}

pub(super) const LLAMA_CPP: UnloadServer = UnloadServer {
    name: "llama.cpp",
    title: "llama.cpp",
    marks: ServerMarks { programs: &["llama-server"], ..SERVER.marks },
    usual_port: 8080,
    tls_flags: &["--ssl-cert-file", "--ssl-key-file"],
    api: Ok(UnloadApi {
        risk: Some(MAY_LOSE_A_REQUEST),
        idle: &[Question {
            ask: || ServerRequest::get("/models"),
            check: |answer, known| known.load(llama_models(answer)?),
        }],
        is_looked_at_twice: true,
        is_idle_unconnected: true,
        at_deed: Some(ModelQuestion {
            ask: |model| ServerRequest {
                path: format!("/slots?model={}&autoload=false", encoded(model)).into(),
                ..ServerRequest::get("")
            },
            check: |answer, _| {
                // Without the endpoint (--no-slots) only who is connected is known.
                let value = match answer.json() {
                    Err(AnswerVerdict::Absent) => return Ok(()),
                    value => value?,
                };
                let processes =
                    |slot: &Value| slot.get("is_processing") != Some(&Value::Bool(false));
                match list(&value, "")?.iter().any(processes) {
                    true => Err(busy("a slot is processing a request")),
                    false => Ok(()),
                }
            },
        }),
        unload: |known| {
            let unload = |model: &String| post_json("/models/unload", &json!({"model": model}));
            known.models.iter().map(unload).collect()
        },
        done: Some(Question {
            ask: || ServerRequest::get("/models"),
            check: |answer, known| known.unloaded(llama_models(answer)?),
        }),
        start: "no model, as a router",
        ..API
    }),
    ..SERVER
};

fn running_models(answer: &UnloadAnswer) -> Result<Vec<String>, AnswerVerdict> {
    let value = answer.json()?;
    let mut names = Vec::new();
    for model in list(&value, "/running")? {
        match model.get("state").and_then(Value::as_str) {
            Some("starting" | "stopping") => {
                return Err(busy("it is starting or stopping a model"));
            }
            _ => names.push(text(model, "/model")?.to_owned()),
        }
    }
    Ok(names)
}

pub(super) const LLAMA_SWAP: UnloadServer = UnloadServer {
    name: "llama-swap",
    title: "llama-swap",
    marks: ServerMarks { programs: &["llama-swap"], ..SERVER.marks },
    port_flags: &["--listen", "-listen"],
    usual_port: 8080,
    tls_flags: &["--tls-cert-file", "-tls-cert-file"],
    api: Ok(UnloadApi {
        risk: Some(MAY_LOSE_A_REQUEST),
        idle: &[Question {
            ask: || ServerRequest::get("/running"),
            check: |answer, known| known.load(running_models(answer)?),
        }],
        is_looked_at_twice: true,
        is_idle_unconnected: true,
        unload: |_| {
            vec![ServerRequest {
                older: Some((Verb::Get, "/unload")),
                ..ServerRequest::post("/api/models/unload", None)
            }]
        },
        done: Some(Question {
            ask: || ServerRequest::get("/running"),
            check: |answer, known| known.unloaded(running_models(answer)?),
        }),
        start: "a version that can unload",
        ..API
    }),
    ..SERVER
};

fn instances(answer: &UnloadAnswer) -> Result<Vec<String>, AnswerVerdict> {
    let value = answer.json()?;
    let mut names = Vec::new();
    for model in list(&value, "/models")? {
        for instance in list(model, "/loaded_instances")? {
            names.push(text(instance, "/id")?.to_owned());
        }
    }
    Ok(names)
}

pub(super) const LM_STUDIO: UnloadServer = UnloadServer {
    name: "lm-studio",
    title: "LM Studio",
    marks: ServerMarks {
        programs: &["LM Studio", "lm-studio", "llmster", "lmstudio"],
        ..SERVER.marks
    },
    usual_port: 1234,
    api: Ok(UnloadApi {
        risk: Some(MAY_LOSE_A_REQUEST),
        idle: &[Question {
            ask: || ServerRequest::get("/api/v1/models"),
            check: |answer, known| known.load(instances(answer)?),
        }],
        is_looked_at_twice: true,
        is_idle_unconnected: true,
        unload: |known| {
            let unload =
                |id: &String| post_json("/api/v1/models/unload", &json!({"instance_id": id}));
            known.models.iter().map(unload).collect()
        },
        done: Some(Question {
            ask: || ServerRequest::get("/api/v1/models"),
            check: |answer, known| known.unloaded(instances(answer)?),
        }),
        start: "a version with the REST API v1",
        ..API
    }),
    ..SERVER
};

fn webui_model(answer: &UnloadAnswer) -> Result<Vec<String>, AnswerVerdict> {
    let value = answer.json()?;
    Ok(match text(&value, "/model_name")? {
        "None" | "" => Vec::new(),
        name => vec![name.to_owned()],
    })
}

pub(super) const TEXT_GENERATION_WEBUI: UnloadServer = UnloadServer {
    name: "text-generation-webui",
    title: "text-generation-webui",
    marks: ServerMarks {
        folders: &["text-generation-webui"],
        scripts: &["server.py"],
        ..SERVER.marks
    },
    port_flags: &["--api-port"],
    usual_port: 5000,
    tls_flags: &["--ssl-certfile"],
    api: Ok(UnloadApi {
        risk: Some(MAY_LOSE_A_REQUEST),
        idle: &[Question {
            ask: || ServerRequest::get("/v1/internal/model/info"),
            check: |answer, known| known.load(webui_model(answer)?),
        }],
        is_looked_at_twice: true,
        is_idle_unconnected: true,
        unload: |_| vec![ServerRequest::post("/v1/internal/model/unload", None)],
        done: Some(Question {
            ask: || ServerRequest::get("/v1/internal/model/info"),
            check: |answer, known| known.unloaded(webui_model(answer)?),
        }),
        wake: "curl -H 'Content-Type: application/json' -d '{\"model_name\": \"MODEL\"}' \
               BASE/v1/internal/model/load",
        start: "--api",
        ..API
    }),
    ..SERVER
};

fn tabby_model(answer: &UnloadAnswer) -> Result<Vec<String>, AnswerVerdict> {
    // It has no other answer where none is loaded.
    if answer.status == 400 || answer.status == 503 {
        return Ok(Vec::new());
    }
    let value = answer.json()?;
    Ok(vec![text(&value, "/id")?.to_owned()])
}

pub(super) const TABBYAPI: UnloadServer = UnloadServer {
    name: "tabbyapi",
    title: "TabbyAPI",
    marks: ServerMarks {
        folders: &["tabbyAPI", "tabbyapi"],
        scripts: &["main.py", "start.py"],
        ..SERVER.marks
    },
    usual_port: 5000,
    api: Ok(UnloadApi {
        risk: Some(MAY_LOSE_A_REQUEST),
        idle: &[Question {
            ask: || ServerRequest::get("/v1/model"),
            check: |answer, known| known.load(tabby_model(answer)?),
        }],
        is_looked_at_twice: true,
        is_idle_unconnected: true,
        unload: |_| vec![ServerRequest::post("/v1/model/unload", None)],
        done: Some(Question {
            ask: || ServerRequest::get("/v1/model"),
            check: |answer, known| known.unloaded(tabby_model(answer)?),
        }),
        wake: "curl -H \"x-admin-key: $KEY\" -H 'Content-Type: application/json' \
               -d '{\"model_name\": \"MODEL\"}' BASE/v1/model/load",
        start: "a version with /v1/model/unload",
        key: "x-admin-key: $KEY",
        ..API
    }),
    ..SERVER
};

fn localai_models(answer: &UnloadAnswer) -> Result<Vec<String>, AnswerVerdict> {
    let value = answer.json()?;
    let models = list(&value, "/loaded_models")?.iter();
    models.map(|model| Ok(text(model, "/id")?.to_owned())).collect()
}

/// Its backends tell that they are ready also while they work, some of them: so who is connected counts too.
fn backend_is_idle(answer: &UnloadAnswer, _: &mut Known) -> AnswerCheckResult {
    /// `BUSY` of its `StatusResponse`.
    const BUSY: i64 = 1;
    let value = answer.json()?;
    match value.get("state").and_then(Value::as_i64) {
        Some(BUSY) => Err(busy("a backend is processing a request")),
        _ => Ok(()),
    }
}

pub(super) const LOCALAI: UnloadServer = UnloadServer {
    name: "localai",
    title: "LocalAI",
    marks: ServerMarks { programs: &["local-ai"], ..SERVER.marks },
    port_flags: &["--address"],
    usual_port: 8080,
    api: Ok(UnloadApi {
        identify: &[Question {
            ask: || ServerRequest::get("/system"),
            check: |answer, _| list(&answer.json()?, "/backends").map(|_| ()),
        }],
        idle: &[Question {
            ask: || ServerRequest::get("/system"),
            check: |answer, known| known.load(localai_models(answer)?),
        }],
        idle_models: Some(ModelQuestion {
            ask: |model| post_json("/backend/monitor", &json!({"model": model})),
            check: backend_is_idle,
        }),
        is_looked_at_twice: true,
        is_idle_unconnected: true,
        unload: |known| {
            let unload = |model: &String| post_json("/backend/shutdown", &json!({"model": model}));
            known.models.iter().map(unload).collect()
        },
        done: Some(Question {
            ask: || ServerRequest::get("/system"),
            check: |answer, known| known.unloaded(localai_models(answer)?),
        }),
        start: "a version with /system",
        ..API
    }),
    ..SERVER
};
