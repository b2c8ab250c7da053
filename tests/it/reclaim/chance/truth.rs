//! The facts that processes have recorded about themselves, and the current state in /proc.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

/// Size of `struct birth` in spawner.c: six 4-byte numbers and an 8-byte time.
const BIRTH: usize = 32;

#[derive(Default)]
pub struct Truth {
    /// Births by pid.
    pub born: BTreeMap<i64, Born>,
    pub ready: BTreeSet<i64>,
    /// Ids of processes that have exited.
    pub ended: BTreeSet<i64>,
    pub ended_pids: BTreeSet<i64>,
    /// The time at which each process executed its program and got its own environment.
    pub executed: BTreeMap<i64, i64>,
    /// The time at which each process found that its parent had exited.
    pub left: BTreeMap<i64, i64>,
    pub sent: Vec<(i64, i64)>,
    /// Processes that have worked on request.
    pub worked: BTreeSet<i64>,
}

#[derive(Clone, Debug)]
pub struct Born {
    pub id: i64,
    pub parent: i64,
    pub at: i64,
    pub has_gpu: bool,
    pub is_kept: bool,
}

impl Truth {
    pub fn read(folder: &Path) -> Self {
        let mut truth = Self::default();
        let births = fs::File::open(folder.join("births")).unwrap();
        let mut birth = [0; BIRTH];
        births.read_exact_at(&mut birth, 0).unwrap();
        let number = |birth: &[u8; BIRTH], index: usize| {
            let bytes = birth[4 * index..4 * index + 4].try_into().unwrap();
            i64::from(i32::from_ne_bytes(bytes))
        };
        for index in 1..=number(&birth, 2) {
            let offset = BIRTH as u64 * u64::try_from(index).unwrap();
            births.read_exact_at(&mut birth, offset).unwrap();
            let born = Born {
                parent: number(&birth, 1),
                id: number(&birth, 2),
                has_gpu: number(&birth, 3) >= 0,
                is_kept: number(&birth, 4) != 0,
                at: i64::from_ne_bytes(birth[24..].try_into().unwrap()),
            };
            // A pid of 0 means that the record is incomplete.
            if number(&birth, 0) != 0 {
                truth.born.insert(number(&birth, 0), born);
            }
        }
        let text = fs::read_to_string(folder.join("truth")).unwrap();
        for line in text.lines() {
            let mut words = line.split(' ');
            let event = words.next().unwrap();
            let numbers: Vec<i64> = words.map(|word| word.parse().unwrap()).collect();
            match (event, &*numbers) {
                ("R", &[id, _]) => {
                    truth.ready.insert(id);
                }
                ("X", &[id, pid, _]) => {
                    truth.ended.insert(id);
                    truth.ended_pids.insert(pid);
                }
                ("W", &[_, pid]) => {
                    truth.worked.insert(pid);
                }
                ("S", &[_, pid, signal]) => truth.sent.push((pid, signal)),
                ("E", &[_, pid, at]) => {
                    truth.executed.insert(pid, at);
                }
                ("O", &[_, pid, at]) => {
                    truth.left.insert(pid, at);
                }
                _ => panic!("{line}"),
            }
        }
        truth
    }
}

/// Returns the state letter, or `None` if the process does not exist.
pub fn state(pid: i64) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

/// Returns the parent, the parent's parent, and so on, up to but not including pid 1.
pub fn ancestors(pid: i64) -> Vec<i64> {
    let parent = |&pid: &i64| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok().filter(|&ppid| ppid > 1)
    };
    std::iter::successors(parent(&pid), parent).take(64).collect()
}

/// Returns whether a process exists and is not a zombie.
pub fn lives(pid: &i64) -> bool {
    state(*pid).is_some_and(|state| state != 'Z')
}
