//! Which jobs and containers were given GPUs, by the environments of their processes: who runs nothing on a GPU
//! holds no device file, and is found by nothing else. The device rules of a cgroup (v2) are programs of the
//! kernel's, and cannot be read.
//!
//! Every process is looked at when it is new and some times after, because a program may replace another: its
//! stat, and its environment where that may be read. Where that may not be read, nothing is known. Only those that
//! name GPUs are then looked at as closely as those that hold one ([`Processes`]), a few for each job or
//! container. Next: what such a process proves is in [`crate::model::reservation`].

use std::collections::BTreeMap;
use std::sync::Arc;

use foldhash::{HashMap, HashMapExt as _};

use crate::host::Roots;
use crate::host::gpu::holders::Holders;
use crate::host::gpu::mapped_devices::ProcEntry;
use crate::host::owner::cgroup::{CGROUP_BYTES, parse_cgroup};
use crate::host::proc::environ::{ENVIRON_BYTES, parse_environ};
use crate::host::proc::folder::Folder;
use crate::host::proc::processes::Processes;
use crate::host::proc::stat::{STAT_BYTES, parse_stat};
use crate::host::proc::tree::Tree;
use crate::model::Process;
use crate::model::reservation::{Reservation, names_devices};

/// How often everybody is listed.
const LIST_NS: u64 = 30_000_000_000;
/// How often a process is looked at.
const LOOKS: u8 = 3;
/// How many are looked at in one sample, about: some ten milliseconds' work.
const AT_ONCE: usize = 512;
/// The processes that are asked for a job or a container: an older one may have copied its environment.
const ASKED_EACH: usize = 4;
/// More jobs and containers than this are not told of.
const MOST: usize = 256;
/// The variables that name GPUs.
const VARIABLES: [&str; 4] =
    ["CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "SLURM_JOB_GPUS", "SLURM_STEP_GPUS"];

/// The jobs and containers that were given GPUs.
#[derive(Debug)]
pub struct Reservations {
    roots: Roots,
    /// Who was looked at: by pid.
    known: HashMap<u32, KnownReservation>,
    /// When everybody is to be listed again, if anybody may have come or gone.
    list_ns: u64,
    processes: Processes,
    /// What was found last; `None` before all were looked at once.
    found: Option<Arc<[Reservation]>>,
}

#[derive(Debug)]
struct KnownReservation {
    listed: ProcEntry,
    looks: u8,
    /// The last list in which it was looked at.
    looked_ns: u64,
    /// Where its stack began then, by which another program is told; 0 where that is hidden.
    start_stack: u64,
    /// Whose GPUs it names, and when it started.
    names: Option<(ReservationHolder, u64)>,
}

/// A job or a container.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum ReservationHolder {
    Job(Arc<str>),
    Container(Arc<str>),
}

impl KnownReservation {
    fn note(&mut self, scan: ReservationScan, now_ns: u64) {
        self.looked_ns = now_ns;
        match scan {
            ReservationScan::Names(names) => {
                self.names = names;
                self.looks += 1;
            }
            ReservationScan::SameProgram => self.looks += 1,
            // It may be held up in a driver, and whoever reads it with it: another time.
            ReservationScan::Later => {}
            ReservationScan::Never => self.looks = LOOKS,
        }
    }
}

impl Reservations {
    /// Knows no process yet.
    pub fn new(roots: Roots) -> Self {
        Self {
            known: HashMap::new(),
            list_ns: 0,
            processes: Processes::new(roots.clone()),
            found: None,
            roots,
        }
    }

    /// Looks at who is new, where that is due; what is known stands in between, and where /proc cannot be listed.
    /// `boottime_ns` is the time now, in nanoseconds since boot. `watched` were read in this sample, and of the
    /// kernel's own `holders` know; neither are looked at again.
    pub fn refresh(
        &mut self,
        boottime_ns: u64,
        watched: &[Process],
        holders: &Holders,
    ) -> Option<Arc<[Reservation]>> {
        if boottime_ns >= self.list_ns && self.is_up_to_date(boottime_ns, watched, holders.tree()) {
            self.list_ns = boottime_ns.saturating_add(LIST_NS);
            self.found = Some(self.claims(boottime_ns));
        }
        self.found.clone()
    }

