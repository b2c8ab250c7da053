//! Owners of processes, from `owners.toml`: programs that restart processes or run them as jobs, and how to stop
//! those processes.
//!
//! An owner is recognised by the program of a living ancestor, by environment variables, by the systemd unit, or by
//! facts from the kernel (`OwnerPlace`). A rule leaves a process to its owner only if the kernel names the owner, or
//! if the ancestor is proven to belong to root.
//!
//! A pool of workers is recognised by the titles of its workers or by the command line that started them. Killing a
//! single worker is useless or harmful, because the pool restarts the worker or the work is lost. A worker that waits
//! for work is normal.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock};

use serde::Deserialize;

use super::Process;
use super::names::is_on;
use super::process::{Container, Parent};
use super::program::{is_interpreter, is_spawned, tool};

/// Maximum length of a comm, in bytes. The kernel truncates longer names.
const COMM_BYTES: usize = 15;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OwnerPlace {
    Slurm,
    Pod,
    Container,
    Unit,
    UserUnit,
}

/// An entry of `owners.toml`, whose header explains the keys.
#[derive(PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OwnerEntry {
    pub name: String,
    parents: Vec<String>,
    titles: Vec<String>,
    variables: Vec<String>,
    units: Vec<String>,
    place: Option<OwnerPlace>,
    runtimes: Vec<String>,
    namespaces: Vec<String>,
    needs: Vec<String>,
    unless: BTreeMap<String, String>,
    pub shows: Option<String>,
    pub stop: Option<String>,
    pub exec: Option<String>,
    pub by: Option<String>,
    pub says: Option<String>,
    pub also: Option<String>,
    pub check: Vec<String>,
    pub unnamed: Option<String>,
    pub resume: Option<String>,
    pub restarts: bool,
    pub is_batch: bool,
    is_way_in: bool,
    pub starts_services: bool,
    workers: Vec<String>,
    worker_titles: Vec<String>,
    starters: Vec<String>,
    pub restarter: String,
    pub keeps_the_idle: bool,
    pub listens_for_itself: bool,
    daemons: Vec<String>,
    cgroups: Vec<String>,
    folders: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct OwnerTable {
    owner: Vec<OwnerEntry>,
}

static OWNERS: LazyLock<Vec<OwnerEntry>> = LazyLock::new(|| parse().unwrap_or_default().owner);

fn parse() -> Result<OwnerTable, toml::de::Error> {
    toml::from_str(include_str!("owners.toml"))
}

pub fn variables() -> BTreeSet<&'static str> {
    let variables_of = |owner: &'static OwnerEntry| {
        let texts = [&owner.shows, &owner.stop].into_iter().flatten().chain(&owner.check);
        let named = texts.flat_map(|text| placeholders(text)).filter(|name| is_variable(name));
        let listed = owner.variables.iter().chain(&owner.needs).map(String::as_str);
        named.chain(listed).collect::<Vec<&str>>()
    };
    OWNERS.iter().filter(|owner| owner.place.is_none()).flat_map(variables_of).collect()
}

fn placeholders(text: &str) -> impl Iterator<Item = &str> {
    text.split('{').skip(1).filter_map(|rest| Some(rest.split_once('}')?.0))
}

fn is_variable(name: &str) -> bool {
    name != "PID" && name.parse::<usize>().is_err()
}

/// Returns whether a name matches a listed name, which can end with the wildcard `*`.
pub(super) fn is_named(listed: &str, name: &str) -> bool {
    match listed.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => name == listed,
    }
}

/// Returns whether a listed name matches a comm, which the kernel may have truncated.
pub(super) fn is_cut(listed: &str, comm: &str) -> bool {
    match listed.strip_suffix('*') {
        Some(start) => comm.starts_with(start.get(..COMM_BYTES).unwrap_or(start)),
        None => comm == listed.get(..COMM_BYTES).unwrap_or(listed),
    }
}

