//! Each finding ends with what to type: in text, where equal ones are one paragraph, and in JSON.

use rustix::process::Signal;
use serde_json::json;

use crate::machine::{Machine, Running, one_gpu};
use crate::procs;

#[test]
fn what_is_printed_can_be_typed() {
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
    // NVML's pids may mean others where they are not the host's.
    let verb = if is_host { "kill" } else { "explain" };
    let command = format!("gpumem {verb} {}", child.pid());
    assert_eq!(finding["commands"], json!([command]));
    let words: Vec<&str> = command.split(' ').skip(1).collect();
    let more: &[&str] = if is_host { &["--yes"] } else { &[] };
    let typed = machine.act(&[&words[..], more].concat());
    // The mock driver goes on listing it, so that the memory is not seen to come back.
    let expected: &[i32] = if is_host { &[0, 1] } else { &[0] };
    assert!(expected.contains(&typed.code), "{typed:?}");
    assert!(typed.stderr.is_empty() || is_host, "{typed:?}");
}
