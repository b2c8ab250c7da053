//! Tests the worker's plans, and that it acts only on a confirmed and current plan.

use super::*;
use crate::model::Process;
use crate::reclaim::testing;

fn snapshot(pids: &[u32]) -> Snapshot {
    let rows: Vec<(u32, u64)> = pids.iter().map(|&pid| (pid, 1 << 30)).collect();
    let process =
        |&pid: &u32| Process { pid, start_ticks: Some(100), uid: Some(1000), ..Process::default() };
    let processes: Vec<Process> = pids.iter().map(process).collect();
    testing::snapshot(Time::default(), &processes, vec![testing::gpu(0, &rows, 0)])
}

fn no_tools() -> Result<Tools, String> {
    Err("there is no audit log".to_owned())
}

fn sample() -> ObservedSample {
    ObservedSample { snapshot: Arc::new(snapshot(&[7])), found: Vec::new() }
}

fn identity(pid: u32, start_ticks: u64) -> Identity {
    Identity { pid, start: Start::Ticks(start_ticks) }
}

fn plan_request(scope: PlanScope, snapshot: Snapshot) -> Box<PlanRequest> {
    Box::new(PlanRequest {
        number: 3,
        options: PlanOptions {
            scope,
            release: false,
            signal: None,
            all_users: false,
            direct: false,
        },
        snapshot: Arc::new(snapshot),
        findings: Vec::new(),
        undecided: Vec::new(),
    })
}

/// Returns a worker that is running a plan for one process. The user confirmed the plan `waited` ago, and the ledger
/// is in `folder`.
fn running_worker(folder: &std::path::Path, waited: Duration) -> ReclaimWorker {
    running_worker_with(folder, waited, |plan| plan.targets)
}

fn running_worker_with(
    folder: &std::path::Path,
    waited: Duration,
    targets: impl Fn(Plan) -> Vec<Target>,
) -> ReclaimWorker {
    let mut worker = ReclaimWorker::new(&Config::default(), Some(no_tools));
    let snapshot = snapshot(&[7]);
    let named = Targets::named(vec![7], Vec::new()).unwrap();
    let policy = Policy { targets: named, ..Policy::default() };
    let (plan, guard) = plan_recorded(policy, PlanSource::new(&snapshot, &[], &worker.rules));
    let tools = Tools::open(folder, &Roots::default()).unwrap();
    let asked = Instant::now().checked_sub(waited).unwrap();
    let executor = Executor::new(targets(plan), guard, Actor::of_gpumem(&snapshot), tools);
    worker.batch = Some(RunningBatch::new(3, executor, asked));
    worker
}

fn assert_over(
    worker: &ReclaimWorker,
    progress: &[ReclaimProgress],
    folder: &std::path::Path,
    reason: &str,
) {
    let [ReclaimProgress::Finished { number: 3, error: Some(error) }] = progress else {
        panic!("{progress:?}");
    };
    assert!(error.starts_with(reason), "{error}");
    assert!(worker.batch.is_none());
    let ledger = std::fs::read_to_string(folder.join("reap.jsonl")).unwrap();
    assert_eq!(ledger, "");
}

#[test]
fn a_confirmation_expires_without_a_sample() {
    let folder = tempfile::tempdir().unwrap();
    let mut worker = running_worker(folder.path(), Duration::ZERO);
    let mut progress = Vec::new();
    let wait = worker.handle(None, &mut |event| progress.push(event));
    assert_eq!((wait, progress), (Some(CHECK_INTERVAL), vec![]), "it waits for a sample");
    // If no sample arrives before the confirmation expires, the worker must not act, because the user may have left.
    for has_sample in [true, false] {
        drop(worker);
        worker = running_worker(folder.path(), CONFIRMATION_TIME + CHECK_INTERVAL);
        let ask = has_sample.then(|| (ReclaimRequest::Observe(sample()), Duration::ZERO));
        let mut progress = Vec::new();
        worker.handle(ask, &mut |event| progress.push(event));
        assert_over(&worker, &progress, folder.path(), "nothing was sent: no sample came for 30s");
    }
}

#[test]
fn stopping_before_the_first_signal_reports_undone() {
    let folder = tempfile::tempdir().unwrap();
    let mut worker = running_worker(folder.path(), Duration::ZERO);
    assert_eq!(handle(&mut worker, ReclaimRequest::Stop { number: 2 }), [], "another plan");
    assert!(worker.batch.is_some());
    let progress = handle(&mut worker, ReclaimRequest::Stop { number: 3 });
    assert_over(&worker, &progress, folder.path(), "undone: nothing was sent");
    let mut worker = running_worker(folder.path(), Duration::ZERO);
    worker.batch.as_mut().unwrap().observer.has_sent = true;
    let progress = handle(&mut worker, ReclaimRequest::Stop { number: 3 });
    assert_over(&worker, &progress, folder.path(), "stopped: nothing more is sent");
}

