//! What is on show: one snapshot, what the rules say of it, and its rows in order.
//!
//! A row is a (process, GPU) pair, or a process that holds GPU device files and is listed on no GPU.
//! Rows hold positions and the few numbers that a snapshot does not;
//! text is made in `view`, for the rows that are visible only. Sorting compares values, never text
//! made of them, and what is unknown comes last whichever way the order is turned.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::sync::Arc;

use unicode_width::UnicodeWidthStr;

use super::app::Me;
use super::column::Column;
use super::trend;
use crate::history::course::{Course, Courses};
use crate::model::finding::{Finding, Undecided};
use crate::model::snapshot::{Gpu, GpuProcess, LastKnown, Process, Snapshot};
use crate::model::{Identity, Start, Time};

/// What makes two rows of different snapshots the same row.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RowKey {
    /// The process.
    pub identity: Identity,
    /// NVML's index of the GPU; of an unlisted process, of the first one that it holds open.
    pub gpu: Option<u32>,
    /// GPU instance and compute instance, under MIG.
    pub instance: (Option<u32>, Option<u32>),
}

/// A process on a GPU.
#[derive(Clone, Debug)]
pub struct Row {
    /// Who and where.
    pub key: RowKey,
    /// Seconds without use of this GPU: 0 while it is used, `None` where that is unknown.
    pub idle_seconds: Option<f64>,
    /// Seconds since the process started.
    pub runtime_seconds: Option<f64>,
    /// The finding about it, by position.
    pub finding: Option<usize>,
    /// Its share of the GPU; nothing is known in it where it is not listed.
    pub entry: GpuProcess,
    /// Whether NVML lists it.
    pub is_listed: bool,
    gpu: Option<usize>,
    process: Option<usize>,
}

/// A row's parts, looked up.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// The row.
    pub row: &'a Row,
    /// Its GPU.
    pub gpu: Option<&'a Gpu>,
    /// The process, or why it could not be told who that is. What /proc says of an unresolved pid
    /// may be about a stranger, and is not given out.
    pub process: Result<&'a Process, &'a str>,
    /// The worst finding about it.
    pub finding: Option<&'a Finding>,
    snapshot: &'a Snapshot,
}

impl<'a> Subject<'a> {
    /// Whether it is this user's: by number where that is known, or else by name.
    pub fn is_of(&self, me: &Me) -> Option<bool> {
        let process = self.process.ok()?;
        if let (Some(mine), Some(uid)) = (me.uid, process.uid) {
            return Some(mine == uid);
        }
        Some(me.name.as_deref()? == process.user.as_deref()?)
    }

    /// Whether it is on the GPU of this index, or holds its files.
    pub fn is_on(&self, gpu: u32) -> Option<bool> {
        if self.row.is_listed {
            return Some(self.row.key.gpu? == gpu);
        }
        let process = self.process.ok()?;
        let gpu = self.snapshot.gpus.iter().find(|it| it.index == gpu);
        gpu.map_or(Some(false), |gpu| gpu.is_open_in(process))
    }

    /// How its memory on this GPU moved; `None` where it was never seen there.
    pub fn course<'c>(&self, courses: &'c Courses) -> Option<&'c Course> {
        if !self.row.is_listed {
            return None;
        }
        courses.row(self.row.key.identity, self.gpu?, &self.row.entry)
    }

    /// By how many bytes its memory grew in the window that ends with this sample.
    pub fn growth_bytes(&self, courses: &Courses) -> Option<i64> {
        trend::growth_bytes(self.course(courses)?, self.snapshot.time)
    }

    /// Its share of the memory of the GPU, or of the part of it that it is on.
    pub fn memory_percent(&self) -> Option<f64> {
        let (gpu_instance, compute_instance) = self.row.key.instance;
        let memory = match gpu_instance {
            Some(_) => self.gpu?.mig_device(gpu_instance, compute_instance)?.memory,
            None => self.gpu?.memory,
        };
        let total = memory?.total_bytes;
        (total > 0).then(|| self.row.entry.used_bytes.map(|used| percent(used, total)))?
    }

    /// The GPU, or the part of it, or the GPUs whose files it holds; `None` where that is none.
    pub fn place_on_gpus(&self) -> Option<String> {
        let (gpu_instance, compute_instance) = self.row.key.instance;
        let text = match self.process {
            Ok(process) if !self.row.is_listed => self.snapshot.held_gpus(process),
            _ => self.gpu?.part_name(gpu_instance, compute_instance),
        };
        Some(text).filter(|text| !text.is_empty())
    }

    /// Which files it holds, where it is not listed.
    pub fn holding(&self) -> Option<String> {
        let process = self.process.ok().filter(|_| !self.row.is_listed)?;
        Some(self.snapshot.holding(process))
    }

    /// What it was, where it has ended.
    pub fn ended(&self) -> Option<&'a LastKnown> {
        self.snapshot.processes.get(self.row.process?)?.ended()
    }

    /// What it is to the Multi-Process Service.
    pub fn mps_role(&self) -> Option<&'static str> {
        let entry = Some(&self.row.entry);
        self.process.ok()?.mps_role(entry)
    }
}

