//! Whom the hand means, and what it makes of a recording.

use super::*;
use crate::cli::reap::execute::tools;
use crate::model::snapshot::{Gpu, GpuProcess, Process};
use crate::model::{Identity, Start};
use crate::watch::hand::Wish;
use crate::watch::picture::RowKey;

fn snapshot(pids: &[u32]) -> Snapshot {
    let mut snapshot = Snapshot::new(Time::default());
    snapshot.gpus = vec![Gpu {
        processes: Some(
            pids.iter()
                .map(|&pid| GpuProcess {
                    pid,
                    used_bytes: Some(1 << 30),
                    ..GpuProcess::default()
                })
                .collect(),
        ),
        ..Gpu::default()
    }];
    snapshot.processes = pids
        .iter()
        .map(|&pid| Process {
            pid,
            start_ticks: Some(100),
            uid: Some(1000),
            ..Process::default()
        })
        .collect();
    snapshot
}

fn row(pid: u32, start_ticks: u64) -> RowKey {
    RowKey {
        identity: Identity {
            pid,
            start: Start::Ticks(start_ticks),
        },
        gpu: Some(0),
        instance: (None, None),
    }
}

fn question(scope: Scope, snapshot: Snapshot) -> Box<Question> {
    Box::new(Question {
        number: 3,
        wish: Wish {
            scope,
            signal: None,
            all_users: false,
            direct: false,
        },
        snapshot: Arc::new(snapshot),
        findings: Vec::new(),
        undecided: Vec::new(),
    })
}

/// A hand that has begun a plan of one process, `waited` after the yes, with its ledger in `folder`.
fn begun(folder: &std::path::Path, waited: Duration) -> Acting {
    begun_with(folder, waited, |plan| plan.targets)
}

fn begun_with(
    folder: &std::path::Path,
    waited: Duration,
    targets: impl Fn(Plan) -> Vec<Target>,
) -> Acting {
    let mut hand = Acting::new(&Config::default(), false);
    let snapshot = snapshot(&[7]);
    let policy = Policy::new(Targets::of_pids(&[7]).unwrap(), serves);
    let scene = PlanSource {
        snapshot: &snapshot,
        findings: &[],
        spared: &hand.spared,
        selected: None,
    };
    let (plan, guard) = plan_there(policy, scene);
    let (tools, _) = tools(folder).unwrap();
    let asked = Instant::now().checked_sub(waited).unwrap();
    let executor = Executor::new(targets(plan), guard, actor(&snapshot), tools);
    hand.batch = Some(Batch::new(3, executor, asked));
    hand
}

/// That nothing is being done any more, for this reason; and that nothing is in the ledger.
fn is_over(hand: &Acting, news: &[News], folder: &std::path::Path, reason: &str) {
    let [
        News::Over {
            number: 3,
            error: Some(error),
        },
    ] = news
    else {
        panic!("{news:?}");
    };
    assert!(error.starts_with(reason), "{error}");
    assert!(hand.batch.is_none());
    let ledger = std::fs::read_to_string(folder.join("reap.jsonl")).unwrap();
    assert_eq!(ledger, "");
}

#[test]
fn a_yes_that_could_not_be_acted_upon_in_time_is_none() {
    let folder = tempfile::tempdir().unwrap();
    let mut hand = begun(folder.path(), Duration::ZERO);
    let mut news = Vec::new();
    let wait = hand.go_on(None, &mut |it| news.push(it));
    assert_eq!((wait, news), (Some(TURN), vec![]), "it waits for a look");
    // A driver that hung for a minute, and then tells at once: whoever said yes may be elsewhere.
    for look in [true, false] {
        drop(hand);
        hand = begun(folder.path(), YES + TURN);
        let sight = Sight {
            snapshot: Arc::new(snapshot(&[7])),
            found: Vec::new(),
        };
        let ask = look.then_some((Ask::Look(sight), Duration::ZERO));
        let mut news = Vec::new();
        hand.go_on(ask, &mut |it| news.push(it));
        is_over(
            &hand,
            &news,
            folder.path(),
            "nothing was sent: no sample came for 30s",
        );
    }
}

#[test]
fn what_is_stopped_before_the_first_signal_is_undone() {
    let folder = tempfile::tempdir().unwrap();
    let mut hand = begun(folder.path(), Duration::ZERO);
    assert_eq!(say(&mut hand, Ask::Stop { number: 2 }), [], "another plan");
    assert!(hand.batch.is_some());
    let news = say(&mut hand, Ask::Stop { number: 3 });
    is_over(&hand, &news, folder.path(), "undone: nothing was sent");
    let mut hand = begun(folder.path(), Duration::ZERO);
    hand.batch.as_mut().unwrap().told.has_sent = true;
    let news = say(&mut hand, Ask::Stop { number: 3 });
    is_over(&hand, &news, folder.path(), "stopped: nothing more is sent");
}

