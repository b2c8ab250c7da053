//! Compares gpumem with other programs on the same driver: `cargo bench --bench rivals`.
//!
//! The mock driver lists real, sleeping processes: 128 on 8 GPUs, or 1,000 on 16 GPUs. A quarter of the processes
//! look like notebook kernels without connection files. The benchmark measures:
//!
//! - the CPU time of `ps --json` and of a C program (`one_stat.c`), which lists the driver's processes and reads each
//!   `stat` file. The two programs run alternately.
//! - gpumem watch, nvtop and nvitop, each in a 200x60 terminal, at one sample per second. The programs run at the same
//!   time, so that other load on the machine affects all of them. Each round starts the programs in a different order,
//!   a fraction of a second apart. The first minute is ignored, because programs do more work for new processes. Then
//!   CPU time is measured in short windows. The table contains the median and mean of the windows, and the median of
//!   the ratios to gpumem's time in the same window. Memory and terminal output are from the last round.
//!
//! The benchmark fails if gpumem takes more than four times nvtop's CPU time. On the CI machine, gpumem took 1.4 to
//! 2.7 times nvtop's CPU time, because gpumem also reads the owners of each process and applies the rules. The
//! benchmark also fails if a program does not show the driver's GPUs, because its results would be meaningless.
//!
//! `setsid` (util-linux) is required. Other missing programs are skipped with a message. nvtop is in Debian's
//! `contrib`, and nvitop is on PyPI; `GPUMEM_NVITOP=PATH` sets its path. Other load on the machine increases all CPU
//! times, but hardly changes their ratios.
//!
//! | option | |
//! |---|---|
//! | `--quick` | takes a few seconds; the results are meaningless |
//! | `--rounds N`, `--seconds N` | number of starts, and total time of the measurements |
//! | `--gpus N --processes N` | measures only this scale |
//! | `--program PATH`, `--driver PATH` | another build of gpumem and of the mock driver |
//! | `--beside PATH` | a second build of gpumem in the same windows, to measure a change |
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout)]

mod kernels;

