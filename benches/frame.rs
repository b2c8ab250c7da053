//! CPU time of drawing the screen: `cargo bench --bench frame`.
//!
//! The benchmark draws a 200x60 screen of a simulated machine with 1,000 processes, after ten minutes of history at
//! one sample per second. 10 % of the processes are idle, some leak, and all belong to families. For each view, the
//! benchmark measures the CPU time of processing a sample, of drawing the next frame, and of handling a key and
//! drawing its frame. Drawing includes composing the cells, comparing them with the previous frame, and writing the
//! changes. The ratio compares each frame with a frame of constant text in which every cell changes.
//!
//! The benchmark fails if the median of a frame, or of a key with its frame, exceeds [`MAX_MILLISECONDS`], or if a
//! frame without changes writes output. `--quick` runs few rounds, as a smoke test.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout)]

use std::cell::Cell;
use std::env;
use std::io::{self, BufWriter, Write};
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use gpumem::api::model::{
    CurrentUser, Gpu, GpuProcess, Memory, PidNamespace, Process, Snapshot, Time,
};
use gpumem::api::reclaim::Plan;
use gpumem::api::rules::{Engine, RuleSet};
use gpumem::api::watch::{
    App, DoubleBuffer, Effect, Event, Proposal, ReclaimProgress, ReclaimRequest, Setup, draw,
    update,
};
use ratatui::layout::Rect;
use ratatui::style::{Color, Style};
use rustix::time::{ClockId, clock_gettime};

const MAX_MILLISECONDS: f64 = 4.0;
const SCREEN: Rect = Rect::new(0, 0, 200, 60);
const PROCESSES: u32 = 1_000;

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;

/// The views, and the keys that lead to each view from the initial table.
const VIEWS: [(&str, &str); 11] = [
    ("table", ""),
    ("table, one selected", "jjj"),
    ("table, sorted by command", "od"),
    ("table, sorted by growth", "oy"),
    ("GPUs in the next layout", "v"),
    ("GPUs in the layout after that", "vv"),
    ("trees", "t"),
    ("filtered", "/mem>4GiB\r"),
    ("only findings", "f"),
    ("explained", "j\r"),
    ("a plan", "jx"),
];

fn main() -> ExitCode {
    let quick = env::args().any(|argument| argument == "--quick");
    let (history, rounds) = if quick { (60, 10) } else { (600, 200) };
    let floor = filling(rounds);
    println!("| GPUs | view | frame, ms: min | median | / filling | bytes | key | sample |");
    println!("|---|---|---|---|---|---|---|---|");
    println!(
        "| - | text, all cells changed | {:.3} | {:.3} | 1.0 | {} | - | - |",
        floor.frame.min(),
        floor.frame.median(),
        floor.bytes / rounds,
    );
    let mut is_slow = false;
    for gpus in [8, 16, 64] {
        for (view, keys) in VIEWS {
            if gpus != 16 && !keys.is_empty() {
                // The number of GPUs affects only the GPU panel, so measure the other views only with 16 GPUs.
                continue;
            }
            let cost = Screen::new(gpus, 10, history).measure(keys, rounds);
            is_slow |= cost.report(&floor, gpus, view, rounds);
        }
    }
    let cost = Screen::new(16, PROCESSES, history).measure("t", rounds);
    is_slow |= cost.report(&floor, 16, "trees, all one family", rounds);
    if is_slow && !quick {
        println!("a frame took more than {MAX_MILLISECONDS} ms");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// CPU times of the rounds, in milliseconds.
#[derive(Default)]
struct Times(Vec<f64>);

impl Times {
    fn measure<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let before = cpu_seconds();
        let value = work();
        self.0.push((cpu_seconds() - before) * 1e3);
        value
    }

    fn min(&self) -> f64 {
        self.0.iter().copied().fold(f64::INFINITY, f64::min)
    }

    fn median(&self) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        sorted[sorted.len() / 2]
    }
}

#[derive(Default)]
struct Cost {
    sample: Times,
    frame: Times,
    key: Times,
    bytes: usize,
}

