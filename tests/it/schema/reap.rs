//! `gpumem.reap/1` and `gpumem.history/1`: documents in which every field stands, and those that are
//! printed.

use gpumem::api::cli::reap::{Planned, ReapHistory, ReapReport, ReapStatus, SCHEMA};
use gpumem::api::model::{Kind, ReadError, Time, Undecided};
use gpumem::api::reclaim::ledger::{
    Actor, Deed, Failure, LedgerProcess, LedgerSummary, PastAct, PastDeed,
};
use gpumem::api::reclaim::{
    AnnouncedSignal, Because, KernelAtServer, KernelRecipe, MemberGpu, Outcome, Protection,
    PythonRecipe, Reason, Recipients, Reference, Refused, ReleaseOptions, ReleaseReport,
    ReleaseWay, ServerUnload, Signal, Step, Target, TargetProcess, Why,
};
use gpumem::api::report::schema;
use serde_json::{Value, json};

use super::documents::text;
use super::{valid, validator};
use crate::support::run;

fn member() -> TargetProcess {
    TargetProcess {
        pid: 7,
        start_ticks: 1,
        uid: 0,
        user: text("root"),
        name: "python".into(),
        gpus: vec![MemberGpu { index: 0, uuid: text("GPU-1"), used_bytes: Some(1) }],
        is_listed: true,
        process_group: Some(7),
        session: Some(7),
        is_stopped: true,
    }
}

pub fn target() -> Target {
    Target {
        id: "7:1".into(),
        boot_id: text("boot"),
        reason: Reason::Found {
            findings: vec![Because {
                id: "x".into(),
                rule: "idle".into(),
                kind: Kind::Idle,
                pid: 7,
                since: Time::default(),
                message: "it idles".to_owned(),
                evidence: json!({}),
            }],
        },
        members: vec![member()],
        launcher: Some(member()),
        leader: 7,
        dead: vec![6],
        bytes: Some(1),
        steps: vec![
            Step::ShutKernel {
                kernel: KernelAtServer {
                    id: "k".into(),
                    pid: 7,
                    start_ticks: 1,
                    server_url: "http://127.0.0.1:8888/".into(),
                    server_pid: Some(5),
                    notebook: text("a.ipynb"),
                    last_activity: Some(Time::default()),
                },
                grace_seconds: 6.0,
            },
            Step::TerminateClient {
                pids: vec![7],
                pipe_directory: text("/tmp/mps"),
                grace_seconds: 2.0,
            },
            Step::Signal {
                signal: Signal::Term,
                recipients: Recipients::Leader,
                grace_seconds: 10.0,
            },
            Step::Advise { command: "scancel 1".into() },
        ],
        respawn_seconds: 6.0,
    }
}

/// Every reason for which a process is not touched.
fn protections() -> Vec<Protection> {
    let (uid, until, command) = (1, Some(Time::default()), "scancel 1".into());
    vec![
        Protection::Init,
        Protection::KernelThread,
        Protection::Ourselves,
        Protection::Ancestor,
        Protection::SessionLeader,
        Protection::Program { name: "X".into() },
        Protection::OomProtected,
        Protection::Graphics,
        Protection::OtherUser { uid },
        Protection::NotPermitted { uid },
        Protection::OtherNamespace,
        Protection::KeptByOwner { until },
        Protection::KeptByConfiguration { why: "x".into(), until },
        Protection::Server,
        Protection::Unresolved,
        Protection::Replaced,
        Protection::Unknown { what: "x".into() },
        Protection::Owned { command },
        Protection::Descendants { pids: vec![8] },
        Protection::NoPidfd,
        Protection::NotHeld { error: "x".into() },
    ]
}

/// Every way in which an act ends.
pub fn outcomes() -> Vec<Outcome> {
    let protected = protections().into_iter().map(|why| Outcome::Protected { why });
    protected
        .chain([
            Outcome::Freed { bytes: 1, ms: 2 },
            Outcome::ExitedNotFreed { holders: vec![8] },
            Outcome::Respawned { pid: 9, bytes: 7 },
            Outcome::AlreadyGone,
            Outcome::IdentityChanged,
            Outcome::RuleNoLongerTrue,
            Outcome::NotPermitted,
            Outcome::StuckInDriver { wchan: "uvm".into() },
            Outcome::StillAlive,
            Outcome::OtherNamespace,
        ])
        .collect()
}

