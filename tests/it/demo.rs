//! Makes the demo that `--demo` plays, and holds the bundled file to it.
//!
//! The machine, its people and their work do not exist. All of it follows from a seed, so the file
//! can be made again at any time: `GPUMEM_BLESS=1 cargo test --test it demo`.

use std::collections::HashSet;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use gpumem::api::model::{
    Driver, Gpu, GpuProcess, Host, Jupyter, Memory, PidNamespace, Process, ProcessType, ReadError,
    Slurm, Snapshot, Time,
};
use gpumem::api::units::MIB;

/// 2026-11-20T13:35:00Z, when the recording begins.
const BEGIN: Time = Time::from_unix_milliseconds(1_795_181_700_000);
/// How long the machine had been up by then.
const UPTIME_SECONDS: f64 = 1_672_433.0;
/// Seconds after the beginning at which the demo stops being history: `Replay::demo` plays the rest
/// in real time.
const LIVE: f64 = 1500.0;
const END: f64 = 2400.0;
const MINUTE: f64 = 60.0;
/// What a GPU uses beside its processes.
const OVERHEAD_MIB: u64 = 9;

/// SplitMix64: a few lines, and the same everywhere.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A whole number from `low` to `high`, both included.
    fn whole(&mut self, low: u32, high: u32) -> u32 {
        low + (self.next() % u64::from(high - low + 1)) as u32
    }

    /// `mean` give or take `spread`, with one digit after the point.
    fn around(&mut self, mean: f64, spread: f64) -> f64 {
        let unit = (self.next() % 2001) as f64 / 1000.0 - 1.0;
        tenths(mean + spread * unit)
    }
}

fn tenths(number: f64) -> f64 {
    (number * 10.0).round() / 10.0
}

struct Card {
    name: &'static str,
    uuid: &'static str,
    bus: &'static str,
    total_mib: u64,
    reserved_mib: u64,
    idle_watts: f64,
    /// Drawn at full use, beyond `idle_watts`.
    work_watts: f64,
    limit_watts: f64,
    clock_mhz: u32,
    mig_mode: Option<bool>,
}

const CARDS: [Card; 4] = [
    h100("GPU-7d1c2c5e-9a40-4b83-8b19-3f0e6a1d52c7", "00000000:1B:00.0"),
    h100("GPU-e28f7b90-51d6-4c0f-a6a5-0c94d7be1168", "00000000:43:00.0"),
    l40s("GPU-0b6ad3f4-27ce-4e11-93f8-c5d0418a7e29", "00000000:9D:00.0"),
    l40s("GPU-94c35a1f-68b2-4d7a-b0e3-17f25c9d8a06", "00000000:D1:00.0"),
];

const fn h100(uuid: &'static str, bus: &'static str) -> Card {
    Card {
        name: "NVIDIA H100 80GB HBM3",
        uuid,
        bus,
        total_mib: 81_559,
        reserved_mib: 551,
        idle_watts: 72.0,
        work_watts: 545.0,
        limit_watts: 700.0,
        clock_mhz: 1980,
        mig_mode: Some(false),
    }
}

const fn l40s(uuid: &'static str, bus: &'static str) -> Card {
    Card {
        name: "NVIDIA L40S",
        uuid,
        bus,
        total_mib: 46_068,
        reserved_mib: 598,
        idle_watts: 36.0,
        work_watts: 290.0,
        limit_watts: 350.0,
        clock_mhz: 2520,
        mig_mode: None,
    }
}

/// What a process does at one instant.
struct Act {
    used_mib: u64,
    sm_percent: u32,
    memory_percent: u32,
    cpu_percent: f64,
    state: char,
}

/// A process, the GPU it is on, and its part.
struct Actor {
    process: Process,
    gpu: Option<u32>,
    kind: ProcessType,
    /// When it is there, in seconds from the beginning.
    from: f64,
    until: f64,
    act: fn(&mut Rng, f64) -> Act,
}

