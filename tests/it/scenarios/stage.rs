//! A simulated machine with processes, which is recorded with labels.
//!
//! A family sets the length of the recording, the processes with their activities, and the expected findings.
//! [`Stage::play`] takes samples with noise, power and temperature that match the activity, and late and lost
//! samples. Edits then change the snapshots, to simulate faults of a driver or clock. [`super::bystanders`] adds
//! unrelated processes.

use std::sync::Arc;

use gpumem::api::model::{
    Gpu, GpuProcess, Jupyter, Memory, Process, ProcessType, ReadError, Reservation, Snapshot, Time,
};

use super::doing::{Activity, Presence};
use super::machine::Machine;
use super::people;
use super::random::Random;
use super::scenario::{Labels, Scenario, Subject};

pub const MIB: u64 = 1 << 20;
pub const GIB: u64 = 1 << 30;

type Script = Box<dyn FnMut(f64, &mut Random) -> Activity>;
type Unattributed = Box<dyn Fn(f64) -> u64>;
type GpuChange = Box<dyn Fn(f64, &mut Gpu)>;
type Edit = Box<dyn FnOnce(&mut Vec<Snapshot>, &mut Random)>;

struct Actor {
    process: Process,
    gpus: Vec<usize>,
    kind: ProcessType,
    script: Script,
    cpu_seconds: f64,
}

pub struct Stage {
    pub random: Random,
    pub machine: Machine,
    pub labels: Labels,
    /// The GPU that the scenario is about.
    pub gpu: usize,
    /// Set if the machine has no bystanders.
    pub is_lonely: bool,
    /// Fraction of samples that are lost.
    pub lost: f64,
    length: f64,
    interval: f64,
    start: Time,
    actors: Vec<Actor>,
    unattributed: Vec<(usize, Unattributed)>,
    reservations: Vec<(Reservation, f64)>,
    gpu_changes: Vec<GpuChange>,
    edits: Vec<Edit>,
}

impl Stage {
    /// Creates an empty stage. The recording lasts about half an hour to an hour.
    pub fn new(family: &str, seed: u64) -> Self {
        let mut random = Random::new(family, seed);
        let machine = Machine::new(&mut random);
        let start = 1_763_600_000_000 + random.whole(0, 1_700_000_000) as i64;
        let gpu = random.whole(0, machine.uuids.len() as u64 - 1) as usize;
        let mut stage = Self {
            machine,
            labels: Labels::default(),
            gpu,
            is_lonely: false,
            lost: random.pick(&[0.0, 0.0, 0.01, 0.02]),
            length: 0.0,
            interval: 0.0,
            start: Time::from_unix_milliseconds(start),
            actors: Vec::new(),
            unattributed: Vec::new(),
            reservations: Vec::new(),
            gpu_changes: Vec::new(),
            edits: Vec::new(),
            random,
        };
        stage.minutes(28.0, 60.0);
        stage
    }

    /// Sets the length of the recording, and an interval that results in 60 to 250 snapshots.
    pub fn minutes(&mut self, low: f64, high: f64) {
        self.length = self.random.range(low, high) * 60.0;
        let fits: Vec<f64> = [1.0, 2.0, 5.0, 10.0, 15.0, 20.0, 30.0, 60.0]
            .into_iter()
            .filter(|interval| (60.0..=250.0).contains(&(self.length / interval)))
            .collect();
        self.interval = if fits.is_empty() { 10.0 } else { self.random.pick(&fits) };
    }

    pub fn every(&mut self, seconds: f64) {
        self.interval = seconds;
    }

    pub fn interval(&self) -> f64 {
        self.interval
    }

    /// Returns the length of the recording in seconds.
    pub fn end(&self) -> f64 {
        self.length
    }

    /// Picks a time that is `low` to `high` seconds before the end.
    pub fn before_end(&mut self, low: f64, high: f64) -> f64 {
        self.length - self.random.range(low, high.min(self.length * 0.9))
    }

    /// Picks a time between two fractions of the recording's length.
    pub fn at(&mut self, low: f64, high: f64) -> f64 {
        self.length * self.random.range(low, high)
    }

