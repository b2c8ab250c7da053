//! Ending real processes from `gpumem watch`, on a real terminal and the mock driver.

use std::fs::File;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use serde_json::json;

use crate::machine::GIB;
use crate::pty::Terminal;
use crate::reap::{Holder, IGNORES, OBEYS, Stage, idle, scene};
use crate::release::announcing;
use crate::support;

/// The screen, with the only process selected.
fn watching(stage: &Stage, holder: &Holder) -> Terminal {
    let command = stage.command(&["watch", "--no-store", "--interval", "250ms"]);
    let mut terminal = Terminal::start(&[], &command, 30, 120);
    terminal.wait_for("process", |text| text.contains(&holder.pid.to_string()));
    terminal.press("j");
    let title = format!("process {} on GPU 0", holder.pid);
    terminal.wait_for("selection", |text| text.contains(&title));
    terminal
}

/// The screen, with the plan for that process.
fn planned(stage: &Stage, holder: &Holder) -> Terminal {
    let mut terminal = watching(stage, holder);
    terminal.press("x");
    let text = terminal.wait_for("plan", |text| text.contains("y kill it"));
    for words in [
        format!("kill {}", holder.pid),
        format!("SIGTERM to {}; wait 30s", holder.pid),
        "will kill 1 process; should free 2.0 GiB".to_owned(),
    ] {
        assert!(text.contains(&words), "no {words}:\n{text}");
    }
    terminal
}

fn quit(terminal: &mut Terminal) {
    terminal.press("\u{3}");
    assert_eq!(terminal.end().code(), Some(0));
}

#[test]
fn a_yes_kills_it_and_the_screen_shows_what_was_freed() {
    let stage = or_skip!(Stage::new());
    let holder = stage.holder(OBEYS);
    let mut terminal = planned(&stage, &holder);
    stage.release(&holder, Duration::ZERO);
    terminal.press("y");
    terminal.wait_for("countdown", |text| text.contains("nothing was sent yet"));
    assert!(holder.is_alive() && stage.lines().is_empty());
    let text = terminal.wait_for("outcome", |text| text.contains("done: freed"));
    for words in [
        format!("done: SIGTERM to {}", holder.pid),
        format!("{}: freed 2.0 GiB in ", holder.pid),
        "done: freed 2.0 GiB".to_owned(),
    ] {
        assert!(text.contains(&words), "no {words}:\n{text}");
    }
    assert!(!holder.is_alive());
    assert_eq!(stage.events(), ["begun", "intended", "done", "ended"]);
    let lines = stage.lines();
    assert_eq!(lines[0]["target"]["members"][0]["pid"], holder.pid);
    assert_eq!(lines[0]["actor"]["uid"], rustix::process::geteuid().as_raw());
    assert_eq!(lines[3]["bytes"], json!(2 * GIB));
    quit(&mut terminal);
}

#[test]
fn a_yes_has_it_release_memory_and_it_lives() {
    let stage = or_skip!(Stage::new());
    let holder = or_skip!(announcing(&stage, "os.replace(after, scene)"));
    let mut terminal = watching(&stage, &holder);
    terminal.press("R");
    let text = terminal.wait_for("plan", |text| text.contains("y ask it"));
    for words in [
        format!("release memory of {}", holder.pid),
        format!("SIGUSR2 to {}, which releases memory upon it", holder.pid),
        "verified: ".to_owned(),
        "will ask 1 process to release memory".to_owned(),
    ] {
        assert!(text.contains(&words), "no {words}:\n{text}");
    }
    assert!(!text.contains("signal: "), "{text}");
    terminal.press("y");
    terminal.wait_for("countdown", |text| text.contains("nothing was sent yet"));
    assert!(stage.lines().is_empty());
    let text = terminal.wait_for("outcome", |text| text.contains("done: released"));
    let words = format!("{}: released 1.5 GiB in ", holder.pid);
    assert!(text.contains(&words), "no {words}:\n{text}");
    assert!(text.contains("done: released 1.5 GiB"), "{text}");
    assert!(holder.is_alive());
    assert_eq!(stage.events(), ["begun", "intended", "done", "ended"]);
    assert_eq!(stage.lines()[1]["deed"], "release");
    // Once is enough for a minute.
    terminal.press("\u{1b}");
    terminal.press("R");
    terminal.wait_for("plan", |text| text.contains("y ask it"));
    terminal.press("yy");
    let text = terminal.wait_for("refusal", |text| text.contains("try again in "));
    assert!(!text.contains("done: released 1.5"), "{text}");
    quit(&mut terminal);
}

#[test]
fn a_process_that_cannot_be_asked_shows_why_and_gets_no_request() {
    let stage = or_skip!(Stage::new());
    let holder = stage.holder(OBEYS);
    let mut terminal = watching(&stage, &holder);
    terminal.press("R");
    let text = terminal.wait_for("plan", |text| text.contains("no process to ask"));
    assert!(text.contains("no way in"), "{text}");
    assert!(!text.contains("y ask"), "{text}");
    terminal.press("y");
    terminal.wait_for("why", |text| text.contains("can be asked to release memory"));
    assert!(holder.is_alive() && stage.lines().is_empty());
    quit(&mut terminal);
}

