//! A machine on which processes do things; playing it gives a labelled recording.
//!
//! A family sets the stage: it says how long the recording is, who does what, and what should be found.
//! [`Stage::play`] measures that at an interval as NVML and /proc would: with noise, power and heat
//! that follow from the work, late and lost samples. What a driver or a clock does to a recording
//! afterwards is an edit of its snapshots. Who else is on the machine is in [`super::bystanders`].

use std::sync::Arc;

use gpumem::api::model::{
    Gpu, GpuProcess, Jupyter, Memory, Process, ProcessType, ReadError, Reservation, Snapshot, Time,
};

use super::doing::{Doing, Presence};
use super::machine::Machine;
use super::people;
use super::random::Random;
use super::scenario::{Labels, Scenario, Subject};

pub const MIB: u64 = 1 << 20;
pub const GIB: u64 = 1 << 30;

type Script = Box<dyn FnMut(f64, &mut Random) -> Doing>;
type Hidden = Box<dyn Fn(f64) -> u64>;
type Weather = Box<dyn Fn(f64, &mut Gpu)>;
type Edit = Box<dyn FnOnce(&mut Vec<Snapshot>, &mut Random)>;

struct Actor {
    process: Process,
    gpus: Vec<usize>,
    kind: ProcessType,
    script: Script,
    cpu_seconds: f64,
}

/// The stage that a family sets.
pub struct Stage {
    pub random: Random,
    pub machine: Machine,
    pub labels: Labels,
    /// The GPU that the story is about.
    pub gpu: usize,
    /// Whether nobody else is on the machine.
    pub is_lonely: bool,
    /// The share of samples that are lost.
    pub lost: f64,
    length: f64,
    interval: f64,
    began: Time,
    actors: Vec<Actor>,
    hidden: Vec<(usize, Hidden)>,
    given: Vec<(Reservation, f64)>,
    weather: Vec<Weather>,
    edits: Vec<Edit>,
}

impl Stage {
    /// An empty stage for a recording of half an hour to an hour.
    pub fn new(family: &str, seed: u64) -> Self {
        let mut random = Random::new(family, seed);
        let machine = Machine::new(&mut random);
        let began = 1_763_600_000_000 + random.whole(0, 1_700_000_000) as i64;
        let gpu = random.whole(0, machine.uuids.len() as u64 - 1) as usize;
        let mut stage = Self {
            machine,
            labels: Labels::default(),
            gpu,
            is_lonely: false,
            lost: random.pick(&[0.0, 0.0, 0.01, 0.02]),
            length: 0.0,
            interval: 0.0,
            began: Time::from_unix_milliseconds(began),
            actors: Vec::new(),
            hidden: Vec::new(),
            given: Vec::new(),
            weather: Vec::new(),
            edits: Vec::new(),
            random,
        };
        stage.minutes(28.0, 60.0);
        stage
    }

    /// Makes the recording this long, with an interval that gives 60 to 250 snapshots.
    pub fn minutes(&mut self, low: f64, high: f64) {
        self.length = self.random.range(low, high) * 60.0;
        let fits: Vec<f64> = [1.0, 2.0, 5.0, 10.0, 15.0, 20.0, 30.0, 60.0]
            .into_iter()
            .filter(|interval| (60.0..=250.0).contains(&(self.length / interval)))
            .collect();
        self.interval = if fits.is_empty() { 10.0 } else { self.random.pick(&fits) };
    }

    /// Samples every so many seconds.
    pub fn every(&mut self, seconds: f64) {
        self.interval = seconds;
    }

    pub fn interval(&self) -> f64 {
        self.interval
    }

    /// Seconds from the first sample to the last.
    pub fn end(&self) -> f64 {
        self.length
    }

    /// So many seconds before the end.
    pub fn before_end(&mut self, low: f64, high: f64) -> f64 {
        self.length - self.random.range(low, high.min(self.length * 0.9))
    }

    /// At this share of the recording.
    pub fn at(&mut self, low: f64, high: f64) -> f64 {
        self.length * self.random.range(low, high)
    }