/// Returns whether an ancestor with this comm may be an owner. `host` reads the command lines of only these ancestors.
pub fn may_be_owner(comm: &str) -> bool {
    let is_program = |name: &String| is_cut(name.split(' ').next().unwrap_or_default(), comm);
    let is_titled = |title: &String| comm.starts_with(title.get(..COMM_BYTES).unwrap_or(title));
    let may_be = |owner: &OwnerEntry| {
        owner.parents.iter().any(is_program) || owner.titles.iter().any(is_titled)
    };
    is_interpreter(comm) || OWNERS.iter().any(may_be)
}

/// Returns whether this ancestor starts processes on behalf of people or of unrelated programs.
pub fn is_way_in(ancestor: &Parent) -> bool {
    let comm = ancestor.comm.as_deref().unwrap_or_default();
    let tool = tool(ancestor.command.as_deref().unwrap_or_default()).map(|(tool, _)| tool);
    OWNERS.iter().filter(|owner| owner.is_way_in).any(|owner| {
        owner.programs().any(|name| is_cut(name, comm))
            || tool.is_some_and(|it| owner.is_run_as(it))
    })
}

/// Returns whether a program with this name owns processes or lets people start them.
pub fn is_owners_program(name: &str) -> bool {
    OWNERS.iter().any(|owner| owner.is_run_as(name))
}

/// Returns the names of programs that are never killed. A name can end with the wildcard `*`.
pub fn daemons() -> impl Iterator<Item = &'static str> {
    OWNERS.iter().flat_map(|owner| &owner.daemons).map(String::as_str)
}

pub fn runtime_of_cgroup(prefix: &str) -> Option<&'static str> {
    let owner = OWNERS.iter().find(|owner| is_on(&owner.cgroups, prefix))?;
    owner.runtimes.first().map(String::as_str)
}

/// Returns the container runtime that keeps the cgroups of its containers in a folder with this name.
pub fn runtime_of_folder(folder: &str) -> Option<&'static str> {
    let owner = OWNERS.iter().find(|owner| is_on(&owner.folders, folder))?;
    owner.runtimes.first().map(String::as_str)
}

impl OwnerEntry {
    pub fn of_ancestor(ancestor: &Parent) -> Option<&'static Self> {
        OWNERS.iter().find(|owner| owner.is_run_by(ancestor))
    }

    /// Returns the owner that runs other people's programs in a unit. `name` is the unit's name without `@...` and
    /// `.service`.
    pub fn of_unit(name: &str) -> Option<&'static Self> {
        OWNERS.iter().find(|owner| owner.units.iter().any(|unit| is_named(unit, name)))
    }

    /// Returns the entries for a place, in order of precedence.
    pub fn in_place(
        place: OwnerPlace,
        container: Option<&Container>,
    ) -> impl Iterator<Item = &'static Self> {
        let is_listed = |list: &[String], name: &Option<Arc<str>>| {
            name.as_deref().is_some_and(|name| is_on(list, name))
        };
        OWNERS.iter().filter(move |owner| {
            owner.place == Some(place)
                && (owner.runtimes.is_empty()
                    || container.is_some_and(|container| {
                        is_listed(&owner.runtimes, &container.runtime)
                            || is_listed(&owner.namespaces, &container.namespace)
                    }))
        })
    }

    fn programs(&self) -> impl Iterator<Item = &str> {
        self.parents.iter().chain(&self.daemons).map(String::as_str)
    }

    fn is_run_as(&self, name: &str) -> bool {
        self.programs().any(|program| is_named(program, name))
    }

    /// Returns whether the owner restarts programs or runs jobs. Other entries describe environments or let people
    /// start programs.
    fn owns_programs(&self) -> bool {
        self.place.is_none() && (self.restarts || self.is_batch)
    }

    /// Returns whether a program file with this name can be the owner's program, or an interpreter that runs the
    /// owner's script.
    pub fn may_run_from(&self, file: &str) -> bool {
        let is_program = |name: &String| name.split(' ').next() == Some(file);
        is_interpreter(file) || self.parents.iter().any(is_program)
    }

    fn is_run_by(&self, ancestor: &Parent) -> bool {
        let command = ancestor.command.as_deref().unwrap_or_default();
        self.owns_programs()
            && (runs_any(&self.parents, |name| ancestor.runs(name), command)
                || has_title(command, &self.titles))
    }

    /// Describes what the pool does with a worker that waits or ends.
    pub fn deed(&self) -> &'static str {
        if self.keeps_the_idle { "keeps it for the next task" } else { "would start it again" }
    }

    fn applies(&self, process: &Process) -> bool {
        let has = |name: &String| variable(process, name).is_some();
        let mut excluded = self.unless.iter();
        self.needs.iter().all(has)
            && !excluded.any(|(name, value)| variable(process, name) == Some(value))
    }

    fn is_named_by_environment(&self, process: &Process) -> bool {
        !self.variables.is_empty()
            && self.variables.iter().all(|name| variable(process, name).is_some())
    }

    /// Returns whether the `stop` command contains a value from the environment of the process, which the process can
    /// forge.
    pub fn is_claimed(&self) -> bool {
        self.stop.as_deref().is_some_and(|stop| placeholders(stop).any(is_variable))
    }
}

