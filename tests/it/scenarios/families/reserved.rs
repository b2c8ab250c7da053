//! GPUs that are allocated to a job or a container, and are unused or only seem to be unused.

use super::*;

/// Returns a reservation of the scenario's GPU for a job, held by the job's batch script.
fn reservation_of_a_job(s: &mut Stage) -> Reservation {
    let shell = s.user_process("/bin/bash /var/spool/slurmd/slurm_script");
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

/// Sets a length above one hour, and an interval that gives the rule enough samples even if some are lost.
fn set_long_recording(s: &mut Stage) {
    s.minutes(65.0, 90.0);
    s.every(30.0);
}

/// Picks a start time that is long enough before the end for the rule.
fn long_ago(s: &mut Stage) -> f64 {
    s.before_end(2400.0, 3600.0)
}

pub const FAMILIES: &[Family] = &[
    family("reserved_by_slurm", "A job's script waits for something else.", |s| {
        set_long_recording(s);
        let (job, since) = (reservation_of_a_job(s), long_ago(s));
        s.reserve(job, since);
        s.expect_info("reserved", s.gpu);
    }),
    family("reserved_by_a_container", "A development container runs all day.", |s| {
        set_long_recording(s);
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
            ..reservation_of_a_job(s)
        };
        s.reserve(container, -3600.0 * hours);
        s.expect_info("reserved", s.gpu);
    }),
    family("reserved_a_minute_ago", "The job has not started yet.", |s| {
        set_long_recording(s);
        let (job, since) = (reservation_of_a_job(s), s.before_end(60.0, 900.0));
        s.reserve(job, since);
    }),
    family("reserved_between_two_steps", "The next step is about to start.", |s| {
        set_long_recording(s);
        let (job, since) = (reservation_of_a_job(s), long_ago(s));
        let (start, end) = (since + 60.0, s.before_end(120.0, 1200.0));
        let (process, bytes) = (s.user_process("python prepare.py"), s.share(0.1, 0.5));
        s.reserve(job, since);
        s.add(process, during(start..end, working(bytes), gone()));
    }),
    family("reserved_and_used_unlisted", "The process that uses it is not listed.", |s| {
        set_long_recording(s);
        let (job, since) = (reservation_of_a_job(s), long_ago(s));
        s.reserve(job, since);
        let process = s.user_process("./render --tiles 64");
        s.add(process, |_, _| resting(0).cpu(40.0).unlisted());
        s.add_unattributed(s.gpu, |_| 400 * MIB);
    }),
    family("reserved_and_looked_at_from_a_container", "No process is visible.", |s| {
        set_long_recording(s);
        s.machine.host.pid_namespace = Some(PidNamespace::Container);
        let (job, since) = (reservation_of_a_job(s), long_ago(s));
        s.reserve(job, since);
    }),
];
