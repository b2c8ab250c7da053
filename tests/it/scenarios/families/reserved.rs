//! GPUs that a job or a container was given: who runs nothing there, and who only seems to.

use std::sync::Arc;

use gpumem::api::model::{Container, PidNamespace, Reservation, Slurm};

use super::super::doing::{during, gone, resting, working};
use super::super::stage::{MIB, Stage};
use super::{Family, family};

/// The batch script of a job that was given the GPU of the story.
fn job(s: &mut Stage) -> Reservation {
    let shell = s.someone("/bin/bash /var/spool/slurmd/slurm_script");
    Reservation {
        pid: shell.pid,
        user: shell.user,
        slurm: Some(Arc::new(Slurm {
            job_id: Some(s.random.whole(1000, 99_999).to_string().into()),
            step_id: Some("batch".into()),
            ..Slurm::default()
        })),
        variable: "SLURM_JOB_GPUS".into(),
        devices: [Arc::from(s.gpu.to_string())].into(),
        ..Reservation::default()
    }
}

/// Longer than an hour: jobs of half an hour end in it. Samples a minute apart, of which some are lost, prove nothing.
fn long(s: &mut Stage) {
    s.minutes(65.0, 90.0);
    s.every(30.0);
}

/// When a job has to have begun to be old enough, before the end.
fn long_ago(s: &mut Stage) -> f64 {
    s.before_end(2400.0, 3600.0)
}

pub const FAMILIES: &[Family] = &[
    family(
        "reserved_by_slurm",
        "A job was given a GPU, and its script waits for something else.",
        |s| {
            long(s);
            let (job, since) = (job(s), long_ago(s));
            s.give(job, since);
            s.note_gpu("reserved", s.gpu);
        },
    ),
    family(
        "reserved_by_a_container",
        "A container for development was given a GPU by its uuid, and is open all day.",
        |s| {
            long(s);
            let (hours, id) = (s.random.range(1.0, 9.0), s.random.hex(12));
            let container = Reservation {
                slurm: None,
                container: Some(Arc::new(Container {
                    runtime: Some("docker".into()),
                    id: Some(id.into()),
                    ..Container::default()
                })),
                variable: "NVIDIA_VISIBLE_DEVICES".into(),
                devices: [Arc::from(s.machine.uuids[s.gpu].as_str())].into(),
                ..job(s)
            };
            s.give(container, -3600.0 * hours);
            s.note_gpu("reserved", s.gpu);
        },
    ),
    family(
        "reserved_a_minute_ago",
        "Nobody used the GPU for an hour; a job that was given it just now has yet to begin.",
        |s| {
            long(s);
            let (job, since) = (job(s), s.before_end(60.0, 900.0));
            s.give(job, since);
        },
    ),
    family(
        "reserved_between_two_steps",
        "A job used its GPU until a while ago; its next step is about to begin.",
        |s| {
            long(s);
            let (job, since) = (job(s), long_ago(s));
            let (begins, ends) = (since + 60.0, s.before_end(120.0, 1200.0));
            let (process, bytes) = (s.someone("python prepare.py"), s.share(0.1, 0.5));
            s.give(job, since);
            s.act(process, during(begins..ends, working(bytes), gone()));
        },
    ),
    family(
        "reserved_and_used_by_whom_nvml_does_not_list",
        "The driver does not list a job's process, which has the GPU open and holds little.",
        |s| {
            long(s);
            let (job, since) = (job(s), long_ago(s));
            s.give(job, since);
            let process = s.someone("./render --tiles 64");
            s.act(process, |_, _| resting(0).cpu(40.0).unlisted());
            s.hide(s.gpu, |_| 400 * MIB);
        },
    ),
    family(
        "reserved_and_looked_at_from_a_container",
        "gpumem runs in a container, from where nobody's processes on a GPU are seen.",
        |s| {
            long(s);
            s.machine.host.pid_namespace = Some(PidNamespace::Container);
            let (job, since) = (job(s), long_ago(s));
            s.give(job, since);
        },
    ),
];
