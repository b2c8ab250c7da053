//! Claims GPUs for `gpumem run --claim` and detects claimed GPUs.
//!
//! A claim is an exclusive flock(2) on the GPU's folder in sysfs. Claimers wait in a queue by locking a file in that
//! folder. Root owns the folder and the file, and every user can open them, so users cannot create, remove or replace
//! a lock file, and a full disk cannot prevent a claim. The kernel releases a lock when the last process that has it
//! open exits, even after a crash.
//!
//! flock(2) has no test operation. To detect a claim, gpumem tries to take a shared lock, which fails while the GPU
//! is claimed. A successful test holds the shared lock briefly, so claiming retries. `/proc/locks` only identifies
//! the holder. Any user can make `/proc/locks` long, so reads are limited in size and frequency.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rustix::fd::OwnedFd;
use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use rustix::io::Errno;

use crate::host::Roots;
use crate::host::machine::rights::has_gained_rights;
use crate::host::owner::users::Users;
use crate::host::proc::folder::Folder;
use crate::host::proc::small_file::read_start;
use crate::model::snapshot::{Claim, Gpu};

/// Overrides [`FOLDER`] in a container that mounts the host's sysfs elsewhere.
const VARIABLE: &str = "GPUMEM_CLAIM_DIR";
const FOLDER: &str = "/sys/bus/pci/devices";
/// File in a GPU's folder that waiting claimers lock.
const QUEUE: &str = "vendor";
/// Maximum number of bytes read from `/proc/locks`, about a thousand locks. The kernel builds the file in quadratic
/// time.
const LOCKS_BYTES: u64 = 64 << 10;
/// Minimum interval between reads of `/proc/locks` unless a new claim is detected.
const HOLDERS_NS: u64 = 30_000_000_000;
/// Maximum number of attempts to claim a GPU, [`PAUSE`] apart. A concurrent test may hold the lock briefly.
const ATTEMPTS: usize = 20;
const PAUSE: Duration = Duration::from_millis(1);
/// Content of `/proc/PID/comm` for gpumem.
const COMM: &[u8] = b"gpumem\n";

#[derive(Debug, thiserror::Error)]
#[error("cannot claim GPU {gpu}: {reason}")]
pub struct CannotClaim {
    gpu: u32,
    reason: String,
}

impl CannotClaim {
    fn new(gpu: &Gpu, path: &Path, errno: Errno) -> Self {
        let reason = match gpu.pci_bus_id {
            Some(_) => {
                let (path, error) = (path.display(), io::Error::from(errno));
                format!("{path}: {error}; claims need the GPUs' folders in sysfs, or {VARIABLE}")
            }
            None => "its bus address is unknown".to_owned(),
        };
        Self { gpu: gpu.index, reason }
    }
}

/// Returns whether `GPUMEM_CLAIM_DIR` is unset or an absolute path. A relative path is a different directory for each
/// working directory.
pub fn is_claim_folder_valid() -> bool {
    std::env::var_os(VARIABLE).is_none_or(|folder| Path::new(&folder).is_absolute())
}

/// Claims of the machine's GPUs, detected from one lockable folder for each PCI device.
#[derive(Clone, Debug)]
pub struct Claims {
    folder: PathBuf,
    locks: Vec<Lock>,
    read_ns: Option<u64>,
    /// Indices of the GPUs that the last call of [`Self::mark`] found claimed.
    claimed: Vec<u32>,
}

impl Claims {
    pub fn of_machine() -> Self {
        // With setuid or file capabilities, gpumem must not lock a folder that the caller chose and could not open.
        let chosen = std::env::var_os(VARIABLE).filter(|_| !has_gained_rights());
        Self::below(chosen.unwrap_or_else(|| FOLDER.into()).into())
    }

    fn below(folder: PathBuf) -> Self {
        Self { folder, locks: Vec::new(), read_ns: None, claimed: Vec::new() }
    }