    /// Whether all were looked at who are there and are still to be looked at.
    fn is_up_to_date(&mut self, now_ns: u64, watched: &[Process], tree: &Tree) -> bool {
        self.look_at_all(now_ns, watched, tree) == Some(true)
    }

    /// Whether all were looked at; `None` where they could not be listed.
    fn look_at_all(&mut self, now_ns: u64, watched: &[Process], tree: &Tree) -> Option<bool> {
        let proc = Folder::list(&self.roots.proc).ok()?;
        let mut before = std::mem::take(&mut self.known);
        let mut left = AT_ONCE;
        let mut is_over = true;
        let mut listing = Vec::new();
        let is_listed = proc.entries(|name, inode| {
            let pid = std::str::from_utf8(name.to_bytes());
            if let Some(pid) = pid.ok().and_then(|name| name.parse().ok()) {
                listing.push(ProcEntry { pid, inode });
            }
            true
        });
        if is_listed.is_err() {
            self.known = before;
            return None;
        }
        let mut content = Vec::new();
        let watched: HashMap<u32, &Process> = watched.iter().map(|it| (it.pid, it)).collect();
        for listed in listing {
            let same = before.remove(&listed.pid).filter(|it| it.listed == listed);
            let mut known = same.unwrap_or(KnownReservation {
                listed,
                looks: 0,
                looked_ns: 0,
                start_stack: 0,
                names: None,
            });
            // Once in a list, and that may take several samples.
            let is_due = known.looks < LOOKS
                && (known.looks == 0 || now_ns >= known.looked_ns.saturating_add(LIST_NS));
            let seen = || match watched.get(&listed.pid) {
                Some(process) => names_by(process),
                None => tree.is_kernels(listed).then_some(ReservationScan::Never),
            };
            if is_due && let Some(scan) = seen() {
                known.note(scan, now_ns);
            } else if is_due && left == 0 {
                is_over = false;
            } else if is_due {
                left -= 1;
                let scan = self.names(&mut known, &mut content);
                known.note(scan, now_ns);
            }
            self.known.insert(listed.pid, known);
        }
        Some(is_over)
    }

    /// Whose GPUs a process names.
    fn names(&self, known: &mut KnownReservation, content: &mut Vec<u8>) -> ReservationScan {
        let Ok(folder) = Folder::open(&self.roots.proc, known.listed.pid) else {
            return ReservationScan::Names(None);
        };
        if folder.read(c"stat", content, STAT_BYTES).is_err() {
            return ReservationScan::Names(None);
        }
        let start_ticks = match parse_stat(content) {
            Some(stat) if stat.is_kernel_thread => return ReservationScan::Never,
            Some(stat) if stat.state == 'D' => return ReservationScan::Later,
            // As in `entry`: another program has another stack.
            Some(stat) if stat.start_stack != 0 && stat.start_stack == known.start_stack => {
                return ReservationScan::SameProgram;
            }
            Some(stat) if !stat.is_exiting => {
                known.start_stack = stat.start_stack;
                stat.start_ticks
            }
            _ => return ReservationScan::Names(None),
        };
        if folder.read(c"environ", content, ENVIRON_BYTES).is_err() {
            known.start_stack = 0;
            return ReservationScan::Names(None);
        }
        // Hardly anybody names any, and to sort a whole environment takes as long as to read it.
        let mut variables = content.split(|&byte| byte == 0);
        let names_any = |variable: &[u8]| {
            let named = |name: &&str| variable.starts_with(name.as_bytes());
            VARIABLES.iter().any(named)
        };
        if !variables.any(names_any) {
            return ReservationScan::Names(None);
        }
        let environment = parse_environ(content);
        if !names_gpus(&environment) {
            return ReservationScan::Names(None);
        }
        let read = folder.read(c"cgroup", content, CGROUP_BYTES);
        let place = read.ok().map(|()| parse_cgroup(content));
        let container = place.and_then(|place| place.container?.id.clone());
        ReservationScan::of(&environment, container, start_ticks)
    }

