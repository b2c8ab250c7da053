//! Determines where a process runs, from its cgroup, its ancestors, the files of container runtimes, and its
//! environment.
//!
//! The caller of a program chooses the environment. The environment is therefore used only to add a name and an array
//! index to a job that the cgroup or a step daemon among the ancestors proves. It adds no names to pods, because
//! these names are used in metrics and in suggested commands. A job that only the environment names may have been
//! inherited, so it is reported only if it has no step left on this machine.

use std::path::Path;
use std::sync::Arc;

use foldhash::HashMap;

use crate::host::owner::above::{AncestorFacts, Jobs, SlurmStep, array_in, look_above};
use crate::host::owner::cgroup::{CgroupPlace, parse_cgroup};
use crate::host::owner::names::{ContainerNames, NameQuestion, Names, Users, name};
use crate::model::Process;
use crate::model::snapshot::{Container, Kubernetes, Slurm};

#[derive(Debug, Default)]
pub(in crate::host) struct ProcessPlace {
    cgroup: Box<[u8]>,
    place: CgroupPlace,
    question: Option<NameQuestion>,
    /// Facts that the ancestors prove. A step that was found once is kept, because that step started the process.
    above: AncestorFacts,
    user: Option<Arc<str>>,
    over: Option<bool>,
}

pub(in crate::host) struct PlaceInput<'a> {
    pub proc: &'a Path,
    pub names: &'a mut Names,
    pub jobs: &'a mut Jobs,
    pub users: &'a mut Users,
    pub above: &'a mut HashMap<u32, AncestorFacts>,
    pub now_ns: u64,
}

impl ProcessPlace {
    /// Updates `process` from the content of its cgroup file. If `cgroup` is `None`, the previous content is used.
    pub(in crate::host) fn renew(
        &mut self,
        process: &mut Process,
        cgroup: Option<Box<[u8]>>,
        input: &mut PlaceInput<'_>,
        content: &mut Vec<u8>,
    ) {
        let new = cgroup.filter(|cgroup| *cgroup != self.cgroup);
        let is_new = new.is_some();
        if let Some(cgroup) = new {
            self.place = parse_cgroup(&cgroup);
            self.cgroup = cgroup;
        }
        let mut above = match process.ppid.filter(|_| process.namespace_pid.is_none()) {
            Some(ppid) => {
                let look = || look_above(process, input.proc, content);
                input.above.entry(ppid).or_insert_with(look).clone()
            }
            None => look_above(process, input.proc, content),
        };
        let is_below_step = above.step.is_some();
        above.step = above.step.or_else(|| self.above.step.take());
        if above.container.is_none() && above.first == self.above.first {
            above.container = self.above.container.take();
            above.user = self.above.user;
        }
        if is_new || above.first != self.above.first {
            let first = above.first.filter(|_| above.container.is_none());
            self.question = NameQuestion::about(&self.place, first);
        }
        self.user = above.user.map(|uid| {
            let name = input.users.name(uid, input.now_ns);
            name.unwrap_or_else(|| uid.to_string().into())
        });
        self.above = above;
        self.over = match self.job(process) {
            Some(_) if is_below_step => Some(false),
            Some(job) => input.jobs.is_over(&job, input.proc, input.now_ns),
            None => None,
        };
        self.fill(process, input.names);
    }

    /// Returns the job to check with [`Jobs::is_over`], from the ancestors, the cgroup or the environment.
    fn job(&self, process: &Process) -> Option<Arc<str>> {
        if let Some(step) = &self.above.step {
            return Some(Arc::clone(&step.job));
        }
        if let Some(slurm) = self.place.slurm.as_deref() {
            // The titles of step daemons in newer Slurm versions do not contain these ids.
            let is_number = |id: &&Arc<str>| !id.starts_with('s');
            return slurm.job_id.as_ref().filter(is_number).cloned();
        }
        let environment = process.environment.as_deref()?;
        let is_of_a_node = match self.place.systemd_unit.as_deref() {
            // If the cgroup is uninformative, `SLURMD_NODENAME` shows that the environment is that of a step.
            None => environment.contains_key("SLURMD_NODENAME"),
            Some(unit) => unit == "slurmd.service",
        };
        let is_here = self.place.container.is_none() && process.namespace_pid.is_none();
        number(process, "SLURM_JOB_ID").filter(|_| is_of_a_node && is_here)
    }

    pub(in crate::host) fn fill(&self, process: &mut Process, names: &mut Names) {
        let question = self.question.as_ref();
        let answer = question.and_then(|question| names.get(question));
        complete(process, self, answer.as_deref());
    }

    pub(in crate::host) fn may_have_names(&self) -> bool {
        self.question.is_some()
    }
}

