//! Tests release requests: their outcomes, and when signals follow.

use super::*;
use crate::reclaim::past_acts::PastRelease;
use crate::reclaim::release::{
    NotReleased, ReleaseAnswer, ReleaseBy, ReleaseOptions, ReleaseReport, ReleaseWay,
};
use crate::reclaim::target::KernelAtServer;
use crate::units::MIB;

fn options() -> ReleaseOptions {
    ReleaseOptions { idle_ms: 0, ..ReleaseOptions::by_rule() }
}

fn way() -> ReleaseWay {
    ReleaseWay {
        pid: 70,
        start_ticks: 700,
        by: ReleaseBy::Kernel {
            kernel_id: Some("7a1b".into()),
            notebook: None,
            last_activity: Some(at(-7200.0)),
        },
    }
}

fn release() -> Step {
    Step::Release { way: way(), options: options(), grace_seconds: 17.0 }
}

/// Returns an act on an idle process that asks for a release before it sends signals.
fn ask_then_signal() -> ActTest {
    ActTest::for_findings(Kind::Idle, &[python()]).with_steps(|steps| steps.insert(0, release()))
}

fn ask_only() -> ActTest {
    ActTest::for_named(&[python()], guard()).with_steps(|steps| *steps = vec![release()])
}

impl ActTest {
    fn advance_holding(&mut self, seconds: f64, bytes: u64) -> ActProgress {
        self.now = seconds;
        let processes = self.snapshot.processes.clone();
        self.set_snapshot(processes, vec![gpu(0, &[(70, bytes)], 0)]);
        self.advance()
    }

    fn set_answer(&mut self, answer: ReleaseAnswer) {
        self.control.get().answer = Some(RequestResult::Released(answer));
    }

    /// Sends the request at 0 s, answers it, and returns the outcome. Calls `held` at each time to get the number of
    /// bytes that the process holds.
    fn run_until_end(&mut self, mut held: impl FnMut(&mut Self, f64) -> u64) -> Outcome {
        self.advance();
        self.set_answer(Ok(ReleaseReport::default()));
        for quarter in 1..240 {
            let second = f64::from(quarter) / 4.0;
            let bytes = held(self, second);
            if let ActProgress::Ended(outcome) = self.advance_holding(second, bytes) {
                return outcome;
            }
        }
        panic!("no end");
    }

    /// Like `run_until_end`, but returns as soon as a second request or signal is sent. The process holds `left`
    /// bytes throughout.
    fn run_until_next_step(&mut self, left: u64) {
        self.advance();
        self.set_answer(Ok(ReleaseReport::default()));
        for quarter in 1..48 {
            self.advance_holding(f64::from(quarter) / 4.0, left);
            let control = self.control.get();
            if control.asked.len() + control.sent.len() > 1 {
                return;
            }
        }
        panic!("no step");
    }
}

#[test]
fn a_release_is_measured_by_nvml_and_recorded() {
    let mut test = ask_only();
    let outcome = test.run_until_end(|_, _| GIB / 4);
    let Outcome::Released { bytes, ms, .. } = outcome else {
        panic!("{outcome:?}");
    };
    // The answer was read at 0.25 s, so the first sample that shows its effect is at 0.5 s.
    assert_eq!((bytes, ms), (GIB - GIB / 4, 500));
    assert_eq!(test.now, 5.25, "NVML is watched for five seconds");
    assert!(test.sent().is_empty());
    let deed = Deed::Release { way: way() };
    let events: Vec<&LedgerEvent> = test.ledger.lines.iter().map(|line| &line.event).collect();
    assert!(matches!(events[0], LedgerEvent::Begun { .. }));
    assert_eq!(*events[1], LedgerEvent::Intended(deed.clone()));
    let failures = Vec::new();
    assert_eq!(*events[2], LedgerEvent::Done { deed, failures });
    assert!(matches!(events[3], LedgerEvent::Ended(Outcome::Released { .. })));
}

#[test]
fn memory_allocated_again_does_not_count_as_released() {
    // The process frees its memory at 1 s and allocates half as much again at 4 s.
    let outcome = ask_only().run_until_end(|_, second| match second {
        second if second < 1.0 => GIB,
        second if second < 4.0 => 0,
        _ => GIB / 2,
    });
    assert_eq!(outcome.freed_bytes(), GIB / 2, "{outcome:?}");
}

#[test]
fn less_than_16_mib_is_nothing_released() {
    for (back, is_released) in [(0, false), (16 * MIB - 1, false), (16 * MIB, true)] {
        let mut test = ask_only();
        test.advance();
        let report = ReleaseReport {
            cached_bytes_left: Some(0),
            live_bytes: Some(MIB),
            ..ReleaseReport::default()
        };
        test.set_answer(Ok(report.clone()));
        let mut last = None;
        for quarter in 1..24 {
            last = Some(test.advance_holding(f64::from(quarter) / 4.0, GIB - back));
        }
        let Some(ActProgress::Ended(outcome)) = last else {
            panic!("{last:?}");
        };
        assert_eq!(outcome.is_success(), is_released, "{outcome:?}");
        match outcome {
            Outcome::Released { bytes, report: own_report, .. } if is_released => {
                assert_eq!((bytes, *own_report), (back, report));
            }
            Outcome::NothingToRelease { bytes, report: own_report } if !is_released => {
                assert_eq!((bytes, own_report.live_bytes), (back, Some(MIB)));
                assert!(own_report.why.is_some());
            }
            outcome => panic!("{outcome:?}"),
        }
    }
}

