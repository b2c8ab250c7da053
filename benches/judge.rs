//! Cost of the history and the rules: `cargo bench --bench judge`.
//!
//! The benchmark observes simulated machines with 16 GPUs and 1,000 processes for an hour, at one sample per second.
//! The results are the CPU time per sample of the history and of the rules, and the memory of both. For comparison, a
//! loop only adds up the numbers in the snapshot. Then the benchmark reads and judges a recording of 16 processes at
//! full speed. `--quick` runs few rounds, as a smoke test.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout)]

use std::env;
use std::fs;
use std::hint::black_box;
use std::io::Write as _;
use std::process::Command;
use std::sync::Arc;

use gpumem::api::history::History;
use gpumem::api::model::{Gpu, GpuProcess, Memory, Process, Snapshot, Time};
use gpumem::api::rules::{Engine, RuleSet};
use gpumem::api::source::{Replay, Source as _};
use rustix::time::{ClockId, clock_gettime};

/// Environment variable that tells a child process which machine to simulate. Each machine runs in a separate
/// process, so that its memory can be measured.
const MACHINE: &str = "GPUMEM_BENCH_MACHINE";

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;

fn main() {
    let quick = env::args().any(|argument| argument == "--quick");
    if let Ok(machine) = env::var(MACHINE) {
        let numbers: Vec<u32> = machine.split(',').map(|n| n.parse().unwrap()).collect();
        measure(numbers[0], numbers[1], numbers[2]);
        return;
    }
    let hour = if quick { 15 } else { 3600 };
    println!(
        "| 1,000 processes on 16 GPUs | rows | idle | walk | history | rules | rules / walk | memory |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for (gpus_each, idle_percent) in [(1, 0), (1, 10), (16, 0), (16, 10), (16, 100)] {
        let machine = format!("{gpus_each},{idle_percent},{hour}");
        let status =
            Command::new(env::current_exe().unwrap()).env(MACHINE, machine).status().unwrap();
        assert!(status.success());
    }
    replay(if quick { 1_000 } else { 40_000 });
}

fn measure(gpus_each: u32, idle_percent: u32, seconds: u32) {
    let before = resident_mib();
    let mut machine = Machine::new(1_000, gpus_each, idle_percent);
    let machine_mib = resident_mib() - before;
    let mut engine = Engine::new(RuleSet::default());
    for _ in 0..seconds {
        engine.observe(machine.step());
    }
    let held = resident_mib() - before - machine_mib;
    let mut history = History::default();
    for _ in 0..seconds.min(700) {
        history.observe(machine.step());
        engine.observe(&machine.now);
    }
    let rounds = 60;
    let (mut walk, mut observing, mut judging) = (0.0, 0.0, 0.0);
    for _ in 0..rounds {
        machine.step();
        walk += cpu_seconds(|| _ = black_box(add_up(&machine.now)));
        observing += cpu_seconds(|| _ = black_box(history.observe(&machine.now)));
        judging += cpu_seconds(|| engine.observe(&machine.now));
    }
    let rules = judging - observing;
    let milliseconds = |seconds: f64| seconds / f64::from(rounds) * 1e3;
    println!(
        "| {} findings | {} | {idle_percent} % | {:.3} ms | {:.3} ms | {:.3} ms | {:.1} | {held:.1} MiB |",
        engine.findings().len(),
        1_000 * gpus_each,
        milliseconds(walk),
        milliseconds(observing),
        milliseconds(rules),
        rules / walk,
    );
}

/// Reads every row, which is the minimum work of a rule.
fn add_up(snapshot: &Snapshot) -> u64 {
    let rows = snapshot.gpus.iter().flat_map(|gpu| gpu.processes.iter().flatten());
    rows.map(|row| row.used_bytes.unwrap_or(0) + u64::from(row.sm_percent.unwrap_or(0)))
        .fold(0, u64::wrapping_add)
}

/// A machine with processes that train, leak or are idle.
struct Machine {
    now: Snapshot,
    ticks: u64,
    idle_percent: u32,
}

impl Machine {
    fn new(processes: u32, gpus_each: u32, idle_percent: u32) -> Self {
        let mut now = Snapshot::new(Time::from_unix_milliseconds(1_763_706_000_000));
        now.host.boot_id = Some("a".into());
        now.host.pid_namespace = Some(gpumem::api::model::PidNamespace::Host);
        now.gpus = (0..16)
            .map(|index| Gpu {
                index,
                minor_number: Some(index),
                uuid: Some(format!("GPU-{index}").into()),
                memory: Some(Memory {
                    total_bytes: 20_000 * GIB,
                    reserved_bytes: Some(GIB),
                    used_bytes: 8_000 * GIB,
                    free_bytes: 11_999 * GIB,
                }),
                power_watts: Some(400.0),
                power_limit_watts: Some(700.0),
                gpu_percent: Some(97),
                memory_percent: Some(40),
                processes: Some(Vec::new()),
                ..Gpu::default()
            })
            .collect();
        for pid in 1..=processes {
            let command: Arc<[Arc<str>]> = ["python".into(), "train.py".into()].into();
            now.processes.push(Process {
                pid,
                start_ticks: Some(u64::from(pid) * 100),
                start_time: Some(now.time.plus_seconds(-86_400.0)),
                state: Some('S'),
                ppid: Some(1_000_000),
                parent_is_reaper: Some(false),
                group_leader_alive: Some(true),
                command: Some(command),
                user: Some("ann".into()),
                listening: Some(false),
                cpu_percent: Some(0.0),
                cpu_seconds: Some(1000.0),
                ..Process::default()
            });
            for gpu in 0..gpus_each {
                let gpu = &mut now.gpus[((pid + gpu) % 16) as usize];
                gpu.processes.get_or_insert_default().push(GpuProcess {
                    pid,
                    used_bytes: Some(8 * GIB),
                    ..GpuProcess::default()
                });
            }
        }
        Self { now, ticks: 0, idle_percent }
    }

