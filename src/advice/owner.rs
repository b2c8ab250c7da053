//! Finds the owner of a process, and the command that ends the process through the owner.
//!
//! An owner runs a process and would restart it or notice its end. Owners are jobs, pods, containers, systemd units and
//! supervisors. `model::owners` contains the table of owners. This module collects the facts that the table's texts
//! refer to. A shared service is never stopped because of one of its processes (`model::unit`).
//!
//! Processes choose names, so names are quoted for a shell. A command is omitted if a name in it
//! cannot be typed as shown.

use std::collections::BTreeMap;

use super::unload::server_of;
use super::{NotebookEnd, TABLE};
use crate::model::Process;
use crate::model::owners::{OwnerEntry, OwnerPlace};
use crate::model::process::{Container, Relation, Slurm};
use crate::model::unit::{Role, role};

/// Maximum length of a name in a command.
const LONGEST_NAME: usize = 253;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Owner {
    /// Kind of the owner, with the name if it can be typed: `Slurm job 3_4`, `container train`.
    pub name: String,
    /// Command that ends the process through its owner. `None` if there is no single command, for example because a
    /// name is unknown.
    pub command: Option<String>,
    /// The owner and the command as a sentence without a full stop, with commands in backquotes.
    pub line: String,
    /// Whether a user could have created the owner: a unit under the user's systemd or login session, or a supervisor
    /// that is not proven to belong to root. gpumem ignores these owners when it acts on processes of other users.
    pub is_by_user: bool,
    /// Whether the owner restarts the process or runs it as a job, so a signal is not enough.
    pub is_asked_first: bool,
    /// Whether the process may have forged a name in the command, or its user may have forged the owner. The command is
    /// then shown only to the process's user.
    pub is_claimed: bool,
}

impl Owner {
    fn new(name: impl Into<String>, command: Option<String>, line: impl Into<String>) -> Self {
        let (name, line) = (name.into(), line.into());
        Self { name, command, line, is_by_user: false, is_asked_first: false, is_claimed: false }
    }

    pub fn way(&self, is_own: bool) -> &str {
        self.command_for(is_own).unwrap_or(&self.line)
    }

    /// Returns the command. If another user would run the command (`is_own` is false), omits a claimed command.
    pub fn command_for(&self, is_own: bool) -> Option<&str> {
        self.command.as_deref().filter(|_| is_own || !self.is_claimed)
    }
}

/// Facts about a process, by their names in `owners.toml`.
type Facts = BTreeMap<&'static str, String>;

/// Finds the owner of a process. A process without an owner can be signalled.
pub fn owner(process: &Process) -> Option<Owner> {
    owner_of(process, &[process])
}

/// Finds the owner of a process, or returns `None` if no owner is known. If possible, the owner's command ends all
/// processes of the `job`, but nothing else in the same container or unit.
pub fn owner_of(process: &Process, job: &[&Process]) -> Option<Owner> {
    if is_notebook(process) {
        return notebook(process);
    }
    let in_place = |place, facts: Option<Facts>| owner_in(place, process, &facts?);
    let slurm = in_place(OwnerPlace::Slurm, slurm(process));
    if let Some(owner) = slurm.or_else(|| in_place(OwnerPlace::Pod, pod(process))) {
        return Some(owner);
    }
    // A supervisor would start the process again, so outside the supervisor, only a whole unit or container can be ended.
    let restarts = process.program_owner().is_some_and(|found| found.owner.restarts);
    let job: &[&Process] = if restarts { &[] } else { job };
    // A PID namespace alone does not identify a container.
    let is_known = |container: &Container| container.id.is_some() || container.runtime.is_some();
    let is_bare = !process.container.as_deref().is_some_and(is_known);
    let unit = unit(process, job).filter(|_| is_bare);
    let unit = unit.map(|unit| Owner { is_by_user: is_in_users_tree(process), ..unit });
    let around = unit.or_else(|| in_place(OwnerPlace::Container, container(process, job)));
    let Some(inner) = program_owner(process) else {
        return around;
    };
    // The program that started the process takes precedence over the unit or container around both.
    Some(match around {
        Some(around) if inner.is_by_user => Owner {
            line: format!("{}; otherwise, {}", inner.line, around.line),
            is_by_user: around.is_by_user,
            ..inner
        },
        _ => inner,
    })
}