impl Cost {
    /// Prints the costs. Returns whether a median exceeds the limit.
    fn report(&self, floor: &Self, gpus: u32, view: &str, rounds: usize) -> bool {
        println!(
            "| {gpus} | {view} | {:.3} | {:.3} | {:.1} | {} | {:.3} | {:.3} |",
            self.frame.min(),
            self.frame.median(),
            self.frame.median() / floor.frame.median(),
            self.bytes / rounds,
            self.key.median(),
            self.sample.median(),
        );
        self.frame.median().max(self.key.median()) > MAX_MILLISECONDS
    }
}

/// A writer that counts bytes and discards them.
#[derive(Clone, Default)]
struct Sink(Rc<Cell<usize>>);

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.set(self.0.get() + bytes.len());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Measures the cost of writing frames of constant text in which every cell changes.
fn filling(rounds: usize) -> Cost {
    let sink = Sink::default();
    let mut frames = DoubleBuffer::new(sink.clone(), SCREEN);
    let mut cost = Cost::default();
    let lines: Vec<String> =
        ('a'..='z').map(|letter| letter.to_string().repeat(usize::from(SCREEN.width))).collect();
    let style = Style::new().fg(Color::Green);
    for round in 0..rounds {
        cost.frame.measure(|| {
            frames
                .draw(|canvas| {
                    for y in 0..SCREEN.height {
                        let line = &lines[(round + usize::from(y)) % lines.len()];
                        canvas.set_string(0, y, line, style);
                    }
                })
                .unwrap();
        });
    }
    cost.bytes = sink.0.get();
    cost
}

struct Screen {
    machine: Machine,
    app: App,
}

impl Screen {
    fn new(gpus: u32, family: u32, history: u32) -> Self {
        let setup = Setup {
            replay: None,
            host: None,
            version: "0",
            me: CurrentUser::default(),
            has_color: true,
            ascii: false,
        };
        let engine = Engine::new(RuleSet::default());
        let interval = Duration::from_secs(1);
        let app = App::new(setup, engine, interval, SCREEN.width, SCREEN.height);
        let mut screen = Self { machine: Machine::new(gpus, family), app };
        for _ in 0..history {
            let event = screen.machine.event();
            update(&mut screen.app, event);
        }
        screen
    }

    fn press(&mut self, key: char) {
        if let Some(Effect::Reclaim(ReclaimRequest::Plan(question))) =
            update(&mut self.app, pressed(key))
        {
            let plan =
                Plan { time: question.snapshot.time, targets: Vec::new(), refused: Vec::new() };
            let line = |number: u32| {
                format!("{number}: SIGTERM, then SIGKILL after 10s, to python train.py")
            };
            let proposal = Proposal {
                plan: Arc::new(plan),
                lines: (0..PROCESSES).map(line).collect(),
                titles: Vec::new(),
            };
            let planned = ReclaimProgress::Planned { number: question.number, plan: Ok(proposal) };
            update(&mut self.app, Event::Reclaim(planned));
        }
    }

    fn measure(&mut self, keys: &str, rounds: usize) -> Cost {
        for key in keys.chars() {
            self.press(key);
        }
        let mut cost = Cost::default();
        let sink = Sink::default();
        let mut frames =
            DoubleBuffer::new(BufWriter::with_capacity(32 * 1024, sink.clone()), SCREEN);
        let mut draw = |app: &App| frames.draw(|canvas| draw(app, canvas)).unwrap();
        // Do not measure the first frame, because all of its cells change.
        draw(&self.app);
        for round in 0..rounds {
            let event = self.machine.event();
            cost.sample.measure(|| update(&mut self.app, event));
            let before = sink.0.get();
            cost.frame.measure(|| draw(&self.app));
            let written = sink.0.get();
            cost.bytes += written - before;
            draw(&self.app);
            assert_eq!(sink.0.get(), written, "nothing has changed");
            cost.key.measure(|| {
                update(&mut self.app, pressed(['j', 'k'][round % 2]));
                draw(&self.app);
            });
        }
        cost
    }
}

fn pressed(key: char) -> Event {
    let code = match key {
        '\r' => KeyCode::Enter,
        key => KeyCode::Char(key),
    };
    Event::Key(KeyEvent::new(code, KeyModifiers::NONE))
}

/// A machine with processes that train, leak or are idle.
struct Machine {
    now: Snapshot,
    seconds: u32,
}