impl Actor {
    /// Somebody's process, started `age` seconds before the beginning (after it, where negative).
    fn new(pid: u32, age: f64, user: &str, uid: u32, command: &[&str]) -> Self {
        let ticks = ((UPTIME_SECONDS - age) * 100.0) as u64 + u64::from(pid % 97);
        let executable = command[0];
        let comm = executable.rsplit('/').next().unwrap();
        Self {
            process: Process {
                pid,
                start_ticks: Some(ticks),
                start_time: Some(BEGIN.plus_seconds(ticks as f64 / 100.0 - UPTIME_SECONDS)),
                ppid: Some(pid - 9),
                process_group: Some(pid),
                session: Some(pid - 9),
                parent_is_reaper: Some(false),
                group_leader_alive: Some(true),
                session_leader_alive: Some(true),
                uid: Some(uid),
                user: Some(user.into()),
                comm: Some(comm.into()),
                command: Some(strings(command)),
                executable: Some(executable.into()),
                cpu_seconds: Some(0.0),
                listening: Some(false),
                ..Process::default()
            },
            gpu: None,
            kind: ProcessType::Compute,
            from: f64::NEG_INFINITY,
            until: f64::INFINITY,
            act: |_, _| resting(0, 0.0),
        }
    }

    fn on(mut self, gpu: u32, act: fn(&mut Rng, f64) -> Act) -> Self {
        self.gpu = Some(gpu);
        self.act = act;
        let device = format!("/dev/nvidia{gpu}");
        self.with(|process| {
            process.gpu_files = Some(strings(&["/dev/nvidiactl", "/dev/nvidia-uvm", &device]));
        })
    }

    fn host(self, rss_mib: u64, threads: u32, cpu_seconds: f64) -> Self {
        self.with(|process| {
            process.rss_bytes = Some(rss_mib * MIB);
            process.threads = Some(threads);
            process.cpu_seconds = Some(cpu_seconds);
        })
    }

    fn framework(self, framework: &str) -> Self {
        self.with(|process| process.framework = Some(framework.into()))
    }

    fn between(mut self, from: f64, until: f64) -> Self {
        (self.from, self.until) = (from, until);
        self
    }

    fn with(mut self, change: impl FnOnce(&mut Process)) -> Self {
        change(&mut self.process);
        self
    }
}

fn strings(texts: &[&str]) -> Arc<[Arc<str>]> {
    texts.iter().map(|&text| text.into()).collect()
}

fn resting(used_mib: u64, cpu_percent: f64) -> Act {
    Act { used_mib, sm_percent: 0, memory_percent: 0, cpu_percent, state: 'S' }
}