/// What a process says of itself after a release.
fn said() -> Box<ReleaseReport> {
    Box::new(ReleaseReport {
        live_bytes: Some(1),
        cached_bytes_left: Some(1),
        why: text("pinned"),
        wake: text("curl"),
        references: vec![Reference { name: "model".into(), bytes: 1 }],
        asked: Some((Time::default(), Time::default())),
    })
}

/// Every way in which a release ends.
pub fn release_outcomes() -> Vec<Outcome> {
    let why = || "because".into();
    vec![
        Outcome::Released { bytes: 1, ms: 2, report: said() },
        Outcome::NothingToRelease { bytes: 0, report: said() },
        Outcome::Busy { why: why() },
        Outcome::NoWayIn { why: why() },
        Outcome::Refused { why: why() },
        Outcome::TimedOut { why: why() },
        Outcome::Exited,
    ]
}

/// Every way in which a process gives memory back.
fn ways() -> [ReleaseWay; 4] {
    let (pid, start_ticks) = (7, 1);
    [
        ReleaseWay::Server(ServerUnload {
            server: "vllm".into(),
            pid,
            start_ticks,
            address: "tcp:127.0.0.1:8000".into(),
            held_bytes: Some(1),
        }),
        ReleaseWay::Kernel(KernelRecipe {
            pid,
            start_ticks,
            kernel_id: text("k"),
            notebook: text("a.ipynb"),
            last_activity: Some(Time::default()),
        }),
        ReleaseWay::Python(PythonRecipe { pid, start_ticks }),
        ReleaseWay::Signal(AnnouncedSignal { pid, start_ticks, signal: Signal::Usr2 }),
    ]
}

/// A target that is asked to release memory, by every way.
pub fn release_target() -> Target {
    let steps = ways().map(|way| Step::Release {
        way,
        options: ReleaseOptions {
            collects: true,
            references: true,
            is_named: true,
            wait_ms: 1,
            pci_bus_ids: vec!["0000:01:00.0".into()],
        },
        grace_seconds: 1.0,
    });
    Target { steps: steps.to_vec(), ..target() }
}

/// Everything that is refused.
pub fn refusals() -> Vec<Refused> {
    let mut all = first_report().refused;
    all.extend(release_refusals());
    all
}

/// What is refused by a release only.
fn release_refusals() -> Vec<Refused> {
    [Why::NoWayIn { ways: "none".into() }, Why::NoTarget { name: "k".into() }].map(refused).to_vec()
}

fn refused(why: Why) -> Refused {
    Refused {
        pid: Some(7),
        user: text("ann"),
        name: text("python"),
        finding: text("x"),
        kind: Some(Kind::Idle),
        why,
    }
}

/// A report in which nothing is unknown.
pub fn report() -> Value {
    let mut report = first_report();
    for outcome in release_outcomes() {
        report.targets.push(Planned { target: release_target(), outcome: Some(outcome) });
    }
    report.refused.extend(release_refusals());
    serde_json::to_value(report).unwrap()
}

/// The same with nothing that was added since the format was promised.
pub fn promised_report() -> Value {
    serde_json::to_value(first_report()).unwrap()
}

fn first_report() -> ReapReport {
    let kind = Kind::Idle;
    let protected = protections().into_iter();
    let protected = protected.map(|protection| Why::Protected { pid: 7, protection });
    let whys = [
        Why::NeverTaken { kind },
        Why::OnlyWhenAsked { kind },
        Why::OnlyNotified,
        Why::Family { pids: vec![8] },
        Why::Rank { launcher: 9, program: "torchrun".into(), pids: vec![8] },
        Why::Unread { gpu: 1 },
        Why::NotOnGpu,
        Why::Gone,
        Why::NoProcess,
        Why::NotFound { name: "k".into() },
    ];
    ReapReport {
        schema: SCHEMA,
        time: Some(Time::default()),
        is_replay: true,
        status: ReapStatus::Incomplete,
        expected_bytes: Some(1),
        freed_bytes: Some(1),
        targets: outcomes()
            .into_iter()
            .map(|outcome| Planned { target: target(), outcome: Some(outcome) })
            .collect(),
        refused: whys.into_iter().chain(protected).map(refused).collect(),
        undecided: vec![Undecided {
            rule: "idle".into(),
            pid: Some(7),
            gpu: Some(0),
            reason: "no history".to_owned(),
        }],
        errors: vec![ReadError { gpu: Some(0), call: "reap".into(), error: "lost".into() }],
    }
}