/// Returns the owner from the first entry for `place` whose facts are all known, or `None` if there is no such entry.
fn owner_in(place: OwnerPlace, process: &Process, facts: &Facts) -> Option<Owner> {
    let fill = |text: &String| fill(text, &|name| facts.get(name).cloned());
    OwnerEntry::in_place(place, process.container.as_deref()).find_map(|entry| {
        let name = entry.shows.as_ref().and_then(fill)?;
        let stop = entry.stop.as_ref().and_then(fill);
        if stop.is_some() != entry.stop.is_some() {
            return None;
        }
        if let Some(says) = &entry.says {
            let line = fill(says)?;
            return Some(match entry.check.iter().find_map(fill) {
                None => Owner::new(name, stop, line),
                Some(check) => Owner::new(name, None, format!("check that {check}, then {line}")),
            });
        }
        let kind = name.split(' ').next().unwrap_or_default();
        let by = match &entry.by {
            Some(by) => format!(", {}", fill(by)?),
            None => String::new(),
        };
        let also = entry.also.as_ref().and_then(fill).unwrap_or_default();
        let stop = stop?;
        let whole = format!("stop its {kind}, and everything that runs in it{by}: `{stop}`{also}");
        let inside =
            || Some(format!("{} kill {}", fill(entry.exec.as_ref()?)?, facts.get("inner")?));
        let outside = || facts.get("pids").map(|pids| format!("kill {pids}"));
        Some(match inside().or_else(outside) {
            None => Owner::new(name, Some(stop), whole),
            Some(alone) => {
                let line =
                    format!("end only this process in its {kind}{by}: `{alone}`; or {whole}");
                Owner::new(name, Some(alone), line)
            }
        })
    })
}

fn program_owner(process: &Process) -> Option<Owner> {
    let found = process.program_owner()?;
    let owner = found.owner;
    let fill = |text: &String| fill(text, &|name| found.value(name));
    let mut by = owner.name.clone();
    let shown =
        owner.shows.as_ref().and_then(fill).map_or_else(String::new, |shown| format!(" {shown}"));
    let name = format!("{by}{shown}");
    if let Some(ancestor) = found.ancestor {
        by.push_str(&format!(" (pid {})", ancestor.pid));
    }
    let does = match owner.restarts {
        true => format!("{by} would start it again"),
        false => format!("{by} runs it as a job"),
    };
    let inside = within(process);
    let stop = owner.stop.as_ref().and_then(fill).map(|stop| format!("{inside}{stop}"));
    let check = owner.check.iter().find_map(fill);
    // If root runs the command, it can reach root's supervisor, which might manage another program with this name.
    let user = if found.is_roots() { "" } else { ", as its user" };
    let end = match (&stop, check) {
        (None, _) => owner.unnamed.clone()?,
        (Some(stop), None) => format!("end{shown}{user}: `{stop}`"),
        (Some(stop), Some(check)) => {
            format!("check that {check}, then end{shown}{user}: `{stop}`")
        }
    };
    Some(Owner {
        is_by_user: !found.is_roots(),
        is_asked_first: true,
        is_claimed: owner.is_claimed() || !found.is_roots(),
        ..Owner::new(name, stop, format!("{does}: {end}"))
    })
}

/// Returns the prefix that runs a command in the process's container, such as `docker exec train `. The prefix is
/// empty outside containers.
fn within(process: &Process) -> String {
    let facts = container(process, &[process]).unwrap_or_default();
    let mut entries = OwnerEntry::in_place(OwnerPlace::Container, process.container.as_deref());
    let fill = |text: &String| fill(text, &|name| facts.get(name).cloned());
    let entry = entries.find(|entry| {
        [&entry.shows, &entry.stop].into_iter().flatten().all(|text| fill(text).is_some())
    });
    let exec = entry.and_then(|entry| fill(entry.exec.as_ref()?));
    exec.map_or_else(String::new, |exec| format!("{exec} "))
}

/// Fills in a template and quotes each word for a shell. Returns `None` if a value is unknown or cannot be typed as
/// shown.
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
        // A backquote in the template encloses a command. A backquote in a value is quoted.
        let open = usize::from(word.starts_with('`'));
        let (before, after) = rest.split_at(rest.find(['`', ',', ';']).unwrap_or(rest.len()));
        filled.push_str(before);
        let quoted = quote(filled.get(open..)?)?;
        Some(format!("{}{quoted}{after}", word.get(..open)?))
    };
    template.split(' ').map(word).collect::<Option<Vec<String>>>().map(|words| words.join(" "))
}

/// Returns the notebook server if the kernel runs in a container or job, which then also contains the server.
fn notebook(process: &Process) -> Option<Owner> {
    let is_within = process.container.is_some()
        || process.kubernetes.is_some()
        || process.slurm.as_deref().is_some_and(|job| job.over != Some(true));
    (is_within && !process.has_lost_server())
        .then(|| Owner::new("its notebook's server", None, notebook_line(process)))
}