    fn step(&mut self) -> &Snapshot {
        self.ticks += 1;
        self.now.time = self.now.time.plus_seconds(1.0);
        let idle = |pid: u32| pid % 100 < self.idle_percent;
        for gpu in &mut self.now.gpus {
            for row in gpu.processes.iter_mut().flatten() {
                let percent =
                    if idle(row.pid) { 0 } else { 1 + (row.pid + self.ticks as u32) % 90 };
                row.sm_percent = Some(percent);
                row.memory_percent = Some(percent / 2);
                // Of every 20 processes, one leaks, one grows and shrinks, and one varies pseudo-randomly.
                let moved = match row.pid % 20 {
                    19 => self.ticks / 10 * MIB,
                    18 => self.ticks % 300 * 4 * MIB,
                    17 => ((self.ticks * 2_654_435_761) >> 7) % 512 * MIB,
                    _ => 0,
                };
                row.used_bytes = Some(8 * GIB + moved);
            }
        }
        for process in &mut self.now.processes {
            let percent = if idle(process.pid) { 0.0 } else { 95.0 };
            process.cpu_percent = Some(percent);
            process.cpu_seconds = process.cpu_seconds.map(|total| total + percent / 100.0);
        }
        &self.now
    }
}

/// Reads and judges a recording of 16 processes on 4 GPUs.
fn replay(snapshots: u32) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("recording.jsonl");
    let mut file = std::io::BufWriter::new(fs::File::create(&path).unwrap());
    let mut machine = Machine::new(16, 1, 10);
    machine.now.gpus.truncate(4);
    for gpu in &mut machine.now.gpus {
        gpu.processes.get_or_insert_default().clear();
    }
    for pid in 1..=16_u32 {
        let gpu = &mut machine.now.gpus[(pid % 4) as usize];
        gpu.processes.get_or_insert_default().push(GpuProcess {
            pid,
            used_bytes: Some(8 * GIB),
            ..GpuProcess::default()
        });
    }
    for _ in 0..snapshots {
        serde_json::to_writer(&mut file, machine.step()).unwrap();
        file.write_all(b"\n").unwrap();
    }
    file.flush().unwrap();
    drop(file);
    let bytes = fs::metadata(&path).unwrap().len();
    let lines = wall_seconds(|| {
        let text = fs::read(&path).unwrap();
        black_box(text.iter().filter(|byte| **byte == b'\n').count());
    });
    let read = wall_seconds(|| {
        let mut replay = Replay::open(&path).unwrap();
        while let Some(snapshot) = replay.next().unwrap() {
            black_box(snapshot);
        }
    });
    let judged = wall_seconds(|| {
        let mut replay = Replay::open(&path).unwrap();
        let mut engine = Engine::new(RuleSet::default());
        while let Some(snapshot) = replay.next().unwrap() {
            engine.observe(&snapshot);
        }
    });
    let check = wall_seconds(|| {
        let status = Command::new(env!("CARGO_BIN_EXE_gpumem"))
            .args(["check", "--quiet", "--replay"])
            .arg(&path)
            .status()
            .unwrap();
        assert!(status.code().is_some_and(|code| code <= 1), "{status}");
    });
    let rate = |seconds: f64| f64::from(snapshots) / seconds;
    println!();
    println!(
        "A recording of 16 processes, {:.1} KiB per snapshot: read {:.0}/s, read and judged {:.0}/s, `check --replay` {:.0}/s; only its bytes read {:.0}/s.",
        bytes as f64 / f64::from(snapshots) / 1024.0,
        rate(read),
        rate(judged),
        rate(check),
        rate(lines)
    );
}

fn cpu_seconds(work: impl FnOnce()) -> f64 {
    let now = || {
        let time = clock_gettime(ClockId::ProcessCPUTime);
        time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
    };
    let before = now();
    work();
    now() - before
}

fn wall_seconds(work: impl FnOnce()) -> f64 {
    let before = std::time::Instant::now();
    work();
    before.elapsed().as_secs_f64()
}

fn resident_mib() -> f64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib: f64 = line.unwrap().trim().trim_end_matches(" kB").parse().unwrap();
    kib / 1024.0
}
