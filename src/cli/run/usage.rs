//! Adds up the GPU usage of a command and its descendants. Times come from the snapshots. The caller decides which
//! processes belong to the command.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::cli::devices::visible as visible_devices;
use crate::cli::unreadable;
use crate::explain::who;
use crate::model::finding::{FindingProcess, Undecided};
use crate::model::process_name::name_of;
use crate::model::snapshot::GpuProcess;
use crate::model::{Finding, Gpu, Identity, Kind, Process, Snapshot};
use crate::reclaim::commands;
use crate::reclaim::commands::CommandUser;
use crate::report::run::{HeldMemory, LeastFree, OtherHolder, RunFigures, RunGpu, RunProcess};
use crate::rules::{Engine, RuleSet};

const MOST_ERRORS: usize = 8;

#[derive(Debug)]
pub(super) struct Usage {
    engine: Engine,
    ours: HashSet<Identity>,
    gpus: BTreeMap<u32, RunGpu>,
    processes: HashMap<(Identity, u32), RunProcess>,
    /// For each GPU, the latest of the samples with the least free memory.
    least_free: BTreeMap<u32, LeastFree>,
    /// Pids that gpumem could not identify in the first sample. Other unidentified pids may belong to the command.
    strangers: HashSet<u32>,
    has_unidentified: bool,
    /// Pairs of a process of the command and a GPU's index. The leak rule was undecided about the process when it was
    /// last on that GPU.
    undecided: HashSet<(Identity, u32)>,
    pub(super) samples: u64,
    pub(super) last: Option<Snapshot>,
    pub(super) errors: Vec<String>,
}

fn rows<'a>(gpu: &'a Gpu, ours: &'a HashSet<u32>) -> impl Iterator<Item = &'a GpuProcess> {
    gpu.processes.iter().flatten().filter(|row| ours.contains(&row.pid))
}

/// Returns the total memory of the rows, or `None` if the memory of any row is unknown.
fn sum<'a>(mut rows: impl Iterator<Item = &'a GpuProcess>) -> Option<u64> {
    rows.try_fold(0u64, |sum, row| Some(sum.saturating_add(row.used_bytes?)))
}

impl Usage {
    pub(super) fn new(rules: RuleSet) -> Self {
        Self {
            engine: Engine::new(rules),
            ours: HashSet::new(),
            gpus: BTreeMap::new(),
            processes: HashMap::new(),
            least_free: BTreeMap::new(),
            strangers: HashSet::new(),
            has_unidentified: false,
            undecided: HashSet::new(),
            samples: 0,
            last: None,
            errors: Vec::new(),
        }
    }

    /// Returns the pids of the command's processes. `is_ours` decides about processes that were not seen before. An
    /// exited process is included if NVML still lists it, because its children may hold the memory.
    fn ours(&mut self, snapshot: &Snapshot, is_ours: impl Fn(&Process) -> bool) -> HashSet<u32> {
        let mut pids = HashSet::new();
        for process in &snapshot.processes {
            let identity = process.while_alive().identity();
            if identity.is_certain() && (self.ours.contains(&identity) || is_ours(process)) {
                self.ours.insert(identity);
                pids.insert(process.pid);
            }
        }
        pids
    }

