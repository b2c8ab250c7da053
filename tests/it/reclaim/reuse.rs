//! Thousands of races between a signal and the reuse of the target's pid. No signal may reach the wrong process.
//!
//! The test sets the next pid in a new pid namespace, kills processes, and starts other processes with the same pids.
//! At the same time, another thread opens the old processes and signals them. A signal to the wrong process kills
//! that process, and the test finds it dead the next time it uses the slot.

use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Barrier, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use gpumem::api::host::{Roots, read_guarded, read_host};
use gpumem::api::reclaim::{
    ApprovedProcess, NotOpened, NotSent, PidfdControl, ProcessControl as _, Signal,
};

use crate::support::{find, finish, skip};

const INSIDE: &str = "GPUMEM_TEST_REUSE";
const NAME: &str = "reclaim::reuse::no_signal_goes_to_a_process_with_a_reused_pid";
/// Contains the last pid that the kernel assigned. The next pid is one higher (`ns_last_pid`,
/// Documentation/admin-guide/sysctl/kernel.rst).
const LAST_PID: &str = "/proc/sys/kernel/ns_last_pid";
/// Default number of races. `GPUMEM_CHANCE_FAMILIES` overrides it.
const RACES: u64 = 2_000;
/// Number of processes in rotation. Before a process is used again, it must be older than a clock tick.
const SLOTS: usize = 64;
const FIRST_PID: u32 = 1000;
/// The test fails if the races take longer. The limit allows for a slow machine.
const TIME_LIMIT: Duration = Duration::from_secs(240);

#[test]
fn no_signal_goes_to_a_process_with_a_reused_pid() {
    if std::env::var_os(INSIDE).is_some() {
        race();
        return;
    }
    let unshare = or_skip!(find("unshare", "util-linux"));
    let flags = match rustix::process::geteuid().is_root() {
        true => "-pf",
        false => "-rpf",
    };
    let test_run = Command::new(&unshare)
        .args([flags, "--mount-proc", "sh", "-c"])
        .arg(format!("echo 500 > {LAST_PID}"))
        .stderr(Stdio::null())
        .status();
    if !test_run.is_ok_and(|status| status.success()) {
        skip("a pid namespace", "run as root, or allow user namespaces");
        return;
    }
    let output = finish(
        Command::new(unshare)
            .args([flags, "--mount-proc"])
            .arg(std::env::current_exe().unwrap())
            .args([NAME, "--exact", "--nocapture", "--test-threads=1"])
            .env(INSIDE, "1"),
    )
    .exits(0);
    assert!(output.stdout.contains("1 passed"), "{output:?}");
    assert!(output.stderr.contains(" races"), "{output:?}");
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    Any,
    /// The actor opens the process before its pid is reused.
    OpenFirst,
    /// The actor opens the process after its pid has been reused.
    ReuseFirst,
}

#[derive(Default)]
struct Count {
    opened: usize,
    signalled: usize,
    changed: usize,
    gone: usize,
}

fn race() {
    let boot_id = read_host(&Roots::default()).boot_id;
    let approve = |child: &Child| {
        let facts = read_guarded(&Roots::default(), child.id()).unwrap().unwrap();
        ApprovedProcess {
            pid: child.id(),
            start_ticks: facts.start_ticks,
            uid: facts.uid.unwrap(),
            boot_id: boot_id.clone(),
        }
    };
    let barrier = Arc::new(Barrier::new(2));
    let (sender, receiver) = mpsc::channel::<(ApprovedProcess, Order, usize)>();
    let actor_barrier = Arc::clone(&barrier);
    let actor = thread::spawn(move || act(&receiver, &actor_barrier));

    let mut slots: Vec<(Child, ApprovedProcess)> = (0..SLOTS)
        .map(|slot| {
            let child = start_with_pid(FIRST_PID + u32::try_from(slot).unwrap());
            let process = approve(&child);
            (child, process)
        })
        .collect();
    // Wait until every process is older than a clock tick.
    thread::sleep(Duration::from_millis(30));
    let start = Instant::now();
    let (mut reused, mut wrong, mut rounds) = (0, 0, 0);
    let races = usize::try_from(super::chance::number(super::chance::FAMILIES, RACES)).unwrap();
    while reused < races && start.elapsed() < TIME_LIMIT {
        let slot = rounds % SLOTS;
        let order = [Order::Any, Order::OpenFirst, Order::ReuseFirst][rounds % 3];
        rounds += 1;
        let (child, first) = &mut slots[slot];
        // No signal was meant for this process, so it must be alive.
        wrong += usize::from(child.try_wait().unwrap().is_some());
        sender.send((first.clone(), order, rounds)).unwrap();
        barrier.wait();
        // Vary the timing.
        spin(rounds / 3 % 40);
        child.kill().unwrap();
        let signal = child.wait().unwrap().signal();
        assert!(matches!(signal, Some(9 | 15)), "{signal:?}");
        let next = start_with_pid(first.pid);
        if order == Order::ReuseFirst {
            barrier.wait();
        }
        // Wait until the actor has finished the round.
        barrier.wait();
        let second = approve(&next);
        reused += usize::from(second.pid == first.pid && second.start_ticks != first.start_ticks);
        (*child, *first) = (next, second);
    }
    drop(sender);
    let count = actor.join().unwrap();
    thread::sleep(Duration::from_millis(50));
    for (child, _) in &mut slots {
        wrong += usize::from(child.try_wait().unwrap().is_some());
        child.kill().unwrap();
        child.wait().unwrap();
    }
    eprintln!(
        "{reused} races of {rounds} in {:?}: {} opened, {} signalled, {} changed, {} gone, {wrong} wrong",
        start.elapsed(),
        count.opened,
        count.signalled,
        count.changed,
        count.gone
    );
    assert_eq!(wrong, 0);
    assert!(reused >= races, "{reused} of {rounds}");
    assert!(count.opened > races / 4 && count.signalled > 0);
    assert!(count.changed > races / 4 && count.gone > 0);
}

fn act(receiver: &mpsc::Receiver<(ApprovedProcess, Order, usize)>, barrier: &Barrier) -> Count {
    let mut count = Count::default();
    while let Ok((process, order, round)) = receiver.recv() {
        let mut control = PidfdControl::new(Roots::default());
        let mut handle = None;
        if order == Order::OpenFirst {
            handle = control.open(&process).ok();
            assert!(handle.is_some(), "the approved process is alive");
        }
        barrier.wait();
        if order == Order::ReuseFirst {
            barrier.wait();
        }
        spin(round / 120 % 40);
        if handle.is_none() {
            match control.open(&process) {
                Ok(opened) => handle = Some(opened),
                Err(NotOpened::Changed(_)) => count.changed += 1,
                Err(NotOpened::Gone(_)) => count.gone += 1,
                Err(error) => panic!("{error}"),
            }
            assert!(order == Order::Any || handle.is_none(), "another process was opened");
        }
        if let Some(handle) = handle {
            count.opened += 1;
            spin(round % 7);
            match control.signal(handle, Signal::Term) {
                Ok(()) => count.signalled += 1,
                Err(NotSent::Gone) => {}
                Err(error) => panic!("{error}"),
            }
        }
        barrier.wait();
    }
    count
}

/// Busy-waits for a few microseconds.
fn spin(rounds: usize) {
    for _ in 0..rounds * 50 {
        std::hint::spin_loop();
    }
}

/// Starts a process with the given pid.
fn start_with_pid(pid: u32) -> Child {
    fs::write(Path::new(LAST_PID), (pid - 1).to_string()).unwrap();
    Command::new("sleep").arg("1000").stdin(Stdio::null()).spawn().unwrap()
}
