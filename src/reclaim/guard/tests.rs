//! Tests the reasons for protecting a process, and that an ordinary process is not protected.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::*;
use crate::model::keep::VARIABLE;
use crate::model::snapshot::LastKnown;
use crate::model::{Gpu, GpuProcess, Identity, Start};
use crate::reclaim::testing::{OWNER, at, facts, guard, on_gpu, process, snapshot};
use crate::units::Span;

fn ordinary() -> Guarded {
    let python = process(70, "python train.py");
    facts(&snapshot(at(0.0), &[python], Vec::new()))[&70].clone()
}

fn by_facts(guard: &Guard, pid: u32, facts: &Guarded) -> Option<Protection> {
    guard.by_facts(Call::Rule, pid, Some(facts), None)
}

#[test]
fn an_ordinary_own_process_is_not_protected() {
    assert_eq!(by_facts(&guard(), 70, &ordinary()), None);
    let python = process(70, "python train.py");
    let snapshot = on_gpu(std::slice::from_ref(&python));
    assert_eq!(guard().by_snapshot(Call::Rule, &python, &snapshot), None);
}

#[test]
fn init_and_gpumems_ancestors_are_protected_by_pid() {
    for (pid, protection) in [
        (0, Protection::Init),
        (1, Protection::Init),
        (2, Protection::Init),
        (900, Protection::Ancestor),
        (850, Protection::Ancestor),
    ] {
        for call in [Call::Rule, Call::Named] {
            let found = guard().by_facts(call, pid, Some(&ordinary()), None);
            assert_eq!(found.as_ref(), Some(&protection), "{pid}");
        }
    }
    let mut detached = guard();
    detached.ourselves.ancestors.clear();
    let found = by_facts(&detached, 800, &ordinary());
    assert_eq!(found, Some(Protection::Ancestor));
}

#[test]
fn programs_are_matched_by_file_and_whole_name() {
    let with = |executable: Option<&str>, comm: &str| Guarded {
        executable: executable.map(Arc::from),
        comm: Some(comm.into()),
        ..ordinary()
    };
    let name = |facts: &Guarded| match by_facts(&guard(), 70, facts) {
        Some(Protection::Kept { kept_by: KeptBy::Program { name } }) => Some(name.to_string()),
        None => None,
        other => panic!("{other:?}"),
    };
    for (executable, comm, protected) in [
        ("/usr/lib/xorg/Xorg", "python", Some("Xorg")),
        ("/usr/bin/nv-hostengine (deleted)", "x", Some("nv-hostengine")),
        ("/usr/bin/tmux", "tmux: server", Some("tmux")),
        // A process can choose its comm, so the name of the program file takes precedence.
        ("/usr/bin/python3.11", "sshd", None),
        // A program whose name merely contains a protected name is not protected.
        ("/home/ann/Xorg-trainer", "x", None),
        ("/home/ann/systemd/train", "x", None),
    ] {
        let facts = with(Some(executable), comm);
        assert_eq!(name(&facts).as_deref(), protected, "{executable}");
    }
    // If the program file cannot be read, gpumem uses the comm, which the kernel truncates.
    assert_eq!(name(&with(None, "nvidia-persiste")).as_deref(), Some("nvidia-persiste"));
    assert_eq!(name(&with(None, "tmux: server")).as_deref(), Some("tmux: server"));

    // A program that does not belong to root is not protected by its name, unless the configuration lists the name.
    for executable in ["/home/ann/Xorg", "/tmp/sshd", "/home/ann/bin/systemd-train"] {
        let with_owner =
            |is_roots| Guarded { executable_is_roots: is_roots, ..with(Some(executable), "x") };
        assert_eq!(name(&with_owner(Some(false))), None, "{executable}");
        assert!(
            name(&with_owner(Some(true))).is_some() && name(&with_owner(None)).is_some(),
            "{executable}"
        );
    }
    let mut strict = guard();
    strict.policy.never = vec!["python3.11".into()];
    let found = by_facts(&strict, 70, &ordinary());
    assert!(
        matches!(found, Some(Protection::Kept { kept_by: KeptBy::Program { .. } })),
        "{found:?}"
    );
}

