//! A snapshot prepared for display: verdicts, findings and rows.
//!
//! A row is a process on a GPU, or an unlisted process that holds GPU device files open. Rows
//! contain numbers and indices; `view` formats the visible rows. Rows are sorted by value, not by formatted text, and
//! unknown values are always last.

use std::ops::Deref;
use std::sync::Arc;

use foldhash::HashMap;

use super::column::Column;
use super::memory_shares::{GpuShares, UseVerdict};
use super::text::columns;
use crate::history::memory_series::{AllSeries, MemorySeries, seen_until};
use crate::model::field::SortValue;
pub use crate::model::field::badge;
use crate::model::finding::{Finding, Undecided};
pub use crate::model::row::percent;
use crate::model::row::{ProcessRow, RowIndices, places};
use crate::model::snapshot::ProcessesByPid;
use crate::model::snapshot::{Gpu, GpuProcess, Process, Snapshot};
use crate::model::{Identity, Reclaimable, Start, Suspect, Time};

/// Time span of a row's chart and of its memory growth, in seconds.
pub const WINDOW_SECONDS: f64 = 1800.0;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RowKey {
    pub identity: Identity,
    /// NVML index of the GPU. For an unlisted process, the first GPU that the process holds open, or `None` if there
    /// is none.
    pub gpu: Option<u32>,
    /// GPU instance and compute instance, if MIG is in use.
    pub instance: (Option<u32>, Option<u32>),
}

impl RowKey {
    /// Returns whether two keys might identify the same row: the pid, GPU and MIG instance are equal, and the start
    /// times of the process are equal or one of them is unknown.
    pub fn may_be(&self, other: &Self) -> bool {
        let is_same_start = self.identity.start == other.identity.start
            || !self.is_certain()
            || !other.is_certain();
        is_same_start
            && self.identity.pid == other.identity.pid
            && (self.gpu, self.instance) == (other.gpu, other.instance)
    }

    pub fn is_certain(&self) -> bool {
        self.identity.is_certain()
    }
}

#[derive(Clone, Debug)]
pub struct RowView {
    pub key: RowKey,
    /// Seconds since the process last used this GPU, 0 if the process is using it, or `None` if unknown.
    pub idle_seconds: Option<f64>,
    pub runtime_seconds: Option<f64>,
    pub finding: Option<usize>,
    pub suspect: Option<usize>,
    pub verdict: UseVerdict,
    /// NVML's entry, without values if NVML does not list the process.
    pub entry: GpuProcess,
    pub is_listed: bool,
    place: RowIndices,
}

#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    pub row: &'a RowView,
    pub suspect: Option<&'a Suspect>,
    facts: ProcessRow<'a>,
}

impl<'a> Deref for Subject<'a> {
    type Target = ProcessRow<'a>;

    fn deref(&self) -> &ProcessRow<'a> {
        &self.facts
    }
}

impl Subject<'_> {
    /// Returns the process's memory on this GPU over time, if it ever held any.
    pub fn memory_series<'c>(&self, all_series: &'c AllSeries) -> Option<&'c MemorySeries> {
        all_series.row(self.row.key.identity, self.gpu?, self.entry?)
    }

    /// Returns the memory growth in bytes over [`WINDOW_SECONDS`] before this sample.
    pub fn growth_bytes(&self, all_series: &AllSeries) -> Option<i64> {
        growth_bytes(self.memory_series(all_series)?, self.snapshot.time)
    }
}

/// Widths of the columns that depend on the rows. The width of a column without values can be 0, which hides the
/// column.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Widths {
    pub gpu: u16,
    pub pid: u16,
    pub user: u16,
    pub framework: u16,
    pub place: u16,
    pub finding: u16,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sort {
    pub column: Column,
    /// Whether to reverse the column's default direction.
    pub reversed: bool,
}

impl Default for Sort {
    fn default() -> Self {
        Self { column: Column::Memory, reversed: false }
    }
}

impl Sort {
    pub fn descending(self) -> bool {
        self.column.spec().descending != self.reversed
    }
}

#[derive(Clone, Debug)]
pub struct JudgedSample {
    pub snapshot: Snapshot,
    pub findings: Vec<Finding>,
    pub undecided: Vec<Undecided>,
    pub suspects: Arc<[Suspect]>,
    pub reclaimable: Reclaimable,
    /// The result of [`idle_times`].
    pub idle_since: Vec<Option<Time>>,
}

