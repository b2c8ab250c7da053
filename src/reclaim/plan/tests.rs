//! Which processes a plan includes, and which it refuses.

use std::sync::Arc;

use super::*;
use crate::model::Gpu;
use crate::model::finding::Action;
use crate::model::row::{Me, ProcessRow, places};
use crate::model::selector::{Selected, Selector};
use crate::model::snapshot::{Jupyter, Parent};
use crate::reclaim::policy::{Exempt, FindingSelector, Signal};
use crate::reclaim::target::{Recipients, Step};
use crate::reclaim::testing::{
    OWNER, at, facts, finding, gpu, guard, naming, plan_of, plan_with, process, snapshot,
};
use crate::units::GIB;

mod families;
mod forged;

fn pids(target: &Target) -> Vec<u32> {
    target.members.iter().map(|it| it.pid).collect()
}

fn why(plan: &Plan) -> Vec<&Why> {
    plan.refused.iter().map(|it| &it.why).collect()
}

fn alone(kind: Kind) -> (Vec<Finding>, Snapshot) {
    let python = process(70, "python train.py");
    let seen = snapshot(at(0.0), std::slice::from_ref(&python), vec![gpu(0, &[(70, GIB)], 0)]);
    (vec![finding(kind, &python)], seen)
}

fn asking(kinds: &[Kind], rules: &[&str]) -> FindingSelector {
    FindingSelector {
        kinds: kinds.to_vec(),
        rules: rules.iter().map(|&rule| rule.into()).collect(),
        ..FindingSelector::default()
    }
}

/// The processes that a selector matches in a snapshot.
fn selected(seen: &Snapshot, findings: &[Finding], text: &str) -> Option<Selected> {
    let places = places(seen, findings).into_iter();
    let rows: Vec<_> = places.map(|place| ProcessRow::new(seen, findings, place)).collect();
    let selector = Selector::parse(text).unwrap().unwrap();
    Some(selector.select(seen, &rows, findings.iter(), &Me::default()))
}

fn with(selector: FindingSelector) -> Guard {
    let mut guard = guard();
    guard.policy.targets = Targets::Found(selector);
    guard
}

#[test]
fn kinds_are_taken_always_when_asked_or_never() {
    for &kind in Kind::ALL {
        let (findings, seen) = alone(kind);
        let usual = plan_of(&findings, &seen, &guard());
        let asked = with(asking(&[kind], &[]));
        let asked = plan_of(&findings, &seen, &asked);
        let (by_default, when_asked) = match kind {
            Kind::Idle | Kind::Orphan | Kind::Stopped => (1, 1),
            Kind::Hung | Kind::Leak | Kind::ServerIdle | Kind::Placeholder => (0, 1),
            _ => (0, 0),
        };
        assert_eq!(usual.targets.len(), by_default, "{kind}");
        assert_eq!(asked.targets.len(), when_asked, "{kind}");
        // Every requested process that is not a target is refused with a reason. By default only expected ones are
        // listed.
        assert_eq!(asked.refused.len(), 1 - when_asked, "{kind}");
        let is_notified =
            matches!(kind, Kind::Dead | Kind::Stuck | Kind::Hung | Kind::Leak | Kind::Placeholder);
        assert_eq!(usual.refused.len(), usize::from(is_notified), "{kind}");
    }
}

#[test]
fn a_placeholder_is_taken_for_being_one_and_for_nothing_else() {
    let only_asked = Why::OnlyWhenAsked { kind: Kind::Placeholder };
    let asked = |kinds: &[Kind]| with(asking(kinds, &[]));
    let named = process(70, "python /v/bin/keep-gpu --gpu-ids 0");
    let other = process(70, "python train.py");
    for (python, found_by_conduct) in [(&named, false), (&other, true)] {
        for kind in [Kind::Idle, Kind::Orphan, Kind::Stopped] {
            let seen =
                snapshot(at(0.0), std::slice::from_ref(python), vec![gpu(0, &[(70, GIB)], 0)]);
            let mut findings = vec![finding(kind, python)];
            if found_by_conduct {
                findings.push(finding(Kind::Placeholder, python));
            }
            for guard in [guard(), asked(&[kind])] {
                let plan = plan_of(&findings, &seen, &guard);
                assert_eq!(plan.targets, [], "{kind}");
                assert!(why(&plan).iter().all(|it| **it == only_asked), "{plan:?}");
                assert!(!plan.refused.is_empty());
            }
            let both = asked(&[kind, Kind::Placeholder]);
            assert_eq!(plan_of(&findings, &seen, &both).targets.len(), 1, "{kind}");
        }
    }
}