#[test]
fn an_unknown_fact_protects() {
    let whole = ordinary();
    let is_unknown = |found: Option<Protection>| matches!(found, Some(Protection::Unknown { .. }));
    assert!(is_unknown(guard().by_facts(Call::Named, 70, None, None)));
    for facts in
        [Guarded { oom_score_adj: None, ..whole.clone() }, Guarded { uid: None, ..whole.clone() }]
    {
        assert!(is_unknown(by_facts(&guard(), 70, &facts)), "{facts:?}");
    }
    let nameless = Guarded { executable: None, ..whole };
    assert!(is_unknown(by_facts(&guard(), 70, &nameless)));
    let executable = Some("/usr/bin/python3.11");
    assert_eq!(guard().by_facts(Call::Rule, 70, Some(&nameless), executable), None);
    assert_eq!(guard().by_facts(Call::Named, 70, Some(&nameless), None), None);
}

#[test]
fn kernel_threads_and_oom_exempt_processes_are_protected() {
    let kernel = Guarded { is_kernel_thread: true, ..ordinary() };
    assert_eq!(by_facts(&guard(), 70, &kernel), Some(Protection::KernelThread));
    let exempt = Guarded { oom_score_adj: Some(-1000), ..ordinary() };
    assert_eq!(by_facts(&guard(), 70, &exempt), Some(Protection::OomProtected));
    let thread = Guarded { is_process: Some(false), ..ordinary() };
    assert_eq!(by_facts(&guard(), 70, &thread), Some(Protection::Replaced));
}

#[test]
fn other_users_processes_need_request_and_permission() {
    let theirs = Guarded { uid: Some(OWNER + 1), ..ordinary() };
    let mut guard = guard();
    let uid = OWNER + 1;
    assert_eq!(by_facts(&guard, 70, &theirs), Some(Protection::OtherUser { uid }));
    guard.policy.all_users = true;
    assert_eq!(by_facts(&guard, 70, &theirs), Some(Protection::NotPermitted { uid }));
    guard.ourselves.may_signal_others = true;
    assert_eq!(by_facts(&guard, 70, &theirs), None);
    guard.policy.all_users = false;
    guard.ourselves.uid = 0;
    assert!(by_facts(&guard, 70, &theirs).is_some(), "not even by root");
}

#[test]
fn a_process_without_certain_identity_is_protected() {
    let mut python = process(70, "python train.py");
    python.unresolved = Some("a stranger may have its number".into());
    let snapshot = snapshot(at(0.0), &[], Vec::new());
    for call in [Call::Rule, Call::Named] {
        let found = guard().by_snapshot(call, &python, &snapshot);
        assert_eq!(found, Some(Protection::Unresolved));
    }
    python.unresolved = None;
    // The last known facts include the owner, but the process has no certain identity.
    python.last_known = Some(Arc::new(LastKnown {
        start_ticks: python.start_ticks,
        user: python.user.clone(),
        ..LastKnown::default()
    }));
    python.start_ticks = None;
    let found = guard().by_snapshot(Call::Named, &python, &snapshot);
    assert_eq!(found, Some(Protection::Unresolved));
}

#[test]
fn in_a_namespace_only_named_gpu_holders_are_signalled() {
    let python = process(70, "python train.py");
    let other = Some(Protection::OtherNamespace);
    for namespace in [Some(PidNamespace::Container), None] {
        let mut snapshot = snapshot(at(0.0), &[], Vec::new());
        snapshot.host.pid_namespace = namespace;
        assert_eq!(guard().by_snapshot(Call::Rule, &python, &snapshot), other);
        assert_eq!(guard().by_snapshot(Call::Named, &python, &snapshot), None);
        for files in [None, Some(vec![]), Some(vec![Arc::from("/dev/nvidiactl")])] {
            let unproven = Process { gpu_files: files.map(Arc::from), ..python.clone() };
            assert_eq!(guard().by_snapshot(Call::Named, &unproven, &snapshot), other);
        }
    }
    let mut inside = guard();
    inside.ourselves.pid_namespace = Some(PidNamespace::Container);
    let snapshot = snapshot(at(0.0), &[], Vec::new());
    assert_eq!(inside.by_snapshot(Call::Rule, &python, &snapshot), other);
}

