//! Decides whether a process is an inference server, for which waiting is part of the work.
//!
//! A process is a server if it has a server's name and may listen, if clients use it ([`listening`]), or if it is a
//! worker of another server. Names are compared by whole words, so `reserve.py` is not a server. The main process of
//! an administrator's systemd service is a server regardless of its program, unless it is known not to listen.
//!
//! A worker that a notebook kernel started works only for the notebook. If clients could connect to a process but none
//! was observed, the answer is unknown, and no rule reports the process as idle or as an idle server.

use super::listening;
use crate::advice;
use crate::history::ProcessHistory;
use crate::model::names::NameFacts;
use crate::model::server_name::is_kernel_command;
use crate::model::unit::{Role, role};
use crate::model::{Process, Snapshot};

/// Returns whether the process is or may be a server. No rule may end a server merely because it is unused.
pub fn serves(process: &Process, snapshot: &Snapshot) -> bool {
    is_server_by(process, &NameFacts::new(process), snapshot) != Some(false)
}

/// Returns whether the process is a server, or `None` if that is unknown. Uses the cached facts about the names of
/// the process.
pub(super) fn is_server(
    process: &Process,
    process_history: &ProcessHistory,
    snapshot: &Snapshot,
) -> Option<bool> {
    is_server_by(process, process_history.names(), snapshot)
}

fn is_server_by(process: &Process, names: &NameFacts, snapshot: &Snapshot) -> Option<bool> {
    // Only the notebook server connects to a kernel, regardless of the libraries that the kernel has loaded.
    if process.jupyter.is_some() || names.is_kernel {
        return Some(false);
    }
    // An abandoned worker has no clients: they connect to the front end that started it, which is gone.
    if process.has_lost_starter() {
        return Some(false);
    }
    let is_worker = names.is_worker_of_a_server;
    let own_clients = listening::has_clients(process, snapshot).filter(|_| !is_worker);
    let mut family_clients = listening::family_has_clients(process, snapshot);
    // In a pool with `listens_for_itself`, the workers, their starter and their driver accept connections only from
    // each other.
    if names.pool.is_some_and(|pool| pool.listens_for_itself) {
        family_clients = family_clients.or(Some(false));
    }
    if own_clients == Some(true) || family_clients == Some(true) {
        return Some(true);
    }
    let may_listen = |process: &Process| process.listening != Some(false);
    if is_worker {
        let parent = process.ppid.and_then(|ppid| snapshot.process(ppid));
        let has_front = !is_child_of_a_kernel(process, parent)
            && !has_other_starter(process)
            && parent.is_none_or(may_listen);
        return if has_front { Some(true) } else { family_clients };
    }
    let is_named = (names.looks_like_a_server
        && (may_listen(process) || family_listens(process, snapshot)))
        || process.listening == Some(true) && advice::unload::server_of(process).is_some();
    let listens_for_others =
        || process.listening.is_none() || listening::listens_for_others(process, snapshot);
    if is_named || is_service(process) && listens_for_others() {
        return Some(true);
    }
    own_clients.and(family_clients)
}

/// Returns whether a server in the same session or process group listens.
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

/// Returns whether a notebook kernel started the process. The kernel need not be in the snapshot.
fn is_child_of_a_kernel(process: &Process, parent: Option<&Process>) -> bool {
    let started_by = process.parent.as_deref();
    parent.is_some_and(|parent| parent.jupyter.is_some() || parent.is_kernel())
        || started_by.and_then(|parent| parent.command.as_deref()).is_some_and(is_kernel_command)
}

/// Returns whether the process that started an apparent worker of a server is known not to be a server. The check is
/// necessary because any process can set its title to that of a worker.
fn has_other_starter(process: &Process) -> bool {
    let Some(parent) = process.parent.as_deref() else {
        return false;
    };
    let starter = Process {
        comm: parent.comm.clone(),
        command: parent.command.clone(),
        ..Process::default()
    };
    // Ray Serve's replicas are started by a raylet, which is not a server itself.
    !starter.looks_like_a_server() && !starter.is_worker_of_a_server() && !parent.runs("raylet")
}

/// Returns whether the process is the main process of a systemd unit that only does a single piece of work
/// ([`Role::Work`]).
fn is_service(process: &Process) -> bool {
    let unit = process.systemd_unit.as_deref();
    unit.is_some_and(|unit| role(unit) == Role::Work)
        && process.parent_is_reaper == Some(true)
        && process.session == Some(process.pid)
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

    fn is_server_alone(process: &Process) -> Option<bool> {
        is_server_by(process, &NameFacts::new(process), &Snapshot::new(Time::default()))
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
            "python3 -m dynamo.sglang --model x",
            "/v/bin/python -m _bentoml_impl.worker.service --fd 3",
            "python koboldcpp.py --model x.gguf",
            "/usr/bin/llama-box -m x",
            "python /v/bin/mlserver start /m",
            "/usr/lib/postgresql/16/bin/postgres -D /x",
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
        let named = process(1, "python app.py --port 80", Some(true));
        assert!(alone(&named), "it may serve");
        assert_eq!(is_server_alone(&named), None);
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
            "python -m mpi4py.futures.server",
            "python /v/bin/jupyter-server",
            "python -m tensorboard.main --logdir x",
            "python postgres_train.py",
            "",
        ] {
            assert!(!alone(&process(1, command, Some(true))), "{command}");
            assert!(!alone(&process(1, command, None)), "{command}");
        }
    }

    #[test]
    fn a_worker_of_ray_serves_only_below_a_server() {
        let below = |command: &str| {
            let listener = Relative {
                start_ticks: None,
                pid: 9,
                relation: Relation::Ancestor,
                command: Some(command.split(' ').map(Arc::from).collect()),
                listening_on: ["tcp:0.0.0.0:41000".into()].into(),
                client_addresses: Some([].into()),
                working_directory: None,
            };
            let raylet = Parent { command: Some(["raylet".into()].into()), ..Parent::default() };
            Process {
                parent: Some(Arc::new(raylet)),
                listening_relatives: Some([listener].into()),
                ..process(1, "ray::Holder", Some(true))
            }
        };
        assert_eq!(is_server_alone(&below("python actor.py")), Some(false));
        assert_eq!(is_server_alone(&below("vllm serve m")), Some(true));
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
        assert!(!alone(&adopted), "its front was killed, whatever its own group");
        for title in ["sgl_diffusion::scheduler_U0", "APHRODITE::EngineCore", "ollama_llama_server"]
        {
            let left = Process { command: Some([title.into()].into()), ..adopted.clone() };
            assert!(!alone(&left) && left.has_lost_starter(), "{title}");
        }
        let first_process = Parent {
            pid: 1,
            command: Some(["python".into(), "serve.py".into()].into()),
            ..Parent::default()
        };
        let in_a_container = Process { parent: Some(Arc::new(first_process)), ..adopted };
        assert!(alone(&in_a_container), "its front is the first process of a container");
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
