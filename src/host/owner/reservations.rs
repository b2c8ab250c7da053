//! Finds the jobs and containers that were given GPUs, from the environments of their processes. A process that does
//! not use its GPUs holds no device files, and the device rules of cgroup v2 are kernel programs that cannot be read.
//! The environments are therefore the only evidence.
//!
//! Every half minute, gpumem reads the `stat` file of all processes, and the environment of each process that is new
//! or has executed another program. The environment is evidence only for a process in a container or a Slurm job. It
//! is therefore read only if the cgroup of the process shows one, or if a step daemon runs on the machine. For each
//! job or container, gpumem then watches a few of the processes whose environments name GPUs, with the same code as
//! GPU processes ([`Processes`]). [`crate::model::reservation`] defines what such a process proves.

use std::collections::BTreeMap;
use std::sync::Arc;

use foldhash::{HashMap, HashMapExt as _};
use rustix::io;

use crate::host::Roots;
use crate::host::owner::above::STEP_DAEMON;
use crate::host::owner::cgroup::{CGROUP_BYTES, parse_cgroup};
use crate::host::proc::environ::{ENVIRON_BYTES, parse_environ};
use crate::host::proc::folder::{Folder, ProcEntry};
use crate::host::proc::processes::Processes;
use crate::host::proc::stat::{STAT_BYTES, parse_stat};
use crate::model::Snapshot;
use crate::model::reservation::{Reservation, names_devices};
use crate::model::snapshot::ProcessesByPid;

