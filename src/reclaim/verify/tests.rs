//! Tests how NVML's data shows whether memory was freed.

use std::sync::Arc;

use super::*;
use crate::model::{Finding, Kind, Process};
use crate::reclaim::testing::{at, finding, gpu, guard, plan_of, process, snapshot};
use crate::units::GIB;

/// Returns a target for these processes, and the snapshot before the act.
fn target(processes: &[Process], gpus: Vec<Gpu>) -> (Target, Snapshot) {
    let snapshot = snapshot(at(0.0), processes, gpus);
    let findings: Vec<Finding> = processes
        .iter()
        .filter(|process| process.start_ticks.is_some())
        .map(|process| finding(Kind::Orphan, process))
        .collect();
    let mut plan = plan_of(&findings, &snapshot, &guard());
    assert_eq!(plan.targets.len(), 1, "{:?}", plan.refused);
    (plan.targets.remove(0), snapshot)
}

fn compare(before: &(Target, Snapshot), processes: &[Process], gpus: Vec<Gpu>) -> FreeCheck {
    let after = snapshot(at(5.0), processes, gpus);
    Baseline::new(&before.0, &before.1).compare(&before.0, &after)
}

fn python() -> Process {
    process(70, "python train.py")
}

#[test]
fn memory_is_freed_when_its_row_and_bytes_are_gone() {
    let before = target(&[python()], vec![gpu(0, &[(70, 4 * GIB), (80, GIB)], GIB)]);
    let other = process(80, "python other.py");
    let back = compare(&before, std::slice::from_ref(&other), vec![gpu(0, &[(80, GIB)], GIB)]);
    assert_eq!(back, FreeCheck::Freed(4 * GIB));
    // Meanwhile, another process allocated more memory than was freed.
    let back = compare(&before, std::slice::from_ref(&other), vec![gpu(0, &[(80, 30 * GIB)], GIB)]);
    assert_eq!(back, FreeCheck::Freed(4 * GIB));
    // NVML no longer lists the process, but its memory is still in use.
    let back = compare(&before, &[other], vec![gpu(0, &[(80, GIB)], 5 * GIB)]);
    assert_eq!(back, FreeCheck::StillHeld(vec![]), "the memory of 80 is listed");
}

#[test]
fn a_row_without_a_process_still_holds_memory() {
    let before = target(&[python()], vec![gpu(0, &[(70, 4 * GIB)], 0)]);
    let back = compare(&before, &[], vec![gpu(0, &[(70, 4 * GIB)], 0)]);
    assert_eq!(back, FreeCheck::StillHeld(vec![70]));
    // Another process with the same pid allocated as much memory.
    let mut later = python();
    later.start_ticks = Some(99_999);
    let back = compare(&before, &[later], vec![gpu(0, &[(70, 4 * GIB)], 0)]);
    assert_eq!(back, FreeCheck::Freed(4 * GIB));
}

#[test]
fn a_row_of_a_zombie_still_holds_memory() {
    let (mut target, snapshot) = target(&[python()], vec![gpu(0, &[(69, GIB), (70, GIB)], 0)]);
    target.dead = vec![69];
    let zombie = Process { state: Some('Z'), ..process(69, "python train.py") };
    let back = compare(&(target, snapshot), &[zombie], vec![gpu(0, &[(69, GIB)], 0)]);
    assert_eq!(back, FreeCheck::StillHeld(vec![69]));
}

#[test]
fn a_process_with_the_gpu_open_is_named_as_holder() {
    let before = target(&[python()], vec![gpu(0, &[(70, 4 * GIB)], 0)]);
    let worker = process(71, "pt_data_worker");
    let mut elsewhere = process(72, "python");
    elsewhere.gpu_files = Some(Arc::from(vec![Arc::from("/dev/nvidia1")]));
    let back = compare(&before, &[worker, elsewhere], vec![gpu(0, &[], 4 * GIB)]);
    assert_eq!(back, FreeCheck::StillHeld(vec![71]));
}

#[test]
fn a_gpu_that_does_not_answer_proves_nothing() {
    let before = target(&[python()], vec![gpu(0, &[(70, 4 * GIB)], 0)]);
    let mut stale = gpu(0, &[], 0);
    stale.stale_seconds = Some(3.0);
    assert_eq!(compare(&before, &[], vec![stale]), FreeCheck::StillHeld(vec![]));
    let mut unlisted = gpu(0, &[], 0);
    unlisted.processes = None;
    assert_eq!(compare(&before, &[], vec![unlisted]), FreeCheck::StillHeld(vec![]));
    assert_eq!(compare(&before, &[], Vec::new()), FreeCheck::StillHeld(vec![]));
    let mut moved = gpu(1, &[], 0);
    moved.uuid = Some("GPU-0".into());
    assert_eq!(compare(&before, &[], vec![moved]), FreeCheck::Freed(4 * GIB));
}

