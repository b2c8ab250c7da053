//! Tests which processes a plan includes or refuses.

use std::sync::Arc;

use super::*;
use crate::model::Gpu;
use crate::model::finding::Action;
use crate::model::keep::Exempt;
use crate::model::row::{CurrentUser, ProcessRow, places};
use crate::model::selector::{Selected, Selector};
use crate::model::snapshot::{Jupyter, Parent};
use crate::reclaim::policy::{FindingSelector, Signal};
use crate::reclaim::target::{Recipients, Step};
use crate::reclaim::testing::{
    OWNER, at, facts, finding, gpu, guard, guard_naming, on_gpu, plan_of, plan_with, process,
    snapshot,
};
use crate::units::GIB;

mod families;
mod forged;

fn pids(target: &Target) -> Vec<u32> {
    target.members.iter().map(|member| member.pid).collect()
}

fn reasons(plan: &Plan) -> Vec<&Why> {
    plan.refused.iter().map(|refused| &refused.why).collect()
}

fn one_process(kind: Kind) -> (Vec<Finding>, Snapshot) {
    let python = process(70, "python train.py");
    let snapshot = on_gpu(std::slice::from_ref(&python));
    (vec![finding(kind, &python)], snapshot)
}

fn selected(snapshot: &Snapshot, findings: &[Finding], text: &str) -> Option<Selected> {
    let places = places(snapshot, findings).into_iter();
    let rows: Vec<_> = places.map(|place| ProcessRow::new(snapshot, findings, place)).collect();
    let selector = Selector::parse(text).unwrap().unwrap();
    Some(selector.select(snapshot, &rows, findings.iter(), &CurrentUser::default()))
}

/// Returns the guard for a request for findings of these kinds.
fn guard_for(kinds: &[Kind]) -> Guard {
    let mut guard = guard();
    let kinds = kinds.to_vec();
    guard.policy.targets = Targets::Found(FindingSelector { kinds, ..FindingSelector::default() });
    guard
}

#[test]
fn each_kind_is_a_target_by_default_on_request_or_never() {
    for &kind in Kind::ALL {
        let (findings, snapshot) = one_process(kind);
        let usual = plan_of(&findings, &snapshot, &guard());
        let asked = plan_of(&findings, &snapshot, &guard_for(&[kind]));
        let (by_default, when_asked) = match kind {
            Kind::Idle | Kind::Orphan | Kind::Stopped => (1, 1),
            Kind::Hung | Kind::Leak | Kind::ServerIdle | Kind::Placeholder => (0, 1),
            _ => (0, 0),
        };
        assert_eq!(usual.targets.len(), by_default, "{kind}");
        assert_eq!(asked.targets.len(), when_asked, "{kind}");
        // A requested process that is not a target is refused with a reason. Without a request for its kind, only
        // some kinds are listed as refused.
        assert_eq!(asked.refused.len(), 1 - when_asked, "{kind}");
        let is_notified =
            matches!(kind, Kind::Dead | Kind::Stuck | Kind::Hung | Kind::Leak | Kind::Placeholder);
        assert_eq!(usual.refused.len(), usize::from(is_notified), "{kind}");
    }
}

#[test]
fn a_placeholder_is_a_target_only_by_its_own_kind() {
    let only_asked = Why::OnlyWhenAsked { kind: Kind::Placeholder };
    let named = process(70, "python /v/bin/keep-gpu --gpu-ids 0");
    let other = process(70, "python train.py");
    for (python, found_by_conduct) in [(&named, false), (&other, true)] {
        for kind in [Kind::Idle, Kind::Orphan, Kind::Stopped] {
            let snapshot = on_gpu(std::slice::from_ref(python));
            let mut findings = vec![finding(kind, python)];
            if found_by_conduct {
                findings.push(finding(Kind::Placeholder, python));
            }
            for guard in [guard(), guard_for(&[kind])] {
                let plan = plan_of(&findings, &snapshot, &guard);
                assert_eq!(plan.targets, [], "{kind}");
                assert!(reasons(&plan).iter().all(|why| **why == only_asked), "{plan:?}");
                assert!(!plan.refused.is_empty());
            }
            let both = guard_for(&[kind, Kind::Placeholder]);
            assert_eq!(plan_of(&findings, &snapshot, &both).targets.len(), 1, "{kind}");
        }
    }
}

