//! Queues of processes that wait to claim GPUs.
//!
//! A waiting process holds a shared record lock (fcntl(2)) on a file in the GPU's folder. The start of the locked range
//! encodes the time of arrival. Its length is the number of seconds from arrival until the place expires. A stopped
//! process does not renew its lock, so its place expires and does not delay others. The kernel removes the lock when
//! the process exits.
//!
//! Other processes read the ranges, even from other pid namespaces, where the lock has no pid. Shared locks do not
//! conflict with each other, so every process gets one at once. The order does not depend on when the kernel wakes a
//! process. Nothing is written to the file.
//!
//! A process loses its record locks when it closes any descriptor of the file. A waiting process therefore keeps the
//! files open, and no other code in the process may open and close them.

use crate::units::system_message;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use rustix::fd::OwnedFd;

const SECOND_NS: u64 = 1_000_000_000;
/// Time for which a place stays valid without renewal. It is long enough that a process on a busy machine keeps its
/// place.
const VALID_NS: u64 = 5 * SECOND_NS;
/// Unit of arrival times. With [`LENGTH_BITS`], ranges fit into 63 bits for at least ten years after boot.
const TICK_NS: u64 = 100_000;
/// Number of low bits of a range's start that are zero. The length of a range, in seconds, fits into these bits, so
/// ranges do not overlap.
const LENGTH_BITS: u32 = 21;
/// Maximum number of locks read for each GPU. Any user can take record locks.
const MAX_LOCKS: usize = 1000;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Place {
    pub(super) arrived_ns: u64,
    /// Absent for a process in another pid namespace.
    pub(super) pid: Option<u32>,
}

/// Takes or renews a place. Returns an error with the reason if that is impossible.
pub(super) fn take_place(file: &OwnedFd, arrived_ns: u64, now_ns: u64) -> Result<(), String> {
    let mut lock = range(libc::F_RDLCK, start_of(arrived_ns), length(arrived_ns, now_ns));
    let Err(errno) = fcntl(file, FcntlArg::F_SETLK(&lock)) else { return Ok(()) };
    let is_locked = matches!(errno, Errno::EAGAIN | Errno::EACCES)
        && fcntl(file, FcntlArg::F_GETLK(&mut lock)).is_ok();
    if !is_locked {
        return Err(system_message(&std::io::Error::from(errno)));
    }
    // Only root can open the file for writing, which an exclusive record lock requires.
    let holder = match pid_of(&lock) {
        Some(pid) => format!("process {pid}"),
        None => "a process in another pid namespace".to_owned(),
    };
    Err(format!("{holder} holds an exclusive lock on it; end that process"))
}

/// Returns the valid places of other processes in order of arrival. If `before_ns` is given, returns only places with
/// an earlier time of arrival.
pub(super) fn read_places(file: &OwnedFd, before_ns: Option<u64>, now_ns: u64) -> Vec<Place> {
    let mut places = Vec::new();
    let mut unread = vec![(0, before_ns.map_or(i64::MAX, start_of))];
    for _ in 0..MAX_LOCKS {
        let Some((start, end)) = unread.pop() else { break };
        if start >= end {
            continue;
        }
        // The kernel returns one of the locks that conflict with a write lock on this range.
        let mut lock = range(libc::F_WRLCK, start, end - start);
        let read = fcntl(file, FcntlArg::F_GETLK(&mut lock));
        if read.is_err() || i32::from(lock.l_type) == libc::F_UNLCK {
            continue;
        }
        let lock_end = if lock.l_len == 0 { i64::MAX } else { lock.l_start + lock.l_len };
        unread.extend([(start, lock.l_start), (lock_end, end)]);
        places.extend(place(&lock, now_ns));
    }
    places.sort_by_key(|place| place.arrived_ns);
    places
}

/// Returns the place that a lock represents. Returns `None` if the place is no longer valid, or if the lock belongs to
/// another program.
fn place(lock: &libc::flock, now_ns: u64) -> Option<Place> {
    let ticks = u64::try_from(lock.l_start).ok()? >> LENGTH_BITS;
    let arrived_ns = ticks * TICK_NS;
    let seconds = u64::try_from(lock.l_len).ok().filter(|&seconds| seconds > 0)?;
    let valid_ns = arrived_ns + seconds.checked_mul(SECOND_NS)?;
    let is_place = lock.l_start == start_of(arrived_ns)
        && arrived_ns <= now_ns
        && (now_ns..now_ns + VALID_NS + 2 * SECOND_NS).contains(&valid_ns);
    is_place.then_some(Place { arrived_ns, pid: pid_of(lock) })
}

fn pid_of(lock: &libc::flock) -> Option<u32> {
    u32::try_from(lock.l_pid).ok().filter(|&pid| pid != 0)
}

fn length(arrived_ns: u64, now_ns: u64) -> i64 {
    let seconds = (now_ns + VALID_NS).saturating_sub(arrived_ns).div_ceil(SECOND_NS);
    i64::try_from(seconds).unwrap_or(i64::MAX).min(1 << LENGTH_BITS)
}

fn start_of(arrived_ns: u64) -> i64 {
    i64::try_from((arrived_ns / TICK_NS) << LENGTH_BITS).unwrap_or(i64::MAX)
}

fn range(kind: i32, start: i64, length: i64) -> libc::flock {
    libc::flock {
        l_type: kind as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: start,
        l_len: length,
        l_pid: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_valid_for_five_seconds_after_its_renewal() {
        let now = 3_000_000 * SECOND_NS;
        let lock = |start, length| libc::flock { l_pid: 7, ..range(libc::F_RDLCK, start, length) };
        let valid = |lock: &libc::flock, now_ns| place(lock, now_ns).map(|place| place.pid);
        for arrived in [now, now - SECOND_NS, now - 20 * 24 * 3600 * SECOND_NS] {
            let held = lock(start_of(arrived), length(arrived, now));
            assert_eq!(place(&held, now).unwrap().arrived_ns, arrived);
            assert_eq!(valid(&held, now + VALID_NS), Some(Some(7)));
            assert_eq!(valid(&held, now + VALID_NS + SECOND_NS + 1), None);
            let abroad = libc::flock { l_pid: 0, ..held };
            assert_eq!(valid(&abroad, now), Some(None));
        }
        // Locks of other programs, for example on the whole file, at a position that is not an arrival time, at a
        // future time, or without an end.
        let arrived = start_of(now);
        for other in [
            lock(0, 0),
            lock(arrived, 0),
            lock(arrived + 1, 6),
            lock(start_of(now + SECOND_NS), 6),
            lock(arrived, 9),
            lock(arrived, i64::MAX - arrived),
            lock(-1, 6),
        ] {
            assert_eq!(valid(&other, now), None, "{other:?}");
        }
    }
}
