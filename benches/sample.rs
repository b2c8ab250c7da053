//! What gpumem costs, as ratios to a floor in the same run: `cargo bench --bench sample`.
//!
//! The floor (`floor.rs`) makes the NVML calls and /proc reads that the values shown need and does
//! nothing else; the least floor makes the NVML calls and reads each stat. All meet the mock driver, which
//! answers at once, and real sleeping processes, a quarter of which look like notebooks' kernels whose files
//! are gone, so that what is measured is the program's own work. The same for a look at everybody's descriptors,
//! among many processes that have many. Steady samples follow each other without a pause, so that what
//! is done every few seconds or half a minute is in none of them; of that, the second table tells.
//! `--quick` measures less, to see that it runs.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout)]

mod floor;
mod kernels;

use std::env;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use floor::{Floor, read_all_descriptors};
use gpumem::api::host::{Holders, Roots};
use gpumem::api::source::{Live, nvml};
use kernels::Sleepers;
use mock_nvml::scene::{Gpu, Process, Scene};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::time::{ClockId, clock_gettime};

/// Which part a process of this program plays; without it, it is the benchmark itself.
const ROLE: &str = "GPUMEM_BENCH_ROLE";
/// Where this benchmark's device files are, for gpumem.
const DEV: &str = "GPUMEM_BENCH_DEV";

fn main() {
    let library = mock_nvml::library();
    match env::var(ROLE).as_deref() {
        Ok(kernels::ROLE) => kernels::sleep(),
        Ok("floor-stats") => {
            let mut floor = Floor::open(&library);
            let mut pids = Vec::new();
            floor.sample(&mut pids);
            Floor::read_stats(&pids);
            return;
        }
        Ok("floor-once") => {
            let mut floor = Floor::open(&library);
            let mut pids = Vec::new();
            floor.sample(&mut pids);
            Floor::read_stats(&pids);
            Floor::read_the_rest(&pids);
            return;
        }
        Ok("floor-steady") => {
            let mut floor = Floor::open(&library);
            let mut pids = Vec::new();
            println!(
                "{}",
                cpu_per_round(|| {
                    floor.sample(&mut pids);
                    Floor::read_stats(&pids);
                })
            );
            return;
        }
        Ok("gpumem-steady") => {
            let options =
                nvml::NvmlOptions { library: Some(library), ..nvml::NvmlOptions::default() };
            let roots = Roots { dev: env::var_os(DEV).unwrap().into(), ..Roots::default() };
            let mut live = Live::open_at(options, Duration::from_secs(1), roots).unwrap();
            println!("{}", cpu_per_round(|| drop(live.sample())));
            return;
        }
        _ => {}
    }
    let quick = env::args().any(|argument| argument == "--quick");
    let rounds = if quick { 3 } else { 21 };
    println!(
        "| GPUs × processes | one shot: least floor | floor | `ps --json` | ratios | `ps` | `check --max-used` | steady CPU: floor | gpumem | ratio | `check` RSS | `watch` RSS |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|---|");
    let scales: &[(u32, u32)] = if quick { &[(8, 128)] } else { &[(8, 128), (16, 1000)] };
    for &(gpus, processes) in scales {
        let stage = Stage::new(gpus, processes, &library);
        let once = stage.one_shot(rounds);
        let steady = stage.steady(if quick { 1 } else { 5 });
        println!(
            "| {gpus} × {} | {:.1} ms | {:.1} ms | {:.1} ms | {:.2}, {:.2} | {:.1} ms | {:.1} ms | {:.2} ms | {:.2} ms | {:.2} | {:.1} MiB | {} |",
            processes / gpus,
            once[0] * 1e3,
            once[1] * 1e3,
            once[2] * 1e3,
            once[2] / once[0],
            once[2] / once[1],
            once[3] * 1e3,
            once[4] * 1e3,
            steady.0 * 1e3,
            steady.1 * 1e3,
            steady.1 / steady.0,
            stage.check_mib(),
            stage.watch_mib().map_or("-".to_owned(), |mib| format!("{mib:.1} MiB")),
        );
    }
    look_at_everybody(if quick { 200 } else { 2000 }, rounds);
}

