//! Memory in use that no listed process holds.

use super::*;

/// Picks the time at which memory becomes unattributed, long enough before the end for the rule.
fn since(s: &mut Stage) -> f64 {
    let shortest = 75.0 + 4.0 * s.interval();
    s.before_end(shortest, shortest + 1200.0)
}

pub const FAMILIES: &[Family] = &[
    family("unattributed_hidden_holder", "A hidden process has the device open.", |s| {
        let (gpu, bytes, at) = (s.gpu, s.gib(2.0, 12.0), since(s));
        let mut process = s.user_process("/usr/bin/python3 agent.py");
        process.framework = None;
        let process = s.started_at(process, at);
        s.add(process, until(at, gone(), resting(0).cpu(0.3).unlisted()));
        s.add_unattributed(gpu, move |t| if t < at { 0 } else { bytes });
        s.expect_unattributed(gpu);
    }),
    family("unattributed_without_holder", "No process has the device open.", |s| {
        let (gpu, bytes) = (s.gpu, s.gib(1.5, 12.0));
        s.add_unattributed(gpu, move |_| bytes);
        s.expect_unattributed(gpu);
    }),
    family("unattributed_that_grows", "It grows from zero.", |s| {
        s.minutes(30.0, 50.0);
        let (gpu, bytes, end) = (s.gpu, s.gib(8.0, 12.0), s.end());
        s.add_unattributed(gpu, move |t| (bytes as f64 * (t / end)) as u64);
        s.expect_unattributed(gpu);
    }),
    family("unattributed_beside_known", "A listed process holds a part.", |s| {
        let (gpu, bytes, at) = (s.gpu, s.gib(2.0, 5.0), since(s));
        let (process, held) = (s.trainer(), s.gib(2.0, 5.0));
        s.add(process, move |_, _| working(held));
        s.add_unattributed(gpu, move |t| if t < at { 0 } else { bytes });
        s.expect_unattributed(gpu);
    }),
    family("unattributed_by_old_memory_info", "Used memory includes reserved.", |s| {
        let (gpu, bytes) = (s.gpu, s.gib(4.0, 9.0));
        s.add_unattributed(gpu, move |_| bytes);
        s.edit_gpus(|gpu| {
            if let Some(memory) = &mut gpu.memory {
                memory.used_bytes += memory.reserved_bytes.take().unwrap_or(0);
            }
        });
        s.expect_unattributed(gpu);
    }),
    family("unattributed_after_a_crash", "The crashed trainer's memory.", |s| {
        let (gpu, bytes, at) = (s.gpu, s.gib(2.0, 12.0), since(s));
        let process = s.trainer();
        s.add(process, until(at, working(bytes), gone()));
        s.add_unattributed(gpu, move |t| if t < at { 0 } else { bytes });
        s.expect_unattributed(gpu);
    }),
    family("unattributed_held_by_a_monitor_only", "Only a monitor has the device open.", |s| {
        let (gpu, bytes) = (s.gpu, s.gib(2.0, 12.0));
        let mut monitor = s.user_process("nvtop");
        monitor.framework = None;
        monitor.gpu_files = argv(&format!("/dev/nvidiactl /dev/nvidia{gpu}"));
        s.add(monitor, |_, _| resting(0).cpu(3.0).unlisted());
        s.add_unattributed(gpu, move |_| bytes.max(2 * GIB));
        s.expect_unattributed(gpu);
    }),
];
