//! `ps` as text: what is listed, what is not, and what is not known.

use std::sync::Arc;

use super::*;
use crate::model::finding::FindingProcess;
use crate::model::snapshot::{Container, Jupyter, Memory, MigDevice, Slurm};
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
312 processes' files could not be read; to see hidden holders takes root on the host.
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
fn a_reason_is_given_once_and_its_figures_are_not_available() {
    let bare = |index| Gpu {
        memory: None,
        memory_unavailable: Some("it shares the machine's memory\n".into()),
        ..gpu(index, 0, Vec::new())
    };
    let driver_lists = gpu(2, GIB, vec![row(7, None)]);
    let wsl = Gpu { process_memory_unavailable: Some("Windows keeps it".into()), ..driver_lists };
    let text = text(&snapshot(vec![bare(0), bare(1), wsl], Vec::new()), None);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(
        lines[3],
        "  0  NVIDIA H100 80GB HBM3       n/a      n/a       n/a   n/a     -     -      -      -  -"
    );
    assert!(lines.contains(&"GPUs 0, 1: memory n/a: it shares the machine's memory\\n."));
    assert!(lines.contains(&"GPU 2: memory of processes n/a: Windows keeps it."));
    let row = lines.iter().find(|line| line.contains("(not looked up)"));
    assert!(row.is_some_and(|row| row.contains("  n/a  ")), "{text}");
}

#[test]
fn a_mig_device_is_a_row_and_its_processes_name_it() {
    let on = |row: GpuProcess, instance| GpuProcess {
        gpu_instance_id: Some(instance),
        compute_instance_id: Some(0),
        ..row
    };
    let rows =
        vec![on(row(8, Some(2 * GIB)), 9), on(row(7, Some(GIB)), 7), on(row(9, Some(GIB)), 13)];
    let mut divided = gpu(0, 5 * GIB, rows);
    divided.mig_mode = Some(true);
    divided.mig_devices = [(0, 7, 1), (2, 9, 2)]
        .map(|(index, instance, used)| MigDevice {
            index: Some(index),
            gpu_instance_id: Some(instance),
            compute_instance_id: Some(0),
            uuid: None,
            profile: Some("1g.10gb".into()),
            memory: Some(memory(10, used * GIB)),
        })
        .to_vec();
    let processes = [7, 8, 9].map(|pid| process(pid, "python train.py"));
    let text = text(&snapshot(vec![divided], processes.to_vec()), Some(80));
    assert_eq!(
        text,
        "Free: GPU 0 74.5 GiB

GPU  NAME                       FREE     USED     TOTAL  UTIL  TEMP  POWER
  0  NVIDIA H100 80GB HBM3  74.5 GiB  5.0 GiB  80.0 GiB     -     -      -
0:0  MIG 1g.10gb             8.5 GiB  1.0 GiB  10.0 GiB
0:2  MIG 1g.10gb             7.5 GiB  2.0 GiB  10.0 GiB

       GPU  PID  USER   MEMORY  SM%  STATE     RUNTIME  COMMAND
       0:0    7  ann   1.0 GiB    -  sleeping        -  python train.py
       0:2    8  ann   2.0 GiB    -  sleeping        -  python train.py
0:gi13/ci0    9  ann   1.0 GiB    -  sleeping        -  python train.py
"
    );
}

#[test]
fn places_frameworks_and_both_pids_are_shown_and_escaped() {
    let mut pod = process(4242, "python train.py");
    pod.namespace_pid = Some(17);
    pod.framework = Some("pytorch".into());
    pod.framework_version = Some("2.9.1".into());
    pod.container = Some(
        Container {
            runtime: Some("docker".into()),
            name: Some("be\u{1b}rt".into()),
            ..Container::default()
        }
        .into(),
    );
    let mut job = process(7, "python eval.py");
    job.slurm = Some(Slurm { job_id: Some("812".into()), ..Slurm::default() }.into());
    let rows = vec![row(4242, Some(2 * GIB)), row(7, Some(GIB))];
    let snapshot = snapshot(vec![gpu(0, 3 * GIB, rows)], vec![job, pod]);
    let wide = below_gpus(&snapshot, None);
    assert!(wide.contains("  0  4242 (17)  ann   2.0 GiB"), "{wide}");
    assert!(wide.contains("  pytorch 2.9.1  docker:be\\ert  python train.py\n"), "{wide}");
    assert!(wide.contains("  job:812        python eval.py\n"), "{wide}");
}

