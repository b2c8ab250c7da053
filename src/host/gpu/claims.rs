//! Claims GPUs for `gpumem run --claim` and detects claimed GPUs.
//!
//! A claim is an exclusive flock(2) on the GPU's folder in sysfs. Claimers wait in a queue (`claim_queue`) by locking a
//! file in that folder. Root owns the folder and the file, and every user can open them. Users therefore cannot create,
//! remove or replace a lock file, and a full disk cannot prevent a claim. The kernel releases the lock when the last
//! process that has the locked folder open exits, even after a crash.
//!
//! The command of a claim can claim its GPUs again for parts of itself. These nested claims lock another file
//! ([`LEVELS`]). The kernel proves that a claim belongs to an ancestor: `/proc/PID/fdinfo` lists the locks of a
//! process's open files.
//!
//! flock(2) has no test operation. To detect a claim, gpumem tries to take a shared lock, which fails while the GPU is
//! claimed. A successful test holds the shared lock briefly, so claiming retries. Other programs can take such locks,
//! too. While one of them holds a shared lock, the GPU cannot be claimed. The process that took a lock is found in
//! `/proc/locks`, which does not list locks of other pid namespaces. Any user can make `/proc/locks` long, so reads are
//! limited in size and frequency.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fd::OwnedFd;
use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use rustix::io::Errno;

use crate::host::Roots;
use crate::host::gpu::claim_queue::{Place, read_places, take_place};
use crate::host::machine::clocks::read_clocks;
use crate::host::machine::rights::has_gained_rights;
use crate::host::owner::names::Users;
use crate::host::proc::folder::{Folder, read_start};
use crate::host::proc::guarded::read_ancestors;
use crate::model::snapshot::{Claim, Gpu};
use crate::units::system_message;

/// Overrides [`FOLDER`] in a container that mounts the host's sysfs elsewhere.
const VARIABLE: &str = "GPUMEM_CLAIM_DIR";
const FOLDER: &str = "/sys/bus/pci/devices";
/// Path that a claim locks, and the file on which claimers queue, for each level of nested claims. Both are relative to
/// the GPU's folder. The driver's library must not open the queue's file, because closing it would release the place
/// (see `claim_queue`).
const LEVELS: [(&str, &str); 2] = [(".", "dma_mask_bits"), ("device", "consistent_dma_mask_bits")];
/// File that `gpumem unpark` locks while it checks the free memory of a GPU and restores a process on it, relative to
/// the GPU's folder.
const RESTORE: &str = "class";
/// Maximum time to wait while other parks check the host's free memory.
const PARKS: Duration = Duration::from_secs(10);
/// Maximum number of bytes read from `/proc/locks`, about a thousand locks. The kernel builds the file in quadratic
/// time.
const LOCKS_BYTES: u64 = 64 << 10;
const FDINFO_BYTES: usize = 4096;
/// Minimum interval, in nanoseconds, between reads of `/proc/locks`. A new claim or the exit of a known holder causes
/// an earlier read.
const HOLDERS_NS: u64 = 30_000_000_000;
/// Maximum number of attempts to claim a GPU, with a pause of [`PAUSE`] between them. A test of another gpumem may
/// hold the lock briefly.
const ATTEMPTS: usize = 20;
const PAUSE: Duration = Duration::from_millis(1);
/// Interval between checks of the claims and queues. The checks do not call the driver.
const POLL: Duration = Duration::from_millis(20);
const COMM: &[u8] = b"gpumem\n";

#[derive(Debug, thiserror::Error)]
#[error("cannot claim GPU {gpu}: {reason}")]
pub struct CannotClaim {
    gpu: u32,
    reason: String,
}

impl CannotClaim {
    fn new(gpu: &Gpu, path: &Path, error: Errno) -> Self {
        let reason = match gpu.pci_bus_id {
            Some(_) => format!(
                "{}: {}; claims need the GPUs' folders in sysfs, or {VARIABLE}",
                path.display(),
                system_message(&error)
            ),
            None => "its bus address is unknown".to_owned(),
        };
        Self { gpu: gpu.index, reason }
    }
}

/// Returns whether `GPUMEM_CLAIM_DIR` is unset or an absolute path. A relative path would depend on the working
/// directory.
pub fn is_claim_folder_valid() -> bool {
    std::env::var_os(VARIABLE).is_none_or(|folder| Path::new(&folder).is_absolute())
}

