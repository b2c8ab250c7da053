//! The owner of a process, and the command that ends the process through it, for findings and plans.
//!
//! An owner runs a process and would restart or miss it: a Slurm job, a pod, a container, a systemd-nspawn machine,
//! a unit. A shared service is never stopped for one of its processes (`model::unit`). Claims that a process makes
//! about itself prove no owner, nor does a container run by the process's own user. Names come from processes, so
//! they are quoted for a shell; a name that cannot be typed as shown is omitted with its command.

use super::place::{self, quote};
use crate::model::Process;
use crate::model::process::{Container, Slurm};
use crate::model::unit::{Role, role};

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Owner {
    /// The owner's kind, with its name if it can be shown: `Slurm job 3_4`, `container train`.
    pub name: String,
    /// The command that ends the process through its owner. `None` if one command is not enough, or a name is
    /// unknown or cannot be typed.
    pub command: Option<String>,
    /// The same as a sentence without a full stop; commands are in backquotes.
    pub line: String,
    /// A unit of the user's own systemd, or a supervisor that is not proved to be root's. Users can create units of
    /// any name, so this protects the process only from its own user.
    pub is_by_user: bool,
    /// The owner restarts an ended process, or runs it as a job, so a signal does not replace the command.
    pub is_asked_first: bool,
    /// The command has a name from the process, which may be another program's. Other users must check it.
    pub is_claimed: bool,
}

impl Owner {
    fn new(name: impl Into<String>, command: Option<String>, line: impl Into<String>) -> Self {
        let (name, line) = (name.into(), line.into());
        Self { name, command, line, is_by_user: false, is_asked_first: false, is_claimed: false }
    }

    fn typed(name: impl Into<String>, command: String, words: &str) -> Self {
        let line = format!("{words}: `{command}`");
        Self::new(name, Some(command), line)
    }

    pub fn way(&self, is_own: bool) -> &str {
        self.command_for(is_own).unwrap_or(&self.line)
    }

    /// The command, if the process's own user types it (`is_own`), or if nothing in it must be checked first.
    pub fn command_for(&self, is_own: bool) -> Option<&str> {
        self.command.as_deref().filter(|_| is_own || !self.is_claimed)
    }
}

/// The owner of a process: of nested owners, the innermost one with a name that people know. `None` if there is no
/// owner, in which case signals are safe.
pub fn owner(process: &Process) -> Option<Owner> {
    owner_of(process, &[process])
}

/// The owner of a process that ends together with others of its job. The command ends those, and no other process
/// in the same container or unit.
pub fn owner_of(process: &Process, job: &[&Process]) -> Option<Owner> {
    if place::is_notebook(process) {
        return notebook(process);
    }
    // A pid namespace alone shows only that someone created it.
    let is_known = |it: &Container| it.id.is_some() || it.runtime.is_some();
    let is_bare = !process.container.as_deref().is_some_and(is_known);
    if let Some(owner) = slurm(process).or_else(|| pod(process)) {
        return Some(owner);
    }
    let unit = || {
        let unit = unit(process, job).filter(|_| is_bare)?;
        Some(Owner { is_by_user: is_in_users_tree(process), ..unit })
    };
    let around = unit().or_else(|| container(process, job));
    let Some(inner) = program_owner(process) else {
        return around;
    };
    // The unit or container belongs to the machine; the inner owner comes first.
    Some(match around {
        Some(around) if inner.is_by_user => Owner {
            line: format!("{}; else {}", inner.line, around.line),
            is_by_user: around.is_by_user,
            ..inner
        },
        _ => inner,
    })
}

/// The program that restarts the process or runs it as a job, from the table in `model::owners`.
fn program_owner(process: &Process) -> Option<Owner> {
    let found = process.program_owner()?;
    let owner = found.owner;
    let fill = |text: &Option<String>| fill(text.as_deref()?, &|name| found.value(name));
    let mut by = owner.name.clone();
    let shown = fill(&owner.shows).map_or_else(String::new, |shown| format!(" {shown}"));
    let name = format!("{by}{shown}");
    if let Some(ancestor) = found.ancestor {
        by.push_str(&format!(" (pid {})", ancestor.pid));
    }
    let does = match owner.restarts {
        true => format!("{by} would start it again"),
        false => format!("{by} runs it as a job"),
    };
    let inside = within(process);
    let stop = fill(&owner.stop).map(|stop| format!("{inside}{stop}"));
    let check = fill(&owner.check).filter(|_| owner.is_claimed());
    // Root's supervisor may manage a program of the same name as the user's own supervisor.
    let user = if found.is_roots() { "" } else { ", as its user" };
    let end = match (&stop, check) {
        (None, _) => owner.unnamed.clone(),
        (Some(stop), None) => format!("end{shown} there{user}: `{stop}`"),
        (Some(stop), Some(check)) => {
            format!("end{shown} there{user}: `{stop}`, after you have seen that {check}")
        }
    };
    Some(Owner {
        is_by_user: !found.is_roots(),
        is_asked_first: true,
        is_claimed: owner.is_claimed() || !found.is_roots(),
        ..Owner::new(name, stop, format!("{does}: {end}"))
    })
}