#[derive(Clone, Debug)]
pub struct Screenful {
    pub sample: Arc<JudgedSample>,
    pub rows: Vec<RowView>,
    pub widths: Widths,
    pub shares: Vec<GpuShares>,
}

impl Deref for Screenful {
    type Target = JudgedSample;

    fn deref(&self) -> &JudgedSample {
        &self.sample
    }
}

impl Screenful {
    /// Creates a sample without suspects. `idle_since` returns when a process last used a GPU.
    #[cfg(test)]
    pub fn new(
        snapshot: Snapshot,
        findings: Vec<Finding>,
        undecided: Vec<Undecided>,
        idle_since: impl Fn(Identity, u32) -> Option<Time>,
    ) -> Self {
        let reclaimable = Reclaimable::new(findings.iter(), [].iter());
        let idle_since = idle_times(&snapshot, idle_since);
        let suspects = Arc::default();
        let sample =
            JudgedSample { snapshot, findings, undecided, suspects, reclaimable, idle_since };
        Self::from_sample(Arc::new(sample))
    }

    pub fn from_sample(sample: Arc<JudgedSample>) -> Self {
        let (snapshot, findings) = (&sample.snapshot, &sample.findings);
        let suspects = sample.suspects.iter().enumerate();
        let suspects: HashMap<Identity, usize> =
            suspects.map(|(at, suspect)| (suspect.process.identity, at)).collect();
        let places = places(snapshot, findings);
        let mut rows = Vec::with_capacity(places.len());
        // The listed processes come first, in the order of `idle_since`.
        let idle = sample.idle_since.iter().copied().chain(std::iter::repeat(None));
        rows.extend(places.into_iter().zip(idle).filter_map(|(place, since)| {
            let facts = ProcessRow::new(snapshot, findings, place).idle(|_, _| since);
            let identity = facts.identity?;
            let is_listed = facts.is_listed();
            let may_be_suspect = is_listed && place.finding.is_none();
            let suspect = match may_be_suspect {
                true => suspects.get(&identity).copied(),
                false => None,
            };
            Some(RowView {
                key: RowKey {
                    identity,
                    gpu: facts.gpu.map(|gpu| gpu.index),
                    instance: facts.instance(),
                },
                idle_seconds: facts.idle_seconds,
                runtime_seconds: facts.runtime_seconds(),
                finding: place.finding,
                suspect,
                verdict: match facts.finding {
                    _ if suspect.is_some() => UseVerdict::Suspected,
                    Some(finding) if finding.is_reclaimable() => UseVerdict::Reclaimable,
                    _ => UseVerdict::InUse,
                },
                entry: facts
                    .entry
                    .copied()
                    .unwrap_or(GpuProcess { pid: identity.pid, ..GpuProcess::default() }),
                is_listed,
                place,
            })
        }));
        let mut screenful = Self { sample, rows, widths: Widths::default(), shares: Vec::new() };
        screenful.widths = screenful.column_widths();
        screenful.shares = screenful.gpu_shares();
        screenful
    }

    pub fn suspect(&self, row: &RowView) -> Option<&Suspect> {
        self.suspects.get(row.suspect?)
    }

    fn gpu_shares(&self) -> Vec<GpuShares> {
        let listed = |gpu: &Gpu| gpu.processes.as_ref().map_or(0, Vec::len);
        let gpus = self.snapshot.gpus.iter();
        let mut rows: Vec<_> = gpus.map(|gpu| Vec::with_capacity(listed(gpu))).collect();
        for row in self.rows.iter().filter(|row| row.is_listed) {
            if let Some(rows) = row.place.gpu.and_then(|gpu| rows.get_mut(gpu)) {
                rows.push((row.entry, row.verdict));
            }
        }
        let gpus = self.snapshot.gpus.iter().zip(&rows);
        gpus.map(|(gpu, rows)| GpuShares::new(&self.snapshot, gpu, rows)).collect()
    }

    pub fn gpus(&self) -> impl Iterator<Item = (&Gpu, &GpuShares)> {
        self.snapshot.gpus.iter().zip(&self.shares)
    }

