//! `ps` as text: what is listed, what is not, and what is not known.

use std::sync::Arc;

use super::*;
use crate::model::snapshot::{Claim, Memory};
use crate::model::{Gpu, GpuProcess, Process};
use crate::units::{GIB, MIB};

fn memory(total_gib: u64, used_bytes: u64) -> Memory {
    let reserved = 512 * MIB;
    Memory {
        total_bytes: total_gib * GIB,
        reserved_bytes: Some(reserved),
        used_bytes,
        free_bytes: total_gib * GIB - reserved - used_bytes,
    }
}

fn row(pid: u32, used_bytes: Option<u64>) -> GpuProcess {
    GpuProcess { pid, used_bytes, ..GpuProcess::default() }
}

fn process(pid: u32, command: &str) -> Process {
    Process {
        pid,
        start_ticks: Some(7),
        user: Some("ann".into()),
        state: Some('S'),
        command: Some(command.split(' ').map(Arc::from).collect()),
        ..Process::default()
    }
}

fn gpu(index: u32, used_bytes: u64, rows: Vec<GpuProcess>) -> Gpu {
    Gpu {
        index,
        name: Some("NVIDIA H100 80GB HBM3".into()),
        minor_number: Some(index),
        memory: Some(memory(80, used_bytes)),
        processes: Some(rows),
        ..Gpu::default()
    }
}

fn snapshot(gpus: Vec<Gpu>, processes: Vec<Process>) -> Snapshot {
    Snapshot { gpus, processes, ..Snapshot::new("2026-11-21T10:04:05Z".parse().unwrap()) }
}

const OPTIONS: ProcessesOptions = ProcessesOptions {
    sort: Field::Gpu,
    width: None,
    style: Style { color: false },
    everyone: true,
};

fn text(snapshot: &Snapshot, width: Option<usize>) -> String {
    write(snapshot, RuleResults::default(), ProcessesOptions { width, ..OPTIONS })
}

/// The process table and what follows it.
fn below_gpus(snapshot: &Snapshot, width: Option<usize>) -> String {
    let text = text(snapshot, width);
    text.splitn(3, "\n\n").nth(2).unwrap().to_owned()
}

#[test]
fn a_hidden_holder_is_a_row_with_its_evidence() {
    let mut holder = process(900, "python worker.py");
    let files = ["/dev/nvidia-uvm", "/dev/nvidia1", "/dev/nvidia0"];
    holder.gpu_files = Some(files.iter().map(|&file| file.into()).collect());
    let mut snapshot = snapshot(
        vec![gpu(0, 20 * GIB, vec![row(800, Some(5 * GIB))]), gpu(1, 0, Vec::new())],
        vec![process(800, "python train.py"), holder],
    );
    snapshot.host.unread_processes = Some(312);
    assert_eq!(
        below_gpus(&snapshot, None),
        "GPU  PID  USER   MEMORY  SM%  CPU TIME  HOST MEM  STATE     RUNTIME  COMMAND
  0  800  ann   5.0 GiB    -         -         -  sleeping        -  python train.py
0-1  900  ann         -    -         -         -  sleeping        -  [holds /dev/nvidia1, /dev/nvidia0, not listed by NVML] python worker.py

GPU 0: 15.0 GiB are in use by no process that NVML lists.
312 processes' files could not be read; only root on the host can see hidden holders.
"
    );
    // From some users' processes it does not follow what no process holds.
    let options = ProcessesOptions { sort: Field::Pid, everyone: false, ..OPTIONS };
    let some = write(&snapshot, RuleResults::default(), options);
    assert!(!some.contains("are in use by no process"));
}

#[test]
fn what_is_not_known_is_neither_none_nor_zero() {
    let mut unread = gpu(0, 20 * GIB, Vec::new());
    unread.processes = None;
    let mut snapshot = snapshot(vec![unread, gpu(1, GIB, vec![row(7, None)])], Vec::new());
    let below = below_gpus(&snapshot, None);
    assert!(
        below.ends_with(
            "  1    7  -          -    -         -         -  -            -  (not looked up)\n"
        ),
        "{below}"
    );
    snapshot.gpus.truncate(1);
    let below = below_gpus(&snapshot, None);
    assert!(below.starts_with("The processes could not be listed: GPU 0.\n"));
    snapshot.gpus[0].processes = Some(Vec::new());
    assert!(below_gpus(&snapshot, None).starts_with("No process holds GPU memory.\n"));
}

#[test]
fn the_first_line_says_where_memory_is_free_to_take() {
    let gpus = (0..16).map(|at| gpu(at, u64::from(at) * GIB, Vec::new())).collect();
    let mut snapshot = snapshot(gpus, Vec::new());
    snapshot.gpus[1].memory_limit_free_bytes = Some(GIB);
    snapshot.gpus[2].stale_seconds = Some(30.0);
    snapshot.gpus[3].claim = Some(Claim::default());
    let first = |width| text(&snapshot, width).lines().next().unwrap().to_owned();
    assert_eq!(first(Some(60)), "Free: GPU 0 79.5 GiB, GPU 4 75.5 GiB, GPU 5 74.5 GiB, …");
    assert!(first(None).ends_with(", GPU 15 64.5 GiB, GPU 1 1.0 GiB"), "{}", first(None));
}
