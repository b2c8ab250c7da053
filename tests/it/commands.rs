//! Each finding ends with what to type: in text, where equal ones are one paragraph, and in JSON.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::machine::{Machine, Running, one_gpu};
use crate::support::{self, run};

/// What the demo's findings of a kind have to be typed.
fn demo(kind: &str) -> Vec<Value> {
    let output = run(&["check", "--demo", "--json"]);
    let document = output.json();
    let findings = document["findings"].as_array().unwrap().iter();
    findings
        .filter(|finding| finding["kind"] == kind)
        .map(|finding| finding["commands"].clone())
        .collect()
}

#[test]
fn equal_findings_are_one_paragraph_with_one_command_and_three_in_json() {
    let text = run(&["check", "--demo"]).stdout;
    let orphans = text.matches("warning: orphan").count();
    assert_eq!(orphans, 1, "{text}");
    for words in [
        "warning: orphan: 3 processes, 1.4 GiB: 402519, 402520, 402521\n",
        "    the first: python finetune_vit.py (402519) outlived",
        "    run: gpumem kill 402519 402520 402521\n",
        "    run: gpumem kill 448016\n",
        // Work that goes on and servers are not killed by default, and so not here.
        "    run: gpumem explain 440871\n",
        "    run: gpumem explain 207344\n",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    assert!(text.ends_with("6 warnings, 1 info on 4 GPUs, based on 40m 00s of history\n"));
    let all = json!(["gpumem kill 402519 402520 402521"]);
    assert_eq!(demo("orphan"), [all.clone(), all.clone(), all]);
}

#[test]
fn a_page_ends_what_is_to_be_done_with_what_to_type() {
    let text = run(&["explain", "402520", "--demo"]).stdout;
    let words = "\nWhat to type\n  `gpumem kill 402519 402520 402521`\n";
    assert!(text.contains(words), "{text}");
    let document = run(&["explain", "402520", "--demo", "--json"]).json();
    let command = &document["process"]["findings"][0]["commands"];
    assert_eq!(*command, json!(["gpumem kill 402519 402520 402521"]));
    // On the page itself there is no need to be told to open it.
    let text = run(&["explain", "440871", "--demo"]).stdout;
    assert!(!text.contains("What to type"), "{text}");
}

#[test]
fn of_a_recording_the_commands_are_not_for_here_and_now() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/corpus/stopped_trainer-100.jsonl");
    for (arguments, is_said) in [
        (&["check", "--replay", file][..], true),
        (&["check", "--replay", file, "--quiet"], false),
        (&["check", "--replay", file, "--json"], false),
        (&["check", "--demo"], false),
    ] {
        let said = run(arguments).stderr;
        let is_there = said.contains("for the recorded machine at that time");
        assert_eq!(is_there, is_said, "{arguments:?}: {said}");
    }
}

#[test]
fn what_is_printed_can_be_typed() {
    let child = Running::sleep();
    let pid = Pid::from_raw(i32::try_from(child.pid()).unwrap()).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
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
    let mut typed = machine.command(&[&words[..], more].concat());
    typed.env("STATE_DIRECTORY", machine.path("state"));
    let typed = support::finish(&mut typed);
    // The mock driver goes on listing it, so that the memory is not seen to come back.
    let expected: &[i32] = if is_host { &[0, 1] } else { &[0] };
    assert!(expected.contains(&typed.code), "{typed:?}");
    assert!(typed.stderr.is_empty() || is_host, "{typed:?}");
}