    pub fn subject(&self, at: usize) -> Option<Subject<'_>> {
        self.rows.get(at).map(|row| self.parts(row))
    }

    fn parts<'a>(&'a self, row: &'a RowView) -> Subject<'a> {
        Subject {
            row,
            suspect: self.suspect(row),
            facts: ProcessRow {
                idle_seconds: row.idle_seconds,
                ..ProcessRow::new(&self.snapshot, &self.findings, row.place)
            },
        }
    }

    /// Returns row indices in sorted order. Ties are sorted by GPU and PID, so that rows do not jump.
    pub fn order(&self, sort: Sort, all_series: &AllSeries) -> Vec<usize> {
        let value = |row| {
            let subject = self.parts(row);
            let growth_bytes = match sort.column {
                Column::History => subject.growth_bytes(all_series),
                _ => None,
            };
            let facts = ProcessRow { growth_bytes, ..*subject };
            SortValue::new(sort.column, &facts, row.finding)
        };
        let rows = self.rows.iter().enumerate();
        let mut order: Vec<(SortValue<'_>, usize)> =
            rows.map(|(at, row)| (value(row), at)).collect();
        order.sort_by(|(left, left_at), (right, right_at)| {
            let tie = |row: &RowView| (row.key.gpu, row.key.identity, row.key.instance);
            left.compare(right, sort.descending())
                .then_with(|| tie(&self.rows[*left_at]).cmp(&tie(&self.rows[*right_at])))
        });
        order.into_iter().map(|(_, at)| at).collect()
    }

    fn column_widths(&self) -> Widths {
        let mut widths = Widths { gpu: 3, pid: 5, user: 5, ..Widths::default() };
        for row in &self.rows {
            let subject = self.parts(row);
            widths.pid = widths.pid.max(digits(row.key.identity.pid));
            if !row.is_listed || row.key.instance.0.is_some() {
                let text = subject.place_on_gpus().unwrap_or_default();
                widths.gpu = widths.gpu.max(columns(&text));
            }
            if let Ok(process) = subject.process {
                if process.namespace_pid.is_some() {
                    widths.pid = widths.pid.max(columns(&process.pid_text()));
                }
                let place = process.place();
                widths.place = widths.place.max(place.map_or(0, |text| columns(&text)));
                widths.user = widths.user.max(process.user.as_deref().map_or(0, columns));
                let framework = process.framework_text().map_or(0, |text| columns(&text));
                widths.framework = widths.framework.max(framework);
            }
            let ended = subject.ended.and_then(|ended| ended.user.as_deref());
            widths.user = widths.user.max(ended.map_or(0, columns));
            if let Some(finding) = subject.finding {
                widths.finding = widths.finding.max(columns(&badge(finding)));
            }
            if let Some(suspect) = self.suspect(row) {
                widths.finding = widths.finding.max(columns(&suspect.mark.to_string()));
            }
        }
        let clamp = |width: u16, min, max| if width == 0 { 0 } else { width.clamp(min, max) };
        widths.user = widths.user.min(12);
        widths.framework = clamp(widths.framework, 10, 16);
        widths.gpu = widths.gpu.min(10);
        widths.place = clamp(widths.place, 6, 24);
        widths.finding = clamp(widths.finding, 8, 18);
        widths
    }
}

/// Returns when each listed process last used its GPU, GPU by GPU. `since` returns the time for an
/// identity and a GPU index.
pub fn idle_times(
    snapshot: &Snapshot,
    since: impl Fn(Identity, u32) -> Option<Time>,
) -> Vec<Option<Time>> {
    let processes = ProcessesByPid::new(snapshot);
    let mut times =
        Vec::with_capacity(snapshot.gpus.iter().flat_map(|gpu| &gpu.processes).map(Vec::len).sum());
    for gpu in &snapshot.gpus {
        times.extend(gpu.processes.iter().flatten().map(|row| {
            let unknown = Identity { pid: row.pid, start: Start::Unknown };
            let identity = processes.get(row.pid).map_or(unknown, Process::identity);
            since(identity, gpu.index)
        }));
    }
    times
}

fn growth_bytes(series: &MemorySeries, end: Time) -> Option<i64> {
    let past = seen_until(series.buckets(), end);
    let start = end.plus_seconds(-WINDOW_SECONDS);
    let buckets = &past[past.partition_point(|bucket| bucket.until < start)..];
    let (first, last) = (buckets.first()?, buckets.last()?);
    let grown = i128::from(last.last) - i128::from(first.last);
    i64::try_from(grown).ok()
}