    /// Waits without a timeout until this process is first in the GPU's queue. Dropping the returned descriptor
    /// leaves the queue. The kernel wakes waiters in order of arrival. Fails if the GPU has no folder in sysfs.
    pub fn wait_in_queue(&self, gpu: &Gpu) -> Result<OwnedFd, CannotClaim> {
        let path = self.path(gpu).join(QUEUE);
        let failed = |errno| CannotClaim::new(gpu, &path, errno);
        let file = open(&path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map_err(failed)?;
        rustix::io::retry_on_intr(|| flock(&file, FlockOperation::LockExclusive))
            .map_err(failed)?;
        Ok(file)
    }

    /// Fails if the GPU cannot be claimed because it has no folder in sysfs.
    pub fn check(&self, gpu: &Gpu) -> Result<(), CannotClaim> {
        let path = self.path(gpu);
        open_folder(&path).map(drop).map_err(|errno| CannotClaim::new(gpu, &path, errno))
    }

    /// Claims a GPU. Returns `None` if another process has already claimed the GPU.
    pub fn claim(&self, gpu: &Gpu) -> Result<Option<OwnedFd>, CannotClaim> {
        let path = self.path(gpu);
        let locked = || {
            let folder = open_folder(&path)?;
            for attempt in 1..=ATTEMPTS {
                match flock(&folder, FlockOperation::NonBlockingLockExclusive) {
                    Ok(()) => return Ok(Some(folder)),
                    Err(Errno::WOULDBLOCK) if attempt < ATTEMPTS => thread::sleep(PAUSE),
                    Err(Errno::WOULDBLOCK) => break,
                    Err(errno) => return Err(errno),
                }
            }
            Ok(None)
        };
        locked().map_err(|errno| CannotClaim::new(gpu, &path, errno))
    }

    /// Returns the GPU's folder, or a nonexistent path if the bus address is unknown.
    fn path(&self, gpu: &Gpu) -> PathBuf {
        // NVML prints the PCI domain with eight hexadecimal digits, sysfs with at least four.
        let address = gpu.pci_bus_id.as_deref().unwrap_or_default().to_ascii_lowercase();
        let name = address.split_once(':').and_then(|(domain, device)| {
            Some(format!("{:04x}:{device}", u32::from_str_radix(domain, 16).ok()?))
        });
        let address = name.unwrap_or_else(|| "unknown".to_owned());
        self.folder.join(address)
    }

    /// Sets `claim` of each claimed GPU. Reads `/proc/locks` after a new claim, and otherwise every [`HOLDERS_NS`].
    pub fn mark(&mut self, gpus: &mut [Gpu], roots: &Roots, users: &mut Users, now_ns: u64) {
        let claimed: Vec<&mut Gpu> =
            gpus.iter_mut().filter(|gpu| is_claimed(&self.path(gpu))).collect();
        let indices: Vec<u32> = claimed.iter().map(|gpu| gpu.index).collect();
        let is_new = indices.iter().any(|index| !self.claimed.contains(index));
        let is_old = self.read_ns.is_none_or(|at| now_ns.saturating_sub(at) >= HOLDERS_NS);
        if is_new || (is_old && !indices.is_empty()) {
            let read = read_start(&roots.proc.join("locks"), LOCKS_BYTES).unwrap_or_default();
            // The size limit may truncate the last line.
            let lines = read.split_inclusive(|&byte| byte == b'\n');
            let lines = lines.filter(|line| line.ends_with(b"\n"));
            self.locks = lines.filter_map(parse_lock).collect();
            self.read_ns = Some(now_ns);
        }
        self.claimed = indices;
        for gpu in claimed {
            let holder = fs::metadata(self.path(gpu)).ok().and_then(|folder| {
                let device = (rustix::fs::major(folder.dev()), rustix::fs::minor(folder.dev()));
                let is_its = |lock: &&Lock| (lock.device, lock.inode) == (device, folder.ino());
                self.locks.iter().find(is_its)?.pid
            });
            let pid = holder.filter(|&pid| is_gpumem(&roots.proc, pid));
            let uid = pid.and_then(|pid| Folder::open(&roots.proc, pid).ok()?.owner().ok());
            gpu.claim = Some(Claim { pid, uid, user: uid.and_then(|uid| users.name(uid, now_ns)) });
        }
    }
}

fn open_folder(path: &Path) -> rustix::io::Result<OwnedFd> {
    open(path, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::DIRECTORY, Mode::empty())
}

fn is_claimed(path: &Path) -> bool {
    let Ok(folder) = open_folder(path) else { return false };
    let locked = flock(&folder, FlockOperation::NonBlockingLockShared);
    if locked.is_ok() {
        // Closing the descriptor does not unlock if a forked child has inherited it and not yet called exec.
        let _ = flock(&folder, FlockOperation::Unlock);
    }
    locked == Err(Errno::WOULDBLOCK)
}

/// Returns whether the process with this pid is gpumem. If gpumem has exited, its command may still hold the lock while
/// an unrelated process has reused the pid.
fn is_gpumem(proc: &Path, pid: u32) -> bool {
    let mut content = [0; 32];
    let read = Folder::list(proc).and_then(|proc| proc.file_of(pid, "comm", &mut content));
    read.is_ok_and(|length| content[..length] == *COMM)
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Lock {
    pid: Option<u32>,
    device: (u32, u32),
    inode: u64,
}

/// Parses a held flock from a line of `/proc/locks` (proc_locks(5)): `1: FLOCK  ADVISORY  WRITE 7 00:16:4767 0 EOF`.
/// Returns `None` for the line of a waiter, which has an arrow before `FLOCK`.
fn parse_lock(line: &[u8]) -> Option<Lock> {
    let line = std::str::from_utf8(line).ok()?;
    let mut words = line.split_ascii_whitespace().skip(1);
    let (kind, _, access) = (words.next()?, words.next()?, words.next()?);
    if (kind, access) != ("FLOCK", "WRITE") {
        return None;
    }
    let pid = words.next()?.parse().ok();
    let mut device_and_inode = words.next()?.splitn(3, ':');
    let mut number = || u32::from_str_radix(device_and_inode.next()?, 16).ok();
    let device = (number()?, number()?);
    Some(Lock { pid, device, inode: device_and_inode.next()?.parse().ok()? })
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
            ("1: FLOCK  ADVISORY  WRITE 27271 00:16:4767 0 EOF", Some((27271, (0, 0x16), 4767))),
            ("1: -> FLOCK  ADVISORY  WRITE 27271 00:16:4767 0 EOF", None),
            ("5: FLOCK  ADVISORY  READ 27081 fe:00:10133508 0 EOF", None),
            ("5: POSIX  ADVISORY  WRITE 27081 fe:00:10133508 0 EOF", None),
            ("5: FLOCK  ADVISORY  WRITE 27081 fe:00", None),
            ("", None),
        ] {
            let parsed = parse_lock(line.as_bytes());
            let lock = lock.map(|(pid, device, inode)| Lock { pid: Some(pid), device, inode });
            assert_eq!(parsed, lock, "{line}");
        }
    }

