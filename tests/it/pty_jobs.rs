//! `gpumem watch` on a terminal that accepts no output, and under the job control of a real shell.

use std::os::unix::process::ExitStatusExt as _;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Signal, kill_process};

use crate::pty::{Terminal, demo};
use crate::support::{self, PATIENCE};

/// Asserts that each signal ends gpumem while the terminal accepts no output.
fn assert_signals_end_while(block: impl Fn(&mut Terminal)) {
    for signal in [Signal::TERM, Signal::HUP, Signal::INT] {
        let mut terminal = demo(50, 200);
        block(&mut terminal);
        let start = Instant::now();
        while terminal.takes_output() {
            assert!(start.elapsed() < PATIENCE, "the terminal still accepts output");
            // Ctrl-L redraws the whole screen.
            terminal.press("\u{c}");
            thread::sleep(Duration::from_millis(2));
        }
        // Wait until gpumem is blocked in a write.
        thread::sleep(Duration::from_millis(300));
        kill_process(terminal.pid(), signal).unwrap();
        let status = terminal.wait_for_exit();
        let signalled = status.signal().or_else(|| status.code().map(|code| code - 128));
        assert_eq!(signalled, Some(signal.as_raw()), "{status}");
        terminal.set_reading(true);
        terminal.assert_restored();
    }
}

#[test]
fn signals_end_the_screen_when_output_is_not_read() {
    assert_signals_end_while(|terminal| terminal.set_reading(false));
}

#[test]
fn signals_end_the_screen_when_output_is_suspended() {
    assert_signals_end_while(|terminal| terminal.hold());
}

#[test]
fn the_screen_continues_when_output_is_read_again() {
    let mut terminal = demo(50, 200);
    terminal.set_reading(false);
    let start = Instant::now();
    while terminal.takes_output() {
        assert!(start.elapsed() < PATIENCE, "the terminal still accepts output");
        terminal.press("\u{c}");
        thread::sleep(Duration::from_millis(2));
    }
    terminal.press("/ann");
    thread::sleep(Duration::from_millis(300));
    terminal.set_reading(true);
    terminal.wait_for("filter", |text| text.contains("filter: ann"));
    // Escape can arrive together with the next key, and must not be read as Alt.
    terminal.press("\u{1b}");
    terminal.quit();
}

/// Starts an interactive shell with the prompt `ready>`.
fn start_shell() -> Option<Terminal> {
    let bash = support::find("bash", "bash")?;
    let mut command = Command::new(bash);
    command.args(["--norc", "--noprofile", "-i"]);
    support::clean_environment(&mut command);
    command.env("PS1", "ready> ").env("GPUMEM", support::gpumem());
    let terminal = Terminal::start(&[], &command, 24, 80);
    wait_for_prompt(&terminal, 1);
    Some(terminal)
}

/// Waits for the prompt number `count`. Returns the terminal's modes.
fn wait_for_prompt(terminal: &Terminal, count: usize) -> String {
    terminal.wait_for("prompt", |text| {
        text.matches("ready>").count() >= count && text.trim_end().ends_with("ready>")
    });
    // The shell changes the modes before and after the prompt.
    settled_modes(terminal)
}

/// Waits until the terminal's modes no longer change.
fn settled_modes(terminal: &Terminal) -> String {
    let start = Instant::now();
    let mut last = terminal.modes();
    loop {
        thread::sleep(Duration::from_millis(300));
        let now = terminal.modes();
        if now == last {
            return now;
        }
        assert!(start.elapsed() < PATIENCE, "{last}\n{now}");
        last = now;
    }
}

fn wait_for_screen(terminal: &Terminal) -> String {
    terminal.wait_for("demo", |text| text.contains("REPLAY demo"));
    settled_modes(terminal)
}

#[test]
fn job_control_restores_the_terminal_and_the_screen() {
    for line in [
        "\"$GPUMEM\" watch --demo",
        // Ctrl-Z also stops the inner shell, for which the outer shell waits.
        "bash -c '\"$GPUMEM\" watch --demo; true'",
    ] {
        let mut terminal = or_skip!(start_shell());
        let at_prompt = settled_modes(&terminal);
        assert!(at_prompt.contains("alternate screen false"), "{at_prompt}");
        terminal.press(&format!("{line}\n"));
        let while_drawn = wait_for_screen(&terminal);
        assert!(while_drawn.contains("paste true alternate screen true hidden cursor true"));
        for count in 2..4 {
            terminal.press("\u{1a}");
            let stopped = wait_for_prompt(&terminal, count);
            assert_eq!(stopped, at_prompt, "{line}: {}", terminal.text());
            assert!(terminal.text().contains("Stopped"), "{}", terminal.text());
            terminal.press("fg\n");
            assert_eq!(wait_for_screen(&terminal), while_drawn, "{line}");
        }
        terminal.press("q");
        assert_eq!(wait_for_prompt(&terminal, 4), at_prompt, "{line}");
        terminal.press("exit\n");
        terminal.wait_for_exit();
    }
}

/// Starts a shell, and stops gpumem in the shell with Ctrl-Z. Returns the terminal and its modes at the prompt.
fn start_stopped_job() -> Option<(Terminal, String)> {
    let mut terminal = start_shell()?;
    let at_prompt = settled_modes(&terminal);
    terminal.press("\"$GPUMEM\" watch --demo\n");
    wait_for_screen(&terminal);
    terminal.press("\u{1a}");
    wait_for_prompt(&terminal, 2);
    Some((terminal, at_prompt))
}

/// Types `first` and commands that kill the job and wait for its end. Asserts that the terminal is restored. The
/// commands poll, because bash's `wait` returns early if bash has not noticed that a stopped job continued.
fn assert_killed(terminal: &mut Terminal, first: &str, at_prompt: &str) {
    const KILL: &str =
        "p=$(jobs -p %1); kill %1; while kill -0 $p 2>/dev/null; do sleep 0.1; done; echo ended\n";
    terminal.press(&format!("{first}{KILL}"));
    terminal.wait_for("end of the job", |text| text.contains("\nended"));
    assert_eq!(settled_modes(terminal), at_prompt);
    terminal.press("exit\n");
    terminal.wait_for_exit();
}

#[test]
fn a_background_job_leaves_the_terminal_alone() {
    let (mut terminal, at_prompt) = or_skip!(start_stopped_job());
    terminal.press("bg\n");
    assert_eq!(wait_for_prompt(&terminal, 3), at_prompt);
    // gpumem stops again, because a background job must not use the terminal. bash's `kill` continues a job only if
    // bash has noticed that the job stopped.
    terminal.press("until [[ $(jobs) == *Stopped* ]]; do sleep 0.1; done\n");
    wait_for_prompt(&terminal, 4);
    assert_killed(&mut terminal, "", &at_prompt);
}

#[test]
fn unread_input_for_the_shell_does_not_block_a_kill() {
    let (mut terminal, at_prompt) = or_skip!(start_stopped_job());
    // `sleep 1` keeps the shell busy, so that the kill command stays unread in the terminal while gpumem runs in the
    // background.
    assert_killed(&mut terminal, "bg; sleep 1\n", &at_prompt);
}