#[test]
fn the_age_of_a_queued_sample_is_added_to_its_time() {
    let folder = tempfile::tempdir().unwrap();
    let begin = || running_worker_with(folder.path(), Duration::ZERO, |_| Vec::new());
    let mut worker = begin();
    let sample = sample();
    let hour = Duration::from_secs(3600);
    worker.handle(Some((ReclaimRequest::Observe(sample.clone()), hour)), &mut |_| ());
    worker = begin();
    worker.sample = None;
    let at = Instant::now().checked_sub(hour).unwrap();
    let mut batch = worker.batch.take().unwrap();
    assert_eq!(batch.advance(&sample, at.elapsed(), &mut |_| ()).unwrap(), None);
    let now = batch.now.unwrap();
    assert!(now.seconds_since(sample.snapshot.time) >= 3600.0);
}

fn handle(worker: &mut ReclaimWorker, ask: ReclaimRequest) -> Vec<ReclaimProgress> {
    let mut progress = Vec::new();
    worker.handle(Some((ask, Duration::ZERO)), &mut |event| progress.push(event));
    progress
}

fn planned(progress: &[ReclaimProgress]) -> &Proposal {
    match progress {
        [ReclaimProgress::Planned { number: 3, plan: Ok(proposal) }] => proposal,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_changed_process_leaves_the_scope() {
    let scope = PlanScope::Processes(vec![
        identity(9, 100),
        identity(7, 100),
        identity(7, 101),
        identity(8, 100),
    ]);
    let (pids, gone) = pids_in_scope(&scope, &snapshot(&[7, 9]));
    assert_eq!(pids, [7, 9]);
    let gone: Vec<Option<u32>> = gone.iter().map(|refused| refused.pid).collect();
    assert_eq!(gone, [Some(7), Some(8)], "another process, and none");
}

#[test]
fn a_family_scope_includes_all_members_on_a_gpu() {
    let mut snapshot = snapshot(&[7, 8, 9]);
    // Process 7 is the parent of process 8. Process 9 is unrelated.
    snapshot.processes[1].ppid = Some(7);
    for at in 0..2 {
        snapshot.processes[at].process_group = Some(7);
        snapshot.processes[at].session = Some(7);
    }
    let rows = vec![identity(8, 100)];
    let (pids, gone) = pids_in_scope(&PlanScope::Families(rows.clone()), &snapshot);
    assert_eq!((pids, gone.len()), (vec![7, 8], 0));
    let (pids, _) = pids_in_scope(&PlanScope::Processes(rows), &snapshot);
    assert_eq!(pids, [8]);
}

#[test]
fn an_exited_process_is_refused_without_a_substitute() {
    let config = Config::default();
    for open_tools in [None, Some(no_tools as OpenTools)] {
        let mut worker = ReclaimWorker::new(&config, open_tools);
        let scope = PlanScope::Processes(vec![identity(8, 100)]);
        let progress =
            handle(&mut worker, ReclaimRequest::Plan(plan_request(scope, snapshot(&[7]))));
        let proposal = planned(&progress);
        assert!(proposal.plan.targets.is_empty());
        assert_eq!(
            proposal.lines,
            ["skipped: 8: it no longer exists", "nothing to kill; 1 skipped"]
        );
    }
}

#[test]
fn a_plan_of_a_recording_cannot_be_started() {
    let mut worker = ReclaimWorker::new(&Config::default(), None);
    let scope = PlanScope::Processes(vec![identity(7, 100)]);
    let progress = handle(&mut worker, ReclaimRequest::Plan(plan_request(scope, snapshot(&[7]))));
    let proposal = planned(&progress);
    assert_eq!(proposal.plan.targets.len(), 1, "{proposal:?}");
    assert_eq!(proposal.titles.len(), 1);
    let plan = Arc::clone(&proposal.plan);
    let progress = handle(&mut worker, ReclaimRequest::Begin { number: 3, plan });
    let [ReclaimProgress::Finished { number: 3, error: Some(error) }] = &progress[..] else {
        panic!("{progress:?}");
    };
    assert!(error.starts_with("nothing was sent: a recording"), "{error}");
}

#[test]
fn only_the_newest_plan_can_be_started() {
    let mut worker = ReclaimWorker::new(&Config::default(), Some(no_tools));
    let plan = Arc::new(Plan { time: Time::default(), targets: Vec::new(), refused: Vec::new() });
    let progress = handle(&mut worker, ReclaimRequest::Begin { number: 9, plan });
    assert!(
        matches!(&progress[..], [ReclaimProgress::Finished { number: 9, error: Some(_) }]),
        "{progress:?}"
    );
    assert!(worker.batch.is_none());
}