fn known<const N: usize>(facts: [(&'static str, Option<String>); N]) -> Facts {
    facts.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}

fn pids(job: &[&Process], pid_of: impl Fn(&Process) -> Option<u32>) -> Option<String> {
    let pids: Option<Vec<String>> =
        job.iter().map(|process| pid_of(process).map(|pid| pid.to_string())).collect();
    pids.filter(|pids| !pids.is_empty()).map(|pids| pids.join(" "))
}

fn slurm(process: &Process) -> Option<Facts> {
    let slurm = process.slurm.as_deref().filter(|slurm| slurm.over != Some(true))?;
    // The IDs of the array and the task are from the environment, which a process can forge. Use them only if the
    // array's ID equals the job's: `scancel` with this ID alone would cancel all tasks of the array.
    let is_own_array = slurm.array_job_id.is_some() && slurm.array_job_id == slurm.job_id;
    let id = if is_own_array { slurm.id() } else { slurm.job_id.as_deref().map(str::to_owned) };
    let step = slurm.step_id.as_deref();
    let is_number = |step: &str| step.bytes().all(|byte| byte.is_ascii_digit());
    // `interactive` and `extern` steps contain processes that a user started from a shell in the allocation. Ending
    // one of these processes must not end the allocation.
    let is_typed = matches!(step, Some("interactive" | "extern"));
    let doubt = slurm.job_id.as_deref().and_then(|job| doubt(process, slurm, job));
    let facts = known([
        ("allocation", id.clone().filter(|_| is_typed)),
        ("job", id.clone().filter(|_| !is_typed)),
        ("step", step.filter(|step| is_number(step)).map(str::to_owned)),
    ]);
    let doubt = doubt.zip(id);
    Some(facts.into_iter().chain(doubt).collect())
}

/// Returns why the user must check a job's ID before typing it: `claimed` or `array`. Returns `None` if the ID is
/// certain.
fn doubt(process: &Process, slurm: &Slurm, job: &str) -> Option<&'static str> {
    // Newer versions of Slurm do not name the cgroup after the job, so only the process's environment contains the ID.
    let is_named_otherwise = process.cgroup.as_deref().is_some_and(|cgroup| {
        let mut parts = cgroup.split('/');
        parts.any(|part| part.ends_with("slurmstepd.scope"))
            && !cgroup.split('/').any(|part| part == format!("job_{job}"))
    });
    if is_named_otherwise && !job.starts_with('s') {
        return Some("claimed");
    }
    // Slurm gives the array's ID to the last task as its job ID, and `scancel` with this ID cancels all tasks.
    let environment = process.environment.as_deref();
    let claimed = environment.and_then(|variables| variables.get("SLURM_JOB_ID"));
    let is_confirmed =
        slurm.array_task_id.is_some() || claimed.is_some_and(|claimed| **claimed == *job);
    (!is_confirmed).then_some("array")
}

fn pod(process: &Process) -> Option<Facts> {
    let pod = process.kubernetes.as_deref()?;
    let [name, namespace, uid] = [&pod.pod_name, &pod.namespace, &pod.pod_uid]
        .map(|name| name.as_deref().map(str::to_owned));
    Some(known([("pod", name), ("namespace", namespace), ("uid", uid)]))
}

/// Returns facts about the process's container. Returns `None` outside containers, and for a container that is or may
/// be rootless.
fn container(process: &Process, job: &[&Process]) -> Option<Facts> {
    let container = process.container.as_deref()?;
    let [called, id, space, runtime] =
        [&container.name, &container.id, &container.namespace, &container.runtime]
            .map(|name| name.as_deref().map(str::to_owned));
    let short = id.as_deref().map(short_id).map(str::to_owned);
    let which = called.clone().filter(|name| quote(name).is_some()).or_else(|| short.clone());
    let is_unnamed = which.as_deref().and_then(quote).is_none() && is_in_users_tree(process);
    // If a container has no PID namespace of its own, its monitor (such as conmon) adopts its orphans. If init has
    // adopted the process, the container was removed.
    let is_over = process.ppid == Some(1)
        && process.parent_is_reaper == Some(true)
        && process.namespace_pid.is_none();
    if container.user.is_some() || is_unnamed || is_over {
        return None;
    }
    // Killing PID 1 would end the whole container.
    let inner_pid = |process: &Process| {
        Some(process.namespace_pid.unwrap_or(process.pid)).filter(|&pid| pid != 1)
    };
    let job = job.iter().copied().filter(|other| other.container == process.container);
    let job: Vec<&Process> = job.collect();
    let inner = pids(&job, inner_pid);
    let starter = process.parent.as_deref().filter(|_| process.namespace_pid == Some(1));
    Some(known([
        ("called", called),
        ("container", which),
        ("id", id),
        ("short", short),
        ("space", space),
        ("runtime", runtime),
        ("starter", starter.and_then(|parent| Some(parent.comm.as_deref()?.to_owned()))),
        ("starter_pid", starter.map(|parent| parent.pid.to_string())),
        ("pids", inner.as_ref().and_then(|_| pids(&job, |process| Some(process.pid)))),
        ("inner", inner),
    ]))
}

/// Returns whether a user's own systemd manages the process.
fn is_rootless(process: &Process) -> bool {
    let cgroup = process.cgroup.as_deref();
    cgroup.is_some_and(|cgroup| cgroup.contains("/user@"))
}

/// Returns whether the process runs in a user's login session or under a user's own systemd.
fn is_in_users_tree(process: &Process) -> bool {
    let is_login = |cgroup: &str| cgroup.starts_with("/user.slice/");
    is_rootless(process) || process.cgroup.as_deref().is_some_and(is_login)
}

/// Shortens a container ID to twelve digits, as container programs do. Leaves names unchanged.
fn short_id(id: &str) -> &str {
    let is_digest = id.len() == 64 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    id.get(..12).filter(|_| is_digest).unwrap_or(id)
}

fn unit(process: &Process, job: &[&Process]) -> Option<Owner> {
    let unit = process.systemd_unit.as_deref()?;
    match role(unit) {
        Role::Work => {}
        // A process that has outlived its job is no longer managed by the daemon of the unit.
        Role::Host { owner } => {
            let is_over = process.slurm.as_deref().is_some_and(|slurm| slurm.over == Some(true));
            let words = owner.unnamed.clone().filter(|_| !is_over && !process.is_left_behind());
            return words.map(|words| Owner::new(owner.name.clone(), None, words));
        }
        Role::Starter | Role::Login => return None,
    }
    // systemd starts the main process of a unit as its child and as a session leader.
    let is_main = |process: &Process| {
        process.session == Some(process.pid) && process.parent_is_reaper == Some(true)
    };
    let pid_of =
        |process: &Process| (process.session.is_some() && !is_main(process)).then_some(process.pid);
    let job = job.iter().copied().filter(|other| other.cgroup == process.cgroup);
    let job: Vec<&Process> = job.collect();
    let facts = known([
        ("unit", Some(unit.to_owned())),
        ("user", process.user.as_deref().map(str::to_owned)),
        ("pids", pids(&job, pid_of)),
    ]);
    let is_users = is_rootless(process);
    let place = if is_users { OwnerPlace::UserUnit } else { OwnerPlace::Unit };
    owner_in(place, process, &facts)
}

/// Describes how to continue a stopped or frozen process, and how to end the process through its owner. Returns no
/// lines if neither applies.
pub fn place_lines(process: &Process) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(line) = thaw(process) {
        lines.push(line);
    } else if process.is_stopped() {
        lines.push(format!("it is stopped; {}", continue_line(process)));
    }
    if is_notebook(process) {
        // The container or unit belongs to the server, which may also run other users' kernels.
        lines.push(notebook_line(process));
        return lines;
    }
    let job = process.slurm.as_deref();
    if let Some(job) = job.filter(|job| job.over == Some(true)) {
        let job = job.id().as_deref().and_then(quote);
        let job = job.map_or_else(String::new, |job| format!(" {job}"));
        lines.push(format!(
            "end it with `kill {}`: its Slurm job{job} has ended, and no step of the job is left on this machine",
            process.pid
        ));
        return lines;
    }
    lines.extend(pool_line(process));
    let owner = owner(process).map(|owner| owner.line);
    lines.extend(owner.or_else(|| front_end_line(process).filter(|_| lines.is_empty())));
    lines
}

