//! A user can run the command that a finding suggests.

use rustix::process::Signal;
use serde_json::json;

use crate::machine::{Machine, Running, one_gpu};
use crate::procs;

#[test]
fn the_command_of_a_finding_can_be_run() {
    let child = Running::sleep();
    procs::send(child.pid(), Signal::STOP);
    let machine = Machine::new(&one_gpu(&[child.pid()]));
    machine.configure("[rules.stopped]\nduration = \"1s\"\n");
    let arguments = ["--window", "2s", "--interval", "200ms", "--no-store"];
    let output = machine.run(&[&["check", "--json"], &arguments[..]].concat());
    let document = output.json();
    let finding = &document["findings"][0];
    assert_eq!(finding["kind"], "stopped", "{output:?}");
    let namespace = std::fs::read_link("/proc/self/ns/pid").unwrap();
    let is_host = namespace.to_str() == Some("pid:[4026531836]");
    // In another pid namespace, a pid from NVML can belong to an unrelated process, so gpumem does not advise `kill`.
    let verb = if is_host { "kill" } else { "explain" };
    let command = format!("gpumem {verb} {}", child.pid());
    assert_eq!(finding["commands"], json!([command]));
    let words: Vec<&str> = command.split(' ').skip(1).collect();
    let more: &[&str] = if is_host { &["--yes"] } else { &[] };
    let typed = machine.act(&[&words[..], more].concat());
    // The mock driver still lists the process, so gpumem cannot verify that the memory was freed.
    let expected: &[i32] = if is_host { &[0, 1] } else { &[0] };
    assert!(expected.contains(&typed.code), "{typed:?}");
    assert!(typed.stderr.is_empty() || is_host, "{typed:?}");
}
