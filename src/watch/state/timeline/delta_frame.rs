//! One judged sample, which keeps what it has in common with the one before only once.
//!
//! What changes from sample to sample (CPU time, memory, how long a finding has lasted) is kept apart from
//! what does not, which is most: who a process is, what runs it, what helps. A field that is new to the model
//! is among what does not change, and is right there, if larger than need be.

use std::borrow::Borrow;
use std::io;
use std::mem::size_of;
use std::sync::Arc;

use serde::Serialize;

use crate::model::Time;
use crate::model::evidence::Evidence;
use crate::model::finding::{Also, Finding, Undecided};
use crate::model::process::Descendants;
use crate::model::snapshot::{Gpu, GpuProcess, MigDevice, Process, ReadError, Snapshot};
use crate::watch::waste::Waste;

/// Since when each row's process has not used its GPU, row by row.
type IdleTimes<'a> = &'a [Option<Time>];

/// So far a sample is searched for what the next one has in common with it.
const REACH: usize = 1024;
/// What a GPU's names take, about.
const NAMES_BYTES: usize = 256;

/// A judged sample.
#[derive(Debug)]
pub(super) struct DeltaFrame {
    /// The snapshot without processes, and its GPUs without rows.
    frame: Snapshot,
    /// By GPU.
    rows: Vec<Option<Vec<SharedBetweenFrames<GpuProcess>>>>,
    processes: Vec<SharedBetweenFrames<ProcessDelta>>,
    findings: Vec<SharedBetweenFrames<FindingDelta>>,
    undecided: SharedBetweenFrames<Vec<Undecided>>,
    waste: SharedBetweenFrames<Waste>,
    /// Since when each row's process has not used its GPU, row by row.
    idle: SharedBetweenFrames<Vec<Option<Time>>>,
    own_bytes: usize,
}

/// A process in one sample.
#[derive(PartialEq, Debug)]
struct ProcessDelta {
    lasting: SharedBetweenFrames<Process>,
    state: Option<char>,
    cpu_percent: Option<f64>,
    cpu_seconds: Option<f64>,
    rss_bytes: Option<u64>,
    threads: Option<u32>,
    descendants: Option<Arc<Descendants>>,
}

/// A finding in one sample.
#[derive(PartialEq, Debug)]
struct FindingDelta {
    lasting: SharedBetweenFrames<Finding>,
    duration_seconds: f64,
    memory_bytes: Option<u64>,
    evidence: Evidence,
    message: String,
    also: Vec<Also>,
}

impl DeltaFrame {
    /// Packs a sample; also says whether there is a finding in it that was not in the one `before`.
    pub(super) fn new(
        snapshot: &Snapshot,
        (findings, undecided, waste): (&[Finding], &[Undecided], &Waste),
        idle: IdleTimes<'_>,
        before: Option<&Self>,
    ) -> (Self, bool) {
        let rows = snapshot.gpus.iter().enumerate().map(|(at, gpu)| {
            let before = before.and_then(|it| it.rows.get(at)?.as_deref());
            let mut before = Before::new(before.unwrap_or_default());
            let rows = gpu.processes.as_ref()?.iter();
            let share = |row: &GpuProcess| {
                let known = before.find(|it| it.pid == row.pid);
                SharedBetweenFrames::new(*row, known, |_| 0)
            };
            Some(rows.map(share).collect())
        });
        let rows = rows.collect();
        let mut processes_before = Before::new(before.map_or(&[], |it| &it.processes));
        let processes = snapshot.processes.iter();
        let processes =
            processes.map(|process| ProcessDelta::pack(process, &mut processes_before)).collect();
        let mut has_beginning = false;
        let mut findings_before = Before::new(before.map_or(&[], |it| &it.findings));
        let findings = findings
            .iter()
            .map(|finding| {
                let known = findings_before.find(|it| it.lasting.get().id == finding.id);
                has_beginning |= known.is_none();
                FindingDelta::pack(finding, known)
            })
            .collect();
        let frame = Snapshot {
            schema: snapshot.schema,
            time: snapshot.time,
            host: snapshot.host.clone(),
            driver: snapshot.driver.clone(),
            gpus: snapshot.gpus.iter().map(without_rows).collect(),
            processes: Vec::new(),
            reservations: snapshot.reservations.clone(),
            errors: snapshot.errors.clone(),
        };
        let mut delta = Self {
            frame,
            rows,
            processes,
            findings,
            undecided: SharedBetweenFrames::of(undecided, before.map(|it| &it.undecided), |it| {
                let each = it.iter().map(|it| size_of::<Undecided>() + it.reason.len());
                each.sum()
            }),
            waste: SharedBetweenFrames::of(waste, before.map(|it| &it.waste), Waste::bytes),
            idle: SharedBetweenFrames::of(idle, before.map(|it| &it.idle), |it| size_of_val(&**it)),
            own_bytes: 0,
        };
        delta.own_bytes = delta.count_own();
        (delta, has_beginning)
    }