/// What a look at everybody's descriptors costs: CPU time, median of the rounds, in turn with the
/// floor.
fn look_at_everybody(processes: usize, rounds: usize) {
    /// With the three that every process has.
    const DESCRIPTORS: usize = 64;
    let open: Vec<OwnedFd> = (3..DESCRIPTORS)
        .map(|at| match at % 3 {
            0 => std::net::UdpSocket::bind(("127.0.0.1", 0)).unwrap().into(),
            1 => File::open(env::current_exe().unwrap()).unwrap().into(),
            _ => std::io::pipe().unwrap().0.into(),
        })
        .collect();
    for descriptor in &open {
        fcntl_setfd(descriptor, FdFlags::empty()).unwrap();
    }
    let _sleepers = Sleepers::new(processes, 0, Stdio::null);
    drop(open);
    let mut holders = Holders::new(Roots::default());
    let (mut floor, mut ours) = (Vec::new(), Vec::new());
    let (mut seen, mut now_ns) = (0, 0);
    for round in 0..=rounds {
        let times = (
            cpu(|| seen = read_all_descriptors()),
            // Everybody's turn comes every half a minute.
            cpu(|| holders.refresh(now_ns, false)),
        );
        now_ns += 30_000_000_000;
        // The first round warms the caches.
        if round > 0 {
            floor.push(times.0);
            ours.push(times.1);
        }
    }
    assert!(seen >= processes * DESCRIPTORS, "{seen}");
    let (floor, ours) = (median(floor), median(ours));
    // In between, /proc is listed, and hardly anybody is looked at.
    let listing = cpu(|| holders.refresh(now_ns - 1, false));
    println!();
    println!(
        "| processes, descriptors | everybody looked at: floor | gpumem | ratio | a listing |"
    );
    println!("|---|---|---|---|---|");
    println!(
        "| {processes}, {seen} | {:.1} ms | {:.1} ms | {:.2} | {:.2} ms |",
        floor * 1e3,
        ours * 1e3,
        ours / floor,
        listing * 1e3,
    );
}

/// CPU seconds of one call, of all threads.
fn cpu(call: impl FnOnce()) -> f64 {
    let seconds = |at: rustix::time::Timespec| at.tv_sec as f64 + at.tv_nsec as f64 * 1e-9;
    let before = clock_gettime(ClockId::ProcessCPUTime);
    call();
    seconds(clock_gettime(ClockId::ProcessCPUTime)) - seconds(before)
}

/// CPU seconds of all threads for one call, over enough calls to be measured.
fn cpu_per_round(mut round: impl FnMut()) -> f64 {
    for _ in 0..5 {
        round();
    }
    let rounds = 50;
    cpu(|| (0..rounds).for_each(|_| round())) / f64::from(rounds)
}

/// The mock driver's scene and its sleeping processes.
struct Stage {
    folder: tempfile::TempDir,
    _sleepers: Sleepers,
    library: PathBuf,
}

