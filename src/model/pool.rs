//! Workers that belong to what starts them again: ended one by one they come back, or their work is lost.
//!
//! One table of the pools that are known, by what their workers call themselves or by the command line of
//! whoever started them. A worker of a pool waits for work: that is what it is for. Names are compared whole.

use super::Process;
use super::program::{file_name, is_interpreter};

/// A pool of workers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pool {
    /// As it names itself: `Celery`.
    pub name: &'static str,
    /// What starts a worker again that has ended.
    pub restarted_by: &'static str,
    /// What ends or empties the pool: one line, what is to be typed in backquotes, without a full stop.
    pub words: &'static str,
    /// Where the words are documented.
    pub source: &'static str,
    /// Its workers listen for each other and for what gives them work, not for clients.
    pub listens_for_itself: bool,
    /// A worker is kept for the next work, and ended by whoever started it; another one is started for work only.
    pub keeps_the_idle: bool,
}

/// `celery -A APP worker`.
pub const CELERY: Pool = Pool {
    name: "Celery",
    restarted_by: "the Celery worker that started it",
    words: "end the pool with `celery -A APP control shutdown`, after the tasks that it runs",
    source: "docs.celeryq.dev: userguide/workers, Remote control",
    listens_for_itself: false,
    keeps_the_idle: false,
};

/// `dask worker`, `dask cuda worker`.
pub const DASK: Pool = Pool {
    name: "Dask",
    restarted_by: "its nanny",
    words: "free what its workers hold with `client.restart()`, or end one for good with \
            `client.retire_workers([ADDRESS])`",
    source: "distributed.dask.org: api, Client.restart and Client.retire_workers",
    listens_for_itself: true,
    keeps_the_idle: false,
};

/// `ray::IDLE`, `ray::Trainer.step`.
pub const RAY: Pool = Pool {
    name: "Ray",
    restarted_by: "the raylet",
    words: "find whose it is with `ray list actors`, and end it there with `ray.kill(ACTOR)`",
    source: "docs.ray.io: ray-core/api/doc/ray.kill; ray-observability/reference/cli, ray list",
    listens_for_itself: true,
    keeps_the_idle: false,
};

/// `ray::IDLE`: a worker that has no task. Ray ends the workers of tasks that asked for a GPU with them, so
/// that one which holds GPU memory was not asked to, or was told to stay. Of the idle ones it ends, after
/// `idle_worker_killing_time_threshold_ms` (a second), those that are more than `num_workers_soft_limit` (one
/// for each CPU): the others stay until their driver ends.
pub const RAY_IDLE: Pool = Pool {
    words: "its task is over and left the memory behind; `ray.shutdown()` in its driver, or the driver's end, \
            gives it back; let the task ask for its GPU and have Ray end the worker after it with \
            `@ray.remote(num_gpus=1, max_calls=1)`, or start Ray with `RAY_num_workers_soft_limit=0`, so that \
            no idle worker outlives `RAY_idle_worker_killing_time_threshold_ms`",
    source: "docs.ray.io: ray-core/scheduling/accelerators, Workers not Releasing GPU Resources; ray: \
             src/ray/raylet/worker_pool.cc, TryKillingIdleWorkers, and src/ray/common/ray_config_def.h",
    keeps_the_idle: true,
    ..RAY
};

/// `rq worker`.
pub const RQ: Pool = Pool {
    name: "RQ",
    restarted_by: "the RQ worker that started it",
    words: "end the worker with `kill -TERM PID`, after the job that it runs",
    source: "python-rq.org: docs/workers, Taking Down Workers",
    listens_for_itself: false,
    keeps_the_idle: false,
};

/// `gunicorn app:app`.
pub const GUNICORN: Pool = Pool {
    name: "Gunicorn",
    restarted_by: "its master",
    words: "end all with `kill -TERM MASTER`, or have one worker less with `kill -TTOU MASTER`",
    source: "docs.gunicorn.org: signals, Master process",
    listens_for_itself: false,
    keeps_the_idle: false,
};

/// `uvicorn --workers 2 app:app`.
pub const UVICORN: Pool = Pool {
    name: "Uvicorn",
    restarted_by: "the Uvicorn that started it",
    words: "end all with `kill -TERM PARENT`, or have one worker less with `kill -TTOU PARENT`",
    source: "uvicorn.dev: deployment, Built-in",
    listens_for_itself: false,
    keeps_the_idle: false,
};