use std::env;
use std::fs::{self, File};
use std::io::Read as _;
use std::num::NonZero;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use kernels::Sleepers;
use mock_nvml::scene::{Gpu, Process, Scene, Utilization, Value};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;
use nix::time::{clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

const COLUMNS: NonZero<u16> = NonZero::new(200).unwrap();
const ROWS: NonZero<u16> = NonZero::new(60).unwrap();
/// Scene for `ps`, with constant values so that the mock driver evaluates it quickly.
const STILL: &str = "still.json";
const SCALES: [(usize, usize); 2] = [(8, 128), (16, 1000)];
/// Number of alternating runs of `ps --json` and of the C program.
const PAIRS: usize = 11;
/// Minimum ratio of nvtop's CPU time to gpumem's. Usual ratios are higher, so that a busy machine does not fail the
/// benchmark.
const MIN_NVTOP_RATIO: f64 = 0.25;
/// Length of a window in which CPU time is measured.
const WINDOW: Duration = Duration::from_secs(3);
/// Time between the starts of two programs, so that they do not sample at the same time.
const STAGGER: Duration = Duration::from_millis(230);
/// Part of the GPU's name. Every program shows it.
const SHOWN: &str = "H200";

fn main() -> ExitCode {
    if env::var("GPUMEM_BENCH_ROLE").as_deref() == Ok(kernels::ROLE) {
        kernels::sleep();
    }
    if find("setsid").is_none() {
        println!(
            "skipped: setsid (util-linux) is not installed; it gives programs their terminals"
        );
        return ExitCode::SUCCESS;
    }
    let options = Options::parse();
    let mut is_good = true;
    for &(gpus, processes) in &options.scales {
        let stage = Stage::new(gpus, processes, &options.driver);
        one_shots(&stage, &options);
        is_good &= screens(&stage, &options);
    }
    if is_good || options.is_quick { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

struct Options {
    is_quick: bool,
    /// Number of times that all programs are started.
    rounds: usize,
    /// Total time of the measurements in all rounds.
    seconds: usize,
    scales: Vec<(usize, usize)>,
    program: PathBuf,
    driver: PathBuf,
    beside: Option<PathBuf>,
}

impl Options {
    fn parse() -> Self {
        let arguments: Vec<String> = env::args().skip(1).collect();
        let value = |name: &str| {
            let at = arguments.iter().position(|argument| argument == name)?;
            arguments.get(at + 1).cloned()
        };
        let number = |name: &str| value(name)?.parse().ok();
        let path = |name: &str| value(name).map(|path| fs::canonicalize(path).unwrap());
        let is_quick = arguments.iter().any(|argument| argument == "--quick");
        let scales = match (number("--gpus"), number("--processes")) {
            (None, None) if is_quick => vec![SCALES[0]],
            (None, None) => SCALES.to_vec(),
            (gpus, processes) => {
                vec![(gpus.unwrap_or(SCALES[0].0), processes.unwrap_or(SCALES[0].1))]
            }
        };
        Self {
            is_quick,
            rounds: number("--rounds").unwrap_or(if is_quick { 1 } else { 3 }),
            seconds: number("--seconds").unwrap_or(if is_quick { 3 } else { 45 }),
            scales,
            program: path("--program").unwrap_or_else(|| env!("CARGO_BIN_EXE_gpumem").into()),
            driver: path("--driver").unwrap_or_else(mock_nvml::library),
            beside: path("--beside"),
        }
    }
}

/// Measures the CPU times of `ps --json` and of the C program, which run alternately.
fn one_shots(stage: &Stage, options: &Options) {
    let program = stage.folder.path().join("one_stat");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/one_stat.c");
    let compiled = Command::new("cc").args(["-O2", "-o"]).arg(&program).arg(source).status();
    if !compiled.is_ok_and(|status| status.success()) {
        println!("skipped: one_stat.c (no C compiler)");
        return;
    }
    let mut c_loop = stage.command(&program);
    c_loop.arg(&stage.library);
    let mut commands = vec![c_loop];
    for program in std::iter::once(&options.program).chain(&options.beside) {
        let mut gpumem = stage.command(program);
        gpumem.args(["ps", "--json", "--nvml-library"]).arg(&stage.library);
        commands.push(gpumem);
    }
    let still = stage.folder.path().join(STILL);
    let mut costs = vec![Vec::new(); commands.len()];
    for pair in 0..=if options.is_quick { 1 } else { PAIRS } {
        for (command, costs) in commands.iter_mut().zip(&mut costs) {
            let before = children_cpu_seconds();
            let status = command
                .env("GPUMEM_MOCK_SCENE", &still)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .status()
                .unwrap();
            assert!(status.success(), "{command:?}");
            // Ignore the first pair, which fills the caches.
            if pair > 0 {
                costs.push(children_cpu_seconds() - before);
            }
        }
    }
    let Stage { gpus, processes, .. } = stage;
    println!("{gpus} GPUs, {processes} processes, one-shot");
    println!("| program | CPU ms: median | / C loop |");
    println!("|---|---|---|");
    for (command, cost) in commands.iter().zip(&costs) {
        let ratios = cost.iter().zip(&costs[0]).map(|(seconds, c_loop)| seconds / c_loop);
        println!(
            "| {} | {:.1} | {:.1} |",
            name(command),
            median(cost.clone()) * 1e3,
            median(ratios.collect()),
        );
    }
}

/// Returns the CPU time of all terminated child processes and their descendants.
fn children_cpu_seconds() -> f64 {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).unwrap();
    let seconds = |time: TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 * 1e-6;
    seconds(usage.user_time()) + seconds(usage.system_time())
}

/// Measures all screens at the same time. Returns whether no program fails the benchmark.
fn screens(stage: &Stage, options: &Options) -> bool {
    let warm_up = Duration::from_secs(if options.is_quick { 2 } else { 60 });
    let rounds = options.rounds;
    let each_round = (options.seconds as u64).div_ceil(rounds as u64);
    let windows = each_round.div_ceil(WINDOW.as_secs()) as usize;

    // Each command is paired with its `MeasuredProgram::min_ratio`.
    let mut candidates = vec![
        Ok((stage.watch(&options.program, &[]), None)),
        Ok((stage.watch(&options.program, &["--no-store"]), None)),
        stage.nvtop().map(|command| (command, Some(MIN_NVTOP_RATIO))),
        stage.nvitop().map(|command| (command, None)),
    ];
    if let Some(path) = &options.beside {
        candidates.push(Ok((stage.watch(path, &[]), None)));
    }
    let (mut programs, mut missing) = (Vec::new(), Vec::new());
    for candidate in candidates {
        match candidate {
            Ok((command, min_ratio)) => {
                programs.push(MeasuredProgram { command, min_ratio, cost: Cost::default() });
            }
            Err(reason) => missing.push(reason),
        }
    }
    for round in 0..rounds {
        run(&mut programs, round, warm_up, windows);
    }

    println!(
        "{} GPUs, {} processes, {COLUMNS}x{ROWS}, one sample per second, {} windows of {} s",
        stage.gpus,
        stage.processes,
        rounds * windows,
        WINDOW.as_secs(),
    );
    println!(
        "| program | CPU ms per second: median | mean | min, max | / gpumem | RSS: current, peak | terminal output |"
    );
    println!("|---|---|---|---|---|---|---|");
    let mut has_failed = false;
    let ours = programs[0].cost.cpu_seconds.clone();
    for program in &programs {
        let (name, cost) = (name(&program.command), &program.cost);
        let milliseconds = |cpu_seconds: f64| cpu_seconds / WINDOW.as_secs_f64() * 1e3;
        let sorted = sorted(cost.cpu_seconds.clone());
        let ratios = cost.cpu_seconds.iter().zip(&ours).map(|(seconds, ours)| seconds / ours);
        let ratio = median(ratios.collect());
        println!(
            "| {name} | {:.2} | {:.2} | {:.2}, {:.2} | {ratio:.2} | {:.1} MiB, {:.1} MiB | {:.1} KiB/s |",
            milliseconds(median(sorted.clone())),
            milliseconds(sorted.iter().sum::<f64>() / sorted.len() as f64),
            milliseconds(sorted[0]),
            milliseconds(sorted[sorted.len() - 1]),
            cost.resident_mib,
            cost.peak_resident_mib,
            cost.written_bytes as f64 / (windows as f64 * WINDOW.as_secs_f64()) / 1024.0,
        );
        if !cost.screen.contains(SHOWN) {
            println!("{name} does not show {SHOWN}; its last screen:\n{}", cost.screen);
            has_failed = true;
        }
        if let Some(minimum) = program.min_ratio.filter(|minimum| ratio < *minimum) {
            println!(
                "failed: {name} takes {ratio:.2} of gpumem's CPU time; the minimum is {minimum}"
            );
            has_failed = true;
        }
    }
    for reason in missing {
        println!("skipped: {reason}");
    }
    !has_failed
}

/// Runs all programs at the same time, and adds their costs. Each round starts with a different program.
fn run(programs: &mut [MeasuredProgram], round: usize, warm_up: Duration, windows: usize) {
    let count = programs.len();
    let mut terminals: Vec<(usize, Terminal)> = Vec::with_capacity(count);
    for position in 0..count {
        let index = (position + round) % count;
        terminals.push((index, Terminal::start(&programs[index].command)));
        thread::sleep(STAGGER);
    }
    thread::sleep(warm_up);
    let written: Vec<u64> = terminals.iter().map(|(_, terminal)| terminal.written()).collect();
    for _ in 0..windows {
        let begun = Instant::now();
        let before: Vec<f64> =
            terminals.iter().map(|(_, terminal)| terminal.cpu_seconds()).collect();
        thread::sleep(WINDOW.saturating_sub(begun.elapsed()));
        for ((index, terminal), before) in terminals.iter().zip(before) {
            let cost = &mut programs[*index].cost;
            cost.cpu_seconds.push(terminal.cpu_seconds() - before);
        }
    }
    for ((index, terminal), written) in terminals.iter().zip(written) {
        let pid = terminal.child.id();
        let cost = &mut programs[*index].cost;
        cost.written_bytes = terminal.written() - written;
        cost.resident_mib = status_mib(pid, "VmRSS:");
        cost.peak_resident_mib = status_mib(pid, "VmHWM:");
        cost.screen = terminal.screen.lock().unwrap().0.screen().contents();
    }
}

fn sorted(mut values: Vec<f64>) -> Vec<f64> {
    values.sort_by(f64::total_cmp);
    values
}

fn median(values: Vec<f64>) -> f64 {
    let sorted = sorted(values);
    sorted[sorted.len() / 2]
}

/// Returns a program's name and arguments, without the directory and the option for the driver.
fn name(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap();
    let words = std::iter::once(program).chain(command.get_args());
    let words = words.map(|word| word.display().to_string());
    let words: Vec<String> = words.filter(|word| !word.starts_with('/')).collect();
    words.join(" ").replace(" --nvml-library", "")
}

fn find(program: &str) -> Option<PathBuf> {
    env::split_paths(&env::var_os("PATH")?)
        .map(|folder| folder.join(program))
        .find(|path| path.is_file())
}

struct MeasuredProgram {
    command: Command,
    /// The benchmark fails if this program's CPU time divided by gpumem's is lower. `None` if the ratio does not
    /// matter.
    min_ratio: Option<f64>,
    cost: Cost,
}

/// Resources that a program has used in all rounds.
#[derive(Default)]
struct Cost {
    cpu_seconds: Vec<f64>,
    resident_mib: f64,
    peak_resident_mib: f64,
    written_bytes: u64,
    screen: String,
}

/// The sleeping processes, and a directory with the scenes and the mock driver's library.
struct Stage {
    folder: tempfile::TempDir,
    _sleepers: Sleepers,
    library: PathBuf,
    gpus: usize,
    processes: usize,
}

impl Stage {
    fn new(gpus: usize, processes: usize, driver: &Path) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let sleepers = Sleepers::new(processes, processes / 4, Stdio::null);
        let (mut scene, mut still) = (Scene::new(), Scene::new());
        for gpu in 0..gpus {
            let mut unmoved = Gpu::default();
            let mut described = Gpu {
                utilization: Some(Utilization {
                    gpu: wave(gpu, 100.0),
                    memory: wave(gpu + 1, 60.0),
                }),
                power: Some(wave(gpu, 700_000.0)),
                ..Gpu::default()
            };
            let on_gpu = sleepers.0.iter().skip(gpu).step_by(gpus);
            for (at, child) in on_gpu.enumerate() {
                // A quarter of the processes grow, and another quarter are idle.
                let bytes = match at % 4 {
                    0 => Value::line([(0.0, 1e9), (300.0, 2e9)]),
                    _ => (1_u64 << 30).into(),
                };
                unmoved = unmoved.process(Process::compute(child.id(), 1_u64 << 30));
                let process = Process::compute(child.id(), bytes);
                described = described.process(match at % 4 {
                    1 => process,
                    _ => process.sm(wave(gpu + at, 90.0)),
                });
            }
            scene = scene.gpu(described);
            still = still.gpu(unmoved);
        }
        still.write(&folder.path().join(STILL)).unwrap();
        scene.write(&folder.path().join("scene.json")).unwrap();
        let library = folder.path().join("libnvidia-ml.so.1");
        symlink(driver, &library).unwrap();
        Self { folder, _sleepers: sleepers, library, gpus, processes }
    }

    /// Returns a command that uses the mock driver and ignores the user's settings.
    fn command(&self, program: &Path) -> Command {
        let folder = self.folder.path();
        let mut command = Command::new(program);
        command
            .env("GPUMEM_MOCK_SCENE", folder.join("scene.json"))
            .env("LD_LIBRARY_PATH", folder)
            .env("TERM", "xterm-256color")
            .env("LANG", "C.UTF-8")
            .env_remove("LC_ALL")
            .env_remove("NO_COLOR");
        for home in ["HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"] {
            command.env(home, folder);
        }
        command
    }

    fn watch(&self, program: &Path, arguments: &[&str]) -> Command {
        let mut command = self.command(program);
        command
            .args(["watch", "--interval", "1s"])
            .args(arguments)
            .arg("--nvml-library")
            .arg(&self.library)
            .env("STATE_DIRECTORY", self.folder.path());
        command
    }

    fn nvtop(&self) -> Result<Command, String> {
        let program = find("nvtop").ok_or("nvtop is not installed (apt install nvtop)")?;
        let mut command = self.command(&program);
        // `-d` takes tenths of a second.
        command.args(["-d", "10"]);
        Ok(command)
    }

    fn nvitop(&self) -> Result<Command, String> {
        let named = env::var_os("GPUMEM_NVITOP").map(PathBuf::from);
        let program = named
            .or_else(|| find("nvitop"))
            .ok_or("nvitop is not installed (pip install nvitop, or set GPUMEM_NVITOP=PATH)")?;
        let mut command = self.command(&program);
        command.args(["--monitor", "full", "--interval", "1"]);
        Ok(command)
    }
}

/// Returns a sine wave between 0 and `max`.
fn wave(phase: usize, max: f64) -> Value {
    let points = (0..600).map(|second| {
        let turn = f64::from(second) / 20.0 + phase as f64;
        (f64::from(second), (max * (0.5 + 0.5 * turn.sin())).round())
    });
    Value::Steps(points.collect())
}

/// Returns the CPU time of a process and its descendants, with nanosecond resolution. The 10 ms ticks of
/// `/proc/PID/stat` are longer than gpumem needs for a sample.
fn cpu_seconds(pid: u32) -> f64 {
    let clock = clock_getcpuclockid(Pid::from_raw(pid.cast_signed()));
    let time = clock.and_then(clock_gettime).unwrap();
    let process_seconds = time.tv_sec() as f64 + time.tv_nsec() as f64 * 1e-9;
    process_seconds + children(pid).into_iter().map(cpu_seconds).sum::<f64>()
}

fn children(pid: u32) -> Vec<u32> {
    let mut children = Vec::new();
    for thread in fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten() {
        let text = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        children.extend(text.split_whitespace().map(|pid| pid.parse::<u32>().unwrap()));
    }
    children
}

fn status_mib(pid: u32, field: &str) -> f64 {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(field));
    let kib: f64 = line.unwrap().trim().trim_end_matches(" kB").parse().unwrap();
    kib / 1024.0
}