/// A history in which nothing is unknown.
pub fn history() -> Value {
    let mut history = first_history();
    let releases = ways().map(|way| PastDeed {
        time: Time::default(),
        deed: Deed::Release { way },
        failures: Some(Vec::new()),
        ended: Some(Time::default()),
    });
    let whole = history.acts[0].clone();
    let acts = release_outcomes().into_iter().map(|outcome| PastAct {
        target: Some(Box::new(release_target())),
        deeds: releases.to_vec(),
        outcome: Some(outcome),
        ..whole.clone()
    });
    history.acts.extend(acts);
    serde_json::to_value(history).unwrap()
}

/// The same with nothing that was added since the format was promised.
pub fn promised_history() -> Value {
    serde_json::to_value(first_history()).unwrap()
}

fn first_history() -> ReapHistory {
    let (pid, start_ticks) = (7, 1);
    let deeds = [
        Deed::Signal {
            signals: vec![Signal::Term, Signal::Cont],
            processes: vec![LedgerProcess { pid, start_ticks }],
        },
        Deed::ShutKernel { kernel_id: "k".into() },
        Deed::TerminateClient { pids: vec![pid] },
    ];
    let failure = Failure { pid: Some(pid), error: "gone".to_owned() };
    let deeds = deeds.into_iter().map(|deed| PastDeed {
        time: Time::default(),
        deed,
        failures: Some(vec![failure.clone()]),
        ended: None,
    });
    let deeds: Vec<PastDeed> = deeds.collect();
    let acts = outcomes().into_iter().map(|outcome| PastAct {
        id: "x".into(),
        time: Time::default(),
        actor: Some(Actor {
            pid: 1,
            uid: 0,
            user: text("root"),
            sudo_user: text("ann"),
            is_unattended: true,
        }),
        target: Some(Box::new(target())),
        deeds: deeds.clone(),
        outcome: Some(outcome),
    });
    let past = LedgerSummary { acts: acts.collect(), unread_lines: 0, is_cut: false };
    ReapHistory::new("/var/lib/gpumem/reap.jsonl".into(), past)
}

#[test]
fn every_plan_is_valid() {
    let validator = validator(schema::REAP);
    valid(&validator, &report());
    for more in [
        &["--demo"][..],
        &["--demo", "--kind", "dead,stuck,pressure,unattributed,leak"],
        &["--demo", "--pid", "1,412301", "--notebook", "no.ipynb"],
        &["--demo", "--rule", "idel"],
        &["--demo", "--knid", "idle"],
        &["--nvml-library", "/nonexistent/libnvidia-ml.so.1"],
    ] {
        let output = run(&[&["reap", "--json"], more].concat());
        valid(&validator, &output.json());
    }
}

#[test]
fn every_history_is_valid() {
    let validator = validator(schema::HISTORY);
    valid(&validator, &history());
    valid(&validator, &run(&["reap", "--history", "--json"]).json());
}

#[test]
fn what_is_broken_is_no_plan() {
    let (reap, histories) = (validator(schema::REAP), validator(schema::HISTORY));
    let (report, history) = (report(), history());
    for (validator, whole, pointer, wrong) in [
        (&reap, &report, "/schema", json!("gpumem.reap/2")),
        (&reap, &report, "/status", json!("fine")),
        (&reap, &report, "/freed_bytes", json!("1 GiB")),
        (&reap, &report, "/targets/0/leader", json!(null)),
        (&reap, &report, "/targets/0/steps/2/signal", json!("SIGTERM")),
        (&reap, &report, "/targets/0/steps/0/step", json!("ask")),
        (&reap, &report, "/targets/0/outcome/outcome", json!("ok")),
        (&reap, &report, "/targets/0/outcome/why/reason", json!("x")),
        (&reap, &report, "/refused/0/why/why", json!("because")),
        (&reap, &report, "/refused/0/kind", json!("lazy")),
        (&reap, &report, "/errors/0", json!("it failed")),
        (&histories, &history, "/acts/0/time", json!("yesterday")),
        (&histories, &history, "/acts/0/deeds/0/deed", json!("kill")),
        (&histories, &history, "/acts/0/deeds/0/failures/0", json!({})),
    ] {
        valid(validator, whole);
        let mut broken = whole.clone();
        *broken.pointer_mut(pointer).unwrap() = wrong.clone();
        assert!(!validator.is_valid(&broken), "{pointer} = {wrong}");
    }
}
