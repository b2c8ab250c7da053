//! Joins processes into families: first by facts from the kernel (groups, sessions, parents, dead pids), then by
//! environment variables that identify a run, and finally by cgroups.
//!
//! Processes of different users, or of two notebook kernels, never belong together. If such processes share a group,
//! session or other property, no processes are joined because of that property.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{Family, Tie};
use crate::model::process::{Parent, Process};
use crate::model::snapshot::{Gpu, PidNamespace, Snapshot};
use crate::model::unit::{Role, role};

/// Names of shells. A shell can start unrelated commands in its session.
const SHELLS: [&str; 12] =
    ["sh", "bash", "dash", "zsh", "fish", "ksh", "mksh", "tcsh", "csh", "ash", "busybox", "nu"];

type RunKey = (&'static str, Vec<Arc<str>>);

/// Pid of a launcher, and its start ticks if they are known.
type Launcher = (u32, Option<u64>);

#[derive(Debug, Default)]
struct Job {
    members: Vec<usize>,
    ties: BTreeSet<Tie>,
    /// User of the processes, or `None` if the job consists of a dead process.
    uid: Option<u32>,
    kernel: Option<u32>,
    runs: BTreeMap<RunKey, BTreeSet<Arc<str>>>,
}

impl Job {
    /// Returns whether two jobs can be parts of one job: they have the same user, and at most one of them contains a
    /// notebook kernel.
    fn may_be_one_with(&self, other: &Self) -> bool {
        let same_user = match (self.uid, other.uid) {
            (Some(one), Some(another)) => one == another,
            // The user of a dead process is unknown. `new` excludes living processes with an unknown user.
            (None, Some(_)) | (Some(_), None) => true,
            (None, None) => false,
        };
        same_user && (self.kernel.is_none() || other.kernel.is_none())
    }

    /// Returns whether both jobs contain the same rank of a run. Such jobs belong to two runs with the same key.
    fn has_a_rank_of(&self, other: &Self, key: &RunKey) -> bool {
        let ranks = |job: &Self| job.runs.get(key).cloned().unwrap_or_default();
        !ranks(self).is_disjoint(&ranks(other))
    }
}

pub(super) struct Joining<'a> {
    snapshot: &'a Snapshot,
    processes: Vec<&'a Process>,
    by_pid: BTreeMap<u32, usize>,
    job_of: Vec<usize>,
    /// Jobs, initially one for each process. A job that has been joined to another job is empty.
    jobs: Vec<Job>,
}

impl<'a> Joining<'a> {
    pub(super) fn new(snapshot: &'a Snapshot) -> Self {
        // In the host's pid namespace, a pid that is missing from /proc belongs to a dead process. In another
        // namespace, the process may only be invisible.
        let shows_the_dead = snapshot.host.pid_namespace == Some(PidNamespace::Host);
        let mut processes: Vec<&Process> = snapshot
            .processes
            .iter()
            .filter(|p| (is_alive(p) && p.uid.is_some()) || (shows_the_dead && is_dead(p)))
            .collect();
        processes.sort_by_key(|process| process.pid);
        processes.dedup_by_key(|process| process.pid);
        let job = |(index, process): (usize, &&Process)| Job {
            members: vec![index],
            ties: BTreeSet::new(),
            uid: process.uid,
            kernel: process.jupyter.is_some().then_some(process.pid),
            runs: runs(process),
        };
        Self {
            snapshot,
            by_pid: processes.iter().map(|p| p.pid).zip(0..).collect(),
            job_of: (0..processes.len()).collect(),
            jobs: processes.iter().enumerate().map(job).collect(),
            processes,
        }
    }

    fn living(&self) -> Vec<(usize, &'a Process)> {
        let all = self.processes.iter().copied().enumerate();
        all.filter(|(_, process)| is_alive(process)).collect()
    }

    fn index(&self, pid: u32) -> Option<usize> {
        self.by_pid.get(&pid).copied()
    }

    fn job(&self, process: usize) -> &Job {
        &self.jobs[self.job_of[process]]
    }

