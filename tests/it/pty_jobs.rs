//! `gpumem watch` where its terminal takes nothing, and under the job control of a real shell.

use std::os::unix::process::ExitStatusExt as _;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Signal, kill_process};

use crate::pty::{Terminal, demo};
use crate::support::{self, PATIENCE};

/// Ends it by each signal while the terminal takes nothing.
fn ends_while(block: impl Fn(&mut Terminal)) {
    for signal in [Signal::TERM, Signal::HUP, Signal::INT] {
        let mut terminal = demo(50, 200);
        terminal.wait_for("demo", |text| text.contains("REPLAY demo"));
        block(&mut terminal);
        let begun = Instant::now();
        while terminal.takes_output() {
            assert!(begun.elapsed() < PATIENCE, "it takes all that comes");
            // Every one is a whole screen.
            terminal.press("\u{c}");
            thread::sleep(Duration::from_millis(2));
        }
        // It is blocked while it draws.
        thread::sleep(Duration::from_millis(300));
        kill_process(terminal.pid(), signal).unwrap();
        let status = terminal.end();
        let by = status.signal().or_else(|| status.code().map(|code| code - 128));
        assert_eq!(by, Some(signal.as_raw()), "{status}");
        terminal.read(true);
        terminal.assert_restored();
    }
}

#[test]
fn signals_end_it_where_the_terminal_is_not_read() {
    ends_while(|terminal| terminal.read(false));
}

#[test]
fn signals_end_it_where_the_terminal_is_held() {
    ends_while(|terminal| terminal.hold());
}

#[test]
fn keys_and_frames_go_on_when_the_terminal_is_read_again() {
    let mut terminal = demo(50, 200);
    terminal.wait_for("demo", |text| text.contains("REPLAY demo"));
    terminal.read(false);
    let begun = Instant::now();
    while terminal.takes_output() {
        assert!(begun.elapsed() < PATIENCE, "it takes all that comes");
        terminal.press("\u{c}");
        thread::sleep(Duration::from_millis(2));
    }
    terminal.press("/ann");
    thread::sleep(Duration::from_millis(300));
    terminal.read(true);
    terminal.wait_for("filter", |text| text.contains("filter: ann"));
    // On a busy machine both come at once, as from a quick hand.
    terminal.press("\u{1b}");
    terminal.quit();
}

/// A shell that a person types into, with a prompt of its own.
fn shell() -> Option<Terminal> {
    let bash = support::find("bash", "bash")?;
    let mut command = Command::new(bash);
    command.args(["--norc", "--noprofile", "-i"]);
    support::clean_environment(&mut command);
    command.env("PS1", "ready> ").env("GPUMEM", support::gpumem());
    let terminal = Terminal::start(&[], &command, 24, 80);
    prompt(&terminal, 1);
    Some(terminal)
}

/// Waits for the prompt that follows, and says what the terminal is like there.
fn prompt(terminal: &Terminal, count: usize) -> String {
    terminal.wait_for("prompt", |text| {
        text.matches("ready>").count() >= count && text.trim_end().ends_with("ready>")
    });
    // The shell sets its modes before and after it prints.
    settled(terminal)
}

/// What the terminal is like once that does not change any more.
fn settled(terminal: &Terminal) -> String {
    let begun = Instant::now();
    let mut last = terminal.everything();
    loop {
        thread::sleep(Duration::from_millis(300));
        let now = terminal.everything();
        if now == last {
            return now;
        }
        assert!(begun.elapsed() < PATIENCE, "{last}\n{now}");
        last = now;
    }
}

fn drawn(terminal: &Terminal) -> String {
    terminal.wait_for("demo", |text| text.contains("REPLAY demo"));
    settled(terminal)
}

