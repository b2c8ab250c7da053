//! Pools of workers. It is useless or harmful to kill a single worker, because the pool restarts it or its work is
//! lost.
//!
//! `pools.toml` lists known pools. A pool is recognised by the titles of its workers or by the command line that
//! started them. Names are compared whole. It is normal that a pool's worker waits for work.

use std::sync::LazyLock;

use serde::Deserialize;

use super::Process;
use super::process::Parent;
use super::program::{file_name, is_interpreter};

#[derive(PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pool {
    pub name: String,
    pub restarted_by: String,
    /// Instruction for stopping or draining the pool: one line without a full stop, with commands in backquotes.
    pub words: String,
    /// Whether the workers only listen for each other and for their source of work, not for clients.
    #[serde(default)]
    pub listens_for_itself: bool,
    /// Whether the pool keeps idle workers and stops them itself, and starts workers only for new work.
    #[serde(default)]
    pub keeps_the_idle: bool,
    /// Programs, scripts or modules that start the workers but are not part of the pool.
    #[serde(default)]
    started_by: Vec<String>,
    #[serde(default)]
    titles: Vec<String>,
    /// Program, script or module of the workers, followed by words that its arguments must contain.
    #[serde(default)]
    commands: Vec<String>,
}

#[derive(Default, Deserialize)]
struct Pools {
    pool: Vec<Pool>,
}

static POOLS: LazyLock<Vec<Pool>> = LazyLock::new(|| parse().unwrap_or_default().pool);

fn parse() -> Result<Pools, toml::de::Error> {
    toml::from_str(include_str!("pools.toml"))
}

impl Process {
    /// Returns the pool of a worker or of its starter. Because a process can forge its title, the title is ignored if
    /// a program outside the pool is known to have started the process.
    pub fn pool(&self) -> Option<&'static Pool> {
        let command = self.command.as_deref().unwrap_or_default();
        let by_title = titled(command).filter(|pool| self.is_started_by(pool) != Some(false));
        by_title.or_else(|| running(command)).or_else(|| {
            // The command line of a spawned process does not contain the name of the program.
            let parent = self.parent.as_deref()?.command.as_deref()?;
            is_spawned(command).then(|| named(parent)).flatten()
        })
    }

    /// Returns whether the pool replaces the process when it exits, or stops it itself.
    pub fn is_restarted_by_its_pool(&self) -> bool {
        self.pool()
            .is_some_and(|pool| self.is_started_by(pool).unwrap_or(!pool.started_by.is_empty()))
    }

    /// Returns whether the process was started by the starter of the pool, or `None` if that is unknown.
    fn is_started_by(&self, pool: &Pool) -> Option<bool> {
        if self.parent_is_reaper == Some(true) {
            return Some(false);
        }
        let parent = self.parent.as_deref()?;
        if pool.started_by.is_empty() {
            return Some(named(parent.command.as_deref()?) == Some(pool));
        }
        Some(pool.started_by.iter().any(|name| parent.runs(name)))
    }
}

impl Parent {
    pub fn runs(&self, name: &str) -> bool {
        let command = self.command.as_deref().unwrap_or_default();
        let program = command.first().map(|program| file_name(program));
        let tool = tool(command).map(|(tool, _)| tool);
        [program, tool, self.comm.as_deref()].contains(&Some(name))
    }
}

pub fn named<T: AsRef<str>>(command: &[T]) -> Option<&'static Pool> {
    titled(command).or_else(|| running(command))
}

fn titled<T: AsRef<str>>(command: &[T]) -> Option<&'static Pool> {
    let title = command.first()?.as_ref();
    // Replicas of Ray Serve are servers rather than workers of a pool.
    if title.starts_with("ray::ServeReplica") {
        return None;
    }
    let is_titled = |beginning: &String| match &**beginning {
        "ray::IDLE" => is_ray_idle(title),
        beginning => title.starts_with(beginning),
    };
    POOLS.iter().find(|pool| pool.titles.iter().any(is_titled))
}

fn running<T: AsRef<str>>(command: &[T]) -> Option<&'static Pool> {
    let (tool, rest) = tool(command)?;
    let has = |word: &str| rest.iter().any(|argument| argument.as_ref() == word);
    let runs = |words: &String| {
        let mut words = words.split(' ');
        words.next() == Some(tool) && words.all(has)
    };
    POOLS.iter().find(|pool| pool.commands.iter().any(runs))
}

pub fn is_ray_idle(title: &str) -> bool {
    title.trim_end() == "ray::IDLE"
}