type FileId = ((u32, u32), u64);

#[derive(Debug)]
struct WaitedGpu {
    index: u32,
    lock: PathBuf,
    queue: OwnedFd,
    state: (bool, usize),
}

/// Claims of the machine's GPUs, detected in one lockable folder per PCI device.
#[derive(Debug)]
pub struct Claims {
    folder: PathBuf,
    /// Number of claims in which this process is nested. The claims are held by ancestors.
    level: usize,
    holders: Vec<(u32, Claim)>,
    read_ns: Option<u64>,
    /// Indices of the GPUs that the last call of [`Self::mark`] found claimed.
    claimed: Vec<u32>,
    /// Indices of the GPUs on which a shared lock was found.
    shared: Vec<u32>,
    arrived_ns: Option<u64>,
    queues: Vec<WaitedGpu>,
}

impl Claims {
    pub fn of_machine() -> Self {
        // With setuid or file capabilities, gpumem must not lock a folder that the caller chose and could not open.
        let chosen = std::env::var_os(VARIABLE).filter(|_| !has_gained_rights());
        Self::below(chosen.unwrap_or_else(|| FOLDER.into()).into())
    }

    fn below(folder: PathBuf) -> Self {
        Self {
            folder,
            level: 0,
            holders: Vec::new(),
            read_ns: None,
            claimed: Vec::new(),
            shared: Vec::new(),
            arrived_ns: None,
            queues: Vec::new(),
        }
    }

    /// Returns the indices of the GPUs in the innermost claim that this process or its ancestors hold. This process
    /// then claims GPUs one level below that claim.
    pub fn nest(&mut self, gpus: &[Gpu], roots: &Roots) -> Vec<u32> {
        let own = std::process::id();
        let pids = std::iter::once(own).chain(read_ancestors(roots, own));
        let locks = pids.filter_map(|pid| read_locks_of(&roots.proc, pid, gpus));
        let locks: Vec<Lock> = locks.flatten().collect();
        let is_held = |path: PathBuf| {
            let file = file_id(&path);
            locks.iter().any(|lock| lock.is_exclusive && Some(lock.file) == file)
        };
        let depth = |gpu: &Gpu| {
            LEVELS.iter().take_while(|(lock, _)| is_held(self.path(gpu).join(lock))).count()
        };
        let depths: Vec<(u32, usize)> = gpus.iter().map(|gpu| (gpu.index, depth(gpu))).collect();
        let deepest = depths.iter().map(|(_, depth)| *depth).max().unwrap_or(0);
        if deepest > 0 {
            *self = Self { level: deepest, ..Self::below(std::mem::take(&mut self.folder)) };
        }
        let inherited = depths.into_iter().filter(|(_, depth)| *depth == deepest && deepest > 0);
        inherited.map(|(index, _)| index).collect()
    }

    /// Enters the queue of a GPU. From then on, [`Self::mark`] lists only the processes that are ahead. Returns an
    /// error if the GPU has no folder in sysfs, if claims cannot be nested deeper, or if another process holds an
    /// exclusive lock on the queue's file.
    pub fn enter_queue(&mut self, gpu: &Gpu) -> Result<(), CannotClaim> {
        let cannot = |reason| CannotClaim { gpu: gpu.index, reason };
        if self.level == LEVELS.len() {
            return Err(cannot("claims can be nested only once".to_owned()));
        }
        // A run has the same time of arrival in all queues, so that two runs never wait for each other.
        let now_ns = read_clocks().boottime_ns;
        let arrived_ns = *self.arrived_ns.get_or_insert(now_ns);
        let path = self.queue_path(gpu);
        let queue = open_file(&path).map_err(|errno| CannotClaim::new(gpu, &path, errno))?;
        take_place(&queue, arrived_ns, now_ns)
            .map_err(|error| cannot(format!("{}: {error}", path.display())))?;
        let lock = self.lock_path(gpu);
        self.queues.push(WaitedGpu { index: gpu.index, lock, queue, state: (false, 0) });
        Ok(())
    }