/// Describes how to end a worker through its pool.
fn pool_line(process: &Process) -> Option<String> {
    let pool = process.pool().filter(|_| !process.is_left_behind())?;
    let by = process.ppid.map_or_else(String::new, |ppid| format!(" (pid {ppid})"));
    let does = match process.restarting_pool() {
        None => format!("a worker of {} waits for work", pool.name),
        Some(_) => format!("{}{by} {}", pool.restarter, pool.deed()),
    };
    Some(format!("{does}; {}", pool.unnamed.as_ref()?))
}

/// Describes how to end a worker of an inference server, whose front end would fail without the worker.
fn front_end_line(process: &Process) -> Option<String> {
    let (row, listener) = server_of(process)?;
    let (title, front_end) = (&row.title, listener?.pid);
    let mut relatives = process.listening_relatives.iter().flat_map(|relatives| relatives.iter());
    let is_above = relatives
        .any(|relative| relative.pid == front_end && relative.relation == Relation::Ancestor);
    is_above.then(|| format!("end its server, {title} (pid {front_end}), rather than this worker"))
}

/// Describes how to continue a stopped process. If its scheduler has suspended it, SIGCONT would run it beside the job
/// for which it had to wait.
pub fn continue_line(process: &Process) -> String {
    let pid = process.pid;
    let signal = match &process.terminal {
        Some(terminal) => format!("`fg` in its shell on {terminal}, or `kill -CONT {pid}`"),
        None => format!("`kill -CONT {pid}`"),
    };
    match resume(process) {
        Some(resume) => format!("{resume}; where a person stopped it: {signal}"),
        None => format!("continue it: {signal}"),
    }
}