/// A program in a pseudo-terminal. A thread reads the program's output.
struct Terminal {
    child: Child,
    screen: Arc<Mutex<(vt100::Parser, u64)>>,
}

impl Terminal {
    fn start(program: &Command) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let mut options = File::options();
        let slave = options.read(true).write(true).open(name.to_str().unwrap());
        let slave = slave.unwrap();
        let size =
            Winsize { ws_row: ROWS.get(), ws_col: COLUMNS.get(), ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&slave, size).unwrap();
        // Only a session leader can acquire a controlling terminal. setsid(1) forks only if it is a process group
        // leader, which it is not here, so the program has the child's PID.
        let mut command = Command::new("setsid");
        command.arg("--ctty").arg(program.get_program()).args(program.get_args());
        for (name, value) in program.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        let stdio = || Stdio::from(slave.try_clone().unwrap());
        command.stdin(stdio()).stdout(stdio()).stderr(stdio());
        let child = command.spawn().unwrap();
        let parser = vt100::Parser::new(ROWS, COLUMNS, 0);
        let screen = Arc::new(Mutex::new((parser, 0)));
        let reader = Arc::clone(&screen);
        let mut master = File::from(master);
        thread::spawn(move || {
            let mut bytes = vec![0; 64 * 1024];
            while let Ok(length @ 1..) = master.read(&mut bytes) {
                let mut screen = reader.lock().unwrap();
                screen.0.process(&bytes[..length]);
                screen.1 += length as u64;
            }
        });
        Self { child, screen }
    }

    fn cpu_seconds(&self) -> f64 {
        cpu_seconds(self.child.id())
    }

    fn written(&self) -> u64 {
        self.screen.lock().unwrap().1
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
