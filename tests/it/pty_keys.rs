//! What is typed to open the screen, and what is pressed on it, on a real pseudo-terminal.

use std::process::Command;

use crate::machine::{Machine, Running, one_gpu};
use crate::pty::Terminal;
use crate::support;

/// A program on a terminal of 40 by 160, once it shows this.
fn shown(program: &Command, mark: &str) -> Terminal {
    let terminal = Terminal::start(&[], program, 40, 160);
    terminal.wait_for(mark, |text| text.contains(mark));
    terminal
}

#[test]
fn alone_it_opens_the_screen_where_there_is_a_driver_and_else_says_what_to_do() {
    let sleeper = Running::sleep();
    let machine = Machine::new(&one_gpu(&[sleeper.pid()]));
    shown(&machine.command(&[]), "MEMORY▼").quit();

    let no_driver = support::command(&["--nvml-library", "/nonexistent/libnvidia-ml.so.1"]);
    let mut terminal = shown(&no_driver, "gpumem doctor");
    assert_eq!(terminal.end().code(), Some(3));
    let text = terminal.text();
    assert!(text.contains("gpumem watch --demo"), "{text}");

    let mut dumb = machine.command(&[]);
    dumb.env("TERM", "dumb");
    let mut piped = Command::new("env");
    piped.arg("TERM=dumb").arg(dumb.get_program());
    let mut terminal = shown(&piped, "Exit codes:");
    assert_eq!(terminal.end().code(), Some(0), "the help, as in a pipe");
}

#[test]
fn the_bar_is_clicked_and_an_environment_is_shown_without_its_secrets() {
    let mut command = Command::new("sleep");
    command.arg("600").env_clear().env("HF_HOME", "/models/\u{1b}[2J");
    command.env("HF_TOKEN", "s3cret").env("MY_DB_PASSWORD", "s3cret");
    command.env("http_proxy", "http://ann:s3cret@proxy:3128");
    let sleeper = Running::start(&mut command);
    let machine = Machine::new(&one_gpu(&[sleeper.pid()]));
    let pid = sleeper.pid().to_string();
    let mut terminal = shown(&machine.command(&["watch", "--no-store"]), &pid);
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
    terminal.wait_for("an answer", |text| text.contains("? lists the keys"));
    terminal.click("MEMORY▼");
    terminal.click("F10 Quit");
    assert_eq!(terminal.end().code(), Some(0));
    terminal.assert_restored();
}

#[test]
fn what_is_pasted_kills_nothing_and_quits_nothing() {
    let sleeper = Running::sleep();
    let machine = Machine::new(&one_gpu(&[sleeper.pid()]));
    let pid = sleeper.pid().to_string();
    let mut terminal = shown(&machine.command(&["watch", "--no-store"]), &pid);
    terminal.press("j");
    terminal.wait_for_selected(&pid);
    let pasted = |text: &str| format!("\u{1b}[200~{text}\u{1b}[201~");
    terminal.press(&pasted("xyyy\rq\u{3}"));
    terminal.wait_for("an answer", |text| text.contains("does not act as keys"));
    terminal.press("/");
    terminal.wait_for("the prompt", |text| text.contains("filter:"));
    terminal.press(&pasted("gpu:0 \n"));
    terminal.wait_for("what was pasted", |text| text.contains("filter: gpu:0"));
    terminal.press("\u{1b}");
    terminal.wait_for_selected(&pid);
    terminal.quit();
}
