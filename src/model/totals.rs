//! Totals of the rows of each user, job, container or framework, for `ps --by` and the screen's page of totals.
//!
//! Each group is a value of a [`field`](super::field).

use std::collections::{BTreeMap, BTreeSet, HashSet};

use super::field::{Field, GroupName};
use super::process::Identity;
use super::row::ProcessRow;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Total {
    pub group: GroupName,
    /// Number of processes. A process on several GPUs is counted once.
    pub processes: usize,
    pub gpus: BTreeSet<u32>,
    /// GPU memory of the rows whose memory is known, in bytes, or `None` if there are none.
    pub used_bytes: Option<u64>,
    /// Number of listed rows whose memory is unknown. If it is not 0, `used_bytes` is a lower bound.
    pub unknown_rows: usize,
    /// Memory of the reclaimable rows, in bytes: 0 if there are none, and `None` if the memory of all of them is
    /// unknown.
    pub reclaimable_bytes: Option<u64>,
}

#[derive(Default)]
struct GroupSum {
    processes: HashSet<Identity>,
    gpus: BTreeSet<u32>,
    used: SummedBytes,
    reclaimable: SummedBytes,
}

#[derive(Default)]
struct SummedBytes {
    known: Option<u64>,
    unknown_rows: usize,
}

impl SummedBytes {
    fn add(&mut self, bytes: Option<u64>) {
        match bytes {
            Some(bytes) => self.known = Some(self.known.unwrap_or(0).saturating_add(bytes)),
            None => self.unknown_rows += 1,
        }
    }
}