fn number(process: &Process, key: &str) -> Option<Arc<str>> {
    let value = name(process.environment.as_deref()?.get(key)?)?;
    value.bytes().all(|byte| byte.is_ascii_digit()).then_some(value)
}

fn complete(process: &mut Process, known: &ProcessPlace, names: Option<&ContainerNames>) {
    let place = &known.place;
    let container = container(process, known, names);
    let kubernetes = place.kubernetes.as_deref().map(|pod| {
        let file = |field: fn(&ContainerNames) -> &Option<Arc<str>>| field(names?).clone();
        Kubernetes {
            pod_name: file(|names| &names.pod),
            namespace: file(|names| &names.namespace),
            container_name: file(|names| &names.container_in_pod),
            ..pod.clone()
        }
    });
    let slurm = slurm(process, known);
    let supervisor = known.above.supervisor.as_ref();
    let supervisor = supervisor.filter(|found| found.uid == Some(0) || found.uid == process.uid);
    set(&mut process.supervisor, supervisor.map(|found| (*found.parent).clone()));
    process.supervisor_is_roots = supervisor.map(|found| found.is_roots);
    // Without Slurm's cgroups, a job runs in the unit of Slurm's daemon, which must not be reported as the unit of
    // the job.
    let is_job_of_daemon = place.slurm.is_none() && known.above.step.is_some();
    let unit = place.systemd_unit.as_ref().filter(|_| !is_job_of_daemon);
    set(&mut process.container, container);
    set(&mut process.kubernetes, kubernetes);
    set(&mut process.slurm, slurm);
    process.cgroup.clone_from(&place.cgroup);
    process.systemd_unit = unit.cloned();
}

/// Returns the container of a process: the one named in the cgroup, with details from its monitor and the runtime's
/// files, or otherwise the monitor's container. If neither is known, a process in a separate pid namespace is in an
/// unknown container. Returns `None` for any other process.
fn container(
    process: &Process,
    known: &ProcessPlace,
    names: Option<&ContainerNames>,
) -> Option<Container> {
    let watched = known.above.container.as_ref();
    let known_place = known.place.container.as_deref();
    let is_it =
        |watched: &&Container| match (known_place.and_then(|place| place.id.as_ref()), &watched.id)
        {
            (Some(known_place), Some(watched)) => known_place == watched,
            // An id is unknown, for example because the monitor of a pod names only the pod. Assume a match.
            _ => true,
        };
    let is_unseen = known_place.is_none() && watched.is_none();
    let is_named = names.is_some_and(|names| names.id.is_some());
    let named = names.filter(|_| is_unseen || known_place.is_some() || watched.is_some());
    if is_unseen && process.namespace_pid.is_none() {
        return None;
    }
    let watched = watched.filter(is_it);
    let mut container = known_place.cloned().unwrap_or_default();
    if let Some(watched) = watched {
        let fill = |into: &mut Option<Arc<str>>, from: &Option<Arc<str>>| {
            if into.is_none() {
                into.clone_from(from);
            }
        };
        container.namespace.clone_from(&watched.namespace);
        // The monitor's runtime is more reliable than the name of the parent cgroup.
        if watched.runtime.is_some() && watched.namespace.as_deref() != Some("k8s.io") {
            container.runtime.clone_from(&watched.runtime);
        }
        fill(&mut container.runtime, &watched.runtime);
        fill(&mut container.id, &watched.id);
        fill(&mut container.name, &watched.name);
    }
    if is_unseen && !is_named {
        container.user.clone_from(&known.user);
    }
    if let Some(named) = named {
        if is_unseen {
            container.runtime.clone_from(&named.runtime);
            container.id.clone_from(&named.id);
        }
        container.name = named.container.clone().or(container.name);
    }
    Some(container)
}

