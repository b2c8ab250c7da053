//! Tests the process tree with a fake /proc and fixed times.

use std::fs;

use super::*;
use crate::host::testing::{FakeProc, StatLine};

const SECOND: u64 = 1_000_000_000;

struct Fake {
    proc: FakeProc,
    tree: Tree,
    now_ns: u64,
}

fn process(pid: u32) -> Process {
    Process { pid, start_ticks: Some(7), ..Process::default() }
}

impl Fake {
    fn new() -> Self {
        let mut fake = Self { proc: FakeProc::new(), tree: Tree::new(), now_ns: SECOND };
        fake.tree.ticks_per_second = 100;
        fake.put(1, 0, 1, 0);
        fake
    }

    /// Adds a process. `ticks` is its CPU time, and `reaped` is the CPU time of its reaped children.
    fn put(&self, pid: u32, ppid: u32, ticks: u64, reaped: i64) {
        self.proc.stat(pid, &StatLine { ppid, ticks, waited: reaped, ..StatLine::ASLEEP });
    }

    fn end(&self, pid: u32) {
        fs::remove_dir_all(self.proc.folder(pid)).unwrap();
    }

    fn listed(&self) -> Folder {
        Folder::list(&self.proc.roots.proc).unwrap()
    }

    /// Moves the folder away, so that the folder of the next process with this pid has a different inode number.
    fn replace(&self, pid: u32) {
        let old = self.proc.roots.proc.join(format!("old-{pid}"));
        fs::rename(self.proc.folder(pid), old).unwrap();
    }

    /// Lists the processes five seconds later and returns the totals for their families.
    fn list_and_update(&mut self, pids: &[u32]) -> Vec<Descendants> {
        self.now_ns += 5 * SECOND;
        let proc = self.listed();
        let listing = proc.processes().unwrap();
        self.tree.update(&proc, &listing, |_| None, self.now_ns);
        self.update(pids)
    }

    fn update(&mut self, pids: &[u32]) -> Vec<Descendants> {
        let mut processes: Vec<Process> = pids.iter().map(|&pid| process(pid)).collect();
        let proc = self.listed();
        self.tree.fill(Some(&proc), &mut processes, |_| None, self.now_ns);
        processes.into_iter().map(|process| (*process.descendants.unwrap()).clone()).collect()
    }

    #[track_caller]
    fn assert_used(&mut self, pid: u32, count: u32, percent: f64, seconds: f64) {
        let summed = self.list_and_update(&[pid]).remove(0);
        assert_eq!(
            (summed.count, summed.cpu_percent, summed.cpu_seconds),
            (Some(count), Some(percent), Some(seconds))
        );
    }
}

#[test]
fn cpu_time_of_descendants_is_summed() {
    let mut fake = Fake::new();
    for (pid, ppid, ticks, reaped) in
        [(70, 1, 900, 200), (71, 70, 100, 0), (72, 71, 50, 0), (80, 1, 7, 0)]
    {
        fake.put(pid, ppid, ticks, reaped);
    }
    let summed = fake.list_and_update(&[70, 72, 80]);
    assert_eq!(
        summed[0],
        Descendants {
            count: Some(2),
            cpu_seconds: Some(3.5),
            io_bytes: Some(0),
            listed: vec![72],
            ..Descendants::default()
        },
        "its own use is not counted"
    );
    assert_eq!((summed[1].count, summed[2].count), (Some(0), Some(0)));
    fake.put(72, 71, 1050, 0);
    fake.assert_used(70, 2, 200.0, 13.5);
    fake.assert_used(70, 2, 0.0, 13.5);
    // Totals also change between two listings. A new process is found in the next listing, and its whole CPU time is
    // added.
    fake.put(72, 71, 1150, 0);
    fake.put(73, 72, 100, 0);
    assert_eq!(fake.update(&[70])[0].cpu_seconds, Some(14.5));
    fake.assert_used(70, 3, 20.0, 15.5);
}