    /// Adds a sample that was taken while the command ran.
    pub(super) fn observe(&mut self, snapshot: Snapshot, is_ours: impl Fn(&Process) -> bool) {
        let mut unidentified =
            snapshot.processes.iter().filter(|process| process.unresolved.is_some());
        if self.samples == 0 {
            self.strangers = unidentified.map(|process| process.pid).collect();
        } else if let Some(new) =
            unidentified.find(|process| !self.strangers.contains(&process.pid))
        {
            let why = new.unresolved.as_deref().unwrap_or_default();
            let note = format!("process {} on a GPU may belong to the command: {why}", new.pid);
            self.note(note);
            self.has_unidentified = true;
        }
        self.samples += 1;
        let ours = self.ours(&snapshot, is_ours);
        let time = snapshot.time;
        for gpu in snapshot.gpus.iter().filter(|gpu| gpu.stale_seconds.is_none()) {
            let sm = rows(gpu, &ours).filter_map(|row| row.sm_percent).reduce(u32::saturating_add);
            if rows(gpu, &ours).next().is_some() || self.gpus.contains_key(&gpu.index) {
                let entry = self.gpus.entry(gpu.index).or_insert_with(|| run_gpu(gpu));
                // If the process list is unreadable, the memory is unknown, not 0.
                let bytes = gpu.processes.as_ref().and_then(|_| sum(rows(gpu, &ours)));
                entry.figures.add(time, bytes, sm.map(|sm| sm.min(100)));
            }
            // Under MIG, a process can have several rows.
            let pids: HashSet<u32> = rows(gpu, &ours).map(|row| row.pid).collect();
            for process in snapshot.processes.iter().filter(|process| pids.contains(&process.pid)) {
                let own_rows = || rows(gpu, &ours).filter(|row| row.pid == process.pid);
                let entry = self.processes.entry((process.identity(), gpu.index));
                let entry = entry.or_insert_with(|| run_process(process, gpu.index));
                entry.figures.add(
                    time,
                    sum(own_rows()),
                    own_rows().filter_map(|row| row.sm_percent).max(),
                );
            }
        }
        for error in &snapshot.errors {
            self.note(error.to_string());
        }
        self.engine.observe(&snapshot);
        let undecided = self.leaks_undecided();
        for gpu in &snapshot.gpus {
            for process in rows(gpu, &ours).filter_map(|row| snapshot.process(row.pid)) {
                let is_undecided = undecided.iter().any(|undecided| {
                    undecided.pid.is_none_or(|pid| pid == process.pid)
                        && undecided.gpu.is_none_or(|index| index == gpu.index)
                });
                match (process.while_alive().identity(), gpu.index) {
                    key if is_undecided => _ = self.undecided.insert(key),
                    key => _ = self.undecided.remove(&key),
                }
            }
        }
        for gpu in snapshot.gpus.iter().filter(|gpu| gpu.stale_seconds.is_none()) {
            let Some(free_bytes) = gpu.free_bytes() else { continue };
            if self.least_free.get(&gpu.index).is_none_or(|least| free_bytes <= least.free_bytes) {
                let least = self.holders(&snapshot, gpu, free_bytes, &ours);
                self.least_free.insert(gpu.index, least);
            }
        }
        self.last = Some(snapshot);
    }

    /// Adds an error to the report, unless the report already contains the error or [`MOST_ERRORS`] errors.
    pub(super) fn note(&mut self, error: String) {
        if self.errors.len() < MOST_ERRORS && !self.errors.contains(&error) {
            self.errors.push(error);
        }
    }

    /// Returns the memory that the command's processes hold in a snapshot taken after the command exited, or `None`
    /// if none was found and a GPU could not be read.
    pub(super) fn held(
        &mut self,
        snapshot: &Snapshot,
        is_ours: impl Fn(&Process) -> bool,
    ) -> Option<Vec<HeldMemory>> {
        let ours = self.ours(snapshot, is_ours);
        let command_user = CommandUser::User(rustix::process::geteuid().as_raw());
        let mut held = Vec::new();
        for gpu in &snapshot.gpus {
            // A process that the command left behind may have allocated memory after the last sample.
            if let Some(bytes) = sum(rows(gpu, &ours)).filter(|&bytes| bytes > 0) {
                let entry = self.gpus.entry(gpu.index).or_insert_with(|| run_gpu(gpu));
                entry.figures.raise_peak(snapshot.time, Some(bytes));
            }
            for row in rows(gpu, &ours).filter(|row| row.used_bytes != Some(0)) {
                let Some(process) = snapshot.process(row.pid) else { continue };
                let commands_for = commands::own_commands(
                    self.engine.settings(),
                    Some(process),
                    snapshot,
                    command_user,
                );
                let last_known = process.while_alive();
                held.push(HeldMemory {
                    process: FindingProcess::new(&last_known),
                    name: name_of(&last_known),
                    gpu: gpu.index,
                    used_bytes: row.used_bytes,
                    command: commands_for
                        .kill
                        .unwrap_or_else(|| format!("gpumem explain {}", row.pid)),
                });
            }
        }
        (!held.is_empty() || !unreadable(snapshot)).then_some(held)
    }

