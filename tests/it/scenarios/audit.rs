//! The corpus's table of rules, read to the letter with hindsight, to check the labels themselves.
//!
//! Each threshold is taken twice: harder by 15 %, where every expected finding has to stand, and easier
//! by 15 %, where nothing may stand but what is expected or allowed. It shares no code with the rules
//! that it helps to judge. A leak is only checked to have grown.

use std::collections::BTreeSet;

use gpumem::api::model::{
    Gpu, GpuProcess, Identity, PidNamespace, Process, ProcessType, Snapshot, Time,
};

use super::scenario::{Labels, Scenario, Subject, Verdict};
use super::stage::{GIB, MIB};

/// How far thresholds are moved.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Margin(f64);

impl Margin {
    pub const HARDER: Self = Self(1.15);
    pub const EASIER: Self = Self(0.85);

    fn least(self, threshold: f64) -> f64 {
        threshold * self.0
    }

    fn most(self, threshold: f64) -> f64 {
        threshold / self.0
    }

    /// What an unknown sample counts as: nothing for the accused, or nothing at all.
    fn unknown(self) -> Option<bool> {
        (self == Self::HARDER).then_some(false)
    }
}

/// What is wrong with the labels of a scenario; empty where nothing is.
pub fn complaints(scenario: &Scenario) -> Vec<String> {
    let hindsight = Hindsight::new(scenario);
    let (hard, easy) = (hindsight.verdicts(Margin::HARDER), hindsight.verdicts(Margin::EASIER));
    let labels = &scenario.labels;
    let mut complaints = Vec::new();
    for (kind, subject) in &labels.expected {
        let is_clear = match (*kind, subject) {
            ("leak", Subject::Process(pid)) => hindsight.has_grown(*pid),
            ("placeholder", Subject::Process(pid)) => hindsight.has_run(*pid, 3600.0),
            verdict => hard.contains(&(verdict.0, *subject)),
        };
        if !is_clear {
            complaints.push(format!("{kind} of {subject} is expected, and is not clear"));
        }
    }
    for note in labels.noted.iter().filter(|note| !hard.contains(note)) {
        complaints.push(format!("{} of {} is noted, and is not clear", note.0, note.1));
    }
    for verdict @ (kind, subject) in &easy {
        let is_labelled = labels.noted.contains(verdict)
            || labels.expected.contains(verdict)
            || labels.allowed.contains(verdict);
        if !is_labelled && !labels.beyond_the_letter.contains(kind) {
            complaints.push(format!("{kind} of {subject} is close, and not in the labels"));
        }
    }
    complaints
}

/// The part of a recording that counts, in order.
struct Hindsight<'a> {
    snapshots: Vec<&'a Snapshot>,
    labels: &'a Labels,
}

impl<'a> Hindsight<'a> {
    fn new(scenario: &'a Scenario) -> Self {
        let mut snapshots: Vec<&Snapshot> = scenario.snapshots.iter().collect();
        let boot = snapshots.last().and_then(|last| last.host.boot_id.clone());
        snapshots.retain(|snapshot| snapshot.host.boot_id == boot);
        snapshots.sort_by_key(|snapshot| snapshot.time);
        snapshots.dedup_by_key(|snapshot| snapshot.time);
        let after_gap = snapshots
            .windows(2)
            .rposition(|pair| pair[1].time.seconds_since(pair[0].time) > 3600.0);
        snapshots.drain(..after_gap.map_or(0, |at| at + 1));
        Self { snapshots, labels: &scenario.labels }
    }