    /// When an idle spell begins that is long enough to be found: with a margin, and lost samples.
    pub fn long_idle(&mut self) -> f64 {
        let longest = self.length * 0.75;
        self.before_end(720.0 + 4.0 * self.interval, longest.max(800.0 + 4.0 * self.interval))
    }

    /// That many GiB, in the steps that the driver allocates.
    pub fn gib(&mut self, low: f64, high: f64) -> u64 {
        let most = self.machine.model.total_bytes as f64 * 0.8;
        let bytes = (self.random.range(low, high) * GIB as f64).min(most);
        bytes as u64 / (2 * MIB) * (2 * MIB)
    }

    /// That share of the GPU's memory.
    pub fn share(&mut self, low: f64, high: f64) -> u64 {
        let total = self.machine.model.total_bytes as f64 / GIB as f64;
        let bytes = self.random.range(low, high) * total * GIB as f64;
        bytes as u64 / (2 * MIB) * (2 * MIB)
    }

    /// Gives the machine this many GPUs.
    pub fn gpus(&mut self, gpus: usize) {
        self.machine.resize(gpus, &mut self.random);
        self.gpu = self.gpu.min(gpus - 1);
    }

    pub fn trainer(&mut self) -> Process {
        people::trainer(&mut self.random)
    }

    pub fn notebook(&mut self) -> Process {
        people::notebook(&mut self.random)
    }

    pub fn someone(&mut self, words: &str) -> Process {
        people::someone(&mut self.random, words)
    }

    pub fn server(&mut self, words: &str, framework: Option<&str>) -> Process {
        people::server(&mut self.random, words, framework)
    }

    pub fn daemon(&mut self, words: &str, unit: &str) -> Process {
        people::daemon(&mut self.random, words, unit)
    }

    pub fn child(&mut self, parent: &Process) -> Process {
        people::child(&mut self.random, parent)
    }

    pub fn contain(&mut self, process: Process) -> Process {
        people::contain(&mut self.random, process)
    }

    pub fn submit(&mut self, process: Process) -> Process {
        people::submit(&mut self.random, process)
    }

    /// Makes the process as old as `hours`, at the most.
    fn age(&mut self, process: &mut Process, hours: f64) {
        if process.start_time.is_none() {
            let age = self.random.range(0.2, hours) * 3600.0;
            process.start_time = Some(self.began.plus_seconds(-age));
        }
        if self.machine.has_ticks {
            let since_boot =
                process.start_time.map(|at| at - Time::from_unix_milliseconds(1_760_000_000_000));
            process.start_ticks = since_boot.map(|ms| ms as u64 / 10);
        }
    }

    /// Makes a process that starts in the middle of the recording.
    pub fn born(&self, process: Process, at: f64) -> Process {
        Process { start_time: Some(self.began.plus_seconds(at - 0.4)), ..process }
    }

    /// Lets a process do something on the GPU of the story.
    pub fn act(
        &mut self,
        process: Process,
        script: impl FnMut(f64, &mut Random) -> Doing + 'static,
    ) -> u32 {
        self.act_on(process, &[self.gpu], ProcessType::Compute, script)
    }

    /// Lets a process do something on several GPUs, as a row of this type.
    pub fn act_on(
        &mut self,
        mut process: Process,
        gpus: &[usize],
        kind: ProcessType,
        script: impl FnMut(f64, &mut Random) -> Doing + 'static,
    ) -> u32 {
        self.age(&mut process, 60.0);
        let age = process.start_time.map_or(0.0, |at| self.began.seconds_since(at));
        let pid = process.pid;
        self.labels.kill_ok.entry(pid).or_insert(false);
        let cpu_seconds = (age.max(0.0) * self.random.range(0.05, 0.5) * 100.0).round() / 100.0;
        self.actors.push(Actor {
            process,
            gpus: gpus.to_vec(),
            kind,
            script: Box::new(script),
            cpu_seconds,
        });
        pid
    }

    /// Memory in use that no process has.
    pub fn hide(&mut self, gpu: usize, bytes: impl Fn(f64) -> u64 + 'static) {
        self.hidden.push((gpu, Box::new(bytes)));
    }