    /// Picks the start of an idle period that is long enough for a finding, with a margin for lost samples.
    pub fn long_idle(&mut self) -> f64 {
        let longest = self.length * 0.75;
        self.before_end(720.0 + 4.0 * self.interval, longest.max(800.0 + 4.0 * self.interval))
    }

    /// Picks a number of bytes between two sizes in GiB, rounded to the driver's allocation size.
    pub fn gib(&mut self, low: f64, high: f64) -> u64 {
        let limit = self.machine.model.total_bytes as f64 * 0.8;
        let bytes = (self.random.range(low, high) * GIB as f64).min(limit);
        bytes as u64 / (2 * MIB) * (2 * MIB)
    }

    /// Picks a number of bytes between two sizes in MiB.
    pub fn mib(&mut self, low: u64, high: u64) -> u64 {
        self.random.whole(low / 2, high / 2) * 2 * MIB
    }

    /// Picks a number of bytes between two fractions of the GPU's memory.
    pub fn share(&mut self, low: f64, high: f64) -> u64 {
        let total = self.machine.model.total_bytes as f64 / GIB as f64;
        let bytes = self.random.range(low, high) * total * GIB as f64;
        bytes as u64 / (2 * MIB) * (2 * MIB)
    }

    pub fn gpus(&mut self, gpus: usize) {
        self.machine.resize(gpus, &mut self.random);
        self.gpu = self.gpu.min(gpus - 1);
    }

    /// Unless the process has a start time, gives it a random age of at most `hours` at the start of the recording.
    fn age(&mut self, process: &mut Process, hours: f64) {
        if process.start_time.is_none() {
            let age = self.random.range(0.2, hours) * 3600.0;
            process.start_time = Some(self.start.plus_seconds(-age));
        }
        if self.machine.has_ticks {
            let since_boot =
                process.start_time.map(|at| at - Time::from_unix_milliseconds(1_760_000_000_000));
            process.start_ticks = since_boot.map(|ms| ms as u64 / 10);
        }
    }

    /// Sets the start time of a process to a time during the recording.
    pub fn started_at(&self, process: Process, at: f64) -> Process {
        Process { start_time: Some(self.start.plus_seconds(at - 0.4)), ..process }
    }

    /// Adds a process on the scenario's GPU. Returns the pid.
    pub fn add(
        &mut self,
        process: Process,
        script: impl FnMut(f64, &mut Random) -> Activity + 'static,
    ) -> u32 {
        self.add_on(process, &[self.gpu], script)
    }

    /// Adds a process on several GPUs. Returns the pid.
    pub fn add_on(
        &mut self,
        process: Process,
        gpus: &[usize],
        script: impl FnMut(f64, &mut Random) -> Activity + 'static,
    ) -> u32 {
        self.add_of_kind(ProcessType::Compute, process, gpus, script)
    }