    /// Joins the jobs of two processes, if they can be one job. If the processes already are in the same job, only
    /// records the tie.
    fn join(&mut self, one: usize, another: usize, tie: Tie) {
        let (into, from) = (self.job_of[one], self.job_of[another]);
        if into != from {
            if !self.jobs[into].may_be_one_with(&self.jobs[from]) {
                return;
            }
            let job = std::mem::take(&mut self.jobs[from]);
            for &process in &job.members {
                self.job_of[process] = into;
            }
            let joined = &mut self.jobs[into];
            joined.members.extend(job.members);
            joined.ties.extend(job.ties);
            joined.uid = joined.uid.or(job.uid);
            joined.kernel = joined.kernel.or(job.kernel);
            for (key, ranks) in job.runs {
                joined.runs.entry(key).or_default().extend(ranks);
            }
        }
        self.jobs[into].ties.insert(tie);
    }

    /// Joins all processes that share a property. If two of them cannot be in the same job, the property proves
    /// nothing, so no processes are joined.
    fn join_class(&mut self, class: &[usize], tie: Tie) {
        let jobs: BTreeSet<usize> = class.iter().map(|&process| self.job_of[process]).collect();
        let jobs = || jobs.iter().map(|&job| &self.jobs[job]);
        let kernels: BTreeSet<u32> = jobs().filter_map(|job| job.kernel).collect();
        let runs: BTreeSet<BTreeSet<&RunKey>> = jobs()
            .map(|job| job.runs.keys().collect())
            .filter(|keys: &BTreeSet<&RunKey>| !keys.is_empty())
            .collect();
        let are_other_runs =
            runs.iter().any(|one| runs.iter().any(|another| one.is_disjoint(another)));
        // Processes older than the kernel are its server or an editor. The kernel's own helpers are younger.
        let kernel = kernels.first().and_then(|&pid| self.index(pid));
        let has_elders = kernel.is_some_and(|kernel| {
            let start_ticks = self.processes[kernel].start_ticks;
            let mut class = class.iter().map(|&process| self.processes[process]);
            class.any(|process| process.start_ticks < start_ticks)
        });
        if kernels.len() > 1 || has_elders || are_other_runs {
            return;
        }
        for pair in class.windows(2) {
            self.join(pair[0], pair[1], tie);
        }
    }

    /// Joins living processes with the same key and user. Workers that have lost their starter are joined only with
    /// each other, because the rest of their process group may be a script that is still running.
    fn join_classes<K: Ord>(&mut self, tie: Tie, key: impl Fn(&Process) -> Option<K>) {
        let mut classes: BTreeMap<(Option<u32>, bool, K), Vec<usize>> = BTreeMap::new();
        for (index, process) in self.living() {
            if let Some(key) = key(process) {
                let is_left = process.jupyter.is_none() && process.has_lost_starter();
                classes.entry((process.uid, is_left, key)).or_default().push(index);
            }
        }
        for class in classes.into_values().filter(|class| class.len() > 1) {
            self.join_class(&class, tie);
        }
    }

    /// Joins process groups. The processes of a group were started by one shell command line or one script.
    pub(super) fn join_groups(&mut self) {
        self.join_classes(Tie::ProcessGroup, |process| {
            process.process_group.filter(|&group| group > 0)
        });
    }

    /// Joins sessions whose leader is a living process in the snapshot and not a shell. A session is a login, a
    /// terminal or a daemon. It may contain many jobs even after its terminal was closed.
    pub(super) fn join_sessions(&mut self) {
        let leaders: BTreeSet<u32> = self
            .living()
            .into_iter()
            .filter(|(_, process)| leads_its_session(process) && !is_shell(process))
            .map(|(_, process)| process.pid)
            .collect();
        self.join_classes(Tie::Session, |process| {
            process.session.filter(|session| leaders.contains(session))
        });
    }

    /// Joins processes with the process that started them. Exceptions are notebook kernels, children of shells, and
    /// processes that a kernel started in a new session, because a new session means that the process is independent.
    pub(super) fn join_children(&mut self) {
        for (child, process) in self.living() {
            let Some(elder) = started_by(process).and_then(|(pid, start_ticks)| {
                let elder = self.index(pid)?;
                let starter = self.processes[elder];
                let is_same = start_ticks.is_none() || start_ticks == starter.start_ticks;
                let is_older = starter.start_ticks <= process.start_ticks;
                (is_alive(starter) && is_same && is_older).then_some(elder)
            }) else {
                continue;
            };
            let started = self.processes[elder];
            let is_let_go =
                leads_its_session(process) && (started.jupyter.is_some() || is_shell(started));
            // A shell that has a GPU's device file open is a login, not a job.
            if process.jupyter.is_none() && !is_let_go && !is_shell(started) {
                self.join(elder, child, Tie::Parent);
            }
        }
    }

