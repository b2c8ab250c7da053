//! Decides whether a process is an inference server, for which waiting is normal.
//!
//! A process that listens for clients is a server, regardless of its name, and so are its workers; see [`listening`].
//! If it is unknown whether a process listens, the name of a known server is sufficient. Names are compared by whole
//! words: `reserve.py` is not a server.
//!
//! The main process of a systemd service is also a server, unless it is known not to listen. A worker that a notebook
//! kernel started is not.

use super::listening;
use crate::history::ProcessHistory;
use crate::model::name_facts::NameFacts;
use crate::model::server_name::is_kernel_command;
use crate::model::snapshot::PidNamespace;
use crate::model::unit::{Role, role};
use crate::model::{Process, Snapshot};

/// Whether the process may be a server: its family listens for clients, or it looks like a server and may listen.
pub fn serves(process: &Process, snapshot: &Snapshot) -> bool {
    serves_by(process, &NameFacts::of(process), snapshot)
}

/// Like [`serves`], with cached facts about names.
pub(super) fn is_server(
    process: &Process,
    process_history: &ProcessHistory,
    snapshot: &Snapshot,
) -> bool {
    serves_by(process, process_history.names(), snapshot)
}

fn serves_by(process: &Process, names: &NameFacts, snapshot: &Snapshot) -> bool {
    // A kernel listens only for its own server, regardless of the libraries that it has loaded.
    if process.jupyter.is_some() || names.is_kernel {
        return false;
    }
    // Clients connect to the front end that started a worker. Only other workers connect to the worker.
    if process.has_lost_starter() {
        return false;
    }
    let is_worker = names.is_worker_of_a_server;
    let has_clients = listening::has_clients(process, snapshot);
    if has_clients == Some(true) && !is_worker {
        return true;
    }
    if listening::has_listening_family(process, snapshot) {
        return true;
    }
    let may_listen = |process: &Process| process.listening != Some(false);
    if is_worker {
        let parent = process.ppid.and_then(|ppid| snapshot.process(ppid));
        return !is_child_of_a_kernel(process, parent)
            && !has_other_starter(process, snapshot)
            && parent.is_none_or(may_listen);
    }
    if has_clients.is_none() && is_service(process) {
        return true;
    }
    // An old recording has no addresses, so the name decides.
    let has_listen_arguments = || process.listening == Some(true) && has_port_argument(process);
    (names.looks_like_a_server && (may_listen(process) || family_listens(process, snapshot)))
        || (has_clients.is_none() && has_listen_arguments())
}

/// Whether a server in the same session or group listens.
fn family_listens(process: &Process, snapshot: &Snapshot) -> bool {
    let shares = |id: Option<u32>, other: Option<u32>| id.is_some() && id == other;
    snapshot.processes.iter().any(|other| {
        other.pid != process.pid
            && other.listening == Some(true)
            && (shares(process.session, other.session)
                || shares(process.process_group, other.process_group))
            && other.looks_like_a_server()
    })
}

/// Whether a notebook kernel started the process, even if the kernel is not in the snapshot.
fn is_child_of_a_kernel(process: &Process, parent: Option<&Process>) -> bool {
    let started_by = process.parent.as_deref();
    parent.is_some_and(|parent| parent.jupyter.is_some() || parent.is_kernel())
        || started_by.and_then(|parent| parent.command.as_deref()).is_some_and(is_kernel_command)
}

/// Whether the starter of an apparent worker is known not to be a server, because any process can set such a title.
/// On the host, a reaper starts no workers.
fn has_other_starter(process: &Process, snapshot: &Snapshot) -> bool {
    let Some(parent) = process.parent.as_deref() else {
        let is_on_host = snapshot.host.pid_namespace == Some(PidNamespace::Host)
            && process.container.is_none()
            && process.kubernetes.is_none();
        let is_in_its_group = process.process_group == process.ppid;
        return process.parent_is_reaper == Some(true) && is_on_host && !is_in_its_group;
    };
    let starter = Process {
        comm: parent.comm.clone(),
        command: parent.command.clone(),
        ..Process::default()
    };
    // A raylet starts Ray Serve's replicas.
    !starter.looks_like_a_server() && !starter.is_worker_of_a_server() && !parent.runs("raylet")
}