#[test]
fn every_failed_answer_ends_a_release_only_act() {
    let why = || "because".to_owned();
    for (answer, name) in [
        (NotReleased::Busy(why()), "busy"),
        (NotReleased::NoWayIn(why()), "no_way_in"),
        (NotReleased::Refused(why()), "refused"),
        (NotReleased::TimedOut(why()), "timed_out"),
    ] {
        let mut test = ask_only();
        test.advance();
        test.set_answer(Err(answer));
        let ActProgress::Ended(outcome) = test.advance_at(0.25) else {
            panic!("{name}");
        };
        let written = serde_json::to_value(&outcome).unwrap();
        assert_eq!(written["outcome"], name);
        assert_eq!(written["why"], "because");
        assert!(!outcome.is_success() && test.sent().is_empty());
        let is_reported = |event: &LedgerEvent| matches!(event, LedgerEvent::Done { failures, .. } if failures.len() == 1);
        assert!(test.ledger.lines.iter().any(|line| is_reported(&line.event)));
    }
}

#[test]
fn a_missing_answer_or_measurement_times_out() {
    let mut test = ask_only();
    let outcome = test.run_to_end();
    assert!(matches!(outcome, Outcome::TimedOut { .. }), "{outcome:?}");
    assert_eq!(test.now, 17.0);
    let mut test = ask_only();
    test.advance();
    test.set_answer(Ok(ReleaseReport::default()));
    for second in 1..40 {
        test.now = f64::from(second);
        let blind = Gpu { processes: None, ..gpu(0, &[], 0) };
        test.set_snapshot(vec![python()], vec![blind]);
        if let ActProgress::Ended(outcome) = test.advance() {
            assert!(matches!(outcome, Outcome::TimedOut { .. }), "{outcome:?}");
            return;
        }
    }
    panic!("no end");
}

#[test]
fn a_process_that_exits_during_a_release_has_exited() {
    for mut test in [ask_only(), ask_then_signal()] {
        test.advance();
        test.set_answer(Ok(ReleaseReport::default()));
        test.advance_holding(0.25, GIB);
        test.control.get().end(70);
        assert_eq!(test.advance_at(0.5), ActProgress::Ended(Outcome::Exited));
        assert!(test.sent().is_empty());
    }
}

#[test]
fn a_release_is_the_outcome_if_the_finding_ends() {
    for recheck in [Recheck::NoLonger, Recheck::Unknown] {
        let mut test = ask_then_signal();
        let outcome = test.run_until_end(|test, second| {
            // The memory that remains is below the rule's threshold, so the finding ends while NVML is still watched.
            if second > 0.5 {
                test.recheck = recheck;
            }
            GIB / 8
        });
        assert_eq!(outcome.freed_bytes(), GIB - GIB / 8, "{outcome:?}");
        assert!(matches!(outcome, Outcome::Released { .. }));
        assert!(test.sent().is_empty(), "the process keeps running");
    }
}

#[test]
fn signals_follow_a_release_if_the_finding_holds() {
    let mut test = ask_then_signal();
    test.run_until_next_step(GIB / 2);
    assert_eq!(test.sent(), [(70, Signal::Term)]);
    test.control.get().end(70);
    let outcome = test.run_to_end();
    assert!(matches!(outcome, Outcome::Freed { bytes: GIB, .. }), "{outcome:?}");
}

#[test]
fn a_busy_process_is_spared_an_unreachable_one_signalled() {
    let mut test = ask_then_signal();
    test.advance();
    test.set_answer(Err(NotReleased::Busy("a cell runs".to_owned())));
    let outcome = test.advance_at(0.25);
    assert!(matches!(outcome, ActProgress::Ended(Outcome::Busy { .. })));
    let mut test = ask_then_signal();
    test.advance();
    test.set_answer(Err(NotReleased::NoWayIn("encrypted".to_owned())));
    test.advance_at(0.25);
    assert_eq!(test.sent(), [(70, Signal::Term)]);
}

#[test]
fn a_process_is_not_asked_twice_within_a_minute() {
    let asks = |past: PastRelease| {
        let mut test = ask_only();
        let target = test.act.target().clone();
        test.act = Act::new(target, Arc::new(guard()), Actor::default()).after(vec![past]);
        let progress = test.advance();
        let is_refused = matches!(progress, ActProgress::Ended(Outcome::Refused { .. }));
        assert_eq!(is_refused, test.control.get().asked.is_empty());
        !is_refused
    };
    for (seconds, is_asked) in [(-1.0, false), (-59.9, false), (5.0, false), (-60.0, true)] {
        let past = PastRelease::new(&way(), at(seconds), None);
        assert_eq!(asks(past), is_asked, "{seconds}");
    }
    let mut other = PastRelease::new(&way(), at(-1.0), None);
    other.process.start_ticks += 1;
    assert!(asks(other));
}

#[test]
fn a_shutdown_request_lists_earlier_release_requests() {
    let kernel = KernelAtServer {
        id: "7a1b".into(),
        pid: 70,
        start_ticks: 700,
        last_activity: Some(at(-7200.0)),
        server_url: "http://127.0.0.1:8888/".into(),
        server_pid: None,
        notebook: None,
    };
    let mut test = ask_then_signal()
        .with_steps(|steps| steps[1] = Step::ShutKernel { kernel, grace_seconds: 10.0 });
    test.run_until_next_step(GIB / 2);
    let control = test.control.get();
    let Some(Request::ShutKernel { asked, .. }) = control.asked.last() else {
        panic!("{:?}", control.asked);
    };
    let [asked] = &asked[..] else {
        panic!("{asked:?}");
    };
    assert_eq!((asked.since, asked.until), (at(0.0), at(0.25)));
    assert_eq!(asked.last_activity, Some(at(-7200.0)));
}
