//! Incomplete data and partially broken machines. Unknown data must cause no finding.

use super::*;

/// Adds a process that would be idle if the data were complete.
fn add_idle_process(s: &mut Stage) -> u32 {
    let (process, bytes, stop) = (s.trainer(), s.gib(2.0, 12.0), s.long_idle());
    s.add(process, until(stop, working(bytes), resting(bytes)))
}

fn add_working_process(s: &mut Stage) -> u32 {
    let (process, bytes) = (s.trainer(), s.gib(2.0, 12.0));
    s.add(process, move |_, _| working(bytes))
}

/// Adds `seconds` to the time of each snapshot from index `from` on.
fn shift(snapshots: &mut [Snapshot], from: usize, seconds: f64) {
    for snapshot in &mut snapshots[from..] {
        snapshot.time = snapshot.time.plus_seconds(seconds);
    }
}

pub const FAMILIES: &[Family] = &[
    family("no_utilization_at_all", "Neither the process's nor the GPU's use is reported.", |s| {
        s.machine.has_process_use = false;
        add_idle_process(s);
        s.edit_gpus(|gpu| {
            gpu.gpu_percent = None;
            gpu.memory_percent = None;
        });
    }),
    family("device_busy_by_an_unknown_process", "It may be either process.", |s| {
        s.machine.has_process_use = false;
        add_idle_process(s);
        let (other, bytes) = (s.trainer(), s.gib(2.0, 4.0));
        s.add(other, move |_, _| working(bytes));
    }),
    family("mig", "Under MIG there is no utilization, and the sums do not add up.", |s| {
        s.machine.has_process_use = false;
        add_idle_process(s);
        let gpu = s.gpu;
        s.add_unattributed(gpu, |_| 3 * GIB);
        s.edit_each(move |_, snapshot| {
            let gpu = &mut snapshot.gpus[gpu];
            gpu.mig_mode = Some(true);
            gpu.gpu_percent = None;
            gpu.memory_percent = None;
            for row in gpu.processes.iter_mut().flatten() {
                row.gpu_instance_id = Some(1);
                row.compute_instance_id = Some(0);
            }
            gpu.mig_devices = vec![MigDevice {
                gpu_instance_id: Some(1),
                compute_instance_id: Some(0),
                uuid: Some("MIG-5f2c1e3a-0000-5000-8000-000000000001".into()),
                profile: Some("3g.20gb".into()),
                memory: None,
                ..Default::default()
            }];
        });
    }),
    family("no_memory_per_process", "The driver does not report per-process memory.", |s| {
        add_idle_process(s);
        s.edit_each(|_, snapshot| {
            for row in snapshot.gpus.iter_mut().flat_map(|gpu| gpu.processes.iter_mut().flatten()) {
                row.used_bytes = None;
            }
        });
    }),
    family("old_memory_info", "Memory info v1: used memory includes reserved memory.", |s| {
        add_working_process(s);
        s.edit_each(|_, snapshot| {
            for memory in snapshot.gpus.iter_mut().filter_map(|gpu| gpu.memory.as_mut()) {
                memory.used_bytes += memory.reserved_bytes.take().unwrap_or(0);
            }
        });
    }),
    family("a_little_unattributed", "Some hundred MiB unattributed, as is common.", |s| {
        add_working_process(s);
        let (gpu, bytes) = (s.gpu, s.mib(120, 820));
        s.add_unattributed(gpu, move |_| bytes);
    }),
    family("unattributed_for_a_moment", "GiB unattributed while a process exits.", |s| {
        s.minutes(12.0, 20.0);
        s.every(5.0);
        add_working_process(s);
        let (gpu, at) = (s.gpu, s.before_end(60.0, 400.0));
        s.add_unattributed(gpu, move |t| if (at..at + 35.0).contains(&t) { 3 * GIB } else { 0 });
    }),
    family("unattributed_just_now", "GiB unattributed for half a minute so far.", |s| {
        s.minutes(12.0, 20.0);
        s.every(5.0);
        add_working_process(s);
        let (gpu, at) = (s.gpu, s.end() - 40.0);
        s.add_unattributed(gpu, move |t| if t > at { 3 * GIB } else { 0 });
    }),
    family("one_row_unknown", "Memory is unattributed, and one row has no size.", |s| {
        add_working_process(s);
        let (process, gpu) = (s.trainer(), s.gpu);
        s.add(process, |_, _| working(0).sm(10.0).unknown_bytes());
        s.add_unattributed(gpu, |_| 3 * GIB);
    }),
    family("more_than_there_is", "The processes' sum exceeds used memory.", |s| {
        add_working_process(s);
        add_working_process(s);
        s.edit_each(|_, snapshot| {
            for memory in snapshot.gpus.iter_mut().filter_map(|gpu| gpu.memory.as_mut()) {
                let less = memory.used_bytes / 3;
                memory.used_bytes -= less;
                memory.free_bytes += less;
            }
        });
    }),
    family("slept_for_an_hour", "The machine was suspended while a process was idle.", |s| {
        let (process, bytes, stop) = (s.trainer(), s.gib(2.0, 12.0), s.before_end(330.0, 480.0));
        s.add(process, until(stop, working(bytes), resting(bytes)));
        let after = s.random.whole(150, 280) as f64;
        let (end, asleep) = (s.end(), s.random.range(4000.0, 20_000.0));
        s.edit(move |snapshots, _| {
            let begin = snapshots[0].time;
            let from = snapshots
                .iter()
                .position(|snapshot| snapshot.time.seconds_since(begin) > end - after);
            let from = from.unwrap_or(snapshots.len() - 1);
            shift(snapshots, from, asleep);
        });
    }),
    family("suspended_while_idle", "A suspension of half an hour is reported.", |s| {
        let (process, bytes, stop) = (s.trainer(), s.gib(2.0, 12.0), s.before_end(330.0, 480.0));
        s.add(process, until(stop, working(bytes), resting(bytes)));
        s.edit(|snapshots, _| {
            let from = snapshots.len() - 4;
            for snapshot in snapshots.iter_mut() {
                snapshot.host.suspended_seconds = Some(0);
            }
            for snapshot in &mut snapshots[from..] {
                snapshot.host.suspended_seconds = Some(1800);
            }
            shift(snapshots, from, 1800.0);
        });
    }),
    family("clock_set_back", "The clock is set back by two hours.", |s| {
        add_idle_process(s);
        s.edit(|snapshots, _| {
            let interval = snapshots[1].time.seconds_since(snapshots[0].time);
            let from = snapshots.len() - ((300.0 / interval) as usize).clamp(1, 60);
            shift(snapshots, from, -7200.0);
        });
    }),
    family("another_boot", "The machine was rebooted in between, and the pid was reused.", |s| {
        let (process, bytes) = (s.trainer(), s.gib(2.0, 12.0));
        s.add(process, move |_, _| resting(bytes));
        let boot = s.random.uuid();
        s.edit(move |snapshots, _| {
            let interval = snapshots[1].time.seconds_since(snapshots[0].time);
            let from = snapshots.len() - ((400.0 / interval) as usize).clamp(1, 400);
            for snapshot in &mut snapshots[from..] {
                snapshot.host.boot_id = Some(boot.as_str().into());
            }
        });
    }),
    family("doubled_and_disordered", "Some snapshots are duplicated, and two are swapped.", |s| {
        add_working_process(s);
        s.edit(|snapshots, random| {
            for _ in 0..4 {
                let index = random.whole(1, snapshots.len() as u64 - 2) as usize;
                let twin = snapshots[index].clone();
                snapshots.insert(index, twin);
            }
            let index = random.whole(1, snapshots.len() as u64 / 2) as usize;
            snapshots.swap(index, index + 1);
        });
    }),
    family("lost_gpu", "A GPU fell off the bus with a process on it.", |s| {
        add_working_process(s);
        let (gpu, at) = (s.gpu, s.at(0.3, 0.5));
        s.edit_each(move |t, snapshot| {
            if t > at {
                let lost = &mut snapshot.gpus[gpu];
                *lost = Gpu {
                    index: lost.index,
                    uuid: lost.uuid.clone(),
                    name: lost.name.clone(),
                    pci_bus_id: lost.pci_bus_id.clone(),
                    minor_number: lost.minor_number,
                    ..Gpu::default()
                };
            }
        });
    }),
    family("no_list_of_processes", "The process list cannot be read; memory is in use.", |s| {
        add_working_process(s);
        s.edit_gpus(|gpu| {
            gpu.processes = None;
        });
    }),
    family("hole_in_the_recording", "Twenty minutes with work are missing.", |s| {
        s.minutes(40.0, 60.0);
        let (process, bytes, stop) = (s.trainer(), s.gib(2.0, 12.0), s.before_end(1500.0, 1700.0));
        let back = s.before_end(300.0, 400.0);
        s.add(process, move |t, _| {
            // The process works during the gap, which is not recorded.
            if t < stop || (stop + 30.0..back).contains(&t) {
                working(bytes)
            } else {
                resting(bytes)
            }
        });
        s.edit(move |snapshots, _| {
            let begin = snapshots[0].time;
            snapshots.retain(|snapshot| {
                let t = snapshot.time.seconds_since(begin);
                !(stop + 20.0..back + 10.0).contains(&t)
            });
        });
    }),
    family("unified_memory", "Managed memory belongs to no row; a process works.", |s| {
        add_working_process(s);
        let (gpu, bytes) = (s.gpu, s.mib(200, 820));
        s.add_unattributed(gpu, move |t| if t % 200.0 < 120.0 { bytes } else { bytes / 2 });
    }),
    family("no_gpu_memory_info", "Total and used memory are unknown.", |s| {
        add_working_process(s);
        s.edit_gpus(|gpu| {
            gpu.memory = None;
        });
    }),
    family("no_power", "Power is not reported, and the GPU is fully used.", |s| {
        let (process, bytes) = (s.trainer(), s.gib(2.0, 12.0));
        s.add(process, move |_, _| working(bytes).sm(100.0));
        s.edit_gpus(|gpu| {
            gpu.power_watts = None;
            gpu.power_limit_watts = None;
        });
    }),
    family("strangers_without_cpu_time", "/proc hides other users' CPU use.", |s| {
        add_idle_process(s);
        s.edit_each(|_, snapshot| {
            for process in &mut snapshot.processes {
                process.cpu_percent = None;
                process.cpu_seconds = None;
            }
        });
    }),
    family("unattributed_and_gone", "GiB unattributed for ten minutes, then freed.", |s| {
        s.minutes(30.0, 50.0);
        add_working_process(s);
        let (gpu, at) = (s.gpu, s.before_end(100.0, 500.0));
        s.add_unattributed(gpu, move |t| if (at - 600.0..at).contains(&t) { 3 * GIB } else { 0 });
    }),
];