/// Everybody on the machine, by pid.
fn cast() -> Vec<Actor> {
    let mut cast = vec![
        Actor::new(
            1712,
            UPTIME_SECONDS - 31.0,
            "nvidia-persistenced",
            118,
            &[
                "/usr/bin/nvidia-persistenced",
                "--user",
                "nvidia-persistenced",
                "--verbose",
            ],
        )
        .host(2, 1, 4.1)
        .with(|process| {
            process.ppid = Some(1);
            process.session = Some(1712);
            process.parent_is_reaper = Some(true);
            process.comm = Some("nvidia-persiste".into());
            process.systemd_unit = Some("nvidia-persistenced.service".into());
            process.gpu_files = Some(strings(&[
                "/dev/nvidiactl",
                "/dev/nvidia0",
                "/dev/nvidia1",
                "/dev/nvidia2",
                "/dev/nvidia3",
            ]));
        }),
        Actor::new(
            2914,
            UPTIME_SECONDS - 44.0,
            "gdm",
            120,
            &["/usr/lib/xorg/Xorg", "vt1", "-displayfd", "3", "-nolisten", "tcp", "-keeptty"],
        )
        .on(2, |_, _| resting(90, 0.0))
        .host(118, 5, 96.2)
        .with(|process| {
            process.terminal = Some("tty1".into());
            process.systemd_unit = Some("session-c1.scope".into());
        }),
        // Serves when it is asked to, and nobody asks.
        Actor::new(
            207_344,
            6.2 * 86_400.0,
            "svc-llm",
            996,
            &[
                "/opt/vllm/bin/python3",
                "-m",
                "vllm.entrypoints.openai.api_server",
                "--model",
                "Qwen/Qwen2.5-14B-Instruct-AWQ",
                "--port",
                "8000",
                "--gpu-memory-utilization",
                "0.55",
            ],
        )
        .on(3, |_, _| resting(25_318, 1.0))
        .host(6_911, 104, 13_902.4)
        .framework("vllm")
        .with(|process| {
            process.ppid = Some(1);
            process.session = Some(207_344);
            process.parent_is_reaper = Some(true);
            process.listening = Some(true);
            process.systemd_unit = Some("vllm.service".into());
        }),
        // Left open before lunch, the model still on the GPU.
        Actor::new(
            398_120,
            5.3 * 3600.0,
            "ben",
            1002,
            &[
                "/home/ben/.venvs/thesis/bin/python3",
                "-m",
                "ipykernel_launcher",
                "-f",
                "/home/ben/.local/share/jupyter/runtime/kernel-4b1f6f0e-2a57-4c3d-9be4-d08a51c7f2e6.json",
            ],
        )
        .on(1, |_, _| resting(38_914, 0.4))
        .host(9_204, 71, 3_518.9)
        .framework("pytorch")
        .with(|process| {
            process.session = Some(398_120);
            process.listening = Some(true);
            process.jupyter = Some(Arc::new(Jupyter {
                kernel_id: Some("4b1f6f0e-2a57-4c3d-9be4-d08a51c7f2e6".into()),
                connection_file: Some(
                    "/home/ben/.local/share/jupyter/runtime/kernel-4b1f6f0e-2a57-4c3d-9be4-d08a51c7f2e6.json"
                        .into(),
                ),
                server_url: Some("http://127.0.0.1:8888/".into()),
                notebook_path: Some("thesis/fine-tune.ipynb".into()),
                execution_state: Some("idle".into()),
                last_activity: Some(BEGIN.plus_seconds(-48.0 * MINUTE + 31.482)),
                connections: Some(0), ..Jupyter::default()}));
        }),
        // Healthy: epochs of eight minutes, with half a minute of validation at the end.
        Actor::new(
            412_301,
            7.6 * 3600.0,
            "ann",
            1001,
            &[
                "/home/ann/miniforge3/envs/llm/bin/python",
                "-u",
                "pretrain.py",
                "--config",
                "configs/7b-sft.yaml",
                "--bf16",
            ],
        )
        .on(0, |rng, t| {
            let validates = t % 480.0 >= 450.0;
            Act {
                used_mib: if t < 900.0 { 74_126 } else { 74_638 },
                sm_percent: if validates { rng.whole(38, 57) } else { rng.whole(90, 99) },
                memory_percent: if validates { rng.whole(18, 26) } else { rng.whole(58, 66) },
                cpu_percent: if validates { rng.around(132.0, 14.0) } else { rng.around(104.0, 3.0) },
                state: 'R',
            }
        })
        .host(21_840, 143, 28_744.6)
        .framework("pytorch")
        .with(|process| {
            // torchrun started it, and Slurm started torchrun.
            process.ppid = Some(412_233);
            process.process_group = Some(412_233);
            process.session = Some(412_218);
            process.slurm = Some(Arc::new(Slurm {
                job_id: Some("48213".into()),
                step_id: Some("0".into()), ..Slurm::default()}));
            let job = [("SLURM_JOB_ID".into(), "48213".into())];
            process.environment = Some(Arc::new(job.into()));
        }),
        // Evaluates, and keeps what it should let go: a mebibyte a second.
        Actor::new(
            440_871,
            38.0 * MINUTE,
            "dora",
            1004,
            &[
                "/home/dora/.venv/bin/python3",
                "evaluate.py",
                "--suite",
                "longbench",
                "--keep-logits",
            ],
        )
        .on(2, |rng, t| {
            // The caching allocator takes 20 MiB at a time; a batch comes and goes on top.
            let kept = (t / 20.0).floor() as u64 * 20;
            Act {
                used_mib: 9_412 + kept + u64::from(rng.whole(0, 3)) * 128,
                sm_percent: rng.whole(52, 79),
                memory_percent: rng.whole(24, 37),
                cpu_percent: rng.around(99.0, 2.5),
                state: 'R',
            }
        })
        .host(7_655, 58, 2_214.3)
        .framework("pytorch")
        .with(|process| process.terminal = Some("pts/2".into())),
        // Ctrl-Z at minute twelve.
        Actor::new(
            448_016,
            92.0 * MINUTE,
            "farid",
            1006,
            &["python", "train_unet.py", "--epochs", "200", "--batch-size", "48"],
        )
        .on(3, |rng, t| {
            if t >= 12.0 * MINUTE {
                return Act { state: 'T', ..resting(11_574, 0.0) };
            }
            Act {
                used_mib: 11_574,
                sm_percent: rng.whole(68, 83),
                memory_percent: rng.whole(40, 48),
                cpu_percent: rng.around(186.0, 9.0),
                state: 'R',
            }
        })
        .host(8_122, 66, 9_873.5)
        .framework("pytorch")
        .with(|process| {
            process.executable = Some("/usr/bin/python3.12".into());
            process.terminal = Some("pts/4".into());
        }),
        Actor::new(
            455_102,
            16.0 * MINUTE,
            "chen",
            1003,
            &["python", "embed_corpus.py", "--shard", "3/8"],
        )
        .on(1, |rng, _| Act {
            used_mib: 6_348,
            sm_percent: rng.whole(21, 44),
            memory_percent: rng.whole(9, 17),
            cpu_percent: rng.around(96.0, 3.0),
            state: 'R',
        })
        .host(3_370, 42, 921.7)
        .framework("pytorch")
        .with(|process| {
            process.executable = Some("/usr/bin/python3.12".into());
            process.terminal = Some("pts/6".into());
        }),
        // Comes and goes while one watches.
        Actor::new(
            463_557,
            -(LIVE + 150.0),
            "chen",
            1003,
            &["python", "quick_bench.py", "--dtype", "fp8"],
        )
        .on(2, |rng, _| Act {
            used_mib: 3_186,
            sm_percent: rng.whole(15, 21),
            memory_percent: rng.whole(30, 41),
            cpu_percent: rng.around(100.0, 1.0),
            state: 'R',
        })
        .between(LIVE + 151.0, LIVE + 420.0)
        .host(2_204, 37, 0.0)
        .framework("pytorch")
        .with(|process| {
            process.executable = Some("/usr/bin/python3.12".into());
            process.terminal = Some("pts/6".into());
        }),
    ];
    // The trainer was killed; its DataLoader workers live on, adopted by init.
    for pid in [402_519, 402_520, 402_521] {
        cast.push(
            Actor::new(
                pid,
                4.1 * 3600.0,
                "emre",
                1005,
                &["python", "finetune_vit.py", "--workers", "3"],
            )
            .on(3, |_, _| resting(486, 0.0))
            .host(1_893, 3, 611.3)
            .framework("pytorch")
            .with(|process| {
                process.ppid = Some(1);
                process.process_group = Some(402_377);
                process.session = Some(402_101);
                process.parent_is_reaper = Some(true);
                process.group_leader_alive = Some(false);
                process.session_leader_alive = Some(false);
                process.comm = Some("pt_data_worker".into());
                process.executable = Some("/usr/bin/python3.11".into());
            }),
        );
    }
    // The next trial gets the number of the last one.
    for (trial, from, until) in
        [("17", -11.0 * MINUTE, LIVE + 300.0), ("18", LIVE + 322.0, f64::INFINITY)]
    {
        cast.push(
            Actor::new(461_990, -from, "gina", 1007, &["python", "sweep.py", "--trial", trial])
                .on(1, |rng, _| Act {
                    used_mib: 4_870,
                    sm_percent: rng.whole(30, 52),
                    memory_percent: rng.whole(12, 20),
                    cpu_percent: rng.around(101.0, 2.0),
                    state: 'R',
                })
                .between(from + 1.0, until)
                .host(2_950, 40, if from < 0.0 { 664.8 } else { 0.0 })
                .framework("jax")
                .with(|process| {
                    process.executable = Some("/usr/bin/python3.12".into());
                    process.ppid = Some(461_803);
                }),
        );
    }
    for actor in &mut cast {
        if actor.process.user.as_deref() == Some("gdm") {
            actor.kind = ProcessType::Graphics;
        }
    }
    cast.sort_by_key(|actor| actor.process.pid);
    cast
}