    /// What those who name GPUs prove.
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
            asked.push(processes.into_iter().take(ASKED_EACH).map(|it| it.1).collect());
        }
        let pids: Vec<u32> = asked.iter().flatten().copied().collect();
        let sample = self.processes.sample(&pids, now_ns);
        let found = asked.iter().filter_map(|pids| {
            pids.iter().find_map(|pid| {
                let process = sample.processes.iter().find(|it| it.pid == *pid)?;
                Reservation::of(process)
            })
        });
        found.collect()
    }
}

/// Whose GPUs a process names that has been read in this sample; `None` where its environment was not.
fn names_by(process: &Process) -> Option<ReservationScan> {
    let (environment, start_ticks) = (process.environment.as_deref()?, process.start_ticks?);
    if !names_gpus(environment) {
        return Some(ReservationScan::Names(None));
    }
    let container = process.container.as_ref().and_then(|it| it.id.clone());
    Some(ReservationScan::of(environment, container, start_ticks))
}

/// Whether an environment names GPUs.
fn names_gpus(environment: &BTreeMap<Arc<str>, Arc<str>>) -> bool {
    let mut values = VARIABLES.iter().filter_map(|name| environment.get(*name));
    values.any(|value| names_devices(value))
}

impl ReservationScan {
    /// That of a process whose environment names GPUs.
    fn of(
        environment: &BTreeMap<Arc<str>, Arc<str>>,
        container: Option<Arc<str>>,
        start_ticks: u64,
    ) -> Self {
        let job = || environment.get("SLURM_JOB_ID").cloned();
        let holder = container
            .map(ReservationHolder::Container)
            .or_else(|| job().map(ReservationHolder::Job));
        Self::Names(holder.map(|holder| (holder, start_ticks)))
    }
}

/// What a look at a process came to.
enum ReservationScan {
    Names(Option<(ReservationHolder, u64)>),
    /// It runs the program that it ran when it was last looked at.
    SameProgram,
    /// It cannot be read without being held up.
    Later,
    /// It is the kernel's own.
    Never,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_watched_is_not_looked_at_again() {
        let proc = tempfile::tempdir().unwrap();
        let roots = Roots { proc: proc.path().to_owned(), ..Roots::default() };
        let watched: Vec<Process> = (0..2 * AT_ONCE as u32)
            .map(|at| {
                std::fs::create_dir(proc.path().join((1000 + at).to_string())).unwrap();
                Process {
                    pid: 1000 + at,
                    start_ticks: Some(7),
                    environment: Some(Arc::default()),
                    ..Process::default()
                }
            })
            .collect();
        let holders = Holders::new(roots.clone());
        // Of more than are read in one sample, all is known after the first.
        let mut reservations = Reservations::new(roots.clone());
        assert!(reservations.refresh(1, &[], &holders).is_none());
        let mut reservations = Reservations::new(roots);
        let found = reservations.refresh(1, &watched, &holders);
        assert_eq!(found.as_deref(), Some(&[][..]));
        assert!(reservations.known.values().all(|it| it.looks == 1));
    }

    #[test]
    fn who_names_gpus_is_asked_for_its_job_or_container() {
        let of = |variables: &[(&str, &str)], id: Option<&str>| {
            let variables = variables.iter();
            let variables = variables.map(|(name, value)| (Arc::from(*name), Arc::from(*value)));
            let container = |id: &str| crate::model::snapshot::Container {
                id: Some(id.into()),
                ..Default::default()
            };
            let process = Process {
                start_ticks: Some(7),
                environment: Some(Arc::new(variables.collect())),
                container: id.map(container).map(Arc::new),
                ..Process::default()
            };
            match names_by(&process) {
                Some(ReservationScan::Names(names)) => names,
                _ => panic!("it was read"),
            }
        };
        let job = ("SLURM_JOB_ID", "12");
        let gpus = ("CUDA_VISIBLE_DEVICES", "0,1");
        assert_eq!(of(&[job], Some("c")), None);
        let its_job = ReservationHolder::Job("12".into());
        assert_eq!(of(&[job, gpus], None), Some((its_job, 7)));
        let its_container = ReservationHolder::Container("c".into());
        assert_eq!(of(&[job, gpus], Some("c")), Some((its_container, 7)));
        assert_eq!(of(&[gpus], None), None);
        assert!(names_by(&Process::default()).is_none());
    }
}