const LIST_NS: u64 = 30_000_000_000;
/// Maximum number of processes watched per job or container. A single process is not sufficient, because an older
/// process may have a copy of the environment of another job.
const ASKED_EACH: usize = 4;
const MOST: usize = 256;
const VARIABLES: [&str; 4] =
    ["CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "SLURM_JOB_GPUS", "SLURM_STEP_GPUS"];

#[derive(Debug)]
pub struct Reservations {
    roots: Roots,
    known: HashMap<u32, KnownReservation>,
    list_ns: u64,
    processes: Processes,
    /// Last result, or `None` before the first complete listing.
    found: Option<Arc<[Reservation]>>,
}

#[derive(Debug)]
struct KnownReservation {
    listed: ProcEntry,
    /// Start address of the stack, which is different for each executed program, or 0 if it is hidden.
    start_stack: u64,
    /// Job or container in which the process runs, if its environment names GPUs, and the start time of the process.
    names: Option<(ReservationHolder, u64)>,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum ReservationHolder {
    Job(Arc<str>),
    Container(Arc<str>),
}

impl Reservations {
    pub fn new(roots: Roots) -> Self {
        Self {
            known: HashMap::new(),
            list_ns: 0,
            processes: Processes::new(roots.clone()),
            found: None,
            roots,
        }
    }

    /// Reads all processes if a read is due, and returns the last result. `boottime_ns` is the current time in
    /// nanoseconds since boot. Environments that the snapshot contains are not read again.
    pub fn refresh(&mut self, boottime_ns: u64, snapshot: &Snapshot) -> Option<Arc<[Reservation]>> {
        if boottime_ns >= self.list_ns && self.look_at_all(snapshot).is_ok() {
            self.list_ns = boottime_ns.saturating_add(LIST_NS);
            self.found = Some(self.claims(boottime_ns));
        }
        self.found.clone()
    }

    fn look_at_all(&mut self, snapshot: &Snapshot) -> io::Result<()> {
        let proc = Folder::list(&self.roots.proc)?;
        let mut before = std::mem::take(&mut self.known);
        let mut has_steps = false;
        let mut changed = Vec::new();
        let mut content = [0; STAT_BYTES];
        for listed in proc.processes()? {
            let known = before.remove(&listed.pid).filter(|known| known.listed == listed);
            let new = KnownReservation { listed, start_stack: 0, names: None };
            let known = known.unwrap_or(new);
            let length = proc.stat_of(listed.pid, &mut content).unwrap_or(0);
            if let Some(stat) = parse_stat(&content[..length]) {
                has_steps |= stat.comm == STEP_DAEMON.as_bytes();
                // The address of the stack shows whether the process has executed another program (see `entry`). A
                // process stuck in a driver is skipped, because reading its environment may block.
                let is_same = stat.start_stack != 0 && stat.start_stack == known.start_stack;
                if stat.has_memory() && !is_same {
                    changed.push((listed.pid, stat.start_stack, stat.start_ticks));
                }
            }
            self.known.insert(listed.pid, known);
        }
        let mut content = Vec::new();
        let processes = ProcessesByPid::new(snapshot);
        for (pid, start_stack, start_ticks) in changed {
            let read = self.read_holder((pid, start_ticks), has_steps, &mut content, &processes);
            if let Some(known) = self.known.get_mut(&pid) {
                // If the environment could not be read, 0 causes the next listing to try again.
                known.start_stack = read.as_ref().map_or(0, |_| start_stack);
                known.names = read.ok().flatten().map(|holder| (holder, start_ticks));
            }
        }
        Ok(())
    }

    fn read_holder(
        &self,
        (pid, start_ticks): (u32, u64),
        has_steps: bool,
        content: &mut Vec<u8>,
        processes: &ProcessesByPid<'_>,
    ) -> io::Result<Option<ReservationHolder>> {
        let of_snapshot = processes.get(pid);
        let of_snapshot = of_snapshot.filter(|process| process.start_ticks == Some(start_ticks));
        let known = of_snapshot.and_then(|process| process.environment.clone());
        if known.as_deref().is_some_and(|environment| !names_gpus(environment)) {
            return Ok(None);
        }
        let folder = Folder::open(&self.roots.proc, pid)?;
        let read = folder.read(c"cgroup", content, CGROUP_BYTES);
        let place = read.map(|()| parse_cgroup(content)).unwrap_or_default();
        let container = place.container.as_ref().and_then(|container| container.id.clone());
        if container.is_none() && place.slurm.is_none() && !has_steps {
            return Ok(None);
        }
        let environment = match known {
            Some(known) => known,
            None => {
                folder.read(c"environ", content, ENVIRON_BYTES)?;
                Arc::new(parse_environ(content))
            }
        };
        if !names_gpus(&environment) {
            return Ok(None);
        }
        let job = environment.get("SLURM_JOB_ID").cloned().map(ReservationHolder::Job);
        Ok(container.map(ReservationHolder::Container).or(job))
    }

    fn claims(&mut self, now_ns: u64) -> Arc<[Reservation]> {
        let mut by_key: BTreeMap<&ReservationHolder, Vec<(u64, u32)>> = BTreeMap::new();
        for known in self.known.values() {
            if let Some((key, start_ticks)) = &known.names {
                let processes = by_key.entry(key).or_default();
                processes.push((*start_ticks, known.listed.pid));
            }
        }
        let mut asked: Vec<Vec<u32>> = Vec::new();
        for mut processes in by_key.into_values().take(MOST) {
            processes.sort_unstable();
            asked.push(processes.into_iter().take(ASKED_EACH).map(|(_, pid)| pid).collect());
        }
        let pids: Vec<u32> = asked.iter().flatten().copied().collect();
        let sample = self.processes.sample(&pids, now_ns);
        let found = asked.iter().filter_map(|pids| {
            pids.iter().find_map(|pid| {
                let process = sample.processes.iter().find(|process| process.pid == *pid)?;
                Reservation::from_environment(process)
            })
        });
        found.collect()
    }
}

fn names_gpus(environment: &BTreeMap<Arc<str>, Arc<str>>) -> bool {
    let mut values = VARIABLES.iter().filter_map(|name| environment.get(*name));
    values.any(|value| names_devices(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_names_gpus_is_read_for_its_owner() {
        let proc = tempfile::tempdir().unwrap();
        let roots = Roots { proc: proc.path().to_owned(), ..Roots::default() };
        let id = "0123456789abcdef".repeat(4);
        let write_named = |comm: &str, pid: u32, stack: u64, environ: &str, cgroup: &str| {
            let folder = proc.path().join(pid.to_string());
            std::fs::create_dir_all(&folder).unwrap();
            let stat = format!(
                "{pid} ({comm}) S 1 {pid} {pid} 0 -1 0 1 0 0 0 5 0 0 0 20 0 1 0 7 4096 3 9 1 1 {stack} 0 0\n"
            );
            for (name, content) in [("stat", &*stat), ("environ", environ), ("cgroup", cgroup)] {
                std::fs::write(folder.join(name), content).unwrap();
            }
        };
        let write = |pid, stack, environ: &str, cgroup: &str| {
            write_named("x", pid, stack, environ, cgroup);
        };
        let names = |reservations: &Reservations, pid: u32| {
            reservations.known[&pid].names.as_ref().map(|(holder, _)| holder.clone())
        };
        let docker = format!("0::/docker/{id}\n");
        let step = "0::/system.slice/slurmstepd.scope/job_12/step_0/user/task_0\n";
        write(70, 1, "SLURM_JOB_ID=12\0CUDA_VISIBLE_DEVICES=0,1\0", step);
        write(71, 1, "SLURM_JOB_ID=12\0CUDA_VISIBLE_DEVICES=0,1\0", &docker);
        write(72, 1, "SLURM_JOB_ID=12\0", &docker);
        write(73, 1, "CUDA_VISIBLE_DEVICES=0\0", step);
        write(74, 1, "SLURM_JOB_ID=12\0CUDA_VISIBLE_DEVICES=0,1\0", "0::/\n");
        let mut reservations = Reservations::new(roots);
        let snapshot = Snapshot::new("2026-11-26T10:00:00Z".parse().unwrap());
        assert!(reservations.refresh(1, &snapshot).is_some());
        let its_job = Some(ReservationHolder::Job("12".into()));
        assert_eq!(names(&reservations, 70), its_job);
        let its_container = Some(ReservationHolder::Container(id.into()));
        assert_eq!(names(&reservations, 71), its_container);
        for nameless in [72, 73, 74] {
            assert_eq!(names(&reservations, nameless), None, "{nameless}");
        }

        // The environment is read again only after the process has executed another program.
        write(70, 1, "\0", step);
        write(73, 2, "SLURM_JOB_ID=12\0CUDA_VISIBLE_DEVICES=0\0", step);
        reservations.refresh(1 + LIST_NS, &snapshot);
        assert_eq!(
            [70, 73].map(|pid| names(&reservations, pid)),
            [its_job.clone(), its_job.clone()]
        );

        // Without Slurm's cgroups, only a step daemon can prove a job.
        write_named("slurmstepd", 75, 1, "\0", "0::/\n");
        write(76, 1, "SLURM_JOB_ID=12\0CUDA_VISIBLE_DEVICES=0\0", "0::/\n");
        reservations.refresh(1 + 2 * LIST_NS, &snapshot);
        assert_eq!(names(&reservations, 76), its_job);
    }
}