#[test]
fn a_sample_that_lay_about_is_as_old_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    // Nothing to end: it is looked at, and that is all.
    let begin = || begun_with(folder.path(), Duration::ZERO, |_| Vec::new());
    let mut hand = begin();
    let sight = Sight {
        snapshot: Arc::new(snapshot(&[7])),
        found: Vec::new(),
    };
    let hour = Duration::from_secs(3600);
    hand.go_on(Some((Ask::Look(sight.clone()), hour)), &mut |_| ());
    hand = begin();
    hand.sight = None;
    let at = Instant::now().checked_sub(hour).unwrap();
    let mut batch = hand.batch.take().unwrap();
    assert_eq!(
        batch.advance(&sight, at.elapsed(), &mut |_| ()).unwrap(),
        None
    );
    let now = batch.now.unwrap();
    assert!(now.seconds_since(sight.snapshot.time) >= 3600.0);
}

/// What a hand says to an ask.
fn say(hand: &mut Acting, ask: Ask) -> Vec<News> {
    let mut news = Vec::new();
    hand.go_on(Some((ask, Duration::ZERO)), &mut |it| news.push(it));
    news
}

fn planned(news: &[News]) -> &Proposal {
    match news {
        [
            News::Planned {
                number: 3,
                plan: Ok(proposal),
            },
        ] => proposal,
        other => panic!("{other:?}"),
    }
}

#[test]
fn only_who_was_meant_is_named() {
    let scope = Scope::Processes(vec![row(9, 100), row(7, 100), row(7, 101), row(8, 100)]);
    let (pids, gone) = whom(&scope, &snapshot(&[7, 9]));
    assert_eq!(pids, [7, 9]);
    let gone: Vec<Option<u32>> = gone.iter().map(|it| it.pid).collect();
    assert_eq!(gone, [Some(7), Some(8)], "another process, and none");
}

#[test]
fn a_family_is_named_whole() {
    let mut snapshot = snapshot(&[7, 8, 9]);
    // A parent with its worker, and a stranger.
    snapshot.processes[1].ppid = Some(7);
    for at in 0..2 {
        snapshot.processes[at].process_group = Some(7);
        snapshot.processes[at].session = Some(7);
    }
    let rows = vec![row(8, 100)];
    let (pids, gone) = whom(&Scope::Families(rows.clone()), &snapshot);
    assert_eq!((pids, gone.len()), (vec![7, 8], 0));
    let (pids, _) = whom(&Scope::Processes(rows), &snapshot);
    assert_eq!(pids, [8]);
}

#[test]
fn an_exited_process_is_refused_and_no_other_is_taken_for_it() {
    let config = Config::default();
    for is_recording in [true, false] {
        let mut hand = Acting::new(&config, is_recording);
        let scope = Scope::Processes(vec![row(8, 100)]);
        let news = say(&mut hand, Ask::Plan(question(scope, snapshot(&[7]))));
        let proposal = planned(&news);
        assert!(proposal.plan.targets.is_empty());
        assert_eq!(
            proposal.lines,
            [
                "skipped: 8: it does not exist any more",
                "nothing to kill; 1 skipped"
            ]
        );
    }
}

#[test]
fn of_a_recording_there_is_a_plan_and_it_is_never_begun() {
    let mut snapshot = snapshot(&[7]);
    snapshot.host.pid_namespace = Some(crate::model::snapshot::PidNamespace::Host);
    let mut hand = Acting::new(&Config::default(), true);
    let scope = Scope::Processes(vec![row(7, 100)]);
    let news = say(&mut hand, Ask::Plan(question(scope, snapshot)));
    let proposal = planned(&news);
    assert_eq!(proposal.plan.targets.len(), 1, "{proposal:?}");
    assert_eq!(proposal.titles.len(), 1);
    let plan = Arc::clone(&proposal.plan);
    let news = say(&mut hand, Ask::Begin { number: 3, plan });
    let [
        News::Over {
            number: 3,
            error: Some(error),
        },
    ] = &news[..]
    else {
        panic!("{news:?}");
    };
    assert!(
        error.starts_with("nothing was sent: of a recording"),
        "{error}"
    );
}

#[test]
fn a_plan_that_was_not_the_last_is_not_begun() {
    let mut hand = Acting::new(&Config::default(), false);
    let plan = Arc::new(Plan {
        time: Time::default(),
        targets: Vec::new(),
        refused: Vec::new(),
    });
    let news = say(&mut hand, Ask::Begin { number: 9, plan });
    assert!(
        matches!(
            &news[..],
            [News::Over {
                number: 9,
                error: Some(_)
            }]
        ),
        "{news:?}"
    );
    assert!(hand.batch.is_none());
}
