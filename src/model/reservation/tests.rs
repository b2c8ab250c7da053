//! Which variables are a claim, and to which GPUs.

use super::*;
use crate::model::snapshot::Memory;
use crate::model::testing::environment;
use crate::model::{GpuProcess, Time};

fn of_job(step: &str, variables: &[(&str, &str)]) -> Process {
    Process {
        pid: 7,
        slurm: Some(Arc::new(Slurm {
            job_id: Some("812".into()),
            step_id: Some(step.into()),
            ..Slurm::default()
        })),
        environment: environment(&[&[("SLURM_JOB_ID", "812")], variables].concat()),
        ..Process::default()
    }
}

fn in_container(variables: &[(&str, &str)]) -> Process {
    Process {
        pid: 7,
        container: Some(Arc::new(Container { id: Some("0123".into()), ..Container::default() })),
        environment: environment(variables),
        ..Process::default()
    }
}

fn given(process: &Process) -> Option<String> {
    let it = Reservation::of(process)?;
    Some(format!("{}={}", it.variable, it.devices.join(",")))
}

#[test]
fn a_job_was_given_what_slurm_counts_for_its_own_node() {
    let both = [("SLURM_JOB_GPUS", "0,1"), ("SLURM_STEP_GPUS", "3")];
    let batch = of_job("batch", &both);
    assert_eq!(given(&batch).as_deref(), Some("SLURM_JOB_GPUS=0,1"));
    // A step may inherit another node's.
    let step = of_job("0", &both);
    assert_eq!(given(&step).as_deref(), Some("SLURM_STEP_GPUS=3"));
    assert_eq!(given(&of_job("0", &both[..1])), None);
    // Relative to the job, or by UUID.
    let visible = |value| of_job("0", &[("CUDA_VISIBLE_DEVICES", value)]);
    assert_eq!(given(&visible("0")), None);
    assert_eq!(given(&visible("GPU-1,GPU-2")).as_deref(), Some("CUDA_VISIBLE_DEVICES=GPU-1,GPU-2"));
    // A copy of another job's environment, and a job that is over.
    let mut other = of_job("batch", &both);
    other.environment = environment(&[("SLURM_JOB_ID", "9"), both[0]]);
    assert_eq!(given(&other), None);
    let mut over = of_job("batch", &both);
    Arc::make_mut(over.slurm.as_mut().unwrap()).over = Some(true);
    assert_eq!(given(&over), None);
    let without_environment = Process { slurm: None, ..of_job("batch", &both) };
    assert_eq!(given(&without_environment), None);
}

#[test]
fn a_container_was_given_what_is_named_one_by_one() {
    let visible = |value| in_container(&[("NVIDIA_VISIBLE_DEVICES", value)]);
    for value in ["0", "0,3", "GPU-1", "MIG-1"] {
        let expected = format!("NVIDIA_VISIBLE_DEVICES={value}");
        assert_eq!(given(&visible(value)), Some(expected));
    }
    for value in ["all", "none", "void", "", "0,all", "nvidia.com/gpu=0", "-1", "99999"] {
        assert_eq!(given(&visible(value)), None, "{value}");
    }
    assert_eq!(given(&in_container(&[("CUDA_VISIBLE_DEVICES", "0")])), None);
    let mut outside = visible("0");
    outside.container = Some(Arc::new(Container::default()));
    assert_eq!(given(&outside), None, "nothing is known of it");
    let mut monitor = visible("0");
    monitor.command = Some(["/usr/bin/dcgm-exporter".into()].into());
    assert_eq!(given(&monitor), None);
    let mut unread = visible("0");
    unread.environment = None;
    assert_eq!(given(&unread), None);
}

fn gpu(index: u32, minor: u32) -> Gpu {
    Gpu {
        index,
        minor_number: Some(minor),
        uuid: Some(format!("GPU-{index}a").into()),
        memory: Some(Memory { used_bytes: 5, ..Memory::default() }),
        gpu_percent: Some(0),
        processes: Some(Vec::new()),
        ..Gpu::default()
    }
}

#[test]
fn a_number_is_a_gpu_where_it_can_mean_but_one() {
    let places = |variable: &str, devices: &[&str], gpus: &[Gpu]| {
        let reservation = Reservation {
            variable: variable.into(),
            devices: devices.iter().map(|it| Arc::from(*it)).collect(),
            ..Reservation::default()
        };
        reservation.places(gpus)
    };
    let straight = [gpu(0, 0), gpu(1, 1)];
    let crossed = [gpu(0, 1), gpu(1, 0)];
    let two = ["1", "0", "1", "7", "MIG-0"];
    assert_eq!(places("SLURM_JOB_GPUS", &two, &straight), [0, 1]);
    assert_eq!(places("SLURM_JOB_GPUS", &two, &crossed), [0; 0]);
    assert_eq!(places("NVIDIA_VISIBLE_DEVICES", &two, &crossed), [0, 1]);
    assert_eq!(places("NVIDIA_VISIBLE_DEVICES", &["GPU-1"], &crossed), [1]);
    assert_eq!(places("NVIDIA_VISIBLE_DEVICES", &["GPU-"], &crossed), [0; 0]);
}

#[test]
fn a_gpu_is_unused_where_no_process_may_be_on_it() {
    let row = |it: &mut Gpu, kind| {
        it.processes = Some(vec![GpuProcess { pid: 7, kind, ..GpuProcess::default() }]);
    };
    type Case<'a> = (&'a str, &'a dyn Fn(&mut Gpu), Option<bool>);
    let changes: [Case<'_>; 9] = [
        ("nothing", &|_| {}, Some(true)),
        ("unknown use", &|it| it.gpu_percent = None, Some(true)),
        ("use", &|it| it.gpu_percent = Some(1), Some(false)),
        ("a process", &|it| row(it, ProcessType::Compute), Some(false)),
        ("a desktop", &|it| row(it, ProcessType::Graphics), Some(true)),
        ("an unread list", &|it| it.processes = None, None),
        ("an old answer", &|it| it.stale_seconds = Some(9.0), None),
        ("unknown memory", &|it| it.memory = None, None),
        ("memory", &|it| it.memory.as_mut().unwrap().used_bytes = GIB, Some(false)),
    ];
    let mut snapshot = Snapshot::new(Time::default());
    for (what, change, expected) in changes {
        let mut gpu = gpu(0, 0);
        change(&mut gpu);
        snapshot.gpus = vec![gpu];
        assert_eq!(snapshot.is_unused(&snapshot.gpus[0]), expected, "{what}");
    }
    let holder = |name: &str| Process {
        pid: 7,
        command: Some([name.into()].into()),
        gpu_files: Some(["/dev/nvidia0".into()].into()),
        ..Process::default()
    };
    snapshot.gpus = vec![gpu(0, 0)];
    for (name, expected) in [("python", false), ("nvidia-smi", true), ("Xorg", true)] {
        snapshot.processes = vec![holder(name)];
        assert_eq!(snapshot.is_unused(&snapshot.gpus[0]), Some(expected), "{name}");
    }
}