/// Computes totals by a field of [`GROUPED`](super::field::GROUPED), sorted by memory in descending order, and then by
/// name. `is_reclaimable` returns whether `reap` would free a row's memory by default.
pub fn totals<'a, 'r: 'a>(
    rows: impl IntoIterator<Item = &'a ProcessRow<'r>>,
    by: Field,
    is_reclaimable: impl Fn(&ProcessRow<'r>) -> bool,
) -> Vec<Total> {
    let mut sums: BTreeMap<GroupName, GroupSum> = BTreeMap::new();
    for row in rows {
        let Some(identity) = row.identity else {
            continue;
        };
        let sum = sums.entry(by.group(row)).or_default();
        sum.processes.insert(identity);
        // The memory of an unlisted holder is unknown.
        if !row.is_listed() {
            continue;
        }
        sum.gpus.extend(row.gpu.map(|gpu| gpu.index));
        sum.used.add(row.used_bytes());
        if is_reclaimable(row) {
            sum.reclaimable.add(row.used_bytes());
        }
    }
    let mut totals: Vec<Total> = sums
        .into_iter()
        .map(|(group, sum)| Total {
            group,
            processes: sum.processes.len(),
            gpus: sum.gpus,
            used_bytes: sum.used.known,
            unknown_rows: sum.used.unknown_rows,
            reclaimable_bytes: match sum.reclaimable.unknown_rows {
                0 => Some(sum.reclaimable.known.unwrap_or(0)),
                _ => sum.reclaimable.known,
            },
        })
        .collect();
    // The sort is stable, so equal totals stay sorted by name.
    totals.sort_by_key(|total| std::cmp::Reverse(total.used_bytes));
    totals
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::model::Snapshot;
    use crate::model::field::GROUPED;
    use crate::model::process::{Container, Slurm};
    use crate::model::row::places;
    use crate::model::{Gpu, GpuProcess, Process, Time};
    use crate::units::GIB;

    fn group_totals(snapshot: &Snapshot, by: Field, reclaimable: &[u32]) -> Vec<Total> {
        let rows: Vec<ProcessRow<'_>> = places(snapshot, &[])
            .into_iter()
            .map(|place| ProcessRow::new(snapshot, &[], place))
            .collect();
        totals(&rows, by, |row| row.pid().is_some_and(|pid| reclaimable.contains(&pid)))
    }

    fn process(pid: u32, user: Option<&str>) -> Process {
        Process {
            pid,
            start_ticks: Some(u64::from(pid)),
            user: user.map(Arc::from),
            ..Process::default()
        }
    }

    fn gpu(index: u32, rows: &[(u32, Option<u64>)]) -> Gpu {
        let row = |&(pid, used_bytes): &(u32, Option<u64>)| GpuProcess {
            pid,
            used_bytes,
            ..GpuProcess::default()
        };
        Gpu { index, processes: Some(rows.iter().map(row).collect()), ..Gpu::default() }
    }

    /// Returns a snapshot of four processes. Pids 1 and 2 belong to ann and use three GPUs, and pid 1 is in a job.
    /// Pid 3 belongs to ben, is in a container, and has unknown memory on one GPU. The owner of pid 9 is unknown.
    fn machine() -> Snapshot {
        let mut snapshot = Snapshot::new(Time::default());
        snapshot.gpus = vec![
            gpu(0, &[(1, Some(4 * GIB)), (9, Some(GIB))]),
            gpu(1, &[(1, Some(4 * GIB)), (3, Some(2 * GIB))]),
            gpu(2, &[(2, Some(GIB)), (3, None)]),
        ];
        let mut ann = process(1, Some("ann"));
        ann.slurm = Some(Arc::new(Slurm { job_id: Some("812".into()), ..Slurm::default() }));
        let mut second = process(2, Some("ann"));
        for (process, version) in [(&mut ann, "2.9"), (&mut second, "2.8")] {
            process.framework = Some("pytorch".into());
            process.framework_version = Some(version.into());
        }
        let mut ben = process(3, Some("ben"));
        ben.container = Some(Arc::new(Container {
            id: Some("0123456789abcdef".into()),
            ..Container::default()
        }));
        snapshot.processes = vec![ann, second, ben];
        snapshot
    }

    fn in_short(by: Field) -> Vec<(GroupName, Option<u64>, usize, Vec<u32>)> {
        let machine = machine();
        let short = |total: Total| {
            let gpus = total.gpus.into_iter().collect();
            (total.group, total.used_bytes, total.processes, gpus)
        };
        group_totals(&machine, by, &[]).into_iter().map(short).collect()
    }

    #[test]
    fn each_row_belongs_to_one_group_or_to_unknown() {
        let named = |name: &str, gib: u64, processes, gpus: &[u32]| {
            let name = GroupName::Named(name.to_owned());
            (name, Some(gib * GIB), processes, gpus.to_vec())
        };
        let unknown = (GroupName::Unknown, Some(GIB), 1, vec![0]);
        assert_eq!(
            in_short(Field::User),
            [named("ann", 9, 2, &[0, 1, 2]), named("ben", 2, 1, &[1, 2]), unknown.clone(),]
        );
        assert_eq!(
            in_short(Field::Job),
            [
                named("812", 8, 1, &[0, 1]),
                (GroupName::None, Some(3 * GIB), 2, vec![1, 2]),
                unknown.clone(),
            ]
        );
        assert_eq!(in_short(Field::Container)[1], named("0123456789ab", 2, 1, &[1, 2]));
        // All versions of a framework form one group. Processes 3 and 9 have no known framework.
        let frameworks = in_short(Field::Framework);
        assert_eq!(frameworks[0], named("pytorch", 9, 2, &[0, 1, 2]));
        assert_eq!((&frameworks[1].0, frameworks.len()), (&GroupName::Unknown, 2));
    }

    #[test]
    fn unknown_memory_is_not_zero() {
        let mut machine = machine();
        let figures = |machine: &Snapshot, reclaimable: &[u32]| {
            let totals = group_totals(machine, Field::User, reclaimable).into_iter();
            let figures =
                totals.map(|total| (total.used_bytes, total.unknown_rows, total.reclaimable_bytes));
            figures.collect::<Vec<_>>()
        };
        let gib = |count: u64| Some(count * GIB);
        let (ann, unknown) = ((gib(9), 0, gib(0)), (gib(1), 0, gib(0)));
        assert_eq!(figures(&machine, &[3]), [ann, (gib(2), 1, gib(2)), unknown]);
        let rows = machine.gpus.iter_mut().flat_map(|gpu| gpu.processes.iter_mut().flatten());
        rows.for_each(|row| row.used_bytes = None);
        let [ann, ben, unknown] = [(None, 3, None), (None, 2, gib(0)), (None, 1, gib(0))];
        assert_eq!(figures(&machine, &[1]), [ann, ben, unknown]);
        for process in &mut machine.processes {
            process.unresolved = Some("started after NVML named the pid".into());
        }
        for by in GROUPED {
            let totals = group_totals(&machine, by, &[]);
            assert_eq!(totals.len(), 1, "{by:?}");
            assert_eq!((&totals[0].group, totals[0].processes), (&GroupName::Unknown, 4));
        }
    }
}