    /// What it takes beside what is shared.
    fn count_own(&self) -> usize {
        let gpus = self.frame.gpus.iter().map(|gpu| {
            let parts = gpu.mig_devices.len() * (size_of::<MigDevice>() + NAMES_BYTES);
            size_of::<Gpu>() + NAMES_BYTES + parts
        });
        let errors = self.frame.errors.iter();
        let errors = errors.map(|it| size_of::<ReadError>() + it.call.len() + it.error.len());
        let rows: usize = self.rows.iter().flatten().map(Vec::len).sum();
        let shared = rows + self.processes.len() + self.findings.len();
        let pointers = shared * size_of::<Arc<()>>();
        size_of::<Self>() + NAMES_BYTES + gpus.sum::<usize>() + errors.sum::<usize>() + pointers
    }

    /// What would be free if it were dropped now.
    pub(super) fn bytes(&self) -> usize {
        let rows = self.rows.iter().flatten().flatten();
        let processes = self.processes.iter();
        let findings = self.findings.iter();
        self.own_bytes
            + rows.map(SharedBetweenFrames::bytes).sum::<usize>()
            + processes.map(|it| it.bytes_with(|it| it.lasting.bytes())).sum::<usize>()
            + findings.map(|it| it.bytes_with(|it| it.lasting.bytes())).sum::<usize>()
            + self.undecided.bytes()
            + self.waste.bytes()
            + self.idle.bytes()
    }

    /// What was delta.
    pub(super) fn unpack(
        &self,
    ) -> (Snapshot, (Vec<Finding>, Vec<Undecided>, Waste), IdleTimes<'_>) {
        let mut snapshot = self.frame.clone();
        for (gpu, rows) in snapshot.gpus.iter_mut().zip(&self.rows) {
            let rows = rows.as_ref();
            gpu.processes = rows.map(|rows| rows.iter().map(|row| *row.get()).collect());
        }
        let processes = self.processes.iter();
        snapshot.processes = processes.map(|it| it.get().unpack()).collect();
        let findings = self.findings.iter().map(|it| it.get().unpack()).collect();
        let undecided = self.undecided.get().clone();
        let judged = (findings, undecided, self.waste.get().clone());
        (snapshot, judged, self.idle.get())
    }
}

fn without_rows(gpu: &Gpu) -> Gpu {
    // Field by field would be cheaper, and forget the next one.
    let mut bare = gpu.clone();
    bare.processes = None;
    bare
}

impl ProcessDelta {
    fn pack(process: &Process, before: &mut Before<'_, Self>) -> SharedBetweenFrames<Self> {
        let known = before.find(|it| it.lasting.get().pid == process.pid);
        let known_lasting = known.map(|it| &it.get().lasting);
        let lasting = SharedBetweenFrames::new(unmoved(process), known_lasting, written_bytes);
        let moment = Self {
            lasting,
            state: process.state,
            cpu_percent: process.cpu_percent,
            cpu_seconds: process.cpu_seconds,
            rss_bytes: process.rss_bytes,
            threads: process.threads,
            descendants: process.descendants.clone(),
        };
        SharedBetweenFrames::new(moment, known, |it| {
            let descendants = it.descendants.as_ref();
            descendants.map_or(0, |it| size_of::<Descendants>() + size_of_val(&*it.listed))
        })
    }

    fn unpack(&self) -> Process {
        Process {
            state: self.state,
            cpu_percent: self.cpu_percent,
            cpu_seconds: self.cpu_seconds,
            rss_bytes: self.rss_bytes,
            threads: self.threads,
            descendants: self.descendants.clone(),
            ..self.lasting.get().clone()
        }
    }
}

