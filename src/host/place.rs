//! Where a process runs, put together: what its cgroup tells, what the runtimes' files call that, and
//! what its environment says where neither does.
//!
//! A process may have been given any environment, so that it only adds names to a place that the
//! cgroup knows, and a job where a cgroup would have told nothing of one.

use std::sync::Arc;

use rustix::io;

use super::cgroup::{CGROUP_BYTES, Place, parse_cgroup};
use super::folder::{Folder, if_readable};
use super::names::{Answer, Names, Question, name};
use crate::model::Process;
use crate::model::snapshot::{Container, Kubernetes, Slurm};

/// What is remembered of where a process runs.
#[derive(Debug, Default)]
pub(super) struct Whereabouts {
    /// `/proc/PID/cgroup`, as bytes.
    cgroup: Box<[u8]>,
    /// What that tells.
    place: Place,
    /// How the names of its container and pod are asked for.
    question: Option<Question>,
}

impl Whereabouts {
    /// Reads the cgroup again, and says in `process` where it runs. What was known stands where it
    /// may not be read.
    pub(super) fn read(
        &mut self,
        process: &mut Process,
        folder: &Folder,
        names: &mut Names,
        content: &mut Vec<u8>,
    ) -> io::Result<()> {
        let read = folder.read(c"cgroup", content, CGROUP_BYTES);
        if if_readable(read)?.is_some() && *self.cgroup != **content {
            self.cgroup = content.as_slice().into();
            self.place = parse_cgroup(content);
            self.question = Question::about(&self.place);
        }
        self.tell(process, names);
        Ok(())
    }

    /// Says in `process` where it runs, with the names that are known by now.
    pub(super) fn tell(&self, process: &mut Process, names: &mut Names) {
        let question = self.question.as_ref();
        let answer = question.and_then(|question| names.get(question));
        complete(process, &self.place, answer.as_deref());
    }

    /// Whether it has a container or pod that people may have given a name.
    pub(super) fn may_have_names(&self) -> bool {
        self.question.is_some()
    }
}

/// Says in `process` where it runs. What is there already and does not change is kept, because
/// samples share it.
fn complete(process: &mut Process, place: &Place, names: Option<&Answer>) {
    let variable = |key: &str| {
        let environment = process.environment.as_deref()?;
        name(environment.get(key)?)
    };
    let container = place.container.as_deref().map(|container| Container {
        name: names
            .and_then(|names| names.container.clone())
            .or_else(|| container.name.clone()),
        ..container.clone()
    });
    let kubernetes = place.kubernetes.as_deref().map(|pod| {
        let file = |field: fn(&Answer) -> &Option<Arc<str>>| field(names?).clone();
        Kubernetes {
            pod_name: file(|names| &names.pod)
                .or_else(|| variable("POD_NAME"))
                .or_else(|| variable("HOSTNAME").filter(|host| !is_this_host(host))),
            namespace: file(|names| &names.namespace).or_else(|| variable("POD_NAMESPACE")),
            container_name: file(|names| &names.container_in_pod),
            ..pod.clone()
        }
    });
    let number = |key: &str| {
        let is_number = |value: &Arc<str>| value.bytes().all(|byte| byte.is_ascii_digit());
        variable(key).filter(is_number)
    };
    let slurm = match place.slurm.as_deref() {
        Some(slurm) => Some(Slurm {
            // Newer Slurm's cgroups are not named by the number that people type.
            job_id: number("SLURM_JOB_ID")
                .filter(|_| {
                    slurm
                        .job_id
                        .as_deref()
                        .is_some_and(|id| id.starts_with('s'))
                })
                .or_else(|| slurm.job_id.clone()),
            job_name: variable("SLURM_JOB_NAME"),
            ..slurm.clone()
        }),
        // Without Slurm's cgroups, its daemon's unit is all around a job; elsewhere, somebody has
        // taken the variables along.
        None if place.container.is_none() && may_be_a_job(place) => {
            number("SLURM_JOB_ID").map(|job_id| Slurm {
                job_id: Some(job_id),
                step_id: number("SLURM_STEP_ID"),
                job_name: variable("SLURM_JOB_NAME"),
            })
        }
        None => None,
    };
    let is_job_of_daemon = slurm.is_some() && place.slurm.is_none();
    let unit = place.systemd_unit.as_ref().filter(|_| !is_job_of_daemon);
    set(&mut process.container, container);
    set(&mut process.kubernetes, kubernetes);
    set(&mut process.slurm, slurm);
    process.cgroup.clone_from(&place.cgroup);
    process.systemd_unit = unit.cloned();
}

fn may_be_a_job(place: &Place) -> bool {
    matches!(place.systemd_unit.as_deref(), None | Some("slurmd.service"))
}

