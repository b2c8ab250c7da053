//! Decides whether a process can be parked. Anything unknown is a reason not to.
//!
//! The driver detects most obstacles late or not at all, and can then lose the process's CUDA state. The plan and the
//! helper perform the same checks, the helper immediately before the first call.

use std::fs;

use super::ParkSettings;
use super::journal::{ParkRecord, ParkedGpu};
use crate::host::{
    Roots, read_certain_memory, read_checkpoint_facts, read_mps_daemons, read_rights,
};
use crate::model::family::{families, member};
use crate::model::process::ParkState;
use crate::model::snapshot::ProcessType;
use crate::model::{Gpu, GpuProcess, Process, Snapshot};
use crate::rules::serves;
use crate::units::{Bytes, GIB, MIB};

/// First driver with the checkpoint functions.
const FIRST_DRIVER: u32 = 570;
/// Amount of unattributed memory at or above which it may be managed memory, which cannot be parked.
const MANAGED_BYTES: u64 = 256 * MIB;
/// Host memory that must remain available after parking.
const MARGIN_BYTES: u64 = GIB;
/// Parts of the paths of mapped files that show a profiler or debugger.
const PROFILERS: [&str; 4] =
    ["libToolsInjection", "libTreeLauncher", "libcudadebugger", "cuda-gdb"];
/// Environment variables that make the driver load a profiler or debugger into a CUDA program.
const INJECTIONS: [&str; 2] = ["CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH"];
/// The profiling interface. PyTorch, JAX and TensorFlow load it without using it.
const CUPTI: &str = "/libcupti.so";
/// Parts of the paths of mapped files that processes of one job share.
const SHARED: [&str; 4] = ["/dev/shm/nccl-", "/dev/shm/cuda.shm", "/dev/shm/torch_", "/memfd:cuda"];
/// Environment variables that contain the number of processes of a distributed run.
const RUN_SIZES: [&str; 4] =
    ["WORLD_SIZE", "LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS"];
/// Devices that exist only in confidential virtual machines. Confidential computing on a GPU requires such a virtual
/// machine.
const CONFIDENTIAL: [&str; 3] = ["sev-guest", "tdx_guest", "tdx-guest"];

/// Returns the reasons why a process cannot be parked, or an empty list if it can. If `is_ending` is set, the process
/// may be working.
pub fn find_obstacles(
    settings: &ParkSettings,
    snapshot: &Snapshot,
    pid: u32,
    is_ending: bool,
) -> Vec<String> {
    let records = settings.journals.read().into_iter();
    let records = records.map(|record| record.corrected(snapshot)).collect();
    let check = ParkCheck {
        roots: Roots::default(),
        snapshot,
        pid,
        records,
        most_bytes: settings.most_bytes,
    };
    let mut found = check.obstacles();
    found.extend(work(pid, snapshot).filter(|_| !is_ending));
    found
}

struct ParkCheck<'a> {
    roots: Roots,
    snapshot: &'a Snapshot,
    pid: u32,
    /// All records, which show what other processes hold in host memory.
    records: Vec<ParkRecord>,
    most_bytes: Option<u64>,
}

fn rows(pid: u32, snapshot: &Snapshot) -> impl Iterator<Item = (&Gpu, &GpuProcess)> {
    let gpus = snapshot.gpus.iter();
    let all = gpus.flat_map(|gpu| gpu.processes.iter().flatten().map(move |row| (gpu, row)));
    all.filter(move |(_, row)| row.pid == pid)
}

/// Returns the memory of a process on each GPU, according to NVML, or `None` if a value or UUID is unknown.
pub fn held(pid: u32, snapshot: &Snapshot) -> Option<Vec<ParkedGpu>> {
    let is_read = |gpu: &Gpu| gpu.processes.is_some() && gpu.stale_seconds.is_none();
    let mut found: Vec<ParkedGpu> = Vec::new();
    for (gpu, row) in rows(pid, snapshot).filter(|_| snapshot.gpus.iter().all(is_read)) {
        let (index, uuid, bytes) = (gpu.index, gpu.uuid.clone()?, row.used_bytes?);
        match found.iter_mut().find(|held| held.index == index) {
            Some(held) => held.bytes = held.bytes.checked_add(bytes)?,
            None => found.push(ParkedGpu { index, uuid, bytes }),
        }
    }
    snapshot.gpus.iter().all(is_read).then_some(found)
}