/// `model_service_worker.py`.
pub const TORCHSERVE: Pool = Pool {
    name: "TorchServe",
    restarted_by: "its front end",
    words: "have fewer workers with `curl -X PUT \
            'http://127.0.0.1:8081/models/MODEL?min_worker=0&max_worker=0'`",
    source: "docs.pytorch.org/serve: management_api, Scale workers",
    listens_for_itself: false,
    keeps_the_idle: false,
};

impl Process {
    /// The pool that it is a worker of, or that it runs.
    pub fn pool(&self) -> Option<&'static Pool> {
        let command = self.command.as_deref().unwrap_or_default();
        named(command).or_else(|| {
            // What is spawned anew has a command line that says nothing but that.
            let parent = self.parent.as_deref()?.command.as_deref()?;
            is_spawned(command).then(|| named(parent)).flatten()
        })
    }

    /// Whether whoever started it would start another one if it ended, or keeps it and ends it itself.
    pub fn is_restarted_by_its_pool(&self) -> bool {
        let Some(pool) = self.pool() else {
            return false;
        };
        if self.parent_is_reaper == Some(true) {
            return false;
        }
        if pool == &RAY || pool == &RAY_IDLE || pool == &TORCHSERVE {
            return true;
        }
        let parent = self.parent.as_deref().and_then(|it| it.command.as_deref());
        parent.and_then(named) == Some(pool)
    }
}

/// The pool that a command line is of.
pub fn named<T: AsRef<str>>(command: &[T]) -> Option<&'static Pool> {
    let title = command.first()?.as_ref();
    if title.starts_with("ray::") {
        if is_ray_idle(title) {
            return Some(&RAY_IDLE);
        }
        // Replicas of Ray Serve are servers.
        return (!title.starts_with("ray::ServeReplica")).then_some(&RAY);
    }
    // Each program writes its title so, where it can.
    for (beginning, pool) in
        [("gunicorn: worker", &GUNICORN), ("gunicorn: master", &GUNICORN), ("[celeryd", &CELERY)]
    {
        if title.starts_with(beginning) {
            return Some(pool);
        }
    }
    let (tool, arguments) = tool(command)?;
    let argument = |at: usize| arguments.get(at).map(AsRef::as_ref);
    let has = |word: &str| arguments.iter().any(|it| it.as_ref() == word);
    match tool {
        "celery" | "celery.__main__" if has("worker") => Some(&CELERY),
        "dask-worker" | "dask-cuda-worker" | "distributed.cli.dask_worker" => Some(&DASK),
        "dask" if argument(0) == Some("worker") => Some(&DASK),
        "dask" if argument(0) == Some("cuda") && argument(1) == Some("worker") => Some(&DASK),
        "rq" | "rq.cli" if has("worker") || has("worker-pool") => Some(&RQ),
        "rqworker" => Some(&RQ),
        "gunicorn" | "gunicorn.app.wsgiapp" => Some(&GUNICORN),
        "uvicorn" => Some(&UVICORN),
        "model_service_worker.py" => Some(&TORCHSERVE),
        "default_worker.py" => Some(&RAY),
        _ => None,
    }
}

/// Whether a title is that of a Ray worker without a task.
pub fn is_ray_idle(title: &str) -> bool {
    title.trim_end() == "ray::IDLE"
}

/// What a command line runs: the program, or the script or module that an interpreter is given; and the
/// arguments after it.
pub fn tool<T: AsRef<str>>(command: &[T]) -> Option<(&str, &[T])> {
    let (program, mut rest) = command.split_first()?;
    let program = file_name(program.as_ref());
    if !is_interpreter(program) {
        return Some((program, rest));
    }
    while let Some((argument, after)) = rest.split_first() {
        match argument.as_ref() {
            "-m" => return after.split_first().map(|(it, after)| (it.as_ref(), after)),
            "-c" => return None,
            // These have a value of their own.
            "-W" | "-X" => rest = after.get(1..).unwrap_or_default(),
            option if option.starts_with('-') => rest = after,
            script => return Some((file_name(script), after)),
        }
    }
    None
}

