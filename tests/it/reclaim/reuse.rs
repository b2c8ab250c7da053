//! A pid that changes hands while a signal is on its way: ten thousand times, and not one wrong one.
//!
//! In a pid namespace of its own, in which the next pid can be chosen, processes are killed and others
//! are given their numbers, while another thread takes hold of the first ones and signals them. Whoever
//! is signalled dies of it, and is found dead when its own turn comes.

use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Barrier, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use gpumem::api::host::{Roots, read_guarded, read_host};
use gpumem::api::reclaim::{
    Approved, NotOpened, NotSent, PidfdControl, ProcessControl as _, Signal,
};

use crate::support::{find, finish, skip};

const INSIDE: &str = "GPUMEM_TEST_REUSE";
const NAME: &str = "reclaim::reuse::no_signal_goes_to_who_was_given_the_number";
/// The last pid that was given out; the next is one more (`ns_last_pid`, Linux' sysctl/kernel).
const LAST_PID: &str = "/proc/sys/kernel/ns_last_pid";
/// More by the variable that says how many families chance makes.
const RACES: u64 = 2_000;
/// One after the other, so that each is older than a clock tick when its turn comes.
const SLOTS: usize = 64;
const FIRST_PID: u32 = 1000;
/// The test ends by then, whatever the machine.
const MOST: Duration = Duration::from_secs(240);

#[test]
fn no_signal_goes_to_who_was_given_the_number() {
    if std::env::var_os(INSIDE).is_some() {
        race();
        return;
    }
    let unshare = or_skip!(find("unshare", "util-linux"));
    let flags = match rustix::process::geteuid().is_root() {
        true => "-pf",
        false => "-rpf",
    };
    let may = Command::new(&unshare)
        .args([flags, "--mount-proc", "sh", "-c"])
        .arg(format!("echo 500 > {LAST_PID}"))
        .stderr(Stdio::null())
        .status();
    if !may.is_ok_and(|status| status.success()) {
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
enum Way {
    Free,
    /// It is held when its number changes hands.
    HeldBefore,
    /// It is asked for when its number has changed hands.
    AskedAfter,
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
    let who = |child: &Child| {
        let facts = read_guarded(&Roots::default(), child.id()).unwrap().unwrap();
        Approved {
            pid: child.id(),
            start_ticks: facts.start_ticks,
            uid: facts.uid.unwrap(),
            boot_id: boot_id.clone(),
        }
    };
    let barrier = Arc::new(Barrier::new(2));
    let (give, given) = mpsc::channel::<(Approved, Way, usize)>();
    let theirs = Arc::clone(&barrier);
    let actor = thread::spawn(move || act(&given, &theirs));

    let mut slots: Vec<(Child, Approved)> = (0..SLOTS)
        .map(|slot| {
            let child = start(FIRST_PID + u32::try_from(slot).unwrap());
            let who = who(&child);
            (child, who)
        })
        .collect();
    // Older than a tick, from the first round on.
    thread::sleep(Duration::from_millis(30));
    let begun = Instant::now();
    let (mut reused, mut wrong, mut rounds) = (0, 0, 0);
    let races = usize::try_from(super::chance::number(super::chance::FAMILIES, RACES)).unwrap();
    while reused < races && begun.elapsed() < MOST {
        let slot = rounds % SLOTS;
        let way = [Way::Free, Way::HeldBefore, Way::AskedAfter][rounds % 3];
        rounds += 1;
        let (child, first) = &mut slots[slot];
        // Nobody was to touch it so far, whoever had its number before.
        wrong += usize::from(child.try_wait().unwrap().is_some());
        give.send((first.clone(), way, rounds)).unwrap();
        barrier.wait();
        // To meet at another place each time.
        spin(rounds / 3 % 40);
        child.kill().unwrap();
        let signal = child.wait().unwrap().signal();
        assert!(matches!(signal, Some(9 | 15)), "{signal:?}");
        let next = start(first.pid);
        if way == Way::AskedAfter {
            barrier.wait();
        }
        // The actor is done.
        barrier.wait();
        let second = who(&next);
        reused += usize::from(second.pid == first.pid && second.start_ticks != first.start_ticks);
        (*child, *first) = (next, second);
    }
    drop(give);
    let count = actor.join().unwrap();
    thread::sleep(Duration::from_millis(50));
    for (child, _) in &mut slots {
        wrong += usize::from(child.try_wait().unwrap().is_some());
        child.kill().unwrap();
        child.wait().unwrap();
    }
    eprintln!(
        "{reused} races of {rounds} in {:?}: {} held, {} signalled, {} another, {} gone, {wrong} wrong",
        begun.elapsed(),
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

fn act(given: &mpsc::Receiver<(Approved, Way, usize)>, barrier: &Barrier) -> Count {
    let mut count = Count::default();
    while let Ok((who, way, round)) = given.recv() {
        let mut control = PidfdControl::new(Roots::default());
        let mut handle = None;
        if way == Way::HeldBefore {
            handle = control.open(&who).ok();
            assert!(handle.is_some(), "it is alive and who is meant");
        }
        barrier.wait();
        if way == Way::AskedAfter {
            barrier.wait();
        }
        spin(round / 120 % 40);
        if handle.is_none() {
            match control.open(&who) {
                Ok(held) => handle = Some(held),
                Err(NotOpened::Changed(_)) => count.changed += 1,
                Err(NotOpened::Gone(_)) => count.gone += 1,
                Err(error) => panic!("{error}"),
            }
            assert!(way == Way::Free || handle.is_none(), "it was another");
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

/// Some microseconds that no compiler takes away.
fn spin(rounds: usize) {
    for _ in 0..rounds * 50 {
        std::hint::spin_loop();
    }
}

/// Starts a process that is to have this pid.
fn start(pid: u32) -> Child {
    fs::write(Path::new(LAST_PID), (pid - 1).to_string()).unwrap();
    Command::new("sleep").arg("1000").stdin(Stdio::null()).spawn().unwrap()
}