    /// Gives the GPU of the story to a job or a container at some time, perhaps before the beginning.
    pub fn give(&mut self, to: Reservation, at: f64) {
        let since = Some(self.began.plus_seconds(at));
        self.given.push((Reservation { since, ..to }, at));
    }

    /// Changes what a GPU of the story shows, at each moment.
    pub fn weather(&mut self, change: impl Fn(f64, &mut Gpu) + 'static) {
        self.weather.push(Box::new(change));
    }

    /// Changes the recording when it is made.
    pub fn edit(&mut self, edit: impl FnOnce(&mut Vec<Snapshot>, &mut Random) + 'static) {
        self.edits.push(Box::new(edit));
    }

    /// Changes each snapshot when the recording is made; `t` is in seconds since its beginning.
    pub fn edit_each(&mut self, edit: impl Fn(f64, &mut Snapshot) + 'static) {
        let began = self.began;
        self.edit(move |snapshots, _| {
            for snapshot in snapshots {
                edit(snapshot.time.seconds_since(began), snapshot);
            }
        });
    }

    /// Changes every GPU in each snapshot.
    pub fn edit_gpus(&mut self, edit: impl Fn(&mut Gpu) + 'static) {
        self.edit_each(move |_, snapshot| snapshot.gpus.iter_mut().for_each(&edit));
    }

    /// Changes a process in each snapshot.
    pub fn edit_process(&mut self, pid: u32, edit: impl Fn(f64, &mut Process) + 'static) {
        self.edit_each(move |t, snapshot| {
            snapshot.processes.iter_mut().filter(|it| it.pid == pid).for_each(|it| edit(t, it));
        });
    }

