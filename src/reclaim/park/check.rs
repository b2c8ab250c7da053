//! Decides whether a process can be parked. Anything unknown is a reason not to.
//!
//! The driver reports most of these cases late or not at all, and can then lose the process's CUDA state. The plan and
//! the helper perform the same checks, the helper immediately before the first call.

use std::fs;

use super::journal::{ParkRecord, ParkedGpu};
use crate::host::{
    CheckpointFacts, Roots, read_certain_memory, read_checkpoint_facts, read_mps_daemons,
    read_rights,
};
use crate::model::family::{families, member};
use crate::model::process::ParkState;
use crate::model::snapshot::ProcessType;
use crate::model::{Gpu, GpuProcess, Process, Snapshot};
use crate::rules::serves;
use crate::units::{Bytes, GIB, MIB};

/// First driver with the checkpoint functions.
const FIRST_DRIVER: u32 = 570;
/// Used memory that belongs to no process, from which on it may be managed memory, which cannot be parked.
const MANAGED_BYTES: u64 = 256 * MIB;
/// Host memory that must remain available after parking.
const MARGIN_BYTES: u64 = GIB;
/// Parts of the paths of mapped files that show a profiler or debugger.
const PROFILERS: [&str; 4] =
    ["libToolsInjection", "libTreeLauncher", "libcudadebugger", "cuda-gdb"];
/// The profiling interface. PyTorch, JAX and TensorFlow load it without using it.
const CUPTI: &str = "/libcupti.so";
/// Beginnings of the paths of mapped files that processes of one job share.
const SHARED: [&str; 4] = ["/dev/shm/nccl-", "/dev/shm/cuda.shm", "/dev/shm/torch_", "/memfd:cuda"];
/// Variables with the number of processes of a distributed run.
const RUN_SIZES: [&str; 4] =
    ["WORLD_SIZE", "LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS"];
/// Devices that exist only in confidential virtual machines. Confidential computing on a GPU requires one.
const CONFIDENTIAL: [&str; 3] = ["sev-guest", "tdx_guest", "tdx-guest"];

#[derive(Clone, Copy, Debug)]
pub struct ParkCheck<'a> {
    pub roots: &'a Roots,
    pub snapshot: &'a Snapshot,
    pub pid: u32,
    /// All records, which show what other processes hold in host memory.
    pub records: &'a [ParkRecord],
    /// Maximum number of bytes that all parked processes may hold in host memory, or `None` if unlimited.
    pub most_bytes: Option<u64>,
    /// Whether the process is parked to be ended. It may then be working.
    pub is_ending: bool,
}

/// Returns the memory of a process on each GPU, according to NVML, or `None` if a value or UUID is unknown.
pub fn held(pid: u32, snapshot: &Snapshot) -> Option<Vec<ParkedGpu>> {
    let mut found = Vec::new();
    for gpu in &snapshot.gpus {
        let rows = gpu.processes.as_ref().filter(|_| gpu.stale_seconds.is_none())?;
        let mut rows = rows.iter().filter(|row| row.pid == pid).peekable();
        if rows.peek().is_some() {
            let bytes = rows.try_fold(0u64, |sum, row| sum.checked_add(row.used_bytes?))?;
            found.push(ParkedGpu { index: gpu.index, uuid: gpu.uuid.clone()?, bytes });
        }
    }
    Some(found)
}

/// Returns why a process is working, or `None` if NVML shows that it is idle.
pub fn work(pid: u32, snapshot: &Snapshot) -> Option<String> {
    for gpu in &snapshot.gpus {
        let rows = gpu.processes.iter().flatten().filter(|row| row.pid == pid);
        for row in rows {
            let engines = [row.encoder_percent, row.decoder_percent];
            match (row.sm_percent, gpu.gpu_percent) {
                (Some(percent @ 1..), _) => {
                    return Some(format!("it works on GPU {} (SM {percent}%)", gpu.index));
                }
                (Some(0), _) | (None, Some(0)) => {}
                _ => {
                    return Some(format!(
                        "NVML does not report whether it works on GPU {}",
                        gpu.index
                    ));
                }
            }
            if engines.into_iter().flatten().any(|percent| percent > 0) {
                return Some(format!("it encodes or decodes on GPU {}", gpu.index));
            }
        }
    }
    let jupyter = snapshot.process(pid).and_then(|process| process.jupyter.as_deref());
    let is_busy = jupyter.is_some_and(|jupyter| jupyter.execution_state.as_deref() == Some("busy"));
    is_busy.then(|| "its notebook is running a cell".to_owned())
}