/// `part` of `whole` in percent.
pub fn percent(part: u64, whole: u64) -> f64 {
    part as f64 * 100.0 / whole as f64
}

/// Terminal columns that the widest text of a column needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Widths {
    /// Of GPUs and their parts.
    pub gpu: u16,
    /// Of pids.
    pub pid: u16,
    /// Of users, within bounds.
    pub user: u16,
    /// Of frameworks, within bounds; 0 where none is known.
    pub framework: u16,
    /// Of places, within bounds; 0 where none is known.
    pub place: u16,
    /// Of badges; 0 where there is none.
    pub finding: u16,
}

/// The order of the rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sort {
    /// By what.
    pub column: Column,
    /// Against the column's own direction.
    pub reversed: bool,
}

impl Sort {
    /// Whether the most comes first.
    pub fn descending(self) -> bool {
        self.column.spec().descending != self.reversed
    }
}

/// One snapshot, judged and in order.
#[derive(Clone, Debug)]
pub struct Picture {
    /// What was observed.
    pub snapshot: Snapshot,
    /// What is so now, worst first.
    pub findings: Vec<Finding>,
    /// The rules that could not be decided.
    pub undecided: Vec<Undecided>,
    /// The table.
    pub rows: Vec<Row>,
    /// How wide its columns are.
    pub widths: Widths,
}

impl Picture {
    /// Joins a snapshot with what the rules say of it. `idle_since` tells since when a process has
    /// not used a GPU. Rows are in no order yet.
    pub fn new(
        snapshot: Snapshot,
        findings: Vec<Finding>,
        undecided: Vec<Undecided>,
        idle_since: impl Fn(Identity, u32) -> Option<Time>,
    ) -> Self {
        let processes: HashMap<u32, usize> = snapshot
            .processes
            .iter()
            .enumerate()
            .map(|(at, process)| (process.pid, at))
            .collect();
        let about: HashMap<Identity, usize> = findings
            .iter()
            .enumerate()
            .filter_map(|(at, finding)| Some((finding.process.as_ref()?.identity, at)))
            .collect();

        let mut rows = Vec::new();
        for (gpu_at, gpu) in snapshot.gpus.iter().enumerate() {
            for entry in gpu.processes.iter().flatten() {
                let process_at = processes.get(&entry.pid).copied();
                let process = process_at.map(|at| &snapshot.processes[at]);
                let identity = process.map_or(
                    Identity {
                        pid: entry.pid,
                        start: Start::Unknown,
                    },
                    Process::identity,
                );
                let known = process.filter(|process| stranger(process).is_none());
                let finding = about
                    .get(&identity)
                    .copied()
                    .filter(|&at| concerns(&findings[at], gpu.index));
                rows.push(Row {
                    key: RowKey {
                        identity,
                        gpu: Some(gpu.index),
                        instance: (entry.gpu_instance_id, entry.compute_instance_id),
                    },
                    idle_seconds: match entry.sm_percent {
                        Some(1..) => Some(0.0),
                        _ => idle_since(identity, gpu.index)
                            .map(|since| snapshot.time.seconds_since(since).max(0.0)),
                    },
                    runtime_seconds: known
                        .and_then(|process| process.start_time)
                        .map(|start| snapshot.time.seconds_since(start).max(0.0)),
                    finding,
                    entry: *entry,
                    is_listed: true,
                    gpu: Some(gpu_at),
                    process: process_at,
                });
            }
        }
        for process in snapshot.unlisted_holders() {
            let identity = process.identity();
            let gpu = snapshot
                .gpus
                .iter()
                .position(|gpu| gpu.is_open_in(process) == Some(true));
            let start = process.start_time.filter(|_| stranger(process).is_none());
            rows.push(Row {
                key: RowKey {
                    identity,
                    gpu: gpu.map(|at| snapshot.gpus[at].index),
                    instance: (None, None),
                },
                idle_seconds: None,
                runtime_seconds: start.map(|start| snapshot.time.seconds_since(start).max(0.0)),
                // What is found of it is of a GPU that does not list it.
                finding: about.get(&identity).copied(),
                entry: GpuProcess {
                    pid: process.pid,
                    ..GpuProcess::default()
                },
                is_listed: false,
                gpu,
                process: processes.get(&process.pid).copied(),
            });
        }
        let mut picture = Self {
            snapshot,
            findings,
            undecided,
            rows,
            widths: Widths::default(),
        };
        picture.widths = picture.measure();
        picture
    }