    /// Joins dead processes with the processes that they started. While a process group or session exists, the kernel
    /// does not reuse its id as a pid. A dead process with this pid is therefore the former leader, which started the
    /// other processes of the group or session.
    pub(super) fn join_the_dead(&mut self) {
        for dead in 0..self.processes.len() {
            let pid = self.processes[dead].pid;
            if !is_dead(self.processes[dead]) {
                continue;
            }
            let mut heirs: Vec<(usize, Tie)> = Vec::new();
            for (index, process) in self.living() {
                let tie = if process.process_group == Some(pid) {
                    Tie::ProcessGroup
                } else if process.session == Some(pid) {
                    Tie::Session
                } else if process.parent.as_deref().is_some_and(|p| p.pid == pid) {
                    Tie::Parent
                } else {
                    continue;
                };
                heirs.push((index, tie));
            }
            let users: BTreeSet<_> = heirs.iter().map(|&(i, _)| self.processes[i].uid).collect();
            let kernels: BTreeSet<_> =
                heirs.iter().filter_map(|&(i, _)| self.job(i).kernel).collect();
            if users.len() != 1 || kernels.len() > 1 {
                continue;
            }
            for &(heir, tie) in &heirs {
                self.join(heir, dead, tie);
                if self.holds_for(self.processes[heir], pid) {
                    self.join(heir, dead, Tie::GpuFiles);
                }
            }
        }
    }

    fn holds_for(&self, holder: &Process, dead: u32) -> bool {
        let lists = |gpu: &Gpu, pid| {
            let mut rows = gpu.processes.iter().flatten();
            rows.any(|row| row.pid == pid)
        };
        let gpus = &self.snapshot.gpus;
        !gpus.iter().any(|gpu| lists(gpu, holder.pid))
            && gpus.iter().filter(|gpu| lists(gpu, dead)).any(|gpu| {
                // Without a minor number, the name of the device file is unknown.
                gpu.minor_number.is_some() && gpu.may_be_held_by(holder) == Some(true)
            })
    }

    /// Joins the ranks of a run. The ranks are in separate sessions, but have the same launcher, which may have exited.
    pub(super) fn join_runs(&mut self) {
        let mut classes: BTreeMap<(Option<u32>, RunKey), Vec<usize>> = BTreeMap::new();
        for (index, process) in self.living() {
            for key in runs(process).into_keys() {
                classes.entry((process.uid, key)).or_default().push(index);
            }
        }
        for ((_, key), class) in classes {
            let mut jobs: BTreeMap<usize, usize> = BTreeMap::new();
            for &process in &class {
                jobs.entry(self.job_of[process]).or_insert(process);
            }
            if jobs.len() < 2 {
                continue;
            }
            let firsts: Vec<usize> = jobs.into_values().collect();
            let is_twice = firsts.iter().enumerate().any(|(at, &one)| {
                let others = firsts[..at].iter();
                others.into_iter().any(|&other| self.job(one).has_a_rank_of(self.job(other), &key))
            });
            if is_twice || !self.have_one_launcher(&firsts, &key) {
                continue;
            }
            for pair in firsts.windows(2) {
                self.join(pair[0], pair[1], Tie::Run);
            }
        }
    }

    /// Returns whether these jobs may have the same launcher. Leftover ranks of an earlier run have a different
    /// launcher or none.
    fn have_one_launcher(&self, jobs: &[usize], key: &RunKey) -> bool {
        let launchers: Vec<BTreeSet<Launcher>> =
            jobs.iter().map(|&job| self.launchers(self.job(job))).collect();
        let all: BTreeSet<Launcher> = launchers.iter().flatten().copied().collect();
        let all_have = launchers.iter().all(|launchers| !launchers.is_empty());
        match all.len() {
            1 => all_have,
            // If all launchers have exited, only a unique run name proves that the ranks belong together.
            0 => names_itself(key),
            _ => false,
        }
    }