impl ParkCheck<'_> {
    /// Returns the reasons why the process cannot be parked. If there are none, it can.
    pub fn obstacles(&self) -> Vec<String> {
        let mut found = Vec::new();
        let Some(process) = self.snapshot.process(self.pid) else {
            return vec!["NVML lists no such process".to_owned()];
        };
        self.check_machine(&mut found);
        self.check_process(process, &mut found);
        self.check_job(process, &mut found);
        match held(self.pid, self.snapshot).filter(|held| !held.is_empty()) {
            Some(held) => {
                self.check_gpus(&held, &mut found);
                self.check_memory(held.iter().map(|gpu| gpu.bytes).sum(), &mut found);
            }
            None => found.push("NVML does not report its memory".to_owned()),
        }
        if !self.is_ending {
            found.extend(work(self.pid, self.snapshot));
        }
        found
    }

    fn check_machine(&self, found: &mut Vec<String>) {
        let version = self.snapshot.driver.version.as_deref().unwrap_or("unknown");
        let major = version.split('.').next().and_then(|major| major.parse::<u32>().ok());
        if major.is_none_or(|major| major < FIRST_DRIVER) {
            found.push(format!(
                "driver {version} cannot park; that requires {FIRST_DRIVER} or newer"
            ));
        }
        if cfg!(not(target_arch = "x86_64")) {
            found.push("parking works only on x86-64".to_owned());
        }
        if CONFIDENTIAL.iter().any(|device| self.roots.dev.join(device).exists()) {
            found.push("the machine uses confidential computing".to_owned());
        }
        match read_mps_daemons(&self.roots.proc) {
            Some(daemons) if daemons.controls + daemons.servers == 0 => {}
            Some(_) => {
                found.push("the machine uses MPS, whose clients cannot be parked".to_owned());
            }
            None => found.push("it is unknown whether the machine uses MPS".to_owned()),
        }
    }

    fn check_process(&self, process: &Process, found: &mut Vec<String>) {
        let uid = rustix::process::geteuid().as_raw();
        let may_trace = || read_rights(&self.roots.proc).can_trace == Some(true);
        if process.uid != Some(uid) && !may_trace() {
            found.push("it belongs to another user; that requires root".to_owned());
        }
        if process.namespace_pid.is_some() {
            found.push("it runs in another pid namespace (a container)".to_owned());
        }
        match process.live_state() {
            Some('R' | 'S' | 'I') => {}
            Some('T') => found.push("it is stopped or frozen".to_owned()),
            Some('t') => found.push("a debugger has stopped it".to_owned()),
            Some('D') => found.push("it is blocked in the kernel".to_owned()),
            _ => found.push("it has exited, or its state is unknown".to_owned()),
        }
        if process.cgroup.is_some() && process.frozen.is_none() && self.has_freezer() {
            found.push("it is unknown whether its cgroup is frozen".to_owned());
        }
        match read_checkpoint_facts(self.roots, self.pid) {
            Some(facts) => check_facts(process, &facts, found),
            None => found.push("its memory map and environment cannot be read".to_owned()),
        }
        if serves(process, self.snapshot) {
            found.push("it is or may be a server, whose clients would wait".to_owned());
        }
        let record =
            self.records.iter().find(|record| record.process.identity() == process.identity());
        match record.map(|record| record.state) {
            None | Some(ParkState::Running) => {}
            Some(ParkState::Parked) => found.push("it is parked already".to_owned()),
            Some(ParkState::Lost) => found.push("its CUDA state is lost".to_owned()),
            Some(ParkState::InProgress) => {
                found.push("a helper is parking or unparking it".to_owned());
            }
            Some(ParkState::Locked | ParkState::Unknown) => {
                found.push(format!(
                    "an earlier park was interrupted; run `gpumem unpark {}`",
                    self.pid
                ));
            }
        }
    }

    /// Returns whether the kernel shows the state of freezing (cgroup v2).
    fn has_freezer(&self) -> bool {
        fs::exists(self.roots.root.join("sys/fs/cgroup/cgroup.controllers")).unwrap_or(true)
    }

    /// Locking one process of a job makes CUDA calls of the others hang.
    fn check_job(&self, process: &Process, found: &mut Vec<String>) {
        let families = families(self.snapshot);
        let Some(family) = member(&families, process.pid) else {
            found.push("its job is unknown".to_owned());
            return;
        };
        let others: Vec<String> = family
            .members
            .iter()
            .filter(|&&pid| pid != process.pid)
            .map(ToString::to_string)
            .collect();
        if !others.is_empty() {
            found.push(format!("its job has other GPU processes ({})", others.join(", ")));
        }
        if has_ranks(process) {
            found.push("it is a rank of a distributed run".to_owned());
        }
    }

    fn check_gpus(&self, held: &[ParkedGpu], found: &mut Vec<String>) {
        let is_held = |gpu: &&Gpu| held.iter().any(|held| held.index == gpu.index);
        for gpu in self.snapshot.gpus.iter().filter(is_held) {
            let index = gpu.index;
            let mut rows = gpu.processes.iter().flatten().filter(|row| row.pid == self.pid);
            let is_compute = |row: &GpuProcess| row.kind == ProcessType::Compute;
            if !rows.all(is_compute) {
                found.push(format!("it uses GPU {index} for graphics or through MPS"));
            }
            if gpu.mig_mode == Some(true) {
                found.push(format!("GPU {index} is in MIG mode"));
            }
            if gpu.persistence_mode != Some(true) {
                found.push(format!("persistence mode is off on GPU {index} (nvidia-smi -pm 1)"));
            }
            let used = gpu.memory.map(|memory| memory.used_bytes);
            match used.zip(gpu.process_bytes()) {
                Some((used, listed)) if used.saturating_sub(listed) < MANAGED_BYTES => {}
                Some((used, listed)) => found.push(format!(
                    "{} on GPU {index} belong to no process and may be managed memory",
                    Bytes(used.saturating_sub(listed))
                )),
                None => found.push(format!("the memory in use on GPU {index} is not known")),
            }
        }
    }

    fn check_memory(&self, bytes: u64, found: &mut Vec<String>) {
        let is_other = |record: &&ParkRecord| record.process.pid != self.pid;
        let others = || self.records.iter().filter(is_other);
        // Available memory excludes what is parked already, but not what a helper is about to allocate.
        let is_growing = |record: &&ParkRecord| {
            matches!(record.state, ParkState::InProgress | ParkState::Unknown)
        };
        let growing = sum(others().filter(is_growing));
        let needed = (bytes / 10).saturating_add(bytes).saturating_add(growing) + MARGIN_BYTES;
        match read_certain_memory(self.roots, self.pid) {
            Some(available) if available >= needed => {}
            Some(available) => found.push(format!(
                "it needs {} of host memory, and {} are available to it",
                Bytes(needed),
                Bytes(available)
            )),
            None => found.push("the host memory available to it is not known".to_owned()),
        }
        let parked = sum(others().filter(|record| record.state != ParkState::Running));
        if let Some(most) = self.most_bytes.filter(|most| parked.saturating_add(bytes) > *most) {
            found.push(format!(
                "{} would be parked, more than {} (most_memory in [park])",
                Bytes(parked.saturating_add(bytes)),
                Bytes(most)
            ));
        }
    }
}