#[test]
fn activity_of_the_process_group_is_included() {
    let mut fake = Fake::new();
    let put = |fake: &Fake, pid: u32, group: u32, ticks: u64, io: u64| {
        fake.proc.stat(pid, &StatLine { group, ticks, ..StatLine::ASLEEP });
        fake.proc.put(pid, "io", format!("rchar: {io}\nwchar: 5\n"));
    };
    // The first two processes are `prep.py` (80) and `infer.py` (81, which uses the GPU) in a pipeline. The third is
    // unrelated.
    put(&fake, 80, 80, 100, 1000);
    put(&fake, 81, 80, 0, 2000);
    put(&fake, 90, 90, 500, 3000);
    fake.put(82, 81, 0, 0);
    let sum = |fake: &mut Fake| {
        let proc = fake.listed();
        fake.now_ns += 30 * SECOND;
        fake.tree.update(&proc, &proc.processes().unwrap(), |_| None, fake.now_ns);
        let process = Process { process_group: Some(80), ..process(81) };
        let mut processes = [process];
        fake.tree.fill(Some(&proc), &mut processes, |_| None, fake.now_ns);
        let sum = processes[0].descendants.clone().unwrap();
        (sum.count, sum.cpu_seconds, sum.io_bytes)
    };
    assert_eq!(sum(&mut fake), (Some(1), Some(1.0), Some(1005)));
    put(&fake, 80, 80, 400, 9000);
    assert_eq!(sum(&mut fake), (Some(1), Some(4.0), Some(9005)));
    // Only a part of a large group is read: processes 80 and 81, and 62 others.
    for pid in 200..400 {
        put(&fake, pid, 80, 100, 0);
    }
    assert_eq!(sum(&mut fake), (Some(1), Some(66.0), Some(9005 + 62 * 5)));
}

#[test]
fn cpu_time_of_an_exited_child_is_counted_once() {
    let mut fake = Fake::new();
    fake.put(70, 1, 0, 0);
    fake.put(71, 70, 1000, 0);
    fake.put(72, 71, 400, 0);
    assert_eq!(fake.list_and_update(&[70])[0].cpu_seconds, Some(14.0));
    // Child 71 used 100 more ticks and exited, and process 70 reaped it. The grandchild now has a different parent.
    fake.end(71);
    fake.put(72, 1, 400, 0);
    fake.put(70, 1, 0, 1100);
    fake.assert_used(70, 0, 20.0, 15.0);
    // Process 70 has reaped a child that was never sampled.
    fake.put(70, 1, 0, 1600);
    fake.assert_used(70, 0, 100.0, 20.0);
    // A child and a grandchild exit between two listings.
    fake.put(73, 70, 100, 0);
    fake.put(74, 73, 100, 0);
    fake.assert_used(70, 2, 40.0, 22.0);
    fake.end(73);
    fake.end(74);
    fake.put(70, 1, 0, 1600 + 300);
    fake.assert_used(70, 0, 20.0, 23.0);
    // The child exits after its parent has been read, but before the child itself is read.
    fake.put(76, 70, 1000, 0);
    fake.assert_used(70, 1, 200.0, 33.0);
    fake.end(76);
    fake.assert_used(70, 0, 0.0, 33.0);
    fake.put(70, 1, 0, 1900 + 1000);
    fake.assert_used(70, 0, 0.0, 33.0);
    // No process reaps this child. Its last sampled time remains in the sum, which must never decrease.
    fake.put(75, 70, 100, 0);
    fake.assert_used(70, 1, 20.0, 34.0);
    fake.end(75);
    fake.assert_used(70, 0, 0.0, 34.0);
}

impl Fake {
    fn read(&self, pids: &[u32]) -> Vec<Process> {
        let read = |&pid: &u32| {
            let text = fs::read(self.proc.folder(pid).join("stat")).unwrap();
            let stat = parse_stat(&text).unwrap();
            Process {
                pid,
                ppid: stat.ppid,
                start_ticks: Some(stat.start_ticks),
                ..Process::default()
            }
        };
        pids.iter().map(read).collect()
    }

