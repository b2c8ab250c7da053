//! What another account can make long, or can pretend to be: it is bounded, and proves nothing.

use std::os::unix::process::CommandExt as _;
use std::process::Command;

use crate::machine::{Machine, Running, one_gpu};

const NOBODY: u32 = 65534;

/// Runs it as another account if this one is root.
fn by_another(command: &mut Command) -> Running {
    if rustix::process::geteuid().is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    Running::start(command)
}

#[test]
fn an_argv_of_any_length_takes_four_kibibytes() {
    let long = vec!["x".repeat(10_000); 20];
    let process = by_another(Command::new("sh").args(["-c", "sleep 600; :"]).args(long));
    let machine = Machine::new(&one_gpu(&[process.pid()]));
    let snapshot = machine.snapshot(0);
    let command: Vec<&str> = snapshot.process(process.pid())["command"]
        .as_array()
        .unwrap()
        .iter()
        .map(|argument| argument.as_str().unwrap())
        .collect();
    assert_eq!(command[..3], ["sh", "-c", "sleep 600; :"]);
    assert!(command.last().unwrap().ends_with("x…"), "{command:?}");
    let bytes: usize = command.iter().map(|argument| argument.len()).sum();
    assert!((4000..=4100).contains(&bytes), "{bytes}");
}