    #[test]
    fn a_claim_is_exclusive_until_it_is_dropped() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("0000:17:00.0")).unwrap();
        let claims = Claims::below(folder.path().to_owned());
        let gpu = gpu("00000000:17:00.0");
        let first = claims.claim(&gpu).unwrap();
        assert!(first.is_some() && claims.claim(&gpu).unwrap().is_none());
        drop(first);
        assert!(claims.claim(&gpu).unwrap().is_some());
        assert!(claims.wait_in_queue(&gpu).is_err());
    }

    /// 100,000 locks of a user precede the claim in `/proc/locks`, so a read stops before the claim's line. gpumem must
    /// still detect the claim, and must not read again before [`HOLDERS_NS`] have passed.
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
            (gpus[0].claim.as_ref().map(|claim| claim.pid), claims.locks.len())
        };
        let holder = Claims::below(folder.path().to_owned());
        let unclaimed = gpu("00000000:17:00.0");
        assert_eq!(mark(&own_line, 0).0, None, "a line does not prove a claim");
        let claim = holder.claim(&unclaimed).unwrap().unwrap();
        let (pid, read) = mark(&format!("{other_lines}{own_line}"), 1);
        assert_eq!((pid, read), (Some(None), 0));
        assert_eq!(mark(&own_line, HOLDERS_NS).0, Some(None), "read too recently");
        assert_eq!(mark(&own_line, HOLDERS_NS + 1), (Some(Some(7)), 1));
        drop(claim);
        assert_eq!(mark(&own_line, HOLDERS_NS + 2).0, None);
        // A claim must fail while a concurrent test holds the shared lock, and succeed afterwards.
        let test = open_folder(&holder.path(&unclaimed)).unwrap();
        flock(&test, FlockOperation::NonBlockingLockShared).unwrap();
        assert!(!is_claimed(&holder.path(&unclaimed)), "concurrent tests do not conflict");
        assert!(holder.claim(&unclaimed).unwrap().is_none());
        drop(test);
        assert!(holder.claim(&unclaimed).unwrap().is_some());
    }
}
