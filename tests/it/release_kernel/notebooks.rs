//! Kernels started by a server, a person, an editor and a container. A release changes nothing in the notebook.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use gpumem::api::model::{Snapshot, Time};
use gpumem::api::reclaim::find_release;

use super::*;
use crate::notebook::{Server, TOKEN, jupyter};
use crate::reap_notebook::WITH_LOOPBACK;

/// Returns a random cell that leaves variables, outputs, errors or memory.
fn random_cell(chance: &mut impl FnMut(u64) -> u64) -> String {
    let (name, size) = (chance(5), 1 + chance(40));
    match chance(6) {
        0 => format!("v{name} = torch.empty({size} << 18, device='cuda')"),
        1 => format!("globals().pop('v{name}', None); {size}"),
        2 => format!("'{size}' * {name}"),
        3 => format!("def f{name}(): return {size}\nf{name}()"),
        4 => format!("1 / 0  # {size}"),
        _ => format!("print({size}); w{name} = [v for v in range({size})]"),
    }
}

/// Runs random cells and releases. Asserts that a release does not change the state of the kernel.
fn assert_releases_change_no_state(
    pid: u32,
    client: &mut Client,
    seed: u64,
    used_bytes: impl Fn() -> Option<u64>,
) {
    let mut state = seed;
    let mut chance = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) % below
    };
    client.run("import torch");
    let mut held = 0;
    for turn in 0..10 {
        for _ in 0..=chance(3) {
            client.ask(&json!({"run": random_cell(&mut chance)}));
        }
        let before = client.state();
        let options =
            ReleaseOptions { references: chance(2) == 0, collects: chance(3) > 0, ..options() };
        let report = release(pid, &options);
        let after = client.state();
        for (name, before) in before.as_object().unwrap() {
            assert_eq!(&after[name], before, "{name}, seed {seed}, turn {turn}");
        }
        // All memory in use consists of live tensors, the cache that was not freed, and the context.
        let live = report.live_bytes.unwrap_or(0) + report.cached_bytes_left.unwrap_or(0);
        let used = used_bytes().unwrap_or(0);
        assert!(used == 0 || used == live + 300 * MIB, "{used} {report:?}");
        held += u64::from(used > 0);
    }
    assert!(held > 0);
}

/// The connection files have an arbitrary name, or a name like those that VS Code chooses.
#[test]
fn releases_do_not_change_a_kernel_without_a_server() {
    thread::scope(|scope| {
        for (seed, name) in [
            (1, "anything.json"),
            (2, "kernel-v2-4242abcDEF012345.json"),
            (3, "kernel-v3f5a0b6c0d1e2f3a4b5c6d7e8f90a1b2c3d4e5f60.json"),
        ] {
            scope.spawn(move || {
                if let Some(kernel) = RawKernel::start(name) {
                    let used_bytes = || kernel.used_bytes();
                    assert_releases_change_no_state(
                        kernel.pid(),
                        &mut kernel.client(),
                        seed,
                        used_bytes,
                    );
                }
            });
        }
    });
}

#[test]
fn releases_do_not_change_a_servers_kernel() {
    let machine = Machine::new(&Scene::new());
    let token = format!("--IdentityProvider.token={TOKEN}");
    let Some(server) = Server::start_with(&[&token], |command| {
        use_modules(command, &machine);
    }) else {
        return;
    };
    let kernel = server.open("a.ipynb");
    let mut client = Client::connect(&server.home, &server.python, &kernel.connection_file);
    assert_releases_change_no_state(kernel.pid, &mut client, 4, || {
        used_bytes(&machine, kernel.pid)
    });
    assert_eq!(jupyter(&machine, kernel.pid)["kernel_id"], kernel.id);
    let snapshot: Snapshot = serde_json::from_value(machine.snapshot(0).0).unwrap();
    let process = snapshot.processes.iter().find(|process| process.pid == kernel.pid);
    let way_found = find_release(process.unwrap(), &snapshot).unwrap();
    assert!(
        matches!(&way_found.by, ReleaseBy::Kernel { kernel_id: Some(id), .. } if **id == *kernel.id)
    );
    assert_eq!(way_found.start_ticks, way(kernel.pid).start_ticks);
    // The server counts every message on a kernel's channels as activity.
    let activity = || -> Time {
        let path = format!("/api/kernels/{}", kernel.id);
        let model = server.request("GET", &path, &Value::Null);
        model["last_activity"].as_str().unwrap().parse().unwrap()
    };
    let mut last = activity();
    support::wait_until("the server's last activity is stable", || {
        let before = std::mem::replace(&mut last, activity());
        thread::sleep(Duration::from_millis(300));
        before == activity()
    });
    let mut before = activity();
    // On a busy machine, the server can still be processing earlier messages, so repeat the probe.
    support::wait_until("a probe is not counted as activity", || {
        before = activity();
        support::wait_until("an answer to a probe", || probe(kernel.pid).is_ok());
        thread::sleep(Duration::from_millis(300));
        activity() == before
    });
    let report = release(kernel.pid, &options());
    support::wait_until("the release is counted as activity", || activity() > before);
    let (start, end) = report.asked.unwrap();
    let active = activity();
    assert!(
        active >= start.plus_seconds(-2.0) && active <= end.plus_seconds(2.0),
        "{start} {active} {end}"
    );
}