/// Splits a command line into the tool and its arguments. The tool is the program or, if that is an interpreter, the
/// script or module that it runs.
pub fn tool<T: AsRef<str>>(command: &[T]) -> Option<(&str, &[T])> {
    let (program, mut rest) = command.split_first()?;
    let program = file_name(program.as_ref());
    if !is_interpreter(program) {
        return Some((program, rest));
    }
    while let Some((argument, after)) = rest.split_first() {
        match argument.as_ref() {
            "-m" => return after.split_first().map(|(module, after)| (module.as_ref(), after)),
            "-c" => return None,
            // The Python options `-W` and `-X` take the next argument as their value.
            "-W" | "-X" => rest = after.get(1..).unwrap_or_default(),
            option if option.starts_with('-') => rest = after,
            script => return Some((file_name(script), after)),
        }
    }
    None
}

pub fn is_spawned<T: AsRef<str>>(command: &[T]) -> bool {
    let mut arguments = command.iter().map(AsRef::as_ref);
    let is_python = arguments.next().is_some_and(|program| is_interpreter(file_name(program)));
    let mut after = arguments.skip_while(|argument| *argument != "-c").skip(1);
    let code = after.next().unwrap_or_default();
    is_python
        && (code.starts_with("from multiprocessing.spawn import")
            || code.starts_with("from multiprocessing.forkserver import"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn words(command: &str) -> Arc<[Arc<str>]> {
        // A process title is a single argument.
        if ["gunicorn: ", "dask worker ["].iter().any(|title| command.starts_with(title)) {
            return [command.into()].into();
        }
        command.split(' ').map(Arc::from).collect()
    }

    fn worker(command: &str, parent: &str) -> Process {
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
    fn pool_workers_and_their_restarters_are_recognised() {
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
            ("python /v/bin/dask worker tcp://x:8786 --name gpu0", "bash", "Dask", false),
            ("dask worker [tcp://x:8786]", "python /v/bin/dask worker tcp://x:8786", "Dask", true),
            ("dask worker [tcp://x:8786]", "python -m distributed.cli.dask_worker x", "Dask", true),
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
            let mut process = worker(&command.replace('#', " "), parent);
            if command == SPAWNED {
                let code = "from multiprocessing.spawn import spawn_main; spawn_main()";
                process.command = Some(["/usr/bin/python3", "-c", code].map(Arc::from).into());
            }
            let pool = process.pool().map(|pool| &*pool.name);
            assert_eq!(pool, Some(name), "{command}");
            assert_eq!(process.is_restarted_by_its_pool(), is_restarted, "{command}");
            process.parent_is_reaper = Some(true);
            assert!(!process.is_restarted_by_its_pool(), "{command}");
        }
    }

    #[test]
    fn a_title_with_another_starter_is_not_a_pool() {
        for (title, parent) in [
            ("ray::IDLE", "bash"),
            ("ray::IDLE", "python /home/ann/raylet.py"),
            ("ray::Trainer.step", "python train.py"),
            ("dask worker [tcp://x:8786]", "python train.py"),
            ("gunicorn: worker [app]", "bash"),
        ] {
            let mut process = worker(title, parent);
            assert_eq!(process.pool(), None, "{title} below {parent}");
            assert!(!process.is_restarted_by_its_pool(), "{title} below {parent}");
            process.parent = None;
            assert!(process.pool().is_some(), "an unknown starter may be the pool's: {title}");
            process.parent_is_reaper = Some(true);
            assert_eq!(process.pool(), None, "{title}");
        }
        let mut process = worker("ray::IDLE", "bash");
        process.parent = None;
        assert!(process.is_restarted_by_its_pool());
        let comm = |comm: &str| Parent { comm: Some(comm.into()), ..Parent::default() };
        for (name, is_restarted) in [("raylet", true), ("bash", false)] {
            // The parent's command line is empty, so its comm must be enough.
            process.parent = Some(Arc::new(comm(name)));
            assert_eq!(process.is_restarted_by_its_pool(), is_restarted, "{name}");
        }
    }

    #[test]
    fn a_partial_name_is_not_a_pool() {
        for (command, parent) in [
            ("ray::ServeReplica:app:m", "raylet"),
            ("python celery_train.py worker", "bash"),
            ("python celery inspect active", "bash"),
            ("python train.py --queue rq worker", "bash"),
            ("python -c from multiprocessing", "python train.py"),
            ("python -m uvicornish", "bash"),
            ("dask scheduler", "bash"),
        ] {
            let process = worker(command, parent);
            assert_eq!(process.pool(), None, "{command}");
            assert!(!process.is_restarted_by_its_pool());
        }
        assert_eq!(Process::default().pool(), None);
    }
}