    fn last(&self) -> &'a Snapshot {
        self.snapshots[self.snapshots.len() - 1]
    }

    /// For how many seconds and samples something has been so, until the end.
    fn lasts(&self, margin: Margin, so: impl Fn(&Snapshot) -> Option<bool>) -> (f64, usize) {
        let mut since = None;
        let mut samples = 0;
        for snapshot in self.snapshots.iter().rev() {
            match so(snapshot).or(margin.unknown()) {
                Some(true) => {
                    since = Some(snapshot.time);
                    samples += 1;
                }
                Some(false) => break,
                None => {}
            }
        }
        let seconds = since.map_or(0.0, |since| self.last().time.seconds_since(since));
        (seconds, samples)
    }

    fn verdicts(&self, margin: Margin) -> BTreeSet<Verdict> {
        let mut found = BTreeSet::new();
        for process in &self.last().processes {
            for (kind, is_so) in [
                ("idle", self.is_idle(process, margin)),
                ("orphan", self.is_orphan(process, margin)),
                ("stopped", self.stays(process, 'T', margin)),
                ("stuck", self.stays(process, 'D', margin)),
                ("hung", self.is_hung(process, margin)),
            ] {
                if is_so {
                    found.insert((kind, Subject::Process(process.pid)));
                }
            }
        }
        for gpu in &self.last().gpus {
            for row in gpu.processes.iter().flatten() {
                if self.is_dead(row.pid, margin) {
                    found.insert(("dead", Subject::Process(row.pid)));
                }
            }
            let (seconds, _) =
                self.lasts(margin, |snapshot| has_unattributed(snapshot, gpu.index, margin));
            if seconds >= margin.least(60.0) {
                found.insert(("unattributed", Subject::Gpu(gpu.index)));
            }
            if self.is_reserved(gpu, margin) {
                found.insert(("reserved", Subject::Gpu(gpu.index)));
            }
        }
        found
    }

    /// Whether somebody was given a GPU, and nobody has been on it since.
    fn is_reserved(&self, gpu: &Gpu, margin: Margin) -> bool {
        let last = self.last();
        let needed = margin.least(1800.0);
        let names =
            |device: &str| device == gpu.index.to_string() || gpu.uuid.as_deref() == Some(device);
        let is_old = |since: Time| last.time.seconds_since(since) >= needed;
        let given = last.reservations.iter().flat_map(|all| all.iter());
        let is_given = given
            .filter(|it| it.since.is_some_and(is_old))
            .any(|it| it.devices.iter().any(|device| names(device)));
        let file = format!("/dev/nvidia{}", gpu.minor_number.unwrap_or(gpu.index));
        let is_unused = |snapshot: &Snapshot| {
            let gpu = at_index(snapshot, gpu.index)?;
            let has_file = |process: &Process| {
                let mut files = process.gpu_files.iter().flat_map(|files| files.iter());
                process.uid != Some(0) && files.any(|name| **name == *file)
            };
            let somebody = gpu.processes.iter().flatten();
            let somebody = somebody.filter(|row| row.kind != ProcessType::Graphics);
            Some(somebody.count() == 0 && !snapshot.processes.iter().any(has_file))
        };
        let is_seen = last.host.pid_namespace == Some(PidNamespace::Host);
        is_seen && is_given && self.lasts(margin, is_unused).0 >= needed
    }

    fn has_run(&self, pid: u32, seconds: f64) -> bool {
        let start = self.last().process(pid).and_then(|it| it.start_time);
        start.is_some_and(|start| self.last().time.seconds_since(start) >= seconds)
    }

    fn is_idle(&self, process: &Process, margin: Margin) -> bool {
        let identity = process.identity();
        if self.labels.servers.contains(&process.pid) || !identity.is_certain() {
            return false;
        }
        let needed = margin.least(600.0);
        let is_unused_on = |gpu: &Gpu| {
            let holds = row(gpu, process.pid).is_some_and(|row| {
                row.kind != ProcessType::Graphics
                    && row.used_bytes.is_some_and(|bytes| bytes as f64 >= margin.least(GIB as f64))
            });
            holds
                && self.lasts(margin.for_gaps(), |snapshot| unused(snapshot, identity, gpu.index)).0
                    >= needed
        };
        self.last().gpus.iter().any(is_unused_on)
            && self.mean_cpu(identity, 600.0).is_some_and(|mean| mean < margin.most(20.0))
            && process
                .jupyter
                .as_ref()
                .and_then(|kernel| kernel.last_activity)
                .is_none_or(|active| self.last().time.seconds_since(active) >= needed)
    }

    fn mean_cpu(&self, identity: Identity, window: f64) -> Option<f64> {
        let end = self.last().time;
        let recent =
            self.snapshots.iter().filter(|snapshot| end.seconds_since(snapshot.time) < window);
        let known: Vec<f64> =
            recent.filter_map(|snapshot| find(snapshot, identity)?.cpu_percent).collect();
        (!known.is_empty()).then(|| known.iter().sum::<f64>() / known.len() as f64)
    }

    fn is_orphan(&self, process: &Process, margin: Margin) -> bool {
        let identity = process.identity();
        if process.parent_is_reaper != Some(true) || process.group_leader_alive != Some(false) {
            return false;
        }
        let last = self.last();
        let listed: Vec<&Gpu> =
            last.gpus.iter().filter(|gpu| row(gpu, process.pid).is_some()).collect();
        let holds_hidden = last.gpus.iter().any(|gpu| {
            let file = format!("/dev/nvidia{}", gpu.minor_number.unwrap_or(gpu.index));
            let has_file =
                process.gpu_files.iter().flat_map(|files| files.iter()).any(|name| **name == *file);
            has_file && has_unattributed(last, gpu.index, margin) == Some(true)
        });
        if listed.is_empty() && !holds_hidden {
            return false;
        }
        let needed = margin.least(120.0);
        listed.iter().all(|gpu| {
            self.lasts(margin.for_gaps(), |snapshot| unused(snapshot, identity, gpu.index)).0
                >= needed
        })
    }

    fn stays(&self, process: &Process, state: char, margin: Margin) -> bool {
        let identity = process.identity();
        let holds = self.last().gpus.iter().any(|gpu| {
            row(gpu, process.pid).is_some_and(|row| row.used_bytes.is_none_or(|bytes| bytes > 0))
        });
        let (seconds, _) = self.lasts(margin, |snapshot| {
            find(snapshot, identity).and_then(|process| process.state).map(|now| now == state)
        });
        holds && seconds >= margin.least(120.0)
    }

    fn is_dead(&self, pid: u32, margin: Margin) -> bool {
        if self.last().host.pid_namespace != Some(PidNamespace::Host) {
            return false;
        }
        let (seconds, samples) = self.lasts(margin, |snapshot| {
            let is_listed = snapshot.gpus.iter().any(|gpu| row(gpu, pid).is_some());
            let state = snapshot.process(pid).and_then(|process| process.state);
            Some(is_listed && state.is_none_or(|state| state == 'Z'))
        });
        samples >= 2 && seconds >= margin.least(30.0)
    }

    fn is_hung(&self, process: &Process, margin: Margin) -> bool {
        self.last().gpus.iter().any(|gpu| self.is_hung_on(process.pid, gpu.index, margin))
    }

    fn is_hung_on(&self, pid: u32, gpu: u32, margin: Margin) -> bool {
        // The GPU's use and power while the process was active on it.
        let active = |snapshot: &Snapshot| {
            let gpu = at_index(snapshot, gpu)?;
            let row = row(gpu, pid).filter(|row| row.kind != ProcessType::Graphics)?;
            let (percent, watts) = gpu.gpu_percent.zip(gpu.power_watts)?;
            (row.sm_percent.unwrap_or(percent) > 10).then_some((percent, watts))
        };
        let samples = self.snapshots.iter();
        let mut watts: Vec<f64> =
            samples.filter_map(|snapshot| active(snapshot).map(|(_, watts)| watts)).collect();
        watts.sort_by(f64::total_cmp);
        // With hindsight, what it drew at work is what the heaviest tenth of the samples show.
        let heavy = &watts[watts.len() - watts.len() / 10..];
        let mean = heavy.iter().sum::<f64>() / heavy.len() as f64;
        // 15 % above 95 % is more than all.
        let full = margin.least(95.0).min(98.0) as u32;
        let (seconds, _) = self.lasts(margin, |snapshot| {
            active(snapshot)
                .map(|(percent, watts)| percent >= full && watts < margin.most(0.4) * mean)
        });
        seconds >= margin.least(600.0)
    }

    /// Whether a process's floor has risen enough, over long enough, and until the end.
    fn has_grown(&self, pid: u32) -> bool {
        self.last().gpus.iter().any(|gpu| {
            let curve: Vec<(f64, f64)> = self
                .snapshots
                .iter()
                .filter_map(|snapshot| {
                    let bytes = row(at_index(snapshot, gpu.index)?, pid)?.used_bytes? as f64;
                    Some((snapshot.time.seconds_since(self.snapshots[0].time), bytes))
                })
                .collect();
            let Some((end, _)) = curve.last().copied() else {
                return false;
            };
            let floor = |from: f64, to: f64| {
                let part = curve.iter().filter(|(t, _)| (from..=to).contains(t));
                part.map(|(_, bytes)| *bytes).fold(f64::INFINITY, f64::min)
            };
            // Some window does, of those that a rule may choose.
            (0..8).any(|eighth| {
                let begin = end * f64::from(eighth) / 10.0;
                let span = end - begin;
                let third = span / 3.0;
                let floors =
                    [0.0, 1.0, 2.0].map(|n| floor(begin + n * third, begin + (n + 1.0) * third));
                let last = floor(end - span / 6.0, end);
                span >= 900.0 * 1.15
                    && last - floors[0] >= 256.0 * 1.15 * MIB as f64
                    && floors[2] > floors[1]
                    && last - floors[2] >= (last - floors[0]) * 0.05
            })
        })
    }
}