impl Machine {
    fn new(gpus: u32, family: u32) -> Self {
        let mut now = Snapshot::new(Time::from_unix_milliseconds(1_763_706_000_000));
        now.host.hostname = Some("gpu26".into());
        now.host.boot_id = Some("a".into());
        now.host.pid_namespace = Some(PidNamespace::Host);
        now.driver.version = Some("580.159.03".into());
        let total_bytes = 20_000 * GIB;
        now.gpus = (0..gpus)
            .map(|index| Gpu {
                index,
                minor_number: Some(index),
                uuid: Some(format!("GPU-{index}").into()),
                name: Some("NVIDIA H200".into()),
                memory: Some(Memory {
                    total_bytes,
                    reserved_bytes: Some(GIB),
                    used_bytes: 0,
                    free_bytes: 0,
                }),
                temperature_celsius: Some(60),
                power_limit_watts: Some(700.0),
                memory_percent: Some(40),
                processes: Some(Vec::new()),
                ..Gpu::default()
            })
            .collect();
        for pid in 1..=PROCESSES {
            let gpu = &mut now.gpus[(pid % gpus) as usize];
            gpu.processes.get_or_insert_default().push(GpuProcess { pid, ..GpuProcess::default() });
            let first = pid - (pid - 1) % family;
            now.processes.push(Process {
                pid,
                start_ticks: Some(u64::from(pid) * 100),
                start_time: Some(now.time.plus_seconds(-86_400.0 - f64::from(pid))),
                state: Some(if pid.is_multiple_of(3) { 'R' } else { 'S' }),
                ppid: Some(if pid == first { 1_000_000 } else { first }),
                parent_is_reaper: Some(false),
                group_leader_alive: Some(true),
                command: Some(command(pid)),
                user: Some(["ann", "bob", "hana"][pid as usize % 3].into()),
                framework: Some(["pytorch", "jax", "vllm"][pid as usize % 3].into()),
                rss_bytes: Some(u64::from(pid) * 7 * MIB),
                listening: Some(false),
                cpu_seconds: Some(1000.0),
                ..Process::default()
            });
        }
        Self { now, seconds: 0 }
    }

    /// Advances the machine by one second and returns a sample in which almost every number has changed.
    fn event(&mut self) -> Event {
        self.seconds += 1;
        let second = self.seconds;
        self.now.time = self.now.time.plus_seconds(1.0);
        let is_idle = |pid: u32| pid.is_multiple_of(10);
        for gpu in &mut self.now.gpus {
            let mut held = 0;
            for row in gpu.processes.iter_mut().flatten() {
                let pid = row.pid;
                let percent = 1 + (pid * 7 + second * 13) % 90;
                row.sm_percent = Some(if is_idle(pid) { 0 } else { percent });
                row.memory_percent = Some(percent / 2);
                let moved = match pid % 20 {
                    _ if is_idle(pid) => 0,
                    19 => u64::from(second) * MIB,
                    _ => u64::from((pid * 31 + second * 17) % 512) * MIB,
                };
                let bytes = u64::from(1 + pid % 16) * GIB + moved;
                row.used_bytes = Some(bytes);
                held += bytes;
            }
            if let Some(memory) = &mut gpu.memory {
                memory.used_bytes = held + 2 * GIB;
                memory.free_bytes = memory.total_bytes - GIB - memory.used_bytes;
            }
            gpu.gpu_percent = Some((gpu.index * 37 + second * 11) % 101);
            gpu.power_watts = Some(f64::from(300 + (gpu.index + second) % 400));
        }
        for process in &mut self.now.processes {
            let pid = process.pid;
            let percent = match is_idle(pid) {
                true => 0.0,
                false => f64::from((pid * 3 + second * 29) % 1600) / 10.0,
            };
            process.cpu_percent = Some(percent);
            process.cpu_seconds = process.cpu_seconds.map(|total| total + percent / 100.0);
        }
        Event::Snapshot {
            now: Duration::from_secs(u64::from(second)),
            snapshot: Box::new(self.now.clone()),
        }
    }
}

fn command(pid: u32) -> Arc<[Arc<str>]> {
    let words = format!("python train.py --config configs/llama-{pid}.yaml --resume --seed {pid}");
    words.split(' ').map(Arc::from).collect()
}

fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}
