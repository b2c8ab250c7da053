//! Computes the unused memory of each job, because the processes of a job may reach a threshold only together.

use foldhash::{HashMap, HashMapExt as _};

use crate::history::{History, ProcessHistory};
use crate::model::family::families;
use crate::model::snapshot::{ProcessType, ProcessesByPid};
use crate::model::{Snapshot, Time};

#[derive(Debug)]
pub(super) struct UnusedJobs {
    now: Time,
    job_of: HashMap<u32, usize>,
    jobs: Vec<UnusedJob>,
}

#[derive(Debug, Default)]
struct UnusedJob {
    /// Time since which the job has used no GPU, or `None` if the job uses a GPU or its use is unknown.
    since: Option<Time>,
    bytes: HashMap<u32, u64>,
}

impl UnusedJobs {
    pub(super) fn new(snapshot: &Snapshot, history: &History) -> Self {
        let mut unused_jobs = Self { now: snapshot.time, job_of: HashMap::new(), jobs: Vec::new() };
        let processes = ProcessesByPid::new(snapshot);
        let process_history = |pid: &u32| history.process(processes.get(*pid)?.identity());
        for family in families(snapshot).iter().filter(|family| family.members.len() > 1) {
            let members = || family.members.iter().filter_map(process_history);
            unused_jobs
                .job_of
                .extend(family.members.iter().map(|pid| (*pid, unused_jobs.jobs.len())));
            unused_jobs.jobs.push(UnusedJob::new(members(), history));
        }
        unused_jobs
    }

    /// Returns the memory of a process's job on a GPU if the job has used no GPU for at least `seconds`, otherwise 0.
    pub(super) fn bytes(&self, pid: u32, gpu: u32, seconds: f64) -> u64 {
        let job = self.job_of.get(&pid).map(|job| &self.jobs[*job]);
        let unused = job
            .filter(|job| job.since.is_some_and(|since| self.now.seconds_since(since) >= seconds));
        unused.and_then(|job| job.bytes.get(&gpu)).copied().unwrap_or(0)
    }
}

impl UnusedJob {
    fn new<'a>(members: impl Iterator<Item = &'a ProcessHistory>, history: &History) -> Self {
        let mut job = Self::default();
        let rows = members.flat_map(ProcessHistory::rows);
        let rows = rows.filter(|row| row.kind() != ProcessType::Graphics);
        let mut since = Vec::new();
        for row in rows {
            since.push(row.run().map(|run| run.since));
            let bytes = job.bytes.entry(history.gpu_index(row)).or_default();
            *bytes = bytes.saturating_add(row.used_bytes().unwrap_or(0));
        }
        let since: Option<Vec<Time>> = since.into_iter().collect();
        job.since = since.and_then(|since| since.into_iter().max());
        job
    }
}
