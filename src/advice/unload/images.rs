//! Servers that make pictures.
//!
//! Sources: Comfy-Org/ComfyUI, `server.py`; AUTOMATIC1111/stable-diffusion-webui, `modules/api/api.py`, whose
//! routes Forge and SD.Next have too; invoke-ai/InvokeAI, `api/routers`.

use serde_json::Value;

use super::answer::{AnswerVerdict, busy, count, list, text};
use super::{
    API, MAY_LOSE_A_REQUEST, Question, SERVER, ServerMarks, ServerRequest, UnloadApi, UnloadServer,
};

/// It unloads when its queue's thread next turns, between two prompts and never within one.
pub(super) const COMFYUI: UnloadServer = UnloadServer {
    name: "comfyui",
    title: "ComfyUI",
    marks: ServerMarks {
        programs: &["comfyui", "comfy"],
        folders: &["ComfyUI", "comfyui"],
        scripts: &["main.py"],
        ..SERVER.marks
    },
    usual_port: 8188,
    tls_flags: &["--tls-keyfile"],
    api: Ok(UnloadApi {
        identify: &[Question {
            ask: || ServerRequest::get("/system_stats"),
            check: |answer, _| {
                let value = answer.json()?;
                text(&value, "/system/comfyui_version")?;
                list(&value, "/devices").map(|_| ())
            },
        }],
        idle: &[Question {
            ask: || ServerRequest::get("/queue"),
            check: |answer, _| {
                let value = answer.json()?;
                let running = list(&value, "/queue_running")?;
                let pending = list(&value, "/queue_pending")?;
                match running.is_empty() && pending.is_empty() {
                    true => Ok(()),
                    false => Err(busy("a prompt runs or waits")),
                }
            },
        }],
        unload: |_| {
            let body = r#"{"unload_models": true, "free_memory": true}"#;
            vec![ServerRequest::post("/free", Some(body))]
        },
        wake: "its next prompt loads what it needs",
        start: "a version of 2024 or later",
        ..API
    }),
    ..SERVER
};

pub(super) const STABLE_DIFFUSION_WEBUI: UnloadServer = UnloadServer {
    name: "stable-diffusion-webui",
    title: "Stable Diffusion web UI",
    marks: ServerMarks {
        folders: &["automatic", "sdnext", "stable-diffusion-webui", "stable-diffusion-webui-forge"],
        scripts: &["launch.py", "webui.py"],
        ..SERVER.marks
    },
    usual_port: 7860,
    tls_flags: &["--tls-keyfile"],
    api: Ok(UnloadApi {
        risk: Some(MAY_LOSE_A_REQUEST),
        identify: &[Question {
            ask: || ServerRequest::get("/sdapi/v1/memory"),
            check: |answer, _| {
                let value = answer.json()?;
                let is_one = value.get("ram").is_some() && value.get("cuda").is_some();
                match is_one {
                    true => Ok(()),
                    false => {
                        Err(AnswerVerdict::Another("memory figures in another form".to_owned()))
                    }
                }
            },
        }],
        idle: &[Question {
            ask: || ServerRequest::get("/sdapi/v1/progress?skip_current_image=true"),
            check: |answer, _| {
                // -1 while a job begins.
                match count(&answer.json()?, "/state/job_count")? {
                    0 => Ok(()),
                    _ => Err(busy("a job runs")),
                }
            },
        }],
        is_looked_at_twice: true,
        unload: |_| vec![ServerRequest::post("/sdapi/v1/unload-checkpoint", None)],
        wake: "curl -X POST BASE/sdapi/v1/reload-checkpoint",
        start: "--api",
        key: "Authorization: Basic $KEY",
        ..API
    }),
    ..SERVER
};

pub(super) const INVOKEAI: UnloadServer = UnloadServer {
    name: "invokeai",
    title: "InvokeAI",
    marks: ServerMarks { programs: &["invokeai", "invokeai-web"], ..SERVER.marks },
    usual_port: 9090,
    api: Ok(UnloadApi {
        identify: &[Question {
            ask: || ServerRequest::get("/api/v1/app/version"),
            check: |answer, _| text(&answer.json()?, "/version").map(|_| ()),
        }],
        idle: &[Question {
            ask: || ServerRequest::get("/api/v1/queue/default/status"),
            check: |answer, _| {
                let value = answer.json()?;
                let counts =
                    [count(&value, "/queue/pending")?, count(&value, "/queue/in_progress")?];
                let processes = value.pointer("/processor/is_processing").and_then(Value::as_bool);
                match counts == [0, 0] && processes != Some(true) {
                    true => Ok(()),
                    false => Err(busy("a job runs or waits")),
                }
            },
        }],
        unload: |_| vec![ServerRequest::post("/api/v2/models/empty_model_cache", None)],
        wake: "its next job loads what it needs",
        start: "a version with /api/v2/models/empty_model_cache",
        ..API
    }),
    ..SERVER
};