#[test]
fn a_suspect_is_marked_on_its_gpu_and_a_finding_is_before_it() {
    let mut snapshot = snapshot(
        vec![
            gpu(0, 20 * GIB, vec![row(7, Some(GIB))]),
            gpu(1, 20 * GIB, vec![row(7, Some(GIB)), row(8, Some(GIB))]),
        ],
        vec![process(7, "python a.py"), process(8, "python b.py")],
    );
    let suspect = Suspect {
        process: FindingProcess { identity: snapshot.processes[0].identity(), ..suspect().process },
        ..suspect()
    };
    let suspects = [suspect];
    let results = RuleResults {
        suspects: &suspects,
        headline: Some("nothing to reclaim yet"),
        ..RuleResults::default()
    };
    let text = write(&snapshot, results, OPTIONS);
    let head = "Free: GPU 0 59.5 GiB, GPU 1 59.5 GiB; looks unused: 1.0 GiB, ann's 7\nnothing to reclaim yet\n\nGPU";
    assert!(text.starts_with(head), "{text}");
    let marked: Vec<&str> = text.lines().filter(|line| line.contains("idle? ")).collect();
    let [marked] = marked[..] else { panic!("{text}") };
    assert!(marked.trim_start().starts_with('0') && marked.contains("idle? 12s of 10m"));
    // Another process of the same number is no suspect.
    snapshot.processes[0].start_ticks = Some(8);
    assert!(!write(&snapshot, results, OPTIONS).contains("idle?"));
    snapshot.processes[0].start_ticks = Some(7);
    let row = ProcessRow::new(&snapshot, &[], places(&snapshot, &[])[0]);
    let named = row.suspected(|_| Some(&suspects[0]));
    assert!(named.suspect.is_some() && named.finding.is_none());
}

#[test]
fn the_first_line_says_where_memory_is_free_and_what_of_that_fits() {
    let gpus = (0..16).map(|at| gpu(at, u64::from(at) * GIB, Vec::new())).collect();
    let mut snapshot = snapshot(gpus, Vec::new());
    snapshot.gpus[15].memory_limit_free_bytes = Some(80 * GIB);
    snapshot.gpus[1].memory_limit_free_bytes = Some(GIB);
    snapshot.gpus[2].stale_seconds = Some(30.0);
    let first = |width| text(&snapshot, width).lines().next().unwrap().to_owned();
    assert_eq!(first(Some(60)), "Free: GPU 0 79.5 GiB, GPU 3 76.5 GiB, GPU 4 75.5 GiB, …");
    assert!(first(None).ends_with(", GPU 15 64.5 GiB, GPU 1 1.0 GiB"), "{}", first(None));
    assert!(!first(None).contains("GPU 2 "));
}

/// One on GPU 0, of whichever process.
fn suspect() -> Suspect {
    use crate::history::testing::Scene;
    use crate::rules::{Engine, RuleSet};
    let mut scene = Scene::new(1, 12.0);
    scene.holder(7, &[0], GIB);
    let mut engine = Engine::new(RuleSet::default());
    scene.play(12.0, |snapshot| engine.observe(snapshot));
    engine.suspects()[0].clone()
}

#[test]
fn a_narrow_terminal_shows_the_script_and_not_the_folder_of_python() {
    let mut kernel = process(8, "/home/ben/.venvs/thesis/bin/python3 -m ipykernel_launcher");
    kernel.jupyter = Some(Arc::new(Jupyter {
        notebook_path: Some("thesis/fine-tune.ipynb".into()),
        ..Jupyter::default()
    }));
    let snapshot = snapshot(
        vec![gpu(0, GIB, vec![row(7, Some(GIB)), row(8, Some(GIB))])],
        vec![process(7, "/home/ann/miniforge3/envs/llm/bin/python -u pretrain.py --bf16"), kernel],
    );
    let narrow = below_gpus(&snapshot, Some(80));
    assert!(narrow.contains("  python -u pretrain.p"), "{narrow}");
    assert!(narrow.contains("  thesis/fine-tune.ip"), "{narrow}");
    // What is not for a terminal is whole.
    let whole = below_gpus(&snapshot, None);
    assert!(whole.contains("/llm/bin/python -u pretrain.py --bf16\n"), "{whole}");
    assert!(whole.contains("[notebook thesis/fine-tune.ipynb] /home/ben/"), "{whole}");
}