/// The prefix that runs a command in the process's container: `docker exec train `; empty without a container.
fn within(process: &Process) -> String {
    let around = process.container.is_some().then(|| container(process, &[process])).flatten();
    let command = around.and_then(|it| it.command).unwrap_or_default();
    let exec = command.split_once(" kill ").filter(|(exec, _)| exec.contains(" exec "));
    exec.map_or_else(String::new, |(exec, _)| format!("{exec} "))
}

/// Fills in a template, and quotes each word for a shell. `None` if a name is unknown, masked or cannot be typed.
fn fill(template: &str, value: &dyn Fn(&str) -> Option<String>) -> Option<String> {
    let word = |word: &str| {
        let mut filled = String::new();
        let mut rest = word;
        while let Some((before, after)) = rest.split_once('{') {
            let (name, end) = after.split_once('}')?;
            let value = value(name).filter(|value| !value.is_empty() && !value.contains("***"))?;
            filled.push_str(before);
            filled.push_str(&value);
            rest = end;
        }
        if rest.len() == word.len() {
            return Some(word.to_owned());
        }
        // A backquote of the template encloses a command; one in a value is quoted.
        let (open, end) = (word.starts_with('`'), rest.ends_with('`'));
        filled.push_str(rest);
        let bare = filled.get(usize::from(open)..filled.len() - usize::from(end))?;
        let quoted = quote(bare)?;
        Some(format!("{}{quoted}{}", if open { "`" } else { "" }, if end { "`" } else { "" }))
    };
    template.split(' ').map(word).collect::<Option<Vec<String>>>().map(|words| words.join(" "))
}

/// The pids of a job, for `kill`. `None` if one of them is a first process, whose end also kills the others.
fn pids(job: &[&Process], number: impl Fn(&Process) -> Option<u32>) -> Option<String> {
    let pids: Option<Vec<String>> =
        job.iter().map(|process| number(process).map(|pid| pid.to_string())).collect();
    pids.map(|pids| pids.join(" "))
}

/// The container or job around a kernel belongs to the notebook server, which runs other kernels, too.
fn notebook(process: &Process) -> Option<Owner> {
    let is_within = process.container.is_some()
        || process.kubernetes.is_some()
        || process.slurm.as_deref().is_some_and(|job| job.over != Some(true));
    (is_within && !process.has_lost_server())
        .then(|| Owner::new("its notebook's server", None, place::notebook(process)))
}

fn slurm(process: &Process) -> Option<Owner> {
    let slurm = process.slurm.as_deref()?;
    if slurm.over == Some(true) {
        return None;
    }
    // The ids of the array and the task come from the environment, which can be forged. They are used only if the
    // array's id is the job's own: the job's id alone would then cancel all tasks.
    let is_own_array = slurm.array_job_id.is_some() && slurm.array_job_id == slurm.job_id;
    let id = if is_own_array { slurm.id() } else { slurm.job_id.as_deref().map(Into::into) };
    let Some(job) = id.as_deref().and_then(quote) else {
        let line = "end its Slurm job with `scancel`; its number is not known";
        return Some(Owner::new("a Slurm job", None, line));
    };
    let name = format!("Slurm job {job}");
    // Started from an allocation's shell, so the allocation must not end with it.
    if matches!(slurm.step_id.as_deref(), Some("interactive" | "extern")) {
        let line = format!(
            "end it where it was typed; `scancel {job}` would end all of the allocation, with its shell"
        );
        return Some(Owner::new(name, None, line));
    }
    let step = slurm.step_id.as_deref().filter(|step| is_number(step));
    let check = check_first(process, slurm, &job);
    let (whole, ends) = match step {
        Some(step) => (
            format!("scancel {job}.{step}"),
            format!(
                "end its Slurm step: `scancel {job}.{step}`; or all of its job: `scancel {job}`"
            ),
        ),
        None => (format!("scancel {job}"), format!("end its Slurm job: `scancel {job}`")),
    };
    Some(match check {
        None => Owner::new(name, Some(whole), ends),
        Some(check) => Owner::new(name, None, format!("{check}, then {ends}")),
    })
}