    /// Returns the processes outside the job that started its members.
    fn launchers(&self, job: &Job) -> BTreeSet<Launcher> {
        let starters = job.members.iter().filter_map(|&i| started_by(self.processes[i]));
        starters
            .filter(|&(pid, _)| {
                let member = self.index(pid);
                member.is_none_or(|index| !job.members.contains(&index))
            })
            .collect()
    }

    /// Joins the processes of each Slurm step. Also joins the processes of each cgroup that contains the first process
    /// of a container or the main process of a service, because the kernel or systemd kills the other processes when
    /// that process exits. Processes with a terminal are not joined.
    pub(super) fn join_cgroups(&mut self) {
        // If a process has a terminal, a person started it by hand in the step, service or container.
        let is_typed = |process: &Process| process.terminal.is_some();
        self.join_classes(Tie::Cgroup, |process| {
            let slurm = process.slurm.as_deref()?;
            let step = slurm.step_id.clone().filter(|step| is_one_job(step))?;
            (!is_typed(process)).then_some((slurm.job_id.clone()?, step))
        });

        // The cgroup path alone is not enough. If the memory controller is enabled only for a slice, all processes of
        // the slice have the same path.
        let cgroup_of = |process: &Process| {
            let container = process.container.as_deref();
            let container = container.and_then(|container| container.id.clone());
            Some((process.cgroup.clone()?, container, process.systemd_unit.clone()))
        };
        let mut firsts: BTreeMap<_, Vec<u32>> = BTreeMap::new();
        for (_, process) in self.living() {
            if let Some(cgroup) = cgroup_of(process)
                && (is_first_of_a_container(process) || is_main_of_a_service(process))
            {
                let key = (process.uid, cgroup);
                firsts.entry(key).or_default().push(process.pid);
            }
        }
        self.join_classes(Tie::Cgroup, |process| {
            let key = (process.uid, cgroup_of(process)?);
            let first = firsts.get(&key)?;
            (first.len() == 1 && !is_typed(process)).then_some(key.1)
        });
    }

    pub(super) fn finish(self) -> Vec<Family> {
        let mut families: Vec<(u32, Family)> = Vec::new();
        for job in self.jobs.iter().filter(|job| !job.members.is_empty()) {
            let processes = || job.members.iter().map(|&index| self.processes[index]);
            let mut members: Vec<u32> = processes().map(|process| process.pid).collect();
            members.sort_unstable();
            // A dead member led the group or session of other members, so it is older than they are.
            let oldest = processes().min_by_key(|p| (p.start_ticks.unwrap_or(0), p.pid));
            let oldest = oldest.map_or(0, |process| process.pid);
            let mut launchers = processes().filter_map(|process| process.parent.as_ref());
            let launchers = launchers.by_ref().filter(|parent| {
                let process = self.index(parent.pid).map(|index| self.processes[index]);
                members.binary_search(&parent.pid).is_err()
                    || process.is_some_and(|p| is_alive(p) && p.start_ticks != parent.start_ticks)
            });
            let launchers: BTreeMap<Launcher, &Arc<Parent>> =
                launchers.map(|parent| ((parent.pid, parent.start_ticks), parent)).collect();
            let launcher = match launchers.len() {
                1 => launchers.into_values().next().cloned(),
                _ => None,
            };
            families.push((
                oldest,
                Family {
                    id: format!("family:{oldest}").into(),
                    user: processes().find_map(|process| process.user.clone()),
                    members,
                    ties: job.ties.clone(),
                    launcher,
                },
            ));
        }
        families.sort_by_key(|&(oldest, _)| oldest);
        families.into_iter().map(|(_, family)| family).collect()
    }
}

fn is_alive(process: &Process) -> bool {
    process.unresolved.is_none() && (process.start_ticks.is_some() || process.start_time.is_some())
}

/// Returns whether NVML lists a pid that no process has.
pub(super) fn is_dead(process: &Process) -> bool {
    process.unresolved.is_none()
        && process.start_ticks.is_none()
        && process.start_time.is_none()
        && process.state.is_none()
}

fn is_shell(process: &Process) -> bool {
    let name = process.comm.as_deref().unwrap_or_default();
    SHELLS.contains(&name)
}

fn leads_its_session(process: &Process) -> bool {
    process.session == Some(process.pid)
}

