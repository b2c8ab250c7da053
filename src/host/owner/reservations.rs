//! Finds the jobs and containers that were given GPUs, from the environments of their processes. A process that does
//! not use its GPUs holds no device files, and the device rules of cgroup v2 are kernel programs that cannot be read.
//! The environments are therefore the only evidence.
//!
//! Every half minute, gpumem checks the `stat` files of all processes, and reads the environment of each process that is
//! new or has executed another program. An environment is evidence only for a process in a container or Slurm job, so the
//! cgroup must show one, or an ancestor must be a step daemon. For each job or container, [`Processes`] then watches a
//! few of the processes whose environments name GPUs. [`crate::model::reservation`] defines what such a process proves.

use std::collections::BTreeMap;
use std::sync::Arc;

use foldhash::{HashMap, HashMapExt as _, HashSet};
use rustix::io;

use crate::host::owner::cgroup::{CGROUP_BYTES, parse_cgroup};
use crate::host::proc::environ::{ENVIRON_BYTES, parse_environ};
use crate::host::proc::folder::Folder;
use crate::host::proc::processes::Processes;
use crate::host::proc::stat::STAT_BYTES;
use crate::host::proc::tree::{ProgramState, Tree, read_stat};
use crate::host::{Holders, Roots};
use crate::model::Snapshot;
use crate::model::reservation::{Reservation, names_devices};
use crate::model::snapshot::ProcessesByPid;