/// What to check before typing a job's id; `None` if the id is certain.
fn check_first(process: &Process, slurm: &Slurm, job: &str) -> Option<String> {
    let number = slurm.job_id.as_deref()?;
    // Newer Slurm names cgroups differently, so only the process reports its job.
    let is_named_otherwise = process.cgroup.as_deref().is_some_and(|cgroup| {
        let mut parts = cgroup.split('/');
        parts.any(|part| part.ends_with("slurmstepd.scope"))
            && !cgroup.split('/').any(|part| part == format!("job_{number}"))
    });
    if is_named_otherwise && !number.starts_with('s') {
        return Some(format!(
            "see that it is of the job that it names (`scontrol listpids {job}`)"
        ));
    }
    // The last task of an array has the array's id as its own job id, and `scancel` with that id cancels all tasks.
    let environment = process.environment.as_deref();
    let claimed = environment.and_then(|it| it.get("SLURM_JOB_ID"));
    let is_confirmed =
        slurm.array_task_id.is_some() || claimed.is_some_and(|claimed| **claimed == *number);
    (!is_confirmed).then(|| {
        format!("see that its job is not an array's task, which has another id (`squeue -j {job}`)")
    })
}

fn pod(process: &Process) -> Option<Owner> {
    let pod = process.kubernetes.as_deref()?;
    let name = pod.pod_name.as_deref().and_then(quote);
    let space = pod.namespace.as_deref().and_then(quote);
    let uid = pod.pod_uid.as_deref().and_then(quote);
    Some(match (name, space, uid) {
        (Some(name), Some(space), _) => {
            let command = format!("kubectl delete pod -n {space} {name}");
            let line =
                format!("scale down what owns its pod; a pod that nothing owns: `{command}`");
            Owner::new(format!("pod {space}/{name}"), Some(command), line)
        }
        (_, _, Some(uid)) => Owner::new(
            format!("pod {uid}"),
            None,
            format!(
                "find its pod: `kubectl get pods -A -o \
                 custom-columns=UID:.metadata.uid,NS:.metadata.namespace,NAME:.metadata.name | grep \
                 {uid}`, and scale down what owns it, or delete it"
            ),
        ),
        _ => Owner::new("a pod", None, "scale down what owns its pod, or delete the pod"),
    })
}

/// The pid inside the container, unless the process is the first one there.
fn inner_pid(process: &Process) -> Option<u32> {
    Some(process.namespace_pid.unwrap_or(process.pid)).filter(|&pid| pid != 1)
}

fn container(process: &Process, job: &[&Process]) -> Option<Owner> {
    let container = process.container.as_deref()?;
    let id = container.id.as_deref().and_then(short_id).and_then(quote);
    let called = container.name.as_deref().and_then(quote);
    let which = called.or_else(|| id.clone());
    let runtime = container.runtime.as_deref();
    let space = container.namespace.as_deref();
    let is_unnamed = which.is_none() && is_in_users_tree(process);
    if container.user.is_some() || is_unnamed {
        return None;
    }
    let Some(command) = stop(runtime, space, which.as_deref(), container) else {
        return Some(unnamed(which, runtime, process));
    };
    let kind = if runtime == Some("nspawn") { "machine" } else { "container" };
    let name = format!("{kind} {}", which.as_deref().unwrap_or_default());
    let user = if runtime == Some("docker") { "" } else { ", as root" };
    let stop = format!("stop its {kind}, and all that runs in it{user}");
    let job: Vec<&Process> =
        job.iter().copied().filter(|it| it.container == process.container).collect();
    let mut owner = match pids(&job, inner_pid) {
        None => Owner::typed(name, command, &stop),
        Some(inner) => {
            let alone = match command.split_once(" stop ") {
                Some((program, which)) => format!("{program} exec {which} kill {inner}"),
                None => format!("kill {}", pids(&job, |it| Some(it.pid)).unwrap_or_default()),
            };
            let words = format!("end it alone in its {kind}{user}");
            let mut owner = Owner::typed(name, alone, &words);
            owner.line.push_str(&format!("; or {stop}: `{command}`"));
            owner
        }
    };
    if runtime == Some("lxc")
        && let Some(which) = which
    {
        owner.line.push_str(&format!(
            ", or `lxc stop {which}` under LXD, `incus stop {which}` under Incus"
        ));
    }
    Some(owner)
}