    pub(super) fn gpus(&self) -> Vec<RunGpu> {
        self.gpus.values().cloned().collect()
    }

    pub(super) fn processes(&self) -> Vec<RunProcess> {
        let mut all: Vec<RunProcess> = self.processes.values().cloned().collect();
        all.sort_by_key(|run_process| {
            (
                std::cmp::Reverse(run_process.figures.peak_bytes),
                run_process.process.pid,
                run_process.gpu,
            )
        });
        all
    }

    /// Returns whether a peak may be missing, because a process or GPU could not be read.
    pub(super) fn is_blind(&self) -> bool {
        self.has_unidentified
            || self.last.as_ref().is_none_or(unreadable)
            || self.gpus.values().any(|gpu| gpu.figures.has_unknown)
    }

    fn holders(
        &self,
        snapshot: &Snapshot,
        gpu: &Gpu,
        free_bytes: u64,
        ours: &HashSet<u32>,
    ) -> LeastFree {
        let others = gpu.processes.iter().flatten().filter(|row| !ours.contains(&row.pid));
        let mut bytes_by_pid: BTreeMap<u32, Option<u64>> = BTreeMap::new();
        for row in others.filter(|row| row.used_bytes != Some(0)) {
            // Under MIG, a process can have several rows.
            let sum_so_far = bytes_by_pid.entry(row.pid).or_insert(Some(0));
            *sum_so_far =
                sum_so_far.zip(row.used_bytes).map(|(sum, bytes)| sum.saturating_add(bytes));
        }
        let holder = |(pid, used_bytes): (u32, Option<u64>)| {
            let process = snapshot.process(pid).map(FindingProcess::new);
            let (finding, suspect) = self.unused_kinds(pid);
            OtherHolder {
                process: process
                    .unwrap_or_else(|| FindingProcess::new(&Process { pid, ..Process::default() })),
                name: who(snapshot, pid).0,
                used_bytes,
                finding,
                suspect,
            }
        };
        let mut others: Vec<OtherHolder> = bytes_by_pid.into_iter().map(holder).collect();
        others.sort_by_key(|holder| std::cmp::Reverse(holder.used_bytes));
        LeastFree {
            gpu: gpu.index,
            uuid: gpu.uuid.clone(),
            time: snapshot.time,
            free_bytes,
            others: gpu.processes.is_some().then_some(others),
            unattributed_bytes: snapshot.balance(gpu).and_then(|balance| balance.unattributed.ok()),
        }
    }

    /// Returns the kinds of the process's finding and suspicion. Each is `None` unless it concerns unused memory.
    fn unused_kinds(&self, pid: u32) -> (Option<Kind>, Option<Kind>) {
        let finding = self.engine.findings().iter().find(|finding| {
            let is_of_process = finding.process.as_ref().is_some_and(|process| process.pid == pid);
            is_of_process
                && finding.kind.is_unused()
                && finding.resolved_at.is_none()
                && finding.kept_by.is_none()
        });
        let mut suspects = self.engine.suspects().iter();
        let suspect =
            suspects.find(|suspect| suspect.process.pid == pid && suspect.kind.is_unused());
        (finding.map(|finding| finding.kind), suspect.map(|suspect| suspect.kind))
    }

    /// Returns the sample with the least free memory for each GPU that the command used or could see. The GPU with the
    /// least free memory comes first.
    pub(super) fn least_free(&self, visible: Option<&str>) -> Vec<LeastFree> {
        let gpus = self.last.as_ref().map_or(&[] as &[Gpu], |last| &last.gpus);
        let devices = visible_devices(gpus, visible);
        let is_visible = |index: u32| match &devices {
            Ok(devices) => devices.iter().any(|device| device.gpu.index == index),
            // If GPU models differ, CUDA's device numbers cannot be mapped to GPUs. In this case, include every GPU.
            Err(_) => true,
        };
        let is_of_run =
            |least: &&LeastFree| is_visible(least.gpu) || self.gpus.contains_key(&least.gpu);
        let mut least: Vec<LeastFree> =
            self.least_free.values().filter(is_of_run).cloned().collect();
        least.sort_by_key(|least| (least.free_bytes, least.gpu));
        least
    }