/// Whether it is a process that Python's `multiprocessing` spawned.
pub fn is_spawned<T: AsRef<str>>(command: &[T]) -> bool {
    let mut arguments = command.iter().map(AsRef::as_ref);
    let is_python = arguments.next().is_some_and(|it| is_interpreter(file_name(it)));
    let mut after = arguments.skip_while(|it| *it != "-c").skip(1);
    let code = after.next().unwrap_or_default();
    is_python
        && (code.starts_with("from multiprocessing.spawn import")
            || code.starts_with("from multiprocessing.forkserver import"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::process::Parent;
    use std::sync::Arc;

    fn words(command: &str) -> Arc<[Arc<str>]> {
        // A title is one argument.
        if command.starts_with("gunicorn: ") {
            return [command.into()].into();
        }
        command.split(' ').map(Arc::from).collect()
    }

    fn of(command: &str, parent: &str) -> Process {
        Process {
            command: Some(words(command)),
            parent_is_reaper: Some(false),
            parent: Some(Arc::new(Parent {
                pid: 1,
                command: Some(words(parent)),
                ..Parent::default()
            })),
            ..Process::default()
        }
    }

    const SPAWNED: &str =
        "/usr/bin/python3 -c from#multiprocessing.spawn#import#spawn_main;#spawn_main()";

    #[test]
    fn workers_are_known_and_so_is_who_restarts_them() {
        let spawned = SPAWNED;
        for (command, parent, name, is_restarted) in [
            (
                "/v/bin/python /v/bin/celery -A t worker",
                "/v/bin/python /v/bin/celery -A t worker",
                "Celery",
                true,
            ),
            ("/v/bin/python -m celery -A t worker", "bash", "Celery", false),
            ("python /v/bin/dask worker tcp://x:8786", "bash", "Dask", false),
            (spawned, "python /v/bin/dask worker tcp://x:8786", "Dask", true),
            (spawned, "python /v/bin/dask cuda worker tcp://x:8786", "Dask", true),
            ("ray::IDLE", "/v/ray/raylet --x", "Ray", true),
            ("ray::Trainer.step", "/v/ray/raylet", "Ray", true),
            ("python -u /v/ray/_private/workers/default_worker.py --node", "raylet", "Ray", true),
            ("python /v/bin/rq worker gpu", "python /v/bin/rq worker gpu", "RQ", true),
            ("gunicorn: worker [app]", "gunicorn: master [app]", "Gunicorn", true),
            ("python /v/bin/gunicorn app", "python /v/bin/gunicorn app", "Gunicorn", true),
            (spawned, "python -m uvicorn app:app --workers 2", "Uvicorn", true),
            (
                "python /v/ts/model_service_worker.py --sock-type unix",
                "java -jar ts.jar",
                "TorchServe",
                true,
            ),
        ] {
            let mut process = of(&command.replace('#', " "), parent);
            if command == SPAWNED {
                let code = "from multiprocessing.spawn import spawn_main; spawn_main()";
                process.command = Some(["/usr/bin/python3", "-c", code].map(Arc::from).into());
            }
            let pool = process.pool().map(|pool| pool.name);
            assert_eq!(pool, Some(name), "{command}");
            assert_eq!(process.is_restarted_by_its_pool(), is_restarted, "{command}");
            process.parent_is_reaper = Some(true);
            assert!(!process.is_restarted_by_its_pool(), "{command}");
        }
    }

    #[test]
    fn a_part_of_a_name_is_no_pool() {
        for (command, parent) in [
            ("ray::ServeReplica:app:m", "raylet"),
            ("python celery_train.py worker", "bash"),
            ("python celery inspect active", "bash"),
            ("python train.py --queue rq worker", "bash"),
            ("python -c from multiprocessing", "python train.py"),
            ("python -m uvicornish", "bash"),
            ("dask scheduler", "bash"),
        ] {
            let process = of(command, parent);
            assert_eq!(process.pool(), None, "{command}");
            assert!(!process.is_restarted_by_its_pool());
        }
        assert_eq!(Process::default().pool(), None);
    }

    #[test]
    fn the_words_fit_under_a_finding() {
        for pool in [CELERY, DASK, RAY, RAY_IDLE, RQ, GUNICORN, UVICORN, TORCHSERVE] {
            assert!(pool.words.contains('`') && !pool.words.ends_with('.'));
            assert!(!pool.words.contains("  ") && !pool.source.is_empty());
            assert!(!pool.restarted_by.is_empty() && !pool.words.contains('\\'));
        }
    }
}
