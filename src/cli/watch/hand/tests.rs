//! Whom the hand means, and what it makes of a recording.

use super::*;
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

/// What a hand says to an ask.
fn say(hand: &mut Acting, ask: Ask) -> Vec<News> {
    let mut news = Vec::new();
    hand.go_on(Some(ask), &mut |it| news.push(it));
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
fn who_is_gone_is_refused_and_nobody_else_is_taken_for_it() {
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
                "left alone: 8: it is not there any more",
                "nothing to end, 1 left alone"
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