    /// A process is to be found guilty of this, and may be called the other things.
    pub fn accuse(&mut self, kind: &'static str, pid: u32, also: &[&'static str]) {
        self.labels.expected.push((kind, Subject::Process(pid)));
        self.allow(pid, also);
        if matches!(kind, "idle" | "orphan") {
            self.labels.kill_ok.insert(pid, true);
        }
    }

    /// A GPU is to be found to have memory that nobody accounts for.
    pub fn accuse_gpu(&mut self, gpu: usize) {
        self.labels.expected.push(("unattributed", Subject::Gpu(gpu as u32)));
    }

    /// A GPU is to be told of as info.
    pub fn note_gpu(&mut self, kind: &'static str, gpu: usize) {
        self.labels.noted.push((kind, Subject::Gpu(gpu as u32)));
    }

    /// A process may be found so, or not.
    pub fn allow(&mut self, pid: u32, kinds: &[&'static str]) {
        let verdicts = kinds.iter().map(|kind| (*kind, Subject::Process(pid)));
        self.labels.allowed.extend(verdicts);
    }

    /// Whether somebody of the story is on this GPU.
    pub fn is_taken(&self, gpu: usize) -> bool {
        let by_somebody = self.actors.iter().any(|actor| actor.gpus.contains(&gpu));
        let is_given = gpu == self.gpu && !self.given.is_empty();
        by_somebody || is_given || self.hidden.iter().any(|(hidden, _)| *hidden == gpu)
    }

    pub fn play(mut self, family: &'static str, story: &'static str, seed: u64) -> Scenario {
        if !self.is_lonely {
            super::bystanders::enter(&mut self);
        }
        let mut snapshots = Vec::new();
        let mut heat: Vec<f64> = vec![34.0; self.machine.uuids.len()];
        let mut previous: Option<f64> = None;
        let mut due = 0.0;
        while due <= self.length + 1e-6 {
            let late = self.random.range(0.0, (self.interval * 0.02).min(0.4));
            let t = ((due + late) * 1000.0).round() / 1000.0;
            let is_edge = due == 0.0 || due + self.interval > self.length;
            due += self.interval;
            if !is_edge && self.random.chance(self.lost) {
                continue;
            }
            let dt = previous.map_or(self.interval, |before| t - before);
            previous = Some(t);
            snapshots.push(self.measure(t, dt, &mut heat));
        }
        for edit in std::mem::take(&mut self.edits) {
            edit(&mut snapshots, &mut self.random);
        }
        Scenario { family, seed, story, labels: self.labels, snapshots }
    }

    fn measure(&mut self, t: f64, dt: f64, heat: &mut [f64]) -> Snapshot {
        let mut snapshot = Snapshot::new(self.began.plus_seconds(t));
        snapshot.host = self.machine.host.clone();
        snapshot.driver = self.machine.driver.clone();
        let given = self.given.iter().filter(|(_, at)| *at <= t);
        snapshot.reservations =
            (!self.given.is_empty()).then(|| given.map(|(it, _)| it.clone()).collect());
        let count = self.machine.uuids.len();
        let mut rows: Vec<Vec<GpuProcess>> = vec![Vec::new(); count];
        let mut use_of = vec![Use::default(); count];
        for actor in &mut self.actors {
            let doing = (actor.script)(t, &mut self.random);
            if doing.presence == Presence::Gone {
                continue;
            }
            snapshot.processes.push(show(actor, &doing, self.began, dt, &mut self.random));
            if doing.presence == Presence::Unlisted {
                continue;
            }
            for &gpu in &actor.gpus {
                let row = use_of[gpu].add(&doing, &self.machine, &mut self.random);
                rows[gpu].push(GpuProcess { pid: actor.process.pid, kind: actor.kind, ..row });
            }
        }
        for (index, rows) in rows.into_iter().enumerate() {
            let hidden = self.hidden.iter().filter(|(gpu, _)| *gpu == index);
            let hidden = hidden.map(|(_, bytes)| bytes(t)).sum();
            let mut gpu = self.gpu_at(index, rows, &use_of[index], hidden, dt, &mut heat[index]);
            if index == self.gpu {
                for change in &self.weather {
                    change(t, &mut gpu);
                }
            }
            if self.random.chance(0.006) {
                gpu.temperature_celsius = None;
                snapshot.errors.push(ReadError {
                    gpu: Some(index as u32),
                    call: "nvmlDeviceGetTemperature".into(),
                    error: "NVML_ERROR_UNKNOWN".into(),
                });
            }
            snapshot.gpus.push(gpu);
        }
        snapshot
    }

    fn gpu_at(
        &mut self,
        index: usize,
        rows: Vec<GpuProcess>,
        used: &Use,
        hidden: u64,
        dt: f64,
        heat: &mut f64,
    ) -> Gpu {
        let model = self.machine.model;
        let listed: u64 = rows.iter().filter_map(|row| row.used_bytes).sum();
        let own = (4 + self.machine.uuids[index].len() as u64 % 3 * 11) * MIB;
        let usable = model.total_bytes - model.reserved_bytes;
        let used_bytes = (listed + hidden + own).min(usable);
        let dynamic = (model.limit_watts - model.idle_watts) * 0.8 * used.load;
        let watts = (model.idle_watts + dynamic) * (1.0 + self.random.noise(0.012));
        let watts = watts.min(model.limit_watts * 1.01);
        let target = 33.0 + 44.0 * watts / model.limit_watts;
        *heat += (target - *heat) * (1.0 - (-dt / 60.0).exp());
        let is_busy = used.sm > 0.0;
        let clock = if is_busy { 1380.0 + 2.7 * used.sm } else { 345.0 };
        Gpu {
            index: index as u32,
            uuid: Some(self.machine.uuids[index].as_str().into()),
            name: Some(model.name.into()),
            pci_bus_id: Some(Machine::bus(index).into()),
            minor_number: Some(index as u32),
            memory: Some(Memory {
                total_bytes: model.total_bytes,
                reserved_bytes: Some(model.reserved_bytes),
                used_bytes,
                free_bytes: usable - used_bytes,
            }),
            gpu_percent: Some(used.percent()),
            memory_percent: Some(used.traffic.round().min(100.0) as u32),
            temperature_celsius: Some((*heat + self.random.noise(0.4)).round() as u32),
            power_watts: Some((watts * 10.0).round() / 10.0),
            power_limit_watts: Some(model.limit_watts),
            sm_clock_mhz: Some(clock as u32),
            fan_percent: model.has_fan.then_some((30.0 + *heat * 0.5) as u32),
            performance_state: Some(if rows.is_empty() { 8 } else { 0 }),
            processes: Some(rows),
            ..Gpu::default()
        }
    }
}

