//! GPUs that report full use and do nothing.

use gpumem::api::model::ProcessType;

use super::super::doing::{Doing, spinning, working};
use super::super::stage::{MIB, Stage};
use super::{Family, family};

/// When it hung: long enough ago, with as much normal work before it.
fn hang(s: &mut Stage) -> f64 {
    s.minutes(35.0, 70.0);
    let least = 720.0 + 4.0 * s.interval();
    let most = s.end() - 700.0;
    s.before_end(least, most.max(least + 1.0))
}

/// Normal work before, a kernel without end after.
fn then_spins(t: f64, at: f64, bytes: u64, level: f64) -> Doing {
    if t < at { working(bytes).sm(level) } else { spinning(bytes) }
}

pub const FAMILIES: &[Family] = &[
    family("hung_single", "A kernel spins for ever on one GPU, after normal work.", |s| {
        let (process, bytes, at) = (s.trainer(), s.gib(4.0, 30.0), hang(s));
        let level = s.random.range(88.0, 98.0);
        let pid = s.act(process, move |t, _| then_spins(t, at, bytes, level));
        s.accuse("hung", pid, &[]);
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
                let pid = s.act_on(process, &[gpu], ProcessType::Compute, move |t, _| {
                    then_spins(t, at - late, bytes, 94.0)
                });
                s.accuse("hung", pid, &[]);
            }
        },
    ),
    family("hung_across_gpus", "One process hangs on all its GPUs.", |s| {
        s.gpus(4);
        let (process, bytes, at) = (s.trainer(), s.gib(4.0, 30.0), hang(s));
        let pid = s.act_on(process, &[0, 1, 2, 3], ProcessType::Compute, move |t, _| {
            then_spins(t, at, bytes, 93.0)
        });
        s.accuse("hung", pid, &[]);
    }),
    family("hung_with_falling_clocks", "The clocks fall as the GPU finds nothing to do.", |s| {
        let (process, bytes, at) = (s.trainer(), s.gib(4.0, 30.0), hang(s));
        let pid = s.act(process, move |t, _| then_spins(t, at, bytes, 92.0));
        s.weather(move |t, gpu| {
            if t > at + 300.0 {
                gpu.sm_clock_mhz = Some(1110);
            }
        });
        s.accuse("hung", pid, &[]);
    }),
    family("hung_without_process_utilization", "The driver does not tell processes apart.", |s| {
        s.machine.has_process_use = false;
        let (process, bytes, at) = (s.trainer(), s.gib(4.0, 30.0), hang(s));
        let pid = s.act(process, move |t, _| then_spins(t, at, bytes, 92.0));
        s.accuse("hung", pid, &[]);
    }),
    family("hung_after_pauses", "The work before had checkpoints and evaluations in it.", |s| {
        let (process, bytes, at) = (s.trainer(), s.gib(4.0, 30.0), hang(s));
        let pid = s.act(process, move |t, _| {
            let pauses = t < at - 60.0 && t % 500.0 > 430.0;
            if pauses { working(bytes).sm(15.0).cpu(200.0) } else { then_spins(t, at, bytes, 95.0) }
        });
        s.accuse("hung", pid, &[]);
    }),
    family(
        "hung_beside_an_idle_context",
        "Somebody else's small context is on the GPU as well.",
        |s| {
            let (process, bytes, at) = (s.trainer(), s.gib(4.0, 10.0), hang(s));
            let pid = s.act(process, move |t, _| then_spins(t, at, bytes, 92.0));
            let (other, held) = (s.trainer(), s.random.whole(150, 300) * 2 * MIB);
            s.act(other, move |_, _| super::super::doing::resting(held));
            s.accuse("hung", pid, &[]);
        },
    ),
];