    /// Takes a sample one second later and returns the result for the first of these processes.
    fn sample(&mut self, pids: &[u32]) -> Descendants {
        self.now_ns += SECOND;
        let mut processes = self.read(pids);
        let proc = self.listed();
        self.tree.fill(Some(&proc), &mut processes, |_| None, self.now_ns);
        (*processes.remove(0).descendants.unwrap()).clone()
    }
}

#[test]
fn cpu_time_before_adoption_is_not_counted_for_the_new_parent() {
    let mut fake = Fake::new();
    for pid in [70, 80] {
        fake.put(pid, 1, 0, 0);
    }
    fake.list_and_update(&[70, 80]);
    for ticks in [100, 200, 300] {
        fake.put(80, 1, ticks, 0);
        fake.sample(&[70, 80]);
    }
    // The parent has exited, and the other process has adopted the child.
    fake.replace(80);
    fake.put(80, 70, 310, 0);
    fake.now_ns += 4 * SECOND;
    let mut processes = fake.read(&[70, 80]);
    let proc = fake.listed();
    let listing = proc.processes().unwrap();
    fake.tree.update(&proc, &listing, |_| None, fake.now_ns);
    let now_ns = fake.now_ns + SECOND;
    fake.tree.fill(Some(&proc), &mut processes, |_| None, now_ns);
    let summed = processes[0].descendants.as_deref().unwrap();
    assert_eq!((summed.count, summed.cpu_percent), (Some(1), Some(2.0)));
}

#[test]
fn a_reused_pid_is_another_process_in_the_tree() {
    let mut fake = Fake::new();
    fake.put(70, 1, 0, 0);
    fake.put(71, 70, 1000, 0);
    assert_eq!(fake.list_and_update(&[70])[0].cpu_seconds, Some(10.0));
    fake.replace(71);
    fake.proc.stat(71, &StatLine { start: 9, ticks: 5000, ..StatLine::ASLEEP });
    fake.assert_used(70, 0, 0.0, 10.0);
    // The reuse of a watched process's pid must also be detected.
    let reused = Process { pid: 70, start_ticks: Some(8), ..Process::default() };
    assert!(!fake.tree.knows(&reused));
    let mut processes = [reused];
    fake.tree.fill(None, &mut processes, |_| None, fake.now_ns);
    assert_eq!(
        processes[0].descendants.as_deref(),
        Some(&Descendants::default()),
        "read, and unknown"
    );
}

#[test]
fn the_stat_file_of_a_watched_process_is_not_read_again() {
    let mut fake = Fake::new();
    fake.put(70, 1, 0, 0);
    let proc = fake.listed();
    let listing = proc.processes().unwrap();
    let inode = listing.iter().find(|listed| listed.pid == 70).unwrap().inode;
    let text = fs::read(fake.proc.folder(70).join("stat")).unwrap();
    fake.proc.put(70, "stat", "");
    for (inode, is_known) in [(inode, true), (inode + 1, false)] {
        let watched = |pid| {
            (pid == 70).then(|| WatchedUsage {
                node: Node::from_stat(inode, &parse_stat(&text).unwrap()),
                ticks: Ticks::default(),
                io_bytes: None,
                io_read_ns: 0,
            })
        };
        fake.tree = Tree::new();
        fake.tree.update(&proc, &listing, watched, SECOND);
        assert_eq!(fake.tree.knows(&process(70)), is_known);
    }
}

#[test]
fn ancestors_are_followed_and_cycles_end() {
    let mut fake = Fake::new();
    for (pid, ppid) in [(70, 1), (71, 70), (72, 71), (90, 91), (91, 90)] {
        fake.put(pid, ppid, 0, 0);
    }
    fake.list_and_update(&[70]);
    assert_eq!(fake.tree.ancestors(72), [71, 70]);
    assert_eq!(fake.tree.ancestors(70), [0; 0]);
    assert_eq!(fake.tree.ancestors(99), [0; 0]);
    assert_eq!(fake.tree.ancestors(90).len(), MAX_ANCESTORS);
    assert_eq!(fake.tree.descendants(90), [91]);
}