impl Margin {
    /// Single lost samples neither prove nor break a time without use, either way.
    fn for_gaps(self) -> Self {
        Self(self.0.min(1.149_999))
    }
}

fn at_index(snapshot: &Snapshot, index: u32) -> Option<&Gpu> {
    snapshot.gpus.iter().find(|gpu| gpu.index == index)
}

fn row(gpu: &Gpu, pid: u32) -> Option<&GpuProcess> {
    gpu.processes.as_ref()?.iter().find(|row| row.pid == pid)
}

fn find(snapshot: &Snapshot, identity: Identity) -> Option<&Process> {
    snapshot.processes.iter().find(|process| process.identity() == identity)
}

/// Whether a process did not use a GPU; `None` where nothing tells.
fn unused(snapshot: &Snapshot, identity: Identity, gpu: u32) -> Option<bool> {
    let gpu = at_index(snapshot, gpu)?;
    if find(snapshot, identity).is_none() {
        return Some(false);
    }
    let row = row(gpu, identity.pid)?;
    match row.sm_percent {
        Some(percent) => Some(percent == 0),
        None => gpu.gpu_percent.map(|percent| percent == 0),
    }
}

/// Whether a GPU has memory in use that no process has; `Some(false)` also where that is not judged.
fn has_unattributed(snapshot: &Snapshot, index: u32, margin: Margin) -> Option<bool> {
    let gpu = at_index(snapshot, index)?;
    let is_judged =
        snapshot.host.pid_namespace == Some(PidNamespace::Host) && gpu.mig_mode != Some(true);
    let (Some(memory), Some(known), true) = (gpu.memory, gpu.process_bytes(), is_judged) else {
        return Some(false);
    };
    // What memory info v1 does not tell apart is nobody's, and no more than a GiB.
    let reserved =
        if memory.reserved_bytes.is_none() && margin == Margin::HARDER { GIB } else { 0 };
    let gap = memory.used_bytes.saturating_sub(known + reserved);
    Some(gap as f64 >= margin.least(GIB as f64))
}