/// Returns the process that started this process. If no parent is recorded, returns the current parent, unless it
/// adopted the process.
fn started_by(process: &Process) -> Option<Launcher> {
    if let Some(parent) = &process.parent {
        return Some((parent.pid, parent.start_ticks));
    }
    let ppid = process.ppid.filter(|&ppid| ppid > 1)?;
    (process.parent_is_reaper == Some(false)).then_some((ppid, None))
}

/// Returns whether a Slurm step is a single job. In `extern` and `interactive` steps, users run unrelated commands.
fn is_one_job(step: &str) -> bool {
    step != "extern" && step != "interactive"
}

/// Returns whether a process is the first process in the pid namespace of its container. When this process exits, the
/// kernel kills all other processes in the namespace.
fn is_first_of_a_container(process: &Process) -> bool {
    // A container without an id cannot be distinguished from other containers in the same cgroup.
    let container = process.container.as_deref();
    container.is_some_and(|container| container.id.is_some()) && process.namespace_pid == Some(1)
}

/// Returns whether a process is the main process of a systemd service: it leads a session, and its parent is a reaper.
fn is_main_of_a_service(process: &Process) -> bool {
    // The processes of a unit that runs other users' programs are unrelated to each other.
    let unit = process.systemd_unit.as_deref();
    unit.is_some_and(|unit| role(unit) == Role::Work)
        && process.container.is_none()
        && leads_its_session(process)
        && process.parent_is_reaper == Some(true)
}

/// For each run in the environment of the process, returns the ranks of the process.
fn runs(process: &Process) -> BTreeMap<RunKey, BTreeSet<Arc<str>>> {
    let mut runs = BTreeMap::new();
    let Some(environment) = process.environment.as_deref() else {
        return runs;
    };
    let value = |name: &str| environment.get(name).filter(|v| !v.is_empty()).cloned();
    let values = |names: &[&str]| -> Vec<Arc<str>> {
        let values = names.iter().map(|name| value(name));
        values.map(Option::unwrap_or_default).collect()
    };
    let mut note = |key: RunKey, rank: Option<Arc<str>>| {
        runs.insert(key, rank.into_iter().collect());
    };
    // Only a worker has a rank. The port is required, because users copy `--rdzv-id=100` from the manual, so the id
    // alone does not identify a run.
    if let (Some(rank), Some(_)) = (value("RANK"), value("MASTER_PORT")) {
        let names = ["TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE"];
        note(("torch", values(&names)), Some(rank));
    }
    if value("PMIX_NAMESPACE").is_some() {
        let rank = value("OMPI_COMM_WORLD_RANK").or_else(|| value("PMI_RANK"));
        note(("pmix", values(&["PMIX_NAMESPACE"])), rank);
    } else if let Some(rank) = value("PMI_RANK").or_else(|| value("OMPI_COMM_WORLD_RANK")) {
        note(("mpi", Vec::new()), Some(rank));
    }
    let job = process.slurm.as_deref().and_then(|slurm| slurm.job_id.clone());
    if let (Some(_), Some(step)) = (value("SLURM_JOB_ID"), value("SLURM_STEP_ID"))
        && is_one_job(&step)
        // A step with a terminal is usually an interactive shell, whose commands are not one run.
        && process.terminal.is_none()
        // A process that left the job's cgroup still has the environment, but does not belong to the job. If the
        // cgroup is unknown, trust the environment.
        && (job.is_some() || process.cgroup.is_none())
    {
        let key = ("slurm", values(&["SLURM_JOB_ID", "SLURM_STEP_ID"]));
        note(key, value("SLURM_PROCID"));
    }
    // Each Ray cluster numbers its jobs from 1, so equal numbers alone do not identify a job.
    if value("RAY_JOB_ID").is_some() {
        note(("ray", values(&["RAY_JOB_ID"])), None);
    }
    runs
}

/// Returns whether the name of a run is unique, so that orphans with the same name are from the same run. torchrun
/// uses `none` for a run without a name. Ray and MPI reuse numbers.
fn names_itself(key: &RunKey) -> bool {
    let (kind, values) = key;
    match *kind {
        "torch" => !matches!(values.first().map(|id| &**id), None | Some("" | "none" | "default")),
        "pmix" | "slurm" => true,
        _ => false,
    }
}