/// The whole recording.
fn snapshots() -> Vec<Snapshot> {
    let mut rng = Rng(0x6770_756d_656d);
    let mut cast = cast();
    let mut warmth = [0.0; CARDS.len()];
    let mut snapshots = Vec::new();
    let mut t = 0.0;
    while t <= END {
        let interval = if t <= LIVE { 5.0 } else { 2.0 };
        let mut snapshot = Snapshot::new(BEGIN.plus_seconds(t));
        snapshot.host = Host {
            hostname: Some("gpu-lab-03".into()),
            boot_id: Some("c0a7e1d2-6f3b-4b58-9d24-81be5a70f396".into()),
            kernel: Some("6.8.0-87-generic".into()),
            pid_namespace: Some(PidNamespace::Host),
            suspended_seconds: Some(0),
            ..Host::default()
        };
        snapshot.driver = Driver {
            version: Some("580.159.03".into()),
            nvml_version: Some("13.580.159.03".into()),
            cuda_version: Some("13.0".into()),
        };
        let mut rows: [Vec<GpuProcess>; CARDS.len()] = Default::default();
        for actor in &mut cast {
            if t < actor.from || t >= actor.until {
                continue;
            }
            let act = (actor.act)(&mut rng, t);
            let process = &mut actor.process;
            let cpu_seconds = process.cpu_seconds.unwrap() + act.cpu_percent / 100.0 * interval;
            process.cpu_seconds = Some((cpu_seconds * 100.0).round() / 100.0);
            process.cpu_percent = Some(act.cpu_percent);
            process.state = Some(act.state);
            snapshot.processes.push(process.clone());
            if let Some(gpu) = actor.gpu {
                let graphics = actor.kind == ProcessType::Graphics;
                rows[gpu as usize].push(GpuProcess {
                    pid: process.pid,
                    kind: actor.kind,
                    used_bytes: Some(act.used_mib * MIB),
                    sm_percent: Some(act.sm_percent),
                    memory_percent: Some(act.memory_percent),
                    encoder_percent: (!graphics).then_some(0),
                    decoder_percent: (!graphics).then_some(0),
                    ..GpuProcess::default()
                });
            }
        }
        for (index, rows) in rows.into_iter().enumerate() {
            let gpu = measure(&mut rng, index, rows, &mut warmth[index], interval);
            snapshot.gpus.push(gpu);
        }
        // A sensor that does not always answer.
        if (610.0..625.0).contains(&t) || (LIVE + 240.0..LIVE + 248.0).contains(&t) {
            snapshot.gpus[2].temperature_celsius = None;
            snapshot.errors.push(ReadError {
                gpu: Some(2),
                call: "nvmlDeviceGetTemperature".into(),
                error: "unknown error".into(),
            });
        }
        snapshots.push(snapshot);
        t += if t < LIVE { 5.0 } else { 2.0 };
    }
    snapshots
}

