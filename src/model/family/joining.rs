//! How families are joined: first by what the kernel says (groups, sessions, parents, the numbers of
//! the dead), then by what programs say of their runs, then by cgroups.
//!
//! Two processes are joined only where nothing speaks against it: another user, a second notebook
//! kernel. What a whole class has in common joins none of it where two of the class cannot be one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{Family, Tie};
use crate::model::process::{Parent, Process};
use crate::model::snapshot::{Gpu, PidNamespace, Snapshot};
use crate::model::unit::{Role, role};

/// Shells: what they start in a session of theirs need not belong together. By their short names.
const SHELLS: [&str; 12] =
    ["sh", "bash", "dash", "zsh", "fish", "ksh", "mksh", "tcsh", "csh", "ash", "busybox", "nu"];

/// What tells one run from another.
type RunKey = (&'static str, Vec<Arc<str>>);

/// Who started a process: the pid, and the start where it is known.
type Launcher = (u32, Option<u64>);

/// A set of processes that belong together so far.
#[derive(Debug, Default)]
struct Job {
    members: Vec<usize>,
    ties: BTreeSet<Tie>,
    /// Unknown only of a dead one by itself.
    uid: Option<u32>,
    /// Its notebook kernel.
    kernel: Option<u32>,
    /// The runs that it has ranks of, and which.
    runs: BTreeMap<RunKey, BTreeSet<Arc<str>>>,
}

impl Job {
    /// Whether two can be parts of one: of one user, with one kernel at most.
    fn may_be_one_with(&self, other: &Self) -> bool {
        let same_user = match (self.uid, other.uid) {
            (Some(one), Some(another)) => one == another,
            // A dead process has none any more; no two living ones without a known user are one.
            (None, Some(_)) | (Some(_), None) => true,
            (None, None) => false,
        };
        same_user && (self.kernel.is_none() || other.kernel.is_none())
    }

    /// Whether a rank is there twice: two runs that look alike.
    fn has_a_rank_of(&self, other: &Self, key: &RunKey) -> bool {
        let ranks = |job: &Self| job.runs.get(key).cloned().unwrap_or_default();
        !ranks(self).is_disjoint(&ranks(other))
    }
}

/// The joining of one snapshot's processes.
pub(super) struct Joining<'a> {
    snapshot: &'a Snapshot,
    /// Those that can be members.
    processes: Vec<&'a Process>,
    /// By pid, the index in `processes`.
    by_pid: BTreeMap<u32, usize>,
    /// By index in `processes`, the index in `jobs`.
    job_of: Vec<usize>,
    /// One for each process at first; what was joined to another is empty.
    jobs: Vec<Job>,
}

