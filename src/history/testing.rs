//! A simulated machine for tests, which produces one snapshot per step.

use std::sync::Arc;

use super::sample_time::SampleTime;
use crate::model::dice::Dice;
use crate::model::snapshot::{Memory, ProcessType};
use crate::model::{Gpu, GpuProcess, Process, Snapshot, Time};

/// Returns a sample time with an interval of 10 s and an allowed gap of one minute.
pub(super) fn sample_at(seconds: i64) -> SampleTime {
    SampleTime {
        time: Time::from_unix_milliseconds(seconds * 1000),
        interval: 10_000,
        allowed_gap: 60_000,
    }
}

/// A simulated machine. Tests change `now` between steps.
#[derive(Clone, Debug)]
pub(crate) struct Scene {
    pub(crate) now: Snapshot,
    pub(crate) interval_seconds: f64,
}

impl Scene {
    pub(crate) fn new(gpus: u32, interval_seconds: f64) -> Self {
        let mut now = Snapshot::new(Time::from_unix_milliseconds(1_763_706_000_000));
        now.host.hostname = Some("gpu1".into());
        now.host.boot_id = Some("boot-1".into());
        now.gpus = (0..gpus)
            .map(|index| Gpu {
                index,
                uuid: Some(format!("GPU-{index}").into()),
                gpu_percent: Some(0),
                processes: Some(Vec::new()),
                ..Gpu::default()
            })
            .collect();
        Self { now, interval_seconds }
    }

    /// Adds `python train.py`, which was started a day ago and holds memory on these GPUs without using them.
    pub(crate) fn holder(&mut self, pid: u32, gpus: &[u32], bytes: u64) {
        let command: Arc<[Arc<str>]> = ["python".into(), "train.py".into()].into();
        self.now.processes.push(Process {
            pid,
            start_ticks: Some(u64::from(pid) * 100),
            start_time: Some(self.now.time.plus_seconds(-86_400.0)),
            state: Some('S'),
            command: Some(command),
            user: Some("ann".into()),
            listening: Some(false),
            cpu_percent: Some(0.0),
            cpu_seconds: Some(1000.0),
            ..Process::default()
        });
        for gpu in gpus {
            self.rows(*gpu).push(GpuProcess {
                pid,
                kind: ProcessType::Compute,
                used_bytes: Some(bytes),
                sm_percent: Some(0),
                memory_percent: Some(0),
                ..GpuProcess::default()
            });
        }
    }

    /// Sets the used and total memory of a GPU that has no driver reserve.
    pub(crate) fn memory(&mut self, gpu: u32, used_bytes: u64, total_bytes: u64) {
        self.gpu(gpu).memory = Some(Memory {
            total_bytes,
            reserved_bytes: Some(0),
            used_bytes,
            free_bytes: total_bytes - used_bytes,
        });
    }

    /// Makes a process use a GPU, which draws `watts`.
    pub(crate) fn draws(&mut self, gpu: u32, pid: u32, percent: u32, watts: f64) {
        self.row(gpu, pid).sm_percent = Some(percent);
        self.gpu(gpu).gpu_percent = Some(percent);
        self.gpu(gpu).power_watts = Some(watts);
    }

    /// Adds an orphan: a [`holder`](Self::holder) that init adopted and whose group leader is gone.
    pub(crate) fn orphan(&mut self, pid: u32, gpus: &[u32], bytes: u64) {
        self.holder(pid, gpus, bytes);
        let process = self.process(pid);
        process.ppid = Some(1);
        process.process_group = Some(pid - 1);
        process.parent_is_reaper = Some(true);
        process.group_leader_alive = Some(false);
        process.session_leader_alive = Some(false);
    }

    pub(crate) fn gpu(&mut self, index: u32) -> &mut Gpu {
        &mut self.now.gpus[index as usize]
    }

    pub(crate) fn rows(&mut self, gpu: u32) -> &mut Vec<GpuProcess> {
        self.gpu(gpu).processes.get_or_insert_with(Vec::new)
    }

    pub(crate) fn row(&mut self, gpu: u32, pid: u32) -> &mut GpuProcess {
        self.rows(gpu).iter_mut().find(|row| row.pid == pid).unwrap()
    }

    pub(crate) fn process(&mut self, pid: u32) -> &mut Process {
        self.now.processes.iter_mut().find(|process| process.pid == pid).unwrap()
    }

    /// Advances one interval, and adds CPU time to each process according to its `cpu_percent`.
    pub(crate) fn step(&mut self) -> &Snapshot {
        self.pass(self.interval_seconds)
    }

    pub(crate) fn pass(&mut self, seconds: f64) -> &Snapshot {
        self.now.time = self.now.time.plus_seconds(seconds);
        for process in &mut self.now.processes {
            if let (Some(total), Some(percent)) = (&mut process.cpu_seconds, process.cpu_percent) {
                *total += percent / 100.0 * seconds;
            }
        }
        &self.now
    }

    pub(crate) fn play(&mut self, seconds: f64, mut observe: impl FnMut(&Snapshot)) {
        let end = self.now.time.plus_seconds(seconds);
        observe(&self.now);
        while self.now.time < end {
            observe(self.step());
        }
    }
}

/// Plays a broken recording with gaps, duplicates, snapshots out of order, lists and processes that come and go, and
/// impossible numbers. Equal seeds give equal recordings.
pub(crate) fn disorder(seed: u64, snapshots: usize, mut observe: impl FnMut(&Snapshot)) {
    let mut dice = Dice(seed);
    let mut scene = Scene::new(3, 10.0);
    for pid in 1..5 {
        scene.holder(pid, &[pid % 3, (pid + 1) % 3], 1 << 30);
    }
    let mut past: Vec<Snapshot> = Vec::new();
    for _ in 0..snapshots {
        let mut snapshot = match dice.roll(8) {
            0 => scene.now.clone(),
            1 if !past.is_empty() => past[dice.roll(past.len() as u64) as usize].clone(),
            2 => scene.pass(dice.roll(20_000) as f64 - 2_000.0).clone(),
            // Most steps are regular, so that there is a history to disturb.
            _ => scene.pass(dice.roll(30) as f64 * 10.0).clone(),
        };
        match dice.roll(10) {
            0 => snapshot.gpus[0].processes = None,
            1 => snapshot.gpus.rotate_left(1),
            2 => snapshot.processes.truncate(dice.roll(5) as usize),
            3 => snapshot.host.suspended_seconds = Some(dice.roll(3) * 100),
            4 => snapshot.processes.extend(snapshot.processes.clone()),
            5 => snapshot.gpus[1].stale_seconds = Some(f64::NAN),
            6 => snapshot.processes.iter_mut().for_each(|process| {
                process.start_ticks = Some(dice.roll(3));
                process.cpu_seconds = Some(f64::from_bits(dice.roll(u64::MAX)));
            }),
            7 => snapshot.time = Time::from_unix_milliseconds(dice.roll(u64::MAX) as i64),
            _ => {}
        }
        observe(&snapshot);
        past.push(snapshot);
    }
}