/// A GPU under the load of its processes.
fn measure(
    rng: &mut Rng,
    index: usize,
    rows: Vec<GpuProcess>,
    warmth: &mut f64,
    interval: f64,
) -> Gpu {
    let card = &CARDS[index];
    let sum =
        |value: fn(&GpuProcess) -> Option<u32>| rows.iter().filter_map(value).sum::<u32>().min(100);
    let gpu_percent = sum(|row| row.sm_percent);
    let memory_percent = sum(|row| row.memory_percent);
    let busy = gpu_percent > 0;
    let load = f64::from(gpu_percent) / 100.0;
    // Warms up and cools down over a minute or so.
    *warmth += (load - *warmth) * interval / 60.0;
    let used: u64 = rows.iter().filter_map(|row| row.used_bytes).sum::<u64>() + OVERHEAD_MIB * MIB;
    let (total, reserved) = (card.total_mib * MIB, card.reserved_mib * MIB);
    Gpu {
        index: index as u32,
        uuid: Some(card.uuid.into()),
        name: Some(card.name.into()),
        pci_bus_id: Some(card.bus.into()),
        minor_number: Some(index as u32),
        memory: Some(Memory {
            total_bytes: total,
            reserved_bytes: Some(reserved),
            used_bytes: used,
            free_bytes: total - reserved - used,
        }),
        gpu_percent: Some(gpu_percent),
        memory_percent: Some(memory_percent),
        temperature_celsius: Some((31.0 + 33.0 * *warmth).round() as u32),
        power_watts: Some(if busy {
            rng.around(card.idle_watts + card.work_watts * load, 6.0)
        } else {
            card.idle_watts
        }),
        power_limit_watts: Some(card.limit_watts),
        sm_clock_mhz: Some(if busy { card.clock_mhz } else { 345 }),
        performance_state: Some(0),
        compute_mode: Some("default".into()),
        persistence_mode: Some(true),
        mig_mode: card.mig_mode,
        processes: Some(rows),
        ..Gpu::default()
    }
}

fn bundled() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/source/demo.jsonl.zst")
}