impl FindingDelta {
    fn pack(
        finding: &Finding,
        known: Option<&SharedBetweenFrames<Self>>,
    ) -> SharedBetweenFrames<Self> {
        let known_lasting = known.map(|it| &it.get().lasting);
        let lasting = SharedBetweenFrames::new(
            lasting(finding, known_lasting.map(SharedBetweenFrames::get)),
            known_lasting,
            written_bytes,
        );
        let verdict = Self {
            lasting,
            duration_seconds: finding.duration_seconds,
            memory_bytes: finding.memory_bytes,
            evidence: finding.evidence.clone(),
            message: finding.message.clone(),
            also: finding.also.clone(),
        };
        SharedBetweenFrames::new(verdict, known, |it| {
            let also = it.also.iter().map(|it| size_of::<Also>() + it.message.len());
            it.message.len() + also.sum::<usize>()
        })
    }

    fn unpack(&self) -> Finding {
        Finding {
            duration_seconds: self.duration_seconds,
            memory_bytes: self.memory_bytes,
            evidence: self.evidence.clone(),
            message: self.message.clone(),
            also: self.also.clone(),
            ..self.lasting.get().clone()
        }
    }
}

/// A process without what changes.
fn unmoved(process: &Process) -> Process {
    Process {
        state: None,
        cpu_percent: None,
        cpu_seconds: None,
        rss_bytes: None,
        // For rules, and on no panel: it is not kept.
        io_bytes: None,
        threads: None,
        descendants: None,
        ..process.clone()
    }
}

/// A finding without what changes; the evidence is that of the known one.
fn lasting(finding: &Finding, known: Option<&Finding>) -> Finding {
    Finding {
        evidence: known.unwrap_or(finding).evidence.clone(),
        duration_seconds: 0.0,
        memory_bytes: None,
        message: String::new(),
        also: Vec::new(),
        ..finding.clone()
    }
}

/// A value that several samples have in common.
#[derive(Debug)]
struct SharedBetweenFrames<T>(Arc<SharedValue<T>>);

#[derive(Debug)]
struct SharedValue<T> {
    value: T,
    /// What it takes.
    bytes: usize,
}

impl<T: PartialEq> SharedBetweenFrames<T> {
    /// The value, or the known one where it is equal. `more` is what it takes beside itself.
    fn new(value: T, known: Option<&Self>, more: impl FnOnce(&T) -> usize) -> Self {
        match known {
            Some(known) if known.0.value == value => known.clone(),
            _ => {
                let bytes = size_of::<SharedValue<T>>() + 2 * size_of::<usize>() + more(&value);
                Self(Arc::new(SharedValue { value, bytes }))
            }
        }
    }
}

impl<T> SharedBetweenFrames<T> {
    /// The same of a value that is somebody else's, and is copied only where it is not the known one.
    fn of<B>(value: &B, known: Option<&Self>, more: impl FnOnce(&T) -> usize) -> Self
    where
        B: ?Sized + PartialEq + ToOwned<Owned = T>,
        T: PartialEq + Borrow<B>,
    {
        match known {
            Some(known) if known.get().borrow() == value => known.clone(),
            _ => Self::new(value.to_owned(), None, more),
        }
    }

    fn get(&self) -> &T {
        &self.0.value
    }

    /// What would be free if this were dropped: nothing where another one has it, too.
    fn bytes(&self) -> usize {
        self.bytes_with(|_| 0)
    }

    /// The same, with what else would be free.
    fn bytes_with(&self, more: impl FnOnce(&T) -> usize) -> usize {
        match Arc::strong_count(&self.0) {
            1 => self.0.bytes + more(self.get()),
            _ => 0,
        }
    }
}

impl<T> Clone for SharedBetweenFrames<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> PartialEq for SharedBetweenFrames<T> {
    /// Whether it is the very same one.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// Finds in the sample before what there is in the next, mostly in the same order.
struct Before<'a, T> {
    list: &'a [SharedBetweenFrames<T>],
    at: usize,
}

impl<'a, T> Before<'a, T> {
    fn new(list: &'a [SharedBetweenFrames<T>]) -> Self {
        Self { list, at: 0 }
    }

    fn find(&mut self, is_it: impl Fn(&T) -> bool) -> Option<&'a SharedBetweenFrames<T>> {
        let (passed, ahead) = self.list.split_at(self.at);
        let mut places = (self.at..).zip(ahead).chain((0..).zip(passed)).take(REACH);
        let (at, found) = places.find(|(_, it)| is_it(it.get()))?;
        self.at = at + 1;
        Some(found)
    }
}

/// What a value takes in memory, about: as much as when it is written.
fn written_bytes<T: Serialize>(value: &T) -> usize {
    struct Count(usize);
    impl io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0);
    // What cannot be written is counted as far as it was.
    let _ = serde_json::to_writer(&mut count, value);
    count.0
}
