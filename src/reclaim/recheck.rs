//! Checks whether a finding on a target still holds in the newest snapshot.

use super::policy::WORKING_CPU_PERCENT;
use super::target::{Because, Reason, Target, TargetProcess};
use crate::host::JobWork;
use crate::model::family::families;
use crate::model::finding::Finding;
use crate::model::{Gpu, Snapshot, Unread};
use crate::rules::WORK_BYTES_PER_SECOND;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Recheck {
    StillTrue,
    NoLonger,
    Unknown,
}

/// Minimum CPU use, in cores, of a job that works.
const WORK_SHARE: f64 = WORKING_CPU_PERCENT / 100.0;
/// Minimum averaging period, in seconds. Therefore, neither less than 1 s of CPU time nor less than 2 MB of I/O is
/// work.
pub const MIN_SECONDS: f64 = 10.0;
/// Maximum averaging period, in seconds, for the CPU use of a job that may be saving its work. Averaging over a
/// longer period would hide that the job has just begun to save.
const SAVING_SECONDS: f64 = 5.0;
/// Minimum I/O, in bytes, of a job that saves a checkpoint.
const MIN_SAVED_BYTES: u64 = 1 << 20;

/// Returns whether a supposedly idle job has worked.
pub fn is_work(used: JobWork) -> bool {
    let seconds = used.seconds.max(MIN_SECONDS);
    used.cpu_seconds >= WORK_SHARE * seconds || used.bytes as f64 >= WORK_BYTES_PER_SECOND * seconds
}

/// Returns whether a job may be saving its work after a signal.
pub(super) fn is_saving(used: JobWork) -> bool {
    used.cpu_seconds > WORK_SHARE * used.seconds.min(SAVING_SECONDS)
        || used.bytes >= MIN_SAVED_BYTES
}

/// Returns whether each living member that had findings when the plan was made still has at least one of them. `found`
/// contains all current findings that are not exempt, or `None` if they are unknown. If a person named the target, the
/// end of a finding does not cancel the act.
pub fn recheck(
    target: &Target,
    alive: &[&TargetProcess],
    found: Option<&[&Finding]>,
    snapshot: &Snapshot,
) -> Recheck {
    let Reason::Found { findings } = &target.reason else {
        return Recheck::StillTrue;
    };
    let Some(found) = found else {
        return Recheck::Unknown;
    };
    let mut verdict = Recheck::StillTrue;
    let unread = unread(snapshot);
    for member in alive {
        // If the process list of a GPU that a family member may use cannot be read, the verdict on the whole family
        // is unknown.
        if unread.gpu_of(member.pid).is_some() {
            verdict = Recheck::Unknown;
            continue;
        }
        let of_member: Vec<&Because> =
            findings.iter().filter(|because| because.pid == member.pid).collect();
        if of_member.is_empty() {
            continue;
        }
        if !is_seen(member, snapshot) {
            verdict = Recheck::Unknown;
            continue;
        }
        // A finding on a GPU matches only members that use this GPU.
        let is_on_gpu = |finding: &Finding| {
            let mut gpus = finding.gpus.iter();
            gpus.any(|gpu| member.gpus.iter().any(|member_gpu| member_gpu.index == gpu.index))
        };
        let is_about = |finding: &Finding| match &finding.process {
            Some(process) => process.identity == member.identity(),
            None => is_on_gpu(finding),
        };
        let still = |because: &&Because| {
            found.iter().any(|finding| finding.rule == because.rule && is_about(finding))
        };
        if !of_member.iter().any(still) {
            return Recheck::NoLonger;
        }
    }
    verdict
}

fn unread(snapshot: &Snapshot) -> Unread {
    match snapshot.gpus.iter().any(Gpu::is_unread) {
        true => Unread::new(snapshot, &families(snapshot), |_, _| false),
        false => Unread::default(),
    }
}