impl Stage {
    fn new(gpus: u32, processes: u32, library: &Path) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let device = folder.path().join("dev/nvidia0");
        std::fs::create_dir(folder.path().join("dev")).unwrap();
        std::fs::write(&device, "").unwrap();
        // Who holds no device file is not believed to be on a GPU.
        let stdin = || File::open(&device).unwrap().into();
        let sleepers = Sleepers::new(processes as usize, processes as usize / 4, stdin);
        let mut scene = Scene::new();
        for gpu in 0..gpus {
            let on_gpu = sleepers.0.iter().skip(gpu as usize).step_by(gpus as usize);
            scene = scene.gpu(on_gpu.fold(Gpu::default(), |gpu, child| {
                gpu.process(Process::compute(child.id(), 1_u64 << 30))
            }));
        }
        scene.write(&folder.path().join("scene.json")).unwrap();
        Self { folder, _sleepers: sleepers, library: library.to_owned() }
    }

    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.env("GPUMEM_MOCK_SCENE", self.folder.path().join("scene.json"));
        command.env("XDG_CONFIG_HOME", self.folder.path());
        command.env(DEV, self.folder.path().join("dev"));
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command
    }

    fn gpumem(&self, arguments: &[&str]) -> Command {
        let mut command = self.command(Path::new(env!("CARGO_BIN_EXE_gpumem")));
        command.args(arguments).arg("--nvml-library").arg(&self.library);
        command
    }

    fn role(&self, role: &str) -> Command {
        let mut command = self.command(&env::current_exe().unwrap());
        command.env(ROLE, role);
        command
    }

    /// Median wall seconds of the least floor, the floor, `ps --json`, `ps` and a limit on the memory used, in turn.
    fn one_shot(&self, rounds: usize) -> [f64; 5] {
        let mut times = [const { Vec::new() }; 5];
        for round in 0..=rounds {
            let commands = [
                self.role("floor-stats"),
                self.role("floor-once"),
                self.gpumem(&["ps", "--json"]),
                self.gpumem(&["ps"]),
                self.gpumem(&["check", "--max-used", "100%"]),
            ];
            for (mut command, times) in commands.into_iter().zip(&mut times) {
                let seconds = wall(&mut command);
                // The first round warms the caches.
                if round > 0 {
                    times.push(seconds);
                }
            }
        }
        times.map(median)
    }

    /// Median CPU seconds a steady sample of the floor and of gpumem, in turn.
    fn steady(&self, rounds: usize) -> (f64, f64) {
        let seconds = |role: &str| -> f64 {
            let output = self.role(role).stdout(Stdio::piped()).output().unwrap();
            assert!(output.status.success(), "{role}");
            String::from_utf8(output.stdout).unwrap().trim().parse().unwrap()
        };
        let (mut floor, mut ours) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            floor.push(seconds("floor-steady"));
            ours.push(seconds("gpumem-steady"));
        }
        (median(floor), median(ours))
    }

    /// The most memory that was resident while `check` judged, in MiB.
    fn check_mib(&self) -> f64 {
        let arguments = ["check", "--window", "3s", "--interval", "100ms"];
        let mut child = self.gpumem(&arguments).spawn().unwrap();
        let mut most = 0.0_f64;
        while child.try_wait().unwrap().is_none() {
            most = most.max(most_resident_mib(child.id()).unwrap_or(0.0));
            std::thread::sleep(Duration::from_millis(50));
        }
        most
    }

    /// The same of `watch` on a terminal of 200 by 60 (util-linux's `script` is the terminal).
    fn watch_mib(&self) -> Option<f64> {
        let watch = self.gpumem(&["watch", "--interval", "100ms"]);
        let words = std::iter::once(watch.get_program()).chain(watch.get_args());
        let words: Vec<_> = words.map(|word| format!("'{}'", word.display())).collect();
        let line = format!("stty rows 60 columns 200; exec {}", words.join(" "));
        let mut script = self.command(Path::new("script"));
        let script = script.args(["-qec", &line, "/dev/null"]).env("TERM", "xterm-256color");
        let mut terminal = script.stdin(Stdio::piped()).spawn().ok()?;
        std::thread::sleep(Duration::from_secs(4));
        let pid = child_of(terminal.id()).and_then(|pid| child_of(pid).or(Some(pid)));
        let most = pid.and_then(most_resident_mib);
        let _ = terminal.stdin.take().map(|mut keys| std::io::Write::write_all(&mut keys, b"q"));
        let _ = terminal.kill();
        let _ = terminal.wait();
        most
    }
}

/// The high-water mark of a process's resident memory.
fn most_resident_mib(pid: u32) -> Option<f64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: f64 = line.trim().trim_end_matches(" kB").parse().ok()?;
    Some(kib / 1024.0)
}

/// A process whose parent this is.
fn child_of(parent: u32) -> Option<u32> {
    std::fs::read_dir("/proc").ok()?.flatten().find_map(|entry| {
        let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
        let fields = &stat[stat.rfind(')')? + 2..];
        let is_child = fields.split(' ').nth(1)?.parse() == Ok(parent);
        is_child.then(|| entry.file_name().to_str()?.parse().ok())?
    })
}

fn wall(command: &mut Command) -> f64 {
    let begun = Instant::now();
    assert!(command.status().unwrap().success(), "{command:?}");
    begun.elapsed().as_secs_f64()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