/// What all processes together do to a GPU.
#[derive(Clone, Copy, Default)]
struct Use {
    sm: f64,
    traffic: f64,
    load: f64,
}

impl Use {
    fn percent(&self) -> u32 {
        self.sm.round().min(100.0) as u32
    }

    /// Adds what a process does, and says what its row tells of it.
    fn add(&mut self, doing: &Doing, machine: &Machine, random: &mut Random) -> GpuProcess {
        let sm = if doing.sm > 0.0 {
            (doing.sm + random.noise(doing.sm_noise)).clamp(1.0, 100.0).round()
        } else {
            0.0
        };
        let traffic = (sm * doing.traffic).round();
        // Kernels of two processes take turns; what both want is partly lost.
        self.sm = (self.sm + sm * if self.sm > 0.0 { 0.4 } else { 1.0 }).min(100.0).max(sm);
        self.traffic = (self.traffic + traffic).min(100.0);
        self.load += sm / 100.0 * doing.load;
        // The row tells the highest of several samples, the GPU only the last.
        let peak = if sm > 0.0 { random.range(0.0, 6.0) * doing.sm_noise / 4.0 } else { 0.0 };
        let reported = |percent: f64| machine.has_process_use.then_some(percent.min(100.0) as u32);
        let codec = if machine.has_codecs { reported(0.0) } else { None };
        GpuProcess {
            used_bytes: doing.bytes,
            sm_percent: reported(sm + peak.floor()),
            memory_percent: reported(traffic),
            encoder_percent: codec,
            decoder_percent: codec,
            ..GpuProcess::default()
        }
    }
}

/// What /proc shows of an actor.
fn show(actor: &mut Actor, doing: &Doing, began: Time, dt: f64, random: &mut Random) -> Process {
    let process = &actor.process;
    if doing.presence == Presence::Missing {
        return Process { pid: process.pid, ..Process::default() };
    }
    let cpu = (doing.cpu * (1.0 + random.noise(0.08))).max(0.0);
    actor.cpu_seconds += cpu / 100.0 * dt;
    let state =
        doing.state.unwrap_or(if doing.cpu > 50.0 && random.chance(0.75) { 'R' } else { 'S' });
    let is_zombie = state == 'Z';
    let files = process.gpu_files.clone().unwrap_or_else(|| {
        let devices = actor.gpus.iter().map(|gpu| format!("/dev/nvidia{gpu}"));
        ["/dev/nvidiactl".to_owned(), "/dev/nvidia-uvm".to_owned()]
            .into_iter()
            .chain(devices)
            .map(Arc::from)
            .collect()
    });
    let mut shown = Process {
        state: Some(state),
        cpu_percent: Some((cpu * 10.0).round() / 10.0),
        cpu_seconds: Some((actor.cpu_seconds * 100.0).round() / 100.0),
        gpu_files: (!is_zombie).then_some(files),
        ..process.clone()
    };
    if is_zombie {
        shown.command = people::argv("").map(|_| Arc::from([]));
        shown.executable = None;
        shown.rss_bytes = Some(0);
        shown.threads = Some(1);
    }
    if let Some(adopter) = doing.adopter {
        shown.ppid = Some(adopter);
        shown.parent_is_reaper = Some(true);
        shown.group_leader_alive = Some(doing.has_a_script);
        shown.session_leader_alive = Some(doing.has_a_script);
    }
    if let (Some((state, active)), Some(known)) = (doing.notebook, &process.jupyter) {
        shown.jupyter = Some(Arc::new(Jupyter {
            execution_state: Some(state.into()),
            last_activity: Some(began.plus_seconds(active)),
            ..(**known).clone()
        }));
    }
    shown
}
