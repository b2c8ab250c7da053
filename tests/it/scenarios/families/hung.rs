//! GPUs that report full utilization although their kernels make no progress.

use super::*;

/// Sets a long recording. Picks the time of the hang, with enough time before it for normal work and enough time
/// after it for the rule.
fn hang(s: &mut Stage) -> f64 {
    s.minutes(35.0, 70.0);
    let shortest = 720.0 + 4.0 * s.interval();
    let longest = s.end() - 700.0;
    s.before_end(shortest, longest.max(shortest + 1.0))
}

/// Adds a process that works until `at`, and then waits for an endless kernel on all of its GPUs.
fn hangs_on(s: &mut Stage, gpus: &[usize], bytes: u64, at: f64) {
    let (process, level) = (s.trainer(), s.random.range(88.0, 98.0));
    let pid = s.add_on(process, gpus, until(at, working(bytes).sm(level), spinning(bytes)));
    s.expect_finding("hung", pid, &[]);
}

/// Adds a process that hangs on the scenario's GPU. Returns the time of the hang.
fn hangs(s: &mut Stage, most_gib: f64) -> f64 {
    let (bytes, at) = (s.gib(4.0, most_gib), hang(s));
    hangs_on(s, &[s.gpu], bytes, at);
    at
}

pub const FAMILIES: &[Family] = &[
    family("hung_single", "A kernel spins forever on one GPU, after normal work.", |s| {
        hangs(s, 30.0);
    }),
    family("hung_collective", "The ranks wait for a collective that never completes.", |s| {
        let count = s.random.pick(&[2, 4, 8]);
        s.gpus(count);
        let (bytes, at) = (s.gib(4.0, 30.0), hang(s));
        for gpu in 0..count {
            let late = s.random.range(0.0, 20.0);
            hangs_on(s, &[gpu], bytes, at - late);
        }
    }),
    family("hung_across_gpus", "One process hangs on all its GPUs.", |s| {
        s.gpus(4);
        let (bytes, at) = (s.gib(4.0, 30.0), hang(s));
        hangs_on(s, &[0, 1, 2, 3], bytes, at);
    }),
    family("hung_with_falling_clocks", "The clocks drop because the GPU has nothing to do.", |s| {
        let at = hangs(s, 30.0);
        s.edit_scenario_gpu(move |t, gpu| {
            if t > at + 300.0 {
                gpu.sm_clock_mhz = Some(1110);
            }
        });
    }),
    family("hung_without_process_utilization", "The driver has no per-process utilization.", |s| {
        s.machine.has_process_use = false;
        hangs(s, 30.0);
    }),
    family("hung_after_pauses", "The earlier work had checkpoints and evaluations.", |s| {
        let (process, bytes, at) = (s.trainer(), s.gib(4.0, 30.0), hang(s));
        let pid = s.add(process, move |t, _| match t < at {
            true if t < at - 60.0 && t % 500.0 > 430.0 => working(bytes).sm(15.0).cpu(200.0),
            true => working(bytes).sm(95.0),
            false => spinning(bytes),
        });
        s.expect_finding("hung", pid, &[]);
    }),
    family("hung_beside_an_idle_context", "Another user's context is on the same GPU.", |s| {
        hangs(s, 10.0);
        let (other, held) = (s.trainer(), s.mib(300, 600));
        s.add(other, move |_, _| resting(held));
    }),
];
