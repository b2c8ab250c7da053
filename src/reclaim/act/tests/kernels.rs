//! Tests notebook kernels that their servers shut down or restart.

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
fn a_kernel_is_shut_down_by_its_server_without_signals() {
    let mut test = ActTest::for_findings(Kind::Idle, &[kernel()]);
    assert_eq!(test.advance(), ActProgress::Waiting { until: at(10.0) });
    assert!(matches!(
        &test.control.get().asked[..],
        [Request::ShutKernel { kernel, even_at_work: false, .. }] if &*kernel.id == "7a1b"
    ));
    test.control.get().answer = Some(RequestResult::Done);
    test.advance_at(0.1);
    test.control.get().end(70);
    let outcome = test.advance_at(0.2);
    // The server does not restart a kernel that it shut down, so the act does not wait for a restart.
    let freed = Outcome::Freed { bytes: GIB, ms: 200 };
    assert_eq!(outcome, ActProgress::Ended(freed));
    assert!(test.sent().is_empty());
    let deed = Deed::ShutKernel { kernel_id: "7a1b".into() };
    let failures = Vec::new();
    let events: Vec<&LedgerEvent> = test.ledger.lines.iter().map(|line| &line.event).collect();
    assert_eq!(*events[1], LedgerEvent::Intended(deed.clone()));
    assert_eq!(*events[2], LedgerEvent::Done { deed, failures });
}

#[test]
fn a_working_kernel_is_left_alone() {
    let mut test = ActTest::for_findings(Kind::Idle, &[kernel()]);
    test.advance();
    test.control.get().answer = Some(RequestResult::AtWork);
    assert_eq!(test.advance_at(0.1), ActProgress::Ended(Outcome::RuleNoLongerTrue));
    assert!(test.sent().is_empty());
    let is_reported = |event: &LedgerEvent| matches!(event, LedgerEvent::Done { failures, .. } if failures.len() == 1);
    assert!(test.ledger.lines.iter().any(|line| is_reported(&line.event)));
    let mut test = ActTest::for_named(&[kernel()], guard());
    test.advance();
    assert!(matches!(
        &test.control.get().asked[..],
        [Request::ShutKernel { even_at_work: true, .. }]
    ));
}

#[test]
fn a_kernel_that_its_server_would_restart_is_left_alone() {
    let restarts = || Some(RequestResult::Restarts("it takes a password only".to_owned()));
    for (answer, until) in [(restarts(), 0.1), (None, 10.0)] {
        let mut test = ActTest::for_findings(Kind::Idle, &[kernel()]);
        test.advance();
        test.control.get().answer = answer;
        let ActProgress::Ended(Outcome::Protected { why }) = test.advance_at(until) else {
            panic!("{:?}", test.sent());
        };
        assert!(matches!(why, Protection::Owned { .. }), "{why:?}");
        assert!(test.sent().is_empty());
        assert!(test.control.get().processes.contains_key(&70));
    }
    // With `direct`, the user accepts that the server may restart the kernel.
    let mut insists = guard();
    insists.policy.direct = true;
    let mut test = ActTest::for_named(&[kernel()], insists);
    test.advance();
    test.control.get().answer = restarts();
    test.advance_at(0.1);
    assert_eq!(test.sent(), [(70, TERM)]);
}

#[test]
fn a_kernel_that_survives_its_shutdown_is_signalled() {
    let mut test = ActTest::for_findings(Kind::Idle, &[kernel()]);
    exit_on(&mut test, 70, &[TERM]);
    test.control.get().answer = Some(RequestResult::Done);
    test.advance();
    test.advance_at(10.0);
    assert_eq!(test.sent(), [(70, TERM)]);
    // The server reports success, but the kernel needs a signal to exit. The server may restart such a kernel.
    assert_eq!(test.advance_at(11.0), ActProgress::Waiting { until: at(16.0) });
    assert!(matches!(test.advance_at(16.0), ActProgress::Ended(Outcome::Freed { bytes: GIB, .. })));
}

#[test]
fn a_kernel_restarted_by_its_server_is_respawned() {
    let id = "0a1b2c3d-0123-4567-89ab-00aa11bb22cc";
    let named = format!("python -m ipykernel_launcher -f kernel-{id}.json");
    for (command, parent, is_known) in [
        ("python -m ipykernel_launcher -f k.json", 60, true),
        // The server starts the new kernel through a wrapper, which is therefore the parent.
        (&named, 94, true),
        ("python train.py", 94, false),
    ] {
        let process =
            Process { command: Some(command.split(' ').map(Arc::from).collect()), ..kernel() };
        let mut test = ActTest::for_findings(Kind::Idle, std::slice::from_ref(&process));
        exit_on(&mut test, 70, &[TERM]);
        test.control.get().answer = Some(RequestResult::Failed("refused".to_owned()));
        test.advance();
        test.advance_at(0.1);
        assert_eq!(test.sent(), [(70, TERM)]);
        // The memory is free, and the act waits for a possible restart.
        assert_eq!(test.advance_at(1.0), ActProgress::Waiting { until: at(6.1) });
        let mut again = facts(&snapshot(at(0.0), &[process], Vec::new()))[&70].clone();
        (again.start_ticks, again.ppid) = (9000, Some(parent));
        test.control.get().processes.insert(95, again);
        let respawned = ActProgress::Ended(Outcome::Respawned { pid: 95, bytes: GIB });
        assert_eq!(test.advance_at(3.0) == respawned, is_known, "{command}");
    }
    let mut test = ActTest::for_findings(Kind::Idle, &[kernel()]);
    exit_on(&mut test, 70, &[TERM]);
    test.control.get().answer = Some(RequestResult::Failed("refused".to_owned()));
    assert!(matches!(test.run_to_end(), Outcome::Freed { .. }));
    assert!(test.now >= 6.0, "the act watched for a restart");
}