impl<'a> Joining<'a> {
    pub(super) fn new(snapshot: &'a Snapshot) -> Self {
        // A pid in no namespace's /proc is a dead process only where all of them are seen.
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

    /// Joins two processes' jobs, where they can be one. A tie within one job is noted, too.
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

    /// Joins all of a class, unless two of them cannot be one: then that they have something in
    /// common proves nothing of the others either.
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
        // What is older than a kernel is its server, or an editor; its own helpers are younger.
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

    /// Joins each class of living processes, by a key and their user.
    fn join_classes<K: Ord>(&mut self, tie: Tie, key: impl Fn(&Process) -> Option<K>) {
        let mut classes: BTreeMap<(Option<u32>, K), Vec<usize>> = BTreeMap::new();
        for (index, process) in self.living() {
            if let Some(key) = key(process) {
                classes.entry((process.uid, key)).or_default().push(index);
            }
        }
        for class in classes.into_values().filter(|class| class.len() > 1) {
            self.join_class(&class, tie);
        }
    }

    /// A process group is what one line typed into a shell, or one script, started.
    pub(super) fn join_groups(&mut self) {
        self.join_classes(Tie::ProcessGroup, |process| {
            process.process_group.filter(|&group| group > 0)
        });
    }

    /// A session is a login, a terminal or a daemon, and may hold many jobs, also once its terminal
    /// is gone. It is one job where the program that leads it is part of it.
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

    /// A process belongs with the member that started it. A kernel does not belong to whoever
    /// started it, and what a kernel or a shell put into a session of its own was meant to stand alone.
    pub(super) fn join_children(&mut self) {
        for (child, process) in self.living() {
            let Some(elder) = started_by(process).and_then(|(pid, start_ticks)| {
                let elder = self.index(pid)?;
                let known = self.processes[elder];
                let is_same = start_ticks.is_none() || start_ticks == known.start_ticks;
                let is_older = known.start_ticks <= process.start_ticks;
                (is_alive(known) && is_same && is_older).then_some(elder)
            }) else {
                continue;
            };
            let started = self.processes[elder];
            let is_let_go =
                leads_its_session(process) && (started.jupyter.is_some() || is_shell(started));
            // A shell among the holders is somebody's login, not a job.
            if process.jupyter.is_none() && !is_let_go && !is_shell(started) {
                self.join(elder, child, Tie::Parent);
            }
        }
    }

    /// A number is not given out again while a group or a session has it: who carries a dead
    /// process's number as theirs was started by it.
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

    /// Whether a process that no GPU lists holds the device file of one that lists `dead`.
    fn holds_for(&self, holder: &Process, dead: u32) -> bool {
        let lists = |gpu: &Gpu, pid| {
            let mut rows = gpu.processes.iter().flatten();
            rows.any(|row| row.pid == pid)
        };
        let gpus = &self.snapshot.gpus;
        !gpus.iter().any(|gpu| lists(gpu, holder.pid))
            && gpus.iter().filter(|gpu| lists(gpu, dead)).any(|gpu| {
                // Its index is no proof.
                gpu.minor_number.is_some() && gpu.may_be_held_by(holder) == Some(true)
            })
    }

    /// Ranks of one run are separate sessions of one launcher, and go on without it.
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

    /// Whether nothing speaks against these jobs having been started by one launcher. Ranks left
    /// behind by an earlier run beside those of a later one have none, or another.
    fn have_one_launcher(&self, jobs: &[usize], key: &RunKey) -> bool {
        let launchers: Vec<BTreeSet<Launcher>> =
            jobs.iter().map(|&job| self.launchers(self.job(job))).collect();
        let all: BTreeSet<Launcher> = launchers.iter().flatten().copied().collect();
        let all_have = launchers.iter().all(|launchers| !launchers.is_empty());
        match all.len() {
            1 => all_have,
            // All are orphans: the name of the run has to do, where it has one of its own.
            0 => names_itself(key),
            _ => false,
        }
    }

    /// Who started a job's members from outside of it.
    fn launchers(&self, job: &Job) -> BTreeSet<Launcher> {
        let starters = job.members.iter().filter_map(|&i| started_by(self.processes[i]));
        starters
            .filter(|&(pid, _)| {
                let member = self.index(pid);
                member.is_none_or(|index| !job.members.contains(&index))
            })
            .collect()
    }

    /// A cgroup holds one job where it is a step of one, or where the process that it was made for
    /// is a member: when that one ends, the kernel or systemd ends the others.
    pub(super) fn join_cgroups(&mut self) {
        // Somebody typed what has a terminal; it is not the step's, service's or container's own.
        let is_typed = |process: &Process| process.terminal.is_some();
        self.join_classes(Tie::Cgroup, |process| {
            let slurm = process.slurm.as_deref()?;
            let step = slurm.step_id.clone().filter(|step| is_one_job(step))?;
            (!is_typed(process)).then_some((slurm.job_id.clone()?, step))
        });

        // Memory's hierarchy may be coarser than systemd's: the path alone may be that of a slice.
        let place = |process: &Process| {
            let container = process.container.as_deref();
            let container = container.and_then(|container| container.id.clone());
            Some((process.cgroup.clone()?, container, process.systemd_unit.clone()))
        };
        let mut firsts: BTreeMap<_, Vec<u32>> = BTreeMap::new();
        for (_, process) in self.living() {
            if let Some(place) = place(process)
                && (is_first_of_a_container(process) || is_main_of_a_service(process))
            {
                let key = (process.uid, place);
                firsts.entry(key).or_default().push(process.pid);
            }
        }
        self.join_classes(Tie::Cgroup, |process| {
            let key = (process.uid, place(process)?);
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
            // The dead one led the group or session of the others, and is older than they.
            let oldest = processes().min_by_key(|p| (p.start_ticks.unwrap_or(0), p.pid));
            let oldest = oldest.map_or(0, |process| process.pid);
            let mut launchers = processes().filter_map(|process| process.parent.as_ref());
            let launchers = launchers.by_ref().filter(|parent| {
                let known = self.index(parent.pid).map(|index| self.processes[index]);
                members.binary_search(&parent.pid).is_err()
                    || known.is_some_and(|p| is_alive(p) && p.start_ticks != parent.start_ticks)
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

/// Whether /proc knows it.
fn is_alive(process: &Process) -> bool {
    process.unresolved.is_none() && (process.start_ticks.is_some() || process.start_time.is_some())
}

/// Whether it is a pid that NVML lists and no process has.
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

/// Who started it: remembered, or its parent where that did not only adopt it.
fn started_by(process: &Process) -> Option<Launcher> {
    if let Some(parent) = &process.parent {
        return Some((parent.pid, parent.start_ticks));
    }
    let ppid = process.ppid.filter(|&ppid| ppid > 1)?;
    (process.parent_is_reaper == Some(false)).then_some((ppid, None))
}

/// Whether a Slurm step is one job, and not a login: people type into the others.
fn is_one_job(step: &str) -> bool {
    step != "extern" && step != "interactive"
}

/// The first process of a pid namespace: when it ends, the kernel ends all others in there.
fn is_first_of_a_container(process: &Process) -> bool {
    // One that has no id cannot be told from its neighbours in a cgroup.
    let container = process.container.as_deref();
    container.is_some_and(|it| it.id.is_some()) && process.namespace_pid == Some(1)
}

/// The process that systemd started a service with: a session of its own, and systemd its parent.
fn is_main_of_a_service(process: &Process) -> bool {
    // Under one that hosts others' programs these have nothing to do with each other.
    let unit = process.systemd_unit.as_deref();
    unit.is_some_and(|unit| role(unit) == Role::Work)
        && process.container.is_none()
        && leads_its_session(process)
        && process.parent_is_reaper == Some(true)
}

/// The runs that a process is a rank of, by its environment, and which rank.
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
    // Without a rank it is no worker; without a port, nothing tells one run from the next. People
    // copy `--rdzv-id=100` from the manual, so that the id alone does not either.
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
        // A step with a terminal is a shell that people type into.
        && process.terminal.is_none()
        // Who took its environment out of the job is not of it; where cgroups do not tell, it may be.
        && (job.is_some() || process.cgroup.is_none())
    {
        let key = ("slurm", values(&["SLURM_JOB_ID", "SLURM_STEP_ID"]));
        note(key, value("SLURM_PROCID"));
    }
    // Numbered from 1 in each cluster: told apart by who started the workers.
    if value("RAY_JOB_ID").is_some() {
        note(("ray", values(&["RAY_JOB_ID"])), None);
    }
    runs
}

/// Whether a run's name is its own, so that two orphans with it are of one run: torchrun calls a run
/// `none` that was given no name, and Ray and MPI number theirs anew each time.
fn names_itself(key: &RunKey) -> bool {
    let (kind, values) = key;
    match *kind {
        "torch" => !matches!(values.first().map(|id| &**id), None | Some("" | "none" | "default")),
        "pmix" | "slurm" => true,
        _ => false,
    }
}