/// Returns evidence that a process is working or may be working, according to NVML and its notebook server. Returns
/// `None` if it is idle.
pub fn work(pid: u32, snapshot: &Snapshot) -> Option<String> {
    for (gpu, row) in rows(pid, snapshot) {
        let engines = [row.sm_percent, row.encoder_percent, row.decoder_percent];
        let index = gpu.index;
        if let Some(percent @ 1..) = engines.into_iter().flatten().max() {
            return Some(format!("it works on GPU {index} ({percent}%)"));
        }
        // If NVML reports no value for the process, an idle GPU proves that the process is idle.
        if row.sm_percent.or(gpu.gpu_percent) != Some(0) {
            return Some(format!("NVML does not report whether it works on GPU {index}"));
        }
    }
    let jupyter = snapshot.process(pid).and_then(|process| process.jupyter.as_deref());
    let is_busy = jupyter.is_some_and(|jupyter| jupyter.execution_state.as_deref() == Some("busy"));
    is_busy.then(|| "its notebook is running a cell".to_owned())
}

fn has_functions(snapshot: &Snapshot) -> bool {
    let version = snapshot.driver.version.as_deref().unwrap_or_default();
    let major = version.split('.').next().and_then(|major| major.parse::<u32>().ok());
    major.is_some_and(|major| major >= FIRST_DRIVER)
}

/// Returns whether to suggest `gpumem park`. The process must be a notebook kernel, and the snapshot must not show a
/// permanent obstacle.
pub fn is_suggested(process: &Process, snapshot: &Snapshot) -> bool {
    let can_hold = |(gpu, row): (&Gpu, &GpuProcess)| {
        gpu.mig_mode != Some(true) && row.kind == ProcessType::Compute
    };
    cfg!(target_arch = "x86_64")
        && has_functions(snapshot)
        && process.jupyter.is_some()
        && process.namespace_pid.is_none()
        && process.parked().is_none()
        && rows(process.pid, snapshot).all(can_hold)
}

