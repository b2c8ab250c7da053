//! Tests of `--wait-free` with simulated GPUs and times.

use super::*;
use crate::model::snapshot::{Claim, Memory, MigDevice};
use crate::units::GIB;

/// Returns GPUs with 80 GiB each and the given free memory in GiB. `None` stands for a lost GPU.
fn gpus(free: &[Option<u64>]) -> Vec<Gpu> {
    let gpu = |(index, free): (usize, &Option<u64>)| Gpu {
        index: u32::try_from(index).unwrap(),
        memory: free.map(|free| Memory {
            total_bytes: 80 * GIB,
            reserved_bytes: None,
            used_bytes: (80 - free) * GIB,
            free_bytes: free * GIB,
        }),
        ..Gpu::default()
    };
    free.iter().enumerate().map(gpu).collect()
}

fn wait(wanted: &[&str], timeout: f64) -> Wait {
    let wanted: Vec<WaitFree> = wanted.iter().map(|text| text.parse().unwrap()).collect();
    Wait::new(&wanted, &[], Span::from_seconds(timeout))
}

fn at(seconds: f64) -> Time {
    Time::default().plus_seconds(seconds)
}

#[test]
fn a_claimed_gpu_does_not_satisfy_a_wait_for_any_gpu() {
    let mut both = gpus(&[Some(70), Some(9)]);
    both[0].claim = Some(Claim::default());
    let found = |wanted: &str| {
        let mut wait = wait(&[wanted], 60.0);
        wait.observe(at(0.0), &both);
        (wait.is_satisfied(), wait.verdicts()[0].gpu)
    };
    assert_eq!(found("8GiB"), (true, Some(1)));
    assert_eq!(found("10GiB"), (false, Some(1)));
    assert_eq!(found("10GiB:0"), (true, Some(0)));
}

#[test]
fn a_lost_or_stale_gpu_never_satisfies_a_wait() {
    let mut lost = wait(&["8GiB:0"], 60.0);
    lost.observe(at(0.0), &gpus(&[None, Some(80)]));
    assert!(!lost.is_satisfied() && lost.is_blind());
    let mut stale = gpus(&[Some(80)]);
    stale[0].stale_seconds = Some(3.0);
    lost.observe(at(1.0), &stale);
    assert!(!lost.is_satisfied() && lost.is_blind());
    lost.observe(at(2.0), &gpus(&[Some(2)]));
    assert!(!lost.is_satisfied() && !lost.is_blind());
}

#[test]
fn waiting_time_follows_snapshots_and_ignores_clock_jumps_back() {
    let mut wait = wait(&["8GiB"], 60.0);
    assert!(!wait.is_too_late(at(1e9)), "the first snapshot is never late");
    wait.observe(at(1000.0), &gpus(&[Some(0)]));
    assert!(!wait.is_too_late(at(1060.0)) && wait.is_too_late(at(1060.1)));
    wait.observe(at(1050.0), &gpus(&[Some(0)]));
    wait.observe(at(10.0), &gpus(&[Some(0)]));
    assert!(!wait.is_too_late(at(20.0)) && wait.is_too_late(at(20.1)));
    assert_eq!(wait.verdicts()[0].waited_seconds, 50.0);
}

#[test]
fn a_request_above_the_total_memory_is_impossible() {
    let some = gpus(&[Some(1), Some(2)]);
    assert!(wait(&["80GiB"], 1.0).impossible(&some).is_none());
    let why = wait(&["8GiB", "81GiB:1"], 1.0).impossible(&some).unwrap();
    assert_eq!(why, "GPU 1 does not have 81.0 GiB of memory: it cannot become free");
    assert!(wait(&["81GiB"], 1.0).impossible(&some).is_some());
    let unknown = gpus(&[Some(1), None]);
    assert!(wait(&["81GiB"], 1.0).impossible(&unknown).is_none());
    assert!(wait(&["81GiB"], 1.0).impossible(&[]).is_none());
}

#[test]
fn a_partitioned_or_unusable_gpu_satisfies_no_wait_by_its_total() {
    let mut machine = gpus(&[Some(70), Some(60), Some(50)]);
    machine[0].mig_mode = Some(true);
    machine[1].compute_mode = Some("prohibited".into());
    let found = |machine: &[Gpu], wanted: &str| {
        let mut wait = wait(&[wanted], 60.0);
        wait.observe(at(0.0), machine);
        let verdict = wait.verdicts().remove(0);
        (wait.is_satisfied(), verdict.gpu, verdict.mig, verdict.refusal.is_some())
    };
    assert_eq!(found(&machine, "8GiB"), (true, Some(2), None, false));
    assert_eq!(found(&machine, "60GiB"), (false, Some(2), None, false));
    assert_eq!(found(&machine, "60GiB:1"), (false, Some(1), None, true));
    assert_eq!(found(&machine, "8GiB:0"), (false, None, None, false), "it has no MIG device yet");
    let part = |index: u32, free: u64| MigDevice {
        index: Some(index),
        uuid: Some(format!("MIG-{index}").into()),
        memory: gpus(&[Some(free)])[0].memory,
        ..MigDevice::default()
    };
    machine[0].mig_devices = vec![part(0, 5), part(1, 9)];
    assert_eq!(found(&machine, "8GiB:0"), (true, Some(0), Some("0:1".into()), false));
    assert_eq!(found(&machine, "8GiB:MIG-0"), (false, Some(0), Some("0:0".into()), false));
}

#[test]
fn the_callers_visible_devices_restrict_a_wait() {
    let mut machine = gpus(&[Some(70), Some(60), Some(50)]);
    for gpu in &mut machine {
        gpu.uuid = Some(format!("GPU-{}", gpu.index).into());
    }
    let restricted = |wanted: &str, visible: &str| {
        let mut wait = wait(&[wanted], 60.0);
        wait.restrict(Some(visible.to_owned()));
        wait.observe(at(0.0), &machine);
        (wait.verdicts()[0].gpu, wait.check_devices(&machine).is_ok())
    };
    assert_eq!(restricted("8GiB", "2,1"), (Some(1), true));
    assert_eq!(restricted("8GiB", "GPU-2"), (Some(2), true));
    assert_eq!(restricted("8GiB:1", "1"), (Some(1), true));
    assert_eq!(restricted("8GiB:0", "1"), (None, false));
    assert_eq!(restricted("8GiB", ""), (None, false));
}
