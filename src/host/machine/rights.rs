//! Determines whether the kernel lets gpumem read other users' processes and open a pidfd. gpumem tries both
//! operations, because the result depends on capabilities, namespaces and security modules. This module also determines
//! whether gpumem has more rights than its caller. `ownership` uses that to decide which files gpumem may use.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::io::Errno;
use rustix::process::{PidfdFlags, getegid, geteuid, getgid, getpid, getuid, pidfd_open};
use rustix::thread::{CapabilitySet, capabilities, capability_is_in_ambient_set, set_capabilities};

const MAX_TRIED: usize = 4096;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Visibility {
    Seen,
    Refused,
    NoProcess,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rights {
    pub is_root: bool,
    pub can_trace: Option<bool>,
    pub first: Visibility,
    pub other_user: Visibility,
}

pub fn read_rights(proc: &Path) -> Rights {
    let own_uid = geteuid().as_raw();
    Rights {
        is_root: own_uid == 0,
        can_trace: has_capability(CapabilitySet::SYS_PTRACE),
        first: try_descriptors(&proc.join("1/fd")),
        other_user: try_other_users(proc, own_uid),
    }
}

/// Reads the first file descriptor in an `fd` folder. A single descriptor is sufficient, because the kernel's
/// decision applies to the whole process.
fn try_descriptors(folder: &Path) -> Visibility {
    let refused = |error: &io::Error| error.kind() == io::ErrorKind::PermissionDenied;
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if refused(&error) => return Visibility::Refused,
        Err(_) => return Visibility::NoProcess,
    };
    for entry in entries.filter_map(Result::ok) {
        match fs::read_link(entry.path()) {
            Ok(_) => return Visibility::Seen,
            Err(error) if refused(&error) => return Visibility::Refused,
            Err(_) => {}
        }
    }
    // A process without open files, such as a kernel thread, does not show whether access is allowed.
    Visibility::NoProcess
}

fn try_other_users(proc: &Path, own_uid: u32) -> Visibility {
    let Ok(entries) = fs::read_dir(proc) else {
        return Visibility::NoProcess;
    };
    entries
        .filter_map(Result::ok)
        .filter(|entry| {
            let name = entry.file_name();
            name.as_encoded_bytes().iter().all(u8::is_ascii_digit)
        })
        .take(MAX_TRIED)
        .filter(|entry| entry.metadata().is_ok_and(|metadata| metadata.uid() != own_uid))
        .map(|entry| try_descriptors(&entry.path().join("fd")))
        .find(|sight| *sight != Visibility::NoProcess)
        .unwrap_or(Visibility::NoProcess)
}

/// Opens and closes a pidfd of the current process. Returns `ENOSYS` before Linux 5.3, and `EPERM` if a sandbox
/// forbids the call.
pub fn try_pidfd() -> Result<(), Errno> {
    pidfd_open(getpid(), PidfdFlags::empty()).map(drop)
}

/// Returns whether a setuid or setgid bit of the program file has changed the effective user or group.
pub fn has_gained_ids() -> bool {
    getuid() != geteuid() || getgid() != getegid()
}

/// Returns whether the program file has given gpumem rights that its caller lacks, by a setuid bit, a setgid bit or
/// file capabilities. Ambient capabilities, such as those set by systemd's `AmbientCapabilities=`, come from the caller
/// and do not count. `AT_SECURE` (getauxval(3)) is unsuitable, because SELinux can set it without additional rights.
pub fn has_gained_rights() -> bool {
    if has_gained_ids() {
        return true;
    }
    // Root has all capabilities anyway. The caller of a program started by sudo is root.
    !getuid().is_root() && !gained_capabilities().is_empty()
}

pub(in crate::host) fn has_capability(capability: CapabilitySet) -> Option<bool> {
    Some(capabilities(None).ok()?.effective.contains(capability))
}

fn gained_capabilities() -> CapabilitySet {
    // Reading the capabilities of the current thread cannot fail.
    let permitted = capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.permitted);
    let is_gained =
        |&capability: &CapabilitySet| !capability_is_in_ambient_set(capability).unwrap_or(false);
    permitted.iter().filter(is_gained).collect()
}

/// Permanently drops the capabilities of the program file, except those for inspecting and signalling processes. With
/// `CAP_DAC_READ_SEARCH`, every user who may start gpumem could use it to read any file.
///
/// Must be called while the process has only one thread, because each thread has its own capabilities. If the call
/// fails, the capabilities are unchanged. Does nothing for root.
pub fn give_up_reading() -> Result<(), Errno> {
    if getuid().is_root() {
        return Ok(());
    }
    let kept = CapabilitySet::SYS_PTRACE | CapabilitySet::KILL;
    let given_up = gained_capabilities() - kept;
    if given_up.is_empty() {
        return Ok(());
    }
    let mut sets = capabilities(None)?;
    sets.effective -= given_up;
    sets.permitted -= given_up;
    set_capabilities(None, sets)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_readable_descriptor_is_enough() {
        let proc = tempfile::tempdir().unwrap();
        let folder = proc.path().join("1/fd");
        assert_eq!(try_descriptors(&folder), Visibility::NoProcess);
        fs::create_dir_all(&folder).unwrap();
        assert_eq!(try_descriptors(&folder), Visibility::NoProcess);
        std::os::unix::fs::symlink("/dev/null", folder.join("0")).unwrap();
        assert_eq!(try_descriptors(&folder), Visibility::Seen);
        assert_eq!(read_rights(proc.path()).first, Visibility::Seen);

        let owner = fs::metadata(proc.path()).unwrap().uid();
        assert_eq!(try_other_users(proc.path(), owner), Visibility::NoProcess);
        assert_eq!(try_other_users(proc.path(), owner + 1), Visibility::Seen);
        fs::rename(proc.path().join("1"), proc.path().join("self")).unwrap();
        assert_eq!(try_other_users(proc.path(), owner + 1), Visibility::NoProcess);
    }

    #[test]
    fn a_plain_program_has_gained_no_rights() {
        assert!(!has_gained_ids() && !has_gained_rights());
        let before = capabilities(None).unwrap();
        give_up_reading().unwrap();
        assert_eq!(capabilities(None).unwrap(), before);
    }
}
