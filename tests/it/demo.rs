//! The recording of `--demo` shows each kind of finding. The machine, users and jobs in the recording are invented.

use std::collections::HashSet;

use gpumem::api::model::{GpuProcess, Snapshot};
use gpumem::api::source::{Replay, Source as _};
use gpumem::api::units::MIB;

/// The time in the recording, in seconds, at which `watch --demo` begins to play in real time.
const LIVE: f64 = 1500.0;
const END: f64 = 2400.0;

fn snapshots() -> Vec<Snapshot> {
    let mut demo = Replay::demo().unwrap();
    std::iter::from_fn(|| demo.next().unwrap()).collect()
}

#[test]
fn the_demo_contains_its_situations() {
    let snapshots = snapshots();
    let begin = snapshots[0].time;
    let at = |seconds: f64| {
        let time = begin.plus_seconds(seconds);
        snapshots.iter().rfind(|snapshot| snapshot.time <= time).unwrap()
    };
    let row = |snapshot: &Snapshot, pid| {
        let rows = snapshot.gpus.iter().flat_map(|gpu| gpu.processes.iter().flatten());
        rows.copied().find(|row: &GpuProcess| row.pid == pid)
    };
    // The notebook and the server are idle in every snapshot.
    for snapshot in &snapshots {
        for pid in [398_120, 207_344] {
            assert_eq!(row(snapshot, pid).unwrap().sm_percent, Some(0));
        }
    }
    assert_eq!(at(LIVE).process(207_344).unwrap().listening, Some(true));
    // The lower envelope of the leak grows by about 600 MiB in ten minutes.
    let lowest = |from: f64| {
        let window = from..from + 120.0;
        let inside = snapshots
            .iter()
            .filter(|snapshot| window.contains(&snapshot.time.seconds_since(begin)));
        inside.filter_map(|snapshot| row(snapshot, 440_871)?.used_bytes).min().unwrap()
    };
    for from in [0.0, 600.0, 1200.0] {
        let grown = (lowest(from + 600.0) - lowest(from)) / MIB;
        assert!((500..=700).contains(&grown), "{grown} MiB from {from} s");
    }
    // The process is stopped after twelve minutes.
    let state = |seconds| at(seconds).process(448_016).unwrap().state;
    assert_eq!((state(719.0), state(720.0)), (Some('R'), Some('T')));
    // One process starts and exits in the live part, and one pid is reused.
    let is_present = |seconds| at(seconds).process(463_557).is_some();
    assert_eq!([LIVE, LIVE + 200.0, END].map(is_present), [false, true, false]);
    let starts: HashSet<u64> =
        snapshots.iter().filter_map(|snapshot| snapshot.process(461_990)?.start_ticks).collect();
    assert_eq!(starts.len(), 2);
    assert!(at(LIVE + 310.0).process(461_990).is_none());
    assert!(snapshots.iter().any(|snapshot| !snapshot.errors.is_empty()));
}
