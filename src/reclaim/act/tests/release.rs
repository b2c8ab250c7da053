//! Releases of memory by a living process: every outcome, and when the process is ended after all.

use super::*;
use crate::reclaim::past_release::PastRelease;
use crate::reclaim::release::{
    NotReleased, ReleaseAnswer, ReleaseBy, ReleaseOptions, ReleaseReport, ReleaseWay,
};
use crate::reclaim::target::KernelAtServer;
use crate::units::MIB;

fn options() -> ReleaseOptions {
    ReleaseOptions {
        collects: true,
        references: false,
        is_named: false,
        insists: false,
        wait_ms: 10_000,
        idle_ms: 0,
        pci_bus_ids: Vec::new(),
    }
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

/// An idle process that is asked before it is ended.
fn ladder() -> ActScene {
    ActScene::found(Kind::Idle, &[python()]).with_steps(|steps| steps.insert(0, release()))
}

/// A named process that is only asked.
fn only() -> ActScene {
    ActScene::named(&[python()], guard()).with_steps(|steps| *steps = vec![release()])
}

impl ActScene {
    /// Advances to the given time, with a process that holds `bytes`.
    fn holding(&mut self, seconds: f64, bytes: u64) -> ActProgress {
        self.now = seconds;
        let processes = self.seen.processes.clone();
        self.shows(processes, vec![gpu(0, &[(70, bytes)], 0)]);
        self.advance()
    }

    fn answers(&mut self, answer: ReleaseAnswer) {
        self.control.get().answer = Some(RequestResult::Released(answer));
    }

    /// Asks at second 0 and answers. Returns the outcome if the process holds `held` bytes at each second.
    fn until_end(&mut self, mut held: impl FnMut(&mut Self, f64) -> u64) -> Outcome {
        self.advance();
        self.answers(Ok(ReleaseReport::default()));
        for quarter in 1..240 {
            let second = f64::from(quarter) / 4.0;
            let bytes = held(self, second);
            if let ActProgress::Ended(outcome) = self.holding(second, bytes) {
                return outcome;
            }
        }
        panic!("no end");
    }

    /// Like `until_end`, up to the next step.
    fn until_next(&mut self, left: u64) {
        self.advance();
        self.answers(Ok(ReleaseReport::default()));
        for quarter in 1..48 {
            self.holding(f64::from(quarter) / 4.0, left);
            let control = self.control.get();
            if control.asked.len() + control.sent.len() > 1 {
                return;
            }
        }
        panic!("no step");
    }
}

#[test]
fn what_nvml_shows_back_is_released_and_in_the_ledger_before_and_after() {
    let mut play = only();
    let outcome = play.until_end(|_, _| GIB / 4);
    let Outcome::Released { bytes, ms, .. } = outcome else {
        panic!("{outcome:?}");
    };
    // Answered at 0.25, so the next sample shows the effect.
    assert_eq!((bytes, ms), (GIB - GIB / 4, 500));
    assert_eq!(play.now, 5.25, "NVML is looked at for five seconds");
    assert!(play.sent().is_empty());
    let deed = Deed::Release { way: way() };
    let events: Vec<&LedgerEvent> = play.pages.lines.iter().map(|line| &line.event).collect();
    assert!(matches!(events[0], LedgerEvent::Begun { .. }));
    assert_eq!(*events[1], LedgerEvent::Intended(deed.clone()));
    let failures = Vec::new();
    assert_eq!(*events[2], LedgerEvent::Done { deed, failures });
    assert!(matches!(events[3], LedgerEvent::Ended(Outcome::Released { .. })));
}

#[test]
fn only_what_stays_away_is_released() {
    // The memory is freed at 1 s, and half of it is allocated again at 4 s.
    let outcome = only().until_end(|_, second| match second {
        second if second < 1.0 => GIB,
        second if second < 4.0 => 0,
        _ => GIB / 2,
    });
    assert_eq!(outcome.freed_bytes(), GIB / 2, "{outcome:?}");
}

#[test]
fn less_than_16_mib_is_nothing_by_any_report() {
    for (back, is_released) in [(0, false), (16 * MIB - 1, false), (16 * MIB, true)] {
        let mut play = only();
        play.advance();
        let report = ReleaseReport {
            cached_bytes_left: Some(0),
            live_bytes: Some(MIB),
            ..ReleaseReport::default()
        };
        play.answers(Ok(report.clone()));
        let mut last = None;
        for quarter in 1..24 {
            last = Some(play.holding(f64::from(quarter) / 4.0, GIB - back));
        }
        let Some(ActProgress::Ended(outcome)) = last else {
            panic!("{last:?}");
        };
        assert_eq!(outcome.is_success(), is_released, "{outcome:?}");
        match outcome {
            Outcome::Released { bytes, report: own, .. } if is_released => {
                assert_eq!((bytes, *own), (back, report));
            }
            Outcome::NothingToRelease { bytes, report: own } if !is_released => {
                assert_eq!((bytes, own.live_bytes), (back, Some(MIB)));
                assert!(own.why.is_some());
            }
            outcome => panic!("{outcome:?}"),
        }
    }
}

#[test]
fn every_answer_but_done_ends_what_is_only_asked() {
    let why = || "because".to_owned();
    for (answer, name) in [
        (NotReleased::Busy(why()), "busy"),
        (NotReleased::NoWayIn(why()), "no_way_in"),
        (NotReleased::Refused(why()), "refused"),
        (NotReleased::TimedOut(why()), "timed_out"),
    ] {
        let mut play = only();
        play.advance();
        play.answers(Err(answer));
        let ActProgress::Ended(outcome) = play.at(0.25) else {
            panic!("{name}");
        };
        let written = serde_json::to_value(&outcome).unwrap();
        assert_eq!(written["outcome"], name);
        assert_eq!(written["why"], "because");
        assert!(!outcome.is_success() && play.sent().is_empty());
        let is_reported = |event: &LedgerEvent| matches!(event, LedgerEvent::Done { failures, .. } if failures.len() == 1);
        assert!(play.pages.lines.iter().any(|line| is_reported(&line.event)));
    }
}

#[test]
fn who_does_not_answer_or_is_not_measured_has_timed_out() {
    let mut play = only();
    let outcome = play.play_on();
    assert!(matches!(outcome, Outcome::TimedOut { .. }), "{outcome:?}");
    assert_eq!(play.now, 17.0);
    let mut play = only();
    play.advance();
    play.answers(Ok(ReleaseReport::default()));
    for second in 1..40 {
        play.now = f64::from(second);
        let blind = Gpu { processes: None, ..gpu(0, &[], 0) };
        play.shows(vec![python()], vec![blind]);
        if let ActProgress::Ended(outcome) = play.advance() {
            assert!(matches!(outcome, Outcome::TimedOut { .. }), "{outcome:?}");
            return;
        }
    }
    panic!("no end");
}

#[test]
fn who_dies_in_the_middle_has_released_nothing() {
    for mut play in [only(), ladder()] {
        play.advance();
        play.answers(Ok(ReleaseReport::default()));
        play.holding(0.25, GIB);
        play.control.get().end(70);
        assert_eq!(play.at(0.5), ActProgress::Ended(Outcome::Exited));
        assert!(play.sent().is_empty());
    }
}

#[test]
fn it_ends_with_released_where_the_rule_holds_no_more_or_is_unknown() {
    for recheck in [Recheck::NoLonger, Recheck::Unknown] {
        let mut play = ladder();
        let outcome = play.until_end(|play, second| {
            // The rest is below the rule's threshold, so the finding ends before the five seconds are over.
            if second > 0.5 {
                play.recheck = recheck;
            }
            GIB / 8
        });
        assert_eq!(outcome.freed_bytes(), GIB - GIB / 8, "{outcome:?}");
        assert!(matches!(outcome, Outcome::Released { .. }));
        assert!(play.sent().is_empty(), "it lives");
    }
}

#[test]
fn it_goes_on_where_the_rule_still_holds() {
    let mut play = ladder();
    play.until_next(GIB / 2);
    assert_eq!(play.sent(), [(70, Signal::Term)]);
    play.control.get().end(70);
    let outcome = play.play_on();
    assert!(matches!(outcome, Outcome::Freed { bytes: GIB, .. }), "{outcome:?}");
}

#[test]
fn who_is_busy_is_left_alone_and_who_cannot_be_asked_is_ended_by_the_rule() {
    let mut play = ladder();
    play.advance();
    play.answers(Err(NotReleased::Busy("a cell runs".to_owned())));
    let outcome = play.at(0.25);
    assert!(matches!(outcome, ActProgress::Ended(Outcome::Busy { .. })));
    let mut play = ladder();
    play.advance();
    play.answers(Err(NotReleased::NoWayIn("encrypted".to_owned())));
    play.at(0.25);
    assert_eq!(play.sent(), [(70, Signal::Term)]);
}

#[test]
fn a_process_is_not_asked_twice_within_a_minute() {
    let asks = |past: PastRelease| {
        let mut play = only();
        let target = play.act.target().clone();
        play.act = Act::new(target, Arc::new(guard()), Actor::default()).after(vec![past]);
        let progress = play.advance();
        let is_refused = matches!(progress, ActProgress::Ended(Outcome::Refused { .. }));
        assert_eq!(is_refused, play.control.get().asked.is_empty());
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
fn a_server_is_given_the_time_of_the_request_that_is_no_work() {
    let kernel = KernelAtServer {
        id: "7a1b".into(),
        pid: 70,
        start_ticks: 700,
        last_activity: Some(at(-7200.0)),
        server_url: "http://127.0.0.1:8888/".into(),
        server_pid: None,
        notebook: None,
    };
    let mut play =
        ladder().with_steps(|steps| steps[1] = Step::ShutKernel { kernel, grace_seconds: 10.0 });
    play.until_next(GIB / 2);
    let control = play.control.get();
    let Some(Request::ShutKernel { asked, .. }) = control.asked.last() else {
        panic!("{:?}", control.asked);
    };
    let [asked] = &asked[..] else {
        panic!("{asked:?}");
    };
    assert_eq!((asked.since, asked.until), (at(0.0), at(0.25)));
    assert_eq!(asked.last_activity, Some(at(-7200.0)));
}