    /// Renews the places in the queues. Returns when a GPU is claimed or released, when the number of runs ahead
    /// changes, or after `pause`.
    pub fn wait_in_queues(&mut self, pause: Duration) {
        let (begun, mut is_changed) = (Instant::now(), false);
        while !is_changed && begun.elapsed() < pause {
            thread::sleep(POLL.min(pause));
            let now_ns = read_clocks().boottime_ns;
            for gpu in &mut self.queues {
                let _ = take_place(&gpu.queue, self.arrived_ns.unwrap_or(now_ns), now_ns);
                let ahead = read_places(&gpu.queue, self.arrived_ns, now_ns);
                let state = (is_locked(&gpu.lock, false), ahead.len());
                is_changed |= std::mem::replace(&mut gpu.state, state) != state;
            }
        }
    }

    pub fn leave_queues(&mut self) {
        self.queues.clear();
        self.arrived_ns = None;
    }

    /// Returns the runs in the GPU's queue. If this run is in the queue, returns only the runs ahead of it.
    fn read_queue(&self, gpu: &Gpu, roots: &Roots, now_ns: u64) -> Vec<Claim> {
        let places = match self.queues.iter().find(|waited| waited.index == gpu.index) {
            Some(waited) => read_places(&waited.queue, self.arrived_ns, now_ns),
            None => open_file(&self.queue_path(gpu))
                .map_or_else(|_| Vec::new(), |file| read_places(&file, None, now_ns)),
        };
        let waiting = |place: Place| Claim {
            waiting_seconds: Some(now_ns.saturating_sub(place.arrived_ns) as f64 / 1e9),
            ..place.pid.and_then(|pid| read_claim(&roots.proc, pid)).unwrap_or_default()
        };
        places.into_iter().map(waiting).collect()
    }

