//! With `gpumem run`, a program's output on a terminal is byte for byte the same as without gpumem.

use std::process::Command;

use crate::pty::Terminal;
use crate::support;

/// Runs a program on a terminal while `type_keys` types. Returns the output and the exit code.
fn run_on_terminal(
    is_wrapped: bool,
    program: &[&str],
    type_keys: &dyn Fn(&mut Terminal),
) -> (String, Option<i32>) {
    let mut command = match is_wrapped {
        true => support::command(&["run", "--quiet", "--allow-no-gpu", "--"]),
        false => Command::new("env"),
    };
    support::clean_environment(&mut command);
    command.args(program).env("LESS", "").env("LESSHISTFILE", "-");
    let mut terminal = Terminal::start(Terminal::SHELL, &command, 24, 80);
    type_keys(&mut terminal);
    let status = terminal.wait_for_exit();
    terminal.assert_restored();
    (String::from_utf8_lossy(&terminal.bytes()).into_owned(), status.code())
}

#[track_caller]
fn assert_same(program: &[&str], type_keys: impl Fn(&mut Terminal)) {
    let bare = run_on_terminal(false, program, &type_keys);
    assert_eq!(run_on_terminal(true, program, &type_keys), bare, "{program:?}");
}

/// Stops the job with Ctrl-Z. The terminal's shell continues a stopped job when Enter is pressed.
fn stop_and_continue(terminal: &mut Terminal) {
    terminal.press("\u{1a}");
    terminal.wait_for_line("Stopped");
    terminal.press("\n");
}

#[test]
fn a_program_gets_keys_and_each_signal_once() {
    or_skip!(support::interrupts("a program that is interrupted"));
    or_skip!(support::find("python3", "python3"));
    // The script receives signals with sigwait, and therefore misses none.
    let script = r#"
import os, signal
caught = {signal.SIGINT, signal.SIGCONT, signal.SIGQUIT, signal.SIGWINCH}
signal.pthread_sigmask(signal.SIG_BLOCK, caught)
count = dict.fromkeys(caught, 0)
print("started", flush=True)
while not count[signal.SIGQUIT]:
    got = signal.sigwait(caught)
    count[got] += 1
    size = "x".join(map(str, os.get_terminal_size()))
    print(signal.Signals(got).name, count[got], size if got == signal.SIGWINCH else "", flush=True)
os._exit(9)"#;
    assert_same(&["python3", "-c", script], |terminal| {
        terminal.wait_for_line("started");
        for count in 1..4 {
            terminal.press("\u{3}");
            terminal.wait_for_line(&format!("SIGINT {count}"));
        }
        stop_and_continue(terminal);
        terminal.wait_for_line("SIGCONT 1");
        terminal.resize(30, 100);
        terminal.wait_for_line("SIGWINCH 1 100x30");
        terminal.press("\u{1c}");
    });
    // Ctrl-C ends the command.
    assert_same(&["sh", "-c", "echo started; exec sleep 600"], |terminal| {
        terminal.wait_for_line("started");
        terminal.press("\u{3}");
    });
}

#[test]
fn a_shell_keeps_its_job_control() {
    let shell = ["env", "PS1=ready> ", "bash", "--norc", "--noprofile", "--noediting", "-i"];
    assert_same(&shell, |terminal| {
        let prompts = |count: usize| {
            move |screen: &str| {
                screen.matches("ready>").count() == count && screen.trim_end().ends_with("ready>")
            }
        };
        terminal.wait_for("prompt", prompts(1));
        terminal.press("sh -c 'echo be''gun; exec sleep 600'\n");
        terminal.wait_for("the job", |screen| screen.contains("begun"));
        terminal.press("\u{1a}");
        terminal.wait_for("prompt", prompts(2));
        terminal.press("exit\n");
        terminal.wait_for("prompt", prompts(3));
        terminal.press("exit 7\n");
    });
}

#[test]
fn a_pager_stops_and_continues() {
    let less = or_skip!(support::find("less", "less"));
    let text: String = (0..200).map(|line| format!("line {line}\n")).collect();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("text");
    std::fs::write(&file, text).unwrap();
    let (less, file) = (less.to_str().unwrap(), file.to_str().unwrap());
    assert_same(&[less, file], |terminal| {
        terminal.wait_for("first page", |screen| screen.contains("line 22"));
        terminal.press(" ");
        terminal.wait_for("second page", |screen| screen.contains("line 45"));
        stop_and_continue(terminal);
        terminal.wait_for("the page again", |screen| screen.contains("line 45"));
        terminal.press("q");
    });
}
