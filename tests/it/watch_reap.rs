//! `gpumem watch` kills real processes, on a real terminal and the mock driver.

use std::time::Duration;

use serde_json::json;

use crate::machine::GIB;
use crate::pty::Terminal;
use crate::reap::{Holder, IGNORES, OBEYS, Stage, idle_holder, scene};
use crate::release::start_announcing;
use crate::support;

/// Starts the screen, and selects the only process.
fn open_screen(stage: &Stage, holder: &Holder) -> Terminal {
    let command = stage.command(&["watch", "--no-store", "--interval", "250ms"]);
    let mut terminal = Terminal::start(&[], &command, 30, 120);
    terminal.wait_for("process", |text| text.contains(&holder.pid.to_string()));
    terminal.press("j");
    let title = format!("process {} on GPU 0", holder.pid);
    terminal.wait_for("selection", |text| text.contains(&title));
    terminal
}

/// Starts the screen, and opens the plan for the only process.
fn open_plan(stage: &Stage, holder: &Holder) -> Terminal {
    let mut terminal = open_screen(stage, holder);
    terminal.press("x");
    terminal.wait_for("plan", |text| text.contains("y kill it"));
    terminal
}

fn quit(terminal: &mut Terminal) {
    terminal.press("\u{3}");
    assert_eq!(terminal.wait_for_exit().code(), Some(0));
}

#[test]
fn a_confirmed_plan_kills_and_shows_the_freed_memory() {
    let stage = or_skip!(Stage::new());
    let holder = stage.holder(OBEYS);
    let mut terminal = open_plan(&stage, &holder);
    stage.release(&holder, Duration::ZERO);
    terminal.press("y");
    terminal.wait_for("countdown", |text| text.contains("nothing was sent yet"));
    assert!(holder.is_alive() && stage.lines().is_empty());
    terminal.wait_for("outcome", |text| text.contains("done: freed 2.0 GiB"));
    assert!(!holder.is_alive());
    assert_eq!(stage.events(), ["begun", "intended", "done", "ended"]);
    let lines = stage.lines();
    assert_eq!(lines[0]["target"]["members"][0]["pid"], holder.pid);
    assert_eq!(lines[0]["actor"]["uid"], rustix::process::geteuid().as_raw());
    assert_eq!(lines[3]["bytes"], json!(2 * GIB));
    quit(&mut terminal);
}

#[test]
fn a_confirmed_release_frees_memory_and_the_process_lives() {
    let stage = or_skip!(Stage::new());
    let holder = or_skip!(start_announcing(&stage, "os.replace(after, scene)"));
    let mut terminal = open_screen(&stage, &holder);
    terminal.press("R");
    terminal.wait_for("plan", |text| text.contains("y ask it"));
    terminal.press("y");
    terminal.wait_for("countdown", |text| text.contains("nothing was sent yet"));
    assert!(stage.lines().is_empty());
    terminal.wait_for("outcome", |text| text.contains("done: released 1.5 GiB"));
    assert!(holder.is_alive());
    assert_eq!(stage.events(), ["begun", "intended", "done", "ended"]);
    assert_eq!(stage.lines()[1]["deed"], "release");
    // gpumem refuses a second request within a minute.
    terminal.press("\u{1b}");
    terminal.press("R");
    terminal.wait_for("plan", |text| text.contains("y ask it"));
    terminal.press("yy");
    let text = terminal.wait_for("refusal", |text| text.contains("try again in "));
    assert!(!text.contains("done: released 1.5"), "{text}");
    quit(&mut terminal);
}

#[test]
fn an_undone_or_closed_plan_kills_nothing() {
    let stage = or_skip!(Stage::new());
    let holder = stage.holder(OBEYS);
    let mut terminal = open_plan(&stage, &holder);
    terminal.press("y");
    terminal.wait_for("countdown", |text| text.contains("nothing was sent yet"));
    terminal.press("u");
    terminal.wait_for("undo", |text| text.contains("undone: nothing was sent"));
    terminal.press("\r");
    terminal.wait_for("table", |text| !text.contains("should free"));
    terminal.press("x");
    terminal.wait_for("plan", |text| text.contains("y kill it"));
    // gpumem recognises Escape only if no other byte follows.
    terminal.press("\u{1b}");
    terminal.wait_for("table", |text| !text.contains("should free"));
    quit(&mut terminal);
    assert!(holder.is_alive() && stage.lines().is_empty());
}

#[test]
fn quitting_during_the_grace_shows_what_was_sent() {
    let stage = or_skip!(Stage::new());
    let holder = stage.holder(IGNORES);
    let mut terminal = open_plan(&stage, &holder);
    terminal.press("y");
    terminal.wait_for("grace", |text| text.contains("waiting for its memory, "));
    quit(&mut terminal);
    let pid = holder.pid;
    let summary = format!("left at {pid}: nothing more is sent; it was sent: SIGTERM to {pid}");
    terminal.wait_for("summary", |text| text.contains(&summary));
    assert!(holder.is_alive());
    assert_eq!(stage.events(), ["begun", "intended", "done"]);
}

#[test]
fn once_sends_nothing_for_any_keys() {
    let stage = or_skip!(Stage::new());
    let holder = stage.holder(OBEYS);
    for keys in ["jxyy", "jxyyyyyy", "jxy<down>sy"] {
        let arguments = ["watch", "--no-store", "--once", "--keys", keys];
        let output = support::finish(&mut stage.command(&arguments)).exits(0);
        let title = format!("kill {}", holder.pid);
        assert!(output.stdout.contains(&title), "{output:?}");
    }
    assert!(holder.is_alive() && !stage.machine.path("state").exists());
}

#[test]
fn a_finding_that_ended_before_the_confirmation_is_left_alone() {
    let stage = or_skip!(Stage::new());
    let holder = or_skip!(idle_holder(&stage, OBEYS));
    let mut terminal = open_screen(&stage, &holder);
    terminal.wait_for("finding", |text| text.contains("without using it"));
    terminal.press("X");
    terminal.wait_for("plan", |text| text.contains("kill what the rules found"));
    terminal.wait_for("advice", |text| text.contains("> kill it"));
    stage.machine.play(&scene(holder.pid, 80));
    // The panel behind the plan shows the current findings. Its advice disappears with the finding.
    terminal.wait_for("work", |text| !text.contains("> kill it"));
    terminal.press("y");
    terminal.wait_for("outcome", |text| text.contains("done: freed 0 B; 0 of 1 succeeded"));
    assert!(holder.is_alive());
    assert_eq!(stage.events(), ["begun", "ended"]);
    quit(&mut terminal);
}
