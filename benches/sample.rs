//! Cost of commands that take one sample: `cargo bench --bench sample`.
//!
//! The benchmark measures the wall time of `ps --json`, `ps` and `check --max-used`, the time that `run` adds to a
//! command, and the resident memory of `check` and `watch`. The mock driver answers immediately and lists real,
//! sleeping processes. A quarter of them look like notebook kernels without connection files. `--quick` runs few
//! rounds, as a smoke test.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout)]

mod kernels;

use std::env;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use kernels::Sleepers;
use mock_nvml::scene::{Gpu, Process, Scene};

fn main() {
    if env::var("GPUMEM_BENCH_ROLE").as_deref() == Ok(kernels::ROLE) {
        kernels::sleep();
    }
    let library = mock_nvml::library();
    let quick = env::args().any(|argument| argument == "--quick");
    let rounds = if quick { 3 } else { 21 };
    println!(
        "| GPUs × processes | `ps --json` | `ps` | `check --max-used` | `run` adds | `check` RSS | `watch` RSS |"
    );
    println!("|---|---|---|---|---|---|---|");
    let scales: &[(u32, u32)] = if quick { &[(8, 128)] } else { &[(8, 128), (16, 1000)] };
    for &(gpus, processes) in scales {
        let stage = Stage::new(gpus, processes, &library);
        let once = stage.one_shot(rounds);
        let added = stage.added_by_run(rounds);
        println!(
            "| {gpus} × {} | {:.1} ms | {:.1} ms | {:.1} ms | {:.1} ms | {:.1} MiB | {} |",
            processes / gpus,
            once[0] * 1e3,
            once[1] * 1e3,
            once[2] * 1e3,
            added * 1e3,
            stage.check_mib(),
            stage.watch_mib().map_or("-".to_owned(), |mib| format!("{mib:.1} MiB")),
        );
    }
}

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
        // gpumem identifies a process on a GPU only if the process has opened a device file.
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
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command
    }

    fn gpumem(&self, arguments: &[&str]) -> Command {
        let mut command = self.command(Path::new(env!("CARGO_BIN_EXE_gpumem")));
        command.args(arguments).arg("--nvml-library").arg(&self.library);
        command
    }

    /// Returns the median wall times of `ps --json`, `ps` and `check --max-used`, in seconds. The commands run
    /// alternately.
    fn one_shot(&self, rounds: usize) -> [f64; 3] {
        let mut times = [const { Vec::new() }; 3];
        for round in 0..=rounds {
            let commands = [
                self.gpumem(&["ps", "--json"]),
                self.gpumem(&["ps"]),
                self.gpumem(&["check", "--max-used", "100%"]),
            ];
            for (mut command, times) in commands.into_iter().zip(&mut times) {
                let seconds = wall(&mut command);
                // Ignore the first round, which fills the caches.
                if round > 0 {
                    times.push(seconds);
                }
            }
        }
        times.map(median)
    }

    /// Returns the difference between the median times of a command with and without `run`, in seconds.
    fn added_by_run(&self, rounds: usize) -> f64 {
        let mut times = [const { Vec::new() }; 2];
        for _ in 0..rounds {
            let mut run = self.command(Path::new(env!("CARGO_BIN_EXE_gpumem")));
            run.arg("run").arg("--nvml-library").arg(&self.library).args(["-q", "--", "true"]);
            times[0].push(wall(&mut run));
            times[1].push(wall(&mut self.command(Path::new("true"))));
        }
        let [under_run, bare] = times.map(median);
        under_run - bare
    }

    /// Returns the peak resident memory of `check` in MiB.
    fn check_mib(&self) -> f64 {
        let arguments = ["check", "--window", "3s", "--interval", "100ms"];
        let mut child = self.gpumem(&arguments).spawn().unwrap();
        let mut peak = 0.0_f64;
        while child.try_wait().unwrap().is_none() {
            peak = peak.max(peak_resident_mib(child.id()).unwrap_or(0.0));
            std::thread::sleep(Duration::from_millis(50));
        }
        peak
    }

    /// Returns the peak resident memory of `watch` on a terminal of 200 by 60. script(1) provides the terminal.
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
        let peak = pid.and_then(peak_resident_mib);
        let _ = terminal.stdin.take().map(|mut keys| std::io::Write::write_all(&mut keys, b"q"));
        let _ = terminal.kill();
        let _ = terminal.wait();
        peak
    }
}

fn peak_resident_mib(pid: u32) -> Option<f64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: f64 = line.trim().trim_end_matches(" kB").parse().ok()?;
    Some(kib / 1024.0)
}

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