#[test]
fn a_target_has_its_processes_reasons_and_steps() {
    let (findings, seen) = alone(Kind::Idle);
    let plan = plan_of(&findings, &seen, &guard());
    let [target] = &plan.targets[..] else {
        panic!("{plan:?}");
    };
    assert_eq!((&*target.id, target.leader), ("70:700", 70));
    assert_eq!((target.bytes, target.boot_id.as_deref()), (Some(GIB), Some("boot")));
    let member = &target.members[0];
    assert_eq!((member.start_ticks, member.uid), (700, OWNER));
    assert_eq!(&*member.name, "python train.py");
    assert_eq!(member.gpus[0].used_bytes, Some(GIB));
    let Reason::Found { findings } = &target.reason else {
        panic!("{target:?}");
    };
    assert_eq!((findings[0].kind, &*findings[0].rule), (Kind::Idle, "idle"));
    assert!(findings[0].evidence.is_object());
    let signals: Vec<_> = target
        .steps
        .iter()
        .map(|step| match step {
            Step::Signal { signal, recipients: to, grace_seconds } => {
                (*signal, *to, *grace_seconds)
            }
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(
        signals,
        [(Signal::Term, Recipients::Family, 30.0), (Signal::Kill, Recipients::Family, 5.0)]
    );
    let json = serde_json::to_string(&plan).unwrap();
    assert!(json.contains(r#""step":"signal","signal":"TERM","whom":"family""#), "{json}");
    let again: Target = serde_json::from_str(&serde_json::to_string(target).unwrap()).unwrap();
    assert_eq!(&again, target);
}

#[test]
fn what_the_rule_only_notifies_is_skipped() {
    let (mut findings, seen) = alone(Kind::Idle);
    findings[0].actions = vec![Action::Notify];
    let plan = plan_of(&findings, &seen, &guard());
    assert_eq!(why(&plan), [&Why::OnlyNotified]);
    findings[0].resolved_at = Some(at(0.0));
    let plan = plan_of(&findings, &seen, &guard());
    assert!(plan.targets.is_empty() && plan.refused.is_empty(), "it has ceased");
}

#[test]
fn what_is_kept_from_a_kind_is_not_ended_for_it() {
    for (kinds, rules, targets) in [
        (vec![Kind::Stopped], vec![], 0),
        (vec![], vec![Arc::from("stopped")], 0),
        (vec![], vec![], 0),
        (vec![Kind::Idle], vec![], 1),
    ] {
        let (findings, seen) = alone(Kind::Stopped);
        let mut guard = guard();
        guard.policy.kept = vec![Exempt {
            identity: seen.processes[0].identity(),
            kinds,
            rules,
            reason: "a demonstration".into(),
            until: None,
        }];
        let plan = plan_of(&findings, &seen, &guard);
        assert_eq!((plan.targets.len(), plan.refused.len()), (targets, 1 - targets));
    }
}

#[test]
fn a_process_that_is_another_by_now_is_none_of_the_rules() {
    let (findings, mut seen) = alone(Kind::Idle);
    seen.processes[0].start_ticks = Some(1);
    assert_eq!(why(&plan_of(&findings, &seen, &guard())), [&Why::Gone]);
    // The snapshot is outdated: Linux reports that the pid was reused.
    let (findings, seen) = alone(Kind::Idle);
    let mut now = facts(&seen);
    now.get_mut(&70).unwrap().start_ticks = 1;
    let plan = plan_with(&findings, &seen, &[], &now, &guard());
    let protection = Protection::Replaced;
    assert_eq!(why(&plan), [&Why::Protected { pid: 70, protection }]);
    // Without facts from Linux, no process is a target.
    let plan = plan_with(&findings, &seen, &[], &BTreeMap::new(), &guard());
    assert!(plan.targets.is_empty() && plan.refused.len() == 1);
}

#[test]
fn what_is_asked_for_narrows_it() {
    let first = process(70, "python train.py");
    let mut second = process(80, "python other.py");
    second.user = Some("bob".into());
    let gpus = vec![gpu(0, &[(70, GIB)], 0), gpu(1, &[(80, 4 * GIB)], 0)];
    let seen = snapshot(at(0.0), &[first.clone(), second.clone()], gpus);
    let mut on_other = finding(Kind::Idle, &second);
    on_other.gpus[0].index = 1;
    on_other.duration_seconds = 60.0;
    let findings = [finding(Kind::Orphan, &first), on_other];
    let leaders = |targets: &FindingSelector, terms: Option<&str>| {
        let mut guard = with(targets.clone());
        guard.policy.selected = terms.and_then(|terms| selected(&seen, &findings, terms));
        let plan = plan_of(&findings, &seen, &guard);
        plan.targets.iter().map(|it| it.leader).collect::<Vec<_>>()
    };
    let any = FindingSelector::default();
    assert_eq!(leaders(&any, None), [80, 70], "most memory first");
    let owned = format!("user={OWNER}");
    let limited: [(&str, &[u32]); 5] = [
        ("gpu:1", &[80]),
        ("gpu:0,1", &[80, 70]),
        ("user=ann", &[70]),
        (&owned, &[80, 70]),
        ("mem>2GiB", &[80]),
    ];
    for (terms, expected) in limited {
        assert_eq!(leaders(&any, Some(terms)), expected, "{terms}");
    }
    let first = FindingSelector { pids: vec![70], ..asking(&[Kind::Idle, Kind::Orphan], &[]) };
    let asked: [(FindingSelector, &[u32]); 3] =
        [(asking(&[Kind::Idle], &[]), &[80]), (asking(&[], &["orphan"]), &[70]), (first, &[70])];
    for (selector, expected) in asked {
        assert_eq!(leaders(&selector, None), expected, "{selector:?}");
    }
}

#[test]
fn what_is_named_needs_no_finding() {
    let (_, mut seen) = alone(Kind::Idle);
    seen.processes.push(Process { gpu_files: Some(Arc::default()), ..process(90, "bash") });
    let plan = plan_of(&[], &seen, &naming(&[70, 90, 4711, 70]));
    assert_eq!(plan.targets.len(), 1);
    assert_eq!(plan.targets[0].reason, Reason::Named);
    assert_eq!(why(&plan), [&Why::NotOnGpu, &Why::NotOnGpu]);
    seen.processes[0].unresolved = Some("a stranger".into());
    let plan = plan_of(&[], &seen, &naming(&[70]));
    let protection = Protection::Unresolved;
    assert_eq!(why(&plan), [&Why::Protected { pid: 70, protection }]);
}

#[test]
fn notebooks_are_named_by_kernel_or_path() {
    let mut kernel = process(70, "python -m ipykernel_launcher -f k.json");
    kernel.jupyter = Some(Arc::new(Jupyter {
        application: Some("jupyter".into()),
        kernel_id: Some("7a1b".into()),
        notebook_path: Some("lab/Train.ipynb".into()),
        server_root: Some("/home/ann".into()),
        server_url: Some("http://127.0.0.1:8888/".into()),
        ..Jupyter::default()
    }));
    let seen = snapshot(at(0.0), &[kernel], vec![gpu(0, &[(70, GIB)], 0)]);
    let count = |name: &str| {
        let mut guard = guard();
        guard.policy.targets = Targets::named(Vec::new(), vec![name.into()]).unwrap();
        let plan = plan_of(&[], &seen, &guard);
        assert_eq!(plan.targets.len() + plan.refused.len(), 1);
        plan.targets.len()
    };
    for (name, found) in [
        ("7a1b", 1),
        ("7a1", 0),
        ("Train.ipynb", 1),
        ("lab/Train.ipynb", 1),
        ("./lab/Train.ipynb", 1),
        ("/home/ann/lab/Train.ipynb", 1),
        ("ain.ipynb", 0),
        ("/lab/Train.ipynb", 1),
        ("other/Train.ipynb", 0),
        ("", 0),
    ] {
        assert_eq!(count(name), found, "{name}");
    }
}