    /// The row at a position, with its parts.
    pub fn subject(&self, at: usize) -> Option<Subject<'_>> {
        self.rows.get(at).map(|row| self.parts(row))
    }

    fn parts<'a>(&'a self, row: &'a Row) -> Subject<'a> {
        Subject {
            row,
            gpu: row.gpu.map(|at| &self.snapshot.gpus[at]),
            process: match row.process.map(|at| &self.snapshot.processes[at]) {
                None => Err("nothing is known of it"),
                Some(process) => stranger(process).map_or(Ok(process), Err),
            },
            finding: row.finding.map(|at| &self.findings[at]),
            snapshot: &self.snapshot,
        }
    }

    /// The rows' places in order; equal ones by GPU and pid, so that nothing moves without a reason.
    /// How memory moved is in `courses`.
    pub fn order(&self, sort: Sort, courses: &Courses) -> Vec<usize> {
        let mut order: Vec<(Value<'_>, usize)> = self
            .rows
            .iter()
            .enumerate()
            .map(|(at, row)| (Value::of(&self.parts(row), sort.column, courses), at))
            .collect();
        order.sort_by(|(left, left_at), (right, right_at)| {
            let tie = |row: &Row| (row.key.gpu, row.key.identity, row.key.instance);
            left.compare(right, sort.descending())
                .then_with(|| tie(&self.rows[*left_at]).cmp(&tie(&self.rows[*right_at])))
        });
        order.into_iter().map(|(_, at)| at).collect()
    }

    fn measure(&self) -> Widths {
        let mut widths = Widths {
            gpu: 4,
            pid: 5,
            user: 5,
            ..Widths::default()
        };
        for row in &self.rows {
            let subject = self.parts(row);
            widths.pid = widths.pid.max(digits(row.key.identity.pid));
            if !row.is_listed || row.key.instance.0.is_some() {
                let text = subject.place_on_gpus().unwrap_or_default();
                widths.gpu = widths.gpu.max(wide(&text));
            }
            if let Ok(process) = subject.process {
                if process.namespace_pid.is_some() {
                    widths.pid = widths.pid.max(wide(&process.pid_text()));
                }
                let place = process.place();
                widths.place = widths.place.max(place.map_or(0, |text| wide(&text)));
                widths.user = widths.user.max(columns(process.user.as_ref()));
                let framework = match process.framework_version {
                    Some(_) => process.framework_text().map_or(0, |text| wide(&text)),
                    None => columns(process.framework.as_ref()),
                };
                widths.framework = widths.framework.max(framework);
            }
            let ended = subject.ended().and_then(|it| it.user.as_ref());
            widths.user = widths.user.max(columns(ended));
            if let Some(finding) = subject.finding {
                widths.finding = widths.finding.max(wide(&badge(finding)));
            }
        }
        widths.user = widths.user.min(12);
        widths.framework = match widths.framework {
            0 => 0,
            width => width.clamp(10, 16),
        };
        widths.gpu = widths.gpu.min(10);
        widths.place = match widths.place {
            0 => 0,
            width => width.clamp(6, 24),
        };
        widths.finding = match widths.finding {
            0 => 0,
            width => width.clamp(8, 18),
        };
        widths
    }
}