/// The command that stops a container; `None` if the runtime or the name is unknown.
fn stop(
    runtime: Option<&str>,
    space: Option<&str>,
    which: Option<&str>,
    container: &Container,
) -> Option<String> {
    let which = which?;
    let id = || container.id.as_deref().and_then(short_id).and_then(quote);
    let whole = || container.id.as_deref().and_then(quote);
    Some(match (runtime?, space) {
        ("docker", _) | (_, Some("moby")) => format!("docker stop {which}"),
        ("podman", _) => format!("podman stop {which}"),
        ("cri-o", _) | (_, Some("k8s.io")) | ("containerd", None) => {
            format!("crictl stop {}", id()?)
        }
        ("nerdctl", None) => format!("nerdctl stop {which}"),
        ("nerdctl", Some(space)) => format!("nerdctl -n {} stop {which}", quote(space)?),
        // Containers run by containerd directly; those started by nerdctl have a name.
        ("containerd", Some(space)) if container.name.is_some() => {
            format!("nerdctl -n {} stop {which}", quote(space)?)
        }
        ("containerd", Some(space)) => {
            format!("ctr -n {} tasks kill {}", quote(space)?, whole()?)
        }
        (runtime @ ("runc" | "crun"), _) => format!("{runtime} kill {} TERM", whole()?),
        ("lxc", _) => format!("lxc-stop -n {which}"),
        ("nspawn", _) => format!("machinectl poweroff {which}"),
        _ => return None,
    })
}

/// A container whose runtime has no known command.
fn unnamed(which: Option<String>, runtime: Option<&str>, process: &Process) -> Owner {
    let which = which.map_or_else(String::new, |which| format!(" {which},"));
    let name = match runtime.and_then(quote) {
        Some(runtime) => format!("a container of {runtime}"),
        None => "a container".to_owned(),
    };
    let by = starter(process)
        .map_or_else(|| "what started it".to_owned(), |it| format!("what started it: {it}"));
    Owner::new(name, None, format!("stop its container,{which} and all that runs in it, with {by}"))
}

/// The program that started this process, if it is the first one of a container.
fn starter(process: &Process) -> Option<String> {
    let parent = process.parent.as_deref().filter(|_| process.namespace_pid == Some(1))?;
    let name = parent.comm.as_deref().and_then(quote)?;
    Some(format!("{name} ({})", parent.pid))
}

/// Whether a user's own systemd manages the process, rather than the machine's.
fn is_rootless(process: &Process) -> bool {
    let cgroup = process.cgroup.as_deref();
    cgroup.is_some_and(|cgroup| cgroup.contains("/user@"))
}

/// Whether the process runs in a user's login session, or under that user's own systemd.
fn is_in_users_tree(process: &Process) -> bool {
    let is_login = |cgroup: &str| cgroup.starts_with("/user.slice/");
    is_rootless(process) || process.cgroup.as_deref().is_some_and(is_login)
}

/// The short form that container programs print: twelve of 64 digits. Other ids are names.
fn short_id(id: &str) -> Option<&str> {
    let is_digest = id.len() == 64 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    if is_digest { id.get(..12) } else { Some(id) }
}

fn unit(process: &Process, job: &[&Process]) -> Option<Owner> {
    let unit = process.systemd_unit.as_deref()?;
    match role(unit) {
        Role::Work => {}
        // The daemon no longer manages a process that outlived its job.
        Role::Host { way: Some(way) } if !process.is_left_behind() => {
            return Some(Owner::new(&*way.by, None, &*way.words));
        }
        Role::Host { .. } | Role::Starter | Role::Login => return None,
    }
    let Some(unit) = quote(unit) else {
        return Some(Owner::new("a unit", None, "stop its unit with `systemctl`"));
    };
    let name = format!("unit {unit}");
    let (stop, by) = match process.user.as_deref().and_then(quote) {
        _ if !is_rootless(process) => (format!("systemctl stop {unit}"), "as root".to_owned()),
        // A user's own unit: `--machine` names the user, and works for root and for that user.
        Some(user) => (
            format!("systemctl --user --machine={user}@ stop {unit}"),
            format!("as root or as {user}"),
        ),
        None => {
            let line = format!("stop its unit, as its user: `systemctl --user stop {unit}`");
            return Some(Owner::new(name, None, line));
        }
    };
    // A unit's main process leads a session and is a child of systemd.
    let is_main = |it: &Process| it.session == Some(it.pid) && it.parent_is_reaper == Some(true);
    let known = |it: &Process| (it.session.is_some() && !is_main(it)).then_some(it.pid);
    let job: Vec<&Process> = job.iter().copied().filter(|it| it.cgroup == process.cgroup).collect();
    Some(match pids(&job, known) {
        None => Owner::typed(name, stop, &format!("stop its unit, {by}")),
        Some(pids) => {
            let mut owner = Owner::typed(
                name,
                format!("kill {pids}"),
                &format!("end it alone in its unit, {by}"),
            );
            owner.line.push_str(&format!("; or stop the unit, and all that runs in it: `{stop}`"));
            owner
        }
    })
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests;