    /// Adds a process that NVML lists as a process of this kind. Returns the pid.
    pub fn add_of_kind(
        &mut self,
        kind: ProcessType,
        mut process: Process,
        gpus: &[usize],
        script: impl FnMut(f64, &mut Random) -> Activity + 'static,
    ) -> u32 {
        self.age(&mut process, 60.0);
        let age = process.start_time.map_or(0.0, |at| self.start.seconds_since(at));
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

    /// Adds memory that is in use but belongs to no process.
    pub fn add_unattributed(&mut self, gpu: usize, bytes: impl Fn(f64) -> u64 + 'static) {
        self.unattributed.push((gpu, Box::new(bytes)));
    }

    /// Allocates the scenario's GPU to a job or a container from `at` on. A negative `at` is before the recording.
    pub fn reserve(&mut self, reservation: Reservation, at: f64) {
        let since = Some(self.start.plus_seconds(at));
        self.reservations.push((Reservation { since, ..reservation }, at));
    }

    /// Changes the scenario's GPU in each snapshot.
    pub fn edit_scenario_gpu(&mut self, change: impl Fn(f64, &mut Gpu) + 'static) {
        self.gpu_changes.push(Box::new(change));
    }

    /// Changes the finished recording.
    pub fn edit(&mut self, edit: impl FnOnce(&mut Vec<Snapshot>, &mut Random) + 'static) {
        self.edits.push(Box::new(edit));
    }

    /// Changes each snapshot of the finished recording. `edit` receives the time in seconds.
    pub fn edit_each(&mut self, edit: impl Fn(f64, &mut Snapshot) + 'static) {
        let start = self.start;
        self.edit(move |snapshots, _| {
            for snapshot in snapshots {
                edit(snapshot.time.seconds_since(start), snapshot);
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
            let process = snapshot.processes.iter_mut().filter(|process| process.pid == pid);
            process.for_each(|process| edit(t, process));
        });
    }

    /// Expects a finding about a process, and allows findings of the kinds in `also`.
    pub fn expect_finding(&mut self, kind: &'static str, pid: u32, also: &[&'static str]) {
        self.labels.expected.push((kind, Subject::Process(pid)));
        self.allow(pid, also);
        if matches!(kind, "idle" | "orphan") {
            self.labels.kill_ok.insert(pid, true);
        }
    }

    /// Expects a finding of unattributed memory on a GPU.
    pub fn expect_unattributed(&mut self, gpu: usize) {
        self.labels.expected.push(("unattributed", Subject::Gpu(gpu as u32)));
    }

    /// Expects an info finding about a GPU.
    pub fn expect_info(&mut self, kind: &'static str, gpu: usize) {
        self.labels.noted.push((kind, Subject::Gpu(gpu as u32)));
    }

    /// Allows findings about a process.
    pub fn allow(&mut self, pid: u32, kinds: &[&'static str]) {
        let verdicts = kinds.iter().map(|kind| (*kind, Subject::Process(pid)));
        self.labels.allowed.extend(verdicts);
    }

    /// Returns whether the scenario uses a GPU.
    pub fn is_taken(&self, gpu: usize) -> bool {
        let has_process = self.actors.iter().any(|actor| actor.gpus.contains(&gpu));
        let is_reserved = gpu == self.gpu && !self.reservations.is_empty();
        has_process || is_reserved || self.unattributed.iter().any(|(index, _)| *index == gpu)
    }

    pub fn play(mut self, family: &'static str, story: &'static str, seed: u64) -> Scenario {
        if !self.is_lonely {
            super::bystanders::add_bystanders(&mut self);
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
            snapshots.push(self.sample(t, dt, &mut heat));
        }
        for edit in std::mem::take(&mut self.edits) {
            edit(&mut snapshots, &mut self.random);
        }
        Scenario { family, seed, story, labels: self.labels, snapshots }
    }

    fn sample(&mut self, t: f64, dt: f64, heat: &mut [f64]) -> Snapshot {
        let mut snapshot = Snapshot::new(self.start.plus_seconds(t));
        snapshot.host = self.machine.host.clone();
        snapshot.driver = self.machine.driver.clone();
        let active = self.reservations.iter().filter(|(_, at)| *at <= t);
        let active = active.map(|(reservation, _)| reservation.clone());
        snapshot.reservations = (!self.reservations.is_empty()).then(|| active.collect());
        let count = self.machine.uuids.len();
        let mut rows: Vec<Vec<GpuProcess>> = vec![Vec::new(); count];
        let mut uses = vec![Use::default(); count];
        for actor in &mut self.actors {
            let activity = (actor.script)(t, &mut self.random);
            if activity.presence == Presence::Gone {
                continue;
            }
            snapshot.processes.push(observe(actor, &activity, self.start, dt, &mut self.random));
            if activity.presence == Presence::Unlisted {
                continue;
            }
            for &gpu in &actor.gpus {
                let row = uses[gpu].add(&activity, &self.machine, &mut self.random);
                rows[gpu].push(GpuProcess { pid: actor.process.pid, kind: actor.kind, ..row });
            }
        }
        for (index, rows) in rows.into_iter().enumerate() {
            let unattributed = self.unattributed.iter().filter(|(gpu, _)| *gpu == index);
            let unattributed = unattributed.map(|(_, bytes)| bytes(t)).sum();
            let mut gpu =
                self.gpu_at(index, rows, &uses[index], unattributed, dt, &mut heat[index]);
            if index == self.gpu {
                for change in &self.gpu_changes {
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
        unattributed: u64,
        dt: f64,
        heat: &mut f64,
    ) -> Gpu {
        let model = self.machine.model;
        let listed: u64 = rows.iter().filter_map(|row| row.used_bytes).sum();
        let driver_bytes = (4 + self.machine.uuids[index].len() as u64 % 3 * 11) * MIB;
        let usable = model.total_bytes - model.reserved_bytes;
        let used_bytes = (listed + unattributed + driver_bytes).min(usable);
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

/// The total activity on a GPU.
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

    /// Adds the activity of a process. Returns the row of the process.
    fn add(&mut self, activity: &Activity, machine: &Machine, random: &mut Random) -> GpuProcess {
        let sm = if activity.sm > 0.0 {
            (activity.sm + random.noise(activity.sm_noise)).clamp(1.0, 100.0).round()
        } else {
            0.0
        };
        let traffic = (sm * activity.traffic).round();
        // The kernels of two processes alternate, so the total is less than the sum.
        self.sm = (self.sm + sm * if self.sm > 0.0 { 0.4 } else { 1.0 }).min(100.0).max(sm);
        self.traffic = (self.traffic + traffic).min(100.0);
        self.load += sm / 100.0 * activity.load;
        // The row contains the maximum of several samples, but the GPU's value comes from the last sample alone.
        let peak = if sm > 0.0 { random.range(0.0, 6.0) * activity.sm_noise / 4.0 } else { 0.0 };
        let reported = |percent: f64| machine.has_process_use.then_some(percent.min(100.0) as u32);
        let codec = if machine.has_codecs { reported(0.0) } else { None };
        GpuProcess {
            used_bytes: activity.bytes,
            sm_percent: reported(sm + peak.floor()),
            memory_percent: reported(traffic),
            encoder_percent: codec,
            decoder_percent: codec,
            ..GpuProcess::default()
        }
    }
}

/// Returns the data that gpumem would read about an actor from /proc.
fn observe(
    actor: &mut Actor,
    activity: &Activity,
    start: Time,
    dt: f64,
    random: &mut Random,
) -> Process {
    let process = &actor.process;
    if activity.presence == Presence::Missing {
        return Process { pid: process.pid, ..Process::default() };
    }
    let cpu = (activity.cpu * (1.0 + random.noise(0.08))).max(0.0);
    actor.cpu_seconds += cpu / 100.0 * dt;
    let state = activity.state.unwrap_or(if activity.cpu > 50.0 && random.chance(0.75) {
        'R'
    } else {
        'S'
    });
    let is_zombie = state == 'Z';
    let files = process.gpu_files.clone().unwrap_or_else(|| {
        let devices = actor.gpus.iter().map(|gpu| format!("/dev/nvidia{gpu}"));
        ["/dev/nvidiactl".to_owned(), "/dev/nvidia-uvm".to_owned()]
            .into_iter()
            .chain(devices)
            .map(Arc::from)
            .collect()
    });
    let mut observed = Process {
        state: Some(state),
        cpu_percent: Some((cpu * 10.0).round() / 10.0),
        cpu_seconds: Some((actor.cpu_seconds * 100.0).round() / 100.0),
        gpu_files: (!is_zombie).then_some(files),
        ..process.clone()
    };
    if is_zombie {
        observed.command = people::argv("").map(|_| Arc::from([]));
        observed.executable = None;
        observed.rss_bytes = Some(0);
        observed.threads = Some(1);
    }
    if let Some(adopter) = activity.adopter {
        observed.ppid = Some(adopter);
        observed.parent_is_reaper = Some(true);
        observed.group_leader_alive = Some(activity.has_a_script);
        observed.session_leader_alive = Some(activity.has_a_script);
    }
    if let (Some((state, active)), Some(jupyter)) = (activity.notebook, &process.jupyter) {
        observed.jupyter = Some(Arc::new(Jupyter {
            execution_state: Some(state.into()),
            last_activity: Some(start.plus_seconds(active)),
            ..(**jupyter).clone()
        }));
    }
    observed
}
