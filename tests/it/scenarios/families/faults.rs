//! Processes that are stopped, dead or stuck, and keep their memory.

use super::*;

/// Picks a time that is more than the rules' two minutes before the end, with a margin for lost samples.
fn minutes_ago(s: &mut Stage) -> f64 {
    let shortest = 145.0 + 4.0 * s.interval();
    s.before_end(shortest, shortest + 1000.0)
}

fn expect_stopped(s: &mut Stage, pid: u32) {
    s.expect_finding("stopped", pid, &["idle"]);
}

fn expect_dead(s: &mut Stage, pid: u32) {
    s.labels.severity = Some("critical");
    s.expect_finding("dead", pid, &["idle", "orphan"]);
}

fn expect_stuck(s: &mut Stage, pid: u32) {
    s.labels.severity = Some("critical");
    s.expect_finding("stuck", pid, &["idle"]);
}

/// Adds a process that works until `at`, and then stays in a state: T is stopped, D is stuck, and Z is a zombie.
fn falls_into(s: &mut Stage, process: Process, state: char, bytes: u64, at: f64) {
    let pid = s.add(process, until(at, working(bytes), resting(bytes).state(state)));
    match state {
        'T' => expect_stopped(s, pid),
        'D' => expect_stuck(s, pid),
        _ => expect_dead(s, pid),
    }
}

/// Adds a process that works until `at`, and that NVML lists after it is gone.
fn disappears(s: &mut Stage, gpu: usize, bytes: u64, at: f64) {
    let process = s.trainer();
    let pid = s.add_on(process, &[gpu], until(at, working(bytes), resting(bytes).missing()));
    expect_dead(s, pid);
    s.labels.allowed.push(("unattributed", Subject::Gpu(gpu as u32)));
}

pub const FAMILIES: &[Family] = &[
    family("stopped_in_a_terminal", "Ctrl-Z: the trainer is stopped and keeps its memory.", |s| {
        let (process, bytes, at) = (s.trainer(), s.gib(2.0, 20.0), minutes_ago(s));
        falls_into(s, Process { terminal: Some("pts/12".into()), ..process }, 'T', bytes, at);
    }),
    family("stopped_by_a_scheduler", "The scheduler suspended the job with SIGSTOP.", |s| {
        let process = s.trainer();
        let (process, bytes, at) = (s.in_slurm_job(process), s.gib(2.0, 20.0), minutes_ago(s));
        falls_into(s, process, 'T', bytes, at);
    }),
    family("stopped_with_little", "A stopped process holds only its context.", |s| {
        let (process, bytes, at) = (s.trainer(), s.mib(300, 800), minutes_ago(s));
        falls_into(s, process, 'T', bytes, at);
    }),
    family("stopped_all_along", "It was stopped before the recording began.", |s| {
        s.minutes(8.0, 40.0);
        let (process, bytes) = (s.trainer(), s.gib(2.0, 20.0));
        falls_into(s, process, 'T', bytes, -1.0);
    }),
    family("stopped_again", "Stopped, resumed, and stopped for good.", |s| {
        let (process, bytes, at) = (s.trainer(), s.gib(2.0, 20.0), minutes_ago(s));
        let pid =
            s.add(process, move |t, _| match t > at || (at - 500.0..at - 200.0).contains(&t) {
                true => resting(bytes).state('T'),
                false => working(bytes),
            });
        expect_stopped(s, pid);
    }),
    family("stopped_beside_another", "A stopped process on a GPU that another one uses.", |s| {
        let (process, bytes, at) = (s.trainer(), s.gib(2.0, 5.0), minutes_ago(s));
        falls_into(s, process, 'T', bytes, at);
        let (other, held) = (s.trainer(), s.gib(2.0, 6.0));
        s.add(other, move |_, _| working(held).sm(90.0));
    }),
    family("stopped_orphan", "A stopped worker whose job is gone: one finding is enough.", |s| {
        let (process, bytes, at) = (s.trainer(), s.gib(2.0, 10.0), minutes_ago(s));
        let worker = s.child(&process);
        let pid = s.add(worker, until(at, working(bytes), resting(bytes).state('T').adopted_by(1)));
        s.expect_finding("orphan", pid, &["idle", "stopped"]);
    }),
    family("dead_and_listed", "NVML lists a pid without a process, on the host.", |s| {
        let (bytes, at) = (s.gib(2.0, 20.0), minutes_ago(s));
        disappears(s, s.gpu, bytes, at);
    }),
    family("dead_since_before", "The pid was gone before the recording began.", |s| {
        s.minutes(5.0, 30.0);
        let bytes = s.gib(2.0, 20.0);
        disappears(s, s.gpu, bytes, -1.0);
    }),
    family("dead_zombie", "A zombie's memory is still on the GPU.", |s| {
        let (process, bytes, at) = (s.trainer(), s.gib(2.0, 20.0), minutes_ago(s));
        falls_into(s, process, 'Z', bytes, at);
    }),
    family("dead_zombie_and_its_successor", "The job was restarted; its zombie remains.", |s| {
        let (process, bytes, at) = (s.trainer(), s.gib(2.0, 6.0), minutes_ago(s));
        let next = s.trainer();
        let next = s.started_at(Process { command: process.command.clone(), ..next }, at + 60.0);
        falls_into(s, process, 'Z', bytes, at);
        s.add(next, until(at + 60.0, gone(), working(bytes)));
    }),
    family("dead_twice", "Two ranks are gone, and NVML lists both on their GPUs.", |s| {
        s.gpus(2);
        let (bytes, at) = (s.gib(2.0, 14.0), minutes_ago(s));
        disappears(s, 0, bytes, at);
        disappears(s, 1, bytes, at);
    }),
    family("stuck_in_the_driver", "A process sleeps in the driver and cannot be woken.", |s| {
        let (process, bytes, at) = (s.trainer(), s.gib(2.0, 20.0), minutes_ago(s));
        falls_into(s, process, 'D', bytes, at);
    }),
    family("stuck_with_little", "A notebook kernel is stuck with only a context.", |s| {
        let (process, bytes, at) = (s.notebook(), s.mib(300, 800), minutes_ago(s));
        let pid = s.add(process, move |t, _| match t < at {
            true => working(bytes).notebook("busy", t),
            false => resting(bytes).state('D').notebook("busy", at),
        });
        expect_stuck(s, pid);
    }),
    family("stuck_on_several_gpus", "A process that holds several GPUs is stuck.", |s| {
        s.gpus(4);
        let (process, bytes, at) = (s.trainer(), s.gib(2.0, 14.0), minutes_ago(s));
        let stuck = until(at, working(bytes), resting(bytes).state('D'));
        let pid = s.add_on(process, &[0, 1, 2, 3], stuck);
        expect_stuck(s, pid);
    }),
    family("stuck_since_before", "It was stuck before the recording began.", |s| {
        s.minutes(5.0, 30.0);
        let (process, bytes) = (s.trainer(), s.gib(2.0, 20.0));
        falls_into(s, process, 'D', bytes, -1.0);
    }),
];
