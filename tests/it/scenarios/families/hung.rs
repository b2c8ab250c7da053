//! GPUs that report full utilization although their kernels make no progress.

use gpumem::api::model::ProcessType;

use super::super::doing::{Activity, spinning, working};
use super::super::stage::{MIB, Stage};
use super::{Family, family};

/// Sets a long recording. Picks the time of the hang, with enough time before it for normal work and enough time
/// after it for the rule.
fn hang(s: &mut Stage) -> f64 {
    s.minutes(35.0, 70.0);
    let shortest = 720.0 + 4.0 * s.interval();
    let longest = s.end() - 700.0;
    s.before_end(shortest, longest.max(shortest + 1.0))
}

/// Returns normal work until `at`, and then an endless kernel.
fn then_spins(t: f64, at: f64, bytes: u64, level: f64) -> Activity {
    if t < at { working(bytes).sm(level) } else { spinning(bytes) }
}

pub const FAMILIES: &[Family] = &[
    family("hung_single", "A kernel spins forever on one GPU, after normal work.", |s| {
        let (process, bytes, at) = (s.trainer(), s.gib(4.0, 30.0), hang(s));
        let level = s.random.range(88.0, 98.0);
        let pid = s.add(process, move |t, _| then_spins(t, at, bytes, level));
        s.expect_finding("hung", pid, &[]);
    }),
    family(
        "hung_collective",
        "The ranks of a job wait for a collective that never completes.",
        |s| {
            let count = s.random.pick(&[2, 4, 8]);
            s.gpus(count);
            let (bytes, at) = (s.gib(4.0, 30.0), hang(s));
            for gpu in 0..count {
                let process = s.trainer();
                let late = s.random.range(0.0, 20.0);
                let pid = s.add_on(process, &[gpu], ProcessType::Compute, move |t, _| {
                    then_spins(t, at - late, bytes, 94.0)
                });
                s.expect_finding("hung", pid, &[]);
            }
        },
    ),
    family("hung_across_gpus", "One process hangs on all its GPUs.", |s| {
        s.gpus(4);
        let (process, bytes, at) = (s.trainer(), s.gib(4.0, 30.0), hang(s));
        let pid = s.add_on(process, &[0, 1, 2, 3], ProcessType::Compute, move |t, _| {
            then_spins(t, at, bytes, 93.0)
        });
        s.expect_finding("hung", pid, &[]);
    }),
    family("hung_with_falling_clocks", "The clocks drop because the GPU has nothing to do.", |s| {
        let (process, bytes, at) = (s.trainer(), s.gib(4.0, 30.0), hang(s));
        let pid = s.add(process, move |t, _| then_spins(t, at, bytes, 92.0));
        s.edit_scenario_gpu(move |t, gpu| {
            if t > at + 300.0 {
                gpu.sm_clock_mhz = Some(1110);
            }
        });
        s.expect_finding("hung", pid, &[]);
    }),
    family("hung_without_process_utilization", "The driver has no per-process utilization.", |s| {
        s.machine.has_process_use = false;
        let (process, bytes, at) = (s.trainer(), s.gib(4.0, 30.0), hang(s));
        let pid = s.add(process, move |t, _| then_spins(t, at, bytes, 92.0));
        s.expect_finding("hung", pid, &[]);
    }),
    family("hung_after_pauses", "The earlier work had checkpoints and evaluations.", |s| {
        let (process, bytes, at) = (s.trainer(), s.gib(4.0, 30.0), hang(s));
        let pid = s.add(process, move |t, _| {
            let pauses = t < at - 60.0 && t % 500.0 > 430.0;
            if pauses { working(bytes).sm(15.0).cpu(200.0) } else { then_spins(t, at, bytes, 95.0) }
        });
        s.expect_finding("hung", pid, &[]);
    }),
    family(
        "hung_beside_an_idle_context",
        "Another user's small context is on the same GPU.",
        |s| {
            let (process, bytes, at) = (s.trainer(), s.gib(4.0, 10.0), hang(s));
            let pid = s.add(process, move |t, _| then_spins(t, at, bytes, 92.0));
            let (other, held) = (s.trainer(), s.random.whole(150, 300) * 2 * MIB);
            s.add(other, move |_, _| super::super::doing::resting(held));
            s.expect_finding("hung", pid, &[]);
        },
    ),
];
