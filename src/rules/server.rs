//! Whether a process looks like an inference server, for which waiting is work.
//!
//! A guess that protects: where it is in doubt, it is a server. It knows names only; whether the process
//! listens is asked too, and only a known no makes a server-like process an ordinary one.

use crate::model::program::{file_name, is_interpreter};
use crate::model::{Process, Snapshot};

/// Frameworks that serve and do little else.
const FRAMEWORKS: &[&str] = &[
    "vllm",
    "sglang",
    "tgi",
    "triton",
    "triton-server",
    "tritonserver",
    "tensorrt-llm",
    "lmdeploy",
    "ollama",
    "llama.cpp",
];

/// Programs that serve.
const PROGRAMS: &[&str] = &[
    "aphrodite",
    "bentoml",
    "daphne",
    "fastapi",
    "flask",
    "gunicorn",
    "hypercorn",
    "infinity_emb",
    "koboldcpp",
    "litserve",
    "llama-server",
    "lmdeploy",
    "marimo",
    "mlc_llm",
    "mlflow",
    "ollama",
    "rasa",
    "sglang",
    "streamlit",
    "tabby",
    "tensorflow_model_server",
    "text-embeddings-router",
    "text-generation-launcher",
    "text-generation-server",
    "torchserve",
    "tritonserver",
    "trtllm-serve",
    "uvicorn",
    "uwsgi",
    "vllm",
    "waitress-serve",
    "whisper-server",
    "xinference-local",
    "xinference-worker",
];

/// Beginnings of the modules that serve (`python -m MODULE`).
const MODULES: &[&str] = &[
    "fastchat.serve",
    "gunicorn",
    "hypercorn",
    "llama_cpp.server",
    "lmdeploy",
    "marimo",
    "sglang.launch_server",
    "tensorrt_llm.commands.serve",
    "aphrodite.endpoints",
    "flask",
    "streamlit",
    "text_generation_server",
    "tritonserver",
    "uvicorn",
    "vllm.entrypoints",
];

/// What the workers of servers call themselves. They hold the memory, and do not listen: their parent
/// does.
const WORKERS: &[&str] = &[
    "VLLM::",
    "sglang::",
    "ray::ServeReplica",
    "triton_python_backend_stub",
];

/// Whether the process serves, as far as can be told: it looks like a server, and neither it nor the
/// one that it works for is known not to listen.
pub fn serves(process: &Process, snapshot: &Snapshot) -> bool {
    // A notebook listens to its own server, whatever library is loaded in it.
    if process.jupyter.is_some() || is_kernel(process) {
        return false;
    }
    let may_listen = |process: &Process| process.listening != Some(false);
    if is_worker(process) {
        // Whom it worked for is gone, and with it whoever could ask.
        if process.parent_is_reaper == Some(true) && process.group_leader_alive == Some(false) {
            return false;
        }
        let parent = process.ppid.and_then(|ppid| snapshot.process(ppid));
        return parent.is_none_or(may_listen);
    }
    looks_like_server(process) && (may_listen(process) || family_listens(process, snapshot))
}

/// Whether a server of the same session or group listens: then this one works for it.
fn family_listens(process: &Process, snapshot: &Snapshot) -> bool {
    let shares = |mine: Option<u32>, other: Option<u32>| mine.is_some() && mine == other;
    snapshot.processes.iter().any(|other| {
        other.pid != process.pid
            && other.listening == Some(true)
            && (shares(process.session, other.session)
                || shares(process.process_group, other.process_group))
            && looks_like_server(other)
    })
}

fn is_worker(process: &Process) -> bool {
    program(process).is_some_and(|program| WORKERS.iter().any(|worker| program.starts_with(worker)))
}

/// Whether the process is a notebook kernel by its command line.
pub(super) fn is_kernel(process: &Process) -> bool {
    let command = process.command.as_deref().unwrap_or_default();
    command.iter().any(|argument| {
        matches!(
            &**argument,
            "ipykernel_launcher" | "ipykernel" | "colab_kernel_launcher"
        )
    }) || command
        .iter()
        .any(|argument| file_name(argument) == "ipykernel_launcher.py")
}

fn program(process: &Process) -> Option<&str> {
    process
        .command
        .as_deref()?
        .first()
        .map(|program| file_name(program))
}