    pub fn claim(&mut self, gpu: &Gpu) -> Result<Option<OwnedFd>, CannotClaim> {
        let path = self.lock_path(gpu);
        let locked = || {
            let file = open_file(&path)?;
            for attempt in 1..=ATTEMPTS {
                match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                    Ok(()) => return Ok(Some(file)),
                    Err(Errno::WOULDBLOCK) if attempt < ATTEMPTS => thread::sleep(PAUSE),
                    Err(Errno::WOULDBLOCK) => break,
                    Err(errno) => return Err(errno),
                }
            }
            Ok(None)
        };
        let claim = locked().map_err(|errno| CannotClaim::new(gpu, &path, errno))?;
        if claim.is_none() && !self.shared.contains(&gpu.index) {
            self.shared.push(gpu.index);
            self.read_ns = None;
        }
        Ok(claim)
    }

    /// Locks a GPU against other restores. Returns `None` if another process has locked it.
    pub fn lock_for_restore(&self, gpu: &Gpu) -> Result<Option<OwnedFd>, CannotClaim> {
        let path = self.path(gpu).join(RESTORE);
        let file = open_file(&path).map_err(|errno| CannotClaim::new(gpu, &path, errno))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(file)),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(errno) => Err(CannotClaim::new(gpu, &path, errno)),
        }
    }

    /// Takes a lock that prevents other parks from counting on the same free host memory. A park holds the lock for
    /// less than a second.
    pub fn lock_parks(&self) -> rustix::io::Result<OwnedFd> {
        let file = open_file(&self.folder)?;
        let end = Instant::now() + PARKS;
        while let Err(errno) = flock(&file, FlockOperation::NonBlockingLockExclusive) {
            if errno != Errno::WOULDBLOCK || Instant::now() > end {
                return Err(errno);
            }
            thread::sleep(PAUSE);
        }
        Ok(file)
    }

    /// Returns the GPU's folder, or a path that does not exist if the bus address is unknown.
    fn path(&self, gpu: &Gpu) -> PathBuf {
        self.folder.join(address(gpu).as_deref().unwrap_or("unknown"))
    }

    /// Returns the path that claims lock. If claims cannot be nested deeper, returns a path that does not exist.
    fn lock_path(&self, gpu: &Gpu) -> PathBuf {
        self.path(gpu).join(LEVELS.get(self.level).map_or("none", |(lock, _)| lock))
    }

    fn queue_path(&self, gpu: &Gpu) -> PathBuf {
        self.path(gpu).join(LEVELS.get(self.level).map_or("none", |(_, queue)| queue))
    }

    /// Sets `claim` and `queue` of each GPU. Searches for the holders if a GPU is newly locked, if a known holder has
    /// exited, and otherwise every [`HOLDERS_NS`].
    pub fn mark(&mut self, gpus: &mut [Gpu], roots: &Roots, users: &mut Users, now_ns: u64) {
        let is_gone = |(_, claim): &(u32, Claim)| {
            claim.pid.is_none_or(|pid| Folder::open(&roots.proc, pid).is_err())
        };
        let is_old = self.read_ns.is_none_or(|at| now_ns.saturating_sub(at) >= HOLDERS_NS);
        let claimed = self.locked(gpus);
        let is_new = claimed.iter().any(|index| !self.claimed.contains(index));
        self.claimed = claimed;
        if is_new || is_old || self.holders.iter().any(is_gone) {
            let shared = self.shared.len();
            self.find_holders(gpus, roots, now_ns);
            if self.shared.len() > shared {
                self.claimed = self.locked(gpus);
            }
        }
        for gpu in gpus.iter_mut() {
            let holder = self.holders.iter().find(|(index, _)| *index == gpu.index);
            let claim = || holder.map(|(_, claim)| claim.clone()).unwrap_or_default();
            gpu.claim = self.claimed.contains(&gpu.index).then(claim);
            gpu.queue = self.read_queue(gpu, roots, now_ns);
            for claim in gpu.claim.iter_mut().chain(&mut gpu.queue) {
                claim.user = claim.uid.and_then(|uid| users.name(uid, now_ns));
            }
        }
    }

    /// Returns the indices of the locked GPUs. A GPU with a known shared lock is tested with an exclusive lock.
    fn locked(&mut self, gpus: &[Gpu]) -> Vec<u32> {
        let is_shared = |gpu: &Gpu| self.shared.contains(&gpu.index);
        let locked: Vec<u32> = gpus
            .iter()
            .filter(|gpu| is_locked(&self.lock_path(gpu), is_shared(gpu)))
            .map(|gpu| gpu.index)
            .collect();
        self.shared.retain(|index| locked.contains(index));
        locked
    }

    fn find_holders(&mut self, gpus: &[Gpu], roots: &Roots, now_ns: u64) {
        let proc = &roots.proc;
        let read = read_start(&proc.join("locks"), LOCKS_BYTES).unwrap_or_default();
        // The last line may be truncated because of the size limit.
        let lines = read.split_inclusive(|&byte| byte == b'\n');
        let lines = lines.filter(|line| line.ends_with(b"\n"));
        let listed: Vec<(u32, Lock)> = lines.filter_map(parse_lock).collect();
        // The process that took a lock may have exited after others have inherited the lock. The holder is then
        // unknown.
        let holds = |(pid, lock): &(u32, Lock)| match read_locks_of(proc, *pid, gpus) {
            Some(held) => held.contains(lock),
            None => Folder::open(proc, *pid).is_ok(),
        };
        self.read_ns = Some(now_ns);
        self.holders.clear();
        for gpu in gpus {
            let Some(file) = file_id(&self.lock_path(gpu)) else { continue };
            let is_shared = self.shared.contains(&gpu.index);
            let mut locks = listed.iter().filter(|(_, lock)| lock.file == file);
            let found = locks.find_map(|listed| {
                let claim = read_claim(proc, listed.0).filter(|_| holds(listed));
                // gpumem briefly takes a shared lock to test a claim.
                let is_gpumem = claim.as_ref().is_some_and(|claim| claim.program.is_none());
                let is_test = !listed.1.is_exclusive && is_gpumem && !is_shared;
                (!is_test).then_some((listed.1, claim))
            });
            let Some((lock, claim)) = found else { continue };
            self.shared.extend((!lock.is_exclusive && !is_shared).then_some(gpu.index));
            self.holders.extend(claim.map(|claim| (gpu.index, claim)));
        }
    }
}

fn address(gpu: &Gpu) -> Option<String> {
    // NVML reports the PCI domain with eight hexadecimal digits, sysfs with at least four.
    let address = gpu.pci_bus_id.as_deref()?.to_ascii_lowercase();
    let (domain, device) = address.split_once(':')?;
    Some(format!("{:04x}:{device}", u32::from_str_radix(domain, 16).ok()?))
}