    pub(super) fn leaks(&self) -> Vec<Finding> {
        let is_ours = |finding: &&Finding| {
            let process = finding.process.as_ref();
            finding.kind == Kind::Leak
                && process.is_some_and(|process| self.ours.contains(&process.identity))
        };
        self.engine.findings().iter().filter(is_ours).cloned().collect()
    }

    fn leaks_undecided(&self) -> Vec<Undecided> {
        let rules = self.engine.settings().rules().iter();
        let names: Vec<&str> =
            rules.filter(|rule| rule.kind() == Kind::Leak).map(|rule| &*rule.name).collect();
        let mut undecided = self.engine.undecided();
        undecided.retain(|undecided| names.contains(&&*undecided.rule));
        undecided
    }

    pub(super) fn leaks_decided(&self) -> bool {
        self.samples > 0 && self.undecided.is_empty()
    }
}

fn run_gpu(gpu: &Gpu) -> RunGpu {
    RunGpu {
        index: gpu.index,
        uuid: gpu.uuid.clone(),
        name: gpu.name.clone(),
        total_bytes: gpu.memory.map(|memory| memory.total_bytes),
        figures: RunFigures::default(),
    }
}

fn run_process(process: &Process, gpu: u32) -> RunProcess {
    RunProcess {
        process: FindingProcess::new(process),
        name: name_of(process),
        gpu,
        figures: RunFigures::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::model::Time;
    use crate::model::process::LastKnown;
    use crate::model::snapshot::Memory;
    use crate::recording::RecordingReader;

    /// Returns a snapshot of process 7 and of one GPU with these rows.
    fn sample(rows: Option<Vec<GpuProcess>>, process: Process) -> Snapshot {
        let mut snapshot = Snapshot::new(Time::default());
        snapshot.gpus = vec![Gpu { processes: rows, ..Gpu::default() }];
        snapshot.processes = vec![Process { pid: 7, ..process }];
        snapshot
    }

    fn row() -> GpuProcess {
        GpuProcess { pid: 7, used_bytes: Some(5), ..GpuProcess::default() }
    }

    fn alive() -> Process {
        Process { start_ticks: Some(1), ..Process::default() }
    }

    #[test]
    fn a_new_unidentified_process_makes_the_peak_unknown() {
        let mut usage = Usage::new(Config::default().rules);
        let unresolved = |pid: u32| Process {
            pid,
            unresolved: Some("a pid of another pid namespace".into()),
            ..Process::default()
        };
        for (pids, is_blind) in [(&[7_u32] as &[u32], false), (&[7], false), (&[7, 8], true)] {
            let mut snapshot = sample(Some(Vec::new()), alive());
            snapshot.processes = pids.iter().map(|&pid| unresolved(pid)).collect();
            usage.observe(snapshot, |_| false);
            assert_eq!(usage.is_blind(), is_blind, "{pids:?}");
        }
    }

    #[test]
    fn an_unreadable_process_list_is_not_an_empty_one() {
        let mut usage = Usage::new(Config::default().rules);
        for rows in [Some(vec![row()]), None, Some(vec![row()])] {
            usage.observe(sample(rows, alive()), |_| true);
        }
        assert_eq!(usage.gpus()[0].figures.mean_bytes, Some(5));
        assert!(usage.is_blind());
    }

    #[test]
    fn memory_under_the_pid_of_an_exited_process_is_held() {
        let mut usage = Usage::new(Config::default().rules);
        usage.observe(sample(Some(vec![row()]), alive()), |_| true);
        let ended = |start_ticks| {
            let (comm, command) = (Some("train".into()), None);
            let known = LastKnown { start_ticks, comm, command, ..LastKnown::default() };
            let ended = Process { last_known: Some(known.into()), ..Process::default() };
            sample(Some(vec![row()]), ended)
        };
        let held = usage.held(&ended(Some(1)), |_| false).unwrap();
        assert_eq!((held.len(), &*held[0].name, held[0].used_bytes), (1, "train", Some(5)));
        assert_eq!(held[0].command, "gpumem explain 7");
        // A process that reuses the pid does not belong to the command.
        assert_eq!(usage.held(&ended(Some(2)), |_| false), Some(Vec::new()));
    }

    #[test]
    fn memory_allocated_after_the_last_sample_raises_the_peak() {
        let mut usage = Usage::new(Config::default().rules);
        usage.observe(sample(Some(Vec::new()), alive()), |_| true);
        usage.held(&sample(Some(vec![row()]), alive()), |_| true);
        assert_eq!(usage.gpus()[0].figures.peak_bytes, Some(5));
    }

    #[test]
    fn least_free_is_the_latest_minimum_of_visible_gpus() {
        let mut usage = Usage::new(Config::default().rules);
        let gpu = |index: u32, free_bytes: u64, used_bytes: Option<u64>| Gpu {
            index,
            memory: Some(Memory { total_bytes: 100, free_bytes, ..Memory::default() }),
            processes: Some(vec![GpuProcess { pid: 7, used_bytes, ..GpuProcess::default() }]),
            ..Gpu::default()
        };
        for (time, free) in [(0, 20), (1, 10), (2, 10), (3, 30)] {
            let mut snapshot = Snapshot::new(Time::from_unix_milliseconds(time));
            snapshot.gpus =
                vec![gpu(0, 50, None), gpu(1, free, Some(100 - free)), gpu(2, 90, Some(0))];
            snapshot.gpus[2].memory = None;
            usage.observe(snapshot, |_| false);
        }
        let least = usage.least_free(None);
        let figures =
            least.iter().map(|least| (least.gpu, least.free_bytes, least.time.unix_milliseconds()));
        assert_eq!(figures.collect::<Vec<_>>(), [(1, 10, 2), (0, 50, 3)]);
        let held = |at: usize| least[at].others.as_ref().unwrap()[0].used_bytes;
        assert_eq!([held(0), held(1)], [Some(90), None]);
        let gpus_listed = |visible: &str| -> Vec<u32> {
            usage.least_free(Some(visible)).iter().map(|least| least.gpu).collect()
        };
        assert_eq!(gpus_listed("0"), [0]);
        assert!(gpus_listed("").is_empty());
        assert!(gpus_listed("MIG-1").is_empty(), "CUDA ignores unknown devices");
    }

    #[test]
    fn unused_memory_of_other_processes_is_marked() {
        let idle = include_bytes!("../../../tests/data/corpus/idle_shared_gpu-100.jsonl");
        let mut usage = Usage::new(Config::default().rules);
        let mut marks = Vec::new();
        for snapshot in RecordingReader::from_read(&idle[..], "idle").unwrap() {
            usage.observe(snapshot.unwrap(), |_| false);
            for other in
                usage.least_free(None).iter().flat_map(|least| least.others.iter().flatten())
            {
                marks.push((other.finding, other.suspect));
            }
        }
        marks.retain(|&mark| mark != (None, None));
        marks.dedup();
        let idle = Some(Kind::Idle);
        assert_eq!(marks, [(None, idle), (idle, None)]);
    }

    /// The recording covers 15 minutes, the minimum for the leak rule.
    #[test]
    fn only_a_leak_of_the_commands_processes_is_reported() {
        let leak = include_bytes!("../../../tests/data/corpus/leak_linear-100.jsonl");
        for is_ours in [true, false] {
            let mut usage = Usage::new(Config::default().rules);
            for snapshot in RecordingReader::from_read(&leak[..], "leak").unwrap() {
                usage.observe(snapshot.unwrap(), |_| is_ours);
            }
            assert_eq!(usage.leaks().len(), usize::from(is_ours));
            assert_eq!(usage.gpus().is_empty(), !is_ours);
            for process in usage.processes() {
                let figures = process.figures;
                assert!(figures.mean_bytes <= figures.peak_bytes && figures.last_bytes.is_some());
            }
            assert!(usage.leaks_decided());
        }
    }
}
