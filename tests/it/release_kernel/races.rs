//! Cells that start during a release. No cell is lost, and a cell waits no longer than the release script runs.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use gpumem::api::reclaim::NotReleased;

use super::*;

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