#[test]
fn a_graphics_process_is_protected() {
    let python = process(70, "game");
    let row = |kind| GpuProcess { pid: 70, kind, ..GpuProcess::default() };
    let on = |kinds: &[ProcessType]| {
        let gpu =
            Gpu { processes: Some(kinds.iter().copied().map(row).collect()), ..Gpu::default() };
        snapshot(at(0.0), &[], vec![gpu])
    };
    let mut guard = guard();
    let draws = on(&[ProcessType::Graphics]);
    assert_eq!(guard.by_snapshot(Call::Named, &python, &draws), Some(Protection::Graphics));
    assert!(guard.by_snapshot(Call::Rule, &python, &on(&[ProcessType::Other])).is_some());
    for kinds in [
        &[ProcessType::ComputeGraphics][..],
        &[ProcessType::Graphics, ProcessType::Compute],
        &[ProcessType::Mps],
    ] {
        assert_eq!(guard.by_snapshot(Call::Rule, &python, &on(kinds)), None);
    }
    guard.policy.graphics = true;
    assert_eq!(guard.by_snapshot(Call::Rule, &python, &draws), None);
}

#[test]
fn a_server_is_protected_from_rules() {
    let server = process(70, "vllm serve model");
    let snapshot = snapshot(at(0.0), &[], Vec::new());
    let mut guard = guard();
    assert_eq!(
        guard.by_snapshot(Call::Rule, &server, &snapshot),
        Some(Protection::Kept { kept_by: KeptBy::Server })
    );
    assert_eq!(guard.by_snapshot(Call::Named, &server, &snapshot), None);
    guard.policy.servers = true;
    assert_eq!(guard.by_snapshot(Call::Rule, &server, &snapshot), None);
}

#[test]
fn the_owners_exemption_protects_until_it_ends() {
    let keeping = |value: &str, uid| Process {
        uid: Some(uid),
        environment: Some(Arc::new(BTreeMap::from([(VARIABLE.into(), value.into())]))),
        ..process(70, "python train.py")
    };
    let snapshot = snapshot(at(0.0), &[], Vec::new());
    let later = at(60.0).to_string();
    let kept = |guard: &Guard, call, value: &str, uid| {
        let found = guard.by_snapshot(call, &keeping(value, uid), &snapshot);
        matches!(found, Some(Protection::Kept { kept_by: KeptBy::Owner { .. } }))
    };
    let mut guard = guard();
    let mut limited = guard.clone();
    for call in [Call::Rule, Call::Named] {
        assert!(kept(&guard, call, &later, OWNER));
        assert!(!kept(&guard, call, &at(-60.0).to_string(), OWNER), "expired");
        assert!(kept(&guard, call, &later, OWNER + 1));
    }
    limited.policy.longest_keep = Some(Span::from_seconds(3600.0));
    // The time limit on `GPUMEM_KEEP` also ends the protection of a process with an unreadable environment.
    for (start, is_protected) in [(Some(at(-3700.0)), false), (Some(at(-60.0)), true)] {
        let process = Process { start_time: start, environment: None, ..keeping("yes", OWNER) };
        let found = limited.by_snapshot(Call::Rule, &process, &snapshot);
        assert_eq!(found.is_some(), is_protected, "{start:?}");
    }
    guard.policy.even_kept = true;
    assert!(!kept(&guard, Call::Named, &later, OWNER));
    assert!(kept(&guard, Call::Rule, &later, OWNER), "only for named processes");

    let mut unread = keeping(&later, OWNER);
    unread.environment = None;
    let found = guard.by_snapshot(Call::Rule, &unread, &snapshot);
    assert!(matches!(found, Some(Protection::Unknown { .. })), "{found:?}");
    assert_eq!(guard.by_snapshot(Call::Named, &unread, &snapshot), None);
}

#[test]
fn a_configured_exemption_protects_until_it_ends() {
    let python = process(70, "python train.py");
    let mut guard = guard();
    guard.policy.kept = vec![Exempt {
        identity: python.identity(),
        kinds: Vec::new(),
        rules: Vec::new(),
        reason: "a demonstration".into(),
        until: Some(at(60.0)),
    }];
    let found = |guard: &Guard, process: &Process, seconds| {
        guard.by_snapshot(Call::Rule, process, &snapshot(at(seconds), &[], Vec::new()))
    };
    let kept = found(&guard, &python, 0.0);
    assert!(
        matches!(kept, Some(Protection::Kept { kept_by: KeptBy::Configuration { .. } })),
        "{kept:?}"
    );
    assert_eq!(found(&guard, &python, 60.0), None, "expired");
    guard.policy.kept[0].identity = Identity { pid: 70, start: Start::Ticks(1) };
    assert_eq!(found(&guard, &python, 0.0), None, "a reused pid");
}
