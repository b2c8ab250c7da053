//! The start of `gpumem watch`, and its keys and mouse, on a real pseudo-terminal.

use std::process::Command;

use crate::machine::{Machine, Running, one_gpu};
use crate::pty::Terminal;
use crate::support;

/// Starts a program on a terminal, and waits until the terminal shows `mark`.
fn start_and_wait(program: &Command, mark: &str) -> Terminal {
    let terminal = Terminal::start(&[], program, 40, 160);
    terminal.wait_for(mark, |text| text.contains(mark));
    terminal
}

#[test]
fn without_a_command_the_screen_opens_if_there_is_a_driver() {
    let sleeper = Running::sleep();
    let machine = Machine::new(&one_gpu(&[sleeper.pid()]));
    start_and_wait(&machine.command(&[]), "MEMORY▼").quit();

    let no_driver = support::command(&["--nvml-library", "/nonexistent/libnvidia-ml.so.1"]);
    let mut terminal = start_and_wait(&no_driver, "gpumem doctor");
    assert_eq!(terminal.wait_for_exit().code(), Some(3));

    let mut dumb = machine.command(&[]);
    dumb.env("TERM", "dumb");
    let mut piped = Command::new("env");
    piped.arg("TERM=dumb").arg(dumb.get_program());
    let mut terminal = start_and_wait(&piped, "Exit codes:");
    assert_eq!(terminal.wait_for_exit().code(), Some(0), "help as in a pipe");
}

#[test]
fn the_background_of_the_terminal_determines_the_theme() {
    const QUESTION: &str = "\u{1b}]11;?\u{1b}\\";
    const GREEN: &str = ";32m";
    let demo = support::command(&["watch", "--demo"]);
    let mut terminal = start_and_wait(&demo, "398120");
    terminal.press("p");
    terminal.wait_for("a pause", |text| text.contains("PAUSED"));
    let from = terminal.bytes_written();
    terminal.press("\u{1b}]11;rgb:ffff/ffff/eeee\u{1b}\\?");
    terminal.wait_for("help", |text| text.contains("closes this help"));
    terminal.press("\u{1b}");
    // The answer has pressed no key: `f` would hide processes without findings.
    terminal.wait_for("the table", |text| text.contains("412301"));
    terminal.quit();
    let bytes = terminal.bytes();
    let [before, after] = [&bytes[..from], &bytes[from..]].map(String::from_utf8_lossy);
    assert!(before.contains(QUESTION) && before.contains(GREEN), "{before:?}");
    assert!(after.contains(";34m") && !after.contains(GREEN), "{after:?}");

    let named = support::command(&["watch", "--demo", "--theme", "terminal"]);
    let mut terminal = start_and_wait(&named, "398120");
    terminal.quit();
    assert!(!String::from_utf8_lossy(&terminal.bytes()).contains(QUESTION));
}

#[test]
fn the_key_bar_is_clickable_and_secrets_are_masked() {
    let mut command = Command::new("sleep");
    command.arg("600").env_clear().env("HF_HOME", "/models/\u{1b}[2J");
    command.env("HF_TOKEN", "s3cret").env("MY_DB_PASSWORD", "s3cret");
    command.env("http_proxy", "http://ann:s3cret@proxy:3128");
    let sleeper = Running::start(&mut command);
    let machine = Machine::new(&one_gpu(&[sleeper.pid()]));
    let pid = sleeper.pid().to_string();
    let mut terminal = start_and_wait(&machine.command(&["watch", "--no-store"]), &pid);
    terminal.press("j");
    terminal.wait_for_selected(&pid);
    terminal.press("e");
    let text = terminal.wait_for("the environment", |text| text.contains("HF_HOME="));
    assert!(text.contains(r"HF_HOME=/models/\e[2J"), "{text}");
    for masked in ["HF_TOKEN=***", "MY_DB_PASSWORD=***", "http_proxy=http://ann:***@proxy:3128"] {
        assert!(text.contains(masked), "{masked}: {text}");
    }
    assert!(!text.contains("s3cret"), "{text}");
    terminal.press("\u{1b}");
    terminal.wait_for_selected(&pid);
    terminal.click("F7 Totals");
    terminal.wait_for("totals", |text| {
        text.lines().any(|line| line.trim() == "totals") && text.contains("RECLAIMABLE")
    });
    terminal.click("Esc Back");
    terminal.wait_for_selected(&pid);
    terminal.click("F8 GPU");
    terminal.wait_for("the GPU's page", |text| text.contains("GPU 0: "));
    terminal.press("\u{1b}");
    terminal.wait_for_selected(&pid);
    terminal.press("0");
    terminal.wait_for("only GPU 0", |text| text.contains("filter: gpu:0"));
    terminal.press("y");
    terminal.wait_for("hint", |text| text.contains("? lists the keys"));
    terminal.click("MEMORY▼");
    terminal.click("F10 Quit");
    assert_eq!(terminal.wait_for_exit().code(), Some(0));
    terminal.assert_restored();
}

#[test]
fn pasted_text_neither_kills_nor_quits() {
    let sleeper = Running::sleep();
    let machine = Machine::new(&one_gpu(&[sleeper.pid()]));
    let pid = sleeper.pid().to_string();
    let mut terminal = start_and_wait(&machine.command(&["watch", "--no-store"]), &pid);
    terminal.press("j");
    terminal.wait_for_selected(&pid);
    let paste = |text: &str| format!("\u{1b}[200~{text}\u{1b}[201~");
    terminal.press(&paste("xyyy\rq\u{3}"));
    terminal.wait_for("hint", |text| text.contains("does not act as keys"));
    terminal.press("/");
    terminal.wait_for("prompt", |text| text.contains("filter:"));
    terminal.press(&paste("gpu:0 \n"));
    terminal.wait_for("pasted filter", |text| text.contains("filter: gpu:0"));
    terminal.press("\u{1b}");
    terminal.wait_for_selected(&pid);
    terminal.quit();
}