/// The finding in a word or two: `IDLE 29m`, `ORPHAN 29m +1` where something else is so as well.
pub fn badge(finding: &Finding) -> String {
    let mut text = finding.kind.to_string().to_uppercase();
    let span = crate::units::Span::from_seconds(finding.duration_seconds).to_string();
    text.push(' ');
    // The largest unit says enough here; the exact span is in the message.
    text.push_str(span.split(' ').next().unwrap_or_default());
    if !finding.also.is_empty() {
        text.push_str(&format!(" +{}", finding.also.len()));
    }
    text
}

/// Why /proc's word on this pid is not to be believed; `None` where it is.
fn stranger(process: &Process) -> Option<&str> {
    match &process.unresolved {
        Some(reason) => Some(reason),
        None if !process.identity().is_certain() => Some("/proc does not know this pid"),
        None => None,
    }
}

/// Whether a finding is about this GPU, or about the process as a whole.
fn concerns(finding: &Finding, gpu: u32) -> bool {
    finding.gpus.is_empty() || finding.gpus.iter().any(|of| of.index == gpu)
}

fn digits(number: u32) -> u16 {
    number.checked_ilog10().unwrap_or(0) as u16 + 1
}

fn columns(text: Option<&Arc<str>>) -> u16 {
    text.map_or(0, |text| wide(text))
}

fn wide(text: &str) -> u16 {
    u16::try_from(text.width()).unwrap_or(u16::MAX)
}

