//! Random snapshots for robustness tests.

use std::sync::Arc;

use crate::model::Time;
pub use crate::model::dice::Dice;
use crate::model::snapshot::{Process, Snapshot};
use crate::watch::sample;

impl Dice {
    pub fn chance(&mut self) -> bool {
        self.roll(4) == 0
    }

    /// Returns a number of bytes. Extremes are frequent.
    pub fn bytes(&mut self) -> Option<u64> {
        match self.roll(4) {
            0 => None,
            1 => Some(0),
            2 => Some(u64::MAX),
            _ => Some(self.0 >> self.roll(64)),
        }
    }

    pub fn name(&mut self) -> Arc<str> {
        let alphabet = [
            'a', ' ', '\x1b', '\n', '日', '\u{301}', '\u{202e}', '🦀', '\0', 'é', '\u{200d}',
            '\u{fe0f}',
        ];
        (0..self.roll(60))
            .map(|_| alphabet[self.roll(alphabet.len() as u64) as usize])
            .collect::<String>()
            .into()
    }

    /// Returns a host with unknown, impossible and malicious values.
    pub fn snapshot(&mut self) -> Snapshot {
        let (gpus, processes) = (self.roll(20) as u32, self.roll(12) as u32);
        let mut snapshot = sample::snapshot(gpus, processes);
        for at in 0..gpus as usize {
            let gpu = &mut snapshot.gpus[at];
            gpu.index = if self.chance() { u32::MAX } else { gpu.index };
            gpu.name = Some(self.name());
            gpu.stale_seconds = self.chance().then_some(f64::NAN);
            gpu.power_watts = self.chance().then_some(f64::INFINITY);
            if let Some(memory) = &mut gpu.memory {
                memory.total_bytes = self.bytes().unwrap_or(memory.total_bytes);
                memory.used_bytes = self.bytes().unwrap_or(memory.used_bytes);
                memory.reserved_bytes = self.bytes();
            }
            for entry in gpu.processes.iter_mut().flatten() {
                entry.used_bytes = self.bytes();
                entry.sm_percent = self.chance().then_some(u32::MAX);
            }
            if self.chance() {
                sample::divide(&mut snapshot, at);
                snapshot.gpus[at].mig_devices[0].profile = Some(self.name());
                snapshot.gpus[at].mig_devices[1].memory = None;
            }
            if self.chance() {
                snapshot.gpus[at].memory = None;
                snapshot.gpus[at].memory_unavailable = Some(self.name());
            }
            if self.chance() {
                sample::lose(&mut snapshot, at);
            }
        }
        if self.chance() {
            sample::hide(&mut snapshot);
        }
        for process in &mut snapshot.processes {
            *process = Process {
                start_time: self.chance().then(|| Time::from_unix_milliseconds(self.0 as i64)),
                start_ticks: self.chance().then_some(self.0),
                user: self.chance().then(|| self.name()),
                command: self.chance().then(|| vec![self.name(), self.name()].into()),
                comm: Some(self.name()),
                framework: self.chance().then(|| self.name()),
                state: Some(char::from(self.0 as u8)),
                cpu_percent: Some(f64::from_bits(self.0)),
                rss_bytes: self.bytes(),
                unresolved: self.chance().then(|| self.name()),
                gpu_files: self
                    .chance()
                    .then(|| vec![self.name(), "/dev/nvidia-uvm".into(), self.name()].into()),
                namespace_pid: self.chance().then_some(u32::MAX),
                systemd_unit: self.chance().then(|| self.name()),
                framework_version: self.chance().then(|| self.name()),
                ..process.clone()
            };
        }
        snapshot
    }
}
