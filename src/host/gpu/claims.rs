//! GPU claims: which GPU another user's `gpumem run --claim` has taken.
//!
//! A claim is a flock(2) on the GPU's own folder in sysfs; a place in its queue is a flock on a file in that
//! folder. Root owns both and every user can open them, so nobody creates, removes or replaces a lock file, and
//! no full disk can prevent a claim. The kernel releases the lock when the last process that has it open ends,
//! however it ends. Claims are read from `/proc/locks`, which no process can write.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fd::OwnedFd;
use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use rustix::io::Errno;

use crate::host::Roots;
use crate::host::machine::rights::has_gained_rights;
use crate::host::owner::users::Users;
use crate::host::proc::folder::Folder;
use crate::host::proc::small_file::read_start;
use crate::model::snapshot::{Claim, Gpu};

/// Overrides [`FOLDER`], for a container that mounts the host's folders elsewhere.
const VARIABLE: &str = "GPUMEM_CLAIM_DIR";
/// One folder for each PCI device.
const FOLDER: &str = "/sys/bus/pci/devices";
/// The file in a GPU's folder that waiting claimers lock.
const QUEUE: &str = "vendor";
/// The most that is read of `/proc/locks`.
const LOCKS_BYTES: u64 = 4 << 20;
/// The `comm` of a process that has claimed a GPU.
const COMM: &[u8] = b"gpumem\n";

#[derive(Debug, thiserror::Error)]
#[error("GPU {gpu} cannot be claimed: {path}: {error}; that requires the GPUs' folders in sysfs, or GPUMEM_CLAIM_DIR", path = path.display())]
pub struct CannotClaim {
    gpu: u32,
    path: PathBuf,
    error: io::Error,
}

/// The folder with one lockable folder for each GPU.
#[derive(Clone, Debug)]
pub struct Claims {
    folder: PathBuf,
}

impl Claims {
    pub fn of_machine() -> Self {
        // With setuid or file capabilities, gpumem must not lock a folder that the caller names and could not
        // open.
        let chosen = std::env::var_os(VARIABLE).filter(|_| !has_gained_rights());
        Self { folder: chosen.unwrap_or_else(|| FOLDER.into()).into() }
    }