/// Returns whether the snapshot contains a member and the process lists of all of its GPUs. Otherwise, the findings
/// on the member are outdated.
fn is_seen(member: &TargetProcess, snapshot: &Snapshot) -> bool {
    snapshot.same_process(member.pid, member.start_ticks).is_some()
        && member.gpus.iter().all(|member_gpu| {
            let gpu = snapshot.gpus.iter().find(|gpu| gpu.index == member_gpu.index);
            gpu.is_some_and(|gpu| !gpu.is_unread())
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::finding::Kind;
    use crate::model::{Gpu, Process, Time};
    use crate::reclaim::testing;

    fn process(pid: u32, start_ticks: u64) -> Process {
        Process { start_ticks: Some(start_ticks), ..testing::process(pid, "python") }
    }

    fn finding(rule: &str, pid: u32, start_ticks: u64) -> Finding {
        Finding { rule: rule.into(), ..testing::finding(Kind::Idle, &process(pid, start_ticks)) }
    }

    /// Returns a target with processes 7 and 8, of which `found` have findings.
    fn target(found: &[u32]) -> Target {
        let worker = Process { ppid: Some(7), session: Some(7), ..process(8, 100) };
        let worker = Process { process_group: Some(7), ..worker };
        let gpus = vec![testing::gpu(0, &[(7, 1), (8, 1)], 0)];
        let snapshot = testing::snapshot(testing::at(0.0), &[process(7, 100), worker], gpus);
        let both = [finding("idle", 7, 100), finding("idle", 8, 100)];
        let mut target = testing::plan_of(&both, &snapshot, &testing::guard()).targets.remove(0);
        if let Reason::Found { findings } = &mut target.reason {
            findings.retain(|because| found.contains(&because.pid));
        }
        target
    }

    fn snapshot(pids: &[u32]) -> Snapshot {
        let mut snapshot = Snapshot::new(Time::default());
        snapshot.gpus = vec![Gpu { processes: Some(Vec::new()), ..Gpu::default() }];
        snapshot.processes = pids
            .iter()
            .map(|&pid| Process { pid, start_ticks: Some(100), ..Process::default() })
            .collect();
        snapshot
    }

    /// Rechecks a target with two members: process 7, which is a target because of a finding, and process 8, which had
    /// none. `found` contains the current findings.
    fn recheck_both(found: &[Finding], snapshot: &Snapshot) -> Recheck {
        let target = target(&[7]);
        let found: Vec<&Finding> = found.iter().collect();
        let alive: Vec<&TargetProcess> = target.members.iter().collect();
        recheck(&target, &alive, Some(&found), snapshot)
    }

    #[test]
    fn a_finding_holds_while_its_rule_finds_the_process() {
        let here = snapshot(&[7, 8]);
        assert_eq!(recheck_both(&[finding("idle", 7, 100)], &here), Recheck::StillTrue);
        for other in [finding("night", 7, 100), finding("idle", 8, 100), finding("idle", 7, 101)] {
            assert_eq!(recheck_both(&[other], &here), Recheck::NoLonger);
        }
        assert_eq!(recheck_both(&[], &here), Recheck::NoLonger);
    }

    #[test]
    fn a_missing_process_or_gpu_makes_the_verdict_unknown() {
        let found = [finding("idle", 7, 100)];
        assert_eq!(recheck_both(&found, &snapshot(&[8])), Recheck::Unknown);
        let changes: [fn(&mut Snapshot); 3] = [
            |snapshot| snapshot.processes[0].start_ticks = Some(101),
            |snapshot| snapshot.gpus[0].stale_seconds = Some(3.0),
            |snapshot| snapshot.gpus[0].processes = None,
        ];
        for change in changes {
            let mut snapshot = snapshot(&[7]);
            change(&mut snapshot);
            assert_eq!(recheck_both(&found, &snapshot), Recheck::Unknown, "{snapshot:?}");
        }
    }

    #[test]
    fn every_living_members_finding_must_hold() {
        let here = snapshot(&[7, 8]);
        let target = target(&[7, 8]);
        let [seven, eight] = &target.members[..] else {
            panic!("{target:?}");
        };
        let of = |alive: &[&TargetProcess], found: &[&Finding]| {
            recheck(&target, alive, Some(found), &here)
        };
        let (of_7, of_8) = (finding("idle", 7, 100), finding("idle", 8, 100));
        assert_eq!(of(&[seven, eight], &[&of_7, &of_8]), Recheck::StillTrue);
        assert_eq!(of(&[seven, eight], &[&of_7]), Recheck::NoLonger);
        assert_eq!(of(&[seven], &[&of_7]), Recheck::StillTrue, "8 has exited");
        let alive = [seven, eight];
        assert_eq!(recheck(&target, &alive, None, &here), Recheck::Unknown);
        let named = Target { reason: Reason::Named, ..target.clone() };
        assert_eq!(recheck(&named, &alive, Some(&[]), &here), Recheck::StillTrue);
    }

    #[test]
    fn possible_work_on_an_unread_gpu_makes_activity_unknown() {
        let mut snapshot = snapshot(&[7]);
        let files = ["/dev/nvidia0".into(), "/dev/nvidia1".into()];
        snapshot.processes[0].gpu_files = Some(files.into());
        let (target, of_7) = (target(&[7]), finding("idle", 7, 100));
        let recheck =
            |snapshot: &Snapshot| recheck(&target, &[&target.members[0]], Some(&[&of_7]), snapshot);
        assert_eq!(recheck(&snapshot), Recheck::StillTrue);
        snapshot.gpus.push(Gpu { index: 1, ..Gpu::default() });
        assert_eq!(recheck(&snapshot), Recheck::Unknown, "one of its GPUs could not be read");
        snapshot.gpus[1].processes = Some(Vec::new());
        assert_eq!(recheck(&snapshot), Recheck::StillTrue);
    }

    #[test]
    fn work_is_a_tenth_of_a_core_or_200_kb_per_second() {
        for (seconds, cpu_seconds, bytes, works) in [
            (0.3, 0.3, 1_000_000, false),
            (8.0, 0.9, 1_900_000, false),
            (8.0, 1.0, 0, true),
            (8.0, 0.0, 2_000_000, true),
            (60.0, 5.9, 11_000_000, false),
            (60.0, 6.0, 0, true),
            (60.0, 0.0, 12_000_000, true),
        ] {
            let used = JobWork { seconds, cpu_seconds, bytes };
            assert_eq!(is_work(used), works, "{used:?}");
        }
    }

    #[test]
    fn saving_is_detected_even_if_it_starts_late() {
        for (seconds, cpu_seconds, bytes, saves) in [
            (30.0, 0.4, 1_000_000, false),
            (30.0, 0.6, 0, true),
            (5.0, 0.4, 0, false),
            (30.0, 0.0, 1 << 20, true),
            (0.4, 0.05, 0, true),
            (0.0, 0.0, 0, false),
        ] {
            let used = JobWork { seconds, cpu_seconds, bytes };
            assert_eq!(is_saving(used), saves, "{used:?}");
        }
    }
}