/// Returns whether `is_program` accepts the first word of any of `names`, and `command` contains its other words.
fn runs_any<T: AsRef<str>>(
    names: &[String],
    is_program: impl Fn(&str) -> bool,
    command: &[T],
) -> bool {
    let has = |word: &str| command.iter().skip(1).any(|argument| argument.as_ref() == word);
    names.iter().any(|name| {
        let mut words = name.split(' ');
        words.next().is_some_and(&is_program) && words.all(has)
    })
}

fn has_title<T: AsRef<str>>(command: &[T], titles: &[String]) -> bool {
    let title = command.first().map_or("", AsRef::as_ref);
    titles.iter().any(|beginning| title.starts_with(&**beginning))
}

fn variable<'a>(process: &'a Process, name: &str) -> Option<&'a str> {
    let value = process.environment.as_deref()?.get(name)?;
    Some(&**value).filter(|value| !value.is_empty())
}

#[derive(Clone, Copy, Debug)]
pub struct OwnedProgram<'a> {
    pub owner: &'static OwnerEntry,
    /// The ancestor that proves the owner, or `None` if only the environment names the owner.
    pub ancestor: Option<&'a Parent>,
    process: &'a Process,
}

impl Process {
    /// Returns the owner that would restart the process or notice its exit. A process whose starter and group leader
    /// are gone has no owner.
    pub fn program_owner(&self) -> Option<OwnedProgram<'_>> {
        if self.is_left_behind() {
            return None;
        }
        let find = |fits: &dyn Fn(&OwnerEntry) -> bool| {
            OWNERS.iter().find(|owner| fits(owner) && owner.applies(self))
        };
        // Recordings of earlier versions contain the parent, but not the supervisor.
        let ancestor = self.supervisor.as_deref().or(self.parent.as_deref());
        let by_ancestor = ancestor
            .and_then(|ancestor| Some((find(&|owner| owner.is_run_by(ancestor))?, Some(ancestor))));
        let by_environment = || Some((find(&|owner| owner.is_named_by_environment(self))?, None));
        let (owner, ancestor) = by_ancestor.or_else(by_environment)?;
        Some(OwnedProgram { owner, ancestor, process: self })
    }
}