const LIST_NS: u64 = 30_000_000_000;
/// Maximum number of processes watched per job or container. A single process is not sufficient, because an older
/// process may have a copy of the environment of another job.
const ASKED_EACH: usize = 4;
const MOST: usize = 256;
const MAX_ANCESTORS: usize = 64;
const VARIABLES: [&str; 4] =
    ["CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "SLURM_JOB_GPUS", "SLURM_STEP_GPUS"];

#[derive(Debug)]
pub struct Reservations {
    roots: Roots,
    known: HashMap<u32, KnownReservation>,
    list_ns: u64,
    processes: Processes,
    found: Option<Arc<[Reservation]>>,
}

#[derive(Debug)]
struct KnownReservation {
    inode: u64,
    /// Value of [`ProgramState::start_stack`] when the environment was read, or 0 if it could not be read.
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

    pub fn refresh(
        &mut self,
        boottime_ns: u64,
        snapshot: &Snapshot,
        holders: &Holders,
    ) -> Option<Arc<[Reservation]>> {
        let tree = holders.tree();
        if boottime_ns >= self.list_ns
            && !tree.nodes().is_empty()
            && self.update_known(tree, snapshot).is_ok()
        {
            self.list_ns = boottime_ns.saturating_add(LIST_NS);
            self.found = Some(self.claims(boottime_ns));
        }
        self.found.clone()
    }

    fn update_known(&mut self, tree: &Tree, snapshot: &Snapshot) -> io::Result<()> {
        let nodes = tree.nodes();
        let proc = Folder::list(&self.roots.proc)?;
        let mut before = std::mem::take(&mut self.known);
        let mut daemons = HashSet::default();
        let mut changed = Vec::new();
        let mut content = [0; STAT_BYTES];
        for (&pid, node) in nodes.iter().filter(|(_, node)| !node.is_kernel) {
            let known = before.remove(&pid).filter(|known| known.inode == node.inode);
            let new = KnownReservation { inode: node.inode, start_stack: 0, names: None };
            let known = known.unwrap_or(new);
            let program = match tree.is_current(node) {
                true => Some(node.program),
                false => {
                    read_stat(&proc, pid, &mut content).map(|stat| ProgramState::from_stat(&stat))
                }
            };
            if let Some(program) = program {
                daemons.extend(program.is_step_daemon.then_some(pid));
                // The address of the stack shows whether the process has executed another program (see `processes`). A
                // process stuck in a driver is skipped, because reading its environment may block.
                let is_same = program.start_stack != 0 && program.start_stack == known.start_stack;
                if program.has_memory && !is_same {
                    changed.push((pid, program.start_stack, node.start_ticks));
                }
            }
            self.known.insert(pid, known);
        }
        let mut content = Vec::new();
        let processes = ProcessesByPid::new(snapshot);
        let parent = |pid: &u32| nodes.get(pid)?.ppid;
        for (pid, start_stack, start_ticks) in changed {
            let mut ancestors = std::iter::successors(parent(&pid), parent).take(MAX_ANCESTORS);
            let is_in_step = !daemons.is_empty() && ancestors.any(|pid| daemons.contains(&pid));
            let read =
                self.read_holder(&proc, (pid, start_ticks), is_in_step, &mut content, &processes);
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
        proc: &Folder,
        (pid, start_ticks): (u32, u64),
        is_in_step: bool,
        content: &mut Vec<u8>,
        processes: &ProcessesByPid<'_>,
    ) -> io::Result<Option<ReservationHolder>> {
        let of_snapshot = processes.get(pid);
        let of_snapshot = of_snapshot.filter(|process| process.start_ticks == Some(start_ticks));
        let known = of_snapshot.and_then(|process| process.environment.clone());
        if known.as_deref().is_some_and(|environment| !names_gpus(environment)) {
            return Ok(None);
        }
        content.resize(CGROUP_BYTES, 0);
        let length = proc.file_of(pid, "cgroup", content).unwrap_or_default();
        let place = parse_cgroup(&content[..length]);
        let container = place.container.as_ref().and_then(|container| container.id.clone());
        if container.is_none() && place.slurm.is_none() && !is_in_step {
            return Ok(None);
        }
        let environment = match known {
            Some(known) => known,
            None => {
                Folder::open(&self.roots.proc, pid)?.read(c"environ", content, ENVIRON_BYTES)?;
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
        for (pid, known) in &self.known {
            if let Some((key, start_ticks)) = &known.names {
                by_key.entry(key).or_default().push((*start_ticks, *pid));
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
        let write_named = |comm: &str,
                           (pid, ppid): (u32, u32),
                           stack: u64,
                           environ: &str,
                           cgroup: &str| {
            let folder = proc.path().join(pid.to_string());
            std::fs::create_dir_all(&folder).unwrap();
            let stat = format!(
                "{pid} ({comm}) S {ppid} {pid} {pid} 0 -1 0 1 0 0 0 5 0 0 0 20 0 1 0 7 4096 3 9 1 1 {stack} 0 0\n"
            );
            for (name, content) in [("stat", &*stat), ("environ", environ), ("cgroup", cgroup)] {
                std::fs::write(folder.join(name), content).unwrap();
            }
        };
        let write = |pid, stack, environ: &str, cgroup: &str| {
            write_named("x", (pid, 1), stack, environ, cgroup);
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
        let mut holders = Holders::new(roots.clone());
        let mut reservations = Reservations::new(roots);
        let snapshot = Snapshot::new("2026-11-26T10:00:00Z".parse().unwrap());
        assert!(reservations.refresh(1, &snapshot, &holders).is_none());
        let mut refresh = |reservations: &mut Reservations, now_ns| {
            holders.fill_descendants(&mut [], |_| None, now_ns);
            reservations.refresh(now_ns, &snapshot, &holders)
        };
        assert!(refresh(&mut reservations, 1).is_some());
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
        refresh(&mut reservations, 1 + LIST_NS);
        assert_eq!(
            [70, 73].map(|pid| names(&reservations, pid)),
            [its_job.clone(), its_job.clone()]
        );

        // Without Slurm's cgroups, only a step daemon can prove a job.
        write_named("slurmstepd", (75, 1), 1, "\0", "0::/\n");
        let environ = "SLURM_JOB_ID=12\0CUDA_VISIBLE_DEVICES=0\0";
        write_named("x", (76, 75), 1, environ, "0::/\n");
        write_named("x", (77, 76), 1, environ, "0::/\n");
        write_named("x", (78, 1), 1, environ, "0::/\n");
        refresh(&mut reservations, 1 + 2 * LIST_NS);
        assert_eq!([76, 77].map(|pid| names(&reservations, pid)), [its_job.clone(), its_job]);
        assert_eq!(names(&reservations, 78), None, "not below the daemon");
    }
}