#[test]
fn a_kernel_in_another_network_namespace_is_asked_within_it() {
    let (Some(python), Some(unshare)) = (python(), support::find("unshare", "util-linux")) else {
        return;
    };
    or_skip!(support::root("root"));
    let (home, machine) = (JupyterHome::new(), Machine::new(&Scene::new()));
    let file = home.path("kernel-inside.json");
    let mut command = home.command(&unshare);
    command
        .args(["-pfn", "--mount-proc", "--kill-child"])
        .arg(&python)
        .args(["-c", WITH_LOOPBACK, "-m", "ipykernel_launcher"])
        .arg("--IPKernelApp.exec_lines=import torch; a = torch.empty(25 << 20, device='cuda'); del a")
        .arg("-f")
        .arg(&file);
    let _outer = Running::start(use_modules(&mut command, &machine));
    support::wait_until("the kernel has written its file", || file.exists());
    // The command line of `unshare` contains the kernel's command line, so select the process by its inner pid.
    let inside = |pid: &u32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let mut lines = status.lines();
        lines.any(|line| line.starts_with("NSpid:") && line.ends_with("\t1"))
    };
    let mut pid = None;
    support::wait_until("the kernel answers", || {
        pid = home.pids_with("ipykernel_launcher").into_iter().find(inside);
        pid.is_some_and(|pid| probe(pid).is_ok())
    });
    // The scene contains the inner pid of the kernel, which is 1.
    assert_eq!(used_bytes(&machine, 1), Some(400 * MIB));
    let report = release(pid.unwrap(), &options());
    assert_eq!(report.cached_bytes_left, Some(0));
    assert_eq!(used_bytes(&machine, 1), Some(300 * MIB));
}

/// No cell is lost, and a cell waits no longer than the release script runs.
#[test]
fn a_cell_that_begins_during_a_release_is_not_lost() {
    let kernel = or_skip!(RawKernel::start("kernel-races.json"));
    let mut client = kernel.client();
    client.run("import torch\na = torch.empty(25 << 20, device='cuda')\nx = 0");
    // Run fewer cells outside CI, to save time.
    let cells = match std::env::var_os("GPUMEM_TEST_REQUIRE_ALL") {
        Some(_) => 1000,
        None => 200,
    };
    let is_over = AtomicBool::new(false);
    let count =
        |client: &mut Client| client.ask(&json!({"run": "pass"}))["count"].as_u64().unwrap();
    let before = count(&mut client);
    let (longest, counts) = thread::scope(|scope| {
        let releasing = scope.spawn(|| {
            let (mut longest, mut done, mut busy) = (Duration::ZERO, 0, 0);
            while !is_over.load(Ordering::Relaxed) {
                let start = Instant::now();
                match perform_with(kernel.pid(), &options()) {
                    Ok(_) => done += 1,
                    Err(NotReleased::Busy(_)) => busy += 1,
                    other => panic!("{other:?}"),
                }
                longest = longest.max(start.elapsed());
            }
            (longest, (done, busy))
        });
        let answer = client.ask(&json!({"cells": cells, "seed": 7}));
        is_over.store(true, Ordering::Relaxed);
        let (longest, counts) = releasing.join().unwrap();
        assert_eq!(answer["bad"], 0);
        let cell = Duration::from_secs_f64(answer["longest"].as_f64().unwrap());
        // At most two release requests run before a cell. The additional 20 s allow for a slow machine.
        assert!(cell < 2 * longest + Duration::from_secs(20), "{cell:?} {longest:?}");
        (longest, counts)
    });
    assert!(counts.0 > 0, "{counts:?} {longest:?}");
    assert_eq!(client.run("print(x)"), format!("{cells}\n"));
    assert_eq!(count(&mut client), before + cells + 2);
}