#[test]
fn what_is_undone_or_left_is_left_alive() {
    let stage = or_skip!(Stage::new());
    let holder = stage.holder(OBEYS);
    let mut terminal = planned(&stage, &holder);
    terminal.press("y");
    terminal.wait_for("countdown", |text| text.contains("nothing was sent yet"));
    terminal.press("u");
    terminal.wait_for("undo", |text| text.contains("undone: nothing was sent"));
    terminal.press("\r");
    terminal.wait_for("table", |text| !text.contains("should free"));
    terminal.press("x");
    terminal.wait_for("plan", |text| text.contains("y kill it"));
    // A lone Esc is one only when nothing comes behind it.
    terminal.press("\u{1b}");
    terminal.wait_for("table", |text| !text.contains("should free"));
    quit(&mut terminal);
    assert!(holder.is_alive() && stage.lines().is_empty());
}

#[test]
fn another_signal_is_chosen_and_planned() {
    let stage = or_skip!(Stage::new());
    let holder = stage.holder(IGNORES);
    let mut terminal = planned(&stage, &holder);
    // The last one.
    terminal.press("sssssss");
    let text = terminal.wait_for("plan", |text| text.contains("1. SIGKILL to"));
    assert!(
        text.contains(&format!("1. SIGKILL to {}", holder.pid)) && !text.contains("SIGTERM"),
        "{text}"
    );
    stage.release(&holder, Duration::ZERO);
    terminal.press("y");
    terminal.wait_for("outcome", |text| text.contains("done: freed 2.0 GiB"));
    assert!(!holder.is_alive());
    quit(&mut terminal);
}

#[test]
fn quitting_in_the_middle_shows_what_was_sent() {
    let stage = or_skip!(Stage::new());
    let holder = stage.holder(IGNORES);
    let mut terminal = planned(&stage, &holder);
    terminal.press("y");
    terminal.wait_for("grace", |text| text.contains("waiting for its memory, "));
    quit(&mut terminal);
    let pid = holder.pid;
    let summary = format!("left at {pid}: nothing more is sent; it was sent: SIGTERM to {pid}");
    terminal.wait_for("word of it", |text| text.contains(&summary));
    assert!(holder.is_alive());
    assert_eq!(stage.events(), ["begun", "intended", "done"]);
}

#[test]
fn stopping_in_the_middle_stays_and_shows_what_was_sent() {
    let stage = or_skip!(Stage::new());
    let holder = stage.holder(IGNORES);
    let mut terminal = planned(&stage, &holder);
    terminal.press("y");
    terminal.wait_for("grace", |text| text.contains("waiting for its memory, "));
    terminal.press("u");
    let text = terminal.wait_for("stop", |text| text.contains("stopped: nothing more is sent"));
    let sent = format!("done: SIGTERM to {}", holder.pid);
    assert!(text.contains(&sent) && text.contains("nothing more is sent"), "{text}");
    assert_eq!(stage.events(), ["begun", "intended", "done"]);
    // Nobody is kept from acting by what is over.
    let lock = File::open(stage.machine.path("state/reap.lock")).unwrap();
    flock(&lock, FlockOperation::NonBlockingLockExclusive).unwrap();
    quit(&mut terminal);
    assert!(holder.is_alive());
}

#[test]
fn a_picture_sends_nothing_whatever_keys_it_is_of() {
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

/// The screen, with the plan for what the rules found: one idle process.
fn planned_by_rule(stage: &Stage, holder: &Holder) -> Terminal {
    let mut terminal = watching(stage, holder);
    terminal.wait_for("finding", |text| text.contains("without using it"));
    terminal.press("X");
    let text = terminal.wait_for("plan", |text| text.contains("y kill it"));
    assert!(text.contains("kill what the rules found"), "{text}");
    terminal
}

#[test]
fn what_the_rules_find_no_longer_when_the_yes_comes_is_left() {
    let stage = or_skip!(Stage::new());
    let holder = or_skip!(idle(&stage, OBEYS));
    let mut terminal = planned_by_rule(&stage, &holder);
    stage.machine.play(&scene(holder.pid, 80));
    // The detail below the plan says what is so now.
    terminal.wait_for("work", |text| !text.contains("> end the process"));
    terminal.press("y");
    terminal.wait_for("outcome", |text| text.contains("done: freed 0 B; 0 of 1 succeeded"));
    assert!(holder.is_alive());
    assert_eq!(stage.events(), ["begun", "ended"]);
    quit(&mut terminal);
}

#[test]
fn of_the_demo_nothing_is_sent() {
    let command = support::command(&["watch", "--demo"]);
    let mut terminal = Terminal::start(&[], &command, 40, 120);
    terminal.wait_for("demo", |text| text.contains("fine-tune"));
    terminal.press("jx");
    terminal.wait_for("plan", |text| {
        text.contains("a recording: nothing will be sent") && text.contains("1. ")
    });
    terminal.press("y");
    terminal.wait_for("no", |text| text.contains("nothing was sent: it is a recording"));
    quit(&mut terminal);
}