/// What a cell is sorted by.
#[derive(Clone, Debug)]
enum Value<'a> {
    Number(f64),
    Text(&'a str),
    Made(String),
    Words(&'a [Arc<str>]),
    Unknown,
}

impl<'a> Value<'a> {
    fn of(subject: &Subject<'a>, column: Column, courses: &Courses) -> Self {
        let row = subject.row;
        let entry = &row.entry;
        let process = subject.process.ok();
        let number = |value: Option<f64>| value.map_or(Self::Unknown, Self::Number);
        let text = |value: Option<&'a Arc<str>>| value.map_or(Self::Unknown, |it| Self::Text(it));
        match column {
            Column::Gpu => number(row.key.gpu.map(f64::from)),
            Column::Pid => Self::Number(f64::from(row.key.identity.pid)),
            Column::User => text(match process {
                Some(process) => process.user.as_ref(),
                None => subject.ended().and_then(|it| it.user.as_ref()),
            }),
            Column::Memory => number(entry.used_bytes.map(|bytes| bytes as f64)),
            Column::MemoryPercent => number(subject.memory_percent()),
            Column::History => number(subject.growth_bytes(courses).map(|it| it as f64)),
            Column::SmPercent => number(entry.sm_percent.map(f64::from)),
            Column::CpuPercent => number(process.and_then(|it| it.cpu_percent)),
            Column::HostMemory => number(
                process
                    .and_then(|it| it.rss_bytes)
                    .map(|bytes| bytes as f64),
            ),
            Column::State => number(
                process
                    .and_then(|it| it.state)
                    .map(|state| f64::from(u32::from(state))),
            ),
            Column::Idle => number(row.idle_seconds),
            Column::Runtime => number(row.runtime_seconds),
            Column::Framework => text(process.and_then(|it| it.framework.as_ref())),
            Column::Place => process
                .and_then(Process::place)
                .map_or(Self::Unknown, Self::Made),
            // Findings come worst first, so that the first one is the most.
            Column::Finding => number(row.finding.map(|at| -(at as f64))),
            Column::Command => match process {
                None => match subject.ended() {
                    Some(LastKnown {
                        command: Some(words),
                        ..
                    }) => Self::Words(words),
                    ended => text(ended.and_then(|it| it.comm.as_ref())),
                },
                Some(process) => match (notebook(process), process.command.as_deref()) {
                    (Some(path), _) => Self::Text(path),
                    (None, Some(words)) if !words.is_empty() => Self::Words(words),
                    (None, _) => text(process.comm.as_ref()),
                },
            },
        }
    }

    fn compare(&self, other: &Self, descending: bool) -> Ordering {
        let turn = |ordering: Ordering| {
            if descending {
                ordering.reverse()
            } else {
                ordering
            }
        };
        match (self, other) {
            (Self::Unknown, Self::Unknown) => Ordering::Equal,
            (Self::Unknown, _) => Ordering::Greater,
            (_, Self::Unknown) => Ordering::Less,
            (Self::Number(left), Self::Number(right)) => turn(left.total_cmp(right)),
            _ => turn(self.words().cmp(other.words())),
        }
    }

    fn words(&self) -> impl Iterator<Item = &str> {
        let (one, many): (Option<&str>, &[Arc<str>]) = match self {
            Self::Text(text) => (Some(text), &[]),
            Self::Made(text) => (Some(text), &[]),
            Self::Words(words) => (None, words),
            Self::Number(_) | Self::Unknown => (None, &[]),
        };
        one.into_iter().chain(many.iter().map(|word| &**word))
    }
}

/// The notebook that a process is the kernel of.
pub fn notebook(process: &Process) -> Option<&str> {
    process.jupyter.as_ref()?.notebook_path.as_deref()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch::sample;

    fn pids(picture: &Picture, sort: Sort, courses: &Courses) -> Vec<u32> {
        let order = picture.order(sort, courses).into_iter();
        order.map(|at| picture.rows[at].key.identity.pid).collect()
    }

    #[test]
    fn the_unknown_comes_last_whichever_way() {
        let mut snapshot = sample::snapshot(1, 3);
        sample::entry(&mut snapshot, 0, 1).used_bytes = None;
        let picture = Picture::new(snapshot, Vec::new(), Vec::new(), |_, _| None);
        let unknown = sample::pid(0, 1);
        for reversed in [false, true] {
            let sort = Sort {
                column: Column::Memory,
                reversed,
            };
            assert_eq!(
                pids(&picture, sort, &Courses::default()).last(),
                Some(&unknown),
                "{reversed}"
            );
        }
    }

    #[test]
    fn every_column_sorts_and_turning_it_around_moves_known_rows() {
        let courses = sample::courses(&sample::snapshot(2, 5), 8);
        let mut snapshot = sample::snapshot(2, 5);
        snapshot.processes[3].systemd_unit = Some("vllm.service".into());
        snapshot.processes[4].systemd_unit = Some("train.service".into());
        let picture = Picture::new(snapshot, Vec::new(), Vec::new(), |identity, _| {
            Some(Time::from_unix_milliseconds(i64::from(identity.pid)))
        });
        for column in Column::ALL {
            let sorted = |reversed| pids(&picture, Sort { column, reversed }, &courses);
            let (there, back) = (sorted(false), sorted(true));
            assert_eq!(there.len(), 10);
            if column != Column::Finding {
                assert_ne!(there, back, "{column:?}");
            }
        }
    }

    #[test]
    fn nothing_of_a_same_numbered_process_is_given_out() {
        let mut snapshot = sample::snapshot(1, 2);
        snapshot.processes[0].unresolved = Some("started after NVML named the pid".into());
        snapshot.processes[1].start_ticks = None;
        snapshot.processes[1].start_time = None;
        let picture = Picture::new(snapshot, Vec::new(), Vec::new(), |_, _| None);
        for at in 0..2 {
            let subject = picture.subject(at).unwrap();
            assert!(subject.process.is_err());
            assert_eq!(subject.row.runtime_seconds, None);
        }
    }

    #[test]
    fn a_finding_marks_the_rows_that_it_is_about() {
        use crate::model::finding::Also;
        let snapshot = sample::snapshot(2, 2);
        let mut finding = sample::finding(&snapshot, 1, 0);
        finding.also.push(Also::from(&finding));
        let findings = vec![finding];
        let picture = Picture::new(snapshot, findings, Vec::new(), |_, _| None);
        let marked: Vec<u32> = picture
            .rows
            .iter()
            .filter(|row| row.finding.is_some())
            .filter_map(|row| row.key.gpu)
            .collect();
        assert_eq!(marked, [1]);
        assert_eq!(badge(&picture.findings[0]), "IDLE 29m +1");
    }

    #[test]
    fn use_is_an_observed_zero_of_idleness() {
        let mut snapshot = sample::snapshot(1, 2);
        sample::entry(&mut snapshot, 0, 0).sm_percent = Some(7);
        sample::entry(&mut snapshot, 0, 1).sm_percent = None;
        let picture = Picture::new(snapshot, Vec::new(), Vec::new(), |_, _| None);
        assert_eq!(picture.rows[0].idle_seconds, Some(0.0));
        assert_eq!(picture.rows[1].idle_seconds, None);
    }
}
