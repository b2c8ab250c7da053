//! Tests that a ledger stays readable after its writer is interrupted.

use std::fs;

use super::*;
use crate::model::Kind;
use crate::reclaim::policy::Signal;
use crate::reclaim::target::LedgerProcess;
use crate::reclaim::testing::{at, finding, gpu, guard, plan_of, process, snapshot};
use crate::units::GIB;

fn target() -> Box<Target> {
    let python = process(70, "python \u{1b}[31mtrain.py");
    let snapshot = snapshot(at(0.0), std::slice::from_ref(&python), vec![gpu(0, &[(70, GIB)], 0)]);
    let mut plan = plan_of(&[finding(Kind::Idle, &python)], &snapshot, &guard());
    Box::new(plan.targets.remove(0))
}

fn entry(act: &str, seconds: f64, event: LedgerEvent) -> LedgerEntry {
    LedgerEntry { time: at(seconds), act: act.into(), event }
}

fn term() -> Deed {
    Deed::Signal {
        signals: vec![Signal::Term, Signal::Cont],
        processes: vec![LedgerProcess { pid: 70, start_ticks: u64::MAX }],
    }
}

fn actor() -> Actor {
    Actor {
        pid: 900,
        uid: 0,
        user: Some("root".into()),
        sudo_user: Some("ann".into()),
        is_unattended: true,
    }
}

fn all() -> Vec<LedgerEntry> {
    let outcome = Outcome::Freed { bytes: GIB, ms: 900 };
    vec![
        entry("a", 0.0, LedgerEvent::Begun { actor: actor(), target: target() }),
        entry("a", 0.0, LedgerEvent::Intended(term())),
        entry(
            "a",
            0.1,
            LedgerEvent::Done {
                deed: term(),
                failures: vec![Failure { pid: Some(70), error: "gone".to_owned() }],
            },
        ),
        entry("a", 1.0, LedgerEvent::Ended(outcome)),
    ]
}

#[test]
fn written_entries_are_read_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger.jsonl");
    let mut ledger = Ledger::open(&path).unwrap();
    for entry in all() {
        ledger.write(&entry).unwrap();
    }
    drop(ledger);
    let mut ledger = Ledger::open(&path).unwrap();
    let asked = Deed::ShutKernel { kernel_id: "k".into() };
    ledger.write(&entry("b", 2.0, LedgerEvent::Intended(asked.clone()))).unwrap();
    let past = read(&path, 1 << 20).unwrap();
    assert_eq!((past.unread_lines, past.is_cut), (0, false));
    let [first, second] = &past.acts[..] else {
        panic!("{past:?}");
    };
    assert_eq!(first.actor, Some(actor()));
    assert_eq!(first.target.as_deref(), Some(&*target()));
    assert_eq!(first.deeds.len(), 1);
    assert_eq!(first.deeds[0].deed, term());
    assert_eq!(first.deeds[0].failures.as_ref().map(Vec::len), Some(1));
    assert!(first.outcome.as_ref().is_some_and(Outcome::is_success));
    assert_eq!(second.deeds[0].failures, None, "the result is unknown");
    assert_eq!((&second.outcome, &second.deeds[0].deed), (&None, &asked));
    assert_eq!(past.unattended_times(), [at(0.0), at(2.0)]);
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.lines().all(|line| line.starts_with(r#"{"schema":"gpumem.ledger/1","#)));
    assert!(!text.contains('\u{1b}'), "control characters are escaped");
}

#[test]
fn a_torn_line_loses_only_itself() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger.jsonl");
    let mut ledger = Ledger::open(&path).unwrap();
    for entry in all() {
        ledger.write(&entry).unwrap();
    }
    let whole = fs::read(&path).unwrap();
    let last = whole[..whole.len() - 1].iter().rposition(|&byte| byte == b'\n').unwrap();
    for cut in [last + 2, last + 9, whole.len() - 1] {
        fs::write(&path, &whole[..cut]).unwrap();
        let mut ledger = Ledger::open(&path).unwrap();
        ledger.write(&entry("b", 3.0, LedgerEvent::Intended(term()))).unwrap();
        ledger.write(&entry("b", 4.0, LedgerEvent::Ended(Outcome::AlreadyGone))).unwrap();
        let past = read(&path, 1 << 20).unwrap();
        let is_whole = cut == whole.len() - 1;
        assert_eq!(past.unread_lines, usize::from(!is_whole), "{cut}");
        assert_eq!(past.acts.len(), 2);
        assert_eq!(past.acts[0].outcome.is_some(), is_whole);
        assert_eq!(past.acts[1].outcome, Some(Outcome::AlreadyGone));
    }
    // None of these four lines is an entry of the current version.
    let strange = b"\xff\n{}\n[1]\n{\"schema\":\"gpumem.ledger/2\",\"event\":\"begun\"}\n\n";
    fs::write(&path, strange).unwrap();
    let past = read(&path, 1 << 20).unwrap();
    assert_eq!((past.acts.len(), past.unread_lines), (0, 4));
}

#[test]
fn only_the_end_of_a_long_ledger_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger.jsonl");
    assert_eq!(read(&path, 100).unwrap(), LedgerSummary::default(), "no ledger");
    let mut ledger = Ledger::open(&path).unwrap();
    for number in 0..100 {
        let act = number.to_string();
        ledger.write(&entry(&act, 1.0, LedgerEvent::Ended(Outcome::StillAlive))).unwrap();
    }
    let past = read(&path, 1000).unwrap();
    assert!(past.is_cut && past.unread_lines == 0);
    assert!((5..15).contains(&past.acts.len()), "{}", past.acts.len());
    assert_eq!(past.acts.last().map(|act| &*act.id), Some("99"));
    assert!(past.unattended_times().is_empty(), "no action was taken");
}

#[test]
fn a_ledger_that_cannot_be_written_is_an_error() {
    let Ok(mut full) = OpenOptions::new().append(true).open("/dev/full") else {
        return;
    };
    assert!(full.write_all(b"x").is_err());
    let error = Ledger::open(Path::new("/dev/full")).unwrap_err();
    assert!(error.to_string().contains("not a regular file"), "{error}");
    let mut ledger = Ledger { path: "/dev/full".into(), file: full, is_torn: false };
    let error = ledger.write(&all()[0]).unwrap_err();
    assert!(matches!(error, LedgerError::Write { .. }), "{error}");
    assert!(ledger.is_torn);
    let folder = tempfile::tempdir().unwrap();
    assert!(Ledger::open(&folder.path().join("no/ledger")).is_err());
}

#[test]
fn only_the_owner_can_read_a_ledger() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger.jsonl");
    Ledger::open(&path).unwrap();
    let mode = fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o077, 0);
}

#[test]
fn only_unattended_acts_count_for_the_rate_limit() {
    let deed = PastDeed { ended: None, time: at(0.0), deed: term(), failures: None };
    let act = |seconds, is_unattended: Option<bool>| PastAct {
        id: "a".into(),
        time: at(seconds),
        actor: is_unattended.map(|is_unattended| Actor { is_unattended, ..actor() }),
        target: None,
        deeds: vec![deed.clone()],
        outcome: None,
    };
    let mut idle = act(4.0, Some(true));
    idle.deeds.clear();
    let past = LedgerSummary {
        acts: vec![act(1.0, Some(false)), act(2.0, Some(true)), act(3.0, None), idle],
        ..LedgerSummary::default()
    };
    assert_eq!(past.unattended_times(), [at(2.0), at(3.0)]);
}