/// A pod that uses the machine's network has the machine's name.
fn is_this_host(name: &str) -> bool {
    rustix::system::uname().nodename().to_bytes() == name.as_bytes()
}

fn set<T: PartialEq>(known: &mut Option<Arc<T>>, new: Option<T>) {
    if known.as_deref() != new.as_ref() {
        *known = new.map(Arc::new);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::{parse_cgroup, parse_environ};

    const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    fn completed(path: &str, environ: &str, names: Option<&Answer>) -> Process {
        let path = path.replace("{ID}", ID);
        let mut process = Process {
            environment: Some(Arc::new(parse_environ(environ.as_bytes()))),
            ..Process::default()
        };
        let place = parse_cgroup(format!("0::{path}\n").as_bytes());
        complete(&mut process, &place, names);
        process
    }

    #[test]
    fn files_go_before_what_the_process_says() {
        let path = "/kubepods/burstable/pod8f7e6d5c-4b3a-4210-8fed-cba987654321/{ID}";
        let names = Answer {
            pod: Some("train-0".into()),
            namespace: Some("research".into()),
            container_in_pod: Some("main".into()),
            container: None,
        };
        let environ = "POD_NAME=other\0POD_NAMESPACE=prod\0HOSTNAME=third\0";
        let pod = completed(path, environ, Some(&names)).kubernetes.unwrap();
        assert_eq!(
            (
                pod.pod_name.as_deref(),
                pod.namespace.as_deref(),
                pod.container_name.as_deref()
            ),
            (Some("train-0"), Some("research"), Some("main"))
        );
        let pod = completed(path, environ, None).kubernetes.unwrap();
        assert_eq!(
            (pod.pod_name.as_deref(), pod.namespace.as_deref()),
            (Some("other"), Some("prod"))
        );
        let pod = completed(path, "HOSTNAME=third\0", None)
            .kubernetes
            .unwrap();
        assert_eq!(pod.pod_name.as_deref(), Some("third"));
        let own = rustix::system::uname()
            .nodename()
            .to_str()
            .unwrap()
            .to_owned();
        let pod = completed(path, &format!("HOSTNAME={own}\0"), None)
            .kubernetes
            .unwrap();
        assert_eq!(pod.pod_name, None);
        // An environment makes no pod.
        assert_eq!(completed("/docker/{ID}", environ, None).kubernetes, None);
    }

    #[test]
    fn a_job_has_the_number_that_people_type() {
        let environ = "SLURM_JOB_ID=77\0SLURM_JOB_NAME=train\0SLURM_STEP_ID=4\0";
        let newer = "/system.slice/slurmstepd.scope/s0123456789ABC/step_0/user/task_0";
        let slurm = completed(newer, environ, None).slurm.unwrap();
        assert_eq!(
            (
                slurm.job_id.as_deref(),
                slurm.step_id.as_deref(),
                slurm.job_name.as_deref()
            ),
            (Some("77"), Some("0"), Some("train"))
        );
        let slurm = completed(newer, "", None).slurm.unwrap();
        assert_eq!(slurm.job_id.as_deref(), Some("s0123456789ABC"));

        for path in ["/system.slice/slurmd.service", "/"] {
            let process = completed(path, environ, None);
            let slurm = process.slurm.unwrap();
            assert_eq!(slurm.step_id.as_deref(), Some("4"), "{path}");
            assert_eq!(process.systemd_unit, None, "{path}");
        }
        let older = "/system.slice/slurmstepd.scope/job_5/step_0/user/task_0";
        let slurm = completed(older, environ, None).slurm.unwrap();
        assert_eq!(slurm.job_id.as_deref(), Some("5"));
        // A shell of `salloc` on the login node, and a container that was given the variables.
        for path in ["/user.slice/user-5.slice/session-3.scope", "/docker/{ID}"] {
            assert_eq!(completed(path, environ, None).slurm, None, "{path}");
        }
        // Slurm numbers its jobs: anything else is somebody's own.
        let made_up = completed("/", "SLURM_JOB_ID=7; reboot\0", None);
        assert_eq!(made_up.slurm, None);
        let idle = completed("/system.slice/slurmd.service", "", None);
        assert_eq!(idle.systemd_unit.as_deref(), Some("slurmd.service"));
    }

    #[test]
    fn what_stays_the_same_is_shared() {
        let mut process = completed("/docker/{ID}", "", None);
        let before = process.container.clone().unwrap();
        let place = parse_cgroup(format!("0::/docker/{ID}\n").as_bytes());
        complete(&mut process, &place, None);
        assert!(Arc::ptr_eq(&before, process.container.as_ref().unwrap()));
    }
}