/// Describes how to continue a process through the scheduler that may have suspended it.
fn resume(process: &Process) -> Option<String> {
    let line = |entry: &OwnerEntry, value: &dyn Fn(&str) -> Option<String>| {
        let resume = fill(entry.resume.as_ref()?, value)?;
        let check = entry.check.iter().find_map(|check| fill(check, value));
        let check = check
            .map_or_else(String::new, |check| format!(", after you have checked that {check}"));
        Some(format!("where {} suspended its job: `{resume}`{check}", entry.name))
    };
    let facts = slurm(process).unwrap_or_default();
    OwnerEntry::in_place(OwnerPlace::Slurm, None)
        .find_map(|entry| line(entry, &|name| facts.get(name).cloned()))
        .or_else(|| {
            process.program_owner().and_then(|found| line(found.owner, &|name| found.value(name)))
        })
}

/// Describes how to thaw a process, or returns `None` if its cgroup is not frozen.
pub fn thaw(process: &Process) -> Option<String> {
    let cgroup = process.cgroup.as_deref().filter(|_| process.frozen == Some(true))?;
    let file = quote(&format!("/sys/fs/cgroup{cgroup}/cgroup.freeze"));
    let by_hand = file.map_or_else(String::new, |file| format!(", or `echo 0 > {file}`"));
    Some(format!(
        "thaw it with the tool that froze it: `docker unpause`, `podman unpause`, `systemctl thaw`{by_hand}"
    ))
}

/// Returns whether the process is an interactive notebook, rather than a batch run by papermill or nbconvert.
pub(super) fn is_notebook(process: &Process) -> bool {
    process.jupyter.as_ref().is_some_and(|kernel| !kernel.is_batch())
}

fn notebook_line(process: &Process) -> String {
    if process.has_lost_server() {
        return format!(
            "end its kernel with `gpumem kill {}`: the server that could shut the kernel down has exited",
            process.pid
        );
    }
    let kernel = process.jupyter.as_deref();
    let path = kernel.and_then(|kernel| kernel.notebook_path.as_deref());
    let path = path.filter(|path| is_plain(path)).map(|path| format!(" ({path})"));
    let application = kernel.and_then(|kernel| kernel.application.as_deref());
    let is_match = |end: &&NotebookEnd| {
        application.is_some_and(|name| end.of.iter().any(|application| application == name))
    };
    let notebook_end = TABLE.notebook.iter().find(is_match);
    let text = notebook_end.map_or(&*TABLE.kernel.text, |end| &*end.text);
    let shut = format!("shut the kernel down{}", path.as_deref().unwrap_or_default());
    text.replace("shut the kernel down", &shut).replace("PID", &process.pid.to_string())
}

/// Quotes a name for a POSIX shell if needed. Returns `None` for a name that is empty or too long,
/// contains control or invisible characters, or starts with `-` like an option.
pub fn quote(name: &str) -> Option<String> {
    if !is_plain(name) || name.starts_with('-') {
        return None;
    }
    let is_bare = |byte: u8| byte.is_ascii_alphanumeric() || b"_./:@%+,-".contains(&byte);
    Some(if name.bytes().all(is_bare) {
        name.to_owned()
    } else {
        format!("'{}'", name.replace('\'', r"'\''"))
    })
}

fn is_plain(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= LONGEST_NAME
        && name.chars().all(|c| c.is_alphanumeric() || c == ' ' || c.is_ascii_graphic())
}

#[cfg(test)]
mod tests;
