//! `gpumem.reap/1` and `gpumem.history/1`: documents in which every field stands, and those that are
//! printed.

use gpumem::api::cli::reap::{Planned, ReapHistory, ReapReport, ReapStatus, SCHEMA};
use gpumem::api::model::{Kind, ReadError, Time, Undecided};
use gpumem::api::reclaim::ledger::{
    Actor, Deed, Failure, LedgerProcess, LedgerSummary, PastAct, PastDeed,
};
use gpumem::api::reclaim::{
    Because, KernelAtServer, MemberGpu, Outcome, Protection, Reason, Recipients, Refused, Signal,
    Step, Target, TargetProcess, Why,
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
        gpus: vec![MemberGpu {
            index: 0,
            uuid: text("GPU-1"),
            used_bytes: Some(1),
        }],
        is_listed: true,
        process_group: Some(7),
        session: Some(7),
    }
}

fn target() -> Target {
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
            Step::Advise {
                command: "scancel 1".into(),
            },
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
        Protection::KeptByConfiguration {
            why: "x".into(),
            until,
        },
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
fn outcomes() -> Vec<Outcome> {
    let protected = protections()
        .into_iter()
        .map(|why| Outcome::Protected { why });
    protected
        .chain([
            Outcome::Freed { bytes: 1, ms: 2 },
            Outcome::ExitedNotFreed { holders: vec![8] },
            Outcome::Respawned { pid: 9, bytes: 7 },
            Outcome::AlreadyGone,
            Outcome::IdentityChanged,
            Outcome::RuleNoLongerTrue,
            Outcome::NotPermitted,
            Outcome::StuckInDriver {
                wchan: "uvm".into(),
            },
            Outcome::StillAlive,
            Outcome::OtherNamespace,
        ])
        .collect()
}

/// A report in which nothing is unknown.
pub fn report() -> Value {
    let kind = Kind::Idle;
    let protected = protections().into_iter();
    let protected = protected.map(|protection| Why::Protected { pid: 7, protection });
    let whys = [
        Why::NeverTaken { kind },
        Why::OnlyWhenAsked { kind },
        Why::OnlyNotified,
        Why::Family { pids: vec![8] },
        Why::Rank {
            launcher: 9,
            program: "torchrun".into(),
            pids: vec![8],
        },
        Why::Unread { gpu: 1 },
        Why::NotOnGpu,
        Why::Gone,
        Why::NoProcess,
        Why::NotFound { name: "k".into() },
    ];
    let report = ReapReport {
        schema: SCHEMA,
        time: Some(Time::default()),
        is_replay: true,
        status: ReapStatus::Incomplete,
        expected_bytes: Some(1),
        freed_bytes: Some(1),
        targets: outcomes()
            .into_iter()
            .map(|outcome| Planned {
                target: target(),
                outcome: Some(outcome),
            })
            .collect(),
        refused: whys
            .into_iter()
            .chain(protected)
            .map(|why| Refused {
                pid: Some(7),
                user: text("ann"),
                name: text("python"),
                finding: text("x"),
                kind: Some(kind),
                why,
            })
            .collect(),
        undecided: vec![Undecided {
            rule: "idle".into(),
            pid: Some(7),
            gpu: Some(0),
            reason: "no history".to_owned(),
        }],
        errors: vec![ReadError {
            gpu: Some(0),
            call: "reap".into(),
            error: "lost".into(),
        }],
    };
    serde_json::to_value(report).unwrap()
}

/// A history in which nothing is unknown.
pub fn history() -> Value {
    let (pid, start_ticks) = (7, 1);
    let deeds = [
        Deed::Signal {
            signals: vec![Signal::Term, Signal::Cont],
            processes: vec![LedgerProcess { pid, start_ticks }],
        },
        Deed::ShutKernel {
            kernel_id: "k".into(),
        },
        Deed::TerminateClient { pids: vec![pid] },
    ];
    let failure = Failure {
        pid: Some(pid),
        error: "gone".to_owned(),
    };
    let deeds = deeds.into_iter().map(|deed| PastDeed {
        time: Time::default(),
        deed,
        failures: Some(vec![failure.clone()]),
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
    let past = LedgerSummary {
        acts: acts.collect(),
        unread_lines: 0,
        is_cut: false,
    };
    serde_json::to_value(ReapHistory::new("/var/lib/gpumem/reap.jsonl".into(), past)).unwrap()
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
        (
            &reap,
            &report,
            "/targets/0/steps/2/signal",
            json!("SIGTERM"),
        ),
        (&reap, &report, "/targets/0/steps/0/step", json!("ask")),
        (&reap, &report, "/targets/0/outcome/outcome", json!("ok")),
        (&reap, &report, "/targets/0/outcome/why/reason", json!("x")),
        (&reap, &report, "/refused/0/why/why", json!("because")),
        (&reap, &report, "/refused/0/kind", json!("lazy")),
        (&reap, &report, "/errors/0", json!("it failed")),
        (&histories, &history, "/acts/0/time", json!("yesterday")),
        (&histories, &history, "/acts/0/deeds/0/deed", json!("kill")),
        (
            &histories,
            &history,
            "/acts/0/deeds/0/failures/0",
            json!({}),
        ),
    ] {
        valid(validator, whole);
        let mut broken = whole.clone();
        *broken.pointer_mut(pointer).unwrap() = wrong.clone();
        assert!(!validator.is_valid(&broken), "{pointer} = {wrong}");
    }
}