fn looks_like_server(process: &Process) -> bool {
    if process
        .framework
        .as_deref()
        .is_some_and(|name| FRAMEWORKS.contains(&name))
    {
        return true;
    }
    let command = process.command.as_deref().unwrap_or_default();
    let Some(program) = program(process) else {
        return false;
    };
    if PROGRAMS.contains(&program) {
        return true;
    }
    if !is_interpreter(program) {
        return false;
    }
    let arguments = &command[1..];
    let module = arguments
        .windows(2)
        .find(|pair| &*pair[0] == "-m")
        .map(|pair| &*pair[1]);
    let script = arguments
        .iter()
        .find(|argument| !argument.starts_with('-'))
        .map(|argument| file_name(argument));
    if let Some(module) = module {
        return MODULES.iter().any(|known| module.starts_with(known));
    }
    script.is_some_and(|script| {
        PROGRAMS.contains(&script)
            // A script of one's own: only its name, or the port that it was given, tells.
            || script.contains("serve")
            || script.contains("webui")
            || script.contains("gradio")
            || (process.listening == Some(true)
                && arguments.iter().any(|argument| {
                    &**argument == "--port" || argument.starts_with("--port=")
                }))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Time;
    use crate::model::snapshot::Jupyter;
    use std::sync::Arc;

    fn process(pid: u32, command: &str, listening: Option<bool>) -> Process {
        Process {
            pid,
            command: Some(command.split(' ').map(Arc::from).collect()),
            listening,
            session: Some(7),
            ..Process::default()
        }
    }

    fn alone(process: &Process) -> bool {
        serves(process, &Snapshot::new(Time::default()))
    }

    #[test]
    fn servers_are_known_by_their_names() {
        for command in [
            "vllm serve meta/llama",
            "/usr/bin/python3 /home/ann/.venv/bin/vllm serve x",
            "python -m vllm.entrypoints.openai.api_server --port 8000",
            "python3.11 -m sglang.launch_server",
            "tritonserver --model-repository=/m",
            "/usr/local/bin/ollama runner --model x",
            "/opt/llama.cpp/llama-server -m x.gguf",
            "text-generation-launcher",
            "/venv/bin/python /venv/bin/uvicorn app:app",
            "gunicorn -w 4 app:app",
            "python serve.py",
            "python webui.py --share",
            "/usr/bin/python3 /venv/bin/streamlit run app.py",
            "python -m flask run",
            "python model_server.py",
        ] {
            assert!(alone(&process(1, command, Some(true))), "{command}");
            assert!(alone(&process(1, command, None)), "{command}");
            assert!(!alone(&process(1, command, Some(false))), "{command}");
        }
        let by_framework = |listening| Process {
            framework: Some("vllm".into()),
            ..process(1, "python chat.py", listening)
        };
        assert!(alone(&by_framework(None)) && !alone(&by_framework(Some(false))));
        assert!(alone(&process(1, "python app.py --port 80", Some(true))));
    }

    #[test]
    fn training_that_listens_for_its_ranks_is_no_server() {
        for command in [
            "python train.py --master_port 29500",
            "python -m torch.distributed.run train.py",
            "torchrun train.py",
            "python",
            "python -m observer",
            "",
        ] {
            assert!(!alone(&process(1, command, Some(true))), "{command}");
        }
    }

    #[test]
    fn a_notebook_is_no_server_whatever_it_has_loaded() {
        let kernel = Process {
            framework: Some("vllm".into()),
            ..process(1, "python -m ipykernel_launcher -f x.json", Some(true))
        };
        assert!(!alone(&kernel));
        let known = Process {
            jupyter: Some(Arc::new(Jupyter::default())),
            framework: Some("vllm".into()),
            ..process(1, "python", Some(true))
        };
        assert!(!alone(&known));
    }

    #[test]
    fn a_worker_is_judged_by_the_one_it_works_for() {
        let mut worker = process(2, "VLLM::EngineCore", Some(false));
        worker.ppid = Some(1);
        assert!(alone(&worker), "its parent may be anything");
        let mut snapshot = Snapshot::new(Time::default());
        snapshot.processes = vec![process(1, "vllm serve x", Some(true)), worker.clone()];
        assert!(serves(&worker, &snapshot));
        snapshot.processes[0].listening = Some(false);
        assert!(!serves(&worker, &snapshot), "an offline batch");

        let abandoned = Process {
            parent_is_reaper: Some(true),
            group_leader_alive: Some(false),
            ..worker.clone()
        };
        assert!(!alone(&abandoned), "its server was killed");

        let helper = Process {
            framework: Some("vllm".into()),
            ..process(3, "python -c from multiprocessing", Some(false))
        };
        assert!(!serves(&helper, &snapshot));
        snapshot.processes[0].listening = Some(true);
        assert!(
            serves(&helper, &snapshot),
            "a server of its session listens"
        );
    }
}
