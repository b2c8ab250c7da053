//! Tests of plans as text.

use super::*;
use crate::model::{Kind, Time};
use crate::reclaim::Refused;
use crate::reclaim::guard::Protection;
use crate::reclaim::plan::{Plan, Why};
use crate::reclaim::target::{Because, MemberGpu};
use crate::report::refusal::RefusalPlace;
use crate::watch::sample;

const READER: RefusalReader = RefusalReader { place: RefusalPlace::Reap, is_root: true };

fn target(pid: u32, bytes: Option<u64>) -> Target {
    let mut target = Target { bytes, ..sample::target(pid) };
    let member = &mut target.members[0];
    member.user = Some("ann\u{1b}[2J".into());
    member.name = "evil\n\u{202e}name".into();
    member.gpus = vec![MemberGpu { index: 3, uuid: None, used_bytes: bytes }];
    target
}

fn report(targets: Vec<Target>, refused: Vec<Refused>) -> ReapReport {
    let plan = Plan { time: Time::default(), targets, refused };
    ReapReport::new(plan, Vec::new(), Vec::new())
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
fn a_plan_shows_targets_reasons_and_steps_escaped() {
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
            protection: Protection::KeptByConfiguration { why: "paper\n".into(), until: None },
        },
    };
    let text = plan(&report(vec![found], vec![refused]), Style::default(), READER);
    let expected = "\
7 ann\\e[2J: 1.0 GiB on GPU 3: evil\\n\\u{202e}name
    idle since 1970-01-01 00:00:00 UTC (rule night\\u{7}): it \\e]0;idles
    1. SIGTERM to 7; wait 10s, longer while it works

skipped: 8 bob\\r (x\\u{9b}y): idle: the configuration keeps it: paper\\n
will kill 1 process; should free 1.0 GiB; 1 skipped
";
    assert_eq!(text, expected);
}

#[test]
fn every_signalled_process_has_a_line_and_is_counted() {
    let mut run = target(7, Some(1 << 30));
    for pid in [8, 9] {
        let mut member = run.members[0].clone();
        (member.pid, member.name) = (pid, format!("python rank{pid}.py").into());
        member.gpus[0].used_bytes = (pid == 8).then_some(2 << 30);
        run.members.push(member);
    }
    run.members[2].is_listed = false;
    let mut launcher = run.members[0].clone();
    (launcher.pid, launcher.user, launcher.name) = (6, None, "torchrun run.py".into());
    (launcher.gpus, launcher.is_listed) = (Vec::new(), false);
    run.launcher = Some(launcher);
    run.bytes = Some(3 << 30);
    let text = plan(&report(vec![run.clone()], Vec::new()), Style::default(), READER);
    let expected = "\
7 ann\\e[2J: 3.0 GiB on GPU 3: evil\\n\\u{202e}name
    kills 6 uid 1000: the launcher: torchrun run.py
    kills 7 ann\\e[2J: 1.0 GiB: evil\\n\\u{202e}name
    kills 8 ann\\e[2J: 2.0 GiB: python rank8.py
    kills 9 ann\\e[2J: not listed by NVML: python rank9.py
    selected by you
    1. SIGTERM to 7, 8, 9; wait 10s, longer while it works

will kill 4 processes of 1 job; should free 3.0 GiB
";
    assert_eq!(text, expected);
    let (one, other) = (target(20, Some(0)), target(21, Some(0)));
    assert_eq!(count(&[&one]), "1 process");
    assert_eq!(count(&[&one, &other]), "2 processes");
    assert_eq!(count(&[&run, &one]), "5 processes of 2 jobs");
    let json = serde_json::to_value(report(vec![run], Vec::new())).unwrap();
    let pid_of = |process: &serde_json::Value| process["pid"].as_u64().unwrap();
    let members = json["targets"][0]["members"].as_array().unwrap();
    assert_eq!(members.iter().map(pid_of).collect::<Vec<_>>(), [7, 8, 9]);
    assert_eq!(pid_of(&json["targets"][0]["launcher"]), 6);
}