#[test]
fn every_gpu_must_show_the_memory_as_freed() {
    let gpus =
        |first: &[(u32, u64)], second: &[(u32, u64)]| vec![gpu(0, first, 0), gpu(1, second, 0)];
    let before = target(&[python()], gpus(&[(70, GIB)], &[(70, 2 * GIB)]));
    let back = compare(&before, &[python()], gpus(&[], &[(70, 2 * GIB)]));
    assert_eq!(back, FreeCheck::StillHeld(vec![70]));
    assert_eq!(compare(&before, &[], gpus(&[], &[])), FreeCheck::Freed(3 * GIB));
}

#[test]
fn unlisted_memory_is_measured_by_unattributed_bytes() {
    // A forked worker holds the memory of its dead trainer, which NVML may or may not list.
    let worker = process(71, "pt_data_worker");
    let before = target(std::slice::from_ref(&worker), vec![gpu(0, &[], 6 * GIB)]);
    assert_eq!(compare(&before, &[], vec![gpu(0, &[], GIB)]), FreeCheck::Freed(5 * GIB));
    let back = compare(&before, &[], vec![gpu(0, &[], 6 * GIB)]);
    assert_eq!(back, FreeCheck::StillHeld(vec![]));
    // The target held no measurable memory.
    let before = target(&[worker], vec![gpu(0, &[], MIB)]);
    assert_eq!(compare(&before, &[], vec![gpu(0, &[], MIB)]), FreeCheck::Freed(0));
}

#[test]
fn rows_without_bytes_are_measured_by_total_usage() {
    let blind = |pid: Option<u32>, used: u64| {
        let mut gpu = gpu(0, &[], used);
        let rows =
            pid.map(|pid| crate::model::GpuProcess { pid, ..crate::model::GpuProcess::default() });
        gpu.processes = Some(rows.into_iter().collect());
        gpu
    };
    let before = target(&[python()], vec![blind(Some(70), 6 * GIB)]);
    assert_eq!(before.0.bytes, None);
    assert_eq!(compare(&before, &[], vec![blind(None, GIB)]), FreeCheck::Freed(5 * GIB));
    assert_eq!(compare(&before, &[], vec![blind(None, 6 * GIB)]), FreeCheck::StillHeld(vec![]));
    // NVML also lists another process, without its memory.
    let with_other = |ours: bool, used: u64| {
        let mut gpu = blind(Some(80), used);
        if ours {
            let mine = self::gpu(0, &[(70, 4 * GIB)], 0).processes.unwrap();
            gpu.processes.as_mut().unwrap().extend(mine);
        }
        gpu
    };
    let before = target(&[python()], vec![with_other(true, 6 * GIB)]);
    let back = |used| compare(&before, &[], vec![with_other(false, used)]);
    assert_eq!(back(2 * GIB), FreeCheck::Freed(4 * GIB));
    assert_eq!(back(5 * GIB), FreeCheck::StillHeld(vec![80]), "80 may hold it");
}

#[test]
fn without_totals_the_process_list_decides() {
    let unified = |rows: &[(u32, u64)]| {
        let mut gpu = gpu(0, rows, 0);
        gpu.memory = None;
        gpu
    };
    let before = target(&[python()], vec![unified(&[(70, 4 * GIB)])]);
    assert_eq!(compare(&before, &[], vec![unified(&[])]), FreeCheck::Freed(4 * GIB));
    let back = compare(&before, &[python()], vec![unified(&[(70, 4 * GIB)])]);
    assert_eq!(back, FreeCheck::StillHeld(vec![70]));
}

#[test]
fn living_processes_can_hold_no_memory() {
    let (target, before) = target(&[python()], vec![gpu(0, &[(70, GIB)], 0)]);
    assert_eq!(members_hold_memory(&target, &before), Some(true));
    let mut free = python();
    free.gpu_files = Some(Arc::from(Vec::new()));
    let let_go = snapshot(at(1.0), &[free], vec![gpu(0, &[], 0)]);
    assert_eq!(members_hold_memory(&target, &let_go), Some(false));
    let open = snapshot(at(1.0), &[python()], vec![gpu(0, &[], 0)]);
    assert_eq!(members_hold_memory(&target, &open), Some(true));
    let mut stale = let_go;
    stale.gpus[0].stale_seconds = Some(1.0);
    assert_eq!(members_hold_memory(&target, &stale), None);
}

#[test]
fn protections_have_their_own_outcomes() {
    for (protection, name) in [
        (Protection::Init, "protected"),
        (Protection::NotPermitted { uid: 7 }, "not_permitted"),
        (Protection::Replaced, "identity_changed"),
    ] {
        let outcome = Outcome::from_protection(protection);
        assert_eq!(&*outcome.name(), name);
        assert!(!outcome.is_success());
    }
}
