//! Processes that are stopped, dead or stuck, and keep their memory.

use gpumem::api::model::{Process, ProcessType};

use super::super::doing::{gone, resting, until, working};
use super::super::scenario::Subject;
use super::super::stage::{MIB, Stage};
use super::{Family, family};

/// Additional findings that are allowed about a stopped process.
const STOPPED: &[&str] = &["idle"];
/// Additional findings that are allowed about a process that is dead or cannot be killed.
const DEAD: &[&str] = &["idle", "orphan"];

/// Picks a time that is more than the rules' two minutes before the end, with a margin for lost samples.
fn minutes_ago(s: &mut Stage) -> f64 {
    let shortest = 145.0 + 4.0 * s.interval();
    s.before_end(shortest, shortest + 1000.0)
}

/// Adds a process that works until `at` and then stays in `state`.
fn falls_into(s: &mut Stage, process: Process, state: char, bytes: u64, at: f64) -> u32 {
    s.add(process, until(at, working(bytes), resting(bytes).state(state)))
}

pub const FAMILIES: &[Family] = &[
    family("stopped_in_a_terminal", "Ctrl-Z: the trainer is stopped and keeps its memory.", |s| {
        let (mut process, bytes, at) = (s.trainer(), s.gib(2.0, 20.0), minutes_ago(s));
        process.terminal = Some("pts/12".into());
        let pid = falls_into(s, process, 'T', bytes, at);
        s.expect_finding("stopped", pid, STOPPED);
    }),
    family("stopped_by_a_scheduler", "The scheduler suspended the job with SIGSTOP.", |s| {
        let process = s.trainer();
        let (process, bytes, at) = (s.in_slurm_job(process), s.gib(2.0, 20.0), minutes_ago(s));
        let pid = falls_into(s, process, 'T', bytes, at);
        s.expect_finding("stopped", pid, STOPPED);
    }),
    family("stopped_with_little", "A stopped process holds only its context.", |s| {
        let bytes = s.random.whole(150, 400) * 2 * MIB;
        let (process, at) = (s.trainer(), minutes_ago(s));
        let pid = falls_into(s, process, 'T', bytes, at);
        s.expect_finding("stopped", pid, STOPPED);
    }),
    family("stopped_all_along", "It was stopped before the recording began.", |s| {
        s.minutes(8.0, 40.0);
        let (process, bytes) = (s.trainer(), s.gib(2.0, 20.0));
        let pid = falls_into(s, process, 'T', bytes, -1.0);
        s.expect_finding("stopped", pid, STOPPED);
    }),
    family("stopped_again", "Stopped, resumed, and stopped for good.", |s| {
        let (process, bytes, at) = (s.trainer(), s.gib(2.0, 20.0), minutes_ago(s));
        let pid = s.add(process, move |t, _| {
            if t > at || (at - 500.0..at - 200.0).contains(&t) {
                resting(bytes).state('T')
            } else {
                working(bytes)
            }
        });
        s.expect_finding("stopped", pid, STOPPED);
    }),
    family(
        "stopped_beside_another",
        "A stopped process on a GPU that another process uses.",
        |s| {
            let (process, bytes, at) = (s.trainer(), s.gib(2.0, 5.0), minutes_ago(s));
            let pid = falls_into(s, process, 'T', bytes, at);
            s.expect_finding("stopped", pid, STOPPED);
            let (other, held) = (s.trainer(), s.gib(2.0, 6.0));
            s.add(other, move |_, _| working(held).sm(90.0));
        },
    ),
    family("stopped_orphan", "A stopped worker whose job is gone: one finding is enough.", |s| {
        let (process, bytes, at) = (s.trainer(), s.gib(2.0, 10.0), minutes_ago(s));
        let worker = s.child(&process);
        let pid = s.add(worker, until(at, working(bytes), resting(bytes).state('T').adopted_by(1)));
        s.expect_finding("orphan", pid, &["idle", "stopped"]);
        s.labels.kill_ok.insert(pid, true);
    }),
    family(
        "dead_and_listed",
        "NVML lists a pid that does not exist, in the host's pid namespace.",
        |s| {
            let (process, bytes, at) = (s.trainer(), s.gib(2.0, 20.0), minutes_ago(s));
            let pid = s.add(process, until(at, working(bytes), resting(bytes).missing()));
            s.labels.severity = Some("critical");
            s.expect_finding("dead", pid, DEAD);
            s.labels.allowed.push(("unattributed", Subject::Gpu(s.gpu as u32)));
        },
    ),
    family("dead_since_before", "The pid was gone before the recording began.", |s| {
        s.minutes(5.0, 30.0);
        s.labels.severity = Some("critical");
        let (process, bytes) = (s.trainer(), s.gib(2.0, 20.0));
        let pid = s.add(process, move |_, _| resting(bytes).missing());
        s.expect_finding("dead", pid, DEAD);
        s.labels.allowed.push(("unattributed", Subject::Gpu(s.gpu as u32)));
    }),
    family("dead_zombie", "A zombie's memory is still on the GPU.", |s| {
        s.labels.severity = Some("critical");
        let (process, bytes, at) = (s.trainer(), s.gib(2.0, 20.0), minutes_ago(s));
        let pid = falls_into(s, process, 'Z', bytes, at);
        s.expect_finding("dead", pid, DEAD);
    }),
    family(
        "dead_zombie_and_its_successor",
        "The job was restarted while its zombie is still listed.",
        |s| {
            s.labels.severity = Some("critical");
            let (process, bytes, at) = (s.trainer(), s.gib(2.0, 6.0), minutes_ago(s));
            let next = s.trainer();
            let next =
                s.started_at(Process { command: process.command.clone(), ..next }, at + 60.0);
            let pid = falls_into(s, process, 'Z', bytes, at);
            s.expect_finding("dead", pid, DEAD);
            s.add(next, until(at + 60.0, gone(), working(bytes)));
        },
    ),
    family("dead_twice", "Two ranks are gone, and NVML lists both on their GPUs.", |s| {
        s.gpus(2);
        s.labels.severity = Some("critical");
        let (bytes, at) = (s.gib(2.0, 14.0), minutes_ago(s));
        for gpu in 0..2 {
            let process = s.trainer();
            let pid = s.add_on(
                process,
                &[gpu],
                ProcessType::Compute,
                until(at, working(bytes), resting(bytes).missing()),
            );
            s.expect_finding("dead", pid, DEAD);
            s.labels.allowed.push(("unattributed", Subject::Gpu(gpu as u32)));
        }
    }),
    family("stuck_in_the_driver", "A process sleeps in the driver and cannot be woken.", |s| {
        s.labels.severity = Some("critical");
        let (process, bytes, at) = (s.trainer(), s.gib(2.0, 20.0), minutes_ago(s));
        let pid = falls_into(s, process, 'D', bytes, at);
        s.expect_finding("stuck", pid, &["idle"]);
    }),
    family("stuck_with_little", "A notebook kernel is stuck with only a context.", |s| {
        s.labels.severity = Some("critical");
        let bytes = s.random.whole(150, 400) * 2 * MIB;
        let (process, at) = (s.notebook(), minutes_ago(s));
        let pid = s.add(process, move |t, _| {
            if t < at {
                working(bytes).notebook("busy", t)
            } else {
                resting(bytes).state('D').notebook("busy", at)
            }
        });
        s.expect_finding("stuck", pid, &["idle"]);
    }),
    family("stuck_on_several_gpus", "A process that holds several GPUs is stuck.", |s| {
        s.gpus(4);
        s.labels.severity = Some("critical");
        let (process, bytes, at) = (s.trainer(), s.gib(2.0, 14.0), minutes_ago(s));
        let pid = s.add_on(
            process,
            &[0, 1, 2, 3],
            ProcessType::Compute,
            until(at, working(bytes), resting(bytes).state('D')),
        );
        s.expect_finding("stuck", pid, &["idle"]);
    }),
    family("stuck_since_before", "It was stuck before the recording began.", |s| {
        s.minutes(5.0, 30.0);
        s.labels.severity = Some("critical");
        let (process, bytes) = (s.trainer(), s.gib(2.0, 20.0));
        let pid = falls_into(s, process, 'D', bytes, -1.0);
        s.expect_finding("stuck", pid, &["idle"]);
    }),
];