impl ParkCheck<'_> {
    fn obstacles(&self) -> Vec<String> {
        let Some(process) = self.snapshot.process(self.pid) else {
            return vec!["NVML lists no such process".to_owned()];
        };
        let found = [self.machine(), self.process(process), self.mappings(process)];
        let mut found: Vec<String> = found.into_iter().flatten().collect();
        match held(self.pid, self.snapshot).filter(|held| !held.is_empty()) {
            Some(held) => {
                found.extend(self.gpus(&held));
                found.extend(self.memory(held.iter().map(|gpu| gpu.bytes).sum()));
            }
            None => found.push("NVML does not report its memory".to_owned()),
        }
        found
    }

    fn machine(&self) -> Vec<String> {
        let daemons = read_mps_daemons(&self.roots.proc);
        let uses_mps = daemons.as_ref().is_some_and(|mps| mps.controls + mps.servers > 0);
        reasons([
            (!has_functions(self.snapshot), "parking requires driver 570 or newer"),
            (cfg!(not(target_arch = "x86_64")), "parking works only on x86-64"),
            (
                CONFIDENTIAL.iter().any(|device| self.roots.dev.join(device).exists()),
                "the machine uses confidential computing",
            ),
            (uses_mps, "the machine uses MPS, whose clients cannot be parked"),
            (daemons.is_none(), "it is unknown whether the machine uses MPS"),
        ])
    }

    fn process(&self, process: &Process) -> Vec<String> {
        let is_own = process.uid == Some(rustix::process::geteuid().as_raw());
        let may_trace = || read_rights(&self.roots.proc).can_trace == Some(true);
        let state = process.live_state();
        // Without cgroup v2, the kernel does not report whether a cgroup is frozen.
        let cgroups = self.roots.root.join("sys/fs/cgroup/cgroup.controllers");
        let may_be_frozen = process.cgroup.is_some() && process.frozen.is_none();
        let mut records = self.records.iter();
        let record = records.find(|record| record.identity() == process.identity());
        let record = record.map(ParkRecord::state);
        let families = families(self.snapshot);
        // Locking one process of a job makes CUDA calls of the others hang.
        let members = member(&families, process.pid).map(|family| family.members.len());
        reasons([
            (!is_own && !may_trace(), "it belongs to another user; that requires root"),
            (process.namespace_pid.is_some(), "it runs in another pid namespace (a container)"),
            (state == Some('T'), "it is stopped or frozen"),
            (state == Some('t'), "a debugger has stopped it"),
            (state == Some('D'), "it is blocked in the kernel"),
            (
                !matches!(state, Some('R' | 'S' | 'I' | 'T' | 't' | 'D')),
                "it has exited, or its state is unknown",
            ),
            (
                may_be_frozen && fs::exists(cgroups).unwrap_or(true),
                "it is unknown whether its cgroup is frozen",
            ),
            (serves(process, self.snapshot), "it is or may be a server, whose clients would wait"),
            (record == Some(ParkState::Parked), "it is parked already"),
            (record == Some(ParkState::Lost), "its CUDA state is lost"),
            (record == Some(ParkState::InProgress), "a helper is parking or unparking it"),
            (
                matches!(record, Some(ParkState::Locked | ParkState::Unknown)),
                "an earlier park was interrupted; run `gpumem unpark` first",
            ),
            (members.is_none(), "its job is unknown"),
            (members.is_some_and(|count| count > 1), "its job has other GPU processes"),
            (has_ranks(process), "it is a rank of a distributed run"),
        ])
    }

    fn mappings(&self, process: &Process) -> Vec<String> {
        let facts = read_checkpoint_facts(&self.roots, self.pid);
        let Some(((tracer, mapped), environment)) = facts.zip(process.environment.as_deref())
        else {
            return vec!["its memory map and environment cannot be read".to_owned()];
        };
        let find = |patterns: &[&str]| {
            let is_match = |path: &&String| patterns.iter().any(|part| path.contains(*part));
            mapped.iter().find(is_match)
        };
        let is_plain = matches!(process.framework.as_deref(), None | Some("cuda"));
        let profiler = find(&PROFILERS).or_else(|| find(&[CUPTI]).filter(|_| is_plain));
        let mut found = reasons([
            (tracer != 0, "a debugger traces it"),
            (
                INJECTIONS.iter().any(|name| environment.contains_key(*name)),
                "a profiler is attached",
            ),
        ]);
        found.extend(profiler.map(|path| format!("a profiler or debugger is loaded ({path})")));
        let shared = find(&SHARED);
        found.extend(shared.map(|path| format!("it shares memory with other processes ({path})")));
        found
    }

    fn gpus(&self, held: &[ParkedGpu]) -> Vec<String> {
        let is_held = |gpu: &&Gpu| held.iter().any(|held| held.index == gpu.index);
        let check = |gpu: &Gpu| -> Vec<String> {
            let mut rows = gpu.processes.iter().flatten().filter(|row| row.pid == self.pid);
            let used = gpu.memory.map(|memory| memory.used_bytes).zip(gpu.process_bytes());
            let unattributed = used.map(|(used, listed)| used.saturating_sub(listed));
            let found = reasons([
                (
                    !rows.all(|row| row.kind == ProcessType::Compute),
                    "it uses the GPU for graphics or through MPS",
                ),
                (gpu.mig_mode == Some(true), "it is in MIG mode"),
                (gpu.persistence_mode != Some(true), "persistence mode is off (nvidia-smi -pm 1)"),
                (unattributed.is_none(), "the memory in use is not known"),
                (
                    unattributed.is_some_and(|bytes| bytes >= MANAGED_BYTES),
                    "memory in use that belongs to no process may be managed memory",
                ),
            ]);
            found.into_iter().map(|reason| format!("GPU {}: {reason}", gpu.index)).collect()
        };
        self.snapshot.gpus.iter().filter(is_held).flat_map(check).collect()
    }

    fn memory(&self, bytes: u64) -> Vec<String> {
        let sum = |is_counted: fn(ParkState) -> bool| {
            let others = self.records.iter().filter(|record| record.process.pid != self.pid);
            let counted = others.filter(|record| is_counted(record.state()));
            counted.map(|record| record.process.bytes).fold(0, u64::saturating_add)
        };
        // Available memory excludes what is parked already, but not what a helper is about to allocate.
        let growing = sum(|state| matches!(state, ParkState::InProgress | ParkState::Unknown));
        let needed = (bytes / 10).saturating_add(bytes).saturating_add(growing) + MARGIN_BYTES;
        let mut found = Vec::new();
        match read_certain_memory(&self.roots, self.pid) {
            Some(available) if available >= needed => {}
            Some(available) => found.push(format!(
                "it needs {} of host memory, and {} are available to it",
                Bytes(needed),
                Bytes(available)
            )),
            None => found.push("the host memory available to it is not known".to_owned()),
        }
        let total = sum(|state| state != ParkState::Running).saturating_add(bytes);
        if let Some(most) = self.most_bytes.filter(|most| total > *most) {
            let (total, most) = (Bytes(total), Bytes(most));
            let limit = "most_memory in [park]";
            found.push(format!("{total} would be parked, more than {most} ({limit})"));
        }
        found
    }
}

/// Returns the reasons that apply.
fn reasons<const N: usize>(table: [(bool, &str); N]) -> Vec<String> {
    let applies = table.into_iter().filter(|(applies, _)| *applies);
    applies.map(|(_, reason)| reason.to_owned()).collect()
}

/// Returns whether the environment shows a run of several processes, perhaps on other machines.
fn has_ranks(process: &Process) -> bool {
    let size = |name: &&str| process.environment.as_deref()?.get(*name)?.parse::<u32>().ok();
    RUN_SIZES.iter().filter_map(size).any(|size| size > 1)
}