/// Returns the job and the step that the kernel proves, or `None` if the process is in no job. The environment adds
/// the name and the array index. It also adds the job's number if the cgroups do not contain it, or if the job has no
/// step left on this machine.
fn slurm(process: &Process, known: &ProcessPlace) -> Option<Slurm> {
    let step: Option<&SlurmStep> = known.above.step.as_ref();
    let known_place = known.place.slurm.as_deref();
    let over = known.over;
    if step.is_none() && known_place.is_none() {
        // The variables may be inherited, but they are sufficient if the job has no step left on this machine.
        let job_id = known.job(process).filter(|_| over == Some(true))?;
        let mut slurm = Slurm { job_id: Some(Arc::clone(&job_id)), over, ..Slurm::default() };
        set_array(&mut slurm, array_of(process, &job_id));
        return Some(slurm);
    }
    let environment = process.environment.as_deref();
    let mut slurm = known_place.cloned().unwrap_or_default();
    // The cgroups of newer Slurm versions do not contain the job number that users enter.
    let is_named_otherwise = slurm.job_id.as_deref().is_none_or(|id| id.starts_with('s'));
    if is_named_otherwise {
        let claimed_job = step.map(|step| Arc::clone(&step.job));
        let claimed_job = claimed_job.or_else(|| number(process, "SLURM_JOB_ID"));
        slurm.job_id = claimed_job.or(slurm.job_id);
    }
    if slurm.step_id.is_none() {
        slurm.step_id = step.map(|step| Arc::clone(&step.step));
    }
    slurm.job_name = environment.and_then(|variables| name(variables.get("SLURM_JOB_NAME")?));
    slurm.over = over;
    let array = step.and_then(|step| step.array.clone());
    let own = || array_of(process, slurm.job_id.as_deref()?);
    let array = array.or_else(own);
    set_array(&mut slurm, array);
    Some(slurm)
}

fn array_of(process: &Process, job: &str) -> Option<(Arc<str>, Arc<str>)> {
    array_in(process.environment.as_deref()?, job)
}

fn set_array(slurm: &mut Slurm, array: Option<(Arc<str>, Arc<str>)>) {
    (slurm.array_job_id, slurm.array_task_id) = array.unzip();
}