fn open_file(path: &Path) -> rustix::io::Result<OwnedFd> {
    open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

fn file_id(path: &Path) -> Option<FileId> {
    let file = fs::metadata(path).ok()?;
    Some(((rustix::fs::major(file.dev()), rustix::fs::minor(file.dev())), file.ino()))
}

/// Tries to take a lock that conflicts with exclusive locks, or also with shared ones.
fn is_locked(path: &Path, or_shared: bool) -> bool {
    let Ok(file) = open_file(path) else { return false };
    let locked = flock(
        &file,
        if or_shared {
            FlockOperation::NonBlockingLockExclusive
        } else {
            FlockOperation::NonBlockingLockShared
        },
    );
    if locked.is_ok() {
        // If a forked child has inherited the file descriptor and not yet executed a program, closing the descriptor
        // does not release the lock.
        let _ = flock(&file, FlockOperation::Unlock);
    }
    locked == Err(Errno::WOULDBLOCK)
}

/// Returns the locks on these GPUs that a process holds, or `None` if its file descriptors cannot be read.
fn read_locks_of(proc: &Path, pid: u32, gpus: &[Gpu]) -> Option<Vec<Lock>> {
    let folder = Folder::open(proc, pid).ok()?;
    let (links, infos) = (folder.folder(c"fd").ok()?, folder.folder(c"fdinfo").ok()?);
    let addresses: Vec<String> = gpus.iter().filter_map(address).collect();
    let is_of_gpu = |link: &[u8]| {
        let mut names = link.rsplit(|&byte| byte == b'/').take(2);
        names.any(|name| addresses.iter().any(|address| address.as_bytes() == name))
    };
    let (mut locks, mut content) = (Vec::new(), Vec::new());
    let listed = links.names(|name| {
        if links.link(name, is_of_gpu) == Ok(true)
            && infos.read_list(name, &mut content, FDINFO_BYTES).is_ok()
        {
            let lines = content.split(|&byte| byte == b'\n');
            let lines = lines.filter_map(|line| parse_lock(line.strip_prefix(b"lock:")?));
            locks.extend(lines.map(|(_, lock)| lock));
        }
        true
    });
    listed.ok().map(|()| locks)
}

/// Returns the claims of the GPU that the processes hold or have inherited.
pub fn find_heirs(roots: &Roots, gpu: &Gpu, pids: &[u32]) -> Vec<Claim> {
    let is_heir = |pid: &u32| {
        let locks = read_locks_of(&roots.proc, *pid, std::slice::from_ref(gpu));
        locks.is_some_and(|locks| locks.iter().any(|lock| lock.is_exclusive))
    };
    let heirs = pids.iter().copied().filter(is_heir);
    heirs.filter_map(|pid| read_claim(&roots.proc, pid)).collect()
}

fn read_claim(proc: &Path, pid: u32) -> Option<Claim> {
    let mut content = [0; 32];
    let length = Folder::list(proc).ok()?.file_of(pid, "comm", &mut content).ok()?;
    let comm = content.get(..length)?;
    let program = (comm != COMM).then(|| String::from_utf8_lossy(comm.trim_ascii_end()).into());
    let uid = Folder::open(proc, pid).ok()?.owner().ok();
    Some(Claim { pid: Some(pid), uid, program, ..Claim::default() })
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Lock {
    is_exclusive: bool,
    file: FileId,
}

/// Parses a held lock and the pid of the process that took it, from a line of `/proc/locks` (proc_locks(5)) or of
/// `/proc/PID/fdinfo`, such as `1: FLOCK  ADVISORY  WRITE 7 00:16:4767 0 EOF`. Returns `None` for the line of a
/// process that waits for a lock, which contains an arrow before `FLOCK`.
fn parse_lock(line: &[u8]) -> Option<(u32, Lock)> {
    let line = std::str::from_utf8(line).ok()?;
    let mut words = line.split_ascii_whitespace().skip(1);
    let (kind, _, access) = (words.next()?, words.next()?, words.next()?);
    if kind != "FLOCK" {
        return None;
    }
    let pid = words.next()?.parse().ok()?;
    let mut device_and_inode = words.next()?.splitn(3, ':');
    let mut number = || u32::from_str_radix(device_and_inode.next()?, 16).ok();
    let device = (number()?, number()?);
    let inode = device_and_inode.next()?.parse().ok()?;
    Some((pid, Lock { is_exclusive: access == "WRITE", file: (device, inode) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(bus_id: &str) -> Gpu {
        Gpu { pci_bus_id: Some(bus_id.into()), ..Gpu::default() }
    }

    #[test]
    fn claim_folders_use_the_kernels_bus_addresses() {
        let claims = Claims::below("/".into());
        for (nvml, kernel) in [
            ("00000000:17:00.0", "/0000:17:00.0"),
            ("0000ABCD:C1:00.0", "/abcd:c1:00.0"),
            ("00010000:E1:00.0", "/10000:e1:00.0"),
            ("", "/unknown"),
        ] {
            assert_eq!(claims.path(&gpu(nvml)), Path::new(kernel));
        }
    }

    #[test]
    fn only_held_locks_are_parsed() {
        for (line, lock) in [
            ("1: FLOCK  ADVISORY  WRITE 27271 00:16:4767 0 EOF", Some((27271, true, 4767))),
            ("\t1: FLOCK  ADVISORY  READ 27271 00:16:4767 0 EOF", Some((27271, false, 4767))),
            ("1: -> FLOCK  ADVISORY  WRITE 27271 00:16:4767 0 EOF", None),
            ("5: POSIX  ADVISORY  WRITE 27081 fe:00:10133508 0 EOF", None),
            ("5: FLOCK  ADVISORY  WRITE 27081 fe:00", None),
            ("", None),
        ] {
            let lock = lock.map(|(pid, is_exclusive, inode)| {
                (pid, Lock { is_exclusive, file: ((0, 0x16), inode) })
            });
            assert_eq!(parse_lock(line.as_bytes()), lock, "{line}");
        }
    }

    #[test]
    fn a_claim_is_exclusive_until_it_is_dropped() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("0000:17:00.0")).unwrap();
        let mut claims = Claims::below(folder.path().to_owned());
        let gpu = gpu("00000000:17:00.0");
        let first = claims.claim(&gpu).unwrap();
        assert!(first.is_some() && claims.claim(&gpu).unwrap().is_none());
        drop(first);
        assert!(claims.claim(&gpu).unwrap().is_some());
        assert!(claims.enter_queue(&gpu).is_err());
    }

    /// Before the claim, `/proc/locks` lists 100,000 locks of a user, so that a read ends before the line of the claim.
    /// gpumem must detect the claim nevertheless, and must not read the file again before [`HOLDERS_NS`] have passed.
    #[test]
    fn a_claim_is_found_behind_many_locks_which_are_rarely_read() {
        let (folder, proc) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::create_dir(folder.path().join("0000:17:00.0")).unwrap();
        let mut claims = Claims::below(folder.path().to_owned());
        let mut gpus = [gpu("00000000:17:00.0")];
        let roots = Roots { proc: proc.path().to_owned(), ..Roots::default() };
        let metadata = fs::metadata(claims.path(&gpus[0])).unwrap();
        let device = (rustix::fs::major(metadata.dev()), rustix::fs::minor(metadata.dev()));
        let own_line = format!(
            "1: FLOCK  ADVISORY  WRITE 7 {:02x}:{:02x}:{} 0 EOF\n",
            device.0,
            device.1,
            metadata.ino()
        );
        let other_lines = "1: POSIX  ADVISORY  WRITE 8 00:16:4767 0 0\n".repeat(100_000);
        fs::create_dir(proc.path().join("7")).unwrap();
        fs::write(proc.path().join("7/comm"), "gpumem\n").unwrap();
        let mut mark = |locks: &str, now_ns| {
            fs::write(proc.path().join("locks"), locks).unwrap();
            gpus[0].claim = None;
            claims.mark(&mut gpus, &roots, &mut Users::default(), now_ns);
            gpus[0].claim.as_ref().map(|claim| claim.pid)
        };
        let mut holder = Claims::below(folder.path().to_owned());
        let unclaimed = gpu("00000000:17:00.0");
        assert_eq!(mark(&own_line, 0), None, "a line does not prove a claim");
        let claim = holder.claim(&unclaimed).unwrap().unwrap();
        assert_eq!(mark(&format!("{other_lines}{own_line}"), 1), Some(None));
        assert_eq!(mark(&own_line, HOLDERS_NS), Some(None), "read too recently");
        assert_eq!(mark(&own_line, HOLDERS_NS + 1), Some(Some(7)));
        drop(claim);
        assert_eq!(mark(&own_line, HOLDERS_NS + 2), None);
        // Claiming must fail while a concurrent test holds the shared lock, and succeed afterwards.
        let test = open_file(&holder.path(&unclaimed)).unwrap();
        flock(&test, FlockOperation::NonBlockingLockShared).unwrap();
        assert!(!is_locked(&holder.path(&unclaimed), false), "concurrent tests do not conflict");
        assert!(holder.claim(&unclaimed).unwrap().is_none());
        drop(test);
        assert!(holder.claim(&unclaimed).unwrap().is_some());
    }
}