fn sum<'a>(records: impl Iterator<Item = &'a ParkRecord>) -> u64 {
    records.map(|record| record.process.bytes()).fold(0, u64::saturating_add)
}

fn check_facts(process: &Process, facts: &CheckpointFacts, found: &mut Vec<String>) {
    if facts.tracer != 0 {
        found.push(format!("a debugger ({}) traces it", facts.tracer));
    }
    if let Some(variable) = facts.injection {
        found.push(format!("a profiler is attached ({variable})"));
    }
    let find = |patterns: &[&str]| {
        let is_match = |path: &&String| patterns.iter().any(|part| path.contains(*part));
        facts.mapped.iter().find(is_match)
    };
    let is_plain = matches!(process.framework.as_deref(), None | Some("cuda"));
    if let Some(path) = find(&PROFILERS).or_else(|| find(&[CUPTI]).filter(|_| is_plain)) {
        found.push(format!("a profiler or debugger is loaded ({path})"));
    }
    if let Some(path) = find(&SHARED) {
        found.push(format!("it shares memory with other processes ({path})"));
    }
}

/// Returns whether the environment numbers the ranks of a run with several processes, perhaps on other machines.
fn has_ranks(process: &Process) -> bool {
    let size = |name: &&str| process.environment.as_deref()?.get(*name)?.parse::<u32>().ok();
    RUN_SIZES.iter().filter_map(size).any(|size| size > 1)
}