    /// Waits, without limit, until nobody is ahead of us in the GPU's queue. Dropping the result gives up the
    /// place. The kernel wakes waiters in order of arrival.
    ///
    /// # Errors
    ///
    /// If the GPU has no such folder.
    pub fn wait_in_queue(&self, gpu: &Gpu) -> Result<OwnedFd, CannotClaim> {
        let path = self.path(gpu).join(QUEUE);
        let failed =
            |error: Errno| CannotClaim { gpu: gpu.index, path: path.clone(), error: error.into() };
        let file = open(&path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map_err(failed)?;
        rustix::io::retry_on_intr(|| flock(&file, FlockOperation::LockExclusive))
            .map_err(failed)?;
        Ok(file)
    }

    /// Claims a GPU; `None` if somebody else has it.
    ///
    /// # Errors
    ///
    /// As [`Claims::wait_in_queue`].
    pub fn claim(&self, gpu: &Gpu) -> Result<Option<OwnedFd>, CannotClaim> {
        let path = self.path(gpu);
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::DIRECTORY;
        let locked = open(&path, flags, Mode::empty()).and_then(|folder| {
            match flock(&folder, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => Ok(Some(folder)),
                Err(Errno::WOULDBLOCK) => Ok(None),
                Err(errno) => Err(errno),
            }
        });
        locked.map_err(|error| CannotClaim { gpu: gpu.index, path, error: error.into() })
    }

    /// The GPU's folder. If its bus address is unknown, a path that does not exist.
    fn path(&self, gpu: &Gpu) -> PathBuf {
        // NVML writes the PCI domain with eight digits, the kernel with four or more.
        let place = gpu.pci_bus_id.as_deref().unwrap_or_default().to_ascii_lowercase();
        let parts = place.split_once(':').and_then(|(domain, rest)| {
            Some(format!("{:04x}:{rest}", u32::from_str_radix(domain, 16).ok()?))
        });
        let place = parts.unwrap_or_else(|| "unknown".to_owned());
        self.folder.join(place)
    }

    /// Fills in `claim` of each claimed GPU.
    pub fn mark(&self, gpus: &mut [Gpu], roots: &Roots, users: &mut Users, now_ns: u64) {
        let Ok(locks) = read_start(&roots.proc.join("locks"), LOCKS_BYTES) else { return };
        let held: Vec<Lock> = locks.split(|&byte| byte == b'\n').filter_map(parse_lock).collect();
        if held.is_empty() {
            return;
        }
        for gpu in gpus {
            let Ok(folder) = fs::metadata(self.path(gpu)) else { continue };
            let device = (rustix::fs::major(folder.dev()), rustix::fs::minor(folder.dev()));
            let lock = held.iter().find(|lock| (lock.device, lock.inode) == (device, folder.ino()));
            gpu.claim = lock.map(|lock| {
                let pid = lock.pid.filter(|&pid| is_gpumem(&roots.proc, pid));
                let uid = pid.and_then(|pid| Folder::open(&roots.proc, pid).ok()?.owner().ok());
                Claim { pid, uid, user: uid.and_then(|uid| users.name(uid, now_ns)) }
            });
        }
    }
}

/// Whether this pid is a gpumem now. The process that took the lock may have exited while its command still
/// holds it, and the pid may belong to another process.
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

/// Parses a held flock from a line of `/proc/locks` (proc_locks(5)): `1: FLOCK  ADVISORY  WRITE 7 00:16:4767 0
/// EOF`. A waiter's line has an arrow before the kind and gives `None`.
fn parse_lock(line: &[u8]) -> Option<Lock> {
    let line = std::str::from_utf8(line).ok()?;
    let mut words = line.split_ascii_whitespace().skip(1);
    let (kind, _, access) = (words.next()?, words.next()?, words.next()?);
    if (kind, access) != ("FLOCK", "WRITE") {
        return None;
    }
    let pid = words.next()?.parse().ok();
    let mut place = words.next()?.splitn(3, ':');
    let mut number = || u32::from_str_radix(place.next()?, 16).ok();
    let device = (number()?, number()?);
    Some(Lock { pid, device, inode: place.next()?.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(place: &str) -> Gpu {
        Gpu { pci_bus_id: Some(place.into()), ..Gpu::default() }
    }

    #[test]
    fn folders_are_called_as_the_kernel_calls_them() {
        let claims = Claims { folder: "/".into() };
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
    fn only_locks_that_are_held_count() {
        for (line, lock) in [
            ("1: FLOCK  ADVISORY  WRITE 27271 00:16:4767 0 EOF", Some((27271, (0, 0x16), 4767))),
            ("1: -> FLOCK  ADVISORY  WRITE 27271 00:16:4767 0 EOF", None),
            ("5: FLOCK  ADVISORY  READ 27081 fe:00:10133508 0 EOF", None),
            ("5: POSIX  ADVISORY  WRITE 27081 fe:00:10133508 0 EOF", None),
            ("5: FLOCK  ADVISORY  WRITE 27081 fe:00", None),
            ("", None),
        ] {
            let found = parse_lock(line.as_bytes());
            let lock = lock.map(|(pid, device, inode)| Lock { pid: Some(pid), device, inode });
            assert_eq!(found, lock, "{line}");
        }
    }

    #[test]
    fn a_claim_is_had_by_one_and_by_nobody_once_it_is_dropped() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("0000:17:00.0")).unwrap();
        let claims = Claims { folder: folder.path().to_owned() };
        let gpu = gpu("00000000:17:00.0");
        let first = claims.claim(&gpu).unwrap();
        assert!(first.is_some() && claims.claim(&gpu).unwrap().is_none());
        drop(first);
        assert!(claims.claim(&gpu).unwrap().is_some());
        assert!(claims.wait_in_queue(&gpu).is_err());
    }
}
