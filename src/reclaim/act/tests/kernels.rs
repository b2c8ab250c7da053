//! Notebook kernels that their server shuts down or restarts.

use super::*;

fn kernel() -> Process {
    Process {
        jupyter: Some(Arc::new(Jupyter {
            application: Some("jupyter".into()),
            kernel_id: Some("7a1b".into()),
            server_url: Some("http://127.0.0.1:8888/".into()),
            ..Jupyter::default()
        })),
        ppid: Some(60),
        ..process(70, "python -m ipykernel_launcher -f k.json")
    }
}

#[test]
fn a_kernel_is_shut_by_its_server_and_nothing_is_sent() {
    let mut play = ActScene::found(Kind::Idle, &[kernel()]);
    assert_eq!(play.advance(), ActProgress::Waiting { until: at(10.0) });
    assert!(matches!(
        &play.control.get().asked[..],
        [Request::ShutKernel { kernel, even_at_work: false, .. }] if &*kernel.id == "7a1b"
    ));
    play.control.get().answer = Some(RequestResult::Done);
    play.at(0.1);
    play.control.get().end(70);
    let outcome = play.at(0.2);
    // The server does not restart the kernel, so the act does not watch for a restart.
    let freed = Outcome::Freed { bytes: GIB, ms: 200 };
    assert_eq!(outcome, ActProgress::Ended(freed));
    assert!(play.sent().is_empty());
    let deed = Deed::ShutKernel { kernel_id: "7a1b".into() };
    let failures = Vec::new();
    let events: Vec<&LedgerEvent> = play.pages.lines.iter().map(|line| &line.event).collect();
    assert_eq!(*events[1], LedgerEvent::Intended(deed.clone()));
    assert_eq!(*events[2], LedgerEvent::Done { deed, failures });
}

#[test]
fn a_kernel_that_is_at_work_after_all_is_left_alone() {
    let mut play = ActScene::found(Kind::Idle, &[kernel()]);
    play.advance();
    play.control.get().answer = Some(RequestResult::AtWork);
    assert_eq!(play.at(0.1), ActProgress::Ended(Outcome::RuleNoLongerTrue));
    assert!(play.sent().is_empty());
    let is_reported = |event: &LedgerEvent| matches!(event, LedgerEvent::Done { failures, .. } if failures.len() == 1);
    assert!(play.pages.lines.iter().any(|line| is_reported(&line.event)));
    let mut play = ActScene::named(&[kernel()], guard());
    play.advance();
    assert!(matches!(
        &play.control.get().asked[..],
        [Request::ShutKernel { even_at_work: true, .. }]
    ));
}

#[test]
fn a_kernel_that_its_server_would_start_again_is_left_alone() {
    let restarts = || Some(RequestResult::Restarts("it takes a password only".to_owned()));
    for (answer, until) in [(restarts(), 0.1), (None, 10.0)] {
        let mut play = ActScene::found(Kind::Idle, &[kernel()]);
        play.advance();
        play.control.get().answer = answer;
        let ActProgress::Ended(Outcome::Protected { why }) = play.at(until) else {
            panic!("{:?}", play.sent());
        };
        assert!(matches!(why, Protection::Owned { .. }), "{why:?}");
        assert!(play.sent().is_empty());
        assert!(play.control.get().processes.contains_key(&70));
    }
    // A user who insists accepts a restart.
    let mut insists = guard();
    insists.policy.direct = true;
    let mut play = ActScene::named(&[kernel()], insists);
    play.advance();
    play.control.get().answer = restarts();
    play.at(0.1);
    assert_eq!(play.sent(), [(70, TERM)]);
}

#[test]
fn a_kernel_that_outlives_its_servers_word_is_looked_after() {
    let mut play = ActScene::found(Kind::Idle, &[kernel()]);
    ends_on(&mut play, 70, &[TERM]);
    play.control.get().answer = Some(RequestResult::Done);
    play.advance();
    play.at(10.0);
    assert_eq!(play.sent(), [(70, TERM)]);
    // A server that reports success without a shutdown may restart the kernel.
    assert_eq!(play.at(11.0), ActProgress::Waiting { until: at(16.0) });
    assert!(matches!(play.at(16.0), ActProgress::Ended(Outcome::Freed { bytes: GIB, .. })));
}

#[test]
fn a_kernel_that_its_server_starts_again_is_respawned() {
    let id = "0a1b2c3d-0123-4567-89ab-00aa11bb22cc";
    let named = format!("python -m ipykernel_launcher -f kernel-{id}.json");
    for (command, parent, is_known) in [
        ("python -m ipykernel_launcher -f k.json", 60, true),
        // Through a wrapper.
        (&named, 94, true),
        ("python train.py", 94, false),
    ] {
        let process =
            Process { command: Some(command.split(' ').map(Arc::from).collect()), ..kernel() };
        let mut play = ActScene::found(Kind::Idle, std::slice::from_ref(&process));
        ends_on(&mut play, 70, &[TERM]);
        play.control.get().answer = Some(RequestResult::Failed("refused".to_owned()));
        play.advance();
        play.at(0.1);
        assert_eq!(play.sent(), [(70, TERM)]);
        // The memory is freed, but the act still watches for a restart.
        assert_eq!(play.at(1.0), ActProgress::Waiting { until: at(6.1) });
        let mut again = facts(&snapshot(at(0.0), &[process], Vec::new()))[&70].clone();
        (again.start_ticks, again.ppid) = (9000, Some(parent));
        play.control.get().processes.insert(95, again);
        let respawned = ActProgress::Ended(Outcome::Respawned { pid: 95, bytes: GIB });
        assert_eq!(play.at(3.0) == respawned, is_known, "{command}");
    }
    let mut play = ActScene::found(Kind::Idle, &[kernel()]);
    ends_on(&mut play, 70, &[TERM]);
    play.control.get().answer = Some(RequestResult::Failed("refused".to_owned()));
    assert!(matches!(play.play_on(), Outcome::Freed { .. }));
    assert!(play.now >= 6.0, "it was looked out for");
}