impl Process {
    /// Returns the pool of a worker or of its starter. Because a process can forge its title, the title is ignored if
    /// a program outside the pool is known to have started the process.
    pub fn pool(&self) -> Option<&'static OwnerEntry> {
        let command = self.command.as_deref().unwrap_or_default();
        let by_title = pool_titled(command).filter(|pool| self.is_started_by(pool) != Some(false));
        by_title.or_else(|| pool_running(command)).or_else(|| {
            // The command line of a spawned process does not contain the name of the program.
            let parent = self.parent.as_deref()?.command.as_deref()?;
            is_spawned(command).then(|| pool_named(parent)).flatten()
        })
    }

    /// Returns the pool of the process if the pool's starter started the process, because the starter then replaces or
    /// stops the process. If the starter of the process is unknown, the pool must list starters.
    pub fn restarting_pool(&self) -> Option<&'static OwnerEntry> {
        let is_restarted =
            |pool: &&OwnerEntry| self.is_started_by(pool).unwrap_or(!pool.starters.is_empty());
        self.pool().filter(is_restarted)
    }

    /// Returns whether the process was started by the starter of the pool, or `None` if the starter is unknown.
    fn is_started_by(&self, pool: &OwnerEntry) -> Option<bool> {
        if self.parent_is_reaper == Some(true) {
            return Some(false);
        }
        let parent = self.parent.as_deref()?;
        if pool.starters.is_empty() {
            return Some(pool_named(parent.command.as_deref()?) == Some(pool));
        }
        Some(pool.starters.iter().any(|name| parent.runs(name)))
    }
}

/// Returns the pool to which a command line belongs.
pub fn pool_named<T: AsRef<str>>(command: &[T]) -> Option<&'static OwnerEntry> {
    pool_titled(command).or_else(|| pool_running(command))
}

fn pool_titled<T: AsRef<str>>(command: &[T]) -> Option<&'static OwnerEntry> {
    // Replicas of Ray Serve are servers rather than workers of a pool.
    if command.first()?.as_ref().starts_with("ray::ServeReplica") {
        return None;
    }
    OWNERS.iter().find(|owner| has_title(command, &owner.worker_titles))
}

fn pool_running<T: AsRef<str>>(command: &[T]) -> Option<&'static OwnerEntry> {
    let (tool, _) = tool(command)?;
    OWNERS.iter().find(|owner| runs_any(&owner.workers, |name| name == tool, command))
}