fn compress(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = zstd::Encoder::new(Vec::new(), 19).unwrap();
    // A reader needs memory for the window; 256 KiB hold twenty snapshots, which is enough.
    encoder.set_parameter(zstd::stream::raw::CParameter::WindowLog(18)).unwrap();
    std::io::Write::write_all(&mut encoder, bytes).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn the_bundled_demo_is_the_one_that_is_made_here() {
    let mut made = Vec::new();
    for snapshot in snapshots() {
        serde_json::to_writer(&mut made, &snapshot).unwrap();
        made.push(b'\n');
    }
    if std::env::var_os("GPUMEM_BLESS").is_some_and(|value| value == "1") {
        std::fs::write(bundled(), compress(&made)).unwrap();
    }
    let file = std::fs::read(bundled()).unwrap();
    assert!(
        file.len() <= 250_000,
        "the demo is {} bytes, too large to carry in every binary",
        file.len()
    );
    let mut text = Vec::new();
    zstd::Decoder::new(file.as_slice()).unwrap().read_to_end(&mut text).unwrap();
    assert!(
        text == made,
        "the bundled demo is another one; make it again with GPUMEM_BLESS=1 cargo test --test it demo"
    );
}

#[test]
fn its_numbers_are_such_as_a_driver_gives() {
    let mut previous = None;
    for snapshot in snapshots() {
        if let Some(previous) = previous.replace(snapshot.time) {
            let expected = if snapshot.time.seconds_since(BEGIN) <= LIVE { 5.0 } else { 2.0 };
            assert_eq!(snapshot.time.seconds_since(previous), expected);
        }
        let pids: Vec<u32> = snapshot.processes.iter().map(|process| process.pid).collect();
        assert!(pids.is_sorted_by(|a, b| a < b), "a pid twice: {pids:?}");
        for gpu in &snapshot.gpus {
            let memory = gpu.memory.unwrap();
            assert_eq!(
                memory.total_bytes,
                memory.reserved_bytes.unwrap() + memory.used_bytes + memory.free_bytes
            );
            let held = gpu.process_bytes().unwrap();
            assert!((held..held + 64 * MIB).contains(&memory.used_bytes));
            assert!(gpu.power_watts.unwrap() <= gpu.power_limit_watts.unwrap());
            assert!(gpu.processes.iter().flatten().all(|row| pids.contains(&row.pid)));
        }
        for process in &snapshot.processes {
            assert!(process.start_time.unwrap() <= snapshot.time, "{process:?}");
        }
    }
}

#[test]
fn it_has_its_findings() {
    let snapshots = snapshots();
    let at = |seconds: f64| {
        let time = BEGIN.plus_seconds(seconds);
        snapshots.iter().rfind(|snapshot| snapshot.time <= time).unwrap()
    };
    let row = |snapshot: &Snapshot, pid| {
        let rows = snapshot.gpus.iter().flat_map(|gpu| gpu.processes.iter().flatten());
        rows.copied().find(|row| row.pid == pid)
    };
    // The notebook and the server rest from the first to the last snapshot.
    for snapshot in &snapshots {
        for pid in [398_120, 207_344] {
            assert_eq!(row(snapshot, pid).unwrap().sm_percent, Some(0));
        }
    }
    assert_eq!(at(LIVE).process(207_344).unwrap().listening, Some(true));
    // The leak's lower envelope: over any ten minutes, 600 MiB.
    let lowest = |from: f64| {
        let window = from..from + 120.0;
        let inside = snapshots
            .iter()
            .filter(|snapshot| window.contains(&snapshot.time.seconds_since(BEGIN)));
        inside.filter_map(|snapshot| row(snapshot, 440_871)?.used_bytes).min().unwrap()
    };
    for from in [0.0, 600.0, 1200.0] {
        let grown = (lowest(from + 600.0) - lowest(from)) / MIB;
        assert!((500..=700).contains(&grown), "{grown} MiB from {from} s");
    }
    // Stopped at minute twelve.
    let state = |seconds| at(seconds).process(448_016).unwrap().state;
    assert_eq!((state(719.0), state(720.0)), (Some('R'), Some('T')));
    // One comes and goes in the live part; one number is used twice.
    let there = |seconds| at(seconds).process(463_557).is_some();
    assert_eq!([LIVE, LIVE + 200.0, END].map(there), [false, true, false]);
    let starts: HashSet<u64> =
        snapshots.iter().filter_map(|snapshot| snapshot.process(461_990)?.start_ticks).collect();
    assert_eq!(starts.len(), 2);
    assert!(at(LIVE + 310.0).process(461_990).is_none());
    assert!(snapshots.iter().any(|snapshot| !snapshot.errors.is_empty()));
}