fn set<T: PartialEq>(known: &mut Option<Arc<T>>, new: Option<T>) {
    if known.as_deref() != new.as_ref() {
        *known = new.map(Arc::new);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::owner::cgroup::parse_cgroup;
    use crate::host::proc::environ::parse_environ;

    const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    fn completed(path: &str, environ: &str, names: Option<&ContainerNames>) -> Process {
        let path = path.replace("{ID}", ID);
        let mut process = Process {
            environment: Some(Arc::new(parse_environ(environ.as_bytes()))),
            ..Process::default()
        };
        complete(&mut process, &within(&path), names);
        process
    }

    fn within(path: &str) -> ProcessPlace {
        ProcessPlace {
            place: parse_cgroup(format!("0::{path}\n").as_bytes()),
            ..ProcessPlace::default()
        }
    }

    #[test]
    fn files_name_a_pod_and_the_environment_does_not() {
        let path = "/kubepods/burstable/pod8f7e6d5c-4b3a-4210-8fed-cba987654321/{ID}";
        let names = ContainerNames {
            pod: Some("train-0".into()),
            namespace: Some("research".into()),
            container_in_pod: Some("main".into()),
            ..ContainerNames::default()
        };
        let environ = "POD_NAME=other\0POD_NAMESPACE=prod\0HOSTNAME=third\0";
        let pod = completed(path, environ, Some(&names)).kubernetes.unwrap();
        assert_eq!(
            (pod.pod_name.as_deref(), pod.namespace.as_deref(), pod.container_name.as_deref()),
            (Some("train-0"), Some("research"), Some("main"))
        );
        let pod = completed(path, environ, None).kubernetes.unwrap();
        assert_eq!((&pod.pod_name, &pod.namespace), (&None, &None));
        // An environment does not prove that a process is in a pod.
        assert_eq!(completed("/docker/{ID}", environ, None).kubernetes, None);
    }

    #[test]
    fn a_job_is_named_by_the_number_that_users_type() {
        let environ = "SLURM_JOB_ID=77\0SLURM_JOB_NAME=train\0SLURM_STEP_ID=4\0";
        let newer = "/system.slice/slurmstepd.scope/s0123456789ABC/step_0/user/task_0";
        let slurm = completed(newer, environ, None).slurm.unwrap();
        assert_eq!(
            (slurm.job_id.as_deref(), slurm.step_id.as_deref(), slurm.job_name.as_deref()),
            (Some("77"), Some("0"), Some("train"))
        );
        let slurm = completed(newer, "", None).slurm.unwrap();
        assert_eq!(slurm.job_id.as_deref(), Some("s0123456789ABC"));

        // A job that only the environment names is not reported.
        for path in ["/system.slice/slurmd.service", "/"] {
            assert_eq!(completed(path, environ, None).slurm, None, "{path}");
        }
        let older = "/system.slice/slurmstepd.scope/job_5/step_0/user/task_0";
        let slurm = completed(older, environ, None).slurm.unwrap();
        assert_eq!(slurm.job_id.as_deref(), Some("5"));
        // A shell started by `salloc` on the login node is not in the job, and neither is a container with these
        // variables.
        for path in ["/user.slice/user-5.slice/session-3.scope", "/docker/{ID}"] {
            assert_eq!(completed(path, environ, None).slurm, None, "{path}");
        }
        let idle = completed("/system.slice/slurmd.service", "", None);
        assert_eq!(idle.systemd_unit.as_deref(), Some("slurmd.service"));
    }

    #[test]
    fn unchanged_values_are_shared_between_samples() {
        let mut process = completed("/docker/{ID}", "", None);
        let before = process.container.clone().unwrap();
        complete(&mut process, &within(&format!("/docker/{ID}")), None);
        assert!(Arc::ptr_eq(&before, process.container.as_ref().unwrap()));
    }

    fn below(path: &str, environ: &str, change: impl Fn(&mut ProcessPlace)) -> Process {
        let mut process = completed(path, environ, None);
        let mut known = within(path);
        change(&mut known);
        complete(&mut process, &known, None);
        process
    }

    fn step(array: Option<(&str, &str)>) -> Option<SlurmStep> {
        Some(SlurmStep {
            job: "8".into(),
            step: "batch".into(),
            array: array.map(|(job, task)| (job.into(), task.into())),
        })
    }

    #[test]
    fn a_step_daemon_proves_a_job_and_the_environment_does_not() {
        let unit = "/system.slice/slurmd.service";
        let process = below(unit, "SLURM_JOB_ID=9\0", |place| {
            place.above.step = step(Some(("3", "4")));
        });
        let slurm = process.slurm.unwrap();
        assert_eq!(slurm.id().as_deref(), Some("3_4"));
        assert_eq!((slurm.job_id.as_deref(), slurm.step_id.as_deref()), (Some("8"), Some("batch")));
        assert_eq!(process.systemd_unit, None);
        // A job array in the environment of another job is ignored.
        let other = "SLURM_JOB_ID=9\0SLURM_ARRAY_JOB_ID=3\0SLURM_ARRAY_TASK_ID=4\0";
        let slurm = below(unit, other, |place| place.above.step = step(None)).slurm;
        assert_eq!(slurm.unwrap().id().as_deref(), Some("8"));
        let own = other.replace("=9", "=8");
        let slurm = below(unit, &own, |place| place.above.step = step(None)).slurm;
        assert_eq!(slurm.unwrap().id().as_deref(), Some("3_4"));
    }

    #[test]
    fn a_job_without_a_step_on_this_machine_is_over() {
        let unit = "/system.slice/slurmd.service";
        let over = |path: &str, environ: &str, over| {
            let process = below(path, environ, |place| place.over = over);
            process.slurm.as_deref().and_then(|slurm| slurm.over)
        };
        assert_eq!(over(unit, "SLURM_JOB_ID=9\0", Some(true)), Some(true));
        assert_eq!(over(unit, "SLURM_JOB_ID=9\0", Some(false)), None);
        assert_eq!(over(unit, "SLURM_JOB_ID=9; reboot\0", Some(true)), None);
        // A shell started by `salloc` has no step, but its job is not over.
        assert_eq!(over("/", "SLURM_JOB_ID=9\0", Some(true)), None);
        let on_node = "SLURM_JOB_ID=9\0SLURMD_NODENAME=gpu1\0";
        assert_eq!(over("/", on_node, Some(true)), Some(true));
        let session = "/user.slice/user-5.slice/session-3.scope";
        assert_eq!(over(session, on_node, Some(true)), None);
        let job = "/system.slice/slurmstepd.scope/job_5/step_0/user/task_0";
        assert_eq!(over(job, "", Some(true)), Some(true));
        assert_eq!(over(job, "", None), None);
    }

    #[test]
    fn a_pid_namespace_is_a_container_in_any_cgroup() {
        let process = |known: &ProcessPlace| {
            let mut process = Process { namespace_pid: Some(1), ..Process::default() };
            complete(&mut process, known, None);
            process.container.unwrap()
        };
        let nothing = within("/user.slice/user-5.slice/session-3.scope");
        assert_eq!(*process(&nothing), Container::default());
        let mut known = within("/lab/job-7");
        known.above.container = Some(Container {
            runtime: Some("containerd".into()),
            namespace: Some("lab".into()),
            id: Some("job-7".into()),
            ..Container::default()
        });
        let container = process(&known);
        assert_eq!(container.namespace.as_deref(), Some("lab"));
        assert_eq!(container.id.as_deref(), Some("job-7"));
        // The cgroup names a container other than the monitor's.
        let inner = ProcessPlace {
            place: parse_cgroup(format!("0::/docker/{ID}\n").as_bytes()).clone(),
            ..known
        };
        let container = process(&inner);
        assert_eq!(container.id.as_deref(), Some(ID));
        assert_eq!(container.namespace, None);
    }
}