/// Whether the process is the main process of its own systemd unit.
fn is_service(process: &Process) -> bool {
    let unit = process.systemd_unit.as_deref();
    unit.is_some_and(|unit| role(unit) == Role::Work)
        && process.parent_is_reaper == Some(true)
        && process.session == Some(process.pid)
}

/// Whether an argument configures where to listen.
fn has_port_argument(process: &Process) -> bool {
    let command = process.command.as_deref().unwrap_or_default();
    command.iter().any(|argument| &**argument == "--port" || argument.starts_with("--port="))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::model::Time;
    use crate::model::process::{Parent, Relation, Relative};

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
    fn servers_are_recognized_by_name() {
        for command in [
            "vllm serve meta/llama",
            "/usr/bin/python3 /home/ann/.venv/bin/vllm serve x",
            "python -m vllm.entrypoints.openai.api_server --port 8000",
            "python3.11 -m sglang.launch_server",
            "tritonserver --model-repository=/m",
            "/opt/llama.cpp/llama-server -m x.gguf",
            "text-generation-launcher",
            "/venv/bin/python /venv/bin/uvicorn app:app",
            "gunicorn -w 4 app:app",
            "python serve.py",
            "python webui.py --share",
            "/usr/bin/python3 /venv/bin/streamlit run app.py",
            "python -m flask run",
            "python model_server.py",
            "python modelServer.py",
            "python -m huggingfaceserver --model_name x",
            "python3 -m wyoming_faster_whisper --uri tcp://0.0.0.0:10300",
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
    fn training_that_listens_is_not_a_server() {
        for command in [
            "python train.py --master_port 29500",
            "python -m torch.distributed.run train.py",
            "torchrun train.py",
            "python",
            "python -m observer",
            "python reserve.py",
            "python observer.py --x",
            "python -m flaskish",
            "python preserve_gradients.py",
            "",
        ] {
            assert!(!alone(&process(1, command, Some(true))), "{command}");
            assert!(!alone(&process(1, command, None)), "{command}");
        }
    }

    #[test]
    fn workers_of_a_listening_process_are_servers() {
        let listens = |address: &str| Process {
            listening_on: Some([Arc::from(address)].into()),
            ..process(1, "python app.py", Some(true))
        };
        assert!(alone(&listens("tcp:127.0.0.1:8000")));
        assert!(!alone(&listens("tcp:[::]:29500")));
        let engine = |command: &str, address: &str| Process {
            listening_relatives: Some(
                [Relative {
                    start_ticks: None,
                    pid: 9,
                    relation: Relation::Ancestor,
                    command: Some(["python".into(), "front.py".into()].into()),
                    listening_on: [Arc::from(address)].into(),
                }]
                .into(),
            ),
            ..process(1, command, Some(false))
        };
        for command in ["python engine.py", "VLLM::EngineCore", "sglang::scheduler"] {
            assert!(alone(&engine(command, "tcp:0.0.0.0:8000")), "{command}");
        }
        assert!(!alone(&engine("python engine.py", "tcp:[::]:29500")));
        assert!(
            !alone(&engine("python -m ipykernel_launcher -f x", "tcp:0.0.0.0:8000")),
            "a kernel serves no clients"
        );
    }

    #[test]
    fn a_notebook_is_never_a_server() {
        for (command, jupyter) in
            [("python -m ipykernel_launcher -f x.json", None), ("python", Some(Arc::default()))]
        {
            let framework = Some("vllm".into());
            let kernel = Process { framework, jupyter, ..process(1, command, Some(true)) };
            assert!(!alone(&kernel), "{command}");
        }
    }

    #[test]
    fn a_units_main_process_serves_unless_it_does_not_listen() {
        let service = |unit: &str, listening| Process {
            systemd_unit: Some(unit.into()),
            parent_is_reaper: Some(true),
            session: Some(1),
            ..process(1, "/srv/rerank/.venv/bin/python /srv/rerank/app.py", listening)
        };
        for (listening, serves) in [(Some(true), true), (None, true), (Some(false), false)] {
            assert_eq!(alone(&service("rerank-api.service", listening)), serves, "{listening:?}");
        }
        for unit in [
            "session-3.scope",
            "user@1000.service",
            "slurmd.service",
            "cron.service",
            "gitlab-runner.service",
        ] {
            assert!(!alone(&service(unit, Some(true))), "{unit}");
        }
        let unit = "rerank-api.service";
        let child = Process { parent_is_reaper: Some(false), ..service(unit, Some(true)) };
        let training = Process {
            listening_on: Some(["tcp:0.0.0.0:29500".into()].into()),
            ..service(unit, Some(true))
        };
        let rank = Process {
            environment: Some(Arc::new([("RANK".into(), "0".into())].into())),
            ..service(unit, Some(true))
        };
        assert!(!alone(&child) && !alone(&training) && !alone(&rank));
    }

    #[test]
    fn an_engine_started_by_a_notebook_is_not_a_server() {
        let mut engine = process(2, "VLLM::EngineCore", Some(true));
        engine.ppid = Some(1);
        assert!(alone(&engine));
        let kernel = "python -m ipykernel_launcher -f kernel.json";
        let started_by = Process {
            parent: Some(Arc::new(Parent {
                pid: 1,
                command: Some(kernel.split(' ').map(Arc::from).collect()),
                ..Parent::default()
            })),
            ..engine.clone()
        };
        assert!(!alone(&started_by), "a kernel that is not listed");
        let mut snapshot = Snapshot::new(Time::default());
        snapshot.processes = vec![process(1, kernel, Some(true)), engine.clone()];
        assert!(!serves(&engine, &snapshot));
        engine.listening_on = Some(["tcp:0.0.0.0:8000".into()].into());
        assert!(!serves(&engine, &snapshot), "clients connect to its front end");
    }

    #[test]
    fn a_worker_serves_if_its_starter_serves() {
        let mut worker = process(2, "VLLM::EngineCore", Some(false));
        worker.ppid = Some(1);
        assert!(alone(&worker), "its parent may be anything");
        let mut snapshot = Snapshot::new(Time::default());
        snapshot.processes = vec![process(1, "vllm serve x", Some(true)), worker.clone()];
        assert!(serves(&worker, &snapshot));
        snapshot.processes[0].listening = Some(false);
        assert!(!serves(&worker, &snapshot), "an offline batch");

        let orphaned = |ppid: u32, group: u32| Process {
            ppid: Some(ppid),
            parent_is_reaper: Some(true),
            process_group: Some(group),
            listening: Some(true),
            listening_on: Some(["tcp:0.0.0.0:45123".into()].into()),
            ..worker.clone()
        };
        assert!(!alone(&orphaned(1, 7)), "its front end was killed");
        assert!(alone(&orphaned(5, 5)), "its front end is the first process of a container");
        let adopted = orphaned(1, 2);
        assert!(alone(&adopted), "its front end may be a container's first process");
        let mut on_host = Snapshot::new(Time::default());
        on_host.host.pid_namespace = Some(PidNamespace::Host);
        assert!(!serves(&adopted, &on_host), "the host's first process starts no engine");
        let container = Some(Arc::default());
        assert!(serves(&Process { container, ..adopted }, &on_host));
        let parent = Parent {
            pid: 3,
            command: worker.command.clone(),
            ppid: Some(1),
            parent_is_reaper: Some(true),
            ..Parent::default()
        };
        let mut grandchild = Process {
            ppid: Some(3),
            parent_is_reaper: Some(false),
            process_group: Some(7),
            parent: Some(Arc::new(parent.clone())),
            ..worker.clone()
        };
        assert!(!alone(&grandchild), "orphaned together with its engine");
        for (starter, is_front) in [
            ("python -m vllm.entrypoints.openai.api_server", true),
            ("python serve.py", true),
            ("/usr/bin/python /v/bin/vllm serve x", true),
            ("raylet --x", true),
            ("python keep.py", false),
            ("bash", false),
        ] {
            let command = Some(starter.split(' ').map(Arc::from).collect());
            grandchild.parent = Some(Arc::new(Parent { command, ..parent.clone() }));
            assert_eq!(alone(&grandchild), is_front, "a title proves nothing: {starter}");
        }

        let helper = Process {
            framework: Some("vllm".into()),
            ..process(3, "python -c from multiprocessing", Some(false))
        };
        assert!(!serves(&helper, &snapshot));
        snapshot.processes[0].listening = Some(true);
        assert!(serves(&helper, &snapshot), "a server of its session listens");
    }
}
