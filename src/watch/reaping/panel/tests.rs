//! Tests of the panel with hand-made plans.

use super::*;
use crate::reclaim::Outcome;
use crate::reclaim::worker::{Proposal, ReclaimProgress, TargetStage};
use crate::units::GIB;
use crate::watch::sample;
use crate::watch::state::Event;
use crate::watch::testing::{keys, screen, show_sample, tick};
use crate::watch::update::update;
use crate::watch::view::tests::check;

/// A plan as `gpumem reap` prints it.
const LINES: &[&str] = &[
    "4001 ann: 6.0 GiB on GPU 0: python -m ipykernel_launcher -f kernel-3f.json",
    "    idle since 2026-11-21T09:34:15.123Z: notebook thesis/fine-tune.ipynb (4001) has held 6.0 GiB on GPU 0 without using it for 29m 50s",
    "    1. ask the notebook server http://127.0.0.1:8888/ to shut kernel 4b1f6f0e-2a57-4c3d-9be4-d08a51c7f2e6 down; wait 6s",
    "    2. SIGTERM to 4001; wait 10s",
    "    3. SIGKILL to 4001; wait 5s",
    "",
    "4000 bob: 3.0 GiB on GPU 0: 日本語のとても長い名前のプログラム.py \\e[2J",
    "    named",
    "    1. SIGTERM to 4000; wait 10s",
    "",
    "skipped: 4100 hana (vllm serve): it is an inference server; select it and press x to kill it \
    by name",
    "undecided: leak: decided in 9m 55s (needs 10m of history)",
    "error: GPU 1: nvmlDeviceGetMemoryInfo_v2: GPU is lost",
    "will kill 2 processes; should free 9.0 GiB; 1 skipped",
];

fn app() -> App {
    let mut app = screen(80, 24);
    show_sample(&mut app, 1, sample::snapshot(2, 3));
    app
}

fn plan(app: &mut App) {
    keys(app, "X");
    let targets = vec![sample::target(4001), sample::target(4000)];
    let proposal = Proposal {
        lines: LINES.iter().map(|&line| line.to_owned()).collect(),
        ..sample::proposal(targets)
    };
    let number = 1;
    let plan = Ok(proposal);
    update(app, Event::Reclaim(ReclaimProgress::Planned { number, plan }));
    update(app, Event::Drawn);
}

#[test]
fn a_plan_its_countdown_and_its_batch_are_drawn() {
    let mut app = app();
    plan(&mut app);
    check("plan-80x24", &app);
    keys(&mut app, "y");
    tick(&mut app, 2_000);
    check("plan-countdown-80x24", &app);
    tick(&mut app, 5_000);
    let number = 1;
    let set_stage = |app: &mut App, place, stage| {
        let progress = ReclaimProgress::Target { number, place, stage };
        update(app, Event::Reclaim(progress));
    };
    let outcome = Outcome::Freed { bytes: 6 * GIB, ms: 2300 };
    let words = format!("4001: {outcome}");
    set_stage(&mut app, 0, TargetStage::Ended { outcome, words });
    let words = "SIGTERM to 4000".to_owned();
    let sent = ReclaimProgress::Sent { number, place: 1, words };
    update(&mut app, Event::Reclaim(sent));
    let until = sample::snapshot(0, 0).time.plus_seconds(12.0);
    set_stage(&mut app, 1, TargetStage::Waiting { until, saving: None });
    check("plan-ending-80x24", &app);
}

#[test]
fn hidden_marks_and_the_age_of_a_plan_are_noted() {
    let title = |app: &App| scope_text(app, app.reaping.dialog.as_ref().unwrap());
    let mut app = app();
    keys(&mut app, "  x");
    assert_eq!(title(&app), "2 marked processes");
    keys(&mut app, "<Esc>");
    app.choose(|choice| choice.only_findings = true);
    keys(&mut app, "x");
    assert_eq!(title(&app), "2 marked processes, 2 not in the table");

    let number = 2;
    let plan = Ok(sample::proposal(vec![sample::target(4001)]));
    update(&mut app, Event::Reclaim(ReclaimProgress::Planned { number, plan }));
    let notes = |app: &App| of_plan(app, app.reaping.dialog.as_ref().unwrap()).note;
    assert_eq!(notes(&app).len(), 1, "the summary");
    tick(&mut app, 121_000);
    let (note, _) = &notes(&app)[1];
    assert_eq!(note, "made 2m 00s ago; r refreshes it");
}
