//! What the processes have written of themselves, and what the kernel says they do.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// What the processes have written of themselves.
#[derive(Default)]
pub struct Truth {
    /// By pid: whom a population knows by which id.
    pub born: BTreeMap<i64, Born>,
    pub ready: BTreeSet<i64>,
    /// By id or pid.
    pub ended: BTreeSet<i64>,
    pub ended_pids: BTreeSet<i64>,
    /// Who saw when that its parent was gone.
    pub left: BTreeMap<i64, i64>,
    /// Who was sent what.
    pub sent: Vec<(i64, i64)>,
}

#[derive(Clone, Debug)]
pub struct Born {
    pub id: i64,
    pub of: i64,
    pub at: i64,
    pub has_gpu: bool,
    pub is_kept: bool,
}

impl Truth {
    pub fn read(path: &Path) -> Self {
        let mut truth = Self::default();
        let text = fs::read_to_string(path).unwrap();
        for line in text.lines() {
            let mut words = line.split(' ');
            let what = words.next().unwrap();
            let numbers: Vec<i64> = words.map(|word| word.parse().unwrap()).collect();
            match (what, &*numbers) {
                ("B", &[id, pid, of, at, gpu, kept]) => {
                    let born = Born {
                        id,
                        of,
                        at,
                        has_gpu: gpu >= 0,
                        is_kept: kept == 1,
                    };
                    truth.born.insert(pid, born);
                }
                ("R", &[id, _]) => {
                    truth.ready.insert(id);
                }
                ("X", &[id, pid, _]) => {
                    truth.ended.insert(id);
                    truth.ended_pids.insert(pid);
                }
                ("S", &[_, pid, signal]) => truth.sent.push((pid, signal)),
                ("O", &[_, pid, at]) => {
                    truth.left.insert(pid, at);
                }
                _ => panic!("{line}"),
            }
        }
        truth
    }
}

/// What a process does now; `None` where there is none.
pub fn state(pid: i64) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

/// Whether a process has not ended.
pub fn lives(pid: &i64) -> bool {
    state(*pid).is_some_and(|state| state != 'Z')
}
