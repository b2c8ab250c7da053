//! The words of a plan, on plans made by hand.

use super::*;
use crate::model::{Kind, Time};
use crate::reclaim::guard::Protection;
use crate::reclaim::plan::Plan;
use crate::reclaim::policy::Signal;
use crate::reclaim::target::{Because, MemberGpu};

fn target(pid: u32, bytes: Option<u64>) -> Target {
    Target {
        id: format!("{pid}:1").into(),
        boot_id: None,
        reason: Reason::Named,
        members: vec![Member {
            pid,
            start_ticks: 1,
            uid: 1000,
            user: Some("ann\u{1b}[2J".into()),
            name: "evil\n\u{202e}name".into(),
            gpus: vec![MemberGpu {
                index: 3,
                uuid: None,
                used_bytes: bytes,
            }],
            is_listed: true,
            process_group: None,
            session: None,
        }],
        launcher: None,
        leader: pid,
        dead: Vec::new(),
        bytes,
        steps: vec![Step::Signal {
            signal: Signal::Term,
            whom: Whom::Family,
            grace_seconds: 10.0,
        }],
        respawn_seconds: 0.0,
    }
}

fn report(targets: Vec<Target>, refused: Vec<Refused>) -> Report {
    let plan = Plan {
        time: Time::default(),
        targets,
        refused,
    };
    Report::new(plan, Vec::new(), Vec::new())
}

fn because(kind: Kind) -> Reason {
    Reason::Found {
        findings: vec![Because {
            id: "x".into(),
            rule: "night\u{7}".into(),
            kind,
            pid: 7,
            since: Time::default(),
            message: "it \u{1b}]0;idles".to_owned(),
            evidence: serde_json::Value::Null,
        }],
    }
}

#[test]
fn who_is_stopped_is_made_to_go_on_to_hear_it() {
    let mut stopped = target(7, None);
    stopped.reason = because(Kind::Stopped);
    let term = &stopped.steps[0];
    assert_eq!(
        in_words(term, &stopped),
        "SIGTERM and SIGCONT to 7; wait 10s"
    );
    let kill = Step::Signal {
        signal: Signal::Kill,
        whom: Whom::Family,
        grace_seconds: 5.0,
    };
    assert_eq!(in_words(&kill, &stopped), "SIGKILL to 7; wait 5s");
}

#[test]
fn a_plan_says_whom_why_and_how_and_nothing_that_a_terminal_obeys() {
    let mut found = target(7, Some(1 << 30));
    found.reason = because(Kind::Idle);
    let refused = Refused {
        pid: Some(8),
        user: Some("bob\r".into()),
        name: Some("x\u{9b}y".into()),
        finding: None,
        kind: Some(Kind::Idle),
        why: Why::Protected {
            pid: 8,
            protection: Protection::KeptByConfiguration {
                why: "paper\n".into(),
                until: None,
            },
        },
    };
    let text = plan(&report(vec![found], vec![refused]), Style::default());
    let expected = "\
7 ann\\e[2J: 1.0 GiB on GPU 3: evil\\n\\u{202e}name
    idle since 1970-01-01T00:00:00.000Z (rule night\\u{7}): it \\e]0;idles
    1. SIGTERM to 7; wait 10s

left alone: 8 bob\\r (x\\u{9b}y): idle: the configuration keeps it: paper\\n
1 to end, 1.0 GiB expected back, 1 left alone
";
    assert_eq!(text, expected);
}

#[test]
fn what_is_not_known_is_no_figure() {
    let (known, unknown) = (target(7, Some(1 << 30)), target(8, None));
    assert_eq!(expected(&[&known, &known]), "2.0 GiB");
    assert_eq!(expected(&[&known, &unknown]), "1.0 GiB or more");
    assert_eq!(expected(&[&unknown]), "memory that NVML does not tell");
    assert_eq!(
        report(vec![known, unknown], Vec::new()).expected_bytes,
        None
    );
}

#[test]
fn what_others_end_is_only_named() {
    let mut job = target(7, Some(1 << 30));
    let command = "scancel 12\u{1b}c";
    job.steps = vec![Step::Advise {
        command: command.into(),
    }];
    let text = plan(&report(vec![job.clone()], Vec::new()), Style::default());
    assert!(
        text.contains("1. not gpumem's to end: scancel 12\\ec; --direct"),
        "{text}"
    );
    assert!(
        text.ends_with("nothing for gpumem to end, 1 for others to end\n"),
        "{text}"
    );
    let why = Protection::Owned {
        command: command.into(),
    };
    let line = outcome(&job, &Outcome::Protected { why });
    assert_eq!(
        line,
        "7: not touched: end it with: scancel 12\\ec; --direct signals it all the same\n"
    );
}