fn digits(number: u32) -> u16 {
    number.checked_ilog10().unwrap_or(0) as u16 + 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::GIB;
    use crate::watch::sample;

    fn pids(screenful: &Screenful, sort: Sort, all_series: &AllSeries) -> Vec<u32> {
        let order = screenful.order(sort, all_series).into_iter();
        order.map(|at| screenful.rows[at].key.identity.pid).collect()
    }

    #[test]
    fn unknown_values_are_last_in_either_order() {
        let mut snapshot = sample::snapshot(1, 3);
        sample::entry(&mut snapshot, 0, 1).used_bytes = None;
        let screenful = Screenful::new(snapshot, Vec::new(), Vec::new(), |_, _| None);
        let unknown = sample::pid(0, 1);
        for reversed in [false, true] {
            let sort = Sort { column: Column::Memory, reversed };
            let pids = pids(&screenful, sort, &AllSeries::default());
            assert_eq!(pids.last(), Some(&unknown), "{reversed}");
        }
    }

    #[test]
    fn every_column_sorts_in_both_directions() {
        let all_series = sample::all_series(&sample::snapshot(2, 5), 8);
        let mut snapshot = sample::snapshot(2, 5);
        snapshot.processes[3].systemd_unit = Some("vllm.service".into());
        snapshot.processes[4].systemd_unit = Some("train.service".into());
        let screenful = Screenful::new(snapshot, Vec::new(), Vec::new(), |identity, _| {
            Some(Time::from_unix_milliseconds(i64::from(identity.pid)))
        });
        for column in Column::ALL {
            let sorted = |reversed| pids(&screenful, Sort { column, reversed }, &all_series);
            let (default, reversed) = (sorted(false), sorted(true));
            assert_eq!(default.len(), 10);
            if column != Column::Finding {
                assert_ne!(default, reversed, "{column:?}");
            }
        }
    }

    #[test]
    fn an_unresolved_pid_shows_no_process_data() {
        let mut snapshot = sample::snapshot(1, 2);
        snapshot.processes[0].unresolved = Some("started after NVML named the pid".into());
        snapshot.processes[1].start_ticks = None;
        snapshot.processes[1].start_time = None;
        let screenful = Screenful::new(snapshot, Vec::new(), Vec::new(), |_, _| None);
        for at in 0..2 {
            let subject = screenful.subject(at).unwrap();
            assert!(subject.process.is_err());
            assert_eq!(subject.row.runtime_seconds, None);
        }
    }

    #[test]
    fn a_finding_marks_only_its_rows() {
        use crate::model::finding::Also;
        let snapshot = sample::snapshot(2, 2);
        let mut finding = sample::finding(&snapshot, 1, 0);
        finding.also.push(Also::from(&finding));
        let findings = vec![finding];
        let screenful = Screenful::new(snapshot, findings, Vec::new(), |_, _| None);
        let marked = screenful.rows.iter().filter(|row| row.finding.is_some());
        let marked: Vec<u32> = marked.filter_map(|row| row.key.gpu).collect();
        assert_eq!(marked, [1]);
        assert_eq!(badge(&screenful.findings[0]), "IDLE 29m +1");
    }

    #[test]
    fn a_process_in_use_has_an_idle_time_of_zero() {
        let mut snapshot = sample::snapshot(1, 2);
        sample::entry(&mut snapshot, 0, 0).sm_percent = Some(7);
        sample::entry(&mut snapshot, 0, 1).sm_percent = None;
        let screenful = Screenful::new(snapshot, Vec::new(), Vec::new(), |_, _| None);
        assert_eq!(screenful.rows[0].idle_seconds, Some(0.0));
        assert_eq!(screenful.rows[1].idle_seconds, None);
    }

    #[test]
    fn growth_covers_the_last_half_hour() {
        let grown = |bytes: &[(f64, u64)]| {
            let mut snapshot = sample::snapshot(1, 1);
            let now = snapshot.time;
            let mut all_series = AllSeries::default();
            for &(before, bytes) in bytes {
                snapshot.time = now.plus_seconds(-before);
                sample::entry(&mut snapshot, 0, 0).used_bytes = Some(bytes);
                all_series.observe(&snapshot);
            }
            let gpu = &snapshot.gpus[0];
            let row = &gpu.processes.as_ref().unwrap()[0];
            growth_bytes(all_series.row(snapshot.processes[0].identity(), gpu, row).unwrap(), now)
        };
        assert_eq!(grown(&[(9000.0, 40 * GIB), (80.0, GIB), (0.0, 9 * GIB)]), Some(8 * GIB as i64));
        assert_eq!(grown(&[(40.0, 40 * GIB), (0.0, GIB)]), Some(-39 * GIB as i64));
        assert_eq!(grown(&[(1.0, 0), (0.0, u64::MAX)]), None);
    }
}
