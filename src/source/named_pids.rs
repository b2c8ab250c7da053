//! Remembers when NVML first listed each pid, and the last trusted process that had it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use foldhash::HashMap;

use super::nvml::SampledGpu;
use crate::model::Process;
use crate::model::snapshot::LastKnown;

#[derive(Debug, Default)]
pub(super) struct NamedPids {
    pids: HashMap<u32, NamedPid>,
    number: u64,
}

#[derive(Clone, Debug)]
pub(super) struct NamedPid {
    /// When NVML first listed the pid, in nanoseconds since boot.
    pub(super) first_ns: u64,
    /// Number of the last sample in which NVML listed the pid.
    sample: u64,
    /// The last trusted process that had this pid.
    process: Option<Arc<LastKnown>>,
}

impl NamedPid {
    /// Remembers a process with this pid if it is trusted. Otherwise, forgets the remembered process if this is a
    /// different one.
    pub(super) fn record(&mut self, process: &Process, is_trusted: bool) {
        let last = self.process.as_deref();
        let is_same = last.is_some_and(|last| last.start_ticks == process.start_ticks);
        if !is_trusted {
            if !is_same {
                self.process = None;
            }
            return;
        }
        let is_new = !is_same
            || last.is_some_and(|last| {
                last.command != process.command
                    || last.comm != process.comm
                    || last.user != process.user
            });
        if is_new && process.start_ticks.is_some() {
            self.process = Some(Arc::new(LastKnown {
                start_ticks: process.start_ticks,
                start_time: process.start_time,
                user: process.user.clone(),
                comm: process.comm.clone(),
                command: process.command.clone(),
            }));
        }
    }
}

impl NamedPids {
    /// Records which pids NVML lists. `now` is the current time, both as an instant and in nanoseconds since boot.
    pub(super) fn record(&mut self, gpus: &[SampledGpu], now: (Instant, u64)) {
        self.number += 1;
        let sample = self.number;
        let (mut all_lists_read, mut named_count) = (true, 0);
        for SampledGpu { gpu, read_at, .. } in gpus {
            let Some(rows) = &gpu.processes else {
                all_lists_read = false;
                continue;
            };
            let age = read_at.map_or(Duration::ZERO, |at| now.0.saturating_duration_since(at));
            let at = now.1.saturating_sub(u64::try_from(age.as_nanos()).unwrap_or(u64::MAX));
            for row in rows {
                let named = self.pids.entry(row.pid).or_insert(NamedPid {
                    first_ns: at,
                    sample: 0,
                    process: None,
                });
                named.first_ns = named.first_ns.min(at);
                named_count += usize::from(std::mem::replace(&mut named.sample, sample) != sample);
            }
        }
        if named_count == self.pids.len() {
            return;
        }
        if all_lists_read {
            self.pids.retain(|_, named| named.sample == sample);
        } else {
            // A list that could not be read may still contain these pids.
            let unnamed = self.pids.values_mut().filter(|named| named.sample != sample);
            unnamed.for_each(|named| named.process = None);
        }
    }

    pub(super) fn get_mut(&mut self, pid: u32) -> Option<&mut NamedPid> {
        self.pids.get_mut(&pid)
    }

    pub(super) fn last_known(&self, pid: u32) -> Option<Arc<LastKnown>> {
        self.pids.get(&pid)?.process.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::GpuProcess;
    use crate::model::snapshot::Gpu;

    #[test]
    fn a_pid_is_remembered_while_a_list_names_it() {
        let start = Instant::now();
        let mut named = NamedPids::default();
        let mut note = |lists: &[Option<&[u32]>], second: u64| {
            let row = |&pid: &u32| GpuProcess { pid, ..GpuProcess::default() };
            let gpu = |list: &Option<&[u32]>| SampledGpu {
                gpu: Gpu {
                    processes: list.map(|pids| pids.iter().map(row).collect()),
                    ..Gpu::default()
                },
                read_at: Some(start + Duration::from_secs(second)),
                process_utilization: None,
            };
            let gpus: Vec<SampledGpu> = lists.iter().map(gpu).collect();
            let now = start + Duration::from_secs(second + 1);
            named.record(&gpus, (now, (second + 1) * 1_000_000_000));
            for named in named.pids.values_mut() {
                named.record(&process(1, "x"), true);
            }
            let mut pids: Vec<(u32, u64)> = named
                .pids
                .iter()
                .map(|(&pid, named)| (pid, named.first_ns / 1_000_000_000))
                .collect();
            pids.sort_unstable();
            pids
        };
        assert_eq!(note(&[Some(&[7, 8]), Some(&[7])], 10), [(7, 10), (8, 10)]);
        assert_eq!(note(&[Some(&[7, 9]), Some(&[9])], 20), [(7, 10), (9, 20)]);
        // If a list cannot be read, its pids stay.
        assert_eq!(note(&[Some(&[9]), None], 30), [(7, 10), (9, 20)]);
        // A pid that appears while another disappears is new, and so is a pid that returns.
        assert_eq!(note(&[Some(&[9]), Some(&[8])], 40), [(8, 40), (9, 20)]);
        assert_eq!(note(&[Some(&[]), Some(&[])], 50), []);
    }

    #[test]
    fn a_pid_on_an_unreadable_list_loses_its_name() {
        let mut named = NamedPids::default();
        let gpu = |processes| SampledGpu {
            gpu: Gpu { processes, ..Gpu::default() },
            read_at: None,
            process_utilization: None,
        };
        let rows = vec![GpuProcess { pid: 7, ..GpuProcess::default() }];
        named.record(&[gpu(Some(rows))], (Instant::now(), 5));
        named.get_mut(7).unwrap().record(&process(1, "x"), true);
        assert!(named.last_known(7).is_some());
        named.record(&[gpu(None)], (Instant::now(), 6));
        assert_eq!(named.last_known(7), None);
        assert_eq!(named.get_mut(7).unwrap().first_ns, 5);
    }

    fn process(start_ticks: u64, name: &str) -> Process {
        Process {
            pid: 7,
            start_ticks: Some(start_ticks),
            comm: Some(name.into()),
            ..Process::default()
        }
    }

    #[test]
    fn only_a_trusted_process_is_remembered() {
        let name = |named: &NamedPid| Some(named.process.as_deref()?.comm.as_deref()?.to_owned());
        let mut named = NamedPid { first_ns: 0, sample: 0, process: None };
        named.record(&process(5, "stranger"), false);
        assert_eq!(name(&named), None);
        named.record(&process(5, "python"), true);
        named.record(&process(5, "train"), true);
        assert_eq!(name(&named).as_deref(), Some("train"));
        // The process is no longer trusted, because it has closed its files, but it is still the same process.
        named.record(&process(5, "train"), false);
        assert_eq!(name(&named).as_deref(), Some("train"));
        // A different process has the pid now.
        named.record(&process(9, "stranger"), false);
        assert_eq!(name(&named), None);
    }
}