impl OwnedProgram<'_> {
    /// Returns whether the owner is proven to run as root. Rules leave the processes of such an owner alone.
    pub fn is_roots(&self) -> bool {
        self.process.supervisor.is_some() && self.process.supervisor_is_roots == Some(true)
    }

    pub fn value(&self, name: &str) -> Option<String> {
        if name == "PID" {
            return Some(self.process.pid.to_string());
        }
        match name.parse::<usize>() {
            Ok(index) => Some(self.ancestor?.command.as_deref()?.get(index)?.to_string()),
            Err(_) => variable(self.process, name).map(str::to_owned),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_entry_is_recognised_and_says_how_to_end_a_program() {
        let owners = parse().unwrap().owner;
        assert!(owners.len() > 60);
        for owner in &owners {
            let name = &owner.name;
            let is_recognised = !owner.parents.is_empty()
                || !owner.titles.is_empty()
                || !owner.units.is_empty()
                || !owner.variables.is_empty()
                || owner.place.is_some()
                || !owner.workers.is_empty()
                || !owner.worker_titles.is_empty();
            assert!(is_recognised, "{name}");
            if owner.place.is_some() {
                assert!(
                    owner.shows.is_some() && (owner.stop.is_some() || owner.says.is_some()),
                    "{name}"
                );
            } else if !owner.restarter.is_empty() {
                assert!(!owner.owns_programs() && owner.unnamed.is_some(), "{name}");
            } else if !owner.is_way_in && !owner.starts_services {
                assert!(owner.owns_programs() && owner.unnamed.is_some(), "{name}");
            }
            for text in [&owner.says, &owner.also, &owner.unnamed].into_iter().flatten() {
                assert_eq!(text.matches('`').count() % 2, 0, "{name}");
                assert!(!text.ends_with('.'), "{name}");
                // If an entry has both `stop` and `says`, then `says` must quote the `stop` command.
                let command = owner.stop.as_deref().filter(|_| owner.says.as_ref() == Some(text));
                assert!(command.is_none_or(|stop| text.contains(stop)), "{name}");
            }
            // If a process can forge a value in the command, the entry must say how to check the value, unless the
            // kernel proves the place.
            assert!(
                owner.place.is_some() || !owner.is_claimed() || !owner.check.is_empty(),
                "{name}"
            );
            for parent in owner.parents.iter().filter(|parent| !parent.contains('.')) {
                let program = parent.split(' ').next().unwrap();
                assert!(may_be_owner(program.get(..COMM_BYTES).unwrap_or(program)), "{parent}");
            }
        }
    }

    #[test]
    fn a_listed_name_may_end_with_a_star() {
        for (listed, name, is_listed) in [
            ("tmux", "tmux", true),
            ("tmux", "tmux2", false),
            ("containerd-shim*", "containerd-shim", true),
            ("containerd-shim*", "containerd-shim-runc-v2", true),
            ("containerd-shim*", "containerd", false),
        ] {
            assert_eq!(is_named(listed, name), is_listed, "{name}");
            let comm = name.get(..COMM_BYTES).unwrap_or(name);
            assert_eq!(is_cut(listed, comm), is_listed, "{name}");
        }
    }

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
            ("python djl_python_engine.py --sock-type unix", "java -cp x", "DJL Serving", true),
            ("python /v/bin/dramatiq app", "python /v/bin/dramatiq app", "Dramatiq", true),
            (spawned, "python /v/bin/dramatiq app", "Dramatiq", true),
            ("python huey_consumer.py a.huey", "python huey_consumer.py a.huey", "Huey", true),
            ("python /v/bin/arq app.WorkerSettings", "bash", "arq", false),
            (spawned, "python /v/bin/taskiq worker app:broker", "Taskiq", true),
            ("python manage.py qcluster", "python manage.py qcluster", "Django Q", true),
            ("python manage.py rqworker gpu", "bash", "RQ", false),
            ("python /v/bin/procrastinate --app=a worker", "bash", "Procrastinate", false),
        ] {
            let mut process = worker(&command.replace('#', " "), parent);
            if command == SPAWNED {
                let code = "from multiprocessing.spawn import spawn_main; spawn_main()";
                process.command = Some(["/usr/bin/python3", "-c", code].map(Arc::from).into());
            }
            let pool = process.pool().map(|pool| &*pool.name);
            assert_eq!(pool, Some(name), "{command}");
            assert_eq!(process.restarting_pool().is_some(), is_restarted, "{command}");
            process.parent_is_reaper = Some(true);
            assert!(process.restarting_pool().is_none(), "{command}");
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
            assert!(process.restarting_pool().is_none(), "{title} below {parent}");
            process.parent = None;
            assert!(process.pool().is_some(), "an unknown starter may be the pool's: {title}");
            process.parent_is_reaper = Some(true);
            assert_eq!(process.pool(), None, "{title}");
        }
        let mut process = worker("ray::IDLE", "bash");
        process.parent = None;
        assert!(process.restarting_pool().is_some());
        let comm = |comm: &str| Parent { comm: Some(comm.into()), ..Parent::default() };
        for (name, is_restarted) in [("raylet", true), ("bash", false)] {
            // The parent's command line is empty, so its comm must be sufficient.
            process.parent = Some(Arc::new(comm(name)));
            assert_eq!(process.restarting_pool().is_some(), is_restarted, "{name}");
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
            ("python arq_train.py", "bash"),
            ("python manage.py runserver", "bash"),
            ("python /v/bin/taskiq scheduler app:s", "bash"),
            ("python dramatiq_train.py", "bash"),
            ("dask scheduler", "bash"),
        ] {
            let process = worker(command, parent);
            assert_eq!(process.pool(), None, "{command}");
            assert!(process.restarting_pool().is_none());
        }
        assert_eq!(Process::default().pool(), None);
    }
}