#[test]
fn a_target_contains_processes_findings_and_steps() {
    let (findings, snapshot) = one_process(Kind::Idle);
    let plan = plan_of(&findings, &snapshot, &guard());
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
    assert!(json.contains(r#""step":"signal","signal":"TERM","recipients":"family""#), "{json}");
    let again: Target = serde_json::from_str(&serde_json::to_string(target).unwrap()).unwrap();
    assert_eq!(&again, target);
}

#[test]
fn a_finding_that_only_notifies_is_refused() {
    let (mut findings, snapshot) = one_process(Kind::Idle);
    findings[0].actions = vec![Action::Notify];
    let plan = plan_of(&findings, &snapshot, &guard());
    assert_eq!(reasons(&plan), [&Why::OnlyNotified]);
    findings[0].resolved_at = Some(at(0.0));
    let plan = plan_of(&findings, &snapshot, &guard());
    assert!(plan.targets.is_empty() && plan.refused.is_empty(), "the finding has ended");
}

#[test]
fn an_exemption_from_a_kind_prevents_that_kind_only() {
    for (kinds, rules, targets) in [
        (vec![Kind::Stopped], vec![], 0),
        (vec![], vec![Arc::from("stopped")], 0),
        (vec![], vec![], 0),
        (vec![Kind::Idle], vec![], 1),
    ] {
        let (findings, snapshot) = one_process(Kind::Stopped);
        let mut guard = guard();
        guard.policy.kept = vec![Exempt {
            identity: snapshot.processes[0].identity(),
            kinds,
            rules,
            reason: "a demonstration".into(),
            until: None,
        }];
        let plan = plan_of(&findings, &snapshot, &guard);
        assert_eq!((plan.targets.len(), plan.refused.len()), (targets, 1 - targets));
    }
}

#[test]
fn a_reused_pid_is_refused() {
    let (findings, mut snapshot) = one_process(Kind::Idle);
    snapshot.processes[0].start_ticks = Some(1);
    assert_eq!(reasons(&plan_of(&findings, &snapshot, &guard())), [&Why::Gone]);
    // The snapshot is outdated: /proc shows that another process has the pid now.
    let (findings, snapshot) = one_process(Kind::Idle);
    let mut now = facts(&snapshot);
    now.get_mut(&70).unwrap().start_ticks = 1;
    let plan = plan_with(&findings, &snapshot, &[], &now, &guard());
    let protection = Protection::Replaced;
    assert_eq!(reasons(&plan), [&Why::Protected { pid: 70, protection }]);
    // Without facts from /proc, no process is a target.
    let plan = plan_with(&findings, &snapshot, &[], &BTreeMap::new(), &guard());
    assert!(plan.targets.is_empty() && plan.refused.len() == 1);
}

#[test]
fn the_request_selects_the_targets() {
    let first = process(70, "python train.py");
    let mut second = process(80, "python other.py");
    second.user = Some("bob".into());
    let gpus = vec![gpu(0, &[(70, GIB)], 0), gpu(1, &[(80, 4 * GIB)], 0)];
    let snapshot = snapshot(at(0.0), &[first.clone(), second.clone()], gpus);
    let mut on_other = finding(Kind::Idle, &second);
    on_other.gpus[0].index = 1;
    on_other.duration_seconds = 60.0;
    let findings = [finding(Kind::Orphan, &first), on_other];
    let leaders = |targets: Targets, terms: Option<&str>| {
        let mut guard = guard();
        guard.policy.targets = targets;
        guard.policy.selected = terms.and_then(|terms| selected(&snapshot, &findings, terms));
        let plan = plan_of(&findings, &snapshot, &guard);
        plan.targets.iter().map(|target| target.leader).collect::<Vec<_>>()
    };
    assert_eq!(leaders(Targets::default(), None), [80, 70], "most memory first");
    let both = || Targets::named(vec![70, 80], Vec::new()).unwrap();
    let owned = format!("user={OWNER}");
    let limited: [(&str, &[u32]); 5] = [
        ("gpu:1", &[80]),
        ("gpu:0,1", &[80, 70]),
        ("user=ann", &[70]),
        (&owned, &[80, 70]),
        ("mem>2GiB", &[80]),
    ];
    for (terms, expected) in limited {
        assert_eq!(leaders(Targets::default(), Some(terms)), expected, "{terms}");
        assert_eq!(leaders(both(), Some(terms)), expected, "named, {terms}");
    }
    let any = FindingSelector::default;
    let kinds = vec![Kind::Idle, Kind::Orphan];
    let asked: [(FindingSelector, &[u32]); 3] = [
        (FindingSelector { kinds: vec![Kind::Idle], ..any() }, &[80]),
        (FindingSelector { rules: vec!["orphan".into()], ..any() }, &[70]),
        (FindingSelector { pids: vec![70], kinds, ..any() }, &[70]),
    ];
    for (selector, expected) in asked {
        assert_eq!(leaders(Targets::Found(selector.clone()), None), expected, "{selector:?}");
    }
}

#[test]
fn a_named_process_needs_no_finding() {
    let (_, mut snapshot) = one_process(Kind::Idle);
    snapshot.processes.push(Process { gpu_files: Some(Arc::default()), ..process(90, "bash") });
    let plan = plan_of(&[], &snapshot, &guard_naming(&[70, 90, 4711, 70]));
    assert_eq!(plan.targets.len(), 1);
    assert_eq!(plan.targets[0].reason, Reason::Named);
    assert_eq!(reasons(&plan), [&Why::NotOnGpu, &Why::NotOnGpu]);
    snapshot.processes[0].unresolved = Some("a stranger".into());
    let plan = plan_of(&[], &snapshot, &guard_naming(&[70]));
    let protection = Protection::Unresolved;
    assert_eq!(reasons(&plan), [&Why::Protected { pid: 70, protection }]);
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
    let snapshot = on_gpu(&[kernel]);
    let count = |name: &str| {
        let mut guard = guard();
        guard.policy.targets = Targets::named(Vec::new(), vec![name.into()]).unwrap();
        let plan = plan_of(&[], &snapshot, &guard);
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