#[test]
fn a_shell_gets_its_terminal_back_and_gives_it_again() {
    for line in [
        "\"$GPUMEM\" watch --demo",
        // Its shell waits for this one, which stops at once.
        "bash -c '\"$GPUMEM\" watch --demo; true'",
    ] {
        let mut terminal = or_skip!(shell());
        let at_prompt = settled(&terminal);
        assert!(at_prompt.contains("other screen false"), "{at_prompt}");
        terminal.press(&format!("{line}\n"));
        let while_drawn = drawn(&terminal);
        assert!(while_drawn.contains("paste true other screen true hidden cursor true"));
        for count in 2..4 {
            terminal.press("\u{1a}");
            let stopped = prompt(&terminal, count);
            assert_eq!(stopped, at_prompt, "{line}: {}", terminal.text());
            assert!(terminal.text().contains("Stopped"), "{}", terminal.text());
            terminal.press("fg\n");
            assert_eq!(drawn(&terminal), while_drawn, "{line}");
        }
        terminal.press("q");
        assert_eq!(prompt(&terminal, 4), at_prompt, "{line}");
        terminal.press("exit\n");
        terminal.end();
    }
}

/// A shell in which gpumem was stopped by Ctrl-Z, and what the terminal is like at its prompt.
fn stopped() -> Option<(Terminal, String)> {
    let mut terminal = shell()?;
    let at_prompt = settled(&terminal);
    terminal.press("\"$GPUMEM\" watch --demo\n");
    drawn(&terminal);
    terminal.press("\u{1a}");
    prompt(&terminal, 2);
    Some((terminal, at_prompt))
}

/// Types a line, and one that kills the job; it has to end, and to leave the terminal as it was. Bash's `wait` returns
/// where it has not heard yet that a stopped job goes on.
fn assert_killed(terminal: &mut Terminal, first: &str, at_prompt: &str) {
    const KILL: &str =
        "p=$(jobs -p %1); kill %1; while kill -0 $p 2>/dev/null; do sleep 0.1; done; echo ended\n";
    terminal.press(&format!("{first}{KILL}"));
    terminal.wait_for("its end", |text| text.contains("\nended"));
    assert_eq!(settled(terminal), at_prompt);
    terminal.press("exit\n");
    terminal.end();
}

#[test]
fn in_the_background_it_leaves_the_terminal_alone_and_can_be_ended() {
    let (mut terminal, at_prompt) = or_skip!(stopped());
    terminal.press("bg\n");
    assert_eq!(prompt(&terminal, 3), at_prompt);
    // It stops again, for want of the terminal. A shell that has not heard of it yet does not continue it
    // for the signal.
    terminal.press("until [[ $(jobs) == *Stopped* ]]; do sleep 0.1; done\n");
    prompt(&terminal, 4);
    assert_killed(&mut terminal, "", &at_prompt);
}

#[test]
fn what_is_typed_for_the_shell_does_not_keep_it_from_its_end() {
    let (mut terminal, at_prompt) = or_skip!(stopped());
    // The second line lies in the terminal while gpumem has been continued and is in the background.
    assert_killed(&mut terminal, "bg; sleep 1\n", &at_prompt);
}

#[test]
fn a_shell_that_is_quick_finds_it_running() {
    let mut terminal = or_skip!(shell());
    let at_prompt = settled(&terminal);
    // The shell waits for the one that is stopped first, which is not gpumem.
    terminal.press("bash -c '\"$GPUMEM\" watch --demo; true'\n");
    let while_drawn = drawn(&terminal);
    for _ in 0..10 {
        terminal.press("\u{1a}");
        terminal.wait_for("prompt", |text| text.trim_end().ends_with("ready>"));
        terminal.press("fg\n");
        assert_eq!(drawn(&terminal), while_drawn);
    }
    terminal.press("\u{1a}");
    prompt(&terminal, 2);
    // It has not stopped yet for want of the terminal.
    terminal.press("bg; sleep 0.1; fg\n");
    assert_eq!(drawn(&terminal), while_drawn);
    terminal.press("q");
    assert_eq!(prompt(&terminal, 3), at_prompt);
    terminal.press("exit\n");
    terminal.end();
}
